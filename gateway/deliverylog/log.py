"""The log's side of the event loop: spans become lines, lines become chunks for the writer.

Everything is an addition to what waits; every HAND_OVER_S it goes to the writer's thread, if there
is anything. Where the writer is so far behind that WAITING_BYTES_MAX wait for it, what comes is
dropped and counted: nobody ever waits for the log.

What happens is counted the moment it happens, in counts that outlive a kill -9 where there is a
tmpfs (`gateway.deliverylog.counts`): the next start knows what had not been written.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from gateway.deliverylog.batches import (
    CERTIFIED,
    DISPATCHED,
    KINDS,
    SETTLED,
    SPANS,
    Chunk,
    Counts,
    LogStatus,
    Missing,
)
from gateway.deliverylog.lines import (
    SCHEMA,
    Cause,
    CertifiedLine,
    ClockSteppedLine,
    DispatchedLine,
    Event,
    PositionLine,
    SettledLine,
    as_written,
    encode,
    messages_of,
)
from gateway.deliverylog.spans import (
    CARRIERS,
    CommittedOrigins,
    DispatchedSpan,
    LogClock,
    LoggedPlace,
    LoggedSession,
    PublishOrigin,
    SettledSpan,
)
from metadata.catalog import Group, Queue
from push import limits

HAND_OVER_S: Final = 0.05
CHUNK_BYTES_MAX: Final = 256 * 1024
"""So much goes to the writer at once, whatever the time."""
LOOK_US: Final = 1_000_000
"""Between two looks at whether the wall clock was stepped."""
STOP_S: Final = 5.0
"""What is left has to be written in."""


class Sink(Protocol):
    """The writer, as the loop sees it."""

    counts: Counts
    """Where what happens is counted: SPANS, CERTIFIED, DISPATCHED, SETTLED. Never waits."""

    @property
    def waiting_bytes(self) -> int:
        """What it was handed and has not worked off."""

    def put(self, chunk: Chunk) -> None:
        """Write it, or count it as not logged. Never waits."""

    def stop(self, within_s: float) -> None:
        """Write what it was handed, and end; blocks."""

    def facts(self) -> LogStatus:
        """For looking at."""


class DeliveryLog:
    """See the module. Off until `begin`: then whoever asks `is_on` does nothing for it."""

    def __init__(
        self,
        *,
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`now_us`: monotonic; `wall_us`: unix."""
        self.now_us = now_us
        self._wall_us = wall_us
        self.clock = LogClock(now_us=now_us(), wall_us=wall_us())
        self.is_on = False
        self.gateway = ""
        self._sink: Sink | None = None
        self.counts: Counts = [0] * KINDS
        """What has happened."""
        self._chunk = Chunk()
        self._lost: Missing | None = None
        self._looked_us = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unwritten: list[DispatchedSpan] = []
        """What the next flush of the sockets writes."""
        self._held: dict[object, list[DispatchedSpan]] = {}
        """What waits for whoever takes it: a session by long poll, or whose socket is full; a
        pull."""
        self._apart: dict[str, bool] = {}
        """Sessions whose sockets do not take what they are given in this turn: they will (True), or
        they are gone."""
        self._unsure: dict[PublishOrigin, int] = {}
        """Of so many messages nobody knows whether they are stored; they have no line yet."""
        self._settling: dict[LoggedPlace, None] = {}
        """Places with something settled that has no line yet."""

    def begin(self, sink: Sink, gateway: str) -> None:
        """Log from now on, under this gateway's name. Inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._sink, self.gateway, self.counts = sink, gateway, sink.counts
        self.is_on = True

    def told(self) -> int | None:
        """What clients are told of the log's clock: now, in unix microseconds. None: it is off."""
        return self.clock.unix_us(self.now_us()) if self.is_on else None

    def age_s(self, unix_ms: int) -> float:
        """How long ago that was, by the wall clock."""
        return self._wall_us() / 1e6 - unix_ms / 1000

    # --- What comes in --------------------------------------------------------------------------

    def place(
        self,
        queue: Queue,
        group: str,
        session: LoggedSession | None = None,
        *,
        is_nobody: bool = False,
    ) -> LoggedPlace:
        """A new place in a group; see Place."""
        return LoggedPlace(self, queue, group, session, is_nobody=is_nobody)

    def internal(self, queue: Queue, count: int) -> PublishOrigin | None:
        """Of so many messages that the broker itself publishes. None: the log is off."""
        if not self.is_on:
            return None
        return PublishOrigin(self, queue, self.now_us(), count, transport="internal")

    def certified(self, placed: CommittedOrigins) -> None:
        """A commit has ended; these are its messages."""
        if self._unsure:  # what is `late` comes behind that
            self._tell_unsure()
        for origin in placed.origins:
            messages = messages_of(origin.runs)
            self.counts[CERTIFIED] += messages
            self._publish(origin, placed, messages)
            origin.stages = None
            origin.clear()

    def unknown(self, origin: PublishOrigin, count: int) -> None:
        """Nobody knows whether so many of its messages are stored. All of an origin that are told
        in one go are one line."""
        self._unsure[origin] = self._unsure.get(origin, 0) + count
        self._wake()

    def _tell_unsure(self) -> None:
        unsure, self._unsure = self._unsure, {}
        for origin, count in unsure.items():
            self._publish(origin, None, count)

    def _publish(
        self, origin: PublishOrigin, placed: CommittedOrigins | None, messages: int
    ) -> None:
        self._wake()
        queue, unix_us, offset_us = origin.queue, self.clock.unix_us, origin.clock_offset_us
        produced_us = origin.produced_us
        if produced_us is not None and offset_us is not None:
            produced_us = unix_us(produced_us)
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
            accepted_unix_us=unix_us(origin.accepted_us),
            trace=origin.trace,
        )
        if placed is None:
            line.outcome, line.messages = "unknown", messages
            self._put(encode(line), CERTIFIED, 0)
            return
        if placed.is_late:
            line.outcome = "late"
        line.level = queue.settings.durability
        line.asked_unix_us = unix_us(placed.stages.asked_us)
        line.certified_unix_us = unix_us(placed.stages.certified_us)
        line.runs, line.bytes = origin.runs, origin.bytes
        line.keys = b"".join(origin.keys) or None
        line.duplicates = messages_of(origin.duplicates)
        line.duplicate_runs = origin.duplicates
        self._put(encode(line), CERTIFIED, messages)

    # --- What goes out --------------------------------------------------------------------------

    def given(self, span: DispatchedSpan, key: object = None) -> None:
        """This is on its way: written with the next `flushed`, or with what is `taken` by `key`."""
        if key is not None:
            self._held.setdefault(key, []).append(span)
        else:
            self._unwritten.append(span)
            if len(self._unwritten) > limits.LOG_SPANS_UNWRITTEN_MAX:  # nobody flushes here
                self._write(self._unwritten, None)
                self._unwritten = []

    def read(
        self,
        queue: Queue,
        number: int,
        runs: Iterable[tuple[int, int]],
        published_unix_ms: int,
        *,
        session: LoggedSession | None = None,
        sessions: Sequence[str] = (),
        cause: Cause,
        given_us: int,
        certified_us: int | None = None,
    ) -> None:
        """Readers are given these runs (first, last) of partition `number`: one, over `session`,
        or all of `sessions` over websockets."""
        carrier = session.transport if session is not None else "websocket"
        span = DispatchedSpan(
            queue,
            given_us,
            published_unix_ms,
            attempt=1,
            cause=cause,
            certified_us=certified_us,
            transport=CARRIERS[carrier] if carrier else None,
            session=session.session_id if session is not None else None,
            sessions=sessions,
        )
        span.runs += [(number, first, last - first + 1) for first, last in runs]
        self.given(span, span.session if span.transport == "long_poll" else None)

    @property
    def holds(self) -> bool:
        """Whether anything that was given waits for its line."""
        return bool(self._held)

    def full(self, session: str) -> None:
        """The socket of this session is full: what `flushed` would call written waits until it is
        `taken`, or `left`."""
        self._apart.setdefault(session, True)

    def gone(self, session: str) -> None:
        """The socket of this session is gone, and what was on its way to it goes nowhere."""
        self._apart[session] = False

    def flushed(self) -> None:
        """Every WebSocket was written what there was for it."""
        if self._unwritten:
            spans, self._unwritten = self._unwritten, []
            self._write(self._without_apart(spans) if self._apart else spans, self.now_us())
        if self._apart:
            self._apart = {}

    def _without_apart(self, spans: list[DispatchedSpan]) -> list[DispatchedSpan]:
        """Those of sockets that took them."""
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
                    self._write([one], None)
        return written

    def _hold(self, span: DispatchedSpan, session: str) -> None:
        """A part of it may have gone out: it is counted now, and has its line later."""
        span.is_open, span.is_counted = False, True
        self.counts[DISPATCHED] += messages_of(span.runs)
        self._held.setdefault(session, []).append(span)

    def taken(self, key: object) -> None:
        """Whoever has this key took what there was for him. Nothing was: nothing happens."""
        if key in self._held:
            self._write(self._held.pop(key), self.now_us())

    def left(self, key: object) -> None:
        """Nobody will take what there is for him. Nothing is: nothing happens."""
        if key in self._held:
            self._write(self._held.pop(key), None)

    def ends(self, session: str | None, given_us: int) -> None:
        """Write the line of what this session was given at `given_us`, which now comes to an end or
        back, where that line is still held because the socket is full or no poll has come. Else the
        log would say for as long, or after a kill for ever, that it was never given. Nothing is
        held: nothing happens."""
        held = self._held.get(session, [])
        mine = [span for span in held if span.given_us == given_us]
        if not mine:
            return
        self._write(mine, None)
        left = [span for span in held if span.given_us != given_us]
        if left:
            self._held[session] = left
        else:
            del self._held[session]

    def _write(self, spans: Iterable[DispatchedSpan], written_us: int | None) -> None:
        self._wake()
        unix_us, stepped_us = self.clock.unix_us, self.clock.stepped_us
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
                certified_unix_us=unix_us(certified_us) if certified_us is not None else None,
                dispatched_unix_us=unix_us(span.given_us),
            )
            if written_us is not None and span.transport is not None:
                line.written_unix_us = unix_us(written_us)
            messages = messages_of(span.runs) * recipients
            if not span.is_counted:
                self.counts[DISPATCHED] += messages
            self._put(encode(line), DISPATCHED, messages)

    # --- What becomes of it ---------------------------------------------------------------------

    def settling(self, place: LoggedPlace) -> None:
        """It has begun a span; take it with the next hand-over."""
        self._settling[place] = None
        self._wake()

    def settled(self, place: LoggedPlace, span: SettledSpan) -> None:
        """A settled span has ended."""
        queue = place.queue
        line = SettledLine(
            schema=SCHEMA,
            gateway=self.gateway,
            stepped_us=self.clock.stepped_us,
            tenant=queue.tenant,
            queue=queue.name,
            queue_id=queue.queue_id,
            pushes=as_written(span.pushes),
            group=place.group,
            session=place.session_id,
            transport=place.transport,
            outcome=span.outcome,
            reason=span.reason,
            settled_unix_us=self.clock.unix_us(span.at_us),
        )
        self._put(encode(line), SETTLED, span.count)

    def position(
        self,
        queue: Queue,
        group: Group,
        partition: int,
        epoch: int,
        *,
        event: Event,
        frontier: int,
        open_: int,
        dying: int,
        ahead: int | None = None,
        certified_below: int | None = None,
        is_clean: bool = False,
    ) -> None:
        """Log where a group stands in a partition; see Position."""
        self._wake()
        line = PositionLine(
            schema=SCHEMA,
            gateway=self.gateway,
            stepped_us=self.clock.stepped_us,
            tenant=queue.tenant,
            queue=queue.name,
            queue_id=queue.queue_id,
            group=group.name,
            group_id=group.group_id,
            partition=partition,
            epoch=epoch,
            event=event,
            at_unix_us=self.clock.unix_us(self.now_us()),
            frontier=frontier,
            open=open_,
            dying=dying,
            ahead=ahead,
            certified_below=certified_below,
            is_clean=is_clean,
        )
        self._put(encode(line), SPANS, 0)

    # --- To the writer --------------------------------------------------------------------------

    def _wake(self) -> None:
        """Something is about to be said: the clock is looked at first, and it is handed over
        soon."""
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(HAND_OVER_S, self._hand_over)
            before_us = self.now_us()
            if before_us - self._looked_us >= LOOK_US:
                self._looked_us = before_us
                self._look(before_us)

    def _look(self, before_us: int) -> None:
        wall_us = self._wall_us()
        step_us = self.clock.look(before_us, wall_us, self.now_us())
        if step_us:
            line = ClockSteppedLine(
                schema=SCHEMA,
                gateway=self.gateway,
                seen_unix_us=self.clock.unix_us(before_us),
                step_us=step_us,
                stepped_us=self.clock.stepped_us,
            )
            self._put(encode(line), SPANS, 0)

    def _put(self, line: bytes, kind: int, messages: int) -> None:
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
        """Everything that has a line, or may have one by now."""
        self._tell_unsure()
        settling, self._settling = self._settling, {}
        for place in settling:
            span = place.take_done()
            if span is not None:
                self.settled(place, span)
        self._timer = None
        self._hand_chunk()
        if self._lost is not None:  # told as soon as there is room, whether or not more comes
            self._wake()

    def _hand_chunk(self) -> None:
        chunk, self._chunk, sink = self._chunk, Chunk(), self._sink
        if sink is None or not (chunk.lines or self._lost):
            return
        chunk.until_unix_us = self.clock.unix_us(self.now_us())
        chunk.since_unix_us = chunk.until_unix_us - int(HAND_OVER_S * 1_000_000)
        chunk.stepped_us = self.clock.stepped_us
        if sink.waiting_bytes + chunk.bytes > limits.LOG_WAITING_BYTES_MAX:
            if self._lost is None:
                self._lost = Missing("full", chunk.since_unix_us, chunk.until_unix_us, [0] * KINDS)
            self._lost.add(chunk.since_unix_us, chunk.until_unix_us, chunk.counts)
            return
        chunk.lost, self._lost = self._lost, None
        sink.put(chunk)

    async def stop(self) -> None:
        """Write what there is; nothing is logged any more. Off: nothing happens."""
        sink, loop = self._sink, self._loop
        if sink is None or loop is None:
            return
        self._write(self._unwritten, None)
        self._unwritten = []
        for key in list(self._held):
            self.left(key)
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        if self._timer is not None:
            self._timer.cancel()
        if self._lost is not None:
            sink.put(Chunk(lost=self._lost))
        self.is_on, self._sink, self._loop = False, None, None
        await loop.run_in_executor(None, sink.stop, STOP_S)

    def facts(self) -> LogStatus | None:
        """For looking at. None: it is off."""
        return self._sink.facts() if self._sink is not None else None


OFF: Final = DeliveryLog()
"""Where none is kept."""
