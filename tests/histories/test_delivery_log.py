"""Histories of which the delivery log tells. It has every message once in each stage, with the time
and the reason for its wait."""

import asyncio
from array import array
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from gateway.delivery.pull import PullConsumer
from gateway.deliverylog.counts import CERTIFIED, DISPATCHED, SETTLED
from gateway.deliverylog.lines import (
    CertifiedLine,
    DispatchedLine,
    PositionLine,
    SettledLine,
    messages_of,
)
from gateway.models import WhichKey
from metadata.catalog import ANYBODY
from push.errors import Unknown
from push.places import Partition
from tests.histories.house import House, Socket, delivery, eventually, message, numbered
from tests.histories.logged import Logged, offsets


def causes(lines: list[DispatchedLine]) -> list[tuple[str, int, int]]:
    """Return (cause, attempt, messages) of each line."""
    return [(line.cause, line.attempt, messages_of(line.runs)) for line in lines]


def outcomes(lines: list[SettledLine]) -> list[tuple[str, int]]:
    """Return (outcome, messages) of each line."""
    return [(line.outcome, messages_of(line.runs)) for line in lines]


async def test_one_message_has_a_line_in_each_stage(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message("a")])
    (place, _, _), *_ = await session.take(1)
    logged.log.on_flush()
    assert await house.confirm(consumer, delivery(place)) == (1, 0)
    lines = [line for line in logged.lines() if not isinstance(line, PositionLine)]
    certified, dispatched, settled = lines
    assert isinstance(certified, CertifiedLine)
    assert (certified.tenant, certified.queue, certified.queue_id) == (
        queue.tenant, "orders", queue.queue_id,
    )  # fmt: skip
    assert (certified.transport, certified.level, certified.outcome) == (
        "internal", "all", "certified",
    )  # fmt: skip
    assert isinstance(dispatched, DispatchedLine)
    assert (dispatched.group, dispatched.session, dispatched.transport) == (
        "billing", session.session_id, "websocket",
    )  # fmt: skip
    assert (dispatched.cause, dispatched.attempt, dispatched.recipients) == ("none", 1, 1)
    assert dispatched.certified_unix_us == certified.certified_unix_us
    assert isinstance(settled, SettledLine)
    assert (settled.outcome, settled.group, settled.session) == (
        "acked", "billing", session.session_id,
    )  # fmt: skip
    assert settled.pushes == [[0, dispatched.dispatched_unix_us, 0, 0]]
    assert offsets([certified]) == offsets([dispatched]) == offsets([settled]) == [(0, 0)]
    assert certified.asked_unix_us is not None
    assert certified.certified_unix_us is not None
    assert dispatched.written_unix_us is not None
    times = [
        certified.accepted_unix_us, certified.asked_unix_us, certified.certified_unix_us,
        dispatched.dispatched_unix_us, dispatched.written_unix_us, settled.settled_unix_us,
    ]  # fmt: skip
    assert times == sorted(times)


async def test_what_is_certified_is_told_with_its_keys_in_runs(house: House) -> None:
    """The keys are those that the storage has, in whichever partitions they are. 0 means no key."""
    queue = await house.queue(partitions=3)
    logged = Logged(house)
    batch = [message(n, key) for n, key in enumerate(["a", "b", "c", "d", "e", None, "a"])]
    await house.publish(queue, batch)
    (line,) = logged.of(CertifiedLine)
    assert line.keys is not None
    found = dict(zip(offsets([line]), array("Q", line.keys), strict=True))
    assert len(found) == 7
    size = 0
    for number in queue.members:
        read = await house.broker.storage.read(Partition(queue.queue_id, number), 0, 1 << 20)
        for record in read.records:
            for offset in range(record.first, record.last + 1):
                assert found.pop((number, offset)) == record.key_hash(offset)
                size += record.header.sizes[offset - record.first]
    assert not found
    assert line.bytes == size


async def test_publishes_of_one_moment_share_a_line_and_those_of_two_do_not(house: House) -> None:
    """This does not depend on the commit. Each line's messages were accepted at one time."""
    queue = await house.queue()
    logged = Logged(house)
    first, second = (logged.log.internal_origin(queue, 2) for _ in range(2))
    batches = [(first, 0), (first, 1), (second, 2)]
    answers = [house.submit(queue, [message(n)], origin=origin) for origin, n in batches]
    await asyncio.gather(*answers)
    assert [line.runs for line in logged.of(CertifiedLine)] == [[(0, 0, 2)], [(0, 2, 1)]]


async def test_duplicates_are_counted_with_the_places_of_the_originals(house: House) -> None:
    queue = await house.queue()
    logged = Logged(house)
    await house.publish(queue, [message("a", id="1"), message("b", id="2")])
    await house.publish(queue, [message("a", id="1"), message("c", id="3"), message("b", id="2")])
    _, line = logged.of(CertifiedLine)
    assert (line.runs, line.duplicates, line.duplicate_runs) == ([(0, 2, 1)], 2, [(0, 0, 2)])
    assert line.keys is not None
    assert len(line.keys) == 8
    assert logged.sink.counts[CERTIFIED] == 3


async def test_who_waits_for_credit_is_told_so(house: House) -> None:
    """This holds for both sides. Messages that come when there is credit again have waited for
    nothing."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group, credit=1)
    await house.publish(queue, numbered(3))
    await session.take(1)
    logged.log.on_flush()
    consumer.grant(10)
    await session.take(3)
    logged.log.on_flush()
    await house.publish(queue, numbered(1))
    await session.take(4)
    assert causes(logged.of(DispatchedLine)) == [("none", 1, 1), ("credit", 1, 2), ("none", 1, 1)]


async def test_what_was_there_before_the_consumer_is_backlog(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    await house.publish(queue, numbered(2))
    session, _ = await house.subscribe(queue, group)
    await session.take(2)
    (line,) = logged.of(DispatchedLine)
    assert causes([line]) == [("backlog", 1, 2)]
    assert line.certified_unix_us is None
    assert line.published_unix_ms > 0


async def test_a_paused_queue_is_the_cause(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, _ = await house.subscribe(queue, group)
    await house.broker.upkeep.pause(ANYBODY, queue.name, paused=True)
    await house.publish(queue, numbered(2))
    await house.broker.upkeep.pause(ANYBODY, queue.name, paused=False)
    await session.take(2)
    assert causes(logged.of(DispatchedLine)) == [("paused", 1, 2)]


async def test_a_nack_and_the_messages_returned_with_it_are_distinguished(house: House) -> None:
    """R17: The nacked message waits for its backoff. The later one of its key waits for the nacked
    one."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    given = await session.take(2)
    logged.log.on_flush()
    consumer.nack(delivery(given[0][0]), None, None)
    given = await session.take(3)
    logged.log.on_flush()
    await house.confirm(consumer, delivery(given[2][0]))
    given = await session.take(4)
    await house.confirm(consumer, delivery(given[3][0]))
    assert causes(logged.of(DispatchedLine)) == [
        ("none", 1, 2), ("key_backoff", 2, 1), ("key_held", 1, 1),
    ]  # fmt: skip
    settled = outcomes(logged.of(SettledLine))
    assert settled[:2] == [("nacked", 1), ("returned", 1)]
    assert {outcome for outcome, _ in settled[2:]} == {"acked"}


async def test_a_lease_that_ends_is_expired_and_given_again_for_it(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.05)
    logged = Logged(house)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    await session.take(3)
    dispatched, settled = logged.of(DispatchedLine), logged.of(SettledLine)
    assert causes(dispatched)[:2] == [("none", 1, 2), ("lease", 1, 1)]
    assert outcomes(settled)[:2] == [("expired", 1), ("returned", 1)]
    tally = house.broker.counting.group(group.group_id)
    expired = [line for line in logged.of(SettledLine) if line.outcome == "expired"]
    assert len(offsets(expired)) == tally.expired


async def test_an_exhausted_message_is_dead_lettered_with_its_reason(house: House) -> None:
    queue = await house.queue(attempts_max=1)
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), None, None)
    await eventually(lambda: house.broker.counting.group(group.group_id).dead_lettered)
    told = [(line.outcome, line.reason) for line in logged.of(SettledLine)]
    assert told == [("nacked", None), ("dying", "exhausted"), ("dead_lettered", "exhausted")]
    original, letter = logged.of(CertifiedLine)
    assert (original.queue, letter.queue, letter.transport) == (
        "orders", "orders.dead-letters", "internal",
    )  # fmt: skip


async def test_who_goes_to_full_dead_letters_is_told_before_what_is_behind_of_its_key(
    house: House,
) -> None:
    """The end of its wait is logged when its key goes on, however long the dead letters take to
    accept it."""
    await house.queue("full", messages_max=1)
    await house.group(house.find("full"))
    await house.publish(house.find("full"), [message("first")])
    queue = await house.queue(attempts_max=1, dead_letter_queue="full")
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2, "a"))
    consumer.nack(delivery((await session.take(2))[0][0]), None, None)
    await session.take(3)
    (dying,) = [line for line in logged.of(SettledLine) if line.outcome == "dying"]
    assert (dying.reason, offsets([dying])) == ("exhausted", [(0, 0)])
    assert dying.settled_unix_us <= logged.of(DispatchedLine)[-1].dispatched_unix_us
    assert "dead_lettered" not in {line.outcome for line in logged.of(SettledLine)}


async def test_a_parked_key_is_reported_with_the_cause_of_its_wait(house: House) -> None:
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    given = await session.take(2)
    logged.log.on_flush()
    consumer.nack(delivery(given[0][0]), None, None)
    await house.broker.cursor_writer.drain()
    await house.broker.parking.decide(queue, group, "release", WhichKey(key="k"))
    given = await session.take(3)
    logged.log.on_flush()
    await house.confirm(consumer, delivery(given[2][0]))
    await session.take(4)
    assert outcomes(logged.of(SettledLine))[:3] == [("nacked", 1), ("returned", 1), ("parked", 1)]
    assert {line.cause for line in logged.of(DispatchedLine)[1:]} == {"key_parked"}


async def test_who_goes_returns_what_he_had_and_who_moves_does_not(house: House) -> None:
    """A client that goes on at another gateway keeps its deliveries (R22)."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    for moves, returned in ((False, [("returned", 2)]), (True, [])):
        before = len(logged.of(SettledLine))
        session, consumer = await house.subscribe(queue, group)
        if not moves:
            await house.publish(queue, numbered(2))
        await session.take(2)
        consumer.leave(moves=moves)
        assert outcomes(logged.of(SettledLine)[before:]) == returned


async def test_an_ack_said_again_settles_nothing_again(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3, None))
    given = await session.take(3)
    (partition, epoch, push, _), _, _ = given[0]
    for first, last in ((0, 1), (0, 1), (1, 2)):
        named = [[partition, epoch, push, first, last]]
        assert await house.confirm(consumer, named) == (last - first + 1, 0)
    settled = offsets([line for line in logged.of(SettledLine) if line.outcome == "acked"])
    assert settled == [(0, 0), (0, 1), (0, 2)]
    assert house.broker.counting.group(group.group_id).settled == 3


@pytest.mark.parametrize(
    ("acked", "of", "form"),
    [
        ([(3, 6)], 100, [3, 6]),
        ([(4, 4)], 100, [4, 4]),
        ([(1, 1), (3, 3)], 100, [0, "0xa"]),
        ([(0, 0), (2, 3), (199, 199)], 200, [0, hex(0xD | 1 << 199)]),
        ([(0, 0), (199, 199)], 200, [0, 0, 199, 199]),  # the push is long for a mask
    ],
)
async def test_what_an_ack_settles_is_told_as_a_range_a_mask_or_ranges(
    house: House, acked: list[tuple[int, int]], of: int, form: list[int | str]
) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group, credit=of)
    await house.publish(queue, numbered(of, None))
    ((partition, epoch, push, _), _, _), *_ = await session.take(of)
    named = [partition, epoch, push, *chain.from_iterable(acked)]
    count = sum(last - first + 1 for first, last in acked)
    assert await house.confirm(consumer, [named]) == (count, 0)
    (line,) = logged.of(SettledLine)
    (told,) = line.pushes
    assert told[2:] == form
    assert offsets([line]) == [
        (0, offset) for first, last in acked for offset in range(first, last + 1)
    ]
    assert logged.sink.counts[SETTLED] == count


async def test_an_ack_that_spans_skipped_offsets_counts_only_its_own(house: House) -> None:
    """The line of a second ack has the rest."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a")])
    ((first, _, _),) = await session.take(1)
    consumer.nack(delivery(first), 60.0, None)
    await house.publish(queue, [message(n, key) for n, key in enumerate("babab", 1)])
    _, ((partition, epoch, push, offset), _, _), *_ = await session.take(4)
    assert offset == 1
    for begin, end, settled in ((5, 5, 1), (1, 3, 2)):  # of 1 to 5 it has 1, 3 and 5
        named = [[partition, epoch, push, begin, end]]
        assert await house.confirm(consumer, named) == (settled, 0)
    acks = [line for line in logged.of(SettledLine) if line.outcome == "acked"]
    assert sorted(offsets(acks)) == [(0, 1), (0, 3), (0, 5)]


async def test_pulls_are_requests_and_their_messages_are_written_with_the_answer(
    house: House,
) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    await house.publish(queue, numbered(2, None))
    pulled = await house.broker.pulls.pull(queue, group, 10, 2)
    assert len(pulled) == 2
    await house.broker.pulls.ack(queue, group, [one.receipt for one in pulled])
    (given,), settled = logged.of(DispatchedLine), logged.of(SettledLine)
    assert (given.transport, given.session, given.group) == ("http", None, "billing")
    assert given.written_unix_us is not None
    assert {line.transport for line in settled} == {"http"}
    assert sorted(offsets(settled)) == [(0, 0), (0, 1)]


async def test_what_a_pull_is_given_that_is_cancelled_was_never_written(house: House) -> None:
    """The client left in the very turn in which there was a message for it. Another pull of the
    group that was served with it has its own messages."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    waiting = [
        asyncio.ensure_future(house.broker.pulls.pull(queue, group, 1, 20)) for _ in range(2)
    ]
    await eventually(lambda: [len(one._waiting) for one in pulling(house)] == [2])
    (consumer,) = pulling(house)
    cancelled = consumer._waiting[0]
    publishing = asyncio.ensure_future(house.publish(queue, numbered(2, None)))
    async with asyncio.timeout(20):  # every turn is looked at, and the pull ends in a later one
        while True:
            if cancelled.messages:
                break
            await asyncio.sleep(0)
    waiting[0].cancel()
    await publishing
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert len(await waiting[1]) == 1
    first, second = logged.of(DispatchedLine)
    assert (offsets([first]), offsets([second])) == ([(0, 0)], [(0, 1)])
    assert first.written_unix_us is None
    assert second.written_unix_us is not None
    (settled,) = logged.of(SettledLine)
    assert (settled.outcome, offsets([settled])) == ("returned", [(0, 0)])


async def test_a_fan_out_is_one_line_and_says_who_was_given_it(house: House) -> None:
    queue = await house.queue()
    logged = Logged(house)
    sessions = [(await house.read(queue))[0] for _ in range(3)]
    await house.publish(queue, numbered(2))
    for session in sessions:
        await session.get(2)
    (line,) = logged.of(DispatchedLine)
    assert (line.group, line.session, line.recipients, line.cause) == (None, None, 3, "none")
    assert line.sessions == [session.session_id for session in sessions]
    assert line.runs == [(0, 0, 2)]
    assert logged.sink.counts[DISPATCHED] == 6


async def test_a_reader_of_the_past_replays(house: House) -> None:
    queue = await house.queue()
    logged = Logged(house)
    await house.publish(queue, numbered(2))
    session, _ = await house.read(queue, start="earliest")
    await session.get(2)
    (line,) = logged.of(DispatchedLine)
    assert (line.cause, line.session, line.runs) == ("replay", session.session_id, [(0, 0, 2)])


async def test_at_most_once_is_settled_before_it_is_given(house: House) -> None:
    """R23: Nothing of it is kept."""
    queue = await house.queue()
    group = await house.group(queue, semantics="at_most_once")
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    await session.take(2)
    (settled,), (given,) = logged.of(SettledLine), logged.of(DispatchedLine)
    assert settled.settled_unix_us <= given.dispatched_unix_us
    assert outcomes([settled]) == [("acked", 2)]
    assert not any(owned.log._dispatched_us for owned in consumer.owned_partitions.values())


async def test_what_has_happened_is_counted_as_the_broker_counts(house: House) -> None:
    """There are many keys and partitions, and acks in no order, and some messages are nacked. The
    sums of the lines equal the counts of the broker, and those that outlive it."""
    queue = await house.queue(partitions=4, attempts_max=0)
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    for first in range(0, 100, 20):
        await house.publish(queue, [message(n, f"k{n % 7}") for n in range(first, first + 20)])
    seen = 0
    tally = house.broker.counting.group(group.group_id)
    while tally.settled < 100:
        await session.take(seen + 1)
        fresh, seen = session.given[seen:], len(session.given)
        for place, body, attempt in reversed(fresh):
            if body % 10 == 3 and attempt == 1:
                consumer.nack(delivery(place), None, None)
            else:
                consumer.ack(delivery(place), [], None)
    certified, given = logged.of(CertifiedLine), logged.of(DispatchedLine)
    ended = {
        outcome: len(offsets([line for line in logged.of(SettledLine) if line.outcome == outcome]))
        for outcome in ("acked", "nacked")
    }
    assert len(set(offsets(certified))) == len(offsets(certified)) == 100
    assert len(offsets(given)) == tally.given
    assert ended == {"acked": tally.settled, "nacked": tally.nacked}
    counts = logged.sink.counts
    assert (counts[CERTIFIED], counts[DISPATCHED]) == (100, tally.given)
    assert counts[SETTLED] == len(offsets(logged.of(SettledLine)))


async def test_a_client_states_when_it_produced_and_receives_the_clock(house: House) -> None:
    """The client's clock is 5 ms slow. No client is told while nothing is logged."""
    await house.queue()
    before = Socket(house, name="s-0")
    before.say(type="hello")
    assert "clock_unix_us" not in await before.until("welcome")
    logged = Logged(house)
    socket = Socket(house)
    socket.say(type="hello", producer="p")
    shown_us = (await socket.until("welcome"))["clock_unix_us"]
    socket.say(type="ping", ref=1)
    assert (await socket.until_ref(1))["clock_unix_us"] >= shown_us
    socket.say(
        type="publish", ref=2, queue="orders", sequence=0,
        messages=[{"body": 1, "headers": {"traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}}],
        produced_unix_us=shown_us - 5_000 - 70, clock_offset_us=5_000,
    )  # fmt: skip
    await socket.until_ref(2)
    (line,) = logged.of(CertifiedLine)
    assert (line.produced_unix_us, line.clock_offset_us) == (shown_us - 70, 5_000)
    assert (line.session, line.transport, line.producer) == ("s-1", "websocket", ANYBODY.name)
    assert line.trace == "c" * 32


async def test_a_publish_over_http_is_a_request_with_its_trace(house: House) -> None:
    await house.queue()
    logged = Logged(house)
    async with house.http() as client:
        answer = await client.post(
            "/v1/queues/orders/messages",
            json={"messages": [{"body": 1, "sent_unix_ms": 9}, {"body": 2}]},
            headers={"traceparent": f"00-{'e' * 32}-{'f' * 16}-01"},
        )
    assert answer.status_code == 200
    (line,) = logged.of(CertifiedLine)
    assert (line.transport, line.session, line.producer) == ("http", None, ANYBODY.name)
    assert (line.produced_unix_us, line.clock_offset_us, line.trace) == (9000, None, "e" * 32)
    assert messages_of(line.runs) == 2


async def test_what_nobody_knows_of_is_unknown_and_has_no_place(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await house.queue()
    logged = Logged(house)
    with monkeypatch.context() as lost:
        lost.setattr(house.broker.storage, "append", _lost)
        assert await house.publish(queue, numbered(2)) == ["unknown", "unknown"]
    assert (await house.publish(queue, numbered(2)))[0] == (0, 0, False)
    unknown, known = logged.of(CertifiedLine)
    assert (unknown.outcome, unknown.messages, unknown.runs) == ("unknown", 2, [])
    assert (known.outcome, known.runs) == ("certified", [(0, 0, 2)])
    assert logged.sink.counts[CERTIFIED] == 2


async def test_what_arrives_for_a_deleted_queue_is_logged_where_it_stands(house: House) -> None:
    """Messages arrive over HTTP and in a session. The log places them in the dead letters, whose
    offsets it names."""
    queue = await house.queue()
    await house.broker.delete_queue(ANYBODY, queue.name)
    logged = Logged(house)
    async with house.http() as client:
        answer = await client.post("/v1/queues/orders/messages", json={"messages": [{"body": 1}]})
    assert answer.status_code == 200
    socket = Socket(house)
    socket.say(type="hello", producer="p")
    await socket.until("welcome")
    for ref in (2, 3):
        socket.say(
            type="publish", ref=ref, queue="orders", sequence=ref - 2, messages=[{"body": ref}]
        )
        await socket.until_ref(ref)
    dead = house.find("orders.dead-letters")
    lines = logged.of(CertifiedLine)
    assert {(line.queue, line.queue_id) for line in lines} == {(dead.name, dead.queue_id)}
    places = sorted(offsets(lines))
    assert len(places) == 3
    stored = []
    for number in dead.members:
        read = await house.broker.storage.read(Partition(dead.queue_id, number), 0, 1 << 20)
        for record in read.records:
            stored += [(number, offset) for offset in range(record.first, record.last + 1)]
    assert places == stored


async def test_what_is_safe_and_waits_for_what_stands_before_it_is_certified_and_then_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message at level `local` is stored after records of a higher level. The line says when its
    own level was met, as its publisher was answered. No consumer is given it before the earlier
    ones are safe. Then it is read from the storage."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, _ = await house.subscribe(queue, group)
    append = house.broker.storage.append

    async def behind(*args: Any, **more: Any) -> Any:
        return [replace(one, certified=0) for one in await append(*args, **more)]

    with monkeypatch.context() as waits:
        waits.setattr(house.broker.storage, "append", behind)
        assert await house.publish(queue, [message(0)]) == [(0, 0, False)]
    (certified,) = logged.of(CertifiedLine)
    assert certified.certified_unix_us is not None
    assert session.given == []
    house.broker.tail.on_certified(Partition(queue.queue_id, 0), 1)
    await session.take(1)
    (given,) = logged.of(DispatchedLine)
    assert (given.certified_unix_us, given.cause) == (None, "backlog")
    assert given.dispatched_unix_us >= certified.certified_unix_us


def pulling(house: House) -> list[PullConsumer]:
    """Return the consumers of pulls."""
    return list(house.broker.pulls._consumers.values())


async def _lost(*args: object, **more: object) -> None:
    raise Unknown("the answer was lost")


async def test_what_returns_with_another_names_the_delivery_that_it_ends(house: House) -> None:
    """Both were given at once, and the later one comes back along with the first."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, "key") for n in range(2)])
    first, _ = [place for place, _, _ in await session.take(2)]
    consumer.nack(delivery(first), 0, None)
    (given,) = logged.of(DispatchedLine)[:1]
    ends = {line.outcome: line.pushes for line in logged.of(SettledLine)}
    at = given.dispatched_unix_us
    assert ends == {"nacked": [[0, at, 0, 0]], "returned": [[0, at, 1, 1]]}


async def test_a_late_ack_settles_a_delivery_that_has_come_back(house: House) -> None:
    """R21: The first message is nacked, and the later one of its key comes back with it. Both are
    acked before they are given again. An ack of a delivery of which nothing is in flight any more
    does not name it."""
    queue = await house.queue(backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    logged = Logged(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, key) for n, key in enumerate(["a", "a", "b"])])
    places = [place for place, _, _ in await session.take(3)]
    consumer.nack(delivery(places[0]), None, None)
    assert await house.confirm(consumer, delivery(places[0])) == (1, 0)
    assert await house.confirm(consumer, delivery(places[2])) == (1, 0)
    assert await house.confirm(consumer, delivery(places[1])) == (1, 0)
    (given,) = logged.of(DispatchedLine)
    at = given.dispatched_unix_us
    ends = [(line.outcome, push) for line in logged.of(SettledLine) for push in line.pushes]
    assert ends == [
        ("nacked", [0, at, 0, 0]), ("returned", [0, at, 1, 1]),
        ("acked", [0, at, 0, 0]), ("acked", [0, at, 2, 2]), ("acked", [0, None, 1, 1]),
    ]  # fmt: skip
