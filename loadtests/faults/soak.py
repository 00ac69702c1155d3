"""`python -m loadtests.faults.soak kill|power-loss`: break the broker repeatedly, and judge.

Ends with 0 when nothing was violated, 1 otherwise. The instants are drawn from `--seed`, which is
printed; the broker's state at them depends on the machine.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import uvloop

from loadtests.checker.history import Unreadable
from loadtests.clients.recorder import ClientFailed
from loadtests.faults.kill import KillReport, kill_cycles
from loadtests.faults.power_loss import PowerLossReport, power_losses, why_not
from loadtests.server import SERVE, ServerFailed

Report = KillReport | PowerLossReport

_seed = click.option("--seed", type=int, help="Seed of the random instants. [a random one]")
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
_script = click.option(
    "--server-script",
    type=click.Path(exists=True, dir_okay=False),
    help="Negative control: a Python file to run in place of the shipped server.",
)
_break = click.option("--break", "broken", help="With --server-script: the name of what it breaks.")


@click.group()
def soak() -> None:
    """Break a broker at random instants, and judge it from its clients' logs."""


@soak.command()
@click.option("--cycles", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--messages", type=click.IntRange(0), default=0,
    help="Go on until this many messages are acknowledged.",
)  # fmt: skip
@click.option(
    "--keep",
    type=click.Path(file_okay=False, exists=True),
    help="Existing folder in which to keep the log.",
)
@_seed
@_json
@_script
@_break
def kill(  # noqa: PLR0917 - click passes them by name
    cycles: int,
    messages: int,
    keep: str | None,
    seed: int | None,
    as_json: bool,
    server_script: str | None,
    broken: str | None,
) -> None:
    """Kill the broker with kill -9 at random instants, some of them during recovery."""
    run = kill_cycles(
        seed=_seeded(seed),
        cycles=cycles,
        messages=messages,
        command=_command(server_script, broken),
        progress=_progress,
        keep=Path(keep) if keep else None,
    )
    _report(run, as_json)


@soak.command("power-loss")
@click.option("--cycles", type=click.IntRange(1), default=100, show_default=True)
@_seed
@_json
@_script
@_break
def power_loss(
    cycles: int, seed: int | None, as_json: bool, server_script: str | None, broken: str | None
) -> None:
    """Simulate power losses at random instants, after which unsynced data are gone. Needs root."""
    reason = why_not()
    if reason is not None:
        raise click.ClickException(reason)
    run = power_losses(
        seed=_seeded(seed),
        losses=cycles,
        command=_command(server_script, broken),
        progress=_progress,
    )
    _report(run, as_json)


def _seeded(seed: int | None) -> int:
    number = secrets.randbits(32) if seed is None else seed
    _progress(f"seed {number}")
    return number


def _command(script: str | None, broken: str | None) -> Sequence[str]:
    if script is None:
        if broken is not None:
            raise click.UsageError("--break needs --server-script")
        return SERVE
    return [str(Path(script).resolve()), *([f"--break={broken}"] if broken else [])]


def _progress(text: str) -> None:
    click.echo(text, err=True)


def _report(run: Coroutine[Any, Any, Report], as_json: bool) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(run)
    except (ClientFailed, ServerFailed, Unreadable) as error:
        raise click.ClickException(str(error)) from error
    verdict = report.verdict
    fields = report.fields()
    if as_json:
        click.echo(json.dumps(fields))
    else:
        for name, value in fields.items():
            if name != "verdict":
                click.echo(f"{name.replace('_', ' ')}: {value}")
        click.echo(str(verdict or "nothing to judge"))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    soak()
