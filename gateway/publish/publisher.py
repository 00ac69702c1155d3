"""The publisher: messages of all producers in, records by group commit to the storage, answers out.

The messages of all producers that wait at this moment and go to one partition become one record.
Nothing waits for a timer: a commit starts as soon as there is something to commit, and what
arrives while commits are under way makes the next one larger. Each message is encoded once.

How a publish is cut into runs, one for each partition that its messages go to: each message
checked, routed and encoded.

What this gateway refuses itself holds up what is behind it (R7); the storage does the same for
what it refuses. The rule is `push.producer_order`, for each producer at each partition.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from gateway.counters import Counters, HitRate
from gateway.deliverylog.log import OFF, DeliveryLog
from gateway.deliverylog.spans import CommittedOrigins, PublishOrigin
from gateway.publish.batch import (
    NO_ANSWER,
    Context,
    KeyCount,
    OpenRecord,
    PendingPublish,
    Route,
    Run,
    is_full,
    piece_end,
    refused_sequences,
    weight,
)
from gateway.publish.lanes import CommitLanes
from gateway.publish.tail import Tail
from gateway.publish.tombstones import Tombstone
from metadata.catalog import Queue
from metadata.rights import ALL_KEYS, KeyScope
from push import limits
from push.commit_sharing import has_room
from push.errors import Refused, TocsinError
from push.message import Message, check_message, encode_message, encode_plain
from push.places import Partition
from push.producer_order import SendingOrder
from push.record import Header
from push.storage_port import Storage

ORDERS_MAX: Final = 10_000
"""Beyond it those held up longest are forgotten."""


class SendingOrders:
    """See the module."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, Partition], SendingOrder] = {}
        """Of those of whom something is held up; as a rule empty, and nothing is to be checked."""

    def check(self, producer: bytes, partition: Partition, sequence: int, resolved: int) -> None:
        """That this message may be stored. Raises Refused(out_of_sequence): one before it was
        refused, and has not come again."""
        order = self.held.get((producer, partition))
        if order is None:
            return
        if not order.admits(sequence, resolved):
            raise Refused("out_of_sequence")
        order.accept(sequence)
        if not order:
            del self.held[producer, partition]

    def refused(
        self, producer: bytes, route: Route, key: str | None, sequence: int, error: TocsinError
    ) -> None:
        """A message was refused here.

        One without a key has nothing behind it, nor has one with a key that cannot be.
        """
        if key and len(key) <= limits.KEY_BYTES_MAX and error.code.name != "out_of_sequence":
            self._hold(producer, route.partitions[route.place(key)[0]], sequence)

    def not_stored(self, partition: Partition, header: Header) -> None:
        """Nothing of a record of this header was stored, or nobody knows."""
        for index, sequence, hashed in zip(
            header.producer_indexes, header.sequences, header.key_hashes, strict=False
        ):
            if index and hashed:
                self._hold(header.producers[index - 1][0], partition, sequence)

    def _hold(self, producer: bytes, partition: Partition, sequence: int) -> None:
        while len(self.held) >= ORDERS_MAX:
            del self.held[next(iter(self.held))]
        self.held.setdefault((producer, partition), SendingOrder()).refuse(sequence)


def cut(
    answer: PendingPublish,
    route: Route,
    orders: SendingOrders,
    context: Context | None,
    sequence: int,
) -> dict[int, Run]:
    """The runs of a publish by number of partition. What is refused has its outcome, and is in
    none of them."""
    settings, encoded = answer.queue.settings, None
    if not answer.checked and answer.names is None:
        encoded = encode_plain(answer.messages, settings.message_bytes_max)
    if (
        encoded is None
        or not answer.allowed.is_all
        or settings.message_ttl_s is not None
        or (context is not None and orders.held)
    ):
        return _Cut(answer, route, orders, context, sequence).runs(encoded)
    return _Cut(answer, route, orders, context, sequence).plain(encoded)


class _Cut:
    """One publish, and how far it is cut."""

    def __init__(
        self,
        answer: PendingPublish,
        route: Route,
        orders: SendingOrders,
        context: Context | None,
        sequence: int,
    ) -> None:
        self._answer, self._route, self._orders = answer, route, orders
        self._context, self._sequence = context, sequence
        self._spread: int | None = None
        self._keyed = 0

    def plain(self, encoded: Sequence[bytes]) -> dict[int, Run]:
        """Of messages that no rule can refuse any more."""
        answer, route, runs = self._answer, self._route, dict[int, Run]()
        keys, keyless = route.keys, 0
        for index, message in enumerate(answer.messages):
            key = message.key
            if key is None:
                keyless += 1
                number, hashed = self._place(index, None, None)
            else:
                number, hashed = keys.get(key) or route.place(key)
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(answer, self._context, self._sequence)
            run.encoded.append(encoded[index])
            run.hashes.append(hashed)
            run.indexes.append(index)
        route.looked_up(len(encoded) - keyless)
        return runs

    def runs(self, encoded: Sequence[bytes] | None) -> dict[int, Run]:
        """Of messages each of which is looked at. `encoded`: by `encode_plain`, where it took
        them."""
        answer, context = self._answer, self._context
        settings, names = answer.queue.settings, answer.names
        now_ms, runs = time.time() * 1000, dict[int, Run]()
        is_checked = answer.checked or encoded is not None
        for index, message in enumerate(answer.letters or answer.messages):
            name = message.id if names is None else names[index]
            try:
                if not answer.allowed.is_all and not answer.allowed.allow(message.key):
                    raise not_allowed(answer.queue, message.key)
                if not is_checked:
                    check_message(answer.messages[index], settings.message_bytes_max)
                number, hashed = self._place(index, message.key, name)
            except TocsinError as error:
                self._refuse(index, message.key, error)
                continue
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(answer, context, self._sequence)
            ttl_s = settings.message_ttl_s
            if ttl_s is not None or name is not None or message.ttl_s is not None:
                digest = None
                if name is not None:
                    moved = names is not None
                    digest = id_digest(answer.queue, message.key, name, moved=moved)
                expires = expires_unix_ms(message, ttl_s, now_ms)
                if run.marks is None:
                    run.marks = []
                run.marks.append((len(run.indexes), digest, expires))
            text = encode_message(message) if encoded is None else encoded[index]
            run.encoded.append(text)
            run.hashes.append(hashed)
            run.indexes.append(index)
        self._route.looked_up(self._keyed)
        return runs

    def _place(self, index: int, key: str | None, name: str | None) -> tuple[int, int]:
        """(partition, hash of the key). Raises Refused: what is before it has to come first."""
        route, context, hashed = self._route, self._context, 0
        if key is not None:
            self._keyed += 1
            number, hashed = route.keys.get(key) or route.place(key)
        elif name is not None:
            number = route.id_place(name)
        elif context is not None:
            number = route.sequence_place(context[0], self._sequence + index)
        else:
            if self._spread is None:
                self._spread = route.spread_place()
            number = self._spread
        if context is not None and self._orders.held:
            place = route.partitions[number]
            self._orders.check(context[0], place, self._sequence + index, context[1])
        return number, hashed

    def _refuse(self, index: int, key: str | None, error: TocsinError) -> None:
        self._answer.fail(index, error)
        if self._context is not None:
            at = self._sequence + index
            self._orders.refused(self._context[0], self._route, key, at, error)


def not_allowed(queue: Queue, key: str | None) -> Refused:
    """What becomes of a message that the right to publish does not cover."""
    which = "messages without a key" if key is None else f"the key {key!r}"
    return Refused(
        "forbidden", f"the right to publish to {queue.name!r} is one on some keys, not on {which}"
    )


def id_digest(queue: Queue, key: str | None, name: str, *, moved: bool = False) -> bytes:
    """What deduplication remembers of a client's id: 256 bits over queue, key and id (R8).
    `moved`: the name is not a client's, and equals none that a client may give."""
    encoded = (key or "").encode()
    scope = b"%d:%b" % (len(encoded), encoded) if key is not None else b"-"
    return blake2b(
        scope + b"\0" + name.encode(),
        digest_size=32, key=queue.hash_key, person=b"moved" if moved else b"",
    ).digest()  # fmt: skip


def expires_unix_ms(message: Message, queue_ttl_s: float | None, now_ms: float) -> int:
    """When it expires: the earlier of its own and the queue's TTL; 0: never."""
    ttls = [ttl for ttl in (message.ttl_s, queue_ttl_s) if ttl is not None]
    return int(now_ms + min(ttls) * 1000) if ttls else 0


class Publisher:
    """See the module."""

    def __init__(
        self, storage: Storage, tail: Tail, counting: Counters, is_unmade: Callable[[Queue], bool],
        log: DeliveryLog = OFF, *, in_parts: bool = False,
    ) -> None:  # fmt: skip
        """`is_unmade`: whether a queue that the storage does not have is yet to be made there.
        `in_parts`: as CommitLanes."""
        self.is_unmade = is_unmade
        self._counting, self._log = counting, log
        self._routes: dict[str, Route] = {}
        self._remembered = KeyCount()
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
        self.burials: dict[str, Tombstone] = {}
        """By ids of queues that were deleted."""

    # --- In ------------------------------------------------------------------------------------

    def submit(
        self,
        queue: Queue,
        messages: Sequence[Message],
        answer: Callable[[PendingPublish], None],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
        resolved: int = 0,
        checked: bool = False,
        names: Sequence[str | None] | None = None,
        keys: KeyScope = ALL_KEYS,
        origin: PublishOrigin | None = None,
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
        publish = PendingPublish(
            queue, messages, [NO_ANSWER] * len(messages), remaining=len(messages)
        )
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
        self, answer: PendingPublish, producer: bytes | None, sequence: int | None, resolved: int
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

    def _begin(self, route: Route, partition: Partition, answer: PendingPublish) -> OpenRecord:
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

    def placed(self, placed: CommittedOrigins) -> None:
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
