"""The verb `tocsin queue`: create, set, list, show. `upkeep` adds the operators' verbs."""

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import click

from tocsin.answers import (
    ChangedGroup,
    ChangedQueue,
    CreatedQueue,
    Difference,
    GroupFigures,
    QueueDescription,
    ScheduledFigures,
    SettingChange,
)
from tocsin.api.http import Http
from tocsin.cli.common import (
    CommandT,
    T,
    Target,
    confirm,
    json_option,
    pass_target,
    plural,
    print_fields,
    print_table,
    run,
    shown_name,
    shown_value,
    target_options,
    to_json,
    yes_option,
)
from tocsin.cli.durations import duration
from tocsin.cli.times import local_time
from tocsin.errors import SettingsDiffer, WouldDelete


class _Nothing(Enum):
    NONE = "none"


class OrNone(click.ParamType[object]):
    """A type whose value may be taken back with the word `none`."""

    def __init__(self, inner: Any) -> None:
        self._inner = click.types.convert_type(inner)
        self.name = self._inner.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the value, or the mark that it is taken back."""
        return _Nothing.NONE if value == "none" else self._inner.convert(value, param, ctx)


class Setting(NamedTuple):
    """A setting as a flag. `nullable` means that `none` takes its value back."""

    name: str
    type: Any
    help: str
    nullable: bool = False

    @property
    def flag(self) -> str:
        """The name of the flag: --lease for lease_s."""
        name = self.name if self.name.endswith("_per_s") else self.name.removesuffix("_s")
        return "--" + name.replace("_", "-")


NOT_SHOWN: Final = "-"
"""The text in place of a figure that the caller's rights do not show."""
QUEUE_SETTINGS: Final = (
    Setting("partitions", int, "The number of ordered logs; fixed at creation. [16]"),
    Setting(
        "retention_s", duration, "Keep messages this long after publication, even if settled. [0]"
    ),
    Setting("message_ttl_s", duration, "Deliver a message only up to this age. [no limit]", True),
    Setting("lease_s", duration, "How long a consumer holds a delivery. [30s]"),
    Setting("lease_total_s", duration, "The same, with all extends. [1h]"),
    Setting("attempts_max", int, "Attempts at a message; 0: no limit. [5]"),
    Setting(
        "on_exhausted",
        click.Choice(["dead_letter", "park"]),
        "What to do after the last attempt. [dead_letter]",
    ),
    Setting("dead_letter_queue", str, "The queue for dead letters. [NAME.dead-letters]", True),
    Setting("backoff_s", duration, "Wait before the second attempt; it doubles then. [1s]"),
    Setting("backoff_max_s", duration, "Longest wait between attempts. [1m]"),
    Setting("message_bytes_max", int, "The largest message, in bytes. [262144]"),
    Setting("messages_max", int, "Messages in the whole queue, see above; 0: no bound. [0]"),
    Setting("bytes_max", int, "Bytes in the whole queue, see above; 0: no bound. [0]"),
    Setting("due_messages_max", int, "Scheduled messages in the queue; 0: no own bound. [0]"),
    Setting("due_bytes_max", int, "Bytes of what is scheduled; 0: no own bound. [0]"),
    Setting(
        "overflow",
        click.Choice(["reject", "dead_letter"]),
        "What to do with messages beyond these bounds. [reject]",
    ),
    Setting("dedup_window_s", duration, "Remember ids of messages for this long. [5m]"),
    Setting(
        "durability", click.Choice(["local", "quorum", "all"]), "What a receipt promises. [all]"
    ),
    Setting("publish_messages_per_s", float, "For all publishers together. [no limit]", True),
    Setting("publish_bytes_per_s", float, "For all publishers together. [no limit]", True),
)


def setting_options(
    settings: tuple[Setting, ...],
) -> Callable[[CommandT], CommandT]:
    """Add a flag for each setting. A setting that is not given is None."""

    def decorate(command: CommandT) -> CommandT:
        for setting in reversed(settings):
            kind = OrNone(setting.type) if setting.nullable else setting.type
            command = click.option(
                setting.flag, setting.name, type=kind, default=None, help=setting.help
            )(command)
        return command

    return decorate


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given. The word `none` becomes None."""
    return {
        name: None if value is _Nothing.NONE else value
        for name, value in settings.items()
        if value is not None
    }


def create_or_explain(
    what: str, command: str, settings: Sequence[Setting], create: Callable[[], T]
) -> T:
    """Return the result of `create`.

    Raises:
        click.ClickException: the object exists with other settings. The text names each of these
            settings, and the `command` that changes them.
    """
    try:
        return create()
    except SettingsDiffer as error:
        flags = {setting.name: setting.flag for setting in settings}
        lines = [
            f"  {flags.get(one['name'], one['name'])}: {_differs(one)}" for one in error.differences
        ]
        fixed = [flags[one["name"]] for one in error.differences if one.get("fixed")]
        advice = f"`{command}` changes settings."
        if fixed:
            advice += f" {', '.join(fixed)} cannot change."
        raise click.ClickException(
            f"{what} exists with other settings, and was not changed:\n"
            + "\n".join([*lines, advice])
        ) from None


def _differs(one: Difference) -> str:
    current = shown(one["name"], one["current"])
    owner = "the queue's, " if one.get("inherited") else ""
    return f"{owner}{current}, not {shown(one['name'], one['requested'])}"


def act_or_ask(
    what: str,
    target: Target,
    *,
    yes: bool,
    does: str = "",
    left: str = "was not changed",
    update: Callable[[Http, int | None], Coroutine[Any, Any, T]],
) -> T:
    """Carry out `update` on `what`, a kind and a name.

    If it would delete messages, asks for permission; without a terminal, refuses. The second
    argument of `update` is the number of messages that it may delete. `does` is the question's
    text; empty: "changes" and `what`. `left` is the text of a refusal.
    """

    async def work(deletes_max: int | None) -> T:
        async with target.http() as http:
            return await update(http, deletes_max)

    deletes_max = None if yes else 0
    while True:
        try:
            return run(work(deletes_max))
        except WouldDelete as error:
            goes = removal(error.deleted, error.dead_lettered, is_done=False)
            if not sys.stdin.isatty():
                raise click.ClickException(
                    f"{what} {left}, because {goes}. Give --yes to do it."
                ) from None
            act = does or f"changes {what[0].lower()}{what[1:]}"
            confirm(f"{act} at {target.url}, and {goes}", what.split()[1], yes=False)
            deletes_max = error.messages


def removal(deleted: int, dead_lettered: int, *, is_done: bool) -> str:
    """Describe what a change does, or would do, to messages; empty if it does nothing."""

    def part(count: int, what: str) -> str:
        verb = ("is" if count == 1 else "are") if is_done else "would be"
        return f"{plural(count, 'message')} {verb} {what}" if count else ""

    parts = part(deleted, "deleted"), part(dead_lettered, "moved to the dead letters")
    return " and ".join(filter(None, parts))


def print_changes(what: str, changed: ChangedQueue | ChangedGroup) -> None:
    """Print each setting that has changed, old and new."""
    if not changed["changes"]:
        click.echo(f"{what} has these settings already. Nothing was changed.")
        return
    rows = [(shown_name(one["name"]), *_both(one)) for one in changed["changes"]]
    print_table(rows, ("SETTING", "BEFORE", "NOW"))
    does = removal(changed["deleted"], changed["dead_lettered"], is_done=True)
    if does:
        click.echo(f"{does}.")


def _both(change: SettingChange) -> tuple[str, str]:
    name = change["name"]
    return shown(name, change["before"]), shown(name, change["after"])


def shown(name: str, value: object) -> str:
    """Return the value of a setting as text for people."""
    if value is None:
        return "none"
    if name == "alerts" and isinstance(value, list):
        return ", ".join(one["name"] for one in value) or "none"
    if value == 0 and name in _UNBOUND:
        return _UNBOUND[name]
    return shown_value(name, value)


_UNBOUND: Final = {
    "attempts_max": "no end",
    "messages_max": "no bound",
    "bytes_max": "no bound",
    "due_messages_max": "no bound of its own",
    "due_bytes_max": "no bound of its own",
}
"""The text in place of a setting that is 0."""


@click.group()
def queue() -> None:
    """Create, change, show, pause and purge queues."""


@queue.command("create")
@click.argument("name")
@setting_options(QUEUE_SETTINGS)
@json_option
@target_options
@pass_target
def create(target: Target, /, name: str, as_json: bool, **settings: Any) -> None:
    """Create the queue NAME.

    A queue that exists is not changed. If a setting that is given here differs from the queue's,
    the command fails and shows the difference. `tocsin queue set` changes settings. To delete a
    queue, use `tocsin admin delete-queue` on the broker's machine.

    With --overflow reject, --messages-max and --bytes-max bound all messages that the queue
    retains. With dead_letter they bound the unsettled messages of each group. Retention alone then
    bounds settled messages, and a queue without a group.

    \b
    Examples:
      tocsin queue create orders
      tocsin queue create orders --partitions 32 --retention 7d
      tocsin queue create payments --attempts-max 10 --on-exhausted park --lease "1m 30s"
    """

    async def work() -> CreatedQueue:
        async with target.http() as http:
            return await http.create_queue(name, **given(settings))

    set_ = f"tocsin queue set {name}"
    made = create_or_explain(f"Queue {name}", set_, QUEUE_SETTINGS, lambda: run(work()))
    if as_json:
        click.echo(to_json(made))
    elif made["created"]:
        click.echo(f"Queue {name} is created, with {_partitions(made)}.")
    else:
        click.echo(f"Queue {name} exists already, with {_partitions(made)}, and was not changed.")


@queue.command("set")
@click.argument("name")
@setting_options(tuple(one for one in QUEUE_SETTINGS if one.name != "partitions"))
@yes_option
@json_option
@target_options
@pass_target
def set_queue(target: Target, /, name: str, yes: bool, as_json: bool, **settings: Any) -> None:
    """Change the given settings of the queue NAME.

    `none` clears a setting. If a change would delete messages or move them to the dead letters, the
    command says how many, and asks. A setting of deliveries applies to a partition from its next
    owner on.

    \b
    Examples:
      tocsin queue set orders --retention 30d
      tocsin queue set orders --message-ttl none --attempts-max 10
      tocsin queue set orders --messages-max 100000 --overflow dead_letter --yes
    """
    change = given(settings)
    if not change:
        raise click.UsageError(
            f"Give a setting to change, like --retention 7d. `tocsin queue show {name}` shows all."
        )
    changed = act_or_ask(
        f"Queue {name}",
        target,
        yes=yes,
        update=lambda http, most: http.update_queue(name, deletes_max=most, **change),
    )
    if as_json:
        click.echo(to_json(changed))
    else:
        print_changes(f"Queue {name}", changed)


@queue.command("list")
@json_option
@target_options
@pass_target
def list_queues(target: Target, as_json: bool) -> None:
    """List the queues with their messages, groups, and the largest lag of a group.

    Scheduled messages are those that are not due yet. MESSAGES does not count them.
    """

    async def work() -> list[QueueDescription]:
        async with target.http() as http:
            return [found async for found in http.queues()]

    queues = run(work())
    if as_json:
        for found in queues:
            click.echo(to_json(found))
        return
    if not queues:
        click.echo("There are no queues. `tocsin queue create NAME` creates one.")
        return
    rows = [
        (
            found["name"] + (" (paused)" if found.get("paused") else ""),
            len(found["partitions"]) if "partitions" in found else NOT_SHOWN,
            found.get("depth", NOT_SHOWN),
            found["scheduled"]["messages"] if "scheduled" in found else NOT_SHOWN,
            len(found["groups"]) if "groups" in found else NOT_SHOWN,
            max((one["lag"] for one in found["groups"]), default=0)
            if "groups" in found
            else NOT_SHOWN,
        )
        for found in queues
    ]
    print_table(rows, ("QUEUE", "PARTITIONS", "MESSAGES", "SCHEDULED", "GROUPS", "LAG MAX"))


@queue.command("show")
@click.argument("name")
@json_option
@target_options
@pass_target
def show(target: Target, name: str, as_json: bool) -> None:
    """Show the queue NAME: its settings, messages and groups."""

    async def work() -> QueueDescription:
        async with target.http() as http:
            return await http.queue(name)

    found = run(work())
    if as_json:
        click.echo(to_json(found))
        return
    fields: dict[str, object] = {"queue": found["name"]}
    if "depth" in found:
        fields["messages"] = f"{found['depth']:,} in {_partitions(found)}"
    if "scheduled" in found:
        fields["scheduled"] = _scheduled(found["scheduled"])
    if "created_unix_ms" in found:
        by = f" by {found['holder']}" if "holder" in found else ""
        fields["created"] = f"{local_time(found['created_unix_ms'])}{by}"
    print_fields({**fields, **_paused(found), **shown_settings(found.get("settings", {}))})
    if "groups" in found:
        click.echo()
        print_groups(found["groups"], name)
    else:
        click.echo("To see its groups, use a token that may consume, manage or observe it.")


def print_groups(groups: list[GroupFigures], queue: str) -> None:
    """Print groups with their lag."""
    if not groups:
        click.echo(f"No groups. `tocsin consume {queue} --group NAME` creates one.")
        return
    rows = [
        (one["name"], one["lag"], one.get("consumers", 0), one.get("keys_parked", 0))
        for one in groups
    ]
    print_table(rows, ("GROUP", "LAG", "CONSUMERS", "KEYS PARKED"))


def shown_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings for people: durations with units, and without those that are not set."""
    return {
        shown_name(name): shown(name, value)
        for name, value in settings.items()
        if value is not None and name != "partitions"
    }


def _scheduled(scheduled: ScheduledFigures) -> str:
    if scheduled["next_unix_ms"] is None:
        return "0"
    when = local_time(scheduled["next_unix_ms"])
    size = plural(scheduled["bytes"], "byte")
    return f"{plural(scheduled['messages'], 'message')}, {size}; the next is due {when}"


def _paused(found: QueueDescription) -> dict[str, object]:
    if not found.get("paused"):
        return {}
    return {"paused": f"no deliveries until `tocsin queue resume {found['name']}`"}


def _partitions(found: QueueDescription) -> str:
    return plural(len(found["partitions"]), "partition")
