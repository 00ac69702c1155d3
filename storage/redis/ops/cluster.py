"""Observation of a shard of a Cluster, for a manager: its servers, and the nodes that every node
knows."""

import asyncio
from collections.abc import Mapping
from typing import Final

from push.errors import Refused
from push.replicas import Forget, Meet, RecordReplicas, ReplicaAct, ShardServer, ShardView
from storage.redis.connection import ConnectionCache, address_of, pack
from storage.redis.ops.failover import ReplicaControl, count
from storage.redis.ops.observe import SERVER, WatchedShard, managed_at, server_of
from storage.redis.ops.settings import as_mapping
from storage.redis.replication import fields

NODES: Final = pack("CLUSTER", "NODES")
Known = Mapping[str, tuple[str, str]]
"""Id of a node → (its place, `host:port`, and the id of the node that it replicates or "")."""


def known_nodes(nodes: bytes) -> dict[str, tuple[str, str]]:
    """Return the nodes that a node knows, itself among them, by its answer to CLUSTER NODES. Those
    in a handshake, or without an address, are left out.

    Source: https://redis.io/docs/latest/commands/cluster-nodes/
    """
    found = {}
    for line in nodes.decode().splitlines():
        words = line.split()
        if len(words) < 8 or not {"handshake", "noaddr"}.isdisjoint(words[2].split(",")):
            continue
        place = words[1].partition("@")[0].partition(",")[0]
        found[words[0]] = (place, words[3] if words[3] != "-" else "")
    return found


class ClusterObserver:
    """Observer of one shard of a Cluster."""

    def __init__(self, watched: WatchedShard, cache: ConnectionCache) -> None:
        self._watched = watched
        self._cache = cache
        self._ids: dict[str, str] = {}
        self._learned: dict[str, str] = {}

    async def look(self, holder: str, term: int) -> ShardView:
        """Return what the shard's nodes report now. `holder`, `term`: the manager that looks.
        Raises TermSuperseded."""
        try:
            primary = str(await self._watched.settings.find())
        except Refused as refused:
            return ShardView("", {}, {}, silent={"the Cluster": refused.detail})
        held = await managed_at(
            primary,
            self._watched,
            self._cache,
            holder=holder,
            term=term,
            learned=self._learned,
        )
        silent = {primary: held} if isinstance(held, str) else {}
        replicas, out = 0, frozenset[str]()
        if not isinstance(held, str):
            replicas, out, self._ids = held
        answered, more = await self._nodes(primary)
        silent = more | silent
        places = {
            node_id: place
            for known, _ in answered.values()
            for node_id, (place, _) in known.items()
        }
        if primary in answered and primary not in silent:
            self._learn(primary, answered[primary][0])
        ids = self._ids | self._learned
        servers = {
            place: server
            for place, (_, server) in answered.items()
            if (place in ids or place == primary) and place not in silent
        }
        return ShardView(
            primary,
            servers,
            {},
            frozenset(),
            silent,
            replicas,
            out,
            ids,
            {place: frozenset(known) for place, (known, _) in answered.items()},
            places,
        )

    def _learn(self, primary: str, known: Known) -> None:
        """Learn the ids of the primary and of its replicas, which the shard has to remember."""
        own = next((node_id for node_id, (place, _) in known.items() if place == primary), "")
        kin = {place: one for one, (place, of) in known.items() if own in (one, of)}
        self._learned = {place: one for place, one in kin.items() if self._ids.get(place) != one}

    async def _nodes(
        self, primary: str
    ) -> tuple[dict[str, tuple[Known, ShardServer]], dict[str, str]]:
        """Query the primary, the nodes that the shard remembers, and all nodes that any of these
        knows. Returns the answers by place, and why other places gave none."""
        answered: dict[str, tuple[Known, ShardServer]] = {}
        silent: dict[str, str] = {}
        wanted = {primary, *self._ids}
        while wanted:
            each = sorted(wanted)
            for place, one in zip(each, await asyncio.gather(*map(self._node, each)), strict=True):
                if isinstance(one, str):
                    silent[place] = one
                else:
                    answered[place] = one
            known = {place for rows, _ in answered.values() for place, _ in rows.values()}
            wanted = known - set(answered) - set(silent)
        return answered, silent

    async def _node(self, place: str) -> tuple[Known, ShardServer] | str:
        replies = await self._cache.try_ask(place, [*SERVER, NODES])
        if isinstance(replies, str):
            return replies
        try:
            info, config, users, nodes = replies
            server = server_of(place, fields(info), as_mapping(config), users)
            return known_nodes(nodes), server
        except (TypeError, KeyError, ValueError) as error:
            return f"not understood: {error!r}"


class ClusterReplicaControl:
    """Acts on one shard of a Cluster, like those of `storage.redis.ops.failover.ReplicaControl`."""

    def __init__(self, watched: WatchedShard, cache: ConnectionCache) -> None:
        self._watched = watched
        self._cache = cache
        self._servers = ReplicaControl(watched, cache)

    async def do(self, act: ReplicaAct, holder: str, term: int) -> bool:
        match act:
            case Forget(at, node_id):
                await self._servers.ask(at, [pack("CLUSTER", "FORGET", node_id)])
            case Meet(at, place):
                meet = pack("CLUSTER", "MEET", *address_of(place))
                await self._servers.fenced(at, [await self._with_bus(place, meet)], holder, term)
            case RecordReplicas():
                return await count(self._watched, act, holder, term)
            case _:
                raise AssertionError(f"not in a Cluster: {act}")
        return True

    async def _with_bus(self, place: str, meet: bytes) -> bytes:
        """Return the command with the port of the node's bus, if it is not the usual one."""
        (told,) = await self._servers.ask(place, [pack("CONFIG", "GET", "cluster-port")])
        port = int(as_mapping(told).get("cluster-port", "0"))
        return pack("CLUSTER", "MEET", *address_of(place), port) if port else meet
