"""The process of `tocsin manager serve`, one of several, of which one leads and does the duties.

start    find the catalog's database (the first cluster), and take part
lead     each duty makes its steps, until this manager leads no more
stop     on SIGTERM or SIGINT: end the step under way, let another one lead at once, exit 0
at once  with exit code 70 when the database is not the one that it was (R30)
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from push.errors import Refused, TocsinError
from runtime import process as supervisor
from runtime.metrics.exposition import MetricsServer, Samples
from runtime.metrics.process import LoopLag, of_process
from runtime.process import end_at_once
from services.manager.keeper import ClusterKeeper, ClusterTold
from services.manager.leader import Leader, RedisLeaderRow
from services.manager.placement import Placing, PlacingDuty
from services.manager.rules.election import AWAY_S
from storage.redis.cluster import ClusterShard
from storage.redis.connection import pack
from storage.redis.ops.observe import WatchedShard
from storage.redis.replication import NotOurs
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.target import Target

AGAIN_S: Final = 1.0
"""Seconds until a failed step is tried again; also between two writes of the reports, and between
two tries to reach the catalog's database at the start."""
DONE_S: Final = 3600.0
"""Seconds until the next step of a duty that has nothing more to do."""
_LOG: Final = logging.getLogger("tocsin.manager")


class Duty(Protocol):
    """A task that the leading manager does again and again."""

    name: str

    async def step(self, leader: Leader) -> float:
        """Do one step, and return in how many seconds the next one is due. A step reads
        `leader.leads` before every act. Raises TocsinError when it failed: the step is tried again
        after AGAIN_S, and the error is logged if it is another one than before."""

    async def close(self) -> None:
        """Close what the duty has opened, after its last step."""


class ManagerMetrics:
    """Metrics of a manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: Counter[tuple[str, str]] = Counter()
        self.lag = LoopLag()

    def on_step(self, duty: str, *, is_done: bool) -> None:
        """Count a step of the duty of this name, which was done or has failed."""
        self._steps[duty, "done" if is_done else "failed"] += 1

    def collect(self, *, leads: bool, term: int, told: Mapping[str, ClusterTold | None]) -> Samples:
        """Return the present samples. `told`: cluster → this manager's last report on it, None if
        it has none. Reports are left out if this manager does not lead."""
        began, samples = time.perf_counter(), Samples()
        of_process(samples, "manager", self._name, self.lag)
        samples.put("tocsin_manager_leads", leads)
        samples.put("tocsin_manager_term", term)
        for (duty, outcome), count in sorted(self._steps.items()):
            samples.put("tocsin_manager_steps_total", count, duty, outcome)
        for cluster, one in told.items():
            if one is None or not leads:  # a former leader knows only how it was
                continue
            for server in one.servers:
                samples.put("tocsin_manager_servers", 1, cluster, server.state)
            behind = max((server.behind_bytes for server in one.servers), default=0)
            samples.put("tocsin_manager_behind_bytes", behind, cluster)
            age_s = max(0.0, time.time() - one.seen_unix_s)
            samples.put("tocsin_manager_seen_age_seconds", age_s, cluster)
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples


class Manager:
    """A running manager, inside an event loop; `open` makes it."""

    def __init__(
        self,
        shard: RedisShard | ClusterShard,
        keepers: Sequence[ClusterKeeper],
        others: Sequence[Duty] = (),
        unseen: Sequence[tuple[str, Target]] = (),
        *,
        away_s: float = AWAY_S,
    ) -> None:
        """Take over the duties. `unseen`: clusters (name, where) whose shards no node could name
        yet."""
        self._shard = shard
        self.leader = Leader(RedisLeaderRow(shard))
        searches = [
            ClusterSearch(name, target, self._begin, away_s=away_s) for name, target in unseen
        ]
        self.duties: list[Duty] = [*keepers, *others, *searches]
        self._keepers = list(keepers)
        self._unseen = {search.name for search in searches}
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics = ManagerMetrics(self.leader.name)

    @classmethod
    async def open(
        cls,
        clusters: Sequence[tuple[str, Target]],
        *,
        away_s: float = AWAY_S,
        placing: Placing | None = None,
    ) -> "Manager":
        """Make a manager for these clusters (name, where), the first of which has the catalog's
        database. `away_s`: seconds after which a silent replica is taken out. `placing`: settings
        of the duty for the places of partitions; None if it has no such duty.

        Raises Refused(storage_unavailable) if the database does not answer, or was never
        provisioned.
        """
        keepers, unseen = [], []
        for name, target in clusters:
            try:
                keepers += await keepers_of(name, target, away_s=away_s)
            except Refused:
                unseen.append((name, target))
        others = [PlacingDuty(placing, end_at_once)] if placing is not None else []
        shard = await database_of(clusters[0][1])
        return cls(shard, keepers, others, unseen, away_s=away_s)

    def start(self) -> None:
        """Take part in the election of a leader from now on, and do the duties while this manager
        leads."""
        self.leader.start()
        self._metrics.lag.start()
        for duty in self.duties:
            self._run(duty)
        self._tasks.append(asyncio.create_task(self._say(), name="manager says"))

    def _run(self, duty: Duty) -> None:
        self._tasks.append(asyncio.create_task(self._do(duty), name=f"duty {duty.name}"))

    def _begin(self, name: str, keepers: Sequence[ClusterKeeper]) -> None:
        """Begin the duties of a Cluster whose shards have been found."""
        self._unseen.discard(name)
        self._keepers += keepers
        self.duties += keepers
        for keeper in keepers:
            self._run(keeper)

    async def stop(self) -> None:
        """Cancel the steps under way, close everything, and let another manager lead at once."""
        self._metrics.lag.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for duty in self.duties:
            await duty.close()
        await self.leader.stop()
        await self._shard.close()

    async def _do(self, duty: Duty) -> None:
        """Run a duty's steps, one after another, while this manager leads. Errors are logged."""
        before = ""
        while True:
            await self.leader.began.wait()
            pause_s, is_done, why = AGAIN_S, False, ""
            try:
                pause_s = await duty.step(self.leader)
                is_done = True
                if before:
                    _LOG.info("%s: done again", duty.name)
            except TocsinError as error:
                why = error.detail
                if why != before:
                    _LOG.warning("%s: %s", duty.name, why)
            except Exception:
                _LOG.exception("%s: unexpected", duty.name)  # the next step still comes
            before = why
            self._metrics.on_step(duty.name, is_done=is_done)
            await asyncio.sleep(pause_s)

    async def samples(self) -> Samples:
        """Return the samples of one scrape."""
        told = {keeper.name: keeper.report for keeper in self._keepers}
        return self._metrics.collect(leads=self.leader.leads, term=self.leader.term, told=told)

    async def _say(self) -> None:
        """Store the keepers' reports in the catalog's Redis every AGAIN_S, while this manager
        leads."""
        term = 0
        while True:
            await self.leader.began.wait()
            told = [keeper.report for keeper in self._keepers if keeper.report is not None]
            with contextlib.suppress(TocsinError):  # the next round reports again
                await self.leader.report({one.name: msgspec.json.encode(one) for one in told})
                if self.leader.term != term and not self._unseen:
                    await self.leader.forget_all_but([keeper.name for keeper in self._keepers])
                    term = self.leader.term
            await asyncio.sleep(AGAIN_S)


class ClusterSearch:
    """The duty to find a Cluster of which no node has answered yet; only its nodes know its shards.
    `on_found` is called once, with the name and a keeper for each shard."""

    def __init__(
        self,
        name: str,
        target: Target,
        on_found: Callable[[str, Sequence[ClusterKeeper]], None],
        *,
        away_s: float,
    ) -> None:
        self.name = name
        self._target = target
        self._on_found = on_found
        self._away_s = away_s
        self._is_found = False

    async def step(self, leader: Leader) -> float:
        """Look for the Cluster's shards, unless they are found. Raises Refused when none of its
        nodes answers."""
        if not self._is_found:
            keepers = await keepers_of(self.name, self._target, away_s=self._away_s)
            self._is_found = True
            self._on_found(self.name, keepers)
        return DONE_S

    async def close(self) -> None:
        """Do nothing, because it holds nothing."""


async def keepers_of(name: str, target: Target, *, away_s: float) -> list[ClusterKeeper]:
    """Make a keeper for each shard of a storage cluster. Raises Refused when no node can name the
    shards."""
    return [
        ClusterKeeper(
            name if not number else f"{name}-{number}", target.shown, watched, away_s=away_s
        )
        for number, watched in enumerate(await watched_of(target))
    ]


async def watched_of(target: Target) -> list[WatchedShard]:
    """Return the shards of a storage cluster, several in a Cluster. Raises Refused when none of its
    nodes answers."""
    parts = await target.parts()
    if target.kind == "cluster":
        return [WatchedShard(part.settings, target.reach, in_cluster=True) for part in parts]
    settings = parts[0].settings
    if target.kind == "single":
        return [WatchedShard(settings, target.reach, home=target.places[0])]
    return [WatchedShard(settings, target.reach, target.places, target.name)]


async def database_of(target: Target) -> RedisShard | ClusterShard:
    """Open the shard, or the Cluster, in which the catalog is. Raises
    Refused(storage_unavailable)."""
    parts = await target.parts()
    incarnation = await incarnation_of(parts[0].settings)
    if target.kind == "cluster":
        return await ClusterShard.open(parts, incarnation, {}, on_fatal=end_at_once)
    return await RedisShard.open(parts[0].settings, Marks(incarnation), on_fatal=end_at_once)


async def incarnation_of(settings: Settings) -> str:
    """Return the incarnation of this store. Raises Refused(storage_unavailable) when it does not
    answer, or has none."""
    link = await settings.open()
    try:
        held = await settings.ask(link, pack("HGET", settings.key, "incarnation"))
    finally:
        await link.close()
    if not isinstance(held, bytes):
        raise Refused(
            "storage_unavailable",
            f"{link.address} has no incarnation, because it was emptied, or never provisioned. If "
            "it is new, run `tocsin admin provision`",
        )
    return held.decode()


class Scraped(NamedTuple):
    """Address at which a manager's metrics are scraped. `token`: the scraper's token; None if
    anybody may scrape."""

    host: str
    port: int
    token: str | None


async def serve(
    clusters: Sequence[tuple[str, Target]],
    *,
    placing: Placing | None = None,
    scraped: Scraped | None = None,
) -> None:
    """Run the whole life of the process, inside an event loop, until a signal.

    Waits for a database that does not answer. Raises Refused if the database is not one of Tocsin,
    and StartError if the port for metrics cannot be opened.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    manager = None
    said = ""
    while manager is None and not stopping.is_set():
        try:
            manager = await Manager.open(clusters, placing=placing)
        except Refused as refused:
            if isinstance(refused, NotOurs) or refused.code.name != "storage_unavailable":
                raise
            if refused.detail != said:
                said = refused.detail
                _LOG.warning("waiting for the catalog's database: %s", said)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await stopping.wait()
    if manager is None:
        return
    server = None
    if scraped is not None:
        server = MetricsServer(scraped.host, scraped.port, manager.samples, scraped.token)
        await server.start()
    manager.start()
    supervisor.tell("READY=1")
    _LOG.info("this is the manager %s", manager.leader.name)
    await stopping.wait()
    _LOG.info("going down")
    supervisor.tell("STOPPING=1")
    await manager.stop()
    if server is not None:
        await server.stop()
