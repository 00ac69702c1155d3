"""Who waits to hear that what was settled is durable: with the write that is under way, or with the
next one. Pure."""

from collections.abc import Callable

Confirmed = Callable[[bool], None]
"""Called once: with True when it is durable, with False when that will never be known here."""


class Confirms:
    """Of one place. What is returned is to be called."""

    __slots__ = ("_next", "_writing")

    def __init__(self) -> None:
        self._writing: list[Confirmed] = []
        self._next: list[Confirmed] = []

    @property
    def waits(self) -> bool:
        """Whether somebody waits for the next write."""
        return bool(self._next)

    def add(self, confirmed: Confirmed) -> None:
        """This one waits for what is settled by now: it stands in the next write at the latest."""
        self._next.append(confirmed)

    def begin(self) -> None:
        """A write is under way, with all that was settled before."""
        self._writing, self._next = self._next, []

    def written(self, *, is_all: bool) -> list[Confirmed]:
        """It is durable. `is_all`: what was settled while it was under way stood in it already."""
        done, self._writing = self._writing, []
        if is_all:
            done, self._next = done + self._next, []
        return done

    def not_written(self) -> None:
        """Nobody knows: it is written again."""
        self._writing, self._next = [], self._writing + self._next

    def end(self) -> list[Confirmed]:
        """There will be no other write, and what comes of one that is under way is nobody's."""
        done = self._writing + self._next
        self._writing, self._next = [], []
        return done
