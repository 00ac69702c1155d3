"""Operators' decisions about parked keys (R17, R18): retry, skip, release.

    parked ──decide──▶ all of it durably aside ──▶ one cursor write ──opened──▶ the line goes on

A key stays parked, here and in the storage, until the one write is durable that unparks it and
says what becomes of its head: that it is tried once more, or that it goes to the dead letters. So a
crash finds it parked, or decided, and nothing in between; and of two decisions one is made.

What is decided about is a key as an operator has seen it: parked since that moment, with that head.
Where something that stands in front of the head came back meanwhile, nothing is decided, and
whoever asked looks again. [A skip of the message that failed buries the one in front of it, and
is answered with the one that failed.]
"""

import weakref
from typing import TYPE_CHECKING, Literal

from push.lines import Decision, Line
from push.ports import ParkedLine, Retry

if TYPE_CHECKING:
    from push.waiting import Waiting

Verb = Literal["retry", "skip", "release"]
"""retry: the head is tried once more, and the key is parked again if that fails. skip: the head
goes to the dead letters. release: the attempts of all that was parked are forgotten."""


class Unparking:
    """See the module. Belongs to one `Waiting`."""

    __slots__ = ("_dropped", "_heads", "_opened", "_parked", "_released", "_waiting")

    def __init__(self, waiting: "Waiting") -> None:
        # Not held: what refers to itself in a circle stays until the garbage collector comes, and
        # every consumer that joins and leaves has sixteen of these.
        self._waiting: Waiting = weakref.proxy(waiting)
        self._heads: dict[int, int | None] = {}
        """Key → its head, of decisions that are on their way."""
        self._opened: list[int] = []
        self._dropped: list[int] = []
        self._parked: list[int] = []
        self._released: set[int] = set()
        """Keys that were released: what the previous owner tried of them, and this one had not
        come to in the log, does not count either."""

    def park(self, line: Line, head: int, why: str) -> None:
        """The line waits for an operator, since this offset is not tried again. An earlier release
        is over."""
        self._parked.append(head)
        line.parked, line.forgiven = True, False
        line.parked_unix_ms = None
        self._released.discard(line.key)
        self._waiting.pending.park(line.key, why)

    def decide(self, verb: Verb, seen: ParkedLine, now: float) -> bool:
        """Unpark a key that the storage shows like this. `take_opened` tells when the decision is
        durable, `take_dropped` that it was not made, since the head is another one.

        False, and nothing changes: the key is not parked, or was parked anew since, or something
        was decided already.
        """
        line = self._waiting.lines.by_key.get(seen.key_hash)
        if line is None or line.parked_unix_ms != seen.since_unix_ms or line.decision is not None:
            return False
        line.decision = Decision(verb, seen.head)
        self.go_on(line)
        self._waiting.lines.settle_down(line, now)
        return True

    def go_on(self, line: Line) -> None:
        """Something that a decision may have waited for has happened. Nothing of the line may be
        on its way in from the side line: it would be read again. No decision: nothing happens."""
        decision, key, pending = line.decision, line.key, self._waiting.pending
        if decision is None or line.loading is not None or line.dying:
            return
        if key in self._heads:
            return
        unwritten = pending.first_aside(key)
        heads = (decision.head, line.head, unwritten)
        head = min((offset for offset in heads if offset is not None), default=None)
        if head is not None and head == unwritten:
            return  # when it is written
        if head != decision.head:
            line.decision = None
            self._dropped.append(key)
            return
        if head is not None and decision.verb == "skip":
            line.aside -= 1
            self._waiting.doom(head, "skipped")
        elif head is not None:
            pending.note(Retry(head, 0))
        self._heads[key] = head
        pending.unpark(key)

    def opened(self, line: Line, now: float) -> None:
        """The write that unparks it is durable: the line goes on, in order. What joined meanwhile
        may belong before what stands aside (R17): that is set aside first."""
        decision, head = line.decision, self._heads.pop(line.key)
        assert decision is not None
        line.parked, line.decision, line.head = False, None, None
        line.parked_unix_ms = None
        line.window = 1
        line.once = head if decision.verb == "retry" and head is not None else -1
        line.forgiven = decision.verb == "release"
        if line.forgiven:
            self._released.add(line.key)
        if head is not None and decision.verb != "skip":
            self._waiting.forgive(head)
        if not line.inherited:
            line.opens_after = line.aside_unwritten
        self._opened.append(line.key)
        self._waiting.lines.settle_down(line, now)

    def admitted(self, line: Line, fresh: tuple[int, ...]) -> tuple[int, ...]:
        """What of the next part of a side line comes into memory. A retried head comes without
        what stands behind it, which may be exhausted and would park the key before the try."""
        if fresh and fresh[0] <= line.once:
            fresh = tuple(offset for offset in fresh if offset <= line.once)
        if line.forgiven:
            for offset in fresh:
                self._forgive(offset)
        return fresh

    def joins(self, line: Line, offset: int) -> bool:
        """A message that the previous owner tried joins the line. False: it must wait aside, for
        the head that an operator lets be tried stands before it (see `admitted`)."""
        if line.key in self._released:
            self._forgive(offset)
        return line.once < 0

    def _forgive(self, offset: int) -> None:
        if self._waiting.attempts.get(offset):  # as what was rejected has, too
            self._waiting.forgive(offset)
            self._waiting.pending.note(Retry(offset, 0))

    def take_parked(self) -> list[int]:
        """The heads of keys that were parked since the last call."""
        parked, self._parked = self._parked, []
        return parked

    def take_opened(self) -> list[int]:
        """Keys that were durably unparked since the last call."""
        opened, self._opened = self._opened, []
        return opened

    def take_dropped(self) -> list[int]:
        """Keys of which a decision was not made, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped
