"""How queues share what is scarce: the next commit, and the room for what waits for one. Pure.

Nobody has a quota. Where there is room for all, everybody has what he wants; where there is not,
who wants little has it, and those who want much share the rest.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final, Generic, TypeVar

OwnerT = TypeVar("OwnerT")
SHARE: Final = 4
"""What one may hold, in parts of what is left to the others: alone four fifths of all, two of them
four ninths each, and there is always something left (Choudhury and Hahne, 1998)."""


def has_room(held: int, more: int, all_held: int, bound: int) -> bool:
    """Whether somebody who holds `held` of the `all_held` that are taken may have `more`, where
    there are `bound` in all. The rest that stays free grows smaller with each who floods, and is
    never used up by them."""
    return held + more <= SHARE * (bound - all_held - more)


class Turns(Generic[OwnerT]):
    """Who goes with what is next. Keeps, from one to the next, who got nothing."""

    def __init__(self) -> None:
        self._passed: dict[OwnerT, None] = {}

    def take(self, waiting: Sequence[tuple[OwnerT, int]], room: int) -> list[int]:
        """Which of these (owner, size), that wait in this order, go now: their places, ascending.

        Again and again the owner who has been given least so far gives the first that he has left,
        until `room` is used up; the last one taken may go beyond it. Among those who have been
        given nothing yet, who got nothing the last time comes first, then who wants least. So
        whoever wants less than an equal share goes whole, nobody's things change places, and
        nobody waits for ever.
        """
        if sum(size for _, size in waiting) <= room:
            self._passed.clear()
            return list(range(len(waiting)))
        places: dict[OwnerT, list[int]] = {}
        wanted: dict[OwnerT, int] = {}
        for place, (owner, size) in enumerate(waiting):
            places.setdefault(owner, []).append(place)
            wanted[owner] = wanted.get(owner, 0) + size
        for owner in [owner for owner in self._passed if owner not in places]:
            del self._passed[owner]
        order = [
            *self._passed,
            *sorted(places.keys() - self._passed.keys(), key=wanted.__getitem__),
        ]
        heap = [(0, rank, 0, places[owner]) for rank, owner in enumerate(order)]
        taken: list[int] = []
        while heap and room > 0:
            given, rank, number, mine = heappop(heap)
            taken.append(mine[number])
            size = waiting[mine[number]][1]
            room -= size
            self._passed.pop(order[rank], None)
            if number + 1 < len(mine):
                heappush(heap, (given + size, rank, number + 1, mine))
        for _, rank, number, _ in sorted(heap, key=itemgetter(1)):
            if not number:
                self._passed.setdefault(order[rank])
        return sorted(taken)
