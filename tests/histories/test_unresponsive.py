"""Histories of consumers whose sockets stay open and whose handlers say nothing (R14, R22). They
are frozen pages, programs that hang, and clients that come back and never say what they hold."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.auth.auth import Authenticator
from gateway.session.directory import SessionServices
from metadata.catalog import Group, Queue
from push import limits
from tests.histories.gateways import Town, town
from tests.histories.house import House, Session, delivery, eventually, message, numbered
from tests.histories.mad_house import MadHouse, mad
from tests.histories.test_adopting import holding, other, places, runtime_of
from tests.histories.test_resuming import Client
from tests.histories.test_several_gateways import publish
from tests.waiting import becomes

LEASE_S = 5.0
GIVEN_UP_S = 2 * LEASE_S + 1.0
"""A lease without a sign of the client, and one that the drain waits for."""
Settle = Callable[[Any, list[list[int]]], object]


async def shared(house: MadHouse) -> tuple[Queue, Group]:
    """Make a queue of four partitions, and its group."""
    queue = await house.queue(partitions=4)
    return queue, await house.group(queue, lease_s=LEASE_S)


async def both(house: MadHouse, queue: Queue, group: Group) -> tuple[Any, ...]:
    """Subscribe two sessions, each with half of the partitions."""
    frozen, one = await house.subscribe(queue, group)
    working, two = await house.subscribe(queue, group)
    await becomes(lambda: len(one.owned_partitions) == len(two.owned_partitions) == 2)
    return frozen, one, working, two


async def works(session: Session, consumer: Any) -> None:
    """Ack each delivery as it comes."""
    acked = 0
    while True:
        given = session.given[acked:]
        acked += len(given)
        if given:
            consumer.ack([one for place, _, _ in given for one in delivery(place)], [], None)
        await asyncio.sleep(0.05)


def distinct(session: Session) -> set[Any]:
    return set(session.bodies)


@mad
async def test_a_frozen_page_loses_its_partitions_to_those_who_work(house: MadHouse) -> None:
    """P8: Within a lease of silence and a drain the other consumer has everything. Messages
    published from then on come at once."""
    queue, group = await shared(house)
    frozen, one, working, two = await both(house, queue, group)
    work = asyncio.create_task(works(working, two))
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    assert await becomes(lambda: len(distinct(working)) == 40) < GIVEN_UP_S
    assert (one.owned_partitions, set(two.owned_partitions)) == ({}, {0, 1, 2, 3})
    assert one.is_unresponsive
    assert one.described().unresponsive
    assert one.subscription_facts().unresponsive
    row = house.broker.groups.runtimes[group.group_id].row
    assert (row.unresponsive, len(row.members)) == ((one.name,), 2)
    given = len(frozen.given)
    await house.publish(queue, [message(n, f"k{n}") for n in range(40, 80)])
    assert await becomes(lambda: len(distinct(working)) == 80) < 1
    assert len(frozen.given) == given
    work.cancel()


SIGNS: dict[str, Settle] = {
    "an ack, though stale": lambda consumer, given: consumer.ack(given, [], None),
    "a nack": lambda consumer, given: consumer.nack(given, None, None),
    "an extend": lambda consumer, given: consumer.extend(given, [], None),
    "a start": lambda consumer, given: consumer.extend([], given, None),
    "credit": lambda consumer, given: consumer.grant(1001),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_its_next_sign_brings_it_back(sign: str, tmp_path: Any) -> None:
    """The consumer is given its share again, and works on."""

    @mad
    async def history(house: MadHouse) -> None:
        queue, group = await shared(house)
        frozen, one, working, two = await both(house, queue, group)
        work = asyncio.create_task(works(working, two))
        await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
        await becomes(lambda: not one.owned_partitions)
        SIGNS[sign](one, delivery(frozen.given[0][0]))
        await becomes(lambda: len(one.owned_partitions) == len(two.owned_partitions) == 2)
        assert not one.is_unresponsive
        thawed = asyncio.create_task(works(frozen, one))
        await house.publish(queue, [message(n, f"k{n}") for n in range(40, 80)])
        await becomes(lambda: len(distinct(working) | distinct(frozen)) == 80)
        await asyncio.sleep(3 * LEASE_S)
        assert len(one.owned_partitions) == 2
        for task in (work, thawed):
            task.cancel()

    history(tmp_path)


@mad
async def test_who_acks_one_of_many_in_each_lease_is_not_given_up(house: MadHouse) -> None:
    """The consumer has one slow handler beside nineteen that hang. Hanging deliveries come again,
    and the partitions stay."""
    queue, group = await shared(house)
    slow, one, working, two = await both(house, queue, group)
    work = asyncio.create_task(works(working, two))
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    await becomes(lambda: slow.given)
    for _ in range(10):
        await asyncio.sleep(0.9 * LEASE_S)
        one.ack(delivery(slow.given[-1][0]), [], None)
        assert len(one.owned_partitions) == 2
    assert not one.is_unresponsive
    work.cancel()


@mad
async def test_the_only_consumer_keeps_its_partitions_until_another_one_comes(
    house: MadHouse,
) -> None:
    queue, group = await shared(house)
    frozen, one = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    await becomes(lambda: one.is_unresponsive)
    await asyncio.sleep(3 * LEASE_S)
    assert len(one.owned_partitions) == 4
    working, two = await house.subscribe(queue, group)
    work = asyncio.create_task(works(working, two))
    assert await becomes(lambda: len(distinct(working)) == 40) < LEASE_S + 2
    assert not one.owned_partitions
    two.leave()
    await becomes(lambda: len(one.owned_partitions) == 4)
    work.cancel()
    assert frozen.given


@mad
async def test_where_nobody_works_nobody_loses_anything(house: MadHouse) -> None:
    """Two consumers are frozen. Partitions do not go to and fro between them."""
    queue, group = await shared(house)
    _, one, _, two = await both(house, queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    await becomes(lambda: one.is_unresponsive and two.is_unresponsive)
    await becomes(lambda: len(one.owned_partitions) == len(two.owned_partitions) == 2)
    generation = house.broker.groups.runtimes[group.group_id].row.generation
    await asyncio.sleep(10 * LEASE_S)
    assert house.broker.groups.runtimes[group.group_id].row.generation == generation


@mad
async def test_pulls_and_what_is_settled_before_it_is_given_are_not_judged(
    house: MadHouse,
) -> None:
    """R23, R24: There is nothing to wait for. Pulls leave by a rule of their own."""
    queue, group = await shared(house)
    await house.publish(queue, [message(n, f"k{n}") for n in range(8)])
    once = await house.group(queue, "once", semantics="at_most_once", lease_s=LEASE_S)
    _, taker = await house.subscribe(queue, once)
    assert await house.broker.pulls.pull(queue, group, 8, 1)
    puller = house.broker.groups.runtimes[group.group_id].members["pulls"]
    await asyncio.sleep(3 * LEASE_S)
    assert not taker.is_unresponsive
    assert not puller.is_unresponsive


@town()
async def test_the_partitions_go_to_who_works_at_another_gateway(town: Town) -> None:
    """R14: Both gateways compute the same, and nothing goes to and fro."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=LEASE_S)
    frozen, silent = await one.consumer(group)
    working, busy = await two.consumer(group)
    await becomes(lambda: len(one.owns(group)) == len(two.owns(group)) == 2)
    work = asyncio.create_task(works(working, busy))
    await publish(one, 40)
    await becomes(lambda: len(distinct(working)) == 40)
    assert (one.owns(group), two.owns(group)) == (set(), {0, 1, 2, 3})
    assert two.runtime(group).row.unresponsive == (silent.name,)
    await asyncio.sleep(1)  # the last drain has been reported
    generation = two.runtime(group).row.generation
    await asyncio.sleep(20)
    assert two.runtime(group).row.generation == generation
    silent.ack(delivery(frozen.given[0][0]), [], None)
    await becomes(lambda: len(one.owns(group)) == len(two.owns(group)) == 2)
    work.cancel()


# --- Clients that come back and stay silent -----------------------------------------------------


async def test_who_never_says_what_it_holds_loses_its_partitions(
    durable_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: It subscribed with `held` after a restart, and answers pings. Its late list is answered,
    and it works again."""
    monkeypatch.setattr(limits, "HELD_TIMEOUT_S", 0.3)
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    back = client.moved()
    assert (await back.rejoin())["type"] == "ok"
    rival = await other(house)
    await house.publish(house.find(), numbered(9, first=1))
    assert sorted(await rival.get(10)) == list(range(10))
    assert await back.held(*delivery(place)) == delivery(place)
    assert not any(one.is_unresponsive for one in runtime_of(house).members.values())
    worker: Any = next(one for one in runtime_of(house).members.values() if one.owned_partitions)
    worker.ack([one for given, _, _ in rival.given for one in delivery(given)], [], None)


async def test_the_only_one_that_is_late_keeps_what_it_holds(
    durable_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: No other consumer had it meanwhile."""
    monkeypatch.setattr(limits, "HELD_TIMEOUT_S", 0.05)
    client = await holding(durable_house)
    (place,) = places(client)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    (member,) = runtime_of(durable_house).members.values()
    await eventually(lambda: member.is_unresponsive)
    assert await back.held(*delivery(place)) == []
    assert not member.is_unresponsive
    assert await back.acked(*delivery(place)) == (1, [])


async def resumed(house: MadHouse, queue: Queue, group: Group) -> tuple[Any, ...]:
    """Return a client that came back and owes `held`, its consumer, and a rival with half of the
    partitions."""
    client = Client(house, SessionServices(house.broker, Authenticator(None)))
    await client.join()
    rival, two = await house.subscribe(queue, group)
    (one,) = [c for c in house.broker.groups.runtimes[group.group_id].members.values() if c != two]
    await becomes(lambda: len(one.owned_partitions) == len(two.owned_partitions) == 2)
    client.session.on_transport_lost()
    again = client.again()
    again.resume()
    return again, one, rival, two


@mad
async def test_a_session_that_is_resumed_and_says_nothing_loses_its_partitions(
    house: MadHouse,
) -> None:
    """R22: The same holds if the gateway lived on. Each part of a long list starts the time
    again."""
    queue, group = await shared(house)
    again, one, rival, two = await resumed(house, queue, group)
    for part in range(3):
        await asyncio.sleep(0.9 * limits.HELD_TIMEOUT_S)
        assert again.hold(0, [[0, 1, 1, part, part]], more=True)["type"] == "ok"
    assert len(one.owned_partitions) == 2
    assert await becomes(lambda: len(two.owned_partitions) == 4) < limits.HELD_TIMEOUT_S + 1
    assert one.is_unresponsive
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    await rival.take(40)
    assert again.hold(0, [])["type"] == "ok"
    assert not one.is_unresponsive


PARTS: dict[str, Callable[[int], list[list[int]]]] = {
    "empty": lambda part: [],
    "that name a push and nothing of it": lambda part: [[0, 1, 1]],
    "that name one offset each": lambda part: [[0, 1, 1, part, part]],
}


@pytest.mark.parametrize("parts", PARTS)
def test_who_begins_a_list_and_does_not_end_it_loses_its_partitions(
    parts: str, tmp_path: Any
) -> None:
    """R22. [An empty part every five seconds: the partitions were nobody's for ever.]"""

    @mad
    async def history(house: MadHouse) -> None:
        queue, group = await shared(house)
        again, one, rival, two = await resumed(house, queue, group)
        patience_s = limits.HELD_TIMEOUT_S
        if parts == "that name one offset each":
            patience_s *= limits.HELD_PARTS_MAX + 1

        async def says() -> None:
            for part in range(10**9):
                await asyncio.sleep(limits.HELD_TIMEOUT_S / 2)
                again.hold(0, PARTS[parts](part), more=True)

        saying = asyncio.create_task(says())
        await becomes(lambda: len(two.owned_partitions) == 4, within_s=patience_s + 1)
        assert one.is_unresponsive
        await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
        await rival.take(40)
        saying.cancel()

    history(tmp_path)
