"""How far the broker's clock is from this client's. Pure.

So that the broker can tell how long a message took from here, its client says when it produced it,
by its own clock, and by how much the broker's is ahead. That is found as NTP does: what the broker
says of its clock lies between a question and its answer, and the shortest round trip says most.

This client's clock is the wall clock once, when it begins, and monotonic from there on. `now` is
in seconds, of a monotonic clock.
"""

from collections import deque
from typing import Final, NamedTuple

EVERY_S: Final = 30.0
"""While something is published, the broker is asked so often,"""
FIRST_EVERY_S: Final = 0.25
FIRST: Final = 4
"""and at first so often, so many times."""
SAMPLES: Final = 8
"""The best of so many counts."""
NEWS_US: Final = 50
"""What changes by less is not told."""
STEP_US: Final = 50_000
"""So much beyond what round trips explain, and one of the two clocks was stepped."""


class _Sample(NamedTuple):
    round_trip_us: int
    offset_us: int


class BrokerClock:
    """See the module."""

    def __init__(self, *, wall_unix_us: int, now: float) -> None:
        self._base_us = wall_unix_us - int(now * 1_000_000)
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._offset_us: int | None = None
        self._sent_us: int | None = None
        self._pinged_at = 0.0
        self._pings = 0
        self.is_wanted = False
        """The broker says what its clock shows, and wants to know."""

    def unix_us(self, now: float) -> int:
        """This client's clock, in unix microseconds."""
        return self._base_us + int(now * 1_000_000)

    def on_welcome(self, broker_unix_us: int | None, *, now: float) -> None:
        """A welcome came, and said this; None: the broker does not say, and must not be told. It is
        perhaps another broker than before."""
        self._samples.clear()
        self._pings = 0
        self._sent_us = None
        self.is_wanted = broker_unix_us is not None
        if broker_unix_us is not None:  # until a round trip is known, too early by the way back
            self._offset_us = broker_unix_us - self.unix_us(now)

    def is_due(self, now: float) -> bool:
        """Whether the broker is to be asked now."""
        every_s = FIRST_EVERY_S if self._pings < FIRST else EVERY_S
        return self.is_wanted and (not self._pings or now - self._pinged_at >= every_s)

    def on_ping(self, now: float) -> None:
        """It is asked."""
        self._pings += 1
        self._pinged_at = now

    def on_pong(self, asked_at: float, broker_unix_us: int, *, now: float) -> None:
        """What it was asked at `asked_at` it answers now."""
        sent_us, received_us = self.unix_us(asked_at), self.unix_us(now)
        fresh = _Sample(received_us - sent_us, broker_unix_us - (sent_us + received_us) // 2)
        if self._samples:
            best = min(self._samples)
            explained_us = (fresh.round_trip_us + best.round_trip_us) // 2 + STEP_US
            if abs(fresh.offset_us - best.offset_us) > explained_us:
                self._samples.clear()
        self._samples.append(fresh)
        self._offset_us = min(self._samples).offset_us

    @property
    def offset_to_send_us(self) -> int | None:
        """By how much the broker's clock is ahead, where that is to be told; None: nothing is."""
        if not self.is_wanted or self._offset_us is None:
            return None
        told_us = self._sent_us
        is_news = told_us is None or abs(self._offset_us - told_us) >= NEWS_US
        return self._offset_us if is_news else None

    def on_offset_sent(self) -> None:
        """The news was said."""
        self._sent_us = self._offset_us
