"""Sets of numbers as ranges are the sets that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.mix.ledger import Spans

NUMBERS = st.lists(st.integers(0, 60), max_size=60)


def spans(numbers: list[int]) -> Spans:
    found = Spans()
    for number in numbers:
        found.add(number)
    return found


@given(NUMBERS)
def test_adding_tells_what_is_new_and_keeps_ranges_apart_and_in_order(numbers: list[int]) -> None:
    found, seen = Spans(), set()
    for number in numbers:
        assert found.add(number) == (number not in seen)
        seen.add(number)
    assert list(found) == sorted(seen)
    assert len(found) == len(seen)
    assert all(number in found for number in seen)
    assert all(number not in found for number in set(range(-1, 62)) - seen)
    assert Spans(found.pairs()) == found  # which refuses ranges that touch


@given(NUMBERS, NUMBERS)
def test_sets_are_put_together_as_sets_are(one: list[int], other: list[int]) -> None:
    mine, theirs = spans(one), spans(other)
    assert set(mine.both(theirs)) == set(one) & set(other)
    assert set(mine.without(theirs)) == set(one) - set(other)
    assert set(mine.either(theirs)) == set(one) | set(other)


@pytest.mark.parametrize("pairs", [[(2, 1)], [(1, 2), (2, 3)], [(1, 2), (3, 4)], [(5, 6), (1, 2)]])
def test_ranges_that_are_none_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="ranges"):
        Spans(pairs)


def test_what_is_dense_is_one_range() -> None:
    assert spans([1, 2, 3, 5, 4]).pairs() == [(1, 5)]
