"""Sessions by long poll, with the frames of the WebSocket in requests (docs/protocol.md).

A `LongPoll` takes the place of a socket. Messages of the client come in numbered posts. Frames for
it wait for a poll, and are kept until the next poll says that they have arrived. So a lost request
or answer is repeated, and neither loses nor doubles a frame.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from gateway.models import Admission, Transport
from gateway.net.connections import Connections
from gateway.session.directory import SessionDirectory, new_session_id
from gateway.session.session import Session
from gateway.wire import frames
from gateway.wire.frames import Close
from metadata.catalog import Principal
from push import limits
from push.errors import Refused
from push.transit import Transit
from runtime.addresses import UNKNOWN, ClientAddress, name_of

KEPT_S: Final = 30.0
"""Seconds for which an ended session still says why it has ended."""
ENDED_MAX: Final = 10_000
"""Largest number of ended sessions that are kept. Beyond it, those that ended first are forgotten
(P9)."""
ENDED_BYTES_MAX: Final = 16 * 1_048_576
"""Largest number of bytes of frames that ended sessions may still hold together. Beyond it, those
that ended first are forgotten (P9)."""
_SILENT_S_MAX: Final = 1.0
"""Largest number of seconds between two notes that a client is alive, while its post waits for its
rate."""
UNREAD_BYTES_MAX: Final = 2 * limits.WRITE_BUFFER_BYTES_MAX
"""Bytes of waiting answers from which posts of a client that never polls are refused (P9). The
batch that is on its way does not count. [A large message is on a slow line, and meanwhile no lease
can be extended.]"""
_SLOWEST: Final = limits.SLOWEST_BYTES_PER_S


class LongPoll:
    """The transport of one session, in the place of a socket."""

    transport: Final[Transport] = "long-poll"
    until_unix_ms: Final = None

    def __init__(
        self, polls: "LongPolls", connections: Connections, address: ClientAddress
    ) -> None:
        self.address = address
        self._polls = polls
        self._connections = connections
        self.session: Session | None = None
        self.poll_id = secrets.token_urlsafe(16)
        """Id of this transport, not of its session. A late request, or one repeated by a proxy, to
        a transport that the session has left must not count here. [An old message 1 comes in. Then
        the new message 1, `held`, does nothing, and there is no push ever again.]"""
        self.principal: Principal | None = None
        self._frames: list[bytes] = []
        self._byte_count = 0
        """Size of the waiting frames, and of the last batch until its arrival is confirmed."""
        self._batch = 0
        self._batch_frames: list[bytes] = []
        """Frames of the last batch, whose number is `_batch`, until their arrival is confirmed."""
        self._post_number = 0
        self._batch_at = 0.0
        """Time of the first answer with the last batch, by the loop's clock."""
        self._batch_bytes = 0
        """Size of the last batch until its arrival is confirmed; then 0."""
        self._transit: Transit | None = None
        """None if no batch was large. A large batch is a mark, which the next poll answers."""
        self._marked = 0
        """Number that `Transit.mark` gave the last batch; 0 if it gave none, because the batch was
        small, or if the batch has arrived."""
        self._is_owed = False
        """Whether the last batch had no room for all frames: the next batch has the rest."""
        self._opened_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._reading = asyncio.Event()
        self._reading.set()
        self._has_blocked_push = False
        self._forget_at = 0.0
        self.scheduled = float("inf")
        self.end_reason: Close | None = None
        """Reason why this transport has left its session; None while it has not."""

    # --- Requests -------------------------------------------------------------------------------

    def open(self, admission: Admission, hello: bytes) -> None:
        """Begin with the client's first message. The session ends when the admission does. Raises
        the Refused with which `hello` was refused."""
        now = asyncio.get_running_loop().time()
        connections = self._connections
        self._opened_at = now
        self.session = Session(
            connections.services,
            self,
            new_session_id(),
            admission,
            now=now,
        )
        began = self.session
        self.principal = admission.principal
        refusal = connections.refusal()
        connections.add(self)
        if refusal is not None:
            self.close(refusal)
            return
        self.session.receive(hello, now=now)
        if began.refusal is not None:
            raise began.refusal
        self._schedule()

    async def post(self, number: int, data: bytes) -> None:
        """Take the client's message of this number: 1, 2, 3 … The last number sent again does
        nothing.

        Raises:
            Refused: invalid_request if the number is neither the last one nor the next; too_many if
                the client must poll first; overloaded if nothing is read now; session_not_found if
                the session is over here.
        """
        self._touch()
        try:
            await asyncio.wait_for(self._reading.wait(), limits.PULL_WAIT_S_MAX)
        except TimeoutError:
            detail = "earlier messages are still being processed: send this one again later"
            raise Refused("overloaded", detail) from None
        await self._await_quota()
        session = self.session
        if session is None:
            raise self.end_error()
        if number == self._post_number:
            return
        if number != self._post_number + 1:
            last = self._post_number
            raise Refused(
                "invalid_request",
                f"message {number} was taken already, and {last} is the last one"
                if number < last
                else f"message {number} comes after {last}: one is missing",
            )
        if self._byte_count - self._batch_bytes > UNREAD_BYTES_MAX:
            raise Refused("too_many", "too many answers wait: poll first", retry_after_s=0.1)
        self._post_number = number
        now = asyncio.get_running_loop().time()
        session.charge_frames(session.receive(data, now=now), now=now)
        self._schedule()

    async def _await_quota(self) -> None:
        """Wait until the client's rate allows further frames."""
        now = asyncio.get_running_loop().time
        while self.session is not None and (wait_s := self.session.charge_frames(0, now=now())):
            await asyncio.sleep(min(wait_s, _SILENT_S_MAX))
            self._touch()

    async def poll(self, after: int, wait_s: float) -> tuple[int, list[bytes]]:
        """Return (number, frames) of the next batch as soon as frames wait. After `wait_s`, for a
        ping, at the end of the session, or when another poll takes over, return the number of the
        last batch and no frames.

        `after` is the number of the last batch that arrived. If it is the number before the last
        batch's, the last batch comes again.

        Raises:
            Refused: invalid_request if `after` is neither.
        """
        self._touch()
        if after == self._batch:
            self._confirm_batch()
        elif after == self._batch - 1:
            return self._batch, self._batch_frames
        else:
            raise Refused("invalid_request", f"after={after}, but the last batch is {self._batch}")
        if not self._frames and self.end_reason is None:
            await self._wait(wait_s)
        return self._next_batch() if self._batch == after else (after, [])

    async def _wait(self, wait_s: float) -> None:
        self._wake()  # one poll at a time, so an earlier one is answered now
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(wait_s, self._wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if self._waiter is waiter:
                self._waiter = None
        self._touch()

    def _wake(self, waiter: "asyncio.Future[None] | None" = None) -> None:
        waiter = waiter or self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _confirm_batch(self) -> None:
        self._byte_count -= sum(map(len, self._batch_frames))
        self._batch_frames = []
        self._batch_bytes = 0
        if self._transit is not None and self._marked:
            self._transit.answered(self._marked, now=asyncio.get_running_loop().time())
            self._marked = 0
        if self._has_blocked_push and self.session is not None:
            self._has_blocked_push = False
            self.session.on_writable()

    def _next_batch(self) -> tuple[int, list[bytes]]:
        size = count = 0
        for frame in self._frames:
            if count and size + len(frame) > limits.POLL_BYTES_MAX:
                break
            size, count = size + len(frame), count + 1
        if count:
            self._batch_frames, self._frames = self._frames[:count], self._frames[count:]
            self._batch += 1
            self._batch_at, self._batch_bytes = asyncio.get_running_loop().time(), size
            if size >= limits.MARK_BYTES or self._is_owed:
                self._mark(size, self._batch_at)
            self._is_owed = bool(self._frames)
            if self.session is not None and not self._frames:
                self._connections.delivery_log.on_take(self.session.session_id)
        return self._batch, self._batch_frames

    def _mark(self, size: int, now: float) -> None:
        if self._transit is None:
            self._transit = Transit(opened_at=self._opened_at)
        # Nobody sees how much TCP has taken, so the slowest line is assumed.
        self._transit.look(None, now=now)
        self._marked = self._transit.mark(size, now=now, covers=not self._frames)

    @property
    def has_more(self) -> bool:
        """Whether frames wait after the last batch."""
        return bool(self._frames)

    def finish(self) -> None:
        """End the session for its client. Nothing happens after the end."""
        session = self._leave(frames.Close(1000, "the client ended the session"), is_mute=True)
        if session is not None:
            session.end()

    def end_error(self) -> Refused:
        """Return the error of a request that comes after the end."""
        why = (
            f": {self.end_reason.code} {self.end_reason.reason}"
            if self.end_reason is not None
            else ""
        )
        return Refused("session_not_found", f"the session is over here{why}")

    def _touch(self) -> None:
        if self.session is not None:
            self.session.on_bytes(now=asyncio.get_running_loop().time())
            self._schedule()

    def _schedule(self) -> None:
        if self.session is not None:
            self._connections.deadlines.set(self, self.session.next_deadline())

    # --- SessionTransport ------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.end_reason is None:
            self._frames.append(frame)
            self._byte_count += len(frame)
            self._wake()

    def writable(self) -> bool:
        if self.session is not None and self._byte_count <= limits.WRITE_BUFFER_BYTES_MAX:
            return True
        self._has_blocked_push = True
        return False

    @property
    def has_room(self) -> bool:
        return self._connections.has_room

    @property
    def unsent_bytes(self) -> int:
        """Size of the frames that no poll has confirmed."""
        return self._byte_count

    def ping(self) -> None:
        """Answer the waiting poll. The next poll is the sign of life."""
        self._wake()

    def taken_bytes(self) -> int | None:
        """Return how much of the last batch the slowest line would have taken by now, because the
        progress of an answer cannot be seen. None if that is all of it."""
        taken = int((asyncio.get_running_loop().time() - self._batch_at) * _SLOWEST)
        return taken if taken < self._batch_bytes else None

    def lease_start(self, given_at: float) -> float | None:
        if self._transit is None:
            return given_at
        return self._transit.arrived(given_at, now=asyncio.get_running_loop().time())

    @property
    def is_in_transit(self) -> bool:
        """Always False, because the next poll says what has arrived."""
        return False

    def on_named(self, given_at: float) -> None:
        """Do nothing, because the next poll says what has arrived."""

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def close(self, close: Close) -> None:
        """Close. The next poll gets the reason, after the frames that wait. With HEARTBEAT and
        REVOKED these are dropped."""
        # A client without a right is given nothing more, not even what waits already (P11).
        is_mute = close in (frames.HEARTBEAT, frames.REVOKED)
        session = self._leave(close, is_mute=is_mute)
        if session is None:
            return
        if close in (frames.HEARTBEAT, frames.DRAINING):
            session.on_transport_lost()
        else:
            session.end()

    def adopt(self, session: Session) -> None:
        self.session = session
        self._opened_at = asyncio.get_running_loop().time()

    def detach(self, close: Close) -> None:
        self._leave(close, is_mute=True)

    def _leave(self, close: Close, *, is_mute: bool = False) -> Session | None:
        """Leave the session and return it; None if it was left before. `is_mute`: drop the frames
        that wait."""
        session, self.session = self.session, None
        if session is not None:
            self.end_reason = close
            self._connections.delivery_log.on_leave(session.session_id)
            if is_mute:
                self._frames = []
            self._reading.set()
            self._connections.discard(self)
            self._forget_at = asyncio.get_running_loop().time() + KEPT_S
            self._polls.on_end(self)
            self._wake()
        return session

    def discard_frames(self) -> None:
        """Discard the frames, because no poll will request them any more."""
        self._frames, self._batch_frames = [], []

    @property
    def kept_bytes(self) -> int:
        """Size of the frames that are kept after the end of the session."""
        return sum(map(len, self._frames)) + sum(map(len, self._batch_frames))

    def schedule_forgetting(self) -> None:
        """Schedule the end of its record, KEPT_S after its own end."""
        self._connections.deadlines.set(self, self._forget_at)

    # --- Connection -----------------------------------------------------------------------------

    def take(self) -> list[bytes]:
        """Take nothing, because a poll takes the frames."""
        return []

    def write(self, encoded: Sequence[bytes]) -> None:
        """Write nothing."""

    def drain(self, reconnect_after_s: float) -> None:
        if self.session is not None:
            self.session.drain(reconnect_after_s)

    def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.session is not None:
            self.session.expire(now=now)
            self._schedule()
        elif now >= self._forget_at:
            self._polls.forget(self)
        else:
            self._connections.deadlines.set(self, self._forget_at)


class LongPolls:
    """The long polls of one gateway."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._by_id: dict[str, LongPoll] = {}
        self._ended: dict[LongPoll, int] = {}
        """Ended long polls in the order of their ends → bytes that each keeps."""
        self._ended_bytes = 0

    @property
    def sessions(self) -> SessionDirectory:
        """The sessions of the gateway, over any transport."""
        return self._connections.services.sessions

    def open(
        self, admission: Admission, hello: bytes, address: ClientAddress = UNKNOWN
    ) -> LongPoll:
        """Open a long poll for a client at this address, with a new session or one that goes on.

        Raises:
            Refused: unauthorized, draining, overloaded, invalid_request, rate_limited, too_many.
        """
        limiter, now = self._connections.services.limiter, asyncio.get_running_loop().time()
        limiter.connect(name_of(address.text), now=now)
        poll = LongPoll(self, self._connections, address)
        poll.open(admission, hello)
        if poll.end_reason is not None and poll.session is None:
            raise _refusal(poll.end_reason)
        self._by_id[poll.poll_id] = poll
        return poll

    def find(self, poll_id: str, principal: Principal) -> LongPoll:
        """Find a long poll of this principal. Raises Refused(session_not_found), also if it is
        somebody else's (P11)."""
        poll = self._by_id.get(poll_id)
        if poll is None or poll.principal != principal:
            raise Refused("session_not_found")
        return poll

    def on_end(self, poll: LongPoll) -> None:
        """Keep an ended long poll for a while, so that it can say why it ended. Nothing happens if
        it never had a place here."""
        if poll.poll_id not in self._by_id:
            return
        self._ended[poll] = poll.kept_bytes
        self._ended_bytes += poll.kept_bytes
        while len(self._ended) > ENDED_MAX or self._ended_bytes > ENDED_BYTES_MAX:
            self.forget(next(iter(self._ended)))
        poll.schedule_forgetting()

    def forget(self, poll: LongPoll) -> None:
        """Forget an ended long poll. Nothing happens if it is unknown."""
        self._by_id.pop(poll.poll_id, None)
        self._ended_bytes -= self._ended.pop(poll, 0)
        poll.discard_frames()


def _refusal(close: Close) -> Refused:
    codes = {
        frames.UNAUTHORIZED: "unauthorized",
        frames.REVOKED: "unauthorized",
        frames.DRAINING: "draining",
        frames.OVERLOADED: "overloaded",
    }
    return Refused(codes.get(close, "invalid_request"), close.reason)
