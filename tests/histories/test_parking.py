"""Histories of parked keys and operators: retry, skip, release (R17, R18, P1, P3)."""

import asyncio
from typing import Any

import pytest

from gateway.delivery.consumer import Consumer
from gateway.models import ParkedKey, WhichKey
from gateway.stores.backup import Backups
from gateway.stores.restore import restore, verify
from metadata.catalog import ANYBODY, Group, Queue
from metadata.catalog_service import CatalogService
from push.errors import Refused
from push.places import Verb
from storage.sqlite.store import SqliteStorage
from tests.histories.house import House, Session, delivery, eventually, message

STUCK = WhichKey(key="stuck")


async def parked(house: House, queue: Queue, group: Group) -> list[ParkedKey]:
    """Return the parked keys, once they are durable."""
    await house.broker.cursor_writer.drain()
    return (await house.broker.parking.list_keys(queue, group, 100)).keys


async def stuck(
    house: House, count: int = 3, **settings: Any
) -> tuple[Queue, Group, Session, Consumer]:
    """Park the key `stuck` of a queue, with the bodies 0, 1, … in its line."""
    queue = await house.queue(**{"on_exhausted": "park", "attempts_max": 1, **settings})
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(number, "stuck") for number in range(count)])
    given = await session.take(count)
    consumer.nack(delivery(given[0][0]), None, None)
    (line,) = await parked(house, queue, group)
    assert (line.offset, line.messages, line.attempts) == (0, count, 1)
    session.frames.clear()
    return queue, group, session, consumer


async def decide(
    house: House, queue: Queue, group: Group, verb: Verb, which: WhichKey = STUCK
) -> list[ParkedKey]:
    """Decide about parked keys. The decision is durable when this returns."""
    return (await house.broker.parking.decide(queue, group, verb, which)).keys


async def drink(session: Session, consumer: Consumer, count: int) -> list[Any]:
    """Ack `count` messages as they come. Return their bodies."""
    done = 0
    while done < count:
        given = await session.take(done + 1)
        consumer.ack(delivery(given[done][0]), [], None)
        done += 1
    return [body for _, body, _ in session.given]


async def dead_letters(house: House, count: int) -> list[tuple[Any, str]]:
    """Wait for `count` messages in the dead-letter queue. Return (body, reason) of each."""
    await eventually(lambda: house.broker.dead_letters.moved_total >= count)
    reader, _ = await house.read(house.find("orders.dead-letters"), start="earliest")
    await reader.get(count)
    return [
        (one["body"], one["headers"]["tocsin-dead-letter-reason"])
        for frame in reader.of_type("push")
        for one in frame["messages"]
    ]


async def test_what_is_parked_is_listed_with_its_key(house: House) -> None:
    queue, group, _, _ = await stuck(house)
    await house.publish(queue, [message(9, None)])
    (line,) = await parked(house, queue, group)
    assert (line.key, line.partition, line.reason) == ("stuck", 0, "exhausted")
    assert line.since_unix_ms > house.broker.started_unix_ms - 1000
    listed = await house.broker.parking.list_keys(queue, group, 1)
    assert listed.keys_parked == 1


@pytest.mark.parametrize("verb", ["retry", "release"])
async def test_a_key_that_is_retried_or_released_goes_on_in_order(house: House, verb: Verb) -> None:
    """P3, P1: Every message of it comes, once, in order, including those that joined while it was
    parked."""
    queue, group, session, consumer = await stuck(house)
    await house.publish(queue, [message(number, "stuck") for number in (3, 4)])
    (line,) = await decide(house, queue, group, verb)
    assert (line.key, line.offset) == ("stuck", 0)
    assert await drink(session, consumer, 5) == [0, 1, 2, 3, 4]
    assert [attempt for _, _, attempt in session.given] == [1] * 5
    await house.broker.cursor_writer.drain()
    assert await house.lag(queue, group) == 0
    assert await parked(house, queue, group) == []


async def test_a_retry_that_fails_parks_the_key_again_after_one_attempt(house: House) -> None:
    queue, group, session, consumer = await stuck(house)
    await house.group(queue, attempts_max=5)
    consumer.leave()
    session, consumer = await house.subscribe(queue, group)
    await decide(house, queue, group, "retry")
    (given,) = await session.take(1)
    consumer.nack(delivery(given[0]), 0, None)
    (line,) = await parked(house, queue, group)
    assert (line.offset, line.messages, line.attempts) == (0, 3, 1)
    assert session.bodies == [0]


async def test_a_released_key_has_all_its_attempts_again(house: House) -> None:
    queue, group, session, consumer = await stuck(house)
    await house.group(queue, attempts_max=2)
    consumer.leave()
    session, consumer = await house.subscribe(queue, group)
    await decide(house, queue, group, "release")
    for attempt in (1, 2):
        given = (await session.take(attempt))[-1]
        assert (given[1], given[2]) == (0, attempt)
        consumer.nack(delivery(given[0]), 0, None)
    (line,) = await parked(house, queue, group)
    assert (line.offset, line.attempts) == (0, 2)


async def test_a_skipped_head_is_in_the_dead_letters_and_the_rest_goes_on(
    house: House,
) -> None:
    """P1, P3."""
    queue, group, session, consumer = await stuck(house)
    (line,) = await decide(house, queue, group, "skip")
    assert line.offset == 0
    assert await dead_letters(house, 1) == [(0, "skipped")]
    assert await drink(session, consumer, 2) == [1, 2]
    assert await parked(house, queue, group) == []


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
async def test_without_a_consumer_a_decision_is_carried_out_all_the_same(
    house: House, verb: Verb
) -> None:
    """No consumer owns the partition. The next one finds the decision made, and messages come in
    order (P3)."""
    queue, group, _, consumer = await stuck(house)
    consumer.leave()
    await house.publish(queue, [message(3, "stuck")])
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    await decide(house, queue, group, verb)
    assert await parked(house, queue, group) == []
    session, consumer = await house.subscribe(queue, group)
    left = [1, 2, 3] if verb == "skip" else [0, 1, 2, 3]
    assert await drink(session, consumer, len(left)) == left


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
async def test_a_decision_outlives_the_broker(durable_house: House, verb: Verb) -> None:
    """An answered decision is durable. A broker that starts again goes on from it."""
    house = durable_house
    queue, group, _, _ = await stuck(house)
    await decide(house, queue, group, verb)
    await house.restart()
    session, consumer = await house.subscribe(house.find(), group)
    left = [1, 2] if verb == "skip" else [0, 1, 2]
    assert await drink(session, consumer, len(left)) == left
    assert await parked(house, queue, group) == []


async def test_what_a_side_line_brings_and_is_exhausted_is_parked_durably(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18, R19: Two handlers of a key have died with their consumer. An operator skips the head.
    The next message comes from the side line and parks the key again, after everything else is
    done."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(number, "stuck") for number in range(2)])
    for one in await session.take(2):
        consumer.start(delivery(one[0]))
    consumer.leave()
    _, consumer = await house.subscribe(queue, group)
    is_moved, read_side = asyncio.Event(), house.broker.storage.read_side

    async def after_that(*arguments: Any) -> tuple[int, ...]:
        await is_moved.wait()
        return await read_side(*arguments)

    monkeypatch.setattr(house.broker.storage, "read_side", after_that)

    async def heads() -> list[int | None]:
        return [one.offset for one in await parked(house, queue, group)]

    async with asyncio.timeout(10):
        while await heads() != [0]:  # noqa: ASYNC110 (nobody sets an event for it)
            await asyncio.sleep(0.002)
        await decide(house, queue, group, "skip")
        (owned,) = consumer.owned_partitions.values()
        while owned.delivery.dead_count or owned.delivery.is_writing:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        is_moved.set()
        while await heads() != [1]:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
async def test_what_is_parked_comes_back_with_a_backup_and_can_be_decided(
    durable_house: House, verb: Verb
) -> None:
    """R30: The backup is from before the decision, and does not contain it. Messages come in order
    (P3), once."""
    house = durable_house
    queue, group, _, _ = await stuck(house)
    await house.publish(queue, [message(3, "free")])
    (before,) = await parked(house, queue, group)
    assert isinstance(house.broker.metadata.inner, CatalogService)
    assert isinstance(house.broker.storage, SqliteStorage)
    backups = Backups(house.broker.metadata.inner, house.broker.storage)
    await backups.make(house.folder / "backup", lambda *_: None)
    await decide(house, queue, group, verb)
    await house.stop()
    verified = verify(house.folder / "backup", lambda *_: None)
    assert (verified.findings, verified.rows["side"], verified.rows["parked"]) == ([], 3, 1)
    restore(house.folder / "backup", house.folder / "restored", lambda *_: None)
    house.folder /= "restored"
    await house.open()
    assert await parked(house, queue, group) == [before]
    await decide(house, queue, group, verb)
    session, consumer = await house.subscribe(house.find(), group)
    given = await drink(session, consumer, 3 if verb == "skip" else 4)
    assert sorted(given) == ([1, 2, 3] if verb == "skip" else [0, 1, 2, 3])
    assert [body for body in given if body != 3] == sorted({*given} - {3})
    assert await parked(house, queue, group) == []


async def test_a_decision_that_was_lost_on_the_way_is_carried_out_anew(house: House) -> None:
    """The storage's answer is lost, whether or not the write was applied. The same write goes
    again."""
    if house.kind != "memory":
        pytest.skip("only the storage in memory loses answers at will")
    queue, group, session, consumer = await stuck(house)
    for applied in (True, False):
        house.memory.lose_next_answer(applied=applied)
        await decide(house, queue, group, "retry")
        given = session.given or await session.take(1)
        consumer.nack(delivery(given[-1][0]), 0, None)
        assert [line.offset for line in await parked(house, queue, group)] == [0]
        session.frames.clear()


async def test_a_second_retry_finds_nothing_parked_and_changes_nothing(house: House) -> None:
    queue, group, session, consumer = await stuck(house)
    await decide(house, queue, group, "retry")
    with pytest.raises(Refused, match="not_parked"):
        await decide(house, queue, group, "retry")
    assert await drink(session, consumer, 3) == [0, 1, 2]


async def test_two_retries_at_once_are_one(house: House) -> None:
    queue, group, session, consumer = await stuck(house)
    answers = await asyncio.gather(
        *(decide(house, queue, group, "retry") for _ in range(2)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [str(error)[:10] for error in refused] == ["not_parked"]
    assert await drink(session, consumer, 3) == [0, 1, 2]


async def test_what_is_not_parked_cannot_be_decided(house: House) -> None:
    queue, group, _, _ = await stuck(house)
    (line,) = await parked(house, queue, group)
    for which in (WhichKey(key="free"), WhichKey(key_hash=int(line.key_hash, 16) ^ 1)):
        with pytest.raises(Refused, match="not_parked"):
            await decide(house, queue, group, "release", which)
    assert await parked(house, queue, group) == [line]


async def test_a_message_without_a_key_is_named_by_its_hash(house: House) -> None:
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, None)])
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    (line,) = await parked(house, queue, group)
    assert line.key is None
    await decide(house, queue, group, "retry", WhichKey(key_hash=int(line.key_hash, 16)))
    assert [body for _, body, _ in await session.take(2)] == [0, 0]


async def test_all_are_released_at_once(house: House) -> None:
    """The keys are in several partitions, and have one answer."""
    queue = await house.queue(on_exhausted="park", attempts_max=1, partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(12)])
    for place, _, _ in await session.take(12):
        consumer.nack(delivery(place), 0, None)
    assert len(await parked(house, queue, group)) == 12
    done = await house.broker.parking.decide(queue, group, "release", WhichKey(every=True))
    assert {key.key for key in done.keys} == {f"k{n}" for n in range(12)}
    assert done.keys_parked == 0
    assert sorted(body for _, body, _ in (await session.take(24))[12:]) == list(range(12))
    assert (await house.broker.describe_group(ANYBODY, queue, "billing"))["keys_parked"] == 0
