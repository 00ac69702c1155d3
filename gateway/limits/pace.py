"""How fast a session may talk beside publishing. Pure.

Publishes have limits of their own, and what a consumer says of what it was given (acks, credit,
leases) is as much as that. All else is cheap to say and costs the broker work: subscribing and
leaving, pings, asking for what is not there. A session that says more of it than its rate is not
refused, it is heard later: its socket is not read until what it has said is paid for. So nothing
that it said is lost, and others do not wait behind it (P9).
"""

from collections.abc import Callable
from typing import Final

from push.rates.bucket import Bucket, Rate

FREE_PER_MESSAGE: Final = 4
"""Frames that come free with each message that the session was given: an ack, a credit, and more
than one extend."""
FREE_MAX: Final = 40_000
"""So many are kept for later at most."""
SMALL_CHANGE: Final = 64
"""Fewer frames than this are charged with those that follow: most sessions never say so many."""


class Pace:
    """Of one session."""

    __slots__ = ("_bucket", "_free", "_given", "_owed", "_rate")

    def __init__(self, rate: Rate | None) -> None:
        """None: as fast as it likes. Its burst must be more than is ever said at once."""
        self._rate = rate
        self._bucket: Bucket | None = None
        self._owed = 0
        self._free = 0
        self._given = 0
        """Messages for which it has been given what is free."""

    def pay(self, count: int, given: Callable[[], int], *, now: float) -> float:
        """It has said `count` more frames. 0: it may go on; else how many seconds it is not to be
        heard: then ask again with 0. `given`: messages that its subscriptions were given so far.
        `now`: seconds, monotonic."""
        self._owed += count
        if self._owed < SMALL_CHANGE:
            return 0.0
        if self._rate is None:
            self._owed = 0
            return 0.0
        self._earn(given())
        free = min(self._owed, self._free)
        self._free -= free
        self._owed -= free
        if self._bucket is None:
            self._bucket = Bucket(self._rate)
        wait_s = self._bucket.take(min(self._owed, self._rate.burst), now=now)
        if not wait_s:
            self._owed = max(0, self._owed - self._rate.burst)
        return wait_s

    def _earn(self, given: int) -> None:
        # A subscription that has ended takes its count with it.
        self._given = min(self._given, given)
        self._free = min(FREE_MAX, self._free + FREE_PER_MESSAGE * (given - self._given))
        self._given = given
