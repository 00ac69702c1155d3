"""The scenarios of `tocsin bench`.

All but `idle` and `polls` are end to end: published, durable, pushed, acknowledged with the acks
confirmed. Readers (fanout5k) acknowledge nothing by nature.

`queues` and `keys` measure the cost of a message when there are more queues or keys. The load first
runs over few of them while no more exist. Then it runs over few and over many in turns, in one
broker. The figure `ratio` is the median of the ratios of two neighboring runs, because a machine
whose speed changes from minute to minute changes both.
"""

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

from loadtests.bench.adapter import GROUP, Party, Tocsin
from loadtests.bench.load_run import (
    CONSUMERS,
    DRAIN_TIMEOUT_S,
    PARTITIONS,
    PRODUCERS,
    WARM_UP_S,
    Bench,
    Figures,
    LoadRun,
    quiet,
)
from loadtests.bench.sdk_load import sdk100
from loadtests.clients.load import Consumer, LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram

# --- growth

QUEUES: Final = (10, 10_000)
KEYS: Final = (1_000, 1_000_000)
KEYS_OF_QUEUES: Final = 100_000
"""Number of keys in all queues of `queues` together."""
SESSIONS: Final = 40
"""Number of consumers' sessions, whatever the number of queues: one session subscribes to at most
256."""
BLOCKS: Final = 5_000
"""Number of ready-made frames of each producer in `keys`: 2 million messages of random keys have
about 865,000 different ones of a million. With fewer keys there are as many frames, so that both
loads cost the generator the same."""
WINDOW: Final = 6_000
MESSAGES_PER_FRAME: Final = 100
PAIRS: Final = 5
REST_S: Final = 1.2
"""Pause, in seconds, between two measurements of `queues` or `keys`. A queue that brings much
beside others that brought little in the last second counts as a flood, and its waiting messages are
bounded (push.commit_sharing). After this pause no queue is beside another."""
_CREATED_AT_ONCE: Final = 32


async def queues(bench: Bench) -> Figures:
    """Send the same messages in frames of 100, each frame to the next of 10 queues, and then of
    10,000. Each queue has one partition and a group. The number of keys is the same in total, so
    that only the number of queues grows."""
    return await _grown(bench, "queues", QUEUES, lambda many: _over_queues(bench, many))


async def keys(bench: Bench) -> Figures:
    """Send the same messages in frames of 100 to one queue, of 1,000 keys and then of a million."""
    return await _grown(bench, "keys", KEYS, lambda many: _of_keys(bench, many))


async def _grown(
    bench: Bench, what: str, counts: tuple[int, int], opened: Callable[[int], Awaitable[LoadRun]]
) -> Figures:
    few, many = counts
    async with quiet(await opened(few)) as small:
        alone = await _stretch(bench, small, f"{few:,} {what}, before there are more")
        async with quiet(await opened(many)) as large:
            pairs = []
            for number in range(PAIRS):
                both = [(small, f"{few:,} {what}"), (large, f"{many:,} {what}")]
                turn = 1 if number % 2 == 0 else -1  # the first one alternates
                found = [await _stretch(bench, line, name) for line, name in both[::turn]][::turn]
                pairs.append((found[0], found[1]))
            figures = large.note(_compared(alone, pairs, few))
    figures.conditions[what] = list(counts)
    return figures


async def _stretch(bench: Bench, line: LoadRun, name: str) -> Figures:
    count, elapsed, cpu_us = await line.run(bench.seconds / 2, name)
    await line.drain()
    await asyncio.sleep(REST_S)
    latency = Histogram()
    latency.add(line.latency)
    return Figures(count / elapsed, latency, cpu_us)


def _compared(alone: Figures, pairs: list[tuple[Figures, Figures]], few: int) -> Figures:
    """Return the figures of the load over many queues or keys: medians of all pairs, and the
    latencies of all of its measurements. The ratios are to the load over few."""
    latency = Histogram()
    for _, over_many in pairs:
        assert over_many.latency is not None
        latency.add(over_many.latency)
    rate = median(over_many.messages_per_s or 0.0 for _, over_many in pairs)
    costs = [(a.server_cpu_us_per_message, b.server_cpu_us_per_message) for a, b in pairs]
    known = [(before, after) for before, after in costs if before and after]
    figures = Figures(rate, latency, median(after for _, after in known) if known else None)
    if known:
        ratios = [after / before for before, after in known]
        figures.more |= {
            f"server_cpu_us_per_message_{few}": round(median(before for before, _ in known), 3),
            f"server_cpu_us_per_message_{few}_alone": round(
                alone.server_cpu_us_per_message or 0.0, 3
            ),
            "ratio": round(median(ratios), 3),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
    return figures


async def _over_queues(bench: Bench, many: int) -> LoadRun:
    names = [f"queues{many}-{number}" for number in range(many)]
    await _create(bench, names)
    bench.progress(f"queues: {many:,} are there")
    shape = Shape(bench.shape.body_bytes, KEYS_OF_QUEUES // many)
    line = LoadRun(bench, names[0], MESSAGES_PER_FRAME, WINDOW)
    for number in range(PRODUCERS):
        # Each producer begins elsewhere, so that they do not all publish to one queue at once.
        begin = number * many // PRODUCERS
        await _produce(bench, line, shape, names[begin:] + names[:begin])
    for number in range(SESSIONS):
        await _consume(bench, line, shape, names[number::SESSIONS])
    return line


async def _of_keys(bench: Bench, many: int) -> LoadRun:
    name, shape = f"keys{many}", Shape(bench.shape.body_bytes, many)
    await Tocsin(bench.url, bench.token).shared(name, PARTITIONS)
    line = LoadRun(bench, name, MESSAGES_PER_FRAME, WINDOW)
    for _ in range(PRODUCERS):
        await _produce(bench, line, shape, [name], blocks=BLOCKS)
    for _ in range(CONSUMERS):
        await _consume(bench, line, shape, [name])
    return line


async def _produce(
    bench: Bench, line: LoadRun, shape: Shape, queues: Sequence[str], *, blocks: int = 0
) -> None:
    name = f"growth-{len(line.producers)}"
    producer = Producer(name, queues, shape, MESSAGES_PER_FRAME, bench.random, blocks=blocks)
    producer.on_answers = line.fill
    await producer.open(bench.url, bench.token, producer.name)
    line.producers.append(producer)


async def _consume(bench: Bench, line: LoadRun, shape: Shape, queues: Sequence[str]) -> None:
    consumer = Consumer(f"growth-{len(line.consumers)}", shape, line.latency, bench.random)
    consumer.on_settled = line.fill
    await consumer.open(bench.url, bench.token)
    for queue in queues:
        await consumer.subscribe(queue, GROUP)
    line.consumers.append(consumer)


async def _create(bench: Bench, names: Sequence[str]) -> None:
    async def some(mine: Sequence[str]) -> None:
        rest = Rest(bench.url, bench.token)
        try:
            for name in mine:
                await rest.call("PUT", f"/v1/queues/{name}", {"partitions": 1})
                await rest.call("PUT", f"/v1/queues/{name}/groups/{GROUP}", {})
        finally:
            rest.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(_CREATED_AT_ONCE):
            tasks.create_task(some(names[number::_CREATED_AT_ONCE]))


# --- polls

POLLS_WARM_UP: Final = 200
WAIT_S: Final = 20.0
"""The seconds that a poll waits, equal to the SDK's."""
_OPENING_AT_ONCE: Final = 64
_POLLS_QUEUE: Final = "polls"


class Waiting:
    """A session by long poll over one keep-alive connection. Its polls, one after another, bring
    nothing."""

    def __init__(self, bench: Bench) -> None:
        self.polls = 0
        self._rest = Rest(bench.url, bench.token)
        self._path = ""
        self._batch = 0
        self._task: asyncio.Task[None] | None = None

    async def open(self, first_wait_s: float) -> None:
        """Say hello, become a reader and begin to poll. The first poll is shorter, so that sessions
        do not all poll again at the same time."""
        hello = {"type": "hello", "client": "bench"}
        opened = await self._rest.call("POST", "/v1/sessions", hello)
        self._path, self._batch = f"/v1/sessions/{opened['session']}/frames", opened["batch"]
        subscribe = {
            "type": "subscribe",
            "ref": 1,
            "subscription": 1,
            "queue": _POLLS_QUEUE,
            "credit": 9,
        }
        await self._rest.call("POST", f"{self._path}?number=1", subscribe)
        frames = await self._poll(WAIT_S)
        if [frame["type"] for frame in frames] != ["ok"]:
            raise LoadFailed(f"a subscribe by long poll was answered {frames}")
        self._task = asyncio.create_task(self._wait(first_wait_s))

    async def _wait(self, wait_s: float) -> None:
        while True:
            if frames := await self._poll(wait_s):
                raise LoadFailed(f"an idle poll was answered {frames}")
            self.polls += 1
            wait_s = WAIT_S

    async def _poll(self, wait_s: float) -> list[dict[str, object]]:
        path = f"{self._path}?after={self._batch}&wait_s={wait_s:.3f}"
        status, answer = await self._rest.request("GET", path)
        if status != 200:
            raise LoadFailed(f"a poll was answered {status}: {answer.decode(errors='replace')}")
        batch = json.loads(answer)
        self._batch = batch["batch"]
        frames: list[dict[str, object]] = batch["frames"]
        return frames

    def check(self) -> None:
        """Raise the failure of the polling task, if it has failed."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop polling and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._rest.close()


async def polls(bench: Bench) -> Figures:
    """Measure the server's resident memory per long-poll session with one reader, and the CPU time
    it takes to hold them all open."""
    if bench.server is None:
        raise LoadFailed("polls needs the server's pid (--pid)")
    rest = Rest(bench.url, bench.token)
    try:
        await rest.call("PUT", f"/v1/queues/{_POLLS_QUEUE}", {"partitions": 1, "retention_s": 60})
    finally:
        rest.close()
    sessions: list[Waiting] = []
    try:
        await _open_polls(bench, sessions, POLLS_WARM_UP)
        await asyncio.sleep(1.0)
        before = bench.server.rss_bytes()
        await _open_polls(bench, sessions, bench.connections)
        await asyncio.sleep(2.0)
        kib = (bench.server.rss_bytes() - before) / bench.connections / 1024
        began, cpu_s, polled = time.monotonic(), bench.cpu_s(), _polled(sessions)
        await asyncio.sleep(bench.seconds)
        elapsed = time.monotonic() - began
        share = (bench.cpu_s() - cpu_s) / elapsed
        rate = (_polled(sessions) - polled) / elapsed
    finally:
        for session in sessions:
            await session.close()
    bench.progress(f"polls: {kib:.1f} KiB a session, {share:.1%} of a CPU, {rate:.0f} polls/s")
    figures = Figures()
    figures.more = {
        "kib_per_session": round(kib, 2),
        "server_cpu_share": round(share, 4),
        "polls_per_s": round(rate, 1),
    }
    figures.conditions = {
        "counted": f"VmRSS of the server, growth over {bench.connections} sessions by long poll "
        f"(after {POLLS_WARM_UP} uncounted) that hold one reader and one waiting poll; no kernel "
        "memory",
        "wait_s": WAIT_S,
    }
    return figures


async def _open_polls(bench: Bench, sessions: list[Waiting], count: int) -> None:
    """Open `count` more sessions."""
    done = 0
    while done < count:
        fresh = [Waiting(bench) for _ in range(min(_OPENING_AT_ONCE, count - done))]
        sessions += fresh
        waits = [bench.random.uniform(1.0, WAIT_S) for _ in fresh]
        await asyncio.gather(
            *(session.open(wait_s) for session, wait_s in zip(fresh, waits, strict=True))
        )
        done += len(fresh)
        if done // _OPENING_AT_ONCE % 16 == 0:
            bench.progress(f"polls: {done:,} of {count:,} sessions")


def _polled(sessions: list[Waiting]) -> int:
    """Return the number of polls that ended. Raises the failure of any session."""
    for session in sessions:
        session.check()
    return sum(session.polls for session in sessions)


# --- the load of producers and consumers, readers, and what is idle

BEHIND_MAX: Final = 9_000
"""The largest number of unanswered messages of an open loop's producer; the protocol allows
10,000."""
OVERTIME_S: Final = 10.0
"""The seconds after which an open loop gives up to send what the broker is too slow for."""
APART_S: Final = 2.0
"""Pause between two loads of which each needs the broker alone. The broker shares commits with
queues that brought messages within the last second."""
CONNECTIONS: Final = 5_000
"""Number of connections in fanout5k, idle and polls."""
IDLE_WARM_UP: Final = 200
FAN_PAUSE_S: Final = 0.1


async def batch100(bench: Bench) -> Figures:
    """Send frames of 100 messages, pipelined, as fast as the broker takes them."""
    async with quiet(LoadRun(bench, "batch100", 100, 20_000)) as line:
        await line.open()
        count, elapsed, cpu_us = await line.run(bench.seconds, "batch100")
        latency = Histogram()
        latency.add(line.latency)
        await line.drain()
        return line.note(Figures(count / elapsed, latency, cpu_us))


async def single(bench: Bench) -> Figures:
    """Send one message a frame, many in flight, as fast as the broker takes them."""
    async with quiet(LoadRun(bench, "single", 1, 4_000)) as line:
        await line.open()
        count, elapsed, cpu_us = await line.run(bench.seconds, "single")
        latency = Histogram()
        latency.add(line.latency)
        await line.drain()
        return line.note(Figures(count / elapsed, latency, cpu_us))


async def open_loop(bench: Bench, rate: int, partitions: int = PARTITIONS) -> Figures:
    """Send `rate` messages a second on a fixed schedule, one a frame. A message's latency counts
    from its scheduled time, however late this process or the broker was, so there is no coordinated
    omission. A broker that is late by OVERTIME_S is sent no more, and its rate says so."""
    behind_max = min(BEHIND_MAX, (bench.in_flight_max or BEHIND_MAX * PRODUCERS) // PRODUCERS)
    async with quiet(LoadRun(bench, "open", 1, 1 << 30, partitions=partitions)) as line:
        await line.open()
        began_ns, sent = time.monotonic_ns() + 10_000_000, 0

        async def offer(seconds: float) -> None:
            nonlocal sent
            until, latest = sent + int(seconds * rate), time.monotonic() + seconds + OVERTIME_S
            while sent < until and time.monotonic() < latest:
                line.check()
                # Message n is due at n / rate, so the first one at once.
                due = (time.monotonic_ns() - began_ns) * rate // 1_000_000_000 + 1
                while sent < min(due, until):
                    producer = line.producers[sent % PRODUCERS]
                    if producer.unanswered >= behind_max:
                        break  # seconds late: it is sent later, and its latency still counts
                    at = stamp(began_ns + sent * 1_000_000_000 // rate)
                    producer.publish(at)
                    sent += 1
                    line.published += 1
                for producer in line.producers:
                    producer.flush()
                await asyncio.sleep(0.001)

        await offer(WARM_UP_S)
        await line.drain()
        sent = 0
        line.latency.clear()
        before = await bench.commits()
        began_ns = time.monotonic_ns()
        settled, cpu_s, began = line.settled, bench.cpu_s(), time.monotonic()
        await offer(bench.seconds)
        await line.drain()
        count, elapsed = line.settled - settled, time.monotonic() - began
        cpu_us = bench.cpu_us(cpu_s, count)
        after = await bench.commits()
        bench.progress(f"open loop, {rate:,}/s: {count / elapsed:,.0f} messages/s")
        figures = Figures(count / elapsed, line.latency, cpu_us)
        if before and after:
            figures.more |= after.since(before, elapsed)
        figures.conditions |= {"offered_per_s": rate}
        line.note(figures).conditions.pop("in_flight_max")
        return figures


async def _connected(
    bench: Bench, queue: str, count: int, on_given: Callable[[int, int], None], what: str
) -> list[Party]:
    readers: list[Party] = []
    adapter = bench.adapter

    async def connect(number: int) -> None:
        readers.append(await adapter.reader(f"reader-{number}", queue, on_given))

    for first in range(0, count, _OPENING_AT_ONCE):
        await asyncio.gather(
            *(connect(number) for number in range(first, min(count, first + _OPENING_AT_ONCE)))
        )
        if first // _OPENING_AT_ONCE % 16 == 15:
            bench.progress(f"{what}: {len(readers):,} of {count:,} connections")
    return readers


def _check_all(clients: Sequence[Party]) -> None:
    for client in clients:
        if client.failure is not None:
            raise client.failure


async def fanout5k(bench: Bench) -> Figures:
    """Send one message at a time to `bench.connections` readers of one queue. The next one follows
    FAN_PAUSE_S after the last reader has the previous one. CPU and rate are per recipient."""
    await bench.adapter.feed("fanout5k")
    latency, given = Histogram(), 0
    all_given = asyncio.Event()

    def on_given(messages: int, latency_ns: int) -> None:
        nonlocal given
        given += messages
        latency.record(latency_ns, messages)
        if given >= expected:
            all_given.set()

    expected = 1 << 60
    readers = await _connected(bench, "fanout5k", bench.connections, on_given, "fanout5k")
    producer = await bench.adapter.producer("bench-fanout", "fanout5k", 1)
    gc.collect()
    gc.disable()
    try:
        rounds, cpu_s, began = 0, 0.0, 0.0
        deadline = time.monotonic() + WARM_UP_S + bench.seconds
        while not began or time.monotonic() < deadline:
            if not began and time.monotonic() > deadline - bench.seconds and rounds:
                latency.clear()
                rounds, cpu_s, began = 0, bench.cpu_s(), time.monotonic()
            all_given.clear()
            expected = given + len(readers)
            producer.publish(stamp(time.monotonic_ns()))
            producer.flush()
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await all_given.wait()
            rounds += 1
            _check_all([*readers, producer])
            await asyncio.sleep(FAN_PAUSE_S)
        recipients, elapsed = rounds * len(readers), time.monotonic() - began
        cpu_us = bench.cpu_us(cpu_s, recipients)
    except TimeoutError:
        raise LoadFailed(
            f"a message reached {len(readers) - (expected - given)} of {len(readers)} readers "
            f"within {DRAIN_TIMEOUT_S:.0f} s"
        ) from None
    finally:
        gc.enable()
        for client in (*readers, producer):
            client.close()
    bench.progress(f"fanout5k: {recipients / elapsed:,.0f} recipients/s")
    figures = Figures(recipients / elapsed, latency, cpu_us)
    figures.more = {"per": "recipient", "published": rounds}
    figures.conditions = {"readers": len(readers), "pause_s": FAN_PAUSE_S}
    return figures


async def idle(bench: Bench) -> Figures:
    """Measure the server's resident memory per connection that said hello and holds one reader."""
    if bench.server is None:
        raise LoadFailed("idle needs the server's pid (--pid)")
    await bench.adapter.feed("idle")

    def on_given(messages: int, latency_ns: int) -> None:
        raise LoadFailed("an idle connection was given a message")

    warm = await _connected(bench, "idle", IDLE_WARM_UP, on_given, "idle warm-up")
    await asyncio.sleep(1.0)
    before = bench.server.rss_bytes()
    readers = await _connected(bench, "idle", bench.connections, on_given, "idle")
    await asyncio.sleep(2.0)
    kib = (bench.server.rss_bytes() - before) / len(readers) / 1024
    _check_all([*warm, *readers])
    for reader in (*warm, *readers):
        reader.close()
    bench.progress(f"idle: {kib:.1f} KiB a connection")
    figures = Figures()
    figures.more = {"kib_per_connection": round(kib, 2)}
    figures.conditions = {
        "counted": f"VmRSS of the server, growth over {len(readers)} connections (after "
        f"{IDLE_WARM_UP} uncounted) that said hello and hold one reader; no kernel memory",
    }
    return figures


async def backlog(bench: Bench) -> Figures:
    """Measure the server's CPU time for a message (published, pushed, acked): once with none
    waiting, and once with consumers that read through `bench.backlog` messages waiting ahead."""
    async with quiet(LoadRun(bench, "backlog0", 100, 20_000)) as line:
        await line.open()
        _, _, live_us = await line.run(bench.seconds, "backlog, none waiting")
        await line.drain()
    # Filling at full speed beside another queue's recent messages would be a flood, and refused.
    await asyncio.sleep(APART_S)
    async with quiet(LoadRun(bench, "backlog1m", 100, bench.backlog)) as line:
        await line.open(consumers=0)
        line.publishing = True
        line.fill()
        began, cpu_s = time.monotonic(), bench.cpu_s()
        size = bench.backlog // 100 * 100
        await line.until(
            lambda: sum(p.answered for p in line.producers) >= size, "filling the backlog", 600.0
        )
        fill_us = bench.cpu_us(cpu_s, size)
        bench.progress(f"backlog: {size:,} waiting after {time.monotonic() - began:.1f} s")
        await line.consume(CONSUMERS)
        count, elapsed, behind_us = await line.run(bench.seconds, f"backlog, {size:,} waiting")
        figures = line.note(Figures(count / elapsed, None, behind_us))
    if live_us and behind_us and fill_us:
        figures.more |= {
            "server_cpu_us_per_message_live": round(live_us, 3),
            "server_cpu_us_to_publish": round(fill_us, 3),
            "ratio": round(behind_us / live_us, 3),
        }
    figures.conditions["waiting"] = size
    return figures


SCENARIOS: Final[dict[str, Callable[[Bench], Awaitable[Figures]]]] = {
    "batch100": batch100,
    "sdk100": sdk100,
    "single": single,
    "open1k": partial(open_loop, rate=1_000),
    "open5k": partial(open_loop, rate=5_000),
    "open10k": partial(open_loop, rate=10_000),
    "open10k-1": partial(open_loop, rate=10_000, partitions=1),
    "open10k-64": partial(open_loop, rate=10_000, partitions=64),
    "fanout5k": fanout5k,
    "idle": idle,
    "polls": polls,
    "backlog": backlog,
    "queues": queues,
    "keys": keys,
}
