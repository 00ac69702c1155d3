"""A catalog of dicts, and a broker over stores in memory: no thread, no file, no clock but that of
the loop. For tests whose subject stands before the broker, or whose time is virtual.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from gateway.broker import Broker
from gateway.config import Config
from gateway.delivery.consumer import Consumer
from gateway.publish.batch import (
    PendingPublish,
)
from metadata.catalog import (
    ANYBODY,
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.data_keys import DataKey, DataKeys, Still
from metadata.port import Metadata, QueueListener
from metadata.settings import (
    Named,
    change_group_settings,
    change_queue_settings,
    differences,
    settings_differ,
)
from push.errors import Refused
from push.message import Message
from push.places import check_name
from push.storage_port import Append, Appended, Lane, Storage
from storage.memory import MemoryStorage
from tests.gateway.plain_tokens import PlainTokens
from tests.mad import MadMetadata, MadStorage

NOW_UNIX_MS = 1_700_000_000_000


class PlainMetadata:
    """The catalog as dicts."""

    is_shared = False
    age_s = 0.0

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        return {}

    async def said(self) -> dict[str, str]:
        return {}

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None: ...

    async def catch_up(self) -> None: ...

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.numbers = itertools.count(1)
        self.tokens = PlainTokens()
        self.listeners: list[QueueListener] = []

    @property
    def data_keys(self) -> DataKeys:
        """As Metadata.data_keys: nothing is sealed here."""

        async def write(_rows: list[DataKey], _still: Still) -> None: ...

        return DataKeys([], write)

    def find_queue(self, principal: Principal, name: str) -> Queue:
        if name not in self.queues:
            raise Refused("queue_not_found", f"no queue {name}")
        return self.queues[name]

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        if (queue.queue_id, name) not in self.groups:
            raise Refused("group_not_found", f"no group {name}")
        return self.groups[queue.queue_id, name]

    def queue_by_id(self, queue_id: str) -> Queue | None:
        return next((q for q in self.queues.values() if q.queue_id == queue_id), None)

    def list_queues(self, principal: Principal) -> list[Queue]:
        return [self.queues[name] for name in sorted(self.queues)]

    def list_all_queues(self) -> list[Queue]:
        return list(self.queues.values())

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        return [g for (queue_id, _), g in sorted(self.groups.items()) if queue_id == queue.queue_id]

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        check_name(name, "queue")
        old = self.queues.get(name)
        if old is not None:
            if differences(old.settings, settings, named):
                raise settings_differ(f"the queue {name!r}", old.settings, settings, named)
            return old, False
        self.queues[name] = Queue(
            queue_id=f"q{next(self.numbers)}",
            name=name,
            tenant=principal.tenant,
            holder=principal.name,
            created_unix_ms=NOW_UNIX_MS,
            settings=settings,
            ring_epoch=1,
            members=tuple(range(settings.partitions)),
            hash_key=bytes(16),
        )
        self._tell(self.queues[name])
        return self.queues[name], True

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        queue = msgspec.structs.replace(self.find_queue(principal, name), paused=paused)
        self.queues[name] = queue
        self._tell(queue)
        return queue

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        queue = self.find_queue(principal, name)
        del self.queues[name]
        self._tell(queue, deleted=True)
        return queue

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None = None,
        *,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Group, bool]:
        check_name(name, "group")
        old = self.groups.get((queue.queue_id, name))
        if old is not None:
            if differences(old.settings, settings, named, queue.settings):
                what = f"the group {name!r}"
                raise settings_differ(what, old.settings, settings, named, queue.settings)
            return old, False
        group = Group(
            group_id=f"g{next(self.numbers)}",
            name=name,
            queue_id=queue.queue_id,
            created_unix_ms=NOW_UNIX_MS,
            settings=settings,
        )
        self.groups[queue.queue_id, name] = group
        self._tell(queue, group)
        return group, True

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        old = self.find_queue(principal, name)
        settings = change_queue_settings(name, old.settings, named)
        self.queues[name] = msgspec.structs.replace(old, settings=settings)
        self._tell(self.queues[name])
        return old.settings, self.queues[name]

    async def change_group(
        self, principal: Principal, queue: Queue, name: str, named: Named,
        *, was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:  # fmt: skip
        old = self.find_group(principal, queue, name)
        settings = change_group_settings(old.settings, named)
        new = msgspec.structs.replace(old, settings=settings)
        self.groups[queue.queue_id, name] = new
        self._tell(queue, new)
        return old.settings, new

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        group = self.find_group(principal, queue, name)
        del self.groups[queue.queue_id, name]
        self._tell(queue, group, deleted=True)
        return group

    def dropped(self) -> list[tuple[str, str | None]]:
        return []

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        return None

    async def membership(self, group_id: str) -> Membership:
        return Membership(group_id=group_id, generation=0, members=(), assignment={})

    async def glance(self, group_id: str) -> Membership:
        return await self.membership(group_id)

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        return True

    def secret(self, name: str) -> bytes:
        return name.encode().ljust(32, b".")

    def mark(self, name: str) -> str | None:
        return None

    async def set_mark(self, name: str, value: str) -> None:
        return None

    def on_queue_changed(self, listener: QueueListener) -> None:
        self.listeners.append(listener)

    def _tell(self, queue: Queue, group: Group | None = None, *, deleted: bool = False) -> None:
        for listener in self.listeners:
            listener(queue, group, deleted=deleted)

    async def state(self) -> tuple[bool, str]:
        return True, ""

    async def close(self) -> None:
        return None


class HeldStorage(MadStorage):
    """Messages in memory. Commits wait, one by one, while `held` is a list."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.held: list[asyncio.Event] | None = None
        """What each commit under way waits for, in the order in which they began."""
        self.held_queue: str | None = None
        """Only commits with something of this queue wait, by its id; None: all do."""

    def let_go(self) -> None:
        """No commit waits any more."""
        held, self.held = self.held or (), None
        for commit in held:
            commit.set()

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        """Append as the storage in memory does, once the held commit is let go."""
        queues = {append.partition.queue_id for append in appends}
        if self.held is not None and self.held_queue in (None, *queues):
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return await super().append(appends, lane=lane)


class MemoryBroker(Broker):
    """The broker itself over a catalog and a storage in memory, which may stall and fail, and what
    it was given to publish."""

    def __init__(self, *, auto_create: bool = False) -> None:
        self.catalog = MadMetadata(PlainMetadata())
        self.messages = HeldStorage()
        config = Config(data_dir=Path(), auto_create=auto_create)
        super().__init__(config, cast(Metadata, self.catalog), cast(Storage, self.messages))
        self.submitted: list[PendingPublish] = []
        """Every publish that was handed in, in order."""
        submit = self.publisher.submit

        def recording(publish: PendingPublish) -> None:
            self.submitted.append(publish)
            submit(publish)

        self.publisher.submit = recording  # type: ignore[method-assign]

    async def add_queue(self, name: str = "q", **settings: Any) -> Queue:
        """Make a queue, of one partition unless told otherwise."""
        made = QueueSettings(**{"partitions": 1, **settings})
        queue, _ = await self.create_queue(ANYBODY, name, made)
        return queue

    def publish(self, queue: str, *bodies: object) -> "asyncio.Future[PendingPublish]":
        """Publish messages of these bodies, for nobody's session."""
        stored: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()
        messages = [Message(body=msgspec.Raw(msgspec.json.encode(body))) for body in bodies]
        self.publisher.submit(
            PendingPublish(self.find_queue(ANYBODY, queue), messages, stored.set_result)
        )
        return stored

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers with a place in a group, in the order in which they came."""
        runtimes = self.groups.runtimes.values()
        members = [one for runtime in runtimes for one in runtime.members.values()]
        return [one for one in members if isinstance(one, Consumer)]

    @property
    def subscription_count(self) -> int:
        """Number of consumers and readers that there are."""
        return len(self.consumers) + sum(self.readers.counts().values())


def broker_in_memory(*, auto_create: bool = False) -> MemoryBroker:
    """A broker that has nothing to stop: not started, over stores in memory."""
    return MemoryBroker(auto_create=auto_create)


@asynccontextmanager
async def running(broker: MemoryBroker) -> AsyncIterator[MemoryBroker]:
    """Start it, and stop it at the end."""
    await broker.start()
    try:
        yield broker
    finally:
        broker.messages.let_go()
        broker.messages.well()
        broker.catalog.well()
        await broker.stop()
