"""The shards of the catalog: which nodes keep which, and a node's copy of its own. Pure.

    shard     a row belongs to one of SHARDS, by a hash of its kind and id
    ring      each node has POINTS points on a circle; the holders of a shard are the first
              `replicas` nodes that are met from its own point on
    rows      those of the shards that a node holds, as they are at `place`
    steps     the changes that the last reads of the database brought, of all shards, so that any
              node can report to its followers what has changed, also in shards of others

The ring is a pure function of the set of nodes, so processes that know the same nodes find the same
holders. A node that joins takes its place among the holders of some shards, and one other node
leaves each of these. When a node leaves, one other node follows it in each of its shards. No other
shard changes. Values are the bytes of the database: no node decodes them.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from metadata.backend import CHANGES_KEPT, CatalogPlace, CatalogRows, Raw
from metadata.row_store import FOLLOWED

SHARDS: Final = 64
"""Number of shards: rows of a catalog of 100,000 queues come in parts of about a MiB. Never changed
while nodes of several versions run, because they would not find each other's rows."""
POINTS: Final = 64
"""Points of each node on the circle. The busiest node keeps a fifth more than its share as a rule,
half as much again at worst. More points make that no better, because there are 64 shards."""
REPLICAS: Final = 3
_PERSON: Final = b"tocsin.shards.1"


def shard_of(kind: str, row_id: str) -> int:
    """Return the shard of a row."""
    return _hash(f"{kind}:{row_id}") % SHARDS


def holders(shard: int, nodes: Iterable[str], replicas: int = REPLICAS) -> tuple[str, ...]:
    """Return the nodes that keep a shard: `replicas` different nodes, or all if there are fewer.
    The first one is asked first. () without nodes."""
    return _holders(shard, tuple(sorted(set(nodes))), replicas)


def held(node: str, nodes: Collection[str], replicas: int = REPLICAS) -> frozenset[int]:
    """Return the shards that `node` keeps among these nodes and itself."""
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


Rows = dict[str, dict[str, bytes]]
"""Kind → id → value."""


class NotInMemory(Exception):
    """Error: this copy does not have the rows; the database or another node has them."""


@dataclass(frozen=True, slots=True)
class _Step:
    before: CatalogPlace
    after: CatalogPlace
    raw: Raw


class ShardCopy:
    """A node's copy of its shards. It begins with a read of everything."""

    def __init__(self, reading: CatalogRows, shards: Collection[int]) -> None:
        self.place = reading.place
        """The moment of the catalog that this copy shows."""
        self.secret = reading.secret
        self._steps: deque[_Step] = deque()
        self._rows: dict[int, Rows] = {}
        self._take(reading.raw, shards)

    @property
    def shards(self) -> frozenset[int]:
        """The shards whose rows this copy has."""
        return frozenset(self._rows)

    def learn(self, reading: CatalogRows) -> None:
        """Take over the changes since `place` that the database has returned, or everything."""
        self.secret = reading.secret
        if reading.is_all:
            self._steps.clear()
            shards = self.shards
            self._rows = {}
            self._take(reading.raw, shards)
        else:
            raw = {kind: rows for kind, rows in reading.raw.items() if kind in FOLLOWED and rows}
            self._steps.append(_Step(self.place, reading.place, raw))
            self._apply(raw, self._rows)
        self.place = reading.place
        while self._steps and self._steps[0].before.version < self.place.version - CHANGES_KEPT:
            self._steps.popleft()

    def hold(self, shards: Collection[int], reading: CatalogRows) -> bool:
        """Hold more shards from now on; `reading` is a recent read of everything. False, and
        nothing happens, if it is too old, or newer than this copy."""
        if reading.place.version > self.place.version:
            return False
        if reading.place != self.place and all(
            step.before != reading.place for step in self._steps
        ):
            return False
        gained = {shard for shard in shards if shard not in self._rows}
        self._take(reading.raw, gained)
        rows = {shard: self._rows[shard] for shard in gained}
        for step in self._steps:
            if step.after.version > reading.place.version:
                self._apply(step.raw, rows)
        return True

    def let_go(self, shards: Collection[int]) -> None:
        """Hold these shards no more."""
        for shard in shards:
            self._rows.pop(shard, None)

    def shard(self, number: int) -> Rows:
        """Return the rows of a shard at `place`. Raises NotInMemory."""
        rows = self._rows.get(number)
        if rows is None:
            raise NotInMemory
        return rows

    def since(self, seen: CatalogPlace) -> CatalogRows | None:
        """Return what has changed since `seen`; None if nothing has. Raises NotInMemory when `seen`
        is too old, or was perhaps never part of this catalog."""
        if seen == self.place:
            return None
        raw: Raw = {}
        for step in reversed(self._steps):
            for kind, rows in step.raw.items():
                raw[kind] = rows | raw.get(kind, {})
            if step.before == seen:
                return CatalogRows(self.place, raw, False, self.secret)
        raise NotInMemory

    def _take(self, raw: Raw, shards: Collection[int]) -> None:
        for shard in shards:
            self._rows[shard] = {}
        self._apply(raw, {shard: self._rows[shard] for shard in shards})

    @staticmethod
    def _apply(raw: Raw, into: dict[int, Rows]) -> None:
        for kind, rows in raw.items():
            for row_id, value in rows.items():
                there = into.get(shard_of(kind, row_id))
                if there is None:
                    continue
                if value is None:
                    there.get(kind, {}).pop(row_id, None)
                else:
                    there.setdefault(kind, {})[row_id] = value


def rows_of(raw: Raw, shard: int) -> Rows:
    """Return those of all rows that belong to a shard."""
    found: Rows = {}
    for kind, rows in raw.items():
        for row_id, value in rows.items():
            if value is not None and shard_of(kind, row_id) == shard:
                found.setdefault(kind, {})[row_id] = value
    return found
