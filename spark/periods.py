"""Stages and spans → figures of minutes, hours and days. Pure.

All figures go one way, in one pass, because each pass costs more than a small log has. `of_stages`,
`counted`, `slowest_keys` and `uncovered` make rows of one shape, ROW: a part, names, and sums.
`figures` adds them up by the minute, then by each unit of their part. It returns the rows of all
tables, each with the name of its `table`.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from spark import latency, sketches
from spark.matching import hex_of, key_at
from spark.schema import CERTIFIED, DISPATCHED, KEY_BYTES, SETTLED, struct

MINUTE: Final = "minute"
HOUR: Final = "hour"
DAY: Final = "day"
_LASTS_US: Final = {MINUTE: 60_000_000, HOUR: 3_600_000_000, DAY: 86_400_000_000}

LATENCY: Final = "latency"
COUNT: Final = "count"
KEY: Final = "key"
OPEN: Final = "open"
"""Deliveries whose publish is in no line yet: the number of messages of each hour."""
UNITS: Final = {
    LATENCY: (MINUTE, HOUR, DAY), COUNT: (MINUTE, HOUR, DAY), KEY: (HOUR,), OPEN: (HOUR,),
}  # fmt: skip
"""The tables: each part by these units."""

_BY: Final = (*latency.DIMENSIONS, "stage")
_NAMES: Final = {name: StringType() for name in _BY}
_FIGURES: Final = {
    "messages": LongType(), "total_us": LongType(), "min_us": LongType(), "max_us": LongType(),
    "target_us": LongType(), "missed": LongType(),
    **{name: LongType() for name in sketches.RANKS},
}  # fmt: skip

HOURS: Final = struct(
    start=TimestampType(), **_NAMES, **_FIGURES, sketch=sketches.SKETCH, date=DateType(),
    hour=IntegerType(),
)  # fmt: skip
"""The columns of hours, and of minutes. Minutes stay only as long as the spans they are made of,
because the sketches of 1,440 minutes a day are not small."""
DAYS: Final = struct(
    start=TimestampType(), **_NAMES, **_FIGURES, sketch=sketches.SKETCH, date=DateType()
)

COUNTS_BY: Final = ("tenant", "queue", "group", "transport", "gateway", "kind", "what")
_COUNTED: Final = {name: LongType() for name in ("lines", "messages", "bytes", "duplicates")}
_COUNT_NAMES: Final = {name: StringType() for name in COUNTS_BY}
COUNT_HOURS: Final = struct(
    start=TimestampType(), **_COUNT_NAMES, **_COUNTED, date=DateType(), hour=IntegerType()
)
COUNT_DAYS: Final = struct(start=TimestampType(), **_COUNT_NAMES, **_COUNTED, date=DateType())
KEYS: Final = struct(
    start=TimestampType(), tenant=StringType(), queue=StringType(), key=StringType(),
    messages=LongType(), waited_us=LongType(), max_us=LongType(), date=DateType(),
    hour=IntegerType(),
)  # fmt: skip
OPEN_HOURS: Final = struct(messages=LongType(), date=DateType(), hour=IntegerType())
SCHEMAS: Final[dict[str, StructType]] = {
    "latency_minute": HOURS, "latency_hour": HOURS, "latency_day": DAYS,
    "count_minute": COUNT_HOURS, "count_hour": COUNT_HOURS, "count_day": COUNT_DAYS,
    "key_hour": KEYS, "open_hour": OPEN_HOURS,
}  # fmt: skip

_SUMS: Final = ("lines", "messages", "total_us", "missed")
_APART: Final = (*_BY, "key")
ROW: Final = struct(
    part=StringType(), start_us=LongType(), **_NAMES, key=StringType(), bucket=IntegerType(),
    **{name: LongType() for name in _SUMS},
    min_us=LongType(), max_us=LongType(), target_us=LongType(),
)  # fmt: skip
"""The rows that are added up. In a count, `stage` is its kind, `cause` is `what`, `total_us` the
bytes and `missed` the duplicates. In a key, `total_us` is the time for which its messages waited. A
field that a part does not have is null."""

KEYS_MAX: Final = 100
"""The number of keys kept for a queue and hour: those whose messages waited longest in total."""


# --- Rows of parts ------------------------------------------------------------------------------


def _rows(rows: DataFrame, part: str, start_us: Column, **columns: Column) -> DataFrame:
    """Return rows of ROW. A field is one of these columns, or else the column of its name in
    `rows`, or else null."""
    given = {"part": F.lit(part), "start_us": start_us} | columns
    full = []
    for field in ROW.fields:
        own = F.col(field.name) if field.name in rows.columns else F.lit(None)
        full.append(given.get(field.name, own).cast(field.dataType).alias(field.name))
    return rows.select(*full)


def _began_us(unit: str, at_us: Column) -> Column:
    """Return the beginning of the unit, in UTC, that contains a moment."""
    return at_us - F.pmod(at_us, F.lit(_LASTS_US[unit]))


def targets(default_us: int | None, of_queue: dict[str, int]) -> Column:
    """Return the target of `queue`, the time that a delivery may take; null if there is none."""
    target = F.lit(default_us).cast("bigint")
    for name, us in of_queue.items():
        target = F.when(F.col("queue") == name, F.lit(us).cast("bigint")).otherwise(target)
    return F.when(F.col("stage") == latency.DELIVERY, target)


def of_stages(stages: DataFrame, target: Column) -> DataFrame:
    """Return each duration that some messages share. `missed` is the number of messages that took
    longer than `target`; 0 without a target."""
    duration, messages = F.col("duration_us"), F.col("messages")
    return _rows(
        stages.withColumn("target_us", target),
        LATENCY,
        _began_us(MINUTE, F.col("at_unix_us")),
        bucket=sketches.bucket(duration),
        total_us=duration * messages,
        missed=F.when(duration > F.col("target_us"), messages).otherwise(0),
        min_us=duration,
        max_us=duration,
    )


def counted(kind: str, spans: DataFrame) -> DataFrame:
    """Return each line of a kind and its messages. `what` is the outcome (`certified` if the line
    has none), or the reason why it was not dispatched at once."""
    zero, messages = F.lit(0), F.col("messages")
    what, weight, size, twice = {
        CERTIFIED: (F.coalesce("outcome", F.lit(kind)), messages, F.col("bytes"),
                    F.col("duplicates")),
        DISPATCHED: (F.col("cause"), messages * F.col("recipients"), zero, zero),
        SETTLED: (F.col("outcome"), messages, zero, zero),
    }[kind]  # fmt: skip
    return _rows(
        spans.select(
            *[name for name in latency.DIMENSIONS if name in spans.columns and name != "cause"],
            "at_unix_us", weight.alias("messages"), what.alias("cause"), size.alias("total_us"),
            twice.alias("missed"),
        ),
        COUNT,
        _began_us(MINUTE, F.col("at_unix_us")),
        stage=F.lit(kind),
        lines=F.lit(1),
    )  # fmt: skip


def slowest_keys(deliveries: DataFrame) -> DataFrame:
    """Return the keys of each queue and hour whose messages waited longest, in total, from
    certified to dispatched. `deliveries` are the rows of `latency.deliveries`."""
    places = F.sequence(F.col("key_place"), F.col("key_place") + F.col("count") - 1)
    each = deliveries.select(
        "tenant", "queue", "waiting_us", "keys",
        _began_us(HOUR, F.col("at_unix_us")).alias("start_us"),
        F.explode(places).alias("place"),
    )  # fmt: skip
    begin = (F.col("place") * KEY_BYTES + 1).cast("int")
    keyed = each.withColumn("keys", F.substring("keys", begin, F.lit(KEY_BYTES)))
    sums = (
        keyed.where(F.col("keys") != F.lit(bytes(KEY_BYTES)))
        .groupBy("start_us", "tenant", "queue", "keys")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.greatest("waiting_us", F.lit(0).cast("bigint"))).alias("total_us"),
            F.max("waiting_us").alias("max_us"),
        )
    )
    order = Window.partitionBy("start_us", "tenant", "queue").orderBy(F.desc("total_us"), "keys")
    ranked = sums.withColumn("rank", F.row_number().over(order))
    slowest = ranked.where(F.col("rank") <= KEYS_MAX).withColumn("key", hex_of(key_at(F.lit(0))))
    return _rows(slowest, KEY, F.col("start_us"))


def uncovered(dispatched: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return first deliveries, less those whose publish is in a line. A rest above 0 is not
    ingested yet, or was never logged."""
    hour = _began_us(HOUR, F.col("at_unix_us"))
    given = latency.first_deliveries(dispatched).select("at_unix_us", "messages")
    known = deliveries.select("at_unix_us", (-F.col("count")).alias("messages"))
    return _rows(given.unionByName(known), OPEN, hour)


# --- Figures of rows ----------------------------------------------------------------------------


def _added(rows: DataFrame, *by: str) -> DataFrame:
    """Add up rows with the same names and buckets."""
    return rows.groupBy(*by).agg(
        *[F.sum(name).alias(name) for name in _SUMS],
        F.min("min_us").alias("min_us"),
        F.max("max_us").alias("max_us"),
        F.max("target_us").alias("target_us"),
    )


def _sketched(buckets: DataFrame, *by: str) -> DataFrame:
    """Turn rows of one bucket each into rows with sketches and percentiles, grouped by `by`."""
    rows = buckets.groupBy(*by).agg(
        *[F.sum(name).alias(name) for name in _SUMS],
        F.min("min_us").alias("min_us"),
        F.max("max_us").alias("max_us"),
        F.max("target_us").alias("target_us"),
        sketches.positions("bucket", "messages").alias("_positions"),
        sketches.sketch("bucket", "messages").alias("sketch"),
    )
    found = sketches.percentiles("_positions", "sketch", "min_us", "max_us")
    return rows.select("*", *found).drop("_positions")


def _buckets(rows: DataFrame, *by: str) -> DataFrame:
    """Turn rows with sketches into a row for each bucket. The sums of a row go with its first
    one."""
    each = rows.select(
        *by, "total_us", "missed", "min_us", "max_us", "target_us", F.posexplode("sketch")
    )
    once = [F.when(F.col("pos") == 0, F.col(name)).alias(name) for name in ("total_us", "missed")]
    return each.select(
        *by, *once, "min_us", "max_us", "target_us", "col.bucket", "col.messages",
        F.lit(None).cast("bigint").alias("lines"),
    )  # fmt: skip


def over(rows: DataFrame, *by: str) -> DataFrame:
    """Return figures of rows with sketches, added up for each value of the columns `by`, such as
    each queue."""
    return _sketched(_added(_buckets(rows, *by), *by, "bucket"), *by).drop("lines")


def of_hours(latencies: DataFrame, counts: DataFrame) -> DataFrame:
    """Return the rows of the tables of hours as rows of ROW."""
    start_us = F.unix_micros("start")
    lengths = _buckets(latencies, "start", *_BY)
    named = counts.withColumnsRenamed(
        {"kind": "stage", "what": "cause", "bytes": "total_us", "duplicates": "missed"}
    )
    return _rows(lengths, LATENCY, start_us).unionByName(_rows(named, COUNT, start_us))


def figures(parts: Sequence[DataFrame], older: DataFrame | None) -> DataFrame:
    """Return the rows of all tables, with `table`, `date` and `hour`, which is 0 for a day. `older`
    are the other hours of the same days."""
    minutes = _added(reduce(DataFrame.unionByName, parts), "part", "start_us", *_APART, "bucket")
    minutes = minutes.repartition("part", *_APART)
    rows = minutes.withColumn("unit", _units(UNITS))
    if older is not None:
        rows = rows.unionByName(older.withColumn("unit", _units(dict.fromkeys(UNITS, (DAY,)))))
    units = rows.drop("start_us").withColumn("unit", F.explode("unit")).select("*", "unit.*")
    by = ("part", *_APART, "table", "start_us")
    return _dated(_sketched(_added(units, *by, "bucket"), *by))


def _units(of_parts: dict[str, tuple[str, ...]]) -> Column:
    """Return (table, start_us) of each of the units that a row counts in."""
    found = F.lit(None)
    for part, units in of_parts.items():
        here = [
            F.struct(
                F.lit(f"{part}_{unit}").alias("table"),
                _began_us(unit, F.col("start_us")).alias("start_us"),
            )
            for unit in units
        ]
        found = F.when(F.col("part") == part, F.array(*here)).otherwise(found)
    return found


def _dated(rows: DataFrame) -> DataFrame:
    """Return the columns of all tables, each with its names."""
    is_count, is_key, is_latency = (F.col("part") == part for part in (COUNT, KEY, LATENCY))
    is_day = F.col("table").endswith(DAY)
    start = F.timestamp_micros("start_us")
    return rows.select(
        "table", start.alias("start"), "tenant", "queue", "group", "transport", "gateway", "key",
        *[F.when(is_latency, F.col(name)).alias(name) for name in ("cause", "stage", "total_us",
                                                                   "missed", "sketch")],
        *[F.when(is_count, F.col(name)).alias(as_) for name, as_ in (
            ("stage", "kind"), ("cause", "what"), ("total_us", "bytes"), ("missed", "duplicates"))],
        F.when(is_key, F.col("total_us")).alias("waited_us"),
        "lines", "messages", "min_us", "max_us", "target_us", *sketches.RANKS,
        F.to_date(start).alias("date"), F.when(is_day, 0).otherwise(F.hour(start)).alias("hour"),
    )  # fmt: skip
