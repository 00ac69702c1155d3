"""A message as it travels: one struct that publish decodes and push encodes.

The body stays the bytes it was published as (P2). Validation is separate from decoding, because
a batch is not atomic: one bad message gets its error and its neighbours their receipts (R5).
"""

import base64
import binascii
import re
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from push import limits
from push.errors import Refused

_ENCODER: Final = msgspec.json.Encoder()
_NO_BODY: Final = msgspec.Raw()
SOUND_TOGETHER_MIN: Final = 8
"""Fewer messages are checked as quickly one by one."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[{]}")


class Message(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One message, in a publish and in a push alike.

    Exactly one of `body` (any JSON value, kept as its bytes) and `body_base64` (binary) is set.
    `id` is the client's; where none is given, a delivered message is named by its place.
    """

    key: str | None = None
    body: msgspec.Raw = _NO_BODY
    body_base64: str | None = None
    content_type: str | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    ttl_s: float | None = None
    sent_unix_ms: int | None = None


def check_message(message: Message, message_bytes_max: int) -> None:
    """Raise Refused when a rule about one message is broken; `message_bytes_max` is the queue's.

    What is measured against it is the body: the bytes of the JSON value as they were sent, or the
    bytes that `body_base64` stands for. Everything else has a bound of its own.
    """
    body = message.body
    if message.body_base64 is None:
        size = len(body)
        if not size:
            raise Refused("invalid_message", "a message needs body or body_base64")
    else:
        if len(body):
            raise Refused("invalid_message", "body and body_base64 exclude each other")
        size = _base64_size(message.body_base64)
    if size > message_bytes_max:
        raise Refused(
            "message_too_large",
            f"the body has {size} bytes; its queue takes {message_bytes_max} (message_bytes_max)",
        )
    if message.body_base64 is None:
        plain = bytes(body)
        _check_text(plain)
        _check_depth(plain)
    key = message.key
    # A short key in ASCII need not be encoded to be measured.
    if (
        key is not None
        and not (0 < len(key) <= limits.KEY_BYTES_MAX and key.isascii())
        and not 0 < _size(key, "key") <= limits.KEY_BYTES_MAX
    ):
        raise Refused(
            "invalid_message",
            f"a key has 1 to {limits.KEY_BYTES_MAX} bytes; leave it out for a message without one",
        )
    if (
        message.id is not None
        or message.headers is not None
        or message.content_type is not None
        or message.ttl_s is not None
        or message.sent_unix_ms is not None
    ):
        _check_rare(message)


def are_sound(messages: Sequence[Message], message_bytes_max: int) -> bool:
    """Whether `check_message` takes all of these. False says nothing: they are few, or one of them
    has more than a short key and a body, or breaks a rule. They are to be checked one by one then.

    The bodies are looked at all at once, for a few calls on all of them cost less than half of a
    few on each. JSON values begin and end in ASCII: what is in none of them is in no two of them.
    """
    if len(messages) < SOUND_TOGETHER_MIN:
        return False
    for message in messages:
        key = message.key
        if (
            (key is not None and not (0 < len(key) <= limits.KEY_BYTES_MAX and key.isascii()))
            or message.body_base64 is not None
            or message.id is not None
            or message.headers is not None
            or message.content_type is not None
            or message.ttl_s is not None
            or message.sent_unix_ms is not None
        ):
            return False
    bodies = [message.body for message in messages]
    sizes = [*map(len, bodies)]
    if not min(sizes) or max(sizes) > message_bytes_max:
        return False
    together = b"".join(bodies)
    try:
        _check_text(together)
        if max(sizes) > limits.BODY_DEPTH_MAX and _may_be_deep(together):
            for body in bodies:
                _check_depth(bytes(body))
    except Refused:
        return False
    return True


def _size(text: str, what: str) -> int:
    """Bytes of its UTF-8 form, which a lone surrogate does not have."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise Refused("invalid_message", f"{what}: {error}") from None


def _check_rare(message: Message) -> None:
    if message.id is not None and not 0 < _size(message.id, "id") <= limits.ID_BYTES_MAX:
        raise Refused("invalid_message", f"an id has 1 to {limits.ID_BYTES_MAX} bytes")
    if message.content_type is not None and (
        not 0 < _size(message.content_type, "content_type") <= limits.CONTENT_TYPE_BYTES_MAX
    ):
        raise Refused(
            "invalid_message", f"content_type has 1 to {limits.CONTENT_TYPE_BYTES_MAX} bytes"
        )
    if message.ttl_s is not None and not 0 < message.ttl_s <= limits.TTL_S_MAX:
        raise Refused("invalid_message", f"ttl_s is above 0 and at most {limits.TTL_S_MAX}")
    if message.sent_unix_ms is not None and not 0 <= message.sent_unix_ms < 1 << 53:
        raise Refused("invalid_message", "sent_unix_ms is a time in milliseconds since 1970")
    if message.headers is not None:
        if len(message.headers) > limits.HEADERS_MAX:
            raise Refused("invalid_message", f"at most {limits.HEADERS_MAX} headers")
        size = sum(
            _size(name, "headers") + _size(text, "headers")
            for name, text in message.headers.items()
        )
        if size > limits.HEADERS_BYTES_MAX:
            raise Refused(
                "invalid_message", f"headers have at most {limits.HEADERS_BYTES_MAX} bytes together"
            )


def _base64_size(text: str) -> int:
    """Number of bytes that the text stands for; Refused where it is not base64 (RFC 4648 §4)."""
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise Refused("invalid_message", f"body_base64 is not base64: {error}") from None


def _check_text(json: bytes) -> None:
    """Reject what a strict parser of some consumer would choke on in these JSON values.

    Decoding into `msgspec.Raw` has checked the syntax, but not the UTF-8, not whether escaped
    surrogates come in pairs (a lone one has no UTF-8 form), and not how deep the value is nested.
    All three are rare: they are looked for cheaply and decided only where they are possible, and
    without a loop over bytes in Python, for a body may have a MiB of brackets.
    """
    if not json.isascii():
        try:
            json.decode()
        except UnicodeDecodeError as error:
            raise Refused("invalid_message", f"body: not UTF-8: {error}") from None
    if b"\\" in json and _SURROGATE.search(json):
        # after an escaped backslash, `u` is a letter; a space keeps its neighbours apart
        rest = _SURROGATE_PAIR.sub(b"", json.replace(b"\\\\", b" "))
        if _SURROGATE.search(rest):
            raise Refused("invalid_message", "body: a lone surrogate is escaped in it")


def _check_depth(body: bytes) -> None:
    """Reject one that is nested too deep; as `_check_text` has it."""
    if len(body) > limits.BODY_DEPTH_MAX and _may_be_deep(body):
        # outside of strings: every second piece between quotes that are not escaped
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
        steps = b"".join(plain).translate(_STEPS, _NOT_BRACKETS)
        if max(accumulate(array("b", steps)), default=0) > limits.BODY_DEPTH_MAX:
            raise Refused("invalid_message", f"body is nested deeper than {limits.BODY_DEPTH_MAX}")


def _may_be_deep(json: bytes) -> bool:
    return json.count(b"[") + json.count(b"{") > limits.BODY_DEPTH_MAX


def encode_message(message: Message) -> bytes:
    """The JSON form that is stored and pushed."""
    if message.body_base64 is not None and message.body is not _NO_BODY:
        message = msgspec.structs.replace(
            message, body=_NO_BODY
        )  # another empty one is not left out
    return _ENCODER.encode(message)
