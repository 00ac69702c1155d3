"""What one slot gives out and hears of, as the delivery log is told it: runs, times, and what each
run had waited for. Metrics count the same times, whether the log is on or not. It only looks:
nothing is ever decided by it. Pure.

What readers are given, as the delivery log is told it: one line for all that a turn of a fan-out
reaches over WebSockets, one for each of the others. Metrics count the same, with or without it.
Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

from gateway.counters import PublishCounters
from gateway.deliverylog.lines import Cause, Event, Named, SettlementOutcome
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.spans import CommitTimes, LoggedPlace, LoggedSession, Run
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
"""Of what a slot says that it was blocked by."""
_OPENED_MAX: Final = 1000
"""Keys that were parked and are not, of which is remembered up to where they had been."""
_ONE_RANGE: Final = 5
"""Numbers of an ack of one range: partition, epoch, push, first, last."""
KEPT_EVERY_US: Final = 10_000_000
"""Between two positions of an epoch, at least."""
_MASK_BITS: Final = 24
"""A mask of as many bits for each number of an ack takes no more room than its ranges, where
offsets have six digits or more."""


class OwnedPartitionLog:
    """See the module. `end`: what stands in the partition below had been certified when the slot
    began."""

    __slots__ = (
        "_cause",
        "_causes",
        "_certified_us",
        "_given_us",
        "_group",
        "_keeps",
        "_log",
        "_number",
        "_opened",
        "_place",
        "_pushes",
        "_stood_us",
        "_tally",
        "_waited_end",
        "_waited_for",
    )

    def __init__(
        self,
        log: DeliveryLog,
        queue: Queue,
        group: Group,
        number: int,
        *,
        owner: object,
        pushes: Mapping[int, Push],
        tally: Tally,
        end: int,
    ) -> None:
        place = getattr(owner, "place", None)
        if not isinstance(place, LoggedPlace):  # the temporary owner's
            place = log.place(queue, group.name, is_nobody=True)
        self._log = log
        self._place = place
        self._group = group
        self._number = number
        self._stood_us = 0
        """When it was logged last where it stands."""
        self._pushes = pushes
        """What is in flight, by push."""
        self._tally = tally
        self._keeps = group.settings.semantics != "at_most_once"
        """What is given is settled later, and not before (R23)."""
        self._given_us: dict[int, int] = {}
        """When each push in flight was given."""
        self._waited_end = end
        self._waited_for: Cause = "backlog"
        """What is below that end and has not been given yet waited for this."""
        self._causes: dict[int, Cause] = {}
        """Of offsets that returned."""
        self._opened: dict[int, int] = {}
        self._cause: Cause = "none"
        self._certified_us: int | None = None
        """Of what is being given now."""

    # --- Where it stands -----------------------------------------------------------------------

    def owned(self, epoch: int, cursor: Cursor) -> None:
        """Log the beginning of an epoch."""
        aside = sum(count for _, count in cursor.lines)
        dead = sum(one.last - one.first + 1 for one in cursor.dead)
        passed = [last for _, last in cursor.passed] + [one.last for one in cursor.dead]
        self._stands(
            "owned",
            epoch,
            cursor.floor,
            aside + dead,
            dead,
            ahead=max(passed) + 1 if passed else None,
            certified_below=self._waited_end,
        )

    def kept(self, delivery: Delivery, *, abandoned: int) -> None:
        """Log where its epoch stands, unless that was logged a moment ago. `abandoned`: messages
        that its consumer left in flight."""
        if self._log.now_us() - self._stood_us >= KEPT_EVERY_US:
            self._stands(
                "kept",
                delivery.epoch,
                delivery.frontier,
                delivery.unsettled_passed + abandoned,
                delivery.dead_count,
            )

    def released(self, delivery: Delivery, *, abandoned: int, is_clean: bool) -> None:
        """Log the end of its epoch. `abandoned`: messages that its consumer left in flight;
        `is_clean`: everything that was settled is durable."""
        self._stands(
            "released",
            delivery.epoch,
            delivery.frontier,
            delivery.unsettled_passed + abandoned,
            delivery.dead_count,
            is_clean=is_clean,
        )

    def _stands(
        self,
        event: Event,
        epoch: int,
        frontier: int,
        open_: int,
        dying: int,
        *,
        ahead: int | None = None,
        certified_below: int | None = None,
        is_clean: bool = False,
    ) -> None:
        if not self._log.is_on:
            return
        self._stood_us = self._log.now_us()
        if event != "kept":
            self._place.cut()
        self._log.position(
            self._place.queue,
            self._group,
            self._number,
            epoch,
            event=event,
            frontier=frontier,
            open_=open_,
            dying=dying,
            ahead=ahead,
            certified_below=certified_below,
            is_clean=is_clean,
        )

    # --- Giving --------------------------------------------------------------------------------

    def waited(self, blocked: str, end: int) -> None:
        """Nothing blocks any more what is certified below `end`."""
        self._waited_for, self._waited_end = _CAUSES.get(blocked, "backlog"), end

    def cause(self, push: Push, stages: CommitTimes | None) -> Cause:
        """What a run of the log has waited for."""
        if push.first < self._waited_end:
            return self._waited_for
        return "none" if stages is not None else "backlog"

    def cause_of_line(self, key: int, push: Push) -> Cause:
        """What a message that waited in its key's line has waited for."""
        returned = self._causes.pop(push.first, None)
        if push.first < self._opened.get(key, 0):
            return "key_parked"
        if returned is not None:
            return returned
        return "key_backoff" if push.attempt > 1 else "key_held"

    def giving(self, cause: Cause, stages: CommitTimes | None) -> None:
        """What is given next has waited for this."""
        self._cause = cause
        self._certified_us = stages.certified_us if stages is not None else None

    def given(self, push: Push, published_unix_ms: int) -> None:
        """It is on its way."""
        log, certified_us = self._log, self._certified_us
        if log.is_on:
            runs = [(self._number, push.first, push.count)]
            if push.skips:
                runs = self._runs(_ranges(push.offsets()))
            given_us = self._place.given(
                runs, push.attempt, self._cause, certified_us, published_unix_ms=published_unix_ms
            )
        else:
            given_us = log.now_us()
        if self._keeps:
            self._given_us[push.number] = given_us
        if certified_us is not None:
            waited_s = (given_us - certified_us) / 1e6
        else:
            waited_s = log.age_s(published_unix_ms)
        self._tally.gave(push.count, waited_s, is_first=push.attempt == 1)

    # --- Settling ------------------------------------------------------------------------------

    def acked_ordinary(self, push: Push, before: int, numbers: list[int], count: int) -> None:
        """An ack settled `count` messages of the ranges `numbers[3:]`; `before`: what of the push
        was open before, relative to its first offset."""
        given_us = self._given_us
        at_us = given_us.get(push.number) if push.open else given_us.pop(push.number, None)
        if not self._log.is_on:
            self._took(at_us, self._log.now_us(), count)
            return
        named: Named
        if len(numbers) == _ONE_RANGE and numbers[4] - numbers[3] + 1 == count:
            named = [self._number, at_us, numbers[3], numbers[4]]
        elif push.last - push.first < _MASK_BITS * len(numbers):
            named = [self._number, at_us, push.first, hex(before ^ push.open)]
        else:
            ranges = ranges_of(before ^ push.open, push.first)
            named = [self._number, at_us, *chain.from_iterable(ranges)]
        now_us = self._place.settled("acked", named, count)
        self._took(at_us, now_us, count)

    def acked(self, push: int, judged: Judged) -> None:
        """An ack took effect; what it settles again is not told again."""
        runs = judged.settled
        if judged.again:
            again = {offset for first, last in judged.again for offset in range(first, last + 1)}
            runs = _ranges(
                offset
                for first, last in runs
                for offset in range(first, last + 1)
                if offset not in again
            )
        self._settled("acked", push, runs)
        self._forget([push])

    def nacked(self, push: int, judged: Judged, along: list[Taken]) -> None:
        """These return, and others along with them."""
        self._note(judged.settled, "key_backoff")
        self._settled("nacked", push, judged.settled)
        self._returned(along, "key_held")
        self._forget([push, *(one for one, _ in along)])

    def expired(self, taken: list[Taken], along: list[Taken]) -> None:
        """The leases of these have ended, but for those that only returned along with them."""
        others = set(along)
        self._returned([one for one in taken if one not in others], "lease", "expired")
        self._returned(along, "key_held")
        self._forget(push for push, _ in taken)

    def returned(self, taken: Sequence[Taken]) -> None:
        """Log that deliveries were taken back."""
        self._returned(taken, "lease")
        self._forget(push for push, _ in taken)

    def _returned(
        self, taken: Iterable[Taken], cause: Cause, outcome: SettlementOutcome = "returned"
    ) -> None:
        """Log that deliveries return; given again, they will have waited for `cause`."""
        by_push: dict[int, list[int]] = {}
        for push, offset in taken:
            by_push.setdefault(push, []).append(offset)
        for push, offsets in by_push.items():
            runs = _ranges(sorted(offsets))
            self._note(runs, cause)
            self._settled(outcome, push, runs)

    def abandoned(self) -> None:
        """Everything that is in flight returns to the group."""
        for push in self._pushes.values() if self._log.is_on else ():
            self._settled("returned", push.number, ranges_of(push.open, push.first))

    def dying(self, decided: Iterable[Dead]) -> None:
        """Log what goes to the dead letters, durably: what is behind it of its keys goes on."""
        for first, last, reason in decided if self._log.is_on else ():
            run: Named = [self._number, None, first, last]
            self._place.settled("dying", run, last - first + 1, reason=reason)

    def dead_lettered(self, first: int, last: int, reason: str) -> None:
        """first..last stand in the dead letters, and are settled here."""
        for offset in range(first, last + 1) if self._causes else ():
            self._causes.pop(offset, None)
        if self._log.is_on:
            run: Named = [self._number, None, first, last]
            self._place.settled("dead_lettered", run, last - first + 1, reason=reason)

    def gone(self, ranges: Iterable[Range]) -> None:
        """Log that the group passes offsets of which nothing is retained."""
        for first, last in ranges if self._log.is_on else ():
            run: Named = [self._number, None, first, last]
            self._place.settled("gone", run, last - first + 1)

    def parked(self, heads: Iterable[int]) -> None:
        """The keys of these were parked."""
        if self._log.is_on:
            for head in heads:
                self._place.settled("parked", [self._number, None, head, head], 1)

    def opened(self, keys: Iterable[int], end: int) -> None:
        """These keys are parked no longer; what they have below `end` had waited for that."""
        for key in keys:
            self._opened[key] = end
            if len(self._opened) > _OPENED_MAX:
                del self._opened[next(iter(self._opened))]

    def _settled(self, outcome: SettlementOutcome, push: int, ranges: Sequence[Range]) -> None:
        if ranges:
            at_us, log = self._given_us.get(push), self._log
            numbers = [*chain.from_iterable(ranges)]
            count = sum(numbers[1::2]) - sum(numbers[::2]) + len(ranges)
            now_us = (
                self._place.settled(outcome, [self._number, at_us, *numbers], count)
                if log.is_on
                else log.now_us()
            )
            if outcome == "acked":
                self._took(at_us, now_us, count)

    def _forget(self, pushes: Iterable[int]) -> None:
        """Forget when pushes were given that have nothing left in flight. Called once everything
        that ends them at the same time is logged: each line names when its delivery was given."""
        for push in pushes:
            if push not in self._pushes:
                self._given_us.pop(push, None)

    def _took(self, given_us: int | None, now_us: int, count: int) -> None:
        """So many were settled, which were given then; None: that is not known."""
        if given_us is not None:
            self._tally.settle_s.add((now_us - given_us) / 1e6, count)

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
    """Ascending offsets, in runs."""
    ranges: list[Range] = []
    for offset in offsets:
        append_offset(ranges, offset)
    return ranges


class LoggedReader(Protocol):
    """One who is given a record with others."""

    is_socket: bool

    @property
    def link(self) -> LoggedSession: ...


class ReadsLog:
    """Of one queue."""

    __slots__ = ("_counted", "_log", "_queue")

    def __init__(self, log: DeliveryLog, queue: Queue, counted: PublishCounters) -> None:
        self._log = log
        self._queue = queue
        self._counted = counted

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know."""
        return self._log.is_on

    def fan_out(self, number: int, record: Record, stages: CommitTimes) -> "FanOutLog":
        """A turn of one, in partition `number`, begins."""
        return FanOutLog(self, number, record, stages)

    def alone(
        self,
        session: LoggedSession,
        number: int,
        record: Record,
        offsets: Sequence[int],
        stages: CommitTimes | None = None,
    ) -> None:
        """A reader is given these, ascending, by itself. `stages` None: it is behind, and reads the
        log."""
        now_us = self.count(len(offsets), stages)
        if not self._log.is_on:
            return
        runs: list[Range] = []
        if isinstance(offsets, range):
            runs.append((offsets[0], offsets[-1]))
        else:
            for offset in offsets:
                append_offset(runs, offset)
        self._log.read(
            self._queue,
            number,
            runs,
            record.header.published_unix_ms,
            session=session,
            cause="replay" if stages is None else "none",
            certified_us=stages.certified_us if stages is not None else None,
            given_us=now_us,
        )

    def many(
        self,
        sessions: Sequence[str],
        number: int,
        runs: Sequence[Range],
        record: Record,
        stages: CommitTimes,
        *,
        given_us: int,
    ) -> None:
        """Readers are given the same, over WebSockets."""
        self._log.read(
            self._queue,
            number,
            runs,
            record.header.published_unix_ms,
            sessions=sessions,
            cause="none",
            certified_us=stages.certified_us,
            given_us=given_us,
        )

    def count(self, messages: int, stages: CommitTimes | None) -> int:
        """Readers are given so many. Returns when that is."""
        now_us, counted = self._log.now_us(), self._counted
        counted.read += messages
        if stages is not None:
            counted.read_s.add((now_us - stages.certified_us) / 1e6, messages)
        return now_us


class FanOutLog:
    """One turn of a fan-out. Nothing but a list of names is made."""

    __slots__ = ("_given", "_messages", "_number", "_reads", "_record", "_stages")

    def __init__(self, reads: ReadsLog, number: int, record: Record, stages: CommitTimes) -> None:
        self._reads = reads
        self._number = number
        self._record = record
        self._stages = stages
        self._given: dict[Range, list[str]] = {}
        self._messages = 0

    def given(self, reader: LoggedReader, first: int, last: int) -> None:
        """This reader is given first..last."""
        if not reader.is_socket:
            offsets = range(first, last + 1)
            self._reads.alone(reader.link, self._number, self._record, offsets, self._stages)
            return
        self._messages += last - first + 1
        if not self._reads.is_on:
            return
        sessions = self._given.get((first, last))
        if sessions is None:
            sessions = self._given[first, last] = []
        sessions.append(reader.link.session_id)

    def end(self) -> None:
        """That was all."""
        if not self._messages:
            return
        given_us = self._reads.count(self._messages, self._stages)
        by_sessions: dict[tuple[str, ...], list[Range]] = {}
        for given, sessions in self._given.items():
            by_sessions.setdefault(tuple(sessions), []).append(given)
        for names, runs in by_sessions.items():
            self._reads.many(
                names, self._number, runs, self._record, self._stages, given_us=given_us
            )
