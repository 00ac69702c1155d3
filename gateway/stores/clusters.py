"""The storage clusters of a broker, each opened by itself, and the placement of new queues on them.

A cluster that is away is opened later, and only if it is the one that the catalog knows under its
name (R30).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from gateway.models import ClusterDescription
from gateway.stores.marks import ClusterMark, Mark, MarkKeeper
from metadata.catalog import Principal, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.placement import (
    CLUSTER_MARK,
    SCALING_MARK,
    candidate,
    clusters_to_remove,
    place,
    read_facts,
)
from push.errors import Refused, TocsinError
from push.storage_port import PLAIN, Sealer
from runtime.loop.fairness import TimeSlices
from storage.redis.cluster import ClusterShard
from storage.redis.lazy import LazyShard
from storage.redis.ops.examine import ExaminedShard, examined
from storage.redis.port import Shard
from storage.redis.replication import NotOurs
from storage.redis.shard import Marks, RedisShard
from storage.redis.store import RedisStorage
from storage.redis.target import Target
from storage.sharded import ClusterMap

OnFatal = Callable[[str], None]
INCARNATION_OF: Final = "storage incarnation of "
"""Prefix of the name of a mark in the catalog, which holds the incarnation of a cluster's store.
The cluster's name follows it."""
NOT_TOLD: Final = "this gateway's TOCSIN_STORAGE does not name it"
OPENED_WITHIN_S: Final = 5.0
"""Seconds that a start waits for clusters that are away, before it goes on without them."""
_LOG: Final = logging.getLogger("tocsin.storage")


async def open_shard(
    target: Target, mark: ClusterMark, on_fatal: OnFatal | None = None
) -> RedisShard | ClusterShard:
    """Open the connections to one cluster, which must be the one of `mark`. Raises like
    `RedisShard.open`."""
    parts = await target.parts()
    if target.kind == "cluster":
        return await ClusterShard.open(parts, mark.incarnation, mark.touches, on_fatal=on_fatal)
    one = parts[0].settings
    marks = Marks(mark.incarnation, mark.touches.get(one.key, 0))
    return await RedisShard.open(one, marks, on_fatal=on_fatal)


def touches_of(shard: RedisShard | ClusterShard) -> dict[str, int]:
    """Return the number of touches (R30) that every copy of a shard has, by the key of the
    shard."""
    return shard.touches if isinstance(shard, ClusterShard) else {shard.key: shard.touches}


class OtherClusters:
    """The storage clusters other than the first one. `shards` has a `LazyShard` for each, by
    name."""

    def __init__(
        self,
        targets: Sequence[Target],
        mark: Mark | None,
        metadata: CatalogService,
        keeper: MarkKeeper | None,
    ) -> None:
        """Begin to open the clusters. Without a `keeper` this process remembers no marks of
        them."""
        self._metadata = metadata
        self._keeper = keeper
        known = mark.others if mark is not None else {}
        if keeper is not None:
            for name, before in known.items():  # marks of clusters that are away are kept too
                keeper.add(name, partial(_unchanged, before))
        self.shards = {
            target.cluster: LazyShard(
                target.cluster, partial(self._open, target, known.get(target.cluster))
            )
            for target in targets
        }

    async def wait(self) -> None:
        """Wait until all are open, or OPENED_WITHIN_S have passed."""
        waits = [asyncio.ensure_future(shard.is_open.wait()) for shard in self.shards.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=OPENED_WITHIN_S)
            for wait in late:
                wait.cancel()

    async def _open(self, target: Target, known: ClusterMark | None) -> RedisShard | ClusterShard:
        found = await examine_all(target)
        check_shards(found, target)
        name, there = INCARNATION_OF + target.cluster, found[0].incarnation or ""
        expected = self._metadata.mark(name)
        mark = known or ClusterMark(incarnation=expected or there)
        if expected not in (None, mark.incarnation):
            raise Refused(
                "storage_unavailable",
                f"the catalog knows it by the incarnation {expected}, but this gateway by "
                f"{mark.incarnation}, so one of the two has been exchanged: put the right one back",
            )
        with explain_doubts([doubt for one in found for doubt in one.doubts]):
            shard = await open_shard(target, mark, partial(_on_broken, target.cluster))
        try:
            if expected is None:
                await self._metadata.set_mark(name, mark.incarnation)
        except BaseException:
            await shard.close()
            raise
        if self._keeper is not None:
            self._keeper.add(
                target.cluster,
                lambda: ClusterMark(incarnation=mark.incarnation, touches=touches_of(shard)),
            )
        return shard


def places_of(
    home: tuple[str, Shard],
    others: OtherClusters,
    metadata: CatalogService,
    incarnation: str,
    sealer: Sealer = PLAIN,
) -> ClusterMap:
    """Return a map from each partition to the store of the cluster where the catalog has placed it.
    `home`: the name and the shard of the first cluster. `incarnation`: the one of the first
    cluster's store."""

    def clusters_of(queue_id: str) -> Sequence[str] | None:
        queue = metadata.queue_by_id(queue_id)
        return queue.clusters if queue is not None else None

    shards: dict[str, Shard] = {home[0]: home[1], **others.shards}
    stores = {
        name: RedisStorage(shard, incarnation, sealer=sealer) for name, shard in shards.items()
    }
    elsewhere = RedisStorage(LazyShard("that was meant", None, NOT_TOLD), "", sealer=sealer)
    return ClusterMap(stores, elsewhere, clusters_of)


class Answering(Protocol):
    """A cluster's shard that can say whether it answers."""

    @property
    def answers(self) -> bool:
        """Whether the cluster has answered within the last seconds. Reading this sends no
        request."""


def place_queues_on(
    targets: Sequence[Target], metadata: CatalogService, shards: Mapping[str, Answering]
) -> None:
    """Have the catalog place new queues on these clusters, by their state in the catalog. If there
    is only one cluster, rows of queues name no cluster. `shards`: the shard of each cluster, by
    name. The first cluster may be away too, if the catalog is in a metadata service."""
    if len(targets) == 1:
        return

    def place_queue(queue_id: str, settings: QueueSettings) -> tuple[str, ...]:
        candidates = [
            candidate(
                target.cluster,
                target.zone,
                read_facts(metadata.mark(CLUSTER_MARK + target.cluster)),
                answers=shards[target.cluster].answers,
            )
            for target in targets
        ]
        leaving = clusters_to_remove(metadata.mark(SCALING_MARK))
        remaining = [one for one in candidates if one.name not in leaving]
        if any(one.state == "well" for one in remaining):
            candidates = remaining
        is_bounded = any(settings.due_bounds) or (
            settings.overflow == "reject" and bool(settings.messages_max or settings.bytes_max)
        )
        return place(queue_id, settings.partitions, candidates, is_bounded=is_bounded)

    metadata.place_queues(place_queue)


def _on_broken(name: str, why: str) -> None:
    """Log that the state that this process has of a cluster belongs to another store. The cluster's
    shard then refuses everything by itself; the other clusters are not affected."""
    _LOG.critical("the storage cluster %s is not used until a restart: %s", name, why)


def _unchanged(mark: ClusterMark) -> ClusterMark:
    return mark


class ClusterDescriber:
    """Descriptions of the clusters for operators."""

    def __init__(
        self,
        targets: Sequence[Target],
        metadata: CatalogService,
        shards: Mapping[str, Answering],
        *,
        has_catalog: bool = True,
    ) -> None:
        """Describe these targets. `shards`: the shard of each cluster, by name. `has_catalog`:
        whether the catalog is in the first cluster, not in a metadata service."""
        self._has_catalog = has_catalog
        self._targets = targets
        self._metadata = metadata
        self._shards = shards

    async def __call__(self, who: Principal | None) -> list[ClusterDescription]:
        """Describe the clusters in the order of the settings, then those that the settings do not
        name. `who`: only queues of this principal's tenant are counted; None: all queues."""
        home, metadata = self._targets[0].cluster, self._metadata
        queues, partitions, slices = Counter[str](), Counter[str](), TimeSlices()
        for queue in metadata.list_queues(who) if who else metadata.list_all_queues():
            await slices.yield_if_over()
            cycle = queue.clusters or (home,)
            queues.update(set(cycle))
            rounds, rest = divmod(len(queue.members), len(cycle))
            for number, name in enumerate(cycle):
                partitions[name] += rounds + (number < rest)
        zones = {target.cluster: target.zone for target in self._targets}
        return [
            self._describe(name, zones.get(name, ""), queues[name], partitions[name])
            for name in [*zones, *sorted(set(queues) - set(zones))]
        ]

    def _describe(self, name: str, zone: str, queues: int, partitions: int) -> ClusterDescription:
        facts = read_facts(self._metadata.mark(CLUSTER_MARK + name))
        shard = self._shards.get(name)
        return ClusterDescription(
            name=name,
            zone=zone,
            state=facts.state if facts is not None else "well",
            since_unix_ms=facts.since_unix_ms if facts is not None else None,
            why=facts.why if facts is not None else "",
            used_bytes=facts.used_bytes if facts is not None else None,
            bound_bytes=facts.bound_bytes if facts is not None else None,
            answers=shard is not None and shard.answers,
            has_catalog=self._has_catalog and name == self._targets[0].cluster,
            queues=queues,
            partitions=partitions,
        )


def knows_all_clusters(metadata: CatalogService, names: Sequence[str]) -> bool:
    """Whether this gateway knows every cluster on which queues have partitions. Logs an error for
    each that it does not know."""
    placed = {name for queue in metadata.list_all_queues() for name in queue.clusters}
    for name in sorted(placed - set(names)):
        _LOG.error("queues have partitions on the storage cluster %s, but %s", name, NOT_TOLD)
    return placed <= set(names)


async def examine_all(target: Target) -> list[ExaminedShard]:
    """Examine every primary of a cluster, with its replicas. Raises Refused(storage_unavailable) if
    a primary does not answer."""
    return list(await asyncio.gather(*(examined(part.settings) for part in await target.parts())))


def check_shards(found: list[ExaminedShard], target: Target) -> None:
    """Check that these servers can keep the promises. Obstacles to the level `all` at the moment
    are only logged, because they may be gone in a minute.

    Raises:
        Refused: storage_unavailable, if a setting breaks a promise, or the store is not
            provisioned.
    """
    problems = [problem for one in found for problem in one.problems]
    if problems:
        raise Refused(
            "storage_unavailable",
            f"{target.shown} cannot keep Tocsin's promises:\n  " + "\n  ".join(problems) + "\n"
            "Correct its settings (deploy/redis has correct files), and check it with `tocsin "
            "admin doctor`",
        )
    if any(one.incarnation is None for one in found):
        raise Refused(
            "storage_unavailable",
            f"{target.shown} has no incarnation, because it was emptied or never provisioned. If "
            "it is new, run `tocsin admin provision --replicas N`, where N is the number of "
            "replicas that may be elected",
        )
    for one in found:
        for server in one.servers:
            if server.unasked:
                _LOG.warning("%s could not be examined: %s", server.place, server.unasked)
        for doubt in one.doubts:
            _LOG.warning("%s", doubt)


@contextmanager
def explain_doubts(doubts: list[str]) -> Iterator[None]:
    """Explain failures inside by these doubts about the level `all`, and say what to do."""
    try:
        yield
    except TocsinError as error:
        is_short = error.code.name in ("unknown", "storage_unavailable")
        if not doubts or not is_short or isinstance(error, NotOurs):
            raise
        raise Refused(
            "storage_unavailable",
            f"{error.detail}. A gateway can start only when all copies answer, but "
            f"{'; '.join(doubts)}. Bring the missing copy back. If it cannot be elected any more, "
            "lower the number of replicas with `tocsin admin set-replicas`",
        ) from error
