"""Members of a group that are not here, and whose place waits for them for a while (R22).

They were there when their gateway ended, and their sessions asked to linger. Until they come, or
their time is up, they stay in the assignment, and what is theirs is given to nobody. Where several
gateways serve a group, each waits for who is with none of them.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping


class Absent:
    """See the module. `started`: when the waiting began, in seconds of the loop's clock."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._until: dict[str, float] = {}
        self._linger_s: dict[str, float] = {}
        self._given_up: set[str] = set()
        """Whose time is up, and whom the row still names."""
        self._is_first_look = True
        self._timer: asyncio.TimerHandle | None = None

    @property
    def names(self) -> list[str]:
        """Who is waited for."""
        return list(self._until)

    @property
    def until(self) -> dict[str, float]:
        """Until when each is waited for, by the loop's clock; infinity: as long as this lasts."""
        return dict(self._until)

    def look(
        self, lingers: Mapping[str, float], present: Collection[str], now: float
    ) -> dict[str, float]:
        """Who is still waited for: not who is `present`, nor whose time is up. The first time
        `lingers` is what the gateway before has left. Returns who is waited for, and how long."""
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
        """As `look`, among several gateways: `missing` is who lingers and is with none of them, as
        the row says. Each is waited for from when it was missed first."""
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
        """Another gateway has given up who is not among these."""
        for name in self._until.keys() - set(named):
            del self._until[name], self._linger_s[name]

    def moved(self, name: str, linger_s: float, until: float = float("inf")) -> None:
        """It goes on at another gateway, and its place waits there; here it is nobody else's."""
        self._until[name], self._linger_s[name] = until, linger_s

    def call_at(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the next one's time is up."""
        self.close()
        at = min(self._until.values(), default=float("inf"))
        if at < float("inf"):
            self._timer = asyncio.get_running_loop().call_at(at, gone)

    def close(self) -> None:
        """Call nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
