"""Describe queues and groups to operators: the storage's figures, and what their owners here know.

`Describer` joins the figures of `gateway.operator.stats` with the settings, the counters, and the
partitions' owners.
"""

import asyncio
from collections.abc import Collection
from typing import Final, Literal

import msgspec

from gateway.counters import Counters
from gateway.delivery.group import GroupRuntime
from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.models import GroupPartition, OwnerDescription, PartitionWaits
from gateway.operator.stats import GroupStats, QueueStatsCache
from metadata.catalog import Group, Membership, Principal, Queue, dead_letter_name
from metadata.port import Metadata
from push.delivery import holds_up, is_open
from push.errors import Refused, TocsinError
from push.storage_port import CursorState, PartitionState

BlockedBy = Literal["paused", "credit", "socket", "full", "no_consumer"]


class Describer:
    """Descriptions of queues and groups."""

    def __init__(
        self, stats: QueueStatsCache, metadata: Metadata, groups: Groups, counters: Counters
    ) -> None:
        self._stats = stats
        self._metadata = metadata
        self._groups = groups
        self._counters = counters

    # --- Queues --------------------------------------------------------------------------------

    async def queue(self, principal: Principal, name: str) -> dict[str, object]:
        """Describe a queue: settings, holder, partitions, depth, counters, each group's lag. Raises
        Refused(queue_not_found)."""
        queue = self._metadata.find_queue(principal, name)
        groups = self._metadata.list_groups(principal, queue)
        stats = await self._stats.stats(queue, groups)
        return {
            "name": queue.name,
            "queue_id": queue.queue_id,
            "holder": queue.holder,
            "created_unix_ms": queue.created_unix_ms,
            "paused": queue.paused,
            "settings": msgspec.to_builtins(queue.settings),
            "partitions": _at_clusters(queue, stats.descriptions),
            "depth": sum(state.messages for state in stats.states),
            "bytes": sum(state.bytes for state in stats.states),
            "oldest_unix_ms": stats.oldest_unix_ms,
            "scheduled": msgspec.to_builtins(stats.scheduled),
            "counters": self._counters.of_queue(queue.queue_id),
            "dead_letters": await self._dead_letters(principal, queue),
            "groups": [
                {
                    "name": group.name,
                    **self._figures(
                        group, stats.groups[group.group_id], await self._membership(group)
                    ),
                }
                for group in groups
            ],
        }

    async def _membership(self, group: Group) -> Membership | None:
        """Return the group's row; None if it cannot be read now."""
        try:
            return await self._groups.row(group)
        except TocsinError:
            return None

    async def _dead_letters(self, principal: Principal, queue: Queue) -> dict[str, object]:
        name = dead_letter_name(queue)
        try:
            dead = self._metadata.find_queue(principal, name)
        except Refused:
            return {"queue": name, "messages": None}
        try:
            stats = await self._stats.stats(dead, [])
        except Refused as error:  # they may be at a storage cluster that is away
            if error.code.name != "storage_unavailable":
                raise
            return {"queue": name, "messages": None}
        return {"queue": name, "messages": sum(state.messages for state in stats.states)}

    # --- Groups --------------------------------------------------------------------------------

    async def group(self, principal: Principal, queue: Queue, name: str) -> dict[str, object]:
        """Describe a group: settings, lag, counters, and each partition with its owner and what it
        waits for. Raises Refused(group_not_found)."""
        group = self._metadata.find_group(principal, queue, name)
        stats = await self._stats.stats(queue, [group])
        runtime = self._groups.runtimes.get(group.group_id)
        group_stats, row = stats.groups[group.group_id], await self._membership(group)
        members = sorted(
            {*(runtime.members if runtime is not None else ()), *self._groups.others(row)}
        )
        absent = sorted(runtime.absent) if runtime is not None else []
        there = self._groups.elsewhere(row)
        assigned = _members_by_partition(runtime, row, {*members, *absent})
        return {
            "name": group.name,
            "group_id": group.group_id,
            "queue": queue.name,
            "created_unix_ms": group.created_unix_ms,
            "settings": msgspec.to_builtins(group.settings),
            **self._figures(group, group_stats, row),
            "members": members,
            "absent": absent,
            "partitions": [
                msgspec.to_builtins(
                    _partition(state, group_stats, runtime, there.get(number), assigned.get(number))
                )
                for state in stats.states
                for number in (state.partition.number,)
            ],
        }

    def _figures(
        self, group: Group, stats: GroupStats, row: Membership | None
    ) -> dict[str, object]:
        """Return the figures of a group that a queue's description has, too."""
        runtime = self._groups.runtimes.get(group.group_id)
        owned_partitions = runtime.owned_partitions.values() if runtime is not None else ()
        here = len(runtime.members) if runtime is not None else 0
        return {
            "lag": stats.lag,
            "consumers": here + len(self._groups.others(row)),
            "in_flight": sum(owned.delivery.in_flight for owned in owned_partitions),
            "aside": stats.aside,
            "keys_parked": stats.parked,
            "oldest_unix_ms": stats.oldest_unix_ms,
            "counters": self._counters.of_group(group.group_id),
        }


def _members_by_partition(
    runtime: GroupRuntime | None, row: Membership | None, there: Collection[str]
) -> dict[int, str]:
    """Return the member that has, or is to have, each partition, if it is `there`."""
    known = row.assignment if row is not None else runtime.assignment if runtime is not None else {}
    return {number: name for number, name in known.items() if name in there}


def _partition(
    state: PartitionState,
    stats: GroupStats,
    runtime: GroupRuntime | None,
    gateway: str | None,
    member: str | None,
) -> GroupPartition:
    """Describe a partition for a group. `gateway`: another gateway whose consumer has it. `member`:
    the consumer that has it, or will have it."""
    number, now = state.partition.number, asyncio.get_running_loop().time()
    cursor = stats.cursors.get(number)
    lag = stats.lags.get(number, 0)
    owned = runtime.owned_partitions.get(number) if runtime is not None else None
    if owned is None or owned.ended:
        return GroupPartition(
            partition=number,
            owner=None,
            member=member,
            epoch=_epoch(cursor, runtime, number),
            next_offset=cursor.floor if cursor is not None else state.certified,
            certified=state.certified,
            lag=lag,
            in_flight=0,
            keys_waiting=0,
            keys_parked=cursor.parked if cursor is not None else 0,
            held=0,
            aside=cursor.aside if cursor is not None else 0,
            waits_for=owner_wanted(runtime, number, gateway) if lag else "",
            draining=False,
        )
    delivery = owned.delivery
    keys, parked, aside = delivery.line_counts()
    return GroupPartition(
        partition=number,
        owner=owner_of(owned),
        member=member,
        epoch=delivery.epoch,
        next_offset=delivery.frontier,
        certified=delivery.end,
        lag=lag,
        in_flight=delivery.in_flight,
        keys_waiting=keys,
        keys_parked=parked,
        held=delivery.held_count,
        aside=aside,
        waits_for=waits_for(owned, now),
        draining=delivery.draining,
    )


def _epoch(cursor: CursorState | None, runtime: GroupRuntime | None, number: int) -> int:
    """Return the highest epoch of a partition that is known here. A new owner raises it without any
    change that is notified."""
    stored = cursor.epoch if cursor is not None else 0
    return max(stored, runtime.epochs.get(number, 0) if runtime is not None else 0)


def owner_of(owned: OwnedPartition) -> OwnerDescription | None:
    """Return the consumer that owns a partition. None for the temporary owner, which gives nothing
    out."""
    describe = getattr(owned.owner, "described", None)
    return describe() if describe is not None else None


def owner_wanted(
    runtime: GroupRuntime | None, number: int, gateway: str | None
) -> Literal["no_consumer", "absent", "moving", "elsewhere"]:
    """Return why no consumer here has a partition. `gateway`: another gateway whose consumer has
    it."""
    if gateway is not None:
        return "elsewhere"
    if runtime is None:
        return "no_consumer"
    name = runtime.assignment.get(number)
    if name in runtime.members:
        return "moving"
    if name in runtime.absent:
        return "absent"
    return "moving" if runtime.members else "no_consumer"


def waits_for(owned: OwnedPartition, now: float) -> PartitionWaits:
    """Return what a partition with something to give waits for; "" if there is nothing to give, or
    if it goes out right now."""
    delivery = owned.delivery
    if not is_open(delivery, now):
        return holds_up(delivery, now) or ""
    blocked = blocked_by(owned)
    return blocked or ("read" if owned.fetch.reading else "")


def blocked_by(owned: OwnedPartition) -> BlockedBy | None:
    """Return why a partition's owner takes nothing more now; None if it takes something."""
    if owned.owner.available() > 0:
        return None
    why = owned.owner.blocked_by
    return _BLOCKED_BY.get(why, "credit")


_BLOCKED_BY: Final[dict[str, BlockedBy]] = {
    "paused": "paused",
    "socket": "socket",
    "in_flight": "full",
    "no_consumer": "no_consumer",
}


def _at_clusters(queue: Queue, described: list[dict[str, object]]) -> list[dict[str, object]]:
    """Add the storage cluster of each partition, if the queue's row names clusters."""
    names = queue.clusters
    if not names:
        return described
    return [{**one, "cluster": names[int(str(one["partition"])) % len(names)]} for one in described]
