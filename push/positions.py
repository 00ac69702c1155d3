"""Readers' positions, and the truth about them (R26, P10).

A client keeps its position. That is the next offset that it wants of each partition, with the
generation of the log in which that offset has a meaning. The client learns one of three things of
each. Reading goes on where it was, or some of the wanted messages are no longer retained, or the
position belongs to another history than this one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from push.storage_port import PartitionState


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A reader's place in one partition: the next offset it wants, in this generation (R2)."""

    generation: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """A reader's place in a queue: one place per partition number.

    `queue_id` outlives no queue (R1); `ring_epoch` says which partitions there were (R27).
    """

    queue_id: str
    ring_epoch: int
    partitions: Mapping[int, PartitionPosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Nothing was missed, and reading goes on at `next_offset`."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Wanted offsets first..last that are no longer retained. Reading goes on at last + 1."""

    first: int
    last: int

    @property
    def next_offset(self) -> int:
        """The offset at which reading goes on."""
        return self.last + 1


@dataclass(frozen=True, slots=True)
class UnknownPosition:
    """Verdict on a position of another queue or history: what was missed is not known. `reason` is
    for people."""

    reason: str


Verdict = Resumed | Gap | UnknownPosition


# enforces: P10, R2, R26
def verdict(place: PartitionPosition, state: PartitionState) -> Verdict:
    """Return the truth about one place, given the partition as it is now.

    A place beyond the certified end is of this history if the log reaches so far. The reader had it
    from a primary that was lost since, and it will be certified again (R10).
    """
    if place.generation != state.generation:
        return UnknownPosition(
            f"the log is of generation {state.generation}, the position of {place.generation}"
        )
    if place.next_offset > state.end:
        return UnknownPosition(f"the log ends at {state.end}, the position is {place.next_offset}")
    if place.next_offset < state.start:
        return Gap(place.next_offset, state.start - 1)
    return Resumed(place.next_offset)


# enforces: R1, R26
def verdicts(
    position: ReadPosition, ring_epoch: int, states: Iterable[PartitionState]
) -> dict[int, Verdict]:
    """Return the truth about a position, for each partition that the queue has now.

    `ring_epoch` is the queue's; a position of a later one comes from a history that was rolled
    back. A partition that the position does not name is unknown too, because it may have been added
    since, or left out. Places of partitions that the queue does not have are passed over.
    """
    answer: dict[int, Verdict] = {}
    for state in states:
        place = position.partitions.get(state.partition.number)
        if position.queue_id != state.partition.queue_id:
            answer[state.partition.number] = UnknownPosition("the position is of another queue")
        elif position.ring_epoch > ring_epoch:
            answer[state.partition.number] = UnknownPosition("the position is of a later ring")
        elif place is None:
            answer[state.partition.number] = UnknownPosition("the position lacks this partition")
        else:
            answer[state.partition.number] = verdict(place, state)
    return answer


def overtaken(next_offset: int, available: int) -> Gap | None:
    """Return the gap that opened in the middle of a stream; None: there is none.

    `available` is the first offset that can still be given at or after `next_offset`: the first one
    of the next record, or the partition's start if a read brought nothing. Records are deleted one
    by one (R12, R30), so a gap can open after the start as well.
    """
    return Gap(next_offset, available - 1) if available > next_offset else None
