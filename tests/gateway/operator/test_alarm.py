"""When an alert fires, and when it clears."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.operator.alerts import CLEARS_S, Alarm, Change


def looked(*steps: tuple[float, float], above: float = 10, lasts_s: float = 30) -> list[Change]:
    """Return what changes with these (time, value)."""
    alarm = Alarm()
    found = [alarm.judge(value, above, lasts_s, now=at) for at, value in steps]
    return [one for one in found if one is not None]


def test_what_is_above_for_long_enough_fires_once() -> None:
    assert looked((0, 11), (29, 11)) == []
    assert looked((0, 11), (30, 11), (60, 12), (900, 99)) == ["fires"]


def test_the_threshold_itself_is_no_breach() -> None:
    assert looked((0, 10), (100, 10)) == []


def test_what_falls_below_in_between_begins_anew() -> None:
    assert looked((0, 11), (20, 5), (29, 11), (40, 11)) == []


def test_it_clears_when_it_was_below_for_as_long() -> None:
    assert looked((0, 11), (30, 11), (40, 1), (60, 1)) == ["fires"]
    assert looked((0, 11), (30, 11), (40, 1), (70, 1)) == ["fires", "clears"]


def test_what_lasts_long_clears_after_a_minute() -> None:
    steps = ((0, 11), (3600, 11), (3700, 1), (3700 + CLEARS_S, 1))
    assert looked(*steps, lasts_s=3600) == ["fires", "clears"]


def test_without_a_time_it_fires_at_once() -> None:
    assert looked((0, 11), (1, 1), lasts_s=0) == ["fires", "clears"]


def test_one_that_fired_elsewhere_only_clears() -> None:
    alarm = Alarm(fires=True)
    assert alarm.judge(11, 10, 0, now=0) is None
    assert alarm.judge(1, 10, 0, now=1) == "clears"


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=40), st.floats(0, 60))
def test_it_fires_and_clears_in_turns(steps: list[tuple[float, bool]], lasts_s: float) -> None:
    now, timed = 0.0, []
    for pause_s, is_above in steps:
        now += pause_s
        timed.append((now, 11.0 if is_above else 1.0))
    found = looked(*timed, lasts_s=lasts_s)
    assert found == ["fires", "clears"] * (len(found) // 2) + ["fires"] * (len(found) % 2)
