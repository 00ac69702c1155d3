"""What clients have sent the beginning of: messages and bodies that are not complete yet. Pure.

Each alone is bounded, and whoever opens a thousand sockets and sends all of a large message but its
last byte would hold a thousand times that. So all of them together are bounded, too (P9), and where
that is not enough, those of the large ones give up that have been at it for longest: who means to
send a whole message is done soon, and who sends a small one slowly is not the one to blame.
"""

from typing import Final, Protocol

from push import limits

LARGE_BYTES: Final = 64 * 1024
"""Smaller ones give up behind all that are not."""


class Holder(Protocol):
    """Somebody who holds something incomplete."""

    def give_up(self) -> None:
        """Forget it at once, and say so to the client."""


class Incoming:
    """The incomplete bytes of one gateway."""

    __slots__ = ("_bytes_max", "_large", "_small", "total")

    def __init__(self, bytes_max: int = limits.INCOMPLETE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._large: dict[Holder, int] = {}
        """In the order in which they became large."""
        self._small: dict[Holder, int] = {}
        """In the order in which they began."""
        self.total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` has so many bytes of something incomplete; 0: of nothing. Where all have too
        many, some are told to give up; `holder` may be one of them."""
        if holder in self._large:
            held, before = self._large, self._large[holder]
        else:
            held, before = self._small, self._small.get(holder, 0)
        self.total += size - before
        if not size:
            held.pop(holder, None)
        elif held is self._small and size >= LARGE_BYTES:
            held.pop(holder, None)
            self._large[holder] = size
        else:
            held[holder] = size
        while self.total > self._bytes_max:
            held = self._large or self._small
            oldest = next(iter(held))
            self.total -= held.pop(oldest)
            oldest.give_up()
