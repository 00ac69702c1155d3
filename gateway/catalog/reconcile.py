"""The storage has what the catalog has (R11), and nothing of what the catalog has dropped (R12).

A change goes through the catalog first and through the storage then (`gateway.catalog.reconcile`).
In between its maker may die, or be told that nobody knows what became of the first half. So every
gateway that reads or hears of something in the catalog sees to it that the storage has done its
half, too:

    at the start   all that there is, before anything else
    from then on   what has come or changed, or was dropped and is not forgotten, DUE_S later: as a
                   rule it was done at once

Making something twice changes nothing, nor does dropping it, and what was dropped is never made
again, however late its maker comes (`Storage.create_group`): so several gateways need not agree on
who does it, and one that stood still does no harm.

Queues and groups come and go: in the catalog and in the storage.

A change that has begun is finished, also when its caller is cancelled (its client went away, a slot
ended) or was told that the metadata is late. Creating and deleting go through the catalog first;
what a crash, or an answer that nobody got, leaves undone in the storage then, is done by every
gateway that knows of it (`gateway.catalog.reconcile`). The storage's half may be done twice: where
the storage is away for a moment, it is tried again before its caller hears of that.

Where the cursors of a new group begin.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from gateway.catalog.calls import Late
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.port import Metadata
from push import limits
from push.errors import TocsinError
from push.places import Partition
from push.storage_port import Start, Storage


async def starts_of(storage: Storage, queue: Queue, start: GroupStart) -> Sequence[Start]:
    """One for each partition. Raises TocsinError: the storage does not say what was when."""
    if isinstance(start, int):
        return [
            await storage.offset_at(Partition(queue.queue_id, number), start)
            for number in queue.members
        ]
    return [start] * len(queue.members)


logger = logging.getLogger("tocsin.agreement")
EVERY_S: Final = 1.0
DUE_S: Final = 5.0
"""So long whoever makes or drops something has to do it."""
AT_ONCE: Final = 1000
"""Queues, groups or drops that are asked for at a time."""
LATER: Final = frozenset({"storage_unavailable", "storage_full", "unknown"})
"""Codes of what may go well the next time."""
GONE: Final = ("queue_not_found", "group_not_found")
"""What was to be made was dropped."""
UNSEEN: Final = "the storage does not have it: it is being made, or was deleted just now"
"""To whoever has found a queue or group in the catalog a moment before."""
T = TypeVar("T")
Place = tuple[str, str | None]
"""(queue id, group id); None: the queue itself."""


class Agreement:
    """See the module."""

    def __init__(self, metadata: Metadata, storage: Storage, *, may_wait: bool = False) -> None:
        """`may_wait`: a storage cluster may be away at the start, and what is missing there is made
        when it is back."""
        self._may_wait = may_wait
        self._metadata = metadata
        self._storage = storage
        self._due: dict[Place, float] = {}
        """What is to be looked after, and from when on, in seconds of the loop's clock."""
        self._dropped: dict[Place, float] = {}
        """The same for what the catalog has dropped."""
        self._tasks: list[asyncio.Task[None]] = []

    def changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        """Catalog news."""
        if not deleted:
            place = (queue.queue_id, group.group_id if group is not None else None)
            self._due[place] = asyncio.get_running_loop().time() + DUE_S

    def is_unmade(self, queue: Queue) -> bool:
        """Whether the catalog has this queue, which the storage does not have: then its maker was
        cut off in between, and it is made now. False: it was deleted."""
        is_there = self._metadata.queue_by_id(queue.queue_id) is not None
        if is_there:
            self._due[queue.queue_id, None] = asyncio.get_running_loop().time()
        return is_there

    async def start(self) -> None:
        """Finish what is unfinished; then go on in the background.

        Raises:
            TocsinError: the storage or the catalog does not do it.
        """
        for place in self._metadata.dropped():
            await self._now(place, self._drop(place), self._dropped)
        queues = self._metadata.list_all_queues()
        for batch in _batches(queues):
            await asyncio.gather(*map(self._make_now, batch))
        loop = asyncio.get_running_loop()
        # apart: a drop goes in slices, and may take minutes
        self._tasks = [loop.create_task(self._run(look)) for look in (self._drops, self._makes)]

    async def _make_now(self, queue: Queue) -> None:
        await self._now((queue.queue_id, None), self._make_whole(queue), self._due)
        if (queue.queue_id, None) in self._due:
            for group in self._groups(queue):
                self._due[queue.queue_id, group.group_id] = asyncio.get_running_loop().time()

    async def _now(self, place: Place, work: Awaitable[None], due: dict[Place, float]) -> None:
        try:
            await work
        except TocsinError as error:
            if not self._may_wait or error.code.name not in LATER:
                raise
            due[place] = asyncio.get_running_loop().time()

    @property
    def waiting(self) -> int:
        """Things that are left to do."""
        return len(self._due) + len(self._dropped)

    async def stop(self) -> None:
        """End, in the middle of a round."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, look: Callable[[float], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await look(asyncio.get_running_loop().time())
            except Exception:
                logger.exception("a round was cut off: unexpected")  # the next one still comes

    async def _drops(self, now: float) -> None:
        dropped = self._metadata.dropped()
        self._dropped = {place: self._dropped.get(place, now + DUE_S) for place in dropped}
        await self._each(self._dropped, self._drop, now)

    async def _makes(self, now: float) -> None:
        await self._each(self._due, self._make, now)

    async def _each(
        self, due: dict[Place, float], act: Callable[[Place], Awaitable[None]], now: float
    ) -> None:
        """Do what is due; what does not succeed is due again, after the same time."""
        errors: list[TocsinError] = []

        async def one(place: Place) -> None:
            asked_at = due[place]
            try:
                await act(place)
            except TocsinError as error:
                errors.append(error)
                due[place] = now + DUE_S
            else:
                if due.get(place) == asked_at:  # else it has changed since
                    del due[place]

        for batch in _batches([place for place, from_s in due.items() if from_s <= now]):
            await asyncio.gather(*map(one, batch))
        if errors:
            count = len(errors)
            logger.warning("%d changes of the catalog wait for the storage: %s", count, errors[0])

    # --- What is done ----------------------------------------------------------------------------

    async def _drop(self, place: Place) -> None:
        queue_id, group_id = place
        if group_id is None:
            await self._storage.drop_queue(queue_id)
        else:
            await self._storage.drop_group(group_id, queue_id)
        await self._metadata.forget(queue_id, group_id)

    async def _make(self, place: Place) -> None:
        queue_id, group_id = place
        queue = self._metadata.queue_by_id(queue_id)
        if queue is None:
            return  # it was deleted since
        groups = self._groups(queue) if group_id is not None else []
        await self._make_in_storage(queue, [one for one in groups if one.group_id == group_id])

    async def _make_whole(self, queue: Queue) -> None:
        await self._make_in_storage(queue, self._groups(queue))

    def _groups(self, queue: Queue) -> list[Group]:
        return self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue)

    async def _make_in_storage(self, queue: Queue, groups: Sequence[Group]) -> None:
        await _unless_gone(self._storage.create_queue(queue.queue_id, queue.settings.partitions))
        for group in groups:
            await _unless_gone(self._make_group(queue, group))

    async def _make_group(self, queue: Queue, group: Group) -> None:
        starts = await starts_of(self._storage, queue, group.begins)
        await self._storage.create_group(group.group_id, queue.queue_id, starts)


async def _unless_gone(making: Awaitable[None]) -> None:
    """Make it. It was dropped since the catalog was read: nothing happens."""
    try:
        await making
    except TocsinError as error:
        if error.code.name not in GONE:
            raise


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))


changes_logger = logging.getLogger("tocsin.changes")
AGAIN_S: Final = 2.0
"""For so long the storage's half is tried again."""
AGAIN_BASE_S: Final = 0.05
"""Before the second time; doubles from time to time."""
AGAIN: Final = frozenset({"storage_unavailable", "unknown"})
"""Codes of what may go well a moment later."""


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
            changes_logger.warning("a change that came late: %s", error)

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
        """Both have dropped it. Where the catalog cannot be told, `gateway.catalog.reconcile` does
        it."""
        try:
            await self._metadata.forget(queue_id, group_id)
        except TocsinError as error:
            changes_logger.warning(
                "%s is gone and stays on the list: %s", group_id or queue_id, error
            )


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
