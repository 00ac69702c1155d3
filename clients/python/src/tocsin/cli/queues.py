"""`tocsin queue`: create, list, show; `upkeep` adds what operators do."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import click

from tocsin.cli.common import (
    CommandT,
    Target,
    json_option,
    pass_target,
    plural,
    print_fields,
    print_table,
    run,
    target_options,
    to_json,
)
from tocsin.cli.durations import duration, format_duration


class Setting(NamedTuple):
    """One setting as a flag."""

    name: str
    type: Any
    help: str

    @property
    def flag(self) -> str:
        """--lease for lease_s."""
        name = self.name if self.name.endswith("_per_s") else self.name.removesuffix("_s")
        return "--" + name.replace("_", "-")


QUEUE_SETTINGS: Final = (
    Setting("partitions", int, "How many ordered logs; fixed at creation. [16]"),
    Setting("retention_s", duration, "Keep messages so long after every group is done. [0]"),
    Setting("message_ttl_s", duration, "Give a message out no longer than this. [no limit]"),
    Setting("lease_s", duration, "A delivery is one consumer's for so long. [30s]"),
    Setting("lease_total_s", duration, "The same with all extends. [1h]"),
    Setting("attempts_max", int, "Attempts before a message counts as exhausted; 0: no end. [5]"),
    Setting("on_exhausted", click.Choice(["dead_letter", "park"]), "Then what. [dead_letter]"),
    Setting("dead_letter_queue", str, "Where dead letters go. [NAME.dead-letters]"),
    Setting("backoff_s", duration, "Wait before the second attempt; then doubling. [1s]"),
    Setting("backoff_max_s", duration, "Wait at most so long. [1m]"),
    Setting("message_bytes_max", int, "The largest message. [262144]"),
    Setting("messages_max", int, "Messages in the whole queue, see above; 0: no bound. [0]"),
    Setting("bytes_max", int, "Bytes in the whole queue, see above; 0: no bound. [0]"),
    Setting("overflow", click.Choice(["reject", "dead_letter"]), "Beyond them. [reject]"),
    Setting("dedup_window_s", duration, "Remember the ids of messages for so long. [5m]"),
    Setting("durability", click.Choice(["local", "quorum", "all"]), "Of a receipt. [all]"),
    Setting("publish_messages_per_s", float, "Of all publishers together. [no limit]"),
    Setting("publish_bytes_per_s", float, "Of all publishers together. [no limit]"),
)


def setting_options(settings: tuple[Setting, ...]) -> Callable[[CommandT], CommandT]:
    """A flag per setting; what is not given is None."""

    def decorate(command: CommandT) -> CommandT:
        for setting in reversed(settings):
            command = click.option(
                setting.flag, setting.name, type=setting.type, default=None, help=setting.help
            )(command)
        return command

    return decorate


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in settings.items() if value is not None}


@click.group()
def queue() -> None:
    """Create queues, look at them and into them, pause and purge them."""


@queue.command("create")
@click.argument("name")
@setting_options(QUEUE_SETTINGS)
@json_option
@target_options
@pass_target
def create(target: Target, /, name: str, as_json: bool, **settings: Any) -> None:
    """Create the queue NAME, or change its settings.

    A queue that is there gets exactly these settings: what is left out has its default. Deleting
    one is `tocsin admin delete-queue`, on the broker's machine.

    With --overflow reject, --messages-max and --bytes-max bound all that the queue retains. With
    dead_letter they bound what each group has not settled; what --retention keeps of settled
    messages, and a queue without a group, are bounded by retention alone.

    \b
    Examples:
      tocsin queue create orders
      tocsin queue create orders --partitions 32 --retention 7d
      tocsin queue create payments --attempts-max 10 --on-exhausted park --lease "1m 30s"
    """

    async def work() -> dict[str, Any]:
        async with target.http() as http:
            return await http.create_queue(name, **given(settings))

    made = run(work())
    if as_json:
        click.echo(to_json(made))
    else:
        click.echo(f"Queue {name} is there, with {_partitions(made)}.")


@queue.command("list")
@json_option
@target_options
@pass_target
def list_queues(target: Target, as_json: bool) -> None:
    """List the queues: messages retained, groups, and how far the slowest of them is behind."""

    async def work() -> list[dict[str, Any]]:
        async with target.http() as http:
            return [found async for found in http.queues()]

    queues = run(work())
    if as_json:
        for found in queues:
            click.echo(to_json(found))
        return
    if not queues:
        click.echo("There are no queues. `tocsin queue create NAME` makes one.")
        return
    rows = [
        (
            found["name"] + (" (paused)" if found.get("paused") else ""),
            len(found["partitions"]),
            found["depth"],
            len(found["groups"]),
            max((one["lag"] for one in found["groups"]), default=0),
        )
        for found in queues
    ]
    print_table(rows, ("QUEUE", "PARTITIONS", "MESSAGES", "GROUPS", "LAG MAX"))


@queue.command("show")
@click.argument("name")
@json_option
@target_options
@pass_target
def show(target: Target, name: str, as_json: bool) -> None:
    """Show the queue NAME: its settings, what it holds, and where its groups stand."""

    async def work() -> dict[str, Any]:
        async with target.http() as http:
            return await http.queue(name)

    found = run(work())
    if as_json:
        click.echo(to_json(found))
        return
    print_fields(
        {
            "queue": found["name"],
            "messages": f"{found['depth']:,} in {_partitions(found)}",
            "created": f"{local_time(found['created_unix_ms'])} by {found['holder']}",
            **_paused(found),
            **shown_settings(found["settings"]),
        }
    )
    click.echo()
    print_groups(found["groups"], name)


def print_groups(groups: list[dict[str, Any]], queue: str) -> None:
    """Groups with their lag."""
    if not groups:
        click.echo(f"No groups. `tocsin consume {queue} --group NAME` makes one.")
        return
    rows = [
        (one["name"], one["lag"], one.get("consumers", 0), one.get("keys_parked", 0))
        for one in groups
    ]
    print_table(rows, ("GROUP", "LAG", "CONSUMERS", "KEYS PARKED"))


def shown_settings(settings: dict[str, Any]) -> dict[str, object]:
    """Settings for people: durations with units, and without those that are not set."""
    return {
        name.removesuffix("_s").replace("_", " "): format_duration(value)
        if name.endswith("_s") and isinstance(value, int | float)
        else value
        for name, value in settings.items()
        if value is not None and name != "partitions"
    }


def local_time(unix_ms: int) -> str:
    """A time for people."""
    return datetime.fromtimestamp(unix_ms / 1000).astimezone().isoformat(" ", "seconds")


def _paused(found: dict[str, Any]) -> dict[str, object]:
    if not found.get("paused"):
        return {}
    return {"paused": f"nothing is given out; `tocsin queue resume {found['name']}` goes on"}


def _partitions(found: dict[str, Any]) -> str:
    return plural(len(found["partitions"]), "partition")
