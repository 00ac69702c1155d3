"""What a delivery has passed and not settled, and which is not in flight either: what waits.

Returned and skipped messages in lines (R17, R18), the attempts they have had (R19), messages on
their way to the dead letters, and what all that makes to be written (R16). `Delivery` owns one
and adds the log and the leases.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import islice

from push import limits
from push.cursor_writes import PendingWrite
from push.lines import Line, Lines
from push.ports import Cursor, GroupPartition, Owned, Retry, Written


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message to move to the dead letters. `reason`: exhausted or expired."""

    offset: int
    reason: str
    attempts: int


class Waiting:
    """See the module. `now` is monotonic seconds."""

    __slots__ = (
        "_dead",
        "_inherited",
        "attempts",
        "attempts_max",
        "due_unix_ms",
        "dying",
        "giveable",
        "lines",
        "park",
        "pending",
        "returned",
    )  # fmt: skip

    def __init__(
        self, place: GroupPartition, owned: Owned, token: bytes, *,
        attempts_max: int, park: bool, exclusive: bool,
    ) -> None:  # fmt: skip
        self.attempts_max = attempts_max
        self.park = park
        self.lines = Lines(exclusive=exclusive)
        self.pending = PendingWrite(place, owned.epoch, token)
        self.attempts: dict[int, int] = {}
        """Counted attempts of what is not settled; absent: none."""
        self.due_unix_ms: dict[int, int] = {}
        self.returned: dict[int, tuple[int, int]] = {}
        """Offset → (push it was given in last, key), until it is given again or settled."""
        self.dying: dict[int, int] = {}
        """Offset → key of what is on its way to the dead letters."""
        self.giveable: list[tuple[int, int]] = []
        """(key, offset) that may be sent as soon as there is credit and the record is read."""
        self._dead: list[DeadLetter] = []
        self._inherited: list[int] = []
        self._inherit(owned.cursor)

    def _inherit(self, cursor: Cursor) -> None:
        for retry in cursor.retries:
            self.attempts[retry.offset] = retry.attempts
            self.due_unix_ms[retry.offset] = retry.due_unix_ms
        self._inherited = sorted(self.attempts)
        for mark in cursor.parked:
            self.lines.line(mark.key_hash).parked = True
        for key, count in cursor.lines:
            line = self.lines.line(key)
            line.aside, line.inherited = count, True

    def rescanned(self, now: float) -> None:
        """The log was read again up to what the previous owner had passed: inherited lines open,
        for nothing can come before what stands in them any more."""
        for line in list(self.lines.by_key.values()):
            line.inherited = False
            self.lines.settle_down(line, now)

    def tried_between(self, first: int, last: int) -> bool:
        """Whether the previous owner noted an attempt for some offset of first..last."""
        index = bisect_left(self._inherited, first)
        return index < len(self._inherited) and self._inherited[index] <= last

    # --- Coming in -----------------------------------------------------------------------------

    def join(self, line: Line, offset: int, now: float) -> None:
        """A message of the log waits behind its key's line: in memory, or beyond that aside."""
        if line.overflowed or self.lines.held >= limits.HELD_PER_PARTITION_MAX:
            line.aside_unwritten += 1
            self.pending.set_aside(line.key, offset)
        else:
            line.waiting.append(offset)
            self.lines.held += 1
        self.lines.settle_down(line, now)

    def come_back(self, line: Line, offset: int, push: int) -> None:
        """A delivery was given in this push and is not settled: it waits again."""
        line.in_flight.discard(offset)
        self.returned[offset] = (push, line.key)
        line.put_back(offset)
        self.lines.held += 1

    def count(self, offset: int, due_unix_ms: int) -> None:
        """One more attempt of it is counted; `due_unix_ms`: not again before."""
        self.attempts[offset] = self.attempts.get(offset, 0) + 1
        self.due_unix_ms[offset] = due_unix_ms
        self.pending.note(self._retry(offset))

    def await_retry(self, line: Line, offset: int, due: float, now: float) -> None:
        """What is in the line and was tried is given again from `due` on, or its end has come."""
        line.window = 1
        if due > now:
            line.dues[offset] = due
        if 0 < self.attempts_max <= self.attempts.get(offset, 0):
            if self.park:
                if not line.parked:
                    line.parked = True
                    self.pending.park(line.key, "exhausted")
            else:
                self._take(line, offset)
                self.die(line, offset, "exhausted")
        if line.parked:
            self._all_aside(line)
        self.lines.settle_down(line, now)

    def _all_aside(self, line: Line) -> None:
        for offset in line.waiting:
            self.pending.set_aside(line.key, offset)
        line.aside_unwritten += len(line.waiting)
        self.lines.held -= len(line.waiting)
        line.waiting.clear()

    def _take(self, line: Line, offset: int) -> None:
        line.waiting.remove(offset)
        line.dues.pop(offset, None)
        self.lines.held -= 1

    def die(self, line: Line, offset: int, reason: str) -> None:
        """It goes to the dead letters; its line waits until it has arrived there."""
        line.dying.add(offset)
        self.dying[offset] = line.key
        self._dead.append(DeadLetter(offset, reason, self.attempts.get(offset, 0)))

    def take_dead_letters(self) -> list[DeadLetter]:
        """Messages to move; each stays unsettled until `dead_lettered`."""
        dead, self._dead = self._dead, []
        return dead

    def dead_lettered(self, offset: int, now: float) -> bool:
        """It stands in the dead letters, durably. False: it was not on its way there."""
        key = self.dying.pop(offset, None)
        if key is None:
            return False
        line = self.lines.line(key)
        line.dying.discard(offset)
        self.settle(offset, offset)
        self.forget(offset)
        self.lines.settle_down(line, now)
        return True

    # --- Going out -----------------------------------------------------------------------------

    def plan(self, credit: int, now: float) -> None:
        """Let lines that are ready send up to `credit` messages.

        What was given before has its attempt recorded first (R16) and becomes `giveable` when
        that is durable; what never was becomes so at once.
        """
        self.lines.ripen(now)
        credit -= len(self.giveable) + self.pending.recording_count
        for line in self.lines.ready(max(credit, 0)):
            while credit > 0 and line.waiting and line.room() and line.due <= now:
                offset = line.waiting.popleft()
                line.dues.pop(offset, None)
                self.lines.held -= 1
                line.recording.add(offset)
                credit -= 1
                if offset in self.returned or offset in self.attempts:
                    self.pending.record(self._retry(offset), line.key)
                else:
                    self.giveable.append((line.key, offset))
            self.lines.settle_down(line, now)

    def _retry(self, offset: int) -> Retry:
        return Retry(offset, self.attempts.get(offset, 0), self.due_unix_ms.get(offset, 0))

    def recorded(self, answer: Written, now: float) -> None:
        """The write that was taken last is durable."""
        recorded, aside = self.pending.confirm()
        for key, count in aside.items():
            line = self.lines.line(key)
            line.aside += count
            line.aside_unwritten -= count
            self.lines.settle_down(line, now)
        for key, offset in recorded:
            line = self.lines.line(key)
            if offset in line.recording:
                if offset in answer.refused:  # settled already: it must not be given again (R16)
                    line.recording.discard(offset)
                    self.forget(offset)
                else:
                    self.giveable.append((key, offset))
            self.lines.settle_down(line, now)

    def side_wanted(self) -> list[tuple[int, int]]:
        """(key, after which offset) to be read from side lines; each is asked for once."""
        wanted: list[tuple[int, int]] = []
        for line in self.lines.hungry():
            line.loading = line.aside
            wanted.append((line.key, max((*line.in_flight, *line.recording), default=-1)))
        return wanted

    def side_loaded(self, key: int, offsets: tuple[int, ...], now: float) -> None:
        """The next part of a side line, in order; empty: nothing of what stood there is left."""
        line = self.lines.by_key.get(key)
        if line is None or line.loading is None:
            return
        stood, line.loading = line.loading, None
        if not line.parked:
            known = line.in_flight | line.recording | set(line.waiting)
            fresh = [offset for offset in offsets if offset not in known]
            line.waiting.extend(fresh)
            self.lines.held += len(fresh)
            # Some may have joined the side line since it was asked: those are not counted off.
            line.aside -= len(fresh) if fresh else stood
        self.lines.settle_down(line, now)

    # --- Settling ------------------------------------------------------------------------------

    def settle(self, first: int, last: int) -> None:
        """first..last are settled: write it down."""
        self.pending.settle(first, last)

    def forget(self, offset: int) -> None:
        """Nothing of its tries matters any more."""
        self.attempts.pop(offset, None)
        self.due_unix_ms.pop(offset, None)
        self.returned.pop(offset, None)

    def settled_in_flight(self, key: int, offset: int, now: float) -> None:
        """A message that a line had sent was settled."""
        self.forget(offset)
        line = self.lines.by_key.get(key)
        if line is not None and offset in line.in_flight:
            line.in_flight.discard(offset)
            line.widen()
            self.lines.settle_down(line, now)

    def settle_late(self, number: int, offset: int, now: float) -> bool:
        """An ack of push `number` for a message that returned from it and was not given since.

        It counts unless an earlier message of its key awaits retry (R21), and not against an
        operator's decision: what is parked stays so. False: it does not count.
        """
        push, key = self.returned[offset]
        line = self.lines.by_key.get(key)
        if push != number or line is None or line.parked or line.dying:
            return False
        earliest = min((*line.recording, *islice(line.waiting, 1)), default=-1)
        if earliest != offset:
            return False
        if offset in line.recording:
            line.recording.discard(offset)
        else:
            self._take(line, offset)
        line.widen()
        self.forget(offset)
        self.settle(offset, offset)
        self.lines.settle_down(line, now)
        return True

    def lost(self, key: int, offset: int, now: float) -> None:
        """A giveable message is no longer in the log (evicted, damaged): it is passed."""
        line = self.lines.line(key)
        line.recording.discard(offset)
        self.forget(offset)
        self.settle(offset, offset)
        self.lines.settle_down(line, now)
