"""The histogram's percentiles are close to the exact ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.histogram import VALUE_MAX, Histogram


@settings(max_examples=1000)
@given(
    st.lists(st.integers(0, VALUE_MAX), min_size=1, max_size=50),
    st.sampled_from([0, 1, 50, 90, 99, 99.9, 100]),
)
def test_percentile_is_at_most_one_sixty_fourth_above_the_exact_one(
    values: list[int], percent: float
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(1, -int(-len(values) * percent // 100)) - 1]
    assert exact <= histogram.percentile(percent) <= exact + exact // 64 + 1


def test_small_values_are_exact() -> None:
    histogram = Histogram()
    for value in range(128):
        histogram.record(value)
    assert [histogram.percentile(p) for p in (50, 100)] == [63, 127]


def test_weights_and_merging_count_alike() -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    one.record(1_000, 99)
    other.record(5_000_000)
    for _ in range(99):
        both.record(1_000)
    both.record(5_000_000)
    one.add(other)
    for percent in (50, 99, 99.9, 100):
        assert one.percentile(percent) == both.percentile(percent)
    assert (one.count, one.total, one.maximum) == (both.count, both.total, both.maximum)


def test_values_out_of_range_are_counted_at_the_ends() -> None:
    histogram = Histogram()
    histogram.record(-5)
    histogram.record(VALUE_MAX * 4)
    assert (histogram.percentile(1), histogram.percentile(100)) == (0, VALUE_MAX)


def test_empty_histogram_says_zero_and_clear_empties() -> None:
    histogram = Histogram()
    assert histogram.percentile(99) == 0
    histogram.record(7)
    histogram.clear()
    assert (histogram.count, histogram.percentile(50)) == (0, 0)


def test_percent_outside_of_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Histogram().percentile(101)


@pytest.mark.parametrize("bits", range(7, 42))
def test_a_bucket_ends_where_the_next_one_begins(bits: int) -> None:
    """On both sides of every edge between powers of two, and of the first edge behind it: what is
    below is told as at most the last value there, what is above as more."""
    width = 1 << (bits - 6)
    for edge in (1 << bits, (1 << bits) + width):
        below, above = Histogram(), Histogram()
        below.record(edge - 1)
        above.record(edge)
        assert below.buckets() == [(edge - 1, 1)]
        ((highest, _),) = above.buckets()
        assert highest == min(edge + width - 1, VALUE_MAX)
        below.record(VALUE_MAX)
        above.record(VALUE_MAX)
        assert below.percentile(50) == edge - 1
        assert above.percentile(50) >= edge


def test_values_below_a_millisecond_are_distinguished() -> None:
    """300 and 310 µs in nanoseconds: whole milliseconds, as Locust has them, would be 0."""
    histogram = Histogram()
    histogram.record(300_000, 99)
    histogram.record(310_000)
    assert histogram.percentile(50) < 305_000 < histogram.percentile(100)


def test_a_histogram_comes_back_from_its_buckets() -> None:
    histogram = Histogram()
    for value in (0, 127, 128, 129, 5_000_000, VALUE_MAX, VALUE_MAX):
        histogram.record(value)
    again = Histogram.of(histogram.buckets(), histogram.total, histogram.maximum)
    assert again.buckets() == histogram.buckets()
    for percent in (0, 50, 90, 99.9, 100):
        assert again.percentile(percent) == histogram.percentile(percent)
    assert (again.count, again.total, again.maximum) == (7, histogram.total, VALUE_MAX)
