"""Who sends much that is not complete yet, or is not wanted any more, is read in turns; and while
something is being stored, the storage's thread has its turn behind each read.

A socket holds megabytes, and a read of it takes what is there: a hundred clients in the middle of
large messages would have the loop read for a tenth of a second before anybody else is heard. So a
large read that brought nothing to an end is the last one of its socket until it is its turn again,
and one has its own in each millisecond (P9). That is 256 MB/s for all of them together; who sends
messages that end is read as ever.

A client that has its next request ready when the last one is answered keeps the loop's thread
running without an end. Linux lets a thread that has waited for the disk go on when the running one
has used up its slice, or gives way: where both share a core, a commit of half a millisecond takes
three. So the loop gives way, which costs half a microsecond where nobody waits for the core. Beside
a flood what was just read goes to the storage before that: the turn that is given away may be a
millisecond.

Arrivals fill the gaps: one begins when the event loop has nothing else to do, or when it has
waited for long enough.

A burst of a thousand handshakes is a fifth of a second of work, a client that asks one thing after
another keeps a core busy, and a message needs several turns of the loop until it is there: with
one arrival in each of them it would come several arrivals later. So who begins waits until a
turn of the loop had nothing else in it, and who is in the middle of something goes on (P9). Where
the loop is never free, one arrival begins in each PAUSE_S.

How fast a session may talk beside publishing.

Publishes have limits of their own, and what a consumer says of what it was given (acks, credit,
leases) is as much as that. All else is cheap to say and costs the broker work: subscribing and
leaving, pings, asking for what is not there. A session that says more of it than its rate is not
refused, it is heard later: its socket is not read until what it has said is paid for. So nothing
that it said is lost, and others do not wait behind it (P9).

What clients have sent the beginning of: messages and bodies that are not complete yet.

Each alone is bounded, and whoever opens a thousand sockets and sends all of a large message but its
last byte would hold a thousand times that. So all of them together are bounded, too (P9), and where
that is not enough, those of the large ones give up that have been at it for longest: who means to
send a whole message is done soon, and who sends a small one slowly is not the one to blame.

What happens to many sockets at once happens to a few of them in each turn of the event loop, so
that others are heard in between (P9).

How long something may take that arrives in parts.

Long answers in slices: whoever pushes messages does not wait for who looks (P9).
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

from push import limits
from push.rates.bucket import Bucket, Rate

LARGE_READ_BYTES: Final = 64 * 1024
TURNS_AT_ONCE: Final = 1
"""A read takes 250 kB, and a fifth of a millisecond."""
_PAUSE_S: Final = 0.001
_GIVE_WAY: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)  # not on macOS


class Intake:
    """Of one gateway. `is_storing`: whether a commit of what was published is under way.
    `hurry`: called behind each read, before the storage's thread has its turn. `give_way`: lets
    another thread have this one's core; handed in by tests."""

    __slots__ = ("_give_way", "_hurry", "_is_running", "_is_storing", "_resting")

    def __init__(
        self,
        is_storing: Callable[[], bool] = lambda: False,
        hurry: Callable[[], None] = lambda: None,
        give_way: Callable[[], None] = _GIVE_WAY,
    ) -> None:
        self._is_storing = is_storing
        self._hurry = hurry
        self._give_way = give_way
        self._resting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def heard(self) -> None:
        """Something was read, and is worked off as far as it may be at once."""
        self._hurry()
        if self._is_storing():
            self._give_way()

    def rest(self, read_on: Callable[[], None]) -> None:
        """`read_on` is called when it is its turn, in the order of asking. Whose socket is lost
        meanwhile does nothing then."""
        self._resting.append(read_on)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(_PAUSE_S, self._turn)

    def _turn(self) -> None:
        for _ in range(min(TURNS_AT_ONCE, len(self._resting))):
            self._resting.popleft()()
        self._is_running = bool(self._resting)
        if self._is_running:
            asyncio.get_running_loop().call_later(_PAUSE_S, self._turn)


FREE_TURN_S: Final = 20e-6
"""A turn of the loop that took no longer had nothing in it: an empty one takes 2 us, the least that
is done for a message 50."""
PAUSE_S: Final = 0.002
"""Handshakes, requests and subscriptions are less than a millisecond's work each: beside others
who keep the loop busy they have a third of it at most, and begin 500 times a second."""
CROWD: Final = 500
"""Where more wait, they come sooner after each other, so that nobody waits for much more than a
second, and a fleet that comes back does not give up: clients wait for 10 s."""


class Turns:
    """See the module. `clock`: seconds; handed in by tests."""

    __slots__ = ("_began_at", "_clock", "_is_watching", "_left_at", "_waiting")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._left_at = 0.0
        self._is_watching = False
        """One has begun, and the loop has not been free since."""
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, work: Callable[[], None]) -> bool:
        """Do it now (True), or when it is its turn, in the order of asking (False). Whose socket is
        lost meanwhile does nothing then."""
        if self._is_watching:
            self._waiting.append(work)
            return False
        self._is_watching = True
        self._begin(work)
        return True

    async def turn(self) -> None:
        """As `take`: returns when it is the caller's turn."""
        turn = asyncio.Event()
        if not self.take(turn.set):
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
        """A turn of the loop is over."""
        now = self._clock()
        pause_s = PAUSE_S * min(1.0, CROWD / max(1, len(self._waiting)))
        if now - self._left_at > FREE_TURN_S and now - self._began_at < pause_s:
            self._watch()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._is_watching = False


FREE_PER_MESSAGE: Final = 4
"""Frames that come free with each message that the session was given: an ack, a credit, and more
than one extend."""
FREE_MAX: Final = 40_000
"""So many are kept for later at most."""
SMALL_CHANGE: Final = 64
"""Fewer frames than this are charged with those that follow: most sessions never say so many."""


class Pace:
    """Of one session."""

    __slots__ = ("_bucket", "_free", "_given", "_owed", "_rate")

    def __init__(self, rate: Rate | None) -> None:
        """None: as fast as it likes. Its burst must be more than is ever said at once."""
        self._rate = rate
        self._bucket: Bucket | None = None
        self._owed = 0
        self._free = 0
        self._given = 0
        """Messages for which it has been given what is free."""

    def pay(self, count: int, given: Callable[[], int], *, now: float) -> float:
        """It has said `count` more frames. 0: it may go on; else how many seconds it is not to be
        heard: then ask again with 0. `given`: messages that its subscriptions were given so far.
        `now`: seconds, monotonic."""
        self._owed += count
        if self._owed < SMALL_CHANGE:
            return 0.0
        if self._rate is None:
            self._owed = 0
            return 0.0
        self._earn(given())
        free = min(self._owed, self._free)
        self._free -= free
        self._owed -= free
        if self._bucket is None:
            self._bucket = Bucket(self._rate)
        wait_s = self._bucket.take(min(self._owed, self._rate.burst), now=now)
        if not wait_s:
            self._owed = max(0, self._owed - self._rate.burst)
        return wait_s

    def _earn(self, given: int) -> None:
        # A subscription that has ended takes its count with it.
        self._given = min(self._given, given)
        self._free = min(FREE_MAX, self._free + FREE_PER_MESSAGE * (given - self._given))
        self._given = given


LARGE_BYTES: Final = 64 * 1024
"""Smaller ones give up behind all that are not."""


class Holder(Protocol):
    """Somebody who holds something incomplete."""

    def give_up(self) -> None:
        """Forget it at once, and say so to the client."""


class Incoming:
    """The incomplete bytes of one gateway."""

    __slots__ = ("_bytes_max", "_large", "_small", "total")

    def __init__(self, bytes_max: int = limits.INCOMPLETE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._large: dict[Holder, int] = {}
        """In the order in which they became large."""
        self._small: dict[Holder, int] = {}
        """In the order in which they began."""
        self.total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` has so many bytes of something incomplete; 0: of nothing. Where all have too
        many, some are told to give up; `holder` may be one of them."""
        if holder in self._large:
            held, before = self._large, self._large[holder]
        else:
            held, before = self._small, self._small.get(holder, 0)
        self.total += size - before
        if not size:
            held.pop(holder, None)
        elif held is self._small and size >= LARGE_BYTES:
            held.pop(holder, None)
            self._large[holder] = size
        else:
            held[holder] = size
        while self.total > self._bytes_max:
            held = self._large or self._small
            oldest = next(iter(held))
            self.total -= held.pop(oldest)
            oldest.give_up()


class FewAtATime:
    """In the order of `add`; `len`: how many wait for their turn."""

    __slots__ = ("_in_this_turn", "_waiting", "per_turn")

    def __init__(self, per_turn: int) -> None:
        self.per_turn = per_turn
        self._in_this_turn = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[[], None]) -> None:
        """It is done at once, or, behind `per_turn` others of this turn of the loop, in one of the
        next. Whose socket is closed meanwhile has to see to that itself."""
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
        for _ in range(self._in_this_turn):
            self._waiting.popleft()()


class Progress:
    """A deadline that counts what moves: over after `patience_s` without a part, and over after
    `patience_s` plus the time that the slowest line needs for the parts so far. Whoever sends a
    byte now and then, to hold a socket for ever, is cut by the second."""

    __slots__ = ("_began_at", "_moved_at", "_size", "patience_s")

    def __init__(self, patience_s: float, *, now: float) -> None:
        self.patience_s: Final = patience_s
        self._began_at = now
        self._moved_at = now
        self._size = 0

    def moved(self, size: int, *, now: float) -> None:
        """A part of this size has arrived."""
        self._size += size
        self._moved_at = now

    def excuse(self, *, now: float) -> None:
        """The time until now does not count: nobody took what the other side had to give."""
        self._began_at += now - self._moved_at
        self._moved_at = now

    @property
    def ends_at(self) -> float:
        """When it is over, if nothing more arrives."""
        paid_s = self._size / limits.SLOWEST_BYTES_PER_S
        return min(self._moved_at, self._began_at + paid_s) + self.patience_s


SLICE_S: Final = 0.005
"""So long an answer is worked at before others have their turn."""


class Slices:
    """Of one answer."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S  # not the loop's clock: that stands while we work

    async def turn(self) -> None:
        """Let others have their turn if it is time; to be called between the parts."""
        if perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_S
