"""The broker is killed, or goes down for a deploy, while handlers of the SDK run. Each message runs
once, and those handled meanwhile are settled under the new broker (R22)."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
import tocsin

from loadtests.server import Server

Runs = Counter[int]
COUNT, CREDIT, PARTITIONS = 60, 20, 8
"""COUNT is more than both consumers hold, so the second broker gives some."""


async def balanced(client: tocsin.Client) -> None:
    """Wait until both consumers have their partitions. If one moved while the broker ends, it would
    belong to its new owner, and the old one's deliveries would come again."""
    owners: list[str] = []
    while len(owners) != PARTITIONS or len(set(owners)) != 2:
        places = (await client.group("q", "g"))["partitions"]
        owners = [place["owner"]["consumer"] for place in places if place["owner"]]


async def run_through(server: Server, end: Callable[[Server], object], *, linger_s: float) -> Runs:
    """Return how often each message ran, with a restart in the middle of the first handlers."""
    ran: Runs = Counter()
    settled: set[int] = set()
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    if end is Server.stop:
        go_on.set()  # a drain waits for held deliveries

    async def handler(message: tocsin.Message) -> None:
        ran[message.body] += 1
        if len(ran) >= CREDIT:
            begun.set()
        await go_on.wait()
        await asyncio.sleep(0.3)
        await message.ack(confirm=True)
        settled.add(message.body)
        if len(settled) == COUNT:
            done.set()

    async with (
        tocsin.connect(server.url, linger_s=linger_s) as one,
        tocsin.connect(server.url, linger_s=linger_s) as two,
    ):
        await one.create_queue("q", partitions=PARTITIONS)
        await one.create_group("q", "g")
        async with (
            one.subscribe("q", "g", credit=CREDIT) as first,
            two.subscribe("q", "g", credit=CREDIT) as second,
        ):
            running = [
                asyncio.create_task(messages.run(handler, concurrency=CREDIT))
                for messages in (first, second)
            ]
            async with asyncio.timeout(40):
                await balanced(one)
                await one.publish_many("q", [{"body": n, "key": f"k{n}"} for n in range(COUNT)])
                await begun.wait()
                await asyncio.to_thread(end, server)
                await asyncio.to_thread(server.start)
                go_on.set()
                await done.wait()
            assert (await one.group("q", "g"))["lag"] == 0
            for task in running:
                task.cancel()
            await asyncio.wait(running)
    return ran


@pytest.mark.parametrize("end", [Server.kill, Server.stop])
async def test_what_handlers_work_on_outlives_the_broker(
    server: Server, end: Callable[[Server], object]
) -> None:
    ran = await run_through(server, end, linger_s=30)
    assert ran == Counter(range(COUNT))


async def test_without_a_session_that_lingers_what_was_in_hand_runs_again(server: Server) -> None:
    """The control: the test above depends on the adoption."""
    ran = await run_through(server, Server.kill, linger_s=0)
    assert sorted(ran) == list(range(COUNT))
    assert max(ran.values()) == 2
