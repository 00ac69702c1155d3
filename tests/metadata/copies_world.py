"""A shard as a model: servers that lose power and links, Sentinels that elect whom they know,
however old its data is, and gateways that acknowledge by the rules of `storage.redis.replication`.

What a server holds is its whole history, so that "lacks what was acknowledged" can be asked. It has
the histories that deploy/redis/README.md tells: who is left out and is not forgotten is elected;
who is forgotten and not locked out is heard of again; who was let in and lacks something is elected
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from push.replicas import (
    Elect,
    Follow,
    Follower,
    LetIn,
    LockOut,
    Prepare,
    RecordReplicas,
    ReplicaAct,
    Reset,
    Sentinel,
    ShardServer,
    ShardView,
)

Entry = tuple[str, int, frozenset[str]]
"""("message", its number, -), or ("count", R, who is out)."""
NODES: Final = ("a:1", "b:1", "c:1")
GUARDS: Final = ("s:1", "s:2", "s:3")


class Lost(AssertionError):
    """Somebody is primary who lacks what was acknowledged."""


@dataclass
class Node:
    """A server. `online`: it is given what its upstream writes; `attached`: or all there is."""

    place: str
    history: list[Entry] = field(default_factory=list)
    follows: str = ""
    is_up: bool = True
    is_cut: bool = False
    attached: bool = False
    online: bool = False
    priority: int = 100
    priority_kept: int = 100
    unready: bool = False
    locked: set[str] = field(default_factory=set)
    locked_kept: set[str] = field(default_factory=set)
    starts: int = 0
    confirmed: int = 0
    heard_at: float = 0.0

    @property
    def user(self) -> str:
        """Whom it is to others."""
        return f"replica-{self.place[0]}"

    def counts(self) -> tuple[int, frozenset[str]]:
        """R and who is out, as it has it."""
        for kind, number, out in reversed(self.history):
            if kind == "count":
                return number, out
        raise AssertionError


@dataclass
class Guard:
    """A Sentinel."""

    primary: str
    replicas: set[str]
    is_up: bool = True


class World:
    """See the module. Time is the manager's clock."""

    def __init__(self, nodes: tuple[str, ...] = NODES) -> None:
        first = [("count", len(nodes) - 1, frozenset[str]())]
        self.nodes = {place: Node(place, list(first)) for place in nodes}
        for place in nodes[1:]:
            node = self.nodes[place]
            node.follows, node.attached, node.online, node.confirmed = nodes[0], True, True, 1
        self.guards = {place: Guard(nodes[0], set(nodes[1:])) for place in GUARDS}
        self.acknowledged: set[int] = set()
        self.published = 0
        self.now = 0.0
        self.users = {place: node.user for place, node in self.nodes.items()}
        self.elected = 0

    # --- What the servers do by themselves

    def reaches(self, one: str, other: str) -> bool:
        """Whether the two hear each other."""
        nodes = self.nodes
        return all(nodes[x].is_up and not nodes[x].is_cut for x in (one, other))

    def followers(self, place: str) -> list[Node]:
        """Return who is attached there."""
        return [one for one in self.nodes.values() if one.follows == place and one.attached]

    def settle_links(self) -> None:
        """What is cut is noticed, and who can attach does."""
        for node in self.nodes.values():
            if not node.follows or not node.is_up:
                node.attached = node.online = False
                continue
            upstream = self.nodes[node.follows]
            if not self.reaches(node.place, node.follows):
                node.attached = node.online = False
                continue
            is_open = node.user not in upstream.locked and (not upstream.follows or upstream.online)
            if not node.attached and is_open:
                node.attached = True
                # Who has a part of the same history is given the rest at once, as if it had it.
                had = len(node.history)
                node.online = upstream.history[:had] == node.history
                node.confirmed, node.heard_at = had, self.now

    def replicate(self, place: str) -> None:
        """One step of a replica: what is missing comes, first all of it, then what is new."""
        node = self.nodes[place]
        if not node.attached or not node.is_up or node.is_cut:
            return
        upstream = self.nodes[node.follows]
        if node.history != upstream.history[: len(node.history)]:
            for one in self.followers(place):  # another history: they begin anew, too
                one.attached = one.online = False
        node.history = list(upstream.history)
        node.online, node.unready = True, not node.online
        if not node.unready:
            node.confirmed = len(node.history)
            node.heard_at = self.now

    def publish(self, place: str) -> None:
        """A gateway that is sent there by a Sentinel publishes at the level `all`, and all replicas
        have the time of one step."""
        node = self.nodes[place]
        if not node.is_up or node.follows:
            return
        if not any(guard.is_up and guard.primary == place for guard in self.guards.values()):
            return
        self.published += 1
        node.history.append(("message", self.published, frozenset()))

    def acknowledge(self, place: str) -> bool:
        """Whether the last write of this primary is confirmed by as many as R says (R28)."""
        node = self.nodes[place]
        if not node.is_up or node.follows:
            return False
        replicas, out = node.counts()
        attached = {one.place: one for one in self.followers(place)}
        if replicas > 0 and out & set(attached):
            return False
        if len(set(attached) - out) > replicas:
            return False
        have = sum(
            one.online and not one.unready and one.history == node.history
            for one in attached.values()
        )
        if have < replicas:
            return False
        self.acknowledged |= {number for kind, number, _ in node.history if kind == "message"}
        return True

    def learn(self, guard: Guard) -> None:
        """A Sentinel asks the primary who follows it."""
        node = self.nodes[guard.primary]
        if guard.is_up and node.is_up and not node.is_cut and not node.follows:
            guard.replicas |= {one.place for one in self.followers(guard.primary)}

    def fail_over(self, leader: str, choice: int) -> bool:
        """A Sentinel has the primary replaced, which most of them do not reach, by any that it
        knows and that says that it may be."""
        guard = self.guards[leader]
        up = [one for one in self.guards.values() if one.is_up]
        if not guard.is_up or 2 * len(up) <= len(self.guards):
            return False
        old = guard.primary
        if self.nodes[old].is_up and not self.nodes[old].is_cut:
            return False
        fit = [
            place for place in sorted(guard.replicas)
            if self.nodes[place].is_up and not self.nodes[place].is_cut
            and self.nodes[place].priority
        ]  # fmt: skip
        if not fit:
            return False
        chosen = self.nodes[fit[choice % len(fit)]]
        chosen.follows, chosen.attached, chosen.online = "", False, False
        self.elected += 1
        have = {number for kind, number, _ in chosen.history if kind == "message"}
        if not self.acknowledged <= have:
            raise Lost(f"{chosen.place} lacks {sorted(self.acknowledged - have)}")
        for one in self.guards.values():  # one that is down hears of it before it can do anything
            one.replicas = (one.replicas | {one.primary}) - {chosen.place}
            one.primary = chosen.place
        return True

    def reconfigure(self) -> None:
        """Sentinels have everybody whom they know follow the primary."""
        for guard in self.guards.values():
            for place in guard.replicas if guard.is_up else ():
                node = self.nodes[place]
                if node.is_up and not node.is_cut and node.follows != guard.primary:
                    node.follows, node.attached, node.online = guard.primary, False, False

    def kill(self, place: str) -> None:
        """Its process is gone."""
        self.nodes[place].is_up = False
        self.settle_links()

    def start(self, place: str, follows: str | None = None) -> None:
        """It begins with what it has kept; its file may name another one than it followed last."""
        node = self.nodes[place]
        if not node.is_up:
            node.is_up, node.unready = True, False
            if node.follows and follows not in (None, place):
                node.follows = str(follows)
            node.starts += 1
            node.priority, node.locked = node.priority_kept, set(node.locked_kept)
            node.attached = node.online = False

    def ambush(self, place: str, variant: int) -> None:
        """The worst moment for this one to be all that is left: it is there again, and heard of or
        not, and the primary and the others are lost before it was given anything. Nothing of that
        has happened afterwards. Raises Lost."""
        world = deepcopy(self)
        if variant % 2:
            world.kill(place)
        world.start(place)
        world.nodes[place].is_cut = False
        world.settle_links()
        for guard in world.guards.values():
            guard.is_up = guard.is_up or variant % 3 > 0
            if variant % 4 > 0:
                world.learn(guard)
        if variant % 5 > 2:
            world.reconfigure()
            world.settle_links()
        for other, node in world.nodes.items():
            node.is_cut = node.is_cut or other != place
        for leader in world.guards:
            world.fail_over(leader, 0)

    # --- What a manager sees and does

    def look(self) -> ShardView:
        """As `storage.redis.ops.observe` sees it."""
        servers = {
            place: self._server(node)
            for place, node in self.nodes.items()
            if node.is_up and not node.is_cut
        }
        guards = {place: one for place, one in self.guards.items() if one.is_up}
        names = [one.primary for one in guards.values()]
        primary = max(sorted(set(names)), key=names.count, default="")
        replicas, out = (
            self.nodes[primary].counts() if primary in servers else (0, frozenset[str]())
        )
        return ShardView(
            primary,
            servers,
            {
                place: Sentinel(
                    one.primary, one.primary in servers, frozenset(one.replicas),
                    frozenset(GUARDS) - {place},
                )
                for place, one in guards.items()
            },
            frozenset(GUARDS),
            {},
            replicas,
            out,
            dict(self.users),
        )  # fmt: skip

    def _server(self, node: Node) -> ShardServer:
        return ShardServer(
            node.place, str(node.starts), node.user, not node.follows, node.follows, node.online,
            bool(node.priority), len(node.history), "its file is written" if node.unready else "",
            frozenset(node.locked),
            tuple(
                Follower(one.place, one.online, one.confirmed, self.now - one.heard_at)
                for one in self.followers(node.place)
            ),
        )  # fmt: skip

    def do(self, act: ReplicaAct, *, is_half: bool = False) -> bool:
        """What a manager says, if it can be said. Whether it was done. `is_half`: the server could
        not keep it for its next start."""
        match act:
            case Reset(sentinel):
                guard = self.guards[sentinel]
                if not guard.is_up:
                    return False
                guard.replicas = set()
                self.learn(guard)
                return True
            case RecordReplicas():
                return self._count(act)
            case _:
                node = self.nodes[act.at]
        if not node.is_up or node.is_cut:
            return False
        match act:
            case LockOut(user=user):
                node.locked.add(user)
                if not is_half:
                    node.locked_kept.add(user)
                for one in self.followers(node.place):
                    if one.user == user:
                        one.attached = one.online = False
            case LetIn(user=user):
                node.locked.discard(user)
                node.locked_kept.discard(user)
            case Prepare():
                node.priority = 0
                if not is_half:
                    node.priority_kept = 0
            case Elect():
                node.priority = node.priority_kept = 100
            case Follow(primary=primary):
                if node.follows != primary:
                    node.follows, node.attached, node.online = primary, False, False
        return not is_half

    def _count(self, act: RecordReplicas) -> bool:
        """At the primary that most Sentinels name: it is what a manager looks for."""
        view = self.look()
        node = self.nodes.get(view.primary)
        if node is None or not node.is_up or node.is_cut or node.follows:
            return False
        if node.counts() != (act.replicas_before, act.out_before):
            return False
        node.history.append(("count", act.replicas, act.out))
        return True
