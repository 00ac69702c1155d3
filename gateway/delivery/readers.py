"""Readers: subscriptions without a group (R26).

Most readers of a queue are at its tail. A record that becomes certified is encoded once, and the
same bytes go to all of them. A reader that has no credit, whose socket is full or that starts
further back is **behind** in that partition: it reads from the log, in bounded steps, until it has
caught up. A filter on keys looks at the record's key hashes, never into messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gateway.catalog.reconcile import UNSEEN
from gateway.counters import Counters, HitRate, PublishCounters
from gateway.delivery.ports import SessionPort, StartFrom
from gateway.deliverylog.deliveries import ReadsLog
from gateway.deliverylog.log import OFF, CommitTimes, DeliveryLog
from gateway.models import CreditDescription, SubscriptionDescription
from gateway.publish.tail import Tail
from gateway.wire import frames
from metadata.catalog import Queue
from push import limits
from push.errors import Refused, TocsinError
from push.places import Partition
from push.positions import (
    Gap,
    PartitionPosition,
    ReadPosition,
    Resumed,
    UnknownPosition,
    overtaken,
    verdicts,
)
from push.record import Record
from push.ring import MEMBER_MAX, key_hash
from push.storage_port import PartitionState, Storage
from push.subscription import CreditWindow

Framed = tuple[bytes, int]
"""(encoded frame of a push, size in bytes of its messages)."""


class Reader:
    """Subscription without a group, made by `Readers.open`."""

    def __init__(
        self,
        owner: "QueueReaders",
        link: SessionPort,
        subscription: int,
        hashes: frozenset[int] | None,
    ) -> None:
        self._owner = owner
        self.link = link
        self.is_socket = link.transport == "websocket"
        """Whether its messages go over a WebSocket, and not by long poll. A reader ends with its
        transport."""
        self.subscription = subscription
        self.hashes = hashes
        """Hashes of the keys that it wants; None: everything."""
        self.credit = CreditWindow()
        self.verdicts: list[dict[str, object]] = []
        self.behind: dict[int, int] = {}
        """Partition → next offset to read for it, of the partitions in which it is behind the
        tail."""
        self.floors: dict[int, int] = {}
        """Partition → offset from which on it takes part in fan-outs: after it was behind, or if
        its start is still to come."""
        self.catching_up: asyncio.Task[None] | None = None
        self.closed = False

    def give(self, framed: Framed, count: int) -> None:
        """Push an encoded frame of `count` messages, for which `takes` was True."""
        frame, size = framed
        self.credit.spend(count)
        self.link.account.counter(self._owner.queue.name).count_delivered(count, size)
        self.link.send(frame)

    def takes(self, count: int) -> bool:
        """Whether it may be given this number of messages now."""
        return self.credit.available >= count and self.link.writable()

    @property
    def given_total(self) -> int:
        """Number of messages that were pushed so far."""
        return self.credit.sent

    def grant(self, granted_total: int) -> None:
        """Raise the credit to `granted_total`, counted since the subscription began (R25). Raises
        Refused(limit_reached)."""
        self.credit.grant(granted_total)
        self.pump()

    def pump(self) -> None:
        """Go on catching up, if it is behind."""
        if self.behind and self.catching_up is None and not self.closed and self.takes(1):
            self._owner.catch_up(self)

    def subscription_facts(self) -> SubscriptionDescription:
        """Describe the subscription to operators: credit, number of keys, partitions behind."""
        credit = self.credit
        return SubscriptionDescription(
            subscription=self.subscription,
            queue=self._owner.queue.name,
            group=None,
            credit=CreditDescription(
                granted=credit.granted, used=credit.sent, open=credit.available
            ),
            keys=len(self.hashes) if self.hashes is not None else None,
            behind=sorted(self.behind),
        )

    def end(self, why: Refused) -> None:
        """Close the reader, and send its client the reason. If it is closed already, do nothing."""
        if not self.closed:
            self.link.send(frames.error(why, subscription=self.subscription))
            self.close()

    def close(self) -> None:
        """Close the reader. It leaves its queue's readers, and is given nothing more."""
        if not self.closed:
            self.closed = True
            self._owner.remove(self)


Pieces = list[tuple[int, int]]
"""(first, last) offset of each push that a record is cut into."""


def fitting(record: Record, offsets: list[int]) -> int:
    """Return how many of these offsets of a record, the first ones, go into one push of
    PUSH_BYTES_MAX; at least one."""
    if len(record.payload) <= limits.PUSH_BYTES_MAX:
        return len(offsets)
    size = count = 0
    for offset in offsets:
        size += record.header.sizes[offset - record.first]
        if count and size > limits.PUSH_BYTES_MAX:
            break
        count += 1
    return count


def pieces(record: Record) -> Pieces:
    """Cut a record into pushes of PUSH_BYTES_MAX and PUSH_MESSAGES_MAX at most. A single larger
    message is a push of its own."""
    cut: Pieces = []
    first = record.first
    while first <= record.last:
        last = min(
            record.bytes_until(first, limits.PUSH_BYTES_MAX), first + limits.PUSH_MESSAGES_MAX - 1
        )
        cut.append((first, last))
        first = last + 1
    return cut


SLICE = 64
"""Largest number of readers of a queue that are given a record in one turn of the loop, which takes
less than a millisecond. A publish meets three turns."""
SLICE_BYTES = 128 * 1024
"""Largest number of bytes that readers of a queue are given in one turn of the loop, because they
are copied into as many sockets. One reader is always served."""
FAN_OUTS_MAX = 256
"""Largest number of records of a queue that wait to be fanned out. If more come than go out, every
reader reads the log by itself (P9)."""
CATCH_UPS_MAX = 16
POSITIONS_EVERY_S = 30.0
"""Seconds between two reports to readers with a filter of how far they have come, perhaps without a
message."""
RETRY_AFTER_S = 0.5
FOLLOW_AFTER_S = 1.0
"""Seconds after a queue's first reader came until each of its partitions is read once. The storage
checks the ends of partitions that were read, which makes up for a lost wake-up (R10)."""


class _NotCertified(Refused):
    """Read of an offset that was certified and is not at the moment, because the store knows less
    for a while after a failover. A read is repeated only after a pause."""


class QueueReaders:
    """The readers of one queue at this gateway. `empty` is called when the last one is removed."""

    def __init__(
        self,
        tail: Tail,
        queue: Queue,
        states: Iterable[PartitionState],
        empty: Callable[[], None],
        encoded: HitRate | None = None,
        *,
        log: DeliveryLog = OFF,
        counted: PublishCounters | None = None,
    ) -> None:
        self._reads = ReadsLog(log, queue, counted or PublishCounters())
        self._tail = tail
        self.encoded = encoded or HitRate()
        self.queue = queue
        self._empty = empty
        self.next: dict[int, int] = {}
        """Partition → end of what was handed to the readers at the tail, or left to each to read
        from the log."""
        self.prefixes: dict[int, str] = {}
        self.generations: dict[int, int] = {}
        self._plain: dict[Reader, None] = {}
        self._left_behind: dict[Reader, None] = {}
        """Readers without a filter that have fallen behind in every partition. They are kept apart,
        so that a stalled reader costs nothing for each record."""
        self._filtered: dict[Reader, None] = {}
        self._by_hash: dict[int, dict[Reader, None]] = {}
        self._fan_outs: deque[tuple[int, Record, CommitTimes, Pieces, list[Reader]]] = deque()
        self._is_fanning_out = False
        self._catch_up_room = asyncio.Semaphore(CATCH_UPS_MAX)
        self._announced: dict[int, int] = {}
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(POSITIONS_EVERY_S, self._sweep)
        self._following = loop.create_task(self._follow(), name="follow")
        for state in states:
            number = state.partition.number
            self.next[number] = max(state.certified, tail.ends.get(state.partition, 0))
            self.generations[number] = state.generation
            self.prefixes[number] = f"{queue.queue_id}-{state.generation}-{number}-"
            tail.follow(state.partition, self._certified)

    # --- The tail ------------------------------------------------------------------------------

    async def _follow(self) -> None:
        await asyncio.sleep(FOLLOW_AFTER_S)
        for number in list(self.next):
            partition, is_read = Partition(self.queue.queue_id, number), False
            while not is_read:
                try:
                    await self._tail.read(partition, self.next[number], 1)
                    is_read = True
                except TocsinError:
                    await asyncio.sleep(RETRY_AFTER_S)

    def _certified(self, partition: Partition) -> None:
        number, end = partition.number, self._tail.ends[partition]
        while self.next[number] < end:
            found = self._tail.get(partition, self.next[number])
            if found is None or len(self._fan_outs) >= FAN_OUTS_MAX:
                self._leave_behind(number)  # appended elsewhere, no longer at hand, or one too many
                self.next[number] = end
                return
            record, stages = found
            self.next[number] = record.last + 1
            if self._plain:
                to = [*reversed(self._plain)]
                self._fan_outs.append((number, record, stages, pieces(record), to))
                self._fan_out_soon()
            if self._by_hash and not self._by_hash.keys().isdisjoint(record.header.key_hashes):
                self._fan_filtered(number, record, stages)

    def _leave_behind(self, number: int) -> None:
        """Let each reader read this partition from the log, from the first record that waits to be
        fanned out to it, or from what comes next."""
        on_its_way: dict[Reader, int] = {}
        for other, record, _, _, readers in self._fan_outs:
            if other == number:
                for reader in readers:
                    on_its_way.setdefault(reader, record.first)
        for reader in [*self._plain, *self._filtered]:
            start = on_its_way.get(reader, self.next[number])
            reader.behind.setdefault(number, max(start, reader.floors.get(number, 0)))
            reader.pump()

    def _fan_out_soon(self) -> None:
        if not self._is_fanning_out:
            self._is_fanning_out = True
            self._tail.end_of_turn.call(self._fan_out)

    def _fan_out(self) -> None:
        self._is_fanning_out = False
        if not self._fan_outs:
            return
        number, record, stages, cut, readers = self._fan_outs[0]
        size = slice_of(len(record.payload))
        batch = readers[: -size - 1 : -1]
        del readers[-size:]
        if not readers:
            self._fan_outs.popleft()
        encoded: dict[tuple[int, int], Framed] = {}
        log = self._reads.fan_out(number, record, stages)
        for reader in batch:
            if reader.closed or number in reader.behind or self._has_passed(reader, number, record):
                continue
            for first, last in cut:
                count = last - first + 1
                if not reader.takes(count):
                    self._fall_behind(reader, number, first)
                    break
                key = (reader.subscription, first)
                frame = encoded.get(key)
                if frame is None:
                    frame = encoded[key] = self._frame(reader, number, record, first, last)
                else:
                    self.encoded.hits += 1
                reader.give(frame, count)
                log.add(reader.link, first, last, is_socket=reader.is_socket)
        log.end()
        if self._fan_outs:
            self._fan_out_soon()

    def _has_passed(self, reader: Reader, number: int, record: Record) -> bool:
        """Whether a reader has read this record from the log while it was behind. If its credit
        ended within the record, it goes on there, behind again."""
        floor = reader.floors.get(number, 0)
        if record.first < floor <= record.last:
            self._fall_behind(reader, number, floor)
        return floor > record.first

    def _fall_behind(self, reader: Reader, number: int, first: int) -> None:
        reader.behind[number] = first
        if len(reader.behind) == len(self.next) and reader in self._plain:
            del self._plain[reader]
            self._left_behind[reader] = None
        reader.pump()

    def _frame(self, reader: Reader, number: int, record: Record, first: int, last: int) -> Framed:
        head = frames.reader_head(
            subscription=reader.subscription,
            partition=number,
            next_offset=last + 1,
            id_prefix=self.prefixes[number],
            published_unix_ms=record.header.published_unix_ms,
            offset=first,
        )
        return self._framed(head, record.slice(first, last), last - first + 1)

    def _framed(self, head: bytes, messages: bytes, count: int) -> Framed:
        self.encoded.misses += 1
        return frames.push_frame(head, messages), len(messages) - count + 1  # without commas

    def _fan_filtered(self, number: int, record: Record, stages: CommitTimes) -> None:
        wanted: dict[Reader, list[int]] = {}
        for place, hashed in enumerate(record.header.key_hashes):
            for reader in self._by_hash.get(hashed, ()):
                wanted.setdefault(reader, []).append(record.first + place)
        encoded: dict[tuple[int, tuple[int, ...]], Framed] = {}
        for reader, offsets in wanted.items():
            if number in reader.behind or self._has_passed(reader, number, record):
                continue
            if not reader.takes(len(offsets)) or fitting(record, offsets) < len(offsets):
                reader.behind[number] = record.first
                reader.pump()
                continue
            key = (reader.subscription, tuple(offsets))
            frame = encoded.get(key)
            if frame is None:
                frame = self._picked(reader, number, record, offsets, record.last + 1)
                encoded[key] = frame
            else:
                self.encoded.hits += 1
            reader.give(frame, len(offsets))
            self._reads.add(reader.link, number, record, offsets, stages)

    def _picked(
        self, reader: Reader, number: int, record: Record, offsets: list[int], next_offset: int
    ) -> Framed:
        """Encode a push of single messages of a record. `next_offset`: the offset at which the
        reader goes on, behind these messages and those that its filter skips."""
        head = frames.reader_head(
            subscription=reader.subscription,
            partition=number,
            next_offset=next_offset,
            id_prefix=self.prefixes[number],
            published_unix_ms=record.header.published_unix_ms,
            offsets=offsets,
        )
        return self._framed(head, b",".join(record.slice(o, o) for o in offsets), len(offsets))

    # --- Behind --------------------------------------------------------------------------------

    def catch_up(self, reader: Reader) -> None:
        """Read for a reader in the background, while it takes messages."""
        task = asyncio.get_running_loop().create_task(self._catch_up(reader), name="catch up")
        reader.catching_up = task
        task.add_done_callback(lambda task: self._caught_up(reader, task))

    def _caught_up(self, reader: Reader, task: asyncio.Task[None]) -> None:
        reader.catching_up = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, TocsinError):
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, reader.pump)
        elif error is not None:
            raise error
        else:
            reader.pump()

    async def _catch_up(self, reader: Reader) -> None:
        while reader.behind and not reader.closed and reader.takes(1):
            progress, early = False, None
            for number in list(reader.behind):
                async with self._catch_up_room:
                    try:
                        progress = await self._step(reader, number) or progress
                    except _NotCertified as error:
                        early = error
            if not progress:
                if early is not None:
                    raise early
                return

    async def _step(self, reader: Reader, number: int) -> bool:
        """Read one partition once for a reader, and give it what it takes. False: its position has
        not moved. Raises TocsinError, such as _NotCertified."""
        begin = reader.behind[number]
        if begin >= self.next[number]:
            self._rejoin(reader, number, begin)
            return True
        read = await self._tail.read(Partition(self.queue.queue_id, number), begin)
        if reader.closed or number not in reader.behind:
            return True
        if not read.records:
            if read.certified <= begin:
                why = "a record is not certified at the moment"
                raise _NotCertified("storage_unavailable", why)
            self._advance(reader, number, read.certified, begin)
        for record in read.records:
            at = reader.behind[number]
            if record.last < at:
                continue
            if record.first > at:
                self._advance(reader, number, record.first, at)
            if not self._give(reader, number, record):
                break
        if reader.behind[number] >= self.next[number]:
            self._rejoin(reader, number, reader.behind[number])
            return True
        return reader.behind[number] > begin

    # enforces: P10, R26
    def _advance(self, reader: Reader, number: int, to: int, at: int) -> None:
        """Move a reader on from `at` to `to`, and inform its client that the messages between are
        no longer retained (P10)."""
        gap = overtaken(at, to)
        reader.behind[number] = to
        if gap is not None:
            head = frames.reader_head(
                subscription=reader.subscription,
                partition=number,
                next_offset=to,
                id_prefix=self.prefixes[number],
                published_unix_ms=0,
                gap=(gap.first, gap.last),
            )
            reader.link.send(frames.push_frame(head, b""))

    def _give(self, reader: Reader, number: int, record: Record) -> bool:
        """Give a reader that is behind what it wants of a record, from its position on. False: it
        takes no more now."""
        at = max(reader.behind[number], record.first)
        if reader.hashes is not None:
            offsets = [
                record.first + place
                for place, hashed in enumerate(record.header.key_hashes)
                if hashed in reader.hashes and record.first + place >= at
            ]
            while offsets:
                if not reader.takes(1):
                    return False
                count = min(fitting(record, offsets), reader.credit.available)
                picked, offsets = offsets[:count], offsets[count:]
                reader.behind[number] = offsets[0] if offsets else record.last + 1
                reader.give(
                    self._picked(reader, number, record, picked, reader.behind[number]), count
                )
                self._reads.add(reader.link, number, record, picked)
            reader.behind[number] = record.last + 1
            return True
        while at <= record.last:
            if not reader.takes(1):
                return False
            last = min(record.bytes_until(at, limits.PUSH_BYTES_MAX), record.last)
            last = min(last, at + reader.credit.available - 1)
            reader.give(self._frame(reader, number, record, at, last), last - at + 1)
            self._reads.add(reader.link, number, record, range(at, last + 1))
            at = reader.behind[number] = last + 1
        return True

    def _rejoin(self, reader: Reader, number: int, at: int) -> None:
        del reader.behind[number]
        reader.floors[number] = at
        if reader in self._left_behind:
            del self._left_behind[reader]
            self._plain[reader] = None

    # --- Members -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of readers."""
        return len(self._plain) + len(self._left_behind) + len(self._filtered)

    def add(self, reader: Reader) -> None:
        """Let a reader take part from now on."""
        if reader.hashes is None:
            self._plain[reader] = None
        else:
            self._filtered[reader] = None
            for hashed in reader.hashes:
                self._by_hash.setdefault(hashed, {})[reader] = None

    def remove(self, reader: Reader) -> None:
        """Forget a reader, which is closed. After the last one `empty` is called."""
        self._plain.pop(reader, None)
        self._left_behind.pop(reader, None)
        if self._filtered.pop(reader, 0) is None:
            for hashed in reader.hashes or ():
                readers = self._by_hash[hashed]
                del readers[reader]
                if not readers:
                    del self._by_hash[hashed]
        if reader.catching_up is not None:
            reader.catching_up.cancel()
        if not self._plain and not self._left_behind and not self._filtered:
            self._empty()

    def queue_deleted(self) -> None:
        """Close all readers, and inform their sessions of the reason."""
        for reader in [*self._plain, *self._left_behind, *self._filtered]:
            reader.end(Refused("queue_not_found", "the queue was deleted"))

    def _sweep(self) -> None:
        """Inform filtered readers how far the tail has come, so that their position stays fresh."""
        self._sweeper = asyncio.get_running_loop().call_later(POSITIONS_EVERY_S, self._sweep)
        if self._announced == self.next:
            return
        self._announced = dict(self.next)
        for reader in self._filtered:
            places = {
                str(number): [self.generations[number], at]
                for number, at in self.next.items()
                if number not in reader.behind
            }
            reader.link.send(frames.reader_positions(reader.subscription, places))

    def close(self) -> None:
        """Stop following the log, because no reader is left."""
        self._sweeper.cancel()
        self._following.cancel()
        self._fan_outs.clear()
        for number in self.next:
            self._tail.unfollow(Partition(self.queue.queue_id, number), self._certified)


def slice_of(record_bytes: int) -> int:
    """Return how many readers are given a record of this size in one turn. Each takes at most two
    pushes of it, because its buffer is full then."""
    size = min(record_bytes, 2 * limits.PUSH_BYTES_MAX)
    return max(1, min(SLICE, SLICE_BYTES // max(1, size)))


_DIGITS_MAX: Final = len(str(MEMBER_MAX))


class Readers:
    """All readers of this gateway."""

    def __init__(
        self, storage: Storage, tail: Tail, log: DeliveryLog = OFF, counting: Counters | None = None
    ) -> None:
        self._log = log
        self._counting = counting or Counters()
        self._storage = storage
        self._tail = tail
        self._queues: dict[str, QueueReaders] = {}
        self.encoded = HitRate()
        """Hits: pushes that had been encoded for another reader; misses: pushes encoded."""

    async def open(
        self,
        link: SessionPort,
        subscription: int,
        queue: Queue,
        *,
        keys: list[str] | None,
        start: StartFrom | None,
        position: frames.Position | None,
        credit: int,
    ) -> Reader:
        """Make a reader, which takes part from now on, with its `verdicts`: where it goes on in
        each partition. `start` and `position` exclude each other.

        Raises:
            Refused: position_unknown: the position is of another queue; invalid_request: it does
                not name partitions by their numbers, or there is a `start` as well;
                storage_unavailable: the storage has no such queue.
        """
        if start is not None and position is not None:
            raise Refused("invalid_request", "start and position exclude each other")
        readers = self._queues.get(queue.queue_id)
        # A reader that begins at the end, where others are already, needs nothing of the storage.
        states: Sequence[PartitionState] = ()
        if readers is None or start != "latest":
            states = await self._storage.partitions(queue.queue_id)
            if not states:
                raise Refused("storage_unavailable", UNSEEN)
        found: list[dict[str, object]] = []
        if position is not None:
            starts, found = _resume(queue, position, states)
        else:
            starts = await self._starts(states, start)
        hashes = (
            frozenset(key_hash(key, queue.hash_key) for key in keys) if keys is not None else None
        )
        readers = self._queues.get(queue.queue_id)
        if readers is None:
            readers = self._readers_of(queue, states)
        reader = Reader(readers, link, subscription, hashes)
        reader.credit.grant(credit)
        reader.verdicts = found
        if position is None:
            reader.verdicts = [
                {
                    "partition": n,
                    "verdict": "resumed",
                    "from": starts.get(n, at),
                    "generation": readers.generations[n],
                }
                for n, at in readers.next.items()
            ]
        for number, at in starts.items():
            if at < readers.next[number]:
                reader.behind[number] = at
            elif at > readers.next[number]:
                reader.floors[number] = at
        readers.add(reader)
        asyncio.get_running_loop().call_soon(reader.pump)
        return reader

    def _readers_of(self, queue: Queue, states: Sequence[PartitionState]) -> QueueReaders:
        """Make the QueueReaders of a queue, and keep it until its last reader is removed."""
        made = self._queues[queue.queue_id] = QueueReaders(
            self._tail,
            queue,
            states,
            lambda: self._closed(queue.queue_id),
            self.encoded,
            log=self._log,
            counted=self._counting.queue(queue.queue_id),
        )
        return made

    async def _starts(
        self, states: Sequence[PartitionState], start: str | int | None
    ) -> dict[int, int]:
        """Return partition → offset from which a new reader begins, by `start`. In partitions left
        out it begins at the end."""
        if start == "earliest":
            return {state.partition.number: state.start for state in states}
        if isinstance(start, int):
            return {
                state.partition.number: await self._storage.offset_at(state.partition, start)
                for state in states
            }
        return {}

    def counts(self) -> dict[str, int]:
        """Return queue id → number of readers, for the queues that have some here."""
        return {queue_id: len(readers) for queue_id, readers in self._queues.items()}

    def _closed(self, queue_id: str) -> None:
        self._queues.pop(queue_id).close()

    def queue_deleted(self, queue_id: str) -> None:
        """Close the queue's readers, and inform their sessions of the reason."""
        readers = self._queues.get(queue_id)
        if readers is not None:
            readers.queue_deleted()


# enforces: P10, R26
def _resume(
    queue: Queue, position: frames.Position, states: Iterable[PartitionState]
) -> tuple[dict[int, int], list[dict[str, object]]]:
    """Return (partition → offset at which reading goes on, the verdict about each partition for the
    client). Raises Refused: position_unknown or invalid_request."""
    if position.queue_id != queue.queue_id:
        raise Refused("position_unknown", "the position is of another queue of that name")
    places: dict[int, PartitionPosition] = {}
    for text, (generation, offset) in position.partitions.items():
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            raise Refused("invalid_request", "position: name each partition by its number")
        if text[0] == "0" != text:  # two names of one partition could contradict each other
            detail = "position: a partition's number has no leading zeros"
            raise Refused("invalid_request", detail)
        places[int(text)] = PartitionPosition(generation, offset)
    by_number = {state.partition.number: state for state in states}
    starts: dict[int, int] = {}
    found: list[dict[str, object]] = []
    judged = verdicts(
        ReadPosition(position.queue_id, position.ring_epoch, places),
        queue.ring_epoch,
        by_number.values(),
    )
    for number, one in judged.items():
        line: dict[str, object] = {
            "partition": number,
            "generation": by_number[number].generation,
        }
        if isinstance(one, Resumed):
            starts[number] = one.next_offset
            line |= {"verdict": "resumed", "from": one.next_offset}
        elif isinstance(one, Gap):
            starts[number] = one.next_offset
            line |= {"verdict": "gap", "from": one.first, "to": one.last}
        elif isinstance(one, UnknownPosition):
            starts[number] = by_number[number].start
            line |= {"verdict": "unknown", "from": starts[number], "reason": one.reason}
        found.append(line)
    return starts, found
