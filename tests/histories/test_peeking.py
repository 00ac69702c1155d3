"""Histories of looks at messages. A look shows the actual state, and takes no message away."""

import asyncio
from typing import Any

import pytest

from gateway.delivery.owned_partition import OwnedPartition
from gateway.models import Look, Peeked, Place
from gateway.operator import peek as looking
from metadata.catalog import ANYBODY, Queue
from push import limits
from push.errors import Refused
from tests.histories.house import House, Session, delivery, eventually, message, numbered
from tests.mad import MadStorage


async def peek(house: House, queue: Queue, group: str | None = None, **look: Any) -> Peeked:
    """Return what an operator sees."""
    wanted = Look(**{"limit": 100, **look})
    return await house.broker.upkeep.peek(ANYBODY, queue, wanted, group)


async def states(house: House, queue: Queue) -> list[tuple[int, str | None, int]]:
    """Return (offset, state, attempts) of the messages that `billing` has not settled."""
    shown = (await peek(house, queue, "billing")).messages
    return [(one.offset, one.state, one.attempts) for one in shown]


async def test_messages_are_shown_as_they_were_published(house: House) -> None:
    """P2: They come in the order of partitions and offsets, up to the limit. Then `next` leads
    on."""
    queue = await house.queue(partitions=3)
    await house.publish(queue, [message({"n": n}, f"k{n}", headers={"h": "x"}) for n in range(9)])
    seen: list[tuple[int, int]] = []
    after: Place | None = None
    while True:
        found = await peek(house, queue, limit=4, after=after)
        seen += [(one.partition, one.offset) for one in found.messages]
        assert all(one.headers == {"h": "x"} for one in found.messages)
        if found.next is None:
            break
        after = Place.parse(found.next)
    assert len(seen) == 9
    assert seen == sorted(set(seen))
    (one,) = (await peek(house, queue, key="k4")).messages
    assert (one.key, bytes(one.body or b"")) == ("k4", b'{"n":4}')
    assert one.id == f"{queue.queue_id}-1-{one.partition}-{one.offset}"
    assert (one.state, one.attempts) == (None, 0)
    alone = (await peek(house, queue, partition=1)).messages
    assert [(m.partition, m.offset) for m in alone] == [place for place in seen if place[0] == 1]
    rest = (await peek(house, queue, partition=1, offset=1)).messages
    assert [m.offset for m in rest] == [m.offset for m in alone][1:]


async def test_a_peek_takes_nothing_from_anybody(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(3))
    for _ in range(2):
        assert await states(house, queue) == [(0, "ready", 0), (1, "ready", 0), (2, "ready", 0)]
    session, _ = await house.subscribe(queue, group)
    assert [(body, attempt) for _, body, attempt in await session.take(3)] == [
        (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip


async def test_what_each_message_waits_for_is_said(house: House) -> None:
    """Settled ones are not shown, whether or not that is written yet."""
    queue = await house.queue(backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=5)
    keys = ("a", "b", "a", "c", "d", "e")
    await house.publish(queue, [message(n, key) for n, key in enumerate(keys)])
    given = {body: place for place, body, _ in await session.take(5)}
    consumer.nack(delivery(given[0]), None, None)
    consumer.ack(delivery(given[3]), [], None)
    expected = [
        (0, "waiting", 1), (1, "in_flight", 0), (2, "waiting", 0), (4, "in_flight", 0),
        (5, "ready", 0),
    ]  # fmt: skip
    assert await states(house, queue) == expected
    await house.broker.cursor_writer.drain()
    assert await states(house, queue) == expected
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    assert [(offset, attempts) for offset, _, attempts in await states(house, queue)] == [
        (0, 1), (1, 0), (2, 0), (4, 0), (5, 0),
    ]  # fmt: skip


async def test_what_is_parked_and_what_dies_is_said(house: House) -> None:
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(1, "b"), message(2, "a")])
    given = await session.take(3)
    consumer.nack(delivery(given[0][0]), 0, None)
    consumer.ack(delivery(given[1][0]), [], None)
    expected = [(0, "parked", 1), (2, "parked", 0)]
    assert await states(house, queue) == expected
    await house.broker.cursor_writer.drain()
    assert await states(house, queue) == expected
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    assert await states(house, queue) == expected


@pytest.mark.parametrize("is_parked_first", [True, False])
async def test_what_is_set_aside_while_somebody_looks_is_shown(
    house: House, is_parked_first: bool
) -> None:
    """Messages leave their owner's memory between the storage's answer and its evaluation, so that
    neither of the two knows of them any more. The look shows their state at its start."""
    mad = MadStorage(house.broker.storage)
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(1, "b"), message(2, "a")])
    (place, _, _), *_ = await session.take(3)
    mad.late("standings")
    wanted = looking.peek(mad, house.broker.groups, queue, Look(limit=100), group)
    look = asyncio.create_task(wanted)
    if is_parked_first:
        consumer.nack(delivery(place), 0, None)
    await eventually(lambda: mad.answered["standings"])
    if not is_parked_first:
        consumer.nack(delivery(place), 0, None)
    await house.broker.cursor_writer.drain()
    mad.well()
    shown = [(one.offset, one.state) for one in (await look).messages]
    word = "parked" if is_parked_first else "in_flight"
    assert shown == [(0, word), (1, "in_flight"), (2, word)]


async def test_what_goes_to_the_dead_letters_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0)])
    arrives = asyncio.Event()

    context = next(iter(consumer.owned_partitions.values()))._context
    move = context.move

    async def later(owned: OwnedPartition) -> None:
        await arrives.wait()
        await move(owned)

    monkeypatch.setattr(context, "move", later)
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    assert await states(house, queue) == [(0, "dying", 1)]
    arrives.set()
    await eventually(
        lambda: not next(iter(consumer.owned_partitions.values())).delivery.waiting.dead_count
    )
    assert await states(house, queue) == []


async def test_a_look_reads_a_bounded_stretch_and_says_where_to_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: This holds for a key that does not exist, or is far away."""
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 4000)
    queue = await house.queue()
    for number in range(20):
        await house.publish(queue, [message(number, "k")])
    await house.publish(queue, [message("far", "other")])
    looks, found, after = 0, None, None
    while found is None or not found.messages:
        found = await peek(house, queue, key="other", after=after)
        after = Place.parse(found.next) if found.next else None
        looks += 1
    assert looks > 3
    assert bytes(found.messages[0].body or b"") == b'"far"'
    nowhere = await peek(house, queue, key="nowhere", offset=19)
    assert (nowhere.messages, nowhere.next) == ([], None)


async def test_an_answer_is_bounded_in_bytes_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: Yet one message is always shown."""
    monkeypatch.setattr(limits, "LOOK_ANSWER_BYTES_MAX", 100)
    queue = await house.queue()
    await house.publish(queue, [message("x" * 200), message("y" * 20), message("z" * 20)])
    found = await peek(house, queue)
    assert ([one.offset for one in found.messages], found.next) == ([0], "0-1")
    found = await peek(house, queue, after=Place(0, 1))
    assert ([one.offset for one in found.messages], found.next) == ([1, 2], None)


@pytest.mark.parametrize(
    "look",
    [{"partition": 3}, {"offset": 1}, {"key": "k", "partition": 1}, {"key": "k", "partition": 2}],
    ids=str,
)
async def test_a_place_that_is_none_is_refused(house: House, look: dict[str, Any]) -> None:
    """P12: It names a partition that the queue does not have, an offset without a partition, or a
    partition that is not the key's."""
    queue = await house.queue(partitions=3)
    (place,) = await house.publish(queue, [message(0, "k")])
    assert isinstance(place, tuple)
    if look.get("partition") == place[0]:
        look = {**look, "partition": (place[0] + 1) % 3}
    with pytest.raises(Refused, match="invalid_request"):
        await peek(house, queue, **look)


async def test_a_group_that_is_not_there_is_said(house: House) -> None:
    queue = await house.queue()
    with pytest.raises(Refused, match="group_not_found"):
        await peek(house, queue, "other")


async def test_what_a_paused_group_waits_for_can_be_seen(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    await house.broker.upkeep.pause(ANYBODY, "orders", paused=True)
    session: Session
    session, _ = await house.subscribe(queue, group)
    await house.publish(house.find(), numbered(2))
    assert await states(house, queue) == [(0, "ready", 0), (1, "ready", 0)]
    assert session.given == []
