"""The judge of sessions that move between transports, frame by frame. Pure.

A stream of the log is one session here, over any number of transports. `judge` checks that no
messages were lost or reordered. This module checks that no delivery was given again before it
ended, and that a client's statements about its deliveries agree with what it received.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from loadtests.checker.history import (  # fmt: skip
    Acked,
    Delivered,
    Event,
    Extended,
    Held,
    Joined,
    Revoked,
    Welcomed,
)
from loadtests.checker.verdict import Violations

NS: Final = 1_000_000_000
EARLY: Final = 0.9
"""The share of a lease, or of the linger time, after which a delivery may have ended. A client
counts its lease from the receipt and ends it a little early."""

KINDS: Final = {
    "given_twice": "a message was given again although its delivery had not ended",
    "acked_twice": "a message was acked under two deliveries although the first had not ended",
    "not_given": "a client acked, returned or held a delivery that it was never given",
    "received_wrong": "a client that came back counted other than it was given (R25)",
}


class _Given:
    """The latest delivery of one offset to one group."""

    __slots__ = ("acked", "at", "by", "ended", "is_second", "server", "stream", "subscription")

    def __init__(self, event: Delivered, *, is_second: bool) -> None:
        self.by = event.by
        self.stream = event.stream
        self.server = event.server
        self.subscription = int(event.by.split(":")[1])
        self.at = event.at
        self.acked = False
        self.ended = ""
        """The reason why the delivery ended without an ack, `revoked` or `nacked`; empty if no
        frame gave one."""
        self.is_second = is_second
        """Whether the message's previous delivery had been acked, and had not ended otherwise."""


@dataclass(frozen=True)
class Moment:
    """The number of unacked deliveries at one instant (`at`, in monotonic nanoseconds)."""

    at: int
    unacked: int
    """Number of deliveries, of all clients, that were not yet acked, nacked, revoked or replaced by
    a newer delivery of the message."""


Place = tuple[str, int, int]
"""(group, partition, offset)."""


class Sessions(Violations):
    """The judge of sessions: it takes the events of all clients in order of time."""

    def __init__(
        self, *, lease_s: float, linger_s: float, moments: list[int] | None = None
    ) -> None:
        """`moments`: monotonic nanoseconds, ascending, at which to count unacked deliveries."""
        super().__init__(KINDS)
        self.excused: Counter[str] = Counter()
        """Number of times that a message was given again after its previous delivery had ended, by
        the reason of that end."""
        self.excused_places: Counter[Place] = Counter()
        self.moments: list[Moment] = []
        self._lease_ns = int(lease_s * EARLY * NS)
        self._linger_ns = int(linger_s * EARLY * NS)
        self._asked = list(reversed(moments or []))
        self._latest: dict[Place, _Given] = {}
        self._places: dict[str, Place] = {}
        self._pushes: dict[str, tuple[int, int]] = {}
        """A push → its first and last offset."""
        self._unacked: set[str] = set()
        self._heard_at: dict[str, int] = {}
        self._received: Counter[tuple[str, int]] = Counter()
        self._left: set[tuple[str, int]] = set()
        self._has_resumed: set[str] = set()

    def see(self, event: Event) -> None:
        """Take the next event."""
        while self._asked and self._asked[-1] <= event.at:
            self.moments.append(Moment(self._asked.pop(), len(self._unacked)))
        match event:
            case Delivered():
                self._delivered(event)
            case Acked():
                self._acked(event)
            case Revoked():
                for name in event.by:
                    self._end(name, "revoked")
            case Extended():
                for name in event.by:
                    if (given := self._given(name, "extended")) is not None:
                        given.at = event.at
            case Welcomed():
                self._heard_at[event.stream] = event.at
                if event.resumed:
                    self._has_resumed.add(event.stream)
                else:
                    self._has_resumed.discard(event.stream)
            case Joined():
                self._joined(event)
            case Held():
                self._held(event)
            case _:
                pass

    def _given(self, name: str, what: str) -> _Given | None:
        """Return the delivery of this name if it is its message's latest; else None. Flags a name
        whose push is unknown, or whose offset is outside that push. `what` is the act, for the
        example."""
        place = self._places.get(name)
        if place is not None:
            given = self._latest[place]
            return given if given.by == name else None
        push, _, offset = name.rpartition(":")
        first, last = self._pushes.get(push, (0, -1))
        if not first <= int(offset) <= last:  # else a range that spans what its push skips
            self.flag("not_given", f"{what}: {name}")
        return None

    def _delivered(self, event: Delivered) -> None:
        place = (event.group, event.partition, event.offset)
        before, is_second = self._latest.get(place), False
        if before is not None:
            reason = self._reason(before, event)
            if reason:
                self.excused[reason] += 1
                self.excused_places[place] += 1
            else:
                self.flag("given_twice", f"{place}: {event.by} after {before.by}")
                is_second = before.acked
            self._unacked.discard(before.by)
        given = self._latest[place] = _Given(event, is_second=is_second)
        self._places[event.by] = place
        self._unacked.add(event.by)
        self._heard_at[event.stream] = event.at
        self._received[event.stream, given.subscription] += 1
        push = event.by.rpartition(":")[0]
        first, last = self._pushes.get(push, (event.offset, event.offset))
        self._pushes[push] = (min(first, event.offset), max(last, event.offset))

    def _reason(self, before: _Given, event: Delivered) -> str:
        """Return why the delivery `before` has ended, so that its message may be given again; empty
        if it has not."""
        if before.ended:
            return before.ended
        if before.server != event.server:
            return "restart"
        if before.at + self._lease_ns <= event.at:
            return "lease over"
        if self._heard_at.get(before.stream, 0) + self._linger_ns <= event.at:
            return "away too long"
        if (before.stream, before.subscription) in self._left:
            return "left"
        return ""

    def _acked(self, event: Acked) -> None:
        for name in event.by:
            given = self._given(name, "returned" if event.returned else "acked")
            if event.returned:
                self._end(name, "nacked")
            elif given is not None:
                if given.is_second and not given.acked:
                    self.flag("acked_twice", name)
                given.acked = True
                self._unacked.discard(name)

    def _end(self, name: str, why: str) -> None:
        """Note that a delivery was nacked or revoked (`why`). An unknown name is not flagged,
        because the broker may revoke a delivery that the client never saw."""
        place = self._places.get(name)
        if place is not None and (given := self._latest[place]).by == name:
            given.ended = given.ended or why
            self._unacked.discard(name)

    def _joined(self, event: Joined) -> None:
        place = (event.stream, event.subscription)
        self._received[place] = 0
        if event.group:
            self._left.discard(place)
        else:
            self._left.add(place)

    def _held(self, event: Held) -> None:
        for name in event.by:
            self._given(name, "held")
        given = self._received[event.stream, event.subscription]
        if event.stream in self._has_resumed and event.received != given:
            self.flag(
                "received_wrong",
                f"{event.stream} subscription {event.subscription}: {event.received} of {given}",
            )
