"""Histories of queues that are full: `reject` refuses, `dead_letter` moves the oldest on (R12)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery.overflow import backlog_of, shares
from metadata.catalog import ANYBODY, Queue
from push.errors import Refused
from push.message import Message, encode_message
from push.places import CursorPlace, Partition
from push.ring import Ring, key_hash
from push.storage_port import CursorState, PartitionState
from tests.histories.house import WAIT_S, House, message, numbered


async def _relieved(house: House, group_lag: int, name: str = "billing") -> None:
    """Let the janitor look until the group has this lag."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, name)
    async with asyncio.timeout(WAIT_S):
        while True:
            await house.broker.janitor.look()
            await asyncio.sleep(0)  # memory never waits, so let the moves go on
            await house.broker.cursor_writer.drain()
            if await house.lag(queue, group) == group_lag:
                return


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room(house: House) -> None:
    """R12: `reject` takes exactly messages_max. Settled and trimmed messages make room."""
    queue = await house.queue(messages_max=3)
    group = await house.group(queue)
    answers = await house.publish(queue, numbered(4))
    assert answers == [(0, 0, False), (0, 1, False), (0, 2, False), "queue_full"]
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(3)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    await house.broker.janitor.look()
    assert await house.publish(queue, numbered(1, first=4)) == [(0, 3, False)]


async def test_a_queue_whose_storage_is_away_for_a_moment_is_relieved_afterwards(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: also when nothing is published to it any more."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    await house.group(queue)
    await house.publish(queue, numbered(8))
    with monkeypatch.context() as away:
        away.setattr(house.memory, "partitions", unavailable)
        await house.broker.janitor.look()
    await _relieved(house, 3)


async def unavailable(_queue_id: str) -> list[PartitionState]:
    raise Refused("storage_unavailable", "the store is away")


async def test_overflow_moves_the_oldest_to_the_dead_letters(house: House) -> None:
    """R12, P1: Without a consumer, the oldest messages beyond the bound move on, each with its
    reason. The rest is delivered."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    group = await house.group(queue)
    answers = await house.publish(queue, numbered(8))
    assert [answer for answer in answers if isinstance(answer, str)] == []
    await _relieved(house, 3)
    dead = house.find("orders.dead-letters")
    reader, _ = await house.read(dead, start="earliest")
    assert await reader.get(5) == [0, 1, 2, 3, 4]
    headers = reader.frames[0]["messages"][0]["headers"]
    assert headers["tocsin-dead-letter-reason"] == "overflow"
    assert headers["tocsin-dead-letter-group"] == "billing"
    session, _ = await house.subscribe(queue, group)
    assert await session.get(3) == [5, 6, 7]


async def test_overflow_passes_a_consumer_that_has_no_credit(house: House) -> None:
    """R12, P9: A consumer is subscribed and takes nothing. Messages that it was not given move on,
    and it keeps its deliveries."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, numbered(8))
    given = await session.take(2)
    await _relieved(house, 3)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    consumer.grant(100)
    assert (await session.get(3))[:2] == [0, 1]
    assert session.bodies[-1] == 7
    dead = house.find("orders.dead-letters")
    reader, _ = await house.read(dead, start="earliest")
    moved = await reader.get(8 - len(session.bodies))
    assert sorted(moved + session.bodies) == list(range(8))


async def test_a_queue_within_its_bounds_loses_nothing(house: House) -> None:
    """R12: Exactly at the bound nothing moves, and no dead-letter queue is made."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    await house.group(queue)
    await house.publish(queue, numbered(3))
    await _relieved(house, 3)
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("orders.dead-letters")


async def test_a_message_larger_than_the_queue_may_be_moves_nobody(house: House) -> None:
    """R12, R5: It is refused for good with `dead_letter` too, because no other message can make
    room for it. One of exactly the bound is taken, and older ones move on for it."""
    most = message("x" * 300)
    bound = len(encode_message(most))
    queue = await house.queue(bytes_max=bound, overflow="dead_letter")
    group = await house.group(queue)
    batch = [*numbered(5), message("x" * 301), *numbered(5, first=5)]
    answers = await house.publish(queue, batch)
    assert answers[5] == "message_too_large"
    assert [answer[1] for answer in answers if not isinstance(answer, str)] == [*range(10)]
    for _ in range(3):
        await house.broker.janitor.look()
        await house.broker.cursor_writer.drain()
    assert await house.lag(queue, group) == 10
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("orders.dead-letters")
    assert await house.publish(queue, [most]) == [(0, 10, False)]
    retained = sum(len(encode_message(one)) for one in (*numbered(10), most))
    left = bound * 11 // retained  # by the average size of what is retained
    await _relieved(house, left)
    session, _ = await house.subscribe(queue, group)
    assert await session.get(left) == [*range(11 - left, 10), "x" * 300]


# --- Several partitions -------------------------------------------------------------------------


def keys_of(queue: Queue) -> dict[int, str]:
    """Return a key for each partition."""
    ring = Ring(queue.ring_epoch, queue.members)
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < len(queue.members):
        key = f"k{number}"
        keys.setdefault(ring.partition(key_hash(key, queue.hash_key)), key)
        number += 1
    return keys


def spread(queue: Queue, lengths: Sequence[int]) -> list[Message]:
    """Return `lengths[0]` messages for partition 0, and so on. The body is [partition, number in
    it]."""
    keys = keys_of(queue)
    return [
        message([partition, number], keys[partition])
        for partition, length in enumerate(lengths)
        for number in range(length)
    ]


async def _dead(house: House, count: int) -> list[list[int]]:
    """Return the bodies of the dead letters. There are exactly `count`."""
    reader, _ = await house.read(house.find("orders.dead-letters"), start="earliest")
    bodies = await reader.get(count)
    assert len(bodies) == count
    return sorted(bodies)


async def test_a_full_queue_has_room_for_all_of_one_key(house: House) -> None:
    """R12, `reject`: The bound is the whole queue's, whichever partitions its messages are in."""
    queue = await house.queue(partitions=16, messages_max=160)
    await house.group(queue)
    answers = await house.publish(queue, numbered(161))
    assert answers[:160] == [(answers[0][0], number, False) for number in range(160)]
    assert answers[160] == "queue_full"
    assert (
        await house.publish(queue, [message(0, f"k{n}") for n in range(20)]) == ["queue_full"] * 20
    )


async def test_a_full_queue_takes_no_more_than_its_bound_in_all_partitions(house: House) -> None:
    """R12, `reject`: This holds even if the bound is below the number of partitions. Trimmed
    messages of one partition make room in the others."""
    queue = await house.queue(partitions=16, messages_max=5)
    group = await house.group(queue)
    answers = await house.publish(queue, spread(queue, [1] * 16))
    assert answers.count("queue_full") == 11
    session, consumer = await house.subscribe(queue, group)
    places = [place for place, _, _ in await session.take(5)]
    await house.confirm(consumer, [[*place, place[3]] for place in places[:2]])
    await house.broker.janitor.look()
    answers = await house.publish(queue, spread(queue, [0] * 15 + [3]))
    assert answers.count("queue_full") == 1


@pytest.mark.parametrize("bounds", [{"messages_max": 6}, {"bytes_max": 6 * 27}])
async def test_overflow_counts_the_whole_queue(house: House, bounds: dict[str, Any]) -> None:
    """R12: The bound is on messages, and on bytes of messages of one size. Without a consumer,
    exactly the excess moves: the oldest of the longest partitions."""
    queue = await house.queue(partitions=4, overflow="dead_letter", **bounds)
    group = await house.group(queue)
    messages = spread(queue, [9, 1, 2, 0])
    assert {len(each.body) for each in messages} == {5}
    await house.publish(queue, messages)
    await _relieved(house, 6)
    assert await _dead(house, 6) == [[0, number] for number in range(6)]
    session, _ = await house.subscribe(queue, group)
    assert sorted(await session.get(6)) == [[0, 6], [0, 7], [0, 8], [1, 0], [2, 0], [2, 1]]


async def test_one_partition_may_hold_all_that_the_queue_may(house: House) -> None:
    """R12: Within the bound nothing moves, however it is spread."""
    queue = await house.queue(partitions=16, messages_max=20, overflow="dead_letter")
    await house.group(queue)
    await house.publish(queue, numbered(20))
    await house.broker.janitor.look()
    await _relieved(house, 20)
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("orders.dead-letters")
    await house.publish(queue, numbered(1, first=20))
    await _relieved(house, 20)
    assert await _dead(house, 1) == [0]  # type: ignore[comparison-overlap]


async def test_each_group_is_held_to_the_bound_by_itself(house: House) -> None:
    """R12: A group that has settled everything loses nothing to a slow one. Messages retained for
    the slow one are not counted against the other."""
    queue = await house.queue(partitions=4, messages_max=3, overflow="dead_letter")
    await house.group(queue)
    quick = await house.group(queue, "quick")
    session, consumer = await house.subscribe(queue, quick)
    await house.publish(queue, spread(queue, [4, 4, 0, 0]))
    places = [place for place, _, _ in await session.take(8)]
    await house.confirm(consumer, [[*place, place[3]] for place in places])
    await _relieved(house, 3)
    assert await house.lag(queue, quick) == 0
    await house.publish(queue, spread(queue, [0, 0, 2, 1]))
    assert len(await session.get(11)) == 11
    await _relieved(house, 3)
    await _dead(house, 8)


async def test_what_consumers_were_given_stays_theirs_in_every_partition(house: House) -> None:
    """R12: Deliveries count, and do not move. Waiting messages elsewhere move for them, and no
    more."""
    queue = await house.queue(partitions=2, messages_max=4, overflow="dead_letter")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=3)
    await house.publish(queue, spread(queue, [3, 0]))
    given = await session.take(3)
    await house.publish(queue, spread(queue, [0, 5]))
    await _relieved(house, 4)
    assert await _dead(house, 4) == [[1, number] for number in range(4)]
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    consumer.grant(100)
    assert (await session.get(4))[3:] == [[1, 4]]


async def test_what_one_consumer_settled_is_not_counted_under_the_next(house: House) -> None:
    """R12: A stuck message is at the head, and later ones are settled. One message is left, and the
    queue is not full for the next owner."""
    queue = await house.queue(partitions=2, messages_max=5, overflow="dead_letter")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, spread(queue, [5, 0]))
    places = [place for place, _, _ in await session.take(5)]
    await house.confirm(consumer, [[*place, place[3]] for place in places[1:]])
    consumer.leave()
    await house.subscribe(queue, group, credit=0)
    await house.publish(queue, spread(queue, [0, 4]))
    for _ in range(3):
        await house.broker.janitor.look()
        await house.broker.cursor_writer.drain()
    assert await house.lag(queue, group) == 5
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("orders.dead-letters")


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 30), max_size=8), st.integers(0, 100))
def test_the_longest_give_up_exactly_what_is_beyond(lengths: dict[int, int], excess: int) -> None:
    """R12: They give up all of the excess, or all that they have. A partition that is shorter than
    what another one keeps gives up nothing. Those that give up end equally long, except for one
    message."""
    cut = shares(lengths, excess)
    assert sum(cut.values()) == min(excess, sum(lengths.values()))
    kept = {number: length - cut.get(number, 0) for number, length in lengths.items()}
    assert all(count > 0 for count in cut.values())
    assert all(left >= 0 for left in kept.values())
    longest = max(kept.values(), default=0)
    assert all(kept[number] >= longest - 1 for number in cut)


def test_what_dies_out_of_a_side_line_does_not_count_against_the_backlog_twice() -> None:
    """The message is passed and dying. [Each such message that full dead letters did not take hid
    another one, so the queue's bound let that many more in.]"""
    partition = Partition("q-1", 0)
    state = PartitionState(
        partition, start=0, end=10, certified=10, generation=1, messages=10, bytes=100
    )
    cursor = CursorState(
        CursorPlace("g-1", partition), epoch=1, floor=4, settled_above=1, aside=1, parked=1,
        aside_first=0, dead=4, dead_passed=3, dead_first=1,
    )  # fmt: skip
    assert backlog_of([state], [cursor]) == 10 - 4 - 1 - 1 + 1
