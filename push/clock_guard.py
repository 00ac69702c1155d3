"""Guard of a wall clock by which something irrevocable is decided: what is due. Pure.

A wall clock may be set. If the year jumps ahead, everything that was scheduled would be delivered
at once, and nothing takes it back. So the clock is compared with one that nobody can set. After a
jump it is not believed for a while, in which an operator can set it right, or say that it is right
now. Slow corrections, as NTP makes them, are no jump.
"""

from typing import Final

JUMP_S: Final = 60.0
"""A change of the clock, in seconds since the last look, above which it is not believed for
DOUBT_S."""
DOUBT_S: Final = 300.0


# enforces: R32
class ClockGuard:
    """Judge of one wall clock. `monotonic_s`: seconds of a clock that is never set, such as the
    event loop's; all calls name its present time. `unix_s`: seconds of the wall clock."""

    def __init__(self, unix_s: float, monotonic_s: float) -> None:
        self._lead_s = unix_s - monotonic_s
        self._until_s = float("-inf")
        self.jumps = 0
        """Number of jumps so far."""
        self.jump_s = 0.0
        """The last jump, in seconds; negative: the clock was set back."""

    def look(self, unix_s: float, monotonic_s: float) -> bool:
        """Compare the two clocks. Returns whether the wall clock is believed now. Called at least
        once in a few seconds, because slow corrections add up."""
        jump_s = unix_s - monotonic_s - self._lead_s
        self._lead_s += jump_s
        if abs(jump_s) > JUMP_S:
            self.jumps += 1
            self.jump_s = jump_s
            self._until_s = monotonic_s + DOUBT_S
        return monotonic_s >= self._until_s

    def doubt_s(self, monotonic_s: float) -> float:
        """Return for how many seconds more the clock is not believed; 0: it is."""
        return max(0.0, self._until_s - monotonic_s)

    def believe(self, monotonic_s: float) -> None:
        """Believe the clock as it is, because an operator says that it is right."""
        self._until_s = min(self._until_s, monotonic_s)
