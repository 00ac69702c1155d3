"""The wall clock of the gateway, and whether it is believed.

What is due is decided by it. After a jump (`push.due.ClockGuard`) nothing is moved for a while, and
messages and changes that name a time are refused, because what is delivered cannot be taken back.
The same holds if the clock of a storage server says something else.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from push.due import DOUBT_S, ClockGuard
from push.errors import Refused

logger = logging.getLogger("tocsin.mover")
AGAIN_S_MAX: Final = 10.0
"""Longest time in seconds after which a client is advised to try again."""


def steady_s() -> float:
    """Return the seconds of a clock that nobody sets, and that counts while the machine sleeps.
    Where there is none (macOS), a sleep may look like a jump."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


# enforces: R32
class BelievedClock:
    """The wall clock. It is looked at about once a second; corrections in between add up."""

    def __init__(self) -> None:
        self.wall: Callable[[], float] = time.time
        """The unix clock, in seconds."""
        self.steady: Callable[[], float] = steady_s
        """A clock in seconds that nobody sets, with which the other one is compared."""
        self._guard: ClockGuard | None = None
        self._has_warned = False

    def now_unix_ms(self) -> int:
        """Return the wall time, in unix milliseconds."""
        return int(self.wall() * 1000)

    def is_believed(self) -> bool:
        """Compare the clocks. Returns whether the wall clock is believed now."""
        if self._guard is None:
            self._guard = ClockGuard(self.wall(), self.steady())
        return self._told(self._guard.look(self.wall(), self.steady()))

    def agrees_with(self, server: int, server_unix_ms: int | None, asked_unix_s: float) -> bool:
        """Compare the clock with a storage server's. `server`: its number, `server_unix_ms`: the
        time by it (None: it has no clock of its own), `asked_unix_s`: the wall time
        when it was asked. Returns whether the wall clock is believed now."""
        if not self.is_believed() or self._guard is None:
            return False
        if server_unix_ms is None:
            return True
        there_s = server_unix_ms / 1000
        asked_s, answered_s = asked_unix_s - there_s, self.wall() - there_s
        return self._told(self._guard.compare(server, asked_s, answered_s, self.steady()))

    def _told(self, is_believed: bool) -> bool:
        if not is_believed and not self._has_warned:
            logger.warning(
                "%s: no message with a time is accepted, and no scheduled message is "
                "delivered, for %.0f s, unless an operator says that the clock is right",
                self.doubt_text(),
                DOUBT_S,
            )
        elif is_believed and self._has_warned:
            logger.warning("scheduled messages are moved again, by the clock as it is now")
        self._has_warned = not is_believed
        return is_believed

    def doubt_text(self) -> str:
        """Say why the clock is not believed, or was not."""
        if self.is_apart:
            return (
                "the difference between the clocks of this gateway and of the store has changed by "
                f"{self.jump_s:.0f} s"
            )
        return f"the clock of this gateway has jumped by {self.jump_s:.0f} s"

    def check(self) -> None:
        """Raise Refused(clock_in_doubt) while the clock is not believed: a time that is judged by
        it, or counted from it, may be wrong by years."""
        if not self.is_believed():
            raise Refused("clock_in_doubt", self.doubt_text(), min(self.doubt_s, AGAIN_S_MAX))

    @property
    def doubt_s(self) -> float:
        """Seconds for which the clock is not believed; 0: it is."""
        return self._guard.doubt_s(self.steady()) if self._guard is not None else 0.0

    @property
    def jump_s(self) -> float:
        """The last jump in seconds, negative if the clock was set back; 0: there was none."""
        return self._guard.jump_s if self._guard is not None else 0.0

    @property
    def is_apart(self) -> bool:
        """Whether the last jump was one between this clock and the one of a storage server."""
        return self._guard is not None and self._guard.is_apart

    @property
    def jumps_total(self) -> int:
        """Number of jumps."""
        return self._guard.jumps if self._guard is not None else 0

    def believe(self) -> None:
        """Believe the clock as it is, because an operator says that it is right."""
        if self._guard is not None:
            self._guard.believe(self.steady())
