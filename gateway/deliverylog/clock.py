"""The clock of the delivery log: monotonic microseconds in, unix microseconds out. Pure.

What is measured is monotonic: whoever steps the wall clock changes no duration. It becomes unix
time when a line is written, by one sum for all times of the line. When the wall clock has left
that sum behind, it was stepped: the sum follows, and `stepped_us` says by how much in all, so that
times of two lines can still be compared exactly (t - stepped_us).
"""

from typing import Final

STEP_US_MIN: Final = 100_000
"""Less is no step: NTP slews both clocks alike."""
LOOK_US_MAX: Final = 10_000
"""Clocks that were read further apart than this say nothing about each other."""


class Clock:
    """See the module. Made with both clocks, in microseconds, read at the same moment."""

    __slots__ = ("base_us", "stepped_us")

    def __init__(self, *, now_us: int, wall_us: int) -> None:
        self.base_us = wall_us - now_us
        """What makes unix time of monotonic time."""
        self.stepped_us = 0

    def unix_us(self, now_us: int) -> int:
        """Unix time of a monotonic time."""
        return self.base_us + now_us

    def look(self, before_us: int, wall_us: int, after_us: int) -> int:
        """The wall clock was read between these two times. Returns by how much it was stepped; 0:
        it was not, or nobody can tell."""
        step_us = wall_us - self.base_us - before_us
        if after_us - before_us > LOOK_US_MAX or abs(step_us) < STEP_US_MIN:
            return 0
        self.base_us += step_us
        self.stepped_us += step_us
        return step_us
