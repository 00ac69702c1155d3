"""Whether and when to connect again. Pure.

Jittered and exponential, so that the clients of a gateway that died do not all come back at once;
a gateway that drains says itself when to come.
"""

from random import Random
from typing import Final

from tocsin.proto import close_codes

DELAY_S: Final = 0.1
"""Before the first attempt, at most; the bound doubles from attempt to attempt."""
DELAY_S_MAX: Final = 15.0
LIMITED_S_MAX: Final = 60.0
"""The longest wait for a limit; then it is asked again."""
UNAUTHORIZED_MAX: Final = 3
"""So often in a row a fresh token is tried."""


class Reconnecting:
    """Counts failed attempts. `fresh_tokens`: each attempt brings a token of its own."""

    def __init__(self, *, rng: Random, fresh_tokens: bool) -> None:
        self._rng = rng
        self._fresh_tokens = fresh_tokens
        self._attempts = self._attempts_before = 0
        self._unauthorized = 0
        self._advised_at: float | None = None
        self._limited_s = 0.0

    def connected(self) -> None:
        """A session stands: the next loss starts from the beginning."""
        self._attempts_before, self._attempts = self._attempts, 0
        self._unauthorized = 0
        self._advised_at = None

    def broken(self) -> None:
        """What that session said was no protocol: it counts as an attempt that failed."""
        self._attempts = max(self._attempts, self._attempts_before)

    def advised(self, after_s: float, *, now: float) -> None:
        """The broker has said to come back after so many seconds."""
        self._advised_at = now + after_s

    def limited(self, after_s: float) -> None:
        """The attempt was over a limit, and would not be after so many seconds. Others have heard
        the same: the usual delay comes on top."""
        self._limited_s = min(after_s, LIMITED_S_MAX)

    def may_reconnect(self, close_code: int) -> bool:
        """Whether another attempt makes sense after a session that ended with this close code, or
        an attempt that was answered as if with it."""
        if close_code == close_codes.UNAUTHORIZED:
            self._unauthorized += 1
            return self._fresh_tokens and self._unauthorized <= UNAUTHORIZED_MAX
        return close_codes.may_reconnect(close_code)

    def delay_s(self, *, now: float) -> float:
        """How long to wait before the next attempt, in seconds."""
        if self._advised_at is not None:
            advised_at, self._advised_at = self._advised_at, None
            return max(0.0, advised_at - now)
        limited_s, self._limited_s = self._limited_s, 0.0
        bound_s = min(DELAY_S_MAX, DELAY_S * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        return limited_s + self._rng.uniform(bound_s / 4, bound_s)
