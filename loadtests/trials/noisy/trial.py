"""A queue is flooded at three times its capacity; another one must not pay for it.

Queue `steady` has two hundred messages a second on a schedule, published, pushed and acked over
connections of its own. The latency of a message counts from its due time. Queue `flood` is flooded
by another process, first as fast as it takes messages (its capacity), then at three times that.
Calm and flooded stretches take turns in one run. The verdict is the median of the rounds' ratios,
because a moment in which the machine itself stops spoils only one of them.

The broker has cores of its own, its clients have others (busy.apart). The flooder runs once with
ordinary priority, and once with the time that the steady queue's clients leave (SCHED_IDLE), as if
it were on a machine of its own. The difference between the two is the machine's sharing of cores
between the flooder and those clients, not the broker's doing.

At the end no process floods, but two processes are as busy as broker and flooder were. Their effect
on the steady queue is the machine's own, and no broker could have a smaller one on that machine.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from typing import Any, Final

from loadtests.clients.load import Client, Consumer, LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.faults.busy import IDLE, apart, beside, give_way
from loadtests.histogram import Histogram
from loadtests.server import Process
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker, failed, uncollected, until

SECONDS: Final = 10.0
ROUNDS: Final = 7
"""Number of rounds. They are many and short, because a machine shared with others may be half as
fast a minute later, and the verdict is the median."""
RATE: Final = 200
TIMES: Final = 3
RATIO_MAX: Final = 1.5
_TICK_S: Final = 0.0005
_WARM_UP_S: Final = 1.0
_WAIT_S: Final = 60.0
_STEP_S: Final = 0.1
"""Seconds for which the steady queue runs at a time until the flood has begun."""
_BEYOND_S: Final = 0.3
"""The least time that the flood goes on after the flooded stretch."""


@dataclass(frozen=True)
class Plan:
    """Flood one queue at three times its capacity; another queue must not become slower.

    The other queue's p99 is compared with its p99 in calm stretches of the same run. Takes about
    seven minutes.
    """

    seconds: float = options.seconds(SECONDS, "Duration of each stretch, calm or flooded.")
    rounds: int = options.whole(
        ROUNDS, "Rounds of a calm and a flooded stretch, for each kind of flooder.", 1, 100
    )
    settle_s: float = 2.0
    """Seconds at the beginning of a flooded stretch that are not measured."""
    nices: tuple[int, ...] = (0, IDLE)
    """The priority of each kind of flooder: a nice value, or IDLE. The verdict uses the last
    one."""


class _Steady:
    """The producer and the consumer of the queue `steady`, which must not be slowed down."""

    def __init__(self, url: str) -> None:
        self.url = url
        shape, random = Shape(), Random(3)
        self.latency = Histogram()
        self.producer = Producer("steady", "steady", shape, 1, random)
        self.consumer = Consumer("steady-consumer", shape, self.latency, random)
        self.published = 0

    @property
    def clients(self) -> list[Client]:
        """All clients, so that their failures are noticed."""
        return [self.producer, self.consumer]

    async def open(self, rest: Rest) -> None:
        """Create the queue `steady` and its group, and connect its producer and its consumer."""
        await rest.call("PUT", "/v1/queues/steady", {"partitions": 4})
        await rest.call("PUT", "/v1/queues/steady/groups/g", {})
        await self.producer.open(self.url, None, self.producer.name)
        await self.consumer.open(self.url, None)
        await self.consumer.subscribe("steady", "g")

    async def run(self, seconds: float) -> None:
        """Publish to the queue `steady` for `seconds` on a fixed schedule, and wait until
        everything is settled. Raises LoadFailed."""
        began_ns, sent = time.monotonic_ns(), 0
        while sent < seconds * RATE:
            failed(self.clients)
            due = (time.monotonic_ns() - began_ns) * RATE // 1_000_000_000
            while sent <= due and sent < seconds * RATE:
                self.producer.publish(stamp(began_ns + sent * 1_000_000_000 // RATE))
                sent += 1
            self.producer.flush()
            await asyncio.sleep(_TICK_S)
        self.published += sent
        await until(self.is_done, "the steady queue", _WAIT_S, lambda: self.clients)

    def is_done(self) -> bool:
        """Whether all published messages are settled."""
        return self.consumer.settled >= self.published


async def _flooder(
    url: str, seconds: float, rate: int, nice: int, begun: asyncio.Event
) -> dict[str, Any]:
    """Run a flooder and return its counts. `begun` is set when it floods, which may take seconds at
    a low priority, and when it ends. Raises LoadFailed if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.trials.noisy.flooder", url, "flood", str(seconds),
        str(rate),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        preexec_fn=partial(give_way, nice),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        begun.set()
        out, errors = await process.communicate()
    finally:
        begun.set()
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise LoadFailed(f"the flooder failed: {errors.decode()[-400:]}")
    found: dict[str, Any] = json.loads(out)
    return found


@dataclass
class _Flood:
    """The effect of one kind of flooder on the steady queue."""

    nice: int
    calm: Histogram
    flooded: Histogram
    ratios: list[float]


async def noisy(plan: Plan, progress: Progress) -> Finding:
    """Measure the flooded queue's capacity, then the steady queue beside each kind of flooder.
    Raises LoadFailed or ServerFailed if the trial cannot end normally."""
    finding = Finding("noisy")
    async with broker("noisy") as server:
        rest = Rest(server.url)
        steady = _Steady(server.url)
        await rest.call("PUT", "/v1/queues/flood", {"partitions": 16})
        await steady.open(rest)
        with uncollected(), apart(server.pid) as cores:
            await steady.run(min(_WARM_UP_S, plan.seconds))
            capacity = await _flooder(server.url, plan.seconds, 0, 0, asyncio.Event())
            rate = int(capacity["accepted_per_s"]) * TIMES
            progress(f"noisy: the flooded queue takes {rate // TIMES:,} messages/s")
            total = int(capacity["accepted"])
            floods = []
            for nice in plan.nices:
                flood = _Flood(nice, Histogram(), Histogram(), [])
                for _ in range(plan.rounds):
                    done = await _round(steady, flood, plan, rate, progress)
                    total += int(done["accepted"])
                    _count(finding, done)
                floods.append(flood)
            machine = await _machine(steady, plan, floods[-1], server.pid)
            progress(f"noisy: {machine:.2f} x where as many processes are busy and nobody floods")
        rest.close()
        described = await rest.call("GET", "/v1/queues/flood")
        rest.close()
        finding.figures["server_rss_mib"] = Process(server.pid).rss_bytes() // 1_048_576
        for client in steady.clients:
            client.close()
    stored = described["counters"]["published"]
    finding.figures["machine_p99_ratio"] = round(machine, 2)
    finding.conditions["cores"] = cores
    _conclude(finding, plan, floods, rate // TIMES)
    _check(finding, steady, total, stored)
    return finding


async def _round(
    steady: _Steady, flood: _Flood, plan: Plan, rate: int, progress: Progress
) -> dict[str, Any]:
    """Do one round of a calm stretch and a flooded one, and add its results to `flood`. Return the
    flooder's counts."""
    steady.latency.clear()
    await steady.run(plan.seconds)
    calm = Histogram()
    calm.add(steady.latency)
    begun = asyncio.Event()
    seconds = plan.settle_s + plan.seconds + max(_BEYOND_S, plan.seconds / 20)
    flooding = asyncio.create_task(_flooder(steady.url, seconds, rate, flood.nice, begun))
    while not begun.is_set():
        await steady.run(_STEP_S)
    await steady.run(plan.settle_s)
    steady.latency.clear()
    await steady.run(plan.seconds)
    flooded = Histogram()
    flooded.add(steady.latency)
    done = await flooding
    flood.calm.add(calm)
    flood.flooded.add(flooded)
    ratio = flooded.percentile(99) / max(1, calm.percentile(99))
    flood.ratios.append(round(ratio, 2))
    progress(
        f"noisy: p99 {calm.percentile(99) / 1e6:.1f} ms calm, "
        f"{flooded.percentile(99) / 1e6:.1f} ms flooded ({_named(flood.nice)}): {ratio:.2f} x; "
        f"{done['accepted_per_s']:,} messages/s of the flood were taken"
    )
    return done


async def _machine(steady: _Steady, plan: Plan, flood: _Flood, broker: int) -> float:
    """Return the ratio of p99 beside two merely busy processes to p99 in calm stretches."""
    async with beside(2 * plan.seconds + 10, (1.0, 0), (1.0, flood.nice), broker=broker):
        await steady.run(min(_WARM_UP_S, plan.seconds))
        steady.latency.clear()
        await steady.run(plan.seconds)
    return steady.latency.percentile(99) / max(1, flood.calm.percentile(99))


def _named(nice: int) -> str:
    return "idle" if nice == IDLE else f"nice{nice}"


def _count(finding: Finding, done: dict[str, Any]) -> None:
    figures = finding.figures
    for name in ("offered", "held_back", "accepted"):
        figures[f"flood_{name}"] = int(str(figures.get(f"flood_{name}", 0))) + int(done[name])
    for code, count in done["refused"].items():
        figures[f"flood_{code}"] = int(str(figures.get(f"flood_{code}", 0))) + int(count)
    figures["flood_told_not_to_retry"] = bool(
        figures.get("flood_told_not_to_retry") or done["is_final"]
    )


def _conclude(finding: Finding, plan: Plan, floods: list[_Flood], capacity: int) -> None:
    finding.conditions |= {
        "steady_per_s": RATE, "stretch_s": plan.seconds, "rounds": plan.rounds, "times": TIMES,
    }  # fmt: skip
    finding.figures["flood_capacity_per_s"] = capacity
    for flood in floods:
        for name, latency in (("calm", flood.calm), ("flooded", flood.flooded)):
            for percent in (50, 99):
                figure = f"{_named(flood.nice)}_{name}_p{percent}_ms"
                finding.figures[figure] = round(latency.percentile(percent) / 1e6, 2)
        ratio = flood.flooded.percentile(99) / max(1, flood.calm.percentile(99))
        finding.figures[f"{_named(flood.nice)}_p99_ratio"] = round(ratio, 2)
        finding.figures[f"{_named(flood.nice)}_p99_ratios"] = flood.ratios
    last = floods[-1]
    ratio = median(last.ratios)
    finding.check(
        f"the steady queue's p99 is at most {RATIO_MAX} x the calm one "
        f"(the flooder is on cores that others leave: {_named(last.nice)})",
        ratio <= RATIO_MAX, f"{ratio:.2f} x, of {last.ratios}", timed=True,
    )  # fmt: skip


def _check(finding: Finding, steady: _Steady, accepted: int, stored: int) -> None:
    figures = finding.figures
    finding.check(
        "every message of the steady queue was published, pushed and settled, without an error",
        steady.is_done() and steady.consumer.redelivered == 0,
        f"{steady.consumer.settled} of {steady.published}",
    )
    turned_away = sum(
        int(str(count)) for name, count in figures.items()
        if name.startswith("flood_") and name not in
        ("flood_accepted", "flood_offered", "flood_capacity_per_s", "flood_told_not_to_retry")
    )  # fmt: skip
    finding.check(
        "the flood came: messages beyond the queue's capacity were refused or held back",
        turned_away > 0, f"{turned_away:,} messages", timed=True,
    )  # fmt: skip
    finding.check(
        "the flooder gets refusals that may be tried again",
        not figures["flood_told_not_to_retry"],
        {name: count for name, count in figures.items() if name.startswith("flood_")},
    )
    finding.check(
        "what was accepted of the flood is stored: not one message more or less",
        accepted == stored, f"{accepted:,} accepted, {stored:,} stored",
    )  # fmt: skip
