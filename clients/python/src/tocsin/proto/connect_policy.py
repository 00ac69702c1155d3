"""The choice of the next transport to try, and when. Pure.

A client uses a WebSocket if one gets through, and otherwise a long poll. It returns from a long
poll to a WebSocket:

* After a WebSocket that was refused, swallowed or cut although a server was reached, the next
  attempt is a long poll. The same holds after three WebSockets in a row that died young.
* After a long poll that fails, the next attempt is a WebSocket.
* While a long poll carries the session, a WebSocket is tried beside it, less and less often, and
  takes over.

Delays are jittered and exponential, so that the clients of a gateway that died do not all come back
at once. A gateway that drains names the delay itself.
"""

from random import Random
from typing import Final, Literal

from tocsin.proto import close_codes

Transport = Literal["websocket", "long-poll"]
Mode = Literal["auto", "websocket", "long-poll"]
MODES: Final = ("auto", "websocket", "long-poll")
YOUNG_S: Final = 60.0
"""The age in seconds below which a WebSocket has died young if it ends without a close frame."""
DIED_YOUNG_MAX: Final = 3
RETURN_S: Final = 10.0
"""The longest time before a WebSocket is first tried beside a long poll, in seconds. Each try
doubles this bound, up to RETURN_S_MAX."""
RETURN_S_MAX: Final = 300.0
DELAY_S: Final = 0.1
"""The longest delay before the first attempt to reconnect, in seconds; each attempt doubles this
bound, up to DELAY_S_MAX."""
DELAY_S_MAX: Final = 15.0
LIMITED_S_MAX: Final = 60.0
"""The longest time that the broker's advice after `rate_limited` adds to the delay before the next
attempt to connect, in seconds."""
UNAUTHORIZED_MAX: Final = 3
"""The number of fresh tokens that are tried in a row after the broker has refused the credentials.
Then the client gives up."""


class TransportChoice:
    """The transport of the next attempt. `mode` is the only transport that is allowed, or
    "auto"."""

    def __init__(self, mode: Mode, *, rng: Random) -> None:
        self.mode = mode
        self._rng = rng
        self._next: Transport = "long-poll" if mode == "long-poll" else "websocket"
        self._died_young = 0
        self._return_s = RETURN_S

    @property
    def next(self) -> Transport:
        """The transport of the next attempt. It is a WebSocket at first, unless only long poll is
        allowed. Then it is what the failures and welcomes noted below have made it."""
        return self._next

    @property
    def has_both(self) -> bool:
        """Whether both transports are allowed."""
        return self.mode == "auto"

    def on_failure(self, transport: Transport, *, reached: bool) -> bool:
        """Note that an attempt has failed; returns whether to try the other transport at once.

        `reached` states that a server had answered.
        """
        if self.has_both and transport == "websocket" and reached:
            self._next = "long-poll"
            return True
        if self.has_both and transport == "long-poll":
            self._next = "websocket"
        return False

    def on_welcome(self, transport: Transport) -> None:
        """Stay with the transport that brought a welcome."""
        if self.has_both:
            self._next = transport
        if transport == "websocket":
            self._return_s = RETURN_S

    def on_loss(self, transport: Transport, *, lived_s: float, had_reason: bool) -> None:
        """Note that a session's transport has ended. `had_reason` means that the broker gave a
        reason."""
        if transport != "websocket":
            return
        died_young = lived_s < YOUNG_S and not had_reason
        self._died_young = self._died_young + 1 if died_young else 0
        if self.has_both and self._died_young >= DIED_YOUNG_MAX:
            self._died_young = 0
            self._next = "long-poll"

    def next_return_delay_s(self) -> float:
        """Return the time until a WebSocket is tried beside a long poll; the next one is longer."""
        delay_s = self._return_s
        self._return_s = min(RETURN_S_MAX, 2 * delay_s)
        return delay_s * self._rng.uniform(0.75, 1.0)


class ReconnectDelay:
    """The delay before the next attempt, which grows with failed attempts.

    `fresh_tokens` means that each attempt brings its own token.
    """

    def __init__(self, *, rng: Random, fresh_tokens: bool) -> None:
        self._rng = rng
        self._fresh_tokens = fresh_tokens
        self._attempts = self._attempts_before = 0
        self._unauthorized = 0
        self._advised_at: float | None = None
        self._limited_s = 0.0

    def on_connect(self) -> None:
        """Begin again with the shortest delay, because a session is open."""
        self._attempts_before, self._attempts = self._attempts, 0
        self._unauthorized = 0
        self._advised_at = None

    def on_protocol_error(self) -> None:
        """Count the session as a failed attempt, because it brought something that is not the
        protocol."""
        self._attempts = max(self._attempts, self._attempts_before)

    def on_drain(self, after_s: float, *, now: float) -> None:
        """Note the delay that a draining broker has named."""
        self._advised_at = now + after_s

    def on_rate_limit(self, after_s: float) -> None:
        """Add `after_s` seconds, at most LIMITED_S_MAX, to the next delay, because the attempt was
        over a limit.

        Other clients wait for the same time, so the usual delay is waited, too.
        """
        self._limited_s = min(after_s, LIMITED_S_MAX)

    def on_close(self, close_code: int) -> bool:
        """Note the close code of a session or an attempt; returns whether to try again. After
        UNAUTHORIZED that is so for up to UNAUTHORIZED_MAX times in a row, and only with
        `fresh_tokens`."""
        if close_code == close_codes.UNAUTHORIZED:
            self._unauthorized += 1
            return self._fresh_tokens and self._unauthorized <= UNAUTHORIZED_MAX
        return close_codes.may_reconnect(close_code)

    def next_delay_s(self, *, now: float) -> float:
        """Return the delay before the next attempt, in seconds: the one that a draining gateway has
        named, or else a random one up to a bound, which doubles with each attempt. The time of
        `on_rate_limit` is added to the random one."""
        if self._advised_at is not None:
            advised_at, self._advised_at = self._advised_at, None
            return max(0.0, advised_at - now)
        limited_s, self._limited_s = self._limited_s, 0.0
        bound_s = min(DELAY_S_MAX, DELAY_S * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        return limited_s + self._rng.uniform(bound_s / 4, bound_s)
