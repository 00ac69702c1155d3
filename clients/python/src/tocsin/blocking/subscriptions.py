"""Subscriptions and readers without an event loop: the calling thread waits for messages."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

import tocsin
from tocsin.answers import Verdict
from tocsin.blocking.loop import LoopThread
from tocsin.errors import ClientClosed
from tocsin.proto.message import Content, ReadMessage
from tocsin.proto.wire import Position


class Message(Content):
    """A message that this consumer was given, until it is settled; by any thread."""

    __slots__ = ("_loop", "_settling")

    def __init__(self, loop: LoopThread, message: tocsin.Message) -> None:
        super().__init__(message._push, message.offset, message._message)
        self._loop = loop
        self._settling = message

    @property
    def attempt(self) -> int:
        """1 for the first delivery to the group, then one more each time."""
        return self._settling.attempt

    def ack(self, *, confirm: bool = False) -> None:
        """Settle the message. Returns when the ack is queued; with `confirm` when it is durable.

        Raises:
            StaleDelivery: it is no longer this consumer's; it is or will be delivered again.
            OutcomeUnknown: with `confirm`: the connection was lost before the answer.
        """
        self._loop.call(lambda: self._settling.ack(confirm=confirm))

    def nack(
        self, delay_s: float | None = None, reason: str | None = None, *, confirm: bool = False
    ) -> None:
        """Return the message: it comes again after `delay_s` seconds, or the queue's backoff; later
        messages of its key wait for it. Returns when the nack is queued: count, delay and reason
        may still be lost with the connection or the broker. With `confirm` it returns when they
        are durable.

        Raises:
            StaleDelivery: it is no longer this consumer's.
            OutcomeUnknown: with `confirm`: the connection was lost before the answer.
            InvalidRequest: no such delay or reason.
        """
        self._loop.call(lambda: self._settling.nack(delay_s, reason, confirm=confirm))

    def reject(self, reason: str | None = None, *, confirm: bool = False) -> None:
        """Return the message for good: it moves to the dead letters at once, or its key is parked
        where the queue says so. Returns when the rejection is queued: where it is lost with the
        connection or the broker, the message comes again. With `confirm` it returns when it is
        durable.

        Raises:
            StaleDelivery: it is no longer this consumer's.
            OutcomeUnknown: with `confirm`: the connection was lost before the answer.
            InvalidRequest: no such reason.
        """
        self._loop.call(lambda: self._settling.reject(reason, confirm=confirm))

    def extend(self, lease_s: float | None = None) -> None:
        """Extend the lease to `lease_s` seconds from now (None: the group's). Returns when the
        broker has agreed. Raises StaleDelivery."""
        self._loop.call(lambda: self._settling.extend(lease_s))


SourceT = TypeVar("SourceT", tocsin.Subscription, tocsin.Reader)


class _Open(Generic[SourceT]):
    """The common part of a subscription and a reader: joining, leaving and waiting."""

    def __init__(
        self, owner: object, loop: LoopThread, make: Callable[[], SourceT], idle_s: float | None
    ) -> None:
        self._owner = owner  # a client that nobody knows any more is closed
        self._loop = loop
        self._idle_s = idle_s
        self._is_open = False
        self._unclaimed: deque[Any] = deque()
        """The messages that had arrived when a Ctrl-C ended the wait for them."""
        self._source: SourceT = loop.run(make)

    def _enter(self) -> None:
        self._loop.call(self._source.__aenter__)
        self._is_open = True

    def _following(self, timeout_s: float | None) -> Any:
        if not self._is_open:
            raise RuntimeError("not open yet: `with client.subscribe(...) as messages:`")

        async def following() -> Any:
            return self._unclaimed.popleft() if self._unclaimed else await anext(self._source, None)

        return self._loop.call(following, timeout_s, self._unclaimed.append)


class Subscription(_Open[tocsin.Subscription]):
    """A place in a group. Made by `Client.subscribe`; a context manager and iterator, for one
    thread or several. Leaving the context returns what is not settled to the group."""

    def __enter__(self) -> "Subscription":
        """Join. Raises what the broker says: QueueNotFound, Unauthorized, ..."""
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave: send what is queued, end the iteration, in every thread. Again: does nothing."""
        with suppress(ClientClosed):  # with which it has been closed
            self._loop.call(self._source.close)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message whose key is free. The iteration ends when the subscription is closed,
        or, with an `idle_s`, when nothing has arrived for that time."""
        try:
            return self.next(self._idle_s)
        except (ClientClosed, TimeoutError):
            raise StopIteration from None

    def next(self, timeout_s: float | None = None) -> Message:
        """The next message whose key is free; waits for one for up to `timeout_s` seconds, None: as
        long as it takes.

        Raises:
            TimeoutError: none came in time.
            ClientClosed: the subscription, or the client, has been closed.
        """
        message: tocsin.Message | None = self._following(timeout_s)
        if message is None:
            raise ClientClosed("the subscription has been closed")
        return Message(self._loop, message)

    def fetch(self, count: int = 10, wait_s: float | None = 0.0) -> list[Message]:
        """Up to `count` messages whose keys are free; waits up to `wait_s` seconds (None: as long
        as it takes) for the first one; none came: an empty list. As tocsin.Subscription.fetch.

        Raises:
            ClientClosed: the subscription, or the client, has been closed.
        """
        if not self._is_open:
            raise RuntimeError("not open yet: `with client.subscribe(...) as messages:`")

        async def fetching() -> list[tocsin.Message]:
            waited = [self._unclaimed.popleft() for _ in range(min(count, len(self._unclaimed)))]
            if len(waited) == count:
                return waited
            return waited + await self._source.fetch(count - len(waited), 0.0 if waited else wait_s)

        fetched = self._loop.call(fetching, unclaimed=self._unclaimed.extend)
        return [Message(self._loop, message) for message in fetched]


class Reader(_Open[tocsin.Reader]):
    """A reader. Made by `Client.read`; a context manager and iterator, for one thread."""

    def __enter__(self) -> "Reader":
        """Open it. Raises what tocsin.Reader raises: PositionUnknown, PositionInUse, ..."""
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(ClientClosed):
            self._loop.call(lambda: self._source.__aexit__(kind, error, traceback))

    def close(self) -> None:
        """Leave, and save the position; what was handed out is done. Again: does nothing."""
        with suppress(ClientClosed):
            self._loop.call(self._source.close)

    @property
    def position(self) -> Position | None:
        """The position behind the last message that was handed out."""
        return self._loop.run(lambda: self._source.position)

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """The verdicts on the position, per partition."""
        return dict(self._source.verdicts)

    def __iter__(self) -> Iterator[ReadMessage]:
        return self

    def __next__(self) -> ReadMessage:
        """The next message. The iteration ends when the reader is closed, or where there is an
        `idle_s` when nothing has come for so long. Raises Gap and PositionUnknown as tocsin.Reader
        does; iterating again behind a Gap goes on."""
        try:
            return self.next(self._idle_s)
        except (ClientClosed, TimeoutError):
            raise StopIteration from None

    def next(self, timeout_s: float | None = None) -> ReadMessage:
        """The next message; waits for one for up to `timeout_s` seconds, None: as long as it takes.

        Raises:
            TimeoutError: none came in time.
            ClientClosed: the reader, or the client, has been closed.
            Gap, PositionUnknown: as tocsin.Reader does.
        """
        message: ReadMessage | None = self._following(timeout_s)
        if message is None:
            raise ClientClosed("the reader has been closed")
        return message
