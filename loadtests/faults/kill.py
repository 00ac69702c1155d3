"""`kill -9` at random instants: nothing acknowledged may be lost, reordered or given after its ack,
at whatever instant the broker dies."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from loadtests.checker.verdict import Verdict
from loadtests.clients.recorder import RunState
from loadtests.faults.soak_clients import SoakClients, judge_log
from loadtests.server import SERVE, Server

LIFE_S: Final = (0.05, 1.6)
"""Bounds of the time that the broker lives after messages flow again, drawn uniformly."""
RECOVERY_KILL_CHANCE: Final = 0.25
"""Probability that the broker is killed again after a start, at a time within RECOVERY_S."""
RECOVERY_S: Final = (0.0, 0.8)
FLOWING_MESSAGES: Final = 20


@dataclass
class KillReport:
    """The events and findings of a run of kills."""

    seed: int
    cycles: int = 0
    kills: int = 0
    kills_in_recovery: int = 0
    kills_with_commit_under_way: int = 0
    """Number of kills at which producers had unanswered messages."""
    acknowledged: int = 0
    pulled_share: float = 0.0
    """The share of pulls in all confirmed acks."""
    recovery_s_max: float = 0.0
    group_with_missing: object = None
    """The broker's description of the group, if at the end some messages had no confirmed ack and
    the group still had a lag; else None."""
    verdict: Verdict | None = None

    @property
    def ok(self) -> bool:
        """Whether the judge found no violation."""
        return self.verdict is not None and self.verdict.ok

    def fields(self) -> dict[str, object]:
        """Return the report for JSON."""
        return vars(self) | {"verdict": self.verdict and self.verdict.fields()}


async def kill_cycles(
    *,
    seed: int,
    cycles: int,
    messages: int = 0,
    under_way: int = 0,
    command: Sequence[str] = SERVE,
    progress: Callable[[str], None],
    keep: Path | None = None,
) -> KillReport:
    """Kill the broker once or more in each of `cycles` cycles. Go on until `messages` are
    acknowledged and `under_way` kills have met a commit. Then drain and judge.

    `command` runs in place of the shipped server (negative controls). `keep` is a folder for the
    log, which is otherwise removed. Raises ClientFailed or ServerFailed if the run cannot end
    normally.
    """
    folder = Path(tempfile.mkdtemp(prefix="tocsin-kill-"))
    log = (keep or folder) / f"frames-{seed}.jsonl"
    server = Server(folder / "data", command=command, level="warning")
    report = KillReport(seed)
    chance = Random(seed)
    field = RunState(server.url, log, Random(seed + 1))
    crew = SoakClients(field)
    try:
        field.server += 1
        server.spawn()
        await asyncio.to_thread(server.wait_ready)
        await crew.prepare()
        crew.start()
        while (
            report.cycles < cycles
            or field.acknowledged < messages
            or report.kills_with_commit_under_way < under_way
        ):
            await _cycle(server, crew, report, chance)
            if report.cycles % 10 == 0 or report.cycles == cycles:
                progress(
                    f"{report.cycles} of {cycles} cycles, {report.kills} kills "
                    f"({report.kills_with_commit_under_way} with a commit under way, "
                    f"{report.kills_in_recovery} in recovery), {field.acknowledged:,} acknowledged"
                )
        await crew.drain(progress)
        if field.missing and (said := await crew.description()).get("lag"):
            report.group_with_missing = said
    finally:
        await crew.leave()
        server.kill()
    report.acknowledged = field.acknowledged
    report.pulled_share = round(field.consumed["pull"] / max(1, sum(field.consumed.values())), 3)
    progress(f"judging {log.stat().st_size / 1e6:,.0f} MB of frames")
    report.verdict = judge_log(log)
    shutil.rmtree(folder, ignore_errors=True)
    return report


async def _cycle(server: Server, crew: SoakClients, report: KillReport, chance: Random) -> None:
    """Let the broker live, kill it, and perhaps kill it again during recovery."""
    await crew.flowing(FLOWING_MESSAGES)
    await crew.wait(chance.uniform(*LIFE_S))
    report.kills_with_commit_under_way += crew.in_flight > 0
    server.kill()
    report.kills += 1
    while True:
        crew.field.server += 1
        server.spawn()
        if chance.random() >= RECOVERY_KILL_CHANCE:
            break
        await crew.wait(chance.uniform(*RECOVERY_S))
        report.kills_with_commit_under_way += crew.in_flight > 0
        server.kill()
        report.kills += 1
        report.kills_in_recovery += 1
    took_s = await asyncio.to_thread(server.wait_ready)
    report.recovery_s_max = max(report.recovery_s_max, round(took_s, 2))
    report.cycles += 1
