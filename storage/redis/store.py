"""The storage on Redis or Valkey: `push.storage_port.Storage` over one shard.

The functions in redis/lua are one atomic act each; here they are called at their level, and their
answers are opened. A record at a level above `local` is certified by a second act once its copies
were counted (R10). Until then it is given to no consumer.

`RedisInbox` is `push.letters.Inbox`. Its acts wait for no copies, because a letter may be lost, and
a request without an answer is sent again.

`RedisPool` is `push.rates.shared.RatePool`. All buckets are in one slot, so that one act takes
everything that a gateway has to report. Acts are of the level `local`. A failover takes back debt
of the last moments, and gateways report what they hold again with the next act. No key has a TTL.
The acts remove a bucket when it is empty and no gateway holds anything of it, so that no clock of a
server forgives debt.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from push import limits
from push.errors import Refused, Unknown
from push.letters import AnyLetter, Inbox
from push.places import CursorPlace, Durability, ParkedLine, Partition
from push.rates.bucket import Rate
from push.rates.shared import RateGrant, RateReply, RateRequest
from push.record import Header, Record
from push.storage_port import (
    PLAIN,
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    Lane,
    MessageStatus,
    Owned,
    PartitionState,
    Read,
    Sealer,
    Start,
    StorageState,
    WakeUp,
    Written,
)
from storage.redis import keys as redis_keys
from storage.redis.append import RedisAppender
from storage.redis.cursors import RedisCursors
from storage.redis.due import RedisDueStore
from storage.redis.keys import ANSWER_CHANNELS, LETTER_CHANNELS, place_of, queue_key
from storage.redis.port import Arg, Shard
from storage.redis.read import PERIOD_S, RedisReader, TailPoller
from storage.rules.append import open_header

_WAITS = b"-"
_ID = "latin-1"
"""Decoding of ids. A foreign id keeps its bytes, so that it can be taken out."""


class RedisInbox:
    """`push.letters.Inbox` over one shard (redis/lua/inbox.lua)."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def _act(self, name: str, place: CursorPlace, *args: Arg) -> Any:
        key, at = queue_key(place.partition.queue_id), (place.partition.number, place.group_id)
        return await self._shard.act(name, [key], [*at, *args], level="local")

    async def post(self, place: CursorPlace, letter_id: str, letter: AnyLetter) -> str | None:
        answer: bytes = await self._act(
            "post_letter",
            place,
            letter_id,
            letter.encode(),
            letter.epoch,
            limits.INBOX_LETTERS_MAX,
            limits.INBOX_BYTES_MAX,
            _retention_ms(),
        )
        return None if answer == _WAITS else answer.decode()

    async def letters(self, place: CursorPlace) -> list[tuple[str, bytes]]:
        key = queue_key(place.partition.queue_id)
        args: list[Arg] = [place.partition.number, place.group_id]
        flat = await self._shard.look("letters", [key], args)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(letter_id.decode(_ID), letter) for letter_id, letter in pairs]

    async def places(self, queue_id: str) -> list[CursorPlace]:
        found = []
        for name in await self._shard.look("letter_places", [queue_key(queue_id)], []):
            number, _, group = name.decode("utf-8", "replace").partition(":")
            if number.isdecimal():
                found.append(CursorPlace(group, Partition(queue_id, int(number))))
        return found

    async def answer(
        self, place: CursorPlace, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        pairs = [text.encode(_ID) for pair in answers.items() for text in pair]
        terms: list[Arg] = [
            epoch if epoch is not None else "",
            limits.ANSWERS_KEPT_MAX,
            _retention_ms(),
        ]
        return bool(await self._act("answer_letters", place, *terms, *pairs))

    def on_letter(self, came: Callable[[CursorPlace], None]) -> None:
        def heard(channel: bytes, _message: bytes) -> None:
            place = place_of(channel)
            if place is not None:
                came(place)

        self._shard.on_message(LETTER_CHANNELS, heard)

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        def heard(_channel: bytes, message: bytes) -> None:
            came(message.decode(_ID))

        self._shard.on_message(ANSWER_CHANNELS + asker, heard)


def _retention_ms() -> int:
    return int(limits.LETTERS_KEPT_S * 1000)


T = TypeVar("T")
TRIM_ENTRIES: int = 512
"""Most records that one act of trimming looks at, because a function holds up all others of its
server."""
EXAMINED_MS: int = 86_400_000
"""The time in milliseconds for which a partition remembers what trimming has looked at."""
PURGE_PARTITIONS: int = 64
"""Most partitions that one act purges, because a function holds up all others of its server. 1,024
partitions with ten groups took 0.6 s."""


class RedisStorage:
    """`push.storage_port.Storage` over one shard. `incarnation` is that which the shard was opened
    with; `wall` the unix clock, in seconds; `level`: the copies that cursors wait for; `tails_s`:
    the period in which the ends of partitions read here are polled, in addition to the notices of
    them."""

    def __init__(
        self,
        shard: Shard,
        incarnation: str,
        *,
        wall: Callable[[], float] = time.time,
        sealer: Sealer = PLAIN,
        level: Durability = "all",
        tails_s: float = PERIOD_S,
    ) -> None:
        self._shard = shard
        self._incarnation = incarnation
        self._wall = wall
        self._cursors = RedisCursors(shard, level=level, end_of=self._end_of)
        self._reader = RedisReader(shard, sealer)
        self.inbox: Inbox = RedisInbox(shard)
        self._wake_up: WakeUp | None = None
        self._certified_ends: dict[Partition, int] = {}
        """The highest certified end of each partition that the wake-up was called with."""
        self._appender = RedisAppender(
            shard, sealer, self._wall_unix_ms, self._wake, self._notice_due
        )
        self.due = RedisDueStore(
            self._appender,
            self._reader,
            sealer,
            act=self._act,
            look=self._look,
            move=self._move,
            has_room=lambda partition: shard.has_room(queue_key(partition.queue_id)),
            wall_unix_ms=self._wall_unix_ms,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._tails = TailPoller(shard, self._wake, period_s=tails_s)
        shard.on_message(redis_keys.CERTIFIED_CHANNELS, self._on_certified)
        shard.on_message(redis_keys.DUE_CHANNELS, self._on_due)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("storage_unavailable", "the storage is closed")

    def _wall_unix_ms(self) -> int:
        return int(self._wall() * 1000)

    async def _act(self, name: str, queue_id: str, *args: Arg, level: Durability = "all") -> Any:
        self._check_open()
        work = self._shard.act(name, [queue_key(queue_id)], args, level=level)
        return await self._finish(work)

    async def _look(self, name: str, queue_id: str, *args: Arg) -> Any:
        self._check_open()
        return await self._shard.look(name, [queue_key(queue_id)], args)

    async def _finish(self, work: Awaitable[T]) -> T:
        """Run an act to its end, whether its caller is cancelled or not."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def incarnation(self) -> str:
        """Return the incarnation, which the shard has checked."""
        self._check_open()
        return self._incarnation

    # --- Queues and groups -------------------------------------------------------------------

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        await self._act("create_queue", queue_id, partitions)

    async def drop_queue(self, queue_id: str) -> None:
        while await self._act("drop_queue", queue_id):
            pass
        self._cursors.forget(lambda place: place.partition.queue_id == queue_id)
        self._tails.forget(queue_id)
        self._appender.forget(queue_id)
        for partition in [one for one in self._certified_ends if one.queue_id == queue_id]:
            del self._certified_ends[partition]

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        await self._act("create_group", queue_id, group_id, *starts)

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        await self._act("drop_group", queue_id, group_id)
        self._forget(queue_id, group_id)

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        await self._act("seek", queue_id, group_id, *starts)
        self._forget(queue_id, group_id)

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        count = number = 0
        while number >= 0:
            args = (group_id or "", number, PURGE_PARTITIONS)
            try:
                gone, number = await self._act("purge", queue_id, *args)
            except Refused as refused:
                if number:
                    raise Unknown(f"from partition {number} on: {refused.detail}") from refused
                raise
            count += gone
        self._forget(queue_id, group_id)
        return count

    def _forget(self, queue_id: str, group_id: str | None) -> None:
        self._cursors.forget(
            lambda place: (
                place.partition.queue_id == queue_id and group_id in (None, place.group_id)
            )
        )

    # --- Appending ---------------------------------------------------------------------------

    def copies(self, partition: Partition, level: Durability) -> int:
        return self._shard.copies(level)

    def lane(self, partition: Partition, level: Durability) -> Lane:
        """Return the lane of acts of this level. It is one lane for all partitions of a queue,
        which are at one primary."""
        return self._shard.lane(queue_key(partition.queue_id), level)

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        self._check_open()
        headers = [open_header(append) for append in appends]
        return await self._finish(self._appender.append(appends, headers, lane))

    def _wake(self, partition: Partition, certified: int) -> None:
        if certified > self._certified_ends.get(partition, 0):
            self._certified_ends[partition] = certified
            if self._wake_up is not None:
                self._wake_up(partition, certified)

    def _on_certified(self, channel: bytes, message: bytes) -> None:
        if not self._closed:
            for partition, certified in redis_keys.certified_ends(channel, message):
                self._wake(partition, certified)

    async def _move(self, append: Append, header: Header, moved: Sequence[Arg]) -> Appended | None:
        self._check_open()
        return await self._finish(self._appender.move(append, header, moved))

    def _notice_due(self, partition: Partition, unix_ms: int) -> None:
        self.due.notice(partition, unix_ms)

    def _on_due(self, channel: bytes, message: bytes) -> None:
        if not self._closed:
            for partition, unix_ms in redis_keys.due_times(channel, message):
                self._notice_due(partition, unix_ms)

    def on_certified(self, wake_up: WakeUp) -> None:
        """Register the one wake-up, which is also called for appends of other gateways."""
        self._wake_up = wake_up

    # --- Reading -----------------------------------------------------------------------------

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        self._check_open()
        self._tails.watch(partition)
        return await self._reader.read(partition, offset, bytes_max, until)

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        self._check_open()
        return await self._reader.read_each(partition, offsets, bytes_max)

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        self._check_open()
        return await self._reader.offset_at(partition, unix_ms)

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        self._check_open()
        return await self._reader.published(places)

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        self._check_open()
        return await self._reader.partitions(queue_id)

    # --- Cursors -----------------------------------------------------------------------------

    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        self._check_open()
        self._tails.watch(place.partition)
        return await self._finish(
            self._cursors.own(place, token=token, assignment=assignment, epoch_seen=epoch_seen)
        )

    async def write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        self._check_open()
        return await self._finish(self._write_cursors(writes))

    async def _write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        await self._appender.wait_sealed()
        return await self._cursors.write(writes)

    def _end_of(self, partition: Partition) -> int:
        return self._certified_ends.get(partition, 0)

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        self._check_open()
        return await self._cursors.read_side(place, key_hash, after, count_max)

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        self._check_open()
        return await self._cursors.states(queue_id, group_id)

    async def cursor(self, place: CursorPlace) -> Cursor | None:
        self._check_open()
        found = await self._cursors.load(place)
        if found is None:
            return None
        cursor, _ = found
        return cursor.snapshot()

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        self._check_open()
        return await self._cursors.standings(place, first, last)

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        self._check_open()
        return await self._cursors.parked(place)

    # --- Upkeep ------------------------------------------------------------------------------

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        now = self._wall_unix_ms()
        offset = 0
        while offset >= 0:
            freed, offset = await self._act(
                "trim",
                partition.queue_id,
                partition.number,
                now,
                now - int(retention_s * 1000),
                int(keep_all),
                offset,
                TRIM_ENTRIES,
                limits.TRIM_BYTES_PER_COMMIT_MAX,
                EXAMINED_MS,
                level="local",
            )
            if freed:
                return int(freed)
        return 0

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        now = self._wall_unix_ms()
        count, offset = await self._look(
            "trimmable",
            partition.queue_id,
            partition.number,
            now,
            now - int(retention_s * 1000),
            int(keep_all),
            after,
            TRIM_ENTRIES,
        )
        return int(count), None if offset < 0 else int(offset)

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        named = json.dumps([[*successor] for successor in successors])
        sealed: int = await self._act("seal", partition.queue_id, partition.number, named)
        await self._act("certify", partition.queue_id, partition.number, sealed, level="local")
        return sealed

    async def state(self) -> StorageState:
        if self._closed:
            return StorageState(False, False, ("the storage is closed",))
        standing = self._shard.health()
        if not self._shard.has_room():
            why = "free memory is below the reserve: publishing stops, consuming goes on"
            return StorageState(
                True, False, (why, *standing.waits_for), standing.facts, standing.took
            )
        try:
            await self._look("partitions", "")
        except Refused as refused:
            return StorageState(False, False, (refused.detail,), standing.facts, standing.took)
        return StorageState(True, True, standing.waits_for, standing.facts, standing.took)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._tails.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._appender.close()
        self._reader.close()
        await self._shard.close()


GATEWAYS: Final = "{tocsin:limits}:gateways"
"""The key that the functions of the RedisPool are given. They make the names of their other keys
from its tag."""


class RedisPool:
    """`push.rates.shared.RatePool` over one shard (redis/lua/limits.lua)."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def join(self, gateway: str) -> tuple[bool, Sequence[str]]:
        is_seated = await self._act("limits_join", [gateway]) == 1
        names: set[str] = set()
        cursor = b"0"
        while True:
            cursor, found = await self._act("limits_names", [cursor])
            names.update(name.decode() for name in found)
            if cursor == b"0":
                return is_seated, sorted(names)

    async def ask(self, gateway: str, call: int, asks: Sequence[RateRequest]) -> RateReply | None:
        args: list[Arg] = [gateway, call]
        for ask in asks:
            args += [ask.name, ask.rate.units, ask.rate.per_s, ask.rate.burst, *ask[2:-1]]
            args.append(int(ask.leaving))
        is_seated, *answer = await self._act("limits_ask", args)
        if not is_seated:
            return None
        recalled, grants = answer
        return RateReply(
            [_decode_recall(one.decode()) for one in recalled],
            [RateGrant(*numbers) for numbers in grants],
        )

    async def leave(self, gateway: str) -> None:
        await self._act("limits_leave", [gateway])

    async def _act(self, function: str, args: Sequence[Arg]) -> Any:
        return await self._shard.act(function, [GATEWAYS], args, level="local")


def _decode_recall(text: str) -> tuple[str, Rate]:
    name, units, per_s, burst = text.rsplit(" ", 3)
    return name, Rate(int(units), int(per_s), int(burst))
