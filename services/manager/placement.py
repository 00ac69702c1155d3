"""A manager's duty about the places of partitions, over the catalog and all storage clusters.

It probes each cluster and keeps the facts in the catalog, by which new queues are placed. It frees
what deleted queues held and no gateway has freed. It calls the hook when clusters are too few or
too many.

Every step can be done twice, or by two managers at once, without harm. Facts are what was found,
and a leader corrects what the previous one has written late. Dropping something twice changes
nothing, and a wish is numbered in the catalog before its hook is called.

The clusters are opened when this manager leads for the first time. It leads even if one is away;
without the first one, which has the catalog, it has nothing to do.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from gateway.stores.clusters import (
    INCARNATION_OF,
    OtherClusters,
    examine_all,
    open_shard,
    places_of,
)
from gateway.stores.marks import ClusterMark
from metadata.backend import Contents
from metadata.catalog import Queue
from metadata.catalog_service import CatalogService
from metadata.placement import (
    CLUSTER_MARK,
    HOT_SHARE,
    SCALING_MARK,
    ClusterFacts,
    ClusterProbe,
    Clusters,
    Scaling,
    Wish,
    encode_facts,
    encode_wish,
    read_facts,
    read_wish,
)
from metadata.port import STORAGE_INCARNATION
from metadata.redis.database import CatalogShard, RedisDatabase
from metadata.row_store import RowStore
from metadata.service.client import NodeClient, RemoteDatabase
from push.errors import Refused, TocsinError
from runtime.webhook import HOOK_S, HookFailed, ScaleHook
from services.manager.leader import Leader
from storage.redis.ops.observe import use_of
from storage.redis.target import Target
from storage.sharded import ShardedStorage

STEP_S: Final = 2.0
"""Seconds from the end of one step of this duty to the next."""
LEFT_S: Final = 30.0
"""Seconds that a manager leaves deleted queues and groups to the gateway that deleted them, before
it frees them."""
HOOK_AGAIN_S: Final = 60.0
"""Seconds before a failed hook is called again."""
_LOG: Final = logging.getLogger("tocsin.manager")


class Catalog(Protocol):
    """The part of `metadata.port.Metadata` that is needed."""

    def mark(self, name: str) -> str | None:
        """Return the text that was last stored under this name; None if none was."""

    async def set_mark(self, name: str, value: str) -> None:
        """Store a text under this name in the catalog, durably."""

    def list_all_queues(self) -> list[Queue]:
        """Return every tenant's queues."""

    def dropped(self) -> list[tuple[str, str | None]]:
        """Return (queue_id, group_id or None) of deleted queues and groups that may still be in the
        storage."""

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        """Note that the storage, too, has dropped this group, or with None this queue."""


class Dropping(Protocol):
    """The part of `push.storage_port.Storage` that is needed."""

    async def drop_queue(self, queue_id: str) -> None:
        """Drop a queue with everything in it. If that was done before, nothing happens."""

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        """Drop a group's cursors. If that was done before, nothing happens."""


class OutCluster:
    """The decisions of the duty. `look` probes all clusters, the first of which has the catalog;
    `leads`: whether this manager may act at this moment; `hook`: None if none is called."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Dropping,
        look: Callable[[], Awaitable[Sequence[ClusterProbe]]],
        *,
        leads: Callable[[], bool],
        hook: ScaleHook | None = None,
        hot_share: float = HOT_SHARE,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._look = look
        self._leads = leads
        self._hook = hook
        self._hot_share = hot_share
        self._wall = wall
        self._clusters: Clusters | None = None
        """Facts of all clusters; None: they are to be read from the catalog, because another
        manager may have led since this one's last step."""
        self._scaling = Scaling()
        self._left: dict[tuple[str, str | None], float] = {}
        """Deleted queue or group that is not freed → when it was first seen so, or this manager
        tried last to free it."""
        self._hook_task: asyncio.Task[None] | None = None
        self._tell_at = float("-inf")

    async def step(self, *, now: float) -> None:
        """Make one round, while this manager leads; `now` in seconds of the loop's clock. Raises
        TocsinError at its end when a part of it failed; the next round tries that again."""
        if not self._leads():
            self.begin_anew()
            return
        looks = await self._look()
        await _all_of(
            [
                lambda: self._facts(looks, now),
                lambda: self._wishes(looks[0].name, now),
                lambda: self._free(now),
            ]
        )

    def begin_anew(self) -> None:
        """Have the next step read all facts anew from the catalog, because another manager may have
        led meanwhile."""
        self._clusters = None
        self._left.clear()

    async def stop(self) -> None:
        """Break off a call of the hook that is under way. The next leader makes the call again."""
        if self._hook_task is not None:
            self._hook_task.cancel()
            await asyncio.wait([self._hook_task])

    # --- What is found -------------------------------------------------------------------------

    async def _facts(self, looks: Sequence[ClusterProbe], now: float) -> None:
        if self._clusters is None:
            marks = [self._catalog.mark(CLUSTER_MARK + look.name) for look in looks]
            known = [facts for facts in map(read_facts, marks) if facts is not None]
            self._clusters = Clusters(known, hot_share=self._hot_share)
            self._scaling = Scaling(read_wish(self._catalog.mark(SCALING_MARK)))
            self._tell_at = now + HOOK_S  # the previous leader may be calling it still
        found = self._clusters.looked(looks, now=now, wall_unix_ms=int(self._wall() * 1000))
        found += [
            one
            for one in self._clusters.facts
            if one not in found and self._is_another_in_the_catalog(one)
        ]
        for facts in found:
            if not self._leads():
                return
            before = read_facts(self._catalog.mark(CLUSTER_MARK + facts.name))
            await self._catalog.set_mark(CLUSTER_MARK + facts.name, encode_facts(facts))
            self._clusters.told(facts, now=now)
            if before is None or before.state != facts.state:
                level = logging.INFO if facts.state == "well" else logging.WARNING
                _LOG.log(
                    level,
                    "the storage cluster %s is now %s: %d of %d bytes are used%s",
                    facts.name,
                    facts.state,
                    facts.used_bytes,
                    facts.bound_bytes,
                    f"; {facts.why}" if facts.why else "",
                )

    def _is_another_in_the_catalog(self, one: ClusterFacts) -> bool:
        """Whether the catalog has no facts about this cluster, or another state, because a previous
        leader has written its own late."""
        held = read_facts(self._catalog.mark(CLUSTER_MARK + one.name))
        return held is None or held.state != one.state

    # --- Too few, too many ---------------------------------------------------------------------

    async def _wishes(self, home: str, now: float) -> None:
        assert self._clusters is not None
        in_use = {home}
        for queue in self._catalog.list_all_queues():
            in_use.update(queue.clusters)
        wish = self._scaling.looked(
            self._clusters.facts, in_use, now=now, wall_unix_ms=int(self._wall() * 1000)
        )
        if wish is not None and self._leads():
            await self._keep(msgspec.structs.replace(wish, has_hook=self._hook is not None))
            self._tell_at = now
            _LOG.warning("storage clusters: %s %s", wish.kind, ", ".join(wish.clusters))
        is_due = not self._scaling.wish.is_told and now >= self._tell_at
        if self._hook is not None and is_due and self._hook_task is None and self._leads():
            self._tell_at = now + HOOK_AGAIN_S
            self._hook_task = asyncio.create_task(self._tell(self._hook, self._scaling.wish))
            self._hook_task.add_done_callback(self._on_hook_end)

    async def _keep(self, wish: Wish) -> None:
        await self._catalog.set_mark(SCALING_MARK, encode_wish(wish))
        self._scaling.kept(wish)

    async def _tell(self, hook: ScaleHook, wish: Wish) -> None:
        assert self._clusters is not None
        facts = [
            {**msgspec.to_builtins(one), "used_share": round(one.used_share, 4)}
            for one in self._clusters.facts
        ]
        body = msgspec.json.encode(
            {
                "number": wish.number,
                "wish": wish.kind,
                "remove": list(wish.clusters),
                "since_unix_ms": wish.since_unix_ms,
                "clusters": facts,
            }
        )
        try:
            await hook.tell(body)
            held = read_wish(self._catalog.mark(SCALING_MARK))
            if self._leads() and self._scaling.wish == wish == held:  # else another one led since
                await self._keep(msgspec.structs.replace(wish, is_told=True))
        except HookFailed as error:
            _LOG.error("the scale hook could not be called: %s", error)
        except TocsinError as error:  # it is called again, under the same number
            _LOG.warning("the call of the scale hook could not be recorded: %s", error)

    def _on_hook_end(self, task: "asyncio.Task[None]") -> None:
        self._hook_task = None
        if not task.cancelled():
            task.result()

    # --- What deleted queues held ----------------------------------------------------------------

    async def _free(self, now: float) -> None:
        dropped = self._catalog.dropped()
        self._left = {one: self._left.get(one, now) for one in dropped}
        due = [one for one in dropped if now - self._left[one] >= LEFT_S]
        self._left |= dict.fromkeys(due, now)  # the time of the next attempt counts from now
        await _all_of([partial(self._drop, *one) for one in due])

    async def _drop(self, queue_id: str, group_id: str | None) -> None:
        if not self._leads():
            return
        if group_id is None:
            await self._storage.drop_queue(queue_id)
        else:
            await self._storage.drop_group(group_id, queue_id)
        await self._catalog.forget(queue_id, group_id)
        _LOG.info("%s was deleted, and is now freed in the storage", group_id or queue_id)


async def _all_of(acts: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all acts, one after another, even if one fails, because the cause may last for days. Then
    raises the first TocsinError."""
    failed: TocsinError | None = None
    for act in acts:
        try:
            await act()
        except TocsinError as error:
            failed = failed or error
    if failed is not None:
        raise failed


@dataclass(frozen=True, slots=True)
class Placing:
    """Settings of the care for partitions. `targets`: the clusters, the first of which has the
    catalog, with a user that may read and write there. `hook`: called when there are too few or too
    many clusters; None for no hook. `hot_share`: used share of memory from which on a cluster gets
    no new partition, unless all are hot."""

    targets: Sequence[Target]
    hook: ScaleHook | None = None
    hot_share: float = HOT_SHARE
    nodes: Callable[[], NodeClient] | None = None
    """Client of the metadata service, if gateways get the catalog from one. It may work over
    another database than the first storage cluster. None if the catalog is in that cluster."""


class PlacingDuty:
    """A `services.manager.manager.Duty` over the catalog and all storage clusters."""

    name = "storage clusters"

    def __init__(self, placing: Placing, on_fatal: Callable[[str], None]) -> None:
        self._placing = placing
        self._targets = placing.targets
        self._on_fatal = on_fatal
        self._opened = AsyncExitStack()
        self._out: OutCluster | None = None
        self._term = 0

    async def step(self, leader: Leader) -> float:
        """Probe all clusters and do what is due. Raises TocsinError when the catalog cannot be
        opened, or a part of the step failed."""
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
            metadata = CatalogService(*await self._rows(shard))
            opened.push_async_callback(metadata.close)
            known = metadata.mark(STORAGE_INCARNATION)
            if known not in (None, mark.incarnation):  # what it has dropped is elsewhere (R30)
                raise Refused(
                    "storage_unavailable",
                    f"{self._targets[0].shown} has the incarnation {mark.incarnation}, but the "
                    f"catalog knows {known}, so one of the two has been exchanged: put the right "
                    "one back",
                )
            others = OtherClusters(self._targets[1:], None, metadata, None)
            home = (self._targets[0].cluster, shard)
            storage = ShardedStorage(places_of(home, others, metadata, mark.incarnation))
            opened.push_async_callback(storage.close)
            out = OutCluster(
                metadata,
                storage,
                partial(self._look, metadata),
                leads=lambda: leader.leads,
                hook=self._placing.hook,
                hot_share=self._placing.hot_share,
            )
            opened.push_async_callback(out.stop)
            self._opened = opened.pop_all()
        return out

    async def _rows(self, shard: CatalogShard) -> tuple[RowStore, Contents]:
        nodes = self._placing.nodes
        database = RemoteDatabase(nodes()) if nodes is not None else RedisDatabase(shard)
        try:
            return await RowStore.open(database, on_fatal=self._on_fatal)
        except BaseException:
            await database.close()
            raise

    async def _look(self, metadata: CatalogService) -> list[ClusterProbe]:
        """Probe all clusters. The probe of one that does not answer, was emptied, or was exchanged
        says `why`."""
        names = [INCARNATION_OF + target.cluster for target in self._targets]
        meant = map(metadata.mark, (STORAGE_INCARNATION, *names[1:]))
        uses = await asyncio.gather(*map(use_of, self._targets, meant))
        return [
            ClusterProbe(target.cluster, target.zone, use.memory.used, use.memory.bound, use.why)
            for target, use in zip(self._targets, uses, strict=True)
        ]

    async def close(self) -> None:
        await self._opened.aclose()
