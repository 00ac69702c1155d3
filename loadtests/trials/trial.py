"""What every trial is given and gives back: a broker of its own, that broker's memory over time,
and a finding of figures, conditions and promises."""

import asyncio
import contextlib
import gc
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from loadtests.bench.command import interpreter
from loadtests.clients.load import Client, LoadFailed
from loadtests.server import SERVE, Process, Server, ServerFailed, tocsin

MIB: Final = 1024 * 1024
_SAMPLE_S: Final = 0.1
_POLL_S: Final = 0.02
_ADMIN_TIMEOUT_S: Final = 60.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that was promised, and what was found."""

    promise: str
    found: str
    ok: bool
    timed: bool
    """It compares rates or times: what else runs on the machine can break it."""

    def __str__(self) -> str:
        return f"{'kept  ' if self.ok else 'BROKEN'} {self.promise}: {self.found}"


@dataclass
class Finding:
    """What a trial found."""

    trial: str
    figures: dict[str, object] = field(default_factory=dict)
    conditions: dict[str, object] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def check(self, promise: str, ok: bool, found: object, *, timed: bool = False) -> None:
        """Note whether a promise was kept."""
        self.checks.append(Check(promise, str(found), ok, timed))

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return all(check.ok for check in self.checks)

    def broken(self, *, timed: bool) -> list[str]:
        """The broken promises in words; those that compare times only if `timed`."""
        return [str(c) for c in self.checks if not c.ok and (timed or not c.timed)]

    def fields(self) -> dict[str, object]:
        """As JSON likes it."""
        return {
            "trial": self.trial,
            "ok": self.ok,
            **self.figures,
            "checks": [vars(check) for check in self.checks],
            "conditions": self.conditions | machine(),
        }

    def __str__(self) -> str:
        lines = [self.trial]
        lines += [f"  {name:<36} {_number(figure)}" for name, figure in self.figures.items()]
        lines += [f"  {check}" for check in self.checks]
        lines += [f"  ({name}: {text})" for name, text in (self.conditions | machine()).items()]
        return "\n".join(lines)


def _number(figure: object) -> str:
    return f"{figure:,}" if isinstance(figure, int | float) else str(figure)


def machine() -> dict[str, object]:
    """Where and when this was measured, and how busy it is there."""
    return {
        "python": interpreter(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": platform.release(),
        "cpu_count": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "load_generator": "same machine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextlib.asynccontextmanager
async def broker(
    trial: str, *, command: Sequence[str] = SERVE, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """A `tocsin serve` on an empty folder, both gone in the end; `command` and `settings` as in
    Server. Raises ServerFailed, also when it ended by itself meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix=f"tocsin-{trial}-"))
    server = Server(folder / "data", command=command, level="warning", settings=settings or {})
    try:
        server.spawn()
        await asyncio.to_thread(server.wait_ready)
        yield server
        if server.exit_code():  # None: it runs; 0: the trial has stopped it
            raise ServerFailed(f"the broker ended meanwhile:\n{server.log_tail()}")
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


async def admin(server: Server, *words: object) -> Any:
    """What `tocsin admin … --json` answers of this server's folder. Raises LoadFailed."""
    return await administer(*words, "--data-dir", server.data_dir)


async def administer(*words: object) -> Any:
    """What `tocsin admin … --json` answers. Raises LoadFailed; TimeoutError after a minute."""
    said = [str(word) for word in words]
    process = await asyncio.create_subprocess_exec(
        *tocsin("admin", *said, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: text for name, text in os.environ.items() if not name.startswith("TOCSIN_")},
        cwd=Path(__file__).parents[2],
    )
    try:
        async with asyncio.timeout(_ADMIN_TIMEOUT_S):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise LoadFailed(f"tocsin admin {' '.join(said)}: {error.decode(errors='replace')}")
    return json.loads(out)


class Memory:
    """The server's resident memory over time, ten times a second, in bytes."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.samples: list[tuple[float, int]] = []
        """(monotonic seconds, bytes)."""
        self._task: asyncio.Task[None] | None = None

    def now(self) -> int:
        """Look once more."""
        size = self._process.rss_bytes()
        self.samples.append((time.monotonic(), size))
        return size

    def highest(self, since: float, until: float = float("inf")) -> int:
        """The most there was between two monotonic times; 0 when nobody looked."""
        return max((size for at, size in self.samples if since <= at <= until), default=0)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look all the time."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ServerFailed, OSError):
                await task  # a server that has ended is told of by whoever talks to it

    async def _watch(self) -> None:
        while True:
            self.now()
            await asyncio.sleep(_SAMPLE_S)


async def until(
    done: Callable[[], bool],
    what: str,
    timeout_s: float,
    clients: Callable[[], "list[Client]"],
) -> None:
    """Wait for it, watching the clients. Raises LoadFailed: one failed, or it took longer than
    `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not done():
        failed(clients())
        if time.monotonic() > deadline:
            raise LoadFailed(f"{what} took longer than {timeout_s:.0f} s")
        await asyncio.sleep(_POLL_S)


def failed(clients: "list[Client]") -> None:
    """Raise what went wrong with any of them."""
    for client in clients:
        if client.failure is not None:
            raise client.failure


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without pauses of our own garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
