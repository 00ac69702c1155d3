"""How a browser gets in without a token in a URL or in a script: tickets and cookies. Pure.

    ticket   a secret for one use within TICKET_S, for the fragment of an address: who holds the
             token asks for it, the page exchanges it for a cookie
    cookie   admits one browser for ACCESS_S: an expiry signed under a key that is derived from the
             token. Nobody keeps it, so it outlives a restart, and a new token ends it

A ticket has TICKET_BYTES of randomness and is looked up by its digest: how long that takes tells
nothing about it, and no number of guesses in TICKET_S comes near one. So wrong tickets are not
counted: a bound on them would lock everybody out when somebody guesses.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from push import limits
from push.errors import Refused

TICKET_S: Final = 30.0
TICKET_BYTES: Final = 24
ACCESS_S: Final = 12 * 3600.0
"""A working day: no cookie is older."""
_VALUE: Final = re.compile(r"1\.([0-9]{1,12})\.[A-Za-z0-9_-]{43}")
_HOW: Final = "`tocsin ticket` prints a new address; the token does it, too"


class Tickets:
    """Those that wait to be used. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._ends: dict[bytes, float] = {}
        """Digest → when it is over, in this order."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, ticket: str, *, now: float) -> None:
        """Whoever brings it within TICKET_S gets in, once.

        Raises:
            Refused: too_many wait already.
        """
        self._expire(now)
        if len(self._ends) >= limits.TICKETS_MAX:
            first = next(iter(self._ends.values()))
            raise Refused(
                "too_many",
                f"{limits.TICKETS_MAX} tickets wait to be used: each is over after {TICKET_S:g} s",
                retry_after_s=first - now,
            )
        self._ends[_digest(ticket)] = now + TICKET_S

    def use(self, ticket: str, *, now: float) -> None:
        """It is used up.

        Raises:
            Refused: unauthorized: it is wrong, used or over, with what to do.
        """
        self._expire(now)
        if self._ends.pop(_digest(ticket), None) is None:
            raise Refused(
                "unauthorized",
                f"this ticket is wrong, used, or older than {TICKET_S:g} s: {_HOW}",
            )

    def _expire(self, now: float) -> None:
        for digest, end in list(self._ends.items()):
            if end > now:
                break
            del self._ends[digest]

    def check(self) -> None:
        """Assert what always holds (P9)."""
        assert len(self._ends) <= limits.TICKETS_MAX, "P9"


class Cookies:
    """The cookies that stand for a token. `wall`: unix seconds."""

    __slots__ = ("_key", "name")

    def __init__(self, token: bytes) -> None:
        self._key = hmac.digest(token, b"tocsin access cookie 1", "sha256")
        # A browser has one set of cookies for all ports of a host: brokers with different tokens
        # do not take each other's place.
        self.name = f"tocsin-access-{hmac.digest(self._key, b'name', 'sha256')[:4].hex()}"

    def make(self, *, wall: float) -> str:
        """A cookie's value, good for ACCESS_S."""
        return self._sign(f"1.{int(wall + ACCESS_S)}")

    def lasts_s(self, header: str | None, *, wall: float) -> float | None:
        """For how long the `Cookie` header still admits; None: it does not. Of several cookies of
        the name, which another port of the host may have set, one that is valid is enough."""
        best = 0.0
        for value in self._values(header or ""):
            match = _VALUE.fullmatch(value)
            if match is not None and hmac.compare_digest(
                self._sign(f"1.{match[1]}").encode(), value.encode()
            ):
                best = max(best, min(int(match[1]) - wall, ACCESS_S))
        return best or None

    def _values(self, header: str) -> Iterator[str]:
        for one in header.split(";"):
            name, _, value = one.partition("=")
            if name.strip() == self.name:
                yield value.strip()

    def _sign(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), "sha256")
        return f"{text}.{urlsafe_b64encode(digest).decode().rstrip('=')}"


def set_cookie(name: str, value: str, *, is_secure: bool) -> str:
    """A `Set-Cookie` header; an empty value takes the cookie away. No script reads it, no other
    site's page makes the browser send it. `is_secure`: never without TLS."""
    age_s = int(ACCESS_S) if value else 0
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def _digest(ticket: str) -> bytes:
    return sha256(ticket.encode("utf-8", "surrogatepass")).digest()
