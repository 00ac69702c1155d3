"""The whole broker in this process, without sockets, and sessions that use it directly."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import LET_IN, Authenticator
from gateway.broker import Broker
from gateway.config import Config
from gateway.delivery.consumer import Consumer
from gateway.delivery.ports import StartFrom
from gateway.delivery.readers import Reader
from gateway.limits.limiter import Limiter
from gateway.models import Admission, Transport
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.rest.app import Application
from gateway.session.credential import SessionCredential, SessionQuota
from gateway.session.directory import SessionServices
from gateway.session.session import Session as ServerSession
from gateway.session.subscriptions import Subscriptions
from gateway.wire import frames
from gateway.wire.frames import Close
from loadtests.clients import wire
from metadata.catalog import ANYBODY, Group, GroupSettings, Queue, QueueSettings
from metadata.port import Metadata
from push.errors import TocsinError
from push.message import Message
from push.storage_port import Storage
from runtime.addresses import UNKNOWN
from storage.memory import MemoryStorage
from storage.sqlite.store import SqliteStorage
from tests.catalogs import open_catalog
from tests.gateway.asgi import client_of

Frame = dict[str, Any]
Place = tuple[int, int, int, int]
"""(partition, epoch, push, offset) of one delivery."""
WAIT_S = 30.0
"""Far more than anything takes, because the machine may be busy."""


def offsets_of(push: Frame) -> list[int]:
    """Return the offset of each message of a push."""
    if "offsets" in push:
        return list(push["offsets"])
    return list(wire.offsets_of(push["offset"], len(push["messages"]), push.get("skips", [])))


class Session:
    """A link that keeps its frames, and finds the messages in them."""

    principal = ANYBODY
    admission = LET_IN
    transport: Transport | None = "websocket"

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        self.session_id = name
        self.client: str | None = f"client of {name}"
        self.linger_s = linger_s
        self.account = AccountingWriter().session(lambda principal, name: True)
        self.frames: list[Frame] = []
        self.is_writable = True
        self.is_in_transit = False
        self.has_moved = False
        self._news = asyncio.Event()

    def send(self, frame: bytes) -> None:
        self.frames.append(json.loads(frame))
        self._news.set()

    def writable(self) -> bool:
        return self.is_writable

    def lease_start(self, given_at: float) -> float | None:
        return None if self.is_in_transit else given_at

    def on_named(self, given_at: float) -> None:
        self.is_in_transit = False

    def on_empty(self) -> None:
        """Do nothing."""

    def on_moved(self) -> None:
        self.has_moved = True

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until a condition that frames change is true."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    @property
    def given(self) -> list[tuple[Place, Any, int]]:
        """Return (place, body, attempt) of every message that was pushed, in order."""
        return [
            (
                (frame["partition"], frame["epoch"], frame["push"], offset),
                message["body"],
                frame.get("attempt", 1),
            )
            for frame in self.frames
            if frame["type"] == "push" and "epoch" in frame
            for offset, message in zip(offsets_of(frame), frame["messages"], strict=True)
        ]

    @property
    def bodies(self) -> list[Any]:
        """Return the bodies of every message that was pushed, to a consumer or a reader, in
        order."""
        return [
            message["body"]
            for frame in self.frames
            if frame["type"] == "push"
            for message in frame["messages"]
        ]

    async def get(self, count: int) -> list[Any]:
        """Wait for `count` messages in total; return their bodies."""
        await self.until(lambda: len(self.bodies) >= count)
        return self.bodies

    async def take(self, count: int) -> list[tuple[Place, Any, int]]:
        """Wait for `count` messages in total; return them in the form of `given`."""
        await self.until(lambda: len(self.given) >= count)
        return self.given

    def of_type(self, kind: str) -> list[Frame]:
        """Return the frames of this type."""
        return [frame for frame in self.frames if frame["type"] == kind]


def delivery(place: Place, last: int | None = None) -> list[list[int]]:
    """Return the delivery list of one place, or of a range that begins there."""
    return [[*place, place[3] if last is None else last]]


class House:
    """A broker that can be stopped and opened again over the same stores."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.broker: Broker
        self.memory = MemoryStorage()
        self.around_metadata: Callable[[Metadata], Metadata] = lambda metadata: metadata
        self.around_storage: Callable[[Storage], Storage] = lambda storage: storage
        self._names = itertools.count(1)

    async def open(self) -> None:
        """Start the broker."""
        metadata = await open_catalog(self.folder)
        storage: Storage = self.memory
        if self.kind == "sqlite":
            storage = await SqliteStorage.open(
                self.folder / "store.sqlite", free_bytes_reserve=0, on_fatal=never
            )
        self.broker = Broker(
            Config(data_dir=self.folder),
            self.around_metadata(metadata),
            self.around_storage(storage),
        )
        await self.broker.start()

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        await self.broker.stop()

    async def restart(self) -> None:
        """Stop it, and open it over the same files."""
        assert self.kind == "sqlite", "memory does not outlive its broker"
        await self.stop()
        await self.open()

    def http(self) -> httpx2.AsyncClient:
        """Return an HTTP client of it, without a socket; to be entered."""
        return client_of(Application(self.broker, Authenticator(None)))

    async def queue(self, name: str = "orders", **settings: Any) -> Queue:
        """Create a queue, of one partition by default; an existing one gets the settings."""
        all_ = {"partitions": 1, "backoff_s": 0.01, "backoff_max_s": 0.01, **settings}
        queue, created = await self.broker.create_queue(ANYBODY, name, QueueSettings(**all_))
        return queue if created or not settings else await self.set_queue(name, **settings)

    async def set_queue(self, name: str = "orders", **settings: Any) -> Queue:
        """Change settings of a queue, whatever that deletes."""
        done = await self.broker.metadata.change_queue(ANYBODY, name, settings)
        assert done is not None
        return done[1]

    def find(self, name: str = "orders") -> Queue:
        """Return the queue in its present state."""
        return self.broker.find_queue(ANYBODY, name)

    async def group(
        self, queue: Queue, name: str = "billing", start: StartFrom | None = None, **settings: Any
    ) -> Group:
        """Create a group. Durations may be shorter than the API allows, so that tests are short."""
        group, created = await self.broker.put_group(
            ANYBODY, queue, name, GroupSettings(**settings), start
        )
        if created or not settings:
            return group
        done = await self.broker.metadata.change_group(ANYBODY, queue, name, settings)
        assert done is not None
        return done[1]

    def submit(
        self, queue: Queue, messages: Sequence[Message], **options: Any
    ) -> "asyncio.Future[PendingPublish]":
        """Publish; return a future of the answer."""
        answer: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()
        publish = PendingPublish(queue, messages, answer.set_result, **options)
        self.broker.publisher.submit(publish)
        return answer

    async def publish(
        self, queue: Queue, messages: Sequence[Message], **options: Any
    ) -> list[tuple[int, int, bool] | str]:
        """Publish and wait; return the place of each message, or its error's code."""
        async with asyncio.timeout(WAIT_S):
            answer = await self.submit(queue, messages, **options)
        return codes(answer)

    async def subscribe(
        self, queue: Queue, group: Group, credit: int = 1000, session: Session | None = None
    ) -> tuple[Session, Consumer]:
        """Add a consumer in a session of its own, or in this one."""
        number = next(self._names)
        session = session or Session(f"s{number}")
        consumer = self.broker.groups.consumer(session, number, queue, group, credit)
        await consumer.join()
        return session, consumer

    async def read(
        self, queue: Queue, credit: int = 1000, **options: Any
    ) -> tuple[Session, Reader]:
        """Add a reader in a session of its own; `keys`, `start`, `position` as in `open`."""
        number = next(self._names)
        session = Session(f"r{number}")
        options = {"keys": None, "start": None, "position": None, **options}
        reader = await self.broker.readers.open(session, number, queue, credit=credit, **options)
        return session, reader

    async def confirm(self, consumer: Consumer, deliveries: list[list[int]]) -> tuple[int, int]:
        """Ack with confirmation; return (settled, number of stale lists), once it is durable."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        consumer.ack(deliveries, [], done.set_result)
        async with asyncio.timeout(WAIT_S):
            settled = await done
        assert settled.durable
        return settled.settled, len(settled.stale)

    async def lag(self, queue: Queue, group: Group) -> int:
        """Return the number of messages that the group has not settled, durably."""
        described = await self.broker.describe_group(ANYBODY, queue, group.name)
        return int(str(described["lag"]))


def subscriptions_of(house: House, session: Session) -> Subscriptions:
    """Return the subscriptions of a session without sockets, which may do everything."""
    credential = SessionCredential(
        None,
        session.admission,
        Authenticator(None),
        session.account,
        SessionQuota(Limiter()),
        wall=time.time,
    )
    return Subscriptions(house.broker, credential)


class Socket:
    """A client and its session, with an outlet that keeps its frames."""

    transport: Transport | None = "websocket"
    address = UNKNOWN
    unsent_bytes = 0
    has_room = True
    until_unix_ms: int | None = None

    def __init__(
        self,
        house: House,
        around: SessionServices | None = None,
        name: str = "s-1",
        admission: Admission | None = LET_IN,
    ) -> None:
        """`around`: the services that it shares with other clients; without, it is alone at its
        gateway. `admission` None: its `hello` needs a token."""
        self.frames: list[Frame] = []
        self.close_code: Close | None = None
        self._news = asyncio.Event()
        self.around = around or SessionServices(house.broker, Authenticator(None))
        now = asyncio.get_running_loop().time()
        self.session = ServerSession(self.around, self, name, admission, now=now)

    def send(self, frame: bytes) -> None:
        assert self.close_code is None
        self.frames.append(json.loads(frame))
        self._news.set()

    def writable(self) -> bool:
        return True

    def ping(self) -> None:
        """Do nothing."""

    def taken_bytes(self) -> int | None:
        return None

    is_in_transit = False

    def lease_start(self, given_at: float) -> float | None:
        """Return the same time: everything arrives at once."""
        return given_at

    def on_named(self, given_at: float) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self, close: Close) -> None:
        assert self.close_code is None
        self.close_code = close
        if close in (frames.HEARTBEAT, frames.DRAINING):
            self.session.on_transport_lost()
        else:
            self.session.end()
        self._news.set()

    def adopt(self, session: ServerSession) -> None:
        self.session = session

    def detach(self, close: Close) -> None:
        self.close_code = close
        self._news.set()

    def of_type(self, kind: str) -> list[Frame]:
        """Return the frames of this type."""
        return [frame for frame in self.frames if frame["type"] == kind]

    def say(self, **frame: Any) -> None:
        """Send a frame of the client."""
        now = asyncio.get_running_loop().time()
        self.session.receive(msgspec.json.encode(frame), now=now)

    async def until_true(self, true: Callable[[], object]) -> None:
        """Wait until a condition that frames change is true."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def until_ref(self, ref: int) -> Frame:
        """Wait for the answer of this ref."""

        def answers() -> list[Frame]:
            return [frame for frame in self.frames if frame.get("ref") == ref]

        await self.until_true(answers)
        return answers()[0]

    async def until(self, kind: str) -> Frame:
        """Wait for a frame of this type, or for "close"."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for frame in self.frames:
                    if frame["type"] == kind:
                        return frame
                if kind == "close" and self.close_code is not None:
                    return {}
                self._news.clear()
                await self._news.wait()


async def eventually(true: Callable[[], object]) -> None:
    """Wait until a condition is true that no frame shows."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 (nobody sets an event for it)
            await asyncio.sleep(0.002)


def never(reason: str) -> None:
    """Fail the test, as the storage's `on_fatal`."""
    raise AssertionError(f"the storage gave up: {reason}")


def codes(answer: PendingPublish) -> list[tuple[int, int, bool] | str]:
    """Return the outcomes of a publish, of which nothing is scheduled, as (partition, offset,
    duplicate), errors as their code."""
    found: list[tuple[int, int, bool] | str] = []
    for outcome in answer.outcomes:
        if isinstance(outcome, TocsinError):
            found.append(outcome.code.name)
        else:
            assert isinstance(outcome, tuple)
            found.append((outcome[0], outcome[1], len(outcome) > 2))
    return found


def message(body: object, key: str | None = "k", **fields: Any) -> Message:
    """Return a message."""
    return Message(key=key, body=msgspec.Raw(msgspec.json.encode(body)), **fields)


def numbered(count: int, key: str | None = "k", first: int = 0) -> list[Message]:
    """Return messages whose bodies are numbers."""
    return [message(number, key) for number in range(first, first + count)]
