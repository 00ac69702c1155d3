"""`tocsin report`: from the delivery log of a broker on this machine to a page, in one command."""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from tocsin.cli.durations import parse_duration

from spark.session import NotInstalled, check_installed, open_session

if TYPE_CHECKING:
    from spark.rollup import Targets

LAKE: Final = "delivery-lake"
PAGE: Final = "tocsin-report.html"
_DAY = click.DateTime(["%Y-%m-%d"])


def default_data_dir() -> Path:
    """Where `tocsin serve` keeps its data unless told otherwise."""
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
    help="Folders of delivery logs instead, perhaps of several gateways: '/logs/*/delivery'.",
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
@click.option("--json", "as_json", is_flag=True, help="Print what each job found as JSON.")
def report(  # noqa: PLR0917 - click passes them by name
    data_dir: Path | None,
    logs: str | None,
    lake: Path | None,
    out: Path,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    targets: tuple[str, ...],
    keep_days: int | None,
    master: str | None,
    as_json: bool,
) -> None:
    """Where did the time of messages go, and were the promises kept?

    Reads the delivery log of a broker, whether it runs or not, into a lake of Parquet files, rolls
    it up by minute, hour and day, checks the order of every message, reconciles the usage log, and
    writes one HTML page. A second run reads only what is new. Needs PySpark and Java.

    The exit code is 1 when the audit finds a promise that was not kept.
    """  # fmt: skip
    try:
        check_installed()
    except NotInstalled as missing:
        raise click.ClickException(f"{missing}.") from None
    from spark.lake import LakeError
    from spark.progress import Progress
    from spark.report import Wanted
    from spark.report import report as make

    folder = data_dir or default_data_dir()
    if logs is None and not (folder / "delivery").is_dir():
        raise click.ClickException(
            f"there is no delivery log in {folder}; --data-dir or --logs names another place."
        )
    wanted = Wanted(
        logs=logs or str(folder / "delivery"),
        lake=lake or folder / LAKE,
        out=out,
        usage=folder / "usage" if (folder / "usage").is_dir() else None,
        since=since.date() if since else None,
        until=until.date() if until else None,
        targets=_targets(targets),
        keep_days=keep_days,
    )
    spark = open_session("tocsin report", master=master)
    try:
        done = make(spark, wanted, Progress(sys.stderr, spark.sparkContext))
    except LakeError as problem:
        raise click.ClickException(f"{problem}.") from None
    finally:
        spark.stop()
    if as_json:
        click.echo(json.dumps(done))
    else:
        click.echo(f"The report is {out}.")
    sys.exit(1 if any(done["order_audit"]["faults"].values()) else 0)


def _targets(texts: tuple[str, ...]) -> "Targets":
    from spark.report import parse_targets

    try:
        return parse_targets(list(texts), parse_duration)
    except ValueError as wrong:
        raise click.BadParameter(
            f"{wrong} is no target; write 200ms or orders=50ms", param_hint="--target"
        ) from None
