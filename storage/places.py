"""Which storage cluster has a partition: a queue's row in the catalog says it, as a list of names
that its partitions go through in turn. Fixed when the queue is made; so nobody can know an older
one. Pure but for the question to the catalog.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from push.places import Partition
from push.ports import Storage

KNOWN_MAX: Final = 200_000
"""Queues whose places are remembered: twice as many as there may be."""
FIRST: Final = 0
"""The lane of the first cluster, where queues are whose row names none."""


class Places:
    """Clusters by their number, the **lane**: in the order in which the settings name them. The
    last lane is no cluster: there is what was placed at one that this gateway is not told of, and
    its storage refuses everything.

    `placed`: the names in a queue's row; None: there is no such queue, or it is gone. What is known
    of one is remembered beyond its end: what is under way then is still where it was.
    """

    def __init__(
        self,
        clusters: Mapping[str, Storage],
        elsewhere: Storage,
        placed: Callable[[str], Sequence[str] | None],
    ) -> None:
        self.names = tuple(clusters)
        self.all = tuple(clusters.values())
        """Of the clusters, by lane."""
        self.stores = (*self.all, elsewhere)
        """Of every lane."""
        self._lanes = {name: lane for lane, name in enumerate(self.names)}
        self._placed = placed
        self._known: dict[str, Sequence[str]] = {}

    def _names(self, queue_id: str) -> Sequence[str]:
        names = self._known.get(queue_id)
        if names is None:
            names = self._placed(queue_id)
            if names is None:
                return ()
            while len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[queue_id] = names
        return names

    def _lane_of(self, name: str) -> int:
        return self._lanes.get(name, len(self.all))

    def lane(self, partition: Partition) -> int:
        """Where a partition is."""
        names = self._names(partition.queue_id)
        return self._lane_of(names[partition.number % len(names)]) if names else FIRST

    def lanes_of(self, queue_id: str) -> list[int]:
        """Where a queue has partitions, each once."""
        names = self._names(queue_id)
        return list(dict.fromkeys(map(self._lane_of, names))) if names else [FIRST]

    def having(self, queue_id: str) -> list[Storage]:
        """Their storages."""
        return [self.stores[lane] for lane in self.lanes_of(queue_id)]

    def dropping(self, queue_id: str) -> Sequence[Storage]:
        """Where it is to be dropped: at its own, one that this gateway is not told of included, for
        what is dropped everywhere is forgotten. All, where nobody here knows any more."""
        self._names(queue_id)
        return self.having(queue_id) if queue_id in self._known else self.all

    def share(self, queue_id: str, lane: int) -> tuple[int, int]:
        """How much of a queue is in this lane: so many parts, of so many."""
        names = self._names(queue_id)
        if not names:
            return 1, 1
        return sum(self._lane_of(name) == lane for name in names), len(names)
