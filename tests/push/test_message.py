"""A message: every field at both sides of its bound, and bodies that some parser would choke on."""

import base64
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from push import limits
from push.errors import Refused
from push.message import (
    PLAIN_TOGETHER_MIN,
    Message,
    check_message,
    encode_message,
    encode_plain,
)

BYTES_MAX = 1000
DECODER = msgspec.json.Decoder(Message)
DEPTH = limits.BODY_DEPTH_MAX


def message(body: bytes = b"1", **fields: object) -> Message:
    return Message(body=msgspec.Raw(body), **fields)  # type: ignore[arg-type]


def is_taken(one: Message) -> bool:
    try:
        check_message(one, BYTES_MAX)
    except Refused:
        return False
    return True


def ordinary(body: bytes = b'{"a":1}', key: str = "k") -> list[Message]:
    """As many as are checked together."""
    return [message(body, key=key)] * PLAIN_TOGETHER_MIN


def headers(count: int, size: int) -> dict[str, str]:
    """`count` headers of `size` bytes together."""
    made = {f"{number:03}": "" for number in range(count)}
    made["000"] = "x" * (size - 3 * count)
    return made


GOOD = {
    "the least": message(),
    "a header that is nearly reserved": message(headers={"tocsin": "x", "x-tocsin-dead": "y"}),
    "body of the largest size": message(b'"' + b"x" * (BYTES_MAX - 2) + b'"'),
    "binary body of the largest size": Message(
        body_base64=base64.b64encode(bytes(BYTES_MAX)).decode()
    ),
    "empty binary body": Message(body_base64=""),
    "key of one byte": message(key="k"),
    "key of the largest size": message(key="k" * limits.KEY_BYTES_MAX),
    "key in bytes, not characters": message(key="é" * (limits.KEY_BYTES_MAX // 2)),
    "key 0": message(key="0"),
    "key with a NUL": message(key="\x00"),
    "key beyond the BMP": message(key="\U0001f514"),
    "id of the largest size": message(id="i" * limits.ID_BYTES_MAX),
    "content type of the largest size": message(content_type="t" * limits.CONTENT_TYPE_BYTES_MAX),
    "no headers": message(headers={}),
    "headers without text": message(headers={"": ""}),
    "the most headers": message(headers=headers(limits.HEADERS_MAX, 3 * limits.HEADERS_MAX)),
    "headers of the largest size": message(headers=headers(1, limits.HEADERS_BYTES_MAX)),
    "the least TTL": message(ttl_s=math.ulp(0.0)),
    "the longest TTL": message(ttl_s=limits.TTL_S_MAX),
    "sent in 1970": message(sent_unix_ms=0),
    "sent in the far future": message(sent_unix_ms=(1 << 53) - 1),
}

BAD = {
    "a header of the broker's own": (
        message(headers={"Tocsin-Dead-Letter-Queue": "x"}),
        "invalid_message",
    ),
    "no body": (Message(), "invalid_message"),
    "two bodies": (message(b"1", body_base64=""), "invalid_message"),
    "body one byte over": (message(b'"' + b"x" * (BYTES_MAX - 1) + b'"'), "message_too_large"),
    "binary body one byte over": (
        Message(body_base64=base64.b64encode(bytes(BYTES_MAX + 1)).decode()),
        "message_too_large",
    ),
    "empty key": (message(key=""), "invalid_message"),
    "key one byte over": (message(key="k" * (limits.KEY_BYTES_MAX + 1)), "invalid_message"),
    "key over in bytes": (message(key="é" * (limits.KEY_BYTES_MAX // 2 + 1)), "invalid_message"),
    "key of 10,000 bytes": (message(key="k" * 10_000), "invalid_message"),
    "key with a lone surrogate": (message(key="\ud800"), "invalid_message"),
    "empty id": (message(id=""), "invalid_message"),
    "id one byte over": (message(id="i" * (limits.ID_BYTES_MAX + 1)), "invalid_message"),
    "id with a lone surrogate": (message(id="\udfff"), "invalid_message"),
    "empty content type": (message(content_type=""), "invalid_message"),
    "content type one byte over": (
        message(content_type="t" * (limits.CONTENT_TYPE_BYTES_MAX + 1)),
        "invalid_message",
    ),
    "content type with a lone surrogate": (message(content_type="\ud800"), "invalid_message"),
    "one header too many": (
        message(headers=headers(limits.HEADERS_MAX + 1, 3 * limits.HEADERS_MAX + 3)),
        "invalid_message",
    ),
    "headers one byte over": (
        message(headers=headers(2, limits.HEADERS_BYTES_MAX + 1)),
        "invalid_message",
    ),
    "header name with a lone surrogate": (message(headers={"\ud800": ""}), "invalid_message"),
    "header text with a lone surrogate": (message(headers={"a": "\udc00"}), "invalid_message"),
    "TTL of 0": (message(ttl_s=0.0), "invalid_message"),
    "negative TTL": (message(ttl_s=-1.0), "invalid_message"),
    "TTL too long": (message(ttl_s=limits.TTL_S_MAX + 1.0), "invalid_message"),
    "TTL that is no number": (message(ttl_s=math.nan), "invalid_message"),
    "endless TTL": (message(ttl_s=math.inf), "invalid_message"),
    "sent before 1970": (message(sent_unix_ms=-1), "invalid_message"),
    "sent at a huge integer": (message(sent_unix_ms=1 << 53), "invalid_message"),
    "sent at an absurd integer": (message(sent_unix_ms=10**400), "invalid_message"),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_a_message_inside_every_bound_is_taken_and_survives_its_encoding(good: Message) -> None:
    check_message(good, BYTES_MAX)
    encoded = encode_message(good)
    json.loads(encoded)
    again = DECODER.decode(encoded)
    assert bytes(again.body) == bytes(good.body)
    assert msgspec.structs.replace(again, body=good.body) == good


@pytest.mark.parametrize(("bad", "code"), BAD.values(), ids=BAD)
def test_a_message_outside_a_bound_is_refused_with_its_code(bad: Message, code: str) -> None:
    """P12."""
    with pytest.raises(Refused) as caught:
        check_message(bad, BYTES_MAX)
    assert caught.value.code.name == code


@pytest.mark.parametrize("bad", [one for one, _ in BAD.values()], ids=BAD)
def test_one_outside_a_bound_is_never_plain_in_company(bad: Message) -> None:
    """P12: who is not checked alone must not be let through."""
    assert encode_plain(ordinary(), BYTES_MAX)
    assert encode_plain([*ordinary(), bad], BYTES_MAX) is None
    assert encode_plain([bad, *ordinary()], BYTES_MAX) is None


@pytest.mark.parametrize(
    ("messages", "plain"),
    [
        (ordinary(), True),
        (ordinary()[1:], False),  # few: one by one
        (ordinary(key="k" * limits.KEY_BYTES_MAX), True),
        (ordinary(key="k" * (limits.KEY_BYTES_MAX + 1)), False),
        (ordinary(b'"' + b"x" * (BYTES_MAX - 2) + b'"'), True),
        (ordinary(b'"' + b"x" * (BYTES_MAX - 1) + b'"'), False),
        (ordinary('"é\U0001f514"'.encode()), True),
        (ordinary(rb'"\ud83d\udd14"'), True),
        ([message(b"1")] * PLAIN_TOGETHER_MIN, True),
        (ordinary(b"[" * DEPTH + b"]" * DEPTH), True),
        (ordinary(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1)), False),
        ([*ordinary(), message(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1))], False),
        (ordinary(b"[" + b",".join([b"[{}]"] * 150) + b"]"), True),
        ([*ordinary(b'["x"]'), message(b"[" * 300 + b"]" * 300)], False),
        ([message(b'"' + b"x" * DEPTH + b'"')] * (2 * DEPTH), True),
        ([message(b"[]")] * (2 * DEPTH), True),  # many brackets, in none too many
    ],
)
def test_ordinary_messages_are_encoded_together_within_every_bound(
    messages: list[Message], plain: bool
) -> None:
    encoded = encode_plain(messages, BYTES_MAX)
    assert encoded == ([*map(encode_message, messages)] if plain else None)


PIECES = [
    b"", rb"\ud83d", rb"\udd14", rb"\\", rb"\"", b"ud800", b"x", "é".encode(), b"\xe2", b"\x80",
    b"\xff",
]  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [{"id": "i"}, {"headers": {}}, {"content_type": ""}, {"ttl_s": 1.0}, {"sent_unix_ms": 0}],
)
def test_what_has_more_than_key_and_body_is_not_plain(more: dict[str, Any]) -> None:
    """Its id would not be remembered, its TTL not be kept."""
    assert encode_plain([*ordinary(), message(key="k", **more)], BYTES_MAX) is None
    assert encode_plain([message(**more), *ordinary()], BYTES_MAX) is None


BODIES = st.sampled_from([b"", b"1", b" 1 ", b'"x"', rb'"\\"']).map(msgspec.Raw)
KEYS = st.text(max_size=3) | st.sampled_from(["k", "kk", None, '"', "\\", "\n", "\ud800", "é"])
ODD = st.builds(
    Message,
    key=KEYS,
    body=BODIES,
    body_base64=st.sampled_from([*[None] * 8, "", "QQ=="]),
    id=st.sampled_from([*[None] * 8, "", "i"]),
    ttl_s=st.sampled_from([*[None] * 8, 0.0, 1.0]),
)


@settings(max_examples=1000)
@given(st.integers(3, 5), st.lists(ODD, max_size=2))
def test_what_is_encoded_together_is_plain_and_taken_and_encoded_as_it_is_alone(
    plain: int, odd: list[Message]
) -> None:
    messages = [*odd[:1], *ordinary()[:1] * plain, *odd[1:]]
    encoded = encode_plain(messages, BYTES_MAX)
    if encoded is None:
        return
    assert all(map(is_taken, messages))
    assert encoded == [*map(encode_message, messages)]
    assert all(one == Message(key=one.key, body=one.body) for one in messages)


@settings(max_examples=1000)
@given(
    st.lists(
        st.lists(st.sampled_from(PIECES), max_size=3), min_size=PLAIN_TOGETHER_MIN, max_size=10
    )
)
def test_messages_are_encoded_together_if_each_is_taken_and_no_two_make_a_sound_one(
    bodies: list[list[bytes]],
) -> None:
    """What stands at the end of one body and what begins the next are never one character."""
    messages = [message(b'"' + b"".join(pieces) + b'"', key="k") for pieces in bodies]
    assert (encode_plain(messages, BYTES_MAX) is not None) is all(map(is_taken, messages))


@pytest.mark.parametrize(
    "text", ["Q", "QQ=", "====", "=", "Q Q=", "QQ==QQ==", "QUI\n", "-_8=", "é", "\ud800", "QQ==="]
)
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="base64"):
        check_message(Message(body_base64=text), BYTES_MAX)


@given(st.binary(max_size=100))
def test_any_bytes_travel_as_base64(data: bytes) -> None:
    one = Message(body_base64=base64.b64encode(data).decode())
    check_message(one, len(data))
    assert DECODER.decode(encode_message(one)) == one


@pytest.mark.parametrize(
    "body",
    [
        b"null", b"true", b"0", b"-0", b"1E+5", b'""', b"[]", b"{}", b" [1 , 2] ".strip(),
        b'{"a":1,"a":2}', "\"\u2028\U0001f514é\"".encode(), rb'"\ud83d\udd14"', rb'"\uD83D\uDD14"',
        rb'"\\ud800"', rb'"\\\\ud800"', rb'"\\\ud83d\udd14"', rb'"\u0000"', rb'"\"\ud83d\udd14\""',
        b"1e999", b"9" * 400, rb'["\u00e9",1e999]',
    ],
)  # fmt: skip
def test_a_json_body_is_kept_as_its_bytes(body: bytes) -> None:
    """P2: spaces, escapes and numbers beyond a double included."""
    one = DECODER.decode(b'{"key":"k","body":' + body + b"}")
    check_message(one, BYTES_MAX)
    assert bytes(DECODER.decode(encode_message(one)).body) == body


@pytest.mark.parametrize(
    "body",
    [
        rb'"\ud800"', rb'"\udc00"', rb'"\uD800x"', rb'"\udc00\ud800"', rb'"\ud800\ud800\udc00"',
        rb'"\ud800\\\udc00"', rb'"\ud83d \udd14"', rb'"\ud83d\n\udd14"', rb'"\\\ud800"',
        rb'{"\ud800":1}', rb'["\ud83d\udd14\ud83d"]', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"',
        b'"\xf4\x90\x80\x80"', b'{"\x80":1}',
    ],
)  # fmt: skip
def test_a_body_without_a_utf8_form_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="invalid_message: body"):
        check_message(message(body), BYTES_MAX)


@settings(max_examples=1000)
@given(
    st.lists(
        st.sampled_from(
            [
                rb"\ud83d",
                rb"\udd14",
                rb"\\",
                rb"\"",
                rb"\n",
                "é".encode(),
                b"ud800",
                b"x",
                rb"\u0041",
            ]
        ),
        max_size=8,
    )
)
def test_lone_surrogates_are_found_wherever_they_hide(pieces: list[bytes]) -> None:
    """Against json.loads, which takes them: its text then has no UTF-8 form."""
    body = b'"' + b"".join(pieces) + b'"'
    try:
        json.loads(body).encode()
        taken = True
    except UnicodeEncodeError:
        taken = False
    if taken:
        check_message(message(body), BYTES_MAX)
    else:
        with pytest.raises(Refused, match="surrogate"):
            check_message(message(body), BYTES_MAX)


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (b"[" * DEPTH + b"]" * DEPTH, True),
        (b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), False),
        (b'{"a":' * DEPTH + b"1" + b"}" * DEPTH, True),
        (b'{"a":' * (DEPTH + 1) + b"1" + b"}" * (DEPTH + 1), False),
        (b'[{"a":' * DEPTH + b"1" + b"}]" * DEPTH, False),
        (b"[" + b",".join([b"[{}]"] * 300) + b"]", True),
        (b'["' + b"[" * 500 + b'"]', True),
        (b'["' + rb"\"[\\" * 500 + b'"]', True),
        (b'["]",' * (DEPTH + 1) + b"1" + b"]" * (DEPTH + 1), False),  # closed in strings only
        (rb'["\\",' * (DEPTH + 1) + b"1" + b"]" * (DEPTH + 1), False),
        (rb'["]\"]",' * (DEPTH + 1) + b"1" + b"]" * (DEPTH + 1), False),
    ],
)  # fmt: skip
def test_nesting_is_bounded_and_brackets_in_strings_do_not_count(body: bytes, taken: bool) -> None:
    one = DECODER.decode(b'{"body":' + body + b"}")
    if taken:
        check_message(one, limits.MESSAGE_BYTES_MAX_MAX)
    else:
        with pytest.raises(Refused, match="nested"):
            check_message(one, limits.MESSAGE_BYTES_MAX_MAX)


@pytest.mark.parametrize(
    "body",
    [b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"-", b"tru", b"", b"'a'",
     b'"\x01"', b'"\n"', b'{"\x00":1}', rb'"\q"', rb'"\uZZZZ"', rb'"\u12"', b'"a', b"[1,]",
     b'{"a"}', b"{1:2}", b"[1,2}", b"1 2", b"\xff", b"//", pytest.param(b"[" * 100_000, id="deep")],
)  # fmt: skip
def test_what_is_not_json_does_not_become_a_message(body: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        DECODER.decode(b'{"body":' + body + b"}")


@pytest.mark.parametrize(
    "fields",
    [
        b'"body":1,"more":1', b'"body":1,"key":7', b'"body":1,"key":["a"]', b'"body":1,"id":1',
        b'"body":1,"headers":{"a":1}', b'"body":1,"headers":["a"]',
        b'"body":1,"headers":{"a":null}',
        b'"body":1,"ttl_s":"1"', b'"body":1,"ttl_s":true', b'"body":1,"ttl_s":1e999',
        b'"body":1,"sent_unix_ms":1.5', b'"body":1,"sent_unix_ms":"1"', b'"body_base64":1',
        b'"body":1,"content_type":1', rb'"body":1,"key":"\ud800"', b'"body":1,"key":"\xff"',
    ],
)  # fmt: skip
def test_unknown_fields_and_wrong_types_do_not_become_a_message(fields: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        DECODER.decode(b"{" + fields + b"}")


def test_an_empty_body_that_was_set_is_left_out_like_none() -> None:
    one = Message(body=msgspec.Raw(b""), body_base64="QQ==")
    check_message(one, BYTES_MAX)
    assert encode_message(one) == b'{"body_base64":"QQ=="}'


def test_a_large_body_of_many_brackets_is_checked_without_a_loop_over_its_bytes() -> None:
    """One event-loop turn checks a thousand messages: a MiB of brackets must not stop it."""
    body = b"[" + b",".join([b'{"a":[]}'] * 100_000) + b"]"
    check_message(message(body), limits.MESSAGE_BYTES_MAX_MAX)
