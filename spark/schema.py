"""The fields of a line of the delivery log, and their columns: explicit, never inferred.

The names are those of docs/operations/delivery-log.md. A line is one JSON object of one `kind`, in
which null and 0 are left out. LINE has the fields of all kinds. SPANS has the columns of a table
for each kind, one row a line. A line without a REQUIRED field is damaged. TIME has the fields of
each kind that decide the hour of a line. A new kind is an entry in each of KINDS, SPANS, REQUIRED
and TIME, with its fields in LINE.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

SCHEMAS: Final = (1, 2, 3)
"""The versions of lines that this code understands. In the first one no push has a mask, in the
second one no message is scheduled."""

CERTIFIED: Final = "certified"
DISPATCHED: Final = "dispatched"
SETTLED: Final = "settled"
POSITION: Final = "position"
UNLOGGED: Final = "unlogged"
END: Final = "end"
KINDS: Final = (CERTIFIED, DISPATCHED, SETTLED, POSITION, UNLOGGED)
"""The kinds with a table. Other kinds are passed over, because new ones may come."""
QUARANTINE: Final = "quarantine"
"""The place of lines that are not believed."""
PASSED: Final = "passed"
"""The place of lines that are counted and not kept."""

ACKED: Final = "acked"
GONE: Final = "gone"
"""The outcome of a message in whose place nothing was retained."""
DYING: Final = "dying"
"""The outcome of a message that goes to the dead letters, durably. Later messages of its key
continue."""
FINAL: Final = (ACKED, "dead_lettered", GONE)
"""Outcomes with which a message comes to its end in a group."""
PARKED: Final = "parked"
"""The outcome of the first message of a key that is parked. The message had come back already, in
another line."""
RETURNED: Final = ("nacked", "expired", "returned", PARKED)
"""Outcomes after which a message is given again. Later messages of its key wait until then."""
UNKNOWN: Final = "unknown"
"""The outcome of a publish if it is not known whether its messages are stored. The line has no
runs."""
SCHEDULED: Final = "scheduled"
"""The outcome of a publish whose messages wait until they are due. The line has no runs; another
one has, when the broker moves them into their queue."""
PLACELESS: Final = (UNKNOWN, SCHEDULED)
"""Outcomes whose lines have no runs, and count no certified messages."""
LATE: Final = "late"
"""The outcome of a publish that was answered `unknown` before, and was certified after all."""
AGAIN: Final = "lease"
"""The cause of a message that was given before, without counting as an attempt."""
BACKLOG: Final = "backlog"
REPLAY: Final = "replay"
"""The cause of a message from the stored log to a reader that started in the past or had fallen
behind. It is no latency of the broker."""
INTERNAL: Final = "internal"
"""The transport of messages that the broker itself published or settled."""

KEY_BYTES: Final = 8
NO_KEY: Final = "0" * 16
"""The hash of messages without a key, which have no promised order."""

RUNS: Final = ArrayType(ArrayType(LongType()))
TIMES: Final = ArrayType(LongType())
"""The times at which the runs were dispatched."""
PUSHES: Final = ArrayType(ArrayType(StringType()))
"""The pushes of a `settled` line: [partition, time, first, last, first, last, …], or [partition,
time, first, mask].

All are numbers except the mask, which is hexadecimal. The table has `runs` and `dispatched_unix_us`
instead.
"""


def struct(**fields: DataType) -> StructType:
    """Return columns that may be null."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_LINE_LONGS: Final = (
    "schema", "stepped_us", "messages", "produced_unix_us", "clock_offset_us", "accepted_unix_us",
    "asked_unix_us", "certified_unix_us", "due_unix_us", "bytes", "duplicates", "attempt",
    "recipients",
    "published_unix_ms", "dispatched_unix_us", "written_unix_us", "settled_unix_us",
    "since_unix_us", "until_unix_us", "spans", "certified", "dispatched", "settled", "lines",
    "crc32", "at_unix_us", "partition", "epoch", "frontier", "open", "dying", "ahead",
    "certified_below",
)  # fmt: skip
_LINE_STRINGS: Final = (
    "kind", "gateway", "tenant", "queue", "queue_id", "group", "session", "transport", "producer",
    "level", "outcome", "reason", "keys", "trace", "cause",
    "group_id", "event",
)  # fmt: skip

LINE: Final = struct(
    **{name: LongType() for name in _LINE_LONGS},
    **{name: StringType() for name in _LINE_STRINGS},
    runs=RUNS, duplicate_runs=RUNS, pushes=PUSHES, sessions=ArrayType(StringType()),
    recovered=BooleanType(), is_clean=BooleanType(),
)  # fmt: skip

_WHERE: Final[dict[str, DataType]] = {
    "gateway": StringType(), "stepped_us": LongType(), "tenant": StringType(),
    "queue": StringType(), "queue_id": StringType(), "session": StringType(),
    "transport": StringType(), "runs": RUNS, "messages": LongType(), "at_unix_us": LongType(),
    "file": StringType(),
}  # fmt: skip

SPANS: Final = {
    CERTIFIED: struct(
        **_WHERE, producer=StringType(), level=StringType(), outcome=StringType(),
        produced_unix_us=LongType(), clock_offset_us=LongType(), accepted_unix_us=LongType(),
        asked_unix_us=LongType(), certified_unix_us=LongType(), due_unix_us=LongType(),
        bytes=LongType(), keys=BinaryType(), trace=StringType(), duplicates=LongType(),
        duplicate_runs=RUNS,
    ),
    DISPATCHED: struct(
        **_WHERE, group=StringType(), recipients=LongType(), attempt=LongType(),
        cause=StringType(), certified_unix_us=LongType(), published_unix_ms=LongType(),
        dispatched_unix_us=LongType(), written_unix_us=LongType(),
    ),
    SETTLED: struct(
        **_WHERE, group=StringType(), outcome=StringType(), reason=StringType(),
        settled_unix_us=LongType(), dispatched_unix_us=TIMES,
    ),
    POSITION: struct(
        gateway=StringType(), stepped_us=LongType(), tenant=StringType(), queue=StringType(),
        queue_id=StringType(), group=StringType(), group_id=StringType(), partition=LongType(),
        epoch=LongType(), event=StringType(), frontier=LongType(), open=LongType(),
        dying=LongType(), ahead=LongType(), certified_below=LongType(), is_clean=BooleanType(),
        at_unix_us=LongType(), file=StringType(),
    ),
    UNLOGGED: struct(
        gateway=StringType(), since_unix_us=LongType(), until_unix_us=LongType(),
        spans=LongType(), certified=LongType(), dispatched=LongType(), settled=LongType(),
        reason=StringType(), at_unix_us=LongType(), file=StringType(),
    ),
}  # fmt: skip
"""The columns of each table without those of its folders. `messages` is the number that one
recipient received, or that the line is about. `at_unix_us` is the time that decides the date and
hour of the line, in UTC."""

REQUIRED: Final = {
    CERTIFIED: ("gateway", "queue", "queue_id", "accepted_unix_us"),
    DISPATCHED: ("gateway", "queue", "queue_id", "runs", "published_unix_ms"),
    SETTLED: ("gateway", "queue", "queue_id", "runs", "group", "outcome"),
    POSITION: (
        "gateway",
        "queue",
        "queue_id",
        "group",
        "group_id",
        "partition",
        "epoch",
        "event",
        "frontier",
    ),
    UNLOGGED: ("gateway", "since_unix_us", "certified", "dispatched", "settled"),
}
"""The required fields beside the line's time. Fields left out because they are 0 are filled in
before."""

TIME: Final = {
    CERTIFIED: ("certified_unix_us", "accepted_unix_us"),
    DISPATCHED: ("dispatched_unix_us",),
    SETTLED: ("settled_unix_us",),
    POSITION: ("at_unix_us",),
    UNLOGGED: ("until_unix_us",),
}
"""The fields that decide the hour of a line. The first one that the line has counts."""

DERIVED: Final = {DISPATCHED: {"dispatched_unix_us": "at_unix_us"}}
"""Columns of a table that equal another one, which alone is stored. `dispatched_unix_us` is a list
in the rows of `settled`, and all kinds are written at once."""

FOLDERS: Final = struct(date=DateType(), hour=IntegerType(), batch=IntegerType())
"""The columns in the names of folders: date=2026-01-31/hour=23/batch=7."""


def table(kind: str) -> StructType:
    """Return all columns of the table of a kind."""
    return StructType([*SPANS[kind].fields, *FOLDERS.fields])


def stored(kind: str) -> StructType:
    """Return the columns in the files of a kind's table, and in the names of its folders: all but
    the DERIVED ones."""
    derived = DERIVED.get(kind, {})
    return StructType([field for field in table(kind).fields if field.name not in derived])


def _staged() -> StructType:
    columns: dict[str, DataType] = {"value": StringType(), "named": StringType()}
    for kind in KINDS:
        for field in stored(kind).fields:
            if field.name not in FOLDERS.names:
                known = columns.setdefault(field.name, field.dataType)
                assert known == field.dataType, f"{field.name} has two types"
    return struct(**columns)


STAGED: Final = _staged()
"""The row of any line while its batch is under way, with the columns of all kinds.

`value` and `reason` belong to a line that is not believed. `named` is the kind of a line that is
passed over.
"""
PLACE: Final = struct(kind=StringType(), date=DateType(), hour=IntegerType())
"""The columns in the names of the folders of a batch that is under way."""
