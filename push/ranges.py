"""RangeSet: a set of offsets kept as sorted, disjoint, non-adjacent closed ranges.

Cursors and settlements are sets of millions of offsets in a handful of ranges; every operation
costs the number of ranges it touches, never the number of offsets.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

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
        """Number of ranges (not of offsets)."""
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
        """An independent copy."""
        clone = RangeSet()
        clone._firsts, clone._lasts = self._firsts.copy(), self._lasts.copy()
        return clone

    def columns(self) -> tuple[list[int], list[int]]:
        """(firsts, lasts), for packing without a loop; not to be changed."""
        return self._firsts, self._lasts

    def size(self) -> int:
        """Number of offsets in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add first..last. A range that is there already changes nothing."""
        firsts, lasts = self._firsts, self._lasts
        if not firsts or first > lasts[-1] + 1:  # the ordinary case: behind everything
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
        """Add those of the ranges that lie behind everything, and not below `floor`, as cursors
        grow. Returns these and the others, which were not added."""
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
        """Add many ranges in one pass over all that there are."""
        merged = coalesce([*self, *ranges])
        self._firsts = [first for first, _ in merged]
        self._lasts = [last for _, last in merged]

    def remove(self, first: int, last: int) -> None:
        """Remove first..last. What is not there changes nothing."""
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
        """The parts of first..last that are not in the set, in order."""
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
        """The smallest number >= offset that is not in the set."""
        index = bisect_right(self._firsts, offset) - 1
        if index >= 0 and self._lasts[index] >= offset:
            return self._lasts[index] + 1
        return offset

    def cut_down(self, count_max: int) -> None:
        """Keep at most `count_max` ranges: the lowest ones become one, with what lies between."""
        joined = len(self._firsts) - count_max
        if joined > 0:
            del self._firsts[1 : joined + 1], self._lasts[:joined]

    def pop_prefix(self, floor: int) -> int:
        """Forget everything below floor and what continues from it; return the new floor.

        A cursor is a floor plus what is settled above it: the caller keeps the floor.
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
    """Sorted, disjoint, non-adjacent ranges that cover exactly the given ones."""
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
