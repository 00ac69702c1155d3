"""Groups of this gateway: those that have, or have had, consumers here since it began."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec

from gateway.delivery.consumer import Consumer
from gateway.delivery.group import GroupRuntime
from gateway.delivery.membership import RETRY_AFTER_S
from gateway.delivery.owned_partition import DeliveryContext
from gateway.delivery.ports import SessionPort
from gateway.delivery.presence import Presence
from metadata.catalog import Group, Membership, Principal, Queue
from metadata.group_row import elsewhere, gateways_in, missing, others
from metadata.port import Metadata
from push.errors import Refused, TocsinError

logger = logging.getLogger("tocsin.groups")
AT_ONCE: Final = 64
"""Largest number of groups whose rows are read or written at a time, when this gateway comes back
or goes down."""
WRITE_OUT_S: Final = 3.0
"""Seconds within which this gateway, when it goes down, writes the last cursors and leaves all
groups' rows."""


class Groups:
    """Runtimes of this gateway's groups, and the changes that concern all of them."""

    def __init__(self, context: DeliveryContext, metadata: Metadata) -> None:
        self._context = context
        self._metadata = metadata
        self.presence = Presence(
            metadata,
            on_return=self._catch_up,
            on_resume=self._pump,
            on_dead=self._gateways_dead,
        )
        """Presence of this gateway among those that work on the catalog."""
        self.runtimes: dict[str, GroupRuntime] = {}
        self.closed = False
        self._missed: dict[str, tuple[int, float]] = {}
        """Group id → (generation of its row, time since when a lingering member has been seen
        missing there). A new generation begins the time anew."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to send beats, and to take up changes of groups' rows."""
        if self.presence.is_shared:
            self._metadata.on_membership_changed(self._row_changed)
        self.presence.start()

    def runtime(self, queue: Queue, group: Group) -> GroupRuntime:
        """Return the group's runtime here; make it if there is none. Raises Refused:
        queue_not_found or group_not_found if it was deleted since the caller found it; draining if
        this gateway goes down."""
        if self.closed:
            raise Refused("draining")
        runtime = self.runtimes.get(group.group_id)
        if runtime is None or runtime.closed:
            now = self._as_it_is(queue, group)
            runtime = self.runtimes[group.group_id] = GroupRuntime(
                self._context, self._metadata, self.presence, now, group
            )
        return runtime

    def _as_it_is(self, queue: Queue, group: Group) -> Queue:
        """Return the group's queue as it is now, because the caller's may be from before a pause.
        Raises Refused if either was deleted. The notice of the deletion has come already, so
        nothing would end a new runtime."""
        now = self._metadata.queue_by_id(queue.queue_id)
        if now is None:
            raise Refused("queue_not_found", "the queue was deleted")
        found = self._metadata.find_group(Principal(now.holder, now.tenant), now, group.name)
        if found.group_id != group.group_id:
            raise Refused("group_not_found", "the group was deleted")
        return now

    async def awaits(self, group: Group, now: float) -> bool:
        """Whether the group still waits for a lingering member: one from before this gateway's
        start (R22) or, if gateways share the catalog, one that is with no living gateway."""
        row = await self._metadata.membership(group.group_id)
        if not self.presence.is_shared:
            return self.presence.started + max(row.lingers.values(), default=0.0) > now
        lingers = missing(row, self.presence.dead(row.gateways))
        if not lingers:
            self._missed.pop(group.group_id, None)
            return False
        generation, since = self._missed.get(group.group_id, (-1, now))
        if generation != row.generation:
            since = now
        self._missed[group.group_id] = (row.generation, since)
        return since + max(lingers.values()) > now

    async def row(self, group: Group, *, fresh: bool = False) -> Membership | None:
        """Return the group's row if other gateways may serve the group too; else None. While the
        group has members here, the row may be that of this gateway's last look. With `fresh` it is
        read anew, as decisions need."""
        if not self.presence.is_shared:
            return None
        runtime = self.runtimes.get(group.group_id)
        if runtime is not None and runtime.members and not fresh:
            return runtime.row
        return await self._metadata.membership(group.group_id)

    def others(self, row: Membership | None) -> dict[str, str]:
        """Return consumer → gateway, for the consumers that a group's row has at other live
        gateways. Empty without a row."""
        if row is None:
            return {}
        return others(row, self.presence.gateway, self.presence.dead(row.gateways))

    def elsewhere(self, row: Membership | None) -> dict[int, str]:
        """Return partition → the other live gateway whose consumer has the partition, or is to have
        it, by a group's row. Empty without a row."""
        if row is None:
            return {}
        return elsewhere(row, self.presence.gateway, self.presence.dead(gateways_in(row)))

    def consumer(
        self,
        link: SessionPort,
        subscription: int,
        queue: Queue,
        group: Group,
        credit: int,
        *,
        held: bool = False,
    ) -> Consumer:
        """Make a consumer of the session `link`. The caller lets it join. With `held` the consumer
        is given nothing before its client has said what it holds. Raises Refused if the group does
        not exist any more, or this gateway goes down."""
        return Consumer(self.runtime(queue, group), link, subscription, credit, held=held)

    def changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        """Take up a change of the catalog: settings reach running deliveries with their next epoch;
        a pause counts, and what was deleted ends, now."""
        if group is None:
            for runtime in self.runtimes.values():
                if runtime.queue.queue_id == queue.queue_id:
                    runtime.queue_changed(queue)
            return
        if deleted:
            self._missed.pop(group.group_id, None)
        found = self.runtimes.get(group.group_id)
        if found is None:
            return
        found.group = group
        if deleted:  # the groups of a deleted queue were announced before it, one by one
            del self.runtimes[group.group_id]
            what = "group" if self._metadata.queue_by_id(queue.queue_id) else "queue"
            found.delete(Refused(f"{what}_not_found", f"the {what} was deleted"))

    # --- Among several gateways -------------------------------------------------------------------

    def _row_changed(self, group_id: str, generation: int) -> None:
        runtime = self.runtimes.get(group_id)
        if runtime is not None and (runtime.members or runtime.has()):
            runtime.part.on_notice(generation)

    def _gateways_dead(self, dead: set[str]) -> None:
        for runtime in self.runtimes.values():
            if runtime.members or runtime.has():
                runtime.part.on_dead(dead)

    async def _catch_up(self) -> None:
        await _few_at_a_time(runtime.catch_up() for runtime in list(self.runtimes.values()))

    def _pump(self) -> None:
        for runtime in self.runtimes.values():
            for member in runtime.members.values():
                member.pump()

    def begin_anew(self, group: Group) -> None:
        """End all deliveries of a group whose cursors were set anew: here at once, and at other
        gateways as soon as they see that in the group's row, which is changed in the background."""
        runtime = self.runtimes.get(group.group_id)
        if runtime is not None:
            runtime.fence()
        if self.presence.is_shared:
            task = asyncio.get_running_loop().create_task(self._tell_anew(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell_anew(self, group: Group) -> None:
        runtime = self.runtimes.get(group.group_id)
        while not self.closed:
            try:
                row = await self._metadata.membership(group.group_id)
                new = msgspec.structs.replace(
                    row, generation=row.generation + 1, begun_anew=row.begun_anew + 1
                )
                if await self._metadata.change_membership(new, expected_generation=row.generation):
                    if runtime is not None:
                        runtime.part.begun_anew = new.begun_anew
                    return
            except TocsinError as error:
                if not error.code.retry:  # it is deleted
                    return
                await asyncio.sleep(RETRY_AFTER_S)

    def facts(self) -> dict[str, object]:
        """Return counts of this gateway for operators: groups, refused cursor writes, stale
        settlements; and its presence."""
        return {
            "groups_running": len(self.runtimes),
            "fenced_writes": self._context.cursor_writer.fenced_writes,
            "stale_settlements": self._context.stale_settlements,
            **self.presence.facts(),
        }

    # --- The end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let all consumers leave. If gateways share the catalog, also write the last cursors and
        leave the groups' rows, for WRITE_OUT_S at most. Otherwise the caller drains the cursor
        writer."""
        self.closed = True
        await asyncio.gather(*(runtime.close() for runtime in self.runtimes.values()))
        if self.presence.is_shared:
            for task in list(self._tasks):
                task.cancel()
            try:
                async with asyncio.timeout(WRITE_OUT_S):
                    await self._context.cursor_writer.drain()  # others begin after the last write
                    await _few_at_a_time(map(_write_out, list(self.runtimes.values())))
            except TimeoutError:
                logger.warning("not all groups could be left: others wait for this gateway")
        await self.presence.stop()


async def _write_out(runtime: GroupRuntime) -> None:
    try:
        await runtime.part.write_out()
    except TocsinError as error:
        logger.warning("group %s could not be left: %s", runtime.group.name, error)


async def _few_at_a_time(calls: Iterable[Awaitable[None]]) -> None:
    """Await all these calls, AT_ONCE at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[None]) -> None:
        async with places:
            await call

    await asyncio.gather(*(one(call) for call in calls))
