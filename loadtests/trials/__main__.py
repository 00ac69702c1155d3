"""`python -m loadtests.trials NAME`: promises, tested under faults, load and attacks; --help lists
the names.

Each trial starts brokers of its own on empty folders, prints its figures and their conditions, and
ends with 1 when a promise is broken or the trial cannot end normally.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from loadtests.checker.history import Unreadable
from loadtests.clients.load import LoadFailed
from loadtests.server import ServerFailed
from loadtests.trials import (
    bulk,
    calm,
    churn,
    console,
    counted,
    expiry,
    guard,
    later,
    options,
    overflow,
    page,
    seal,
)
from loadtests.trials.credentials import guesses, revoke
from loadtests.trials.fuzz import schema
from loadtests.trials.fuzz import trial as fuzz
from loadtests.trials.hostile import trial as hostile
from loadtests.trials.noisy import trial as noisy
from loadtests.trials.sdk import kills, proxy, slow, switch
from loadtests.trials.sdk.programs import ProgramFailed
from loadtests.trials.stalled import trial as stalled
from loadtests.trials.stuck import trial as stuck
from loadtests.trials.trial import Finding, Progress
from loadtests.trials.visitors import trial as visitors

Plan = TypeVar("Plan")
Run = Callable[[Plan, Progress], Coroutine[Any, Any, Finding]]


@click.group()
def trials() -> None:
    """Hold the broker, and the SDK, to a promise on a bad day.

    Each trial starts a broker of its own, reports its progress, and prints what it measured and
    which promises were kept. The exit code is 1 if a promise was broken. `make trials` runs most of
    them, one after another.
    """


def add(name: str, plan: type[Plan], run: Run[Plan]) -> None:
    """Add a trial as the command `name`. The command's help is the docstring of `plan`, its options
    are the fields of `plan` and `--json`, and it calls `run` with them."""
    of_field = options.of(plan)

    def command(as_json: bool, **values: Any) -> None:
        given = {field: values[str(option.name)] for field, option in of_field.items()}
        # An empty tuple means that an option was not given; the Plan has the default.
        given = {field: value for field, value in given.items() if value != ()}
        _try(run(plan(**given), _progress), as_json)

    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")
    parameters: list[click.Parameter] = [*of_field.values(), as_json]
    trials.add_command(click.Command(name, None, command, parameters, help=plan.__doc__))


def _progress(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _try(trial: Coroutine[Any, Any, Finding], as_json: bool) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finding = runner.run(trial)
    except (ProgramFailed, LoadFailed, ServerFailed, Unreadable, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    click.echo(json.dumps(finding.fields()) if as_json else str(finding))
    sys.exit(0 if finding.ok else 1)


add("churn", churn.Plan, churn.churn)
add("visitors", visitors.Plan, visitors.visitors)
add("stuck", stuck.Plan, stuck.stuck)
add("stalled", stalled.Plan, stalled.stalled)
add("switch", switch.Plan, switch.switch)
add("proxy", proxy.Plan, proxy.proxied)
add("kills", kills.Plan, kills.kills)
add("slow", slow.Plan, slow.slow)
add("calm", calm.Plan, calm.calm)
add("bulk", bulk.Plan, bulk.bulk)
add("noisy", noisy.Plan, noisy.noisy)
add("page", page.Plan, page.page)
add("console", console.Plan, console.console)
add("guard", guard.Plan, guard.guard)
add("seal", seal.Plan, seal.seal)
add("schema", schema.Plan, schema.schema)
add("revoke", revoke.Plan, revoke.revoke)
add("fuzz", fuzz.Plan, fuzz.fuzz)
add("hostile", hostile.Plan, hostile.hostile)
add("guesses", guesses.Plan, guesses.guesses)
add("counted", counted.Plan, counted.counted)
add("overflow", overflow.Plan, overflow.overflow)
add("expiry", expiry.Plan, expiry.expiry)
add("later", later.Plan, later.later)
add("waiting", later.WaitingPlan, later.waiting)


if __name__ == "__main__":
    # The SDK's reports of lost connections and failed handlers are expected; trials count them.
    logging.getLogger("tocsin").setLevel(logging.CRITICAL)
    trials()
