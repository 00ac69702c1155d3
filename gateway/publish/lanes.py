"""Commits by lane: those of one do not wait for those of another (`push.storage_port.Lane`).

Each lane has commits of its own, with its own turns, breaker and deadline, and a bound of its own
for what waits: a level that is not met, or a primary that is down, costs those who publish there,
and nobody else. Who floods is found out across all of them: they share this process.

A partition's records are under way in one lane at a time: what waits there while its lane becomes
another one goes when those before it have ended, and hears of their failure first (R7).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.publish.batch import Backlog, Route, Run, weight
from gateway.publish.commits import Batch, Committer, RecordSource
from gateway.publish.tail import Tail
from push import limits
from push.commit_sharing import REST_S, FairShare, has_room
from push.errors import Refused
from push.places import Partition
from push.storage_port import Storage

LATE_S: Final = 0.25
"""What waits behind a commit that takes longer is not what the next commits are made of: whoever
publishes elsewhere is not held back for it."""


class CommitLanes:
    """The committers of all lanes. Everything happens on one event loop. `in_parts`: the storage
    has lanes of several servers for sure, also while nobody has published to most of them."""

    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        source: RecordSource,
        share: FairShare[str],
        *,
        in_parts: bool = False,
    ) -> None:
        self._in_parts = in_parts
        self._storage = storage
        self._tail = tail
        self._source = source
        self._share = share
        self._watchers: list[Callable[[int], None]] = []
        self._lanes: dict[int, Committer] = {}

    def _of(self, partition: Partition, route: Route) -> Committer:
        number = self._storage.lane(partition, route.queue.settings.durability).number
        commits = self._lanes.get(number)
        if commits is None:
            commits = self._lanes[number] = Committer(
                self._storage, self._tail, self._source, number, self._share, moved=self._moved
            )
        return commits

    def watch(self, moved: Callable[[int], None]) -> None:
        """Call this with a lane's number whenever a commit has begun or ended there."""
        self._watchers.append(moved)

    def _moved(self, number: int) -> None:
        for moved in self._watchers:
            moved(number)

    def __len__(self) -> int:
        """How many commits are under way."""
        return sum(map(len, self._lanes.values()))

    def lanes(self) -> dict[int, Committer]:
        """For looking at: each lane that was published to, by its number."""
        return self._lanes

    def is_taken(self, number: int) -> bool:
        """As Committer.has_small_next, of this lane: what is handed to the storage now would be a
        transaction of its own in front of that."""
        commits = self._lanes.get(number)
        return commits is not None and commits.has_small_next(is_due=self._source.is_due)

    @property
    def total(self) -> int:
        """Commits that have ended."""
        return sum(commits.total for commits in self._lanes.values())

    @property
    def messages_total(self) -> int:
        """Messages that were stored."""
        return sum(commits.messages_total for commits in self._lanes.values())

    def certified(self, partition: Partition, end: int) -> None:
        """As Tail.certified; where an append is under way, see Committer.certified."""
        for commits in self._lanes.values():
            if commits.is_appending(partition):
                commits.certified(partition, end)
                return
        self._tail.certified(partition, end)

    def gave_up_on(self, queue_id: str) -> bool:
        """As Committer.gave_up_on, of any lane."""
        return any(commits.gave_up_on(queue_id) for commits in self._lanes.values())

    async def wait(self) -> None:
        """Until one of those under way has ended. None is: until what rests may begin."""
        tasks = [task for commits in self._lanes.values() for task in commits.under_way]
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(REST_S)

    # --- Who is refused --------------------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """Nothing is to be refused because of the storage; see `refusal`."""
        return all(commits.is_calm for commits in self._lanes.values())

    def refusal(self, route: Route) -> Refused | None:
        """Why a new publish to this queue is refused before anything is done with it; None: it is
        not. A queue's partitions are in one lane, unless it is at several clusters: then all of
        these refuse it."""
        refused = [commits.refusal() for commits in self._all_of(route)]
        for commits in self._lanes.values():
            if not (commits.is_calm or len(commits)):
                commits.refusal()  # nobody may come to it again: a cluster has others since
        return refused[0] if all(refused) else None

    def _all_of(self, route: Route) -> set[Committer]:
        partitions = iter(route.partitions.values())
        if len(route.queue.clusters) < 2:
            return {self._of(next(partitions), route)}
        return {self._of(partition, route) for partition in partitions}

    def refusal_at(
        self, partition: Partition, route: Route, run: Run, messages: int, size: int
    ) -> Refused | None:
        """Why these messages are refused, which go there, where so many wait in all; None: they
        are not. For queues at several clusters, of which one may be away."""
        commits = self._of(partition, route)
        refused = None if commits.is_calm else commits.refusal()
        if refused is None and not self._fits(commits, len(run.indexes), messages, size):
            refused = Refused("overloaded", "too many messages wait for this storage cluster", 0.1)
        return refused

    def backlog(self, partition: Partition, route: Route) -> Backlog:
        """Return the count of what waits in the lane; who adds messages there counts them in."""
        return self._of(partition, route).backlog

    def has_room(self, route: Route, count: int, messages: int, size: int) -> bool:
        """Whether the lane of this queue may have `count` messages more, where `messages` of `size`
        bytes wait in all: what waits in one that stands still must leave room to the others."""
        if len(self._lanes) < 2 and not self._in_parts:
            return True
        return any(self._fits(one, count, messages, size) for one in self._all_of(route))

    def _fits(self, commits: Committer, count: int, messages: int, size: int) -> bool:
        held = commits.backlog
        return has_room(held.messages, count, messages, limits.PENDING_MESSAGES_MAX) and has_room(
            held.bytes, 0, size, limits.PENDING_BYTES_MAX
        )

    # --- Who publishes ---------------------------------------------------------------------------

    def has_enough(self) -> bool:
        """Whether nothing more of those that flood is needed yet."""
        now = asyncio.get_running_loop().time()
        if any(commits.holds(now) for commits in self._lanes.values()):
            return True
        lanes = [commits for commits in self._lanes.values() if commits.age(now) < LATE_S]
        held = [commits.backlog for commits in (lanes or self._lanes.values())]
        size = sum(weight(one.messages, one.bytes) for one in held)
        return self._share.has_enough(size, now=now)

    # --- Committing ------------------------------------------------------------------------------

    def admits(self, count: int) -> bool:
        """Whether one more may begin now, somewhere, if all of these were there."""
        return any(commits.admits(count) for commits in self._lanes.values())

    def begin(self, waiting: Batch) -> Batch:
        """Put on its way what goes next, in each lane that admits one more; returns what stays, a
        partition's records in their order."""
        parts: dict[Committer, Batch] = {}
        left: Batch = []
        busy = [commits for commits in self._lanes.values() if len(commits)]
        for one in waiting:
            commits = self._of(one[0], one[1].route)
            if any(other.is_appending(one[0]) for other in busy if other is not commits):
                left.append(one)  # hears first what becomes of what is before it (R7)
            else:
                parts.setdefault(commits, []).append(one)
        for commits, batch in parts.items():
            count = sum(len(record.builder) for _, record in batch)
            left += commits.begin(batch) if commits.admits(count) else batch
        return left
