"""The verb `tocsin dead-letters`: list messages that no consumer could handle, and send them
back."""

import sys
from contextlib import aclosing
from typing import Any

import click

from tocsin.api.admin import DeadLetter
from tocsin.cli.common import (
    Target,
    json_option,
    pass_target,
    plural,
    print_table,
    run,
    target_options,
    to_json,
)
from tocsin.cli.printing import json_line
from tocsin.cli.progress import Progress
from tocsin.cli.times import local_time
from tocsin.cli.upkeep import shown_body, shown_key
from tocsin.errors import TocsinError

REASONS = click.Choice(["exhausted", "rejected", "expired", "overflow", "skipped", "queue_deleted"])


@click.group("dead-letters")
def dead_letters() -> None:
    """List messages that no consumer could handle, and send them back.

    A message that exhausts its attempts, is rejected, expires, overflows or is skipped moves to the
    queue's dead-letter queue. Its name is NAME.dead-letters unless a setting says otherwise. It is
    a queue like any other.
    """


@dead_letters.command("list")
@click.argument("queue")
@click.option("--key", metavar="KEY", help="Only letters of this key.")
@click.option("--reason", type=REASONS, help="Only letters with this reason.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many."
)
@json_option
@target_options
@pass_target
def list_letters(target: Target, /, queue: str, limit: int, as_json: bool, **which: Any) -> None:
    """List the dead letters of QUEUE that have not gone back, oldest first.

    \b
    Examples:
      tocsin dead-letters list orders
      tocsin dead-letters list orders --reason exhausted --json | jq -r .nack | sort | uniq -c
    """

    async def work() -> tuple[list[DeadLetter], bool]:
        found: list[DeadLetter] = []
        async with target.http() as http, aclosing(http.dead_letters(queue, **which)) as letters:
            async for letter in letters:
                if len(found) == limit:
                    return found, True
                found.append(letter)
        return found, False

    found, is_more = run(work())
    if as_json:
        for letter in found:
            sys.stdout.buffer.write(json_line(letter, _extra(letter)))
        return
    if not found:
        click.echo(f"{queue} has no dead letters.")
        return
    heads = ("DIED", "REASON", "ATTEMPTS", "GROUP", "KEY", "ID", "NACK", "BODY")
    print_table([_row(letter) for letter in found], heads)
    if is_more:
        click.echo("There are more. Raise --limit to see them.")


def _row(letter: DeadLetter) -> list[object]:
    died = local_time(letter.published_unix_ms)
    origin = [died, letter.reason, letter.attempts, letter.origin.group or ""]
    return [*origin, shown_key(letter), letter.id, letter.nack or "", shown_body(letter)]


def _extra(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    return {
        "reason": letter.reason,
        "attempts": letter.attempts,
        "nack": letter.nack,
        "origin": {
            "queue": origin.queue,
            "group": origin.group,
            "partition": origin.partition,
            "offset": origin.offset,
        },
    }


@dead_letters.command("redrive")
@click.argument("queue")
@click.option("--key", metavar="KEY", help="Only letters of this key.")
@click.option("--reason", type=REASONS, help="Only letters with this reason.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=None, help="At most this many. [all]"
)
@json_option
@target_options
@pass_target
def redrive(target: Target, /, queue: str, limit: int | None, as_json: bool, **which: Any) -> None:
    """Send dead letters of QUEUE back into it, in the order of their keys.

    Each becomes a new message with the same key, id, body and headers. Every group and reader of
    the queue gets it, also groups that had handled it. It leaves the dead letters when it is
    durable in the queue. After an error or a kill, run this again. Within the queue's dedup window
    nothing is stored twice.

    \b
    Examples:
      tocsin dead-letters redrive orders
      tocsin dead-letters redrive orders --key user-7
      tocsin dead-letters redrive orders --reason exhausted --limit 1     try one first
    """
    meter = Progress(sys.stderr, total=limit, verb="sent back")
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done = count
        meter.update(count, count)

    async def work() -> int:
        async with target.http() as http:
            return await http.redrive_dead_letters(queue, limit=limit, progress=tell, **which)

    try:
        count = run(work())
    except TocsinError:
        meter.close()
        if done:
            click.echo(f"Sent back {plural(done, 'message')} before this error:", err=True)
        raise
    meter.close()
    if as_json:
        click.echo(to_json({"messages": count}))
    else:
        click.echo(f"Sent back {plural(count, 'message')}.")
