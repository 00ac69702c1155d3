"""What the users of one process have sent, were told and were given, line by line. Pure.

A process keeps one Ledger. What a single session can know is judged at once: a message that comes
again although it is held or settled, one that comes behind a later one of its line. What only all
of them together know (loss, what nobody sent, what two processes settled) is judged from the
ledgers of all processes at the end: `loadtests.mix.judge`.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from loadtests.checker.verdict import Violations
from loadtests.histogram import Histogram
from loadtests.mix.series import Series
from loadtests.mix.spans import Spans
from loadtests.mix.stamps import Stamp

KINDS: Final = {
    "lost": "P1: certified to its publisher, never given to a group or reader that wanted it",
    "invented": "P2: given, never sent",
    "altered": "P2: given with other bytes or under another key than were sent",
    "refused_given": "P2: refused, and given all the same",
    "order": "P3: a message of a line was given for the first time behind a later one",
    "repeated": "P5: given again although it was held, or its ack had been confirmed",
    "settled_twice": "P5: two sessions have settled one message of a group",
}


@dataclass(slots=True)
class Sent:
    """One line of one publisher. What is neither certified nor refused is unknown."""

    offered: int = 0
    """The highest number that was ever sent."""
    certified: Spans = field(default_factory=Spans)
    refused: Spans = field(default_factory=Spans)


@dataclass(slots=True)
class Taken:
    """One line as one group, or one reader, was given it."""

    given: Spans = field(default_factory=Spans)
    settled: Spans = field(default_factory=Spans)
    """Of which the ack was confirmed."""


@dataclass(slots=True)
class Subscriber:
    """A group, or a reader, of one queue."""

    queue: str
    keys: list[str] | None = None
    """Of a reader: those that it asked for; None: all."""
    is_whole: bool = True
    """It is to have everything: a group, or a reader from the start that was there to the end."""
    lines: dict[str, Taken] = field(default_factory=dict)


class Ledger(Violations):
    """Of one process. Times are monotonic nanoseconds."""

    def __init__(self, began_ns: int) -> None:
        """`began_ns`: what all series of all processes of a run count from."""
        super().__init__(KINDS)
        self.sent: dict[str, dict[str, Sent]] = {}
        """Queue → line → what became of it."""
        self.subscribers: dict[str, Subscriber] = {}
        self.counts: Counter[str] = Counter()
        self.latencies: dict[str, Histogram] = {}
        """By what was measured: `receipt rest`, `delivery worker`, `comeback storm`, …"""
        self.series: dict[str, Series] = {}
        self.since_ns: float = float("inf")
        """What was due before this belongs to the ramp, and its latency is not measured."""
        self._began_ns = began_ns

    # --- publishers

    def offers(self, queue: str, stamp: Stamp) -> None:
        """It is sent, for the first time or again."""
        row = self.sent.setdefault(queue, {}).setdefault(stamp.line, Sent())
        if stamp.number > row.offered:
            row.offered = stamp.number
            self.counts["offered"] += 1

    def certified(self, queue: str, stamp: Stamp, *, now_ns: int, way: str) -> None:
        """Its receipt has come, over `way` (`websocket`, `rest`)."""
        if self.sent[queue][stamp.line].certified.add(stamp.number):
            self.counts["certified"] += 1
            if stamp.due_ns >= self.since_ns:
                self.measured(f"receipt {way}", now_ns - stamp.due_ns, now_ns)

    def refused(self, queue: str, stamp: Stamp) -> None:
        """It was refused for good, and is not sent again."""
        if self.sent[queue][stamp.line].refused.add(stamp.number):
            self.counts["refused"] += 1

    # --- figures

    def measured(self, what: str, took_ns: int, now_ns: int) -> None:
        """Something took so long and ended now."""
        if what not in self.latencies:
            self.latencies[what] = Histogram()
            self.series[what] = Series()
        self.latencies[what].record(took_ns)
        self.series[what].record(now_ns - self._began_ns, took_ns)

    def subscriber(
        self, name: str, queue: str, keys: list[str] | None = None, *, is_whole: bool = True
    ) -> Subscriber:
        """The one of this name, made where it is new."""
        if name not in self.subscribers:
            self.subscribers[name] = Subscriber(queue, keys, is_whole)
        return self.subscribers[name]


class Stream:
    """What one session was given for one subscriber, in the order in which it was.

    `settles`: of a group, where a message may come again when its delivery has ended without a
    confirmed ack. To a reader nothing comes twice: its position says where it goes on.
    """

    def __init__(self, ledger: Ledger, name: str, role: str, *, settles: bool) -> None:
        """`name`: of a subscriber that the ledger has; `role`: whose latency it is."""
        self._ledger = ledger
        self._name = name
        self._subscriber = ledger.subscribers[name]
        self._role = role
        self._settles = settles
        self._held: set[tuple[str, int]] = set()
        self._highest: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Deliveries that have not ended."""
        return len(self._held)

    def given(self, stamp: Stamp, *, key: str | None, now_ns: int, since_ns: int = 0) -> int | None:
        """Note that a message came, and return its latency. None: it says nothing of the broker,
        as it was due before `since_ns`, or this is not the first delivery."""
        ledger, line, number = self._ledger, stamp.line, stamp.number
        if key != stamp.key:
            ledger.flag("altered", f"{self._name}: {line} {number} under the key {key}")
            return None
        row = self._subscriber.lines.get(line)
        if row is None:
            row = self._subscriber.lines[line] = Taken()
        ledger.counts["given"] += 1
        took_ns = None
        if row.given.add(number):
            highest = self._highest.get(line, 0)
            if number < highest:
                ledger.flag("order", f"{self._name}: {line} {number} behind {highest}")
            if stamp.due_ns >= max(since_ns, ledger.since_ns):
                took_ns = max(0, now_ns - stamp.due_ns)
                ledger.measured(f"delivery {self._role}", took_ns, now_ns)
        elif (line, number) in self._held:
            ledger.flag("repeated", f"{self._name}: {line} {number}, which is held")
        elif not self._settles:
            ledger.flag("repeated", f"{self._name}: {line} {number}, to a reader")
        elif number in row.settled:
            ledger.flag("repeated", f"{self._name}: {line} {number}, which is settled")
        else:
            ledger.counts["given again"] += 1
        self._highest[line] = max(self._highest.get(line, 0), number)
        if self._settles:
            self._held.add((line, number))
        return took_ns

    def settled(self, stamp: Stamp) -> None:
        """Its ack was confirmed."""
        self._held.discard((stamp.line, stamp.number))
        if self._subscriber.lines[stamp.line].settled.add(stamp.number):
            self._ledger.counts["settled"] += 1
        else:
            self._ledger.flag("settled_twice", f"{self._name}: {stamp.line} {stamp.number}")

    def ended(self, stamp: Stamp) -> None:
        """Its delivery has ended otherwise: nacked, revoked, stale. It may come again."""
        self._held.discard((stamp.line, stamp.number))

    def left(self) -> None:
        """The session is gone, and with it all that it held."""
        self._held.clear()

    def invented(self, what: str) -> None:
        """Something came that nobody of us has made."""
        self._ledger.flag("invented", f"{self._name}: {what}")
