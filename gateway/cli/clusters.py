"""`tocsin admin partitions`: at which storage clusters a broker's messages are."""

from typing import Any

import click
from tocsin.cli.common import plural

from gateway.admin import client as admin_client
from gateway.cli.options import broker_of, data_dir_option, json_option, tenant_option, to_json


@click.command()
@click.argument("queue", required=False)
@tenant_option
@data_dir_option
@json_option
def partitions(queue: str | None, tenant: str, data_dir: str | None, as_json: bool) -> None:
    """List the partitions of QUEUE, and the storage cluster of each; without QUEUE, the storage
    clusters, how full they are and how many partitions each has.

    \b
    Examples:
      tocsin admin partitions
      tocsin admin partitions orders
    """
    asked: dict[str, object] | None = {"queue": queue, "tenant": tenant} if queue else None
    try:
        answer = admin_client.placed(broker_of(data_dir), asked)
    except admin_client.AdminError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(to_json(answer))
    elif queue:
        for one in answer["partitions"]:
            where = f"at {one['cluster']}" if "cluster" in one else "here"
            offsets = f"offsets {one['start']} to {one['end']}"
            held = f"{plural(one['messages'], 'message')}, {plural(one['bytes'], 'byte')}"
            click.echo(f"{one['partition']}  {where}  {held}, {offsets}")
    elif not answer["clusters"]:
        click.echo("This broker keeps its messages in its data folder.")
    else:
        for one in answer["clusters"]:
            click.echo("\n".join(_lines_of(one)))


def _lines_of(one: dict[str, Any]) -> list[str]:
    state = one["state"] if one["since_unix_ms"] is not None else "no manager has looked yet"
    zone = f" in {one['zone']}" if one["zone"] else ""
    has = f"{plural(one['partitions'], 'partition')} of {plural(one['queues'], 'queue')}"
    catalog = ", and the catalog" if one["has_catalog"] else ""
    lines = [f"{one['name']}{zone}  {state}, {_memory(one)}; {has}{catalog}"]
    if one["why"]:
        lines.append(f"  away  {one['why']}")
    if not one["answers"]:
        lines.append("  now  it does not answer this broker")
    return lines


def _memory(one: dict[str, Any]) -> str:
    if one["used_bytes"] is None:
        return "its memory is not known"
    if not one["bound_bytes"]:
        return f"{plural(one['used_bytes'], 'byte')} taken, without a bound"
    share = round(100 * one["used_bytes"] / one["bound_bytes"])
    return f"{share} % of {plural(one['bound_bytes'], 'byte')} taken"
