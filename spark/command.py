"""The command `tocsin report`: from the delivery log of a broker on this machine to a page."""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from tocsin.cli.durations import parse_duration

from spark.job import (
    EXIT_FAILED,
    EXIT_UNJUDGED,
    JobFailed,
    check_logs,
    check_place,
    exit_code,
    run_job,
)
from spark.session import MEMORY, NotInstalled, check_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.lake import Lake
    from spark.progress import Progress
    from spark.rollup import Targets

LAKE: Final = "delivery-lake"
PAGE: Final = "tocsin-report.html"
_DAY = click.DateTime(["%Y-%m-%d"])


class Failed(click.ClickException):
    """Error that ends the command with a sentence on stderr, and the exit code of a job that
    failed."""

    exit_code = EXIT_FAILED


def default_data_dir() -> Path:
    """Return the folder in which `tocsin serve` keeps its data by default.

    Raises:
        RuntimeError: neither the environment nor the list of users names a home folder.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return root / "tocsin"


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    envvar="TOCSIN_DATA_DIR",
    help="The broker's data folder. [as `tocsin serve` has it]",
)
@click.option(
    "--logs",
    multiple=True,
    help="Folders of delivery logs of one or more gateways, instead: '/logs/*/delivery'. "
    "May be given several times. Needs --lake.",
)
@click.option(
    "--usage",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of the usage log that belongs to --logs. [none]",
)
@click.option(
    "--lake",
    type=click.Path(path_type=Path),
    help=f"The folder that keeps the data read, for the next report. [DATA_DIR/{LAKE}]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(PAGE),
    show_default=True,
    help="The file of the page.",
)
@click.option("--since", type=_DAY, help="Show the report from this day on, in UTC.")
@click.option("--until", type=_DAY, help="Show the report to the end of this day, in UTC.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="[QUEUE=]TIME",
    help="How long a delivery may take, such as 200ms or orders=50ms; repeatable.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    help="Remove older data from the lake after the rollup; figures by hour stay. [keep all]",
)
@click.option(
    "--master", help="A Spark cluster, such as spark://host:7077. [all cores of this machine]"
)
@click.option(
    "--memory",
    default=MEMORY,
    show_default=True,
    help="How much memory Java may use on this machine.",
)
@click.option(
    "--strict",
    is_flag=True,
    help=f"Exit with code {EXIT_UNJUDGED} if something could not be judged and all else is well.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result of each job as JSON.")
def report(  # noqa: PLR0917 - click passes them by name
    data_dir: Path | None,
    logs: tuple[str, ...],
    usage: Path | None,
    lake: Path | None,
    out: Path,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    targets: tuple[str, ...],
    keep_days: int | None,
    master: str | None,
    memory: str,
    strict: bool,
    as_json: bool,
) -> None:
    """Report where the time of messages went, and whether the promises were kept.

    Reads the delivery log of a broker, whether it runs or not, into a lake of Parquet files. Rolls
    it up by minute, hour and day, checks the order of every message, reconciles the usage log, and
    writes one HTML page. A second run reads only new files, and checks all data in the lake. Needs
    PySpark and Java.

    Progress goes to stderr. Exit code 1: the audit found a broken promise. Exit code 3: the report
    was not made; a sentence says why, and names a log if Spark had started. With --strict, exit
    code 4: something could not be judged, as the page says in amber.
    """  # fmt: skip
    _check_days(since, until)
    _check_logs(usage, logs, lake)
    try:
        check_installed()
    except NotInstalled as missing:
        raise Failed(f"{missing}.") from None
    logs, lake, usage = _places(data_dir, logs, lake, usage)
    from spark.report import Wanted
    from spark.report import report as make

    wanted = Wanted(
        logs=logs,
        lake=lake,
        out=out,
        usage=usage,
        since=since.date() if since else None,
        until=until.date() if until else None,
        targets=_targets(targets),
        keep_days=keep_days,
    )

    def work(spark: "SparkSession", _: "Lake", progress: "Progress") -> dict[str, Any]:
        return make(spark, wanted, progress)

    try:
        check_place(out)
        if master is None:
            check_logs(logs)
        done = run_job("report", lake, work, master=master, memory=memory, logs=logs)
    except JobFailed as failed:
        failed.tell()
        sys.exit(failed.exit_code)
    click.echo(json.dumps(done) if as_json else f"The report is {out.absolute()}.")
    sys.exit(exit_code(done, is_strict=strict))


def _check_days(since: datetime.datetime | None, until: datetime.datetime | None) -> None:
    if since is not None and until is not None and until < since:
        raise click.UsageError(f"--until {until:%Y-%m-%d} is before --since {since:%Y-%m-%d}.")


def _check_logs(usage: Path | None, logs: tuple[str, ...], lake: Path | None) -> None:
    """Refuse options that would mix data of different brokers."""
    if usage is not None and not logs:
        raise click.UsageError("--usage needs --logs. Without --logs it is found by itself.")
    if logs and lake is None:
        raise click.UsageError(
            "--logs needs --lake, a folder of their own. Otherwise the lake of this machine's "
            "broker would hold two brokers' logs."
        )


def _places(
    data_dir: Path | None, logs: tuple[str, ...], lake: Path | None, usage: Path | None
) -> tuple[tuple[str, ...], Path, Path | None]:
    """Return the delivery logs, the lake and the usage log, which is None if there is none. The
    data folder is only needed if one of the first two is not given."""
    if logs and lake is not None:
        return logs, lake, usage
    try:
        folder = data_dir or default_data_dir()
    except RuntimeError:
        raise Failed(
            "the environment has no HOME, so the broker's data cannot be found; name its folder by "
            "--data-dir or TOCSIN_DATA_DIR."
        ) from None
    try:
        has_log, has_usage = (os.path.isdir(folder / name) for name in ("delivery", "usage"))
        if not logs and not has_log:
            os.listdir(folder)  # a folder that cannot be read is no folder without a log
            raise FileNotFoundError
    except FileNotFoundError:
        raise Failed(
            f"there is no delivery log in {folder}; give another place by --data-dir or --logs."
        ) from None
    except OSError as problem:
        raise Failed(
            f"{folder} cannot be read ({problem.strerror}); give another place by --data-dir or "
            "--logs."
        ) from None
    usage = folder / "usage" if has_usage and not logs else usage
    return logs or (str(folder / "delivery"),), lake or folder / LAKE, usage


def _targets(texts: tuple[str, ...]) -> "Targets":
    from spark.report import parse_targets

    try:
        return parse_targets(list(texts), parse_duration)
    except ValueError as wrong:
        raise click.BadParameter(
            f"{wrong} is no target; write 200ms or orders=50ms", param_hint="--target"
        ) from None
