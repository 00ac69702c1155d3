"""Options and errors that the commands over the admin socket share."""

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec
from tocsin.cli.common import Target
from tocsin.cli.streams import OutputFailed

from gateway.admin import client as admin_client
from gateway.config import Config, ConfigError, load
from gateway.encryption.master_key import MasterKeySettings
from push.errors import Refused

_PORTS: Final = {"http": 80, "https": 443}


def settings_of(variables: Collection[str], flags: Mapping[str, str | None]) -> Config:
    """Read the settings of these flags, else of these variables of the environment. A wrong one
    ends the command. Other settings are not read, so that an error in them does not stop the
    command."""
    try:
        return load({n: v for n, v in os.environ.items() if n in variables}, flags)[0]
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def data_dir_of(text: str | None) -> Path:
    """Return the data folder. `text`: the value of --data-dir; None: the folder of the environment,
    else the default one."""
    return settings_of(("TOCSIN_DATA_DIR", "XDG_DATA_HOME"), {"data_dir": text}).data_dir


def broker_of(text: str | None) -> Path:
    """Return the data folder, as `data_dir_of` does, and name the broker that runs on it on stderr.
    If none runs, the command ends. It also ends if there is no flag, and TOCSIN_URL or `tocsin
    --url` names another broker, because a queue that is deleted at the wrong broker is lost."""
    path = data_dir_of(text)
    wanted = _wanted_url()
    try:
        url = admin_client.broker_url(path)
    except admin_client.AdminError as error:
        hint = ""
        if wanted is not None and text is None:
            hint = f" (TOCSIN_URL or --url names {wanted}, but `tocsin admin` does not use it.)"
        raise click.ClickException(f"{error}{hint}") from None
    if wanted is not None and text is None and not is_same_place(wanted, url):
        raise click.UsageError(
            f"TOCSIN_URL or --url names {wanted}, but the broker on {path} is {url}. `tocsin "
            f"admin` talks to a broker on this machine through its data folder. To use this one, "
            f"give --data-dir {path}. To use the other one, run the command on its machine."
        )
    click.echo(f"Broker {url} on {path}.", err=True)
    return path


def folder_of(text: str | None) -> Path:
    """Return the data folder whose files are to be read, whether or not its broker runs, and name
    it on stderr."""
    path = data_dir_of(text)
    click.echo(f"Data folder {path}.", err=True)
    return path


def _wanted_url() -> str | None:
    context = click.get_current_context(silent=True)
    target = context.find_object(Target) if context is not None else None
    if target is not None and target.url != Target().url:
        return target.url
    return os.environ.get("TOCSIN_URL") or None


def is_same_place(wanted: str, url: str) -> bool:
    """Whether a client that connects to `wanted` reaches the listener at `url` on this machine."""
    try:
        theirs, ours = urlsplit(wanted), urlsplit(url)
        if (theirs.port or _PORTS.get(theirs.scheme)) != (ours.port or _PORTS.get(ours.scheme)):
            return False
        found = socket.getaddrinfo(theirs.hostname, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError, UnicodeError):
        return False
    addresses = {str(address[4][0]) for address in found}
    host = ours.hostname or ""
    if host in {"0.0.0.0", "::"}:
        return any(map(_is_of_this_machine, addresses))
    return host in addresses or host == theirs.hostname


def _is_of_this_machine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def key_settings_of(master_key_file: str | None) -> MasterKeySettings:
    """Return where the master key is, by the flag, else by the environment."""
    names = {f"TOCSIN_MASTER_KEY{rest}" for rest in ("", "_FILE", "_PROVIDER")}
    flags = {"master_key_file": master_key_file}
    if master_key_file is not None:  # the flag has precedence over all of them
        names = set()
    return settings_of(names, flags).master_key_settings


master_key_file_option: Final = click.option(
    "--master-key-file",
    default=None,
    metavar="TEXT",
    help="A file with the master key. (env TOCSIN_MASTER_KEY_FILE)",
)
data_dir_option: Final = click.option(
    "--data-dir",
    default=None,
    metavar="TEXT",
    help="The broker's data folder. (env TOCSIN_DATA_DIR)",
)
tenant_option: Final = click.option(
    "--tenant", default="default", show_default=True, help="The tenant of the queue."
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


def say(line: str) -> None:
    """Write the line that says where a started server listens. If stdout is closed or full, nothing
    is raised, because the server goes on without that line."""
    with contextlib.suppress(OSError, OutputFailed):
        click.echo(line)


@contextlib.contextmanager
def admin_errors() -> Iterator[None]:
    """End the command with a sentence if, inside the block, no broker answers on the admin socket
    or the broker refuses a request."""
    try:
        yield
    except (admin_client.AdminError, Refused) as error:
        raise click.ClickException(str(error)) from None


def to_json(value: object) -> str:
    """Write a value as a line of JSON."""
    return msgspec.json.encode(value).decode()
