"""One group on this gateway: its consumers, who owns which partition, and how partitions move.

    join / leave ──▶ membership row (compare-and-set, R14) ──▶ assignment (pure)
                                                                  │
    a partition that moves:  drain the old slot ─▶ written ─▶ own (epoch + 1) ─▶ new slot

Partitions that do not move never pause.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from gateway.absent import Absent
from gateway.facts_values import OwnerDescription
from gateway.slot import Slot
from gateway.slot_context import Context, Owner
from metadata.catalog import Group, Membership, Queue
from metadata.client import Metadata
from push import limits
from push.assignment import assign_around
from push.delivery import Delivery
from push.errors import Refused, TocsinError
from push.giving import DeliverySettings
from push.ports import GroupPartition, Partition

RETRY_AFTER_S = 0.5


class Member(Owner, Protocol):
    """A consumer: of a session, or the virtual one of the pulls."""

    name: str
    pulls: bool
    slots: dict[int, Slot]

    stays: bool
    """It has still to say what it holds of its partitions: none moves away before."""

    @property
    def linger_s(self) -> float:
        """How long its place waits for it when the gateway is gone; 0: not at all."""

    @property
    def owner(self) -> bytes:
        """OWNER_BYTES that name it in the storage (R22)."""

    def described(self) -> OwnerDescription:
        """For looking at."""

    def deleted(self, why: Refused) -> None:
        """Its group is gone."""


def delivery_settings(queue: Queue, group: Group, *, pulls: bool) -> DeliverySettings:
    """The group's settings, and where it has none, its queue's."""
    own, base = group.settings, queue.settings

    def pick(name: str) -> float:
        value = getattr(own, name)
        return float(getattr(base, name) if value is None else value)

    return DeliverySettings(
        lease_s=pick("lease_s"),
        lease_total_s=pick("lease_total_s"),
        attempts_max=int(pick("attempts_max")),
        backoff_s=pick("backoff_s"),
        backoff_max_s=pick("backoff_max_s"),
        park=(own.on_exhausted or base.on_exhausted) == "park",
        pulls=pulls,
    )


class GroupRuntime:
    """See the module. Lives while it has members or slots."""

    def __init__(
        self, context: Context, metadata: Metadata, queue: Queue, group: Group, started: float
    ) -> None:
        """`started`: when the gateway began to wait for who was there before it."""
        self._context = context
        self.tail = context.tail
        self._metadata = metadata
        self.queue = queue
        self.group = group
        self.members: dict[str, Member] = {}
        self.slots: dict[int, Slot] = {}
        self.assignment: dict[int, str] = {}
        self.generation = 0
        self.epochs: dict[int, int] = {}
        """The newest epoch seen per partition: what is at most that and not current is stale."""
        self.ended: dict[int, int] = {}
        """The newest epoch per partition that was owned here and has ended."""
        self.closed = False
        self.left_at = asyncio.get_running_loop().time()
        """When it had its last member, where it has none (R11)."""
        self._absent = Absent(started)
        self._owning: dict[int, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Members -------------------------------------------------------------------------------

    async def join(self, member: Member) -> None:
        """Take part in the assignment. Returns when the membership says so."""
        self.members[member.name] = member
        try:
            await self._reassign()
            if self.closed:
                await self._metadata.membership(self.group.group_id)  # deleted: says so
                raise Refused("draining")
        except BaseException:
            self._remove(member)  # else partitions wait for nobody
            raise

    def _remove(self, member: Member) -> bool:
        """False: it was none."""
        if self.members.pop(member.name, None) is None:
            return False
        self.left_at = asyncio.get_running_loop().time()
        return True

    def leave(self, member: Member, *, moves: bool = False) -> None:
        """The member is gone: its slots end, its deliveries return, others take over. One that
        `moves` to the next gateway keeps its place: this one goes down."""
        if not self._remove(member):
            return
        for slot in list(member.slots.values()):
            slot.abandon(moves=moves)
        if moves:
            self._absent.moved(member.name, member.linger_s)
        else:
            self._reassign_soon()

    def _reassign_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reassign_after(), name="reassign")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reassign_after(self) -> None:
        while not self.closed:
            try:
                await self._reassign()
                return
            except TocsinError:
                await asyncio.sleep(RETRY_AFTER_S)

    async def retire(self, member: Member, drain_s: float = limits.DRAIN_S) -> None:
        """The member leaves in an orderly way: its slots drain first."""
        if self._remove(member):
            deadline = asyncio.get_running_loop().time() + drain_s
            for slot in list(member.slots.values()):
                slot.drain(deadline)
            await self._reassign()

    async def _reassign(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self.closed:
                return
            while True:
                row = await self._metadata.membership(self.group.group_id)
                lingers = self._absent.look(row.lingers, self.members, loop.time())
                lingers |= {m.name: m.linger_s for m in self.members.values() if m.linger_s}
                members = tuple(sorted({*self.members, *self._absent.names}))
                staying = {name for name in members if self._stays(name)}
                # Who is absent keeps what it had, and is given nothing that somebody could take.
                present = sorted(self.members)
                assignment = assign_around(self.queue.members, present, row.assignment, staying)
                new = Membership(
                    group_id=self.group.group_id,
                    generation=row.generation + 1,
                    members=members,
                    assignment=assignment,
                    lingers=lingers,
                )
                if msgspec.structs.replace(new, generation=row.generation) == row:
                    new = row  # somebody who waited for the lock, too, was here before
                    break
                if await self._metadata.change_membership(new, expected_generation=row.generation):
                    break
            self.generation, self.assignment = new.generation, assignment
        self._absent.call_at(self._absent_for_good)
        self._carry_out()

    @property
    def absent(self) -> dict[str, float]:
        """Members that are not here and are waited for, and until when, by the loop's clock."""
        return self._absent.until

    def _stays(self, name: str) -> bool:
        member = self.members.get(name)
        return member is None or member.stays  # who is absent cannot say anything

    def is_undecided(self, number: int) -> bool:
        """Whether somebody has still to say what of a partition is held (R22)."""
        return number in self.assignment and self._stays(self.assignment[number])

    def rebalance(self) -> None:
        """A member does not stay any more: its partitions may move."""
        self._reassign_soon()

    def _absent_for_good(self) -> None:
        """Nobody came: others take over."""
        if not self.closed:
            self._reassign_soon()

    def _carry_out(self) -> None:
        """Drain what moves away, start what nobody here holds."""
        deadline = asyncio.get_running_loop().time() + limits.DRAIN_S
        for number, name in self.assignment.items():
            slot = self.slots.get(number)
            if slot is None:
                self._start(number)
            elif slot.owner is not self.members.get(name):
                slot.drain(deadline)

    # --- Slots ---------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        # Named by an assignment of before a leave: the next one comes, and starts it then.
        is_owned = self.assignment.get(number) in self.members
        if is_owned and number not in self._owning and not self.closed:
            task = asyncio.get_running_loop().create_task(self._own(number), name=f"own {number}")
            self._owning[number] = task
            task.add_done_callback(lambda task: self._owned(number, task))

    def _owned(self, number: int, task: asyncio.Task[None]) -> None:
        del self._owning[number]
        if task.cancelled():
            return
        task.result()
        if number not in self.slots:
            self._start(number)  # its owner left while it was being owned

    async def _own(self, number: int) -> None:
        partition = Partition(self.queue.queue_id, number)
        place = GroupPartition(self.group.group_id, partition)
        member = self.members.get(self.assignment.get(number, ""))
        if member is None:
            return
        token = member.owner + os.urandom(16)
        try:
            owned = await self._context.storage.own(
                place, token=token, assignment=self.generation,
                epoch_seen=self.epochs.get(number, 0),
            )  # fmt: skip
        except TocsinError as error:
            await asyncio.sleep(RETRY_AFTER_S)
            if error.code.name == "group_not_found":
                await self._make_cursors()
            return
        self.epochs[number] = owned.epoch
        if member is not self.members.get(self.assignment.get(number, "")) or self.closed:
            return  # it was owned in the name of somebody who has left, or gave it up
        delivery = Delivery(
            place, owned, token,
            delivery_settings(self.queue, self.group, pulls=member.pulls),
            now=asyncio.get_running_loop().time(),
            tally=self._context.counting.group(self.group.group_id),
        )  # fmt: skip
        slot = Slot(
            self._context, self.queue, self.group, partition,
            delivery=delivery, owner=member, gone=self._slot_gone,
        )  # fmt: skip
        self.slots[number] = member.slots[number] = slot
        # Records may have been certified while the epoch was on its way.
        delivery.certify(self._context.tail.ends.get(partition, 0))
        member.pump()

    def is_coming(self, number: int, member: Member) -> bool:
        """Whether a partition that nobody here has yet will be this member's."""
        is_its_own = self.assignment.get(number) == member.name
        return is_its_own and number not in self.slots and not self.closed

    async def slot_of(self, number: int, member: Member) -> Slot | None:
        """The member's slot of a partition, as soon as it is there; None: it will not be."""
        while self.is_coming(number, member) and number in self._owning:
            await asyncio.wait((self._owning[number],))
        return member.slots.get(number)

    async def _make_cursors(self) -> None:
        """The catalog has the group and the storage has not, half a second later: whoever made it
        was cut off between the two. What is there already stays; of a group that is deleted the
        catalog tells, and closes this."""
        if self.closed:
            return
        starts = [self.group.settings.start] * len(self.queue.members)
        with suppress(TocsinError):  # the queue too is not there yet: owning is tried again
            await self._context.storage.create_group(
                self.group.group_id, self.queue.queue_id, starts
            )

    def _slot_gone(self, slot: Slot) -> None:
        number = slot.partition.number
        self.ended[number] = max(slot.delivery.epoch, self.ended.get(number, 0))
        if self.slots.get(number) is slot:
            del self.slots[number]
        member = slot.owner
        slots = getattr(member, "slots", {})
        if slots.get(number) is slot:
            del slots[number]
        self._start(number)

    def queue_changed(self, queue: Queue) -> None:
        """The queue is now this; it may have been paused, or go on."""
        self.queue = queue
        for member in self.members.values():
            member.pump()

    # --- Ending --------------------------------------------------------------------------------

    def fence(self) -> None:
        """The group was sought: what is in flight no longer counts. Members stay and own anew."""
        for slot in list(self.slots.values()):
            slot.fenced()

    def delete(self, why: Refused) -> None:
        """The group is gone: what is in flight no longer counts, and its members hear of it."""
        self.closed = True
        self.fence()
        members, self.members = list(self.members.values()), {}
        for member in members:
            member.deleted(why)

    async def close(self) -> None:
        """No member owns anything any more; slots end after their last write. Who lingers keeps
        what it holds, and comes back to the next gateway."""
        self.closed = True
        self._absent.close()
        for member in list(self.members.values()):
            for slot in list(member.slots.values()):
                slot.abandon(moves=member.linger_s > 0)
        self.members.clear()
        waits: Sequence[asyncio.Task[None]] = [*self._owning.values(), *self._tasks]
        if waits:
            await asyncio.wait(waits)
