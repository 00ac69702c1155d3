"""The verb `tocsin scheduled believe-clock`, for the operators of brokers."""

import click

from tocsin.cli.common import (
    Target,
    json_option,
    pass_target,
    run,
    target_options,
    to_json,
)
from tocsin.cli.durations import format_duration
from tocsin.io.requests import object_of


@click.command("believe-clock")
@json_option
@target_options
@pass_target
def believe_clock(target: Target, as_json: bool) -> None:
    """Have the broker deliver scheduled messages again after its clock has jumped.

    If the broker's clock is set ahead or back by more than a minute, or if the clock of its store
    says something else by more than a minute, the broker delivers no
    scheduled message for five minutes, because one that is delivered too early cannot be taken
    back. This command says that the clock is right now. Everything that is due by it is delivered
    at once. Look at the clock of the broker's machine before.

    Each gateway has a clock of its own. This is about the gateway that answers: behind a balancer,
    give the address of one gateway with --url. It needs the right to manage every queue.

    \b
    Examples:
      tocsin scheduled believe-clock
      tocsin scheduled believe-clock --url http://gateway-2:8080
    """

    async def work() -> bytes:
        async with target.http() as http:
            return await http.request("POST", "/v1/scheduled/believe-clock")

    answer = object_of(run(work()))
    if as_json:
        click.echo(to_json(answer))
        return
    jump_s = answer["jump_s"]
    if not jump_s:
        click.echo(f"The clock of {target.url} has not jumped. Scheduled messages are delivered.")
        return
    size = format_duration(abs(jump_s))
    if answer["is_apart"]:
        way = "ahead of" if jump_s > 0 else "behind"
        what = f"is {way} the store's by {size} more than before, and is believed"
    else:
        what = f"was set {'ahead' if jump_s > 0 else 'back'} by {size}, and is believed"
    click.echo(f"The clock of {target.url} {what}. Scheduled messages are delivered.")
