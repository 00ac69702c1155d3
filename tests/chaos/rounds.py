"""A round: a world, its clients, a number of faults, a drain, and the checker's verdict."""

import asyncio
import gzip
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from loadtests.checker.checker import ChaosVerdict, check
from loadtests.checker.history import read_lines
from loadtests.clients.recorder import GROUP_PLACE, ClientFailed, Habits, RunState
from loadtests.faults.soak_clients import LEASE_S, QUIET_S, SoakClients
from loadtests.server import ServerFailed
from metadata.service.protocol import Layout as MetadataLayout
from push import limits
from tests.chaos.disks import disks
from tests.chaos.nemesis import AWAY_S, DOWN_S, FROZEN_S, HEALED_TIMEOUT_S, Nemesis, start
from tests.chaos.world import NODE_TIMEOUTS_S, TOKEN, World, node_folders, world
from tests.servers.binaries import Binary
from tests.servers.layouts import Layout

RATES_PER_S: Final = (150, 300)
SILENCE_S: Final = 3.0
RETENTION_S: Final = 3600.0
"""Readers are to be given everything, so nothing goes before the end."""
DRAINS: Final = 3
"""Before the faults, and as many after them."""
BACKLOG: Final = 4_000
DRAINED_SHARE: Final = 0.95
"""Of a backlog, when its time is taken: what was nacked comes later."""
DRAIN_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Plan:
    """What a round is made of. `faults`: kinds of `nemesis.KINDS`, or shapes, in their order."""

    seed: int
    faults: Sequence[str]
    gateways: int = 2
    serving: int = 0
    """How many of the gateways consumers use; 0: all."""
    frozen_s: float = FROZEN_S
    with_disks: bool = False
    """The nodes' files lie on disks whose power is cut; needs loop devices."""
    drains: bool = False
    """Backlogs are drained before and after, and their rates compared."""
    broken: str = ""
    rates_per_s: tuple[int, ...] = RATES_PER_S
    """Of each producer, drawn at each connect."""
    down_s: float = DOWN_S
    """How long a gateway that was killed stays away, at most."""
    layout: Layout = "sentinel"
    """Of the store."""
    away_s: float = AWAY_S
    """How long a replica that managers take out is away."""
    metadata: MetadataLayout | None = None
    """Of the metadata service; None: there is none."""


@dataclass
class Report:
    """What was done, and what came of it."""

    plan: Plan
    done: list[str] = field(default_factory=list)
    failure: str = ""
    """Why the round could not come to its end: a client was told what it never should be."""
    acknowledged: int = 0
    seconds: float = 0.0
    verdict: ChaosVerdict | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing at all was found."""
        return not self.failure and self.verdict is not None and self.verdict.ok

    def fields(self) -> dict[str, object]:
        """As JSON likes it."""
        return {
            "seed": self.plan.seed,
            "plan": vars(self.plan),
            "ok": self.ok,
            "done": self.done,
            "failure": self.failure,
            "acknowledged": self.acknowledged,
            "seconds": round(self.seconds, 1),
            "verdict": self.verdict and self.verdict.fields(),
        }

    def __str__(self) -> str:
        lines = [f"seed {self.plan.seed}: {', '.join(self.done)}"]
        if self.failure:
            lines.append(f"NOT FINISHED: {self.failure}")
        return "\n".join([*lines, str(self.verdict or "nothing to judge")])


def play(
    plan: Plan, binary: Binary, progress: Callable[[str], None], *, keep: Path | None = None
) -> Report:
    """One round. `keep`: a folder for its history and the gateways' logs. In the main thread: what
    is started dies with it. Raises Unreadable, for a history that is none."""
    report, began = Report(plan), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-chaos-")))
        log = folder / f"history-{plan.seed}.jsonl"
        cut = None
        if plan.with_disks:
            places = node_folders(plan.layout, folder)
            cut = stack.enter_context(disks(folder / "images", places))
        made = stack.enter_context(
            world(
                binary, folder, layout=plan.layout, gateways=plan.gateways, broken=plan.broken,
                metadata=plan.metadata,
            )
        )  # fmt: skip
        if cut is not None:
            cut.nodes = made.store.nodes
            cut.settle()
        shared = RunState(
            [gateway.door for gateway in made.gateways], log, Random(plan.seed + 1),
            Habits(plan.rates_per_s, TOKEN, SILENCE_S, at_other_doors=not plan.serving),
        )  # fmt: skip
        if plan.serving:
            shared.serving = shared.doors[: plan.serving]
        crew = SoakClients(shared, readers=1, quiet_s=QUIET_S + limits.PULL_IDLE_S)
        nemesis = Nemesis(
            made, crew, Random(plan.seed), progress, plan.frozen_s, plan.down_s, plan.away_s, cut
        )
        drained = asyncio.run(_round(plan, made, crew, nemesis, report))
        report.done, report.acknowledged = nemesis.done, shared.acknowledged
        progress(f"judging {log.stat().st_size / 1e6:,.0f} MB of history")
        with log.open("rb") as lines:
            report.verdict = check(
                read_lines(lines), [GROUP_PLACE], lease_s=LEASE_S,
                node_timeout_s=NODE_TIMEOUTS_S[plan.layout], drained=drained,
            )  # fmt: skip
        report.seconds = time.monotonic() - began
        if keep is not None:
            _keep(keep / f"seed-{plan.seed}", log, made)
    return report


async def _round(
    plan: Plan, made: World, crew: SoakClients, nemesis: Nemesis, report: Report
) -> bool:
    """Whether it came to its end, with everything drained."""
    log = crew.field.log
    try:
        for gateway in made.gateways:
            start(made, gateway, crew)
        for gateway in made.gateways:
            await asyncio.to_thread(gateway.server.wait_ready)
        await crew.prepare(retention_s=RETENTION_S)
        log.world("publishing", goes_on=True)
        crew.start()
        await nemesis.healed()
        for _ in range(DRAINS if plan.drains else 0):
            await _drain(crew, nemesis.progress, healthy=True)
        for kind in plan.faults:
            await nemesis.fault(kind)
        for _ in range(DRAINS if plan.drains else 0):
            await _drain(crew, nemesis.progress, healthy=False)
        log.world("publishing", goes_on=False)
        await crew.drain(nemesis.progress)
        if crew.field.missing and await crew.lag():
            nemesis.progress(f"{len(crew.field.missing):,} were not settled, and some are left")
            await _say_why(made, crew, nemesis.progress)
    except (ClientFailed, ServerFailed, TimeoutError) as error:
        report.failure = str(error) or repr(error)
        return False
    finally:
        await crew.leave()
    return True


async def _say_why(made: World, crew: SoakClients, progress: Callable[[str], None]) -> None:
    """Something is left: what each gateway says of it; and have the gateways write down what their
    tasks wait for."""
    for gateway in made.gateways:
        said = await crew.description(gateway.door)
        partitions = said.pop("partitions")
        progress(f"{gateway.name}: {said}")
        for one in partitions:
            if one["lag"] or one["owner"]:
                progress(f"    {one}")
        os.kill(gateway.server.pid, signal.SIGUSR1)
    await crew.wait(1.0)


async def _drain(crew: SoakClients, progress: Callable[[str], None], *, healthy: bool) -> None:
    """Have a backlog while nobody consumes, then let it drain while nobody publishes. First
    everything is settled: what a consumer that is gone holds waits until that is known, 30 s with
    pulls that go to another gateway now, and that is not what is measured."""
    shared = crew.field
    shared.log.world("publishing", goes_on=False)
    shared.producing = False
    began = time.monotonic()
    while lag := await crew.lag():
        await crew.wait(0.1)
        if time.monotonic() - began > DRAIN_TIMEOUT_S:
            raise TimeoutError(f"{lag:,} were not settled {DRAIN_TIMEOUT_S:.0f} s later")
    progress(f"all is settled {time.monotonic() - began:.1f} s later")
    swallowed = set(shared.missing)  # their acks count, and a fault took the answers
    shared.producing = True
    shared.log.world("publishing", goes_on=True)
    crew.consuming(goes_on=False)
    await crew.flowing(BACKLOG, DRAIN_TIMEOUT_S)
    shared.log.world("publishing", goes_on=False)
    shared.producing = False
    await crew.wait(1.0)
    waiting = shared.missing - swallowed
    left = int(len(waiting) * (1 - DRAINED_SHARE))
    crew.consuming(goes_on=True)
    began = time.monotonic()
    while len(waiting & shared.missing) > left and time.monotonic() - began < DRAIN_TIMEOUT_S:
        await crew.wait(0.01)
    seconds, drained = time.monotonic() - began, len(waiting - shared.missing)
    shared.log.world("drained", messages=drained, seconds=seconds, healthy=healthy)
    progress(f"drained {drained:,} in {seconds:.1f} s: {drained / seconds:,.0f}/s")
    shared.producing = True
    shared.log.world("publishing", goes_on=True)
    await crew.all_flowing(1, HEALED_TIMEOUT_S)


def _keep(folder: Path, log: Path, made: World) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("rb") as plain, gzip.open(folder / "history.jsonl.gz", "wb", 4) as packed:
        shutil.copyfileobj(plain, packed)
    servers = [gateway.server for gateway in made.gateways]
    for server in servers + [node.server for node in made.metadata]:
        if server.log_path.exists():
            shutil.copy(server.log_path, folder)
    for node in made.servers:
        shutil.copy(node.log, folder / f"{node.folder.name}.log")
    for host in made.manager_hosts:
        if (made.folder / f"{host.name}.log").exists():
            shutil.copy(made.folder / f"{host.name}.log", folder)
