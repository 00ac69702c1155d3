"""`tocsin report`: from the delivery log of a broker on this machine to a page, in one command."""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from tocsin.cli.durations import parse_duration

from spark.job import EXIT_BROKEN, EXIT_FAILED, JobFailed, check_place, run_job
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
    """A sentence, and the exit code of a job that failed."""

    exit_code = EXIT_FAILED


def default_data_dir() -> Path:
    """Where `tocsin serve` keeps its data unless told otherwise.

    Raises:
        RuntimeError: the environment names no home folder, and neither does the list of users.
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
    help="Folders of delivery logs instead, perhaps of several gateways: '/logs/*/delivery'. "
    "May be given several times.",
)
@click.option(
    "--lake",
    type=click.Path(path_type=Path),
    help=f"Where what was read is kept, for the next time. [DATA_DIR/{LAKE}]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(PAGE),
    show_default=True,
    help="The page.",
)
@click.option("--since", type=_DAY, help="From this day on, in UTC.")
@click.option("--until", type=_DAY, help="To this day's end.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="[QUEUE=]TIME",
    help="How long a delivery may take: 200ms, orders=50ms. May be given several times.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    help="Remove what is older from the lake when it is rolled up; its hours stay. [all stays]",
)
@click.option("--master", help="A Spark cluster: spark://host:7077. [this machine, all cores]")
@click.option(
    "--memory", default=MEMORY, show_default=True, help="How much Java may take on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="Print what each job found as JSON.")
def report(  # noqa: PLR0917 - click passes them by name
    data_dir: Path | None,
    logs: tuple[str, ...],
    lake: Path | None,
    out: Path,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    targets: tuple[str, ...],
    keep_days: int | None,
    master: str | None,
    memory: str,
    as_json: bool,
) -> None:
    """Where did the time of messages go, and were the promises kept?

    Reads the delivery log of a broker, whether it runs or not, into a lake of Parquet files, rolls
    it up by minute, hour and day, checks the order of every message, reconciles the usage log, and
    writes one HTML page. A second run reads only what is new. Needs PySpark and Java.

    It says on stderr how far it is. Exit codes: 1, the audit found a promise that was not kept; 3,
    the report was not made, and the sentence that says why names a log with all the rest.
    """  # fmt: skip
    if since is not None and until is not None and until < since:
        raise click.UsageError(f"--until {until:%Y-%m-%d} is before --since {since:%Y-%m-%d}.")
    try:
        check_installed()
    except NotInstalled as missing:
        raise Failed(f"{missing}.") from None
    from spark.report import Wanted
    from spark.report import report as make

    logs, lake, usage = _places(data_dir, logs, lake)
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
        done = run_job("report", lake, work, master=master, memory=memory, logs=logs)
    except JobFailed as failed:
        failed.tell()
        sys.exit(failed.exit_code)
    if as_json:
        click.echo(json.dumps(done))
    else:
        click.echo(f"The report is {out.absolute()}.")
    sys.exit(EXIT_BROKEN if any(done["order_audit"]["faults"].values()) else 0)


def _places(
    data_dir: Path | None, logs: tuple[str, ...], lake: Path | None
) -> tuple[tuple[str, ...], Path, Path | None]:
    """Return the delivery logs, the lake and the usage log (None: there is none). The data folder
    is looked for only when one of the first two is not given."""
    if data_dir is None and logs and lake is not None:
        return logs, lake, None
    try:
        folder = data_dir or default_data_dir()
    except RuntimeError:
        raise Failed(
            "the environment has no HOME, so it is not known where the broker's data is; "
            "--data-dir or TOCSIN_DATA_DIR names the folder."
        ) from None
    try:
        has_log, has_usage = (os.path.isdir(folder / name) for name in ("delivery", "usage"))
        if not logs and not has_log:
            os.listdir(folder)  # a folder that cannot be read is no folder without a log
            raise FileNotFoundError
    except FileNotFoundError:
        raise Failed(
            f"there is no delivery log in {folder}; --data-dir or --logs names another place."
        ) from None
    except OSError as problem:
        raise Failed(
            f"{folder} cannot be read ({problem.strerror}); --data-dir or --logs names another "
            "place."
        ) from None
    is_of_same = data_dir is not None or not logs  # not this machine's usage, others' deliveries
    usage = folder / "usage" if has_usage and is_of_same else None
    return logs or (str(folder / "delivery"),), lake or folder / LAKE, usage


def _targets(texts: tuple[str, ...]) -> "Targets":
    from spark.report import parse_targets

    try:
        return parse_targets(list(texts), parse_duration)
    except ValueError as wrong:
        raise click.BadParameter(
            f"{wrong} is no target; write 200ms or orders=50ms", param_hint="--target"
        ) from None
