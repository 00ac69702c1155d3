"""Histories of nacks, which are durable when they are answered (R16, R19), of rejected messages,
and of the reasons that operators see."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.models import WhichKey
from gateway.wire.frames import Nack
from metadata.catalog import ANYBODY, Group, Queue
from push.places import CursorPlace, Partition
from push.storage_port import Retry
from tests.histories.house import House, Socket, delivery, eventually, message
from tests.histories.mad_house import MadHouse, mad
from tests.histories.test_letters import Make, node, two
from tests.histories.test_parking import dead_letters, parked
from tests.histories.test_pulling import bodies, pull

__all__ = ["node", "two"]


async def noted(house: House, queue: Queue, group: Group) -> list[Retry]:
    """Return the tries in partition 0 that the storage has at this moment."""
    place = CursorPlace(group.group_id, Partition(queue.queue_id, 0))
    found = await house.broker.storage.cursor(place)
    assert found is not None
    return list(found.retries)


async def reason_of(house: House, queue: Queue, retry: Retry) -> str | None:
    return await house.broker.nack_reasons.open(Partition(queue.queue_id, 0), retry.nack)


async def talking(house: House, **settings: Any) -> tuple[Socket, Queue, Group]:
    """Return a client that was given a message."""
    queue = await house.queue(**settings)
    group = await house.group(queue)
    socket = Socket(house)
    socket.say(type="hello")
    socket.say(type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=10)
    await socket.until_ref(1)
    await house.publish(queue, [message(0, "k")])
    await socket.until("push")
    return socket, queue, group


def of(push: dict[str, Any]) -> list[list[int]]:
    """Return the delivery list of a push of one message."""
    return delivery((push["partition"], push["epoch"], push["push"], push["offset"]))


# --- Durable when it is answered ----------------------------------------------------------------


async def test_count_delay_and_reason_are_durable_when_a_nack_is_answered(house: House) -> None:
    """R16, R19. [The broker is killed 20 ms after the answer: the message comes again at once, as
    its first attempt, and nobody knows why it failed.]"""
    socket, queue, group = await talking(house)
    socket.say(
        type="nack", ref=2, subscription=1, deliveries=of(await socket.until("push")),
        delay_s=60, reason="card declined",
    )  # fmt: skip
    answer = await socket.until_ref(2)
    (retry,) = await noted(house, queue, group)
    assert (answer["settled"], answer["stale"]) == (1, [])
    assert (retry.offset, retry.attempts, retry.rejected) == (0, 1, False)
    assert retry.due_unix_ms > house.broker.started_unix_ms + 50_000
    assert await reason_of(house, queue, retry) == "card declined"


async def test_a_nack_by_receipt_is_durable_with_its_reason(house: House) -> None:
    """R24: This holds over HTTP as over a WebSocket."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message(0, "k")])
    (one,) = await pull(house, queue, group)
    await house.broker.pulls.nack(queue, group, [one.receipt], 60, reason="card declined")
    (retry,) = await noted(house, queue, group)
    assert (retry.attempts, await reason_of(house, queue, retry)) == (1, "card declined")


async def test_a_nack_through_another_gateway_is_durable_with_its_reason(two: Make) -> None:
    """R24: The next owner sees it in the store."""
    here = await two()
    await here.a.publish(here.queue, [message(0, "k")])
    (one,) = await here.pull()
    done = await here.b.broker.pulls.nack(
        here.queue, here.group, [one.receipt], 60, reason="card declined"
    )
    (retry,) = await noted(here.b, here.queue, here.group)
    assert (done.settled, retry.attempts) == (1, 1)
    assert await reason_of(here.b, here.queue, retry) == "card declined"


@mad
async def test_a_nack_is_not_answered_while_the_storage_is_not(house: MadHouse) -> None:
    """R29: A nack without a `ref` has no answer. An unknown outcome is not answered either, but the
    write is repeated."""
    socket, queue, group = await talking(house)
    house.storage.stall("write_cursors")
    socket.say(
        type="nack", ref=2, subscription=1, deliveries=of(await socket.until("push")), delay_s=60
    )
    await asyncio.sleep(20)
    assert not [frame for frame in socket.frames if frame.get("ref") == 2]
    assert await noted(house, queue, group) == []
    house.storage.well()
    assert (await socket.until_ref(2))["settled"] == 1
    assert [retry.attempts for retry in await noted(house, queue, group)] == [1]


async def test_a_nack_that_a_new_owner_overtakes_is_unknown(house: House) -> None:
    """The same holds for a confirmed ack. Its group is sought before it is written."""
    socket, _, _ = await talking(house)
    (owned,) = next(iter(house.broker.groups.runtimes.values())).owned_partitions.values()
    socket.say(type="nack", ref=2, subscription=1, deliveries=of(await socket.until("push")))
    owned.fenced()
    answer = await socket.until_ref(2)
    assert (answer["type"], answer["code"]) == ("error", "unknown")


async def test_unsubscribing_is_answered_when_what_was_said_before_it_is_durable(
    house: House,
) -> None:
    """R19: Started deliveries count, and so do acks and nacks that no client waited for."""
    socket, queue, group = await talking(house)
    place = of(await socket.until("push"))
    socket.say(type="extend", subscription=1, deliveries=[], started=place)
    socket.say(type="unsubscribe", ref=2, subscription=1)
    await socket.until_ref(2)
    assert [retry.attempts for retry in await noted(house, queue, group)] == [1]


async def test_the_reason_outlives_its_owner(durable_house: House) -> None:
    """The reason goes with the message if it dies under another owner, by another nack or by an
    expiry without a reason. The last reason counts."""
    house = durable_house
    socket, _, group = await talking(house, attempts_max=3)
    socket.say(
        type="nack", ref=2, subscription=1, deliveries=of(await socket.until("push")),
        delay_s=0, reason="card declined",
    )  # fmt: skip
    await socket.until_ref(2)
    await socket.until_true(lambda: len(socket.of_type("push")) == 2)
    socket.say(type="nack", ref=3, subscription=1, deliveries=of(socket.of_type("push")[1]))
    await socket.until_ref(3)
    socket.session.end()
    await house.restart()
    session, consumer = await house.subscribe(house.find(), group)
    ((place, _, attempt),) = await session.take(1)
    assert attempt == 3
    consumer.nack(delivery(place), None, None)
    ((body, headers),) = await letters(house, 1)
    assert (body, headers["tocsin-dead-letter-nack"]) == (0, "card declined")


async def letters(house: House, count: int) -> list[tuple[Any, dict[str, str]]]:
    """Return (body, headers) of the messages in the dead-letter queue."""
    await eventually(lambda: house.broker.dead_letters.moved_total == count)
    reader, _ = await house.read(house.find("orders.dead-letters"), start="earliest")
    await reader.get(count)
    return [
        (one["body"], one["headers"])
        for frame in reader.of_type("push")
        for one in frame["messages"]
    ]


# --- Rejected -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts_max", [0, 5])
async def test_a_rejected_message_is_dead_lettered_at_once(house: House, attempts_max: int) -> None:
    """R19: This holds for any number of attempts left, also if they have no end. Later messages of
    its key come, and its late ack is stale."""
    socket, queue, group = await talking(house, attempts_max=attempts_max)
    place = of(await socket.until("push"))
    socket.say(
        type="nack", ref=2, subscription=1, deliveries=place, reject=True, reason="no such account"
    )
    assert (await socket.until_ref(2))["settled"] == 1
    ((body, headers),) = await letters(house, 1)
    prefix = "tocsin-dead-letter-"
    assert (body, headers[prefix + "reason"], headers[prefix + "nack"]) == (
        0, "rejected", "no such account",
    )  # fmt: skip
    assert headers[prefix + "attempts"] == "1"
    await house.publish(queue, [message(1, "k")])
    await socket.until_true(lambda: len(socket.of_type("push")) == 2)
    socket.say(type="ack", ref=3, subscription=1, deliveries=place)
    assert (await socket.until_ref(3))["stale"] == place
    described = await house.broker.describe_group(ANYBODY, queue, group.name)
    counters = msgspec.to_builtins(described)["counters"]
    assert (counters["nacked"], counters["rejected"], counters["dead_lettered"]) == (1, 1, 1)


async def test_a_rejected_message_parks_its_key_where_the_queue_parks(house: House) -> None:
    """R17, R18: An operator sees the reason. Later deliveries of its key in flight are revoked."""
    queue = await house.queue(on_exhausted="park", attempts_max=5)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, "k") for n in range(2)])
    (first, *_), _ = await session.take(2)
    consumer.nack(delivery(first), None, "no such account", reject=True)
    (revoked,) = session.of_type("revoked")
    assert revoked["deliveries"] == [[*first[:3], 1, 1]]
    (line,) = await parked(house, queue, group)
    assert (line.reason, line.nack, line.attempts, line.messages) == (
        "rejected", "no such account", 1, 2,
    )  # fmt: skip
    await house.broker.parking.decide(queue, group, "release", WhichKey(key="k"))
    again = await session.take(3)
    assert (again[2][1], again[2][2]) == (0, 1), "released, it has all its attempts again"
    consumer.nack(delivery(again[2][0]), 0, None)
    assert (await session.take(4))[3][2] == 2


async def test_a_retried_message_can_be_rejected_again(house: House) -> None:
    """R17: The operator's try counts, and the key is parked again."""
    queue = await house.queue(on_exhausted="park", attempts_max=5)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "k")])
    for count in (1, 2):
        place = (await session.take(count))[-1][0]
        consumer.nack(delivery(place), None, f"reason {count}", reject=True)
        (line,) = await parked(house, queue, group)
        assert (line.reason, line.nack) == ("rejected", f"reason {count}")
        if count == 1:
            await house.broker.parking.decide(queue, group, "retry", WhichKey(key="k"))


async def test_a_rejection_that_is_answered_is_not_forgotten_by_a_crash(
    durable_house: House,
) -> None:
    """R16: It is durable before the dead letter is. [The dead letters are full, the broker is
    killed: the message is tried again, as often as it may be.]"""
    house = durable_house
    socket, queue, group = await talking(house)
    (owned,) = next(iter(house.broker.groups.runtimes.values())).owned_partitions.values()

    async def never_buried(*_: Any) -> None:
        await asyncio.Event().wait()

    owned._context.move = never_buried
    socket.say(
        type="nack", ref=2, subscription=1, deliveries=of(await socket.until("push")),
        reject=True, reason="no such account",
    )  # fmt: skip
    await socket.until_ref(2)
    (retry,) = await noted(house, queue, group)
    assert retry.rejected
    socket.session.end()
    await house.restart()
    session, _ = await house.subscribe(house.find(), group)
    assert [reason for _, reason in await dead_letters_of(house, 1)] == ["rejected"]
    assert session.given == []


async def dead_letters_of(house: House, count: int) -> list[tuple[Any, str]]:
    await eventually(lambda: house.broker.dead_letters.moved_total == count)
    return await dead_letters(house, count)


async def test_a_pulled_message_is_rejected_by_its_receipt(house: House) -> None:
    """R24: This goes over HTTP. A rejection has no delay."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message(0, "a"), message(1, "b")])
    first, second = await pull(house, queue, group)
    path = "/v1/queues/orders/groups/billing/nack"
    async with house.http() as http:
        wrong = {"receipts": [first.receipt], "reject": True, "delay_s": 1}
        assert (await http.post(path, json=wrong)).status_code == 400
        right = {"receipts": [first.receipt], "reject": True, "reason": "no such account"}
        done = await http.post(path, json=right)
        assert (done.status_code, done.json()["settled"]) == (200, 1)
        ((body, headers),) = await letters(house, 1)
        listed = (await http.get("/v1/queues/orders/dead-letters?reason=rejected")).json()
    assert (body, headers["tocsin-dead-letter-nack"]) == (0, "no such account")
    assert [one["nack"] for one in listed["messages"]] == ["no such account"]
    await house.broker.pulls.nack(queue, group, [second.receipt], 0)
    assert bodies(await pull(house, queue, group)) == [1]


async def test_what_is_rejected_is_not_tried_again_after_a_delay(house: House) -> None:
    """P12: Only one of the two can be meant, and nothing happens."""
    socket, queue, group = await talking(house)
    place = of(await socket.until("push"))
    socket.say(type="nack", ref=2, subscription=1, deliveries=place, delay_s=1, reject=True)
    answer = await socket.until_ref(2)
    assert (answer["type"], answer["code"]) == ("error", "invalid_request")
    assert await noted(house, queue, group) == []
    assert Nack(subscription=1, deliveries=[]).reject is False
