"""The verb `tocsin pull`, which takes messages over HTTP."""

import sys

import click

from tocsin.cli.common import Target, json_option, pass_target, plural, run, target_options
from tocsin.cli.durations import duration
from tocsin.cli.printing import json_line, text_line


@click.command()
@click.argument("queue")
@click.argument("group")
@click.option("-n", "--messages-max", default=10, show_default=True, help="At most this many.")
@click.option(
    "--wait",
    type=duration,
    default="0s",
    show_default=True,
    help="How long to wait for the first one; at most 30s.",
)
@click.option("--ack", is_flag=True, help="Settle them once they are printed.")
@json_option
@target_options
@pass_target
def pull(
    target: Target,
    /,
    *,
    queue: str,
    group: str,
    messages_max: int,
    wait: float,
    ack: bool,
    as_json: bool,
) -> None:
    """Take messages of QUEUE for GROUP over HTTP, and print them.

    Without --ack they are delivered again when their lease ends, unless they are settled with the
    receipts that --json prints.

    \b
    Examples:
      tocsin pull orders billing -n 100 --ack
      tocsin pull orders billing --wait 20s --json
    """

    async def work() -> tuple[int, int]:
        async with target.http() as http:
            messages = await http.pull(queue, group, messages_max=messages_max, wait_s=wait)
            out = sys.stdout.buffer
            for message in messages:
                extra = {
                    "receipt": message.receipt,
                    "lease_until_unix_ms": message.lease_until_unix_ms,
                }
                out.write(json_line(message, extra) if as_json else text_line(message))
            out.flush()
            stale: list[str] = []
            if ack and messages:
                done = await http.ack_receipts(queue, group, [m.receipt for m in messages])
                stale = done.stale + done.invalid
            return len(messages), len(stale)

    count, stale = run(work(), ends_with_output=True)
    if not count:
        click.echo("No messages.", err=True)
    if stale:
        raise click.ClickException(
            f"The leases of {plural(stale, 'message')} ended before the ack."
        )
