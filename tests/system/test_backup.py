"""A backup of a broker process under load, restored elsewhere: nothing acknowledged is missing, and
nothing of the lost history counts (P1, P10, R2, R30)."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from loadtests.server import Server
from tests.layout.tree import ROOT
from tests.system.talk import http_to, running, talking

ADMIN = ("-c", "from gateway.cli.serve import admin; admin()")
QUEUE = "/v1/queues/orders"
PRODUCERS = 4
BATCH = 20
SIZE = 2_000
ATTEMPTS = 20
BEFORE = 5_000
"""Number of messages that are acknowledged before a backup begins: 10 MB, so that it takes many
steps."""


class Load:
    """Producers that never pause, and the messages acknowledged to them."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Body → (partition, offset)."""
        self.producers: list[asyncio.Task[None]] = []
        self._next = 0
        self._news = asyncio.Event()

    async def produce(self, http: httpx2.AsyncClient) -> None:
        """Publish until cancelled."""
        while True:
            numbers = range(self._next, self._next + BATCH)
            self._next += BATCH
            messages = [{"key": f"k{n % 50}", "body": [n, "x" * SIZE]} for n in numbers]
            answer = await http.post(f"{QUEUE}/messages", json={"messages": messages})
            for number, result in zip(numbers, answer.json()["results"], strict=True):
                self.acknowledged[number] = (result["partition"], result["offset"])
            self._news.set()

    async def reached(self, count: int) -> None:
        """Wait until `count` are acknowledged."""
        async with asyncio.timeout(60):
            while len(self.acknowledged) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def loaded(server: Server) -> AsyncIterator[Load]:
    """Yield a queue's producers, which have published BEFORE messages already."""
    load = Load()
    async with http_to(server) as http:
        await http.put(QUEUE, json={"partitions": 4, "retention_s": 3600})
        load.producers = [asyncio.create_task(load.produce(http)) for _ in range(PRODUCERS)]
        try:
            await load.reached(BEFORE)
            yield load
        finally:
            for producer in load.producers:
                producer.cancel()
            await asyncio.wait(load.producers)


async def run(*arguments: object) -> tuple[int, str]:
    """Run a command of `tocsin admin` like a user; return exit code and output."""
    command = [sys.executable, *ADMIN, *map(str, arguments)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


async def stored(http: httpx2.AsyncClient) -> dict[int, tuple[int, int]]:
    """Return all messages that a new group receives: body → (partition, offset)."""
    found: dict[int, tuple[int, int]] = {}
    group = f"{QUEUE}/groups/audit"
    await http.put(group, json={"start": "earliest"})
    while True:
        answer = await http.post(f"{group}/pull", json={"messages_max": 1000, "wait_s": 1})
        messages = answer.json()["messages"]
        if not messages:
            return found
        for message in messages:
            found[message["body"][0]] = (message["partition"], message["offset"])
        receipts = [message["receipt"] for message in messages]
        await http.post(f"{group}/ack", json={"receipts": receipts})


async def verdicts(server: Server, position: dict[str, Any]) -> list[str]:
    """Return the verdicts for a reader with this position."""
    async with talking(server) as talk:
        answer = await talk.ask(
            type="subscribe", ref=1, subscription=1, queue="orders", credit=1, position=position
        )
    return [line["verdict"] for line in answer["positions"]]


async def test_a_backup_under_load_is_restored_elsewhere(tmp_path: Path) -> None:
    backup, elsewhere = tmp_path / "backup", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running(tmp_path) as server:
        async with loaded(server) as load, http_to(server) as http:
            wanted = {"messages_max": 5, "wait_s": 20}
            pulled = await http.post(f"{QUEUE}/groups/billing/pull", json=wanted)
            receipts = [message["receipt"] for message in pulled.json()["messages"]]
            before = dict(load.acknowledged)
            code, output = await run("backup", backup, "--data-dir", server.data_dir)
            assert code == 0, output
            assert len(load.acknowledged) > len(before), "publishing went on"
            await load.reached(len(load.acknowledged) + 100)
            described = (await http.get(QUEUE)).json()
        position = {
            "queue_id": described["queue_id"],
            "partitions": {
                str(p["partition"]): [p["generation"], 1] for p in described["partitions"]
            },
        }
        assert await verdicts(server, position) == ["resumed"] * 4
        assert (await run("restore", backup, "--data-dir", server.data_dir))[0] == 1
        assert (await run("verify", backup))[0] == 0
        lost = dict(load.acknowledged)
    code, output = await run("restore", backup, "--data-dir", elsewhere / "data", "--json")
    assert code == 0, output
    shutil.copyfile(server.key_path, elsewhere / "data.key")  # it is in no backup
    with running(elsewhere) as server:
        async with http_to(server) as http:
            assert await verdicts(server, position) == ["unknown"] * 4
            answer = await http.post(f"{QUEUE}/groups/billing/ack", json={"receipts": receipts})
            assert answer.json() == {"settled": 0, "stale": receipts}
            found = await stored(http)
    assert {body: found.get(body) for body in before} == before
    assert {body: lost.get(body) for body in found} == found, "nothing was invented"
    assert json.loads(output)["incarnation"] != json.loads(output)["incarnation_before"]


def freeze_within(server: Server, backup: Path) -> bool:
    """Stop the broker as soon as it has begun the backup; return whether that was before its
    end."""
    deadline = time.monotonic() + 60
    while not (backup / "store.sqlite").exists():  # another process makes it, silently
        assert time.monotonic() < deadline, "the backup did not begin"
        time.sleep(0.0005)
    server.freeze()
    return not (backup / "manifest.json").exists()


async def killed_within_a_backup(server: Server, folder: Path) -> Path:
    """`kill -9` the broker in the middle of a backup; return the backup's path."""
    for number in range(ATTEMPTS):
        backup = folder / f"backup-{number}"
        asking = asyncio.create_task(run("backup", backup, "--data-dir", server.data_dir))
        within = await asyncio.to_thread(freeze_within, server, backup)
        if within:
            server.kill()
        else:
            server.thaw()
        code, output = await asking
        if within:
            assert (code, "did not answer" in output or "ended" in output) == (1, True), output
            return backup
    raise AssertionError(f"{ATTEMPTS} backups ended before they could be interrupted")


async def test_a_backup_that_was_killed_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        async with loaded(server) as load:
            for producer in load.producers:
                producer.cancel()
            backup = await killed_within_a_backup(server, tmp_path)
        code, output = await run("restore", backup, "--data-dir", tmp_path / "restored")
        assert (code, "not finished" in output) == (1, True), output
        assert (await run("verify", backup))[0] == 1
        assert not (tmp_path / "restored").exists()
        assert (await run("verify", server.data_dir))[0] == 0, "what the kill left is whole"
    finally:
        server.kill()
