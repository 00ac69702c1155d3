"""Values that a delivery takes and returns, and the counters of a group's deliveries.

Counters count where a thing happens, once per push, range or exception, never per message of the
ordinary case. The deliveries of a group share one `Tally`, from epoch to epoch.
"""

from dataclasses import dataclass, field
from typing import Final

from push.histogram import Histogram
from push.ranges import Dead, Range


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of a group and its queue for delivery. Durations in seconds."""

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
    """The epoch before an owner's own, for deliveries that are adopted from it (R22)."""

    epoch: int | None
    """None: that was not this owner's."""
    floor: int
    has_sides: bool
    """Whether there are side lines: what the cursor has passed may stand in one, unsettled."""


@dataclass(slots=True)
class Judged:
    """Result of an ack, nack or extend, as ranges of offsets (R21)."""

    settled: list[Range] = field(default_factory=list)
    """Of a nack or extend: what it took effect on."""
    stale: list[Range] = field(default_factory=list)
    not_delivered: list[Range] = field(default_factory=list)
    again: list[Range] = field(default_factory=list, compare=False)
    """Of `settled`: what had been settled before, and is only said to be."""


@dataclass(slots=True)
class Notices:
    """Events of a delivery that others want to know of."""

    dying: list[Dead] = field(default_factory=list)
    """Ranges that go to the dead letters, durably: no key waits for them any more."""
    parked: list[int] = field(default_factory=list)
    """Heads of keys that were parked."""
    opened: list[int] = field(default_factory=list)
    """Keys that were durably unparked."""
    dropped: list[int] = field(default_factory=list)
    """Keys of which a decision was not made, since the head is another one."""


Taken = tuple[int, int]
"""(push, offset): a delivery that the consumer no longer holds."""


def append_offset(ranges: list[Range], offset: int) -> None:
    """Add an offset that follows all of `ranges`."""
    if ranges and ranges[-1][1] == offset - 1:
        ranges[-1] = (ranges[-1][0], offset)
    else:
        ranges.append((offset, offset))


@dataclass(slots=True)
class Tally:
    """Monotonic counters of messages. Nothing is ever decided by them."""

    given: int = 0
    """Handed to a consumer, each time it was."""
    redelivered: int = 0
    """Of these, what its owner knew to have been given before: after a nack or an ended lease, or
    with an attempt that an owner before has noted."""
    settled: int = 0
    """By an ack that took effect; the same ack again is not counted again."""
    nacked: int = 0
    rejected: int = 0
    """Of these, by nacks that said that no further attempt can help."""
    expired: int = 0
    """Leases that ended by time, their own or a drain's. What was revoked with them is not
    counted."""
    dead_lettered: int = 0
    """Durably, whatever the reason."""
    parked: int = 0
    """Keys, each time one was parked."""
    dispatch_s: Histogram = field(default_factory=Histogram)
    """From certified to handed to a consumer, of what was handed out for the first time."""
    settle_s: Histogram = field(default_factory=Histogram)
    """From handed to a consumer to settled by its ack."""

    def gave(self, count: int, waited_s: float, *, is_first: bool) -> None:
        """Count messages that were handed out, and how long after they were certified. `is_first`:
        they had not been tried before."""
        self.given += count
        if is_first:
            self.dispatch_s.add(waited_s, count)

    def merge(self, other: "Tally") -> None:
        """Add another one's counts."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dispatch_s.merge(other.dispatch_s)
        self.settle_s.merge(other.settle_s)


COUNTED: Final = (
    "given",
    "redelivered",
    "settled",
    "nacked",
    "rejected",
    "expired",
    "dead_lettered",
    "parked",
)
"""Its plain counters."""
