"""Stores that stand for many tests, each of which finds them empty: a server alone, a primary with
a replica and Sentinels, a Cluster; set up as deploy/redis says, users and all.

A run has one engine in one layout for the whole contract, and the others for a selection of it, the
tests that are marked `layouts`. TOCSIN_CONTRACT=all: every one for all of it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from push.errors import Unknown
from storage.redis.cluster import ClusterShard, parts_of
from storage.redis.connection import Reach
from storage.redis.discovery import by_sentinels, fixed
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from tests.servers.binaries import ENGINES, Binary, ServerMissing, binaries
from tests.servers.layouts import Cluster, clustered, guarded, single
from tests.servers.node import Node
from tests.servers.shipped import MASTER, login
from tests.storage.shards import address

WHOLE: Final = os.environ.get("TOCSIN_CONTRACT") == "all"
LAYOUTS: Final = ("single", "sentinel", "cluster")
CONNECT_S: Final = 30.0
WAIT_S: Final = 15.0
"""Tests of the contract wait for copies of a busy machine, too."""


class Kind(NamedTuple):
    """An engine in a layout."""

    engine: str
    layout: str

    def __str__(self) -> str:
        return f"{self.engine} {self.layout}"


def all_kinds() -> list[Kind]:
    """Return what there is here; the one that has the whole contract comes first. Where there is no
    server, one of Valkey's stands in the list all the same: its tests fail and say what to do."""
    try:
        engines = [binary.engine for binary in binaries()]
    except ServerMissing:
        engines = [ENGINES[0]]
    return [Kind(engine, layout) for layout in LAYOUTS for engine in engines]


def kinds(is_selected: bool) -> list[Kind]:
    """Return those that a test of the contract runs on; `is_selected`: it is marked `layouts`."""
    found = all_kinds()
    return found if is_selected or WHOLE else found[:1]


def reach_of(user: str) -> Reach:
    """As this user of the shipped files."""
    who = login(user)
    return Reach(who.user, who.password, connect_s=CONNECT_S)


@dataclass
class Standing:
    """Servers in one layout; `nodes` are those that may be primaries, the first ones are."""

    kind: Kind
    nodes: list[Node]
    sentinels: list[Node]
    cluster: Cluster | None
    replicas: int
    """Of each primary."""

    async def settings(self, user: str = "tocsin") -> list[Settings]:
        """How each primary is spoken to, as this user."""
        reach = reach_of(user)
        if self.sentinels:
            places = [address(node) for node in self.sentinels]
            find = by_sentinels(places, MASTER, reach_of("tocsin"))
        else:
            find = fixed(address(self.nodes[0]))
        like = Settings(find, reach, wait_s=WAIT_S, silence_s=WAIT_S)
        if self.cluster is None:
            return [like]
        parts = await parts_of([address(node) for node in self.nodes], like)
        return [part.settings for part in parts]

    async def empty(self, incarnation: str) -> None:
        """As when they were new, and ours under this incarnation."""
        for node in self.primaries():
            node.ask("FLUSHALL")
        for given in await self.settings("tocsin-admin"):
            await tried(lambda given=given: provision(given, incarnation, self.replicas))

    def primaries(self) -> list[Node]:
        """Return the servers that are asked to forget, and whose replicas then do too."""
        if self.cluster is not None:
            return list(self.cluster.shards())
        return [node for node in self.nodes if node.role() == "master"]

    async def open(self, incarnation: str) -> RedisShard | ClusterShard:
        """A gateway's connections."""
        given = await self.settings()
        if self.cluster is None:
            return await RedisShard.open(given[0], Marks(incarnation))
        places = [address(node) for node in self.nodes]
        parts = await parts_of(places, replace(given[0], find=fixed(places[0])))
        return await ClusterShard.open(parts, incarnation, {})


async def tried(act: Callable[..., object]) -> None:
    """Until it is known to be done: a replica may be late, for a moment."""
    for _ in range(5):
        try:
            await act()  # type: ignore[misc]
        except Unknown as error:
            last = error
        else:
            return
    raise last


@contextmanager
def standing(binary: Binary, layout: str, folder: Path) -> Iterator[Standing]:
    """Servers of this engine in this layout, with the shipped users."""
    kind = Kind(binary.engine, layout)
    if layout == "single":
        with single(binary, folder, with_users=True) as node:
            yield Standing(kind, [node], [], None, 0)
    elif layout == "sentinel":
        with guarded(binary, folder, replicas=1, with_users=True) as servers:
            yield Standing(kind, servers.nodes, servers.sentinels, None, 1)
    else:
        with clustered(binary, folder, primaries=3, replicas=1, with_users=True) as made:
            yield Standing(kind, made.nodes, [], made, 1)


class Pool:
    """Those that tests have asked for, each started when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[Kind, Standing] = {}
        self._stack = ExitStack()

    def of(self, kind: Kind) -> Standing:
        """Raises ServerMissing: there is no such engine here."""
        if kind not in self._started:
            binary = next(one for one in binaries() if one.engine == kind.engine)
            folder = self._folder / f"{kind.engine}-{kind.layout}"
            folder.mkdir()
            entered = self._stack.enter_context(standing(binary, kind.layout, folder))
            self._started[kind] = entered
        return self._started[kind]

    def close(self) -> None:
        """End all servers."""
        self._stack.close()
