"""Verbs of `tocsin queue` for operators: pause, resume, purge, peek."""

import sys
from typing import Any, Final

import click

from tocsin.answers import QueueDescription
from tocsin.api.admin import PeekedMessage
from tocsin.cli.common import (
    Target,
    confirm,
    json_option,
    pass_target,
    plural,
    print_table,
    printable,
    run,
    target_options,
    to_json,
    yes_option,
)
from tocsin.cli.printing import json_line
from tocsin.cli.times import local_time
from tocsin.proto.message import Content

BODY_SHOWN: Final = 60
"""The number of characters of a body that a table shows."""


@click.command("pause")
@click.argument("name")
@json_option
@target_options
@pass_target
def pause(target: Target, name: str, as_json: bool) -> None:
    """Give nothing of the queue NAME out, to any group, until it is resumed.

    Durable when this returns: a restart of the broker does not end it. What consumers have may be
    settled; what returns waits. Publishing goes on, and so do readers.

    \b
    Examples:
      tocsin queue pause orders        while what the workers talk to is repaired
      tocsin queue resume orders
    """
    _pause(target, name, as_json, paused=True)


@click.command("resume")
@click.argument("name")
@json_option
@target_options
@pass_target
def resume(target: Target, name: str, as_json: bool) -> None:
    """End a pause of the queue NAME: what waited is given out, in order.

    \b
    Examples:
      tocsin queue resume orders
    """
    _pause(target, name, as_json, paused=False)


def _pause(target: Target, name: str, as_json: bool, *, paused: bool) -> None:
    async def work() -> QueueDescription:
        async with target.http() as http:
            return await (http.pause_queue(name) if paused else http.resume_queue(name))

    found = run(work())
    if as_json:
        click.echo(to_json(found))
    elif paused:
        click.echo(f"Queue {name} is paused. `tocsin queue resume {name}` goes on.")
    else:
        click.echo(f"Queue {name} gives out its messages.")


@click.command("purge")
@click.argument("name")
@click.option("--group", metavar="GROUP", help="Only for this group; the others keep theirs.")
@yes_option
@json_option
@target_options
@pass_target
def purge(target: Target, name: str, group: str | None, yes: bool, as_json: bool) -> None:
    """Drop what stands in the queue NAME at this moment, for good.

    With --group, what that group has not settled counts as settled, in flight or not: it goes on
    with what is published from now on. Without, that is so for every group, and readers do not
    see any of it either; the disk gets its space back in the next minutes.

    \b
    Examples:
      tocsin queue purge orders --group audit
      tocsin queue purge orders --yes           in a script
    """
    if not yes:
        drops = run(_would_purge(target, name, group))
        confirm(f"drops {drops}, at {target.url}", name, yes=False)

    async def work() -> int:
        async with target.http() as http:
            return await http.purge_queue(name, group=group)

    count = run(work())
    if as_json:
        click.echo(to_json({"messages": count}))
    else:
        click.echo(f"Dropped {plural(count, 'message')} of {name} at {target.url}.")


async def _would_purge(target: Target, name: str, group: str | None) -> str:
    async with target.http() as http:
        if group is not None:
            count = plural((await http.group(name, group))["lag"], "message")
            return f"what the group {group} has not settled in {name}, {count}"
        found = await http.queue(name)
        count = f", {plural(found['depth'], 'message')}" if "depth" in found else ""
        return f"everything in {name}{count}"


@click.command("peek")
@click.argument("name")
@click.option("--group", metavar="GROUP", help="What it has not settled, and what that waits for.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
@click.option(
    "--offset",
    type=click.IntRange(0),
    metavar="N",
    help="From here on in --partition, or in the partition of --key.",
)
@click.option("--key", metavar="KEY", help="Only messages of this key.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=10, show_default=True, help="At most so many."
)
@json_option
@target_options
@pass_target
def peek(target: Target, /, name: str, as_json: bool, **which: Any) -> None:
    """Show messages of the queue NAME as they stand there, and take them from nobody.

    With --group, a message is `ready` (it waits for its turn, a consumer, or credit), `in_flight`,
    `waiting` (for its retry, or behind an earlier one of its key), `parked`, or `dying` (on its
    way to the dead letters).

    \b
    Examples:
      tocsin queue peek orders
      tocsin queue peek orders --group billing -n 100
      tocsin queue peek orders --key user-7 --json
      tocsin queue peek orders --partition 4 --offset 121 -n 1
    """
    if which["offset"] is not None and which["partition"] is None and which["key"] is None:
        raise click.UsageError("An offset is one of a partition: give --partition or --key, too.")

    async def work() -> list[PeekedMessage]:
        async with target.http() as http:
            return await http.peek(name, **which)

    found = run(work())
    if as_json:
        for message in found:
            sys.stdout.buffer.write(json_line(message, _standing(message)))
        return
    if not found:
        click.echo("Nothing stands there.")
        return
    heads = ["PARTITION", "OFFSET", "PUBLISHED", "KEY"]
    if which["group"] is not None:
        heads += ["STATE", "ATTEMPTS"]
    print_table([_row(message) for message in found], [*heads, "BODY"])


VERBS: Final = (pause, resume, purge, peek)
"""The verbs below `tocsin queue`."""


def _standing(message: PeekedMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if message.state is not None:
        fields = {"state": message.state, "attempts": message.attempts}
    if message.expires_unix_ms:
        fields["expires_unix_ms"] = message.expires_unix_ms
    return fields


def _row(message: PeekedMessage) -> list[object]:
    place = [message.partition, message.offset, local_time(message.published_unix_ms)]
    group = [] if message.state is None else [message.state, message.attempts]
    return [*place, shown_key(message), *group, shown_body(message)]


def shown_key(message: Content) -> str:
    """A key in a table."""
    return _cut("" if message.key is None else message.key, 40)


def shown_body(message: Content) -> str:
    """The beginning of a body in a table."""
    if message.is_binary:
        return f"({len(message.body_bytes):,} bytes)"
    return _cut(message.body_bytes[: 4 * BODY_SHOWN].decode(errors="replace"), BODY_SHOWN)


def _cut(text: str, length: int) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
