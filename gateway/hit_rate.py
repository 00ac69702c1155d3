"""How often caches answer: each counts its hits and misses, `tocsin admin status` shows them.

A cache takes part with two lines, and adds to the numbers itself:

    self.hit_rate = HitRate()
    broker.hit_rates["jwks"] = cache.hit_rate
"""

from collections.abc import Mapping
from dataclasses import dataclass


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


def described(rates: Mapping[str, HitRate]) -> dict[str, object]:
    """All of them, by the cache's name."""
    return {name: rates[name].shown() for name in sorted(rates)}
