"""Subscriptions and readers without an event loop. The calling thread waits for messages."""

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
    """A message that this consumer received, until it is settled. Any thread may settle it."""

    __slots__ = ("_loop", "_settling")

    def __init__(self, loop: LoopThread, message: tocsin.Message) -> None:
        super().__init__(message._push, message.offset, message._message)
        self._loop = loop
        self._settling = message

    @property
    def attempt(self) -> int:
        """The number of this attempt at the message: 1, and 1 more for each earlier attempt of the
        group that counts."""
        return self._settling.attempt

    def ack(self, *, confirm: bool = False) -> None:
        """Settle the message. Returns when the ack is queued, or with `confirm` when it is durable.

        Raises:
            StaleDelivery: the message is no longer this consumer's, because its lease or the
                session ended, it was revoked, or it was nacked. With `confirm` also if it was acked
                before.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer.
        """
        self._loop.call(lambda: self._settling.ack(confirm=confirm))

    def nack(
        self, delay_s: float | None = None, reason: str | None = None, *, confirm: bool = False
    ) -> None:
        """Return the message to the group. Later messages of its key wait for it.

        It is delivered again after `delay_s` seconds, or after the group's backoff if that is None.
        After the last attempt it moves to the dead letters instead, or its key is parked. Returns
        when the nack is queued: count, delay and reason may still be lost with the connection or
        the broker. With `confirm`, returns when they are durable.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer.
            InvalidRequest: `delay_s` is not between 0 and 86,400 seconds, or `reason` is no text of
                at most 1,024 characters.
        """
        self._loop.call(lambda: self._settling.nack(delay_s, reason, confirm=confirm))

    def reject(self, reason: str | None = None, *, confirm: bool = False) -> None:
        """Return the message for good: it moves to the dead letters at once, or its key is parked.

        Returns when the rejection is queued; if that is lost with the connection or the broker, the
        message comes again. With `confirm`, returns when the rejection is durable.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer.
            InvalidRequest: `reason` is no text of at most 1,024 characters.
        """
        self._loop.call(lambda: self._settling.reject(reason, confirm=confirm))

    def extend(self, lease_s: float | None = None) -> None:
        """Extend the lease to `lease_s` seconds from now, or less if the group's `lease_total_s`
        ends before; None takes the group's lease.

        Returns when the broker has agreed. Raises StaleDelivery, or InvalidRequest if `lease_s` is
        out of range.
        """
        self._loop.call(lambda: self._settling.extend(lease_s))


SourceT = TypeVar("SourceT", tocsin.Subscription, tocsin.Reader)


class _Open(Generic[SourceT]):
    """The common part of a subscription and a reader: joining, leaving and waiting."""

    def __init__(
        self, owner: object, loop: LoopThread, make: Callable[[], SourceT], idle_s: float | None
    ) -> None:
        self._owner = owner  # a client without references is closed
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
            raise RuntimeError("not open yet; use `with client.subscribe(...) as messages:`")

        async def following() -> Any:
            return self._unclaimed.popleft() if self._unclaimed else await anext(self._source, None)

        return self._loop.call(following, timeout_s, self._unclaimed.append)


class Subscription(_Open[tocsin.Subscription]):
    """A place in a group. Made by `Client.subscribe`; a context manager and iterator, for one
    thread or several. Leaving the context returns unsettled messages to the group."""

    def __enter__(self) -> "Subscription":
        """Join. Raises the broker's answer: QueueNotFound, Unauthorized, ..."""
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
        """Leave: send what is queued, and end the iteration in every thread. Closing again does
        nothing."""
        with suppress(ClientClosed):  # the client was closed before
            self._loop.call(self._source.close)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next message whose key is free.

        The iteration ends when the subscription is closed, or when nothing has arrived for `idle_s`
        seconds.
        """
        try:
            return self.next(self._idle_s)
        except (ClientClosed, TimeoutError):
            raise StopIteration from None

    def next(self, timeout_s: float | None = None) -> Message:
        """Return the next message whose key is free. Waits up to `timeout_s` seconds; None waits
        without a limit.

        Raises:
            TimeoutError: no message came in time.
            ClientClosed: the subscription, or the client, has been closed.
        """
        message: tocsin.Message | None = self._following(timeout_s)
        if message is None:
            raise ClientClosed("the subscription has been closed")
        return Message(self._loop, message)

    def fetch(self, count: int = 10, wait_s: float | None = 0.0) -> list[Message]:
        """Return up to `count` messages whose keys are free.

        Waits up to `wait_s` seconds for the first one; None waits without a limit. Returns an empty
        list if none came. `tocsin.Subscription.fetch` describes the order.

        Raises:
            ClientClosed: the subscription, or the client, has been closed.
        """
        if not self._is_open:
            raise RuntimeError("not open yet; use `with client.subscribe(...) as messages:`")

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
        """Open the reader. Raises the errors of tocsin.Reader: PositionUnknown, PositionInUse,
        ..."""
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
        """Leave, and save the position: every message that was handed out counts as done. Closing
        again does nothing."""
        with suppress(ClientClosed):
            self._loop.call(self._source.close)

    @property
    def position(self) -> Position | None:
        """The position after the last message that was handed out; None before the reader is
        opened."""
        return self._loop.run(lambda: self._source.position)

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """The verdict on the position in each partition, from the last time the reader was opened,
        or opened again after a lost connection."""
        return dict(self._source.verdicts)

    def __iter__(self) -> Iterator[ReadMessage]:
        return self

    def __next__(self) -> ReadMessage:
        """Return the next message.

        The iteration ends when the reader is closed, or when nothing has arrived for `idle_s`
        seconds. Raises Gap and PositionUnknown, as tocsin.Reader does. Iterating again after a Gap
        continues.
        """
        try:
            return self.next(self._idle_s)
        except (ClientClosed, TimeoutError):
            raise StopIteration from None

    def next(self, timeout_s: float | None = None) -> ReadMessage:
        """Return the next message. Waits up to `timeout_s` seconds; None waits without a limit.

        Raises:
            TimeoutError: no message came in time.
            ClientClosed: the reader, or the client, has been closed.
            Gap, PositionUnknown: as tocsin.Reader does.
        """
        message: ReadMessage | None = self._following(timeout_s)
        if message is None:
            raise ClientClosed("the reader has been closed")
        return message
