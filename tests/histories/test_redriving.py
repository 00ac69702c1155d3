"""Histories of dead letters that go back (P1, R7, R8): once, in order, whatever happens between."""

import asyncio
from typing import Any

import pytest

from gateway.models import FoundDeadLetter, Look, Place
from gateway.operator.redrive import GROUP
from metadata.catalog import ANYBODY, Queue, QueueSettings
from push.errors import Refused, Unknown
from push.message import Message, encode_message
from tests.histories.house import House, delivery, eventually, message

DEAD = "orders.dead-letters"


async def bury(house: House, queue: Queue, messages: list[Message], **nack: Any) -> None:
    """Let each message exhaust its only attempt in the group `billing`, and go to the dead
    letters."""
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    before = house.broker.dead_letters.moved_total
    await house.publish(queue, messages)
    nacked = 0

    def buried() -> bool:
        nonlocal nacked
        given = session.given
        for place, _, _ in given[nacked:]:  # those that return with an earlier one come again
            consumer.nack(delivery(place), 0, nack.get("reason"))
        nacked = len(given)
        return house.broker.dead_letters.moved_total == before + len(messages)

    await eventually(buried)
    await house.broker.cursor_writer.drain()
    consumer.leave()


async def dead(house: House, queue: Queue, **look: Any) -> list[FoundDeadLetter]:
    """Return the dead letters that have not gone back."""
    found = await house.broker.upkeep.dead_letters(ANYBODY, queue, Look(**{"limit": 100, **look}))
    return found.messages


async def redrive(house: House, queue: Queue, **look: Any) -> int:
    """Redrive. Return how many went back, durably."""
    wanted = Look(**{"limit": 1000, **look})
    return (await house.broker.upkeep.redrive(ANYBODY, queue, wanted)).messages


async def stands(house: House, queue: Queue) -> list[tuple[Any, str | None]]:
    """Return (body, key) of the messages in the queue, in order."""
    found = await house.broker.upkeep.peek(ANYBODY, queue, Look(limit=1000), None)
    assert found.next is None
    return [(int(bytes(one.body or b"")), one.key) for one in found.messages]


async def mortal(house: House, **settings: Any) -> Queue:
    """Make a queue whose messages die of one failed attempt, and are kept for readers."""
    return await house.queue(attempts_max=1, retention_s=3600, **settings)


async def test_while_the_first_letter_s_queue_is_being_made_there_are_none(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await mortal(house)
    storage, begun, go_on = house.broker.storage, asyncio.Event(), asyncio.Event()
    original = storage.create_queue

    async def late(queue_id: str, partitions: int) -> None:
        begun.set()
        await go_on.wait()
        await original(queue_id, partitions)

    monkeypatch.setattr(storage, "create_queue", late)
    burying = asyncio.create_task(bury(house, queue, [message(1, "k")]))
    await begun.wait()
    assert await dead(house, queue) == []
    assert await redrive(house, queue) == 0
    go_on.set()
    await burying
    assert [letter.key for letter in await dead(house, queue)] == ["k"]


async def test_dead_letters_say_where_they_come_from_and_why(house: House) -> None:
    queue = await mortal(house)
    assert await dead(house, queue) == []
    await bury(house, queue, [message(7, "a", id="7d9f", headers={"h": "x"})], reason="declined")
    await bury(house, queue, [message(8, None)])
    one, other = await dead(house, queue)
    assert (one.reason, one.attempts, one.nack) == ("exhausted", 1, "declined")
    assert (one.key, one.id, bytes(one.body or b""), one.headers) == ("a", "7d9f", b"7", {"h": "x"})
    assert (one.origin.queue, one.origin.group) == ("orders", "billing")
    assert (one.origin.partition, one.origin.offset, one.partition, one.offset) == (0, 0, 0, 0)
    assert (other.id, other.key, other.headers) == (f"{queue.queue_id}-1-0-1", None, None)
    assert (other.origin.offset, other.offset, other.nack) == (1, 1, None)
    assert await dead(house, queue, key="a") == [one]
    assert await dead(house, queue, reason="expired") == []
    first = await house.broker.upkeep.dead_letters(ANYBODY, queue, Look(limit=1))
    assert (first.queue, first.messages, first.next) == (DEAD, [one], "0-1")
    assert await dead(house, queue, after=Place(0, 1)) == [other]


async def test_what_goes_back_is_the_message_that_it_was(house: House) -> None:
    """P2: Key, id, body and headers are the same. It has a new offset and a first attempt, for
    every group. Its id is remembered from the first time, and does not make it a duplicate."""
    queue = await mortal(house)
    fields = {"content_type": "text/x", "headers": {"trace": "a1b2"}, "sent_unix_ms": 5}
    await bury(house, queue, [message({"n": 1.50}, "a", id="7d9f", **fields)])
    assert await redrive(house, queue) == 1
    reader, _ = await house.read(queue, start="earliest")
    await reader.until(lambda: len(reader.of_type("push")) == 2)
    original, back = (frame["messages"][0] for frame in reader.of_type("push"))
    assert original == back
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await session.until(lambda: session.of_type("push"))
    (push,) = session.of_type("push")
    assert (push["offset"], push.get("attempt", 1), push["messages"]) == (1, 1, [back])
    assert await dead(house, queue) == []
    assert await redrive(house, queue) == 0


async def test_letters_of_a_key_go_back_in_their_order(house: House) -> None:
    """P3: This holds over several batches and calls."""
    queue = await mortal(house, partitions=4)
    await bury(house, queue, [message(n, f"k{n % 3}") for n in range(24)])
    assert await redrive(house, queue, limit=5) == 5
    assert await redrive(house, queue, limit=1000) == 19
    bodies = (await stands(house, queue))[:]
    for key in ("k0", "k1", "k2"):
        line = [body for body, its in bodies if its == key]
        assert line[8:] == line[:8] == sorted(line[:8])


async def test_some_go_back_and_the_others_stay(house: House) -> None:
    """The choice is by key, by reason or by number. The others go later, or never."""
    queue = await mortal(house)
    await bury(house, queue, [message(0, "a"), message(1, "b"), message(2, "a")])
    await house.publish(house.find(DEAD), [message(9, "a", headers={"no": "letter"})])
    assert await redrive(house, queue, reason="expired") == 0
    assert await redrive(house, queue, key="a", limit=1) == 1
    assert [one.key for one in await dead(house, queue)] == ["b", "a"]
    assert await redrive(house, queue, key="a") == 1
    assert await redrive(house, queue, key="a") == 0
    assert await redrive(house, queue, reason="exhausted") == 1
    assert [body for body, _ in await stands(house, queue)] == [0, 1, 2, 0, 2, 1]


async def test_queues_that_share_dead_letters_get_their_own_back(house: House) -> None:
    one = await mortal(house, name="one", dead_letter_queue="graveyard")
    two = await mortal(house, name="two", dead_letter_queue="graveyard")
    await bury(house, one, [message(1)])
    await bury(house, two, [message(2)])
    assert [letter.origin.queue for letter in await dead(house, two)] == ["two"]
    assert await redrive(house, two) == 1
    assert [body for body, _ in await stands(house, two)] == [2, 2]
    assert len(await dead(house, one)) == 1


@pytest.mark.parametrize("key", ["a", None], ids=["keyed", "keyless"])
async def test_a_redrive_that_dies_between_append_and_settle_doubles_nothing(
    durable_house: House, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """R8: The messages are in the queue, and the letters are not settled. The broker ends there and
    is started again, and the redrive is run again."""
    house = durable_house
    queue = await mortal(house, partitions=3)
    await bury(house, queue, [message(n, key) for n in range(4)])
    redriving = house.broker.upkeep._redriver

    async def dies(*_: object) -> None:
        raise Unknown("killed here")

    monkeypatch.setattr(redriving, "settle", dies)
    with pytest.raises(Unknown):
        await redrive(house, queue)
    assert len(await stands(house, queue)) == 8
    assert len(await dead(house, queue)) == 4
    await house.restart()
    assert await redrive(house, house.find()) == 4
    assert sorted(body for body, _ in await stands(house, house.find())) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert await dead(house, house.find()) == []


async def test_an_append_whose_answer_is_lost_is_made_once(house: House) -> None:
    if house.kind != "memory":
        pytest.skip("only the storage in memory loses answers at will")
    queue = await mortal(house)
    await bury(house, queue, [message(n) for n in range(3)])
    for applied in (False, True):
        house.memory.lose_next_answer(applied=applied)
        with pytest.raises(Unknown):
            await redrive(house, queue)
    assert await redrive(house, queue) == 3
    assert [body for body, _ in await stands(house, queue)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("lacks", "code"), [(0, "queue_full"), (1, "message_too_large")])
async def test_a_full_queue_takes_the_first_ones_and_keeps_the_order(
    house: House, lacks: int, code: str
) -> None:
    """R7, P3: A later one of the key that would still fit does not overtake. Nothing is lost, and
    the error says how far it came. It says as well whether waiting helps. A letter that is a byte
    larger than the queue allows never goes back before the bound is raised."""
    queue = await mortal(house)
    await bury(house, queue, [message(n) for n in (0, int("1" * 700), 2, 3)])
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    large = (await dead(house, queue))[1]
    size = len(encode_message(message(int("1" * 700), id=large.id)))
    queue = await house.set_queue(bytes_max=size - lacks)
    with pytest.raises(Refused, match="1 messages went back, and then") as refused:
        await redrive(house, queue)
    assert refused.value.code.name == code
    assert [one.offset for one in await dead(house, queue)] == [1, 2, 3]
    with pytest.raises(Refused, match=code):
        await redrive(house, queue)
    queue = await house.set_queue(bytes_max=0)
    assert await redrive(house, queue) == 3
    assert [body for body, _ in await stands(house, queue)] == [0, int("1" * 700), 2, 3]


async def test_the_group_that_carries_the_position_is_not_redriven_under_a_consumer(
    house: House,
) -> None:
    """Messages that its consumers settle would count as sent back."""
    queue = await mortal(house)
    await bury(house, queue, [message(5)])
    graveyard = house.find(DEAD)
    group = await house.group(graveyard, GROUP)
    _, consumer = await house.subscribe(graveyard, group, credit=0)
    with pytest.raises(Refused, match="has consumers"):
        await redrive(house, queue)
    consumer.leave()
    assert await redrive(house, queue) == 1


async def test_no_id_of_a_client_is_taken_for_a_letter(house: House) -> None:
    """R8, P1: A message with the very id under which a letter goes back does not keep it out."""
    queue = await mortal(house)
    await bury(house, queue, [message(0, "a")])
    name = f"{house.find(DEAD).queue_id}-1-0-0"
    await house.publish(queue, [message(1, "a", id=name)])
    assert await redrive(house, queue) == 1
    assert [body for body, _ in await stands(house, queue)] == [0, 1, 0]


async def test_two_redrives_at_once_are_one(house: House) -> None:
    queue = await mortal(house)
    await bury(house, queue, [message(n) for n in range(5)])
    assert sum(await asyncio.gather(*(redrive(house, queue) for _ in range(3)))) == 5
    assert len(await stands(house, queue)) == 10


async def test_a_redrive_whose_caller_leaves_is_finished(house: House) -> None:
    """Appended letters are settled, too, so no later redrive finds them."""
    queue = await mortal(house)
    await bury(house, queue, [message(n) for n in range(5)])
    task = asyncio.ensure_future(redrive(house, queue))
    await eventually(lambda: house.broker.upkeep._redriver._sequence)
    task.cancel()
    await house.broker.changes.finish()
    assert await dead(house, queue) == []
    assert len(await stands(house, queue)) == 10


async def test_letters_that_went_back_leave_the_dead_letters(house: House) -> None:
    """R12: No other group wants them. Those that stay are kept."""
    queue = await mortal(house)
    await bury(house, queue, [message(0, "a")])
    await bury(house, queue, [message(1, "b")])
    assert await redrive(house, queue, key="a") == 1
    await house.broker.janitor.look()
    found = await house.broker.upkeep.peek(ANYBODY, house.find(DEAD), Look(limit=10), None)
    assert [one.offset for one in found.messages] == [1]


async def test_what_dies_again_is_a_letter_again(house: House) -> None:
    """The origin is new, and is once more in the headers."""
    queue = await mortal(house)
    await bury(house, queue, [message(0, "a", id="i")])
    assert await redrive(house, queue) == 1
    await bury(house, queue, [])
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    await eventually(lambda: house.broker.dead_letters.moved_total == 2)
    (again,) = await dead(house, queue)
    assert (again.id, again.origin.offset, again.headers) == ("i", 1, None)
    assert await redrive(house, queue) == 1


async def test_a_letter_that_died_among_the_dead_letters_goes_back_the_way_it_came(
    house: House,
) -> None:
    """P1: It goes to the first dead-letter queue with the origin that it had there, and from there
    to the first queue."""
    queue = await mortal(house)
    first = await house.queue(DEAD, attempts_max=1, dead_letter_queue="second")
    await bury(house, queue, [message(0, "a", id="i", headers={"own": "x"})])
    undertaker = await house.group(first, "undertaker")
    session, consumer = await house.subscribe(first, undertaker)
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    await eventually(lambda: house.broker.dead_letters.moved_total == 2)
    consumer.leave()
    (letter,) = await dead(house, first)
    assert [one.queue for one in (*letter.earlier, letter.origin)] == [queue.name, first.name]
    assert await redrive(house, first) == 1
    *_, back = await dead(house, queue)
    assert (back.id, back.origin.queue, back.headers) == ("i", queue.name, {"own": "x"})
    assert back.offset == 1, "it is another letter than the one that died there"


async def test_without_dead_letters_nothing_goes_back(house: House) -> None:
    queue = await mortal(house)
    assert await redrive(house, queue) == 0
    await house.broker.create_queue(ANYBODY, DEAD, QueueSettings(partitions=1))
    assert await redrive(house, queue) == 0
