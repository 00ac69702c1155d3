"""`tocsin serve`, and `tocsin admin` with what one broker is asked: status, partitions, master key.

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
  export TOCSIN_TOKEN=$(openssl rand -hex 32)   for other machines, who present the token
  tocsin serve --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem

Stop it with Ctrl-C or SIGTERM: it sends its clients elsewhere, writes what is left and ends with
exit code 0. A second signal ends it at once; nothing that was acknowledged is lost by that either.
"""


def _secrets() -> str:
    """The settings without a flag: everybody on the machine may read a command's words."""
    lines = [f"{one.variable}: {one.help}" for one in SETTINGS if not one.has_flag]
    return "\n\n".join(["Secrets come from the environment alone:", *lines])


def setting_options(command: Any) -> Any:
    """The settings' table as options."""
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
    """The settings from flags and environment; what is wrong ends the command with a sentence."""
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for machines.")
def serve(as_json: bool, **flags: Any) -> None:
    """Start the broker.

    It keeps its queues and messages in the data folder and acknowledges a message when it is
    fsynced there; or in Redis or Valkey (--storage), which several brokers share. A setting comes
    from its flag, else from its environment variable, else it is the one in brackets.
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
    """Return the line of a started broker: where it is, where it keeps things, what a receipt
    means."""
    if as_json:
        fields = {
            "event": "started",
            "url": url,
            "data_dir": str(config.data_dir),
            "storage": config.storage_shown,
            "durability": "fsync",
            "token": config.needs_credentials,
            "pid": os.getpid(),
        }
        return msgspec.json.encode(fields).decode()
    who = "clients with a token" if config.needs_credentials else "this machine only"
    if config.storage == SQLITE:
        where, when = str(config.data_dir), "after fsync"
    else:
        where, when = config.storage_shown, "when every copy is on its disk"
    return (
        f"Tocsin listens on {url} for {who}, keeps its data in {where} and acknowledges {when}. "
        "Stop it with Ctrl-C."
    )


@click.group()
def admin() -> None:
    """Operate the broker of this machine, over the socket in its data folder."""


@admin.command("delete-queue")
@click.argument("name")
@yes_option
@tenant_option
@data_dir_option
@json_option
def delete_queue(name: str, yes: bool, tenant: str, data_dir: str | None, as_json: bool) -> None:
    """Delete the queue NAME with its messages and groups, for good.

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
    """How many messages and groups go with a queue."""
    messages = plural(held["messages"], "message") if "messages" in held else "all its messages"
    return f"with {messages} and {plural(held['groups'], 'group')}"


@admin.command()
@data_dir_option
@json_option
def status(data_dir: str | None, as_json: bool) -> None:
    """Say how the broker is."""
    with admin_errors():
        answer = admin_client.status(broker_of(data_dir))
    if as_json:
        click.echo(to_json(answer))
        return
    print_fields(status_fields(answer))


def status_fields(answer: dict[str, Any], path: str = "") -> dict[str, object]:
    """Return what a broker says of itself, for people: a line for each figure, times and durations
    as people write them."""
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
    """List the partitions of QUEUE, and the storage cluster of each; without QUEUE, the storage
    clusters, how full they are and how many partitions each has.

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
    """The key that wraps the keys messages are sealed under."""


@master_key.command("show")
@data_dir_option
@json_option
def show_master_key(data_dir: str | None, as_json: bool) -> None:
    """Say which master key the broker has, and which data keys. Never shows a key."""
    with admin_errors():
        answer = admin_client.master_key(broker_of(data_dir))
    if as_json:
        click.echo(to_json(answer))
        return
    where = answer["file"] or answer["from"]
    click.echo(f"Master key {answer['master_key_id']}, from {where}.")
    if answer["former_master_key_ids"]:
        click.echo(f"Former ones beside it: {', '.join(answer['former_master_key_ids'])}.")
    seals = "" if answer["encryption"] else " Encryption is off: what comes is stored plain."
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
    help=f"A file whose first key is the new one. (env {NEW_KEY_VARIABLE}: the key itself)",
)
@data_dir_option
@json_option
def rotate_master_key(new_key_file: Path | None, data_dir: str | None, as_json: bool) -> None:
    """Wrap the running broker's data keys under another master key.

    Where the broker has its key from a file, the new one is made there, unless it is given, in
    front of the old one; both stay in the file, because backups of before need the old one: take
    it out when there are none any more. Messages are not written anew, and nothing waits.

    Where it has its key from TOCSIN_MASTER_KEY, give the new one, and put it there for the next
    start: the new one, a comma, the old one. From a provider, it asks that which key it uses now.

    Where several gateways share a store, give the new one, after you have put it behind the old one
    into the file or the environment of each: while one that is there lacks it, this is refused.

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
        f"Wrapped under the master key {answer['master_key_id']} now, before "
        f"{answer['master_key_id_before']}: {plural(answer['data_keys'], 'data key')}."
    )
    if answer["file"] is not None:
        click.echo(f"{answer['file']} has both: copy it, and keep the old one for older backups.")
    elif new is not None:
        click.echo("Before the next start, put the new key first into TOCSIN_MASTER_KEY.")


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
