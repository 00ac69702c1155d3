"""`python -m tests.later`: long runs of scheduled messages over killed gateways and stores."""

import asyncio
import secrets
import sys
import time

import click

from tests.later.clients import Plan
from tests.later.run import StoreKind, later


@click.command()
@click.option("--store", type=click.Choice(["embedded", "valkey"]), default="embedded")
@click.option("--messages", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--keys", type=click.IntRange(1), default=1_000, show_default=True)
@click.option(
    "--latest", type=float, default=40.0, show_default=True, help="Seconds ahead at most."
)
@click.option("--together", type=float, help="All are due in one millisecond, in so many seconds.")
@click.option("--no-kills", is_flag=True, help="Kill nothing.")
@click.option("--seed", type=int, help="Seed of the random instants. [a random one]")
def main(  # noqa: PLR0917 - click passes them by name
    store: StoreKind,
    messages: int,
    keys: int,
    latest: float,
    together: float | None,
    no_kills: bool,
    seed: int | None,
) -> None:
    """Schedule messages over HTTP, cancel, move and replace some, kill the gateways and the store
    every few seconds, and judge what is in the log at the end. Ends with 1 if something is wrong.
    """
    plan = Plan(messages, keys, latest_s=latest)
    if together is not None:
        at = int((time.time() + together) * 1000)
        plan = Plan(messages, keys, at_unix_ms=at, moved=0.0)
    drawn = secrets.randbits(32) if seed is None else seed
    report = asyncio.run(
        later(
            plan, store, seed=drawn, kills=not no_kills,
            progress=lambda text: click.echo(text, err=True),
        )
    )  # fmt: skip
    click.echo("\n".join(report.lines()))
    sys.exit(0 if report.verdict.ok else 1)


if __name__ == "__main__":
    main()
