"""Histories of deliveries: numbers, gates, attempts, caps, acks (R16-R21, P3, P5, P6)."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from metadata.catalog import ANYBODY
from push.errors import Refused
from tests.histories.house import Frame, House, delivery, eventually, message, numbered


async def test_numbers_restart_under_a_higher_epoch(house: House) -> None:
    """R16: A new owner counts from 1 again. Its epoch tells its deliveries from those of before."""
    queue = await house.queue()
    group = await house.group(queue)
    first, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    await house.publish(queue, numbered(1, first=1))
    given = await first.take(2)
    consumer.leave()
    second, _ = await house.subscribe(queue, group)
    again = await second.take(2)
    assert [body for _, body, _ in again] == [0, 1]
    assert min(place[1] for place, _, _ in again) > max(place[1] for place, _, _ in given)
    assert again[0][0][2] == 1


async def test_epochs_grow_over_a_restart(durable_house: House) -> None:
    """R15, R16: Messages given before the restart cannot be settled after it."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((before, _, _),) = await session.take(1)
    await house.restart()
    session, consumer = await house.subscribe(house.find(), group)
    ((after, _, _),) = await session.take(1)
    assert after[1] > before[1]
    assert await house.confirm(consumer, delivery(before)) == (0, 1)
    assert await house.confirm(consumer, delivery(after)) == (1, 0)


async def test_a_redelivery_has_its_attempt_recorded_first(house: House) -> None:
    """R16: When the frame arrives, the attempt is in the store, whatever happens next."""
    queue = await house.queue()
    group = await house.group(queue, backoff_s=0, backoff_max_s=0)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), None, None)
    await session.take(2)
    assert session.given[1][2] == 2
    consumer.leave()
    other, _ = await house.subscribe(queue, group)
    await other.take(1)
    assert other.given[0][2] == 2  # the nack counted, the second delivery had not started


async def test_later_messages_of_a_key_wait_for_the_one_that_returned(house: House) -> None:
    """R17, P3: m returns. m+1, in flight after it, is revoked at that moment and comes after it.
    Other keys are not touched."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(0, "b"), message(1, "a"), message(2, "a")])
    given = await session.take(4)
    places = [place for place, _, _ in given]
    consumer.nack(delivery(places[0]), None, None)
    (revoked,) = session.of_type("revoked")
    assert revoked["deliveries"] == [[*places[0][:3], 2, 2, 3, 3]]
    assert len(session.given) == 4  # nothing else is given at that moment
    again = await session.take(5)
    assert [body for _, body, _ in again[4:]] == [0]  # only the head, until it is settled
    await house.confirm(consumer, delivery(again[4][0]))
    assert [body for _, body, _ in (await session.take(7))[5:]] == [1, 2]
    assert await house.confirm(consumer, delivery(places[1])) == (1, 0)
    assert await house.confirm(consumer, delivery(places[3])) == (0, 1)  # stale: it was revoked


async def test_an_ended_lease_takes_later_messages_of_its_key_with_it(house: House) -> None:
    """R17, R21, P6: m expires. The other messages of its key that the session holds are revoked
    with it, even if extended. An ack of them from a buffer does not count, because m awaits retry.
    All of them come again in order."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.1, lease_total_s=10)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, numbered(2))
    (first, _, _), (second, _, _) = await session.take(2)
    consumer.extend(delivery(second), [], 9)
    await session.until(lambda: session.of_type("revoked"))
    assert await house.confirm(consumer, delivery(second)) == (0, 1)
    consumer.grant(4)
    ((again, body, _),) = (await session.take(3))[2:]
    assert body == 0
    assert await house.confirm(consumer, delivery(first)) == (0, 1)  # a newer delivery was given
    assert await house.confirm(consumer, delivery(again)) == (1, 0)
    assert [body for _, body, _ in (await session.take(4))[3:]] == [1]


async def test_a_late_ack_counts_until_the_message_is_given_again(house: House) -> None:
    """R21: The lease ended, and the message waits for credit. The ack of its handler still settles
    it."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.05)
    session, consumer = await house.subscribe(queue, group, credit=1)
    await house.publish(queue, numbered(2))
    ((place, _, _),) = await session.take(1)
    await session.until(lambda: session.of_type("revoked"))
    assert await house.confirm(consumer, delivery(place)) == (1, 0)
    assert await house.confirm(consumer, delivery(place)) == (1, 0)  # settled again
    consumer.grant(3)
    assert [body for _, body, _ in await session.take(2)] == [0, 1]


async def test_acks_are_judged_offset_by_offset(house: House) -> None:
    """R21: One range has a settled, a returned, an open and an invented offset."""
    queue = await house.queue()
    group = await house.group(queue, backoff_s=60, backoff_max_s=60)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(4)])
    (place, *_) = (one[0] for one in await session.take(4))
    await house.confirm(consumer, delivery(place))
    consumer.nack([[*place[:3], 1, 1, 2, 2]], None, None)
    settled = consumer.ack([[*place[:3], 0, 9]], [], None)
    # 0 is settled already. 1 and 2 wait for their retry, with no earlier message of their keys.
    assert settled.settled == 4
    assert settled.stale == []
    assert settled.not_delivered == [[*place[:3], 4, 9]]


async def test_an_ack_of_what_was_never_delivered_settles_nothing(house: House) -> None:
    """R10, R21, P12: The acks name invented pushes, offsets beyond the certified end, and all
    possible offsets."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    partition, epoch, push, offset = place
    everything = (1 << 53) - 1
    consumer.grant(2000)
    for invented in (
        [partition, epoch, push + 1, offset, offset],
        [partition, epoch, 0, 0, everything],
        [partition, epoch + 1, push, offset, offset],
        [partition, epoch, push, offset + 1, everything],
        [7, epoch, push, offset, offset],
        [everything, everything, everything, everything, everything],
    ):
        settled = consumer.ack([invented], [], None)
        assert (settled.settled, settled.stale) == (0, []), invented
        assert settled.not_delivered == [invented]
    assert await house.lag(queue, group) == 1
    assert consumer.ack([[partition, epoch, push, 0, everything]], [], None).settled == 1


async def test_a_confirmed_ack_is_final(durable_house: House) -> None:
    """P5, R21: It is confirmed, and then the process starts again. It does not come again."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    taken = await session.take(3)
    assert await house.confirm(consumer, delivery(taken[1][0])) == (1, 0)
    await house.restart()
    session, _ = await house.subscribe(house.find(), group)
    assert [body for _, body, _ in await session.take(2)] == [0, 2]


async def test_only_started_deliveries_count_as_attempts(house: House) -> None:
    """R19: A consumer dies five times with three messages, of which it had begun one. That one is
    dead-lettered. Those that never ran are not."""
    queue = await house.queue()
    group = await house.group(queue, attempts_max=5)
    await house.publish(queue, [message(n, f"k{n}") for n in range(3)])
    for attempt in range(1, 6):
        session, consumer = await house.subscribe(queue, group)
        given = await session.take(3)
        # Their order says nothing, because they are of different keys.
        by_body = {body: (place, number) for place, body, number in given}
        assert by_body[0][1] == attempt
        assert by_body[1][1] == by_body[2][1] == 1
        consumer.start(delivery(by_body[0][0]))
        consumer.leave()
    session, _ = await house.subscribe(queue, group)
    given = await session.take(2)
    assert sorted((body, attempt) for _, body, attempt in given) == [(1, 1), (2, 1)]
    letters = await dead_letters(house, 1)
    assert letters[0]["body"] == 0
    assert letters[0]["headers"]["tocsin-dead-letter-attempts"] == "5"


async def dead_letters(house: House, count: int, name: str = "orders") -> list[Frame]:
    """Wait for `count` dead letters, and return them as messages."""
    async with asyncio.timeout(5):
        while True:
            with suppress(Refused):  # it is made when the first message goes there
                session, reader = await house.read(
                    house.find(f"{name}.dead-letters"), start="earliest"
                )
                break
            await asyncio.sleep(0.01)
    await session.get(count)
    reader.close()
    return [one for frame in session.of_type("push") for one in frame["messages"]]


async def test_an_exhausted_message_is_dead_lettered_with_its_reason(house: House) -> None:
    """P1: It keeps key, body and headers, and names its source and the reason. Its key goes on."""
    queue = await house.queue(attempts_max=2)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    sent = message({"total": 12}, "a", id="id-1", headers={"trace": "x"}, content_type="text/x")
    await house.publish(queue, [sent, message("next", "a")])
    for attempt in (1, 2):
        given = await session.take(attempt + 1 if attempt == 2 else 2)
        place = next(p for p, body, n in reversed(given) if body == {"total": 12})
        consumer.nack(delivery(place), None, "card declined")
    await session.until(lambda: session.given[-1][1] == "next" and len(session.given) == 4)
    (letter,) = await dead_letters(house, 1)
    assert letter["key"] == "a"
    assert letter["body"] == {"total": 12}
    assert letter["content_type"] == "text/x"
    assert letter["headers"] == {
        "trace": "x",
        "tocsin-dead-letter-reason": "exhausted",
        "tocsin-dead-letter-queue": "orders",
        "tocsin-dead-letter-group": "billing",
        "tocsin-dead-letter-partition": "0",
        "tocsin-dead-letter-offset": "0",
        "tocsin-dead-letter-attempts": "2",
        "tocsin-dead-letter-id": "id-1",
        "tocsin-dead-letter-nack": "card declined",
    }


async def test_an_expired_message_is_dead_lettered_when_it_would_be_given(house: House) -> None:
    """R13, P1: This happens per group. Messages in flight when their time comes are not touched."""
    queue = await house.queue()
    group = await house.group(queue)
    other = await house.group(queue, "other")
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a", ttl_s=0.05), message(1, "a")])
    given = await session.take(2)
    await asyncio.sleep(0.06)  # the wall clock has to pass its time
    assert await house.confirm(consumer, [[*given[0][0], 1]]) == (2, 0)
    late, _ = await house.subscribe(queue, other)
    assert await late.get(1) == [1]
    (letter,) = await dead_letters(house, 1)
    assert letter["headers"]["tocsin-dead-letter-reason"] == "expired"
    assert letter["headers"]["tocsin-dead-letter-group"] == "other"


async def test_a_parked_key_waits_and_lets_the_others_flow(house: House) -> None:
    """R18, P8: The head of a key exhausted its attempts. It waits with all later messages of its
    key, also under a new owner. Other keys come."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "stuck"), message(1, "stuck")])
    given = await session.take(2)
    consumer.nack(delivery(given[0][0]), None, None)
    await house.publish(queue, [message(2, "stuck"), message(3, "free")])
    await session.until(lambda: session.bodies[-1] == 3)
    consumer.leave()
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message(4, "stuck"), message(5, "free")])
    await session.until(lambda: 5 in session.bodies)
    assert session.bodies == [3, 5]
    described = await house.broker.describe_group(ANYBODY, queue, "billing")
    assert described["keys_parked"] == 1
    assert described["lag"] == 6


@pytest.mark.parametrize("keys", [1, 3])
async def test_a_key_in_backoff_overflows_to_disk_and_comes_in_order(
    house: House, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: More messages wait for a returned one than are held in memory. They come in order, each
    once, and a free key is not held up meanwhile."""
    monkeypatch.setattr("push.limits.HELD_PER_PARTITION_MAX", 8)
    monkeypatch.setattr("push.limits.ASIDE_UNWRITTEN_MAX", 8)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=10_000)
    await house.publish(queue, [message(0, f"stuck{k}") for k in range(keys)])
    for place, _, _ in await session.take(keys):
        consumer.nack(delivery(place), 0.3, None)
    for number in range(1, 60):
        batch = [message(number, f"stuck{k}") for k in range(keys)]
        await house.publish(queue, [*batch, message(number, "free")])
    await session.until(lambda: session.bodies.count(59) >= 1)
    free = [body for frame in session.of_type("push") for body in bodies_of(frame, "free")]
    assert free == list(range(1, 60))
    acked, total = keys, keys + 60 * keys + 59
    while acked < total:
        fresh = (await session.take(acked + 1))[acked:]
        acked += len(fresh)
        consumer.ack([[*place, place[3]] for place, _, _ in fresh], [], None)
    for k in range(keys):
        mine = [body for frame in session.of_type("push") for body in bodies_of(frame, f"stuck{k}")]
        assert mine == [0, *range(60)]
    assert await house.confirm(consumer, delivery(fresh[-1][0])) == (1, 0)
    assert await house.lag(queue, group) == 0


def bodies_of(frame: Frame, key: str) -> list[object]:
    """Return the bodies of a key in a push."""
    return [one["body"] for one in frame["messages"] if one["key"] == key]


async def test_a_lease_ends_for_good_at_its_total(house: House) -> None:
    """R20: Extends prolong it up to lease_total_s. Then it counts as stuck and returns."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.1, lease_total_s=0.3)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert consumer.extend(delivery(place), delivery(place), 100).settled == 1
    await session.until(lambda: session.of_type("revoked"))
    assert 0.25 <= loop.time() - begin < 2
    assert consumer.extend(delivery(place), [], None).settled == 0
    ((_, _, _), (_, _, attempt)) = await session.take(2)
    assert attempt == 2  # it had started


async def test_a_drain_ends_by_its_deadline(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: A partition moves, and its old owner extends for ever. That is refused after the
    deadline. The new owner starts under a higher epoch, no sooner."""
    monkeypatch.setattr("push.limits.DRAIN_S", 0.3)
    queue = await house.queue(partitions=2)
    group = await house.group(queue, lease_s=60)
    old, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    given = await old.take(20)
    new, _ = await house.subscribe(queue, group)
    await old.until(lambda: old.of_type("revoked"))
    moved = {entry[0] for frame in old.of_type("revoked") for entry in frame["deliveries"]}
    assert len(moved) == 1
    held = [place for place, _, _ in given if place[0] in moved]
    again = await new.take(len(held))
    assert [place[3] for place, _, _ in again] == [place[3] for place in held]
    assert all(place[1] > held[0][1] for place, _, _ in again)
    assert consumer.extend([[*place, place[3]] for place in held], [], 60).settled == 0
    kept = [place for place, _, _ in given if place[0] not in moved]
    assert await house.confirm(consumer, [[*place, place[3]] for place in kept]) == (len(kept), 0)


async def test_nothing_is_kept_of_deliveries_that_are_over(house: House) -> None:
    """P9: A key nacked without end costs no memory."""
    queue = await house.queue(attempts_max=0)
    group = await house.group(queue, backoff_s=0, backoff_max_s=0)
    session, consumer = await house.subscribe(queue, group, credit=1000)
    await house.publish(queue, numbered(1))
    for count in range(1, 50):
        given = await session.take(count)
        consumer.nack(delivery(given[-1][0]), None, "again" if count % 2 else None)
    await session.take(50)
    (owned,) = consumer.owned_partitions.values()
    assert len(owned.log._dispatched_us) <= 1
    assert len(owned.reasons) == 1


async def test_what_a_consumer_leaves_behind_is_free_at_once(house: House) -> None:
    """P9: Otherwise thousands that come and go would stay until the garbage collector runs. Each
    has an owned partition with its lines, leases and reads for each partition. This holds too if
    one key waits and one is parked."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue, attempts_max=1, on_exhausted="park", backoff_s=60)
    await house.publish(queue, [message(n, f"k{n}") for n in range(10)])
    gc.collect()
    gc.disable()
    try:
        session, consumer = await house.subscribe(queue, group)
        given = await session.take(10)
        for place, _, _ in given[:3]:
            consumer.nack(delivery(place), None, None)
        runtime = house.broker.groups.runtimes[group.group_id]
        left = [weakref.ref(owned.delivery.waiting) for owned in runtime.owned_partitions.values()]
        assert len(left) == 2
        consumer.leave()
        await eventually(lambda: not runtime.owned_partitions)
        del consumer, session
        await eventually(lambda: all(one() is None for one in left))
    finally:
        gc.enable()
