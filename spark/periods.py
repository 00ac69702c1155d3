"""Stages and spans → figures of minutes, hours and days. Pure."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from spark import latency, sketches
from spark.matching import key_at
from spark.schema import CERTIFIED, DISPATCHED, NO_KEY, SETTLED, struct

MINUTE: Final = "minute"
HOUR: Final = "hour"
DAY: Final = "day"

_BY: Final = (*latency.DIMENSIONS, "stage")
_SUMS: Final = ("messages", "total_us", "missed")
_NAMES: Final = {name: StringType() for name in _BY}
_FIGURES: Final = {
    "messages": LongType(), "total_us": LongType(), "min_us": LongType(), "max_us": LongType(),
    "target_us": LongType(), "missed": LongType(),
    **{name: LongType() for name in sketches.RANKS},
}  # fmt: skip

HOURS: Final = struct(
    start=TimestampType(), **_NAMES, **_FIGURES, sketch=BinaryType(), date=DateType(),
    hour=IntegerType(),
)  # fmt: skip
"""Of hours, and of minutes, which stay only as long as the spans they are made of: the sketches of
1,440 minutes a day are not small."""
DAYS: Final = struct(
    start=TimestampType(), **_NAMES, **_FIGURES, sketch=BinaryType(), date=DateType()
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
SCHEMAS: Final[dict[str, StructType]] = {
    "latency_minute": HOURS, "latency_hour": HOURS, "latency_day": DAYS,
    "count_minute": COUNT_HOURS, "count_hour": COUNT_HOURS, "count_day": COUNT_DAYS,
    "key_hour": KEYS,
}  # fmt: skip

KEYS_MAX: Final = 100
"""Of a queue and hour are kept: those whose messages waited longest, all together."""


def targets(default_us: int | None, of_queue: dict[str, int]) -> Column:
    """The target of `queue`: how long a delivery may take. Null, where there is none."""
    target = F.lit(default_us).cast("bigint")
    for name, us in of_queue.items():
        target = F.when(F.col("queue") == name, F.lit(us).cast("bigint")).otherwise(target)
    return F.when(F.col("stage") == latency.DELIVERY, target)


def minutes(stages: DataFrame, target: Column) -> DataFrame:
    """Each stage by the minute, with a sketch. `missed`: how many messages took longer than
    `target`; none, where there is no target."""
    at = F.timestamp_micros("at_unix_us")
    rows = stages.withColumn("target_us", target).select(
        *_BY, "target_us", "duration_us", "messages",
        F.date_trunc("minute", at).alias("start"),
    )  # fmt: skip
    # A sketch knows no weights: a duration that a hundred messages share is told a hundred times.
    each = rows.select("*", F.explode(F.sequence(F.lit(1).cast("bigint"), "messages"))).drop("col")
    return each.groupBy("start", *_BY).agg(
        F.count("*").alias("messages"),
        F.sum("duration_us").alias("total_us"),
        F.min("duration_us").alias("min_us"),
        F.max("duration_us").alias("max_us"),
        F.max("target_us").alias("target_us"),
        F.count_if(F.col("duration_us") > F.col("target_us")).alias("missed"),
        sketches.sketch("duration_us").alias("sketch"),
    )


def merged(rows: DataFrame, *by: str) -> DataFrame:
    """Rows with sketches merged into rows with sketches, told apart by these columns."""
    return rows.groupBy(*by).agg(
        *[F.sum(name).alias(name) for name in _SUMS],
        F.min("min_us").alias("min_us"),
        F.max("max_us").alias("max_us"),
        F.max("target_us").alias("target_us"),
        sketches.merged("sketch").alias("sketch"),
    )


def longer(rows: DataFrame, unit: str) -> DataFrame:
    """Minutes → hours, hours → days."""
    return merged(rows.withColumn("start", F.date_trunc(unit, "start")), "start", *_BY)


def over(rows: DataFrame, *by: str) -> DataFrame:
    """The figures of all rows together, with percentiles: of a month, of each queue."""
    return sketches.with_percentiles(merged(rows, *by))


def dated(rows: DataFrame, name: str) -> DataFrame:
    """The columns of the table of this name, in their order."""
    shape = SCHEMAS[name]
    moment = {"date": F.to_date("start"), "hour": F.hour("start")}
    more = {key: column for key, column in moment.items() if key in shape.names}
    missing = {key for key in shape.names if key not in (*rows.columns, *more)}
    if missing & set(sketches.RANKS):
        rows = sketches.with_percentiles(rows)
    full = rows.withColumns({k: v for k, v in more.items() if k not in rows.columns})
    return full.select(*[F.col(field.name).cast(field.dataType) for field in shape.fields])


# --- Counts -------------------------------------------------------------------------------------


def counted(kind: str, spans: DataFrame) -> DataFrame:
    """Lines and messages of a kind by the minute. `what` is the outcome (`certified`, where the
    line has none), or why it was not dispatched at once."""
    none = F.lit(0).cast("bigint")
    what, weight, size, twice = {
        CERTIFIED: (F.coalesce("outcome", F.lit(kind)), F.col("messages"), "bytes", "duplicates"),
        DISPATCHED: (F.col("cause"), F.col("messages") * F.col("recipients"), None, None),
        SETTLED: (F.col("outcome"), F.col("messages"), None, None),
    }[kind]  # fmt: skip
    group = F.col("group") if "group" in spans.columns else F.lit(None).cast("string")
    return spans.groupBy(
        F.date_trunc("minute", F.timestamp_micros("at_unix_us")).alias("start"),
        "tenant", "queue", group.alias("group"), "transport", "gateway",
        F.lit(kind).alias("kind"), what.alias("what"),
    ).agg(
        F.count("*").alias("lines"),
        F.sum(weight).alias("messages"),
        (F.sum(size) if size else F.first(none)).alias("bytes"),
        (F.sum(twice) if twice else F.first(none)).alias("duplicates"),
    )  # fmt: skip


def longer_counts(rows: DataFrame, unit: str) -> DataFrame:
    """Minutes → hours, hours → days."""
    start = F.date_trunc(unit, "start")
    sums = [F.sum(name).alias(name) for name in _COUNTED]
    return rows.withColumn("start", start).groupBy("start", *COUNTS_BY).agg(*sums)


# --- Keys ---------------------------------------------------------------------------------------


def slowest_keys(deliveries: DataFrame) -> DataFrame:
    """(start, tenant, queue, key, messages, waited_us, max_us) of the keys of each queue and hour
    whose messages waited longest between certified and dispatched, all together. `deliveries` is
    what `latency.deliveries` made."""
    each = deliveries.select(
        "tenant", "queue", "waiting_us", "keys", "key_place",
        F.date_trunc("hour", F.timestamp_micros("at_unix_us")).alias("start"),
        F.explode(F.sequence(F.lit(0).cast("bigint"), F.col("count") - 1)).alias("place"),
    )  # fmt: skip
    keyed = each.withColumn("key", key_at(F.col("key_place") + F.col("place")))
    sums = (
        keyed.where(F.col("key") != NO_KEY)
        .groupBy("start", "tenant", "queue", "key")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.greatest("waiting_us", F.lit(0).cast("bigint"))).alias("waited_us"),
            F.max("waiting_us").alias("max_us"),
        )
    )
    order = Window.partitionBy("start", "tenant", "queue").orderBy(F.desc("waited_us"), "key")
    ranked = sums.withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= KEYS_MAX).drop("rank")
