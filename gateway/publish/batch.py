"""Batching: publishes are routed to partitions, filled into records, and answered from them.

A publish is cut into **runs**, the messages that go to one partition; the runs of all publishes
that wait for the next commit fill the **open record** of that partition.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.accounting.usage import UsageCounter
from gateway.counters import HitRate, PublishCounters
from gateway.deliverylog.log import PublishOrigin
from metadata.catalog import Principal, Queue, QueueSettings
from metadata.rights import ALL_KEYS, KeyScope
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.message import Message, check_message, encode_message
from push.places import Partition
from push.record import RecordBuilder
from push.ring import Ring, hasher
from push.storage_port import Appended, NotStored, Stored

logger = logging.getLogger("tocsin.publisher")
ROUTES_MAX: Final = 100_000
"""Keys per queue whose hash and partition are remembered."""
ROUTES_IN_ALL_MAX: Final = 1_000_000
"""And of all queues together: some 200 MB."""
LEFT_OUT_MAX: Final = 5 * ROUTES_MAX
"""Keys of a queue that were not remembered, before it begins anew."""
SPREAD_RUN: Final = 256
"""Number of consecutive sequences without a key that stay on one partition: few large records are
cheaper than many small ones."""

Outcome = tuple[int, int] | tuple[int, int, bool] | TocsinError
"""(partition, offset) where it is new, (partition, offset, True) where it was stored before, or why
it is not stored: as a receipt has it."""
Context = tuple[bytes, int]
"""(producer, resolved): of a publish with sequences."""
NO_ANSWER: Final = Unknown("no answer yet")


class PendingPublish:
    """One publish, from its arrival until each of its messages has an outcome, in their order (R5).

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
        """Called exactly once, on the loop, perhaps before `Publisher.submit` returns."""
        self.producer = producer
        """16 bytes. A producer and a sequence go together."""
        self.sequence = sequence
        """The first message's; the rest follow."""
        self.resolved = resolved
        """Everything below it was answered (R6)."""
        self.is_checked = is_checked
        """The messages were accepted once already and only move; no rule about a single message
        applies again."""
        self.names = names
        """The name under which each message is remembered instead of its id: it is stored once,
        whatever its id was remembered for (R8)."""
        self.keys = keys
        """The keys that may be published to; a message of another key is refused alone (P11)."""
        self.origin = origin
        """The publish as the delivery log knows it; None: the log has nothing of it."""
        self.outcomes: list[Outcome] = [NO_ANSWER] * len(messages)
        self.remaining = len(messages)
        """Number of messages without an outcome."""
        self.generation = 0
        self.durability: dict[str, object] = {}
        """Level and number of copies, for the receipt."""
        self.context: Context | None = None
        """Set by the publisher for a publish with sequences."""
        self.letters: Sequence[Message] | None = None
        """Messages that are stored in place of these."""
        self.bytes = 0
        """Size as JSON of the messages that went on to the storage."""
        self.is_plain = True
        """Every message was stored, and is new."""

    def fail(self, index: int, error: TocsinError) -> None:
        """Set the outcome of a message that is not stored, or of which nobody knows."""
        self.outcomes[index] = error
        self.is_plain = False

    def fail_all(self, error: TocsinError) -> None:
        """Set the outcome of every message: none is stored."""
        self.outcomes = [error] * len(self.messages)
        self.is_plain = False

    def count_in(self, counter: UsageCounter) -> None:
        """Add what was stored, and what was refused, to a counter."""
        if self.is_plain:  # nothing is looked at one by one
            counter.count_stored(len(self.outcomes), self.bytes)
            return
        for message, outcome in zip(self.messages, self.outcomes, strict=True):
            if isinstance(outcome, TocsinError):
                counter.count_refusal(outcome.code.name)
            elif len(outcome) > 2:
                counter.duplicates += 1
            else:
                counter.count_stored(1, len(encode_message(message)))

    def ids(self, index: int) -> str:
        """Return the id of message `index`: the client's, or the one made of its place (R1)."""
        given = self.messages[index].id
        outcome = self.outcomes[index]
        if given is not None or isinstance(outcome, TocsinError):
            return given or ""
        return f"{self.id_prefix}{outcome[0]}-{outcome[1]}"

    @property
    def id_prefix(self) -> str:
        """The part of a message's id before partition, "-" and offset, if it has no own id."""
        return f"{self.queue.queue_id}-{self.generation}-"

    def settle(self, count: int) -> None:
        """Note `count` more outcomes; the last one sends the answer."""
        self.remaining -= count
        if not self.remaining and self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            try:
                on_answer(self)
            except Exception:  # one producer's trouble must not cost the others their answers
                logger.exception("an answer to a publish could not be given")


class Run:
    """The messages of one publish that go to one partition."""

    __slots__ = ("context", "encoded", "hashes", "indexes", "marks", "publish", "sequence")

    def __init__(self, publish: PendingPublish) -> None:
        self.publish = publish
        self.context = publish.context
        self.sequence = publish.sequence or 0
        """The sequence of the publish's first message, if there is a context."""
        self.encoded: list[bytes] = []
        self.hashes: list[int] = []
        """Hashes of the keys; 0 for a message without one."""
        self.indexes: list[int] = []
        """The places of the messages in the publish, in order."""
        self.marks: list[tuple[int, bytes | None, int]] | None = None
        """(place in the run, digest of the client's id, expiry) of the messages that have one."""

    def piece(self, first: int, last: int) -> "Run":
        """Return a run of the messages first..last-1."""
        piece = Run(self.publish)
        piece.encoded, piece.hashes = self.encoded[first:last], self.hashes[first:last]
        piece.indexes = self.indexes[first:last]
        piece.marks = [
            (place - first, digest, expires)
            for place, digest, expires in self.marks or ()
            if first <= place < last
        ]
        return piece


class Backlog:
    """The number and size of the messages that wait for their commit in one lane."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class OpenRecord:
    """A record that takes messages until the next commit closes it, and then answers their runs."""

    __slots__ = ("accepted_us", "backlog", "builder", "route", "runs")

    def __init__(self, route: "Route", backlog: Backlog, first: PendingPublish) -> None:
        """`first`: the publish whose message comes first."""
        self.route = route
        self.backlog = backlog
        """The lane's; the record's messages count in it until they have their answer."""
        self.builder = RecordBuilder()
        self.runs: list[tuple[PendingPublish, list[int], int]] = []
        """(publish, places of its messages that are in this record, their size as JSON)."""
        origin = first.origin
        now_us = time.monotonic_ns() // 1000 if origin is None else origin.accepted_us
        self.accepted_us = now_us
        """When the first message was accepted, on the clock of `Stages`."""

    @property
    def size(self) -> int:
        """Size of the messages as JSON, in bytes."""
        return self.builder.bytes - len(self.builder)

    @property
    def weight(self) -> int:
        """The record's part of a commit that several queues share."""
        return weight(len(self.builder), self.size)

    def take(self, run: Run, size: int) -> None:
        """Append a run of `size` bytes. The caller has checked that it fits."""
        builder, context, indexes, backlog = self.builder, run.context, run.indexes, self.backlog
        if context is None:
            builder.no_context()
        else:
            builder.context(*context)
        if run.marks:
            begin = len(builder)
            for place, digest, expires in run.marks:
                builder.mark(begin + place, digest, expires)
        if len(indexes) == 1:  # by far the most common where frames are small
            builder.add(run.encoded[0], run.hashes[0], run.sequence + indexes[0])
        else:
            first = run.sequence
            builder.extend(run.encoded, run.hashes, size, [first + index for index in indexes])
        self.runs.append((run.publish, indexes, size))
        backlog.messages += len(indexes)
        backlog.bytes += size

    def fail(self, error: TocsinError) -> None:
        """Answer every publish that its messages here were not stored, or that nobody knows."""
        self.route.counted.failed(len(self.builder), error)
        is_unknown = isinstance(error, Unknown)
        for publish, indexes, _ in self.runs:
            for index in indexes:
                publish.fail(index, error)
            if is_unknown and publish.origin is not None:
                publish.origin.count_unknown(len(indexes))
            publish.settle(len(indexes))

    def complete(self, number: int, result: Appended, durability: dict[str, object]) -> None:
        """Give every publish the outcomes of its messages in partition `number`."""
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
                    outcomes[index] = outcome_at(number, result.outcomes[place], self.route.queue)
                    place += 1
            publish.generation = result.generation
            publish.durability = durability
            publish.settle(len(indexes))


class KeyCount:
    """The number of keys that all routes of a gateway remember together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Route:
    """The routing of one queue, computed once: its ring, and the places of its recent keys."""

    __slots__ = (
        "_key_count",
        "_left_out",
        "_misses",
        "counted",
        "hashed",
        "keys",
        "partitions",
        "pending_bytes",
        "pending_messages",
        "places",
        "queue",
        "ring",
        "spread",
        "spread_members",
    )

    def __init__(
        self,
        queue: Queue,
        counted: PublishCounters | None = None,
        places: HitRate | None = None,
        key_count: KeyCount | None = None,
    ) -> None:
        self.places = places or HitRate()
        """How often a key's place was remembered."""
        self.queue = queue
        self.counted = counted or PublishCounters()
        self.pending_messages = 0
        self.pending_bytes = 0
        """Of this queue, waiting for a commit."""
        self.ring = Ring(queue.ring_epoch, queue.members)
        self.hashed = hasher(queue.hash_key)
        self.keys: dict[str, tuple[int, int]] = {}
        self._key_count = key_count or KeyCount()
        self._misses = 0
        """Those that `places` does not have yet."""
        self._left_out = 0
        """Number of keys that were not remembered for want of room."""
        self.partitions = {n: Partition(queue.queue_id, n) for n in queue.members}
        self.spread_members = queue.members
        self.spread = 0

    def place(self, key: str) -> tuple[int, int]:
        """(partition, hash) of a key."""
        place = self.keys.get(key)
        if place is None:
            self._misses += 1
            hashed = self.hashed(key)
            place = (self.ring.partition(hashed), hashed)
            self._remember(key, place)
        return place

    def _remember(self, key: str, place: tuple[int, int]) -> None:
        """Remember a key if there is room. With more keys than that, exchanging them one by one
        costs more than it saves; after LEFT_OUT_MAX the route begins anew, because the first keys
        are not wanted for ever."""
        if len(self.keys) < ROUTES_MAX and self._key_count.count < ROUTES_IN_ALL_MAX:
            self.keys[key] = place
            self._key_count.count += 1
        elif self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
        else:
            self.forget()

    def forget(self) -> None:
        """Forget all keys."""
        self._key_count.count -= len(self.keys)
        self._left_out = 0
        self.keys.clear()

    def count_lookups(self, count: int) -> None:
        """Add the places of `count` keys, looked up since the last call, to the statistics."""
        misses, self._misses = self._misses, 0
        self.places.hits += count - misses
        self.places.misses += misses

    def spread_place(self) -> int:
        """Return the partition for a publish's messages without a key: one after the other, publish
        by publish, because few large records are cheaper than many small ones."""
        self.spread = (self.spread + 1) % len(self.spread_members)
        return self.spread_members[self.spread]

    def id_place(self, message_id: str) -> int:
        """Return the partition of a message without a key, by its id: sent again, it goes to the
        one that remembers it, whatever was sent in between (P4)."""
        return self.ring.partition(self.hashed(message_id))

    def sequence_place(self, producer: bytes, sequence: int) -> int:
        """Return the partition of a message without key and id, by its sequence."""
        return self.spread_members[
            (sequence // SPREAD_RUN + producer[0]) % len(self.spread_members)
        ]


def refused_sequences(
    producer: bytes | None, sequence: int, resolved: int, count: int
) -> Refused | None:
    """Return why a publish with sequences is refused as a whole; None: it is not (R6)."""
    if producer is None:
        return Refused("invalid_request", "sequence needs a producer: name it in hello")
    if resolved > sequence:
        return Refused("sequence_too_old", f"resolved is {resolved}, sequence {sequence}")
    if sequence + count - resolved > limits.IN_FLIGHT_PER_PRODUCER_MAX:
        return Refused(
            "too_many_in_flight",
            f"at most {limits.IN_FLIGHT_PER_PRODUCER_MAX} sequences from resolved on",
        )
    return None


def weight(messages: int, size: int) -> int:
    """Return how much of a shared commit messages of `size` bytes in all take."""
    return max(size, limits.COMMIT_MESSAGE_BYTES * messages)


def is_full(builder: RecordBuilder, more_bytes: int, bytes_max: int) -> bool:
    return len(builder) >= limits.RECORD_MESSAGES_MAX or (
        len(builder) > 0 and builder.bytes + more_bytes > bytes_max
    )


def piece_end(encoded: list[bytes], first: int) -> int:
    """Return where a record that begins with message `first` must end, by bytes; one at least."""
    size, last = len(encoded[first]), first + 1
    while last < len(encoded) and size + len(encoded[last]) <= limits.RECORD_BYTES_MAX:
        size += len(encoded[last])
        last += 1
    return last


def any_storable(messages: Sequence[Message], message_bytes_max: int) -> bool:
    """Whether at least one is a message that a queue may take."""
    for message in messages:
        try:
            check_message(message, message_bytes_max)
        except Refused:
            continue
        return True
    return False


def nowhere(principal: Principal, name: str, settings: QueueSettings) -> Queue:
    """Return a queue that neither catalog nor storage has: whatever is published to it is refused,
    bad messages each with its reason. No other queue has this id."""
    return Queue(
        queue_id="",
        name=name,
        tenant=principal.tenant,
        holder=principal.name,
        created_unix_ms=0,
        settings=settings,
        ring_epoch=1,
        members=(0,),
        hash_key=bytes(16),
    )


def outcome_at(number: int, outcome: Stored | NotStored, queue: Queue) -> Outcome:
    """Return the storage's word on a message of this partition as an outcome."""
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
