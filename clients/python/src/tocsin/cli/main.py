"""The command itself: it finds verbs, and turns errors into a sentence."""

import logging
import signal
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click

from tocsin import __version__
from tocsin.cli.alerting import alert
from tocsin.cli.clock import believe_clock
from tocsin.cli.common import target_options_and_variables
from tocsin.cli.consume import consume
from tocsin.cli.dead_letters import dead_letters
from tocsin.cli.explaining import explain_key
from tocsin.cli.groups import group
from tocsin.cli.interrupts import quiet_interrupt, raised_interrupt
from tocsin.cli.publish import publish
from tocsin.cli.pull import pull
from tocsin.cli.queues import queue
from tocsin.cli.scheduled import scheduled
from tocsin.cli.ticket import ticket
from tocsin.cli.upkeep import VERBS
from tocsin.errors import BrokerError, CannotConnect, QueueNotFound, TocsinError, Unauthorized

ENTRY_POINTS: Final = "tocsin.commands"
EXAMPLES: Final = """
\b
Examples:
  tocsin queue create orders --retention 1d
  tocsin publish orders '{"total": 12}' --key user-7
  tocsin publish orders --file orders.jsonl --json-lines --key-field user
  tocsin consume orders --group billing
  tocsin consume orders --read --keys user-7 --start earliest
  tocsin ticket                                 opens the console in a browser

Over https, TOCSIN_CA_FILE names an authority of your own, TOCSIN_CERT_FILE and TOCSIN_KEY_FILE a
client certificate: PEM files.

The exit code is 0 after success, 1 after an error, 2 when the command was not understood,
130 after Ctrl-C, and 141 when the reader of the output has closed it.
"""


class Verbs(click.Group):
    """The client's verbs, and those that other installed packages add by entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted({*super().list_commands(ctx), *_installed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb. If it cannot be imported, return one that says so. Others still work."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        found = _installed().get(cmd_name)
        return None if found is None else _load(found)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and turn an error into one sentence."""
        try:
            return super().invoke(ctx)
        except TocsinError as error:
            raise click.ClickException(explain(error)) from error
        except UnicodeEncodeError as error:
            # Bytes of the command line. A path may have them; a text that is sent may not.
            raise click.ClickException(f"{error.object!r} is not text in UTF-8.") from None
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)  # quietly, where click would begin a line


_ADVICE: Final = {
    "unauthorized": " Give a token that the broker knows, in TOCSIN_TOKEN or with --token.",
    "forbidden": " Ask the broker's operator for a token with that right.",
}
"""The advice after an Unauthorized, by its code."""
_ABOUT_SCHEDULED: Final = {
    "id_unknown": "`tocsin scheduled list` shows what is scheduled, with key and id.",
    "ambiguous": "Give --key.",
    "already_due": "It can no longer be changed. `tocsin queue peek` shows what is in the queue.",
    "cancelled": "To schedule it anew, publish it with another id.",
    "schedule_full": "Cancel some of it, or raise the queue's setting.",
}
"""The advice after an error about a scheduled message, by its code."""


def explain(error: TocsinError) -> str:
    """Return a sentence that describes an error and says what to do."""
    text = str(error)
    if isinstance(error, CannotConnect):
        text = text.rstrip(".")
        return f"{text}. Start a broker with `tocsin serve`, or give its address with --url."
    if isinstance(error, Unauthorized):
        return f"{text.rstrip('.')}.{_ADVICE.get(error.code, '')}"
    if isinstance(error, QueueNotFound):
        return f"{text}. `tocsin queue create` creates it; `tocsin queue list` shows all queues."
    if isinstance(error, BrokerError) and error.code in _ABOUT_SCHEDULED:
        return f"{text.rstrip('.')}. {_ABOUT_SCHEDULED[error.code]}"
    return text if text.endswith(".") else f"{text}."


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> click.Command:
    try:
        with quiet_interrupt():
            command = point.load()
    except Exception as error:
        return _broken(point.name, f"{type(error).__name__}: {error}")
    if not isinstance(command, click.Command):
        return _broken(point.name, f"{point.value} is not a click command")
    return command


def _broken(name: str, why: str) -> click.Command:
    def fail(**_: Any) -> None:
        raise click.ClickException(f"`tocsin {name}` cannot be loaded: {why}.")

    return click.Command(
        name,
        callback=fail,
        short_help=f"(cannot be loaded: {why})",
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
    )


@click.group(cls=Verbs, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@target_options_and_variables
@click.option("-v", "--verbose", is_flag=True, help="Say what the connection does, on stderr.")
@click.version_option(__version__, prog_name="tocsin")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Publish to a Tocsin broker, consume from it, look after its queues."""
    if ctx.invoked_subcommand not in cli.commands:
        # Verbs of other packages may have to undo something, such as a half-restored folder.
        ctx.with_resource(raised_interrupt())
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="tocsin: %(message)s", stream=sys.stderr)


for _verb in (*VERBS, explain_key, alert):
    queue.add_command(_verb)
cli.add_command(queue)
cli.add_command(dead_letters)
cli.add_command(group)
cli.add_command(publish)
cli.add_command(consume)
cli.add_command(pull)
cli.add_command(scheduled)
cli.add_command(ticket)
scheduled.add_command(believe_clock)
