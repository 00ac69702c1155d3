"""The verb `tocsin group`: create, set, list, show, delete, seek."""

from collections.abc import Mapping
from typing import Any, Final

import click

from tocsin.answers import CreatedGroup, GroupDescription, GroupPartition, QueueDescription
from tocsin.api.session_subscription import Start
from tocsin.cli.common import (
    Target,
    confirm,
    json_option,
    parse_start,
    pass_target,
    plural,
    print_fields,
    print_table,
    printable,
    run,
    shown_name,
    shown_value,
    target_options,
    to_json,
    yes_option,
)
from tocsin.cli.durations import duration
from tocsin.cli.queues import (
    Setting,
    act_or_ask,
    create_or_explain,
    given,
    print_changes,
    print_groups,
    removal,
    setting_options,
    shown_settings,
)
from tocsin.cli.times import local_time

GROUP_SETTINGS: Final = (
    Setting(
        "semantics",
        click.Choice(["at_least_once", "at_most_once"]),
        "Settle a message when it is acked, or before it is delivered. [at_least_once]",
    ),
    Setting("lease_s", duration, "How long a consumer holds a delivery. [the queue's]", True),
    Setting("lease_total_s", duration, "The same, with all extends. [the queue's]", True),
    Setting("attempts_max", int, "Attempts at a message; 0: no limit. [the queue's]", True),
    Setting(
        "on_exhausted",
        click.Choice(["dead_letter", "park"]),
        "What to do after the last attempt. [the queue's]",
        True,
    ),
    Setting("backoff_s", duration, "Wait before the second attempt. [the queue's]", True),
    Setting("backoff_max_s", duration, "Longest wait between attempts. [the queue's]", True),
    Setting("expires_s", duration, "Delete it after this long without a consumer. [never]", True),
)


@click.group()
def group() -> None:
    """Create, change, show and move groups, whose consumers share a queue's messages."""


@group.command("create")
@click.argument("queue")
@click.argument("name")
@click.option("--start", default=None, help="Where it starts: earliest, latest or a time.")
@setting_options(GROUP_SETTINGS)
@yes_option
@json_option
@target_options
@pass_target
def create(
    target: Target,
    /,
    queue: str,
    name: str,
    start: str | None,
    *,
    yes: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create the group NAME of QUEUE.

    Consuming or pulling creates a group too; this command also gives its settings. It does not
    change a group that exists; `tocsin group set` does.

    A queue without --retention keeps everything for its first group. If that group starts at latest
    or at a time, earlier messages are deleted. The command says how many, and asks.

    \b
    Examples:
      tocsin group create orders billing --attempts-max 10
      tocsin group create orders audit --start 2026-11-21T00:00 --semantics at_most_once
    """

    begin = None if start is None else parse_start(start)

    def work() -> CreatedGroup:
        return act_or_ask(
            f"Group {name} of {queue}",
            target,
            yes=yes,
            does=f"creates group {name} of {queue}",
            left="was not created",
            update=lambda http, most: http.create_group(
                queue, name, start=begin, deletes_max=most, **given(settings)
            ),
        )

    set_ = f"tocsin group set {queue} {name}"
    made = create_or_explain(f"Group {name} of {queue}", set_, GROUP_SETTINGS, work)
    if as_json:
        click.echo(to_json(made))
    elif made["created"]:
        click.echo(f"Group {name} of {queue} is created.")
    else:
        click.echo(f"Group {name} of {queue} exists already and was not changed.")


@group.command("set")
@click.argument("queue")
@click.argument("name")
@setting_options(GROUP_SETTINGS)
@yes_option
@json_option
@target_options
@pass_target
def set_group(
    target: Target, /, queue: str, name: str, yes: bool, as_json: bool, **settings: Any
) -> None:
    """Change the given settings of the group NAME of QUEUE.

    `none` clears a setting, so that the queue's applies. If a change would delete messages or move
    them to the dead letters, the command says how many, and asks.

    \b
    Examples:
      tocsin group set orders billing --lease 2m
      tocsin group set orders billing --attempts-max none
    """
    change = given(settings)
    if not change:
        raise click.UsageError("Say what changes, like --lease 2m.")
    changed = act_or_ask(
        f"Group {name} of {queue}",
        target,
        yes=yes,
        update=lambda http, most: http.update_group(queue, name, deletes_max=most, **change),
    )
    if as_json:
        click.echo(to_json(changed))
    else:
        print_changes(f"Group {name} of {queue}", changed)


@group.command("list")
@click.argument("queue")
@json_option
@target_options
@pass_target
def list_groups(target: Target, queue: str, as_json: bool) -> None:
    """List the groups of QUEUE with their lag."""

    async def work() -> QueueDescription:
        async with target.http() as http:
            return await http.queue(queue)

    found = run(work())
    if "groups" not in found:
        needed = f"This needs the right to consume, manage or observe, on the queue {queue!r}."
        raise click.ClickException(needed)
    groups = found["groups"]
    if as_json:
        for one in groups:
            click.echo(to_json(one))
    else:
        print_groups(groups, queue)


@group.command("show")
@click.argument("queue")
@click.argument("name")
@json_option
@target_options
@pass_target
def show(target: Target, queue: str, name: str, as_json: bool) -> None:
    """Show the group NAME of QUEUE: settings, lag, and who owns which partition."""

    async def work() -> GroupDescription:
        async with target.http() as http:
            return await http.group(queue, name)

    found = run(work())
    if as_json:
        click.echo(to_json(found))
        return
    values: Mapping[str, Any] = found
    fields: dict[str, object] = {"group": found["name"], "lag": f"{found['lag']:,}"}
    if "created_unix_ms" in found:
        fields["created"] = local_time(found["created_unix_ms"])
    for name_, value in values.items():
        if name_ == "oldest_unix_ms":
            if value is not None:
                fields["oldest unsettled"] = local_time(value)
        elif name_ == "counters":
            fields["counted"] = _counted(value)
        elif name_ not in _SHOWN_APART:
            fields[shown_name(name_)] = shown_value(name_, value)
    print_fields({**fields, **shown_settings(found["settings"])})
    places = [place for place in found.get("partitions", ()) if "waits_for" in place]
    if places:
        click.echo()
        print_table([_row(place) for place in places], _PLACE)


_SHOWN_APART: Final = ("name", "lag", "created_unix_ms", "settings", "group_id", "partitions")
_PLACE: Final = ("PARTITION", "LAG", "IN FLIGHT", "KEYS WAITING", "WAITS FOR", "OWNER")


def _counted(counters: dict[str, int]) -> str:
    counts = [
        f"{count:,} {name.replace('_', '-')}"
        for name, count in counters.items()
        if name != "since_unix_ms"
    ]
    since = counters.get("since_unix_ms")
    return ", ".join(counts) + (f" since {local_time(since)}" if since else "")


def _row(place: GroupPartition) -> list[object]:
    owner: Mapping[str, Any] = place.get("owner") or {}
    client = owner.get("client")
    consumer = owner.get("consumer") or place.get("member") or ""  # at another gateway
    name = printable(f"{client} ({consumer})" if client else consumer)
    counts = [place["partition"], place["lag"], place["in_flight"], place["keys_waiting"]]
    return [*counts, place["waits_for"].replace("_", " "), name]


@group.command("delete")
@click.argument("queue")
@click.argument("name")
@yes_option
@json_option
@target_options
@pass_target
def delete(target: Target, queue: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete the group NAME of QUEUE and its position.

    Messages stay if another group has not settled them, or if --retention of the queue keeps them.
    Messages that only this group had not settled are deleted. The command says how many, and asks.
    The last group of a queue without a retention leaves all messages to the next group.

    \b
    Examples:
      tocsin group delete orders billing
      tocsin group delete orders billing --yes     in a script
    """
    what = f"deletes the group {name} of {queue} and its position at {target.url}"
    confirm(what, name, yes=yes)

    count = act_or_ask(
        f"Group {name} of {queue}",
        target,
        yes=yes,
        does=f"deletes group {name} of {queue}",
        left="was not deleted",
        update=lambda http, most: http.delete_group(queue, name, deletes_max=most),
    )
    if as_json:
        click.echo(to_json({"deleted": name, "messages": count}))
    else:
        gone = f" {removal(count, 0, is_done=True)} with it." if count else ""
        click.echo(f"Group {name} of {queue} is deleted at {target.url}.{gone}")


@group.command("seek")
@click.argument("queue")
@click.argument("name")
@click.argument("to")
@yes_option
@json_option
@target_options
@pass_target
def seek(target: Target, queue: str, name: str, to: str, *, yes: bool, as_json: bool) -> None:
    """Move the group NAME of QUEUE to earliest, latest, a time, or an offset (the same in every
    partition).

    Messages in flight at or after the new position are delivered again. Skipped messages are
    deleted, unless another group needs them or --retention of the queue keeps them. The command
    says how many, and asks.

    \b
    Examples:
      tocsin group seek orders billing earliest
      tocsin group seek orders billing 2026-11-21T09:30
      tocsin group seek orders billing 0
    """
    place: Start | int = int(to) if to.isdecimal() and to.isascii() else parse_start(to)

    found = act_or_ask(
        f"Group {name} of {queue}",
        target,
        yes=yes,
        does=f"moves group {name} of {queue} to {to}",
        left="was not moved",
        update=lambda http, most: http.seek_group(queue, name, place, deletes_max=most),
    )
    if as_json:
        click.echo(to_json(found))
    else:
        ahead = plural(found["lag"], "message")
        click.echo(f"Group {name} of {queue} goes on at {to}, with {ahead} ahead.")
        if found["deleted"]:
            click.echo(f"{removal(found['deleted'], 0, is_done=True)}.")
