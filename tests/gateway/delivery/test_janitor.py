"""The janitor: what is settled goes, soon; abandoned groups go when they say so."""

import asyncio

import pytest

from gateway.delivery import janitor
from gateway.delivery.janitor import Expiry
from metadata.catalog import ANYBODY, GroupSettings
from push.errors import Refused
from push.places import Partition
from tests.histories.house import House, delivery, eventually, message, numbered


@pytest.fixture
async def hasty(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """Make a gateway whose janitor looks a hundred times a second."""
    monkeypatch.setattr(janitor, "EVERY_S", 0.01)
    await house.broker.janitor.stop()
    house.broker.janitor.start()
    return house


async def test_a_full_queue_has_room_soon_after_it_was_consumed(hasty: House) -> None:
    """R12: settled, hence trimmed, hence taken again; nobody has to look at every partition."""
    queue = await hasty.queue(messages_max=3)
    group = await hasty.group(queue)
    await hasty.publish(queue, numbered(3))
    session, consumer = await hasty.subscribe(queue, group)
    given = await session.take(3)
    assert await hasty.publish(queue, numbered(1)) == ["queue_full"]
    await asyncio.sleep(0.05)  # the look that the append called for is over
    await hasty.confirm(consumer, [[*given[0][0], 2]])
    memory = hasty.memory.queues[queue.queue_id][0]
    await eventually(lambda: memory.log.messages == 0)
    assert await hasty.publish(queue, numbered(1)) == [(0, 3, False)]


async def test_a_group_that_the_catalog_alone_has_lets_nothing_go(hasty: House) -> None:
    """P1: making it was cut off between the two, or the catalog's answer was unknown; who consumes
    in it then gets what was published meanwhile."""
    queue = await hasty.queue()
    group, _ = await hasty.broker.metadata.put_group(ANYBODY, queue, "billing", GroupSettings())
    await hasty.publish(queue, numbered(3))
    for _ in range(3):
        hasty.broker.janitor.touched(Partition(queue.queue_id, 0))
        await hasty.broker.janitor.look()
    session, _ = await hasty.subscribe(queue, group)
    assert len(await session.take(3)) == 3


@pytest.mark.parametrize("end", ["delete", "seek"])
async def test_what_only_one_group_pinned_goes_with_it(hasty: House, end: str) -> None:
    """R12: the group is deleted, or sent to the end."""
    queue = await hasty.queue()
    await hasty.group(queue)
    other = await hasty.group(queue, "other")
    await hasty.publish(queue, numbered(3))
    session, consumer = await hasty.subscribe(queue, other)
    given = await session.take(3)
    await hasty.confirm(consumer, [[*given[0][0], 2]])
    memory = hasty.memory.queues[queue.queue_id][0]
    await asyncio.sleep(0.05)
    assert memory.log.messages == 3
    if end == "delete":
        await hasty.broker.delete_group(ANYBODY, queue, "billing")
    else:
        await hasty.broker.seek_group(ANYBODY, queue, "billing", "latest")
    await eventually(lambda: memory.log.messages == 0)


async def test_a_round_that_fails_is_not_the_last(
    hasty: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P9: else nothing is ever deleted again."""
    queue = await hasty.queue()
    group = await hasty.group(queue)
    session, consumer = await hasty.subscribe(queue, group)
    await hasty.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)

    async def broken(*_: object, **__: object) -> int:
        monkeypatch.undo()
        monkeypatch.setattr(janitor, "EVERY_S", 0.01)
        raise RuntimeError("a bug")

    monkeypatch.setattr(hasty.memory, "trim", broken)
    await hasty.confirm(consumer, delivery(place))
    await eventually(lambda: "trimming was cut off" in caplog.text)
    owned = next(iter(consumer.owned_partitions.values()))
    place_of = owned.partition
    hasty.broker.janitor.touched(place_of)
    memory = hasty.memory.queues[place_of.queue_id][0]
    await eventually(lambda: memory.log.messages == 0)


async def test_an_abandoned_group_ends_only_if_its_setting_says_so(house: House) -> None:
    """R11: after so long without a consumer, counted from when that was seen."""
    queue = await house.queue()
    await house.group(queue, "keeps")
    await house.group(queue, "ends", expires_s=100)
    expiry = Expiry(house.broker.groups, house.broker.metadata, house.broker.delete_group)
    for seen_at in (1000, 1099):
        await expiry.look(now=seen_at)
    assert names(house) == ["ends", "keeps"]
    await expiry.look(now=1100)
    assert names(house) == ["keeps"]
    with pytest.raises(Refused, match="group_not_found"):
        house.broker.metadata.find_group(ANYBODY, queue, "ends")


async def test_a_group_with_a_consumer_is_not_abandoned(house: House) -> None:
    """R11: its time begins anew when the last one leaves, whether or not anybody looks then."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue, "ends", expires_s=100)
    expiry = Expiry(house.broker.groups, house.broker.metadata, house.broker.delete_group)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await expiry.look(now=began - 99)
    _, first = await house.subscribe(queue, group)
    _, second = await house.subscribe(queue, group)
    # Two pages are two consumers.
    await eventually(lambda: bool(first.owned_partitions and second.owned_partitions))
    house.broker.groups.runtimes[group.group_id].left_at -= 1000  # the first one came long ago
    await expiry.look(now=began + 200)
    first.leave()
    await expiry.look(now=began + 300)
    second.leave()
    left = loop.time()
    runtime = house.broker.groups.runtimes[group.group_id]
    await eventually(lambda: not runtime.row.members)
    await expiry.look(now=began + 99)
    await expiry.look_here(now=began + 99)
    assert names(house) == ["ends"]
    await expiry.look_here(now=left + 100)
    assert names(house) == []


async def test_an_absence_between_two_looks_does_not_add_up(house: House) -> None:
    """R11: absent when it is looked at, and again the next time, and there in between."""
    queue = await house.queue()
    group = await house.group(queue, "ends", expires_s=100)
    expiry = Expiry(house.broker.groups, house.broker.metadata, house.broker.delete_group)
    began = asyncio.get_running_loop().time()
    await expiry.look(now=began - 101)
    _, consumer = await house.subscribe(queue, group)
    consumer.leave()
    await expiry.look(now=began + 1)
    assert names(house) == ["ends"]


async def test_an_abandoned_group_is_gone_when_its_time_is_over(
    hasty: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: who comes after `expires_s` begins at the latest, and finds no backlog."""
    monkeypatch.setattr(janitor, "ALL_EVERY", 1_000_000)
    queue = await hasty.queue()
    group = await hasty.group(queue, "page", start="latest", expires_s=0.05)
    session, consumer = await hasty.subscribe(queue, group)
    await hasty.publish(queue, numbered(1))
    await session.take(1)
    consumer.leave()
    await eventually(lambda: names(hasty) == [])
    await hasty.publish(queue, numbered(1))
    again = await hasty.group(queue, "page", start="latest", expires_s=60)
    session, _ = await hasty.subscribe(queue, again)
    await hasty.publish(queue, [message("news")])
    ((_, body, _),) = await session.take(1)
    assert body == "news"


def names(house: House) -> list[str]:
    """The queue's groups."""
    return [group.name for group in house.broker.metadata.list_groups(ANYBODY, house.find())]
