"""Lines of text → rows of the tables, each with its fault. Pure.

A line is believed if it is one JSON object of this schema and of a known kind. It must have all
fields that its kind needs, and runs and keys that fit each other. The result has every line once:
as a row of its kind, as a quarantined line with its reason, or passed over (`end`, unknown kinds).
"""

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark import schema
from spark.schema import CERTIFIED, KINDS, SETTLED

NOT_JSON: Final = "not_json"
WRONG_SCHEMA: Final = "schema"
MISSING: Final = "missing_field"
WRONG_RUNS: Final = "runs"
WRONG_KEYS: Final = "keys"
WRONG_TIME: Final = "time"
DAMAGED_FILE: Final = "damaged_file"
LATE: Final = "late"
"""The fault of a line whose day is closed. The day's figures stay, and nothing is left to add the
line to."""

_FIRST_US: Final = 946_684_800_000_000  # 2000-01-01
_LAST_US: Final = 7_258_118_400_000_000  # 2200-01-01
_CORRUPT: Final = "_corrupt"
_DIGITS_MAX: Final = 256
"""The largest number of digits of a mask. A push has at most 1,024 messages."""
_MASK: Final = rf"\A0x[1-9a-f][0-9a-f]{{0,{_DIGITS_MAX - 1}}}\z"


def parse(lines: DataFrame) -> DataFrame:
    """Parse lines: `value`, `file` and other columns → the same with the fields of LINE.

    Absent fields have the protocol's meaning. Adds `messages`, `times`, `at_unix_us`, `date` and
    `hour`.
    """
    shape = StructType([*schema.LINE.fields, StructField(_CORRUPT, schema.LINE["kind"].dataType)])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = lines.withColumn("line", F.from_json("value", shape, options))
    flat = read.select(*lines.columns, "line.*")
    return _filled(flat)


# --- Pushes -------------------------------------------------------------------------------------


def _number(push: Column, index: Column | int) -> Column:
    return F.get(push, index).try_cast("bigint")


def _is_plain(push: Column) -> Column:
    """Return the condition for a push with one range, as almost all have.

    Lines of such pushes take a short way, because a function of a list costs a hundred times what
    an expression does.
    """
    is_timed = F.get(push, 1).isNull() | _number(push, 1).isNotNull()
    is_ranged = (_number(push, 2) >= 0) & _number(push, 3).isNotNull()
    return F.coalesce((F.size(push) == 4) & is_timed & is_ranged, F.lit(False))


def _run_of(push: Column, first: Column, last: Column) -> Column:
    return F.array(_number(push, 0), first, F.try_add(F.try_subtract(last, first), F.lit(1)))


def _runs_of_push(push: Column) -> Column:
    """Return the runs of a push in order, those of a mask message by message. Something that is no
    push gets a run that is not good."""
    is_masked = (F.size(push) == 4) & F.get(push, 3).rlike(_MASK)
    is_even = (F.size(push) >= 4) & (F.size(push) % 2 == 0)
    is_timed = F.get(push, 1).isNull() | _number(push, 1).isNotNull()
    is_good = is_even & is_timed & (_number(push, 2) >= 0)  # null: not good, either
    bad = F.array(F.array(F.lit(-1).cast("bigint")))
    return F.when(is_good & is_masked, _masked(push)).when(is_good, _ranged(push)).otherwise(bad)


def _ranged(push: Column) -> Column:
    def run(index: Column) -> Column:
        return _run_of(push, _number(push, 2 * index + 2), _number(push, 2 * index + 3))

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
    """Return the places of the bits that are set in each digit."""
    found: list[Column] = []
    for digit in range(16):
        bits = [F.lit(bit) for bit in range(4) if digit >> bit & 1]
        found += (F.lit(f"{digit:x}"), F.array(*bits).cast("array<int>"))
    return F.create_map(*found)


def _runs_of_pushes() -> Column:
    plain = F.transform("pushes", lambda push: _run_of(push, _number(push, 2), _number(push, 3)))
    return F.when(F.col("plain"), plain).otherwise(F.flatten(F.transform("pushes", _runs_of_push)))


def _times_of_pushes() -> Column:
    """Return the time at which each of the runs was dispatched."""

    def times(push: Column) -> Column:
        return F.array_repeat(_number(push, 1), F.size(_runs_of_push(push)))

    plain = F.transform("pushes", lambda push: _number(push, 1))
    return F.when(F.col("plain"), plain).otherwise(F.flatten(F.transform("pushes", times)))


# --- Lines --------------------------------------------------------------------------------------


def _messages_of(runs: str) -> Column:
    """Return the number of messages of the runs; -1 if a run is not [partition, first, count]."""

    def added(sum_: Column, run: Column) -> Column:
        partition, first, count = [F.get(run, index) for index in range(3)]
        is_good = (F.size(run) == 3) & (partition >= 0) & (first >= 0) & (count > 0) & (sum_ >= 0)
        bad = F.lit(-1).cast("bigint")
        return F.when(is_good, F.coalesce(F.try_add(sum_, count), bad)).otherwise(bad)

    return F.aggregate(runs, F.lit(0).cast("bigint"), added)


def _filled(flat: DataFrame) -> DataFrame:
    kind = F.col("kind")
    settled = flat.withColumn("plain", F.forall("pushes", _is_plain))
    is_settled = kind == SETTLED
    flat = settled.withColumns(
        {
            "runs": F.when(is_settled, _runs_of_pushes()).otherwise(F.col("runs")),
            "times": F.when(is_settled, _times_of_pushes()),
        }
    )
    at = F.lit(None).cast("bigint")
    for name, fields in schema.TIME.items():
        at = F.when(kind == name, F.coalesce(*fields)).otherwise(at)
    numbers = ("stepped_us", "bytes", "duplicates", "certified", "dispatched", "settled", "spans",
               "open", "dying")  # fmt: skip
    zeros = {name: F.coalesce(F.col(name), F.lit(0)) for name in numbers}
    timed = flat.withColumns(
        zeros
        | {
            "recipients": F.coalesce("recipients", F.lit(1)),
            "messages": F.coalesce(_messages_of("runs"), "messages", F.lit(0)),
            "attempt": F.coalesce("attempt", F.lit(1)),
            "keys": F.try_to_binary(F.coalesce("keys", F.lit("")), F.lit("base64")),
            "at_unix_us": at,
        }
    )
    moment = F.timestamp_micros(time())
    return timed.withColumns({"date": F.to_date(moment), "hour": F.hour(moment)})


def time() -> Column:
    """Return `at_unix_us`; null for a time before the year 2000 or after 2199."""
    return F.when(F.col("at_unix_us").between(_FIRST_US, _LAST_US), F.col("at_unix_us"))


def judge(parsed: DataFrame, *, closed_before: str) -> DataFrame:
    """Add `fault`, the reason why a line is not believed; null if it is believed or passed over.

    Needs the column `whole`, whether the file is as it was written. `closed_before` is a date, ""
    for none.
    """
    known = F.col("kind").isin(*KINDS)
    late = F.lit(False) if not closed_before else F.col("date") < F.lit(closed_before).cast("date")
    fault = (
        F.when(~F.col("whole"), DAMAGED_FILE)
        .when(F.col(_CORRUPT).isNotNull() | F.col("kind").isNull(), NOT_JSON)
        .when(~F.coalesce("schema", F.lit(0)).isin(*schema.SCHEMAS), WRONG_SCHEMA)
        .when(known & _is_missing(), MISSING)
        .when(known & F.col("runs").isNotNull() & ~(F.col("messages") >= 0), WRONG_RUNS)
        .when(known & F.coalesce(_messages_of("duplicate_runs") < 0, F.lit(False)), WRONG_RUNS)
        .when((F.col("kind") == CERTIFIED) & ~_keys_are_good(), WRONG_KEYS)
        .when(known & F.col("date").isNull(), WRONG_TIME)
        .when(known & late, LATE)
    )
    return parsed.withColumn("fault", fault)


def _is_missing() -> Column:
    """Return the condition for a line that lacks a field of its kind."""

    def lacks(kind: str) -> Column:
        absent = [F.col(name).isNull() for name in (*schema.REQUIRED[kind], "at_unix_us")]
        return (F.col("kind") == kind) & reduce(or_, absent)

    certified = (F.col("kind") == CERTIFIED) & F.col("runs").isNotNull()
    times = F.col("asked_unix_us").isNull() | F.col("certified_unix_us").isNull()
    return reduce(or_, map(lacks, KINDS)) | (certified & times)


def _keys_are_good() -> Column:
    """Return the condition for a line with one hash for each message of its runs."""
    has_runs = ~F.coalesce(F.col("outcome"), F.lit("")).isin(*schema.PLACELESS)
    wanted = F.when(has_runs, F.col("messages")).otherwise(0) * schema.KEY_BYTES
    return F.coalesce(F.length("keys") == wanted, F.lit(False))


def staged(judged: DataFrame) -> DataFrame:
    """Return the row of each line, with the columns of STAGED, and with `kind`, `date` and `hour`:
    the table and the folders that it belongs to."""
    is_bad, kind = F.col("fault").isNotNull(), F.col("kind")
    is_kept = ~is_bad & kind.isin(*KINDS)
    place = F.when(is_bad, schema.QUARANTINE).when(is_kept, kind).otherwise(schema.PASSED)
    special = {
        "value": F.when(is_bad, F.col("value")),
        "named": F.when(place == schema.PASSED, kind),
        "reason": F.coalesce("fault", "reason"),
        "dispatched_unix_us": F.col("times"),
    }
    columns = [
        special.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
        for field in schema.STAGED.fields
    ]
    folders = [F.when(is_kept, F.col(name)).alias(name) for name in ("date", "hour")]
    return judged.select(*columns, place.alias("kind"), *folders)
