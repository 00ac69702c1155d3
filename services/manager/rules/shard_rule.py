"""What both rules about who of a shard could be elected have in common (R28). Pure.

Every look decides anew from what is seen: steps are asked in their order, and what the first one
that has anything to do says is done before the next look.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from push.copies import Act, Server, View
from services.manager.rules.absences import Absences
from services.manager.rules.shard_views import attached_to, named, told

AWAY_S: Final = 10.0
"""So long a replica has not confirmed anything before it is taken out."""
Step = Callable[[Server], list[Act]]
"""Given the primary."""


class ShardRule(ABC):
    """The rule for one shard, for as long as one manager leads. Times are seconds of its clock.
    `away_s`: after which one is taken out; `silent_s`: see Absences."""

    def __init__(
        self, *, away_s: float = AWAY_S, silent_s: Mapping[str, float] | None = None
    ) -> None:
        self.says: list[str] = []
        """Sentences: what is done, what it waits for, what is wrong. Of the last look."""
        self.absences = Absences(away_s, silent_s)
        """Who is away since when."""
        self._view = View("", {}, {})
        self._before = View("", {}, {})
        self._counted: set[str] = set()
        """Those that R has counted at the last look."""

    def saw(self, view: View, *, now: float) -> list[Act]:
        """What is to be done now, in any order, before the next look; nothing: all is well, or
        something has to be waited for, which `says` tells."""
        self._counted = self.members() if self._view.replicas >= len(self.members()) else set()
        self._before, self._view, self.says = self._view, view, []
        primary = view.servers.get(view.primary)
        if primary is None or not primary.is_primary:
            self.absences.unseen()
            self.says.append(f"no primary is seen: {named(view)}")
            return []
        self.absences.saw(primary, self.members(), view.out, now=now)
        for step in self._steps():
            acts = step(primary)
            if acts:
                self.says.extend(map(told, acts))
                return acts
        return []

    @abstractmethod
    def _steps(self) -> Sequence[Step]:
        """In the order in which they are asked."""

    @abstractmethod
    def did(self, act: Act) -> None:
        """This was done, all of it. What was tried and may not have been done is not told: it is
        said again."""

    @abstractmethod
    def leaving(self) -> set[str]:
        """Those that were away for too long and are still counted."""

    def members(self) -> set[str]:
        """Those that R counts, as far as they are known: without the primary."""
        view = self._view
        known = {place for sentinel in view.sentinels.values() for place in sentinel.replicas}
        return (known | set(view.users) | attached_to(view)) - view.out - {view.primary}

    def _why_not_whole(self, server: Server) -> str:
        """Why it may lack something of what was there at the last look; "": it has it, on disk."""
        view, before = self._view, self._before
        past = before.servers.get(view.primary)
        if not server.is_linked:
            return "its link is down, or it has not everything yet"
        if server.unready:
            return server.unready
        if past is None or before.primary != view.primary:
            return "it was not looked at before"
        if server.offset < past.offset:
            return f"{past.offset - server.offset} bytes are missing"
        return ""

    def _unaware(self, primary: Server, could: set[str]) -> set[str]:
        """Who of those that could be elected has not confirmed what was there at the last look:
        perhaps not how many R counts since then. Elected, such a one would acknowledge without who
        is let in, and that one could be elected behind it."""
        past = self._before.servers.get(primary.place)
        if past is None or self._before.primary != primary.place:
            return could
        have = {one.place for one in primary.followers if one.is_online}
        have -= {one.place for one in primary.followers if one.offset < past.offset}
        return could - have
