"""Operators and parked keys: lists of them, and decisions to retry, skip or release (R17, R18).

`ParkingDecisions` lists parked keys and takes an operator's decision. Its answer covers all
partitions. It says which keys are decided, and which were refused and why; or it says that this is
unknown. It comes when the decision is durable.

`DecisionRouter` carries out a decision in one partition. It uses the owner at this gateway, or the
owner at another gateway (R24). If the group has no consumers, it uses the temporary owner for a
moment. `push.letters` finds out what came of a decision.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.delivery.remote_owner import OwnerClient
from gateway.delivery.temporary_owner import TemporaryOwner
from gateway.encryption.sealer import NackReasons
from gateway.models import Decided, ParkedKey, ParkedKeys, RefusedKeys, WhichKey
from gateway.operator.waiting import ByteBudget, WaitingCount, count_waiting
from metadata.catalog import Group, Queue
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.letters import UNREADABLE, DecisionTracker, Unpark
from push.message import Message
from push.places import CursorPlace, ParkedLine, Partition, Verb
from push.ring import key_hash
from push.storage_port import Storage

AGAIN_S: Final = 0.05
"""Seconds between two looks for an owner, while a partition has none or moves, or somebody else
decides."""
SILENT_S: Final = 1.0
"""Seconds without an answer after which the owner may be gone, and is looked up again."""
DECIDE_TIMEOUT_S: Final = 20.0
"""Seconds for a decision to become durable in all partitions."""
PARTITIONS_AT_ONCE_MAX: Final = 64
"""Number of partitions in which a decision is under way at a time. So a silent owner of one does
not hold up the others."""
_MESSAGE: Final = msgspec.json.Decoder(Message)
_Found = tuple[Partition, ParkedLine]


class ParkingDecisions:
    """Lists of parked keys, and decisions about them."""

    def __init__(
        self,
        storage: Storage,
        groups: Groups,
        temporary_owner: TemporaryOwner,
        owner_client: OwnerClient | None,
        reasons: NackReasons,
    ) -> None:
        """`owner_client` reaches owners at other gateways; None if there is one gateway."""
        self._storage = storage
        self._reasons = reasons
        self._groups = groups
        self._router = DecisionRouter(storage, groups, temporary_owner, owner_client)

    async def list_keys(self, queue: Queue, group: Group, keys_max: int) -> ParkedKeys:
        """Return up to `keys_max` parked keys of a group, and the number of all."""
        found = await self._find(queue, group)
        keys = await self._describe(group, found[:keys_max])
        return ParkedKeys(keys=keys, keys_parked=len(found))

    async def _find(self, queue: Queue, group: Group) -> list[_Found]:
        found: list[_Found] = []
        for number in sorted(queue.members):
            partition = Partition(queue.queue_id, number)
            lines = await self._storage.parked(CursorPlace(group.group_id, partition))
            found += [(partition, line) for line in lines]
        return found

    async def _describe(self, group: Group, found: Sequence[_Found]) -> list[ParkedKey]:
        """Describe parked keys, with the number of messages that wait. The owner's count is taken;
        without an owner, the storage's. Messages in the log that were not tried yet count too."""
        by_partition: dict[Partition, list[ParkedLine]] = {}
        for partition, line in found:
            by_partition.setdefault(partition, []).append(line)
        shown: list[ParkedKey] = []
        look = ByteBudget(limits.COUNT_BYTES_MAX)
        for partition, lines in by_partition.items():
            place = CursorPlace(group.group_id, partition)
            owned = self._owned(group, partition)
            hashes = {line.key_hash for line in lines}
            counts = await count_waiting(self._storage, place, owned, hashes, look)
            shown += [await self._description(partition, x, counts[x.key_hash]) for x in lines]
        return shown

    async def _description(
        self, partition: Partition, line: ParkedLine, count: WaitingCount
    ) -> ParkedKey:
        """Describe one parked key. The storage only has its hash; the head's record has the key."""
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
            key_hash=_hex(line.key_hash),
            reason=line.reason,
            since_unix_ms=line.since_unix_ms,
            messages=count.messages,
            offset=line.head,
            attempts=line.attempts,
            nack=await self._reasons.open(partition, line.nack),
            expires_unix_ms=expires_unix_ms or None,
            is_exact=count.is_exact,
        )

    async def _decided_key(
        self, partition: Partition, key: ParkedKey, line: ParkedLine
    ) -> ParkedKey:
        """Return the key with the head that it had when it was decided."""
        if key.offset == line.head:
            return key
        shown = await self._description(partition, line, WaitingCount(key.messages, key.is_exact))
        return msgspec.structs.replace(shown, key=key.key)

    def _owned(self, group: Group, partition: Partition) -> OwnedPartition | None:
        runtime = self._groups.runtimes.get(group.group_id)
        owned = runtime.owned_partitions.get(partition.number) if runtime is not None else None
        return owned if owned is not None and not owned.ended else None

    async def decide(self, queue: Queue, group: Group, verb: Verb, which: WhichKey) -> Decided:
        """Retry, skip or release one parked key, or as many as one call may; see
        push.delivery.waiting.

        Raises:
            Refused: not_parked if the key is not parked; after any refusal nothing has changed.
            Unknown: some of the decision may be durable, or become durable.
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
        trackers, errors = await self._carry_out_all(queue, group, verb, now)
        _check_known(trackers, errors)
        decided = {
            (number, key): line
            for number, one in trackers.items()
            for key, line in one.decided.items()
        }
        if not decided and errors:
            raise next(iter(errors.values()))
        others = {number: one.others for number, one in trackers.items() if one.others}
        if not decided and others:
            what = "all of it" if which.every else str(which)
            raise Refused("not_parked", f"{what} was unparked by somebody else meanwhile")
        refused = [
            RefusedKeys(
                partition=number,
                keys=len(trackers[number].pending),
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
                await self._decided_key(partition, key, decided[partition.number, line.key_hash])
                for (partition, line), key in zip(now, keys, strict=True)
                if (partition.number, line.key_hash) in decided
            ],
            keys_parked=len(found) - len(now) + sum(len(one.pending) for one in trackers.values()),
            refused=refused,
        )

    async def _carry_out_all(
        self, queue: Queue, group: Group, verb: Verb, found: Sequence[_Found]
    ) -> tuple[dict[int, DecisionTracker], dict[int, TocsinError]]:
        """Return by partition the state of the decision, and the error if something is left."""
        lines: dict[int, list[ParkedLine]] = {}
        for partition, line in found:
            lines.setdefault(partition.number, []).append(line)
        trackers = {number: DecisionTracker(some) for number, some in lines.items()}
        errors: dict[int, TocsinError] = {}
        places = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

        async def carry_out(number: int, tracker: DecisionTracker) -> None:
            async with places:
                partition = Partition(queue.queue_id, number)
                error = await self._router.carry_out(queue, group, partition, verb, tracker)
                if error is not None:
                    errors[number] = error

        try:
            async with asyncio.timeout(DECIDE_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for number, tracker in trackers.items():
                    tasks.create_task(carry_out(number, tracker))
        except TimeoutError:
            why = Unknown(f"not durable after {DECIDE_TIMEOUT_S:g} s")
            for number, tracker in trackers.items():
                if tracker.pending:
                    errors[number] = why
        return trackers, errors


def _check_known(trackers: dict[int, DecisionTracker], errors: dict[int, TocsinError]) -> None:
    """Raise Unknown if the fate of some keys is unknown."""
    unknown = sum(len(one.unknown) for one in trackers.values())
    if not unknown and not any(isinstance(error, Unknown) for error in errors.values()):
        return
    done = sum(len(one.decided) for one in trackers.values())
    left = sum(len(one.pending) for one in trackers.values()) + unknown
    whys = sorted({error.detail or error.code.name for error in errors.values()})
    why = "; ".join(whys[:3]) or "their owner ended before it could say"
    raise Unknown(
        f"{done} keys are decided; for {left} this is unknown ({why}). List the parked keys, and "
        "decide again about those that are left"
    )


def _hex(key_hash: int) -> str:
    return f"{key_hash:016x}"


class DecisionRouter:
    """Carries out decisions about one partition. `owner_client` is None if there is no other
    gateway."""

    def __init__(
        self,
        storage: Storage,
        groups: Groups,
        temporary_owner: TemporaryOwner,
        owner_client: OwnerClient | None,
    ) -> None:
        self._storage = storage
        self._groups = groups
        self._temporary_owner = temporary_owner
        self._owner_client = owner_client

    async def carry_out(
        self, queue: Queue, group: Group, partition: Partition, verb: Verb, tracker: DecisionTracker
    ) -> TocsinError | None:
        """Pursue a decision until nothing of it is left, through changes of the owner. Returns the
        error if the decision was given up."""
        decision = _Decision(CursorPlace(group.group_id, partition), verb, tracker)
        try:
            while True:
                await self._try(queue, group, decision)
                # In this order, because then the writes of an earlier owner are seen.
                epoch = await self._epoch(decision.place)
                tracker.compare(await self._storage.parked(decision.place), epoch=epoch)
                if not tracker.pending:
                    return None
                await asyncio.sleep(AGAIN_S)
        except TocsinError as error:
            tracker.give_up()
            return error

    async def _try(self, queue: Queue, group: Group, decision: "_Decision") -> None:
        partition = decision.place.partition
        runtime = self._groups.runtimes.get(group.group_id)
        owned = runtime.owned_partitions.get(partition.number) if runtime is not None else None
        if owned is not None:
            await _decide_in(owned, decision)
            return
        row = await self._groups.row(group, fresh=True)
        if self._owner_client is not None and partition.number in self._groups.elsewhere(row):
            await self._ask(self._owner_client, decision)
            return
        async with self._temporary_owner.own(queue, group, partition) as own:
            if own is not None:
                await _decide_in(own, decision)

    async def _epoch(self, place: CursorPlace) -> int:
        cursors = await self._storage.cursors(place.partition.queue_id, place.group_id)
        for cursor in cursors:
            if cursor.place == place:
                return cursor.epoch
        raise Refused("group_not_found")

    async def _ask(self, owner_client: OwnerClient, decision: "_Decision") -> None:
        place, tracker = decision.place, decision.tracker
        letter_id, keys, letter = decision.letter(owner_client, await self._epoch(place))
        try:
            said = await owner_client.put(place, letter, letter_id, SILENT_S)
        except Unknown:
            tracker.on_asked(keys, letter.epoch)  # again under this id, as long as the epoch lasts
            return
        except Refused:
            if decision.is_sent:
                return
            raise
        finally:
            decision.is_sent = True
        if said.verdicts == UNREADABLE:  # of another version than this one
            raise Refused(
                "invalid_request",
                f"partition {place.partition.number} is at another gateway, which does not know "
                "this request: decide there",
            )
        if said.verdicts is not None:
            tracker.on_answer(keys, said.verdicts)
            decision.forget()
        elif said.may_have_been_read:
            tracker.on_asked(keys, letter.epoch)


class _Decision:
    """A decision under way in one partition, and the letter about it that has not been answered."""

    def __init__(self, place: CursorPlace, verb: Verb, tracker: DecisionTracker) -> None:
        self.place = place
        self.verb: Verb = verb
        self.tracker = tracker
        self.is_sent = False
        """Whether the letter may be in the inbox."""
        self._letter: tuple[str, list[int], Unpark] | None = None

    def letter(self, owner_client: OwnerClient, epoch: int) -> tuple[str, list[int], Unpark]:
        """Return (id, keys, letter) for the owner of this epoch: the same one until it is
        answered."""
        if self._letter is None or self._letter[2].epoch != epoch:
            self.forget()
            lines = list(self.tracker.pending.values())
            keys = [(f"{line.key_hash:016x}", line.since_unix_ms, line.head) for line in lines]
            letter = Unpark(verb=self.verb, epoch=epoch, keys=keys)
            self._letter = owner_client.new_id(), [line.key_hash for line in lines], letter
        return self._letter

    def forget(self) -> None:
        """Forget the letter: it was answered, or its epoch has ended."""
        self._letter = None
        self.is_sent = False


async def _decide_in(owned: OwnedPartition, decision: _Decision) -> None:
    """Hand a decision to an owned partition. Returns when all that the partition accepts is
    durable, or when the ownership has ended."""
    tracker = decision.tracker
    asked = {
        key: decided
        for key, line in list(tracker.pending.items())
        if (decided := owned.unpark(decision.verb, line)) is not None
    }
    for key in asked:
        tracker.on_taken_up(key)
    for key, decided in asked.items():
        if await decided:
            tracker.on_durable(key)
