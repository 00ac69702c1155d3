"""Job: who used how much, by tenant and day, from two books that must agree.

The broker keeps a usage log, for billing, and the delivery log, for explaining. What came in and
went out stands in both, counted in different places of it. Where they differ by more than what
`unlogged` lines account for, one of them is wrong.
"""

from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, DoubleType, LongType, StringType

from spark.lake import Lake
from spark.periods import COUNT_HOURS
from spark.schema import CERTIFIED, DISPATCHED, INTERNAL, UNKNOWN, UNLOGGED, struct

LINE: Final = struct(
    schema=LongType(), minute_unix_ms=LongType(), span_s=DoubleType(), tenant=StringType(),
    principal=StringType(), queue=StringType(), overflow=BooleanType(), requests=LongType(),
    messages_in=LongType(), bytes_in=LongType(), duplicates=LongType(), messages_out=LongType(),
    bytes_out=LongType(), redeliveries=LongType(), refusals=LongType(), websocket_s=DoubleType(),
    long_poll_s=DoubleType(),
)  # fmt: skip
"""A line of the usage log, but for `refusals_by_code`."""
TABLE: Final = "usage_day"
SCHEMA: Final = struct(
    tenant=StringType(), messages_in=LongType(), bytes_in=LongType(), messages_out=LongType(),
    used_messages_in=LongType(), used_bytes_in=LongType(), used_messages_out=LongType(),
    requests=LongType(), refusals=LongType(), connected_s=DoubleType(), date=DateType(),
)  # fmt: skip
"""`used_…` are of the usage log, null where it has no line; the others of the delivery log."""


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """The lines of a usage log, but for those that were torn."""
    if not any(folder.glob("*.jsonl")):
        return spark.createDataFrame([], LINE)
    text = spark.read.option("lineSep", "\n").text(str(folder / "*.jsonl"))
    lines = text.select(F.from_json("value", LINE).alias("line")).select("line.*")
    return lines.where(F.col("minute_unix_ms").isNotNull())


def of_usage(lines: DataFrame) -> DataFrame:
    """The usage log by tenant and day. What names no tenant is of none."""
    connected = F.coalesce("websocket_s", F.lit(0.0)) + F.coalesce("long_poll_s", F.lit(0.0))
    return lines.groupBy(
        F.to_date(F.timestamp_millis("minute_unix_ms")).alias("date"), "tenant"
    ).agg(
        F.sum("messages_in").alias("used_messages_in"),
        F.sum("bytes_in").alias("used_bytes_in"),
        F.sum("messages_out").alias("used_messages_out"),
        F.sum("requests").alias("requests"),
        F.sum("refusals").alias("refusals"),
        F.sum(connected).alias("connected_s"),
    )


def of_deliveries(counts: DataFrame) -> DataFrame:
    """The delivery log by tenant and day, of counts by the hour. What the broker published by
    itself is nobody's usage."""

    def total(column: str, kind: str, which: Column) -> Column:
        return F.sum(F.when((F.col("kind") == kind) & which, F.col(column)).otherwise(0))

    came = (F.col("what") != UNKNOWN) & (F.col("transport") != INTERNAL)
    return counts.groupBy("date", "tenant").agg(
        total("messages", CERTIFIED, came).alias("messages_in"),
        total("bytes", CERTIFIED, came).alias("bytes_in"),
        total("messages", DISPATCHED, F.lit(True)).alias("messages_out"),
    )


def reconciled(deliveries: DataFrame, used: DataFrame) -> DataFrame:
    """Both, side by side."""
    theirs = used.withColumnsRenamed({"tenant": "used_tenant", "date": "used_date"})
    same = (F.col("date") == F.col("used_date")) & F.col("tenant").eqNullSafe(F.col("used_tenant"))
    both = deliveries.join(theirs, on=same, how="full_outer")
    named = both.withColumns(
        {"date": F.coalesce("date", "used_date"), "tenant": F.coalesce("tenant", "used_tenant")}
    )
    zeros = {name: F.coalesce(F.col(name), F.lit(0)) for name in ("messages_in", "bytes_in",
                                                                  "messages_out")}  # fmt: skip
    return named.withColumns(zeros).select(
        *[F.col(field.name).cast(field.dataType) for field in SCHEMA.fields]
    )


def usage(spark: SparkSession, lake: Lake, folder: Path | None) -> dict[str, Any]:
    """Write the table of usage; `folder` has the usage log, None: there is none.

    Returns the sums over all days of both books, and what was never logged: `messages_in`,
    `messages_out`, `used_messages_in`, `used_messages_out`, `unlogged_in`, `unlogged_out`.
    """
    counts = lake.read_rollup(spark, "count_hour", COUNT_HOURS)
    lines = spark.createDataFrame([], LINE) if folder is None else read(spark, folder)
    table = reconciled(of_deliveries(counts), of_usage(lines)).persist()
    try:
        lake.write_rollup(table.repartition(1), TABLE, "date")
        sums = table.agg(
            *[
                F.coalesce(F.sum(name), F.lit(0)).alias(name)
                for name in ("messages_in", "messages_out", "used_messages_in", "used_messages_out")
            ]
        ).first()
    finally:
        table.unpersist()
    lost = lake.read(spark, UNLOGGED).agg(
        F.coalesce(F.sum("certified"), F.lit(0)).alias("unlogged_in"),
        F.coalesce(F.sum("dispatched"), F.lit(0)).alias("unlogged_out"),
    ).first()  # fmt: skip
    assert sums is not None
    assert lost is not None
    return {**sums.asDict(), **lost.asDict()}
