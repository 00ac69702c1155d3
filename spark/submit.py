"""The jobs for `spark-submit`, all or one: on a cluster, from cron.

    spark-submit --master spark://host:7077 spark/submit.py all \\
        --logs '/logs/*/delivery' --lake /lake --out /lake/report.html

`python -m spark` is the same on this machine. Needs nothing but PySpark: neither the broker nor its
client is installed on a cluster. The exit codes are those of `spark.job`.
"""

import argparse
import datetime
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.lake import Lake
    from spark.progress import Progress
    from spark.report import Wanted


_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="spark/submit.py", description=__doc__)
    jobs = top.add_subparsers(dest="job", required=True, metavar="JOB")

    def job(name: str, text: str) -> argparse.ArgumentParser:
        made = jobs.add_parser(name, help=text, description=text)
        made.add_argument("--lake", type=Path, required=True, help="the folder of the lake")
        made.add_argument("--memory", help="memory for Java here [2g]; not with spark-submit")
        return made

    whole = job("all", "run ingest, rollup, usage, order-audit and report")
    ingest = job("ingest", "bring the log's finished files into the lake")
    for one in (whole, ingest):
        one.add_argument(
            "--logs", action="append", required=True, metavar="FOLDER",
            help="a folder, or a pattern of folders; repeatable",
        )  # fmt: skip
        one.add_argument(
            "--batch-bytes", type=int, help="bytes of the log in a batch [512 MiB for each core]"
        )
    rollup = job("rollup", "roll up what has changed, by minute, hour and day")
    for one in (whole, rollup):
        one.add_argument(
            "--target", action="append", default=[], metavar="[QUEUE=]TIME",
            help="how long a delivery may take: 200ms, orders=50ms; a bare number is seconds",
        )  # fmt: skip
    usage = job("usage", "compute usage by tenant and day, and compare it with the usage log")
    for one in (whole, usage):
        one.add_argument("--usage", type=Path, help="the folder of the usage log")
    audit = job("order-audit", "check the order of every message")
    for one in (whole, audit):
        one.add_argument(
            "--strict", action="store_true", help="exit code 4 when something could not be judged"
        )
    report = job("report", "write the page of the lake's data")
    for one in (whole, report):
        one.add_argument("--out", type=Path, required=True, help="the file of the page")
        one.add_argument("--since", type=datetime.date.fromisoformat, metavar="DATE")
        one.add_argument("--until", type=datetime.date.fromisoformat, metavar="DATE")
    close = job("close", "remove the spans of days before this one; their figures stay")
    close.add_argument("--before", type=datetime.date.fromisoformat, required=True)
    synthetic = jobs.add_parser("synthetic", help="write a log that no broker wrote")
    synthetic.add_argument("--to", type=Path, required=True)
    synthetic.add_argument("--messages", type=int, default=100_000)
    synthetic.add_argument("--seed", type=int, default=1)
    return top


def seconds_of(text: str) -> float:
    """Return a duration in seconds: `50ms`, `0.05s`, `2m`; without a unit it is in seconds.

    Raises:
        ValueError: the text is no duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)?", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def wanted_of(given: argparse.Namespace) -> "Wanted":
    """Return the input of the jobs that the command line states.

    Raises:
        ValueError: a `--target` is invalid; the error has its text.
    """
    from spark.report import Wanted, parse_targets

    names = {field.name for field in fields(Wanted)}
    said: dict[str, Any] = {"logs": "", "out": Path()} | vars(given)
    return Wanted(
        targets=parse_targets(getattr(given, "target", []), seconds_of),
        **{name: value for name, value in said.items() if name in names},
    )


def run(
    spark: "SparkSession", lake: "Lake", given: argparse.Namespace, progress: "Progress"
) -> Any:
    """Run one job, and return its result.

    Raises:
        LakeError: the lake cannot be used.
    """
    from spark import report
    from spark.rollup import close

    wanted = wanted_of(given)
    if given.job == "close":
        return close(lake, before=given.before)
    if given.job == "all":
        return report.report(spark, wanted, progress)
    steps: dict[str, Callable[[SparkSession, Lake, Wanted, Progress], Any]] = {
        "ingest": report.ingest_step,
        "rollup": report.rollup_step,
        "usage": report.usage_step,
        "order-audit": report.audit_step,
        "report": report.write_page,
    }
    return steps[given.job](spark, lake, wanted, progress)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job that the command line names, and print its result as JSON, which is the last
    line. The exit codes are those of `spark.job`."""
    from spark.job import EXIT_FAILED, JobFailed
    from spark.session import NotInstalled

    try:
        sys.exit(_main(parser(), arguments))
    except NotInstalled as missing:
        sys.stderr.write(f"Error: {missing}.\n")
        sys.exit(EXIT_FAILED)
    except JobFailed as failed:
        failed.tell()
        sys.exit(failed.exit_code)
    except KeyboardInterrupt:  # before a run has begun
        sys.exit(128 + signal.SIGINT)


def _main(top: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    given = top.parse_args(arguments)
    if given.job == "synthetic":
        from spark.synthetic import Plan, Synthetic

        answers = Synthetic(Plan(messages=given.messages, seed=given.seed)).write(given.to)
        sys.stdout.write(json.dumps(answers.messages) + "\n")
        return 0
    from spark.job import check_logs, check_place, exit_code, run_job
    from spark.session import check_installed

    check_installed()
    try:
        wanted_of(given)
    except ValueError as wrong:
        top.error(f"{wrong} is no target; write 200ms or orders=50ms")
    if getattr(given, "since", None) and given.until and given.until < given.since:
        top.error(f"--until {given.until} is before --since {given.since}")
    if "out" in given:
        check_place(given.out)
    if "logs" in given and "PYSPARK_GATEWAY_PORT" not in os.environ:
        check_logs(given.logs)
    done = run_job(
        given.job,
        given.lake,
        lambda spark, lake, progress: run(spark, lake, given, progress),
        logs=getattr(given, "logs", []),
        memory=given.memory,
    )
    sys.stdout.write(json.dumps(done) + "\n")
    return exit_code(done, is_strict=getattr(given, "strict", False))


if __name__ == "__main__":
    # Python puts this folder first on its path, where `spark` itself cannot be found.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    main()
