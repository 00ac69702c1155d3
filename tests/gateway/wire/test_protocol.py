"""The session machine: what may be said when, and silence in literal times."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.protocol import (
    INVALID_UTF8,
    SEQUENCE_MAX,
    Effect,
    Refusal,
    SendPing,
    SessionProtocol,
    State,
    Timing,
)
from push import limits

TIMING = Timing(hello_timeout_s=10, heartbeat_s=20, heartbeat_timeout_s=20)
SUBSCRIBE = {"type": "subscribe", "ref": 1, "subscription": 1, "queue": "q", "credit": 100}
ACK = {"type": "ack", "subscription": 1, "deliveries": [[0, 1, 1, 0, 0]]}


def say(session: SessionProtocol, *values: Any, now: float = 0) -> list[Effect]:
    value = values[0] if len(values) == 1 else list(values)
    effects = session.receive(msgspec.json.encode(value), now=now)
    session.check()
    return effects


def opened(*, subscribed: bool = False) -> SessionProtocol:
    session = SessionProtocol(TIMING, now=0)
    assert say(session, {"type": "hello"}) == [frames.Hello()]
    if subscribed:
        say(session, SUBSCRIBE)
        session.on_open(1, 100)
    return session


def error_of(effect: Effect) -> tuple[str, int | None]:
    assert isinstance(effect, Refusal), effect
    fields = msgspec.json.decode(effect.frame)
    assert fields["type"] == "error"
    assert fields["detail"]
    return fields["code"], fields.get("ref")


# --- Hello --------------------------------------------------------------------------------------


def test_hello_opens_the_session() -> None:
    session = SessionProtocol(TIMING, now=0)
    (hello,) = say(session, {"type": "hello", "producer": "p", "token": "t"})
    assert hello == frames.Hello(producer="p", token="t")
    assert session.state is State.OPEN


@pytest.mark.parametrize("frame", [{"type": "ping"}, SUBSCRIBE, ACK])
def test_whatever_comes_before_hello_closes(frame: dict[str, Any]) -> None:
    session = SessionProtocol(TIMING, now=0)
    assert say(session, frame, {"type": "hello"}) == [frames.HELLO_FIRST]
    assert session.state is State.CLOSED
    assert say(session, {"type": "hello"}) == []


def test_a_second_hello_closes_after_what_came_before_it() -> None:
    session = opened()
    assert say(session, {"type": "ping", "ref": 1}, {"type": "hello"}, {"type": "ping"}) == [
        frames.Ping(ref=1),
        frames.HELLO_FIRST,
    ]


def test_an_undecodable_hello_says_why_and_closes() -> None:
    session = SessionProtocol(TIMING, now=0)
    reply, close = say(session, {"type": "hello", "producer": 7})
    assert error_of(reply) == ("invalid_request", None)
    assert close == frames.PROTOCOL


# --- What nobody can decode ---------------------------------------------------------------------


def test_an_undecodable_message_is_answered_and_changes_nothing() -> None:
    session = opened(subscribed=True)
    (reply,) = say(session, {"type": "unsubscribe", "ref": 5, "subscription": 1, "extra": 1})
    assert error_of(reply) == ("invalid_request", 5)
    assert say(session, ACK) == [frames.Ack(subscription=1, deliveries=[[0, 1, 1, 0, 0]])]


def test_every_ref_of_an_undecodable_array_is_answered() -> None:
    """One bad frame spoils its message; no request of it may wait for ever."""
    session = opened()
    replies = say(
        session, {"type": "ping", "ref": 1}, {"type": "nonsense", "ref": 2}, {"type": "ping"}
    )
    assert [error_of(reply) for reply in replies] == [
        ("invalid_request", 1),
        ("invalid_request", 2),
    ]


@pytest.mark.parametrize("ref", [-1, 1 << 53, "x", True, None, 1.5, [1]])
def test_a_ref_that_is_none_is_not_repeated(ref: object) -> None:
    (reply,) = say(opened(), {"type": "ping", "ref": ref, "extra": 1})
    assert error_of(reply) == ("invalid_request", None)


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_the_last_sequence_of_a_publish_is_bounded_as_the_first_one(count: int) -> None:
    """P12: the sequence of every message stays a number that JSON can carry."""

    def publish(sequence: int) -> dict[str, Any]:
        messages = [{"body": n} for n in range(count)]
        return {
            "type": "publish",
            "ref": 4,
            "queue": "q",
            "sequence": sequence,
            "messages": messages,
        }

    session = opened()
    largest = SEQUENCE_MAX - count + 1
    (taken,) = say(session, publish(largest))
    assert isinstance(taken, frames.Publish)
    assert taken.sequence == largest
    (refused,) = say(session, publish(largest + 1))
    assert error_of(refused) == ("invalid_request", 4)
    assert say(session, {"type": "ping"}) == [frames.Ping()]  # the session goes on


def test_the_seventeenth_bad_message_closes() -> None:
    session = opened()
    for _ in range(limits.BAD_MESSAGES_PER_SESSION_MAX):
        (reply,) = session.receive(b"nonsense", now=0)
        assert error_of(reply) == ("invalid_json", None)
        assert say(session, {"type": "ping"}) == [frames.Ping()]
    reply, close = session.receive(b"nonsense", now=0)
    assert error_of(reply) == ("invalid_json", None)
    assert close == frames.PROTOCOL
    session.check()


def test_text_that_is_not_utf8_closes_as_the_websocket_protocol_demands() -> None:
    """RFC 6455, 8.1."""
    reply, close = opened().receive(b'{"type":"ping","ref":"\xff"}', now=0)
    assert error_of(reply) == ("invalid_json", None)
    assert close == INVALID_UTF8


def test_a_binary_message_closes() -> None:
    session = opened()
    reply, close = session.receive_binary()
    assert error_of(reply) == ("invalid_request", None)
    assert close == frames.PROTOCOL
    assert session.receive_binary() == []


# --- Subscriptions ------------------------------------------------------------------------------


def test_a_taken_number_is_refused_and_stays_taken() -> None:
    session = opened(subscribed=True)
    (reply,) = say(session, {**SUBSCRIBE, "ref": 2})
    assert error_of(reply) == ("already_subscribed", 2)
    (ack,) = say(session, ACK)
    assert isinstance(ack, frames.Ack)


@pytest.mark.parametrize(
    "frame",
    [
        {**ACK, "ref": 9},
        {"type": "nack", "ref": 9, "subscription": 1, "deliveries": []},
        {"type": "extend", "ref": 9, "subscription": 1},
        {"type": "unsubscribe", "ref": 9, "subscription": 1},
    ],
)
def test_a_number_is_unknown_before_its_ok_and_after_its_end(frame: dict[str, Any]) -> None:
    session = opened()
    assert error_of(say(session, frame)[0]) == ("not_subscribed", 9)
    say(session, SUBSCRIBE)
    assert error_of(say(session, frame)[0]) == ("not_subscribed", 9)
    session.on_open(1, 100)
    assert not isinstance(say(session, frame)[0], Refusal)
    say(session, {"type": "unsubscribe", "ref": 3, "subscription": 1})
    assert error_of(say(session, frame)[0]) == ("not_subscribed", 9)


def test_a_number_is_free_again_when_its_subscribe_was_refused_or_it_was_left() -> None:
    session = opened()
    say(session, SUBSCRIBE)
    session.on_refusal(1)
    assert isinstance(say(session, SUBSCRIBE)[0], frames.Subscribe)
    session.on_open(1, 100)
    left, again = say(session, {"type": "unsubscribe", "ref": 3, "subscription": 1}, SUBSCRIBE)
    assert isinstance(left, frames.Unsubscribe)
    assert isinstance(again, frames.Subscribe)


def test_too_many_subscriptions_are_refused() -> None:
    """P9."""
    session = opened()
    for number in range(limits.SUBSCRIPTIONS_PER_SESSION_MAX):
        assert isinstance(say(session, {**SUBSCRIBE, "subscription": number})[0], frames.Subscribe)
    (reply,) = say(session, {**SUBSCRIBE, "ref": 4, "subscription": 100_000})
    assert error_of(reply) == ("limit_reached", 4)


@pytest.mark.parametrize(
    "more",
    [
        {"group": "g", "keys": ["k"]},
        {"group": "g", "position": {"queue_id": "q", "partitions": {}}},
        {"start": "latest", "position": {"queue_id": "q", "partitions": {}}},
    ],
)
def test_what_excludes_each_other_in_a_subscribe_is_refused(more: dict[str, Any]) -> None:
    session = opened()
    (reply,) = say(session, {**SUBSCRIBE, **more})
    assert error_of(reply) == ("invalid_request", 1)
    assert isinstance(say(session, SUBSCRIBE)[0], frames.Subscribe)


def test_credit_only_grows_and_within_its_bound() -> None:
    """R25: an absolute counter, so an older or repeated frame says nothing."""
    session = opened(subscribed=True)

    def credit(granted: int) -> list[Effect]:
        return say(session, {"type": "credit", "subscription": 1, "granted": granted})

    assert credit(100) == credit(99) == credit(0) == []
    assert credit(150) == credit(150) == [frames.Credit(subscription=1, granted=150)]
    session.on_grant(1, 150)
    assert credit(150) == []
    assert credit(150 + limits.CREDIT_MAX) == [
        frames.Credit(subscription=1, granted=150 + limits.CREDIT_MAX)
    ]
    session.on_grant(1, 150 + limits.CREDIT_MAX)
    (reply,) = credit(151 + 2 * limits.CREDIT_MAX)
    assert error_of(reply) == ("limit_reached", None)
    assert credit(149 + limits.CREDIT_MAX) == []
    (reply,) = say(session, {"type": "credit", "subscription": 2, "granted": 1})
    assert error_of(reply) == ("not_subscribed", None)


def test_a_draining_session_settles_and_publishes_and_subscribes_no_more() -> None:
    """P14."""
    session = opened(subscribed=True)
    session.drain()
    assert session.state is State.DRAINING
    assert not isinstance(say(session, ACK)[0], Refusal)
    publish = {"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}]}
    assert isinstance(say(session, publish)[0], frames.Publish)
    (reply,) = say(session, {**SUBSCRIBE, "ref": 6, "subscription": 2})
    assert error_of(reply) == ("draining", 6)


# --- Silence ------------------------------------------------------------------------------------


def test_no_hello_in_time_closes_whatever_else_was_received() -> None:
    session = SessionProtocol(TIMING, now=100)
    assert session.next_deadline() == 110
    session.on_bytes(now=109)
    assert session.next_deadline() == 110
    assert session.expire(now=109.9) is None
    assert session.expire(now=110) == frames.HELLO_LATE
    assert session.next_deadline() is None
    assert session.expire(now=200) is None


def test_silence_is_pinged_and_more_silence_closes() -> None:
    """P6."""
    session = SessionProtocol(TIMING, now=0)
    say(session, {"type": "hello"}, now=3)
    assert session.next_deadline() == 23
    assert session.expire(now=22.9) is None
    assert session.expire(now=23) == SendPing()
    assert session.next_deadline() == 43
    assert session.expire(now=42.9) is None
    assert session.expire(now=43) == frames.HEARTBEAT
    assert session.state is State.CLOSED


def test_a_sign_of_life_begins_the_silence_anew() -> None:
    session = opened()
    assert session.expire(now=20) == SendPing()
    session.on_bytes(now=39)
    assert session.next_deadline() == 59
    assert session.expire(now=40) is None
    assert session.expire(now=59) == SendPing()


def test_what_moves_towards_the_client_counts_as_a_sign_of_life() -> None:
    session = opened()
    assert session.expire(now=20, taken_bytes=lambda: 10) == SendPing()
    assert session.expire(now=40, taken_bytes=lambda: 11) is None
    assert session.next_deadline() == 60
    assert session.expire(now=60, taken_bytes=lambda: 500) is None
    assert session.expire(now=80, taken_bytes=lambda: 500) == frames.HEARTBEAT


def test_who_has_taken_all_and_says_nothing_is_silent() -> None:
    """P6."""
    session = opened()
    assert session.expire(now=20, taken_bytes=lambda: 10) == SendPing()
    assert session.expire(now=40, taken_bytes=lambda: None) == frames.HEARTBEAT


def test_a_part_of_a_message_is_answered_now_and_then() -> None:
    session = opened()
    assert [session.on_part(now=at) for at in (1, 5, 6, 7, 10, 11)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    say(session, {"type": "ping"}, now=12)
    assert not session.on_part(now=20), "another message begins"


def test_parts_of_a_hello_are_not_answered() -> None:
    session = SessionProtocol(TIMING, now=0)
    assert not any(session.on_part(now=at) for at in range(10))


def test_a_draining_session_has_heartbeats_too() -> None:
    session = opened()
    session.drain()
    assert session.expire(now=20) == SendPing()
    assert session.expire(now=40) == frames.HEARTBEAT


# --- All histories ------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """The machine against a model that knows only which numbers are taken and which are open."""

    def __init__(self) -> None:
        super().__init__()
        self.session = SessionProtocol(TIMING, now=0)
        self.now = 0.0
        self.greeted = False
        self.ended = False
        self.bad = 0
        self.taken = 0
        self.looked: int | None = None
        """What had moved when the machine looked last."""
        self.numbers: dict[int, bool] = {}

    def expect(self, effects: list[Effect], close: Close | None = None) -> None:
        closes = [effect for effect in effects if isinstance(effect, Close)]
        if self.ended:
            assert effects == []
        elif close is not None:
            assert closes == [close]
            assert effects[-1] == close
            self.ended = True
        else:
            assert closes == []

    @rule()
    def hello(self) -> None:
        effects = say(self.session, {"type": "hello"}, now=self.now)
        self.expect(effects, frames.HELLO_FIRST if self.greeted else None)
        self.greeted = True

    @rule(number=st.integers(0, 3))
    def subscribe(self, number: int) -> None:
        effects = say(self.session, {**SUBSCRIBE, "subscription": number}, now=self.now)
        self.expect(effects, None if self.greeted else frames.HELLO_FIRST)
        if not self.ended:
            draining = self.session.state is State.DRAINING
            assert isinstance(effects[0], Refusal) == (number in self.numbers or draining)
            if not draining:
                self.numbers.setdefault(number, False)

    @precondition(lambda self: not self.ended)
    @rule(number=st.integers(0, 3), well=st.booleans())
    def answer(self, number: int, well: bool) -> None:
        if self.numbers.get(number) is False:
            if well:
                self.session.on_open(number, 100)
                self.numbers[number] = True
            else:
                self.session.on_refusal(number)
                del self.numbers[number]

    @rule(number=st.integers(0, 3), kind=st.sampled_from(["ack", "unsubscribe"]))
    def use(self, number: int, kind: str) -> None:
        frame = {**ACK, "ref": 1} if kind == "ack" else {"type": "unsubscribe", "ref": 1}
        effects = say(self.session, {**frame, "subscription": number}, now=self.now)
        self.expect(effects, None if self.greeted else frames.HELLO_FIRST)
        if not self.ended:
            assert isinstance(effects[0], Refusal) == (not self.numbers.get(number))
            if kind == "unsubscribe" and self.numbers.get(number):
                del self.numbers[number]

    @rule(data=st.sampled_from([b"", b"{", b"{}", b'{"type":"ack"}', b"[[]]"]))
    def nonsense(self, data: bytes) -> None:
        effects = self.session.receive(data, now=self.now)
        self.bad += 1
        fatal = not self.greeted or self.bad > limits.BAD_MESSAGES_PER_SESSION_MAX
        self.expect(effects, frames.PROTOCOL if fatal else None)

    @rule()
    def drain(self) -> None:
        self.session.drain()

    @rule(after_s=st.sampled_from([0.5, 9.0, 15.0, 25.0]), moved=st.sampled_from([None, 0, 1000]))
    def wait(self, after_s: float, moved: int | None) -> None:
        """`moved`: this many bytes moved towards the client since; None: nothing is under way."""
        self.now += after_s
        deadline = self.session.next_deadline()
        self.taken += moved or 0
        taken = None if moved is None else self.taken
        effect = self.session.expire(now=self.now, taken_bytes=lambda: taken)
        if deadline is None or self.now < deadline:
            assert effect is None
        elif effect is None:
            assert self.looked is not None
            assert taken is not None
            assert taken > self.looked, "nothing has moved"
            self.looked = taken
        elif isinstance(effect, Close):
            assert effect == (frames.HEARTBEAT if self.greeted else frames.HELLO_LATE)
            self.ended = True
        else:
            assert effect == SendPing()
            self.looked = taken

    @invariant()
    def holds(self) -> None:
        self.session.check()
        assert (self.session.state is State.CLOSED) == self.ended
        assert (self.session.next_deadline() is None) == self.ended


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=1000, stateful_step_count=25)
