"""A message whose handler kills its process is counted, and in the end it is out of the way."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tocsin

from loadtests.server import Server
from tests.system.talk import running

HANDLER = """
import asyncio, os, sys
import tocsin

async def handle(message):
    if message.body == "killer":
        os._exit(77)

async def main():
    async with tocsin.connect(sys.argv[1], linger_s=float(sys.argv[2])) as client:
        async with client.subscribe("orders", group="workers") as messages:
            async for message in messages:
                await handle(message)
                await message.ack(confirm=True)
                if message.body == "last":
                    return

asyncio.run(main())
"""
ATTEMPTS_MAX = 3
LINGER_S = 3
"""The next process starts meanwhile, and receives nothing until the dead one is given up."""
RUN_S_MAX = 60


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    with running(tmp_path) as server:
        yield server


async def test_a_killer_message_is_counted_each_time_and_then_dead_lettered(server: Server) -> None:
    """R19: it kills in its handler's first turn of the loop, each time at once, so its process
    never sends anything afterwards. The messages after it had not started, and are not counted."""
    async with tocsin.connect(server.url) as client:
        await client.create_queue(
            "orders", partitions=1, attempts_max=ATTEMPTS_MAX, backoff_s=0, backoff_max_s=0
        )
        await client.create_group("orders", "workers")
        bodies = ["killer", *range(50), "last"]
        await client.publish_many("orders", [{"body": body, "key": "k"} for body in bodies])
        statuses = []
        for _ in range(ATTEMPTS_MAX + 1):
            run = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", HANDLER, server.url, str(LINGER_S)],
                timeout=RUN_S_MAX, check=False,
            )  # fmt: skip
            statuses.append(run.returncode)
        assert statuses == [77] * ATTEMPTS_MAX + [0]
        async with client.read("orders.dead-letters", start="earliest") as letters:
            letter = await anext(letters)
        assert (letter.body, letter.headers["tocsin-dead-letter-attempts"]) == ("killer", "3")
        described = await client.group("orders", "workers")
        assert described["lag"] == 0
