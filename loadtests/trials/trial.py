"""The common part of all trials: a broker of its own, that broker's memory over time, and a finding
of figures, conditions and promises."""

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
    """A promise, and what the trial found about it."""

    promise: str
    found: str
    ok: bool
    timed: bool
    """Whether the promise compares rates or times, so that other programs on the machine can break
    it."""

    def __str__(self) -> str:
        return f"{'kept  ' if self.ok else 'BROKEN'} {self.promise}: {self.found}"


@dataclass
class Finding:
    """The result of a trial."""

    trial: str
    figures: dict[str, object] = field(default_factory=dict)
    conditions: dict[str, object] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def check(self, promise: str, ok: bool, found: object, *, timed: bool = False) -> None:
        """Note whether a promise was kept, and what was found. `timed`: the promise compares rates
        or times."""
        self.checks.append(Check(promise, str(found), ok, timed))

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return all(check.ok for check in self.checks)

    def broken(self, *, timed: bool) -> list[str]:
        """Return the broken promises as texts. Without `timed`, those that compare rates or times
        are left out."""
        return [str(c) for c in self.checks if not c.ok and (timed or not c.timed)]

    def fields(self) -> dict[str, object]:
        """Return the finding as a JSON object, with the `machine` among its conditions."""
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
    """Return the machine, its load and the date, as conditions of a measurement."""
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
    """Run a `tocsin serve` on an empty folder during the block; remove both in the end. `command`
    and `settings` as in Server. Raises ServerFailed if the broker does not get ready, or has ended
    with an exit code other than 0 when the block ends."""
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
    """Return the answer of `tocsin admin WORDS --json` for this server's folder. Raises LoadFailed
    and TimeoutError like `administer`."""
    return await administer(*words, "--data-dir", server.data_dir)


async def administer(*words: object) -> Any:
    """Return the answer of `tocsin admin WORDS --json`. Raises LoadFailed if the command fails,
    TimeoutError after a minute."""
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
    """The resident memory of a broker's process over time, in bytes: a sample ten times a second
    during `watched`, and one for each call of `now`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.samples: list[tuple[float, int]] = []
        """(monotonic seconds, resident bytes) of each sample."""
        self._task: asyncio.Task[None] | None = None

    def now(self) -> int:
        """Take a sample now and return it."""
        size = self._process.rss_bytes()
        self.samples.append((time.monotonic(), size))
        return size

    def highest(self, since: float, until: float = float("inf")) -> int:
        """Return the largest sample between two monotonic times; 0 without samples."""
        return max((size for at, size in self.samples if since <= at <= until), default=0)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Take samples during the block."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ServerFailed, OSError):
                await task  # whoever talks to the server reports its end

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
    """Wait until `done()` is true. Raises LoadFailed if one of `clients()` has failed, or after
    `timeout_s`; that error names the wait by `what`."""
    deadline = time.monotonic() + timeout_s
    while not done():
        failed(clients())
        if time.monotonic() > deadline:
            raise LoadFailed(f"{what} took longer than {timeout_s:.0f} s")
        await asyncio.sleep(_POLL_S)


def failed(clients: "list[Client]") -> None:
    """Raise the failure of the first of these clients that has failed; return if none has."""
    for client in clients:
        if client.failure is not None:
            raise client.failure


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Run the block without pauses of this process's garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
