"""Operators and parked keys: what is parked, and what becomes of it (R17, R18).

A decision goes to the slot that owns the key's partition; where the group has no consumers, to one
that the caretaker owns for a moment. It is answered when it is durable. Where another gateway's
consumer has the partition, that gateway is to be asked.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.caretaker import Caretaker
from gateway.groups import Groups
from gateway.heads import Budget
from gateway.in_log import Count, count_waiting
from gateway.ports import Decided, ParkedKey, ParkedKeys, WhichKey
from gateway.slot import Slot
from metadata.catalog import Group, Queue
from push import limits
from push.errors import Refused, Unknown
from push.message import Message
from push.ports import GroupPartition, ParkedLine, Partition, Storage
from push.ring import key_hash
from push.unparking import Verb

DECIDE_TIMEOUT_S: Final = 20.0
"""For a decision to become durable; a skip waits for the dead-letter queue."""
AGAIN_S: Final = 0.05
"""Between two looks for an owner, while a partition has none or moves."""
_MESSAGE: Final = msgspec.json.Decoder(Message)
_Found = tuple[Partition, ParkedLine]


class Parking:
    """See the module."""

    def __init__(self, storage: Storage, groups: Groups, caretaker: Caretaker) -> None:
        self._storage = storage
        self._groups = groups
        self._caretaker = caretaker

    async def parked(self, queue: Queue, group: Group, keys_max: int) -> ParkedKeys:
        """Up to `keys_max` parked keys of a group, and how many there are."""
        found = await self._find(queue, group)
        keys = await self._describe(group, found[:keys_max])
        return ParkedKeys(keys=keys, keys_parked=len(found))

    async def _find(self, queue: Queue, group: Group) -> list[_Found]:
        found: list[_Found] = []
        for number in sorted(queue.members):
            partition = Partition(queue.queue_id, number)
            lines = await self._storage.parked(GroupPartition(group.group_id, partition))
            found += [(partition, line) for line in lines]
        return found

    async def _describe(self, group: Group, found: Sequence[_Found]) -> list[ParkedKey]:
        """As many wait as its owner knows of, or as the storage does where there is none; and the
        log has what nobody came across yet."""
        by_partition: dict[Partition, list[ParkedLine]] = {}
        for partition, line in found:
            by_partition.setdefault(partition, []).append(line)
        shown: list[ParkedKey] = []
        look = Budget(limits.COUNT_BYTES_MAX)
        for partition, lines in by_partition.items():
            place = GroupPartition(group.group_id, partition)
            slot = self._slot(group, partition)
            hashes = {line.key_hash for line in lines}
            counts = await count_waiting(self._storage, place, slot, hashes, look)
            shown += [await self._shown(partition, x, counts[x.key_hash]) for x in lines]
        return shown

    async def _shown(self, partition: Partition, line: ParkedLine, count: Count) -> ParkedKey:
        """The storage knows keys by their hash: the head's record has the key itself."""
        key, expires_unix_ms = None, 0
        if line.head is not None:
            read = await self._storage.read(partition, line.head, 1, until=line.head)
            record = read.records[0] if read.records else None
            if record is not None and record.first <= line.head <= record.last:
                key = _MESSAGE.decode(record.slice(line.head, line.head)).key
                expires_unix_ms = record.expires_unix_ms(line.head)
        return ParkedKey(
            partition=partition.number,
            key=key,
            key_hash=_name(line.key_hash),
            reason=line.reason,
            since_unix_ms=line.since_unix_ms,
            messages=count.messages,
            offset=line.head,
            attempts=line.attempts,
            expires_unix_ms=expires_unix_ms or None,
            is_exact=count.is_exact,
        )

    def _slot(self, group: Group, partition: Partition) -> Slot | None:
        runtime = self._groups.runtimes.get(group.group_id)
        slot = runtime.slots.get(partition.number) if runtime is not None else None
        return slot if slot is not None and not slot.ended else None

    async def decide(self, queue: Queue, group: Group, verb: Verb, which: WhichKey) -> Decided:
        """Retry, skip or release one parked key, or as many as one call may; see push.unparking.

        Raises:
            Refused: not_parked: the key is not; invalid_request: another gateway serves all that
                was asked for, and is named. Nothing happened.
            Unknown: it is not durable yet, and may become so.
        """
        found = await self._find(queue, group)
        if not which.every:
            wanted = which.key_hash
            if which.key is not None:
                wanted = key_hash(which.key, queue.hash_key)
            found = [(place, line) for place, line in found if line.key_hash == wanted]
            if not found:
                raise Refused("not_parked", f"{which} is not parked in the group {group.name}")
        there = self._groups.elsewhere(await self._groups.row(group, fresh=True))
        count, found = len(found), [one for one in found if one[0].number not in there]
        if count and not found:
            gateways = " and ".join(sorted(set(there.values())))
            raise Refused(
                "invalid_request",
                f"the group {group.name} is served by another gateway, {gateways}: decide there",
            )
        now = found[: limits.PARKED_PER_CALL_MAX]
        keys = await self._describe(group, now)
        by_partition: dict[Partition, list[ParkedLine]] = {}
        for partition, line in now:
            by_partition.setdefault(partition, []).append(line)
        done: set[tuple[int, str]] = set()
        try:
            async with asyncio.timeout(DECIDE_TIMEOUT_S):
                for partition, lines in by_partition.items():
                    decided = await self._decide(queue, group, partition, lines, verb)
                    done |= {(partition.number, _name(key)) for key in decided}
        except TimeoutError:
            raise Unknown(
                f"the decision is not durable after {DECIDE_TIMEOUT_S:g} s; list what is parked, "
                "and decide again about what still is"
            ) from None
        if not done and not which.every:
            raise Refused("not_parked", f"{which} was unparked by somebody else meanwhile")
        keys = [key for key in keys if (key.partition, key.key_hash) in done]
        return Decided(decision=verb, keys=keys, keys_parked=count - len(now))

    async def _decide(
        self, queue: Queue, group: Group, partition: Partition, lines: list[ParkedLine], verb: Verb
    ) -> set[int]:
        """Until none of these is parked as it was, through whoever owns the partition. Returns
        those that this decision was about, and not another operator's."""
        place = GroupPartition(group.group_id, partition)
        wanted = {line.key_hash for line in lines}
        accepted: set[int] = set()
        while lines:
            runtime = self._groups.runtimes.get(group.group_id)
            slot = runtime.slots.get(partition.number) if runtime is not None else None
            if slot is not None:
                wanted -= await self._through(slot, lines, verb, accepted)
            else:
                async with self._caretaker.own(queue, group, partition) as own:
                    if own is not None:
                        wanted -= await self._through(own, lines, verb, accepted)
            if not wanted:
                break
            # Its owner went, or somebody else decides about it.
            await asyncio.sleep(AGAIN_S)
            left = await self._storage.parked(place)
            lines = [line for line in left if line.key_hash in wanted]
        return accepted

    async def _through(
        self, slot: Slot, lines: list[ParkedLine], verb: Verb, accepted: set[int]
    ) -> set[int]:
        """The keys of these that are durably decided when this returns. Adds to `accepted` those
        that may become so even if the slot ends before."""
        asked = {
            line.key_hash: decided
            for line in lines
            if (decided := slot.unpark(line.key_hash, verb, line.head)) is not None
        }
        accepted.update(asked)
        return {key for key, decided in asked.items() if await decided}


def _name(key_hash: int) -> str:
    return f"{key_hash:016x}"
