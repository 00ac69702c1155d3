"""Connections of the gateway under test: both transports without their sockets."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from gateway.models import Admission, Transport
from gateway.net.longpoll import LongPoll, LongPolls
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire import frames
from gateway.wire.frames import Close
from metadata.catalog import Principal
from runtime.addresses import UNKNOWN
from tests.conformance.replay import Kind

Tell = Callable[[Kind, Any], None]
"""Called with an act of the broker: a frame, or a close code."""
LAST_WORDS: Final = (1000, 1001)
"""Close codes of a client that does not return."""


class Wire(Protocol):
    """A connection, in the form that the replay uses."""

    async def say(self, data: bytes) -> None:
        """Send a message of the client."""

    def say_binary(self) -> None:
        """Send a binary message of the client."""

    def close(self, close: Close) -> None:
        """Close it as the broker."""

    def end(self, code: int | None) -> None:
        """Close it as the client, or cut it (None)."""

    def drain(self, reconnect_after_s: float) -> None:
        """Take the gateway down."""

    is_deaf: bool
    """Whether nothing arrives from the client any more, silently."""


class WebSocketWire:
    """A WebSocket without the socket. It answers pings."""

    transport: Transport | None = "websocket"
    address = UNKNOWN
    unsent_bytes = 0
    has_room = True
    until_unix_ms: int | None = None

    def __init__(
        self, around: SessionServices, tell: Tell, name: str, principal: Principal | None
    ) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_deaf = False
        self.session: Session | None = Session(
            around,
            self,
            name,
            None if principal is None else Admission(principal),
            now=self._loop.time(),
        )
        self._schedule()

    async def say(self, data: bytes) -> None:
        if self.session is not None:
            self.session.receive(data, now=self._loop.time())
            self._schedule()

    def say_binary(self) -> None:
        if self.session is not None:
            self.session.receive_binary()

    def end(self, code: int | None) -> None:
        session = self._leave()
        if session is not None and code in LAST_WORDS:
            session.end()
        elif session is not None:
            session.on_transport_lost()

    def drain(self, reconnect_after_s: float) -> None:
        if self.session is not None:
            self.session.drain(reconnect_after_s)

    def _leave(self) -> Session | None:
        session, self.session = self.session, None
        if self._timer is not None:
            self._timer.cancel()
        return session

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = None if self.session is None else self.session.next_deadline()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        if self.session is not None:
            self.session.expire(now=self._loop.time())
            self._schedule()

    # --- SessionTransport ------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.session is not None:
            self._tell("frame", msgspec.json.decode(frame))

    def writable(self) -> bool:
        return self.session is not None

    def ping(self) -> None:
        if self.session is not None and not self.is_deaf:
            self.session.on_bytes(now=self._loop.time())

    def taken_bytes(self) -> int | None:
        return None

    is_in_transit = False

    def lease_start(self, given_at: float) -> float | None:
        """Return the same time: everything arrives at once."""
        return given_at

    def on_named(self, given_at: float) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Fail: no transcript creates a queue by publishing."""
        raise AssertionError("a transcript creates its queues beforehand")

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self, close: Close) -> None:
        session = self._leave()
        if session is None:
            return
        if close is frames.HEARTBEAT:
            session.on_transport_lost()
        else:
            session.end()
        self._tell("close", close.code)

    def adopt(self, session: Session) -> None:
        self.session = session
        self._schedule()

    def detach(self, close: Close) -> None:
        self._leave()
        self._tell("close", close.code)


class LongPollWire:
    """A client that posts and polls."""

    def __init__(self, polls: LongPolls, tell: Tell, principal: Principal) -> None:
        self._polls = polls
        self._tell = tell
        self._principal = principal
        self._poll: LongPoll | None = None
        self._posted = 0
        self._task: asyncio.Task[None] | None = None
        self.is_deaf = False

    async def say(self, data: bytes) -> None:
        if self._poll is None:
            self._poll = self._polls.open(Admission(self._principal), data)
            self._task = asyncio.get_running_loop().create_task(self._run(self._poll))
            return
        self._posted += 1
        await self._poll.post(self._posted, data)

    async def _run(self, poll: LongPoll) -> None:
        batch = 0
        while True:
            batch, frames = await poll.poll(batch, 25.0)
            for frame in frames:
                self._tell("frame", msgspec.json.decode(frame))
            if poll.end_reason is not None and not poll.has_more:
                self._tell("close", poll.end_reason.code)
                return

    def say_binary(self) -> None:
        raise AssertionError("requests carry text")

    def close(self, close: Close) -> None:
        if self._poll is not None:
            self._poll.close(close)

    def end(self, code: int | None) -> None:
        """End the client. The broker is not informed of a poll that does not come."""
        if self._task is not None:
            self._task.cancel()
        if self._poll is not None and code in LAST_WORDS:
            self._poll.finish()

    def drain(self, reconnect_after_s: float) -> None:
        if self._poll is not None:
            self._poll.drain(reconnect_after_s)
