"""When the messages of a commit passed each stage of publishing.

Kept with the record as long as it is in memory, because a time that was not taken cannot be asked
for later: who is given the record at once learns how long it took (`gateway.deliverylog`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stages:
    """Monotonic microseconds of this process. One for all records of a commit, and named by its
    identity."""

    asked_us: int
    """When it was handed to the storage."""
    certified_us: int
    """When the storage said so."""
