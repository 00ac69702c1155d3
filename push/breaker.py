"""A circuit breaker: whether a service that has failed is worth asking (Nygard, Release It!). Pure.

    closed ── `failures_max` failures in a row ──▶ open ── `open_s` later ──▶ half-open
       ▲                                            ▲                            │
       └── the trial succeeds ───────────────┐      └── it fails, or is silent ──┤
                                             └───────────────────────────────────┘

Closed, everybody asks. Open, nobody does: who would only wait for a deadline is answered at once,
and the service is left alone to recover. Half-open, one call is the trial.
"""

from typing import Final, Literal

State = Literal["closed", "open", "half_open"]
NEVER: Final = float("inf")


class Breaker:
    """See the module. Each call that is admitted has a ticket, and reports its end with it: one
    that began before the breaker last changed says nothing any more."""

    __slots__ = ("_failures", "_is_open", "_round", "_trial_until", "_until", "failures_max",
                 "open_s", "opened_total", "trial_s")  # fmt: skip

    def __init__(self, *, failures_max: int, open_s: float, trial_s: float) -> None:
        """`failures_max`: so many failures in a row open it. `open_s`: seconds that nobody asks
        then. `trial_s`: seconds within which a trial reports, or is taken for failed."""
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
        self._trial_until: float | None = None
        self._round = 0

    def __repr__(self) -> str:
        return f"Breaker(open={self._is_open}, failures={self._failures}, until={self._until})"

    def state(self, *, now: float) -> State:
        """What a call would meet now."""
        self.expire(now=now)
        if not self._is_open:
            return "closed"
        return "open" if now < self._until else "half_open"

    def admit(self, *, now: float) -> int | None:
        """A call wants to begin: its ticket, or None: it is to be refused. Half-open, the first
        one is the trial and the others are refused until it has ended."""
        self.expire(now=now)
        if self._is_open:
            if now < self._until or self._trial_until is not None:
                return None
            self._round += 1
            self._trial_until = now + self.trial_s
        return self._round

    def succeeded(self, ticket: int) -> None:
        """The call was answered. A trial closes the breaker; a ticket of before means nothing."""
        if ticket == self._round and (not self._is_open or self._trial_until is not None):
            self._failures = 0
            self._is_open, self._trial_until = False, None

    def failed(self, ticket: int, *, now: float) -> None:
        """The call failed, or was not answered in time. A ticket of before means nothing."""
        if ticket != self._round:
            return
        self._failures += 1
        if self._is_open or self._failures >= self.failures_max:
            self._open(now)

    def _open(self, now: float) -> None:
        self._round += 1
        self._failures = 0
        self._is_open, self._trial_until = True, None
        self._until = now + self.open_s
        self.opened_total += 1

    def retry_after_s(self, *, now: float) -> float:
        """When who was refused should come again, in seconds from now; 0: at once."""
        if not self._is_open:
            return 0.0
        return max(0.0, self._until - now, (self._trial_until or now) - now)

    def next_deadline(self) -> float:
        """When `expire` has something to do: a trial that says nothing. Infinity: never."""
        return NEVER if self._trial_until is None else self._trial_until

    def expire(self, *, now: float) -> None:
        """A trial that has not reported by now has failed."""
        if self._trial_until is not None and now >= self._trial_until:
            self._open(now)

    def check(self) -> None:
        """Its invariants."""
        assert 0 <= self._failures < self.failures_max
        assert self._is_open or self._trial_until is None
