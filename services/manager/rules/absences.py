"""Which replicas are away, since when, and which were let in again in vain. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

from push.copies import Server

LOOKED_S: Final = 8.0
"""Between two looks that are farther apart nobody knows what was. A look takes a few seconds where
servers do not answer."""
SILENT_S: Final = 2.0
"""Replicas confirm every second: whoever has not for so long is not there."""
AGAIN_S: Final = (60.0, 3600.0)
"""Publishing waits for who is let in. Who then goes away before it has everything is let in again
so much later: the first time, and at most."""


class Absences:
    """As one manager sees a shard, by its own clock. `silent_s`: for how long, at least, somebody
    had confirmed nothing when the manager before it looked last."""

    def __init__(self, away_s: float, silent_s: Mapping[str, float] | None = None) -> None:
        self._away_s = away_s
        self._told_s = dict(silent_s or {})
        self._heard: dict[str, float] = {}
        """Who is counted → when it is known to have confirmed last; unless seen, since when."""
        self._primary = ""
        self._now = 0.0
        self._out: frozenset[str] = frozenset()
        self._trying: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def saw(
        self, primary: Server, members: Collection[str], out: frozenset[str], *, now: float
    ) -> None:
        """Who is attached to the primary, at `now`, of those that are counted; and who is not."""
        if primary.place != self._primary or now - self._now > LOOKED_S:
            self._heard = {}
        self._primary, self._now = primary.place, now
        followers = {one.place: one for one in primary.followers}
        heard = {}
        for place in members:
            before = self._heard.get(place, now - self._told_s.get(place, 0.0))
            follower = followers.get(place)
            if follower is not None and follower.is_online:
                heard[place] = max(before if place in self._heard else 0.0, now - follower.lag_s)
            else:  # nor does one confirm anything that is being given everything: for minutes
                heard[place] = before
        self._heard, self._told_s = heard, {}
        self._trying |= (self._out - out) & set(members)
        for place in out & self._trying:
            self._failed(place)
        self._out = out

    def _failed(self, place: str) -> None:
        self._trying.discard(place)
        first, most = AGAIN_S
        failures = self._failures.get(place, 0)
        self._failures[place] = failures + 1
        self._not_before[place] = self._now + min(most, first * 2**failures)

    def stays(self, place: str) -> None:
        """It has everything."""
        self._trying.discard(place)
        self._failures.pop(place, None)

    def unseen(self) -> None:
        """The primary was not seen: nobody knows who is attached to it."""
        self._primary = ""

    def away(self) -> set[str]:
        """Those that have confirmed nothing for too long."""
        return {place for place in self._heard if self.silent_s(place) >= self._away_s}

    def silent(self) -> set[str]:
        """Those that are not there at this moment."""
        return {place for place in self._heard if self.silent_s(place) >= SILENT_S}

    def due_s(self) -> float:
        """In how many seconds the next of those is away that are not there at this moment;
        infinity: there is none."""
        left = [self._away_s - self.silent_s(place) for place in self.silent()]
        return min((some for some in left if some > 0), default=float("inf"))

    def silent_s(self, place: str) -> float:
        """Since when it has confirmed nothing, as far as this manager knows."""
        return self._now - self._heard.get(place, self._now)

    def later_s(self, place: str) -> float:
        """In how many seconds it may be let in again."""
        return max(0.0, self._not_before.get(place, 0.0) - self._now)
