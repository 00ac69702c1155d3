"""The servers of a shard that could be elected, and how that set changes (R28). Pure.

Sentinels may elect any replica that they know, however old its data is. So everything acknowledged
is on each of them. A replica that is away is taken out in this order. Otherwise it could be elected
without messages that were acknowledged meanwhile:

    1. every server that is left locks its user out, durably: it cannot follow any of them any more
    2. each Sentinel forgets it, one after the other; because of 1. no server names it again
    3. R is lowered, and the shard says which are not counted (`out`), in one act on every copy

A replica that has come back is let in again in this order, or it could be elected before it has
everything:

    1. its priority is 0, durably, so that no Sentinel has it elected
    2. it follows a *replica*, so that the primary neither counts it nor waits for it meanwhile.
       (Where the primary is all that is left, it follows that.)
    3. it has everything, on its disk: R is raised and it is not `out` any more, in one act. From
       now on nothing is acknowledged without it
    4. it follows the primary, has all that was written before it was counted, and all others that
       could be elected know that it is counted: priority again

Every look decides anew from what is seen; nothing that matters is in a manager's memory alone.
Durable settings of a manager count only if this one has made them itself since that server was
started. A replica that is `out` and attached to the primary all the same puts every group of acts
in doubt (`storage.redis.replication`), so nothing is acknowledged on the strength of it.

`ShardRule` is the part that the rules for Sentinels and for a Cluster share (R28). Pure.

Its steps are asked in their order. The acts of the first step that has any are done before the next
look.

`Absences` knows which replicas are away, since when, and which were let in again in vain. Pure.

`with_more`, `attached_to` and `named` count and describe what a look at a shard has found. Pure.

**In a Cluster** no replica is elected that the other nodes do not know, because they ignore its
request for votes. So what Sentinels forget elsewhere, the nodes forget here. All of them do so at
once, because a node that still knows it tells the others after a minute.
A replica that is away is taken out in this order:

    1. every node of the Cluster that is left forgets it
    2. R is lowered, and the shard says that it is `out`, in one act on every copy

When it is back, it goes on following its primary by itself, and is then

    1. counted at once: R is raised, and publishing at `all` waits until it has everything
    2. known again, so that it may be elected. It must first have all that was written before it was
       counted, those of its shard that could be elected must know that it is counted, and it must
       have forgotten the nodes that others have forgotten

The rule does not use how long a replica was cut off (cluster-replica-validity-factor). A replica
that was frozen, machine and all, does not know how long that was, and would be elected.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from push.replicas import (
    Elect,
    Follow,
    Forget,
    LetIn,
    LockOut,
    Meet,
    Prepare,
    RecordReplicas,
    ReplicaAct,
    Reset,
    ShardServer,
    ShardView,
)

LOOKED_S: Final = 8.0
"""Seconds between two looks after which the time between them is unknown. A look takes a few
seconds where servers do not answer."""
SILENT_S: Final = 2.0
"""Seconds without a confirmation after which a replica is silent; replicas confirm every second."""
AGAIN_S: Final = (60.0, 3600.0)
"""Seconds before a replica is let in again that went away before it had everything: the first time,
and at most, after they have doubled each time. Publishing waits for a replica that is let in."""


class Absences:
    """Absences in a shard as one manager sees them, by its own clock. `silent_s`: for how long, at
    least, each replica had confirmed nothing when the previous manager looked last."""

    def __init__(self, away_s: float, silent_s: Mapping[str, float] | None = None) -> None:
        self._away_s = away_s
        self._told_s = dict(silent_s or {})
        self._heard_at: dict[str, float] = {}
        """Counted replica → when it is known to have confirmed last, or else when it was first
        missed."""
        self._primary = ""
        self._now = 0.0
        self._out: frozenset[str] = frozenset()
        self._trying: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def saw(
        self, primary: ShardServer, members: Collection[str], out: frozenset[str], *, now: float
    ) -> None:
        """Note which of the counted replicas (`members`) confirm writes to the primary at `now`.
        `out`: the replicas that are not counted."""
        if primary.place != self._primary or now - self._now > LOOKED_S:
            self._heard_at = {}
        self._primary, self._now = primary.place, now
        followers = {one.place: one for one in primary.followers}
        heard = {}
        for place in members:
            before = self._heard_at.get(place, now - self._told_s.get(place, 0.0))
            follower = followers.get(place)
            if follower is not None and follower.is_online:
                heard[place] = max(before if place in self._heard_at else 0.0, now - follower.lag_s)
            else:  # a replica that is being copied to confirms nothing either, for minutes
                heard[place] = before
        self._heard_at, self._told_s = heard, {}
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
        """Note that a replica that was let in has everything, and forget that it went away
        before."""
        self._trying.discard(place)
        self._failures.pop(place, None)

    def unseen(self) -> None:
        """Note that the primary was not seen, so its followers are unknown."""
        self._primary = ""

    def away(self) -> set[str]:
        """Return the counted replicas that have confirmed nothing for `away_s`."""
        return {place for place in self._heard_at if self.silent_s(place) >= self._away_s}

    def silent(self) -> set[str]:
        """Return the counted replicas that have confirmed nothing for SILENT_S."""
        return {place for place in self._heard_at if self.silent_s(place) >= SILENT_S}

    def due_s(self) -> float:
        """Return in how many seconds the next silent replica counts as away; infinity if there is
        none."""
        left = [self._away_s - self.silent_s(place) for place in self.silent()]
        return min((some for some in left if some > 0), default=float("inf"))

    def silent_s(self, place: str) -> float:
        """Return for how many seconds a replica has confirmed nothing, as far as this manager
        knows; 0 if it is not counted."""
        return self._now - self._heard_at.get(place, self._now)

    def later_s(self, place: str) -> float:
        """Return in how many seconds a replica may be let in again; 0 if it may at once."""
        return max(0.0, self._not_before.get(place, 0.0) - self._now)


def with_more(view: ShardView, members: Collection[str], count: int) -> int:
    """Return the new R if `count` more replicas than these members are counted. An R that is high
    enough for them already stays as it is, because a higher one would wait for nobody."""
    return view.replicas + min(count, max(0, len(members) + count - view.replicas))


def attached_to(view: ShardView) -> set[str]:
    """Return the followers of the primary, in any state."""
    primary = view.servers.get(view.primary)
    return {one.place for one in primary.followers} if primary is not None else set()


def named(view: ShardView) -> str:
    """Describe which primary the Sentinels name, and which servers and Sentinels do not answer."""
    said = [f"{place} names {one.primary}" for place, one in sorted(view.sentinels.items())]
    silent = [f"{place}: {why}" for place, why in sorted(view.silent.items())]
    return "; ".join([*said, *silent]) or "no server answers"


def listed(places: Iterable[str]) -> str:
    """List places for people."""
    return ", ".join(sorted(places))


def told(act: ReplicaAct) -> str:
    """Describe an act for people."""
    match act:
        case LockOut():
            return f"{act.at} locks {act.user} out"
        case LetIn():
            return f"{act.at} lets {act.user} in"
        case Prepare():
            return f"{act.at} is not to be elected"
        case Elect():
            return f"{act.at} has everything, and may be elected"
        case Follow():
            return f"{act.at} is to follow {act.primary}"
        case Reset():
            return f"the Sentinel {act.sentinel} is to forget servers that are away"
        case Forget():
            return f"{act.at} is to forget {act.node_id}"
        case Meet():
            return f"{act.at} is to know {act.place}"
        case RecordReplicas():
            out = f"; not counted: {listed(act.out)}" if act.out else ""
            return f"R changes from {act.replicas_before} to {act.replicas}{out}"


AWAY_S: Final = 10.0
"""Default of the seconds without a confirmation after which a replica is taken out."""
Step = Callable[[ShardServer], list[ReplicaAct]]
"""Returns the acts that are due, given the primary."""


class ShardRule(ABC):
    """The rule for one shard, while one manager leads. Times are seconds of its clock. `away_s`:
    time after which a silent replica is taken out. `silent_s`: for how long, at least, each replica
    had confirmed nothing when the previous manager looked last."""

    def __init__(
        self, *, away_s: float = AWAY_S, silent_s: Mapping[str, float] | None = None
    ) -> None:
        self.says: list[str] = []
        """Sentences of the last look: what is done, what it waits for, what is wrong."""
        self.absences = Absences(away_s, silent_s)
        """Times since which counted replicas have confirmed nothing, and those from which on
        replicas that went away may be let in again."""
        self._view = ShardView("", {}, {})
        self._before = ShardView("", {}, {})
        self._counted: set[str] = set()
        """Replicas that R counted at the look before this one; none if R was too low for all of
        them."""

    def saw(self, view: ShardView, *, now: float) -> list[ReplicaAct]:
        """Note a look; return what is to be done now, in any order, before the next one. An empty
        list if all is well, or something has to be waited for, which `says` explains."""
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
        """Return the steps, in the order in which `saw` calls them until one returns acts."""

    @abstractmethod
    def did(self, act: ReplicaAct) -> None:
        """Note an act that was done, all of it. An act that was tried and may not have been done is
        not noted, and so is tried again."""

    @abstractmethod
    def leaving(self) -> set[str]:
        """Return the replicas that are to be taken out, because they were away for too long and are
        still counted."""

    def members(self) -> set[str]:
        """Return the known replicas that R counts, without the primary."""
        view = self._view
        known = {place for sentinel in view.sentinels.values() for place in sentinel.replicas}
        return (known | set(view.users) | attached_to(view)) - view.out - {view.primary}

    def _why_not_whole(self, server: ShardServer) -> str:
        """Return why a server may lack a part of what the primary had at the last look; "" if it
        has it all, on disk."""
        view, before = self._view, self._before
        past = before.servers.get(view.primary)
        if not server.is_linked:
            return "its link is down, or it does not have everything yet"
        if server.unready:
            return server.unready
        if past is None or before.primary != view.primary:
            return "this was the first look at it"
        if server.offset < past.offset:
            return f"{past.offset - server.offset} bytes are missing"
        return ""

    def _unaware(self, primary: ShardServer, could: set[str]) -> set[str]:
        """Return the replicas in `could` that have not confirmed what the primary had at the last
        look, perhaps not the R of then. Elected, such a replica would acknowledge without the one
        that is being let in, and that one could be elected after it."""
        past = self._before.servers.get(primary.place)
        if past is None or self._before.primary != primary.place:
            return could
        have = {one.place for one in primary.followers if one.is_online}
        have -= {one.place for one in primary.followers if one.offset < past.offset}
        return could - have


# enforces: R28
class Electable(ShardRule):
    """The rule of a shard that Sentinels guard."""

    def __init__(
        self, *, away_s: float = AWAY_S, silent_s: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(away_s=away_s, silent_s=silent_s)
        self._done: set[tuple[str, str, str]] = set()
        """Locks and priorities that this manager has set: (server, its start, the user locked out
        there, or "" when it is prepared)."""

    def _steps(self) -> Sequence[Step]:
        return self._raise, self._take_out, self._bar, self._let_in, self._admit

    def did(self, act: ReplicaAct) -> None:
        at = act.at if isinstance(act, LockOut | LetIn | Prepare | Elect) else ""
        server = self._view.servers.get(at)
        if server is None:
            return
        match act:
            case LockOut(user=user):
                self._done.add((at, server.run_id, user))
            case LetIn(user=user):
                self._done.discard((at, server.run_id, user))
            case Prepare():
                self._done.add((at, server.run_id, ""))
            case Elect():
                self._done.discard((at, server.run_id, ""))
                self.absences.stays(at)
            case _:
                pass

    # --- Who is there ----------------------------------------------------------------------------

    def leaving(self) -> set[str]:
        """Return the replicas that were away for too long and are still counted."""
        return self.members() & self.absences.away()

    def staying(self) -> set[str]:
        """Return the primary, and the replicas that R counts once those that are leaving have
        left."""
        return (self.members() - self.leaving()) | {self._view.primary}

    def _kept(self) -> list[str]:
        """Return the replicas that are counted, follow the primary, and answer."""
        view = self._view
        online = {one.place for one in view.servers[view.primary].followers if one.is_online}
        return sorted(online & self.members() & set(view.servers))

    def _could_be(self) -> set[str]:
        """Return the counted replicas, without those that answer and have the priority 0."""
        barred = {one.place for one in self._view.servers.values() if not one.is_electable}
        return self.members() - barred

    # --- R is never below what could be elected --------------------------------------------------

    def _raise(self, primary: ShardServer) -> list[ReplicaAct]:
        view = self._view
        known = {place for sentinel in view.sentinels.values() for place in sentinel.replicas}
        could = (known | attached_to(view)) - view.out - {view.primary}
        if len(could) > view.replicas:
            self.says.append(f"{len(could)} replicas could be elected, but R is {view.replicas}")
            return [self._count(len(could), view.out)]
        if len(self.members()) < view.replicas:
            self.says.append(
                f"R is {view.replicas}, but only {len(self.members())} replicas were ever seen. If "
                "there are no others, run `tocsin admin set-replicas`"
            )
        return []

    def _count(self, replicas: int, out: Iterable[str]) -> RecordReplicas:
        view = self._view
        return RecordReplicas(view.replicas, view.out, replicas, frozenset(out))

    # --- Taking out ------------------------------------------------------------------------------

    def _take_out(self, primary: ShardServer) -> list[ReplicaAct]:
        view, leaving = self._view, self.leaving()
        if not leaving:
            return []
        why = self._why_not(leaving)
        if why:  # those that are back meanwhile may as well be let in
            self.says.append(f"{listed(leaving)} cannot be taken out: {why}")
            return self._let_in_at(self.staying(), leaving & set(view.servers))
        locks = self._locks(self.staying(), leaving)
        if locks:
            return locks
        knowing = self._knowing(leaving)
        if knowing:
            return self._reset(knowing)
        counted = len(self.members())
        lower = view.replicas - len(leaving)
        if view.replicas < counted:  # an operator has lowered it already
            lower = min(view.replicas, counted - len(leaving))
        return [self._count(lower, view.out | leaving)]

    def _why_not(self, some: set[str]) -> str:
        """Return why the replicas `some` cannot be excluded now; "" if they can."""
        view = self._view
        for place in sorted(some):
            user = view.users.get(place, "")
            if not user:
                return f"the user with which {place} follows (masteruser) is unknown"
            if sum(user == other for other in view.users.values()) > 1:
                return f"{place} is the user {user}, and so is another server"
        unheard = sorted(self.staying() - set(view.servers))
        if unheard:
            return "; ".join(f"{one}: {view.silent.get(one, 'no reply')}" for one in unheard)
        return self._why_no_reset()

    def _why_no_reset(self) -> str:
        """Return why Sentinels cannot be made to forget a replica; "" if they can."""
        view = self._view
        for place in sorted(view.guards):
            sentinel = view.sentinels.get(place)
            if sentinel is None:
                return f"the Sentinel {place}: {view.silent.get(place, 'no reply')}"
            if sentinel.primary != view.primary or not sentinel.is_calm:
                return f"the Sentinel {place} is not content with the primary {view.primary}"
            others = sentinel.others - view.guards
            if others:
                return f"the Sentinel {place} knows {listed(others)}, which the URL does not name"
        return ""

    def _locks(self, at: Iterable[str], out: Iterable[str], *, but: str = "") -> list[ReplicaAct]:
        """Return the locks that are still missing so that none of the replicas `out` can follow a
        server in `at`, except the server `but`."""
        view = self._view
        servers = [view.servers[place] for place in sorted(at) if place in view.servers]
        return [
            LockOut(server.place, user)
            for server in servers
            for user in sorted(view.users[place] for place in out if place in view.users)
            if user
            and server.place != but
            and (
                user not in server.locked
                or (server.place, server.run_id, user) not in self._done
                or any(view.users.get(one.place) == user for one in server.followers)
            )
        ]

    def _knowing(self, some: set[str]) -> list[str]:
        """Return the Sentinels that know any of these replicas."""
        return sorted(
            place for place, sentinel in self._view.sentinels.items() if sentinel.replicas & some
        )

    def _reset(self, knowing: list[str]) -> list[ReplicaAct]:
        """Have one Sentinel forget, if every other one knows all replicas that are kept. If the
        primary is lost at this moment, these others replace it."""
        view, kept = self._view, set(self._kept())
        for place, sentinel in sorted(view.sentinels.items()):
            if place != knowing[0] and not kept <= sentinel.replicas:
                self.says.append(f"waiting until the Sentinel {place} knows all replicas again")
                return []
        return [Reset(knowing[0], frozenset(kept))]

    # --- Replicas that are out stay out ----------------------------------------------------------

    def _bar(self, primary: ShardServer) -> list[ReplicaAct]:
        """Lock out every replica that is out, also if somebody has let it in, except at the server
        from which it gets what it has missed; and make Sentinels forget it."""
        view = self._view
        acts: list[ReplicaAct] = []
        for place in sorted(view.out):
            acts += self._locks(self.staying() - {place}, [place], but=self._host(place))
        if acts:
            return acts
        barred = {place for place in view.out if self._host(place) != view.primary}
        knowing = self._knowing(barred)
        why = self._why_no_reset() if knowing else ""
        if why:
            self.says.append(f"{listed(barred)} cannot be forgotten: {why}")
        elif knowing:
            return self._reset(knowing)
        return []

    # --- Letting in ------------------------------------------------------------------------------

    def _host(self, place: str) -> str:
        """Return the server from which a replica that is out gets what it has missed: a replica, or
        the primary if R is 0. "" if it can get it nowhere now."""
        view = self._view
        server = view.servers.get(place)
        if server is None or (place, server.run_id, "") not in self._done:
            return ""
        if server.is_electable or self._why_not_let_in(place):
            return ""
        if view.replicas == 0:
            return view.primary
        kept = self._kept()
        return server.follows if server.follows in kept else next(iter(kept), "")

    def _why_not_let_in(self, place: str) -> str:
        view = self._view
        user = view.users.get(place, "")
        if not user or sum(user == other for other in view.users.values()) > 1:
            return f"it needs a user of its own with which it follows (masteruser: {user or '-'})"
        later_s = self.absences.later_s(place)
        if later_s > 0:
            return f"it was let in, but never had everything; next try in {later_s:.0f} s"
        asked = [sentinel.primary for sentinel in view.sentinels.values()]
        if any(named != view.primary for named in asked) or 2 * len(asked) < len(view.guards):
            return "the Sentinels do not agree about the primary"
        return ""

    def _let_in(self, primary: ShardServer) -> list[ReplicaAct]:
        """Return the next acts to let in the first replica that is out, answers, and need not
        wait."""
        view = self._view
        for place in sorted(view.out & set(view.servers)):
            why = self._why_not_let_in(place)
            if why:
                self.says.append(f"{place} is out: {why}")
                continue
            server = view.servers[place]
            if server.is_electable or (place, server.run_id, "") not in self._done:
                return [Prepare(place)]
            acts = self._locks([place], view.out - {place})
            acts += self._let_in_at([place], self.staying())
            host = self._host(place)
            if not host:
                self.says.append(f"{place} is out: there is no replica that it could follow")
                continue
            acts += self._let_in_at([host], [place])
            if acts:
                return acts
            if server.follows != host:
                return [Follow(place, host)]
            why = self._why_not_whole(server)
            if why:
                self.says.append(f"{place} is out, and copies missing data from {host}: {why}")
                continue
            return [self._count(with_more(view, self.members(), 1), view.out - {place})]
        return []

    def _let_in_at(self, at: Iterable[str], some: Iterable[str]) -> list[ReplicaAct]:
        """Return the permissions that are still missing so that the replicas `some` may follow the
        servers in `at`."""
        view = self._view
        return [
            LetIn(place, user)
            for place in sorted(at)
            if place in view.servers
            for user in sorted(view.users[one] for one in some if one in view.users)
            if user in view.servers[place].locked
        ]

    # --- Electable again -------------------------------------------------------------------------

    def _admit(self, primary: ShardServer) -> list[ReplicaAct]:
        """Let the counted replicas that are not silent follow every server that stays. A replica
        that is not electable yet follows the primary, and becomes electable once it has all that
        was written before it was counted."""
        view = self._view
        away = self.absences.silent()
        there = {place for place in self.staying() if place not in away}
        acts: list[ReplicaAct] = self._let_in_at(self.staying(), there)
        online = {one.place: one for one in primary.followers if one.is_online}
        for place in sorted(self.members() & set(view.servers)):
            server = view.servers[place]
            if server.is_electable:
                continue
            if server.follows != view.primary:
                acts.append(Follow(place, view.primary))
                continue
            why = "" if place in online else "it is not attached"
            why = why or self._why_not_whole(server)
            if not why and place not in self._counted:
                why = "it was counted just now"
            unaware = self._unaware(primary, self._could_be() - {place})
            if not why and unaware:
                why = f"{listed(unaware)} may not have heard that it is"
            if why:
                self.says.append(f"{place} is counted, but not electable yet: {why}")
            else:
                acts.append(Elect(place))
        if not primary.is_electable:
            acts.append(Elect(view.primary))
        return acts


# --- In a Cluster ---------------------------------------------------------------------------


# enforces: R28
class ClusterElectable(ShardRule):
    """The rule of a shard of a Cluster."""

    def _steps(self) -> Sequence[Step]:
        return self._count_in, self._take_out, self._bar, self._meet

    def did(self, act: ReplicaAct) -> None:
        """Note of `Meet` that the replica has everything; no other act has to be remembered."""
        if isinstance(act, Meet):
            self.absences.stays(act.place)

    def leaving(self) -> set[str]:
        """Return the replicas to exclude: those that the shard's R still counts, and that were away
        for too long. A replica that is attached to the primary, in whatever state, is not one of
        them, because the next look would count it again."""
        return (self.members() & self.absences.away()) - attached_to(self._view)

    def _count_in(self, primary: ShardServer) -> list[ReplicaAct]:
        """Raise R and shorten `out`, so that every replica that is attached to the primary is
        counted."""
        view = self._view
        attached = attached_to(view)
        back = attached & view.out
        replicas = max(with_more(view, self.members(), len(back)), len(attached))
        if back or replicas > view.replicas:
            return [RecordReplicas(view.replicas, view.out, replicas, view.out - back)]
        return []

    def _take_out(self, primary: ShardServer) -> list[ReplicaAct]:
        view, leaving = self._view, self.leaving()
        if not leaving:
            return []
        gone = {view.users[place] for place in leaving if place in view.users}
        if len(gone) < len(leaving):
            self.says.append(f"{', '.join(sorted(leaving))} cannot be taken out: it has no id")
            return []
        others = {place for node_id, place in view.places.items() if node_id not in gone}
        forget: list[ReplicaAct] = [
            Forget(place, node_id)
            for place in sorted(others & set(view.knows))
            for node_id in sorted(view.knows[place] & gone)
        ]
        if forget:
            return forget
        unheard = sorted(others - set(view.knows))
        if unheard:
            self.says.append(
                f"{', '.join(sorted(leaving))} cannot be taken out, because these may know it: "
                + "; ".join(f"{one}: {view.silent.get(one, 'no reply')}" for one in unheard)
            )
            return []
        lower = max(view.replicas - len(leaving), len(self.members()) - len(leaving))
        return [
            RecordReplicas(view.replicas, view.out, min(lower, view.replicas), view.out | leaving)
        ]

    def _bar(self, primary: ShardServer) -> list[ReplicaAct]:
        """Make every node that knows a replica that is out forget it. A node that was away at the
        time, and is back, may know it still, and would tell the others."""
        view = self._view
        out = {view.users[place]: place for place in view.out if place in view.users}
        return [
            Forget(at, node_id)
            for at, known in sorted(view.knows.items())
            for node_id in sorted(known & set(out))
            if out[node_id] != at
        ]

    def _meet(self, primary: ShardServer) -> list[ReplicaAct]:
        """Make replicas known again that are counted, whole, and not known to their primary. The
        other nodes learn of it from the primary, a minute after they have forgotten it."""
        view = self._view
        online = {one.place for one in primary.followers if one.is_online}
        acts: list[ReplicaAct] = []
        for place in sorted(self.members() & set(view.servers)):
            node_id = view.users.get(place, "")
            if node_id in view.knows.get(view.primary, frozenset()):
                knowing = sum(node_id in known for known in view.knows.values())
                if knowing < len(view.knows):
                    self.says.append(
                        f"{place} is so far known to {knowing} of {len(view.knows)} nodes"
                    )
                continue
            why = "" if place in online else "it is not attached"
            if not why and place not in self._counted:
                why = "it was counted just now"
            why = why or self._why_not_whole(view.servers[place])
            unaware = self._unaware(primary, self._could_be() - {place})
            if not why and unaware:
                why = f"{', '.join(sorted(unaware))} may not have heard that it is"
            if why:
                self.says.append(f"{place} is counted, but could not be elected yet: {why}")
            else:
                acts += self._stale(place) or [Meet(view.primary, place)]
        return acts

    def _could_be(self) -> set[str]:
        """Return the counted replicas that the primary knows."""
        known = self._view.knows.get(self._view.primary, frozenset())
        return {place for place in self.members() if self._view.users.get(place) in known}

    def _stale(self, place: str) -> list[ReplicaAct]:
        """Make a replica forget nodes that its primary does not know, before it is known again
        itself. These were forgotten, perhaps in another shard, while this replica was out of reach.
        It would tell the others of them."""
        knows, own = self._view.knows, self._view.users.get(place)
        known = knows.get(place, frozenset()) - knows.get(self._view.primary, frozenset())
        return [Forget(place, node_id) for node_id in sorted(known - {own})]
