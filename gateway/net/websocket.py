"""WebSockets, by a protocol class for uvicorn: `uvicorn.Config(ws=websocket_class(…))`.

A connection has no task, no queue, no ASGI scope and no timer of its own. An idle one is this
object, its session, and the socket.

    handshake   by websockets' sans-I/O ServerProtocol, which is dropped afterwards
    reading     by a MessageReader, which holds nothing between two messages; in parts, each in turn
    writing     frames of a server are not masked, so a header of a few bytes precedes the payload

One read may bring work for a long time, such as thousands of frames or the beginning of megabytes.
It is handed to the session in parts (gateway.net.connections), no faster than the client's rate
allows. Large incomplete messages are read in turns (runtime.loop.fairness). Meanwhile the socket is
not read, so that what waits here is bounded, and TCP makes the client wait.
"""

import asyncio
import enum
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.models import Admission, Transport
from gateway.net.connections import (
    PART_BYTES_MAX,
    PART_FRAMES_MAX,
    SMALL_READ_BYTES,
    Connections,
)
from gateway.net.handshake import answer_handshake
from gateway.session.directory import new_session_id
from gateway.session.session import Session
from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.rfc6455 import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    MessageReader,
    Portion,
    close_frame,
    control_frame,
    encode_frame,
)
from push import limits
from push.errors import Refused
from push.transit import INSTANT_S, Transit
from runtime.addresses import UNKNOWN, ClientAddress, peer_of, taken_bytes
from runtime.loop.fairness import LARGE_READ_BYTES

FULL_READ_BYTES: Final = 192 * 1024
"""Size of a read that shows that more is waiting. uvloop takes about 250 kB at once. It would read
on, up to 32 times, before any other client is served, and turns would take long."""
_NORMAL_CLOSES: Final = (b"", *(code.to_bytes(2) for code in (1000, 1001)))
"""Close codes, or none, with which a client says that it will not come back."""
_SILENT_S_MAX: Final = 1.0
"""Largest number of seconds between two notes that a client is alive, while it is not read because
of its rate."""


UNREAD_BYTES_MAX: Final = 2 * limits.WRITE_BUFFER_BYTES_MAX
"""Size of unread answers from which the client is not read either (P9). Pushes stop earlier, at
WRITE_BUFFER_BYTES_MAX; only answers that the client does not read grow further. A large message
does not count. [While it is on a slow line, acks and pongs are not read, and no lease can be
extended.]"""
_MARK: Final = struct.Struct("!Q")
"""Format of the number of a mark, the payload of a ping. The ping of a heartbeat has no payload."""


class ReadHold:
    """Reasons not to read a socket, the bits of `_read_holds`. They are plain numbers, because an
    enum's flags cost as much as the rest of a small read."""

    UNREAD: Final = 1
    """The client does not read its answers."""
    SESSION: Final = 2
    """The session waits for something."""
    TURN: Final = 4
    """A read, or the rest of one, waits for its turn, or for the client's rate."""
    LARGE_READ: Final = 8
    """The socket waits for its turn among those that send large messages."""
    FULL_READ: Final = 16
    """More is waiting than one read takes, and the others are served first."""


class SessionEnd(enum.Enum):
    """Meaning of a socket's end for its session."""

    OVER = "the session is over, too"
    LOST = "its client may come back"
    REPLACED = "its client has come back over another transport"


class WebSocketConnection(asyncio.Protocol):
    """A socket, which carries one session."""

    __slots__ = (
        "__weakref__",
        "_abort_at",
        "_has_blocked_push",
        "_has_handshake",
        "_has_incomplete",
        "_is_flush_scheduled",
        "_is_resuming",
        "_large_bytes",
        "_opened_at",
        "_outbox",
        "_outbox_bytes",
        "_read_holds",
        "_reader",
        "_server_state",
        "_session",
        "_transit",
        "_transport",
        "_unmarked_bytes",
        "_write_is_paused",
        "address",
        "scheduled",
    )
    transport: Final[Transport] = "websocket"
    until_unix_ms: Final = None
    connections: ClassVar[Connections]
    close_timeout_s: ClassVar[float] = limits.CLOSE_TIMEOUT_S

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self._session: Session | None = None
        """None before the handshake is accepted, and after our close frame or the loss of the
        socket."""
        self._reader = MessageReader(limits.HELLO_BYTES_MAX)
        self._has_incomplete = False
        """Whether an incomplete message of its client is counted in `incoming`."""
        self._read_holds = 0
        self._server_state = server_state
        self._transport = cast(asyncio.Transport, None)
        self._has_handshake = False
        """Whether the client has sent its first bytes, which must be the whole request of the
        handshake."""
        self._outbox: list[bytes] = []
        """Encoded frames that wait for the flush."""
        self._outbox_bytes = 0
        self._is_flush_scheduled = False
        self._write_is_paused = False
        self._is_resuming = False
        """Whether the socket can be written to again and waits for its turn."""
        self._has_blocked_push = False
        """Whether a push was held back by `writable`, and pushes have not been resumed since."""
        self._abort_at = 0.0
        self._opened_at = 0.0
        """Time from which on it carries its session."""
        self._unmarked_bytes = 0
        """Bytes that were written behind the last mark."""
        self._large_bytes = 0
        """Bytes of large frames that may still wait for the socket."""
        self._transit: Transit | None = None
        """None until MARK_BYTES have been written in all."""
        self.address: ClientAddress = UNKNOWN
        self.scheduled = float("inf")

    def __repr__(self) -> str:
        return f"<WebSocketConnection {self._session!r}>"

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket from uvicorn. The handshake follows as the first data."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES_MAX)
        # uvicorn waits at its end for what is in this set, and calls `shutdown` on it.
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Process bytes of the client. After our close frame they are dropped."""
        session = self._session
        if session is None:
            self._receive_outside(data)
        elif len(data) <= SMALL_READ_BYTES:  # waits for no turn
            self._process(session, self._reader.receive(data), PART_BYTES_MAX)
        else:
            self._receive_much(session, data)
        self.connections.large_reads.after_read()

    def eof_received(self) -> None:
        """Let the transport close itself, because the client sends no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the socket is gone."""
        self._server_state.connections.discard(self)
        session = self._session
        if session is not None:
            if self._is_flush_scheduled:
                self.connections.delivery_log.on_gone(session.session_id)
            self._detach(session)
            self.connections.on_lost(partial(self._end_lost, session))

    def _end_lost(self, session: Session) -> None:
        if session.carrier is self:  # its client has not come back meanwhile
            session.on_transport_lost()

    def pause_writing(self) -> None:
        """Note that more than WRITE_BUFFER_BYTES_MAX wait for the socket."""
        self._write_is_paused = True

    def resume_writing(self) -> None:
        """Note that the socket has taken most of the waiting bytes."""
        self._write_is_paused = False
        self._large_bytes = 0
        if self._session is not None:
            self.connections.delivery_log.on_take(self._session.session_id)
        if not self._is_resuming:
            self._is_resuming = True
            self.connections.writable.add(self._resume_writing)

    def _resume_writing(self) -> None:
        self._is_resuming = False
        if self._write_is_paused or self._transport.is_closing():
            return  # paused again meanwhile, so this is called again
        self._resume_reading(ReadHold.UNREAD)
        self._resume_pushes()

    def shutdown(self) -> None:
        """Close, because uvicorn ends. Sessions were drained before; those that are left close
        now."""
        if self._session is not None:
            self.close(frames.DRAINING)
        else:
            self._transport.close()

    # --- The handshake --------------------------------------------------------------------------

    def _answer_handshake(self, data: bytes) -> None:
        services = self.connections.services
        handshake = answer_handshake(
            data,
            services.auth,
            now=asyncio.get_running_loop().time(),
            wall=services.wall(),
            peer=peer_of(self._transport.get_extra_info),
            addresses=self.connections.addresses,
            limiter=services.limiter,
        )
        self.address = handshake.address
        self._transport.write(handshake.response)
        if handshake.is_accepted:
            self._open(handshake.admission)
        else:
            error = handshake.error or Refused("invalid_request")
            services.accounting.refuse_handshake(error, self.address.text or None)
            self._transport.close()

    def _open(self, admission: Admission | None) -> None:
        connections, now = self.connections, asyncio.get_running_loop().time()
        refusal = connections.refusal()
        self._opened_at = now
        self._session = Session(connections.services, self, new_session_id(), admission, now=now)
        connections.add(self)
        if refusal is not None:
            # Not an HTTP status, because a browser shows its page nothing but a close code.
            self.close(refusal)
            return
        connections.deadlines.set(self, self._session.next_deadline())

    # --- Reading --------------------------------------------------------------------------------

    def _receive_much(self, session: Session, data: bytes) -> None:
        """Process bytes of the client, or defer them to its turn."""
        portions = self._reader.receive(data)
        admitted = self.connections.admit_read(self, len(data))
        if not admitted:
            self._pause_reading(ReadHold.TURN)
            self.connections.defer(self, portions)
            return
        self._process(session, portions, admitted)
        if len(data) >= FULL_READ_BYTES and self._session is not None:
            self._pause_reading(ReadHold.FULL_READ)
            asyncio.get_running_loop().call_soon(self._resume_full_read)
        if len(data) >= LARGE_READ_BYTES and self._reader.buffered_bytes >= LARGE_READ_BYTES:
            self._await_large_read()

    def _receive_outside(self, data: bytes) -> None:
        """Take the handshake. Drop bytes that come after our close frame."""
        if not self._has_handshake:
            self._has_handshake = True
            self._answer_handshake(data)
        elif len(data) >= LARGE_READ_BYTES:
            self._await_large_read()

    def _await_large_read(self) -> None:
        """Wait for the turn of large reads. Nothing happens if it waits already."""
        if not self._read_holds & ReadHold.LARGE_READ:
            self._pause_reading(ReadHold.LARGE_READ)
            self.connections.large_reads.wait(self._resume_large_read)

    def _resume_full_read(self) -> None:
        """Read on, because the others have been served."""
        if not self._transport.is_closing():
            self._resume_reading(ReadHold.FULL_READ)

    def _resume_large_read(self) -> None:
        if not self._transport.is_closing():
            self._resume_reading(ReadHold.LARGE_READ)

    def _process(self, session: Session, portions: Iterator[Portion], left: int) -> None:
        """Hand portions to the session, up to `left` bytes, which are its part of a turn."""
        reader, now = self._reader, asyncio.get_running_loop().time()
        count, has_text, is_cut = 0, False, False
        for opcode, messages in portions:
            if opcode == TEXT:
                has_text = True
                count += session.receive(*messages, now=now)
                if reader.bytes_max != limits.FRAME_BYTES_MAX:
                    here = self._session  # not the shell that a hello came to
                    if here is not None and here.is_welcome:
                        reader.bytes_max = limits.FRAME_BYTES_MAX
            elif opcode != PONG or not self._answer_mark(messages[0]):
                count += 1
                self._control(session, opcode, messages[0])
            if self._session is None:
                return
            session = self._session  # a hello may have brought back another one
            left -= sum(map(len, messages))
            if left <= 0 or count >= PART_FRAMES_MAX:
                is_cut = True
                break
        if reader.violation is not None:
            self._reject(reader.violation)
            return
        if not has_text:
            session.on_bytes(now=now)
        has_turn = is_cut or self._read_holds & ReadHold.TURN
        wait_s = session.charge_frames(count, now=now) if count or has_turn else 0.0
        if wait_s or has_turn:
            self._take_turns(portions, wait_s, is_cut=is_cut)
        elif self._has_incomplete or not reader.is_empty:
            self._count_incomplete(reader.buffered_bytes)
            if not count:
                session.on_part(now=now)
        if count:  # publishes only move the deadline on, which the timer finds out itself
            self.connections.deadlines.set(self, session.next_deadline())
        if self._outbox_bytes > UNREAD_BYTES_MAX:
            # One turn of the loop may read megabytes, whose answers must not pile up.
            self._write_all()
        if self._write_is_paused:
            self._await_reader()

    def _control(self, session: Session, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(control_frame(PONG, payload))
        elif opcode == CLOSE:
            # The client's own code is repeated (5.5.1). After other codes it may come back.
            is_end = payload[:2] in _NORMAL_CLOSES
            self._end(control_frame(CLOSE, payload), SessionEnd.OVER if is_end else SessionEnd.LOST)
        elif opcode == BINARY:
            session.receive_binary()

    def _reject(self, violation: Close) -> None:
        if violation == frames.TOO_LARGE:
            detail = f"a WebSocket message has at most {self._reader.bytes_max} bytes here"
            self.send(frames.error(Refused("request_too_large", detail)))
        self.close(violation)

    def _take_turns(self, portions: Iterator[Portion], wait_s: float, *, is_cut: bool) -> None:
        """Have the rest of a read, if there is one, processed in its turn, once the client has
        waited `wait_s` because of its rate. Else read on."""
        reader = self._reader
        if wait_s:
            self._pause_reading(ReadHold.TURN)
            later = min(wait_s, _SILENT_S_MAX)
            asyncio.get_running_loop().call_later(later, self._charge_again, portions)
        elif is_cut:
            self._pause_reading(ReadHold.TURN)
            self.connections.defer(self, portions)
        else:
            self._resume_reading(ReadHold.TURN)
        held = reader.buffered_bytes + (reader.unread_bytes if wait_s else 0)
        if self._has_incomplete or held:
            self._count_incomplete(held)

    def _charge_again(self, portions: Iterator[Portion]) -> None:
        """Charge again once the client has waited."""
        session = self._session
        if session is not None:  # else nobody listens any more
            now = asyncio.get_running_loop().time()
            session.on_bytes(now=now)
            self._take_turns(portions, session.charge_frames(0, now=now), is_cut=True)

    def process_rest(self, rest: Iterator[Portion]) -> None:
        """Process the next part of the rest of a read. After the last part the socket is read
        again."""
        if self._session is not None:  # else nobody listens any more
            self._process(self._session, rest, self.connections.part_bytes(PART_BYTES_MAX))

    # --- What is not complete -------------------------------------------------------------------

    def _count_incomplete(self, size: int) -> None:
        self._has_incomplete = size > 0
        self.connections.incoming.hold(self, size)

    def give_up(self) -> None:
        self._has_incomplete = False
        self.send(frames.error(Refused("overloaded", "too many messages are not complete")))
        self.close(frames.OVERLOADED)

    # --- Holding --------------------------------------------------------------------------------

    def _pause_reading(self, why: int) -> None:
        if not self._read_holds:
            self._transport.pause_reading()
        self._read_holds |= why

    def _resume_reading(self, why: int) -> None:
        if self._read_holds == why:
            self._transport.resume_reading()
        self._read_holds &= ~why

    # --- Writing --------------------------------------------------------------------------------

    def _await_reader(self) -> None:
        """Read no more from a client that leaves too many answers unread (P9)."""
        unread_max = UNREAD_BYTES_MAX + self._large_bytes
        if self._transport.get_write_buffer_size() > unread_max:
            self._pause_reading(ReadHold.UNREAD)

    # --- SessionTransport ------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self._session is None:
            return
        if len(frame) > limits.ANNOUNCED_BYTES:
            self._large_bytes += len(frame)
            announcement = frames.announce(len(frame))
            self._outbox.append(announcement)
            self._outbox_bytes += len(announcement)
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self.connections.schedule_flush(self)

    # enforces: P9
    def writable(self) -> bool:
        # Outbox and socket count together, or a stalled socket would hold the bound twice. At the
        # bound itself it is writable, because the socket is not paused and nobody would call again.
        transit = self._transit
        if (
            not self._write_is_paused
            and self._session is not None
            and self._outbox_bytes + self._transport.get_write_buffer_size()
            <= limits.WRITE_BUFFER_BYTES_MAX
            and (transit is None or transit.is_clear or self._has_transit_room(transit))
        ):
            return True
        self._has_blocked_push = True
        return False

    @property
    def has_room(self) -> bool:
        return self.connections.has_room

    @property
    def unsent_bytes(self) -> int:
        return self._outbox_bytes + self._transport.get_write_buffer_size()

    def ping(self) -> None:
        """Send an empty ping. Anything that comes back is a sign of life."""
        self._transport.write(control_frame(PING))

    def taken_bytes(self) -> int | None:
        """Return how many bytes the other end of the TCP connection has confirmed. None if that is
        all of them, or if this system cannot say."""
        return taken_bytes(self._transport, has_more=self.unsent_bytes > 0)

    def pause_reading(self) -> None:
        self._pause_reading(ReadHold.SESSION)

    def resume_reading(self) -> None:
        self._resume_reading(ReadHold.SESSION)

    def close(self, close: Close) -> None:
        """Close after what is queued. Closing again does nothing."""
        if self._session is not None:
            comes_back = close in (frames.HEARTBEAT, frames.DRAINING)
            self._end(close_frame(close), SessionEnd.LOST if comes_back else SessionEnd.OVER)

    def adopt(self, session: Session) -> None:
        self._session = session
        self._opened_at = asyncio.get_running_loop().time()

    def detach(self, close: Close) -> None:
        if self._session is not None:
            self._end(close_frame(close), SessionEnd.REPLACED)

    def _end(self, closing: bytes, end: SessionEnd) -> None:
        """Write the frame `closing` after what is queued. Then the socket has `close_timeout_s` to
        take it and to be closed by the client, before it is cut off."""
        session = self._session
        if session is None:
            return
        if not self._transport.is_closing():
            self._write_all()
            self._transport.write(closing)
        elif self._is_flush_scheduled:
            self.connections.delivery_log.on_gone(session.session_id)
        self._detach(session)
        if end is SessionEnd.OVER:
            session.end()
        elif end is SessionEnd.LOST:
            session.on_transport_lost()
        self._half_close()

    def _detach(self, session: Session) -> None:
        """Separate this socket from its session."""
        self.connections.delivery_log.on_leave(session.session_id)
        self._session = None
        self.connections.discard(self)
        self._reader.discard()
        if self._has_incomplete:
            self._count_incomplete(0)

    def _half_close(self) -> None:
        self._abort_at = asyncio.get_running_loop().time() + self.close_timeout_s
        self.connections.deadlines.set(self, self._abort_at)
        if self._transport.is_closing():
            return
        # Closing a socket with unread input resets it, and the reset overtakes our close frame. So
        # only our half is closed. The client's end of its half closes the rest (eof_received).
        self._resume_reading(self._read_holds)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # --- Calls by its Connections --------------------------------------------------------------

    def take(self) -> list[bytes]:
        self._is_flush_scheduled = False
        to_write, self._outbox = self._outbox, []
        self._unmarked_bytes += self._outbox_bytes
        self._outbox_bytes = 0
        # A single frame is the very object that was sent, so that a fan-out can tell.
        return to_write if len(to_write) < 2 else frames.join(to_write)

    def write(self, encoded: Sequence[bytes]) -> None:
        """Write frames, unless the socket is lost. uvloop would raise then, and the frames of all
        sessions after this one would not be written."""
        transport, transit = self._transport, self._transit
        for frame in encoded:
            if not transport.is_closing():
                transport.write(frame)
        if not self._write_is_paused:
            self._large_bytes = 0
        if self._unmarked_bytes >= (limits.MARK_BYTES if transit is None else transit.mark_bytes):
            self._mark(asyncio.get_running_loop().time())
        if self._write_is_paused:
            self._await_reader()
            if self._session is not None:
                self.connections.delivery_log.on_full(self._session.session_id)
        elif self._has_blocked_push:
            self._resume_pushes()

    def tick(self) -> None:
        """Check the deadline, which may have moved on."""
        session, now = self._session, asyncio.get_running_loop().time()
        if session is None:
            if now >= self._abort_at:
                self._transport.abort()
            else:
                self.connections.deadlines.set(self, self._abort_at)
            return
        session.expire(now=now)
        self.connections.deadlines.set(self, session.next_deadline())
        if self._transit is not None and self._transit.is_awaited:
            self._transit.look(self.taken_bytes(), now=now)
            if self._transit.give_up(now=now):
                self._resume_pushes()

    def drain(self, reconnect_after_s: float) -> None:
        if self._session is not None:
            self._session.drain(reconnect_after_s)

    # --- In transit -----------------------------------------------------------------------------

    def _has_transit_room(self, transit: Transit) -> bool:
        return transit.has_room(self._unmarked_bytes, now=asyncio.get_running_loop().time())

    def _mark(self, now: float, *, rest: bool = False) -> None:
        """Set a mark after the written bytes if one is due. With `rest`, set it however few they
        are."""
        transit = self._transit
        if transit is None:
            transit = self._transit = Transit(opened_at=self._opened_at)
        if self._session is None or self._transport.is_closing():
            return
        if not (rest and self._unmarked_bytes) and not transit.wants_mark(self._unmarked_bytes):
            return
        number = transit.mark(
            self._unmarked_bytes,
            now=now,
            taken_bytes=self.taken_bytes(),
            covers=not self._outbox,
        )
        self._unmarked_bytes = 0
        self._transport.write(control_frame(PING, _MARK.pack(number)))
        if not transit.is_fast:
            # Twice, because a timer of the loop may be early by the resolution of its clock.
            asyncio.get_running_loop().call_later(2 * INSTANT_S, self._resume_pushes)

    def _answer_mark(self, payload: bytes) -> bool:
        """Take a pong. Returns whether it answers a mark."""
        transit = self._transit
        if transit is None or len(payload) != _MARK.size:
            return False
        now = asyncio.get_running_loop().time()
        if not transit.answered(*_MARK.unpack(payload), now=now):
            return False
        if transit.is_slow:
            self._mark(now, rest=True)
        self._resume_pushes()
        return True

    def lease_start(self, given_at: float) -> float | None:
        transit = self._transit
        if transit is None:
            return given_at
        now = asyncio.get_running_loop().time()
        if transit.is_awaited:
            transit.look(self.taken_bytes(), now=now)
        return transit.arrived(given_at, now=now)

    @property
    def is_in_transit(self) -> bool:
        return self._transit is not None and self._transit.goes_by_names

    def on_named(self, given_at: float) -> None:
        if self._transit is not None:
            self._transit.named(given_at, now=asyncio.get_running_loop().time())
            self._resume_pushes()

    # --- Both directions ------------------------------------------------------------------------

    def _write_all(self) -> None:
        is_scheduled = self._is_flush_scheduled
        for payload in self.take():
            self._transport.write(encode_frame(payload))
        self._is_flush_scheduled = is_scheduled

    def _resume_pushes(self) -> None:
        if self._has_blocked_push and not self._write_is_paused and self._session is not None:
            self._has_blocked_push = False
            self._session.on_writable()


def websocket_class(connections: Connections) -> type[WebSocketConnection]:
    """Return the class for `uvicorn.Config(ws=…)`, bound to these connections."""

    class BoundWebSocketConnection(WebSocketConnection):
        __slots__ = ()

    BoundWebSocketConnection.connections = connections
    return BoundWebSocketConnection
