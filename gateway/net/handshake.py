"""The WebSocket handshake. It decides which clients may open a session, and refuses the others."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final, NamedTuple

from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from gateway.auth.auth import Authenticator
from gateway.limits.limiter import UNLIMITED, Limiter
from gateway.models import Admission, NotLetIn
from push.errors import Refused
from runtime.addresses import NO_PROXIES, UNKNOWN, Addresses, ClientAddress, name_of
from runtime.http1 import WEBSOCKET_PATH, raw_problem

PATH: Final = WEBSOCKET_PATH
SUBPROTOCOL: Final = Subprotocol("tocsin.v1")
TICKET: Final = "tocsin.ticket."
"""Prefix of a ticket that is offered as a further subprotocol. A browser lets a page say nothing
else in a handshake. It is never the chosen subprotocol, so no answer repeats it."""
logger = logging.getLogger("tocsin.websocket")
quiet_logger = logging.getLogger("tocsin.websocket.protocol")
"""Logger of websockets' protocol objects, whose line for each connection says nothing."""
quiet_logger.setLevel(logging.WARNING)
_HEADERS: Final = {401: ('www-authenticate: Bearer realm="tocsin"',), 426: ("upgrade: websocket",)}


class Handshake(NamedTuple):
    """The answer to a handshake. Write `response`; close the socket after it if the handshake is
    not accepted."""

    is_accepted: bool
    response: bytes
    admission: Admission | None
    """None if the client has to send a token in `hello`, or if the handshake is not accepted."""
    address: ClientAddress = UNKNOWN
    error: Refused | None = None
    """Reason why it is not accepted; None if it is."""


def answer_handshake(
    data: bytes,
    auth: Authenticator,
    *,
    now: float,
    wall: float,
    peer: ClientAddress = UNKNOWN,
    addresses: Addresses = NO_PROXIES,
    limiter: Limiter = UNLIMITED,
) -> Handshake:
    """Judge a whole handshake request that `peer` has sent, at `now` (monotonic seconds) and `wall`
    (unix seconds). A refusal is an HTTP response with a problem document."""
    protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], logger=quiet_logger)
    protocol.receive_data(data)
    request = next(iter(protocol.events_received()), None)
    try:
        if not isinstance(request, Request):
            raise Refused("invalid_request", "not a WebSocket handshake")
        if addresses.trusts(peer):
            peer = addresses.behind(peer, _headers(request))
        name = name_of(peer.text)
        limiter.connect(name, now=now)
        is_checked = _has_credential(request)
        with limiter.checking_credential(name, now=now) if is_checked else nullcontext():
            admission = _admit(request, auth, now, wall, peer)
    except Refused as error:
        return _refuse(error, error.code.http_status, peer)
    response = protocol.accept(request)
    if response.status_code != 101:
        reason = bytes(response.body).decode().strip()
        return _refuse(Refused("invalid_request", reason), response.status_code, peer)
    protocol.send_response(response)
    return Handshake(True, b"".join(protocol.data_to_send()), admission, peer)


def _headers(request: Request) -> Iterator[tuple[bytes, bytes]]:
    for name, value in request.headers.raw_items():
        yield name.lower().encode(), value.encode("utf-8", "surrogateescape")


def _has_credential(request: Request) -> bool:
    """Whether the request has a credential that could be a guess: a token or a ticket. A cookie
    cannot be guessed."""
    offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
    return "Authorization" in request.headers or TICKET in offered


def _admit(
    request: Request, auth: Authenticator, now: float, wall: float, peer: ClientAddress
) -> Admission | None:
    """Return the admission of a handshake; None if a token has to follow. Raises Refused:
    not_found, origin_refused, unauthorized, invalid_request."""
    if request.path.partition("?")[0] != PATH:
        raise Refused("not_found", f"WebSockets are at {PATH}")
    text = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
    offered = [one.strip() for one in text.split(",")]
    tickets = [one.removeprefix(TICKET) for one in offered if one.startswith(TICKET)]
    if tickets and not auth.is_open and "authorization" not in request.headers:
        auth.check_origin(request.headers, is_tls=peer.is_tls)
        if len(tickets) > 1:
            raise NotLetIn("several")
        admission: Admission | None = auth.check_ticket(tickets[0], now=now, wall=wall)
    else:
        admission = auth.authenticate(
            request.headers,
            is_read=False,
            wall=wall,
            certificate=peer.certificate_name,
            is_tls=peer.is_tls,
        )
    if SUBPROTOCOL not in offered:
        raise Refused(
            "invalid_request",
            f"offer the subprotocol {SUBPROTOCOL}: send Sec-WebSocket-Protocol: {SUBPROTOCOL}; in "
            f'a browser, new WebSocket(url, "{SUBPROTOCOL}")',
        )
    return admission


def _refuse(error: Refused, status: int, peer: ClientAddress) -> Handshake:
    logger.info("a WebSocket handshake was refused: %s", error)
    response = raw_problem(error, *_HEADERS.get(status, ()), status=status)
    return Handshake(False, response, None, peer, error)
