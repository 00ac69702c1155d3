"""Decisions of an append: which messages are new, and which offsets they get (R5-R9). Pure.

A record whose header says when its messages are due goes to the due store. Its messages are judged
like others, and get numbers instead of offsets (`push.due`).

The storages in memory and in SQLite decide with this; they differ in where they keep producer lines
and client ids. The functions in Lua of the Redis storage decide by the same rules.

A **producer line** (R6, R7) is what a partition knows of one producer: `resolved`, below which
every sequence has had its last answer, and above it the exact set sequence -> offset of what is
stored. Client ids (R8) are remembered for a window of time.

A queue or group that was dropped is not made again by a request that comes late (R1: no id is used
twice).
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import lt
from typing import Final

from push import limits
from push.due import CANCELLED, TICKET, fate_mark
from push.errors import Refused
from push.places import Partition
from push.producer_order import SendingOrder
from push.record import NO_DIGEST, Header, RecordDamaged, parse_header
from push.storage_port import (
    Append,
    Appended,
    NotStored,
    Outcome,
    PartitionState,
    Scheduled,
    Stored,
)

SEQUENCE_TOO_OLD: Final = NotStored("sequence_too_old")
OUT_OF_SEQUENCE: Final = NotStored("out_of_sequence")
TOO_MANY_IN_FLIGHT: Final = NotStored("too_many_in_flight")
CANCELLED_BEFORE: Final = NotStored("cancelled")
FindIds = Callable[[list[bytes]], dict[bytes, int]]
"""Returns digest → place of those of these client ids that are remembered."""
SEALED: Final = "storage_unavailable"
"""Code of the answer to a new message for a sealed partition. The message was not stored, and may
succeed when it is sent again, because the ring of the next epoch routes it elsewhere (R27)."""
SEQUENCE_MAX: Final = (1 << 62) - 1
"""Largest sequence. Stores keep signed 64-bit numbers; clients may use up to 2^53 - 1."""

DUE_UNIX_MS_MAX: Final = (1 << 53) - 1
"""Largest due time, in unix milliseconds, that a due store takes."""

# A line's age is counted in buckets of wall time, so that "seen" changes a row rarely.
_BUCKETS_PER_IDLE: Final = 4
LINE_BUCKET_MS: Final = limits.PRODUCER_IDLE_S * 1000 // _BUCKETS_PER_IDLE
IDLE_BUCKETS: Final = _BUCKETS_PER_IDLE
"""Number of buckets (of LINE_BUCKET_MS) without a message after which a producer's line expires.
Its set of sequences is deleted and the highest one stays; sequences not above that one are refused
as `sequence_too_old` (R6)."""
FORGOTTEN_BUCKETS: Final = 10 * _BUCKETS_PER_IDLE
"""Number of buckets (of LINE_BUCKET_MS) without a message after which a producer's line is
forgotten with its highest sequence (ten times PRODUCER_IDLE_S). Nothing can be remembered for ever,
so a retry that is half a day late is taken for a new message."""


def line_bucket(wall_unix_ms: int) -> int:
    """Return the number of the bucket (of LINE_BUCKET_MS) that contains this time."""
    return wall_unix_ms // LINE_BUCKET_MS


class ProducerLine:
    """The sequences of one producer that one partition knows."""

    __slots__ = ("bucket", "offsets", "order", "resolved", "row_id", "sequences", "top")

    def __init__(self, bucket: int, *, resolved: int = 0, top: int = -1, row_id: int = 0) -> None:
        self.bucket = bucket
        self.resolved = resolved
        self.top = max(top, resolved - 1)
        """The highest sequence that is stored or resolved; -1: none."""
        self.sequences = array("Q")
        """Stored sequences >= resolved, ascending; `offsets` has each one's offset."""
        self.offsets = array("Q")
        self.order = SendingOrder()
        """The refused sequences that hold up later ones. In memory only, because no message is in
        flight after a restart."""
        self.row_id = row_id
        """The storage's own number for this line; 0: it has none yet."""

    # enforces: R6
    def wake(self, bucket: int) -> None:
        """Note that the line is used in this bucket. Before that, delete what has expired since its
        last use: the stored sequences, or after FORGOTTEN_BUCKETS everything."""
        age = bucket - self.bucket
        if age > FORGOTTEN_BUCKETS:
            self.resolved, self.top = 0, -1
            self._empty()
        elif age > IDLE_BUCKETS:
            self.resolved = self.top + 1
            self._empty()
        if age > 0:
            self.bucket = bucket

    def _empty(self) -> None:
        self.sequences, self.offsets, self.order = array("Q"), array("Q"), SendingOrder()

    def resolve(self, resolved: int) -> None:
        """Raise the line's `resolved` to this, and forget the stored sequences below, which had
        their last answer. A lower value than the present one changes nothing."""
        if resolved > self.resolved:
            self.resolved = resolved
            gone = bisect_left(self.sequences, resolved)
            if gone:
                del self.sequences[:gone], self.offsets[:gone]
            self.top = max(self.top, resolved - 1)

    # enforces: P4, R6
    def judge(self, sequence: int, resolved: int) -> Stored | NotStored | None:
        """Return the answer to a message whose sequence is known or refused; None: it is new, and
        may be stored. Applies the message's `resolved` first."""
        self.resolve(resolved)
        if sequence < self.resolved:
            return SEQUENCE_TOO_OLD
        place = bisect_left(self.sequences, sequence)
        if place < len(self.sequences) and self.sequences[place] == sequence:
            return Stored(self.offsets[place], duplicate=True)
        if not self.order.admits(sequence, self.resolved):
            return OUT_OF_SEQUENCE
        if len(self.sequences) >= limits.IN_FLIGHT_PER_PRODUCER_MAX:
            self.order.refuse(sequence)
            return TOO_MANY_IN_FLIGHT
        return None

    def add(self, sequence: int, offset: int) -> None:
        """Remember one new message, with its own offset, or that of the message with the same
        id."""
        place = bisect_left(self.sequences, sequence)
        self.sequences.insert(place, sequence)
        self.offsets.insert(place, offset)
        self.top = max(self.top, sequence)
        self.order.accept(sequence)

    def takes_run(self, first: int, count: int, resolved: int, top: int) -> bool:
        """Whether `count` ascending sequences from `first` on are all new, given that `top` will be
        the highest one by then. False decides nothing; they are judged one by one."""
        return (
            first > top
            and first >= resolved
            and not self.order
            and len(self.sequences) + count <= limits.IN_FLIGHT_PER_PRODUCER_MAX
        )

    def add_run(self, sequences: "array[int]", first_offset: int, resolved: int) -> None:
        """Remember a run that `takes_run` allowed, at consecutive offsets, without a loop."""
        self.resolve(resolved)
        self.sequences.extend(sequences)
        self.offsets.extend(array("Q", range(first_offset, first_offset + len(sequences))))
        self.top = sequences[-1]


# enforces: R8
def id_bucket(wall_unix_ms: int, window_s: float) -> int:
    """Return the time (unix ms) until which ids stored now are remembered, which is at least
    `window_s` and at most one bucket longer. Ids with the same value are forgotten together."""
    window_ms = max(limits.DEDUP_BUCKETS, int(window_s * 1000))
    width = window_ms // limits.DEDUP_BUCKETS
    return (wall_unix_ms // width + 1) * width + window_ms


@dataclass(slots=True, weakref_slot=True)
class QueueTotal:
    """The messages and bytes that all partitions of a queue retain in one storage, in their logs
    and due stores, by which the queue's bounds are judged. Shared by their logs, so that an append
    costs two additions."""

    messages: int = 0
    bytes: int = 0
    due_messages: int = 0
    """Number of those of them that wait in due stores."""
    due_bytes: int = 0


# enforces: R2
@dataclass(slots=True)
class PartitionLog:
    """A partition's own row: where its log begins and ends, what it retains, and its seal. Records,
    producers' lines, client ids and cursors are kept elsewhere."""

    partition: Partition
    row_id: int
    generation: int = 1
    next_offset: int = 0
    """The end of the log: the offset after its last message. It is stored as a number of its own,
    so deleting messages does not lower it (R2). In an embedded storage it is the certified end too,
    because committed messages are certified (R10)."""
    start: int = 0
    sealed_at: int | None = None
    successors: tuple[Partition, ...] = ()
    messages: int = 0
    bytes: int = 0
    acts: int = 0
    """Number of appends so far, including those that stored no message (R9)."""
    due_next: int = 0
    """The number that the next scheduled message gets."""
    due_messages: int = 0
    """Number of messages in the due store; they are not among `messages`."""
    due_bytes: int = 0
    total: QueueTotal = field(default_factory=QueueTotal)
    """The queue's total, this partition included; set by the storage. `add` and `remove` change
    it."""

    def state(self) -> PartitionState:
        """The partition's state for inspection."""
        return PartitionState(
            partition=self.partition,
            start=self.start,
            end=self.next_offset,
            certified=self.next_offset,
            generation=self.generation,
            messages=self.messages,
            bytes=self.bytes,
            sealed_at=self.sealed_at,
        )

    def add(self, count: int, size: int) -> None:
        """Append `count` messages of `size` bytes, which get the next offsets."""
        self.next_offset += count
        self.messages += count
        self.bytes += size
        self.total.messages += count
        self.total.bytes += size

    def remove(self, count: int, size: int) -> None:
        """Remove `count` retained messages of `size` bytes, trimmed or damaged. If damage has made
        that more than there was, everything is removed, so that the queue's total stays the sum."""
        count, size = min(count, self.messages), min(size, self.bytes)
        self.messages -= count
        self.bytes -= size
        self.total.messages -= count
        self.total.bytes -= size

    def drop_all(self) -> None:
        """Retain nothing below the end, and nothing in the due store."""
        self.remove(self.messages, self.bytes)
        self.leave_due(self.due_messages, self.due_bytes)
        self.start = self.next_offset

    def schedule(self, size: int) -> int:
        """Take a message of `size` bytes into the due store. Returns its number."""
        number = self.due_next
        self.due_next += 1
        self._change_due(1, size)
        return number

    def leave_due(self, count: int, size: int) -> None:
        """Let `count` messages of `size` bytes leave the due store. If damage has made that more
        than there was, all leave. An empty due store has no bytes, whatever damage said of one."""
        size = min(size, self.due_bytes) if count < self.due_messages else self.due_bytes
        self._change_due(-min(count, self.due_messages), -size)

    def _change_due(self, count: int, size: int) -> None:
        total = self.total
        self.due_messages += count
        self.due_bytes += size
        total.messages += count
        total.bytes += size
        total.due_messages += count
        total.due_bytes += size

    def resize_due(self, more: int) -> None:
        """Let the due store's messages have `more` bytes, because one was exchanged."""
        self._change_due(0, max(more, -self.due_bytes))

    def refusal(self, append: Append, count: int, size: int) -> str | None:
        """Return the code for which `count` more messages of `size` bytes in all are refused; None:
        they are not. If there are several, each may fit by itself nevertheless. A message that
        never fits has another code than one that may be sent again."""
        code = self._never_fits(append, size)
        if code is None and self.next_offset + count > limits.OFFSET_MAX:
            code = "limit_reached"
        return code or self._without_room(append, count, size)

    def due_refusal(self, append: Append, size: int) -> str | None:
        """Return the code for which a message of `size` bytes is not taken into the due store;
        None: it is."""
        code, total = self._never_fits(append, size), self.total
        if code is None and self.due_next >= limits.OFFSET_MAX:
            code = "limit_reached"
        if code is None and (
            0 < append.due_messages_max < total.due_messages + 1
            or 0 < append.due_bytes_max < total.due_bytes + size
        ):
            code = "schedule_full"
        return code or self._without_room(append, 1, size)

    # enforces: R27
    def _never_fits(self, append: Append, size: int) -> str | None:
        if self.sealed_at is not None:
            return SEALED
        if 0 < append.message_bytes_max < size:
            return "message_too_large"
        return None

    def _without_room(self, append: Append, count: int, size: int) -> str | None:
        total = self.total
        if (append.messages_max and total.messages + count > append.messages_max) or (
            append.bytes_max and total.bytes + size > append.bytes_max
        ):
            return "queue_full"
        return None


@dataclass(slots=True)
class Effect:
    """The changes of an append that a storage has to write. If `appended.count` is 0, no record is
    written."""

    appended: Appended
    size: int
    """Bytes of the messages that were stored."""
    lines: dict[bytes, ProducerLine] = field(default_factory=dict)
    ids: list[tuple[bytes, int]] = field(default_factory=list)
    """(digest, offset) of client ids to be remembered."""
    due: list[tuple[int, int]] = field(default_factory=list)
    """(index in the record, number) of the messages that go to the due store. Their ids are
    remembered there."""


def open_header(append: Append) -> Header:
    """Return the record's header. It is parsed and checked against the payload, unless the append
    has it parsed already.

    Raises:
        Refused: invalid_message: it is not a record.
    """
    if append.parsed is not None:
        return append.parsed
    try:
        header = parse_header(append.header)
    except RecordDamaged as error:
        raise Refused("invalid_message", f"record: {error}") from None
    count = header.count
    if not count or sum(header.sizes) + count - 1 != len(append.payload):
        raise Refused("invalid_message", "record: the payload's length is not the header's")
    if header.producer_indexes and max(header.producer_indexes) > len(header.producers):
        raise Refused("invalid_message", "record: a message names a producer that is not listed")
    if header.producers and (
        max(header.sequences) > SEQUENCE_MAX
        or max(resolved for _, resolved in header.producers) > SEQUENCE_MAX
    ):
        raise Refused("invalid_message", f"record: a sequence is above {SEQUENCE_MAX}")
    if header.deliver_at_unix_ms and not (
        0 < min(header.deliver_at_unix_ms) <= max(header.deliver_at_unix_ms) <= DUE_UNIX_MS_MAX
    ):
        raise Refused("invalid_message", "record: all of its messages are scheduled, or none")
    return header


def nowhere(count: int) -> Appended:
    """Return the answer to an append of `count` messages to a partition that does not exist."""
    outcomes = (NotStored("queue_not_found"),) * count
    return Appended(0, 0, 0, 0, outcomes, tuple(range(count)))


# enforces: R9
def append_record(
    log: PartitionLog,
    append: Append,
    header: Header,
    *,
    line_of: Callable[[bytes], ProducerLine],
    find_ids: FindIds,
    refuse: str | None,
) -> Effect:
    """Append the new messages of a record to the log.

    `line_of` returns the partition's line of a producer, `find_ids` the offsets of those client ids
    that are remembered; `refuse` is a code that every new message is answered with; None: new
    messages may be stored. Changes the log and the lines.
    """
    log.acts += 1
    count, size = len(header.sizes), sum(header.sizes)
    is_plain = not (header.digests or header.deliver_at_unix_ms)
    if refuse is None and is_plain and log.refusal(append, count, size) is None:
        runs = _runs(header, count, line_of)
        if runs is not None:
            return _append_whole(log, count, size, runs)
    return _append_singly(log, append, header, line_of=line_of, find_ids=find_ids, refuse=refuse)


@dataclass(slots=True)
class _Run:
    """Consecutive messages of one producer with the same `resolved`."""

    producer: bytes
    line: ProducerLine
    resolved: int
    first: int
    sequences: "array[int]"


def _runs(
    header: Header, count: int, line_of: Callable[[bytes], ProducerLine]
) -> list[_Run] | None:
    """Return the runs of a record of `count` messages if all of them are new; None: judge message
    by message.

    Adds nothing to the lines. It takes Python steps for each run, not for each message.
    """
    indexes = header.producer_indexes
    if not header.producers:
        return []
    if indexes[0] == indexes[-1] and indexes.count(indexes[0]) == count:
        lengths = [(indexes[0], count)]
    else:
        lengths = [(index, len(list(group))) for index, group in groupby(indexes)]
    runs: list[_Run] = []
    tops: dict[bytes, int] = {}
    low = 0
    for index, length in lengths:
        if index:
            producer, resolved = header.producers[index - 1]
            sequences = header.sequences[low : low + length]
            line = line_of(producer)
            top = tops.get(producer, line.top)
            if not line.takes_run(sequences[0], count, resolved, top):
                return None
            if length > 1:
                numbers = sequences.tolist()
                if not all(map(lt, numbers, numbers[1:])):
                    return None
            tops[producer] = sequences[-1]
            runs.append(_Run(producer, line, resolved, low, sequences))
        low += length
    return runs


def _append_whole(log: PartitionLog, count: int, size: int, runs: list[_Run]) -> Effect:
    first = log.next_offset
    lines: dict[bytes, ProducerLine] = {}
    for run in runs:
        run.line.add_run(run.sequences, first + run.first, run.resolved)
        lines[run.producer] = run.line
    log.add(count, size)
    return Effect(Appended(first, count, log.next_offset, log.generation), size, lines)


# enforces: P4, R5
def _append_singly(
    log: PartitionLog,
    append: Append,
    header: Header,
    *,
    line_of: Callable[[bytes], ProducerLine],
    find_ids: FindIds,
    refuse: str | None,
) -> Effect:
    first, count = log.next_offset, header.count
    digests = header.digests if append.dedup_window_s > 0 else []
    known = find_ids([digest for digest in digests if digest != NO_DIGEST]) if digests else {}
    size, lines = 0, dict[bytes, ProducerLine]()
    ids, due = list[tuple[bytes, int]](), list[tuple[int, int]]()
    outcomes: list[Outcome] = []
    skips: list[int] = []
    for index in range(count):
        line, sequence = None, 0
        outcome: Outcome | None = None
        if header.producers and header.producer_indexes[index]:
            producer, resolved = header.producers[header.producer_indexes[index] - 1]
            line = lines.get(producer)
            if line is None:
                line = lines[producer] = line_of(producer)
            sequence = header.sequences[index]
            outcome = _outcome_of(line.judge(sequence, resolved), find_ids)
        if outcome is None:
            digest = digests[index] if digests else NO_DIGEST
            if digest in known:
                outcome = known_outcome(known[digest], find_ids)
            else:
                outcome = _place(log, append, header, index, refuse)
            if isinstance(outcome, NotStored):
                if line is not None:
                    line.order.refuse(sequence)
            else:
                place = place_of(outcome)
                if line is not None:
                    line.add(sequence, place)
                if digest != NO_DIGEST and not outcome.duplicate:
                    known[digest] = place
                    if isinstance(outcome, Stored):
                        ids.append((digest, place))
        if isinstance(outcome, Scheduled) and not outcome.duplicate:
            due.append((index, outcome.number))
        if isinstance(outcome, Stored) and not outcome.duplicate:
            size += header.sizes[index]
        else:
            skips.append(index)
        outcomes.append(outcome)
    appended = Appended(
        first,
        count - len(skips),
        log.next_offset,
        log.generation,
        tuple(outcomes) if skips else None,
        tuple(skips),
    )
    return Effect(appended, size, lines, ids, due)


def place_of(outcome: Stored | Scheduled) -> int:
    """Return the place of a message as one number: its offset, or TICKET and its number."""
    return outcome.offset if isinstance(outcome, Stored) else TICKET + outcome.number


def _outcome_of(judged: Stored | NotStored | None, find_ids: FindIds) -> Outcome | None:
    """Return the outcome of a message by what its producer's line knows."""
    return known_outcome(judged.offset, find_ids) if isinstance(judged, Stored) else judged


def known_outcome(place: int, find_ids: FindIds) -> Outcome:
    """Return the outcome of a message that comes again, by the place of the first time."""
    if place < TICKET:
        return Stored(place, duplicate=True)
    mark = fate_mark(place - TICKET)
    if find_ids([mark]).get(mark) == CANCELLED:
        return CANCELLED_BEFORE
    return Scheduled(place - TICKET, duplicate=True)


def _place(
    log: PartitionLog, append: Append, header: Header, index: int, refuse: str | None
) -> Stored | Scheduled | NotStored:
    """Take a new message into the log, or into the due store if it is scheduled, unless it is
    refused. Returns the outcome."""
    size = header.sizes[index]
    if header.deliver_at_unix_ms:
        code = refuse or log.due_refusal(append, size)
        return NotStored(code) if code is not None else Scheduled(log.schedule(size))
    code = refuse or log.refusal(append, 1, size)
    if code is not None:
        return NotStored(code)
    offset = log.next_offset
    log.add(1, size)
    return Stored(offset)


class IdBuckets:
    """The buckets of client ids that a partition has, ascending. A bucket is the time (unix ms)
    until which its ids are remembered."""

    __slots__ = ("_untils",)

    def __init__(self) -> None:
        self._untils: list[int] = []

    def add(self, until: int) -> None:
        """Use this bucket from now on."""
        if until not in self._untils:
            insort(self._untils, until)

    def remove(self, until: int) -> None:
        """Forget a bucket whose rows were deleted."""
        self._untils.remove(until)

    def live(self, wall_unix_ms: int) -> list[int]:
        """Return the buckets whose ids are still remembered at this time."""
        return [until for until in self._untils if until > wall_unix_ms]

    def passed(self, wall_unix_ms: int) -> list[int]:
        """Return the buckets whose rows can be deleted."""
        return [until for until in self._untils if until <= wall_unix_ms]


KNOWN_MAX: Final = 10_000
"""Largest number of ids that `Dropped` remembers. If one process has the store, only its requests
under way may still make something that was dropped, and they end with the process. So the latest
ids are enough, in memory alone."""


# enforces: R1
class Dropped:
    """Ids of the queues and groups that this process dropped, the latest KNOWN_MAX of them."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, any_id: str) -> None:
        """Remember an id that was dropped, or does not exist."""
        self._ids[any_id] = None
        if len(self._ids) > KNOWN_MAX:
            del self._ids[next(iter(self._ids))]

    def check_queue(self, queue_id: str) -> None:
        """Raise Refused(queue_not_found) when this queue was dropped."""
        if queue_id in self._ids:
            raise Refused("queue_not_found", f"the queue {queue_id} was dropped")

    def check_group(self, group_id: str) -> None:
        """Raise Refused(group_not_found) when this group was dropped."""
        if group_id in self._ids:
            raise Refused("group_not_found", f"the group {group_id} was dropped")
