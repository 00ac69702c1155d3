"""What the commands over the admin socket share."""

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import click
import msgspec
from tocsin.cli.streams import OutputFailed

from gateway.config import Config, ConfigError, load


def settings_of(variables: Collection[str], flags: Mapping[str, str | None]) -> Config:
    """What these flags say, else these variables of the environment; what is wrong ends the
    command. No others are read: whoever deletes a queue need not have them right."""
    try:
        return load({n: v for n, v in os.environ.items() if n in variables}, flags)[0]
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def data_dir_of(text: str | None) -> Path:
    """The data folder of the flag, else of the environment."""
    return settings_of(("TOCSIN_DATA_DIR", "XDG_DATA_HOME"), {"data_dir": text}).data_dir


def key_settings_of(master_key_file: str | None) -> Config:
    """Where the master key is, by the flag, else by the environment."""
    names = {f"TOCSIN_MASTER_KEY{rest}" for rest in ("", "_FILE", "_PROVIDER")}
    flags = {"master_key_file": master_key_file}
    if master_key_file is not None:  # the flag goes before all of them
        names = set()
    return settings_of(names, flags)


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
    "--tenant", default="default", show_default=True, help="Whose queue it is."
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")


def say(line: str) -> None:
    """Write the first line of a server. One whose output is closed or full goes on without it."""
    with contextlib.suppress(OSError, OutputFailed):
        click.echo(line)


def to_json(value: object) -> str:
    """One line of JSON."""
    return msgspec.json.encode(value).decode()
