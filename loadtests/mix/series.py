"""A quantity over the time of a run, as a histogram for every few seconds. Pure."""

from typing import Final

from loadtests.histogram import Histogram

SLOT_S: Final = 5
"""A run of five minutes has 60 points, of which each rests on thousands of messages."""
_SLOT_NS: Final = SLOT_S * 1_000_000_000


class Series:
    """Durations in nanoseconds, by the slot of SLOT_S seconds in which they ended."""

    def __init__(self) -> None:
        self.slots: dict[int, Histogram] = {}

    def record(self, at_ns: int, value: int) -> None:
        """At a time since the run's beginning; what was before it counts as its beginning."""
        slot = max(0, at_ns // _SLOT_NS)
        if slot not in self.slots:
            self.slots[slot] = Histogram()
        self.slots[slot].record(value)

    def add(self, other: "Series") -> None:
        """Take over what another one has."""
        for slot, histogram in other.slots.items():
            self.slots.setdefault(slot, Histogram()).add(histogram)

    def points(self, percent: float) -> list[tuple[float, float]]:
        """(seconds since the beginning, milliseconds), in the order of time."""
        return [
            ((slot + 0.5) * SLOT_S, self.slots[slot].percentile(percent) / 1e6)
            for slot in sorted(self.slots)
        ]

    def rates(self) -> list[tuple[float, float]]:
        """(seconds since the beginning, how many a second), without the last slot: it is not over.
        A slot in which there was nothing is 0."""
        if not self.slots:
            return []
        return [
            ((slot + 0.5) * SLOT_S, (self.slots[slot].count if slot in self.slots else 0) / SLOT_S)
            for slot in range(max(self.slots))
        ]
