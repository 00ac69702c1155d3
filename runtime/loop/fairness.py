"""The devices that keep one client, or a crowd of them, from having the event loop alone (P9).

    device                 bounds                                    constants
    ArrivalGate            handshakes, requests and subscriptions    FREE_TURN_S, ARRIVAL_PAUSE_S,
                           that begin                                ARRIVALS_AT_FULL_PAUSE
    LargeReadGate          large reads that ended no message         LARGE_READ_BYTES,
                                                                     LARGE_READS_PER_PAUSE
    PerTurnQueue           sockets that are lost, and sessions that  `per_turn` of its user
                           are resumed, in one turn of the loop
    FrameRate              frames of one session beside publishes    FREE_FRAMES_PER_MESSAGE,
                                                                     FREE_FRAMES_MAX
    IncompleteBytesBudget  bytes of messages and bodies that have    limits.INCOMPLETE_BYTES_MAX
                           only begun
    TransferDeadline       the time that one body may take           limits.SLOWEST_BYTES_PER_S
    TimeSlices             the time that a long answer takes at once SLICE_S

    device                 test                                              trial
    ArrivalGate            tests/runtime/test_arrivals_and_large_reads.py    visitors
    LargeReadGate          tests/runtime/test_crowds.py                      hostile
    PerTurnQueue           tests/runtime/test_per_turn_queue.py              churn
    FrameRate              tests/runtime/test_frame_rate.py                  hostile
    IncompleteBytesBudget  tests/runtime/test_incomplete_bytes.py            hostile
    TransferDeadline       tests/runtime/test_http11.py                      hostile
    TimeSlices             tests/histories/test_figures.py                   console

The first three hold callbacks in one kind of queue, and differ in when they call the next one. Two
devices are with what they schedule: `gateway.net.connections` works through a burst of one session
in parts, and `push.commit_sharing` shares commits between queues.

Arrivals fill the gaps. A burst of a thousand handshakes is a fifth of a second of work. A client
that sends one request after another keeps a core busy. A message needs several turns of the loop
until it is delivered: with one arrival in each of them it would come several arrivals later. So an
arrival waits until a turn of the loop had nothing else in it, and clients that are at work go on.
If the loop is never free, one arrival begins in each ARRIVAL_PAUSE_S.

Large reads take turns. A socket holds megabytes, and a read takes all of them. A hundred clients in
the middle of large messages would have the loop read for a tenth of a second before anybody else
has a turn. So a large read that ended nothing is the last one of its socket until its next turn,
and one socket has its turn in each millisecond, which bounds the bandwidth of all together.
Messages that are whole are read without a pause.

After each read the storage's thread has its turn. A client that has its next request ready when the
last one is answered keeps the loop's thread running without an end. Linux lets a thread that has
waited for the disk go on when the running one has used up its slice, or gives way. If both share a
core, a short commit takes several times as long. So the loop gives way while something is stored,
which costs next to nothing if no thread waits for the core (measured:
docs/benchmarks/tuning.md#the-loop-yields-its-core).
Beside a heavy queue, a read's messages go to the storage before that, because the turn that is
given away may be long.

Frames have a rate. Publishes have limits of their own, and there are as many answers to pushed
messages (acks, credit, leases) as messages. All other frames are cheap to send and cost the broker
work: subscribing and leaving, pings, requests for what does not exist. A session that sends more of
them than its rate is not refused: its socket is not read until they are paid for. So nothing that
it sent is lost, and others do not wait for it.

Incomplete messages have a budget. Each alone is bounded, but a client that opens a thousand sockets
and sends all of a large message except its last byte would hold a thousand times that. So the sum
is bounded, too, and if that is not enough, the oldest of the large ones give up: a client that
means to send a whole message is soon done, and one that sends a small one slowly is not to blame.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

from push import limits
from push.rates.bucket import Bucket, Rate

# --- Queues of callbacks ----------------------------------------------------------------------


class _CallbackQueue(deque[Callable[[], None]]):
    """Callbacks in the order in which they were added. One whose socket is lost meanwhile does
    nothing."""

    __slots__ = ()

    def call_first(self, count: int) -> None:
        """Remove and call the first `count` callbacks, or all if fewer are waiting."""
        for _ in range(min(count, len(self))):
            self.popleft()()


FREE_TURN_S: Final = 20e-6
"""Longest duration in seconds of a turn of the loop that counts as empty. A really empty turn takes
a tenth of that, and a turn with the least work for a message more than twice as long."""
ARRIVAL_PAUSE_S: Final = 0.002
"""Seconds after which the next arrival begins, even if the loop is never free. An arrival is less
than a millisecond's work, so arrivals have a third of a busy loop at most, and 500 begin in a
second."""
ARRIVALS_AT_FULL_PAUSE: Final = 500
"""Number of waiting arrivals above which the pause between two is shorter than ARRIVAL_PAUSE_S, so
that no arrival waits for much more than a second. A returning fleet does not give up then: clients
wait for 10 s."""


class ArrivalGate:
    """Lets arrivals (connections, handshakes, requests, subscriptions) begin one by one, when the
    loop has nothing else to do or after a pause. `clock`: seconds; tests replace it."""

    __slots__ = ("_began_at", "_clock", "_is_watching", "_left_at", "_waiting")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._left_at = 0.0
        self._is_watching = False
        """Whether new arrivals have to wait, because one has begun, and since then no turn of the
        loop was empty and the pause has not passed, or because others wait."""
        self._waiting = _CallbackQueue()

    def begin(self, work: Callable[[], None]) -> bool:
        """Call `work` now (returns True), or later, when it is its turn, in the order of the calls
        (returns False)."""
        if self._is_watching:
            self._waiting.append(work)
            return False
        self._is_watching = True
        self._begin(work)
        return True

    async def wait(self) -> None:
        """Return when it is the caller's turn; at once if the loop is free."""
        turn = asyncio.Event()
        if not self.begin(turn.set):
            await turn.wait()

    def _begin(self, work: Callable[[], None]) -> None:
        self._began_at = self._clock()
        try:
            work()
        finally:
            self._watch()

    def _watch(self) -> None:
        asyncio.get_running_loop().call_soon(self._next)
        self._left_at = self._clock()

    def _next(self) -> None:
        """Begin the next arrival, if the past turn of the loop was empty, or the pause since the
        last arrival has passed."""
        now = self._clock()
        pause_s = ARRIVAL_PAUSE_S * min(1.0, ARRIVALS_AT_FULL_PAUSE / max(1, len(self._waiting)))
        if now - self._left_at > FREE_TURN_S and now - self._began_at < pause_s:
            self._watch()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._is_watching = False


LARGE_READ_BYTES: Final = 64 * 1024
LARGE_READS_PER_PAUSE: Final = 1
"""Number of sockets that are read again after a large read, in each pause of a millisecond.
measured: docs/benchmarks/tuning.md#large-reads"""
_LARGE_READ_PAUSE_S: Final = 0.001
_GIVE_WAY: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)  # not on macOS


class LargeReadGate:
    """Turns of one gateway's sockets after large reads. `commit_early`: called after each read,
    large or not; may commit what was read, and returns whether a commit of published messages is
    under way. `give_way`: gives this thread's core to another thread; tests replace it."""

    __slots__ = ("_commit_early", "_give_way", "_is_running", "_waiting")

    def __init__(
        self,
        commit_early: Callable[[], bool] = lambda: False,
        give_way: Callable[[], None] = _GIVE_WAY,
    ) -> None:
        self._commit_early = commit_early
        self._give_way = give_way
        self._waiting = _CallbackQueue()
        self._is_running = False

    def after_read(self) -> None:
        """Give this thread's core to the storage's thread, if a commit is under way. To be called
        after each read, when its content was handled."""
        if self._commit_early():
            self._give_way()

    def wait(self, read_on: Callable[[], None]) -> None:
        """Call `read_on` when it is its turn, in the order of the calls."""
        self._waiting.append(read_on)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(_LARGE_READ_PAUSE_S, self._turn)

    def _turn(self) -> None:
        try:
            self._waiting.call_first(LARGE_READS_PER_PAUSE)
        finally:
            self._is_running = bool(self._waiting)
            if self._is_running:
                asyncio.get_running_loop().call_later(_LARGE_READ_PAUSE_S, self._turn)


class PerTurnQueue:
    """Calls a few callbacks in each turn of the loop, in the order of `add`, so that others have
    their turn in between. `len`: the number of those that wait."""

    __slots__ = ("_in_this_turn", "_waiting", "per_turn")

    def __init__(self, per_turn: int) -> None:
        self.per_turn = per_turn
        self._in_this_turn = 0
        self._waiting = _CallbackQueue()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[[], None]) -> None:
        """Call `work` at once, or, after `per_turn` others of this turn of the loop, in one of the
        next turns."""
        if not self._in_this_turn:
            asyncio.get_running_loop().call_soon(self._turn)
        if self._in_this_turn < self.per_turn:
            self._in_this_turn += 1
            work()
        else:
            self._waiting.append(work)

    def _turn(self) -> None:
        self._in_this_turn = min(self.per_turn, len(self._waiting))
        if self._in_this_turn:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.call_first(self._in_this_turn)


# --- Rates and budgets ------------------------------------------------------------------------

FREE_FRAMES_PER_MESSAGE: Final = 4
"""Frames that come free with each message that the session was given: an ack, a credit, and more
than one extend."""
FREE_FRAMES_MAX: Final = 40_000
"""Free frames that a session can save up."""
UNCHARGED_FRAMES: Final = 64
"""Number of frames below which a session's frames are not charged yet, but with later ones. Most
sessions never send this many."""


class FrameRate:
    """The rate at which one session may send frames, apart from its publishes."""

    __slots__ = ("_bucket", "_delivered", "_free", "_owed", "_rate")

    def __init__(self, rate: Rate | None) -> None:
        """`rate`: None: nothing is charged. The rate's burst must be more than a client sends at
        once."""
        self._rate = rate
        self._bucket: Bucket | None = None
        self._owed = 0
        self._free = 0
        self._delivered = 0
        """Number of messages given to the session whose free frames have been added to `_free`;
        lower again when a subscription with its count ends."""

    def charge(self, count: int, delivered: Callable[[], int], *, now: float) -> float:
        """Charge `count` more frames. Returns for how many seconds the session is not to be read,
        after which the caller charges 0; 0.0 if it may go on. `delivered` returns the number of
        messages that its subscriptions were given so far. `now`: seconds, monotonic."""
        self._owed += count
        if self._owed < UNCHARGED_FRAMES:
            return 0.0
        if self._rate is None:
            self._owed = 0
            return 0.0
        self._earn(delivered())
        free = min(self._owed, self._free)
        self._free -= free
        self._owed -= free
        if self._bucket is None:
            self._bucket = Bucket(self._rate)
        wait_s = self._bucket.take(min(self._owed, self._rate.burst), now=now)
        if not wait_s:
            self._owed = max(0, self._owed - self._rate.burst)
        return wait_s

    def _earn(self, delivered: int) -> None:
        # A subscription that has ended takes its count with it.
        self._delivered = min(self._delivered, delivered)
        earned = FREE_FRAMES_PER_MESSAGE * (delivered - self._delivered)
        self._free = min(FREE_FRAMES_MAX, self._free + earned)
        self._delivered = delivered


LARGE_INCOMPLETE_BYTES: Final = 64 * 1024
"""Number of incomplete bytes from which a holder is large. Large holders give up first, small ones
only when no large one is left."""


class BytesHolder(Protocol):
    """A connection or a request that holds the bytes of an incomplete message or body."""

    def give_up(self) -> None:
        """Drop the held bytes at once, and inform the client. Called by the budget."""


class IncompleteBytesBudget:
    """Bound of the incomplete bytes that all connections and requests of one gateway hold
    together."""

    __slots__ = ("_bytes_max", "_large", "_small", "total")

    def __init__(self, bytes_max: int = limits.INCOMPLETE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._large: dict[BytesHolder, int] = {}
        """Holders in the order in which they became large."""
        self._small: dict[BytesHolder, int] = {}
        """Holders in the order in which they began."""
        self.total = 0

    def hold(self, holder: BytesHolder, size: int) -> None:
        """Count `size` bytes for `holder`, in place of its former ones; 0 if it holds nothing.
        Above the budget some holders have to give up; `holder` may be one of them."""
        if holder in self._large:
            sizes, before = self._large, self._large[holder]
        else:
            sizes, before = self._small, self._small.get(holder, 0)
        self.total += size - before
        if not size:
            sizes.pop(holder, None)
        elif sizes is self._small and size >= LARGE_INCOMPLETE_BYTES:
            sizes.pop(holder, None)
            self._large[holder] = size
        else:
            sizes[holder] = size
        while self.total > self._bytes_max:
            sizes = self._large or self._small
            oldest = next(iter(sizes))
            self.total -= sizes.pop(oldest)
            oldest.give_up()


# --- Time -------------------------------------------------------------------------------------


class TransferDeadline:
    """A deadline that moves with what arrives. It is over after `patience_s` without a part, and
    after `patience_s` plus the time that the slowest line needs for the parts so far. The second
    cuts a client off that sends a byte now and then, to hold a socket for ever."""

    __slots__ = ("_began_at", "_moved_at", "_size", "patience_s")

    def __init__(self, patience_s: float, *, now: float) -> None:
        self.patience_s: Final = patience_s
        self._began_at = now
        self._moved_at = now
        self._size = 0

    def advance(self, size: int, *, now: float) -> None:
        """Count a part of this size, which has arrived."""
        self._size += size
        self._moved_at = now

    def excuse(self, *, now: float) -> None:
        """Do not count the time since the last part, in which this side did not read what the other
        side had sent."""
        self._began_at += now - self._moved_at
        self._moved_at = now

    @property
    def ends_at(self) -> float:
        """Time at which the deadline is over, if nothing more arrives."""
        paid_s = self._size / limits.SLOWEST_BYTES_PER_S
        return min(self._moved_at, self._began_at + paid_s) + self.patience_s


SLICE_S: Final = 0.005
"""The longest time in seconds of work on one answer before other tasks have their turn."""


class TimeSlices:
    """Slices for the work on one long answer, so that pushes do not wait for it."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S  # the loop's clock does not advance while we work

    async def yield_if_over(self) -> None:
        """Let other tasks have their turn if the slice is over. To be called between the parts of
        the work."""
        if perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_S
