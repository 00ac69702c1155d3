"""The contract of `push.storage_port.Storage`: appending, reading, queues. Over every storage."""

import asyncio
from dataclasses import replace

import pytest

from push import limits
from push.errors import Refused
from push.places import Partition
from push.record import parse_header
from push.storage_port import Append, Storage
from tests.contract.stores import (
    ANN,
    BEN,
    P0,
    P1,
    START_UNIX_S,
    Clock,
    append,
    body,
    one,
    outcomes,
    sequences,
)


@pytest.fixture(autouse=True)
async def queue(store: Storage) -> None:
    await store.create_queue("q-1", 2)


# --- Offsets and records ------------------------------------------------------------------------


@pytest.mark.layouts
async def test_offsets_are_dense_from_zero_in_the_order_of_the_calls(store: Storage) -> None:
    calls = [store.append([append(messages=2), append(P1, messages=1)]) for _ in range(3)]
    answers = await asyncio.gather(*calls)
    assert [outcomes(answer[0]) for answer in answers] == [[0, 1], [2, 3], [4, 5]]
    assert [outcomes(answer[1]) for answer in answers] == [[0], [1], [2]]
    assert [answer[0].certified for answer in answers] == [2, 4, 6]


@pytest.mark.layouts
async def test_what_was_appended_is_read_byte_for_byte(store: Storage) -> None:
    """P2."""
    record = append(runs=[(ANN, 0, [0, 1, 2])])
    await store.append([record])
    (read,) = (await store.read(P0, 0, 1)).records
    assert (read.first, read.last, read.payload) == (0, 2, record.payload)
    assert read.header.encode() == record.header


async def test_reading_begins_with_the_record_that_holds_the_offset(store: Storage) -> None:
    for _ in range(3):
        await store.append([append(messages=2)])
    read = await store.read(P0, 3, 10**6)
    assert [(record.first, record.last) for record in read.records] == [(2, 3), (4, 5)]
    assert (read.start, read.certified, read.damage) == (0, 6, ())


async def test_a_read_is_bounded_but_holds_a_record(store: Storage) -> None:
    for _ in range(4):
        await store.append([append(messages=1, size=100)])
    first = (await store.read(P0, 0, 1)).records
    assert [r.first for r in first] == [0]
    each = first[0].memory_bytes
    assert each > 100
    for bytes_max, expected in ((2 * each - 1, [0]), (2 * each, [0, 1]), (3 * each - 1, [0, 1])):
        assert [r.first for r in (await store.read(P0, 0, bytes_max)).records] == expected


@pytest.mark.layouts
async def test_single_offsets_are_read_each_with_the_record_that_holds_it(store: Storage) -> None:
    for _ in range(3):
        await store.append([append(messages=2, size=100)])
    wanted = [0, 1, 4, 5, 6, 10**9]
    found = await store.read_each(P0, wanted, 10**6)
    assert [record and (record.first, record.last) for record in found] == [
        (0, 1), (0, 1), (4, 5), (4, 5), None, None,
    ]  # fmt: skip
    assert found[0] is found[1]
    assert await store.read_each(Partition("q-9", 0), [0, 1], 10**6) == (None, None)
    assert await store.read_each(P0, [], 10**6) == ()


async def test_of_single_offsets_so_many_are_read_as_fit_and_one_at_least(store: Storage) -> None:
    for _ in range(3):
        await store.append([append(messages=2, size=100)])
    (first,) = await store.read_each(P0, [0], 1)
    assert first is not None
    each = first.memory_bytes
    for bytes_max, count in ((1, 2), (2 * each - 1, 2), (2 * each, 4), (3 * each, 5)):
        assert len(await store.read_each(P0, [0, 1, 2, 3, 4], bytes_max)) == count


async def test_a_read_ends_at_the_given_place(store: Storage) -> None:
    for _ in range(4):
        await store.append([append(messages=2)])
    assert [r.first for r in (await store.read(P0, 0, 10**6, until=3)).records] == [0, 2]
    assert [r.first for r in (await store.read(P0, 0, 10**6, until=4)).records] == [0, 2, 4]
    assert (await store.read(P0, 2, 10**6, until=1)).records == ()


async def test_reading_at_the_end_or_where_nothing_is_gives_nothing(store: Storage) -> None:
    await store.append([append(messages=2)])
    at_end = await store.read(P0, 2, 10**6)
    assert (at_end.records, at_end.certified) == ((), 2)
    nowhere = await store.read(Partition("q-9", 0), 0, 10**6)
    assert (nowhere.records, nowhere.start, nowhere.certified) == ((), 0, 0)


@pytest.mark.parametrize("offset", [-5, 1 << 40, 1 << 70])
async def test_reading_from_anywhere_is_harmless(store: Storage, offset: int) -> None:
    """P12: positions come from clients; another partition's record is not returned."""
    await store.append([append(messages=2), append(P1, messages=2)])
    read = await store.read(P0, offset, 10**6)
    assert [r.first for r in read.records] == ([0] if offset < 0 else [])
    assert (await store.read(P0, 0, 10**6, until=1 << 70)).records[0].last == 1


@pytest.mark.layouts
async def test_the_wake_up_comes_before_the_answer(store: Storage) -> None:
    """R10: it names the certified end."""
    seen: list[object] = []
    store.on_certified(lambda partition, certified: seen.append((partition, certified)))
    (appended,) = await store.append([append(messages=3)])
    seen.append(appended.certified)
    assert seen == [(P0, 3), 3]


async def test_an_append_that_stores_nothing_wakes_nobody(store: Storage) -> None:
    await sequences(store, [0])
    seen: list[object] = []
    store.on_certified(lambda partition, certified: seen.append((partition, certified)))
    assert await sequences(store, [0]) == [-1]
    assert seen == []


async def test_messages_for_an_unknown_partition_are_answered_one_by_one(store: Storage) -> None:
    """R5: their neighbours are stored."""
    stray = append(Partition("q-9", 0), messages=2)
    missing, stored = await store.append([stray, append(messages=1)])
    assert outcomes(missing) == ["queue_not_found", "queue_not_found"]
    assert (missing.count, missing.skips) == (0, (0, 1))
    assert outcomes(stored) == [0]
    assert outcomes((await store.append([append(Partition("q-1", 2), messages=1)]))[0]) == [
        "queue_not_found"
    ]


@pytest.mark.parametrize("damage", ["header", "payload", "producer", "sequence"])
async def test_what_is_no_record_is_refused_and_changes_nothing(
    store: Storage, damage: str
) -> None:
    """P12."""
    good = append(messages=1)
    bad = {
        "header": Append(P0, good.header[:-1], good.payload),
        "payload": Append(P0, good.header, good.payload + b" "),
        "producer": append(runs=[(ANN, 0, [1]), (None, 0, [0])]),
        "sequence": append(runs=[(ANN, 0, [1 << 63])]),
    }[damage]
    if damage == "producer":  # index 1 becomes 9, of one producer
        cut = bad.header.index(b"\x01\x00\x00\x00", len(bad.header) - 20)
        bad = Append(P0, bad.header[:cut] + b"\x09" + bad.header[cut + 1 :], bad.payload)
    with pytest.raises(Refused):
        await store.append([good, bad])
    assert await one(store, good) == [0]


async def test_what_a_record_says_may_come_along_and_stays_as_it_was(store: Storage) -> None:
    """The maker of a record pushes it to consumers from the same values."""
    records = [append(runs=[(ANN, 0, [0, 1]), (None, 0, [0])]), append(runs=[(ANN, 0, [1, 2])])]
    parsed = [parse_header(record.header) for record in records]
    there = [replace(record, parsed=header) for record, header in zip(records, parsed, strict=True)]
    assert outcomes((await store.append(there[:1]))[0]) == [0, 1, 2]
    assert outcomes((await store.append(there[1:]))[0]) == [-2, 3]
    assert [header.encode() for header in parsed] == [record.header for record in records]
    read = await store.read(P0, 0, 1)
    assert read.records[0].payload == records[0].payload


# --- Sequences (R6, R7) -------------------------------------------------------------------------


@pytest.mark.layouts
async def test_a_sequence_is_stored_once_and_every_answer_names_its_offset(store: Storage) -> None:
    """P4, R5."""
    assert await sequences(store, [0, 1, 2]) == [0, 1, 2]
    assert await sequences(store, [1]) == [-2]
    assert await sequences(store, [0, 1, 2, 3]) == [-1, -2, -3, 3]
    read = await store.read(P0, 0, 10**6)
    assert [r.payload for r in read.records] == [
        b",".join(map(body, (0, 1, 2))),
        body(3),
    ]


async def test_duplicates_inside_one_record_share_the_outcome(store: Storage) -> None:
    assert await sequences(store, [5, 5, 6, 5]) == [0, -1, 1, -1]
    assert await sequences(store, [7, 7, 8]) == [2, -3, 3]


async def test_below_resolved_a_sequence_is_too_old_and_never_a_duplicate(store: Storage) -> None:
    """R6. [5 refused, 6 stored, 5 sent again, "duplicate": lost.]"""
    await sequences(store, [4, 6])
    assert await sequences(store, [7], resolved=7) == [2]
    assert await sequences(store, [5, 6], resolved=0) == ["sequence_too_old"] * 2
    assert await sequences(store, [7], resolved=7) == [-3]


async def test_resolved_is_that_of_the_messages_context(store: Storage) -> None:
    """A record may contain the same producer several times."""
    record = append(runs=[(ANN, 0, [1, 2]), (ANN, 2, [3]), (ANN, 4, [4, 3])])
    assert await one(store, record) == [0, 1, 2, 3, "sequence_too_old"]


async def test_producers_and_partitions_have_lines_of_their_own(store: Storage) -> None:
    mixed = append(runs=[(ANN, 0, [1]), (None, 0, [0]), (BEN, 0, [1]), (ANN, 1, [2])])
    assert await one(store, mixed) == [0, 1, 2, 3]
    assert await one(store, append(P1, runs=[(ANN, 0, [1])])) == [0]
    assert await one(store, mixed) == [-1, 4, -3, -4]


async def test_a_resender_in_a_shared_record_delays_nobody(store: Storage) -> None:
    """R9. [One resender in a shared record stalls or doubles nine others.]"""
    await sequences(store, [1, 2])
    shared = append(runs=[(BEN, 0, [1]), (ANN, 0, [2]), (BEN, 0, [2]), (ANN, 0, [3])])
    (appended,) = await store.append([shared])
    assert outcomes(appended) == [2, -2, 3, 4]
    assert (appended.first, appended.count, appended.skips) == (2, 3, (1,))
    (record,) = (await store.read(P0, 2, 10**6)).records
    assert (record.first, record.last) == (2, 4)
    assert record.payload == b",".join(map(body, (1, 2, 3)))


@pytest.mark.layouts
async def test_a_refused_message_holds_up_those_behind_it(store: Storage) -> None:
    """R7."""
    assert await sequences(store, [1, 2, 3], messages_max=1) == [
        0,
        "queue_full",
        "out_of_sequence",
    ]
    assert await sequences(store, [4], resolved=2) == ["out_of_sequence"]
    assert await sequences(store, [2], resolved=2) == [1]
    assert await sequences(store, [4], resolved=2) == ["out_of_sequence"]  # 3 was not sent again
    assert await sequences(store, [3, 4], resolved=2) == [2, 3]


async def test_a_producer_that_gives_up_the_refused_one_goes_on(store: Storage) -> None:
    """R7: a `resolved` above it gives it up."""
    await sequences(store, [1, 2, 3], messages_max=1)
    assert await sequences(store, [4], resolved=4) == [1]


async def test_others_are_not_held_up_by_a_refused_message(store: Storage) -> None:
    await sequences(store, [1, 2], messages_max=1)
    assert await sequences(store, [2], producer=BEN) == [1]
    assert await one(store, append(messages=1)) == [2]
    assert await one(store, append(P1, runs=[(ANN, 0, [3])])) == [0]


async def test_in_flight_messages_of_a_producer_are_bounded(store: Storage) -> None:
    """R6, P9."""
    most = limits.IN_FLIGHT_PER_PRODUCER_MAX
    for first in range(0, most, 1000):
        await sequences(store, range(first, first + 1000))
    assert await sequences(store, [most, most + 1]) == ["too_many_in_flight", "out_of_sequence"]
    assert await sequences(store, [5]) == [-6]
    assert await sequences(store, [most, most + 1], resolved=2) == [most, most + 1]


async def test_an_idle_producers_late_retries_are_refused(store: Storage, clock: Clock) -> None:
    """R6: they are not appended again, and the producer can go on above them."""
    await sequences(store, [3, 5])
    clock.unix_s += 2 * limits.PRODUCER_IDLE_S
    assert await sequences(store, [3, 4, 5]) == ["sequence_too_old"] * 3
    assert await sequences(store, [6]) == [2]
    assert await sequences(store, [6]) == [-3]


async def test_a_producer_is_forgotten_in_the_end(store: Storage, clock: Clock) -> None:
    """After ten times PRODUCER_IDLE_S its name is free."""
    await sequences(store, [3])
    clock.unix_s += 12 * limits.PRODUCER_IDLE_S
    assert await sequences(store, [0]) == [1]


# --- Client ids (R8) ----------------------------------------------------------------------------


@pytest.mark.layouts
async def test_an_id_is_stored_once_within_its_window(store: Storage, clock: Clock) -> None:
    """P4, R8."""
    assert await one(store, append(ids=["a", "b"])) == [0, 1]
    clock.unix_s += 299
    assert await one(store, append(ids=["b", "c", None, "c"])) == [-2, 2, 3, -3]


async def test_an_id_is_forgotten_after_its_window(store: Storage, clock: Clock) -> None:
    assert await one(store, append(ids=["a"])) == [0]
    clock.unix_s += 300 * (1 + 1 / limits.DEDUP_BUCKETS)
    assert await one(store, append(ids=["a"])) == [1]
    assert await one(store, append(ids=["a"])) == [-2]


async def test_an_id_is_compared_whole(store: Storage) -> None:
    """R8. [A hash collision called a duplicate: lost.]"""
    assert await one(store, append(ids=["x" * 31 + "a", "x" * 31 + "b"])) == [0, 1]


async def test_ids_of_other_partitions_and_windows_of_zero_do_not_count(store: Storage) -> None:
    assert await one(store, append(ids=["a"])) == [0]
    assert await one(store, append(P1, ids=["a"])) == [0]
    assert await one(store, append(ids=["a", "a"], dedup_window_s=0)) == [1, 2]


async def test_overlapping_appends_of_one_id_share_the_outcome(store: Storage) -> None:
    """R5: while the original is in flight."""
    calls = [one(store, append(ids=["a"])) for _ in range(5)]
    assert sorted(await asyncio.gather(*calls)) == [[-1]] * 4 + [[0]]


async def test_a_known_id_under_a_new_sequence_keeps_the_originals_offset(store: Storage) -> None:
    assert await one(store, append(ids=["a"])) == [0]
    again = append(runs=[(ANN, 0, [1])], ids=["a"])
    assert await one(store, again) == [-1]
    assert await sequences(store, [1]) == [-1]


async def test_a_refused_messages_id_is_not_remembered(store: Storage) -> None:
    assert await one(store, append(ids=["a", "b"], messages_max=1)) == [0, "queue_full"]
    assert await one(store, append(ids=["b"])) == [1]


# --- Queues, seals, time ------------------------------------------------------------------------


async def test_making_a_queue_again_changes_nothing(store: Storage) -> None:
    await store.append([append(messages=2)])
    await store.create_queue("q-1", 2)
    assert [state.end for state in await store.partitions("q-1")] == [2, 0]


@pytest.mark.layouts
async def test_a_dropped_queue_is_gone_and_its_neighbours_are_not(store: Storage) -> None:
    """R1: ids are not reused, so nothing of it can return."""
    await store.create_queue("q-2", 1)
    await store.create_group("g-1", "q-1", ["earliest", "earliest"])
    await store.append([append(messages=2), append(Partition("q-2", 0), messages=3)])
    await store.drop_queue("q-1")
    await store.drop_queue("q-1")
    assert await store.partitions("q-1") == []
    assert await store.cursors("q-1", "g-1") == []
    assert (await store.read(P0, 0, 10**6)).records == ()
    assert await one(store, append(messages=1)) == ["queue_not_found"]
    assert [state.end for state in await store.partitions("q-2")] == [3]
    await store.create_queue("q-3", 1)
    assert (await store.read(Partition("q-3", 0), 0, 10**6)).records == ()


@pytest.mark.layouts
async def test_a_dropped_queue_is_not_made_by_who_comes_late(store: Storage) -> None:
    """R1: its creator was paused after it asked the catalog, and no gateway would drop the queue
    again. The storage may never have had it."""
    await store.append([append(messages=2)])
    for queue_id in ("q-1", "q-9"):
        await store.drop_queue(queue_id)
        for _ in range(2):
            with pytest.raises(Refused, match="queue_not_found"):
                await store.create_queue(queue_id, 2)
            with pytest.raises(Refused, match="queue_not_found"):
                await store.create_group("g-1", queue_id, ["earliest", "earliest"])
        assert await store.partitions(queue_id) == []
        await store.drop_queue(queue_id)
        await store.drop_group("g-1", queue_id)


@pytest.mark.layouts
async def test_a_sealed_partition_takes_nothing_more_but_knows_its_duplicates(
    store: Storage,
) -> None:
    """R27."""
    await sequences(store, [1, 2])
    assert await store.seal(P0, [P1]) == 2
    assert await store.seal(P0, []) == 2
    assert await sequences(store, [2, 3]) == [-2, "storage_unavailable"]
    assert (await store.partitions("q-1"))[0].sealed_at == 2
    with pytest.raises(Refused, match="queue_not_found"):
        await store.seal(Partition("q-9", 0), [])


@pytest.mark.layouts
async def test_an_offset_is_found_by_time(store: Storage, clock: Clock) -> None:
    for minute in range(5):
        clock.unix_s = START_UNIX_S + 60 * minute
        await store.append([append(messages=3, published_unix_s=clock.unix_s)])
    start_ms = int(START_UNIX_S * 1000)
    wanted = {0: 0, start_ms: 0, start_ms + 1: 3, start_ms + 120_000: 6, start_ms + 240_001: 15}
    found = {unix_ms: await store.offset_at(P0, unix_ms) for unix_ms in wanted}
    assert found == wanted


async def test_a_closed_storage_refuses(store: Storage) -> None:
    await store.close()
    with pytest.raises(Refused, match="storage_unavailable"):
        await store.append([append(messages=1)])
    with pytest.raises(Refused, match="storage_unavailable"):
        await store.read(P0, 0, 1)
    assert not (await store.state()).writable


async def test_the_incarnation_does_not_change(store: Storage) -> None:
    """R30."""
    assert await store.incarnation() == await store.incarnation() != ""


async def test_a_cancelled_caller_does_not_take_back_its_append(store: Storage) -> None:
    task = asyncio.ensure_future(store.append([append(messages=1)]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await one(store, append(messages=1)) == [1]
