"""`python -m tests.chaos`: break a store and its gateways again and again, judge, say so.

Ends with 0 when nothing was violated, 1 otherwise; with --break, when the break was found.
"""

import secrets
import signal
import sys
import time
from dataclasses import replace
from random import Random
from typing import Final

import click

from loadtests.faults.power_loss import why_not
from metadata.service.protocol import LAYOUTS
from metadata.service.protocol import Layout as MetadataLayout
from tests.chaos.books import STORES, Book
from tests.chaos.breaks import BREAKS
from tests.chaos.nemesis import AWAY_WHOLE_S, FROZEN_S, FROZEN_WHOLE_S, METADATA, SHAPES
from tests.chaos.rounds import Plan, Report, play
from tests.layout.tree import ROOT
from tests.servers.binaries import Binary, binaries
from tests.servers.layouts import Layout
from tests.servers.network import needs

FOLDER: Final = ROOT / "build/chaos"
FAULTS_PER_ROUND: Final = 12

EXAMPLES = """
\b
Examples:
  make chaos                                        the whole run: some hours
  make chaos ARGS="--failovers 10 --partitions 14 --kills 5 --freezes 0 --power-losses 0"
  make chaos ARGS="--seed 7 --faults failover,one-way,kill"     one round, of these faults
  make chaos ARGS="--store cluster"                 over a Redis Cluster of three shards
  make chaos ARGS="--break wait-one"                a negative control: it must be found
  make chaos ARGS="--table"                         what has come of it so far

It can be stopped at any time: what was counted stays, in tests/chaos/rounds.jsonl, and the next
run goes on from there, as do several side by side, until the code of the broker changes; each
kind of store is counted for itself. Each round has a seed. It draws the faults and whom they meet;
when they meet which message is the machine's affair. The history of every round, and the logs of
its gateways and nodes, lie in build/chaos.
"""


@click.command(epilog=EXAMPLES)
@click.option("--failovers", type=click.IntRange(0), default=200, show_default=True)
@click.option(
    "--partitions", type=click.IntRange(0), default=200, show_default=True,
    help="In seven shapes, as many of each.",
)  # fmt: skip
@click.option(
    "--kills", type=click.IntRange(0), default=100, show_default=True, help="Of gateways."
)
@click.option(
    "--freezes", type=click.IntRange(0), default=50, show_default=True, help="Of gateways."
)
@click.option(
    "--power-losses", type=click.IntRange(0), default=50, show_default=True,
    help="Of all store nodes at once.",
)  # fmt: skip
@click.option(
    "--stale-restarts", type=click.IntRange(0), default=20, show_default=True,
    help="Of replicas that have missed much, while no other copy can be reached.",
)  # fmt: skip
@click.option(
    "--aways", type=click.IntRange(0), default=50, show_default=True,
    help="Of replicas that managers take out and let in again, before the primary is lost.",
)  # fmt: skip
@click.option("--away-s", type=float, default=AWAY_WHOLE_S, show_default=True)
@click.option("--frozen-s", type=float, default=FROZEN_WHOLE_S, show_default=True)
@click.option("--gateways", type=click.IntRange(1, 5), default=2, show_default=True)
@click.option(
    "--serving",
    type=click.IntRange(0, 5),
    default=0,
    help="On how many of them consumers are; 0: on all.",
)
@click.option(
    "--drains/--no-drains",
    default=True,
    help="Compare how fast backlogs drain: not on a machine that has other work.",
)
@click.option(
    "--faults-per-round", type=click.IntRange(1), default=FAULTS_PER_ROUND, show_default=True,
    help="What a round that is stopped has done counts for nothing.",
)  # fmt: skip
@click.option("--rounds-max", type=click.IntRange(1), help="Stop after so many.")
@click.option("--seed", type=int, help="One round, of this seed; with --faults.")
@click.option("--faults", help="The faults of that round, with commas between.")
@click.option("--break", "broken", type=click.Choice(list(BREAKS)), help="A negative control.")
@click.option(
    "--engine", type=click.Choice(["valkey", "redis", "both"]), default="both",
    show_default=True, help="Both: in turns, where both are here.",
)  # fmt: skip
@click.option(
    "--store", "layout", type=click.Choice(list(STORES)), default="sentinel", show_default=True,
    help="A primary with two replicas and three Sentinels; or a Cluster of three such primaries.",
)  # fmt: skip
@click.option(
    "--metadata", type=click.Choice(LAYOUTS), help="A metadata service of three nodes, so laid out."
)
@click.option(
    "--metadata-faults", type=click.IntRange(0), default=50, show_default=True,
    help="Where there is one, to its nodes, of each kind: kill, cut, freeze, and all away.",
)  # fmt: skip
@click.option("--table", "only_table", is_flag=True, help="Say what has come of it so far.")
def chaos(  # noqa: PLR0917 - click passes them by name
    failovers: int, partitions: int, kills: int, freezes: int, power_losses: int,
    stale_restarts: int, aways: int, away_s: float,
    frozen_s: float, gateways: int, serving: int, drains: bool,
    faults_per_round: int, rounds_max: int | None,
    seed: int | None, faults: str | None, broken: str | None, engine: str, layout: Layout,
    metadata: MetadataLayout | None, metadata_faults: int, only_table: bool,
) -> None:  # fmt: skip
    """Break a store and its gateways, fault after fault, in network namespaces of its own, under
    load; judge each round from its clients' histories."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # disks are unmounted on the way out
    if needs():
        raise click.ClickException(needs())
    here = [one for one in binaries() if engine in ("both", one.engine)]
    if not here:
        raise click.ClickException(f"there is no {engine} server here")
    book = Book()
    if only_table:
        click.echo(book.table())
        return
    if broken is not None:
        sys.exit(0 if _control(broken, here[0], seed, layout) else 1)
    base = Plan(
        0, (), gateways, serving, frozen_s, drains=drains, layout=layout, away_s=away_s,
        metadata=metadata,
    )  # fmt: skip
    if faults is not None:
        number = secrets.randbits(32) if seed is None else seed
        plan = _plan(base, number, faults.split(","))
        sys.exit(0 if _round(plan, here[0], book).ok else 1)
    wanted = {"failover": failovers, "kill": kills, "freeze": freezes, "power-loss": power_losses}
    wanted["stale-restart"] = stale_restarts
    if layout == "sentinel":  # a Cluster has no managers here (tests/services/test_manager_cluster)
        wanted["stale-away"] = aways // 5
        wanted["away"] = aways
    wanted |= dict.fromkeys(METADATA if metadata is not None else (), metadata_faults)
    wanted |= {
        shape: partitions // len(SHAPES) + (place < partitions % len(SHAPES))
        for place, shape in enumerate(SHAPES)
    }
    played = 0
    while rounds_max is None or played < rounds_max:
        number = secrets.randbits(32)
        book.read()
        left = [
            kind for kind, count in wanted.items() for _ in range(count - book.done(kind, layout))
        ]
        if not left:
            break
        chosen = Random(number).sample(left, min(faults_per_round, len(left)))
        click.echo(f"{len(left)} faults left; seed {number}: {', '.join(chosen)}", err=True)
        _round(_plan(base, number, chosen), here[len(book.rounds) % len(here)], book)
        played += 1
    click.echo(book.table())
    sys.exit(1 if book.bad() else 0)


def _plan(base: Plan, seed: int, faults: list[str]) -> Plan:
    with_disks = "power-loss" in faults and not why_not()
    if "power-loss" in faults and not with_disks:
        click.echo(f"nodes are killed, their power is not cut: {why_not()}", err=True)
    return replace(base, seed=seed, faults=faults, with_disks=with_disks)


def _round(plan: Plan, binary: Binary, book: Book) -> Report:
    report = play(plan, binary, _Progress(), keep=FOLDER / book.judged)
    book.add(report)
    click.echo(f"{binary}, {report}", err=True)
    return report


def _control(broken: str, binary: Binary, seed: int | None, layout: Layout) -> bool:
    """Whether the break was found, and as what it is."""
    control = BREAKS[broken]
    number = secrets.randbits(32) if seed is None else seed
    plan = Plan(
        number, control.faults, serving=control.serving, frozen_s=FROZEN_S,
        with_disks=control.with_disks, broken=broken, layout=control.layout or layout,
    )  # fmt: skip
    report = play(plan, binary, _Progress(), keep=FOLDER / f"break-{broken}")
    click.echo(f"{binary}, broken so that {control.does}: {report}")
    found = control.shows & set(report.verdict.violations if report.verdict else ())
    click.echo(f"RED, as it must be: {', '.join(sorted(found))}" if found else "NOT FOUND")
    return bool(found)


class _Progress:
    """Says what happens, and when."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:7.1f} s  {text}", err=True)


if __name__ == "__main__":
    chaos()
