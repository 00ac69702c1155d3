"""What a message costs as there is more of everything else: queues, and keys."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from loadtests.dialect import GROUP, Tocsin
from loadtests.line import CONSUMERS, PARTITIONS, PRODUCERS, Bench, Figures, Line, quiet
from loadtests.load import Consumer, Producer, Shape
from loadtests.rest import Rest

QUEUES: Final = (10, 10_000)
KEYS: Final = (1_000, 1_000_000)
KEYS_OF_QUEUES: Final = 100_000
"""Of all queues of `queues` together."""
SESSIONS: Final = 40
"""Of consumers, however many queues there are: one subscribes to 256 at most."""
BLOCKS: Final = 5_000
"""Ready-made frames of each producer where there are a million keys: 2 million messages of random
keys have about 865,000 different ones. With fewer keys they are as many."""
WINDOW: Final = 6_000
MESSAGES_PER_FRAME: Final = 100
_AT_ONCE: Final = 32


async def queues(bench: Bench) -> Figures:
    """The same messages in frames of 100, each frame to the next one of 10 queues, and then of
    10,000; each queue has one partition and a group. There are as many keys in all, or it would be
    them that grow."""
    return await _grown(bench, "queues", QUEUES, lambda many: _over_queues(bench, many))


async def keys(bench: Bench) -> Figures:
    """The same messages in frames of 100 to one queue, of 1,000 keys and then of a million."""
    return await _grown(bench, "keys", KEYS, lambda many: _of_keys(bench, many))


async def _grown(
    bench: Bench, what: str, counts: tuple[int, int], opened: Callable[[int], Awaitable[Line]]
) -> Figures:
    found = []
    for many in counts:
        async with quiet(await opened(many)) as line:
            count, elapsed, cpu_us = await line.run(bench.seconds, f"{many:,} {what}")
            await line.drain()
            found.append(line.note(Figures(count / elapsed, line.latency, cpu_us)))
    few, figures = found
    before, after = few.server_cpu_us_per_message, figures.server_cpu_us_per_message
    if before and after:
        figures.more |= {
            f"server_cpu_us_per_message_{counts[0]}": round(before, 3),
            "ratio": round(after / before, 3),
        }
    figures.conditions[what] = list(counts)
    return figures


async def _over_queues(bench: Bench, many: int) -> Line:
    names = [f"queues{many}-{number}" for number in range(many)]
    await _create(bench, names)
    bench.progress(f"queues: {many:,} are there")
    shape = Shape(bench.shape.body_bytes, KEYS_OF_QUEUES // many)
    line = Line(bench, names[0], MESSAGES_PER_FRAME, WINDOW)
    for number in range(PRODUCERS):
        # Each begins elsewhere, so that they are not at one queue all at once.
        begin = number * many // PRODUCERS
        await _produce(bench, line, shape, names[begin:] + names[:begin])
    for number in range(SESSIONS):
        await _consume(bench, line, shape, names[number::SESSIONS])
    return line


async def _of_keys(bench: Bench, many: int) -> Line:
    name, shape = f"keys{many}", Shape(bench.shape.body_bytes, many)
    await Tocsin(bench.url, bench.token).shared(name, PARTITIONS)
    line = Line(bench, name, MESSAGES_PER_FRAME, WINDOW)
    for _ in range(PRODUCERS):
        await _produce(bench, line, shape, [name], blocks=BLOCKS)
    for _ in range(CONSUMERS):
        await _consume(bench, line, shape, [name])
    return line


async def _produce(
    bench: Bench, line: Line, shape: Shape, queues: Sequence[str], *, blocks: int = 0
) -> None:
    name = f"growth-{len(line.producers)}"
    producer = Producer(name, queues, shape, MESSAGES_PER_FRAME, bench.random, blocks=blocks)
    producer.on_answers = line.fill
    await producer.open(bench.url, bench.token, producer.name)
    line.producers.append(producer)


async def _consume(bench: Bench, line: Line, shape: Shape, queues: Sequence[str]) -> None:
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
        for number in range(_AT_ONCE):
            tasks.create_task(some(names[number::_AT_ONCE]))
