"""The shipped alerts, with seconds in place of minutes: each fires with a real fault, and ends with
it. Takes five minutes and needs root: `make soak`."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import tocsin
from tocsin.settings import Alert

from gateway.server import FILES_KEPT
from loadtests.server import Server, free_port
from push import limits
from scripts.monitoring.alerts import ALERTS
from storage.sqlite.open import FILE
from tests.layout.tree import ROOT
from tests.system.monitored import ENTER, TOKEN, World, monitored, settings
from tests.system.prometheus import Running, Unanswered, scraping
from tests.system.talk import http_to, talking
from tests.system.test_cluster import running
from tests.waiting import becomes

pytestmark = [
    pytest.mark.skipif(not os.environ.get("TOCSIN_SOAK"), reason="the whole run: make soak"),
    pytest.mark.skipif(os.getuid() != 0, reason="a disk is made full: this needs root"),
]

ACL: Final = ROOT / "deploy/redis/users.acl"
WITHOUT: Final = {
    "TocsinInternalErrors": "it is a bug of ours, which a test cannot ask for",
    "TocsinFsyncSlow": "needs a disk that is slow",
    "TocsinClockJumped": "needs a machine whose clock a test may set",
    "TocsinScrapeIncomplete": "a scrape every second ends before the storage is given up on",
}
"""Alerts without a fault here. promtool's tests cover all alerts."""
WINDOWS: Final = {"1m": "4s", "5m": "6s", "10m": "45s", "15m": "12s", "30m": "45s", "1h": "12s"}
BOUNDS: Final = {
    "TocsinGroupBehind": ("> 600", "> 2"),
    "TocsinPartitionsMove": ("> 500", "> 3"),
    "TocsinWebhooksFail": ("> 10", "> 0"),
    "TocsinMetadataAway": ("> 30", "> 8"),
    "TocsinDutiesFail": ("> 20", "> 3"),
}
"""Bounds of alerts that are minutes, or high counts, in the shipped rules."""
SESSIONS: Final = 40
FILES: Final = FILES_KEPT + SESSIONS
FEW_FILES: Final = (
    "-c",
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n"
    "from gateway.cli.serve import serve; serve()",
)


def scaled(text: str) -> str:
    """Return the rules without their waits."""
    parts = re.split(r"(?=      - alert: )", text)
    for place, part in enumerate(parts):
        name = part.removeprefix("      - alert: ").partition("\n")[0]
        if name in BOUNDS:
            old, new = BOUNDS[name]
            assert old in part, name
            parts[place] = part.replace(old, new)
    text = re.sub(r"\bfor: \S+", "for: 0s", "".join(parts))
    return re.sub(r"\[(\d+[mh])\]", lambda match: f"[{WINDOWS[match[1]]}]", text)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Mount a file system in memory, with a size of its own."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@dataclass
class Faulty(World):
    """The installation with another embedded gateway, `crowded`, which has a small disk and few
    files."""

    crowded: Server
    disk: Path

    def resize(self, size: str) -> None:
        """Change the size of its disk."""
        subprocess.run(["mount", "-o", f"remount,size={size}", self.disk], check=True)

    def firing(self) -> set[str]:
        """Return the names of firing alerts."""
        alerts = self.prometheus.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


JOBS: Final = {
    "tocsin": ["embedded", "crowded"], "tocsin-shared": ["shared"], "tocsin-metadata": ["node"],
    "tocsin-manager": ["manager"],
}  # fmt: skip
TARGETS: Final = ("tocsin", *JOBS, "tocsin-orders")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """The whole installation, scraped, without a firing alert."""
    folder, port = tmp_path_factory.mktemp("alerts"), free_port()
    nowhere = {"TOCSIN_ALERT_WEBHOOKS": f"nowhere=http://127.0.0.1:{free_port()}/"}
    beside = {"crowded": f"127.0.0.1:{port}"}
    with (
        disk(folder / "disk"),
        Server(folder / "disk" / "crowded", command=FEW_FILES, settings=settings(port)) as crowded,
        monitored(folder, JOBS, embedded=nowhere, beside=beside, rules=scaled) as made,
    ):
        asyncio.run(watched(made.processes["embedded"]))
        yield Faulty(**vars(made), crowded=crowded, disk=folder / "disk")
    for process in made.processes.values():
        assert b"Traceback" not in process.log_path.read_bytes(), process.log_tail(60)


async def watched(server: Server) -> None:
    """Create the queue that its holder observes."""
    async with http_to(server, TOKEN) as http:
        assert (await http.put("/v1/queues/orders", json={})).status_code == 201


@asynccontextmanager
async def client_of(world: Faulty, name: str) -> AsyncIterator[tocsin.Client]:
    async with tocsin.connect(world.processes[name].url, token=TOKEN) as client:
        yield client


@asynccontextmanager
async def during(work: Callable[[], Any]) -> AsyncIterator[None]:
    """Repeat the work during the block, whatever its result."""

    async def working() -> None:
        while True:
            with suppress(httpx2.HTTPError, tocsin.TocsinError, OSError):
                await work()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(working())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def seek_end(world: Faulty, queue: str) -> None:
    async with http_to(world.processes["embedded"], TOKEN) as http:
        path = f"/v1/queues/{queue}/groups/billing/seek"
        assert (await http.post(path, json={"to": "latest"})).status_code == 200


# --- Faults --------------------------------------------------------------------------------------


@asynccontextmanager
async def killed(server: Server) -> AsyncIterator[None]:
    """Kill a process during the block, and start it again afterwards."""
    server.kill()
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


def a_gateway_is_killed(world: Faulty) -> AbstractAsyncContextManager[None]:
    return killed(world.processes["embedded"])


@asynccontextmanager
async def a_gateway_stands_still(world: Faulty) -> AsyncIterator[None]:
    server = world.processes["embedded"]
    server.freeze()
    await asyncio.sleep(0.8)
    server.thaw()
    yield


@asynccontextmanager
async def a_disk_of(world: Faulty, size: str) -> AsyncIterator[None]:
    """Resize the disk during the block, while a client publishes."""
    async with http_to(world.crowded, TOKEN) as http:
        assert (await http.put("/v1/queues/orders", json={})).status_code in (200, 201)
        batch = {"messages": [{"body": n} for n in range(10)]}
        world.resize(size)
        try:
            async with during(lambda: http.post("/v1/queues/orders/messages", json=batch)):
                yield
        finally:
            world.resize("4g")


def a_disk_is_nearly_full(world: Faulty) -> AbstractAsyncContextManager[None]:
    """Leave too little space for the log, but enough for publishing."""
    return a_disk_of(world, "400m")


def a_disk_is_full(world: Faulty) -> AbstractAsyncContextManager[None]:
    return a_disk_of(world, "200m")


@asynccontextmanager
async def files_run_out(world: Faulty) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(SESSIONS - 1):
            await stack.enter_async_context(talking(world.crowded, token=TOKEN))
        while len(os.listdir(f"/proc/{world.crowded.pid}/fd")) < FILES * 0.93:
            _, writer = await asyncio.open_connection("127.0.0.1", world.crowded.port)
            stack.callback(writer.close)
        yield


@asynccontextmanager
async def handlers_fail(world: Faulty) -> AsyncIterator[None]:
    async with client_of(world, "embedded") as client, AsyncExitStack() as stack:
        await client.create_queue("failing", partitions=1, attempts_max=1)
        await client.create_queue("parked", partitions=1, attempts_max=1, on_exhausted="park")
        for queue in ("failing", "parked"):
            messages = await stack.enter_async_context(client.subscribe(queue, group="billing"))
            await client.publish(queue, 0, key="j")
            await (await anext(messages)).ack()
            # A counter's first sample is no increase.
            there = f'tocsin_group_messages_total{{queue="{queue}"}}'
            await becomes(partial(asyncio.to_thread, world.prometheus.holds, there))
            await client.publish(queue, 1, key="k")
            await (await anext(messages)).nack()
        try:
            yield
        finally:
            await seek_end(world, "parked")


@asynccontextmanager
async def nobody_consumes(world: Faulty) -> AsyncIterator[None]:
    async with client_of(world, "embedded") as client:
        await client.create_queue("lonely", partitions=1)
        async with http_to(world.processes["embedded"], TOKEN) as http:
            await http.put("/v1/queues/lonely/groups/billing", json={})
        await client.publish("lonely", 1)
        try:
            yield
        finally:
            await seek_end(world, "lonely")


@asynccontextmanager
async def a_consumer_is_slow(world: Faulty) -> AsyncIterator[None]:
    async with client_of(world, "embedded") as client:
        await client.create_queue("slow", partitions=1)

        async def consume() -> None:
            async with client.subscribe("slow", group="billing", credit=1) as messages:
                async for message in messages:
                    await asyncio.sleep(1.5)
                    await message.ack()

        try:
            async with during(consume), during(lambda: client.publish("slow", 1)):
                yield
        finally:
            await seek_end(world, "slow")


@asynccontextmanager
async def consumers_come_and_go(world: Faulty) -> AsyncIterator[None]:
    async with client_of(world, "embedded") as client:
        await client.create_queue("restless", partitions=4)

        async def once() -> None:
            async with client.subscribe("restless", group="billing") as messages:
                await client.publish("restless", 1)
                await (await anext(messages)).ack()

        async with during(once):
            yield


@asynccontextmanager
async def a_webhook_is_away(world: Faulty) -> AsyncIterator[None]:
    async with client_of(world, "embedded") as client:
        wanted = Alert(name="deep", when="depth", above=0, lasts_s=0, webhook="nowhere")
        await client.create_queue("watched", partitions=1, retention_s=60, alerts=[wanted])
        await client.publish("watched", 1)
        try:
            yield
        finally:
            await client.update_queue("watched", alerts=[])


@asynccontextmanager
async def a_record_is_damaged(world: Faulty) -> AsyncIterator[None]:
    """Damage a record while its gateway is down."""
    server = world.processes["embedded"]
    async with client_of(world, "embedded") as client:
        await client.create_queue("damaged", partitions=1)
        async with http_to(server, TOKEN) as http:
            await http.put("/v1/queues/damaged/groups/billing", json={})
        await client.publish("damaged", "the last record of the file")
    await asyncio.to_thread(server.stop)
    with closing(sqlite3.connect(server.data_dir / FILE)) as file, file:
        last = "SELECT rowid, payload FROM record ORDER BY rowid DESC LIMIT 1"
        ((row, payload),) = file.execute(last).fetchall()
        flipped = payload[:-1] + bytes([payload[-1] ^ 4])
        file.execute("UPDATE record SET payload = ? WHERE rowid = ?", (flipped, row))
    await asyncio.to_thread(server.start)
    there = 'tocsin_storage_damage_reports_total{job="tocsin"} == 0'
    await becomes(partial(asyncio.to_thread, world.prometheus.holds, there))
    async with client_of(world, "embedded") as client:
        await client.publish("damaged", "sound")
        async with client.subscribe("damaged", group="billing") as messages:
            message = await anext(messages)
            assert message.body == "sound"
            await message.ack()
    yield


def a_node_is_killed(world: Faulty) -> AbstractAsyncContextManager[None]:
    return killed(world.processes["node"])


@asynccontextmanager
async def a_manager_lacks_rights(world: Faulty) -> AsyncIterator[None]:
    """Run a manager with its own user only, and without a metadata service, so that the catalog is
    closed to it."""
    (own,) = [line for line in ACL.read_text().splitlines() if "tocsin-manager" in line]
    _, user, _, _, *rights = own.split()
    world.store.ask("ACL", "SETUSER", user, "on", ">a-password", *rights)
    manager, at = world.processes["manager"], f"{world.store.address}:{world.store.port}"
    port = int(world.at["manager"].rpartition(":")[2])
    url = {"TOCSIN_STORAGE": f"redis://{user}:a-password@{at}"}
    await asyncio.to_thread(manager.stop)
    other = Server(
        manager.data_dir.with_name("other"), command=(*ENTER, "manager", "serve"),
        settings=url | settings(port),
    )  # fmt: skip
    try:
        other.spawn()
        yield
    finally:
        await asyncio.to_thread(other.stop)
        manager.spawn()


@asynccontextmanager
async def publishing(world: Faulty) -> AsyncIterator[None]:
    """Publish at the gateway over the store during the block."""
    async with http_to(world.processes["shared"], TOKEN) as http:
        await http.put("/v1/queues/orders", json={"partitions": 1})
        one = {"messages": [{"body": 1}]}
        async with during(lambda: http.post("/v1/queues/orders/messages", json=one)):
            yield


@asynccontextmanager
async def the_store_is_slow(world: Faulty) -> AsyncIterator[None]:
    async def again() -> None:
        world.store.freeze()
        await asyncio.sleep(0.7)
        world.store.thaw()
        await asyncio.sleep(0.2)

    try:
        async with publishing(world), during(again):
            yield
    finally:
        world.store.thaw()


@asynccontextmanager
async def the_store_hangs(world: Faulty) -> AsyncIterator[None]:
    """Freeze the store for longer than a commit may take."""
    async with publishing(world):
        await asyncio.sleep(1)
        world.store.freeze()
        try:
            await asyncio.sleep(limits.COMMIT_DEADLINE_S + 2)
        finally:
            world.store.thaw()
        yield


@asynccontextmanager
async def the_store_is_killed(world: Faulty) -> AsyncIterator[None]:
    async with publishing(world):
        await asyncio.sleep(1)
        world.store.kill()
        try:
            yield
        finally:
            await asyncio.to_thread(world.store.start)


FAULTS: Final[dict[Callable[[Faulty], Any], set[str]]] = {
    a_gateway_is_killed: {"TocsinProcessDown"},
    a_gateway_stands_still: {"TocsinLoopLate"},
    a_disk_is_nearly_full: {"TocsinDiskNearlyFull", "TocsinDeliveryLogIncomplete"},
    a_disk_is_full: {"TocsinPublishingStopped"},
    files_run_out: {"TocsinFilesNearlyOut", "TocsinSessionsNearlyFull"},
    handlers_fail: {"TocsinDeadLetters", "TocsinKeysParked"},
    nobody_consumes: {"TocsinGroupWithoutConsumers", "TocsinGroupBehind"},
    a_consumer_is_slow: {"TocsinDispatchSlow"},
    consumers_come_and_go: {"TocsinPartitionsMove"},
    a_webhook_is_away: {"TocsinWebhooksFail"},
    a_record_is_damaged: {"TocsinDamage"},
    a_node_is_killed: {"TocsinMetadataAway"},
    a_manager_lacks_rights: {"TocsinDutiesFail"},
    the_store_is_slow: {"TocsinCommitsSlow", "TocsinCopiesSlow"},
    the_store_hangs: {"TocsinUnknownOutcomes"},
    the_store_is_killed: {
        "TocsinNotReady", "TocsinAlone", "TocsinBreakerOpen", "TocsinOverloaded",
        "TocsinNodeBehind", "TocsinNobodyManages", "TocsinNobodyEvaluates",
    },
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_fires_its_alerts_and_they_clear_when_it_is_over(
    world: Faulty, fault: Callable[[Faulty], Any]
) -> None:
    wanted = FAULTS[fault]
    await becomes(lambda: asyncio.to_thread(world.prometheus.is_up, TARGETS))
    await becomes(lambda: asyncio.to_thread(lambda: not wanted & world.firing()))
    fired: set[str] = set()

    async def have_fired() -> bool:
        fired.update(await asyncio.to_thread(world.firing))
        return wanted <= fired

    async with fault(world):
        with suppress(AssertionError):
            await becomes(have_fired)
        assert wanted - fired == set()
    await becomes(lambda: asyncio.to_thread(lambda: not wanted & world.firing()), 90)


OF_A_CLUSTER: Final = "TocsinReplicaAway"


async def test_a_replica_that_stands_still_fires_its_alert_until_it_goes_on(
    tmp_path: Path,
) -> None:
    """In a whole cluster: the manager first reports it as away, then as out when it is no longer
    counted."""
    small = ("--no-demo", "--gateways=1", "--clusters=1", "--metadata=1", "--managers=1")
    with running(tmp_path / "cluster", *small) as run:
        parts = {part["name"]: part for part in (await asyncio.to_thread(run.started))["parts"]}
        targets = {job: [parts["manager-1"]["at"]] for job in {*TARGETS}}
        with scraping(tmp_path / "prometheus", targets, scaled) as prometheus:
            for name in ("orders.token", "metrics.token"):
                (prometheus.folder / name).write_text(TOKEN)

            def states() -> set[str]:
                alerts = prometheus.ask("alerts")["alerts"]
                named = [one["labels"] for one in alerts if one["state"] == "firing"]
                return {one["state"] for one in named if one["alertname"] == OF_A_CLUSTER}

            await becomes(lambda: asyncio.to_thread(is_seen, prometheus))
            os.kill(parts["store-one-2"]["pid"], signal.SIGSTOP)
            try:
                await becomes(lambda: asyncio.to_thread(lambda: "out" in states()), 60)
            finally:
                os.kill(parts["store-one-2"]["pid"], signal.SIGCONT)
            await becomes(lambda: asyncio.to_thread(lambda: not states()), 90)
        assert await asyncio.to_thread(run.end) == 0


def is_seen(prometheus: Running) -> bool:
    """Whether a manager has reported two healthy replicas."""
    with suppress(OSError, Unanswered):
        query = 'tocsin_manager_servers{state="in sync"}'
        found = prometheus.ask("query", query=query)["result"]
        return any(one["value"][1] == "2" for one in found)
    return False


def test_every_alert_has_its_fault_or_a_reason() -> None:
    named = [OF_A_CLUSTER, *(name for names in FAULTS.values() for name in names)]
    assert sorted([*named, *WITHOUT]) == sorted({alert.name for alert in ALERTS})
