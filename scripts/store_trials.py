"""The embedded store's part in the cost of a message: `python -m scripts.store_trials`.

The same load runs against brokers with different stores, in turns. All but the first store decide
in memory, on the event loop, and differ in what a commit writes before it is answered:

today     the embedded store
blob      one row of SQLite, a blob, with `synchronous=FULL`, by a thread
file      one write into a file of fixed size, with RWF_DSYNC, by a thread
thread    nothing, but a thread is asked, and answers
nothing   nothing, and no thread is asked

These stores forget everything, and nothing is ever folded or recovered. They say what a cheaper
store could save at most, and no more. The table has medians of all rounds.
"""

import asyncio
import mmap
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

import gateway.stores.open
from loadtests.bench import hops
from loadtests.bench.load_run import PARTITIONS
from loadtests.clients.load import LoadFailed
from loadtests.server import SERVE, Server, ServerFailed
from push.storage_port import Append, Appended, CursorWrite, Lane, Written
from storage.memory import MemoryStorage

STORES: Final = ("today", "blob", "file", "thread", "nothing")
RATES: Final = (1_000, 10_000)
FILE_BYTES: Final = 64 * 1_048_576
SECONDS: Final = 5.0
ROUNDS: Final = 3
Write = Callable[[Sequence[bytes]], None]
"""Makes the parts of a commit durable. Called in a thread."""


def write_blobs(folder: Path) -> Write:
    """Return a function that writes each commit as one row."""
    connection = sqlite3.connect(folder / "trial", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, act BLOB)")

    def write(parts: Sequence[bytes]) -> None:
        connection.execute("INSERT INTO entry (act) VALUES (?)", (b"".join(parts),))

    return write


def write_file(folder: Path) -> Write:
    """Return a function that writes each commit as one piece of a file, whole pages each, and
    begins anew at its end."""
    path = folder / "trial"
    path.write_bytes(bytes(FILE_BYTES))
    file, at = os.open(path, os.O_RDWR), 0
    os.fsync(file)

    def write(parts: Sequence[bytes]) -> None:
        nonlocal at
        data = b"".join(parts)
        data += bytes(-len(data) % mmap.PAGESIZE)
        if at + len(data) > FILE_BYTES:
            at = 0
        os.pwritev(file, [data], at, os.RWF_DSYNC)
        at += len(data)

    return write


def write_nothing(_: Path) -> Write:
    """Return a function that writes nothing."""
    return lambda _: None


WRITES: Final[dict[str, Callable[[Path], Write] | None]] = {
    "blob": write_blobs,
    "file": write_file,
    "thread": write_nothing,
    "nothing": None,
}


class TrialStorage(MemoryStorage):
    """The storage in memory, which answers when its commits are written. What comes during a commit
    is the next one. `write`: None: it answers at once."""

    touches = 1
    """Number of touches of the embedded store: a trial is opened once."""

    def __init__(self, write: Write | None, **how: Any) -> None:
        super().__init__(**how)
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tocsin-store-writer")
        self._parts: list[bytes] = []
        self._next: asyncio.Future[None] | None = None
        self._is_writing = False

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        answers = await super().append(appends, lane=lane)
        await self._written([part for one in appends for part in (one.header, one.payload)])
        return answers

    async def write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        answers = await super().write_cursors(writes)
        await self._written([repr(one.settled).encode() for one in writes])
        return answers

    async def _written(self, parts: Sequence[bytes]) -> None:
        """Return when a commit with these parts is written."""
        if self._write is None:
            return
        self._parts += parts
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            if not self._is_writing:
                loop.call_soon(self._begin, self._write)  # with what else comes in this turn
        await self._next

    def _begin(self, write: Write) -> None:
        asked, parts = self._next, self._parts
        self._next, self._parts, self._is_writing = None, [], True
        loop = asyncio.get_running_loop()

        def end(done: asyncio.Future[None]) -> None:
            self._is_writing = False
            done.result()
            if asked is not None and not asked.done():
                asked.set_result(None)
            if self._next is not None:
                self._begin(write)

        loop.run_in_executor(self._thread, write, parts).add_done_callback(end)


def serve(name: str) -> None:
    """Have this process, a broker, use the store of this name. It keeps its catalog."""

    class Opened:
        """Opens a trial in place of the embedded store."""

        @staticmethod
        async def open(path: Path, *, sealer: Any, **_: Any) -> TrialStorage:
            """Return the trial, which needs nothing but the folder."""
            begin = WRITES[name]
            return TrialStorage(begin(path.parent) if begin else None, sealer=sealer)

    vars(gateway.stores.open)["SqliteStorage"] = Opened


def measure(name: str, rate: int, seconds: float) -> tuple[float, float, float]:
    """Return (CPU microseconds of the broker for a message, p50, p99 in ms) with this store."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-store-trial-"))
    begin = f"from scripts.store_trials import serve as use; use({name!r}); {SERVE[1]}"
    command = SERVE if name == "today" else ("-c", begin)
    server = Server(folder / "data", level="warning", command=command)
    try:
        server.start()
        threads = hops.Threads(server.pid)
        figures = hops.open_load(server, threads, rate, PARTITIONS, seconds)
        assert figures.latency is not None
        cpu_us = sum(threads.per_message_us(rate * seconds).values())
        return (
            cpu_us,
            figures.latency.percentile(50) / 1e6,
            figures.latency.percentile(99) / 1e6,
        )
    finally:
        server.discard()


@click.command()
@click.option(
    "--store", "names", multiple=True, type=click.Choice(STORES), default=STORES,
    help="Try this store; repeatable. [all]",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option("--seconds", type=click.FloatRange(1, 120), default=SECONDS, show_default=True)
def main(names: Sequence[str], rounds: int, seconds: float) -> None:
    """Measure what the store costs, and print a table in Markdown.

    Single messages over 16 partitions on a fixed schedule, 1,000 and 10,000 a second, with each
    store in turns. Three rounds of five stores take about five minutes.
    """
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    try:
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                for rate in RATES:
                    taken = measure(name, rate, seconds)
                    found.setdefault((name, rate), []).append(taken)
                    click.echo(
                        f"  {number + 1}/{rounds} {name} {rate:,}/s: {taken[0]:,.0f} µs, "
                        f"p50 {taken[1]:.2f} ms",
                        err=True,
                    )
    except (LoadFailed, ServerFailed, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(table(found, names))


def table(
    found: dict[tuple[str, int], list[tuple[float, float, float]]], names: Sequence[str]
) -> str:
    """Return the medians as a table in Markdown, a row for each store."""
    whats = ("CPU, µs", "p50, ms", "p99, ms")
    heads = [f"{what} at {rate:,}/s" for rate in RATES for what in whats]
    lines = [f"| store | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name in names:
        cells = [
            f"{statistics.median(column):,.{0 if place == 0 else 2}f}"
            for rate in RATES
            for place, column in enumerate(zip(*found[name, rate], strict=True))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
