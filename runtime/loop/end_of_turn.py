"""Run work at the end of the current callback of the event loop, and at deadlines.

Each turn of the loop looks at all sockets, and with many of them that takes milliseconds. So the
consequences of a commit (its receipts, its pushes, the writing of both) do not take a turn each.
They are collected while the commit is answered, and run at the end of that same callback. Outside
of such a block they run in the next turn. Work that is added while work runs is left for the next
turn, so that a backlog starves nobody.

`call_guarded` is for callbacks of several owners: a bug in one is reported, and the others have
their turn.

`Deadlines` is one timer for all partitions: leases, backoffs and drains that end by time alone.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import ParamSpec, Protocol
from weakref import ref

Work = Callable[[], None]
_P = ParamSpec("_P")


def report_bug(error: BaseException) -> None:
    """Report an unexpected error like that of any callback of the running loop."""
    asyncio.get_running_loop().call_exception_handler({"message": "unexpected", "exception": error})


def call_guarded(work: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call `work` with these arguments. An Exception is reported, and not raised."""
    try:
        work(*args, **kwargs)
    except Exception as error:
        report_bug(error)


class EndOfTurn:
    """Callbacks that run together. As a context manager: callbacks that are added within the block
    run at its end; others run in the next turn of the event loop."""

    __slots__ = ("_depth", "_has_turn", "_is_running", "_last", "_next_turn", "_work")

    def __init__(self) -> None:
        self._work: list[Work] = []
        self._next_turn: list[Work] = []
        """Callbacks that were added by `call` while others ran; they run in the next turn."""
        self._last: list[Work] = []
        self._depth = 0
        self._is_running = False
        self._has_turn = False

    def call(self, work: Work) -> None:
        """Have `work` called at the end of the block, in the order of the calls. Outside of a
        block, or from work that runs, it is called in the next turn."""
        (self._next_turn if self._is_running else self._work).append(work)
        self._ask()

    def call_last(self, work: Work) -> None:
        """Have `work` called like by `call`, but after everything that was given to `call` and runs
        at the same time."""
        self._last.append(work)
        self._ask()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and (self._work or self._last):
            self._run()

    def _ask(self) -> None:
        if not (self._depth or self._is_running or self._has_turn):
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._work[:0] = self._next_turn
        self._next_turn = []
        self._run()

    def _run(self) -> None:
        """Call everything. An error is reported like that of any callback, and stops no other
        work."""
        self._is_running = True
        try:
            for is_last in (False, True):
                if is_last:
                    works, self._last = self._last, []
                else:
                    works, self._work = self._work, []
                for work in works:
                    try:
                        work()
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        report_bug(error)
        finally:
            self._is_running = False
            if self._next_turn or self._last:
                self._ask()


class Timed(Protocol):
    """An object with a next deadline (loop time), at which it acts. `Deadlines` keeps only a weak
    reference, so that nothing stays in memory for a lease's 30 s because of it alone."""

    scheduled: float
    """Earliest time in the heap of `Deadlines`, which sets it; infinity if the object is not in the
    heap."""

    def tick(self) -> None:
        """React to the deadline; `Deadlines.set` must be called again for the next one."""


class Deadlines:
    """A heap of deadlines behind one timer handle."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ref[Timed]]] = []
        self._count = count()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, timed: Timed, at: float | None) -> None:
        """Have `timed.tick` called at `at` (loop time) at the latest; None: nothing changes. An
        earlier tick that is set already stays, and `timed` calls `set` again from there."""
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
            self._arm()  # also after a bug, because the others' time has come

    def close(self) -> None:
        """Forget all deadlines, so that nothing ticks any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()
