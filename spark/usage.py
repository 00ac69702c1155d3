"""Job: usage by tenant and day, of two logs that must agree.

The broker keeps a usage log, for billing, and the delivery log, for explaining. Both have the
messages that came in and went out, counted in different places of the broker. A difference has
known reasons, see REASONS. If these do not explain all of it, one of the two logs is wrong.
"""

import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, DoubleType, LongType, StringType

from spark import files
from spark.lake import Lake, table_of
from spark.periods import COUNT_DAYS, COUNT_HOURS
from spark.schema import CERTIFIED, DISPATCHED, INTERNAL, UNKNOWN, UNLOGGED, struct

Day = tuple[datetime.date, str | None]
"""A date and a tenant."""
WAYS: Final = ("in", "out")
VERSION: Final = 1
"""The latest version of a line of usage that is understood."""

LINE: Final = struct(
    schema=LongType(), minute_unix_ms=LongType(), span_s=DoubleType(), tenant=StringType(),
    principal=StringType(), queue=StringType(), overflow=BooleanType(), requests=LongType(),
    messages_in=LongType(), bytes_in=LongType(), duplicates=LongType(), messages_out=LongType(),
    bytes_out=LongType(), redeliveries=LongType(), refusals=LongType(), websocket_s=DoubleType(),
    long_poll_s=DoubleType(),
)  # fmt: skip
"""A line of the usage log, without `refusals_by_code`."""
TABLE: Final = "usage_day"
SCHEMA: Final = struct(
    tenant=StringType(), messages_in=LongType(), bytes_in=LongType(), messages_out=LongType(),
    used_messages_in=LongType(), used_bytes_in=LongType(), used_messages_out=LongType(),
    requests=LongType(), refusals=LongType(), connected_s=DoubleType(), explained_in=LongType(),
    left_in=LongType(), explained_out=LongType(), left_out=LongType(), why=StringType(),
    date=DateType(),
)  # fmt: skip
"""The columns of the table. `used_…` are of the usage log, null if it has no line; the others are
of the delivery log.

`explained_…` is the part of the difference for which `why` names the reasons. It is above 0 if the
usage log has less. `left_…` is the rest. Both are null without a usage log.
"""

KILLED: Final = "killed"
UNLOGGED_LINES: Final = "unlogged"
UNFINISHED: Final = "unfinished"
BEFORE: Final = "before"
MIDNIGHT: Final = "midnight"
REASONS: Final = {
    KILLED: "a gateway was killed: the usage log is written by the minute, and lacks its last one",
    UNLOGGED_LINES: "the delivery log itself says that it lacks them",
    UNFINISHED: "one of the logs goes on behind the end of the other, which is not written yet",
    BEFORE: "one of the logs begins before the other",
    MIDNIGHT: "counted on two sides of midnight",
}
"""The reasons why the logs may differ, in the order in which they are tried."""


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the lines of a usage log without those that were torn, or are of a later version."""
    if not any(folder.glob("*.jsonl")):
        return table_of(spark, [], LINE)
    text = spark.read.option("lineSep", "\n").text(str(folder / "*.jsonl"))
    lines = text.select(F.from_json("value", LINE).alias("line")).select("line.*")
    is_known = F.coalesce("schema", F.lit(VERSION)) <= VERSION
    return lines.where(F.col("minute_unix_ms").isNotNull() & is_known)


def of_usage(lines: DataFrame) -> DataFrame:
    """Return the usage log by tenant and day. Lines that name no tenant belong to none."""
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


def _delivered(way: str) -> Column:
    """Return the messages of a count that came in, or went out. Messages that the broker itself
    published are nobody's usage."""
    came = (F.col("what") != UNKNOWN) & (F.col("transport") != INTERNAL)
    which = {"in": (F.col("kind") == CERTIFIED) & came, "out": F.col("kind") == DISPATCHED}[way]
    return F.when(which, F.col("messages")).otherwise(0)


def of_deliveries(counts: DataFrame) -> DataFrame:
    """Return the delivery log by tenant and day, from its counts."""
    return counts.groupBy("date", "tenant").agg(
        F.sum(_delivered("in")).alias("messages_in"),
        F.sum(F.when(_delivered("in") > 0, F.col("bytes")).otherwise(0)).alias("bytes_in"),
        F.sum(_delivered("out")).alias("messages_out"),
    )


def reconciled(deliveries: DataFrame, used: DataFrame) -> DataFrame:
    """Return both logs, side by side."""
    theirs = used.withColumnsRenamed({"tenant": "used_tenant", "date": "used_date"})
    same = (F.col("date") == F.col("used_date")) & F.col("tenant").eqNullSafe(F.col("used_tenant"))
    both = deliveries.join(theirs, on=same, how="full_outer")
    named = both.withColumns(
        {"date": F.coalesce("date", "used_date"), "tenant": F.coalesce("tenant", "used_tenant")}
    )
    zeros = {name: F.coalesce(F.col(name), F.lit(0)) for name in ("messages_in", "bytes_in",
                                                                  "messages_out")}  # fmt: skip
    known = [field for field in SCHEMA.fields if field.name in named.columns]
    return named.withColumns(zeros).select(
        *[F.col(field.name).cast(field.dataType) for field in known]
    )


# --- Differences --------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Clues:
    """Possible explanations of differences; of each day, (in, out)."""

    killed: dict[Day, tuple[int, int]] = field(default_factory=dict)
    """Messages in the delivery log, in the last minute of gateways that were killed."""
    unlogged: dict[datetime.date, tuple[int, int]] = field(default_factory=dict)
    """Messages that the delivery log says it lacks, of any tenant."""
    unfinished: dict[Day, tuple[int, int]] = field(default_factory=dict)
    """The difference after the end of one of the logs."""
    before: dict[Day, tuple[int, int]] = field(default_factory=dict)
    """The difference before the beginning of one of the logs."""
    midnight: dict[Day, tuple[int, int]] = field(default_factory=dict)
    """Messages in both logs, in the day's first and last minute."""


def find_reasons(rows: list[dict[str, Any]], clues: Clues) -> None:
    """Add `explained_…`, `left_…` and `why` to rows of the table."""
    why: dict[Day, set[str]] = {(row["date"], row["tenant"]): set() for row in rows}
    for index, way in enumerate(WAYS):
        differ = {
            (row["date"], row["tenant"]):
            row[f"messages_{way}"] - (row[f"used_messages_{way}"] or 0)
            for row in rows
        }  # fmt: skip
        left = dict(differ)
        lost = {date: counts[index] for date, counts in clues.unlogged.items()}
        for day in sorted(left, key=lambda day: abs(left[day]), reverse=True):
            explained = {
                KILLED: max(0, min(left[day], clues.killed.get(day, (0, 0))[index])),
            }
            left[day] -= explained[KILLED]
            explained[UNLOGGED_LINES] = min(0, max(left[day], -lost.get(day[0], 0)))
            left[day] -= explained[UNLOGGED_LINES]
            lost[day[0]] = lost.get(day[0], 0) + explained[UNLOGGED_LINES]
            for reason, edge in ((UNFINISHED, clues.unfinished), (BEFORE, clues.before)):
                explained[reason] = _towards(left[day], edge.get(day, (0, 0))[index])
                left[day] -= explained[reason]
            why[day] |= {reason for reason, count in explained.items() if count}
        for day in _over_midnight(left, {day: n[index] for day, n in clues.midnight.items()}):
            why[day].add(MIDNIGHT)
        for row in rows:
            day = (row["date"], row["tenant"])
            row[f"left_{way}"] = left[day]
            row[f"explained_{way}"] = differ[day] - left[day]
    for row in rows:
        found = why[row["date"], row["tenant"]]
        row["why"] = ",".join(reason for reason in REASONS if reason in found)


def _towards(difference: int, by: int) -> int:
    """Return as much of `by` as brings the difference nearer to 0."""
    if (by > 0) != (difference > 0):
        return 0
    return min(by, difference) if difference > 0 else max(by, difference)


def _over_midnight(left: dict[Day, int], near: dict[Day, int]) -> set[Day]:
    """Settle the excess of one day against the lack of the next one, or the other way round, up to
    the number of messages around midnight. Returns the days."""
    found: set[Day] = set()
    for day in sorted(left, key=lambda day: day[0]):
        after = (day[0] + datetime.timedelta(days=1), day[1])
        if left[day] * left.get(after, 0) >= 0:
            continue
        moved = min(abs(left[day]), abs(left[after]), near.get(day, 0) + near.get(after, 0))
        sign = 1 if left[day] > 0 else -1
        left[day] -= sign * moved
        left[after] += sign * moved
        if moved:
            found |= {day, after}
    return found


def _clues(spark: SparkSession, lake: Lake, lines: DataFrame) -> Clues:
    """Return the clues that the lake has."""
    lost = (
        lake.read(spark, UNLOGGED)
        .groupBy("date", "gateway", "reason")
        .agg(F.sum("certified").alias("in"), F.sum("dispatched").alias("out"))
        .collect()
    )
    clues = Clues(unlogged=_sums((row["date"], row) for row in lost))
    killed = {row["gateway"] for row in lost if row["reason"] == KILLED}
    killed |= _recovered(lake)
    minutes = lake.read_rollup(spark, "count_minute", COUNT_HOURS).select(
        "tenant", "gateway", F.unix_millis("start").alias("minute"),
        *[_delivered(way).alias(way) for way in WAYS],
    )  # fmt: skip
    used = lines.select(
        "tenant", F.lit(None).cast("string").alias("gateway"),
        F.col("minute_unix_ms").alias("minute"),
        *[(-F.coalesce(f"messages_{way}", F.lit(0))).alias(way) for way in WAYS],
    )  # fmt: skip
    if killed:
        clues.killed = _by_day(_last_minutes(minutes.where(F.col("gateway").isin(sorted(killed)))))
    # Lines of connections alone do not show where a log of messages begins and ends.
    ends = [
        rows.where((F.col("in") != 0) | (F.col("out") != 0)).agg(F.min("minute"), F.max("minute"))
        for rows in (minutes, used)
    ]
    (first, last), (used_first, used_last) = (
        (row[0], row[1]) for row in ends[0].unionByName(ends[1]).collect()
    )
    both = minutes.unionByName(used)
    minute = F.col("minute")
    if last is None or used_last is None:
        return clues  # nothing to compare
    clues.unfinished = _by_day(both.where(minute >= min(last, used_last)))
    if first != used_first:
        clues.before = _by_day(both.where(minute <= max(first, used_first)))
    border = minute % _DAY_MS
    near = both.where((border == 0) | (border == _DAY_MS - _MINUTE_MS))
    clues.midnight = _by_day(near.withColumns({way: F.abs(way) for way in WAYS}))
    return clues


_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000


def _last_minutes(minutes: DataFrame) -> DataFrame:
    """Return the lines of each gateway's last minute with lines."""
    last = minutes.groupBy("gateway").agg(F.max("minute").alias("minute"))
    return minutes.join(F.broadcast(last), on=["gateway", "minute"], how="left_semi")


def _by_day(minutes: DataFrame) -> dict[Day, tuple[int, int]]:
    rows = minutes.groupBy(
        F.to_date(F.timestamp_millis("minute")).alias("date"), "tenant"
    ).agg(*[F.sum(way).alias(way) for way in WAYS])  # fmt: skip
    return {(row["date"], row["tenant"]): (row["in"], row["out"]) for row in rows.collect()}


def _sums(rows: Iterable[tuple[datetime.date, Any]]) -> dict[datetime.date, tuple[int, int]]:
    sums: dict[datetime.date, Counter[str]] = {}
    for date, row in rows:
        sums.setdefault(date, Counter()).update({way: row[way] or 0 for way in WAYS})
    return {date: (counts["in"], counts["out"]) for date, counts in sums.items()}


def _recovered(lake: Lake) -> set[str]:
    """Return the gateways whose last file was finished by the next start."""
    taken = [one for manifest in lake.manifests() for one in manifest["files"]]
    numbers = [files.number_of(one) for one in taken if one["recovered"]]
    return {number[0] for number in numbers if number is not None}


def usage(spark: SparkSession, lake: Lake, folder: Path | None) -> dict[str, Any]:
    """Write the table of usage. `folder` has the usage log; None if there is none.

    Returns the sums over all days of both logs, the messages that were never logged, and the
    differences without their signs: `messages_in`, `used_messages_in`, `unlogged_in`,
    `explained_in`, `left_in`, and the same of `out`.
    """
    counts = lake.read_rollup(spark, "count_day", COUNT_DAYS)
    lines = table_of(spark, [], LINE) if folder is None else read(spark, folder)
    joined = reconciled(of_deliveries(counts), of_usage(lines))
    rows: list[dict[str, Any]] = [row.asDict() for row in joined.collect()]
    differ = any(
        row[f"messages_{way}"] != (row[f"used_messages_{way}"] or 0) for row in rows for way in WAYS
    )
    if folder is not None:
        find_reasons(rows, _clues(spark, lake, lines) if differ else Clues())
        _as_before(spark, lake, rows)
    if rows:
        table = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
        lake.write_rollup(table_of(spark, table, SCHEMA), TABLE, "date")
    done: dict[str, Any] = {}
    for way in WAYS:
        for name in (f"messages_{way}", f"used_messages_{way}", f"explained_{way}", f"left_{way}"):
            done[name] = sum(abs(row.get(name) or 0) for row in rows)
    lost = lake.read(spark, UNLOGGED).agg(
        F.coalesce(F.sum("certified"), F.lit(0)).alias("unlogged_in"),
        F.coalesce(F.sum("dispatched"), F.lit(0)).alias("unlogged_out"),
    ).first()  # fmt: skip
    assert lost is not None
    return done | lost.asDict()


def _as_before(spark: SparkSession, lake: Lake, rows: list[dict[str, Any]]) -> None:
    """Keep the explanations of closed days, because their minutes have been removed."""
    closed = lake.state()["closed_before"]
    if not closed:
        return
    table = lake.read_rollup(spark, TABLE, SCHEMA)
    kept = table.where((F.col("date") < F.lit(closed).cast("date")) & F.col("left_in").isNotNull())
    known = {(row["date"], row["tenant"]): row.asDict() for row in kept.collect()}
    for row in rows:
        before = known.get((row["date"], row["tenant"]))
        if before is not None:
            named = [f"{part}_{way}" for part in ("explained", "left") for way in WAYS]
            row |= {name: before[name] for name in (*named, "why")}
