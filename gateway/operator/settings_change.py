"""Changes of settings. A change that removes messages is refused unless its caller agreed to it.

A shorter retention deletes what nobody needs any more. A bound with `dead_letter` moves what is
beyond it. Fewer attempts end those of messages that were tried more often. A group that expires
takes with it what it has not settled. A change that does one of these is refused with the number
of messages, unless the caller has agreed to that many.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.catalog.reconcile import Changes
from gateway.delivery.groups import Groups
from gateway.delivery.overflow import backlog_of, messages_max
from gateway.operator.removal import Begin, RemovalCounter, Removed, check_agreed
from gateway.operator.waiting import in_flight
from metadata.catalog import Group, GroupSettings, Principal, Queue, QueueSettings
from metadata.port import Metadata
from metadata.settings import (
    Named,
    SettingChange,
    change_group_settings,
    change_queue_settings,
    changes,
)
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.storage_port import Storage
from runtime.loop.fairness import TimeSlices

TRIES_MAX: Final = 20
"""Number of times that a change is judged anew if the settings have changed meanwhile."""


@dataclass(frozen=True, slots=True)
class ChangedSettings:
    """A change that was made."""

    changes: list[SettingChange]
    removed: Removed


class SettingsChanges:
    """The operations that change the settings of a queue or a group. They count first what the
    change would remove, and refuse it if that is more than the caller has agreed to."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        changes: Changes,
        groups: Groups,
        removing: RemovalCounter,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._changes = changes
        self._groups = groups
        self._removal = removing

    async def queue(
        self, principal: Principal, name: str, named: Named, *, deletes_max: int, begin: Begin
    ) -> ChangedSettings:
        """Change the named settings of a queue. `begin` is awaited before a change that removes
        messages.

        Raises:
            Refused: would_delete if more than `deletes_max` messages would leave the queue;
                queue_not_found, setting_fixed, invalid_request, invalid_name.
        """
        for _ in range(TRIES_MAX):
            queue = self._metadata.find_queue(principal, name)
            wanted = change_queue_settings(name, queue.settings, named)
            removed = await self._removed_of_queue(principal, queue, wanted)
            await _agreed(f"the queue {name!r}", removed, deletes_max, begin)
            work = self._metadata.change_queue(principal, name, named, was=queue)
            done = await self._changes.run(work)
            if done is not None:
                return ChangedSettings(changes(done[0], done[1].settings), removed)
        raise _contended()

    async def group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        named: Named,
        *,
        deletes_max: int,
        begin: Begin,
    ) -> ChangedSettings:
        """Change the named settings of a group, as `queue` does. Raises the same, and also
        Refused(group_not_found)."""
        for _ in range(TRIES_MAX):
            group = self._metadata.find_group(principal, queue, name)
            wanted = change_group_settings(group.settings, named)
            removed = await self._removed_of_group(principal, queue, group, wanted)
            await _agreed(f"the group {name!r}", removed, deletes_max, begin)
            work = self._metadata.change_group(principal, queue, name, named, was=group)
            done = await self._changes.run(work)
            if done is not None:
                return ChangedSettings(changes(done[0], done[1].settings), removed)
        raise _contended()

    # --- What it does to messages --------------------------------------------------------------

    async def _removed_of_queue(
        self, principal: Principal, queue: Queue, wanted: QueueSettings
    ) -> Removed:
        groups = self._metadata.list_groups(principal, queue)
        changed = msgspec.structs.replace(queue, settings=wanted)
        removed = Removed()
        if wanted.retention_s != queue.settings.retention_s:
            removed += Removed(deleted=await self._count_deleted_by_age(queue, wanted))
        moved = 0
        for group in groups:
            moved += await self._count_beyond_bounds(queue, changed, group)
            moved += await self._count_exhausted(
                queue, group, _deadly(queue, group.settings), _deadly(changed, group.settings)
            )
        return removed + Removed(dead_lettered=moved)

    async def _removed_of_group(
        self, principal: Principal, queue: Queue, group: Group, wanted: GroupSettings
    ) -> Removed:
        before, after = _deadly(queue, group.settings), _deadly(queue, wanted)
        moved = await self._count_exhausted(queue, group, before, after)
        deleted = 0
        if _is_sooner(group.settings.expires_s, wanted.expires_s):
            deleted = await self._count_left(principal, queue, group)
        return Removed(deleted=deleted, dead_lettered=moved)

    async def _count_deleted_by_age(self, queue: Queue, wanted: QueueSettings) -> int:
        """Count what the wanted retention deletes now, and the present one does not."""
        deleted, slices = 0, TimeSlices()
        for number in queue.members:
            await slices.yield_if_over()
            more = await self._trimmable(queue, number, wanted.retention_s)
            if more:
                more -= await self._trimmable(queue, number, queue.settings.retention_s)
            deleted += max(0, more)
        return deleted

    async def _trimmable(self, queue: Queue, number: int, retention_s: float) -> int:
        messages, after = 0, 0
        while True:
            found, following = await self._storage.trimmable(
                Partition(queue.queue_id, number),
                retention_s=retention_s,
                keep_all=retention_s == 0,
                after=after,
            )
            messages += found
            if following is None:
                return messages
            after = following

    async def _count_beyond_bounds(self, queue: Queue, changed: Queue, group: Group) -> int:
        """Count the group's messages that are beyond the wanted bounds, and within the present
        ones."""
        if changed.settings.overflow != "dead_letter" or _bounds(queue) == _bounds(changed):
            return 0
        states = await self._storage.partitions(queue.queue_id)
        bound = messages_max(changed, states)
        if bound is None:
            return 0
        cursors = await self._storage.cursors(queue.queue_id, group.group_id)
        unsettled = backlog_of(states, cursors)
        held = messages_max(queue, states) if queue.settings.overflow == "dead_letter" else None
        return max(0, min(unsettled, unsettled if held is None else held) - bound)

    async def _count_exhausted(self, queue: Queue, group: Group, before: int, after: int) -> int:
        """Count the messages that had `after` attempts or more, and fewer than `before`. In both, 0
        means that no number of attempts sends messages to the dead letters. An attempt that is
        under way at this gateway counts. Heads of parked keys stay parked and do not count."""
        if not after or (before and before <= after):
            return 0
        tried, slices = 0, TimeSlices()
        for number in queue.members:
            await slices.yield_if_over()
            place = CursorPlace(group.group_id, Partition(queue.queue_id, number))
            cursor = await self._storage.cursor(place)
            attempts = {one.offset: one.attempts for one in cursor.retries} if cursor else {}
            attempts |= self._attempts(group, number)
            parked = {line.head for line in await self._storage.parked(place)}
            tried += sum(
                offset not in parked and after <= one and (not before or one < before)
                for offset, one in attempts.items()
            )
        return tried

    def _attempts(self, group: Group, number: int) -> dict[int, int]:
        """Return the attempt of each message that is under way, by offset."""
        runtime = self._groups.runtimes.get(group.group_id)
        owned = runtime.owned_partitions.get(number) if runtime is not None else None
        return in_flight(owned) if owned is not None else {}

    async def _count_left(self, principal: Principal, queue: Queue, group: Group) -> int:
        """Count what a group without consumers takes with it when it expires. By then the retention
        of what it has not settled may have passed, so any age counts."""
        runtime = self._groups.runtimes.get(group.group_id)
        row = await self._groups.row(group, fresh=True)
        if (runtime is not None and runtime.members) or self._groups.others(row):
            return 0
        return (await self._removal.count_group(principal, queue, group, any_age=True)).deleted


def _deadly(queue: Queue, settings: GroupSettings) -> int:
    """Return the number of attempts after which a message of the group goes to the dead letters; 0
    if it never does."""
    if (settings.on_exhausted or queue.settings.on_exhausted) == "park":
        return 0
    own = settings.attempts_max
    return queue.settings.attempts_max if own is None else own


def _bounds(queue: Queue) -> tuple[object, ...]:
    settings = queue.settings
    return settings.overflow, settings.messages_max, settings.bytes_max


def _is_sooner(before: float | None, after: float | None) -> bool:
    return after is not None and (before is None or after < before)


async def _agreed(what: str, removed: Removed, deletes_max: int, begin: Begin) -> None:
    check_agreed(f"the change of {what}", removed, deletes_max)
    if removed.messages:
        await begin(removed)


def _contended() -> Refused:
    return Refused("metadata_unavailable", "others change these settings: try again later", 1.0)
