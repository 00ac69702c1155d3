"""A group on this gateway: its consumers, the owners of its partitions, and the moves of
partitions.

    join / leave ──▶ membership row (compare-and-set, R14) ──▶ assignment (pure)
                                                                  │
    a partition that moves:  the old owner drains ─▶ written ─▶ own (epoch + 1) ─▶ new owner

Partitions that do not move never pause. If several gateways serve the group, each writes its part
of the row and carries out what the row says about it (`gateway.delivery.membership`). A partition
begins here when no other gateway drains it any more.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from gateway.catalog.reconcile import starts_of
from gateway.delivery.membership import RETRY_AFTER_S, MembershipRow
from gateway.delivery.owned_partition import DeliveryContext, OwnedPartition, PartitionOwner
from gateway.delivery.presence import Presence
from gateway.models import OwnerDescription
from metadata.catalog import Group, Membership, Queue
from metadata.port import Metadata
from push import limits
from push.errors import Fenced, Refused, TocsinError
from push.places import CursorPlace, Partition
from push.storage_port import is_same_owner

NEW_S: Final = 0.1
"""Seconds after which a new member that joins others is given partitions. Many that join together
are one change, and a member that has left by then moves nothing."""


class Member(PartitionOwner, Protocol):
    """A consumer of the group, which is that of a session or the virtual one of the pulls."""

    name: str
    owned_partitions: dict[int, OwnedPartition]

    left: bool
    """Whether it has left the group."""
    stays: bool
    """Whether its client has still to say which deliveries it holds. None of its partitions moves
    to another member before."""

    @property
    def is_unresponsive(self) -> bool:
        """Whether its handlers do not respond. Its partitions then go to other members, if any
        work."""

    @property
    def linger_s(self) -> float:
        """Seconds for which its place in the group waits for it when its gateway is gone; 0: not at
        all."""

    @property
    def owner(self) -> bytes:
        """The OWNER_BYTES that name it in the storage (R22)."""

    def described(self) -> OwnerDescription:
        """Describe it to operators."""

    def deleted(self, why: Refused) -> None:
        """Inform it that its group is deleted."""

    def moved_away(self) -> None:
        """Leave this gateway, because it goes on at another one."""


class GroupRuntime:
    """A group on this gateway. Once made, it stays until the group is deleted or the gateway ends,
    also without members and owned partitions."""

    def __init__(
        self,
        context: DeliveryContext,
        metadata: Metadata,
        presence: Presence,
        queue: Queue,
        group: Group,
    ) -> None:
        self._context = context
        self.tail, self.log = context.tail, context.log
        self._metadata = metadata
        self._presence = presence
        self.queue = queue
        self.group = group
        self.members: dict[str, Member] = {}
        self._new: dict[str, asyncio.TimerHandle] = {}
        """Name of each new member that the assignment does not count yet → timer after which it
        does."""
        self.owned_partitions: dict[int, OwnedPartition] = {}
        self.epochs: dict[int, int] = {}
        """Partition → newest epoch that the storage gave to this gateway. Any epoch up to it that
        is not current is stale."""
        self.ended: dict[int, int] = {}
        """Partition → newest epoch that was owned here and has ended."""
        self.closed = False
        self.left_at = asyncio.get_running_loop().time()
        """Time from which the group counts as abandoned while it has no member here (R11): when the
        last member left, when other gateways were last seen to have had members, or at first when
        this runtime was made."""
        self.part = MembershipRow(metadata, presence, group.group_id, self)
        """This gateway's part of the group's row."""
        self._owning: dict[int, asyncio.Task[None]] = {}
        self._acquiring: set[int] = set()
        """Partitions whose owning was requested of the storage and is not answered; all are in
        `_owning`."""
        self._asked: dict[int, bytes] = {}
        """Partition → token of an ownership that was requested, and whose outcome is not known,
        perhaps because the answer was lost. Another request with the same token is the same
        start."""

    @property
    def row(self) -> Membership:
        """The group's row, as this gateway saw it last."""
        return self.part.row

    @property
    def assignment(self) -> dict[int, str]:
        """Partition → name of the consumer that shall have it, at any gateway, by the row that was
        seen last."""
        return self.part.row.assignment

    # --- Members -------------------------------------------------------------------------------

    async def join(self, member: Member) -> None:
        """Take part in the assignment, at once or, if there are others, after NEW_S. Returns when
        the member has joined.

        Raises:
            TocsinError: it does not, or not any more, because the group was deleted, or the
                member has left meanwhile.
        """
        if self._is_new(member):
            loop = asyncio.get_running_loop()
            self._new[member.name] = loop.call_later(NEW_S, self._count, member.name)
        self.members[member.name] = member
        try:
            await self.part.write()
            if self.closed:
                await self._metadata.membership(self.group.group_id)  # deleted: says so
                raise Refused("draining")
            if member.left:
                raise Refused("not_subscribed", "the consumer left before it had joined")
        except BaseException:
            self._remove(member)  # else partitions wait for a member that never joined
            if self.part.is_shared:
                self.part.write_soon()  # the row may have been written
            raise

    def _is_new(self, member: Member) -> bool:
        """Whether a joining member waits NEW_S for partitions, because the group has other members.
        One that comes back, or is the pulls' consumer, does not wait."""
        others = len(self.members) > len(self._new) or bool(self.part.others())
        returns = member.stays or member.name in self.row.members
        return others and not returns and not member.pulls

    def _remove(self, member: Member) -> bool:
        """Remove a member. Returns False if it was none, or another one of its name has joined
        since."""
        if self.members.get(member.name) is not member:
            return False
        del self.members[member.name]
        self.left_at = asyncio.get_running_loop().time()
        new = self._new.pop(member.name, None)
        if new is not None:
            new.cancel()
        if len(self.members) == len(self._new) and not self.part.others():
            self._count(*self._new)  # no other member works meanwhile
        return True

    def _count(self, *names: str) -> None:
        """Let the assignment count these members from now on."""
        for name in names:
            self._new.pop(name).cancel()
        if names:
            self.part.write_soon()

    def leave(self, member: Member, *, moves: bool = False) -> None:
        """Remove a member that has left. Its owned partitions end, its deliveries return, and
        others take over. A member that `moves` keeps its place, for another gateway, because this
        one goes down."""
        if not self._remove(member):
            return
        for owned in list(member.owned_partitions.values()):
            owned.abandon(moves=moves)
        if moves:
            self.part.wait_for(member)
        if not moves or self.part.is_shared:
            self.part.write_soon()

    def _count_nobody(self) -> None:
        for new in self._new.values():
            new.cancel()
        self._new.clear()

    async def retire(self, member: Member, drain_s: float = limits.DRAIN_S) -> None:
        """Remove a member, and let its owned partitions drain for `drain_s` seconds at most.
        Returns when the group's row was written, or could not be written at once."""
        if self._remove(member):
            deadline = asyncio.get_running_loop().time() + drain_s
            for owned in list(member.owned_partitions.values()):
                owned.drain(deadline)
            try:
                await self.part.write()
            except TocsinError:
                self.part.write_soon()  # it has left all the same

    async def catch_up(self) -> None:
        """Compare with the group's row until that succeeds (MembershipRow.catch_up), so that
        nothing is served here that other gateways may have taken over."""
        while not self.closed and (self.members or self.owned_partitions):
            try:
                await self.part.catch_up()
                return
            except TocsinError:
                await asyncio.sleep(RETRY_AFTER_S)

    def _stays(self, name: str) -> bool:
        member = self.members.get(name)
        return member.stays if member is not None else self.part.is_silent(name)

    @property
    def absent(self) -> dict[str, float]:
        """Member without a gateway that is waited for → until when, by the loop's clock."""
        return self.part.absent

    def is_undecided(self, number: int) -> bool:
        """Whether the member to which a partition is assigned has still to say which of its
        deliveries it holds (R22)."""
        return number in self.assignment and self._stays(self.assignment[number])

    def has_expired(self, now: float) -> bool:
        """Whether the group has had no members here for as long as its settings allow (R11)."""
        expires_s = self.group.settings.expires_s
        if expires_s is None or self.members or self.closed:
            return False
        return now - self.left_at >= expires_s

    def rebalance(self) -> None:
        """Move partitions, because a member does not stay any more, is unresponsive, or is back."""
        self.part.write_soon()

    # --- MembershipHost, for its part of the row --------------------------------------------------

    def seats(self) -> Sequence[Member]:
        return [one for name, one in self.members.items() if name not in self._new]

    def partitions(self) -> Sequence[int]:
        return self.queue.members

    def has(self) -> set[int]:
        return {*self.owned_partitions, *self._acquiring}

    def moved_away(self, name: str) -> None:
        member = self.members[name]
        self._remove(member)
        for owned in list(member.owned_partitions.values()):
            owned.abandon(moves=True)
        member.moved_away()

    def carry_out(self) -> None:
        """Drain partitions that move away, and start those that no member here holds."""
        deadline = asyncio.get_running_loop().time() + limits.DRAIN_S
        for number, name in self.assignment.items():
            owned = self.owned_partitions.get(number)
            if owned is None:
                self._start(number)
            elif owned.owner is not self.members.get(name):
                owned.drain(deadline)

    # --- Owned partitions -------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        # Named by an assignment from before a leave; the next one comes, and starts it then.
        if self._is_wanted(number) and number not in self._owning:
            task = asyncio.get_running_loop().create_task(self._own(number), name=f"own {number}")
            self._owning[number] = task
            task.add_done_callback(lambda task: self._on_owned(number, task))

    def _is_wanted(self, number: int) -> bool:
        return self.assignment.get(number) in self.members and not self.closed

    def _on_owned(self, number: int, task: asyncio.Task[None]) -> None:
        del self._owning[number]
        if task.cancelled():
            return
        task.result()
        if number not in self.owned_partitions:
            self._start(number)  # its owner left while it was being owned

    # enforces: R15
    async def _own(self, number: int) -> None:
        partition = Partition(self.queue.queue_id, number)
        place = CursorPlace(self.group.group_id, partition)
        await self.part.freed(lambda: self._is_wanted(number), number)
        member = self.members.get(self.assignment.get(number, ""))
        if member is None or self.closed:
            return
        token = self._asked.get(number, b"")
        if not is_same_owner(token, member.owner):
            token = self._asked[number] = member.owner + os.urandom(16)
        self._acquiring.add(number)
        try:
            ownership = await self._context.storage.own(
                place,
                token=token,
                assignment=self.row.generation,
                epoch_seen=self.epochs.get(number, 0),
            )
        except TocsinError as error:
            self._acquiring.discard(number)
            if isinstance(error, Fenced):  # by an owner that goes by a newer row
                self.part.write_soon()
            self.part.let_go(number)
            await asyncio.sleep(RETRY_AFTER_S)
            if error.code.name == "group_not_found":
                await self._make_cursors()
            return
        self._acquiring.discard(number)
        self.epochs[number] = ownership.epoch
        if member is not self.members.get(self.assignment.get(number, "")) or self.closed:
            self.part.let_go(number)
            return  # it was owned in the name of a member that has left, or gave it up
        del self._asked[number]
        owned = OwnedPartition(
            self._context,
            self._presence,
            self.queue,
            self.group,
            place=place,
            ownership=ownership,
            token=token,
            owner=member,
            gone=self._on_ended,
        )
        self.owned_partitions[number] = member.owned_partitions[number] = owned
        member.pump()

    def count_stale(self) -> None:
        """Count a settlement under an epoch that is over."""
        self._context.stale_settlements += 1

    def is_being_owned(self, number: int, member: Member) -> bool:
        """Whether the owning of a partition was requested of the storage and is not answered, and
        the partition will be this member's."""
        return number in self._acquiring and self.is_coming(number, member)

    def is_coming(self, number: int, member: Member) -> bool:
        """Whether a partition that no member here has yet will be this member's."""
        is_its_own = self.assignment.get(number) == member.name
        return is_its_own and number not in self.owned_partitions and not self.closed

    async def owned_of(self, number: int, member: Member) -> OwnedPartition | None:
        """Wait until the member owns this partition; None: it will not."""
        while self.is_coming(number, member) and number in self._owning:
            await asyncio.wait((self._owning[number],))
        return member.owned_partitions.get(number)

    async def _make_cursors(self) -> None:
        """Make the group's cursors. The storage did not have them when a partition was to be owned,
        though the catalog has the group, because the gateway that made the group was cut off
        between the two. Existing cursors stay. If this runtime has closed by now, because the group
        was deleted, nothing happens."""
        if self.closed:
            return
        storage, group = self._context.storage, self.group
        with suppress(TocsinError):  # the queue may not exist yet either; owning is tried again
            starts = await starts_of(storage, self.queue, group.begins)
            await storage.create_group(group.group_id, self.queue.queue_id, starts)

    def _on_ended(self, owned: OwnedPartition) -> None:
        number = owned.partition.number
        self.ended[number] = max(owned.delivery.epoch, self.ended.get(number, 0))
        if self.owned_partitions.get(number) is owned:
            del self.owned_partitions[number]
        member = owned.owner
        owned_partitions = getattr(member, "owned_partitions", {})
        if owned_partitions.get(number) is owned:
            del owned_partitions[number]
        self.part.let_go(number)
        self._start(number)

    def queue_changed(self, queue: Queue) -> None:
        """Take up a change of the queue, which may be paused now, or go on."""
        self.queue = queue
        for member in self.members.values():
            member.pump()

    # --- Ending --------------------------------------------------------------------------------

    def fence(self, is_over: Callable[[int, str], bool] = lambda number, owner: True) -> None:
        """End owned partitions at once; their deliveries in flight no longer count. Members stay
        and own anew. `is_over` selects partitions as in MembershipHost.fence; by default, after a
        seek, all of them end."""
        for number, owned in list(self.owned_partitions.items()):
            if is_over(number, getattr(owned.owner, "name", "")):
                owned.fenced()

    def delete(self, why: Refused) -> None:
        """Close, because the group was deleted. Deliveries in flight no longer count, and the
        members are informed."""
        self.closed = True
        self.fence()
        self._count_nobody()
        members, self.members = list(self.members.values()), {}
        for member in members:
            member.deleted(why)

    async def close(self) -> None:
        """Let no member own anything any more; owned partitions end after their last write. A
        lingering member keeps what it holds, and comes back to the next gateway."""
        self.closed = True
        for member in list(self.members.values()):
            if member.linger_s:
                self.part.wait_for(member)
            for owned in list(member.owned_partitions.values()):
                owned.abandon(moves=member.linger_s > 0)
        self._count_nobody()
        self.members.clear()
        await self.part.close()
        waits: Sequence[asyncio.Task[None]] = [*self._owning.values()]
        if waits:
            await asyncio.wait(waits)
