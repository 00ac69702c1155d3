"""Arrivals fill the gaps: one begins when the event loop has nothing else to do, or when it has
waited for long enough.

A burst of a thousand handshakes is a fifth of a second of work, a client that asks one thing after
another keeps a core busy, and a message needs several turns of the loop until it is there: with
one arrival in each of them it would come several arrivals later. So who begins waits until a
turn of the loop had nothing else in it, and who is in the middle of something goes on (P9). Where
the loop is never free, one arrival begins in each PAUSE_S.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

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
