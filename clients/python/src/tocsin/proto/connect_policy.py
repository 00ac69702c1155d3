"""Which transport to try next. Pure.

A WebSocket where it gets through, long poll where it does not, and from long poll back again:

* A WebSocket that was refused, swallowed or cut although something had been reached, or that dies
  young three times in a row: the next attempt is a long poll.
* A long poll that fails: the next attempt is a WebSocket.
* While a long poll stands, a WebSocket is tried beside it, ever more seldom, and takes over.
"""

from random import Random
from typing import Final, Literal

Transport = Literal["websocket", "long-poll"]
Mode = Literal["auto", "websocket", "long-poll"]
MODES: Final = ("auto", "websocket", "long-poll")

YOUNG_S: Final = 60.0
"""A WebSocket that was cut off sooner died young."""
DIED_YOUNG_MAX: Final = 3
RETURN_S: Final = 10.0
"""So long after a long poll stands a WebSocket is tried; twice as long after each that failed."""
RETURN_S_MAX: Final = 300.0


class Choice:
    """`mode`: the one transport that is allowed, or "auto"."""

    def __init__(self, mode: Mode, *, rng: Random) -> None:
        self.mode = mode
        self._rng = rng
        self._next: Transport = "long-poll" if mode == "long-poll" else "websocket"
        self._died_young = 0
        self._return_s = RETURN_S

    @property
    def next(self) -> Transport:
        """The transport of the next attempt."""
        return self._next

    @property
    def has_both(self) -> bool:
        """Whether there is anything to choose."""
        return self.mode == "auto"

    def failed(self, transport: Transport, *, reached: bool) -> bool:
        """An attempt has failed; `reached`: not because nobody was there. Returns whether the
        other transport may be tried at once."""
        if self.has_both and transport == "websocket" and reached:
            self._next = "long-poll"
            return True
        if self.has_both and transport == "long-poll":
            self._next = "websocket"
        return False

    def welcomed(self, transport: Transport) -> None:
        """A session stands."""
        if self.has_both:
            self._next = transport
        if transport == "websocket":
            self._return_s = RETURN_S

    def lost(self, transport: Transport, *, lived_s: float, was_told: bool) -> None:
        """A session's transport has ended; `was_told`: the broker had said why."""
        if transport != "websocket":
            return
        died_young = lived_s < YOUNG_S and not was_told
        self._died_young = self._died_young + 1 if died_young else 0
        if self.has_both and self._died_young >= DIED_YOUNG_MAX:
            self._died_young = 0
            self._next = "long-poll"

    def return_delay_s(self) -> float:
        """How long a long poll stands before a WebSocket is tried beside it, in seconds."""
        delay_s = self._return_s
        self._return_s = min(RETURN_S_MAX, 2 * delay_s)
        return delay_s * self._rng.uniform(0.75, 1.0)
