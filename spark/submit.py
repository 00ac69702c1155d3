"""The jobs for `spark-submit`, each alone: on a cluster, from cron.

    zip -r spark.zip spark
    spark-submit --master spark://host:7077 --py-files spark.zip spark/submit.py ingest \\
        --logs '/logs/*/delivery' --lake /lake

`python -m spark` is the same on this machine. Needs nothing but PySpark: neither the broker nor its
client is installed on a cluster.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="spark/submit.py", description=__doc__)
    jobs = top.add_subparsers(dest="job", required=True, metavar="JOB")

    def job(name: str, text: str) -> argparse.ArgumentParser:
        made = jobs.add_parser(name, help=text, description=text)
        made.add_argument("--lake", type=Path, required=True, help="the folder of the lake")
        return made

    ingest = job("ingest", "bring the log's finished files into the lake")
    ingest.add_argument("--logs", required=True, help="a folder, or a pattern of folders")
    ingest.add_argument("--files-max", type=int, default=16, help="in a batch [16]")
    rollup = job("rollup", "roll up what has changed, by minute, hour and day")
    rollup.add_argument(
        "--target", action="append", default=[], metavar="[QUEUE=]SECONDS",
        help="how long a delivery may take: 0.2, orders=0.05",
    )  # fmt: skip
    usage = job("usage", "usage by tenant and day, beside the usage log")
    usage.add_argument("--usage", type=Path, help="the folder of the usage log")
    job("order-audit", "check the order of every message")
    report = job("report", "the page of what is in the lake")
    report.add_argument("--out", type=Path, required=True)
    report.add_argument("--since", type=datetime.date.fromisoformat)
    report.add_argument("--until", type=datetime.date.fromisoformat)
    close = job("close", "remove the spans of days before this one; their figures stay")
    close.add_argument("--before", type=datetime.date.fromisoformat, required=True)
    synthetic = jobs.add_parser("synthetic", help="write a log that no broker wrote")
    synthetic.add_argument("--to", type=Path, required=True)
    synthetic.add_argument("--messages", type=int, default=100_000)
    synthetic.add_argument("--seed", type=int, default=1)
    return top


def run(spark: "SparkSession", given: argparse.Namespace) -> object:
    """Run one job; what it returns.

    Raises:
        LakeError: the lake cannot be used.
    """
    from spark.ingest import ingest
    from spark.lake import Lake
    from spark.order_audit import audit
    from spark.progress import Progress
    from spark.report import Wanted, parse_targets, write_page
    from spark.rollup import close, rollup
    from spark.usage import usage

    lake = Lake(given.lake)

    def page() -> None:
        wanted = Wanted(
            logs="", lake=given.lake, out=given.out, since=given.since, until=given.until
        )
        write_page(spark, lake, wanted, Progress(sys.stderr, spark.sparkContext))

    jobs: dict[str, Callable[[], Any]] = {
        "ingest": lambda: ingest(spark, given.logs, lake, files_max=given.files_max),
        "rollup": lambda: rollup(spark, lake, targets=parse_targets(given.target, float)),
        "usage": lambda: usage(spark, lake, given.usage),
        "order-audit": lambda: audit(spark, lake),
        "report": page,
        "close": lambda: close(lake, before=given.before),
    }
    with lake.alone():
        return jobs[given.job]()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job that the command line names, and print what it returns as JSON. The exit code is
    1 when it could not, or when the audit found a promise that was not kept."""
    given = parser().parse_args(arguments)
    if given.job == "synthetic":
        from spark.synthetic import Plan, Synthetic

        answers = Synthetic(Plan(messages=given.messages, seed=given.seed)).write(given.to)
        sys.stdout.write(json.dumps(answers.messages) + "\n")
        return
    from spark.session import NotInstalled, open_session

    try:
        spark = open_session(f"tocsin {given.job}")
    except NotInstalled as missing:
        sys.exit(f"{missing}.")
    from spark.lake import LakeError

    try:
        done = run(spark, given)
    except LakeError as problem:
        sys.exit(f"{problem}.")
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(done) + "\n")
    if isinstance(done, dict) and any(done.get("faults", {}).values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
