"""What a delivery has passed and not settled, and which is not in flight either: what waits.

Returned and skipped messages in lines (R17, R18), the attempts they have had (R19), messages on
their way to the dead letters, operators' decisions about parked keys, and what all that makes to be
written (R16). `Delivery` owns one and adds the log and the leases.

A decision about a parked key is to retry, skip or release it (R17, R18):

    parked ──decide──▶ all of it durably aside ──▶ one cursor write ──opened──▶ the line goes on

A key stays parked, here and in the storage, until the one write is durable that unparks it and
says what becomes of its head: that it is tried once more, or that it goes to the dead letters. So a
crash finds it parked, or decided, and nothing in between; and of two decisions one is made.

What is decided about is a key as an operator has seen it: parked since that moment, with that head.
Where something that stands in front of the head came back meanwhile, nothing is decided, and
whoever asked looks again. [A skip of the message that failed buries the one in front of it, and
is answered with the one that failed.]
"""

from bisect import bisect_left
from dataclasses import replace
from typing import NamedTuple

from push import limits
from push.delivery.cursor_write import PendingWrite
from push.delivery.key_lines import Line, Lines
from push.delivery.values import Notices, Tally
from push.places import CursorPlace, ParkedLine, Verb
from push.ranges import Dead, DeadRanges, RangeSet
from push.retry import clamp_due
from push.storage_port import Cursor, CursorWrite, Owned, Retry, Written


class DeadLetter(NamedTuple):
    """A message to move to the dead letters. `reason`: exhausted, rejected, expired, overflow or
    skipped."""

    offset: int
    reason: str
    attempts: int


class Waiting:
    """See the module. `now` is monotonic seconds."""

    __slots__ = (
        "__weakref__",
        "_heads",
        "_released",
        "_rescanned",
        "attempts",
        "attempts_max",
        "begun",
        "dead",
        "due_unix_ms",
        "dying",
        "dying_runs",
        "ended",
        "giveable",
        "inherited",
        "lines",
        "not_before",
        "notices",
        "park",
        "pending",
        "pull",
        "rejected",
        "returned",
        "tally",
        "untaken",
    )

    def __init__(
        self,
        place: CursorPlace,
        owned: Owned,
        token: bytes,
        *,
        attempts_max: int,
        park: bool,
        exclusive: bool,
        tally: Tally,
    ) -> None:
        self.attempts_max, self.park, self.tally = attempts_max, park, tally
        self.lines = Lines(exclusive=exclusive)
        self.pending = PendingWrite(place, owned.epoch, token, starving=self.lines.starving)
        self.attempts: dict[int, int] = {}
        """Counted attempts of what is not settled; absent: none."""
        self.due_unix_ms: dict[int, int] = {}
        self.rejected: set[int] = set()
        """Unsettled offsets that no further attempt can help, as their consumer said."""
        self.returned: dict[int, tuple[int, int]] = {}
        """Offset → (push it was given in last, key), until it is given again or settled."""
        self.dying: dict[int, int] = {}
        """Offset → key of what goes to the dead letters, which is not durable yet."""
        self.dying_runs = RangeSet()
        """The same of stretches of the log, whatever their keys: nothing of the log is given out
        behind them meanwhile."""
        self.dead = DeadRanges(owned.cursor.dead)
        """What goes to the dead letters, durably, and is not known to stand there. Nobody is given
        it any more, whoever owns this next (P5)."""
        self.ended = RangeSet(owned.cursor.ended)
        """What was given out and is settled, but by no ack: late ones are stale (R21). Beyond
        ENDED_RANGES_MAX the lowest ranges become one."""
        self.giveable: list[tuple[int, int]] = []
        """(key, offset) that may be sent as soon as there is credit and the record is read."""
        self.pull = 0
        """The pull that is being served (R24)."""
        self.untaken = DeadRanges(owned.cursor.dead)
        """The dead messages that nobody was told to move."""
        self.notices: Notices | None = None
        """Events that nobody was told of yet; None: nothing has happened."""
        self.not_before: dict[int, float] = {}  # offset → end of its backoff, set aside
        self._heads: dict[int, int | None] = {}
        """Key → its head, of decisions that are on their way."""
        self._released: set[int] = set()
        """Keys that were released: what the previous owner tried of them, and this one had not
        come to in the log, does not count either."""
        self._inherit(owned.cursor)
        self.inherited = sorted(self.attempts)
        """Offsets for which the previous owner noted an attempt."""
        self._rescanned = False
        self.begun = not self.attempts
        """Whether the times of the previous owner's retries are known in this process's clock."""

    # --- Inheriting ----------------------------------------------------------------------------

    def _inherit(self, cursor: Cursor) -> None:
        for retry in cursor.retries:
            self.attempts[retry.offset] = retry.attempts
            self.due_unix_ms[retry.offset] = retry.due_unix_ms
            if retry.rejected:
                self.rejected.add(retry.offset)
        for mark in cursor.parked:
            line = self.lines.line(mark.key_hash)
            line.parked, line.parked_unix_ms = True, mark.since_unix_ms
        for key, count in cursor.lines:
            line = self.lines.line(key)
            line.aside, line.inherited = count, True

    # enforces: R3
    def begin(self, now: float, wall_unix_ms: int) -> None:
        """The first call with both clocks: a backoff that was persisted as wall time goes on, as
        far as the longest one there can be (R3)."""
        if self.begun:
            return
        self.begun = True
        for offset, noted_unix_ms in self.due_unix_ms.items():
            due_unix_ms = clamp_due(noted_unix_ms, wall_unix_ms, limits.DELAY_S_MAX)
            if due_unix_ms > wall_unix_ms:
                self.not_before[offset] = now + (due_unix_ms - wall_unix_ms) / 1000
        self._open_inherited(now)

    def rescanned(self, now: float) -> None:
        """The log was read again up to what the previous owner had passed."""
        self._rescanned = True
        self._open_inherited(now)

    def _open_inherited(self, now: float) -> None:
        """Inherited lines open, for nothing can come before what stands in them any more, but for
        what of theirs is being set aside still."""
        if not (self._rescanned and self.begun):
            return
        for line in [line for line in self.lines.by_key.values() if line.inherited]:
            line.inherited = False
            line.opens_after = line.aside_unwritten
            self.lines.settle_down(line, now)

    def tried_between(self, first: int, last: int) -> bool:
        """Whether the previous owner noted an attempt for some offset of first..last."""
        index = bisect_left(self.inherited, first)
        return index < len(self.inherited) and self.inherited[index] <= last

    # --- Coming in -----------------------------------------------------------------------------

    # enforces: R18
    def join(self, line: Line, offset: int, now: float) -> None:
        """A message of the log waits in its key's line: in memory, or beyond that aside."""
        fits = offset not in self.attempts or self._joins(line, offset)
        if line.overflowed or self.lines.held >= limits.HELD_PER_PARTITION_MAX or not fits:
            line.aside_unwritten += 1
            self.pending.set_aside(line.key, offset)
            if line.aside_unwritten > 1:
                return  # one more changes nothing about what the line may do
        else:
            line.waiting.append(offset)
            self.lines.held += 1
            self._judge_inherited(line, offset, now)
        self.lines.settle_down(line, now)

    def _judge_inherited(self, line: Line, offset: int, now: float) -> None:
        if offset in self.attempts:
            self._judge(line, offset, self.not_before.pop(offset, 0.0), now)

    def come_back(self, line: Line, offset: int, push: int) -> None:
        """A delivery was given in this push and is not settled: it waits again."""
        line.in_flight.discard(offset)
        self.returned[offset] = (push, line.key)
        line.put_back(offset)
        self.lines.held += 1

    def count(
        self, offset: int, due_unix_ms: int, *, reason: bytes | None = None, reject: bool = False
    ) -> None:
        """One more attempt of it is counted; `due_unix_ms`: not again before. `reject`: it is the
        last one. `reason`: why it failed."""
        self.attempts[offset] = self.attempts.get(offset, 0) + 1
        self.due_unix_ms[offset] = due_unix_ms
        if reject:
            self.rejected.add(offset)
        self.pending.note(replace(self._retry(offset), nack=reason))

    # enforces: P3, R17
    def await_retry(self, line: Line, offset: int, due: float, now: float) -> None:
        """What came back is given again from `due` on, or its end has come. Nothing of its key
        that was about to go out overtakes it (R17)."""
        self.call_back(line, offset)
        self._judge(line, offset, due, now)
        if line.parked:
            self._all_aside(line)
        self.lines.settle_down(line, now)

    def call_back(self, line: Line, after: int) -> None:
        """What of a line is above `after`, on its way out and not sent yet, waits again."""
        back = line.call_back(after)
        if back:
            self.lines.held += len(back)
            for offset in back:
                self.pending.cancel(offset)
            self.giveable[:] = [x for x in self.giveable if x[0] != line.key or x[1] <= after]

    def _judge(self, line: Line, offset: int, due: float, now: float) -> None:
        """Something that was tried waits in its line: when it goes, or that it never will."""
        line.window = 1
        if due > now:
            line.dues[offset] = due
        tried_once_more = offset == line.once and self.attempts.get(offset)
        if tried_once_more or self.is_exhausted(offset):
            why = "rejected" if offset in self.rejected else "exhausted"
            if self.park:
                if not line.parked:
                    self._park(line, offset, why)
                    self.tally.parked += 1
                self._all_aside(line)
            else:
                self._take(line, offset)
                self.call_back(line, offset)
                self.die(line, offset, why)

    def is_exhausted(self, offset: int) -> bool:
        """Whether it is not tried again: it was tried as often as it may be, or rejected."""
        return 0 < self.attempts_max <= self.attempts.get(offset, 0) or offset in self.rejected

    def _all_aside(self, line: Line) -> None:
        """A parked line is all side line; it is read again from there when it is parked no
        longer. Acks of before do not count any more: the operator decides."""
        self.call_back(line, -1)
        for offset in line.waiting:
            self.pending.set_aside(line.key, offset)
            if offset in self.returned:
                self.returned[offset] = (0, line.key)
        if line.waiting:
            first = line.waiting[0]
            line.loaded = min(line.loaded, first - 1)
            line.lower(first)
        line.aside_unwritten += len(line.waiting)
        self.lines.held -= len(line.waiting)
        line.waiting.clear()
        self.not_before |= line.dues  # a backoff goes on while its key is parked
        line.dues.clear()

    def _take(self, line: Line, offset: int) -> None:
        line.waiting.remove(offset)
        line.dues.pop(offset, None)
        self.lines.held -= 1

    # --- Dying ---------------------------------------------------------------------------------

    def die(self, line: Line, offset: int, reason: str) -> None:
        """It goes to the dead letters; its line waits until that is durable."""
        line.dying.add(offset)
        self.dying[offset] = line.key
        self.doom(offset, reason)

    def doom(self, offset: int, reason: str) -> None:
        """The next write says that it goes to the dead letters. Whoever was given it and acks it
        late is told that this does not count (R21)."""
        if offset in self.returned:
            self._mark_ended(offset)
            self.pending.will_end(offset)
        self.pending.die(offset, offset, reason)

    def die_run(self, first: int, last: int, reason: str) -> None:
        """first..last of the log, of which nothing was given here, go to the dead letters."""
        self.dying_runs.add(first, last)
        self.pending.die(first, last, reason)

    # enforces: P5
    def _died(self, write: CursorWrite, refused: tuple[int, ...], now: float) -> None:
        """It is durable what of a write is dead, but for `refused`: that was settled before."""
        for one in write.dead:
            self.dying_runs.remove(one.first, one.last)
            for part in RangeSet((o, o) for o in refused).gaps(one.first, one.last):
                dead = Dead(*part, one.reason)
                self.dead.add(dead)
                self.untaken.add(dead)
                self._noted.dying.append(dead)
        decided = RangeSet((one.first, one.last) for one in write.dead)
        for offset in [offset for offset in self.dying if offset in decided]:
            line = self.lines.line(self.dying.pop(offset))
            line.dying.discard(offset)
            if self.dead.of(offset) == "expired":
                line.widen()  # nothing has failed, and others may have expired behind it
            if offset in refused:
                self.forget(offset)
            self._go_on(line)
            self.lines.settle_down(line, now)

    def is_dead(self, offset: int) -> bool:
        """Whether it goes to the dead letters, durably or not yet, and is not known to be there."""
        return offset in self.dying or offset in self.dying_runs or offset in self.dead

    @property
    def dead_count(self) -> int:
        """How many messages go to the dead letters and are not known to be there."""
        return len(self.dying) + self.dying_runs.size() + self.dead.size()

    @property
    def dead_first(self) -> int | None:
        """The lowest offset that is dead, durably; None: nothing is."""
        return next((one.first for one in self.dead), None)

    def take_dead_letters(self, count_max: int) -> list[DeadLetter]:
        """The first messages to move, by offset; each stays unsettled until `dead_lettered`."""
        return [
            DeadLetter(offset, one.reason, self.attempts.get(offset, 0))
            for one in self.untaken.take(count_max)
            for offset in range(one.first, one.last + 1)
        ]

    @property
    def _noted(self) -> Notices:
        if self.notices is None:
            self.notices = Notices()
        return self.notices

    def take_notices(self) -> Notices | None:
        """Return what has happened since the last call; None: nothing."""
        notices, self.notices = self.notices, None
        return notices

    def dead_lettered(self, first: int, last: int) -> None:
        """first..last stand in the dead letters, or are gone: settled here."""
        if self.dead.remove(first, last):
            self.settle(first, last)
            if self.attempts or self.returned:
                for offset in range(first, last + 1):
                    self.forget(offset)

    # --- Going out -----------------------------------------------------------------------------

    # enforces: R16
    def plan(self, credit: int, now: float, most: int | None = None) -> None:
        """Let lines that are ready send up to `credit` messages, so that no more than `most` of
        each are in flight.

        What was given before has its attempt recorded first (R16) and becomes `giveable` when
        that is durable; what never was becomes so at once.
        """
        self.lines.ripen(now)
        credit -= len(self.giveable) + self.pending.recording_count
        for line in self.lines.ready(max(credit, 0)):
            while credit > 0 and line.waiting and line.room(most) and line.due <= now:
                offset = line.waiting[0]
                tried = offset in self.returned or offset in self.attempts
                if not tried and not next(reversed(line.leaving.values()), True):
                    break  # it would overtake what is being recorded
                line.waiting.popleft()
                line.dues.pop(offset, None)
                self.lines.held -= 1
                line.leaving[offset] = not tried
                credit -= 1
                if tried:
                    self.pending.record(self._retry(offset), line.key)
                else:
                    self.giveable.append((line.key, offset))
            self.lines.settle_down(line, now)

    def _retry(self, offset: int) -> Retry:
        return Retry(
            offset,
            self.attempts.get(offset, 0),
            self.due_unix_ms.get(offset, 0),
            rejected=offset in self.rejected,
        )

    def recorded(self, answer: Written, now: float) -> None:
        """The write that was taken last is durable."""
        write, recorded, aside = self.pending.confirm()
        for side in write.aside:
            self.lines.by_key[side.key_hash].lower(side.offsets[0])
        for key, count in aside.items():
            line = self.lines.by_key[key]
            line.aside += count
            line.aside_unwritten -= count
            line.opens_after = max(0, line.opens_after - count)
            self._go_on(line)
            self.lines.settle_down(line, now)
        if write.dead:
            self._died(write, answer.refused, now)
        for mark in write.parked:
            self.lines.by_key[mark.key_hash].parked_unix_ms = mark.since_unix_ms
        for key in write.unparked:
            self._unparked(self.lines.by_key[key], now)
        for offset, key in recorded.items():
            line = self.lines.by_key[key]
            if offset in answer.refused:  # settled already: it must not be given again (R16)
                del line.leaving[offset]
                self.forget(offset)
            else:
                line.leaving[offset] = True
                self.giveable.append((key, offset))
            self.lines.settle_down(line, now)

    def sendable(self, key: int, offset: int, now: float) -> Line | None:
        """The line that may send this offset now; None: it may not (any more)."""
        line = self.lines.by_key.get(key)
        if line is None or not line.leaving.get(offset):
            return None
        closed = line.exclusive and line.in_flight and line.pull != self.pull
        if closed or line.earliest != offset:  # another pull carries its key, or it would overtake
            self.call_back(line, offset - 1)
            self.lines.settle_down(line, now)
            return None
        return line

    # --- Side lines ----------------------------------------------------------------------------

    def side_wanted(self) -> list[tuple[int, int]]:
        """(key, after which offset) to be read from side lines; each is asked for once, until
        `side_loaded` or `side_not_loaded`."""
        wanted: list[tuple[int, int]] = []
        for line in self.lines.hungry():
            line.loading = line.aside
            wanted.append((line.key, line.loaded))
        return wanted

    def side_loaded(self, key: int, offsets: tuple[int, ...], now: float) -> None:
        """The next part of a side line, in order; empty: nothing of what stood there is left."""
        line = self.lines.by_key.get(key)
        if line is None or line.loading is None:
            return
        # What joined since it was asked comes later, when it is known to be durable.
        fresh, stood, line.loading = offsets[: line.loading], line.loading, None
        if line.parked:
            self._go_on(line)
        else:
            fresh = self._admitted(line, fresh)
            line.aside -= len(fresh) if fresh else stood
            line.loaded = fresh[-1] if fresh else line.loaded
            line.waiting.extend(fresh)
            self.lines.held += len(fresh)
            for offset in fresh:
                if not line.parked:
                    self._judge_inherited(line, offset, now)
        self.lines.settle_down(line, now)

    def side_not_loaded(self, key: int, now: float) -> None:
        """The side line could not be read: it is wanted again."""
        line = self.lines.by_key.get(key)
        if line is not None and line.loading is not None:
            line.loading = None
            self._go_on(line)
            self.lines.settle_down(line, now)

    # --- Operators' decisions ----------------------------------------------------------------

    def _park(self, line: Line, head: int, why: str) -> None:
        """The line waits for an operator, since this offset is not tried again. An earlier release
        is over."""
        self._noted.parked.append(head)
        line.parked, line.forgiven = True, False
        line.parked_unix_ms = None
        self._released.discard(line.key)
        self.pending.park(line.key, why)

    def decide(self, verb: Verb, seen: ParkedLine, now: float) -> bool:
        """Unpark a key that the storage shows like this. Notices tell when the decision is durable
        (`opened`), or that it was not made, since the head is another one (`dropped`).

        False, and nothing changes: the key is not parked, or was parked anew since, or something
        was decided already.
        """
        line = self.lines.by_key.get(seen.key_hash)
        if line is None or line.parked_unix_ms != seen.since_unix_ms or line.decision is not None:
            return False
        line.decide(verb, seen.head)
        self._go_on(line)
        self.lines.settle_down(line, now)
        return True

    # enforces: R18
    def _go_on(self, line: Line) -> None:
        """Something that a decision may have waited for has happened. Nothing of the line may be
        on its way in from the side line: it would be read again. No decision: nothing happens."""
        decision, key, pending = line.decision, line.key, self.pending
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
            self._noted.dropped.append(key)
            return
        if head is not None and decision.verb == "skip":
            line.aside -= 1
            self.doom(head, "skipped")
        elif head is not None:
            pending.note(Retry(head, 0))
        self._heads[key] = head
        pending.unpark(key)

    def _unparked(self, line: Line, now: float) -> None:
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
            self.forgive(head)
        if not line.inherited:
            line.opens_after = line.aside_unwritten
        self._noted.opened.append(line.key)
        self.lines.settle_down(line, now)

    def _admitted(self, line: Line, fresh: tuple[int, ...]) -> tuple[int, ...]:
        """What of the next part of a side line comes into memory. A retried head comes without
        what stands behind it, which may be exhausted and would park the key before the try."""
        if fresh and fresh[0] <= line.once:
            fresh = tuple(offset for offset in fresh if offset <= line.once)
        if line.forgiven:
            for offset in fresh:
                self._forgive_inherited(offset)
        return fresh

    def _joins(self, line: Line, offset: int) -> bool:
        """A message that the previous owner tried joins the line. False: it must wait aside, for
        the head that an operator lets be tried stands before it (see `_admitted`)."""
        if line.key in self._released:
            self._forgive_inherited(offset)
        return line.once < 0

    def _forgive_inherited(self, offset: int) -> None:
        if self.attempts.get(offset):  # as what was rejected has, too
            self.forgive(offset)
            self.pending.note(Retry(offset, 0))

    # --- Settling ------------------------------------------------------------------------------

    def settle(self, first: int, last: int) -> None:
        """first..last are settled: write it down."""
        self.pending.settle(first, last)

    def pass_over(self, first: int, last: int) -> None:
        """Nothing of first..last is in the log: settled, and what was tried of it forgotten."""
        self.settle(first, last)
        index = bisect_left(self.inherited, first)
        while index < len(self.inherited) and self.inherited[index] <= last:
            self.forget(self.inherited[index])
            index += 1

    def forget(self, offset: int) -> None:
        """Nothing of its tries matters any more."""
        self.attempts.pop(offset, None)
        self.due_unix_ms.pop(offset, None)
        self.rejected.discard(offset)
        self.returned.pop(offset, None)
        self.not_before.pop(offset, None)

    def forgive(self, offset: int) -> None:
        """It was tried, and that does not count: no attempts, no backoff, no rejection."""
        self.attempts[offset] = self.due_unix_ms[offset] = 0
        self.rejected.discard(offset)
        self.not_before.pop(offset, None)

    def settled_in_flight(self, key: int, offset: int, now: float, *, is_slow: bool) -> None:
        """A message that a line had sent, or waited for, was settled; late, where it `is_slow`."""
        self.forget(offset)
        line = self.lines.by_key.get(key)
        if line is not None and offset in line.in_flight:
            line.in_flight.discard(offset)
            line.widen(is_slow=is_slow)
            self.lines.settle_down(line, now)

    # enforces: R21
    def settle_late(self, number: int, offset: int, now: float) -> bool:
        """An ack of push `number` for a message that returned from it and was not given since.

        It counts unless an earlier message of its key awaits retry (R21), or goes to the dead
        letters, and not against an operator's decision: what is parked stays so. False: it does
        not count.
        """
        push, key = self.returned[offset]
        line = self.lines.by_key.get(key)
        if push != number or line is None or line.earliest != offset:
            return False  # what is parked stands in no memory
        if any(dying < offset for dying in line.dying):
            return False
        if offset in line.leaving:
            del line.leaving[offset]
            self.pending.cancel(offset)
        else:
            self._take(line, offset)
        line.widen()
        self.forget(offset)
        self.settle(offset, offset)
        self.lines.settle_down(line, now)
        return True

    def lost(self, line: Line, offset: int, now: float) -> None:
        """A giveable message is no longer in the log (evicted, damaged): it is passed."""
        del line.leaving[offset]
        self._end(offset)
        self.lines.settle_down(line, now)

    def _end(self, offset: int) -> None:
        """No ack has settled it, and none will: whoever was given it is told so (R21)."""
        if offset in self.returned:
            self._mark_ended(offset)
            self.pending.end(offset)
        else:
            self.settle(offset, offset)
        self.forget(offset)

    def _mark_ended(self, offset: int) -> None:
        self.ended.add(offset, offset)
        self.ended.cut_down(limits.ENDED_RANGES_MAX)
