"""Who is there, and may a request from this page be served at all. Pure.

With a token (`TOCSIN_TOKEN`) every client presents it: in the `Authorization: Bearer` header, or,
from a browser's WebSocket, which cannot set headers, in its `hello`. Without a token everybody on
this machine is let in, and only from this machine: a web page that the user merely visits must
not talk to the broker behind the user's back.

    DNS rebinding            evil.example resolves to 127.0.0.1: its Host header gives it away
    cross-site WebSocket     a page of evil.example opens ws://127.0.0.1: its Origin gives it away

A browser may have a cookie instead (gateway.access). It sends that by itself, so a cookie counts
only where the browser also says whose page asks, and it is one of ours. What another port of this
host serves is the same site to the browser, and another origin.

    cross-site request       a page of localhost:3000 posts to us, cookie and all: its Origin
    cross-site look          it loads <img src="http://localhost:8080/v1/…">: its Sec-Fetch-Site

Tokens are never logged and never part of an error.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from gateway.access import Cookies
from gateway.admission import Admission
from metadata.catalog import ANYBODY, Principal
from push.errors import Refused

OPERATOR: Final = Principal("operator")
"""Whoever holds the broker's one token: all rights."""
LET_IN: Final = Admission(ANYBODY, credential="anybody")
"""Where nobody needs a token."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"(https?)://(\S+)", re.IGNORECASE)
_PORTS: Final = {"http": 80, "https": 443}
_OWN_SITES: Final = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site: an older browser, our page, an address that the user typed in."""


class Auth:
    """Decides about requests. `origins` are further pages (`https://app.example`) to be served.

    Header mappings are looked up by lower-case name: those of Starlette and websockets both fit.
    """

    __slots__ = ("_origins", "_token", "cookies")

    def __init__(self, token: str | None, origins: Iterable[str] = ()) -> None:
        self._token = token.encode() if token else None
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self.cookies = Cookies(self._token) if self._token is not None else None
        """None: nobody needs one."""

    def admit(self, headers: Mapping[str, str]) -> Admission | None:
        """Judge a request by its headers: who it is, or None where a token is still owed (a
        WebSocket then owes it in its `hello`; anything else is to be refused).

        Raises:
            Refused: unauthorized or origin_refused.
        """
        presented = bearer_token(headers)
        if self._token is None:
            self.check_origin(headers, has_token=False)
            return LET_IN
        admission = None if presented is None else self.check_token(presented)
        self.check_origin(headers, has_token=admission is not None)
        return admission

    def admission_of(
        self, headers: Mapping[str, str], *, is_read: bool, wall: float
    ) -> Admission | None:
        """As `admit`, and where no token is presented by the cookie. `is_read`: the request is a
        GET or HEAD, which changes nothing; a WebSocket's handshake is none. `wall`: unix seconds.

        Raises:
            Refused: unauthorized or origin_refused.
        """
        admission = self.admit(headers)
        if admission is not None:
            return admission
        if self.cookies is None:
            return None
        lasts_s = self.cookies.lasts_s(_one(headers, "cookie"), wall=wall)
        if lasts_s is None:
            return None
        # An Origin that is there has been judged by `admit`.
        if _one(headers, "origin") is None and not (
            is_read and _one(headers, "sec-fetch-site") in _OWN_SITES
        ):
            raise Refused(
                "origin_refused",
                "with a cookie, a request says by its Origin header which page it comes from; "
                "programs present the token: Authorization: Bearer <token>",
            )
        return Admission(OPERATOR, lasts_s)

    def check_token(self, presented: str | None) -> Admission:
        """What this token gives. Without a configured token, whatever is presented is anybody's.

        Raises:
            Refused: unauthorized.
        """
        if self._token is None:
            return LET_IN
        if presented is None:
            raise Refused("unauthorized", "this broker wants a token (TOCSIN_TOKEN)")
        # In constant time: how far a guess is right must not be measurable.
        if not hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), self._token):
            raise Refused("unauthorized", "this token is not valid here")
        return Admission(OPERATOR)

    def check_origin(self, headers: Mapping[str, str], has_token: bool) -> None:
        """Judge where a request comes from. `has_token`: it carries a valid Authorization header,
        which no foreign page can make a browser send.

        Raises:
            Refused: origin_refused, with what to do about it.
        """
        if has_token:
            return
        host = _one(headers, "host")
        if self._token is None and not _is_loopback(host):
            raise Refused(
                "origin_refused",
                "without TOCSIN_TOKEN this broker answers to localhost, 127.0.0.1 and [::1] only",
            )
        origin = _one(headers, "origin")
        if origin is None or origin.lower() in self._origins or _is_same(origin, host):
            return
        raise Refused(
            "origin_refused",
            "a page of another origin may not connect; allow it by TOCSIN_ORIGINS",
        )


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The token of the Authorization header; None: there is no such header.

    Raises:
        Refused: unauthorized: the header is there and is not `Bearer <token>`.
    """
    header = _one(headers, "authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Refused("unauthorized", "Authorization is to be: Bearer <token>")
    return token


def _one(headers: Mapping[str, str], name: str) -> str | None:
    """A header's value. Several ones are a smuggling attempt or a broken proxy: refused."""
    try:
        return headers.get(name)
    except LookupError:  # websockets' MultipleValuesError
        raise Refused("origin_refused", f"several {name} headers") from None


def _split(host: str | None) -> tuple[str, int | None] | None:
    """(name, port) of a Host header; None when it is none."""
    match = _HOST.fullmatch(host) if host is not None else None
    if match is None:
        return None
    return match[1].lower(), int(match[2]) if match[2] else None


def _is_loopback(host: str | None) -> bool:
    """Whatever the port: an SSH tunnel or a container may have changed it."""
    parts = _split(host)
    if parts is None:
        return False
    name = parts[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_same(origin: str, host: str | None) -> bool:
    """Whether a page of `origin` was served by `host`. The scheme may differ: a proxy in front may
    have taken TLS off."""
    match = _ORIGIN.fullmatch(origin)
    page, server = _split(match[2]) if match else None, _split(host)
    if match is None or page is None or server is None:
        return False
    default = _PORTS[match[1].lower()]
    return (page[0], page[1] or default) == (server[0], server[1] or default)
