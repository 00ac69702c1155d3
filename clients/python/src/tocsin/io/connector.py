"""The search for a carrier to the broker, and for the next one when a carrier is lost.

open ──► a session is open ──lost──► wait ──► open again, with the session's id
               │
               └── over long poll: a WebSocket is tried beside it, and takes over
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from random import Random
from ssl import SSLContext
from typing import Final, Protocol

import msgspec

from tocsin.errors import (
    BrokerError,
    Busy,
    CannotConnect,
    NotABroker,
    SessionEnded,
    TocsinError,
    Unauthorized,
)
from tocsin.io.carrier import ABNORMAL, Carrier, Listener, Trace
from tocsin.io.longpoll import LongPoll
from tocsin.io.requests import Token, fresh_token
from tocsin.io.tls import tls_complaint
from tocsin.io.websocket import open_websocket
from tocsin.proto import close_codes, wire
from tocsin.proto.connect_policy import Mode, ReconnectDelay, Transport, TransportChoice

logger = logging.getLogger("tocsin")

NOT_A_BROKER_MAX: Final = 20
"""The number of times in a row that another server may answer, for example a proxy without its
broker, before a client that was connected gives up. Reaching it takes a few minutes."""
_UPGRADE_SHARE: Final = 0.5
"""The share of an attempt's time limit that a WebSocket gets, if a long poll may follow."""

OpenCarrier = Callable[[Transport, str | None], Awaitable[Carrier]]


class ConnectorListener(Listener, Protocol):
    """The session that the connector serves. As a Listener it receives the carrier's messages.

    A protocol, because the session makes the connector, so this module must not import it.
    """

    def hello(self) -> bytes:
        """Return the `hello` frame with which each connection begins."""

    def on_welcome(self, carrier: Carrier, welcome: wire.Welcome) -> None:
        """Begin, or continue, over this carrier. If there was one before, `on_loss` was called for
        it."""

    def on_loss(self) -> None:
        """Note that the carrier is lost, with the frames on their way. The session may continue
        over another carrier."""

    def on_failure(self, error: TocsinError) -> None:
        """End the session for this reason, because no other carrier follows."""


class _Handshake:
    """The Listener of a carrier until its welcome."""

    def __init__(self, dialer: "Connector", carrier: Carrier) -> None:
        self._connector = dialer
        self._carrier = carrier
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, data: bytes) -> None:
        """Handle the welcome, or the error that comes in its place."""
        try:
            frames = wire.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refused(NotABroker(f"the server does not speak tocsin.v1: {error}"))
            return
        for frame in frames:
            if isinstance(frame, wire.Welcome):
                self._connector.on_welcome(self._carrier, frame, data)
                if not self.done.done():
                    self.done.set_result(None)
                return
            if isinstance(frame, wire.Error):
                self._refused(frame.exception())

    def on_writable(self) -> None:
        """Do nothing, because nothing waits."""

    def on_closed(self, close_code: int, reason: str) -> None:
        """End the wait for the welcome with an error, because the carrier has ended before."""
        error = self._carrier.refusal
        if error is None and close_code == close_codes.UNAUTHORIZED:
            error = Unauthorized("unauthorized", reason)
        elif error is None and not close_codes.may_reconnect(close_code):
            error = SessionEnded(close_code, reason)
        self._refused(
            error or ConnectionInterrupted(f"closed before the welcome: {reason or close_code}")
        )

    def _refused(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class ConnectionInterrupted(ConnectionResetError):
    """The connection ended before a session was opened."""


class Connector:
    """The connections of one session to the broker. `open_carrier` replaces the usual
    transports."""

    def __init__(
        self,
        host: ConnectorListener,
        url: str,
        *,
        token: Token,
        mode: Mode,
        connect_timeout_s: float,
        rng: Random,
        trace: Trace | None = None,
        open_carrier: OpenCarrier | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self.carrier: Carrier | None = None
        self._host = host
        self._url = url
        self._token = token
        self._trace = trace
        self._tls = tls
        self._open_carrier = open_carrier or self._open_default
        self._connect_timeout_s = connect_timeout_s
        self._transport_choice = TransportChoice(mode, rng=rng)
        self._delay = ReconnectDelay(rng=rng, fresh_tokens=callable(token))
        self._loop = asyncio.get_running_loop()
        self._carrier_end: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self._welcomed_at = 0.0
        self._is_attempting = False
        self._end_during_attempt: tuple[int, str] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._return_task: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect once, over the transport that gets through.

        If too many clients connect, waits for the time that the broker names, within the time limit
        of an attempt.

        Raises:
            CannotConnect: nothing answers, or something other than a broker.
            BrokerError: the broker refused, for example with Unauthorized.
            SessionEnded: the broker closed the connection with a code after which no client
                reconnects.
        """
        give_up_at = self._loop.time() + self._connect_timeout_s
        while True:
            try:
                await self._attempt_each()
                break
            except OSError as error:
                raise CannotConnect(
                    f"cannot reach a Tocsin broker at {self._url}: {reason_of(error)}"
                ) from error
            except Busy as error:
                delay_s = self._limited_s(error)
                if delay_s is None or self._loop.time() + delay_s > give_up_at:
                    raise
                await asyncio.sleep(delay_s)
        self._runner = self._loop.create_task(self._run(), name="tocsin-session")

    async def close(self) -> None:
        """End the session in an orderly way."""
        self._is_closed = True
        tasks = [task for task in (self._runner, self._return_task) if task is not None]
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:  # even a cancelled close leaves nothing open
            carrier = self.carrier
            if carrier is not None:
                carrier.listen(None)
                carrier.close()
        if carrier is not None:
            await carrier.wait_closed()

    async def _run(self) -> None:
        try:
            await self._go_on()
        except Exception as error:
            logger.exception("the client breaks off")
            self._host.on_failure(
                TocsinError(f"an unexpected error: {error!r}")
            )  # nobody awaits this task

    async def _go_on(self) -> None:
        while True:
            close_code, reason = await self._carrier_end
            if not self._delay.on_close(close_code):
                self._host.on_failure(
                    Unauthorized("unauthorized", reason)
                    if close_code == close_codes.UNAUTHORIZED
                    else SessionEnded(close_code, reason)
                )
                return
            logger.warning("connection lost (%s): reconnecting", f"{close_code} {reason}".strip())
            error = await self._reconnect()
            if error is not None:
                self._host.on_failure(error)
                return

    async def _reconnect(self) -> TocsinError | None:
        """Try until a session is open. Returns None, or the reason why no session will be
        opened."""
        strangers = 0
        while True:
            await asyncio.sleep(self._delay.next_delay_s(now=self._loop.time()))
            try:
                await self._attempt_each()
            except OSError as error:
                logger.info("cannot reconnect to %s yet: %s", self._url, reason_of(error))
            except NotABroker as error:
                strangers += 1
                logger.warning("cannot reconnect to %s yet: %s", self._url, error)
                if strangers >= NOT_A_BROKER_MAX:
                    return error
            except TocsinError as error:
                if not self._is_worth_repeating(error):
                    return error
                if isinstance(error, Busy) and error.retry_after_s is not None:
                    self._delay.on_rate_limit(error.retry_after_s)
                logger.info("cannot reconnect to %s yet: %s", self._url, error)
            else:
                return None

    def _limited_s(self, error: Busy) -> float | None:
        """Return the time to wait for the limit that was reached, in seconds; None for another
        refusal."""
        if error.code != "rate_limited" or error.retry_after_s is None:
            return None
        self._delay.on_rate_limit(error.retry_after_s)
        return self._delay.next_delay_s(now=self._loop.time())

    def _is_worth_repeating(self, error: TocsinError) -> bool:
        if isinstance(error, Unauthorized):
            return self._delay.on_close(close_codes.UNAUTHORIZED)
        if isinstance(error, SessionEnded):
            return False
        return isinstance(error, CannotConnect) or (isinstance(error, BrokerError) and error.retry)

    # --- attempts -------------------------------------------------------------------------------

    async def _attempt_each(self) -> None:
        """Attempt once. If the failure suggests that WebSockets are blocked, attempt again by long
        poll."""
        token = await fresh_token(self._token)
        transport = self._transport_choice.next
        try:
            await self._attempt(transport, token)
        except (OSError, NotABroker, CannotConnect) as error:
            if not self._transport_choice.on_failure(transport, reached=_is_reached(error)):
                raise
            logger.info("no WebSocket to %s (%s): trying long poll", self._url, reason_of(error))
            try:
                await self._attempt(self._transport_choice.next, token)
            except (OSError, CannotConnect):
                self._transport_choice.on_failure("long-poll", reached=True)
                raise error from None
            logger.warning("no WebSocket gets through to %s: using long poll", self._url)

    async def _attempt(self, transport: Transport, token: str | None) -> None:
        """Open the session over this transport, or raise.

        A carrier in use stays in use meanwhile. Its end counts only if this attempt fails.
        """
        timeout_s = self._connect_timeout_s
        if transport == "websocket" and self._transport_choice.has_both:
            timeout_s *= _UPGRADE_SHARE
        self._is_attempting, self._end_during_attempt = True, None
        carrier: Carrier | None = None
        try:
            async with asyncio.timeout(timeout_s):
                carrier = await self._open_carrier(transport, token)
                greeting = _Handshake(self, carrier)
                carrier.listen(greeting)
                carrier.send([self._host.hello()])
                await greeting.done
        except BaseException as error:
            if carrier is not None and carrier is not self.carrier:
                carrier.listen(None)  # its end must not be mistaken for that of the next one
                carrier.abort()
            elif carrier is not None and isinstance(error, TimeoutError):
                return  # the welcome came in the same turn of the loop
            raise
        finally:
            self._is_attempting = False
            ended, self._end_during_attempt = self._end_during_attempt, None
            if ended is not None and not self._carrier_end.done():
                self._carrier_end.set_result(ended)

    async def _open_default(self, transport: Transport, token: str | None) -> Carrier:
        if transport == "websocket":
            return await open_websocket(self._url, token, self._trace, self._tls)
        return LongPoll(self._url, token, self._trace, self._tls)

    def on_welcome(self, carrier: Carrier, welcome: wire.Welcome, data: bytes) -> None:
        """Use this carrier from now on instead of the one before. The session gets the welcome, and
        then `data`, the message that holds the welcome and perhaps further frames."""
        before, self.carrier = self.carrier, carrier
        if before is not None:
            before.listen(None)
            before.abort()
            self._host.on_loss()
            logger.info("the session goes on over %s", carrier.transport)
        self._end_during_attempt = None
        if self._carrier_end.done():
            self._carrier_end = self._loop.create_future()
        self._welcomed_at = self._loop.time()
        self._transport_choice.on_welcome(carrier.transport)
        self._delay.on_connect()
        carrier.listen(self._host)
        self._host.on_welcome(carrier, welcome)
        self._host.on_message(data)
        is_polled = carrier.transport == "long-poll" and self.carrier is carrier
        if is_polled and self._transport_choice.has_both and not self._is_closed:
            if self._return_task is not None:
                self._return_task.cancel()  # it belongs to a long poll that has ended
            self._return_task = self._loop.create_task(self._return(), name="tocsin-return")

    async def _return(self) -> None:
        """Return to a WebSocket as soon as one gets through."""
        standing = self.carrier
        while True:
            await asyncio.sleep(self._transport_choice.next_return_delay_s())
            if self.carrier is not standing or self._is_attempting:
                return  # the long poll was lost; a new one has its own task
            with contextlib.suppress(OSError, TocsinError):
                await self._attempt("websocket", await fresh_token(self._token))
                return

    # --- for the session ------------------------------------------------------------------------

    def on_drain(self, after_s: float) -> None:
        """Note the delay that a draining broker has named, in seconds."""
        self._delay.on_drain(after_s, now=self._loop.time())

    def on_carrier_closed(self, close_code: int, reason: str) -> None:
        """Find another carrier, because the one in use has ended."""
        if self.carrier is not None:
            self._transport_choice.on_loss(
                self.carrier.transport,
                lived_s=self._loop.time() - self._welcomed_at,
                had_reason=close_code != ABNORMAL,
            )
        self.carrier = None
        if close_code == close_codes.PROTOCOL_ERROR:
            self._delay.on_protocol_error()
        if close_code == close_codes.REPLACED:
            close_code = ABNORMAL  # by an attempt of this client, whose welcome may be lost
        if self._is_attempting:
            self._end_during_attempt = (close_code, reason)
        elif not self._carrier_end.done():
            self._carrier_end.set_result((close_code, reason))


def _is_reached(error: Exception) -> bool:
    """Whether the error suggests that a server was reached, and only the WebSocket did not get
    through."""
    if isinstance(error, CannotConnect):
        return True
    return isinstance(
        error, TimeoutError | ConnectionInterrupted | ConnectionResetError | BrokenPipeError
    )


def reason_of(error: Exception) -> str:
    """Return a short text about an error, for people."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if (distrust := tls_complaint(error)) is not None:
        return distrust
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
