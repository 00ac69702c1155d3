"""A message to be published, its encoding, and values of it that JSON would lose. Pure.

Encoders silently write NaN as null, bytes inside a value as text, and number keys as texts.
`loss_in` finds such values before they are sent. Times, a finite Decimal and a UUID are sent as
texts that lose nothing.
"""

import base64
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final
from uuid import UUID

import msgspec

from tocsin.errors import InvalidRequest
from tocsin.proto import wire

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_BYTES: Final = (bytes, bytearray, memoryview)
_TEXTS: Final = (date, datetime, time, timedelta, Decimal, UUID, msgspec.Raw)
Loss = tuple[str, list[object]]
"""A value that JSON would lose, in words, and the path to the value: keys and indexes, the
innermost first."""


class NewMessage(msgspec.Struct):
    """A message to be published.

    `body` is any value with a JSON form, `bytes` for a binary body, or `msgspec.Raw` for JSON text
    that is sent as it is. Dataclasses, msgspec structs, datetimes and Decimal have a JSON form.
    NaN, sets, bytes inside a value, and keys that are not texts have none.

    `key` orders: messages of one key arrive in the order of their publishing. `id` makes publishing
    repeatable, because a message of the same key and id within the queue's `dedup_window_s` is
    stored once. After `ttl_s` seconds the message is no longer delivered. `sent_unix_ms` travels
    with it unchanged.

    `deliver_at`, a datetime with a time zone, or `delay_s`, counted from the moment at which the
    broker receives the message, schedules it: no consumer gets it before. A time that has passed
    means at once. A fraction of a millisecond is rounded up.
    """

    body: Any
    key: str | None = None
    id: str | None = None
    headers: Mapping[str, str] | None = None
    ttl_s: float | None = None
    content_type: str | None = None
    sent_unix_ms: int | None = None
    deliver_at: datetime | None = None
    delay_s: float | None = None


def encode_message(message: NewMessage) -> bytes:
    """Return the JSON form of a message.

    Raises:
        InvalidRequest: a field is of a wrong type or out of range, or a text or the body has no
            JSON form.
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
        message.key,
        body,
        text,
        message.content_type,
        message.id,
        headers,
        message.ttl_s,
        message.sent_unix_ms,
        None if message.deliver_at is None else wire.unix_ms_after(message.deliver_at),
        message.delay_s,
    )
    try:
        encoded = wire.encode(outgoing)
        lost = loss_in(body, "body") if body is not msgspec.UNSET else None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest("invalid_message", f"{_culprit(message)}: {error}") from error
    if lost is not None:
        raise InvalidRequest("invalid_message", lost)
    return encoded


def _culprit(message: NewMessage) -> str:
    """Return the name of the field that has no JSON form.

    That is a text with half of a character (a byte that is not UTF-8, of a command line), or else
    the body.
    """
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
    """Raise InvalidRequest for a field of a wrong type or range. The broker would refuse all other
    messages of the frame with this one."""
    key = message.key
    if key is not None and (key.__class__ is not str or not key):
        raise InvalidRequest("invalid_message", "key must be a text of at least one character")
    if not isinstance(message.id, str | None):
        raise InvalidRequest("invalid_message", "id must be a text")
    if not isinstance(message.content_type, str | None):
        raise InvalidRequest("invalid_message", "content_type must be a text")
    if message.ttl_s is not None and not (
        isinstance(message.ttl_s, int | float) and 0 < message.ttl_s < 1e12
    ):
        raise InvalidRequest("invalid_message", "ttl_s must be a number of seconds above 0")
    if not isinstance(message.sent_unix_ms, int | None):
        raise InvalidRequest("invalid_message", "sent_unix_ms must be a whole number")
    _check_times(message.deliver_at, message.delay_s)
    if message.headers is not None and not all(
        isinstance(name, str) and isinstance(text, str) for name, text in message.headers.items()
    ):
        raise InvalidRequest("invalid_message", "headers must map texts to texts")


def _check_times(deliver_at: object, delay_s: object) -> None:
    if deliver_at is None and delay_s is None:
        return
    if deliver_at is not None and delay_s is not None:
        raise InvalidRequest("invalid_message", "deliver_at and delay_s exclude each other")
    if delay_s is not None and not (
        isinstance(delay_s, int | float) and not isinstance(delay_s, bool) and 0 <= delay_s < 1e12
    ):
        raise InvalidRequest("invalid_message", "delay_s must be a number of seconds from 0 on")
    if deliver_at is None:
        return
    if not isinstance(deliver_at, datetime):
        raise InvalidRequest(
            "invalid_message", f"deliver_at must be a datetime, not {deliver_at!r}"
        )
    if deliver_at.utcoffset() is None:
        raise InvalidRequest(
            "invalid_message",
            "deliver_at has no time zone; give it one, as datetime.now(UTC) has, or with "
            "deliver_at.astimezone() for a local time",
        )


# --- what JSON would lose -----------------------------------------------------------------------


def loss_in(value: Any, name: str) -> str | None:
    """Return what JSON would lose of a value, with the path to it from `name`; None if it loses
    nothing.

    The value must have been encoded before, which shows that it does not contain itself.
    """
    if value.__class__ in _PLAIN:
        return None
    found = _loss(value)
    if found is None:
        return None
    what, way = found
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in reversed(way))
    return f"{name}{''.join(steps)}: {what}"


def _loss(value: Any) -> Loss | None:
    if value.__class__ is float:
        return None if isfinite(value) else (f"{value!r} has no JSON form", [])
    if isinstance(value, dict):
        return _loss_in_dict(value)
    if isinstance(value, list | tuple):
        return _loss_in_list(value)
    if isinstance(value, set | frozenset):
        return "a set has no order and no JSON form; make a list of it", []
    if isinstance(value, Decimal) and not value.is_finite():
        return f"{value!r} has no JSON form", []
    if isinstance(value, _BYTES):
        return "bytes inside a JSON value have no JSON form; write them as text", []
    if isinstance(value, _TEXTS):
        return None
    try:
        fields = msgspec.to_builtins(value, builtin_types=(*_BYTES, Decimal))
    except TypeError:  # the value holds msgspec.Raw
        return None
    return _loss(fields) if fields.__class__ not in _PLAIN else None


def _loss_in_dict(value: Mapping[Any, Any]) -> Loss | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"the key {key!r} is no text", []
        if item.__class__ not in _PLAIN:
            found = _loss(item)
            if found is not None:
                found[1].append(key)
                return found
    return None


def _loss_in_list(value: Any) -> Loss | None:
    for place, item in enumerate(value):
        if item.__class__ not in _PLAIN:
            found = _loss(item)
            if found is not None:
                found[1].append(place)
                return found
    return None
