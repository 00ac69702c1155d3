"""`tocsin admin master-key`: which master key a broker has, and another one for it."""

import os
from pathlib import Path
from typing import Any, Final

import click
from tocsin.cli.common import plural
from tocsin.cli.times import local_time

from gateway.admin import client as admin_client
from gateway.cli.options import admin_errors, broker_of, data_dir_option, json_option, to_json
from gateway.encryption.master_key import read_keys

NEW_KEY_VARIABLE: Final = "TOCSIN_NEW_MASTER_KEY"


@click.group("master-key")
def master_key() -> None:
    """The key that wraps the keys messages are sealed under."""


@master_key.command()
@data_dir_option
@json_option
def show(data_dir: str | None, as_json: bool) -> None:
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
        click.echo(_line(row, answer))


def _line(row: dict[str, Any], answer: dict[str, Any]) -> str:
    line = f"  {row['key_id']}  made {local_time(row['created_unix_ms'])}"
    if row["seals"]:
        sealed = (
            f"{plural(answer['sealed_messages'], 'message')}, "
            f"{plural(answer['sealed_bytes'], 'byte')}"
        )
        line += f", in use: {sealed}"
    return line


@master_key.command()
@click.option(
    "--new-key-file",
    type=click.Path(path_type=Path),
    default=None,
    help=f"A file whose first key is the new one. (env {NEW_KEY_VARIABLE}: the key itself)",
)
@data_dir_option
@json_option
def rotate(new_key_file: Path | None, data_dir: str | None, as_json: bool) -> None:
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
