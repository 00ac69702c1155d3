"""A circuit breaker: whether a service that has failed is worth asking (Nygard, Release It!). Pure.

    closed ── `failures_max` failures in a row ──▶ open ── `open_s` later ──▶ half-open
       ▲                                            ▲                            │
       └── the trial succeeds ───────────────┐      └── it fails, or is silent ──┤
                                             └───────────────────────────────────┘

Closed, everybody asks. Open, nobody does: who would only wait for a deadline is answered at once,
and the service is left alone to recover. Half-open, one call is the trial.

When a threshold of a queue's holder is breached, and when that is over. Pure.

A value has to be above it for as long as the alert says before it fires, and not above it for as
long (CLEARS_S at most) before it clears: what goes to and fro says nothing each time.

When a message is tried again. The draw is handed in; a persisted time is believed in part.
"""

from typing import Final, Literal

State = Literal["closed", "open", "half_open"]
NEVER: Final = float("inf")


class Breaker:
    """See the module. Each call that is admitted has a ticket, and reports its end with it: one
    that began before the breaker last changed says nothing any more."""

    __slots__ = (
        "_failures",
        "_is_open",
        "_round",
        "_trial_until",
        "_until",
        "failures_max",
        "open_s",
        "opened_total",
        "trial_s",
    )

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


CLEARS_S: Final = 60.0
Change = Literal["fires", "clears"]


class Alarm:
    """One alert. `fires` True: it did so when it was looked at last, perhaps elsewhere."""

    __slots__ = ("_since", "fires")

    def __init__(self, *, fires: bool = False) -> None:
        self.fires = fires
        self._since: float | None = None
        """Since when the value is on the other side."""

    def __repr__(self) -> str:
        return f"Alarm(fires={self.fires}, other side since {self._since})"

    def look(self, value: float, above: float, lasts_s: float, *, now: float) -> Change | None:
        """What changes with this value. None: nothing does."""
        if (value > above) is self.fires:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        needed_s = min(lasts_s, CLEARS_S) if self.fires else lasts_s
        if now - self._since < needed_s:
            return None
        self.fires, self._since = not self.fires, None
        return "fires" if self.fires else "clears"


def backoff_s(attempt: int, *, base_s: float, max_s: float, draw: float) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 1): exponential, with jitter.

    The ceiling is `base_s`, doubled with each further attempt, up to `max_s`. `draw` in [0, 1)
    places the wait in the upper half of it: (ceiling / 2, ceiling]. So retries spread, and yet each
    waits at least as long as any wait before it was, until `max_s` is reached.
    """
    # 2.0**1023 is the largest power of two that is a float; the product may be inf, never an error
    ceiling = min(max_s, base_s * 2.0 ** min(max(attempt, 1) - 1, 1023))
    return ceiling * (1 - draw / 2)


def clamp_due(due_unix_ms: int, wall_unix_ms: int, max_s: float) -> int:
    """A persisted due time (unix ms) as it is believed now: never further away than `max_s` (R3).

    [The wall clock was a year ahead when the backoff was written: the key waits a year.]
    """
    return min(due_unix_ms, wall_unix_ms + round(max_s * 1000))
