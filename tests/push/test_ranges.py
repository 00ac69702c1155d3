"""RangeSet against the naive model: a set of integers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from push.ranges import Range, RangeSet, coalesce

TOP = 60
offsets = st.integers(0, TOP)
ranges = st.sampled_from(
    [(first, last) for first in range(TOP + 1) for last in range(first, TOP + 1)]
)


def members(ranges: "RangeSet | list[Range]") -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def runs(values: set[int]) -> list[Range]:
    """The naive model's own way to closed ranges."""
    found: list[Range] = []
    for value in sorted(values):
        if found and found[-1][1] == value - 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


@given(st.sets(offsets), st.integers(1, 5))
def test_cutting_down_joins_the_lowest_ranges(values: set[int], count_max: int) -> None:
    found = RangeSet(runs(values))
    found.cut_down(count_max)
    assert len(found) == min(count_max, len(runs(values)))
    kept = runs(values)[-count_max:][1:]
    below = [offset for offset in values if not kept or offset < kept[0][0]]
    joined = [(min(below), max(below))] if below else []
    assert list(found) == joined + kept


class RangeSetMachine(RuleBasedStateMachine):
    """Every operation, in any order, on both."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(one=ranges)
    def add(self, one: Range) -> None:
        self.ranges.add(*one)
        self.model |= members([one])

    @rule(some=st.lists(ranges, max_size=6))
    def add_all(self, some: list[Range]) -> None:
        self.ranges.add_all(some)
        self.model |= members(some)

    @rule(some=st.lists(ranges, max_size=6), floor=offsets)
    def append_all(self, some: list[Range], floor: int) -> None:
        """Each goes in, whole and behind everything, or comes back."""
        appended, others = self.ranges.append_all(some, floor)
        assert sorted(appended + others) == sorted(some)
        for first, last in some:
            if (first, last) in appended:
                assert first >= floor
                assert all(offset < first for offset in self.model)
                self.model |= members([(first, last)])
                appended.remove((first, last))
            else:
                assert first < floor or any(offset >= first for offset in self.model)

    @rule(one=ranges)
    def remove(self, one: Range) -> None:
        self.ranges.remove(*one)
        self.model -= members([one])

    @rule(floor=offsets)
    def pop_prefix(self, floor: int) -> None:
        new = floor
        while new in self.model:
            new += 1
        assert self.ranges.pop_prefix(floor) == new
        self.model = {offset for offset in self.model if offset > new}

    @rule(one=ranges)
    def ask(self, one: Range) -> None:
        first, last = one
        inside = members([one])
        assert self.ranges.gaps(first, last) == runs(inside - self.model)
        assert self.ranges.covers(first, last) == (inside <= self.model)
        absent = first
        while absent in self.model:
            absent += 1
        assert self.ranges.next_absent(first) == absent

    @rule()
    def a_copy_is_independent(self) -> None:
        copy = self.ranges.copy()
        assert copy == self.ranges
        copy.add(0, TOP)
        copy.remove(TOP // 2, TOP)

    @invariant()
    def same_set(self) -> None:
        assert list(self.ranges) == runs(self.model)
        assert len(self.ranges) == len(runs(self.model))
        assert self.ranges.size() == len(self.model)
        assert [offset in self.ranges for offset in range(TOP + 2)] == [
            offset in self.model for offset in range(TOP + 2)
        ]


RangeSetMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=30)
test_range_set_machine = RangeSetMachine.TestCase


@settings(max_examples=500)
@given(st.lists(ranges, max_size=12))
def test_coalesced_ranges_cover_the_same_offsets(some: list[Range]) -> None:
    assert coalesce(some) == runs(members(some))
    assert list(RangeSet(some)) == runs(members(some))


def test_a_range_set_is_equal_by_value_and_not_hashable() -> None:
    assert RangeSet([(0, 1), (2, 3)]) == RangeSet([(0, 3)])
    assert RangeSet([(0, 1)]) != RangeSet([(0, 2)])
    assert RangeSet() != [(0, 1)]
    assert repr(RangeSet([(4, 4), (0, 1)])) == "RangeSet([(0, 1), (4, 4)])"
    with pytest.raises(TypeError):
        hash(RangeSet())


def test_millions_of_offsets_are_as_cheap_as_two() -> None:
    big = RangeSet([(0, 10**12), (10**12 + 2, 2 * 10**12)])
    assert len(big) == 2
    assert big.gaps(0, 2 * 10**12) == [(10**12 + 1, 10**12 + 1)]
    big.add(10**12 + 1, 10**12 + 1)
    assert big.size() == 2 * 10**12 + 1
    assert big.pop_prefix(0) == 2 * 10**12 + 1
