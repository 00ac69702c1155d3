"""The record: consecutive messages appended together (storage, encryption and push unit).

A record is two byte strings. The **payload** is the JSON forms of its messages joined by commas:
exactly the text between the brackets of a push frame, encoded once, later encrypted. The **header**
is plain and columnar, so that storage can deduplicate and delivery can gate and slice without
opening the payload (R9):

    fixed    version u8, flags u8, tenant u32, record id 16 bytes, published_unix_ms u64,
             ring_epoch u32, count u32, producers u16
    columns  sizes u32[count], key hashes u64[count] (0: no key)
    if P     producers x (producer id 16 bytes, resolved u64),
             producer index u16[count] (0: none, else 1-based), sequences u64[count]
    if I     id digests, 32 bytes x count (zeros: no client id)
    if E     expires_unix_ms u64[count] (0: never)
    if D     deliver_at_unix_ms u64[count], id hashes u64[count] (0: no client id)
    if Q     priority u8[count]   (read; nothing sets it)

A record with the columns of D goes to the due store (`push.due`), all of it.

All little-endian. Offsets are not inside. The storage assigns them, and the same bytes are stored
whichever they become. A record some of whose messages were duplicates is stored with a skip list
beside it; `Record.load` returns the dense record that is left.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, repeat, starmap
from operator import add
from typing import Any, Final

VERSION: Final = 1
"""Version of the header's form. A reader refuses another one, rather than guess (R4)."""
PRODUCERS, IDS, EXPIRES, DELIVER_AT, PRIORITY = 1, 2, 4, 8, 16
_FLAGS: Final = PRODUCERS | IDS | EXPIRES | DELIVER_AT | PRIORITY
_FIXED: Final = struct.Struct("<BBI16sQIIH")
_PRODUCER: Final = struct.Struct("<16sQ")
NO_DIGEST: Final = bytes(32)
RECORD_MEMORY_BYTES: Final = 1000
MESSAGE_MEMORY_BYTES: Final = 64
"""Bytes that CPython takes for a record beside its payload, and for each of its messages
(tracemalloc, 3.11: 990 and 60). A hundred thousand records of one small message are 140 MB, not
30."""
_NOTHING: Final = array("Q")
_NOT_DUE: Final = (0, 0)
_NONE: Final[list[Any]] = []
"""A missing column. It is shared, so that a record of one message is fewer objects."""


def _nothing() -> "array[int]":
    return _NOTHING


class RecordDamaged(ValueError):
    """The header does not parse, or does not fit the payload."""


@dataclass(slots=True)
class Header:
    """The parsed header of a record. Columns that the record does not have are empty."""

    tenant: int
    record_id: bytes
    published_unix_ms: int
    ring_epoch: int
    sizes: "array[int]"
    key_hashes: "array[int]"
    producers: list[tuple[bytes, int]]
    """(producer id, resolved) of each producer; one may be in it several times, with different
    `resolved`."""
    producer_indexes: "array[int]"
    sequences: "array[int]"
    digests: list[bytes]
    expires_unix_ms: "array[int]"
    deliver_at_unix_ms: "array[int]"
    priorities: bytes
    id_hashes: "array[int]" = field(default_factory=_nothing)
    """Hashes of the client ids alone, without the keys, to find an id whose key is not known. Only
    beside `deliver_at_unix_ms`."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.sizes)

    def without_producers(self) -> "Header":
        """Return the header without its producers, which delivery does not need once the storage
        has answered. They are a third of a record in memory. The columns are shared."""
        return Header(
            self.tenant,
            self.record_id,
            self.published_unix_ms,
            self.ring_epoch,
            self.sizes,
            self.key_hashes,
            _NONE,
            _NOTHING,
            _NOTHING,
            self.digests,
            self.expires_unix_ms,
            self.deliver_at_unix_ms,
            self.priorities,
            self.id_hashes,
        )

    def encode(self) -> bytes:
        """Return the header's bytes."""
        flags = (
            (PRODUCERS if self.producers else 0)
            | (IDS if self.digests else 0)
            | (EXPIRES if self.expires_unix_ms else 0)
            | (DELIVER_AT if self.deliver_at_unix_ms else 0)
            | (PRIORITY if self.priorities else 0)
        )
        parts = [
            _FIXED.pack(
                VERSION,
                flags,
                self.tenant,
                self.record_id,
                self.published_unix_ms,
                self.ring_epoch,
                len(self.sizes),
                len(self.producers),
            ),
            self.sizes.tobytes(),
            self.key_hashes.tobytes(),
        ]
        if self.producers:
            parts += starmap(_PRODUCER.pack, self.producers)
            parts += [self.producer_indexes.tobytes(), self.sequences.tobytes()]
        parts += self.digests
        parts += [self.expires_unix_ms.tobytes(), self.deliver_at_unix_ms.tobytes()]
        if self.deliver_at_unix_ms:
            hashes = self.id_hashes or array("Q", bytes(8 * len(self.sizes)))
            parts.append(hashes.tobytes())
        parts.append(self.priorities)
        return b"".join(parts)


# enforces: R4
def parse_header(data: bytes) -> Header:
    """Return the header of which `Header.encode` made these bytes.

    Raises:
        RecordDamaged: an unknown version or column, no message, a length that does not fit, or a
            message of a producer that is not in the table.
    """
    try:
        (version, flags, tenant, record_id, published_unix_ms, ring_epoch, count, producers) = (
            _FIXED.unpack_from(data)
        )
    except struct.error as error:
        raise RecordDamaged(f"header: {error}") from None
    if version != VERSION:
        raise RecordDamaged(f"record version {version}; this is a reader of version {VERSION}")
    if flags & ~_FLAGS or bool(flags & PRODUCERS) != bool(producers):
        raise RecordDamaged(f"the header has the flags {flags:#x} and {producers} producers")
    if not count:
        raise RecordDamaged("a record without a message")
    place = _FIXED.size

    def take(length: int) -> bytes:
        nonlocal place
        place += length
        if place > len(data):
            raise RecordDamaged("the header is shorter than its count says")
        return data[place - length : place]

    def column(typecode: str, width: int, present: bool) -> "array[int]":
        return array(typecode, take(width * count) if present else b"")

    sizes, key_hashes = column("I", 4, True), column("Q", 8, True)
    with_producers = bool(flags & PRODUCERS)
    table = [_PRODUCER.unpack(take(_PRODUCER.size)) for _ in range(producers)]
    header = Header(
        tenant=tenant,
        record_id=record_id,
        published_unix_ms=published_unix_ms,
        ring_epoch=ring_epoch,
        sizes=sizes,
        key_hashes=key_hashes,
        producers=[(producer, resolved) for producer, resolved in table],
        producer_indexes=column("H", 2, with_producers),
        sequences=column("Q", 8, with_producers),
        digests=[take(32) for _ in range(count)] if flags & IDS else [],
        expires_unix_ms=column("Q", 8, bool(flags & EXPIRES)),
        deliver_at_unix_ms=column("Q", 8, bool(flags & DELIVER_AT)),
        id_hashes=column("Q", 8, bool(flags & DELIVER_AT)),
        priorities=take(count) if flags & PRIORITY else b"",
    )
    if place != len(data):
        raise RecordDamaged("the header is longer than its count says")
    if with_producers and max(header.producer_indexes) > producers:
        raise RecordDamaged("a message of a producer that the header does not name")
    return header


class Record:
    """A stored record at its place: dense offsets first..last over a payload that can be sliced."""

    __slots__ = ("_before", "_expires_min", "first", "header", "last", "payload")

    def __init__(self, first: int, header: Header, payload: bytes) -> None:
        self.first = first
        self.last = first + len(header.sizes) - 1
        self.header = header
        self.payload = payload
        self._before: list[int] | None = None
        self._expires_min: int | None = None

    @classmethod
    def load(cls, first: int, header: bytes, payload: bytes, skips: "tuple[int, ...]") -> "Record":
        """Return the record as delivery sees it; `skips` are the indexes that were not assigned
        offsets.

        Raises:
            RecordDamaged: header, payload and skips do not fit each other, or nothing is left.
        """
        parsed = parse_header(header)
        if sum(parsed.sizes) + max(len(parsed.sizes) - 1, 0) != len(payload):
            raise RecordDamaged("the payload's length is not what the header says")
        record = cls(first, parsed, payload)
        return record._without(skips) if skips else record

    # enforces: R9
    def _without(self, skips: "tuple[int, ...]") -> "Record":
        gone = set(skips)
        count = self.header.count
        keep = [index for index in range(count) if index not in gone]
        if not keep or len(keep) + len(gone) != count:
            raise RecordDamaged(f"skips {skips} of a record of {count} messages")
        starts, old = self.starts(), self.header
        pieces = [self.payload[starts[i] : starts[i] + old.sizes[i]] for i in keep]

        def picked(column: "array[int]") -> "array[int]":
            return array(column.typecode, [column[i] for i in keep] if column else [])

        header = Header(
            tenant=old.tenant,
            record_id=old.record_id,
            published_unix_ms=old.published_unix_ms,
            ring_epoch=old.ring_epoch,
            sizes=picked(old.sizes),
            key_hashes=picked(old.key_hashes),
            producers=old.producers,
            producer_indexes=picked(old.producer_indexes),
            sequences=picked(old.sequences),
            digests=[old.digests[i] for i in keep] if old.digests else [],
            expires_unix_ms=picked(old.expires_unix_ms),
            deliver_at_unix_ms=picked(old.deliver_at_unix_ms),
            id_hashes=picked(old.id_hashes),
            priorities=bytes(old.priorities[i] for i in keep) if old.priorities else b"",
        )
        return Record(self.first, header, b",".join(pieces))

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. The columns are most of it if messages are small."""
        return (
            RECORD_MEMORY_BYTES + MESSAGE_MEMORY_BYTES * len(self.header.sizes) + len(self.payload)
        )

    def _sums(self) -> list[int]:
        """The bytes of the first 0, 1, 2 … messages, without the commas. Message i begins at
        sums[i] + i. One pass in C, for every record that does not go out whole."""
        if self._before is None:
            self._before = [*accumulate(self.header.sizes, initial=0)]
        return self._before

    def starts(self) -> list[int]:
        """The places where the messages begin in the payload."""
        return [*map(add, self._sums()[:-1], count())]

    # enforces: P2
    def slice(self, first: int, last: int) -> bytes:
        """Return the JSON of the messages at offsets first..last, joined by commas."""
        if first == self.first and last == self.last:
            return self.payload
        sums = self._sums()
        low, high = first - self.first, last - self.first
        return self.payload[sums[low] + low : sums[high + 1] + high]

    def pick(
        self, first: int, last: int, skips: "tuple[int, ...]"
    ) -> "Sequence[bytes | memoryview]":
        """Return pieces that together are the JSON of the messages at offsets first..last but for
        `skips` (ascending, between first and last), joined by commas. The pieces are views, not
        copies."""
        if first == self.first and last == self.last and not skips:
            return (self.payload,)
        sizes, payload, place = self.header.sizes, memoryview(self.payload), first - self.first
        begin = sum(sizes[:place]) + place
        pieces = []
        for skip in skips:
            after = skip - self.first
            end = begin + sum(sizes[place:after]) + after - place
            if after > place:
                pieces.append(payload[begin:end])  # with the comma after it
            begin, place = end + sizes[after] + 1, after + 1
        after = last + 1 - self.first
        pieces.append(payload[begin : begin + sum(sizes[place:after]) + after - place - 1])
        return pieces

    def alone(self, offset: int) -> "Record":
        """Return the message at this offset, as a record of its own that delivery can work with."""
        old, place = self.header.without_producers(), offset - self.first
        one = slice(place, place + 1)
        header = replace(
            old,
            sizes=old.sizes[one],
            key_hashes=old.key_hashes[one],
            digests=old.digests[one],
            expires_unix_ms=old.expires_unix_ms[one],
            deliver_at_unix_ms=old.deliver_at_unix_ms[one],
            id_hashes=old.id_hashes[one],
            priorities=old.priorities[one],
        )
        return Record(offset, header, self.slice(offset, offset))

    def bytes_until(self, first: int, bytes_max: int) -> int:
        """Return the last offset L >= first such that slice(first, L) has at most bytes_max bytes.

        At least `first` itself, however large.
        """
        if len(self.payload) <= bytes_max:
            return self.last
        starts = self.starts()
        low = first - self.first
        # message i ends one comma before message i + 1 begins, so messages are whole before the
        # last start that is at most one byte beyond the bound
        bound = starts[low] + bytes_max
        if starts[-1] + self.header.sizes[-1] <= bound:
            return self.last
        return max(first, self.first + bisect_right(starts, bound + 1, low) - 2)

    def key_hash(self, offset: int) -> int:
        """Return the key's hash at this offset; 0: no key."""
        return self.header.key_hashes[offset - self.first]

    def expires_unix_ms(self, offset: int) -> int:
        """Return when the message at this offset expires; 0: never."""
        column = self.header.expires_unix_ms
        return column[offset - self.first] if column else 0

    def expires_min_unix_ms(self) -> int:
        """Return the earliest expiry in the record; 0: nothing here expires."""
        if self._expires_min is None:
            self._expires_min = min(filter(None, self.header.expires_unix_ms), default=0)
        return self._expires_min


class RecordBuilder:
    """A record under construction: messages of one partition, until a group commit takes them."""

    __slots__ = (
        "_contexts",
        "_current",
        "_due",
        "_expires",
        "_ids",
        "_indexes",
        "_sequences",
        "bytes",
        "count",
        "key_hashes",
        "payloads",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.key_hashes: list[int] = []
        self.count = 0
        """Number of messages."""
        self.bytes = 0
        self._contexts: list[tuple[bytes, int]] = []
        self._current = 0
        self._indexes: list[int] = []
        self._sequences: list[int] = []
        self._ids: dict[int, bytes] = {}
        self._expires: dict[int, int] = {}
        self._due: dict[int, tuple[int, int]] = {}

    def set_producer(self, producer: bytes, resolved: int) -> None:
        """Name the producer of the messages that are added next. `resolved`: all of its sequences
        below this one have had their last answer."""
        pair = (producer, resolved)
        if not self._contexts or self._contexts[-1] != pair:
            self._contexts.append(pair)
        self._current = len(self._contexts)

    def clear_producer(self) -> None:
        """Let the messages that are added next have no producer, and no sequences."""
        self._current = 0

    def add(self, encoded: bytes, key_hash: int, sequence: int = 0) -> None:
        """Add one encoded message."""
        self.payloads.append(encoded)
        self.key_hashes.append(key_hash)
        self._indexes.append(self._current)
        self._sequences.append(sequence if self._current else 0)
        self.count += 1
        self.bytes += len(encoded) + 1

    def extend(
        self, encoded: list[bytes], key_hashes: list[int], size: int, sequences: Iterable[int]
    ) -> None:
        """Add encoded messages of `size` bytes in all, of the producer that was named last. If none
        is named, their sequences mean nothing."""
        count = len(encoded)
        self.payloads += encoded
        self.key_hashes += key_hashes
        self._indexes += repeat(self._current, count)
        self._sequences += sequences if self._current else repeat(0, count)
        self.count += count
        self.bytes += size + count

    def mark(self, place: int, digest: bytes | None, expires_unix_ms: int) -> None:
        """Set the client id's digest and the expiry of message number `place` of the record."""
        if digest is not None:
            self._ids[place] = digest
        if expires_unix_ms:
            self._expires[place] = expires_unix_ms

    def schedule(self, place: int, due_unix_ms: int, id_hash: int) -> None:
        """Set when message number `place` is due, and the hash of its client id (0: it has none).
        All messages of the record have to be scheduled, or none."""
        self._due[place] = (due_unix_ms, id_hash)

    def close(
        self, *, record_id: bytes, published_unix_ms: int, ring_epoch: int, tenant: int
    ) -> tuple[bytes, bytes, Header]:
        """Make the record. Returns (header bytes, payload, parsed header)."""
        count = self.count
        ids, expires, due = self._ids, self._expires, self._due
        with_producers = bool(self._contexts)
        header = Header(
            tenant=tenant,
            record_id=record_id,
            published_unix_ms=published_unix_ms,
            ring_epoch=ring_epoch,
            sizes=array("I", [*map(len, self.payloads)]),
            key_hashes=array("Q", self.key_hashes),
            producers=self._contexts,
            producer_indexes=array("H", self._indexes if with_producers else []),
            sequences=array("Q", self._sequences if with_producers else []),
            digests=[ids.get(i, NO_DIGEST) for i in range(count)] if ids else _NONE,
            expires_unix_ms=(
                array("Q", [expires.get(i, 0) for i in range(count)]) if expires else _NOTHING
            ),
            deliver_at_unix_ms=(
                array("Q", [due.get(i, _NOT_DUE)[0] for i in range(count)]) if due else _NOTHING
            ),
            priorities=b"",
            id_hashes=(
                array("Q", [due.get(i, _NOT_DUE)[1] for i in range(count)]) if due else _NOTHING
            ),
        )
        return header.encode(), b",".join(self.payloads), header
