"""The cost of the delivery log to a broker: `python -m loadtests.bench.log_cost`.

The same scenario runs against a broker with the log and one without it, in turns. Each is a process
of its own on an empty folder. The verdict is the median of the ratios of two neighboring runs,
because a machine whose speed changes from minute to minute changes both. Ends with status 1 if the
log costs more than COST_MAX of the throughput.
"""

import asyncio
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import uvloop

from loadtests.bench.load_run import Bench, Figures
from loadtests.bench.scenarios import CONNECTIONS, SCENARIOS
from loadtests.clients.load import LoadFailed
from loadtests.server import Process, Server, ServerFailed, raise_file_limit

COST_MAX: Final = 0.05
ROUNDS: Final = 15
SECONDS: Final = 3.0
FILES_SPARE: Final = 500


@click.command()
@click.option(
    "--scenario", "names", multiple=True, type=click.Choice([*SCENARIOS]), default=("batch100",),
    show_default=True, help="Run this scenario of `tocsin bench`; repeatable.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5, 600), default=SECONDS, show_default=True)
def main(names: tuple[str, ...], rounds: int, seconds: float) -> None:
    """Measure the cost of the delivery log, and print it."""
    raise_file_limit(CONNECTIONS + FILES_SPARE)
    is_dear = False
    try:
        for name in names:
            found: dict[str, list[Figures]] = {"yes": [], "no": []}
            for number in range(rounds):
                # In turns, and the first one alternates, so that warming up and slowing down affect
                # both.
                for switch in ("yes", "no") if number % 2 == 0 else ("no", "yes"):
                    found[switch].append(_measure(name, switch, seconds))
                    click.echo(f"  {name} {number + 1}/{rounds} log={switch}", err=True)
            is_dear = _tell(name, found) or is_dear
    except (LoadFailed, ServerFailed, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(int(is_dear))


def _measure(name: str, switch: str, seconds: float) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="tocsin-log-cost-"))
    settings = {"TOCSIN_DELIVERY_LOG": switch}
    server = Server(folder / "data", level="warning", settings=settings)
    try:
        server.start()
        run = Bench(
            server.url, None, Process(server.pid), seconds, 100_000, CONNECTIONS, lambda _: None
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_one(name, run))
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


async def _one(name: str, run: Bench) -> Figures:
    return await SCENARIOS[name](run)


def _tell(name: str, found: dict[str, list[Figures]]) -> bool:
    """Print the figures. Return whether the log costs more than COST_MAX of the throughput."""
    rate = {switch: _median([one.messages_per_s for one in some]) for switch, some in found.items()}
    cpu = {
        switch: _median([one.server_cpu_us_per_message for one in some])
        for switch, some in found.items()
    }
    click.echo(f"{name}: with the log {_shown(rate['yes'], cpu['yes'])}")
    click.echo(f"{name}: without it   {_shown(rate['no'], cpu['no'])}")
    if not (rate["yes"] and rate["no"]):
        return False
    costs = sorted(
        1 - (one.messages_per_s or 0.0) / (other.messages_per_s or 1.0)
        for one, other in zip(found["yes"], found["no"], strict=True)
    )
    cost, quarter = statistics.median(costs), len(costs) // 4
    click.echo(
        f"{name}: the log costs {cost:.1%} of the throughput (median of {len(costs)} pairs, half "
        f"of them {costs[quarter]:.1%} to {costs[-1 - quarter]:.1%}); {COST_MAX:.0%} is its budget"
    )
    return cost > COST_MAX


def _median(figures: list[float | None]) -> float:
    return statistics.median([figure for figure in figures if figure is not None] or [0.0])


def _shown(rate: float, cpu_us: float) -> str:
    return f"{rate:,.0f} messages/s, {cpu_us:.2f} µs of server CPU a message"


if __name__ == "__main__":
    main()
