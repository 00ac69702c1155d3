"""The verb `tocsin consume`, which prints messages as they come."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, Final

import click

from tocsin.api.client import Client
from tocsin.api.reader import Reader
from tocsin.api.subscription import Subscription
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
from tocsin.errors import Gap, StaleDelivery, TocsinError, WouldDelete
from tocsin.proto.message import Content, Message

BATCH_MAX: Final = 500
"""The largest number of messages that are written before they are acked together."""
EMPTY_S: Final = 0.1
"""The time without a message after which --until-empty queries the group's lag for the first time,
in seconds. It doubles each time, up to EMPTY_S_MAX."""
EMPTY_S_MAX: Final = 2.0
TELL_S: Final = 5.0
"""The time without a message after which --until-empty prints what the group's other messages wait
for, in seconds."""
WAITS_FOR: Final = {
    "no_consumer": "a consumer",
    "absent": "a consumer that is away",
    "moving": "partitions that are moving to another consumer",
    "elsewhere": "consumers of another gateway",
    "draining": "partitions that are moving to another consumer",
    "paused": "the end of the queue's pause",
    "backoff": "their next attempt",
    "parked": "an operator, because their keys are parked",
    "gate": "an earlier message of their key",
    "credit": "consumers that hold as many messages as they accept",
    "socket": "consumers that do not read",
    "full": "consumers that hold as many unsettled messages as they may",
    "commit": "the storage to write what was decided",
    "read": "the storage to read them",
}
"""The reasons why a partition waits, in words, by the broker's code."""


@click.command()
@click.argument("queue")
@click.option("--group", metavar="NAME", help="Consume as this group, which shares the messages.")
@click.option("--read", is_flag=True, help="Read every message, without a group, and settle none.")
@click.option("--keys", metavar="A,B", help="With --read: only messages of these keys.")
@click.option(
    "--key",
    "one_by_one",
    metavar="KEY",
    multiple=True,
    help="With --read: messages of this key, which may have a comma. Repeatable.",
)
@click.option(
    "--start",
    metavar="WHERE",
    help="Start at earliest, latest or a time like 2026-11-21T09:30. A group uses it only when it "
    "is new. [--group: earliest; --read: latest]",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when the group has settled every message, those of other consumers included.",
)
@click.option(
    "--until-idle",
    type=duration,
    metavar="DURATION",
    help="End after this time without a message here, even if the group has unsettled ones.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Print the body alone, or an object with key, body, offset, partition, id, attempt.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--credit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Hold at most this many unsettled messages.",
)
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
    one_by_one: tuple[str, ...],
    start: str | None,
    count: int | None,
    until_empty: bool,
    until_idle: float | None,
    form: str,
    as_json: bool,
    credit: int,
) -> None:
    """Print the messages of QUEUE as they come; Ctrl-C ends it.

    With --group, a message is acknowledged after it has been written. If this command is killed or
    its output closes, messages that were not written go to another consumer of the group.

    \b
    Examples:
      tocsin consume orders --group billing
      tocsin consume orders --group billing --json | jq .body.total
      tocsin consume orders --read --keys user-7,user-8 --start earliest
      tocsin consume orders --group nightly --until-empty > orders.txt
    """
    if (group is None) == (not read):
        raise click.UsageError(
            "Give --group NAME to share the messages, or --read to get all of them."
        )
    wanted = _keys(keys, one_by_one)
    if wanted is not None and not read:
        raise click.UsageError("--keys and --key need --read, because a group gets all keys.")
    if until_empty and read:
        raise click.UsageError("--until-empty needs --group, because a reader settles nothing.")
    begin = None if start is None else parse_start(start)
    if count is not None:
        credit = min(credit, count)  # messages that are not wanted are left to others

    def open_messages(client: Client) -> AbstractAsyncContextManager[Subscription | Reader]:
        if group is not None:
            return client.subscribe(queue, group, credit=credit, start=begin)
        return client.read(queue, wanted, start=begin or "latest", credit=credit, on_gap=_tell_gap)

    line = json_line if as_json or form == "json" else text_line

    async def work() -> int:
        async with target.client() as client, open_messages(client) as messages:
            backlog = None if group is None else _Backlog(client, queue, group)
            printer = _Printer(line, count, until_idle, backlog, until_empty=until_empty)
            return await printer.run(messages)

    stale = _run(work(), queue, group, start)
    if stale:
        raise click.ClickException(
            f"The leases of {plural(stale, 'message')} ended before the ack; they come again."
        )


def _run(work: Coroutine[Any, Any, int], queue: str, group: str | None, start: str | None) -> int:
    """Run `work`. If the group would be the queue's first one and start behind messages, which
    would delete them, raise an error with advice."""
    try:
        return run(work, ends_with_output=True)
    except WouldDelete as error:
        raise click.ClickException(
            f"Group {group} of {queue} was not created, because that would delete "
            f"{plural(error.deleted, 'message')} before its start. Use --start earliest to get "
            f"them, or `tocsin group create {queue} {group} --start {start}` to delete them."
        ) from None


def _keys(together: str | None, one_by_one: tuple[str, ...]) -> list[str] | None:
    """Return the keys of --keys and --key; None if neither was given."""
    keys = [*([] if together is None else together.split(",")), *one_by_one]
    if "" in keys:
        raise click.UsageError(
            "A key of --keys or --key is empty. It needs at least one character."
        )
    return keys or None


def _tell_gap(gap: Gap) -> None:
    click.echo(f"tocsin: {gap}", err=True)


class _Backlog:
    """The number of messages that a group has not settled, as the broker counts."""

    def __init__(self, client: Client, queue: str, group: str) -> None:
        self._client = client
        self._queue = queue
        self._group = group
        self._told = ""
        self._waits = Counter[str]()

    async def lag(self) -> int:
        """Return the number of messages that the group has not settled."""
        found = await self._client.group(self._queue, self._group)
        self._waits = Counter[str]()
        for place in found.get("partitions", ()):
            if place.get("waits_for") and place["lag"]:
                self._waits[place["waits_for"]] += place["lag"]
        lag: int = found["lag"]
        return lag

    async def tell_what_is_left(self) -> None:
        """Print how many messages the group has not settled, although the command ends. Prints
        nothing if there are none, or if the query fails."""
        with contextlib.suppress(TocsinError):
            lag = await self.lag()
            if lag:
                click.echo(
                    f"tocsin: the group {self._group} has not settled {plural(lag, 'message')}"
                    f"{self._why()}. --until-empty waits for them.",
                    err=True,
                )

    async def tell_what_it_waits_for(self) -> None:
        """Print how many messages are left and what they wait for, unless the reason is the one
        printed last."""
        lag = await self.lag()
        why = self._why()
        if lag and why != self._told:
            self._told = why
            click.echo(f"tocsin: {plural(lag, 'message')} to go{why}.", err=True)

    def _why(self) -> str:
        words = [
            f"{WAITS_FOR.get(code, code)} ({count:,})" for code, count in self._waits.most_common()
        ]
        return f", waiting for {' and '.join(words)}" if words else ""


class _Printer:
    """A writer that prints the messages that have arrived, flushes, acks, and waits for more."""

    def __init__(
        self,
        line: Callable[[Content], bytes],
        count: int | None,
        idle_s: float | None,
        backlog: _Backlog | None,
        *,
        until_empty: bool,
    ) -> None:
        self._line = line
        self._left = count
        self._idle_s = idle_s
        self._backlog = backlog
        self._until_empty = until_empty
        self._stale = 0

    async def run(self, messages: Subscription | Reader) -> int:
        """Print messages until the end; returns the number of acks that came too late."""
        while self._left != 0:
            message: Content | None = messages.next_nowait()
            if message is None:
                message = await self._wait(messages)
                if message is None:
                    break
            await self._print(messages, message)
            await asyncio.sleep(0)  # let acks out, and pushes and Ctrl-C in
        return self._stale

    async def _wait(self, messages: Subscription | Reader) -> Content | None:
        """Return the next message; None if it is time to end."""
        now = asyncio.get_running_loop().time
        began = now()
        ends_at = inf if self._idle_s is None else began + self._idle_s
        pause_s, tells_at = EMPTY_S, began + TELL_S
        while True:
            look_at = now() + pause_s if self._until_empty else inf
            try:
                until = min(look_at, ends_at)
                async with asyncio.timeout_at(None if until == inf else until):
                    return await anext(messages)
            except StopAsyncIteration:
                return None
            except TimeoutError:
                if now() >= ends_at:
                    if self._backlog is not None:
                        await self._backlog.tell_what_is_left()
                    return None
            assert self._backlog is not None  # only a group can be empty
            if now() >= tells_at:
                tells_at = now() + TELL_S
                await self._backlog.tell_what_it_waits_for()
            elif not await self._backlog.lag():
                return None
            pause_s = min(2 * pause_s, EMPTY_S_MAX)

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
