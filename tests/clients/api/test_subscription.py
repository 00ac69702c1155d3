"""Subscriptions and readers against a fake broker over real sockets."""

import asyncio
import itertools
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest
import tocsin
from tocsin.proto import wire

from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker


async def publish(client: tocsin.Client, *keys: str) -> None:
    """One message per key, whose body is its number."""
    await client.publish_many("orders", [{"body": n, "key": key} for n, key in enumerate(keys)])


async def test_acks_of_one_turn_travel_in_one_frame_as_ranges(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "k", "k")
    async with client.subscribe("orders", "g", credit=2) as messages:
        for _ in range(2):  # of these, each is marked as started before it is handed out (R19)
            await (await anext(messages)).ack()
        settled = broker.groups["orders", "g"].settled
        await broker.until(lambda: len(settled) == 2)
        before = len(broker.received(frames.Ack))
        await publish(client, "k", "k")
        for _ in range(2):
            await (await anext(messages)).ack()
        await broker.until(lambda: len(settled) == 4)
    (ack,) = broker.received(frames.Ack)[before:]
    ((_, _, _, *ranges),) = ack.deliveries
    assert ranges == [2, 3]


async def test_what_a_dead_consumer_may_have_held_is_marked_before_its_handler_runs(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R19: of an epoch's first messages, as many as a consumer may hold: one of them may be what
    killed it."""
    await publish(client, *"abc")

    def marks() -> int:
        return sum(bool(frame.started) for frame in broker.received(frames.Extend))

    async with client.subscribe("orders", "g", credit=2) as messages:
        await anext(messages)
        await broker.until(lambda: marks() == 1)
        await anext(messages)
        await broker.until(lambda: marks() == 2)


async def test_leaving_sends_the_acks_that_are_queued(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "a", "b")
    async with client.subscribe("orders", "g") as messages:
        await (await anext(messages)).ack()
        await anext(messages)
    group = broker.groups["orders", "g"]
    assert (len(group.settled), len(group.waiting)) == (1, 1)
    with pytest.raises(StopAsyncIteration):
        await anext(messages)
    await messages.close()


async def test_a_confirmed_ack_returns_when_it_is_durable(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "a")
    async with client.subscribe("orders", "g") as messages:
        await (await anext(messages)).ack(confirm=True)
        assert len(broker.groups["orders", "g"].settled) == 1


@pytest.mark.parametrize("verb", ["nack", "reject"])
async def test_a_confirmed_nack_returns_when_it_is_answered(
    broker: FakeBroker, client: tocsin.Client, verb: str
) -> None:
    """Not when it is queued: then the broker need not have read it."""
    await publish(client, "a", "b")
    async with client.subscribe("orders", "g", credit=1) as messages:
        await getattr(await anext(messages), verb)(reason="queued")
        assert not broker.received(frames.Nack)
        await getattr(await anext(messages), verb)(reason="told", confirm=True)
        assert [nack.reason for nack in broker.received(frames.Nack)] == ["queued", "told"]


@pytest.mark.parametrize("verb", ["nack", "reject"])
async def test_a_nack_without_its_confirmation_is_of_unknown_outcome(
    broker: FakeBroker, client: tocsin.Client, verb: str
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        nacking = asyncio.ensure_future(getattr(message, verb)(confirm=True))
        await asyncio.sleep(0)
        broker.cut()
        with pytest.raises(tocsin.OutcomeUnknown):
            await nacking
        assert (await anext(messages)).key == "k"


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (lambda nack: wire.Ok(ref=nack.ref, stale=nack.deliveries), tocsin.StaleDelivery),
        (lambda nack: wire.Error(ref=nack.ref, code="unknown"), tocsin.OutcomeUnknown),
    ],
)
async def test_a_confirmed_nack_that_was_refused_raises(
    broker: FakeBroker, client: tocsin.Client, answer: Any, raised: type[Exception]
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        ticket = asyncio.get_running_loop().create_future()
        messages._ledger.nack(message, now=0.0, ticket=ticket)
        frames = messages._ledger.take(itertools.count(100), now=0.0)
        (nack,) = [frame for frame in frames if isinstance(frame, wire.Nack)]
        assert nack.ref is not None
        messages._on_nack_answer(nack.ref, answer(nack))
        with pytest.raises(raised):
            await ticket


async def test_a_nacked_message_comes_again_before_its_successor(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """P3; and its start is marked before its handler runs (R19)."""
    broker.batch = 1
    await publish(client, "k", "k")
    async with client.subscribe("orders", "g", credit=1) as messages:
        await (await anext(messages)).nack(reason="not yet")
        message = await anext(messages)
        assert (message.body, message.attempt) == (0, 2)
        await broker.until(lambda: any(f.started for f in broker.received(frames.Extend)))
        await message.ack()
        assert (await anext(messages)).body == 1
    assert [nack.reason for nack in broker.received(frames.Nack)] == ["not yet"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"delay_s": -0.1}, "between 0 and 86400 seconds, not -0.1"),
        ({"delay_s": 86_400.1}, "not 86400.1"),
        ({"delay_s": float("nan")}, "not nan"),
        ({"reason": "x" * 1025}, "at most 1024 characters, not 1025"),
        ({"lease_s": 0}, "above 0 and at most 43200 seconds, not 0"),
        ({"lease_s": 43_200.1}, "not 43200.1"),
        ({"delay_s": "x"}, "not 'x'"),
        ({"delay_s": True}, "not True"),
        ({"reason": 5}, "reason must be a text, not 5"),
        ({"reason": b"x"}, "reason must be a text, not b'x'"),
        ({"lease_s": "q"}, "not 'q'"),
    ],
)
async def test_a_delay_a_reason_or_a_lease_that_cannot_be_harms_nothing(
    broker: FakeBroker, client: tocsin.Client, how: dict[str, Any], said: str
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        call = message.extend if "lease_s" in how else message.nack
        with pytest.raises(tocsin.InvalidRequest, match=said):
            await call(**how)
        if "reason" in how:
            with pytest.raises(tocsin.InvalidRequest, match=said):
                await message.reject(**how)
        await message.ack(confirm=True)
    assert broker.groups["orders", "g"].settled


async def test_the_longest_delay_and_reason_are_sent(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "k", "l")
    async with client.subscribe("orders", "g") as messages:
        await (await anext(messages)).nack(delay_s=86_400, reason="x" * 1024)
        await broker.until(lambda: bool(broker.received(frames.Nack)))


async def test_what_was_revoked_cannot_be_acked_and_comes_again(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        first = await anext(messages)
        broker.revoke()
        broker.pump()
        second = await anext(messages)
        assert second.attempt == 2
        with pytest.raises(tocsin.StaleDelivery):
            await first.ack()
        await second.ack()
        await second.ack()


async def test_a_lease_that_is_over_is_not_handed_out(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R17: the client's own deadline counts as revocation."""
    await publish(client, "a", "b", "b")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        other = await waiting
        messages.expire(now=asyncio.get_running_loop().time() + 28.0)
        for held in (message, other):
            with pytest.raises(tocsin.StaleDelivery):
                await held.ack()
        waiting = asyncio.ensure_future(anext(messages))
        await client.queue("orders")
        assert not waiting.done()
        broker.revoke()
        broker.pump()
        assert (await waiting).attempt == 2


async def test_an_extended_lease_lasts(broker: FakeBroker, client: tocsin.Client) -> None:
    await publish(client, "a")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        await message.extend(60)
        messages.expire(now=asyncio.get_running_loop().time() + 31.0)
        await message.ack(confirm=True)
    assert broker.received(frames.Extend)[-1].lease_s == 60


async def test_an_extension_that_the_broker_refuses_is_stale(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "a")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        broker.groups["orders", "g"].given.clear()
        with pytest.raises(tocsin.StaleDelivery):
            await message.extend()
        with pytest.raises(tocsin.StaleDelivery):
            await message.ack(confirm=True)


async def test_a_small_window_moves_on_with_what_is_settled(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R25"""
    await publish(client, *(f"k{n % 10}" for n in range(100)))
    async with client.subscribe("orders", "g", credit=4) as messages:
        for _ in range(100):
            await (await anext(messages)).ack()
    assert len(broker.groups["orders", "g"].settled) == 100


async def test_what_is_discarded_makes_room_at_once(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R25, R16: else a window full of pushes from before stands still until something else is to
    be sent."""
    await publish(client, "a")
    async with client.subscribe("orders", "g", credit=4) as messages:
        message = await anext(messages)
        stale = {
            "type": "push", "subscription": 1, "partition": message.partition, "epoch": 0,
            "push": 1, "offset": 7, "messages": [{"key": "b", "body": n} for n in range(3)],
        }  # fmt: skip
        broker.say(stale)
        await broker.until(lambda: [frame.granted for frame in broker.received(frames.Credit)])
    assert [frame.granted for frame in broker.received(frames.Credit)] == [7]


async def test_handlers_run_side_by_side_across_keys_and_one_by_one_within(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, *(f"k{n % 5}" for n in range(60)))
    seen: dict[str | None, list[int]] = defaultdict(list)
    running: set[str | None] = set()
    most = 0

    async with client.subscribe("orders", "g") as messages:

        async def handle(message: tocsin.Message) -> None:
            nonlocal most
            assert message.key not in running
            running.add(message.key)
            most = max(most, len(running))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running.remove(message.key)
            seen[message.key].append(message.body)
            if sum(map(len, seen.values())) == 60:
                await message.ack()
                await messages.close()

        await messages.run(handle, concurrency=4)
    assert most == 4
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert len(broker.groups["orders", "g"].settled) == 60


async def test_what_was_extended_is_marked_as_started_when_the_extend_returns(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R19: whatever the handler does then, in the same turn of the loop, its attempt counts."""
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        await message.extend()
        (extend,) = (f for f in broker.received(frames.Extend) if f.deliveries)
        assert extend.started == extend.deliveries


async def test_a_handler_that_fails_nacks(
    broker: FakeBroker, client: tocsin.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:

        async def handle(message: tocsin.Message) -> None:
            if message.attempt == 1:
                raise ValueError("no stock")
            await message.ack()
            await messages.close()

        await messages.run(handle)
    assert [nack.reason for nack in broker.received(frames.Nack)] == ["ValueError: no stock"]
    assert "no stock" in caplog.text


async def test_a_lost_connection_is_joined_again_and_what_was_held_is_stale(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "k", "k")
    async with client.subscribe("orders", "g") as messages:
        first = await anext(messages)
        broker.cut()
        second = await anext(messages)
        assert (second.body, second.attempt) == (0, 2)
        with pytest.raises(tocsin.StaleDelivery):
            await first.ack()
        await second.ack()
        assert (await anext(messages)).body == 1
    assert broker.connected == 2


async def test_an_ack_without_its_confirmation_is_of_unknown_outcome(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        acking = asyncio.ensure_future(message.ack(confirm=True))
        await asyncio.sleep(0)
        broker.cut()
        with pytest.raises(tocsin.OutcomeUnknown):
            await acking


async def test_an_ack_that_is_refused_when_it_is_asked_again_is_of_unknown_outcome(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """It may have counted the first time."""
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        ledger, refs = messages._ledger, itertools.count(100)
        ticket = asyncio.get_running_loop().create_future()
        ledger.ack(message, now=0.0, ticket=ticket)
        list(ledger.take(refs, now=0.0))
        ledger.acks.repeat([])
        (ack,) = [frame for frame in ledger.take(refs, now=0.0) if isinstance(frame, wire.Ack)]
        assert ack.ref is not None
        messages._on_ack_answer(ack.ref, wire.Ok(ref=ack.ref, stale=ack.deliveries))
        with pytest.raises(tocsin.OutcomeUnknown):
            await ticket


async def test_messages_are_fetched_as_many_as_there_are(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """One of each key at a time; the first one is waited for, nothing is not an error, and what is
    not fetched stays."""
    async with client.subscribe("orders", "g") as messages:
        assert await messages.fetch() == []
        assert await messages.fetch(5, wait_s=0.01) == []
        waiting = asyncio.ensure_future(messages.fetch(5, wait_s=None))
        await publish(client, "a", "a", "b", "c")
        fetched = await waiting
        while len(fetched) < 3:
            fetched += await messages.fetch(3 - len(fetched), wait_s=10)
        assert sorted(str(message.key) for message in fetched) == ["a", "b", "c"]
        assert await messages.fetch(wait_s=0.01) == []
        for message in fetched:
            await message.ack()
        (last,) = await messages.fetch(wait_s=10)
        assert (last.key, last.attempt) == ("a", 1)
        await last.ack(confirm=True)
        with pytest.raises(ValueError, match="1 or more"):
            await messages.fetch(0)
        waiting = asyncio.ensure_future(messages.fetch(wait_s=None))
        await asyncio.sleep(0)
    with pytest.raises(tocsin.ClientClosed):
        await waiting
    with pytest.raises(tocsin.ClientClosed):
        await messages.fetch()


async def test_a_fetch_that_is_cancelled_takes_nothing(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    async with client.subscribe("orders", "g") as messages:
        waiting = asyncio.ensure_future(messages.fetch(wait_s=None))
        await asyncio.sleep(0)
        waiting.cancel()
        await publish(client, "a")
        (one,) = await messages.fetch(wait_s=10)
        assert one.key == "a"


async def test_group_settings_are_put_before_joining(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    async with client.subscribe("orders", "g", lease_s=5, start="latest"):
        pass
    assert ("PUT", "/v1/queues/orders/groups/g", {"lease_s": 5, "start": "latest"}) in broker.calls
    assert broker.received(frames.Subscribe)[0].start == "latest"


async def test_a_deleted_queue_ends_its_subscriptions(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    async with client.subscribe("orders", "g") as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await client.queue("orders")
        number = broker.received(frames.Subscribe)[0].subscription
        broker.say(
            {"type": "error", "code": "queue_not_found", "detail": "", "subscription": number}
        )
        with pytest.raises(tocsin.QueueNotFound):
            await waiting


async def test_closing_the_client_ends_the_iteration(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    async with client.subscribe("orders", "g") as messages:
        waiting = asyncio.ensure_future(anext(messages, None))
        await client.queue("orders")
        await client.close()
        assert await waiting is None


async def test_a_cancelled_wait_does_not_swallow_a_message(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    async with client.subscribe("orders", "g") as messages:
        waiting = [asyncio.ensure_future(anext(messages)) for _ in range(3)]
        await client.queue("orders")
        waiting[0].cancel()
        await publish(client, "a", "b")
        assert {(await one).body for one in waiting[1:]} == {0, 1}


async def test_a_reader_gets_every_message_and_settles_nothing(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "a", "b", "a")
    async with client.read("orders", start="earliest", credit=2) as messages:
        assert sorted([(await anext(messages)).body for _ in range(3)]) == [0, 1, 2]
    async with client.read("orders", keys=["a"], start="earliest") as messages:
        assert [(await anext(messages)).body for _ in range(2)] == [0, 2]
    assert broker.received(frames.Ack) == []


async def test_a_reader_starts_at_the_end_a_time_or_a_position(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, "a", "a")
    async with client.read("orders") as messages:
        await client.publish("orders", "new", key="a")
        assert (await anext(messages)).body == "new"
        position = messages.position
    await client.publish("orders", "newer", key="a")
    assert position is not None
    async with client.read("orders", start=position) as messages:
        assert (await anext(messages)).body == "newer"
    async with client.read("orders", start=datetime(2026, 1, 1, tzinfo=UTC)):
        pass
    assert broker.received(frames.Subscribe)[-1].start == frames.StartAt(1_767_225_600_000)


async def test_a_reader_goes_on_after_a_lost_connection(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """P10: resumed, and nothing twice."""
    async with client.read("orders", start="earliest") as messages:
        await publish(client, "a", "a")
        assert (await anext(messages)).body == 0
        broker.cut()
        await broker.until(lambda: broker.connected == 2)
        await client.publish("orders", 2, key="a")
        assert [(await anext(messages)).body for _ in range(2)] == [1, 2]


async def test_a_gap_is_raised_or_reported_and_reading_goes_on(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await publish(client, *["a"] * 5)
    broker.retained_from = 3
    async with client.read("orders", start="earliest") as messages:
        with pytest.raises(tocsin.Gap) as gap:
            await anext(messages)
        assert (gap.value.first, gap.value.last) == (0, 2)
        assert (await anext(messages)).body == 3
    gaps: list[tocsin.Gap] = []
    async with client.read("orders", start="earliest", on_gap=gaps.append) as messages:
        assert (await anext(messages)).body == 3
    assert len(gaps) == 1


async def test_a_position_of_another_history_is_unknown(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """P10: told at the start, and after a reconnect."""
    async with client.read("orders") as messages:
        position = messages.position
        waiting = asyncio.ensure_future(anext(messages))
        await client.queue("orders")
        broker.history = "another"
        broker.cut()
        with pytest.raises(tocsin.PositionUnknown):
            await waiting
    assert position is not None
    with pytest.raises(tocsin.PositionUnknown):
        async with client.read("orders", start=position):
            pass


async def test_a_message_that_nobody_took_at_the_last_moment_is_handed_to_the_next(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """R19: it waits a turn of the loop for its mark to leave; who asked for it gives up in it."""
    await publish(client, "k")
    async with client.subscribe("orders", "g") as messages:
        await (await anext(messages)).nack()
        async with asyncio.timeout(10):
            while not messages._ledger.ready:
                await client.queue("orders")
        given_up = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await anext(messages)).attempt == 2
        messages._ledger.check()
