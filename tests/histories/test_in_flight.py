"""Histories of a client that grants credit and does not settle. The deliveries that it holds have a
bound (P9)."""

import asyncio
from typing import Any

import pytest

from gateway.delivery.consumer import Consumer
from metadata.catalog import ANYBODY
from tests.histories.house import House, Session, delivery, eventually, message

FULL = 5
"""Number of deliveries that a subscription may hold here."""


@pytest.fixture(autouse=True)
def _tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a low bound, and put off cursor writes, which would wake up all consumers."""
    monkeypatch.setattr("push.limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX", FULL)
    monkeypatch.setattr("gateway.delivery.cursor_writer.FLUSH_AFTER_S", 60)


def waits_for(consumer: Consumer) -> set[str]:
    """Return the reasons for which its partitions wait."""
    return {owned.blocked for owned in consumer.owned_partitions.values()}


async def full(house: House, **settings: Any) -> tuple[Session, Consumer]:
    """Return a subscription with credit that holds as much as it may. Three more messages wait for
    room."""
    queue = await house.queue(attempts_max=0)
    group = await house.group(queue, **settings)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(FULL + 3)])
    await session.take(FULL)
    return session, consumer


def held_at_most(session: Session) -> int:
    """Return the largest number of deliveries that it would have held, had it settled none."""
    held = most = 0
    for frame in session.frames:
        if frame["type"] == "push":
            held += len(frame["messages"])
        elif frame["type"] == "revoked":
            held -= sum(
                last - first + 1
                for _, _, _, *ends in frame["deliveries"]
                for first, last in zip(ends[::2], ends[1::2], strict=True)
            )
        most = max(most, held)
    return most


async def test_what_a_subscription_holds_is_bounded_whatever_it_grants(house: House) -> None:
    """P9: The bound is on the sum over its partitions. At one less than the bound it is given one
    more."""
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(FULL - 1)])
    await session.take(FULL - 1)
    assert "in_flight" not in waits_for(consumer)
    await house.publish(queue, [message("last", "k")])
    await session.take(FULL)
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    await eventually(lambda: "in_flight" in waits_for(consumer))
    for total in (2_000, 9_000):
        consumer.grant(total)
        await house.publish(queue, [message(total)])
        assert len(session.given) == consumer.unsettled() == FULL


async def test_another_subscription_of_the_session_has_a_bound_of_its_own(house: House) -> None:
    """P9: A subscription that holds as much as it may holds up no other."""
    session, _ = await full(house)
    other = await house.queue("other")
    group = await house.group(other)
    await house.subscribe(other, group, session=session)
    await house.publish(other, [message(n, f"k{n}") for n in range(FULL)])
    await session.take(2 * FULL)


@pytest.mark.parametrize("how", ["ack", "confirmed", "in part", "nack"])
async def test_a_full_subscription_goes_on_when_it_settles(house: House, how: str) -> None:
    """P9: It goes on at once, with as many as it has settled or returned, and no more credit."""
    session, consumer = await full(house)
    first, second = (place for place, _, _ in session.given[:2])
    if how == "ack":
        consumer.ack(delivery(first) + delivery(second), [], None)
    elif how == "in part":
        consumer.ack([[*first, first[3], second[3], second[3]]], [], None)
    elif how == "confirmed":
        assert await house.confirm(consumer, delivery(first, second[3])) == (2, 0)
    else:
        consumer.nack(delivery(first) + delivery(second), 60, None)
    assert [body for _, body, _ in (await session.take(FULL + 2))[FULL:]] == [FULL, FULL + 1]
    assert waits_for(consumer) == {"in_flight"}
    assert consumer.unsettled() == FULL
    consumer.ack(delivery(session.given[FULL][0]), [], None)
    assert [body for _, body, _ in (await session.take(FULL + 3))[FULL:]][-1] == FULL + 2
    assert consumer.unsettled() == FULL


async def test_a_full_subscription_goes_on_when_leases_end(house: House) -> None:
    """P9, P6: Deliveries that it never settles come back. Again it is given as much as it may
    hold."""
    session, _ = await full(house, lease_s=0.05)
    await session.take(3 * FULL)
    assert held_at_most(session) == FULL


async def test_a_full_subscription_goes_on_after_a_seek(house: House) -> None:
    """P9: Deliveries of before no longer count."""
    session, consumer = await full(house)
    queue = house.find()
    await house.broker.seek_group(ANYBODY, queue, "billing", "earliest")
    assert [body for _, body, _ in (await session.take(2 * FULL))[FULL:]] == list(range(FULL))
    assert consumer.unsettled() == FULL


async def test_at_most_once_holds_nothing(house: House) -> None:
    """R23: A message settled before it is pushed takes no room."""
    session, consumer = await full(house, semantics="at_most_once")
    await session.take(FULL + 3)
    assert consumer.unsettled() == 0


async def test_what_is_pulled_and_not_settled_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: The bound is on all pulls of the group together. A pull that finds no room waits, and is
    answered when one message is settled."""
    monkeypatch.setattr("push.limits.IN_FLIGHT_PULLED_MAX", FULL)
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    await house.publish(queue, [message(n, f"k{n}") for n in range(FULL + 3)])
    pull = house.broker.pulls.pull
    pulled = await pull(queue, group, FULL - 1, 1)
    async with asyncio.timeout(5):
        while len(pulled) < FULL:  # a pull does not wait to be full, and partitions open in turn
            pulled += await pull(queue, group, 10, 1)
    assert len(pulled) == FULL
    assert await pull(queue, group, 10, 0) == []
    waiting = asyncio.ensure_future(pull(queue, group, 10, 5))
    await house.broker.pulls.ack(queue, group, [pulled[0].receipt, pulled[1].receipt])
    assert len(await waiting) == 2
    assert await pull(queue, group, 10, 0) == []
