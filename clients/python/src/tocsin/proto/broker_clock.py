"""The offset of the broker's clock from this client's. Pure.

A client states when it produced a message, by its own clock, and how far the broker's clock is
ahead. From both the broker computes how long the message took. The offset is found as in NTP: the
broker's time lies between a ping and its pong, and the shortest round trip is the most exact.

This client's clock is the wall clock at its beginning, and monotonic from then on. `now` is in
seconds, of a monotonic clock.
"""

from collections import deque
from typing import Final, NamedTuple

EVERY_S: Final = 30.0
"""The interval of pings while messages are published, in seconds."""
FIRST_EVERY_S: Final = 0.25
"""The interval of the first pings, of which there are FIRST, in seconds."""
FIRST: Final = 4
SAMPLES: Final = 8
"""The number of latest round trips of which the shortest one gives the offset."""
NEWS_US: Final = 50
"""The smallest change of the offset that is sent to the broker, in microseconds."""
STEP_US: Final = 50_000
"""The change of the offset, beyond what round trips explain, above which a clock counts as stepped,
in microseconds. Earlier round trips are then discarded."""


class _Sample(NamedTuple):
    round_trip_us: int
    offset_us: int


class BrokerClock:
    """The offset of the broker's clock, as the welcome and the pongs of this connection show it."""

    def __init__(self, *, wall_unix_us: int, now: float) -> None:
        self._base_us = wall_unix_us - int(now * 1_000_000)
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._offset_us: int | None = None
        self._sent_us: int | None = None
        self._pinged_at = 0.0
        self._pings = 0
        self.is_wanted = False
        """Whether the broker sends its own time, and wants that of producers."""

    def unix_us(self, now: float) -> int:
        """Return this client's time at `now`, in Unix microseconds."""
        return self._base_us + int(now * 1_000_000)

    def on_welcome(self, broker_unix_us: int | None, *, now: float) -> None:
        """Begin with the time in a welcome. None means that the broker must not be sent any times.

        The welcome may come from another broker than the one before.
        """
        self._samples.clear()
        self._pings = 0
        self._sent_us = None
        self.is_wanted = broker_unix_us is not None
        if broker_unix_us is not None:  # until a round trip is known, early by the way back
            self._offset_us = broker_unix_us - self.unix_us(now)

    def is_due(self, now: float) -> bool:
        """Whether to ping the broker now."""
        every_s = FIRST_EVERY_S if self._pings < FIRST else EVERY_S
        return self.is_wanted and (not self._pings or now - self._pinged_at >= every_s)

    def on_ping(self, now: float) -> None:
        """Note that a ping is sent."""
        self._pings += 1
        self._pinged_at = now

    def on_pong(self, asked_at: float, broker_unix_us: int, *, now: float) -> None:
        """Use the pong to the ping that was sent at `asked_at`."""
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
        """The offset of the broker's clock to send with the next publish, in microseconds. None if
        the broker wants no times, the offset is not known, or it has changed by less than NEWS_US
        since it was sent."""
        if not self.is_wanted or self._offset_us is None:
            return None
        told_us = self._sent_us
        is_news = told_us is None or abs(self._offset_us - told_us) >= NEWS_US
        return self._offset_us if is_news else None

    def on_offset_sent(self) -> None:
        """Note that the offset is sent."""
        self._sent_us = self._offset_us
