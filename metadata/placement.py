"""Storage clusters: their facts, where a new queue's partitions go, and whether they suffice. Pure.

Places. A queue is spread over all clusters that take new partitions, zone by zone. So a lost
cluster takes a part of each queue with it, and not all of some. A cluster with more room takes
more. Nothing new goes to a cluster that is hot or away. If all are hot, the queue is created all
the same, and is spread over all of them. There are three reasons: an empty queue takes no room,
dead letters need their queue at any time, and publishing stops by itself below the reserve (R29).
If no cluster answers, the queue is refused. The same facts and queue give the same places on every
gateway.

    well ── used ≥ hot_share ──▶ hot ── used < hot_share - COOLER ──▶ well
    any  ── not answered for AWAY_S ──▶ away ── answers ──▶ well or hot

Facts. A manager probes the clusters and keeps these facts as marks of the catalog. A gateway that
places a new queue finds them there, also while no manager runs. A fact is written when it has
changed, and not at each probe.

    enough ── all that answer are hot, for HOLD_S ──▶ add
    enough ── all are idle, two at least, one of them empty, for HOLD_S ──▶ remove
    add, remove ── the condition no longer holds, for HOLD_S ──▶ enough

Wishes. Each wish for more or fewer clusters has a number, and is kept in the catalog before its
hook is called. So a manager that takes over knows the last one. It calls again, under the same
number, if that call may not have happened.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from typing import Final, Literal

import msgspec

from push.errors import Refused

State = Literal["well", "hot", "away"]
"""`well`: takes new partitions; `hot`: has too little room left; `away`: does not answer."""
USED_UNKNOWN: Final = 0.5
"""Assumed used share of a cluster that has not been probed yet."""
FREE_MIN: Final = 0.01
CYCLE_MAX: Final = 32
"""Largest number of places in a queue's row. Its partitions go through them in turn."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A storage cluster, as far as it is known. Clusters in one `zone` may be lost together; it is
    "" if unknown. `used_share` is the share of its memory that is used; None if unknown."""

    name: str
    zone: str = ""
    used_share: float | None = None
    state: State = "well"

    @property
    def free_share(self) -> float:
        """Free share of the cluster's memory; 1 - USED_UNKNOWN if it is unknown. At least FREE_MIN,
        so that it can be a divisor."""
        used = USED_UNKNOWN if self.used_share is None else self.used_share
        return max(FREE_MIN, 1 - used)


def place(
    queue_id: str, partitions: int, candidates: Sequence[Candidate], *, is_bounded: bool
) -> tuple[str, ...]:
    """Return the names of the clusters that the queue's partitions go through in turn, as the
    shortest list that says so: partition n is at the n-th of them, modulo their number.

    `is_bounded`: whether publishing is refused at a bound of what the queue retains. All partitions
    then go to one cluster, which alone can count exactly.

    Raises:
        Refused: storage_unavailable when no cluster answers.
    """
    usable = [one for one in candidates if one.state == "well"]
    usable = usable or [one for one in candidates if one.state == "hot"]
    if not usable:
        raise Refused("storage_unavailable", "no storage cluster answers, so none takes the queue")
    order = _order(queue_id, usable)
    if is_bounded:
        return (order[0].name,)
    counts = dict.fromkeys(order, 0)
    cycle: list[str] = []
    for number in range(min(partitions, CYCLE_MAX)):
        if number < len(order):
            taken = order[number]
        else:  # the highest quotient, as D'Hondt shares out seats
            taken = max(order, key=lambda one: one.free_share / (counts[one] + 1))
        counts[taken] += 1
        cycle.append(taken.name)
    return _period(cycle)


def _order(queue_id: str, usable: Sequence[Candidate]) -> list[Candidate]:
    """Order the clusters for this queue: by chance, weighted by room, and one of every zone before
    the second of any."""
    raced = sorted(usable, key=lambda one: (_race(queue_id, one), one.name))
    in_zone: dict[str, int] = {}
    ranks: list[tuple[int, int, Candidate]] = []
    for place_in_race, one in enumerate(raced):
        zone = one.zone or f"-{one.name}"  # without a zone it is one of its own
        ranks.append((in_zone.get(zone, 0), place_in_race, one))
        in_zone[zone] = in_zone.get(zone, 0) + 1
    return [one for _, _, one in sorted(ranks, key=lambda rank: rank[:2])]


def _race(queue_id: str, one: Candidate) -> float:
    """Return a pseudo-random number for this queue and cluster, from an exponential distribution of
    the rate `free_share`. So a cluster has the lowest number of all as often as its share of the
    free room says."""
    digest = blake2b(f"{queue_id}:{one.name}".encode(), digest_size=8).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -log(drawn) / one.free_share


def _period(cycle: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest beginning of the list that gives the list when it is repeated a whole
    number of times: (a, b) of (a, b, a, b). Without a repetition it is the list itself."""
    for length in range(1, len(cycle)):
        if len(cycle) % length == 0 and all(
            cycle[place] == cycle[place % length] for place in range(len(cycle))
        ):
            return tuple(cycle[:length])
    return tuple(cycle)


HOT_SHARE: Final = 0.8
"""Default of the used share of a cluster's memory from which on nothing new is placed there."""
COOLER: Final = 0.1
"""Share by which a hot cluster must fall below `hot_share` before it is well again, so that a
cluster at `hot_share` is not hot and well in turns."""
IDLE_SHARE: Final = 0.2
AWAY_S: Final = 10.0
"""Seconds without an answer, by the observer's clock, after which a cluster is away."""
TOLD_EVERY_S: Final = 10.0
"""Least seconds between two writes of a cluster's used share, because every gateway reads each
change of a mark."""
TOLD_STEP: Final = 0.02
"""Change of the used share that is worth a write; smaller ones hardly change a placement."""
CLUSTER_MARK: Final = "storage cluster "
"""Beginning of the name of the mark that holds a cluster's facts; the cluster's name follows."""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A manager's findings about one cluster."""

    name: str
    zone: str = ""
    state: State = "well"
    used_bytes: int = 0
    """Memory used by the fullest primary, as it counts for its bound."""
    bound_bytes: int = 0
    """Bound of that primary; 0 if it has none, and then the cluster is never hot."""
    since_unix_ms: int = 0
    """Time at which a manager first found the cluster in this state."""
    why: str = ""
    """Last error of a cluster that is away; "" if it is not away."""
    hot_share: float = HOT_SHARE
    """Used share from which on the manager calls this cluster hot (--hot-percent)."""

    @property
    def used_share(self) -> float:
        """Used share of the bound; 0 without a bound. Above 1 if acknowledgements went beyond the
        bound."""
        return self.used_bytes / self.bound_bytes if self.bound_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ClusterProbe:
    """Result of one probe of a cluster. `why` says why it did not answer; "" if it did."""

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
        """All facts, sorted by cluster name."""
        return [facts for _, facts in sorted(self._facts.items())]

    def looked(
        self, looks: Sequence[ClusterProbe], *, now: float, wall_unix_ms: int
    ) -> list[ClusterFacts]:
        """Note a probe of all clusters; return the facts that must be written to the catalog. A
        cluster that was not probed is forgotten."""
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

    def _is_away(self, look: ClusterProbe, now: float) -> bool:
        answered = self._answered.setdefault(look.name, now)
        if not look.why:
            self._answered[look.name] = now
        return bool(look.why) and now - answered >= AWAY_S

    def _away(self, before: ClusterFacts | None, look: ClusterProbe) -> ClusterFacts:
        known = before or ClusterFacts(name=look.name)
        return msgspec.structs.replace(known, zone=look.zone, state="away", why=look.why)

    def _there(self, before: ClusterFacts | None, look: ClusterProbe) -> ClusterFacts:
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
        """Note that the catalog has these facts."""
        self._told[facts.name] = facts
        self._told_at[facts.name] = now

    def check(self) -> None:
        """Assert that a cluster without a bound is not hot, and that no time is negative."""
        for facts in self._facts.values():
            assert facts.bound_bytes or facts.state != "hot"
            assert facts.since_unix_ms >= 0


def encode_facts(facts: ClusterFacts) -> str:
    """Encode facts as the text of a mark."""
    return msgspec.json.encode(facts).decode()


def read_facts(text: str | None) -> ClusterFacts | None:
    """Decode the mark of a cluster's facts; None if there is none or it is unreadable, as if nobody
    had probed the cluster."""
    try:
        return msgspec.json.decode(text, type=ClusterFacts) if text else None
    except msgspec.MsgspecError:
        return None


def candidate(name: str, zone: str, facts: ClusterFacts | None, *, answers: bool) -> Candidate:
    """Make a candidate as this gateway sees a cluster. `answers`: whether the cluster answers this
    gateway. This alone decides whether it is away, and not the facts, because the manager may be
    gone, or may not reach the cluster."""
    if not answers:
        return Candidate(name, zone, state="away")
    if facts is None:
        return Candidate(name, zone)
    state = facts.state
    if state == "away":
        state = "hot" if facts.used_share >= facts.hot_share else "well"
    return Candidate(name, zone or facts.zone, facts.used_share, state)


Kind = Literal["enough", "add", "remove"]
HOLD_S: Final = 60.0
"""Seconds for which a finding must hold before it becomes a wish."""
SCALING_MARK: Final = "storage scaling"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A manager's wish for more or fewer clusters. `clusters`: those that it would remove; a wish
    to add one names none."""

    number: int = 0
    kind: Kind = "enough"
    clusters: tuple[str, ...] = ()
    since_unix_ms: int = 0
    is_told: bool = True
    """Whether the hook was called for this wish and succeeded. True also if nothing was ever
    wished."""
    has_hook: bool = False
    """Whether the manager has a hook, which may fulfil the wish. Without a hook the wish is only
    logged."""


class Scaling:
    """The current wish, as one manager knows it. `now` is in seconds of its own clock."""

    def __init__(self, wish: Wish | None = None) -> None:
        self.wish = wish or Wish()
        self._other: tuple[Kind, tuple[str, ...]] | None = None
        self._other_since = 0.0

    def looked(
        self,
        facts: Sequence[ClusterFacts],
        in_use: Collection[str],
        *,
        now: float,
        wall_unix_ms: int,
    ) -> Wish | None:
        """Note a probe of all clusters. `in_use`: those that have partitions of some queue, or the
        catalog. Returns a wish that must be stored and sent to the hook now; None if the wish has
        not changed, or if other facts have not held for HOLD_S yet."""
        found = wish_for(facts, in_use)
        if found == (self.wish.kind, self.wish.clusters):
            self._other = None
            return None
        if found != self._other:
            self._other, self._other_since = found, now
        if now - self._other_since < HOLD_S:
            return None
        kind, clusters = found
        return Wish(
            number=self.wish.number + 1,
            kind=kind,
            clusters=clusters,
            since_unix_ms=wall_unix_ms,
            is_told=False,
        )

    def kept(self, wish: Wish) -> None:
        """Note that the catalog has the wish."""
        assert wish.number >= self.wish.number
        self.wish = wish
        self._other = None

    def next_deadline(self) -> float:
        """Return the time at which a finding other than the wish will have held for HOLD_S;
        infinity if there is none."""
        return float("inf") if self._other is None else self._other_since + HOLD_S


def wish_for(
    facts: Sequence[ClusterFacts], in_use: Collection[str]
) -> tuple[Kind, tuple[str, ...]]:
    """Return kind and clusters (those to remove) of the wish that these facts alone suggest."""
    answering = [one for one in facts if one.state != "away"]
    if answering and all(one.state == "hot" for one in answering):
        return "add", ()
    # How idle a cluster is that is away is not known.
    is_idle = len(answering) == len(facts) > 1 and all(
        one.bound_bytes and one.used_share < IDLE_SHARE for one in facts
    )
    empty = tuple(sorted(one.name for one in facts if one.name not in in_use))
    return ("remove", empty[:1]) if is_idle and empty else ("enough", ())


def read_wish(text: str | None) -> Wish | None:
    """Decode the mark SCALING_MARK; None if there is none, or it is unreadable."""
    try:
        return msgspec.json.decode(text, type=Wish) if text else None
    except msgspec.MsgspecError:
        return None


def clusters_to_remove(text: str | None) -> tuple[str, ...]:
    """Return the clusters that the hook is to remove, by the text of SCALING_MARK. Nothing new is
    placed on them. () without such a wish, or if the manager has no hook: then all stay in use."""
    wish = read_wish(text)
    return wish.clusters if wish is not None and wish.kind == "remove" and wish.has_hook else ()


def encode_wish(wish: Wish) -> str:
    """Encode a wish as the text of SCALING_MARK."""
    return msgspec.json.encode(wish).decode()
