"""A manager's duty in one storage cluster, to decide which of its servers may be elected.

The duty looks at all of them, lets `services.manager.rules.election` decide, carries the acts out,
and reports what it saw.
"""

import asyncio
import logging
import time
from typing import Final

import msgspec

from push.errors import TocsinError
from push.replicas import ReplicaAct, ShardView
from services.manager.leader import Leader
from services.manager.rules.election import AWAY_S, ClusterElectable, Electable, ShardRule
from services.manager.rules.leader import Patience
from storage.redis.connection import ConnectionCache
from storage.redis.ops.cluster import ClusterObserver, ClusterReplicaControl
from storage.redis.ops.failover import ReplicaControl
from storage.redis.ops.observe import ShardObserver, TermSuperseded, WatchedShard

LOOK_S: Final = 1.0
"""Seconds from the end of one step to the next, while all is well."""
SOON_S: Final = 0.1
"""Seconds from a step that has done an act to the next one, which waits only for its effect."""
WAITING_S: Final = 0.3
"""Seconds from one step to the next while publishing waits for a server that is being taken out."""
_LOG: Final = logging.getLogger("tocsin.manager")


class ServerTold(msgspec.Struct, frozen=True, kw_only=True):
    """A server in the report on a cluster. `state`: see `server_reports`; `since_s`: seconds for
    which a counted replica has confirmed nothing, as far as this manager knows; `behind_bytes`:
    bytes of the primary's stream of writes that a replica does not have, 0 if unknown; `why`: why
    it does not answer."""

    address: str
    state: str
    user: str = ""
    since_s: float = 0.0
    behind_bytes: int = 0
    why: str = ""


class ClusterTold(msgspec.Struct, frozen=True, kw_only=True):
    """The leading manager's report on one shard: a storage cluster is one, or several if it is a
    Redis Cluster."""

    name: str
    store: str
    """The store's URL, without a password."""
    seen_unix_s: float
    manager: str
    term: int
    primary: str
    replicas: int
    """R, the number of replicas that could be elected, as the shard has recorded it."""
    out: list[str]
    """Replicas that R does not count, sorted."""
    servers: list[ServerTold]
    sentinels: dict[str, str]
    """Sentinel → the primary that it names, or why it does not answer."""
    says: list[str]
    """Sentences about what the manager does, and what is wrong."""


class ClusterKeeper:
    """The duty of one shard, which has a name of its own in reports; `step` runs while this manager
    leads, one at a time. `away_s`: seconds after which a silent replica is taken out."""

    def __init__(
        self, name: str, store: str, watched: WatchedShard, *, away_s: float = AWAY_S
    ) -> None:
        self.name = name
        self._away_s = away_s
        self._store = store
        self._cache = ConnectionCache(watched.reach)
        self._observer: ShardObserver | ClusterObserver
        self._copying: ReplicaControl | ClusterReplicaControl
        self._new: type[ShardRule]
        if watched.in_cluster:
            self._observer = ClusterObserver(watched, self._cache)
            self._copying = ClusterReplicaControl(watched, self._cache)
            self._new = ClusterElectable
        else:
            self._observer = ShardObserver(watched, self._cache)
            self._copying = ReplicaControl(watched, self._cache)
            self._new = Electable
        self._rule: ShardRule = self._new(away_s=away_s)
        self._term = 0
        self._patience = Patience()
        self._said: list[str] = []
        self.report: ClusterTold | None = None
        """Report of the last step that has looked at the servers; None before the first one."""

    async def step(self, leader: Leader) -> float:
        """Look at the servers, do the acts that are due now, and return in how many seconds the
        next step is due."""
        try:
            view = await self._observer.look(leader.name, leader.term)
            if leader.term != self._term:
                silent_s = await self._silent_s(leader, view.primary)
                self._term = leader.term
                self._rule = self._new(away_s=self._away_s, silent_s=silent_s)
                self._patience.begin()
            now = asyncio.get_running_loop().time()
            acts = self._rule.saw(view, now=now)
            self._log()
            done = await self._do(acts, leader)
        except TermSuperseded as outdone:
            leader.on_superseded(outdone.term)
            return LOOK_S
        self.report = self._report_of(view, leader)
        if self._patience.is_over(is_held_up=not acts and is_held_up(view, self._rule), now=now):
            leader.give_way()
        if done:
            return SOON_S
        if self._rule.leaving():
            return WAITING_S
        return min(LOOK_S, max(SOON_S, self._rule.absences.due_s()))

    async def _silent_s(self, leader: Leader, primary: str) -> dict[str, float]:
        """Return address → seconds for which each server was silent when the previous leader
        reported, plus those for which that leader had not written the leader's row; {} if its
        report is about another primary. So a replica that fails just before its manager is not
        waited for twice, and one that is alive is seen to be."""
        try:
            text = await leader.last_report(self.name)
            told = msgspec.json.decode(text, type=ClusterTold) if text else None
        except (TocsinError, msgspec.DecodeError):
            return {}
        if told is None or told.primary != primary:
            return {}
        return {one.address: one.since_s + leader.stood_still_s for one in told.servers}

    async def _do(self, acts: list[ReplicaAct], leader: Leader) -> bool:
        """Carry the acts out while this manager leads; return whether any was done. False also if
        it leads no more."""
        done = False
        for act in acts:
            if not leader.leads or leader.term != self._term:
                return False
            try:
                if await self._copying.do(act, leader.name, self._term):
                    self._rule.did(act)
                    done = True
            except TocsinError as error:  # the next look tries again
                self._rule.says.append(error.detail)
                _LOG.warning("%s: %s", self.name, error.detail)
        return done

    def _log(self) -> None:
        """Log the sentences that are new, and once that all is well again."""
        said = self._rule.says
        for line in said:
            if line not in self._said:
                _LOG.warning("%s: %s", self.name, line)
        if self._said and not said:
            _LOG.info("%s: all counted replicas are there", self.name)
        self._said = list(said)

    def _report_of(self, view: ShardView, leader: Leader) -> ClusterTold:
        named = {place: f"names {one.primary}" for place, one in view.sentinels.items()}
        silent = {
            place: f"does not answer: {view.silent[place]}"
            for place in view.guards
            if place in view.silent
        }
        return ClusterTold(
            name=self.name,
            store=self._store,
            seen_unix_s=round(time.time(), 3),
            manager=leader.name,
            term=self._term,
            primary=view.primary,
            replicas=view.replicas,
            out=sorted(view.out),
            servers=server_reports(view, self._rule),
            sentinels=named | silent,
            says=list(self._rule.says),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._cache.close()


def is_held_up(view: ShardView, rule: ShardRule) -> bool:
    """Whether a replica is to be taken out while other servers or Sentinels do not answer this
    manager. Publishing waits until it is out, and another manager may reach the others."""
    leaving = rule.leaving()
    return bool(leaving) and bool(set(view.silent) - leaving)


def server_reports(view: ShardView, rule: ShardRule) -> list[ServerTold]:
    """Describe each known server, the primary first. Its state: primary, in sync, joining (not
    electable yet), syncing, away, out, or returning (out, and answers again)."""
    primary = view.servers.get(view.primary)
    followers = {one.place: one for one in primary.followers} if primary is not None else {}
    known = {*view.servers, *view.users, *view.out, *followers, view.primary} - {""}
    found = []
    for place in sorted(known, key=lambda one: (one != view.primary, one)):
        server, follower = view.servers.get(place), followers.get(place)
        behind = 0
        if place == view.primary:
            state = "primary" if server is not None else "away"
        elif place in view.out:
            state = "out" if server is None else "returning"
            if server is not None and primary is not None:
                behind = max(0, primary.offset - server.offset)
        elif follower is None:
            state = "away"
        elif not follower.is_online:
            state = "syncing"
        else:
            state = "in sync" if server is None or server.is_electable else "joining"
            behind = max(0, primary.offset - follower.offset) if primary is not None else 0
        found.append(
            ServerTold(
                address=place,
                state=state,
                user=view.users.get(place, ""),
                since_s=round(rule.absences.silent_s(place), 1),
                behind_bytes=behind,
                why=view.silent.get(place, ""),
            )
        )
    return found
