"""`tocsin queue alert`: the thresholds of a queue whose breach is told."""

from typing import Any, Final

import click

from tocsin.cli.common import (
    Target,
    json_option,
    pass_target,
    print_table,
    run,
    target_options,
    to_json,
)
from tocsin.cli.durations import duration, format_duration

WHEN: Final = ("lag", "oldest_age_s", "depth", "dead_letters", "parked_keys")


@click.command("alert")
@click.argument("watched", metavar="QUEUE")
@click.argument("name", required=False)
@click.option("--when", type=click.Choice(WHEN), help="What is looked at.")
@click.option("--above", type=float, help="Only what is larger is told.")
@click.option("--lasts", "lasts_s", type=duration, help="And only when it was for so long. [1m]")
@click.option("--group", metavar="GROUP", help="Of this group. [the one furthest behind]")
@click.option("--queue", metavar="QUEUE", help="The queue that is told.")
@click.option("--webhook", metavar="NAME", help="The webhook, as TOCSIN_ALERT_WEBHOOKS calls it.")
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

    \b
    Examples:
      tocsin queue alert orders behind --when oldest_age_s --above 600 --queue ops-alerts
      tocsin queue alert orders letters --when dead_letters --above 0 --lasts 0s --webhook pager
      tocsin queue alert orders behind --remove
      tocsin queue alert orders
    """
    given = {field: value for field, value in said.items() if value is not None}
    if name is None and (remove or given):
        raise click.UsageError("Name the alert.")
    if remove and given:
        raise click.UsageError("What is taken away needs nothing but its name.")
    if name is not None and not remove and not _is_whole(given):
        raise click.UsageError("An alert needs --when, --above, and --queue or --webhook.")

    async def work() -> list[dict[str, Any]]:
        async with target.http() as http:
            settings = (await http.queue(watched))["settings"]
            alerts: list[dict[str, Any]] = settings["alerts"]
            if name is None:
                return alerts
            kept = [one for one in alerts if one["name"] != name]
            if remove and len(kept) == len(alerts):
                raise click.ClickException(f"The queue {watched} has no alert {name}.")
            settings["alerts"] = kept if remove else [*kept, {"name": name, **given}]
            made: list[dict[str, Any]] = (await http.create_queue(watched, **settings))["settings"][
                "alerts"
            ]
            return made

    _show(watched, run(work()), as_json)


def _is_whole(given: dict[str, Any]) -> bool:
    return {"when", "above"} <= given.keys() and bool({"queue", "webhook"} & given.keys())


def _show(queue: str, alerts: list[dict[str, Any]], as_json: bool) -> None:
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
