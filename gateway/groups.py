"""All groups that have consumers on this gateway."""

import asyncio

from gateway.consumer import Consumer
from gateway.group import GroupRuntime
from gateway.link import Link
from gateway.slot_context import Context
from metadata.catalog import Group, Queue
from metadata.client import Metadata
from push.errors import Refused


class Groups:
    """Finds or makes the runtime of a group, and makes consumers."""

    def __init__(self, context: Context, metadata: Metadata) -> None:
        self._context = context
        self._metadata = metadata
        self.runtimes: dict[str, GroupRuntime] = {}
        self.started = float("-inf")
        """When this gateway began to wait for who had a place in a group before it (R22)."""
        self.closed = False

    def runtime(self, queue: Queue, group: Group) -> GroupRuntime:
        """The group's runtime here."""
        if self.closed:
            raise Refused("draining")
        runtime = self.runtimes.get(group.group_id)
        if runtime is None or runtime.closed:
            # What the caller has may be of before a pause.
            now = self._metadata.queue_by_id(queue.queue_id) or queue
            runtime = self.runtimes[group.group_id] = GroupRuntime(
                self._context, self._metadata, now, group, self.started
            )
        return runtime

    async def awaits(self, group: Group, now: float) -> bool:
        """Whether somebody may still come back to it who was there before this gateway (R22)."""
        lingers = (await self._metadata.membership(group.group_id)).lingers
        return self.started + max(lingers.values(), default=0.0) > now

    async def subscribe(
        self,
        link: Link,
        subscription: int,
        queue: Queue,
        group: Group,
        credit: int,
        *,
        held: bool = False,
    ) -> Consumer:
        """A new consumer. It is given nothing before this turn of the loop has ended, so that the
        caller's answer goes first; and with `held` nothing before it has said what it holds."""
        runtime = self.runtime(queue, group)
        consumer = Consumer(runtime, link, subscription, credit, held=held)
        await runtime.join(consumer)
        asyncio.get_running_loop().call_soon(consumer.open)
        return consumer

    def changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        """Catalog news: settings reach running deliveries with their next epoch; a pause counts,
        and what was deleted ends, now."""
        if group is None:
            for runtime in self.runtimes.values():
                if runtime.queue.queue_id == queue.queue_id:
                    runtime.queue_changed(queue)
            return
        found = self.runtimes.get(group.group_id)
        if found is None:
            return
        found.group = group
        if deleted:  # with a queue its groups are told of first, one by one
            del self.runtimes[group.group_id]
            what = "group" if self._metadata.queue_by_id(queue.queue_id) else "queue"
            found.delete(Refused(f"{what}_not_found", f"the {what} was deleted"))

    async def close(self) -> None:
        """All consumers leave; returns when nobody owns anything (the flusher writes the rest)."""
        self.closed = True
        await asyncio.gather(*(runtime.close() for runtime in self.runtimes.values()))
