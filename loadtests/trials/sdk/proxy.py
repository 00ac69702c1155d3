"""Minutes of a bad network under load: programs that use the SDK must not notice.

Producers, a group of consumers and readers go through a proxy. At random, it delays, trickles,
holds, swallows, cuts and half-opens their connections, refuses them, and blocks WebSockets. No
fault lasts longer than a session outlives its transport, and leases are longer than the whole run.
So no message may go twice to a handler, and none may be missing or out of order.
"""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Final

from loadtests.faults.proxy import Proxy
from loadtests.faults.random_faults import RandomFaults
from loadtests.server import SERVE
from loadtests.trials import options
from loadtests.trials.sdk.programs import KEYS, Consuming, Following, Producing, sleeping
from loadtests.trials.sdk.trial import SdkTrial, examine
from loadtests.trials.trial import Finding, Progress, broker

SECONDS: Final = 300.0
RATE: Final = 1_000
"""Messages a second, of all producers."""
PRODUCERS: Final = 3
CONSUMER: Final = "consumer"
CONSUMERS: Final = 4
LEASE_S: Final = 600.0
OUTAGE_S: Final = 4.0
HEARTBEAT_S: Final = 3.0
"""The broker's heartbeat, in seconds. A client that receives nothing for twice this time closes its
connection and opens another."""
TOLD_EVERY_S: Final = 15.0
KINDS_MIN_SECONDS: Final = 60.0
"""The least duration, in seconds, of a run in which a client must have fallen back to long poll."""
_WORK_S: Final = (0.0, 0.05)
_CONCURRENCY: Final = 50


@dataclass(frozen=True)
class Plan:
    """Run programs with the SDK behind a proxy that cuts, holds, swallows and delays at random.

    There are three producers, a group of four consumers, and three readers. No handler may get a
    message twice, none may be missing, and each key must be in order. This is judged from the raw
    frames, and from what the programs saw.
    """

    seconds: float = options.seconds(SECONDS, "Duration of the bad network.")
    seed: int = options.seed()
    rate: int = RATE
    outage_s: float = OUTAGE_S
    acks: bool = True
    """False: consumers that never ack, the negative control."""


async def proxied(plan: Plan, progress: Progress) -> Finding:
    """Run the programs behind the bad network, then drain and judge. Raises ProgramFailed,
    LoadFailed or ServerFailed if the trial cannot end normally."""
    random = Random(plan.seed)
    command = (*SERVE, "--heartbeat-s", f"{HEARTBEAT_S:g}")
    async with (
        broker("proxy", command=command) as server,
        Proxy(server.port, random=Random(plan.seed + 1)) as proxy,
    ):
        trial = SdkTrial(server.url, server.data_dir.with_name("frames.jsonl"), progress, LEASE_S)
        faults = RandomFaults(proxy, random, outage_s=plan.outage_s)
        try:
            await trial.prepare(partitions=12)
            await _cast(trial, proxy.url, plan)
            began = time.monotonic()
            await _endure(trial, faults, plan)
            rate = len(trial.book.stored) / (time.monotonic() - began)
            drained = await trial.drain()
        finally:
            await trial.leave()
        evidence = await asyncio.to_thread(trial.evidence, drained=drained)
    finding, counts = Finding("proxy"), trial.clients.counts
    finding.figures = {
        "messages_per_s": round(rate),
        "connections": proxy.counts["connections"],
        **{name: counts[name] for name in sorted(counts)},
        "faults": sum(faults.counts.values()),
        **{f"  {name}": faults.counts[name] for name in sorted(faults.counts)},
        "acks_confirmed_to_handlers": trial.confirmed,
    }
    examine(finding, evidence, again_allowed=False)
    finding.check(
        "it was a bad network: connections were lost and came back, over both transports",
        counts["resumed"] > 0 and (plan.seconds < KINDS_MIN_SECONDS or counts["fallbacks"] > 0),
        dict(counts),
    )
    places = trial.clients.counts_of(CONSUMER)  # sessions without a place in a group do not linger
    finding.check(
        "the consumers' sessions outlived every fault: none began anew",
        places["resumed"] > 0 == places["begun anew"],
        f"{places['resumed']} resumed, {places['begun anew']} begun anew",
    )
    finding.conditions = {
        "seed": plan.seed, "seconds": plan.seconds, "offered_per_s": plan.rate,
        "producers": PRODUCERS, "consumers": CONSUMERS, "readers": 3, "lease_s": LEASE_S,
        "outage_s": plan.outage_s, "heartbeat_s": HEARTBEAT_S,
    }  # fmt: skip
    return finding


async def _cast(trial: SdkTrial, url: str, plan: Plan) -> None:
    book, connect = trial.book, trial.clients.connect
    for number in range(CONSUMERS):
        random = Random(plan.seed + 10 + number)
        trial.add(
            Consuming(
                f"consumer-{number}", connect(url, who=CONSUMER), book,
                work=sleeping(random, *_WORK_S), concurrency=_CONCURRENCY, random=random,
                acks=plan.acks,
            )
        )  # fmt: skip
    some = [f"k{number}" for number in range(0, KEYS, 20)]
    for name, keys in (("reader-0", []), ("reader-1", []), ("reader-2", some)):
        trial.add(Following(name, connect(url), book, keys=keys))
    await trial.ready()  # before the first fault: a first connect is not tried again
    for number in range(PRODUCERS):
        rate, random = plan.rate / PRODUCERS, Random(plan.seed + 100 + number)
        client = connect(url)
        trial.add(Producing(f"p{number}", client, book, rate_per_s=rate, random=random))
    await trial.ready()


async def _endure(trial: SdkTrial, faults: RandomFaults, plan: Plan) -> None:
    """Cause the faults, and report progress meanwhile."""
    trouble = asyncio.create_task(faults.run(plan.seconds))
    began = told_at = time.monotonic()
    try:
        while not trouble.done():
            await trial.wait(0.1)
            if time.monotonic() - told_at >= TOLD_EVERY_S:
                told_at, counts = time.monotonic(), trial.clients.counts
                trial.progress(
                    f"proxy: {told_at - began:.0f} of {plan.seconds:.0f} s, "
                    f"{len(trial.book.stored):,} published, {trial.book.left:,} to run, "
                    f"{sum(faults.counts.values())} faults, {counts['reconnects']} reconnects "
                    f"({counts['resumed']} resumed), {counts['fallbacks']} fallbacks, "
                    f"{counts['returns']} returns"
                )
        await trouble
    finally:
        trouble.cancel()
        await asyncio.wait((trouble,))
