"""Histories of acks that come too late. No ack has settled the message; it went to the dead
letters, or was skipped, sought past or purged (R21). Each such ack is stale, however late it
comes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.delivery.consumer import Consumer
from gateway.delivery.owned_partition import OwnedPartition
from gateway.models import WhichKey
from metadata.catalog import ANYBODY, Group, Queue
from push.letters import PERHAPS, STALE, Letter
from tests.histories.house import House, Place, Session, delivery, eventually, message
from tests.histories.test_adopting import Mover, billing, holding, places
from tests.histories.test_letters import Make, comes_to, letter_of, node, two
from tests.histories.test_pulling import pull

__all__ = ["node", "two"]

Ends = Callable[[House, Queue, Group, Consumer, Place], Awaitable[None]]


async def exhausted(
    house: House, queue: Queue, group: Group, consumer: Consumer, place: Place
) -> None:
    """Let its last attempt fail."""
    consumer.nack(delivery(place), None, None)
    await dead_lettered(house)


async def expired(
    house: House, queue: Queue, group: Group, consumer: Consumer, place: Place
) -> None:
    """Let its time end while it waits for a retry."""
    consumer.nack(delivery(place), 0.3, None)
    await dead_lettered(house)


async def skipped(
    house: House, queue: Queue, group: Group, consumer: Consumer, place: Place
) -> None:
    """Let it be parked, and skip it as an operator."""
    consumer.nack(delivery(place), None, None)
    await house.broker.cursor_writer.drain()
    assert await house.confirm(consumer, delivery(place)) == (0, 1), "parked"
    await house.broker.parking.decide(queue, group, "skip", WhichKey(key="k"))
    await dead_lettered(house)


async def sought(
    house: House, queue: Queue, group: Group, consumer: Consumer, place: Place
) -> None:
    """Move the group past it."""
    await house.broker.seek_group(ANYBODY, queue, group.name, "latest")


async def purged(
    house: House, queue: Queue, group: Group, consumer: Consumer, place: Place
) -> None:
    """Empty the group."""
    await house.broker.upkeep.purge(ANYBODY, queue, group.name)


async def dead_lettered(house: House, count: int = 1) -> None:
    """Wait until `count` messages have arrived in the dead letters, and are settled durably."""
    await eventually(lambda: house.broker.dead_letters.moved_total == count)
    await house.broker.cursor_writer.drain()


WAYS: dict[str, tuple[Ends, dict[str, Any]]] = {
    "exhausted": (exhausted, {"attempts_max": 1}),
    "expired": (expired, {"attempts_max": 5}),
    "skipped": (skipped, {"attempts_max": 1, "on_exhausted": "park"}),
    "sought": (sought, {}),
    "purged": (purged, {}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Ends, dict[str, Any]]:
    """Way in which a delivered message ends, and the settings of its queue for that."""
    return WAYS[request.param]


async def given(
    house: House, count: int = 1, **settings: Any
) -> tuple[Queue, Group, Session, Consumer, list[Place]]:
    """Publish `count` short-lived messages of the key `k`, and give them to a consumer."""
    queue = await house.queue(**settings)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, "k", ttl_s=0.2) for n in range(count)])
    return queue, group, session, consumer, [p for p, _, _ in await session.take(count)]


async def test_a_late_ack_of_what_no_ack_has_settled_is_stale(
    house: House, way: tuple[Ends, dict[str, Any]]
) -> None:
    """R21, P2. [It is redriven, and done again: who did it the first time was told it counted.]"""
    ends, settings = way
    queue, group, _, consumer, (place,) = await given(house, **settings)
    await ends(house, queue, group, consumer, place)
    for _ in range(2):
        assert await house.confirm(consumer, delivery(place)) == (0, 1)
    said = consumer.ack(delivery(place), [], None)
    assert (said.settled, said.stale) == (0, delivery(place)), "without a ref it is judged alike"
    assert await house.lag(queue, group) == 0


async def test_a_late_ack_by_receipt_is_stale_too(house: House) -> None:
    """R21, R24: It was nacked for the last time, or its lease has ended for the last time."""
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue, lease_s=0.1)
    await house.publish(queue, [message(0, "a"), message(1, "b")])
    nacked, left = await pull(house, queue, group)
    await house.broker.pulls.nack(queue, group, [nacked.receipt], None)
    await dead_lettered(house, 2)
    receipts = [nacked.receipt, left.receipt]
    for _ in range(2):
        said = await house.broker.pulls.ack(queue, group, receipts)
        assert (said.settled, said.stale) == (0, receipts)


async def test_an_ack_of_what_is_dying_is_stale_already(house: House) -> None:
    """R21: The dead letters cannot be written yet. No answer has to be taken back."""
    is_shut, moved = asyncio.Event(), house.broker.dead_letters.move

    async def move(owned: OwnedPartition) -> None:
        await is_shut.wait()
        await moved(owned)

    _, _, _, consumer, (place,) = await given(house, attempts_max=1)
    (owned,) = consumer.owned_partitions.values()
    owned._context.move = move
    consumer.nack(delivery(place), None, None)
    await eventually(lambda: owned.delivery.waiting.dead_count)
    assert await house.confirm(consumer, delivery(place)) == (0, 1)
    is_shut.set()
    await dead_lettered(house)
    assert await house.confirm(consumer, delivery(place)) == (0, 1)


async def test_what_an_ack_settled_is_settled_again_beside_what_died(house: House) -> None:
    """R21: This holds offset by offset, in one range, in every later answer."""
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(3)])
    (place, *_) = (one[0] for one in await session.take(3))
    consumer.ack([[*place[:3], 0, 0, 2, 2]], [], None)
    consumer.nack([[*place[:3], 1, 1]], None, None)
    await dead_lettered(house)
    said = consumer.ack([[*place[:3], 0, 2]], [], None)
    assert (said.settled, said.stale) == (2, [[*place[:3], 1, 1]])


async def test_who_was_away_when_it_died_does_not_hold_it_any_more(house: House) -> None:
    """R17, R22: The client had lost its transport. The answer to `held` names the message, so its
    handler is stopped."""
    _, _, _, consumer, (place,) = await given(house, attempts_max=1)
    consumer.suspend()
    consumer.start(delivery(place))
    (owned,) = consumer.owned_partitions.values()
    owned.nack(place[2], place[3], place[3], asyncio.get_running_loop().time(), delay_s=None)
    owned.settled(asyncio.get_running_loop().time())
    await dead_lettered(house)
    assert consumer.hold(1, delivery(place)) == delivery(place)
    assert await house.confirm(consumer, delivery(place)) == (0, 1)


async def test_what_died_before_a_restart_is_not_called_settled_after_it(
    durable_house: House,
) -> None:
    """R21, R22: The storage knows which messages no ack has settled. Those that an ack has settled
    are settled still."""
    house = durable_house
    client = await holding(house, 2, keys=2)
    dead, done = places(client)
    group = billing(house)
    (consumer,) = house.broker.groups.runtimes[group.group_id].members.values()
    assert isinstance(consumer, Consumer)
    consumer.ack(delivery(done), [], None)
    (owned,) = consumer.owned_partitions.values()
    attempts = house.find().settings.attempts_max
    for attempt in range(1, attempts + 1):
        now = asyncio.get_running_loop().time()
        (push,) = owned.delivery.leases.pushes
        owned.nack(push, dead[3], dead[3], now, delay_s=0)
        owned.settled(now)
        await client.given(min(2 + attempt, 1 + attempts))
    await dead_lettered(house)
    await house.restart()
    back: Mover = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(dead), *delivery(done)) == delivery(dead)
    assert await back.acked(*delivery(dead), *delivery(done)) == (1, delivery(dead))


async def test_an_ack_through_another_gateway_of_what_died_is_stale(two: Make) -> None:
    """R21, R24: Its owner judges it, and after that owner the next one."""
    here = await two()
    await here.a.publish(here.queue, [message(0, "a")])
    attempts = here.queue.settings.attempts_max
    for _ in range(attempts):
        (one,) = await here.pull(1, wait_s=5)
        await here.a.broker.pulls.nack(here.queue, here.group, [one.receipt], 0)
    await eventually(lambda: here.a.broker.dead_letters.moved_total == 1)
    await here.a.broker.cursor_writer.drain()
    for _ in range(2):
        assert (await here.ack(one.receipt)).stale == [one.receipt]
    await here.a.stop()
    assert await pull(here.b, here.queue, here.group, wait_s=0.5) == []
    assert (await here.ack(one.receipt)).stale == [one.receipt]


async def test_a_letter_about_what_died_under_an_owner_of_before_is_answered_stale(
    two: Make,
) -> None:
    """R21, R24: A lookup shows that no ack has settled it. An ack of the same moment may have
    counted, and its answer was lost."""
    here = await two()
    await here.a.publish(here.queue, [message(0, "a"), message(1, "b", ttl_s=0.2)])
    done, dead = await here.pull()
    here.owner_server._closed = True
    runs = [run for one in (done, dead) for run in letter_of(one, here).runs]
    letter = Letter(verb="ack", epoch=letter_of(dead, here).epoch, runs=runs)
    assert await here.inbox.post(here.place, "d" * 32, letter) is None
    pulls = here.a.broker.pulls
    await pulls.ack(here.queue, here.group, [done.receipt])
    await pulls.nack(here.queue, here.group, [dead.receipt], 0.3)
    assert await here.pull(wait_s=1) == []  # a pull finds that it has expired
    await eventually(lambda: here.a.broker.dead_letters.moved_total == 1)
    await here.a.restart()
    here.queue, here.group = await here.a.learn()
    await here.a.publish(here.queue, [message(2, "c")])
    assert len(await here.pull()) == 1
    here.owner_server.came(here.place)
    await comes_to(lambda: here.inbox.letters(here.place), something=False)
    assert await here.inbox.post(here.place, "d" * 32, letter) == PERHAPS + STALE
