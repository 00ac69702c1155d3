"""The example of effects that happen once, under `kill -9` of the broker and of its processes."""

import asyncio
import os
import random
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest
import tocsin

from loadtests.server import Server
from tests.layout.tree import ROOT

EXAMPLE = ROOT / "clients/python/examples/effectively_once_sqlite.py"
ACCOUNTS = [f"account-{n}" for n in range(12)]
KILLS = 6
ROUNDS_MAX = 10
"""The most rounds of the control, which ends when something was booked twice."""
NAIVE = "lambda *_: True"
"""The claim in the negative control, to which everything is new."""
PAUSE = """
import asyncio
from tocsin.api.subscription import Subscription
run = Subscription.run
async def run_with_pauses(self, handler, **more):
    async def handle(message):
        await handler(message)
        await asyncio.sleep(0.02)
    await run(self, handle, **more)
Subscription.run = run_with_pauses
"""
"""A pause between the effect and its ack, where kills make an effect happen twice. Without it they
hardly ever fall there."""


class Booker:
    """A process of the example."""

    def __init__(self, server: Server, database: Path, *, naive: bool) -> None:
        self._environment = {**os.environ, "TOCSIN_URL": server.url}
        lines = [
            "import functools, runpy, sys, tocsin",
            "from tocsin.effects import Applied",
            # A killed process's deliveries soon go to the other one.
            "tocsin.connect = functools.partial(tocsin.connect, linger_s=1)",
            f"Applied.claim = {NAIVE}" if naive else "",
            PAUSE,
            f"sys.argv = ['', {str(database)!r}]",
            f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')",
        ]
        self._code = "\n".join(lines)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it has joined its group."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", self._code, env=self._environment, cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"booking\n"

    async def kill(self) -> None:
        """End it with `kill -9`."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def publish(server: Server, rng: random.Random, stop: asyncio.Event) -> Counter[str]:
    """Publish payments until `stop`; return the final sum of every account."""
    sums: Counter[str] = Counter()
    async with tocsin.connect(server.url) as client:
        while not stop.is_set():
            payments = [(account, rng.randint(1, 99)) for account in ACCOUNTS]
            await client.publish_many(
                "payments",
                [{"body": {"account": a, "amount": n}, "key": a} for a, n in payments],
            )
            sums.update(dict(payments))
            await asyncio.sleep(0.05)  # so that kills happen while payments are outstanding
    return sums


async def settled(server: Server) -> None:
    """Wait until the group has nothing left."""
    async with tocsin.connect(server.url) as client:
        for _ in range(600):
            if (await client.group("payments", "ledger"))["lag"] == 0:
                return
            await asyncio.sleep(0.05)
    raise AssertionError("the group does not come to its end")


async def through_kills(server: Server, bookers: list[Booker], rng: random.Random) -> Counter[str]:
    """Publish payments while broker and bookers are killed, and wait until all are booked."""
    stop = asyncio.Event()
    publishing = asyncio.create_task(publish(server, rng, stop))
    for number in range(KILLS):
        await asyncio.sleep(rng.uniform(0.05, 0.25))
        if number % 3 == 0:
            server.kill()
            await asyncio.to_thread(server.start)
        else:
            booker = rng.choice(bookers)
            await booker.kill()
            await booker.start()
    stop.set()
    sums = await publishing
    await settled(server)
    return sums


def booked(path: Path) -> tuple[dict[str, int], Counter[str]]:
    """Return the accounts, and how often each payment was booked."""
    database = sqlite3.connect(path)
    try:
        accounts = dict(database.execute("SELECT name, sum FROM accounts").fetchall())
        payments = Counter(row[0] for row in database.execute("SELECT payment FROM bookings"))
        return accounts, payments
    finally:
        database.close()


@pytest.mark.parametrize("naive", [False, True], ids=["once", "control"])
async def test_each_effect_once_under_kill_9_of_broker_and_consumers(
    tmp_path: Path, naive: bool
) -> None:
    """The control applies every delivery, and these kills must make it book something twice."""
    rng = random.Random(7)
    server, path = Server(tmp_path / "data"), tmp_path / "ledger.sqlite"
    server.start()
    bookers = [Booker(server, path, naive=naive) for _ in range(2)]
    try:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("payments", partitions=4, lease_s=2)
        for booker in bookers:
            await booker.start()
        sums: Counter[str] = Counter()
        for _ in range(ROUNDS_MAX if naive else 1):
            sums += await through_kills(server, bookers, rng)
            if naive and max(booked(path)[1].values()) > 1:
                break
    finally:
        for booker in bookers:
            await booker.kill()
        server.kill()
    accounts, payments = booked(path)
    if naive:
        assert max(payments.values()) > 1
        return
    assert max(payments.values()) == 1
    assert accounts == sums, "nothing is missing, nothing was booked twice"
