"""A Redis Cluster as a shard, in which each act goes to the primary that has its keys' slot.

redis-py's own client of a Cluster is not used. It sends WAIT to any node, adds up the answers of
several, and sends an act again by itself. Here each primary is a `RedisShard` with its own held
connections, found by its slots. A failover does not move slots. When an operator has moved some,
acts there are refused until the slots have been read again. A new primary must be provisioned
first, and the gateways started again.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, zip_longest
from typing import Any, Final, NamedTuple

from redis.crc import key_slot
from redis.exceptions import RedisError

from push.errors import Refused
from push.places import Durability
from push.storage_port import Lane
from storage.redis.answers import SlotMoved, refused, unavailable
from storage.redis.connection import Address, Reach, pack
from storage.redis.discovery import Find
from storage.redis.pipeline import BEHIND
from storage.redis.port import Arg, OnMessage, ShardHealth
from storage.redis.shard import LEVELS, Marks, RedisShard, Settings

SLOTS: Final = 16384
NODE_S: Final = 1.0
"""Longest time for the answer of one node, in seconds. All are queried at once."""
LEARNED_MAX: Final = 8
"""Number of nodes that are queried beside those of the URL. Primaries come first. In a Cluster of
up to fifteen they are a majority, as are the nodes that a healthy Cluster has left."""
GONE: Final = frozenset(("fail", "handshake", "noaddr"))
"""Flags of nodes that are not queried. A node that is cut off itself calls others `fail?` at
most."""
NOWHERE: Final = -1
_LOG: Final = logging.getLogger("storage.redis_cluster")


class SlotClaim(NamedTuple):
    """A primary's claim to slots, as some node knows it. The higher configuration epoch is
    right."""

    epoch: int
    address: Address
    ranges: tuple[tuple[int, int], ...]
    """(first, last) slots."""

    def has(self, slot: int) -> bool:
        """Whether the slot is among those that are claimed."""
        return any(first <= slot <= last for first, last in self.ranges)


class NodeView(NamedTuple):
    """The view that one node has of its Cluster."""

    claims: list[SlotClaim]
    members: list[Address]


def claims_of(nodes: bytes) -> list[SlotClaim]:
    """Decode the primaries with slots in a reply of CLUSTER NODES.

    Source: https://redis.io/docs/latest/commands/cluster-nodes/
    """
    found = []
    for line in nodes.decode().splitlines():
        words = line.split()
        if len(words) < 9 or "master" not in words[2].split(","):
            continue
        # `[slot->-node]` names a slot that is being moved, and still is where it was
        spans = [word.split("-") for word in words[8:] if not word.startswith("[")]
        ranges = tuple((int(span[0]), int(span[-1])) for span in spans)
        found.append(SlotClaim(int(words[6]), _place(words[1]), ranges))
    return found


def _place(word: str) -> Address:
    """Decode `host:port@bus,name`."""
    host, _, port = word.partition("@")[0].rpartition(":")
    return Address(host, int(port))


def members_of(nodes: bytes) -> list[Address]:
    """Return the addresses of the nodes in a reply of CLUSTER NODES, primaries with slots first.
    Nodes are left out that most primaries consider dead, that do not belong to the Cluster yet, or
    that have no address. Empty if no primary in the reply has slots, because the node that replied
    was reset, or its Cluster has yet to be made."""
    primaries: list[Address] = []
    others: list[Address] = []
    for line in nodes.decode().splitlines():
        words = line.split()
        if len(words) < 8:
            continue
        flags, place = words[2].split(","), _place(words[1])
        if place.host and GONE.isdisjoint(flags):
            (primaries if "master" in flags and len(words) > 8 else others).append(place)
    return [*primaries, *others] if primaries else []


def choose_learned(
    named: Sequence[Sequence[Address]], seeds: Sequence[Address]
) -> tuple[Address, ...]:
    """Return up to LEARNED_MAX nodes to query beside the seeds. `named` has the lists of several
    nodes. The first of each list come first, then the second, because one list may have nodes that
    no longer exist."""
    turns = (place for row in zip_longest(*named) for place in row if place is not None)
    others = (place for place in dict.fromkeys(turns) if place not in seeds)
    return tuple(islice(others, LEARNED_MAX))


class ClusterNodes:
    """The nodes that are queried about a Cluster: all nodes of the URL, and some of those that were
    named by the last ones queried. So a gateway that runs does not lose a Cluster that moves to
    other hosts, one after the other."""

    def __init__(self, seeds: Sequence[Address], reach: Reach) -> None:
        self._seeds = tuple(dict.fromkeys(seeds))
        self._reach = reach
        self._learned: tuple[Address, ...] = ()

    async def claims(self) -> list[SlotClaim]:
        """Return the claims known to the nodes that answer. Raises Refused if none does."""
        asked = (*self._seeds, *self._learned)
        answers = await asyncio.gather(*(_ask_node(node, self._reach) for node in asked))
        views = [answer for answer in answers if isinstance(answer, NodeView)]
        if not views:
            raise unavailable("no node of the cluster answers: " + "; ".join(map(str, answers)))
        named = [view.members for view in views]
        if any(named):
            self._learned = choose_learned(named, self._seeds)
        return [claim for view in views for claim in view.claims]


@dataclass(frozen=True, slots=True)
class ClusterPrimary:
    """Slots of a primary, and the settings by which it is reached, whichever server is primary."""

    ranges: tuple[tuple[int, int], ...]
    settings: Settings
    nodes: ClusterNodes = field(default_factory=lambda: ClusterNodes((), Reach()))
    """The nodes that are queried about its Cluster; none: it belongs to no Cluster."""


def primary_of(slot: int, nodes: ClusterNodes) -> Find:
    """Return a look-up of the primary that has this slot: of all that claim it, the one with the
    highest configuration epoch. A node that was cut off still names the earlier primary."""

    async def find() -> Address:
        claims = [claim for claim in await nodes.claims() if claim.has(slot)]
        if not claims:
            raise unavailable(f"no node of the cluster has the slot {slot}")
        return max(claims).address

    return find


async def parts_of(seeds: Sequence[Address], like: Settings) -> list[ClusterPrimary]:
    """Return the primaries of the Cluster that these nodes belong to, in the slots' order, each
    with a key of its own in its slots. `like`: the settings by which they are reached, except
    `find` and `key`.

    Raises Refused if no node answers.
    """
    nodes = ClusterNodes(seeds, like.reach)
    newest: dict[tuple[tuple[int, int], ...], SlotClaim] = {}
    for claim in await nodes.claims():
        if claim.ranges:
            newest[claim.ranges] = max(claim, newest.get(claim.ranges, claim))
    parts = []
    for ranges, claim in sorted(newest.items()):
        keys = (f"{{tocsin-{number}}}:shard" for number in count())
        key = next(key for key in keys if claim.has(key_slot(key.encode())))
        find = primary_of(key_slot(key.encode()), nodes)
        parts.append(ClusterPrimary(ranges, replace(like, find=find, key=key), nodes))
    return parts


class ClusterShard:
    """`storage.redis.port.Shard` over all primaries of a Cluster. Make one with `open`."""

    def __init__(self, parts: Sequence[ClusterPrimary], shards: Sequence[RedisShard]) -> None:
        self._parts = parts
        self._shards = shards
        self._reading: asyncio.Task[None] | None = None
        self._at = array("h", [NOWHERE] * SLOTS)
        for number, part in enumerate(parts):
            for first, last in part.ranges:
                for slot in range(first, last + 1):
                    self._at[slot] = number

    @classmethod
    async def open(
        cls,
        parts: Sequence[ClusterPrimary],
        incarnation: str,
        touches: Mapping[str, int],
        *,
        on_fatal: Callable[[str], None] | None = None,
    ) -> "ClusterShard":
        """Open all primaries, each of them checked like in `RedisShard.open`. `touches`: from the
        property of this name. `on_fatal` is called once for each that is not the store any more.
        Raises the errors of `RedisShard.open`: a Cluster that lacks a primary is not opened."""
        shards: list[RedisShard] = []
        try:
            for part in parts:
                marks = Marks(incarnation, touches.get(part.settings.key, 0))
                shards.append(await RedisShard.open(part.settings, marks, on_fatal=on_fatal))
        except BaseException:
            await asyncio.gather(*(shard.close() for shard in shards))
            raise
        return cls(parts, shards)

    @property
    def touches(self) -> dict[str, int]:
        """The touches of each primary (`RedisShard.touches`), by its key."""
        pairs = zip(self._parts, self._shards, strict=True)
        return {part.settings.key: shard.touches for part, shard in pairs}

    def has_room(self, key: str | None = None) -> bool:
        if key is None:
            return all(shard.has_room() for shard in self._shards)
        return self._of([key]).has_room()

    @property
    def answers(self) -> bool:
        """Whether every primary answers."""
        return all(shard.answers for shard in self._shards)

    def health(self) -> ShardHealth:
        every = [shard.health() for shard in self._shards]
        facts = {key: said for one in every for key, said in one.facts.items()}
        waits_for = tuple(why for one in every for why in one.waits_for)
        return ShardHealth(waits_for, facts, tuple(took for one in every for took in one.took))

    def copies(self, level: Durability) -> int:
        """Return the number of copies at the primary with the fewest."""
        return min(shard.copies(level) for shard in self._shards)

    def lane(self, key: str, level: Durability) -> Lane:
        """Return the lane of acts of this level at the key's primary. Each primary has lanes of its
        own; NOWHERE: the key's slot is at no known primary."""
        number = self._at[key_slot(key.encode())]
        if number == NOWHERE:
            return Lane(NOWHERE, 0)
        at_primary, doubts = self._shards[number].lane(key, level)
        return Lane(number * len(LEVELS) + at_primary, doubts)

    def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> asyncio.Future[Any]:
        """Execute an act. All `keys`, at least one, have one slot."""
        if lane is not None and lane != self.lane(keys[0], level):
            return refused(unavailable(BEHIND))
        try:
            shard = self._of(keys)
        except Refused as error:
            return refused(error)
        there = shard.lane(keys[0], level) if lane is not None else None
        asked = shard.act(function, keys, args, level=level, lane=there)
        asked.add_done_callback(self._on_answer)
        return asked

    def _on_answer(self, asked: asyncio.Future[Any]) -> None:
        if not asked.cancelled() and isinstance(asked.exception(), SlotMoved):
            self._read_again()

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Look at a primary. All `keys`, at least one, have one slot."""
        try:
            return await self._of(keys).look(function, keys, args)
        except SlotMoved:
            self._read_again()
            raise

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        """Listen at one node. The nodes pass on to each other what is published, so one connection
        receives all of it."""
        self._shards[0].on_message(channel_prefix, heard)

    async def wait_subscribed(self) -> None:
        await self._shards[0].wait_subscribed()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await asyncio.gather(*(shard.close() for shard in self._shards))

    def _of(self, keys: Sequence[str]) -> RedisShard:
        slot = key_slot(keys[0].encode())
        number = self._at[slot]
        if number == NOWHERE:
            raise unavailable(
                f"the slot {slot} is at no primary that the cluster had when it was opened: one "
                "that is new must be provisioned, and this gateway started again"
            )
        return self._shards[number]

    def _read_again(self) -> None:
        """Begin to read the slots again, because some are elsewhere, unless a reading is under
        way."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_slots(), name="cluster slots")

    async def _read_slots(self) -> None:
        try:
            claims = sorted(await self._parts[0].nodes.claims())
        except Refused as refused:
            _LOG.warning("the slots of the cluster cannot be read: %s", refused.detail)
            return
        primaries: list[Address | None] = [None] * SLOTS
        for claim in claims:  # the newest configuration comes last
            for first, last in claim.ranges:
                primaries[first : last + 1] = [claim.address] * (last + 1 - first)
        keys = [part.settings.key for part in self._parts]
        ours = {primaries[key_slot(key.encode())]: number for number, key in enumerate(keys)}
        found = array("h", (ours.get(place, NOWHERE) for place in primaries))
        moved = sum(one != other for one, other in zip(self._at, found, strict=True))
        _LOG.warning("%d slots of the cluster have moved", moved)
        self._at = found


async def _ask_node(node: Address, reach: Reach) -> NodeView | str:
    """Query a node for its view; returns a sentence if it gives none."""
    try:
        async with asyncio.timeout(NODE_S):
            link = await reach.link(node)
            try:
                (reply,) = await link.ask([pack("CLUSTER", "NODES")], NODE_S)
            finally:
                await link.close()
        if isinstance(reply, RedisError):
            raise reply
        return NodeView(claims_of(reply), members_of(reply))
    except (RedisError, OSError, ValueError) as error:
        return f"{node}: {str(error) or 'no reply in time'}"
