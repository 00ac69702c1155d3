"""A message as it travels: one struct that publish decodes and push encodes. Pure.

The body stays the bytes it was published as (P2). Validation is separate from decoding, because a
batch is not atomic: one bad message gets its error and its neighbors their receipts (R5).

A dead letter is a message that says in headers of its own (DEAD_LETTER_HEADER …) in which queue it
died last, and why. If it was a dead letter there already, its earlier headers go into one more
header, and come back when the letter is sent back. So a reader in the first queue finds it as
before.
"""

import base64
import binascii
import re
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, repeat
from operator import contains
from typing import Final

import msgspec

from push import limits
from push.errors import Refused

_ENCODER: Final = msgspec.json.Encoder()
_NO_BODY: Final = msgspec.Raw()
_KEYED_BYTES: Final = len(b'{"key":"","body":}')
_KEYLESS_BYTES: Final = len(b'{"body":}')
_BACKSLASH: Final = ord("\\")
_DEEP_BYTES_MIN: Final = 2 * (limits.BODY_DEPTH_MAX + 1)
"""Smallest body that can be nested too deep, because every bracket that is opened is closed."""
PLAIN_TOGETHER_MIN: Final = 4
"""Least number of messages that are checked together. Fewer are checked as quickly one by one."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[{]}")


class Message(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A message, in a publish and in a push alike.

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
    deliver_at_unix_ms: int | None = None
    """When the message is due: it is not delivered before. None: it is at once."""
    delay_s: float | None = None
    """The same, from the moment at which the broker gets it. Only in a publish: what is stored has
    the time."""


# enforces: P12
def check_message(message: Message, message_bytes_max: int) -> None:
    """Raise Refused when a rule about one message is broken; `message_bytes_max` is the queue's.

    The body is measured against it: the bytes of the JSON value as they were sent, or the bytes
    that `body_base64` stands for. Everything else has a bound of its own.
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
        if not plain.isascii() or b"\\" in plain:
            _check_text(plain)
        if size >= _DEEP_BYTES_MIN:
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
        or message.deliver_at_unix_ms is not None
        or message.delay_s is not None
    ):
        _check_rare(message)


def encode_plain(messages: Sequence[Message], message_bytes_max: int) -> list[bytes] | None:
    """Return the JSON forms of messages with nothing but a body and a short key, or no key, if
    `check_message` takes each of them. None: they are few, or one of them has more, or breaks a
    rule. They have to be checked one by one then.

    All of them are checked in a few calls, which cost less than a few on each. Any other field
    makes a form longer than key and body alone would be, and nothing makes it shorter.
    """
    count = len(messages)
    if count < PLAIN_TOGETHER_MIN or not _looks_plain(messages[0]):
        return None
    bodies = [message.body for message in messages]
    sizes = [*map(len, bodies)]
    if not min(sizes) or max(sizes) > message_bytes_max:
        return None
    keys = [message.key for message in messages if message.key is not None]
    key_sizes = [*map(len, keys)]
    if key_sizes and not 0 < min(key_sizes) <= max(key_sizes) <= limits.KEY_BYTES_MAX:
        return None
    try:
        encoded = [*map(_ENCODER.encode, messages)]
    except (ValueError, TypeError, msgspec.MsgspecError):  # for example because of a lone surrogate
        return None
    bare = len(keys) * _KEYED_BYTES + (count - len(keys)) * _KEYLESS_BYTES
    if sum(map(len, encoded)) != bare + sum(key_sizes) + sum(sizes):
        return None
    try:
        if not all(map(bytes.isascii, encoded)) or any(map(contains, encoded, repeat(_BACKSLASH))):
            # JSON values begin and end in ASCII, so a sequence that is in none of them is in no two
            # of them
            _check_text(b"".join(bodies))
        if max(sizes) >= _DEEP_BYTES_MIN:
            for body in bodies:
                _check_depth(bytes(body))
    except Refused:
        return None
    return encoded


def _looks_plain(message: Message) -> bool:
    """Whether a message has nothing but content and perhaps a key in ASCII. Producers treat their
    messages alike, so the first one is typical of the others."""
    return (
        message.id is None
        and message.headers is None
        and message.ttl_s is None
        and message.content_type is None
        and message.sent_unix_ms is None
        and message.deliver_at_unix_ms is None
        and message.delay_s is None
        and (message.key is None or message.key.isascii())
    )


def _size(text: str, what: str) -> int:
    """Return the number of bytes of a text's UTF-8 form. Refused: it has none, because of a lone
    surrogate. `what` names the text in the error."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise Refused("invalid_message", f"{what}: {error}") from None


RESERVED: Final = "tocsin-"
"""Begin of the names of headers that the broker alone gives. [A client copies what a dead letter
says of itself into a new message, and a reader of letters learns where another one died.]"""


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
    if message.deliver_at_unix_ms is not None:
        if message.delay_s is not None:
            raise Refused("invalid_message", "deliver_at_unix_ms and delay_s exclude each other")
        if not 0 <= message.deliver_at_unix_ms < 1 << 53:
            raise Refused(
                "invalid_message", "deliver_at_unix_ms is a time in milliseconds since 1970"
            )
    if message.delay_s is not None and not 0 <= message.delay_s <= limits.SCHEDULE_S_MAX:
        raise Refused(
            "invalid_message", f"delay_s is between 0 and {limits.SCHEDULE_S_MAX} (400 days)"
        )
    if message.headers is not None:
        reserved = [name for name in message.headers if name.lower().startswith(RESERVED)]
        if reserved:
            raise Refused(
                "invalid_message",
                f"header {reserved[0][:80]!r}: names that begin with {RESERVED} are the broker's; "
                "leave them out",
            )
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
    """Return the number of bytes that a text stands for; Refused: it is not base64 (RFC 4648
    §4)."""
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise Refused("invalid_message", f"body_base64 is not base64: {error}") from None


def _check_text(json: bytes) -> None:
    """Reject these JSON values if a strict parser of some consumer would fail on their text.

    Decoding into `msgspec.Raw` has checked the syntax, but neither the UTF-8 nor whether escaped
    surrogates come in pairs (a lone one has no UTF-8 form). Both faults are rare. They are searched
    for cheaply and decided only where they are possible. No loop in Python goes over the bytes,
    because a body may have a MiB.
    """
    if not json.isascii():
        try:
            json.decode()
        except UnicodeDecodeError as error:
            raise Refused("invalid_message", f"body: not UTF-8: {error}") from None
    if b"\\" in json and _SURROGATE.search(json):
        # after an escaped backslash, `u` is a letter; a space keeps its neighbors apart
        rest = _SURROGATE_PAIR.sub(b"", json.replace(b"\\\\", b" "))
        if _SURROGATE.search(rest):
            raise Refused("invalid_message", "body: a lone surrogate is escaped in it")


def _check_depth(body: bytes) -> None:
    """Reject a body that is nested too deep, without a loop over its bytes in Python."""
    if _may_be_deep(body):
        # outside of strings: every second piece between quotes that are not escaped
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
        steps = b"".join(plain).translate(_STEPS, _NOT_BRACKETS)
        if max(accumulate(array("b", steps)), default=0) > limits.BODY_DEPTH_MAX:
            raise Refused("invalid_message", f"body is nested deeper than {limits.BODY_DEPTH_MAX}")


def _may_be_deep(json: bytes) -> bool:
    # `count` looks at each byte; `replace` jumps from one to the next (memchr), and ends in time
    enough = limits.BODY_DEPTH_MAX + 1
    flat = json.replace(b"[", b"", enough).replace(b"{", b"", enough)
    return len(json) - len(flat) >= enough


# enforces: P2
def encode_message(message: Message) -> bytes:
    """Return the JSON form that is stored and pushed."""
    if message.body_base64 is not None and message.body is not _NO_BODY:
        message = msgspec.structs.replace(
            message, body=_NO_BODY
        )  # another empty one is not left out
    return _ENCODER.encode(message)


# enforces: R8
def id_digest(hash_key: bytes, key: str | None, name: str, *, moved: bool = False) -> bytes:
    """Return what deduplication remembers of an id: 256 bits over queue, key and id (R8).
    `hash_key`: the queue's. `moved`: the name is not a client's, and equals none that a client may
    give."""
    encoded = (key or "").encode()
    scope = b"%d:%b" % (len(encoded), encoded) if key is not None else b"-"
    return blake2b(
        scope + b"\0" + name.encode(),
        digest_size=32,
        key=hash_key,
        person=b"moved" if moved else b"",
    ).digest()


def expires_unix_ms(message: Message, queue_ttl_s: float | None, now_ms: float) -> int:
    """Return when a message expires, by the shorter of its own and the queue's TTL; 0 for never."""
    ttls = [ttl for ttl in (message.ttl_s, queue_ttl_s) if ttl is not None]
    return int(now_ms + min(ttls) * 1000) if ttls else 0


# --- Headers of dead letters ------------------------------------------------------------------

DEAD_LETTER_HEADER: Final = "tocsin-dead-letter-"
"""Begin of the names of the headers of dead letters."""
_EARLIER_HEADER: Final = DEAD_LETTER_HEADER + "earlier"
"""Header with the earlier deaths as JSON: the other headers each time, without the begin of their
names; the first death first."""
EARLIER_DEATHS_MAX: Final = 8
"""Number of earlier deaths that a message keeps: the first one, and the latest seven. [Without a
bound: two queues are made each other's dead-letter queues at the same moment, and a message goes
round for ever, and grows.]"""
_EARLIER_DECODER: Final = msgspec.json.Decoder(list[dict[str, str]])
Headers = Mapping[str, str] | None


def dead_letter_headers(headers: Headers, **said: str | None) -> dict[str, str]:
    """Return the headers of a message that dies: its own, and those of this death. `said`: the text
    of each of the latter, by its name without DEAD_LETTER_HEADER; None is left out. What the
    message said as a dead letter before is kept as an earlier death."""
    own = {
        name: text
        for name, text in (headers or {}).items()
        if not name.startswith(DEAD_LETTER_HEADER)
    }
    earlier, last = earlier_deaths(headers), last_death(headers)
    if last:
        earlier.append(last)
    if len(earlier) > EARLIER_DEATHS_MAX:
        earlier = [earlier[0], *earlier[1 - EARLIER_DEATHS_MAX :]]
    own |= {DEAD_LETTER_HEADER + name: text for name, text in said.items() if text is not None}
    return {**own, _EARLIER_HEADER: _ENCODER.encode(earlier).decode()} if earlier else own


def revived_headers(headers: Headers) -> dict[str, str] | None:
    """Return the headers that a dead letter had before it died last; None: it had none."""
    own = {
        name: text
        for name, text in (headers or {}).items()
        if not name.startswith(DEAD_LETTER_HEADER)
    }
    earlier = earlier_deaths(headers)
    if earlier:
        own |= {DEAD_LETTER_HEADER + name: text for name, text in earlier.pop().items()}
    if earlier:
        own[_EARLIER_HEADER] = _ENCODER.encode(earlier).decode()
    return own or None


def headers_without_groups(headers: Headers) -> dict[str, str] | None:
    """Return the headers for a reader whose rights show no groups: without the group and the nack's
    reason of the last death, and without earlier deaths. None: there are no others."""
    hidden = {DEAD_LETTER_HEADER + "group", DEAD_LETTER_HEADER + "nack", _EARLIER_HEADER}
    return {name: text for name, text in (headers or {}).items() if name not in hidden} or None


def earlier_deaths(headers: Headers) -> list[dict[str, str]]:
    """Return what a dead letter said of each death before the last one, the first death first.
    Empty: there was none, or it cannot be read."""
    text = (headers or {}).get(_EARLIER_HEADER)
    if text is None:
        return []
    try:
        return _EARLIER_DECODER.decode(text)
    except msgspec.MsgspecError:  # a client wrote this
        return []


def last_death(headers: Headers) -> dict[str, str]:
    """Return what a dead letter says of its last death, by the headers' names without
    DEAD_LETTER_HEADER; empty: it is no dead letter."""
    return {
        name[len(DEAD_LETTER_HEADER) :]: text
        for name, text in (headers or {}).items()
        if name.startswith(DEAD_LETTER_HEADER) and name != _EARLIER_HEADER
    }
