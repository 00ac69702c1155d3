"""One timer for all slots: leases, backoffs and drains that end by time alone."""

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import Protocol
from weakref import ref


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
