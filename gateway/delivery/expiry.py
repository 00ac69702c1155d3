"""Abandoned groups end when their settings say so (`expires_s`), and never else (R11).

A group is abandoned while it has no consumer. The time counts from when this process saw its last
one leave, or saw first that there is none. So a restart gives it its whole time again: it never
ends too early. Where several gateways may serve it, one of them sees to it, and the group's row
must say that nobody came meanwhile. The deletion is held to that row, by the catalog: who comes
between the look and the act, however long that is, keeps the group.
"""

import logging
from collections.abc import Awaitable, Callable

from gateway.delivery.groups import Groups
from metadata.catalog import Group, Membership, Principal, Queue
from metadata.client import Metadata
from push.errors import Fenced, Refused

logger = logging.getLogger("tocsin.expiry")


class Expiry:
    """See the module. `delete` deletes a group with its cursors while this is its row, else it
    raises Fenced."""

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
        """Group id → when it was seen abandoned first, where nobody has been here."""
        self._generations: dict[str, int] = {}
        """Group id → the generation of its row when it was seen abandoned."""

    async def look(self, *, now: float) -> None:
        """Delete what has been abandoned for long enough; `now` in seconds of the loop's clock.
        Looks at every group there is."""
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
        """As `look`, at the groups alone that have had consumers here: cheap."""
        due = []
        for runtime in self._groups.runtimes.values():
            expires_s = runtime.group.settings.expires_s
            if expires_s is None or runtime.members or runtime.closed:
                continue
            if now - runtime.left_at >= expires_s:
                due.append((runtime.queue, runtime.group))
        await self._end(due, now)

    async def _end(self, due: list[tuple[Queue, Group]], now: float) -> None:
        for queue, group in due:
            try:
                row = await self._abandoned_row(group, now)
                if row is not None:
                    principal = Principal(queue.holder, queue.tenant)
                    await self._delete(principal, queue, group.name, row)
                    logger.info("group %s of %s was abandoned: it ends", group.name, queue.name)
            except Fenced:
                logger.info("group %s of %s has a consumer again", group.name, queue.name)
            except Refused as error:
                if error.code.name not in ("group_not_found", "queue_not_found"):
                    raise  # another gateway was here before

    async def _abandoned_row(self, group: Group, now: float) -> Membership | None:
        """The group's row, if nobody was there at other gateways either, for as long as here. None:
        somebody was, or has come since, and the time begins anew; or it is another gateway's."""
        row = await self._metadata.membership(group.group_id)
        runtime = self._groups.runtimes.get(group.group_id)
        expires_s = group.settings.expires_s or 0.0
        if runtime is not None and (runtime.members or now - runtime.left_at < expires_s):
            return None  # somebody has come here since that was looked at
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
        """(since when, those that are due, those that were seen so for the first time)"""
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
