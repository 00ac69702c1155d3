"""The delivery log on the event loop: events become spans, spans lines, and lines chunks.

Nothing waits for the log. Each event only adds to data in memory. Every HAND_OVER_S new lines go to
the writer's thread. If the writer is so far behind that LOG_WAITING_BYTES_MAX wait for it, new
lines are dropped and counted. Events are counted when they happen, in counts that outlive a kill -9
(`gateway.deliverylog.counts`), so that the next start knows which of them were not written.

**Certified.** A `PublishOrigin` goes with the messages of a publish to their record and back. When
their commit has ended, it holds their places, in runs, and the log writes one line for it. A
publish of a hundred messages is one line, and so are a hundred publishes of one message that came
within RUN_US. `CommitTimes` stay with the record while it is in memory, because a time that was not
taken cannot be found out later. `OriginTracker` makes the origins of a session with its clock.

**Dispatched and settled.** `gateway.deliverylog.deliveries` begins spans of these kinds, and they
are held here until they are over. A dispatched span is over when its socket, poll or pull has taken
it, a settled one at the next hand-over.

**Times.** Measured times are monotonic, so that a step of the wall clock changes no duration. The
`LogClock` makes unix times of them when a line is written, by adding the same sum to all times of
the line. If the wall clock differs from that sum, it was stepped. Then the sum follows, and
`stepped_us` is the total of all steps, so that times of two lines can still be compared exactly
(t - stepped_us).
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gateway.deliverylog.counts import CERTIFIED, DISPATCHED, KINDS, SETTLED, SPANS, Counts
from gateway.deliverylog.lines import (
    SCHEMA,
    Carrier,
    Cause,
    CertifiedLine,
    ClockSteppedLine,
    DispatchedLine,
    SettledLine,
    SettlementOutcome,
    as_written,
    encode,
    messages_of,
)
from gateway.deliverylog.writer import Chunk, LogStatus, LogWriter, Missing
from gateway.models import Transport
from gateway.wire import frames
from metadata.catalog import Principal, Queue
from push import limits
from push.message import Message
from push.record import Header
from push.storage_port import Appended, Scheduled, Stored
from runtime.trace_context import PARENT, trace_from

HAND_OVER_S: Final = 0.05
CHUNK_BYTES_MAX: Final = 256 * 1024
"""Size in bytes at which a chunk goes to the writer at once, before HAND_OVER_S are over."""
LOOK_US: Final = 1_000_000
"""Microseconds between two checks whether the wall clock was stepped, at least."""
STOP_S: Final = 5.0
"""Seconds within which `stop` has the remaining lines written."""
RUN_US: Final = 100
"""Microseconds within which publishes of a session may share a time, and a line."""
LINE_MESSAGES_MAX: Final = 2000
"""Largest number of messages of a session's publishes that share an origin, and with it a time of
acceptance and a line. Later messages have another origin."""

Run = tuple[int, int, int]
"""(partition, first offset, count)."""


# --- Clocks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """Times of a commit, in monotonic microseconds of this process. All records of a commit share
    one object, whose identity names the commit."""

    asked_us: int
    """Time when it was handed to the storage."""
    certified_us: int
    """Time when the storage answered that it is certified."""


STEP_US_MIN: Final = 100_000
"""Smallest difference in microseconds that is a step of the wall clock. Smaller ones come from NTP,
which slews both clocks alike."""
LOOK_US_MAX: Final = 10_000
"""Longest time in microseconds between two readings of clocks that may be compared."""


class LogClock:
    """Clock of the log. It is made with both clocks, in microseconds, read at the same moment."""

    __slots__ = ("base_us", "stepped_us")

    def __init__(self, *, now_us: int, wall_us: int) -> None:
        self.base_us = wall_us - now_us
        """Microseconds to add to monotonic time to get unix time."""
        self.stepped_us = 0

    def unix_us(self, now_us: int) -> int:
        """Return the unix time of a monotonic time."""
        return self.base_us + now_us

    def look(self, before_us: int, wall_us: int, after_us: int) -> int:
        """Compare the wall clock, which was read between these two monotonic times. Returns the
        size of a step, which the clock follows; 0: there was none, or it cannot be known."""
        step_us = wall_us - self.base_us - before_us
        if after_us - before_us > LOOK_US_MAX or abs(step_us) < STEP_US_MIN:
            return 0
        self.base_us += step_us
        self.stepped_us += step_us
        return step_us


# --- Sessions and their spans ------------------------------------------------------------------


class LoggedSession(Protocol):
    """A session that publishes, or is given messages."""

    @property
    def session_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def transport(self) -> Transport | None: ...


def carrier_of(session: LoggedSession | None, *, is_internal: bool = False) -> Carrier | None:
    """Return the carrier of deliveries to a session now. None: it has none. Without a session it is
    the broker itself, or a request."""
    if session is None:
        return "internal" if is_internal else "http"
    return CARRIERS[session.transport] if session.transport is not None else None


CARRIERS: Final[dict[Transport, Carrier]] = {"websocket": "websocket", "long-poll": "long_poll"}


@dataclass(slots=True, eq=False)
class DispatchedSpan:
    """A dispatched span. Without a `session` it is that of a pull, or of the `sessions` of a
    fan-out. Times are monotonic microseconds."""

    queue: Queue
    dispatched_us: int
    published_unix_ms: int
    attempt: int
    cause: Cause
    certified_us: int | None
    transport: Carrier | None
    group: str | None = None
    session: str | None = None
    sessions: Sequence[str] = ()
    taker: object = None
    """The pull whose answer takes it."""
    runs: list[Run] = field(default_factory=list)
    messages: int = 0
    """Number of messages in the runs."""
    is_open: bool = True
    """Whether messages may be added. False if it has a line, is held, or goes by long poll."""
    is_counted: bool = False
    """Whether its messages were counted already, before it has a line."""

    def alone(self, session: str) -> "DispatchedSpan":
        """Return a copy for one of its `sessions`."""
        return replace(self, session=session, sessions=())


@dataclass(slots=True, eq=False)
class SettledSpan:
    """A settled span of one place in a group. Without a `session` it is that of the pulls, or with
    `is_internal` that of the broker itself."""

    queue: Queue
    group: str
    session: LoggedSession | None
    is_internal: bool
    outcome: SettlementOutcome
    reason: str | None
    at_us: int
    pushes: list[bytes] = field(default_factory=list)
    """Pushes, encoded as they come, so that the garbage collector never walks their numbers."""
    bytes: int = 0
    """Size of the encoded pushes."""
    messages: int = 0
    is_open: bool = True
    """Whether more may be added, because it has no line yet."""


# --- Publishes -----------------------------------------------------------------------------------


class LoggedPublish(Protocol):
    """A publish that may be logged."""

    @property
    def origin(self) -> "PublishOrigin | None":
        """Origin of its messages; None: it is not logged."""


Owned = tuple[LoggedPublish, Sequence[int], int]
"""(publish, indexes of its messages that are in a record, size of these as JSON)."""


@dataclass(slots=True, eq=False)
class PublishOrigin:
    """Origin of messages of one queue, with the time when they were accepted, and later their
    places. Times are monotonic microseconds. The fields after `trace` belong to the commit under
    way."""

    log: "DeliveryLog"
    queue: Queue
    accepted_us: int
    expected: int
    """Number of messages that are published."""
    transport: Carrier
    producer: str | None = None
    session: str | None = None
    produced_us: int | None = None
    """Time of production, monotonic with a `clock_offset_us`, else as the client sent it."""
    clock_offset_us: int | None = None
    trace: str | None = None
    due_unix_ms: int | None = None
    """When the messages were due, if they were scheduled and are in the log now."""
    stages: CommitTimes | None = None
    """Times of the commit of the runs; None: there are no runs."""
    runs: list[Run] = field(default_factory=list)
    messages: int = 0
    """Number of messages in the runs."""
    keys: list["array[int]"] = field(default_factory=list)
    duplicates: list[Run] = field(default_factory=list)
    bytes: int = 0
    scheduled: int = 0
    """Number of messages that wait until they are due."""
    scheduled_bytes: int = 0

    def clear(self) -> None:
        """Clear the fields of the commit, for the next one."""
        self.stages = None
        self.runs, self.keys, self.duplicates = [], [], []
        self.messages = self.bytes = self.scheduled = self.scheduled_bytes = 0

    def absorb(self, count: int, *, now_us: int, queue: Queue) -> bool:
        """Count `count` more messages of the same session as its own, if they came within RUN_US
        and nothing else distinguishes them. False: they belong to another origin."""
        if (
            now_us - self.accepted_us > RUN_US
            or queue.queue_id != self.queue.queue_id
            or self.produced_us is not None
            or self.trace is not None
            or self.expected + count > LINE_MESSAGES_MAX
        ):
            return False
        self.expected += count
        return True

    def count_unknown(self, count: int) -> None:
        """Note that it is unknown for `count` of its messages whether they are stored."""
        self.log.add_unknown(self, count)


@dataclass(slots=True)
class CommittedOrigins:
    """The origins of one commit. `is_late`: their publishers were answered `unknown` before."""

    stages: CommitTimes
    is_late: bool
    origins: list[PublishOrigin] = field(default_factory=list)

    def add(self, runs: Sequence[Owned], number: int, result: Appended, header: Header) -> None:
        """Add a record of the commit, which is in partition `number`. `runs` names the publishes of
        its messages, in order. It costs a few additions for each publish, and none for each
        message, unless the storage knew some of them."""
        if result.outcomes is not None:
            self._add_singly(runs, number, result, header)
            return
        stages, hashes, offset = self.stages, header.key_hashes, result.first
        if len(runs) == 1:  # all messages have one origin, so nothing is cut
            origin = runs[0][0].origin
            if origin is not None:
                if origin.stages is not stages:
                    self._begin(origin)
                count = len(runs[0][1])
                origin.runs.append((number, offset, count))
                origin.messages += count
                origin.keys.append(hashes)
                origin.bytes += runs[0][2]
            return
        begin = place = size_sum = 0
        # Origin of the messages from `begin` on; publishes may share one.
        before: PublishOrigin | None = None
        for answer, indexes, size in (*runs, _END):
            if answer.origin is not before:
                if before is not None:
                    if before.stages is not stages:
                        self._begin(before)
                    before.runs.append((number, offset + begin, place - begin))
                    before.messages += place - begin
                    before.keys.append(hashes[begin:place])
                    before.bytes += size_sum
                before, begin, size_sum = answer.origin, place, 0
            place += len(indexes)
            size_sum += size

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
                if origin is None or not isinstance(outcome, Stored | Scheduled):
                    continue
                if origin.stages is not self.stages:
                    self._begin(origin)
                if isinstance(outcome, Scheduled):
                    if not outcome.duplicate:
                        origin.scheduled += 1
                        origin.scheduled_bytes += header.sizes[at]
                elif outcome.duplicate:
                    extend_runs(origin.duplicates, number, outcome.offset, 1)
                else:
                    extend_runs(origin.runs, number, outcome.offset, 1)
                    origin.messages += 1
                    origin.keys.append(header.key_hashes[at : at + 1])
                    origin.bytes += header.sizes[at]
            place += len(indexes)

    def _begin(self, origin: PublishOrigin) -> None:
        origin.stages = self.stages
        self.origins.append(origin)


class _EndOfRecord:
    """The end of a record, after its last publish."""

    origin: PublishOrigin | None = None


_END: Final[Owned] = (_EndOfRecord(), (), 0)


def extend_runs(runs: list[Run], number: int, first: int, count: int) -> None:
    """Add a run, or lengthen the last one."""
    if runs:
        last, begin, length = runs[-1]
        if last == number and begin + length == first:
            runs[-1] = (number, begin, length + count)
            return
    runs.append((number, first, count))


class OriginTracker:
    """Clock offset that a session has sent, and the origin of its last publish."""

    __slots__ = ("_offset_us", "_origin", "_shift_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._shift_us = 0
        """Microseconds to add to the client's time to get monotonic time, if the offset is
        known."""
        self._origin: PublishOrigin | None = None

    def origin(
        self, log: "DeliveryLog", session: LoggedSession, queue: Queue, frame: frames.Publish
    ) -> PublishOrigin:
        """Return the origin of this publish. It is that of the previous publish, if both came
        within RUN_US and nothing else distinguishes them."""
        now_us, first, origin = log.now_ns() // 1000, frame.messages[0], self._origin
        count = len(frame.messages)
        trace = trace_id_of(first) if first.headers is not None else None
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
        elif trace is None and origin and origin.absorb(count, now_us=now_us, queue=queue):
            return origin
        carrier = session.transport
        self._origin = PublishOrigin(
            log,
            queue,
            now_us,
            count,
            transport=CARRIERS[carrier or "websocket"],
            producer=session.principal.name,
            session=session.session_id,
            produced_us=produced_us,
            clock_offset_us=offset_us,
            trace=trace,
        )
        return self._origin


def trace_id_of(first: Message) -> str | None:
    """Return the trace id in a message's own headers; None: it has none."""
    parent = first.headers.get(PARENT) if first.headers is not None else None
    trace = trace_from(parent) if parent is not None else None
    return trace.trace_id if trace is not None else None


# --- The log ------------------------------------------------------------------------------------


class DeliveryLog:
    """The delivery log of a gateway, in its event loop. It is off before `begin` and after `stop`.
    Callers that check `is_on` do no work for it while it is off."""

    def __init__(
        self,
        *,
        now_ns: Callable[[], int] | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """Begin as off. `now_ns`: monotonic nanoseconds (None: those of the process); `wall_us`:
        unix microseconds."""
        self.now_ns = now_ns or time.monotonic_ns
        self._wall_us = wall_us
        self.clock = LogClock(now_us=self.now_ns() // 1000, wall_us=wall_us())
        self.is_on = False
        self.gateway = ""
        self._writer: LogWriter | None = None
        self.counts: Counts = [0] * KINDS
        """Counts of all events, by kind. LoggedPlace adds to them as well."""
        self._chunk = Chunk()
        self._lost: Missing | None = None
        self._looked_us = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unwritten: list[DispatchedSpan] = []
        """Dispatched spans that get their lines with the next `on_flush`."""
        self.held: dict[object, list[DispatchedSpan]] = {}
        """Spans that wait until they are taken, by taker. A taker is a session by long poll, a
        session whose socket is full, or a pull. Others only look whether there are any."""
        self._apart: dict[str, bool] = {}
        """Session id → False: its socket is gone; True: its socket is full, and takes its messages
        of this turn later."""
        self._unsure: dict[PublishOrigin, int] = {}
        """Number of messages by origin for which it is unknown whether they are stored. They have
        no line yet."""
        self._settling: dict[SettledSpan, None] = {}
        """Settled spans that have no line yet."""

    def begin(self, writer: LogWriter, gateway: str) -> None:
        """Log from now on, under this gateway's name. Call it inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._writer, self.gateway, self.counts = writer, gateway, writer.counts
        self.is_on = True

    def clock_unix_us(self) -> int | None:
        """Return the time of the log's clock in unix microseconds, which clients receive. None: the
        log is off."""
        return self.clock.unix_us(self.now_ns() // 1000) if self.is_on else None

    def age_s(self, unix_ms: int) -> float:
        """Return the seconds since a unix time, by the wall clock."""
        return self._wall_us() / 1e6 - unix_ms / 1000

    # --- Certified ------------------------------------------------------------------------------

    def internal_origin(self, queue: Queue, count: int) -> PublishOrigin | None:
        """Return the origin of `count` messages that the broker itself publishes. None: the log is
        off."""
        if not self.is_on:
            return None
        return PublishOrigin(self, queue, self.now_ns() // 1000, count, "internal")

    def add_commit(self, placed: CommittedOrigins) -> None:
        """Write the messages of a commit that has ended."""
        if self._unsure:  # a `late` line comes after the `unknown` one
            self._write_unsure()
        for origin in placed.origins:
            self.counts[CERTIFIED] += origin.messages
            if origin.scheduled:
                self._write_origin(origin, placed, origin.scheduled, origin.scheduled_bytes)
            if origin.runs or origin.duplicates:
                self._write_origin(origin, placed, origin.messages)
            origin.clear()

    def add_unknown(self, origin: PublishOrigin, count: int) -> None:
        """Note that it is unknown for `count` messages of an origin whether they are stored. Those
        of one origin that are added before the next hand-over are one line."""
        self._unsure[origin] = self._unsure.get(origin, 0) + count
        self.prepare()

    def _write_unsure(self) -> None:
        unsure, self._unsure = self._unsure, {}
        for origin, count in unsure.items():
            self._write_origin(origin, None, count)

    def _write_origin(
        self, origin: PublishOrigin, placed: CommittedOrigins | None, messages: int, later: int = 0
    ) -> None:
        """`later`: the bytes of the messages, if they were scheduled; 0: they were not."""
        self.prepare()
        queue, base_us, offset_us = origin.queue, self.clock.base_us, origin.clock_offset_us
        produced_us = origin.produced_us
        if produced_us is not None and offset_us is not None:
            produced_us += base_us
        line = CertifiedLine(
            schema=SCHEMA,
            gateway=self.gateway,
            stepped_us=self.clock.stepped_us,
            tenant=queue.tenant,
            queue=queue.name,
            queue_id=queue.queue_id,
            producer=origin.producer,
            session=origin.session,
            transport=origin.transport,
            produced_unix_us=produced_us,
            clock_offset_us=offset_us,
            accepted_unix_us=base_us + origin.accepted_us,
            trace=origin.trace,
            due_unix_us=None if origin.due_unix_ms is None else origin.due_unix_ms * 1000,
        )
        if placed is None:
            line.outcome, line.messages = "unknown", messages
            self.put(encode(line), CERTIFIED, 0)
            return
        if placed.is_late:
            line.outcome = "late"
        line.level = queue.settings.durability
        line.asked_unix_us = base_us + placed.stages.asked_us
        line.certified_unix_us = base_us + placed.stages.certified_us
        if later:
            line.outcome, line.messages, line.bytes = "scheduled", messages, later
            self.put(encode(line), CERTIFIED, 0)
            return
        line.runs, line.bytes = origin.runs, origin.bytes
        line.keys = b"".join(origin.keys) or None
        if origin.duplicates:
            line.duplicates = messages_of(origin.duplicates)
            line.duplicate_runs = origin.duplicates
        self.put(encode(line), CERTIFIED, messages)

    # --- Dispatched -----------------------------------------------------------------------------

    def add_dispatch(self, span: DispatchedSpan, key: object = None) -> None:
        """Add a dispatched span that is on its way. Its line is written with the next `on_flush`,
        or with a `key` by `on_take` or `on_leave` of that key."""
        if key is not None:
            self.held.setdefault(key, []).append(span)
        else:
            self._unwritten.append(span)
            if len(self._unwritten) > limits.LOG_SPANS_UNWRITTEN_MAX:  # without any flush
                self._write_dispatches(self._unwritten, None)
                self._unwritten = []

    def on_full(self, session: str) -> None:
        """Keep this session's spans back from the next `on_flush`, because its socket is full. They
        wait for `on_take` or `on_leave`."""
        self._apart.setdefault(session, True)

    def on_gone(self, session: str) -> None:
        """Have the next `on_flush` log this session's spans as not written, because its socket is
        gone."""
        self._apart[session] = False

    def on_flush(self) -> None:
        """Write the lines of the spans that were just written to WebSockets."""
        if self._unwritten:
            spans, self._unwritten = self._unwritten, []
            spans = self._without_apart(spans) if self._apart else spans
            self._write_dispatches(spans, self.now_ns() // 1000)
        if self._apart:
            self._apart = {}

    def _without_apart(self, spans: list[DispatchedSpan]) -> list[DispatchedSpan]:
        """Return the spans that sockets took. Those of full sockets are held, those of lost ones
        logged."""
        written: list[DispatchedSpan] = []
        for span in spans:
            names = span.sessions or ([span.session] if span.session is not None else [])
            others = [name for name in names if name in self._apart]
            if len(others) < len(names) or not names:
                if others:
                    span.sessions = [name for name in names if name not in self._apart]
                written.append(span)
            for name in others:
                one = span.alone(name) if span.sessions else span
                if self._apart[name]:
                    self._hold(one, name)
                else:
                    self._write_dispatches([one], None)
        return written

    def _hold(self, span: DispatchedSpan, session: str) -> None:
        """Count a span now and write its line later, because a part of it may have gone out."""
        span.is_open, span.is_counted = False, True
        self.counts[DISPATCHED] += span.messages
        self.held.setdefault(session, []).append(span)

    def on_take(self, key: object) -> None:
        """Write the lines of the spans, if any, that were held for this key, and were taken now."""
        if key in self.held:
            self._write_dispatches(self.held.pop(key), self.now_ns() // 1000)

    def on_leave(self, key: object) -> None:
        """Write the lines of the spans, if any, that were held for this key, and stay untaken."""
        if key in self.held:
            self._write_dispatches(self.held.pop(key), None)

    def end_dispatch(self, session: str | None, dispatched_us: int) -> None:
        """Write the lines of messages that this session was given at `dispatched_us`, and that now
        end or return, if these lines are still held. Otherwise the log would have an end without a
        delivery, after a kill for ever. If none are held, nothing happens."""
        held = self.held.get(session, [])
        ended = [span for span in held if span.dispatched_us == dispatched_us]
        if not ended:
            return
        self._write_dispatches(ended, None)
        rest = [span for span in held if span.dispatched_us != dispatched_us]
        if rest:
            self.held[session] = rest
        else:
            del self.held[session]

    def _write_dispatches(self, spans: Iterable[DispatchedSpan], written_us: int | None) -> None:
        self.prepare()
        base_us, stepped_us = self.clock.base_us, self.clock.stepped_us
        for span in spans:
            span.is_open = False
            queue, certified_us = span.queue, span.certified_us
            recipients = len(span.sessions) or 1
            line = DispatchedLine(
                schema=SCHEMA,
                gateway=self.gateway,
                stepped_us=stepped_us,
                tenant=queue.tenant,
                queue=queue.name,
                queue_id=queue.queue_id,
                runs=span.runs,
                group=span.group,
                session=span.session,
                sessions=list(span.sessions),
                recipients=recipients,
                transport=span.transport,
                attempt=span.attempt,
                cause=span.cause,
                published_unix_ms=span.published_unix_ms,
                certified_unix_us=base_us + certified_us if certified_us is not None else None,
                dispatched_unix_us=base_us + span.dispatched_us,
            )
            if written_us is not None and span.transport is not None:
                line.written_unix_us = base_us + written_us
            messages = span.messages * recipients
            if not span.is_counted:
                self.counts[DISPATCHED] += messages
            self.put(encode(line), DISPATCHED, messages)

    # --- Settled --------------------------------------------------------------------------------

    def add_settlement(self, span: SettledSpan) -> None:
        """Add a settled span that has begun. Its line is written with the next hand-over, or with
        `write_settlement`."""
        self._settling[span] = None
        self.prepare()

    def write_settlement(self, span: SettledSpan) -> None:
        """Write the line of a settled span, which ends it. If it has ended already, nothing
        happens."""
        if not span.is_open:
            return
        span.is_open = False
        self._settling.pop(span, None)
        queue, session = span.queue, span.session
        line = SettledLine(
            schema=SCHEMA,
            gateway=self.gateway,
            stepped_us=self.clock.stepped_us,
            tenant=queue.tenant,
            queue=queue.name,
            queue_id=queue.queue_id,
            pushes=as_written(span.pushes),
            group=span.group,
            session=session.session_id if session is not None else None,
            transport=carrier_of(session, is_internal=span.is_internal),
            outcome=span.outcome,
            reason=span.reason,
            settled_unix_us=self.clock.unix_us(span.at_us),
        )
        self.put(encode(line), SETTLED, span.messages)

    # --- To the writer --------------------------------------------------------------------------

    def prepare(self) -> None:
        """Prepare for the first line, about to be written, since the last hand-over. Checks the
        wall clock, if that is due, and schedules the next hand-over."""
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(HAND_OVER_S, self._hand_over)
            before_us = self.now_ns() // 1000
            if before_us - self._looked_us >= LOOK_US:
                self._looked_us = before_us
                self._look(before_us)

    def _look(self, before_us: int) -> None:
        wall_us = self._wall_us()
        step_us = self.clock.look(before_us, wall_us, self.now_ns() // 1000)
        if step_us:
            line = ClockSteppedLine(
                schema=SCHEMA,
                gateway=self.gateway,
                seen_unix_us=self.clock.unix_us(before_us),
                step_us=step_us,
                stepped_us=self.clock.stepped_us,
            )
            self.put(encode(line), SPANS, 0)

    def put(self, line: bytes, kind: int, messages: int) -> None:
        """Append an encoded line about `messages` messages of a kind."""
        chunk = self._chunk
        chunk.lines.append(line)
        chunk.bytes += len(line) + 1
        chunk.counts[SPANS] += 1
        self.counts[SPANS] += 1
        if messages:
            chunk.counts[kind] += messages
        if chunk.bytes >= CHUNK_BYTES_MAX:
            self._hand_chunk()

    def _hand_over(self) -> None:
        """Hand over all lines, including those of spans that can end now."""
        self._timer = None
        self._write_unsure()
        for span in list(self._settling):
            self.write_settlement(span)
        self._hand_chunk()
        if self._lost is not None:  # it is reported as soon as there is room, even if no line comes
            self.prepare()

    def _hand_chunk(self) -> None:
        chunk, self._chunk, writer = self._chunk, Chunk(), self._writer
        if writer is None or not (chunk.lines or self._lost):
            return
        chunk.until_unix_us = self.clock.unix_us(self.now_ns() // 1000)
        chunk.since_unix_us = chunk.until_unix_us - int(HAND_OVER_S * 1_000_000)
        chunk.stepped_us = self.clock.stepped_us
        if writer.waiting_bytes + chunk.bytes > limits.LOG_WAITING_BYTES_MAX:
            if self._lost is None:
                self._lost = Missing("full", chunk.since_unix_us, chunk.until_unix_us, [0] * KINDS)
            self._lost.add(chunk.since_unix_us, chunk.until_unix_us, chunk.counts)
            return
        chunk.lost, self._lost = self._lost, None
        writer.put(chunk)

    async def stop(self) -> None:
        """Write the remaining lines, and log nothing more. If the log is off, nothing happens."""
        writer, loop = self._writer, self._loop
        if writer is None or loop is None:
            return
        self._write_dispatches(self._unwritten, None)
        self._unwritten = []
        for key in list(self.held):
            self.on_leave(key)
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        if self._timer is not None:
            self._timer.cancel()
        if self._lost is not None:
            writer.put(Chunk(lost=self._lost))
        self.is_on, self._writer, self._loop = False, None, None
        await loop.run_in_executor(None, writer.stop, STOP_S)

    def status(self) -> LogStatus | None:
        """Return the state of the log. None: it is off."""
        return self._writer.status() if self._writer is not None else None


OFF: Final = DeliveryLog()
"""A log that is off, for callers that keep none."""
