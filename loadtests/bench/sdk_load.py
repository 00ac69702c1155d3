"""The scenario sdk100: batch100 through the public interface of the Python SDK.

The producers are clients of a hundred tasks each that only `await client.publish(...)`. They run in
a process of their own, as a user's producers do. Four consumers each ack in an `async for`. The
measurement shows how the SDK merges these calls (one frame a turn, acks as ranges). A hundred tasks
have at most a hundred messages in flight, so a single client mostly waits for the disk.
"""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final

import tocsin
import uvloop

from loadtests.bench.load_run import (
    CONSUMERS,
    DRAIN_TIMEOUT_S,
    PARTITIONS,
    WARM_UP_S,
    Bench,
    Figures,
)
from loadtests.clients.load import LoadFailed
from loadtests.histogram import Histogram

CLIENTS: Final = 100
TASKS: Final = 100
"""Number of tasks of each producing client."""
QUEUE: Final = "sdk100"
BODY_BYTES: Final = 256
KEYS: Final = 1000
SETTLING: Final = 40_000
"""Number of messages before the measurement begins. The first messages of each partition are marked
one by one, because a consumer that died may have held them (R19)."""
_TAIL: Final = "x" * (BODY_BYTES - 26)


class _Counts:
    """Counts and latencies over all consumers."""

    def __init__(self) -> None:
        self.settled = 0
        self.redelivered = 0
        self.latency = Histogram()


@dataclass(frozen=True)
class _Load:
    """The parameters of the producers' process."""

    url: str
    token: str | None
    queue: str
    clients: int


@dataclass
class _Run:
    rate: float
    cpu_us: float | None
    latency: Histogram
    redelivered: int


async def sdk100(bench: Bench) -> Figures:
    """Run batch100 with `await client.publish` and `async for`: once with a single client, and once
    with as many as have about as much in flight as batch100."""
    one = await _run(bench, f"{QUEUE}-one", 1)
    many = await _run(bench, QUEUE, CLIENTS)
    figures = Figures(many.rate, many.latency, many.cpu_us)
    figures.more = {
        "one_client_messages_per_s": round(one.rate),
        "redelivered": one.redelivered + many.redelivered,
    }
    figures.conditions = {
        "producers": f"{CLIENTS} clients of {TASKS} tasks that await each publish, one process",
        "consumers": f"{CONSUMERS} clients, async for and ack, another process",
        "in_flight_max": CLIENTS * TASKS,
    }
    return figures


async def _run(bench: Bench, queue: str, count: int) -> _Run:
    counts = _Counts()
    spawn = multiprocessing.get_context("spawn")
    stop, published = spawn.Event(), spawn.Value("q")
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(tocsin.connect(bench.url, token=bench.token))
            for _ in range(CONSUMERS)
        ]
        await clients[0].create_queue(queue, partitions=PARTITIONS)
        tasks = [asyncio.create_task(_consume(client, queue, counts)) for client in clients]
        producers = spawn.Process(
            target=_produce_all,
            args=(_Load(bench.url, bench.token, queue, count), stop, published),
            daemon=True,
        )
        gc.collect()
        gc.disable()
        producers.start()
        try:
            await _until(lambda: counts.settled >= SETTLING, tasks, "settling in")
            run = await _measured(bench, counts)
            stop.set()
            await _until(lambda: not producers.is_alive(), tasks, "stopping the producers")
            if producers.exitcode:
                raise LoadFailed(f"the producers ended with exit status {producers.exitcode}")
            await _until(lambda: counts.settled >= published.value, tasks, "draining the queue")
        finally:
            gc.enable()
            stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            producers.join(5)
            producers.kill()
    bench.progress(f"{queue}: {run.rate:,.0f} messages/s")
    return run


async def _measured(bench: Bench, counts: _Counts) -> _Run:
    await asyncio.sleep(WARM_UP_S)
    counts.latency.clear()
    settled, cpu_s, began = counts.settled, bench.cpu_s(), time.monotonic()
    await asyncio.sleep(bench.seconds)
    count, elapsed = counts.settled - settled, time.monotonic() - began
    return _Run(count / elapsed, bench.cpu_us(cpu_s, count), counts.latency, counts.redelivered)


async def _until(
    done: Callable[[], bool], tasks: Sequence["asyncio.Task[None]"], what: str
) -> None:
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while not done():
        for task in tasks:
            if task.done():
                task.result()
                raise LoadFailed("a consumer's iteration has ended")
        if time.monotonic() > deadline:
            raise LoadFailed(f"{what} took longer than {DRAIN_TIMEOUT_S:.0f} s")
        await asyncio.sleep(0.02)


async def _consume(client: tocsin.Client, queue: str, counts: _Counts) -> None:
    async with client.subscribe(queue, "workers") as messages:
        async for message in messages:
            await message.ack()
            counts.settled += 1
            if message.attempt > 1:
                counts.redelivered += 1
            if not counts.settled % 64:  # a sample: decoding each body would dominate the benchmark
                due_ns = int(message.body[:24])
                counts.latency.record(time.monotonic_ns() - due_ns, 1)


def _produce_all(load: _Load, stop: Event, published: "Synchronized[int]") -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(tocsin.connect(load.url, token=load.token))
                for _ in range(load.clients)
            ]
            counts = await asyncio.gather(
                *(
                    _produce(client, load.queue, place, stop)
                    for client in clients
                    for place in range(TASKS)
                )
            )
            published.value = sum(counts)

    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _produce(client: tocsin.Client, queue: str, place: int, stop: Event) -> int:
    """Publish and await, repeatedly, until `stop`; return the number of messages."""
    count = 0
    while count % 64 or not stop.is_set():  # asking another process costs a system call
        body = f"{time.monotonic_ns():024d}{_TAIL}"
        await client.publish(queue, body, key=f"key-{(place * 37 + count) % KEYS}")
        count += 1
    return count
