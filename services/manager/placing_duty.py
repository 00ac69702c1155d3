"""A manager's duty about where partitions are: `services.manager.out_cluster`, over the catalog and
all storage clusters, which it opens when it leads for the first time. One that is away is no reason
not to; without the first one, which has the catalog, there is nothing to do.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from gateway.stores.storage_clusters import (
    INCARNATION_OF,
    Others,
    examine_all,
    open_shard,
    places_of,
)
from gateway.stores.store_marks import ClusterMark
from metadata import clusters
from metadata.client import STORAGE_INCARNATION
from metadata.clusters import Look
from metadata.inprocess import InProcessMetadata
from metadata.redis.redis_database import RedisDatabase
from metadata.redis.shards import Shard
from metadata.row_store import RowStore
from metadata.service.asking_nodes import AskingNodes
from metadata.service.remote_database import RemoteDatabase
from metadata.stores import Contents
from push.errors import Refused
from runtime.scale_hook import ScaleHook
from services.manager.leader import Leader
from services.manager.out_cluster import STEP_S, OutCluster
from storage.placed import PlacedStorage
from storage.redis.ops.redis_use import use_of
from storage.redis.redis_target import Target


@dataclass(frozen=True, slots=True)
class Placing:
    """How it is done. `targets`: the clusters, the first of which has the catalog, as a user who
    may read and write there; `hook`: None: nobody is told when they are too few or too many;
    `hot_share`: of its memory, from which on a cluster is given no new partition."""

    targets: Sequence[Target]
    hook: ScaleHook | None = None
    hot_share: float = clusters.HOT_SHARE
    nodes: Callable[[], AskingNodes] | None = None
    """Of the metadata service, where gateways have the catalog from one: it may stand over another
    database than the first cluster. None: the catalog is there."""


class PlacingDuty:
    """See `services.manager.manager.Duty`."""

    name = "storage clusters"

    def __init__(self, placing: Placing, on_fatal: Callable[[str], None]) -> None:
        self._placing = placing
        self._targets = placing.targets
        self._on_fatal = on_fatal
        self._opened = AsyncExitStack()
        self._out: OutCluster | None = None
        self._term = 0

    async def step(self, leader: Leader) -> float:
        """See Duty. Raises TocsinError: something keeps it from the catalog, or from a part of what
        is to be done."""
        if self._out is None:
            self._out = await self._open(leader)
        if leader.term != self._term:
            self._term = leader.term
            self._out.begin_anew()
        await self._out.step(now=asyncio.get_running_loop().time())
        return STEP_S

    async def _open(self, leader: Leader) -> OutCluster:
        async with AsyncExitStack() as opened:
            (first, *_) = await examine_all(self._targets[0])
            mark = ClusterMark(incarnation=first.incarnation or "")  # without one it is refused
            shard = await open_shard(self._targets[0], mark, self._on_fatal)
            opened.push_async_callback(shard.close)
            metadata = InProcessMetadata(*await self._rows(shard))
            opened.push_async_callback(metadata.close)
            known = metadata.mark(STORAGE_INCARNATION)
            if known not in (None, mark.incarnation):  # what it has dropped is elsewhere (R30)
                raise Refused(
                    "storage_unavailable",
                    f"{self._targets[0].shown} is of the incarnation {mark.incarnation}, and the "
                    f"catalog knows {known}: one of the two has been exchanged",
                )
            others = Others(self._targets[1:], None, metadata, None)
            home = (self._targets[0].cluster, shard)
            storage = PlacedStorage(places_of(home, others, metadata, mark.incarnation))
            opened.push_async_callback(storage.close)
            out = OutCluster(
                metadata, storage, partial(self._look, metadata), leads=lambda: leader.leads,
                hook=self._placing.hook, hot_share=self._placing.hot_share,
            )  # fmt: skip
            opened.push_async_callback(out.stop)
            self._opened = opened.pop_all()
        return out

    async def _rows(self, shard: Shard) -> tuple[RowStore, Contents]:
        nodes = self._placing.nodes
        database = RemoteDatabase(nodes()) if nodes is not None else RedisDatabase(shard)
        try:
            return await RowStore.open(database, on_fatal=self._on_fatal)
        except BaseException:
            await database.close()
            raise

    async def _look(self, metadata: InProcessMetadata) -> list[Look]:
        """One that was emptied, or exchanged, is as good as away."""
        names = [INCARNATION_OF + target.cluster for target in self._targets]
        meant = map(metadata.mark, (STORAGE_INCARNATION, *names[1:]))
        uses = await asyncio.gather(*map(use_of, self._targets, meant))
        return [
            Look(target.cluster, target.zone, use.memory.used, use.memory.bound, use.why)
            for target, use in zip(self._targets, uses, strict=True)
        ]

    async def close(self) -> None:
        """See Duty."""
        await self._opened.aclose()
