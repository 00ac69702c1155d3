"""Distributions of values as counts by bucket, for metrics. Pure. No decision depends on them.

Values are counted where a thing ends, once per record, range or commit, with its number of
messages. That is a look-up in a short tuple and three additions (scripts/metrics_cost.py says what
that costs), without a lock or an object. Readers see the numbers as they are.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper ends of buckets, from less than any disk takes to leases and backlogs."""
MESSAGES: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)


class Histogram:
    """Values by bucket: `counts[i]` are those above `bounds[i - 1]` and not above `bounds[i]`, the
    last one those above all bounds. `total` is the sum of the values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, sum {self.total:g}>"

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value `count` times. A value below 0, which a clock that was set back makes,
        counts as 0."""
        value = max(value, 0.0)
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another one, which has the same bounds."""
        assert self.bounds == other.bounds
        for place, count in enumerate(other.counts):
            self.counts[place] += count
        self.total += other.total


class Took(NamedTuple):
    """Durations of one kind of act that writing waits for, since the process began."""

    what: Literal["fsync", "copies"]
    """The kind: a transaction's COMMIT with its fsync, or a group of acts with the WAIT after
    it."""
    level: str
    """The durability level of the acts; "": of all levels."""
    place: str
    """The server of the store; "": there is only one."""
    seconds: Histogram
