"""What happens to many sockets at once happens to a few of them in each turn of the event loop, so
that others are heard in between (P9)."""

import asyncio
from collections import deque
from collections.abc import Callable


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
