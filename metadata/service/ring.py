"""Which nodes of the metadata service keep which shard of the catalog in memory. Pure.

    shard     a row belongs to one of SHARDS, by a hash of its kind and id
    ring      each node has POINTS points on a circle; the holders of a shard are the first
              `replicas` nodes that are met from its own point on

A pure function of the set of nodes: whoever knows the same nodes finds the same holders. A node
that joins takes its place among the holders of some shards, and of each of these one other node
leaves; one that leaves is followed by one other node in each of its own. No other shard changes.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

SHARDS: Final = 64
"""Rows of a catalog of 100,000 queues come in parts of about a MiB. Never changed while nodes of
several versions run: they would not find each other's rows."""
POINTS: Final = 64
"""The busiest node keeps a fifth more than its share as a rule, half as much again at worst; more
points make that no better, for there are 64 shards."""
REPLICAS: Final = 3
_PERSON: Final = b"tocsin.shards.1"


def shard_of(kind: str, row_id: str) -> int:
    """The shard of a row."""
    return _hash(f"{kind}:{row_id}") % SHARDS


def holders(shard: int, nodes: Iterable[str], replicas: int = REPLICAS) -> tuple[str, ...]:
    """Who keeps a shard: `replicas` different nodes, or all there are. The first one is asked
    first. Nobody is there: ()."""
    return _holders(shard, tuple(sorted(set(nodes))), replicas)


def held(node: str, nodes: Collection[str], replicas: int = REPLICAS) -> frozenset[int]:
    """The shards that a node keeps, of these nodes and itself."""
    everybody = {*nodes, node}
    return frozenset(
        shard for shard in range(SHARDS) if node in holders(shard, everybody, replicas)
    )


@lru_cache(maxsize=4 * SHARDS)
def _holders(shard: int, nodes: tuple[str, ...], replicas: int) -> tuple[str, ...]:
    points = _circle(nodes)
    found: dict[str, None] = {}
    first = bisect_right(points, (_hash(f"shard {shard}"), ""))
    for number in range(len(points)):
        found[points[(first + number) % len(points)][1]] = None
        if len(found) == replicas:
            break
    return tuple(found)


@lru_cache(maxsize=8)
def _circle(nodes: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted((_hash(f"{node} {number}"), node) for node in nodes for number in range(POINTS))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8, person=_PERSON).digest(), "big")
