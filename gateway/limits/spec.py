"""Limits, and the form in which they are written. Pure.

    messages=1000/s,bytes=10M/s+40M,sessions=100

A rate is `<number>/s` (or /min, /h), with `+<burst>` if more may come at once. k, M and G are
thousands, millions and thousands of millions. The default burst is the amount of a second, and at
least one. A burst of bytes is never less than one publish may hold, because one message would never
fit otherwise. If a publish has more messages than the burst, only the burst is admitted (R5). A
bound is a plain number.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, get_args

import msgspec

from push import limits
from push.rates.bucket import Rate

Kind = Literal["connections", "failures", "requests", "frames", "messages", "bytes"]
"""Kinds of rates: opened WebSockets and sessions by long poll; wrong credentials; HTTP requests;
frames of a session other than publishes and the settling of deliveries; published messages, and
their bytes."""
Bound = Literal["sessions", "in_flight"]
"""Kinds of bounds: sessions, and messages that were published and await their answer."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
BURSTS_MIN: Final[dict[str, int]] = {
    "frames": 2 * limits.FRAMES_PER_MESSAGE_MAX,
    "bytes": limits.FRAME_BYTES_MAX,
}
"""Smallest allowed burst of a kind; 1 for other kinds. That of `frames` is more than a session
sends at once, that of `bytes` as much as one publish may hold."""
IN_FLIGHT_MIN: Final = limits.MESSAGES_PER_PUBLISH_MAX
"""Smallest allowed bound of `in_flight`: the number of messages that one publish may hold."""
OF_PRINCIPAL: Final = (
    "connections",
    "requests",
    "messages",
    "bytes",
    "sessions",
    "in_flight",
)
OF_ADDRESS: Final = (*OF_PRINCIPAL, "failures")
OF_QUEUE: Final = ("messages", "bytes")
OF_SESSION: Final = ("frames",)
ADDRESS_DEFAULT: Final = "connections=100/s+2000,failures=10/s+100,sessions=20000"
"""Default limits of an address. An office behind one address can come back at once after a restart,
no person mistypes a credential ten times a second, and one address alone cannot use up
SESSIONS_MAX."""
SESSION_DEFAULT: Final = "frames=200/s+2000"
"""Default limits of a session, for frames other than publishing and settling messages. They allow
hundreds of subscriptions at once, and then more frames than any program needs."""
_SUFFIXES: Final = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_PERIODS: Final = {"s": 1, "min": 60, "h": 3600}
_NUMBER: Final = r"[0-9]{1,12}[kMG]?"
_RATE: Final = re.compile(rf"({_NUMBER})/(s|min|h)(?:\+({_NUMBER}))?")
_UNITS_MAX: Final = 10**15
_THOUSANDTHS: Final = 1000


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one principal, address, queue or credential. A field that is None sets no
    limit."""

    connections: Rate | None = None
    failures: Rate | None = None
    requests: Rate | None = None
    frames: Rate | None = None
    messages: Rate | None = None
    bytes: Rate | None = None
    sessions: int | None = None
    in_flight: int | None = None


NONE: Final = Limits()


def parse_limits(text: str, allowed: Sequence[str] = OF_PRINCIPAL) -> Limits:
    """Parse the limits in a text; an empty one has none. `allowed`: the names of limits that may be
    in it.

    Raises:
        ValueError: a part is wrong; a sentence names it and its correct form.
    """
    found = NONE
    for part in text.split(",") if text.strip() else ():
        name, separator, said = (one.strip() for one in part.partition("="))
        if name not in allowed or not separator:
            raise ValueError(
                f"{part.strip()!r} is no limit: write one of {', '.join(allowed)}, then = and a "
                "value"
            )
        if getattr(found, name) is not None:
            raise ValueError(f"{name} is given twice: give it once")
        value = _rate(name, said) if name in KINDS else _bound(name, said)
        found = msgspec.structs.replace(found, **{name: value})
    return found


@lru_cache(maxsize=limits.TOKENS_MAX)
def limits_of(text: str) -> Limits:
    """Parse a credential's limits; equal texts share one object. Raises ValueError like
    parse_limits."""
    return parse_limits(text)


def per_second(kind: Kind, rate: float | None) -> Rate | None:
    """Return a rate per second, to the thousandth, with the default burst; None: no limit."""
    if rate is None:
        return None
    units = max(1, round(Fraction(rate) * _THOUSANDTHS))
    return Rate(units, _THOUSANDTHS, max(BURSTS_MIN.get(kind, 1), -(-units // _THOUSANDTHS)))


def _rate(name: str, said: str) -> Rate:
    match = _RATE.fullmatch(said)
    units = _number(match[1]) if match else 0
    if match is None or not 1 <= units <= _UNITS_MAX:
        raise ValueError(
            f"{name} is {said!r}, which is no rate: write for example 1000/s, 10M/min or "
            "1000/s+5000"
        )
    per_s, least = _PERIODS[match[2]], BURSTS_MIN.get(name, 1)
    burst = max(least, -(-units // per_s)) if match[3] is None else _number(match[3])
    if not least <= burst <= _UNITS_MAX:
        why = ", because one message may have that many" if name == "bytes" else ""
        raise ValueError(
            f"the burst of {name} is {match[3]}: it must be at least {least}{why}, and at most "
            f"{_UNITS_MAX}"
        )
    return Rate(units, per_s, burst)


def _bound(name: str, said: str) -> int:
    least = IN_FLIGHT_MIN if name == "in_flight" else 1
    number = _number(said) if re.fullmatch(_NUMBER, said) else 0
    if not least <= number <= _UNITS_MAX:
        raise ValueError(f"{name} is {said!r}: it must be a whole number, at least {least}")
    return number


def _number(text: str) -> int:
    digits = text.rstrip("kMG")
    return int(digits) * _SUFFIXES[text[len(digits) :]]
