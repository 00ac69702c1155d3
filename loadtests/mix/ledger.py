"""The messages that the users of one process sent, received and settled, line by line. Pure.

A process keeps one Ledger. Some violations are visible to a single session and are judged at once:
a message that comes again although it is held or settled, or one that comes after a later one of
its line. Others need all ledgers (a loss, a message that no user sent, a message that two processes
settled). `loadtests.mix.judge` judges these at the end.

Each message's stamp says which message it is. All messages that one publisher sends under one key
are a **line**, numbered from 1: `3f.12/k007`. A missing number is a loss, a repeated one a
repetition, one after a larger one an inversion. The sets of numbers are ranges, which stay small in
a run without faults.
"""

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from loadtests.checker.verdict import Violations
from loadtests.histogram import Histogram

SLOT_S: Final = 5
"""Seconds of one point of a plot. A run of five minutes has 60 points, each from thousands of
messages."""
_SLOT_NS: Final = SLOT_S * 1_000_000_000


class Series:
    """Durations in nanoseconds, by the slot of SLOT_S seconds in which they ended."""

    def __init__(self) -> None:
        self.slots: dict[int, Histogram] = {}

    def record(self, at_ns: int, value: int) -> None:
        """Record a duration at a time since the run began; an earlier time counts as the
        beginning."""
        slot = max(0, at_ns // _SLOT_NS)
        if slot not in self.slots:
            self.slots[slot] = Histogram()
        self.slots[slot].record(value)

    def add(self, other: "Series") -> None:
        """Add the durations of another series."""
        for slot, histogram in other.slots.items():
            self.slots.setdefault(slot, Histogram()).add(histogram)

    def points(self, percent: float) -> list[tuple[float, float]]:
        """Return this percentile of each slot, in order of time, as (seconds since the run began,
        milliseconds)."""
        return [
            ((slot + 0.5) * SLOT_S, self.slots[slot].percentile(percent) / 1e6)
            for slot in sorted(self.slots)
        ]

    def rates(self) -> list[tuple[float, float]]:
        """Return how many durations ended in each slot, as (seconds since the run began, number a
        second). The last slot is left out, because it is not over. An empty slot is 0."""
        if not self.slots:
            return []
        return [
            ((slot + 0.5) * SLOT_S, (self.slots[slot].count if slot in self.slots else 0) / SLOT_S)
            for slot in range(max(self.slots))
        ]


class Spans:
    """A set of whole numbers, kept as ranges. Adding a number at its end takes constant time."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        """`pairs`: (first, last), ascending, neither touching nor overlapping."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in pairs:
            if first > last or (self._lasts and first <= self._lasts[-1] + 1):
                raise ValueError(f"ranges that are none, or not in order: {first} to {last}")
            self._firsts.append(first)
            self._lasts.append(last)

    def add(self, number: int) -> bool:
        """Add a number; return whether it was new."""
        firsts, lasts = self._firsts, self._lasts
        if lasts and number == lasts[-1] + 1:
            lasts[-1] = number
            return True
        index = bisect_right(firsts, number) - 1  # the last range that begins at or before it
        if index >= 0 and number <= lasts[index]:
            return False
        touches_before = index >= 0 and lasts[index] == number - 1
        touches_behind = index + 1 < len(firsts) and firsts[index + 1] == number + 1
        if touches_before and touches_behind:
            lasts[index] = lasts.pop(index + 1)
            del firsts[index + 1]
        elif touches_before:
            lasts[index] = number
        elif touches_behind:
            firsts[index + 1] = number
        else:
            firsts.insert(index + 1, number)
            lasts.insert(index + 1, number)
        return True

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.pairs():
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.pairs() == other.pairs()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spans({self.pairs()})"

    def pairs(self) -> list[tuple[int, int]]:
        """Return (first, last) of each range, ascending."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def both(self, other: "Spans") -> "Spans":
        """Return the intersection with another set."""
        found = []
        mine, theirs = self.pairs(), other.pairs()
        here = there = 0
        while here < len(mine) and there < len(theirs):
            first = max(mine[here][0], theirs[there][0])
            last = min(mine[here][1], theirs[there][1])
            if first <= last:
                found.append((first, last))
            if mine[here][1] < theirs[there][1]:
                here += 1
            else:
                there += 1
        return Spans(found)

    def without(self, other: "Spans") -> "Spans":
        """Return the numbers of this set that the other one does not have."""
        found = []
        theirs, there = other.pairs(), 0
        for begin, last in self.pairs():
            first = begin
            while there < len(theirs) and theirs[there][1] < first:
                there += 1
            place = there
            while place < len(theirs) and theirs[place][0] <= last:
                if first < theirs[place][0]:
                    found.append((first, theirs[place][0] - 1))
                first = theirs[place][1] + 1
                place += 1
            if first <= last:
                found.append((first, last))
        return Spans(found)

    def either(self, other: "Spans") -> "Spans":
        """Return the union with another set."""
        joined: list[list[int]] = []
        for first, last in sorted([*self.pairs(), *other.pairs()]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], last)
            else:
                joined.append([first, last])
        return Spans(joined)


BODY_BYTES_MIN: Final = 160
"""The smallest body size. The stamp takes less than that, whatever its numbers are."""


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    line: str
    number: int
    due: int
    check: int
    pad: str


_DECODE: Final = msgspec.json.Decoder(_Body).decode
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Stamp:
    """The identity of one message: its line, its number there, and when it was due, in nanoseconds
    of the clock that all processes of the run share."""

    line: str
    number: int
    due_ns: int

    @property
    def key(self) -> str:
        """The key of its line."""
        return key_of(self.line)


class NotOurs(ValueError):
    """A body that no publisher of the mix made, or that was changed in transit."""


def line_of(publisher: str, key: str) -> str:
    """Return the line of a publisher's messages under a key."""
    return f"{publisher}/{key}"


def key_of(line: str) -> str:
    """Return the key of a line."""
    return line.partition("/")[2]


def _stamp_check(line: str, number: int, due_ns: int) -> int:
    return zlib.crc32(b"%b:%d:%d" % (line.encode(), number, due_ns))


def stamp_body(stamp: Stamp, body_bytes: int) -> bytes:
    """Return the JSON of a body with this stamp, padded to `body_bytes` (at least
    BODY_BYTES_MIN)."""
    assert body_bytes >= BODY_BYTES_MIN
    check = _stamp_check(stamp.line, stamp.number, stamp.due_ns)
    bare = _ENCODE(_Body(stamp.line, stamp.number, stamp.due_ns, check, ""))
    return bare[:-2] + b"x" * (body_bytes - len(bare)) + b'"}'


def read_stamp(text: bytes, body_bytes: int) -> Stamp:
    """Return the stamp of a body.

    Raises:
        NotOurs: it differs from what `stamp_body` makes, in any byte.
    """
    try:
        found = _DECODE(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotOurs(f"{error}: {text[:120]!r}") from None
    whole = len(text) == body_bytes and found.pad.count("x") == len(found.pad)
    if not whole or found.check != _stamp_check(found.line, found.number, found.due):
        raise NotOurs(f"changed on its way: {text[:120]!r}")
    return Stamp(found.line, found.number, found.due)


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
    """The messages of one line, as their publisher knows them. A message that is neither certified
    nor refused is unknown."""

    offered: int = 0
    """The highest number that was ever sent."""
    certified: Spans = field(default_factory=Spans)
    refused: Spans = field(default_factory=Spans)


@dataclass(slots=True)
class Taken:
    """The messages of one line that one group, or one reader, received."""

    given: Spans = field(default_factory=Spans)
    settled: Spans = field(default_factory=Spans)
    """The numbers whose ack was confirmed."""


@dataclass(slots=True)
class Subscriber:
    """A group, or a reader, of one queue."""

    queue: str
    keys: list[str] | None = None
    """The keys of a reader's subscription; None: all keys, as for a group."""
    is_whole: bool = True
    """Whether it must receive everything. True for a group, and for a reader that began at the
    start and stayed until the end."""
    lines: dict[str, Taken] = field(default_factory=dict)


class Ledger(Violations):
    """The ledger of one process. Times are in nanoseconds of the clock that all processes of the
    run share."""

    def __init__(self, began_ns: int) -> None:
        """`began_ns`: the time from which all series of all processes of a run count."""
        super().__init__(KINDS)
        self.sent: dict[str, dict[str, Sent]] = {}
        """Queue → line → its messages."""
        self.subscribers: dict[str, Subscriber] = {}
        self.counts: Counter[str] = Counter()
        self.latencies: dict[str, Histogram] = {}
        """Latencies by name: `receipt rest`, `delivery worker`, `comeback storm`, …"""
        self.series: dict[str, Series] = {}
        self.since_ns: float = float("inf")
        """Messages due before this time belong to the ramp; their latency is not measured."""
        self._began_ns = began_ns

    # --- publishers

    def offers(self, queue: str, stamp: Stamp) -> None:
        """Note that a message is sent, for the first time or again."""
        row = self.sent.setdefault(queue, {}).setdefault(stamp.line, Sent())
        if stamp.number > row.offered:
            row.offered = stamp.number
            self.counts["offered"] += 1

    def certified(self, queue: str, stamp: Stamp, *, now_ns: int, way: str) -> None:
        """Note that a message's receipt has come, over `way` (`websocket`, `rest`)."""
        if self.sent[queue][stamp.line].certified.add(stamp.number):
            self.counts["certified"] += 1
            if stamp.due_ns >= self.since_ns:
                self.measured(f"receipt {way}", now_ns - stamp.due_ns, now_ns)

    def refused(self, queue: str, stamp: Stamp) -> None:
        """Note that a message was refused for good; it is not sent again."""
        if self.sent[queue][stamp.line].refused.add(stamp.number):
            self.counts["refused"] += 1

    # --- figures

    def measured(self, what: str, took_ns: int, now_ns: int) -> None:
        """Record a duration that ended at `now_ns`."""
        if what not in self.latencies:
            self.latencies[what] = Histogram()
            self.series[what] = Series()
        self.latencies[what].record(took_ns)
        self.series[what].record(now_ns - self._began_ns, took_ns)

    def subscriber(
        self, name: str, queue: str, keys: list[str] | None = None, *, is_whole: bool = True
    ) -> Subscriber:
        """Return the subscriber of this name, created if it is new."""
        if name not in self.subscribers:
            self.subscribers[name] = Subscriber(queue, keys, is_whole)
        return self.subscribers[name]


class Stream:
    """The messages that one session received for one subscriber, in order of arrival.

    `settles` is true for a group: a message may come again after its delivery ended without a
    confirmed ack. To a reader no message comes twice, because its position says where it continues.
    """

    def __init__(self, ledger: Ledger, name: str, role: str, *, settles: bool) -> None:
        """`name`: a subscriber in the ledger; `role`: the role whose latency is measured.
        `settles`: whether the subscriber is a group, whose deliveries end with an ack."""
        self._ledger = ledger
        self._name = name
        self._subscriber = ledger.subscribers[name]
        self._role = role
        self._settles = settles
        self._held: set[tuple[str, int]] = set()
        self._highest: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Number of deliveries that have not ended."""
        return len(self._held)

    def given(self, stamp: Stamp, *, key: str | None, now_ns: int, since_ns: int = 0) -> int | None:
        """Note that a message came, and return its latency in nanoseconds. None when the time says
        nothing about the broker: the message was due before `since_ns` or in the ramp, this is not
        its first delivery to the subscriber, or it came under another key."""
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
        """Note that a message's ack was confirmed."""
        self._held.discard((stamp.line, stamp.number))
        if self._subscriber.lines[stamp.line].settled.add(stamp.number):
            self._ledger.counts["settled"] += 1
        else:
            self._ledger.flag("settled_twice", f"{self._name}: {stamp.line} {stamp.number}")

    def ended(self, stamp: Stamp) -> None:
        """Note that a delivery has ended otherwise: nacked, revoked, stale. The message may come
        again."""
        self._held.discard((stamp.line, stamp.number))

    def left(self) -> None:
        """Note that the session has ended, and all its deliveries with it."""
        self._held.clear()

    def invented(self, what: str) -> None:
        """Count a violation: something came that no user made."""
        self._ledger.flag("invented", f"{self._name}: {what}")
