"""The session: the shell between the session machine and the broker's inside.

Effects of the machine come in, calls to publisher, groups and readers go out, and their outcomes
become answers. It belongs to one transport, its Outlet, and is the Link that consumers and readers
push to. All on the event loop; only what opens a subscription or makes a queue is a task.

By what a session is here: its admission, which another one of the same principal may follow.

What a conversation is made of beside its machine: one part for each kind of frame.

The tasks of one session.

A session, as it is described to operators.

What all conversations of a gateway share.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from gateway.accounting.books import AccountingWriter, SessionAccounting
from gateway.auth.auth import Authenticator
from gateway.auth.live import Revocable
from gateway.delivery.ports import SessionPort
from gateway.limits.limiter import Limiter
from gateway.models import Admission, SessionDescription, Transport
from gateway.session import publishing, subscriptions
from gateway.session import subscriptions as returning
from gateway.session import subscriptions as settling
from gateway.session import subscriptions as subscribing
from gateway.session.directory import DetachedTransport, SessionDirectory
from gateway.session.publishing import Charges, producer_id
from gateway.session.subscriptions import Subscriptions
from gateway.session.transport import Broker, Outlet
from gateway.wire import frames
from gateway.wire.coalesce import Said, Together, together
from gateway.wire.frames import Close
from gateway.wire.protocol import Effect, Refusal, SendPing, SessionProtocol, State, Timing
from metadata.catalog import Principal, check_name
from metadata.port import has_queue
from push.errors import Refused, TocsinError
from runtime.addresses import ClientAddress
from runtime.loop.fairness import ArrivalGate


class Host(
    publishing.PublishingHost,
    returning.ReturningHost,
    settling.SettlingHost,
    subscribing.SubscribingHost,
    subscriptions.Admitted,
    Protocol,
):
    """The session, as its parts see it."""


class Parts:
    """Each knows its host. A host that has ended lets go of them: nothing is left then for the
    garbage collector, which would come to a thousand ended sessions all at once."""

    __slots__ = ("publishing", "returning", "settling", "subscribing", "subscriptions")

    def __init__(
        self, host: Host, broker: Broker, session: SessionProtocol, arrivals: ArrivalGate
    ) -> None:
        self.publishing = publishing.Publishing(host)
        self.subscriptions = subscriptions.Subscriptions(broker, host)
        self.returning = returning.Returning(host, self.subscriptions)
        self.settling = settling.SettlingFrames(host, self.subscriptions)
        self.subscribing = subscribing.Subscribing(
            host, session, self.subscriptions, self.returning, arrivals
        )

    @property
    def is_waiting(self) -> bool:
        """Whether one of them has frames that wait for others: nothing more is to be read."""
        return self.publishing.is_waiting or self.returning.is_waiting


logger = logging.getLogger("tocsin.session")


class Tasks:
    """Runs what takes a while; true as long as something does. `ended` is called after each."""

    __slots__ = ("_ended", "_running", "_session_id")

    def __init__(self, session_id: str, ended: Callable[[], None]) -> None:
        self._session_id = session_id
        self._ended = ended
        # The loop keeps only a weak reference to a task.
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it. What it raises unexpectedly is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "session %s: a task ended in an unexpected error",
                self._session_id,
                exc_info=task.exception(),
            )
        self._ended()


class Described(SessionPort, Protocol):
    """A session, as this module sees it."""

    @property
    def opened_unix_ms(self) -> int: ...


def describe(
    session: Described,
    outlet: Outlet,
    subscriptions: Subscriptions,
    heard_at: float,
    draining: bool,
) -> SessionDescription:
    """What is known of it here. `heard_at`: by the loop's clock."""
    silent_s = asyncio.get_running_loop().time() - heard_at
    return SessionDescription(
        session=session.session_id,
        client=session.client,
        principal=session.principal.name,
        transport=outlet.transport,
        linger_s=session.linger_s,
        linger_until_unix_ms=outlet.until_unix_ms
        if isinstance(outlet, DetachedTransport)
        else None,
        draining=draining,
        opened_unix_ms=session.opened_unix_ms,
        heard_unix_ms=int((time.time() - silent_s) * 1000),
        unsent_bytes=outlet.unsent_bytes,
        subscriptions=subscriptions.described(),
    )


@dataclass(frozen=True, slots=True)
class SessionServices:
    """See the module."""

    broker: Broker
    auth: Authenticator
    broker_name: str = "tocsin"
    timing: Timing = field(default_factory=Timing)
    wall: Callable[[], float] = time.time
    """Unix seconds."""
    sessions: SessionDirectory = field(default_factory=SessionDirectory)
    books: AccountingWriter = field(default_factory=AccountingWriter)
    limiter: Limiter = field(default_factory=Limiter)
    arrivals: ArrivalGate = field(default_factory=ArrivalGate)

    def has_queue(self, principal: Principal, name: str) -> bool:
        """Whether there is a queue of this name, to this principal."""
        return has_queue(self.broker.metadata, principal, name)


class SessionCredential:
    """Of one session; while it has an admission, the end of that one's credential ends it."""

    __slots__ = ("_services", "_session", "account", "admission", "charges")

    def __init__(
        self,
        services: SessionServices,
        session: Revocable | None,
        admission: Admission | None,
        address: ClientAddress,
    ) -> None:
        """`session`: what the end of the credential ends. `admission` None: a credential is owed.
        `address`: where its client is."""
        self._services = services
        self._session = session
        self.account = SessionAccounting(
            services.books, services.has_queue, address.text or None, admission
        )
        self.charges = Charges(services.limiter)
        self.admission: Admission | None = None
        if admission is not None:
            self._take(admission)

    def enter(self, token: str | None, address: ClientAddress, *, now: float) -> Admission:
        """What a token or ticket gives at `now` (monotonic seconds), by which the session is here
        from then on.

        Raises:
            Refused: unauthorized; rate_limited: too many from there were wrong.
        """
        try:
            found = self._judge(token, address, now)
        except Refused as error:
            self.account.not_admitted(error)
            raise
        self.take(found)
        return found

    def renew(self, token: str, address: ClientAddress, *, now: float) -> Admission:
        """As `enter`, for a session that is open.

        Raises:
            Refused: unauthorized, rate_limited; forbidden: it is another principal's.
        """
        try:
            found = self._judge(token, address, now)
        except Refused as error:
            if error.code.name == "unauthorized":
                self.account.not_admitted(error)
            raise
        if self.admission is None or found.principal != self.admission.principal:
            raise Refused("forbidden", "a session stays its principal's: open another one")
        self.take(found)
        self.charges.begin(found, address, now=now, goes_on=True)
        return found

    def _judge(self, token: str | None, address: ClientAddress, now: float) -> Admission:
        with self.charges.guessing(address, now=now):
            return self._services.auth.check_hello(token, now=now, wall=self._services.wall())

    def take(self, admission: Admission) -> None:
        """From now on it is here by this."""
        self._take(admission)
        self.account.admitted(admission)

    def _take(self, admission: Admission) -> None:
        self._leave()
        self.admission = admission
        if self._session is not None:
            self._services.auth.track(admission.credential, self._session)

    def end(self) -> None:
        """The session has ended, or its transport is another one's now. Again: nothing happens."""
        self._leave()
        self._session = None

    def _leave(self) -> None:
        if self.admission is not None and self._session is not None:
            self._services.auth.untrack(self.admission.credential, self._session)


class Session:
    """A session's shell. `admission`: None where a credential is still owed in `hello`."""

    __slots__ = (
        "_credential",
        "_is_closed",
        "_is_draining",
        "_outlet",
        "_parts",
        "_protocol",
        "_services",
        "_tasks",
        "_unanswered",
        "account",
        "broker",
        "charges",
        "client",
        "linger_s",
        "opened_unix_ms",
        "refusal",
        "session_id",
    )  # fmt: skip

    def __init__(
        self,
        services: SessionServices,
        outlet: Outlet,
        session_id: str,
        admission: Admission | None,
        *,
        now: float,
    ) -> None:
        self.session_id = session_id
        self.refusal: Refused | None = None
        """Why it was not welcomed, where a limit was reached."""
        self._services = services
        self.broker: Broker = services.broker  # as Host.broker
        self._outlet = outlet
        self._credential = SessionCredential(services, self, admission, outlet.address)
        self.account, self.charges = self._credential.account, self._credential.charges
        right_ends = now + admission.lasts_s if admission is not None else inf
        self._protocol = SessionProtocol(services.timing, now=now, right_ends=right_ends)
        self._parts: Parts = Parts(self, services.broker, self._protocol, services.arrivals)
        self._tasks: Tasks | None = None
        self.client: str | None = None
        self.linger_s, self.opened_unix_ms = 0.0, int(services.wall() * 1000)
        self._unanswered = 0  # publishes and confirmed acks whose answer the client awaits
        self._is_draining = self._is_closed = False

    def __repr__(self) -> str:
        return f"<Session {self.session_id} {self._protocol!r}>"

    # --- Link: what consumers and readers use ---------------------------------------------------

    @property
    def admission(self) -> Admission:
        """What it may. Nobody asks before `hello` has been accepted (P11)."""
        admission = self._credential.admission
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
        """As Host.carrier of gateway.session.subscriptions."""
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
        return self._protocol.heard_at

    def described(self) -> SessionDescription:
        """As Resumable.described."""
        subscriptions, is_draining = self._parts.subscriptions, self._is_draining
        return describe(self, self._outlet, subscriptions, self.heard_at, is_draining)

    @property
    def is_welcome(self) -> bool:
        """Whether its `hello` has been accepted."""
        return not self._is_closed and self._protocol.state is not State.HELLO

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
        session, before = self._protocol, self._protocol.others
        self._hear([effect for data in messages for effect in session.receive(data, now=now)])
        return session.others - before

    def pay(self, count: int, *, now: float) -> float:
        """As FrameRate.charge."""
        given = int if self._is_closed else self._parts.subscriptions.given
        return self.charges.frame_rate.charge(count, given, now=now)

    def receive_binary(self) -> None:
        """A binary message arrived."""
        self._hear(self._protocol.receive_binary())

    def _hear(self, effects: list[Effect]) -> None:
        self.account.heard(effects)
        self.apply(together(effects))

    def heard(self, *, now: float) -> None:
        """Bytes arrived that are no message, or not yet."""
        self._protocol.heard(now=now)

    def heard_part(self, *, now: float) -> None:
        """A part of a message arrived, behind `heard`."""
        if self._protocol.heard_part(now=now):
            self.send(frames.pong(None, self.broker.delivery_log.told()))

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: never."""
        return self._protocol.next_deadline()

    def expire(self, *, now: float) -> None:
        """Time has passed."""
        effect = self._protocol.expire(now=now, taken_bytes=self._outlet.taken_bytes)
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
        self._protocol.drain()
        self.send(frames.drain(reconnect_after_s, "the gateway is going down"))
        self.settled()

    def closed(self) -> None:
        """The session is over: leave everything. Calling it again does nothing."""
        self._end(moves=False)

    def _end(self, *, moves: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._protocol.closed()
        self._credential.end()
        self._parts.publishing.closed()
        self._parts.returning.forget()
        if self._credential.admission is not None:
            self._services.sessions.discard(self)
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
        """As Revocable.revoked."""
        if not self._is_closed:
            self._outlet.close(frames.REVOKED)
            self.closed()  # also where its socket is lost, and it has not heard so yet

    def _renew(self, frame: frames.Auth) -> None:
        """Another token of the same principal, before the end of the one before (P11)."""
        now = self.heard_at  # when the frame came
        admission = self._credential.renew(frame.token, self._outlet.address, now=now)
        self._protocol.right_ends = now + admission.lasts_s
        self.send(frames.ok(frame.ref, right_lasts_s=frames.lasting(admission.lasts_s)))
        self._parts.subscriptions.judge()

    # --- Between two transports -----------------------------------------------------------------

    def lost(self) -> None:
        """The transport is gone, and nobody said that this is the end. A session with a place in
        a group keeps it for a while: here, or at the next gateway when this one goes down."""
        keeps = self.is_welcome and self._parts.subscriptions.has_consumers and self.linger_s > 0
        if not keeps or self._is_draining or self._services.sessions.going_down:
            self._end(moves=keeps)
            return
        right_lasts_s = max(0.0, self._protocol.right_ends - asyncio.get_running_loop().time())
        self._outlet = self._services.sessions.linger(self, min(self.linger_s, right_lasts_s))
        self._suspend()

    def _suspend(self) -> None:
        self.account.disconnected()
        for number in (*self._parts.returning.forget(), *self._parts.subscriptions.suspend()):
            self._protocol.dropped(number)

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
        self._credential.take(admission)
        self._protocol.came_back(now=now, right_ends=now + admission.lasts_s)
        self.charges.begin(admission, outlet.address, now=now, goes_on=True)
        outlet.adopt(self)
        if self._parts.publishing.is_waiting:
            outlet.pause_reading()
        self._welcome(self._protocol.subscribed)
        self._parts.subscriptions.judge()
        self._parts.subscriptions.await_held()

    # --- Effects --------------------------------------------------------------------------------

    def apply(self, effects: Sequence[Said]) -> None:
        """As Host.apply of gateway.session.subscriptions."""
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

    def _reply(self, reply: Refusal) -> None:
        self.account.refused(reply.code)
        self.send(reply.frame)

    def _greet(self, hello: frames.Hello) -> None:
        now = self._protocol.heard_at
        if self._credential.admission is None or hello.token is not None:
            try:
                admission = self._credential.enter(hello.token, self._outlet.address, now=now)
            except Refused as error:
                self._turn_away(error)
                return
            self._protocol.right_ends = now + admission.lasts_s
        if hello.producer is not None:
            try:
                check_name(hello.producer, "producer")
            except Refused as error:
                self.refuse(error, None)
                self._outlet.close(frames.PROTOCOL)
                return
            self._parts.publishing.producer = producer_id(self.principal, hello.producer)
        if hello.session is not None:
            session = self._services.sessions.find(hello.session, self.principal)
            if session is not None:
                self._is_closed = True  # an empty shell: its transport is the session's now
                self._credential.end()
                producer, left_s = self._parts.publishing.producer, self._protocol.right_ends - now
                admission = self.admission._replace(lasts_s=left_s)
                self.account.moved_to(session.account)
                session.come_back(self._outlet, hello.linger_s, producer, admission)
                self._let_go()
                return
            if hello.linger_s and self._services.sessions.is_free(hello.session, self.principal):
                self.session_id = hello.session  # a gateway before this one gave it
        self.linger_s, self.client = hello.linger_s, hello.client
        if not self._services.sessions.add(self):
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
            session=self.session_id, broker=self._services.broker_name,
            heartbeat_s=self._services.timing.heartbeat_s, linger_s=self.linger_s, resumed=resumed,
            right_lasts_s=self._protocol.right_ends - self._protocol.heard_at,
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


_HANDLERS: Final[dict[type, Callable[[Session, Any], None]]] = {
    Refusal: Session._reply,
    SendPing: lambda session, _: session._outlet.ping(),
    Close: lambda session, close: session._outlet.close(close),
    frames.Hello: Session._greet,
    frames.Publish: lambda session, frame: session._parts.publishing.publish(frame),
    Together: lambda one, publishes: one._parts.publishing.publish_together(publishes),
    frames.Subscribe: lambda one, frame: one.start(one._parts.subscribing.open(frame)),
    frames.Unsubscribe: lambda session, frame: session._parts.subscribing.leave(frame),
    frames.Credit: lambda session, frame: session._parts.subscribing.grant(frame),
    frames.Ack: lambda session, frame: session._parts.settling.ack(frame),
    frames.Nack: lambda session, frame: session._parts.settling.nack(frame),
    frames.Extend: lambda session, frame: session._parts.settling.extend(frame),
    frames.Auth: Session._renew,
    frames.Held: lambda session, frame: session._parts.returning.hold(frame),
    frames.Ping: lambda one, ping: one.send(frames.pong(ping.ref, one.broker.delivery_log.told())),
}
