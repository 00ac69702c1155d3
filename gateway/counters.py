"""What is counted since this gateway began: of queues, what was published; of groups, their tally.

Counted per record, push and range, never per message of the ordinary case, and never from a rate:
whoever looks takes the difference of two looks.

How often caches answer: each counts its hits and misses, `tocsin admin status` shows them.

A cache takes part with two lines, and adds to the numbers itself:

    self.hit_rate = HitRate()
    broker.hit_rates["jwts"] = cache.hit_rate

What `functools.lru_cache` keeps counts by itself: FunctionHitRate shows it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from push.delivery import COUNTED as OF_GROUPS
from push.delivery import Tally
from push.errors import TocsinError, Unknown
from push.histogram import Histogram
from push.storage_port import Appended, NotStored

OF_QUEUES: Final = ("published", "published_bytes", "duplicates", "refused", "unknown")
"""The plain counters of Published."""


@dataclass(slots=True)
class PublishCounters:
    """Monotonic counters of what publishers sent to a queue, and what became of it."""

    published: int = 0
    published_bytes: int = 0
    """Of these messages as JSON, as they are stored."""
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0
    """Of which nobody knows whether they are stored: their publisher was told so."""
    certify_s: Histogram = field(default_factory=Histogram)
    """From accepted to certified, of what was stored: of a record's messages that of the first."""
    read: int = 0
    """Messages that readers were given, counted once for each of them."""
    read_s: Histogram = field(default_factory=Histogram)
    """From certified to handed to a reader, of what they were given as it came."""

    def merge(self, other: "PublishCounters") -> None:
        """Add what another one has counted."""
        for name in OF_QUEUES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.certify_s.merge(other.certify_s)
        self.read += other.read
        self.read_s.merge(other.read_s)

    def stored(self, appended: Appended, size: int, sizes: Sequence[int]) -> None:
        """The storage answered a record of `size` bytes; `sizes` are those of its messages."""
        if appended.outcomes is None:
            self.published += appended.count
            self.published_bytes += size
            return
        for outcome, length in zip(appended.outcomes, sizes, strict=True):
            if isinstance(outcome, NotStored):
                self.refused += 1
            elif outcome.duplicate:
                self.duplicates += 1
            else:
                self.published += 1
                self.published_bytes += length

    def failed(self, count: int, error: TocsinError) -> None:
        """None of these messages was stored, or nobody knows."""
        if isinstance(error, Unknown):
            self.unknown += count
        else:
            self.refused += count


class Counters:
    """The counters of all queues and groups of a gateway, made when they are first asked for."""

    def __init__(self) -> None:
        self.since_unix_ms = int(time.time() * 1000)
        self._queues: dict[str, PublishCounters] = {}
        self._groups: dict[str, Tally] = {}
        self.on_forgotten: Callable[[str, PublishCounters | Tally], None] = lambda place, counted: (
            None
        )
        """Told of what a queue or a group, by its id, had come to when it was deleted."""

    def queue(self, queue_id: str) -> PublishCounters:
        """Those of a queue."""
        return self._queues.setdefault(queue_id, PublishCounters())

    def group(self, group_id: str) -> Tally:
        """Those of a group."""
        return self._groups.setdefault(group_id, Tally())

    def of_queue(self, queue_id: str) -> dict[str, int]:
        """Those of a queue, as they are shown."""
        return self._shown(self._queues.get(queue_id, PublishCounters()), OF_QUEUES)

    def of_group(self, group_id: str) -> dict[str, int]:
        """Those of a group, as they are shown."""
        return self._shown(self._groups.get(group_id, Tally()), OF_GROUPS)

    def _shown(self, counted: PublishCounters | Tally, names: Sequence[str]) -> dict[str, int]:
        return {
            "since_unix_ms": self.since_unix_ms,
            **{name: getattr(counted, name) for name in names},
        }

    def queues(self) -> dict[str, PublishCounters]:
        """Those of all queues that have some, by id."""
        return self._queues

    def groups(self) -> dict[str, Tally]:
        """Those of all groups that have some, by id."""
        return self._groups

    def forget(self, queue_id: str, group_id: str | None) -> None:
        """The group, or (None) the queue, is deleted. Not there: nothing happens."""
        counted: PublishCounters | Tally | None
        if group_id is None:
            counted = self._queues.pop(queue_id, None)
        else:
            counted = self._groups.pop(group_id, None)
        if counted is not None:
            self.on_forgotten(queue_id if group_id is None else group_id, counted)


class HitRateSource(Protocol):
    """The hit rate of one cache."""

    def shown(self) -> dict[str, object]:
        """As HitRate.shown."""


@dataclass(slots=True)
class HitRate:
    """Of one cache, since the process began."""

    hits: int = 0
    misses: int = 0

    def shown(self) -> dict[str, object]:
        """With the share of hits, from 0 to 1; null: it was never asked."""
        hits = max(0, self.hits)  # some are taken for hits first, and found to be none
        asked = hits + self.misses
        rate = round(hits / asked, 4) if asked else None
        return {"hits": hits, "misses": self.misses, "rate": rate}


class Cached(Protocol):
    """A function with `functools.lru_cache`."""

    def cache_info(self) -> Any:
        """Its hits and misses, among others."""


@dataclass(frozen=True, slots=True)
class FunctionHitRate:
    """Of what a function with `functools.lru_cache` keeps, for all who call it in this process."""

    function: Cached

    def shown(self) -> dict[str, object]:
        """As HitRate.shown."""
        info = self.function.cache_info()
        return HitRate(info.hits, info.misses).shown()


def described(rates: Mapping[str, HitRateSource]) -> dict[str, object]:
    """All of them, by the cache's name."""
    return {name: rates[name].shown() for name in sorted(rates)}
