"""The verb `tocsin scheduled`: list, show, cancel and move messages that are not due yet."""

from datetime import datetime
from typing import Any

import click

from tocsin.api.scheduled import ScheduledList, ScheduledMessage
from tocsin.cli.common import (
    CommandT,
    Target,
    check_when,
    json_option,
    pass_target,
    plural,
    print_fields,
    print_table,
    printable,
    run,
    target_options,
    to_json,
    when_options,
)
from tocsin.cli.durations import format_duration
from tocsin.cli.printing import body_fields
from tocsin.cli.times import from_now, local_time
from tocsin.cli.upkeep import shown_body, shown_key


@click.group()
def scheduled() -> None:
    """List, show, cancel and move scheduled messages, which wait until they are due.

    A message is named by its id, and --key if it has a key. If it was published without an id, its
    ticket is its id, and needs no --key. `tocsin publish --delay 2h` schedules a message.
    """


def _one(command: CommandT) -> CommandT:
    """Add the arguments that name a message."""
    key = click.option("--key", metavar="KEY", help="The key of the message with this id.")
    return click.argument("queue")(click.argument("id")(key(command)))


@scheduled.command("list")
@click.argument("queue")
@click.option("--key", metavar="KEY", help="Only messages of this key.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="At most this many.",
)
@json_option
@target_options
@pass_target
def list_scheduled(
    target: Target, /, queue: str, key: str | None, limit: int, as_json: bool
) -> None:
    """List the scheduled messages of QUEUE, the one that is due first in front.

    \b
    Examples:
      tocsin scheduled list reminders
      tocsin scheduled list reminders --key user-7 -n 10
      tocsin scheduled list reminders --json | jq -r .id
    """

    async def work() -> ScheduledList:
        async with target.http() as http:
            return await http.scheduled(queue, key=key, limit=limit)

    found = run(work())
    if as_json:
        for message in found.messages:
            click.echo(to_json(_fields(message)))
        return
    if not found.messages:
        of = "" if key is None else f" under the key {printable(key)}"
        click.echo(f"Nothing is scheduled in {queue}{of}.")
        return
    print_table([_row(message) for message in found.messages], _HEADS)
    if found.next is not None:
        waiting = plural(found.count, "message")
        click.echo(f"There are more: {waiting} of {queue} wait. Raise --limit to see them.")


@scheduled.command("show")
@_one
@json_option
@target_options
@pass_target
def show(target: Target, /, queue: str, id: str, key: str | None, as_json: bool) -> None:
    """Show the scheduled message ID of QUEUE, with its body if your token may read it.

    \b
    Examples:
      tocsin scheduled show reminders 31 --key user-7
    """

    async def work() -> ScheduledMessage:
        async with target.http() as http:
            return await http.scheduled_message(queue, id, key=key)

    found = run(work())
    if as_json:
        click.echo(to_json(_fields(found)))
        return
    fields: dict[str, object] = {
        "id": printable(found.id),
        "key": "-" if found.key is None else shown_key(found),
        "due": _due(found),
        "published": local_time(found.published_unix_ms),
        "partition": found.partition,
        "ticket": found.ticket,
        "size": f"{found.bytes:,} bytes",
    }
    if found.ttl_s is not None:
        fields["ttl"] = format_duration(found.ttl_s)
    for name, text in found.headers.items():
        fields[f"header {printable(name)}"] = printable(text)
    fields["body"] = shown_body(found) if found.has_content else "(your token may not read it)"
    print_fields(fields)


@scheduled.command("cancel")
@_one
@json_option
@target_options
@pass_target
def cancel(target: Target, /, queue: str, id: str, key: str | None, as_json: bool) -> None:
    """Cancel the scheduled message ID of QUEUE, for good.

    No consumer gets it. A publish under its id and key is refused from then on, within the queue's
    dedup window. A message that is due already cannot be cancelled.

    \b
    Examples:
      tocsin scheduled cancel reminders 31 --key user-7
    """

    async def work() -> ScheduledMessage:
        async with target.http() as http:
            return await http.cancel_scheduled(queue, id, key=key)

    found = run(work())
    if as_json:
        click.echo(to_json(_fields(found)))
    else:
        click.echo(f"Cancelled {printable(found.id)}, which was due at {_due(found)}.")


@scheduled.command("move")
@_one
@when_options
@json_option
@target_options
@pass_target
def move(
    target: Target,
    /,
    queue: str,
    id: str,
    key: str | None,
    *,
    delay: float | None,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Give the scheduled message ID of QUEUE another time. With one that has passed, it comes at
    once.

    \b
    Examples:
      tocsin scheduled move reminders 31 --key user-7 --delay 1d
      tocsin scheduled move reminders 31 --key user-7 --at 2026-11-21T09:30
    """
    check_when(delay, at)
    if delay is None and at is None:
        raise click.UsageError("Say when it is due, like --delay 2h or --at 2026-11-21T09:30.")

    async def work() -> ScheduledMessage:
        async with target.http() as http:
            return await http.change_scheduled(queue, id, key=key, delay_s=delay, deliver_at=at)

    found = run(work())
    if as_json:
        click.echo(to_json(_fields(found)))
    else:
        click.echo(f"{printable(found.id)} is due at {_due(found)}.")


_HEADS = ("DUE", "IN", "KEY", "ID", "BYTES", "BODY")


def _row(message: ScheduledMessage) -> list[object]:
    when = [local_time(message.due_unix_ms), from_now(message.due_unix_ms)]
    body = shown_body(message) if message.has_content else ""
    return [*when, shown_key(message), printable(message.id), message.bytes, body]


def _due(message: ScheduledMessage) -> str:
    return f"{local_time(message.due_unix_ms)} ({from_now(message.due_unix_ms)})"


def _fields(message: ScheduledMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "due_unix_ms": message.due_unix_ms,
        "key": message.key,
        "id": message.id,
        "ticket": message.ticket,
        "partition": message.partition,
        "published_unix_ms": message.published_unix_ms,
        "bytes": message.bytes,
    }
    if message.has_content:
        fields |= body_fields(message)
    more: dict[str, object] = {
        "ttl_s": message.ttl_s,
        "content_type": message.content_type,
        "headers": message.headers or None,
        "sent_unix_ms": message.sent_unix_ms,
    }
    return fields | {name: value for name, value in more.items() if value is not None}
