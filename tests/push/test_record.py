"""The record: what was put together comes apart the same, and damage is only ever damage."""

import tracemalloc
from array import array
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from push.record import (
    NO_DIGEST,
    Header,
    Record,
    RecordBuilder,
    RecordDamaged,
    parse_header,
)
from tests.examples import examples

RECORD_ID = bytes(range(16))
u64 = st.integers(0, (1 << 64) - 1)
producer_ids = st.sampled_from([bytes([number]) * 16 for number in range(1, 4)])


@dataclass(frozen=True)
class Given:
    """A message as a publisher hands it in."""

    encoded: bytes
    key_hash: int
    context: tuple[bytes, int] | None
    sequence: int
    digest: bytes | None
    expires_unix_ms: int


messages = st.builds(
    Given,
    encoded=st.binary(min_size=1, max_size=12),
    key_hash=u64,
    context=st.none() | st.tuples(producer_ids, st.integers(0, 3)),
    sequence=u64,
    digest=st.none() | st.binary(min_size=32, max_size=32),
    expires_unix_ms=st.just(0) | st.integers(1, 1 << 45),
)
batches = st.lists(messages, min_size=1, max_size=9)


def build(batch: list[Given]) -> tuple[bytes, bytes, Header]:
    builder = RecordBuilder()
    for one in batch:
        if one.context is None:
            builder.clear_producer()
        else:
            builder.set_producer(*one.context)
        builder.add(one.encoded, one.key_hash, one.sequence)
        builder.mark(builder.count - 1, one.digest, one.expires_unix_ms)
    assert builder.count == len(batch)
    assert builder.bytes == sum(len(one.encoded) + 1 for one in batch)
    return builder.close(
        record_id=RECORD_ID, published_unix_ms=1_700_000_000_123, ring_epoch=3, tenant=7
    )


def assert_same(record: Record, first: int, batch: list[Given]) -> None:
    header = record.header
    assert (record.first, record.last, header.count) == (first, first + len(batch) - 1, len(batch))
    assert record.payload == b",".join(one.encoded for one in batch)
    for index, one in enumerate(batch):
        offset = first + index
        assert record.slice(offset, offset) == one.encoded
        assert record.key_hash(offset) == one.key_hash
        assert record.expires_unix_ms(offset) == one.expires_unix_ms
        if one.context is None:
            assert not header.producer_indexes or header.producer_indexes[index] == 0
        else:
            assert header.producers[header.producer_indexes[index] - 1] == one.context
            assert header.sequences[index] == one.sequence
        if header.digests:
            assert header.digests[index] == (one.digest or NO_DIGEST)
        else:
            assert one.digest is None
    expiries = [one.expires_unix_ms for one in batch if one.expires_unix_ms]
    assert record.expires_min_unix_ms() == min(expiries, default=0)


@settings(max_examples=examples(500))
@given(batches, st.integers(0, 1 << 39))
def test_a_record_comes_back_as_it_was_built(batch: list[Given], first: int) -> None:
    """P2."""
    encoded, payload, header = build(batch)
    assert parse_header(encoded) == header
    assert parse_header(encoded).encode() == encoded
    assert_same(Record.load(first, encoded, payload, ()), first, batch)
    fixed = (header.tenant, header.record_id, header.published_unix_ms, header.ring_epoch)
    assert fixed == (7, RECORD_ID, 1_700_000_000_123, 3)


@settings(max_examples=examples(500))
@given(batches, st.data())
def test_skipped_messages_are_gone_and_offsets_stay_dense(
    batch: list[Given], data: st.DataObject
) -> None:
    """R9: duplicates of a record get no offset; its bytes are not touched."""
    encoded, payload, _ = build(batch)
    skips = data.draw(st.sets(st.integers(0, len(batch) - 1), max_size=len(batch) - 1))
    record = Record.load(100, encoded, payload, tuple(sorted(skips)))
    left = [one for index, one in enumerate(batch) if index not in skips]
    assert_same(record, 100, left)
    assert parse_header(record.header.encode()) == record.header


@settings(max_examples=examples(500))
@given(batches, st.data())
def test_slices_are_the_messages_between_joined_by_commas(
    batch: list[Given], data: st.DataObject
) -> None:
    encoded, payload, _ = build(batch)
    record = Record.load(50, encoded, payload, ())
    low = data.draw(st.integers(0, len(batch) - 1))
    high = data.draw(st.integers(low, len(batch) - 1))
    expected = b",".join(one.encoded for one in batch[low : high + 1])
    assert record.slice(50 + low, 50 + high) == expected


@settings(max_examples=examples(1000))
@given(batches, st.data())
def test_a_push_takes_what_fits_and_at_least_one(batch: list[Given], data: st.DataObject) -> None:
    encoded, payload, _ = build(batch)
    record = Record.load(50, encoded, payload, ())
    low = data.draw(st.integers(0, len(batch) - 1))
    bytes_max = data.draw(st.integers(0, len(payload) + 1))
    expected = 50 + low
    while expected < record.last and len(record.slice(50 + low, expected + 1)) <= bytes_max:
        expected += 1
    assert record.bytes_until(50 + low, bytes_max) == expected


def test_columns_that_no_publisher_sets_yet_are_read() -> None:
    """R4: priority is in the format from the start."""
    header = Header(
        tenant=1, record_id=RECORD_ID, published_unix_ms=5, ring_epoch=1,
        sizes=array("I", [1, 1]), key_hashes=array("Q", [0, 9]), producers=[],
        producer_indexes=array("H"), sequences=array("Q"), digests=[],
        expires_unix_ms=array("Q"), deliver_at_unix_ms=array("Q", [55, 77]), priorities=b"\x00\x09",
        id_hashes=array("Q", [0, 5]),
    )  # fmt: skip
    assert parse_header(header.encode()) == header
    left = Record.load(0, header.encode(), b"1,2", (0,)).header
    assert (list(left.deliver_at_unix_ms), left.priorities) == ([77], b"\x09")
    assert list(left.id_hashes) == [5]


@settings(max_examples=examples(500))
@given(batches, st.data())
def test_a_truncated_header_is_damage(batch: list[Given], data: st.DataObject) -> None:
    encoded, payload, _ = build(batch)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    with pytest.raises(RecordDamaged):
        Record.load(0, cut, payload, ())
    with pytest.raises(RecordDamaged):
        Record.load(0, encoded + data.draw(st.binary(min_size=1)), payload, ())


@settings(max_examples=examples(2000))
@given(batches, st.data())
def test_flipped_bits_are_damage_or_another_valid_record_and_never_another_error(
    batch: list[Given], data: st.DataObject
) -> None:
    """P13. Values (a hash, a time) have no redundancy here, that is the row's checksum; but what
    parses can be used: nothing in it points outside of it."""
    encoded, payload, _ = build(batch)
    bits = data.draw(st.sets(st.integers(0, len(encoded) * 8 - 1), min_size=1, max_size=4))
    damaged = bytearray(encoded)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    try:
        record = Record.load(0, bytes(damaged), payload, ())
    except RecordDamaged:
        return
    header = record.header
    assert header.encode() == bytes(damaged)
    assert record.slice(record.first, record.last) == payload
    for offset in range(record.first, record.last + 1):
        record.slice(offset, offset)
        record.key_hash(offset)
        record.expires_unix_ms(offset)
        if header.producers:
            assert header.producer_indexes[offset] <= len(header.producers)
    assert record.expires_min_unix_ms() >= 0


@pytest.mark.parametrize("byte", [0, 1])
def test_every_flip_in_version_and_flags_is_damage(byte: int) -> None:
    """These say how to read the rest."""
    batch = [Given(b"1", 1, (bytes(16), 0), 4, bytes(32), 9), Given(b"22", 0, None, 0, None, 0)]
    encoded, payload, _ = build(batch)
    for bit in range(8):
        damaged = bytearray(encoded)
        damaged[byte] ^= 1 << bit
        with pytest.raises(RecordDamaged):
            Record.load(0, bytes(damaged), payload, ())


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.binary(max_size=50))
def test_noise_is_damage(noise: bytes, payload: bytes) -> None:
    assume(noise[:1] != b"\x01" or len(noise) < 100)
    with pytest.raises(RecordDamaged):
        Record.load(0, noise, payload, ())


def test_a_huge_count_allocates_nothing() -> None:
    """P9: the count of a damaged header is not believed before its bytes are there."""
    encoded, payload, _ = build([Given(b"1", 1, None, 0, None, 0)])
    damaged = bytearray(encoded)
    damaged[34:38] = b"\xff\xff\xff\xff"
    with pytest.raises(RecordDamaged, match="shorter"):
        Record.load(0, bytes(damaged), payload, ())


@pytest.mark.parametrize("payload", [b"", b"1,2", b"1,22,", b"1,2222"])
def test_a_payload_of_another_length_is_damage(payload: bytes) -> None:
    encoded, whole, _ = build([Given(b"1", 0, None, 0, None, 0), Given(b"22", 0, None, 0, None, 0)])
    assert whole == b"1,22"
    with pytest.raises(RecordDamaged, match="payload"):
        Record.load(0, encoded, payload, ())


@pytest.mark.parametrize("skips", [(0, 1), (2,), (-1,), (0, 7)])
def test_skips_that_leave_nothing_or_name_nothing_are_damage(skips: tuple[int, ...]) -> None:
    encoded, payload, _ = build(
        [Given(b"1", 0, None, 0, None, 0), Given(b"22", 0, None, 0, None, 0)]
    )
    with pytest.raises(RecordDamaged, match="skips"):
        Record.load(0, encoded, payload, skips)


def test_a_record_without_messages_is_damage() -> None:
    encoded, payload, _ = build([])
    with pytest.raises(RecordDamaged, match="without"):
        Record.load(0, encoded, payload, ())


@pytest.mark.parametrize("messages", [1, 100])
def test_memory_bytes_are_those_of_the_process(messages: int) -> None:
    """P9: bounds are kept in them, so they must not be too few."""
    builders = [RecordBuilder() for _ in range(200)]
    for number, builder in enumerate(builders):
        builder.set_producer(bytes(16), number)
        for sequence in range(messages):
            builder.add(b'{"key":"k","body":1}', (1 << 63) + number, (1 << 40) + sequence)
    tracemalloc.start()
    try:
        records = []
        for number, builder in enumerate(builders):
            record_id = number.to_bytes(16)
            _, payload, header = builder.close(
                record_id=record_id, published_unix_ms=1 << 40, ring_epoch=1, tenant=0
            )
            records.append(Record(1 << 30 | number, header, payload))
            records[-1].slice(1 << 30 | number, 1 << 30 | number)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / 1.6 < sum(record.memory_bytes for record in records) < taken * 1.6


@given(batches, st.data())
def test_what_is_picked_is_the_slice_without_the_skipped(
    batch: list[Given], data: st.DataObject
) -> None:
    encoded, payload, _ = build(batch)
    record = Record.load(100, encoded, payload, ())
    first = data.draw(st.integers(record.first, record.last))
    last = data.draw(st.integers(first, record.last))
    between = range(first + 1, last)
    skips = tuple(sorted(data.draw(st.sets(st.sampled_from(between))) if between else ()))
    expected = [record.slice(o, o) for o in range(first, last + 1) if o not in skips]
    assert b"".join(record.pick(first, last, skips)) == b",".join(expected)


@given(batches, st.data())
def test_a_message_alone_is_what_it_was(batch: list[Given], data: st.DataObject) -> None:
    """What a line keeps of a record (P8) goes out as it would have from the record."""
    encoded, payload, _ = build(batch)
    record = Record.load(100, encoded, payload, ())
    offset = data.draw(st.integers(record.first, record.last))
    alone = record.alone(offset)
    assert (alone.first, alone.last) == (offset, offset)
    assert alone.slice(offset, offset) == record.slice(offset, offset)
    assert b"".join(alone.pick(offset, offset, ())) == record.slice(offset, offset)
    assert alone.key_hash(offset) == record.key_hash(offset)
    assert alone.expires_unix_ms(offset) == record.expires_unix_ms(offset)
    assert alone.header.published_unix_ms == record.header.published_unix_ms
