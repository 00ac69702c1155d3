"""A client's session: the shell between its SessionProtocol and the broker.

The protocol's effects come in. Calls to publisher, groups and readers go out, and their outcomes
become answers. A session has one SessionTransport at a time. It is the SessionPort that consumers
and readers push to. All of it runs on the event loop. Only opening a subscription, making a queue
and finding out what a client still holds are tasks.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, assert_never

import msgspec

from gateway.delivery.consumer import Settlement
from gateway.delivery.ports import DeliveryList
from gateway.deliverylog.log import OriginTracker, PublishOrigin
from gateway.models import Admission, SessionDescription
from gateway.publish.batch import PendingPublish
from gateway.session.credential import SessionCredential, SessionQuota, producer_id
from gateway.session.directory import SessionServices
from gateway.session.subscriptions import (
    ResumeState,
    SettlementFrame,
    Subscriptions,
    settlement_answer,
)
from gateway.session.transport import SessionTransport
from gateway.wire import frames
from gateway.wire.coalesce import CoalescedPublish, Input, coalesce
from gateway.wire.frames import Close, receipt_fields
from gateway.wire.protocol import Refusal, SendPing, SessionProtocol, State
from metadata.catalog import Principal, Queue
from metadata.rights import KeyScope
from push.errors import Refused, TocsinError
from push.places import check_name

logger = logging.getLogger("tocsin.session")


class Session:
    """A client's session. `admission` is None if `hello` still has to bring a credential."""

    __slots__ = (
        "_credential",
        "_delivery_log",
        "_is_closed",
        "_is_draining",
        "_metadata",
        "_new_queues",
        "_origin_tracker",
        "_pending_answers",
        "_producer",
        "_protocol",
        "_publisher",
        "_quota",
        "_resume",
        "_services",
        "_subscriptions",
        "_tasks",
        "_transport",
        "account",
        "client",
        "linger_s",
        "opened_unix_ms",
        "refusal",
        "session_id",
        "transport",
    )

    def __init__(
        self,
        services: SessionServices,
        transport: SessionTransport,
        session_id: str,
        admission: Admission | None,
        *,
        now: float,
    ) -> None:
        broker = services.broker
        self.session_id = session_id
        self.client: str | None = None
        self.linger_s = 0.0
        self.opened_unix_ms = int(services.wall() * 1000)
        self.refusal: Refused | None = None
        """The refusal by a limit, for which it was not welcomed; None: no limit was reached."""
        self._services = services
        self._metadata = broker.metadata
        self._publisher = broker.publisher
        self._delivery_log = broker.delivery_log
        self._carry_by(transport)
        address = transport.address.text or None
        self.account = services.accounting.session(services.has_queue, address, admission)
        self._quota = SessionQuota(services.limiter)
        self._credential = SessionCredential(
            self, admission, services.auth, self.account, self._quota, wall=services.wall
        )
        right_ends = now + admission.lasts_s if admission is not None else inf
        self._protocol = SessionProtocol(services.timing, now=now, right_ends=right_ends)
        self._subscriptions = Subscriptions(broker, self._credential)
        self._resume = ResumeState(self._subscriptions)
        self._new_queues: dict[str, list[frames.Publish]] | None = None
        """Publishes that wait until it is known whether their queue may be made, by queue."""
        self._producer: bytes | None = None
        """The 16 bytes that name the client's producer; None if `hello` named none."""
        self._origin_tracker: OriginTracker | None = None
        """Origins of its publishes; None if it has published nothing that was logged."""
        # The loop keeps only a weak reference to a task.
        self._tasks: set[asyncio.Task[None]] | None = None
        self._pending_answers = 0
        """Number of publishes and confirmed acks whose answer the client awaits."""
        self._is_draining = self._is_closed = False

    def __repr__(self) -> str:
        return f"<Session {self.session_id} {self._protocol!r}>"

    # --- Identity -------------------------------------------------------------------------------

    @property
    def admission(self) -> Admission:
        """The admission of its client. It must not be used before `hello` was accepted (P11)."""
        admission = self._credential.admission
        assert admission is not None
        return admission

    @property
    def principal(self) -> Principal:
        """The principal of its client. It must not be used before `hello` was accepted."""
        return self.admission.principal

    @property
    def is_welcome(self) -> bool:
        """Whether its `hello` has been accepted."""
        return not self._is_closed and self._protocol.state is not State.HELLO

    @property
    def received_at(self) -> float:
        """Time of the last arrival of anything, by the loop's clock."""
        return self._protocol.received_at

    @property
    def carrier(self) -> SessionTransport | None:
        """The transport that carries its frames; None if the session is over."""
        return None if self._is_closed else self._transport

    def describe(self) -> SessionDescription:
        """Describe it for operators."""
        transport = self._transport
        silent_s = asyncio.get_running_loop().time() - self.received_at
        return SessionDescription(
            session=self.session_id,
            client=self.client,
            principal=self.principal.name,
            transport=transport.transport,
            linger_s=self.linger_s,
            linger_until_unix_ms=transport.until_unix_ms,
            draining=self._is_draining,
            opened_unix_ms=self.opened_unix_ms,
            heard_unix_ms=int((time.time() - silent_s) * 1000),
            unsent_bytes=transport.unsent_bytes,
            subscriptions=self._subscriptions.describe(),
        )

    # --- SessionPort, used by consumers and readers ---------------------------------------------

    def send(self, frame: bytes) -> None:
        self._transport.send(frame)

    def writable(self) -> bool:
        """Whether pushes may be sent now. A draining session is given nothing more (P14)."""
        return not (self._is_draining or self._is_closed) and self._transport.writable()

    def lease_start(self, given_at: float) -> float | None:
        return self._transport.lease_start(given_at)

    @property
    def is_in_transit(self) -> bool:
        return self._transport.is_in_transit

    def on_named(self, given_at: float) -> None:
        self._transport.on_named(given_at)

    def on_empty(self) -> None:
        """Close in the next turn of the loop if the session is draining (P14); in this one the last
        ack has yet to be answered."""
        if self._is_draining:
            asyncio.get_running_loop().call_soon(self._close_if_drained)

    def on_moved(self) -> None:
        """End at this gateway in the next turn of the loop, because groups are calling."""
        asyncio.get_running_loop().call_soon(self._move_away)

    def _move_away(self) -> None:
        if not self._is_closed:
            self._transport.detach(frames.REPLACED)
            self._leave(moves=True)

    # --- Calls by the transport -----------------------------------------------------------------

    def receive(self, *messages: bytes, now: float) -> int:
        """Process whole text messages. Returns how many of their frames are no publishes."""
        protocol, before = self._protocol, self._protocol.other_frames
        effects = protocol.receive(*messages, now=now)
        self.account.count_requests(effects)
        self._apply(coalesce(effects) if len(effects) > 1 else effects)
        return protocol.other_frames - before

    def receive_binary(self) -> None:
        """Refuse a binary message, and close."""
        effects = self._protocol.receive_binary()
        self.account.count_requests(effects)
        self._apply(effects)

    def charge_frames(self, count: int, *, now: float) -> float:
        """Charge frames that are no publishes. Returns the seconds to wait before more is read."""
        return self._quota.frame_rate.charge(count, self._subscriptions.given_total, now=now)

    def on_bytes(self, *, now: float) -> None:
        """Note bytes that are no message, or no complete one."""
        self._protocol.on_bytes(now=now)

    def on_part(self, *, now: float) -> None:
        """Note a part of a message, after `on_bytes`, and perhaps send a sign of life."""
        if self._protocol.on_part(now=now):
            self.send(frames.pong(None, self._delivery_log.clock_unix_us()))

    def next_deadline(self) -> float | None:
        """Return when to call `expire`; None for never."""
        return self._protocol.next_deadline()

    def expire(self, *, now: float) -> None:
        """Do what time alone made due."""
        effect = self._protocol.expire(now=now, taken_bytes=self._transport.taken_bytes)
        if effect is not None:
            self._apply([effect])

    def on_writable(self) -> None:
        """Let subscriptions push again, because the transport takes more."""
        if not (self._is_draining or self._is_closed):
            self._subscriptions.pump()

    # --- Inputs ---------------------------------------------------------------------------------

    def _apply(self, inputs: Sequence[Input]) -> None:
        """Carry out inputs. The most frequent ones come first, because each case costs time."""
        for one in inputs:
            if self._is_closed:
                return
            if self._resume.deferred and self._resume.defer_input(one):
                self._pause_reading()  # which bounds what waits to what was read already (P9)
                continue
            try:
                match one:
                    case frames.Publish():
                        self._publish(one)
                    case CoalescedPublish():
                        self._publish_coalesced(one)
                    case frames.Ack():
                        self._settle(one, partial(self._subscriptions.ack, one))
                    case frames.Credit():
                        self._subscriptions.grant(one.subscription, one.granted)
                        self._protocol.on_grant(one.subscription, one.granted)
                    case frames.Extend():
                        self._answer_settlement(one, self._subscriptions.extend(one))
                    case frames.Nack():
                        self._nack(one)
                    case frames.Ping():
                        self.send(frames.pong(one.ref, self._delivery_log.clock_unix_us()))
                    case frames.Subscribe():
                        self._start(self._subscribe(one))
                    case frames.Unsubscribe():
                        self._unsubscribe(one)
                    case frames.Hello():
                        self._open(one)
                    case frames.Held():
                        self._apply_held(one)
                    case frames.Auth():
                        self._renew(one)
                    case Refusal():
                        self.account.count_refusal(one.code)
                        self.send(one.frame)
                    case SendPing():
                        self._transport.ping()
                    case Close():
                        self._transport.close(one)
                    case _:
                        assert_never(one)
            except TocsinError as error:
                self._refuse(error, getattr(one, "ref", None), getattr(one, "queue", None))
            except Exception:
                self._report_bug(getattr(one, "ref", None))

    # --- Answers --------------------------------------------------------------------------------

    def _refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """Answer with an error. `queue` is the name of the queue that it is about."""
        self.account.count_refusal(error.code.name, queue)
        self.send(frames.error(error, ref))

    def _report_bug(self, ref: int | None) -> None:
        """Log the exception that is being handled, and answer `internal` (P12)."""
        logger.exception("session %s: an unexpected error", self.session_id)
        self._refuse(TocsinError("internal"), ref)

    def _complete(self, frame: bytes) -> None:
        self._pending_answers -= 1
        if not self._is_closed:
            self._transport.send(frame)
            if self._is_draining:
                self._close_if_drained()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task of the session."""
        if self._tasks is None:
            self._tasks = set()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = "session %s: a task ended in an unexpected error"
            logger.error(text, self.session_id, exc_info=error)
        self._close_if_drained()

    def _pause_reading(self) -> None:
        if not self._is_closed:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Read on, unless other frames wait for something."""
        if not (self._is_closed or self._new_queues or self._resume.is_waiting):
            self._transport.resume_reading()

    # --- Hello ----------------------------------------------------------------------------------

    def _open(self, hello: frames.Hello) -> None:
        now = self.received_at
        if self._credential.admission is None or hello.token is not None:
            try:
                admission = self._credential.enter(hello.token, self._transport.address, now=now)
            except Refused as error:
                self._reject(error)
                return
            self._protocol.right_ends = now + admission.lasts_s
        if hello.producer is not None:
            try:
                check_name(hello.producer, "producer")
            except Refused as error:
                self._refuse(error, None)
                self._transport.close(frames.PROTOCOL)
                return
            self._producer = producer_id(self.principal, hello.producer)
        if hello.session is not None and self._reattach_transport(hello, hello.session):
            return
        self.linger_s = hello.linger_s
        self.client = hello.client
        if not self._transport.has_room:
            self._transport.close(frames.OVERLOADED)
            return
        self._services.sessions.add(self)
        try:
            self._quota.begin(self.admission, self._transport.address, now=now)
        except Refused as error:
            self._reject(error)
            return
        self._welcome(None)

    def _reattach_transport(self, hello: frames.Hello, name: str) -> bool:
        """Hand the transport to the session that the client comes back to (True; this one is over).
        If it is not here, this one takes its name, if that is free and it lingers."""
        sessions = self._services.sessions
        session = sessions.find(name, self.principal)
        if session is None:
            if hello.linger_s and sessions.is_free(name, self.principal):
                self.session_id = name  # a gateway before this one gave it
            return False
        self._is_closed = True
        self._credential.end()
        left_s = self._protocol.right_ends - self.received_at
        admission = self.admission._replace(lasts_s=left_s)
        self.account.move_to(session.account)
        session.reattach(self._transport, hello.linger_s, self._producer, admission)
        return True

    def _reject(self, error: Refused) -> None:
        if error.code.name == "unauthorized":
            self._transport.close(frames.UNAUTHORIZED)
            return
        self.refusal = error
        self._refuse(error, None)
        self._transport.close(frames.OVERLOADED)

    def _welcome(self, resumed: list[int] | None) -> None:
        self.account.connect(self._transport.transport)
        self.send(
            frames.welcome(
                session=self.session_id,
                broker=self._services.broker_name,
                heartbeat_s=self._services.timing.heartbeat_s,
                linger_s=self.linger_s,
                resumed=resumed,
                right_lasts_s=self._protocol.right_ends - self.received_at,
                clock_unix_us=self._delivery_log.clock_unix_us(),
            )
        )

    def _renew(self, frame: frames.Auth) -> None:
        """Take another token of the same principal, before the old one ends (P11)."""
        now = self.received_at  # when the frame came
        admission = self._credential.renew(frame.token, self._transport.address, now=now)
        self._protocol.right_ends = now + admission.lasts_s
        self.send(frames.ok(frame.ref, right_lasts_s=frames.lasting(admission.lasts_s)))
        self._subscriptions.check_rights()

    # --- Publishing -----------------------------------------------------------------------------

    def _publish(self, frame: frames.Publish) -> None:
        """Submit a publish behind those before it (R7)."""
        if frame.sequence is not None and self._producer is None:
            raise Refused("invalid_request", "a sequence needs a producer: name one in hello")
        if self._new_queues is not None and frame.queue in self._new_queues:
            self._new_queues[frame.queue].append(frame)  # behind those that wait (R7)
            return
        admission = self.admission
        keys = admission.rights.check("publish", frame.queue)  # before anything is looked up
        try:
            queue = self._metadata.find_queue(admission.principal, frame.queue)
        except Refused as error:
            if error.code.name != "queue_not_found":
                raise
            self._await_queue(frame)
        else:
            self._submit(frame, queue, keys)

    def _publish_coalesced(self, publishes: CoalescedPublish) -> None:
        """Submit several publishes as one, or one after another if something has to be judged frame
        by frame. Raises nothing, because each is answered."""
        try:
            if not self._submit_coalesced(publishes):
                self._apply(publishes.frames)
        except Exception:
            first, *others = publishes.frames
            self._report_bug(first.ref)
            for frame in others:
                self._refuse(TocsinError("internal"), frame.ref)

    def _submit_coalesced(self, publishes: CoalescedPublish) -> bool:
        """Submit these publishes as one. Returns False if that cannot be, and nothing happened."""
        whole = publishes.whole
        if whole.sequence is not None and self._producer is None:
            return False
        if self._new_queues is not None and whole.queue in self._new_queues:
            return False
        admission = self.admission
        try:
            keys = admission.rights.check("publish", whole.queue)
            queue = self._metadata.find_queue(admission.principal, whole.queue)
        except TocsinError:
            return False
        # One of several clusters may be away, and publishes to the others do not wait for it.
        if len(queue.clusters) > 1:
            return False
        release = self._quota.charge_all(
            queue, whole.messages, len(publishes.frames), now=self.received_at
        )
        if release is None:
            return False
        self._submit_charged(whole, queue, keys, publishes.frames, release)
        return True

    def _submit(self, frame: frames.Publish, queue: Queue, keys: KeyScope) -> None:
        release = self._quota.charge(frame, queue, now=self._protocol.received_at)
        if release is not None:
            self._submit_charged(frame, queue, keys, (frame,), release)
            return
        # Messages that the rate admits are published. The rest is refused in its place (R5).
        release, most, refused = self._quota.charge_part(frame, queue, now=self.received_at)
        first = msgspec.structs.replace(frame, messages=frame.messages[:most])
        beyond = (refused, len(frame.messages) - most)
        self._submit_charged(first, queue, keys, (frame,), release, beyond=beyond)

    def _submit_charged(
        self,
        merged: frames.Publish,
        queue: Queue,
        keys: KeyScope,
        to_answer: Sequence[frames.Publish],
        release: Callable[[], None],
        *,
        beyond: tuple[Refused, int] | None = None,
    ) -> None:
        """Publish `merged`, then answer each frame. `beyond` refuses a number of messages behind
        it."""
        self._pending_answers += len(to_answer)
        try:
            publish = PendingPublish(
                queue,
                merged.messages,
                partial(self._on_published, to_answer, merged.queue, release, beyond),
                producer=None if merged.sequence is None else self._producer,
                sequence=merged.sequence,
                resolved=merged.resolved,
                keys=keys,
                origin=self._origin(merged, queue),
            )
            self._publisher.submit(publish)
        except BaseException:
            release()
            self._pending_answers -= len(to_answer)
            raise

    def _origin(self, frame: frames.Publish, queue: Queue) -> PublishOrigin | None:
        log = self._delivery_log
        if not log.is_on:
            return None
        if self._origin_tracker is None:
            self._origin_tracker = OriginTracker()
        return self._origin_tracker.origin(log, self, queue, frame)

    def _on_published(
        self,
        to_answer: Sequence[frames.Publish],
        queue: str,
        release: Callable[[], None],
        beyond: tuple[Refused, int] | None,
        answer: PendingPublish,
    ) -> None:
        release()
        id_prefix, counter = answer.id_prefix, self.account.counter(queue)
        answer.count_in(counter)
        receipts: list[object] = [
            outcome if isinstance(outcome, tuple) else receipt_fields(outcome, id_prefix)
            for outcome in answer.outcomes
        ]
        if beyond is not None:
            refused, count = beyond
            receipts += [frames.error_fields(refused)] * count
            for _ in range(count):
                counter.count_refusal(refused.code.name)
        end, place = frames.receipts_end(id_prefix, answer.durability), 0
        for frame in to_answer:
            count = len(frame.messages)
            self._complete(frames.receipts(frame.ref, receipts[place : place + count], end))
            place += count

    def _await_queue(self, frame: frames.Publish) -> None:
        """Put a publish aside, because its queue does not exist and may be created by it. Nothing
        more is read meanwhile, so that only what had been read already waits (P9)."""
        if self._new_queues is None:
            self._new_queues = {}
        self._new_queues[frame.queue] = [frame]
        if len(self._new_queues) == 1:
            self._pause_reading()
        self._start(self._make_queue(frame.queue))

    async def _make_queue(self, name: str) -> None:
        queue: Queue | None = None
        failure = TocsinError("internal")
        try:
            waiting = (self._new_queues or {}).get(name, ())
            admission = self.admission
            keys = admission.rights.check("publish", name)
            messages = [one for frame in waiting for one in frame.messages if keys.allow(one.key)]
            broker = self._services.broker
            queue = await broker.queue_for_publish(admission.principal, name, messages)
        except TocsinError as error:
            failure = error
        except Exception:
            logger.exception("session %s: queue %r could not be made", self.session_id, name)
        if self._new_queues is None:
            return  # closed meanwhile
        for frame in self._new_queues.pop(name):
            if queue is None:
                self._refuse(failure, frame.ref)
            else:
                try:
                    self._submit(frame, queue, self.admission.rights.check("publish", name))
                except TocsinError as error:
                    self._refuse(error, frame.ref, name)
                except Exception:
                    self._report_bug(frame.ref)
        if not self._new_queues:
            self._resume_reading()

    # --- Subscribing ----------------------------------------------------------------------------

    async def _subscribe(self, frame: frames.Subscribe) -> None:
        """Open a subscription; answer when it is open, or with an error."""
        number, transport = frame.subscription, self._transport
        await self._services.arrivals.wait()
        if self._is_gone(transport):
            self._protocol.on_end(number)
            return
        try:
            answer = await self._subscriptions.open(self, frame)
        except Exception as error:
            if self._is_gone(transport):
                self._protocol.on_end(number)
            elif isinstance(error, TocsinError):
                self._protocol.on_refusal(number)
                self._refuse(error, frame.ref, frame.queue)
            else:
                self._protocol.on_refusal(number)
                self._report_bug(frame.ref)
            return
        self._protocol.on_open(number, frame.credit)
        self.send(answer)
        self._subscriptions.grant(number, frame.credit)

    def _is_gone(self, transport: SessionTransport) -> bool:
        """Whether the answer would reach nobody. A client that comes back subscribes again."""
        return self._is_closed or self._transport is not transport

    def _unsubscribe(self, frame: frames.Unsubscribe) -> None:
        """End a subscription. The answer comes when all acks and nacks of it are durable, and
        started deliveries have been counted."""
        self._pending_answers += 1
        done = partial(self._complete, frames.ok(frame.ref))
        self._subscriptions.leave(frame.subscription, done=done)
        self._resume.drop(frame.subscription)
        self._close_if_drained()

    # --- Settling -------------------------------------------------------------------------------

    def _nack(self, frame: frames.Nack) -> None:
        if frame.reject and frame.delay_s is not None:
            raise Refused("invalid_request", "delay_s: a rejected message is not tried again")
        self._settle(frame, partial(self._subscriptions.nack, frame))

    def _settle(
        self,
        frame: frames.Ack | frames.Nack,
        act: Callable[[Callable[[Settlement], None] | None], Settlement],
    ) -> None:
        """Carry out an ack or nack. With a `ref` it is answered when it is durable."""
        if frame.ref is None:
            self._answer_settlement(frame, act(None))
            return
        self._pending_answers += 1
        try:
            act(partial(self._on_settled, frame))
        except BaseException:
            self._pending_answers -= 1
            raise

    def _on_settled(self, frame: frames.Ack | frames.Nack, settled: Settlement) -> None:
        answer = settlement_answer(frame, settled)
        assert answer is not None  # it has a ref
        self._count_refusals(settled)
        self._complete(answer)

    def _answer_settlement(self, frame: SettlementFrame, settled: Settlement) -> None:
        answer = settlement_answer(frame, settled)
        if answer is not None:
            self._count_refusals(settled)
            self.send(answer)
        if self._is_draining:
            self._close_if_drained()

    def _count_refusals(self, settled: Settlement) -> None:
        if not settled.durable:
            self.account.count_refusal("unknown")
        elif settled.not_delivered:
            self.account.count_refusal("not_delivered")

    # --- Deliveries that a returned client holds ------------------------------------------------

    def _apply_held(self, frame: frames.Held) -> None:
        """Take what the client holds of a subscription, which then goes on (R22)."""
        if (deliveries := self._resume.add(frame)) is None:
            self.send(frames.ok(frame.ref))
            return
        revoked = self._subscriptions.hold(frame, deliveries)
        self._resume.drop(frame.subscription)
        if isinstance(revoked, list):
            self.send(frames.ok(frame.ref, revoked=revoked))
            return
        waiting = self._resume.begin_deferring(frame.subscription)
        self._start(self._adopt(frame, revoked, waiting))

    async def _adopt(
        self, frame: frames.Held, revoked: Awaitable[DeliveryList], waiting: list[Input]
    ) -> None:
        """Answer a `held` with deliveries of an earlier epoch, for which partitions are owned and
        keys are read from the log. The client's further frames for the subscription wait in order,
        so that acks of what it holds find their deliveries."""
        answer = b""
        try:
            answer = frames.ok(frame.ref, revoked=await revoked)
        except TocsinError as error:
            self.account.count_refusal(error.code.name)
            answer = frames.error(error, frame.ref)
        except Exception:
            self._report_bug(frame.ref)
        if not self._resume.end_deferring(frame.subscription, waiting):
            return  # the transport was lost meanwhile
        if answer:
            self.send(answer)
        self._resume_reading()
        self._apply(waiting)

    # --- Between two transports -----------------------------------------------------------------

    def on_transport_lost(self) -> None:
        """Linger or end, because the transport is gone and the client did not end the session. A
        session with a place in a group keeps it for a while. It keeps it here, or at another
        gateway if this one goes down."""
        can_linger = self.is_welcome and self._subscriptions.has_consumers and self.linger_s > 0
        if not can_linger or self._is_draining or self._services.sessions.is_draining:
            self._leave(moves=can_linger)
            return
        right_lasts_s = max(0.0, self._protocol.right_ends - asyncio.get_running_loop().time())
        self._carry_by(self._services.sessions.linger(self, min(self.linger_s, right_lasts_s)))
        self._suspend()

    def _carry_by(self, transport: SessionTransport) -> None:
        self._transport = transport
        self.transport = transport.transport
        """The kind of transport that carries it; None if none does."""

    def _suspend(self) -> None:
        self.account.disconnect()
        for number in (*self._resume.clear(), *self._subscriptions.suspend()):
            self._protocol.on_end(number)

    def reattach(
        self,
        transport: SessionTransport,
        linger_s: float,
        producer: bytes | None,
        admission: Admission,
    ) -> None:
        """Go on over this transport, with the rights that the client has shown now. An old
        transport that is still there is detached, because its client reads it no more."""
        self._transport.detach(frames.REPLACED)
        self._suspend()
        self._carry_by(transport)
        self.linger_s = linger_s
        self._producer = producer or self._producer
        now = asyncio.get_running_loop().time()
        self._credential.take(admission)
        self._protocol.reattach(now=now, right_ends=now + admission.lasts_s)
        self._quota.begin(admission, transport.address, now=now, goes_on=True)
        transport.adopt(self)
        if self._new_queues:
            transport.pause_reading()
        self._welcome(self._protocol.open_subscriptions)
        self._subscriptions.check_rights()
        self._subscriptions.await_held()

    # --- The end --------------------------------------------------------------------------------

    # enforces: P14
    def drain(self, reconnect_after_s: float) -> None:
        """Ask the client to come back elsewhere, and give it nothing more. Close as soon as its
        deliveries are settled and its requests are answered (P14)."""
        if self._is_closed or self._is_draining:
            return
        self._is_draining = True
        self._protocol.drain()
        self.send(frames.drain(reconnect_after_s, "the gateway is going down"))
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if not self._is_draining or self._is_closed:
            return
        if not (self._pending_answers or self._tasks or self._subscriptions.unsettled()):
            self._transport.close(frames.DRAINING)

    def revoked(self) -> None:
        if not self._is_closed:
            self._transport.close(frames.REVOKED)
            self.end()  # also if its socket is lost, and that is not noted yet

    def end(self) -> None:
        """End the session and leave everything. Nothing happens the second time."""
        self._leave(moves=False)

    def _leave(self, *, moves: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._protocol.end()
        self._credential.end()
        self._new_queues = None
        self._resume.clear()
        if self._credential.admission is not None:
            self._services.sessions.discard(self)
        self._subscriptions.leave_all(self.session_id, moves=moves)
        self.account.close()
        self._quota.end()
