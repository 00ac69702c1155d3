"""The common part of the verbs: the broker's address, running, and printing."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import click
import msgspec

from tocsin.api.client import URL_DEFAULT, Client, connect
from tocsin.api.http import Http
from tocsin.api.session_subscription import Start
from tocsin.cli.durations import duration, format_duration
from tocsin.cli.interrupts import quiet_interrupt
from tocsin.cli.streams import watched_output
from tocsin.cli.times import future_time, local_time, parse_time
from tocsin.io.requests import checked_url

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass
class Target:
    """The address of the broker, and the token."""

    url: str = URL_DEFAULT
    token: str | None = None

    def client(self) -> Client:
        """Return a client that is not connected yet."""
        try:
            return connect(self.url, token=self.token)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def http(self) -> Http:
        """Return the client of the broker's HTTP interface."""
        try:
            return Http(checked_url(self.url), token=self.token)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def target_options(command: CommandT) -> CommandT:
    """Add --url and --token to a verb, where they override those before the verb."""
    return _target_options(command, url_variable=None, token_variable=None)


def target_options_and_variables(command: CommandT) -> CommandT:
    """Add --url and --token before the verb. Without them the environment counts."""
    return _target_options(command, url_variable="TOCSIN_URL", token_variable="TOCSIN_TOKEN")


def _target_options(
    command: CommandT, *, url_variable: str | None, token_variable: str | None
) -> CommandT:
    def keep(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
        def callback(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
            if value is not None:
                setattr(ctx.ensure_object(Target), name, value)

        return callback

    token = click.option(
        "--token",
        expose_value=False,
        callback=keep("token"),
        envvar=token_variable,
        metavar="TEXT",
        help="The bearer token. (env TOCSIN_TOKEN)",
    )
    url = click.option(
        "--url",
        expose_value=False,
        callback=keep("url"),
        envvar=url_variable,
        metavar="URL",
        help=f"Where the broker is. (env TOCSIN_URL; else {URL_DEFAULT})",
    )
    return url(token(command))


class Negatives(click.Command):
    """A command whose argument may be a negative number, as in `publish orders -5`.

    Any other argument that begins with a dash follows `--`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treat the last negative number, such as -5, as an argument if it would otherwise be an
        unknown option."""
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption:
            places = [place for place, text in enumerate(args) if _NEGATIVE.fullmatch(text)]
            if not places or "--" in args:
                raise
            rest = args[: places[-1]] + args[places[-1] + 1 :]
            return super().parse_args(ctx, [*rest, "--", args[places[-1]]])


_NEGATIVE: Final = re.compile(r"-[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def json_option(command: CommandT) -> CommandT:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON.")(command)


def when_options(command: CommandT) -> CommandT:
    """Add --delay and --at, of which `check_when` allows one."""
    at = click.option(
        "--at",
        type=future_time,
        metavar="TIME",
        help="Not before this time, as 2026-11-21T09:30.",
    )
    delay = click.option("--delay", type=duration, help="Not before this long from now, like 2h.")
    return delay(at(command))


def check_when(delay_s: float | None, at: datetime | None) -> None:
    """Raise click.UsageError if both --delay and --at are given."""
    if delay_s is not None and at is not None:
        raise click.UsageError("Give --delay or --at, not both.")


def yes_option(command: CommandT) -> CommandT:
    """Add --yes to a command that asks before it destroys something, by `confirm`."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(command)


def confirm(what: str, name: str, *, yes: bool) -> None:
    """Ask for the object's name again before a command destroys something. Ask nothing with --yes.

    Raises:
        click.UsageError: there is no terminal, so the command cannot ask.
        click.ClickException: another name was typed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"This {what}, for good. There is no terminal to confirm it on. Give --yes."
        )
    click.echo(f"This {what}, for good.", err=True)
    again = click.prompt(f"Type {name} to go on", type=str, err=True)
    if again != name:
        raise click.ClickException(f"{again!r} is not {name!r}. Nothing was done.")


pass_target = click.make_pass_decorator(Target, ensure=True)


SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a command in order."""
SIGNALS_MAX: Final = 3
"""The number of these signals after which the process ends at once."""


def run(work: Coroutine[Any, Any, T], *, ends_with_output: bool = False) -> T:
    """Run `work` to its end, and return its result.

    Ctrl-C, SIGTERM and a terminal that closes cancel it, so that it ends in order. The exit code is
    then that of the signal.

    Args:
        ends_with_output: cancel it also when nobody can read its output any more, because the
            output is its only purpose (`tocsin consume … | head -1`).
    """

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        came: list[int] = []

        def stop(number: int) -> None:
            came.append(number)
            if len(came) >= SIGNALS_MAX:
                os._exit(128 + came[0])
            task.cancel()

        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup, or a shell's background
            try:
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
            except (RuntimeError, ValueError):
                break  # Windows, or not the main thread: KeyboardInterrupt does it
        with watched_output(partial(stop, signal.SIGPIPE) if ends_with_output else None):
            try:
                result = await work
            except asyncio.CancelledError:
                if not came:
                    raise
            finally:
                # Before asyncio does this and leaves a handler that raises KeyboardInterrupt.
                if asyncio.get_running_loop().remove_signal_handler(signal.SIGINT):
                    signal.signal(signal.SIGINT, handler)
        if came:  # even if the work has ended in order by itself
            sys.exit(128 + came[0])
        return result

    with quiet_interrupt():
        handler = signal.getsignal(signal.SIGINT)
        return asyncio.run(guarded())


def to_json(value: object) -> str:
    """Return a value as a line of JSON."""
    return msgspec.json.encode(value).decode()


def print_table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> None:
    """Print a table, with numbers aligned to the right."""
    texts = [list(heads), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(heads))]
    right = [bool(rows) and isinstance(rows[0][place], int) for place in range(len(heads))]
    for row in texts:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_fields(fields: dict[str, object]) -> None:
    """Print names and values, one pair a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {value}")


def shown_value(name: str, value: object) -> str:
    """Return a value as text for people, by the unit at the end of its name."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_unix_ms"):
            return local_time(int(value))
        if name.endswith("_per_s"):
            return f"{value:,g}"
        if name.endswith("_s"):
            return format_duration(value)
        number = f"{value:,}" if isinstance(value, int) else f"{value:,g}"
        return f"{number} bytes" if name.endswith(("_bytes", "bytes_max")) else number
    if isinstance(value, list | tuple):
        return ", ".join(shown_value("", one) for one in value) or "none"
    return value if isinstance(value, str) else to_json(value)


def shown_name(name: str) -> str:
    """Return a field's name for people, without its unit, which the value shows."""
    if not name.endswith("_per_s"):
        for unit in ("_unix_ms", "_s"):
            name = name.removesuffix(unit)
    return name.replace("_", " ")


def parse_start(text: str) -> Start:
    """Return a start: "earliest", "latest", or a time (see tocsin.cli.times).

    Raises:
        click.BadParameter: the text is none of them.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        return parse_time(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"neither earliest nor latest: {error.message}") from None


def printable(text: str) -> str:
    """Return a name that is safe in a line. Characters that move the cursor or turn the text become
    blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 message`, `2 messages`, `3 copies`, `4 keys`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}s"
