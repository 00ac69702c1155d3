"""How fast a session may talk, to the frame."""

import pytest

from push.rates.bucket import Rate
from runtime.loop.fairness import (
    FREE_FRAMES_MAX,
    FREE_FRAMES_PER_MESSAGE,
    UNCHARGED_FRAMES,
    FrameRate,
)

RATE = Rate(100, 1, 1000)


def nothing() -> int:
    return 0


def used_up() -> FrameRate:
    """Return a rate whose whole burst is used, at second 0."""
    rate = FrameRate(RATE)
    assert rate.charge(1000, nothing, now=0) == 0
    return rate


def test_beyond_its_burst_a_session_waits_and_then_goes_on() -> None:
    rate = used_up()
    assert rate.charge(100, nothing, now=0) == pytest.approx(1.0)
    assert rate.charge(0, nothing, now=0.5) == pytest.approx(0.5)
    assert rate.charge(0, nothing, now=1) == 0
    assert rate.charge(0, nothing, now=1) == 0, "paid once"
    assert rate.charge(100, nothing, now=1.75) == pytest.approx(0.25)


def test_no_stretch_of_time_has_more_than_burst_and_rate() -> None:
    """P9: who says as much as it can is heard at its rate; what it has not paid for yet is what it
    said last, and less than one small change."""
    rate, heard, now = FrameRate(RATE), 0, 0.0
    while now < 60:
        wait_s = rate.charge(90, nothing, now=now)
        heard += 90
        assert heard <= 1000 + 100 * now + 90 + UNCHARGED_FRAMES
        while wait_s:
            now += wait_s
            wait_s = rate.charge(0, nothing, now=now)
    assert heard >= 1000 + 60 * 100, "and not less"


def test_few_frames_are_charged_with_those_that_follow() -> None:
    rate = used_up()
    assert rate.charge(UNCHARGED_FRAMES - 1, nothing, now=0) == 0
    assert rate.charge(1, nothing, now=0) > 0


def test_what_is_said_of_messages_that_were_given_is_free() -> None:
    rate = used_up()
    assert rate.charge(FREE_FRAMES_PER_MESSAGE * 50, lambda: 50, now=0) == 0
    assert rate.charge(UNCHARGED_FRAMES, lambda: 50, now=0) > 0, "once for each"
    assert rate.charge(0, lambda: 50 + UNCHARGED_FRAMES, now=0) == 0


def test_a_subscription_that_has_ended_earns_nothing_twice() -> None:
    rate = used_up()
    assert rate.charge(UNCHARGED_FRAMES, lambda: 1000, now=0) == 0
    left = 1000 * FREE_FRAMES_PER_MESSAGE - UNCHARGED_FRAMES
    assert rate.charge(left, lambda: 0, now=0) == 0
    assert rate.charge(UNCHARGED_FRAMES, lambda: 0, now=0) > 0
    assert rate.charge(0, lambda: UNCHARGED_FRAMES, now=0) == 0, "of another one, that began at 0"


def test_what_is_free_is_not_saved_up_without_end() -> None:
    """P9."""
    rate = used_up()
    assert rate.charge(UNCHARGED_FRAMES, lambda: 10 * FREE_FRAMES_MAX, now=0) == 0
    assert rate.charge(FREE_FRAMES_MAX - UNCHARGED_FRAMES, lambda: 10 * FREE_FRAMES_MAX, now=0) == 0
    assert rate.charge(UNCHARGED_FRAMES, lambda: 10 * FREE_FRAMES_MAX, now=0) > 0


def test_without_a_rate_nobody_waits() -> None:
    rate = FrameRate(None)
    assert all(rate.charge(10**6, nothing, now=0) == 0 for _ in range(10))
