"""A message to be published, and its encoding."""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from tocsin.errors import InvalidRequest
from tocsin.proto import wire
from tocsin.proto.json_form import loss_in


class NewMessage(msgspec.Struct):
    """A message to be published.

    `body`: any value that JSON can say (dataclasses, msgspec structs, datetimes, Decimal and sets
    included; not NaN, bytes inside of it, or keys that are no texts), `bytes` for a binary body, or
    `msgspec.Raw` for JSON text that is sent as it is. `key` orders: messages of one key arrive in
    the order of their publishing. `id` makes publishing repeatable: the same key and id within the
    queue's window is stored once. `ttl_s`: after so many seconds it is no longer given out.
    `sent_unix_ms` travels with it unchanged.
    """

    body: Any
    key: str | None = None
    id: str | None = None
    headers: Mapping[str, str] | None = None
    ttl_s: float | None = None
    content_type: str | None = None
    sent_unix_ms: int | None = None


def encode_message(message: NewMessage) -> bytes:
    """The JSON form of a message.

    Raises:
        InvalidRequest: a field is of a wrong type, or the body has no JSON form.
    """
    _check(message)
    body = message.body
    text: str | msgspec.UnsetType = msgspec.UNSET
    if isinstance(body, bytes | bytearray | memoryview):
        text = base64.b64encode(body).decode()
        body = msgspec.UNSET
    headers = message.headers
    if headers is not None and headers.__class__ is not dict:
        headers = dict(headers)
    outgoing = wire.OutgoingMessage(
        message.key, body, text, message.content_type, message.id, headers,
        message.ttl_s, message.sent_unix_ms,
    )  # fmt: skip
    try:
        encoded = wire.encode(outgoing)
        lost = loss_in(body, "body") if body is not msgspec.UNSET else None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest("invalid_message", f"{_culprit(message)}: {error}") from error
    if lost is not None:
        raise InvalidRequest("invalid_message", lost)
    return encoded


def _culprit(message: NewMessage) -> str:
    """Which field has no JSON form: a text with half of a character (a byte that is not UTF-8, of
    a command line), else the body."""
    texts = [("key", message.key), ("id", message.id), ("content_type", message.content_type)]
    for name, value in (message.headers or {}).items():
        texts += [("headers", name), ("headers", value)]
    for field, text in texts:
        if text is not None and not _is_text(text):
            return field
    return "body"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(message: NewMessage) -> None:
    """What the broker could only refuse together with all other messages of the frame."""
    key = message.key
    if key is not None and (key.__class__ is not str or not key):
        raise InvalidRequest("invalid_message", "a key is a text of at least one character")
    if not isinstance(message.id, str | None):
        raise InvalidRequest("invalid_message", "id is a text")
    if not isinstance(message.content_type, str | None):
        raise InvalidRequest("invalid_message", "content_type is a text")
    if message.ttl_s is not None and not (
        isinstance(message.ttl_s, int | float) and 0 < message.ttl_s < 1e12
    ):
        raise InvalidRequest("invalid_message", "ttl_s is a number of seconds above 0")
    if not isinstance(message.sent_unix_ms, int | None):
        raise InvalidRequest("invalid_message", "sent_unix_ms is a whole number")
    if message.headers is not None and not all(
        isinstance(name, str) and isinstance(text, str) for name, text in message.headers.items()
    ):
        raise InvalidRequest("invalid_message", "headers map text to text")
