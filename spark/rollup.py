"""Job: spans → figures of minutes, hours and days, which stay when the spans are removed.

Whole hours are rolled up: those to which a new batch has added, and those with deliveries whose
publish was in no line yet. Their figures replace the former ones. So a run that is repeated, or was
killed, changes nothing.
"""

import datetime
import shutil
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import latency, periods
from spark.lake import Lake, LakeError
from spark.schema import CERTIFIED, DISPATCHED, KINDS, SETTLED

OPEN_HOURS_MAX: Final = 6
"""The number of hours with deliveries of unknown publishes that are checked again, the latest
ones."""
PASS_BYTES: Final = 2 << 30
"""The largest number of bytes of spans in one pass. An hour that has more is a pass, too."""
Hour = tuple[str, int]
"""A date and an hour of it, in UTC."""


class Targets(NamedTuple):
    """The time that a delivery may take, in microseconds: of certain queues, by name, and of all
    others."""

    default_us: int | None
    of_queue: dict[str, int]


NO_TARGETS: Final = Targets(None, {})


def rollup(
    spark: SparkSession,
    lake: Lake,
    *,
    targets: Targets = NO_TARGETS,
    pass_bytes: int = PASS_BYTES,
    said: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Roll up the hours that have changed. If the targets have changed, or there are no tables yet,
    rolls up all hours of days that are not closed.

    `said` is called with the dates of each pass before it begins. Returns `hours`, their number,
    and `uncovered`, the number of their deliveries whose publish is in no line.
    """
    state = lake.state()
    batches = lake.batches()
    is_new = not lake.rollup("count_hour").is_dir()  # its tables were removed, or have other names
    if is_new or state["targets"] != list(targets):
        state["rolled"] = -1
    if not batches or batches[-1] <= state["rolled"]:
        return {"hours": 0, "uncovered": 0}
    dirty = _dirty(lake, state)
    uncovered: dict[Hour, int] = {}
    for hours in _passes(lake, dirty, pass_bytes):
        said(" to ".join(sorted({min(hours)[0], max(hours)[0]})))
        uncovered |= _roll(spark, lake, hours, targets)
    open_hours = {tuple(hour) for hour in state["open_hours"]} - dirty | set(uncovered)
    lake.keep(
        rolled=batches[-1], open_hours=sorted(open_hours)[-OPEN_HOURS_MAX:], targets=list(targets)
    )
    return {"hours": len(dirty), "uncovered": sum(uncovered.values())}


def _dirty(lake: Lake, state: dict[str, Any]) -> set[Hour]:
    touched = [
        (kind, date, hour)
        for manifest in lake.manifests(after=state["rolled"])
        for kind, date, hour in manifest["hours"]
    ]
    dirty = {(date, hour) for _, date, hour in touched}
    if any(kind == CERTIFIED for kind, _, _ in touched):
        dirty |= {(date, hour) for date, hour in state["open_hours"]}
    return {hour for hour in dirty if hour[0] >= state["closed_before"]}


def _passes(lake: Lake, hours: set[Hour], bytes_max: int) -> list[set[Hour]]:
    """Return the hours in groups, in order.

    The groups are few, because each costs some seconds whatever it has. None has more than
    `bytes_max` bytes of spans, unless it is a single hour. A day in two of them is whole after the
    last one.
    """
    passes: list[set[Hour]] = []
    left = 0
    for date, hour in sorted(hours):
        folders = [lake.spans(kind) / f"date={date}" / f"hour={hour}" for kind in KINDS]
        size = sum(path.stat().st_size for one in folders for path in one.rglob("*.parquet"))
        if not passes or size > left:
            passes.append(set())
            left = bytes_max
        passes[-1].add((date, hour))
        left -= size
    return passes


def _roll(spark: SparkSession, lake: Lake, hours: set[Hour], targets: Targets) -> dict[Hour, int]:
    """Roll up some hours and their days. Returns the number of deliveries of each hour whose
    publish is in no line."""
    spans = {
        kind: lake.read(spark, kind).where(_within(hours))
        for kind in (CERTIFIED, DISPATCHED, SETTLED)
    }
    publishes = _publishes(lake, spark, spans[DISPATCHED], hours)
    deliveries = latency.deliveries(spans[DISPATCHED], publishes)
    deliveries = deliveries.persist()
    target = periods.targets(targets.default_us, targets.of_queue)
    stages = (
        latency.of_publishing(spans[CERTIFIED])
        .unionByName(latency.of_giving(spans[DISPATCHED]))
        .unionByName(latency.of_handling(spans[SETTLED]))
        .unionByName(latency.of_deliveries(deliveries))
    )
    parts = [
        periods.of_stages(stages, target),
        *[periods.counted(kind, rows) for kind, rows in spans.items()],
        periods.slowest_keys(deliveries),
        periods.uncovered(spans[DISPATCHED], deliveries),
    ]
    try:
        lake.write_rollups(periods.figures(parts, _older(spark, lake, hours)))
    finally:
        deliveries.unpersist()
    left = lake.read_rollup(spark, "open_hour", periods.SCHEMAS["open_hour"])
    rows = left.where(_within(hours) & (F.col("messages") > 0)).collect()
    return {(row["date"].isoformat(), row["hour"]): row["messages"] for row in rows}


def _within(hours: set[Hour]) -> Column:
    """Return the condition for rows whose date and hour are among these."""
    found = F.lit(False)
    for date in sorted({date for date, _ in hours}):
        of_date = sorted(hour for day, hour in hours if day == date)
        found |= (F.col("date") == F.lit(date).cast("date")) & F.col("hour").isin(of_date)
    return found


def _publishes(
    lake: Lake, spark: SparkSession, dispatched: DataFrame, hours: set[Hour]
) -> DataFrame:
    """Return the lines of `certified` that may be about messages dispatched in these hours.

    These are lines of the days on which the records were published, and of one day around them,
    because two machines' clocks differ.
    """
    certified = lake.read(spark, CERTIFIED)
    there = {folder.name.removeprefix("date=") for folder in lake.spans(CERTIFIED).glob("date=*")}
    near = _around({datetime.date.fromisoformat(date) for date, _ in hours})
    if there <= {day.isoformat() for day in near}:
        return certified  # a pass over the deliveries would say no more
    moment = F.timestamp_millis("published_unix_ms")
    days = dispatched.select(F.to_date(moment).alias("day")).distinct().collect()
    return certified.where(F.col("date").isin(sorted(_around({row["day"] for row in days}))))


def _around(days: set[datetime.date]) -> set[datetime.date]:
    one = datetime.timedelta(days=1)
    return {day + step * one for day in days for step in (-1, 0, 1)}


def _older(spark: SparkSession, lake: Lake, hours: set[Hour]) -> DataFrame | None:
    """Return the other hours of the same days, which were rolled up before; None if there are
    none."""
    dates = sorted({date for date, _ in hours})
    there = [
        (date, int(folder.name.removeprefix("hour=")))
        for date in dates
        for folder in lake.rollup("count_hour").glob(f"date={date}/hour=*")
    ]
    if not set(there) - hours:
        return None
    is_other = F.col("date").isin([datetime.date.fromisoformat(one) for one in dates])
    tables = [
        lake.read_rollup(spark, name, periods.SCHEMAS[name]).where(is_other & ~_within(hours))
        for name in ("latency_hour", "count_hour")
    ]
    return periods.of_hours(*tables)


def close(lake: Lake, *, before: datetime.date) -> dict[str, Any]:
    """Remove the spans of days before this one, and their minutes.

    Their hours and days stay. Lines that still come for such a day are quarantined as late. Returns
    `folders`, the number of removed folders, and `closed_before`, the date before which days are
    closed. This is later than `before` if more days were closed already.

    Raises:
        LakeError: the roll-up has not seen all batches, so nothing is closed.
    """
    date = before.isoformat()
    state = lake.state()
    batches = lake.batches()
    behind = sum(batch > state["rolled"] for batch in batches)
    if behind:
        raise LakeError(
            f"nothing is closed in {lake.root}: {behind} of {len(batches)} batches "
            "have not been rolled up; run rollup first"
        )
    if date <= state["closed_before"]:
        return {"folders": 0, "closed_before": state["closed_before"]}
    lake.keep(closed_before=date, open_hours=[h for h in state["open_hours"] if h[0] >= date])
    gone = 0
    minutes = [lake.rollup(f"{of}_minute") for of in ("latency", "count")]
    for table in (*map(lake.spans, KINDS), *minutes):
        for folder in table.glob("date=*"):
            if folder.name.removeprefix("date=") < date:
                shutil.rmtree(folder)
                gone += 1
    return {"folders": gone, "closed_before": date}
