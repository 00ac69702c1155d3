"""Counters since this gateway began: publishes of queues, tallies of groups, hits and misses of
caches.

Queues and groups are counted per record, push and range, never per message of the ordinary case.
There are no rates: a reader takes the difference of two readings.

`tocsin admin status` shows the hit rates of caches. A cache takes part with two lines, and counts
itself:

    self.hit_rate = HitRate()
    broker.hit_rates["jwts"] = cache.hit_rate

A function with `functools.lru_cache` counts by itself; FunctionHitRate shows it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from push.delivery import COUNTED as OF_GROUPS
from push.delivery import Tally
from push.errors import TocsinError, Unknown
from push.histogram import Histogram
from push.storage_port import Appended, NotStored

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

OF_QUEUES: Final = ("published", "published_bytes", "duplicates", "refused", "unknown")
"""Names of the plain counters of PublishCounters."""


@dataclass(slots=True)
class PublishCounters:
    """Monotonic counters of publishes to a queue, and of their outcomes."""

    published: int = 0
    published_bytes: int = 0
    """Bytes of the `published` messages, as JSON."""
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0
    """Messages that may be stored or not; their publisher was informed of that."""
    certify_s: Histogram = field(default_factory=Histogram)
    """Seconds from accepted to certified, of stored messages. All messages of a record count with
    the time of its first message."""
    read: int = 0
    """Number of messages that were given to readers; a message counts once for each reader."""
    read_s: Histogram = field(default_factory=Histogram)
    """Seconds from certified to handed to a reader, of messages that a reader got live, not from
    the past."""

    def merge(self, other: "PublishCounters") -> None:
        """Add the counts of another object to these."""
        for name in OF_QUEUES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.certify_s.merge(other.certify_s)
        self.read += other.read
        self.read_s.merge(other.read_s)

    def count_stored(self, appended: Appended, size: int, sizes: Sequence[int]) -> None:
        """Count the messages of a record by the storage's answer: as published, duplicate or
        refused. `size`: bytes of the whole record; `sizes`: bytes of each message."""
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

    def count_failed(self, count: int, error: TocsinError) -> None:
        """Count messages of which none was stored, or whose fate is unknown."""
        if isinstance(error, Unknown):
            self.unknown += count
        else:
            self.refused += count


class Counters:
    """The counters of all queues and groups of a gateway, created by the first call for each."""

    def __init__(self) -> None:
        self.since_unix_ms = int(time.time() * 1000)
        self._queues: dict[str, PublishCounters] = {}
        self._groups: dict[str, Tally] = {}
        self._on_forgotten: list[Callable[[str, PublishCounters | Tally], None]] = []

    def on_forgotten(self, listener: Callable[[str, PublishCounters | Tally], None]) -> None:
        """Call `listener` when a queue or group that has counters is deleted, with its id and these
        counters."""
        self._on_forgotten.append(listener)

    def queue(self, queue_id: str) -> PublishCounters:
        """Find the counters of a queue; the first call makes them."""
        return self._queues.setdefault(queue_id, PublishCounters())

    def group(self, group_id: str) -> Tally:
        """Find the tally of a group; the first call makes it."""
        return self._groups.setdefault(group_id, Tally())

    def of_queue(self, queue_id: str) -> dict[str, int]:
        """Show the counters of a queue."""
        return self._shown(self._queues.get(queue_id, PublishCounters()), OF_QUEUES)

    def of_group(self, group_id: str) -> dict[str, int]:
        """Show the tally of a group."""
        return self._shown(self._groups.get(group_id, Tally()), OF_GROUPS)

    def _shown(self, counted: PublishCounters | Tally, names: Sequence[str]) -> dict[str, int]:
        return {
            "since_unix_ms": self.since_unix_ms,
            **{name: getattr(counted, name) for name in names},
        }

    def queues(self) -> dict[str, PublishCounters]:
        """Return the counters of all queues that have some, by id."""
        return self._queues

    def groups(self) -> dict[str, Tally]:
        """Return the tallies of all groups that have one, by id."""
        return self._groups

    def forget(self, queue_id: str, group_id: str | None) -> None:
        """Forget the counters of a deleted group, or of a queue if the group is None, and call the
        listeners of `on_forgotten`. Nothing happens if there are no counters."""
        counted: PublishCounters | Tally | None
        if group_id is None:
            counted = self._queues.pop(queue_id, None)
        else:
            counted = self._groups.pop(group_id, None)
        if counted is not None:
            for listener in self._on_forgotten:
                listener(queue_id if group_id is None else group_id, counted)


class HitRateSource(Protocol):
    """The hit rate of one cache."""

    def shown(self) -> dict[str, object]:
        """Show hits, misses and the share of hits."""


@dataclass(slots=True)
class HitRate:
    """Hits and misses of one cache, since the process began."""

    hits: int = 0
    misses: int = 0

    def shown(self) -> dict[str, object]:
        """Show hits, misses and the share of hits, from 0 to 1; null if it was never used."""
        hits = max(0, self.hits)  # some count as hits first, and are found to be none
        asked = hits + self.misses
        rate = round(hits / asked, 4) if asked else None
        return {"hits": hits, "misses": self.misses, "rate": rate}


@dataclass(frozen=True, slots=True)
class FunctionHitRate:
    """Hit rate of a function with `functools.lru_cache`, for all its callers in this process."""

    function: "_lru_cache_wrapper[Any]"

    def shown(self) -> dict[str, object]:
        """Show hits, misses and the share of hits."""
        info = self.function.cache_info()
        return HitRate(info.hits, info.misses).shown()


def describe_hit_rates(rates: Mapping[str, HitRateSource]) -> dict[str, object]:
    """Show the hit rates of all caches, by name."""
    return {name: rates[name].shown() for name in sorted(rates)}
