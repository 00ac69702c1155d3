"""First give-outs: the progress of a delivery in its log, and which messages go out. Pure.

Whole ranges go out while nothing is exceptional. They go message by message only where a key is
gated, a message has expired, the previous owner had tried it, or pulls close keys (R24).

A hung or slow key takes a bounded part of its consumer's credit, and starves no other (P8):

    credit  |---- ample: whatever comes next ----|---- kept: a key may have 1/32 of the rest ----|

A consumer that keeps pace never comes to the part that is kept, and nothing is counted for it. In
that part the messages in flight are counted by key, and a run ends before the first message that
exceeds its key's share. A key that has its share already is one of two:

* It has not had the time to be slow. The log waits for it, a second at most, because a key that
  keeps pace is given in long runs, and thousands of its messages are not put aside for nothing.
* It is slow. It gets a line (see `push.delivery.key_lines`). Its later messages are passed over,
  and go out a handful at a time as earlier ones settle, until none is in flight and none waits.

Messages without a key have no order to keep, and no share.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from push import limits
from push.delivery.key_lines import Line, Lines, loose
from push.delivery.leases import Leases, Push, offsets_of
from push.delivery.values import DeliverySettings
from push.delivery.waiting import Waiting
from push.ranges import Range, RangeSet
from push.record import Record
from push.storage_port import Owned

_PART: Final = 32
"""Number of equal parts of what is left; a key gets one. Twenty keys that hang leave half of it, a
hundred leave some."""
_AT_ONCE: Final = 8
_SMALL: Final = 32
"""Smallest window of which half is kept; of a smaller one a quarter is, and nothing of one to
three."""
_FEW: Final = 128
"""Number of messages in flight below which counting costs less than it saves."""
_PAUSE_S: Final = 0.05
_NO_KEY: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Share:
    """The messages that a consumer takes now, and the share of them that a key may have."""

    ample: int
    """Number of messages that may be given whatever their keys."""
    rest: int
    """Number of further messages, of which each key has its share."""
    much: int
    """Number of a key's messages in flight from which the key is slow as soon as the oldest of them
    has been in flight for `Leases.patience_s`. With fewer it is slow only if a message that was
    given that much later has been settled, or none was settled for as long."""

    @property
    def limit(self) -> int:
        """Number of messages of a key that may be in flight when nothing is ample."""
        return max(1, self.rest // _PART)

    @property
    def at_once(self) -> int:
        """Number of messages that may be given before a key's share is computed anew."""
        return max(1, self.rest // _AT_ONCE)

    def after(self, count: int) -> "Share":
        """The share that is left when this number has been given."""
        more = max(0, count - self.ample)
        return Share(max(0, self.ample - count), self.rest - more, self.much)


# enforces: R25
def kept(window: int) -> int:
    """Return the part of a window that is kept for keys of which little is in flight."""
    return window // (2 if window >= _SMALL else 4)


def share(available: int, ample: int, in_flight: int) -> Share:
    """Return the share of a consumer. `available`: number of messages that it takes now, `ample` of
    them whatever their keys. `in_flight`: number of messages that it has not settled."""
    ample = max(0, ample)
    return Share(ample, available - ample, in_flight // _PART)


# enforces: P8, R25
class KeyShares:
    """Number of messages in flight by key in one (group, partition), counted while it is needed."""

    __slots__ = ("_counted", "_counts", "_counts_at", "_leases", "_lines", "_since")

    def __init__(self, leases: Leases, lines: Lines) -> None:
        self._leases = leases
        self._lines = lines
        self._counts: Counter[int] | None = None
        """Messages by key that no line counts: at least the number in flight."""
        self._counted = self._since = 0
        self._counts_at = float("-inf")

    def forget(self) -> None:
        """Discard the counts, because something is given that is not counted."""
        self._counts = None

    def rests_until(self, now: float) -> float | None:
        """Return when to count again, if nothing can be slow yet and counting costs something;
        None: now. A consumer that keeps pace uses the ample part, and now and then the rest."""
        leases = self._leases
        if leases.open_count < _FEW or now == self._counts_at:
            return None
        for push in leases.pushes.values():
            if push.open & ~push.watched and not push.of_line:
                at = min(push.given_at + leases.patience_s, self._counts_at + _PAUSE_S)
                if at > now:
                    return at
                break
        self._counts_at = now
        return None

    def fitting(self, hashes: "array[int]", gated: Iterable[int], share: Share) -> int:
        """Return how many of the messages with these keys may go, until the first one that exceeds
        its key's share. `gated`: places of those that wait in a line, and do not go. The others
        count as in flight from now on."""
        if self._counts is None or self._since > self._counted:
            self._count()
        counts = self._counts
        assert counts is not None
        counts.update(hashes)
        self._since += len(hashes)
        for place in gated:
            counts[hashes[place]] -= 1
        if max(map(counts.__getitem__, hashes)) <= share.limit:
            return len(hashes)
        return self._fitting(hashes, share)

    def _fitting(self, hashes: "array[int]", share: Share) -> int:
        """Return what `fitting` does, after counting anew. Counts grow with what is given and do
        not shrink with what is settled."""
        counts, by_key = self._count(), self._lines.by_key
        for place, key in enumerate(hashes):
            if key and key not in by_key:
                if counts[key] >= share.limit:
                    return place
                counts[key] += 1
        return len(hashes)

    def _count(self) -> "Counter[int]":
        counts = self._counts = Counter[int]()
        for push in self._leases.pushes.values():
            left = push.open & ~push.watched
            if push.of_line or not left:
                continue
            if left.bit_count() == len(push.hashes):
                counts.update(push.hashes)
            else:
                first = push.first
                counts.update([push.hashes[at - first] for at in offsets_of(left, first)])
        self._counted, self._since = counts.total(), 0
        counts[0] = _NO_KEY
        return counts

    def hold(self, key: int, share: Share, now: float) -> float | None:
        """Judge a key that has its share and no line. Returns when to look at it again; None: it is
        slow, and has a line from now on."""
        leases = self._leases
        held = leases.of_key(key, -1)
        oldest, patience_s = min(push.given_at for push, _ in held), leases.patience_s
        if now < oldest + patience_s:
            return oldest + patience_s
        again_at = leases.settled_at + patience_s
        if len(held) < share.much and leases.front <= oldest + patience_s and now < again_at:
            return again_at
        line = self._lines.line(key)
        line.window = min(limits.KEY_AHEAD_MAX, limits.LINE_WINDOW_MAX)
        for push, offset in held:
            push.watched |= 1 << (offset - push.first)
            line.in_flight.add(offset)
        if self._counts is not None:
            del self._counts[key]
        self._lines.settle_down(line, now)
        return None


class Scan:
    """Progress of one delivery in its log. Everything below `frontier` is settled, in flight, or
    waits."""

    __slots__ = (
        "_adopted",
        "_halted",
        "_in_row",
        "_leases",
        "_passed",
        "_rescan_end",
        "_settings",
        "_shares",
        "_waiting",
        "again_at",
        "end",
        "frontier",
    )

    def __init__(
        self, owned: Owned, settings: DeliverySettings, leases: Leases, waiting: Waiting, now: float
    ) -> None:
        self._settings = settings
        self._leases = leases
        self._waiting = waiting
        self._shares = KeyShares(leases, waiting.lines)
        self.again_at: float | None = None
        """The time at which to give again, because a key has its share and may yet keep pace; None:
        the log does not wait for that."""
        dead = [(one.first, one.last) for one in owned.cursor.dead]
        self._passed = RangeSet([*owned.cursor.passed, *dead])
        self._halted = False
        """Whether the frontier waits until it is durable that messages before it are dead."""
        self._in_row = 0
        """Number of expired messages that the frontier met one after another, without one that had
        not expired."""
        self._adopted: list[int] = []
        """Offsets that were adopted (R22), while the frontier may be below one."""
        self._rescan_end = max((last + 1 for _, last in self._passed), default=0)
        self.end = owned.certified
        self.frontier = owned.cursor.floor
        if self._rescan_end > self.frontier:
            self._move(self.frontier, now)
        else:
            self._finish_rescan(now)

    @property
    def wants_log(self) -> bool:
        """Whether the record at `frontier` is wanted (credit aside)."""
        return (
            self.frontier < self.end
            and not (self._halted and len(self._waiting.dying_runs))
            and self._has_room
        )

    # enforces: P9
    @property
    def _has_room(self) -> bool:
        """Whether every bound on what may wait has room for more."""
        waiting = self._waiting
        return (
            waiting.pending.aside_count < limits.ASIDE_UNWRITTEN_MAX
            and len(waiting.dying) < limits.DYING_PER_PARTITION_MAX
            and waiting.dead.count < limits.DEAD_RANGES_MAX
            # A rescan brings back lines that existed before, and closed ones wait for its end.
            and (len(waiting.lines.by_key) < limits.LINES_PER_PARTITION_MAX or self._rescan_end > 0)
        )

    def has_passed(self, offset: int) -> bool:
        """Whether an offset is below the frontier, or will be passed over when the frontier comes
        to it."""
        return offset < self.frontier or offset in self._passed

    def gaps(self, last: int, count_max: int) -> list[Range]:
        """Return the first `count_max` offsets up to `last` that are not passed, as ranges."""
        gaps: list[Range] = []
        last = min(last, self.end - 1)
        for low, high in self._passed.gaps(self.frontier, last) if self.frontier <= last else ():
            if count_max <= 0:
                break
            gaps.append((low, min(high, low + count_max - 1)))
            count_max -= high - low + 1
        return gaps

    def adopt(self, offsets: Sequence[int], now: float) -> None:
        """Pass over these offsets (ascending, none passed), which are in flight already."""
        self._adopted = [*offsets]
        self._passed.add_all([(offset, offset) for offset in offsets])
        self._rescan_end = max(self._rescan_end, offsets[-1] + 1)
        self._move(self.frontier, now)

    @property
    def adopted_ahead(self) -> int:
        """Number of adopted offsets that the frontier has not come to."""
        return len(self._adopted) - bisect_left(self._adopted, self.frontier)

    def skip_to(self, offset: int, now: float) -> list[Range]:
        """Pass the offsets between `frontier` and `offset`, which are not retained. Returns those
        that were not passed before. They are settled now, though they were given to no consumer."""
        if offset <= self.frontier:
            return []
        skipped = [*self._passed.gaps(self.frontier, offset - 1)]
        for first, last in skipped:
            self._waiting.pass_over(first, last)
        self._move(offset, now)
        return skipped

    def _move(self, frontier: int, now: float) -> None:
        """Move the frontier, past what the previous owner had passed already."""
        if not self._rescan_end:
            self.frontier = frontier
            return
        self.frontier = self._passed.next_absent(frontier)
        if self.frontier >= self._rescan_end:
            self._finish_rescan(now)

    def _finish_rescan(self, now: float) -> None:
        self._rescan_end = 0
        self._passed, self._adopted = RangeSet(), []
        self._waiting.rescanned(now)

    def evict(self, count: int, now: float) -> int:
        """Send up to `count` messages at the frontier to the dead letters; returns how many."""
        evicted = 0
        while evicted < count and self.frontier < self.end and self._has_room:
            first = self.frontier
            last = min(self.end - 1, first + count - evicted - 1)
            last = self._passed.gaps(first, last)[0][1]
            self._waiting.die_run(first, last, "overflow")
            self._move(last + 1, now)
            evicted += last - first + 1
            self._halted = True
        return evicted

    def looked(self, now: float) -> None:
        """Clear `again_at`, once that time has come."""
        if self.again_at is not None and self.again_at <= now:
            self.again_at = None

    # enforces: P3, R10
    def give(
        self, record: Record, credit: int, now: float, wall_unix_ms: int, share: Share | None
    ) -> list[Push]:
        """Give messages for the first time, from the record that holds `frontier` or the next one.
        Takes at most `credit` messages, and moves `frontier`."""
        if not self._waiting.begun:
            self._waiting.begin(now, wall_unix_ms)
        self.again_at = None
        if share is None or share.ample > 0:
            self._shares.forget()
        if record.first > self.frontier:
            self.skip_to(min(record.first, self.end), now)
        may_expire = 0 < record.expires_min_unix_ms() <= wall_unix_ms
        pushes: list[Push] = []
        given = 0
        end = min(record.last, self.end - 1)
        self._halted = False
        while self.frontier <= end and given < credit and self._has_room:
            if not may_expire:
                self._in_row = 0
            elif self._bury_expired(record, end, now, wall_unix_ms):
                continue
            if len(self._waiting.dying_runs):
                self._halted = True
                break
            first = self.frontier
            last = min(end, first + min(credit - given, limits.PUSH_MESSAGES_MAX) - 1)
            last = min(last, record.bytes_until(first, limits.PUSH_BYTES_MAX))
            if self._rescan_end:
                last = self._passed.gaps(first, last)[0][1]
            hashes = record.header.key_hashes[first - record.first : last - record.first + 1]
            exceptional = self._exceptional(first, last, hashes, may_expire=may_expire)
            left = share.after(given) if share is not None and given else share
            if left is not None and left.ample < len(hashes):
                fitting = self._fitting(first, hashes, exceptional, left, now)
                if not fitting:
                    if self.again_at is not None:
                        break
                    continue  # its key has a line now
                if fitting < len(hashes):
                    last, hashes = first + fitting - 1, hashes[:fitting]
                    exceptional = [offset for offset in exceptional if offset <= last]
            if not exceptional:
                push: Push | None = self._push(first, last, hashes, now)
                self._move(last + 1, now)
            else:
                push = self._give_singly(
                    record,
                    first,
                    last,
                    hashes,
                    exceptional,
                    now=now,
                    wall_unix_ms=wall_unix_ms,
                    share=left,
                )
            if push is not None:
                given += push.count
                pushes.append(push)
        return pushes

    def _fitting(
        self, first: int, hashes: "array[int]", exceptional: Sequence[int], share: Share, now: float
    ) -> int:
        """Return how many messages of a run the shares let go. 0: none, until `again_at`; or, if
        that is None, because the key of the first one has a line now."""
        if not any(hashes[share.ample :]):
            return len(hashes)
        if share.ample > 0:
            return share.ample
        hashes = hashes[: share.at_once]
        if self._settings.pulls:
            return len(hashes)
        shares, by_key = self._shares, self._waiting.lines.by_key
        again_at = shares.rests_until(now)
        if again_at is not None:
            waits = (at for at, key in enumerate(hashes) if key and key not in by_key)
            fitting = next(waits, len(hashes))
            self.again_at = None if fitting else again_at
            return fitting
        last = first + len(hashes) - 1
        gated = [o - first for o in exceptional if o <= last and hashes[o - first] in by_key]
        fitting = shares.fitting(hashes, gated, share)
        if not fitting:
            self.again_at = shares.hold(hashes[0], share, now)
        return fitting

    # enforces: R13
    def _bury_expired(self, record: Record, end: int, now: float, wall_unix_ms: int) -> bool:
        """Send expired messages at the frontier to the dead letters (R13), up to `end`. Returns
        whether any had expired.

        A few go one by one, and each holds up its key until that is durable. Many in a row go as
        one range, which holds up the log after them instead. Nothing is kept of each then, however
        many there are.
        """
        first, waiting = self.frontier, self._waiting
        last = min(end, self._passed.gaps(first, end)[0][1]) if self._rescan_end else end
        last = self._expired_until(record, first, last, wall_unix_ms)
        if last < first:
            self._in_row = 0
            return False
        self._in_row += last - first + 1
        if self._in_row >= limits.DEAD_RUN_MIN:
            waiting.die_run(first, last, "expired")
        else:
            for offset in range(first, last + 1):
                key = record.key_hash(offset) or loose(offset)
                waiting.die(waiting.lines.line(key), offset, "expired")
        self._move(last + 1, now)
        return True

    def _expired_until(self, record: Record, first: int, last: int, wall_unix_ms: int) -> int:
        """Return the last offset of the run of expired messages from `first` on whose keys are shut
        by nothing but others that die. Below `first`: there is none."""
        low, high = first - record.first, last - record.first + 1
        column = record.header.expires_unix_ms[low:high]
        if not (min(column) > 0 and max(column) <= wall_unix_ms):
            alive = (i for i, at in enumerate(column) if not 0 < at <= wall_unix_ms)
            last = first + next(alive) - 1
        lines = self._waiting.lines
        if lines.by_key and last >= first:
            hashes = record.header.key_hashes[low : last - record.first + 1]
            for offset in lines.gated(hashes, first):
                if not lines.by_key[hashes[offset - first]].is_dying_only:
                    return offset - 1
        return last

    def _exceptional(
        self, first: int, last: int, hashes: "array[int]", *, may_expire: bool
    ) -> Sequence[int]:
        """Return the offsets of first..last to judge one by one: usually none, or those whose key
        has a line."""
        waiting = self._waiting
        was_tried = waiting.inherited and waiting.tried_between(first, last)
        if self._settings.pulls or was_tried or may_expire:
            return range(first, last + 1)
        return waiting.lines.gated(hashes, first) if waiting.lines.by_key else ()

    def _give_singly(
        self,
        record: Record,
        first: int,
        last: int,
        hashes: "array[int]",
        exceptional: Sequence[int],
        *,
        now: float,
        wall_unix_ms: int,
        share: Share | None,
    ) -> Push | None:
        """Push the messages of first..last that go out now, and skip those that wait for their key
        or have expired. None: none goes out. It may stop before `last`, at a bound."""
        skips: list[int] = []
        waiting = self._waiting
        lines, pending = waiting.lines.by_key, waiting.pending
        for offset in exceptional:
            line = lines.get(hashes[offset - first])
            if line is not None and line.aside_unwritten and not line.exclusive:
                # The same as `join`, in the ordinary case of an exceptional message (P8).
                line.aside_unwritten += 1
                pending.set_aside(line.key, offset)
                skips.append(offset)
                if pending.aside_count < limits.ASIDE_UNWRITTEN_MAX:
                    continue
            elif not self._goes_out(
                record,
                offset,
                hashes[offset - first],
                now=now,
                wall_unix_ms=wall_unix_ms,
                share=share,
            ):
                skips.append(offset)
            if not self.wants_log:
                last = offset
                break
        self._move(last + 1, now)
        begin = first
        while skips and skips[-1] == last:
            skips.pop()
            last -= 1
        leading = 0
        while leading < len(skips) and skips[leading] == begin:
            leading += 1
            begin += 1
        if begin > last:
            return None
        hashes = hashes[begin - first : last - first + 1]
        return self._push(begin, last, hashes, now, tuple(skips[leading:]))

    # enforces: R13
    def _goes_out(
        self,
        record: Record,
        offset: int,
        key: int,
        *,
        now: float,
        wall_unix_ms: int,
        share: Share | None,
    ) -> bool:
        """Whether a message of the log may be given now. Otherwise it is put where it belongs."""
        waiting, lines = self._waiting, self._waiting.lines
        line = lines.by_key.get(key) if key else None
        expires = record.expires_unix_ms(offset)
        is_expired = bool(expires) and expires <= wall_unix_ms
        if line is not None and not self._lets_through(line, share, is_expired=is_expired):
            waiting.join(line, offset, now)
            return False
        if is_expired:  # R13: judged at the moment when it would be given out
            waiting.die(lines.line(key or loose(offset)), offset, "expired")
            return False
        if offset in waiting.attempts:
            waiting.join(lines.line(key or loose(offset)), offset, now)
            return False
        if self._settings.pulls and key:
            line = lines.line(key)
            line.pull = waiting.pull
            line.in_flight.add(offset)
        return True

    # enforces: R24
    def _lets_through(self, line: Line, share: Share | None, *, is_expired: bool) -> bool:
        """Whether a key that this very pull carries may send another message with it, or an expired
        one dies after others of its key that do."""
        if is_expired and line.is_dying_only:
            return True
        return (
            line.exclusive
            and (share is None or share.ample > 0 or len(line.in_flight) < share.limit)
            and line.pull == self._waiting.pull
            and not line.waiting
            and not line.leaving
            and (is_expired or not line.dying)
            and not line.overflowed
        )

    def _push(
        self, first: int, last: int, hashes: "array[int]", now: float, skips: tuple[int, ...] = ()
    ) -> Push:
        """Make the push of first..last, whose key hashes these are, but for `skips`."""
        return self._leases.give(
            first,
            last,
            hashes,
            skips=skips,
            now=now,
            lease_s=self._settings.lease_s,
            started=self._settings.pulls,
        )
