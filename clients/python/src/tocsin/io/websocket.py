"""A session's frames over a WebSocket: an asyncio.Protocol around websockets' sans-I/O client.

No message costs a task, a queue entry or a future. Whole messages go from `data_received` to a
callback.
"""

import asyncio
from collections.abc import Sequence
from ssl import SSLContext
from typing import Final, cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from tocsin.errors import InvalidRequest, NotABroker
from tocsin.io.carrier import ABNORMAL, WRITE_BUFFER_BYTES, Listener, Trace
from tocsin.io.requests import refusal_of
from tocsin.proto import wire
from tocsin.proto.connect_policy import Transport
from tocsin.proto.wire import join_frames, without_tokens

MESSAGE_BYTES_MAX: Final = 8 * 1_048_576
"""The largest WebSocket message that is accepted until the broker's welcome names a bound, in
bytes."""
CLOSE_TIMEOUT_S: Final = 2.0


class WebSocket(asyncio.Protocol):
    """A Carrier over an open WebSocket. Made by `open_websocket`."""

    transport: Transport = "websocket"

    def __init__(self, uri: WebSocketURI, token: str | None, trace: Trace | None) -> None:
        self._ws = ClientProtocol(
            uri,
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            max_size=MESSAGE_BYTES_MAX,
        )
        self._token = token
        self._trace = trace
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._parts: list[bytes] = []
        self.is_receiving = False
        self.patient_until = 0.0
        self._closing: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self.writable = True
        self.refusal: Exception | None = None
        self.received_at = self._loop.time()
        """The time at which bytes were received last, in the loop's seconds."""

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake, because TCP, and TLS, are connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        request = self._ws.connect()
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        request.headers["User-Agent"] = "tocsin-python"
        self._ws.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Feed the protocol, and give complete messages to the listener."""
        self.received_at = self._loop.time()
        self._ws.receive_data(data)
        events = self._ws.events_received()
        self.is_receiving = not events
        for event in events:
            if isinstance(event, Frame):
                self._on_frame(event)
            elif not self.opened.done() and self._ws.handshake_exc is None:
                self.opened.set_result(None)
        self._flush()
        if self._ws.handshake_exc is not None and not self.opened.done():
            self.opened.set_exception(_refusal(self._ws.handshake_exc))
        if self._ws.close_expected():
            self._schedule_cut()

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT and frame.fin:
            self._deliver(cast("bytes", frame.data))
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT, Opcode.BINARY):
            self._parts.append(cast("bytes", frame.data))
            if frame.fin:
                data, self._parts = b"".join(self._parts), []
                self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        if self._trace is not None:
            self._trace("received", "websocket", data)
        if self._listener is not None:
            self._listener.on_message(data)

    def eof_received(self) -> None:
        """Note that the broker has ended its side."""
        self._ws.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        """Stop writing, because the socket's buffer is full."""
        self.writable = False

    def resume_writing(self) -> None:
        """Continue writing, because the buffer has drained."""
        self.writable = True
        if self._listener is not None:
            self._listener.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener of the end, whatever its reason."""
        self._ws.receive_eof()
        if self._closing is not None:
            self._closing.cancel()
        if not self.opened.done():
            error: Exception = self._ws.handshake_exc or exc or ConnectionResetError()
            self.opened.set_exception(_refusal(error))
            self.opened.exception()  # it may have no waiter
        listener, self._listener = self._listener, None
        if listener is not None:
            rcvd = self._ws.close_rcvd or self._ws.close_sent
            listener.on_closed(rcvd.code if rcvd else ABNORMAL, rcvd.reason if rcvd else "")
        if not self._closed.done():
            self._closed.set_result(None)

    # --- Carrier -------------------------------------------------------------------------

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener

    def limit(self, message_bytes_max: int) -> None:
        self._ws.max_message_size = message_bytes_max

    def present(self, token: str) -> None:
        """Do nothing, because a WebSocket presents its token only once."""

    def send(self, frames: Sequence[bytes]) -> None:
        if self._ws.state is not State.OPEN:
            return
        for message in join_frames(frames):
            if self._trace is not None:
                self._trace("sent", "websocket", without_tokens(message))
            self._ws.send_text(message)
        self._flush()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._closed,))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake. The connection is cut after CLOSE_TIMEOUT_S."""
        if self._ws.state is State.OPEN:
            self._ws.send_close(code, reason)
            self._flush()
            self._schedule_cut()
        elif self._transport is not None and self._ws.state is State.CONNECTING:
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _schedule_cut(self) -> None:
        if self._closing is None and self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            self._closing = self._loop.call_later(CLOSE_TIMEOUT_S, self._cut_off, unsent)

    def _cut_off(self, unsent_before: int) -> None:
        """Cut the connection, unless bytes that were sent before the end are still going out."""
        self._closing = None
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() < unsent_before:
            self._schedule_cut()
        else:
            self._transport.abort()

    def _flush(self) -> None:
        transport = self._transport
        assert transport is not None
        for data in self._ws.data_to_send():
            if transport.is_closing():  # it is lost, and `connection_lost` is about to be called
                continue
            if data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
            else:  # TLS cannot half-close
                transport.close()


def _refusal(error: Exception) -> Exception:
    """Return the error of a failed handshake, for the user."""
    if isinstance(error, InvalidStatus):
        found = refusal_of(error.response.status_code, bytes(error.response.body or b""))
        if isinstance(found, InvalidRequest):  # the request was valid before a proxy changed it
            return NotABroker(f"no WebSocket gets through to the broker: {found.detail}")
        return found
    if isinstance(error, InvalidHandshake):
        return NotABroker(f"the server is not a Tocsin broker: {error}")
    return error


async def open_websocket(
    url: str, token: str | None, trace: Trace | None = None, tls: SSLContext | None = None
) -> WebSocket:
    """Open a WebSocket to the broker at this http or https URL. `tls` is from `tls_context`.

    Raises:
        OSError: no connection now; a later attempt may succeed.
        CannotConnect: something on the way refuses WebSockets now; a later attempt may succeed.
        NotABroker: the server is no broker, or something on the way never lets a WebSocket
            through. A later attempt fails, too.
        BrokerError: the broker refused, for example with Unauthorized.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host = parts.hostname or "127.0.0.1"
    port = parts.port or (443 if secure else 80)
    uri = WebSocketURI(secure, host, port, f"{parts.path.rstrip('/')}/v1/ws", "", None, None)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: WebSocket(uri, token, trace),
        host,
        port,
        ssl=tls,
    )
    try:
        await connection.opened
    except BaseException:
        connection.abort()
        raise
    return connection
