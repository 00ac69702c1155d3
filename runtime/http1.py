"""HTTP/1.1 with deadlines and bounds: uvicorn's protocol, hardened.

uvicorn has no deadline for a request's header or body, and with httptools no bound on a header. A
client that sends one byte a minute holds a socket for ever, and one that sends a header without end
holds memory without end (P9). Here a request's header must arrive within `header_timeout_s` of the
connection or of the request's first byte, and within `header_bytes_max`. Its body must arrive
within `body_timeout_s` of the header; what has come of it at the slowest rate prolongs that time
(`runtime.loop.fairness`). Idle keep-alive connections have uvicorn's own timeout.

A refusal ends the connection, but not before its turn: the requests before it are answered first,
then comes the problem document, then the end (P12).

An offer of another protocol (`Upgrade`) that is not a handshake of our WebSocket is ignored. The
request is answered like any other, and its body belongs to it. Bytes after it are parsed only when
it has been answered, because a client may send bytes of the other protocol at once (RFC 9110,
section 7.8). `CONNECT` ends the connection, because what follows it never is HTTP.

A request's body ends by its Content-Length, or by its chunks. The parser does this for ordinary
requests. After the header of a request that offers another protocol it stops, because what follows
may be that protocol. When the offer is ignored, `BodyFraming` cuts the body out of the connection,
to the byte (RFC 9110, section 7.8). Its reading is strict: lines end in CRLF, and whatever a proxy
might read in another way is refused.

`Flow` decides when the socket is read: uvicorn's flow control, with one more reason to wait.
"""

import asyncio
import enum
import logging
import re
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn, cast

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from push import limits
from push.errors import Refused, TocsinError
from runtime import problems
from runtime.addresses import CLIENT, NO_PROXIES, TRANSPORT, UNKNOWN, Addresses, peer_of
from runtime.loop.fairness import LARGE_READ_BYTES, ArrivalGate, LargeReadGate, TransferDeadline

CHUNK_LINE_BYTES_MAX: Final = 1024
"""Bound of a line with a chunk's size and its extensions, which are not read."""
TRAILER_BYTES_MAX: Final = 8192
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00\r\n]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00\r\n]*")

Headers = Iterable[tuple[bytes, bytes]]
"""Lower-case names and values."""


def check_coding(headers: Headers, http_version: str) -> None:
    """Refuse a transfer coding other than `chunked`. Content in `gzip, chunked` would otherwise be
    taken for its own uncompressed form.

    Raises:
        Refused: unsupported_encoding; invalid_request for HTTP/1.0, where the end of such a body
            is not certain (RFC 9112, section 6.1).
    """
    values = [value for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return
    if http_version != "1.1":
        raise Refused("invalid_request", f"HTTP/{http_version} has no Transfer-Encoding")
    codings = b",".join(values).lower()
    if codings.strip(b" \t") != b"chunked":
        shown = codings.decode("ascii", "replace")[:100]
        raise Refused(
            "unsupported_encoding",
            f"Transfer-Encoding: {shown} is not supported. Send Content-Length, or only chunked",
        )


class BodyFraming:
    """The body of one request, whose header is whole and has been checked."""

    def __init__(self, headers: Headers) -> None:
        fields = dict(headers)
        self._is_chunked = b"transfer-encoding" in fields
        self._left = 0 if self._is_chunked else int(fields.get(b"content-length") or 0)
        """Bytes of the body, or of the present chunk, that have not come yet."""
        self._line = b""
        """The beginning of a line whose end has not come yet."""
        self._trailer_bytes = 0
        self._expects = self._chunk_line if self._is_chunked else None
        """Reads the next line; None if no line follows."""

    @property
    def is_complete(self) -> bool:
        """Whether the body has ended, so that the bytes after it belong to the next request."""
        return not self._left and self._expects is None

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Split bytes that have come into a part of the body and what follows the body.

        Raises:
            Refused: invalid_request when these are no chunks. No later request can be made out.
        """
        if not self._is_chunked:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
            return part, rest
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                self._left -= len(part)
                at += len(part)
            else:
                at = self._take_line(data, at)
        return b"".join(parts), data[at:]

    def _take_line(self, data: bytes, at: int) -> int:
        """Read a line from index `at` on, or the part of it that has come; return the index after
        it."""
        end = data.find(b"\n", at)
        piece = data[at:] if end < 0 else data[at : end + 1]
        self._line += piece
        if len(self._line) > CHUNK_LINE_BYTES_MAX:
            raise _no_chunks("a line of it is too long")
        if end >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise _no_chunks("a line of it does not end in CRLF")
            assert self._expects is not None
            self._expects(line[:-2])
        return at + len(piece)

    def _chunk_line(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise _no_chunks("a chunk's size is no number")
        self._left = int(match[1], 16)
        self._expects = self._chunk_end if self._left else self._trailer

    def _chunk_end(self, line: bytes) -> None:
        if line:
            raise _no_chunks("a chunk is longer than its size")
        self._expects = self._chunk_line

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self._expects = None
        elif self._trailer_bytes > TRAILER_BYTES_MAX or _TRAILER_LINE.fullmatch(line) is None:
            raise _no_chunks("it is not followed by valid trailers")


def _no_chunks(why: str) -> Refused:
    return Refused("invalid_request", f"the chunked body cannot be read: {why}")


class Flow(FlowControl):
    """Decide when a socket is read, which is when the application wants more of a body, and after a
    large read only when it is the socket's turn."""

    def __init__(self, transport: asyncio.Transport, large_reads: LargeReadGate) -> None:
        super().__init__(transport)
        self._large_reads = large_reads
        self.is_resting = False
        self._is_over = False

    def rest(self) -> None:
        """Pause reading until LargeReadGate gives this socket its turn. A second call before that
        changes nothing."""
        if not self.is_resting:
            self.is_resting = True
            if not self.read_paused:
                self._transport.pause_reading()
            self._large_reads.wait(self._read_on)

    def hand_over(self) -> None:
        """Leave it to another protocol from now on to decide when the socket is read."""
        self._is_over = True
        if self.is_resting or self.read_paused:
            self._transport.resume_reading()

    def _read_on(self) -> None:
        self.is_resting = False
        if not self._is_over and not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self.is_resting:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self.is_resting:
                self._transport.resume_reading()


logger = logging.getLogger("tocsin.http")

WEBSOCKET_PATH: Final = "/v1/ws"
PART_BYTES_MIN = 4096
"""Least number of bytes of an incomplete body at which the application is woken up to take them.
Fewer bytes wait for the rest, and are not counted as incomplete."""
_PLAIN = (
    "other machines must connect to this broker over TLS or through its proxy, with https:// and "
    "wss://"
)


class _Phase(enum.Enum):
    HEADER = enum.auto()
    BODY = enum.auto()
    BETWEEN = enum.auto()
    REFUSED = enum.auto()  # nothing more is parsed; earlier requests are still being answered
    OVER = enum.auto()  # everything is written; the client has yet to close


class _Stop(Exception):
    """Stops the parser from inside one of its callbacks; `_refusal` is answered then."""


class Http11Protocol(HttpToolsProtocol):
    """The protocol class for `uvicorn.Config(http=…)`."""

    header_timeout_s = limits.REQUEST_HEADER_TIMEOUT_S
    header_bytes_max = limits.REQUEST_HEADER_BYTES_MAX
    body_timeout_s = limits.REQUEST_BODY_TIMEOUT_S
    pipelined_max = 64
    """Most requests of a connection that wait while an earlier one is answered. Each is an object
    many times its size on the wire, and one read may hold thousands."""
    addresses = NO_PROXIES
    large_reads: LargeReadGate | None = None
    arrivals: ArrivalGate | None = None
    """Gates that are shared with other connections, if they are set."""
    linger_s = limits.CLOSE_TIMEOUT_S
    """Seconds from our last words to the end of the socket, whatever the client does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _Phase.HEADER
        self._timer: asyncio.TimerHandle | None = None
        self._body_deadline = TransferDeadline(self.body_timeout_s, now=0.0)
        """Deadline of the body that is arriving."""
        self._header_bytes = 0
        """Bytes of the header that is arriving which are parsed already."""
        self._unparsed_bytes = 0
        """Bytes received while the header that is arriving was incomplete, because the parser does
        not report a line without an end."""
        self._has_begun = False
        self._refusal: Refused | None = None
        self._incoming: RequestResponseCycle | None = None
        """The request whose body is arriving."""
        self._running: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the one that was parsed last."""
        self._last_words = b""
        """Bytes that are owed after the answers to earlier requests, when the connection is
        refused."""
        self._large_reads = self.large_reads or LargeReadGate()
        self._arrivals = self.arrivals or ArrivalGate()
        self._early: bytes | None = None
        """Bytes that came after a WebSocket's handshake, while it waits for its turn; None: no
        handshake waits."""
        self._is_handshake = False
        """Whether the request that is being parsed asks for a WebSocket."""
        self._is_ignored = False
        """Whether the request that is being parsed offers another protocol, which is ignored."""
        self._body: BodyFraming | None = None
        """The body of a request whose offer of another protocol is ignored, until it is whole."""
        self._behind: bytes | None = None
        """Bytes that came after a request whose offer of another protocol is ignored, kept until
        that request has been answered; None if there is no such request."""
        self._peer = UNKNOWN
        self._may_enter = True
        self._is_proxied = False
        """Whether the other end is a proxy that names the client of each request."""

    # --- The transport --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport, self._large_reads)
        self._peer = peer_of(transport.get_extra_info)
        self._is_proxied = self.addresses.trusts(self._peer)
        self._may_enter = self.addresses.may_enter(self._peer)
        self._enter(_Phase.HEADER, self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        # uvicorn informs the request that was parsed last; the running one would go on writing.
        self._disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._receive(data)
        self._large_reads.after_read()

    def _receive(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data  # of TLS, where a read returns more than was asked for
            return
        if self._is_over():
            self._have_read(data)  # refused already; later bytes are not parsed
            return
        if not self._may_enter:
            self._refuse(Refused("forbidden", _PLAIN))
            return
        scope, had_begun = self.scope, self._has_begun
        self._parse(data)
        if self.parser is None:
            return
        self._have_read(data)
        if self._is_over():
            return
        if self._phase is _Phase.BETWEEN and self._is_idle():
            # Bytes that begin no request, line ends for example, have ended the idle timeout.
            self._enter(_Phase.HEADER, self.header_timeout_s)
        elif self._phase is _Phase.HEADER and had_begun and scope is self.scope:
            # All of it belongs to one header. (A read in which a request begins may hold the end
            # of another one, so it is not counted: the next one is.)
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self.header_bytes_max:
                self._refuse(self._header_too_large())

    def _have_read(self, data: bytes) -> None:
        """After a large read that ended in the middle of a request, pause reading this socket until
        its next turn, so that other sockets are read."""
        if len(data) >= LARGE_READ_BYTES and self._phase is not _Phase.BETWEEN:
            self.flow.rest()

    def _parse(self, data: bytes) -> None:
        """Parse like uvicorn's data_received, which drops the bytes right after an Upgrade header:
        the first frames of a WebSocket, or the body if we do not upgrade."""
        self._unset_keepalive_if_required()
        while data and not self._is_over():
            if self._body is not None:
                data = self._take_body(self._body, data)
                continue
            if self._behind is not None:
                if not self._is_idle():
                    self._behind += data
                    self.flow.pause_reading()
                    return
                self._behind = None
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserError:
                detail = "this is not a valid HTTP/1.1 request"
                self._refuse(self._refusal or Refused("invalid_request", detail))
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._is_handshake:
                    self._upgrade(data)
                    return

    def _take_body(self, framing: BodyFraming, data: bytes) -> bytes:
        """Take the body of a request whose offer is ignored; return the bytes after it."""
        try:
            part, rest = framing.take(data)
        except Refused as error:
            self._refuse(error)
            return b""
        if part:
            self.on_body(part)
        if framing.is_complete:
            self._body = None
            self.on_message_complete()
        return rest

    def _upgrade(self, early: bytes) -> None:
        if not self._is_idle():
            detail = "wait for the answers to earlier requests before a WebSocket handshake"
            self._refuse(Refused("invalid_request", detail))
            return
        self._early = early
        if not self._arrivals.begin(self._hand_over):
            self.flow.pause_reading()

    def _hand_over(self) -> None:
        if self._early is None or self.transport.is_closing():
            return
        early, self._early = self._early, None
        self.handle_websocket_upgrade()
        if early:
            cast(asyncio.Protocol, self.transport.get_protocol()).data_received(early)

    def handle_websocket_upgrade(self) -> None:
        """Give the socket to the WebSocket protocol."""
        self._disarm()
        self.flow.hand_over()
        super().handle_websocket_upgrade()
        # The parser and this object refer to each other: without this each WebSocket would keep
        # its handshake in memory until the garbage collector's oldest generation comes around.
        self.parser = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        """End the connection, after the answer that is under way if there is one, because the
        server is going down."""
        if self._phase is _Phase.OVER:
            self.transport.close()
        elif self._phase is not _Phase.REFUSED:  # that one ends after its last answer anyway
            self._disarm()
            super().shutdown()

    # --- The answers ----------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._arrivals.begin(partial(self._start, cycle, app))

    def _start(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the application when it is the request's turn, also if its client is gone by now:
        the application learns that by itself."""
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Note that a request has been answered, and give the turn to the next one, or the
        refusal."""
        was_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if was_last and self._phase is _Phase.REFUSED:
            self._finish()
        elif self._behind is not None and self._is_idle():
            behind, self._behind = self._behind, None
            if behind:
                self.data_received(behind)

    # --- The parser -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        if len(self.pipeline) >= self.pipelined_max:
            detail = f"at most {self.pipelined_max} requests may be pipelined: wait for answers"
            self._stop(Refused("too_many", detail))
        super().on_message_begin()
        self._has_begun = True
        self._header_bytes = self._unparsed_bytes = 0
        if self._phase is not _Phase.HEADER:
            self._enter(_Phase.HEADER, self.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._count(len(name) + len(value) + 4)  # ": " and the line's end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with the body, because the header is whole."""
        self._has_begun = False
        self._judge_header()
        self._body_deadline = TransferDeadline(self.body_timeout_s, now=self.loop.time())
        self._enter(_Phase.BODY, self.body_timeout_s)
        parsed_before = self.cycle
        here = self._peer
        if self._is_proxied:
            here = self.addresses.behind(here, self.headers)
        self.scope[CLIENT] = here  # type: ignore[typeddict-unknown-key]
        self.scope[TRANSPORT] = self.transport  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        if self.cycle is not parsed_before:  # a WebSocket's handshake gets none
            self._incoming = self.cycle

    def _judge_header(self) -> None:
        """Decide what follows the header: a body, frames of a WebSocket, or bytes that we do not
        read."""
        version = self.parser.get_http_version()
        if self.parser.get_method() == b"CONNECT":
            self._stop(Refused("method_not_allowed", "CONNECT is for proxies; this is a broker"))
        try:
            check_coding(self.headers, version)
        except Refused as error:
            self._stop(error)
        is_offer = self.parser.should_upgrade()
        framing = BodyFraming(self.headers) if is_offer else None
        is_empty = framing is None or framing.is_complete
        self._is_handshake = is_offer and is_empty and self._asks_for_websocket()
        self._is_ignored = is_offer and not self._is_handshake
        self._body = None if is_empty else framing

    def _asks_for_websocket(self) -> bool:
        """Whether a request without a body is a handshake of RFC 6455. One with a key at a wrong
        path is a handshake, too: its answer says which path is right."""
        if self.parser.get_method() != b"GET" or self.parser.get_http_version() != "1.1":
            return False
        offers = [value.strip().lower() for name, value in self.headers if name == b"upgrade"]
        is_there = self.url.partition(b"?")[0] == WEBSOCKET_PATH.encode()
        has_key = any(name == b"sec-websocket-key" for name, _ in self.headers)
        return offers == [b"websocket"] and (is_there or has_key) and self._should_upgrade_to_ws()

    def _should_upgrade(self) -> bool:
        """Whether this request goes to the WebSocket protocol; uvicorn asks."""
        return self._is_handshake

    def on_body(self, body: bytes) -> None:
        """Take a part of the body. Unlike uvicorn's, it wakes the reader only for a part of some
        size, or at the end. A thousand clients that send a byte at a time would else be a thousand
        tasks each time."""
        cycle = self.cycle
        if (self.parser.should_upgrade() and self._should_upgrade()) or cycle.response_complete:
            return
        self._body_deadline.advance(len(body), now=self.loop.time())
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if len(cycle.body) >= PART_BYTES_MIN:
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Note that the body is whole, or that there is none."""
        if self._body is not None:
            return  # the parser skips the body of a request with an offer: `_take_body` reads it
        self._disarm()
        self._incoming = None
        self._phase = _Phase.BETWEEN
        super().on_message_complete()
        if self._is_ignored:
            self._behind = b""

    # enforces: P9
    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.header_bytes_max:
            self._stop(self._header_too_large())

    def _stop(self, refusal: Refused) -> NoReturn:
        self._refusal = refusal
        raise _Stop

    def _header_too_large(self) -> Refused:
        return Refused(
            "header_too_large", f"a request header may have at most {self.header_bytes_max} bytes"
        )

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # --- Time -----------------------------------------------------------------------------------

    def _enter(self, phase: _Phase, timeout_s: float) -> None:
        self._disarm()
        self._phase = phase
        self._timer = self.loop.call_later(timeout_s, self._expire, timeout_s)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, timeout_s: float) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused or self.flow.is_resting:
            # We do not read at the moment, so it is not the client that is late.
            self._body_deadline.excuse(now=self.loop.time())
            self._enter(self._phase, timeout_s)
        elif self._phase is _Phase.BODY and (left_s := self._body_left_s()) > 0:
            self._enter(self._phase, left_s)
        elif self._phase is _Phase.HEADER and not self._has_begun:
            self.transport.close()  # a connection made in advance and never used: no answer owed
        else:
            self._arrivals.begin(partial(self._too_late, self._phase))

    def _body_left_s(self) -> float:
        return self._body_deadline.ends_at - self.loop.time()

    def _too_late(self, phase: _Phase) -> None:
        if self._phase is not phase or self._timer is not None or self.transport.is_closing():
            return  # it was just in time
        if phase is _Phase.HEADER:
            why = f"the header was not complete within {self.header_timeout_s:g} s"
        elif (left_s := self._body_left_s()) > 0:
            self._enter(phase, left_s)
            return
        else:
            why = (
                f"the body was not complete within {self.body_timeout_s:g} s, and came slower than "
                f"{limits.SLOWEST_BYTES_PER_S} bytes a second"
            )
        self._refuse(Refused("request_timeout", why))

    # --- The end --------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        phase = self._phase
        return phase is _Phase.REFUSED or phase is _Phase.OVER or self.transport.is_closing()

    def _refuse(self, error: TocsinError) -> None:
        """Parse nothing more. After the answers to earlier requests, send the problem document of
        `error`, unless an answer has begun that it would be taken for a part of; then close the
        connection."""
        self._disarm()
        self._phase = _Phase.REFUSED
        self._last_words = raw_problem(error)
        logger.info("a connection is refused: %s", error)
        broken, self._incoming = self._incoming, None
        if broken is None:
            is_idle = self._is_idle()
        elif broken is self._running:
            is_idle = True
            if broken.response_started:
                self._last_words = b""
            self._disconnect(broken)
        else:  # it waits for another one, and is never begun
            is_idle = False
            self.pipeline.popleft()
        if is_idle:
            self._finish()

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle | None) -> None:
        """Let the application that answers this request learn, at its next read, that the client is
        gone. What the application still writes is dropped."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _finish(self) -> None:
        self._unset_keepalive_if_required()
        self._phase = _Phase.OVER
        self.transport.write(self._last_words)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing a socket with unread input resets it, and the reset overtakes the answers. So only
        # our half is closed, and the client's end of its half closes the rest (eof_received).
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(self.linger_s, self.transport.abort)


def http_class(
    addresses: Addresses,
    large_reads: LargeReadGate | None = None,
    arrivals: ArrivalGate | None = None,
) -> type[Http11Protocol]:
    """Return the class for `uvicorn.Config(http=…)` that uses these addresses, and shares these
    gates with others."""
    bound_addresses = addresses
    shared_reads = large_reads or LargeReadGate()
    shared_arrivals = arrivals or ArrivalGate()

    class BoundHttp11Protocol(Http11Protocol):
        addresses = bound_addresses
        large_reads = shared_reads
        arrivals = shared_arrivals

    return BoundHttp11Protocol


def raw_problem(error: TocsinError, *headers: str, status: int | None = None) -> bytes:
    """Return a whole HTTP/1.1 response with the problem document of an error, for a request that
    never reaches the application. `status` replaces the error's own. The connection closes after
    it."""
    body = msgspec.json.encode(problems.document(error))
    status = status or error.code.http_status
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {problems.MEDIA_TYPE}",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name.lower()}: {text}" for name, text in problems.SECURITY_HEADERS),
        *problems.retry_after(error),
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
