"""A thousand sockets that stop reading: the broker's memory stays, and the others keep their rate.

Most of them read the queue that is under load; some are consumers of a group on another queue. They
look like clients over a network, with packets of 1,448 bytes and small buffers. They are not dead:
each sends a sign of life every few seconds without reading, so that no heartbeat ends them.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from loadtests.bench.load_run import Bench, LoadRun
from loadtests.clients.load import LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.server import Process, Server, raise_file_limit
from loadtests.trials import options
from loadtests.trials.stalled.sockets import (
    BUFFER_BYTES,
    PACKET_BYTES,
    Follower,
    Narrow,
    StalledConsumer,
)
from loadtests.trials.trial import (
    MIB,
    Finding,
    Memory,
    Progress,
    broker,
    failed,
    uncollected,
    until,
)

SOCKETS: Final = 1_000
CONSUMERS_SHARE: Final = 10
"""The ratio of all stalled sockets to consumers among them; the others are readers."""
SECONDS: Final = 40.0
ROUND_S: Final = 8.0
"""Length of a round with stalled sockets; one of the same length without them is before and after
it."""
GROWTH_MAX: Final = 256 * MIB
RATIO_MIN: Final = 0.95
LOAD_QUEUE: Final = "load"
ASIDE_QUEUE: Final = "aside"
MESSAGES_PER_FRAME: Final = 100
WINDOW: Final = 20_000
SETTLE_S: Final = 3.0
WATCHERS: Final = 2
AWAKENED: Final = 3
_MESSAGES_EACH: Final = 2_000
"""Number of messages for each stalled consumer, more than the buffers on the way hold."""
_ALIVE_EVERY_S: Final = 4.0
_OPENING_AT_ONCE: Final = 50
_WAIT_S: Final = 60.0


class _Trial:
    """A run on a server of its own."""

    def __init__(self, server: Server, sockets: int, window: int, progress: Progress) -> None:
        self._url = server.url
        self.memory = Memory(Process(server.pid))
        self._progress = progress
        self._bench = Bench(server.url, None, Process(server.pid), 0.0, 0, 0, lambda _: None)
        self.line = LoadRun(self._bench, LOAD_QUEUE, MESSAGES_PER_FRAME, window)
        self.consumers = max(1, sockets // CONSUMERS_SHARE)
        self.readers = sockets - self.consumers
        self.watchers: list[Follower] = []
        self.narrow: list[Narrow] = []
        self.rest = Rest(server.url)
        self.without: list[tuple[float, float]] = []
        """(messages a second, server CPU µs a message) of the rounds without stalled sockets:
        before, between and after the others."""
        self.with_them: list[tuple[float, float]] = []
        self.before = self.highest = 0
        """The most resident bytes before the first socket stalled, and in the rounds with stalled
        sockets."""
        self.dropped = 0
        """Number of stalled sockets that the broker closed, or of consumers that it removed, if
        these are more; all rounds together."""
        self.full = self.consumers
        """Number of partitions that waited for their consumer's full socket, as the broker stated
        it; the fewest of all rounds."""

    async def prepare(self) -> None:
        """Create the queues, and connect the load's clients and the watchers."""
        settings = {"partitions": self.consumers, "lease_s": 5}
        await self.rest.call("PUT", f"/v1/queues/{ASIDE_QUEUE}", settings)
        await self.rest.call("PUT", f"/v1/queues/{ASIDE_QUEUE}/groups/g", {})
        await self.line.open()
        kept = {"retention_s": 86_400}  # readers that lag miss nothing
        await self.rest.call("PATCH", f"/v1/queues/{LOAD_QUEUE}", kept)
        for number in range(WATCHERS):
            watcher = Follower(f"watcher-{number}", LOAD_QUEUE)
            await watcher.open(self._url, None)
            self.watchers.append(watcher)
            await watcher.subscribe()

    async def calm(self, seconds: float) -> None:
        """Measure without stalled sockets."""
        self.without.append(await self._measure(seconds, "without stalled sockets"))
        self.before = self.before or self.memory.highest(0.0)

    async def stalling(self, seconds: float, settle_s: float) -> None:
        """Measure with stalled sockets, after `settle_s` in which their buffers fill up."""
        began = time.monotonic()
        async with self._stalled():
            await self._feed()
            if settle_s:
                await self.line.run(settle_s, "filling their buffers")
            self.with_them.append(await self._measure(seconds, "with stalled sockets"))
            self.highest = max(self.highest, self.memory.highest(began))
            await self._look_at_them()
            await self._awaken()

    async def _measure(self, seconds: float, what: str) -> tuple[float, float]:
        count, elapsed, cpu_us = await self.line.run(seconds, what)
        failed([*self.watchers])
        cpu = "no" if cpu_us is None else f"{cpu_us:.2f} µs"
        self._progress(
            f"stalled: {what}: {count / elapsed:,.0f} messages/s, {cpu} server CPU, "
            f"{self.memory.now() / MIB:.0f} MiB"
        )
        return count / elapsed, cpu_us or 0.0

    @contextlib.asynccontextmanager
    async def _stalled(self) -> AsyncIterator[None]:
        """Open all the sockets, subscribe, and stop reading; close them after the block."""
        kinds: list[tuple[type[Narrow], str]] = [(Narrow, LOAD_QUEUE)] * self.readers
        kinds += [(StalledConsumer, ASIDE_QUEUE)] * self.consumers

        async def connect(kind: type[Narrow], queue: str) -> None:
            client = kind(f"stalled-{len(self.narrow)}", queue)
            self.narrow.append(client)
            await client.open(self._url, None)
            await client.subscribe()

        for first in range(0, len(kinds), _OPENING_AT_ONCE):
            await asyncio.gather(
                *(connect(*kind) for kind in kinds[first : first + _OPENING_AT_ONCE])
            )
        await self._until_shared()
        for client in self.narrow:
            client.grant()
            client.stall()
        living = asyncio.create_task(self._stay_alive())
        try:
            yield
        finally:
            living.cancel()
            for client in self.narrow:
                client.drop()
            self.narrow.clear()
            await self._until_left()

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_EVERY_S)
            for client in self.narrow:
                client.alive()

    async def _until_shared(self) -> None:
        """Wait until each stalled consumer owns a partition. None of them has received anything by
        then. Raises LoadFailed."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            partitions = (await self._group())["partitions"]
            owners = [one["owner"]["session"] for one in partitions if one.get("owner")]
            if len(set(owners)) == len(partitions):
                return
            if time.monotonic() > deadline:
                raise LoadFailed("the stalled consumers do not share their partitions")
            await asyncio.sleep(0.05)

    async def _until_left(self) -> None:
        """Wait until the stalled consumers have left; their messages wait for the next round.
        Raises LoadFailed."""
        deadline = time.monotonic() + _WAIT_S
        while (await self._group())["consumers"]:
            if time.monotonic() > deadline:
                raise LoadFailed("the stalled consumers' sockets are gone, and they did not leave")
            await asyncio.sleep(0.1)

    async def _group(self) -> Any:
        return await self._look(f"/v1/queues/{ASIDE_QUEUE}/groups/g")

    async def _look(self, path: str) -> Any:
        self.rest.close()  # the broker has closed it, because it was idle for a round
        return await self.rest.call("GET", path)

    async def _feed(self) -> None:
        """Publish messages for the stalled consumers, so that their buffers fill up, too."""
        each = self.consumers * _MESSAGES_EACH // 1000 * 1000
        producer = Producer(f"feeder-{time.monotonic_ns()}", ASIDE_QUEUE, Shape(), 500, Random(2))
        await producer.open(self._url, None, producer.name)
        left = each

        def fill() -> None:
            nonlocal left
            # Two frames: beside the other queue this is a flood, of which the broker holds 256 KiB.
            while left > 0 and producer.unanswered < 1_000:
                producer.publish(stamp(time.monotonic_ns()))
                left -= 500
            producer.flush()

        producer.on_answers = fill
        fill()
        await until(lambda: producer.answered >= each, "feeding", _WAIT_S, lambda: [producer])
        producer.close()

    async def _look_at_them(self) -> None:
        group = await self._group()
        broken = sum(client.wire.closed for client in self.narrow)
        self.dropped += max(broken, self.consumers - int(group["consumers"]))
        waits = [partition["waits_for"] for partition in group["partitions"]]
        self.full = min(self.full, waits.count("socket"))

    async def _awaken(self) -> None:
        """Let AWAKENED of the stalled readers read on, and wait until they have read to the end. A
        reader fails if something is left out silently."""
        some = [client for client in self.narrow if not isinstance(client, StalledConsumer)]
        some = some[:AWAKENED]
        for client in some:
            client.awake()
        await self.finish(*some)

    async def finish(self, *others: Follower) -> None:
        """Wait until all published messages are settled, and the watchers and `others` have read to
        the end of the load's queue. Raises LoadFailed."""
        await self.line.drain()
        readers = [*self.watchers, *others]
        queue = await self._look(f"/v1/queues/{LOAD_QUEUE}")
        ends = {place["partition"]: place["certified"] for place in queue["partitions"]}
        await until(
            lambda: all(reader.places == ends for reader in readers),
            "reading to the end", _WAIT_S, lambda: [*readers],
        )  # fmt: skip

    def close(self) -> None:
        """Disconnect the load's clients and the watchers."""
        self.rest.close()
        self.line.close()
        for watcher in self.watchers:
            watcher.close()


@dataclass(frozen=True)
class Plan:
    """Let sockets stop reading. Memory must not grow, and other clients must keep their rate."""

    seconds: float = options.seconds(
        SECONDS, "Duration with stalled sockets, and again without them."
    )
    sockets: int = options.whole(SOCKETS, "Number of sockets that stop reading.", 10, 20_000)
    settle_s: float = SETTLE_S
    window: int = WINDOW
    """The most messages published and not yet settled."""


async def stalled(plan: Plan, progress: Progress) -> Finding:
    """Measure for `plan.seconds` with stalled sockets, in rounds of about ROUND_S. Each begins with
    `plan.settle_s` to fill buffers; a round without stalled sockets is before it and after it.

    Raises LoadFailed or ServerFailed if the trial cannot end normally, RuntimeError if this process
    cannot open enough files.
    """
    seconds = plan.seconds
    raise_file_limit(plan.sockets + 500)
    finding = Finding("stalled")
    rounds = max(1, round(seconds / ROUND_S))
    async with broker("stalled") as server:
        trial = _Trial(server, plan.sockets, plan.window, progress)
        try:
            with uncollected():
                async with trial.memory.watched():
                    await trial.prepare()
                    await trial.calm(seconds / rounds)
                    for _ in range(rounds):
                        await trial.stalling(seconds / rounds, plan.settle_s)
                        await trial.calm(seconds / rounds)
                    await trial.finish()
        finally:
            trial.close()
    _judge(finding, trial)
    finding.conditions = {
        "readers": trial.readers, "consumers": trial.consumers, "seconds": seconds,
        "rounds": rounds, "watchers": WATCHERS, "messages_per_frame": MESSAGES_PER_FRAME,
        "in_flight_max": plan.window, "packet_bytes": PACKET_BYTES, "buffer_bytes": BUFFER_BYTES,
        "body_bytes": Shape().body_bytes,
    }  # fmt: skip
    return finding


def _mean(rounds: list[tuple[float, float]], place: int) -> float:
    return sum(figures[place] for figures in rounds) / len(rounds)


def _judge(finding: Finding, trial: _Trial) -> None:
    growth = max(0, trial.highest - trial.before)
    ratios = [
        2 * rate / (trial.without[number][0] + trial.without[number + 1][0])
        for number, (rate, _) in enumerate(trial.with_them)
    ]
    given = [watcher.given for watcher in trial.watchers]
    finding.figures = {
        "messages_per_s_without": round(_mean(trial.without, 0)),
        "messages_per_s_with": round(_mean(trial.with_them, 0)),
        "server_cpu_us_without": round(_mean(trial.without, 1), 2),
        "server_cpu_us_with": round(_mean(trial.with_them, 1), 2),
        "rss_before_mib": round(trial.before / MIB, 1),
        "rss_growth_mib": round(growth / MIB, 1),
        "published": trial.line.published,
    }
    finding.check(
        "P1: everything published was settled, and once",
        trial.line.settled == trial.line.published,
        f"{trial.line.settled:,} of {trial.line.published:,}",
    )
    finding.check(
        "readers that read are given everything",
        all(g == trial.line.published for g in given) and not any(w.gaps for w in trial.watchers),
        f"{given} of {trial.line.published}, {[w.gaps for w in trial.watchers]} gaps",
    )
    finding.check(
        "the stalled sockets were full", trial.full >= 0.9 * trial.consumers,
        f"{trial.full} of {trial.consumers} consumers' partitions waited for their socket",
    )  # fmt: skip
    finding.check(
        "clients that do not read are not cut off for it",
        not trial.dropped,
        f"{trial.dropped} were",
    )
    finding.check(
        f"P9: memory grows by at most {GROWTH_MAX // MIB} MiB",
        growth <= GROWTH_MAX, f"{growth / MIB:.1f} MiB",
    )  # fmt: skip
    finding.check(
        f"the others keep {RATIO_MIN:.0%} of their rate, in the median round",
        statistics.median(ratios) >= RATIO_MIN, ", ".join(f"{ratio:.1%}" for ratio in ratios),
        timed=True,
    )  # fmt: skip
