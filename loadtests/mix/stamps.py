"""How a message of the mix names itself, so that whoever is given it knows what it was. Pure.

All messages that one publisher sends under one key are a **line**, numbered from 1: `3f.12/k007`.
A number that is missing is a loss, one that comes twice a repetition, one that comes behind a
larger one an inversion; and the sets that say so are ranges, which cost nothing while all is well.
"""

import zlib
from dataclasses import dataclass
from typing import Final

import msgspec

BODY_BYTES_MIN: Final = 160
"""Of a body: what names it takes fewer than that, whatever the numbers are."""


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    line: str
    number: int
    due: int
    check: int
    pad: str


_DECODE: Final = msgspec.json.Decoder(_Body).decode
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Stamp:
    """One message: its line, its number there, and when it was due (monotonic nanoseconds, the
    same clock for all processes of a machine)."""

    line: str
    number: int
    due_ns: int

    @property
    def key(self) -> str:
        """The key of its line."""
        return key_of(self.line)


class NotOurs(ValueError):
    """A body that no publisher of the mix has made, or that was changed on its way."""


def line_of(publisher: str, key: str) -> str:
    """The line of a publisher's messages under a key."""
    return f"{publisher}/{key}"


def key_of(line: str) -> str:
    """The key of a line."""
    return line.partition("/")[2]


def _check(line: str, number: int, due_ns: int) -> int:
    return zlib.crc32(b"%b:%d:%d" % (line.encode(), number, due_ns))


def body(stamp: Stamp, body_bytes: int) -> bytes:
    """The JSON of its body, filled up to `body_bytes` (at least BODY_BYTES_MIN)."""
    assert body_bytes >= BODY_BYTES_MIN
    check = _check(stamp.line, stamp.number, stamp.due_ns)
    bare = _ENCODE(_Body(stamp.line, stamp.number, stamp.due_ns, check, ""))
    return bare[:-2] + b"x" * (body_bytes - len(bare)) + b'"}'


def read(text: bytes, body_bytes: int) -> Stamp:
    """What a body names.

    Raises:
        NotOurs: byte for byte it is not what `body` makes.
    """
    try:
        found = _DECODE(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotOurs(f"{error}: {text[:120]!r}") from None
    whole = len(text) == body_bytes and found.pad.count("x") == len(found.pad)
    if not whole or found.check != _check(found.line, found.number, found.due):
        raise NotOurs(f"changed on its way: {text[:120]!r}")
    return Stamp(found.line, found.number, found.due)
