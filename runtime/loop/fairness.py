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

The first three hold callbacks in one kind of queue, and differ in when they call the next one.
Two devices stand with what they schedule: `gateway.net.connections` works off in parts what one
session sent at once, and `push.commit_sharing` shares commits between queues.

Arrivals fill the gaps. A burst of a thousand handshakes is a fifth of a second of work, a client
that sends one request after another keeps a core busy, and a message needs several turns of the
loop until it is delivered: with one arrival in each of them it would come several arrivals later.
So an arrival waits until a turn of the loop had nothing else in it, and a client in the middle of
something goes on. If the loop is never free, one arrival begins in each ARRIVAL_PAUSE_S.

Large reads take turns. A socket holds megabytes, and a read takes all of them: a hundred clients in
the middle of large messages would have the loop read for a tenth of a second before anybody else
has a turn. So a large read that ended nothing is the last one of its socket until its next turn,
and one socket has its turn in each millisecond. That is 256 MB/s for all of them together. Clients
that send messages that end are read as ever.

Behind each read the storage's thread has its turn. A client that has its next request ready when
the last one is answered keeps the loop's thread running without an end. Linux lets a thread that
has waited for the disk go on when the running one has used up its slice, or gives way: if both
share a core, a commit of half a millisecond takes three. So the loop gives way while something is
stored, which costs half a microsecond if no thread waits for the core. Beside a heavy queue, what
was just read goes to the storage before that: the turn that is given away may be a millisecond.

Frames have a rate. Publishes have limits of their own, and there are as many answers to pushed
messages (acks, credit, leases) as messages. All other frames are cheap to send and cost the broker
work: subscribing and leaving, pings, requests for what does not exist. A session that sends more of
them than its rate is not refused: its socket is not read until they are paid for. So nothing that
it sent is lost, and others do not wait behind it.

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
    """Callbacks in the order of asking. One whose socket is lost meanwhile does nothing."""

    __slots__ = ()

    def call_first(self, count: int) -> None:
        """Call the first `count`, or all if fewer are waiting."""
        for _ in range(min(count, len(self))):
            self.popleft()()


FREE_TURN_S: Final = 20e-6
"""A turn of the loop that took no longer had nothing in it: an empty one takes 2 us, the least that
is done for a message 50."""
ARRIVAL_PAUSE_S: Final = 0.002
"""Handshakes, requests and subscriptions are less than a millisecond's work each: beside others
who keep the loop busy they have a third of it at most, and begin 500 times a second."""
ARRIVALS_AT_FULL_PAUSE: Final = 500
"""If more wait, they begin sooner after each other, so that nobody waits for much more than a
second, and a fleet that comes back does not give up: clients wait for 10 s."""


class ArrivalGate:
    """Let arrivals begin when the loop has nothing else to do. `clock`: seconds; handed in by
    tests."""

    __slots__ = ("_began_at", "_clock", "_is_watching", "_left_at", "_waiting")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._left_at = 0.0
        self._is_watching = False
        """An arrival has begun, and the loop has not been free since."""
        self._waiting = _CallbackQueue()

    def begin(self, work: Callable[[], None]) -> bool:
        """Call `work` now (True), or when it has its turn, in the order of asking (False)."""
        if self._is_watching:
            self._waiting.append(work)
            return False
        self._is_watching = True
        self._begin(work)
        return True

    async def wait(self) -> None:
        """Return when the caller has its turn; at once if the loop is free."""
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
        """Begin the next arrival, if the turn of the loop that is over had nothing in it."""
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
"""A read takes 250 kB, and a fifth of a millisecond."""
_LARGE_READ_PAUSE_S: Final = 0.001
_GIVE_WAY: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)  # not on macOS


class LargeReadGate:
    """The reads of one gateway's sockets. `commit_early`: called after each read; may commit what
    was read, and returns whether a commit of what was published is under way. `give_way`: lets
    another thread have this one's core; handed in by tests."""

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
        """Give way to the storage, after a read whose content was worked off."""
        if self._commit_early():
            self._give_way()

    def wait(self, read_on: Callable[[], None]) -> None:
        """Call `read_on` when it has its turn, in the order of asking."""
        self._waiting.append(read_on)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(_LARGE_READ_PAUSE_S, self._turn)

    def _turn(self) -> None:
        self._waiting.call_first(LARGE_READS_PER_PAUSE)
        self._is_running = bool(self._waiting)
        if self._is_running:
            asyncio.get_running_loop().call_later(_LARGE_READ_PAUSE_S, self._turn)


class PerTurnQueue:
    """Call a few callbacks in each turn of the loop, in the order of `add`, so that others have
    their turn in between. `len`: the number of those that wait."""

    __slots__ = ("_in_this_turn", "_waiting", "per_turn")

    def __init__(self, per_turn: int) -> None:
        self.per_turn = per_turn
        self._in_this_turn = 0
        self._waiting = _CallbackQueue()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[[], None]) -> None:
        """Call `work` at once, or, behind `per_turn` others of this turn of the loop, in one of
        the next."""
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
"""Fewer frames than this are charged with those that follow: most sessions never send so many."""


class FrameRate:
    """How fast one session may send frames beside its publishes."""

    __slots__ = ("_bucket", "_delivered", "_free", "_owed", "_rate")

    def __init__(self, rate: Rate | None) -> None:
        """Without a rate nothing is charged. Its burst must be more than is ever sent at once."""
        self._rate = rate
        self._bucket: Bucket | None = None
        self._owed = 0
        self._free = 0
        self._delivered = 0
        """Messages whose free frames were counted."""

    def charge(self, count: int, delivered: Callable[[], int], *, now: float) -> float:
        """Charge `count` more frames; return for how many seconds the session is not to be read,
        then charge 0. 0.0: it may go on. `delivered`: messages that its subscriptions were given so
        far. `now`: seconds, monotonic."""
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
"""Smaller ones give up behind all that are not."""


class BytesHolder(Protocol):
    """A connection or a request that holds something incomplete."""

    def give_up(self) -> None:
        """Forget it at once, and say so to the client."""


class IncompleteBytesBudget:
    """The incomplete bytes of one gateway."""

    __slots__ = ("_bytes_max", "_large", "_small", "total")

    def __init__(self, bytes_max: int = limits.INCOMPLETE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._large: dict[BytesHolder, int] = {}
        """In the order in which they became large."""
        self._small: dict[BytesHolder, int] = {}
        """In the order in which they began."""
        self.total = 0

    def hold(self, holder: BytesHolder, size: int) -> None:
        """Count `size` bytes for `holder`, in place of its former ones; 0: it holds nothing. Above
        the budget some holders have to give up; `holder` may be one of them."""
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
    """A deadline that counts what moves: over after `patience_s` without a part, and over after
    `patience_s` plus the time that the slowest line needs for the parts so far. A client that sends
    a byte now and then, to hold a socket for ever, is cut by the second."""

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
        """Leave the time until now out: nobody took what the other side had to give."""
        self._began_at += now - self._moved_at
        self._moved_at = now

    @property
    def ends_at(self) -> float:
        """The end of it, if nothing more arrives."""
        paid_s = self._size / limits.SLOWEST_BYTES_PER_S
        return min(self._moved_at, self._began_at + paid_s) + self.patience_s


SLICE_S: Final = 0.005
"""The longest time that one answer is worked at before others have their turn."""


class TimeSlices:
    """Work at one long answer in slices, so that pushes do not wait for it."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S  # the loop's clock stands still while we work

    async def yield_if_over(self) -> None:
        """Let others have their turn if the slice is over; to be called between the parts."""
        if perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_S
