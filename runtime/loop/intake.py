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
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

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
