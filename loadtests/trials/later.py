"""Scheduled messages in bulk.

`later`: thousands of messages a second fall due beside a live load. How late are they, and how much
later are the others? Each round measures the live load alone, beside them, and beside as many
messages that are published at the moment, in batches, to a queue of the same kind.

`waiting`: millions of messages wait until tomorrow. What do they cost in memory and on disk, and
how long does a start take? Compared with the same broker before.

All clients are raw sockets on the broker's machine.
"""

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from loadtests.clients.load import STAMP_BYTES, Client, Consumer, LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram
from loadtests.server import Process, Server
from loadtests.trials import options
from loadtests.trials.trial import MIB, Finding, Progress, broker, failed, uncollected, until

DUE_PER_S: Final = 5_000
LIVE_PER_S: Final = 1_000
SECONDS: Final = 30.0
ROUNDS: Final = 3
PARTITIONS: Final = 16
LATE_S_MAX: Final = 0.1
"""The largest p99 of the time from when a message is due to its arrival at the consumer."""
LIVE_RATIO_MAX: Final = 1.5
"""The largest p99 of the live load beside it, in multiples of the p99 alone."""
KEYS: Final = 1000
BATCH: Final = 200
UNANSWERED_MAX: Final = 20_000
AHEAD_PER_S: Final = 5_000
"""A rate at which messages can be scheduled for sure. By it the first due time is chosen."""
AHEAD_S: Final = 5.0
WAITING: Final = 10_000_000
WAITING_AHEAD_S: Final = 86_400.0
START_RATIO_MAX: Final = 3.0
MEMORY_MIB_MAX: Final = 64
PUBLISHED_BATCH: Final = 50
"""Messages in a frame of those that are published at the moment, for comparison."""
_TICK_S: Final = 0.001
_DRAIN_S: Final = 60.0
_STAMP: Final = re.compile(rb'"body":"(\d{%d})' % STAMP_BYTES)


class Stamps:
    """Finds the stamps of scheduled messages, whose sizes differ. In place of a Shape."""

    def stamps(self, data: bytes, start: int, end: int) -> list[bytes]:
        """Return the stamps of the messages in data[start:end]."""
        return _STAMP.findall(data, start, end)


class Scheduler(Client):
    """A producer that schedules messages."""

    def __init__(self, name: str, queue: str, random: Random) -> None:
        super().__init__(name)
        self.unanswered = 0
        self._queue = queue.encode()
        self._random = random
        self._asked: dict[int, int] = {}

    def schedule(self, dues: Sequence[tuple[int, int]]) -> None:
        """Publish a message for each of these (unix milliseconds, monotonic nanoseconds)."""
        ref = self._next_ref()
        self._asked[ref] = len(dues)
        self.unanswered += len(dues)
        messages = b",".join(
            b'{"key":"k%04d","body":"%b","deliver_at_unix_ms":%d}'
            % (self._random.randrange(KEYS), stamp(at_ns), unix_ms)
            for unix_ms, at_ns in dues
        )
        self.wire.send(
            b'{"type":"publish","ref":%d,"queue":"%b","messages":[%b]}'
            % (ref, self._queue, messages)
        )

    def _answered(self, ref: int, reply: object, data: bytes) -> None:
        if b'"code":' in data or ref not in self._asked:
            self._fail(f"{self.name} was answered {data[:400]!r}")
        self.unanswered -= self._asked.pop(ref, 0)


@dataclass(frozen=True)
class Plan:
    """Let thousands of messages a second fall due beside a live load: how late are they, and how
    much later are the others?"""

    due: int = options.whole(DUE_PER_S, "Messages that fall due a second.", 100, 50_000)
    live: int = options.whole(LIVE_PER_S, "Live messages a second, one a frame.", 10, 50_000)
    seconds: float = options.seconds(SECONDS, "How long each stretch takes.", 2, 600)
    rounds: int = options.whole(ROUNDS, "Rounds, each of three stretches.", 1, 100)


@dataclass
class _Live:
    """The live load: a producer and a consumer on a queue of their own."""

    url: str
    rate: int
    histogram: Histogram = field(default_factory=Histogram)

    async def __aenter__(self) -> "_Live":
        shape, random = Shape(keys=KEYS), Random(1)
        self.producer = Producer("live", "live", shape, 1, random)
        self.consumer = Consumer("live-consumer", shape, self.histogram, random)
        await self.producer.open(self.url, None, self.producer.name)
        await self.consumer.open(self.url, None)
        await self.consumer.subscribe("live", "workers")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.producer.close()
        self.consumer.close()

    async def offer(
        self,
        seconds: float,
        others: Sequence[Client] = (),
        *,
        beside: Producer | None = None,
        beside_per_s: int = 0,
    ) -> Histogram:
        """Publish on a fixed schedule; return the times from when each was due to its arrival.
        `beside`: a producer that publishes `beside_per_s` messages a second at the same time."""
        self.histogram.clear()
        began_ns, sent, sent_beside = time.monotonic_ns(), 0, 0
        clients: list[Client] = [self.producer, self.consumer, *others]
        while sent < int(seconds * self.rate):
            failed(clients)
            elapsed_ns = time.monotonic_ns() - began_ns
            due = elapsed_ns * self.rate // 1_000_000_000
            while sent < due:
                self.producer.publish(stamp(began_ns + sent * 1_000_000_000 // self.rate))
                sent += 1
            self.producer.flush()
            if beside is not None:
                while sent_beside < elapsed_ns * beside_per_s // 1_000_000_000:
                    at_ns = began_ns + sent_beside * 1_000_000_000 // beside_per_s
                    beside.publish(stamp(at_ns))
                    sent_beside += beside.messages_per_frame
                beside.flush()
            await asyncio.sleep(_TICK_S)
        await until(
            lambda: self.consumer.delivered >= self.producer.answered > 0
            and not self.producer.unanswered,
            "giving the live messages", _DRAIN_S, lambda: clients,
        )  # fmt: skip
        found = Histogram()
        found.add(self.histogram)
        return found


async def _schedule(
    scheduler: Scheduler, count: int, per_s: int, begin_unix_s: float, offset_s: float
) -> None:
    """Schedule messages that fall due at this rate. `offset_s`: how far the wall clock is ahead of
    the monotonic one."""
    for first in range(0, count, BATCH):
        dues = []
        for number in range(first, min(first + BATCH, count)):
            unix_ms = int((begin_unix_s + number / per_s) * 1000)
            dues.append((unix_ms, int((unix_ms / 1000 - offset_s) * 1e9)))
        scheduler.schedule(dues)
        while scheduler.unanswered > UNANSWERED_MAX:
            failed([scheduler])
            await asyncio.sleep(_TICK_S)
    await until(lambda: not scheduler.unanswered, "scheduling", _DRAIN_S, lambda: [scheduler])


@dataclass
class _Measured:
    """Measurements of all rounds. `given`: the number of messages that were due."""

    late: Histogram = field(default_factory=Histogram)
    alone: list[Histogram] = field(default_factory=list)
    beside: list[Histogram] = field(default_factory=list)
    published: Histogram = field(default_factory=Histogram)
    """Times of the messages that were published at the moment, for comparison."""
    beside_published: list[Histogram] = field(default_factory=list)
    given: int = 0
    delivered: int = 0
    redelivered: int = 0

    def ratio(self, others: Sequence[Histogram]) -> float:
        """Return the live load's p99 beside others, in multiples of the p99 alone; the median of
        the rounds."""
        pairs = zip(self.alone, others, strict=True)
        return statistics.median(two.percentile(99) / one.percentile(99) for one, two in pairs)


async def later(plan: Plan, progress: Progress) -> Finding:
    """Measure each round alone and beside. Raises LoadFailed or ServerFailed."""
    finding, found = Finding("later"), _Measured()
    async with broker("later") as server:
        await _measure(server, plan, found, progress)
    late = found.late
    finding.figures = {
        "late_p50_ms": _ms(late, 50), "late_p99_ms": _ms(late), "late_max_ms": _ms(late, 100),
        "live_alone_p99_ms": [_ms(one) for one in found.alone],
        "live_beside_p99_ms": [_ms(one) for one in found.beside],
        "live_ratio": round(found.ratio(found.beside), 2),
        "published_p50_ms": _ms(found.published, 50), "published_p99_ms": _ms(found.published),
        "live_beside_published_p99_ms": [_ms(one) for one in found.beside_published],
        "live_ratio_published": round(found.ratio(found.beside_published), 2),
        "redelivered": found.redelivered,
    }  # fmt: skip
    finding.conditions = {
        "due_per_s": plan.due, "live_per_s": plan.live, "seconds": plan.seconds,
        "rounds": plan.rounds, "partitions": PARTITIONS, "keys": KEYS, "durability": "all",
        "store": "embedded",
    }  # fmt: skip
    comes = f"{found.delivered} of {found.given}"
    finding.check("each comes once", found.delivered == found.given, comes)
    finding.check(
        f"p99 late is at most {LATE_S_MAX * 1000:.0f} ms",
        late.percentile(99) <= LATE_S_MAX * 1e9, f"{_ms(late)} ms", timed=True,
    )  # fmt: skip
    finding.check(
        f"P8: the live load's p99 is at most {LIVE_RATIO_MAX:g} x that alone (median of rounds)",
        found.ratio(found.beside) <= LIVE_RATIO_MAX,
        f"{found.ratio(found.beside):.2f} x; beside as many that are published at the moment "
        f"{found.ratio(found.beside_published):.2f} x",
        timed=True,
    )  # fmt: skip
    return finding


async def _measure(server: Server, plan: Plan, found: _Measured, progress: Progress) -> None:
    rest = Rest(server.url)
    for queue in ("live", "later", "published"):
        await rest.call("PUT", f"/v1/queues/{queue}", {"partitions": PARTITIONS})
        await rest.call("PUT", f"/v1/queues/{queue}/groups/workers", {})
    rest.close()
    scheduler = Scheduler("scheduler", "later", Random(2))
    taker = Consumer("later-consumer", Stamps(), found.late, Random(3))  # type: ignore[arg-type]
    await scheduler.open(server.url, None)
    await taker.open(server.url, None)
    await taker.subscribe("later", "workers")
    shape, random = Shape(keys=KEYS), Random(4)
    publisher = Producer("publisher", "published", shape, PUBLISHED_BATCH, random)
    other = Consumer("published-consumer", shape, found.published, random)
    await publisher.open(server.url, None, publisher.name)
    await other.open(server.url, None)
    await other.subscribe("published", "workers")
    async with _Live(server.url, plan.live) as live:
        with uncollected():
            await live.offer(2.0)  # a warm-up
            for _ in range(plan.rounds):
                found.alone.append(await live.offer(plan.seconds))
                found.given += await _schedule_round(scheduler, plan)
                found.beside.append(await live.offer(plan.seconds, [taker]))
                await _taken(taker, found.given)
                found.beside_published.append(
                    await live.offer(
                        plan.seconds, [publisher, other], beside=publisher, beside_per_s=plan.due
                    )
                )
                await _taken(other, publisher.answered)
                progress(
                    f"live p99 {_ms(found.alone[-1])} ms alone, {_ms(found.beside[-1])} ms "
                    f"beside, {_ms(found.beside_published[-1])} ms beside as many published; "
                    f"late p99 {_ms(found.late)} ms"
                )
    found.delivered, found.redelivered = taker.delivered, taker.redelivered
    for client in (scheduler, taker, publisher, other):
        client.close()


async def _schedule_round(scheduler: Scheduler, plan: Plan) -> int:
    """Schedule the messages of a round, and wait until the first one is due. Returns how many."""
    count = int(plan.due * plan.seconds)
    begin = time.time() + AHEAD_S + count / AHEAD_PER_S
    await _schedule(scheduler, count, plan.due, begin, time.time() - time.monotonic())
    ahead_s = begin - time.time()
    if ahead_s < 0:
        raise LoadFailed("scheduling took longer than planned")
    await asyncio.sleep(ahead_s)
    return count


async def _taken(taker: Consumer, count: int) -> None:
    await until(lambda: taker.settled >= count, "giving what was due", _DRAIN_S, lambda: [taker])


def _ms(histogram: Histogram, percent: float = 99) -> float:
    return round(histogram.percentile(percent) / 1e6, 2)


# --- Millions that wait ---------------------------------------------------------------------------


@dataclass(frozen=True)
class WaitingPlan:
    """Schedule millions of messages for tomorrow: what do they cost in memory and on disk, and how
    long does a start take?"""

    messages: int = options.whole(WAITING, "Messages that wait.", 1_000, 100_000_000)


async def _started(server: Server) -> tuple[float, float]:
    """Kill and start the broker. Returns (seconds until it is ready, MiB of memory a moment
    later)."""
    server.kill()
    began = time.monotonic()
    server.spawn()
    await asyncio.to_thread(server.wait_ready)
    took_s = time.monotonic() - began
    await asyncio.sleep(3.0)
    return took_s, Process(server.pid).rss_bytes() / MIB


def _disk_mib(folder: Path) -> float:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / MIB


async def waiting(plan: WaitingPlan, progress: Progress) -> Finding:
    """Compare starts without and with what waits. Raises LoadFailed or ServerFailed."""
    finding = Finding("waiting")
    async with broker("waiting") as server:
        rest = Rest(server.url)
        await rest.call("PUT", "/v1/queues/later", {"partitions": PARTITIONS})
        rest.close()
        empty = [await _started(server) for _ in range(3)]
        scheduler = Scheduler("scheduler", "later", Random(2))
        await scheduler.open(server.url, None)
        began, done, part = time.monotonic(), 0, max(BATCH, plan.messages // 20)
        while done < plan.messages:
            count = min(part, plan.messages - done)
            begin = time.time() + WAITING_AHEAD_S + done / 1000
            await _schedule(scheduler, count, 1000, begin, time.time() - time.monotonic())
            done += count
            rate = done / (time.monotonic() - began)
            memory = Process(server.pid).rss_bytes() / MIB
            progress(f"{done:,} of {plan.messages:,}, {rate:,.0f}/s, broker {memory:.0f} MiB")
        scheduler.close()
        rate = plan.messages / (time.monotonic() - began)
        full = [await _started(server) for _ in range(3)]
        rest = Rest(server.url)
        asked = time.monotonic()
        page = await rest.call("GET", "/v1/queues/later/scheduled?limit=100")
        list_s = time.monotonic() - asked
        rest.close()
        disk = _disk_mib(server.data_dir)
    start_s, start_full_s = (statistics.median(one[0] for one in some) for some in (empty, full))
    memory, memory_full = (statistics.median(one[1] for one in some) for some in (empty, full))
    finding.figures = {
        "messages": plan.messages, "scheduled_per_s": round(rate),
        "start_empty_s": round(start_s, 2), "start_s": round(start_full_s, 2),
        "memory_empty_mib": round(memory), "memory_mib": round(memory_full),
        "disk_mib": round(disk), "list_100_s": round(list_s, 3),
    }  # fmt: skip
    finding.conditions = {
        "partitions": PARTITIONS, "keys": KEYS, "batch": BATCH, "store": "embedded",
        "durability": "all",
    }  # fmt: skip
    finding.check("all wait", page["count"] == plan.messages, page["count"])
    finding.check(
        f"a start takes at most {START_RATIO_MAX:g} x as long as with none",
        start_full_s <= START_RATIO_MAX * start_s,
        f"{start_full_s:.2f} s, {start_s:.2f} s with none", timed=True,
    )  # fmt: skip
    finding.check(
        f"memory is at most {MEMORY_MIB_MAX} MiB more than with none",
        memory_full - memory <= MEMORY_MIB_MAX, f"{memory_full:.0f} MiB, {memory:.0f} with none",
    )  # fmt: skip
    return finding
