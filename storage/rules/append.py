"""What an append does to a partition: which messages are new, and where they go (R5-R9). Pure.

Both storages decide with this; they differ in where lines and ids come from and go to.

What was dropped is not made again: who still makes it comes late (R1: no id is used twice).
"""

from array import array
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import lt
from typing import Final

from push import limits
from push.errors import Refused
from push.places import Partition
from push.record import NO_DIGEST, Header, RecordDamaged, parse_header
from push.storage_port import Append, Appended, NotStored, PartitionState, Stored
from storage.rules.dedup import ProducerLine

SEALED: Final = "storage_unavailable"
"""The answer to a new message for a sealed partition: it was not stored, and the same message may
succeed when it is sent again, because the ring of the next epoch routes it elsewhere (R27)."""
SEQUENCE_MAX: Final = (1 << 62) - 1
"""Stores keep signed 64-bit numbers; clients may use up to 2^53 - 1."""


@dataclass(slots=True, weakref_slot=True)
class QueueTotal:
    """What all partitions of a queue that a storage holds retain together: the queue's bounds are
    judged by it. Shared by their logs, so that an append costs two additions and no look around."""

    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class PartitionLog:
    """A partition's own row: everything about it but its records."""

    partition: Partition
    row_id: int
    generation: int = 1
    next_offset: int = 0
    """Durable by itself (R2). Embedded, it is the certified end too: what is committed is
    certified (R10)."""
    start: int = 0
    sealed_at: int | None = None
    successors: tuple[Partition, ...] = ()
    messages: int = 0
    bytes: int = 0
    acts: int = 0
    """Appends so far; grows with each, also one that stores no message (R9)."""
    total: QueueTotal = field(default_factory=QueueTotal)
    """The queue's, this partition included; set by the storage. `add` and `remove` move it."""

    def state(self) -> PartitionState:
        """For looking at."""
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
        """`count` messages of `size` bytes are appended: they have the next offsets."""
        self.next_offset += count
        self.messages += count
        self.bytes += size
        self.total.messages += count
        self.total.bytes += size

    def remove(self, count: int, size: int) -> None:
        """`count` retained messages of `size` bytes go: trimmed, or damaged. Where damage has made
        it more than there was, everything goes, so that the queue's total stays the sum."""
        count, size = min(count, self.messages), min(size, self.bytes)
        self.messages -= count
        self.bytes -= size
        self.total.messages -= count
        self.total.bytes -= size

    def drop_all(self) -> None:
        """Nothing below the end is retained any more."""
        self.remove(self.messages, self.bytes)
        self.start = self.next_offset

    def refusal(self, append: Append, count: int, size: int) -> str | None:
        """Why `count` more messages of `size` bytes in all cannot be stored; None: they can. Of
        several, each may fit by itself nevertheless. What never fits is told from what waits."""
        if self.sealed_at is not None:
            return SEALED
        if 0 < append.message_bytes_max < size:
            return "message_too_large"
        if self.next_offset + count > limits.OFFSET_MAX:
            return "limit_reached"
        total = self.total
        if (append.messages_max and total.messages + count > append.messages_max) or (
            append.bytes_max and total.bytes + size > append.bytes_max
        ):
            return "queue_full"
        return None


@dataclass(slots=True)
class Effect:
    """What an append changed and a storage has to write. No row when `appended.count` is 0."""

    appended: Appended
    size: int
    """Bytes of the messages that were stored."""
    lines: dict[bytes, ProducerLine] = field(default_factory=dict)
    ids: list[tuple[bytes, int]] = field(default_factory=list)
    """(digest, offset) of client ids to be remembered."""


def open_header(append: Append) -> Header:
    """The record's header, checked against its payload, unless it comes with what it says.

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
    return header


def nowhere(count: int) -> Appended:
    """The answer for a partition that does not exist."""
    outcomes = (NotStored("queue_not_found"),) * count
    return Appended(0, 0, 0, 0, outcomes, tuple(range(count)))


def append_record(
    log: PartitionLog,
    append: Append,
    header: Header,
    *,
    line_of: Callable[[bytes], ProducerLine],
    find_ids: Callable[[list[bytes]], dict[bytes, int]],
    refuse: str | None,
) -> Effect:
    """Append to the log what is new of a record.

    `line_of` gives the partition's line of a producer, `find_ids` the offsets of those client ids
    that are remembered; `refuse` is a code that every new message is answered with. Changes the
    log and the lines.
    """
    log.acts += 1
    size = sum(header.sizes)
    if refuse is None and not header.digests and log.refusal(append, header.count, size) is None:
        runs = _runs(header, line_of)
        if runs is not None:
            return _append_whole(log, header, size, runs)
    return _append_singly(log, append, header, line_of=line_of, find_ids=find_ids, refuse=refuse)


@dataclass(slots=True)
class _Run:
    """Consecutive messages of one producer with the same `resolved`."""

    producer: bytes
    line: ProducerLine
    resolved: int
    first: int
    sequences: "array[int]"


def _runs(header: Header, line_of: Callable[[bytes], ProducerLine]) -> list[_Run] | None:
    """The record's runs when all of them are new; None: judge message by message.

    Changes nothing. The cost is that of the runs, not of the messages.
    """
    indexes, count = header.producer_indexes, header.count
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


def _append_whole(log: PartitionLog, header: Header, size: int, runs: list[_Run]) -> Effect:
    first, count = log.next_offset, header.count
    for run in runs:
        run.line.add_run(run.sequences, first + run.first, run.resolved)
    log.add(count, size)
    appended = Appended(first, count, log.next_offset, log.generation)
    return Effect(appended, size, {run.producer: run.line for run in runs})


def _append_singly(
    log: PartitionLog,
    append: Append,
    header: Header,
    *,
    line_of: Callable[[bytes], ProducerLine],
    find_ids: Callable[[list[bytes]], dict[bytes, int]],
    refuse: str | None,
) -> Effect:
    first, count = log.next_offset, header.count
    digests = header.digests if append.dedup_window_s > 0 else []
    known = find_ids([digest for digest in digests if digest != NO_DIGEST]) if digests else {}
    effect = Effect(Appended(first, 0, first, log.generation), 0)
    outcomes: list[Stored | NotStored] = []
    skips: list[int] = []
    for index in range(count):
        line, sequence = None, 0
        outcome: Stored | NotStored | None = None
        if header.producers and header.producer_indexes[index]:
            producer, resolved = header.producers[header.producer_indexes[index] - 1]
            line = effect.lines.get(producer)
            if line is None:
                line = effect.lines[producer] = line_of(producer)
            sequence = header.sequences[index]
            outcome = line.judge(sequence, resolved)
        digest = digests[index] if digests else NO_DIGEST
        if outcome is None:
            outcome = _place(log, append, header.sizes[index], known.get(digest), refuse)
            if isinstance(outcome, Stored):
                if line is not None:
                    line.add(sequence, outcome.offset)
                if digest != NO_DIGEST and not outcome.duplicate:
                    known[digest] = outcome.offset
                    effect.ids.append((digest, outcome.offset))
            elif line is not None:
                line.order.refuse(sequence)
        if isinstance(outcome, NotStored) or outcome.duplicate:
            skips.append(index)
        else:
            effect.size += header.sizes[index]
        outcomes.append(outcome)
    effect.appended = Appended(
        first,
        count - len(skips),
        log.next_offset,
        log.generation,
        tuple(outcomes) if skips else None,
        tuple(skips),
    )
    return effect


def _place(
    log: PartitionLog, append: Append, size: int, known: int | None, refuse: str | None
) -> Stored | NotStored:
    """Where a message goes that its producer's line does not know."""
    if known is not None:
        return Stored(known, duplicate=True)
    code = refuse or log.refusal(append, 1, size)
    if code is not None:
        return NotStored(code)
    offset = log.next_offset
    log.add(1, size)
    return Stored(offset)


class IdBuckets:
    """Which buckets of client ids a partition has, ascending. A bucket is the time (unix ms) until
    which its ids are remembered."""

    __slots__ = ("untils",)

    def __init__(self, untils: list[int]) -> None:
        self.untils = untils

    def add(self, until: int) -> None:
        """This bucket is in use."""
        if until not in self.untils:
            insort(self.untils, until)

    def live(self, wall_unix_ms: int) -> list[int]:
        """Buckets whose ids still count."""
        return [until for until in self.untils if until > wall_unix_ms]

    def passed(self, wall_unix_ms: int) -> list[int]:
        """Buckets whose rows can go."""
        return [until for until in self.untils if until <= wall_unix_ms]


KNOWN_MAX: Final = 10_000
"""Where one process has a store, only what is under way in it may still make something that was
dropped, and ends with it: so the latest are enough, and no file need know them."""


class Dropped:
    """Ids of the queues and groups that this process dropped last."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, any_id: str) -> None:
        """It was dropped, or is not there."""
        self._ids[any_id] = None
        if len(self._ids) > KNOWN_MAX:
            del self._ids[next(iter(self._ids))]

    def check_queue(self, queue_id: str) -> None:
        """Raises Refused(queue_not_found): it was."""
        if queue_id in self._ids:
            raise Refused("queue_not_found", f"the queue {queue_id} was dropped")

    def check_group(self, group_id: str) -> None:
        """Raises Refused(group_not_found): it was."""
        if group_id in self._ids:
            raise Refused("group_not_found", f"the group {group_id} was dropped")
