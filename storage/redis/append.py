"""Appending on Redis or Valkey (R10): arguments and replies, rows of the stream, certification.

A record is sealed here, and judged by the store's function `append`. Once its copies were counted,
a second act certifies it, with all others of its queue that were appended together. A record at the
level `local` that follows records of a higher level waits only for a moment until their copies are
counted, because a replica may be away.
"""

import asyncio
import hashlib
import itertools
import zlib
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from push.due import TICKET
from push.errors import Refused, TocsinError, Unknown
from push.places import Partition
from push.record import Header, Record, RecordDamaged
from push.storage_port import (
    PLAIN,
    Append,
    Appended,
    Damage,
    Lane,
    NotStored,
    Outcome,
    Scheduled,
    Sealer,
    Stored,
)
from storage.redis.keys import queue_key
from storage.redis.port import Arg, Shard
from storage.rules.append import id_bucket, line_bucket, nowhere
from storage.rules.due import due_messages, marks_bucket

SEQUENCE_MAX: Final = (1 << 53) - 1
"""Largest sequence of a producer. The functions in Lua count in doubles, and clients may use
sequences up to this."""
_PRODUCER: Final = Struct("<16sQ")


def checksum(partition: Partition, header: bytes, sealed: bytes) -> str:
    """Return the checksum over the stored parts of a record or of a scheduled message, and over its
    partition."""
    at = f"{partition.queue_id}:{partition.number}:".encode()
    return str(zlib.crc32(sealed, zlib.crc32(header, zlib.crc32(at))))


class Part(NamedTuple):
    """Plain header and payload of what is sealed by itself, and how many messages it has: a record,
    or a scheduled message."""

    header: bytes
    payload: bytes
    messages: int


def parts_of(append: Append, header: Header) -> list[Part]:
    """Return what is stored of an append: the record, or its messages if they are scheduled."""
    if not header.deliver_at_unix_ms:
        return [Part(append.header, append.payload, header.count)]
    # Their numbers are given in the store, and are no part of their headers.
    messages = due_messages(append, header, ((index, 0) for index in range(header.count)))
    return [Part(message.header(), message.payload, 1) for message in messages]


def scheduled_args(append: Append, parts: Sequence[Part], sealed: Sequence[bytes]) -> list[Arg]:
    """Return the last arguments of `append`, for messages that are scheduled: their headers, a
    column of their checksums, and each one's payload."""
    sums = (
        int(checksum(append.partition, part.header, payload))
        for part, payload in zip(parts, sealed, strict=True)
    )
    return [b"".join(part.header for part in parts), array("I", sums).tobytes(), *sealed]


def append_args(append: Append, header: Header, sealed: bytes, *, wall_unix_ms: int) -> list[Arg]:
    """Return the arguments of `append`, for a record that goes to the log. For one whose messages
    are scheduled, `sealed` is empty, and `scheduled_args` are put in place of the last two.

    Raises:
        Refused: invalid_message: a sequence is larger than the functions can count.
    """
    if header.producers and (
        max(header.sequences) > SEQUENCE_MAX
        or max(resolved for _, resolved in header.producers) > SEQUENCE_MAX
    ):
        raise Refused("invalid_message", f"record: a sequence is above {SEQUENCE_MAX}")
    digests = header.digests if append.dedup_window_s > 0 else []
    until = id_bucket(wall_unix_ms, append.dedup_window_s) if digests else ""
    return [
        append.partition.number,
        append.durability,
        wall_unix_ms,
        line_bucket(wall_unix_ms),
        until,
        append.messages_max,
        append.bytes_max,
        "",
        min(header.published_unix_ms, wall_unix_ms),
        checksum(append.partition, append.header, sealed),
        append.header,
        sealed,
        header.sizes.tobytes(),
        b"".join(_PRODUCER.pack(*producer) for producer in header.producers),
        header.producer_indexes.tobytes(),
        header.sequences.tobytes(),
        b"".join(digests),
        append.message_bytes_max,
        append.due_messages_max,
        append.due_bytes_max,
        b"",
        b"",
    ]


def move_args(
    append: Append, header: Header, sealed: bytes, moved: Sequence[Arg], *, wall_unix_ms: int
) -> list[Arg]:
    """Return the arguments of `due_move`. `moved`: number and version of each message that
    moves."""
    return [
        append.partition.number,
        append.durability,
        wall_unix_ms,
        id_bucket(wall_unix_ms, append.dedup_window_s) if append.dedup_window_s > 0 else 0,
        min(header.published_unix_ms, wall_unix_ms),
        checksum(append.partition, append.header, sealed),
        append.header,
        sealed,
        header.count,
        sum(header.sizes),
        marks_bucket(wall_unix_ms, append.dedup_window_s),
        *moved,
    ]


_CODE: Final = 7
"""Index in `append_args` of the code with which every new message is refused."""


def refuse_args(args: Sequence[Arg], code: str) -> list[Arg]:
    """Return the arguments of the function `append_refused`, which refuses every new message with
    `code`, answers duplicates, and keeps the order (R7)."""
    return [*args[:_CODE], code, *args[_CODE + 1 :]]


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The answer to an append of one record, whose messages may not all be certified yet.
    `next_offset`: the end of the log after the append. `due_unix_ms`: when the partition's first
    scheduled message is due; None: the append has scheduled nothing."""

    appended: Appended
    next_offset: int
    due_unix_ms: int | None = None


def decode_reply(answer: Sequence[Any], count: int) -> AppendReply:
    """Decode the reply of `append` about a record of `count` messages."""
    if not answer:
        return AppendReply(nowhere(count), 0)
    first, stored, certified, next_offset, generation, *judged = answer
    due_unix_ms = judged.pop() if judged and isinstance(judged[-1], int) else None
    outcomes = tuple(_outcome(raw) for raw in judged)
    skips = tuple(
        index
        for index, outcome in enumerate(outcomes)
        if not isinstance(outcome, Stored) or outcome.duplicate
    )
    appended = Appended(first, stored, certified, generation, outcomes or None, skips)
    return AppendReply(appended, next_offset, due_unix_ms)


def _outcome(raw: bytes) -> Outcome:
    if raw[:1] not in b"+=":
        return NotStored(raw.decode())
    place, is_duplicate = int(raw[1:]), raw[:1] == b"="
    if place < TICKET:
        return Stored(place, is_duplicate)
    return Scheduled(place - TICKET, is_duplicate)


# enforces: P2
def collect_replies(results: Sequence[AppendReply | BaseException]) -> list[AppendReply]:
    """Return the replies about all records of a call, if every record has one.

    Raises:
        Refused: none of them was judged.
        Unknown: some were, or may have been. The caller holds up later records of all (R7), and
            those that were stored are duplicates when they come again.
    """
    answers = [result for result in results if isinstance(result, AppendReply)]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, Refused)):
        if answers and isinstance(error, Refused):
            raise Unknown(f"not every record of the call was judged: {error.detail}") from error
        raise error
    return answers


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A record as the partition's stream in Redis has it, with its payload still sealed."""

    first: int
    count: int
    header: bytes
    sealed: bytes
    skips: tuple[int, ...]
    reason: str = ""
    """The reason why the row cannot be believed; empty: its checksums match."""

    def open(self, partition: Partition, sealer: Sealer) -> Record | Damage:
        """Return the record, or its damage.

        Raises:
            Refused: storage_unavailable: its key cannot be had at the moment.
        """
        if self.reason:
            return Damage(partition, self.first, self.count, self.reason)
        try:
            payload = sealer.unseal(partition, self.header, self.sealed)
            return Record.load(self.first, self.header, payload, self.skips)
        except RecordDamaged as damage:
            return Damage(partition, self.first, self.count, str(damage))


def decode_row(partition: Partition, raw: Sequence[Any]) -> StreamRow:
    """Decode an entry of a partition's stream, and verify its checksums (R30)."""
    identifier, flat = raw
    first = int(bytes(identifier).partition(b"-")[0]) - 1
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        header, sealed = fields[b"h"], fields[b"p"]
        listed = fields[b"s"].decode()
        facts = [str(first).encode()] + [fields[name] for name in (b"n", b"z", b"m", b"s", b"c")]
        seal = hashlib.sha1(b":".join(facts), usedforsecurity=False).hexdigest()
        known = fields[b"c"].decode() == checksum(partition, header, sealed)
        if not known or fields[b"d"].decode() != seal:
            return StreamRow(first, 1, b"", b"", (), "checksum")
        skips = tuple(int(index) for index in listed.split(",") if index)
        return StreamRow(first, int(fields[b"n"]), header, sealed, skips)
    except (KeyError, ValueError) as error:
        return StreamRow(first, 1, b"", b"", (), f"the row is not whole: {error}")


def decode_damage(partition: Partition, flat: Sequence[bytes]) -> list[Damage]:
    """Decode the quarantine of a partition, in order."""
    found = []
    for first, row in zip(flat[::2], flat[1::2], strict=True):
        count, _, reason = row.decode("utf-8", "replace").partition(" ")
        found.append(Damage(partition, int(first), int(count), reason))
    return sorted(found, key=lambda damage: damage.first)


def _args_of(
    append: Append, header: Header, parts: Sequence[Part], sealed: Sequence[bytes], wall: int
) -> list[Arg]:
    if not header.deliver_at_unix_ms:
        return append_args(append, header, sealed[0], wall_unix_ms=wall)
    args = append_args(append, header, b"", wall_unix_ms=wall)
    return [*args[:-2], *scheduled_args(append, parts, sealed)]


FULL: Final = "storage_full"
"""The code of the refusal if there is no room."""
COUNTED_WITHIN_S: Final = 0.05
"""The longest time in seconds that an append waits for copies that its own level does not
require."""


class RedisAppender:
    """Appends to one shard. `tell` is called with a partition and each certified end that was
    reached there, `tell_due` with a partition in which something was scheduled and the time at
    which its first message is due."""

    def __init__(
        self,
        shard: Shard,
        sealer: Sealer,
        wall_unix_ms: Callable[[], int],
        tell: Callable[[Partition, int], None],
        tell_due: Callable[[Partition, int], None],
    ) -> None:
        self._shard = shard
        self._sealer = sealer
        self._wall_unix_ms = wall_unix_ms
        self._tell = tell
        self._tell_due = tell_due
        self._sealers = ThreadPoolExecutor(1, thread_name_prefix="sealing")
        self._sealed: asyncio.Event | None = None
        """Set when the records that were sealed last are sealed; None: no thread seals here."""
        self._counts: dict[Partition, asyncio.Task[int]] = {}
        """Partition → task that counts the copies of uncertified records, and returns the certified
        end."""
        self._ends: dict[Partition, int] = {}
        self._late: set[Partition] = set()
        """Partitions in which the last count of copies (`_count`) took longer than
        COUNTED_WITHIN_S, or failed."""

    def forget(self, queue_id: str) -> None:
        """Forget a queue that was deleted."""
        self._late = {partition for partition in self._late if partition.queue_id != queue_id}

    async def close(self) -> None:
        """Stop sealing and counting."""
        for task in self._counts.values():
            task.cancel()
        await asyncio.gather(*self._counts.values(), return_exceptions=True)
        self._sealers.shutdown()

    async def append(
        self, appends: Sequence[Append], headers: Sequence[Header], lane: Lane | None
    ) -> list[Appended]:
        """Append records, of which these are the headers."""
        parts = [parts_of(append, header) for append, header in zip(appends, headers, strict=True)]
        sealed = await self._seal(
            [
                (append.partition, part)
                for append, of in zip(appends, parts, strict=True)
                for part in of
            ]
        )
        blobs, wall = iter(sealed), self._wall_unix_ms()
        args = [
            _args_of(append, header, of, [*itertools.islice(blobs, len(of))], wall)
            for append, header, of in zip(appends, headers, parts, strict=True)
        ]
        replies = await self._append_all(appends, args, lane)
        answers = collect_replies(
            [
                reply if isinstance(reply, BaseException) else decode_reply(reply, header.count)
                for reply, header in zip(replies, headers, strict=True)
            ]
        )
        for append, answer in zip(appends, answers, strict=True):
            if answer.due_unix_ms is not None:
                self._tell_due(append.partition, answer.due_unix_ms)
        return await self._certify_stored(appends, answers)

    async def move(self, append: Append, header: Header, moved: Sequence[Arg]) -> Appended | None:
        """Append a record, of which this is the header, in place of messages of the due store, as
        `DueStore.move` does. `moved`: number and version of each."""
        sealed = await self.seal(
            append.partition, Part(append.header, append.payload, header.count)
        )
        args = move_args(append, header, sealed, moved, wall_unix_ms=self._wall_unix_ms())
        reply = await self._act("due_move", append, args, None)
        if not reply:
            return None
        (appended,) = await self._certify_stored([append], [decode_reply(reply, header.count)])
        return appended

    async def _certify_stored(
        self, appends: Sequence[Append], answers: Sequence[AppendReply]
    ) -> list[Appended]:
        try:
            return await self._certify_all(appends, answers)
        except Refused as refused:  # the records are stored, and the poller certifies them (P2)
            raise Unknown(f"stored, and not certified: {refused.detail}") from refused

    async def seal(self, partition: Partition, part: Part) -> bytes:
        """Return a payload in its stored form."""
        (sealed,) = await self._seal([(partition, part)])
        return sealed

    async def _seal(self, parts: Sequence[tuple[Partition, Part]]) -> list[bytes]:
        """Return the payloads in their stored form. A thread seals them, because a key may have to
        be waited for."""
        if self._sealer is PLAIN:
            return [part.payload for _, part in parts]

        def seal() -> list[bytes]:
            return [self._sealer.seal(partition, *part) for partition, part in parts]

        self._sealed = sealed = asyncio.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._sealers, seal)
        finally:
            sealed.set()  # who waits for it has its turn before the group of these records is sent

    async def wait_sealed(self) -> None:
        """Wait until the records that are being sealed now are handed over. What is handed over
        next, without another wait, goes with their group."""
        if self._sealed is not None:
            await self._sealed.wait()

    async def _append_all(
        self, appends: Sequence[Append], args: Sequence[list[Arg]], lane: Lane | None
    ) -> list[Any]:
        """Append the records, all in one group if they are in one shard. Returns the reply about
        each, or its error; Refused: the store did not judge it, and remembers nothing of it. A
        record for which there is no room is judged all the same, and not stored."""

        def refuse(at: int, lane: Lane | None) -> Awaitable[Any]:
            return self._act("append_refused", appends[at], refuse_args(args[at], FULL), lane)

        has_room = [self._shard.has_room(queue_key(one.partition.queue_id)) for one in appends]
        acts = [
            self._act("append", append, args[at], lane) if has_room[at] else refuse(at, lane)
            for at, append in enumerate(appends)
        ]
        replies: list[Any] = await asyncio.gather(*acts, return_exceptions=True)
        full = [
            at
            for at, reply in enumerate(replies)
            if isinstance(reply, Refused) and reply.code.name == FULL and has_room[at]
        ]
        if full:
            # Acts after it in its lane are refused by now, and this stores nothing: no lane.
            again = [refuse(at, None) for at in full]
            judged = await asyncio.gather(*again, return_exceptions=True)
            for at, reply in zip(full, judged, strict=True):
                replies[at] = reply
        return replies

    def _act(
        self, function: str, append: Append, args: Sequence[Arg], lane: Lane | None
    ) -> Awaitable[Any]:
        key = queue_key(append.partition.queue_id)
        return self._shard.act(function, [key], args, level=append.durability, lane=lane)

    def _certify(self, queue_id: str, ends: Mapping[int, int]) -> Awaitable[Sequence[int]]:
        """Certify the messages below these ends of a queue's partitions, whose copies were counted.
        The reply has, for each partition, its certified end and the end of its log."""
        args: list[Arg] = [number for pair in ends.items() for number in pair]
        return self._shard.act("certify", [queue_key(queue_id)], args, level="local")

    async def _certify_local(self, partition: Partition, end: int) -> int:
        """Certify records at the level `local` that follow records of a higher one whose copies
        were not counted yet. Returns 0 if that takes longer, because a replica may be away, and
        such an append does not wait for it. The end is passed to `tell` as soon as it is
        certified."""
        self._ends[partition] = end
        task = self._counts.get(partition)
        if task is None:
            task = asyncio.create_task(self._count(partition), name=f"certify {partition}")
            self._counts[partition] = task
        if partition not in self._late:
            await asyncio.wait((task,), timeout=COUNTED_WITHIN_S)
        if not task.done():
            self._late.add(partition)
            return 0
        return task.result()

    async def _count(self, partition: Partition) -> int:
        """Return the certified end, once all requested ends were tried; 0: that failed."""
        key, certified, done = queue_key(partition.queue_id), 0, -1
        try:
            while done != (end := self._ends[partition]):
                _, counted = await self._shard.act(
                    "certify", [key], [partition.number, 0], level="all"
                )
                # The primary that answered the append may have had more than this one had when it
                # counted.
                ends = {partition.number: min(end, counted)}
                certified, _ = await self._certify(partition.queue_id, ends)
                self._tell(partition, certified)
                done = end
            self._late.discard(partition)
            return certified
        except TocsinError:  # the next append tries again, or the poller does
            self._late.add(partition)
            return 0
        finally:
            del self._counts[partition], self._ends[partition]

    async def _certify_all(
        self, appends: Sequence[Append], answers: Sequence[AppendReply]
    ) -> list[Appended]:
        """Return the answers, once the messages that they name may leave the storage."""
        ends: dict[Partition, int] = {}
        local: set[Partition] = set()
        for append, answer in zip(appends, answers, strict=True):
            if answer.next_offset > answer.appended.certified:
                ends[append.partition] = answer.next_offset
                if append.durability == "local":
                    local.add(append.partition)
        grown = {
            append.partition: answer.appended.certified
            for append, answer in zip(appends, answers, strict=True)
            if answer.appended.count
        }

        counted: dict[str, dict[int, int]] = {}  # queue → ends whose copies were counted
        for partition, end in ends.items():
            if partition not in local:
                counted.setdefault(partition.queue_id, {})[partition.number] = end
        replies = asyncio.gather(*itertools.starmap(self._certify, counted.items()))
        found = await asyncio.gather(*(self._certify_local(one, ends[one]) for one in local))
        reached = dict(zip(local, found, strict=True))
        for (queue_id, of_queue), reply in zip(counted.items(), await replies, strict=True):
            for number, certified in zip(of_queue, reply[::2], strict=True):
                reached[Partition(queue_id, number)] = certified
        for partition, end in (grown | reached).items():
            self._tell(partition, end)
        return [
            Appended(
                each.first,
                each.count,
                max(each.certified, reached.get(append.partition, 0)),
                each.generation,
                each.outcomes,
                each.skips,
            )
            for append, each in zip(appends, (answer.appended for answer in answers), strict=True)
        ]
