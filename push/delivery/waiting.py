"""Messages that wait: a delivery has passed them, and they are neither settled nor in flight.

Here are returned and skipped messages in lines (R17, R18), the attempts they have had (R19),
messages on their way to the dead letters, and operators' decisions about parked keys. All of these
make changes that have to be written (R16). `Delivery` owns one and adds the log and the leases.

A decision about a parked key is to retry, skip or release it (R17, R18):

    parked ──decide──▶ all of it durably aside ──▶ one cursor write ──opened──▶ the line goes on

A key stays parked, here and in the storage, until one write is durable. It unparks the key and
decides about its head, which is tried once more, or goes to the dead letters. So a crash finds it
parked, or decided, and nothing in between; and of two decisions one is made.

The subject of a decision is a key as an operator has seen it: parked since that moment, with that
head. If a message before the head came back meanwhile, nothing is decided, and the operator has to
look again. [A skip of the message that failed buries the one in front of it, and is answered with
the one that failed.]
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
    """Messages of one delivery that wait. `now` is monotonic seconds."""

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
        "vanished",
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
        """Counted attempts of unsettled messages; absent: none."""
        self.due_unix_ms: dict[int, int] = {}
        self.rejected: set[int] = set()
        """Unsettled offsets that no further attempt can help, according to their consumer."""
        self.returned: dict[int, tuple[int, int]] = {}
        """Offset → (push it was given in last, key), until it is given again or settled. Push 0:
        its key was parked since, so that no ack of it counts."""
        self.dying: dict[int, int] = {}
        """Offset → key of messages that go to the dead letters, which is not durable yet."""
        self.dying_runs = RangeSet()
        """Stretches of the log that go to the dead letters, whatever their keys, which is not
        durable yet. Nothing of the log is given out after them meanwhile."""
        self.dead = DeadRanges(owned.cursor.dead)
        """Messages that durably go to the dead letters, and are not known to be there. They are
        given to no consumer again, whichever owner comes next (P5)."""
        self.ended = RangeSet(owned.cursor.ended)
        """Messages that were given out and are settled, but by no ack. Late acks of them are stale
        (R21). Beyond ENDED_RANGES_MAX the lowest ranges become one."""
        self.giveable: list[tuple[int, int]] = []
        """(key, offset) that may be sent as soon as there is credit and the record is read."""
        self.pull = 0
        """Number of the pull that is being served (R24)."""
        self.untaken = DeadRanges(owned.cursor.dead)
        """Dead messages that `take_dead_letters` has not returned yet."""
        self.vanished = 0
        """Number of offsets that side lines have lost and that were not settled here. A seek or
        another owner has ended the epoch and taken them."""
        self.notices: Notices | None = None
        """Events that were not returned yet; None: nothing has happened."""
        self.not_before: dict[int, float] = {}  # offset → end of its backoff, until it is in a line
        self._heads: dict[int, int | None] = {}
        """Key → its head, of decisions whose write is not durable yet."""
        self._released: set[int] = set()
        """Keys that were released. Attempts that the previous owner noted, of messages that this
        one has not come to in the log, do not count either."""
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
        """Convert the backoffs that were persisted as wall time, at the first call with both
        clocks. Each goes on for at most the longest possible delay (R3). Later calls do nothing."""
        if self.begun:
            return
        self.begun = True
        for offset, noted_unix_ms in self.due_unix_ms.items():
            due_unix_ms = clamp_due(noted_unix_ms, wall_unix_ms, limits.DELAY_S_MAX)
            if due_unix_ms > wall_unix_ms:
                self.not_before[offset] = now + (due_unix_ms - wall_unix_ms) / 1000
        self._open_inherited(now)

    def rescanned(self, now: float) -> None:
        """Note that the log was read again up to where the previous owner had passed it."""
        self._rescanned = True
        self._open_inherited(now)

    def _open_inherited(self, now: float) -> None:
        """Open inherited lines, because nothing can come before their side lines any more. If some
        of their offsets are still being set aside, they open after that."""
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
        """Let a message of the log wait in its key's line, in memory or aside. It waits aside if
        the bound in memory is reached, the line has offsets aside, or `_joins` says so."""
        fits = offset not in self.attempts or self._joins(line, offset)
        if line.overflowed or self.lines.held >= limits.HELD_PER_PARTITION_MAX or not fits:
            line.aside_unwritten += 1
            self.pending.set_aside(line.key, offset)
            if line.aside_unwritten > 1:
                return  # one more does not change what the line may do
        else:
            line.waiting.append(offset)
            self.lines.held += 1
            self._judge_inherited(line, offset, now)
        self.lines.settle_down(line, now)

    def _judge_inherited(self, line: Line, offset: int, now: float) -> None:
        if offset in self.attempts:
            self._judge(line, offset, self.not_before.pop(offset, 0.0), now)

    def come_back(self, line: Line, offset: int, push: int) -> None:
        """Take back a delivery of this push that is not settled. It waits again."""
        line.in_flight.discard(offset)
        self.returned[offset] = (push, line.key)
        line.put_back(offset)
        self.lines.held += 1

    def count(
        self, offset: int, due_unix_ms: int, *, reason: bytes | None = None, reject: bool = False
    ) -> None:
        """Count one more attempt of a message. It is not tried again before `due_unix_ms`.
        `reject`: that was the last attempt. `reason`: why it failed."""
        self.attempts[offset] = self.attempts.get(offset, 0) + 1
        self.due_unix_ms[offset] = due_unix_ms
        if reject:
            self.rejected.add(offset)
        self.pending.note(replace(self._retry(offset), nack=reason))

    # enforces: P3, R17
    def await_retry(self, line: Line, offset: int, due: float, now: float) -> None:
        """Let a message that came back wait for its next attempt until `due`. If it is exhausted,
        its key is parked, or it goes to the dead letters. Later messages of its key that were about
        to go out do not overtake it (R17)."""
        self.call_back(line, offset)
        self._judge(line, offset, due, now)
        if line.parked:
            self._all_aside(line)
        self.lines.settle_down(line, now)

    def call_back(self, line: Line, after: int) -> None:
        """Make the offsets of a line above `after` wait again that are on their way out and not
        sent."""
        back = line.call_back(after)
        if back:
            self.lines.held += len(back)
            for offset in back:
                self.pending.cancel(offset)
            self.giveable[:] = [x for x in self.giveable if x[0] != line.key or x[1] <= after]

    def _judge(self, line: Line, offset: int, due: float, now: float) -> None:
        """Decide when a message that was tried, and waits in its line, is tried again, or that it
        never is."""
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
        """Whether a message is not tried again, because it has used up its attempts or was
        rejected."""
        return 0 < self.attempts_max <= self.attempts.get(offset, 0) or offset in self.rejected

    def _all_aside(self, line: Line) -> None:
        """Set all of a parked line aside. It is read again from there when the key is no longer
        parked. Earlier acks do not count any more, because the operator decides."""
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
        """Send a message to the dead letters; its line waits until that is durable."""
        line.dying.add(offset)
        self.dying[offset] = line.key
        self.doom(offset, reason)

    def doom(self, offset: int, reason: str) -> None:
        """Have the next write state that a message goes to the dead letters. A consumer that was
        given it, and acks it late, learns that the ack does not count (R21)."""
        if offset in self.returned:
            self._mark_ended(offset)
            self.pending.will_end(offset)
        self.pending.die(offset, offset, reason)

    def die_run(self, first: int, last: int, reason: str) -> None:
        """Send first..last of the log to the dead letters, of which nothing was given here."""
        self.dying_runs.add(first, last)
        self.pending.die(first, last, reason)

    # enforces: P5
    def _died(self, write: CursorWrite, refused: tuple[int, ...], now: float) -> None:
        """Note that the messages are durably dead which this write says are, except `refused`:
        those were settled before."""
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
                line.widen()  # nothing has failed, and later ones may have expired, too
            if offset in refused:
                self.forget(offset)
            self._go_on(line)
            self.lines.settle_down(line, now)

    def is_dead(self, offset: int) -> bool:
        """Whether a message goes to the dead letters, durably or not yet, and is not known to be
        there."""
        return offset in self.dying or offset in self.dying_runs or offset in self.dead

    @property
    def dead_count(self) -> int:
        """Number of messages that go to the dead letters and are not known to be there."""
        return len(self.dying) + self.dying_runs.size() + self.dead.size()

    @property
    def dead_first(self) -> int | None:
        """The lowest offset that is durably dead; None: there is none."""
        return next((one.first for one in self.dead), None)

    def take_dead_letters(self, count_max: int) -> list[DeadLetter]:
        """Return the first `count_max` messages to move to the dead letters, by offset, each once.
        Each stays unsettled until `dead_lettered`."""
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
        """Return the events since the last call; None: there were none."""
        notices, self.notices = self.notices, None
        return notices

    def dead_lettered(self, first: int, last: int) -> None:
        """Settle first..last, which are in the dead letters, or no longer retained."""
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

        A message that was given before has its attempt recorded first (R16), and becomes `giveable`
        when that is durable. Others become so at once.
        """
        self.lines.ripen(now)
        credit -= len(self.giveable) + self.pending.recording_count
        for line in self.lines.ready(max(credit, 0)):
            while credit > 0 and line.waiting and line.room(most) and line.due <= now:
                offset = line.waiting[0]
                tried = offset in self.returned or offset in self.attempts
                if not tried and not next(reversed(line.leaving.values()), True):
                    break  # it would overtake one whose attempt is being recorded
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
        """Note that the write that was taken last is durable."""
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
            if offset in answer.refused:  # settled already; it must not be given again (R16)
                del line.leaving[offset]
                self.forget(offset)
            else:
                line.leaving[offset] = True
                self.giveable.append((key, offset))
            self.lines.settle_down(line, now)

    def sendable(self, key: int, offset: int, now: float) -> Line | None:
        """Return the line that may send this offset now; None: it may not (any more)."""
        line = self.lines.by_key.get(key)
        if line is None or not line.leaving.get(offset):
            return None
        closed = line.exclusive and line.in_flight and line.pull != self.pull
        if closed or line.earliest != offset:  # another pull has its key, or it would overtake one
            self.call_back(line, offset - 1)
            self.lines.settle_down(line, now)
            return None
        return line

    # --- Side lines ----------------------------------------------------------------------------

    def side_wanted(self) -> list[tuple[int, int]]:
        """Return (key, after which offset) to be read from side lines. Each is returned once, until
        `side_loaded` or `side_not_loaded`."""
        wanted: list[tuple[int, int]] = []
        for line in self.lines.hungry():
            line.loading = line.aside
            wanted.append((line.key, line.loaded))
        return wanted

    def side_loaded(self, key: int, offsets: tuple[int, ...], now: float) -> None:
        """Take the next part of a side line, in order. Empty: none of the offsets that it had when
        it was requested is left, because a seek or another owner has taken them."""
        line = self.lines.by_key.get(key)
        if line is None or line.loading is None:
            return
        # Offsets that joined since the request come later, when they are known to be durable.
        fresh, stood, line.loading = offsets[: line.loading], line.loading, None
        if line.parked:
            self._go_on(line)
        else:
            fresh = self._admitted(line, fresh)
            line.aside -= len(fresh) if fresh else stood
            self.vanished += 0 if fresh else stood
            line.loaded = fresh[-1] if fresh else line.loaded
            line.waiting.extend(fresh)
            self.lines.held += len(fresh)
            for offset in fresh:
                if not line.parked:
                    self._judge_inherited(line, offset, now)
        self.lines.settle_down(line, now)

    def side_not_loaded(self, key: int, now: float) -> None:
        """Want a side line again, at once, that could not be read."""
        line = self.lines.by_key.get(key)
        if line is not None and line.loading is not None:
            line.loading = None
            self._go_on(line)
            self.lines.settle_down(line, now)

    # --- Operators' decisions ----------------------------------------------------------------

    def _park(self, line: Line, head: int, why: str) -> None:
        """Park a line, because this offset is not tried again. An earlier release ends."""
        self._noted.parked.append(head)
        line.parked, line.forgiven = True, False
        line.parked_unix_ms = None
        self._released.discard(line.key)
        self.pending.park(line.key, why)

    def decide(self, verb: Verb, seen: ParkedLine, now: float) -> bool:
        """Unpark a key that the storage shows like this. Notices say when the decision is durable
        (`opened`), or that it was not made because the head is another one (`dropped`).

        Returns False, and changes nothing, if the key is not parked, was parked anew since, or has
        a decision already.
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
        """Go on with a decision, after something that it may have waited for. Nothing of the line
        may be on its way in from the side line, because it would be read again. Without a decision
        nothing happens."""
        decision, key, pending = line.decision, line.key, self.pending
        if decision is None or line.loading is not None or line.dying:
            return
        if key in self._heads:
            return
        unwritten = pending.first_aside(key)
        heads = (decision.head, line.head, unwritten)
        head = min((offset for offset in heads if offset is not None), default=None)
        if head is not None and head == unwritten:
            return  # goes on when that is written
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
        """Let a line go on, in order, because the write that unparks it is durable. Messages that
        joined meanwhile may belong before those aside (R17). So they are set aside first."""
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
        """Return the part of a side line's next offsets that comes into memory. A retried head
        comes without the messages after it, which may be exhausted and would park the key before
        the try."""
        if fresh and fresh[0] <= line.once:
            fresh = tuple(offset for offset in fresh if offset <= line.once)
        if line.forgiven:
            for offset in fresh:
                self._forgive_inherited(offset)
        return fresh

    def _joins(self, line: Line, offset: int) -> bool:
        """Whether a message that the previous owner tried may join the line. False: it has to wait
        aside, because the head that an operator lets be tried comes before it (see `_admitted`)."""
        if line.key in self._released:
            self._forgive_inherited(offset)
        return line.once < 0

    def _forgive_inherited(self, offset: int) -> None:
        if self.attempts.get(offset):  # rejected messages have attempts, too
            self.forgive(offset)
            self.pending.note(Retry(offset, 0))

    # --- Settling ------------------------------------------------------------------------------

    def settle(self, first: int, last: int) -> None:
        """Note that first..last are settled."""
        self.pending.settle(first, last)

    def pass_over(self, first: int, last: int) -> None:
        """Settle first..last, of which nothing is in the log, and forget their attempts."""
        self.settle(first, last)
        index = bisect_left(self.inherited, first)
        while index < len(self.inherited) and self.inherited[index] <= last:
            self.forget(self.inherited[index])
            index += 1

    def forget(self, offset: int) -> None:
        """Forget the attempts of a message, which do not matter any more."""
        self.attempts.pop(offset, None)
        self.due_unix_ms.pop(offset, None)
        self.rejected.discard(offset)
        self.returned.pop(offset, None)
        self.not_before.pop(offset, None)

    def forgive(self, offset: int) -> None:
        """Make the attempts of a message not count: no attempts, no backoff, no rejection."""
        self.attempts[offset] = self.due_unix_ms[offset] = 0
        self.rejected.discard(offset)
        self.not_before.pop(offset, None)

    def settled_in_flight(self, key: int, offset: int, now: float, *, is_slow: bool) -> None:
        """Note that a message was settled which a line had sent, or waited for. `is_slow`: it was
        settled late."""
        self.forget(offset)
        line = self.lines.by_key.get(key)
        if line is not None and offset in line.in_flight:
            line.in_flight.discard(offset)
            line.widen(is_slow=is_slow)
            self.lines.settle_down(line, now)

    # enforces: R21
    def settle_late(self, number: int, offset: int, now: float) -> bool:
        """Settle a message by an ack of push `number`, from which it returned, if it was not given
        since.

        The ack counts unless an earlier message of its key awaits retry (R21), or goes to the dead
        letters. It does not count for a parked key, about which an operator decides. Returns
        whether it counts.
        """
        push, key = self.returned[offset]
        line = self.lines.by_key.get(key)
        if push != number or line is None or line.earliest != offset:
            return False  # of a parked key nothing is in memory
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
        """Pass a giveable message that is no longer in the log (evicted, damaged)."""
        del line.leaving[offset]
        self._end(offset)
        self.lines.settle_down(line, now)

    def _end(self, offset: int) -> None:
        """Settle a message that no ack has settled. A late ack of it is stale (R21)."""
        if offset in self.returned:
            self._mark_ended(offset)
            self.pending.end(offset)
        else:
            self.settle(offset, offset)
        self.forget(offset)

    def _mark_ended(self, offset: int) -> None:
        self.ended.add(offset, offset)
        self.ended.cut_down(limits.ENDED_RANGES_MAX)
