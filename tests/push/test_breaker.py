"""The breaker: it opens, lets one try, and believes nobody who comes late."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from push.retry import Breaker


def fresh() -> Breaker:
    return Breaker(failures_max=3, open_s=1.0, trial_s=5.0)


def ticket(breaker: Breaker, now: float) -> int:
    admitted = breaker.admit(now=now)
    assert admitted is not None
    return admitted


def opened(now: float = 0.0) -> Breaker:
    """One that has just opened."""
    breaker = fresh()
    for _ in range(3):
        breaker.failed(ticket(breaker, now), now=now)
    return breaker


def test_it_opens_with_the_last_of_so_many_failures_in_a_row() -> None:
    breaker = fresh()
    for _ in range(2):
        breaker.failed(ticket(breaker, 0), now=0)
    assert breaker.state(now=0) == "closed"
    breaker.succeeded(ticket(breaker, 0))
    for _ in range(2):
        breaker.failed(ticket(breaker, 0), now=0)
    assert breaker.state(now=0) == "closed"
    breaker.failed(ticket(breaker, 0), now=0)
    assert breaker.state(now=0) == "open"
    assert breaker.admit(now=0) is None
    assert breaker.retry_after_s(now=0.25) == 0.75
    assert breaker.opened_total == 1


def test_half_open_one_tries_and_the_others_wait_for_it() -> None:
    breaker = opened()
    assert breaker.admit(now=0.999) is None
    assert breaker.state(now=1) == "half_open"
    trial = ticket(breaker, 1)
    assert breaker.admit(now=1) is None
    breaker.succeeded(trial)
    assert breaker.state(now=1) == "closed"
    assert breaker.admit(now=1) is not None


def test_a_trial_that_fails_opens_it_again() -> None:
    breaker = opened()
    breaker.failed(ticket(breaker, 1), now=4)
    assert breaker.state(now=4.999) == "open"
    assert breaker.state(now=5) == "half_open"


def test_a_trial_that_says_nothing_has_failed() -> None:
    breaker = opened()
    silent = ticket(breaker, 1)
    assert breaker.next_deadline() == 6
    assert breaker.admit(now=5.999) is None
    breaker.expire(now=6)
    assert breaker.next_deadline() == float("inf")
    breaker.succeeded(silent)
    assert breaker.state(now=6) == "open"
    assert breaker.admit(now=7) is not None


def test_who_began_before_it_opened_says_nothing_any_more() -> None:
    breaker = fresh()
    early = ticket(breaker, 0)
    for _ in range(3):
        breaker.failed(ticket(breaker, 0), now=0)
    breaker.succeeded(early)
    assert breaker.state(now=0) == "open"
    trial = ticket(breaker, 1)
    breaker.failed(early, now=1)
    breaker.succeeded(trial)
    assert breaker.state(now=1) == "closed"


class BreakerMachine(RuleBasedStateMachine):
    """Any history: an open one admits nobody, a trial is alone, and a service that works is asked
    again in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = fresh()
        self.now = 0.0
        self.out: list[int] = []

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def begin(self) -> None:
        before = self.breaker.state(now=self.now)
        admitted = self.breaker.admit(now=self.now)
        assert (admitted is None) <= (before != "closed")
        assert (admitted is not None) <= (before != "open")
        if admitted is not None:
            self.out.append(admitted)

    @rule(place=st.integers(0, 100), is_good=st.booleans())
    def end(self, place: int, is_good: bool) -> None:
        if self.out:
            one = self.out.pop(place % len(self.out))
            if is_good:
                self.breaker.succeeded(one)
            else:
                self.breaker.failed(one, now=self.now)

    @rule()
    def recovers(self) -> None:
        self.now += 7.0
        one = self.breaker.admit(now=self.now)
        if one is None:  # a silent trial ended just now
            self.now += 1.0
            one = ticket(self.breaker, self.now)
        self.breaker.succeeded(one)
        assert self.breaker.state(now=self.now) == "closed"
        self.out.clear()

    @invariant()
    def holds(self) -> None:
        self.breaker.check()


TestAnyHistory = BreakerMachine.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=30)
