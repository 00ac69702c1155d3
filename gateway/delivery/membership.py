"""This gateway's part of a group's membership row, written by compare-and-set (R14).

`metadata.group_row` decides what a row becomes. Here are the calls. They are made at once when
members join or leave, when partitions that other gateways wait for have ended, and when a notice
says that another gateway has written. They are also made now and then, because notices may be lost.
Joins and leaves that wait are one write, and a write that took long is followed by a pause in its
proportion. So a thousand consumers that come and go cost some writes, not a thousand, and leave the
gateway to those that work.

**Lingering members** (R22) were here when their gateway ended, and their sessions asked to linger.
Until they come, or their time is up, they stay in the assignment, and their partitions are given to
no other. If several gateways serve a group, each waits for the members that are with none.

**Handing over** (R20). A new owner begins when the row names no other gateway that drains the
partition. The wait for a gateway that does not say so has an end. A drain has its time, and a
session that has moved has taken its deliveries with it, so that only the last writes are waited
for.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from gateway.delivery.presence import Presence
from metadata.catalog import Membership
from metadata.group_row import (
    GatewayPart,
    drains,
    gateway_of,
    gateways_in,
    gateways_of,
    missing,
    next_row,
    others,
)
from metadata.port import Metadata
from push import limits
from push.errors import TocsinError


class LingeringMembers:
    """Lingering members of a group that are with no gateway and are waited for. `started`: when
    this gateway began to wait for those of the gateway before it, in seconds of the loop's
    clock."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._until: dict[str, float] = {}
        self._linger_s: dict[str, float] = {}
        self._given_up: set[str] = set()
        """Members whose time is up, and that the row still names."""
        self._is_first_look = True
        self._timer: asyncio.TimerHandle | None = None

    @property
    def names(self) -> list[str]:
        """Names of the members that are waited for."""
        return list(self._until)

    @property
    def until(self) -> dict[str, float]:
        """Member → the time until which it is waited for, by the loop's clock; infinity: for
        ever."""
        return dict(self._until)

    def look(
        self, lingers: Mapping[str, float], present: Collection[str], now: float
    ) -> dict[str, float]:
        """Wait no longer for members that are `present` or whose time is up. The first time,
        `lingers` are the members that the gateway before has left. Returns member → its linger time
        in seconds, of those that are still waited for."""
        if self._is_first_look:
            self._is_first_look = False
            for name, linger_s in lingers.items():
                self._until[name], self._linger_s[name] = self._started + linger_s, linger_s
        for name, until in list(self._until.items()):
            if name in present or until <= now:
                del self._until[name], self._linger_s[name]
        return dict(self._linger_s)

    def look_around(
        self, missing: Mapping[str, float], present: Collection[str], now: float
    ) -> dict[str, float]:
        """Do the same as `look` if several gateways serve the group. `missing`: member → linger
        time, of the members that are with no living gateway by the row. Each is waited for from
        when this gateway missed it first."""
        self._is_first_look = False
        self._given_up &= missing.keys()
        for name, linger_s in missing.items():
            if name not in self._until and name not in self._given_up:
                self._until[name], self._linger_s[name] = now + linger_s, linger_s
        before = {*self._until}
        left = self.look({}, present, now)
        self._given_up |= before.difference(self._until, present)
        return left

    def forget_all_but(self, named: Collection[str]) -> None:
        """Wait for none but these: another gateway has given up the others."""
        for name in self._until.keys() - set(named):
            del self._until[name], self._linger_s[name]

    def moved(self, name: str, linger_s: float, until: float = float("inf")) -> None:
        """Wait for a member, which goes on at another gateway, until the time `until`; infinity:
        for ever."""
        self._until[name], self._linger_s[name] = until, linger_s

    def call_at(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the time of the next member is up. This replaces an earlier call."""
        self.close()
        at = min(self._until.values(), default=float("inf"))
        if at < float("inf"):
            self._timer = asyncio.get_running_loop().call_at(at, gone)

    def close(self) -> None:
        """Cancel the call that `call_at` has scheduled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


LOOK_S: Final = 3.0
"""Seconds between two looks of a gateway at the row of a group that has members at others too.
Without any notice, it finds out then that it has to let go of a partition."""
DRAIN_S: Final = limits.DRAIN_S + LOOK_S + 1.0
MOVED_S: Final = 1.0
"""Seconds for the last writes of a gateway that a session has left. As a rule that gateway went
down in an orderly way or is dead; the last writes of one that lives take milliseconds."""


# enforces: R20
class HandOver:
    """Partitions of one group that other gateways drain, and the wait for these gateways. `again`
    is called when a drain has had its time."""

    def __init__(self, gateway: str, again: Callable[[], None]) -> None:
        self._gateway = gateway
        self._again = again
        self._until: dict[int, tuple[str, float]] = {}
        """Partition → (the gateway that drains it, until when that is waited for)."""
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def look(self, before: Membership, row: Membership, now: float) -> None:
        """Note by a row, which follows `before`, which partitions other gateways drain. Calls of
        `freed` judge again."""
        until: dict[int, tuple[str, float]] = {}
        for number, drain in row.draining.items():
            gateway = drain.gateway
            if gateway == self._gateway:
                continue
            known = self._until.get(number)
            if known is None or known[0] != gateway:
                has_moved = before.assignment.get(number) == row.assignment.get(number)
                is_new = number not in before.draining
                known = (gateway, now + (MOVED_S if has_moved and is_new else DRAIN_S))
            until[number] = known
        self._until = until
        self._tell()
        self._call_at(min((at for _, at in until.values()), default=None))

    def _call_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._again) if at else None

    def overdue(self, row: Membership, now: float) -> set[int]:
        """Return the partitions whose drain has had its time and is still the same in this row.
        Another gateway's drain has a time of its own."""
        return {
            number
            for number, (gateway, until) in self._until.items()
            if until <= now
            and (drain := row.draining.get(number)) is not None
            and drain.gateway == gateway
        }

    def forget(self) -> None:
        """Forget all drains. Others took this gateway for dead, and drain something else now."""
        self._until = {}

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def freed(self, is_held: Callable[[], bool]) -> None:
        """Wait while `is_held` returns True. It is called at once, and again after each row."""
        while is_held():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def close(self) -> None:
        """Let all that wait in `freed` judge again, because no row comes any more."""
        self._call_at(None)
        self._tell()


RETRY_AFTER_S: Final = 0.5
GATHER_S: Final = 0.005
"""Seconds for which changes are gathered for one write, such as partitions that end together."""
CATCH_UP_TRIES: Final = 5
"""Number of tries to write a row in `catch_up`, RETRY_AFTER_S apart. After a failover calls fail
for a moment; a copy that is away stays away."""
LOOK_ALONE_S: Final = 5 * LOOK_S
"""Seconds between two looks at the row while no other gateway has members in it."""
PAUSE_S: Final = 0.005
"""Shortest pause in seconds between two writes of a group's row; what happens meanwhile is written
together."""
PAUSE_MAX_S: Final = 0.25
PAUSE_RATIO: Final = 1
"""Length of the pause after a write, as a multiple of the write's duration, within PAUSE_S and
PAUSE_MAX_S."""


class Seat(Protocol):
    """A member of the group at this gateway."""

    @property
    def name(self) -> str: ...

    @property
    def stays(self) -> bool:
        """Whether its client has still to say which deliveries it holds. None of its partitions
        moves to another member before."""

    @property
    def is_unresponsive(self) -> bool:
        """Whether its handlers do not respond."""

    @property
    def linger_s(self) -> float:
        """Seconds for which its place in the group waits for it when its gateway is gone; 0: not at
        all."""


class MembershipHost(Protocol):
    """The group on this gateway (GroupRuntime), as its MembershipRow needs it."""

    @property
    def closed(self) -> bool: ...

    def seats(self) -> Sequence[Seat]:
        """Return the members here that the assignment counts."""

    def partitions(self) -> Sequence[int]:
        """Return all partitions that the group's queue has."""

    def has(self) -> set[int]:
        """Return the partitions that are owned here, or are about to be."""

    def moved_away(self, name: str) -> None:
        """Let go of a member that is another gateway's now, with its deliveries (R22)."""

    def fence(self, is_over: Callable[[int, str], bool]) -> None:
        """End at once the owned partitions for which `is_over`(partition, name of its consumer) is
        True, because others may own them."""

    def carry_out(self) -> None:
        """Drain partitions that the row assigns to others, and begin to own those that it assigns
        to members here."""


class MembershipRow:
    """The row of one group, and this gateway's part of it."""

    def __init__(
        self, metadata: Metadata, presence: Presence, group_id: str, host: MembershipHost
    ) -> None:
        self.row = Membership(group_id=group_id, generation=0, members=(), assignment={})
        """The newest row that was seen; of generation 0 before the first. After a `catch_up` that
        failed, the assignment lacks what may be others' by now."""
        self.is_shared = presence.is_shared
        """Whether other gateways may serve the group too."""
        self._metadata = metadata
        self._presence = presence
        self._host = host
        self._absent = LingeringMembers(presence.started)
        self._hand_over = HandOver(presence.gateway, self.write_soon)
        self.begun_anew: int | None = None
        """The row's count of new beginnings of its cursors when partitions here began; None: no row
        was seen."""
        self._written: set[str] = set()
        """Members here that the row names as this gateway's, or may name after a write without an
        answer."""
        self._unsure: tuple[int, set[str]] | None = None
        """A change that was not answered: the generation that it was to follow, and the members
        that were named in the row before it."""
        self._taken_out: set[str] = set()
        """Gateways that this one took out of the row, until the row has them again."""
        self._lock = asyncio.Lock()
        self._next_write: asyncio.Task[None] | None = None
        """The write that has not begun yet, which all changes wait for."""
        self._not_before = 0.0
        """The earliest time of the next write, by the loop's clock."""
        self._is_due = False
        self._noticed = 0
        """The newest generation of the row that a notice named and that is still to be read; 0:
        none."""
        self._writing: asyncio.Task[None] | None = None
        self._look_again: asyncio.TimerHandle | None = None

    # --- When ------------------------------------------------------------------------------------

    def write_soon(self) -> None:
        """Write the row soon: something has changed here, or may have elsewhere."""
        if not self._host.closed:
            self._is_due = True
            self._begin()

    def on_notice(self, generation: int) -> None:
        """Read the row soon, if this generation, which a notice names, is newer than the known
        one."""
        if generation > self.row.generation:
            self._noticed = max(self._noticed, generation)
            self._begin()

    def on_dead(self, dead: set[str]) -> None:
        """Bring the row up to date soon, if it names a gateway that is dead."""
        if not dead.isdisjoint(gateways_in(self.row)):
            self.write_soon()

    def _begin(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._work(), name="reassign")
            self._writing.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._writing = None
        # A member may have come or gone since the last look, which was a turn of the loop ago.
        if not self._host.closed and (self._is_due or self._noticed > self.row.generation):
            self._begin()
        if not task.cancelled():
            task.result()

    async def _work(self) -> None:
        while not self._host.closed:
            if self.is_shared:
                await asyncio.sleep(GATHER_S)
            if not self._is_due and self._noticed <= self.row.generation:
                return
            self._is_due, self._noticed = False, 0
            try:
                await self.write()
            except TocsinError:
                self._is_due = True
                await asyncio.sleep(RETRY_AFTER_S)

    def _look_later(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        here = self._host.seats()
        if here and not self._host.closed:
            after_s = LOOK_S if len(self.row.members) > len(here) else LOOK_ALONE_S
            self._look_again = asyncio.get_running_loop().call_later(after_s, self.write_soon)

    async def close(self) -> None:
        """Stop looking at the row, because the group has closed. Returns when no write is under
        way."""
        self._absent.close()
        self._hand_over.close()
        if self._look_again is not None:
            self._look_again.cancel()
        waits = [task for task in (self._writing, self._next_write) if task is not None]
        if waits:
            await asyncio.wait(waits)

    # --- Reading and writing ---------------------------------------------------------------------

    async def write(self) -> None:
        """Bring the row up to date with all that has happened before the call, in one write with
        all other changes that wait, and carry it out. Raises TocsinError if it is not known whether
        that was done."""
        if self._next_write is None:
            self._next_write = asyncio.get_running_loop().create_task(self._write_all())
            self._next_write.add_done_callback(_retrieve)
        await asyncio.shield(self._next_write)  # others wait for it too

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._not_before - loop.time())
        async with self._lock:
            self._next_write = None  # callers from here on wait for another one
            if self._host.closed:
                return
            began = loop.time()
            try:
                await self._write()
            finally:
                took_s = loop.time() - began
                pause_s = min(PAUSE_MAX_S, max(PAUSE_S, PAUSE_RATIO * took_s))
                self._not_before = began + took_s + pause_s
        self._absent.call_at(self.write_soon)
        if self._must_let_go():
            self.write_soon()
        self._host.carry_out()

    def _must_let_go(self) -> bool:
        """Whether the row names this gateway as draining a partition that it does not have any
        more, because that ended while the row was being written."""
        here, has = self._presence.gateway, self._host.has()
        return any(
            drain.gateway == here and number not in has
            for number, drain in self.row.draining.items()
        )

    # enforces: P5
    async def catch_up(self) -> None:
        """Make sure that nothing is served here that other gateways may have taken over.

        A gateway that takes partitions over first writes the group's row to every copy, and raises
        the epoch on every copy. Only then does it begin to serve. So one copy of the row, whichever
        answers, shows a takeover.

        - If it is the row known here, no gateway has taken over. Copies that are away need not be
          waited for.
        - If it is another row, it is read and written as usual.
        - If that fails, this gateway stops serving each partition that the other row does not
          assign to the same consumer as the row known here. If the group was begun anew, it stops
          serving all of them. It begins to serve nothing that the other row newly assigns to it,
          because a row that not every copy has may be undone.

        Raises TocsinError if the catalog does not answer.
        """
        here, group_id = self._presence.gateway, self.row.group_id
        row = await self._metadata.glance(group_id)
        is_told = self._written.issubset(row.gateways.get(here, ()))
        if row.generation == self.row.generation and is_told:
            return
        for _ in range(CATCH_UP_TRIES):
            try:
                await self.write()
                return
            except TocsinError:
                await asyncio.sleep(RETRY_AFTER_S)
        row = await self._metadata.glance(group_id)
        lost = {seat.name for seat in self._host.seats()}.difference(row.gateways.get(here, ()))
        same = {
            number: name
            for number, name in self.row.assignment.items()
            if row.assignment.get(number) == name and name not in lost
        }
        self.row = msgspec.structs.replace(self.row, assignment=same)
        is_anew = self.begun_anew not in (None, row.begun_anew)
        self._host.fence(lambda number, owner: is_anew or same.get(number) != owner)
        self.write_soon()

    async def write_out(self) -> None:
        """Leave the row, after `close` and when the owned partitions have ended, so that others
        need not wait until this gateway counts as dead. Raises TocsinError: the row was not
        written."""
        here = self._presence.gateway
        if here in gateways_in(self.row):
            async with self._lock:
                await self._write()

    # enforces: R14
    async def _write(self) -> None:
        here = self._presence.gateway
        while True:
            row = await self._metadata.membership(self.row.group_id)
            if self._unsure is not None and self._unsure[0] == row.generation:
                # The change was not made. A member that is elsewhere according to the row has come
                # here since.
                self._written = self._unsure[1]
            self._unsure = None
            gone = self._learn(row) if here else set[str]()
            new = next_row(row, self._part(row, gone), self._host.partitions())
            if new is row:  # another caller that waited for the lock was here before
                break
            told, self._written = self._written, self._written.union(new.gateways.get(here, ()))
            # If the answer is lost, all of that may have been written.
            self._unsure = (row.generation, told)
            changed = await self._metadata.change_membership(
                new, expected_generation=row.generation
            )
            self._unsure = None
            if changed:
                self._taken_out |= gone.intersection(row.gateways)
                break
            self._written = told
        self.row = new
        if here:
            self._written = {*new.gateways.get(here, ())}
            self._hand_over.look(row, new, asyncio.get_running_loop().time())
            self._look_later()

    # enforces: R22
    def _part(self, row: Membership, gone: set[str]) -> GatewayPart:
        here, now = self._presence.gateway, asyncio.get_running_loop().time()
        members = {seat.name for seat in self._host.seats()}
        if here:
            present = members.union(others(row, here, gone))
            self._absent.forget_all_but(row.lingers)
            lingers = self._absent.look_around(missing(row, gone), present, now)
        else:
            lingers = self._absent.look(row.lingers, members, now)
        lingers |= {seat.name: seat.linger_s for seat in self._host.seats() if seat.linger_s}
        return GatewayPart(
            gateway=here,
            members=members,
            staying={seat.name for seat in self._host.seats() if seat.stays},
            unresponsive={seat.name for seat in self._host.seats() if seat.is_unresponsive},
            lingers=lingers,
            absent=self._absent.names,
            has=self._host.has(),
            gone=gone,
            overdue=self._hand_over.overdue(row, now),
        )

    def _learn(self, row: Membership) -> set[str]:
        """Take up what others have made of the row; returns the gateways in it that are dead."""
        self.row = row
        here = self._presence.gateway
        is_taken_out, claimed = False, set[str]()
        gateways = gateways_of(row)
        for name in [seat.name for seat in self._host.seats()]:
            gateway = gateways.get(name)
            if gateway not in (None, here) and name in self._written:
                self._host.moved_away(name)
            elif gateway not in (None, here):
                claimed.add(name)
            elif gateway is None and name in self._written:
                is_taken_out = True
        if is_taken_out:
            self._hand_over.forget()
        if self.begun_anew not in (None, row.begun_anew):
            self._host.fence(lambda number, owner: True)
        elif is_taken_out:  # others considered this gateway dead, and have what is not its own now
            self._host.fence(lambda number, owner: row.assignment.get(number) != owner)
        elif claimed:
            self._host.fence(lambda number, owner: owner in claimed)
        for back in self._taken_out.intersection(row.gateways):
            self._presence.on_write(back)  # it has written its part again
        self._taken_out.difference_update(row.gateways)
        self.begun_anew = row.begun_anew
        return self._presence.dead(gateways_in(row))

    # --- Members and partitions -------------------------------------------------------------------

    @property
    def absent(self) -> dict[str, float]:
        """Member without a gateway that is waited for → until when, by the loop's clock."""
        return self._absent.until

    def wait_for(self, seat: Seat) -> None:
        """Keep the place of a member that goes on at another gateway, for as long as its session
        requested. If no other gateway works on the catalog, keep it as long as this one lives."""
        now, linger_s = asyncio.get_running_loop().time(), seat.linger_s
        until = now + linger_s if self.is_shared else float("inf")
        self._absent.moved(seat.name, linger_s, until)

    def claim(self, name: str) -> None:
        """Write soon that a member is at this gateway, because its client has come back here,
        perhaps from another gateway."""
        if self.is_shared:
            self._written.discard(name)
            self.write_soon()

    async def freed(self, is_wanted: Callable[[], bool], number: int) -> None:
        """Wait until no other gateway drains the partition, or `is_wanted` returns False."""
        here = self._presence.gateway
        await self._hand_over.freed(
            lambda: is_wanted() and drains(self.row, number) not in (None, here)
        )

    def let_go(self, number: int) -> None:
        """Write that a partition is not owned here any more, if others wait for that."""
        if drains(self.row, number) == self._presence.gateway:
            self.write_soon()

    def others(self) -> set[str]:
        """Return the members that the row has at other gateways, also at dead ones."""
        return {*others(self.row, self._presence.gateway, ())}

    def is_silent(self, name: str) -> bool:
        """Whether a member that is not here has still to say what it holds; absent ones have."""
        return gateway_of(self.row, name) is None or name in self.row.staying


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Retrieve the task's exception, so that none is logged if no caller waits any more."""
    if not task.cancelled():
        task.exception()
