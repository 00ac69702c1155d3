"""Cursors on Redis. The rules decide at the owner, and one act writes the changes.

`storage/rules/cursor.py` is applied where the owner is. The act is fenced by epoch, token and the
version that it was decided on. A cursor that was read or written here is cached, so that a write
costs one act. Anything that leaves its state in doubt (an answer that did not come, another's
write) discards it, and the next write reads it again. Repeating a write is safe, because writes are
absolute (R29).

A write that needs nothing but a cached cursor is handed over before `write` first waits. So writes
that were requested together, and the records appended at the same time, share a group.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from push.errors import Unknown
from push.places import CursorPlace, Durability, Parked, ParkedLine, Partition
from push.ranges import Range, RangeSet, dead_of
from push.storage_port import (
    OWNER_BYTES,
    CursorState,
    CursorWrite,
    MessageStatus,
    Owned,
    Retry,
    Written,
)
from storage.redis.keys import queue_key
from storage.redis.port import Arg, Shard
from storage.rules.cursor import Change, GroupCursor, check_write, count_dead

CACHED_MAX: Final = 4096
"""Largest number of cached cursors. The least recently used ones are dropped first."""
_TRIES_MAX: Final = 8
"""Most times that a write is decided, because each time another write changed the cursor before it;
then it is Unknown."""


@dataclass(slots=True)
class _CachedCursor:
    cursor: GroupCursor
    version: int
    certified: int
    generation: int


@dataclass(frozen=True, slots=True)
class _SentWrite:
    """A write that was handed over, decided on `cached`, and the answer to it."""

    write: CursorWrite
    cached: _CachedCursor
    change: Change
    answer: Awaitable[Any]


@dataclass(slots=True)
class _WriteLock:
    """Lock that lets one write to a place follow the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class RedisCursors:
    """Cursors of one shard. `level`: the level whose copies a write of a cursor waits for. A new
    owner waits for those of `all`. `end_of`: a certified end of a partition that is known without a
    look; 0: none is."""

    def __init__(
        self,
        shard: Shard,
        *,
        level: Durability,
        end_of: Callable[[Partition], int],
    ) -> None:
        self._shard = shard
        self._level: Durability = level
        self._end_of = end_of
        self._cache: OrderedDict[CursorPlace, _CachedCursor] = OrderedDict()
        self._locks: dict[CursorPlace, _WriteLock] = {}

    def forget(self, belongs: Callable[[CursorPlace], bool]) -> None:
        """Drop from the cache the cursors of the places for which `belongs` is true, because other
        acts than writes have changed or deleted them."""
        for place in [place for place in self._cache if belongs(place)]:
            del self._cache[place]

    def _cache_cursor(self, place: CursorPlace, cached: _CachedCursor) -> None:
        self._cache[place] = cached
        self._cache.move_to_end(place)
        while len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)

    # enforces: R15
    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int
    ) -> Owned:
        self._cache.pop(place, None)
        args = [*_at(place), token, token[:OWNER_BYTES], assignment, epoch_seen]
        answer = await self._shard.act("own", [_queue_key(place)], args, level="all")
        previous, *row = answer
        cached = _decode_cursor(row)
        self._cache_cursor(place, cached)
        cursor = cached.cursor
        return Owned(
            cursor.epoch,
            cursor.snapshot(),
            cached.certified,
            cached.generation,
            previous if previous >= 0 else None,
        )

    async def load(
        self, place: CursorPlace, ranges: Iterable[Range] = ()
    ) -> "tuple[GroupCursor, dict[int, int]] | None":
        """Return the cursor as it is stored, and offset → key hash of the offsets in these ranges
        that are in its side lines. None: the place is unknown."""
        found = await self._read(place, ranges)
        if found is None:
            return None
        cached, aside = found
        return cached.cursor, aside

    async def _read(
        self, place: CursorPlace, ranges: Iterable[Range]
    ) -> tuple[_CachedCursor, dict[int, int]] | None:
        args = [*_at(place), *_flat(ranges)]
        answer = await self._shard.look("cursor", [_queue_key(place)], args)
        if not answer:
            return None
        *row, aside = answer
        return _decode_cursor(row), _decode_aside(aside)

    async def write(self, writes: Sequence[CursorWrite]) -> list[Written]:
        """Make fenced cursor changes, those of one place in order, and several places at the same
        time. Returns one answer for each."""
        by_place: dict[CursorPlace, list[int]] = {}
        for index, write in enumerate(writes):
            by_place.setdefault(write.place, []).append(index)
        places = sorted(by_place)  # one order for all, so that no two calls wait for each other
        locks = []
        for place in places:
            lock = self._locks.setdefault(place, _WriteLock())
            lock.waiting += 1
            locks.append(lock)
        acquired: list[_WriteLock] = []
        try:
            for lock in locks:
                await lock.lock.acquire()
                acquired.append(lock)
            for place in places:
                await self._check(place, [writes[index] for index in by_place[place]])
            answers: list[Written] = [Written()] * len(writes)
            sent = {place: self._send_now(writes[by_place[place][0]]) for place in places}

            async def one(place: CursorPlace) -> None:
                first, *more = by_place[place]
                answers[first] = await self._write(writes[first], sent[place])
                for index in more:
                    answers[index] = await self._write(writes[index])

            results = await asyncio.gather(*map(one, places), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return answers
        finally:
            for lock in acquired:
                lock.lock.release()
            for place, lock in zip(places, locks, strict=True):
                lock.waiting -= 1
                if not lock.waiting:
                    self._locks.pop(place, None)

    async def _check(self, place: CursorPlace, writes: Sequence[CursorWrite]) -> None:
        """Check the writes of a place before any write of the call is sent, and cache its cursor.
        It is read if it is not cached, or the known certified end is too low for a write. Raises
        Refused if a write names offsets that are not certified. Where the known end is not true any
        more, because the store has lost it, the act refuses the write."""
        cached, certified = self._cache.get(place), 0
        if cached is not None:
            certified = max(cached.certified, self._end_of(place.partition))
        if cached is None or any(_highest(write) >= certified for write in writes):
            found = await self._read(place, ())
            if found is None:
                self._cache.pop(place, None)
                return
            cached, _ = found
            certified = cached.certified
            self._cache_cursor(place, cached)
        for write in writes:
            check_write(write, certified)

    def _send_now(self, write: CursorWrite) -> _SentWrite | None:
        """Hand a write over that needs nothing but its cached cursor. None: it needs more."""
        cached = self._cache.get(write.place)
        if cached is None or not _is_by_owner(cached.cursor, write) or cached.cursor.lines:
            return None
        return self._send(write, cached, {})

    # enforces: P7
    async def _write(self, write: CursorWrite, sent: _SentWrite | None = None) -> Written:
        """Make a write, which may have been `sent` already, and return its outcome."""
        for _ in range(_TRIES_MAX):
            if sent is None:
                cached = self._cache.get(write.place)
                if cached is None or not _is_by_owner(cached.cursor, write):
                    found = await self._read(write.place, ())
                    cached, _ = found if found is not None else (None, None)
                    if cached is None or not _is_by_owner(cached.cursor, write):
                        return Written(fenced=True)
                sent = self._send(write, cached, await self._aside(write, cached))
            written = await self._outcome(sent)
            if written is not None:
                return written
            sent = None
        raise Unknown("others changed the cursor at the same time, again and again")

    async def _aside(self, write: CursorWrite, cached: _CachedCursor) -> dict[int, int]:
        """Return offset → key hash of the offsets that a write names and that are in side lines."""
        if not cached.cursor.lines:
            return {}
        ranges = [*write.settled, *((r.offset, r.offset) for r in write.retries)]
        ranges += [(one.first, one.last) for one in write.dead]
        args = [*_at(write.place), *_flat(ranges)]
        return _decode_aside(await self._shard.look("aside", [_queue_key(write.place)], args))

    def _send(self, write: CursorWrite, cached: _CachedCursor, aside: dict[int, int]) -> _SentWrite:
        """Decide a write on a cursor, and hand it over. The cursor is not cached until it is
        answered, because it is in doubt."""

        def find(first: int, last: int) -> list[tuple[int, int]]:
            return [(offset, key) for offset, key in aside.items() if first <= offset <= last]

        self._cache.pop(write.place, None)
        change = cached.cursor.apply(write, find)
        args = _write_args(write, cached, change)
        key = _queue_key(write.place)
        answer = self._shard.act("write_cursor", [key], args, level=self._level)
        return _SentWrite(write, cached, change, answer)

    async def _outcome(self, sent: _SentWrite) -> Written | None:
        """Return the outcome of a write. None: another write changed the cursor before it, and
        nothing happened."""
        answer = await sent.answer
        if answer < 0:
            return None
        if answer == 0:
            return Written(fenced=True)
        sent.cached.version += 1
        self._cache_cursor(sent.write.place, sent.cached)
        return sent.change.written

    async def states(self, queue_id: str, group_id: str) -> list[CursorState]:
        rows = await self._shard.look("cursors", [queue_key(queue_id)], [group_id])
        states: list[CursorState] = []
        for number, epoch, floor, passed_, aside, parked, least, dead in rows:
            passed = _decode_ranges(passed_)
            dying, dead_passed, dead_first = count_dead(dead_of(dead.decode()), passed, floor)
            states.append(
                CursorState(
                    place=CursorPlace(group_id, Partition(queue_id, number)),
                    epoch=epoch,
                    floor=floor,
                    settled_above=passed.size(),
                    aside=aside,
                    parked=parked,
                    aside_first=least if least >= 0 else None,
                    dead=dying,
                    dead_passed=dead_passed,
                    dead_first=dead_first,
                )
            )
        return states

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        found = await self.load(place, [(first, last)])
        if found is None:
            return []
        cursor, aside = found
        return [cursor.standing(offset, aside.get(offset)) for offset in range(first, last + 1)]

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        key = _queue_key(place)
        rows = await self._shard.look("parked", [key], _at(place))
        lines = []
        for key_hash, row, messages, head, retry in rows:
            mark = _decode_parked(key_hash, row)
            at = head if head >= 0 else None
            tried = _decode_retry(head, retry) if retry else Retry(head, 0)
            lines.append(
                ParkedLine(
                    mark.key_hash,
                    mark.reason,
                    mark.since_unix_ms,
                    messages,
                    at,
                    tried.attempts,
                    tried.nack,
                )
            )
        return sorted(lines, key=lambda line: line.key_hash)

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        args = [*_at(place), key_hash, after, count_max]
        key = _queue_key(place)
        members = await self._shard.look("read_side", [key], args)
        return tuple(int(member.rpartition(b":")[2]) for member in members)


def _is_by_owner(cursor: GroupCursor, write: CursorWrite) -> bool:
    return bool(cursor.token) and (cursor.epoch, cursor.token) == (write.epoch, write.token)


def _queue_key(place: CursorPlace) -> str:
    return queue_key(place.partition.queue_id)


def _at(place: CursorPlace) -> list[Arg]:
    return [place.partition.number, place.group_id]


def _flat(ranges: Iterable[Range]) -> list[Arg]:
    return [offset for pair in ranges for offset in pair]


def _highest(write: CursorWrite) -> int:
    """Return the highest offset that a write names; -1: none."""
    offsets = [last for _, last in (*write.settled, *write.ended)]
    offsets += [retry.offset for retry in write.retries]
    offsets += [one.last for one in write.dead]
    for side in write.aside:
        offsets += side.offsets
    return max(offsets, default=-1)


def _decode_ranges(text: bytes) -> RangeSet:
    """Decode `first-last,first-last`, in order."""
    passed = RangeSet()
    for pair in text.split(b",") if text else ():
        first, _, last = pair.partition(b"-")
        passed.add(int(first), int(last))
    return passed


def _encode_ranges(ranges: RangeSet) -> str:
    """Encode ranges; the inverse of `_decode_ranges`."""
    return ",".join(f"{first}-{last}" for first, last in ranges)


def _decode_retry(offset: int, row: bytes) -> Retry:
    attempts, due, *more = row.split(b":", 3)
    rejected, reason = more or (b"0", b"")
    return Retry(offset, int(attempts), int(due), reason or None, rejected == b"1")


def _encode_retry(retry: Retry) -> bytes:
    """Encode a retry; the inverse of `_decode_retry`. The text has attempts and due time, and if
    there is more, whether it was rejected, and the reason."""
    row = b"%d:%d" % (retry.attempts, retry.due_unix_ms)
    if retry.nack is None and not retry.rejected:
        return row
    return b"%b:%d:%b" % (row, retry.rejected, retry.nack or b"")


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _decode_parked(key_hash: bytes, row: bytes) -> Parked:
    since, _, reason = row.decode().partition(":")
    return Parked(int(key_hash), reason, int(since))


def _decode_aside(members: Sequence[bytes]) -> dict[int, int]:
    aside = {}
    for member in members:
        offset, _, key_hash = member.partition(b":")
        aside[int(offset)] = int(key_hash)
    return aside


def _decode_cursor(answer: Sequence[Any]) -> _CachedCursor:
    """Decode a cursor, as the functions `own` and `cursor` answer it."""
    (
        version,
        epoch,
        token,
        assignment,
        floor,
        passed,
        retries,
        lines,
        parked,
        certified,
        generation,
        ended,
        dead,
    ) = answer
    cursor = GroupCursor(floor)
    cursor.epoch, cursor.token, cursor.assignment = epoch, token, assignment
    cursor.passed = _decode_ranges(passed)
    for offset, row in _pairs(retries):
        cursor.put_retry(_decode_retry(int(offset), row))
    cursor.lines = {int(key_hash): int(count) for key_hash, count in _pairs(lines)}
    for key_hash, row in _pairs(parked):
        cursor.parked[int(key_hash)] = _decode_parked(key_hash, row)
    cursor.ended = _decode_ranges(ended)
    cursor.dead = dead_of(dead.decode())
    return _CachedCursor(cursor, version, certified, generation)


def _write_args(write: CursorWrite, cached: _CachedCursor, change: Change) -> list[Arg]:
    """Return the arguments of `write_cursor`: the cursor as it is now, and the changes beside
    it."""
    cursor = cached.cursor
    keys = {*change.aside.values(), *change.aside_gone.values()}
    retries = {retry.offset: retry for retry in change.retries}
    lists: list[list[Arg]] = [
        [x for retry in retries.values() for x in (retry.offset, _encode_retry(retry))],
        [offset for offset in change.retries_gone if offset not in retries],
        [number for pair in change.aside.items() for number in pair],
        [number for pair in change.aside_gone.items() for number in pair],
        [number for key in keys if key in cursor.lines for number in (key, cursor.lines[key])],
        [key for key in keys if key not in cursor.lines],
        [x for p in change.parked for x in (p.key_hash, f"{p.since_unix_ms}:{p.reason}")],
        [*change.unparked],
    ]
    args: list[Arg] = [
        *_at(write.place),
        write.epoch,
        write.token,
        cached.version,
        cursor.floor,
        _encode_ranges(cursor.passed),
        _encode_ranges(cursor.ended) if change.ended else "",
        cursor.dead.text(),
        _highest(write),
    ]
    for items in lists:
        args += [len(items), *items]
    return args
