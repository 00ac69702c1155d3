"""Histories of abandoned groups. Only these end, because the deletion is held to the row that was
read."""

import asyncio
from typing import Any

import pytest

from metadata.catalog import ANYBODY
from metadata.catalog_service import CatalogService
from metadata.sqlite.catalog import SqliteCatalog
from push.errors import TocsinError, Unknown
from tests.histories.gateways import Gateway, Town, town
from tests.histories.house import numbered
from tests.histories.mad_house import MadHouse, mad
from tests.waiting import becomes


async def about_to_delete(town: Town) -> Gateway:
    """Wait until the gateway that deletes the group has read its row and freezes, e.g. by SIGSTOP.
    Return another gateway."""
    for gateway in town.gateways:
        gateway.metadata.stall("delete_group")

    def looked() -> list[Gateway]:
        return [one for one in town.gateways if one.metadata.under_way["delete_group"]]

    await becomes(looked, 300)
    return next(one for one in town.gateways if one not in looked())


async def go_on(town: Town) -> None:
    """Let the frozen gateway go on."""
    await asyncio.sleep(30)
    for gateway in town.gateways:
        gateway.metadata.well()
    await asyncio.sleep(1)


@town(2)
async def test_a_group_that_has_a_consumer_again_is_not_expired(town: Town) -> None:
    """P1, R11: The group had no consumer when its row was read."""
    group = await town.group(partitions=1, expires_s=60)
    other = await about_to_delete(town)
    session, _ = await other.consumer(group, credit=6)  # of which one is kept for other keys
    await becomes(lambda: other.owns(group))
    accepted = await other.publish(other.find(), numbered(10))
    assert accepted == [(0, offset, False) for offset in range(10)]  # while the group exists
    await session.take(5)
    await go_on(town)
    states = await town.memory.cursors(other.find().queue_id, group.group_id)
    assert states, "the group is gone, with five messages that nobody was given"


@town(2)
async def test_a_group_that_had_a_consumer_meanwhile_has_its_whole_time_again(town: Town) -> None:
    """R11: It counts from the moment when the last one left."""
    group = await town.group(partitions=1, expires_s=60)
    other = await about_to_delete(town)
    _, consumer = await other.consumer(group)
    consumer.leave()
    await go_on(town)
    names = [one.name for one in town.catalog.list_groups(ANYBODY, other.find())]
    assert names == ["billing"]
    await asyncio.sleep(180)
    assert town.catalog.list_groups(ANYBODY, other.find()) == []


@town(2)
async def test_a_group_that_was_made_anew_under_its_name_is_not_expired(town: Town) -> None:
    """R1, R11: Neither had a row yet, so their generations are the same."""
    await town.group(partitions=1, expires_s=60)
    other = await about_to_delete(town)
    queue = other.find()
    other.metadata.well()
    await other.broker.delete_group(ANYBODY, queue, "billing")
    again = await other.group(queue, "billing", expires_s=3600)
    await go_on(town)
    assert town.catalog.list_groups(ANYBODY, queue) == [again]
    assert await town.memory.cursors(queue.queue_id, again.group_id)


@mad
async def test_one_gateway_keeps_a_group_whose_consumer_came_behind_the_look(
    house: MadHouse,
) -> None:
    """P1, R11: A catalog that stalls is enough for this."""
    queue = await house.queue(partitions=1)
    group = await house.group(queue, "billing", expires_s=60)
    house.metadata.stall("delete_group")
    await becomes(lambda: house.metadata.under_way["delete_group"], 300)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(5))
    await session.take(5)
    house.metadata.well()
    await asyncio.sleep(1)
    assert house.broker.metadata.list_groups(ANYBODY, queue) == [group]


@mad
async def test_nobody_joins_alone_while_the_group_is_on_its_way_out(house: MadHouse) -> None:
    """P1, R14: Members of a group that the catalog does not take are members here otherwise. This
    does not hold for a group that it is deleting. The group would vanish under its consumer, with
    messages published since."""
    queue = await house.queue(partitions=1)
    group = await house.group(queue, "billing", expires_s=60)
    _, consumer = await house.subscribe(queue, group)  # so that its row is known here
    await asyncio.sleep(1)
    consumer.leave()
    real = house.metadata.real
    assert isinstance(real, CatalogService)
    store: Any = real._store
    goes, begun = asyncio.Event(), asyncio.Event()
    assert isinstance(real._store, SqliteCatalog)
    run = store._run

    async def slow(act: Any, *args: Any) -> Any:
        if act == store.file.drop_group:
            begun.set()
            await goes.wait()
        return await run(act, *args)

    store._run = slow
    await asyncio.wait_for(begun.wait(), 300)
    with pytest.raises(TocsinError, match="metadata_unavailable"):
        await house.subscribe(queue, group)
    goes.set()
    await asyncio.sleep(1)
    with pytest.raises(TocsinError, match="group_not_found"):
        await house.subscribe(queue, group)


@mad
async def test_who_came_while_another_group_was_deleted_has_been_there(house: MadHouse) -> None:
    """R11: Two groups were abandoned when their rows were read. The deletion of the first one took
    a while."""
    queue = await house.queue(partitions=1)
    groups = [await house.group(queue, name, expires_s=60) for name in ("a", "b")]
    for group in groups:
        (await house.subscribe(queue, group))[1].leave()
    house.metadata.stall("delete_group")
    await becomes(lambda: house.metadata.under_way["delete_group"], 300)
    (await house.subscribe(queue, groups[1]))[1].leave()
    await asyncio.sleep(1)
    house.metadata.well()
    await asyncio.sleep(10)
    assert house.broker.metadata.list_groups(ANYBODY, queue) == [groups[1]]
    await asyncio.sleep(60)
    assert house.broker.metadata.list_groups(ANYBODY, queue) == []


@town(1)
async def test_what_is_settled_goes_while_nobody_can_say_whose_an_abandoned_group_is(
    town: Town,
) -> None:
    """R29: A copy of the store is away, and the row of the group that is due cannot be read."""
    (gateway,) = town.gateways
    abandoned = await town.group(partitions=1, expires_s=60)
    _, gone = await gateway.consumer(abandoned)
    gone.leave()
    queue = await gateway.queue("invoices")
    group = await gateway.group(queue)
    session, consumer = await gateway.subscribe(queue, group)
    few = Unknown("1 of 2 replicas have confirmed it")
    gateway.metadata.fail = lambda name: few if name == "membership" else None
    await asyncio.sleep(70)
    await gateway.publish(queue, numbered(10))
    place = (await session.take(10))[-1][0]
    consumer.ack([[*place[:3], 0, 9]], [], None)
    await asyncio.sleep(120)
    (state,) = await town.memory.partitions(queue.queue_id)
    assert state.messages == 0
