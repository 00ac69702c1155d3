"""The due stores of partitions on Redis or Valkey: `push.storage_port.DueStore`.

The functions in redis/lua/due.lua are one atomic act each; records are scheduled by `append`. A row
has its message's header and sealed payload. What the store assigns, number and version, is sealed
there, and verified here with the rest (R30). A row that cannot be believed, or that is due at
another time than its header says, is put aside.

A place in the list of all messages, or of those of a key or an id, is found in a few steps, however
many there are. A hash of 0 is in no list, because no key and no id has it.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from struct import Struct
from typing import Any, Final

from push import limits
from push.due import TICKET, DueMessage, DuePlace, DueRead, DueState, fate_mark, sizes_of
from push.errors import Refused
from push.places import Partition
from push.record import Header, RecordDamaged
from push.storage_port import Append, Appended, NotStored, Outcome, Sealer, Stored
from storage.redis.append import Part, RedisAppender, checksum
from storage.redis.port import Arg
from storage.redis.read import RedisReader
from storage.rules.append import id_bucket, known_outcome, open_header
from storage.rules.due import changed, check_moved, fate_of

_HEAD: Final = Struct("<IIIH40s")
"""Version, bytes as JSON, checksum, length of the header, and the seal over all but that length and
the number."""
_HASH: Final = Struct("<Q")
LOOK_BYTES: int = 4 << 20
"""Most bytes, as JSON, that one look answers with, but at least one message."""
LOOK_COUNT: int = 256
"""Most messages that one look answers with, because a function holds up all others of its
server."""


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row that cannot be believed. `row` is compared before it is put aside, because it may have
    been changed meanwhile."""

    member: bytes
    row: bytes

    @property
    def number(self) -> int:
        """The message's number; -1: it has none, because that is damaged."""
        return int(self.member) if self.member.isdigit() else -1


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row of a due store, as a look answers with it. `member` and `due_unix_ms` are its place in
    the order: number and time, in decimal."""

    member: bytes
    due_unix_ms: bytes
    row: bytes

    def open(self, partition: Partition, sealer: Sealer) -> DueMessage | DamagedRow:
        """Return the message, or its damage.

        Raises:
            Refused: storage_unavailable: its key cannot be had at the moment.
        """
        try:
            message, size = self._decode(partition)
            payload = sealer.unseal(partition, message.header(), message.payload)
        except RecordDamaged:
            return DamagedRow(self.member, self.row)
        if len(payload) != size:
            return DamagedRow(self.member, self.row)
        return replace(message, payload=payload)

    def _decode(self, partition: Partition) -> tuple[DueMessage, int]:
        """Return the message with its payload as it is stored, and the bytes of the payload as
        JSON. Raises RecordDamaged."""
        if len(self.row) < _HEAD.size or not self.member.isdigit():
            raise RecordDamaged("the row is not whole")
        version, size, crc, length, seal = _HEAD.unpack_from(self.row)
        header = self.row[_HEAD.size : _HEAD.size + length]
        sealed = self.row[_HEAD.size + length :]
        number = int(self.member)
        facts = f"{number}:{version}:{size}:{crc}".encode()
        known = hashlib.sha1(facts, usedforsecurity=False).hexdigest().encode()
        if seal != known or str(crc) != checksum(partition, header, sealed):
            raise RecordDamaged("checksum")
        message = DueMessage.load(partition, number, version, header, sealed)
        if str(message.due_unix_ms).encode() != self.due_unix_ms:
            raise RecordDamaged("it is in another place than its header says")
        return message, size


def decode_rows(rows: Sequence[Sequence[bytes]]) -> list[DueRow]:
    """Decode the rows in the answer of a look."""
    return [DueRow(*row) for row in rows]


class RedisDueStore:
    """`push.storage_port.DueStore` over one shard. `act`, `look` and `move` are those of a storage
    that is open: its acts, its looks, and the append that takes messages out of the due store."""

    def __init__(
        self,
        appender: RedisAppender,
        reader: RedisReader,
        sealer: Sealer,
        *,
        act: Callable[..., Awaitable[Any]],
        look: Callable[..., Awaitable[Any]],
        move: Callable[[Append, Header, Sequence[Arg]], Awaitable[Appended | None]],
        has_room: Callable[[Partition], bool],
        wall_unix_ms: Callable[[], int],
    ) -> None:
        self._appender = appender
        self._reader = reader
        self._sealer = sealer
        self._act = act
        self._look = look
        self._move = move
        self._has_room = has_room
        self._wall_unix_ms = wall_unix_ms
        self._noticed: Callable[[Partition, int], None] | None = None

    def on_due(self, noticed: Callable[[Partition, int], None]) -> None:
        """Register the one callback, which is also called for what other gateways schedule."""
        self._noticed = noticed

    def notice(self, partition: Partition, unix_ms: int) -> None:
        """Tell when the first message of a partition is due."""
        if self._noticed is not None:
            self._noticed(partition, unix_ms)

    # --- Reading -----------------------------------------------------------------------------

    async def first(
        self, partition: Partition, until_unix_ms: int, *, count_max: int, bytes_max: int
    ) -> DueRead:
        args = (partition.number, until_unix_ms, count_max, bytes_max)
        answer = await self._look("due_first", partition.queue_id, *args)
        rows, following, generation, store_unix_ms = answer
        messages, damaged = await self._open(partition, decode_rows(rows))
        next_unix_ms = following if following >= 0 else None
        return DueRead(tuple(messages), next_unix_ms, damaged, generation, store_unix_ms)

    async def _open(
        self, partition: Partition, rows: Sequence[DueRow]
    ) -> tuple[list[DueMessage], tuple[int, ...]]:
        """Return the messages of these rows, and the numbers of those that are damaged, which are
        put aside."""

        def opened() -> list[DueMessage | DamagedRow]:
            return [row.open(partition, self._sealer) for row in rows]

        found = await self._reader.open_all(opened) if rows else []
        damaged = []
        for one in found:
            if isinstance(one, DamagedRow) and await self._quarantine(partition, one):
                damaged.append(one.number)
        return [one for one in found if isinstance(one, DueMessage)], tuple(damaged)

    # enforces: R30
    async def _quarantine(self, partition: Partition, one: DamagedRow) -> bool:
        """Put a row aside. Returns False if it is not there any more as it was."""
        args = (partition.number, one.member, one.row)
        return bool(await self._act("due_quarantine", partition.queue_id, *args, level="local"))

    async def find(self, partition: Partition, numbers: Sequence[int]) -> list[DueMessage]:
        found: list[DueMessage] = []
        left = [*numbers]
        while left:
            args = (partition.number, LOOK_BYTES, *left[:LOOK_COUNT])
            rows, looked = await self._look("due_find", partition.queue_id, *args)
            messages, _ = await self._open(partition, decode_rows(rows))
            found += messages
            del left[:looked]
        return found

    async def look(
        self,
        partition: Partition,
        *,
        key_hash: int | None = None,
        id_hash: int | None = None,
        after: DuePlace | None = None,
        count_max: int = 100,
        bytes_max: int = limits.LOOK_BYTES_MAX,
    ) -> DueRead:
        """Return the first messages after a place. One more is read, because the following one
        decides `next_unix_ms`."""
        listed = b""  # of an id there are fewer than of a key
        if id_hash is not None:
            listed = b"i" + _HASH.pack(id_hash)
        elif key_hash is not None:
            listed = b"k" + _HASH.pack(key_hash)
        fitting: list[DueMessage] = []
        damaged: tuple[int, ...] = ()
        at, size = after or DuePlace(0, 0), 0
        while at.due_unix_ms >= 0 and len(fitting) <= count_max and size <= bytes_max:
            count = min(count_max + 1 - len(fitting), LOOK_COUNT)
            args = (partition.number, *at, count, min(LOOK_BYTES, bytes_max), listed)
            rows, *last = await self._look("due_look", partition.queue_id, *args)
            messages, gone = await self._open(partition, decode_rows(rows))
            fitting += [one for one in messages if key_hash in (None, one.key_hash)]
            damaged += gone
            size = sizes_of(fitting)
            at = DuePlace(*map(int, last))
        sizes = accumulate(len(one.payload) for one in fitting[:count_max])
        count = max(sum(size <= bytes_max for size in sizes), min(len(fitting), 1))
        following = fitting[count:]
        next_unix_ms = following[0].due_unix_ms if following else None
        if not following and at.due_unix_ms >= 0:
            next_unix_ms = at.due_unix_ms  # there may be more from there on
        return DueRead(tuple(fitting[:count]), next_unix_ms, damaged)

    async def fate(self, partition: Partition, number: int) -> Stored | NotStored | None:
        return fate_of(await self._place(partition, fate_mark(number)))

    async def known(self, partition: Partition, digest: bytes) -> Outcome | None:
        place = await self._place(partition, digest)
        if place is None:
            return None
        mark = fate_mark(place - TICKET) if place >= TICKET else b""
        fate = await self._place(partition, mark) if mark else None
        return known_outcome(place, lambda _: {} if fate is None else {mark: fate})

    async def _place(self, partition: Partition, digest: bytes) -> int | None:
        """Return the place that is remembered for a digest."""
        args = (partition.number, self._wall_unix_ms(), digest)
        place: bytes = await self._look("due_place", partition.queue_id, *args)
        return int(place) if place else None

    async def states(self, queue_id: str) -> list[DueState]:
        store_unix_ms, rows = await self._look("due_states", queue_id)
        return [
            DueState(
                Partition(queue_id, number),
                messages,
                size,
                following,
                due if due >= 0 else None,
                store_unix_ms,
            )
            for number, (messages, size, following, due) in enumerate(rows)
        ]

    # --- Moving, cancelling, changing ----------------------------------------------------------

    async def move(self, messages: Sequence[DueMessage], append: Append) -> Appended | None:
        header = open_header(append)
        check_moved(messages, header)
        moved = [number for one in messages for number in (one.number, one.version)]
        return await self._move(append, header, moved)

    async def cancel(self, partition: Partition, number: int, *, remember_s: float) -> bool:
        until = id_bucket(self._wall_unix_ms(), remember_s)
        return bool(
            await self._act("due_cancel", partition.queue_id, partition.number, number, until)
        )

    async def change(
        self, message: DueMessage, *, bytes_max: int = 0, due_bytes_max: int = 0
    ) -> bool:
        partition = message.partition
        waiting = await self.find(partition, [message.number])
        if not waiting or waiting[0].version != message.version:
            return False
        if len(message.payload) > len(waiting[0].payload) and not self._has_room(partition):
            raise Refused("storage_full", "the store's memory is at its reserve: it may not grow")
        after = changed(waiting[0], message)
        part = Part(after.header(), after.payload, 1)
        sealed = await self._appender.seal(partition, part)
        first: int = await self._act(
            "due_change",
            partition.queue_id,
            partition.number,
            message.number,
            message.version,
            len(part.payload),
            checksum(partition, part.header, sealed),
            part.header,
            sealed,
            bytes_max,
            due_bytes_max,
        )
        if first < 0:
            return False
        self.notice(partition, first)
        return True
