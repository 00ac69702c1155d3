"""Decisions about a cursor: own, seek and CursorWrite (R14-R16, R18, R29). Pure.

The side lines themselves may be longer than memory. The cursor keeps how many offsets each has, and
`find_aside` of the storage returns which offsets of a range are in one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from push import limits
from push.errors import Fenced, Refused
from push.places import Parked
from push.ranges import Dead, DeadRanges, Range, RangeSet
from push.storage_port import (
    Cursor,
    CursorWrite,
    MessageStatus,
    Retry,
    Side,
    Start,
    Written,
    is_same_owner,
)
from storage.rules.append import PartitionLog

_ENTRY_BYTES: Final = 100
NUMBER_MAX: Final = (1 << 62) - 1
"""Largest number of attempts, and largest due time, of a retry in a CursorWrite. Stores keep signed
64-bit numbers."""
FindAside = Callable[[int, int], Iterable[tuple[int, int]]]
"""Function of a storage that `GroupCursor.apply` calls: (first, last) -> (offset, key hash) of the
offsets in first..last that are in a side line of the cursor."""


@dataclass(slots=True)
class Change:
    """The changes of a CursorWrite that a storage has to write."""

    written: Written = field(default_factory=Written)
    passed: list[Range] = field(default_factory=list)
    """Ranges that this write made passed."""
    retries: list[Retry] = field(default_factory=list)
    retries_gone: list[int] = field(default_factory=list)
    aside: dict[int, int] = field(default_factory=dict)
    """offset -> key hash of offsets that are newly set aside in their key's side line."""
    aside_gone: dict[int, int] = field(default_factory=dict)
    parked: list[Parked] = field(default_factory=list)
    unparked: list[int] = field(default_factory=list)
    ended: bool = False
    """Whether `GroupCursor.ended` has other ranges now."""
    dead: bool = False
    """Whether `GroupCursor.dead` has other ranges now."""


class GroupCursor:
    """Cursor of a group in one partition, with the epoch, token and assignment by which earlier
    owners are fenced."""

    __slots__ = (
        "_reason_bytes",
        "assignment",
        "dead",
        "ended",
        "epoch",
        "floor",
        "lines",
        "parked",
        "passed",
        "previous",
        "retries",
        "token",
    )

    def __init__(self, floor: int) -> None:
        self.epoch = 0
        self.token = b""
        """The token of the latest owner; empty: there was none since the cursor was made or reset,
        by a seek, a purge or a restore."""
        self.previous: int | None = None
        """The epoch before the present one, if its owner had the same name (`is_same_owner`) and
        may adopt the deliveries of that epoch. None: the owner was another one, or the epoch is
        forgotten. A seek, a purge and a restore forget it. So does an embedded store that restarts,
        or no longer has the cursor in memory."""
        self.assignment = 0
        self.floor = floor
        self.passed = RangeSet()
        self.retries: dict[int, Retry] = {}
        """Offset -> retry. Changed by `put_retry` and `pop_retry` only."""
        self._reason_bytes = 0
        self.lines: dict[int, int] = {}
        """key hash -> number of offsets in its side line; never 0."""
        self.parked: dict[int, Parked] = {}
        self.ended = RangeSet()
        """Messages that were given out and then settled by no ack, ENDED_RANGES_MAX ranges at most
        (R21)."""
        self.dead = DeadRanges()
        """Unsettled messages that go to the dead letters and are not known to be there."""

    def put_retry(self, retry: Retry) -> None:
        """Keep a retry in place of an earlier one of its offset."""
        self.pop_retry(retry.offset)
        self.retries[retry.offset] = retry
        self._reason_bytes += len(retry.nack or b"")

    def pop_retry(self, offset: int) -> None:
        """Forget a retry; nothing happens if there is none."""
        retry = self.retries.pop(offset, None)
        if retry is not None:
            self._reason_bytes -= len(retry.nack or b"")

    def forget_ended(self) -> None:
        """Forget which messages were settled by no ack."""
        self.ended = RangeSet()

    # enforces: R14, R15, R22
    def own(self, *, token: bytes, assignment: int, epoch_seen: int) -> int | None:
        """Raise the epoch above the stored one and `epoch_seen`, for a new owner (R15). `token`
        consists of the owner's name and a random part. `epoch_seen`: the highest epoch that the
        caller knows of.

        Returns the epoch before, if an owner of the same name had that one (R22), else None. A
        repetition with the token that owns the cursor already, because the answer was lost, leaves
        the epoch and returns the same again.

        Raises:
            Fenced: the assignment is older than one that owned this before (R14).
        """
        if assignment < self.assignment:
            raise Fenced(
                f"assignment {assignment} is older than {self.assignment}, which owned this"
            )
        self.assignment = assignment
        if token != self.token or epoch_seen > self.epoch:
            self.previous = self.epoch if is_same_owner(self.token, token) else None
            self.epoch = max(self.epoch, epoch_seen) + 1
            self.token = token
        return self.previous

    def fresh(self, floor: int) -> "GroupCursor":
        """Return the cursor after a seek to `floor`: nothing settled above it, every owner
        fenced."""
        cursor = GroupCursor(floor)
        cursor.epoch = self.epoch + 1
        cursor.assignment = self.assignment
        return cursor

    def snapshot(self) -> Cursor:
        """Return the cursor that a new owner gets."""
        return Cursor(
            floor=self.floor,
            passed=tuple(self.passed),
            retries=tuple(sorted(self.retries.values(), key=lambda retry: retry.offset)),
            lines=tuple(sorted(self.lines.items())),
            parked=tuple(sorted(self.parked.values(), key=lambda parked: parked.key_hash)),
            ended=tuple(self.ended),
            dead=tuple(self.dead),
        )

    def unsettled(self, end: int) -> int:
        """Return how many of the messages below `end` are not settled, those in side lines
        included."""
        return end - self.floor - self.passed.size() + sum(self.lines.values())

    def standing(self, offset: int, aside: int | None) -> MessageStatus:
        """Return the status of a message. `aside`: the key hash of the side line that has it; None:
        none does."""
        retry = self.retries.get(offset) or Retry(offset, 0)
        tried = (retry.attempts, retry.nack)
        if offset in self.dead:
            return MessageStatus("dying", *tried)
        if aside is not None:
            return MessageStatus("parked" if aside in self.parked else "waiting", *tried)
        if self._is_passed(offset):
            return MessageStatus("settled", ended=offset in self.ended)
        return MessageStatus("ready", *tried)

    def weight(self) -> int:
        """Return the memory that the cursor takes, in entries of about 100 bytes."""
        beside = len(self.retries) + len(self.lines) + len(self.parked) + len(self.ended)
        reasons = self._reason_bytes // _ENTRY_BYTES
        return 4 + len(self.passed) + beside + len(self.dead) + reasons

    # enforces: P7, R15, R29
    def apply(self, write: CursorWrite, find_aside: FindAside) -> Change:
        """Apply a write that `check_write` let pass; the same write again changes nothing (R29).

        A write of another epoch or owner changes nothing either (P7).
        """
        if write.epoch != self.epoch or write.token != self.token or not self.token:
            return Change(Written(fenced=True))
        change = Change()
        change.passed, others = self.passed.append_all(write.settled, self.floor)
        for first, last in others:
            self._settle(first, last, find_aside, change)
        if write.ended:
            before = self.ended.copy()
            self.ended.add_all(write.ended)
            self.ended.cut_down(limits.ENDED_RANGES_MAX)
            change.ended = self.ended != before
        if self.retries:
            self._forget_retries(write.settled, change)
        for first, last in write.settled if self.dead else ():
            change.dead |= self.dead.remove(first, last)
        self.floor = self.passed.pop_prefix(self.floor)
        if write.retries:
            self._retry(write.retries, find_aside, change)
        if write.aside:
            self._set_aside(write.aside, change)
            self.floor = self.passed.pop_prefix(self.floor)
        for parked in write.parked:
            if self.parked.get(parked.key_hash) != parked:
                self.parked[parked.key_hash] = parked
                change.parked.append(parked)
        for key_hash in write.unparked:
            if self.parked.pop(key_hash, None) is not None:
                change.unparked.append(key_hash)
        if write.dead:
            self._die(write.dead, find_aside, change)
        return change

    def _settle(self, first: int, last: int, find_aside: FindAside, change: Change) -> None:
        """Settle a range that may have been passed before, in part."""
        low = max(first, self.floor)
        gaps = self.passed.gaps(low, last) if low <= last else []
        if gaps != [(first, last)] and self.lines:
            # Only offsets that were passed before can be in a side line.
            for offset, key_hash in find_aside(first, last):
                if offset not in change.aside_gone:
                    change.aside_gone[offset] = key_hash
                    self._shorten(key_hash)
        for gap in gaps:
            self.passed.add(*gap)
            change.passed.append(gap)

    def _shorten(self, key_hash: int) -> None:
        count = self.lines[key_hash] - 1
        if count:
            self.lines[key_hash] = count
        else:
            del self.lines[key_hash]

    def _forget_retries(self, settled: tuple[Range, ...], change: Change) -> None:
        retries = self.retries
        if sum(last - first + 1 for first, last in settled) < len(retries):
            offsets = chain.from_iterable(range(first, last + 1) for first, last in settled)
            gone = [offset for offset in offsets if offset in retries]
        else:
            ranges = RangeSet(settled)
            gone = [offset for offset in retries if offset in ranges]
        for offset in gone:
            self.pop_retry(offset)  # ranges may overlap
        change.retries_gone += gone

    # enforces: R16
    def _retry(self, retries: tuple[Retry, ...], find_aside: FindAside, change: Change) -> None:
        refused: list[int] = []
        for retry in retries:
            if self._is_settled(retry.offset, find_aside, change):
                refused.append(retry.offset)  # R16
            else:
                noted = retry.after(self.retries.get(retry.offset))
                self.put_retry(noted)
                change.retries.append(noted)
        if refused:
            change.written = replace(change.written, refused=tuple(refused))

    def _is_passed(self, offset: int) -> bool:
        return offset < self.floor or offset in self.passed

    def _is_settled(self, offset: int, find_aside: FindAside, change: Change) -> bool:
        if not self._is_passed(offset):
            return False
        if offset in change.aside_gone or not self.lines:
            return True
        return not any(True for _ in find_aside(offset, offset))

    # enforces: R18
    def _set_aside(self, sides: tuple[Side, ...], change: Change) -> None:
        """Set offsets aside; those that are passed already are left as they are."""
        for side in sides:
            key_hash = side.key_hash
            fresh = {
                offset: key_hash
                for offset in side.offsets
                if offset not in change.aside and not self._is_passed(offset)
            }
            if fresh:
                change.aside |= fresh
                self.lines[key_hash] = self.lines.get(key_hash, 0) + len(fresh)
        new = [(offset, offset) for offset in sorted(change.aside)]
        self.passed.add_all(new)
        change.passed += new

    # enforces: P5
    def _die(self, dead: tuple[Dead, ...], find_aside: FindAside, change: Change) -> None:
        """Mark offsets as dead. Settled ones are refused; those in a side line leave it."""
        refused: list[int] = []
        for first, last, reason in dead:
            low = max(first, self.floor)
            parts = self.passed.gaps(low, last) if low <= last else []
            settled = last - first + 1 - sum(end - begin + 1 for begin, end in parts)
            if settled:
                aside = (
                    {
                        offset: key_hash
                        for offset, key_hash in chain(find_aside(first, last), change.aside.items())
                        if first <= offset <= last and offset not in change.aside_gone
                    }
                    if self.lines
                    else {}
                )
                for offset, key_hash in aside.items():
                    if change.aside.pop(offset, None) is None:
                        change.aside_gone[offset] = key_hash
                    self._shorten(key_hash)
                parts += [(offset, offset) for offset in aside]
                stay = RangeSet([*parts, *self.dead.ranges()])
                refused += [o for gap in stay.gaps(first, last) for o in range(gap[0], gap[1] + 1)]
            for part in parts:
                change.dead |= self.dead.add(Dead(*part, reason))
        if refused:
            all_refused = (*change.written.refused, *refused)
            change.written = replace(change.written, refused=all_refused)


def count_dead(dead: DeadRanges, passed: RangeSet, floor: int) -> tuple[int, int, int | None]:
    """Return how many messages go to the dead letters, how many of these are passed because they
    were in a side line, and the lowest offset of them."""
    waiting = 0
    for first, last in dead.ranges():
        low = max(first, floor)
        if low <= last:
            waiting += sum(end - begin + 1 for begin, end in passed.gaps(low, last))
    return dead.size(), dead.size() - waiting, min((one.first for one in dead), default=None)


# enforces: R10
def check_write(write: CursorWrite, certified: int) -> None:
    """Check that a write names only offsets below the certified end (R10).

    Raises:
        Refused: invalid_request: it does not, a range is reversed, or a number is negative or
            above NUMBER_MAX.
    """
    ranges = (*write.settled, *write.ended)
    if write.dead:
        ranges += tuple((one.first, one.last) for one in write.dead)
    highest = -1
    for _, last in ranges:
        highest = max(highest, last)
    for retry in write.retries:
        highest = max(highest, retry.offset)
    for side in write.aside:
        highest = max((highest, *side.offsets))
    if highest >= certified:
        raise Refused(
            "invalid_request",
            f"offset {highest} is not certified; the certified end is {certified}",
        )
    for first, last in ranges:
        if not 0 <= first <= last:
            raise Refused("invalid_request", f"{first}..{last} is not a range of offsets")
    for retry in write.retries:
        if not (
            retry.offset >= 0
            and 0 <= retry.attempts <= NUMBER_MAX
            and 0 <= retry.due_unix_ms <= NUMBER_MAX
        ):
            raise Refused("invalid_request", f"{retry} has a number out of range")
    for side in write.aside:
        if min(side.offsets, default=0) < 0:
            raise Refused("invalid_request", f"{min(side.offsets)} is no offset")
    for parked in write.parked:
        if not 0 <= parked.since_unix_ms <= NUMBER_MAX:
            raise Refused("invalid_request", f"{parked} has a number out of range")


# enforces: R11
def start_floor(start: Start, log: PartitionLog) -> int:
    """Return the floor of a new cursor for this start. An offset is moved into the retained
    range."""
    if start == "earliest":
        return log.start
    if start == "latest":
        return log.next_offset
    return min(max(start, log.start), log.next_offset)


# enforces: P1, R12
def settled_by_all(cursors: Iterable[GroupCursor], end: int) -> RangeSet:
    """Return the offsets below `end` that every group has passed and that are dying for none; all
    of them if there is no group. Offsets in side lines are among them."""
    settled = RangeSet([(0, end - 1)] if end else [])
    for cursor in cursors:
        passed = cursor.passed.copy()
        if cursor.floor:
            passed.add(0, cursor.floor - 1)
        for first, last in cursor.dead.ranges():
            passed.remove(first, last)
        settled = passed if settled.covers(0, end - 1) else _common(settled, passed)
    return settled


def _common(one: RangeSet, other: RangeSet) -> RangeSet:
    common = one.copy()
    for first, last in one:
        for gap in other.gaps(first, last):
            common.remove(*gap)
    return common
