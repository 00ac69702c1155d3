"""The headers of dead letters: where each comes from and why, and how it was before. Pure.

A letter says in headers of its own (HEADER …) in which queue it died last. Where it was a dead
letter there already, what it said then goes into one more header, EARLIER, and stands there again
when the letter is sent back: so who looks from the first queue finds it as before.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

HEADER: Final = "tocsin-dead-letter-"
"""What the names of these headers begin with."""
EARLIER: Final = HEADER + "earlier"
"""JSON: what the other headers said each time before, without HEADER; the first death first."""
EARLIER_MAX: Final = 8
"""So many earlier deaths are kept: the first one, and the latest. [Two queues are made each other's
dead-letter queues at the same moment, and a message goes round for ever.]"""
_ENCODE: Final = msgspec.json.Encoder().encode
_EARLIER: Final = msgspec.json.Decoder(list[dict[str, str]])
Headers = Mapping[str, str] | None


def letter_headers(headers: Headers, **said: str | None) -> dict[str, str]:
    """The headers of a message that dies: its own, and what is `said` of this death; None is left
    out. What it said as a dead letter of before is kept as such."""
    own = {name: text for name, text in (headers or {}).items() if not name.startswith(HEADER)}
    earlier, last = earlier_deaths(headers), said_of(headers)
    if last:
        earlier.append(last)
    if len(earlier) > EARLIER_MAX:
        earlier = [earlier[0], *earlier[1 - EARLIER_MAX :]]
    own |= {HEADER + name: text for name, text in said.items() if text is not None}
    return {**own, EARLIER: _ENCODE(earlier).decode()} if earlier else own


def revived_headers(headers: Headers) -> dict[str, str] | None:
    """The headers that a letter had before it died last; None: it had none."""
    own = {name: text for name, text in (headers or {}).items() if not name.startswith(HEADER)}
    earlier = earlier_deaths(headers)
    if earlier:
        own |= {HEADER + name: text for name, text in earlier.pop().items()}
    if earlier:
        own[EARLIER] = _ENCODE(earlier).decode()
    return own or None


def headers_without_groups(headers: Headers) -> dict[str, str] | None:
    """Headers for somebody whose rights show no groups: without the group of a death, its words
    and those of earlier deaths. None: there are no others."""
    hidden = {HEADER + "group", HEADER + "nack", EARLIER}
    return {name: text for name, text in (headers or {}).items() if name not in hidden} or None


def earlier_deaths(headers: Headers) -> list[dict[str, str]]:
    """What a letter said each time that it died before the last one, the first death first."""
    text = (headers or {}).get(EARLIER)
    if text is None:
        return []
    try:
        return _EARLIER.decode(text)
    except msgspec.MsgspecError:  # somebody else wrote this
        return []


def said_of(headers: Headers) -> dict[str, str]:
    """What a letter says of its last death, without HEADER; empty: it is none."""
    return {
        name[len(HEADER) :]: text
        for name, text in (headers or {}).items()
        if name.startswith(HEADER) and name != EARLIER
    }
