"""Messages that are dead: they go to the dead letters, and nobody is given them any more.

Ranges of offsets with a reason each, disjoint. A cursor keeps them durably from the moment in which
that is decided until each stands in the dead letters; its owner moves them.
"""

from collections.abc import Iterable, Iterator
from heapq import merge

from push.ranges import Range, RangeSet
from push.storage_port import Dead


class DeadRanges:
    """See the module. Mutable; iterating yields each range, by offset."""

    __slots__ = ("_by_reason",)
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, dead: Iterable[Dead] = ()) -> None:
        self._by_reason: dict[str, RangeSet] = {}
        for one in dead:
            self.add(one)

    def __iter__(self) -> Iterator[Dead]:
        return merge(
            *(
                [Dead(first, last, reason) for first, last in ranges]
                for reason, ranges in self._by_reason.items()
            )
        )

    def __bool__(self) -> bool:
        return bool(self._by_reason)

    def __len__(self) -> int:
        """Number of ranges (not of offsets)."""
        return sum(map(len, self._by_reason.values()))

    def __contains__(self, offset: int) -> bool:
        return any(offset in ranges for ranges in self._by_reason.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeadRanges):
            return NotImplemented
        return self._by_reason == other._by_reason

    def __repr__(self) -> str:
        return f"DeadRanges({[*self]})"

    def size(self) -> int:
        """Number of offsets."""
        return sum(ranges.size() for ranges in self._by_reason.values())

    def add(self, dead: Dead) -> bool:
        """Add what of it is not there for another reason already; whether that changed anything."""
        parts = [(dead.first, dead.last)]
        for reason, ranges in self._by_reason.items():
            if reason != dead.reason:
                parts = [gap for part in parts for gap in ranges.gaps(*part)]
        mine = self._by_reason.get(dead.reason)
        if mine is not None:
            parts = [part for part in parts if not mine.covers(*part)]
        if not parts:
            return False
        mine = self._by_reason.setdefault(dead.reason, RangeSet())
        for part in parts:
            mine.add(*part)
        return True

    def remove(self, first: int, last: int) -> bool:
        """Remove first..last; whether any of it was there."""
        changed = False
        for reason, ranges in [*self._by_reason.items()]:
            if ranges.gaps(first, last) != [(first, last)]:
                changed = True
                ranges.remove(first, last)
                if not len(ranges):
                    del self._by_reason[reason]
        return changed

    def take(self, count_max: int) -> list[Dead]:
        """Take out the first `count_max` messages."""
        taken: list[Dead] = []
        while count_max > 0 and self._by_reason:
            first, last, reason = min(
                (*next(iter(ranges)), reason) for reason, ranges in self._by_reason.items()
            )
            last = min(last, first + count_max - 1)
            self._by_reason[reason].remove(first, last)
            if not len(self._by_reason[reason]):
                del self._by_reason[reason]
            taken.append(Dead(first, last, reason))
            count_max -= last - first + 1
        return taken

    def ranges(self) -> list[Range]:
        """All of them, whatever their reason; in order, neighbours may touch."""
        return [(first, last) for first, last, _ in self]

    def of(self, offset: int) -> str | None:
        """Why a message is dead; None: it is not."""
        for reason, ranges in self._by_reason.items():
            if offset in ranges:
                return reason
        return None

    def text(self) -> str:
        """As storages keep it: `reason:first-last,first-last;reason:…`; see `dead_of`."""
        return ";".join(
            f"{reason}:{','.join(f'{first}-{last}' for first, last in ranges)}"
            for reason, ranges in sorted(self._by_reason.items())
        )


def dead_of(text: str) -> DeadRanges:
    """What `DeadRanges.text` made a text of.

    Raises:
        ValueError: nobody has written this.
    """
    dead = DeadRanges()
    for part in text.split(";") if text else ():
        reason, _, pairs = part.partition(":")
        for pair in pairs.split(","):
            first, _, last = pair.partition("-")
            dead.add(Dead(int(first), int(last), reason))
    return dead
