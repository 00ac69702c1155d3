"""The client and the broker speak the same: each side's frames in the other side's decoder."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tocsin import errors
from tocsin.proto import close_codes, wire
from tocsin.proto.new_message import NewMessage, encode_message
from tocsin.proto.publish_lane import Bounds
from tocsin.proto.wire import MESSAGE_BYTES_AIM, join_frames, without_tokens

from gateway.wire import frames
from push.errors import CODES, Refused

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = re.findall(
    r"```json broker\n(.*?)```", (ROOT / "docs/protocol.md").read_text(), re.DOTALL
)
SENT: list[wire.SentFrame] = [
    wire.Hello(producer="p", client="c"),
    wire.Subscribe(ref=1, subscription=1, queue="q", credit=5, group="g", start="latest"),
    wire.Subscribe(
        ref=1,
        subscription=1,
        queue="q",
        credit=5,
        keys=["k"],
        position=wire.Position(queue_id="i", partitions={"4": (1, 2)}),
    ),
    wire.Subscribe(ref=1, subscription=1, queue="q", credit=0, start=wire.StartAt(5)),
    wire.Unsubscribe(ref=1, subscription=1),
    wire.Credit(subscription=1, granted=7),
    wire.Ack(subscription=1, deliveries=[[0, 1, 2, 3, 4]], started=[[0, 1, 2, 5, 5]], ref=9),
    wire.Nack(subscription=1, deliveries=[[0, 1, 2, 3, 4]], delay_s=1.5, reason="r"),
    wire.Extend(subscription=1, started=[[0, 1, 2, 3, 4]], lease_s=3),
    wire.Ping(),
    wire.Auth(ref=1, token="t"),
]


@pytest.mark.parametrize("frame", SENT, ids=lambda frame: type(frame).__name__)
def test_the_broker_understands_what_the_client_sends(frame: wire.SentFrame) -> None:
    (understood,) = frames.decode(wire.encode(frame))
    said = msgspec.json.decode(wire.encode(frame))
    got = msgspec.json.decode(msgspec.json.encode(understood))
    assert {name: got[name] for name in said} == said


def test_the_broker_understands_a_publish() -> None:
    messages = [
        NewMessage({"a": [1, None]}, key="k", id="i", headers={"h": "v"}, ttl_s=5, sent_unix_ms=1),
        NewMessage(b"\x00\xff", content_type="image/x-icon"),
        NewMessage(msgspec.Raw(b"1e5")),
    ]
    encoded = [encode_message(message) for message in messages]
    (publish,) = frames.decode(wire.publish_frame(1, 'q"', 40, 38, encoded))
    assert isinstance(publish, frames.Publish)
    assert (publish.sequence, publish.resolved, publish.queue) == (40, 38, 'q"')
    assert [bytes(message.body) for message in publish.messages] == [b'{"a":[1,null]}', b"", b"1e5"]
    assert publish.messages[1].body_base64 == "AP8="


@pytest.mark.parametrize(
    ("us", "unix_ms"), [(0, 1_767_225_600_000), (1, 1_767_225_600_001), (1000, 1_767_225_600_001)]
)
def test_the_time_of_a_scheduled_message_is_never_before_the_one_that_was_asked_for(
    us: int, unix_ms: int
) -> None:
    at = datetime(2026, 1, 1, 1, 0, 0, us, tzinfo=timezone(timedelta(hours=1)))
    encoded = [
        encode_message(NewMessage(1, deliver_at=at)),
        encode_message(NewMessage(2, delay_s=0.5)),
        encode_message(NewMessage(3)),
    ]
    (publish,) = frames.decode(wire.publish_frame(1, "q", 0, 0, encoded))
    assert isinstance(publish, frames.Publish)
    times = [(one.deliver_at_unix_ms, one.delay_s) for one in publish.messages]
    assert times == [(unix_ms, None), (None, 0.5), (None, None)]


@pytest.mark.parametrize(
    ("deliver_at", "delay_s", "what"),
    [
        (datetime(2026, 1, 1), None, "deliver_at has no time zone"),
        ("2026-01-01", None, "deliver_at must be a datetime"),
        (datetime(2026, 1, 1, tzinfo=UTC), 1, "exclude each other"),
        (None, math.nan, "delay_s must be a number of seconds from 0 on"),
        (None, -1, "delay_s must be"),
        (None, True, "delay_s must be"),
        (None, "1", "delay_s must be"),
    ],
)
def test_a_time_that_no_broker_understands_is_refused(
    deliver_at: Any, delay_s: Any, what: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match=what):
        encode_message(NewMessage(1, deliver_at=deliver_at, delay_s=delay_s))


@dataclass
class Order:
    total: float
    items: list[Any]


class Kind(Enum):
    A = "a"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (math.nan, "body: nan has no JSON form"),
        ({"a": [1, {"b": -math.inf}]}, r"body.a\[1\].b: -inf has no JSON form"),
        ([{"total": math.nan}], r"body\[0\].total: nan"),
        (Order(math.nan, []), "body.total: nan"),
        ({"order": Order(1.0, [b"x"])}, r"body.order.items\[0\]: bytes inside"),
        ({"a": memoryview(b"x")}, "body.a: bytes inside"),
        ({1: "a"}, "body: the key 1 is no text"),
        ({"a": {2.5: 0}}, "body.a: the key 2.5 is no text"),
        ({b"x": 0}, "body: the key b'x' is no text"),
        ({None: 0}, "body"),
        (iter([1]), "body"),
        ({"kinds": {1}}, r"body.kinds: a set"),
        ([frozenset()], r"body\[0\]: a set"),
        ({"price": Decimal("NaN")}, r"body.price: Decimal\('NaN'\)"),
        (Decimal("-Infinity"), "body: Decimal"),
        (Order(1.0, [Decimal("NaN")]), "body.items"),
        (lambda: 1, "body"),
        (1j, "body"),
        (CYCLE, "body"),
        ("\ud800", "body"),
        ({"\udc00": 1}, "body"),
    ],
)
def test_what_json_would_show_as_something_else_is_refused(body: Any, what: str) -> None:
    """P2: before anything is sent, with the place; a message beside it is not touched."""
    with pytest.raises(errors.InvalidRequest, match=what):
        encode_message(NewMessage(body))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, b'{"at":"2026-01-01T00:00:00Z"}'),
        ({"price": Decimal("1.10")}, b'{"price":"1.10"}'),
        (
            {"kinds": [Kind.A], "pair": (1, 2)},
            b'{"kinds":["a"],"pair":[1,2]}',
        ),
        (Order(1.5, [None, True]), b'{"total":1.5,"items":[null,true]}'),
        (msgspec.Raw(b"1e5"), b"1e5"),
        ({"as it is": msgspec.Raw(b"[null]")}, b'{"as it is":[null]}'),
        (Order(1.0, [msgspec.Raw(b"2")]), b'{"total":1.0,"items":[2]}'),
        (2**70, b"1180591620717411303424"),
        (None, b"null"),
    ],
)
def test_what_json_can_say_goes_as_ever(body: Any, text: bytes) -> None:
    assert encode_message(NewMessage(body)) == b'{"body":%b}' % text


def test_the_client_understands_every_example_of_the_protocol() -> None:
    assert len(EXAMPLES) > 10
    for example in EXAMPLES:
        (frame,) = wire.decode(example.encode())
        said = msgspec.json.decode(example)
        got = msgspec.to_builtins(frame, builtin_types=(msgspec.Raw,))
        assert set(said) - {"reason", "semantics", "settled"} <= set(got) | {"type"}


def test_the_client_understands_pushes_positions_and_errors() -> None:
    head = frames.push_head(
        subscription=1, partition=4, epoch=7, push=31, offset=121, attempt=2,
        id_prefix="q-1-4-", published_unix_ms=5,
    )  # fmt: skip
    (push,) = wire.decode(frames.push_frame(head, b'{"key":"k","body":1},{"body":2}'))
    assert isinstance(push, wire.Push)
    assert (push.epoch, push.push, push.offset, push.attempt) == (7, 31, 121, 2)
    (moved,) = wire.decode(frames.reader_positions(1, {"4": [1, 9]}))
    assert isinstance(moved, wire.Push)
    assert moved.positions == {"4": (1, 9)}
    (error,) = wire.decode(
        frames.error(Refused("not_delivered"), 3, subscription=1, deliveries=[[0, 1, 2, 3, 4]])
    )
    assert isinstance(error, wire.Error)
    assert (error.ref, error.deliveries) == (3, [[0, 1, 2, 3, 4]])


def test_the_client_passes_over_what_a_newer_broker_adds() -> None:
    first, second = wire.decode(b'[{"type":"pong","new":1},{"type":"news"},{"type":"drain"}]')
    assert isinstance(first, wire.Pong)
    assert isinstance(second, wire.Drain)
    assert wire.decode(b'{"type":"news"}') == []


def test_a_known_frame_with_a_wrong_field_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode(b'{"type":"push","subscription":"one"}')


def test_the_client_knows_every_code() -> None:
    for code in CODES.values():
        error = errors.broker_error(code.name, retry=code.retry)
        assert type(error) is not errors.BrokerError or code.http_status in (400, 405, 408, 431)
        assert isinstance(error, errors.Busy | errors.OutcomeUnknown) == code.retry


def test_the_client_knows_every_close_code() -> None:
    known = {value for value in vars(close_codes).values() if isinstance(value, int)}
    assert {close.code for close in frames.CLOSES} <= known
    for close in frames.CLOSES:
        assert close_codes.may_reconnect(close.code) == ("reconnect" in close.reason)


def test_the_client_keeps_bounds_before_the_broker_states_them() -> None:
    said = frames.welcome(
        session="s", broker="b", heartbeat_s=20, linger_s=0, resumed=None, right_lasts_s=60
    )
    (welcome,) = wire.decode(said)
    assert isinstance(welcome, wire.Welcome)
    defaults = wire.Welcome()
    assert welcome.frame_bytes_max == defaults.frame_bytes_max
    assert Bounds(welcome.messages_per_publish_max, welcome.in_flight_max) == Bounds()


def test_many_frames_are_joined_within_the_brokers_bounds() -> None:
    assert join_frames([b"{}"]) == [b"{}"]
    joined = join_frames([b"{}"] * 300)
    assert [len(msgspec.json.decode(message)) for message in joined] == [256, 44]
    half = b'"%b"' % (b"x" * (MESSAGE_BYTES_AIM // 2 - 3))
    assert join_frames([half, half]) == [b"[%b,%b]" % (half, half)]
    assert join_frames([half, half, b"1"]) == [b"[%b,%b]" % (half, half), b"1"]
    assert join_frames([half, half, b"1"], 2 * MESSAGE_BYTES_AIM) == [b"[%b,%b,1]" % (half, half)]


def test_who_looks_on_sees_no_token() -> None:
    auth = wire.encode(wire.Auth(ref=7, token='t"\\o k'))
    publish = wire.encode(wire.Ping(ref=1))
    shown = without_tokens(b"[%b,%b,%b]" % (publish, auth, auth))
    assert msgspec.json.decode(shown) == [
        {"type": "ping", "ref": 1}, *2 * [{"type": "auth", "ref": 7, "token": "…"}],
    ]  # fmt: skip
    assert without_tokens(publish) is publish
