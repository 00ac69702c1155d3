"""Histories of every figure that operators see of queues and groups. Each is compared with the
events, in two or more states, and counted once."""

import asyncio
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.counters import PublishCounters
from gateway.delivery.consumer import Consumer
from gateway.rest.routes.groups import GroupDescription
from gateway.rest.routes.queues import QueueDescription
from metadata.catalog import ANYBODY, Group, Queue
from push import limits
from push.errors import Refused, Unknown
from runtime.loop import fairness
from tests.histories.house import House, delivery, eventually, message, numbered


async def shown_queue(house: House, name: str = "orders") -> dict[str, Any]:
    """Return the description of the queue. It has the form that /openapi.json says."""
    described = await house.broker.describe_queue(ANYBODY, name)
    msgspec.convert({**described, "settings": {}}, QueueDescription)
    assert set(described) == set(QueueDescription.__struct_fields__)
    return described


async def shown_group(house: House, queue: Queue, group: Group) -> dict[str, Any]:
    """Return the description of the group. It has the form that /openapi.json says."""
    described = await house.broker.describe_group(ANYBODY, queue, group.name)
    # Durations in tests are shorter than the API allows.
    msgspec.convert({**described, "settings": {}}, GroupDescription)
    assert set(described) == set(GroupDescription.__struct_fields__)
    return described


def moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Return what was counted between two looks."""
    assert after["counters"]["since_unix_ms"] == before["counters"]["since_unix_ms"]
    counted = {name: n - before["counters"][name] for name, n in after["counters"].items()}
    return {name: n for name, n in counted.items() if n}


async def test_what_was_published_is_counted_once(house: House) -> None:
    queue = await house.queue()
    empty = await shown_queue(house)
    assert empty["oldest_unix_ms"] is None
    assert (empty["depth"], empty["bytes"]) == (0, 0)
    begun = int(time.time() * 1000)
    await house.publish(queue, [message("a", id="1"), message("b", id="2"), message("c")])
    first = await shown_queue(house)
    assert moved(empty, first) == {"published": 3, "published_bytes": first["bytes"]}
    assert begun <= first["oldest_unix_ms"] <= int(time.time() * 1000)
    await house.publish(queue, [message("a", id="1"), message("d", id="3"), message("b", id="2")])
    second = await shown_queue(house)
    grown = second["bytes"] - first["bytes"]
    assert moved(first, second) == {"published": 1, "published_bytes": grown, "duplicates": 2}
    assert second["oldest_unix_ms"] == first["oldest_unix_ms"]
    assert second["depth"] == 4


async def test_what_was_refused_is_counted_wherever_it_was(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are refused by a rule about the message, by the queue's bound, and as a whole
    batch."""
    queue = await house.queue(messages_max=2)
    before = await shown_queue(house)
    await house.publish(queue, [message(0), message(1, "k" * (limits.KEY_BYTES_MAX + 1))])
    await house.publish(queue, numbered(3))
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 3)
    await house.publish(queue, numbered(4))
    counted = moved(before, await shown_queue(house))
    assert (counted["published"], counted["refused"]) == (2, 7)


async def test_what_nobody_knows_is_not_counted_as_refused() -> None:
    counted = PublishCounters()
    counted.count_failed(3, Unknown("the answer was lost"))
    counted.count_failed(2, Refused("storage_full"))
    assert (counted.unknown, counted.refused, counted.published) == (3, 2, 0)


async def test_a_group_counts_what_it_was_given_and_what_became_of_it(house: House) -> None:
    queue = await house.queue(on_exhausted="park", attempts_max=2)
    group = await house.group(queue)
    start = await shown_group(house, queue, group)
    assert (start["lag"], start["oldest_unix_ms"], start["consumers"]) == (0, None, 0)
    await house.publish(queue, [message(n, key) for n, key in enumerate("abcd")])
    session, consumer = await house.subscribe(queue, group)
    places = [place for place, _, _ in await session.take(4)]
    given = await shown_group(house, queue, group)
    assert moved(start, given) == {"given": 4}
    assert (given["in_flight"], given["lag"], given["consumers"]) == (4, 4, 1)
    assert given["oldest_unix_ms"] == (await shown_queue(house))["oldest_unix_ms"]
    assert await house.confirm(consumer, delivery(places[1])) == (1, 0)
    assert await house.confirm(consumer, delivery(places[1])) == (1, 0)  # again: settled already
    consumer.nack(delivery(places[0]), 0, None)
    await session.take(5)
    acted = await shown_group(house, queue, group)
    assert moved(given, acted) == {"given": 1, "redelivered": 1, "settled": 1, "nacked": 1}
    assert (acted["in_flight"], acted["lag"]) == (3, 3)
    consumer.nack(delivery(session.given[4][0]), 0, None)
    await house.broker.cursor_writer.drain()
    parked = await shown_group(house, queue, group)
    assert moved(acted, parked) == {"nacked": 1, "parked": 1}
    assert (parked["keys_parked"], parked["aside"], parked["lag"]) == (1, 1, 3)
    assert parked["oldest_unix_ms"] == given["oldest_unix_ms"]  # it waits, and is not settled
    (one,) = parked["partitions"]
    assert (one["keys_parked"], one["aside"], one["in_flight"]) == (1, 1, 2)


async def test_leases_that_end_and_dead_letters_are_counted(house: House) -> None:
    """Deliveries revoked with an ended lease have not ended themselves."""
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue, lease_s=0.05)
    before = await shown_group(house, queue, group)
    await house.publish(queue, numbered(2))
    session, consumer = await house.subscribe(queue, group, credit=2)
    places = [place for place, _, _ in await session.take(2)]
    consumer.start(delivery(places[0]))
    consumer.extend(delivery(places[1]), [], 30)
    await eventually(lambda: house.broker.dead_letters.moved_total == 1)
    await eventually(
        lambda: not next(iter(consumer.owned_partitions.values())).delivery.waiting.dead_count
    )
    assert moved(before, await shown_group(house, queue, group)) == {
        "given": 2, "expired": 1, "dead_lettered": 1,
    }  # fmt: skip
    assert (await shown_queue(house, "orders.dead-letters"))["counters"]["published"] == 1


def has_slots(consumer: Consumer, count: int) -> bool:
    return len(consumer.owned_partitions) == count


async def test_every_partition_is_shown_with_its_owner_or_without(house: House) -> None:
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    unowned = await shown_group(house, queue, group)
    assert [place["partition"] for place in unowned["partitions"]] == [0, 1, 2, 3]
    assert {place["waits_for"] for place in unowned["partitions"] if place["lag"]} == {
        "no_consumer"
    }
    assert sum(place["lag"] for place in unowned["partitions"]) == unowned["lag"] == 20
    assert {(place["owner"], place["member"]) for place in unowned["partitions"]} == {(None, None)}
    sessions = [await house.subscribe(queue, group, credit=0) for _ in range(2)]
    for session, consumer in sessions:
        await eventually(partial(has_slots, consumer, 2))
        consumer.grant(3)
        await session.take(3)
    # One partition may fill a session's credit before its other one is owned.
    await eventually(
        lambda: len(house.broker.groups.runtimes[group.group_id].owned_partitions) == 4
    )
    owned = await shown_group(house, queue, group)
    names = {consumer.name: session for session, consumer in sessions}
    for place in owned["partitions"]:
        session = names[place["owner"]["consumer"]]
        assert place["member"] == place["owner"]["consumer"]
        assert place["owner"] == {
            "consumer": place["owner"]["consumer"], "session": session.session_id,
            "subscription": int(place["owner"]["consumer"].rpartition(".")[2]),
            "client": session.client, "transport": "websocket", "unresponsive": False,
        }  # fmt: skip
        runtime = house.broker.groups.runtimes[group.group_id]
        delivery_here = runtime.owned_partitions[place["partition"]].delivery
        assert (place["epoch"], place["in_flight"]) == (
            delivery_here.epoch, delivery_here.leases.open_count,
        )  # fmt: skip
        if place["next_offset"] < place["certified"]:
            assert place["waits_for"] == "credit"
        else:
            assert place["waits_for"] == ""
    assert owned["in_flight"] == 6


async def test_the_stock_is_looked_at_anew_when_it_has_changed_and_only_then(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated requests about a thousand quiet queues read nothing from the storage."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(3))
    await shown_queue(house)
    looks = 0
    storage = house.broker.storage
    original = storage.partitions

    async def counted(queue_id: str) -> Any:
        nonlocal looks
        looks += 1
        return await original(queue_id)

    monkeypatch.setattr(storage, "partitions", counted)
    for _ in range(5):
        assert (await shown_queue(house))["depth"] == 3
        assert (await shown_group(house, queue, group))["lag"] == 3
    assert looks == 0
    await house.publish(queue, numbered(1))
    assert (await shown_queue(house))["depth"] == 4
    session, consumer = await house.subscribe(queue, group)
    places = [place for place, _, _ in await session.take(4)]
    await house.confirm(consumer, [[*place, place[3]] for place in places])
    assert (await shown_group(house, queue, group))["lag"] == 0
    await house.broker.janitor.look()
    assert (await shown_queue(house))["depth"] == 0
    await house.publish(queue, numbered(2))
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    assert (await shown_queue(house))["depth"] == 0
    assert (await shown_group(house, queue, group))["lag"] == 0
    await house.broker.seek_group(ANYBODY, queue, "billing", "latest")
    other = await house.group(queue, "audit")
    assert (await shown_group(house, queue, other))["lag"] == 0
    assert [one["name"] for one in (await shown_queue(house))["groups"]] == ["audit", "billing"]
    looks = 0
    for _ in range(3):  # one group after the other, and neither makes the other forgotten
        await shown_group(house, queue, group)
        await shown_group(house, queue, other)
        await shown_queue(house)
    assert looks == 0


async def test_a_look_that_something_overtakes_is_not_remembered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await house.queue()
    await house.publish(queue, numbered(1))
    storage, begun, go_on = house.broker.storage, asyncio.Event(), asyncio.Event()
    original = storage.partitions

    async def late(queue_id: str) -> Any:
        found = await original(queue_id)
        begun.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(storage, "partitions", late)
    looking = asyncio.ensure_future(shown_queue(house))
    await begun.wait()
    await house.publish(queue, numbered(1))
    go_on.set()
    assert (await looking)["depth"] == 1  # as it was at the request
    assert (await shown_queue(house))["depth"] == 2


async def test_others_have_their_turn_while_queues_are_listed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: This holds too if all is remembered, and nothing is waited for."""
    monkeypatch.setattr(fairness, "SLICE_S", 0.0)
    for number in range(20):
        await house.queue(f"q{number:02}")
    async with house.http() as http:
        await http.get("/v1/queues")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.create_task(count())
        answer = (await http.get("/v1/queues")).json()
        counted = turns
        first = (await http.get("/v1/queues/q00")).json()
        others.cancel()
    assert [queue["name"] for queue in answer["queues"]] == [f"q{n:02}" for n in range(20)]
    assert answer["queues"][0] == first
    assert counted >= 15


async def test_a_queue_says_where_its_dead_letters_go_and_how_many_are_there(house: House) -> None:
    long = await house.queue("o" * 120)
    named = await house.queue("other", dead_letter_queue="dead")
    names = [("orders", None), ("o" * 120, None), ("other", None)]
    await house.queue()
    told = [(await shown_queue(house, name))["dead_letters"] for name, _ in names]
    assert [one["queue"] for one in told] == [
        "orders.dead-letters", f"{long.queue_id}.dead-letters", named.settings.dead_letter_queue,
    ]  # fmt: skip
    assert [one["messages"] for one in told] == [None] * 3
    dead = await house.queue("orders.dead-letters")
    assert (await shown_queue(house))["dead_letters"]["messages"] == 0
    await house.publish(dead, numbered(2))
    assert (await shown_queue(house))["dead_letters"]["messages"] == 2
