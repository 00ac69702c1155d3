"""Many attackers at once against one broker: its memory stays, and a well-behaved client, the
witness, hardly notices (P9, P12).

The attacks: slow headers, handshakes and bodies; a flood of headers; frames of 16 MiB; compression
bombs; readers that never read; floods of subscribes, credit and tickets. One process runs all
attackers, in place of other machines. The broker has cores of its own, and attackers and witness
share the other cores (busy.apart). At first the attackers get only the time that the witness leaves
of those (SCHED_IDLE), which shows the broker's handling of attacks. At the end of the last round
they run with nice 19, which also shows how the machine shares its cores; that is printed, not
judged.

Calm and attacked phases take turns, each attack with clients of its own. The verdict is the median
of the rounds' ratios, because a moment in which the machine itself stops spoils only one of them.
At the end no client attacks, but two processes are as busy as broker and attackers were. Their
effect on the witness (p99_ratio_machine) is the machine's own, and no broker could have a
smaller one on that machine.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.faults.busy import IDLE, apart, beside
from loadtests.histogram import Histogram
from loadtests.server import Process, Server, ServerFailed, raise_file_limit
from loadtests.trials import options
from loadtests.trials.hostile.clients import AT_NICE_19, QUEUE, Attack, arguments
from loadtests.trials.trial import MIB, Finding, Memory, Progress, broker, uncollected
from loadtests.trials.witness import Witness

SECONDS: Final = 20.0
ROUNDS: Final = 3
WITNESS_RATE: Final = 200.0
GROWTH_MAX: Final = 256 * MIB
RATIO_MAX: Final = 2.0
_STOP_S: Final = 60.0
_LEAVING_S: Final = 3.0
"""The longest pause after an attack, in seconds. Thousands of sockets close at once then, so this
phase is neither attacked nor calm."""
_ARRIVING_S: Final = 60.0
_UNEXPECTED: Final = re.compile(rb"Traceback|ERROR|CRITICAL|unexpected|exception", re.IGNORECASE)
ANSWERS: Final = {
    "slow header": {"408", "closed"},
    "slow handshake": {"408", "closed"},
    "slow body": {"408", "closed"},
    "1 MiB of headers": {"431", "closed"},
    "16 MiB frame": {"4509"},
    "compressed frame": {"1002"},
    "hoarded frame": {"overloaded"},
    "hoarded body": {"408", "overloaded"},
    "gzip body": {"400", "413", "415"},
    "tickets": {"200", "201", "429"},
}
"""The allowed answers to each attack. An answer is lost if a client goes on sending for longer than
the broker lingers; then the socket was just closed."""


@dataclass(frozen=True)
class Plan:
    """Run many attacks at once. Memory must not grow, and a good client must hardly notice.

    The attacks are 1,000 sockets that send byte by byte, 64 MiB of headers, frames of 16 MiB,
    compression bombs, 1,000 readers that never read, and floods of subscribes, credit and tickets.
    """

    seconds: float = options.seconds(
        SECONDS, "Duration of an attack. The calm before and after it is half as long each."
    )
    rounds: int = options.whole(
        ROUNDS, "Rounds of calm and attack. The median of their ratios is judged.", 1, 100
    )
    nice_seconds: float | None = None
    """Seconds under attack with nice 19, in the last round. None: half of `seconds`."""
    apart: bool = True
    """Whether broker and clients have cores of their own. False suits machines with other work:
    attackers on the one core left to them may get so little time that they miss their answers."""
    attack: Attack = field(default_factory=Attack)


class _Trial:
    """A run on a server of its own."""

    def __init__(self, server: Server, plan: Plan, progress: Progress) -> None:
        self._server = server
        self._plan = plan
        self._progress = progress
        self.memory = Memory(Process(server.pid))
        self.witness = Witness(server.url, WITNESS_RATE)
        self.latency: dict[str, Histogram] = {}
        self.phases: defaultdict[str, float] = defaultdict(float)
        """Seconds of each phase, all rounds together."""
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        """CPU seconds of the broker in each phase."""
        self.ratios: list[float] = []
        """For each round, the ratio of the witness's p99 latency during the attack to that before
        the attack."""
        self.before = self.highest = self.after = 0
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.witnessed = 0

    async def run(self) -> None:
        """Run all rounds of calm and attack, then the phase with two busy processes and no attack.
        Raises LoadFailed or ServerFailed."""
        rest = Rest(self._server.url)
        await rest.call("PUT", f"/v1/queues/{QUEUE}", {"partitions": 4, "retention_s": 60})
        rest.close()
        await self.witness.open()
        await self._watched(min(2.0, self._plan.seconds / 4))
        self.witness.measured()
        async with self.memory.watched():
            for number in range(self._plan.rounds):
                before = await self._phase("before", self._plan.seconds / 2)
                self.before = self.before or self.memory.highest(0.0)
                began = time.monotonic()
                is_last = number == self._plan.rounds - 1
                nice_seconds = self._plan.nice_seconds
                if nice_seconds is None:
                    nice_seconds = self._plan.seconds / 2
                during = await self._attacked(nice_seconds if is_last else 0.0)
                self.highest = max(self.highest, self.memory.highest(began))
                self.ratios.append(during.percentile(99) / max(1, before.percentile(99)))
                await self._phase("leaving", min(_LEAVING_S, self._plan.seconds / 4))
            await self._phase("after", self._plan.seconds / 2)
            self.after = self.memory.now()
            # The cores' own effect with as many busy processes, without a byte of an attack.
            share, seconds = min(1.0, self.cpu("during")), self._plan.seconds / 4
            busy = ((share, 0), (1.0, IDLE))
            async with beside(2 * seconds + 10, *busy, broker=self._server.pid):
                await self._watched(min(1.0, seconds))
                self.witness.measured()
                await self._phase("machine", seconds)
        self.witnessed = await self.witness.finish()

    def cpu(self, phase: str) -> float:
        """Return the broker's CPU time in a phase, as a share of one core."""
        return self.cpu_s[phase] / self.phases[phase]

    async def _phase(
        self, name: str, seconds: float, until: "asyncio.Task[bytes] | None" = None
    ) -> Histogram:
        began, process = time.monotonic(), Process(self._server.pid)
        cpu_s = process.cpu_s()
        await self._watched(seconds, until)
        took_s, cpu_s = time.monotonic() - began, process.cpu_s() - cpu_s
        self.phases[name] += took_s
        self.cpu_s[name] += cpu_s
        latency = self.witness.measured()
        self.latency.setdefault(name, Histogram()).add(latency)
        self._progress(
            f"hostile: {name}: p50 {_ms(latency, 50):.2f} ms, p99 {_ms(latency, 99):.2f} ms, "
            f"{cpu_s / took_s:.0%} of a core, {self.memory.now() / MIB:.0f} MiB"
        )
        return latency

    async def _watched(self, seconds: float, until: "asyncio.Task[bytes] | None" = None) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (until and until.done()):
            await asyncio.sleep(min(left, 0.25))
            self.witness.check()
            if not self._server.running():
                raise ServerFailed(f"the broker ended:\n{self._server.log_tail()}")

    async def _attacked(self, nice_seconds: float) -> Histogram:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.trials.hostile.clients", self._server.url,
            arguments(self._plan.attack), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=MIB,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            arrived = asyncio.create_task(process.stdout.readline())
            await self._phase("arriving", _ARRIVING_S, arrived)
            if not arrived.done() or not arrived.result():
                raise LoadFailed(f"the hostile clients were not there within {_ARRIVING_S:.0f} s")
            during = await self._phase("during", self._plan.seconds)
            if nice_seconds:
                assert process.stdin is not None
                process.stdin.write(f"{AT_NICE_19}\n".encode())
                await self._phase("at_nice_19", nice_seconds)
            async with asyncio.timeout(_STOP_S):
                said, _ = await process.communicate(b"\n")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        told: dict[str, Any] = json.loads(said)
        self.outcomes += Counter(told["outcomes"])
        self.problems += told["problems"]
        return during

    def close(self) -> None:
        """Disconnect the witness."""
        self.witness.close()


def _ms(latency: Histogram, percent: float) -> float:
    return latency.percentile(percent) / 1e6


def _cores(broker_pid: int, plan: Plan) -> AbstractContextManager[str]:
    return apart(broker_pid) if plan.apart else nullcontext("shared by all")


async def hostile(plan: Plan, progress: Progress) -> Finding:
    """Run all attacks at once for `plan.seconds` in each round, between calm phases. Raises
    ServerFailed if the broker ended; RuntimeError if too few files may be open."""
    raise_file_limit(plan.attack.slow + plan.attack.readers + 1000)
    finding = Finding("hostile")
    failure = stopped = cores = ""
    async with broker("hostile") as server:
        trial = _Trial(server, plan, progress)
        try:
            with uncollected(), _cores(server.pid, plan) as cores:
                await trial.run()
        except LoadFailed as error:
            failure = str(error)
        finally:
            trial.close()
        began = time.monotonic()
        try:
            await asyncio.to_thread(server.wait_ready, 15.0)
            await asyncio.to_thread(server.stop)
        except ServerFailed as error:
            stopped = str(error)
        finding.figures["seconds_stop"] = round(time.monotonic() - began, 1)
        log, code = server.log_path.read_bytes(), server.exit_code()
    _judge(finding, trial, failure)
    found = _UNEXPECTED.search(log)
    finding.check(
        "nothing unexpected in the broker's log", found is None,
        log[max(0, found.start() - 500) :][:3000].decode(errors="replace") if found else "nothing",
    )  # fmt: skip
    finding.check(
        "the broker answers afterwards, and stops cleanly", not stopped and code == 0,
        stopped or code,
    )  # fmt: skip
    finding.conditions = {
        "cores": cores, **vars(plan.attack), "seconds": plan.seconds, "rounds": plan.rounds,
        "witness_per_s": WITNESS_RATE,
        "hostile_clients": "a process of their own"
        + (", SCHED_IDLE; at_nice_19: nice 19" if plan.attack.leaves_cores else ""),
    }  # fmt: skip
    return finding


def _judge(finding: Finding, trial: _Trial, failure: str) -> None:
    growth = trial.highest - trial.before
    for name, latency in trial.latency.items():
        finding.figures[f"p50_{name}_ms"] = round(_ms(latency, 50), 2)
        finding.figures[f"p99_{name}_ms"] = round(_ms(latency, 99), 2)
        finding.figures[f"cpu_{name}"] = round(trial.cpu(name), 2)
    finding.figures |= {
        "rss_before_mib": round(trial.before / MIB, 1),
        "rss_growth_mib": round(growth / MIB, 1),
        "rss_after_mib": round(trial.after / MIB, 1),
        "witnessed": trial.witnessed,
        **{f"seconds_{name}": round(seconds, 1) for name, seconds in trial.phases.items()},
        **{name.replace(" ", "_"): count for name, count in sorted(trial.outcomes.items())},
    }
    finding.check(
        "P1, P3: the witness lost nothing, and kept each key's order",
        not failure, failure or f"{trial.witnessed:,} messages",
    )  # fmt: skip
    odd = [
        f"{outcome} ({count})"
        for outcome, count in trial.outcomes.items()
        for kind, _, what in [outcome.partition(": ")]
        if kind in ANSWERS and what not in ANSWERS[kind]
    ]
    silent = [kind for kind in ANSWERS if not any(kind in one for one in trial.outcomes)]
    finding.check(
        "P12: each of them was given its answer", not odd and not trial.problems,
        [*odd, *trial.problems] or (f"all that was over; not yet: {silent}" if silent else "all"),
    )  # fmt: skip
    finding.check(
        f"P9: memory grows by at most {GROWTH_MAX // MIB} MiB",
        growth <= GROWTH_MAX, f"{growth / MIB:.1f} MiB",
    )  # fmt: skip
    if trial.ratios:
        ratio, ratios = median(trial.ratios), ", ".join(f"{one:.2f}" for one in trial.ratios)
        finding.check(
            f"the others' p99 is at most {RATIO_MAX:g} times what it was",
            ratio <= RATIO_MAX, f"{ratio:.2f} x, of {ratios}", timed=True,
        )  # fmt: skip
        before = max(_ms(trial.latency["before"], 99), 0.001)
        for name in trial.latency.keys() & {"during", "at_nice_19", "machine"}:
            finding.figures[f"p99_ratio_{name}"] = round(_ms(trial.latency[name], 99) / before, 2)
