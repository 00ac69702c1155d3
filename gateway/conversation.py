"""The conversation: the shell between the session machine and the broker's inside.

Effects of the machine come in, calls to publisher, groups and readers go out, and their outcomes
become answers. One conversation belongs to one transport, its Outlet, and is the Link that
consumers and readers push to. Everything here runs on the event loop and, but for opening a
subscription and creating a queue on first use, without a task.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import msgspec

from gateway import frames
from gateway.auth import Auth
from gateway.frames import Close
from gateway.link import Answer, Broker, Outlet, Settled
from gateway.session import Effect, Ping, Reply, Session, State, Timing
from gateway.subscriptions import Settling, Subscriptions, settling_answer
from metadata.catalog import Principal, Queue, check_name
from push.errors import Refused, TocsinError

logger = logging.getLogger("tocsin.session")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all conversations of a gateway share."""

    broker: Broker
    auth: Auth
    broker_name: str = "tocsin"
    timing: Timing = field(default_factory=Timing)


class Conversation:
    """A session's shell. `principal`: None where a token is still owed in `hello`."""

    __slots__ = (
        "_around", "_is_closed", "_is_draining", "_late_publishes", "_outlet", "_principal",
        "_producer", "_session", "_subscriptions", "_tasks", "_unanswered", "session_id",
    )  # fmt: skip

    def __init__(
        self,
        around: Surroundings,
        outlet: Outlet,
        session_id: str,
        principal: Principal | None,
        *,
        now: float,
    ) -> None:
        self.session_id = session_id
        self._around = around
        self._outlet = outlet
        self._principal = principal
        self._producer: bytes | None = None
        self._session = Session(around.timing, now=now)
        self._subscriptions = Subscriptions(around.broker, self)
        self._tasks: set[asyncio.Task[None]] | None = None
        self._late_publishes: dict[str, list[frames.Publish]] | None = None
        self._unanswered = 0
        """Publishes and confirmed acks whose answer the client still awaits."""
        self._is_draining = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Conversation {self.session_id} {self._session!r}>"

    # --- Link: what consumers and readers use ---------------------------------------------------

    @property
    def principal(self) -> Principal:
        """Who it is. Nobody asks before `hello` has been accepted (P11)."""
        assert self._principal is not None
        return self._principal

    @property
    def is_welcome(self) -> bool:
        """Whether its `hello` has been accepted."""
        return not self._is_closed and self._session.state is not State.HELLO

    def send(self, frame: bytes) -> None:
        """As Link.send."""
        self._outlet.send(frame)

    def writable(self) -> bool:
        """As Link.writable. A draining session is given nothing more (P14)."""
        return not (self._is_draining or self._is_closed) and self._outlet.writable()

    def emptied(self) -> None:
        """As Link.emptied. Who drains may close (P14), in the next turn of the loop: in this one
        the ack that did it is yet to be answered."""
        if self._is_draining:
            asyncio.get_running_loop().call_soon(self._close_when_settled)

    # --- What the transport calls ---------------------------------------------------------------

    def receive(self, data: bytes, *, now: float) -> None:
        """A whole text message arrived."""
        self._apply(self._session.receive(data, now=now))

    def receive_binary(self) -> None:
        """A binary message arrived."""
        self._apply(self._session.receive_binary())

    def heard(self, *, now: float) -> None:
        """Bytes arrived that are no message, or not yet."""
        self._session.heard(now=now)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: never."""
        return self._session.next_deadline()

    def expire(self, *, now: float) -> None:
        """Time has passed."""
        effect = self._session.expire(now=now)
        if effect is not None:
            self._apply([effect])

    def resume(self) -> None:
        """The transport takes pushes again."""
        if not (self._is_draining or self._is_closed):
            self._subscriptions.pump()

    def drain(self, reconnect_after_s: float) -> None:
        """Tell the client to come back elsewhere, give it nothing more, and close as soon as what
        it has is settled and what it asked is answered (P14)."""
        if self._is_closed or self._is_draining:
            return
        self._is_draining = True
        self._session.drain()
        self.send(frames.drain(reconnect_after_s, "the gateway is going down"))
        self._close_when_settled()

    def closed(self) -> None:
        """The transport is gone or about to go: leave everything. Calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._session.closed()
        self._late_publishes = None
        self._subscriptions.leave_all()

    # --- Effects --------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._is_closed:
                return
            try:
                _HANDLERS[type(effect)](self, effect)
            except TocsinError as error:
                self.send(frames.error(error, getattr(effect, "ref", None)))
            except Exception:
                self._report_bug(getattr(effect, "ref", None))

    def _report_bug(self, ref: int | None) -> None:
        logger.exception("session %s: an unexpected error", self.session_id)
        self.send(frames.error(TocsinError("internal"), ref))

    def _reply(self, reply: Reply) -> None:
        self.send(reply.frame)

    def _ping(self, _: Ping) -> None:
        self._outlet.ping()

    def _close(self, close: Close) -> None:
        self._outlet.close(close)

    def _pong(self, ping: frames.Ping) -> None:
        self.send(frames.pong(ping.ref))

    def _greet(self, hello: frames.Hello) -> None:
        if self._principal is None or hello.token is not None:
            try:
                self._principal = self._around.auth.check_token(hello.token)
            except Refused:
                self._close(frames.UNAUTHORIZED)
                return
        if hello.producer is not None:
            try:
                check_name(hello.producer, "producer")
            except Refused as error:
                self.send(frames.error(error))
                self._close(frames.PROTOCOL)
                return
            self._producer = producer_id(self._principal, hello.producer)
        welcome = frames.welcome(
            session=self.session_id,
            broker=self._around.broker_name,
            heartbeat_s=self._around.timing.heartbeat_s,
        )
        self.send(welcome)

    # --- Publishing -----------------------------------------------------------------------------

    def _publish(self, frame: frames.Publish) -> None:
        if frame.sequence is not None and self._producer is None:
            raise Refused("invalid_request", "a sequence needs the name of a producer, in hello")
        late = self._late_publishes
        if late is not None and frame.queue in late:
            late[frame.queue].append(frame)  # behind those that wait: sending order (R7)
            return
        try:
            queue = self._around.broker.metadata.find_queue(self.principal, frame.queue)
        except Refused as error:
            if error.code.name != "queue_not_found":
                raise
            self._publish_late(frame)
        else:
            self._submit(frame, queue)

    def _submit(self, frame: frames.Publish, queue: Queue) -> None:
        self._unanswered += 1
        try:
            self._around.broker.publisher.submit(
                queue,
                frame.messages,
                partial(self._published, frame.ref),
                producer=None if frame.sequence is None else self._producer,
                sequence=frame.sequence,
                resolved=frame.resolved,
            )
        except BaseException:
            self._unanswered -= 1
            raise

    def _published(self, ref: int, answer: Answer) -> None:
        receipts: list[object] = [
            frames.error_fields(outcome)
            if isinstance(outcome, TocsinError)
            else (outcome if outcome[2] else outcome[:2])
            for outcome in answer.outcomes
        ]
        self._answered(
            frames.ok(
                ref, receipts=receipts, id_prefix=answer.id_prefix, durability=answer.durability
            )
        )

    def _answered(self, frame: bytes) -> None:
        self._unanswered -= 1
        if not self._is_closed:
            self.send(frame)
            self._close_when_settled()

    def _publish_late(self, frame: frames.Publish) -> None:
        """The queue is not there: perhaps it may be made. Nothing more is read meanwhile, which
        bounds what waits here to what had already been read (P9)."""
        if self._late_publishes is None:
            self._late_publishes = {}
        self._late_publishes[frame.queue] = [frame]
        if len(self._late_publishes) == 1:
            self._outlet.pause_reading()
        self._start(self._find_and_submit(frame.queue))

    async def _find_and_submit(self, name: str) -> None:
        queue: Queue | None = None
        try:
            waiting = (self._late_publishes or {}).get(name, ())
            messages = [message for frame in waiting for message in frame.messages]
            queue = await self._around.broker.queue_for_publish(self.principal, name, messages)
            failure = TocsinError("internal")
        except TocsinError as error:
            failure = error
        except Exception:
            logger.exception("session %s: queue %r could not be made", self.session_id, name)
            failure = TocsinError("internal")
        if self._late_publishes is None:
            return  # closed meanwhile
        for frame in self._late_publishes.pop(name):
            if queue is None:
                self.send(frames.error(failure, frame.ref))
            else:
                try:
                    self._submit(frame, queue)
                except Exception:
                    self._report_bug(frame.ref)
        if not self._late_publishes:
            self._outlet.resume_reading()

    # --- Subscriptions --------------------------------------------------------------------------

    def _subscribe(self, frame: frames.Subscribe) -> None:
        self._start(self._open(frame))

    async def _open(self, frame: frames.Subscribe) -> None:
        number = frame.subscription
        try:
            answer = await self._subscriptions.open(frame)
        except Exception as error:
            if self._is_closed:
                return
            self._session.refused(number)
            if isinstance(error, TocsinError):
                self.send(frames.error(error, frame.ref))
            else:
                self._report_bug(frame.ref)
            return
        if self._is_closed:
            self._subscriptions.leave(number)
            return
        self._session.opened(number, frame.credit)
        self.send(answer)
        self._subscriptions.grant(number, frame.credit)

    def _unsubscribe(self, frame: frames.Unsubscribe) -> None:
        self._subscriptions.leave(frame.subscription)
        self.send(frames.ok(frame.ref))
        self._close_when_settled()

    def _grant(self, frame: frames.Credit) -> None:
        self._subscriptions.grant(frame.subscription, frame.granted)
        self._session.granted(frame.subscription, frame.granted)

    def _ack(self, frame: frames.Ack) -> None:
        if frame.ref is None:
            self._settled(frame, self._subscriptions.ack(frame, None))
            return
        self._unanswered += 1
        try:
            self._subscriptions.ack(frame, partial(self._confirmed, frame))
        except BaseException:
            self._unanswered -= 1
            raise

    def _confirmed(self, frame: frames.Ack, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        assert answer is not None  # it has a ref
        self._answered(answer)

    def _nack(self, frame: frames.Nack) -> None:
        self._settled(frame, self._subscriptions.nack(frame))

    def _extend(self, frame: frames.Extend) -> None:
        self._settled(frame, self._subscriptions.extend(frame))

    def _settled(self, frame: Settling, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        if answer is not None:
            self.send(answer)
        self._close_when_settled()

    # --- Ends -----------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # The loop keeps only a weak reference to a task.
        if self._tasks is None:
            self._tasks = set()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        assert self._tasks is not None
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "session %s: a task ended in an unexpected error",
                self.session_id,
                exc_info=task.exception(),
            )
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if not self._is_draining or self._is_closed:
            return
        if not (self._unanswered or self._tasks or self._subscriptions.unsettled()):
            self._outlet.close(frames.DRAINING)


def producer_id(principal: Principal, name: str) -> bytes:
    """16 bytes that name a producer: the same after a reconnect, another one for every tenant and
    principal, so that nobody can use up somebody else's sequences (R6)."""
    parts = msgspec.json.encode([principal.tenant, principal.name, name])
    return blake2b(parts, digest_size=16, person=b"tocsin-producer").digest()


_HANDLERS: Final[dict[type, Callable[[Conversation, Any], None]]] = {
    Reply: Conversation._reply,
    Ping: Conversation._ping,
    Close: Conversation._close,
    frames.Hello: Conversation._greet,
    frames.Publish: Conversation._publish,
    frames.Subscribe: Conversation._subscribe,
    frames.Unsubscribe: Conversation._unsubscribe,
    frames.Credit: Conversation._grant,
    frames.Ack: Conversation._ack,
    frames.Nack: Conversation._nack,
    frames.Extend: Conversation._extend,
    frames.Ping: Conversation._pong,
}
