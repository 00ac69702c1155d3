"""The contract of `push.storage_port.DueStore`: scheduled messages (R32). Over every storage."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from push.due import DueMessage, DuePlace
from push.errors import Refused
from push.places import Partition
from push.storage_port import Append, Appended, NotStored, Scheduled, Storage, Stored
from tests.contract.stores import (
    ANN,
    P0,
    P1,
    Clock,
    append,
    body,
    change,
    digest,
    due_unix_ms,
    one,
    outcomes,
    with_group,
)
from tests.waiting import becomes

FOR_EVER = due_unix_ms(10**9)


@pytest.fixture(autouse=True)
async def queue(store: Storage) -> None:
    await store.create_queue("q-1", 2)


async def schedule(
    store: Storage, *after_s: float, ids: Sequence[str | None] = (), partition: Partition = P0
) -> list[int | str]:
    """Schedule a record of messages that are due so many seconds from the start."""
    return await one(store, append(partition, messages=len(after_s), due=after_s, ids=ids))


async def waiting(store: Storage, until_unix_ms: int = FOR_EVER) -> list[DueMessage]:
    """Return what waits in partition 0 and is due by then, in order."""
    read = await store.due.first(P0, until_unix_ms, count_max=1000, bytes_max=10**9)
    assert not read.damaged
    return [*read.messages]


def record_of(messages: Sequence[DueMessage], *, dedup_window_s: float = 300.0) -> Append:
    """Return the record that these messages become in the log."""
    whole = append(sizes=[len(each.payload) for each in messages], dedup_window_s=dedup_window_s)
    return replace(whole, payload=b",".join(each.payload for each in messages))


async def move(store: Storage, messages: Sequence[DueMessage]) -> Appended | None:
    """Move messages into the log, in this order."""
    return await store.due.move(messages, record_of(messages))


async def log(store: Storage, partition: Partition = P0) -> list[bytes]:
    """Return the payloads in the log."""
    read = await store.read(partition, 0, 10**9)
    return [record.payload for record in read.records]


# --- Scheduling ---------------------------------------------------------------------------------


@pytest.mark.layouts
async def test_a_scheduled_message_has_a_number_and_no_offset(store: Storage) -> None:
    assert await schedule(store, 20, 10) == ["due 0", "due 1"]
    assert await one(store, append(messages=1)) == [0]
    assert await schedule(store, 5) == ["due 2"]
    assert await schedule(store, 5, partition=P1) == ["due 0"], "each partition counts its own"
    (state, other) = await store.partitions("q-1")
    assert (state.end, state.certified, state.messages, other.end) == (1, 1, 1, 0)
    assert len(await log(store)) == 1


@pytest.mark.layouts
async def test_what_is_due_comes_in_the_order_of_times_and_then_of_numbers(store: Storage) -> None:
    await schedule(store, 20, 10, 20, 10)
    found = await waiting(store)
    assert [each.number for each in found] == [1, 3, 0, 2]
    assert [each.due_unix_ms for each in found] == [due_unix_ms(n) for n in (10, 10, 20, 20)]
    assert [each.payload for each in found] == [body(n) for n in (1, 3, 0, 2)]
    assert [each.number for each in await waiting(store, due_unix_ms(10))] == [1, 3]
    assert not await waiting(store, due_unix_ms(10) - 1)


async def test_what_is_kept_of_a_scheduled_message(store: Storage) -> None:
    await one(store, append(messages=2, due=[7, 8], ids=[None, "x"], id_hashes=[0, 9]))
    first, second = await waiting(store)
    assert (first.partition, first.version, first.key_hash) == (P0, 0, 7)
    assert (first.id_hash, second.id_hash) == (0, 9)
    assert (first.digest, second.digest) == (bytes(32), digest("x"))
    assert first.published_unix_ms == due_unix_ms(0)


async def test_a_look_at_what_is_due_is_bounded_and_says_what_follows(store: Storage) -> None:
    await schedule(store, 1, 2, 3, 4)
    size = len(body(0))
    for count_max, bytes_max, numbers, after_s in [
        (2, 10**6, [0, 1], 3),
        (9, 2 * size, [0, 1], 3),
        (9, 2 * size - 1, [0], 2),
        (9, 0, [0], 2),
        (9, 10**6, [0, 1, 2], 4),
    ]:
        read = await store.due.first(P0, due_unix_ms(3), count_max=count_max, bytes_max=bytes_max)
        assert [each.number for each in read.messages] == numbers
        assert read.next_unix_ms == due_unix_ms(after_s)
    whole = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**6)
    assert whole.next_unix_ms is None
    none = await store.due.first(P0, due_unix_ms(0), count_max=9, bytes_max=10**6)
    assert (none.messages, none.next_unix_ms) == ((), due_unix_ms(1))
    unknown = await store.due.first(Partition("q-9", 0), FOR_EVER, count_max=9, bytes_max=9)
    assert (unknown.messages, unknown.next_unix_ms) == ((), None)


async def test_a_record_is_scheduled_whole_or_not_at_all(store: Storage) -> None:
    mixed = append(messages=2, due=[5, -1_700_000_000])
    with pytest.raises(Refused, match="all of its messages are scheduled, or none"):
        await store.append([mixed])
    assert not await waiting(store)


async def test_those_who_wait_for_what_is_due_are_told(store: Storage) -> None:
    told: list[tuple[Partition, int]] = []
    store.due.on_due(lambda partition, unix_ms: told.append((partition, unix_ms)))
    await schedule(store, 20)
    await becomes(lambda: (P0, due_unix_ms(20)) in told)
    await schedule(store, 10)
    await becomes(lambda: (P0, due_unix_ms(10)) in told)
    (first, _) = await waiting(store)
    assert await store.due.change(replace(first, due_unix_ms=due_unix_ms(5)))
    await becomes(lambda: (P0, due_unix_ms(5)) in told)


# --- Moving -------------------------------------------------------------------------------------


@pytest.mark.layouts
async def test_a_move_appends_and_removes(store: Storage) -> None:
    """P1: what is due takes its place in the log, and is not due again."""
    woken: list[tuple[Partition, int]] = []
    store.on_certified(lambda partition, end: woken.append((partition, end)))
    await one(store, append(messages=1))
    await schedule(store, 20, 10, 30)
    early = await waiting(store, due_unix_ms(20))
    moved = await move(store, early)
    assert moved is not None
    assert (moved.first, moved.count, moved.certified) == (1, 2, 3)
    assert await log(store) == [body(0), b",".join([body(1), body(0)])]
    assert [each.number for each in await waiting(store)] == [2]
    await becomes(lambda: (P0, 3) in woken)
    (state, _) = await store.partitions("q-1")
    assert (state.end, state.messages) == (3, 3)


@pytest.mark.layouts
async def test_a_move_by_two_happens_once(store: Storage) -> None:
    await schedule(store, 1, 2)
    found = await waiting(store)
    both = await asyncio.gather(move(store, found), move(store, found))
    assert sorted(moved is None for moved in both) == [False, True]
    assert await log(store) == [b",".join([body(0), body(1)])]


async def test_a_move_of_what_is_not_there_any_more_changes_nothing(store: Storage) -> None:
    await schedule(store, 1, 2, 3)
    first, second, third = await waiting(store)
    assert await store.due.cancel(P0, second.number, remember_s=300)
    assert await move(store, [first, second]) is None
    assert await store.due.change(replace(third, due_unix_ms=due_unix_ms(9)))
    assert await move(store, [first, third]) is None
    assert await move(store, [first, first]) is None
    assert await log(store) == []
    assert [each.number for each in await waiting(store)] == [0, 2]


async def test_a_record_that_is_not_of_the_messages_that_move_is_refused(store: Storage) -> None:
    await schedule(store, 1, 2)
    first, second = await waiting(store)
    for wrong in (
        record_of([first]),
        append(runs=[(ANN, 0, [0, 1])]),
        append(messages=2, ids=["x", None]),
        append(messages=2, due=[1, 2]),
    ):
        with pytest.raises(Refused, match="it does not have just the messages that move"):
            await store.due.move([first, second], wrong)
    assert len(await waiting(store)) == 2


# --- Deduplication ------------------------------------------------------------------------------


@pytest.mark.layouts
async def test_an_id_is_known_until_its_time_after_the_move(store: Storage, clock: Clock) -> None:
    """P4: due tomorrow, and sent again after six minutes, it is stored once."""
    assert await schedule(store, 86400, ids=["x"]) == ["due 0"]
    clock.unix_s += 3600
    assert await schedule(store, 86400, ids=["x"]) == ["due 0 again"]
    assert await one(store, append(ids=["x"])) == ["due 0 again"], "at once is not another message"
    await move(store, await waiting(store))
    assert await schedule(store, 86400, ids=["x"]) == ["due 0 again"]
    clock.unix_s += 300
    assert await schedule(store, 86400, ids=["x"]) == ["due 0 again"]
    clock.unix_s += 400
    assert await schedule(store, 86400, ids=["x"]) == ["due 1"]


async def test_an_id_of_the_log_is_known_to_the_due_store(store: Storage) -> None:
    assert await one(store, append(ids=["x"])) == [0]
    assert await schedule(store, 5, ids=["x"]) == [-1]
    assert await schedule(store, 5, 6, ids=["y", "y"]) == ["due 0", "due 0 again"]
    assert len(await waiting(store)) == 1


@pytest.mark.layouts
async def test_a_sequence_is_answered_with_its_ticket(store: Storage) -> None:
    """P4, R6."""
    record = append(runs=[(ANN, 0, [0, 1])], due=[5, 6])
    assert await one(store, record) == ["due 0", "due 1"]
    assert await one(store, record) == ["due 0 again", "due 1 again"]
    assert await one(store, append(runs=[(ANN, 0, [1, 2])])) == ["due 1 again", 0]
    await move(store, await waiting(store))
    assert await one(store, record) == ["due 0 again", "due 1 again"]
    assert await one(store, append(runs=[(ANN, 2, [1, 3])])) == ["sequence_too_old", 3]


async def test_what_becomes_of_an_id_can_be_asked(store: Storage, clock: Clock) -> None:
    assert await store.due.known(P0, digest("x")) is None
    await one(store, append(ids=["w"]))
    await schedule(store, 5, 6, ids=["x", None])
    assert await store.due.known(P0, digest("w")) == Stored(0, duplicate=True)
    assert await store.due.known(P0, digest("x")) == Scheduled(0, duplicate=True)
    assert await store.due.fate(P0, 0) is None
    await move(store, await waiting(store))
    assert await store.due.known(P0, digest("x")) == Scheduled(0, duplicate=True)
    assert [await store.due.fate(P0, n) for n in (0, 1, 2)] == [Stored(1), Stored(2), None]
    clock.unix_s += 700
    assert await store.due.fate(P0, 0) is None
    assert await store.due.known(P0, digest("x")) is None
    assert await store.due.known(Partition("q-9", 0), digest("x")) is None
    assert await store.due.fate(Partition("q-9", 0), 0) is None


# --- Cancelling and changing --------------------------------------------------------------------


@pytest.mark.layouts
async def test_what_was_cancelled_is_gone_and_its_id_says_so(store: Storage, clock: Clock) -> None:
    record = append(runs=[(ANN, 0, [0])], due=[5], ids=["x"])
    assert await one(store, record) == ["due 0"]
    assert await store.due.cancel(P0, 0, remember_s=300)
    assert not await store.due.cancel(P0, 0, remember_s=300)
    assert not await waiting(store)
    assert await store.due.fate(P0, 0) == NotStored("cancelled")
    assert await store.due.known(P0, digest("x")) == NotStored("cancelled")
    assert await schedule(store, 5, ids=["x"]) == ["cancelled"]
    assert await one(store, append(ids=["x"])) == ["cancelled"]
    assert await one(store, record) == ["cancelled"], "by its sequence"
    assert await one(store, append(runs=[(ANN, 0, [1])])) == [0], "it holds up nothing"
    clock.unix_s += 700
    assert await schedule(store, 5, ids=["x"]) == ["due 1"], "no number is given twice"


async def test_what_was_moved_cannot_be_cancelled(store: Storage) -> None:
    await schedule(store, 5)
    await move(store, await waiting(store))
    assert not await store.due.cancel(P0, 0, remember_s=300)
    assert not await store.due.cancel(P0, 7, remember_s=300)
    assert not await store.due.cancel(Partition("q-9", 0), 0, remember_s=300)
    assert await log(store) == [body(0)]


@pytest.mark.layouts
async def test_a_change_gives_another_time_and_another_body(store: Storage) -> None:
    await schedule(store, 10, 20, ids=["x", None])
    first, second = await waiting(store)
    later = replace(first, due_unix_ms=due_unix_ms(30), payload=body(9, 40))
    assert await store.due.change(later)
    assert await waiting(store) == [second, replace(later, version=1)]
    assert not await store.due.change(later), "another one has changed it since"
    assert await store.due.change(replace(later, version=1, due_unix_ms=due_unix_ms(5)))
    assert [each.number for each in await waiting(store)] == [0, 1]
    assert await schedule(store, 10, ids=["x"]) == ["due 0 again"]
    (state, _) = await store.due.states("q-1")
    assert (state.messages, state.bytes) == (2, 60)
    assert not await store.due.change(replace(second, number=5))
    await move(store, await waiting(store))
    assert await log(store) == [b",".join([body(9, 40), body(1)])]


async def test_a_change_keeps_key_and_id(store: Storage) -> None:
    await one(store, append(messages=1, due=[5], ids=["x"], id_hashes=[3]))
    (found,) = await waiting(store)
    other = replace(found, key_hash=1, id_hash=2, digest=digest("y"), published_unix_ms=1)
    assert await store.due.change(other)
    assert await waiting(store) == [replace(found, version=1)]


# --- Looking ------------------------------------------------------------------------------------


async def test_what_waits_is_listed_by_key_and_by_id_in_parts(store: Storage) -> None:
    await one(store, append(messages=4, due=[4, 3, 2, 1], id_hashes=[5, 0, 5, 6]))
    numbers: list[int] = []
    after = None
    while True:
        read = await store.due.look(P0, after=after, count_max=3)
        numbers += [each.number for each in read.messages]
        if read.next_unix_ms is None:
            break
        last = read.messages[-1]
        after = DuePlace(last.due_unix_ms, last.number)
    assert numbers == [3, 2, 1, 0]
    by_id = await store.due.look(P0, id_hash=5)
    assert [each.number for each in by_id.messages] == [2, 0]
    assert len((await store.due.look(P0, key_hash=7)).messages) == 4
    assert len((await store.due.look(P0, key_hash=7, id_hash=6)).messages) == 1
    assert not (await store.due.look(P0, key_hash=8)).messages
    assert not (await store.due.look(Partition("q-9", 0))).messages
    one_left = await store.due.look(P0, id_hash=5, after=DuePlace(due_unix_ms(2), 2))
    assert [each.number for each in one_left.messages] == [0]


async def test_a_list_is_bounded_by_bytes_but_has_a_message(store: Storage) -> None:
    """P9."""
    await schedule(store, 1, 2, 3, 4)
    size = len(body(0))
    for bytes_max, numbers, after_s in [
        (0, [0], 2),
        (2 * size - 1, [0], 2),
        (2 * size, [0, 1], 3),
        (4 * size, [0, 1, 2, 3], None),
    ]:
        read = await store.due.look(P0, bytes_max=bytes_max)
        assert [each.number for each in read.messages] == numbers
        is_all = after_s is None
        assert (read.next_unix_ms is None) == is_all
        again = await store.due.look(P0, key_hash=7, bytes_max=bytes_max)
        assert [each.number for each in again.messages] == numbers


async def test_single_messages_are_found_by_their_numbers(store: Storage) -> None:
    await schedule(store, 1, 2, 3)
    await store.due.cancel(P0, 1, remember_s=300)
    found = await store.due.find(P0, [2, 1, 0, 9])
    assert [each.number for each in found] == [2, 0]
    assert [each.payload for each in found] == [body(2), body(0)]
    assert await store.due.find(P0, []) == []
    assert await store.due.find(Partition("q-9", 0), [0]) == []


async def test_the_state_of_each_due_store(store: Storage) -> None:
    await schedule(store, 9, 5, partition=P1)
    empty, state = await store.due.states("q-1")
    assert (empty.messages, empty.bytes, empty.next_number, empty.first_unix_ms) == (0, 0, 0, None)
    assert (state.partition, state.messages, state.bytes) == (P1, 2, 40)
    assert (state.next_number, state.first_unix_ms) == (2, due_unix_ms(5))
    assert await store.due.states("q-9") == []


async def test_a_store_that_is_a_server_tells_its_time(
    store: Storage, request: pytest.FixtureRequest
) -> None:
    """R32: so that a gateway whose clock is wrong from its start on moves nothing."""
    await schedule(store, 5)
    before_ms = int(time.time() * 1000)
    read = await store.due.first(P0, due_unix_ms(9), count_max=9, bytes_max=900)
    told = [read.store_unix_ms, *(one.store_unix_ms for one in await store.due.states("q-1"))]
    after_ms = int(time.time() * 1000)
    if isinstance(request.node.callspec.params["opening"], str):
        assert told == [None] * 3, "it is embedded"
    else:
        assert all(one is not None and before_ms <= one <= after_ms for one in told)


async def test_a_place_before_the_first_number_leaves_out_nothing(store: Storage) -> None:
    """A list of several partitions goes on behind another one's place of the same time."""
    await schedule(store, 5, 5)
    read = await store.due.look(P0, after=DuePlace(due_unix_ms(5), -1))
    assert [one.number for one in read.messages] == [0, 1]
    read = await store.due.look(P0, after=DuePlace(due_unix_ms(5), 0))
    assert [one.number for one in read.messages] == [1]
    read = await store.due.look(P0, key_hash=7, after=DuePlace(due_unix_ms(5), -1))
    assert [one.number for one in read.messages] == [0, 1]


@pytest.mark.layouts
async def test_an_id_counts_for_the_window_after_the_move_and_a_ticket_for_longer(
    store: Storage, clock: Clock
) -> None:
    """P4: who uses an id again after the window sends a new message."""
    assert await schedule(store, 5, ids=["x"]) == ["due 0"]
    found = await waiting(store)
    assert await store.due.move(found, record_of(found, dedup_window_s=10))
    assert await schedule(store, 5, ids=["x"]) == ["due 0 again"]
    clock.unix_s += 30
    assert await schedule(store, 5, ids=["x"]) == ["due 1"]
    assert isinstance(await store.due.fate(P0, 0), Stored)
    found = await waiting(store)
    assert await store.due.move(found, record_of(found, dedup_window_s=0))
    assert await schedule(store, 5, ids=["x"]) == ["due 2"]
    assert isinstance(await store.due.fate(P0, 1), Stored)


# --- Bounds -------------------------------------------------------------------------------------


@pytest.mark.bounds
async def test_what_waits_counts_in_the_bounds_of_its_queue(store: Storage) -> None:
    """P10: once when it is published, and never at the move."""
    assert await schedule(store, 1, 2) == ["due 0", "due 1"]
    full = append(messages=1, messages_max=2)
    assert await one(store, full) == ["queue_full"]
    assert await one(store, replace(full, messages_max=3)) == [0]
    assert await one(store, append(messages=1, due=[9], messages_max=3)) == ["queue_full"]
    assert await one(store, append(messages=1, due=[9], bytes_max=79)) == ["queue_full"]
    assert await one(store, append(messages=1, due=[9], bytes_max=80)) == ["due 2"]
    found = await waiting(store)
    assert await store.due.move(found, replace(record_of(found), messages_max=1)) is not None
    assert await one(store, append(messages=1, messages_max=4)) == ["queue_full"]
    assert await one(store, append(messages=1, messages_max=5)) == [4]


@pytest.mark.bounds
async def test_a_due_store_has_bounds_of_its_own(store: Storage) -> None:
    two = append(messages=2, due=[1, 2])
    for record, outcome in [
        (replace(two, due_messages_max=1), ["due 0", "schedule_full"]),
        (replace(two, due_messages_max=3), ["due 1", "due 2"]),
        (replace(two, due_bytes_max=79), ["schedule_full"] * 2),
        (replace(two, due_bytes_max=80), ["due 3", "schedule_full"]),
        (replace(two, message_bytes_max=19), ["message_too_large"] * 2),
    ]:
        assert await one(store, record) == outcome
    assert await one(store, append(messages=1, due_messages_max=1)) == [0], "not for the log"
    await store.due.cancel(P0, 0, remember_s=300)
    assert await one(store, append(messages=1, due=[1], due_messages_max=4)) == ["due 4"]


@pytest.mark.bounds
async def test_a_message_grows_only_into_room(store: Storage) -> None:
    """P10: a change does not go round the bounds of the queue; one that needs no room is taken."""
    await schedule(store, 1, 2)
    first, _ = await waiting(store)
    larger = replace(first, payload=body(9, 30))
    with pytest.raises(Refused, match="queue_full"):
        await store.due.change(larger, bytes_max=49)
    await one(store, append(P1, messages=1))
    with pytest.raises(Refused, match="schedule_full"):
        await store.due.change(larger, due_bytes_max=49)
    assert (await waiting(store))[0] == first
    assert await store.due.change(larger, due_bytes_max=50)
    smaller = replace(larger, version=1, payload=body(9, 25))
    assert await store.due.change(smaller, bytes_max=1, due_bytes_max=1)
    assert await store.due.change(replace(smaller, version=2, payload=body(9, 60)))
    (state, _) = await store.due.states("q-1")
    assert (state.messages, state.bytes) == (2, 80)


@pytest.mark.layouts
async def test_a_purge_of_all_takes_what_is_not_due(store: Storage) -> None:
    await with_group(store)
    await one(store, append(messages=1))
    await schedule(store, 1, 2, ids=["x", None])
    await schedule(store, 3, partition=P1)
    assert await store.purge("q-1", "g-1") == 1, "a group does not have it yet"
    assert len(await waiting(store)) == 2
    assert await store.purge("q-1", None) == 4
    assert not await waiting(store)
    states = await store.due.states("q-1")
    assert [(state.messages, state.bytes, state.next_number) for state in states] == [
        (0, 0, 2), (0, 0, 1),
    ]  # fmt: skip
    assert await one(store, append(messages=1, messages_max=1)) == [1]


async def test_a_dropped_queue_has_no_due_store(store: Storage) -> None:
    await schedule(store, 1)
    (found,) = await waiting(store)
    await store.drop_queue("q-1")
    assert await store.due.states("q-1") == []
    assert not await waiting(store)
    assert await move(store, [found]) is None
    assert not await store.due.cancel(P0, 0, remember_s=300)
    assert not await store.due.change(found)
    assert await schedule(store, 1) == ["queue_not_found"]


async def test_a_sealed_partition_and_a_due_store_exclude_each_other(store: Storage) -> None:
    """R27."""
    await schedule(store, 1)
    with pytest.raises(Refused, match="1 scheduled messages wait in the partition"):
        await store.seal(P0, [P1])
    await store.due.cancel(P0, 0, remember_s=300)
    await store.seal(P0, [P1])
    assert await schedule(store, 1) == ["storage_unavailable"]


async def test_what_was_moved_is_settled_and_trimmed_like_others(store: Storage) -> None:
    await with_group(store)
    await schedule(store, 1, 2)
    await move(store, await waiting(store))
    await store.write_cursors([change(settled=[(0, 1)])])
    while await store.trim(P0, retention_s=0, keep_all=False):
        pass
    (state, _) = await store.partitions("q-1")
    assert (state.messages, state.bytes, state.start) == (0, 0, 2)
    assert await one(store, append(messages=1, messages_max=1)) == [2]


async def test_payloads_are_sealed_while_they_wait(store: Storage, is_sealed: bool) -> None:
    await schedule(store, 1, 2)
    first, second = await waiting(store)
    assert (first.payload, second.payload) == (body(0), body(1))
    assert await store.due.change(replace(second, payload=body(5)))
    found = await waiting(store)
    assert [each.payload for each in found] == [body(0), body(5)]
    await move(store, found)
    assert await log(store) == [b",".join([body(0), body(5)])]


async def test_answers_of_one_call_are_each_its_own(store: Storage) -> None:
    records = [append(messages=1), append(messages=1, due=[5]), append(P1, messages=1, due=[6])]
    answers = await store.append(records)
    assert [outcomes(answer) for answer in answers] == [[0], ["due 0"], ["due 0"]]
