"""The whole run: gateways, their store, clients, and what kills them. Judged from outside.

`python -m tests.later --help` for long ones.
"""

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal

from loadtests.checker.verdict import Violations
from loadtests.server import SERVE, Server
from tests.histories.redis_gateways import emptied
from tests.later.books import Books, judge
from tests.later.clients import Client, Plan, prepare, read_log, unix_ms, waits
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node

StoreKind = Literal["embedded", "valkey"]
GATEWAYS: Final = 2
LIFE_S: Final = (1.0, 4.0)
DOWN_S: Final = (0.0, 1.5)
OUTAGE_EACH: Final = 8
"""Each so many deaths one is an outage of all that is longer than the window of ids."""
TELL_S: Final = 5.0
DRAIN_S: Final = 300.0


@dataclass
class World:
    """Gateways and their store. `store` is None if it is embedded."""

    gateways: list[Server]
    store: Node | None

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.gateways]

    def processes(self) -> "list[Server | Node]":
        """Return what can be killed."""
        return [*self.gateways, *([self.store] if self.store is not None else [])]


@asynccontextmanager
async def world(
    kind: StoreKind, folder: Path, command: Sequence[str] = SERVE
) -> AsyncIterator[World]:
    """Start one broker with the embedded store, or several gateways over one Valkey."""
    if kind == "embedded":
        with Server(folder / "data", level="warning", command=command) as alone:
            yield World([alone], None)
        return
    valkey = next(one for one in binaries() if one.engine == "valkey")
    with single(valkey, folder / "store") as store:
        url = await emptied(store)
        settings = {"TOCSIN_STORAGE": url, "TOCSIN_ENCRYPTION": "no"}
        gateways = [
            Server(folder / f"gateway-{n}", level="warning", settings=settings, command=command)
            for n in range(GATEWAYS)
        ]
        try:
            for one in gateways:
                await asyncio.to_thread(one.start)
            yield World(gateways, store)
        finally:
            for one in gateways:
                one.discard()


@dataclass
class Report:
    """What has happened in a run."""

    seed: int
    verdict: Violations
    done: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    late_p50_ms: float = 0.0
    late_p99_ms: float = 0.0
    """From when a message was due to its record, of those that were stored before they were due.
    Outages are in it."""

    def lines(self) -> list[str]:
        """Return it for people."""
        return [
            f"seed {self.seed}",
            ", ".join(f"{count} {what}" for what, count in sorted(self.done.items())),
            "killed: " + ", ".join(f"{who} {n} times" for who, n in sorted(self.deaths.items())),
            f"{self.moved} in the log, late {self.late_p50_ms:.0f} ms (p50), "
            f"{self.late_p99_ms:.0f} ms (p99)",
            str(self.verdict),
        ]


async def later(
    plan: Plan,
    kind: StoreKind,
    *,
    seed: int,
    kills: bool = True,
    command: Sequence[str] = SERVE,
    progress: Callable[[str], None] = print,
) -> Report:
    """Do it, and judge. `kills`: kill what there is while clients work and until all is moved."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-later-"))
    chance, books = Random(seed), Books()
    try:
        async with world(kind, folder, command) as there:
            await prepare(there.urls, plan)
            clients = [
                Client(number, there.urls, plan, books, Random(seed + number + 1))
                for number in range(plan.clients)
            ]
            deaths: Counter[str] = Counter()
            nemesis = asyncio.create_task(_kill(there, plan, chance, deaths) if kills else _idle())
            try:
                share, rest = divmod(plan.messages, plan.clients)
                await _all_of(
                    [one.run(share + (n < rest)) for n, one in enumerate(clients)],
                    nemesis, lambda: progress(f"{len(books.messages)} published; killed {deaths}"),
                )  # fmt: skip
                last_ms = max(max(one.dues) for one in books.messages.values())
                await _all_of(
                    [asyncio.sleep(max(0.0, (last_ms - unix_ms()) / 1000))], nemesis,
                    lambda: progress("waiting until all are due"),
                )  # fmt: skip
            finally:
                nemesis.cancel()
                await asyncio.wait([nemesis])
            for one in reversed(there.processes()):  # the store first
                await _up(one)
            async with asyncio.timeout(DRAIN_S):
                while left := await waits(there.urls):
                    progress(f"{left} are due and not moved yet")
                    await asyncio.sleep(1)
            log = await read_log(there.urls)
        report = Report(seed, judge(books, log), deaths=deaths, moved=len(log))
        for client in clients:
            report.done.update(client.done)
        lates = sorted(
            one.moved_unix_ms - known.dues[0]
            for one in log
            if (known := books.messages.get(one.name)) is not None
            and known.is_sure and known.known_unix_ms < known.dues[0]
        )  # fmt: skip
        if lates:
            report.late_p50_ms = lates[len(lates) // 2]
            report.late_p99_ms = lates[len(lates) * 99 // 100]
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _all_of(
    works: Sequence[object], nemesis: "asyncio.Task[None]", tell: Callable[[], None]
) -> None:
    """Wait for all of these. Raises what the nemesis or one of them raises."""
    tasks = [asyncio.ensure_future(one) for one in works]  # type: ignore[call-overload]
    told = time.monotonic()
    try:
        while pending := [one for one in tasks if not one.done()]:
            await asyncio.wait([*pending, nemesis], timeout=5, return_when="FIRST_COMPLETED")
            if nemesis.done():
                nemesis.result()
            for one in tasks:
                if one.done():
                    one.result()
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                tell()
    finally:
        for one in tasks:
            one.cancel()


async def _idle() -> None:
    await asyncio.Event().wait()


async def _kill(there: World, plan: Plan, chance: Random, deaths: Counter[str]) -> None:
    count = 0
    while True:
        await asyncio.sleep(chance.uniform(*LIFE_S))
        count += 1
        if count % OUTAGE_EACH == 0:
            dying = there.processes()
            down_s = plan.dedup_window_s + 3
        else:
            dying = [chance.choice(there.processes())]
            down_s = chance.uniform(*DOWN_S)
        for one in dying:
            deaths[_name(there, one)] += 1
            await asyncio.to_thread(one.kill)
        await asyncio.sleep(down_s)
        for one in reversed(dying):  # the store first
            await _up(one)


def _name(there: World, one: Server | Node) -> str:
    if isinstance(one, Node):
        return "store"
    return "broker" if there.store is None else f"gateway {there.gateways.index(one)}"


async def _up(one: Server | Node) -> None:
    """Start it, if it does not run, and wait until it is ready. A store ends with the thread that
    started it, which is therefore this one."""
    if not (one.is_running if isinstance(one, Node) else one.running()):
        one.spawn()
    await asyncio.to_thread(one.wait_ready)
