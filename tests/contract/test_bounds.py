"""The contract of `push.storage_port.Storage`: `messages_max` and `bytes_max` bound what a queue
retains, in all of its partitions together. Over every storage."""

import asyncio
from functools import partial

import pytest

from push import limits
from push.places import Partition
from push.storage_port import Storage
from storage.rules.append import PartitionLog
from tests.contract.stores import (
    ANN,
    P0,
    P1,
    START_UNIX_S,
    Clock,
    append,
    change,
    one,
    outcomes,
    sequences,
    with_group,
)

pytestmark = pytest.mark.bounds
PARTITIONS = 16
FULL = "queue_full"
LARGE = "message_too_large"


@pytest.fixture(autouse=True)
async def queue(store: Storage) -> None:
    await with_group(store, partitions=PARTITIONS)


async def totals(store: Storage) -> tuple[int, int]:
    """Return the number and bytes of the messages that the queue retains."""
    states = await store.partitions("q-1")
    return sum(state.messages for state in states), sum(state.bytes for state in states)


async def room(store: Storage, messages_max: int) -> int:
    """Return how many more messages the storage accepts under this bound; it has accepted them."""
    answers = await one(store, append(P1, messages=messages_max + 1, messages_max=messages_max))
    return len(answers) - answers.count(FULL)


async def test_a_full_queue_refuses_what_does_not_fit(store: Storage) -> None:
    assert await one(store, append(messages=3, messages_max=2)) == [0, 1, FULL]
    assert await one(store, append(messages=1, messages_max=3)) == [2]
    assert await totals(store) == (3, 60)


async def test_a_queue_is_full_by_bytes_too(store: Storage) -> None:
    assert await one(store, append(messages=3, size=100, bytes_max=250)) == [0, 1, FULL]
    assert await one(store, append(messages=1, size=51, bytes_max=250)) == [FULL]
    assert await one(store, append(messages=1, size=50, bytes_max=250)) == [2]
    assert await one(store, append(P1, messages=1, bytes_max=250)) == [FULL]


@pytest.mark.parametrize("bytes_max", [0, 100], ids=["unbounded", "bounded"])
async def test_a_message_that_can_never_fit_is_refused_for_good_and_alone(
    store: Storage, bytes_max: int
) -> None:
    """R5: a message of exactly the bound fits into an empty queue. A message of a byte more is
    refused for good, whether the queue is empty or full, and its neighbours are stored."""
    bounded = partial(append, bytes_max=bytes_max, message_bytes_max=100)
    assert await one(store, bounded(sizes=[101])) == [LARGE]
    assert await one(store, bounded(P1, sizes=[20, 101, 20, 200, 30])) == [
        0, LARGE, 1, LARGE, 2,
    ]  # fmt: skip
    assert await totals(store) == (3, 70)
    later = FULL if bytes_max else 0
    assert await one(store, bounded(sizes=[100, 101])) == [later, LARGE]
    await store.create_queue("q-2", 1)
    assert await one(store, bounded(Partition("q-2", 0), sizes=[100])) == [0]


async def test_a_message_that_can_never_fit_keeps_its_place_in_the_order(store: Storage) -> None:
    """R7, R8: later messages wait until its producer gives it up. A duplicate of a message stored
    before the bound came is recognised."""
    record = append(runs=[(ANN, 0, [0])], sizes=[50])
    assert await one(store, record) == [0]
    runs, bounded = [(ANN, 0, range(3))], partial(append, bytes_max=1000, message_bytes_max=30)
    answers = await one(store, bounded(runs=runs, sizes=[50, 31, 30]))
    assert answers == [-1, LARGE, "out_of_sequence"]
    assert await one(store, bounded(runs=[(ANN, 2, [2])], sizes=[30])) == [1]


def test_a_log_without_offsets_left_is_no_queue_that_waits() -> None:
    """The last offset is assigned, and then nothing makes room again."""
    log = PartitionLog(P0, 1, next_offset=limits.OFFSET_MAX - 1)
    assert log.refusal(append(messages=1), 1, 20) is None
    assert log.refusal(append(messages=2), 2, 40) == "limit_reached"
    log.add(1, 20)
    assert log.refusal(append(messages=1), 1, 20) == "limit_reached"


async def test_a_full_queue_still_knows_its_duplicates(store: Storage) -> None:
    await sequences(store, [1, 2])
    assert await sequences(store, [1, 2, 3], messages_max=2) == [-1, -2, FULL]


async def test_one_partition_may_hold_all_that_the_queue_may(store: Storage) -> None:
    """All messages are of one key; the bound is the queue's, not split among partitions."""
    answers = await one(store, append(messages=161, messages_max=160))
    assert answers == [*range(160), FULL]


async def test_a_bound_below_the_number_of_partitions_is_kept(store: Storage) -> None:
    """One message goes to each of sixteen partitions, and the bound is five: the first five are
    stored."""
    appends = [append(Partition("q-1", n), messages=1, messages_max=5) for n in range(PARTITIONS)]
    answers = [outcomes(answer) for answer in await store.append(appends)]
    assert answers == [[0]] * 5 + [[FULL]] * 11
    assert await totals(store) == (5, 100)


async def test_calls_that_overlap_share_the_room_that_is_left(store: Storage) -> None:
    """Both whole records and single messages, both by messages and by bytes."""
    calls = [
        store.append([append(Partition("q-1", n), messages=3, messages_max=10, bytes_max=1000)])
        for n in range(5)
    ]
    answers = [outcomes(answer) for (answer,) in await asyncio.gather(*calls)]
    assert answers == [[0, 1, 2]] * 3 + [[0, FULL, FULL], [FULL] * 3]
    calls = [
        store.append([append(Partition("q-1", n), messages=1, size=300, bytes_max=800)])
        for n in range(3)
    ]
    answers = [outcomes(answer) for (answer,) in await asyncio.gather(*calls)]
    assert answers == [[3], [3], [FULL]]


async def test_a_duplicate_takes_no_room(store: Storage) -> None:
    """R5, R8: a message that is sent again, by sequence or by id, is counted once."""
    await sequences(store, [1, 2])
    await store.append([append(P1, ids=["a"])])
    await sequences(store, [1, 2])
    await store.append([append(P1, ids=["a"])])
    assert await totals(store) == (3, 60)
    assert await room(store, 7) == 4


async def test_another_queue_s_messages_do_not_count(store: Storage) -> None:
    await store.create_queue("q-2", 2)
    await store.append([append(messages=5)])
    answers = await one(store, append(Partition("q-2", 1), messages=3, messages_max=2))
    assert answers == [0, 1, FULL]
    assert await room(store, 6) == 1


async def test_partitions_that_are_made_later_count_with_the_others(store: Storage) -> None:
    """A start after a crash creates the missing partitions like this."""
    await store.create_queue("q-2", 1)
    await store.append([append(Partition("q-2", 0), messages=3)])
    await store.create_queue("q-2", 2)
    late = Partition("q-2", 1)
    assert await one(store, append(late, messages=3, messages_max=5)) == [0, 1, FULL]
    assert await one(store, append(Partition("q-2", 0), messages=1, messages_max=5)) == [FULL]


async def test_what_is_trimmed_makes_room_in_every_partition(store: Storage) -> None:
    """R12: exactly as much room as was trimmed."""
    for _ in range(3):
        await store.append([append(messages=2, messages_max=6, bytes_max=120)])
    assert await one(store, append(P1, messages=1, messages_max=6)) == [FULL]
    assert await one(store, append(P1, messages=1, bytes_max=120)) == [FULL]
    await store.write_cursors([change(settled=[(0, 3)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    assert await totals(store) == (2, 40)
    answers = await one(store, append(P1, messages=5, messages_max=6, bytes_max=120))
    assert answers == [0, 1, 2, 3, FULL]


async def test_what_is_settled_counts_until_its_retention_has_passed(
    store: Storage, clock: Clock
) -> None:
    """R12: the bound is on retained messages."""
    await store.append([append(messages=3, messages_max=3)])
    await store.write_cursors([change(settled=[(0, 2)])])
    clock.unix_s = START_UNIX_S + 59
    await store.trim(P0, retention_s=60, keep_all=False)
    assert await room(store, 3) == 0
    clock.unix_s = START_UNIX_S + 60
    await store.trim(P0, retention_s=60, keep_all=False)
    assert await room(store, 3) == 3


async def test_a_queue_can_be_over_a_bound_that_came_later(store: Storage) -> None:
    """A setting was lowered: nothing is lost, and nothing is stored before there is room."""
    await store.append([append(runs=[(ANN, 0, range(5))])])
    assert await sequences(store, [4, 5], messages_max=3) == [-5, FULL]
    await store.write_cursors([change(settled=[(0, 4)])])
    await store.trim(P0, retention_s=0, keep_all=True)
    assert await room(store, 3) == 3
