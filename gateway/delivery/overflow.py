"""Overflow with `dead_letter`: if a group leaves more unsettled than the queue's bounds allow, the
excess goes to the dead letters.

The bounds hold for all messages of the queue that a group has not settled. The excess has the
reason `overflow`, and counts as settled for that group. It is taken from the
partitions where most messages wait, the oldest first. Publishing is never refused for it. With
`reject` the storage refuses at the append, and nothing happens here. If several gateways serve the
group, each moves its part from the partitions that it has itself.
"""

from asyncio import get_running_loop
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.delivery.temporary_owner import TemporaryOwner
from metadata.catalog import Group, Principal, Queue
from metadata.port import Metadata
from push.places import Partition
from push.storage_port import CursorState, PartitionState, Storage


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Messages that a group has left in one partition."""

    unsettled: int
    waiting: int
    """Number of the unsettled messages that can be moved now, because they were not given out
    yet."""
    owned: OwnedPartition | None
    """This gateway's owned partition; None: no consumer here owns the partition."""
    is_elsewhere: bool = False
    """Whether a consumer at another gateway has the partition, so that its messages are moved
    there."""


def shares(waiting: Mapping[int, int], excess: int) -> dict[int, int]:
    """Return partition → number of its waiting messages to move, `excess` in all, or all if fewer
    wait. `waiting`: partition → number of messages that wait. Partitions with most are cut to one
    common number; one that has no more than that is left out."""
    left = min(excess, sum(waiting.values()))
    cut: dict[int, int] = {}
    by_length = sorted(waiting.items(), key=lambda item: (item[1], item[0]))
    kept = sum(waiting.values()) - left
    for place, (number, length) in enumerate(by_length):
        keeps = min(length, kept // (len(by_length) - place))
        kept -= keeps
        if length > keeps:
            cut[number] = length - keeps
    return cut


class Overflow:
    """Moves of messages beyond a queue's bounds to the dead letters."""

    def __init__(
        self,
        storage: Storage,
        groups: Groups,
        metadata: Metadata,
        temporary_owner: TemporaryOwner,
    ) -> None:
        self._storage = storage
        self._groups = groups
        self._metadata = metadata
        self._temporary_owner = temporary_owner

    # enforces: R12
    async def relieve(self, queue_id: str) -> bool:
        """Move the messages of one queue that are beyond its bounds, group by group. Returns True
        if a group was beyond the bounds, and another look is due. Not all of the excess may have
        gone, if a partition has no owner at the moment or much is on its way already."""
        queue = self._metadata.queue_by_id(queue_id)
        if queue is None or queue.settings.overflow != "dead_letter":
            return False
        states = await self._storage.partitions(queue_id)
        bound = messages_max(queue, states)
        if bound is None:
            return False
        again = False
        for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
            row = await self._groups.row(group, fresh=True)
            is_served = self._temporary_owner.is_served(group) or bool(self._groups.others(row))
            if not is_served and not self._groups.presence.is_chosen(group.group_id):
                continue  # another gateway sees to it
            there = self._groups.elsewhere(row)
            backlogs = await self._backlogs(queue, group, states, there, is_served=is_served)
            excess = sum(backlog.unsettled for backlog in backlogs.values()) - bound
            if excess <= 0:
                continue
            again = True
            waiting = {number: backlog.waiting for number, backlog in backlogs.items()}
            for number, count in shares(waiting, excess).items():
                owned = backlogs[number].owned
                if owned is not None:
                    owned.evict(count)
                elif not backlogs[number].is_elsewhere:
                    partition = Partition(queue_id, number)
                    async with self._temporary_owner.own(queue, group, partition) as own:
                        if own is not None:
                            own.evict(count)
        return again

    async def _backlogs(
        self,
        queue: Queue,
        group: Group,
        states: list[PartitionState],
        there: Container[int],
        *,
        is_served: bool,
    ) -> dict[int, _Backlog]:
        """Return partition → what the group has left there, according to its cursor. If a consumer
        here owns the partition, what it knows counts as well, because the cursor is written later.
        `there`: partitions that consumers at other gateways have, or are to have."""
        found = await self._storage.cursors(queue.queue_id, group.group_id)
        cursors = {cursor.place.partition: cursor for cursor in found}
        runtime = self._groups.runtimes.get(group.group_id)
        awaits = not is_served and await self._groups.awaits(group, get_running_loop().time())
        backlogs: dict[int, _Backlog] = {}
        for state in states:
            number, cursor = state.partition.number, cursors.get(state.partition)
            if cursor is None:
                continue
            unsettled, ahead = _left(state, cursor)
            owned = runtime.owned_partitions.get(number) if runtime is not None else None
            if owned is not None:
                delivery = owned.delivery
                # Each of the two may count settled messages: the cursor until it is written, the
                # consumer until it has passed those that the one before it had settled.
                dying = delivery.dead_count
                unsettled = min(max(0, unsettled + cursor.dead - dying), delivery.unsettled)
                ahead = 0 if delivery.draining else min(ahead, delivery.end - delivery.frontier)
            elif number in there:
                backlogs[number] = _Backlog(unsettled, ahead, None, is_elsewhere=True)
                continue
            elif is_served or awaits:
                ahead = 0  # between two consumers; the next look finds its owner
            if runtime is not None and runtime.is_undecided(number):
                ahead = 0  # the owner still has what it holds
            backlogs[number] = _Backlog(unsettled, min(ahead, unsettled), owned)
        return backlogs


def messages_max(queue: Queue, states: list[PartitionState]) -> int | None:
    """Return how many messages a group may leave unsettled. None: there is no bound, or the queue
    is within it. The bound in bytes is converted by the average size of a retained message."""
    settings = queue.settings
    messages = sum(state.messages for state in states)
    size = sum(state.bytes for state in states)
    bounds = [settings.messages_max] if settings.messages_max else []
    if settings.bytes_max and size > settings.bytes_max:
        bounds.append(max(1, settings.bytes_max * messages // size))
    bound = min(bounds, default=messages)
    return bound if bound < messages else None


def _left(state: PartitionState, cursor: CursorState) -> tuple[int, int]:
    """Return (messages neither settled nor on their way to the dead letters, those of them that no
    owner has passed)."""
    dead = cursor.dead - cursor.dead_passed
    ahead = max(0, state.certified - cursor.floor - cursor.settled_above - dead)
    return ahead + cursor.aside, ahead


def backlog_of(states: list[PartitionState], cursors: list[CursorState]) -> int:
    """Return how many messages a group has neither settled nor decided to move to the dead letters,
    according to its cursors."""
    known = {state.partition: state for state in states}
    return sum(
        _left(known[cursor.place.partition], cursor)[0]
        for cursor in cursors
        if cursor.place.partition in known
    )
