"""Overflow with `dead_letter`: what a group leaves lying beyond the queue's bounds moves on.

The bounds hold for what a group has not settled. The oldest such messages go to the dead letters,
reason `overflow`, and count as settled for that group; publishing is never refused for it. With
`reject` the storage refuses at the append, and nothing happens here.
"""

import asyncio
import os

from gateway.group import delivery_settings
from gateway.groups import Groups
from gateway.routing import overflow_bounds
from gateway.slot import Slot
from gateway.slot_context import Context
from metadata.catalog import Group, Principal, Queue
from metadata.client import Metadata
from push import limits
from push.delivery import Delivery
from push.giving import GiveOut, Taken
from push.ports import GroupPartition, Partition
from push.record import Record


class _Nobody:
    """The owner of a slot that only evicts: it is given nothing."""

    blocked_by = "no_consumer"

    def available(self) -> int:
        """Nothing."""
        return 0

    def deliver(self, slot: Slot, record: Record, out: GiveOut, reserved: object = None) -> None:
        """Never called: nothing is available."""

    def reserve(self, count: int) -> object:
        """Never called: nothing is available."""

    def release(self, count: int, reserved: object) -> None:
        """Never called: nothing is reserved."""

    def revoked(self, slot: Slot, taken: list[Taken], reason: str) -> None:
        """Never called: nothing is in flight."""

    def holds(self, more: int) -> None:
        """Never called: nothing is in flight."""

    def pump(self) -> None:
        """Nothing to give to."""


class Overflow:
    """See the module."""

    def __init__(self, context: Context, groups: Groups, metadata: Metadata) -> None:
        self._context = context
        self._groups = groups
        self._metadata = metadata
        self._evicting: set[GroupPartition] = set()

    async def relieve(self, partition: Partition) -> bool:
        """Look at one partition. True: something was moved, look again."""
        queue = self._metadata.queue_by_id(partition.queue_id)
        if queue is None or queue.settings.overflow != "dead_letter":
            return False
        messages_max, bytes_max = overflow_bounds(queue)
        if not messages_max and not bytes_max:
            return False
        states = await self._context.storage.partitions(queue.queue_id)
        state = next((s for s in states if s.partition == partition), None)
        if state is None or not state.messages:
            return False
        if bytes_max:
            by_bytes = max(1, bytes_max * state.messages // max(1, state.bytes))
            messages_max = min(messages_max or by_bytes, by_bytes)
        moved = False
        for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
            runtime = self._groups.runtimes.get(group.group_id)
            slot = runtime.slots.get(partition.number) if runtime is not None else None
            if slot is not None:
                moved = slot.evict(slot.delivery.unsettled - messages_max) or moved
            elif runtime is None or not runtime.members:
                unsettled = await self._unsettled(queue, group, partition, state.certified)
                if unsettled > messages_max:
                    await self._evict(queue, group, partition, unsettled - messages_max)
                    moved = True
        return moved

    async def _unsettled(self, queue: Queue, group: Group, partition: Partition, end: int) -> int:
        """What a group that nobody serves here has not settled."""
        cursors = await self._context.storage.cursors(queue.queue_id, group.group_id)
        cursor = next((c for c in cursors if c.place.partition == partition), None)
        return 0 if cursor is None else end - cursor.floor - cursor.settled_above + cursor.aside

    async def _evict(self, queue: Queue, group: Group, partition: Partition, count: int) -> None:
        """As owner for a moment; a consumer that comes meanwhile fences us, and the next look goes
        through its slot."""
        place = GroupPartition(group.group_id, partition)
        if place in self._evicting:
            return
        self._evicting.add(place)
        gone = asyncio.Event()
        try:
            token = os.urandom(16)
            generation = (await self._metadata.membership(group.group_id)).generation
            owned = await self._context.storage.own(place, token=token, assignment=generation)
            now = asyncio.get_running_loop().time()
            settings = delivery_settings(queue, group, pulls=False)
            delivery = Delivery(place, owned, token, settings, now=now)
            slot = Slot(
                self._context, queue, group, partition,
                delivery=delivery, owner=_Nobody(), gone=lambda _: gone.set(),
            )  # fmt: skip
            slot.evict(min(count, limits.DYING_PER_PARTITION_MAX))
            slot.end_when_buried()
            await gone.wait()
        finally:
            self._evicting.discard(place)
