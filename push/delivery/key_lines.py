"""Lines: the messages of one key that may not be given out yet, in order (R17, R18).

A key has a line from the moment one of its messages returns or dies, or that it proves slow, until
none of it waits, dies or is in flight through the line. While it has one, every later message of
the key joins it instead of being given; other keys are not held up (P8). With pulls, each key that
is in flight has a line (R24). A line is in memory up to a bound, and beyond that in the durable
side line. A parked line is all side line. A message without a key that returns has a line of its
own.
"""

import sys
from array import array
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import compress, count, islice
from typing import Final

from push import limits

_MARKED_MAX: Final = 100
"""Number of lines beyond which looking each message up costs less than the false hits of the
marks."""
_LOW_BYTE: Final = 0 if sys.byteorder == "little" else 7


def loose(offset: int) -> int:
    """Return the pseudo key of a message without a key, for which no other message waits. It has
    the form of a key's hash, because it may be parked or set aside. If a real hash is the same, the
    two merely wait for each other."""
    return (1 << 64) - 1 - offset


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's decision about a parked key: retry, skip or release it."""

    verb: str
    head: int | None
    """The first offset of the durable side line, as the operator has seen it; None: there was
    none."""


# enforces: P8, R18
class Line:
    """The line of one key. `waiting` is in memory, in order; `aside` is the number of further
    offsets that follow in the side line."""

    __slots__ = (
        "aside",
        "aside_unwritten",
        "decision",
        "dues",
        "dying",
        "exclusive",
        "forgiven",
        "head",
        "in_flight",
        "inherited",
        "key",
        "leaving",
        "loaded",
        "loading",
        "once",
        "opens_after",
        "parked",
        "parked_unix_ms",
        "pull",
        "scheduled",
        "waiting",
        "window",
    )

    def __init__(self, key: int, exclusive: bool) -> None:
        self.key = key
        self.exclusive = exclusive
        """Whether it is closed while anything of it is in flight (R24)."""
        self.waiting: deque[int] = deque()
        self.dues: dict[int, float] = {}
        """Offset → the time before which it is not tried again."""
        self.aside = 0
        self.aside_unwritten = 0
        self.in_flight: set[int] = set()
        self.leaving: dict[int, bool] = {}
        """Offsets on the way out, in order. True: it may be sent, because its attempt is recorded
        or there was none (R16). False: the attempt is being recorded."""
        self.window = limits.LINE_WINDOW_MAX if exclusive else 1
        self.pull = 0
        """The pull that carries the deliveries in flight. The same pull may carry more of the
        key."""
        self.dying: set[int] = set()
        """Offsets that go to the dead letters, which is not durable yet."""
        self.parked = False
        self.parked_unix_ms: int | None = None
        """The moment of the parking, as the storage has it. None: the key is not parked, or that is
        not durable."""
        self.head: int | None = None
        """The lowest offset that this owner set aside since the key is parked. Offsets that waited
        in memory count at once, others when they are durably aside."""
        self.decision: Decision | None = None
        """An operator's decision about the parked key, until it is durable."""
        self.once = -1
        """The offset that an operator lets be tried once more; -1: none. If it fails, it is
        exhausted again."""
        self.forgiven = False
        """Whether the key was released: attempts from before its parking do not count any more."""
        self.loading: int | None = None
        """The number of offsets in the side line when it was requested, while it is being read;
        None: it is not."""
        self.loaded = -1
        """The last offset that came from the side line; -1: none. Settled ones may still be listed
        there, until their settling is durable."""
        self.inherited = False
        """Whether the previous owner left a side line of this key, and the log has not been
        rescanned since. The line stays shut until then."""
        self.opens_after = 0
        """Number of offsets that have to be set aside durably before it opens, because they may
        come before those in the side line."""
        self.scheduled: float | None = None
        """The time of its entry in the heap of what becomes due; None: it has none."""

    def __repr__(self) -> str:
        return (
            f"<Line {self.key:x} waiting={list(islice(self.waiting, 4))}({len(self.waiting)}) "
            f"aside={self.aside} in_flight={sorted(self.in_flight)} parked={self.parked}>"
        )

    @property
    def overflowed(self) -> bool:
        """Whether offsets that join must go to the side line to stay in order."""
        return self.parked or self.aside > 0 or self.aside_unwritten > 0

    @property
    def empty(self) -> bool:
        """Whether nothing of the key waits, dies or is in flight here, and it is not parked, so
        that the key is open again."""
        return not (
            self.waiting
            or self.in_flight
            or self.leaving
            or self.aside
            or self.aside_unwritten
            or self.parked
            or self.dying
        )

    @property
    def is_dying_only(self) -> bool:
        """Whether the key is shut by nothing but messages that go to the dead letters. An expired
        one that follows goes with them."""
        return bool(self.dying) and not (
            self.waiting
            or self.in_flight
            or self.leaving
            or self.aside
            or self.aside_unwritten
            or self.parked
            or self.inherited
        )

    @property
    def earliest(self) -> int:
        """The first offset in memory that is not given; -1 if there is none."""
        leaving = next(iter(self.leaving), -1)
        return leaving if leaving >= 0 or not self.waiting else self.waiting[0]

    @property
    def due(self) -> float:
        """The time from which the first offset in `waiting` may go out; 0: at once, or `waiting` is
        empty."""
        return self.dues.get(self.waiting[0], 0.0) if self.waiting else 0.0

    def put_back(self, offset: int) -> None:
        """Take back an offset that returns. It goes before everything later that waits."""
        waiting = self.waiting
        if not waiting or offset < waiting[0]:
            waiting.appendleft(offset)
        else:
            merged = sorted({*waiting, offset})
            waiting.clear()
            waiting.extend(merged)

    def call_back(self, after: int) -> list[int]:
        """Make the offsets above `after` that are on their way out wait again; returns them."""
        back = [offset for offset in self.leaving if offset > after]
        for offset in reversed(back):
            del self.leaving[offset]
            self.put_back(offset)
        return back

    def room(self, most: int | None = None) -> int:
        """Return how many more of the line may go out now, time aside. `most`: how many may be in
        flight, if fewer than the window; None: the window alone decides."""
        if self.parked or self.inherited or self.opens_after or self.dying:
            return 0
        if self.exclusive and self.in_flight:
            return 0
        window = self.window if most is None else min(self.window, most)
        return max(0, window - len(self.in_flight) - len(self.leaving))

    @property
    def is_trying(self) -> bool:
        """Whether the offset that an operator lets be tried once more is on its way out, or in
        flight. The messages after it may be exhausted, and would park the key before the try."""
        return self.once >= 0 and (self.once in self.leaving or self.once in self.in_flight)

    def decide(self, verb: str, head: int | None) -> None:
        """Take up an operator's decision about the parked key, as the operator has seen it."""
        self.decision = Decision(verb, head)

    def lower(self, offset: int) -> None:
        """Note an offset that is set aside. If the line is parked, it may be its head."""
        if self.parked and (self.head is None or offset < self.head):
            self.head = offset

    def widen(self, *, is_slow: bool = False) -> None:
        """Let more go out at once, because one of the messages was settled, or had expired.
        `is_slow`: that one was slow, and KEY_AHEAD_MAX is the most."""
        self.window = min(self.window * 2, limits.LINE_WINDOW_MAX)
        if is_slow and not self.exclusive:
            self.window = min(self.window, limits.KEY_AHEAD_MAX)


class Lines:
    """All lines of one (group, partition). They know which may give now, and which want their side
    line read."""

    __slots__ = (
        "_due",
        "_exclusive",
        "_hungry",
        "_marks",
        "_ready",
        "_unmarked",
        "by_key",
        "held",
        "starving",
    )

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self.by_key: dict[int, Line] = {}
        self.held = 0
        """Number of offsets in `waiting` of all lines, which are held in memory."""
        self._due: list[tuple[float, int]] = []
        self._ready: dict[int, None] = {}
        self._hungry: dict[int, None] = {}
        self.starving: dict[int, None] = {}
        """Keys of lines that give no further message until offsets that wait in memory are durably
        set aside in the side line."""
        self._marks = bytearray(256)
        """Whether there may be a line, by the low byte of a key's hash."""
        self._unmarked = 0
        """Number of lines that were dropped since the marks were made; their marks remain."""

    def line(self, key: int) -> Line:
        """Return the key's line, made when there is none."""
        line = self.by_key.get(key)
        if line is None:
            line = self.by_key[key] = Line(key, self._exclusive)
            self._marks[key & 255] = 1
        return line

    def gated(self, hashes: "array[int]", first: int) -> list[int]:
        """Return the offsets of the messages whose key has a line; `hashes` are those from `first`
        on.

        Every message pays for this while anything waits (P8). So a pass in C over one byte of each
        hash excludes nearly all of them.
        """
        by_key = self.by_key
        if len(by_key) > _MARKED_MAX:
            return [*compress(count(first), map(by_key.__contains__, hashes))]
        if self._unmarked > _MARKED_MAX:
            self._marks, self._unmarked = bytearray(256), 0
            for key in by_key:
                self._marks[key & 255] = 1
        flags = hashes.tobytes()[_LOW_BYTE::8].translate(self._marks)
        gated: list[int] = []
        place = flags.find(1)
        while place >= 0:
            if hashes[place] in by_key:
                gated.append(first + place)
            place = flags.find(1, place + 1)
        return gated

    def settle_down(self, line: Line, now: float) -> None:
        """Sort a line in after any change of it: drop it, make it ready, schedule it, or want its
        side line read or written."""
        key = line.key
        self._ready.pop(key, None)
        self._hungry.pop(key, None)
        self.starving.pop(key, None)
        if line.opens_after or (line.decision and line.aside_unwritten):
            self.starving[key] = None
        if line.empty:
            self._unmarked += self.by_key.pop(key, None) is not None
        elif line.waiting:
            if line.room():
                if line.due <= now:
                    self._ready[key] = None
                else:
                    self._schedule(line)
        elif line.aside and line.room() and line.loading is None and not line.is_trying:
            self._hungry[key] = None
        elif line.aside_unwritten and not line.aside and line.room():
            self.starving[key] = None

    def _schedule(self, line: Line) -> None:
        """Schedule a look at a line when its head is due. The line has one valid entry, however
        many messages join it meanwhile (P9)."""
        if line.scheduled == line.due:
            return
        line.scheduled = line.due
        heappush(self._due, (line.due, line.key))
        if len(self._due) > 2 * len(self.by_key) + 64:
            lines = self.by_key.values()
            self._due = [(x.scheduled, x.key) for x in lines if x.scheduled is not None]
            heapify(self._due)

    def _pop_due(self) -> Line | None:
        """Remove the earliest entry of the schedule, and return its line. None: the entry is
        outdated, because the line is gone or has another entry by now."""
        at, key = heappop(self._due)
        line = self.by_key.get(key)
        if line is None or line.scheduled != at:
            return None
        line.scheduled = None
        return line

    def next_due(self) -> float | None:
        """Return the time at which a line may become ready by time alone; None: none will."""
        while self._due:
            at, key = self._due[0]
            line = self.by_key.get(key)
            if line is not None and line.scheduled == at:
                return at
            heappop(self._due)
        return None

    def ripen(self, now: float) -> None:
        """Make ready the lines whose heads became due."""
        while self._due and self._due[0][0] <= now:
            line = self._pop_due()
            if line is not None and line.waiting and line.room() and line.due <= now:
                self._ready[line.key] = None

    def stirs(self, now: float) -> bool:
        """Whether a line may give now, or wants its side line read."""
        return bool(self._ready or self._hungry) or (bool(self._due) and self._due[0][0] <= now)

    def ready(self, count_max: int) -> list[Line]:
        """Return at most `count_max` lines that may give now, longest ready first."""
        return [self.by_key[key] for key in islice(self._ready, count_max)]

    def hungry(self) -> list[Line]:
        """Return the lines whose side line is to be read, because nothing of them waits in memory.
        Each is returned once."""
        lines = [self.by_key[key] for key in self._hungry]
        self._hungry.clear()
        return lines

    def counts(self) -> tuple[int, int, int]:
        """Return (keys that have a line, of these parked, offsets durably set aside)."""
        lines = self.by_key.values()
        return len(lines), sum(x.parked for x in lines), sum(x.aside for x in lines)
