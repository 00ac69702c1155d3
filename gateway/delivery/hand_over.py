"""Partitions that come from other gateways: who waits for whom, and for how long (R20).

A new owner begins when the row names nobody any more who drains its partition. What that gateway
does not say is not waited for for ever: a drain has its time, and a session that has moved (R22)
has taken what it holds with it, so that only the last writes are waited for.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from metadata.catalog import Membership
from push import limits

LOOK_S: Final = 3.0
"""So late at most a gateway finds out itself that it is to let go of something."""
DRAIN_S: Final = limits.DRAIN_S + LOOK_S + 1.0
MOVED_S: Final = 1.0
"""Who moves comes from a gateway that went down in an orderly way or is dead, as a rule: the last
writes of one that lives take milliseconds."""


class HandOver:
    """See the module. Of one group; `again`: called when something has had its time."""

    def __init__(self, gateway: str, again: Callable[[], None]) -> None:
        self._gateway = gateway
        self._again = again
        self._until: dict[int, tuple[str, float]] = {}
        """Partition → the gateway that has it, and until when it is waited for."""
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def look(self, before: Membership, row: Membership, now: float) -> None:
        """The row is now this one, behind `before`."""
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
        """What has had its time, of what the same gateway still drains in this row: another drain
        has a time of its own."""
        return {
            number for number, (gateway, until) in self._until.items()
            if until <= now
            and (drain := row.draining.get(number)) is not None and drain.gateway == gateway
        }  # fmt: skip

    def forget(self) -> None:
        """Others took this gateway for gone: nothing that they drain now is what it waited for."""
        self._until = {}

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def freed(self, is_held: Callable[[], bool]) -> None:
        """Wait as long as that is so; it is asked again with each row."""
        while is_held():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def close(self) -> None:
        """No row comes any more."""
        self._call_at(None)
        self._tell()
