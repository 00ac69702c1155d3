"""When Python's garbage collector runs: by the clock, and never for more than a share of the time.

By itself it runs when some more objects were made than freed since it ran last, and looks at all
that were made since then and live. Where as many are freed as are made that never comes, or comes
after minutes, and then everybody waits for a look at hundreds of thousands of objects: 50 ms, when
a thousand clients had taken each other's places. So it is told when to look. What is new is looked
at often, so that there is little of it each time: more often where much is new, for under load that
never ends most of what is new is only on its way, and gone a moment later. Everything is looked at
rarely, and more rarely as long as nothing is found, for hardly anything here refers to itself in a
circle.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final

YOUNG: Final = 0
ALL: Final = 2
YOUNG_EVERY_S: Final = 0.05
NEW_MIN: Final = 5000
"""So many more objects were made than freed since what is new was looked at: it is looked at again.
That takes 1 to 2 ms, in which everybody waits."""
YOUNG_EVERY_S_MAX: Final = 0.25
"""And whatever they were: freed were others than were made, perhaps."""
YOUNG_SHARE: Final = 1 / 10
"""Of the time, for looking at what is new."""
ALL_EVERY_S: Final = 60.0
ALL_EVERY_S_MAX: Final = 600.0
ALL_SHARE: Final = 1 / 500
_LATE_S: Final = 0.001
"""Timers of the loop count in milliseconds and may come a little early: who asks again at once
then asks sixty times until it is time."""
FOUND_MIN: Final = 1000
"""So many objects make a look at everything worth its while: the next one comes as soon as it may.
Else it takes twice as long to come as the last time."""


class Rounds:
    """Which look is due. Pure; times are seconds, monotonic."""

    def __init__(self, *, now: float) -> None:
        self._young_at = now + YOUNG_EVERY_S
        self._young_by = now + YOUNG_EVERY_S_MAX
        self._all_at = now + ALL_EVERY_S
        self._all_every_s = ALL_EVERY_S

    def due(self, new: int, *, now: float) -> int | None:
        """YOUNG, ALL, or None: nothing yet. So many more objects were made than freed since the
        last look."""
        if now >= self._all_at:
            return ALL
        if now < self._young_at:
            return None
        if new >= NEW_MIN or now >= self._young_by:
            return YOUNG
        self._young_at = min(now + YOUNG_EVERY_S, self._young_by)
        return None

    def next_at(self) -> float:
        """When to ask again."""
        return min(self._young_at, self._all_at)

    def took(self, generation: int, seconds: float, found: int, *, now: float) -> None:
        """A look took so long, ended `now`, and found so many objects that nobody held."""
        young_at = now + max(YOUNG_EVERY_S, seconds / YOUNG_SHARE)
        self._young_at = max(self._young_at, young_at)
        self._young_by = max(self._young_at, now + YOUNG_EVERY_S_MAX)
        if generation == ALL:
            self._all_every_s = (
                ALL_EVERY_S if found >= FOUND_MIN else min(2 * self._all_every_s, ALL_EVERY_S_MAX)
            )
            self._all_at = now + max(self._all_every_s, seconds / ALL_SHARE)


class Collector:
    """Looks on the event loop of one process. `collect` as gc.collect."""

    def __init__(self, collect: Callable[[int], int] = gc.collect) -> None:
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on Python's own times count for nothing. What is loaded by now stays: code, the
        catalog, the ring. Frozen, it is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        loop = asyncio.get_running_loop()
        rounds = Rounds(now=loop.time())
        self._timer = loop.call_at(rounds.next_at() + _LATE_S, self._look, rounds)

    def stop(self) -> None:
        """Python's own times count again. Not started: nothing happens."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.enable()
            gc.unfreeze()

    def _look(self, rounds: Rounds) -> None:
        loop = asyncio.get_running_loop()
        generation = rounds.due(gc.get_count()[YOUNG], now=loop.time())
        if generation is not None:
            began = time.perf_counter()
            found = self._collect(generation)
            seconds = time.perf_counter() - began
            rounds.took(generation, seconds, found, now=loop.time() + seconds)
        self._timer = loop.call_at(rounds.next_at() + _LATE_S, self._look, rounds)
