"""`tocsin admin park`, which lists keys that wait for an operator, and decides about them."""

from typing import Any

import click
from tocsin.cli.common import plural
from tocsin.cli.times import local_time

from gateway.admin import client as admin_client
from gateway.cli.options import (
    admin_errors,
    broker_of,
    data_dir_option,
    json_option,
    tenant_option,
    to_json,
)
from gateway.rest.routes.backlog import KEYS_DEFAULT
from push import limits


@click.group()
def park() -> None:
    """List parked keys of a group, and decide about them.

    A key is parked if its queue or group has `on_exhausted: park`, and its first message has failed
    its last attempt or was rejected. All messages of the key then wait until an operator retries,
    skips or releases it. Other keys go on.
    """


@park.command("list")
@click.argument("queue")
@click.argument("group")
@click.option(
    "--limit",
    type=click.IntRange(1, limits.PARKED_PER_CALL_MAX),
    default=KEYS_DEFAULT,
    show_default=True,
    help="Show at most this many keys.",
)
@tenant_option
@data_dir_option
@json_option
def list_parked(limit: int, data_dir: str | None, as_json: bool, **place: str) -> None:
    """List the keys of QUEUE that are parked in GROUP.

    Each line says why and since when a key is parked, and which messages wait.

    \b
    Examples:
      tocsin admin park list orders billing
      tocsin admin park list orders billing --tenant acme
      tocsin admin park list orders billing --json | jq -r '.keys[].key'
    """
    with admin_errors():
        answer = admin_client.list_parked(broker_of(data_dir), place, limit)
    if as_json:
        click.echo(to_json(answer))
        return
    for key in answer["keys"]:
        click.echo(_line(key))
    left = answer["keys_parked"] - len(answer["keys"])
    if not answer["keys_parked"]:
        click.echo(_nothing_parked(place))
    elif left:
        click.echo(f"And {left:,} more. --limit shows up to {limits.PARKED_PER_CALL_MAX:,}.")


def _nothing_parked(place: dict[str, str]) -> str:
    return f"Nothing is parked in the group {place['group']} of {place['queue']}."


def _line(key: dict[str, Any]) -> str:
    head = f"offset {key['offset']}" if "offset" in key else "nothing"
    since = local_time(key["since_unix_ms"])
    said = f"; its last nack: {key['nack']!r}" if "nack" in key else ""
    return (
        f"{_name(key)}: {key['reason']} since {since}; {key['messages']:,} waiting, first {head} "
        f"of partition {key['partition']}, {plural(key['attempts'], 'attempt')}{said}"
    )


def _name(key: dict[str, Any]) -> str:
    return str(key["key"]) if "key" in key else f"--hash {key['key_hash']}"


def _decision(verb: str, done: str, help_text: str) -> None:
    """Add one of the three commands, which differ only in the decision that they send."""

    @park.command(verb, help=help_text)
    @click.argument("queue")
    @click.argument("group")
    @click.argument("key", required=False)
    @click.option(
        "--hash", "key_hash", metavar="HEX", help="The hash of a key that is listed without text."
    )
    @click.option("--all", is_flag=True, help="All parked keys.")
    @tenant_option
    @data_dir_option
    @json_option
    def decide(
        queue: str, group: str, tenant: str, data_dir: str | None, as_json: bool, **which: Any
    ) -> None:
        if sum(map(bool, which.values())) != 1:
            raise click.UsageError("Give exactly one of KEY, --hash and --all.")
        decision: dict[str, object] = {"decision": verb}
        decision |= {name: value for name, value in which.items() if value}
        place = {"queue": queue, "group": group, "tenant": tenant}
        with admin_errors():
            answer = admin_client.unpark(broker_of(data_dir), place, decision)
        if as_json:
            click.echo(to_json(answer))
            return
        for found in answer["keys"]:
            click.echo(f"{done} {_name(found)}: {plural(found['messages'], 'message')} waited.")
        for refused in answer.get("refused", ()):
            click.echo(
                f"{refused['keys']:,} of partition {refused['partition']} stay parked: "
                f"{refused['code']}: {refused['detail']}"
            )
        if not answer["keys"]:
            click.echo(_nothing_parked(place))
        if answer["keys_parked"]:
            click.echo(f"{answer['keys_parked']:,} more are parked. Run the command again.")


_decision(
    "retry",
    "Retrying",
    """Try the first message of KEY once more, with its attempts counted anew from 0.

    If that succeeds, the other messages of the key follow in order. If it fails, the key is parked
    again. If the settings now have `on_exhausted: dead_letter`, the message goes to the dead
    letters instead.

    \b
    Examples:
      tocsin admin park retry orders billing user-7
      tocsin admin park retry orders billing --all
    """,
)
_decision(
    "skip",
    "Skipped the first of",
    """Move the first message of KEY to the dead letters, with the reason `skipped`.

    The other messages of the key go on. The command ends when the message is in the queue's
    dead-letter queue.

    \b
    Examples:
      tocsin admin park skip orders billing user-7
    """,
)
_decision(
    "release",
    "Released",
    """Let all messages of KEY flow again, in order, with all attempts counted anew from 0.

    A message that exhausts its attempts again parks the key again.

    \b
    Examples:
      tocsin admin park release orders billing user-7
      tocsin admin park release orders billing --hash 00c0ffee00c0ffee
    """,
)
