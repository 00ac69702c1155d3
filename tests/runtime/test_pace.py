"""How fast a session may talk, to the frame."""

import pytest

from push.rates.bucket import Rate
from runtime.loop.fairness import FREE_MAX, FREE_PER_MESSAGE, SMALL_CHANGE, Pace

RATE = Rate(100, 1, 1000)


def nothing() -> int:
    return 0


def used_up() -> Pace:
    """Its whole burst is used, at second 0."""
    pace = Pace(RATE)
    assert pace.pay(1000, nothing, now=0) == 0
    return pace


def test_beyond_its_burst_a_session_waits_and_then_goes_on() -> None:
    pace = used_up()
    assert pace.pay(100, nothing, now=0) == pytest.approx(1.0)
    assert pace.pay(0, nothing, now=0.5) == pytest.approx(0.5)
    assert pace.pay(0, nothing, now=1) == 0
    assert pace.pay(0, nothing, now=1) == 0, "paid once"
    assert pace.pay(100, nothing, now=1.75) == pytest.approx(0.25)


def test_no_stretch_of_time_has_more_than_burst_and_rate() -> None:
    """P9: who says as much as it can is heard at its rate; what it has not paid for yet is what it
    said last, and less than one small change."""
    pace, heard, now = Pace(RATE), 0, 0.0
    while now < 60:
        wait_s = pace.pay(90, nothing, now=now)
        heard += 90
        assert heard <= 1000 + 100 * now + 90 + SMALL_CHANGE
        while wait_s:
            now += wait_s
            wait_s = pace.pay(0, nothing, now=now)
    assert heard >= 1000 + 60 * 100, "and not less"


def test_few_frames_are_charged_with_those_that_follow() -> None:
    pace = used_up()
    assert pace.pay(SMALL_CHANGE - 1, nothing, now=0) == 0
    assert pace.pay(1, nothing, now=0) > 0


def test_what_is_said_of_messages_that_were_given_is_free() -> None:
    pace = used_up()
    assert pace.pay(FREE_PER_MESSAGE * 50, lambda: 50, now=0) == 0
    assert pace.pay(SMALL_CHANGE, lambda: 50, now=0) > 0, "once for each"
    assert pace.pay(0, lambda: 50 + SMALL_CHANGE, now=0) == 0


def test_a_subscription_that_has_ended_earns_nothing_twice() -> None:
    pace = used_up()
    assert pace.pay(SMALL_CHANGE, lambda: 1000, now=0) == 0
    left = 1000 * FREE_PER_MESSAGE - SMALL_CHANGE
    assert pace.pay(left, lambda: 0, now=0) == 0
    assert pace.pay(SMALL_CHANGE, lambda: 0, now=0) > 0
    assert pace.pay(0, lambda: SMALL_CHANGE, now=0) == 0, "of another one, that began at 0"


def test_what_is_free_is_not_saved_up_without_end() -> None:
    """P9."""
    pace = used_up()
    assert pace.pay(SMALL_CHANGE, lambda: 10 * FREE_MAX, now=0) == 0
    assert pace.pay(FREE_MAX - SMALL_CHANGE, lambda: 10 * FREE_MAX, now=0) == 0
    assert pace.pay(SMALL_CHANGE, lambda: 10 * FREE_MAX, now=0) > 0


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None)
    assert all(pace.pay(10**6, nothing, now=0) == 0 for _ in range(10))
