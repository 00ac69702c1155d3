"""The conversation: what a client is answered, and what the inside is asked."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.auth.auth import LET_IN, Authenticator
from gateway.limits.limiter import Limiter
from gateway.models import Transport
from gateway.session.credential import producer_id
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire import frames
from gateway.wire.frames import Close
from metadata.catalog import ANYBODY, GroupSettings, Principal, QueueSettings
from push.errors import Refused
from push.limits import FRAME_BYTES_MAX
from runtime.addresses import UNKNOWN
from runtime.loop.fairness import ArrivalGate
from tests.gateway.echo_broker import EchoBroker, EchoPlace


class Socket:
    """An outlet (gateway.session.transport.Outlet) that keeps what it is given, and its
    conversation."""

    transport: Transport | None = "websocket"
    unsent_bytes = 0

    def __init__(
        self, broker: EchoBroker, auth: Authenticator | None = None, limiter: Limiter | None = None
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_writable = True
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
        return self.is_writable

    def ping(self) -> None:
        self.pings += 1

    def taken_bytes(self) -> int | None:
        return self.taken

    is_in_transit = False

    def arrived(self, given_at: float) -> float | None:
        return given_at

    def named(self, given_at: float) -> None:
        raise AssertionError("nothing is in transit")

    def pause_reading(self) -> None:
        self.holds += 1

    def resume_reading(self) -> None:
        self.holds -= 1

    def close(self, close: Close) -> None:
        assert self.close_code is None
        self.close_code = close
        self.session.closed()

    def adopt(self, session: Session) -> None:
        self.session = session

    def let_go(self, close: Close) -> None:
        self.close_code = close

    def say(self, *values: dict[str, Any], now: float = 0) -> None:
        value = values[0] if len(values) == 1 else list(values)
        self.session.receive(msgspec.json.encode(value), now=now)

    def answers(self) -> list[dict[str, Any]]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def answer(self) -> dict[str, Any]:
        (answer,) = self.answers()
        return answer


async def settle(turns: int = 10) -> None:
    """Let what was started run as far as it can."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture
async def broker() -> EchoBroker:
    made = EchoBroker()
    await made.add_queue("q", QueueSettings(message_bytes_max=100, lease_s=7))
    return made


@pytest.fixture
def socket(broker: EchoBroker) -> Iterator[Socket]:
    made = Socket(broker)
    made.say({"type": "hello", "producer": "p"})
    assert made.answer()["type"] == "welcome"
    yield made
    made.session.closed()


def publish(ref: int, *bodies: object, queue: str = "q", **more: object) -> dict[str, Any]:
    return {
        "type": "publish", "ref": ref, "queue": queue,
        "messages": [{"body": body} for body in bodies], **more,
    }  # fmt: skip


def subscribe(number: int = 1, credit: int = 100, **more: object) -> dict[str, Any]:
    return {
        "type": "subscribe", "ref": 1, "subscription": number, "queue": "q", "credit": credit,
        **more,
    }  # fmt: skip


async def consumer(socket: Socket, broker: EchoBroker) -> EchoPlace:
    socket.say(subscribe(group="g"))
    await settle()
    assert socket.answer()["type"] == "ok"
    return broker.places[-1]


# --- Hello --------------------------------------------------------------------------------------


def test_welcome_names_session_and_bounds(broker: EchoBroker) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello"})
    welcome = socket.answer()
    assert welcome["session"] == "s-1"
    assert welcome["frame_bytes_max"] == FRAME_BYTES_MAX


async def test_a_token_in_hello_says_who_it_is(broker: EchoBroker) -> None:
    socket = Socket(broker, Authenticator("right"))
    socket.say({"type": "hello", "token": "right"})
    assert socket.answer()["type"] == "welcome"
    assert socket.session.principal == Principal("operator")


@pytest.mark.parametrize("hello", [{}, {"token": "wrong"}])
def test_a_wrong_token_closes_and_nothing_behind_it_happens(
    broker: EchoBroker, hello: dict[str, str]
) -> None:
    """P11."""
    socket = Socket(broker, Authenticator("right"))
    socket.say({"type": "hello", **hello}, publish(1, 1))
    assert socket.close_code == frames.UNAUTHORIZED
    assert broker.submitted == []
    assert socket.answers() == []


def test_a_producer_of_an_invalid_name_is_refused_with_the_reason(broker: EchoBroker) -> None:
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


def test_each_message_of_a_publish_has_its_own_answer_in_order(socket: Socket) -> None:
    """R5."""
    messages = [
        {"key": "k", "body": 1},
        {"body": "x" * 200},
        {"body": 2, "id": "again"},
        {"body": 3, "id": "unknown"},
        {"key": "", "body": 4},
    ]
    socket.say({"type": "publish", "ref": 7, "queue": "q", "messages": messages})
    answer = socket.answer()
    assert (answer["type"], answer["ref"]) == ("ok", 7)
    assert answer["durability"] == {"level": "all", "copies": 1}
    first, second, third, fourth, fifth = answer["receipts"]
    assert first == [0, 0]
    assert (second["code"], second["retry"]) == ("message_too_large", False)
    assert third == [0, 1, True]
    assert (fourth["code"], fourth["retry"]) == ("unknown", True)
    assert fifth["code"] == "invalid_message"


def test_a_publish_hands_on_its_sequence_under_its_producer(
    socket: Socket, broker: EchoBroker
) -> None:
    """R6."""
    socket.say(publish(1, 1, 2, sequence=40, resolved=38), publish(2, 3))
    numbered, plain = broker.submitted
    assert numbered.producer == producer_id(ANYBODY, "p")
    assert (numbered.sequence, numbered.resolved) == (40, 38)
    assert (plain.producer, plain.sequence) == (None, None)


def test_a_sequence_without_a_producer_is_refused(broker: EchoBroker) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello"}, publish(3, 1, sequence=0))
    _, error = socket.answers()
    assert (error["type"], error["ref"], error["code"]) == ("error", 3, "invalid_request")
    assert broker.submitted == []


def test_an_answer_comes_when_it_comes(socket: Socket, broker: EchoBroker) -> None:
    broker.unanswered = []
    socket.say(publish(1, 1))
    socket.say(publish(2, 2))
    assert socket.answers() == []
    for give in reversed(broker.unanswered):
        give()
    assert [answer["ref"] for answer in socket.answers()] == [2, 1]


def test_an_answer_for_who_has_gone_is_dropped(socket: Socket, broker: EchoBroker) -> None:
    broker.unanswered = []
    socket.say(publish(1, 1))
    socket.session.closed()
    broker.unanswered[0]()
    assert socket.answers() == []


async def test_an_unknown_queue_is_refused_and_reading_goes_on(socket: Socket) -> None:
    socket.say(publish(4, 1, queue="nowhere"))
    await settle()
    error = socket.answer()
    assert (error["ref"], error["code"]) == (4, "queue_not_found")
    assert socket.holds == 0


async def test_publishes_wait_in_order_for_a_queue_in_the_making(
    socket: Socket, broker: EchoBroker
) -> None:
    """R7, P9: nothing more is read while they wait."""
    broker.auto_create = True
    broker.gate.clear()
    socket.say(publish(1, "a", queue="new"))
    socket.say(publish(2, "b", queue="new"), publish(3, "c"), publish(4, "d", queue="newer"))
    await settle()
    assert [answer["ref"] for answer in socket.answers()] == [3]
    assert socket.holds == 1
    await broker.add_queue("new")  # it is there now, and yet nobody overtakes
    socket.say(publish(5, "e", queue="new"))
    assert socket.answers() == []
    broker.gate.set()
    await settle()
    answers = {answer["ref"]: answer for answer in socket.answers()}
    assert [answers[ref]["receipts"] for ref in (1, 2, 5, 4)] == [
        [[0, 0]],
        [[0, 1]],
        [[0, 2]],
        [[0, 0]],
    ]
    assert socket.holds == 0
    socket.say(publish(6, "f", queue="new"))
    assert socket.answer()["receipts"] == [[0, 3]]


async def test_who_leaves_while_a_queue_is_made_publishes_nothing(
    socket: Socket, broker: EchoBroker
) -> None:
    broker.auto_create = True
    broker.gate.clear()
    socket.say(publish(1, "a", queue="new"))
    await settle()
    socket.session.closed()
    broker.gate.set()
    await settle()
    assert broker.submitted == []


async def test_a_bug_is_answered_internal_and_logged(
    socket: Socket, broker: EchoBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """P12: and the session goes on."""
    for frame in (publish(1, 1), publish(1, 1, queue="new"), subscribe(group="g")):
        broker.bug = RuntimeError("never foreseen")
        with caplog.at_level(logging.ERROR):
            socket.say(frame)
            await settle()
        answer = socket.answer()
        assert (answer["ref"], answer["code"]) == (1, "internal")
        assert "never foreseen" not in answer["detail"]
        assert "never foreseen" in caplog.text
        caplog.clear()
    socket.say({"type": "ping", "ref": 9})
    assert socket.answer() == {"type": "pong", "ref": 9}


# --- Subscribing --------------------------------------------------------------------------------


async def test_a_consumer_is_told_its_terms_before_any_push(
    socket: Socket, broker: EchoBroker
) -> None:
    socket.say(publish(9, "a", "b", "c"))
    socket.answers()
    socket.say(subscribe(group="g", credit=2))
    assert socket.answers() == []
    await settle()
    ok, *pushes = socket.answers()
    queue = broker.metadata.find_queue(ANYBODY, "q")
    terms = {"queue_id": queue.queue_id, "semantics": "at_least_once", "lease_s": 7}
    assert ok == {"type": "ok", "ref": 1, **terms}
    assert [push["offset"] for push in pushes] == [0, 1]
    socket.say({"type": "credit", "subscription": 1, "granted": 3})
    assert socket.answer()["offset"] == 2


async def test_a_credit_ahead_of_an_unsubscribe_in_one_message_brings_nothing_back(
    socket: Socket, broker: EchoBroker
) -> None:
    """All of a message is judged before any of it is done: the number is free afterwards."""
    await consumer(socket, broker)
    credit = {"type": "credit", "subscription": 1, "granted": 101}
    leave = {"type": "unsubscribe", "ref": 2, "subscription": 1}
    for _ in range(2):
        socket.say(credit, leave)
        assert socket.answer() == {"type": "ok", "ref": 2}
        socket.say(leave)
        assert socket.answer()["code"] == "not_subscribed"
        await consumer(socket, broker)
    socket.say(credit, leave, subscribe(group="g"))
    await settle()
    assert [answer["type"] for answer in socket.answers()] == ["ok", "ok"]


async def test_a_group_is_made_by_its_first_subscribe_and_kept_as_it_is(
    socket: Socket, broker: EchoBroker
) -> None:
    """R11."""
    queue = broker.metadata.find_queue(ANYBODY, "q")
    await broker.metadata.put_group(ANYBODY, queue, "made", GroupSettings(lease_s=99))
    socket.say(subscribe(1, group="made"), subscribe(2, group="new"))
    await settle()
    assert [answer["lease_s"] for answer in socket.answers()] == [99, 7]
    assert broker.metadata.find_group(ANYBODY, queue, "made").settings.lease_s == 99
    assert broker.metadata.find_group(ANYBODY, queue, "new").settings == GroupSettings()


async def test_a_reader_is_told_the_truth_about_its_position(
    socket: Socket, broker: EchoBroker
) -> None:
    """P10."""
    socket.say(subscribe(position={"queue_id": "q1", "partitions": {"0": [1, 0]}}))
    await settle()
    answer = socket.answer()
    assert answer["positions"] == [{"partition": 0, "verdict": "resumed"}]


async def test_a_reader_starts_with_what_comes_next(socket: Socket) -> None:
    socket.say(publish(9, "old"))
    socket.answers()
    socket.say(subscribe())
    await settle()
    assert socket.answer()["type"] == "ok"
    socket.say(publish(9, "new"))
    ok, push = socket.answers()
    assert (ok["type"], push["type"], push["offset"]) == ("ok", "push", 1)


@pytest.mark.parametrize(
    ("more", "code"),
    [({"queue": "nowhere"}, "queue_not_found"), ({"group": "no spaces"}, "invalid_name")],
)
async def test_a_refused_subscribe_frees_its_number(
    socket: Socket, more: dict[str, str], code: str
) -> None:
    socket.say({**subscribe(group="g"), **more})
    await settle()
    assert socket.answer()["code"] == code
    socket.say(subscribe(group="g"))
    await settle()
    assert socket.answer()["type"] == "ok"


async def test_before_its_ok_a_subscription_is_unknown(socket: Socket, broker: EchoBroker) -> None:
    broker.gate.clear()
    socket.say(subscribe(group="g"), {"type": "unsubscribe", "ref": 2, "subscription": 1})
    await settle()
    error = socket.answer()
    assert (error["ref"], error["code"]) == (2, "not_subscribed")
    broker.gate.set()
    await settle()
    assert socket.answer()["type"] == "ok"


async def test_who_left_while_subscribing_holds_nothing(socket: Socket, broker: EchoBroker) -> None:
    broker.gate.clear()
    socket.say(subscribe(group="g"))
    await settle()
    socket.session.closed()
    broker.gate.set()
    await settle()
    assert broker.places[0].is_gone.is_set()


async def test_unsubscribe_leaves_at_once(socket: Socket, broker: EchoBroker) -> None:
    place = await consumer(socket, broker)
    socket.say({"type": "unsubscribe", "ref": 3, "subscription": 1})
    assert place.is_gone.is_set()
    assert socket.answer() == {"type": "ok", "ref": 3}


async def test_the_end_of_the_socket_leaves_everything(socket: Socket, broker: EchoBroker) -> None:
    socket.say(subscribe(1, group="g"), subscribe(2), subscribe(3, group="h"))
    await settle()
    socket.session.closed()
    socket.session.closed()
    assert len(broker.places) == 3
    assert all(place.is_gone.is_set() for place in broker.places)


async def test_one_that_cannot_leave_does_not_keep_the_others(
    socket: Socket, broker: EchoBroker, caplog: pytest.LogCaptureFixture
) -> None:
    socket.say(subscribe(1, group="g"), subscribe(2, group="h"))
    await settle()
    broker.places[0].leave()  # the second time it raises
    socket.session.closed()
    assert broker.places[1].is_gone.is_set()
    assert "left twice" in caplog.text


async def test_pushes_wait_for_the_socket_and_go_on(socket: Socket, broker: EchoBroker) -> None:
    """P9."""
    place = await consumer(socket, broker)
    socket.is_writable = False
    socket.say(publish(9, "a"))
    assert [answer["type"] for answer in socket.answers()] == ["ok"]
    assert place.is_stalled.is_set()
    socket.is_writable = True
    socket.session.resume()
    assert socket.answer()["type"] == "push"


# --- Settling -----------------------------------------------------------------------------------


def ack(push: int, epoch: int = 1, **more: object) -> dict[str, Any]:
    deliveries = [[0, epoch, push, push - 1, push - 1]]
    return {"type": "ack", "subscription": 1, "deliveries": deliveries, **more}


async def pushed(socket: Socket, broker: EchoBroker) -> EchoPlace:
    place = await consumer(socket, broker)
    socket.say(publish(9, "a", "b"))
    assert [answer["type"] for answer in socket.answers()] == ["ok", "push", "push"]
    return place


async def test_an_ack_without_ref_is_not_answered(socket: Socket, broker: EchoBroker) -> None:
    place = await pushed(socket, broker)
    socket.say(ack(1), ack(2, epoch=0))
    assert socket.answers() == []
    assert place.open == {1}


async def test_a_confirmed_ack_is_answered_once_it_is_durable(
    socket: Socket, broker: EchoBroker
) -> None:
    """P5."""
    place = await pushed(socket, broker)
    place.waiting = []
    socket.say(ack(1, ref=5))
    assert socket.answers() == []
    confirmed, settled = place.waiting.pop()
    confirmed(settled)
    assert socket.answer() == {"type": "ok", "ref": 5, "settled": 1, "stale": []}
    place.waiting = None
    socket.say(ack(2, epoch=0, ref=6))
    assert socket.answer() == {"type": "ok", "ref": 6, "settled": 0, "stale": [[0, 0, 2, 1, 1]]}


async def test_an_ack_that_may_not_be_durable_is_unknown(
    socket: Socket, broker: EchoBroker
) -> None:
    """P5: never a yes that is not sure."""
    place = await pushed(socket, broker)
    place.is_durable = False
    socket.say(ack(1, ref=5))
    answer = socket.answer()
    assert (answer["ref"], answer["code"], answer["retry"]) == (5, "unknown", True)


@pytest.mark.parametrize("ref", [{}, {"ref": 8}])
async def test_what_was_never_delivered_is_an_error_that_lists_it(
    socket: Socket, broker: EchoBroker, ref: dict[str, int]
) -> None:
    """P11, P12."""
    await pushed(socket, broker)
    for kind in ("ack", "nack", "extend"):
        socket.say({**ack(77), "type": kind, **ref})
        error = socket.answer()
        assert (error["type"], error["code"]) == ("error", "not_delivered")
        assert (error["subscription"], error["deliveries"]) == (1, [[0, 1, 77, 76, 76]])
        assert error.get("ref") == ref.get("ref")


async def test_nack_and_extend_are_answered_when_they_ask(
    socket: Socket, broker: EchoBroker
) -> None:
    await pushed(socket, broker)
    socket.say({**ack(1, ref=1), "type": "extend"}, {**ack(1, ref=2), "type": "nack"})
    assert [(answer["ref"], answer["settled"]) for answer in socket.answers()] == [(1, 1), (2, 1)]
    socket.say({**ack(1), "type": "extend"}, {**ack(1), "type": "nack"})
    assert socket.answers() == []


async def test_a_reader_settles_nothing(socket: Socket) -> None:
    socket.say(subscribe())
    await settle()
    socket.answers()
    socket.say(ack(1, ref=5))
    error = socket.answer()
    assert (error["ref"], error["code"]) == (5, "invalid_request")


# --- Time and end -------------------------------------------------------------------------------


def test_silence_is_pinged_then_closed(socket: Socket) -> None:
    assert socket.session.next_deadline() == 20
    socket.session.expire(now=20)
    assert socket.pings == 1
    socket.session.heard(now=30)
    assert socket.session.next_deadline() == 50
    socket.session.expire(now=50)
    socket.session.expire(now=70)
    assert socket.close_code == frames.HEARTBEAT
    assert socket.session.next_deadline() is None


def test_a_client_that_takes_something_large_is_not_silent(socket: Socket) -> None:
    """P6: and when it takes nothing more, it is."""
    socket.taken = 1_000
    socket.session.expire(now=20)
    for turn in range(3):
        socket.taken += 1
        socket.session.expire(now=40 + 20 * turn)
    assert (socket.pings, socket.close_code) == (1, None)
    socket.session.expire(now=100)
    assert socket.close_code == frames.HEARTBEAT


def test_a_client_in_the_middle_of_a_message_hears_that_it_arrives(socket: Socket) -> None:
    """Else it would give us up: what it asks meanwhile stands behind its message."""
    said = 0
    for at in range(31):
        socket.session.heard(now=at)
        socket.session.heard_part(now=at)
        said += len([frame for frame in socket.answers() if frame["type"] == "pong"])
    assert said == 6
    socket.say({"type": "ping", "ref": 1}, now=32)
    assert socket.answer()["ref"] == 1
    socket.session.heard_part(now=33)
    assert socket.answers() == []


def test_a_drain_closes_who_holds_nothing_at_once(socket: Socket) -> None:
    """P14."""
    socket.session.drain(2.5)
    drain = socket.answer()
    assert (drain["type"], drain["reconnect_after_s"]) == ("drain", 2.5)
    assert socket.close_code == frames.DRAINING


def test_a_drain_waits_for_the_answers_of_publishes(socket: Socket, broker: EchoBroker) -> None:
    """P14."""
    broker.unanswered = []
    socket.say(publish(1, 1))
    socket.session.drain(1)
    socket.say(publish(2, 2))  # still taken: it can still be committed
    broker.unanswered[0]()
    assert socket.close_code is None
    broker.unanswered[1]()
    assert [answer.get("ref") for answer in socket.answers()] == [None, 1, 2]
    assert socket.close_code == frames.DRAINING


async def test_a_drain_gives_nothing_more_and_waits_for_what_was_given(
    socket: Socket, broker: EchoBroker
) -> None:
    """P14."""
    place = await pushed(socket, broker)
    socket.session.drain(1)
    socket.session.drain(1)
    socket.say(publish(3, "c"), subscribe(2, group="g"))
    socket.session.resume()
    assert [answer.get("code", answer["type"]) for answer in socket.answers()] == [
        "drain",
        "ok",
        "draining",
    ]
    place.waiting = []
    socket.say(ack(1), ack(2, ref=4))
    assert socket.close_code is None  # the confirmation is owed
    confirmed, settled = place.waiting.pop()
    confirmed(settled)
    assert socket.answer()["ref"] == 4
    assert socket.close_code == frames.DRAINING
    assert place.is_gone.is_set()


async def test_a_drain_closes_when_time_ends_the_last_lease(
    socket: Socket, broker: EchoBroker
) -> None:
    """P14: nobody has to say anything for it; and without a drain it says nothing."""
    place = await pushed(socket, broker)
    place.expire()
    await settle()
    assert socket.close_code is None
    place.open.add(1)
    socket.session.drain(1)
    assert socket.close_code is None
    place.expire()
    await settle()
    assert socket.close_code == frames.DRAINING
    assert place.is_gone.is_set()


async def test_a_drain_that_time_has_emptied_still_owes_its_answers(
    socket: Socket, broker: EchoBroker
) -> None:
    """P14."""
    place = await pushed(socket, broker)
    broker.unanswered = []
    socket.session.drain(1)
    socket.say(publish(3, "c"))
    place.expire()
    await settle()
    assert socket.close_code is None
    broker.unanswered[0]()
    assert [answer.get("ref") for answer in socket.answers()] == [None, 3]
    assert socket.close_code == frames.DRAINING


async def test_a_drain_waits_for_a_subscribe_on_its_way(socket: Socket, broker: EchoBroker) -> None:
    broker.gate.clear()
    socket.say(subscribe(group="g"))
    await settle()
    socket.session.drain(1)
    assert socket.close_code is None
    broker.gate.set()
    await settle()
    assert socket.close_code == frames.DRAINING
    assert broker.places[0].is_gone.is_set()


def test_a_refusal_says_what_to_do_again(broker: EchoBroker, socket: Socket) -> None:
    broker.bug = Refused("overloaded", retry_after_s=1.5)
    socket.say(publish(1, 1))
    error = socket.answer()
    assert (error["code"], error["retry"], error["retry_after_s"]) == ("overloaded", True, 1.5)
