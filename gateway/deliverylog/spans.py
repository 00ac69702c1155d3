"""Spans of the delivery log: what was published, what was given out, what became of it. Pure.

**Certified.** A `PublishOrigin` goes with the messages of a publish to their record and back. When
their commit has ended it holds where they are, in runs, and the log writes one line of it: for a
publish of a hundred messages as for a hundred publishes of one that came within RUN_US.
`CommitTimes` stay with the record as long as it is in memory, because a time that was not taken
cannot be asked for later. `OriginTracker` makes the origins of a session with its clock, and
`origin_of_request` those of a request.

**Dispatched and settled.** A `LoggedPlace` is one place in a group. What it is given at once is
one span for each attempt, cause and time of certification; what it settles within SETTLED_US is
one span for each outcome. Readers have dispatched spans alone.

**Times.** What is measured is monotonic, so that a step of the wall clock changes no duration. The
`LogClock` makes unix time of it when a line is written, by one sum for all times of the line. If
the wall clock has left that sum behind, it was stepped: the sum follows, and `stepped_us` says by
how much in all, so that times of two lines can still be compared exactly (t - stepped_us).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from gateway.deliverylog.batches import SETTLED, Counts
from gateway.deliverylog.lines import Carrier, Cause, Named, SettlementOutcome, encode
from gateway.models import Transport
from metadata.catalog import Principal, Queue
from push.message import Message
from push.record import Header
from push.storage_port import Appended, NotStored
from runtime.trace_context import PARENT, Trace, trace_from


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """Times of a commit, in monotonic microseconds of this process. One object for all records of
    the commit, and named by its identity."""

    asked_us: int
    """When it was handed to the storage."""
    certified_us: int
    """When the storage said so."""


STEP_US_MIN: Final = 100_000
"""Less is no step: NTP slews both clocks alike."""
LOOK_US_MAX: Final = 10_000
"""Clocks that were read further apart than this say nothing about each other."""


class LogClock:
    """Clock of the log. Made with both clocks, in microseconds, read at the same moment."""

    __slots__ = ("base_us", "stepped_us")

    def __init__(self, *, now_us: int, wall_us: int) -> None:
        self.base_us = wall_us - now_us
        """Sum that makes unix time of monotonic time."""
        self.stepped_us = 0

    def unix_us(self, now_us: int) -> int:
        """Unix time of a monotonic time."""
        return self.base_us + now_us

    def look(self, before_us: int, wall_us: int, after_us: int) -> int:
        """The wall clock was read between these two times. Returns by how much it was stepped; 0:
        it was not, or nobody can tell."""
        step_us = wall_us - self.base_us - before_us
        if after_us - before_us > LOOK_US_MAX or abs(step_us) < STEP_US_MIN:
            return 0
        self.base_us += step_us
        self.stepped_us += step_us
        return step_us


Run = tuple[int, int, int]
"""(partition, first offset, count)."""
SETTLED_US: Final = 500
"""What is settled within so many microseconds may share its time, and a line."""
PUSHES_BYTES_MAX: Final = 32 * 1024
"""Of a line: what comes then is in another one."""
CARRIERS: Final[dict[Transport, Carrier]] = {"websocket": "websocket", "long-poll": "long_poll"}


class LoggedSession(Protocol):
    """A session that is given something."""

    @property
    def session_id(self) -> str: ...

    @property
    def transport(self) -> Transport | None: ...


class DispatchedSpan:
    """A dispatched span; `session` None: that of a pull, or the `sessions` of a fan-out. Times are
    monotonic microseconds."""

    __slots__ = (
        "attempt",
        "cause",
        "certified_us",
        "given_us",
        "group",
        "is_counted",
        "is_open",
        "published_unix_ms",
        "queue",
        "runs",
        "session",
        "sessions",
        "taker",
        "transport",
    )

    def __init__(
        self,
        queue: Queue,
        given_us: int,
        published_unix_ms: int,
        *,
        attempt: int,
        cause: Cause,
        certified_us: int | None,
        transport: Carrier | None,
        group: str | None = None,
        session: str | None = None,
        sessions: Sequence[str] = (),
    ) -> None:
        self.queue = queue
        self.given_us = given_us
        self.published_unix_ms = published_unix_ms
        self.attempt = attempt
        self.cause: Cause = cause
        self.certified_us = certified_us
        self.transport: Carrier | None = transport
        self.group = group
        self.session = session
        self.sessions = sessions
        self.runs: list[tuple[int, int, int]] = []
        self.is_open = True
        """It has not been written to its socket: more may be added."""
        self.is_counted = False
        """Its messages are, before it has a line."""
        self.taker: object = None
        """Of a pull: whose answer takes it."""

    def alone(self, session: str) -> "DispatchedSpan":
        """The same, of one of its `sessions`."""
        one = DispatchedSpan(
            self.queue,
            self.given_us,
            self.published_unix_ms,
            attempt=self.attempt,
            cause=self.cause,
            certified_us=self.certified_us,
            transport=self.transport,
            session=session,
        )
        one.runs = self.runs
        return one


class SettledSpan:
    """A settled span."""

    __slots__ = ("at_us", "bytes", "count", "outcome", "pushes", "reason")

    def __init__(self, outcome: SettlementOutcome, reason: str | None, at_us: int) -> None:
        self.outcome: SettlementOutcome = outcome
        self.reason = reason
        self.at_us = at_us
        self.pushes: list[bytes] = []
        """Each as it stands in the line: hundreds of numbers that came with acks are written down
        as they come, and nothing looks at them again, the garbage collector neither."""
        self.bytes = 0
        """Of these."""
        self.count = 0


class SpanLog(Protocol):
    """The delivery log, as places and origins write to it; the log holds them, so they cannot
    import it."""

    @property
    def clock(self) -> LogClock: ...

    @property
    def is_on(self) -> bool: ...

    @property
    def counts(self) -> Counts:
        """Counts of everything that has happened, by kind; a place adds to them."""

    @property
    def holds(self) -> bool:
        """Whether anything that was given waits for its line."""

    def now_us(self) -> int:
        """Monotonic microseconds."""

    def given(self, span: DispatchedSpan, key: object = None) -> None:
        """Take a span that is on its way: written with the next flush, or with what `key` takes."""

    def ends(self, session: str | None, given_us: int) -> None:
        """Write the line of what this session was given at `given_us`, if it is still held."""

    def settling(self, place: "LoggedPlace") -> None:
        """Take the span that the place has begun with the next hand-over."""

    def settled(self, place: "LoggedPlace", span: SettledSpan) -> None:
        """Write the line of a settled span that has ended."""

    def unknown(self, origin: "PublishOrigin", count: int) -> None:
        """Note that for this number of its messages nobody knows whether they are stored."""


class LoggedPlace:
    """One place in a group. `session` None: that of the pulls, or with `is_nobody` of the broker
    itself."""

    __slots__ = (
        "_carrier",
        "_done",
        "_given",
        "_log",
        "group",
        "is_nobody",
        "queue",
        "session",
        "taker",
    )

    def __init__(
        self,
        log: SpanLog,
        queue: Queue,
        group: str,
        session: LoggedSession | None = None,
        *,
        is_nobody: bool = False,
    ) -> None:
        self._log = log
        self.queue = queue
        self.group = group
        self.session = session
        self.is_nobody = is_nobody
        self.taker: object = None
        """Of pulls: whose answer takes what is given next."""
        self._given: DispatchedSpan | None = None
        self._done: SettledSpan | None = None

    @property
    def transport(self) -> Carrier | None:
        """What carries it now."""
        if self.session is None:
            return "internal" if self.is_nobody else "http"
        carrier = self.session.transport
        return CARRIERS[carrier] if carrier is not None else None

    @property
    def session_id(self) -> str | None:
        """Its session's, where it has one."""
        return self.session.session_id if self.session is not None else None

    def given(
        self,
        runs: Sequence[Run],
        attempt: int,
        cause: Cause,
        certified_us: int | None,
        *,
        published_unix_ms: int,
    ) -> int:
        """It is given these; call it where they are on their way out. Returns when that is. What
        goes out until the sockets are written is one span."""
        span = self._given
        if (
            span is None
            or not span.is_open
            or span.certified_us != certified_us
            or span.cause != cause
            or span.attempt != attempt
            or span.taker is not self.taker
        ):
            span = self._given = self._begin(attempt, cause, certified_us, published_unix_ms)
        span.runs += runs
        return span.given_us

    def _begin(
        self, attempt: int, cause: Cause, certified_us: int | None, published_unix_ms: int
    ) -> DispatchedSpan:
        log, transport = self._log, self.transport
        span = DispatchedSpan(
            self.queue,
            log.now_us(),
            published_unix_ms,
            attempt=attempt,
            cause=cause,
            certified_us=certified_us,
            transport=transport,
            group=self.group,
            session=self.session_id,
        )
        if self.session is None:
            span.taker = self.taker
            log.given(span, self.taker)
        elif transport == "long_poll":
            span.is_open = False  # it may wait for a poll, and what comes then is another one
            log.given(span, span.session)
        else:
            log.given(span)
        return span

    def settled(
        self, outcome: SettlementOutcome, push: Named, count: int, *, reason: str | None = None
    ) -> int:
        """This became of what `push` names, `count` messages in all: [partition, when they were
        given out (None: that is not known), first, last, first, last, …], or a mask behind the
        first. The list is the log's from now on. Returns when that is."""
        log, span = self._log, self._done
        now_us = log.now_us()
        if (
            span is None
            or now_us - span.at_us > SETTLED_US
            or span.outcome != outcome
            or span.reason != reason
            or span.bytes >= PUSHES_BYTES_MAX
        ):
            if span is not None:
                log.settled(self, span)
            span = self._done = SettledSpan(outcome, reason, now_us)
            log.settling(self)
        given_us = cast(int | None, push[1])
        if given_us is not None:
            if log.holds:
                log.ends(self.session_id, given_us)
            # No step of the clock is noticed until the span has its line.
            push[1] = given_us + log.clock.base_us
        span.pushes.append(encoded := encode(push))
        span.bytes += len(encoded)
        span.count += count
        log.counts[SETTLED] += count
        return now_us

    def cut(self) -> None:
        """Let what comes now be in other lines than what was: an epoch begins or has ended."""
        if self._given is not None:
            self._given.is_open = False
        span = self.take_done()
        if span is not None:
            self._log.settled(self, span)

    def take_done(self) -> SettledSpan | None:
        """What was settled last, for the log to write; the next span begins anew."""
        done, self._done = self._done, None
        return done


RUN_US: Final = 100
"""What came within so many microseconds may share its time, and a line."""
LINE_MESSAGES_MAX: Final = 2000
"""Of an origin; what comes then is another one."""


class LoggedPublish(Protocol):
    """A publish."""

    @property
    def origin(self) -> "PublishOrigin | None":
        """Where it came from; None: nothing is logged of it."""


Owned = tuple[LoggedPublish, Sequence[int], int]
"""A publish, which of its messages stand in a record, and their bytes as JSON."""


class PublishOrigin:
    """Where messages of one queue come from, and when they were accepted; then, where they are.

    Times are monotonic microseconds.
    """

    __slots__ = (
        "_log",
        "accepted_us",
        "bytes",
        "clock_offset_us",
        "duplicates",
        "keys",
        "messages",
        "produced_us",
        "producer",
        "queue",
        "runs",
        "session",
        "stages",
        "trace",
        "transport",
    )

    def __init__(
        self,
        log: SpanLog,
        queue: Queue,
        accepted_us: int,
        messages: int,
        *,
        transport: Carrier,
        producer: str | None = None,
        session: str | None = None,
        produced_us: int | None = None,
        clock_offset_us: int | None = None,
        trace: str | None = None,
    ) -> None:
        """`messages`: how many of them come. `produced_us`: monotonic, where there is a
        `clock_offset_us`, else as the client said it."""
        self._log = log
        self.queue = queue
        self.accepted_us = accepted_us
        self.messages = messages
        self.transport = transport
        self.producer = producer
        self.session = session
        self.produced_us = produced_us
        self.clock_offset_us = clock_offset_us
        self.trace = trace
        self.stages: CommitTimes | None = None
        """Of the commit that the runs are of; None: it has none."""
        self.clear()

    def clear(self) -> None:
        """The next commit begins with nothing."""
        self.runs: list[tuple[int, int, int]] = []
        self.keys: list[array[int]] = []
        self.duplicates: list[tuple[int, int, int]] = []
        self.bytes = 0

    def takes(self, count: int, *, now_us: int, queue: Queue) -> bool:
        """Whether so many more messages, of the same session, came at this time, too; then they
        belong to it."""
        if (
            now_us - self.accepted_us > RUN_US
            or queue.queue_id != self.queue.queue_id
            or self.produced_us is not None
            or self.trace is not None
            or self.messages + count > LINE_MESSAGES_MAX
        ):
            return False
        self.messages += count
        return True

    def unknown(self, count: int) -> None:
        """Of so many of its messages nobody knows whether they are stored."""
        self._log.unknown(self, count)


class CommittedOrigins:
    """The origins of one commit. `is_late`: their publishers were answered `unknown` before."""

    __slots__ = ("is_late", "origins", "stages")

    def __init__(self, stages: CommitTimes, *, is_late: bool) -> None:
        self.stages = stages
        self.is_late = is_late
        self.origins: list[PublishOrigin] = []

    def add(self, runs: Sequence[Owned], number: int, result: Appended, header: Header) -> None:
        """A record of the commit stands in partition `number`; `runs` says whose its messages are,
        in order. A few additions for each publish, none for each message, unless the storage knew
        some of them."""
        if result.outcomes is not None:
            self._add_singly(runs, number, result, header)
            return
        stages, hashes, offset = self.stages, header.key_hashes, result.first
        if len(runs) == 1:  # nothing is to be cut
            origin = runs[0][0].origin
            if origin is not None:
                if origin.stages is not stages:
                    self._begin(origin)
                origin.runs.append((number, offset, len(runs[0][1])))
                origin.keys.append(hashes)
                origin.bytes += runs[0][2]
            return
        begin = place = held = 0
        before: PublishOrigin | None = (
            None  # whose are those from `begin` on: publishes may share one
        )
        for answer, indexes, size in (*runs, _END):
            if answer.origin is not before:
                if before is not None:
                    if before.stages is not stages:
                        self._begin(before)
                    before.runs.append((number, offset + begin, place - begin))
                    before.keys.append(hashes[begin:place])
                    before.bytes += held
                before, begin, held = answer.origin, place, 0
            place += len(indexes)
            held += size

    def _add_singly(
        self,
        runs: Sequence[Owned],
        number: int,
        result: Appended,
        header: Header,
    ) -> None:
        assert result.outcomes is not None
        place = 0
        for answer, indexes, _ in runs:
            origin = answer.origin
            for at in range(place, place + len(indexes)):
                outcome = result.outcomes[at]
                if origin is None or isinstance(outcome, NotStored):
                    continue
                if origin.stages is not self.stages:
                    self._begin(origin)
                if outcome.duplicate:
                    _extend(origin.duplicates, number, outcome.offset, 1)
                else:
                    _extend(origin.runs, number, outcome.offset, 1)
                    origin.keys.append(header.key_hashes[at : at + 1])
                    origin.bytes += header.sizes[at]
            place += len(indexes)

    def _begin(self, origin: PublishOrigin) -> None:
        origin.stages = self.stages
        self.origins.append(origin)


class _Nobody:
    """Behind the last publish of a record."""

    origin: PublishOrigin | None = None


_END: Final[Owned] = (_Nobody(), (), 0)


def _extend(runs: list[tuple[int, int, int]], number: int, first: int, count: int) -> None:
    """One run more, or a longer last one."""
    if runs:
        last, begin, length = runs[-1]
        if last == number and begin + length == first:
            runs[-1] = (number, begin, length + count)
            return
    runs.append((number, first, count))


class PublishingSession(LoggedSession, Protocol):
    """A session that publishes."""

    @property
    def principal(self) -> Principal: ...


class Frame(Protocol):
    """A publish."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def produced_unix_us(self) -> int | None: ...

    @property
    def clock_offset_us(self) -> int | None: ...


class OriginTracker:
    """A session's: what it said of its clock, and the origin of what came last."""

    __slots__ = ("_offset_us", "_origin", "_shift_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._shift_us = 0
        """What makes monotonic time of the client's, where the offset is known."""
        self._origin: PublishOrigin | None = None

    def origin(
        self, log: SpanLog, host: PublishingSession, queue: Queue, frame: Frame
    ) -> PublishOrigin:
        """That of this publish; also of the one before, where both came at one time."""
        now_us, first, origin = log.now_us(), frame.messages[0], self._origin
        count, trace = len(frame.messages), _trace(first) if first.headers is not None else None
        produced_us, offset_us = frame.produced_unix_us, None
        if frame.clock_offset_us is not None:
            self._offset_us = frame.clock_offset_us
            self._shift_us = frame.clock_offset_us - log.clock.base_us
        if produced_us is not None:
            offset_us = self._offset_us
            if offset_us is not None:
                produced_us += self._shift_us
        elif first.sent_unix_ms is not None:
            produced_us = first.sent_unix_ms * 1000
        elif (
            trace is None and origin is not None and origin.takes(count, now_us=now_us, queue=queue)
        ):
            return origin
        carrier = host.transport
        self._origin = PublishOrigin(
            log,
            queue,
            now_us,
            count,
            transport=CARRIERS[carrier or "websocket"],
            producer=host.principal.name,
            session=host.session_id,
            produced_us=produced_us,
            clock_offset_us=offset_us,
            trace=trace,
        )
        return self._origin


def origin_of_request(
    log: SpanLog,
    queue: Queue,
    producer: str,
    messages: Sequence[Message],
    trace: Trace | None,
) -> PublishOrigin | None:
    """That of what one request publishes, which is of this trace. None: the log is off."""
    if not log.is_on:
        return None
    first = messages[0]
    return PublishOrigin(
        log,
        queue,
        log.now_us(),
        len(messages),
        transport="http",
        producer=producer,
        produced_us=first.sent_unix_ms * 1000 if first.sent_unix_ms is not None else None,
        trace=trace.trace_id if trace is not None else _trace(first),
    )


def _trace(first: Message) -> str | None:
    parent = first.headers.get(PARENT) if first.headers is not None else None
    trace = trace_from(parent) if parent is not None else None
    return trace.trace_id if trace is not None else None
