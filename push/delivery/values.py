"""Values that a delivery takes and returns, and the counters of a group's deliveries.

Events are counted where they happen, once per push, range or exception, never per message of the
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
    """Number of attempts; 0: without a bound."""
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    park: bool = False
    """Whether a key is parked when attempts are exhausted. Otherwise the message is
    dead-lettered."""
    pulls: bool = False
    """Whether the owner is the virtual consumer of the pulls. Then a key in flight is closed (R24),
    and a delivery counts as an attempt at once (R19)."""


@dataclass(frozen=True, slots=True)
class Before:
    """Facts about the epoch before an owner's own. The owner needs them to adopt deliveries of that
    epoch, if it owned that one, too (R22)."""

    epoch: int | None
    """The number of that epoch; None: its owner was another one."""
    floor: int
    has_sides: bool
    """Whether there are side lines: an offset that the cursor has passed may be in one,
    unsettled."""


@dataclass(slots=True)
class Judged:
    """Result of an ack, nack or extend, as ranges of offsets (R21)."""

    settled: list[Range] = field(default_factory=list)
    """Ranges that an ack settled, or on which a nack or extend took effect."""
    stale: list[Range] = field(default_factory=list)
    not_delivered: list[Range] = field(default_factory=list)
    again: list[Range] = field(default_factory=list, compare=False)
    """Part of `settled` that had been settled before, and is only reported as settled."""


@dataclass(slots=True)
class Notices:
    """Events of a delivery that other parts of the gateway wait for."""

    dying: list[Dead] = field(default_factory=list)
    """Ranges that go to the dead letters, durably. No key waits for them any more."""
    parked: list[int] = field(default_factory=list)
    """Heads of keys that were parked."""
    opened: list[int] = field(default_factory=list)
    """Keys that were durably unparked."""
    dropped: list[int] = field(default_factory=list)
    """Keys about which a decision was not made, because the head is another one."""


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
    """Counters of a group's deliveries, which only grow. No decision depends on them."""

    given: int = 0
    """Number of deliveries: a message counts each time that it is handed to a consumer."""
    redelivered: int = 0
    """Part of `given` that the owner knew to have been given before: after a nack or an ended
    lease, or because an earlier owner had noted an attempt."""
    settled: int = 0
    """Messages settled by an ack that took effect; the same ack again is not counted."""
    nacked: int = 0
    rejected: int = 0
    """Part of `nacked` whose nacks said that no further attempt can help."""
    expired: int = 0
    """Leases that ended by time, their own or a drain's. Deliveries that were revoked with them are
    not counted."""
    dead_lettered: int = 0
    """Messages durably in the dead letters, whatever the reason."""
    parked: int = 0
    """Number of parkings: a key counts each time that it is parked."""
    dispatch_s: Histogram = field(default_factory=Histogram)
    """Time from certified to handed to a consumer, of deliveries for which no attempt had counted
    before."""
    settle_s: Histogram = field(default_factory=Histogram)
    """Time from handed to a consumer to settled by its ack."""

    def gave(self, count: int, waited_s: float, *, is_first: bool) -> None:
        """Count messages that were handed out, and the time since they were certified. `is_first`:
        no attempt of theirs had counted before."""
        self.given += count
        if is_first:
            self.dispatch_s.add(waited_s, count)

    def merge(self, other: "Tally") -> None:
        """Add the counts of another one."""
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
"""Names of the counters of a `Tally` that are plain numbers."""
