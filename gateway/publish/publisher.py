"""The publisher: messages of all producers in, records by group commit to the storage, answers out.

1. `submit` takes a `PendingPublish`, or refuses all of it.
2. `cut` makes its runs, one for each partition that its messages go to: each message is checked,
   routed, and encoded, once.
3. A run goes to the open record of its partition (`gateway.publish.batch`). The messages of all
   producers that wait at this moment and go to one partition become one record.
4. A commit takes the open records (`gateway.publish.lanes`, `gateway.publish.commits`). No timer is
   involved: a commit starts as soon as there is something to commit, and what arrives while commits
   are under way makes the next one larger.

`SendingOrders` keeps the order of a producer's messages: a message that this gateway refuses holds
up what is behind it (R7), by the rule of `push.producer_order`, for each producer at each
partition. The storage does the same for what it refuses.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from gateway.counters import Counters, HitRate
from gateway.deliverylog.log import OFF, CommittedOrigins, DeliveryLog
from gateway.publish.batch import (
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
from gateway.publish.tombstones import Tombstones
from metadata.catalog import Queue
from push import limits
from push.commit_sharing import FairShare, has_room
from push.errors import Refused, TocsinError
from push.message import Message, check_message, encode_message, encode_plain
from push.places import Partition
from push.producer_order import SendingOrder
from push.record import Header
from push.storage_port import Storage

ORDERS_MAX: Final = 10_000
"""Beyond it those held up longest are forgotten."""


class SendingOrders:
    """The sending order of each producer at each partition, where something is held up (R7)."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, Partition], SendingOrder] = {}
        """Empty as a rule; then nothing is to be checked."""

    def check(self, producer: bytes, partition: Partition, sequence: int, resolved: int) -> None:
        """Check that a message may be stored. Raises Refused(out_of_sequence): one before it was
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
        """Hold up what comes behind a message that was refused here.

        A message without a key, or with a key that cannot be, has nothing behind it.
        """
        if key and len(key) <= limits.KEY_BYTES_MAX and error.code.name != "out_of_sequence":
            self._hold(producer, route.partitions[route.place(key)[0]], sequence)

    def not_stored(self, partition: Partition, header: Header) -> None:
        """Hold up what comes behind a record that was not stored, or nobody knows."""
        for index, sequence, hashed in zip(
            header.producer_indexes, header.sequences, header.key_hashes, strict=False
        ):
            if index and hashed:
                self._hold(header.producers[index - 1][0], partition, sequence)

    def _hold(self, producer: bytes, partition: Partition, sequence: int) -> None:
        while len(self.held) >= ORDERS_MAX:
            del self.held[next(iter(self.held))]
        self.held.setdefault((producer, partition), SendingOrder()).refuse(sequence)


def cut(publish: PendingPublish, route: Route, orders: SendingOrders) -> dict[int, Run]:
    """Return the runs of a publish by number of partition. A refused message has its outcome, and
    is in none of them."""
    settings, encoded = publish.queue.settings, None
    if not publish.is_checked and publish.names is None:
        encoded = encode_plain(publish.messages, settings.message_bytes_max)
    if (
        encoded is None
        or not publish.keys.is_all
        or settings.message_ttl_s is not None
        or (publish.context is not None and orders.held)
    ):
        return _Cut(publish, route, orders).runs(encoded)
    return _Cut(publish, route, orders).plain(encoded)


class _Cut:
    """One publish, and how far it is cut."""

    def __init__(self, publish: PendingPublish, route: Route, orders: SendingOrders) -> None:
        self._publish = publish
        self._route = route
        self._orders = orders
        self._context = publish.context
        self._sequence = publish.sequence or 0
        self._spread: int | None = None
        self._keyed = 0

    def plain(self, encoded: Sequence[bytes]) -> dict[int, Run]:
        """Cut messages that no rule can refuse any more."""
        publish, route, runs = self._publish, self._route, dict[int, Run]()
        keys, keyless = route.keys, 0
        for index, message in enumerate(publish.messages):
            key = message.key
            if key is None:
                keyless += 1
                number, hashed = self._place(index, None, None)
            else:
                number, hashed = keys.get(key) or route.place(key)
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(publish)
            run.encoded.append(encoded[index])
            run.hashes.append(hashed)
            run.indexes.append(index)
        route.count_lookups(len(encoded) - keyless)
        return runs

    def runs(self, encoded: Sequence[bytes] | None) -> dict[int, Run]:
        """Cut messages, checking each. `encoded`: by `encode_plain`, if that took them."""
        publish = self._publish
        settings, names = publish.queue.settings, publish.names
        now_ms, runs = time.time() * 1000, dict[int, Run]()
        is_checked = publish.is_checked or encoded is not None
        for index, message in enumerate(publish.letters or publish.messages):
            name = message.id if names is None else names[index]
            try:
                if not publish.keys.is_all and not publish.keys.allow(message.key):
                    raise not_allowed(publish.queue, message.key)
                if not is_checked:
                    check_message(publish.messages[index], settings.message_bytes_max)
                number, hashed = self._place(index, message.key, name)
            except TocsinError as error:
                self._refuse(index, message.key, error)
                continue
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(publish)
            ttl_s = settings.message_ttl_s
            if ttl_s is not None or name is not None or message.ttl_s is not None:
                digest = None
                if name is not None:
                    moved = names is not None
                    digest = id_digest(publish.queue, message.key, name, moved=moved)
                expires = expires_unix_ms(message, ttl_s, now_ms)
                if run.marks is None:
                    run.marks = []
                run.marks.append((len(run.indexes), digest, expires))
            text = encode_message(message) if encoded is None else encoded[index]
            run.encoded.append(text)
            run.hashes.append(hashed)
            run.indexes.append(index)
        self._route.count_lookups(self._keyed)
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
        self._publish.fail(index, error)
        if self._context is not None:
            at = self._sequence + index
            self._orders.refused(self._context[0], self._route, key, at, error)


def not_allowed(queue: Queue, key: str | None) -> Refused:
    """Return the refusal of a message that the right to publish does not cover."""
    which = "messages without a key" if key is None else f"the key {key!r}"
    return Refused(
        "forbidden", f"the right to publish to {queue.name!r} is one on some keys, not on {which}"
    )


def id_digest(queue: Queue, key: str | None, name: str, *, moved: bool = False) -> bytes:
    """Return what deduplication remembers of an id: 256 bits over queue, key and id (R8).
    `moved`: the name is not a client's, and equals none that a client may give."""
    encoded = (key or "").encode()
    scope = b"%d:%b" % (len(encoded), encoded) if key is not None else b"-"
    return blake2b(
        scope + b"\0" + name.encode(),
        digest_size=32,
        key=queue.hash_key,
        person=b"moved" if moved else b"",
    ).digest()


def expires_unix_ms(message: Message, queue_ttl_s: float | None, now_ms: float) -> int:
    """Return when a message expires: the earlier of its own and the queue's TTL; 0: never."""
    ttls = [ttl for ttl in (message.ttl_s, queue_ttl_s) if ttl is not None]
    return int(now_ms + min(ttls) * 1000) if ttls else 0


class Publisher:
    """The messages that wait for a commit, of all queues. Everything happens on one event loop."""

    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        counting: Counters,
        is_unmade: Callable[[Queue], bool],
        tombstones: Tombstones,
        *,
        log: DeliveryLog = OFF,
        in_parts: bool = False,
    ) -> None:
        """`is_unmade`: whether a queue that the storage does not have is yet to be made there.
        `in_parts`: as CommitLanes."""
        self.is_unmade = is_unmade
        self._counting = counting
        self._tombstones = tombstones
        self._log = log
        self._routes: dict[str, Route] = {}
        self._key_count = KeyCount()
        self._open: dict[Partition, OpenRecord] = {}
        self._closed: list[tuple[Partition, OpenRecord]] = []
        self._share: FairShare[str] = FairShare()
        self.commits = CommitLanes(storage, tail, self, self._share, in_parts=in_parts)
        self.is_due = False
        """Commits begin in the next turn of the loop, where one is admitted."""
        self._orders = SendingOrders()
        self._record_bytes_max = limits.RECORD_BYTES_MAX
        self._is_crowded = False
        """As it was at the last commit: whether the owners of messages have to be told apart."""
        self._waiting = 0
        """Number of messages that no commit has taken yet."""
        self.pending_messages = 0
        self.pending_bytes = 0
        self.places = HitRate()

    # --- In ------------------------------------------------------------------------------------

    def submit(self, publish: PendingPublish) -> None:
        """Publish; it is answered exactly once, perhaps before this returns."""
        if self._tombstones.by_queue:
            self._redirect(publish)
        messages, origin = publish.messages, publish.origin
        if origin is None:
            publish.origin = self._log.internal_origin(publish.queue, len(messages))
        refused = self._refuse_all(publish)
        if refused is not None:
            self._fail(publish, refused)
            return
        before = self.pending_messages
        self._accept(publish)
        refused_count = len(messages) - (self.pending_messages - before)
        if self.pending_messages > before and not self.is_due:
            self.is_due = True
            asyncio.get_running_loop().call_soon(self._commit_if_free)
        if refused_count or not messages:
            self._route(publish.queue).counted.refused += refused_count
            publish.settle(refused_count)

    def _redirect(self, publish: PendingPublish) -> None:
        """Publish to the dead letters of a queue that was deleted; of another: change nothing."""
        tombstone = self._tombstones.by_queue.get(publish.queue.queue_id)
        if tombstone is not None:
            tombstone.redirect(publish)

    def _fail(self, publish: PendingPublish, refused: Refused) -> None:
        """Refuse all of it."""
        queue, producer, sequence = publish.queue, publish.producer, publish.sequence
        route = self._route(queue)
        if producer is not None and sequence is not None and refused.code.retry:
            for at, message in enumerate(publish.messages, sequence):
                self._orders.refused(producer, route, message.key, at, refused)
        route.counted.refused += len(publish.messages)
        publish.fail_all(refused)
        publish.settle(len(publish.messages))

    @property
    def has_company(self) -> bool:
        """Whether several queues publish, as far as the last second tells."""
        return self._share.is_shared(now=asyncio.get_running_loop().time())

    @property
    def is_crowded(self) -> bool:
        """Whether queues flood and have others beside them, as far as the last second tells."""
        return self._share.is_crowded(now=asyncio.get_running_loop().time())

    @property
    def is_storing(self) -> bool:
        """Whether a commit of what was published is under way."""
        return len(self.commits) > 0

    @property
    def has_enough(self) -> bool:
        """Whether it is crowded, and of those that flood more waits than the next commits take, or
        nothing of it begins now."""
        return self.commits.has_enough()

    def hurry(self) -> None:
        """Commit now, and not in the next turn of the loop, if it is crowded: something was read,
        and the other clients' publishes do not wait until all of them have been read."""
        if self.is_due and self._is_crowded:
            self._commit_if_free()

    def _refuse_all(self, publish: PendingPublish) -> Refused | None:
        """Return why all of a publish is refused; None: it is not."""
        count = len(publish.messages)
        if not self.commits.is_calm:
            refused = self.commits.refusal(self._route(publish.queue))
            if refused is not None:
                return refused
        if (  # where even one who holds all of it would have room, nobody looks whose it is
            not has_room(
                self.pending_messages, count, self.pending_messages, limits.PENDING_MESSAGES_MAX
            )
            or not has_room(self.pending_bytes, 0, self.pending_bytes, limits.PENDING_BYTES_MAX)
            or self._is_crowded
        ) and not self._has_room(self._route(publish.queue), count):
            return Refused("overloaded", "too many messages wait for the storage", 0.1)
        if publish.sequence is None:
            return None
        return refused_sequences(publish.producer, publish.sequence, publish.resolved, count)

    def _has_room(self, route: Route, count: int) -> bool:
        held, size = route.pending_messages, route.pending_bytes
        now = asyncio.get_running_loop().time()
        if self._share.has_too_much(route.queue.queue_id, weight(held, size), now=now):
            return False
        messages, taken = self.pending_messages, self.pending_bytes
        return (
            has_room(held, count, messages, limits.PENDING_MESSAGES_MAX)
            and has_room(size, 0, taken, limits.PENDING_BYTES_MAX)
            and self.commits.has_room(route, count, messages, taken)
        )

    def _accept(self, publish: PendingPublish) -> None:
        """Put each partition's run into its record."""
        queue, route = publish.queue, self._route(publish.queue)
        if publish.producer is not None and publish.sequence is not None:
            publish.context = (publish.producer, publish.resolved)
        messages = size = 0
        try:
            for number, run in cut(publish, route, self._orders).items():
                if len(queue.clusters) < 2 or self._has_lane(route, number, run, messages, size):
                    messages += len(run.indexes)
                    size += self._add(route, route.partitions[number], run)
        finally:  # what stands in a record is given back when that is answered
            self.pending_messages += messages
            self.pending_bytes += size
            self._waiting += messages
            route.pending_messages += messages
            route.pending_bytes += size
            publish.bytes += size

    def _has_lane(self, route: Route, number: int, run: Run, messages: int, size: int) -> bool:
        """Whether the cluster of these messages takes them, for a queue at several clusters.
        `messages` of `size` bytes of the same publish are before them."""
        held = (self.pending_messages + messages, self.pending_bytes + size)
        refused = self.commits.refusal_at(route.partitions[number], route, run, *held)
        if refused is None:
            return True
        for index in run.indexes:
            run.publish.fail(index, refused)
            if run.context is not None:
                key, sequence = run.publish.messages[index].key, run.sequence + index
                self._orders.refused(run.context[0], route, key, sequence, refused)
        return False

    def _add(self, route: Route, partition: Partition, run: Run) -> int:
        """Put a run into the open record of its partition, in pieces where it is too long. Returns
        its bytes."""
        count, size = len(run.encoded), sum(map(len, run.encoded))
        record = self._open.get(partition)
        if record is None:
            record = self._begin(route, partition, run.publish)
        elif is_full(record.builder, size, self._record_bytes_max):
            self._closed.append((partition, record))
            record = self._begin(route, partition, run.publish)
        room = limits.RECORD_MESSAGES_MAX - len(record.builder)
        if count <= room and size <= limits.RECORD_BYTES_MAX:
            record.take(run, size)
            return size
        first = 0
        while first < count:
            if first:
                self._closed.append((partition, record))
                record = self._begin(route, partition, run.publish)
                room = limits.RECORD_MESSAGES_MAX
            last = min(first + room, piece_end(run.encoded, first))
            piece = run.piece(first, last)
            record.take(piece, sum(map(len, piece.encoded)))
            first = last
        return size

    def _begin(self, route: Route, partition: Partition, publish: PendingPublish) -> OpenRecord:
        backlog = self.commits.backlog(partition, route)
        record = self._open[partition] = OpenRecord(route, backlog, publish)
        return record

    def _route(self, queue: Queue) -> Route:
        route = self._routes.get(queue.queue_id)
        if route is None or route.ring.epoch != queue.ring_epoch:
            self.forget_queue(queue.queue_id)
            counted = self._counting.queue(queue.queue_id)
            route = Route(queue, counted, self.places, self._key_count)
            self._routes[queue.queue_id] = route
        route.queue = queue
        return route

    def forget_queue(self, queue_id: str) -> None:
        """Forget the routes of a queue that is deleted, or has another ring."""
        route = self._routes.pop(queue_id, None)
        if route is not None:
            route.forget()

    # --- Sending order (R7) --------------------------------------------------------------------

    def hold_up(self, partition: Partition, header: Header) -> None:
        """Hold up the producers of a record that was not stored, or nobody knows (R7). Their
        messages that wait there already would overtake it with the next commit: they are refused
        now."""
        self._orders.not_stored(partition, header)
        held = {producer for producer, _ in header.producers}
        for one in [*self._closed, *self._open.items()]:
            if one[0] == partition and held:
                self._withdraw(*one, held)

    def _withdraw(self, partition: Partition, record: OpenRecord, held: set[bytes]) -> None:
        """Refuse a waiting record, unless it has nothing of these producers."""
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
        self.release(record)
        record.fail(Refused("storage_unavailable", "what came before it was not stored"))

    # --- Committing ----------------------------------------------------------------------------

    def _commit_if_free(self) -> None:
        self.is_due = False
        if not (self._open or self._closed) or not self.commits.admits(self._waiting):
            return
        left = self.commits.begin([*self._closed, *self._open.items()])
        # What is shared goes with commits record by record.
        self._record_bytes_max = (
            limits.RECORD_BYTES_SHARED if self.has_company else limits.RECORD_BYTES_MAX
        )
        self._is_crowded = self.is_crowded
        self._closed, self._open = [], {}
        self._waiting = 0
        for partition, record in left:
            self._waiting += len(record.builder)
            before = self._open.pop(partition, None)
            if before is not None:
                self._closed.append((partition, before))
            self._open[partition] = record

    def on_free(self) -> None:
        """Begin the next commit, if something waits."""
        if (self._open or self._closed) and not self.is_due:
            # What uvloop has read since the commit was answered goes with this one.
            self._commit_if_free()

    def on_placed(self, placed: CommittedOrigins) -> None:
        """Write a commit's messages into the delivery log."""
        self._log.add_commit(placed)

    def release(self, record: OpenRecord) -> None:
        """Count a record's messages as waiting no longer."""
        count, route = len(record.builder), record.route
        self.pending_messages -= count
        self.pending_bytes -= record.size
        route.pending_messages -= count
        route.pending_bytes -= record.size
        record.backlog.messages -= count
        record.backlog.bytes -= record.size

    async def drain(self) -> None:
        """Wait until everything that was accepted has its answer."""
        while self._open or self._closed or len(self.commits):
            self._commit_if_free()
            await self.commits.wait()
