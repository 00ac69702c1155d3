"""The mover: scheduled messages come into the log when they are due.

One gateway moves a partition's due messages, chosen among all that live. If two do so for a moment,
nothing comes twice: a move names the messages that it has read, in their versions, and happens only
while all of them wait (`push.storage_port.DueStore.move`). It needs no epoch.

A message becomes a message of the log: its form names its ticket as its id if the client gave none,
and it expires by the time of the move. Its record has many messages, in the order of (due time,
number). Consumers at this gateway get it from memory, as they get what is published here.

**What is due.** A partition that has scheduled messages is in `_next`, with the time at which the
first one is due, or in `_moving`, until a read finds nothing more there. Times become known by the
storage's notices. At a start, and over a shared store now and then, all queues are looked at,
because notices are lost. A partition that another gateway moves stays in `_next`, and is looked at
again after NOT_OURS_S, because that one may be gone by then. It leaves when a look finds it empty.

**Turns.** A partition has the turn for one move. If more is due there, it comes behind the others
that are due. All that are due begin in one round, and rounds keep a distance (ROUND_S). Each lane
of the storage (`push.storage_port.Lane`) has turns of its own, so that a server which does not
answer holds up no other. Those that find no turn wait in `_held`, in their order.

**The clock.** The wall clock decides what is due. After a jump it is not believed
(`gateway.publish.clock`). A storage that is another server tells its own time with what is due, so
that the two are compared before anything is moved.
"""

import asyncio
import logging
import os
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

import msgspec

from gateway.delivery.presence import Presence
from gateway.deliverylog.log import (
    OFF,
    CommittedOrigins,
    CommitTimes,
    DeliveryLog,
    PublishOrigin,
    extend_runs,
)
from gateway.publish.batch import RECORD_ID_BYTES
from gateway.publish.clock import BelievedClock
from gateway.publish.tail import Tail
from metadata.catalog import Queue
from metadata.port import Metadata
from push.due import DueMessage, DueRead, ticket_text
from push.errors import TocsinError, Unknown
from push.histogram import Histogram
from push.message import Message, encode_message, expires_unix_ms
from push.places import Partition
from push.record import Record, RecordBuilder
from push.storage_port import Append, Appended, Storage

logger = logging.getLogger("tocsin.mover")
MESSAGES_PER_MOVE: Final = 200
BYTES_PER_MOVE: Final = 512 * 1024
TURNS: Final = 16
"""Largest number of partitions of one lane that are moved from at the same time, so that what fell
due while nobody ran leaves room to live messages."""
ROUND_S: Final = 0.05
"""Least seconds between two rounds, so that what falls due close together moves together: one read,
one commit and one wake-up for many. A message that is due after a pause does not wait for it, and
after a read of MESSAGES_PER_MOVE messages the next round follows at once."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the clock, and at some queues if others work on the store too."""
QUEUES_PER_LOOK: Final = 100
AGAIN_S: Final = 0.5
"""Seconds after which a partition is tried again whose storage did not answer, or whose queue the
catalog does not have yet."""
NOT_OURS_S: Final = 3.0
"""Seconds after which a partition is looked at again that another gateway moves, or whose move has
failed unexpectedly."""
HEAP_SPARE: Final = 1000
"""Number of entries in the heap that may be out of date, beside as many as there are others."""
DUE_NEAR_MS: Final = 10
"""Milliseconds by which the due times of messages may differ that share a line, at least."""
_DECODER: Final = msgspec.json.Decoder(Message)


# enforces: R32
class Mover:
    """The mover of one gateway."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        presence: Presence,
        clock: BelievedClock,
        tail: Tail,
        *,
        log: DeliveryLog = OFF,
        changed: Callable[[str], None],
    ) -> None:
        """`changed`: called with the id of a queue in which something was scheduled or changed, and
        of one in which something was found that waits."""
        self._log = log
        self._changed = changed
        self._storage = storage
        self._metadata = metadata
        self._presence = presence
        self._tail = tail
        self.clock = clock
        """The clock by which messages are due."""
        self._next: dict[Partition, int] = {}
        """Partition → when something is due there, in unix milliseconds; of one in `_moving`, what
        became known since it has the turn."""
        self._pushes = count()
        self._heap: list[tuple[int, int, Partition]] = []
        """(time, number of the push, partition): the entries of `_next` but those of partitions in
        `_moving` or `_waiting`, and entries that are out of date."""
        self._moving: dict[Partition, asyncio.Task[None]] = {}
        self._turns: Counter[int] = Counter()
        """Lane number → number of its partitions that have the turn."""
        self._held: defaultdict[int, deque[Partition]] = defaultdict(deque)
        """Lane number → partitions that are due, and wait for a turn."""
        self._waiting: set[Partition] = set()
        """The partitions in `_held`."""
        self._fewer: dict[Partition, int] = {}
        """Partition → largest number of messages of its next move, after one that did not happen
        because some of its messages had changed."""
        self._jumps = 0
        """Number of jumps of the clock that `_next` takes into account."""
        self._next_round = 0.0
        """Time of the loop before which no round begins."""
        self._is_behind = False
        """Whether the last round left something that was due already."""
        self._to_look_at: list[str] = []
        self._unknown: list[str] = []
        """Queues of which the last look failed."""
        self._has_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.moved_total = 0
        """Number of messages moved by this gateway."""
        self.late_s = Histogram()
        """Time from when a message was due to when it was in the log."""

    def start(self) -> None:
        """Begin to move."""
        loop = asyncio.get_running_loop()
        self.clock.is_believed()
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
        if known is not None and known <= due_unix_ms:
            return
        self._next[partition] = due_unix_ms
        self._push(partition)

    def _push(self, partition: Partition) -> None:
        """Have the heap give a partition its turn, unless it has it, or waits for it."""
        if partition in self._moving or partition in self._waiting:
            return
        heappush(self._heap, (self._next[partition], next(self._pushes), partition))
        if len(self._heap) > 2 * len(self._next) + HEAP_SPARE:
            self._fill_heap()
        self._has_changed.set()

    def _fill_heap(self) -> None:
        busy = self._moving.keys() | self._waiting
        entries = ((due, next(self._pushes), one) for one, due in self._next.items())
        self._heap = [entry for entry in entries if entry[2] not in busy]
        heapify(self._heap)

    def forget(self, queue_id: str) -> None:
        """Forget a queue that was deleted."""
        for known in (self._next, self._fewer):
            for partition in [one for one in known if one.queue_id == queue_id]:
                del known[partition]

    def facts(self) -> dict[str, object]:
        """Describe the mover to operators."""
        return {
            "moved": self.moved_total,
            "stopped_s": round(self.clock.doubt_s, 3),
            "clock_jumps": self.clock.jumps_total,
            "clock_jump_s": round(self.clock.jump_s, 3),
            "clock_is_apart": self.clock.is_apart,
        }

    # --- What is due ---------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._has_changed.clear()
            wait_s = LOOK_S
            try:
                if self.clock.is_believed():
                    wait_s = min(LOOK_S, self._round())
            except Exception:
                logger.exception("scheduled messages wait: unexpected")
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_changed.wait()
            except TimeoutError:
                continue

    def _round(self) -> float:
        """Begin a round if it is time for one. Returns in how many seconds it is for the next."""
        if self._jumps != self.clock.jumps_total:
            self._after_jump()
        now = asyncio.get_running_loop().time()
        rests_s = 0.0 if self._is_behind else self._next_round - now
        if rests_s <= 0:
            rests_s, self._is_behind = 0.0, False
            if self._begin_due():
                self._next_round, rests_s = now + ROUND_S, ROUND_S
        if not self._heap:
            return LOOK_S
        return max(rests_s, self._heap[0][0] / 1000 - self.clock.wall(), 0.0)

    def _after_jump(self) -> None:
        """Look at everything anew: what was put off, was so by the clock of before."""
        self._jumps = self.clock.jumps_total
        self._next = dict.fromkeys(self._next, self.clock.now_unix_ms())
        self._fill_heap()

    def _begin_due(self) -> bool:
        """Give the turn to the partitions that are due, as far as their lanes have turns. Returns
        whether one of them has it."""
        now_unix_ms, has_begun = self.clock.now_unix_ms(), False
        while self._heap and self._heap[0][0] <= now_unix_ms:
            due, _, partition = heappop(self._heap)
            busy = partition in self._moving or partition in self._waiting
            if busy or self._next.get(partition) != due:
                continue  # out of date
            if not self._is_ours(partition):
                self._put_off(partition, NOT_OURS_S)
                continue
            lane = self._storage.lane(partition, "all").number
            if self._turns[lane] < TURNS:
                self._begin(partition, lane)
                has_begun = True
            else:
                self._held[lane].append(partition)
                self._waiting.add(partition)
        return has_begun

    def _begin(self, partition: Partition, lane: int) -> None:
        self._turns[lane] += 1
        del self._next[partition]
        task = asyncio.get_running_loop().create_task(self._move(partition), name="move")
        self._moving[partition] = task
        task.add_done_callback(partial(self._on_moved, partition, lane))

    def _on_moved(self, partition: Partition, lane: int, _: asyncio.Task[None]) -> None:
        del self._moving[partition]
        self._turns[lane] -= 1
        held = self._held[lane]
        while held and self._turns[lane] < TURNS:
            one = held.popleft()
            self._waiting.remove(one)
            if one in self._next and self._is_ours(one) and not self.clock.doubt_s:
                self._begin(one, lane)
            elif one in self._next:
                self._push(one)
        if partition in self._next:
            self._push(partition)
        self._has_changed.set()

    def _put_off(self, partition: Partition, seconds: float) -> None:
        """Look at a partition again after this time."""
        self._next[partition] = int((self.clock.wall() + seconds) * 1000)
        self._push(partition)

    def _is_ours(self, partition: Partition) -> bool:
        presence = self._presence
        if not presence.is_shared:
            return True
        if presence.is_alone:
            return False  # others have taken over
        return presence.is_chosen(f"due {partition.queue_id} {partition.number}")

    async def _move(self, partition: Partition) -> None:
        """Move some of what is due in a partition, and note when more is."""
        try:
            queue = self._metadata.queue_by_id(partition.queue_id)
            if queue is None:
                return  # it was deleted; of one that is not known here yet, a look finds out
            asked_unix_s = self.clock.wall()
            read = await self._storage.due.first(
                partition,
                int(asked_unix_s * 1000),
                count_max=self._fewer.get(partition, MESSAGES_PER_MOVE),
                bytes_max=BYTES_PER_MOVE,
            )
            for number in read.damaged:
                logger.error("scheduled message %d of %s is damaged", number, partition)
            if not self._is_believed_at(partition, read.store_unix_ms, asked_unix_s):
                self._put_off(partition, NOT_OURS_S)
                return
            if len(read.messages) == MESSAGES_PER_MOVE:
                self._is_behind = True
            is_done = not read.messages or await self._append(queue, partition, read)
            if not is_done:  # some have gone or changed since they were read
                self._fewer[partition] = max(1, len(read.messages) // 2)
                self.noticed(partition, self.clock.now_unix_ms())
                return
            self._fewer.pop(partition, None)
            if read.next_unix_ms is not None:
                self.noticed(partition, read.next_unix_ms)
        except TocsinError as error:
            logger.info("scheduled messages of %s wait: %s", partition, error)
            self._put_off(partition, AGAIN_S)
        except Exception:
            logger.exception("scheduled messages of %s wait: unexpected", partition)
            self._put_off(partition, NOT_OURS_S)

    def _is_believed_at(
        self, partition: Partition, store_unix_ms: int | None, asked_unix_s: float
    ) -> bool:
        """Compare the clock with that of a partition's server."""
        server = self._storage.lane(partition, "all").number
        return self.clock.agrees_with(server, store_unix_ms, asked_unix_s)

    async def _append(self, queue: Queue, partition: Partition, read: DueRead) -> bool:
        """Move the messages that were read. Returns False, and nothing happened, if some of them do
        not wait any more as they were read."""
        prefix = f"{queue.queue_id}-{read.generation}-"
        append = moved_record(
            queue, partition, read.messages, id_prefix=prefix, wall_s=self.clock.wall()
        )
        log, asked_us = self._log, self._log.now_ns() // 1000
        self._tail.expect(partition)
        try:
            moved = await self._storage.due.move(read.messages, append)
            if moved is None:
                return False
            stages = CommitTimes(asked_us, log.now_ns() // 1000)
            self._hand_on(append, moved, stages)
        except Unknown:
            if log.is_on and (origin := log.internal_origin(queue, len(read.messages))):
                log.add_unknown(origin, len(read.messages))
            raise
        finally:
            self._tail.on_answer(partition)
        if log.is_on:
            log.add_commit(moved_origins(log, queue, read.messages, moved.first, stages))
        now_unix_ms = self.clock.wall() * 1000
        self.moved_total += moved.count
        for message in read.messages:
            self.late_s.add(max(0.0, now_unix_ms - message.due_unix_ms) / 1000)
        self._changed(queue.queue_id)
        return True

    # enforces: R10
    def _hand_on(self, append: Append, moved: Appended, stages: CommitTimes) -> None:
        """Hand a record to those who wait for it here, if it is certified."""
        if append.parsed is not None and moved.certified >= moved.first + moved.count:
            record = Record(moved.first, append.parsed, append.payload)
            self._tail.on_append(append.partition, record, stages, moved.certified)

    # --- Looking around ------------------------------------------------------------------------

    async def _look(self) -> None:
        """Find out what is due, of all queues at first. Over a shared store go on, some queues at a
        time, because notices are lost. Those whose storage does not answer are asked again."""
        self._to_look_at = self._all_queues()
        while True:
            try:
                again, self._unknown = (
                    self._unknown[:QUEUES_PER_LOOK],
                    self._unknown[QUEUES_PER_LOOK:],
                )
                some = self._to_look_at[:QUEUES_PER_LOOK]
                del self._to_look_at[:QUEUES_PER_LOOK]
                await asyncio.gather(*map(self._look_at, {*some, *again}))
            except Exception:
                logger.exception("what is scheduled is not known: unexpected")
            if not self._to_look_at:
                if self._presence.is_shared:
                    self._to_look_at = self._all_queues()
                elif not self._unknown:
                    return
            if self._presence.is_shared or not self._to_look_at:
                await asyncio.sleep(LOOK_S)

    def _all_queues(self) -> list[str]:
        return [queue.queue_id for queue in self._metadata.list_all_queues()]

    async def _look_at(self, queue_id: str) -> None:
        try:
            asked_unix_s = self.clock.wall()
            for state in await self._storage.due.states(queue_id):
                self._is_believed_at(state.partition, state.store_unix_ms, asked_unix_s)
                if state.first_unix_ms is not None:
                    self._on_due(state.partition, state.first_unix_ms)
                elif not self._is_ours(state.partition):
                    self._next.pop(state.partition, None)  # others have moved all of it
        except Exception as error:
            if self._metadata.queue_by_id(queue_id) is None:
                return  # it was deleted
            if not isinstance(error, TocsinError):
                logger.exception("what is scheduled in %s is not known: unexpected", queue_id)
            else:
                logger.info("what is scheduled in %s is not known yet: %s", queue_id, error)
            self._unknown.append(queue_id)


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


def moved_origins(
    log: DeliveryLog,
    queue: Queue,
    messages: Sequence[DueMessage],
    first: int,
    stages: CommitTimes,
) -> CommittedOrigins:
    """Return the origins of scheduled messages that moved into the log, at the offsets from `first`
    on. Those share an origin whose due times differ by no more than DUE_NEAR_MS, or a hundredth of
    the time by which they came late."""
    moved = CommittedOrigins(stages, is_late=False)
    certified_unix_ms = log.clock.unix_us(stages.certified_us) // 1000
    origin, until_unix_ms = None, 0
    for offset, one in enumerate(messages, first):
        due = one.due_unix_ms
        if origin is None or due > until_unix_ms:
            near_ms = max(DUE_NEAR_MS, (certified_unix_ms - due) // 100)
            until_unix_ms = due + near_ms
            origin = PublishOrigin(log, queue, stages.asked_us, 0, "internal", due_unix_ms=due)
            origin.stages = stages
            moved.origins.append(origin)
        extend_runs(origin.runs, one.partition.number, offset, 1)
        origin.messages += 1
        origin.keys.append(array("Q", [one.key_hash]))
        origin.bytes += len(one.payload)
    return moved
