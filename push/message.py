"""A message as it travels: one struct that publish decodes and push encodes.

The body stays the bytes it was published as (P2). Validation is separate from decoding, because
a batch is not atomic: one bad message gets its error and its neighbours their receipts (R5).
"""

import base64
import binascii

import msgspec

from push import limits
from push.errors import Refused

_ENCODER = msgspec.json.Encoder()
_ANY = msgspec.json.Decoder()


class Message(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One message, in a publish and in a push alike.

    Exactly one of `body` (any JSON value, kept as its bytes) and `body_base64` (binary) is set.
    `id` is the client's; where none is given, a delivered message is named by its place.
    """

    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    body_base64: str | None = None
    content_type: str | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    ttl_s: float | None = None
    sent_unix_ms: int | None = None


def check_message(message: Message, message_bytes_max: int) -> None:
    """Raise Refused when a rule about one message is broken; `message_bytes_max` is the queue's.

    A message's size is that of its JSON form, which is what is stored and pushed.
    """
    body = message.body
    if message.body_base64 is None:
        if not len(body):
            raise Refused("invalid_message", "a message needs body or body_base64")
        if len(body) > message_bytes_max:
            raise Refused("message_too_large", _too_large(len(body), message_bytes_max))
        _check_json(bytes(body))
    else:
        if len(body):
            raise Refused("invalid_message", "body and body_base64 exclude each other")
        _check_base64(message.body_base64)
    key = message.key
    if key is not None and not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
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


def _too_large(size: int, message_bytes_max: int) -> str:
    return f"the message has {size} bytes; its queue takes {message_bytes_max} (message_bytes_max)"


def _check_rare(message: Message) -> None:
    if message.id is not None and not 0 < len(message.id.encode()) <= limits.ID_BYTES_MAX:
        raise Refused("invalid_message", f"an id has 1 to {limits.ID_BYTES_MAX} bytes")
    if message.content_type is not None and (
        not 0 < len(message.content_type.encode()) <= limits.CONTENT_TYPE_BYTES_MAX
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
            len(name.encode()) + len(text.encode()) for name, text in message.headers.items()
        )
        if size > limits.HEADERS_BYTES_MAX:
            raise Refused(
                "invalid_message", f"headers have at most {limits.HEADERS_BYTES_MAX} bytes together"
            )


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused("invalid_message", f"body_base64 is not base64: {error}") from None


def _check_json(body: bytes) -> None:
    """Reject what a strict parser of some consumer would choke on.

    `msgspec.Raw` has checked the syntax; it does not check what \\u escapes say (a lone surrogate
    has no UTF-8 form), nor how deep the value is nested. Both are rare, so both are looked for
    cheaply and decided by a full decode only where they are possible.
    """
    if body.count(b"[") + body.count(b"{") > limits.BODY_DEPTH_MAX:
        _check_depth(body)
    if b"\\u" in body:
        try:
            _ANY.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise Refused("invalid_message", f"body: {error}") from None


def _check_depth(body: bytes) -> None:
    depth = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > limits.BODY_DEPTH_MAX:
                raise Refused(
                    "invalid_message", f"body is nested deeper than {limits.BODY_DEPTH_MAX}"
                )
        elif byte in b"]}":
            depth -= 1


def encode_message(message: Message) -> bytes:
    """The JSON form that is stored and pushed."""
    return _ENCODER.encode(message)
