"""Leaky buckets, against a naive model that remembers everything that was ever admitted."""

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push.rates.bucket import Bucket, Rate, nanoseconds, pour_all, take_all

DAY_S = 86_400.0
rates = st.builds(
    Rate,
    units=st.integers(1, 10**6),
    per_s=st.sampled_from([1, 60, 1000, 3600]),
    burst=st.integers(1, 5000),
)
starts = st.floats(0, 400 * DAY_S)
steps = st.lists(st.tuples(st.floats(0, 3) | st.sampled_from([0.0]), st.integers(1, 5000)))


def leaked(rate: Rate, t_ns: int) -> Fraction:
    """Return what a bucket loses in this time."""
    return Fraction(rate.units * t_ns, rate.per_s * 10**9)


class Model:
    """What is in a bucket is what was poured in, less what has leaked: looked up anew each time."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.admitted: list[tuple[int, int]] = []

    def level(self, at_ns: int) -> Fraction:
        level, before = Fraction(0), 0
        for when, cost in self.admitted:
            level = max(Fraction(0), level - leaked(self.rate, when - before)) + cost
            before = when
        return max(Fraction(0), level - leaked(self.rate, at_ns - before))

    def take(self, cost: int, at_ns: int) -> bool:
        fits = self.level(at_ns) + cost <= self.rate.burst
        if fits:
            self.admitted.append((at_ns, cost))
        return fits


@given(rates, starts, steps)
def test_no_window_admits_more_than_burst_and_rate(
    rate: Rate, start: float, steps: list[tuple[float, int]]
) -> None:
    bucket, model, now = Bucket(rate), Model(rate), start
    for pause_s, cost in steps:
        now += pause_s
        fitting = min(cost, rate.burst)
        assert (bucket.take(fitting, now=now) == 0.0) == model.take(fitting, nanoseconds(now))
        bucket.check(now=now)
    times = [when for when, _ in model.admitted]
    sums = [0, *accumulate(cost for _, cost in model.admitted)]
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            in_window = sums[last + 1] - sums[first]
            assert in_window <= rate.burst + leaked(rate, times[last] - begin)


@given(rates, starts, steps)
def test_after_exactly_what_it_says_the_same_is_admitted(
    rate: Rate, start: float, steps: list[tuple[float, int]]
) -> None:
    bucket, now = Bucket(rate), start
    for pause_s, cost in steps:
        now += pause_s
        fitting = min(cost, rate.burst)
        after_s = bucket.after_s(fitting, now=now)
        assert bucket.take(fitting, now=now) == after_s
        if after_s:
            sooner = now + after_s - max(2e-9, 8 * 2.0**-52 * now)
            assert bucket.after_s(fitting, now=max(now, sooner)) > 0.0  # and not before
            now += after_s
            assert bucket.take(fitting, now=now) == 0.0


@given(rates, starts, steps)
def test_what_is_refused_changes_nothing(
    rate: Rate, start: float, steps: list[tuple[float, int]]
) -> None:
    asked, quiet, now = Bucket(rate), Bucket(rate), start
    for pause_s, cost in steps:
        now += pause_s
        fitting = min(cost, rate.burst)
        if asked.take(fitting, now=now) == 0.0:
            assert quiet.take(fitting, now=now) == 0.0  # it was never asked for what is refused
        assert asked.next_deadline() == quiet.next_deadline()


def test_who_asks_at_twice_the_rate_gets_the_rate() -> None:
    bucket, admitted = Bucket(Rate(units=1000, per_s=1, burst=100)), 0
    for tick in range(20_000):  # 2,000 a second, for ten seconds
        admitted += bucket.take(1, now=50.0 + tick / 2000) == 0.0
    assert 10_000 <= admitted <= 10_100


def test_a_year_of_takes_does_not_drift() -> None:
    """A float that grows by a millionth a time, far from 0, is wrong by a part in a thousand."""
    bucket = Bucket(Rate(units=10**6, per_s=1, burst=1))
    start = 365 * DAY_S
    first = 10**9 * 365 * int(DAY_S)
    for tick in range(10_000):
        at_ns = first + 1000 * tick
        assert bucket.wait_ns(1, at_ns) == 0
        assert pour_all(((bucket, 1),), at_ns)
        assert bucket.wait_ns(1, at_ns) == 1000
    assert bucket.next_deadline() == pytest.approx(start + 0.01, abs=1e-7)


def test_all_are_charged_or_none() -> None:
    wide, narrow = Bucket(Rate(1, 1, 10)), Bucket(Rate(1, 1, 5))
    assert take_all(((wide, 5), (narrow, 5)), now=1.0) == 0.0
    assert take_all(((wide, 5), (narrow, 2)), now=1.0) == 2.0
    assert take_all(((wide, 6), (narrow, 2)), now=1.0) == 2.0
    assert wide.next_deadline() == narrow.next_deadline() == 6.0
    assert take_all((), now=1.0) == 0.0


def test_more_than_the_burst_is_a_bug_of_who_asks() -> None:
    bucket = Bucket(Rate(1, 1, 5))
    assert bucket.take(5, now=0.0) == 0.0
    with pytest.raises(ValueError, match=r"6 at once never fit into 1/s\+5"):
        bucket.take(6, now=100.0)


@pytest.mark.parametrize("rate", [Rate(0, 1, 1), Rate(1, 0, 1), Rate(1, 1, 0)])
def test_a_rate_is_positive(rate: Rate) -> None:
    with pytest.raises(ValueError, match="positive"):
        Bucket(rate)


def test_a_clock_that_goes_back_admits_nothing_more() -> None:
    bucket = Bucket(Rate(units=1, per_s=1, burst=2))
    assert bucket.take(2, now=100.0) == 0.0
    assert bucket.take(1, now=10.0) == 91.0
    bucket.check(now=100.0)
    assert bucket.take(1, now=101.0) == 0.0


def test_what_it_holds_stays_when_its_rate_changes() -> None:
    bucket = Bucket(Rate(units=10, per_s=1, burst=100))
    assert bucket.take(60, now=5.0) == 0.0
    bucket.change(Rate(units=1, per_s=2, burst=80), now=6.0)  # 50 are left
    assert bucket.take(30, now=6.0) == 0.0
    assert bucket.take(1, now=6.0) == 2.0
    bucket.change(Rate(units=1, per_s=1, burst=10), now=6.0)  # never more than fits
    bucket.check(now=6.0)
    assert bucket.next_deadline() == 16.0


@given(rates, rates, st.floats(0, 100), st.integers(1, 5000))
def test_no_change_of_the_rate_empties_it(before: Rate, after: Rate, now: float, cost: int) -> None:
    bucket = Bucket(before)
    bucket.take(min(cost, before.burst), now=now)
    bucket.change(after, now=now)
    bucket.check(now=now)
    left = after.burst - min(cost, before.burst)
    if left < after.burst:
        assert bucket.after_s(min(after.burst, max(1, left + 1)), now=now) > 0.0
