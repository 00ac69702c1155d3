"""Batching: publishes are cut into runs, runs fill open records, records answer their publishes.

PendingPublish   one publish, until each of its messages has an outcome
Run              its messages that go to one partition; `cut` checks, routes and encodes each once
OpenRecord       the runs of all publishes that go to one partition with the next commit
Commit           the records that go to the storage together, and its answer

`SendingOrders` keeps the order of a producer's messages. A message that this gateway refuses holds
up those behind it (R7), by the rule of `push.producer_order`, for each producer at each partition.
The storage does the same for messages that it refuses.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.accounting.usage import UsageCounter
from gateway.counters import HitRate, PublishCounters
from gateway.deliverylog.log import PublishOrigin
from gateway.publish.clock import BelievedClock
from metadata.catalog import Queue
from metadata.rights import ALL_KEYS, KeyScope, not_allowed
from push import limits
from push.commit_sharing import commit_weight
from push.due import DueTicket, due_unix_ms, id_hash, scheduled, ticket_text
from push.errors import Refused, TocsinError, Unknown
from push.message import (
    Message,
    check_message,
    encode_message,
    encode_plain,
    expires_unix_ms,
    id_digest,
)
from push.places import Partition
from push.producer_order import SendingOrder
from push.record import Header, RecordBuilder
from push.ring import Ring, hasher
from push.storage_port import Append, Appended, Lane, NotStored, Scheduled, Storage, Stored

logger = logging.getLogger("tocsin.publisher")
ROUTES_MAX: Final = 100_000
"""Largest number of keys of one queue whose hash and partition are remembered."""
ROUTES_IN_ALL_MAX: Final = 1_000_000
"""Largest number of keys of all queues together whose hash and partition are remembered, some 200
MB."""
LEFT_OUT_MAX: Final = 5 * ROUTES_MAX
"""Number of look-ups of keys that were not remembered for want of room, after which a queue forgets
all its keys and begins anew."""
SPREAD_RUN: Final = 256
"""Number of consecutive sequences whose messages, if they have no key and no id, go to one
partition, because few large records are cheaper than many small ones."""
ORDERS_MAX: Final = 10_000
"""Largest number of sending orders of producers at partitions. Beyond it those held up longest are
forgotten."""


Outcome = tuple[int, int] | tuple[int, int, bool] | DueTicket | TocsinError
"""Outcome of a message, as in a receipt: (partition, offset) if it is new, (partition, offset,
True) if it was stored before, its ticket if it is scheduled, or the error for which it is not
stored."""
Context = tuple[bytes, int]
"""(producer, resolved) of a publish with sequences."""
NO_ANSWER: Final = Unknown("no answer yet")
RECORD_ID_BYTES: Final = 16


# enforces: R5
class PendingPublish:
    """A publish, from its arrival until each of its messages has an outcome, in their order (R5).

    Its maker hands it to `Publisher.submit`, which answers it once, through `on_answer`.
    """

    __slots__ = (
        "bytes",
        "context",
        "durability",
        "generation",
        "is_checked",
        "is_plain",
        "keys",
        "letters",
        "messages",
        "names",
        "on_answer",
        "origin",
        "outcomes",
        "producer",
        "queue",
        "remaining",
        "resolved",
        "sequence",
    )

    def __init__(
        self,
        queue: Queue,
        messages: Sequence[Message],
        on_answer: Callable[["PendingPublish"], None],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
        resolved: int = 0,
        is_checked: bool = False,
        names: Sequence[str | None] | None = None,
        keys: KeyScope = ALL_KEYS,
        origin: PublishOrigin | None = None,
    ) -> None:
        self.queue = queue
        self.messages = messages
        self.on_answer: Callable[[PendingPublish], None] | None = on_answer
        """Called with this publish exactly once, when every message has its outcome, perhaps before
        `Publisher.submit` returns. None afterwards."""
        self.producer = producer
        """The producer in 16 bytes, or None. A publish with sequences and without a producer is
        refused."""
        self.sequence = sequence
        """The sequence of the first message; those of the others follow. None: the messages have no
        sequences."""
        self.resolved = resolved
        """Sequence below which everything was answered (R6)."""
        self.is_checked = is_checked
        """Whether the messages were accepted before and only move, so that they are not checked by
        `check_message` again."""
        self.names = names
        """Names by which deduplication knows the messages, in place of their ids. So a message that
        moves is stored once, even if its id is remembered (R8). None: it knows them by their
        ids."""
        self.keys = keys
        """The keys that may be published to. A message of another key is refused alone (P11)."""
        self.origin = origin
        """The entry of this publish for the delivery log. None: `Publisher.submit` makes an entry
        if the log is on."""
        self.outcomes: list[Outcome] = [NO_ANSWER] * len(messages)
        self.remaining = len(messages)
        """Number of messages without an outcome."""
        self.generation = 0
        self.durability: dict[str, object] = {}
        """Durability level and number of copies of the record that was completed last, for the
        receipt; empty if none was."""
        self.context: Context | None = None
        """Set by the publisher if the messages have sequences; None otherwise."""
        self.letters: Sequence[Message] | None = None
        """Dead letters that are stored in place of `messages` if the queue was deleted; None if it
        was not."""
        self.bytes = 0
        """Size as JSON of the messages that went on to the storage."""
        self.is_plain = True
        """Whether no message has failed, and all records of its messages had new messages only."""

    def fail(self, index: int, error: TocsinError) -> None:
        """Set the outcome of a message that is not stored, or whose fate is unknown."""
        self.outcomes[index] = error
        self.is_plain = False

    def fail_all(self, error: TocsinError) -> None:
        """Set this outcome for every message, because none is stored."""
        self.outcomes = [error] * len(self.messages)
        self.is_plain = False

    def count_in(self, counter: UsageCounter) -> None:
        """Add stored messages, duplicates and errors to a counter of usage."""
        if self.is_plain:  # nothing is looked at one by one
            counter.count_stored(len(self.outcomes), self.bytes)
            return
        for message, outcome in zip(self.messages, self.outcomes, strict=True):
            if isinstance(outcome, TocsinError):
                counter.count_refusal(outcome.code.name)
            elif is_duplicate(outcome):
                counter.duplicates += 1
            else:
                counter.count_stored(1, len(encode_message(message)))

    def ids(self, index: int) -> str:
        """Return the id of message `index`, by the client or made of its place (R1); "" if it has
        none and is not stored."""
        given = self.messages[index].id
        outcome = self.outcomes[index]
        if given is not None or isinstance(outcome, TocsinError):
            return given or ""
        if isinstance(outcome, DueTicket):
            return ticket_text(self.id_prefix, outcome.partition, outcome.number)
        return f"{self.id_prefix}{outcome[0]}-{outcome[1]}"

    @property
    def id_prefix(self) -> str:
        """The part of a message's id before partition, "-" and offset, if it has no own id."""
        return f"{self.queue.queue_id}-{self.generation}-"

    def settle(self, count: int) -> None:
        """Note `count` more outcomes; the last one calls `on_answer`."""
        self.remaining -= count
        if not self.remaining and self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            try:
                on_answer(self)
            except Exception:  # one producer's trouble must not cost the others their answers
                logger.exception("an answer to a publish could not be given")


def is_duplicate(outcome: tuple[int, int] | tuple[int, int, bool] | DueTicket) -> bool:
    """Whether a message was stored before."""
    return outcome.duplicate if isinstance(outcome, DueTicket) else len(outcome) > 2


class Run:
    """The messages of one publish that go to one partition, all of them at once, or all when they
    are due."""

    __slots__ = ("context", "due", "encoded", "hashes", "indexes", "marks", "publish", "sequence")

    def __init__(self, publish: PendingPublish) -> None:
        self.publish = publish
        self.context = publish.context
        self.sequence = publish.sequence or 0
        """The sequence of the publish's first message; 0 if its messages have no sequences."""
        self.encoded: list[bytes] = []
        self.hashes: list[int] = []
        """Hashes of the keys; 0 for a message without a key."""
        self.indexes: list[int] = []
        """The places of the messages in the publish, in order."""
        self.marks: list[tuple[int, bytes | None, int]] | None = None
        """(place in the run, digest of the id or None, expiry in unix milliseconds or 0) of the
        messages that have an id, a name or an expiry."""
        self.due: list[tuple[int, int]] = []
        """(due time in unix milliseconds, hash of the client id or 0) of each message; empty: they
        are not scheduled."""

    def piece(self, first: int, last: int) -> "Run":
        """Return a run of this run's messages first..last-1."""
        piece = Run(self.publish)
        piece.encoded, piece.hashes = self.encoded[first:last], self.hashes[first:last]
        piece.indexes = self.indexes[first:last]
        piece.marks = [
            (place - first, digest, expires)
            for place, digest, expires in self.marks or ()
            if first <= place < last
        ]
        piece.due = self.due[first:last]
        return piece


class Backlog:
    """The number of messages whose commit has not ended, and their size as JSON: those of one
    queue, of one lane or of all queues."""

    __slots__ = ("bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Number of those of a lane that no commit has taken yet."""


class KeyCount:
    """The number of keys that all routes of a gateway remember together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Route:
    """The routing of one queue: its ring, the places of keys that were looked up, and the number of
    its messages that wait."""

    __slots__ = (
        "_key_count",
        "_left_out",
        "_misses",
        "counters",
        "hash",
        "hit_rate",
        "keys",
        "partitions",
        "pending",
        "queue",
        "ring",
        "spread",
        "spread_members",
    )

    def __init__(
        self,
        queue: Queue,
        counters: PublishCounters | None = None,
        hit_rate: HitRate | None = None,
        key_count: KeyCount | None = None,
    ) -> None:
        self.hit_rate = hit_rate or HitRate()
        """Rate of look-ups in which a key's place was remembered; all queues share it."""
        self.queue = queue
        self.counters = counters or PublishCounters()
        self.pending = Backlog()
        """Messages of this queue whose commit has not ended."""
        self.ring = Ring(queue.ring_epoch, queue.members)
        self.hash = hasher(queue.hash_key)
        self.keys: dict[str, tuple[int, int]] = {}
        self._key_count = key_count or KeyCount()
        self._misses = 0
        """Misses that `hit_rate` does not have yet."""
        self._left_out = 0
        """Number of look-ups whose key was not remembered for want of room, since the last
        `forget`."""
        self.partitions = {n: Partition(queue.queue_id, n) for n in queue.members}
        self.spread_members = queue.members
        self.spread = 0

    def place(self, key: str) -> tuple[int, int]:
        """Return (partition, hash) of a key."""
        place = self.keys.get(key)
        if place is None:
            self._misses += 1
            hashed = self.hash(key)
            place = (self.ring.partition(hashed), hashed)
            self._remember(key, place)
        return place

    def _remember(self, key: str, place: tuple[int, int]) -> None:
        """Remember a key if there is room. If there is none, exchanging keys one by one costs more
        than it saves. After LEFT_OUT_MAX such look-ups the route begins anew, because the first
        keys are not wanted for ever."""
        if len(self.keys) < ROUTES_MAX and self._key_count.count < ROUTES_IN_ALL_MAX:
            self.keys[key] = place
            self._key_count.count += 1
        elif self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
        else:
            self.forget()

    def forget(self) -> None:
        """Forget all keys of this queue."""
        self._key_count.count -= len(self.keys)
        self._left_out = 0
        self.keys.clear()

    def count_lookups(self, count: int) -> None:
        """Add `count` look-ups of keys, all since the last call, to `hit_rate`."""
        misses, self._misses = self._misses, 0
        self.hit_rate.hits += count - misses
        self.hit_rate.misses += misses

    def spread_place(self) -> int:
        """Return the partition for all messages of a publish that have no key, id or sequence; the
        next publish gets the next partition. Few large records are cheaper than many small ones."""
        self.spread = (self.spread + 1) % len(self.spread_members)
        return self.spread_members[self.spread]

    # enforces: P4
    def id_place(self, message_id: str) -> int:
        """Return the partition of a message without a key, by its id. Sent again, it goes to the
        partition that remembers it, whatever was sent in between (P4)."""
        return self.ring.partition(self.hash(message_id))

    def sequence_place(self, producer: bytes, sequence: int) -> int:
        """Return the partition of a message without key and id, by its sequence."""
        return self.spread_members[
            (sequence // SPREAD_RUN + producer[0]) % len(self.spread_members)
        ]


class SendingOrders:
    """The sending orders of producers at partitions where something is held up (R7)."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, Partition], SendingOrder] = {}
        """Orders by producer and partition. Usually it is empty, and nothing needs a check."""

    def check(self, producer: bytes, partition: Partition, sequence: int, resolved: int) -> None:
        """Check that a message may be stored. Raises Refused(out_of_sequence) if an earlier one was
        refused and has not come again."""
        order = self.held.get((producer, partition))
        if order is None:
            return
        if not order.admits(sequence, resolved):
            raise Refused("out_of_sequence")
        order.accept(sequence)
        if not order:
            del self.held[producer, partition]

    def on_refused(
        self, producer: bytes, route: Route, key: str | None, sequence: int, error: TocsinError
    ) -> None:
        """Hold up a producer's later messages of a partition behind a message that was refused
        here.

        A message without a key, or with one that is empty or too long, has nothing behind it. Nor
        has one that was out of sequence, which `check` has noted.
        """
        if key is None or error.code.name == "out_of_sequence":
            return
        if 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
            self._hold(producer, route.partitions[route.place(key)[0]], sequence)

    def on_not_stored(self, partition: Partition, header: Header) -> None:
        """Hold up the later messages of producers that have messages with keys in a record that was
        not stored, or whose fate is unknown."""
        for index, sequence, hashed in zip(
            header.producer_indexes, header.sequences, header.key_hashes, strict=False
        ):
            if index and hashed:
                self._hold(header.producers[index - 1][0], partition, sequence)

    def _hold(self, producer: bytes, partition: Partition, sequence: int) -> None:
        while len(self.held) >= ORDERS_MAX:
            del self.held[next(iter(self.held))]
        self.held.setdefault((producer, partition), SendingOrder()).refuse(sequence)


Runs = dict[int, Run]
"""Runs by number of partition."""
_NO_RUNS: Final[Runs] = {}


def cut(
    publish: PendingPublish, route: Route, orders: SendingOrders, clock: BelievedClock
) -> tuple[Runs, Runs]:
    """Return the runs of a publish: those of messages that go out at once, and those of messages
    that are scheduled. A refused message has its outcome, and is in none of the runs."""
    settings, encoded = publish.queue.settings, None
    if not publish.is_checked and publish.names is None:
        encoded = encode_plain(publish.messages, settings.message_bytes_max)
    if (
        encoded is None
        or not publish.keys.is_all
        or settings.message_ttl_s is not None
        or (publish.context is not None and orders.held)
    ):
        return _Cut(publish, route, orders, clock).runs(encoded)
    return _Cut(publish, route, orders, clock).plain(encoded), _NO_RUNS


class _Cut:
    """The cutting of one publish into runs."""

    def __init__(
        self,
        publish: PendingPublish,
        route: Route,
        orders: SendingOrders,
        clock: BelievedClock,
    ) -> None:
        self._publish = publish
        self._route = route
        self._orders = orders
        self._clock = clock
        self._context = publish.context
        self._sequence = publish.sequence or 0
        self._spread: int | None = None
        self._keyed = 0

    def plain(self, encoded: Sequence[bytes]) -> Runs:
        """Cut messages that no rule can refuse any more."""
        publish, route, runs = self._publish, self._route, Runs()
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

    def runs(self, encoded: Sequence[bytes] | None) -> tuple[Runs, Runs]:
        """Cut messages, and check each. `encoded` is the result of `encode_plain`; None if that was
        not called, or did not accept the messages."""
        publish = self._publish
        settings, names = publish.queue.settings, publish.names
        now_ms, runs, later = self._clock.wall() * 1000, Runs(), Runs()
        is_limited = not publish.keys.is_all
        for index, message in enumerate(publish.letters or publish.messages):
            name, due = message.id if names is None else names[index], 0
            try:
                if is_limited and not publish.keys.allow(message.key):
                    raise not_allowed(publish.queue.name, message.key)
                if encoded is not None:
                    text = encoded[index]
                else:
                    form = message
                    if not publish.is_checked:
                        check_message(publish.messages[index], settings.message_bytes_max)
                        has_time = message.deliver_at_unix_ms is not None
                        has_time = has_time or message.delay_s is not None
                        if has_time and publish.letters is None:
                            self._clock.check()
                            due = due_unix_ms(message, now_ms)
                            form = scheduled(message, due)
                    text = encode_message(form)
                number, hashed = self._place(index, message.key, name)
            except TocsinError as error:
                self._refuse(index, message.key, error)
                continue
            of_kind = later if due else runs
            run = of_kind.get(number)
            if run is None:
                run = of_kind[number] = Run(publish)
            if due:
                run.due.append((due, id_hash(publish.queue.hash_key, message.id)))
            ttl_s = settings.message_ttl_s
            if ttl_s is not None or name is not None or message.ttl_s is not None:
                digest = None
                if name is not None:
                    moved = names is not None
                    digest = id_digest(publish.queue.hash_key, message.key, name, moved=moved)
                # What is scheduled expires by the time at which it is moved.
                expires = 0 if due else expires_unix_ms(message, ttl_s, now_ms)
                if run.marks is None:
                    run.marks = []
                run.marks.append((len(run.indexes), digest, expires))
            run.encoded.append(text)
            run.hashes.append(hashed)
            run.indexes.append(index)
        self._route.count_lookups(self._keyed)
        return runs, later

    def _place(self, index: int, key: str | None, name: str | None) -> tuple[int, int]:
        """Return (partition, hash of the key). Raises Refused if an earlier message has to come
        first."""
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
            self._orders.on_refused(self._context[0], self._route, key, at, error)


class OpenRecord:
    """A record that takes messages until a commit closes it. When the commit has ended, it gives
    their publishes the outcomes."""

    __slots__ = (
        "accepted_us",
        "backlog",
        "builder",
        "partition",
        "route",
        "runs",
        "size",
        "slot",
        "weight",
    )

    def __init__(
        self,
        route: Route,
        partition: Partition,
        backlog: Backlog,
        first: PendingPublish,
        *,
        is_due: bool = False,
    ) -> None:
        """`first` is the publish of the first message. `is_due`: whether its messages are
        scheduled."""
        self.route = route
        self.partition = partition
        self.slot = (partition, is_due)
        """Slot of the record: one is open at a time for each partition and kind."""
        self.backlog = backlog
        """The lane's backlog. The record's messages count in it until their commit has ended."""
        self.builder = RecordBuilder()
        self.size = 0
        """Size of the messages as JSON, in bytes."""
        self.weight = 0
        """Weight of the record in a commit that several queues share: see `commit_weight`."""
        self.runs: list[tuple[PendingPublish, list[int], int]] = []
        """(publish, places of its messages that are in this record, their size as JSON)."""
        origin = first.origin
        now_us = time.monotonic_ns() // 1000 if origin is None else origin.accepted_us
        self.accepted_us = now_us
        """Time at which the first message was accepted, in microseconds of the monotonic clock."""

    def take(self, run: Run, size: int) -> None:
        """Append a run of `size` bytes. The caller has checked that it fits."""
        builder, context, indexes, backlog = self.builder, run.context, run.indexes, self.backlog
        if context is None:
            builder.clear_producer()
        else:
            builder.set_producer(*context)
        if run.marks:
            begin = builder.count
            for place, digest, expires in run.marks:
                builder.mark(begin + place, digest, expires)
        for place, (due, hashed) in enumerate(run.due, builder.count):
            builder.schedule(place, due, hashed)
        count = len(indexes)
        if count == 1:  # by far the most common where frames are small
            builder.add(run.encoded[0], run.hashes[0], run.sequence + indexes[0])
        else:
            first = run.sequence
            builder.extend(run.encoded, run.hashes, size, [first + index for index in indexes])
        self.runs.append((run.publish, indexes, size))
        self.size += size
        self.weight = commit_weight(builder.count, self.size)
        backlog.messages += count
        backlog.waiting += count
        backlog.bytes += size

    def close(self, record_id: bytes, now_ms: float) -> tuple[Append, Header]:
        """Close the record. Returns the append for the storage, and the header in it."""
        queue = self.route.queue
        settings = queue.settings
        encoded, payload, header = self.builder.close(
            record_id=record_id,
            published_unix_ms=int(now_ms),
            ring_epoch=queue.ring_epoch,
            tenant=0,
        )
        is_bounded = settings.overflow == "reject"
        due_bounds = settings.due_bounds if header.deliver_at_unix_ms else (0, 0)
        append = Append(
            self.partition,
            encoded,
            payload,
            parsed=header,
            durability=settings.durability,
            dedup_window_s=settings.dedup_window_s,
            messages_max=settings.messages_max if is_bounded else 0,
            bytes_max=settings.bytes_max if is_bounded else 0,
            message_bytes_max=settings.bytes_max,
            due_messages_max=due_bounds[0],
            due_bytes_max=due_bounds[1],
        )
        return append, header

    def fail(self, error: TocsinError) -> None:
        """Answer every publish that its messages here were not stored, or that this is unknown."""
        self.route.counters.count_failed(self.builder.count, error)
        is_unknown = isinstance(error, Unknown)
        for publish, indexes, _ in self.runs:
            for index in indexes:
                publish.fail(index, error)
            if is_unknown and publish.origin is not None:
                publish.origin.count_unknown(len(indexes))
            publish.settle(len(indexes))

    def complete(
        self,
        result: Appended,
        header: Header,
        durability: dict[str, object],
        certified_us: int,
        *,
        is_answered: bool,
    ) -> None:
        """Count what was stored of the messages, and give every publish its outcomes, unless the
        commit was answered already. `header`: the record's."""
        counters, number = self.route.counters, self.partition.number
        dues, sizes = header.deliver_at_unix_ms, header.sizes
        counters.certify_s.add((certified_us - self.accepted_us) / 1e6, result.count)
        counters.count_stored(result, self.size, sizes)
        if is_answered:
            return
        offset, place = result.first, 0
        for publish, indexes, _ in self.runs:
            outcomes = publish.outcomes
            if result.outcomes is None:  # all are new: consecutive offsets
                for index in indexes:
                    outcomes[index] = (number, offset)
                    offset += 1
            else:
                publish.is_plain = False
                for index in indexes:
                    outcomes[index] = self._outcome_at(result.outcomes[place], dues, place)
                    place += 1
            publish.generation = result.generation
            publish.durability = durability
            publish.settle(len(indexes))

    def _outcome_at(
        self, outcome: Stored | Scheduled | NotStored, dues: Sequence[int], place: int
    ) -> Outcome:
        """Return the storage's answer about message `place` as an outcome. `dues`: when each is
        due; empty: they are not scheduled."""
        number = self.partition.number
        if isinstance(outcome, Scheduled):
            due = 0 if outcome.duplicate else dues[place]
            return DueTicket(number, outcome.number, due, outcome.duplicate)
        return outcome_at(number, outcome, self.route.queue)


class Commit:
    """The records that go to the storage together. Making it closes them; handing it over puts it
    under way."""

    __slots__ = (
        "appends",
        "asked_us",
        "batch",
        "began",
        "has_light",
        "headers",
        "is_answered",
        "is_share",
        "lane",
        "messages",
        "size",
        "stored",
        "ticket",
    )

    def __init__(
        self, batch: list[OpenRecord], began: float, *, is_share: bool, lane: Lane
    ) -> None:
        self.batch = batch
        self.began = began
        self.ticket: int | None = None
        """Ticket of the lane's breaker; None if it gave none."""
        self.is_share = is_share
        """Whether any queue may be in it. False: only light ones are, beside such a commit."""
        self.lane = lane
        """The lane of its records when it began (R7)."""
        self.stored: asyncio.Future[list[Appended]]
        """The storage's answer."""
        now_ms, self.asked_us = time.time() * 1000, time.monotonic_ns() // 1000
        self.appends: list[Append] = []
        self.headers: list[Header] = []
        self.messages = 0
        self.size = 0
        """Weight of its records (`commit_weight`)."""
        # In one call, because each gives up the interpreter's lock and has to get it back.
        record_ids, at = os.urandom(len(batch) * RECORD_ID_BYTES), 0
        for record in batch:
            append, header = record.close(record_ids[at : at + RECORD_ID_BYTES], now_ms)
            self.appends.append(append)
            self.headers.append(header)
            self.messages += record.builder.count
            self.size += record.weight
            at += RECORD_ID_BYTES
        self.is_answered = False
        self.has_light = True
        """Whether light queues have records in it."""

    def hand_over(self, storage: Storage) -> None:
        """Hand the records to the storage. What it raises is raised by `stored`."""
        try:
            self.stored = asyncio.ensure_future(storage.append(self.appends, lane=self.lane))
        except Exception as error:
            self.stored = asyncio.get_running_loop().create_future()
            self.stored.set_exception(error)

    def results(self) -> Sequence[Appended | TocsinError]:
        """Return the storage's answer, one result for each record, once it has come."""
        error = self.stored.exception()
        if error is None:
            return self.stored.result()
        if not isinstance(error, TocsinError):  # a bug: nobody waits for ever
            logger.error("a commit failed: unexpected", exc_info=error)
            error = Unknown(f"internal: {error!r}")
        return [error] * len(self.batch)


def outcome_at(number: int, outcome: Stored | NotStored, queue: Queue) -> Outcome:
    """Return the storage's answer about a message of this partition as an outcome."""
    if isinstance(outcome, Stored):
        at = (number, outcome.offset)
        return (*at, True) if outcome.duplicate else at
    detail = ""
    if outcome.code == "message_too_large":
        detail = (
            "key, headers, id and body together are larger than the queue may ever be "
            f"(bytes_max={queue.settings.bytes_max})"
        )
        if len(queue.clusters) > 1 and queue.settings.overflow == "reject":
            detail += ", or than the part of it that their storage cluster has"
    elif outcome.code == "limit_reached":
        detail = f"partition {number} has given out every offset that it has: use another queue"
    return Refused(outcome.code, detail)
