"""The verb `tocsin publish`, for a message from the command line, or many from a file or a pipe."""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from tocsin.api.client import Client
from tocsin.cli.common import (
    Negatives,
    Target,
    check_when,
    json_option,
    pass_target,
    plural,
    run,
    target_options,
    to_json,
    when_options,
)
from tocsin.cli.durations import duration, format_duration
from tocsin.cli.lines import BadLine, LineSplitter, Maker, read_chunks
from tocsin.cli.progress import Progress
from tocsin.cli.times import from_now, local_time
from tocsin.errors import ClientClosed, PublishManyFailed, SessionEnded, TocsinError
from tocsin.proto.new_message import NewMessage
from tocsin.proto.publish_lane import Receipt

BATCH_MESSAGES: Final = 1000
BATCHES_UNDER_WAY: Final = 8
PROGRESS_S: Final = 0.2
"""The interval at which the progress line is updated, even without answers, in seconds."""
CLOSE_S: Final = 1.0
"""The longest wait for the outcome of each batch under way after the client was closed, in
seconds."""


@click.command(cls=Negatives)
@click.argument("queue")
@click.argument("body", required=False)
@click.option("--key", help="The key of every message. Messages of one key stay in order.")
@click.option("--key-field", metavar="FIELD", help="JSON lines: the field that holds the key.")
@click.option("--id-field", metavar="FIELD", help="JSON lines: the field that holds the id.")
@click.option("--id", "name", help="BODY's id. Published again with its key, it is stored once.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Repeatable.")
@click.option("--ttl", type=duration, help="Deliver a message only up to this age.")
@when_options
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file. [stdin, without BODY]",
)
@click.option("--lines", "form", flag_value="lines", help="Each line is a text. [without a field]")
@click.option("--json-lines", "form", flag_value="json", help="Each line is a JSON value.")
@click.option("--text", is_flag=True, help="Send BODY as text even if it is JSON.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do at a line that cannot be published.",
)
@click.option(
    "--timeout",
    type=duration,
    default="60s",
    show_default=True,
    help="How long to wait for a message's receipt.",
)
@json_option
@target_options
@pass_target
def publish(
    target: Target,
    /,
    queue: str,
    body: str | None,
    path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish BODY to QUEUE, or each line of a file or of stdin as a message.

    BODY is sent as JSON if it is JSON, else as text. A message counts as published when the broker
    has stored it as durably as the queue demands. Lines of one key keep their order. With --delay
    or --at no consumer gets it before that time; `tocsin scheduled` lists, moves and cancels it.

    \b
    Examples:
      tocsin publish orders '{"total": 12}' --key user-7
      tocsin publish orders --file orders.jsonl --json-lines --key-field user --id-field order
      tail -f access.log | tocsin publish log --key web-1
      tocsin publish reminders '"call back"' --key user-7 --id 31 --delay 2h
    """
    headers = _headers(options["headers"])
    check_when(options["delay"], options["at"])
    if body is not None:
        if path is not None or options["form"] or options["key_field"] or options["id_field"]:
            raise click.UsageError("Leave out BODY, or --file and the options for lines.")
        message = NewMessage(
            body if options["text"] else _json_or_text(body),
            options["key"],
            options["name"],
            headers,
            options["ttl"],
            deliver_at=options["at"],
            delay_s=options["delay"],
        )
        _publish_one(target, queue, message, options["timeout"], as_json)
        return
    if options["name"] is not None or options["text"]:
        raise click.UsageError("--id and --text need a BODY.")
    maker = _maker_of(headers, options)
    _publish_lines(
        target,
        queue,
        path,
        maker,
        skip=options["on_error"] == "skip",
        timeout_s=options["timeout"],
        as_json=as_json,
    )


def _maker_of(headers: dict[str, str] | None, options: dict[str, Any]) -> Maker:
    """Return what makes messages of lines by the options of the command.

    Raises:
        click.UsageError: options contradict each other.
    """
    is_json = options["form"] == "json" or bool(options["key_field"] or options["id_field"])
    if is_json and options["form"] == "lines":
        raise click.UsageError(
            "--key-field and --id-field need JSON. Give --json-lines, not --lines."
        )
    if options["key"] is not None and options["key_field"] is not None:
        raise click.UsageError("Give --key or --key-field, not both.")
    return Maker(
        as_json=is_json,
        key=options["key"],
        key_field=options["key_field"],
        id_field=options["id_field"],
        headers=headers,
        ttl_s=options["ttl"],
        deliver_at=options["at"],
        delay_s=options["delay"],
    )


def _json_or_text(body: str) -> Any:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return body
    return msgspec.Raw(body.strip().encode())


def _headers(texts: tuple[str, ...]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=TEXT", param_hint="--header")
        headers[name] = value
    return headers or None


def _publish_one(
    target: Target, queue: str, message: NewMessage, timeout_s: float, as_json: bool
) -> None:
    async def work() -> Receipt:
        async with target.client() as client:
            try:
                return (await client.publish_many(queue, [message], timeout_s=timeout_s))[0]
            except PublishManyFailed as failed:
                (outcome,) = failed.outcomes
                assert isinstance(outcome, TocsinError)
                raise outcome from None

    receipt = run(work())
    if as_json:
        click.echo(to_json(receipt))
        return
    again = ", where an earlier publish had put it" if receipt.duplicate else ""
    what = f"Stored at offset {receipt.offset} of partition {receipt.partition}{again}"
    if receipt.is_scheduled:
        what = _scheduled(receipt)
    copies = plural(receipt.durability.copies, "copy")
    click.echo(f"{what}; durability {receipt.durability.level}, {copies}.")


def _scheduled(receipt: Receipt) -> str:
    """Return what the receipt of a scheduled message says, for people."""
    if receipt.due_unix_ms is None:
        return f"Scheduled before, by an earlier publish, under the ticket {receipt.ticket}"
    when = f"{local_time(receipt.due_unix_ms)} ({from_now(receipt.due_unix_ms)})"
    return f"Scheduled for {when} under the ticket {receipt.ticket}"


def _publish_lines(
    target: Target,
    queue: str,
    path: Path | None,
    maker: Maker,
    *,
    skip: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    if path is None and sys.stdin.isatty():
        click.echo("tocsin: each line that you type is a message. Ctrl-D ends.", err=True)
    descriptor = os.open(path, os.O_RDONLY) if path is not None else sys.stdin.fileno()
    progress = Progress(sys.stderr, total=os.path.getsize(path) if path is not None else None)
    started = time.monotonic()
    stream = _Stream(queue, maker, progress, skip=skip, timeout_s=timeout_s)

    async def work() -> None:
        try:
            async with target.client() as client:
                await stream.run(client, descriptor)
        finally:
            await stream.close()

    try:
        run(work())
    except BaseException:
        if stream.lines:  # otherwise nothing was read
            _report(stream, time.monotonic() - started, as_json)
            stream.say_where_it_ended("the input" if path is None else str(path))
        raise
    finally:
        if path is not None:
            os.close(descriptor)
    _report(stream, time.monotonic() - started, as_json)
    if stream.failed:
        raise click.ClickException(stream.verdict())


def _report(stream: "_Stream", elapsed_s: float, as_json: bool) -> None:
    if as_json:
        summary = {
            "published": stream.published,
            "duplicates": stream.duplicates,
            "failed": stream.failed,
            "unanswered": len(stream.unanswered),
            "lines": stream.lines,
            "deferred": stream.deferred,
            "seconds": round(elapsed_s, 3),
        }
        click.echo(to_json(summary))
        return
    rate = stream.published / elapsed_s if elapsed_s > 0 else 0.0
    text = f"Published {plural(stream.published, 'message')} in {format_duration(elapsed_s)}"
    if stream.duplicates:
        text += f", of which {stream.duplicates:,} were stored already"
    click.echo(f"{text} ({rate:,.0f}/s).")
    if stream.deferred:
        click.echo(f"tocsin: {_deferred(stream.deferred)}", err=True)


def _deferred(counts: dict[str, int]) -> str:
    """Return a note such as `put off by the broker: 12,000 overloaded, 400 rate limited`."""
    reasons = [f"{count:,} {code.replace('_', ' ')}" for code, count in counts.items()]
    return "put off by the broker: " + ", ".join(reasons)


@dataclass
class _Batch:
    """Messages under way, the numbers of the lines they came from, and the number of bytes read up
    to them."""

    lines: list[int]
    task: "asyncio.Task[list[Receipt]]"
    done_bytes: int


class _Stream:
    """Lines on their way to the broker: a bounded number of batches, in order."""

    def __init__(
        self, queue: str, maker: Maker, progress: Progress, *, skip: bool, timeout_s: float
    ) -> None:
        self.published = 0
        self.duplicates = 0
        self.failed = 0
        self.lines = 0
        """The number of lines taken from the input. Lines after them were not sent."""
        self.unanswered: list[int] = []
        """Lines whose messages may be stored, because the client was closed before their answer."""
        self.deferred: dict[str, int] = {}
        """The number of messages that the broker had refused for the moment, by error code; set
        when `run` ends."""
        self._queue = queue
        self._maker = maker
        self._progress = progress
        self._skip = skip
        self._timeout_s = timeout_s
        self._under_way: deque[_Batch] = deque()
        self._read_bytes = 0
        self._done_bytes = 0
        self._first = ""
        self._is_interrupted = False
        self._ended: TocsinError | None = None
        """The reason why nothing more can be published; None if there is none."""

    @property
    def _has_stopped(self) -> bool:
        return self._ended is not None or (self.failed > 0 and not self._skip)

    def verdict(self) -> str:
        """Return a sentence about the lines that failed."""
        if self._skip:
            return f"{plural(self.failed, 'line')} could not be published and were skipped."
        return f"{self._first}. It stopped there. --on-error skip goes on after such lines."

    def say_where_it_ended(self, source: str) -> None:
        """Print, on stderr, after which line the command ended, and how many lines before got no
        answer."""
        after = f"tocsin: ended after line {self.lines:,} of {source}. Later lines were not sent."
        if self.unanswered:
            first, last = self.unanswered[0], self.unanswered[-1]
            after += f" Of lines {first:,} to {last:,}, {len(self.unanswered):,} got no answer and "
            after += "may be stored."
        click.echo(after, err=True)

    async def run(self, client: Client, descriptor: int) -> None:
        """Publish all lines. A line that fails ends this, unless such lines are skipped.

        When cancelled, sends nothing more and waits for the answers to sent messages. When
        cancelled again, does not wait.

        Raises:
            TocsinError: this client can publish nothing more.
        """
        try:
            await self._until_interrupted(self._send_all(client, descriptor))
            await self._until_interrupted(self._finish_all(client))
            await self._finish_all(client)
        finally:
            self.deferred = client.deferred
            self._progress.close()
        if self._ended is not None:
            raise self._ended

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`. The first cancellation ends only this work."""
        try:
            await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_interrupted or task is None:
                raise
            self._is_interrupted = True
            task.uncancel()

    async def _finish_all(self, client: Client) -> None:
        while self._under_way:
            await self._finish_one(client)

    async def close(self) -> None:
        """Count the outcomes of the batches that were under way when the client was closed, as far
        as they come within CLOSE_S."""
        while self._under_way:
            batch = self._under_way.popleft()
            await asyncio.wait([batch.task], timeout=CLOSE_S)
            batch.task.cancel()
            self._count(batch)

    async def _send_all(self, client: Client, descriptor: int) -> None:
        splitter = LineSplitter()
        async for chunk in read_chunks(descriptor):
            self._read_bytes += len(chunk)
            await self._send(client, splitter.feed(chunk))
            if self._has_stopped:
                return
        await self._send(client, splitter.finish())

    async def _send(self, client: Client, lines: list[bytes | None]) -> None:
        for start in range(0, len(lines), BATCH_MESSAGES):
            messages: list[NewMessage] = []
            numbers: list[int] = []
            for line in lines[start : start + BATCH_MESSAGES]:
                self.lines += 1
                try:
                    message = self._maker.make(line)
                except BadLine as error:
                    self._fail(self.lines, str(error))
                    if self._has_stopped:
                        break
                    continue
                if message is not None:
                    messages.append(message)
                    numbers.append(self.lines)
            if messages:
                publishing = client.publish_many(self._queue, messages, timeout_s=self._timeout_s)
                task = asyncio.get_running_loop().create_task(publishing)
                self._under_way.append(_Batch(numbers, task, self._read_bytes))
            while self._under_way and (
                len(self._under_way) >= BATCHES_UNDER_WAY or self._under_way[0].task.done()
            ):
                await self._finish_one(client)
            if self._has_stopped:
                return

    async def _finish_one(self, client: Client) -> None:
        """Wait for the oldest batch. When cancelled, the batch stays under way, with its
        messages."""
        while not (await asyncio.wait([self._under_way[0].task], timeout=PROGRESS_S))[0]:
            self._tell(client)
        self._count(self._under_way.popleft())
        self._tell(client)

    def _tell(self, client: Client) -> None:
        counts = client.deferred
        note = _deferred(counts) if counts else ""
        self._progress.update(self.published, self._done_bytes, note)

    def _count(self, batch: _Batch) -> None:
        """Count the outcomes of a batch that is done."""
        outcomes: list[Any]
        try:
            outcomes = list(batch.task.result())
        except PublishManyFailed as failed:
            outcomes = list(failed.outcomes)
        except (TocsinError, asyncio.CancelledError, asyncio.InvalidStateError) as error:
            ended = error if isinstance(error, TocsinError) else ClientClosed("it was closed")
            outcomes = [ended] * len(batch.lines)
        for number, outcome in zip(batch.lines, outcomes, strict=True):
            if isinstance(outcome, Receipt):
                self.published += 1
                self.duplicates += outcome.duplicate
            elif isinstance(outcome, ClientClosed | SessionEnded):
                self.unanswered.append(number)
                self._ended = self._ended or outcome
            else:
                self._fail(number, str(outcome))
        self._done_bytes = batch.done_bytes

    def _fail(self, line: int, why: str) -> None:
        self.failed += 1
        text = f"line {line:,}: {why}"
        self._first = self._first or text
        if self._skip:
            self._progress.close()
            click.echo(f"tocsin: {text}", err=True)
