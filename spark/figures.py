"""What a report shows, out of the lake's tables: plain values, small whatever the log was."""

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import latency, periods, sketches, usage
from spark.lake import Lake, read_json
from spark.order_audit import RESULT
from spark.schema import REPLAY

COLUMNS_MAX: Final = 120
"""Of the plots over time: with more, minutes become hours and hours days."""
ROWS_MAX: Final = 15
BOUNDS_US: Final = [round(10 ** (2 + step / 4)) for step in range(26)]
"""Of the heat map: four to a decade, from 100 µs to 180 s. What is beyond is in the outermost."""
UNITS: Final = {"minute": "latency_minute", "hour": "latency_hour", "day": "latency_day"}


@dataclass(kw_only=True)
class Figures:
    """All of a report."""

    first: datetime.datetime | None
    last: datetime.datetime | None
    unit: str
    bounds_us: list[int] = field(default_factory=lambda: list(BOUNDS_US))
    over_time: list[dict[str, Any]] = field(default_factory=list)
    """start, messages, percentiles and `cells`, how many messages took how long, of deliveries."""
    queues: list[dict[str, Any]] = field(default_factory=list)
    """Deliveries of each queue and group, the slowest p99 first."""
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    """Queue → stage → mean microseconds."""
    causes: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    files: int = 0


def collect(
    spark: SparkSession, lake: Lake, *, since: datetime.date | None, until: datetime.date | None
) -> Figures:
    """The figures of these days, both ends included; None: of all there are."""

    def table(name: str) -> DataFrame:
        rows = lake.read_rollup(spark, name, periods.SCHEMAS[name])
        return rows.where(_within(since, until))

    unit, first, last = _unit(table("count_minute"), table("count_hour"))
    figures = Figures(first=first, last=last, unit=unit)
    delivered = F.col("stage") == latency.DELIVERY
    live = delivered & (F.coalesce("cause", F.lit("")) != REPLAY)
    figures.over_time = _over_time(table(UNITS[unit]).where(live))
    days = table("latency_day")
    slowest = periods.over(days.where(live), "queue", "group").orderBy(F.desc("p99_us"), "queue")
    figures.queues = _rows(slowest.drop("sketch"), ROWS_MAX)
    figures.stages = _stages(days)
    waited = periods.over(days.where(F.col("stage") == latency.WAITING), "cause")
    figures.causes = _rows(waited.drop("sketch").orderBy(F.desc("total_us")), ROWS_MAX)
    keys = table("key_hour").groupBy("queue", "key").agg(
        F.sum("messages").alias("messages"),
        F.sum("waited_us").alias("waited_us"),
        F.max("max_us").alias("max_us"),
    )  # fmt: skip
    figures.keys = _rows(keys.orderBy(F.desc("waited_us"), "key"), ROWS_MAX)
    counts = table("count_day").groupBy("kind", "what").agg(F.sum("messages").alias("messages"))
    figures.counts = _rows(counts.orderBy("kind", F.desc("messages")))
    used = lake.read_rollup(spark, usage.TABLE, usage.SCHEMA).where(_within(since, until))
    figures.usage = _rows(used.orderBy("date", "tenant"))
    figures.audit = read_json(lake.root / RESULT, {})
    for manifest in lake.manifests():
        figures.files += len(manifest["files"])
        for reason, lines in manifest["quarantined"].items():
            figures.quarantined[reason] = figures.quarantined.get(reason, 0) + lines
    return figures


def _within(since: datetime.date | None, until: datetime.date | None) -> Column:
    inside = F.lit(True)
    if since is not None:
        inside = inside & (F.col("date") >= F.lit(since))
    if until is not None:
        inside = inside & (F.col("date") <= F.lit(until))
    return inside


def _rows(rows: DataFrame, most: int | None = None) -> list[dict[str, Any]]:
    few = rows if most is None else rows.limit(most)
    return [row.asDict() for row in few.collect()]


def _unit(
    minutes: DataFrame, hours: DataFrame
) -> tuple[str, datetime.datetime | None, datetime.datetime | None]:
    """The smallest unit of which not too many make up all of it; when that began and ended."""
    first, end, count = _span(minutes, datetime.timedelta(minutes=1))
    if 0 < count <= COLUMNS_MAX:
        return "minute", first, end
    first, end, count = _span(hours, datetime.timedelta(hours=1))
    return ("hour" if count <= COLUMNS_MAX else "day"), first, end


def _span(
    rows: DataFrame, step: datetime.timedelta
) -> tuple[datetime.datetime | None, datetime.datetime | None, int]:
    found = rows.agg(
        F.min("start").alias("first"), F.max("start").alias("last"),
        F.count_distinct("start").alias("count"),
    ).first()  # fmt: skip
    assert found is not None
    first, last = found["first"], found["last"]
    return first, last + step if last is not None else None, found["count"]


def _over_time(rows: DataFrame) -> list[dict[str, Any]]:
    each = periods.over(rows, "start").withColumn("ranks", sketches.ranks("sketch", BOUNDS_US))
    found = _rows(each.drop("sketch").orderBy("start"))
    for row in found:
        row["cells"] = cells(row["ranks"], row["messages"])
    return found


def cells(ranks: Sequence[float], messages: int) -> list[float]:
    """How many messages lie between each two bounds, of the parts at most as long as each bound;
    what is beyond the outermost counts with them."""
    closed = [0.0, *ranks[1:-1], 1.0]
    return [(above - below) * messages for below, above in itertools.pairwise(closed)]


def _stages(days: DataFrame) -> dict[str, dict[str, float]]:
    parts = days.where(F.col("stage").isin(*latency.STAGES))
    sums = parts.groupBy("queue", "stage").agg(
        (F.sum("total_us") / F.sum("messages")).alias("mean_us"),
        F.sum("messages").alias("messages"),
    )
    found: dict[str, dict[str, float]] = {}
    for row in sums.orderBy(F.desc("messages"), "queue").collect():
        found.setdefault(row["queue"], {})[row["stage"]] = row["mean_us"]
    return dict(list(found.items())[:ROWS_MAX])
