"""Histories of explanations. For each reason that a key waits for, the explanation names that
reason.

Times are those of the loop and the wall. Nothing here waits for them to pass.
"""

import asyncio
import time
from typing import Any

import pytest

from gateway.delivery.owned_partition import OwnedPartition
from gateway.models import Explained, KeyInGroup, Look, WhichKey
from gateway.operator import explain as explaining
from gateway.operator.peek import peek
from metadata.catalog import ANYBODY, Queue
from push import limits
from push.errors import Refused
from push.ring import Ring, key_hash
from tests.histories.house import House, Session, delivery, eventually, message, numbered
from tests.histories.test_parking import decide


async def explain(house: House, queue: Queue, key: str = "a", **which: Any) -> Explained:
    """Return the explanation that an operator gets."""
    query = {"group": None, "after": "", **which}
    return await house.broker.explainer.explain(ANYBODY, house.find(queue.name), key, **query)


async def alone(house: House, queue: Queue, key: str = "a") -> KeyInGroup:
    """Return the explanation of the only group."""
    (one,) = (await explain(house, queue, key)).groups
    assert one.text.endswith("."), one.text
    assert one.waits_for not in one.also
    return one


def counted(one: KeyInGroup) -> tuple[int, int]:
    """Return (in flight, waiting)."""
    return one.messages.in_flight, one.messages.waiting


# --- Where it goes -------------------------------------------------------------------------------


async def test_explaining_an_unused_key_says_where_it_would_go(house: House) -> None:
    queue = await house.queue(partitions=7)
    await house.group(queue)
    told = await explain(house, queue, "nobody has published this")
    hashed = key_hash("nobody has published this", queue.hash_key)
    assert told.key_hash == f"{hashed:016x}"
    assert told.partition == Ring(queue.ring_epoch, queue.members).partition(hashed)
    assert told.ring_epoch == queue.ring_epoch
    (one,) = told.groups
    assert (one.waits_for, one.head, counted(one), one.is_exact) == ("nothing", None, (0, 0), True)
    (place,) = await house.publish(queue, [message(0, "nobody has published this")])
    assert isinstance(place, tuple)
    assert place[0] == told.partition


async def test_groups_are_explained_one_by_one_or_page_by_page(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    monkeypatch.setattr(limits, "GROUPS_EXPLAINED_MAX", 2)
    queue = await house.queue()
    for name in ("c", "a", "b"):
        await house.group(queue, name)
    told = await explain(house, queue)
    assert ([one.group for one in told.groups], told.next) == (["a", "b"], "b")
    told = await explain(house, queue, after="b")
    assert ([one.group for one in told.groups], told.next) == (["c"], None)
    told = await explain(house, queue, group="b")
    assert ([one.group for one in told.groups], told.next) == (["b"], None)
    with pytest.raises(Refused, match="group_not_found"):
        await explain(house, queue, group="d")


# --- Why it waits --------------------------------------------------------------------------------


async def test_in_flight_says_with_whom_and_until_when(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue, lease_s=20)
    session, consumer = await house.subscribe(queue, group)
    given_unix_ms = time.time() * 1000
    await house.publish(queue, [message(0, "a"), message(1, "b"), message(2, "a")])
    await session.take(3)
    one = await alone(house, queue)
    assert (one.waits_for, one.also, counted(one)) == ("in_flight", [], (2, 0))
    assert one.owner is not None
    assert (one.owner.consumer, one.owner.session, one.owner.client, one.owner.transport) == (
        consumer.name, session.session_id, session.client, "websocket",
    )  # fmt: skip
    assert one.epoch == next(iter(consumer.owned_partitions.values())).delivery.epoch
    assert one.head is not None
    assert one.head.in_flight is not None
    assert (one.head.offset, one.head.attempts, one.head.in_flight.attempt) == (0, 0, 1)
    assert one.head.id == f"{queue.queue_id}-1-0-0"
    assert one.until_unix_ms == one.head.in_flight.lease_until_unix_ms
    assert abs(one.until_unix_ms - given_unix_ms - 20_000) < 5_000
    assert one.since_unix_ms == one.head.in_flight.given_unix_ms
    consumer.extend(delivery(session.given[0][0]), [], 40)
    later = await alone(house, queue)
    assert 15_000 < (later.until_unix_ms or 0) - one.until_unix_ms < 25_000
    await house.confirm(consumer, delivery(session.given[0][0]))
    behind = await alone(house, queue)
    assert behind.head is not None
    assert (behind.head.offset, counted(behind)) == (2, (1, 0))
    await house.confirm(consumer, delivery(session.given[2][0]))
    assert (await alone(house, queue)).waits_for == "nothing"


async def test_backoff_says_until_when_and_how_often_it_was_tried(house: House) -> None:
    """After its owner has left, the durable state says the same."""
    queue = await house.queue(backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a", id="first"), message(1, "b"), message(2, "a")])
    consumer.nack(delivery((await session.take(3))[0][0]), 50, None)
    due_unix_ms = time.time() * 1000 + 50_000
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.also, counted(one)) == ("backoff", [], (0, 2))
    assert (one.head.offset, one.head.id, one.head.attempts) == (0, "first", 1)
    assert abs((one.until_unix_ms or 0) - due_unix_ms) < 5_000
    await house.broker.upkeep.pause(ANYBODY, "orders", paused=True)
    assert (await alone(house, queue)).also == ["paused"]
    await house.broker.upkeep.pause(ANYBODY, "orders", paused=False)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    rest = await alone(house, queue)
    assert rest.head is not None
    assert (rest.waits_for, rest.also, counted(rest)) == ("backoff", ["no_consumer"], (0, 2))
    assert (rest.head.offset, rest.head.attempts, rest.owner) == (0, 1, None)
    assert abs((rest.until_unix_ms or 0) - due_unix_ms) < 5_000


async def test_parked_says_since_when(house: House) -> None:
    """This holds with an owner, and without one."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(1, "b"), message(2, "a")])
    before_unix_ms = int(time.time() * 1000)
    consumer.nack(delivery((await session.take(3))[0][0]), 0, None)
    await house.broker.cursor_writer.drain()
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, one.head.attempts, counted(one)) == (
        "parked", 0, 1, (0, 2),
    )  # fmt: skip
    assert before_unix_ms <= (one.since_unix_ms or 0) <= time.time() * 1000
    await house.publish(queue, [message(3, "a")])
    await eventually(lambda: next(iter(consumer.owned_partitions.values())).delivery.frontier == 4)
    assert counted(await alone(house, queue)) == (0, 3)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    rest = await alone(house, queue)
    assert rest.head is not None
    assert (rest.waits_for, rest.also, rest.head.offset, counted(rest)) == (
        "parked", ["no_consumer"], 0, (0, 3),
    )  # fmt: skip
    assert rest.since_unix_ms == one.since_unix_ms


async def test_what_is_on_its_way_to_the_dead_letters_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2, "a"))
    arrives = asyncio.Event()

    owned = next(iter(consumer.owned_partitions.values()))
    move = owned._context.move

    async def later(owned: OwnedPartition) -> None:
        await arrives.wait()
        await move(owned)

    monkeypatch.setattr(owned._context, "move", later)
    consumer.nack(delivery((await session.take(2))[0][0]), 0, None)
    await session.take(3)
    one = await alone(house, queue)
    assert (one.waits_for, counted(one), one.messages.dying) == ("in_flight", (1, 0), 1)
    await house.confirm(consumer, delivery(session.given[2][0]))
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, counted(one)) == ("dead_letter", 0, (0, 0))
    arrives.set()
    await eventually(lambda: not owned.delivery.waiting.dead_count)
    assert (await alone(house, queue)).waits_for == "nothing"


async def test_a_full_dead_letter_queue_is_named(house: House) -> None:
    """Each explanation of an unsettled message says that its dead letters are full, even if other
    messages of the key go on."""
    await house.queue("full", messages_max=1)
    await house.group(house.find("full"))
    await house.publish(house.find("full"), [message("first")])
    queue = await house.queue(attempts_max=1, dead_letter_queue="full")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2, "a"))
    consumer.nack(delivery((await session.take(2))[0][0]), 0, None)
    owned = next(iter(consumer.owned_partitions.values()))
    await eventually(lambda: owned.dead_letters_wait is not None)
    await session.take(3)
    one = await alone(house, queue)
    assert one.waits_for == "in_flight"
    assert "queue_full" in one.text
    await house.confirm(consumer, delivery(session.given[2][0]))
    one = await alone(house, queue)
    assert one.waits_for == "dead_letter"
    assert "queue_full" in one.text


async def test_what_is_dying_below_the_floor_is_found_without_an_owner(house: House) -> None:
    """A head that was parked and skipped left its side line, so the floor passes it, and its dead
    letters are full. [The log was read from the floor on: the key waited for nothing, and a peek
    showed no message.]"""
    await house.queue("full", messages_max=1)
    await house.group(house.find("full"))
    await house.publish(house.find("full"), [message("first")])
    queue = await house.queue(attempts_max=1, on_exhausted="park", dead_letter_queue="full")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(1, "b")])
    first, second = [place for place, _, _ in await session.take(2)]
    consumer.nack(delivery(first), 0, None)
    await house.confirm(consumer, delivery(second))
    await house.broker.cursor_writer.drain()
    await decide(house, queue, group, "skip", WhichKey(key="a"))
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    (cursor,) = await house.broker.storage.cursors(queue.queue_id, group.group_id)
    assert (cursor.floor, cursor.aside, cursor.dead) == (2, 0, 1)
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, one.messages.dying) == ("dead_letter", 0, 1)
    seen = await house.broker.upkeep.peek(ANYBODY, queue, Look(limit=10), "billing")
    assert [(shown.offset, shown.state) for shown in seen.messages] == [(0, "dying")]
    # It is unsettled in the figures, too, as what dies in the log is.
    described = await house.broker.describe_group(ANYBODY, queue, group.name)
    assert (described["lag"], described["oldest_unix_ms"] is None) == (1, False)


async def test_a_letter_that_its_dead_letter_queue_can_never_take_is_reported_and_kept(
    house: House,
) -> None:
    """P1: Other letters arrive, and it stays. The reason is not one that waiting changes. A higher
    bound lets it go."""
    await house.queue("small", bytes_max=1000)
    small = house.find("small")
    await house.group(small)
    queue = await house.queue(attempts_max=1, dead_letter_queue="small")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message("x" * 1000, "a"), message("y", "b")])
    for place, _, _ in await session.take(2):
        consumer.nack(delivery(place), 0, None)
    await eventually(lambda: house.broker.dead_letters.moved_total == 1)
    owned = next(iter(consumer.owned_partitions.values()))
    await eventually(lambda: owned.dead_letters_wait is not None)
    one = await alone(house, queue)
    assert one.waits_for == "dead_letter"
    assert "message_too_large" in one.text
    await house.set_queue("small", bytes_max=10_000)
    await eventually(lambda: house.broker.dead_letters.moved_total == 2)
    await eventually(lambda: owned.dead_letters_wait is None)


async def test_what_is_being_made_durable_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: The second attempt waits until the storage has noted the first one."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1, "a"))
    place = (await session.take(1))[0][0]
    storage, go_on = house.broker.storage, asyncio.Event()
    original = storage.write_cursors

    async def later(writes: Any) -> Any:
        await go_on.wait()
        return await original(writes)

    monkeypatch.setattr(storage, "write_cursors", later)
    consumer.nack(delivery(place), 0, None)
    consumer.pump()
    lines = next(iter(consumer.owned_partitions.values())).delivery.waiting.lines.by_key
    try:
        await eventually(lambda: all(line.leaving for line in lines.values()))
        one = await alone(house, queue)
    finally:
        go_on.set()
    assert one.head is not None
    assert (one.waits_for, one.head.offset, one.head.attempts) == ("commit", 0, 1)
    await session.take(2)
    assert (await alone(house, queue)).waits_for == "in_flight"


async def test_credit_goes_to_the_right_message_of_a_line(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, [message(n, key) for n, key in enumerate("bbcca")])
    await session.take(2)
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.also, one.before) == ("credit", ["backlog"], 2)
    assert (one.head.offset, counted(one), one.is_exact) == (4, (0, 1), True)
    first = await alone(house, queue, "c")
    assert (first.waits_for, first.also, first.before) == ("credit", [], None)
    consumer.grant(5)
    await session.take(5)
    assert (await alone(house, queue)).waits_for == "in_flight"


async def test_a_socket_that_takes_no_more_is_said(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await eventually(lambda: consumer.owned_partitions)
    session.is_writable = False
    await house.publish(queue, numbered(1, "a"))
    assert (await alone(house, queue)).waits_for == "socket"
    session.is_writable = True
    consumer.pump()
    await session.take(1)
    assert (await alone(house, queue)).waits_for == "in_flight"


async def test_a_consumer_that_holds_all_it_may_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    monkeypatch.setattr(limits, "IN_FLIGHT_PER_SUBSCRIPTION_MAX", 2)
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [*numbered(2, "b"), message(2, "a")])
    await session.take(2)
    assert (await alone(house, queue)).waits_for == "full"


async def test_no_consumer_and_a_pause_are_said(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message(0, "b"), message(1, "a")])
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.also, one.before) == ("no_consumer", ["backlog"], 1)
    assert (one.head.offset, one.owner, one.epoch) == (1, None, None)
    await house.broker.upkeep.pause(ANYBODY, "orders", paused=True)
    told = await explain(house, queue)
    assert told.paused
    assert (told.groups[0].waits_for, told.groups[0].also) == (
        "paused", ["no_consumer", "backlog"],
    )  # fmt: skip
    _, consumer = await house.subscribe(house.find(), group)
    await eventually(lambda: consumer.owned_partitions)
    here = await alone(house, queue)
    assert (here.waits_for, here.also) == ("paused", ["backlog"])
    assert here.owner is not None


async def test_a_partition_that_moves_is_said_to_drain(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "b")])
    place = (await session.take(1))[0][0]
    owned = next(iter(consumer.owned_partitions.values()))
    owned.drain(asyncio.get_running_loop().time() + 30)
    await house.publish(queue, [message(1, "a")])
    one = await alone(house, queue)
    assert (one.waits_for, one.messages.waiting) == ("draining", 1)
    await house.confirm(consumer, delivery(place))
    await session.take(2)
    assert (await alone(house, queue)).waits_for == "in_flight"


async def test_whoever_is_waited_for_is_said_to_be_absent(durable_house: House) -> None:
    """R22: This lasts, after a restart, until its linger time is up."""
    house = durable_house
    queue = await house.queue(partitions=2)
    group = await house.group(queue)
    stays = Session("s-stays", linger_s=60)
    _, first = await house.subscribe(queue, group, session=stays)
    await eventually(lambda: len(first.owned_partitions) == 2)
    first.leave(moves=True)
    await house.restart()
    other, _ = await house.subscribe(house.find(), group)
    keys = [f"k{n}" for n in range(8)]
    await house.publish(house.find(), [message(n, key) for n, key in enumerate(keys)])
    told = [await alone(house, queue, key) for key in keys]
    assert {one.waits_for for one in told} == {"absent"}
    assert other.given == []


async def test_a_key_of_a_pull_group_that_is_in_flight_is_closed(house: House) -> None:
    """R24: Later messages of it are not given. Without a pull no client takes any."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(3, "a"))
    (pulled,) = await house.broker.pulls.pull(queue, group, 1, 1)
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, counted(one)) == ("in_flight", 0, (1, 2))
    assert one.owner is not None
    assert (one.owner.consumer, one.owner.transport) == ("pulls", "pull")
    await house.broker.pulls.ack(queue, group, [pulled.receipt])
    next_one = await alone(house, queue)
    assert next_one.head is not None
    assert (next_one.waits_for, next_one.head.offset, counted(next_one)) == ("credit", 1, (0, 2))


async def test_two_keys_of_one_hash_are_said_to_wait_for_each_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message before it is of another key, and holds it up all the same."""
    queue = await house.queue()
    await house.group(queue)
    await house.publish(queue, [message(0, "b")])
    same = key_hash("b", queue.hash_key)
    monkeypatch.setattr(explaining, "key_hash", lambda *_: same)
    assert (await alone(house, queue, "a")).waits_for == "behind"
    assert (await alone(house, queue, "b")).waits_for == "no_consumer"


# --- How far it looks ----------------------------------------------------------------------------


async def test_what_one_look_does_not_reach_is_not_known(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: It is never said to be nothing."""
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 4_000)
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 1_000)
    queue = await house.queue()
    group = await house.group(queue)
    for number in range(40):
        await house.publish(queue, [message(number, "b" if number < 3 else f"c{number}")])
    await house.publish(queue, [message("far", "a")])
    far = await alone(house, queue)
    assert (far.waits_for, far.also, far.head, far.is_exact) == (
        "unknown", ["no_consumer"], None, False,
    )  # fmt: skip
    near = await alone(house, queue, "b")
    assert near.head is not None
    assert (near.head.offset, near.is_exact) == (0, False)
    assert 0 < near.messages.waiting < 40
    session, _ = await house.subscribe(queue, group, credit=39)
    await session.take(39)
    here = await alone(house, queue)
    assert here.head is not None
    assert (here.waits_for, here.head.offset, here.is_exact) == ("credit", 40, True)


async def test_a_partition_whose_owner_changes_is_looked_at_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of before and after are never mixed."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1, "a"))
    storage = house.broker.storage
    original, session = storage.read, None

    async def joined(*arguments: Any, **options: Any) -> Any:
        nonlocal session
        if session is None:
            session, _ = await house.subscribe(queue, group)
            await session.take(1)
        return await original(*arguments, **options)

    monkeypatch.setattr(storage, "read", joined)
    one = await alone(house, queue)
    assert (one.waits_for, one.is_exact) == ("in_flight", True)


async def test_what_a_consumer_left_behind_still_waits(durable_house: House) -> None:
    """P1: This is between its end and the next owner's beginning, which may take as long as a
    write."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, numbered(3, "a"))
    given = await session.take(2)
    consumer.extend([], [[*given[0][0], given[0][0][3]]], None)  # begun: its attempt is written
    consumer.leave()
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, one.head.attempts) == ("draining", 0, 1)
    assert (counted(one), one.is_exact) == ((0, 3), True)
    look = Look(limit=10)
    peeked = (await peek(house.broker.storage, house.broker.groups, queue, look, group)).messages
    assert [(shown.offset, shown.state) for shown in peeked] == [
        (0, "ready"), (1, "ready"), (2, "ready"),
    ]  # fmt: skip
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    rest = await alone(house, queue)
    assert rest.head is not None
    assert (rest.waits_for, rest.head.offset, counted(rest)) == ("no_consumer", 0, (0, 3))


@pytest.mark.parametrize("credit", [0, 10])
async def test_a_backoff_that_an_owner_before_noted_is_said(house: House, credit: int) -> None:
    """R3: This holds whether or not its next owner has reached it."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2, "a"))
    begun = time.time()
    consumer.nack(delivery((await session.take(1))[0][0]), 1000, None)
    consumer.leave()
    _, consumer = await house.subscribe(queue, group, credit=credit)
    await eventually(lambda: consumer.owned_partitions)
    owned = next(iter(consumer.owned_partitions.values()))
    await eventually(lambda: owned.delivery.frontier == (2 if credit else 0))
    one = await alone(house, queue)
    assert one.head is not None
    assert (one.waits_for, one.head.offset, one.head.attempts) == ("backoff", 0, 1)
    assert begun + 999 < (one.until_unix_ms or 0) / 1000 <= time.time() + 1000
    assert one.also == ([] if credit else ["credit"])


async def test_a_partition_with_as_many_keys_waiting_as_may_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: This is tested on both sides of the bound. No message of the log goes out, even if there
    is room."""
    monkeypatch.setattr(limits, "LINES_PER_PARTITION_MAX", 2)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "x"), message(1, "y")])
    given = await session.take(2)
    consumer.nack(delivery(given[0][0]), 1000, None)
    await house.publish(queue, numbered(1, "a"))
    await session.take(3)
    consumer.nack(delivery(given[1][0]), 1000, None)
    await house.publish(queue, numbered(1, "b"))
    await eventually(lambda: next(iter(consumer.owned_partitions.values())).delivery.end == 4)
    one = await alone(house, queue, "b")
    assert one.head is not None
    assert (one.waits_for, one.also, one.head.offset) == ("gate", [], 3)
    held = await alone(house, queue, "x")
    assert (held.waits_for, held.also) == ("backoff", [])
