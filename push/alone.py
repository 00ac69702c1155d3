"""What a group alone still keeps: the messages that go when it lets them.

A message stays while a group has not settled it. What stands in a side line is passed and not
settled, nor is what is on its way to the dead letters.
"""

from collections.abc import Iterable, Sequence

from push.ports import Cursor
from push.ranges import RangeSet


def settled_of(cursor: Cursor, aside: Iterable[int]) -> RangeSet:
    """The offsets that a group has settled. `aside`: those that stand in its side lines."""
    settled = RangeSet(cursor.passed)
    if cursor.floor:
        settled.add(0, cursor.floor - 1)
    for offset in aside:
        settled.remove(offset, offset)
    for dead in cursor.dead:
        settled.remove(dead.first, dead.last)
    return settled


def kept_alone(own: RangeSet, others: Sequence[RangeSet], first: int, end: int) -> int:
    """How many of the offsets first..end-1 the group with `own` settled has not settled, and all
    the others have."""
    alone = RangeSet(own.gaps(first, end - 1))
    for other in others:
        for low, high in other.gaps(first, end - 1):
            alone.remove(low, high)
    return alone.size()
