"""The sending order of one producer, in one partition or in one queue (R7). Pure.

A producer has many messages in flight. When one of them is refused, later ones must not be stored,
or a key's messages would change places. They are answered `out_of_sequence`, and stored when the
producer sends them again after the one that was refused. Each component that can refuse a message
keeps one of these per (producer, partition): the storage, and a gateway for its own refusals.
"""

from bisect import bisect_left
from typing import Final

REFUSED_MAX: Final = 1024
"""Refused sequences that are remembered at a time. They are the lowest ones, because those hold up
the others."""


# enforces: R7
class SendingOrder:
    """Refused sequences that hold up later ones. True while there is any (`if order:`).

    Refused sequences are kept one by one, those that were out of sequence too: 5 is refused, 6 is
    out of sequence, 5 comes again and is accepted; then 7 is still held up until 6 has come.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._refused)

    def __repr__(self) -> str:
        return f"SendingOrder({self._refused})"

    def admits(self, sequence: int, resolved: int) -> bool:
        """Whether this message may be tried; False: it is `out_of_sequence` and remembered as such.

        `resolved` is the producer's own, sent with the message. Everything below it has had its
        last answer, so refused sequences there are given up and hold up nothing.
        """
        refused = self._refused
        if refused and refused[0] < resolved:
            del refused[: bisect_left(refused, resolved)]
        if not refused or sequence <= refused[0]:
            return True
        self.refuse(sequence)
        return False

    def refuse(self, sequence: int) -> None:
        """Note that a message was refused: later ones wait. A second time nothing happens."""
        refused = self._refused
        place = bisect_left(refused, sequence)
        if place < len(refused) and refused[place] == sequence:
            return
        refused.insert(place, sequence)
        del refused[REFUSED_MAX:]

    def accept(self, sequence: int) -> None:
        """Note that a message was stored, or handed on, so it holds up nothing any more. If it had
        not been refused, nothing happens."""
        refused = self._refused
        place = bisect_left(refused, sequence)
        if place < len(refused) and refused[place] == sequence:
            del refused[place]


class StreamOrder:
    """The sending order of one producer in one queue, where publishes are refused whole. From the
    first refused sequence on, only a publish that begins there is tried, until all that was sent
    after it has come again. True while something is held up.

    Everything that a SendingOrder would hold up is held up here too, without a look at a message.
    So refusing a producer that publishes too much costs less than its publishes do.
    """

    __slots__ = ("_end", "_first")

    def __init__(self) -> None:
        self._first = self._end = 0
        """First sequence that was refused and has not come again, and (`_end`) the sequence after
        the last one that is held up with it."""

    def __bool__(self) -> bool:
        return self._first < self._end

    def __repr__(self) -> str:
        return f"StreamOrder({self._first} to {self._end})"

    def admits(self, sequence: int, count: int, resolved: int) -> bool:
        """Whether `count` messages may be tried. False: they are `out_of_sequence`, and remembered.
        `resolved`: the producer has had the last answer to everything below it, so refused
        sequences there hold up nothing."""
        self._first = max(self._first, resolved)
        if self._first >= self._end or sequence <= self._first:
            return True
        self._end = max(self._end, sequence + count)
        return False

    def refuse(self, sequence: int, count: int) -> None:
        """Note that a publish was refused: later ones wait."""
        if not self:
            self._first, self._end = sequence, sequence + count
        else:
            self._first = min(self._first, sequence)
            self._end = max(self._end, sequence + count)

    def accept(self, sequence: int, count: int) -> None:
        """Note that a publish was admitted, and handed on."""
        if sequence <= self._first:
            self._first = max(self._first, sequence + count)
