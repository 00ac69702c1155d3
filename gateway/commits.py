"""Commits: what waits goes to the storage, what comes of it to the producers and to the tail.

what goes     everything that waits; where several queues publish, so much that the next commit
              is never far, shared fairly (`push.sharing`)
slow          a commit is under way for COMMIT_SLOW_S: new publishes are refused at once
too slow      for COMMIT_DEADLINE_S: its messages are answered `unknown`, once, and pushed all
              the same when it ends after all
failing       commits fail one after another: new publishes are refused for a while, then tried
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.routing import OpenRecord
from gateway.spans import Stages
from gateway.tail import Tail
from push import limits
from push.breaker import Breaker
from push.errors import Refused, TocsinError, Unknown
from push.ports import Append, Appended, Partition, Storage
from push.record import Header, Record
from push.sharing import Turns

Batch = list[tuple[Partition, OpenRecord]]
COMPANY_S: Final = 1.0
"""So long after several queues have published the next one is expected to be another one."""
CROWD_BYTES_MIN: Final = 64 * 1024
CROWD_SHARE: Final = 8
"""A queue floods when it has so much waiting, and all others together an eighth of that."""
_LOOK_S: Final = 0.25
"""Between two looks at how old the commits under way are."""
FAILURES: Final = frozenset({"unknown", "storage_unavailable", "internal"})


class Owner(Protocol):
    """The publisher whose messages they are."""

    def hold_up(self, partition: Partition, header: Header) -> None:
        """These messages were not stored, or nobody knows (R7)."""

    def released(self, record: OpenRecord) -> None:
        """They wait no longer."""

    def ended(self) -> None:
        """A commit has ended: there may be another one."""


class _Commit:
    """One that is under way."""

    __slots__ = ("batch", "began", "headers", "is_answered", "ticket")

    def __init__(self, batch: Batch, began: float, ticket: int | None) -> None:
        self.batch = batch
        self.began = began
        self.ticket = ticket
        self.headers: list[Header] = []
        self.is_answered = False


class Commits:
    """See the module. Everything happens on one event loop."""

    def __init__(self, storage: Storage, tail: Tail, owner: Owner) -> None:
        self._storage = storage
        self._tail = tail
        self._owner = owner
        self._appending: dict[Partition, int] = {}
        self._under_way: dict[asyncio.Task[None], _Commit] = {}
        self._breaker = Breaker(
            failures_max=limits.BREAKER_FAILURES,
            open_s=limits.BREAKER_OPEN_S,
            trial_s=limits.COMMIT_DEADLINE_S + 1,
        )
        self._watch: asyncio.TimerHandle | None = None
        self._turns: Turns[str] = Turns()
        self._last: set[str] = set()
        self._company_until = float("-inf")
        self._crowded_until = float("-inf")
        self._quickest_s = 0.0
        """What a small commit takes these days: the quickest one, forgotten slowly."""
        self.is_calm = True
        """Nothing is to be refused because of the storage; see `refusal`."""
        self.total = 0
        self.messages_total = 0
        self.slow_total = 0
        self.unknown_total = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def is_appending(self, partition: Partition) -> bool:
        """Whether an append is under way there, whose answer will wake who follows."""
        return partition in self._appending

    async def wait(self) -> None:
        """Until one of those under way has ended."""
        if self._under_way:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    # --- How it stands with the storage ----------------------------------------------------------

    def refusal(self) -> Refused | None:
        """Why a new publish is refused before anything is done with it; None: it is not."""
        now = asyncio.get_running_loop().time()
        age = self._age(now)
        if age >= limits.COMMIT_SLOW_S:
            detail = f"the storage is slow: a commit has been under way for {age:.0f} s"
            return Refused("overloaded", detail, 1.0)
        if self._breaker.state(now=now) == "open":
            after_s = max(0.1, self._breaker.retry_after_s(now=now))
            return Refused("storage_unavailable", "commits fail one after another", after_s)
        self.is_calm = self._breaker.state(now=now) == "closed"
        return None

    def _age(self, now: float) -> float:
        first = next(iter(self._under_way.values()), None)
        return now - first.began if first is not None else 0.0

    def _look(self) -> None:
        """Old commits: what comes is refused, and the oldest are answered."""
        loop = asyncio.get_running_loop()
        self._watch = None
        if not self._under_way:
            return
        now = loop.time()
        if self.is_calm and self._age(now) >= limits.COMMIT_SLOW_S:
            self.is_calm = False
            self.slow_total += 1
        for commit in self._under_way.values():
            if now - commit.began >= limits.COMMIT_DEADLINE_S and not commit.is_answered:
                self._give_up(commit, now)
        self._watch = loop.call_later(_LOOK_S, self._look)

    def _give_up(self, commit: _Commit, now: float) -> None:
        """Nobody waits for it any longer. It may be stored, now or later: `unknown`, never a
        refusal."""
        commit.is_answered = True
        if commit.ticket is not None:
            self._breaker.failed(commit.ticket, now=now)
        error = Unknown("the storage did not answer in time: send again under the same id")
        for (partition, record), header in zip(commit.batch, commit.headers, strict=True):
            self._owner.hold_up(partition, header)
            self.unknown_total += len(record.builder)
            record.failed(error)

    # --- Committing ------------------------------------------------------------------------------

    def choose(self, waiting: Batch) -> tuple[Batch, Batch]:
        """(what goes with the next commit, what stays), each in its order."""
        now = asyncio.get_running_loop().time()
        queues = {partition.queue_id for partition, _ in waiting}
        if len(queues) > 1 or queues != self._last:
            self._company_until = now + COMPANY_S
        self._last = queues
        if now >= self._company_until:
            return waiting, []
        sizes = [(partition.queue_id, record.weight) for partition, record in waiting]
        if len(queues) > 1:
            self._look_for_crowd(sizes, now)
        goes = self._turns.take(sizes, self._room())
        if len(goes) == len(waiting):
            return waiting, []
        places = set(goes)
        stays = [one for place, one in enumerate(waiting) if place not in places]
        return [waiting[place] for place in goes], stays

    def _look_for_crowd(self, sizes: list[tuple[str, int]], now: float) -> None:
        by_queue: dict[str, int] = {}
        for queue_id, size in sizes:
            by_queue[queue_id] = by_queue.get(queue_id, 0) + size
        most = max(by_queue.values())
        if most >= CROWD_BYTES_MIN and (sum(by_queue.values()) - most) * CROWD_SHARE <= most:
            self._crowded_until = now + COMPANY_S

    def is_crowded(self) -> bool:
        """Whether one queue floods and has others beside it, as far as the last second tells."""
        return asyncio.get_running_loop().time() < self._crowded_until

    def _room(self) -> int:
        """What the next commit takes where queues share it: what costs about as much time as any
        commit costs, be it small."""
        room = int(limits.COMMIT_BYTES_SHARED * max(1.0, self._quickest_s * 1000))
        return min(room, limits.COMMIT_BYTES_SHARED_MAX)

    def has_company(self) -> bool:
        """Whether several queues publish, as far as the last second tells."""
        return asyncio.get_running_loop().time() < self._company_until

    def start(self, batch: Batch) -> None:
        """Put it on its way."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for partition, _ in batch:
            self._appending[partition] = self._appending.get(partition, 0) + 1
        commit = _Commit(batch, now, self._breaker.admit(now=now))
        task = loop.create_task(self._commit(commit), name="commit")
        self._under_way[task] = commit
        task.add_done_callback(self._ended)
        if self._watch is None:
            self._watch = loop.call_later(_LOOK_S, self._look)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        task.result()
        self._owner.ended()

    async def _commit(self, commit: _Commit) -> None:
        now_ms = time.time() * 1000
        appends = []
        for partition, record in commit.batch:
            append, header = _append(partition, record, now_ms)
            appends.append(append)
            commit.headers.append(header)
        results: Sequence[Appended | TocsinError]
        try:
            results = await self._storage.append(appends)
        except TocsinError as error:
            results = [error] * len(appends)
        took_s = asyncio.get_running_loop().time() - commit.began
        self._quickest_s = min(took_s, self._quickest_s * 1.02 + 0.000_05)
        self._judge(commit, results)
        certified_ms = time.time() * 1000
        self.total += 1
        for (partition, record), append, header, result in zip(
            commit.batch, appends, commit.headers, results, strict=True
        ):
            self._appended(partition)
            if isinstance(result, TocsinError):
                if not commit.is_answered:
                    self._owner.hold_up(partition, header)
            else:
                stages = Stages(record.received_unix_ms, now_ms, certified_ms)
                self._publish(partition, append, header, result, stages)
            self._owner.released(record)
            self._answer(record, append, header, result, is_answered=commit.is_answered)

    def _judge(self, commit: _Commit, results: Sequence[Appended | TocsinError]) -> None:
        if commit.ticket is None or commit.is_answered:
            return
        first = results[0] if results else None
        if isinstance(first, TocsinError) and first.code.name in FAILURES:
            self._breaker.failed(commit.ticket, now=asyncio.get_running_loop().time())
            self.is_calm = False
        else:
            self._breaker.succeeded(commit.ticket)

    def _appended(self, partition: Partition) -> None:
        left = self._appending[partition] - 1
        if left:
            self._appending[partition] = left
        else:
            del self._appending[partition]

    def _publish(
        self, partition: Partition, append: Append, header: Header, result: Appended, stages: Stages
    ) -> None:
        """Certified: now, and not before, who follows gets it (R10)."""
        if not result.count:
            self._tail.certified(partition, result.certified)
            return
        if result.skips:
            record = Record.load(result.first, append.header, append.payload, result.skips)
        else:
            header.drop_producers()
            record = Record(result.first, header, append.payload)
        self._tail.appended(partition, record, stages, result.certified)

    def _answer(
        self,
        record: OpenRecord,
        append: Append,
        header: Header,
        result: Appended | TocsinError,
        *,
        is_answered: bool,
    ) -> None:
        if isinstance(result, TocsinError):
            if not is_answered:
                record.failed(result)
            return
        self.messages_total += result.count
        record.route.counted.stored(result, record.size, header.sizes)
        if not is_answered:
            durability: dict[str, object] = {"level": append.durability, "copies": 1}
            record.stored(append.partition.number, result, durability)


def _append(partition: Partition, record: OpenRecord, now_ms: float) -> tuple[Append, Header]:
    """The record, closed, as the storage is handed it."""
    settings = record.route.queue.settings
    encoded, payload, header = record.builder.close(
        record_id=os.urandom(16),
        published_unix_ms=int(now_ms),
        ring_epoch=record.route.queue.ring_epoch,
        tenant=0,
    )
    is_bounded = settings.overflow == "reject"
    append = Append(
        partition,
        encoded,
        payload,
        durability=settings.durability,
        dedup_window_s=settings.dedup_window_s,
        messages_max=settings.messages_max if is_bounded else 0,
        bytes_max=settings.bytes_max if is_bounded else 0,
    )
    return append, header
