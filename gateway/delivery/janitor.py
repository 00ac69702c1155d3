"""Janitor, which deletes a little at a time what is not needed any more (R11, R12, R31).

**Retention.** The janitor trims partitions that were appended to or settled since its last look,
and now and then all of them, because retention passes without anything happening.

**Abandoned groups** end when their settings say so (`expires_s`), and never else. A group is
abandoned while it has no consumer. The time counts from when this process saw its last consumer
leave, or saw first that there is none. So a restart gives the group its whole time again, and it
never ends too early. If several gateways may serve it, one of them deletes it, and the group's row
must say that no consumer came meanwhile. The catalog deletes only while that row is unchanged. So a
consumer that comes between the look and the act, however long that is, keeps the group.

**Dead letters that have no owner.** A consumer leaves, or a gateway dies, between the decision that
messages go to the dead letters and their arrival there. The next owner moves them. If none comes,
the janitor moves them through the temporary owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.delivery.cursor_writer import CursorWriter
from gateway.delivery.groups import Groups
from gateway.delivery.overflow import Overflow
from gateway.delivery.temporary_owner import TemporaryOwner
from metadata.catalog import Group, Membership, Principal, Queue
from metadata.port import Metadata
from push.errors import Fenced, Refused, TocsinError
from push.places import Partition
from push.storage_port import Storage

expiry_logger = logging.getLogger("tocsin.expiry")


class Expiry:
    """Deletion of abandoned groups. `delete` deletes a group with its cursors if its row is still
    the one that it is given; else it raises Fenced."""

    def __init__(
        self,
        groups: Groups,
        metadata: Metadata,
        delete: Callable[[Principal, Queue, str, Membership], Awaitable[object]],
    ) -> None:
        self._groups = groups
        self._metadata = metadata
        self._delete = delete
        self._since: dict[str, float] = {}
        """Group id → time since when the group counts as abandoned, of groups that can expire and
        have had no consumers here."""
        self._generations: dict[str, int] = {}
        """Group id → generation of its row when its time began. If the row has another one later, a
        consumer may have come, and the time begins anew."""

    async def look(self, *, now: float) -> None:
        """Delete each group that has been abandoned for its `expires_s`; `now` in seconds of the
        loop's clock. Looks at every group of the catalog."""
        since, due, fresh = self._abandoned(now)
        self._since = since
        for group in fresh:
            row = await self._groups.row(group, fresh=True)
            if row is not None:
                self._generations[group.group_id] = row.generation
        known = {*since, *self._groups.runtimes}
        self._generations = {one: n for one, n in self._generations.items() if one in known}
        await self._end(due, now)
        await self.look_here(now=now)

    async def look_here(self, *, now: float) -> None:
        """Delete each group that has been abandoned for its `expires_s`, of those that have had
        consumers here, which are cheap to find."""
        due = [
            (runtime.queue, runtime.group)
            for runtime in self._groups.runtimes.values()
            if runtime.has_expired(now)
        ]
        await self._end(due, now)

    async def _end(self, due: list[tuple[Queue, Group]], now: float) -> None:
        for queue, group in due:
            try:
                row = await self._abandoned_row(group, now)
                if row is not None:
                    principal = Principal(queue.holder, queue.tenant)
                    await self._delete(principal, queue, group.name, row)
                    expiry_logger.info(
                        "group %s of %s was abandoned: it ends", group.name, queue.name
                    )
            except Fenced:
                expiry_logger.info("group %s of %s has a consumer again", group.name, queue.name)
            except Refused as error:
                if error.code.name not in ("group_not_found", "queue_not_found"):
                    raise  # another gateway was here before

    # enforces: R11
    async def _abandoned_row(self, group: Group, now: float) -> Membership | None:
        """Return the group's row, if other gateways have had no consumer of it either, for as long.
        None: they have, or one has come since, and the time begins anew; or another gateway sees to
        the group."""
        row = await self._metadata.membership(group.group_id)
        runtime = self._groups.runtimes.get(group.group_id)
        expires_s = group.settings.expires_s or 0.0
        if runtime is not None and (runtime.members or now - runtime.left_at < expires_s):
            return None  # a consumer has come here since that was looked at
        if not self._groups.presence.is_shared:
            return row
        is_empty = not self._groups.others(row) and not await self._groups.awaits(group, now)
        known = self._generations.get(group.group_id)
        if known is None and runtime is not None:
            known = runtime.row.generation  # of when the last one left here
        if is_empty and known == row.generation:
            return row if self._groups.presence.is_chosen(group.group_id) else None
        self._generations[group.group_id] = row.generation
        self._since[group.group_id] = now
        if runtime is not None:
            runtime.left_at = now
        return None

    def _abandoned(
        self, now: float
    ) -> tuple[dict[str, float], list[tuple[Queue, Group]], list[Group]]:
        """Return (group id → abandoned since when, groups that are due, groups seen abandoned for
        the first time), for groups that can expire and have had no consumers here."""
        since: dict[str, float] = {}
        fresh: list[Group] = []
        due: list[tuple[Queue, Group]] = []
        for queue in self._metadata.list_all_queues():
            for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
                expires_s = group.settings.expires_s
                if expires_s is None:
                    continue
                if group.group_id in self._groups.runtimes:
                    continue  # `look_here` knows better
                if group.group_id not in self._since:
                    fresh.append(group)
                first = since[group.group_id] = self._since.get(group.group_id, now)
                if now - first >= expires_s:
                    due.append((queue, group))
        return since, due, fresh


orphans_logger = logging.getLogger("tocsin.orphaned_letters")


class OrphanedLetters:
    """Moves of dead letters of partitions that have no owner, through the temporary owner."""

    def __init__(
        self,
        storage: Storage,
        orphans: set[str],
        groups: Groups,
        metadata: Metadata,
        temporary_owner: TemporaryOwner,
    ) -> None:
        self._storage = storage
        self._queue_ids = orphans
        """Ids of queues to look at next: owned partitions here have ended with dead letters not
        moved, or the last look failed."""
        self._groups = groups
        self._metadata = metadata
        self._temporary_owner = temporary_owner

    async def look(self, *, is_all: bool) -> None:
        """Move dead letters that owned partitions of this gateway have left. `is_all`: those in
        every queue, whichever gateway left them. Queues whose letters cannot be moved now are
        looked at again."""
        left = {*self._queue_ids}
        self._queue_ids.clear()
        if is_all:
            left |= {queue.queue_id for queue in self._metadata.list_all_queues()}
        for queue_id in left:
            queue = self._metadata.queue_by_id(queue_id)
            if queue is None:
                continue
            try:
                await self._relieve(queue)
            except TocsinError as error:
                orphans_logger.info("dead letters of %s wait: %s", queue.name, error)
                self._queue_ids.add(queue_id)

    async def _relieve(self, queue: Queue) -> None:
        for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
            states = await self._storage.cursors(queue.queue_id, group.group_id)
            places = [state.place for state in states if state.dead]
            if places and await self._is_ours(group):
                for place in places:
                    async with self._temporary_owner.own(queue, group, place.partition):
                        pass  # its owned partition ends when they have arrived

    async def _is_ours(self, group: Group) -> bool:
        """Whether this gateway has to move the dead letters of a group, because the group has no
        consumers at any gateway, and this one is chosen among all."""
        row = await self._groups.row(group, fresh=True)
        if self._temporary_owner.is_served(group) or self._groups.others(row):
            return False
        return self._groups.presence.is_chosen(group.group_id)


logger = logging.getLogger("tocsin.janitor")
EVERY_S: Final = 1.0
ALL_EVERY: Final = 60
"""Number of rounds between two looks at every partition, and at every group that may have
expired."""
ORPHANS_AT: Final = 5
"""The round, of each ALL_EVERY, in which dead letters without an owner are looked for in every
queue. The first one is soon after a start, but not before consumers are back."""


class Janitor:
    """Background rounds, EVERY_S apart: groups expire, overflowing queues are relieved, partitions
    are trimmed, and dead letters without an owner are moved."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        overflow: Overflow,
        expiry: Expiry,
        orphans: OrphanedLetters,
        *,
        cursor_writer: CursorWriter,
        changed: Callable[[str], None],
    ) -> None:
        """`changed`: called with the id of a queue when something was appended to it, settled or
        trimmed."""
        self._changed = changed
        self._storage = storage
        self._metadata = metadata
        self._overflow = overflow
        self._expiry = expiry
        self._orphans = orphans
        self._touched: set[Partition] = set()
        self._warnings: dict[str, str] = {}
        """Part of a round → error that was logged when it was cut off; removed once it succeeds."""
        self._task: asyncio.Task[None] | None = None
        cursor_writer.watch(self.touched)

    def touched(self, partition: Partition) -> None:
        """Look at a partition in the next round, and report its queue as changed, because something
        was appended, settled or trimmed there."""
        self._touched.add(partition)
        self._changed(partition.queue_id)

    def start(self) -> None:
        """Begin the rounds."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="janitor")

    async def stop(self) -> None:
        """End the rounds, also in the middle of one."""
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
            # Apart, because settled records are trimmed even if abandoned groups cannot be looked
            # at.
            await self._unless_cut_off("expiry", self._expire(is_all=rounds % ALL_EVERY == 0))
            await self._unless_cut_off("trimming", self.look())
            is_all = rounds % ALL_EVERY == ORPHANS_AT
            await self._unless_cut_off("moving dead letters", self._orphans.look(is_all=is_all))

    async def _unless_cut_off(self, what: str, part: Awaitable[None]) -> None:
        """Do a part of a round. An error is only logged; work that is left undone is done in a
        later round."""
        try:
            await part
        except TocsinError as error:
            if self._warnings.get(what) != error.detail:  # not each second again
                logger.warning("%s was cut off: %s", what, error)
            self._warnings[what] = error.detail
        except Exception:
            logger.exception("%s was cut off: unexpected", what)  # the next round still comes
        else:
            self._warnings.pop(what, None)

    async def _expire(self, *, is_all: bool) -> None:
        now = asyncio.get_running_loop().time()
        if is_all:
            await self._expiry.look(now=now)
        await self._expiry.look_here(now=now)

    async def look(self) -> None:
        """Relieve overflowing queues, then trim partitions, of those that were touched since the
        last look. Queues that overflowed or could not be relieved, and partitions whose storage is
        unavailable, are looked at again in the next round."""
        touched, self._touched = self._touched, set()
        for queue_id in {partition.queue_id for partition in touched}:
            try:
                if await self._overflow.relieve(queue_id):
                    self._touched |= {p for p in touched if p.queue_id == queue_id}
            except TocsinError as error:
                logger.warning("relieving queue %s: %s", queue_id, error)
                if error.code.retry:
                    self._touched |= {p for p in touched if p.queue_id == queue_id}
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

    # enforces: R12
    async def _trim(self, partition: Partition) -> None:
        queue = self._metadata.queue_by_id(partition.queue_id)
        if queue is None:
            return
        retention_s = queue.settings.retention_s
        # A queue without any subscription yet keeps its messages for the first group that comes,
        # unless its settings say for how long. The storage knows the groups. A group that only the
        # catalog has, because making it was cut off in between, has settled nothing (P1).
        keep_all = retention_s == 0
        freed = await self._storage.trim(partition, retention_s=retention_s, keep_all=keep_all)
        if freed:
            self.touched(partition)
