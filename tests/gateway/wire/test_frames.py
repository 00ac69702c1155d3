"""Frames: what is decoded, what is refused and with which words, what goes out."""

from contextlib import suppress
from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import frames
from push import limits
from push.errors import CODES, Refused, Unknown


def decode_one(**fields: Any) -> frames.ClientFrame:
    (frame,) = frames.decode(msgspec.json.encode(fields))
    return frame


def refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        frames.decode(data)
    return refused.value


def test_of_a_field_that_is_there_twice_the_last_one_counts() -> None:
    """As docs/protocol.md says, and in a body both are delivered."""
    assert frames.decode(b'{"type":"ping","ref":1,"ref":2}') == [frames.Ping(ref=2)]
    (publish,) = frames.decode(
        b'{"type":"publish","ref":1,"queue":"q",'
        b'"messages":[{"key":"a","key":"b","body":{"x":1,"x":2}}]}'
    )
    assert isinstance(publish, frames.Publish)
    (message,) = publish.messages
    assert (message.key, bytes(message.body)) == ("b", b'{"x":1,"x":2}')
    with pytest.raises(Refused, match="invalid_request"):
        frames.decode(b'{"type":"ping","type":"hello"}')


@pytest.mark.parametrize(
    ("fields", "frame"),
    [
        ({"type": "hello", "producer": "p"}, frames.Hello(producer="p")),
        (
            {"type": "subscribe", "ref": 1, "subscription": 2, "queue": "q", "credit": 3},
            frames.Subscribe(ref=1, subscription=2, queue="q", credit=3),
        ),
        (
            {"type": "unsubscribe", "ref": 1, "subscription": 2},
            frames.Unsubscribe(ref=1, subscription=2),
        ),
        (
            {"type": "credit", "subscription": 2, "granted": 9},
            frames.Credit(subscription=2, granted=9),
        ),
        (
            {"type": "ack", "subscription": 2, "deliveries": [[0, 1, 2, 3, 4]]},
            frames.Ack(subscription=2, deliveries=[[0, 1, 2, 3, 4]]),
        ),
        (
            {"type": "nack", "subscription": 2, "deliveries": [], "delay_s": 1.5},
            frames.Nack(subscription=2, deliveries=[], delay_s=1.5),
        ),
        ({"type": "extend", "subscription": 2}, frames.Extend(subscription=2)),
        ({"type": "ping"}, frames.Ping()),
    ],
)
def test_each_frame_is_decoded_into_its_struct(
    fields: dict[str, Any], frame: frames.ClientFrame
) -> None:
    assert decode_one(**fields) == frame


def test_a_body_stays_the_bytes_it_came_as() -> None:
    """P2: not even the spaces of a body change."""
    data = b'{"type":"publish","ref":1,"queue":"q","messages":[{"body": {"a" :1.0e2} }]}'
    (frame,) = frames.decode(data)
    assert isinstance(frame, frames.Publish)
    assert bytes(frame.messages[0].body).strip() == b'{"a" :1.0e2}'


def test_an_array_carries_several_frames_in_order() -> None:
    data = msgspec.json.encode([{"type": "ping", "ref": ref} for ref in range(5)])
    assert frames.decode(data) == [frames.Ping(ref=ref) for ref in range(5)]
    assert frames.decode(b"[]") == []


@pytest.mark.parametrize("letter", ["n", "ä", "名"])
def test_a_client_has_a_name_of_as_many_characters_as_the_documents_say(letter: str) -> None:
    """Whatever their bytes are. [The bound was said to count bytes.]"""
    hello = {"type": "hello", "client": letter * limits.NAME_CHARS_MAX}
    (found,) = frames.decode(msgspec.json.encode(hello))
    assert found == frames.Hello(client=hello["client"])
    with pytest.raises(Refused, match="length <= 128"):
        frames.decode(msgspec.json.encode(hello | {"client": hello["client"] + letter}))


def test_more_frames_than_allowed_are_refused() -> None:
    many = [{"type": "ping"}] * (limits.FRAMES_PER_MESSAGE_MAX + 1)
    assert refusal(msgspec.json.encode(many)).code.name == "invalid_request"


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "invalid_json", ""),
        (b"{", "invalid_json", ""),
        (b'{"type":"ping"} x', "invalid_json", ""),
        (b"7", "invalid_request", "object"),
        (b"null", "invalid_request", "object"),
        (b"{}", "invalid_request", "type"),
        (b'{"type":"push"}', "invalid_request", "push"),
        (b'{"type":"ping","extra":1}', "invalid_request", "extra"),
        (b'{"type":"ping","ref":-1}', "invalid_request", "$.ref"),
        (b'{"type":"ping","ref":9007199254740992}', "invalid_request", "$.ref"),
        (b'{"type":"ping","ref":"1"}', "invalid_request", "$.ref"),
        (b'[{"type":"ping"},{"type":"ping","ref":true}]', "invalid_request", "$[1].ref"),
        (b'{"type":"ack","subscription":1,"deliveries":[[1,2,3]]}', "invalid_request", "[0]"),
        (b'{"type":"publish","ref":1,"queue":"q","messages":[]}', "invalid_request", "messages"),
        (b'{"type":"ping","ref":\xff}', "invalid_json", "UTF-8"),
        (b'{"type":"hello","client":"\xc3\x28"}', "invalid_json", "UTF-8"),
        (
            b'{"type":"publish","ref":1,"queue":"q","messages":[{"body":"\xff"}]}',
            "invalid_json",
            "UTF-8",
        ),
        (b"[" * 100_000, "invalid_request", "$[0]"),
        (
            b'{"type":"publish","ref":1,"queue":"q","messages":[{"body":' + b"[" * 100_000,
            "invalid_json",
            "",
        ),
    ],
)
def test_what_is_no_frame_is_refused_with_a_sentence_that_names_it(
    data: bytes, code: str, words: str
) -> None:
    """P12."""
    error = refusal(data)
    assert error.code.name == code
    assert words in error.detail


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    """P12: nothing but Refused comes out."""
    with suppress(Refused):
        frames.decode(data)


def test_an_error_says_code_detail_and_whether_to_retry() -> None:
    assert msgspec.json.decode(frames.error(Unknown(), 7)) == {
        "type": "error",
        "ref": 7,
        "code": "unknown",
        "detail": CODES["unknown"].meaning,
        "retry": True,
    }
    late = Refused("overloaded", "wait", retry_after_s=1.5)
    fields = msgspec.json.decode(frames.error(late, subscription=3))
    assert (fields["retry_after_s"], fields["subscription"], "ref" in fields) == (1.5, 3, False)
    assert frames.code_fields("queue_full")["retry"] is True


def test_welcome_tells_the_bounds_a_client_must_keep() -> None:
    fields = msgspec.json.decode(
        frames.welcome(
            session="s", broker="b", heartbeat_s=20, linger_s=30, resumed=None, right_lasts_s=inf
        )
    )
    assert fields["right_lasts_s"] is None
    assert fields["frame_bytes_max"] == limits.FRAME_BYTES_MAX
    assert fields["credit_max"] == limits.CREDIT_MAX
    assert fields["messages_per_publish_max"] == limits.MESSAGES_PER_PUBLISH_MAX


def test_a_push_is_its_head_around_the_encoded_messages() -> None:
    head = frames.push_head(
        subscription=1, partition=2, epoch=3, push=4, offset=5, attempt=2,
        id_prefix="q-1-2-", published_unix_ms=6,
    )  # fmt: skip
    assert msgspec.json.decode(frames.push_frame(head, b'{"body":1},{"body":2}')) == {
        "type": "push",
        "subscription": 1,
        "partition": 2,
        "epoch": 3,
        "push": 4,
        "offset": 5,
        "attempt": 2,
        "id_prefix": "q-1-2-",
        "published_unix_ms": 6,
        "messages": [{"body": 1}, {"body": 2}],
    }


def test_a_readers_push_names_its_offsets_its_gap_and_its_next_position() -> None:
    head = frames.reader_head(
        subscription=1, partition=2, next_offset=140, id_prefix="q-1-2-", published_unix_ms=6,
        offsets=[121, 130], gap=(90, 99),
    )  # fmt: skip
    fields = msgspec.json.decode(frames.push_frame(head, b'{"body":1},{"body":2}'))
    assert (fields["offsets"], fields["gap"], fields["next"]) == ([121, 130], [90, 99], 140)
    assert "offset" not in fields


def test_close_codes_say_whether_to_come_back() -> None:
    """4000-4499: reconnect; 4500-4999: do not."""
    assert len({close.code for close in frames.CLOSES}) == len(frames.CLOSES)
    for close in frames.CLOSES:
        assert 4000 <= close.code < 5000
        assert ("reconnect" in close.reason) == (close.code < 4500)
        assert len(close.reason.encode()) <= 123  # RFC 6455, 5.5
