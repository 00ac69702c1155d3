"""The values that delivery takes and returns."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from push.ranges import Range


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """What a group and its queue say about delivery. Durations in seconds."""

    lease_s: float = 30.0
    lease_total_s: float = 3600.0
    attempts_max: int = 5
    """0: without end."""
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    park: bool = False
    """What happens when attempts are exhausted: park the key, or dead-letter the message."""
    pulls: bool = False
    """The owner is the virtual consumer of the pulls: a key in flight is closed (R24), and a
    delivery counts as an attempt at once (R19)."""


@dataclass(frozen=True, slots=True)
class Before:
    """What an owner knows of the epoch before its own, for what is adopted from it (R22)."""

    epoch: int | None
    """None: that was not this owner's."""
    floor: int
    has_sides: bool
    """Whether there are side lines: what the cursor has passed may stand in one, unsettled."""


@dataclass(frozen=True, slots=True)
class GiveOut:
    """A push to send: offsets first..last of the record that was handed in, but for `skips`."""

    push: int
    first: int
    last: int
    attempt: int
    skips: tuple[int, ...] = ()
    """Ascending, between first and last: what waits, or was settled before."""

    @property
    def count(self) -> int:
        """How many messages it has."""
        return self.last - self.first + 1 - len(self.skips)

    def offsets(self) -> Iterable[int]:
        """Their offsets, in order."""
        whole = range(self.first, self.last + 1)
        if not self.skips:
            return whole
        skips = set(self.skips)
        return [offset for offset in whole if offset not in skips]


@dataclass(slots=True)
class Judged:
    """What became of an ack, nack or extend, as ranges of offsets (R21)."""

    settled: list[Range] = field(default_factory=list)
    """Of a nack or extend: what it took effect on."""
    stale: list[Range] = field(default_factory=list)
    not_delivered: list[Range] = field(default_factory=list)
    again: list[Range] = field(default_factory=list, compare=False)
    """Of `settled`: what had been settled before, and is only said to be."""


Taken = tuple[int, int]
"""(push, offset): a delivery that the consumer no longer holds."""


def append_offset(ranges: list[Range], offset: int) -> None:
    """Add an offset that follows all of `ranges`."""
    if ranges and ranges[-1][1] == offset - 1:
        ranges[-1] = (ranges[-1][0], offset)
    else:
        ranges.append((offset, offset))
