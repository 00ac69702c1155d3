"""Delivery of one group in one partition, under one epoch: the heart of the rules.

    log ──frontier──▶ give ──▶ leases ──ack──▶ settled ──▶ cursor write
                       │          │ nack, expiry
                       ▼          ▼
                     waiting (lines of keys) ──due──▶ record the attempt ──▶ give again

Everything below `frontier` is settled, in flight, or waits. Pure: a shell feeds it records, acks
and time, and carries out what it asks for:

* `give` and `give_line` return the pushes to send; `wants_log`, `giveable` and `side_wanted` say
  what to read for them.
* `take_write` returns the one cursor change that is to be made durable next; `written` confirms
  it. Acts that depend on its being durable wait for that (a redelivery, R16).
* `take_dead_letters` returns messages to move, once it is durable that they go to the dead
  letters; `dead_lettered` confirms that they are there.
* `next_deadline` says when to call `expire`.

Times: `now` is monotonic seconds, `wall_unix_ms` unix milliseconds (R3).
"""

from collections.abc import Callable, Mapping
from operator import attrgetter

from push import limits
from push.delivery.key_lines import Line, loose
from push.delivery.leases import ADOPTED, Leases, Push, offsets_of, ranges_of
from push.delivery.scan import Scan, Share
from push.delivery.values import (
    Before,
    DeliverySettings,
    Judged,
    Notices,
    Taken,
    Tally,
    append_offset,
)
from push.delivery.waiting import DeadLetter, Waiting
from push.places import CursorPlace, ParkedLine, Verb
from push.ranges import Range
from push.record import Record
from push.retry import backoff_s
from push.storage_port import CursorWrite, Owned, Written


class Duties:
    """The work that a shell has to do for a delivery; valid until `Delivery.duties` is called
    again."""

    __slots__ = (
        "deadline",
        "has_dead_letters",
        "in_flight",
        "must_write",
        "notices",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Number of messages in flight."""
        self.must_write = False
        self.has_dead_letters = False
        self.deadline: float | None = None
        """The time at which `expire` has something to do; None: time alone makes nothing due."""
        self.notices: Notices | None = None


class Delivery:
    """The rules of one (group, partition) under one epoch, in its owner's gateway."""

    def __init__(
        self,
        place: CursorPlace,
        owned: Owned,
        token: bytes,
        settings: DeliverySettings,
        *,
        now: float,
        tally: Tally | None = None,
    ) -> None:
        """`tally`: the group's counters; None: nobody reads them."""
        self.place = place
        self.epoch = owned.epoch
        self.generation = owned.generation
        self.settings = settings
        self.tally = tally or Tally()
        self.draining = False
        self.drain_deadline = float("inf")
        self.lapsed_at = float("-inf")
        """The time at which the latest message was given of those whose leases ended last; -inf:
        none has ended."""
        self.leases = Leases()
        self.waiting = Waiting(
            place,
            owned,
            token,
            attempts_max=settings.attempts_max,
            park=settings.park,
            exclusive=settings.pulls,
            tally=self.tally,
        )
        self.scan = Scan(owned, settings, self.leases, self.waiting, now)
        self.pushes: Mapping[int, Push] = self.leases.pushes
        """Pushes that have something in flight, by number; read-only."""
        self.lines: Mapping[int, Line] = self.waiting.lines.by_key
        """Lines of keys that wait, by key hash; read-only."""
        self.before = Before(owned.previous, self.scan.frontier, bool(owned.cursor.lines))
        self._began = now
        self._duties = Duties()

    def __repr__(self) -> str:
        return (
            f"<Delivery {self.place} epoch={self.epoch} frontier={self.frontier} end={self.end} "
            f"in_flight={self.leases.open_count} lines={len(self.waiting.lines.by_key)}>"
        )

    # --- Giving from the log -------------------------------------------------------------------

    @property
    def frontier(self) -> int:
        """The offset from which the log is read. Everything below is settled, in flight, or
        waits."""
        return self.scan.frontier

    @property
    def end(self) -> int:
        """The certified end. Nothing at or above it exists for any client (R10)."""
        return self.scan.end

    @property
    def in_flight(self) -> int:
        """Number of messages in flight."""
        return self.leases.open_count

    def push(self, number: int) -> Push | None:
        """Return a push of which something is in flight; None: nothing of it is."""
        return self.pushes.get(number)

    def number_of(self, epoch: int, push: int) -> int | None:
        """Return the number in the ledger of a push that a client names by epoch and push. None:
        that epoch is over, or had another owner."""
        if epoch == self.epoch:
            return push
        return push - ADOPTED if epoch == self.before.epoch and push < ADOPTED else None

    def name_of(self, number: int) -> tuple[int, int]:
        """Return (epoch, push), as a client knows push `number` of the ledger."""
        if number > 0:
            return self.epoch, number
        assert self.before.epoch is not None  # else nothing was adopted
        return self.before.epoch, number + ADOPTED

    @property
    def lease_s(self) -> float:
        """Duration of a lease, in seconds."""
        return self.settings.lease_s

    def certify(self, end: int) -> None:
        """Note that the log is certified up to (not including) `end`."""
        self.scan.end = max(self.scan.end, end)

    @property
    def wants_log(self) -> bool:
        """Whether the record at `frontier` is wanted (credit aside)."""
        return not self.draining and self.scan.wants_log

    @property
    def must_look_again(self) -> bool:
        """Whether the log waits for a moment, because the key of its next message has its share in
        flight and may yet keep pace (P8)."""
        return self.scan.again_at is not None

    def is_idle(self, now: float) -> bool:
        """Whether there is nothing to give, neither from the log nor from lines, and nothing that
        has yet to begin (see `expire`)."""
        scan, waiting = self.scan, self.waiting
        return scan.frontier >= scan.end and waiting.begun and not self.is_line_ready(now)

    def has_passed(self, offset: int) -> bool:
        """Whether the offset is below the frontier, or the frontier will skip it, because it is
        settled, set aside in a side line, or dying."""
        return self.scan.has_passed(offset)

    def begin_pull(self) -> None:
        """Begin a pull. It may carry several messages of a key; the next pull carries no more of
        that key while any is in flight (R24)."""
        self.waiting.pull += 1

    def skip_to(self, offset: int, *, now: float) -> list[Range]:
        """Pass the offsets between `frontier` and `offset`, which are not retained. Returns those
        that were not passed before. They are settled now, though they were given to no consumer."""
        return self.scan.skip_to(offset, now)

    def give(
        self,
        record: Record,
        credit: int,
        *,
        now: float,
        wall_unix_ms: int,
        share: Share | None = None,
    ) -> list[Push]:
        """Give messages for the first time, from the record that holds `frontier` or the next one.

        Takes at most `credit` messages; passes over what is passed, gated or expired. Moves
        `frontier`; calling again with the same record goes on where it stopped. No write is needed
        before these are sent (R16). `share`: the part that a key may have (P8). If the next
        message's key has that already and may yet keep pace, nothing is given and `frontier` stays.
        """
        return [] if self.draining else self.scan.give(record, credit, now, wall_unix_ms, share)

    @property
    def unsettled(self) -> int:
        """Number of messages of the log that are neither settled nor on their way to the dead
        letters. A message above the frontier that the previous owner had passed is included until
        it is passed here."""
        log = self.end - self.frontier - self.scan.adopted_ahead
        return log + self._open

    @property
    def unsettled_passed(self) -> int:
        """Number of messages below the frontier that are not settled, dying ones too, and those
        that side lines have lost to the end of the epoch. While the frontier goes over offsets that
        the previous owner had passed, some above it may count as well."""
        return self._open + self.waiting.dead_count + self.waiting.vanished

    @property
    def _open(self) -> int:
        lines = self.waiting.lines
        waits = sum(
            len(line.leaving) + line.aside + line.aside_unwritten for line in lines.by_key.values()
        )
        return self.leases.open_count + lines.held + waits

    def evict(self, count: int, *, now: float) -> int:
        """Send up to `count` of the oldest messages that were not given yet to the dead letters,
        because the queue overflows. Returns how many go. Nothing after them is given out before
        that is durable (P3)."""
        return 0 if self.draining else self.scan.evict(count, now)

    # --- Giving from lines ---------------------------------------------------------------------

    def is_line_ready(self, now: float) -> bool:
        """Whether there is anything to send from lines, or to read for them."""
        waiting = self.waiting
        return bool(waiting.giveable or (waiting.lines.by_key and waiting.lines.stirs(now)))

    def side_wanted(self) -> list[tuple[int, int]]:
        """Return (key, after which offset) to be read from side lines. Each is returned once, until
        `side_loaded` or `side_not_loaded`."""
        return self.waiting.side_wanted()

    def side_loaded(self, key: int, offsets: tuple[int, ...], now: float) -> None:
        """Take the next part of a key's side line, in order."""
        self.waiting.side_loaded(key, offsets, now)

    def side_not_loaded(self, key: int, now: float) -> None:
        """Want a side line again that could not be read."""
        self.waiting.side_not_loaded(key, now)

    def plan_retries(self, credit: int, *, now: float, share: Share | None = None) -> None:
        """Let lines that are ready send up to `credit` messages. A message that was given before
        has its attempt recorded durably first (R16). `share`: bounds what each key has in
        flight."""
        if not self.draining:
            self.waiting.plan(credit, now, None if share is None or share.ample else share.limit)

    @property
    def giveable(self) -> list[tuple[int, int]]:
        """(key, offset) that go out as soon as there is credit and the record is read."""
        return self.waiting.giveable

    # enforces: R13
    def give_line(
        self, key: int, offset: int, record: Record, *, now: float, wall_unix_ms: int
    ) -> Push | None:
        """Send a message that the caller took from `giveable`. `record` holds it.

        Returns None when the message is not to be sent now: it was acked late, has expired, or has
        to wait again for others of its key, or the partition moves.
        """
        waiting = self.waiting
        line = self._sendable(key, offset, now, wall_unix_ms)
        if line is None:
            return None
        expires = record.expires_unix_ms(offset)
        if expires and expires <= wall_unix_ms:  # R13
            del line.leaving[offset]
            waiting.die(line, offset, "expired")
            return None
        if line.dying:  # messages before it may come back, until it is durable that they do not
            waiting.call_back(line, offset - 1)
            waiting.lines.settle_down(line, now)
            return None
        del line.leaving[offset]
        place = offset - record.first
        push = self.leases.give(
            offset,
            offset,
            record.header.key_hashes[place : place + 1],
            now=now,
            lease_s=self.settings.lease_s,
            attempt=waiting.attempts.get(offset, 0) + 1,
            started=self.settings.pulls,
            of_line=True,
        )
        if waiting.returned.pop(offset, None) is not None or offset in waiting.attempts:
            self.tally.redelivered += 1
        line.in_flight.add(offset)
        line.pull = waiting.pull
        waiting.lines.settle_down(line, now)
        return push

    def pass_line(self, key: int, offset: int, *, now: float, wall_unix_ms: int) -> bool:
        """Pass a message that the caller took from `giveable`, and that the log no longer has.

        Returns whether it is settled by that. Otherwise it was acked late, or waits again, or the
        partition moves.
        """
        line = self._sendable(key, offset, now, wall_unix_ms)
        if line is not None:
            self.waiting.lost(line, offset, now)
        return line is not None

    def _sendable(self, key: int, offset: int, now: float, wall_unix_ms: int) -> Line | None:
        self.waiting.begin(now, wall_unix_ms)
        return None if self.draining else self.waiting.sendable(key, offset, now)

    # --- Acks, nacks, extends ------------------------------------------------------------------

    def ack_ordinary(self, number: int, numbers: list[int], begin: int, *, now: float) -> int:
        """Settle the ranges `numbers[begin:]` (first, last, first, last …) of push `number` at
        once, if all of them are in flight in this push and no line waits for any of them.

        A range may span what the push skips. Returns how many messages were settled. 0: this is not
        the ordinary case, and nothing happened; `ack` judges them one by one.
        """
        push = self.leases.pushes.get(number)
        if push is None or push.of_line or number < 0 or self.settings.pulls:
            return 0
        base, end, mask = push.first, push.last, 0
        ranges: list[tuple[int, int]] = []
        for index in range(begin, len(numbers), 2):
            first, last = numbers[index], numbers[index + 1]
            if first < base or last > end:
                return 0
            mask |= ((1 << (last - first + 1)) - 1) << (first - base)
            ranges.append((first, last))
        if mask & ~push.given:
            mask &= push.given
            ranges = push.runs() if mask == push.given else ranges_of(mask, base)
        if push.open & mask != mask or push.watched & mask:
            return 0
        self.leases.settled(push, now)
        self.leases.close(push, mask)
        self.waiting.pending.settle_all(ranges)
        self.tally.settled += (count := mask.bit_count())
        return count

    # enforces: R21
    def ack(self, number: int, first: int, last: int, *, now: float) -> Judged:
        """Settle first..last of push `number`; each offset is judged by itself (R21)."""
        push = self.leases.pushes.get(number)
        if push is not None and number > 0 and push.first <= first and last <= push.last:
            mask = push.within(first, last)
            if push.open & mask == mask:  # ordinary case, all of it is in flight in this push
                return Judged(self._settle_open(push, mask, now))
        judged, offsets = self.leases.named(number, first, last)
        for offset in offsets:
            if push is not None and push.open >> (offset - push.first) & 1:
                self._settle_open(push, 1 << (offset - push.first), now)
                append_offset(judged.settled, offset)
            elif self.waiting.is_dead(offset):
                append_offset(judged.stale, offset)
            elif offset in self.waiting.returned:
                late = self.waiting.settle_late(number, offset, now)
                self.tally.settled += late
                append_offset(judged.settled if late else judged.stale, offset)
            elif self.leases.given_again(offset) or offset in self.waiting.ended:
                append_offset(judged.stale, offset)
            else:  # settled already
                append_offset(judged.settled, offset)
                append_offset(judged.again, offset)
        return judged

    def _settle_open(self, push: Push, mask: int, now: float) -> list[Range]:
        ranges = ranges_of(mask, push.first)
        if push.of_line or push.number < 0 or self.settings.pulls or push.watched & mask:
            is_slow = now - push.given_at > self.leases.patience_s
            for offset in offsets_of(mask, push.first):
                key = push.hashes[offset - push.first] or loose(offset)
                self.waiting.settled_in_flight(key, offset, now, is_slow=is_slow)
        self.leases.settled(push, now)
        self.leases.close(push, mask)
        self.waiting.pending.settle_all(ranges)
        self.tally.settled += mask.bit_count()
        return ranges

    def nack(
        self,
        number: int,
        first: int,
        last: int,
        *,
        delay_s: float | None,
        draw: Callable[[], float],
        now: float,
        wall_unix_ms: int,
        reason: bytes | None = None,
        reject: bool = False,
    ) -> tuple[Judged, list[Taken]]:
        """Return first..last of push `number`, each a counted attempt, to be tried again after
        `delay_s` or (None) the backoff, with jitter from `draw` (numbers in [0, 1)). `reject`: they
        are not tried again, and count at once as having exhausted their attempts. `reason` is
        remembered with them.

        Returns the judgement and the deliveries that are revoked with it, which are later ones of
        the same keys (R17).
        """
        judged, offsets = self.leases.named(number, first, last)
        revoked: list[Taken] = []
        push = self.leases.pushes.get(number)
        for offset in offsets:
            if push is None or not push.open >> (offset - push.first) & 1:
                append_offset(judged.stale, offset)
                continue
            wait_s = 0.0 if reject else delay_s
            if wait_s is None:
                wait_s = backoff_s(
                    self.waiting.attempts.get(offset, 0) + 1,
                    base_s=self.settings.backoff_s,
                    max_s=self.settings.backoff_max_s,
                    draw=draw(),
                )
            due_unix_ms = wall_unix_ms + int(wait_s * 1000)
            self.waiting.count(offset, due_unix_ms, reason=reason, reject=reject)
            revoked += self._return(push, offset, now + wait_s, now)
            self.leases.settled(push, now)
            self.tally.nacked += 1
            self.tally.rejected += reject
            append_offset(judged.settled, offset)
        return judged, revoked

    # enforces: R17
    def _return(self, push: Push, offset: int, due: float, now: float) -> list[Taken]:
        """Return a delivery, and with it the later ones of its key, which are the result."""
        key = push.hashes[offset - push.first]
        line = self.waiting.lines.line(key or loose(offset))
        revoked = self.leases.of_key(key, offset) if key else []
        for later_push, later in [*reversed(revoked), (push, offset)]:
            self.leases.close(later_push, 1 << (later - later_push.first))
            self.waiting.come_back(line, later, later_push.number)
        self.waiting.await_retry(line, offset, due, now)
        return [(later_push.number, later) for later_push, later in revoked]

    def give_back(self, number: int, offset: int, *, now: float) -> list[Taken]:
        """Return a delivery that its consumer never saw, without counting an attempt. Later
        deliveries of its key return with it, and are the result. Nothing happens if it is not in
        flight in push `number`."""
        push = self.leases.pushes.get(number)
        if push is None or not push.within(offset, offset) & push.open:
            return []
        return self._return(push, offset, now, now)

    def start(self, number: int, first: int, last: int, *, now: float) -> None:
        """Note that the handlers of first..last have begun. If these messages return because their
        leases end, or their holder is gone, that counts as an attempt (R19)."""
        push = self.leases.pushes.get(number)
        if push is not None:
            self.leases.heard(push, now)
            push.started |= push.within(first, last)

    # enforces: R20
    def extend(self, number: int, first: int, last: int, *, lease_s: float, now: float) -> Judged:
        """Prolong leases to now + lease_s, within `lease_total_s` and a drain's end (R20)."""
        judged, offsets = self.leases.named(number, first, last)
        push = self.leases.pushes.get(number)
        if push is not None:
            cap = min(push.given_at + self.settings.lease_total_s, self.drain_deadline)
            self.leases.extend(push, push.within(first, last), min(now + lease_s, cap))
        for offset in offsets:
            is_open = push is not None and push.open >> (offset - push.first) & 1
            append_offset(judged.settled if is_open else judged.stale, offset)
        return judged

    # --- Time ----------------------------------------------------------------------------------

    # enforces: P6, R19, R20
    def expire(
        self,
        *,
        now: float,
        wall_unix_ms: int,
        along: list[Taken] | None = None,
        arrived: Callable[[Push], float | None] = attrgetter("given_at"),
    ) -> list[Taken]:
        """Do what time alone has made due. Deliveries whose leases have ended return at once (P6),
        and the end of a drain cuts off the rest.

        `arrived` says from when the lease of a push counts; None: the push is in transit, and the
        lease does not run (push.transit). Returns everything that was taken from the consumer.
        Deliveries that returned only with an earlier message of their key are added to `along`.
        """
        self.waiting.begin(now, wall_unix_ms)
        self.scan.looked(now)
        taken: list[Taken] = []
        due = [
            (push, mask)
            for push, mask in self.leases.due(now)
            if not self._goes_on(push, mask, arrived, now)
        ]
        self.lapsed_at = max((push.given_at for push, _ in due), default=self.lapsed_at)
        if now >= self.drain_deadline:
            due = [(push, push.open) for push in list(self.leases.pushes.values())]
        for push, mask in due:
            for offset in offsets_of(mask, push.first):
                bit = offset - push.first
                if push.open >> bit & 1:  # not revoked meanwhile with an earlier one of its key
                    if push.started >> bit & 1:
                        self.waiting.count(offset, wall_unix_ms)
                    self.tally.expired += 1
                    revoked = self._return(push, offset, now, now)
                    taken += [(push.number, offset), *revoked]
                    if along is not None:
                        along += revoked
        self.waiting.lines.ripen(now)
        return taken

    def _goes_on(
        self, push: Push, mask: int, arrived: Callable[[Push], float | None], now: float
    ) -> bool:
        """Whether a lease that is due goes on, because its messages arrived later than they were
        given, or have not arrived. The lease of an adopted push (R22) does not go on: its holder
        has had it for long."""
        if push.number < 0:
            return False
        lease_s, since = self.settings.lease_s, arrived(push)
        if since is None:
            until = now + min(lease_s, limits.TRANSIT_LOOK_S)
        else:
            until = since + lease_s
        until = min(until, push.given_at + self.settings.lease_total_s, self.drain_deadline)
        if until <= now:
            return False
        self.leases.go_on(push, mask, until)
        return True

    def next_deadline(self) -> float | None:
        """Return the time at which `expire` has something to do; None: time alone makes nothing
        due."""
        if not self.waiting.begun:
            return self._began
        lines = self.waiting.lines
        at = self.leases.next_deadline() if self.pushes else None
        due = lines.next_due() if lines.by_key else None
        if due is not None and (at is None or due < at):
            at = due
        if (again := self.scan.again_at) is not None and not self.draining:
            at = again if at is None else min(at, again)
        if self.draining and self.leases.open_count:
            at = self.drain_deadline if at is None else min(at, self.drain_deadline)
        return at

    def duties(self) -> Duties:
        """Return the work to do now, after anything that may have changed it. Notices are returned
        once."""
        duties, waiting = self._duties, self.waiting
        duties.in_flight = self.leases.open_count
        duties.must_write = waiting.pending.dirty
        duties.has_dead_letters = waiting.untaken.count > 0
        duties.deadline = self.next_deadline()
        duties.notices, waiting.notices = waiting.notices, None
        return duties

    # --- Moving away ---------------------------------------------------------------------------

    def drain(self, *, deadline: float) -> None:
        """Give nothing more. Deliveries in flight settle, expire, or are cut off at `deadline`."""
        self.draining = self.waiting.pending.ending = True
        self.drain_deadline = min(self.drain_deadline, deadline)

    @property
    def drained(self) -> bool:
        """Whether another owner may begin, once the last write is durable."""
        return self.draining and not self.leases.open_count

    # enforces: R19
    def abandon(self, *, wall_unix_ms: int, moves: bool = False) -> None:
        """End all deliveries, because the holder is gone. Those that had started count as an
        attempt (R19), the rest do not. If the holder `moves`, and will say what it holds (R22),
        nothing counts.

        Afterwards `take_write` holds everything that the next owner must know.
        """
        self.draining = self.waiting.pending.ending = True
        for push in [] if moves else list(self.leases.pushes.values()):
            for offset in offsets_of(push.open & push.started, push.first):
                self.waiting.count(offset, wall_unix_ms)
        self.leases.clear()

    # --- Writing -------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether there is something to write to the cursor."""
        return self.waiting.pending.dirty

    @property
    def is_writing(self) -> bool:
        """Whether a write was taken and is not known to be durable yet."""
        return self.waiting.pending.under_way

    @property
    def urgent(self) -> bool:
        """Whether something depends on the write: a redelivery, room to set aside, or a dead letter
        that is put on its way then."""
        return self.waiting.pending.is_urgent

    def take_write(self, *, wall_unix_ms: int) -> CursorWrite | None:
        """Return the cursor change to make durable now; None if there is none, or one is under
        way."""
        return self.waiting.pending.take(wall_unix_ms)

    def written(self, answer: Written, *, now: float) -> None:
        """Note that the write that was taken last is durable."""
        self.waiting.recorded(answer, now)

    def not_written(self) -> None:
        """Keep a write that failed or whose outcome is unknown. It goes with the next (R29)."""
        self.waiting.pending.restore()

    # --- Dead letters and parked keys ----------------------------------------------------------

    def line(self, key: int) -> Line | None:
        """Return the line of a key (see `push.delivery.key_lines`); None: the key has none."""
        return self.lines.get(key)

    def line_counts(self) -> tuple[int, int, int]:
        """Return the number of keys that have a line, that of parked keys, and that of offsets in
        side lines."""
        return self.waiting.lines.counts()

    @property
    def held_count(self) -> int:
        """Number of messages that wait in memory."""
        return self.waiting.lines.held

    @property
    def dead_first(self) -> int | None:
        """The lowest offset that is durably dead; None: there is none."""
        return self.waiting.dead_first

    @property
    def dead_count(self) -> int:
        """Number of messages that go to the dead letters and are not known to be there."""
        return self.waiting.dead_count

    @property
    def has_dead_letters(self) -> bool:
        """Whether `take_dead_letters` would return something."""
        return bool(self.waiting.untaken)

    def is_dead(self, offset: int) -> bool:
        """Whether a message goes to the dead letters and is not known to be there."""
        return self.waiting.is_dead(offset)

    def decide(self, verb: Verb, seen: ParkedLine, now: float) -> bool:
        """Unpark a key that the storage shows like this. Returns False, and changes nothing, if the
        key is not parked, was parked anew since, or has a decision already."""
        return self.waiting.decide(verb, seen, now)

    def attempts_of(self, offset: int) -> int:
        """Return how many attempts of a message that is not settled count so far."""
        return self.waiting.attempts.get(offset, 0)

    def take_notices(self) -> Notices | None:
        """Return the events since the last call that others wait for; None: nothing has
        happened."""
        return self.waiting.take_notices()

    def take_dead_letters(self, count_max: int) -> list[DeadLetter]:
        """Return up to `count_max` messages to move to the dead letters, by offset, each once. Each
        stays unsettled until `dead_lettered`. The decision is durable, and they are given to no
        consumer again (P5)."""
        return self.waiting.take_dead_letters(count_max)

    def dead_lettered(self, first: int, last: int) -> None:
        """Settle first..last, which are durably in the dead letters, or no longer retained."""
        self.waiting.dead_lettered(first, last)
