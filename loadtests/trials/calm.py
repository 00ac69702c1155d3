"""The metadata stalls for a minute under load: known queues and groups go on without an error.

Messages are published on a schedule, and pushed, pulled and read. Consumers leave the group and
others join it. A request that needs the metadata (a new queue) is refused in time. When the
metadata answers again, a queue whose creation was refused either exists and accepts messages, or
does not exist.
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from loadtests.clients.load import Client, Consumer, LoadFailed, Producer, Reader, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram
from loadtests.server import Server
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker, failed, uncollected

SECONDS: Final = 60.0
RATE: Final = 1_000
BROKER: Final = (str(Path(__file__).parents[2] / "tests" / "system" / "stalling.py"),)
"""Arguments of Python that run a broker whose metadata can stall. That broker is no part of the
product, so the trial needs a checkout."""
REFUSED_WITHIN_S: Final = 6.0
"""The longest time until a request for a new queue is refused, in seconds: the deadline of
docs/protocol.md, and a margin for a busy machine."""
CHURN_S: Final = 3.0
_ASK_S: Final = 1.0
_CONSUMERS: Final = 3
_TICK_S: Final = 0.001
_WAIT_S: Final = 60.0
_QUEUE: Final = "/v1/queues/calm"


@dataclass(frozen=True)
class Plan:
    """Stall the metadata under load. Known queues and groups must go on without an error.

    Consumers leave and join, a script pulls, a reader reads. A new queue is refused in time. Needs
    a checkout, because the broker that stalls belongs to the tests.
    """

    seconds: float = options.seconds(SECONDS, "How long the metadata stalls.")
    rate: int = options.whole(RATE, "Messages a second.", 10, 10_000)
    before_s: float = 10.0


class _Crew:
    """The clients that must not notice the stall."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._url = server.url
        self._rate = plan.rate
        self._random = Random(5)
        self._shape = Shape()
        self.latency = Histogram()
        self.read = 0
        self.producer = Producer("calm", "calm", self._shape, 1, self._random)
        self.reader = Reader("calm-reader", self._shape, self._was_read)
        self.consumers: list[Consumer] = []
        self.left: list[Consumer] = []
        self.published = 0
        self.lag = -1
        """The lag of the group `workers` by the broker's last answer in `finish`; -1 before."""
        self.joins = 0
        self.pulled = 0
        self.refused: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.made: list[str] = []
        """Names of the queues that were requested during the stall, refused or not."""

    def _was_read(self, messages: int, latency_ns: int) -> None:
        self.read += messages

    @property
    def clients(self) -> list[Client]:
        """All WebSocket clients, those that have left included, so that their failures are
        noticed."""
        return [self.producer, self.reader, *self.consumers, *self.left]

    async def open(self) -> None:
        """Create queue and groups, and connect the first clients."""
        rest = Rest(self._url)
        await rest.call("PUT", _QUEUE, {"partitions": 12, "retention_s": 3600})  # for the reader
        for group in ("workers", "pulls"):
            await rest.call("PUT", f"{_QUEUE}/groups/{group}", {})
        await self._pull(rest)
        rest.close()
        await self.producer.open(self._url, None, self.producer.name)
        await self.reader.open(self._url, None)
        await self.reader.subscribe("calm")
        for _ in range(_CONSUMERS):
            await self._join()

    async def _join(self) -> None:
        consumer = Consumer(f"c{self.joins}", self._shape, self.latency, self._random)
        self.joins += 1
        await consumer.open(self._url, None)
        self.consumers.append(consumer)
        await consumer.subscribe("calm", "workers")

    async def _leave(self) -> None:
        """Disconnect one consumer; its unacked messages come again."""
        consumer = self.consumers.pop(0)
        self.left.append(consumer)
        consumer.close()

    async def publish(self, seconds: float) -> None:
        """Publish for `seconds` on a fixed schedule. Raises the failure of any client."""
        began_ns, sent = time.monotonic_ns(), 0
        total = int(seconds * self._rate)
        while sent < total:
            failed(self.clients)
            due = (time.monotonic_ns() - began_ns) * self._rate // 1_000_000_000
            while sent <= due and sent < total:
                self.producer.publish(stamp(began_ns + sent * 1_000_000_000 // self._rate))
                sent += 1
            self.producer.flush()
            await asyncio.sleep(_TICK_S)
        self.published += total

    async def churn(self, until_s: float) -> None:
        """Every CHURN_S, let a consumer join and the oldest one leave, until the monotonic time
        `until_s`."""
        while time.monotonic() < until_s:
            await asyncio.sleep(min(CHURN_S, max(0.1, until_s - time.monotonic())))
            await self._join()
            await self._leave()

    async def pull(self, until_s: float) -> None:
        """Pull and ack over HTTP like a script, until the monotonic time `until_s`. Raises
        LoadFailed if an ack is stale."""
        rest = Rest(self._url)
        while time.monotonic() < until_s:
            self.pulled += await self._pull(rest)
        rest.close()

    async def _pull(self, rest: Rest) -> int:
        pull = {"messages_max": 100, "wait_s": 1}
        said = await rest.call("POST", f"{_QUEUE}/groups/pulls/pull", pull)
        receipts = [message["receipt"] for message in said["messages"]]
        if receipts:
            acked = await rest.call("POST", f"{_QUEUE}/groups/pulls/ack", {"receipts": receipts})
            if acked["stale"]:
                raise LoadFailed(f"{len(acked['stale'])} acks of pulled messages were stale")
        return len(receipts)

    async def ask_for_queues(self, until_s: float) -> None:
        """Request a new queue every second until the monotonic time `until_s`; note the codes of
        the refusals and the longest time of an answer."""
        rest = Rest(self._url)
        while time.monotonic() < until_s:
            name = f"new{len(self.made)}"
            self.made.append(name)
            began = time.monotonic()
            status, body = await rest.request("PUT", f"/v1/queues/{name}", b"{}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            problem: dict[str, Any] = json.loads(body)
            self.refused[str(problem.get("code", status))] += 1
            await asyncio.sleep(_ASK_S)
        rest.close()

    async def finish(self) -> None:
        """Wait until the group `workers` has settled and the reader has received all published
        messages. The broker's lag is used, because a consumer that left may not know the answers to
        its acks. Raises LoadFailed after _WAIT_S."""
        rest = Rest(self._url)
        deadline = time.monotonic() + _WAIT_S
        while not self.is_done:
            failed(self.clients)
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self.lag} messages are not settled, {self.read} were read")
            self.lag = int((await rest.call("GET", f"{_QUEUE}/groups/workers"))["lag"])
            await asyncio.sleep(0.1)
        rest.close()

    @property
    def is_done(self) -> bool:
        """Whether the group `workers` has settled all published messages, and the reader has
        received them."""
        return self.lag == 0 and self.read >= self.published


async def calm(plan: Plan, progress: Progress) -> Finding:
    """Load the broker before and during a stall of the metadata. Raises LoadFailed or ServerFailed
    if the trial cannot end normally."""
    finding = Finding("calm", conditions={"stalled_s": plan.seconds, "rate": plan.rate})
    async with broker("calm", command=BROKER) as server:
        crew = _Crew(server, plan)
        await crew.open()
        with uncollected():
            await crew.publish(plan.before_s)
            before = Histogram()
            before.add(crew.latency)
            crew.latency.clear()
            os.kill(server.pid, signal.SIGUSR1)
            progress(f"calm: the metadata stalls for {plan.seconds:.0f} s")
            end = time.monotonic() + plan.seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(crew.publish(plan.seconds))
                group.create_task(crew.churn(end))
                group.create_task(crew.pull(end))
                group.create_task(crew.ask_for_queues(end))
            os.kill(server.pid, signal.SIGUSR2)
            await crew.finish()
            progress("calm: it answers again")
            whole = await _whole(server.url, crew.made)
        for client in crew.clients:
            client.close()
    finding.figures |= {
        "published": crew.published, "joins": crew.joins, "pulled": crew.pulled,
        "refused": dict(crew.refused), "slowest_refusal_s": round(crew.slowest_s, 2),
        "p99_before_ms": round(before.percentile(99) / 1e6, 2),
        "p99_stalled_ms": round(crew.latency.percentile(99) / 1e6, 2),
        "max_stalled_ms": round(crew.latency.maximum / 1e6, 2),
    }  # fmt: skip
    _check(finding, crew, whole)
    return finding


async def _whole(url: str, names: list[str]) -> dict[str, int]:
    """Wait until the queue `afterwards` can be created, at most _WAIT_S. Return how many of it and
    the queues `names` exist ("there"), and how many of those accept a message ("usable")."""
    rest = Rest(url)
    deadline = time.monotonic() + _WAIT_S
    while True:
        status, _ = await rest.request("PUT", "/v1/queues/afterwards", b"{}")
        if status in (200, 201) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    there = usable = 0
    body = b'{"messages":[{"body":1}]}'
    for name in [*names, "afterwards"]:
        status, _ = await rest.request("GET", f"/v1/queues/{name}")
        if status == 200:
            there += 1
            status, said = await rest.request("POST", f"/v1/queues/{name}/messages", body)
            usable += status == 200 and b'"error"' not in said
    rest.close()
    return {"there": there, "usable": usable}


def _check(finding: Finding, crew: _Crew, whole: dict[str, int]) -> None:
    finding.check(
        "every message was published, pushed, settled and read without an error",
        crew.is_done, f"{crew.published:,} messages",
    )  # fmt: skip
    finding.check(
        "consumers left and others joined, and a script pulled",
        crew.joins > _CONSUMERS and crew.pulled > 0,
        f"{crew.joins} joined, {crew.pulled:,} messages pulled",
    )
    finding.check(
        "what needs the metadata was refused: metadata_unavailable",
        set(crew.refused) == {"metadata_unavailable"}, dict(crew.refused),
    )  # fmt: skip
    finding.check(
        f"within {REFUSED_WITHIN_S:.0f} s",
        crew.slowest_s <= REFUSED_WITHIN_S, f"{crew.slowest_s:.2f} s", timed=True,
    )  # fmt: skip
    finding.check(
        "afterwards queues are made again, and none of those refused is half made",
        whole["there"] == whole["usable"] > 0, whole,
    )  # fmt: skip
