"""The figures of a report, out of the lake's tables: plain values, small whatever the log was.

Each query costs a fraction of a second however little it reads. So there are few queries: questions
about one table share a query, and the queries run beside each other.
"""

import datetime
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark import latency, periods, sketches, usage
from spark.axis import DAY, HOUR, MINUTE, moment, step_for, stretches
from spark.files import parse_name
from spark.lake import Lake, read_json
from spark.losses import quarantined
from spark.order_audit import RESULT
from spark.page import Figures, Top, Usage
from spark.schema import ACKED, CERTIFIED, DISPATCHED, PLACELESS, REPLAY, SETTLED

COLUMNS_MAX: Final = 120
"""The largest number of columns of the plots over time. With more, a column covers several minutes,
hours or days."""
HOURS_OF_MINUTES_MAX: Final = 20
"""The number of hours up to which their minutes are read. Each minute has the sketches of every
queue."""
ROWS_MAX: Final = 15
USED_MAX: Final = 40
"""The largest number of rows of each table of usage."""
BOUNDS_US: Final = [round(10 ** (2 + step / 4)) for step in range(26)]
"""The bounds of the heat map: four to a decade, from 100 µs to 180 s. Values beyond are in the
outermost cells."""
_KINDS: Final = (CERTIFIED, DISPATCHED, SETTLED)
_TOTALS: Final = (*_KINDS, ACKED, "nacked", "dead_lettered")


def collect(
    spark: SparkSession, lake: Lake, *, since: datetime.date | None, until: datetime.date | None
) -> Figures:
    """Return the figures of a report about these days, both ends included; None does not bound
    them. The result of the audit, and what is said about files, gateways and quarantined lines, is
    about the whole lake."""
    within = _within(since, until)

    def table(name: str) -> DataFrame:
        return lake.read_rollup(spark, name, periods.SCHEMAS[name]).where(within)

    used = lake.read_rollup(spark, usage.TABLE, usage.SCHEMA).where(within)
    with ThreadPoolExecutor(4) as pool:
        tops = pool.submit(_tops, table("latency_day"))
        keys = pool.submit(_keys, table("key_hour"))
        both = pool.submit(_usage, used)
        unit, done = _activity(lake, table)
        given = [row["start"] for row in done if row[DISPATCHED]]
        step = step_for(given or [row["start"] for row in done], unit, COLUMNS_MAX)
        source = "minute" if step < HOUR else "hour" if step < DAY else "day"
        over_time = _over_time(table(f"latency_{source}"), step)
        top = tops.result()
        figures = Figures(
            step=step,
            stretches=_stretches(done, unit),
            bounds_us=BOUNDS_US,
            over_time=over_time,
            totals={name: sum(row[name] for row in done) for name in _TOTALS},
            queues=top["queues"],
            stages=top["stages"],
            causes=top["causes"],
            keys=keys.result(),
            usage=both.result(),
            audit=read_json(lake.root / RESULT, {}),
        )

    manifests = lake.manifests()
    figures.quarantined = quarantined(manifests)
    figures.gateways = _gateways(manifests)
    for manifest in manifests:
        figures.files += len(manifest["files"])
        figures.judged += sum(manifest["messages"].get(kind, 0) for kind in _KINDS)
    return figures


def _gateways(manifests: list[dict[str, Any]]) -> Top:
    """Return gateways whose files were brought, the latest first, at most USED_MAX."""
    by_name: dict[str, dict[str, Any]] = {}
    for entry in (entry for manifest in manifests for entry in manifest["files"]):
        name = entry.get("gateway") or getattr(parse_name(entry["name"]), "gateway", None)
        if name is None:
            continue
        row = by_name.setdefault(name, {"gateway": name, "files": 0, "damaged": 0})
        row["files"] += 1
        row["damaged"] += bool(entry["fault"])
        for of, choose in (("since_unix_us", min), ("until_unix_us", max)):
            if entry.get(of) is not None:
                row[of] = choose(entry[of], row.get(of, entry[of]))
    rows = sorted(by_name.values(), key=lambda row: -row.get("until_unix_us", 0))
    return Top(rows[:USED_MAX], len(rows))


def _within(since: datetime.date | None, until: datetime.date | None) -> Column:
    inside = F.lit(True)
    if since is not None:
        inside = inside & (F.col("date") >= F.lit(since))
    if until is not None:
        inside = inside & (F.col("date") <= F.lit(until))
    return inside


def _rows(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.collect()]


def _seconds(step: int) -> Column:
    """Return the beginning of the step of this many seconds that contains `start`, as Unix seconds.
    A timestamp would become the local time of this machine."""
    at = F.unix_seconds("start")
    return at - F.pmod(at, F.lit(step))


# --- When ---------------------------------------------------------------------------------------


def _activity(lake: Lake, table: Callable[[str], DataFrame]) -> tuple[int, list[dict[str, Any]]]:
    """Return the length of a unit of time, and what each gateway did in each unit.

    The units are minutes if these exist and are few, otherwise hours.
    """
    hours = _done(table("count_hour"), HOUR)
    starts = {row["start"] for row in hours}
    if not 0 < len(starts) <= HOURS_OF_MINUTES_MAX:
        return HOUR, hours
    if f"{moment(min(starts)):%Y-%m-%d}" < lake.state()["closed_before"]:
        return HOUR, hours
    return MINUTE, _done(table("count_minute"), MINUTE)


def _done(counts: DataFrame, unit: int) -> list[dict[str, Any]]:
    """Return a row for each time step of `unit` seconds and each gateway. It has `start`, `gateway`
    and a number of messages for each name in _TOTALS."""
    is_placeless = (F.col("kind") == CERTIFIED) & F.col("what").isin(*PLACELESS)
    conditions = {kind: (F.col("kind") == kind) & ~is_placeless for kind in _KINDS}
    for outcome in _TOTALS[len(_KINDS) :]:
        conditions[outcome] = (F.col("kind") == SETTLED) & (F.col("what") == outcome)
    sums = [
        F.coalesce(F.sum(F.when(which, F.col("messages"))), F.lit(0)).alias(name)
        for name, which in conditions.items()
    ]
    return _rows(counts.groupBy(_seconds(unit).alias("start"), "gateway").agg(*sums))


def _stretches(done: list[dict[str, Any]], unit: int) -> list[dict[str, Any]]:
    found = []
    for first, end in stretches([row["start"] for row in done], unit):
        inside = [row for row in done if first <= row["start"] < end]
        by_gateway: dict[str, dict[str, Any]] = {}
        for row in sorted(inside, key=lambda row: (row["start"], row["gateway"])):
            one = by_gateway.setdefault(
                row["gateway"],
                {"gateway": row["gateway"], "first": row["start"], **dict.fromkeys(_KINDS, 0)},
            )
            one["end"] = row["start"] + unit
            for kind in _KINDS:
                one[kind] += row[kind]
        sums = {kind: sum(row[kind] for row in inside) for kind in _KINDS}
        gateways = list(by_gateway.values())
        found.append({"first": first, "end": end, **sums, "gateways": gateways})
    return found


def _over_time(latencies: DataFrame, step: int) -> list[dict[str, Any]]:
    rows = latencies.where(_live()).withColumn("start", _seconds(step))
    each = periods.over(rows, "start").withColumn("ranks", sketches.ranks("sketch", BOUNDS_US))
    found = _rows(each.drop("sketch"))
    for row in found:
        row["cells"] = cells(row.pop("ranks"), row["messages"])
    return sorted(found, key=lambda row: row["start"])


def _live() -> Column:
    """Return the condition for deliveries whose cause is not `replay`. That is the cause of
    messages from the stored log for a reader that started in the past or had fallen behind."""
    is_delivery = F.col("stage") == latency.DELIVERY
    return is_delivery & (F.coalesce("cause", F.lit("")) != REPLAY)


def cells(ranks: Sequence[float], messages: int) -> list[float]:
    """Return the number of messages between each two neighboring bounds. `ranks` has, for each
    bound, the part of the messages that took at most that long. Messages beyond the outermost
    bounds count in the outermost cells."""
    closed = [0.0, *ranks[1:-1], 1.0]
    return [(above - below) * messages for below, above in itertools.pairwise(closed)]


# --- The first of many --------------------------------------------------------------------------


def _tops(days: DataFrame) -> dict[str, Top]:
    """Return the slowest queues, the stages of the busiest, and the causes, in one query."""
    is_cause = F.col("stage") == latency.WAITING
    names = {name: F.when(~is_cause, F.col(name)) for name in ("tenant", "queue", "group")}
    told = days.where(_live() | is_cause).withColumns(
        names
        | {
            "cause": F.when(is_cause, F.col("cause")),
            "_of": F.when(is_cause, "causes").otherwise("queues"),
        }
    )
    longest = periods.over(told, "_of", *names, "cause").drop("sketch")
    weight = F.when(F.col("_of") == "causes", F.col("total_us")).otherwise(F.col("p99_us"))
    parts = days.where(F.col("stage").isin(*latency.STAGES))
    means = []
    for stage in latency.STAGES:
        is_it = F.col("stage") == stage
        total, messages = (F.sum(F.when(is_it, F.col(n))) for n in ("total_us", "messages"))
        means.append((total / messages).alias(stage))
    stages = (
        parts.groupBy("tenant", "queue")
        .agg(F.sum("messages").alias("messages"), *means)
        .withColumns({"weight": F.col("messages"), "_of": F.lit("stages")})
    )
    rows = longest.withColumn("weight", weight).unionByName(stages, allowMissingColumns=True)
    each = Window.partitionBy("_of")
    order = [F.desc("weight"), *[F.col(name) for name in (*names, "cause")]]
    ranked = rows.withColumns(
        {"_rank": F.row_number().over(each.orderBy(*order)), "_count": F.count("*").over(each)}
    )
    found = _rows(ranked.where(F.col("_rank") <= ROWS_MAX))
    tops = {}
    for name in ("queues", "stages", "causes"):
        few = sorted((r for r in found if r["_of"] == name), key=lambda row: row["_rank"])
        tops[name] = Top(few, few[0]["_count"] if few else 0)
    return tops


def _keys(hours: DataFrame) -> Top:
    """Return the ROWS_MAX keys whose messages waited longest in total. Other keys are not even
    counted."""
    keys = hours.groupBy("tenant", "queue", "key").agg(
        F.sum("messages").alias("messages"),
        F.sum("waited_us").alias("waited_us"),
        F.max("max_us").alias("max_us"),
    )
    rows = _rows(keys.orderBy(F.desc("waited_us"), "key").limit(ROWS_MAX))
    return Top(rows, len(rows))


def _usage(used: DataFrame) -> Usage:
    """Return the usage by day and tenant, with its sums by day, by tenant and over all. Of each,
    the first USED_MAX rows come: those with the largest unexplained difference to the usage log,
    then those with most messages."""
    sums = [
        F.sum(name).alias(name)
        for name in (
            "messages_in", "bytes_in", "messages_out", "used_messages_in", "used_bytes_in",
            "used_messages_out", "refusals",
        )
    ]  # fmt: skip
    sums += [F.sum(F.abs(name)).alias(name) for name in ("left_in", "left_out")]
    sums.append(F.concat_ws(",", F.collect_set("why")).alias("why"))
    left = F.coalesce(F.col("left_in") + F.col("left_out"), F.lit(0))
    cube = used.cube("date", "tenant").agg(*sums, F.grouping_id().alias("_level"))
    whole = cube.withColumns({"left": left, "weight": F.col("messages_in") + F.col("messages_out")})
    order = [F.desc("left"), F.desc("weight"), F.desc("date"), F.col("tenant")]
    each = Window.partitionBy("_level")
    ranked = whole.withColumns(
        {"_rank": F.row_number().over(each.orderBy(*order)), "_count": F.count("*").over(each)}
    )
    found = _rows(ranked.where(F.col("_rank") <= USED_MAX))

    def top(level: int) -> Top:
        rows = sorted((r for r in found if r["_level"] == level), key=lambda row: row["_rank"])
        return Top(rows, rows[0]["_count"] if rows else 0)

    pairs, days, tenants, total = (top(level) for level in range(4))
    by_day = sorted(days.rows, key=lambda row: row["date"])
    return Usage(
        total=total.rows[0] if total.total and pairs.total else {},
        pairs=pairs,
        days=Top(by_day, days.total),
        tenants=tenants,
    )
