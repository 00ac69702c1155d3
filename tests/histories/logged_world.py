"""Gateways that share a store and log their acts: whole histories in virtual time, which leave
finished log files. All times come from one clock, the loop's. Each reading of it takes some
microseconds, so that no two events have the same time.

    World        the gateways of one history, their clients, and their log files
    Client       a subscription and its handlers, as an SDK runs them: of a key one at a time
"""

import asyncio
import os
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

import pytest

from gateway.broker import Broker, begin_log
from gateway.config import Config
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.writer import FOLDER, LogWriter
from gateway.models import Transport
from metadata.catalog import ANYBODY, Group, GroupSettings, Queue
from metadata.port import Metadata
from push.errors import TocsinError
from push.message import Message
from push.storage_port import Storage
from storage.memory import MemoryStorage
from tests.conformance.virtual import START_S, VirtualLoop
from tests.histories.gateways import Gateway, SharedMetadata, SharedStorage, Town
from tests.histories.house import Frame, Session, message, offsets_of
from tests.memory import in_memory
from tests.waiting import becomes

BASE_UNIX_S = 1_769_900_000.0
"""2026-01-31 22:53:20 UTC, when every history begins."""
FILE_BYTES = 200_000
"""The size of a log file; most gateways have one."""
GATHER_S = 0.05
"""Time that acks wait for others."""
Fate = Literal["ack", "nack", "reject", "forget", "extend", "start"]
"""A handler's act on a message. forget: nothing, its lease ends; start: the same, after a mark that
it has begun; extend: it extends its lease, and acks then."""
Where = tuple[int, int]


def _wall() -> float:
    return time.time()  # as it is patched by then


class OneClock:
    """A clock of the loop's time, which never returns the same time twice."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: str) -> None:
        self._loop = loop
        self._random = Random(seed)
        self._chance = Random(seed + " chance")
        self._last_us = 0
        self._thread = threading.get_ident()

    def us(self) -> int:
        """Return microseconds of virtual time. Other threads get the last value, because the moment
        of their reading is chance."""
        if threading.get_ident() != self._thread:
            return self._last_us
        now_us = int((self._loop.time() - START_S) * 1_000_000)
        self._last_us = max(now_us, self._last_us + self._random.randint(1, 40))
        return self._last_us

    def unix_ns(self) -> int:
        """Return unix nanoseconds, in place of time.time_ns."""
        return int(BASE_UNIX_S * 1_000_000_000) + self.us() * 1000

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the process's clocks and its sources of chance, so that a seed gives the same
        history each time, byte by byte."""
        before = random.getstate()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: self.unix_ns() / 1e9)
            patch.setattr(time, "time_ns", self.unix_ns)
            patch.setattr(time, "monotonic_ns", lambda: self.us() * 1000)
            patch.setattr(os, "urandom", self._chance.randbytes)
            patch.setattr(random, "_urandom", self._chance.randbytes)  # `secrets` takes this
            random.seed(self._chance.getrandbits(64))  # the jitter of backoffs
            try:
                yield
            finally:
                random.setstate(before)


class OneThread(VirtualLoop):
    """An event loop that runs other threads' work at once, because the end of a thread is
    chance."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run the function here and now."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # the caller gets it
            done.set_exception(error)
        return done


class LoggedGateway(Gateway):
    """A gateway whose log is in files. `host`: the log folder that it shares with its
    successors."""

    town: "World"

    def __init__(self, world: "World", folder: Path, name: str, host: str) -> None:
        super().__init__(world, folder, name)
        self.host = host
        self.is_up = False

    async def open(self) -> None:
        """Start the gateway with the log on."""
        town = self.town
        self.metadata = SharedMetadata(town.catalog, town.listeners)
        self.storage = SharedStorage(town.memory, town.inbox, town.wake_ups, town.owned, [])
        config = Config(
            data_dir=self.folder / self.host, delivery_log_file_bytes=self.town.file_bytes,
            delivery_log_file_s=3600, free_bytes_reserve=0,
        )  # fmt: skip
        config.data_dir.mkdir(mode=0o700, exist_ok=True)
        metadata, storage = cast(Metadata, self.metadata), cast(Storage, self.storage)
        self.broker = Broker(config, metadata, storage)
        await begin_log(self.log, config, self.broker.gateway)
        await self.broker.start()
        self.is_up = True

    @property
    def log(self) -> DeliveryLog:
        """Delivery log of the gateway."""
        return self.broker.delivery_log

    async def stop(self) -> None:
        """Stop as on SIGTERM, whether or not the sessions have gone."""
        self.is_up = False
        self.broker.leave()
        self.broker.pulls.drain()
        await super().stop()

    async def kill(self) -> None:
        """End as by kill -9: its pending calls do not happen, lines not yet handed to the writer
        are lost, and its files stay as they are."""
        self.is_up = False
        log = self.log
        sink = log._writer
        assert isinstance(sink, LogWriter)
        if log._timer is not None:
            log._timer.cancel()
        log.is_on, log._writer, log._loop = False, None, None
        self.cut_off()
        while sink.waiting_bytes:
            await asyncio.to_thread(time.sleep, 0.001)
        for part in (self.broker.config.data_dir / FOLDER).glob("*.part"):
            os.utime(part, (time.time(), time.time()))  # the time of its last write, by this clock


@dataclass(slots=True, eq=False)
class _Delivery:
    """A message that a client received."""

    partition: int
    epoch: int
    push: int
    offset: int
    attempt: int
    key: str | None

    def named(self) -> list[int]:
        """Return its place, in the form of an ack."""
        return [self.partition, self.epoch, self.push, self.offset, self.offset]


class Client(Session):
    """A subscription and its handlers, which grants new credit for ended deliveries."""

    def __init__(
        self, world: "World", queue: Queue, group: Group, *, credit: int = 100, handlers: int = 4,
        handle_s: tuple[float, float] = (0.0, 0.1),
        fate: Callable[[Random], Fate] = lambda _: "ack",
        delay_s: float | None = None, gather: int = 1, transport: Transport = "websocket",
        linger_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`handle_s`: bounds of a handler's duration, in seconds. `fate`: its act then; a nack asks
        for `delay_s`. `gather`: the number of acks sent at once."""
        super().__init__(f"{world.random.getrandbits(88):022x}", linger_s)
        self.transport = transport
        self._world = world
        self._queue, self._group = queue, group
        self._credit = credit
        self._handle_s, self._fate, self._delay_s = handle_s, fate, delay_s
        self._gather = gather
        self._acks: list[list[int]] = []
        self._lines: dict[object, deque[_Delivery]] = {}
        """Key → its deliveries, in order. A key has one handler."""
        self._ready: asyncio.Queue[object] = asyncio.Queue()
        self._busy: set[object] = set()
        """Keys that have a handler, or wait for one."""
        self._ended = 0
        """Number of messages that are not held any more."""
        self.gateway: LoggedGateway | None = None
        self.consumer: Any = None
        self._handlers = [world.goes_on(self._handle()) for _ in range(handlers)]

    # --- Its place -------------------------------------------------------------------------------

    async def come(self, gateway: LoggedGateway, *, held: bool = False) -> None:
        """Subscribe at a gateway. `held`: it reports deliveries held from a gateway before
        (R22)."""
        self.gateway, self._ended = gateway, 0
        queue = gateway.find(self._queue.name)
        group = gateway.broker.metadata.find_group(ANYBODY, queue, self._group.name)
        self._queue, self._group = queue, group
        if not held:
            self._drop_all()
        options = {"held": True} if held else {}
        consumer = gateway.broker.groups.consumer(self, 1, queue, group, self._credit, **options)
        self.consumer = consumer
        await consumer.join()
        if held:
            await asyncio.sleep(0)  # the subscription opens
            holds = [one.named() for line in self._lines.values() for one in line]
            lost = consumer.hold(0, holds)
            for one in lost if isinstance(lost, list) else await lost:
                self._drop(one)

    def leave(self, *, moves: bool = False) -> None:
        """Leave; held deliveries return, unless it `moves`."""
        if self.consumer is not None and not self.consumer.left:
            self.consumer.leave(moves=moves)
        if not moves:
            self._drop_all()
        self.consumer = None

    def lose(self) -> None:
        """Note that its gateway has ended without a word."""
        self.consumer = None

    def end(self) -> None:
        """Stop all handlers."""
        for task in self._handlers:
            task.cancel()

    # --- Frames to it ----------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Keep a frame, and handle its messages."""
        super().send(frame)
        one = self.frames[-1]
        gateway = self.gateway
        assert gateway is not None
        if self.transport == "long-poll":  # a poll takes it a little later
            asyncio.get_running_loop().call_later(0.02, gateway.log.on_take, self.session_id)
        else:
            asyncio.get_running_loop().call_soon(gateway.log.on_flush)
        if one["type"] == "push":
            self._pushed(one)
        elif one["type"] == "revoked":
            for delivery in one["deliveries"]:
                self._drop(delivery)

    def _pushed(self, push: Frame) -> None:
        place = push["partition"], push["epoch"], push["push"]
        for offset, sent in zip(offsets_of(push), push["messages"], strict=True):
            made = _Delivery(*place, offset, push.get("attempt", 1), sent.get("key"))
            key = (made.partition, made.key) if made.key is not None else object()
            line = self._lines.setdefault(key, deque())
            line.append(made)
            if key not in self._busy:
                self._busy.add(key)
                self._ready.put_nowait(key)

    def _drop(self, delivery: list[int]) -> None:
        partition, epoch, push, *numbers = delivery
        ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
        for line in self._lines.values():
            kept = [
                one for one in line
                if (one.partition, one.epoch, one.push) != (partition, epoch, push)
                or not any(first <= one.offset <= last for first, last in ranges)
            ]  # fmt: skip
            self._ended += len(line) - len(kept)
            line.clear()
            line.extend(kept)
        self._grant()

    def _drop_all(self) -> None:
        for line in self._lines.values():
            line.clear()
        self._acks.clear()

    # --- Its acts --------------------------------------------------------------------------------

    async def _handle(self) -> None:
        random = self._world.random
        while True:
            key = await self._ready.get()
            line = self._lines[key]
            while line:
                one = line[0]
                await asyncio.sleep(random.uniform(*self._handle_s))
                if line and line[0] is one:
                    await self._end_one(one, line)
            del self._lines[key]
            self._busy.discard(key)

    async def _end_one(self, one: _Delivery, line: deque[_Delivery]) -> None:
        while self.consumer is None:  # it is on its way to another gateway
            await asyncio.sleep(0.05)
            if not line or line[0] is not one:
                return
        fate, consumer = self._fate(self._world.random), self.consumer
        if fate == "extend":
            consumer.extend([one.named()], [one.named()], None)
            await asyncio.sleep(self._handle_s[1])
            if not line or line[0] is not one or self.consumer is not consumer:
                return
            fate = "ack"
        if fate == "start":
            consumer.start([one.named()])
        line.popleft()
        self._ended += 1
        if fate == "ack":
            self._acks.append(one.named())
            if len(self._acks) >= self._gather:
                self._say_acks()
            elif len(self._acks) == 1:
                asyncio.get_running_loop().call_later(GATHER_S, self._say_acks)
        elif fate in ("nack", "reject"):
            self._say_acks()
            consumer.nack([one.named()], self._delay_s, "no", reject=fate == "reject")
        if fate in ("forget", "start"):
            line.clear()  # an SDK's own deadline: the rest of the key returns with it
        self._grant()

    def _say_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks and self.consumer is not None:
            merged: list[list[int]] = []
            for one in sorted(acks):
                if merged and merged[-1][:3] == one[:3]:
                    merged[-1] += one[3:]
                else:
                    merged.append(one)
            self.consumer.ack(merged, merged, None)

    def _grant(self) -> None:
        if self.consumer is not None:
            self.consumer.grant(max(self._credit + self._ended, self.consumer.given_total))


class World(Town):
    """The gateways, clients and files of one history."""

    def __init__(self, folder: Path, name: str, seed: int, file_bytes: int) -> None:
        super().__init__(folder)
        self.name = name
        self.file_bytes = file_bytes
        self.random = Random(f"{name} {seed}")
        self.memory = MemoryStorage(wall=_wall)
        self.inbox = type(self.inbox)(self.memory.epoch_of)
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.published = 0
        self.killed: list[str] = []
        """Gateways that were killed."""

    @property
    def up(self) -> list[LoggedGateway]:
        """Return the gateways that work."""
        return [one for one in cast(list[LoggedGateway], self.gateways) if one.is_up]

    async def another(self, host: str = "") -> LoggedGateway:
        """Start another gateway; with `host`, in the place of a former one."""
        number = len(self.gateways) + 1
        gateway = LoggedGateway(self, self.folder, f"g{number}", host or f"host{number}")
        await gateway.open()
        self.gateways.append(gateway)
        return gateway

    async def queue(self, name: str = "", at: LoggedGateway | None = None, **more: Any) -> Queue:
        """Create a queue of this history, which all gateways know."""
        settings = {"partitions": 2, "retention_s": 3600, "backoff_s": 0.5, "backoff_max_s": 2.0}
        at = at or self.up[0]
        return await at.queue(self.name + name, **{**settings, **more})

    async def group_of(
        self, queue: Queue, name: str = "billing", start: Any = None, **settings: Any
    ) -> Group:
        """Create a group of a queue."""
        made = GroupSettings(**settings)
        group, _ = await self.up[0].broker.put_group(ANYBODY, queue, name, made, start)
        return group

    def client(self, queue: Queue, group: Group, **options: Any) -> "Client":
        """Make a client that has not subscribed yet."""
        made = Client(self, queue, group, **options)
        self.clients.append(made)
        return made

    async def comes(self, queue: Queue, group: Group, **options: Any) -> "Client":
        """Make a client at a gateway, by default the first one."""
        at = options.pop("at", None) or self.up[0]
        made = self.client(queue, group, **options)
        await made.come(at)
        return made

    async def publish(
        self, queue: Queue, count: int, *, rate: float = 100.0, batch: int = 5, keys: int = 12,
        keyless: float = 0.0, at: LoggedGateway | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Publish `count` messages, some at a time; of `keys` keys, a part without any."""
        left = count
        while left:
            size = min(left, self.random.randint(1, batch))
            left -= size
            await self.publish_now(queue, size, keys=keys, keyless=keyless, at=at, **fields)
            await asyncio.sleep(size / rate * self.random.uniform(0.2, 1.8))

    async def publish_now(
        self, queue: Queue, count: int, *, keys: int = 12, keyless: float = 0.0,
        at: LoggedGateway | None = None, **fields: Any,
    ) -> list[Message]:  # fmt: skip
        """Publish at once, through any gateway."""
        random = self.random
        made = []
        for _ in range(count):
            key = None if random.random() < keyless else f"k{random.randrange(keys)}"
            self.published += 1
            made.append(message(self.published, key, **fields))
        await self.send(queue, made, at)
        return made

    async def send(
        self, queue: Queue, messages: Sequence[Message], at: LoggedGateway | None = None
    ) -> None:
        """Publish these messages, with their log lines."""
        at = at or self.random.choice(self.up)
        origin = at.log.internal_origin(queue, len(messages))
        await at.publish(queue, messages, origin=origin)

    def goes_on(self, work: Any) -> asyncio.Task[None]:
        """Run work beside the rest of the history, to its end."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    async def kill(self, gateway: LoggedGateway) -> None:
        """Kill a gateway as by kill -9; its clients notice."""
        self.killed.append(gateway.name)
        await gateway.kill()
        for client in self.clients:
            if client.gateway is gateway:
                client.lose()

    async def settled(self, queue: Queue, *groups: Group, lag: int = 0) -> None:
        """Wait until these groups have no more than `lag` messages left."""

        async def are() -> bool:
            lags = [await self.up[0].lag(queue, group) for group in groups]
            return max(lags) <= lag

        await becomes(are, 600)

    async def close(self) -> None:
        """Stop all remaining clients and gateways, in an orderly way."""
        for task in self.tasks:
            task.cancel()
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        failed = [one for one in ended if isinstance(one, Exception)]
        for client in self.clients:
            client.end()
        for gateway in self.up:
            await gateway.stop()
        await self.abandon()
        for one in failed:
            raise one

    async def abandon(self) -> None:
        """End the killed gateways, whose logs get no more lines."""
        for gateway in cast(list[LoggedGateway], self.gateways):
            if gateway.name in self.killed:
                gateway.come_back()
                with suppress(TocsinError):
                    await Gateway.stop(gateway)
        await self.memory.close()
        await self.catalog.close()


def logs_of(
    name: str, history: Callable[["World"], Awaitable[None]], seed: int, into: Path, *,
    file_bytes: int = FILE_BYTES,
) -> list[Path]:  # fmt: skip
    """Run a history of this name, and put its log files into folders of `into`, one for each host.
    Returns these folders."""
    with asyncio.Runner(loop_factory=OneThread) as runner, in_memory() as folder:
        runner.run(_run(World(folder, name, seed, file_bytes), history, f"{name} {seed}"))
        made = []
        for host in sorted(folder.glob("host*")):
            made.append(into / f"{name}-{host.name}" / FOLDER)
            shutil.copytree(host / FOLDER, made[-1])
        return made


async def _run(world: "World", history: Callable[["World"], Awaitable[None]], seed: str) -> None:
    loop = asyncio.get_running_loop()
    unexpected: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unexpected.append(context))
    with pytest.MonkeyPatch.context() as patch, OneClock(loop, seed).installed():
        # A seed gives the same names. Another process may play the same history, or was killed in
        # the middle of it, and no gateway may take its counts for its own.
        patch.setattr("gateway.deliverylog.writer.memory", lambda: world.folder)
        await world.open(1)
        try:
            await history(world)
        finally:
            await world.close()
    assert not unexpected, unexpected
