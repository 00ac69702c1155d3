"""Histories of positions of a group in the delivery log. All messages below a position are settled,
except the number that it states."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from gateway.delivery.log_reader import LogPrefetch
from gateway.deliverylog import deliveries as slot_log
from gateway.deliverylog.lines import PositionLine, SettledLine, runs_of
from metadata.catalog import ANYBODY
from push import limits
from tests.histories.house import House, delivery, eventually, message
from tests.histories.logged import Logged


def stood(logged: Logged) -> list[tuple[str, int, int]]:
    """Return (event, frontier, open) of each position."""
    return [(line.event, line.frontier, line.open) for line in logged.of(PositionLine)]


def gone(logged: Logged) -> list[tuple[int, int]]:
    """Return (first offset, count) of messages that were passed because nothing is retained
    there."""
    lines = [line for line in logged.of(SettledLine) if line.outcome == "gone"]
    return [(first, count) for line in lines for _, first, count in runs_of(line.pushes)]


async def test_an_epoch_begins_and_ends_with_a_position(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n) for n in range(4)])
    places = [place for place, _, _ in await session.take(4)]
    assert await house.confirm(consumer, [*delivery(places[0]), *delivery(places[1])]) == (2, 0)
    consumer.leave()
    await eventually(lambda: len(stood(logged)) == 2)
    first, last = logged.of(PositionLine)
    assert (first.event, first.frontier, first.open, first.ahead) == ("owned", 0, 0, None)
    assert (last.event, last.frontier, last.open, last.is_clean) == ("released", 4, 2, True)
    assert (first.epoch, first.group_id) == (last.epoch, group.group_id)
    await house.subscribe(queue, group)
    await eventually(lambda: len(stood(logged)) == 3)
    again = logged.of(PositionLine)[-1]
    assert (again.event, again.epoch, again.frontier) == ("owned", first.epoch + 1, 2)
    assert (first.certified_below, again.certified_below) == (0, 4)
    assert last.certified_below is None


async def test_what_a_consumer_leaves_in_flight_is_open_until_its_epoch_has_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds too for a position that is logged between its leaving and the end. No message is
    settled that was taken back."""
    monkeypatch.setattr(slot_log, "KEPT_EVERY_US", 0)
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n) for n in range(4)])
    places = [place for place, _, _ in await session.take(4)]
    consumer.ack([*delivery(places[0])], [], None)
    consumer.leave()
    await eventually(lambda: stood(logged)[-1][0] == "released")
    assert stood(logged)[1:] == [("kept", 4, 3), ("released", 4, 3)]


async def test_what_was_passed_above_the_frontier_is_told_when_an_epoch_begins(
    house: House,
) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n) for n in range(4)])
    places = [place for place, _, _ in await session.take(4)]
    assert await house.confirm(consumer, delivery(places[2])) == (1, 0)
    consumer.leave()
    logged = Logged(house)
    await house.subscribe(queue, group)
    await eventually(lambda: stood(logged))
    (line,) = logged.of(PositionLine)
    assert (line.frontier, line.ahead, line.open) == (0, 3, 0)


@pytest.mark.parametrize("does", ["seek", "purge"])
async def test_a_group_that_an_operator_moves_has_no_neighbouring_epochs(
    house: House, does: str
) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message(n) for n in range(4)])
    await session.take(4)
    if does == "seek":
        await house.broker.upkeep.seek(ANYBODY, queue, group.name, "latest")
    else:
        await house.broker.upkeep.purge(ANYBODY, queue, group.name)
    await eventually(lambda: len(stood(logged)) == 3)
    owned, released, anew = logged.of(PositionLine)
    assert (released.event, released.open, released.is_clean) == ("released", 4, True)
    assert (anew.event, anew.frontier) == ("owned", 4)
    assert anew.epoch > owned.epoch + 1


async def test_what_a_seek_takes_from_a_side_line_is_open_in_the_epoch_that_it_ends(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway moves the group while this one reads the side line, which is empty by then.
    The position of the epoch must not state that its messages are settled."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 0)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group, credit=1)
    await house.publish(queue, [message(n) for n in range(3)])
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), 0, None)
    consumer.grant(10)
    *_, (place, _, _) = await session.take(2)
    (owned,) = consumer.owned_partitions.values()
    await eventually(lambda: owned.delivery.line_counts()[2] == 2)
    storage, read_side = house.broker.storage, house.broker.storage.read_side

    async def late(*args: Any) -> tuple[int, ...]:
        await storage.seek(group.group_id, queue.queue_id, ["earliest"])
        return await read_side(*args)

    monkeypatch.setattr(storage, "read_side", late)
    consumer.ack(delivery(place), [], None)
    await eventually(lambda: owned.delivery.line_counts()[2] == 0)
    await house.broker.upkeep.seek(ANYBODY, queue, group.name, "earliest")
    assert stood(logged)[:2] == [("owned", 0, 0), ("released", 3, 2)]


async def test_what_is_damaged_is_passed_with_a_word(durable_house: House) -> None:
    """The damaged message was given to no consumer, and no audit may take it for lost."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    for n in range(5):
        await house.publish(queue, [message(n)])
    await house.stop()
    with closing(sqlite3.connect(house.folder / "store.sqlite")) as store, store:
        store.execute("UPDATE record SET payload = zeroblob(9) WHERE id & 0xff IN (1, 2)")
    await house.open()
    logged = Logged(house)
    session, _ = await house.subscribe(house.find(), group)
    given: list[Any] = await session.get(3)
    assert given == [0, 3, 4]
    assert gone(logged) == [(1, 2)]


async def test_what_a_partition_that_moves_does_not_pass_is_not_gone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has lost a message that is about to be given again. Its partition moves meanwhile, so
    the message stays open and is passed by the next owner."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, key) for n, key in enumerate("ab")])
    places = [place for place, _, _ in await session.take(2)]
    (owned,) = consumer.owned_partitions.values()

    def lost(_: object, offset: int) -> tuple[None]:
        owned.drain(asyncio.get_running_loop().time() + 60)
        return (None,)

    monkeypatch.setattr(LogPrefetch, "line", lost)
    consumer.nack(delivery(places[0]), 0, None)
    await eventually(lambda: owned.delivery.draining)
    assert await house.confirm(consumer, delivery(places[1])) == (1, 0)
    await eventually(lambda: owned.ended)
    assert stood(logged)[:2] == [("owned", 0, 0), ("released", 2, 1)]
    assert gone(logged) == []


async def test_no_line_goes_over_an_epochs_end(house: House) -> None:
    """Messages settled at one time are in one line, but under two epochs in two."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    now_ns = logged.log.now_ns()
    logged.log.now_ns = lambda: now_ns
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0)])
    for count in (1, 2):
        *_, (place, _, _) = await session.take(count)
        assert await house.confirm(consumer, delivery(place)) == (1, 0)
        await house.broker.upkeep.seek(ANYBODY, queue, group.name, "earliest")
    acked = [line for line in logged.of(SettledLine) if line.outcome == "acked"]
    assert [runs_of(line.pushes) for line in acked] == [[(0, 0, 1)], [(0, 0, 1)]]
