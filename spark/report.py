"""All jobs one after the other, and the page that shows what came of them."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark.figures import collect
from spark.ingest import ingest
from spark.lake import Lake
from spark.order_audit import audit
from spark.page import page
from spark.progress import Progress
from spark.rollup import NO_TARGETS, Targets, close, rollup
from spark.usage import usage


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a report is made of."""

    logs: str | Sequence[str]
    """Folders of finished files, or patterns of such folders."""
    lake: Path
    out: Path
    usage: Path | None = None
    """The folder of the usage log; None: there is none."""
    since: datetime.date | None = None
    until: datetime.date | None = None
    targets: Targets = NO_TARGETS
    title: str = "Tocsin: where the time went"
    batch_bytes: int | None = None
    """Of the log in a batch of ingest; None: as many as suit the machine."""
    keep_days: int | None = None
    """How many days of spans stay when they are rolled up; None: all."""


def report(spark: SparkSession, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Run all jobs and write the page. Returns what each of them returned. No other job may be at
    work in the lake (`Lake.alone`).

    Raises:
        LakeError: the lake cannot be used; the sentence says why.
    """
    lake = Lake(wanted.lake)
    done = {
        "ingest": ingest_step(spark, lake, wanted, progress),
        "rollup": rollup_step(spark, lake, wanted, progress),
        "usage": usage_step(spark, lake, wanted, progress),
        "order_audit": audit_step(spark, lake, wanted, progress),
    }
    write_page(spark, lake, wanted, progress)
    if wanted.keep_days is not None:
        today = datetime.datetime.now(datetime.UTC).date()
        close(lake, before=today - datetime.timedelta(days=wanted.keep_days))
    return done


def ingest_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Bring what is new into the lake."""
    files = 0

    def heard(manifest: dict[str, Any]) -> None:
        nonlocal files
        files += len(manifest["files"])
        progress.say(f"{files:,} files")

    with progress.step("ingest"):
        came = ingest(spark, wanted.logs, lake, batch_bytes=wanted.batch_bytes, said=heard)
        bad = sum(came["quarantined"].values())
        progress.say(
            f"{came['files']:,} files, {sum(came['lines'].values()):,} lines"
            + (f", {bad:,} quarantined" if bad else "")
        )
    return came


def rollup_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Roll up what has changed."""
    with progress.step("rollup"):
        done = rollup(spark, lake, targets=wanted.targets, said=progress.say)
        progress.say(f"{done['hours']:,} hours")
    return done


def usage_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Put the usage log beside the delivery log."""
    with progress.step("usage"):
        done = usage(spark, lake, wanted.usage)
        progress.say(f"{done['messages_in']:,} in, {done['messages_out']:,} out")
    return done


def audit_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Check every promise."""
    with progress.step("order-audit"):
        done = audit(spark, lake, said=progress.say)
        progress.say(f"{sum(done['faults'].values()):,} messages at fault")
    return done


def write_page(spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress) -> None:
    """Write the page of what is in the lake; it appears as a whole."""
    with progress.step("report"):
        figures = collect(spark, lake, since=wanted.since, until=wanted.until)
        made = datetime.datetime.now(datetime.UTC)
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        fresh = wanted.out.with_name(f".{wanted.out.name}.new")
        fresh.write_text(page(figures, title=wanted.title, made=made), encoding="utf-8")
        fresh.replace(wanted.out)
        progress.say(str(wanted.out))


def parse_targets(texts: list[str], seconds: Callable[[str], float]) -> Targets:
    """`orders=50ms`, or `50ms` for all queues that are not named. `seconds` reads a duration.

    Raises:
        ValueError: one of them is neither; the text.
    """
    default, of_queue = None, {}
    for text in texts:
        queue, _, limit = text.rpartition("=")
        try:
            us = round(seconds(limit) * 1e6)
        except ValueError:
            raise ValueError(text) from None
        if queue:
            of_queue[queue] = us
        else:
            default = us
    return Targets(default, of_queue)
