"""The figures of queues and groups, for a scrape.

Counters are memory and cost nothing. Depth and lag are asked of the storage
(`gateway.operator.stock`, which remembers them until something changes): for queues that have
labels of their own with each scrape, for all others now and then, in the background, slowly
(`Rest`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.counting import Counting, Published
from gateway.delivery.groups import Groups
from gateway.operator.places import REST, Labels
from gateway.operator.stock import GroupStock, QueueStock, Stock, age_s
from metadata.catalog import Group, Principal, Queue, dead_letter_name
from metadata.client import Metadata
from push.delivery.reasons import of_line
from push.delivery.tally import COUNTED, Tally
from push.errors import Refused, TocsinError
from runtime.loop.slices import Slices
from runtime.metrics.registry import EVENTS
from runtime.metrics.samples import Samples

REST_LOOKS_PER_S: Final = 50
"""At most so many queues that share a label are looked at in a second."""
REST_EVERY_S: Final = 30.0
_LINES_PER_LOOK: Final = 500
OTHER_QUEUE: Final[Labels] = (REST, REST)
OTHER_GROUP: Final[Labels] = (REST, REST, REST)


@dataclass(slots=True)
class Sources:
    """Where figures come from."""

    stock: Stock
    metadata: Metadata
    groups: Groups
    counting: Counting


def of_queue(samples: Samples, labels: Labels, counted: Published) -> None:
    """What publishers sent, and readers were given."""
    for name, outcome in EVENTS.items():
        samples.put("tocsin_queue_messages_total", getattr(counted, name), *labels, outcome)
    samples.put("tocsin_queue_bytes_total", counted.published_bytes, *labels)
    samples.spread("tocsin_queue_certify_seconds", counted.certify_s, *labels)
    samples.put("tocsin_queue_read_messages_total", counted.read, *labels)
    samples.spread("tocsin_queue_read_seconds", counted.read_s, *labels)


def of_group(samples: Samples, labels: Labels, tally: Tally) -> None:
    """What consumers were given and did."""
    for name in COUNTED:
        samples.put("tocsin_group_messages_total", getattr(tally, name), *labels, name)
    samples.spread("tocsin_group_dispatch_seconds", tally.dispatch_s, *labels)
    samples.spread("tocsin_group_settle_seconds", tally.settle_s, *labels)


def stood(samples: Samples, labels: Labels, stock: QueueStock) -> None:
    """What a queue retains."""
    samples.put("tocsin_queue_depth_messages", sum(one.messages for one in stock.states), *labels)
    samples.put("tocsin_queue_depth_bytes", sum(one.bytes for one in stock.states), *labels)
    samples.most("tocsin_queue_oldest_age_seconds", age_s(stock.oldest_unix_ms), *labels)


def lagged(samples: Samples, labels: Labels, stock: GroupStock) -> None:
    """Where a group stands."""
    samples.put("tocsin_group_lag_messages", stock.lag, *labels)
    samples.most("tocsin_group_oldest_age_seconds", age_s(stock.oldest_unix_ms), *labels)
    samples.put("tocsin_group_aside_messages", stock.aside, *labels)
    samples.put("tocsin_group_parked_keys", stock.parked, *labels)
    epochs = sum(cursor.epoch for cursor in stock.cursors.values())
    samples.put("tocsin_group_epochs_total", epochs, *labels)


async def held(samples: Samples, labels: Labels, groups: Groups, group_id: str) -> None:
    """What consumers of a group here hold, and which keys wait; in slices: there may be many."""
    runtime, slices = groups.runtimes.get(group_id), Slices()
    slots = list(runtime.slots.values()) if runtime is not None else []
    members = len(runtime.members) if runtime is not None else 0
    samples.put("tocsin_group_consumers", members, *labels)
    in_flight = sum(slot.delivery.leases.open_count for slot in slots if not slot.ended)
    samples.put("tocsin_group_in_flight_messages", in_flight, *labels)
    now, causes = asyncio.get_running_loop().time(), dict.fromkeys(CAUSES, 0)
    for slot in slots:
        lines = list(slot.delivery.waiting.lines.by_key.values())
        for first in range(0, len(lines), _LINES_PER_LOOK):
            await slices.turn()
            for line in lines[first : first + _LINES_PER_LOOK]:
                if not line.empty:
                    causes[of_line(line, now) or "ready"] += 1
    for cause, count in causes.items():
        samples.put("tocsin_group_held_keys", count, *labels, cause)


CAUSES: Final = ("backoff", "parked", "gate", "commit", "ready")


async def look(
    samples: Samples, sources: Sources, queue: Queue, labels: Labels, *,
    groups: Sequence[tuple[Group, Labels]], has_dead_letters: bool,
) -> None:  # fmt: skip
    """Depth and lag of a queue and its groups, asked of the storage. Raises TocsinError: it does
    not answer, and nothing was put."""
    stock = await sources.stock.of(queue, [group for group, _ in groups])
    dead = await _dead_letters(sources, queue) if has_dead_letters else None
    stood(samples, labels, stock)
    samples.put("tocsin_queue_paused", queue.paused, *labels)
    if dead is not None:
        samples.put("tocsin_queue_dead_letters_messages", dead, *labels)
    for group, named in groups:
        found = stock.groups.get(group.group_id)
        if found is not None:
            lagged(samples, named, found)


async def _dead_letters(sources: Sources, queue: Queue) -> int:
    principal = Principal(queue.holder, queue.tenant)
    try:
        dead = sources.metadata.find_queue(principal, dead_letter_name(queue))
    except Refused:
        return 0
    stock = await sources.stock.of(dead, [])
    return sum(state.messages for state in stock.states)


@dataclass(slots=True)
class Rest:
    """Depth and lag of all queues that share a label, as of the last whole round over them. A round
    is begun when somebody asks and the last one is old: without a scrape nothing is looked at."""

    sources: Sources
    found: Samples = field(default_factory=Samples)
    """As of the last round."""
    ended_at: float = float("-inf")
    _round: asyncio.Task[None] | None = None

    def ask(self, queues: Sequence[Queue]) -> Samples:
        """What is known; a new round begins where it is time for one."""
        loop = asyncio.get_running_loop()
        if not queues:
            self.found, self.ended_at = Samples(), float("-inf")
        elif self._round is None and loop.time() - self.ended_at >= REST_EVERY_S:
            self._round = loop.create_task(self._look(queues), name="metrics of the rest")
            self._round.add_done_callback(self._ended)
        return self.found

    def age_s(self) -> float:
        """How old that is; 0: there is nothing."""
        if self.ended_at == float("-inf"):
            return 0.0
        return asyncio.get_running_loop().time() - self.ended_at

    async def _look(self, queues: Sequence[Queue]) -> None:
        samples = Samples()
        for queue in queues:
            groups = self.sources.metadata.list_groups(Principal(queue.holder, queue.tenant), queue)
            try:
                await look(
                    samples, self.sources, queue, OTHER_QUEUE,
                    groups=[(group, OTHER_GROUP) for group in groups], has_dead_letters=False,
                )  # fmt: skip
            except TocsinError:  # deleted meanwhile, or its cluster is away: the next round
                continue
            await asyncio.sleep(1 / REST_LOOKS_PER_S)
        self.found, self.ended_at = samples, asyncio.get_running_loop().time()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._round = None
        if not task.cancelled():
            task.result()

    def close(self) -> None:
        """Look no more."""
        if self._round is not None:
            self._round.cancel()
