"""The mover: scheduled messages come into the log when they are due.

One gateway moves a partition's due messages, chosen among all that live. If two do so for a moment,
nothing comes twice: a move names the messages that it has read, in their versions, and happens only
while all of them wait (`push.storage_port.DueStore.move`). It needs no epoch.

A message becomes a message of the log: its form names its ticket as its id if the client gave none,
and it expires by the time of the move. Its record has many messages, in the order of (due time,
number). Consumers get it as they get what another gateway has published.

The mover knows when the first message of each partition is due, by the storage's notices. Over a
shared store these may be lost, and another gateway's partitions may become its own, so it also
looks at every queue now and then.

The wall clock decides what is due. After a jump it is not believed (`push.due`).
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

import msgspec

from gateway.delivery.presence import Presence
from gateway.publish.batch import RECORD_ID_BYTES, expires_unix_ms
from metadata.catalog import Queue
from metadata.port import Metadata
from push.due import DOUBT_S, ClockGuard, DueMessage, ticket_text
from push.errors import TocsinError
from push.histogram import Histogram
from push.message import Message, encode_message
from push.places import Partition
from push.record import RecordBuilder
from push.storage_port import Append, Storage

logger = logging.getLogger("tocsin.mover")
MESSAGES_PER_MOVE: Final = 200
BYTES_PER_MOVE: Final = 512 * 1024
PARTITIONS_AT_ONCE: Final = 8
"""Largest number of partitions that are moved from at the same time, so that what fell due while
nobody ran leaves room to live messages."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the clock, and at some queues if others work on the store too."""
QUEUES_PER_LOOK: Final = 20
AGAIN_S: Final = 0.5
"""Seconds after which a partition is tried again whose storage did not answer."""
_DECODER: Final = msgspec.json.Decoder(Message)


# enforces: R32
class Mover:
    """The mover of one gateway."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        presence: Presence,
        *,
        changed: Callable[[str], None],
    ) -> None:
        """`changed`: called with the id of a queue in which something was scheduled or changed, and
        of one in which something was found that waits."""
        self._changed = changed
        self._storage = storage
        self._metadata = metadata
        self._presence = presence
        self.wall: Callable[[], float] = time.time
        """The unix clock in seconds, by which messages are due."""
        self.monotonic: Callable[[], float] = time.monotonic
        """A clock in seconds that nobody sets, with which the other one is compared."""
        self._due: list[tuple[int, Partition]] = []
        """Heap of (time in unix milliseconds, partition). Entries that are out of date cost a look
        each."""
        self._next: dict[Partition, int] = {}
        """Partition → the earliest time of its entries in the heap."""
        self._moving: dict[Partition, asyncio.Task[None]] = {}
        self._after: dict[Partition, int] = {}
        """Partition that is moved from now → when something more is due there."""
        self._generations: dict[Partition, int] = {}
        self._to_look_at: list[str] = []
        self._has_changed = asyncio.Event()
        self._guard: ClockGuard | None = None
        self._has_warned = False
        self._tasks: list[asyncio.Task[None]] = []
        self.moved_total = 0
        """Number of messages moved by this gateway."""
        self.late_s = Histogram()
        """Time from when a message was due to when it was in the log."""

    def start(self) -> None:
        """Begin to move."""
        loop = asyncio.get_running_loop()
        self._guard = ClockGuard(self.wall(), self.monotonic())
        self._storage.due.on_due(self._on_due)
        self._tasks = [
            loop.create_task(self._run(), name="mover"),
            loop.create_task(self._look(), name="mover's looks"),
        ]

    async def stop(self) -> None:
        """End. A move that is under way happens or not, and the next start finds out."""
        tasks = [*self._tasks, *self._moving.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_due(self, partition: Partition, due_unix_ms: int) -> None:
        self._changed(partition.queue_id)
        self.noticed(partition, due_unix_ms)

    def noticed(self, partition: Partition, due_unix_ms: int) -> None:
        """Note that something of a partition is due at this time."""
        known = self._next.get(partition)
        if known is None or due_unix_ms < known:
            self._next[partition] = due_unix_ms
            heappush(self._due, (due_unix_ms, partition))
            self._has_changed.set()

    # --- The clock -----------------------------------------------------------------------------

    @property
    def doubt_s(self) -> float:
        """Seconds for which nothing is moved, because the clock has jumped; 0: it is believed."""
        return self._guard.doubt_s(self.monotonic()) if self._guard is not None else 0.0

    @property
    def jump_s(self) -> float:
        """The clock's last jump in seconds; 0: there was none."""
        return self._guard.jump_s if self._guard is not None else 0.0

    @property
    def jumps_total(self) -> int:
        """Number of jumps of the clock since the start."""
        return self._guard.jumps if self._guard is not None else 0

    def facts(self) -> dict[str, object]:
        """Return figures of this gateway for operators: messages moved, seconds for which nothing
        more is moved, jumps of the clock and the last of them in seconds."""
        return {
            "moved": self.moved_total,
            "stopped_s": round(self.doubt_s, 3),
            "clock_jumps": self.jumps_total,
            "clock_jump_s": round(self.jump_s, 3),
        }

    def believe_clock(self) -> None:
        """Move on, because an operator says that the clock is right."""
        if self._guard is not None:
            self._guard.believe(self.monotonic())
            self._has_changed.set()

    def _is_believed(self) -> bool:
        assert self._guard is not None  # set by `start`
        is_believed = self._guard.look(self.wall(), self.monotonic())
        if not is_believed and not self._has_warned:
            logger.warning(
                "the clock has jumped by %.0f s: nothing that was scheduled is moved for %.0f s, "
                "unless an operator says that the clock is right",
                self._guard.jump_s,
                DOUBT_S,
            )
        elif is_believed and self._has_warned:
            logger.warning("scheduled messages are moved again, by the clock as it is now")
        self._has_warned = not is_believed
        return is_believed

    # --- What is due ---------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._has_changed.clear()
            wait_s = LOOK_S
            if self._is_believed():
                self._begin_due()
                if self._due and len(self._moving) < PARTITIONS_AT_ONCE:
                    wait_s = min(LOOK_S, max(0.0, self._due[0][0] / 1000 - self.wall()))
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_changed.wait()
            except TimeoutError:
                continue

    def _begin_due(self) -> None:
        """Begin to move from the partitions that are due, as many at once as may be."""
        now_unix_ms = int(self.wall() * 1000)
        while (
            self._due and self._due[0][0] <= now_unix_ms and len(self._moving) < PARTITIONS_AT_ONCE
        ):
            due, partition = heappop(self._due)
            if self._next.get(partition) != due:
                continue  # an earlier entry has come since
            del self._next[partition]
            if partition in self._moving:
                self._after[partition] = min(due, self._after.get(partition, due))
                continue
            if not self._is_ours(partition):
                continue
            task = asyncio.get_running_loop().create_task(self._move(partition), name="move")
            self._moving[partition] = task
            task.add_done_callback(partial(self._on_moved, partition))

    def _on_moved(self, partition: Partition, _: asyncio.Task[None]) -> None:
        del self._moving[partition]
        self._has_changed.set()
        if partition in self._after:
            self.noticed(partition, self._after.pop(partition))

    def _is_ours(self, partition: Partition) -> bool:
        presence = self._presence
        if not presence.is_shared:
            return True
        if presence.is_alone:
            return False  # others have taken over
        return presence.is_chosen(f"due {partition.queue_id} {partition.number}")

    async def _move(self, partition: Partition) -> None:
        """Move what is due in a partition now, in pieces, until nothing is. Notes when the next one
        is due."""
        try:
            while True:
                queue = self._metadata.queue_by_id(partition.queue_id)
                if queue is None:
                    return
                now_unix_ms = int(self.wall() * 1000)
                read = await self._storage.due.first(
                    partition,
                    now_unix_ms,
                    count_max=MESSAGES_PER_MOVE,
                    bytes_max=BYTES_PER_MOVE,
                )
                for number in read.damaged:
                    logger.error("scheduled message %d of %s is damaged", number, partition)
                if read.messages:
                    await self._append(queue, partition, read.messages)
                if read.next_unix_ms is None:
                    return
                if read.next_unix_ms > int(self.wall() * 1000):
                    self.noticed(partition, read.next_unix_ms)
                    return
                if not self._is_believed():
                    self.noticed(partition, read.next_unix_ms)
                    return
        except TocsinError as error:
            logger.info("scheduled messages of %s wait: %s", partition, error)
            self._again(partition)
        except Exception:
            logger.exception("scheduled messages of %s wait: unexpected", partition)
            self._again(partition)

    def _again(self, partition: Partition) -> None:
        self.noticed(partition, int((self.wall() + AGAIN_S) * 1000))

    async def _append(
        self, queue: Queue, partition: Partition, messages: Sequence[DueMessage]
    ) -> None:
        prefix = f"{queue.queue_id}-{await self._generation(partition)}-"
        append = moved_record(queue, partition, messages, id_prefix=prefix, wall_s=self.wall())
        moved = await self._storage.due.move(messages, append)
        if moved is None:
            return  # some were moved, cancelled or changed since they were read
        now_unix_ms = self.wall() * 1000
        self.moved_total += moved.count
        for message in messages:
            self.late_s.add(max(0.0, now_unix_ms - message.due_unix_ms) / 1000)

    async def _generation(self, partition: Partition) -> int:
        known = self._generations.get(partition)
        if known is None:
            for state in await self._storage.partitions(partition.queue_id):
                self._generations[state.partition] = state.generation
            known = self._generations.get(partition, 1)
        return known

    # --- Looking around ------------------------------------------------------------------------

    async def _look(self) -> None:
        """Find out what is due, of all queues at first. Over a shared store go on, some queues at a
        time, because notices are lost, and gateways come and go."""
        await self._look_at([queue.queue_id for queue in self._metadata.list_all_queues()])
        while self._presence.is_shared:
            await asyncio.sleep(LOOK_S)
            if not self._to_look_at:
                self._to_look_at = [queue.queue_id for queue in self._metadata.list_all_queues()]
            some = self._to_look_at[:QUEUES_PER_LOOK]
            del self._to_look_at[:QUEUES_PER_LOOK]
            await self._look_at(some)

    async def _look_at(self, queue_ids: Iterable[str]) -> None:
        for queue_id in queue_ids:
            try:
                for state in await self._storage.due.states(queue_id):
                    if state.first_unix_ms is not None:
                        self._on_due(state.partition, state.first_unix_ms)
            except TocsinError as error:
                logger.info("what is scheduled in %s is not known yet: %s", queue_id, error)
                self._to_look_at.append(queue_id)
            except Exception:
                logger.exception("what is scheduled in %s is not known: unexpected", queue_id)


def moved_record(
    queue: Queue,
    partition: Partition,
    messages: Sequence[DueMessage],
    *,
    id_prefix: str,
    wall_s: float,
) -> Append:
    """Return the record that these messages of a partition become in its log at this time."""
    builder = RecordBuilder()
    for place, one in enumerate(messages):
        message = _DECODER.decode(one.payload)
        if message.id is None:
            ticket = ticket_text(id_prefix, partition.number, one.number)
            message = msgspec.structs.replace(message, id=ticket)
        builder.add(encode_message(message), one.key_hash)
        expires = expires_unix_ms(message, queue.settings.message_ttl_s, wall_s * 1000)
        builder.mark(place, None, expires)
    encoded, payload, header = builder.close(
        record_id=os.urandom(RECORD_ID_BYTES),
        published_unix_ms=int(wall_s * 1000),
        ring_epoch=queue.ring_epoch,
        tenant=0,
    )
    settings = queue.settings
    return Append(
        partition,
        encoded,
        payload,
        parsed=header,
        durability=settings.durability,
        dedup_window_s=settings.dedup_window_s,
    )
