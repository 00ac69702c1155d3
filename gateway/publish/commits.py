"""The group commit: open records go to the storage together, its answers to producers and tail.

`GroupCommit` holds one open record for each partition that somebody publishes to. It has a
`Committer` for each **lane**, the part of a storage that fails together
(`push.storage_port.Lane`). A replica that is away, or a primary that is down, costs those who
publish there, and nobody else. Each lane has its own commits, breaker, deadline and bound for what
waits. Heavy queues are found across all lanes, because these share the process.

A commit begins as soon as something waits. If messages waited for the last one, the next one keeps
a short distance from it (`push.commit_sharing.CommitPace`). Messages that arrive while commits are
under way make the next one larger:

next      a commit takes everything that waits. If several queues publish, it takes a fair share
          of each (`push.commit_sharing`), so that the next commit is never far. Beside heavy queues
          the records of light ones go at once; while they are under way, no heavy record begins.
slow      a commit is under way for COMMIT_SLOW_S: new publishes are refused at once.
too slow  a commit is under way for COMMIT_DEADLINE_S: its messages are answered `unknown`, once.
          If it ends after all, they are pushed all the same.
failing   commits fail one after another: new publishes are refused for a while, then one is tried.

A partition's records are under way in one lane at a time. If its lane becomes another one, its
next record begins when those before it have ended, and their failure has been noticed (R7).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

from gateway.deliverylog.log import CommittedOrigins, CommitTimes, DeliveryLog
from gateway.publish.batch import (
    RECORD_ID_BYTES,
    Backlog,
    Commit,
    OpenRecord,
    Route,
    Run,
    SendingOrders,
)
from gateway.publish.tail import Tail
from metadata.catalog import Queue
from push import limits
from push.commit_sharing import REST_S, SHARE_ALONE, CommitPace, FairShare, commit_weight, has_room
from push.errors import Refused, TocsinError, Unknown
from push.histogram import MESSAGES, Histogram
from push.places import Partition
from push.record import Header, Record, RecordBuilder
from push.retry import Breaker
from push.storage_port import Appended, Lane, NotStored, Storage
from runtime.loop.end_of_turn import call_guarded, report_bug

logger = logging.getLogger("tocsin.commits")
COMMITS_MAX: Final = 2
"""Largest number of a lane's commits under way while one queue publishes: one that the storage
writes and one that waits there for its writer. A third would only make records smaller."""
COMMIT_AHEAD_MIN: Final = 256
"""Number of waiting messages from which the second commit begins. A small one costs as much as a
large one, and would have grown by the time the first has ended."""
LIGHT_COMMITS_MAX: Final = 4
"""Largest number of a lane's commits under way beside heavy queues: a shared one, and further ones
that have records of light queues alone. The storage's next transaction takes these along."""
HELD_S: Final = 0.25
"""Longest time in seconds that cursor writes wait for a commit of published records: longer than a
slow disk needs for the one under way. Writes that are handed over while one is under way become a
transaction of their own, and the next commit of messages waits for it. measured:
docs/benchmarks/tuning.md#cursor-writes-wait-for-a-commit"""
SMALL_BYTES: Final = 256 * 1024
"""Largest weight of a lane's last commit with which cursor writes wait for the next one. Behind a
larger one acks would wait for longer than a transaction of their own takes."""
LATE_S: Final = 0.25
"""Age of a commit in seconds from which `has_enough` leaves out what waits in its lane, so that
this does not hold back messages for other lanes."""
FAILURES: Final = frozenset({"unknown", "storage_unavailable", "internal"})
UNMADE_S: Final = 0.25
"""Seconds that producers of a queue are advised to wait if the storage does not have it yet."""
_WATCH_EVERY_S: Final = 0.25
"""Seconds between two checks of the age of the commits under way."""
_QUEUE_NOT_FOUND: Final = NotStored("queue_not_found")
Batch = list[OpenRecord]


class GroupCommit:
    """The open records of all partitions, and the committers of all lanes. Everything happens on
    one event loop."""

    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        orders: SendingOrders,
        share: FairShare[str],
        *,
        log: DeliveryLog,
        is_unmade: Callable[[Queue], bool],
        in_parts: bool = False,
    ) -> None:
        """`is_unmade`: whether a queue that the storage does not have is yet to be made there.
        `in_parts`: whether the storage has several servers, whose lanes fail apart. The lanes
        themselves become known only when somebody publishes there."""
        self.storage = storage
        self.tail = tail
        self.share = share
        self.log = log
        self.is_unmade = is_unmade
        self._orders = orders
        self._in_parts = in_parts
        self.on_begin: list[Callable[[int], None]] = []
        """Called with a lane's number when a commit was handed to the storage there."""
        self.on_end: list[Callable[[int], None]] = []
        """The same for its end. If the next one begins at once, this comes after its begin."""
        self._lanes: dict[int, Committer] = {}
        self._open: dict[tuple[Partition, bool], OpenRecord] = {}
        """(partition, whether its messages are scheduled) → record that takes more."""
        self._closed: Batch = []
        """Records that take no more messages; each goes before its partition's open one."""
        self.appending: dict[Partition, PartitionAppends] = {}
        """The records under way, by partition."""
        self.under_way = 0
        """Number of commits under way, in all lanes."""
        self.is_calm = True
        """Whether no lane is known to have slow or failing commits."""
        self.pending = Backlog()
        """Messages of all queues whose commit has not ended."""
        self.is_scheduled = False
        """Whether a commit begins in the next turn of the loop, if one is admitted."""
        self._record_bytes_max = limits.RECORD_BYTES_MAX
        self._is_skewed = False
        """Whether heavy queues had light ones beside them at the last commit, so that commits have
        to distinguish the queues of messages."""

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop. Python 3.11 makes a system call in each `get_running_loop`."""
        return asyncio.get_running_loop()

    def __len__(self) -> int:
        """Return the number of commits under way."""
        return self.under_way

    def lanes(self) -> dict[int, "Committer"]:
        """Return the committer of each lane that was published to, by its number."""
        return self._lanes

    @property
    def total(self) -> int:
        """Number of commits that have ended."""
        return sum(lane.total for lane in self._lanes.values())

    @property
    def messages_total(self) -> int:
        """Number of messages that were stored."""
        return sum(lane.messages_total for lane in self._lanes.values())

    def _lane_of(self, route: Route, partition: Partition) -> "Committer":
        queue = route.queue
        number = self.storage.lane(partition, queue.settings.durability).number
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Committer(self, number)
        return lane

    # --- Admission -----------------------------------------------------------------------------

    def refusal(self, route: Route, count: int) -> Refused | None:
        """Return why a publish of `count` messages to this queue is refused; None if it is not."""
        if not self.is_calm:
            refused = self._storage_refusal(route)
            if refused is not None:
                return refused
        # A quick look: if one queue with all that waits would have room, so has each.
        if (
            self.pending.messages + count > SHARE_ALONE * limits.PENDING_MESSAGES_MAX
            or self.pending.bytes > SHARE_ALONE * limits.PENDING_BYTES_MAX
            or self._is_skewed
        ) and not self._has_room(route, count):
            return Refused("overloaded", "too many messages wait for the storage", 0.1)
        return None

    def _storage_refusal(self, route: Route) -> Refused | None:
        """Return the refusal of the queue's lanes. A queue's partitions are in one lane, unless it
        is at several clusters. Then it is refused if all of these refuse."""
        refused = [lane.refusal() for lane in self._lanes_of(route)]
        for lane in self._lanes.values():
            if not (lane.is_calm or len(lane)):
                lane.refusal()  # its partitions may have moved, so that no publish asks it again
        self.is_calm = all(lane.is_calm for lane in self._lanes.values())
        return refused[0] if all(refused) else None

    def _lanes_of(self, route: Route) -> set["Committer"]:
        partitions = iter(route.partitions.values())
        if len(route.queue.clusters) < 2:
            return {self._lane_of(route, next(partitions))}
        return {self._lane_of(route, partition) for partition in partitions}

    def _has_room(self, route: Route, count: int) -> bool:
        own, pending = route.pending, self.pending
        weight, now = commit_weight(own.messages, own.bytes), self.loop.time()
        if self.share.has_too_much(route.queue.queue_id, weight, now=now):
            return False
        return (
            has_room(own.messages, count, pending.messages, limits.PENDING_MESSAGES_MAX)
            and has_room(own.bytes, 0, pending.bytes, limits.PENDING_BYTES_MAX)
            and self._have_lanes_room(route, count)
        )

    def _have_lanes_room(self, route: Route, count: int) -> bool:
        """Whether a lane of this queue may have `count` messages more. A lane that does not move
        must leave room to the others."""
        if len(self._lanes) < 2 and not self._in_parts:
            return True
        messages, size = self.pending.messages, self.pending.bytes
        return any(lane.has_room(count, messages, size) for lane in self._lanes_of(route))

    def refusal_at(
        self, route: Route, partition: Partition, run: Run, messages: int, size: int
    ) -> Refused | None:
        """Return why these messages are refused, of a queue at several clusters of which one may be
        away; None: they are not. `messages` of `size` bytes of the same publish go before them."""
        lane = self._lane_of(route, partition)
        refused = None if lane.is_calm else lane.refusal()
        messages, size = self.pending.messages + messages, self.pending.bytes + size
        if refused is None and not lane.has_room(len(run.indexes), messages, size):
            refused = Refused("overloaded", "too many messages wait for this storage cluster", 0.1)
        return refused

    def has_enough(self) -> bool:
        """Whether nothing more of heavy queues is needed yet, because more of it waits than the
        next commits take, or nothing of it begins now."""
        now = self.loop.time()
        if any(lane.holds(now) for lane in self._lanes.values()):
            return True
        lanes = [lane for lane in self._lanes.values() if lane.age(now) < LATE_S]
        backlogs = [lane.backlog for lane in (lanes or self._lanes.values())]
        weight = sum(commit_weight(backlog.messages, backlog.bytes) for backlog in backlogs)
        return self.share.has_enough(weight, now=now)

    # --- Open records --------------------------------------------------------------------------

    def add(self, route: Route, partition: Partition, run: Run) -> int:
        """Put a run into the open record of its partition, in pieces if it is too long. Returns its
        bytes, which the caller passes to `schedule`."""
        count, size = len(run.encoded), sum(map(len, run.encoded))
        record = self._open.get((partition, bool(run.due)))
        if record is None:
            record = self._open_record(route, partition, run)
        elif is_full(record.builder, size, self._record_bytes_max):
            self._closed.append(record)
            record = self._open_record(route, partition, run)
        room = limits.RECORD_MESSAGES_MAX - record.builder.count
        if count <= room and size <= limits.RECORD_BYTES_MAX:
            record.take(run, size)
            return size
        first = 0
        while first < count:
            if first:
                self._closed.append(record)
                record = self._open_record(route, partition, run)
                room = limits.RECORD_MESSAGES_MAX
            last = min(first + room, piece_end(run.encoded, first))
            piece = run.piece(first, last)
            record.take(piece, sum(map(len, piece.encoded)))
            first = last
        return size

    def _open_record(self, route: Route, partition: Partition, run: Run) -> OpenRecord:
        backlog = self._lane_of(route, partition).backlog
        record = OpenRecord(route, partition, backlog, run.publish, is_due=bool(run.due))
        self._open[record.slot] = record
        return record

    def schedule(self, route: Route, messages: int, size: int) -> None:
        """Count the messages of a publish that were added, `size` bytes in all, and commit in the
        next turn of the loop."""
        pending, of_queue = self.pending, route.pending
        pending.messages += messages
        pending.bytes += size
        of_queue.messages += messages
        of_queue.bytes += size
        if messages and not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self._commit)

    def release(self, record: OpenRecord) -> None:
        """Take a record's messages out of the backlogs of its lane, its queue and all queues."""
        count, size = record.builder.count, record.size
        pending, of_queue, of_lane = self.pending, record.route.pending, record.backlog
        pending.messages -= count
        pending.bytes -= size
        of_queue.messages -= count
        of_queue.bytes -= size
        of_lane.messages -= count
        of_lane.bytes -= size

    # enforces: R7
    def hold_up(self, partition: Partition, header: Header) -> None:
        """Hold up the producers of a record that was not stored, or whose outcome is not known
        (R7). Waiting records of its partition that have messages of these producers would overtake
        it with the next commit: they are refused now."""
        self._orders.on_not_stored(partition, header)
        held = {producer for producer, _ in header.producers}
        for record in [*self._closed, *self._open.values()]:
            if record.partition == partition and held:
                self._withdraw(record, held)

    def _withdraw(self, record: OpenRecord, held: set[bytes]) -> None:
        """Refuse a waiting record, unless it has nothing of these producers."""
        partition = record.partition
        _, _, header = record.builder.close(
            record_id=bytes(RECORD_ID_BYTES), published_unix_ms=0, ring_epoch=0, tenant=0
        )
        if held.isdisjoint(producer for producer, _ in header.producers):
            return
        if self._open.get(record.slot) is record:
            del self._open[record.slot]
        else:
            self._closed.remove(record)
        self._orders.on_not_stored(partition, header)
        record.backlog.waiting -= record.builder.count
        self.release(record)
        record.fail(Refused("storage_unavailable", "an earlier message was not stored"))

    # --- Commits -------------------------------------------------------------------------------

    def commit_early(self) -> bool:
        """Commit now instead of in the next turn of the loop, if heavy queues have light ones
        beside them. Called after each read of a socket, so that publishes do not wait until all
        sockets have been read. Returns whether a commit is under way."""
        if self.is_scheduled and self._is_skewed:
            self._commit()
        return self.under_way > 0

    def on_free(self) -> None:
        """Begin the next commit, if something waits. Called when a commit has ended, or when the
        time is over for which nothing was to begin."""
        if (self._open or self._closed) and not self.is_scheduled:
            # One turn after the answer, so that what was read from sockets since then goes along.
            self._commit()

    def _commit(self) -> None:
        self.is_scheduled = False
        if not (self._open or self._closed):
            return
        lanes = [lane for lane in self._lanes.values() if lane.admits()]
        if not lanes:
            return
        left = self._begin([*self._closed, *self._open.values()], lanes)
        now = self.loop.time()
        is_shared = self.share.is_shared(now=now)
        # What is shared goes with commits record by record.
        self._record_bytes_max = (
            limits.RECORD_BYTES_SHARED if is_shared else limits.RECORD_BYTES_MAX
        )
        self._is_skewed = self.share.is_skewed(now=now)
        self._closed, self._open = [], {}
        for record in left:
            before = self._open.pop(record.slot, None)
            if before is not None:
                self._closed.append(before)
            self._open[record.slot] = record

    def _begin(self, waiting: Batch, lanes: list["Committer"]) -> Batch:
        """Begin the next commit in each of the `lanes`, and in those that become known only now.
        Returns what stays, a partition's records in their order."""
        batches: dict[Committer, Batch] = {}
        left: Batch = []
        for record in waiting:
            lane = self._lane_of(record.route, record.partition)
            before = self.appending.get(record.partition)
            if before is not None and before.lane is not lane:
                left.append(record)  # waits for the outcome of what is before it (R7)
            else:
                batches.setdefault(lane, []).append(record)
        for lane, batch in batches.items():
            left += lane.begin(batch) if lane in lanes or lane.admits() else batch
        return left

    def cursors_wait_s(self, number: int) -> float:
        """Return for how many seconds, at most, cursor writes wait for a lane's next commit,
        because it is near and small; 0: they do not."""
        lane = self._lanes.get(number)
        return lane.cursors_wait_s(is_due=self.is_scheduled) if lane is not None else 0.0

    def on_missed(self, number: int) -> None:
        """Note that cursor writes have waited for a commit of this lane that did not begin."""
        lane = self._lanes.get(number)
        if lane is not None:
            lane.missed()

    def has_given_up(self, queue_id: str) -> bool:
        """Whether messages of this queue were answered `unknown` whose commit may yet end."""
        return any(lane.has_given_up(queue_id) for lane in self._lanes.values())

    def on_certified(self, partition: Partition, end: int) -> None:
        """Note that the storage certified a partition up to `end`. If an append is under way there,
        wait for its answer: it brings the record, which followers would otherwise read."""
        appends = self.appending.get(partition)
        if appends is None:
            self.tail.on_notified(partition, end)
        else:
            appends.late_end = max(end, appends.late_end)

    async def drain(self) -> None:
        """Wait until everything that was accepted has its answer."""
        while self._open or self._closed or self.under_way:
            self._commit()
            tasks = [task for lane in self._lanes.values() for task in lane.under_way]
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            else:  # heavy queues rest, or the pace requires a wait
                await asyncio.sleep(REST_S)


class PartitionAppends:
    """The records of a partition that are under way, all in one lane."""

    __slots__ = ("count", "lane", "late_end")

    def __init__(self, lane: "Committer") -> None:
        self.lane = lane
        self.count = 0
        self.late_end = 0
        """The certified end that became known meanwhile, until the answers; 0: none did. If it were
        not kept, the end of what another gateway appended would be lost: it is notified once."""


class Committer:
    """The commits of one lane. Everything happens on one event loop."""

    def __init__(self, group: GroupCommit, number: int) -> None:
        """`number`: the lane's."""
        self.backlog = Backlog()
        """Messages of this lane whose commit has not ended."""
        self._loop = group.loop
        self._group = group
        self._number = number
        self._storage = group.storage
        self._tail = group.tail
        self._share = group.share
        self._under_way: dict[asyncio.Future[list[Appended]], Commit] = {}
        self._last_size = 0
        """Weight of the commit that began last."""
        self._ending = 0
        """Number of commits that were answered, and whose `_begin_next` has not run yet."""
        self.breaker = Breaker(
            failures_max=limits.BREAKER_FAILURES,
            open_s=limits.BREAKER_OPEN_S,
            trial_s=limits.COMMIT_DEADLINE_S + 1,
        )
        self._watch: asyncio.TimerHandle | None = None
        self._pace = CommitPace()
        self._rest: asyncio.TimerHandle | None = None
        """Timer that begins the next commit; None if neither heavy queues nor the pace wait."""
        self._shared = 0
        """Number of commits under way that have a share of every queue."""
        self._light = 0
        """Number of commits under way that have something of light queues."""
        self.is_calm = True
        """Whether no commit is known to be slow or to have failed. False: `refusal` looks again."""
        self.total = 0
        self.records_total = 0
        self.messages_total = 0
        self.slow_total = 0
        self.unknown_total = 0
        self.took_s = Histogram()
        """Time from handing a commit to the storage to its answer, whatever the answer was."""
        self.messages = Histogram(MESSAGES)
        """Number of messages of each commit."""

    def __len__(self) -> int:
        """Return the number of commits under way."""
        return len(self._under_way)

    @property
    def under_way(self) -> Iterable[asyncio.Future[list[Appended]]]:
        """The answers of the commits that have not ended."""
        return self._under_way

    def cursors_wait_s(self, *, is_due: bool) -> float:
        """Return for how many seconds, at most, cursor writes wait for the next commit; 0: they do
        not. HELD_S if a commit is under way, or has just been answered, and none is behind it, or
        if messages wait here for one that begins now (`is_due`) or after a rest. Less if one is
        only expected. 0 if the last commit was large: what goes with such a one waits for longer
        than both take."""
        if self._last_size > SMALL_BYTES:
            return 0.0
        is_next = self.backlog.waiting > 0 and (is_due or self._rest is not None)
        if is_next or len(self._under_way) + self._ending == 1:
            return HELD_S
        return 0.0 if self._under_way else self._pace.expected_for_s(now=self._loop.time())

    def missed(self) -> None:
        """Note that cursor writes have waited for a commit that did not begin."""
        if not self._under_way:
            self._pace.missed(now=self._loop.time())

    def has_given_up(self, queue_id: str) -> bool:
        """Whether messages of this queue were answered `unknown` whose commit may yet end."""
        return any(
            commit.is_answered
            and any(record.partition.queue_id == queue_id for record in commit.batch)
            for commit in self._under_way.values()
        )

    def has_room(self, count: int, messages: int, size: int) -> bool:
        """Whether the lane may have `count` messages more, if `messages` of `size` bytes are
        pending in all lanes."""
        own = self.backlog
        return has_room(own.messages, count, messages, limits.PENDING_MESSAGES_MAX) and has_room(
            own.bytes, 0, size, limits.PENDING_BYTES_MAX
        )

    # --- Health of the storage -----------------------------------------------------------------

    def refusal(self) -> Refused | None:
        """Return why new publishes to this lane are refused; None if they are not."""
        now = self._loop.time()
        age = self.age(now)
        if age >= limits.COMMIT_SLOW_S:
            detail = f"the storage is slow: a commit has been under way for {age:.0f} s"
            return Refused("overloaded", detail, 1.0)
        if self.breaker.state(now=now) == "open":
            after_s = max(0.1, self.breaker.retry_after_s(now=now))
            return Refused("storage_unavailable", "commits fail one after another", after_s)
        self.is_calm = True  # half open: the next commit is the trial, and says so if it fails
        return None

    def age(self, now: float) -> float:
        """Return for how many seconds the oldest commit has been under way; 0 if none is."""
        first = next(iter(self._under_way.values()), None)
        return now - first.began if first is not None else 0.0

    def _check_ages(self) -> None:
        """Have publishes refused if a commit is slow, and answer those that are too slow."""
        loop = self._loop
        self._watch = None
        if not self._under_way:
            return
        now = loop.time()
        if self.is_calm and self.age(now) >= limits.COMMIT_SLOW_S:
            self.is_calm = self._group.is_calm = False
            self.slow_total += 1
        for commit in self._under_way.values():
            if now - commit.began >= limits.COMMIT_DEADLINE_S and not commit.is_answered:
                self._give_up(commit, now)
        self._watch = loop.call_later(_WATCH_EVERY_S, self._check_ages)

    # enforces: P2, R5
    def _give_up(self, commit: Commit, now: float) -> None:
        """Answer a commit's messages with `unknown`, never with a refusal: they may be stored, now
        or later."""
        commit.is_answered = True
        if commit.ticket is not None:
            self.breaker.failed(commit.ticket, now=now)
        error = Unknown("the storage did not answer in time: send again under the same id")
        for record, header in zip(commit.batch, commit.headers, strict=True):
            self._group.hold_up(record.partition, header)
            self.unknown_total += record.builder.count
            record.fail(error)

    # --- Beginning -----------------------------------------------------------------------------

    def admits(self) -> bool:
        """Whether one more commit may begin now."""
        under_way, now = len(self._under_way), self._loop.time()
        if not under_way:
            return not self._must_rest(now)
        if any(one.lane != self._lane_now(one.batch) for one in self._under_way.values()):
            return False  # one has failed: what waits behind it is held up first (R7)
        if not self._share.is_shared(now=now):
            return under_way < COMMITS_MAX and self.backlog.waiting >= COMMIT_AHEAD_MIN
        if not (self._shared or self.holds(now)):
            return True
        # A shared commit is under way, or heavy queues are held: only light ones may begin beside.
        return under_way < LIGHT_COMMITS_MAX and self._share.is_skewed(now=now)

    def _must_rest(self, now: float) -> bool:
        """Whether nothing begins yet, because the last commit began just now."""
        backlog = self.backlog
        wait_s = self._pace.wait_s(backlog.waiting, backlog.bytes, now=now)
        if not wait_s or self._share.is_skewed(now=now):
            return False
        if self._rest is None:
            self._rest = self._loop.call_later(wait_s, self._end_rest)
        return True

    def holds(self, now: float) -> bool:
        """Whether nothing of heavy queues begins now."""
        return self._share.holds(has_light=self._light > 0, now=now, lane=self._number)

    def begin(self, waiting: Batch) -> Batch:
        """Begin the next commit with the records that go now, perhaps none. Returns those that
        stay, in their order."""
        now, share = self._loop.time(), self._share
        owners = [record.partition.queue_id for record in waiting]
        sizes = [(record.partition.queue_id, record.weight) for record in waiting]
        is_beside = bool(self._under_way) and (
            self.holds(now) or (self._shared > 0 and share.is_shared(now=now))
        )
        if is_beside:
            chosen = share.choose_beside(sizes, now=now, lane=self._number)
        else:
            rest_s = share.rest_s(owners, now=now, lane=self._number)
            if rest_s:
                if self._rest is None:
                    self._rest = self._loop.call_later(rest_s, self._end_rest)
                return waiting
            chosen = share.choose(sizes, now=now, lane=self._number)
        if not chosen:
            return waiting
        if len(chosen) == len(waiting):
            self._start(waiting, owners, is_share=not is_beside)
            return []
        places = set(chosen)
        batch = [waiting[place] for place in chosen]
        self._start(batch, [owners[place] for place in chosen], is_share=not is_beside)
        return [record for place, record in enumerate(waiting) if place not in places]

    def _end_rest(self) -> None:
        self._rest = None
        self._group.on_free()

    def _lane_now(self, batch: Batch) -> Lane:
        record = batch[0]
        queue = record.route.queue
        return self._storage.lane(record.partition, queue.settings.durability)

    def _start(self, batch: Batch, owners: Sequence[str], *, is_share: bool) -> None:
        """Begin a commit of these records. `owners`: the queue of each."""
        loop = self._loop
        now, appending = loop.time(), self._group.appending
        commit = Commit(batch, now, is_share=is_share, lane=self._lane_now(batch))
        for record in batch:
            appends = appending.get(record.partition)
            if appends is None:
                appends = appending[record.partition] = PartitionAppends(self)
            appends.count += 1
            record.backlog.waiting -= record.builder.count
        commit.has_light = self._share.has_light(owners)
        commit.ticket = self.breaker.admit(now=now)
        self._shared += is_share
        self._light += commit.has_light
        self._last_size = commit.size
        self._pace.begin(now=now)
        commit.hand_over(self._storage)
        self._under_way[commit.stored] = commit
        self._group.under_way += 1
        commit.stored.add_done_callback(self._on_stored)
        if self._watch is None:
            self._watch = loop.call_later(_WATCH_EVERY_S, self._check_ages)
        for listener in self._group.on_begin:
            call_guarded(listener, self._number)

    # --- Ending --------------------------------------------------------------------------------

    def _on_stored(self, stored: asyncio.Future[list[Appended]]) -> None:
        """End a commit, whose answer has come."""
        with self._tail.end_of_turn:
            try:
                if not stored.cancelled():  # else the loop ends, and nobody waits any more
                    self._end(self._under_way[stored], self._under_way[stored].results())
            finally:
                commit = self._under_way.pop(stored)
                self._group.under_way -= 1
                self._shared -= commit.is_share
                self._light -= commit.has_light
                self._ending += 1
                self._pace.end(self.backlog.waiting)
                # The next one takes along what the loop reads from the sockets before that turn.
                self._loop.call_soon(self._begin_next)

    def _end(self, commit: Commit, results: Sequence[Appended | TocsinError]) -> None:
        """Judge the storage by its answer, and give every record its own."""
        times = CommitTimes(commit.asked_us, time.monotonic_ns() // 1000)
        now = self._loop.time()
        self._share.measure(now - commit.began, commit.size, now=now)
        if commit.ticket is not None and not commit.is_answered:
            first = results[0] if results else None
            if isinstance(first, TocsinError) and first.code.name in FAILURES:
                self.breaker.failed(commit.ticket, now=now)
                self.is_calm = self._group.is_calm = False
            else:
                self.breaker.succeeded(commit.ticket)
        self.took_s.add((times.certified_us - times.asked_us) / 1e6)
        self.messages.add(commit.messages)
        self.total += 1
        self.records_total += len(commit.batch)
        stored: list[tuple[OpenRecord, Header, Appended]] = []
        for at, (record, result) in enumerate(zip(commit.batch, results, strict=True)):
            try:
                try:
                    if isinstance(result, TocsinError):
                        self._fail(commit, at, result)
                    elif self._is_being_made(record, result):
                        unmade = Refused("storage_unavailable", "the queue is being made", UNMADE_S)
                        self._fail(commit, at, unmade)
                    else:
                        stored.append((record, commit.headers[at], result))
                        self._complete(commit, at, result, times)
                finally:
                    self._end_append(record.partition)
            except Exception as bug:  # of this record: the others have their answers
                report_bug(bug)
        if self._group.log.is_on:
            origins = CommittedOrigins(times, is_late=commit.is_answered)
            for record, header, result in stored:
                origins.add(record.runs, record.partition.number, result, header)
            self._group.log.add_commit(origins)

    def _is_being_made(self, record: OpenRecord, result: Appended) -> bool:
        """Whether the storage does not have a queue that the catalog has: it is not made there yet,
        and not gone."""
        return bool(
            result.outcomes
            and result.outcomes[0] == _QUEUE_NOT_FOUND
            and self._group.is_unmade(record.route.queue)
        )

    def _fail(self, commit: Commit, at: int, error: TocsinError) -> None:
        """Answer a record that was not stored, or whose outcome is not known."""
        record = commit.batch[at]
        if not commit.is_answered:
            self._group.hold_up(record.partition, commit.headers[at])
            if isinstance(error, Unknown):
                self.unknown_total += record.builder.count
        self._group.release(record)
        if not commit.is_answered:
            record.fail(error)

    # enforces: R10
    def _complete(self, commit: Commit, at: int, result: Appended, times: CommitTimes) -> None:
        """Hand a record to the tail, and answer it. Followers get it now and not before (R10)."""
        record, append, header = commit.batch[at], commit.appends[at], commit.headers[at]
        partition = record.partition
        if result.certified < result.first + result.count or not result.count:
            self._tail.on_certified(partition, result.certified)  # of what was there before
        else:
            if result.skips:
                stored = Record.load(result.first, append.header, append.payload, result.skips)
            else:
                stored = Record(result.first, header.without_producers(), append.payload)
            self._tail.on_append(partition, stored, times, result.certified)
        self._group.release(record)
        self.messages_total += result.count
        level = append.durability
        durability: dict[str, object] = {
            "level": level,
            "copies": self._storage.copies(partition, level),
        }
        record.complete(
            result,
            header,
            durability,
            times.certified_us,
            is_answered=commit.is_answered,
        )

    def _end_append(self, partition: Partition) -> None:
        """Count an append that was answered. After a partition's last one, pass on the end that
        became known meanwhile, if it is after the answer's end."""
        appends = self._group.appending[partition]
        appends.count -= 1
        if not appends.count:
            del self._group.appending[partition]
            if appends.late_end > self._tail.ends.get(partition, 0):
                self._tail.on_certified(partition, appends.late_end)

    def _begin_next(self) -> None:
        self._ending -= 1
        self._group.on_free()
        if self._group.is_scheduled:  # after the next one began, so that cursor writes go with it
            self._loop.call_soon(self._notify_end)
        else:
            self._notify_end()

    def _notify_end(self) -> None:
        for listener in self._group.on_end:
            call_guarded(listener, self._number)


def is_full(builder: RecordBuilder, more_bytes: int, bytes_max: int) -> bool:
    return builder.count >= limits.RECORD_MESSAGES_MAX or (
        builder.count > 0 and builder.bytes + more_bytes > bytes_max
    )


def piece_end(encoded: list[bytes], first: int) -> int:
    """Return the end of a record that begins with message `first`, by RECORD_BYTES_MAX: the place
    after its last message. It has at least one message."""
    size, last = len(encoded[first]), first + 1
    while last < len(encoded) and size + len(encoded[last]) <= limits.RECORD_BYTES_MAX:
        size += len(encoded[last])
        last += 1
    return last
