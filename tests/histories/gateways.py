"""Several gateways over one catalog and one storage, in one process and in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gateway.broker import Broker
from gateway.config import Config
from gateway.delivery.group import GroupRuntime
from metadata.catalog import ANYBODY, Group, GroupSettings, Membership
from metadata.catalog_service import CatalogService
from metadata.port import Metadata
from push.errors import TocsinError
from push.places import CursorPlace, Partition
from push.storage_port import DueStore, Owned, Storage, WakeUp
from storage.memory import MemoryStorage
from tests.catalogs import open_catalog
from tests.conformance.virtual import run
from tests.histories.house import House, Session
from tests.mad import Mad, MadMetadata
from tests.memory_inbox import MemoryInbox
from tests.waiting import becomes


class SharedMetadata(MadMetadata):
    """View of the shared catalog that a gateway has. Notices can be lost."""

    is_shared = True

    def __init__(self, real: CatalogService, listeners: list[Callable[[str, int], None]]) -> None:
        super().__init__(real)
        self._all = listeners
        self.is_deaf = False

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        """Register a listener, which misses notices while `is_deaf`."""

        def heard(group_id: str, generation: int) -> None:
            if not self.is_deaf:
                listener(group_id, generation)

        self._all.append(heard)

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """Change a membership in the real catalog, and notify all."""
        changed: bool = await self._run(
            "change_membership", self.real.change_membership, (new,),
            {"expected_generation": expected_generation},
        )  # fmt: skip
        if changed:
            for listener in self._all:
                asyncio.get_running_loop().call_soon(listener, new.group_id, new.generation)
        return changed

    async def close(self) -> None:
        """Leave it open, because the others go on."""


class SharedDueStore(Mad):
    """View of the shared due stores that a gateway has. Notices can be lost."""

    def __init__(self, real: DueStore, listeners: list[Callable[[Partition, int], None]]) -> None:
        super().__init__(real)
        self._all = listeners
        self.is_deaf = False

    def on_due(self, noticed: Callable[[Partition, int], None]) -> None:
        """Register a listener, which misses notices while `is_deaf`."""

        def heard(partition: Partition, due_unix_ms: int) -> None:
            if not self.is_deaf:
                noticed(partition, due_unix_ms)

        self._all.append(heard)


class SharedStorage(Mad):
    """View of the shared storage that a gateway has. It records owners."""

    def __init__(
        self, real: MemoryStorage, inbox: MemoryInbox, wake_ups: list[WakeUp],
        owned: list[tuple[int, int]], on_due: list[Callable[[Partition, int], None]],
    ) -> None:  # fmt: skip
        super().__init__(real)
        self.due = SharedDueStore(real.due, on_due)
        self.inbox = Mad(inbox)
        self._all = wake_ups
        self.owned = owned
        """(partition, epoch) of every start of an owner, on any gateway."""
        self.is_deaf = False
        self._missed: dict[Partition, int] = {}
        self._wake_ups: list[WakeUp] = []

    def on_certified(self, wake_up: WakeUp) -> None:
        """Register a wake-up; wake-ups missed while `is_deaf` are kept."""

        def heard(partition: Partition, end: int) -> None:
            if self.is_deaf:
                self._missed[partition] = end
            else:
                wake_up(partition, end)

        self._all.append(heard)
        self._wake_ups.append(wake_up)

    def hear_again(self) -> None:
        """Deliver missed wake-ups, as a storage does by itself."""
        self.is_deaf = False
        missed, self._missed = self._missed, {}
        for partition, end in missed.items():
            for wake_up in self._wake_ups:
                wake_up(partition, end)

    async def own(self, place: CursorPlace, **options: Any) -> Owned:
        """Own a place in the real storage, and record it."""
        owned: Owned = await self._run("own", self.real.own, (place,), options)
        self.owned.append((place.partition.number, owned.epoch))
        return owned

    async def close(self) -> None:
        """Leave it open, because the others go on."""


class Gateway(House):
    """A gateway of a town, with the abilities of a house."""

    def __init__(self, town: "Town", folder: Path, name: str) -> None:
        super().__init__(folder, "memory")
        self.town = town
        self.name = name
        self.metadata: SharedMetadata
        self.storage: SharedStorage

    async def open(self) -> None:
        """Start it, and join the others."""
        town = self.town
        self.metadata = SharedMetadata(town.catalog, town.listeners)
        self.storage = SharedStorage(
            town.memory, town.inbox, town.wake_ups, town.owned, town.on_due
        )
        self.broker = Broker(
            Config(data_dir=self.folder), cast(Metadata, self.metadata), cast(Storage, self.storage)
        )
        await self.broker.start()

    def cut_off(self) -> None:
        """Let none of its calls to catalog or storage happen, until `come_back`."""
        self.metadata.stall()
        self.storage.stall()
        self.storage.due.stall()
        self.storage.inbox.stall()
        self.metadata.is_deaf = self.storage.is_deaf = self.storage.due.is_deaf = True

    def come_back(self) -> None:
        """Let its waiting calls happen now, and later ones at once."""
        self.metadata.is_deaf = self.storage.due.is_deaf = False
        self.metadata.well()
        self.storage.well()
        self.storage.due.well()
        self.storage.inbox.well()
        self.storage.hear_again()

    def runtime(self, group: Group) -> GroupRuntime:
        """Return the group's state here."""
        return self.broker.groups.runtimes[group.group_id]

    async def consumer(self, group: Group, name: str = "", **options: Any) -> tuple[Session, Any]:
        """Add a consumer of the group here, whose session has this name."""
        session = Session(name or f"{self.name}-{next(self._names)}", options.pop("linger_s", 0.0))
        subscribed = self.broker.groups.consumer(
            session, 1, self.find(), group, options.pop("credit", 1000), **options
        )
        await subscribed.join()
        return session, subscribed

    def owns(self, group: Group) -> set[int]:
        """Return the partitions that are served here."""
        runtime = self.broker.groups.runtimes.get(group.group_id)
        owned_partitions = runtime.owned_partitions if runtime is not None else {}
        return {number for number, owned in owned_partitions.items() if not owned.delivery.draining}


class Town:
    """Gateways that share a catalog and a storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = MemoryStorage()
        self.inbox = MemoryInbox(self.memory.epoch_of)
        self.catalog: CatalogService
        self.listeners: list[Callable[[str, int], None]] = []
        self.wake_ups: list[WakeUp] = []
        self.owned: list[tuple[int, int]] = []
        self.on_due: list[Callable[[Partition, int], None]] = []
        self.gateways: list[Gateway] = []

    async def open(self, count: int) -> None:
        """Start this many gateways."""
        self.catalog = await open_catalog(self.folder)

        def wake_all(partition: Partition, end: int) -> None:
            for wake_up in self.wake_ups:
                wake_up(partition, end)

        def notice_all(partition: Partition, due_unix_ms: int) -> None:
            for noticed in self.on_due:
                noticed(partition, due_unix_ms)

        self.memory.on_certified(wake_all)
        self.memory.due.on_due(notice_all)
        for _ in range(count):
            await self.another()

    async def another(self) -> Gateway:
        """Start another gateway."""
        gateway = Gateway(self, self.folder, f"g{len(self.gateways) + 1}")
        await gateway.open()
        self.gateways.append(gateway)
        return gateway

    async def group(self, partitions: int = 4, **settings: Any) -> Group:
        """Create a queue with a group that all of them know."""
        first = self.gateways[0]
        queue = await first.queue(partitions=partitions)
        group, _ = await first.broker.put_group(
            ANYBODY, queue, "billing", GroupSettings(**settings), None
        )
        return group

    async def shared(self, group: Group, *gateways: Gateway) -> None:
        """Wait until each partition is served by one of these gateways, and each serves some."""
        wanted = gateways or tuple(self.gateways)
        count = len(self.gateways[0].find().members)

        def is_shared() -> bool:
            parts = [gateway.owns(group) for gateway in wanted]
            return sum(map(len, parts)) == count == len(set[int]().union(*parts)) and all(parts)

        await becomes(is_shared)

    async def close(self) -> None:
        """Stop all gateways."""
        for gateway in self.gateways:
            gateway.come_back()
            with suppress(TocsinError):
                await gateway.stop()
        await self.memory.close()
        await self.catalog.close()


def town(count: int = 2) -> Callable[[Callable[[Town], Awaitable[None]]], Callable[[Path], None]]:
    """Make a test of this many gateways, in virtual time."""

    def around(test: Callable[[Town], Awaitable[None]]) -> Callable[[Path], None]:
        def in_virtual_time(folder: Path) -> None:
            async def main() -> None:
                made = Town(folder)
                await made.open(count)
                try:
                    await test(made)
                finally:
                    await made.close()

            run(main())

        in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
        return in_virtual_time

    return around
