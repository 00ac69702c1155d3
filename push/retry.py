"""Retries after failures: a circuit breaker says whether, a backoff says when. Pure.

The circuit breaker (Nygard, Release It!) of a service:

    closed ── `failures_max` failures in a row ──▶ open ── `open_s` later ──▶ half-open
       ▲                                            ▲                            │
       └── the trial succeeds ───────────────┐      └── it fails, or is silent ──┤
                                             └───────────────────────────────────┘

Closed, every call is admitted. Open, none is: a caller that would only wait for a deadline is
answered at once, and the service is left alone to recover. Half-open, one call is the trial.

The backoff of a single attempt is exponential with jitter; the random draw is handed in. A
persisted due time is believed in part, because the clock that wrote it may have been wrong.
"""

from typing import Final, Literal

State = Literal["closed", "open", "half_open"]
NEVER: Final = float("inf")


class Breaker:
    """The breaker of one service. Each call that is admitted has a ticket, and reports its end with
    it. The end of a call that began before the breaker last changed is ignored."""

    __slots__ = (
        "_failures",
        "_is_open",
        "_ticket",
        "_trial_until",
        "_until",
        "failures_max",
        "open_s",
        "opened_total",
        "trial_s",
    )

    def __init__(self, *, failures_max: int, open_s: float, trial_s: float) -> None:
        """`failures_max`: number of failures in a row that open it. `open_s`: seconds for which no
        call is admitted then. `trial_s`: seconds after which a trial without an end has failed."""
        assert failures_max >= 1
        assert open_s > 0
        assert trial_s > 0
        self.failures_max = failures_max
        self.open_s = open_s
        self.trial_s = trial_s
        self.opened_total = 0
        self._failures = 0
        self._is_open = False
        self._until = 0.0
        """Time from which an open breaker is half-open."""
        self._trial_until: float | None = None
        self._ticket = 0
        """Ticket of calls that begin now; another one each time that the breaker changes."""

    def __repr__(self) -> str:
        return f"Breaker(open={self._is_open}, failures={self._failures}, until={self._until})"

    def state(self, *, now: float) -> State:
        """Return the state of the breaker now. Half-open, the trial may be under way already."""
        self.expire(now=now)
        if not self._is_open:
            return "closed"
        return "open" if now < self._until else "half_open"

    def admit(self, *, now: float) -> int | None:
        """Return a ticket for a call that is to begin; None: it is to be refused. Half-open, the
        first call is the trial, and the others are refused until it has ended."""
        self.expire(now=now)
        if self._is_open:
            if now < self._until or self._trial_until is not None:
                return None
            self._ticket += 1
            self._trial_until = now + self.trial_s
        return self._ticket

    def succeeded(self, ticket: int) -> None:
        """Report that a call was answered. It ends a row of failures, and a trial closes the
        breaker."""
        if ticket == self._ticket and (not self._is_open or self._trial_until is not None):
            self._failures = 0
            self._is_open, self._trial_until = False, None

    def failed(self, ticket: int, *, now: float) -> None:
        """Report that a call failed, or was not answered in time."""
        if ticket != self._ticket:
            return
        self._failures += 1
        if self._is_open or self._failures >= self.failures_max:
            self._open(now)

    def _open(self, now: float) -> None:
        self._ticket += 1
        self._failures = 0
        self._is_open, self._trial_until = True, None
        self._until = now + self.open_s
        self.opened_total += 1

    def retry_after_s(self, *, now: float) -> float:
        """Return after how many seconds a refused caller should come again; 0: at once."""
        if not self._is_open:
            return 0.0
        return max(0.0, self._until - now, (self._trial_until or now) - now)

    def next_deadline(self) -> float:
        """Return when a trial that has not ended is given up; infinity: none is under way."""
        return NEVER if self._trial_until is None else self._trial_until

    def expire(self, *, now: float) -> None:
        """Give up a trial that has not ended by now. It has failed then."""
        if self._trial_until is not None and now >= self._trial_until:
            self._open(now)

    def check(self) -> None:
        """Check the invariants."""
        assert 0 <= self._failures < self.failures_max
        assert self._is_open or self._trial_until is None


def backoff_s(attempt: int, *, base_s: float, max_s: float, draw: float) -> float:
    """Return the seconds to wait after failed attempt number `attempt` (from 1), with jitter.

    The ceiling is `base_s`, doubled with each further attempt, up to `max_s`. `draw` in [0, 1)
    places the wait in the upper half of it: (ceiling / 2, ceiling]. So retries spread, and yet each
    wait is at least as long as any before it, until `max_s` is reached.
    """
    # 2.0**1023 is the largest power of two that is a float; the product may be inf, never an error
    ceiling = min(max_s, base_s * 2.0 ** min(max(attempt, 1) - 1, 1023))
    return ceiling * (1 - draw / 2)


# enforces: R3
def clamp_due(due_unix_ms: int, wall_unix_ms: int, max_s: float) -> int:
    """Return a persisted due time (unix ms), but never further away than `max_s` (R3).

    [The wall clock was a year ahead when the backoff was written: the key waits a year.]
    """
    return min(due_unix_ms, wall_unix_ms + round(max_s * 1000))
