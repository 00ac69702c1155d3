"""A partition of a group while a consumer of this gateway owns it.

This is the shell around one `push.delivery.Delivery`. It hands in records, credit and time, and
carries out the acts that the rules require: pushes, reads, cursor writes, dead letters. It has no
rule of its own.

Callers that wait are answered from here: an `AckWaiter` when its settlements are durable, and
`DecisionWaiters` when an operator's decision about a parked key is.
"""

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gateway.counters import Counters
from gateway.delivery.cursor_writer import CursorWriter
from gateway.delivery.log_reader import DEAD, LINES_PER_READ_MAX, LogPrefetch
from gateway.delivery.presence import Presence
from gateway.deliverylog.deliveries import LoggedPlace, OwnedPartitionLog
from gateway.deliverylog.lines import Cause
from gateway.deliverylog.log import CommitTimes, DeliveryLog
from gateway.encryption.sealer import NackReasons
from gateway.publish.tail import Tail
from metadata.catalog import Group, Queue
from push import limits
from push.delivery import (
    DeadLetter,
    Delivery,
    DeliverySettings,
    Judged,
    Push,
    Share,
    Taken,
    offsets_of,
)
from push.errors import TocsinError
from push.places import CursorPlace, ParkedLine, Partition, Verb
from push.record import Record
from push.storage_port import CursorWrite, Owned, Storage, Written
from runtime.loop.end_of_turn import Deadlines, call_guarded


def delivery_settings(queue: Queue, group: Group, *, pulls: bool) -> DeliverySettings:
    """Return a group's settings for delivery, with its queue's values where the group has none."""
    own, base = group.settings, queue.settings

    def pick(name: str) -> float:
        value = getattr(own, name)
        return float(getattr(base, name) if value is None else value)

    return DeliverySettings(
        lease_s=pick("lease_s"),
        lease_total_s=pick("lease_total_s"),
        attempts_max=int(pick("attempts_max")),
        backoff_s=pick("backoff_s"),
        backoff_max_s=pick("backoff_max_s"),
        park=(own.on_exhausted or base.on_exhausted) == "park",
        pulls=pulls,
    )


class PartitionOwner(Protocol):
    """The consumer that an owned partition gives to."""

    pulls: bool
    """Whether it is the virtual consumer of the pulls (R24)."""

    def available(self) -> int:
        """Return the number of messages that it may be given now."""

    def share(self, available: int) -> Share:
        """Return the part of this number, which is `available`, that one key may have (P8)."""

    @property
    def blocked_by(self) -> str:
        """The reason why `available` is 0: credit, socket, paused (the queue is), in_flight (it
        holds as much as it may, P9), or no_consumer (the temporary owner gives nothing)."""

    @property
    def log_place(self) -> LoggedPlace:
        """The consumer's place in the group, as the delivery log writes it."""

    def deliver(
        self, owned: "OwnedPartition", record: Record, push: Push, reserved: object = None
    ) -> bool:
        """Give the consumer a push, which counts against `available` now, or was `reserved` before.
        Returns False if the consumer has left, and the push is not on its way."""

    def reserve(self, count: int) -> object:
        """Reserve room for messages that will be delivered as soon as they are settled (R23). They
        count against `available` from now on. Returns the handle for `deliver` or `release`."""

    def release(self, count: int, reserved: object) -> None:
        """Free a reservation, because its messages will not be delivered."""

    def revoked(self, owned: "OwnedPartition", taken: list[Taken], reason: str) -> None:
        """Inform the consumer that it no longer has these deliveries (R17)."""

    def arrived(self, owned: "OwnedPartition", push: Push) -> float | None:
        """Return from when the lease of this push counts; None: it is in transit (push.transit)."""

    def lapsed(self, given_at: float) -> None:
        """Note that the lease of a message given at `given_at` (loop's clock) has ended by time."""

    def holds(self, more: int) -> None:
        """Count this many more of its deliveries as in flight. Below 0: fewer, because they were
        settled, returned, or cut off."""

    def pump(self) -> None:
        """Let the consumer's owned partitions give soon, because more may be possible now."""


@dataclass(frozen=True, slots=True)
class UnsentPush:
    """A push of an at-most-once group, which is sent when its settling is durable (R23)."""

    record: Record
    push: Push
    stages: CommitTimes | None
    cause: Cause
    reserved: object

    @property
    def count(self) -> int:
        """Number of messages in it."""
        return self.push.count


@dataclass(slots=True)
class DeliveryContext:
    """Objects that all owned partitions of a gateway share."""

    storage: Storage
    tail: Tail
    cursor_writer: CursorWriter
    log: DeliveryLog
    deadlines: Deadlines
    move: "Callable[[OwnedPartition], Coroutine[Any, Any, None]]"
    """Mover of an owned partition's dead messages to the dead-letter queue (DeadLetters.move)."""
    counting: Counters
    reasons: NackReasons = field(default_factory=NackReasons)
    orphans: set[str] = field(default_factory=set)
    """Ids of queues with dead letters that owned partitions left unmoved, until the janitor
    looks."""
    stale_settlements: int = 0
    """Number of pushes that sessions named in acks, nacks and extends under epochs that are
    over."""


class AckWaiter(ABC):
    """A caller that is answered once, when its settlements are durable in every partition
    concerned, or that will never be known here. Subclasses say how."""

    __slots__ = ("_left", "durable")

    def __init__(self) -> None:
        self.durable = True
        """False if an epoch ended, and it will never be known here whether all is durable."""
        self._left = 0

    def write(self, partitions: "Collection[OwnedPartition]", now: float) -> None:
        """Have these owned partitions write what was settled in them, and wait for that. Without
        any partition, the answer comes at once."""
        self._left = len(partitions)
        if not partitions:
            self.answer()
        for partition in partitions:
            partition.settled(now, self)

    def wait(self, partitions: "Collection[OwnedPartition]") -> None:
        """Wait until everything settled in these owned partitions before is durable. No write
        begins sooner for that."""
        self._left = len(partitions)
        if not partitions:
            self.answer()
        for partition in partitions:
            partition.wait(self)

    def on_written(self, *, durable: bool) -> None:
        """Note the outcome in one partition that is waited for. After the last, call `answer`."""
        self._left -= 1
        self.durable = self.durable and durable
        if not self._left:
            call_guarded(self.answer)  # others wait for the same write

    @abstractmethod
    def answer(self) -> None:
        """Answer the caller."""


# enforces: P5, R21
class AckWaiters:
    """The callers that wait for writes of one partition. Those that a method returns have to be
    answered."""

    __slots__ = ("_writing", "next")

    def __init__(self) -> None:
        self._writing: list[AckWaiter] = []
        self.next: list[AckWaiter] = []
        """Callers that wait for everything settled by now. The next write at the latest has it."""

    def begin(self) -> None:
        """Begin a write, which holds everything settled before."""
        self._writing, self.next = self.next, []

    def written(self) -> list[AckWaiter]:
        """Return the callers whose settlements are durable with the write under way."""
        done, self._writing = self._writing, []
        return done

    def not_written(self) -> None:
        """Take back the callers of a write whose outcome is not known. It is written again."""
        self._writing, self.next = [], self._writing + self.next

    def end(self) -> list[AckWaiter]:
        """Return all callers. No other write begins, and the outcome of one under way will not be
        known here."""
        done = self._writing + self.next
        self._writing, self.next = [], []
        return done


class DecisionWaiters:
    """Key hash → the caller that waits for a decision on the key. Made anew with each epoch
    here."""

    def __init__(self) -> None:
        self._waits: dict[int, asyncio.Future[bool]] = {}

    def wait(self, key: int) -> "asyncio.Future[bool]":
        """Return a future about the decision on this key. True: the decision is durable. False: it
        is not made, or the owned partition ended before."""
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waits[key] = decided
        return decided

    def tell(self, keys: list[int], *, made: bool) -> None:
        """Answer the callers that wait for decisions about these keys. `made`: the decisions are
        durable; else they were not made."""
        for key in keys:
            self._answer(self._waits.pop(key), made)

    def end(self) -> None:
        """Answer all others, because the owned partition has ended. Whether their decisions became
        durable will not be known here."""
        for decided in self._waits.values():
            self._answer(decided, False)
        self._waits.clear()

    def _answer(self, decided: "asyncio.Future[bool]", durable: bool) -> None:
        if not decided.done():  # its caller may have gone
            decided.set_result(durable)


logger = logging.getLogger("tocsin.slot")


class OwnedPartition:
    """Shell of one `Delivery`, under one epoch. `ownership`: the storage's answer to the start of
    the epoch, under `token`. `gone` is called once, when the epoch has ended here: all is written,
    or a newer owner exists."""

    def __init__(
        self,
        context: DeliveryContext,
        presence: Presence,
        queue: Queue,
        group: Group,
        *,
        place: CursorPlace,
        ownership: Owned,
        token: bytes,
        owner: PartitionOwner,
        gone: "Callable[[OwnedPartition], None]",
    ) -> None:
        self._context = context
        self._presence = presence
        self._cursor_writer = context.cursor_writer
        self._deadlines = context.deadlines
        self._tail = tail = context.tail
        self.queue, self.group = queue, group
        self.partition = partition = place.partition
        self.place = place
        settings = delivery_settings(queue, group, pulls=owner.pulls)
        tally = context.counting.group(group.group_id)
        now = asyncio.get_running_loop().time()
        self.delivery = delivery = Delivery(place, ownership, token, settings, now=now, tally=tally)
        self.epoch = delivery.epoch
        self.owner = owner
        self.id_prefix = f"{queue.queue_id}-{delivery.generation}-{partition.number}-"
        self.scheduled = float("inf")
        self.ended = False
        self.blocked = ""
        """The reason why nothing more was given, while there was something. "" after a push."""
        self._end_when_moved = False
        self.dead_letters_wait: TocsinError | None = None
        """The error for which the last move of dead letters failed; None: it did not."""
        self.reasons: dict[int, str] = {}
        """Offset → the reason that its last nack gave, for the latest nacks with a reason. The
        storage has all of an unsettled message."""
        self.decisions = DecisionWaiters()
        self._in_flight = 0
        """Number of deliveries in flight that its owner knows of."""
        self._at_most_once = group.settings.semantics == "at_most_once"
        self._gone = gone
        self.fetch = LogPrefetch(context.storage, tail, partition, self._woken)
        self._unsent: list[UnsentPush] = []
        self._writing_unsent: list[UnsentPush] = []
        self._ack_waiters = AckWaiters()
        self.log = self._new_log()
        self.log.on_own(delivery.epoch, ownership.cursor)
        self._abandoned = 0
        """Number of messages in flight when the consumer left. No other count here has them now."""
        tail.follow(partition, self._certified)
        # Records may have been certified while the epoch was on its way.
        delivery.certify(tail.ends.get(partition, 0))
        if delivery.has_dead_letters:  # the owner before left some
            self._move_dead_letters()

    def _new_log(self) -> OwnedPartitionLog:
        delivery = self.delivery
        return OwnedPartitionLog(
            self._context.log,
            self.queue,
            self.group,
            self.partition.number,
            place=self.owner.log_place,
            end=delivery.end,
            pushes=delivery.pushes,
            tally=delivery.tally,
        )

    # --- Giving --------------------------------------------------------------------------------

    def _certified(self, partition: Partition) -> None:
        self.delivery.certify(self._tail.ends[partition])
        self.owner.pump()

    def _woken(self) -> None:
        if not self.ended:
            self._after(asyncio.get_running_loop().time())
            self.owner.pump()

    # enforces: P7
    def pump(self, count_max: int) -> bool:
        """Give the messages that rules, credit and the records at hand allow, at most `count_max`.

        Returns True if more could go out at once in another turn.
        """
        if self.ended:
            return False
        delivery, owner = self.delivery, self.owner
        now, wall_unix_ms = asyncio.get_running_loop().time(), int(time.time() * 1000)
        if now >= self._presence.gives_until:  # it may be another gateway's by now
            self.blocked = "moving"
            return False
        left = count_max
        if self.blocked and owner.available() > 0:
            self.log.unblock(self.blocked, delivery.end)
        if delivery.is_line_ready(now) and owner.available() > 0:
            left -= self._pump_lines(left, now, wall_unix_ms)
        begin = frontier = delivery.frontier
        end, wants_log, is_kept = delivery.end, delivery.wants_log, False
        while wants_log and not is_kept and left > 0 and (available := owner.available()) > 0:
            found = self.fetch.log(frontier)
            if found is None:
                if self.fetch.nothing_until <= frontier:
                    break
                self.log.on_gap(delivery.skip_to(self.fetch.nothing_until, now=now))
            else:
                record, stages = found
                if record.first > frontier:
                    self.log.on_gap(delivery.skip_to(min(record.first, end), now=now))
                pushes = delivery.give(
                    record,
                    min(available, left),
                    now=now,
                    wall_unix_ms=wall_unix_ms,
                    share=owner.share(available),
                )
                for push in pushes:
                    left -= push.count
                    self._send(record, push, stages, now, self.log.cause(push, stages))
                is_kept = delivery.must_look_again
            frontier = delivery.frontier
            wants_log = frontier < end and delivery.wants_log
        # The log may have made lines ready, because their messages were tried before.
        if frontier > begin and left > 0 and delivery.is_line_ready(now) and owner.available() > 0:
            left -= self._pump_lines(left, now, wall_unix_ms)
            wants_log = delivery.wants_log
        self._after(now)
        if not wants_log:
            if frontier < end:
                self.blocked = "draining" if delivery.draining else "held"
            return False
        if not owner.available():
            self.blocked = owner.blocked_by
        elif is_kept:
            self.blocked = "credit"  # the rest of it is kept for other keys
        elif self.fetch.reading:
            self.blocked = "read"
        return left <= 0 and owner.available() > 0

    def _pump_lines(self, count_max: int, now: float, wall_unix_ms: int) -> int:
        """Give the messages that lines may send. Returns how many went out."""
        delivery, given = self.delivery, 0
        available = self.owner.available()
        credit = min(available, count_max)
        delivery.plan_retries(credit, now=now, share=self.owner.share(available))
        for key, after in delivery.side_wanted():
            self.fetch.job(f"side {self.fetch.next_number()}", self._load_side(key, after))
        giveable = delivery.giveable
        while giveable and given < credit:
            key, offset = giveable[0]
            found = self.fetch.line(offset)
            if found is None:
                self.fetch.read_lines([offset for _, offset in giveable[:LINES_PER_READ_MAX]])
                break
            giveable.pop(0)
            record = found[0]
            if record is None:
                if delivery.pass_line(key, offset, now=now, wall_unix_ms=wall_unix_ms):
                    self.log.on_gap([(offset, offset)])
                continue
            push = delivery.give_line(key, offset, record, now=now, wall_unix_ms=wall_unix_ms)
            if push is not None:
                given += 1
                self._send(record, push, None, now, self.log.take_cause(key, push))
        return given

    async def _load_side(self, key: int, after: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            offsets = await self._context.storage.read_side(
                self.place, key, after, limits.SIDE_LOAD_MAX
            )
        except TocsinError:
            self.delivery.side_not_loaded(key, loop.time())
            raise
        self.delivery.side_loaded(key, offsets, loop.time())

    # enforces: R23
    def _send(
        self, record: Record, push: Push, stages: CommitTimes | None, now: float, cause: Cause
    ) -> None:
        if self._at_most_once:
            # R23: settled durably before the push; a message not known to be settled is not pushed.
            judged = self.delivery.ack(push.number, push.first, push.last, now=now)
            self.log.on_ack(push.number, judged)
            reserved = self.owner.reserve(push.count)
            self._unsent.append(UnsentPush(record, push, stages, cause, reserved))
            self._cursor_writer.mark(self, urgent=True)
            return
        self._in_flight += push.count
        self.owner.holds(push.count)
        self._deliver(record, push, stages, cause)

    def _deliver(
        self,
        record: Record,
        push: Push,
        stages: CommitTimes | None,
        cause: Cause,
        reserved: object = None,
    ) -> None:
        self.blocked = ""
        if self.owner.deliver(self, record, push, reserved):
            self.log.on_dispatch(push, cause, stages, record.header.published_unix_ms)

    def _after(self, now: float, *, urgent: bool = False) -> None:
        """Carry out the duties that the rules state, after anything that may have changed them.
        `urgent`: a caller waits for the write.

        The owner first learns the number in flight. Callers are answered, if all is durable, before
        the end, which answers all others that it will never be known. The end comes last, because
        it depends on whether anything is left to write or to move.
        """
        delivery = self.delivery
        duties = delivery.duties()
        if duties.in_flight != self._in_flight:
            self._count_in_flight(duties.in_flight)
        if duties.must_write:
            self._cursor_writer.mark(self, urgent=urgent or delivery.urgent)
        if duties.has_dead_letters:
            self._move_dead_letters()
        if duties.deadline is not None and duties.deadline < self.scheduled:
            self._deadlines.set(self, duties.deadline)
        notices = duties.notices
        if notices is not None:
            self.log.on_dying(notices.dying)
            self.log.on_park(notices.parked)
            self.decisions.tell(notices.opened, made=True)
            self.decisions.tell(notices.dropped, made=False)
            self.log.on_unpark(notices.opened, delivery.end)
        if self._ack_waiters.next and not (duties.must_write or delivery.is_writing):
            self._ack_waiters.begin()
            self._answer_durable()
        if delivery.draining:
            self._end_if_drained()

    def _answer_durable(self) -> None:
        for waiter in self._ack_waiters.written():
            waiter.on_written(durable=True)

    def _count_in_flight(self, in_flight: int) -> None:
        more = (0 if self.ended else in_flight) - self._in_flight
        if more:
            self._in_flight += more
            self.owner.holds(more)

    def _move_dead_letters(self) -> None:
        if self.moves_dead_letters:
            self.fetch.job(DEAD, self._context.move(self))

    @property
    def moves_dead_letters(self) -> bool:
        """Whether further dead letters may be taken up. With nothing in flight while draining, the
        next owner moves them, unless `end_when_moved` was called."""
        return not self.ended and (self._end_when_moved or not self.delivery.drained)

    def letter_id(self, dead: DeadLetter) -> str:
        """Return the id that a dead message has in the dead-letter queue."""
        return f"{self.id_prefix}{dead.offset}.{self.group.group_id}"

    def dead_lettered(self, letters: Sequence[DeadLetter], *, are_gone: bool = False) -> None:
        """Settle these messages, which ascend and are in the dead letters. `are_gone`: they are no
        longer in the log, and there was nothing to move."""
        first = 0
        for place, letter in enumerate(letters):
            behind = letters[place + 1] if place + 1 < len(letters) else None
            if behind is not None and (letter.offset + 1, letter.reason) == behind[:2]:
                continue
            low, high = letters[first].offset, letter.offset
            if are_gone:
                self.log.on_gap([(low, high)])
            else:
                self.log.on_dead_letter(low, high, letter.reason)
            self.delivery.dead_lettered(low, high)
            first = place + 1
        for letter in letters if self.reasons else ():
            self.reasons.pop(letter.offset, None)
        self._after(asyncio.get_running_loop().time())

    def count_dead_letters(self, count: int) -> None:
        """Count messages that arrived in the dead letters, also after the end of this epoch."""
        self.delivery.tally.dead_lettered += count

    async def find_reasons(self, letters: Sequence[DeadLetter]) -> None:
        """Find the reasons of the last nacks of messages that were nacked under an owner before, or
        long ago. Those that are found are in `reasons`."""
        unknown = {one.offset for one in letters if one.attempts} - self.reasons.keys()
        if not unknown:
            return
        with suppress(TocsinError):  # the letters go without them
            cursor = await self._context.storage.cursor(self.place)
            for retry in cursor.retries if cursor is not None else ():
                if retry.offset in unknown and retry.nack is not None:
                    reason = await self._context.reasons.open(self.partition, retry.nack)
                    if reason is not None:
                        self.reasons[retry.offset] = reason

    def evict(self, count: int) -> bool:
        """Send up to `count` of the oldest messages that were not given yet to the dead letters,
        because the queue overflows. Returns whether some go."""
        now = asyncio.get_running_loop().time()
        evicted = self.delivery.evict(count, now=now)
        if evicted:
            self._after(now)
        return evicted > 0

    def unpark(self, verb: Verb, seen: ParkedLine) -> "asyncio.Future[bool] | None":
        """Carry out an operator's decision about a parked key; see push.delivery.waiting. The
        future is True once it is durable, False if the epoch ended before, or the head is another
        one by now. None: the key is not parked like this, or a decision is on its way."""
        now = asyncio.get_running_loop().time()
        if self.ended or not self.delivery.decide(verb, seen, now):
            return None
        decided = self.decisions.wait(seen.key_hash)
        self._after(now, urgent=True)
        return decided

    # --- What the consumer says ----------------------------------------------------------------

    def ack_ordinary(self, push: int, delivery: list[int], now: float) -> int:
        """Settle an entry of a delivery list if all of it is in flight in this push and no line
        waits for it. Returns the number of messages; 0: that is not so, and nothing happened."""
        given = self.delivery.pushes.get(push)
        before = given.open if given is not None else 0
        count = self.delivery.ack_ordinary(push, delivery, 3, now=now)
        if count and given is not None:
            self.log.on_ack_ordinary(given, before, delivery, count)
        return count

    def ack(self, push: int, first: int, last: int, now: float) -> Judged:
        """Settle first..last of a push; each offset is judged by itself (R21)."""
        judged = self.delivery.ack(push, first, last, now=now)
        self.log.on_ack(push, judged)
        return judged

    def nack(
        self,
        push: int,
        first: int,
        last: int,
        now: float,
        *,
        delay_s: float | None,
        reason: str | None = None,
        reject: bool = False,
    ) -> Judged:
        """Return first..last of a push, each a counted attempt, with `reject` the last one. Revokes
        at once the later deliveries of their keys. `delay_s` None: the backoff. `reason` is kept
        with the message, also in the dead letters."""
        sealed = None
        if reason is not None:
            sealed = self._context.reasons.seal(self.partition, reason)
        judged, revoked = self.delivery.nack(
            push,
            first,
            last,
            delay_s=delay_s,
            draw=random.random,
            now=now,
            wall_unix_ms=int(time.time() * 1000),
            reason=sealed,
            reject=reject,
        )
        if reason is not None:
            for low, high in judged.settled:
                for offset in range(low, high + 1):
                    self.reasons.pop(offset, None)
                    self.reasons[offset] = reason
            while len(self.reasons) > limits.DYING_PER_PARTITION_MAX:
                del self.reasons[next(iter(self.reasons))]
        self.log.on_nack(push, judged, revoked)
        if revoked:
            self.owner.revoked(self, revoked, "an earlier message of the key returned")
        return judged

    def returned(self, taken: list[Taken], now: float) -> None:
        """Log deliveries that were taken back, because the consumer never saw them, and go on."""
        self.log.on_return(taken)
        self._after(now)
        self.owner.pump()

    def settled(self, now: float, waiter: AckWaiter | None = None) -> None:
        """Write the changes of a frame's acks, nacks and extends. `waiter` is answered when they
        are durable."""
        if waiter is not None:
            self._ack_waiters.next.append(waiter)
        self._after(now, urgent=waiter is not None)

    def wait(self, waiter: AckWaiter) -> None:
        """Answer the waiter when everything settled before is durable, which may be at once."""
        if self.delivery.dirty or self.delivery.is_writing:
            self._ack_waiters.next.append(waiter)
        else:
            waiter.on_written(durable=True)

    # --- Time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Go on after a lease, a backoff or a drain has ended."""
        if self.ended:
            return
        now = asyncio.get_running_loop().time()
        along: list[Taken] = []
        lapsed_at = self.delivery.lapsed_at
        taken = self.delivery.expire(
            now=now,
            wall_unix_ms=int(time.time() * 1000),
            along=along,
            arrived=partial(self.owner.arrived, self),
        )
        if self.delivery.lapsed_at > lapsed_at:
            self.owner.lapsed(self.delivery.lapsed_at)
        if taken:
            self.owner.revoked(self, taken, "the lease ended")
            self.log.on_expire(taken, along)
        self._after(now)
        self.owner.pump()

    # --- Writing -------------------------------------------------------------------------------

    def take_write(self, *, wall_unix_ms: int) -> CursorWrite | None:
        """Return the change to write now; None: none, one is under way, or the epoch has ended."""
        if self.ended:
            return None  # nothing of this epoch counts any more
        write = self.delivery.take_write(wall_unix_ms=wall_unix_ms)
        if write is not None:
            self._writing_unsent, self._unsent = self._unsent, []
            self._ack_waiters.begin()
        return write

    def written(self, answer: Written) -> None:
        """Carry out everything that waited for the write, which is durable."""
        now = asyncio.get_running_loop().time()
        self.delivery.written(answer, now=now)
        unsent, self._writing_unsent = self._writing_unsent, []
        for one in unsent:
            self._deliver(one.record, one.push, one.stages, one.cause, one.reserved)
        self.log.on_write(self.delivery, abandoned=self._abandoned)
        self._answer_durable()
        if not self.ended:
            self._after(now, urgent=bool(self._ack_waiters.next))
            if unsent or not self.delivery.is_idle(now):
                self.owner.pump()

    # enforces: R23
    def not_written(self, error: TocsinError) -> None:
        """Keep a write that failed or whose outcome is not known. At-most-once messages that waited
        for it are never sent (R23)."""
        self.delivery.not_written()
        self._release(self._writing_unsent)
        self._writing_unsent = []
        self._ack_waiters.not_written()

    def _release(self, unsent: list[UnsentPush]) -> None:
        for one in unsent:
            self.owner.release(one.count, one.reserved)

    def fenced(self) -> None:
        """End at once, because a newer owner exists, or the group was sought or deleted."""
        if not self.ended:
            lost = [
                (push.number, offset)
                for push in self.delivery.pushes.values()
                for offset in offsets_of(push.open, push.first)
            ]
            self._end()
            if lost:
                self.log.on_return(lost)
                self.owner.revoked(self, lost, "the group was sought, deleted or has a newer owner")

    # --- Ending --------------------------------------------------------------------------------

    def drain(self, deadline: float) -> None:
        """Give nothing more. End when no delivery is in flight and all is written; at `deadline`
        what is in flight is cut off."""
        if not self.delivery.draining:
            self.delivery.drain(deadline=deadline)
            self._after(asyncio.get_running_loop().time())

    def end_when_moved(self) -> None:
        """Give nothing. End when all dead messages have arrived in the dead letters."""
        self._end_when_moved = True
        self.drain(asyncio.get_running_loop().time())

    def abandon(self, *, moves: bool = False) -> None:
        """End all deliveries, because the consumer has left. `moves`: it goes on at another
        gateway, and no attempt is counted. See Delivery.abandon."""
        if not self.ended:
            if not moves:
                self.log.on_abandon()
            self._abandoned += self.delivery.in_flight
            self.delivery.abandon(wall_unix_ms=int(time.time() * 1000), moves=moves)
            self._after(asyncio.get_running_loop().time())

    def _end_if_drained(self) -> None:
        delivery = self.delivery
        if (
            delivery.drained
            and not (self._end_when_moved and delivery.dead_count)
            and not self.ended
            and not delivery.dirty
            and not delivery.is_writing
        ):
            self._end()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self.delivery.dead_count:
            self._context.orphans.add(self.queue.queue_id)
        self._count_in_flight(0)
        self.log.on_release(
            self.delivery,
            abandoned=self._abandoned,
            is_clean=not self.delivery.dirty and not self.delivery.is_writing,
        )
        self.fetch.cancel()
        self._tail.unfollow(self.partition, self._certified)
        for waiter in self._ack_waiters.end():
            waiter.on_written(durable=False)
        self.decisions.end()
        self._release([*self._writing_unsent, *self._unsent])
        self._unsent = self._writing_unsent = []
        self._gone(self)
