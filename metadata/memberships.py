"""The groups' rows where one gateway works on a catalog: in memory, and on the disk while somebody
lingers (R22). They die with the process, but for their generations (R14)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from metadata.backend import Alone, other_generation
from metadata.catalog import Membership
from metadata.heartbeats import KeptBeats
from push.errors import Refused

_LOG: Final = logging.getLogger("metadata.inprocess")


class KeptMemberships:
    """`metadata.backend.MembershipRows`. `boot` is higher at each start; `before` is what the
    process before this one has left; `put` makes rows durable, all or none."""

    def __init__(
        self,
        boot: int,
        before: Iterable[Membership],
        put: Callable[[list[Membership]], Awaitable[None]],
        alone: Alone,
    ) -> None:
        self._boot = boot
        self._rows: dict[str, Membership] = {}
        self._before = {row.group_id: row for row in before}
        """What the process before this one has left, and what is kept for the next one."""
        self._unwritten: dict[str, Membership] = {}
        self._beats = KeptBeats()
        self._ending: dict[str, asyncio.Future[bool]] = {}
        """Group → whether it has gone, as soon as that is decided."""
        self._put = put
        self._alone = alone

    async def get(self, group_id: str) -> Membership:
        """See MembershipRows."""
        return self._get(group_id)

    async def glance(self, group_id: str) -> Membership:
        """See MembershipRows."""
        return self._get(group_id)

    def _get(self, group_id: str) -> Membership:
        row = self._rows.get(group_id)
        if row is None:
            before = self._before.get(group_id)
            row = Membership(
                group_id=group_id,
                generation=self._boot << 32,
                members=(),
                assignment=before.assignment if before is not None else {},
                lingers=before.lingers if before is not None else {},
            )
        return row

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """See MembershipRows. One that cannot be kept holds nevertheless."""
        ending = self._ending.get(new.group_id)
        if ending is not None and await asyncio.shield(ending):
            raise Refused("group_not_found", f"no group of the id {new.group_id!r}")
        if self._get(new.group_id).generation != expected_generation:
            return False
        self._rows[new.group_id] = new
        if new.lingers or new.group_id in self._before:
            self._before[new.group_id] = self._unwritten[new.group_id] = new
            try:
                await self._alone(self._keep)
            except Refused as error:  # it holds here; who lingers would not be waited for
                _LOG.warning("the members of group %s are not kept: %s", new.group_id, error)
            if not new.lingers and self._before.get(new.group_id) is new:
                del self._before[new.group_id]
        return True

    async def end(
        self, group_id: str, generation: int, drop: Callable[[], Awaitable[None]]
    ) -> None:
        """Drop a group whose row is of this generation; until that is done no change of the row is
        decided. Fenced: it is of another one, and nothing happened."""
        if self._get(group_id).generation != generation:
            raise other_generation(group_id)
        ending = self._ending[group_id] = asyncio.get_running_loop().create_future()
        try:
            await drop()
            ending.set_result(True)
        finally:
            del self._ending[group_id]
            if not ending.done():
                ending.set_result(False)

    async def _keep(self) -> None:
        """All that wait, in one commit: after a restart everybody joins at once."""
        rows, self._unwritten = list(self._unwritten.values()), {}
        if rows:
            await self._put(rows)

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """See MembershipRows."""
        return self._beats.beat(gateway, number, forget, says)

    async def said(self) -> dict[str, str]:
        """See MembershipRows."""
        return self._beats.said()

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """See MembershipRows: nobody else changes one."""

    def dropped(self, group_id: str) -> None:
        """See MembershipRows."""
        self._rows.pop(group_id, None)
        self._before.pop(group_id, None)
