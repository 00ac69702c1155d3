"""Real servers as they are set up for the broker: one, a primary with replicas, Sentinels, a
Cluster. Each is a context manager whose servers run with the settings that are shipped, on
loopback or on the hosts of a `network`, and are gone at its end. Enter them in the main thread.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import redis

from tests.servers.binaries import Binary
from tests.servers.network import Host
from tests.servers.node import DEADLINE_S, Node, fields, in_sync, until, wait_in_sync
from tests.servers.ports import ClaimedPort
from tests.servers.shipped import MASTER, Setting, login

Layout = Literal["sentinel", "cluster"]
"""Of a store that outlives its primaries."""
PORT = 6379
SENTINEL_PORT = 26379
BUS_PORT = 16379
SLOTS = 16384
_SENTINEL_MS = (
    "info-period", 100, "publish-period", 100, "ask-period", 100, "ping-period", 400,
)  # fmt: skip
"""How often they look; otherwise every 1 to 10 s. A replica can be promoted if it has answered INFO
within five pings, and while the primary is gone it is asked every second (sentinel.c)."""


class _Places:
    """Where servers go: a folder and a port each, and a host where there are any."""

    def __init__(self, binary: Binary, folder: Path, with_users: bool, stack: ExitStack) -> None:
        self.binary = binary
        self._folder = folder
        self._with_users = with_users
        self._stack = stack

    def node(
        self,
        name: str,
        config: str,
        *,
        host: Host | None = None,
        primary: Node | None = None,
        replica: str = "replica-1",
        inside: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> Node:
        """A started server that is named so and has this shipped configuration."""
        is_sentinel = config == "sentinel"
        setting = Setting(
            folder=self._folder / name,
            address=host.address if host else "127.0.0.1",
            port=self._port(SENTINEL_PORT if is_sentinel else PORT, host),
            primary=(primary.address, primary.port) if primary else None,
            bus_port=self._port(BUS_PORT, host) if config == "cluster" else 0,
            with_users=self._with_users,
            replica=replica,
            more=tuple(more),
        )
        setting.write(config)
        node = Node(
            self.binary, setting.folder, setting.address, setting.port,
            is_sentinel=is_sentinel, inside=host.inside if host else inside,
            login=login("operator") if self._with_users else None,
        )  # fmt: skip
        self._stack.callback(node.kill)
        node.spawn()
        return node

    def _port(self, usual: int, host: Host | None) -> int:
        """Every host has all its ports to itself; on loopback one is claimed."""
        return usual if host else self._stack.enter_context(ClaimedPort()).number


@contextmanager
def _places(binary: Binary, folder: Path, with_users: bool) -> Iterator[_Places]:
    with ExitStack() as stack:
        yield _Places(binary, folder, with_users, stack)


@dataclass
class Replicated:
    """Servers of which one is primary and the others follow it."""

    nodes: list[Node]

    def running(self) -> list[Node]:
        """Return those with a process."""
        return [node for node in self.nodes if node.is_running]

    @property
    def primary(self) -> Node:
        """The one running that calls itself so.

        Raises:
            ValueError: none or several do, as in a failover.
        """
        (found,) = (node for node in self.running() if node.role() == "master")
        return found

    @property
    def replicas(self) -> list[Node]:
        """Return those running that call themselves so."""
        return [node for node in self.running() if node.role() == "slave"]

    def are_in_sync(self) -> bool:
        """Whether one running server is primary and all others running follow it, to the end."""
        primaries = [node for node in self.running() if node.role() == "master"]
        if len(primaries) != 1:
            return False
        return in_sync(primaries[0], [n for n in self.running() if n is not primaries[0]])

    def wait_in_sync(self) -> None:
        """Wait until they are. Raises TimeoutError."""
        until(self.are_in_sync, f"{self.running()} are in sync")


@dataclass
class Guarded(Replicated):
    """Replicated ones that Sentinels guard."""

    sentinels: list[Node]

    def named(self, by: Sequence[Node] = ()) -> Node | None:
        """Which server these Sentinels (all running) name as the primary; None: they disagree."""
        asked = by or [node for node in self.sentinels if node.is_running]
        said = {tuple(n.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)) for n in asked}
        found = [node for node in self.nodes if said == {(node.address, str(node.port))}]
        return found[0] if found else None

    def shards(self) -> dict[Node, list[Node]]:
        """The only one: whom the Sentinels name, with all others; none while they disagree."""
        primary = self.named()
        return {primary: [node for node in self.nodes if node is not primary]} if primary else {}

    def count_out(self) -> None:
        """Lock all nodes that do not run out of the others, and have the Sentinels forget them, one
        Sentinel after the other: none of them is elected, whenever it starts, until it is counted
        in. Needs users."""
        self._let_follow("off", [node for node in self.nodes if not node.is_running])
        left = len(self.running()) - 1
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "RESET", MASTER)
            until(
                _knows_all(sentinel, left, len(self.sentinels) - 1),
                f"{sentinel!r} knows those that are left",
            )

    def count_in(self, back: Sequence[Node], primary: Node) -> None:
        """Have these, which run again, follow the primary, and be elected from when they have all
        it has. Raises TimeoutError."""
        for node in back:
            node.ask("CONFIG", "SET", "replica-priority", 0)
        self._let_follow("on", back)
        for node in back:
            if node is not primary:
                node.ask("REPLICAOF", primary.address, primary.port)
        self.wait_in_sync()
        for node in back:
            node.ask("CONFIG", "SET", "replica-priority", 100)

    def _let_follow(self, on_or_off: Literal["on", "off"], some: Sequence[Node]) -> None:
        for node in self.running():
            users = [_as_replica(self.nodes.index(one)) for one in some if one is not node]
            for words in (*(("SETUSER", user, on_or_off) for user in users), ("SAVE",)):
                until(partial(node.ask, "ACL", *words), f"{node!r} lets {users} in, or not")

    def wait_failover(
        self, lost: Node, by: Sequence[Node] = (), *, within_s: float = DEADLINE_S
    ) -> Node:
        """Wait until these Sentinels (all running) agree on another primary than this one, and it
        is one; which. Raises TimeoutError."""

        def other() -> Node | None:
            named = self.named(by)
            return named if named not in (None, lost) and named.role() == "master" else None

        found = until(other, f"another primary than {lost!r}", within_s=within_s)
        assert found is not None
        return found


@dataclass
class Cluster:
    """The nodes of a Redis Cluster, and which of them have the same slots: replicas stay with
    theirs, whoever is primary."""

    nodes: list[Node]
    kin: list[list[Node]]

    def shards(self) -> dict[Node, list[Node]]:
        """Running primaries with slots, in the order of their slots, each with its running
        replicas, as a running node sees it. One that has just died may still be a primary there,
        but is left out."""
        running = {(n.address, n.port): n for n in self.nodes if n.is_running}
        found: dict[Node, list[Node]] = {}
        for part in _slots(next(iter(running.values()))):
            here = [running.get(member) for member in part.members]
            if here[0] is not None:
                found[here[0]] = [node for node in here[1:] if node is not None]
        return found

    def primary_of(self, slot: int) -> Node:
        """The running primary of this slot.

        Raises:
            LookupError: it has none now.
        """
        asked = next(node for node in self.nodes if node.is_running)
        for part in _slots(asked):
            if part.first <= slot <= part.last:
                for node in self.nodes:
                    if node.is_running and (node.address, node.port) == part.members[0]:
                        return node
        raise LookupError(f"slot {slot} has no primary that runs")

    def wait_failover(self, lost: Node, *, within_s: float = DEADLINE_S) -> Node:
        """Wait until another node that has this one's slots calls itself their primary, whoever
        can be asked; which. Raises TimeoutError."""
        (kin,) = (kin for kin in self.kin if lost in kin)
        others = [node for node in kin if node is not lost]

        def heir() -> Node | None:
            for node in others:
                with suppress(redis.RedisError):  # it may be cut off, or have ended, too
                    if node.role() == "master":
                        return node
            return None

        found = until(heir, f"another primary than {lost!r}", within_s=within_s)
        assert found is not None
        return found

    def wait_in_sync(self) -> None:
        """Wait until all running nodes see a whole cluster with the same shards, none of which
        lacks a primary, and every running replica follows its own to the end."""

        def are() -> bool:
            running = [node for node in self.nodes if node.is_running]
            for node in running:
                state = fields(node.ask("CLUSTER", "INFO"))
                if state["cluster_state"] != "ok" or state["cluster_slots_ok"] != str(SLOTS):
                    return False
            shards = self.shards()
            if sum(1 + len(replicas) for replicas in shards.values()) != len(running):
                return False
            return all(in_sync(primary, replicas) for primary, replicas in shards.items())

        until(are, f"the cluster of {self.nodes} is whole")


@contextmanager
def single(
    binary: Binary, folder: Path, *, with_users: bool = False, inside: Sequence[str] = ()
) -> Iterator[Node]:
    """Yield one primary without replicas, which this command runs if there is one."""
    with _places(binary, folder, with_users) as places:
        node = places.node("primary", "primary", inside=inside)
        node.wait_ready()
        yield node


@contextmanager
def replicated(
    binary: Binary,
    folder: Path,
    *,
    replicas: int = 2,
    hosts: Sequence[Host] = (),
    with_users: bool = False,
) -> Iterator[Replicated]:
    """A primary with replicas, in sync. Where there are hosts, each server has the next one."""
    with _places(binary, folder, with_users) as places:
        yield _follow(places, replicas, hosts)


@contextmanager
def guarded(
    binary: Binary,
    folder: Path,
    *,
    replicas: int = 2,
    sentinels: int = 3,
    hosts: Sequence[Host] = (),
    sentinel_hosts: Sequence[Host] = (),
    with_users: bool = False,
) -> Iterator[Guarded]:
    """A primary with replicas, in sync, and Sentinels that know each other and them. Where there
    are hosts, each server has the next one, and so has each Sentinel: from the first again, or of
    hosts of their own."""
    with _places(binary, folder, with_users) as places:
        shard = _follow(places, replicas, hosts)
        guards = [
            places.node(
                f"sentinel-{number}",
                "sentinel",
                host=_nth(sentinel_hosts or hosts, number),
                primary=shard.nodes[0],
            )
            for number in range(sentinels)
        ]
        for guard in guards:
            guard.wait_ready()
            guard.ask("SENTINEL", "DEBUG", *_SENTINEL_MS)
        for guard in guards:
            until(_knows_all(guard, replicas, sentinels - 1), f"{guard!r} knows all others")
        yield Guarded(shard.nodes, guards)


@contextmanager
def clustered(
    binary: Binary,
    folder: Path,
    *,
    primaries: int = 3,
    replicas: int = 1,
    hosts: Sequence[Host] = (),
    with_users: bool = False,
) -> Iterator[Cluster]:
    """A Redis Cluster, whole and in sync: the first nodes are primaries of equal parts of the
    slots, and behind them come the first one's replicas, the second one's, and so on. Where there
    are hosts, each node has the next one."""
    with _places(binary, folder, with_users) as places:
        count = primaries * (1 + replicas)
        nodes = [places.node(f"node-{n}", "cluster", host=_nth(hosts, n)) for n in range(count)]
        for node in nodes:
            node.wait_ready()
        for number, node in enumerate(nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(nodes[:primaries]):
            first, end = (SLOTS * n // primaries for n in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in nodes:
            for other in nodes:
                if other is not node:
                    bus = other.ask("CONFIG", "GET", "cluster-port")[1]
                    node.ask("CLUSTER", "MEET", other.address, other.port, bus)
        for number, node in enumerate(nodes[primaries:]):
            leader = nodes[number // replicas].ask("CLUSTER", "MYID")
            until(_follows(node, leader), f"{node!r} follows its primary")
        kin = [
            [nodes[n], *nodes[primaries + n * replicas : primaries + (n + 1) * replicas]]
            for n in range(primaries)
        ]
        made = Cluster(nodes, kin)
        made.wait_in_sync()
        yield made


def _follow(places: _Places, replicas: int, hosts: Sequence[Host]) -> Replicated:
    """A primary and its replicas, started and in sync."""
    primary = places.node("node-0", "primary", host=_nth(hosts, 0))
    primary.wait_ready()
    followers = [
        places.node(
            f"node-{number}", "replica", host=_nth(hosts, number), primary=primary,
            replica=_as_replica(number),
        )
        for number in range(1, replicas + 1)
    ]  # fmt: skip
    for follower in followers:
        follower.wait_ready()
    wait_in_sync(primary, followers)
    return Replicated([primary, *followers])


def _as_replica(number: int) -> str:
    """The user that this node of a shard is, to its primary."""
    return f"replica-{number + 1}"


def _nth(hosts: Sequence[Host], number: int) -> Host | None:
    return hosts[number % len(hosts)] if hosts else None


def _knows_all(sentinel: Node, replicas: int, others: int) -> Callable[[], bool]:
    def knows() -> bool:
        if not str(sentinel.ask("SENTINEL", "CKQUORUM", MASTER)).startswith("OK"):
            return False
        said = iter(sentinel.ask("SENTINEL", "MASTER", MASTER))
        state = dict(zip(said, said, strict=True))
        known = (state["num-slaves"], state["num-other-sentinels"])
        return known == (str(replicas), str(others))

    return knows


def _follows(node: Node, leader: str) -> Callable[[], bool]:
    """It can be told as soon as gossip has brought it the one that it is to follow."""
    return lambda: bool(node.ask("CLUSTER", "REPLICATE", leader))


class _Slots(NamedTuple):
    """A range of slots, and who has it: the primary, then its replicas."""

    first: int
    last: int
    members: list[tuple[str, int]]


def _slots(node: Node) -> list[_Slots]:
    """As this node sees them (CLUSTER SLOTS)."""
    return [
        _Slots(first, last, [(address, port) for address, port, *_ in members])
        for first, last, *members in node.ask("CLUSTER", "SLOTS")
    ]
