"""What a group's deliveries have come to, counted since the process began: for looking at.

Counted where a thing happens, once per push, range or exception, never per message of the ordinary
case. The deliveries of a group share one, from epoch to epoch.
"""

from dataclasses import dataclass


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
    expired: int = 0
    """Leases that ended by time, their own or a drain's. What was revoked with them is not
    counted."""
    dead_lettered: int = 0
    """Durably, whatever the reason."""
    parked: int = 0
    """Keys, each time one was parked."""
