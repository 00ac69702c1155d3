"""On which storage clusters a new queue's partitions are placed. Pure.

A queue is spread over all clusters that take new partitions, zone by zone: what is lost with one of
them is part of each queue, and not all of some. Where one has more room than others it takes more.
Nothing new goes to a cluster that is overheated or away. Where all are overheated the queue is made
all the same, where there is most room: an empty queue takes none, dead letters need theirs made at
any time, and publishing stops by itself below the reserve (R29). Where none answers it is refused.

The same facts and queue give the same places, whoever computes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from typing import Final, Literal

from push.errors import Refused

State = Literal["well", "hot", "away"]
"""Takes new partitions; has too little room left; does not answer."""
USED_UNKNOWN: Final = 0.5
"""What is reckoned with of a cluster that nobody has looked at yet."""
FREE_MIN: Final = 0.01
CYCLE_MAX: Final = 32
"""Places in a queue's row; its partitions go through them in turn."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A storage cluster, as far as it is known. `zone`: what is in one may be lost together, "":
    nobody said; `used_share`: of its memory, None: unknown."""

    name: str
    zone: str = ""
    used_share: float | None = None
    state: State = "well"

    @property
    def free_share(self) -> float:
        """More than nothing, so that shares of it can be compared."""
        used = USED_UNKNOWN if self.used_share is None else self.used_share
        return max(FREE_MIN, 1 - used)


def place(
    queue_id: str, partitions: int, candidates: Sequence[Candidate], *, is_bounded: bool
) -> tuple[str, ...]:
    """The names that the queue's partitions go through in turn: as short a list as says it all.

    `is_bounded`: what the queue retains has a bound at which publishing is refused; then all of it
    is at one cluster, which alone can count it exactly.

    Raises:
        Refused: storage_unavailable: no cluster answers.
    """
    usable = [one for one in candidates if one.state == "well"]
    usable = usable or [one for one in candidates if one.state == "hot"]
    if not usable:
        raise Refused("storage_unavailable", "no storage cluster answers that could take the queue")
    order = _order(queue_id, usable)
    if is_bounded:
        return (order[0].name,)
    counts = dict.fromkeys(order, 0)
    cycle: list[str] = []
    for number in range(min(partitions, CYCLE_MAX)):
        if number < len(order):
            taken = order[number]
        else:  # the highest quotient, as D'Hondt shares out seats
            taken = max(order, key=lambda one: one.free_share / (counts[one] + 1))
        counts[taken] += 1
        cycle.append(taken.name)
    return _period(cycle)


def _order(queue_id: str, usable: Sequence[Candidate]) -> list[Candidate]:
    """Who comes first with this queue: by chance, more often who has more room, and one of every
    zone before the second of any."""
    raced = sorted(usable, key=lambda one: (_race(queue_id, one), one.name))
    in_zone: dict[str, int] = {}
    ranks: list[tuple[int, int, Candidate]] = []
    for place_in_race, one in enumerate(raced):
        zone = one.zone or f"-{one.name}"  # of which nobody said: it is one of its own
        ranks.append((in_zone.get(zone, 0), place_in_race, one))
        in_zone[zone] = in_zone.get(zone, 0) + 1
    return [one for _, _, one in sorted(ranks, key=lambda rank: rank[:2])]


def _race(queue_id: str, one: Candidate) -> float:
    """The first of several such times is each one's as often as its share of the room says, and
    the first of a zone's as its clusters' shares together: exponential waiting times."""
    digest = blake2b(f"{queue_id}:{one.name}".encode(), digest_size=8).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -log(drawn) / one.free_share


def _period(cycle: Sequence[str]) -> tuple[str, ...]:
    """The shortest list that, repeated, is this one."""
    for length in range(1, len(cycle)):
        if len(cycle) % length == 0 and all(
            cycle[place] == cycle[place % length] for place in range(len(cycle))
        ):
            return tuple(cycle[:length])
    return tuple(cycle)
