"""How long something may take that arrives in parts. Pure."""

from typing import Final

from push import limits


class Progress:
    """A deadline that counts what moves: over after `patience_s` without a part, and over after
    `patience_s` plus the time that the slowest line needs for the parts so far. Whoever sends a
    byte now and then, to hold a socket for ever, is cut by the second."""

    __slots__ = ("_began_at", "_moved_at", "_size", "patience_s")

    def __init__(self, patience_s: float, *, now: float) -> None:
        self.patience_s: Final = patience_s
        self._began_at = now
        self._moved_at = now
        self._size = 0

    def moved(self, size: int, *, now: float) -> None:
        """A part of this size has arrived."""
        self._size += size
        self._moved_at = now

    def excuse(self, *, now: float) -> None:
        """The time until now does not count: nobody took what the other side had to give."""
        self._began_at += now - self._moved_at
        self._moved_at = now

    @property
    def ends_at(self) -> float:
        """When it is over, if nothing more arrives."""
        paid_s = self._size / limits.SLOWEST_BYTES_PER_S
        return min(self._moved_at, self._began_at + paid_s) + self.patience_s
