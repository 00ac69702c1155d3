"""The ledger of what is in flight in one (group, partition): pushes, their bits, their deadlines.

A push is a run of consecutive offsets given together. Its unsettled offsets are one integer used as
a bit mask. So an ack of a range costs a few machine words, however long the range is. A message
costs nothing of its own until something exceptional happens to it.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from push import limits
from push.delivery.values import Judged
from push.ranges import Range

ADOPTED: Final = 1 << 53
"""Summand of ledger numbers of adopted pushes (R22), those of the epoch before. Each is in the
ledger under its number less this: below those of this epoch, and in order. No number of a frame is
as large."""
_FEW: Final = 8
_LOOKS_MAX: Final = 16
"""Number of looks at each message, on average, after which an index is made. A look at a message in
an array costs a fiftieth of entering it into an index."""


def bits_between(low: int, high: int) -> int:
    """Return the mask with bits low..high set."""
    return ((1 << (high - low + 1)) - 1) << low


def offsets_of(mask: int, first: int) -> Iterator[int]:
    """Yield the offsets that a mask relative to `first` names, in order."""
    while mask:
        low = mask & -mask
        yield first + low.bit_length() - 1
        mask ^= low


def mask_of(first: int, last: int, base: int) -> int:
    """Return the mask of first..last relative to `base`, without offsets below `base`. Its size
    grows with `last`, which the caller has to bound."""
    low, high = max(first - base, 0), last - base
    return bits_between(low, high) if low <= high else 0


def outside(first: int, last: int, begin: int, end: int) -> list[Range]:
    """Return the parts of first..last that are outside begin..end."""
    ranges = []
    if first < begin:
        ranges.append((first, min(last, begin - 1)))
    if last > end:
        ranges.append((max(first, end + 1), last))
    return ranges


def ranges_of(mask: int, first: int) -> list[Range]:
    """Return the runs of offsets that a mask relative to `first` names, in order."""
    ranges: list[Range] = []
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        run = (~mask & (mask + 1)).bit_length() - 1
        mask >>= run
        first += gap
        ranges.append((first, first + run - 1))
        first += run
    return ranges


class Push:
    """A push in flight: offsets first..last but for those that it skips. `given` is the mask of its
    messages, `open` that of the unsettled ones."""

    __slots__ = (
        "attempt",
        "count",
        "due_at",
        "first",
        "given",
        "given_at",
        "hashes",
        "last",
        "number",
        "of_line",
        "open",
        "parts",
        "skips",
        "started",
        "watched",
    )

    def __init__(
        self,
        number: int,
        first: int,
        last: int,
        hashes: "array[int]",
        *,
        given_at: float,
        deadline: float,
        attempt: int,
        started: bool,
        of_line: bool,
        skips: tuple[int, ...],
    ) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.hashes = hashes
        self.given_at = given_at
        self.attempt = attempt
        self.of_line = of_line
        """Whether it is one message that a line sent. The line waits for its outcome."""
        self.skips = skips
        skipped = 0
        for offset in skips:
            skipped |= 1 << (offset - first)
        self.given = self.open = ((1 << (last - first + 1)) - 1) & ~skipped
        self.count = last - first + 1 - len(skips)
        """Number of its messages."""
        self.started = self.open if started else 0
        self.watched = 0
        """The mask of messages that were given before their slow key got a line. The line counts
        them as in flight, and gives later messages as these are settled or return."""
        self.parts: list[tuple[float, int]] = [(deadline, self.open)]
        """(lease end, mask). The masks are disjoint, and cover all that is open."""
        self.due_at = deadline

    def __repr__(self) -> str:
        return f"<Push {self.number} {self.first}..{self.last} open={self.open:b}>"

    def within(self, first: int, last: int) -> int:
        """Return the mask of the push's messages in first..last."""
        return self.given & mask_of(first, min(last, self.last), self.first)

    def until(self, offset: int) -> float:
        """Return when the lease of this offset, which is in flight, ends."""
        bit = 1 << (offset - self.first)
        return next((at for at, mask in self.parts if mask & bit), self.due_at)

    def offsets(self) -> Iterable[int]:
        """Return the offsets of the push's messages, in order."""
        return (
            offsets_of(self.given, self.first) if self.skips else range(self.first, self.last + 1)
        )

    def runs(self) -> list[Range]:
        """Return the runs of offsets of the push's messages, in order."""
        runs, first = [], self.first
        for skip in self.skips:
            if first < skip:
                runs.append((first, skip - 1))
            first = skip + 1
        runs.append((first, self.last))
        return runs

    def of_key(self, key_hash: int, after: int) -> Iterator[int]:
        """Yield those offsets of the push above `after`, in order, that are in flight (`open`) and
        whose key has this hash."""
        if self.open.bit_count() <= _FEW:  # deliveries that hang leave many such pushes
            for offset in offsets_of(self.open, self.first):
                if offset > after and self.hashes[offset - self.first] == key_hash:
                    yield offset
            return
        place = max(after + 1 - self.first, 0)
        for _ in range(self.hashes[place:].count(key_hash)):
            place = self.hashes.index(key_hash, place)
            if self.open >> place & 1:
                yield self.first + place
            place += 1

    def open_keys(self) -> set[int]:
        """Return the hashes of the keys of the push's messages that are in flight; 0 for no key."""
        if self.open.bit_count() == len(self.hashes):
            return {*self.hashes}
        return {self.hashes[offset - self.first] for offset in offsets_of(self.open, self.first)}


class Leases:
    """All pushes in flight, by number, with their deadlines, and the extents of the last finished
    ones."""

    __slots__ = (
        "_by_key",
        "_deadlines",
        "_finished",
        "_indexed",
        "_indexed_keys",
        "_looked_at",
        "_of_lines",
        "_quickest_s",
        "front",
        "left",
        "number",
        "open_count",
        "pushes",
        "settled_at",
    )

    def __init__(self) -> None:
        self.pushes: dict[int, Push] = {}
        self.left: list[Push] = []
        """Pushes in flight when the holder left, for inspection until the next owner begins."""
        self.number = 0
        """The number of the last push given; numbers start at 1 under every epoch (R16)."""
        self.open_count = 0
        self.front = self.settled_at = float("-inf")
        """The latest time at which a message was given that was acked or nacked, and the time at
        which any was acked or nacked last."""
        self._quickest_s = float("inf")
        self._deadlines: list[tuple[float, int]] = []
        self._finished: dict[int, tuple[int, int]] = {}
        self._of_lines: dict[int, Push] = {}
        self._by_key: dict[int, list[Push]] = {}
        self._indexed = -ADOPTED - 1
        self._indexed_keys = 0
        self._looked_at = 0

    def give(
        self,
        first: int,
        last: int,
        hashes: "array[int]",
        *,
        now: float,
        lease_s: float,
        attempt: int = 1,
        started: bool = False,
        of_line: bool = False,
        skips: tuple[int, ...] = (),
    ) -> Push:
        """Make a push of first..last but for `skips` between them, ascending, due at now + lease_s.
        `of_line`: it is one message, from a line."""
        self.number += 1
        push = Push(
            self.number,
            first,
            last,
            hashes,
            given_at=now,
            deadline=now + lease_s,
            attempt=attempt,
            started=started,
            of_line=of_line,
            skips=skips,
        )
        self.pushes[push.number] = push
        if of_line:
            self._of_lines[first] = push
        self.open_count += push.count
        self._schedule(push, now + lease_s)
        return push

    def adopt(
        self,
        number: int,
        keys: Mapping[int, int],
        settled: Collection[int],
        *,
        now: float,
        lease_s: float,
    ) -> None:
        """Adopt a push of the epoch before under `number`, which is negative. Its offsets `keys`
        (offset → key hash) are in flight until now + lease_s; those of `settled` were settled. The
        caller adopts pushes in ascending order of their numbers, and before anything is given."""
        offsets = {*keys, *settled}
        first, last = min(offsets), max(offsets)
        hashes = array("Q", [keys.get(offset, 0) for offset in range(first, last + 1)])
        skips = tuple(offset for offset in range(first, last + 1) if offset not in offsets)
        push = Push(
            number,
            first,
            last,
            hashes,
            given_at=now,
            deadline=now + lease_s,
            attempt=1,
            started=False,
            of_line=False,
            skips=skips,
        )
        push.open = sum(1 << (offset - first) for offset in keys)
        push.parts = [(push.due_at, push.open)]
        if not push.open:
            self._finish(push)
            return
        self.pushes[number] = push
        self.open_count += len(keys)
        self._schedule(push, push.due_at)

    def settled(self, push: Push, now: float) -> None:
        """Note that something of this push was acked or nacked now: its consumer is at work."""
        self.settled_at = now
        self.front = max(self.front, push.given_at)
        self.heard(push, now)

    def heard(self, push: Push, now: float) -> None:
        """Note that the consumer has said something about this push, whether for the first time or
        again."""
        self._quickest_s = min(now - push.given_at, self._quickest_s * 1.05 + 0.001)

    @property
    def patience_s(self) -> float:
        """Most seconds that a key that keeps pace may need for a message: three times the
        consumer's quickest answer, between KEY_PATIENCE_S and KEY_PATIENCE_S_MAX."""
        wanted = max(limits.KEY_PATIENCE_S, 3 * self._quickest_s)
        return min(wanted, limits.KEY_PATIENCE_S_MAX)

    def close(self, push: Push, mask: int) -> None:
        """Note that these open bits are no longer in flight, because they are settled or
        returned."""
        push.open &= ~mask
        self.open_count -= mask.bit_count()
        if not push.open:
            del self.pushes[push.number]
            if push.of_line:
                del self._of_lines[push.first]
            self._finish(push)

    def _finish(self, push: Push) -> None:
        self._finished[push.number] = (push.first, push.given)
        if len(self._finished) > limits.FINISHED_PUSHES_MAX:
            del self._finished[next(iter(self._finished))]

    def clear(self) -> None:
        """Empty the ledger, because the holder is gone. Nothing that it says later counts."""
        self.left += self.pushes.values()
        self.pushes.clear()
        self.open_count = 0
        self._deadlines.clear()
        self._finished.clear()
        self._of_lines.clear()
        self._by_key.clear()

    @property
    def known(self) -> bool:
        """Whether any push that was given or adopted is remembered."""
        return bool(self.pushes or self._finished)

    def given(self, number: int) -> tuple[int, int] | None:
        """Return (first, mask) of what a push had; None: it was never given, or is too old to be
        remembered."""
        push = self.pushes.get(number)
        return (push.first, push.given) if push else self._finished.get(number)

    def named(self, number: int, first: int, last: int) -> tuple[Judged, Iterable[int]]:
        """Judge the offsets of first..last that push `number` did not have, and return the
        judgement with those that it had. Offsets that the push skips mean nothing. Of a push of the
        epoch before, all that was not adopted is stale."""
        judged = Judged()
        given = self.given(number)
        if given is None:
            known = number < 0 or 0 < number <= self.number
            (judged.stale if known else judged.not_delivered).append((first, last))
            return judged, ()
        begin, mask = given
        end = begin + mask.bit_length() - 1
        named = mask_of(first, min(last, end), begin)
        if number < 0:
            judged.stale += outside(first, last, begin, end) + ranges_of(named & ~mask, begin)
        else:
            judged.not_delivered += outside(first, last, begin, end)
        return judged, offsets_of(mask & named, begin)

    def given_again(self, offset: int) -> bool:
        """Whether a line has sent this offset and it is in flight. (Every message that is given a
        second time comes from a line.)"""
        return offset in self._of_lines

    # --- What is in flight of a key ------------------------------------------------------------

    def of_key(self, key_hash: int, after: int) -> list[tuple[Push, int]]:
        """Return every offset above `after` of this key that is in flight, with its push.

        The first few calls search all that is in flight; further ones make an index by key. So a
        rare return costs other consumers next to nothing (P8). A consumer that returns everything
        pays for each message a few times, and not for all of them each time.
        """
        pushes = [push for push in self._by_key.get(key_hash, ()) if push.open]
        if pushes:
            self._by_key[key_hash] = pushes
        fresh: list[Push] = []
        for push in reversed(self.pushes.values()):
            if push.number <= self._indexed:
                break
            fresh.append(push)
        found = [
            (push, offset)
            for push in (*pushes, *reversed(fresh))
            if push.last > after
            for offset in push.of_key(key_hash, after)
        ]
        if fresh:
            self._index_sometimes(fresh)
        return found

    def _index_sometimes(self, fresh: list[Push]) -> None:
        """Add pushes to the index by key, if searches have become frequent. `fresh`: those that it
        does not know, newest first."""
        looked_at = sum(push.open.bit_count() for push in fresh)
        self._looked_at += looked_at
        if self._looked_at <= _LOOKS_MAX * looked_at:
            return
        self._looked_at = 0
        if self._indexed_keys > 2 * self.open_count + limits.PUSH_MESSAGES_MAX:
            self._by_key.clear()  # most of it is settled
            self._indexed_keys = 0
            fresh = [*reversed(self.pushes.values())]
        for push in reversed(fresh):
            for key in push.open_keys() - {0}:
                self._by_key.setdefault(key, []).append(push)
                self._indexed_keys += 1
        self._indexed = self.number

    # --- Deadlines -----------------------------------------------------------------------------

    def _schedule(self, push: Push, at: float) -> None:
        """Schedule a look at the push's leases at `at`. An entry counts only while its time is the
        push's `due_at`."""
        push.due_at = at
        heappush(self._deadlines, (at, push.number))
        if len(self._deadlines) > 2 * len(self.pushes) + 64:
            # One hung delivery would keep the entries of all that was settled after it (P9).
            self._deadlines = [(push.due_at, push.number) for push in self.pushes.values()]
            heapify(self._deadlines)

    def extend(self, push: Push, mask: int, deadline: float) -> None:
        """Prolong the leases of these open bits until `deadline`, or later if they end later
        already."""
        mask &= push.open
        parts: list[tuple[float, int]] = []
        for at, bits in push.parts:
            moved = mask & bits if at < deadline else 0
            if bits & ~moved & push.open:
                parts.append((at, bits & ~moved & push.open))
            if not moved:
                mask &= ~bits
        if mask:
            parts.append((deadline, mask))
        push.parts = parts  # looked at when it was due before; deadlines only move away

    def due(self, now: float) -> list[tuple[Push, int]]:
        """Return (push, open bits whose lease has ended), oldest push first. The caller closes
        them."""
        due: list[tuple[Push, int]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            at, number = heappop(self._deadlines)
            push = self.pushes.get(number)
            if push is None or push.due_at != at:
                continue
            ended = 0
            for until, bits in push.parts:
                ended |= bits if until <= now else 0
            push.parts = [(until, bits) for until, bits in push.parts if until > now]
            if ended & push.open:
                due.append((push, ended & push.open))
            if push.parts:
                self._schedule(push, min(until for until, _ in push.parts))
        due.sort(key=lambda item: item[0].number)
        return due

    def go_on(self, push: Push, mask: int, deadline: float) -> None:
        """Let the leases of these open bits, which were due, go on until `deadline`."""
        push.parts.append((deadline, mask & push.open))
        self._schedule(push, min(at for at, _ in push.parts))

    def next_deadline(self) -> float | None:
        """Return when to call `due`; None: nothing is in flight. A push that was extended or
        settled in part may have nothing due then."""
        while self._deadlines:
            at, number = self._deadlines[0]
            push = self.pushes.get(number)
            if push is not None and push.due_at == at:
                return at
            heappop(self._deadlines)
        return None
