"""What metrics are counted into."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from push.delivery.values import COUNTED, Tally
from push.histogram import MESSAGES, SECONDS, Histogram

VALUES = st.lists(st.tuples(st.floats(-1, 1000), st.integers(1, 500)), max_size=20)


@given(VALUES)
def test_each_value_is_in_the_bucket_whose_bounds_it_lies_between(
    values: list[tuple[float, int]],
) -> None:
    histogram = Histogram()
    for value, count in values:
        histogram.add(value, count)
    edges = [-math.inf, *SECONDS, math.inf]
    for place, (low, high) in enumerate(pairwise(edges)):
        within = sum(count for value, count in values if low < max(0.0, value) <= high)
        assert histogram.counts[place] == within
    assert histogram.count == sum(count for _, count in values)
    assert math.isclose(histogram.total, sum(max(0.0, v) * n for v, n in values), abs_tol=1e-6)


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram(MESSAGES)
    histogram.add(MESSAGES[0])
    histogram.add(MESSAGES[-1])
    histogram.add(MESSAGES[-1] + 1)
    assert histogram.counts == [1, 0, 0, 0, 0, 0, 0, 1, 1]


@given(VALUES, VALUES)
def test_merged_they_are_as_one_that_has_counted_both(
    some: list[tuple[float, int]], others: list[tuple[float, int]]
) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value, count in some:
        one.add(value, count)
        both.add(value, count)
    for value, count in others:
        other.add(value, count)
        both.add(value, count)
    one.merge(other)
    assert one.counts == both.counts
    assert math.isclose(one.total, both.total, abs_tol=1e-6)


def test_a_tally_merges_every_number_it_has() -> None:
    one, other = Tally(), Tally()
    for tally, by in ((one, 1), (other, 10)):
        for name in COUNTED:
            setattr(tally, name, by)
        tally.dispatch_s.add(0.1, by)
        tally.settle_s.add(0.2, by)
    one.merge(other)
    assert {name: getattr(one, name) for name in COUNTED} == dict.fromkeys(COUNTED, 11)
    assert (one.dispatch_s.count, one.settle_s.count) == (11, 11)
    assert {*COUNTED, "dispatch_s", "settle_s"} == {*Tally.__slots__}


def test_only_what_was_not_tried_before_tells_how_long_it_waited() -> None:
    tally = Tally()
    tally.gave(3, 0.01, is_first=True)
    tally.gave(2, 60.0, is_first=False)
    assert (tally.given, tally.dispatch_s.count) == (5, 3)
