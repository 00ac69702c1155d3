"""Lines of text → rows of the tables, each with what is wrong with it. Pure.

A line is believed when it is one JSON object of this schema, of a kind that is known, with all
that its kind needs, with runs and keys that fit each other. Whoever reads the result sees every
line once: as a row of its kind, as a quarantined line with its reason, or passed over (`end`, and
kinds that are not known here).
"""

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark import schema
from spark.schema import (
    CERTIFIED,
    DISPATCHED,
    KINDS,
    POSITION,
    SETTLED,
    SPANS,
    UNKNOWN,
    UNLOGGED,
)

NOT_JSON: Final = "not_json"
WRONG_SCHEMA: Final = "schema"
MISSING: Final = "missing_field"
WRONG_RUNS: Final = "runs"
WRONG_KEYS: Final = "keys"
WRONG_TIME: Final = "time"
DAMAGED_FILE: Final = "damaged_file"
LATE: Final = "late"
"""Its day is closed: what is rolled up of it stays, and there is nothing left to add it to."""

_FIRST_US: Final = 946_684_800_000_000  # 2000-01-01
_LAST_US: Final = 7_258_118_400_000_000  # 2200-01-01
_CORRUPT: Final = "_corrupt"
_DIGITS_MAX: Final = 256
"""Of a mask. A push has at most 1,024 messages."""
_MASK: Final = rf"\A0x[1-9a-f][0-9a-f]{{0,{_DIGITS_MAX - 1}}}\z"


def parse(lines: DataFrame) -> DataFrame:
    """`value`, `file` and whatever else → the same with the fields of LINE, absent ones as the
    protocol means them, and `messages`, `at_unix_us`, `date`, `hour`."""
    shape = StructType([*schema.LINE.fields, StructField(_CORRUPT, schema.LINE["kind"].dataType)])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = lines.withColumn("line", F.from_json("value", shape, options))
    flat = read.select(*lines.columns, "line.*")
    return _filled(flat)


def _number(push: Column, index: Column | int) -> Column:
    return F.get(push, index).try_cast("bigint")


def _runs_of_push(push: Column) -> Column:
    """The runs that it names, in order, those of a mask message by message; of what is no push, a
    run that is not good."""
    is_masked = (F.size(push) == 4) & F.get(push, 3).rlike(_MASK)
    is_even = (F.size(push) >= 4) & (F.size(push) % 2 == 0)
    is_timed = F.get(push, 1).isNull() | _number(push, 1).isNotNull()
    is_good = is_even & is_timed & (_number(push, 2) >= 0)  # null: not good, either
    bad = F.array(F.array(F.lit(-1).cast("bigint")))
    return F.when(is_good & is_masked, _masked(push)).when(is_good, _ranged(push)).otherwise(bad)


def _ranged(push: Column) -> Column:
    def run(index: Column) -> Column:
        first, last = _number(push, 2 * index + 2), _number(push, 2 * index + 3)
        return F.array(_number(push, 0), first, F.try_add(F.try_subtract(last, first), F.lit(1)))

    ranges = (F.size(push) / 2).cast("int") - 1
    return F.transform(F.sequence(F.lit(0), ranges - 1), run)


def _masked(push: Column) -> Column:
    digits = F.reverse(F.substring(F.get(push, 3), len("0x") + 1, _DIGITS_MAX))  # the lowest first
    bits = _bits_of_digits()

    def runs(place: Column) -> Column:
        def run(bit: Column) -> Column:
            offset = F.try_add(_number(push, 2), 4 * place + bit)
            return F.array(_number(push, 0), offset, F.lit(1).cast("bigint"))

        return F.transform(F.try_element_at(bits, F.substr(digits, place + 1, F.lit(1))), run)

    return F.flatten(F.transform(F.sequence(F.lit(0), F.length(digits) - 1), runs))


def _bits_of_digits() -> Column:
    """The places of the bits that are set in each digit."""
    found: list[Column] = []
    for digit in range(16):
        bits = [F.lit(bit) for bit in range(4) if digit >> bit & 1]
        found += (F.lit(f"{digit:x}"), F.array(*bits).cast("array<int>"))
    return F.create_map(*found)


def _pushed() -> Column:
    """Of each push of a `settled` line: its runs, and when it was given out."""
    return F.transform(
        "pushes",
        lambda push: F.struct(_runs_of_push(push).alias("runs"), _number(push, 1).alias("at")),
    )


def _times_of_runs() -> Column:
    """When each of the runs of a `settled` line was given out."""
    return F.flatten(
        F.transform("pushed", lambda push: F.array_repeat(push["at"], F.size(push["runs"])))
    )


def _filled(flat: DataFrame) -> DataFrame:
    flat = flat.withColumn("pushed", _pushed())
    runs = F.when(F.col("kind") == SETTLED, F.flatten("pushed.runs")).otherwise(F.col("runs"))
    flat = flat.withColumn("runs", runs)
    total = F.aggregate(
        "runs",
        F.lit(0).cast("bigint"),
        lambda sum_, run: F.try_add(sum_, F.coalesce(F.get(run, 2), F.lit(0))),
    )
    kind = F.col("kind")
    at = (
        F.when(kind == CERTIFIED, F.coalesce("certified_unix_us", "accepted_unix_us"))
        .when(kind == DISPATCHED, F.col("dispatched_unix_us"))
        .when(kind == SETTLED, F.col("settled_unix_us"))
        .when(kind == UNLOGGED, F.col("until_unix_us"))
        .when(kind == POSITION, F.col("at_unix_us"))
    )
    numbers = ("stepped_us", "bytes", "duplicates", "certified", "dispatched", "settled", "spans",
               "open", "dying")  # fmt: skip
    zeros = {name: F.coalesce(F.col(name), F.lit(0)) for name in numbers}
    timed = flat.withColumns(
        zeros
        | {
            "recipients": F.coalesce("recipients", F.lit(1)),
            "messages": F.coalesce(total, "messages", F.lit(0)),
            "attempt": F.coalesce("attempt", F.lit(1)),
            "keys": F.try_to_binary(F.coalesce("keys", F.lit("")), F.lit("base64")),
            "at_unix_us": at,
        }
    )
    moment = F.timestamp_micros(
        F.when(F.col("at_unix_us").between(_FIRST_US, _LAST_US), F.col("at_unix_us"))
    )
    return timed.withColumns({"date": F.to_date(moment), "hour": F.hour(moment)})


def judge(parsed: DataFrame, *, closed_before: str) -> DataFrame:
    """Add `fault`: why a line is not believed; null, where it is or is passed over.

    Needs `whole`: whether its file is as it was written. `closed_before` is a date, "" for none.
    """
    known = F.col("kind").isin(*KINDS)
    late = F.lit(False) if not closed_before else F.col("date") < F.lit(closed_before).cast("date")
    fault = (
        F.when(~F.col("whole"), DAMAGED_FILE)
        .when(F.col(_CORRUPT).isNotNull() | F.col("kind").isNull(), NOT_JSON)
        .when(~F.coalesce("schema", F.lit(0)).isin(*schema.SCHEMAS), WRONG_SCHEMA)
        .when(known & _is_missing(), MISSING)
        .when(known & ~_runs_are_good("runs"), WRONG_RUNS)
        .when(known & ~_runs_are_good("duplicate_runs"), WRONG_RUNS)
        .when((F.col("kind") == CERTIFIED) & ~_keys_are_good(), WRONG_KEYS)
        .when(known & F.col("date").isNull(), WRONG_TIME)
        .when(known & late, LATE)
    )
    return parsed.withColumn("fault", fault)


def _is_missing() -> Column:
    """Whether something that the kind needs is not there."""

    def lacks(kind: str) -> Column:
        absent = [F.col(name).isNull() for name in (*schema.REQUIRED[kind], "at_unix_us")]
        return (F.col("kind") == kind) & reduce(or_, absent)

    certified = (F.col("kind") == CERTIFIED) & F.col("runs").isNotNull()
    times = F.col("asked_unix_us").isNull() | F.col("certified_unix_us").isNull()
    return reduce(or_, map(lacks, KINDS)) | (certified & times)


def _runs_are_good(name: str) -> Column:
    """No runs, or runs that are [partition, first, count] with a count."""

    def good(run: Column) -> Column:
        numbers = [F.coalesce(F.get(run, index), F.lit(-1)) for index in range(3)]
        return (F.size(run) == 3) & (numbers[0] >= 0) & (numbers[1] >= 0) & (numbers[2] > 0)

    return F.col(name).isNull() | F.coalesce(F.forall(name, good), F.lit(False))


def _keys_are_good() -> Column:
    """One hash for each message of the runs."""
    has_runs = F.coalesce(F.col("outcome"), F.lit("")) != UNKNOWN
    wanted = F.when(has_runs, F.col("messages")).otherwise(0) * schema.KEY_BYTES
    return F.coalesce(F.length("keys") == wanted, F.lit(False))


def rows(judged: DataFrame, kind: str) -> DataFrame:
    """The rows of a table, with the columns of its folders but `batch`."""
    found = judged.where(F.col("fault").isNull() & (F.col("kind") == kind))
    if kind == SETTLED:
        found = found.withColumn("dispatched_unix_us", _times_of_runs())
    wanted = [F.col(field.name).cast(field.dataType) for field in SPANS[kind].fields]
    return found.select(*wanted, "date", "hour")


def faulty(judged: DataFrame) -> DataFrame:
    """The lines that are not believed, as they came."""
    return judged.where(F.col("fault").isNotNull()).select(
        "value", "file", F.col("fault").alias("reason")
    )
