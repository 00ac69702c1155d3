"""What a group's deliveries have come to, counted since the process began: for looking at.

Counted where a thing happens, once per push, range or exception, never per message of the ordinary
case. The deliveries of a group share one, from epoch to epoch.
"""

from dataclasses import dataclass, field
from typing import Final

from push.histogram import Histogram


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
        """So many messages were handed out, so long after they were certified. `is_first`: they had
        not been tried before."""
        self.given += count
        if is_first:
            self.dispatch_s.add(waited_s, count)

    def merge(self, other: "Tally") -> None:
        """Add what another one has counted."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dispatch_s.merge(other.dispatch_s)
        self.settle_s.merge(other.settle_s)


COUNTED: Final = (
    "given", "redelivered", "settled", "nacked", "rejected", "expired", "dead_lettered",
    "parked",
)  # fmt: skip
"""Its plain counters."""
