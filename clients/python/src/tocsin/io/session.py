"""A client's session with the broker, over any carrier.

A session outlives its carriers, because the connector finds the next one when a carrier is lost.
Its parts are the publisher, subscriptions, readers and the renewal of the token. Frames that they
have to send in one turn of the event loop travel together.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from random import Random
from ssl import SSLContext
from typing import Final, Protocol, assert_never

import msgspec

from tocsin.errors import ClientClosed, NoToken, TocsinError
from tocsin.io.carrier import Carrier, Trace
from tocsin.io.connector import Connector, OpenCarrier
from tocsin.io.requests import Token, fresh_token
from tocsin.proto import close_codes, wire
from tocsin.proto.connect_policy import Mode, Transport

logger = logging.getLogger("tocsin")
OnAnswer = Callable[[wire.Ok | wire.Error | None], None]
"""A function that the session calls once with the broker's answer to a request, or with None if the
carrier was lost before the answer."""
SILENT_SHARE: Final = 0.5
"""The share of the broker's heartbeat without a frame after which the client pings.

After a whole heartbeat the client gives the carrier up, earlier than the broker gives up the
client.
"""
RENEW_SHARE: Final = 0.8
"""The share of a token's life after which the client presents a fresh token."""
AGAIN_S: Final = 5.0
"""The shortest time between a failed renewal of the token and the next one, in seconds."""
NAME: Final = "tocsin-python"
"""The name of a client that has no given name."""
_ENDING: Final = frozenset({"queue_not_found", "group_not_found", "unauthorized", "forbidden"})
"""The codes with which an error without a request ends its subscription."""


class SessionPart(Protocol):
    """A part of the session: a publisher, a subscription, a reader, or the token's renewal."""

    def opened(self) -> None:
        """Begin, or continue; `Session.resumed` and `Session.is_known` say which.

        Frames that were on their way when `disconnected` was called may be lost.
        """

    def disconnected(self) -> None:
        """Note that the carrier is lost. Another one may follow."""

    def failed(self, error: TocsinError) -> None:
        """End for this reason, because no other carrier follows."""

    def collect(self, *, now: float) -> list[bytes]:
        """Return the frames to send now."""

    def next_deadline(self) -> float | None:
        """Return when to call `expire`, in the loop's seconds; None if nothing is timed."""

    def expire(self, *, now: float) -> None:
        """Do everything that is due by `now`."""


class Subscriber(SessionPart, Protocol):
    """A part that receives pushes."""

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Queue the messages of a push."""

    def revoked(self, revoked: wire.Revoked) -> None:
        """Give up deliveries that the broker takes back."""

    def ended(self, error: TocsinError) -> None:
        """End for this reason, because the broker has ended the subscription."""


class Session:
    """The session of one client.

    `url` is http or https. `token` is a text, or a function that returns a fresh one for each
    attempt. `name` is the client's name in the broker's lists. `mode` is the transport, or "auto".
    `linger_s` is the time for which the broker keeps this client's deliveries without a carrier.
    `open_carrier` replaces the usual transports. `tls` is from `tls_context`; None means that the
    URL is http.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token,
        producer: str,
        connect_timeout_s: float,
        rng: Random,
        name: str = NAME,
        mode: Mode = "auto",
        linger_s: float = 0.0,
        trace: Trace | None = None,
        open_carrier: OpenCarrier | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self.producer = producer
        self.welcome = wire.Welcome()
        self.failure: TocsinError | None = None
        self.session_id = ""
        """The broker's id of this session; empty before the first welcome."""
        self.resumed: frozenset[int] = frozenset()
        """The numbers of the subscriptions that continue, according to the last welcome; empty if
        the session did not keep its id."""
        self.is_known = False
        """Whether the session kept its id at the last welcome."""
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._connector = Connector(
            self,
            url,
            token=token,
            mode=mode,
            connect_timeout_s=connect_timeout_s,
            rng=rng,
            trace=trace,
            open_carrier=open_carrier,
            tls=tls,
        )
        self._carrier: Carrier | None = None
        self._parts: dict[SessionPart, None] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._dirty: dict[SessionPart, None] = {}
        self._flush_scheduled = False
        self._refs = itertools.count(1)
        self._pending: dict[int, OnAnswer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """The time of `_timer`, because uvloop's handles do not know it once it has passed."""
        self._sent_at = 0.0
        """The time at which frames were sent last, in the loop's seconds."""
        self._pinged_at = 0.0
        """The time of the session's last ping, in the loop's seconds; 0 before the first."""
        self.is_open = False
        self.is_draining = False
        if callable(token):
            self.add(TokenRenewal(self, token))

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect once.

        Raises:
            CannotConnect: nothing answers, or something other than a broker.
            BrokerError: the broker refused, for example with Unauthorized.
            SessionEnded: the broker closed the connection with a code after which no client
                reconnects.
        """
        await self._connector.open()

    async def close(self) -> None:
        """Send what is queued, then end the session and everything that still waits."""
        if self.is_open:
            self.flush()
        if self.failure is None:
            self.on_failure(ClientClosed())
        if self._timer is not None:
            self._timer.cancel()
        await self._connector.close()

    @property
    def transport(self) -> Transport | None:
        """The transport that carries the session now; None if none does."""
        return self._carrier.transport if self._carrier is not None and self.is_open else None

    # --- connector.ConnectorListener ------------------------------------------------------------

    def hello(self) -> bytes:
        """Return the hello, with the id of the session to continue."""
        hello = wire.Hello(
            producer=self.producer,
            client=self.name,
            linger_s=self._linger_s or None,
            session=self.session_id or None,
        )
        return wire.encode(hello)

    def on_welcome(self, carrier: Carrier, welcome: wire.Welcome) -> None:
        self._carrier = carrier
        self.welcome = welcome
        self.is_known = bool(self.session_id) and welcome.session == self.session_id
        self.resumed = frozenset(welcome.resumed or ()) if self.is_known else frozenset()
        self.session_id = welcome.session
        self.is_open = True
        self.is_draining = False
        carrier.limit(2 * welcome.frame_bytes_max)
        self.wake_at(self._loop.time() + welcome.heartbeat_s * SILENT_SHARE)
        for number in self.resumed - self._subscribers.keys():  # closed while nothing carried it
            self.request(wire.Unsubscribe(ref=next(self._refs), subscription=number))
        for part in list(self._parts):
            part.opened()

    def on_loss(self) -> None:
        was_open, self.is_open = self.is_open, False
        self._carrier = None
        if was_open:
            self._lose_pending()
            for part in list(self._parts):
                part.disconnected()

    def on_failure(self, error: TocsinError) -> None:
        """End everything that waits. Closing the client calls this, too."""
        self.failure = error
        self.is_open = False
        self._lose_pending()
        for part in list(self._parts):
            part.failed(error)

    def restart(self) -> None:
        """End the session, and continue with another one, because the broker contradicts itself
        about it."""
        self.session_id = ""
        self._break_off(1000, "another session is needed")

    # --- for the parts --------------------------------------------------------------------------

    def add(self, part: SessionPart) -> None:
        """Add a part, which is then notified of each connection, loss, failure and deadline."""
        self._parts[part] = None

    def remove(self, part: SessionPart) -> None:
        """Remove a part. An unknown part is ignored."""
        self._parts.pop(part, None)
        self._dirty.pop(part, None)

    def route(self, subscription: int, part: Subscriber | None) -> None:
        """Hand the pushes, the `revoked` frames and the end of this subscription to `part`; None
        discards them."""
        if part is None:
            self._subscribers.pop(subscription, None)
        else:
            self._subscribers[subscription] = part

    @property
    def refs(self) -> "itertools.count[int]":
        """The numbers from which each request takes its `ref`."""
        return self._refs

    def expect(self, ref: int, on_answer: OnAnswer) -> None:
        """Call `on_answer` once with the answer to the request with this ref, or with None if the
        carrier is lost before."""
        self._pending[ref] = on_answer

    def request(self, frame: wire.SentFrame) -> None:
        """Send a frame at once, after the frames of the parts. Without a carrier, does nothing."""
        self.flush()
        if self.is_open and self._carrier is not None:
            self._send(self._carrier, [wire.encode(frame)])

    def _send(self, carrier: Carrier, frames: list[bytes]) -> None:
        self._sent_at = self._loop.time()
        carrier.send(frames)

    def present(self, token: str) -> None:
        """Let the carrier use this token from now on, because the broker has accepted it."""
        if self._carrier is not None:
            self._carrier.present(token)

    def mark_dirty(self, part: SessionPart) -> None:
        """Call `collect` of a part at the end of this turn of the loop."""
        self._dirty[part] = None
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_parts)

    def _flush_scheduled_parts(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send the frames of all marked parts now."""
        if not self.is_open or not self._dirty or self._carrier is None:
            return
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        frames: list[bytes] = []
        for part in dirty:
            frames += part.collect(now=now)
        if frames:
            self._send(self._carrier, frames)

    @property
    def writable(self) -> bool:
        """Whether to publish now; False if the socket's buffer is full, or the broker drains."""
        carrier = self._carrier
        return carrier is not None and carrier.writable and not self.is_draining

    def wake_at(self, when: float | None) -> None:
        """Call `expire` of all parts at `when`, in the loop's seconds, or before; None and infinity
        do nothing."""
        if when is None or when == float("inf") or self.failure is not None:
            return
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
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
        """Ping after a long silence, and give the carrier up if nothing comes.

        Also pings while a large message arrives: the broker needs a sign of life, and its own ping
        waits behind the large message.
        """
        carrier, heartbeat_s = self._carrier, self.welcome.heartbeat_s
        if not self.is_open or carrier is None:
            return
        silent_s, share_s = now - carrier.received_at, heartbeat_s * SILENT_SHARE
        is_busy = now < carrier.patient_until
        if silent_s >= heartbeat_s and not is_busy:
            logger.info("nothing was received over %s for %.1f s", carrier.transport, silent_s)
            carrier.abort()
            return
        if silent_s >= share_s:
            is_asked = carrier.received_at <= self._pinged_at and now < self._pinged_at + share_s
        else:
            is_asked = not carrier.is_receiving or now < self._sent_at + share_s
        if not is_asked:
            self._pinged_at = now
            self._send(carrier, [wire.encode(wire.Ping())])
        if silent_s >= share_s:
            self.wake_at(now + share_s if is_busy else carrier.received_at + heartbeat_s)
        elif carrier.is_receiving:
            self.wake_at(min(carrier.received_at, self._sent_at) + share_s)
        else:
            self.wake_at(carrier.received_at + share_s)

    # --- carrier.Listener -----------------------------------------------------------------------

    def on_message(self, data: bytes) -> None:
        """Handle a message of one or several frames."""
        try:
            self._receive(wire.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error("a message that is not tocsin.v1: %s", error)
            self._break_off(close_codes.PROTOCOL_ERROR, "not tocsin.v1")
        except Exception:
            logger.exception("a message that cannot be")
            self._break_off(close_codes.PROTOCOL_ERROR, "a message that cannot be")

    def _break_off(self, code: int, why: str) -> None:
        """Continue over another carrier, without waiting for the end of this one."""
        carrier = self._carrier
        if carrier is not None:
            carrier.listen(None)
            carrier.close(code, why)
            self.on_closed(code, why)

    def _receive(self, frames: list[wire.ReceivedFrame]) -> None:
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
                self._connector.on_drain(frame.reconnect_after_s)
            case wire.Pong():
                answered = None if frame.ref is None else self._pending.pop(frame.ref, None)
                if answered is not None:
                    answered(wire.Ok(ref=frame.ref or 0, clock_unix_us=frame.clock_unix_us))
            case wire.Welcome() | wire.Announce() | wire.Push() | wire.Ok():
                pass  # `on_welcome` was called; pushes and answers were handled before
            case _:
                assert_never(frame)

    def _report(self, error: wire.Error) -> None:
        """Log an error that answers no request, or end its subscription."""
        number = -1 if error.subscription is None else error.subscription
        if error.code in _ENDING and (subscriber := self._subscribers.get(number)) is not None:
            subscriber.ended(error.exception())
        elif error.code == "not_subscribed":
            logger.debug("the broker: %s", error.detail)  # crossed an unsubscribe
        else:
            logger.warning("the broker: %s", error.exception())

    def on_writable(self) -> None:
        """Continue publishing, because the socket has drained."""
        for part in self._parts:
            self.mark_dirty(part)

    def on_closed(self, close_code: int, reason: str) -> None:
        """Give up the carrier, which has ended, and let the connector find another one."""
        self.on_loss()
        self._connector.on_carrier_closed(close_code, reason)

    def _lose_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered(None)


class TokenRenewal:
    """The part of a session that presents a fresh token before the present one expires.

    A session has this part if a function returns its tokens. Otherwise the broker closes with 4401
    when the only token expires.
    """

    def __init__(self, session: "Session", token: Token) -> None:
        self._session = session
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._ends = 0.0
        self._task: asyncio.Task[None] | None = None

    def opened(self) -> None:
        self._schedule(self._session.welcome.right_lasts_s)

    def disconnected(self) -> None:
        """Stop, because the next attempt to connect brings a fresh token."""
        self._due = None
        if self._task is not None:
            self._task.cancel()

    def failed(self, error: TocsinError) -> None:
        self.disconnected()

    def collect(self, *, now: float) -> list[bytes]:
        return []

    def next_deadline(self) -> float | None:
        return self._due

    def expire(self, *, now: float) -> None:
        if self._due is not None and now >= self._due:
            self._due = None
            self._task = self._loop.create_task(self._renew(), name="tocsin-token")

    async def _renew(self) -> None:
        try:
            token = await fresh_token(self._token)
        except NoToken as error:  # the next call, or the next attempt to connect, may return one
            logger.warning("no fresh token yet: %s", error)
            self._retry_later()
            return
        if token is not None and self._session.is_open:
            ref = next(self._session.refs)
            self._session.expect(ref, lambda answer: self._on_answer(token, answer))
            self._session.request(wire.Auth(ref=ref, token=token))

    def _on_answer(self, token: str, answer: wire.Ok | wire.Error | None) -> None:
        if isinstance(answer, wire.Ok):
            self._session.present(token)
            self._schedule(answer.right_lasts_s)
        elif answer is not None:
            logger.warning("the broker does not take the fresh token: %s", answer.exception())
            self._retry_later()

    def _schedule(self, lasts_s: float | None) -> None:
        self._due = None
        if lasts_s is not None:
            now = self._loop.time()
            self._ends = now + lasts_s
            self._wake_at(now + RENEW_SHARE * lasts_s)

    def _retry_later(self) -> None:
        now = self._loop.time()
        if self._ends - now > AGAIN_S:
            self._wake_at(now + max(AGAIN_S, RENEW_SHARE * (self._ends - now)))

    def _wake_at(self, due: float) -> None:
        self._due = due
        self._session.wake_at(due)
