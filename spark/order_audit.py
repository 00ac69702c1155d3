"""Job: does the log keep the promises? All of it, not a sample."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import files, order
from spark.lake import Lake, write_json
from spark.schema import CERTIFIED, DISPATCHED, SETTLED, UNLOGGED

RESULT: Final = "audit.json"
WORK: Final = "audit.work"
CLOCK_ERROR_US: Final = 100_000
"""What two machines' clocks may differ by, unless told otherwise."""
SHOWN_MAX: Final = 100
FAULTS: Final = (order.GAP, order.REPETITION, order.INVERSION, order.OVERTAKEN, order.TWICE)
"""What must not be; a hole is the log's own and says that the rest was judged without it."""


def audit(
    spark: SparkSession,
    lake: Lake,
    *,
    clock_error_us: int = CLOCK_ERROR_US,
    said: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Check everything that is in the lake. `said` hears each check before it begins.

    Returns, and keeps in the lake's `audit.json`: `faults` (what → messages, those that are
    certain), `uncertain` (the same, of the others), `holes` (messages that were certified and are
    in no line), `unlogged` (what the log itself says that it lost), `missing_files`,
    `lossy_gateways`, `examples`. All findings are in the lake's folder `audit`.
    """
    losses = _losses(spark, lake)
    lossy = losses["lossy_gateways"]
    with _keeping(spark, lake.root / WORK) as keep:
        runs = keep(order.published(lake.read(spark, CERTIFIED)))
        gave = keep(order.given(lake.read(spark, DISPATCHED)))
        settles = keep(order.settlements(lake.read(spark, SETTLED)))
        checks: dict[str, Callable[[], DataFrame]] = {
            order.HOLE: lambda: order.holes(runs),
            order.TWICE: lambda: order.certified_twice(runs),
            order.GAP: lambda: order.gaps(runs, gave, settles, keep, lossy=lossy),
            order.REPETITION: lambda: order.repetitions(gave, settles, keep, lossy=lossy),
            order.INVERSION: lambda: order.inversions(
                runs, gave, keep, clock_error_us=clock_error_us, lossy=lossy
            ),
            order.OVERTAKEN: lambda: order.overtaken(runs, gave, settles, keep, lossy=lossy),
        }
        found: list[DataFrame] = []
        for name, check in checks.items():
            said(name)
            found.append(keep(check()))
        all_ = reduce(lambda all_, more: all_.unionByName(more), found)
        all_.coalesce(1).write.mode("overwrite").parquet(str(lake.root / "audit"))
    result = _summed(spark.read.schema(order.FINDING).parquet(str(lake.root / "audit"))) | losses
    write_json(lake.root / RESULT, result)
    return result


@contextlib.contextmanager
def _keeping(spark: SparkSession, folder: Path) -> Iterator[order.Keep]:
    """What is worked out stands in files of this folder meanwhile: what is persisted in memory
    leaves each later plan with all of the plans before, and comparing them took minutes for a log
    of five lines; and a worker that dies takes it along."""
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
    sums = findings.groupBy("what", "certain").agg(F.sum("count").alias("messages")).collect()
    messages = {(row["what"], row["certain"]): row["messages"] for row in sums}
    faults = {what: messages.get((what, True), 0) for what in FAULTS}
    uncertain = {what: messages.get((what, False), 0) for what in FAULTS}
    shown = findings.where(F.col("what") != order.HOLE).orderBy(
        F.desc("certain"), "what", "at_unix_us", "queue_id", "partition", "first"
    )
    return {
        "faults": faults,
        "uncertain": {what: count for what, count in uncertain.items() if count},
        "holes": messages.get((order.HOLE, True), 0),
        "examples": [row.asDict() for row in shown.limit(SHOWN_MAX).collect()],
    }


def _losses(spark: SparkSession, lake: Lake) -> dict[str, Any]:
    """What the log says of itself, what the names of its files say, and the gateways of whose
    lines about deliveries some are lost."""
    names = ("spans", "certified", "dispatched", "settled")
    rows = lake.read(spark, UNLOGGED).groupBy("gateway").agg(
        *[F.sum(name).alias(name) for name in names]
    ).collect()  # fmt: skip
    taken = [one for manifest in lake.manifests() for one in manifest["files"]]
    missing = files.missing([one["name"] for one in taken])
    damaged = [files.parse_name(one["name"]) for one in taken if one["fault"]]
    lossy = {row["gateway"] for row in rows if row["dispatched"] or row["settled"]}
    lossy |= {name.gateway for name in damaged if name is not None} | set(missing)
    return {
        "unlogged": {name: sum(row[name] for row in rows) for name in names},
        "missing_files": missing,
        "lossy_gateways": sorted(lossy),
    }
