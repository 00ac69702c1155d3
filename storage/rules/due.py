"""Decisions of the due store: what a move, a cancellation and a change make of it. Pure.

`storage.rules.append` takes messages into it. The storages in memory and in SQLite decide with
this; the functions in Lua of the Redis storage decide by the same rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from push import limits
from push.due import CANCELLED, TICKET, DueMessage, DueState, fate_mark, has_id, sizes_of
from push.errors import Refused
from push.record import NO_DIGEST, Header
from push.storage_port import Append, Appended, NotStored, Stored
from storage.rules.append import CANCELLED_BEFORE, PartitionLog, id_bucket

FATES_S_MIN: Final = 300.0


def due_state(
    log: PartitionLog, first_unix_ms: int | None, store_unix_ms: int | None = None
) -> DueState:
    """Return the state of a log's due store for inspection, which has these two."""
    count, size = log.due_messages, log.due_bytes
    return DueState(log.partition, count, size, log.due_next, first_unix_ms, store_unix_ms)


def check_growth(
    log: PartitionLog, more: int, bytes_max: int, due_bytes_max: int, *, has_room: bool
) -> None:
    """Check that a message of the due store may grow by `more` bytes, if that is more than 0.
    Raises Refused: storage_full, queue_full, schedule_full."""
    if more <= 0:
        return
    if not has_room:
        raise Refused("storage_full", "the storage is at its reserve: it may not grow")
    if 0 < due_bytes_max < log.total.due_bytes + more:
        raise Refused("schedule_full", "what is scheduled has no room for a larger message")
    if 0 < bytes_max < log.total.bytes + more:
        raise Refused("queue_full", "the queue has no room for a larger message")


def due_messages(
    append: Append, header: Header, due: Iterable[tuple[int, int]]
) -> list[DueMessage]:
    """Return what goes to the due store of a record. `due`: (index in the record, number) of its
    messages that were scheduled."""
    found: list[DueMessage] = []
    begin, starts = 0, []
    for size in header.sizes:
        starts.append(begin)
        begin += size + 1
    for index, number in due:
        found.append(
            DueMessage(
                partition=append.partition,
                number=number,
                version=0,
                due_unix_ms=header.deliver_at_unix_ms[index],
                published_unix_ms=header.published_unix_ms,
                key_hash=header.key_hashes[index],
                id_hash=header.id_hashes[index] if header.id_hashes else 0,
                digest=header.digests[index] if header.digests else NO_DIGEST,
                payload=append.payload[starts[index] : starts[index] + header.sizes[index]],
            )
        )
    return found


def are_there(messages: Sequence[DueMessage], due: Mapping[int, DueMessage]) -> bool:
    """Whether all of these messages are in a due store in the versions that are named, each
    named once."""
    numbers = {message.number for message in messages}
    return len(numbers) == len(messages) > 0 and all(
        (waiting := due.get(message.number)) is not None and waiting.version == message.version
        for message in messages
    )


# enforces: P1, R29, R32
def append_moved(
    log: PartitionLog, messages: Sequence[DueMessage], header: Header
) -> tuple[Appended, int]:
    """Append a record to the log that has the forms of these messages in the log, which leave the
    due store. Returns the answer, and the record's bytes as JSON.

    Raises:
        Refused: limit_reached: the log has given out every offset.
    """
    check_offsets(log, header.count)
    first, size = log.next_offset, sum(header.sizes)
    log.leave_due(len(messages), sizes_of(messages))
    log.add(header.count, size)
    return Appended(first, header.count, log.next_offset, log.generation), size


def check_moved(messages: Sequence[DueMessage], header: Header) -> None:
    """Raise Refused if a record is not what `DueStore.move` appends for these messages: it has
    another number of messages, or names producers, ids or due times."""
    if header.count != len(messages) or (
        header.producers or header.digests or header.deliver_at_unix_ms
    ):
        raise Refused("invalid_message", "record: it does not have just the messages that move")


def check_offsets(log: PartitionLog, count: int) -> None:
    """Raise Refused if a log has no room for `count` more offsets."""
    if log.next_offset + count > limits.OFFSET_MAX:
        raise Refused("limit_reached", "the partition has given out every offset that it has")


def ids_of_moved(messages: Sequence[DueMessage], dedup_window_s: float) -> list[tuple[bytes, int]]:
    """Return (digest, place) of the client ids of messages that move: they still name the tickets
    (P4). They are remembered for the window; [] without one."""
    if dedup_window_s <= 0:
        return []
    return [(one.digest, TICKET + one.number) for one in messages if has_id(one.digest)]


def marks_of_moved(messages: Sequence[DueMessage], first: int) -> list[tuple[bytes, int]]:
    """Return (digest, place) by which the tickets of messages that move lead to the offsets from
    `first` on. They are remembered until `marks_bucket`."""
    return [(fate_mark(one.number), first + at) for at, one in enumerate(messages)]


def marks_bucket(wall_unix_ms: int, dedup_window_s: float) -> int:
    """Return the time (unix ms) until which is remembered what became of tickets whose messages
    leave the due store now: as `id_bucket`, but for FATES_S_MIN at least, whatever ids count."""
    return id_bucket(wall_unix_ms, max(dedup_window_s, FATES_S_MIN))


def ids_of_cancelled(message: DueMessage) -> list[tuple[bytes, int]]:
    """Return (digest, place) of what is to be remembered of a message that is cancelled."""
    ids = [(message.digest, TICKET + message.number)] if has_id(message.digest) else []
    return [*ids, (fate_mark(message.number), CANCELLED)]


def changed(before: DueMessage, message: DueMessage) -> DueMessage:
    """Return what a change makes of a message: due time and payload are those of `message`."""
    return replace(
        before,
        version=before.version + 1,
        due_unix_ms=message.due_unix_ms,
        payload=message.payload,
    )


def fate_of(place: int | None) -> Stored | NotStored | None:
    """Return what became of a message, by what its ticket leads to; None: nothing is known."""
    if place is None:
        return None
    return CANCELLED_BEFORE if place == CANCELLED else Stored(place)


# enforces: R27
def check_sealable(log: PartitionLog) -> None:
    """Raise Refused if a partition cannot be sealed, because messages wait in its due store, which
    do not go to its successors."""
    if log.due_messages:
        raise Refused(
            "invalid_request",
            f"{log.due_messages} scheduled messages wait in the partition: it can be sealed when "
            "they are moved or cancelled",
        )
