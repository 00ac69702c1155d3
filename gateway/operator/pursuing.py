"""Carrying out a decision about parked keys of one partition: through the slot that owns it here,
through its owner at another gateway (R24), or where the group has no consumers, through one that
the caretaker owns for a moment. `push.pursuing` says what came of it.
"""

import asyncio
from typing import Final

from gateway.delivery.asking import Asking
from gateway.delivery.caretaker import Caretaker
from gateway.delivery.groups import Groups
from gateway.delivery.slot import Slot
from metadata.catalog import Group, Queue
from push.errors import Refused, TocsinError, Unknown
from push.letters import UNREADABLE, Unpark
from push.places import GroupPartition, Partition, Verb
from push.ports import Storage
from push.pursuing import Pursuit

AGAIN_S: Final = 0.05
"""Between two looks for an owner, while a partition has none or moves, or somebody else decides."""
SILENT_S: Final = 1.0
"""An owner that has not answered for so long may be gone: whether it is, is looked up."""


class Pursuing:
    """See the module. `asking` None: there is no other gateway."""

    def __init__(
        self, storage: Storage, groups: Groups, caretaker: Caretaker, asking: Asking | None
    ) -> None:
        self._storage = storage
        self._groups = groups
        self._caretaker = caretaker
        self._asking = asking

    async def carry_out(
        self, queue: Queue, group: Group, partition: Partition, verb: Verb, pursuit: Pursuit
    ) -> TocsinError | None:
        """Until nothing of it is left, whoever owns the partition. An error: why some is; it was
        given up."""
        chase = _Chase(GroupPartition(group.group_id, partition), verb, pursuit)
        try:
            while True:
                await self._once(queue, group, chase)
                # In this order: what the owner of an epoch before has written is seen.
                epoch = await self._epoch(chase.place)
                pursuit.look(await self._storage.parked(chase.place), epoch=epoch)
                if not pursuit.left:
                    return None
                await asyncio.sleep(AGAIN_S)
        except TocsinError as error:
            pursuit.give_up()
            return error

    async def _once(self, queue: Queue, group: Group, chase: "_Chase") -> None:
        partition = chase.place.partition
        runtime = self._groups.runtimes.get(group.group_id)
        slot = runtime.slots.get(partition.number) if runtime is not None else None
        if slot is not None:
            await _through(slot, chase)
            return
        row = await self._groups.row(group, fresh=True)
        if self._asking is not None and partition.number in self._groups.elsewhere(row):
            await self._ask(self._asking, chase)
            return
        async with self._caretaker.own(queue, group, partition) as own:
            if own is not None:
                await _through(own, chase)

    async def _epoch(self, place: GroupPartition) -> int:
        cursors = await self._storage.cursors(place.partition.queue_id, place.group_id)
        for cursor in cursors:
            if cursor.place == place:
                return cursor.epoch
        raise Refused("group_not_found")

    async def _ask(self, asking: Asking, chase: "_Chase") -> None:
        place, pursuit = chase.place, chase.pursuit
        letter_id, keys, letter = chase.letter(asking, await self._epoch(place))
        try:
            said = await asking.put(place, letter, letter_id, SILENT_S)
        except Unknown:
            pursuit.asked(keys, letter.epoch)  # again under this id, as long as the epoch lasts
            return
        except Refused:
            if chase.was_asked:
                return
            raise
        finally:
            chase.was_asked = True
        if said.verdicts == UNREADABLE:  # of another version than this one
            raise Refused(
                "invalid_request",
                f"partition {place.partition.number} is at another gateway, which does not know "
                "this request: decide there",
            )
        if said.verdicts is not None:
            pursuit.answered(keys, said.verdicts)
            chase.forget()
        elif said.may_have_been_read:
            pursuit.asked(keys, letter.epoch)


class _Chase:
    """One decision under way, and the letter about it that has not been answered."""

    def __init__(self, place: GroupPartition, verb: Verb, pursuit: Pursuit) -> None:
        self.place = place
        self.verb: Verb = verb
        self.pursuit = pursuit
        self.was_asked = False
        """The letter may lie in the inbox."""
        self._letter: tuple[str, list[int], Unpark] | None = None

    def letter(self, asking: Asking, epoch: int) -> tuple[str, list[int], Unpark]:
        """(id, keys, letter) for the owner of this epoch: the same one until it is answered."""
        if self._letter is None or self._letter[2].epoch != epoch:
            self.forget()
            lines = list(self.pursuit.left.values())
            keys = [(f"{line.key_hash:016x}", line.since_unix_ms, line.head) for line in lines]
            letter = Unpark(verb=self.verb, epoch=epoch, keys=keys)
            self._letter = asking.new_id(), [line.key_hash for line in lines], letter
        return self._letter

    def forget(self) -> None:
        """It was answered, or its epoch has ended."""
        self._letter = None
        self.was_asked = False


async def _through(slot: Slot, chase: _Chase) -> None:
    """What the slot takes up of it; returns when that is durable, or the slot has ended."""
    pursuit = chase.pursuit
    asked = {
        key: decided
        for key, line in list(pursuit.left.items())
        if (decided := slot.unpark(chase.verb, line)) is not None
    }
    for key in asked:
        pursuit.took_up(key)
    for key, decided in asked.items():
        if await decided:
            pursuit.is_durable(key)
