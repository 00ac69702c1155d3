"""The scenarios of `tocsin bench`. Each is end to end: published, durable, pushed, acknowledged
with the acks confirmed, except that readers (fanout5k) acknowledge nothing by nature."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from loadtests.bench.adapter import Party
from loadtests.bench.growth import keys, queues
from loadtests.bench.load_run import (
    CONSUMERS,
    DRAIN_TIMEOUT_S,
    PRODUCERS,
    WARM_UP_S,
    Bench,
    Figures,
    Line,
    quiet,
)
from loadtests.bench.polls import polls
from loadtests.bench.sdk_load import sdk100
from loadtests.clients.load import LoadFailed, stamp
from loadtests.histogram import Histogram

OPEN_RATE: Final = 10_000
"""Messages a second of open10k."""
BEHIND_MAX: Final = 9_000
"""Unanswered messages of a producer of open10k; the protocol allows 10,000."""
APART_S: Final = 2.0
"""Between two loads that are to have the broker for themselves: it shares commits with who brought
something in the second before."""
CONNECTIONS: Final = 5_000
"""Of fanout5k, idle and polls."""
IDLE_WARM_UP: Final = 200
FAN_PAUSE_S: Final = 0.1
_OPENING_AT_ONCE: Final = 64


async def batch100(bench: Bench) -> Figures:
    """Frames of 100 messages, pipelined, as many as the broker takes."""
    async with quiet(Line(bench, "batch100", 100, 20_000)) as line:
        await line.open()
        count, elapsed, cpu_us = await line.run(bench.seconds, "batch100")
        latency = Histogram()
        latency.add(line.latency)
        await line.drain()
        return line.note(Figures(count / elapsed, latency, cpu_us))


async def single(bench: Bench) -> Figures:
    """One message a frame, many in flight, as many as the broker takes."""
    async with quiet(Line(bench, "single", 1, 4_000)) as line:
        await line.open()
        count, elapsed, cpu_us = await line.run(bench.seconds, "single")
        latency = Histogram()
        latency.add(line.latency)
        await line.drain()
        return line.note(Figures(count / elapsed, latency, cpu_us))


async def open_loop(bench: Bench, rate: int = OPEN_RATE) -> Figures:
    """So many messages a second on a fixed schedule, one a frame. The latency of a message counts
    from the moment at which it was due, however late we or the broker were: no coordinated
    omission."""
    async with quiet(Line(bench, "open10k", 1, 1 << 30)) as line:
        await line.open()
        began_ns, sent = time.monotonic_ns() + 10_000_000, 0

        async def offer(seconds: float) -> None:
            nonlocal sent
            until = sent + int(seconds * rate)
            while sent < until:
                line.check()
                due = (time.monotonic_ns() - began_ns) * rate // 1_000_000_000
                while sent < min(due, until):
                    producer = line.producers[sent % PRODUCERS]
                    if producer.unanswered >= BEHIND_MAX:
                        break  # seconds behind: it goes later, and its latency still counts
                    at = stamp(began_ns + sent * 1_000_000_000 // rate)
                    producer.publish(at)
                    sent += 1
                    line.published += 1
                for producer in line.producers:
                    producer.flush()
                await asyncio.sleep(0.001)

        await offer(WARM_UP_S)
        await line.drain()
        began_ns, sent = time.monotonic_ns(), 0
        line.latency.clear()
        settled, cpu_s, began = line.settled, bench.cpu_s(), time.monotonic()
        await offer(bench.seconds)
        await line.drain()
        count, elapsed = line.settled - settled, time.monotonic() - began
        cpu_us = bench.cpu_us(cpu_s, count)
        bench.progress(f"open loop, {rate:,}/s: {count / elapsed:,.0f} messages/s")
        figures = Figures(count / elapsed, line.latency, cpu_us)
        figures.conditions |= {"offered_per_s": rate}
        line.note(figures).conditions.pop("in_flight_max")
        return figures


async def _connected(
    bench: Bench, queue: str, count: int, on_given: Callable[[int, int], None], what: str
) -> list[Party]:
    readers: list[Party] = []
    dialect = bench.dialect

    async def connect(number: int) -> None:
        readers.append(await dialect.reader(f"reader-{number}", queue, on_given))

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
    """One message at a time to 5,000 readers of one queue; the next one a moment after the last
    reader has it. CPU and rate are per recipient."""
    await bench.dialect.feed("fanout5k")
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
    producer = await bench.dialect.producer("bench-fanout", "fanout5k", 1)
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
    """Resident memory of the server per connection that said hello and holds one reader."""
    if bench.server is None:
        raise LoadFailed("idle needs the server's pid (--pid)")
    await bench.dialect.feed("idle")

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
    """The cost of a message (published, pushed, acked) with none and with a million waiting in
    front of it: the same load, once live, once with consumers that read through a backlog."""
    async with quiet(Line(bench, "backlog0", 100, 20_000)) as line:
        await line.open()
        _, _, live_us = await line.run(bench.seconds, "backlog, none waiting")
        await line.drain()
    # Beside what another queue brought just now a fill as fast as can be is a flood, and refused.
    await asyncio.sleep(APART_S)
    async with quiet(Line(bench, "backlog1m", 100, bench.backlog)) as line:
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
    "open10k": partial(open_loop, rate=OPEN_RATE),
    "fanout5k": fanout5k,
    "idle": idle,
    "polls": polls,
    "backlog": backlog,
    "queues": queues,
    "keys": keys,
}
