"""A subscription of a session: joining, leaving and waiting, shared by `Subscription` and
`Reader`."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Literal, TypeVar

from tocsin.errors import ClientClosed, TocsinError
from tocsin.io.session import Session
from tocsin.proto import wire

MESSAGES_MAX: Final = (1 << 53) - 1
"""A number above the number of messages that can exist."""
RESUBSCRIBE_S: Final = 0.5
"""The shortest pause after a subscribe that was refused for the moment, in seconds. The broker may
name a longer one."""
LEAVE_TIMEOUT_S: Final = 5.0

Start = Literal["earliest", "latest"] | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SelfT = TypeVar("SelfT", bound="SessionSubscription")


class Waiters:
    """Tasks that wait, first come first served."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until `wake` or `wake_all` wakes this task."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                if future in self._futures:
                    self._futures.remove(future)
            else:
                self.wake(1)  # pass the wake-up on, because this task will not use it
            raise

    def wake(self, count: int) -> None:
        """Wake the `count` tasks that have waited longest."""
        while self._futures and count > 0:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wake all tasks."""
        self.wake(len(self._futures))


class SessionSubscription(ABC):
    """A numbered subscription of a session. It joins again if the broker did not keep it when the
    carrier was lost."""

    def __init__(
        self,
        session: Session,
        number: int,
        queue: str,
        *,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.queue = queue
        self._prepare = prepare
        self._session = session
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters()
        self._joined: asyncio.Future[None] = self._loop.create_future()
        self._failure: TocsinError | None = None
        self._retry: asyncio.TimerHandle | None = None

    @abstractmethod
    def _subscribe(self, ref: int) -> wire.Subscribe:
        """Return the frame with which to join."""

    def _resume(self) -> bool:
        """Continue if the broker still has the subscription; False if it has to be joined again."""
        return False

    @abstractmethod
    def _on_accept(self, answer: wire.Ok) -> None:
        """Begin, because the broker has accepted the subscription."""

    # --- joining and leaving --------------------------------------------------------------------

    async def __aenter__(self: SelfT) -> SelfT:
        """Join the group, or open the reader.

        Raises:
            QueueNotFound, Unauthorized, PositionUnknown, ...: the broker's answer.
        """
        if self._session.failure is not None:
            raise self._session.failure
        if self._prepare is not None:
            await self._prepare()
        self._session.add(self)
        self._session.route(self._number, self)
        try:
            self.opened()
            await self._joined
        except BaseException:
            self._end(ClientClosed("the subscription was not opened"))
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave: send what is queued, then end the iteration. Closing again does nothing."""
        if self._failure is not None:
            return
        left: asyncio.Future[None] = self._loop.create_future()
        if self._session.is_open:
            self._session.mark_dirty(self)
            ref = next(self._session.refs)
            self._session.expect(ref, lambda _: None if left.done() else left.set_result(None))
            self._session.request(wire.Unsubscribe(ref=ref, subscription=self._number))
        else:
            left.set_result(None)
        self._end(ClientClosed("the subscription has been closed"))
        await asyncio.wait((left,), timeout=LEAVE_TIMEOUT_S)

    def _end(self, error: TocsinError) -> None:
        """End the subscription for this reason. A second call does nothing."""
        if self._failure is not None:
            return
        self._failure = error
        self._session.route(self._number, None)
        self._session.remove(self)
        self.disconnected()
        if not self._joined.done():
            self._joined.set_exception(error)
            self._joined.exception()  # it may have no waiter
        self._waiters.wake_all()

    async def _wait(self) -> None:
        """Wait until there may be something to hand out.

        Raises:
            StopAsyncIteration: the subscription has been closed.
            TocsinError: the subscription has ended for another reason.
        """
        if self._failure is None:
            await self._waiters.wait()
        if isinstance(self._failure, ClientClosed):
            raise StopAsyncIteration
        if self._failure is not None:
            raise self._failure

    # --- session.SessionPart --------------------------------------------------------------------

    def opened(self) -> None:
        """Join, or continue, because the session is open."""
        self._retry = None
        if self._failure is not None or not self._session.is_open or self._resume():
            return
        session = self._session
        if self._number in session.resumed:  # a reader, or the answer was lost
            session.request(wire.Unsubscribe(ref=next(session.refs), subscription=self._number))
        self._join()

    def _join(self) -> None:
        if self._failure is not None or not self._session.is_open:
            return
        ref = next(self._session.refs)
        self._session.expect(ref, self._on_answer)
        self._session.request(self._subscribe(ref))

    def _on_answer(self, answer: wire.Ok | wire.Error | None) -> None:
        if answer is None:
            return  # the connection was lost, and `opened` follows
        if self._failure is not None:  # left before the broker accepted
            if isinstance(answer, wire.Ok):
                session = self._session
                session.request(wire.Unsubscribe(ref=next(session.refs), subscription=self._number))
        elif isinstance(answer, wire.Ok):
            self._on_accept(answer)
            if not self._joined.done():
                self._joined.set_result(None)
        elif not answer.retry:
            self._end(answer.exception())
        elif not self._session.is_draining:  # otherwise the next connection follows
            pause_s = max(RESUBSCRIBE_S, answer.retry_after_s or 0.0)
            self._retry = self._loop.call_later(pause_s, self._join)

    def disconnected(self) -> None:
        """Stop trying to join, because the connection is lost."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def failed(self, error: TocsinError) -> None:
        """End for this reason, because no other connection follows."""
        self._end(error)

    def ended(self, error: TocsinError) -> None:
        """End for the broker's reason, for example because its queue was deleted."""
        self._end(error)

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return when to call `expire`; None if nothing is timed."""

    @abstractmethod
    def expire(self, *, now: float) -> None:
        """Do everything that is due by `now`."""

    @abstractmethod
    def collect(self, *, now: float) -> list[bytes]:
        """Return the frames to send now."""

    @abstractmethod
    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Queue the messages of a push."""

    @abstractmethod
    def revoked(self, revoked: wire.Revoked) -> None:
        """Give up the deliveries that the broker takes back by this frame."""


def start_at(start: Start | None) -> Literal["earliest", "latest"] | wire.StartAt | None:
    """Return a start in the form that frames and requests use. A time without a zone is local.

    Raises:
        ValueError: the time is outside the range of this machine's local times.
    """
    if isinstance(start, datetime):
        try:
            when = start if start.tzinfo is not None else start.astimezone()
        except (OverflowError, OSError, ValueError):
            raise ValueError(f"{start} is no local time; give it a time zone") from None
        return wire.StartAt((when - _EPOCH) // timedelta(milliseconds=1))
    return start
