"""The subscriptions of one session: its consumers and readers, by number.

Each is opened by a `subscribe`, given credit, settled, and left. When the session comes back over
another transport, its client says for each consumer what it holds (R22).
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.broker import Broker
from gateway.catalog.lookups import find_queue
from gateway.delivery.consumer import Consumer, Settlement
from gateway.delivery.ports import DeliveryList, SessionPort, StartFrom
from gateway.delivery.readers import Reader
from gateway.models import SubscriptionDescription
from gateway.session.credential import SessionCredential
from gateway.wire import frames
from gateway.wire.coalesce import Input
from gateway.wire.frames import check_deliveries
from metadata.catalog import Group, GroupSettings, Queue
from metadata.rights import Rights
from push import limits
from push.errors import Refused, Unknown
from push.places import check_name
from push.subscription import restarts_timeout

logger = logging.getLogger("tocsin.session")
SettlementFrame = frames.Ack | frames.Nack | frames.Extend


@dataclass(frozen=True, slots=True)
class SubscriptionRight:
    """The right that a subscription needs while it lasts (P11)."""

    queue: str
    is_reader: bool
    keys: tuple[str, ...] | None

    @classmethod
    def of(cls, frame: frames.Subscribe) -> "SubscriptionRight":
        """Return the right that this `subscribe` needs."""
        return cls(frame.queue, frame.group is None, tuple(frame.keys) if frame.keys else None)

    # enforces: P11
    def check(self, rights: Rights) -> None:
        """Check the right. Raises Refused(forbidden), whether or not there is such a queue."""
        if self.is_reader:
            rights.check_keys("read", self.queue, self.keys)
        else:
            rights.check("consume", self.queue)


class Subscriptions:
    """The consumers and readers of one session, whose SessionProtocol has judged every number
    before. The session is handed in, and not kept. So an ended one leaves no circle of references,
    and the garbage collector never meets a thousand of them at once."""

    __slots__ = ("_broker", "_consumers", "_credential", "_opening", "_readers", "_required_rights")

    def __init__(self, broker: Broker, credential: SessionCredential) -> None:
        self._broker = broker
        self._credential = credential
        self._required_rights: dict[int, SubscriptionRight] = {}
        self._opening: dict[int, Consumer | None] = {}
        """Number of each subscription that is being opened → its consumer, which is joining the
        group; None: not made yet, or a reader."""
        self._consumers: dict[int, Consumer] = {}
        self._readers: dict[int, Reader] = {}

    # --- Opening --------------------------------------------------------------------------------

    async def open(self, session: SessionPort, frame: frames.Subscribe) -> bytes:
        """Open the subscription of a `subscribe`, without credit, so that no push comes before its
        answer. Returns the answer.

        Raises:
            TocsinError: it was not opened.
        """
        self._opening[frame.subscription] = None
        try:
            return await self._open(session, frame)
        finally:
            self._opening.pop(frame.subscription, None)

    async def _open(self, session: SessionPort, frame: frames.Subscribe) -> bytes:
        needed = SubscriptionRight.of(frame)
        needed.check(self._credential.rights)  # before anything is looked up
        queue = await find_queue(self._broker.metadata, session.principal, frame.queue)
        if frame.group is None:
            answer = await self._open_reader(session, frame, queue)
        else:
            answer = await self._open_consumer(session, frame, frame.group, queue)
        try:
            needed.check(self._credential.rights)  # others may count by now
        except Refused:
            self.leave(frame.subscription)
            raise
        self._required_rights[frame.subscription] = needed
        return answer

    async def _open_consumer(
        self, session: SessionPort, frame: frames.Subscribe, name: str, queue: Queue
    ) -> bytes:
        number = frame.subscription
        group = await self._find_or_make_group(session, frame, name, queue)
        self._check_wanted(number)
        consumer = self._broker.groups.consumer(session, number, queue, group, 0, held=frame.held)
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
        """Raise Refused if the opening was canceled, so that its answer would reach nobody."""
        if number not in self._opening:
            raise Refused("not_subscribed", "the session has ended, or its transport")

    async def _find_or_make_group(
        self, session: SessionPort, frame: frames.Subscribe, name: str, queue: Queue
    ) -> Group:
        """Find the group, or make it if this is its first subscribe (R11). Only then `start` and
        `deletes_max` count."""
        principal = session.principal
        try:
            return self._broker.metadata.find_group(principal, queue, name)
        except Refused as error:
            if error.code.name != "group_not_found":
                raise
        check_name(name, "group")
        group, _ = await self._broker.put_group(
            principal,
            queue,
            name,
            GroupSettings(),
            _start_from(frame.start),
            deletes_max=frame.deletes_max,
        )
        session.account.note("group.create", queue=queue.name, group=name)
        return group

    async def _open_reader(
        self, session: SessionPort, frame: frames.Subscribe, queue: Queue
    ) -> bytes:
        start = _start_from(frame.start)
        reader = await self._broker.readers.open(
            session,
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
        """Grant credit, as the total since the subscription began (R25)."""
        if subscription in self._consumers:
            self._consumers[subscription].grant(granted_total)
        else:
            self._readers[subscription].grant(granted_total)

    def pump(self) -> None:
        """Let all subscriptions push again, because the transport takes pushes."""
        for consumer in list(self._consumers.values()):
            consumer.pump()
        for reader in list(self._readers.values()):
            reader.pump()

    def unsettled(self) -> int:
        """Return the number of deliveries of all consumers that are in flight."""
        return sum(consumer.unsettled() for consumer in self._consumers.values())

    def given_total(self) -> int:
        """Return how many messages the open subscriptions were given so far."""
        every: tuple[Consumer | Reader, ...] = (*self._consumers.values(), *self._readers.values())
        return sum(one.given_total for one in every)

    def ack(self, frame: frames.Ack, confirmed: Callable[[Settlement], None] | None) -> Settlement:
        """Settle deliveries, and mark those that have started. `confirmed` is called when that is
        durable, or will never be known here; None: no answer is needed."""
        return self._consumer(frame).ack(frame.deliveries, frame.started, confirmed)

    def nack(
        self, frame: frames.Nack, confirmed: Callable[[Settlement], None] | None
    ) -> Settlement:
        """Return deliveries to the group. `confirmed` is called when that is durable, or will never
        be known here; None: no answer is needed."""
        return self._consumer(frame).nack(
            frame.deliveries,
            frame.delay_s,
            frame.reason,
            reject=frame.reject,
            confirmed=confirmed,
        )

    def extend(self, frame: frames.Extend) -> Settlement:
        """Prolong leases, and mark deliveries whose handlers have started."""
        return self._consumer(frame).extend(frame.deliveries, frame.started, frame.lease_s)

    def _consumer(self, frame: SettlementFrame | frames.Held) -> Consumer:
        consumer = self._consumers.get(frame.subscription)
        if consumer is None:
            raise Refused(
                "invalid_request",
                f"subscription {frame.subscription} is a reader, which settles nothing",
            )
        return consumer

    def describe(self) -> list[SubscriptionDescription]:
        """Describe the open subscriptions for operators, in the order of their numbers."""
        every: dict[int, Consumer | Reader] = {**self._consumers, **self._readers}
        return [every[number].subscription_facts() for number in sorted(every)]

    # --- Rights ---------------------------------------------------------------------------------

    def check_rights(self) -> None:
        """End the subscriptions that the session's new rights do not cover, as if their queue were
        deleted. The client is notified. A number is free again when the client unsubscribes."""
        for number, needed in list(self._required_rights.items()):
            try:
                needed.check(self._credential.rights)
            except Refused as why:
                del self._required_rights[number]
                self._revoke(number, why)

    def _revoke(self, subscription: int, why: Refused) -> None:
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

    def cancel_opening(self) -> None:
        """Cancel the openings under way, because their answers would reach nobody. A consumer that
        has not taken its place yet never does."""
        opening, self._opening = self._opening, {}
        for consumer in opening.values():
            if consumer is not None:
                consumer.leave()

    def suspend(self) -> list[int]:
        """Suspend all subscriptions, because the transport is gone. Consumers keep what they have
        and are given nothing. Readers end, because the client says anew where they start. Returns
        the numbers of the readers."""
        self.cancel_opening()
        for consumer in self._consumers.values():
            consumer.suspend()
        readers = list(self._readers)
        for number in readers:
            self.leave(number)
        return readers

    def await_held(self, *subscriptions: int) -> None:
        """Give the returned client HELD_TIMEOUT_S to say what its consumers hold, of these
        subscriptions or of all."""
        for number in subscriptions or self._consumers:
            if number in self._consumers:
                self._consumers[number].await_held()

    def hold(
        self, frame: frames.Held, deliveries: DeliveryList
    ) -> DeliveryList | Awaitable[DeliveryList]:
        """Hand on what the client holds, by this frame and earlier ones (Consumer.hold)."""
        return self._consumer(frame).hold(frame.received, deliveries)

    # --- Leaving --------------------------------------------------------------------------------

    def leave(
        self, subscription: int, *, moves: bool = False, done: Callable[[], None] | None = None
    ) -> None:
        """End a subscription. Its unsettled messages return to the group. `moves` and `done` are
        those of Consumer.leave."""
        self._required_rights.pop(subscription, None)
        consumer = self._consumers.pop(subscription, None)
        if consumer is not None:
            consumer.leave(moves=moves, done=done)
            return
        self._readers.pop(subscription).close()
        if done is not None:
            done()

    def leave_all(self, session_id: str, *, moves: bool = False) -> None:
        """End all subscriptions. Raises nothing, because the others must leave even if one cannot,
        or their deliveries would wait for a dead session."""
        self.cancel_opening()
        for subscription in (*self._consumers, *self._readers):
            try:
                self.leave(subscription, moves=moves)
            except Exception:
                logger.exception("session %s cannot leave properly", session_id)


def settlement_answer(frame: SettlementFrame, settled: Settlement) -> bytes | None:
    """Encode the one answer to an ack, nack or extend. None: none is sent, because the frame has no
    `ref` and nothing is wrong with it."""
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


@dataclass(slots=True)
class _HeldList:
    deliveries: DeliveryList
    range_count: int = 0
    named_frames: int = 0
    """Number of frames that restarted the consumer's timeout, because they named deliveries."""


class ResumeState:
    """State of a client's return: the deliveries that it holds, by subscription (R22).

    A list comes in several `held` frames. All incomplete lists share one bound (P9). If the client
    held its deliveries under an earlier epoch, finding out which of them are still its own takes a
    moment. Its further frames for that subscription are deferred meanwhile."""

    __slots__ = ("_lists", "_subscriptions", "deferred")

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._lists: dict[int, _HeldList] = {}
        self.deferred: dict[int, list[Input]] = {}
        """Number of each subscription whose `held` is being judged → its deferred frames, in the
        order in which they came."""

    def add(self, frame: frames.Held) -> DeliveryList | None:
        """Take one `held` frame. Returns the whole list when it is complete, None when others
        follow.

        Raises:
            Refused: too many deliveries, or no delivery list; then nothing has changed.
        """
        check_deliveries(frame.deliveries)
        number = frame.subscription
        more = sum((len(one) - 3) // 2 for one in frame.deliveries)
        if sum(one.range_count for one in self._lists.values()) + more > limits.NAMED_AS_HELD_MAX:
            raise Refused("invalid_request", "more deliveries than a client ever has to name")
        found = self._lists.get(number)
        if not frame.more:
            return [*(found.deliveries if found is not None else ()), *frame.deliveries]
        if found is None:
            found = self._lists[number] = _HeldList([])
        found.deliveries.extend(frame.deliveries)
        found.range_count += more
        if restarts_timeout(more, found.named_frames):
            self._subscriptions.await_held(number)
            found.named_frames += 1
        return None

    def drop(self, subscription: int) -> None:
        """Forget the list of a subscription, because it was carried out, or the subscription has
        ended. It means nothing to the next subscription of this number."""
        self._lists.pop(subscription, None)

    @property
    def is_waiting(self) -> bool:
        """Whether a frame is deferred, so that nothing more must be read from the client."""
        return any(self.deferred.values())

    def begin_deferring(self, subscription: int) -> list[Input]:
        """Defer further frames of a subscription from now on. Returns the list that they go to."""
        waiting = self.deferred[subscription] = []
        return waiting

    def defer_input(self, one: Input) -> bool:
        """Defer an input if it is about a subscription whose frames are deferred. Returns whether
        it was deferred."""
        waiting = self.deferred.get(getattr(one, "subscription", -1))
        if waiting is None:
            return False
        waiting.append(one)
        return True

    def end_deferring(self, subscription: int, waiting: list[Input]) -> bool:
        """End the deferring of a subscription. Returns whether `waiting` was still its list; if
        not, nothing is done."""
        if self.deferred.get(subscription) is not waiting:
            return False
        del self.deferred[subscription]
        return True

    def clear(self) -> list[int]:
        """Forget the deferred frames, because the transport is gone. Unsubscribes are carried out,
        because the protocol has judged them already. Returns the subscriptions whose deferred
        `subscribe` is dropped."""
        waited = [one for waiting in self.deferred.values() for one in waiting]
        self._lists.clear()
        self.deferred.clear()
        for one in waited:
            if isinstance(one, frames.Unsubscribe):
                self._subscriptions.leave(one.subscription)
        return [one.subscription for one in waited if isinstance(one, frames.Subscribe)]
