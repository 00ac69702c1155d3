"""Sets of offsets as sorted ranges: `RangeSet`, and `DeadRanges`, whose ranges have a reason each.

Cursors and settlements are sets of millions of offsets in a handful of ranges; every operation
costs the number of ranges it touches, never the number of offsets.

Dead messages go to the dead letters, and are given to nobody any more. A cursor keeps them durably
from that decision on until each is in the dead letters; its owner moves them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import NamedTuple

Range = tuple[int, int]
"""(first, last), both included, first <= last."""


class RangeSet:
    """A mutable set of non-negative integers. Iterating yields (first, last) in order."""

    __slots__ = ("_firsts", "_lasts")
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges (not of offsets)."""
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._firsts, offset) - 1
        return index >= 0 and self._lasts[index] >= offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def copy(self) -> "RangeSet":
        """Return an independent copy."""
        clone = RangeSet()
        clone._firsts, clone._lasts = self._firsts.copy(), self._lasts.copy()
        return clone

    def columns(self) -> tuple[list[int], list[int]]:
        """Return (firsts, lasts), for packing without a loop; read-only."""
        return self._firsts, self._lasts

    def size(self) -> int:
        """Return the number of offsets in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add first..last. A range that is in the set already changes nothing."""
        firsts, lasts = self._firsts, self._lasts
        if not firsts or first > lasts[-1] + 1:  # ordinary case: after everything
            firsts.append(first)
            lasts.append(last)
            return
        low = bisect_left(lasts, first - 1)  # first range that touches or follows
        high = bisect_right(firsts, last + 1)  # first range beyond
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def append_all(self, ranges: Iterable[Range], floor: int) -> tuple[list[Range], list[Range]]:
        """Add those of the ranges that lie above everything in the set, and not below `floor`, as
        cursors grow. Returns these and the others, which were not added."""
        firsts, lasts = self._firsts, self._lasts
        appended: list[Range] = []
        others: list[Range] = []
        end = lasts[-1] + 1 if lasts else -1
        for pair in ranges:
            first, last = pair
            if first > end and first >= floor:
                firsts.append(first)
                lasts.append(last)
            elif first == end and first >= floor:
                lasts[-1] = last
            else:
                others.append(pair)
                continue
            end = last + 1
            appended.append(pair)
        return appended, others

    def add_all(self, ranges: Iterable[Range]) -> None:
        """Add many ranges in one pass over the whole set."""
        merged = coalesce([*self, *ranges])
        self._firsts = [first for first, _ in merged]
        self._lasts = [last for _, last in merged]

    def remove(self, first: int, last: int) -> None:
        """Remove first..last. Offsets that are not in the set change nothing."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        left, right = firsts[low], lasts[high - 1]
        keep: list[Range] = []
        if left < first:
            keep.append((left, first - 1))
        if right > last:
            keep.append((last + 1, right))
        firsts[low:high] = [a for a, _ in keep]
        lasts[low:high] = [b for _, b in keep]

    def gaps(self, first: int, last: int) -> list[Range]:
        """Return the parts of first..last that are not in the set, in order."""
        missing: list[Range] = []
        index = bisect_left(self._lasts, first)
        while first <= last and index < len(self._firsts) and self._firsts[index] <= last:
            if self._firsts[index] > first:
                missing.append((first, self._firsts[index] - 1))
            first = self._lasts[index] + 1
            index += 1
        if first <= last:
            missing.append((first, last))
        return missing

    def covers(self, first: int, last: int) -> bool:
        """Whether every offset of first..last is in the set."""
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and self._lasts[index] >= last

    def next_absent(self, offset: int) -> int:
        """Return the smallest number >= offset that is not in the set."""
        index = bisect_right(self._firsts, offset) - 1
        if index >= 0 and self._lasts[index] >= offset:
            return self._lasts[index] + 1
        return offset

    def cut_down(self, count_max: int) -> None:
        """Keep at most `count_max` ranges. The lowest ones become one, with everything between
        them."""
        joined = len(self._firsts) - count_max
        if joined > 0:
            del self._firsts[1 : joined + 1], self._lasts[:joined]

    def pop_prefix(self, floor: int) -> int:
        """Forget everything below floor and what continues from it; return the new floor.

        A cursor is a floor plus the settled offsets above it; the caller keeps the floor.
        """
        firsts, lasts = self._firsts, self._lasts
        count = 0
        for index in range(len(firsts)):
            if firsts[index] > floor:
                break
            floor = max(floor, lasts[index] + 1)
            count = index + 1
        del firsts[:count], lasts[:count]
        return floor


def coalesce(ranges: Iterable[Range]) -> list[Range]:
    """Return sorted, disjoint, non-adjacent ranges that cover exactly the given ones."""
    ordered = sorted(ranges)
    if not ordered:
        return ordered
    merged: list[Range] = []
    begin, end = ordered[0]  # of the range that grows
    for first, last in ordered:
        if first > end + 1:
            merged.append((begin, end))
            begin, end = first, last
        elif last > end:
            end = last
    merged.append((begin, end))
    return merged


class Dead(NamedTuple):
    """Messages of first..last that go to the dead letters and are given to no consumer any more.
    `reason`: exhausted, expired, overflow, skipped …"""

    first: int
    last: int
    reason: str


class DeadRanges:
    """Dead messages as disjoint ranges. Mutable; iterating yields each range, by offset."""

    __slots__ = ("_by_reason", "count")
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, dead: Iterable[Dead] = ()) -> None:
        self._by_reason: dict[str, RangeSet] = {}
        self.count = 0
        """Number of ranges (not of offsets)."""
        for one in dead:
            self.add(one)

    def __iter__(self) -> Iterator[Dead]:
        return merge(
            *(
                [Dead(first, last, reason) for first, last in ranges]
                for reason, ranges in self._by_reason.items()
            )
        )

    def __len__(self) -> int:
        return self.count

    def __contains__(self, offset: int) -> bool:
        return any(offset in ranges for ranges in self._by_reason.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeadRanges):
            return NotImplemented
        return self._by_reason == other._by_reason

    def __repr__(self) -> str:
        return f"DeadRanges({[*self]})"

    def size(self) -> int:
        """Return the number of offsets."""
        return sum(ranges.size() for ranges in self._by_reason.values())

    def add(self, dead: Dead) -> bool:
        """Add the part of a range that is not in the set for another reason already. Returns
        whether that changed anything."""
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
        self._recount()
        return True

    def _recount(self) -> None:
        self.count = sum(map(len, self._by_reason.values()))

    def remove(self, first: int, last: int) -> bool:
        """Remove first..last. Returns whether any of it was in the set."""
        changed = False
        for reason, ranges in [*self._by_reason.items()]:
            if ranges.gaps(first, last) != [(first, last)]:
                changed = True
                ranges.remove(first, last)
                if not len(ranges):
                    del self._by_reason[reason]
        self._recount()
        return changed

    def take(self, count_max: int) -> list[Dead]:
        """Take out the first `count_max` messages, and return them as ranges."""
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
        self._recount()
        return taken

    def ranges(self) -> list[Range]:
        """Return all ranges, whatever their reason, in order; neighbors may touch."""
        return [(first, last) for first, last, _ in self]

    def of(self, offset: int) -> str | None:
        """Return the reason why a message is dead; None: it is not in the set."""
        for reason, ranges in self._by_reason.items():
            if offset in ranges:
                return reason
        return None

    def text(self) -> str:
        """Return the form in storages: `reason:first-last,first-last;reason:…`; `dead_of` reads
        it."""
        return ";".join(
            f"{reason}:{','.join(f'{first}-{last}' for first, last in ranges)}"
            for reason, ranges in sorted(self._by_reason.items())
        )


def dead_of(text: str) -> DeadRanges:
    """Parse what `DeadRanges.text` returned.

    Raises:
        ValueError: the text has another form.
    """
    dead = DeadRanges()
    for part in text.split(";") if text else ():
        reason, _, pairs = part.partition(":")
        for pair in pairs.split(","):
            first, _, last = pair.partition("-")
            dead.add(Dead(int(first), int(last), reason))
    return dead
