"""The due store of the embedded store: `push.storage_port.DueStore`.

Moves, cancellations and changes are tasks of the writer, which decide before they change anything.
Looks are reads. What they find damaged is quarantined by the writer, and leaves the due store
(R30).
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from push import limits
from push.due import DueMessage, DuePlace, DueRead, DueState, fate_mark
from push.errors import Refused
from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import PLAIN, Append, Appended, NotStored, Outcome, Sealer, Stored, WakeUp
from storage.rules.append import DUE_UNIX_MS_MAX, Effect, id_bucket, known_outcome, open_header
from storage.rules.due import (
    append_moved,
    are_there,
    changed,
    check_growth,
    check_moved,
    due_state,
    fate_of,
    ids_of_cancelled,
    ids_of_moved,
    marks_bucket,
    marks_of_moved,
)
from storage.sqlite import codec, due_rows
from storage.sqlite.codec import ROWS_MAX, StoredLog
from storage.sqlite.due_rows import find_remembered, find_waiting, read_buckets, row_ids_of
from storage.sqlite.reader import StoreReader, log_of, unpack_log
from storage.sqlite.state import WriteState
from storage.sqlite.writer import StoreWriter

# --- Tasks of the writer ------------------------------------------------------------------------


# enforces: P1, R29
def move(state: WriteState, messages: Sequence[DueMessage], append: Append) -> Appended | None:
    """Do `DueStore.move`, within the writer's batch."""
    header = open_header(append)
    check_moved(messages, header)
    log = state.find(append.partition)
    if log is None:
        return None
    numbers = [message.number for message in messages]
    versions = state.due.versions(log, numbers)
    waiting = {
        message.number: replace(message, version=versions[message.number])
        for message in messages
        if message.number in versions
    }
    if not are_there(messages, waiting):
        return None
    sealed = state.sealer.seal(append.partition, append.header, append.payload, header.count)
    marks = marks_of_moved(messages, log.next_offset)
    appended, size = append_moved(log, messages, header)
    wall, window_s = state.wall_unix_ms(), append.dedup_window_s
    state.ids.remember(log.row_id, marks, marks_bucket(wall, window_s))
    if ids := ids_of_moved(messages, window_s):
        state.ids.remember(log.row_id, ids, id_bucket(wall, window_s))
    state.due.delete(row_ids_of(log, numbers))
    state.add_record(log, Effect(appended, size), header, append.header, sealed)
    state.changed(log)
    return appended


def cancel(state: WriteState, partition: Partition, number: int, remember_s: float) -> bool:
    """Do `DueStore.cancel`, within the writer's batch. A damaged message does not wait."""
    found = _waiting(state, partition, number)
    if found is None:
        return False
    log, message, size = found
    until = id_bucket(state.wall_unix_ms(), remember_s)
    state.ids.remember(log.row_id, ids_of_cancelled(message), until)
    state.due.delete([codec.due_row_id(log.row_id, number)])
    log.leave_due(1, size)
    state.changed(log)
    return True


def change(state: WriteState, message: DueMessage, bytes_max: int, due_bytes_max: int) -> bool:
    """Do `DueStore.change`, within the writer's batch. A damaged message does not wait."""
    found = _waiting(state, message.partition, message.number)
    if found is None:
        return False
    log, before, size = found
    if before.version != message.version:
        return False
    after = changed(before, message)
    more = len(after.payload) - size
    check_growth(log, more, bytes_max, due_bytes_max, has_room=state.has_space())
    sealed = state.sealer.seal(after.partition, after.header(), after.payload, 1)
    log.resize_due(more)
    state.put_due(log, after, sealed)
    return True


def _waiting(
    state: WriteState, partition: Partition, number: int
) -> tuple[StoredLog, DueMessage, int] | None:
    """Return the log of a message that waits, the message with its payload as it is stored, and its
    size as JSON; None: it does not wait. If it is damaged, it is quarantined."""
    log = state.find(partition)
    row = state.due.row(log, number) if log is not None else None
    if log is None or row is None:
        return None
    _, _, _, _, size, *_ = row
    try:
        return log, due_rows.unpack_due(row, partition, PLAIN), size
    except RecordDamaged as damage:
        _put_aside(state, log, row, str(damage))
        return None


def quarantine_due(state: WriteState, partition: Partition, row_ids: Sequence[int]) -> list[int]:
    """Move these messages to the quarantine, unless they do not wait any more, or are sound after
    all. In the last case the reader met a fault of memory. Returns the numbers of those that were
    moved there."""
    state.flush()
    log = state.find(partition)
    gone: list[int] = []
    for row_id in row_ids if log is not None else ():
        row = state.due.row_at(row_id)
        if log is None or row is None or not _is_of(row, log):
            continue
        try:
            due_rows.unpack_due(row, partition, state.sealer)
        except RecordDamaged as damage:
            _put_aside(state, log, row, str(damage))
            gone.append(codec.number_of(row_id))
        except Refused:
            continue  # its key cannot be had now, so it was not this row that was damaged
    return gone


def _is_of(row: codec.Found, log: StoredLog) -> bool:
    """Whether a row, whose columns may be damaged, is among those that a partition's due store
    has."""
    row_id, store, *_ = row
    low, high = codec.due_row_id(log.row_id, log.due_start), codec.due_row_id(log.row_id + 1, 0)
    return bool(store == log.due_store or low <= row_id < high)


def _put_aside(state: WriteState, log: StoredLog, row: codec.Found, reason: str) -> None:
    """Move a damaged row, which is in the file, to the quarantine."""
    row_id, _, _, _, size, *_ = row
    state.transaction.begin().execute(
        f"INSERT OR REPLACE INTO due_quarantine ({due_rows.DUE_COLUMNS}, found_unix_ms, reason) "
        f"SELECT {due_rows.DUE_COLUMNS}, ?, ? FROM due WHERE id = ?",
        (state.wall_unix_ms(), reason, row_id),
    )
    state.due.delete([row_id])
    log.leave_due(1, max(codec.number_in(size), 0))
    state.changed(log)
    state.report(
        f"damaged: the scheduled message of number {codec.number_of(row_id)} in partition "
        f"{log.partition.number} of {log.partition.queue_id}: {reason}; it is in the quarantine"
    )


# --- Reads --------------------------------------------------------------------------------------


Bad = list[int]
"""Row ids of scheduled messages that were found damaged."""


def read_first(
    connection: sqlite3.Connection,
    partition: Partition,
    until_unix_ms: int,
    *,
    count_max: int,
    bytes_max: int,
    sealer: Sealer,
) -> tuple[DueRead, Bad]:
    """Answer `DueStore.first`. Only the payloads of its messages are read."""
    log = log_of(connection, partition)
    if log is None:
        return DueRead(()), []
    row_ids: list[int] = []
    size, next_unix_ms = 0, None
    rows = connection.execute(
        "SELECT id, due_unix_ms, bytes FROM due INDEXED BY due_in_order WHERE store = ? "
        "ORDER BY due_unix_ms, id",
        (log.due_store,),
    )
    for row_id, *numbers in rows:  # no checksum vouches for them: what is damaged is due now
        due_unix_ms, row_bytes = map(codec.number_in, numbers)
        size += row_bytes
        is_full = len(row_ids) == count_max or (row_ids and size > bytes_max)
        if due_unix_ms > until_unix_ms or is_full:
            next_unix_ms = due_unix_ms
            break
        row_ids.append(row_id)
    rows.close()
    messages, bad = _open(connection, partition, row_ids, sealer)
    return DueRead(messages, next_unix_ms, generation=log.generation), bad


def read_some(
    connection: sqlite3.Connection,
    partition: Partition,
    *,
    key_hash: int | None,
    id_hash: int | None,
    after: DuePlace | None,
    count_max: int,
    bytes_max: int,
    sealer: Sealer,
) -> tuple[DueRead, Bad]:
    """Answer `DueStore.look`. Only the payloads of its messages are read."""
    log = log_of(connection, partition)
    if log is None:
        return DueRead(()), []
    index, where, values = "due_in_order", "store = ?", [log.due_store]
    # A hash of 0, of what has no key or no id, is in no index.
    for column, name, hashed in (
        ("key_hash", "due_by_key", key_hash),
        ("id_hash", "due_by_id", id_hash),
    ):
        if hashed is not None:
            where += f" AND {column} = ?"
            values.append(codec.signed(hashed))
        if hashed:
            where += f" AND {column} != 0"
            index = name
    rows: list[codec.Found] = []
    for more, places in _parts(log, after):
        rows += connection.execute(
            f"SELECT id, due_unix_ms, bytes FROM due INDEXED BY {index} WHERE {where} AND {more} "
            "ORDER BY due_unix_ms, id LIMIT ?",
            (*values, *places, count_max + 1 - len(rows)),
        ).fetchall()
    sizes = accumulate(codec.number_in(size) for _, _, size in rows[:count_max])
    count = max(sum(size <= bytes_max for size in sizes), min(len(rows), 1))
    next_unix_ms = codec.number_in(rows[count][1]) if len(rows) > count else None
    row_ids = [row_id for row_id, _, _ in rows[:count]]
    messages, bad = _open(connection, partition, row_ids, sealer)
    return DueRead(messages, next_unix_ms, generation=log.generation), bad


def _parts(log: StoredLog, after: DuePlace | None) -> list[tuple[str, tuple[int, ...]]]:
    """Return the conditions, with their values, under which messages follow a place: those that are
    due at the same time, and then those that are due later. Each is a range of an index, whatever
    number of messages is due at one time. A comparison of pairs would be none."""
    if after is None:
        return [("TRUE", ())]
    due_unix_ms = min(max(after.due_unix_ms, 0), DUE_UNIX_MS_MAX)  # it comes from a client
    number = min(max(after.number, -1), limits.OFFSET_MAX)
    row_id = codec.due_row_id(log.row_id, 0) + number  # -1: before number 0
    return [
        ("due_unix_ms = ? AND id > ?", (due_unix_ms, row_id)),
        ("due_unix_ms > ?", (due_unix_ms,)),
    ]


def read_numbers(
    connection: sqlite3.Connection, partition: Partition, numbers: Sequence[int], sealer: Sealer
) -> tuple[DueRead, Bad]:
    """Answer `DueStore.find`."""
    log = log_of(connection, partition)
    row_ids = row_ids_of(log, numbers) if log is not None else []
    messages, bad = _open(connection, partition, row_ids, sealer)
    return DueRead(messages), bad


def _open(
    connection: sqlite3.Connection, partition: Partition, row_ids: Sequence[int], sealer: Sealer
) -> tuple[tuple[DueMessage, ...], Bad]:
    """Return the opened messages of those of these rows that exist, in this order, and the row ids
    of the damaged ones."""
    opened: dict[int, DueMessage] = {}
    bad: Bad = []
    for low in range(0, len(row_ids), ROWS_MAX):
        some = row_ids[low : low + ROWS_MAX]
        for row in connection.execute(
            f"SELECT {due_rows.DUE_COLUMNS} FROM due WHERE id IN ({','.join('?' * len(some))})",
            some,
        ):
            row_id = row[0]
            try:
                opened[row_id] = due_rows.unpack_due(row, partition, sealer)
            except RecordDamaged:
                bad.append(row_id)
    return tuple(opened[row_id] for row_id in row_ids if row_id in opened), bad


def read_states(connection: sqlite3.Connection, queue_id: str) -> list[DueState]:
    """Answer `DueStore.states`."""
    states: list[DueState] = []
    for row in connection.execute(
        f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? ORDER BY number",
        (queue_id,),
    ).fetchall():
        log = unpack_log(row)
        (first_unix_ms,) = connection.execute(
            "SELECT min(due_unix_ms) FROM due INDEXED BY due_in_order WHERE store = ?",
            (log.due_store,),
        ).fetchone()
        if first_unix_ms is not None:
            first_unix_ms = codec.number_in(first_unix_ms)
        states.append(due_state(log, first_unix_ms))
    return states


class _Ids:
    """The client ids that a partition knows, in log and due store, as the file has them."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        log: StoredLog,
        wall_unix_ms: int,
        report: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._log = log
        self._live = read_buckets(connection, log.row_id).live(wall_unix_ms)
        self._report = report

    def find(self, digests: list[bytes]) -> dict[bytes, int]:
        """Return digest -> place of those of these ids that are known."""
        waiting = find_waiting(self._connection, self._log, digests)
        if not self._live:
            return waiting
        row_id = self._log.row_id
        remembered = find_remembered(self._connection, row_id, self._live, digests, self._report)
        return {**waiting, **remembered}


class SqliteDueStore:
    """`push.storage_port.DueStore` of an embedded storage, made by it."""

    def __init__(
        self, state: WriteState, writer: StoreWriter, reader: StoreReader, sealer: Sealer
    ) -> None:
        self._state = state
        self._writer = writer
        self._reader = reader
        self._sealer = sealer

    def on_due(self, noticed: WakeUp) -> None:
        self._writer.due_noticed = noticed

    async def first(
        self, partition: Partition, until_unix_ms: int, *, count_max: int, bytes_max: int
    ) -> DueRead:
        return await self._read(
            partition,
            partial(
                read_first,
                partition=partition,
                until_unix_ms=until_unix_ms,
                count_max=count_max,
                bytes_max=bytes_max,
                sealer=self._sealer,
            ),
        )

    async def look(
        self,
        partition: Partition,
        *,
        key_hash: int | None = None,
        id_hash: int | None = None,
        after: DuePlace | None = None,
        count_max: int = 100,
        bytes_max: int = limits.LOOK_BYTES_MAX,
    ) -> DueRead:
        return await self._read(
            partition,
            partial(
                read_some,
                partition=partition,
                key_hash=key_hash,
                id_hash=id_hash,
                after=after,
                count_max=count_max,
                bytes_max=bytes_max,
                sealer=self._sealer,
            ),
        )

    async def find(self, partition: Partition, numbers: Sequence[int]) -> list[DueMessage]:
        read = await self._read(
            partition,
            lambda connection: read_numbers(connection, partition, numbers, self._sealer),
        )
        return [*read.messages]

    async def _read(
        self, partition: Partition, work: Callable[[sqlite3.Connection], tuple[DueRead, Bad]]
    ) -> DueRead:
        """Read, and have what is damaged quarantined (R30)."""
        read, bad = await self._reader.read(work)
        if not bad or self._writer.failure:
            return read
        task = partial(quarantine_due, self._state, partition, bad)
        return replace(read, damaged=tuple(await self._writer.submit(task)))

    async def move(self, messages: Sequence[DueMessage], append: Append) -> Appended | None:
        size = len(append.header) + len(append.payload)
        return await self._writer.submit(partial(move, self._state, messages, append), size)

    async def cancel(self, partition: Partition, number: int, *, remember_s: float) -> bool:
        return await self._writer.submit(
            partial(cancel, self._state, partition, number, remember_s)
        )

    async def change(
        self, message: DueMessage, *, bytes_max: int = 0, due_bytes_max: int = 0
    ) -> bool:
        work = partial(change, self._state, message, bytes_max, due_bytes_max)
        return await self._writer.submit(work, len(message.payload))

    async def fate(self, partition: Partition, number: int) -> Stored | NotStored | None:
        if not 0 <= number < limits.OFFSET_MAX:  # it comes from a client
            return None
        mark = fate_mark(number)

        def look(connection: sqlite3.Connection) -> Stored | NotStored | None:
            ids = self._ids(connection, partition)
            return fate_of(ids.find([mark]).get(mark)) if ids is not None else None

        return await self._reader.read(look)

    async def known(self, partition: Partition, digest: bytes) -> Outcome | None:
        def look(connection: sqlite3.Connection) -> Outcome | None:
            ids = self._ids(connection, partition)
            place = ids.find([digest]).get(digest) if ids is not None else None
            return known_outcome(place, ids.find) if ids is not None and place is not None else None

        return await self._reader.read(look)

    def _ids(self, connection: sqlite3.Connection, partition: Partition) -> _Ids | None:
        """Return the client ids that a partition knows; None: there is no such partition."""
        log = log_of(connection, partition)
        if log is None:
            return None
        return _Ids(connection, log, self._state.wall_unix_ms(), self._state.report)

    async def states(self, queue_id: str) -> list[DueState]:
        return await self._reader.read(lambda connection: read_states(connection, queue_id))
