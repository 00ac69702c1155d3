"""Histories of a key of which messages wait. All lists of one moment give the same count (P9)."""

import pytest

from metadata.catalog import ANYBODY, Group, Queue
from push import limits
from tests.histories.house import House, delivery, eventually, message
from tests.histories.test_parking import parked, stuck

MINUTE_S = 60.0


async def told(house: House, queue: Queue, group: Group) -> list[tuple[int, bool]]:
    """Return (messages, whether that is exact) of the key `stuck`, from the list of parked keys,
    from that of held keys, and from its explanation."""
    park = (await house.broker.parking.list_keys(queue, group, 10)).keys
    held = (await house.broker.waiting_keys.list_keys(queue, group, 10, None)).keys
    explained = await house.broker.explainer.explain(ANYBODY, queue, "stuck", group.name, "")
    (one,) = explained.groups
    found = [(key.messages, key.is_exact) for key in park if key.key == "stuck"]
    found += [(key.messages, key.is_exact) for key in held if key.key == "stuck"]
    return [*found, (one.messages.waiting, one.is_exact)]


async def test_what_its_owner_came_across_is_counted_before_it_is_durable(house: House) -> None:
    queue, group, _, consumer = await stuck(house)
    await house.publish(queue, [message(number, "stuck") for number in range(4)])
    (owned,) = consumer.owned_partitions.values()
    await eventually(lambda: owned.delivery.frontier == 7)
    assert await told(house, queue, group) == [(7, True)] * 3


async def test_what_no_owner_came_across_is_counted_in_the_log(house: House) -> None:
    """The consumer takes nothing more, and later there is no consumer."""
    queue, group, _, consumer = await stuck(house)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    more = [message(n, key) for n in range(2) for key in ("stuck", "another", None)]
    await house.publish(queue, more)
    assert await told(house, queue, group) == [(5, True)] * 3
    session, consumer = await house.subscribe(queue, group, credit=1)
    await session.take(1)
    await house.publish(queue, more)
    (owned,) = consumer.owned_partitions.values()
    assert owned.delivery.frontier < owned.delivery.end
    assert await told(house, queue, group) == [(7, True)] * 3


async def test_a_count_that_a_look_cannot_finish_is_said_to_be_none(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, group, _, consumer = await stuck(house)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    for number in range(4):
        await house.publish(queue, [message(number, "stuck")])
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "COUNT_BYTES_MAX", 1)
    assert {is_exact for _, is_exact in await told(house, queue, group)} == {False}
    assert all(3 < count < 7 for count, _ in await told(house, queue, group))
    monkeypatch.undo()
    assert await told(house, queue, group) == [(7, True)] * 3


async def test_loose_messages_are_counted_one_by_one(house: House) -> None:
    """Each is a line of its own. Other messages without a key do not wait for it."""
    queue = await house.queue(backoff_s=MINUTE_S, backoff_max_s=MINUTE_S)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(number, None) for number in range(3)])
    for where, _, _ in (await session.take(3))[:2]:
        consumer.nack(delivery(where), MINUTE_S, None)
    await house.broker.cursor_writer.drain()
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    held = (await house.broker.waiting_keys.list_keys(queue, group, 10, None)).keys
    assert [(key.messages, key.is_exact) for key in held] == [(1, True)] * 2


async def test_a_parked_key_says_when_its_first_message_expires(house: House) -> None:
    queue, group, _, _ = await stuck(house, message_ttl_s=MINUTE_S)
    (line,) = await parked(house, queue, group)
    explained = await house.broker.explainer.explain(ANYBODY, queue, "stuck", group.name, "")
    head = explained.groups[0].head
    assert head is not None
    assert line.expires_unix_ms is not None
    assert line.expires_unix_ms == head.expires_unix_ms
    queue, group, _, _ = await stuck(house, name="lasting")
    assert (await parked(house, queue, group))[0].expires_unix_ms is None
