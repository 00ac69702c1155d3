"""The session: what a client is answered, and what the broker behind it is asked."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Never

import msgspec
import pytest

from gateway.auth.auth import LET_IN, Authenticator
from gateway.broker import Broker
from gateway.limits.limiter import Limiter
from gateway.models import Transport
from gateway.session.credential import producer_id
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire import frames
from gateway.wire.frames import Close
from metadata.catalog import ANYBODY, GroupSettings, Principal
from push import limits
from push.errors import Unknown
from push.limits import FRAME_BYTES_MAX
from push.places import CursorPlace, Partition
from runtime.addresses import UNKNOWN
from runtime.loop.fairness import ArrivalGate
from tests.gateway.plain_metadata import MemoryBroker, running
from tests.histories.house import offsets_of


class Socket:
    """A transport (gateway.session.transport.SessionTransport) that keeps what it is given, and its
    session."""

    transport: Transport | None = "websocket"
    unsent_bytes = 0
    has_room = True
    until_unix_ms: int | None = None

    def __init__(
        self, broker: Broker, auth: Authenticator | None = None, limiter: Limiter | None = None
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_writable = True
        self.has_refused = False
        """Somebody wanted to push while it was not writable."""
        self.address = UNKNOWN
        self.pings = 0
        self.taken: int | None = None
        self.holds = 0
        self.close_code: Close | None = None
        around = SessionServices(
            broker,
            auth or Authenticator(None),
            limiter=limiter or Limiter(),
            arrivals=ArrivalGate(lambda: 0.0),  # the loop is always free
        )
        admission = LET_IN if auth is None else None
        self.session = Session(around, self, "s-1", admission, now=0)

    def send(self, frame: bytes) -> None:
        if self.close_code is None:
            self.sent.append(msgspec.json.decode(frame))

    def writable(self) -> bool:
        self.has_refused = self.has_refused or not self.is_writable
        return self.is_writable

    def ping(self) -> None:
        self.pings += 1

    def taken_bytes(self) -> int | None:
        return self.taken

    is_in_transit = False

    def lease_start(self, given_at: float) -> float | None:
        return given_at

    def on_named(self, given_at: float) -> None:
        raise AssertionError("nothing is in transit")

    def pause_reading(self) -> None:
        self.holds += 1

    def resume_reading(self) -> None:
        self.holds -= 1

    def close(self, close: Close) -> None:
        assert self.close_code is None
        self.close_code = close
        self.session.end()

    def adopt(self, session: Session) -> None:
        self.session = session

    def detach(self, close: Close) -> None:
        self.close_code = close

    def say(self, *values: dict[str, Any], now: float = 0) -> None:
        value = values[0] if len(values) == 1 else list(values)
        self.session.receive(msgspec.json.encode(value), now=now)

    async def ask(
        self, *values: dict[str, Any], count: int = 0, now: float = 0
    ) -> list[dict[str, Any]]:
        """Say it; what was sent by the time that the broker has done what it can, `count` frames
        at least."""
        self.say(*values, now=now)
        await until(lambda: len(self.sent) >= count)
        await settle()
        return self.answers()

    def answers(self) -> list[dict[str, Any]]:
        """Return what was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def answer(self) -> dict[str, Any]:
        (answer,) = self.answers()
        return answer


async def settle(turns: int = 60) -> None:
    """Let what was started run as far as it can: nothing here waits for a thread or a file."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(true: Callable[[], object]) -> None:
    """Wait until it is."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with running(MemoryBroker(auto_create=True)) as made:
        await made.add_queue("q", message_bytes_max=100, lease_s=7)
        yield made


@pytest.fixture
async def socket(broker: MemoryBroker) -> AsyncIterator[Socket]:
    made = Socket(broker)
    made.say({"type": "hello", "producer": "p"})
    assert made.answer()["type"] == "welcome"
    yield made
    made.session.end()


def publish(
    ref: int, *bodies: object, queue: str = "q", key: str | None = None, **more: object
) -> dict[str, Any]:
    keyed = {} if key is None else {"key": key}
    messages = [{**keyed, "body": body} for body in bodies]
    return {"type": "publish", "ref": ref, "queue": queue, "messages": messages, **more}


def subscribe(number: int = 1, credit: int = 100, **more: object) -> dict[str, Any]:
    return {
        "type": "subscribe", "ref": 1, "subscription": number, "queue": "q", "credit": credit,
        **more,
    }  # fmt: skip


async def consumer(socket: Socket) -> None:
    (answer,) = await socket.ask(subscribe(group="g"), count=1)
    assert answer["type"] == "ok"


# --- Hello --------------------------------------------------------------------------------------


async def test_welcome_names_session_and_bounds(broker: MemoryBroker) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello"})
    welcome = socket.answer()
    assert welcome["session"] == "s-1"
    assert welcome["frame_bytes_max"] == FRAME_BYTES_MAX


async def test_a_token_in_hello_says_who_it_is(broker: MemoryBroker) -> None:
    socket = Socket(broker, Authenticator("right"))
    socket.say({"type": "hello", "token": "right"})
    assert socket.answer()["type"] == "welcome"
    assert socket.session.principal == Principal("operator")


@pytest.mark.parametrize("hello", [{}, {"token": "wrong"}])
async def test_a_wrong_token_closes_and_nothing_behind_it_happens(
    broker: MemoryBroker, hello: dict[str, str]
) -> None:
    """P11."""
    socket = Socket(broker, Authenticator("right"))
    socket.say({"type": "hello", **hello}, publish(1, 1))
    assert socket.close_code == frames.UNAUTHORIZED
    assert broker.submitted == []
    assert socket.answers() == []


async def test_a_producer_of_an_invalid_name_is_refused_with_the_reason(
    broker: MemoryBroker,
) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello", "producer": "no spaces"})
    assert socket.answer()["code"] == "invalid_name"
    assert socket.close_code == frames.PROTOCOL


def test_a_producer_is_another_one_for_every_tenant_and_principal() -> None:
    """R6: nobody uses up somebody else's sequences."""
    ids = {
        producer_id(Principal("a", "t"), "p"),
        producer_id(Principal("b", "t"), "p"),
        producer_id(Principal("a", "u"), "p"),
        producer_id(Principal("a", "t"), "q"),
        producer_id(Principal("a,t", ""), "p"),
    }
    assert len(ids) == 5
    assert producer_id(Principal("a", "t"), "p") in ids
    assert {len(one) for one in ids} == {16}


# --- Publishing ---------------------------------------------------------------------------------


async def test_each_message_of_a_publish_has_its_own_answer_in_order(
    socket: Socket, broker: MemoryBroker
) -> None:
    """R5."""
    messages = [
        {"key": "k", "body": 1},
        {"body": "x" * 200},
        {"body": 2, "id": "again"},
        {"body": 3, "id": "again"},
        {"key": "", "body": 4},
    ]
    (answer,) = await socket.ask({"type": "publish", "ref": 7, "queue": "q", "messages": messages})
    assert (answer["type"], answer["ref"]) == ("ok", 7)
    assert answer["durability"] == {"level": "all", "copies": 1}
    first, second, third, fourth, fifth = answer["receipts"]
    assert first == [0, 0]
    assert (second["code"], second["retry"]) == ("message_too_large", False)
    assert third == [0, 1]
    assert fourth == [0, 1, True]
    assert fifth["code"] == "invalid_message"


async def test_what_becomes_of_a_publish_may_be_unknown(
    socket: Socket, broker: MemoryBroker
) -> None:
    """R5, P1: each message of it says so; what is refused was never stored in any case."""
    broker.messages.lose = lambda name, *_: Unknown() if name == "append" else None
    (answer,) = await socket.ask(publish(8, 1, "x" * 200))
    first, second = answer["receipts"]
    assert (first["code"], first["retry"]) == ("unknown", True)
    assert second["code"] == "message_too_large"


async def test_a_publish_hands_on_its_sequence_under_its_producer(
    socket: Socket, broker: MemoryBroker
) -> None:
    """R6."""
    socket.say(publish(1, 1, 2, sequence=40, resolved=38), publish(2, 3))
    numbered, plain = broker.submitted
    assert numbered.producer == producer_id(ANYBODY, "p")
    assert (numbered.sequence, numbered.resolved) == (40, 38)
    assert (plain.producer, plain.sequence) == (None, None)


async def test_a_sequence_without_a_producer_is_refused(broker: MemoryBroker) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello"}, publish(3, 1, sequence=0))
    _, error = socket.answers()
    assert (error["type"], error["ref"], error["code"]) == ("error", 3, "invalid_request")
    assert broker.submitted == []


async def test_an_answer_comes_when_it_comes(socket: Socket, broker: MemoryBroker) -> None:
    held = broker.messages.held = []
    assert await socket.ask(publish(1, 1)) == []
    (refused,) = await socket.ask(publish(2, "x" * 200))  # nobody has to store it
    assert refused["ref"] == 2
    assert await socket.ask(publish(3, 3)) == []
    held[0].set()
    await settle()
    assert socket.answer()["ref"] == 1
    await until(lambda: len(held) == 2)
    held[1].set()
    await settle()
    assert socket.answer()["ref"] == 3


async def test_an_answer_for_who_has_gone_is_dropped(socket: Socket, broker: MemoryBroker) -> None:
    held = broker.messages.held = []
    assert await socket.ask(publish(1, 1)) == []
    socket.session.end()
    (commit,) = held
    commit.set()
    await settle()
    assert not broker.publisher.pending_messages
    assert socket.answers() == []


async def test_an_unknown_queue_is_refused_and_reading_goes_on() -> None:
    async with running(MemoryBroker()) as broker:
        socket = Socket(broker)
        socket.say({"type": "hello"})
        socket.answers()
        (error,) = await socket.ask(publish(4, 1, queue="nowhere"))
        assert (error["ref"], error["code"]) == (4, "queue_not_found")
        assert socket.holds == 0
        socket.session.end()


async def test_publishes_wait_in_order_for_a_queue_in_the_making(
    socket: Socket, broker: MemoryBroker
) -> None:
    """R7, P9: nothing more is read while they wait."""
    broker.messages.stall("create_queue")
    socket.say(publish(1, "a", queue="new", key="k"))
    socket.say(
        publish(2, "b", queue="new", key="k"), publish(3, "c"), publish(4, "d", queue="newer")
    )
    await settle()
    assert [answer["ref"] for answer in socket.answers() if answer["type"] != "push"] == [3]
    assert socket.holds == 1
    broker.find_queue(ANYBODY, "new")  # it is there now, and yet nobody overtakes
    assert await socket.ask(publish(5, "e", queue="new", key="k")) == []
    broker.messages.well()
    await settle()
    answers = {answer["ref"]: answer for answer in socket.answers()}
    ((number, _),) = answers[1]["receipts"]
    assert [answers[ref]["receipts"] for ref in (1, 2, 5)] == [
        [[number, 0]],
        [[number, 1]],
        [[number, 2]],
    ]
    assert answers[4]["receipts"][0][1] == 0
    assert socket.holds == 0
    (last,) = await socket.ask(publish(6, "f", queue="new", key="k"))
    assert last["receipts"] == [[number, 3]]


async def test_who_leaves_while_a_queue_is_made_publishes_nothing(
    socket: Socket, broker: MemoryBroker
) -> None:
    broker.messages.stall("create_queue")
    await socket.ask(publish(1, "a", queue="new"))
    socket.session.end()
    broker.messages.well()
    await settle()
    broker.find_queue(ANYBODY, "new")
    assert broker.submitted == []


async def test_a_bug_is_answered_internal_and_logged(
    socket: Socket,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P12: and the session goes on."""

    def fail(*_: object, **__: object) -> Never:
        raise RuntimeError("never foreseen")

    for frame, part, name in (
        (publish(1, 1), broker.publisher, "submit"),
        (publish(1, 1, queue="new"), broker, "queue_for_publish"),
        (subscribe(group="g"), broker.groups, "consumer"),
    ):
        with caplog.at_level(logging.ERROR), monkeypatch.context() as broken:
            broken.setattr(part, name, fail)
            (answer,) = await socket.ask(frame)
        assert (answer["ref"], answer["code"]) == (1, "internal")
        assert "never foreseen" not in answer["detail"]
        assert "never foreseen" in caplog.text
        caplog.clear()
    socket.say({"type": "ping", "ref": 9})
    assert socket.answer() == {"type": "pong", "ref": 9}


# --- Subscribing --------------------------------------------------------------------------------


async def test_a_consumer_receives_its_terms_before_any_push(
    socket: Socket, broker: MemoryBroker
) -> None:
    await socket.ask(publish(9, "a", "b", "c"))
    socket.say(subscribe(group="g", credit=2))
    assert socket.answers() == []
    await settle()
    ok, *pushes = socket.answers()
    queue = broker.find_queue(ANYBODY, "q")
    terms = {"queue_id": queue.queue_id, "semantics": "at_least_once", "lease_s": 7}
    assert ok == {"type": "ok", "ref": 1, **terms}
    assert [offset for push in pushes for offset in offsets_of(push)] == [0, 1]
    (push,) = await socket.ask({"type": "credit", "subscription": 1, "granted": 3})
    assert push["offset"] == 2


async def test_a_credit_ahead_of_an_unsubscribe_in_one_message_brings_nothing_back(
    socket: Socket,
) -> None:
    """All of a message is judged before any of it is done: the number is free afterwards."""
    await consumer(socket)
    credit = {"type": "credit", "subscription": 1, "granted": 101}
    leave = {"type": "unsubscribe", "ref": 2, "subscription": 1}
    for _ in range(2):
        assert await socket.ask(credit, leave) == [{"type": "ok", "ref": 2}]
        socket.say(leave)
        assert socket.answer()["code"] == "not_subscribed"
        await consumer(socket)
    answers = await socket.ask(credit, leave, subscribe(group="g"), count=2)
    assert [answer["type"] for answer in answers] == ["ok", "ok"]


async def test_a_group_is_made_by_its_first_subscribe_and_kept_as_it_is(
    socket: Socket, broker: MemoryBroker
) -> None:
    """R11."""
    queue = broker.find_queue(ANYBODY, "q")
    await broker.put_group(ANYBODY, queue, "made", GroupSettings(lease_s=99), None)
    answers = await socket.ask(subscribe(1, group="made"), subscribe(2, group="new"))
    assert [answer["lease_s"] for answer in answers] == [99, 7]
    assert broker.metadata.find_group(ANYBODY, queue, "made").settings.lease_s == 99
    assert broker.metadata.find_group(ANYBODY, queue, "new").settings == GroupSettings()


async def test_a_reader_gets_a_true_verdict_on_its_position(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P10."""
    queue_id = broker.find_queue(ANYBODY, "q").queue_id
    position = {"queue_id": queue_id, "partitions": {"0": [1, 0]}}
    (answer,) = await socket.ask(subscribe(position=position))
    (position,) = answer["positions"]
    assert (position["partition"], position["verdict"], position["from"]) == (0, "resumed", 0)


async def test_a_reader_starts_with_what_comes_next(socket: Socket) -> None:
    await socket.ask(publish(9, "old"))
    (answer,) = await socket.ask(subscribe())
    assert answer["type"] == "ok"
    ok, push = await socket.ask(publish(9, "new"))
    assert (ok["type"], push["type"], push["offset"]) == ("ok", "push", 1)


@pytest.mark.parametrize(
    ("more", "code"),
    [({"queue": "nowhere"}, "queue_not_found"), ({"group": "no spaces"}, "invalid_name")],
)
async def test_a_refused_subscribe_frees_its_number(
    socket: Socket, more: dict[str, str], code: str
) -> None:
    (answer,) = await socket.ask({**subscribe(group="g"), **more})
    assert answer["code"] == code
    (answer,) = await socket.ask(subscribe(group="g"))
    assert answer["type"] == "ok"


async def test_before_its_ok_a_subscription_is_unknown(
    socket: Socket, broker: MemoryBroker
) -> None:
    broker.catalog.stall()
    leave = {"type": "unsubscribe", "ref": 2, "subscription": 1}
    (error,) = await socket.ask(subscribe(group="g"), leave)
    assert (error["ref"], error["code"]) == (2, "not_subscribed")
    broker.catalog.well()
    await settle()
    assert socket.answer()["type"] == "ok"


async def test_who_left_while_subscribing_holds_nothing(
    socket: Socket, broker: MemoryBroker
) -> None:
    await join_late(socket, broker)
    socket.session.end()
    broker.catalog.well()
    await settle()
    assert broker.consumers == []


async def join_late(socket: Socket, broker: MemoryBroker) -> None:
    """A subscribe whose place in the group the catalog is slow to note."""
    queue = broker.find_queue(ANYBODY, "q")
    await broker.put_group(ANYBODY, queue, "g", GroupSettings(), None)
    broker.catalog.stall()
    assert await socket.ask(subscribe(group="g")) == []
    assert len(broker.consumers) == 1


async def test_unsubscribe_leaves_at_once(socket: Socket, broker: MemoryBroker) -> None:
    await consumer(socket)
    assert len(broker.consumers) == 1
    socket.say({"type": "unsubscribe", "ref": 3, "subscription": 1})
    assert broker.consumers == []
    await settle()
    assert socket.answer() == {"type": "ok", "ref": 3}


async def test_the_end_of_the_socket_leaves_everything(
    socket: Socket, broker: MemoryBroker
) -> None:
    await socket.ask(subscribe(1, group="g"), subscribe(2), subscribe(3, group="h"))
    assert (len(broker.consumers), broker.subscription_count) == (2, 3)
    socket.session.end()
    socket.session.end()
    assert broker.subscription_count == 0


async def test_one_that_cannot_leave_does_not_keep_the_others(
    socket: Socket,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> Never:
        raise RuntimeError("never foreseen")

    await socket.ask(subscribe(1, group="g"), subscribe(2, group="h"))
    first, second = broker.consumers
    with monkeypatch.context() as broken:
        broken.setattr(first, "leave", fail)
        socket.session.end()
    assert broker.consumers == [first]
    assert second.left
    assert "never foreseen" in caplog.text
    first.leave()


async def test_pushes_wait_for_the_socket_and_go_on(socket: Socket) -> None:
    """P9."""
    await consumer(socket)
    socket.is_writable = False
    answers = await socket.ask(publish(9, "a"))
    assert [answer["type"] for answer in answers] == ["ok"]
    assert socket.has_refused
    socket.is_writable = True
    socket.session.on_writable()
    await settle()
    assert socket.answer()["type"] == "push"


# --- Settling -----------------------------------------------------------------------------------


def ack(push: int, epoch: int = 1, **more: object) -> dict[str, Any]:
    deliveries = [[0, epoch, push, push - 1, push - 1]]
    return {"type": "ack", "subscription": 1, "deliveries": deliveries, **more}


async def pushed(socket: Socket) -> None:
    """A consumer that holds two messages, in a push of each."""
    await consumer(socket)
    for number, body in enumerate(("a", "b")):
        ok, push = await socket.ask(publish(9, body))
        assert (ok["type"], push["type"]) == ("ok", "push")
        assert (push["epoch"], push["push"], push["offset"]) == (1, number + 1, number)


async def test_an_ack_without_ref_is_not_answered(socket: Socket, broker: MemoryBroker) -> None:
    await pushed(socket)
    assert await socket.ask(ack(1), ack(2, epoch=0)) == []
    (place,) = broker.consumers
    assert place.unsettled() == 1
    (answer,) = await socket.ask(ack(2, ref=1), count=1)  # it is the other one that is held
    assert answer["settled"] == 1


async def test_a_confirmed_ack_is_answered_once_it_is_durable(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P5."""
    await pushed(socket)
    broker.messages.stall("write_cursors")
    assert await socket.ask(ack(1, ref=5)) == []
    await until(lambda: broker.messages.under_way["write_cursors"])
    assert socket.answers() == []
    broker.messages.well()
    await settle()
    assert socket.answer() == {"type": "ok", "ref": 5, "settled": 1, "stale": []}
    (answer,) = await socket.ask(ack(2, epoch=0, ref=6))
    assert answer == {"type": "ok", "ref": 6, "settled": 0, "stale": [[0, 0, 2, 1, 1]]}


async def test_an_ack_that_may_not_be_durable_is_unknown(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P5: never a yes that is not sure."""
    await pushed(socket)
    queue = broker.find_queue(ANYBODY, "q")
    group = broker.metadata.find_group(ANYBODY, queue, "g")
    place = CursorPlace(group.group_id, Partition(queue.queue_id, 0))
    await broker.storage.own(place, token=b"of somebody else", assignment=99, epoch_seen=1)
    answer = (await socket.ask(ack(1, ref=5), count=1))[0]
    assert (answer["ref"], answer["code"], answer["retry"]) == (5, "unknown", True)


@pytest.mark.parametrize("ref", [{}, {"ref": 8}])
async def test_what_was_never_delivered_is_an_error_that_lists_it(
    socket: Socket, ref: dict[str, int]
) -> None:
    """P11, P12."""
    await pushed(socket)
    for kind in ("ack", "nack", "extend"):
        (error,) = await socket.ask({**ack(77), "type": kind, **ref})
        assert (error["type"], error["code"]) == ("error", "not_delivered")
        assert (error["subscription"], error["deliveries"]) == (1, [[0, 1, 77, 76, 76]])
        assert error.get("ref") == ref.get("ref")


async def test_nack_and_extend_are_answered_when_they_ask(socket: Socket) -> None:
    await pushed(socket)
    answers = await socket.ask(
        {**ack(1, ref=1), "type": "extend"}, {**ack(1, ref=2), "type": "nack"}, count=2
    )
    assert [(answer["ref"], answer["settled"]) for answer in answers] == [(1, 1), (2, 1)]
    assert await socket.ask({**ack(2), "type": "extend"}, {**ack(2), "type": "nack"}) == []


async def test_a_reader_settles_nothing(socket: Socket) -> None:
    await socket.ask(subscribe())
    (error,) = await socket.ask(ack(1, ref=5))
    assert (error["ref"], error["code"]) == (5, "invalid_request")


# --- Time and end -------------------------------------------------------------------------------


async def test_silence_is_pinged_then_closed(socket: Socket) -> None:
    assert socket.session.next_deadline() == 20
    socket.session.expire(now=20)
    assert socket.pings == 1
    socket.session.on_bytes(now=30)
    assert socket.session.next_deadline() == 50
    socket.session.expire(now=50)
    socket.session.expire(now=70)
    assert socket.close_code == frames.HEARTBEAT
    assert socket.session.next_deadline() is None


async def test_a_client_that_takes_something_large_is_not_silent(socket: Socket) -> None:
    """P6: and when it takes nothing more, it is."""
    socket.taken = 1_000
    socket.session.expire(now=20)
    for turn in range(3):
        socket.taken += 1
        socket.session.expire(now=40 + 20 * turn)
    assert (socket.pings, socket.close_code) == (1, None)
    socket.session.expire(now=100)
    assert socket.close_code == frames.HEARTBEAT


async def test_a_client_in_the_middle_of_a_message_hears_that_it_arrives(socket: Socket) -> None:
    """Else it would give us up: what it asks meanwhile stands behind its message."""
    said = 0
    for at in range(31):
        socket.session.on_bytes(now=at)
        socket.session.on_part(now=at)
        said += len([frame for frame in socket.answers() if frame["type"] == "pong"])
    assert said == 6
    socket.say({"type": "ping", "ref": 1}, now=32)
    assert socket.answer()["ref"] == 1
    socket.session.on_part(now=33)
    assert socket.answers() == []


async def test_a_drain_closes_who_holds_nothing_at_once(socket: Socket) -> None:
    """P14."""
    socket.session.drain(2.5)
    drain = socket.answer()
    assert (drain["type"], drain["reconnect_after_s"]) == ("drain", 2.5)
    assert socket.close_code == frames.DRAINING


async def test_a_drain_waits_for_the_answers_of_publishes(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P14."""
    held = broker.messages.held = []
    await socket.ask(publish(1, 1))
    socket.session.drain(1)
    (drain,) = await socket.ask(publish(2, 2))  # still taken: it can still be committed
    assert drain["type"] == "drain"
    held[0].set()
    await until(lambda: len(held) == 2)
    assert socket.close_code is None
    held[1].set()
    await settle()
    assert [answer.get("ref") for answer in socket.answers()] == [1, 2]
    assert socket.close_code == frames.DRAINING


async def test_a_drain_gives_nothing_more_and_waits_for_what_was_given(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P14."""
    await pushed(socket)
    socket.session.drain(1)
    socket.session.drain(1)
    answers = await socket.ask(publish(3, "c"), subscribe(2, group="g"))
    socket.session.on_writable()
    await settle()
    assert [answer.get("code", answer["type"]) for answer in answers + socket.answers()] == [
        "drain",
        "draining",
        "ok",
    ]
    broker.messages.stall("write_cursors")
    await socket.ask(ack(1), ack(2, ref=4))
    await until(lambda: broker.messages.under_way["write_cursors"])
    assert socket.close_code is None  # the confirmation is owed
    broker.messages.well()
    await settle()
    assert socket.answer()["ref"] == 4
    assert socket.close_code == frames.DRAINING
    assert broker.consumers == []


async def test_a_drain_says_what_was_never_delivered_before_it_closes(socket: Socket) -> None:
    """P12, P14: the ack that settles the last names something else, too, and has no ref."""
    await pushed(socket)
    socket.session.drain(1)
    last = ack(1)
    last["deliveries"] += [[0, 1, 2, 1, 1], [0, 1, 77, 76, 76]]
    drain, error = await socket.ask(last)
    assert drain["type"] == "drain"
    assert (error["code"], error["deliveries"]) == ("not_delivered", [[0, 1, 77, 76, 76]])
    assert socket.close_code == frames.DRAINING


async def test_a_drain_closes_when_time_ends_the_last_lease(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P14: nobody has to say anything for it; and without a drain it says nothing."""
    await short_leases(broker)
    await pushed(socket)
    (place,) = broker.consumers
    await until(lambda: not place.unsettled())
    await settle()
    assert socket.close_code is None
    await until(lambda: place.unsettled() == 2)  # they are given again
    socket.session.drain(1)
    assert socket.close_code is None
    await until(lambda: not place.unsettled())
    await settle()
    assert socket.close_code == frames.DRAINING
    assert broker.consumers == []


async def short_leases(broker: MemoryBroker) -> None:
    """What is given by the group from now on comes back soon."""
    queue = broker.find_queue(ANYBODY, "q")
    settings = GroupSettings(lease_s=0.3, attempts_max=1000, backoff_s=0.001, backoff_max_s=0.001)
    await broker.put_group(ANYBODY, queue, "g", settings, None)


async def test_a_drain_that_time_has_emptied_still_owes_its_answers(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P14."""
    await short_leases(broker)
    await pushed(socket)
    (place,) = broker.consumers
    held = broker.messages.held = []
    socket.session.drain(1)
    (drain,) = await socket.ask(publish(3, "c"))
    assert drain["type"] == "drain"
    await until(lambda: not place.unsettled())
    await settle()
    assert socket.close_code is None
    (commit,) = held
    commit.set()
    await settle()
    assert [answer["ref"] for answer in socket.answers() if "ref" in answer] == [3]
    assert socket.close_code == frames.DRAINING


async def test_a_drain_waits_for_a_subscribe_on_its_way(
    socket: Socket, broker: MemoryBroker
) -> None:
    await join_late(socket, broker)
    (place,) = broker.consumers
    socket.session.drain(1)
    assert socket.close_code is None
    broker.catalog.well()
    await settle()
    assert socket.close_code == frames.DRAINING
    assert place.left
    assert broker.consumers == []


async def test_a_refusal_says_what_to_do_again(
    socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 0)
    socket.say(publish(1, 1))
    (error,) = socket.answer()["receipts"]
    assert (error["code"], error["retry"], error["retry_after_s"]) == ("overloaded", True, 0.1)
