"""The scenario sdk100: batch100 through the public interface of the Python SDK.

Four clients, each with a hundred tasks that do nothing but `await client.publish(...)`, in a
process of their own as a user's producers are; four consumers, each an `async for` that acks. What
the SDK makes of it (one frame a turn, acks as ranges) is what is measured.
"""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final

import tocsin
import uvloop

from loadtests.histogram import Histogram
from loadtests.line import (
    CONSUMERS,
    DRAIN_TIMEOUT_S,
    PARTITIONS,
    PRODUCERS,
    WARM_UP_S,
    Bench,
    Figures,
)
from loadtests.load import LoadFailed

TASKS: Final = 100
"""Of each producing client."""
QUEUE: Final = "sdk100"
BODY_BYTES: Final = 256
KEYS: Final = 1000
SETTLING: Final = 40_000
"""Messages before anything is measured: the first ones of each partition are marked one by one,
because a consumer that died may have held them (R19)."""
_TAIL: Final = "x" * (BODY_BYTES - 26)


class _Counts:
    """What the consumers have seen."""

    def __init__(self) -> None:
        self.settled = 0
        self.redelivered = 0
        self.latency = Histogram()


async def sdk100(bench: Bench) -> Figures:
    """As batch100, with `await client.publish` and `async for`."""
    counts = _Counts()
    spawn = multiprocessing.get_context("spawn")
    stop, published = spawn.Event(), spawn.Value("q")
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(tocsin.connect(bench.url, token=bench.token))
            for _ in range(CONSUMERS)
        ]
        await clients[0].create_queue(QUEUE, partitions=PARTITIONS)
        tasks = [asyncio.create_task(_consume(client, counts)) for client in clients]
        producers = spawn.Process(
            target=_produce_all, args=(bench.url, bench.token, stop, published), daemon=True
        )
        gc.collect()
        gc.disable()
        producers.start()
        try:
            await _until(lambda: counts.settled >= SETTLING, tasks, "settling in")
            await asyncio.sleep(WARM_UP_S)
            counts.latency.clear()
            settled, cpu_s, began = counts.settled, bench.cpu_s(), time.monotonic()
            await asyncio.sleep(bench.seconds)
            count, elapsed = counts.settled - settled, time.monotonic() - began
            cpu_us = bench.cpu_us(cpu_s, count)
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
    bench.progress(f"sdk100: {count / elapsed:,.0f} messages/s")
    figures = Figures(count / elapsed, counts.latency, cpu_us)
    figures.more["redelivered"] = counts.redelivered
    figures.conditions = {
        "producers": f"{PRODUCERS} clients of {TASKS} tasks that await each publish, one process",
        "consumers": f"{CONSUMERS} clients, async for and ack, another process",
        "in_flight_max": PRODUCERS * TASKS,
    }
    return figures


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


async def _consume(client: tocsin.Client, counts: _Counts) -> None:
    async with client.subscribe(QUEUE, "workers") as messages:
        async for message in messages:
            await message.ack()
            counts.settled += 1
            if message.attempt > 1:
                counts.redelivered += 1
            if not counts.settled % 64:  # a sample: decoding each body would be the benchmark
                due_ns = int(message.body[:24])
                counts.latency.record(time.monotonic_ns() - due_ns, 1)


def _produce_all(url: str, token: str | None, stop: Event, published: "Synchronized[int]") -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(tocsin.connect(url, token=token))
                for _ in range(PRODUCERS)
            ]
            counts = await asyncio.gather(
                *(_produce(client, place, stop) for client in clients for place in range(TASKS))
            )
            published.value = sum(counts)

    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _produce(client: tocsin.Client, place: int, stop: Event) -> int:
    """One task: publish, await, again; how many."""
    count = 0
    while count % 64 or not stop.is_set():  # asking another process costs a system call
        body = f"{time.monotonic_ns():024d}{_TAIL}"
        await client.publish(QUEUE, body, key=f"key-{(place * 37 + count) % KEYS}")
        count += 1
    return count
