"""All connections of this gateway: read in turns, flushed, timed and drained together.

If a socket sends more at once than its part of a turn, the rest is processed in turns with what
others send. One flush writes what every session has to send by then. One timer serves the
heartbeats of all. When the gateway goes down, they are drained a few at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

from gateway.counters import HitRate
from gateway.session.directory import SessionServices
from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.rfc6455 import PORTION_BYTES_MAX, Portion, encode_frame
from push import limits
from runtime.addresses import NO_PROXIES, Addresses
from runtime.loop.end_of_turn import Deadlines, Timed, call_guarded, report_bug
from runtime.loop.fairness import IncompleteBytesBudget, LargeReadGate, PerTurnQueue

DRAINED_PER_S_MAX: Final = 200
"""Number of sessions in a second that are asked to come back elsewhere; more if half the deadline
would not be enough for all. Each costs another gateway a handshake and reads."""
RECONNECT_AFTER_S_MAX: Final = 5.0
"""Largest number of seconds that a drained client is asked to wait. The number is drawn at
random."""
_SLICE_S: Final = 0.05
PART_BYTES_MAX: Final = 1_048_576
"""Number of bytes of one read that are processed in one turn of the loop, and then in each further
turn. One read may bring megabytes, and until they are processed nobody else is read."""
PART_BYTES_SHARED: Final = PORTION_BYTES_MAX
"""PART_BYTES_MAX while several queues publish. While some of these are heavy, a connection that has
sent more than this in _WINDOW_S waits for its turn with all of a read. The turns of the loop and
the small records make that cost half as much again. A connection that is alone does not pay for
it."""
SMALL_READ_BYTES: Final = 4096
"""Largest size in bytes of a read that waits for no turn."""
_WINDOW_S: Final = 0.25
PART_FRAMES_MAX: Final = 32
"""Number of frames of one read that are no publishes and are processed in one turn. That is a third
of a millisecond's work, or three milliseconds if each of them subscribes."""
_PAUSE_S: Final = 0.001
"""Pause between two deferred reads while some queues are heavy. What others have published needs
several turns of the loop, and the storage's threads need the interpreter meanwhile."""
LOST_PER_TURN: Final = 16
"""Number of sessions whose lost sockets are noted in one turn of the loop, half a millisecond's
work. So a thousand lost at once make no pause for anybody."""
RESUMED_PER_TURN: Final = 4
"""Number of connections that are resumed in one turn of the loop after they became writable. Each
may read on, and is given 128 KiB."""
_DELAY_S_MAX: Final = 0.02
"""Largest number of seconds for which deferred reads wait because enough of the heavy queues waits
for the storage. After it, connections that send something else are read too, and what the storage
does not take is refused."""


class PortionReader(Protocol):
    """A connection whose client may send more at once than is processed in a turn."""

    def process_rest(self, rest: Iterator[Portion]) -> None:
        """Process the next part of a read."""


class SessionConnection(Timed, Protocol):
    """A transport with a session on it."""

    def take(self) -> list[bytes]:
        """Take the payloads that wait to be written."""

    def write(self, encoded: Sequence[bytes]) -> None:
        """Write to the socket what was taken, as frames."""

    def drain(self, reconnect_after_s: float) -> None:
        """Ask the client to come back after a time, and close when everything is settled."""

    def close(self, close: Close) -> None:
        """Close now, with this code."""


class Connections:
    """The connections of one gateway, each of one session."""

    def __init__(
        self,
        services: SessionServices,
        *,
        sessions_max: int = limits.SESSIONS_MAX,
        addresses: Addresses = NO_PROXIES,
        incoming: IncompleteBytesBudget | None = None,
    ) -> None:
        self.services = services
        self.delivery_log = services.broker.delivery_log
        self.addresses = addresses
        self.deadlines = Deadlines()
        self.incoming = incoming or IncompleteBytesBudget()
        """Budget for the bytes of incomplete messages, request bodies included."""
        self._publisher = publisher = services.broker.publisher
        self.large_reads = LargeReadGate(publisher.commit_early)
        self.is_draining = False
        self._end_of_turn = services.broker.end_of_turn
        self._sessions = services.sessions
        self._sessions_max = sessions_max
        self._open: set[SessionConnection] = set()
        self._to_flush: list[SessionConnection] = []
        self._is_scheduled = False
        """Whether a turn of a deferred read is scheduled."""
        self._window = 0
        self._window_bytes: dict[object, int] = {}
        """Bytes that the client of each connection sent in the present window of _WINDOW_S, in
        reads above SMALL_READ_BYTES; counted only while heavy queues have light ones beside
        them."""
        self._delayed_until = 0.0
        """Time of the loop at which the next deferred read is processed in any case."""
        self._deferred: deque[tuple[PortionReader, Iterator[Portion]]] = deque()
        self._lost = PerTurnQueue(LOST_PER_TURN)
        self.writable = PerTurnQueue(RESUMED_PER_TURN)
        """Queue of the connections that can be written to again, which are resumed in turns."""
        self._empty: asyncio.Event | None = None
        self.frame_hits = HitRate()
        """Rate of messages to clients that had been framed for another client already."""

    def __repr__(self) -> str:
        return f"<Connections: {len(self._open)} sessions>"

    def __len__(self) -> int:
        """Return the number of sessions that have a connection now."""
        return len(self._open)

    def __iter__(self) -> Iterator[SessionConnection]:
        """Iterate over the connections that are open now."""
        return iter(list(self._open))

    def refusal(self) -> Close | None:
        """Return why this gateway takes no further transport now; None if it takes one. Room for a
        session is checked after its `hello`, because the session may be here already."""
        if self.is_draining:
            return frames.DRAINING
        return frames.OVERLOADED if len(self._open) >= self._sessions_max else None

    @property
    def has_room(self) -> bool:
        """Whether the session that has just said `hello` is not one too many (P9)."""
        return len(self._open) + len(self._lost) + len(self._sessions) <= self._sessions_max

    def add(self, connection: SessionConnection) -> None:
        """Add the connection of a session that begins."""
        self._open.add(connection)

    def discard(self, connection: SessionConnection) -> None:
        """Discard the connection of a session that has ended."""
        self._open.discard(connection)
        self._window_bytes.pop(connection, None)
        self._check_empty()

    def on_lost(self, end: Callable[[], None]) -> None:
        """Call `end` at once or in its turn. By it a session learns that its socket is lost."""
        self._lost.add(partial(self._end_lost, end))

    def _end_lost(self, end: Callable[[], None]) -> None:
        end()
        self._check_empty()

    def _check_empty(self) -> None:
        if self._empty is not None and not (self._open or self._lost):
            self._empty.set()

    # --- Reading --------------------------------------------------------------------------------

    def defer(self, connection: PortionReader, rest: Iterator[Portion]) -> None:
        """Process the rest of a read later. One deferred connection goes on in each turn of the
        loop, however many there are."""
        self._deferred.append((connection, rest))
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._process_deferred)

    def admit_read(self, connection: PortionReader, size: int) -> int:
        """Count a read of more than SMALL_READ_BYTES. Returns how much of it may be processed in
        one go; 0 if all of it must be deferred."""
        if self._publisher.is_skewed and self._is_over_share(connection, size):
            return 0
        return self.part_bytes(size)

    def _is_over_share(self, connection: PortionReader, size: int) -> bool:
        window = int(asyncio.get_running_loop().time() / _WINDOW_S)
        if window != self._window:
            self._window = window
            self._window_bytes.clear()
        total = self._window_bytes[connection] = self._window_bytes.get(connection, 0) + size
        return total > PART_BYTES_SHARED

    def part_bytes(self, size: int) -> int:
        """Return how much of a read of `size` bytes a connection may have processed in one go."""
        is_shared = size > PART_BYTES_SHARED and self._publisher.is_shared
        return PART_BYTES_SHARED if is_shared else PART_BYTES_MAX

    def _process_deferred(self) -> None:
        loop, publisher = asyncio.get_running_loop(), self._publisher
        if not self._deferred:
            self._is_scheduled = False
            return
        if loop.time() < self._delayed_until and publisher.has_enough:
            loop.call_later(_PAUSE_S, self._process_deferred)
            return
        connection, rest = self._deferred.popleft()
        call_guarded(connection.process_rest, rest)
        self._delayed_until = loop.time() + _DELAY_S_MAX
        if publisher.is_skewed:
            loop.call_later(_PAUSE_S, self._process_deferred)  # also where nobody waits by now
        elif self._deferred:
            loop.call_soon(self._process_deferred)
        else:
            self._is_scheduled = False

    # --- Writing --------------------------------------------------------------------------------

    def schedule_flush(self, connection: SessionConnection) -> None:
        """Write what a connection has to send at the end of the turn; called once before each
        flush."""
        self._to_flush.append(connection)
        if len(self._to_flush) == 1:
            self._end_of_turn.call_last(self._flush)

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, []
        # In a fan-out thousands of sessions hold the same payload, which is framed once.
        payload = frame = b""
        written = framed = 0
        for connection in to_flush:
            encoded = []
            try:
                for message in connection.take():
                    if message is not payload:
                        payload, frame = message, encode_frame(message)
                        framed += 1
                    encoded.append(frame)
                written += len(encoded)
                connection.write(encoded)
            except Exception as error:
                report_bug(error)
        self.frame_hits.hits += written - framed
        self.frame_hits.misses += framed
        self.delivery_log.on_flush()

    # --- The end --------------------------------------------------------------------------------

    # enforces: P14
    async def drain(self, *, deadline_s: float, random: Random) -> None:
        """Send every client elsewhere (P14); return when no session is open, `deadline_s` at the
        latest.

        The `drain` frames go out a few at a time, within the first half of the deadline, each with
        a random `reconnect_after_s`. A session closes (4000) as soon as its deliveries are settled
        and its publishes answered. Sessions that are left at the deadline are closed then, and
        their unsettled messages return to the groups. Connections made meanwhile are closed at
        once.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        self.is_draining = True
        self._sessions.end_lingering()
        to_drain = list(self._open)
        spread_s = min(deadline_s / 2, len(to_drain) / DRAINED_PER_S_MAX)
        slice_size = max(1, int(len(to_drain) * _SLICE_S / spread_s)) if spread_s else 1
        for first in range(0, len(to_drain), slice_size):
            if first:
                await asyncio.sleep(_SLICE_S)
            for connection in to_drain[first : first + slice_size]:
                connection.drain(random.uniform(0, RECONNECT_AFTER_S_MAX))
        try:
            async with asyncio.timeout_at(deadline):
                await self.wait_until_empty()
        except TimeoutError:
            for connection in self:
                connection.close(frames.DRAINING)

    async def wait_until_empty(self) -> None:
        """Wait until no session has a connection, and each has been informed if its socket was
        lost."""
        if self._open or self._lost:
            self._empty = asyncio.Event()
            await self._empty.wait()
