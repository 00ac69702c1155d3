"""The storage clusters of a broker, each opened by itself; where new queues are placed.

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
"""Prefix of a cluster's name: the mark of the catalog that says which store is meant by it."""
NOT_TOLD: Final = "this gateway is not told where it is (TOCSIN_STORAGE)"
OPENED_WITHIN_S: Final = 5.0
"""Time that a start waits for clusters that are away, before it goes on without them."""
_LOG: Final = logging.getLogger("tocsin.storage")


async def open_shard(
    target: Target, mark: ClusterMark, on_fatal: OnFatal | None = None
) -> RedisShard | ClusterShard:
    """Open the connections to one cluster, which is the one that `mark` says. Raises like
    `RedisShard.open`."""
    parts = await target.parts()
    if target.kind == "cluster":
        return await ClusterShard.open(parts, mark.incarnation, mark.touches, on_fatal=on_fatal)
    one = parts[0].settings
    marks = Marks(mark.incarnation, mark.touches.get(one.key, 0))
    return await RedisShard.open(one, marks, on_fatal=on_fatal)


def touches_of(shard: RedisShard | ClusterShard) -> dict[str, int]:
    """Return the touches by the key of each shard."""
    return shard.touches if isinstance(shard, ClusterShard) else {shard.key: shard.touches}


class OtherClusters:
    """The clusters beside the first one: a `LazyShard` for each, by name."""

    def __init__(
        self,
        targets: Sequence[Target],
        mark: Mark | None,
        metadata: CatalogService,
        keeper: MarkKeeper | None,
    ) -> None:
        """`keeper` None: this process remembers nothing of them."""
        self._metadata = metadata
        self._keeper = keeper
        known = mark.others if mark is not None else {}
        if keeper is not None:
            for name, before in known.items():  # also of those that are away
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
                f"the catalog knows it by the incarnation {expected}, and this gateway by "
                f"{mark.incarnation}: one of the two has been exchanged",
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
    """Return the places of partitions, as the catalog says; `home`: the first cluster, of this
    incarnation."""

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
    """A cluster's shard, for the question whether it answers."""

    @property
    def answers(self) -> bool:
        """Whether it did, within the last seconds; nobody is asked."""


def place_queues_on(
    targets: Sequence[Target], metadata: CatalogService, shards: Mapping[str, Answering]
) -> None:
    """Have new queues placed on these clusters, as what is known of them says. Where there is one,
    nothing is said in their rows. `shards`: of each, by name; the first one may be away as well,
    where the catalog is elsewhere."""
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
        is_bounded = settings.overflow == "reject" and bool(
            settings.messages_max or settings.bytes_max
        )
        return place(queue_id, settings.partitions, candidates, is_bounded=is_bounded)

    metadata.place_queues(place_queue)


def _on_broken(name: str, why: str) -> None:
    """Log that what this process remembers of a cluster is about another store. Its shard refuses
    everything by itself; the other clusters have nothing to do with it."""
    _LOG.critical("the storage cluster %s is not used any more until a restart: %s", name, why)


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
        """`shards`: as of `place_queues_on`; `has_catalog`: the first one has it, no metadata
        service."""
        self._has_catalog = has_catalog
        self._targets = targets
        self._metadata = metadata
        self._shards = shards

    async def __call__(self, who: Principal | None) -> list[ClusterDescription]:
        """Describe the clusters in the order of the settings, then those that the settings do not
        name. `who`: the principal of whose tenant queues are counted; None: all."""
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
    """Whether this gateway knows every cluster that queues have partitions at; says so if not."""
    placed = {name for queue in metadata.list_all_queues() for name in queue.clusters}
    for name in sorted(placed - set(names)):
        _LOG.error("queues have partitions at the storage cluster %s: %s", name, NOT_TOLD)
    return placed <= set(names)


async def examine_all(target: Target) -> list[ExaminedShard]:
    """Examine every primary with its replicas. Raises Refused(storage_unavailable): one has no
    primary that answers."""
    return list(await asyncio.gather(*(examined(part.settings) for part in await target.parts())))


def check_shards(found: list[ExaminedShard], target: Target) -> None:
    """Check that the promises can be kept there. What stands in the way of the level `all` at the
    moment is only logged: it may be gone in a minute.

    Raises:
        Refused: storage_unavailable: a setting breaks a promise; nobody has provisioned it.
    """
    problems = [problem for one in found for problem in one.problems]
    if problems:
        raise Refused(
            "storage_unavailable",
            f"{target.shown} cannot keep what is promised:\n  " + "\n  ".join(problems) + "\n"
            "`tocsin admin doctor` looks again; deploy/redis has files that are right",
        )
    if any(one.incarnation is None for one in found):
        raise Refused(
            "storage_unavailable",
            f"{target.shown} has no incarnation: it was emptied, or never provisioned. When it is "
            "new: `tocsin admin provision --replicas N`, where N replicas could be elected",
        )
    for one in found:
        for server in one.servers:
            if server.unasked:
                _LOG.warning("%s could not be examined: %s", server.place, server.unasked)
        for doubt in one.doubts:
            _LOG.warning("%s", doubt)


@contextmanager
def explain_doubts(doubts: list[str]) -> Iterator[None]:
    """Explain failures within by these doubts about the level `all`, and say what is to be done."""
    try:
        yield
    except TocsinError as error:
        is_short = error.code.name in ("unknown", "storage_unavailable")
        if not doubts or not is_short or isinstance(error, NotOurs):
            raise
        raise Refused(
            "storage_unavailable",
            f"{error.detail}. A gateway starts when every copy has what it begins with, and now: "
            f"{'; '.join(doubts)}. Bring back what is missing; where it cannot be elected any "
            "more, say so with `tocsin admin set-replicas`",
        ) from error
