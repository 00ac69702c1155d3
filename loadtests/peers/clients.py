"""The common part of the clients of all peers.

`Bodies` are the messages that all of them send, `Acks` the random order in which they acknowledge.
`Sending` is the part of a producer that is the same for all protocols: it writes blocks of messages
and counts confirmations. `Settling` is that of a consumer: its counts and acknowledgements.
"""

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from loadtests.clients.load import BODY_BYTES, KEYS, STAMP_BYTES, WAVES, LoadFailed
from loadtests.histogram import Histogram

T = TypeVar("T")
WAVE_DELAY_S: Final = 0.002
"""Seconds after a wave of acknowledgements until the next one is sent, even if no message has come;
equal to that of Tocsin's consumers."""
_DRAWS: Final = 4096


class Bodies:
    """Messages of one size: the time at which each was due, as `load.stamp` writes it, and padding.
    Keys are names such as `k0007`."""

    def __init__(self, body_bytes: int = BODY_BYTES, keys: int = KEYS) -> None:
        """Raises ValueError if there is no room for a stamp."""
        if body_bytes < STAMP_BYTES:
            raise ValueError(f"a body has at least {STAMP_BYTES} bytes, not {body_bytes}")
        self.body_bytes = body_bytes
        self.keys = keys
        self._padding = b"x" * (body_bytes - STAMP_BYTES)

    def key(self, number: int) -> bytes:
        """Return the name of a key."""
        return b"k%0*d" % (len(str(self.keys - 1)), number)

    def block(
        self, messages: int, random: Random, around: Callable[[bytes], tuple[bytes, bytes]]
    ) -> list[bytes]:
        """Return messages of random keys, cut where the stamp belongs: `stamp.join(block)` fills it
        in. `around(key)` returns the protocol's bytes before and after the body."""
        parts = [b""]
        for _ in range(messages):
            before, behind = around(self.key(random.randrange(self.keys)))
            parts[-1] += before
            parts.append(self._padding + behind)
        return parts

    def record(self, bodies: Sequence[bytes], histogram: Histogram) -> None:
        """Record the latency of each body now. Raises LoadFailed for a body that no producer
        sent."""
        now = time.monotonic_ns()
        for due, times in Counter([body[:STAMP_BYTES] for body in bodies]).items():
            if not due.isdigit():
                raise LoadFailed(f"a body that nobody sent: {due!r}")
            histogram.record(now - int(due), times)
        if any(len(body) != self.body_bytes for body in bodies):
            raise LoadFailed(f"a body of {self.body_bytes} bytes came with another size")

    def latency_ns(self, body: bytes) -> int:
        """Return a body's latency now. Raises LoadFailed if no producer sent it."""
        due = body[:STAMP_BYTES]
        if len(body) != self.body_bytes or not due.isdigit():
            raise LoadFailed(f"a body that nobody sent: {body[:200]!r}")
        return time.monotonic_ns() - int(due)


class Acks(Generic[T]):
    """The order in which messages are acknowledged. Each falls into one of WAVES waves at random.
    One wave is sent at each turn, and another one WAVE_DELAY_S later while any is left."""

    def __init__(self, random: Random, send: Callable[[list[T]], None]) -> None:
        self._send = send
        self._waves: deque[list[T]] = deque([] for _ in range(WAVES))
        self._draws = itertools.cycle([random.randrange(WAVES) for _ in range(_DRAWS)])
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def add(self, items: Sequence[T]) -> None:
        """Add messages to be acknowledged."""
        waves, draws = list(self._waves), self._draws
        for item in items:
            waves[next(draws)].append(item)

    def turn(self) -> None:
        """Send the next wave."""
        due = self._waves.popleft()
        self._waves.append([])
        if due:
            self._send(due)
        if self._timer is None and not self._stopped and any(self._waves):
            self._timer = asyncio.get_running_loop().call_later(WAVE_DELAY_S, self._later)

    def _later(self) -> None:
        self._timer = None
        if not self._stopped:
            self.turn()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()


BLOCKS_MIN: Final = 16
MESSAGES_MADE_MIN: Final = 2048


class Sending(ABC):
    """The part of a producer that is the same for all protocols. Among the bases it comes before
    the protocol's client, which calls `_turn` after all messages of one read."""

    def __init__(
        self,
        bodies: Bodies,
        messages: int,
        random: Random,
        around: Callable[[bytes], tuple[bytes, bytes]],
    ) -> None:
        """`messages`: number of messages that are sent together. `around(key)` returns the
        protocol's bytes before and after the body."""
        self.messages_per_frame = messages
        self.unanswered = 0
        self.answered = 0
        self.on_answers: Callable[[], None] | None = None
        self.durability: object = None
        count = max(BLOCKS_MIN, MESSAGES_MADE_MIN // messages)
        self._blocks = itertools.cycle(
            [bodies.block(messages, random, around) for _ in range(count)]
        )
        self._out: list[bytes] = []

    def publish(self, due: bytes) -> None:
        self.unanswered += self.messages_per_frame
        self._out.append(due.join(next(self._blocks)))

    def flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._send(out)

    @abstractmethod
    def _send(self, blocks: list[bytes]) -> None:
        """Write blocks of messages."""

    def _confirmed(self) -> None:
        self.unanswered -= 1
        self.answered += 1

    def _turn(self) -> None:
        if self.on_answers is not None:
            self.on_answers()


Ack = TypeVar("Ack")
"""A delivery's name in the protocol, for its acknowledgement."""


class Settling(ABC, Generic[Ack]):
    """The part of a consumer that is the same for all protocols. Among the bases it comes before
    the protocol's client."""

    def __init__(self, bodies: Bodies, histogram: Histogram, random: Random) -> None:
        self.delivered = 0
        self.settled = 0
        self.redelivered = 0
        self.on_settled: Callable[[], None] | None = None
        self._bodies = bodies
        self._histogram = histogram
        self._acks: Acks[Ack] = Acks(random, self._acknowledge)

    @abstractmethod
    def _acknowledge(self, due: list[Ack]) -> None:
        """Acknowledge deliveries, and ask for a confirmation."""

    def _told(self) -> None:
        if self.on_settled is not None:
            self.on_settled()
