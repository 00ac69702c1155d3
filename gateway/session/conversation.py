"""The conversation: the shell between the session machine and the broker's inside.

Effects of the machine come in, calls to publisher, groups and readers go out, and their outcomes
become answers. It belongs to one transport, its Outlet, and is the Link that consumers and readers
push to. All on the event loop; only what opens a subscription or makes a queue is a task.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final

from gateway.admission import Admission
from gateway.facts_values import SessionDescription, Transport
from gateway.session.link import Broker, Outlet
from gateway.session.parts import Parts
from gateway.session.publishing import producer_id
from gateway.session.session_facts import describe
from gateway.session.standing import Standing
from gateway.session.surroundings import Surroundings
from gateway.session.tasks import Tasks
from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.session import Effect, Ping, Reply, Session, State
from gateway.wire.together import Said, Together, together
from metadata.catalog import Principal, check_name
from push.errors import Refused, TocsinError

logger = logging.getLogger("tocsin.session")


class Conversation:
    """A session's shell. `admission`: None where a credential is still owed in `hello`."""

    __slots__ = (
        "_around", "_is_closed", "_is_draining", "_outlet", "_parts", "_session", "_standing",
        "_tasks", "_unanswered", "account", "broker", "charges", "client", "linger_s",
        "opened_unix_ms", "refusal", "session_id",
    )  # fmt: skip

    def __init__(
        self, around: Surroundings, outlet: Outlet, session_id: str, admission: Admission | None, *,
        now: float,
    ) -> None:  # fmt: skip
        self.session_id = session_id
        self.refusal: Refused | None = None
        """Why it was not welcomed, where a limit was reached."""
        self._around = around
        self.broker: Broker = around.broker  # as Host.broker
        self._outlet = outlet
        self._standing = Standing(around, self, admission, outlet.address)
        self.account, self.charges = self._standing.account, self._standing.charges
        right_ends = now + admission.lasts_s if admission is not None else inf
        self._session = Session(around.timing, now=now, right_ends=right_ends)
        self._parts: Parts = Parts(self, around.broker, self._session, around.turns)
        self._tasks: Tasks | None = None
        self.client: str | None = None
        self.linger_s, self.opened_unix_ms = 0.0, int(around.wall() * 1000)
        self._unanswered = 0  # publishes and confirmed acks whose answer the client awaits
        self._is_draining = self._is_closed = False

    def __repr__(self) -> str:
        return f"<Conversation {self.session_id} {self._session!r}>"

    # --- Link: what consumers and readers use ---------------------------------------------------

    @property
    def admission(self) -> Admission:
        """What it may. Nobody asks before `hello` has been accepted (P11)."""
        admission = self._standing.admission
        assert admission is not None
        return admission

    @property
    def principal(self) -> Principal:
        """Who it is; as `admission`."""
        return self.admission.principal

    @property
    def transport(self) -> Transport | None:
        """As Link.transport."""
        return self._outlet.transport

    @property
    def carrier(self) -> Outlet | None:
        """As Host.carrier of gateway.session.subscribing."""
        return None if self._is_closed else self._outlet

    def send(self, frame: bytes) -> None:
        """As Link.send."""
        self._outlet.send(frame)

    def refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """As Host.refuse of gateway.session.publishing."""
        self.account.refused(error.code.name, queue)
        self.send(frames.error(error, ref))

    @property
    def heard_at(self) -> float:
        """As Host.heard_at."""
        return self._session.heard_at

    def described(self) -> SessionDescription:
        """As Resumable.described."""
        subscriptions, is_draining = self._parts.subscriptions, self._is_draining
        return describe(self, self._outlet, subscriptions, self.heard_at, is_draining)

    @property
    def is_welcome(self) -> bool:
        """Whether its `hello` has been accepted."""
        return not self._is_closed and self._session.state is not State.HELLO

    def writable(self) -> bool:
        """As Link.writable. A draining session is given nothing more (P14)."""
        return not (self._is_draining or self._is_closed) and self._outlet.writable()

    def arrived(self, given_at: float) -> float | None:
        """As Link.arrived."""
        return self._outlet.arrived(given_at)

    @property
    def is_in_transit(self) -> bool:
        """As Link.is_in_transit."""
        return self._outlet.is_in_transit

    def named(self, given_at: float) -> None:
        """As Link.named."""
        self._outlet.named(given_at)

    def emptied(self) -> None:
        """As Link.emptied. Who drains may close (P14), in the next turn of the loop: in this one
        the ack that did it is yet to be answered."""
        if self._is_draining:
            asyncio.get_running_loop().call_soon(self.settled)

    def moved_away(self) -> None:
        """As Link.moved_away; in the next turn of the loop, because groups are asking."""
        asyncio.get_running_loop().call_soon(self._move_away)

    def _move_away(self) -> None:
        if not self._is_closed:
            self._outlet.let_go(frames.REPLACED)
            self._end(moves=True)

    # --- What the transport calls ---------------------------------------------------------------

    def receive(self, *messages: bytes, now: float) -> int:
        """Whole text messages arrived. Returns how many frames they had, but for publishes."""
        session, before = self._session, self._session.others
        self._hear([effect for data in messages for effect in session.receive(data, now=now)])
        return session.others - before

    def pay(self, count: int, *, now: float) -> float:
        """As Pace.pay."""
        given = int if self._is_closed else self._parts.subscriptions.given
        return self.charges.pace.pay(count, given, now=now)

    def receive_binary(self) -> None:
        """A binary message arrived."""
        self._hear(self._session.receive_binary())

    def _hear(self, effects: list[Effect]) -> None:
        self.account.heard(effects)
        self.apply(together(effects))

    def heard(self, *, now: float) -> None:
        """Bytes arrived that are no message, or not yet."""
        self._session.heard(now=now)

    def heard_part(self, *, now: float) -> None:
        """A part of a message arrived, behind `heard`."""
        if self._session.heard_part(now=now):
            self.send(frames.pong(None, self.broker.delivery_log.told()))

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: never."""
        return self._session.next_deadline()

    def expire(self, *, now: float) -> None:
        """Time has passed."""
        effect = self._session.expire(now=now, taken_bytes=self._outlet.taken_bytes)
        if effect is not None:
            self.apply([effect])

    def resume(self) -> None:
        """The transport takes pushes again."""
        if not (self._is_draining or self._is_closed):
            self._parts.subscriptions.pump()

    def drain(self, reconnect_after_s: float) -> None:
        """Tell the client to come back elsewhere, give it nothing more, and close as soon as what
        it has is settled and what it asked is answered (P14)."""
        if self._is_closed or self._is_draining:
            return
        self._is_draining = True
        self._session.drain()
        self.send(frames.drain(reconnect_after_s, "the gateway is going down"))
        self.settled()

    def closed(self) -> None:
        """The session is over: leave everything. Calling it again does nothing."""
        self._end(moves=False)

    def _end(self, *, moves: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._session.closed()
        self._standing.end()
        self._parts.publishing.closed()
        self._parts.returning.forget()
        if self._standing.admission is not None:
            self._around.sessions.discard(self)
        self._parts.subscriptions.leave_all(moves=moves)
        self.account.closed()
        self.charges.end()
        self._let_go()

    def _let_go(self) -> None:
        """Of its parts; see there."""
        if self._is_closed and not self._tasks and hasattr(self, "_parts"):
            del self._parts
            self._tasks = None

    # --- Its right to be here -------------------------------------------------------------------

    def revoked(self) -> None:
        """As Endable.revoked."""
        if not self._is_closed:
            self._outlet.close(frames.REVOKED)
            self.closed()  # also where its socket is lost, and it has not heard so yet

    def _renew(self, frame: frames.Auth) -> None:
        """Another token of the same principal, before the end of the one before (P11)."""
        now = self.heard_at  # when the frame came
        admission = self._standing.renew(frame.token, self._outlet.address, now=now)
        self._session.right_ends = now + admission.lasts_s
        self.send(frames.ok(frame.ref, right_lasts_s=frames.lasting(admission.lasts_s)))
        self._parts.subscriptions.judge()

    # --- Between two transports -----------------------------------------------------------------

    def lost(self) -> None:
        """The transport is gone, and nobody said that this is the end. A session with a place in
        a group keeps it for a while: here, or at the next gateway when this one goes down."""
        keeps = self.is_welcome and self._parts.subscriptions.has_consumers and self.linger_s > 0
        if not keeps or self._is_draining or self._around.sessions.going_down:
            self._end(moves=keeps)
            return
        right_lasts_s = max(0.0, self._session.right_ends - asyncio.get_running_loop().time())
        self._outlet = self._around.sessions.linger(self, min(self.linger_s, right_lasts_s))
        self._suspend()

    def _suspend(self) -> None:
        self.account.disconnected()
        for number in (*self._parts.returning.forget(), *self._parts.subscriptions.suspend()):
            self._session.dropped(number)

    def come_back(
        self, outlet: Outlet, linger_s: float, producer: bytes | None, admission: Admission
    ) -> None:
        """The client is here again, over this transport; where the other one stands still, it is
        the one that nobody listens to any more."""
        self._outlet.let_go(frames.REPLACED)
        self._suspend()
        self._outlet, self.linger_s = outlet, linger_s
        self._parts.publishing.producer = producer or self._parts.publishing.producer
        now = asyncio.get_running_loop().time()
        self._standing.take(admission)
        self._session.came_back(now=now, right_ends=now + admission.lasts_s)
        self.charges.begin(admission, outlet.address, now=now, goes_on=True)
        outlet.adopt(self)
        if self._parts.publishing.is_waiting:
            outlet.pause_reading()
        self._welcome(self._session.subscribed)
        self._parts.subscriptions.judge()
        self._parts.subscriptions.await_held()

    # --- Effects --------------------------------------------------------------------------------

    def apply(self, effects: Sequence[Said]) -> None:
        """As Host.apply of gateway.session.returning."""
        for effect in effects:
            if self._is_closed:
                return
            if self._parts.returning.defers(effect):
                continue
            try:
                _HANDLERS[type(effect)](self, effect)
            except TocsinError as error:
                self.refuse(error, getattr(effect, "ref", None), getattr(effect, "queue", None))
            except Exception:
                self.report_bug(getattr(effect, "ref", None))

    def report_bug(self, ref: int | None) -> None:
        """As Host.report_bug."""
        logger.exception("session %s: an unexpected error", self.session_id)
        self.refuse(TocsinError("internal"), ref)

    def _reply(self, reply: Reply) -> None:
        self.account.refused(reply.code)
        self.send(reply.frame)

    def _greet(self, hello: frames.Hello) -> None:
        now = self._session.heard_at
        if self._standing.admission is None or hello.token is not None:
            try:
                admission = self._standing.enter(hello.token, self._outlet.address, now=now)
            except Refused as error:
                self._turn_away(error)
                return
            self._session.right_ends = now + admission.lasts_s
        if hello.producer is not None:
            try:
                check_name(hello.producer, "producer")
            except Refused as error:
                self.refuse(error, None)
                self._outlet.close(frames.PROTOCOL)
                return
            self._parts.publishing.producer = producer_id(self.principal, hello.producer)
        if hello.session is not None:
            session = self._around.sessions.find(hello.session, self.principal)
            if session is not None:
                self._is_closed = True  # an empty shell: its transport is the session's now
                self._standing.end()
                producer, left_s = self._parts.publishing.producer, self._session.right_ends - now
                admission = self.admission._replace(lasts_s=left_s)
                self.account.moved_to(session.account)
                session.come_back(self._outlet, hello.linger_s, producer, admission)
                self._let_go()
                return
            if hello.linger_s and self._around.sessions.is_free(hello.session, self.principal):
                self.session_id = hello.session  # a gateway before this one gave it
        self.linger_s, self.client = hello.linger_s, hello.client
        if not self._around.sessions.add(self):
            self._outlet.close(frames.OVERLOADED)
            return
        try:
            self.charges.begin(self.admission, self._outlet.address, now=now)
        except Refused as error:
            self._turn_away(error)
            return
        self._welcome(None)

    def _turn_away(self, error: Refused) -> None:
        if error.code.name == "unauthorized":
            self._outlet.close(frames.UNAUTHORIZED)
            return
        self.refusal = error
        self.refuse(error, None)
        self._outlet.close(frames.OVERLOADED)

    def _welcome(self, resumed: list[int] | None) -> None:
        self.account.connected(self._outlet.transport)
        self.send(frames.welcome(
            session=self.session_id, broker=self._around.broker_name,
            heartbeat_s=self._around.timing.heartbeat_s, linger_s=self.linger_s, resumed=resumed,
            right_lasts_s=self._session.right_ends - self._session.heard_at,
            clock_unix_us=self.broker.delivery_log.told(),
        ))  # fmt: skip

    # --- What its parts use ---------------------------------------------------------------------

    def asked(self, count: int) -> None:
        """As Host.asked."""
        self._unanswered += count

    def answered(self, frame: bytes) -> None:
        """As Host.answered."""
        self._unanswered -= 1
        if not self._is_closed:
            self.send(frame)
            self.settled()

    def hold_reading(self, hold: bool) -> None:
        """As Host.hold_reading."""
        if self._is_closed:
            return
        if hold or self._parts.is_waiting:
            self._outlet.pause_reading()
        else:
            self._outlet.resume_reading()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """As Host.start."""
        if self._tasks is None:
            self._tasks = Tasks(self.session_id, self._task_ended)
        self._tasks.start(work)

    def _task_ended(self) -> None:
        self.settled()
        self._let_go()

    def settled(self) -> None:
        """As Host.settled."""
        if not self._is_draining or self._is_closed:
            return
        if not (self._unanswered or self._tasks or self._parts.subscriptions.unsettled()):
            self._outlet.close(frames.DRAINING)


_HANDLERS: Final[dict[type, Callable[[Conversation, Any], None]]] = {
    Reply: Conversation._reply,
    Ping: lambda conversation, _: conversation._outlet.ping(),
    Close: lambda conversation, close: conversation._outlet.close(close),
    frames.Hello: Conversation._greet,
    frames.Publish: lambda conversation, frame: conversation._parts.publishing.publish(frame),
    Together: lambda one, publishes: one._parts.publishing.publish_together(publishes),
    frames.Subscribe: lambda one, frame: one.start(one._parts.subscribing.open(frame)),
    frames.Unsubscribe: lambda conversation, frame: conversation._parts.subscribing.leave(frame),
    frames.Credit: lambda conversation, frame: conversation._parts.subscribing.grant(frame),
    frames.Ack: lambda conversation, frame: conversation._parts.settling.ack(frame),
    frames.Nack: lambda conversation, frame: conversation._parts.settling.nack(frame),
    frames.Extend: lambda conversation, frame: conversation._parts.settling.extend(frame),
    frames.Auth: Conversation._renew,
    frames.Held: lambda conversation, frame: conversation._parts.returning.hold(frame),
    frames.Ping: lambda one, ping: one.send(frames.pong(ping.ref, one.broker.delivery_log.told())),
}
