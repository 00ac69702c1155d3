"""`tocsin consume`: print messages as they come."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import click

from tocsin.cli.common import (
    Target,
    parse_start,
    pass_target,
    plural,
    run,
    target_options,
)
from tocsin.cli.durations import duration
from tocsin.cli.printing import json_line, text_line
from tocsin.client import Client
from tocsin.errors import Gap, StaleDelivery
from tocsin.message import Content, Message
from tocsin.reader import Reader
from tocsin.subscription import Subscription

BATCH_MAX: Final = 500
"""Messages that are written before they are acked together."""


@click.command()
@click.argument("queue")
@click.option("--group", metavar="NAME", help="Share the messages with the group's others.")
@click.option("--read", is_flag=True, help="Get every message, settle nothing, join no group.")
@click.option("--keys", metavar="A,B", help="With --read: only messages of these keys.")
@click.option(
    "--start", metavar="WHERE",
    help="earliest, latest or a time like 2026-11-21T09:30. A group's counts only when it is new "
    "(earliest); --read: latest.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--until-idle", type=duration, metavar="DURATION", help="End when none came for so long."
)
@click.option(
    "--format", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
    help="The body alone, or one JSON object with key, body, offset, partition, id, attempt.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--credit", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Hold at most so many.",
)  # fmt: skip
@target_options
@pass_target
def consume(
    target: Target,
    /,
    *,
    queue: str,
    group: str | None,
    read: bool,
    keys: str | None,
    start: str | None,
    count: int | None,
    until_idle: float | None,
    form: str,
    as_json: bool,
    credit: int,
) -> None:
    """Print the messages of QUEUE as they come; Ctrl-C ends it.

    With --group, a message is acknowledged after it has been written: what was not written, when
    this is killed or its output closes, goes to another consumer of the group.

    \b
    Examples:
      tocsin consume orders --group billing
      tocsin consume orders --group billing --json | jq .body.total
      tocsin consume orders --read --keys user-7,user-8 --start earliest
      tocsin consume orders --group nightly --until-idle 5s > orders.txt
    """
    if (group is None) == (not read):
        raise click.UsageError(
            "Say how: --group NAME shares the messages, --read gets all of them."
        )
    if keys is not None and not read:
        raise click.UsageError("--keys goes with --read; a group gets all keys.")
    begin = None if start is None else parse_start(start)
    if count is not None:
        credit = min(credit, count)  # what is not wanted is left to others

    def open_messages(client: Client) -> AbstractAsyncContextManager[Subscription | Reader]:
        if group is not None:
            return client.subscribe(queue, group, credit=credit, start=begin)
        wanted = None if keys is None else keys.split(",")
        return client.read(queue, wanted, start=begin or "latest", credit=credit, on_gap=_tell_gap)

    line = json_line if as_json or form == "json" else text_line

    async def work() -> int:
        async with target.client() as client, open_messages(client) as messages:
            return await _Printer(line, count, until_idle).run(messages)

    stale = run(work())
    if stale:
        raise click.ClickException(
            f"{plural(stale, 'message')} had expired before the ack, and will come again."
        )


def _tell_gap(gap: Gap) -> None:
    click.echo(f"tocsin: {gap}", err=True)


class _Printer:
    """Writes what is there, flushes, acks, waits for more."""

    def __init__(
        self, line: Callable[[Content], bytes], count: int | None, idle_s: float | None
    ) -> None:
        self._line = line
        self._left = count
        self._idle_s = idle_s
        self._stale = 0

    async def run(self, messages: Subscription | Reader) -> int:
        """Returns how many acks came too late."""
        while self._left != 0:
            message: Content | None = messages.next_nowait()
            if message is None:
                try:
                    async with asyncio.timeout(self._idle_s):
                        message = await anext(messages)
                except (TimeoutError, StopAsyncIteration):
                    break
            await self._print(messages, message)
            await asyncio.sleep(0)  # let acks out, and pushes and Ctrl-C in
        return self._stale

    async def _print(self, messages: Subscription | Reader, message: Content | None) -> None:
        out = sys.stdout.buffer
        written: list[Any] = []
        while message is not None:
            out.write(self._line(message))
            written.append(message)
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    break
            message = messages.next_nowait() if len(written) < BATCH_MAX else None
        out.flush()
        for one in written:
            if isinstance(one, Message):
                try:
                    await one.ack()
                except StaleDelivery:
                    self._stale += 1
