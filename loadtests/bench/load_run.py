"""A load of producers and consumers on one queue, and the parameters and results of a scenario."""

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from loadtests.bench.adapter import Adapter, Consuming, Producing, Tocsin
from loadtests.clients.load import LoadFailed, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram

PRODUCERS: Final = 4
CONSUMERS: Final = 4
WARM_UP_S: Final = 1.5
DRAIN_TIMEOUT_S: Final = 60.0
PARTITIONS: Final = 16


@dataclass
class Figures:
    """Results of a scenario. None: the figure does not apply, or could not be measured."""

    messages_per_s: float | None = None
    latency: Histogram | None = None
    server_cpu_us_per_message: float | None = None
    more: dict[str, object] = field(default_factory=dict)
    """Figures that only this scenario reports."""
    conditions: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commits:
    """Totals of a broker's metrics, over all its lanes."""

    commits: float
    """Commits of published messages."""
    messages: float
    records: float
    """Records in the commits. A commit has one for each partition, or a few if they are large."""
    syncs: float
    """Transactions of an embedded store, those of cursors alone included; 0 over Redis."""

    @classmethod
    async def read(cls, url: str, token: str | None) -> "Commits | None":
        """Read the totals from a broker; None if it does not let this client see its metrics."""
        rest = Rest(url, token)
        try:
            status, text = await rest.request("GET", "/metrics")
        finally:
            rest.close()
        if status != 200:
            return None
        totals: dict[str, float] = defaultdict(float)
        for line in text.decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                totals[name.partition("{")[0]] += float(value)
        return cls(
            totals["tocsin_commits_total"],
            totals["tocsin_commit_messages_sum"],
            totals["tocsin_commit_records_total"],
            totals["tocsin_storage_fsync_seconds_count"],
        )

    def since(self, before: "Commits", seconds: float) -> dict[str, object]:
        """Return the figures of the `seconds` from `before` to these totals; empty if nothing was
        committed."""
        commits = self.commits - before.commits
        messages = self.messages - before.messages
        if not commits or not messages:
            return {}
        return {
            "commits_per_s": round(commits / seconds, 1),
            "messages_per_commit": round(messages / commits, 2),
            "partitions_per_commit": round((self.records - before.records) / commits, 2),
            "syncs_per_message": round((self.syncs - before.syncs) / messages, 3),
        }


class Watched(Protocol):
    """The broker's process, or all its processes together."""

    pid: int
    """The process that was started."""

    def cpu_s(self) -> float:
        """Return user and system time so far, in seconds."""

    def rss_bytes(self) -> int:
        """Return resident memory in bytes."""


@dataclass
class Bench:
    """The parameters of a scenario's run: the broker, how long to measure, what to send."""

    url: str
    token: str | None
    server: Watched | None
    """None for a broker on another machine: no CPU and memory figures."""
    seconds: float
    backlog: int
    """Number of messages that wait in the scenario `backlog`."""
    connections: int
    progress: Callable[[str], None]
    shape: Shape = field(default_factory=Shape)
    random: Random = field(default_factory=lambda: Random(1))
    durability: object = None
    speaks: Adapter | None = None
    """The interface to a broker that is another product; None: Tocsin at `url`."""
    in_flight_max: int | None = None
    """A bound on messages under way that is lower than the scenario's own; None: no other bound. A
    broker that syncs each message by itself works through a deep queue in waves of seconds, and a
    short measurement would see none or one."""

    @property
    def adapter(self) -> Adapter:
        """Return the interface through which clients talk to the broker."""
        return self.speaks or Tocsin(self.url, self.token, self.shape, self.random)

    def cpu_s(self) -> float:
        """Return the server's CPU time so far, in seconds; 0 when its process is unknown."""
        return self.server.cpu_s() if self.server else 0.0

    async def commits(self) -> "Commits | None":
        """Return the totals of what the broker has committed so far; None if it is another product,
        or does not let this client see its metrics."""
        return None if self.speaks else await Commits.read(self.url, self.token)

    def cpu_us(self, since_s: float, messages: int) -> float | None:
        """Return the server's CPU time per message since `since_s`, in microseconds. None when its
        process is unknown, or without messages."""
        if self.server is None or not messages:
            return None
        return (self.server.cpu_s() - since_s) / messages * 1e6


class LoadRun:
    """Producers and consumers of one queue and group, and the loop between them. At most `window`
    messages are published and not yet settled."""

    def __init__(
        self,
        bench: Bench,
        queue: str,
        messages_per_frame: int,
        window: int,
        *,
        partitions: int = PARTITIONS,
    ) -> None:
        if bench.in_flight_max is not None:
            window = min(window, bench.in_flight_max)
        self._bench = bench
        self._queue = queue
        self._partitions = partitions
        self._messages_per_frame = messages_per_frame
        self.window = window
        self.publishing = False
        self.latency = Histogram()
        self.producers: list[Producing] = []
        self.consumers: list[Consuming] = []
        self._in_flight_max = min(window, 36_000) // PRODUCERS
        self.published = 0

    async def open(self, *, consumers: int = CONSUMERS) -> None:
        """Create queue and group, and connect all clients."""
        adapter = self._bench.adapter
        await adapter.shared(self._queue, self._partitions)
        for i in range(PRODUCERS):
            name = f"bench-{self._queue}-{i}"
            producer = await adapter.producer(name, self._queue, self._messages_per_frame)
            producer.on_answers = self.fill
            self.producers.append(producer)
        await self.consume(consumers)

    async def consume(self, consumers: int) -> None:
        """Connect this many more consumers."""
        adapter = self._bench.adapter
        for i in range(consumers):
            name = f"bench-consumer-{len(self.consumers)}-{i}"
            consumer = await adapter.consumer(name, self._queue, self.latency, i, consumers)
            consumer.on_settled = self.fill
            self.consumers.append(consumer)

    @property
    def settled(self) -> int:
        """Number of messages whose acknowledgement was confirmed."""
        return sum(consumer.settled for consumer in self.consumers)

    def fill(self) -> None:
        """If `publishing`, publish as many messages as the window and the producers' bounds on
        unanswered ones allow, all due now."""
        if not self.publishing:
            return
        due = stamp(time.monotonic_ns())
        room = self.window - (self.published - self.settled)
        for producer in self.producers:
            size = producer.messages_per_frame
            while room >= size and producer.unanswered + size <= self._in_flight_max:
                producer.publish(due)
                self.published += size
                room -= size
            producer.flush()

    def check(self) -> None:
        """Raise the failure of any client."""
        for client in (*self.producers, *self.consumers):
            if client.failure is not None:
                raise client.failure

    async def until(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until `done`, while watching the clients. Raises LoadFailed after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise LoadFailed(
                    f"{what} took longer than {timeout_s:.0f} s: {self.published} published, "
                    f"{sum(p.answered for p in self.producers)} answered, "
                    f"{sum(c.delivered for c in self.consumers)} delivered, {self.settled} settled"
                )
            await asyncio.sleep(0.02)

    async def run(self, seconds: float, what: str) -> tuple[int, float, float | None]:
        """Publish for `seconds` after a warm-up. Return (messages settled, seconds, server CPU µs
        per message), each without the warm-up. The last is None if the server's process is unknown
        or nothing was settled. `what` names the run in the line about its progress."""
        self.publishing = True
        self.fill()
        await self._watched(WARM_UP_S)
        self.latency.clear()
        settled, cpu_s, began = self.settled, self._bench.cpu_s(), time.monotonic()
        await self._watched(seconds)
        count, elapsed = self.settled - settled, time.monotonic() - began
        cpu_us = self._bench.cpu_us(cpu_s, count)
        self.publishing = False
        self._bench.progress(f"{what}: {count / elapsed:,.0f} messages/s")
        return count, elapsed, cpu_us

    async def _watched(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.25))
            self.check()

    async def drain(self) -> None:
        """Stop publishing, and wait until all published messages are settled. Raises the failure of
        any client, or LoadFailed after DRAIN_TIMEOUT_S."""
        self.publishing = False
        await self.until(
            lambda: self.settled >= self.published, "draining the queue", DRAIN_TIMEOUT_S
        )
        self.check()

    def note(self, figures: Figures) -> Figures:
        """Add the figures and conditions that every load has to `figures`, and return these."""
        self._bench.durability = self.producers[0].durability
        figures.more["messages"] = self.settled  # all of them, the warm-up included
        figures.more["redelivered"] = sum(c.redelivered for c in self.consumers)
        figures.conditions |= {
            "producers": len(self.producers),
            "consumers": len(self.consumers),
            "messages_per_frame": self.producers[0].messages_per_frame,
            "in_flight_max": self.window,
            "partitions": self._partitions,
        }
        return figures

    def close(self) -> None:
        """Disconnect all clients."""
        self.publishing = False
        for client in (*self.producers, *self.consumers):
            client.close()


@asynccontextmanager
async def quiet(line: LoadRun) -> AsyncIterator[LoadRun]:
    """Yield the load and close it in the end. The garbage collector of this process is off
    meanwhile, so that its pauses are not measured."""
    gc.collect()
    gc.disable()
    try:
        yield line
    finally:
        gc.enable()
        line.close()
