"""The subscriptions of one session: its consumers and readers by number."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.admission import Admission
from gateway.catalog.catching_up import find_queue
from gateway.delivery.delivery_ports import DeliveryList, Link, StartFrom
from gateway.facts_values import SubscriptionDescription
from gateway.session.link import Broker, Consumer, Reader, Settled
from gateway.wire import frames
from metadata.catalog import Group, GroupSettings, Queue, check_name
from metadata.rights import Rights
from push.errors import Refused, Unknown

logger = logging.getLogger("tocsin.session")
Settling = frames.Ack | frames.Nack | frames.Extend


class Admitted(Link, Protocol):
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
