"""How often caches answer: each counts its hits and misses, `tocsin admin status` shows them.

A cache takes part with two lines, and adds to the numbers itself:

    self.hit_rate = HitRate()
    broker.hit_rates["jwts"] = cache.hit_rate

What `functools.lru_cache` keeps counts by itself: FunctionHitRate shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Shown(Protocol):
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


def described(rates: Mapping[str, Shown]) -> dict[str, object]:
    """All of them, by the cache's name."""
    return {name: rates[name].shown() for name in sorted(rates)}
