"""What is known of each storage cluster, and when that becomes something else. Pure.

    well ── used ≥ hot_share ──▶ hot ── used < hot_share - COOLER ──▶ well
    any  ── not answered for AWAY_S ──▶ away ── answers ──▶ well or hot

A manager looks at them and keeps these facts as marks of the catalog, where whoever places a new
queue finds them, also while no manager is there. So a fact is written when it has become another
one, and not each time that it is looked at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from metadata.placement import Candidate, State

HOT_SHARE: Final = 0.8
"""Of its memory: where nothing new is placed."""
COOLER: Final = 0.1
"""So much less before it is well again: a cluster at the line must not be hot and well in turns."""
IDLE_SHARE: Final = 0.2
AWAY_S: Final = 10.0
"""Without an answer, by the clock of who asks."""
TOLD_EVERY_S: Final = 10.0
"""Of how full one is; a mark is a change of the catalog, which every gateway reads."""
TOLD_STEP: Final = 0.02
"""Of its memory: what is placed does not change noticeably for less."""
MARK: Final = "storage cluster "
"""And its name: the mark of its facts."""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a manager has found."""

    name: str
    zone: str = ""
    state: State = "well"
    used_bytes: int = 0
    """Of the fullest primary, as it counts for its bound."""
    bound_bytes: int = 0
    """0: it has none, and is never hot."""
    since_unix_ms: int = 0
    """When it was first found in this state."""
    why: str = ""
    """It is away: what was heard last."""
    hot_share: float = HOT_SHARE
    """The manager's line (--hot-percent)."""

    @property
    def used_share(self) -> float:
        """0 to 1, and more where acknowledgements have gone beyond the bound."""
        return self.used_bytes / self.bound_bytes if self.bound_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """At a cluster, just now. `why`: it did not answer; "": it did."""

    name: str
    zone: str = ""
    used_bytes: int = 0
    bound_bytes: int = 0
    why: str = ""


class Clusters:
    """The facts of all clusters as one manager knows them. Times are `now`, in seconds of its own
    clock, and `wall_unix_ms` for people."""

    def __init__(self, known: Iterable[ClusterFacts] = (), *, hot_share: float = HOT_SHARE) -> None:
        assert COOLER < hot_share <= 1
        self._hot_share = hot_share
        self._facts = {facts.name: facts for facts in known}
        self._told = dict(self._facts)
        self._told_at: dict[str, float] = {}
        self._answered: dict[str, float] = {}

    @property
    def facts(self) -> list[ClusterFacts]:
        """By name."""
        return [facts for _, facts in sorted(self._facts.items())]

    def looked(self, looks: Sequence[Look], *, now: float, wall_unix_ms: int) -> list[ClusterFacts]:
        """All clusters were looked at; those of which the facts are to be written, anew."""
        names = {look.name for look in looks}
        self._facts = {name: one for name, one in self._facts.items() if name in names}
        for look in looks:
            before = self._facts.get(look.name)
            is_away = self._is_away(look, now)
            if look.why and not is_away:
                continue  # as it was, or nothing is known of it
            after = self._away(before, look) if is_away else self._there(before, look)
            if before is None or before.state != after.state:
                after = msgspec.structs.replace(after, since_unix_ms=wall_unix_ms)
            self._facts[look.name] = after
        return [one for one in self._facts.values() if self._is_news(one, now)]

    def _is_away(self, look: Look, now: float) -> bool:
        answered = self._answered.setdefault(look.name, now)
        if not look.why:
            self._answered[look.name] = now
        return bool(look.why) and now - answered >= AWAY_S

    def _away(self, before: ClusterFacts | None, look: Look) -> ClusterFacts:
        known = before or ClusterFacts(name=look.name)
        return msgspec.structs.replace(known, zone=look.zone, state="away", why=look.why)

    def _there(self, before: ClusterFacts | None, look: Look) -> ClusterFacts:
        line = self._hot_share
        if before is not None and before.state == "hot":
            line -= COOLER
        is_hot = look.bound_bytes > 0 and look.used_bytes >= line * look.bound_bytes
        return ClusterFacts(
            name=look.name,
            zone=look.zone,
            state="hot" if is_hot else "well",
            hot_share=self._hot_share,
            used_bytes=look.used_bytes,
            bound_bytes=look.bound_bytes,
            since_unix_ms=before.since_unix_ms if before is not None else 0,
        )

    def _is_news(self, one: ClusterFacts, now: float) -> bool:
        told = self._told.get(one.name)
        if told is None or (told.state, told.zone) != (one.state, one.zone):
            return True
        if now - self._told_at.get(one.name, now - TOLD_EVERY_S) < TOLD_EVERY_S:
            return False
        has_moved = abs(told.used_share - one.used_share) >= TOLD_STEP
        return has_moved or told.bound_bytes != one.bound_bytes

    def told(self, facts: ClusterFacts, *, now: float) -> None:
        """They are written."""
        self._told[facts.name] = facts
        self._told_at[facts.name] = now

    def check(self) -> None:
        """Nothing is hot that has no bound, and a state has a time."""
        for facts in self._facts.values():
            assert facts.bound_bytes or facts.state != "hot"
            assert facts.since_unix_ms >= 0


def encoded(facts: ClusterFacts) -> str:
    """As the mark has them."""
    return msgspec.json.encode(facts).decode()


def read_facts(text: str | None) -> ClusterFacts | None:
    """Of one mark; None: there is none, or none that can be read: as if nobody had looked."""
    try:
        return msgspec.json.decode(text, type=ClusterFacts) if text else None
    except msgspec.MsgspecError:
        return None


def candidate(name: str, zone: str, facts: ClusterFacts | None, *, answers: bool) -> Candidate:
    """A cluster as who places a queue knows it; `answers`: this gateway itself, which knows better
    than a manager that may be gone, or may not reach it."""
    if not answers:
        return Candidate(name, zone, state="away")
    if facts is None:
        return Candidate(name, zone)
    state = facts.state
    if state == "away":
        state = "hot" if facts.used_share >= facts.hot_share else "well"
    return Candidate(name, zone or facts.zone, facts.used_share, state)
