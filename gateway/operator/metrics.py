"""Metrics of a gateway, and of one queue for the principals that have a right on it.

Counters are in memory and cost nothing. Depth and lag are read from the storage, through
`gateway.operator.describe`, which remembers them until something changes. For queues with labels
of their own they are read at each scrape. For all others they are read in the background, now and
then and slowly (`RemoteFigures`).

The first queues and groups have labels of their own, up to a bound (P9). They keep them as long as
they exist, so a series is about one queue for ever. All others share one value, REST, which no
queue or group can be called. The counters of one of these stay in the sum when it is deleted, so
that the sum never falls.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gateway.counters import Counters, HitRate, HitRateSource, PublishCounters
from gateway.delivery.dead_letters import DeadLetters
from gateway.delivery.groups import Groups
from gateway.delivery.mover import Mover
from gateway.delivery.presence import Availability
from gateway.delivery.pull import Pulls
from gateway.delivery.readers import Readers
from gateway.deliverylog.log import DeliveryLog
from gateway.limits.limiter import Limiter
from gateway.operator.alerts import AlertEvaluator
from gateway.operator.stats import GroupStats, QueueStats, QueueStatsCache, age_s
from gateway.publish.publisher import Publisher
from metadata.catalog import Group, Principal, Queue, dead_letter_name
from metadata.port import Metadata
from push.delivery import COUNTED, Tally, waits_for
from push.errors import Refused, TocsinError
from push.storage_port import Storage, StorageState
from runtime.loop.fairness import TimeSlices
from runtime.metrics.exposition import Samples
from runtime.metrics.process import LoopLag, of_process
from runtime.metrics.registry import EVENTS

REST: Final = "(other)"
Labels = tuple[str, ...]
CountedT = TypeVar("CountedT")


class LabelBudget(Generic[CountedT]):
    """Labels of their own for up to `places_max` queues, or groups. `forgotten` begins as a counter
    of nothing."""

    def __init__(self, places_max: int, forgotten: CountedT) -> None:
        self._places_max = places_max
        self._own: dict[str, Labels] = {}
        self.forgotten = forgotten
        """Sum of the counters of those without labels of their own that were deleted."""

    def __len__(self) -> int:
        return len(self._own)

    def assign(self, there: Mapping[str, Labels]) -> None:
        """Assign labels to the queues or groups that exist now, by id, in this order, while there
        are free ones. Those with labels keep them. Labels of others become free."""
        for place in [place for place in self._own if place not in there]:
            del self._own[place]
        for place, labels in there.items():
            if len(self._own) >= self._places_max:
                break
            self._own.setdefault(place, labels)

    def labels(self, place: str) -> Labels | None:
        """Return the labels of a queue or group, by its id; None if it has no labels of its own."""
        return self._own.get(place)

    def forget(self, place: str) -> bool:
        """Forget a deleted queue or group. Returns whether it had no labels; then the caller adds
        its counters to `forgotten`."""
        return self._own.pop(place, None) is None

    def check(self) -> None:
        """Assert what always holds."""
        assert len(self._own) <= self._places_max, "P9"


REST_LOOKS_PER_S: Final = 50
"""Largest number of queues without labels of their own that are read in a second."""
REST_EVERY_S: Final = 30.0
_LINES_PER_LOOK: Final = 500
CAUSES: Final = ("backoff", "parked", "gate", "commit", "ready")
OTHER_QUEUE: Final[Labels] = (REST, REST)
OTHER_GROUP: Final[Labels] = (REST, REST, REST)


@dataclass(slots=True)
class Sources:
    """Parts of the gateway from which the figures of queues and groups come."""

    stats: QueueStatsCache
    metadata: Metadata
    groups: Groups
    counters: Counters


def put_queue_counters(samples: Samples, labels: Labels, counters: PublishCounters) -> None:
    """Put the counters of a queue's publishers and readers into the samples."""
    for name, outcome in EVENTS.items():
        samples.put("tocsin_queue_messages_total", getattr(counters, name), *labels, outcome)
    samples.put("tocsin_queue_bytes_total", counters.published_bytes, *labels)
    samples.spread("tocsin_queue_certify_seconds", counters.certify_s, *labels)
    samples.put("tocsin_queue_read_messages_total", counters.read, *labels)
    samples.spread("tocsin_queue_read_seconds", counters.read_s, *labels)


def put_group_counters(samples: Samples, labels: Labels, tally: Tally) -> None:
    """Put the counters of a group's consumers into the samples."""
    for name in COUNTED:
        samples.put("tocsin_group_messages_total", getattr(tally, name), *labels, name)
    samples.spread("tocsin_group_dispatch_seconds", tally.dispatch_s, *labels)
    samples.spread("tocsin_group_settle_seconds", tally.settle_s, *labels)


def put_queue_stats(samples: Samples, labels: Labels, stats: QueueStats) -> None:
    """Put a queue's depth in messages and bytes, the age of its oldest message, and the number of
    its scheduled messages, into the samples."""
    samples.put("tocsin_queue_depth_messages", sum(one.messages for one in stats.states), *labels)
    samples.put("tocsin_queue_depth_bytes", sum(one.bytes for one in stats.states), *labels)
    samples.most("tocsin_queue_oldest_age_seconds", age_s(stats.oldest_unix_ms), *labels)
    samples.put("tocsin_scheduled_messages", stats.scheduled.messages, *labels)


def put_group_stats(samples: Samples, labels: Labels, stats: GroupStats) -> None:
    """Put a group's lag, the age of its oldest unsettled message, its messages set aside, its
    parked keys and its epochs into the samples."""
    samples.put("tocsin_group_lag_messages", stats.lag, *labels)
    samples.most("tocsin_group_oldest_age_seconds", age_s(stats.oldest_unix_ms), *labels)
    samples.put("tocsin_group_aside_messages", stats.aside, *labels)
    samples.put("tocsin_group_parked_keys", stats.parked, *labels)
    epochs = sum(cursor.epoch for cursor in stats.cursors.values())
    samples.put("tocsin_group_epochs_total", epochs, *labels)


async def put_group_load(samples: Samples, labels: Labels, groups: Groups, group_id: str) -> None:
    """Put the number of a group's consumers at this gateway, of the messages that they hold, and of
    keys that wait, by cause; in slices, because there may be many."""
    runtime, slices = groups.runtimes.get(group_id), TimeSlices()
    owned_partitions = list(runtime.owned_partitions.values()) if runtime is not None else []
    members = len(runtime.members) if runtime is not None else 0
    samples.put("tocsin_group_consumers", members, *labels)
    in_flight = sum(owned.delivery.in_flight for owned in owned_partitions if not owned.ended)
    samples.put("tocsin_group_in_flight_messages", in_flight, *labels)
    now, causes = asyncio.get_running_loop().time(), dict.fromkeys(CAUSES, 0)
    for owned in owned_partitions:
        delivery = owned.delivery
        lines = [*delivery.lines.values()]
        for first in range(0, len(lines), _LINES_PER_LOOK):
            await slices.yield_if_over()
            for line in lines[first : first + _LINES_PER_LOOK]:
                found = waits_for(line, now)
                if found is not None:
                    causes[found] += 1
    for cause, count in causes.items():
        samples.put("tocsin_group_held_keys", count, *labels, cause)


async def put_stored_figures(
    samples: Samples,
    sources: Sources,
    queue: Queue,
    labels: Labels,
    *,
    groups: Sequence[tuple[Group, Labels]],
    has_dead_letters: bool,
) -> None:
    """Put depth and lag of a queue and its groups, read from the storage. Raises TocsinError if the
    storage does not answer; then nothing was put."""
    stats = await sources.stats.stats(queue, [group for group, _ in groups])
    dead = await _dead_letters(sources, queue) if has_dead_letters else None
    put_queue_stats(samples, labels, stats)
    samples.put("tocsin_queue_paused", queue.paused, *labels)
    if dead is not None:
        samples.put("tocsin_queue_dead_letters_messages", dead, *labels)
    for group, named in groups:
        found = stats.groups.get(group.group_id)
        if found is not None:
            put_group_stats(samples, named, found)


async def _dead_letters(sources: Sources, queue: Queue) -> int:
    principal = Principal(queue.holder, queue.tenant)
    try:
        dead = sources.metadata.find_queue(principal, dead_letter_name(queue))
    except Refused:
        return 0
    stats = await sources.stats.stats(dead, [])
    return sum(state.messages for state in stats.states)


@dataclass(slots=True)
class RemoteFigures:
    """Depth and lag of the queues that have no label of their own, because there are too many. They
    are summed under one label, as of the last whole round over them. A round begins with a scrape
    if the last round is old. Without scrapes nothing is read."""

    sources: Sources
    samples: Samples = field(default_factory=Samples)
    """Samples of the last round."""
    ended_at: float = float("-inf")
    _round: asyncio.Task[None] | None = None

    def latest(self, queues: Sequence[Queue]) -> Samples:
        """Return the samples of the last round, and begin a new round if it is time for one."""
        loop = asyncio.get_running_loop()
        if not queues:
            self.samples, self.ended_at = Samples(), float("-inf")
        elif self._round is None and loop.time() - self.ended_at >= REST_EVERY_S:
            self._round = loop.create_task(self._look(queues), name="metrics of the rest")
            self._round.add_done_callback(self._end_round)
        return self.samples

    def age_s(self) -> float:
        """Return the age of the samples in seconds; 0 if no round has ended."""
        if self.ended_at == float("-inf"):
            return 0.0
        return asyncio.get_running_loop().time() - self.ended_at

    async def _look(self, queues: Sequence[Queue]) -> None:
        samples = Samples()
        for queue in queues:
            groups = self.sources.metadata.list_groups(Principal(queue.holder, queue.tenant), queue)
            try:
                await put_stored_figures(
                    samples,
                    self.sources,
                    queue,
                    OTHER_QUEUE,
                    groups=[(group, OTHER_GROUP) for group in groups],
                    has_dead_letters=False,
                )
            except TocsinError:  # deleted meanwhile, or its cluster is away: the next round
                continue
            await asyncio.sleep(1 / REST_LOOKS_PER_S)
        self.samples, self.ended_at = samples, asyncio.get_running_loop().time()

    def _end_round(self, task: asyncio.Task[None]) -> None:
        self._round = None
        if not task.cancelled():
            task.result()

    def close(self) -> None:
        """Stop the round that is under way."""
        if self._round is not None:
            self._round.cancel()


LOOKS_S: Final = 4.0
"""Seconds for reading the figures of all queues with labels of their own, and as many for the state
of the storage. A Prometheus server waits for ten seconds."""
_BREAKER: Final = {"closed": 0.0, "half_open": 0.5, "open": 1.0}
Part = Callable[[Samples], None]


class GatewayMetrics:
    """Metrics of a gateway. Callers that ask while they are being collected share one
    collection."""

    def __init__(
        self,
        sources: Sources,
        *,
        storage: Storage,
        publisher: Publisher,
        pulls: Pulls,
        readers: Readers,
        dead_letters: DeadLetters,
        mover: Mover,
        limiter: Limiter,
        log: DeliveryLog,
        alerting: AlertEvaluator,
        availability: Availability,
        hit_rates: Mapping[str, HitRateSource],
        queues_max: int,
        groups_max: int,
    ) -> None:
        """`hit_rates` are those of all caches, also of caches that are added to it later.
        `queues_max` queues and `groups_max` groups have labels of their own."""
        self._sources = sources
        self._storage = storage
        self._publisher = publisher
        self._pulls = pulls
        self._readers = readers
        self._dead_letters = dead_letters
        self._mover = mover
        self._limiter = limiter
        self._delivery_log = log
        self._alerting = alerting
        self._availability = availability
        self._hit_rates = hit_rates
        self._groups_max = groups_max
        self._queues = LabelBudget(queues_max, PublishCounters())
        self._groups = LabelBudget(groups_max, Tally())
        self._rest = RemoteFigures(sources)
        self._under_way: asyncio.Task[Samples] | None = None
        self.lag = LoopLag()
        self._parts: list[Part] = []
        sources.counters.on_forgotten(self._on_forgotten)

    def _on_forgotten(self, place: str, counted: PublishCounters | Tally) -> None:
        if isinstance(counted, PublishCounters):
            if self._queues.forget(place):
                self._queues.forgotten.merge(counted)
        elif self._groups.forget(place):
            self._groups.forgotten.merge(counted)

    def add_part(self, part: Part) -> None:
        """Have each collection call `part`, which puts figures of something that the broker does
        not know, such as sessions."""
        self._parts.append(part)

    def start(self) -> None:
        """Begin to measure the delay of the event loop."""
        self.lag.start()

    def close(self) -> None:
        """Stop measuring the loop, and the round that is under way for queues without labels."""
        self.lag.stop()
        self._rest.close()

    # --- Everything ------------------------------------------------------------------------------

    async def collect(self) -> Samples:
        """Collect everything, for operators."""
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._collect(), name="metrics")
            self._under_way.add_done_callback(self._on_collected)
        return await asyncio.shield(self._under_way)

    def _on_collected(self, task: "asyncio.Task[Samples]") -> None:
        self._under_way = None
        if not task.cancelled():
            task.exception()  # callers that wait get it; perhaps nobody waits any more

    async def _collect(self) -> Samples:
        began, samples = time.perf_counter(), Samples()
        presence = self._sources.groups.presence
        of_process(samples, "gateway", presence.gateway, self.lag)
        await self._put_state(samples)
        self._put_work(samples)
        self._put_scheduled(samples)
        self._put_log(samples)
        self._alerting.measure(samples)
        for part in self._parts:
            part(samples)
        await self._put_queues(samples)
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples

    async def _put_state(self, samples: Samples) -> None:
        metadata, reasons = self._sources.metadata, ["it cannot be asked"]
        state = StorageState(False, False)
        try:
            async with asyncio.timeout(LOOKS_S):
                state = await self._storage.state()
                reasons = await self._availability.reasons()
        except (TimeoutError, TocsinError):
            pass  # shown as not writable, and not ready
        samples.put("tocsin_ready", not reasons)
        samples.put("tocsin_storage_writable", state.writable)
        samples.put("tocsin_storage_publishable", state.publishable)
        samples.put("tocsin_storage_waits", len(state.reasons))
        if "free_bytes" in state.detail:
            samples.put("tocsin_storage_free_bytes", int(state.detail["free_bytes"]))
        damaged = int(state.detail.get("damage_reports", "0"))
        samples.put("tocsin_storage_damage_reports_total", damaged)
        for one in state.took:
            if one.what == "fsync":
                samples.spread("tocsin_storage_fsync_seconds", one.seconds)
            else:
                samples.spread("tocsin_storage_copies_seconds", one.seconds, one.place, one.level)
        is_usable, _ = await metadata.state()
        samples.put("tocsin_metadata_usable", is_usable)
        samples.put("tocsin_metadata_age_seconds", round(metadata.age_s, 3))

    def _put_work(self, samples: Samples) -> None:
        groups, now = self._sources.groups, asyncio.get_running_loop().time()
        facts, presence = groups.facts(), groups.presence
        samples.put("tocsin_draining", self._availability.is_leaving)
        samples.put("tocsin_alone", presence.is_alone)
        gateways = presence.facts().get("gateways", [""])
        samples.put("tocsin_gateways", len(gateways) if isinstance(gateways, list) else 1)
        samples.put("tocsin_groups_running", len(groups.runtimes))
        samples.put("tocsin_fenced_writes_total", int(str(facts["fenced_writes"])))
        samples.put("tocsin_stale_settlements_total", int(str(facts["stale_settlements"])))
        samples.put("tocsin_pulls_waiting", self._pulls.waiting)
        samples.put("tocsin_pending_messages", self._publisher.pending_messages)
        samples.put("tocsin_pending_bytes", self._publisher.pending_bytes)
        samples.put("tocsin_dead_letters_moved_total", self._dead_letters.moved_total)
        for limit, count in self._limiter.refused.items():
            samples.put("tocsin_limited_total", count, limit)
        for cache, rate in self._hit_rates.items():
            if isinstance(rate, HitRate):
                samples.put("tocsin_cache_hits_total", max(0, rate.hits), cache)
                samples.put("tocsin_cache_misses_total", rate.misses, cache)
        for number, commits in self._publisher.commits.lanes().items():
            lane = str(number)
            samples.put("tocsin_commits_total", commits.total, lane)
            samples.spread("tocsin_commit_messages", commits.messages, lane)
            samples.put("tocsin_commit_records_total", commits.records_total, lane)
            samples.spread("tocsin_commit_seconds", commits.took_s, lane)
            samples.put("tocsin_commits_under_way", len(commits), lane)
            samples.put("tocsin_commits_slow_total", commits.slow_total, lane)
            samples.put("tocsin_commit_unknown_messages_total", commits.unknown_total, lane)
            samples.put("tocsin_breaker_open", _BREAKER[commits.breaker.state(now=now)], lane)
            samples.put("tocsin_breaker_opened_total", commits.breaker.opened_total, lane)

    def _put_scheduled(self, samples: Samples) -> None:
        mover = self._mover
        samples.put("tocsin_scheduled_moved_total", mover.moved_total)
        samples.spread("tocsin_scheduled_late_seconds", mover.late_s)
        samples.put("tocsin_clock_jumps_total", mover.clock.jumps_total)
        samples.put("tocsin_scheduled_stopped", mover.clock.doubt_s > 0)

    def _put_log(self, samples: Samples) -> None:
        """Put the figures of the delivery log, if it is on."""
        facts = self._delivery_log.status()
        if facts is None:
            return
        samples.put("tocsin_delivery_log_written_bytes_total", facts["written_bytes"])
        samples.put("tocsin_delivery_log_waiting_bytes", facts["waiting_bytes"])
        samples.put("tocsin_delivery_log_failing", facts["is_failing"])
        missing = facts["unlogged"]
        samples.put("tocsin_delivery_log_unlogged_spans_total", missing["spans"])
        name = "tocsin_delivery_log_unlogged_messages_total"
        samples.put(name, missing["certified"], "certified")
        samples.put(name, missing["dispatched"], "dispatched")
        samples.put(name, missing["settled"], "settled")

    # --- Queues ----------------------------------------------------------------------------------

    async def _put_queues(self, samples: Samples) -> None:
        every = sorted(self._sources.metadata.list_all_queues(), key=lambda q: q.created_unix_ms)
        samples.put("tocsin_queues", len(every))
        self._queues.assign({one.queue_id: (one.tenant, one.name) for one in every})
        own = [one for one in every if self._queues.labels(one.queue_id) is not None]
        groups = {queue.queue_id: self._list_groups(queue) for queue in own}
        self._groups.assign(
            {
                group.group_id: (queue.tenant, queue.name, group.name)
                for queue in own
                for group in groups[queue.queue_id]
            }
        )
        self._put_zeros(samples, own, groups)
        await self._put_counters(samples, bool(len(every) > len(own)))
        ends_at, unread = asyncio.get_running_loop().time() + LOOKS_S, 0
        for queue in own:
            unread += not await self._look(samples, queue, groups[queue.queue_id], ends_at)
        samples.put("tocsin_scrape_unread_queues", unread)
        rest = [one for one in every if self._queues.labels(one.queue_id) is None]
        for metric, values in self._rest.latest(rest).families():
            for labels, value in values.items():
                if isinstance(value, float | int):
                    add = samples.most if metric.name.endswith("age_seconds") else samples.put
                    add(metric.name, value, *labels)
        samples.put("tocsin_scrape_rest_age_seconds", self._rest.age_s())

    def _put_zeros(
        self, samples: Samples, own: list[Queue], groups: dict[str, list[Group]]
    ) -> None:
        """Put zeros for queues without readers and groups without consumers, because a missing
        series fires no alert."""
        for queue in own:
            samples.put(
                "tocsin_queue_readers", 0, *(self._queues.labels(queue.queue_id) or OTHER_QUEUE)
            )
            for group in groups[queue.queue_id]:
                labels = self._groups.labels(group.group_id) or OTHER_GROUP
                samples.put("tocsin_group_consumers", 0, *labels)

    def _list_groups(self, queue: Queue) -> list[Group]:
        return self._sources.metadata.list_groups(Principal(queue.holder, queue.tenant), queue)

    async def _put_counters(self, samples: Samples, has_rest: bool) -> None:
        """Put the counters of all queues and groups, in slices."""
        slices, counters, groups = TimeSlices(), self._sources.counters, self._sources.groups
        for place, counted in list(counters.queues().items()):
            await slices.yield_if_over()
            put_queue_counters(samples, self._queues.labels(place) or OTHER_QUEUE, counted)
        for place, tally in list(counters.groups().items()):
            await slices.yield_if_over()
            put_group_counters(samples, self._groups.labels(place) or OTHER_GROUP, tally)
        for place, count in self._readers.counts().items():
            samples.put("tocsin_queue_readers", count, *(self._queues.labels(place) or OTHER_QUEUE))
        if has_rest or self._queues.forgotten.published:
            put_queue_counters(samples, OTHER_QUEUE, self._queues.forgotten)
        if has_rest or self._groups.forgotten.given:
            put_group_counters(samples, OTHER_GROUP, self._groups.forgotten)
        for place in list(groups.runtimes):
            await slices.yield_if_over()
            await put_group_load(samples, self._groups.labels(place) or OTHER_GROUP, groups, place)

    async def _look(
        self, samples: Samples, queue: Queue, groups: list[Group], ends_at: float
    ) -> bool:
        """Put the stored figures of a queue. Returns whether the storage answered in time."""
        labels = self._queues.labels(queue.queue_id) or OTHER_QUEUE
        named = [(group, self._groups.labels(group.group_id) or OTHER_GROUP) for group in groups]
        try:
            async with asyncio.timeout_at(ends_at):
                await put_stored_figures(
                    samples, self._sources, queue, labels, groups=named, has_dead_letters=True
                )
        except (TimeoutError, TocsinError):
            return False
        return True

    # --- One queue -------------------------------------------------------------------------------

    async def collect_queue(self, queue: Queue, *, sees_dead_letters: bool) -> Samples:
        """Collect the metrics of a queue and its groups. Groups beyond `groups_max` share one
        label. `sees_dead_letters`: whether the number of dead letters is included. Raises
        TocsinError if the storage does not answer."""
        samples, labels = Samples(), (queue.tenant, queue.name)
        every = self._list_groups(queue)
        named = [
            (group, (*labels, group.name if place < self._groups_max else REST))
            for place, group in enumerate(every)
        ]
        await put_stored_figures(
            samples,
            self._sources,
            queue,
            labels,
            groups=named,
            has_dead_letters=sees_dead_letters,
        )
        counters = self._sources.counters
        put_queue_counters(
            samples, labels, counters.queues().get(queue.queue_id, PublishCounters())
        )
        readers = self._readers.counts().get(queue.queue_id, 0)
        samples.put("tocsin_queue_readers", readers, *labels)
        for group, own in named:
            put_group_counters(samples, own, counters.groups().get(group.group_id, Tally()))
            await put_group_load(samples, own, self._sources.groups, group.group_id)
        return samples
