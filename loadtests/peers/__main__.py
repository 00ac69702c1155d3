"""`python -m loadtests.peers`: Tocsin and other brokers at the same work; see --help."""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from loadtests.peers import medians, report
from loadtests.peers.contest import SCENARIOS, Plan, contest
from loadtests.peers.entrants import ENTRANTS
from loadtests.peers.medians import Results
from loadtests.peers.pictures import pictures

OUT: Final = Path("build/peers")
PUBLISHED: Final = Path("peers")
"""The folder, beside the document that shows them, of published results and their plots."""
_NAMES: Final = [entrant.name for entrant in ENTRANTS]
_PLAN: Final = Plan()


@click.group()
def peers() -> None:
    """Compare Tocsin with NATS, RabbitMQ and Redis Streams, or show earlier results."""


@peers.command()
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=_PLAN.rounds, show_default=True,
    help="Number of rounds. The table shows their medians.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.5, 120), default=_PLAN.seconds, show_default=True,
    help="How long each scenario measures, without its preparation.",
)  # fmt: skip
@click.option(
    "--readers", type=click.IntRange(1, 20_000), default=_PLAN.readers, show_default=True,
    help="Number of readers in the scenario fanout.",
)  # fmt: skip
@click.option(
    "--connections", type=click.IntRange(1, 20_000), default=_PLAN.connections, show_default=True,
    help="Number of connections in the scenario idle.",
)  # fmt: skip
@click.option("--peer", "names", multiple=True, type=click.Choice(_NAMES), help="Repeatable. [all]")
@click.option(
    "--scenario", "scenarios", multiple=True, type=click.Choice(list(SCENARIOS)),
    help="Repeatable. [all]",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(1, 600), default=_PLAN.minutes_max, show_default=True,
    help="Begin no measurement after this many minutes.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=OUT, show_default=True,
    help="The folder for results, table and plots.",
)  # fmt: skip
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also put the table into this document, as `readme` does. [none]",
)  # fmt: skip
def run(
    *,
    rounds: int,
    seconds: float,
    readers: int,
    connections: int,
    names: tuple[str, ...],
    scenarios: tuple[str, ...],
    minutes: float,
    out: Path,
    page: Path | None,
) -> None:
    """Measure, and write results.json, table.md and plots.

    \b
    single      one message a frame, many in flight, as many as the broker takes
    batch       a hundred messages at a time
    open1k      1,000 messages a second on a fixed schedule, latency from the scheduled time;
                open5k and open10k likewise
    open10k-1   open10k over one partition instead of 16, and open10k-64 over 64; Tocsin alone
    fanout      one message at a time to a thousand readers
    idle        memory of a connection that holds one reader

    The scenarios of a fixed rate also measure server CPU a message, and bytes written to the disk
    for a byte published. The table compares Tocsin's figures with its budgets: bounds that it sets
    itself, each beside the ratio to every other broker of the same run.

    Each measurement has servers of its own on free ports and in a temporary folder, which end with
    it. Brokers that are not installed are left out, with the reason. A measurement that fails is
    reported in the table, the others go on, and the status is 1 in the end. It takes about 40
    minutes. Ctrl-C keeps the results so far.

    \b
    All of it, and the page:   make peers ARGS="--page docs/benchmarks/peers.md"
    A quick look:              make peers ARGS="--rounds 1 --seconds 1"
    Two brokers at one rate:   make peers ARGS="--peer tocsin --peer nats-sync --scenario open1k"
    """
    plan = Plan(
        rounds, seconds, readers, connections, names or tuple(_NAMES),
        scenarios or tuple(SCENARIOS), minutes, _command(),
    )  # fmt: skip
    if page is not None:
        _page_between_marks(page, "")  # refuse a wrong document before the work
    results = _contest(plan, out)
    _show(results, out)
    if page is not None and results.cut:
        click.echo(
            f"  {page} is unchanged, because the run was cut short ({results.cut})", err=True
        )
    elif page is not None:
        _publish(results, page)
    if any(found.failure for found in results.runs):
        sys.exit(1)


def _contest(plan: Plan, out: Path) -> Results:
    """Run a contest and keep results.json up to date. If it is interrupted, return the results so
    far. Raises ClickException, Abort."""
    out.mkdir(parents=True, exist_ok=True)
    latest: list[Results] = []

    def keep(results: Results) -> None:
        latest[:] = [results]
        part = out / "results.json.part"
        part.write_bytes(medians.written(results))
        part.replace(out / "results.json")

    try:
        keep(contest(plan, lambda text: click.echo(f"  {text}", err=True), keep))
    except KeyboardInterrupt:
        if not latest:
            raise click.Abort from None
        latest[0].cut = "interrupted"
        keep(latest[0])
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    return latest[0]


@peers.command("report")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=OUT, show_default=True
)
def show(file: Path, out: Path) -> None:
    """Make table and plots anew from results."""
    out.mkdir(parents=True, exist_ok=True)
    _show(_read(file), out)


@peers.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("document", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def readme(file: Path, document: Path) -> None:
    """Put the table of these results into a document, between its marks.

    The results and their plots are kept beside the document, in the folder to which it links.
    """
    _publish(_read(file), document)


def _publish(results: Results, document: Path) -> None:
    folder = document.parent / PUBLISHED
    drawn = pictures(results)
    places = {name: f"{PUBLISHED}/{name}.svg" for name in drawn}
    text = _page_between_marks(document, report.section(results, places))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(medians.written(results))
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg)
    document.write_text(text)


def _page_between_marks(document: Path, section: str) -> str:
    """Return the document with this section between its marks. Raises ClickException."""
    try:
        return report.into(document.read_text(), section)
    except ValueError as error:
        raise click.ClickException(f"{document}: {error}") from None


def _read(file: Path) -> Results:
    try:
        return medians.read(file.read_bytes())
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from None


def _show(results: Results, out: Path) -> None:
    table = report.markdown(results)
    (out / "table.md").write_text(table)
    drawn = pictures(results)
    for name, svg in drawn.items():
        (out / f"{name}.svg").write_text(svg)
    click.echo(table)
    click.echo(f"  in {out}: results.json, table.md, {_photographed(out, list(drawn))}", err=True)


def _photographed(out: Path, names: list[str]) -> str:
    """Write the plots as PNG too, if a Chromium is installed. Return the plots written, in
    words."""
    if not names:
        return "nothing to draw"
    shown = ", ".join(f"{name}.svg" for name in names)
    try:
        from loadtests.chromium import ChromiumMissing
    except ImportError as error:
        return f"{shown}; no PNG, because {error}"
    try:
        asyncio.run(_photograph(out, names))
    except ChromiumMissing as error:
        return f"{shown}; no PNG, because {error}"
    return f"{shown}, and as PNG"


async def _photograph(folder: Path, names: Sequence[str]) -> None:
    """Write `<name>.png` beside each `<name>.svg`. Raises ChromiumMissing."""
    from loadtests.chromium import browsing

    async with browsing() as browser:
        for name in names:
            page = await browser.new_page(device_scale_factor=2)
            await page.set_content(
                f'<body style="margin:0">{(folder / f"{name}.svg").read_text()}</body>'
            )
            await page.locator("svg").screenshot(path=folder / f"{name}.png")
            await page.close()


def _command() -> str:
    """Return the command that repeats this run."""
    arguments = sys.argv[2:]
    return "make peers" + (f' ARGS="{shlex.join(arguments)}"' if arguments else "")


if __name__ == "__main__":
    peers()
