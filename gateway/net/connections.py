"""All sessions of this gateway: heard in turns, flushed together, timed together, drained together.

What a socket sends at once and is more than its part of a turn waits for others to be heard. One
flush writes what every session has to say by then; one timer serves the heartbeats of all; and when
the gateway goes down, they are told so a few at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

from gateway.counters import HitRate
from gateway.session.directory import SessionServices
from gateway.wire import frames
from gateway.wire.coalesce import PORTION_BYTES_MAX, Portions
from gateway.wire.frames import Close
from gateway.wire.rfc6455 import text_frame
from push import limits
from runtime.addresses import NO_PROXIES, Addresses
from runtime.loop.end_of_turn import Deadlines, Timed
from runtime.loop.fairness import IncompleteBytesBudget, LargeReadGate, PerTurnQueue

DRAINED_PER_S_MAX: Final = 200
"""Sessions told to come back elsewhere: every one costs another gateway a handshake and reads."""
RECONNECT_AFTER_S_MAX: Final = 5.0
"""The jitter that a drained client is asked to wait."""
_SLICE_S: Final = 0.05
PART_BYTES_MAX: Final = 1_048_576
"""Of what one socket has sent at once, in one turn of the loop, and then for each time it is its
turn again: one read may bring megabytes, and until they are worked off nobody else is heard."""
PART_BYTES_SHARED: Final = PORTION_BYTES_MAX
"""The same while several queues publish. While some of them flood, who has sent more in a spell
waits for his turn with all of it. What they send costs half as much again then, in turns of the
loop and in small records; who is alone does not pay that."""
UNTURNED_BYTES: Final = 4096
"""So little at once waits for nobody's turn."""
_SPELL_S: Final = 0.25
PART_FRAMES_MAX: Final = 32
"""The same in frames that are no publishes: a third of a millisecond's work, or, where each of them
subscribes, three."""
_PAUSE_S: Final = 0.001
"""Between two such parts then: what the others have published needs several turns of the loop, and
the storage's threads need the interpreter, until it is there."""
PER_TURN: Final = 16
"""Sessions whose sockets are lost hear of it in one turn of the loop, half a millisecond's work: a
thousand of them at once are nobody's pause."""
RESUMED_PER_TURN: Final = 4
"""The same where they can be written to again: each may read on, and is given 128 KiB."""
_ENOUGH_S: Final = 0.02
"""So long at most nobody has his turn because enough of those that flood waits for the storage: who
sends much of something else is heard, too, and what the storage does not take is refused."""


class Talker(Protocol):
    """A transport that may say more at once than is worked off in a turn."""

    def go_on(self, rest: Portions) -> None:
        """It is its turn again: the next part of what it has said."""


class Connection(Timed, Protocol):
    """A transport with a session on it."""

    def take(self) -> list[bytes]:
        """The payloads that wait to be written; called by the flush."""

    def write(self, data: bytes) -> None:
        """Bytes for the socket."""

    def flushed(self) -> None:
        """What was taken has been written."""

    def drain(self, reconnect_after_s: float) -> None:
        """Tell the client to come back, close when everything is settled."""

    def close(self, close: Close) -> None:
        """Close now, with this code."""


class Registry:
    """The sessions of one gateway."""

    def __init__(
        self,
        services: SessionServices,
        *,
        sessions_max: int = limits.SESSIONS_MAX,
        addresses: Addresses = NO_PROXIES,
        incoming: IncompleteBytesBudget | None = None,
    ) -> None:
        self.services = services
        self.log = services.broker.delivery_log
        self._end_of_turn = services.broker.end_of_turn
        self.addresses = addresses
        services.sessions.has_room = self._has_room
        self.deadlines = Deadlines()
        self.incoming = incoming or IncompleteBytesBudget()
        """What clients have begun to send; request bodies count there, too."""
        self._publisher = publisher = services.broker.publisher
        self.large_reads = LargeReadGate(publisher.commit_early)
        self.is_draining = False
        self._sessions_max = sessions_max
        self._connections: set[Connection] = set()
        self._dirty: list[Connection] = []
        self._has_turn = False
        self._spell = 0
        self._said: dict[object, int] = {}
        """In this spell, where it is crowded."""
        self._turn_by = 0.0
        """When the next one has its turn in any case."""
        self._later: deque[tuple[Talker, Portions]] = deque()
        self._lost = PerTurnQueue(PER_TURN)
        self.resumed = PerTurnQueue(RESUMED_PER_TURN)
        """Connections that can be written to again."""
        self._emptied: asyncio.Event | None = None
        self.framed = HitRate()
        """How many messages to clients were framed for another one already."""

    def __repr__(self) -> str:
        return f"<Registry: {len(self._connections)} sessions>"

    def __len__(self) -> int:
        """Sessions that are open."""
        return len(self._connections)

    def connections(self) -> list[Connection]:
        """Those of the sessions that are open."""
        return list(self._connections)

    def refusal(self) -> Close | None:
        """Why one more transport cannot be had here now; None: it can. Its session may be one that
        is here already: whether there is room for another one is asked after its `hello`."""
        if self.is_draining:
            return frames.DRAINING
        return frames.OVERLOADED if len(self._connections) >= self._sessions_max else None

    def _has_room(self) -> bool:
        """Whether the session that has just said `hello` is not one too many (P9)."""
        there = len(self._connections) + len(self._lost) + len(self.services.sessions)
        return there <= self._sessions_max

    def add(self, connection: Connection) -> None:
        """A session began."""
        self._connections.add(connection)

    def discard(self, connection: Connection) -> None:
        """A session ended."""
        self._connections.discard(connection)
        self._said.pop(connection, None)
        self._tell_if_emptied()

    def _tell_if_emptied(self) -> None:
        if self._emptied is not None and not (self._connections or self._lost):
            self._emptied.set()

    def lost(self, end: Callable[[], None]) -> None:
        """A session's socket is lost: it hears so at once, or when it is its turn."""
        self._lost.add(partial(self._see_off, end))

    def _see_off(self, end: Callable[[], None]) -> None:
        end()
        self._tell_if_emptied()

    # --- Reading --------------------------------------------------------------------------------

    def later(self, connection: Talker, rest: Portions) -> None:
        """It has had its part of this turn. However many have such a rest, one of them goes on in
        each turn of the loop."""
        self._later.append((connection, rest))
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def waits(self, connection: Talker, size: int) -> bool:
        """Whether who has sent `size` bytes at once has to wait for his turn with them."""
        if size <= UNTURNED_BYTES or not self._publisher.is_skewed:
            return False
        spell = int(asyncio.get_running_loop().time() / _SPELL_S)
        if spell != self._spell:
            self._spell = spell
            self._said.clear()
        said = self._said[connection] = self._said.get(connection, 0) + size
        return said > PART_BYTES_SHARED

    def part_bytes(self, size: int) -> int:
        """How much of what it has sent, `size` bytes, a socket may have worked off in one go."""
        is_shared = size > PART_BYTES_SHARED and self._publisher.is_shared
        return PART_BYTES_SHARED if is_shared else PART_BYTES_MAX

    def _turn(self) -> None:
        loop, publisher = asyncio.get_running_loop(), self._publisher
        if not self._later:
            self._has_turn = False
            return
        if loop.time() < self._turn_by and publisher.has_enough:
            loop.call_later(_PAUSE_S, self._turn)
            return
        connection, rest = self._later.popleft()
        connection.go_on(rest)
        self._turn_by = loop.time() + _ENOUGH_S
        if publisher.is_skewed:
            loop.call_later(_PAUSE_S, self._turn)  # also where nobody waits by now
        elif self._later:
            loop.call_soon(self._turn)
        else:
            self._has_turn = False

    # --- Writing --------------------------------------------------------------------------------

    def dirty(self, connection: Connection) -> None:
        """It has something to write; said once before each flush."""
        self._dirty.append(connection)
        if len(self._dirty) == 1:
            self._end_of_turn.call_last(self._flush)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        # In a fan-out thousands of sessions hold the same payload: it is framed once.
        payload = frame = b""
        written = framed = 0
        for connection in dirty:
            for message in connection.take():
                if message is not payload:
                    payload, frame = message, text_frame(message)
                    framed += 1
                connection.write(frame)
                written += 1
            connection.flushed()
        self.framed.hits += written - framed
        self.framed.misses += framed
        self.log.on_flush()

    # --- The end --------------------------------------------------------------------------------

    async def emptied(self) -> None:
        """Wait until no session is open."""
        if self._connections or self._lost:
            self._emptied = asyncio.Event()
            await self._emptied.wait()


async def drain_sessions(registry: Registry, *, deadline_s: float, random: Random) -> None:
    """Send every client elsewhere (P14); returns when no session is open, `deadline_s` at the
    latest.

    The `drain` frames go out a few at a time, within the first half of the deadline, each with a
    jittered `reconnect_after_s`. A session closes (4000) as soon as its deliveries are settled and
    its publishes answered; what is left at the deadline is closed then, and what it had not
    settled returns to its groups. Connections made meanwhile are sent away at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    registry.is_draining = True
    registry.services.sessions.end_lingering()
    connections = registry.connections()
    spread_s = min(deadline_s / 2, len(connections) / DRAINED_PER_S_MAX)
    slice_size = max(1, int(len(connections) * _SLICE_S / spread_s)) if spread_s else 1
    for first in range(0, len(connections), slice_size):
        if first:
            await asyncio.sleep(_SLICE_S)
        for connection in connections[first : first + slice_size]:
            connection.drain(random.uniform(0, RECONNECT_AFTER_S_MAX))
    try:
        async with asyncio.timeout_at(deadline):
            await registry.emptied()
    except TimeoutError:
        for connection in registry.connections():
            connection.close(frames.DRAINING)
