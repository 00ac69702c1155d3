"""A session that is switched repeatedly between WebSocket and long poll in mid-stream.

A consumer and two producers go through a proxy that passes WebSockets or blocks them, in each of
the ways in which proxies do that. At each switch, the consumer's handlers have more than a hundred
unacked deliveries.
"""

import asyncio
import itertools
import time
from dataclasses import dataclass
from random import Random
from typing import Final

from loadtests.faults.proxy import Proxy, Upgrades
from loadtests.trials import options
from loadtests.trials.sdk.clients import Transport
from loadtests.trials.sdk.programs import Consuming, Following, Producing, ProgramFailed, sleeping
from loadtests.trials.sdk.trial import Evidence, SdkTrial, examine
from loadtests.trials.trial import Finding, Progress, broker

SWITCHES: Final = 10
RATE: Final = 1_500
"""Messages a second."""
RATE_MIN: Final = 1_000
UNACKED_MIN: Final = 100
LEASE_S: Final = 60.0
PRODUCERS: Final = 2
CONCURRENCY: Final = 600
WORK_S: Final = (0.12, 0.2)
"""Bounds of a handler's duration; multiplied by the rate, some 240 messages are being handled at a
time."""
CONSUMER: Final = "consumer"
SWITCH_TIMEOUT_S: Final = 90.0
BETWEEN_S: Final = 2.0
"""Seconds after each switch, and before the first one."""
_BLOCKS: Final[tuple[tuple[Upgrades, int], ...]] = (
    ("refuse", 403), ("strip", 0), ("swallow", 0), ("refuse", 400),
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Move a session of the SDK between WebSocket and long poll in mid-stream.

    A proxy keeps WebSockets out (refused, stripped, swallowed) and lets them in again, while more
    than a hundred deliveries are unacked. No message may come twice, be missing, or be out of
    order. This is judged from the raw frames, and from what handlers and readers saw. Takes about
    two minutes.
    """

    switches: int = options.whole(
        SWITCHES, "Number of switches, alternately to long poll and to WebSocket.", 1, 1000
    )
    rate: int = options.whole(RATE, "Messages a second.", 1_000, 20_000)
    seed: int = options.seed()
    between_s: float = BETWEEN_S


class _Switching:
    """A switch that blocks WebSockets and passes them again, and notes the times."""

    def __init__(self, plan: Plan, trial: SdkTrial, proxy: Proxy) -> None:
        self.plan = plan
        self._trial = trial
        self._proxy = proxy
        self._blocks = itertools.cycle(_BLOCKS)
        self._ends = itertools.cycle(("reset", "fin", "within a frame"))
        self.moments: list[int] = []
        """The times of switches, in monotonic nanoseconds."""
        self.took_s: list[float] = []
        self.switched = 0

    async def switch(self, to: Transport) -> None:
        """Switch all clients to the transport `to`, as soon as enough handlers are running. The way
        back is the SDK's own: it tries a WebSocket beside its poll from time to time. Raises
        ProgramFailed after SWITCH_TIMEOUT_S."""
        trial, proxy = self._trial, self._proxy
        while len(trial.book.running) < UNACKED_MIN + UNACKED_MIN // 4:
            await trial.wait(0.01)
        self.moments.append(time.monotonic_ns())
        began = time.monotonic()
        if to == "long-poll":
            proxy.upgrades, status = next(self._blocks)
            proxy.refusal_status = status or proxy.refusal_status
            self._cut(next(self._ends))
        else:
            proxy.upgrades = "pass"
        while any(program.client.transport != to for program in trial.programs):
            await trial.wait(0.02)
            if time.monotonic() - began > SWITCH_TIMEOUT_S:
                raise ProgramFailed(f"no {to} within {SWITCH_TIMEOUT_S:.0f} s")
        self.took_s.append(time.monotonic() - began)
        self.switched += 1

    def _cut(self, how: str) -> None:
        for link in self._proxy.links:
            if how == "within a frame":
                link.cut_after(self._proxy.random.randrange(1, 2_000))
            else:
                link.cut("fin" if how == "fin" else "reset")


async def switch(plan: Plan, progress: Progress) -> Finding:
    """Run the switches under load, then drain and judge. Raises ProgramFailed, LoadFailed or
    ServerFailed if the trial cannot end normally."""
    random = Random(plan.seed)
    async with broker("switch") as server, Proxy(server.port, random=random) as proxy:
        trial = SdkTrial(server.url, server.data_dir.with_name("frames.jsonl"), progress, LEASE_S)
        switching = _Switching(plan, trial, proxy)
        try:
            await trial.prepare(partitions=8)
            rate = await _run(trial, proxy, switching)
            drained = await trial.drain()
        finally:
            await trial.leave()
        evidence = await asyncio.to_thread(
            trial.evidence, drained=drained, moments=switching.moments
        )
    return _finding(evidence, trial, switching, rate)


async def _run(trial: SdkTrial, proxy: Proxy, switching: _Switching) -> float:
    """Do the switches; return the number of messages handled a second."""
    book, connect, random, plan = trial.book, trial.clients.connect, proxy.random, switching.plan
    client = connect(proxy.url, who=CONSUMER)
    trial.add(
        Consuming(
            "consumer",
            client,
            book,
            work=sleeping(random, *WORK_S),
            concurrency=CONCURRENCY,
            random=random,
        )
    )
    trial.add(Following("reader", connect(proxy.url), book))
    await trial.ready()
    began = time.monotonic()
    for number in range(PRODUCERS):
        client, rate = connect(proxy.url), plan.rate / PRODUCERS
        trial.add(Producing(f"p{number}", client, book, rate_per_s=rate, random=random))
    await trial.ready()
    for number in range(plan.switches):
        await trial.wait(plan.between_s)
        to: Transport = "websocket" if number % 2 else "long-poll"
        await switching.switch(to)
        trial.progress(
            f"switch: {number + 1} of {plan.switches}, to {to} ({proxy.upgrades}) within "
            f"{switching.took_s[-1]:.1f} s, {len(book.stored):,} published"
        )
    await trial.wait(plan.between_s)
    return len(book.finished) / (time.monotonic() - began)


def _finding(evidence: Evidence, trial: SdkTrial, switching: _Switching, rate: float) -> Finding:
    finding, plan = Finding("switch"), switching.plan
    counts, moments = trial.clients.counts, evidence.sessions.moments
    unacked = min((moment.unacked for moment in moments), default=0)
    finding.figures = {
        "switches": switching.switched,
        "switch_s_max": round(max(switching.took_s, default=0.0), 2),
        "handled_per_s": round(rate),
        "unacked_at_switch_min": unacked,
        "acks_confirmed_to_handlers": trial.confirmed,
        **{name: counts[name] for name in sorted(counts)},
    }
    examine(finding, evidence, again_allowed=False)
    finding.check(
        f"at each switch at least {UNACKED_MIN} deliveries were unacked (raw frames)",
        len(moments) == plan.switches and unacked >= UNACKED_MIN, f"{unacked} at {len(moments)}",
    )  # fmt: skip
    consumer = trial.clients.counts_of(CONSUMER)
    finding.check(
        "the consumer's session is one: it fell back and returned, and never began anew",
        consumer["fallbacks"] + consumer["returns"] >= plan.switches and not consumer["begun anew"],
        dict(consumer),
    )
    finding.check(
        f"at least {RATE_MIN:,} messages a second were handled",
        rate >= RATE_MIN,
        f"{rate:,.0f}",
        timed=True,
    )
    finding.conditions = {
        "seed": plan.seed, "offered_per_s": plan.rate, "lease_s": LEASE_S, "handler_s": WORK_S,
        "producers": PRODUCERS,
    }  # fmt: skip
    return finding
