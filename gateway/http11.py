"""HTTP/1.1 with deadlines and bounds: uvicorn's protocol, hardened.

uvicorn has no deadline for a request's header or body, and with httptools no bound on a header: a
client that sends one byte a minute holds a socket for ever, one that sends a header without end
holds memory without end (P9). Here a request's header must arrive within `header_timeout_s` of
the connection or of the request's first byte and within `header_bytes_max`; its body within
`body_timeout_s` of the header. Idle keep-alive connections stay with uvicorn's own timeout.
"""

import asyncio
import enum
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import problems
from push import limits
from push.errors import Refused, TocsinError


class _Phase(enum.Enum):
    HEADER = enum.auto()
    BODY = enum.auto()
    BETWEEN = enum.auto()


class _Stop(Exception):
    """Raised inside a parser callback: stops the parser, becomes a call of send_400_response."""


class Http11Protocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=…)`."""

    header_timeout_s = limits.REQUEST_HEADER_TIMEOUT_S
    header_bytes_max = limits.REQUEST_HEADER_BYTES_MAX
    body_timeout_s = limits.REQUEST_BODY_TIMEOUT_S
    pipelined_max = 64
    """Requests waiting behind one that is being answered: each is an object many times its size on
    the wire, and one read holds thousands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _Phase.HEADER
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        """Of the parsed part of this header."""
        self._unparsed_bytes = 0
        """Received while this header was incomplete: one endless line never gets parsed."""
        self._has_begun = False
        self._refusal: Refused | None = None

    # --- The transport --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As asyncio.Protocol."""
        super().connection_made(transport)
        self._enter(_Phase.HEADER, self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio.Protocol."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol."""
        if self.transport.is_closing():
            return  # refused already; what still arrives is not parsed
        scope, had_begun = self.scope, self._has_begun
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
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

    def handle_websocket_upgrade(self) -> None:
        """The socket goes to the WebSocket protocol."""
        self._disarm()
        super().handle_websocket_upgrade()
        # The parser and this object refer to each other: without this each WebSocket would keep
        # its handshake in memory until the garbage collector's oldest generation comes around.
        self.parser = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        """As uvicorn's protocols."""
        self._disarm()
        super().shutdown()

    # --- The parser -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if len(self.pipeline) >= self.pipelined_max:
            self._stop(Refused("too_many", f"at most {self.pipelined_max} pipelined requests"))
        super().on_message_begin()
        self._has_begun = True
        self._header_bytes = self._unparsed_bytes = 0
        if self._phase is not _Phase.HEADER:
            self._enter(_Phase.HEADER, self.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value) + 4)  # ": " and the line's end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The header is whole."""
        self._has_begun = False
        self._enter(_Phase.BODY, self.body_timeout_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole, or there is none."""
        self._disarm()
        self._phase = _Phase.BETWEEN
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to what cannot be parsed."""
        self._refuse(self._refusal or Refused("invalid_request", msg))

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.header_bytes_max:
            self._stop(self._header_too_large())

    def _stop(self, refusal: Refused) -> NoReturn:
        self._refusal = refusal
        raise _Stop

    def _header_too_large(self) -> Refused:
        return Refused(
            "header_too_large", f"a request header has at most {self.header_bytes_max} bytes"
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
        if self.flow.read_paused:
            # We do not read at the moment: the client is not the one who is late.
            self._enter(self._phase, timeout_s)
        elif self._phase is _Phase.HEADER and not self._has_begun:
            self.transport.close()  # a connection made in advance and never used: no answer owed
        else:
            part = "header" if self._phase is _Phase.HEADER else "body"
            self._refuse(
                Refused("request_timeout", f"the {part} was not complete within {timeout_s:g} s")
            )

    def _refuse(self, error: TocsinError) -> None:
        """Answer, if the answer cannot be taken for another request's, and close."""
        self._disarm()
        if self._is_idle() or (self._phase is _Phase.BODY and not self.cycle.response_started):
            self.transport.write(raw_problem(error))
        self.transport.close()


def raw_problem(error: TocsinError, *headers: str, status: int | None = None) -> bytes:
    """A whole HTTP/1.1 response with the problem document of an error, for who never reaches the
    application; `status`: another one than the error's. The connection closes behind it."""
    body = msgspec.json.encode(problems.document(error))
    status = status or error.code.http_status
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {problems.MEDIA_TYPE}",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
