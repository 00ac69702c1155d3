"""`python -m loadtests.trials churn|stuck|stalled`: promises, each held to on a bad day.

Each trial starts a broker of its own on an empty folder, prints what it measured and under which
conditions, and ends with 1 when the promise is broken.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import click
import uvloop

from loadtests import trial_churn, trial_stalled, trial_stuck
from loadtests.history import Unreadable
from loadtests.load import LoadFailed
from loadtests.server import ServerFailed
from loadtests.trial import Finding

_Command = TypeVar("_Command", bound=Callable[..., Any])
_json: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _seconds(default: float, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--seconds", type=click.FloatRange(1, 3600), default=default, show_default=True, help=text
    )


@click.group()
def trials() -> None:
    """Hold the broker to a promise on a bad day; end with 1 when it breaks it."""


@trials.command()
@_seconds(trial_churn.SECONDS, "How long consumers come and go.")
@click.option(
    "--rate", type=click.IntRange(100, 50_000), default=trial_churn.RATE, show_default=True,
    help="Messages a second.",
)  # fmt: skip
@_json
def churn(seconds: float, rate: int, as_json: bool) -> None:
    """Consumers join and leave every second; partitions that do not move must not notice."""
    _try(trial_churn.churn(seconds, rate, _progress), as_json)


@trials.command()
@click.option(
    "--messages", type=click.IntRange(40_000), default=trial_stuck.MESSAGES, show_default=True,
    help="How many wait.",
)  # fmt: skip
@click.option(
    "--keys", type=click.Choice(["10000", "30000"]), default=str(trial_stuck.KEYS),
    show_default=True, help="Of them 300 are stuck: 3 % or 1 %.",
)  # fmt: skip
@_seconds(trial_stuck.TURN_S, "How long each turn of a group is.")
@_json
def stuck(messages: int, keys: str, seconds: float, as_json: bool) -> None:
    """Stuck keys with a backlog behind them; the healthy ones must not pay for them."""
    _try(trial_stuck.stuck(messages, seconds, _progress, keys=int(keys)), as_json)


@trials.command()
@_seconds(trial_stalled.SECONDS, "How long with stalled sockets, and as long without.")
@click.option(
    "--sockets", type=click.IntRange(10, 20_000), default=trial_stalled.SOCKETS,
    show_default=True, help="How many stop reading.",
)  # fmt: skip
@_json
def stalled(seconds: float, sockets: int, as_json: bool) -> None:
    """Sockets stop reading; memory stays, and the others keep their rate."""
    _try(trial_stalled.stalled(seconds, sockets, _progress), as_json)


def _progress(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _try(trial: Coroutine[Any, Any, Finding], as_json: bool) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finding = runner.run(trial)
    except (LoadFailed, ServerFailed, Unreadable, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    click.echo(json.dumps(finding.fields()) if as_json else str(finding))
    sys.exit(0 if finding.ok else 1)


if __name__ == "__main__":
    trials()
