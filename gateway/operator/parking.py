"""Operators and parked keys: what is parked, and what becomes of it (R17, R18).

A decision goes to whoever owns the key's partition, on whichever gateway
(gateway.operator.pursuing), and is answered when it is durable. One answer for all partitions: what
is decided, and what was refused and why; or that it is not known.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.delivery.asking import Asking
from gateway.delivery.caretaker import Caretaker
from gateway.delivery.groups import Groups
from gateway.delivery.slot import Slot
from gateway.encryption.nack_reasons import NackReasons
from gateway.operator.heads import Budget
from gateway.operator.in_log import Count, count_waiting
from gateway.operator.pursuing import Pursuing
from gateway.upkeep_values import Decided, ParkedKey, ParkedKeys, RefusedKeys, WhichKey
from metadata.catalog import Group, Queue
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.message import Message
from push.places import GroupPartition, ParkedLine, Partition, Verb
from push.ports import Storage
from push.pursuing import Pursuit
from push.ring import key_hash

DECIDE_TIMEOUT_S: Final = 20.0
"""For a decision to become durable."""
AT_ONCE: Final = 64
"""Partitions in which a decision is under way at a time: one whose owner is silent holds up no
other."""
_MESSAGE: Final = msgspec.json.Decoder(Message)
_Found = tuple[Partition, ParkedLine]


class Parking:
    """See the module."""

    def __init__(
        self, storage: Storage, groups: Groups, caretaker: Caretaker, asking: Asking | None,
        reasons: NackReasons,
    ) -> None:  # fmt: skip
        """`asking`: owners at other gateways; None: there are none."""
        self._storage = storage
        self._reasons = reasons
        self._groups = groups
        self._pursuing = Pursuing(storage, groups, caretaker, asking)

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
            nack=await self._reasons.open(partition, line.nack),
            expires_unix_ms=expires_unix_ms or None,
            is_exact=count.is_exact,
        )

    async def _as_decided(
        self, partition: Partition, key: ParkedKey, line: ParkedLine
    ) -> ParkedKey:
        """The key as it was shown, with the head that it had when it was decided."""
        if key.offset == line.head:
            return key
        shown = await self._shown(partition, line, Count(key.messages, key.is_exact))
        return msgspec.structs.replace(shown, key=key.key)

    def _slot(self, group: Group, partition: Partition) -> Slot | None:
        runtime = self._groups.runtimes.get(group.group_id)
        slot = runtime.slots.get(partition.number) if runtime is not None else None
        return slot if slot is not None and not slot.ended else None

    async def decide(self, queue: Queue, group: Group, verb: Verb, which: WhichKey) -> Decided:
        """Retry, skip or release one parked key, or as many as one call may; see
        push.delivery.waiting.

        Raises:
            Refused: nothing happened; not_parked: the key is not.
            Unknown: some of it may be durable, or become so.
        """
        found = await self._find(queue, group)
        if not which.every:
            wanted = which.key_hash
            if which.key is not None:
                wanted = key_hash(which.key, queue.hash_key)
            found = [(place, line) for place, line in found if line.key_hash == wanted]
            if not found:
                raise Refused("not_parked", f"{which} is not parked in the group {group.name}")
        now = found[: limits.PARKED_PER_CALL_MAX]
        keys = await self._describe(group, now)
        pursuits, errors = await self._pursue(queue, group, verb, now)
        _check_known(pursuits, errors)
        decided = {
            (number, key): line
            for number, one in pursuits.items()
            for key, line in one.decided.items()
        }
        if not decided and errors:
            raise next(iter(errors.values()))
        others = {number: one.others for number, one in pursuits.items() if one.others}
        if not decided and others:
            what = "all of it" if which.every else str(which)
            raise Refused("not_parked", f"{what} was unparked by somebody else meanwhile")
        refused = [
            RefusedKeys(
                partition=number,
                keys=len(pursuits[number].left),
                code=error.code.name,
                detail=error.detail,
            )
            for number, error in errors.items()
        ]
        refused += [
            RefusedKeys(
                partition=number,
                keys=count,
                code="not_parked",
                detail="somebody else has decided about these meanwhile",
            )
            for number, count in others.items()
        ]
        return Decided(
            decision=verb,
            keys=[
                await self._as_decided(partition, key, decided[partition.number, line.key_hash])
                for (partition, line), key in zip(now, keys, strict=True)
                if (partition.number, line.key_hash) in decided
            ],
            keys_parked=len(found) - len(now) + sum(len(one.left) for one in pursuits.values()),
            refused=refused,
        )

    async def _pursue(
        self, queue: Queue, group: Group, verb: Verb, found: Sequence[_Found]
    ) -> tuple[dict[int, Pursuit], dict[int, TocsinError]]:
        """By partition: what came of it, and why something is left where something is."""
        lines: dict[int, list[ParkedLine]] = {}
        for partition, line in found:
            lines.setdefault(partition.number, []).append(line)
        pursuits = {number: Pursuit(some) for number, some in lines.items()}
        errors: dict[int, TocsinError] = {}
        places = asyncio.Semaphore(AT_ONCE)

        async def pursue(number: int, pursuit: Pursuit) -> None:
            async with places:
                partition = Partition(queue.queue_id, number)
                error = await self._pursuing.carry_out(queue, group, partition, verb, pursuit)
                if error is not None:
                    errors[number] = error

        try:
            async with asyncio.timeout(DECIDE_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for number, pursuit in pursuits.items():
                    tasks.create_task(pursue(number, pursuit))
        except TimeoutError:
            why = Unknown(f"not durable after {DECIDE_TIMEOUT_S:g} s")
            for number, pursuit in pursuits.items():
                if pursuit.left:
                    errors[number] = why
        return pursuits, errors


def _check_known(pursuits: dict[int, Pursuit], errors: dict[int, TocsinError]) -> None:
    """Raises Unknown where it is not known of some keys what became of them."""
    unknown = sum(len(one.unknown) for one in pursuits.values())
    if not unknown and not any(isinstance(error, Unknown) for error in errors.values()):
        return
    done = sum(len(one.decided) for one in pursuits.values())
    left = sum(len(one.left) for one in pursuits.values()) + unknown
    whys = sorted({error.detail or error.code.name for error in errors.values()})
    why = "; ".join(whys[:3]) or "their owner ended before it could say"
    raise Unknown(
        f"{done} keys are decided, of {left} that is not known ({why}): list what is parked, and "
        "decide again about what still is"
    )


def _name(key_hash: int) -> str:
    return f"{key_hash:016x}"
