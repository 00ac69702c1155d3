"""Dead letters: moved once, whatever happens in between."""

import json
from functools import partial
from typing import Any

import pytest

from metadata.catalog import ANYBODY, QueueSettings
from tests.histories.house import House, delivery, eventually, message
from tests.histories.test_pulling import pull


async def exhausted(house: House, **settings: Any) -> None:
    """One message that exhausts its only attempt."""
    queue = await house.queue(attempts_max=1, **settings)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message("dead", headers={f"h{n}": "x" for n in range(64)})])
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), None, "no")


def commits_are(house: House, count: int) -> bool:
    """Whether there were this many commits."""
    return house.broker.publisher.commits.total == count


def there(house: House, name: str) -> bool:
    """Whether a queue is there."""
    return any(queue.name == name for queue in house.broker.metadata.list_queues(ANYBODY))


async def test_a_move_that_is_repeated_is_one_letter(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: appended, then its owner ends before it was settled, and the next one moves it again. It
    is counted once."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message("dead")])
    for count in range(3):
        _, consumer = await house.subscribe(queue, group, credit=0)
        await eventually(partial(len, consumer.owned_partitions))
        (owned,) = consumer.owned_partitions.values()
        if count < 2:
            monkeypatch.setattr(owned, "dead_lettered", lambda letters: None)
        if not count:
            owned.evict(1)
        await eventually(partial(commits_are, house, 2 + count))
        consumer.leave()
    await eventually(lambda: not owned.delivery.waiting.dead_count)
    assert house.broker.dead_letters.moved_total == 1
    assert house.broker.counting.group(group.group_id).dead_lettered == 1
    session, _ = await house.read(house.find("orders.dead-letters"), start="earliest")
    await house.publish(house.find("orders.dead-letters"), [message("mark")])
    assert await session.get(2) == ["dead", "mark"]


async def test_they_go_to_the_queue_that_the_setting_names(house: House) -> None:
    """And with more headers than a client may give."""
    await exhausted(house, dead_letter_queue="graveyard")
    await eventually(lambda: there(house, "graveyard"))
    await eventually(lambda: house.broker.dead_letters.moved_total == 1)
    session, _ = await house.read(house.find("graveyard"), start="earliest")
    await session.get(1)
    (push,) = session.of_type("push")
    headers = push["messages"][0]["headers"]
    assert len(headers) == 64 + 8
    assert headers["tocsin-dead-letter-nack"] == "no"


@pytest.mark.parametrize("room", [0, 1])
async def test_a_full_dead_letter_queue_holds_the_letter_back(
    house: House, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: it is neither lost nor settled, and moves when there is room."""
    monkeypatch.setattr("gateway.delivery.dead_letters.MOVE_AGAIN_S", 0.02)
    dead, _ = await house.broker.create_queue(
        ANYBODY, "orders.dead-letters", QueueSettings(partitions=1, messages_max=1)
    )
    if not room:
        await house.publish(dead, [message("in the way")])
    await exhausted(house)
    queue = house.find()
    if not room:
        await eventually(lambda: house.broker.publisher.commits.total >= 4)
        described = await house.broker.describe_queue(ANYBODY, "orders")
        assert json.dumps(described["groups"]).count('"lag": 1') == 1
        await house.set_queue("orders.dead-letters", messages_max=2)
    await eventually(lambda: house.broker.dead_letters.moved_total == 1)
    await house.broker.cursor_writer.drain()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    assert await house.lag(queue, group) == 0


async def test_the_dead_letters_of_dead_letters_are_parked(house: House) -> None:
    """The queue that is made for them parks: letters do not wander from queue to queue."""
    await exhausted(house)
    await eventually(lambda: house.broker.dead_letters.moved_total == 1)
    dead = house.find("orders.dead-letters")
    group = await house.group(dead, "undertaker", attempts_max=1, backoff_s=0, backoff_max_s=0)
    session, consumer = await house.subscribe(dead, group)
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), None, None)
    await house.broker.cursor_writer.drain()
    described = await house.broker.describe_group(ANYBODY, dead, "undertaker")
    assert described["keys_parked"] == 1
    assert not there(house, "orders.dead-letters.dead-letters")


async def letters_of(house: House, count: int) -> list[Any]:
    """The bodies of this many dead letters, in their order."""
    await eventually(lambda: house.broker.dead_letters.moved_total == count)
    session, _ = await house.read(house.find("orders.dead-letters"), start="earliest")
    return await session.get(count)


async def test_letters_of_a_key_stand_in_the_order_of_the_log(house: House) -> None:
    """P3: in whichever order one call nacks them."""
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n) for n in range(4)])
    places = [place for place, _, _ in await session.take(4)]
    consumer.nack([[*places[n], places[n][3]] for n in (3, 2, 1, 0)], None, None)
    assert await letters_of(house, 4) == [0, 1, 2, 3]


async def test_letters_of_pulled_messages_stand_in_the_order_of_the_log(house: House) -> None:
    """P3, R24: likewise."""
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    await house.publish(queue, [message(n) for n in range(4)])
    receipts = [one.receipt for one in await pull(house, queue, group)]
    assert len(receipts) == 4
    await house.broker.pulls.nack(queue, group, [receipts[n] for n in (3, 2, 1, 0)], None)
    assert await letters_of(house, 4) == [0, 1, 2, 3]
