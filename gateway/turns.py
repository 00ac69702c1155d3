"""So many pieces of work in one turn of the event loop; what is more waits for the next ones.

A burst of a thousand handshakes is a fifth of a second of work, and they are there in one turn of
the loop: without this, who is in the middle of something would wait for all of them (P9).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

ARRIVALS_PER_TURN: Final = 1
"""Handshakes, requests that begin, and those that were too slow: less than half a millisecond's
work. A message needs the loop a dozen times until it is there, and comes that much later twelve
times."""


class Turns:
    """See the module."""

    __slots__ = ("_at_once", "_is_counting", "_left", "_waiting")

    def __init__(self, at_once: int = ARRIVALS_PER_TURN) -> None:
        self._at_once = at_once
        self._left = at_once
        self._is_counting = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, work: Callable[[], None]) -> bool:
        """Do it now (True), or, where this turn has had its share, in one of the next, in the order
        of asking (False). Whose socket is lost meanwhile does nothing then."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._left and not self._waiting:
            self._left -= 1
            work()
            return True
        self._waiting.append(work)
        return False

    def _next(self) -> None:
        """The next turn."""
        self._left = self._at_once
        self._is_counting = bool(self._waiting)
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._next)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
