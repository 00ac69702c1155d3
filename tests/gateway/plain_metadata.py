"""A catalog of dicts, and a broker over stores in memory: no thread, no file, no clock but that of
the loop. For tests whose subject stands before the broker, or whose time is virtual.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from gateway.broker import Broker
from gateway.config import Config
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
    check_name,
)
from metadata.data_keys import DataKey, DataKeys, Still
from metadata.port import QueueListener
from metadata.settings import (
    Named,
    change_group_settings,
    change_queue_settings,
    differences,
    settings_differ,
)
from push.errors import Refused
from storage.memory import MemoryStorage
from tests.gateway.plain_tokens import PlainTokens

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
        return self.queues[name], True

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        queue = msgspec.structs.replace(self.find_queue(principal, name), paused=paused)
        self.queues[name] = queue
        return queue

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        queue = self.find_queue(principal, name)
        del self.queues[name]
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
        return group, True

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        old = self.find_queue(principal, name)
        settings = change_queue_settings(name, old.settings, named)
        self.queues[name] = msgspec.structs.replace(old, settings=settings)
        return old.settings, self.queues[name]

    async def change_group(
        self, principal: Principal, queue: Queue, name: str, named: Named,
        *, was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:  # fmt: skip
        old = self.find_group(principal, queue, name)
        settings = change_group_settings(old.settings, named)
        new = msgspec.structs.replace(old, settings=settings)
        self.groups[queue.queue_id, name] = new
        return old.settings, new

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        self.find_group(principal, queue, name)
        return self.groups.pop((queue.queue_id, name))

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
        return None

    async def state(self) -> tuple[bool, str]:
        return True, ""

    async def close(self) -> None:
        return None


def broker_in_memory() -> Broker:
    """A broker that has nothing to stop: not started, over stores in memory."""
    return Broker(Config(data_dir=Path()), PlainMetadata(), MemoryStorage())
