"""Job: check all of the log, not a sample, against the promises."""

import contextlib
import datetime
import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark import losses, order
from spark.lake import Lake, read_json, table_of, write_json
from spark.losses import Loss
from spark.schema import CERTIFIED, DISPATCHED, POSITION, SETTLED, UNLOGGED

RESULT: Final = "audit.json"
FINDINGS: Final = "audit"
WORK: Final = "audit.work"
SHOWN_MAX: Final = 100
GROUPS_MAX: Final = 20
LOST: Final = ("spans", "certified", "dispatched", "settled")
"""The counts of an `unlogged` line."""
LOSSES_MAX: Final = 1_000
_DOUBTS: Final = (losses.NOT_YET, losses.CLOSED)
"""Reasons of losses that are no faults of the log: lines that have not come yet, and lines of
closed days."""
FAULTS: Final = (
    order.GAP, order.UNSETTLED, order.REPETITION, order.INVERSION, order.OVERTAKEN, order.UNGIVEN,
    order.SETTLED_TWICE, order.SETTLED_EARLY, order.TWICE, order.DISORDER,
)  # fmt: skip
"""Findings that must not occur. A hole is the log's own loss, and the rest was judged without
it."""


def audit(
    spark: SparkSession, lake: Lake, *, said: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Check everything in the lake. `said` is called with the name of each part before it begins.

    Returns, and keeps in the lake's `audit.json`:

        faults          what → messages, those that are certain; 0 if there are none
        uncertain       what → messages of the others
        unjudged        these by `what`, `reason` and `gateway` (null: of several), with `messages`
        waiting         `messages` that groups have passed and may still give, the `oldest_unix_us`,
                        and the `groups` with the most of them
        holes           messages that were certified and are in no line
        judged          messages that were dispatched or settled, by the lake's books
        quarantined     reason → lines that could not be taken in
        unlogged        the log's own count of its losses: spans, and messages of each kind
        losses          lost lines of the log, at most LOSSES_MAX; see spark.losses
        missing_files   gateway → numbers of its files
        lossy_gateways  gateways with losses
        examples        of findings, at most SHOWN_MAX, as many of each kind as fit

    All findings are in the lake's folder `audit`.
    """
    unlogged = _unlogged(spark, lake)
    manifests = lake.manifests()
    lost = losses.losses(manifests, unlogged, closed_unix_us=_closed_us(lake))
    place = lake.root / FINDINGS
    _restore(place)
    with _keeping(spark, lake.root / WORK) as keep:
        fresh = lake.root / WORK / FINDINGS
        _found(spark, lake, lost, keep, said).coalesce(1).write.parquet(str(fresh))
        _replace(place, fresh)
    said("summing up")
    findings = spark.read.schema(order.FINDING).parquet(str(place))
    result = (
        _summed(findings)
        | _lost(lost)
        | {
            "judged": _judged(manifests),
            "quarantined": losses.quarantined(manifests),
            "unlogged": {name: sum(row[name] for row in unlogged) for name in LOST},
        }
    )
    write_json(lake.root / RESULT, result)
    return result


def _found(
    spark: SparkSession, lake: Lake, lost: list[Loss], keep: order.Keep, said: Callable[[str], None]
) -> DataFrame:
    """Return all findings, as rows of order.FINDING."""
    closed_us = _closed_us(lake)
    said("reading")
    runs = keep(order.published(lake.read(spark, CERTIFIED)))
    epochs = keep(order.epochs(lake.read(spark, POSITION)))
    gave = keep(order.given(lake.read(spark, DISPATCHED), epochs))
    settles = keep(order.settlements(lake.read(spark, SETTLED), epochs))
    lines = order.Lines(runs, epochs, gave, settles)
    said("suspects")
    suspects = keep(order.suspects(lines))
    whats = [row["what"] for row in suspects.select("what").distinct().collect()]
    named = [what.replace("_", " ") for what in sorted({*whats} & {*FAULTS})]
    said(f"perhaps {', '.join(named)}" if named else "the log of certified")
    found = order.findings(lines, suspects, whats, keep)
    # A duplicate may name an offset of a closed day; the offsets in between are no hole.
    log = order.of_log(runs if closed_us is None else runs.where("is_new"))
    everything = keep(found.unionByName(log))
    judged = order.judged(everything, epochs, _table(spark, lost))
    if closed_us is None:
        return judged
    return _beside_closed(judged, keep(_earlier(spark, lake)), closed_us)


def _replace(place: Path, fresh: Path) -> None:
    """Replace an existing folder. At every moment one exists, under its own name or the one that
    `_restore` knows, because closed days have no other copy."""
    if place.exists():
        place.rename(place.with_name(f"{place.name}.old"))
    fresh.rename(place)
    shutil.rmtree(place.with_name(f"{place.name}.old"), ignore_errors=True)


def _restore(place: Path) -> None:
    """Undo a `_replace` that was killed before its end, or remove its remains."""
    old = place.with_name(f"{place.name}.old")
    if old.exists() and not place.exists():
        old.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _closed_us(lake: Lake) -> int | None:
    """Return when the days whose lines were removed end, in Unix microseconds; None: none were."""
    date = lake.state()["closed_before"]
    if not date:
        return None
    midnight = datetime.datetime.combine(
        datetime.date.fromisoformat(date), datetime.time(), datetime.UTC
    )
    return int(midnight.timestamp()) * 1_000_000


def _earlier(spark: SparkSession, lake: Lake) -> DataFrame:
    """Return the findings of the last audit; none if no audit recorded losses by gateway."""
    is_there = (lake.root / FINDINGS).exists()
    if not is_there or "losses" not in read_json(lake.root / RESULT, {}):
        return table_of(spark, [], order.FINDING)
    return spark.read.schema(order.FINDING).parquet(str(lake.root / FINDINGS))


def _beside_closed(found: DataFrame, earlier: DataFrame, closed_us: int) -> DataFrame:
    """Return findings beside those of closed days, whose lines have been removed.

    Findings of closed days stay as they were. A finding that was certain, and is found again, still
    is.
    """
    is_closed = F.coalesce(F.col("at_unix_us") < closed_us, F.lit(False))
    kept = earlier.where(is_closed & (F.col("what") != order.WAITING))
    of = ("what", "queue_id", "group", "partition", "first", "count", "key")
    certain = earlier.where("certain").select(*[F.col(n).alias(f"was_{n}") for n in of]).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"was_{name}")) for name in of]
    told = found.where(~is_closed).join(certain, on=reduce(and_, same), how="left")
    was_certain = F.col("was_what").isNotNull()
    again = told.withColumns({
        "certain": F.col("certain") | was_certain,
        "unsure": F.when(~was_certain, F.col("unsure")),
    })  # fmt: skip
    return kept.unionByName(again.select(*order.FINDING.names))


@contextlib.contextmanager
def _keeping(spark: SparkSession, folder: Path) -> Iterator[order.Keep]:
    """Store intermediate results in files of this folder, inside this block.

    A result persisted in memory leaves each later plan with all plans before it. Comparing these
    took minutes for a log of five lines. It is also lost with a worker that dies.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
    numbers = itertools.count()

    def keep(rows: DataFrame) -> DataFrame:
        path = str(folder / f"{next(numbers):02}")
        rows.write.parquet(path)
        return spark.read.schema(rows.schema).parquet(path)

    try:
        yield keep
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summed(findings: DataFrame) -> dict[str, Any]:
    sums = findings.groupBy("what", "unsure", "gateway", "queue", "group").agg(
        F.sum("count").alias("messages"), F.min("at_unix_us").alias("oldest_unix_us")
    ).collect()  # fmt: skip
    faults, holes = dict.fromkeys(FAULTS, 0), 0
    uncertain: dict[str, int] = {}
    doubts: dict[tuple[str, str, str | None], int] = {}
    waiting: list[dict[str, Any]] = []
    for row in sums:
        what, reason, messages = row["what"], row["unsure"], row["messages"]
        if what == order.HOLE:
            holes += messages
        elif what == order.WAITING:
            waiting.append({name: row[name] for name in
                            ("queue", "group", "messages", "oldest_unix_us")})  # fmt: skip
        elif reason is None:
            faults[what] += messages
        else:
            uncertain[what] = uncertain.get(what, 0) + messages
            key = (what, reason, row["gateway"])
            doubts[key] = doubts.get(key, 0) + messages
    unjudged = [
        {"what": what, "reason": reason, "gateway": gateway, "messages": messages}
        for (what, reason, gateway), messages in sorted(
            doubts.items(), key=lambda one: (-one[1], one[0][0])
        )
    ]
    return {
        "faults": faults, "holes": holes, "uncertain": uncertain, "unjudged": unjudged,
        "waiting": _waiting(waiting), "examples": _examples(findings),
    }  # fmt: skip


def _waiting(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        group = groups.setdefault((row["queue"], row["group"]), row | {"messages": 0})
        group["messages"] += row["messages"]
        group["oldest_unix_us"] = min(group["oldest_unix_us"], row["oldest_unix_us"])
    most = sorted(groups.values(), key=lambda one: -one["messages"])
    return {
        "messages": sum(one["messages"] for one in most),
        "oldest_unix_us": min((one["oldest_unix_us"] for one in most), default=None),
        "groups": most[:GROUPS_MAX],
    }


def _examples(findings: DataFrame) -> list[dict[str, Any]]:
    """Return at most SHOWN_MAX findings, the earliest of each kind, certain ones first."""
    earliest = ("at_unix_us", "queue_id", "group", "partition", "first")
    of = Window.partitionBy("what", "certain").orderBy(*earliest)
    ranked = findings.where(~F.col("what").isin(order.WAITING, order.HOLE)).withColumn(
        "rank", F.row_number().over(of)
    )
    few = ranked.where(F.col("rank") <= SHOWN_MAX).orderBy(
        F.desc("certain"), "rank", "what", *earliest
    ).limit(SHOWN_MAX)  # fmt: skip
    rows = [row.asDict() for row in few.drop("rank").collect()]
    return sorted(rows, key=lambda row: (not row["certain"], row["what"], row["at_unix_us"] or 0))


def _table(spark: SparkSession, lost: list[Loss]) -> DataFrame:
    """Return losses as rows of order.LOST."""
    rows = [
        {"lossy": one.gateway, "lost_since_us": one.since_unix_us,
         "lost_until_us": one.until_unix_us,
         "doubt": one.reason if one.reason in _DOUBTS else order.LOST_LINES}
        for one in lost
    ]  # fmt: skip
    return table_of(spark, rows, order.LOST)


def _judged(manifests: list[dict[str, Any]]) -> int:
    kinds = (DISPATCHED, SETTLED)
    return sum(one["messages"].get(kind, 0) for one in manifests for kind in kinds)


def _unlogged(spark: SparkSession, lake: Lake) -> list[dict[str, Any]]:
    """Return the log's own count of its losses, by gateway, reason and hour."""
    hour = F.floor(F.col("until_unix_us") / 3_600_000_000)
    rows = lake.read(spark, UNLOGGED).groupBy("gateway", "reason", hour.alias("of")).agg(
        F.min("since_unix_us").alias("since_unix_us"),
        F.max("until_unix_us").alias("until_unix_us"),
        *[F.sum(name).alias(name) for name in LOST],
    ).collect()  # fmt: skip
    return [row.asDict() for row in rows]


def _lost(found: list[Loss]) -> dict[str, Any]:
    known = [loss for loss in found if loss.reason not in _DOUBTS]
    return {
        "losses": [loss.shown() for loss in known[:LOSSES_MAX]],
        "missing_files": losses.missing(known),
        "lossy_gateways": sorted({loss.gateway for loss in known}),
    }
