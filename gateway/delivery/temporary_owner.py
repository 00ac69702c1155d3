"""Temporary owner of a partition that has none, so that overflow and operators can move messages.

If a consumer of this gateway owns the partition, messages are moved through its `OwnedPartition`.
If there is none, the temporary owner owns the partition for a moment, under an epoch like every
owner, and gives out nothing. A consumer that comes meanwhile fences it.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import DeliveryContext, OwnedPartition
from gateway.deliverylog.deliveries import LoggedPlace
from metadata.catalog import Group, Queue
from metadata.port import Metadata
from push.delivery import Push, Share, Taken
from push.places import CursorPlace, Partition
from push.record import Record


class NullConsumer:
    """The consumer in whose name the temporary owner owns a partition. It is given nothing."""

    blocked_by = "no_consumer"
    pulls = False

    def __init__(self, log_place: LoggedPlace) -> None:
        self.log_place = log_place

    def available(self) -> int:
        """Return 0."""
        return 0

    def share(self, available: int) -> Share:
        """Return a share of nothing."""
        return Share(0, 1, 0)

    def deliver(
        self, owned: OwnedPartition, record: Record, push: Push, reserved: object = None
    ) -> bool:
        """Return False. Never called, because nothing is available."""
        return False

    def reserve(self, count: int) -> object:
        """Do nothing. Never called, because nothing is available."""

    def release(self, count: int, reserved: object) -> None:
        """Do nothing. Never called, because nothing is reserved."""

    def revoked(self, owned: OwnedPartition, taken: list[Taken], reason: str) -> None:
        """Do nothing. Never called, because nothing is in flight."""

    def arrived(self, owned: OwnedPartition, push: Push) -> float | None:
        """Return the time of giving. Never called, because nothing is in flight."""
        return push.given_at

    def lapsed(self, given_at: float) -> None:
        """Do nothing. Never called, because nothing is in flight."""

    def holds(self, more: int) -> None:
        """Do nothing. Never called, because nothing is in flight."""

    def pump(self) -> None:
        """Do nothing, because there is nothing to give to."""


class TemporaryOwner:
    """Ownership, for a moment, of partitions of groups that have no consumers."""

    def __init__(self, context: DeliveryContext, groups: Groups, metadata: Metadata) -> None:
        self._context = context
        self._groups = groups
        self._metadata = metadata
        self._owning: set[CursorPlace] = set()

    def is_served(self, group: Group) -> bool:
        """Whether the group has consumers at this gateway."""
        runtime = self._groups.runtimes.get(group.group_id)
        return runtime is not None and bool(runtime.members)

    @asynccontextmanager
    async def own(
        self, queue: Queue, group: Group, partition: Partition
    ) -> AsyncIterator[OwnedPartition | None]:
        """Own a partition within the block, which gets the owned partition. After the block its
        dead messages are moved, everything is written, and the owned partition ends. If the block
        raises, it ends without moving them. None: the group has consumers, here or at another
        gateway, or the temporary owner owns the place already.

        Raises:
            TocsinError: the partition could not be owned, and the block is not entered.
        """
        place = CursorPlace(group.group_id, partition)
        row = await self._metadata.membership(group.group_id)
        # Checked in the turn in which we own. A consumer that comes later owns later, and fences
        # us.
        if self.is_served(group) or self._groups.others(row) or place in self._owning:
            yield None
            return
        self._owning.add(place)
        gone = asyncio.Event()
        try:
            token = os.urandom(16)
            ownership = await self._context.storage.own(
                place, token=token, assignment=row.generation
            )
        except BaseException:
            self._owning.discard(place)
            raise

        def ended(_: OwnedPartition) -> None:
            self._owning.discard(place)
            gone.set()

        log_place = LoggedPlace(self._context.log, queue, group.name, is_internal=True)
        owned = OwnedPartition(
            self._context,
            self._groups.presence,
            queue,
            group,
            place=place,
            ownership=ownership,
            token=token,
            owner=NullConsumer(log_place),
            gone=ended,
        )
        try:
            yield owned
            owned.end_when_moved()
            await gone.wait()
        finally:
            owned.abandon()
