"""Tickets and cookies, with which a browser gets in without a token in a URL or a script. Pure.

    ticket   a secret for one use within TICKET_S, for the fragment of an address or a WebSocket. A
             client with a token asks for it. The page exchanges it for a cookie, or sends it in
             `Sec-WebSocket-Protocol` or `hello`. It gives what that token gives
    cookie   admits one browser for ACCESS_S. It is an expiry and a Pass, signed under a key that is
             made of the catalog's secret and the broker's token. The broker does not store it, so
             it outlives a restart. It ends when the broker's token changes, or the credential that
             it was made for ends

A ticket has TICKET_BYTES of randomness and is looked up by its digest. So the time of a look-up
reveals nothing about it, and no number of guesses in TICKET_S comes near one. Therefore wrong
tickets are not counted. With a bound on them an attacker who guesses would lock everybody out.
"""

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import msgspec

from gateway.models import Admission
from push import limits
from push.errors import Refused

TICKET_S: Final = 30.0
TICKET_BYTES: Final = 24
ACCESS_S: Final = 12 * 3600.0
"""Longest life of a cookie, a working day."""
TICKET_MARK: Final = "tct_"
_VALUE: Final = re.compile(r"2\.([0-9]{1,12})\.([A-Za-z0-9_-]{1,8192})\.[A-Za-z0-9_-]{43}")


class Pass(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Contents of a cookie: the credential that it was made for, and its rights, unless the broker
    itself can look these up."""

    credential: str
    name: str = ""
    tenant: str = ""
    rights: list[str] = []


def write_ticket(secret: str) -> str:
    """Return the whole ticket with this secret."""
    return TICKET_MARK + secret


def is_ticket(text: str) -> bool:
    """Whether a credential has the mark of a ticket."""
    return text.startswith(TICKET_MARK)


class Tickets:
    """Tickets that wait to be used. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[float, float, Admission]] = {}
        """Digest → (end of the ticket, end of its admission, the admission), the ticket that ends
        first in front."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: str, admission: Admission, *, now: float) -> None:
        """Let a ticket be used once within TICKET_S. The admission that it gives ends when this
        `admission`, for which it is made, would end.

        Raises:
            Refused: too_many, if TICKETS_MAX wait, or at least as many of this principal as there
                is room left for. So no principal can use up the tickets of the others.
        """
        self._expire(now)
        room = limits.TICKETS_MAX - len(self._waiting)
        own = sum(one[2].principal == admission.principal for one in self._waiting.values())
        if own >= room:
            first, _, _ = next(iter(self._waiting.values()))
            whose = f"{own} tickets of this principal" if own else f"{limits.TICKETS_MAX} tickets"
            raise Refused(
                "too_many",
                f"{whose} wait to be used. Each ends after {TICKET_S:g} s: try again then",
                retry_after_s=first - now,
            )
        self._waiting[_digest(ticket)] = (now + TICKET_S, now + admission.lasts_s, admission)

    def use(self, ticket: str, *, now: float) -> Admission | None:
        """Use a ticket up, and return the admission that it gives. None: it is wrong, used, or too
        old, or the admission for which it was made has ended."""
        self._expire(now)
        found = self._waiting.pop(_digest(ticket), None)
        if found is None or found[1] <= now:
            return None
        return found[2]._replace(lasts_s=found[1] - now)

    def _expire(self, now: float) -> None:
        while self._waiting:
            digest, (end, _, _) = next(iter(self._waiting.items()))
            if end > now:
                break
            del self._waiting[digest]

    def check(self) -> None:
        """Assert that at most TICKETS_MAX tickets wait (P9)."""
        assert len(self._waiting) <= limits.TICKETS_MAX, "P9"


class Cookies:
    """Maker and verifier of cookies. A cookie is made for a credential that a client has presented.
    `wall`: unix seconds."""

    __slots__ = ("_key", "name")

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"tocsin access cookie 2", "sha256")
        # A browser has one set of cookies for all ports of a host. With names of their own, brokers
        # with different secrets do not overwrite each other's cookies.
        self.name = f"tocsin-access-{hmac.digest(self._key, b'name', 'sha256')[:4].hex()}"

    def make(self, said: Pass, lasts_s: float = ACCESS_S, *, wall: float) -> str:
        """Make a cookie's value, good for `lasts_s`, and no longer than ACCESS_S.

        Raises:
            Refused: forbidden, if it is too large for a browser to keep (RFC 6265, 6.1).
        """
        payload = _to_text(msgspec.json.encode(said))
        value = self._sign(f"2.{int(wall + min(lasts_s, ACCESS_S))}.{payload}")
        if len(value) > limits.COOKIE_BYTES_MAX:
            raise Refused(
                "forbidden",
                "this token has more rights than fit into a cookie: use one with fewer rights",
            )
        return value

    def passes(self, header: str | None, *, wall: float) -> Iterator[tuple[float, Pass]]:
        """Yield (seconds left, contents) of each cookie of the `Cookie` header that we have signed
        and that is not too old. There may be several of the name, because another port of the host
        may have set one; any of them may be ours."""
        for value in self._values(header or ""):
            match = _VALUE.fullmatch(value)
            if match is None or not hmac.compare_digest(
                self._sign(f"2.{match[1]}.{match[2]}").encode(), value.encode()
            ):
                continue
            left_s = min(int(match[1]) - wall, ACCESS_S)
            if left_s > 0:
                yield left_s, msgspec.json.decode(_from_text(match[2]), type=Pass)

    def _values(self, header: str) -> Iterator[str]:
        for one in header.split(";"):
            name, _, value = one.partition("=")
            if name.strip() == self.name:
                yield value.strip()

    def _sign(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), "sha256")
        return f"{text}.{_to_text(digest)}"


def set_cookie(name: str, value: str, *, is_secure: bool) -> str:
    """Return a `Set-Cookie` header. An empty value removes the cookie. No script can read the
    cookie, and no page of another site makes the browser send it. `is_secure`: the browser never
    sends it without TLS."""
    age_s = int(ACCESS_S) if value else 0
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def _digest(ticket: str) -> bytes:
    return sha256(ticket.encode("utf-8", "surrogatepass")).digest()


def _to_text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
