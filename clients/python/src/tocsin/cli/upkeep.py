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
from tocsin.proto.message import Published

BODY_SHOWN: Final = 60
"""The number of characters of a body that a table shows."""


@click.command("pause")
@click.argument("name")
@json_option
@target_options
@pass_target
def pause(target: Target, name: str, as_json: bool) -> None:
    """Stop deliveries from the queue NAME to all groups until it is resumed.

    A restart of the broker does not end the pause. Consumers may settle the messages that they
    have. Returned messages wait. Publishers and readers go on.

    \b
    Examples:
      tocsin queue pause orders
      tocsin queue resume orders
    """
    _pause(target, name, as_json, paused=True)


@click.command("resume")
@click.argument("name")
@json_option
@target_options
@pass_target
def resume(target: Target, name: str, as_json: bool) -> None:
    """End a pause of the queue NAME. Waiting messages are delivered in order.

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
        click.echo(f"Queue {name} is paused. `tocsin queue resume {name}` resumes it.")
    else:
        click.echo(f"Queue {name} is not paused and delivers its messages.")


@click.command("purge")
@click.argument("name")
@click.option(
    "--group", metavar="GROUP", help="Purge for this group only; others keep their messages."
)
@yes_option
@json_option
@target_options
@pass_target
def purge(target: Target, name: str, group: str | None, yes: bool, as_json: bool) -> None:
    """Delete all messages that are now in the queue NAME.

    With --group, every message of that group counts as settled, in flight or not. The group goes on
    with messages that are published from now on. Without --group, this is done for every group, and
    readers do not get the messages either. Scheduled messages are deleted, too. Within minutes the
    store uses their space for new messages. The file of SQLite does not shrink.

    \b
    Examples:
      tocsin queue purge orders --group audit
      tocsin queue purge orders --yes           in a script
    """
    if not yes:
        drops = run(_would_purge(target, name, group))
        confirm(f"deletes {drops}, at {target.url}", name, yes=False)

    async def work() -> int:
        async with target.http() as http:
            return await http.purge_queue(name, group=group)

    count = run(work())
    if as_json:
        click.echo(to_json({"messages": count}))
    else:
        click.echo(f"Deleted {plural(count, 'message')} of {name} at {target.url}.")


async def _would_purge(target: Target, name: str, group: str | None) -> str:
    async with target.http() as http:
        if group is not None:
            count = plural((await http.group(name, group))["lag"], "message")
            return f"all that the group {group} has not settled in {name}, {count}"
        found = await http.queue(name)
        count = f", {plural(found['depth'], 'message')}" if "depth" in found else ""
        waiting = found["scheduled"]["messages"] if "scheduled" in found else 0
        later = f" and {plural(waiting, 'scheduled message')}" if waiting else ""
        return f"all messages in {name}{count}{later}"


@click.command("peek")
@click.argument("name")
@click.option("--group", metavar="GROUP", help="Only its unsettled messages, with their state.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
@click.option(
    "--offset",
    type=click.IntRange(0),
    metavar="N",
    help="Begin here in --partition, or in the partition of --key.",
)
@click.option("--key", metavar="KEY", help="Only messages of this key.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="At most this many.",
)
@json_option
@target_options
@pass_target
def peek(target: Target, /, name: str, as_json: bool, **which: Any) -> None:
    """Show messages of the queue NAME without taking them from a consumer.

    With --group, a message has a state. `ready` waits for its turn, a consumer, or credit.
    `waiting` waits for its retry, or for an earlier message of its key. `dying` is on its way to
    the dead letters. The others are `in_flight` and `parked`.

    \b
    Examples:
      tocsin queue peek orders
      tocsin queue peek orders --group billing -n 100
      tocsin queue peek orders --key user-7 --json
      tocsin queue peek orders --partition 4 --offset 121 -n 1
    """
    if which["offset"] is not None and which["partition"] is None and which["key"] is None:
        raise click.UsageError(
            "--offset needs --partition or --key, because it belongs to one partition."
        )

    async def work() -> list[PeekedMessage]:
        async with target.http() as http:
            return await http.peek(name, **which)

    found = run(work())
    if as_json:
        for message in found:
            sys.stdout.buffer.write(json_line(message, _standing(message)))
        return
    if not found:
        click.echo("No messages.")
        return
    heads = ["PARTITION", "OFFSET", "PUBLISHED", "KEY"]
    if which["group"] is not None:
        heads += ["STATE", "ATTEMPTS"]
    print_table([_row(message) for message in found], [*heads, "BODY"])


VERBS: Final = (pause, resume, purge, peek)
"""The verbs of this module, which become verbs of `tocsin queue`."""


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


def shown_key(message: Published) -> str:
    """Return a message's key as a cell of a table, cut to 40 characters; empty without one."""
    return _cut("" if message.key is None else message.key, 40)


def shown_body(message: Published) -> str:
    """Return the beginning of a message's body as a cell of a table, or the size of a binary
    body."""
    if message.is_binary:
        return f"({len(message.body_bytes):,} bytes)"
    return _cut(message.body_bytes[: 4 * BODY_SHOWN].decode(errors="replace"), BODY_SHOWN)


def _cut(text: str, length: int) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
