"""Queues and groups come and go: in the catalog and in the storage.

A change that has begun is finished, also when its caller is cancelled (its client went away, a slot
ended): else the catalog would know of it, and the storage not before the next start. Creating goes
through the catalog first, and what a crash leaves out in the storage is made at the next start;
deleting too, and what a crash leaves there is dropped then.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from gateway.ports import GroupStart
from metadata.catalog import Group, GroupSettings, Principal, Queue, QueueSettings
from metadata.client import Metadata
from push.ports import Partition, Start, Storage

T = TypeVar("T")


class Changes:
    """See the module."""

    def __init__(self, metadata: Metadata, storage: Storage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._under_way: set[asyncio.Task[Any]] = set()

    async def whole(self, change: Coroutine[Any, Any, T]) -> T:
        """Carry it out to its end, whatever becomes of the caller."""
        task = asyncio.get_running_loop().create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Wait for what is under way."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def create_queue(
        self, principal: Principal, name: str, settings: QueueSettings
    ) -> tuple[Queue, bool]:
        """Create it (True) or change its settings (False)."""

        async def change() -> tuple[Queue, bool]:
            queue, created = await self._metadata.put_queue(principal, name, settings)
            await self._storage.create_queue(queue.queue_id, settings.partitions)
            return queue, created

        return await self.whole(change())

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Delete it with its messages and groups."""

        async def change() -> Queue:
            queue = await self._metadata.delete_queue(principal, name)
            await self._storage.drop_queue(queue.queue_id)
            await self._metadata.forget(queue.queue_id, None)
            return queue

        return await self.whole(change())

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None,
    ) -> tuple[Group, bool]:
        """Create it, durably with all its cursors (R11), or change its settings."""
        starts = await self.starts(queue, settings.start if start is None else start)

        async def change() -> tuple[Group, bool]:
            group, created = await self._metadata.put_group(principal, queue, name, settings)
            await self._storage.create_group(group.group_id, queue.queue_id, starts)
            return group, created

        return await self.whole(change())

    async def delete_group(self, principal: Principal, queue: Queue, name: str) -> None:
        """Delete it with its cursors."""

        async def change() -> None:
            group = await self._metadata.delete_group(principal, queue, name)
            await self._storage.drop_group(group.group_id, queue.queue_id)
            await self._metadata.forget(queue.queue_id, group.group_id)

        await self.whole(change())

    async def starts(self, queue: Queue, start: GroupStart) -> Sequence[Start]:
        """Where cursors begin, one for each partition."""
        if isinstance(start, int):
            return [
                await self._storage.offset_at(Partition(queue.queue_id, number), start)
                for number in queue.members
            ]
        return [start] * len(queue.members)
