"""Operators' acts on queues: pause, seek, purge, peek, and send dead letters back.

A change that has begun is finished even if its caller is gone. What it made durable counts at this
gateway at once.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.catalog.reconcile import Changes, starts_of
from gateway.delivery.groups import Groups
from gateway.models import FoundDeadLetters, Look, Peeked, Purged, Redriven, SeekTo
from gateway.operator import peek as looking
from gateway.operator.redrive import GROUP, Redriver
from gateway.operator.removal import Begin, RemovalCounter, Removed, check_agreed
from gateway.publish.publisher import Publisher
from metadata.catalog import Group, GroupSettings, Principal, Queue, dead_letter_name
from metadata.port import Metadata
from push.errors import Refused, Unknown
from push.storage_port import Storage

T = TypeVar("T")


class QueueOperations:
    """Operators' acts. `touched` is called when something of a queue may be deleted."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        changes: Changes,
        groups: Groups,
        removing: RemovalCounter,
        *,
        publisher: Publisher,
        touched: Callable[[Queue], None],
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._changes = changes
        self._groups = groups
        self._removal = removing
        self._on_touched = touched
        self._redriver = Redriver(storage, publisher, groups, metadata)

    async def pause(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """Pause or resume deliveries to groups, durably, and return the changed queue. Messages
        that are on their way out still arrive. Deliveries in flight settle, return or expire."""
        return await self._metadata.pause_queue(principal, name, paused=paused)

    async def seek(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        to: SeekTo,
        *,
        deletes_max: int | None = None,
        begin: Begin | None = None,
    ) -> Removed:
        """Set a group's cursors anew. Acks of earlier deliveries are stale. `begin` is awaited
        before the change. Returns what the seek removes. Raises Refused(would_delete) if that is
        more than `deletes_max` messages; with `deletes_max` None nothing is counted, and zeros are
        returned."""
        group = self._metadata.find_group(principal, queue, name)
        if isinstance(to, tuple):
            kind, value = to
            starts = (
                await starts_of(self._storage, queue, value)
                if kind == "unix_ms"
                else [value] * len(queue.members)
            )
        else:
            starts = await starts_of(self._storage, queue, to)
        removed = Removed()
        if deletes_max is not None:
            removed, starts = await self._removal.count_seek(principal, queue, group, starts)
            check_agreed(f"the seek of the group {name!r}", removed, deletes_max)
        if begin is not None:
            await begin(removed)
        work = self._storage.seek(group.group_id, queue.queue_id, starts)
        await self._changes.run(self._reset_cursors(work, queue, lambda: [group]))
        return removed

    async def purge(self, principal: Principal, queue: Queue, group: str | None) -> Purged:
        """Drop the messages that a group has not settled, durably; with None those of all groups.
        Deliveries in flight no longer count, and their acks are stale."""
        found = self._metadata.find_group(principal, queue, group) if group is not None else None

        def groups() -> list[Group]:
            return self._metadata.list_groups(principal, queue) if found is None else [found]

        work = self._storage.purge(queue.queue_id, found.group_id if found is not None else None)
        return Purged(messages=await self._changes.run(self._reset_cursors(work, queue, groups)))

    async def _reset_cursors(
        self, work: Awaitable[T], queue: Queue, groups: Callable[[], list[Group]]
    ) -> T:
        """Do work that resets the cursors of these groups, and let their owners begin anew. If it
        is unknown whether they were reset, owners begin anew too; else they would go on from their
        old places until they write."""
        try:
            done = await work
        except Unknown:
            self._on_reset(queue, groups())
            raise
        self._on_reset(queue, groups())
        return done

    def _on_reset(self, queue: Queue, groups: list[Group]) -> None:
        self._on_touched(queue)
        for group in groups:
            self._groups.begin_anew(group)

    async def peek(
        self, principal: Principal, queue: Queue, look: Look, group: str | None
    ) -> Peeked:
        """Show messages without taking them; with a group, those that it has not settled."""
        found = self._metadata.find_group(principal, queue, group) if group is not None else None
        return await looking.peek(self._storage, self._groups, queue, look, found)

    async def dead_letters(
        self, principal: Principal, queue: Queue, look: Look
    ) -> FoundDeadLetters:
        """List the dead letters of a queue that have not gone back."""
        dead = await self._dead_letter_queue(principal, queue)
        group = None
        if dead is not None:
            groups = self._metadata.list_groups(principal, dead)
            group = next((group for group in groups if group.name == GROUP), None)
        return await self._redriver.list_letters(queue, dead, group, look)

    async def redrive(self, principal: Principal, queue: Queue, look: Look) -> Redriven:
        """Send dead letters back into the queue that they come from, durably. The first call makes
        the group that records the position."""
        dead = await self._dead_letter_queue(principal, queue)
        if dead is None:
            return Redriven(messages=0)
        settings = GroupSettings()
        group, _ = await self._changes.put_group(principal, dead, GROUP, settings, None)
        try:
            return await self._changes.run(self._redriver.redrive(queue, dead, group, look))
        finally:
            self._on_touched(dead)

    async def _dead_letter_queue(self, principal: Principal, queue: Queue) -> Queue | None:
        """Return the queue of the dead letters. None if nothing was ever dead-lettered, if it is
        being made for the first letter, or if it was deleted."""
        try:
            dead = self._metadata.find_queue(principal, dead_letter_name(queue))
        except Refused:
            return None
        return dead if await self._storage.partitions(dead.queue_id) else None
