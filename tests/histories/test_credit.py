"""Histories of credit: two absolute counters (R25)."""

import pytest

from push.errors import Refused
from tests.histories.house import House, delivery, eventually, message, numbered


async def test_expired_deliveries_do_not_stall_a_subscription(house: House) -> None:
    """R25: Deliveries expire, and both sides count the same. Revoked ones are granted again, and
    the subscription goes on, however often this happens."""
    queue = await house.queue(attempts_max=0)
    group = await house.group(queue, lease_s=0.03)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, [message(n, f"k{n}") for n in range(2)])
    granted = 2
    for _ in range(4):
        await session.take(granted)
        assert len(session.given) == granted  # never more than was granted
        held = len(session.of_type("revoked"))
        await session.until(lambda: revoked(session) == granted)  # noqa: B023
        assert len(session.of_type("revoked")) >= held
        granted += 2
        consumer.grant(granted)
    for place, _, _ in (await session.take(granted))[-2:]:
        assert await house.confirm(consumer, delivery(place)) == (1, 0)


def revoked(session: object) -> int:
    """Return how many deliveries were revoked."""
    return sum(
        last - first + 1
        for frame in session.of_type("revoked")  # type: ignore[attr-defined]
        for one in frame["deliveries"]
        for first, last in zip(one[3::2], one[4::2], strict=True)
    )


async def test_an_old_grant_says_nothing_new(house: House) -> None:
    """R25: The totals are absolute. A grant that is sent again, or late, adds nothing."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=3)
    await house.publish(queue, numbered(10))
    await session.get(3)
    for total in (3, 2, 0, 4, 4, 3):
        consumer.grant(total)
    assert await session.get(4) == [0, 1, 2, 3]
    await house.publish(queue, [message("wake")])
    assert len(session.bodies) == 4


async def test_credit_has_a_bound(house: House) -> None:
    """P9: At most 10,000 may be open. A larger grant is refused and changes nothing."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=1)
    await house.publish(queue, numbered(3))
    await session.get(1)
    with pytest.raises(Refused, match="limit_reached"):
        consumer.grant(10_002)
    assert len(session.bodies) == 1
    consumer.grant(10_001)
    assert await session.get(3) == [0, 1, 2]


async def test_a_slow_consumer_costs_nobody_else(house: House) -> None:
    """Nothing is dropped. Messages without credit wait in the log of their partitions, and another
    consumer's partitions flow."""
    queue = await house.queue(partitions=8)
    group = await house.group(queue)
    slow, consumer = await house.subscribe(queue, group, credit=1)
    quick, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(80)])
    mine = dict.fromkeys(consumer.owned_partitions, 0)
    states = await house.broker.storage.partitions(queue.queue_id)
    expected = sum(s.messages for s in states if s.partition.number not in mine)
    await quick.get(expected)
    assert len(slow.bodies) == 1
    consumer.grant(1000)
    await slow.get(80 - expected)
    assert sorted(slow.bodies + quick.bodies) == list(range(80))


async def test_a_socket_that_does_not_take_is_given_nothing(house: House) -> None:
    """P9: This lasts until it takes again. Then everything comes in order."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    session.is_writable = False
    await house.publish(queue, numbered(5))
    assert session.bodies == []
    session.is_writable = True
    consumer.pump()
    assert await session.get(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("says", ["ack", "nack", "extend", "started"])
async def test_what_a_client_names_has_arrived(house: House, says: str) -> None:
    """R20: This holds for each way to name it."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    session.is_in_transit = True
    given = delivery(place)
    match says:
        case "ack":
            consumer.ack(given, [], None)
        case "nack":
            consumer.nack(given, None, None)
        case "extend":
            consumer.extend(given, [], None)
        case _:
            consumer.extend([], given, None)
    assert not session.is_in_transit


async def test_the_lease_of_what_is_in_transit_does_not_run(house: House) -> None:
    """R20: It begins on arrival. A delivery that a client names has arrived."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.1)
    session, consumer = await house.subscribe(queue, group, credit=2)
    session.is_in_transit = True
    await house.publish(queue, numbered(2))
    ((place, _, _), _) = await session.take(2)
    (owned,) = consumer.owned_partitions.values()
    pushes = [*owned.delivery.leases.pushes.values()]
    await eventually(lambda: all(push.due_at > push.given_at + 0.35 for push in pushes))
    assert session.of_type("revoked") == []
    assert await house.confirm(consumer, delivery(place)) == (1, 0)
    assert not session.is_in_transit
    await session.until(lambda: revoked(session) == 1)
