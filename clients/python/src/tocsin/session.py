"""A client's conversation with the broker over one WebSocket after another.

It opens, greets, reconnects and keeps the timer; what is said is the parts' business. All frames
that the parts have to send in one turn of the event loop travel together.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import msgspec

from tocsin import codes, wire
from tocsin.connection import Connection, is_refusal_for_good, open_connection
from tocsin.errors import (
    CannotConnect,
    ClientClosed,
    SessionEnded,
    TocsinError,
    Unauthorized,
)
from tocsin.reconnecting import Reconnecting

logger = logging.getLogger("tocsin")

Token = str | Callable[[], str] | None
Answered = Callable[[wire.Ok | wire.Error | None], None]
"""Called with the answer to a request; None: the connection was lost before."""
_GOING_AWAY: Final = 1000
_ENDING: Final = frozenset({"queue_not_found", "group_not_found", "unauthorized", "forbidden"})
"""With these an error that answers nothing ends its subscription."""


class Part(Protocol):
    """A publisher, a subscription or a reader: what has something to say on the session."""

    def opened(self) -> None:
        """A connection stands; what was said on an earlier one is gone."""

    def disconnected(self) -> None:
        """The connection is lost; perhaps another one follows."""

    def failed(self, error: TocsinError) -> None:
        """No other one follows."""

    def collect(self, *, now: float) -> list[bytes]:
        """The frames that are to be sent now."""

    def next_deadline(self) -> float | None:
        """When to call `expire`, in the loop's seconds."""

    def expire(self, *, now: float) -> None:
        """Time has passed."""


class Subscriber(Part, Protocol):
    """A part that is pushed to."""

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """A push has come."""

    def revoked(self, revoked: wire.Revoked) -> None:
        """Deliveries were taken back."""

    def ended(self, error: TocsinError) -> None:
        """The broker has ended the subscription."""


class Session:
    """`url`: http or https. `token`: a text, or what returns a fresh one at each attempt."""

    def __init__(
        self, url: str, *, token: Token, producer: str, connect_timeout_s: float, rng: Random
    ) -> None:
        self.url = url
        self.producer = producer
        self.welcome = wire.Welcome()
        self.failure: TocsinError | None = None
        self._token = token
        self._connect_timeout_s = connect_timeout_s
        self._reconnecting = Reconnecting(rng=rng, fresh_tokens=callable(token))
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self._runner: asyncio.Task[None] | None = None
        self._parts: dict[Part, None] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._dirty: dict[Part, None] = {}
        self._flush_scheduled = False
        self._refs = itertools.count(1)
        self._pending: dict[int, Answered] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pinged = False
        self.is_open = False
        self.is_draining = False

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect once.

        Raises:
            CannotConnect: nothing answers, or no broker.
            BrokerError: the broker refused, e.g. Unauthorized.
        """
        try:
            await self._connect()
        except (OSError, TimeoutError) as error:
            raise CannotConnect(
                f"cannot reach a Tocsin broker at {self.url}: {why(error)}"
            ) from error
        self._runner = self._loop.create_task(self._run(), name="tocsin-session")

    async def close(self) -> None:
        """Send what is queued, close the socket, end everything that still waits."""
        if self.is_open:
            self.flush()
        if self.failure is None:
            self._fail(ClientClosed())
        if self._timer is not None:
            self._timer.cancel()
        connection = self._connection
        if connection is not None:
            connection.close(_GOING_AWAY)
            await connection.closed
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait((self._runner,))

    async def _run(self) -> None:
        """Reconnect until the session has ended for good."""
        while True:
            close_code, reason = await self._ended
            if self.failure is not None:
                return
            if not self._reconnecting.may_reconnect(close_code):
                self._fail(
                    Unauthorized("unauthorized", reason)
                    if close_code == codes.UNAUTHORIZED
                    else SessionEnded(close_code, reason)
                )
                return
            logger.warning("connection lost (%d %s): reconnecting", close_code, reason)
            if not await self._reconnect():
                return

    async def _reconnect(self) -> bool:
        while True:
            await asyncio.sleep(self._reconnecting.delay_s(now=self._loop.time()))
            try:
                await self._connect()
            except (OSError, TimeoutError) as error:
                logger.info("cannot reconnect to %s yet: %s", self.url, why(error))
            except TocsinError as error:
                unauthorized = isinstance(error, Unauthorized)
                again = self._reconnecting.may_reconnect(codes.UNAUTHORIZED) and unauthorized
                if is_refusal_for_good(error) and not again:
                    self._fail(error)
                    return False
            else:
                logger.info("reconnected to %s", self.url)
                return True

    async def _connect(self) -> None:
        token = self._token() if callable(self._token) else self._token
        self._ended = self._loop.create_future()
        self._welcomed = self._loop.create_future()
        async with asyncio.timeout(self._connect_timeout_s):
            connection = await open_connection(self.url, token)
            try:
                self._connection = connection
                connection.listen(self)
                hello = wire.Hello(producer=self.producer, client="tocsin-python")
                connection.send([wire.encode(hello)])
                await self._welcomed
            except BaseException:
                connection.listen(None)  # its end must not be taken for that of the next one
                connection.abort()
                self._connection = None
                raise

    def _fail(self, error: TocsinError) -> None:
        self.failure = error
        self.is_open = False
        self._answer_all_lost()
        for part in list(self._parts):
            part.failed(error)

    # --- for the parts --------------------------------------------------------------------------

    def add(self, part: Part) -> None:
        """From now on it is told what happens."""
        self._parts[part] = None

    def remove(self, part: Part) -> None:
        """It has left."""
        self._parts.pop(part, None)
        self._dirty.pop(part, None)

    def route(self, subscription: int, part: Subscriber | None) -> None:
        """Pushes of this subscription go to `part`; None: to nobody."""
        if part is None:
            self._subscribers.pop(subscription, None)
        else:
            self._subscribers[subscription] = part

    @property
    def refs(self) -> "itertools.count[int]":
        """Fresh refs."""
        return self._refs

    def expect(self, ref: int, answered: Answered) -> None:
        """`answered` gets the answer to the request with this ref."""
        self._pending[ref] = answered

    def request(self, frame: wire.Subscribe | wire.Unsubscribe | wire.Extend) -> None:
        """Send a frame at once, behind what the parts have to send. Not open: nothing happens."""
        self.flush()
        if self.is_open and self._connection is not None:
            self._connection.send([wire.encode(frame)])

    def dirty(self, part: Part) -> None:
        """It has something to send: at the end of this turn of the loop."""
        self._dirty[part] = None
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send what the parts have to send, now."""
        if not self.is_open or not self._dirty or self._connection is None:
            return
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        frames: list[bytes] = []
        for part in dirty:
            frames += part.collect(now=now)
        if frames:
            self._connection.send(wire.join_frames(frames))

    @property
    def writable(self) -> bool:
        """False: the socket's buffer is full, or the broker drains; publish nothing more now."""
        connection = self._connection
        return connection is not None and connection.writable and not self.is_draining

    def wake_at(self, when: float | None) -> None:
        """Call the parts' `expire` then, in the loop's seconds, or before."""
        if when is None or when == float("inf") or self.failure is not None:
            return
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for part in list(self._parts):
            part.expire(now=now)
        self._beat(now)
        self.flush()
        for part in self._parts:
            self.wake_at(part.next_deadline())

    def _beat(self, now: float) -> None:
        """Ask for a sign of life where there was none for a heartbeat, and give up after two."""
        connection, heartbeat_s = self._connection, self.welcome.heartbeat_s
        if not self.is_open or connection is None:
            return
        silent_s = now - connection.heard_at
        if silent_s >= 2 * heartbeat_s:
            connection.abort()
            return
        if silent_s >= heartbeat_s:
            connection.send([wire.encode(wire.Ping())])
            self.wake_at(connection.heard_at + 2 * heartbeat_s)
        else:
            self.wake_at(connection.heard_at + heartbeat_s)

    # --- what the connection tells (connection.Listener) ----------------------------------------

    def on_message(self, data: bytes) -> None:
        """A WebSocket message: one frame or several."""
        try:
            frames = wire.decode(data)
        except msgspec.DecodeError as error:
            logger.error("a message that is not tocsin.v1: %s", error)
            if self._connection is not None:
                self._connection.close(1002, "not tocsin.v1")
            return
        now = self._loop.time()
        for frame in frames:
            if isinstance(frame, wire.Push):
                subscriber = self._subscribers.get(frame.subscription)
                if subscriber is not None:
                    subscriber.pushed(frame, now=now)
            elif isinstance(frame, wire.Ok):
                answered = self._pending.pop(frame.ref, None)
                if answered is not None:
                    answered(frame)
            else:
                self._handle(frame)

    def _handle(self, frame: wire.ReceivedFrame) -> None:
        match frame:
            case wire.Error():
                answered = None if frame.ref is None else self._pending.pop(frame.ref, None)
                if answered is not None:
                    answered(frame)
                else:
                    self._report(frame)
            case wire.Revoked():
                subscriber = self._subscribers.get(frame.subscription)
                if subscriber is not None:
                    subscriber.revoked(frame)
            case wire.Drain():
                logger.info("the broker drains: %s", frame.reason)
                self.is_draining = True
                self._reconnecting.advised(frame.reconnect_after_s, now=self._loop.time())
            case wire.Welcome():
                self._on_welcome(frame)
            case _:
                pass  # pong: having been heard is all it is for

    def _report(self, error: wire.Error) -> None:
        """An error that answers nothing. Before the welcome it says why there will be none."""
        number = -1 if error.subscription is None else error.subscription
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error.exception())
        elif error.code in _ENDING and (subscriber := self._subscribers.get(number)) is not None:
            subscriber.ended(error.exception())
        elif error.code == "not_subscribed":
            logger.debug("the broker: %s", error.detail)  # crossed an unsubscribe
        else:
            logger.warning("the broker: %s", error.exception())

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.is_open = True
        self.is_draining = False
        self._reconnecting.connected()
        if self._connection is not None:
            self._connection.limit(2 * welcome.frame_bytes_max)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(None)
        self.wake_at(self._loop.time() + welcome.heartbeat_s)
        for part in list(self._parts):
            part.opened()

    def on_writable(self) -> None:
        """The socket has drained: go on publishing."""
        for part in self._parts:
            self.dirty(part)

    def on_closed(self, close_code: int, reason: str) -> None:
        """The connection has ended."""
        was_open, self.is_open = self.is_open, False
        self._connection = None
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(_closed_early(close_code, reason))
        if not self._ended.done():
            self._ended.set_result((close_code, reason))
        if was_open:
            self._answer_all_lost()
            for part in list(self._parts):
                part.disconnected()

    def _answer_all_lost(self) -> None:
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered(None)


def why(error: OSError) -> str:
    """An operating system's error, for people."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _closed_early(close_code: int, reason: str) -> Exception:
    """Why there was no welcome."""
    if close_code == codes.UNAUTHORIZED:
        return Unauthorized("unauthorized", reason)
    if codes.may_reconnect(close_code):
        return ConnectionResetError(f"closed before the welcome: {reason or close_code}")
    return SessionEnded(close_code, reason)
