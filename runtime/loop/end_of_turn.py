"""What happens when the present callback of the event loop has ended: pumps, then what they and
others have to write.

Each turn of the loop looks at all sockets in between, and beside a crowd that is milliseconds. So
what follows from a commit (its receipts, its pushes, the writing of both) does not take a turn
each: it is collected while the commit is answered, and done at the end of that same callback.
Outside of such a block it is done in the next turn. What it asks for itself has the turn behind
that one, so that a backlog starves nobody, however many commits are answered in this one.

One timer for all slots: leases, backoffs and drains that end by time alone.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol
from weakref import ref

Work = Callable[[], None]


class Soon:
    """Of one event loop. As a context manager: what is asked for within is done at its end."""

    __slots__ = ("_behind", "_depth", "_has_turn", "_is_doing", "_last", "_work")

    def __init__(self) -> None:
        self._work: list[Work] = []
        self._behind: list[Work] = []
        """What was asked for by what was done: the next turn's."""
        self._last: list[Work] = []
        self._depth = 0
        self._is_doing = False
        self._has_turn = False

    def call(self, work: Work) -> None:
        """In the order of asking."""
        (self._behind if self._is_doing else self._work).append(work)
        self._ask()

    def call_last(self, work: Work) -> None:
        """The same, behind everything that `call` was asked for."""
        self._last.append(work)
        self._ask()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and (self._work or self._last):
            self._do()

    def _ask(self) -> None:
        if not (self._depth or self._is_doing or self._has_turn):
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._work[:0] = self._behind
        self._behind = []
        self._do()

    def _do(self) -> None:
        self._is_doing = True
        try:
            work, self._work = self._work, []
            for one in work:
                _do_alone(one)
            last, self._last = self._last, []
            for one in last:
                _do_alone(one)
        finally:
            self._is_doing = False
            if self._behind or self._last:
                self._ask()


def _do_alone(work: Work) -> None:
    """What it raises is told, as of any callback of the loop, and is nobody else's."""
    try:
        work()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "unexpected", "exception": error})


class Timed(Protocol):
    """Something that has a next deadline (loop time), and something to do then. Its deadline does
    not keep it: who has left nothing behind is not to stay for a lease's 30 s."""

    scheduled: float
    """When it stands in the heap next; infinity: it does not. Kept by Deadlines."""

    def tick(self) -> None:
        """Time has come; the next deadline is asked for by `Deadlines.set` again."""


class Deadlines:
    """A heap of deadlines behind one timer handle."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ref[Timed]]] = []
        self._count = count()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, timed: Timed, at: float | None) -> None:
        """Tick `timed` at `at` at the latest. An earlier tick that stands already stays: it asks
        again."""
        if at is None or at >= timed.scheduled:
            return
        timed.scheduled = at
        number = next(self._count)
        heappush(self._heap, (at, number, ref(timed)))
        if self._heap[0][1] == number:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._heap[0][0], self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            while self._heap and self._heap[0][0] <= now:
                at, _, held = heappop(self._heap)
                timed = held()
                if timed is not None and timed.scheduled == at:
                    timed.scheduled = float("inf")
                    timed.tick()
        finally:
            self._timer = None
            self._arm()  # also behind a bug: the others' time has come

    def close(self) -> None:
        """Nothing ticks any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()
