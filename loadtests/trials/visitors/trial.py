"""Thousands of consumers that connect, subscribe and are reset at once. The consumer that stays
must hardly notice, and their cost must grow no faster than their number.

A producer publishes on a fixed schedule to a queue of some partitions, and a consumer that stays
acks its messages. Meanwhile visitors come (`loadtests.trials.visitors.process`): one after the
other; the same, each waiting for the answer to its subscribe; or a crowd that subscribes together
and is reset together.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from loadtests.clients.load import Consumer, LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram
from loadtests.server import Process, raise_file_limit
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker, failed, uncollected
from loadtests.trials.visitors.process import GROUP, QUEUE, SHAPES

COUNTS: Final = (1_000, 4_000)
RATE: Final = 100
"""Messages a second, one a frame."""
PARTITIONS: Final = 16
GAP_MAX_S: Final = 1.0
SETTLED_S: Final = 2.0
"""Seconds after the last visitor has gone, after which the group must not count any visitor."""
LINEAR: Final = 2.0
"""The largest ratio of the broker's CPU time per visitor, for many visitors to few."""
_TICK_S: Final = 0.002
_WARM_UP_S: Final = 1.0
_VISIT_S: Final = 400.0
_DRAIN_S: Final = 200.0
_GROUP: Final = f"/v1/queues/{QUEUE}/groups/{GROUP}"


class _Steady(Consumer):
    """The consumer that stays, and the longest gap between its pushes."""

    def __init__(self, waits: Histogram) -> None:
        super().__init__("steady", Shape(), waits, Random(1))
        self._last_ns = time.monotonic_ns()
        self._worst_ns = 0

    def begin(self) -> None:
        """Count gaps from now on, and forget earlier ones."""
        self._last_ns, self._worst_ns = time.monotonic_ns(), 0

    def worst_gap_s(self) -> float:
        """Return the longest gap since `begin`, in seconds; the current one counts."""
        self._worst_ns = max(self._worst_ns, time.monotonic_ns() - self._last_ns)
        return round(self._worst_ns / 1e9, 3)

    def _push(self, data: bytes) -> None:
        self.worst_gap_s()
        self._last_ns = time.monotonic_ns()
        super()._push(data)


class _Run:
    """A broker under load, and its visitors."""

    def __init__(self, url: str, process: Process, rate: int) -> None:
        self._url = url
        self._process = process
        self._rate = rate
        self._rest = Rest(url)
        self._waits = Histogram()
        self._producer = Producer("publisher", QUEUE, Shape(), 1, Random(1))
        self._steady = _Steady(self._waits)
        self._published = 0
        self._offering: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Create the queue and its group, connect the producer and the steady consumer, and begin
        to publish."""
        await self._rest.call("PUT", f"/v1/queues/{QUEUE}", {"partitions": PARTITIONS})
        await self._rest.call("PUT", _GROUP, {})
        await self._producer.open(self._url, None, self._producer.name)
        await self._steady.open(self._url, None)
        await self._steady.subscribe(QUEUE, GROUP)
        self._offering = asyncio.create_task(self._offer())
        await asyncio.sleep(_WARM_UP_S)

    async def _offer(self) -> None:
        began_ns = time.monotonic_ns()
        while True:
            due = (time.monotonic_ns() - began_ns) * self._rate // 1_000_000_000
            while self._published < due:
                self._producer.publish(stamp(began_ns + self._published * 10**9 // self._rate))
                self._published += 1
            self._producer.flush()
            await asyncio.sleep(_TICK_S)

    async def visit(self, count: int, shape: str) -> dict[str, Any]:
        """Let `count` visitors come and go in this shape, and wait until the load's messages are
        settled. Return what was measured meanwhile. Raises LoadFailed."""
        self._waits.clear()
        self._steady.begin()
        began, cpu_s = time.monotonic(), self._process.cpu_s()
        with uncollected():
            await self._visitors(count, shape)
            took_s = time.monotonic() - began
            await asyncio.sleep(SETTLED_S)
            self._rest.close()  # the broker has closed it, because it was idle meanwhile
            consumers = int((await self._rest.call("GET", _GROUP))["consumers"])
            cpu_s = self._process.cpu_s() - cpu_s
            gap_s = self._steady.worst_gap_s()
            await self._drain()
        return {
            "took_s": round(took_s, 2),
            "worst_gap_s": gap_s,
            "worst_wait_s": round(self._waits.maximum / 1e9, 3),
            "consumers_after_2_s": consumers,
            "broker_cpu_ms_per_visitor": round(1000 * cpu_s / count, 2),
        }

    async def _visitors(self, count: int, shape: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.trials.visitors.process", self._url, str(count),
            "--shape", shape,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_VISIT_S):
                if await process.wait():
                    raise LoadFailed("the visitors failed")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _drain(self) -> None:
        """Wait until the steady consumer has settled all messages published so far. Raises
        LoadFailed."""
        published, deadline = self._published, time.monotonic() + _DRAIN_S
        while self._steady.settled < published:
            failed([self._steady, self._producer])
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self._steady.settled} of {published} after {_DRAIN_S:.0f} s")
            await asyncio.sleep(_TICK_S)

    def close(self) -> None:
        """Disconnect, and end the load."""
        if self._offering is not None:
            self._offering.cancel()
        self._rest.close()
        for client in (self._producer, self._steady):
            if hasattr(client, "wire"):
                client.close()


@dataclass(frozen=True)
class Plan:
    """Let thousands of consumers connect, say hello, subscribe, and be reset.

    Reports the worst gap of the consumer that stays, the longest wait of a message for it, the cost
    of a visitor for the broker, and the number of consumers that the group counts two seconds
    later. Does this for visitors that come one after the other, and for a crowd that comes and goes
    together.
    """

    counts: Sequence[int] = options.wholes(
        COUNTS, "Number of visitors; repeatable, for one run after another.", 100, 20_000,
        "--count counts",
    )  # fmt: skip
    rate: int = options.whole(RATE, "Messages a second meanwhile.", 10, 5_000)


async def visitors(plan: Plan, progress: Progress) -> Finding:
    """Run each count, in each shape, on a broker of its own. Raises LoadFailed or ServerFailed if
    the trial cannot end normally."""
    finding = Finding("visitors")
    counts, rate = plan.counts, plan.rate
    raise_file_limit(max(counts) + 500)
    for shape in SHAPES:
        costs = []
        for count in counts:
            async with broker("visitors") as server:
                run = _Run(server.url, Process(server.pid), rate)
                try:
                    await run.begin()
                    seen = await run.visit(count, shape)
                finally:
                    run.close()
            progress(f"visitors: {count}, {shape}: {seen}")
            _judge(finding, count, shape, seen)
            costs.append(seen["broker_cpu_ms_per_visitor"])
        ratio = costs[-1] / max(costs[0], 0.01)
        finding.check(
            f"{shape}: one of {counts[-1]} costs at most {LINEAR:g} x what one of {counts[0]} does",
            ratio <= LINEAR, f"{ratio:.2f} x", timed=True,
        )  # fmt: skip
    finding.conditions = {"messages_per_s": rate, "partitions": PARTITIONS}
    return finding


def _judge(finding: Finding, count: int, shape: str, seen: dict[str, Any]) -> None:
    finding.figures |= {f"{shape}_{count}_{name}": figure for name, figure in seen.items()}
    consumers, gap_s = seen["consumers_after_2_s"], seen["worst_gap_s"]
    finding.check(
        f"{shape} of {count}: two seconds later the group counts one consumer",
        consumers == 1, f"{consumers}",
    )  # fmt: skip
    finding.check(
        f"{shape} of {count}: the steady consumer's worst gap is {GAP_MAX_S:.0f} s at most",
        gap_s <= GAP_MAX_S, f"{gap_s} s", timed=True,
    )  # fmt: skip
