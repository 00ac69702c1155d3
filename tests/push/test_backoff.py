"""Backoff: exponential, jittered, bounded, and a persisted one is clamped (R3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push.retry import backoff_s, clamp_due

draws = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempt", "draw", "expected"),
    [
        (1, 0.0, 1.0),
        (1, 0.5, 0.75),
        (2, 0.0, 2.0),
        (3, 0.5, 3.0),
        (6, 0.0, 32.0),
        (7, 0.0, 60.0),
        (1_000_000, 0.0, 60.0),
        (0, 0.0, 1.0),
    ],
)
def test_waits_double_up_to_the_maximum(attempt: int, draw: float, expected: float) -> None:
    assert backoff_s(attempt, base_s=1.0, max_s=60.0, draw=draw) == expected


@given(st.integers(1, 10**9), st.floats(0, 3600), st.floats(0, 3600), draws)
def test_a_wait_is_in_the_upper_half_of_its_ceiling(
    attempt: int, base_s: float, max_s: float, draw: float
) -> None:
    ceiling = backoff_s(attempt, base_s=base_s, max_s=max_s, draw=0.0)
    wait_s = backoff_s(attempt, base_s=base_s, max_s=max_s, draw=draw)
    assert 0 <= ceiling / 2 <= wait_s <= ceiling <= max_s


@given(st.integers(1, 100), draws, draws)
def test_below_the_maximum_no_wait_is_shorter_than_one_before(
    attempt: int, draw: float, later: float
) -> None:
    first = backoff_s(attempt, base_s=1e-6, max_s=1e300, draw=draw)
    assert backoff_s(attempt + 1, base_s=1e-6, max_s=1e300, draw=later) >= first


def test_without_a_base_nothing_waits() -> None:
    assert backoff_s(10**6, base_s=0.0, max_s=60.0, draw=0.3) == 0.0


@pytest.mark.parametrize(
    ("due_unix_ms", "expected"),
    [(0, 0), (999_000, 999_000), (1_059_999, 1_059_999), (1_060_000, 1_060_000),
     (1_060_001, 1_060_000), (10**15, 1_060_000)],
)  # fmt: skip
def test_a_persisted_backoff_is_clamped_to_its_maximum(due_unix_ms: int, expected: int) -> None:
    """R3: the clock was ahead when it was written; the key does not wait for it."""
    assert clamp_due(due_unix_ms, 1_000_000, 60.0) == expected
