"""The janitor: deletes what nobody needs any more, a little at a time (R12, R31).

Looks at partitions that were appended to or settled since it looked last, and now and then at all,
because retention passes without anything happening, and groups are abandoned.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.delivery.expiry import Expiry
from gateway.delivery.orphaned_letters import OrphanedLetters
from gateway.delivery.overflow import Overflow
from metadata.client import Metadata
from push.errors import TocsinError
from push.places import Partition
from push.ports import Storage

logger = logging.getLogger("tocsin.janitor")
EVERY_S: Final = 1.0
ALL_EVERY: Final = 60
"""Rounds between two looks at every partition."""
ORPHANS_AT: Final = 5
"""In which of these rounds dead letters are looked for that nobody moves: soon after a start, but
not before consumers are back."""


class Janitor:
    """Trims in the background."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        overflow: Overflow,
        expiry: Expiry,
        orphans: OrphanedLetters,
        *,
        changed: Callable[[str], None],
    ) -> None:
        """`changed`: called with the id of a queue of which something has changed."""
        self._changed = changed
        self._storage = storage
        self._metadata = metadata
        self._overflow = overflow
        self._expiry = expiry
        self._orphans = orphans
        self._touched: set[Partition] = set()
        self._said: dict[str, str] = {}
        """Why expiry and trimming were cut off, as was said last."""
        self._task: asyncio.Task[None] | None = None

    def touched(self, partition: Partition) -> None:
        """Something was appended or settled there."""
        self._touched.add(partition)
        self._changed(partition.queue_id)

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="janitor")

    async def stop(self) -> None:
        """End, in the middle of a round."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(EVERY_S)
            rounds += 1
            if rounds % ALL_EVERY == 0:
                self._touched |= self._all()
            # Apart: what is settled goes also where an abandoned group cannot be looked at.
            await self._unless_cut_off("expiry", self._expire(is_all=rounds % ALL_EVERY == 0))
            await self._unless_cut_off("trimming", self.look())
            is_all = rounds % ALL_EVERY == ORPHANS_AT
            await self._unless_cut_off("moving dead letters", self._orphans.look(is_all=is_all))

    async def _unless_cut_off(self, what: str, part: Awaitable[None]) -> None:
        """What is left undone is done in a later round."""
        try:
            await part
        except TocsinError as error:
            if self._said.get(what) != error.detail:  # not each second again
                logger.warning("%s was cut off: %s", what, error)
            self._said[what] = error.detail
        except Exception:
            logger.exception("%s was cut off: unexpected", what)  # the next round still comes
        else:
            self._said.pop(what, None)

    async def _expire(self, *, is_all: bool) -> None:
        now = asyncio.get_running_loop().time()
        if is_all:
            await self._expiry.look(now=now)
        await self._expiry.look_here(now=now)

    async def look(self) -> None:
        """One round over everything that was touched."""
        touched, self._touched = self._touched, set()
        for queue_id in {partition.queue_id for partition in touched}:
            try:
                if await self._overflow.relieve(queue_id):
                    self._touched |= {p for p in touched if p.queue_id == queue_id}
            except TocsinError as error:
                logger.warning("relieving queue %s: %s", queue_id, error)
        lanes: dict[int, list[Partition]] = {}
        for partition in touched:
            number = self._storage.lane(partition, "local").number
            lanes.setdefault(number, []).append(partition)
        await asyncio.gather(*map(self._trim_each, lanes.values()))

    async def _trim_each(self, partitions: list[Partition]) -> None:
        for place, partition in enumerate(partitions):
            try:
                await self._trim(partition)
            except TocsinError as error:
                logger.warning("trimming %s: %s", partition, error)
                if error.code.name == "storage_unavailable":
                    self._touched.update(partitions[place:])  # nor do the others answer
                    return

    def _all(self) -> set[Partition]:
        queues = self._metadata.list_all_queues()
        return {Partition(q.queue_id, n) for q in queues for n in q.members}

    async def _trim(self, partition: Partition) -> None:
        queue = self._metadata.queue_by_id(partition.queue_id)
        if queue is None:
            return
        retention_s = queue.settings.retention_s
        # A queue that nobody subscribed to yet keeps its messages for whoever comes first, unless
        # it says itself how long. The storage knows who did: a group that the catalog alone has,
        # because making it was cut off in between, has settled nothing (P1).
        keep_all = retention_s == 0
        freed = await self._storage.trim(partition, retention_s=retention_s, keep_all=keep_all)
        if freed:
            self.touched(partition)
