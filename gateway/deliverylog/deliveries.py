"""Deliveries to groups and readers in the delivery log, and their outcomes. Pure.

    OwnedPartitionLog   a group's partition: runs, times, and what each run had waited for
    LoggedPlace         a place in a group, over all its partitions; begins the spans
    ReadsLog            the readers of a queue: one span for all that a turn of a fan-out reaches
                        over WebSockets, and one for each other reader

Messages that a place is given at once are one span for each attempt, cause and time of
certification. Deliveries that it settles within SETTLED_US are one span for each outcome. Metrics
count the same times, whether the log is on or not. The log never decides anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, cast

from gateway.counters import PublishCounters
from gateway.deliverylog.counts import SETTLED, SPANS
from gateway.deliverylog.lines import (
    SCHEMA,
    Cause,
    Event,
    Named,
    PositionLine,
    SettlementOutcome,
    encode,
)
from gateway.deliverylog.log import (
    CommitTimes,
    DeliveryLog,
    DispatchedSpan,
    LoggedSession,
    Run,
    SettledSpan,
    carrier_of,
)
from metadata.catalog import Group, Queue
from push import limits
from push.delivery import Delivery, Judged, Push, Taken, Tally, append_offset, ranges_of
from push.ranges import Dead, Range
from push.record import Record
from push.storage_port import Cursor

_CAUSES: Final[dict[str, Cause]] = {
    "credit": "credit",
    "in_flight": "in_flight",
    "socket": "socket",
    "paused": "paused",
    "read": "backlog",
    "held": "key_held",
    "draining": "moving",
    "moving": "moving",
}
"""Causes in the log, by the words with which an owned partition says what has blocked it."""
_OPENED_MAX: Final = 1000
"""Largest number of keys in `_parked_ends`, for each owned partition. Beyond it the oldest is
forgotten."""
_ONE_RANGE: Final = 5
"""Length of an ack of one range: partition, epoch, push, first, last."""
KEPT_EVERY_US: Final = 10_000_000
"""Microseconds that pass at least after a position of an epoch before `on_write` logs another."""
_MASK_BITS: Final = 24
"""Number of bits of a mask that are allowed for each number of an ack. A mask within that takes no
more room than the ranges of the ack, if offsets have six digits or more."""


SETTLED_US: Final = 500
"""Microseconds within which settlements of one place may share a time, and a line."""
PUSHES_BYTES_MAX: Final = 32 * 1024
"""Size in bytes of the encoded pushes in a settled line, from which on others go into another
line."""


class LoggedPlace:
    """A consumer's place in a group, for the log of what it is given and settles. Without a
    `session` it is that of the pulls, or with `is_internal` that of the broker itself."""

    __slots__ = (
        "_dispatched",
        "_group",
        "_is_internal",
        "_log",
        "_queue",
        "_session",
        "_settled",
        "_taker",
    )

    def __init__(
        self,
        log: DeliveryLog,
        queue: Queue,
        group: str,
        session: LoggedSession | None = None,
        *,
        is_internal: bool = False,
    ) -> None:
        self._log = log
        self._queue = queue
        self._group = group
        self._session = session
        self._is_internal = is_internal
        self._taker: object = None
        self._dispatched: DispatchedSpan | None = None
        self._settled: SettledSpan | None = None

    def take_by(self, taker: object) -> None:
        """Note that the answer of this pull takes the messages that are given next."""
        self._taker = taker

    def dispatch(
        self,
        runs: Sequence[Run],
        messages: int,
        attempt: int,
        cause: Cause,
        certified_us: int | None,
        *,
        published_unix_ms: int,
    ) -> int:
        """Log that the consumer is given these runs, of `messages` in all, which are on their way
        out now. Messages that go out until the sockets are written are one span, if attempt, cause
        and time of certification are the same. Returns the span's time, in monotonic
        microseconds."""
        span = self._dispatched
        if (
            span is None
            or not span.is_open
            or span.certified_us != certified_us
            or span.cause != cause
            or span.attempt != attempt
            or span.taker is not self._taker
        ):
            span = self._dispatched = self._begin(attempt, cause, certified_us, published_unix_ms)
        span.runs += runs
        span.messages += messages
        return span.dispatched_us

    def _begin(
        self, attempt: int, cause: Cause, certified_us: int | None, published_unix_ms: int
    ) -> DispatchedSpan:
        log, session = self._log, self._session
        transport = carrier_of(session, is_internal=self._is_internal)
        span = DispatchedSpan(
            self._queue,
            log.now_ns() // 1000,
            published_unix_ms,
            attempt,
            cause,
            certified_us,
            transport,
            self._group,
            session.session_id if session is not None else None,
        )
        if session is None:
            span.taker = self._taker
            log.add_dispatch(span, self._taker)
        elif transport == "long_poll":
            span.is_open = False  # it may wait for a poll; later messages are another span
            log.add_dispatch(span, span.session)
        else:
            log.add_dispatch(span)
        return span

    def settle(
        self, outcome: SettlementOutcome, push: Named, count: int, *, reason: str | None = None
    ) -> int:
        """Log the outcome of the `count` deliveries that `push` names: [partition, time when they
        were given out (None: not known), first, last, first, last, …], or a mask after the first
        offset. The caller must not use the list afterwards. Returns the present time, in monotonic
        microseconds."""
        log, span = self._log, self._settled
        now_us = log.now_ns() // 1000
        if (
            span is None
            or not span.is_open
            or now_us - span.at_us > SETTLED_US
            or span.outcome != outcome
            or span.reason != reason
            or span.bytes >= PUSHES_BYTES_MAX
        ):
            if span is not None:
                log.write_settlement(span)
            span = self._settled = SettledSpan(
                self._queue,
                self._group,
                self._session,
                self._is_internal,
                outcome,
                reason,
                now_us,
            )
            log.add_settlement(span)
        dispatched_us = cast(int | None, push[1])
        if dispatched_us is not None:
            if log.held:
                session = self._session
                log.end_dispatch(session.session_id if session is not None else None, dispatched_us)
            # The log notices no step of the clock before the span has its line.
            push[1] = dispatched_us + log.clock.base_us
        span.pushes.append(encoded := encode(push))
        span.bytes += len(encoded)
        span.messages += count
        log.counts[SETTLED] += count
        return now_us

    def cut(self) -> None:
        """Begin new spans, because an epoch begins or has ended."""
        if self._dispatched is not None:
            self._dispatched.is_open = False
        if self._settled is not None:
            self._log.write_settlement(self._settled)


class OwnedPartitionLog:
    """Log of the messages that an owned partition gives out and settles. `place`: its owner's
    place; `end`: the certified end of the partition when the epoch began."""

    __slots__ = (
        "_blocked_by",
        "_blocked_end",
        "_causes",
        "_dispatched_us",
        "_group",
        "_log",
        "_number",
        "_parked_ends",
        "_place",
        "_position_us",
        "_pushes",
        "_queue",
        "_settles_later",
        "_tally",
    )

    def __init__(
        self,
        log: DeliveryLog,
        queue: Queue,
        group: Group,
        number: int,
        *,
        place: LoggedPlace,
        pushes: Mapping[int, Push],
        tally: Tally,
        end: int,
    ) -> None:
        self._log = log
        self._place = place
        self._queue = queue
        self._group = group
        self._number = number
        self._position_us = 0
        """Time at which the epoch's position was logged last, in monotonic microseconds; 0:
        never."""
        self._pushes = pushes
        """Pushes in flight, by number."""
        self._tally = tally
        self._settles_later = group.settings.semantics != "at_most_once"
        """Whether messages are settled after they are given, and not before (R23)."""
        self._dispatched_us: dict[int, int] = {}
        """Push number → monotonic microseconds at which it was given, of pushes in flight. Empty if
        messages are settled before they are given."""
        self._blocked_end = end
        self._blocked_by: Cause = "backlog"
        """Cause for which offsets below `_blocked_end` have waited that are not given yet."""
        self._causes: dict[int, Cause] = {}
        """Offset → cause for which it waits, of messages that have returned and were not given
        again since; only the latest."""
        self._parked_ends: dict[int, int] = {}
        """Key hash → offset below which messages of the key had waited for its release."""

    # --- Positions -----------------------------------------------------------------------------

    def on_own(self, epoch: int, cursor: Cursor) -> None:
        """Log the beginning of an epoch."""
        aside = sum(count for _, count in cursor.lines)
        dead = sum(one.last - one.first + 1 for one in cursor.dead)
        passed = [last for _, last in cursor.passed] + [one.last for one in cursor.dead]
        self._log_position(
            "owned",
            epoch,
            cursor.floor,
            aside + dead,
            dead,
            ahead=max(passed) + 1 if passed else None,
            certified_below=self._blocked_end,
        )

    def on_write(self, delivery: Delivery, *, abandoned: int) -> None:
        """Log the position of the delivery's epoch, unless one was logged less than KEPT_EVERY_US
        ago. `abandoned`: number of messages that its consumer left in flight."""
        if self._log.now_ns() // 1000 - self._position_us >= KEPT_EVERY_US:
            self._log_position(
                "kept",
                delivery.epoch,
                delivery.frontier,
                delivery.unsettled_passed + abandoned,
                delivery.dead_count,
            )

    def on_release(self, delivery: Delivery, *, abandoned: int, is_clean: bool) -> None:
        """Log the end of the delivery's epoch. `abandoned`: number of messages that its consumer
        left in flight; `is_clean`: everything that was settled is durable."""
        self._log_position(
            "released",
            delivery.epoch,
            delivery.frontier,
            delivery.unsettled_passed + abandoned,
            delivery.dead_count,
            is_clean=is_clean,
        )

    def _log_position(
        self,
        event: Event,
        epoch: int,
        frontier: int,
        unsettled: int,
        dying: int,
        *,
        ahead: int | None = None,
        certified_below: int | None = None,
        is_clean: bool = False,
    ) -> None:
        log = self._log
        if not log.is_on:
            return
        self._position_us = now_us = log.now_ns() // 1000
        if event != "kept":
            self._place.cut()
        log.prepare()
        queue, clock = self._queue, log.clock
        line = PositionLine(
            schema=SCHEMA,
            gateway=log.gateway,
            stepped_us=clock.stepped_us,
            tenant=queue.tenant,
            queue=queue.name,
            queue_id=queue.queue_id,
            group=self._group.name,
            group_id=self._group.group_id,
            partition=self._number,
            epoch=epoch,
            event=event,
            at_unix_us=clock.unix_us(now_us),
            frontier=frontier,
            open=unsettled,
            dying=dying,
            ahead=ahead,
            certified_below=certified_below,
            is_clean=is_clean,
        )
        log.put(encode(line), SPANS, 0)

    # --- Dispatching ---------------------------------------------------------------------------

    def unblock(self, blocked: str, end: int) -> None:
        """Note what has blocked the certified messages below `end` until now."""
        self._blocked_by, self._blocked_end = _CAUSES.get(blocked, "backlog"), end

    def cause(self, push: Push, stages: CommitTimes | None) -> Cause:
        """Return the cause for which messages of the log, which are given for the first time, have
        waited."""
        if push.first < self._blocked_end:
            return self._blocked_by
        return "none" if stages is not None else "backlog"

    def take_cause(self, key: int, push: Push) -> Cause:
        """Return the cause for which a message has waited in its key's line, and forget it."""
        returned = self._causes.pop(push.first, None)
        if push.first < self._parked_ends.get(key, 0):
            return "key_parked"
        if returned is not None:
            return returned
        return "key_backoff" if push.attempt > 1 else "key_held"

    def on_dispatch(
        self, push: Push, cause: Cause, stages: CommitTimes | None, published_unix_ms: int
    ) -> None:
        """Log a push that is on its way, with the cause for which it had waited, and count it in
        the tally even if the log is off."""
        log, certified_us = self._log, stages.certified_us if stages is not None else None
        if log.is_on:
            runs = [(self._number, push.first, push.count)]
            if push.skips:
                runs = self._runs(_ranges(push.offsets()))
            dispatched_us = self._place.dispatch(
                runs,
                push.count,
                push.attempt,
                cause,
                certified_us,
                published_unix_ms=published_unix_ms,
            )
        else:
            dispatched_us = log.now_ns() // 1000
        if self._settles_later:
            self._dispatched_us[push.number] = dispatched_us
        if certified_us is not None:
            waited_s = (dispatched_us - certified_us) / 1e6
        else:
            waited_s = log.age_s(published_unix_ms)
        self._tally.gave(push.count, waited_s, is_first=push.attempt == 1)

    # --- Settling ------------------------------------------------------------------------------

    def on_ack_ordinary(self, push: Push, before: int, numbers: list[int], count: int) -> None:
        """Log an ack that settled `count` messages of the ranges `numbers[3:]`. `before`: mask of
        the offsets that were open before, relative to the push's first offset."""
        times = self._dispatched_us
        given_us = times.get(push.number) if push.open else times.pop(push.number, None)
        if not self._log.is_on:
            now_us = self._log.now_ns() // 1000
        else:
            named: Named
            if len(numbers) == _ONE_RANGE and numbers[4] - numbers[3] + 1 == count:
                named = [self._number, given_us, numbers[3], numbers[4]]
            elif push.last - push.first < _MASK_BITS * len(numbers):
                named = [self._number, given_us, push.first, hex(before ^ push.open)]
            else:
                ranges = ranges_of(before ^ push.open, push.first)
                named = [self._number, given_us, *chain.from_iterable(ranges)]
            now_us = self._place.settle("acked", named, count)
        if given_us is not None:
            self._tally.settle_s.add((now_us - given_us) / 1e6, count)

    def on_ack(self, push: int, judged: Judged) -> None:
        """Log an ack that took effect. Messages that it settles again are not logged again."""
        runs = judged.settled
        if judged.again:
            again = {offset for first, last in judged.again for offset in range(first, last + 1)}
            runs = _ranges(
                offset
                for first, last in runs
                for offset in range(first, last + 1)
                if offset not in again
            )
        self._log_settlement("acked", push, runs)
        self._forget([push])

    def on_nack(self, push: int, judged: Judged, along: list[Taken]) -> None:
        """Log a nack, by which its messages return, and later ones of their keys `along` with
        them."""
        self._note(judged.settled, "key_backoff")
        self._log_settlement("nacked", push, judged.settled)
        self._log_return(along, "key_held")
        self._forget([push, *(one for one, _ in along)])

    def on_expire(self, taken: list[Taken], along: list[Taken]) -> None:
        """Log leases that have ended, and the deliveries that only returned along with them."""
        others = set(along)
        self._log_return([one for one in taken if one not in others], "lease", "expired")
        self._log_return(along, "key_held")
        self._forget(push for push, _ in taken)

    def on_return(self, taken: Sequence[Taken]) -> None:
        """Log that deliveries were taken back."""
        self._log_return(taken, "lease")
        self._forget(push for push, _ in taken)

    def _log_return(
        self, taken: Iterable[Taken], cause: Cause, outcome: SettlementOutcome = "returned"
    ) -> None:
        """Log that deliveries return. When they are given again, they will have waited for
        `cause`."""
        by_push: dict[int, list[int]] = {}
        for push, offset in taken:
            by_push.setdefault(push, []).append(offset)
        for push, offsets in by_push.items():
            runs = _ranges(sorted(offsets))
            self._note(runs, cause)
            self._log_settlement(outcome, push, runs)

    def on_abandon(self) -> None:
        """Log that everything in flight returns to the group."""
        for push in self._pushes.values() if self._log.is_on else ():
            self._log_settlement("returned", push.number, ranges_of(push.open, push.first))

    def on_dying(self, decided: Iterable[Dead]) -> None:
        """Log messages that go to the dead letters, after that is durable. Later messages of their
        keys go on."""
        for first, last, reason in decided if self._log.is_on else ():
            run: Named = [self._number, None, first, last]
            self._place.settle("dying", run, last - first + 1, reason=reason)

    def on_dead_letter(self, first: int, last: int, reason: str) -> None:
        """Log that first..last are in the dead letters, and are settled here."""
        for offset in range(first, last + 1) if self._causes else ():
            self._causes.pop(offset, None)
        if self._log.is_on:
            run: Named = [self._number, None, first, last]
            self._place.settle("dead_lettered", run, last - first + 1, reason=reason)

    def on_gap(self, ranges: Iterable[Range]) -> None:
        """Log that the group passes offsets that are no longer retained."""
        for first, last in ranges if self._log.is_on else ():
            run: Named = [self._number, None, first, last]
            self._place.settle("gone", run, last - first + 1)

    def on_park(self, heads: Iterable[int]) -> None:
        """Log that the keys of these offsets were parked."""
        if self._log.is_on:
            for head in heads:
                self._place.settle("parked", [self._number, None, head, head], 1)

    def on_unpark(self, keys: Iterable[int], end: int) -> None:
        """Note that these keys are no longer parked. Their messages below `end` have waited for
        that."""
        for key in keys:
            self._parked_ends[key] = end
            if len(self._parked_ends) > _OPENED_MAX:
                del self._parked_ends[next(iter(self._parked_ends))]

    def _log_settlement(
        self, outcome: SettlementOutcome, push: int, ranges: Sequence[Range]
    ) -> None:
        if ranges:
            given_us, log = self._dispatched_us.get(push), self._log
            numbers = [*chain.from_iterable(ranges)]
            count = sum(numbers[1::2]) - sum(numbers[::2]) + len(ranges)
            now_us = (
                self._place.settle(outcome, [self._number, given_us, *numbers], count)
                if log.is_on
                else log.now_ns() // 1000
            )
            if outcome == "acked" and given_us is not None:
                self._tally.settle_s.add((now_us - given_us) / 1e6, count)

    def _forget(self, pushes: Iterable[int]) -> None:
        """Forget the times of pushes that have nothing left in flight. Call it after all their
        outcomes of the moment are logged, because each line names the time of its delivery."""
        for push in pushes:
            if push not in self._pushes:
                self._dispatched_us.pop(push, None)

    def _runs(self, ranges: Iterable[Range]) -> list[Run]:
        number = self._number
        return [(number, first, last - first + 1) for first, last in ranges]

    def _note(self, runs: Iterable[Range], cause: Cause) -> None:
        for first, last in runs if self._log.is_on else ():
            for offset in range(first, last + 1):
                self._causes[offset] = cause
        while len(self._causes) > limits.DYING_PER_PARTITION_MAX:
            del self._causes[next(iter(self._causes))]


def _ranges(offsets: Iterable[int]) -> list[Range]:
    """Return ascending offsets as ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        append_offset(ranges, offset)
    return ranges


class ReadsLog:
    """Log of the messages that the readers of one queue are given."""

    __slots__ = ("_counters", "_log", "_queue")

    def __init__(self, log: DeliveryLog, queue: Queue, counters: PublishCounters) -> None:
        self._log = log
        self._queue = queue
        self._counters = counters

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self._log.is_on

    def fan_out(self, number: int, record: Record, stages: CommitTimes) -> "FanOutLog":
        """Begin a turn of a fan-out, in partition `number`."""
        return FanOutLog(self, number, record, stages)

    def add(
        self,
        session: LoggedSession,
        number: int,
        record: Record,
        offsets: Sequence[int],
        stages: CommitTimes | None = None,
    ) -> None:
        """Log the offsets, ascending, that one reader is given by itself. `stages` None: the reader
        is behind, and reads the stored log."""
        now_us = self.count(len(offsets), stages)
        if not self._log.is_on:
            return
        ranges: list[Range] = []
        if isinstance(offsets, range):
            ranges.append((offsets[0], offsets[-1]))
        else:
            for offset in offsets:
                append_offset(ranges, offset)
        span = DispatchedSpan(
            self._queue,
            now_us,
            record.header.published_unix_ms,
            1,
            "replay" if stages is None else "none",
            stages.certified_us if stages is not None else None,
            carrier_of(session),
            session=session.session_id,
        )
        self._add(span, number, ranges)

    def add_all(
        self,
        sessions: Sequence[str],
        number: int,
        ranges: Sequence[Range],
        record: Record,
        stages: CommitTimes,
        *,
        now_us: int,
    ) -> None:
        """Log ranges that several readers are given alike, over WebSockets."""
        span = DispatchedSpan(
            self._queue,
            now_us,
            record.header.published_unix_ms,
            1,
            "none",
            stages.certified_us,
            "websocket",
            sessions=sessions,
        )
        self._add(span, number, ranges)

    def _add(self, span: DispatchedSpan, number: int, ranges: Sequence[Range]) -> None:
        span.runs += [(number, first, last - first + 1) for first, last in ranges]
        span.messages = sum([count for _, _, count in span.runs])
        self._log.add_dispatch(span, span.session if span.transport == "long_poll" else None)

    def count(self, messages: int, stages: CommitTimes | None) -> int:
        """Count messages that readers are given, and their time since certification if `stages` has
        it. Returns the present time, in monotonic microseconds."""
        now_us, counters = self._log.now_ns() // 1000, self._counters
        counters.read += messages
        if stages is not None:
            counters.read_s.add((now_us - stages.certified_us) / 1e6, messages)
        return now_us


class FanOutLog:
    """Log of one turn of a fan-out. It makes only a list of names, so that it costs little for each
    reader."""

    __slots__ = ("_messages", "_number", "_readers", "_reads", "_record", "_stages")

    def __init__(self, reads: ReadsLog, number: int, record: Record, stages: CommitTimes) -> None:
        self._reads = reads
        self._number = number
        self._record = record
        self._stages = stages
        self._readers: dict[Range, list[str]] = {}
        """Range of offsets → ids of the sessions that are given it, over WebSockets."""
        self._messages = 0

    def add(self, session: LoggedSession, first: int, last: int, *, is_socket: bool) -> None:
        """Log that a reader is given first..last. `is_socket`: over a WebSocket."""
        if not is_socket:
            offsets = range(first, last + 1)
            self._reads.add(session, self._number, self._record, offsets, self._stages)
            return
        self._messages += last - first + 1
        if not self._reads.is_on:
            return
        sessions = self._readers.get((first, last))
        if sessions is None:
            sessions = self._readers[first, last] = []
        sessions.append(session.session_id)

    def end(self) -> None:
        """Log what readers were given over WebSockets in the turn, and count it."""
        if not self._messages:
            return
        now_us = self._reads.count(self._messages, self._stages)
        by_sessions: dict[tuple[str, ...], list[Range]] = {}
        for range_, sessions in self._readers.items():
            by_sessions.setdefault(tuple(sessions), []).append(range_)
        for names, ranges in by_sessions.items():
            self._reads.add_all(
                names, self._number, ranges, self._record, self._stages, now_us=now_us
            )
