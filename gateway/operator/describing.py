"""Queues and groups as they are described to operators: what the storage has, and what their
consumers here know besides."""

import asyncio
from collections.abc import Collection
from typing import Final, Literal

import msgspec

from gateway.counting import Counting
from gateway.delivery.group import GroupRuntime
from gateway.delivery.groups import Groups
from gateway.delivery.slot import Slot
from gateway.facts_values import (
    GroupPartition,
    OwnerDescription,
    PartitionWaits,
)
from gateway.operator.stock import GroupStock, Stock
from metadata.catalog import Group, Membership, Principal, Queue, dead_letter_name
from metadata.client import Metadata
from push.delivery.reasons import holds_up, is_open
from push.errors import Refused, TocsinError
from push.ports import CursorState, PartitionState

Room = Literal["paused", "credit", "socket", "full", "no_consumer"]


class Describing:
    """See the module."""

    def __init__(
        self, stock: Stock, metadata: Metadata, groups: Groups, counting: Counting
    ) -> None:
        self._stock = stock
        self._metadata = metadata
        self._groups = groups
        self._counting = counting

    # --- Queues --------------------------------------------------------------------------------

    async def queue(self, principal: Principal, name: str) -> dict[str, object]:
        """Settings, holder, partitions, depth, counters, each group's lag. Raises
        Refused(queue_not_found)."""
        queue = self._metadata.find_queue(principal, name)
        groups = self._metadata.list_groups(principal, queue)
        stock = await self._stock.of(queue, groups)
        return {
            "name": queue.name,
            "queue_id": queue.queue_id,
            "holder": queue.holder,
            "created_unix_ms": queue.created_unix_ms,
            "paused": queue.paused,
            "settings": msgspec.to_builtins(queue.settings),
            "partitions": _at_clusters(queue, stock.described),
            "depth": sum(state.messages for state in stock.states),
            "bytes": sum(state.bytes for state in stock.states),
            "oldest_unix_ms": stock.oldest_unix_ms,
            "counters": self._counting.of_queue(queue.queue_id),
            "dead_letters": await self._dead_letters(principal, queue),
            "groups": [
                {
                    "name": group.name,
                    **self._figures(group, stock.groups[group.group_id], await self._seen(group)),
                }
                for group in groups
            ],
        }

    async def _seen(self, group: Group) -> Membership | None:
        """The group's row, as far as it is to be had; see Groups.row."""
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
            stock = await self._stock.of(dead, [])
        except Refused as error:  # they may be at a storage cluster that is away
            if error.code.name != "storage_unavailable":
                raise
            return {"queue": name, "messages": None}
        return {"queue": name, "messages": sum(state.messages for state in stock.states)}

    # --- Groups --------------------------------------------------------------------------------

    async def group(self, principal: Principal, queue: Queue, name: str) -> dict[str, object]:
        """Settings, lag, counters, and each partition with its owner and what it waits for.
        Raises Refused(group_not_found)."""
        group = self._metadata.find_group(principal, queue, name)
        stock = await self._stock.of(queue, [group])
        runtime = self._groups.runtimes.get(group.group_id)
        standing, row = stock.groups[group.group_id], await self._seen(group)
        members = sorted({
            *(runtime.members if runtime is not None else ()), *self._groups.others(row)
        })  # fmt: skip
        absent = sorted(runtime.absent) if runtime is not None else []
        there = self._groups.elsewhere(row)
        whose = _whose(runtime, row, {*members, *absent})
        return {
            "name": group.name,
            "group_id": group.group_id,
            "queue": queue.name,
            "created_unix_ms": group.created_unix_ms,
            "settings": msgspec.to_builtins(group.settings),
            **self._figures(group, standing, row),
            "members": members,
            "absent": absent,
            "partitions": [
                msgspec.to_builtins(
                    _partition(state, standing, runtime, there.get(number), whose.get(number))
                )
                for state in stock.states
                for number in (state.partition.number,)
            ],
        }

    def _figures(
        self, group: Group, standing: GroupStock, row: Membership | None
    ) -> dict[str, object]:
        """What a queue's description says of a group, too."""
        runtime = self._groups.runtimes.get(group.group_id)
        slots = runtime.slots.values() if runtime is not None else ()
        here = len(runtime.members) if runtime is not None else 0
        return {
            "lag": standing.lag,
            "consumers": here + len(self._groups.others(row)),
            "in_flight": sum(slot.delivery.leases.open_count for slot in slots),
            "aside": standing.aside,
            "keys_parked": standing.parked,
            "oldest_unix_ms": standing.oldest_unix_ms,
            "counters": self._counting.of_group(group.group_id),
        }


def _whose(
    runtime: GroupRuntime | None, row: Membership | None, there: Collection[str]
) -> dict[int, str]:
    """Partition → whose it is, or is to be, as far as that one is `there`."""
    known = row.assignment if row is not None else runtime.assignment if runtime is not None else {}
    return {number: name for number, name in known.items() if name in there}


def _partition(
    state: PartitionState,
    standing: GroupStock,
    runtime: GroupRuntime | None,
    gateway: str | None,
    member: str | None,
) -> GroupPartition:
    """`gateway`: another one whose consumer has it; `member`: whose it is, or is to be."""
    number, now = state.partition.number, asyncio.get_running_loop().time()
    cursor = standing.cursors.get(number)
    lag = standing.lags.get(number, 0)
    slot = runtime.slots.get(number) if runtime is not None else None
    if slot is None or slot.ended:
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
    delivery = slot.delivery
    keys, parked, aside = delivery.waiting.lines.counts()
    return GroupPartition(
        partition=number,
        owner=owner_of(slot),
        member=member,
        epoch=delivery.epoch,
        next_offset=delivery.frontier,
        certified=delivery.end,
        lag=lag,
        in_flight=delivery.leases.open_count,
        keys_waiting=keys,
        keys_parked=parked,
        held=delivery.waiting.lines.held,
        aside=aside,
        waits_for=waits_for(slot, now),
        draining=delivery.draining,
    )


def _epoch(cursor: CursorState | None, runtime: GroupRuntime | None, number: int) -> int:
    """The last one; owning raises it without anything else that would be looked at anew."""
    stored = cursor.epoch if cursor is not None else 0
    return max(stored, runtime.epochs.get(number, 0) if runtime is not None else 0)


def owner_of(slot: Slot) -> OwnerDescription | None:
    """The consumer of a slot; None: the caretaker owns it for a moment, and gives it to nobody."""
    describe = getattr(slot.owner, "described", None)
    return describe() if describe is not None else None


def owner_wanted(
    runtime: GroupRuntime | None, number: int, gateway: str | None
) -> Literal["no_consumer", "absent", "moving", "elsewhere"]:
    """Why nobody here has a partition; `gateway`: another one whose consumer has it."""
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


def waits_for(slot: Slot, now: float) -> PartitionWaits:
    """What the partition waits for with which there is something to give; "": nothing is to be
    given, or it goes out in this moment."""
    delivery = slot.delivery
    if not is_open(delivery, now):
        return holds_up(delivery, now) or ""
    blocked = without_room(slot)
    return blocked or ("read" if slot.fetch.reading else "")


def without_room(slot: Slot) -> Room | None:
    """Why its owner takes nothing; None: it does."""
    if slot.owner.available() > 0:
        return None
    why = slot.owner.blocked_by
    return _ROOM.get(why, "credit")


_ROOM: Final[dict[str, Room]] = {
    "paused": "paused", "socket": "socket", "in_flight": "full", "no_consumer": "no_consumer",
}  # fmt: skip


def _at_clusters(queue: Queue, described: list[dict[str, object]]) -> list[dict[str, object]]:
    """With the storage cluster of each, where the queue's row names some."""
    names = queue.clusters
    if not names:
        return described
    return [{**one, "cluster": names[int(str(one["partition"])) % len(names)]} for one in described]
