"""What becomes a record: publishes routed to partitions, and their answers.

A publish is cut into **runs**, the messages that go to one partition; the runs of all publishes
that wait for the next commit fill the **open record** of that partition.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.accounting.usage import UsageCounter
from gateway.counters import HitRate, PublishCounters
from gateway.deliverylog.spans import PublishOrigin
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
"""So many consecutive sequences without a key stay on one partition: few large records are cheaper
than many small ones."""

Outcome = tuple[int, int] | tuple[int, int, bool] | TocsinError
"""(partition, offset) where it is new, (partition, offset, True) where it was stored before, or why
it is not stored: as a receipt has it."""
Context = tuple[bytes, int]
"""(producer, resolved): of a publish with sequences."""
NO_ANSWER: Final = Unknown("no answer yet")


@dataclass(slots=True, eq=False)
class PendingPublish:
    """What became of one publish: one outcome per message, in order (R5)."""

    queue: Queue
    messages: Sequence[Message]
    outcomes: list[Outcome]
    generation: int = 0
    remaining: int = 0
    checked: bool = False
    allowed: KeyScope = ALL_KEYS
    """What its producer may publish to; of other keys every message is refused, in its place."""
    names: Sequence[str | None] | None = None
    """What is remembered of each message instead of its id."""
    letters: Sequence[Message] | None = None
    """What is stored in place of the messages."""
    done: Callable[["PendingPublish"], None] | None = None
    origin: PublishOrigin | None = None
    """Whose publish it is; None: the delivery log has nothing of it."""
    durability: dict[str, object] = field(default_factory=dict)
    bytes: int = 0
    """Of the messages that went on to the storage, as JSON."""
    is_plain: bool = True
    """Every message was stored, and is new."""

    def fail(self, index: int, error: TocsinError) -> None:
        """Message `index` is not stored, or nobody knows."""
        self.outcomes[index] = error
        self.is_plain = False

    def fail_all(self, error: TocsinError) -> None:
        """None of its messages is stored."""
        self.outcomes = [error] * len(self.messages)
        self.is_plain = False

    def counted_in(self, counter: UsageCounter) -> None:
        """As Answer of gateway.session.transport. Where all went well, nothing is looked at one by
        one."""
        if self.is_plain:
            counter.stored(len(self.outcomes), self.bytes)
            return
        for message, outcome in zip(self.messages, self.outcomes, strict=True):
            if isinstance(outcome, TocsinError):
                counter.refused(outcome.code.name)
            elif len(outcome) > 2:
                counter.duplicates += 1
            else:
                counter.stored(1, len(encode_message(message)))

    def ids(self, index: int) -> str:
        """The id of message `index`: the client's, or its place (R1)."""
        given = self.messages[index].id
        outcome = self.outcomes[index]
        if given is not None or isinstance(outcome, TocsinError):
            return given or ""
        return f"{self.id_prefix}{outcome[0]}-{outcome[1]}"

    @property
    def id_prefix(self) -> str:
        """What comes before partition, "-" and offset in the id of a message without its own."""
        return f"{self.queue.queue_id}-{self.generation}-"

    def settle(self, count: int) -> None:
        """`count` more outcomes are there; the last one sends the answer."""
        self.remaining -= count
        if not self.remaining and self.done is not None:
            done, self.done = self.done, None
            try:
                done(self)
            except Exception:  # one producer's trouble must not cost the others their answers
                logger.exception("an answer to a publish could not be given")


class Run:
    """The messages of one publish that go to one partition."""

    __slots__ = ("answer", "context", "encoded", "hashes", "indexes", "marks", "sequence")

    def __init__(self, answer: PendingPublish, context: Context | None, sequence: int) -> None:
        self.answer = answer
        self.context = context
        self.sequence = sequence
        """Of the publish's first message, where there is a context."""
        self.encoded: list[bytes] = []
        self.hashes: list[int] = []
        """Of keys; 0 where there is none."""
        self.indexes: list[int] = []
        """Which of the publish's messages they are, in order."""
        self.marks: list[tuple[int, bytes | None, int]] | None = None
        """(place in the run, digest of the client's id, expiry), where there is one."""

    def piece(self, first: int, last: int) -> "Run":
        """Its messages first..last-1."""
        piece = Run(self.answer, self.context, self.sequence)
        piece.encoded, piece.hashes = self.encoded[first:last], self.hashes[first:last]
        piece.indexes = self.indexes[first:last]
        piece.marks = [
            (place - first, digest, expires)
            for place, digest, expires in self.marks or ()
            if first <= place < last
        ]
        return piece


class Backlog:
    """How much waits for its commit."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class OpenRecord:
    """A record that the next commit closes, and whose answer each run of its messages is."""

    __slots__ = ("accepted_us", "builder", "lane", "route", "runs")

    def __init__(self, route: "Route", lane: Backlog, first: PendingPublish) -> None:
        """`first`: whose message comes first."""
        self.route = route
        self.lane = lane
        """What waits where it waits: with its messages, until they have their answer."""
        self.builder = RecordBuilder()
        self.runs: list[tuple[PendingPublish, list[int], int]] = []
        """Per publish, which of its messages stand here, in order, and their bytes as JSON."""
        origin = first.origin
        now_us = time.monotonic_ns() // 1000 if origin is None else origin.accepted_us
        self.accepted_us = now_us
        """When its first message was, as the times of Stages."""

    @property
    def size(self) -> int:
        """Of its messages, in bytes of JSON."""
        return self.builder.bytes - len(self.builder)

    @property
    def weight(self) -> int:
        """What it counts in a commit that several queues share."""
        return weight(len(self.builder), self.size)

    def take(self, run: Run, size: int) -> None:
        """Put a run of `size` bytes behind what it has. Whoever does that looks that it fits."""
        builder, context, indexes, lane = self.builder, run.context, run.indexes, self.lane
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
        self.runs.append((run.answer, indexes, size))
        lane.messages += len(indexes)
        lane.bytes += size

    def failed(self, error: TocsinError) -> None:
        """Tell every publish that none of its messages here was stored, or that nobody knows."""
        self.route.counted.failed(len(self.builder), error)
        is_unknown = isinstance(error, Unknown)
        for answer, indexes, _ in self.runs:
            for index in indexes:
                answer.fail(index, error)
            if is_unknown and answer.origin is not None:
                answer.origin.unknown(len(indexes))
            answer.settle(len(indexes))

    def stored(self, number: int, result: Appended, durability: dict[str, object]) -> None:
        """Hand every publish what became of its messages in partition `number`."""
        offset, place = result.first, 0
        for answer, indexes, _ in self.runs:
            outcomes = answer.outcomes
            if result.outcomes is None:  # all are new: consecutive offsets
                for index in indexes:
                    outcomes[index] = (number, offset)
                    offset += 1
            else:
                answer.is_plain = False
                for index in indexes:
                    outcomes[index] = outcome_at(number, result.outcomes[place], self.route.queue)
                    place += 1
            answer.generation = result.generation
            answer.durability = durability
            answer.settle(len(indexes))


class KeyCount:
    """How many keys the routes of a gateway remember together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Route:
    """What is computed once per queue: the ring, and where its recent keys go."""

    __slots__ = (
        "_left_out", "_misses", "_remembered", "appends", "counted", "hashed", "keys", "partitions",
        "pending_bytes", "pending_messages", "places", "queue", "ring", "spread", "spread_members",
    )  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        counted: PublishCounters | None = None,
        places: HitRate | None = None,
        remembered: KeyCount | None = None,
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
        self._remembered = remembered or KeyCount()
        self._misses = 0
        """Not counted yet."""
        self._left_out = 0
        """Since there was no room: keys that are not remembered."""
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
        """While there is room. Where keys are more than that, to exchange them costs more than it
        saves; but those that were there first are not the ones that are wanted for ever."""
        if len(self.keys) < ROUTES_MAX and self._remembered.count < ROUTES_IN_ALL_MAX:
            self.keys[key] = place
            self._remembered.count += 1
        elif self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
        else:
            self.forget()

    def forget(self) -> None:
        """It remembers no keys."""
        self._remembered.count -= len(self.keys)
        self._left_out = 0
        self.keys.clear()

    def looked_up(self, count: int) -> None:
        """The places of so many keys were asked for, since it was told last."""
        misses, self._misses = self._misses, 0
        self.places.hits += count - misses
        self.places.misses += misses

    def spread_place(self) -> int:
        """The partition for messages without a key: one after the other, publish by publish, for
        few large records are cheaper than many small ones."""
        self.spread = (self.spread + 1) % len(self.spread_members)
        return self.spread_members[self.spread]

    def id_place(self, message_id: str) -> int:
        """The partition of a message without a key, by its id: sent again, it goes to the one that
        remembers it, whatever was sent in between (P4)."""
        return self.ring.partition(self.hashed(message_id))

    def sequence_place(self, producer: bytes, sequence: int) -> int:
        """As id_place, by its sequence."""
        return self.spread_members[
            (sequence // SPREAD_RUN + producer[0]) % len(self.spread_members)
        ]


def refused_sequences(
    producer: bytes | None, sequence: int, resolved: int, count: int
) -> Refused | None:
    """Why a publish with sequences is refused as a whole; None: it is not (R6)."""
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
    """What messages of so many bytes in all count where queues share."""
    return max(size, limits.COMMIT_MESSAGE_BYTES * messages)


def is_full(builder: RecordBuilder, more_bytes: int, bytes_max: int) -> bool:
    return len(builder) >= limits.RECORD_MESSAGES_MAX or (
        len(builder) > 0 and builder.bytes + more_bytes > bytes_max
    )


def piece_end(encoded: list[bytes], first: int) -> int:
    """Where a record that begins with message `first` must end, by bytes; one at least."""
    size, last = len(encoded[first]), first + 1
    while last < len(encoded) and size + len(encoded[last]) <= limits.RECORD_BYTES_MAX:
        size += len(encoded[last])
        last += 1
    return last


def any_storable(messages: Sequence[Message], message_bytes_max: int) -> bool:
    """Whether one of them at least is a message that a queue may take."""
    for message in messages:
        try:
            check_message(message, message_bytes_max)
        except Refused:
            continue
        return True
    return False


def nowhere(principal: Principal, name: str, settings: QueueSettings) -> Queue:
    """A queue that neither catalog nor storage has: whatever is published to it is refused, bad
    messages each with its reason. No other queue has this id."""
    return Queue(
        queue_id="", name=name, tenant=principal.tenant, holder=principal.name, created_unix_ms=0,
        settings=settings, ring_epoch=1, members=(0,), hash_key=bytes(16),
    )  # fmt: skip


def outcome_at(number: int, outcome: Stored | NotStored, queue: Queue) -> Outcome:
    """What storage said of a message of this partition, as an outcome."""
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
