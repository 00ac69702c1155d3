"""When the next commit may begin, and whether one is expected: `push.commit_sharing`."""

import pytest

from push.commit_sharing import (
    DISTRUST_S,
    ENOUGH_BYTES,
    ENOUGH_MESSAGES,
    EXPECTED_S,
    PACE_S,
    CommitPace,
)


def after_one(waiting: int = 1) -> CommitPace:
    """Return the pace after a commit that began at 10 s and ended with messages waiting."""
    pace = CommitPace()
    pace.begin(now=10.0)
    pace.end(waiting)
    return pace


def test_the_first_commit_begins_at_once() -> None:
    assert CommitPace().wait_s(1, 100, now=10.0) == 0.0


def test_a_commit_for_which_messages_waited_keeps_its_distance() -> None:
    pace = after_one()
    assert pace.wait_s(1, 100, now=10.0 + PACE_S / 4) == pytest.approx(PACE_S * 3 / 4)
    assert pace.wait_s(1, 100, now=10.0 + PACE_S) == 0.0


def test_a_producer_that_waits_for_each_receipt_is_not_delayed() -> None:
    assert after_one(waiting=0).wait_s(1, 100, now=10.0 + PACE_S / 4) == 0.0


@pytest.mark.parametrize(
    ("waiting", "waits"), [(ENOUGH_MESSAGES - 1, True), (ENOUGH_MESSAGES, False)]
)
def test_much_that_waits_begins_at_once(waiting: int, waits: bool) -> None:
    assert (after_one().wait_s(waiting, 100, now=10.0) > 0) is waits


@pytest.mark.parametrize(("size", "waits"), [(ENOUGH_BYTES - 1, True), (ENOUGH_BYTES, False)])
def test_many_bytes_that_wait_begin_at_once(size: int, waits: bool) -> None:
    assert (after_one().wait_s(1, size, now=10.0) > 0) is waits


def test_a_wait_that_no_timer_can_count_is_none() -> None:
    assert after_one().wait_s(1, 100, now=10.0 + PACE_S - 0.000_4) == 0.0


def often() -> CommitPace:
    """Return the pace after two commits, the second at 10 s, EXPECTED_S behind the first."""
    pace = CommitPace()
    pace.begin(now=10.0 - EXPECTED_S)
    pace.begin(now=10.0)
    return pace


def test_another_commit_is_expected_while_they_come_often() -> None:
    pace = CommitPace()
    assert pace.expected_for_s(now=10.0) == 0
    pace.begin(now=10.0)
    assert pace.expected_for_s(now=10.0) == 0  # one alone says nothing
    pace = often()
    assert pace.expected_for_s(now=10.0) == pytest.approx(EXPECTED_S)
    assert pace.expected_for_s(now=10.0 + EXPECTED_S / 4) == pytest.approx(EXPECTED_S * 3 / 4)
    assert pace.expected_for_s(now=10.0 + EXPECTED_S) == 0


def test_none_is_expected_when_they_come_rarely() -> None:
    pace = often()
    pace.begin(now=10.1 + EXPECTED_S)
    assert pace.expected_for_s(now=10.1 + EXPECTED_S) == 0


def test_after_one_that_did_not_come_none_is_expected_for_a_while() -> None:
    pace = often()
    pace.missed(now=10.0 + EXPECTED_S)
    until = 10.0 + EXPECTED_S + DISTRUST_S
    for at in (10.5, 10.5 + EXPECTED_S, until - EXPECTED_S, until - 0.001):
        pace.begin(now=at)
        assert pace.expected_for_s(now=at) == 0
    pace.begin(now=until)
    assert pace.expected_for_s(now=until) > 0
