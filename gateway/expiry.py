"""Abandoned groups end when their settings say so (`expires_s`), and never else (R11).

A group is abandoned while it has no consumer. The time counts from when this process saw its last
one leave, or saw first that there is none. So a restart gives it its whole time again: it never
ends too early.
"""

import logging
from collections.abc import Awaitable, Callable

from gateway.groups import Groups
from metadata.catalog import Group, Principal, Queue
from metadata.client import Metadata

logger = logging.getLogger("tocsin.expiry")


class Expiry:
    """See the module. `delete` deletes a group with its cursors."""

    def __init__(
        self,
        groups: Groups,
        metadata: Metadata,
        delete: Callable[[Principal, Queue, str], Awaitable[None]],
    ) -> None:
        self._groups = groups
        self._metadata = metadata
        self._delete = delete
        self._since: dict[str, float] = {}
        """Group id → when it was seen abandoned first, where nobody has been here."""

    async def look(self, *, now: float) -> None:
        """Delete what has been abandoned for long enough; `now` in seconds of the loop's clock.
        Looks at every group there is."""
        since, due = self._abandoned(now)
        self._since = since
        await self._end(due)
        await self.look_here(now=now)

    async def look_here(self, *, now: float) -> None:
        """As `look`, at the groups alone that have had consumers here: cheap."""
        due = []
        for runtime in self._groups.runtimes.values():
            expires_s = runtime.group.settings.expires_s
            if expires_s is None or runtime.members or runtime.closed:
                continue
            if now - runtime.left_at >= expires_s:
                due.append((runtime.queue, runtime.group))
        await self._end(due)

    async def _end(self, due: list[tuple[Queue, Group]]) -> None:
        for queue, group in due:
            logger.info("group %s of queue %s was abandoned: it ends", group.name, queue.name)
            await self._delete(Principal(queue.holder, queue.tenant), queue, group.name)

    def _abandoned(self, now: float) -> tuple[dict[str, float], list[tuple[Queue, Group]]]:
        since: dict[str, float] = {}
        due: list[tuple[Queue, Group]] = []
        for queue in self._metadata.list_all_queues():
            for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
                expires_s = group.settings.expires_s
                if expires_s is None:
                    continue
                if group.group_id in self._groups.runtimes:
                    continue  # `look_here` knows better
                first = since[group.group_id] = self._since.get(group.group_id, now)
                if now - first >= expires_s:
                    due.append((queue, group))
        return since, due
