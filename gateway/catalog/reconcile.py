"""Changes of queues and groups in the catalog and in the storage, and completion of half-done ones.

`Changes` creates and deletes, first in the catalog and then in the storage. A change that has begun
is finished, even if its caller is cancelled (its client went away, an owner ended) or was answered
that the metadata is late. The storage's half may be done twice. If the storage is away for a
moment, it is tried again before the caller gets the error.

Between the two halves their maker may die, or the outcome of the first half may be unknown. So
every gateway makes sure that the storage has everything that the catalog has (R11), and nothing
that the catalog has dropped (R12). `Reconciler` does that:

    at the start   for everything in the catalog, before anything else
    from then on   for everything that was made or changed, or was dropped and is not forgotten. It
                   does so DUE_S later, because as a rule the maker has done it at once

Making or dropping something twice changes nothing, and something that was dropped is never made
again, however late its maker comes (`Storage.create_group`). So several gateways need not agree on
which of them does it, and one that was suspended does no harm.
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

logger = logging.getLogger("tocsin.agreement")
changes_logger = logging.getLogger("tocsin.changes")
EVERY_S: Final = 1.0
DUE_S: Final = 5.0
"""Seconds that the maker of a change has for its second half, the storage's."""
BATCH_MAX: Final = 1000
"""Largest number of queues, groups or drops that are done at the same time."""
LATER: Final = frozenset({"storage_unavailable", "storage_full", "unknown"})
"""Codes of errors after which, at the start, a place is left for a later round (`may_wait`)."""
GONE: Final = ("queue_not_found", "group_not_found")
"""Codes of the storage's errors for a queue or group that was dropped before it could be made."""
UNSEEN: Final = (
    "the storage does not have it, because it is being made or was just deleted: try again"
)
"""Detail of the refusal if the storage lacks a queue or group that the catalog has."""
RETRY_S: Final = 2.0
"""Seconds for which a change of the storage is tried again, when the catalog already has the change
of a queue or group and the storage is away."""
RETRY_BASE_S: Final = 0.05
"""Seconds before the second try; each further pause is twice as long."""
RETRIED: Final = frozenset({"storage_unavailable", "unknown"})
"""Codes of the storage's errors after which a change is tried again within RETRY_S."""
T = TypeVar("T")
Place = tuple[str, str | None]
"""(queue id, group id) of a group; (queue id, None) of a queue."""


async def starts_of(storage: Storage, queue: Queue, start: GroupStart) -> Sequence[Start]:
    """Return the beginnings of the cursors of a new group, one for each partition. Raises
    TocsinError if the storage cannot tell the offset of a time."""
    if isinstance(start, int):
        return [
            await storage.offset_at(Partition(queue.queue_id, number), start)
            for number in queue.members
        ]
    return [start] * len(queue.members)


# --- Changes -------------------------------------------------------------------------------------


class Changes:
    """Creation and deletion of queues and groups, by this gateway, in the catalog and then in the
    storage."""

    def __init__(self, metadata: Metadata, storage: Storage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """Carry a change out to its end, even if the caller is cancelled."""
        return await asyncio.shield(self._start(change))

    def _start(self, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _change_both(
        self, catalog: Coroutine[Any, Any, T], storage: Callable[[T], Awaitable[None]]
    ) -> T:
        """Change the catalog and then the storage. The storage follows even if the catalog answers
        after its deadline."""

        async def change() -> T:
            try:
                changed = await catalog
            except Late as late:
                self._start(self._follow(late.outcome, storage))
                raise
            await _retry(storage, changed)
            return changed

        return await self.run(change())

    async def _follow(
        self, catalog: "asyncio.Future[T]", storage: Callable[[T], Awaitable[None]]
    ) -> None:
        try:
            await _retry(storage, await asyncio.shield(catalog))
        except TocsinError as error:
            changes_logger.warning("a change that the catalog made late has failed: %s", error)

    async def finish(self) -> None:
        """Wait for the changes under way, twice METADATA_DEADLINE_S at most. Other gateways, or the
        next start, complete those that are left undone in the storage."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=2 * limits.METADATA_DEADLINE_S)

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create a queue (True), or find it as it is (False). Raises like Metadata.put_queue, and
        the errors of the storage."""

        async def make(made: tuple[Queue, bool]) -> None:
            queue, _ = made
            await self._storage.create_queue(queue.queue_id, queue.settings.partitions)

        return await self._change_both(
            self._metadata.put_queue(principal, name, settings, named), make
        )

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Delete a queue with its messages and groups. Raises like Metadata.delete_queue, and the
        errors of the storage."""

        async def drop(queue: Queue) -> None:
            await self._storage.drop_queue(queue.queue_id)
            await self._forget(queue.queue_id, None)

        return await self._change_both(self._metadata.delete_queue(principal, name), drop)

    # enforces: R11
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
        """Create a group (True), durably with all its cursors (R11), or find it as it is (False).
        Raises like Metadata.put_group, and the errors of the storage."""
        asked = settings.start if start is None else start
        starts = await starts_of(self._storage, queue, asked)

        async def make(made: tuple[Group, bool]) -> None:
            group, is_new = made
            # The maker of an existing group may not have reached the storage, so it is made here,
            # with the start that its maker chose.
            begins = starts if is_new else await starts_of(self._storage, queue, group.begins)
            await self._storage.create_group(group.group_id, queue.queue_id, begins)

        catalog = self._metadata.put_group(principal, queue, name, settings, asked, named=named)
        return await self._change_both(catalog, make)

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, row: Membership | None = None
    ) -> None:
        """Delete a group with its cursors. With a row, it is deleted only if the row is unchanged,
        as in Metadata.delete_group."""

        async def drop(group: Group) -> None:
            await self._storage.drop_group(group.group_id, queue.queue_id)
            await self._forget(queue.queue_id, group.group_id)

        await self._change_both(self._metadata.delete_group(principal, queue, name, row=row), drop)

    async def _forget(self, queue_id: str, group_id: str | None) -> None:
        """Remove a queue or group that catalog and storage have dropped from the catalog's list of
        dropped ones. If the catalog does not answer, the `Reconciler` does it later."""
        try:
            await self._metadata.forget(queue_id, group_id)
        except TocsinError as error:
            changes_logger.warning(
                "%s is deleted, but is still on the list of dropped ones: %s",
                group_id or queue_id,
                error,
            )


async def _retry(storage: Callable[[T], Awaitable[None]], changed: T) -> None:
    """Change the storage as the catalog was changed; repeat that for RETRY_S if the storage is
    away."""
    clock = asyncio.get_running_loop().time
    give_up_at, pause_s = clock() + RETRY_S, RETRY_BASE_S
    while True:
        try:
            await storage(changed)
        except TocsinError as error:
            if error.code.name not in RETRIED or clock() + pause_s > give_up_at:
                raise
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s *= 2


# --- Reconciliation ------------------------------------------------------------------------------


class Reconciler:
    """The completion of half-done changes at a gateway. It makes in the storage what the catalog
    has, and drops what the catalog has dropped."""

    def __init__(self, metadata: Metadata, storage: Storage, *, may_wait: bool = False) -> None:
        """Begin with nothing to do. `may_wait`: a storage cluster may be away at the start, and
        queues and groups that it lacks are made when it is back."""
        self._may_wait = may_wait
        self._metadata = metadata
        self._storage = storage
        self._due: dict[Place, float] = {}
        """Queue or group → the time from which on it is to be made, in seconds of the loop's
        clock."""
        self._dropped: dict[Place, float] = {}
        """Queue or group that the catalog has dropped → the time from which on the storage is to
        drop it."""
        self._tasks: list[asyncio.Task[None]] = []

    def on_change(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        """Note that a queue or group was created or changed, and is to be made DUE_S later."""
        if not deleted:
            place = (queue.queue_id, group.group_id if group is not None else None)
            self._due[place] = asyncio.get_running_loop().time() + DUE_S

    def is_unmade(self, queue: Queue) -> bool:
        """Whether the catalog still has this queue, which the storage does not have. If so, its
        maker was cut off between the halves, and the queue is made in the next round. False: the
        queue was deleted."""
        is_there = self._metadata.queue_by_id(queue.queue_id) is not None
        if is_there:
            self._due[queue.queue_id, None] = asyncio.get_running_loop().time()
        return is_there

    async def start(self) -> None:
        """Complete all unfinished changes, then go on in the background.

        Raises:
            TocsinError: the error of the storage or the catalog; with `may_wait` not if its code is
                in LATER.
        """
        for place in self._metadata.dropped():
            await self._do_now(place, self._drop(place), self._dropped)
        queues = self._metadata.list_all_queues()
        for batch in _batches(queues):
            await asyncio.gather(*map(self._make_now, batch))
        loop = asyncio.get_running_loop()
        # in tasks of their own, because a drop goes in slices, and may take minutes
        rounds = (self._drop_due, self._make_due)
        self._tasks = [loop.create_task(self._run(act)) for act in rounds]

    async def _make_now(self, queue: Queue) -> None:
        await self._do_now((queue.queue_id, None), self._make_whole(queue), self._due)
        if (queue.queue_id, None) in self._due:
            for group in self._groups(queue):
                self._due[queue.queue_id, group.group_id] = asyncio.get_running_loop().time()

    async def _do_now(self, place: Place, work: Awaitable[None], due: dict[Place, float]) -> None:
        try:
            await work
        except TocsinError as error:
            if not self._may_wait or error.code.name not in LATER:
                raise
            due[place] = asyncio.get_running_loop().time()

    @property
    def pending(self) -> int:
        """Number of queues and groups that are left to make or drop."""
        return len(self._due) + len(self._dropped)

    async def stop(self) -> None:
        """Stop, even in the middle of a round."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, act: Callable[[float], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await act(asyncio.get_running_loop().time())
            except Exception:
                logger.exception("a round was cut off: unexpected")  # the next one still comes

    async def _drop_due(self, now: float) -> None:
        dropped = self._metadata.dropped()
        self._dropped = {place: self._dropped.get(place, now + DUE_S) for place in dropped}
        await self._do_due(self._dropped, self._drop, now)

    async def _make_due(self, now: float) -> None:
        await self._do_due(self._due, self._make, now)

    async def _do_due(
        self, due: dict[Place, float], act: Callable[[Place], Awaitable[None]], now: float
    ) -> None:
        """Do the acts that are due. An act that fails is due again DUE_S later."""
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

    # --- Acts ------------------------------------------------------------------------------------

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
    """Await the making of a queue or group. If it was dropped since the catalog was read, nothing
    happens."""
    try:
        await making
    except TocsinError as error:
        if error.code.name not in GONE:
            raise


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + BATCH_MAX] for first in range(0, len(items), BATCH_MAX))
