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
@click.option("--when", type=click.Choice(WHEN), help="The figure to watch.")
@click.option("--above", type=float, help="Alert when it is larger than this.")
@click.option("--lasts", "lasts_s", type=duration, help="Alert after it has lasted this long. [1m]")
@click.option(
    "--group", type=OrNone(str), metavar="GROUP", help="Watch this group. [the furthest behind]"
)
@click.option(
    "--queue", type=OrNone(str), metavar="QUEUE", help="The queue that gets the alert's messages."
)
@click.option(
    "--webhook",
    type=OrNone(str),
    metavar="NAME",
    help="The webhook to call, by its name in TOCSIN_ALERT_WEBHOOKS.",
)
@click.option("--remove", is_flag=True, help="Remove this alert.")
@json_option
@target_options
@pass_target
def alert(
    target: Target, /, watched: str, name: str | None, remove: bool, as_json: bool, **said: Any
) -> None:
    """Set or remove the alert NAME of QUEUE; without NAME, list its alerts.

    When the value has been above the threshold for the time of --lasts, the broker sends a message
    to the queue of --queue and calls the webhook of --webhook. It does so again when the alert
    ends. An option that is not given leaves an existing alert's value unchanged; `none` clears it.

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
        raise click.UsageError("Give the alert's name after the queue.")
    if remove and change:
        raise click.UsageError("--remove goes with no other option. Leave the others out.")
    if name is not None and not remove and not change:
        raise click.UsageError("Give at least one option: values of the alert, or --remove.")
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
        click.echo(f"The alert {name} of {queue} has these values already. Nothing was changed.")
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
