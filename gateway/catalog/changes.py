"""Queues and groups come and go: in the catalog and in the storage.

A change that has begun is finished, also when its caller is cancelled (its client went away, a slot
ended) or was told that the metadata is late. Creating and deleting go through the catalog first;
what a crash, or an answer that nobody got, leaves undone in the storage then, is done by every
gateway that knows of it (`gateway.catalog.agreement`). The storage's half may be done twice: where
the storage is away for a moment, it is tried again before its caller hears of that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.catalog.guarded_calls import Late
from gateway.catalog.starts import starts_of
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.client import Metadata
from push import limits
from push.errors import TocsinError
from push.ports import Storage

logger = logging.getLogger("tocsin.changes")
AGAIN_S: Final = 2.0
"""For so long the storage's half is tried again."""
AGAIN_BASE_S: Final = 0.05
"""Before the second time; doubles from time to time."""
AGAIN: Final = frozenset({"storage_unavailable", "unknown"})
"""Codes of what may go well a moment later."""
T = TypeVar("T")


class Changes:
    """See the module."""

    def __init__(self, metadata: Metadata, storage: Storage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._under_way: set[asyncio.Task[Any]] = set()

    async def whole(self, change: Coroutine[Any, Any, T]) -> T:
        """Carry it out to its end, whatever becomes of the caller."""
        return await asyncio.shield(self._start(change))

    def _start(self, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _in_both(
        self, catalog: Coroutine[Any, Any, T], storage: Callable[[T], Awaitable[None]]
    ) -> T:
        """A change of the catalog and what follows from it in the storage, which follows also when
        the caller has not waited for the catalog so long."""

        async def change() -> T:
            try:
                changed = await catalog
            except Late as late:
                self._start(self._follow(late.outcome, storage))
                raise
            await _again(storage, changed)
            return changed

        return await self.whole(change())

    async def _follow(
        self, catalog: "asyncio.Future[T]", storage: Callable[[T], Awaitable[None]]
    ) -> None:
        try:
            await _again(storage, await asyncio.shield(catalog))
        except TocsinError as error:
            logger.warning("a change that came late: %s", error)

    async def finish(self) -> None:
        """Wait for what is under way, as long as the metadata may take; what is left undone in the
        storage then is done by other gateways, or at the next start."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=2 * limits.METADATA_DEADLINE_S)

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create it (True), or find it as it is (False). Raises Refused: as Metadata.put_queue."""

        async def make(made: tuple[Queue, bool]) -> None:
            queue, _ = made
            await self._storage.create_queue(queue.queue_id, queue.settings.partitions)

        return await self._in_both(self._metadata.put_queue(principal, name, settings, named), make)

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Delete it with its messages and groups."""

        async def drop(queue: Queue) -> None:
            await self._storage.drop_queue(queue.queue_id)
            await self._forget(queue.queue_id, None)

        return await self._in_both(self._metadata.delete_queue(principal, name), drop)

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None,
        *,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Group, bool]:
        """Create it, durably with all its cursors (R11), or find it as it is (False). Raises
        Refused: as Metadata.put_group."""
        asked = settings.start if start is None else start
        starts = await starts_of(self._storage, queue, asked)

        async def make(made: tuple[Group, bool]) -> None:
            group, is_new = made
            # One that was there begins as it was asked to: its maker may not have come so far.
            begins = starts if is_new else await starts_of(self._storage, queue, group.begins)
            await self._storage.create_group(group.group_id, queue.queue_id, begins)

        catalog = self._metadata.put_group(principal, queue, name, settings, asked, named=named)
        return await self._in_both(catalog, make)

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, row: Membership | None = None
    ) -> None:
        """Delete it with its cursors; with a row, only as Metadata.delete_group does."""

        async def drop(group: Group) -> None:
            await self._storage.drop_group(group.group_id, queue.queue_id)
            await self._forget(queue.queue_id, group.group_id)

        await self._in_both(self._metadata.delete_group(principal, queue, name, row=row), drop)

    async def _forget(self, queue_id: str, group_id: str | None) -> None:
        """Both have dropped it. Where the catalog cannot be told, `gateway.catalog.agreement` does
        it."""
        try:
            await self._metadata.forget(queue_id, group_id)
        except TocsinError as error:
            logger.warning("%s is gone and stays on the list: %s", group_id or queue_id, error)


async def _again(storage: Callable[[T], Awaitable[None]], changed: T) -> None:
    """Do the storage's half, again and again for AGAIN_S where the storage is away."""
    clock = asyncio.get_running_loop().time
    give_up_at, pause_s = clock() + AGAIN_S, AGAIN_BASE_S
    while True:
        try:
            await storage(changed)
        except TocsinError as error:
            if error.code.name not in AGAIN or clock() + pause_s > give_up_at:
                raise
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s *= 2
