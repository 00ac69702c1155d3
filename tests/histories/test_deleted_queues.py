"""Messages that still arrive for a deleted queue go to its dead letters, with their own fields."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.models import Look
from metadata.catalog import ANYBODY, Queue
from push.errors import Refused
from push.message import Message
from tests.histories.house import House, codes, message

ANN = b"producer-ann...."


async def deleted(house: House, name: str = "orders", **settings: Any) -> Queue:
    """Make a queue with a message, and delete it."""
    queue = await house.queue(name, **settings)
    await house.publish(queue, [message("before", "k")])
    return await house.broker.delete_queue(ANYBODY, name)


async def arrives(house: House, messages: list[Message], name: str = "orders", **named: Any) -> Any:
    """Publish as sessions and REST do."""
    queue = await house.broker.queue_for_publish(ANYBODY, name, messages)
    return await house.publish(queue, messages, **named)


async def letters(house: House, name: str) -> list[dict[str, Any]]:
    """Return the messages of this queue."""
    queue = house.find(name)
    group = await house.group(queue, "look")
    session, _ = await house.subscribe(queue, group)
    await asyncio.sleep(0.05)
    return [one for push in session.of_type("push") for one in push["messages"]]


async def test_what_arrives_late_is_a_dead_letter_with_its_reason(house: House) -> None:
    """P1: It is acknowledged, and an operator finds it again. Key, body and headers are unchanged,
    and it has no TTL that would end it there."""
    await deleted(house)
    late = message("late", "k", id="m-1", headers={"h": "x"}, ttl_s=0.001)
    assert await arrives(house, [late]) == [(0, 0, False)]
    await asyncio.sleep(0.01)
    (found,) = await letters(house, "orders.dead-letters")
    assert (found["key"], found["body"], found["id"]) == ("k", "late", "m-1")
    assert found["headers"] == {
        "h": "x",
        "tocsin-dead-letter-reason": "queue_deleted",
        "tocsin-dead-letter-queue": "orders",
        "tocsin-dead-letter-attempts": "0",
    }


async def test_sent_again_it_is_a_duplicate(house: House) -> None:
    """P4: It is one under its id, and under its sequence."""
    await deleted(house)
    late = message(1, "k", id="m-1")
    assert await arrives(house, [late]) == [(0, 0, False)]
    assert await arrives(house, [late]) == [(0, 0, True)]
    numbered = [message(2, "k")]
    for duplicate in (False, True):
        assert await arrives(house, numbered, producer=ANN, sequence=7) == [(0, 1, duplicate)]


async def test_two_queues_with_the_same_dead_letters_keep_theirs_apart(house: House) -> None:
    """R6, R8: Ids and sequences have a meaning only in their own queue."""
    for name in ("one", "two"):
        await deleted(house, name, dead_letter_queue="morgue")
    late = [message(1, "k", id="m-1")]
    assert await arrives(house, late, "one", producer=ANN, sequence=0) == [(0, 0, False)]
    assert await arrives(house, late, "two", producer=ANN, sequence=0) == [(0, 1, False)]


async def test_bad_messages_are_refused_and_make_nothing(house: House) -> None:
    """P12."""
    await deleted(house)
    bad = message(1, "k" * 10_000)
    assert await arrives(house, [bad]) == ["invalid_message"]
    with pytest.raises(Refused):
        house.find("orders.dead-letters")
    assert await arrives(house, [bad, message(2, "k")]) == ["invalid_message", (0, 0, False)]


async def test_a_message_at_the_bounds_of_its_headers_is_buried_all_the_same(house: House) -> None:
    await deleted(house)
    full = message(1, "k", headers={f"h{number}": "x" for number in range(64)})
    assert await arrives(house, [full]) == [(0, 0, False)]


async def test_a_name_that_never_was_is_not_found(house: House) -> None:
    await deleted(house)
    for name in ("other", "orders.dead-letters"):
        with pytest.raises(Refused) as refused:
            await arrives(house, [message(1)], name)
        assert refused.value.code.name == "queue_not_found"


async def test_a_queue_that_is_made_again_takes_its_messages(house: House) -> None:
    await deleted(house)
    await arrives(house, [message(1, "k")])
    again = await house.queue()
    assert await arrives(house, [message(2, "k")]) == [(0, 0, False)]
    assert (await house.lag(again, await house.group(again))) == 1


async def test_what_arrived_can_be_sent_on_to_the_queue_that_is_made_again(house: House) -> None:
    await deleted(house)
    await arrives(house, [message("late", "k")])
    again = await house.queue()
    done = await house.broker.upkeep.redrive(ANYBODY, again, Look(limit=10))
    assert done.messages == 1
    group = await house.group(again)
    session, _ = await house.subscribe(again, group)
    ((_, body, _),) = await session.take(1)
    assert body == "late"


async def test_who_looked_the_queue_up_before_is_answered_as_well(house: House) -> None:
    """A publish was on its way when the queue was deleted. It is refused or buried. The producer's
    next try is buried."""
    queue = await house.queue()
    await house.broker.delete_queue(ANYBODY, "orders")
    answer = await house.submit(queue, [message(1, "k")])
    assert codes(answer) == ["queue_not_found"]
    assert await arrives(house, [message(1, "k")]) == [(0, 0, False)]
    assert codes(await house.submit(queue, [message(2, "k")])) == [(0, 1, False)]


async def test_where_queues_are_made_by_publishing_it_is_made_again(house: House) -> None:
    """The operator asked for this, and it is more visible."""
    await deleted(house)
    house.broker.config = msgspec.structs.replace(house.broker.config, auto_create=True)
    assert (await arrives(house, [message(1, "k")]))[0][1] == 0
    assert house.find("orders").name == "orders"
