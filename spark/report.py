"""All jobs one after the other, and the page that shows their results."""

import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from spark.figures import collect
from spark.ingest import ingest
from spark.lake import Lake
from spark.order_audit import audit
from spark.page import counted, page
from spark.progress import Progress
from spark.rollup import NO_TARGETS, Targets, close, rollup
from spark.usage import usage

CANCEL_EVERY_S: Final = 0.2
DAMAGED_SHOWN_MAX: Final = 3
"""The largest number of damaged files that a note on the terminal names."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The input of a report."""

    logs: str | Sequence[str]
    """Folders of finished files, or patterns of such folders."""
    lake: Path
    out: Path
    usage: Path | None = None
    """The folder of the usage log; None if there is none."""
    since: datetime.date | None = None
    until: datetime.date | None = None
    targets: Targets = NO_TARGETS
    title: str = "Tocsin: where the time went"
    batch_bytes: int | None = None
    """The bytes of the log that ingest brings in one batch; None for a number that suits the
    machine."""
    keep_days: int | None = None
    """The number of days whose spans stay after they are rolled up; None keeps all."""


def report(spark: SparkSession, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Run all jobs and write the page. Returns the result of each job.

    No other job may be at work in the lake (`Lake.alone`).

    Raises:
        LakeError: the lake cannot be used; the sentence says why.
    """
    lake = Lake(wanted.lake)

    def figures() -> dict[str, Any]:
        return {
            "rollup": rollup_step(spark, lake, wanted, progress),
            "usage": usage_step(spark, lake, wanted, progress),
        }

    def promises() -> dict[str, Any]:
        return {"order_audit": audit_step(spark, lake, wanted, progress)}

    done = {"ingest": ingest_step(spark, lake, wanted, progress)}
    for part in at_once(spark, figures, promises):
        done |= part
    write_page(spark, lake, wanted, progress)
    if wanted.keep_days is not None:
        today = datetime.datetime.now(datetime.UTC).date()
        close(lake, before=today - datetime.timedelta(days=wanted.keep_days))
    return done


def at_once(spark: SparkSession, *works: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run several independent works at once.

    While one thread plans the queries of one work, those of the others run. If one fails, the
    others are cancelled, and its error is raised.
    """
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        ended, left = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((one for one in ended if one.exception() is not None), None)
        while left:
            spark.sparkContext.cancelAllJobs()  # also those that it begins meanwhile
            left = wait(left, timeout=CANCEL_EVERY_S).not_done
        return [one.result() for one in ([failed] if failed else futures)]


def ingest_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Bring new files into the lake."""
    files = 0
    with progress.step("ingest") as step:

        def heard(manifest: dict[str, Any]) -> None:
            nonlocal files
            files += len(manifest["files"])
            step.say(counted(files, "file"))

        came = ingest(spark, wanted.logs, lake, batch_bytes=wanted.batch_bytes, said=heard)
        bad = sum(came["quarantined"].values())
        step.say(
            f"{counted(came['files'], 'file')}, {counted(sum(came['lines'].values()), 'line')}"
            + (f", {bad:,} quarantined" if bad else "")
            + (
                f"; {counted(came['foreign'], 'file')} of no delivery log"
                if came["foreign"]
                else ""
            )
        )
        if came["damaged"]:
            progress.note(damaged_sentence(came["damaged"]))
    return came


def damaged_sentence(paths: Sequence[str]) -> str:
    """Return a sentence about the files that are not as they were written."""
    shown = ", ".join(path.removeprefix("file:") for path in paths[:DAMAGED_SHOWN_MAX])
    more = len(paths) - DAMAGED_SHOWN_MAX
    others = f" and {more:,} more" if more > 0 else ""
    return f"damaged, and left out until a whole copy comes: {shown}{others}"


def rollup_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Roll up the hours that have changed."""
    with progress.step("rollup") as step:
        done = rollup(spark, lake, targets=wanted.targets, said=step.say)
        step.say(counted(done["hours"], "hour"))
    return done


def usage_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Compare the usage log with the delivery log."""
    with progress.step("usage") as step:
        done = usage(spark, lake, wanted.usage)
        step.say(f"{done['messages_in']:,} in, {done['messages_out']:,} out")
    return done


def audit_step(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, Any]:
    """Check every promise."""
    with progress.step("order-audit") as step:
        done = audit(spark, lake, said=step.say)
        step.say(f"{counted(sum(done['faults'].values()), 'message')} at fault")
    return done


def write_page(
    spark: SparkSession, lake: Lake, wanted: Wanted, progress: Progress
) -> dict[str, str]:
    """Write the page of the lake; it appears as a whole. Returns its path in `page`."""
    with progress.step("report") as step:
        figures = collect(spark, lake, since=wanted.since, until=wanted.until)
        made = datetime.datetime.now(datetime.UTC)
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        fresh = wanted.out.with_name(f".{wanted.out.name}.new")
        fresh.write_text(page(figures, title=wanted.title, made=made), encoding="utf-8")
        fresh.replace(wanted.out)
        step.say(str(wanted.out))
    return {"page": str(wanted.out.absolute())}


def parse_targets(texts: list[str], seconds: Callable[[str], float]) -> Targets:
    """Parse targets: `orders=50ms`, or `50ms` for all queues that are not named. `seconds` reads a
    duration.

    Raises:
        ValueError: a text is neither; the error has the text.
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
