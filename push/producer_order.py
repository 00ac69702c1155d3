"""The sending order of one producer, in one partition or in one queue (R7). Pure.

A producer has many messages in flight. When one of them is refused, those behind it must not be
stored, or a key's messages would change places: they are answered `out_of_sequence`, and stored
when the producer sends them again behind the one that was refused. Whoever can refuse a message
keeps one of these per (producer, partition): the storage, and a gateway for its own refusals.
"""

from bisect import bisect_left
from typing import Final

REFUSED_MAX: Final = 1024
"""Refused sequences remembered at a time: the lowest ones, because those hold up the others."""


# enforces: R7
class SendingOrder:
    """Which refused sequences hold up later ones. True while there is any (`if order:`).

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

        `resolved` is what the producer said with it: below, everything has had its last answer, so
        what was refused there is given up and holds up nobody.
        """
        refused = self._refused
        if refused and refused[0] < resolved:
            del refused[: bisect_left(refused, resolved)]
        if not refused or sequence <= refused[0]:
            return True
        self.refuse(sequence)
        return False

    def refuse(self, sequence: int) -> None:
        """This message was refused: what is behind it waits. Again the same: nothing happens."""
        refused = self._refused
        place = bisect_left(refused, sequence)
        if place < len(refused) and refused[place] == sequence:
            return
        refused.insert(place, sequence)
        del refused[REFUSED_MAX:]

    def accept(self, sequence: int) -> None:
        """This message was stored, or handed on. It had not been refused: nothing happens."""
        refused = self._refused
        place = bisect_left(refused, sequence)
        if place < len(refused) and refused[place] == sequence:
            del refused[place]


class StreamOrder:
    """The same for all that one producer publishes to one queue, where publishes are refused whole:
    from the first sequence that was refused on, nothing is tried but what begins there, until all
    that was sent behind it has come again. True while something is held up.

    What a SendingOrder would hold up is held up here too, and costs no look at a message: whoever
    publishes too much is refused for less than it costs to ask.
    """

    __slots__ = ("_end", "_first")

    def __init__(self) -> None:
        self._first = self._end = 0
        """What was refused, and has not come again: from here to there."""

    def __bool__(self) -> bool:
        return self._first < self._end

    def __repr__(self) -> str:
        return f"StreamOrder({self._first} to {self._end})"

    def admits(self, sequence: int, count: int, resolved: int) -> bool:
        """Whether so many messages may be tried; False: they are `out_of_sequence`, and remembered.
        `resolved`: as in SendingOrder.admits."""
        self._first = max(self._first, resolved)
        if self._first >= self._end or sequence <= self._first:
            return True
        self._end = max(self._end, sequence + count)
        return False

    def refuse(self, sequence: int, count: int) -> None:
        """These were refused: what is behind them waits."""
        if not self:
            self._first, self._end = sequence, sequence + count
        else:
            self._first = min(self._first, sequence)
            self._end = max(self._end, sequence + count)

    def accept(self, sequence: int, count: int) -> None:
        """These were admitted, and were handed on."""
        if sequence <= self._first:
            self._first = max(self._first, sequence + count)
