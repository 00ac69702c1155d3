"""`tocsin serve`, and `tocsin admin` with the commands about one broker: delete-queue, status,
partitions, master-key.

The `tocsin` command finds these by the entry points `tocsin.commands`.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from tocsin.cli.common import confirm, plural, print_fields, shown_name, shown_value, yes_option
from tocsin.cli.times import local_time

from gateway import server
from gateway.admin import client as admin_client
from gateway.broker import Broker
from gateway.cli.backup import backup, restore, verify
from gateway.cli.journal import audit, usage
from gateway.cli.manager import clusters_command
from gateway.cli.options import (
    admin_errors,
    broker_of,
    data_dir_option,
    json_option,
    say,
    tenant_option,
    to_json,
)
from gateway.cli.parked import park
from gateway.cli.store import doctor, forget_server, provision, set_replicas
from gateway.cli.tokens import token
from gateway.config import Config, ConfigError, load
from gateway.encryption.master_key import read_keys
from gateway.rest.pages import Site, pages
from gateway.settings import SETTINGS, SQLITE, Setting
from runtime import process as logs
from runtime.listener import StartError

NEW_KEY_VARIABLE: Final = "TOCSIN_NEW_MASTER_KEY"
SERVE_EXAMPLES = """
\b
Examples:
  tocsin serve                                  on this machine only, without a token
  tocsin serve --port 0 --data-dir /tmp/try     a free port, a folder of its own
  export TOCSIN_TOKEN=$(openssl rand -hex 32)   for other machines, which present the token
  tocsin serve --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem

Stop it with Ctrl-C or SIGTERM. It then sends its clients to other brokers, writes what is left, and
ends with exit code 0. A second signal ends it at once. That too loses no acknowledged message.
"""


def _secrets() -> str:
    """Return the help of the settings that have no flag, because all users of the machine can read
    a command's words."""
    lines = [f"{one.variable}: {one.help}" for one in SETTINGS if not one.has_flag]
    return "\n\n".join(["Secrets are set in the environment only:", *lines])


def setting_options(command: Any) -> Any:
    """Add the settings that have a flag to a command, as options."""
    for setting in reversed(SETTINGS):
        if setting.has_flag:
            command = _option(setting)(command)
    return command


def _option(setting: Setting) -> Any:
    text = f"{setting.help} (env {setting.variable})"
    if setting.is_flag:
        flags = f"{setting.flag}/{setting.flag.replace('--', '--no-', 1)}"
        return click.option(flags, setting.field, default=None, help=text)
    return click.option(setting.flag, setting.field, default=None, help=text, metavar="TEXT")


def load_config(flags: dict[str, Any]) -> Config:
    """Load the settings from flags and environment. A wrong one ends the command with a
    sentence."""
    texts = {
        name: ("true" if value else "false") if isinstance(value, bool) else value
        for name, value in flags.items()
    }
    try:
        config, warnings = load(os.environ, texts)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    return config


@click.command(epilog=f"{_secrets()}\n\n{SERVE_EXAMPLES}")
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def serve(as_json: bool, **flags: Any) -> None:
    """Start the broker.

    It keeps its queues and messages in the data folder, and acknowledges a message when it is
    fsynced there. With --storage it keeps them in Redis or Valkey, which several brokers can share.
    A setting is read from its flag, else from its environment variable. The default is in brackets.
    """
    config = load_config(flags)
    logs.configure(config.log_level, as_json=as_json)

    async def build(config: Config, on_fatal: server.OnFatal) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    site = Site()

    def announce(started: server.Server) -> None:
        site.open()
        say(start_line(started.url, config, as_json=as_json))

    try:
        sys.exit(server.run(config, build, announce=announce, pages=pages(site)))
    except StartError as error:
        raise click.ClickException(str(error)) from None


def start_line(url: str, config: Config, *, as_json: bool) -> str:
    """Return the line of a started broker: its address, the place of its data, and the meaning of a
    receipt."""
    if as_json:
        fields = {
            "event": "started",
            "url": url,
            "data_dir": str(config.data_dir),
            "storage": config.storage_shown,
            "durability": "fsync" if config.storage == SQLITE else "all",
            "token": config.needs_credentials,
            "pid": os.getpid(),
        }
        return msgspec.json.encode(fields).decode()
    who = "clients with a token" if config.needs_credentials else "this machine only"
    if config.storage == SQLITE:
        where, when = str(config.data_dir), "after fsync"
    else:
        where, when = config.storage_shown, "when every copy is on disk"
    return (
        f"Tocsin listens on {url} for {who}, keeps its data in {where} and acknowledges {when}. "
        "Stop it with Ctrl-C."
    )


@click.group()
def admin() -> None:
    """Operate a broker on this machine, through the socket in its data folder."""


@admin.command("delete-queue")
@click.argument("name")
@yes_option
@tenant_option
@data_dir_option
@json_option
def delete_queue(name: str, yes: bool, tenant: str, data_dir: str | None, as_json: bool) -> None:
    """Delete the queue NAME for good, with its messages and groups.

    \b
    Examples:
      tocsin admin delete-queue orders
      tocsin admin delete-queue orders --yes     in a script
    """
    folder = broker_of(data_dir)
    with admin_errors():
        if not yes:
            what = _contents(admin_client.delete_queue(folder, name, None, tenant))
            confirm(f"deletes the queue {name} {what}", name, yes=False)
        answer = admin_client.delete_queue(folder, name, name, tenant)
    click.echo(to_json(answer) if as_json else f"Deleted {name} {_contents(answer)}.")


def _contents(held: dict[str, Any]) -> str:
    """Return the numbers of messages and groups that are deleted with a queue, as words."""
    messages = plural(held["messages"], "message") if "messages" in held else "all its messages"
    return f"with {messages} and {plural(held['groups'], 'group')}"


@admin.command()
@data_dir_option
@json_option
def status(data_dir: str | None, as_json: bool) -> None:
    """Show the status of the broker."""
    with admin_errors():
        answer = admin_client.status(broker_of(data_dir))
    if as_json:
        click.echo(to_json(answer))
        return
    print_fields(status_fields(answer))


def status_fields(answer: dict[str, Any], path: str = "") -> dict[str, object]:
    """Return the status of a broker for people: a line for each figure, with times and durations as
    people write them."""
    shown: dict[str, object] = {}
    for name, value in answer.items():
        called = f"{path} {name.replace('_', ' ')}".strip()
        if isinstance(value, dict):
            shown |= status_fields(value, called)
        else:
            shown[f"{path} {shown_name(name)}".strip()] = shown_value(name, value)
    return shown


@admin.command()
@click.argument("queue", required=False)
@tenant_option
@data_dir_option
@json_option
def partitions(queue: str | None, tenant: str, data_dir: str | None, as_json: bool) -> None:
    """List the partitions of QUEUE, with the storage cluster of each.

    Without QUEUE, list the storage clusters, with the use of their memory and the number of their
    partitions.

    \b
    Examples:
      tocsin admin partitions
      tocsin admin partitions orders
    """
    asked: dict[str, object] | None = {"queue": queue, "tenant": tenant} if queue else None
    with admin_errors():
        answer = admin_client.describe_placement(broker_of(data_dir), asked)
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


@click.group("master-key")
def master_key() -> None:
    """Show or rotate the master key.

    It encrypts the data keys, with which the broker encrypts messages.
    """


@master_key.command("show")
@data_dir_option
@json_option
def show_master_key(data_dir: str | None, as_json: bool) -> None:
    """Show the ids of the broker's master key and data keys, never a key."""
    with admin_errors():
        answer = admin_client.master_key(broker_of(data_dir))
    if as_json:
        click.echo(to_json(answer))
        return
    where = answer["file"] or answer["from"]
    click.echo(f"Master key {answer['master_key_id']}, from {where}.")
    if answer["former_master_key_ids"]:
        click.echo(f"Former ones: {', '.join(answer['former_master_key_ids'])}.")
    seals = "" if answer["encryption"] else " Encryption is off; new messages are stored plain."
    click.echo(f"Data keys: {answer['data_keys']:,}.{seals}")
    for row in answer["data_keys_newest"]:
        click.echo(_data_key_line(row, answer))


def _data_key_line(row: dict[str, Any], answer: dict[str, Any]) -> str:
    line = f"  {row['key_id']}  made {local_time(row['created_unix_ms'])}"
    if row["seals"]:
        sealed = (
            f"{plural(answer['sealed_messages'], 'message')}, "
            f"{plural(answer['sealed_bytes'], 'byte')}"
        )
        line += f", in use: {sealed}"
    return line


@master_key.command("rotate")
@click.option(
    "--new-key-file",
    type=click.Path(path_type=Path),
    default=None,
    help=f"A file whose first key is the new one. (env {NEW_KEY_VARIABLE}, with the key itself)",
)
@data_dir_option
@json_option
def rotate_master_key(new_key_file: Path | None, data_dir: str | None, as_json: bool) -> None:
    """Encrypt the running broker's data keys with another master key.

    Messages are not rewritten, and nothing has to wait.

    If the broker reads its key from a file, the new key is written there in front of the old one.
    The broker makes it, unless you give one. The old key stays in the file, because earlier backups
    need it. Remove it when you have no such backup any more.

    If the broker reads its key from TOCSIN_MASTER_KEY, give the new key. Before the next start, set
    the variable to the new key, a comma, and the old key. If the broker has its key from a
    provider, it asks the provider for the current key.

    If several gateways share a store, first put the new key behind the old one into the file or the
    environment of each gateway. Then give it here. While a running gateway does not have it, the
    command is refused.

    \b
    Examples:
      tocsin admin master-key rotate
      tocsin admin master-key rotate --new-key-file /run/secrets/tocsin-2027
    """
    new = os.environ.get(NEW_KEY_VARIABLE)
    with admin_errors():
        if new_key_file is not None:
            new = read_keys(new_key_file)[0].hex()
        answer = admin_client.rotate_master_key(broker_of(data_dir), new)
    if as_json:
        click.echo(to_json(answer))
        return
    click.echo(
        f"The master key {answer['master_key_id']} now encrypts "
        f"{plural(answer['data_keys'], 'data key')}, instead of {answer['master_key_id_before']}."
    )
    if answer["file"] is not None:
        click.echo(
            f"{answer['file']} has both keys. Copy it, and keep the old key for older backups."
        )
    elif new is not None:
        click.echo("Before the next start, put the new key first in TOCSIN_MASTER_KEY.")


for _command in (
    token,
    park,
    backup,
    restore,
    verify,
    master_key,
    usage,
    audit,
    doctor,
    provision,
    set_replicas,
    forget_server,
    clusters_command,
):
    admin.add_command(_command)
