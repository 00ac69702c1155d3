"""The publisher: messages of all producers in, records by group commit to the storage, answers out.

The messages of all producers that wait at this moment and go to one partition become one record.
Nothing waits for a timer: a commit starts as soon as there is something to commit, and what
arrives while commits are under way makes the next one larger. Each message is encoded once.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.counting import Counting
from gateway.deliverylog.log import OFF, DeliveryLog
from gateway.deliverylog.publishes import Origin, Placed
from gateway.hit_rate import HitRate
from gateway.publish.commit_lanes import CommitLanes
from gateway.publish.graves import Burial
from gateway.publish.routing import (
    NO_ANSWER,
    Answer,
    OpenRecord,
    Remembered,
    Route,
    Run,
    is_full,
    piece_end,
    refused_sequences,
    weight,
)
from gateway.publish.runs import cut
from gateway.publish.sending_orders import SendingOrders
from gateway.publish.tail import Tail
from metadata.catalog import Queue
from metadata.rights import ALL_KEYS, Keys
from push import limits
from push.errors import Refused
from push.message import Message
from push.places import Partition
from push.ports import Storage
from push.record import Header
from push.sharing import has_room


class Publisher:
    """See the module."""

    def __init__(
        self, storage: Storage, tail: Tail, counting: Counting, is_unmade: Callable[[Queue], bool],
        log: DeliveryLog = OFF, *, in_parts: bool = False,
    ) -> None:  # fmt: skip
        """`is_unmade`: whether a queue that the storage does not have is yet to be made there.
        `in_parts`: as CommitLanes."""
        self.is_unmade = is_unmade
        self._counting, self._log = counting, log
        self._routes: dict[str, Route] = {}
        self._remembered = Remembered()
        self._open: dict[Partition, OpenRecord] = {}
        self._closed: list[tuple[Partition, OpenRecord]] = []
        self.commits = CommitLanes(storage, tail, self, in_parts=in_parts)
        self._orders = SendingOrders()
        self._record_bytes_max = limits.RECORD_BYTES_MAX
        self._is_crowded = False
        """At the last commit: it is to be asked whose the messages are."""
        self._waiting = 0
        """Messages that no commit has taken yet."""
        self.pending_messages = 0
        self.pending_bytes = 0
        self.places = HitRate()
        self.burials: dict[str, Burial] = {}
        """By ids of queues that were deleted."""

    # --- In ------------------------------------------------------------------------------------

    def submit(
        self,
        queue: Queue,
        messages: Sequence[Message],
        answer: Callable[[Answer], None],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
        resolved: int = 0,
        checked: bool = False,
        names: Sequence[str | None] | None = None,
        keys: Keys = ALL_KEYS,
        origin: Origin | None = None,
    ) -> None:
        """Publish; `answer` is called exactly once, perhaps before this returns.

        `producer` (16 bytes) and `sequence` (of the first message; the rest follow) go together;
        `resolved`: everything below was answered (R6). `checked`: the messages were accepted once
        already and only move; no rule about a single message applies again. `names`: under what
        each is remembered, so that it is stored once, whatever its id was remembered for (R8).
        `keys`: those that may be published to; a message of any other is refused, alone (P11).
        `origin`: for the delivery log; None: the broker itself publishes.
        """
        burial = self.burials.get(queue.queue_id) if self.burials else None
        if burial is not None:
            queue, producer, names = burial.dead, burial.producer(producer), burial.names(messages)
        publish = Answer(queue, messages, [NO_ANSWER] * len(messages), remaining=len(messages))
        publish.done, publish.checked, publish.names, publish.allowed = answer, checked, names, keys
        publish.letters = list(map(burial.letter, messages)) if burial is not None else None
        publish.origin = origin or self._log.internal(queue, len(messages))
        if origin is not None and burial is not None:
            origin.queue = queue  # where they stand
        refused = self._refuse_all(queue, producer, sequence, resolved, len(messages))
        if refused is not None:
            if producer is not None and sequence is not None and refused.code.retry:
                route = self._route(queue)
                for at, message in enumerate(messages, sequence):
                    self._orders.refused(producer, route, message.key, at, refused)
            self._route(queue).counted.refused += len(messages)
            publish.fail_all(refused)
            publish.settle(len(messages))
            return
        before = self.pending_messages
        self._accept(publish, producer, sequence, resolved)
        refused_count = len(messages) - (self.pending_messages - before)
        if self.pending_messages > before and not self.commits.is_due:
            self.commits.is_due = True
            asyncio.get_running_loop().call_soon(self._commit_if_free)
        if refused_count or not messages:
            self._route(queue).counted.refused += refused_count
            publish.settle(refused_count)

    @property
    def has_company(self) -> bool:
        """As link.Publisher.has_company."""
        return self.commits.has_company()

    @property
    def is_crowded(self) -> bool:
        """As link.Publisher.is_crowded."""
        return self.commits.is_crowded()

    @property
    def is_storing(self) -> bool:
        """As link.Publisher.is_storing."""
        return len(self.commits) > 0

    @property
    def has_enough(self) -> bool:
        """As link.Publisher.has_enough."""
        return self.commits.has_enough()

    def hurry(self) -> None:
        """As link.Publisher.hurry."""
        if self.commits.is_due and self._is_crowded:
            self._commit_if_free()

    def _refuse_all(
        self,
        queue: Queue,
        producer: bytes | None,
        sequence: int | None,
        resolved: int,
        count: int,
    ) -> Refused | None:
        if not self.commits.is_calm:
            refused = self.commits.refusal(self._route(queue))
            if refused is not None:
                return refused
        if (  # where even one who holds all of it would have room, nobody looks whose it is
            not has_room(
                self.pending_messages, count, self.pending_messages, limits.PENDING_MESSAGES_MAX
            )
            or not has_room(self.pending_bytes, 0, self.pending_bytes, limits.PENDING_BYTES_MAX)
            or self._is_crowded
        ) and not self._has_room(self._route(queue), count):
            return Refused("overloaded", "too many messages wait for the storage", 0.1)
        if sequence is None:
            return None
        return refused_sequences(producer, sequence, resolved, count)

    def _has_room(self, route: Route, count: int) -> bool:
        held, size = route.pending_messages, route.pending_bytes
        if self.commits.has_too_much(route.queue.queue_id, weight(held, size)):
            return False
        messages, taken = self.pending_messages, self.pending_bytes
        return (
            has_room(held, count, messages, limits.PENDING_MESSAGES_MAX)
            and has_room(size, 0, taken, limits.PENDING_BYTES_MAX)
            and self.commits.has_room(route, count, messages, taken)
        )

    def _accept(
        self, answer: Answer, producer: bytes | None, sequence: int | None, resolved: int
    ) -> None:
        """Put each partition's run into its record."""
        queue, route = answer.queue, self._route(answer.queue)
        context = (producer, resolved) if producer is not None and sequence is not None else None
        messages = size = 0
        try:
            for number, run in cut(answer, route, self._orders, context, sequence or 0).items():
                if len(queue.clusters) < 2 or self._has_lane(route, number, run, messages, size):
                    messages += len(run.indexes)
                    size += self._add(route, route.partitions[number], run)
        finally:  # what stands in a record is given back when that is answered
            self.pending_messages += messages
            self.pending_bytes += size
            self._waiting += messages
            route.pending_messages += messages
            route.pending_bytes += size
            answer.bytes += size

    def _has_lane(self, route: Route, number: int, run: Run, messages: int, size: int) -> bool:
        """Of a queue at several clusters: whether that of these messages takes them, behind so many
        of so many bytes of the same publish."""
        held = (self.pending_messages + messages, self.pending_bytes + size)
        refused = self.commits.refusal_at(route.partitions[number], route, run, *held)
        if refused is None:
            return True
        for index in run.indexes:
            run.answer.fail(index, refused)
            if run.context is not None:
                key, sequence = run.answer.messages[index].key, run.sequence + index
                self._orders.refused(run.context[0], route, key, sequence, refused)
        return False

    def _add(self, route: Route, partition: Partition, run: Run) -> int:
        """Put a run into the open record of its partition, in pieces where it is too long. Returns
        its bytes."""
        count, size = len(run.encoded), sum(map(len, run.encoded))
        record = self._open.get(partition)
        if record is None:
            record = self._begin(route, partition, run.answer)
        elif is_full(record.builder, size, self._record_bytes_max):
            self._closed.append((partition, record))
            record = self._begin(route, partition, run.answer)
        room = limits.RECORD_MESSAGES_MAX - len(record.builder)
        if count <= room and size <= limits.RECORD_BYTES_MAX:
            record.take(run, size)
            return size
        first = 0
        while first < count:
            if first:
                self._closed.append((partition, record))
                record = self._begin(route, partition, run.answer)
                room = limits.RECORD_MESSAGES_MAX
            last = min(first + room, piece_end(run.encoded, first))
            piece = run.piece(first, last)
            record.take(piece, sum(map(len, piece.encoded)))
            first = last
        return size

    def _begin(self, route: Route, partition: Partition, answer: Answer) -> OpenRecord:
        lane = self.commits.pending(partition, route)
        record = self._open[partition] = OpenRecord(route, lane, answer)
        return record

    def _route(self, queue: Queue) -> Route:
        route = self._routes.get(queue.queue_id)
        if route is None or route.ring.epoch != queue.ring_epoch:
            self.forget_queue(queue.queue_id)
            counted = self._counting.queue(queue.queue_id)
            route = Route(queue, counted, self.places, self._remembered)
            self._routes[queue.queue_id] = route
        route.queue = queue
        return route

    def forget_queue(self, queue_id: str) -> None:
        """The queue is deleted, or its ring is another one."""
        route = self._routes.pop(queue_id, None)
        if route is not None:
            route.forget()

    # --- Sending order (R7) --------------------------------------------------------------------

    def hold_up(self, partition: Partition, header: Header) -> None:
        """As Owner.hold_up. What waits there already, of the same producers, would overtake it with
        the next commit: it is answered now."""
        self._orders.not_stored(partition, header)
        held = {producer for producer, _ in header.producers}
        for one in [*self._closed, *self._open.items()]:
            if one[0] == partition and held:
                self._withdraw(*one, held)

    def _withdraw(self, partition: Partition, record: OpenRecord, held: set[bytes]) -> None:
        """Answer what waits there, unless it has nothing of these producers."""
        _, _, header = record.builder.close(
            record_id=bytes(16), published_unix_ms=0, ring_epoch=0, tenant=0
        )
        if held.isdisjoint(producer for producer, _ in header.producers):
            return
        if self._open.get(partition) is record:
            del self._open[partition]
        else:
            self._closed.remove((partition, record))
        self._orders.not_stored(partition, header)
        self._waiting -= len(record.builder)
        self.released(record)
        record.failed(Refused("storage_unavailable", "what came before it was not stored"))

    # --- Committing ----------------------------------------------------------------------------

    def _commit_if_free(self) -> None:
        self.commits.is_due = False
        if not (self._open or self._closed) or not self.commits.admits(self._waiting):
            return
        left = self.commits.begin([*self._closed, *self._open.items()])
        # What is shared goes with commits record by record.
        self._record_bytes_max = (
            limits.RECORD_BYTES_SHARED if self.has_company else limits.RECORD_BYTES_MAX
        )
        self._is_crowded = self.commits.is_crowded()
        self._closed, self._open = [], {}
        self._waiting = 0
        for partition, record in left:
            self._waiting += len(record.builder)
            before = self._open.pop(partition, None)
            if before is not None:
                self._closed.append((partition, before))
            self._open[partition] = record

    def ended(self) -> None:
        """As Owner.ended."""
        if (self._open or self._closed) and not self.commits.is_due:
            # What uvloop has read since the commit was answered goes with this one.
            self._commit_if_free()

    def placed(self, placed: Placed) -> None:
        """As Owner.placed."""
        self._log.certified(placed)

    def released(self, record: OpenRecord) -> None:
        """As Owner.released."""
        count, route = len(record.builder), record.route
        self.pending_messages -= count
        self.pending_bytes -= record.size
        route.pending_messages -= count
        route.pending_bytes -= record.size
        record.lane.messages -= count
        record.lane.bytes -= record.size

    async def drain(self) -> None:
        """Wait until everything that was accepted has its answer."""
        while self._open or self._closed or len(self.commits):
            self._commit_if_free()
            await self.commits.wait()
