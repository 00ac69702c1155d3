"""What a message costs as there is more of everything else: queues, and keys.

It is measured over few of them while there are only few, and then over few and over many in turns,
in one broker. What is compared is the median of the ratios of two neighbours: a machine whose speed
changes from minute to minute hits both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Final

from loadtests.bench.adapter import GROUP, Tocsin
from loadtests.bench.load_run import CONSUMERS, PARTITIONS, PRODUCERS, Bench, Figures, Line, quiet
from loadtests.clients.load import Consumer, Producer, Shape
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram

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
PAIRS: Final = 5
REST_S: Final = 1.2
"""Between two stretches. Who brings much beside others that have brought little in the last second
is taken for a flood, and what he has waiting is bounded (push.company): here nobody is beside."""
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
    few, many = counts
    async with quiet(await opened(few)) as small:
        alone = await _stretch(bench, small, f"{few:,} {what}, before there are more")
        async with quiet(await opened(many)) as large:
            pairs = []
            for number in range(PAIRS):
                both = [(small, f"{few:,} {what}"), (large, f"{many:,} {what}")]
                turn = 1 if number % 2 == 0 else -1  # the one that begins changes, too
                found = [await _stretch(bench, line, name) for line, name in both[::turn]][::turn]
                pairs.append((found[0], found[1]))
            figures = large.note(_compared(alone, pairs, few))
    figures.conditions[what] = list(counts)
    return figures


async def _stretch(bench: Bench, line: Line, name: str) -> Figures:
    count, elapsed, cpu_us = await line.run(bench.seconds / 2, name)
    await line.drain()
    await asyncio.sleep(REST_S)
    latency = Histogram()
    latency.add(line.latency)
    return Figures(count / elapsed, latency, cpu_us)


def _compared(alone: Figures, pairs: list[tuple[Figures, Figures]], few: int) -> Figures:
    """Over many: medians, and the latencies of all stretches."""
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
