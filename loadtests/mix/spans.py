"""Sets of whole numbers as ranges: what is dense costs one range, however many it is. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Spans:
    """A set of whole numbers. Adding at its end costs the same however many there are."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        """`pairs`: (first, last), ascending, neither touching nor overlapping."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in pairs:
            if first > last or (self._lasts and first <= self._lasts[-1] + 1):
                raise ValueError(f"ranges that are none, or not in order: {first} to {last}")
            self._firsts.append(first)
            self._lasts.append(last)

    def add(self, number: int) -> bool:
        """Put it in; whether it was new."""
        firsts, lasts = self._firsts, self._lasts
        if lasts and number == lasts[-1] + 1:
            lasts[-1] = number
            return True
        index = bisect_right(firsts, number) - 1  # the last range that begins there or before
        if index >= 0 and number <= lasts[index]:
            return False
        touches_before = index >= 0 and lasts[index] == number - 1
        touches_behind = index + 1 < len(firsts) and firsts[index + 1] == number + 1
        if touches_before and touches_behind:
            lasts[index] = lasts.pop(index + 1)
            del firsts[index + 1]
        elif touches_before:
            lasts[index] = number
        elif touches_behind:
            firsts[index + 1] = number
        else:
            firsts.insert(index + 1, number)
            lasts.insert(index + 1, number)
        return True

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.pairs():
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.pairs() == other.pairs()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spans({self.pairs()})"

    def pairs(self) -> list[tuple[int, int]]:
        """(first, last) of each range, ascending."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def both(self, other: "Spans") -> "Spans":
        """What is in this one and in the other one."""
        found = []
        mine, theirs = self.pairs(), other.pairs()
        here = there = 0
        while here < len(mine) and there < len(theirs):
            first = max(mine[here][0], theirs[there][0])
            last = min(mine[here][1], theirs[there][1])
            if first <= last:
                found.append((first, last))
            if mine[here][1] < theirs[there][1]:
                here += 1
            else:
                there += 1
        return Spans(found)

    def without(self, other: "Spans") -> "Spans":
        """What is in this one and not in the other one."""
        found = []
        theirs, there = other.pairs(), 0
        for begin, last in self.pairs():
            first = begin
            while there < len(theirs) and theirs[there][1] < first:
                there += 1
            place = there
            while place < len(theirs) and theirs[place][0] <= last:
                if first < theirs[place][0]:
                    found.append((first, theirs[place][0] - 1))
                first = theirs[place][1] + 1
                place += 1
            if first <= last:
                found.append((first, last))
        return Spans(found)

    def either(self, other: "Spans") -> "Spans":
        """What is in one of them, or in both."""
        joined: list[list[int]] = []
        for first, last in sorted([*self.pairs(), *other.pairs()]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], last)
            else:
                joined.append([first, last])
        return Spans(joined)
