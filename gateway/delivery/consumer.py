"""Consumer: a session's subscription in a group, with its credit and its partitions.

A client that comes back names the deliveries that it holds. `sort` divides them into those that its
partitions know, those that may be adopted from the epoch before (R22), and those that are lost;
`adopt_in` adopts deliveries, after it has read what `push.delivery.adopt` must know of the log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from gateway.delivery.owned_partition import AckWaiter, OwnedPartition
from gateway.delivery.ports import DeliveryList, SessionPort
from gateway.deliverylog.deliveries import LoggedPlace
from gateway.models import CreditDescription, OwnerDescription, SubscriptionDescription
from gateway.publish.tail import Tail
from gateway.wire import frames
from gateway.wire.frames import check_deliveries
from push import limits
from push.delivery import (
    Judged,
    Push,
    Share,
    Taken,
    adopt,
    can_adopt,
    extent,
    hold,
    kept,
    keys_wanted,
    share,
)
from push.errors import Refused
from push.places import Partition
from push.ranges import Range
from push.record import Record
from push.storage_port import OWNER_BYTES
from push.subscription import CreditWindow, Responsiveness

if TYPE_CHECKING:
    from gateway.delivery.group import GroupRuntime


Pushes = dict[int, list[Range]]
"""Push number → ranges of offsets of its messages."""
Claims = dict[int, dict[int, Pushes]]
"""Partition → epoch → pushes that are held."""


@dataclass(slots=True)
class HeldClaims:
    """The deliveries that a client says it holds, sorted by whether they are still its own."""

    held: dict[int, Pushes] = field(default_factory=dict)
    """Partition → the deliveries that the consumer's owned partition knows, by the numbers of its
    ledger."""
    before: Claims = field(default_factory=dict)
    """Deliveries of an earlier epoch that may be adopted."""
    lost: DeliveryList = field(default_factory=list)
    """Deliveries that are not the client's any more."""


def sort(
    deliveries: DeliveryList,
    owned_partitions: Mapping[int, OwnedPartition],
    is_coming: Callable[[int], bool],
) -> HeldClaims:
    """Sort the deliveries that a client says it holds, by its consumer's owned partitions.
    `is_coming`: called with a partition that is not among these; returns whether it will be."""
    said = HeldClaims()
    for partition, epochs in claims_of(deliveries).items():
        owned = owned_partitions.get(partition)
        for epoch, pushes in epochs.items():
            may_adopt = is_coming(partition) if owned is None else can_adopt(owned.delivery, epoch)
            if may_adopt:
                said.before.setdefault(partition, {})[epoch] = pushes
            elif owned is None or owned.delivery.number_of(epoch, 0) is None:
                said.lost += listed(partition, epoch, pushes)
            else:
                held = said.held.setdefault(partition, {})
                for push, ranges in pushes.items():
                    number = owned.delivery.number_of(epoch, push)
                    assert number is not None
                    held[number] = ranges
    return said


def claims_of(deliveries: DeliveryList) -> Claims:
    """Arrange a delivery list by partition and epoch."""
    claims: Claims = {}
    for partition, epoch, push, *numbers in deliveries:
        ranges = zip(numbers[::2], numbers[1::2], strict=True)
        claims.setdefault(partition, {}).setdefault(epoch, {}).setdefault(push, []).extend(ranges)
    return claims


def offsets_in(claims: Claims) -> int:
    """Return the number of offsets that these claims name."""
    return sum(
        extent(ranges)
        for epochs in claims.values()
        for pushes in epochs.values()
        for ranges in pushes.values()
    )


def listed(partition: int, epoch: int, pushes: Mapping[int, Sequence[Range]]) -> DeliveryList:
    """Make a delivery list of these pushes of one partition and epoch."""
    return [
        [partition, epoch, push, *(number for pair in ranges for number in pair)]
        for push, ranges in pushes.items()
    ]


def named(owned: OwnedPartition, by_number: Mapping[int, Sequence[Range]]) -> DeliveryList:
    """Make a delivery list of pushes by their numbers in the owned partition's ledger."""
    found: DeliveryList = []
    for number, ranges in by_number.items():
        epoch, push = owned.delivery.name_of(number)
        found += listed(owned.partition.number, epoch, {push: ranges})
    return found


async def adopt_in(
    tail: Tail,
    owned: OwnedPartition | None,
    number: int,
    epochs: Mapping[int, Pushes],
    room: Callable[[], int],
) -> DeliveryList:
    """Adopt deliveries of earlier epochs in partition `number`, as far as they may be adopted.
    `owned`: the consumer's owned partition; None: it has none. Returns the deliveries that are not
    the client's any more. `room`: called when the log was read; it returns the most messages to
    adopt, below 0 if the outcome no longer matters."""
    lost: DeliveryList = []
    for epoch, pushes in epochs.items():
        gone: Mapping[int, Sequence[Range]] = pushes
        if owned is not None and can_adopt(owned.delivery, epoch):
            wanted = keys_wanted(owned.delivery, pushes)
            keys = await read_keys(tail, owned.partition, wanted)
            left = room()
            if left >= 0 and not owned.ended and can_adopt(owned.delivery, epoch):
                now = asyncio.get_running_loop().time()
                gone = adopt(
                    owned.delivery,
                    pushes,
                    keys,
                    room=left,
                    now=now,
                    wall_unix_ms=int(time.time() * 1000),
                )
                owned.returned([], now)
        lost += listed(number, epoch, gone)
    return lost


async def read_keys(tail: Tail, partition: Partition, wanted: Sequence[Range]) -> dict[int, int]:
    """Read the key hashes of these ranges, which ascend. Returns offset → key hash of the offsets
    that the log has."""
    keys: dict[int, int] = {}
    records: deque[Record] = deque()
    for first, last in wanted:
        at = first
        while at <= last:
            while records and records[0].last < at:
                records.popleft()
            if not records:
                records.extend((await tail.read(partition, at)).records)
                if not records:
                    return keys
            record = records[0]
            for offset in range(max(at, record.first), min(last, record.last) + 1):
                keys[offset] = record.header.key_hashes[offset - record.first]
            at = record.last + 1
    return keys


class Settlement(AckWaiter):
    """The result of an ack, nack or extend: a count, and delivery lists of those that it did not
    touch.

    `confirmed` is called with it, once, when all of it is durable or that will never be known here.
    """

    __slots__ = ("confirmed", "not_delivered", "settled", "stale")

    def __init__(self, confirmed: "Callable[[Settlement], None] | None" = None) -> None:
        super().__init__()
        self.confirmed = confirmed
        self.settled = 0
        self.stale: DeliveryList = []
        self.not_delivered: DeliveryList = []

    def add(self, place: tuple[int, int, int], judged: Judged) -> None:
        """Count the judgement of (partition, epoch, push)."""
        for first, last in judged.settled:
            self.settled += last - first + 1
        for ranges, out in (
            (judged.stale, self.stale),
            (judged.not_delivered, self.not_delivered),
        ):
            if ranges:
                out.append([*place, *(number for pair in ranges for number in pair)])

    def write(self, partitions: Collection[OwnedPartition], now: float) -> None:
        """Have these partitions write what was settled in them; wait for that only if the client
        requested it."""
        if self.confirmed is not None:
            super().write(partitions, now)
            return
        for partition in partitions:
            partition.settled(now)

    def answer(self) -> None:
        """Call `confirmed`, which answers the client, if there is one."""
        if self.confirmed is not None:
            self.confirmed(self)


class _Barrier(Settlement):
    """The answer to an ack of nothing, once everything settled before is durable. Partitions that
    have another owner by then are left out."""

    __slots__ = ()

    def on_written(self, *, durable: bool) -> None:
        """Count one partition as durable, also if it has another owner by now."""
        super().on_written(durable=True)


class Consumer:
    """Subscription in a group. It may leave as soon as it is made."""

    pulls = False

    def __init__(
        self,
        runtime: "GroupRuntime",
        link: SessionPort,
        subscription: int,
        credit: int,
        *,
        held: bool = False,
    ) -> None:
        self._runtime = runtime
        self._end_of_turn = runtime.tail.end_of_turn
        self._link = link
        self.subscription = subscription
        self._place = f"{link.session_id}.{subscription}"
        self.principal = link.principal
        self.log_place = LoggedPlace(runtime.log, runtime.queue, runtime.group.name, link)
        self.name = self._place
        if runtime.part.is_shared:  # no name of a session takes another one's place (P11)
            self.name += f"~{self.owner.hex()[:8]}"
        self._credit = CreditWindow()
        self._credit.grant(credit)
        self._reserved = 0
        """Number of messages for which credit is reserved. A group that gets each message at most
        once has them settled before they are pushed (R23)."""
        self._in_flight = 0
        """Number of deliveries in flight, in all its owned partitions."""
        self.owned_partitions: dict[int, OwnedPartition] = {}
        self._turn = 0
        self._scheduled = False
        self.opened = False
        self.left = False
        self._ended: Refused | None = None
        """The reason why the broker ended the subscription, such as a deleted group; None: it did
        not."""
        self._is_of_before = held
        """Whether its client comes from an earlier gateway, or start of this one, so that it may
        name deliveries from there."""
        self.stays = self._suspended = held
        """`stays`: whether its client has still to say what it holds, so that its partitions stay.
        `_suspended`: whether nothing is given, because of that or without a transport."""
        self._adopting: HeldClaims | None = None
        """The held deliveries whose adoption is under way; None: none is."""
        self._responsiveness = Responsiveness()
        self._held_late: asyncio.TimerHandle | None = None
        """Timer from when the client could say what it holds until it has. When it ends, the
        consumer counts as unresponsive."""

    @property
    def linger_s(self) -> float:
        """Seconds for which its place in the group waits for it when its gateway is gone; 0: not at
        all."""
        return self._link.linger_s

    @property
    def owner(self) -> bytes:
        """The OWNER_BYTES that name the consumer in owner tokens (R22). They are the same when its
        session comes back, and others for every tenant and principal."""
        who, group_id = self.principal, self._runtime.group.group_id
        parts = msgspec.json.encode([who.tenant, who.name, group_id, self._place])
        return blake2b(parts, digest_size=OWNER_BYTES, person=b"tocsin-owner").digest()

    def described(self) -> OwnerDescription:
        link = self._link
        return OwnerDescription(
            consumer=self.name,
            session=link.session_id,
            subscription=self.subscription,
            client=link.client,
            transport=link.transport,
            unresponsive=self.is_unresponsive,
        )

    def subscription_facts(self) -> SubscriptionDescription:
        """Describe the subscription to operators: credit, messages in flight, partitions."""
        credit, runtime = self._credit, self._runtime
        return SubscriptionDescription(
            subscription=self.subscription,
            queue=runtime.queue.name,
            group=runtime.group.name,
            credit=CreditDescription(
                granted=credit.granted, used=credit.sent, open=credit.available - self._reserved
            ),
            in_flight=self._in_flight,
            partitions=sorted(self.owned_partitions),
            unresponsive=self.is_unresponsive or None,
        )

    # --- Giving --------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join the group. Nothing is given before this turn of the loop has ended, so that the
        caller's answer goes first. Raises TocsinError if it has not joined."""
        await self._runtime.join(self)
        asyncio.get_running_loop().call_soon(self.open)

    def open(self) -> None:
        """Let pushes come, because the session knows of the subscription. A client that has still
        to say what it holds has HELD_TIMEOUT_S for that from now on."""
        self.opened = True
        self.pump()
        if self.stays:
            self.await_held()

    # enforces: P9
    def available(self) -> int:
        """Return the number of messages that it may be given now, by its credit and its room for
        leases (P9). 0 while the queue is paused, the client has still to say what it holds, or its
        transport takes nothing."""
        if not self.opened or self.left or self._suspended or not self._link.writable():
            return 0
        if self._runtime.queue.paused:
            return 0
        return self._room()

    def _room(self) -> int:
        """Return the number of messages for which it has credit, and room for leases."""
        room = limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX - self._in_flight
        return min(self._credit.available - self._reserved, room)

    # enforces: P8
    def share(self, available: int) -> Share:
        """Return the share of the credit, and of the room for leases, that one key may have."""
        credit, most = self._credit, limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX
        of_credit = credit.available - self._reserved - kept(credit.window)
        of_room = most - self._in_flight - kept(most)
        return share(available, min(of_credit, of_room), self._in_flight)

    @property
    def blocked_by(self) -> str:
        """The reason why `available` is 0: credit, socket (its transport takes nothing, or its
        client has still to say what it holds), paused (the queue is), or in_flight (the consumer
        holds as much as it may, P9)."""
        if self._runtime.queue.paused:
            return "paused"
        if self._suspended or not self._link.writable():
            return "socket"
        full = self._in_flight >= limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX
        return "in_flight" if full else "credit"

    def holds(self, more: int) -> None:
        """Count this many more of its deliveries as in flight. Below 0: fewer, because they were
        settled, returned, or cut off."""
        was_full = self._in_flight >= limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX
        self._in_flight += more
        if was_full:
            self.pump()
        if not self._in_flight:
            self._link.on_empty()

    @property
    def given_total(self) -> int:
        """Number of messages pushed so far, without those that had not arrived when the client came
        back."""
        return self._credit.sent

    def grant(self, granted_total: int) -> None:
        """Raise the credit to `granted_total`, counted since the subscription began (R25). Raises
        Refused(limit_reached)."""
        self._credit.grant(granted_total)
        if self._responsiveness.is_unresponsive and not self._suspended:
            self._is_back()
        self.pump()

    def pump(self) -> None:
        """Let its owned partitions give, at the end of this turn of the loop or in the next one."""
        if not self._scheduled and not self.left:
            self._scheduled = True
            self._end_of_turn.call(self._pump)

    def _pump(self) -> None:
        """Let owned partitions that have something to give take turns, with a bounded number of
        messages each, so that a backlog starves no partition."""
        self._scheduled = False
        owned_partitions = list(self.owned_partitions.values())
        if not owned_partitions or self.left:
            return
        now = asyncio.get_running_loop().time()
        count = len(owned_partitions)
        share = max(limits.PUSH_MESSAGES_MAX // count, self._room() // count, 16)
        self._turn = (self._turn + 1) % count
        owned_partitions = owned_partitions[self._turn :] + owned_partitions[: self._turn]
        again = False
        for owned in owned_partitions:
            if not owned.delivery.is_idle(now):
                again |= owned.pump(share)
        if again and self.available() > 0:
            self.pump()

    def reserve(self, count: int) -> object:
        """Reserve credit for messages that are being settled before they are pushed (R23). Returns
        the handle for `deliver`."""
        self._reserved += count
        return self

    def release(self, count: int, reserved: object) -> None:
        """Free the credit that was reserved for messages which will not be pushed."""
        self._reserved -= count

    def deliver(
        self, owned: OwnedPartition, record: Record, push: Push, reserved: object = None
    ) -> bool:
        """Send a push to the client, against its credit or what was `reserved`. False: the consumer
        has left, and nothing is sent."""
        count = push.count
        if reserved is not None:
            self._reserved -= count
        if self.left:  # at most once: they are settled, and their consumer has left
            return False
        self._credit.spend(count)
        head = frames.push_head(
            subscription=self.subscription,
            partition=owned.partition.number,
            epoch=owned.epoch,
            push=push.number,
            offset=push.first,
            skips=push.skips,
            attempt=push.attempt,
            id_prefix=owned.id_prefix,
            published_unix_ms=record.header.published_unix_ms,
        )
        frame = frames.push_frame(head, *record.pick(push.first, push.last, push.skips))
        counter = self._link.account.counter(self._runtime.queue.name)
        size = len(frame) - len(head) - count - 1  # without commas and the end
        counter.count_delivered(count, size)
        if push.attempt > 1:
            counter.redeliveries += count
        self._link.send(frame)
        return True

    # enforces: R17
    def revoked(self, owned: OwnedPartition, taken: list[Taken], reason: str) -> None:
        """Inform the session at once of deliveries that are no longer its own (R17)."""
        by_push: dict[int, list[Range]] = {}
        for push, offset in sorted(taken):
            by_push.setdefault(push, []).append((offset, offset))
        deliveries = named(owned, by_push)
        self._link.send(frames.revoked(self.subscription, deliveries, reason))

    # --- What the session says -----------------------------------------------------------------

    def ack(
        self,
        deliveries: DeliveryList,
        started: DeliveryList,
        confirmed: Callable[[Settlement], None] | None,
    ) -> Settlement:
        """Settle deliveries (R21), and mark those that have `started`. `confirmed` is called with
        the answer once it is durable (None: no answer is needed). Without `deliveries` it is called
        once everything is durable that was settled before in partitions still its own."""
        check_deliveries(deliveries)
        check_deliveries(started)
        settled = Settlement(confirmed)
        touched: dict[int, OwnedPartition] = {}
        now = asyncio.get_running_loop().time()
        if deliveries or started:
            self._sign(now, deliveries, started)
        if started:
            self.start(started)
        for delivery in deliveries:
            owned, number = self._owned(delivery, settled)
            if owned is not None:
                touched[delivery[0]] = owned
                count = owned.ack_ordinary(number, delivery, now)
                if count:
                    settled.settled += count
                    continue
                place = (delivery[0], delivery[1], delivery[2])
                for index in range(3, len(delivery) - 1, 2):
                    first, last = delivery[index], delivery[index + 1]
                    settled.add(place, owned.ack(number, first, last, now))
        if confirmed is not None and not deliveries:
            _Barrier(confirmed).wait([*self.owned_partitions.values()])
        else:
            settled.write(touched.values(), now)
        return settled

    def nack(
        self,
        deliveries: DeliveryList,
        delay_s: float | None,
        reason: str | None,
        *,
        reject: bool = False,
        confirmed: Callable[[Settlement], None] | None = None,
    ) -> Settlement:
        """Return deliveries; each is a counted attempt, with `reject` the last one. `reason` is
        kept with them. `confirmed` is called with the answer once it is durable."""
        check_deliveries(deliveries)
        settled = Settlement(confirmed)
        touched: dict[int, OwnedPartition] = {}
        now = asyncio.get_running_loop().time()
        self._sign(now, deliveries)
        for delivery in deliveries:
            owned, number = self._owned(delivery, settled)
            if owned is not None:
                touched[delivery[0]] = owned
                place = (delivery[0], delivery[1], delivery[2])
                for index in range(3, len(delivery) - 1, 2):
                    first, last = delivery[index], delivery[index + 1]
                    judged = owned.nack(
                        number, first, last, now, delay_s=delay_s, reason=reason, reject=reject
                    )
                    settled.add(place, judged)
        settled.write(touched.values(), now)
        return settled

    def extend(
        self, deliveries: DeliveryList, started: DeliveryList, lease_s: float | None
    ) -> Settlement:
        """Mark deliveries that have `started`, and prolong leases to `lease_s` seconds from now
        (None: the group's), within `lease_total_s`."""
        check_deliveries(deliveries)
        check_deliveries(started)
        settled = Settlement()
        touched: dict[int, OwnedPartition] = {}
        now = asyncio.get_running_loop().time()
        self._sign(now, deliveries, started)
        self.start(started)
        for delivery in deliveries:
            owned, number = self._owned(delivery, settled)
            if owned is not None:
                touched[delivery[0]] = owned
                place = (delivery[0], delivery[1], delivery[2])
                for index in range(3, len(delivery) - 1, 2):
                    judged = owned.delivery.extend(
                        number,
                        delivery[index],
                        delivery[index + 1],
                        lease_s=lease_s or owned.delivery.lease_s,
                        now=now,
                    )
                    settled.add(place, judged)
        settled.write(touched.values(), now)
        return settled

    def _note_arrival(self, *named: DeliveryList) -> None:
        """Inform the session when the newest delivery was pushed that the client names, because it
        has arrived."""
        given_at = [
            push.given_at
            for partition, epoch, number, *_ in chain(*named)
            if (owned := self.owned_partitions.get(partition)) is not None
            and owned.delivery.epoch == epoch
            and (push := owned.delivery.push(number)) is not None
        ]
        if given_at:
            self._link.on_named(max(given_at))

    def start(self, started: DeliveryList) -> None:
        """Mark deliveries whose handlers have begun (R19)."""
        now = asyncio.get_running_loop().time() if started else 0.0
        for delivery in started:
            owned, number = self._owned(delivery, Settlement())
            if owned is not None:
                for index in range(3, len(delivery) - 1, 2):
                    owned.delivery.start(number, delivery[index], delivery[index + 1], now=now)

    def _owned(self, delivery: list[int], settled: Settlement) -> tuple[OwnedPartition | None, int]:
        """Return the owned partition that a delivery names, and the push's number there. A delivery
        of no owned partition or epoch of this session is judged here: an older epoch is stale,
        anything else was never given to it."""
        owned = self.owned_partitions.get(delivery[0])
        if owned is not None:
            if delivery[1] == owned.epoch:
                return owned, delivery[2]
            number = owned.delivery.number_of(delivery[1], delivery[2])
            if number is not None:
                return owned, number
        newer = owned is not None and delivery[1] > owned.epoch
        is_stale = not newer and self._was_given(delivery[0], delivery[1])
        (settled.stale if is_stale else settled.not_delivered).append(delivery)
        if is_stale:
            self._runtime.count_stale()
        return None, 0

    def _was_given(self, partition: int, epoch: int) -> bool:
        """Whether a delivery of this partition and epoch may have been given, under an epoch that
        is over. A consumer that was here before may name any delivery of a partition that had no
        owner since this gateway began."""
        newest = self._runtime.epochs.get(partition)
        if newest is None:
            return self._is_of_before and partition in self._runtime.queue.members
        return epoch <= newest

    # --- Whether it works ----------------------------------------------------------------------

    @property
    def is_unresponsive(self) -> bool:
        return self._responsiveness.is_unresponsive

    def _sign(self, now: float, *named: DeliveryList) -> None:
        """Note that the client names these deliveries, so it works and has them."""
        if self._responsiveness.on_sign(now=now):
            self._rebalance()
        if self._link.is_in_transit:
            self._note_arrival(*named)

    def _is_back(self) -> None:
        if self._responsiveness.on_activity(now=asyncio.get_running_loop().time()):
            self._rebalance()

    def arrived(self, owned: OwnedPartition, push: Push) -> float | None:
        return self._link.lease_start(push.given_at)

    def lapsed(self, given_at: float) -> None:
        """Note that a lease has ended by time. It counts only while the session has a transport,
        because without one the consumer can give no sign."""
        if not self._suspended and self._responsiveness.on_lease_end(given_at):
            self._rebalance()

    def _rebalance(self) -> None:
        if not self.left:
            self._runtime.rebalance()

    def await_held(self) -> None:
        """Give the client HELD_TIMEOUT_S to say what it holds, or to go on saying it. After that
        its partitions go to consumers that work."""
        self._stop_waiting()
        if self._suspended and not self.left:
            loop = asyncio.get_running_loop()
            self._held_late = loop.call_later(limits.HELD_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self.stays = False
        self._responsiveness.give_up()
        self._rebalance()

    def _stop_waiting(self) -> None:
        if self._held_late is not None:
            self._held_late.cancel()
            self._held_late = None

    def deleted(self, why: Refused) -> None:
        """End, usually because the group was deleted, and send the client the reason. A client that
        is away learns it when it says what it holds."""
        self._stop_waiting()
        self.left, self._ended = True, why
        self._link.send(frames.error(why, subscription=self.subscription))

    def moved_away(self) -> None:
        """Leave this gateway: the session is over here, with all its subscriptions."""
        self.left, self._adopting = True, None
        self._stop_waiting()
        self._link.on_moved()

    def end(self, why: Refused) -> None:
        """End the subscription, send its client the reason, and return unsettled deliveries to the
        group.

        A subscription that has ended already stays as it is.
        """
        if not self.left:
            self.leave()
            self.deleted(why)

    def unsettled(self) -> int:
        """Return the number of deliveries that it holds."""
        return self._in_flight

    # --- Between two transports -----------------------------------------------------------------

    def suspend(self) -> None:
        """Give nothing while the session has no transport. The place and the deliveries stay."""
        self._stop_waiting()
        self._suspended = True
        self._adopting = None

    # enforces: R22
    def hold(
        self, received: int, deliveries: DeliveryList
    ) -> DeliveryList | Awaitable[DeliveryList]:
        """Take up what the client holds, which came back with `received` messages in all (R22,
        R25). Deliveries in flight that it does not name have not arrived: they go back uncounted.
        Deliveries of the epoch before are adopted, if they may be. Returns the `deliveries` that
        are not its own any more, at once or when that is known. Until then nothing is given.

        Raises:
            Refused: invalid_request: more received than was sent, more held than may be, or the
                client never was away, and messages on their way to it would be taken back.
        """
        if not self._suspended:
            raise Refused("invalid_request", "held comes once, after a session was resumed")
        said = sort(
            deliveries, self.owned_partitions, lambda number: self._runtime.is_coming(number, self)
        )
        if offsets_in(said.before) > limits.NAMED_AS_HELD_MAX:
            raise Refused("invalid_request", "more deliveries than a subscription ever has")
        self._credit.received(received)
        self._stop_waiting()
        self._runtime.part.claim(self.name)
        if self._ended is not None:  # the error may not have arrived; nothing will be pushed
            self._link.send(frames.error(self._ended, subscription=self.subscription))
        now = asyncio.get_running_loop().time()
        for partition, owned in list(self.owned_partitions.items()):
            taken, gone = hold(owned.delivery, said.held.get(partition, {}), now=now)
            owned.returned(taken, now)
            said.lost += named(owned, gone)
        if said.before:
            self._adopting = said  # before it begins: it may be over by then
            return self._adopt(said)
        self._go_on()
        return said.lost

    async def _adopt(self, said: HeldClaims) -> DeliveryList:
        runtime, lost = self._runtime, said.lost

        def room() -> int:
            left = limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX - self._in_flight
            return max(0, left) if self._adopting is said else -1

        for partition, epochs in said.before.items():
            owned = await runtime.owned_of(partition, self)
            lost += await adopt_in(runtime.tail, owned, partition, epochs, room)
        if self._adopting is said:
            self._go_on()
        return lost

    def _go_on(self) -> None:
        self._suspended, self._adopting = False, None
        self.pump()
        self._is_back()
        if self.stays:
            self.stays = False
            self._rebalance()

    def leave(self, *, moves: bool = False, done: Callable[[], None] | None = None) -> None:
        """Leave at once; unsettled deliveries return to the group. `moves`: this gateway goes down,
        and the client keeps its deliveries and goes on at the next one. `done` is called once, when
        all that was settled or returned of its deliveries is durable, or is known to have another
        owner by then."""
        owned_partitions = dict(self.owned_partitions)
        if not self.left:
            self.left = True
            self._adopting = None
            self._stop_waiting()
            self._runtime.leave(self, moves=moves)
        if done is not None:
            now = asyncio.get_running_loop().time()
            live = [owned for owned in owned_partitions.values() if not owned.ended]
            Settlement(lambda _: done()).write(live, now)
