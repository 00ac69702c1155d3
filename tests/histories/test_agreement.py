"""Catalog and storage agree, even if a change was cut off between the two. Its maker died or froze,
or the outcome of the catalog's half stayed unknown."""

import asyncio
from functools import partial
from typing import Any

import pytest

from gateway.catalog.reconcile import Reconciler
from metadata.catalog import ANYBODY, Group, GroupSettings, QueueSettings
from push.errors import Refused, Unknown
from push.places import Partition
from tests.histories.gateways import Gateway, Town, town
from tests.histories.house import delivery, numbered
from tests.histories.mad_house import MadHouse, mad
from tests.histories.test_several_gateways import ack_all
from tests.waiting import becomes

SOON_S = 10
"""Bound within which running gateways finish what was left undone."""


def unknown_once(gateway: Gateway, change: str) -> None:
    """Let the next change of this kind happen, and leave its copies uncounted in time."""
    lost: list[str] = []

    def once(name: str, args: Any, options: Any) -> Exception | None:
        if name != change or lost:
            return None
        lost.append(name)
        return Unknown("1 of 2 replicas have confirmed it")

    gateway.metadata.lose = once


async def settled_messages_go(gateway: Gateway, group: Group) -> bool:
    """Return whether nothing pins the log once this group, which is known, has settled all of
    it."""
    session, consumer = await gateway.consumer(group)
    await becomes(lambda: gateway.owns(group))
    await gateway.publish(gateway.find(), numbered(10))
    await session.take(10)
    await ack_all(gateway, session, consumer)
    await asyncio.sleep(120)
    (state,) = await gateway.town.memory.partitions(gateway.find().queue_id)
    return state.messages == 0


# --- Deletions ------------------------------------------------------------------------------------


@town(2)
async def test_a_deleted_group_pins_nothing_even_while_it_is_created(town: Town) -> None:
    """R12: The catalog has the group, and its maker is frozen. Another gateway deletes the group in
    both, and then the maker reaches the storage. No gateway knows of such cursors, and they settle
    nothing."""
    group = await town.group(partitions=1)
    maker, other = town.gateways
    maker.storage.stall("create_group")
    making = asyncio.create_task(
        maker.broker.put_group(ANYBODY, maker.find(), "passing", GroupSettings(), None)
    )
    await becomes(lambda: maker.storage.under_way["create_group"])
    await other.broker.delete_group(ANYBODY, other.find(), "passing")
    maker.storage.well()
    with pytest.raises(Refused, match="group_not_found"):
        await making
    assert await settled_messages_go(other, group)


@town(2)
async def test_a_group_whose_deletion_was_answered_unknown_pins_nothing(town: Town) -> None:
    """R12: The catalog has dropped it, and a second request is answered `group_not_found`."""
    group = await town.group(partitions=1)
    one, other = town.gateways
    await other.broker.put_group(ANYBODY, other.find(), "passing", GroupSettings(), None)
    unknown_once(one, "delete_group")
    with pytest.raises(Unknown):
        await one.broker.delete_group(ANYBODY, one.find(), "passing")
    assert [g.name for g in one.broker.metadata.list_groups(ANYBODY, one.find())] == ["billing"]
    assert await settled_messages_go(other, group)
    assert town.catalog.dropped() == []


@town(2)
async def test_a_queue_whose_deleter_died_leaves_the_storage(town: Town) -> None:
    """R1: The catalog has dropped it, so no client will ask for it again."""
    one, _ = town.gateways
    await town.group(partitions=2)
    queue = one.find()
    one.storage.stall("drop_queue")
    deleting = asyncio.create_task(one.broker.delete_queue(ANYBODY, queue.name))
    await becomes(lambda: one.storage.under_way["drop_queue"])
    one.cut_off()
    await asyncio.sleep(SOON_S)
    assert await town.memory.partitions(queue.queue_id) == []
    assert town.catalog.dropped() == []
    one.come_back()
    await deleting


@town(2)
async def test_a_deleted_queue_is_not_made_by_who_comes_late(town: Town) -> None:
    """R1: A queue in the storage that no catalog has would stay there for good."""
    maker, other = town.gateways
    maker.storage.stall("create_queue")
    making = asyncio.create_task(
        maker.broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=2))
    )
    await becomes(lambda: maker.storage.under_way["create_queue"])
    queue = other.find()
    await other.broker.delete_queue(ANYBODY, "orders")
    maker.storage.well()
    with pytest.raises(Refused, match="queue_not_found"):
        await making
    await asyncio.sleep(SOON_S)
    assert await town.memory.partitions(queue.queue_id) == []


@mad
async def test_what_the_storage_could_not_drop_is_dropped_when_it_can(house: MadHouse) -> None:
    """R12, one gateway: The catalog was quicker, and no gateway is restarted for that."""
    queue = await house.queue(partitions=1)
    group = await house.group(queue)

    def failing(name: str) -> Exception | None:
        return Refused("storage_unavailable", "") if name == "drop_group" else None

    house.storage.fail = failing
    with pytest.raises(Refused, match="storage_unavailable"):
        await house.broker.delete_group(ANYBODY, queue, "billing")
    await asyncio.sleep(SOON_S)
    assert house.broker.metadata.dropped()
    house.storage.well()
    await asyncio.sleep(SOON_S)
    assert house.broker.metadata.dropped() == []
    assert await house.storage.real.cursors(queue.queue_id, group.group_id) == []


# --- Creations ------------------------------------------------------------------------------------


@town(2)
async def test_dead_letters_arrive_when_making_their_queue_was_unknown(town: Town) -> None:
    """P1: The message is dead-lettered with its reason. The queue is in the catalog from then on,
    and no gateway makes it once more."""
    (gateway, _) = town.gateways
    group = await town.group(partitions=1, attempts_max=1)
    session, consumer = await gateway.consumer(group)
    await becomes(lambda: gateway.owns(group))
    await gateway.publish(gateway.find(), numbered(1))
    ((place, _, _),) = await session.take(1)
    unknown_once(gateway, "put_queue")
    consumer.nack(delivery(place), 0.0, None)
    await asyncio.sleep(SOON_S)
    assert gateway.broker.dead_letters.moved_total == 1


@town(2)
async def test_what_a_maker_left_that_died_in_between_is_made_by_the_others(town: Town) -> None:
    """P1, R11: A queue that is visible takes messages, and a group that is visible keeps them."""
    maker, other = town.gateways
    maker.storage.stall("create_queue", "create_group")
    making = asyncio.create_task(
        maker.broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    )
    await becomes(lambda: maker.storage.under_way["create_queue"])
    queue = other.find()
    group, _ = await town.catalog.put_group(ANYBODY, queue, "billing", GroupSettings())
    maker.cut_off()
    await asyncio.sleep(SOON_S)
    assert len(await other.publish(queue, numbered(3))) == 3
    (cursor,) = await town.memory.cursors(queue.queue_id, group.group_id)
    assert cursor.floor == 0
    assert await town.memory.trim(Partition(queue.queue_id, 0), retention_s=0, keep_all=False) == 0
    maker.come_back()
    await making


@town(2)
async def test_a_group_begins_where_its_maker_says_though_that_takes_a_while(town: Town) -> None:
    """R11: The others have seen the group in the catalog, and cannot know where it begins."""
    maker, other = town.gateways
    queue = await maker.queue()
    await other.publish(queue, numbered(3))
    maker.storage.stall("create_group")
    making = asyncio.create_task(
        maker.broker.put_group(ANYBODY, queue, "billing", GroupSettings(), "latest")
    )
    await asyncio.sleep(3)
    maker.storage.well()
    group, _ = await making
    (cursor,) = await town.memory.cursors(queue.queue_id, group.group_id)
    assert cursor.floor == 3


@town(2)
async def test_what_a_gateway_heard_of_while_the_storage_was_away_is_made(town: Town) -> None:
    """The first attempt failed, and it is tried again."""
    for gateway in town.gateways:
        gateway.storage.fail = lambda name: Unknown() if name.startswith("create") else None
    one = town.gateways[0]
    with pytest.raises(Unknown):
        await one.broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    await asyncio.sleep(60)
    assert await town.memory.partitions(one.find().queue_id) == []
    for gateway in town.gateways:
        gateway.storage.well()
    await asyncio.sleep(SOON_S)
    assert len(await town.memory.partitions(one.find().queue_id)) == 1


@town(2)
async def test_a_start_goes_on_when_others_delete_what_it_was_making(town: Town) -> None:
    """The starting gateway has read the catalog, and has been frozen since."""
    group = await town.group(partitions=1)
    starting, other = town.gateways
    queue = other.find()
    await other.broker.create_queue(ANYBODY, "kept", QueueSettings(partitions=1))
    for call, delete in (
        ("create_group", other.broker.delete_group(ANYBODY, queue, group.name)),
        ("create_queue", other.broker.delete_queue(ANYBODY, queue.name)),
    ):
        agreement = Reconciler(starting.broker.metadata, starting.storage)
        starting.storage.stall(call)
        start = asyncio.create_task(agreement.start())
        await becomes(partial(starting.storage.under_way.__getitem__, call))
        await delete
        starting.storage.well()
        await start
        await agreement.stop()
    assert await town.memory.partitions(queue.queue_id) == []
    assert len(await town.memory.partitions(other.find("kept").queue_id)) == 1


async def half_made_from_its_end(gateway: Gateway) -> "asyncio.Future[tuple[Group, bool]]":
    """Return a half-made group that begins after three messages, though its settings say the
    beginning. The catalog has it, and the storage does not answer."""
    queue = await gateway.queue()
    await gateway.publish(queue, numbered(3))
    gateway.storage.stall("create_group")
    making = asyncio.ensure_future(
        gateway.broker.put_group(ANYBODY, queue, "billing", GroupSettings(), "latest")
    )
    await becomes(lambda: gateway.storage.under_way["create_group"])
    return making


async def first_given(gateway: Gateway, group: Group) -> int:
    """Publish number 3. Return the number of the first message that a new consumer is given."""
    session, _ = await gateway.consumer(group)
    await gateway.publish(gateway.find(), numbered(1, first=3))
    return int((await session.get(1))[0])


@town(1)
async def test_who_starts_between_the_halves_of_a_group_makes_it_begin_as_was_asked(
    town: Town,
) -> None:
    """R11: It is requested from its end, and answered so. Its settings say the beginning."""
    (first,) = town.gateways
    making = await half_made_from_its_end(first)
    await town.another()
    first.storage.well()
    group, is_new = await making
    assert is_new
    assert await first_given(first, group) == 3


@town(2)
async def test_a_group_that_others_have_to_make_begins_as_was_asked(town: Town) -> None:
    """R11: Each maker is cut off between the two halves."""
    first, second = town.gateways
    making = await half_made_from_its_end(first)
    first.cut_off()
    await asyncio.sleep(SOON_S)
    group = second.broker.metadata.find_group(ANYBODY, second.find(), "billing")
    assert await first_given(second, group) == 3
    making.cancel()


# --- Short absences -------------------------------------------------------------------------------


def failing_times(house: MadHouse, change: str, error: Exception, times: int) -> list[str]:
    """Let the next calls of the storage of this name fail. Return the list of those that did."""
    failed: list[str] = []

    def fail(name: str) -> Exception | None:
        if name != change or len(failed) >= times:
            return None
        failed.append(name)
        return error

    house.storage.fail = fail
    return failed


@mad
async def test_a_storage_that_is_away_for_a_moment_is_asked_again(house: MadHouse) -> None:
    """The storage's half may be done twice. The client that requested the change notices
    nothing."""
    errors = (Unknown("Connection closed by server."), Refused("storage_unavailable", ""))
    for error in errors:
        for change in ("create_queue", "create_group", "drop_group", "drop_queue"):
            failed = failing_times(house, change, error, 3)
            queue = await house.queue(partitions=1)
            await house.group(queue)
            assert await house.publish(queue, numbered(1)) == [(0, 0, False)]
            await house.broker.delete_group(ANYBODY, queue, "billing")
            await house.broker.delete_queue(ANYBODY, "orders")
            assert failed == [change] * 3
            assert await house.memory.partitions(queue.queue_id) == []


@mad
async def test_a_queue_that_the_storage_has_not_made_yet_is_not_gone(house: MadHouse) -> None:
    """The maker was cut off between catalog and storage. Producers and readers are told to come
    again. It is made without another request, and then takes messages."""
    failing_times(house, "create_queue", Refused("storage_unavailable", ""), 1000)
    with pytest.raises(Refused, match="storage_unavailable"):
        await house.queue(partitions=1)
    queue = house.find()
    assert await house.publish(queue, numbered(2)) == ["storage_unavailable"] * 2
    with pytest.raises(Refused, match="storage_unavailable"):
        await house.read(queue, start="earliest")
    house.storage.fail = lambda name: None
    assert await house.publish(queue, numbered(1)) == ["storage_unavailable"]
    took_s = await becomes(lambda: house.broker.reconciler.pending == 0)
    assert took_s < 2, "whoever publishes hurries it on"
    assert await house.publish(queue, numbered(1)) == [(0, 0, False)]


@mad
async def test_a_queue_that_was_deleted_is_gone(house: MadHouse) -> None:
    queue = await house.queue(partitions=1)
    await house.broker.delete_queue(ANYBODY, "orders")
    assert await house.publish(queue, numbered(1)) == ["queue_not_found"]
