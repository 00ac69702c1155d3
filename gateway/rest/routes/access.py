"""REST: tickets and cookies, by which a browser gets access. gateway.auth.browser makes them."""

import asyncio
import secrets
from math import inf
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.accounting.audit import Actor
from gateway.auth.browser import ACCESS_S, TICKET_BYTES, TICKET_S, set_cookie, write_ticket
from gateway.broker import Broker
from gateway.models import NotLetIn
from gateway.rest.accounting import actor_of
from gateway.rest.operation import Answer, Operation, admission, audit_of, authenticator, read_body
from push import limits
from push.errors import Refused
from runtime.addresses import client_address
from runtime.operation import decode, reply

TICKET: Final = "ticket.create"
"""Name in the audit trail of making a ticket. The trail counts tickets."""


class Ticket(msgspec.Struct):
    """A ticket for one use, valid until `expires_unix_ms`. Both are null if this broker needs no
    credentials."""

    ticket: str | None
    expires_unix_ms: int | None


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A ticket, presented for access in place of an Authorization header."""

    ticket: str | None = None


class Admitted(msgspec.Struct):
    """The principal that has access, until `expires_unix_ms`. If that is null, access lasts until
    its credential is revoked."""

    principal: str
    expires_unix_ms: int | None


async def create_ticket(broker: Broker, request: Request) -> Response:
    """Make a ticket for a browser. Put it into the fragment of a page's address, or into the
    handshake of a WebSocket. It gives the access that the token of this request gives. A request
    with a cookie is refused, because such access could be renewed for ever."""
    auth = authenticator(request)
    if auth.is_open:
        return reply(Ticket(None, None))
    if admission(request).is_cookie:
        raise Refused("forbidden", "a ticket is made for a token, not for a cookie: send a token")
    ticket = write_ticket(secrets.token_urlsafe(TICKET_BYTES))
    auth.add_ticket(ticket, admission(request), now=asyncio.get_running_loop().time())
    audit_of(request).count_access(actor_of(request.scope), TICKET)
    return reply(Ticket(ticket, int((request.app.wall() + TICKET_S) * 1000)))


async def enter(broker: Broker, request: Request) -> Response:
    """Exchange a ticket, or the token of the Authorization header, for an HttpOnly cookie. The
    cookie gives this browser the same access, for at most twelve hours. A broker that needs no
    credentials sets no cookie."""
    auth, access = authenticator(request), request.app.access
    access.check_once(request.scope)
    wall, is_tls = request.app.wall(), client_address(request.scope).is_tls
    with access.guessing(request.scope):
        admitted = auth.authenticate_without_cookie(request.headers, wall=wall, is_tls=is_tls)
    if auth.is_open and admitted is not None:
        return reply(Admitted(admitted.principal.name, None))
    if admitted is None:
        body = await read_body(request, limits.ACCESS_REQUEST_BYTES_MAX)
        ticket = decode(body, _ENTRY).ticket
        if ticket is None:
            raise NotLetIn("none")
        now = asyncio.get_running_loop().time()
        with access.guessing(request.scope):
            admitted = auth.check_ticket(ticket, now=now, wall=wall)
    audit_of(request).count_access(Actor.of(admitted, actor_of(request.scope).address))
    lasts_s = min(admitted.lasts_s, ACCESS_S)
    value = auth.cookie_for(admitted, lasts_s, wall=wall)
    answer = reply(Admitted(admitted.principal.name, int(wall + lasts_s) * 1000))
    answer.headers["Set-Cookie"] = _cookie(request, value)
    return answer


async def look_at_access(broker: Broker, request: Request) -> Response:
    """Return the principal of this request. The answer is 401 if the request has no valid
    credentials; then present a ticket or a token."""
    access = request.app.access
    found = access.judge(request.scope)
    ends = None
    if found.lasts_s < inf:
        ends = round((request.app.wall() + found.lasts_s) * 1000)
    return reply(Admitted(found.principal.name, ends))


async def leave(broker: Broker, request: Request) -> Response:
    """Sign this browser out by clearing its cookie. Open sessions go on until they are closed."""
    auth, access = authenticator(request), request.app.access
    access.check_once(request.scope)
    auth.check_origin(request.headers, is_tls=client_address(request.scope).is_tls)
    answer = Response(status_code=204)
    if not auth.is_open:
        answer.headers["Set-Cookie"] = _cookie(request, "")
    return answer


def _cookie(request: Request, value: str) -> str:
    name = authenticator(request).cookie_name
    return set_cookie(name, value, is_secure=_is_secure(request))


def _is_secure(request: Request) -> bool:
    """Whether the browser came over TLS, by its connection, by its trusted proxy, or by the
    page's origin. A browser does not invent an origin. A client that forges one only gets a
    cookie that its own browser does not send."""
    origin = request.headers.get("origin", "").lower()
    return client_address(request.scope).is_tls or origin.startswith("https://")


_ENTRY: Final = msgspec.json.Decoder(Entry)
_BODY: Final = ("invalid_json", "invalid_request", "request_too_large")

OPERATIONS: Final = (
    Operation(
        "POST",
        "/v1/tickets",
        "Make a ticket for a browser.",
        create_ticket,
        {200: Answer("The ticket.", Ticket)},
        needs="own",
        errors=("too_many",),
    ),
    Operation(
        "POST",
        "/v1/access",
        "Let this browser in.",
        enter,
        {200: Answer("The browser has access; the cookie is set.", Admitted)},
        request=Entry,
        errors=(*_BODY, "unauthorized", "origin_refused"),
        public=True,
    ),
    Operation(
        "GET",
        "/v1/access",
        "Return the principal of this request.",
        look_at_access,
        {200: Answer("The principal, and how long its access lasts.", Admitted)},
        errors=("unauthorized", "origin_refused", "invalid_request"),
        public=True,
    ),
    Operation(
        "DELETE",
        "/v1/access",
        "Sign this browser out.",
        leave,
        {204: Answer("The cookie is gone.")},
        errors=("origin_refused", "invalid_request"),
        public=True,
    ),
)
