"""What a manager does about storage clusters, over a real catalog: facts, what deleted queues held,
and the scale hook, which hears of each wish once."""

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.stores.clusters import place_queues_on
from metadata.catalog import ANYBODY, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.placement import (
    CLUSTER_MARK,
    HOLD_S,
    SCALING_MARK,
    ClusterProbe,
    read_facts,
    read_wish,
)
from push.errors import Refused
from runtime.webhook import HOOK_S, SAID_BYTES_MAX, HookFailed, ScaleHook, check_hook
from services.manager.placement import HOOK_AGAIN_S, LEFT_S, OutCluster
from storage.memory import MemoryStorage
from storage.redis.target import Target
from tests.catalogs import open_catalog
from tests.waiting import becomes


class World:
    """A catalog, a storage, two clusters as they are found, and a hook that writes down what it is
    told."""

    def __init__(self, folder: Path, metadata: CatalogService) -> None:
        self.metadata = metadata
        self.storage = MemoryStorage()
        self.used = {"a": 10, "b": 10}
        self.silent: set[str] = set()
        self.heard = folder / "heard"
        self.program = folder / "hook"
        self.says(0)

    def says(self, code: int, seconds: float = 0.0) -> None:
        """How the hook ends, and after how long."""
        text = f'#!/bin/sh\ncat >> "{self.heard}"\necho >> "{self.heard}"\n'
        self.program.write_text(text + f"sleep {seconds}\necho no room >&2\nexit {code}\n")
        self.program.chmod(0o700)

    async def look(self) -> Sequence[ClusterProbe]:
        """At both."""
        return [
            ClusterProbe(name, "", used, 100, "no answer" if name in self.silent else "")
            for name, used in self.used.items()
        ]

    def manager(self, *, leads: bool = True, within_s: float = 10.0) -> OutCluster:
        """One of them."""
        hook = ScaleHook(str(self.program), within_s=within_s)
        return OutCluster(self.metadata, self.storage, self.look, leads=lambda: leads, hook=hook)

    def state(self, name: str) -> str | None:
        """As the catalog has it."""
        facts = read_facts(self.metadata.mark(CLUSTER_MARK + name))
        return facts.state if facts is not None else None

    def told(self) -> list[dict[str, Any]]:
        """Return the calls that the hook received, in order."""
        if not self.heard.exists():
            return []
        return [json.loads(line) for line in self.heard.read_text().splitlines() if line]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """See World."""
    metadata = await open_catalog(tmp_path)
    yield World(tmp_path, metadata)
    await metadata.close()


async def steps(manager: OutCluster, *times: float) -> None:
    """A step at each; what was begun has ended after each."""
    for at in times:
        await manager.step(now=at)
        if manager._hook_task is not None:
            await asyncio.wait([manager._hook_task])


async def fails(manager: OutCluster, *times: float) -> None:
    """A step at each, and something cannot be done: that is told behind all that can."""
    for at in times:
        with pytest.raises(Refused, match="it does not answer"):
            await steps(manager, at)


async def test_what_is_found_stands_in_the_catalog(world: World) -> None:
    manager = world.manager()
    world.used["b"] = 80
    await steps(manager, 0)
    assert (world.state("a"), world.state("b")) == ("well", "hot")
    world.silent.add("a")
    await steps(manager, 5, 20)
    assert world.state("a") == "away"


async def test_who_does_not_lead_does_nothing(world: World) -> None:
    queue, _ = await world.metadata.put_queue(ANYBODY, "orders", QueueSettings())
    await world.storage.create_queue(queue.queue_id, 16)
    await world.metadata.delete_queue(ANYBODY, "orders")
    await steps(world.manager(leads=False), 0, 1000)
    assert world.state("a") is None
    assert len(await world.storage.partitions(queue.queue_id)) == 16


async def test_what_a_deleted_queue_held_is_freed_when_nobody_else_does(world: World) -> None:
    """P9: the gateway that deleted it has gone, and none has been started since."""
    queue, _ = await world.metadata.put_queue(ANYBODY, "orders", QueueSettings())
    await world.storage.create_queue(queue.queue_id, 16)
    manager = world.manager()
    await steps(manager, 0)
    await world.metadata.delete_queue(ANYBODY, "orders")
    await steps(manager, 1, LEFT_S)
    assert len(await world.storage.partitions(queue.queue_id)) == 16
    await steps(manager, 1 + LEFT_S)
    assert await world.storage.partitions(queue.queue_id) == []
    assert world.metadata.dropped() == []


class Stubborn(MemoryStorage):
    """One that cannot drop a queue now: a cluster that has some of it is away."""

    kept = frozenset[str]()

    async def drop_queue(self, queue_id: str) -> None:
        if queue_id in self.kept:
            raise Refused("storage_unavailable", "it does not answer")
        await super().drop_queue(queue_id)


async def test_what_cannot_be_freed_now_holds_up_nothing_else(world: World) -> None:
    """P9: a cluster is away for days, and some of a deleted queue is there."""
    world.storage = storage = Stubborn()
    manager = world.manager()
    for name in ("first", "second", "third"):
        queue, _ = await world.metadata.put_queue(ANYBODY, name, QueueSettings())
        await storage.create_queue(queue.queue_id, 1)
        await world.metadata.delete_queue(ANYBODY, name)
    first, *others = world.metadata.dropped()
    storage.kept = frozenset({first[0]})
    await steps(manager, 0)
    await fails(manager, LEFT_S)
    await steps(manager, LEFT_S + 2)
    assert world.metadata.dropped() == [first]
    assert [await storage.partitions(queue_id) for queue_id, _ in others] == [[], []]
    storage.kept = frozenset()
    await steps(manager, 2 * LEFT_S)
    assert world.metadata.dropped() == []


async def test_however_much_cannot_be_freed_the_rest_is_in_the_same_round(world: World) -> None:
    world.storage = storage = Stubborn()
    manager = world.manager()
    for number in range(20):
        queue, _ = await world.metadata.put_queue(ANYBODY, f"q{number}", QueueSettings())
        await storage.create_queue(queue.queue_id, 1)
        await world.metadata.delete_queue(ANYBODY, f"q{number}")
    *kept, (freed, _) = world.metadata.dropped()
    storage.kept = frozenset(queue_id for queue_id, _ in kept)
    await steps(manager, 0)
    await fails(manager, LEFT_S)
    assert await storage.partitions(freed) == []
    assert world.metadata.dropped() == kept


async def test_the_hook_hears_once_of_what_has_held(world: World) -> None:
    world.used = {"a": 85, "b": 90}
    manager = world.manager()
    await steps(manager, 0, HOLD_S - 1)
    assert world.told() == []
    await steps(manager, HOLD_S, HOLD_S + 2, 2 * HOLD_S, 1000)
    (told,) = world.told()
    assert (told["number"], told["wish"], told["remove"]) == (1, "add", [])
    assert [one["used_share"] for one in told["clusters"]] == [0.85, 0.9]
    world.used = {"a": 10, "b": 5}
    await steps(manager, 1100, 1100 + HOLD_S)
    assert [(one["number"], one["wish"], one["remove"]) for one in world.told()] == [
        (1, "add", []), (2, "remove", ["b"]),
    ]  # fmt: skip


async def test_another_manager_does_not_repeat_what_was_received(world: World) -> None:
    world.used = {"a": 85, "b": 90}
    await steps(world.manager(), 0, HOLD_S)
    await steps(world.manager(), 0, HOLD_S, HOOK_S, 1000)
    assert len(world.told()) == 1


async def test_a_hook_that_did_not_answer_is_called_again_under_the_same_number(
    world: World,
) -> None:
    """Also by the manager that leads next, once the one before must have ended telling it."""
    world.used = {"a": 85, "b": 90}
    world.says(3)
    manager = world.manager()
    await steps(manager, 0, HOLD_S, HOLD_S + 2)
    assert len(world.told()) == 1
    await steps(manager, HOLD_S + HOOK_AGAIN_S)
    assert len(world.told()) == 2
    world.says(0)
    successor = world.manager()
    await steps(successor, 0, HOOK_S - 1)
    assert len(world.told()) == 2
    await steps(successor, HOOK_S, 1000)
    assert [one["number"] for one in world.told()] == [1, 1, 1]
    wish = read_wish(world.metadata.mark(SCALING_MARK))
    assert wish is not None
    assert wish.is_told


async def test_a_queue_keeps_its_cluster_from_being_removed(world: World) -> None:
    world.metadata.place_queues(lambda _queue_id, _settings: ("b",))
    await world.metadata.put_queue(ANYBODY, "orders", QueueSettings())
    await steps(world.manager(), 0, HOLD_S)
    assert world.told() == []


async def test_one_duty_that_fails_leaves_the_others(world: World) -> None:
    """The storage does not answer: facts are kept all the same, and it is tried again."""
    world.storage = storage = Stubborn()
    queue, _ = await world.metadata.put_queue(ANYBODY, "orders", QueueSettings())
    await world.metadata.delete_queue(ANYBODY, "orders")
    manager = world.manager()
    storage.kept = frozenset({queue.queue_id})
    await steps(manager, 0)
    world.used["a"] = 90
    await fails(manager, LEFT_S)
    assert world.state("a") == "hot"
    assert world.metadata.dropped() == [(queue.queue_id, None)]
    storage.kept = frozenset()
    await steps(manager, 2 * LEFT_S)
    assert world.metadata.dropped() == []


async def test_a_hook_that_hangs_is_killed(world: World) -> None:
    world.says(0, seconds=60)
    with pytest.raises(HookFailed, match="did not end within"):
        await ScaleHook(str(world.program), within_s=0.2).tell(b"{}")


async def test_what_a_hook_leaves_behind_is_not_waited_for(world: World, tmp_path: Path) -> None:
    """A program that brings up machines does not stay until they are there."""
    left = tmp_path / "left"
    world.program.write_text(f'#!/bin/sh\nsleep 60 &\necho $! > "{left}"\n')
    try:
        await ScaleHook(str(world.program), within_s=20).tell(b"{}")
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)  # it is there


async def test_what_a_hook_says_before_it_fails_is_told(world: World) -> None:
    world.says(3)
    with pytest.raises(HookFailed, match="ended with 3: no room"):
        await ScaleHook(str(world.program)).tell(b"{}")
    with pytest.raises(HookFailed, match="cannot be started"):
        await ScaleHook(str(world.program) + "-gone").tell(b"{}")


async def test_of_a_hook_that_says_much_the_end_is_told(world: World) -> None:
    """The reason is in its last line. [What was logged was the beginning of its progress.]"""
    much = "i=0; while [ $i -lt 1000 ]; do echo näher dran >&2; i=$((i+1)); done"
    world.program.write_text(f"#!/bin/sh\n{much}\necho no room >&2\nexit 3\n")
    with pytest.raises(HookFailed, match=r"(?s)ended with 3: .*näher dran\nno room$") as failed:
        await ScaleHook(str(world.program)).tell(b"{}")
    assert len(str(failed.value).encode()) < SAID_BYTES_MAX + 200


async def test_an_address_is_posted_to_and_its_query_not_logged() -> None:
    heard: list[bytes] = []
    status = b"204 No Content"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        heard.append(head.split(b"\r\n")[0] + b" " + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = ScaleHook(f"http://127.0.0.1:{port}/scale?key=s3cret", within_s=5)
    async with server:
        await hook.tell(b'{"wish":"add"}')
        status = b"500 Oh"
        with pytest.raises(HookFailed, match="answers 500") as failed:
            await hook.tell(b"{}")
    assert heard[0] == b'POST /scale?key=s3cret HTTP/1.1 {"wish":"add"}'
    assert "s3cret" not in str(failed.value)
    with pytest.raises(HookFailed):
        await hook.tell(b"{}")


def test_a_hook_is_an_address_or_a_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    assert check_hook(str(program)) == str(program)
    assert check_hook("https://h/x?y") == "https://h/x?y"
    wrong = ("http://", "https://u:p@h", "http://h:99999/", "http://h:x/", "")
    for text in (str(tmp_path / "gone"), str(tmp_path), *wrong):
        with pytest.raises(ValueError):
            check_hook(text)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes what it is told and answers a byte now and then, for ever."""
    listening, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip(line: socket.socket) -> None:
        with line, suppress(OSError):
            line.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.05):
                line.sendall(b"a")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listening.accept()[0],)).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    over.set()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


async def test_an_address_that_hangs_is_let_go_of(silent: str) -> None:
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(HookFailed, match="no answer in time"):
            await ScaleHook(silent, within_s=0.2).tell(b"{}")
    await becomes(lambda: threading.active_count() == before)
    telling = asyncio.create_task(ScaleHook(silent).tell(b"{}"))
    await becomes(lambda: threading.active_count() > before + 1)
    telling.cancel()
    await becomes(lambda: threading.active_count() == before)
    assert telling.cancelled()


class Answers:
    """A cluster that gateways reach."""

    answers = True


@dataclass(frozen=True)
class Named:
    """Of a storage cluster, what placing goes by."""

    cluster: str
    zone: str = ""


async def test_nothing_new_goes_to_a_cluster_that_a_hook_is_to_remove(world: World) -> None:
    targets = cast(Sequence[Target], [Named("a"), Named("b")])
    place_queues_on(targets, world.metadata, {"a": Answers(), "b": Answers()})
    await steps(
        OutCluster(world.metadata, world.storage, world.look, leads=lambda: True), 0, HOLD_S
    )
    wish = read_wish(world.metadata.mark(SCALING_MARK))
    assert wish is not None
    assert (wish.kind, wish.clusters) == ("remove", ("b",))  # and there is nobody who would
    queue, _ = await world.metadata.put_queue(ANYBODY, "first", QueueSettings())
    assert set(queue.clusters) == {"a", "b"}
    await world.metadata.delete_queue(ANYBODY, "first")
    await world.metadata.set_mark(SCALING_MARK, "")
    await steps(world.manager(), 0, HOLD_S)
    assert world.told()[-1]["remove"] == ["b"]
    queue, _ = await world.metadata.put_queue(ANYBODY, "orders", QueueSettings())
    assert set(queue.clusters) == {"a"}
    world.used["a"] = 95  # and not where there is no room
    manager = world.manager()
    await steps(manager, 100)
    queue, _ = await world.metadata.put_queue(ANYBODY, "letters", QueueSettings())
    assert set(queue.clusters) == {"b"}
    await steps(manager, 100 + HOLD_S, 100 + 2 * HOLD_S)
    assert world.told()[-1]["wish"] == "enough"


class Frozen:
    """A catalog to a manager that stands still while it writes."""

    def __init__(self, catalog: CatalogService) -> None:
        self._catalog = catalog
        self.writes = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def set_mark(self, name: str, value: str) -> None:
        """Late."""
        self.writes.set()
        await self.goes_on.wait()
        await self._catalog.set_mark(name, value)


async def test_what_a_manager_of_before_writes_late_does_not_stay(world: World) -> None:
    catalog = Frozen(world.metadata)
    before = OutCluster(
        cast(CatalogService, catalog), world.storage, world.look, leads=lambda: True
    )
    frozen = asyncio.create_task(before.step(now=0))
    await catalog.writes.wait()
    world.used["a"] = 95
    manager = world.manager()
    await steps(manager, 100)
    assert world.state("a") == "hot"
    catalog.goes_on.set()
    await frozen
    assert world.state("a") == "well"
    await steps(manager, 102)
    assert world.state("a") == "hot"


async def test_a_hook_s_answer_to_a_manager_of_before_takes_no_newer_wish_back(
    world: World,
) -> None:
    world.used = {"a": 95, "b": 95}
    leads = True
    answers = asyncio.Event()

    class Hook(ScaleHook):
        async def tell(self, body: bytes) -> None:
            await answers.wait()

    before = OutCluster(
        world.metadata, world.storage, world.look, leads=lambda: leads, hook=Hook("")
    )
    await before.step(now=0)
    await before.step(now=HOLD_S)
    telling = before._hook_task
    assert telling is not None
    leads = False
    world.used = {"a": 50, "b": 50}
    after = 100 + HOLD_S + HOOK_S
    await steps(world.manager(), 100, 100 + HOLD_S, after, after + HOOK_AGAIN_S)
    wish = read_wish(world.metadata.mark(SCALING_MARK))
    assert wish is not None
    assert (wish.number, wish.kind, wish.is_told) == (2, "enough", True)
    answers.set()
    await telling
    assert read_wish(world.metadata.mark(SCALING_MARK)) == wish
