"""The verb `tocsin queue alert`, for a queue's thresholds."""

from collections.abc import Mapping
from typing import Any, Final

import click

from tocsin.answers import ChangedQueue, QueueDescription
from tocsin.cli.common import (
    Target,
    json_option,
    pass_target,
    print_table,
    run,
    shown_name,
    target_options,
    to_json,
)
from tocsin.cli.durations import duration, format_duration
from tocsin.cli.queues import OrNone, given, shown
from tocsin.errors import InvalidRequest
from tocsin.settings import Alert, AlertChange

WHEN: Final = ("lag", "oldest_age_s", "depth", "dead_letters", "parked_keys")


@click.command("alert")
@click.argument("watched", metavar="QUEUE")
@click.argument("name", required=False)
@click.option("--when", type=click.Choice(WHEN), help="What is looked at.")
@click.option("--above", type=float, help="Only what is larger is told.")
@click.option("--lasts", "lasts_s", type=duration, help="And only when it was for so long. [1m]")
@click.option(
    "--group", type=OrNone(str), metavar="GROUP", help="Of this group. [the one furthest behind]"
)
@click.option("--queue", type=OrNone(str), metavar="QUEUE", help="The queue that is told.")
@click.option(
    "--webhook",
    type=OrNone(str),
    metavar="NAME",
    help="The webhook, as TOCSIN_ALERT_WEBHOOKS calls it.",
)
@click.option("--remove", is_flag=True, help="Take this alert away.")
@json_option
@target_options
@pass_target
def alert(
    target: Target, /, watched: str, name: str | None, remove: bool, as_json: bool, **said: Any
) -> None:
    """Set the alert NAME of QUEUE, take it away, or without NAME list them.

    When the value has been above the threshold for as long as --lasts says, a message goes to the
    queue of --queue, and the broker calls the webhook of --webhook; another one when it is over.
    Of an alert that is there, what is not given stays; `none` takes a value back.

    \b
    Examples:
      tocsin queue alert orders behind --when oldest_age_s --above 600 --queue ops-alerts
      tocsin queue alert orders behind --above 900
      tocsin queue alert orders letters --when dead_letters --above 0 --lasts 0s --webhook pager
      tocsin queue alert orders behind --remove
      tocsin queue alert orders
    """
    change = given(said)
    if name is None and (remove or change):
        raise click.UsageError("Name the alert.")
    if remove and change:
        raise click.UsageError("What is taken away needs nothing but its name.")
    if name is not None and not remove and not change:
        raise click.UsageError("Say what the alert is, or with --remove take it away.")
    if name is None:
        found = run(_described(target, watched))
        _show(watched, found["settings"]["alerts"], as_json)
        return
    wanted: Any = None if remove else change
    try:
        changed = run(_changed(target, watched, {name: wanted}))
    except InvalidRequest as error:
        if remove or ({"when", "above"} <= change.keys() and {"queue", "webhook"} & change.keys()):
            raise
        raise click.UsageError(
            f"{error.detail}. A new alert needs --when, --above, and --queue or --webhook."
        ) from None
    if remove and not changed["changes"]:
        raise click.ClickException(f"The queue {watched} has no alert {name}.")
    if not as_json:
        _print_change(watched, name, changed)
    _show(watched, changed["settings"]["alerts"], as_json)


async def _described(target: Target, queue: str) -> QueueDescription:
    async with target.http() as http:
        return await http.queue(queue)


async def _changed(
    target: Target, queue: str, alerts: Mapping[str, AlertChange | None]
) -> ChangedQueue:
    async with target.http() as http:
        return await http.update_queue(queue, alerts=alerts)


def _print_change(queue: str, name: str, changed: ChangedQueue) -> None:
    """Print the changes of an alert, field by field."""
    if not changed["changes"]:
        click.echo(f"The alert {name} of {queue} is so already: nothing was changed.")
        return
    (change,) = changed["changes"]
    before, after = (
        next((dict(one) for one in alerts if one["name"] == name), {})
        for alerts in (change["before"], change["after"])
    )
    if not before or not after:
        click.echo(f"The alert {name} of {queue} is {'created' if after else 'removed'}.")
        return
    for field in after:
        if before[field] != after[field]:
            was, now = shown(field, before[field]), shown(field, after[field])
            click.echo(f"{shown_name(field)} of {name}: {was} before, {now} now")


def _show(queue: str, alerts: list[Alert], as_json: bool) -> None:
    if as_json:
        click.echo(to_json({"queue": queue, "alerts": alerts}))
        return
    if not alerts:
        click.echo(f"The queue {queue} has no alerts.")
        return
    rows = [
        (
            one["name"],
            f"{one['when']} > {one['above']:g}",
            format_duration(one["lasts_s"]),
            one["group"] or "any",
            one["queue"] or "-",
            one["webhook"] or "-",
        )
        for one in alerts
    ]
    print_table(rows, ("alert", "when", "lasts", "group", "queue", "webhook"))
