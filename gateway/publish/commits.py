"""Commits of one lane: what waits goes to the storage, what comes of it to the producers and to
the tail.

what goes     everything that waits; where several queues publish, so much that the next commit
              is never far, shared fairly (`push.commit_sharing`); beside a flood, what others bring
              goes at once, and while it is under way, nothing of the flood
slow          a commit is under way for COMMIT_SLOW_S: new publishes are refused at once
too slow      for COMMIT_DEADLINE_S: its messages are answered `unknown`, once, and pushed all
              the same when it ends after all
failing       commits fail one after another: new publishes are refused for a while, then tried

One commit: the records that go to the storage together, and what the storage says of them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Final, Protocol

from gateway.deliverylog.log import CommittedOrigins, CommitTimes
from gateway.publish.batch import Backlog, OpenRecord
from gateway.publish.tail import Tail
from metadata.catalog import Queue
from push import limits
from push.breaker import Breaker
from push.commit_sharing import FairShare
from push.errors import Refused, TocsinError, Unknown
from push.histogram import MESSAGES, Histogram
from push.places import Partition
from push.record import Header, Record
from push.storage_port import Append, Appended, Lane, NotStored, Storage
from runtime.process import drawn

RECORD_ID_BYTES: Final = 16
Batch = list[tuple[Partition, OpenRecord]]


class Commit:
    """Its records are closed when it is made. Handed over, it is under way."""

    __slots__ = (
        "appends",
        "asked_us",
        "batch",
        "began",
        "has_others",
        "headers",
        "is_answered",
        "is_share",
        "lane",
        "size",
        "stored",
        "ticket",
    )

    def __init__(
        self, batch: Batch, size: int, began: float, *, is_share: bool, lane: Lane
    ) -> None:
        self.batch = batch
        self.size = size
        self.began = began
        self.ticket: int | None = None
        """The breaker's."""
        self.is_share = is_share
        """Of all who publish; else it has what goes beside one that is."""
        self.lane = lane
        """As it was when it began (R7)."""
        self.stored: Awaitable[list[Appended]]
        """What comes of it; to be awaited once."""
        now_ms, self.asked_us = time.time() * 1000, time.monotonic_ns() // 1000
        self.appends: list[Append] = []
        self.headers: list[Header] = []
        record_ids = drawn(len(batch), RECORD_ID_BYTES)
        for (partition, record), record_id in zip(batch, record_ids, strict=True):
            append, header = _append(partition, record, record_id, now_ms)
            self.appends.append(append)
            self.headers.append(header)
        self.is_answered = False
        self.has_others = True
        """Than those that flood."""

    def hand_over(self, storage: Storage) -> None:
        """The storage has it now. Whatever it raises, `stored` does."""
        try:
            self.stored = storage.append(self.appends, lane=self.lane)
        except Exception as error:
            failed: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            self.stored = failed

    def dismiss(self) -> None:
        """Nobody awaits it any more: where nobody ever did, it has not even begun, perhaps."""
        if isinstance(self.stored, Coroutine):
            self.stored.close()


def _append(
    partition: Partition, record: OpenRecord, record_id: bytes, now_ms: float
) -> tuple[Append, Header]:
    """The record, closed, as the storage is handed it."""
    settings = record.route.queue.settings
    encoded, payload, header = record.builder.close(
        record_id=record_id,
        published_unix_ms=int(now_ms),
        ring_epoch=record.route.queue.ring_epoch,
        tenant=0,
    )
    is_bounded = settings.overflow == "reject"
    append = Append(
        partition,
        encoded,
        payload,
        parsed=header,
        durability=settings.durability,
        dedup_window_s=settings.dedup_window_s,
        messages_max=settings.messages_max if is_bounded else 0,
        bytes_max=settings.bytes_max if is_bounded else 0,
        message_bytes_max=settings.bytes_max,
    )
    return append, header


logger = logging.getLogger("tocsin.commits")
COMMITS_MAX: Final = 2
"""One commit is under way and one waits in the storage, so that its writer is never idle; a third
would only make the records smaller."""
COMMIT_AHEAD_MIN: Final = 256
"""The second commit is prepared when it is worth it: a small one costs as much as a large one, and
by the time the first has ended it would have grown."""
CROWD_COMMITS_MAX: Final = 4
"""Besides the one that is shared by all, beside a flood; these go with the storage's next
transaction, whatever of the flood is in that."""
SMALL_BYTES: Final = 256 * 1024
"""As `routing.weight` counts. With a larger one acks would wait for longer than in a transaction
of their own."""
_LOOK_S: Final = 0.25
"""Between two looks at how old the commits under way are."""
FAILURES: Final = frozenset({"unknown", "storage_unavailable", "internal"})
UNMADE_S: Final = 0.25
"""After so long a message is to come again whose queue is not made in the storage yet."""
_NOWHERE: Final = NotStored("queue_not_found")


class RecordSource(Protocol):
    """The publisher, whose records these are. It imports this module."""

    is_due: bool
    """A commit begins in the next turn of the loop, if one is admitted."""

    def hold_up(self, partition: Partition, header: Header) -> None:
        """Hold up the producers of a record that was not stored, or nobody knows (R7)."""

    def is_unmade(self, queue: Queue) -> bool:
        """Whether a queue that the storage does not have is yet to be made there."""

    def release(self, record: OpenRecord) -> None:
        """Count a record's messages as waiting no longer."""

    def on_placed(self, placed: CommittedOrigins) -> None:
        """Called when a commit has ended, with the places of its messages."""

    def on_free(self) -> None:
        """Called when a commit has ended, or what rested may begin: there may be another one."""


class Committer:
    """The commits of one lane. Everything happens on one event loop. `number` is the lane's, and
    `share` judges the queues of all lanes. `moved` is called with the number when one has been
    handed over, and a turn of the loop after one has ended."""

    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        source: RecordSource,
        number: int,
        share: FairShare[str],
        *,
        moved: Callable[[int], None],
    ) -> None:
        self.backlog = Backlog()
        """Counted by the publisher."""
        self._storage = storage
        self._number = number
        self._tail = tail
        self._source = source
        self._appending: dict[Partition, int] = {}
        self._late_ends: dict[Partition, int] = {}
        """Certified ends that became known during an append."""
        self._under_way: dict[asyncio.Task[None], Commit] = {}
        self._moved = moved
        self._size = 0
        """Of the one that began last."""
        self._leaving = 0
        """Those that were answered, and whose successor has not begun yet."""
        self._breaker = Breaker(
            failures_max=limits.BREAKER_FAILURES,
            open_s=limits.BREAKER_OPEN_S,
            trial_s=limits.COMMIT_DEADLINE_S + 1,
        )
        self._watch: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        """The end of that of those that flood, if one waits for it."""
        self._shared = 0
        """Those under way that everybody had a share of."""
        self._share = share
        self.is_calm = True
        """Nothing is to be refused because of the storage; see `refusal`."""
        self.total = 0
        self.messages_total = 0
        self.slow_total = 0
        self.unknown_total = 0
        self.took_s = Histogram()
        """From handing a commit to the storage to its answer, whatever that was."""
        self.messages = Histogram(MESSAGES)
        """How many went with each."""

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def has_small_next(self, *, is_due: bool) -> bool:
        """Whether one is under way, or has just been answered, and none is behind it; or one begins
        now (`is_due`). No, where the last one was large: what goes with such a one waits for
        longer than both would take."""
        is_last = len(self._under_way) + self._leaving == 1
        return self._size <= SMALL_BYTES and (is_last or is_due)

    def is_appending(self, partition: Partition) -> bool:
        """Whether an append is under way there, whose answer will wake who follows."""
        return partition in self._appending

    def gave_up_on(self, queue_id: str) -> bool:
        """Whether something of this queue was answered `unknown`, and its commit may yet end."""
        return any(
            commit.is_answered and any(place.queue_id == queue_id for place, _ in commit.batch)
            for commit in self._under_way.values()
        )

    def certified(self, partition: Partition, end: int) -> None:
        """As Tail.certified, where an append is under way. Its answer comes first: it brings the
        record, which who follows would otherwise read.

        [What another gateway appended meanwhile, forgotten here: nobody tells of it again.]
        """
        self._late_ends[partition] = max(end, self._late_ends.get(partition, 0))

    @property
    def under_way(self) -> Iterable[asyncio.Future[None]]:
        """Those that have not ended."""
        return self._under_way

    # --- How it stands with the storage ----------------------------------------------------------

    def refusal(self) -> Refused | None:
        """Why a new publish is refused before anything is done with it; None: it is not."""
        now = asyncio.get_running_loop().time()
        age = self.age(now)
        if age >= limits.COMMIT_SLOW_S:
            detail = f"the storage is slow: a commit has been under way for {age:.0f} s"
            return Refused("overloaded", detail, 1.0)
        if self._breaker.state(now=now) == "open":
            after_s = max(0.1, self._breaker.retry_after_s(now=now))
            return Refused("storage_unavailable", "commits fail one after another", after_s)
        self.is_calm = True  # half open: the next commit is the trial, and says so if it fails
        return None

    @property
    def breaker(self) -> Breaker:
        """For looking at."""
        return self._breaker

    def age(self, now: float) -> float:
        """How long the oldest of those under way has taken by now, in seconds."""
        first = next(iter(self._under_way.values()), None)
        return now - first.began if first is not None else 0.0

    def _look(self) -> None:
        """Old commits: what comes is refused, and the oldest are answered."""
        loop = asyncio.get_running_loop()
        self._watch = None
        if not self._under_way:
            return
        now = loop.time()
        if self.is_calm and self.age(now) >= limits.COMMIT_SLOW_S:
            self.is_calm = False
            self.slow_total += 1
        for commit in self._under_way.values():
            if now - commit.began >= limits.COMMIT_DEADLINE_S and not commit.is_answered:
                self._give_up(commit, now)
        self._watch = loop.call_later(_LOOK_S, self._look)

    def _give_up(self, commit: Commit, now: float) -> None:
        """Nobody waits for it any longer. It may be stored, now or later: `unknown`, never a
        refusal."""
        commit.is_answered = True
        if commit.ticket is not None:
            self._breaker.failed(commit.ticket, now=now)
        error = Unknown("the storage did not answer in time: send again under the same id")
        for (partition, record), header in zip(commit.batch, commit.headers, strict=True):
            self._source.hold_up(partition, header)
            self.unknown_total += len(record.builder)
            record.fail(error)

    # --- Committing ------------------------------------------------------------------------------

    def admits(self, count: int) -> bool:
        """Whether one more may begin now, where `count` messages wait for it."""
        under_way = len(self._under_way)
        if not under_way:
            return True
        if any(one.lane != self._lane(one.batch) for one in self._under_way.values()):
            return False  # one has failed: who waits behind it is to hear of that first (R7)
        now = asyncio.get_running_loop().time()
        if not self._share.is_shared(now=now):
            return under_way < COMMITS_MAX and count >= COMMIT_AHEAD_MIN
        if not (self._shared or self.holds(now)):
            return True
        # Else whoever comes next goes with the next one.
        return under_way < CROWD_COMMITS_MAX and self._share.is_crowded(now=now)

    def holds(self, now: float) -> bool:
        """Whether nothing of those that flood begins now."""
        others = any(commit.has_others for commit in self._under_way.values())
        return self._share.holds(others=others, now=now, lane=self._number)

    def begin(self, waiting: Batch) -> Batch:
        """Put on its way what goes with the next one, perhaps nothing; returns what stays, in its
        order."""
        now = asyncio.get_running_loop().time()
        sizes = [(partition.queue_id, record.weight) for partition, record in waiting]
        is_beside = self.holds(now) or (self._shared > 0 and self._share.is_shared(now=now))
        if is_beside:
            goes = self._share.choose_beside(sizes, now=now, lane=self._number)
        elif self._rests(sizes, now):
            return waiting
        else:
            goes = self._share.choose(sizes, now=now, lane=self._number)
        if not goes:
            return waiting
        size = sum(sizes[place][1] for place in goes)
        if len(goes) == len(waiting):
            self._start(waiting, size, is_share=not is_beside)
            return []
        places = set(goes)
        self._start([waiting[place] for place in goes], size, is_share=not is_beside)
        return [one for place, one in enumerate(waiting) if place not in places]

    def _rests(self, sizes: Sequence[tuple[str, int]], now: float) -> bool:
        """Whether all of this has to wait for a moment; then who it is of hears of its end."""
        owners = (owner for owner, _ in sizes)
        rest_s = self._share.rest_s(owners, now=now, lane=self._number)
        if rest_s and self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(rest_s, self._rested)
        return rest_s > 0

    def _rested(self) -> None:
        self._rest = None
        self._source.on_free()

    def _lane(self, batch: Batch) -> Lane:
        """As it is now."""
        partition, record = batch[0]
        return self._storage.lane(partition, record.route.queue.settings.durability)

    def _start(self, batch: Batch, size: int, *, is_share: bool) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        commit = Commit(batch, size, now, is_share=is_share, lane=self._lane(batch))
        for partition, _ in batch:
            self._appending[partition] = self._appending.get(partition, 0) + 1
        commit.has_others = self._share.are_others(place.queue_id for place, _ in batch)
        commit.ticket = self._breaker.admit(now=now)
        self._shared += is_share
        self._size = size
        # The storage may begin with it now, a turn of the loop before the task does.
        commit.hand_over(self._storage)
        task = loop.create_task(self._commit(commit), name="commit")
        self._under_way[task] = commit
        task.add_done_callback(self._ended)
        if self._watch is None:
            self._watch = loop.call_later(_LOOK_S, self._look)
        self._moved(self._number)

    def _leave(self, task: asyncio.Task[None] | None) -> None:
        """It is under way no longer; left already: nothing happens."""
        commit = self._under_way.pop(task, None) if task is not None else None
        if commit is not None:
            self._shared -= commit.is_share
            self._leaving += 1
            commit.dismiss()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._leave(task)  # cancelled, or a bug
        self._leaving -= 1
        # Behind the next one, if that begins now or in the next turn.
        asyncio.get_running_loop().call_soon(self._moved, self._number)
        task.result()
        self._source.on_free()

    async def _commit(self, commit: Commit) -> None:
        results: Sequence[Appended | TocsinError]
        try:
            results = await commit.stored
        except TocsinError as error:
            results = [error] * len(commit.batch)
        except Exception as error:  # a bug: nobody waits for ever, and the partition goes on
            logger.exception("a commit failed: unexpected")
            results = [Unknown(f"internal: {error!r}")] * len(commit.batch)
        with self._tail.end_of_turn:
            self._answer_all(commit, results)
            self._leave(asyncio.current_task())

    def _answer_all(self, commit: Commit, results: Sequence[Appended | TocsinError]) -> None:
        stages = CommitTimes(commit.asked_us, time.monotonic_ns() // 1000)
        now = asyncio.get_running_loop().time()
        self._share.took(now - commit.began, commit.size, now=now)
        self._judge(commit, results)
        self.took_s.add((stages.certified_us - stages.asked_us) / 1e6)
        self.messages.add(sum(len(record.builder) for _, record in commit.batch))
        placed = CommittedOrigins(stages, is_late=commit.is_answered)
        self.total += 1
        for (partition, record), append, header, said in zip(
            commit.batch, commit.appends, commit.headers, results, strict=True
        ):
            self._end_append(partition)
            result = self._unless_unmade(record, said)
            if isinstance(result, TocsinError):
                if not commit.is_answered:
                    self._source.hold_up(partition, header)
                    if isinstance(result, Unknown):
                        self.unknown_total += len(record.builder)
            else:
                took_s = (stages.certified_us - record.accepted_us) / 1e6
                record.route.counted.certify_s.add(took_s, result.count)
                self._publish(partition, append, header, result, stages)
                placed.add(record.runs, partition.number, result, header)
            if partition in self._late_ends and not self.is_appending(partition):
                self._tail.certified(partition, self._late_ends.pop(partition))
            self._source.release(record)
            self._answer(record, append, header, result, is_answered=commit.is_answered)
        self._source.on_placed(placed)

    def _unless_unmade(
        self, record: OpenRecord, result: Appended | TocsinError
    ) -> Appended | TocsinError:
        """The result, or where the storage has no such queue and the catalog does, a refusal that
        says to come again: it is not seen for a moment, and not gone."""
        if isinstance(result, TocsinError) or result.outcomes is None:
            return result
        if result.outcomes[:1] != (_NOWHERE,) or not self._source.is_unmade(record.route.queue):
            return result
        return Refused("storage_unavailable", "the queue is being made", UNMADE_S)

    def _judge(self, commit: Commit, results: Sequence[Appended | TocsinError]) -> None:
        if commit.ticket is None or commit.is_answered:
            return
        first = results[0] if results else None
        if isinstance(first, TocsinError) and first.code.name in FAILURES:
            self._breaker.failed(commit.ticket, now=asyncio.get_running_loop().time())
            self.is_calm = False
        else:
            self._breaker.succeeded(commit.ticket)

    def _end_append(self, partition: Partition) -> None:
        left = self._appending[partition] - 1
        if left:
            self._appending[partition] = left
        else:
            del self._appending[partition]

    def _publish(
        self,
        partition: Partition,
        append: Append,
        header: Header,
        result: Appended,
        stages: CommitTimes,
    ) -> None:
        """Certified: now, and not before, who follows gets it (R10)."""
        if result.certified < result.first + result.count or not result.count:
            self._tail.certified(partition, result.certified)  # of what was there before
            return
        if result.skips:
            record = Record.load(result.first, append.header, append.payload, result.skips)
        else:
            record = Record(result.first, header.without_producers(), append.payload)
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
                record.fail(result)
            return
        self.messages_total += result.count
        record.route.counted.stored(result, record.size, header.sizes)
        if not is_answered:
            copies = self._storage.copies(append.partition, append.durability)
            durability: dict[str, object] = {"level": append.durability, "copies": copies}
            record.complete(append.partition.number, result, durability)
