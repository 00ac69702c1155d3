"""The verb `tocsin queue explain`."""

import click

from tocsin.answers import Explanation, KeyInGroup
from tocsin.cli.common import (
    Negatives,
    Target,
    json_option,
    pass_target,
    plural,
    printable,
    run,
    target_options,
    to_json,
)
from tocsin.cli.times import local_time


@click.command("explain", cls=Negatives)
@click.argument("queue")
@click.argument("key")
@click.option("--group", metavar="GROUP", help="Only for this group.")
@json_option
@target_options
@pass_target
def explain_key(target: Target, queue: str, key: str, group: str | None, as_json: bool) -> None:
    """Explain what the messages of KEY in QUEUE wait for.

    For each group, shows the owner of the key's partition, until when the key waits, and how many
    attempts its first message has had. Changes nothing.

    \b
    Examples:
      tocsin queue explain orders user-7
      tocsin queue explain orders user-7 --group billing --json
    """

    async def work() -> Explanation:
        async with target.http() as http:
            return await http.explain(queue, key, group=group)

    told = run(work())
    if as_json:
        click.echo(to_json(told))
        return
    paused = ", which is paused" if told["paused"] else ""
    where = f"partition {told['partition']} of {printable(queue)}{paused}"
    click.echo(f"{printable(key)} goes to {where} (key hash {told['key_hash']}).")
    if "scheduled" in told:
        click.echo(told["scheduled"]["text"])
    if not told["groups"]:
        click.echo(f"No groups. `tocsin consume {queue} --group NAME` creates one.")
    for one in told["groups"]:
        click.echo(f"\n{one['group']}: {one['waits_for'].replace('_', ' ')}")
        for line in _lines(one):
            click.echo(f"  {line}")


def _lines(one: KeyInGroup) -> list[str]:
    lines = [one["text"]]
    if one["also"]:
        lines.append("Also: " + ", ".join(code.replace("_", " ") for code in one["also"]) + ".")
    lines.append(f"Its partition is owned by {_owner(one)}.")
    head = one["head"]
    if head is not None and head["published_unix_ms"] is not None:
        when = local_time(head["published_unix_ms"])
        lines.append(
            f"The first message has the id {printable(head['id'] or '')}, published {when}."
        )
    if one["since_unix_ms"] is not None:
        lines.append(f"This has lasted since {local_time(one['since_unix_ms'])}.")
    messages = one["messages"]
    count = plural(messages["waiting"], "message")
    least = "" if one["is_exact"] else "at least "
    lines.append(f"{messages['in_flight']:,} in flight, {least}{count} of the key waiting.")
    return lines


def _owner(one: KeyInGroup) -> str:
    owner = one["owner"]
    if owner is None:
        return "nobody here"
    if owner["session"] is None:
        return f"the clients that pull, in epoch {one['epoch']}"
    client = f"{printable(owner['client'])}, " if owner["client"] else ""
    by = owner["transport"] or "nothing at the moment"
    return f"{client}consumer {owner['consumer']}, by {by}, in epoch {one['epoch']}"
