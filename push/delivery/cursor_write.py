"""Changes that a delivery still has to make durable, and those that are on their way.

At most one write is under way. Everything in it is absolute, so that it can be sent again whole
when its outcome is not known (R29).
"""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

from push import limits
from push.places import CursorPlace, Parked
from push.ranges import Dead, DeadRanges, Range, coalesce
from push.storage_port import CursorWrite, Retry, Side

SETTLED_LOOSE_MAX: Final = 4096
"""Most ranges that are kept as they come. Beyond that, and beyond twice the number left the last
time, ranges that touch are joined."""


class PendingWrite:
    """Collect changes. `take` hands them out as one write; `confirm` or `restore` ends it."""

    __slots__ = (
        "_aside",
        "_coalesce_at",
        "_dead",
        "_ended",
        "_epoch",
        "_parked",
        "_place",
        "_record",
        "_retries",
        "_settled",
        "_starving",
        "_taken",
        "_token",
        "_unparked",
        "aside_count",
        "ending",
    )

    def __init__(
        self, place: CursorPlace, epoch: int, token: bytes, *, starving: Collection[int]
    ) -> None:
        """`starving`: keys that wait until their offsets are durably set aside."""
        self._place = place
        self._epoch = epoch
        self._token = token
        self._settled: list[Range] = []
        self._coalesce_at = SETTLED_LOOSE_MAX
        self._ended: list[Range] = []
        self._dead: list[Dead] = []
        self._retries: dict[int, Retry] = {}
        self._record: dict[int, int] = {}
        self._aside: dict[int, list[int]] = {}
        self._parked: dict[int, str] = {}
        self._unparked: dict[int, None] = {}
        self._taken: tuple[CursorWrite, dict[int, int]] | None = None
        self.aside_count = 0
        """Number of offsets that are to be set aside and are not durably so yet."""
        self._starving = starving
        self.ending = False
        """Whether the epoch ends. Whatever is written then, the next owner need not find out
        again."""

    @property
    def dirty(self) -> bool:
        """Whether `take` would have something, once nothing is under way."""
        return bool(
            self._settled
            or self._retries
            or self._parked
            or self._unparked
            or self._dead
            or self._ended
            or (self._aside and self._aside_due)
        )

    @property
    def _aside_due(self) -> bool:
        """Whether offsets to be set aside, if there are any, go with the next write. The messages
        of a stuck key come one by one, each to another page of the storage. So they wait until many
        go together, or until something depends on them. Until then they are holes in the cursor
        (P8)."""
        if self._starving or self._parked or self.ending:
            return True
        return self.aside_count >= (limits.ASIDE_UNWRITTEN_MAX // 2 or 1)

    @property
    def under_way(self) -> bool:
        """Whether a write was taken and is not known to be durable yet."""
        return self._taken is not None

    @property
    def recording_count(self) -> int:
        """Number of redeliveries that wait until their attempt is recorded."""
        return len(self._record) + (len(self._taken[1]) if self._taken else 0)

    def settle(self, first: int, last: int) -> None:
        """Note that first..last are settled."""
        self.settle_all([(first, last)])

    def settle_all(self, ranges: list[Range]) -> None:
        """Note that all of these ranges are settled."""
        self._settled += ranges
        if len(self._settled) > self._coalesce_at:
            self._settled = coalesce(self._settled)
            self._coalesce_at = max(SETTLED_LOOSE_MAX, 2 * len(self._settled))

    def end(self, offset: int) -> None:
        """Note that an offset, which was given out, is settled, and by no ack."""
        self.settle(offset, offset)
        self.will_end(offset)

    def will_end(self, offset: int) -> None:
        """Note that an offset, which was given out, is dead, and will be settled by no ack."""
        self._ended.append((offset, offset))

    def die(self, first: int, last: int, reason: str) -> None:
        """Have the next write state that first..last go to the dead letters."""
        self._dead.append(Dead(first, last, reason))

    def going_to_die(self) -> Iterator[Dead]:
        """Yield the ranges that go to the dead letters and are not known to be written."""
        under_way = self._taken[0].dead if self._taken else ()
        return chain(under_way, self._dead)

    @property
    def is_urgent(self) -> bool:
        """Whether something depends on the write: a redelivery, room to set aside, or a dead letter
        that is put on its way then."""
        return bool(
            self._dead
            or self._record
            or (self._taken and self._taken[1])
            or (self._aside and self._aside_due)
        )

    def note(self, retry: Retry) -> None:
        """Have the next write remember attempts and backoff of a message; nothing waits for
        that."""
        self._retries[retry.offset] = retry.after(self._retries.get(retry.offset))

    def record(self, retry: Retry, key: int) -> None:
        """Remember attempts before a redelivery of the key's message goes out (R16)."""
        self.note(retry)
        self._record[retry.offset] = key

    def cancel(self, offset: int) -> None:
        """Stop waiting until an offset's attempt is recorded, because the offset does not go
        out."""
        self._record.pop(offset, None)
        if self._taken is not None:
            self._taken[1].pop(offset, None)

    def set_aside(self, key: int, offset: int) -> None:
        """Have a later write move an offset to the key's side line."""
        self._aside.setdefault(key, []).append(offset)
        self.aside_count += 1

    @property
    def sides_under_way(self) -> tuple[Side, ...]:
        """The offsets by key that the write under way sets aside."""
        return self._taken[0].aside if self._taken else ()

    def going_aside(self) -> Iterator[int]:
        """Yield the offsets that go to side lines and are not known to be there, in any order."""
        under_way = (side.offsets for side in self.sides_under_way)
        return chain.from_iterable(chain(under_way, self._aside.values()))

    def first_aside(self, key: int) -> int | None:
        """Return the lowest offset that goes to the key's side line and is not known to be
        there."""
        under_way = [s.offsets[0] for s in self.sides_under_way if s.key_hash == key]
        return min([*under_way, *self._aside.get(key, ())], default=None)

    def park(self, key: int, reason: str) -> None:
        """Note that the key is parked."""
        self._unparked.pop(key, None)
        self._parked[key] = reason

    def unpark(self, key: int) -> None:
        """Note that the key is no longer parked."""
        self._parked.pop(key, None)
        self._unparked[key] = None

    def take(self, wall_unix_ms: int) -> CursorWrite | None:
        """Return all changes so far as one write, those to be set aside only if that is due.
        None: there are none, or a write is under way."""
        if self._taken is not None or not self.dirty:
            return None
        aside: tuple[Side, ...] = ()
        if self._aside and self._aside_due:
            aside = tuple(Side(key, tuple(sorted(o))) for key, o in self._aside.items())
            self._aside = {}
        parked: tuple[Parked, ...] = ()
        if self._parked:
            parked = tuple(Parked(k, why, wall_unix_ms) for k, why in self._parked.items())
        write = CursorWrite(
            self._place,
            self._epoch,
            self._token,
            settled=tuple(coalesce(self._settled)),
            retries=tuple(self._retries.values()),
            aside=aside,
            parked=parked,
            unparked=tuple(self._unparked),
            ended=tuple(coalesce(self._ended)) if self._ended else (),
            dead=tuple(DeadRanges(self._dead)) if self._dead else (),
        )
        self._taken = (write, self._record)
        self._settled, self._coalesce_at = [], SETTLED_LOOSE_MAX
        self._ended, self._dead = [], []
        self._retries, self._record = {}, {}
        self._parked, self._unparked = {}, {}
        return write

    def confirm(self) -> tuple[CursorWrite, dict[int, int], dict[int, int]]:
        """End the write under way, which is durable. Returns the write, offset → key of what may be
        given now, in order, and the number of offsets set aside by key."""
        assert self._taken is not None
        write, record = self._taken
        self._taken = None
        aside: dict[int, int] = {}
        for side in write.aside:
            aside[side.key_hash] = len(side.offsets)
            self.aside_count -= len(side.offsets)
        return write, record, aside

    # enforces: R29
    def restore(self) -> None:
        """End the write under way, which is not durable. All of it goes with the next write, older
        facts first. Without a write under way nothing happens."""
        if self._taken is None:
            return
        write, record = self._taken
        self._taken = None
        self._settled = [*write.settled, *self._settled]
        self._ended = [*write.ended, *self._ended]
        self._dead = [*write.dead, *self._dead]
        older = {retry.offset: retry for retry in write.retries}
        newer = {o: retry.after(older.get(o)) for o, retry in self._retries.items()}
        self._retries = {**older, **newer}
        self._record = {**record, **self._record}
        for side in write.aside:
            self._aside[side.key_hash] = [*side.offsets, *self._aside.get(side.key_hash, [])]
        self._parked = {**{mark.key_hash: mark.reason for mark in write.parked}, **self._parked}
        self._unparked = {**dict.fromkeys(write.unparked), **self._unparked}
