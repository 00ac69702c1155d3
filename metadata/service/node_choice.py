"""Which node of the metadata service is asked first, and which not for a while. Pure.

sticky     the one that answered last is asked again; gateways begin at different ones
away       who did not answer is asked later, for longer each time, never all at one moment
all away   the one whose time is over soonest is asked: so one request finds out, not a hundred
"""

from collections.abc import Callable, Sequence
from typing import Final

from metadata.service.service_forms import NodeInfo
from metadata.service.shard_ring import holders

AWAY_S: Final = 0.25
"""After the first failure; doubles up to AWAY_S_MAX, each with up to as much again by chance."""
AWAY_S_MAX: Final = 2.0
_DOUBLINGS_MAX: Final = 8
"""[The only node is away for half an hour: 2 ** 1024 is no float, and the gateway follows its
catalog no more.]"""
TRIES_MIN: Final = 3
"""So often something is asked before it is given up: one address may be a balancer's."""


class NodeChoice:
    """See the module. `configured`: the URLs that the operator gave; `chance`: numbers in [0, 1).
    Times are seconds of one clock."""

    def __init__(self, configured: Sequence[str], chance: Callable[[], float]) -> None:
        self._configured = tuple(dict.fromkeys(configured))
        self._chance = chance
        self._first = int(chance() * len(self._configured)) % len(self._configured)
        self._nodes: tuple[NodeInfo, ...] = ()
        self._away: dict[str, tuple[int, float]] = {}
        """Url → how often it failed in a row, until when it is not asked."""

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """What nodes have told of each other."""
        return self._nodes

    def learn(self, nodes: Sequence[NodeInfo]) -> None:
        """A node tells who is there."""
        self._nodes = tuple(nodes)
        known = {*self._configured, *(one.url for one in nodes)}
        self._away = {url: away for url, away in self._away.items() if url in known}

    def failed(self, url: str, *, now: float) -> None:
        """It did not answer, or cannot."""
        count = self._away.get(url, (0, 0.0))[0] + 1
        away_s = min(AWAY_S_MAX, AWAY_S * 2 ** min(count - 1, _DOUBLINGS_MAX))
        self._away[url] = (count, now + away_s * (1 + self._chance()))
        if url in self._configured and self._configured[self._first] == url:
            self._first = (self._first + 1) % len(self._configured)

    def answered(self, url: str) -> None:
        """It is well."""
        self._away.pop(url, None)

    def to_ask(self, *, now: float) -> list[str]:
        """Who is to be asked for what any node can answer, one after another. Never empty."""
        turned = self._configured[self._first :] + self._configured[: self._first]
        learned = [one.url for one in self._nodes if one.layout != "whole"]
        return self._present([*turned, *learned], now)

    def to_ask_for(self, shard: int, *, now: float) -> list[str]:
        """The same for the rows of a shard: its holders, where those are to be found by the ring.
        A load balancer in front of nodes that have everything is asked as ever."""
        ring = [one.url for one in self._nodes if one.layout == "ring"]
        others = [one.url for one in self._nodes if one.layout == "forward"]
        found = holders(shard, [*ring, *others]) if ring else ()
        return self._present([*found, *self.to_ask(now=now)], now)

    def _present(self, urls: Sequence[str], now: float) -> list[str]:
        everybody = list(dict.fromkeys(urls))
        there = [url for url in everybody if self._away.get(url, (0, now))[1] <= now]
        found = there or [min(everybody, key=lambda url: self._away[url][1])]
        return (found * TRIES_MIN)[: max(TRIES_MIN, len(found))]
