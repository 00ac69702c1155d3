"""A clock that jumps is not believed for a while (R32)."""

from hypothesis import given
from hypothesis import strategies as st

from push.due import DOUBT_S, JUMP_S, ClockGuard

YEAR_S = 365 * 86_400.0


def test_a_clock_that_goes_on_is_believed() -> None:
    guard = ClockGuard(1_000_000.0, 50.0)
    assert all(guard.look(1_000_000.0 + n, 50.0 + n) for n in range(100))
    assert (guard.jumps, guard.jump_s) == (0, 0.0)


def test_a_jump_of_a_minute_is_believed_and_a_longer_one_is_not() -> None:
    for jump_s in (JUMP_S, -JUMP_S):
        guard = ClockGuard(1_000_000.0, 50.0)
        assert guard.look(1_000_001.0 + jump_s, 51.0)
        assert guard.jumps == 0
    for jump_s in (JUMP_S + 0.5, -JUMP_S - 0.5, YEAR_S, -YEAR_S):
        guard = ClockGuard(1_000_000.0, 50.0)
        assert not guard.look(1_000_001.0 + jump_s, 51.0)
        assert (guard.jumps, guard.jump_s) == (1, jump_s)


def test_after_a_jump_it_is_believed_when_the_doubt_ends() -> None:
    guard = ClockGuard(1_000_000.0, 0.0)
    guard.look(1_000_001.0 + YEAR_S, 1.0)
    assert guard.doubt_s(1.0) == DOUBT_S
    assert not guard.look(1_000_000.9 + YEAR_S + DOUBT_S, 0.9 + DOUBT_S)
    assert guard.look(1_000_001.0 + YEAR_S + DOUBT_S, 1.0 + DOUBT_S)
    assert guard.doubt_s(1.0 + DOUBT_S) == 0.0


def test_a_clock_that_is_set_back_right_is_doubted_anew() -> None:
    """The operator has set it right, and that is a jump as well."""
    guard = ClockGuard(1_000_000.0, 0.0)
    guard.look(1_000_001.0 + YEAR_S, 1.0)
    assert not guard.look(1_000_100.0, 100.0)
    assert guard.doubt_s(100.0) == DOUBT_S
    assert guard.jumps == 2


def test_an_operator_can_end_the_doubt() -> None:
    guard = ClockGuard(1_000_000.0, 0.0)
    guard.believe(0.5)
    guard.look(1_000_001.0 + YEAR_S, 1.0)
    guard.believe(2.0)
    assert guard.look(1_000_003.0 + YEAR_S, 3.0)
    assert guard.doubt_s(3.0) == 0.0


@given(st.lists(st.floats(-JUMP_S + 1, JUMP_S - 1), max_size=50))
def test_slow_corrections_are_no_jump_however_many(steps_s: list[float]) -> None:
    guard, unix_s, now_s = ClockGuard(1_000_000.0, 0.0), 1_000_000.0, 0.0
    for step_s in steps_s:
        now_s, unix_s = now_s + 1, unix_s + 1 + step_s
        assert guard.look(unix_s, now_s)


# --- Beside the clock of a server -----------------------------------------------------------------


def test_a_server_whose_clock_is_apart_is_doubted_and_one_within_a_minute_is_not() -> None:
    for ahead_s in (0.0, JUMP_S, -JUMP_S):
        guard = ClockGuard(1_000_000.0, 50.0)
        assert guard.compare(7, ahead_s, ahead_s, 50.0)
        assert (guard.jumps, guard.is_apart) == (0, False)
    for ahead_s in (JUMP_S + 0.5, -JUMP_S - 0.5, YEAR_S, -YEAR_S):
        guard = ClockGuard(1_000_000.0, 50.0)
        assert not guard.compare(7, ahead_s, ahead_s, 50.0)
        assert (guard.jumps, guard.jump_s, guard.is_apart) == (1, ahead_s, True)
        assert not guard.compare(7, ahead_s, ahead_s, 49.9 + DOUBT_S)
        assert guard.compare(7, ahead_s, ahead_s, 50.0 + DOUBT_S), "the doubt ends, as it stands"
        assert guard.jumps == 1


def test_servers_are_judged_each_by_itself() -> None:
    guard = ClockGuard(1_000_000.0, 0.0)
    assert not guard.compare(1, YEAR_S, YEAR_S, 0.0)
    guard.believe(1.0)
    assert guard.compare(2, 1.0, 1.0, 2.0)
    assert guard.compare(1, YEAR_S, YEAR_S, 3.0)
    assert not guard.compare(2, -YEAR_S, -YEAR_S, 4.0)


def test_an_answer_that_took_long_is_no_jump() -> None:
    guard = ClockGuard(1_000_000.0, 0.0)
    assert guard.compare(1, -3600.0, 0.0, 3600.0), "the server has answered at the end"
    assert guard.compare(1, 0.0, 3600.0, 7200.0), "or at once, and the answer was not read"
    assert guard.compare(1, 0.0, 0.0, 7201.0)
    assert guard.jumps == 0


def test_one_jump_is_not_found_twice() -> None:
    """The gateway's own clock was set, so it is further ahead of every server."""
    guard = ClockGuard(1_000_000.0, 0.0)
    assert guard.compare(1, 2.0, 2.0, 0.0)
    assert not guard.look(1_000_001.0 + YEAR_S, 1.0)
    guard.believe(2.0)
    assert guard.compare(1, YEAR_S + 2.0, YEAR_S + 2.0, 2.0)
    assert (guard.jumps, guard.is_apart) == (1, False)
