"""The publisher of a client. Callers wait here for room in a lane, and for answers."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any

from tocsin.errors import InvalidRequest, PublishManyFailed, PublishTimeout, TocsinError, TooLarge
from tocsin.io.requests import checked_text
from tocsin.io.session import Session
from tocsin.proto import wire
from tocsin.proto.broker_clock import BrokerClock
from tocsin.proto.new_message import NewMessage, encode_message
from tocsin.proto.publish_lane import BatchTicket, Bounds, Lane, Outcome, Receipt

NEVER = float("inf")
_FRAME_OVERHEAD_BYTES = 512


class _LaneQueue:
    """A lane, and the callers that wait for room in it, first come first served."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._waiting: deque[tuple[Callable[[], bool], asyncio.Future[None]]] = deque()

    def has_room(self) -> bool:
        """Whether a message may be added now: the lane has room, and no caller waits for it."""
        return not self._waiting and self.lane.room() > 0

    async def add(self, fill: Callable[[], bool]) -> None:
        """Call `fill` when the lane has room and it is this caller's turn.

        Calls it again whenever there is room, until it returns True, which means that it has added
        everything.
        """
        added: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (fill, added)
        self._waiting.append(waiter)
        try:
            await added
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self.admit()  # it may have been ahead of a caller for which there is room
            raise

    def admit(self) -> None:
        """Let callers add while the lane has room.

        All callers that fit add in this turn, so that their messages travel in one frame.
        """
        while self._waiting and self.lane.room():
            fill, added = self._waiting[0]
            if not added.cancelled() and not fill():
                return
            self._waiting.popleft()
            if not added.done():
                added.set_result(None)

    def fail(self, error: TocsinError) -> None:
        """End all waits with this error, because no room will come."""
        for _, added in self._waiting:
            if not added.done():
                added.set_exception(error)


class _SingleTicket:
    """The ticket of a caller that published one message."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[Receipt]") -> None:
        self._future = future

    def settle(self, index: int, outcome: Outcome) -> None:
        if self._future.done():  # the caller was cancelled
            return
        if isinstance(outcome, Receipt):
            self._future.set_result(outcome)
        else:
            self._future.set_exception(outcome)


class Publisher:
    """The publisher of one client, with one lane for each queue."""

    def __init__(
        self,
        session: Session,
        *,
        rng: Random,
        first_sequence: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a publisher. In each queue its first message has the number `first_sequence`. `now`
        is the clock that the broker's clock is compared with. The event loop's clock may be
        coarser."""
        self._now = now
        self._clock = BrokerClock(wall_unix_us=time.time_ns() // 1000, now=now())
        self._session = session
        self._rng = rng
        self._first_sequence = first_sequence
        self._lines: dict[str, _LaneQueue] = {}
        self._loop = asyncio.get_running_loop()
        session.add(self)

    # --- for the client -------------------------------------------------------------------------

    def publish(
        self, queue: str, message: NewMessage, timeout_s: float | None
    ) -> Awaitable[Receipt]:
        """Publish a message; returns an awaitable of its receipt, which comes when the message is
        durable. If the lane has room, the message is queued when this returns."""
        data = self._encode(message)
        line = self._line(queue)
        deadline = self._deadline(timeout_s)
        future: asyncio.Future[Receipt] = self._loop.create_future()
        if line.has_room():  # the ordinary case
            self._add(line, data, future, deadline, message.id)
            return future
        return self._publish_later(line, data, future, deadline, message.id)

    async def _publish_later(
        self,
        line: _LaneQueue,
        data: bytes,
        future: "asyncio.Future[Receipt]",
        deadline: float,
        id: str | None,
    ) -> Receipt:
        def fill() -> bool:
            self._add(line, data, future, deadline, id)
            return True

        try:
            async with asyncio.timeout_at(None if deadline == NEVER else deadline):
                await line.add(fill)
        except TimeoutError:
            raise PublishTimeout from None
        return await future

    def _add(
        self,
        line: _LaneQueue,
        data: bytes,
        future: "asyncio.Future[Receipt]",
        deadline: float,
        id: str | None,
    ) -> None:
        produced = self._produced_unix_us()
        line.lane.add(data, _SingleTicket(future), 0, deadline, id, produced_unix_us=produced)
        self._session.mark_dirty(self)
        self._session.wake_at(deadline)

    async def publish_many(
        self,
        queue: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        timeout_s: float | None,
    ) -> list[Receipt]:
        """Publish messages, and return their receipts, in order, when all are durable."""
        encoded = [self._encode_one(message) for message in messages]
        line = self._line(queue)
        if not encoded:
            return []
        deadline = self._deadline(timeout_s)
        future: asyncio.Future[list[Receipt]] = self._loop.create_future()
        ticket = BatchTicket(len(encoded), partial(_resolve_many, future))
        added, produced = 0, self._produced_unix_us()

        def fill() -> bool:
            nonlocal added
            while added < len(encoded) and line.lane.room():
                one = encoded[added]
                if isinstance(one, InvalidRequest):
                    ticket.settle(added, one)
                else:
                    line.lane.add(
                        one[0], ticket, added, deadline, one[1], produced_unix_us=produced
                    )
                added += 1
            self._session.mark_dirty(self)
            self._session.wake_at(deadline)
            return added == len(encoded)

        if not (line.has_room() and fill()):
            try:
                async with asyncio.timeout_at(None if timeout_s is None else deadline):
                    await line.add(fill)
            except TimeoutError:
                for index in range(added, len(encoded)):
                    ticket.settle(index, PublishTimeout())
        return await future

    @property
    def unanswered(self) -> int:
        """The number of messages of this client that are queued or sent and have no final answer.
        Messages that wait for room in a lane do not count."""
        return sum(line.lane.unanswered for line in self._lines.values())

    @property
    def deferred(self) -> dict[str, int]:
        """The number of messages that the broker has ever refused for the moment, by error code.
        Each counts once."""
        counts: Counter[str] = Counter()
        for line in self._lines.values():
            counts.update(line.lane.deferred)
        return dict(counts)

    def _encode_one(
        self, message: NewMessage | Mapping[str, Any]
    ) -> tuple[bytes, str | None] | InvalidRequest:
        """Return (encoded, id), or the error of a message that cannot be sent, as its outcome."""
        try:
            draft = message if isinstance(message, NewMessage) else NewMessage(**message)
            return self._encode(draft), draft.id
        except InvalidRequest as error:
            return error
        except TypeError as error:
            return InvalidRequest("invalid_message", str(error))

    def _encode(self, message: NewMessage) -> bytes:
        data = encode_message(message)
        bytes_max = self._session.welcome.frame_bytes_max - _FRAME_OVERHEAD_BYTES
        if len(data) > bytes_max:
            raise TooLarge(
                "message_too_large",
                f"the message has {len(data)} bytes; a frame may have {bytes_max}",
            )
        return data

    def _produced_unix_us(self) -> int | None:
        return self._clock.unix_us(self._now()) if self._clock.is_wanted else None

    def _deadline(self, timeout_s: float | None) -> float:
        return NEVER if timeout_s is None else self._loop.time() + timeout_s

    def _line(self, queue: str) -> _LaneQueue:
        if self._session.failure is not None:
            raise self._session.failure
        line = self._lines.get(queue)
        if line is None:
            checked_text(queue)
            line = self._lines[queue] = _LaneQueue(
                Lane(
                    queue,
                    rng=self._rng,
                    bounds=self._bounds(),
                    first_sequence=self._first_sequence,
                )
            )
            line.lane.sends_time = self._clock.is_wanted
        return line

    def _bounds(self) -> Bounds:
        welcome = self._session.welcome
        return Bounds(welcome.messages_per_publish_max, welcome.in_flight_max)

    # --- session.SessionPart --------------------------------------------------------------------

    def opened(self) -> None:
        """Send all unanswered messages again, under the same sequences (P4)."""
        self._clock.on_welcome(self._session.welcome.clock_unix_us, now=self._now())
        for line in self._lines.values():
            line.lane.bounds = self._bounds()
            line.lane.sends_time = self._clock.is_wanted
        self._session.mark_dirty(self)

    def disconnected(self) -> None:
        """Queue the messages that were in flight, to be sent again."""
        for line in self._lines.values():
            line.lane.on_disconnect()

    def failed(self, error: TocsinError) -> None:
        """End everything with this error, because nothing will be sent any more."""
        for line in self._lines.values():
            line.lane.fail(error)
            line.fail(error)

    def collect(self, *, now: float) -> list[bytes]:
        """Return the publishes to send now, and a ping if one is due. Nothing is sent while the
        carrier takes no more bytes or the broker drains."""
        frames: list[bytes] = []
        if not self._session.writable:
            return frames  # `on_writable` leads here again
        for line in self._lines.values():
            news = self._clock.offset_to_send_us
            for ref, frame in line.lane.take(self._session.refs, now=now, clock_offset_us=news):
                self._clock.on_offset_sent()
                self._session.expect(ref, partial(self._on_answer, line, ref))
                frames.append(frame)
        if frames and self._clock.is_due(now):
            frames.insert(0, self._ping(now))
        return frames

    def _ping(self, now: float) -> bytes:
        """Return a ping. Its answer shows the broker's clock."""
        ref, asked_at = next(self._session.refs), self._now()
        self._clock.on_ping(now)

        def answered(answer: wire.Ok | wire.Error | None) -> None:
            if isinstance(answer, wire.Ok) and answer.clock_unix_us is not None:
                self._clock.on_pong(asked_at, answer.clock_unix_us, now=self._now())

        self._session.expect(ref, answered)
        return wire.encode(wire.Ping(ref=ref))

    def _on_answer(self, line: _LaneQueue, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        now = self._loop.time()
        if answer is None:
            return  # `disconnected` follows
        if isinstance(answer, wire.Ok):
            line.lane.on_answer(answer, now=now)
        else:
            line.lane.on_refusal(ref, answer.exception(), now=now)
        line.admit()
        self._session.mark_dirty(self)
        self._session.wake_at(line.lane.next_deadline())

    def next_deadline(self) -> float | None:
        """Return when a lane has to send or expire something; None if no message is unanswered."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[float]:
        for line in self._lines.values():
            deadline = line.lane.next_deadline()
            if deadline is not None:
                yield deadline

    def expire(self, *, now: float) -> None:
        """End late publishes, and send again those that have waited long enough."""
        for line in self._lines.values():
            line.lane.expire(now=now)
            line.admit()
        if self._lines:
            self._session.mark_dirty(self)


def _resolve_many(future: "asyncio.Future[list[Receipt]]", ticket: BatchTicket) -> None:
    if future.done():
        return
    outcomes: list[Outcome] = [outcome for outcome in ticket.outcomes if outcome is not None]
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    if len(receipts) == len(ticket.outcomes):
        future.set_result(receipts)
    else:
        future.set_exception(PublishManyFailed(outcomes))
