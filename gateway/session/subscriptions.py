"""The subscriptions of one session: its consumers and readers by number.

A client that came back says what it holds, one subscription after the other (R22).

Where it held that under an epoch before, it takes a moment to find out what of it is still its own:
the partitions are being owned, and the log is read for keys. What the client says of this
subscription meanwhile waits, in order: acks of what it holds come to those who know it.

A session's subscriptions, as its frames ask for them: opened, given credit, left; answered.

A session's acks, nacks and extends: carried out by its consumers, answered.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gateway.accounting.books import SessionAccounting
from gateway.catalog.lookups import find_queue
from gateway.delivery.ports import DeliveryList, SessionPort, StartFrom
from gateway.models import Admission, SubscriptionDescription
from gateway.session.transport import Broker, Consumer, Outlet, Reader, Settled
from gateway.wire import frames
from gateway.wire.coalesce import Said
from gateway.wire.frames import check_deliveries
from gateway.wire.protocol import SessionProtocol
from metadata.catalog import Group, GroupSettings, Queue, check_name
from metadata.rights import Rights
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.signs import begins_anew
from runtime.loop.fairness import ArrivalGate

logger = logging.getLogger("tocsin.session")
Settling = frames.Ack | frames.Nack | frames.Extend


class Admitted(SessionPort, Protocol):
    """A session of which is known what it may."""

    @property
    def admission(self) -> Admission: ...


@dataclass(frozen=True, slots=True)
class Needed:
    """What a subscription needs for as long as it lasts (P11)."""

    queue: str
    is_reader: bool
    keys: tuple[str, ...] | None

    @classmethod
    def by(cls, frame: frames.Subscribe) -> "Needed":
        """What this one asks for."""
        return cls(frame.queue, frame.group is None, tuple(frame.keys) if frame.keys else None)

    def check(self, rights: Rights) -> None:
        """Raises Refused(forbidden), whether or not there is such a queue."""
        if self.is_reader:
            rights.check_keys("read", self.queue, self.keys)
        else:
            rights.check("consume", self.queue)


class Subscriptions:
    """Consumers and readers of `link`. The session machine has judged every number before."""

    __slots__ = ("_broker", "_consumers", "_link", "_needed", "_opening", "_readers")

    def __init__(self, broker: Broker, link: Admitted) -> None:
        self._broker = broker
        self._link = link
        self._needed: dict[int, Needed] = {}
        self._opening: dict[int, Consumer | None] = {}
        """What is being opened; the consumers among it that take their places."""
        self._consumers: dict[int, Consumer] = {}
        self._readers: dict[int, Reader] = {}

    # --- Opening --------------------------------------------------------------------------------

    async def open(self, frame: frames.Subscribe) -> bytes:
        """Make what a `subscribe` asks for, without credit, so that no push comes before its
        answer; returns the answer.

        Raises:
            TocsinError: it was not made, and why.
        """
        self._opening[frame.subscription] = None
        try:
            return await self._open(frame)
        finally:
            self._opening.pop(frame.subscription, None)

    async def _open(self, frame: frames.Subscribe) -> bytes:
        needed = Needed.by(frame)
        needed.check(self._link.admission.rights)  # before anything is looked up
        queue = await find_queue(self._broker.metadata, self._link.principal, frame.queue)
        if frame.group is None:
            answer = await self._open_reader(frame, queue)
        else:
            answer = await self._open_consumer(frame, frame.group, queue)
        try:
            needed.check(self._link.admission.rights)  # others may count by now
        except Refused:
            self.leave(frame.subscription)
            raise
        self._needed[frame.subscription] = needed
        return answer

    async def _open_consumer(self, frame: frames.Subscribe, name: str, queue: Queue) -> bytes:
        number = frame.subscription
        group = await self._group(name, queue, _start_from(frame.start), frame.deletes_max)
        self._check_wanted(number)
        consumer = self._broker.groups.consumer(
            self._link, number, queue, group, 0, held=frame.held
        )
        self._opening[number] = consumer
        await consumer.join()
        self._check_wanted(number)
        self._consumers[number] = consumer
        lease_s = group.settings.lease_s
        return frames.ok(
            frame.ref,
            queue_id=queue.queue_id,
            semantics=group.settings.semantics,
            lease_s=queue.settings.lease_s if lease_s is None else lease_s,
        )

    def _check_wanted(self, number: int) -> None:
        """Raises Refused: its answer would reach nobody any more."""
        if number not in self._opening:
            raise Refused("not_subscribed", "the session has ended, or its transport")

    async def _group(
        self, name: str, queue: Queue, start: StartFrom | None, deletes_max: int
    ) -> Group:
        """The group, made by its first subscribe (R11); `start` and `deletes_max` count only
        then."""
        principal = self._link.principal
        try:
            return self._broker.metadata.find_group(principal, queue, name)
        except Refused as error:
            if error.code.name != "group_not_found":
                raise
        check_name(name, "group")
        group, _ = await self._broker.put_group(
            principal, queue, name, GroupSettings(), start, deletes_max=deletes_max
        )
        self._link.account.note("group.create", queue=queue.name, group=name)
        return group

    async def _open_reader(self, frame: frames.Subscribe, queue: Queue) -> bytes:
        start = _start_from(frame.start)
        reader = await self._broker.readers.open(
            self._link,
            frame.subscription,
            queue,
            keys=frame.keys,
            start="latest" if start is None and frame.position is None else start,
            position=frame.position,
            credit=0,
        )
        if frame.subscription not in self._opening:
            reader.close()
        self._check_wanted(frame.subscription)
        self._readers[frame.subscription] = reader
        return frames.ok(frame.ref, queue_id=queue.queue_id, positions=reader.verdicts)

    # --- Living ---------------------------------------------------------------------------------

    def grant(self, subscription: int, granted_total: int) -> None:
        """Credit, absolute (R25)."""
        if subscription in self._consumers:
            self._consumers[subscription].grant(granted_total)
        else:
            self._readers[subscription].grant(granted_total)

    def pump(self) -> None:
        """The link takes pushes again."""
        for consumer in list(self._consumers.values()):
            consumer.pump()
        for reader in list(self._readers.values()):
            reader.pump()

    def unsettled(self) -> int:
        """Deliveries that were given and have neither been settled nor returned."""
        return sum(consumer.unsettled() for consumer in self._consumers.values())

    def given(self) -> int:
        """Messages that those which stand were given so far."""
        every: tuple[Consumer | Reader, ...] = (*self._consumers.values(), *self._readers.values())
        return sum(one.given_total for one in every)

    def ack(self, frame: frames.Ack, confirmed: Callable[[Settled], None] | None) -> Settled:
        """Settle; `confirmed` is called when that is durable."""
        return self._consumer(frame).ack(frame.deliveries, frame.started, confirmed)

    def nack(self, frame: frames.Nack, confirmed: Callable[[Settled], None] | None) -> Settled:
        """Return to the group; `confirmed` is called when that is durable."""
        return self._consumer(frame).nack(
            frame.deliveries, frame.delay_s, frame.reason,
            reject=frame.reject, confirmed=confirmed,
        )  # fmt: skip

    def extend(self, frame: frames.Extend) -> Settled:
        """Prolong leases, mark what has started."""
        return self._consumer(frame).extend(frame.deliveries, frame.started, frame.lease_s)

    def _consumer(self, frame: Settling | frames.Held) -> Consumer:
        consumer = self._consumers.get(frame.subscription)
        if consumer is None:
            raise Refused(
                "invalid_request", f"subscription {frame.subscription} is a reader: nothing settles"
            )
        return consumer

    def described(self) -> list[SubscriptionDescription]:
        """For looking at, by number."""
        every: dict[int, Consumer | Reader] = {**self._consumers, **self._readers}
        return [every[number].subscription_facts() for number in sorted(every)]

    # --- Rights ---------------------------------------------------------------------------------

    def judge(self) -> None:
        """The session's rights are others now: what they do not cover ends, as it does where its
        queue is deleted. The client hears of it, and its number is free when it unsubscribes."""
        for number, needed in list(self._needed.items()):
            try:
                needed.check(self._link.admission.rights)
            except Refused as why:
                del self._needed[number]
                self._end(number, why)

    def _end(self, subscription: int, why: Refused) -> None:
        consumer = self._consumers.get(subscription)
        if consumer is not None:
            consumer.end(why)
        else:
            self._readers[subscription].end(why)

    # --- Between two transports -----------------------------------------------------------------

    @property
    def has_consumers(self) -> bool:
        """Whether the session has a place in a group to keep."""
        return bool(self._consumers)

    def give_up_opening(self) -> None:
        """What is being opened is wanted no more: its answer would reach nobody. Who has not taken
        its place yet never does."""
        opening, self._opening = self._opening, {}
        for consumer in opening.values():
            if consumer is not None:
                consumer.leave()

    def suspend(self) -> list[int]:
        """The transport is gone: consumers keep what they have and are given nothing; readers,
        which begin anew wherever the client says, end. Returns the numbers of these."""
        self.give_up_opening()
        for consumer in self._consumers.values():
            consumer.suspend()
        readers = list(self._readers)
        for number in readers:
            self.leave(number)
        return readers

    def await_held(self, *subscriptions: int) -> None:
        """The client is there again, and has to say what it holds; of these, or of all."""
        for number in subscriptions or self._consumers:
            if number in self._consumers:
                self._consumers[number].await_held()

    def held(
        self, frame: frames.Held, deliveries: DeliveryList
    ) -> DeliveryList | Awaitable[DeliveryList]:
        """The client says what it holds, in this frame and those before; see Consumer.hold."""
        return self._consumer(frame).hold(frame.received, deliveries)

    # --- Leaving --------------------------------------------------------------------------------

    def leave(
        self, subscription: int, *, moves: bool = False, done: Callable[[], None] | None = None
    ) -> None:
        """End one; what is unsettled returns to its group. For `moves` and `done` see
        Consumer.leave."""
        self._needed.pop(subscription, None)
        consumer = self._consumers.pop(subscription, None)
        if consumer is not None:
            consumer.leave(moves=moves, done=done)
            return
        self._readers.pop(subscription).close()
        if done is not None:
            done()

    def leave_all(self, *, moves: bool = False) -> None:
        """End all of them. Raises nothing: where one cannot leave, the others must all the same,
        or their deliveries wait for a dead session."""
        self.give_up_opening()
        for subscription in (*self._consumers, *self._readers):
            try:
                self.leave(subscription, moves=moves)
            except Exception:
                logger.exception("session %s cannot leave properly", self._link.session_id)


def settling_answer(frame: Settling, settled: Settled) -> bytes | None:
    """One answer for one frame. Without a `ref` only what is wrong with it is said: None."""
    if not settled.durable:
        return frames.error(
            Unknown("a new owner came in between: what comes again is not settled"), frame.ref
        )
    if settled.not_delivered:
        return frames.error(
            Refused("not_delivered"),
            frame.ref,
            subscription=frame.subscription,
            deliveries=settled.not_delivered,
            settled=settled.settled,
            stale=settled.stale,
        )
    if frame.ref is None:
        return None
    return frames.ok(frame.ref, settled=settled.settled, stale=settled.stale)


def _start_from(start: str | frames.StartAt | None) -> StartFrom | None:
    if isinstance(start, frames.StartAt):
        return start.unix_ms
    return "earliest" if start == "earliest" else "latest" if start == "latest" else None


class ReturningHost(Protocol):
    """The conversation that goes on."""

    @property
    def account(self) -> SessionAccounting: ...

    def send(self, frame: bytes) -> None: ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task of the session."""

    def hold_reading(self, hold: bool) -> None:
        """Read nothing more, or go on."""

    def apply(self, effects: Sequence[Said]) -> None:
        """What the client said, in order."""

    def report_bug(self, ref: int | None) -> None:
        """Inside an `except`."""


class Returning:
    """See the module."""

    __slots__ = ("_counted", "_host", "_named", "_parts", "_subscriptions", "_waiting")

    def __init__(self, host: ReturningHost, subscriptions: Subscriptions) -> None:
        self._host = host
        self._subscriptions = subscriptions
        self._parts: dict[int, DeliveryList] = {}
        """Per subscription, what was listed in frames that others follow."""
        self._named: dict[int, int] = {}
        """And how many ranges that is."""
        self._counted: dict[int, int] = {}
        """And how many of these frames named deliveries."""
        self._waiting: dict[int, list[Said]] = {}
        """Per subscription of which it is being found out, what was said meanwhile."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing more is to be read."""
        return any(self._waiting.values())

    def forget(self) -> list[int]:
        """The transport is gone, and with it what was said and not yet heard. But for what the
        session has judged already: who unsubscribed has left. Returns the subscriptions that were
        to be opened anew then; they are not."""
        waited = [effect for waiting in self._waiting.values() for effect in waiting]
        self._parts.clear()
        self._named.clear()
        self._counted.clear()
        self._waiting.clear()
        for effect in waited:
            if isinstance(effect, frames.Unsubscribe):
                self._subscriptions.leave(effect.subscription)
        return [effect.subscription for effect in waited if isinstance(effect, frames.Subscribe)]

    def left(self, subscription: int) -> None:
        """It has ended: what was listed for it means nothing to the next one of its number."""
        self._parts.pop(subscription, None)
        self._named.pop(subscription, None)
        self._counted.pop(subscription, None)

    def defers(self, effect: Said) -> bool:
        """Whether this waits, because it is about such a subscription. Nothing more is read
        meanwhile, which bounds what waits to what had already been read (P9)."""
        waiting = self._waiting and self._waiting.get(getattr(effect, "subscription", -1))
        if not isinstance(waiting, list):
            return False
        waiting.append(effect)
        self._host.hold_reading(True)
        return True

    def hold(self, frame: frames.Held) -> None:
        """What the client holds of a subscription; then that goes on. Raises Refused; nothing has
        changed then. All lists that are not complete yet share one bound (P9)."""
        check_deliveries(frame.deliveries)
        number = frame.subscription
        more = sum((len(one) - 3) // 2 for one in frame.deliveries)
        if sum(self._named.values()) + more > limits.NAMED_AS_HELD_MAX:
            raise Refused("invalid_request", "more deliveries than a client ever has to name")
        if frame.more:
            self._parts.setdefault(number, []).extend(frame.deliveries)
            self._named[number] = self._named.get(number, 0) + more
            parts = self._counted.get(number, 0)
            if begins_anew(more, parts):
                self._subscriptions.await_held(number)
                self._counted[number] = parts + 1
            self._host.send(frames.ok(frame.ref))
            return
        revoked = self._subscriptions.held(frame, [*self._parts.get(number, ()), *frame.deliveries])
        self.left(number)
        if isinstance(revoked, list):
            self._host.send(frames.ok(frame.ref, revoked=revoked))
        else:
            waiting = self._waiting[number] = []
            self._host.start(self._find_out(frame, revoked, waiting))

    async def _find_out(
        self, frame: frames.Held, revoked: Awaitable[DeliveryList], waiting: list[Said]
    ) -> None:
        host, answer = self._host, b""
        try:
            answer = frames.ok(frame.ref, revoked=await revoked)
        except TocsinError as error:
            host.account.refused(error.code.name)
            answer = frames.error(error, frame.ref)
        except Exception:
            host.report_bug(frame.ref)
        if self._waiting.get(frame.subscription) is not waiting:
            return  # the transport was lost meanwhile
        del self._waiting[frame.subscription]
        if answer:
            host.send(answer)
        host.hold_reading(False)
        host.apply(waiting)


class SubscribingHost(Protocol):
    """The conversation that subscribes."""

    @property
    def carrier(self) -> Outlet | None:
        """What carries its frames; None: it is over."""

    def send(self, frame: bytes) -> None: ...

    def refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """Answer with an error."""

    def report_bug(self, ref: int | None) -> None:
        """From within an exception that nobody expected: log it, and answer `internal`."""

    def asked(self, count: int) -> None:
        """So many more answers are owed to the client."""

    def answered(self, frame: bytes) -> None:
        """One that is owed."""

    def settled(self) -> None:
        """Something was settled or returned: who drains may be done."""


class Subscribing:
    """See the module. `session` knows what is open, `returning` what is not found out yet;
    `arrivals`: one opens at a time."""

    __slots__ = ("_arrivals", "_host", "_returning", "_session", "_subscriptions")

    def __init__(
        self,
        host: SubscribingHost,
        session: SessionProtocol,
        subscriptions: Subscriptions,
        returning: Returning,
        arrivals: ArrivalGate,
    ) -> None:
        self._host = host
        self._session = session
        self._subscriptions = subscriptions
        self._returning = returning
        self._arrivals = arrivals

    async def open(self, frame: frames.Subscribe) -> None:
        """Answered when it is open, or with an error."""
        number, carrier = frame.subscription, self._host.carrier
        await self._arrivals.wait()
        if self._is_gone(carrier):
            self._session.dropped(number)
            return
        try:
            answer = await self._subscriptions.open(frame)
        except Exception as error:
            if self._is_gone(carrier):
                self._session.dropped(number)
            elif isinstance(error, TocsinError):
                self._session.refused(number)
                self._host.refuse(error, frame.ref, frame.queue)
            else:
                self._session.refused(number)
                self._host.report_bug(frame.ref)
            return
        self._session.opened(number, frame.credit)
        self._host.send(answer)
        self._subscriptions.grant(number, frame.credit)

    def _is_gone(self, carrier: Outlet | None) -> bool:
        """Whether the answer would reach nobody: a client that comes back subscribes again."""
        return self._host.carrier is None or self._host.carrier is not carrier

    def leave(self, frame: frames.Unsubscribe) -> None:
        """Its deliveries return to the group. Answered when all that was said of them is durable,
        and what had started has been counted."""
        self._host.asked(1)
        done = partial(self._host.answered, frames.ok(frame.ref))
        self._subscriptions.leave(frame.subscription, done=done)
        self._returning.left(frame.subscription)
        self._host.settled()

    def grant(self, frame: frames.Credit) -> None:
        """More messages may come."""
        self._subscriptions.grant(frame.subscription, frame.granted)
        self._session.granted(frame.subscription, frame.granted)


class SettlingHost(Protocol):
    """The conversation that settles."""

    @property
    def account(self) -> SessionAccounting: ...

    def send(self, frame: bytes) -> None: ...

    def asked(self, count: int) -> None:
        """So many more answers (or, negative, fewer) are owed to the client."""

    def answered(self, frame: bytes) -> None:
        """One that is owed."""

    def settled(self) -> None:
        """Something was settled or returned: who drains may be done."""


class SettlingFrames:
    """See the module. Each raises TocsinError: nothing was settled."""

    __slots__ = ("_host", "_subscriptions")

    def __init__(self, host: SettlingHost, subscriptions: Subscriptions) -> None:
        self._host = host
        self._subscriptions = subscriptions

    def ack(self, frame: frames.Ack) -> None:
        """With a `ref` it is answered when it is durable."""
        self._settle(frame, partial(self._subscriptions.ack, frame))

    def nack(self, frame: frames.Nack) -> None:
        """Return to the group; with a `ref` it is answered when that is durable."""
        if frame.reject and frame.delay_s is not None:
            raise Refused("invalid_request", "delay_s: what is rejected is not tried again")
        self._settle(frame, partial(self._subscriptions.nack, frame))

    def _settle(
        self, frame: frames.Ack | frames.Nack,
        act: Callable[[Callable[[Settled], None] | None], Settled],
    ) -> None:  # fmt: skip
        if frame.ref is None:
            self._answer(frame, act(None))
            return
        self._host.asked(1)
        try:
            act(partial(self._confirmed, frame))
        except BaseException:
            self._host.asked(-1)
            raise

    def _confirmed(self, frame: frames.Ack | frames.Nack, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        assert answer is not None  # it has a ref
        self._count(settled)
        self._host.answered(answer)

    def extend(self, frame: frames.Extend) -> None:
        """Prolong leases, mark what has started."""
        self._answer(frame, self._subscriptions.extend(frame))

    def _answer(self, frame: Settling, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        if answer is not None:
            self._count(settled)
            self._host.send(answer)
        self._host.settled()

    def _count(self, settled: Settled) -> None:
        if not settled.durable:
            self._host.account.refused("unknown")
        elif settled.not_delivered:
            self._host.account.refused("not_delivered")
