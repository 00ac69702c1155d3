"""The storage has what the catalog has (R11), and nothing of what the catalog has dropped (R12).

A change goes through the catalog first and through the storage then (`gateway.catalog.changes`). In
between its maker may die, or be told that nobody knows what became of the first half. So every
gateway that reads or hears of something in the catalog sees to it that the storage has done its
half, too:

    at the start   all that there is, before anything else
    from then on   what has come or changed, or was dropped and is not forgotten, DUE_S later: as a
                   rule it was done at once

Making something twice changes nothing, nor does dropping it, and what was dropped is never made
again, however late its maker comes (`Storage.create_group`): so several gateways need not agree on
who does it, and one that stood still does no harm.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from gateway.catalog.starts import starts_of
from metadata.catalog import Group, Principal, Queue
from metadata.client import Metadata
from push.errors import TocsinError
from push.ports import Storage

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
