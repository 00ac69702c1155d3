"""A histogram of durations with a bounded relative error, in log-linear buckets as in HDR.

A value below 128 has a bucket of its own. Above, every power of two is cut into 64 equal buckets.
So a percentile is at most 1/64 (1.6 %) above the exact value, and any number of values takes 19
kilobytes.
"""

from array import array
from collections.abc import Iterable
from typing import Final, Self

_SUB_BITS: Final = 6
_SUB: Final = 1 << _SUB_BITS
_LINEAR: Final = 2 * _SUB
VALUE_MAX: Final = (1 << 42) - 1
"""The largest value that a histogram distinguishes; in nanoseconds, 73 minutes. Larger values count
as this one."""


def _index(value: int) -> int:
    if value < _LINEAR:
        return value
    shift = value.bit_length() - _SUB_BITS - 1
    return (shift << _SUB_BITS) + (value >> shift)


def _highest(index: int) -> int:
    """Return the largest value that falls into this bucket."""
    if index < _LINEAR:
        return index
    shift = (index >> _SUB_BITS) - 1
    return ((index - (shift << _SUB_BITS) + 1) << shift) - 1


_BUCKETS: Final = _index(VALUE_MAX) + 1


class Histogram:
    """Counts of non-negative integers, in any unit; the load tests use nanoseconds."""

    __slots__ = ("_counts", "count", "maximum", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.total = 0
        self.maximum = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count `value`, `times` times. A negative one counts as 0, a huge one as VALUE_MAX."""
        value = min(max(value, 0), VALUE_MAX)
        self._counts[_index(value)] += times
        self.count += times
        self.total += value * times
        self.maximum = max(self.maximum, value)

    def percentile(self, percent: float) -> int:
        """Return the value that `percent` of all values do not exceed, or at most 1.6 % more; 0
        when nothing was recorded."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not {percent}")
        rank = max(1, -int(-self.count * percent // 100))  # rounded up: the rank-th value counts
        seen = 0
        for index, times in enumerate(self._counts):
            seen += times
            if seen >= rank:
                return min(_highest(index), self.maximum)
        return 0

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        for index, times in enumerate(other._counts):
            if times:
                self._counts[index] += times
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def buckets(self) -> list[tuple[int, int]]:
        """Return (largest value, count) of each bucket that is not empty, in order. Another process
        passes them to `of`."""
        return [(_highest(index), times) for index, times in enumerate(self._counts) if times]

    @classmethod
    def of(cls, buckets: Iterable[tuple[int, int]], total: int, maximum: int) -> Self:
        """Build a histogram from `buckets`, `total` and `maximum` of another one."""
        made = cls()
        for highest, times in buckets:
            made._counts[_index(highest)] += times
            made.count += times
        made.total, made.maximum = total, maximum
        return made

    def clear(self) -> None:
        """Drop all counts."""
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = self.total = self.maximum = 0
