"""Pulls: the consumers of HTTP (R24).

On this gateway the pulls of a group form one virtual consumer. It takes part in the assignment
from the first pull on, serves waiting pulls in their order, and leaves in an orderly way when no
pull has come for a while, unless it holds messages that nobody else in the group could be given.

Acks, nacks and extends name deliveries by receipts (`push.receipts`). This gateway judges them if
it owns the partition, else it asks the owner at another gateway.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from gateway.delivery.group import GroupRuntime
from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.delivery.remote_owner import OwnerClient, durable, has_ended, judge, slot_of
from gateway.deliverylog.deliveries import LoggedPlace
from gateway.models import OwnerDescription, PulledMessage, PullSettled
from metadata.catalog import ANYBODY, Group, Principal, Queue
from push import limits
from push.commit_sharing import has_room
from push.delivery import Push, Share, Taken, kept, share
from push.errors import Refused, TocsinError, Unknown
from push.letters import SETTLED, Letter, Verb, runs_of
from push.message import Message
from push.places import CursorPlace, Partition
from push.receipts import Receipt, Receipts
from push.record import Record
from push.storage_port import OWNER_BYTES
from push.transit import Transit

Named = list[tuple[int, Receipt]]
"""Receipts, each with its place in the request."""


@dataclass(slots=True)
class _Asked:
    """What a request comes to."""

    counted: dict[int, bool] = field(default_factory=dict)
    """By the place in the request: whether it counted, or has ended."""
    touched: dict[int, OwnedPartition] = field(default_factory=dict)
    elsewhere: dict[tuple[int, int], Named] = field(default_factory=dict)
    """By partition and epoch."""


class PullSettling:
    """See the module. `owner_client` None: there is no other gateway."""

    def __init__(
        self, groups: Groups, receipts: Receipts, owner_client: OwnerClient | None
    ) -> None:
        self._groups = groups
        self._receipts = receipts
        self._owner_client = owner_client

    async def settle(
        self,
        queue: Queue,
        group: Group,
        texts: list[str],
        verb: Verb,
        seconds: float | None,
        *,
        reason: str | None = None,
        reject: bool = False,
    ) -> PullSettled:
        """Judge each receipt by the slot that gave it; answer when the effect is durable.

        Raises:
            Unknown: of some of them that is not known; sending all of them again is safe.
            Refused: nothing happened.
        """
        runtime = self._groups.runtimes.get(group.group_id)
        now = asyncio.get_running_loop().time()
        asked = _Asked()
        invalid: list[str] = []
        for index, text in enumerate(texts):
            receipt = self._receipts.decode(queue.queue_id, group.group_id, text)
            if receipt is None:
                invalid.append(text)
                continue
            place = (receipt.partition, receipt.epoch)
            slot = slot_of(runtime, *place)
            if slot is not None:
                delivery = (receipt.push, receipt.offset)
                asked.counted[index] = judge(
                    slot, verb, delivery, seconds, now, reason=reason, reject=reject
                )
                asked.touched[receipt.partition] = slot
            elif self._owner_client is None or has_ended(runtime, *place):
                asked.counted[index] = False
            else:
                asked.elsewhere.setdefault(place, []).append((index, receipt))
        letters = [
            self._ask(
                CursorPlace(group.group_id, Partition(queue.queue_id, number)),
                named,
                Letter(
                    verb=verb,
                    epoch=epoch,
                    runs=runs_of([(one.push, one.offset) for _, one in named]),
                    seconds=seconds,
                    reason=reason,
                    reject=reject,
                ),
                asked.counted,
            )
            for (number, epoch), named in asked.elsewhere.items()
        ]
        is_partly_done = bool(asked.counted)
        await _all_of(durable(asked.touched.values(), now), letters, is_partly_done=is_partly_done)
        stale = [texts[index] for index in sorted(asked.counted) if not asked.counted[index]]
        return PullSettled(settled=sum(asked.counted.values()), stale=stale, invalid=invalid)

    async def _ask(
        self, place: CursorPlace, named: Named, letter: Letter, counted: dict[int, bool]
    ) -> None:
        assert self._owner_client is not None  # else nothing is elsewhere
        verdicts = await self._owner_client.ask(place, letter)
        for (index, _), verdict in zip(named, verdicts, strict=True):
            counted[index] = verdict == SETTLED


async def _all_of(
    mine: Coroutine[Any, Any, bool],
    theirs: Sequence[Coroutine[Any, Any, None]],
    *,
    is_partly_done: bool,
) -> None:
    """Wait for what was done here and for the owners elsewhere, all at once. One answer for the
    whole request, never a weaker yes: it is a refusal only where nothing at all happened."""
    if not theirs:
        if not await mine:
            raise Unknown
        return
    results = await asyncio.gather(mine, *theirs, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, TocsinError):
            raise error
    if len(errors) == len(theirs) and not is_partly_done:
        refused = [error for error in errors if isinstance(error, Refused)]
        if len(refused) == len(errors):
            raise refused[0]
    if errors or not results[0]:
        raise Unknown(str(errors[0]) if errors else "")


STORAGE_S: Final = 1.0
"""A pull that does not wait for messages waits so long at most for what the storage is asked."""
_MESSAGE = msgspec.json.Decoder(Message)


@dataclass(slots=True, eq=False)
class _Pull:
    """One waiting pull."""

    room: int
    answered: "asyncio.Future[list[PulledMessage]]"
    asked_at: float
    """By the loop's clock."""
    messages: list[PulledMessage] = field(default_factory=list)
    size: int = 0
    """Bytes of the records' parts that hold them."""
    reserved: int = 0
    """Messages that are being settled before they are handed over (R23)."""


@dataclass(slots=True, eq=False)
class _Answer:
    """A large answer, and what is known of its way to its client."""

    transit: Transit
    mark: int
    taken_bytes: Callable[[], int | None]

    def look(self, now: float) -> None:
        """Ask how far it has come. TCP's other end is all that can be seen of an answer."""
        taken_bytes = self.taken_bytes()
        if taken_bytes is None:
            self.transit.answered(self.mark, now=now)
        else:
            self.transit.look(taken_bytes, now=now)


class PullConsumer:
    """The virtual consumer of one group's pulls."""

    pulls = True

    def __init__(self, runtime: GroupRuntime, receipts: Receipts, gateway: str) -> None:
        """`gateway`: its name, where there are several."""
        self.runtime = runtime
        self.name = f"pulls-{gateway}" if gateway else "pulls"
        self.linger_s = 0.0
        self.left = self.stays = self.is_unresponsive = False
        self.owner = os.urandom(OWNER_BYTES)
        self.log_place = LoggedPlace(runtime.log, runtime.queue, runtime.group.name)
        self.slots: dict[int, OwnedPartition] = {}
        self.last_pull = 0.0
        self._receipts = receipts
        self._waiting: deque[_Pull] = deque()
        self._serving: _Pull | None = None
        self._scheduled = False
        self._turn = 0
        self._in_flight = 0
        self._answers: dict[tuple[int, int, int], _Answer] = {}
        """(partition, epoch, push) → the large answer that it went with."""

    def described(self) -> OwnerDescription:
        """As Member.described: whoever pulls."""
        return OwnerDescription(consumer=self.name, transport="pull")

    @property
    def busy(self) -> bool:
        """Whether pulls wait."""
        return bool(self._waiting)

    # enforces: R24
    def is_idle(self, now: float) -> bool:
        """Whether it is to leave. Who has pulled and works for long keeps its leases where there
        is nobody else: leaving would cut them off and help nobody."""
        if self.busy or now - self.last_pull <= limits.PULL_IDLE_S:
            return False
        if any(answer.transit.moves(now=now) for answer in self._answers.values()):
            return False
        others = len(self.runtime.members) > 1 or self.runtime.part.others()
        return not self._in_flight or bool(others)

    def available(self) -> int:
        """What the pull that is being served still takes, within what all of them may hold."""
        if self._serving is None or self.runtime.queue.paused:
            return 0
        if self._serving.size >= limits.PULL_BYTES_MAX:
            return 0
        return min(self._serving.room, max(0, limits.IN_FLIGHT_PULLED_MAX - self._in_flight))

    def share(self) -> Share:
        """What a key may have of what is available: all of it, while there is room for leases."""
        room = limits.IN_FLIGHT_PULLED_MAX - self._in_flight
        return share(room, room - kept(limits.IN_FLIGHT_PULLED_MAX), self._in_flight)

    @property
    def blocked_by(self) -> str:
        """Nobody pulls: that is its credit. Or so much was pulled and not settled that a pull
        waits until some of it is."""
        if self.runtime.queue.paused:
            return "paused"
        return "in_flight" if self._in_flight >= limits.IN_FLIGHT_PULLED_MAX else "credit"

    def pump(self) -> None:
        """Serve waiting pulls at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        while self._waiting and self._waiting[0].answered.done():
            self._waiting.popleft()
        while self._waiting:
            pull = self._waiting[0]
            if not pull.messages and not pull.reserved:
                self._serve(pull)
            if pull.reserved or not pull.messages:
                break
            self._waiting.popleft()
            if not pull.answered.done():
                pull.answered.set_result(pull.messages)
        for slot in list(self.slots.values()) if not self._waiting else ():
            slot.pump(0)  # lines and deadlines move on without anybody pulling

    def _serve(self, pull: _Pull) -> None:
        self._serving = pull
        slots = list(self.slots.values())
        if slots:
            self._turn = (self._turn + 1) % len(slots)
        for slot in slots[self._turn :] + slots[: self._turn]:
            slot.delivery.begin_pull()
            slot.pump(limits.PULL_MESSAGES_MAX)
        self._serving = None

    def reserve(self, count: int) -> object:
        """Room in the pull that is being served, for what is being settled."""
        pull = self._serving
        assert pull is not None  # else nothing is available
        pull.reserved += count
        pull.room -= count
        return pull

    def release(self, count: int, reserved: object) -> None:
        """They were not settled: the pull goes on without them."""
        assert isinstance(reserved, _Pull)
        reserved.reserved -= count
        reserved.room += count
        self.pump()

    def deliver(
        self, slot: OwnedPartition, record: Record, push: Push, reserved: object = None
    ) -> bool:
        """Put messages into the pull that is being served, or that they were reserved for."""
        count = push.count
        pull = self._serving
        if isinstance(reserved, _Pull):
            pull = reserved
            pull.reserved -= count
        else:
            assert pull is not None  # else nothing is available
            pull.room -= count
        self.log_place.take_by(pull)
        pull.size += len(record.slice(push.first, push.last))
        until = int((time.time() + slot.delivery.lease_s) * 1000)
        for offset in push.offsets():
            pull.messages.append(self._message(slot, record, offset, push, until))
        return True

    def _message(
        self, slot: OwnedPartition, record: Record, offset: int, push: Push, until: int
    ) -> PulledMessage:
        message = _MESSAGE.decode(record.slice(offset, offset))
        receipt = Receipt(
            slot.delivery.generation,
            slot.partition.number,
            slot.delivery.epoch,
            push.number,
            offset,
        )
        return PulledMessage(
            receipt=self._receipts.encode(slot.queue.queue_id, slot.group.group_id, receipt),
            id=message.id if message.id is not None else f"{slot.id_prefix}{offset}",
            partition=slot.partition.number,
            offset=offset,
            attempt=push.attempt,
            published_unix_ms=record.header.published_unix_ms,
            lease_until_unix_ms=until,
            key=message.key,
            body=message.body if message.body_base64 is None else None,
            body_base64=message.body_base64,
            content_type=message.content_type,
            headers=message.headers,
        )

    def holds(self, more: int) -> None:
        """More or fewer pulled messages are unsettled; see PartitionOwner.holds."""
        was_full = self._in_flight >= limits.IN_FLIGHT_PULLED_MAX
        self._in_flight += more
        if was_full:
            self.pump()

    # --- Large answers --------------------------------------------------------------------------

    def hand_over(
        self, messages: Sequence[PulledMessage], size: int, taken_bytes: Callable[[], int | None]
    ) -> None:
        """As Pulling.hand_over."""
        now = asyncio.get_running_loop().time()
        transit = Transit(opened_at=-inf)
        answer = _Answer(transit, transit.mark(size, now=now), taken_bytes)
        for slot, receipt in self._given(messages):
            self._answers[slot.partition.number, receipt.epoch, receipt.push] = answer

    def look(self) -> None:
        """See how far large answers have come; once a second."""
        now = asyncio.get_running_loop().time()
        for answer in {id(one): one for one in self._answers.values()}.values():
            if answer.transit.is_awaited:
                answer.look(now)
                if not answer.transit.is_awaited:
                    self.last_pull = now  # its client may go on from here
        self._answers = {
            place: answer
            for place, answer in self._answers.items()
            if (slot := self.slots.get(place[0])) is not None
            and slot.delivery.epoch == place[1]
            and slot.delivery.push(place[2]) is not None
            and (answer.transit.is_awaited or answer.transit.is_slow)
        }

    def arrived(self, slot: OwnedPartition, push: Push) -> float | None:
        place = (slot.partition.number, slot.delivery.epoch, push.number)
        answer = self._answers.get(place)
        if answer is None:
            return push.given_at
        return answer.transit.arrived(push.given_at, now=asyncio.get_running_loop().time())

    def lapsed(self, given_at: float) -> None:
        """Pulls leave by another rule: when none has come for a while (R24)."""

    def revoked(self, slot: OwnedPartition, taken: list[Taken], reason: str) -> None:
        """Nobody to tell: the receipts are stale from now on."""

    def deleted(self, why: Refused) -> None:
        """Its group is gone: nobody waits any longer."""
        self.answer_all()

    def moved_away(self) -> None:
        """Never: its name is this gateway's."""

    def answer_all(self) -> None:
        """Nobody waits any longer."""
        for pull in self._waiting:
            if not pull.answered.done():
                pull.answered.set_result(pull.messages)

    def give_back(self, messages: Sequence[PulledMessage]) -> None:
        """These were given and could not be handed over: they return at once, uncounted."""
        now = asyncio.get_running_loop().time()
        for slot, receipt in self._given(messages):
            push, offset = receipt.push, receipt.offset
            taken = slot.delivery.give_back(push, offset, now=now)
            slot.returned([(push, offset), *taken], now)

    def _given(self, messages: Iterable[PulledMessage]) -> Iterator[tuple[OwnedPartition, Receipt]]:
        """Of messages that were pulled here: where each is in flight."""
        place = (self.runtime.queue.queue_id, self.runtime.group.group_id)
        for message in messages:
            receipt = self._receipts.decode(*place, message.receipt)
            slot = self.slots.get(message.partition)
            if receipt is not None and slot is not None and slot.delivery.epoch == receipt.epoch:
                yield slot, receipt

    def _awaits_storage(self, pull: _Pull) -> bool:
        """Whether the storage was asked for what this pull may get, and answers soon: an answer of
        nothing would say that there is nothing."""
        if pull.reserved:
            return True
        if pull.answered.done() or asyncio.get_running_loop().time() >= pull.asked_at + STORAGE_S:
            return False
        runtime = self.runtime
        is_coming = any(runtime.is_being_owned(number, self) for number in runtime.assignment)
        is_read = any(slot.fetch.reads for slot in self.slots.values())
        return is_coming or is_read or self._scheduled  # a partition, or a record, has just come

    async def pull(self, messages_max: int, wait_s: float) -> list[PulledMessage]:
        """Wait for messages."""
        loop = asyncio.get_running_loop()
        pull = _Pull(messages_max, loop.create_future(), asked_at=loop.time())
        self._waiting.append(pull)
        self.last_pull = loop.time()
        self.pump()
        try:
            await asyncio.wait((pull.answered,), timeout=max(wait_s, 0.05))
            while self._awaits_storage(pull):
                if pull.answered.done():  # while what it has is being settled
                    await asyncio.sleep(0.05)
                else:
                    await asyncio.wait((pull.answered,), timeout=0.05)
            self.runtime.log.on_take(pull)
            return pull.messages
        except asyncio.CancelledError:
            # Its client is gone: what it was given in this very turn returns.
            self.runtime.log.on_leave(pull)
            self.give_back(pull.messages)
            raise
        finally:
            self.last_pull = loop.time()
            if pull in self._waiting:
                self._waiting.remove(pull)


class Pulls:
    """See the module."""

    def __init__(
        self, groups: Groups, receipts: Receipts, owner_client: OwnerClient | None = None
    ) -> None:
        """`owner_client`: owners at other gateways; None: there are none."""
        self._groups = groups
        self._receipts = receipts
        self._settling = PullSettling(groups, receipts, owner_client)
        self._consumers: dict[str, PullConsumer] = {}
        self._joining = WeakValueDictionary[str, asyncio.Lock]()
        """Group → who joins in its name, as long as anybody waits for that."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[Principal] = Counter()
        """Pulls that wait, by who asked."""
        self._draining = False

    async def pull(
        self,
        queue: Queue,
        group: Group,
        messages_max: int,
        wait_s: float,
        *,
        who: Principal = ANYBODY,
    ) -> list[PulledMessage]:
        """Up to `messages_max` messages; waits up to `wait_s` seconds for the first one. `who`
        pulls: nobody takes all the places to wait."""
        if not has_room(self._held[who], 1, self.waiting, limits.PULLS_WAITING_MAX):
            raise Refused("too_many", "too many pulls wait here", 1.0)
        self._held[who] += 1
        try:
            consumer = await self._consumer(queue, group)
            return await consumer.pull(messages_max, 0 if self._draining else wait_s)
        finally:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

    @property
    def waiting(self) -> int:
        """How many pulls wait."""
        return self._held.total()

    async def _consumer(self, queue: Queue, group: Group) -> PullConsumer:
        joining = self._joining.setdefault(group.group_id, asyncio.Lock())
        async with joining:
            consumer = self._consumers.get(group.group_id)
            if consumer is None or consumer.runtime.closed:
                runtime = self._groups.runtime(queue, group)
                gateway = self._groups.presence.gateway
                consumer = PullConsumer(runtime, self._receipts, gateway)
                consumer.last_pull = asyncio.get_running_loop().time()
                await consumer.runtime.join(consumer)  # or else the next pull tries again
                self._consumers[group.group_id] = consumer
                self._sweep_later()
            return consumer

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def _sweep(self) -> None:
        """Virtual consumers that nobody pulls from leave: their partitions drain to others."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        for group_id, consumer in list(self._consumers.items()):
            consumer.look()
            if consumer.is_idle(loop.time()):
                del self._consumers[group_id]
                task = loop.create_task(consumer.runtime.retire(consumer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._consumers:
            self._sweep_later()

    # --- Receipts ------------------------------------------------------------------------------

    async def ack(self, queue: Queue, group: Group, receipts: list[str]) -> PullSettled:
        """Settle; durable when this returns."""
        return await self._settling.settle(queue, group, receipts, "ack", None)

    async def nack(
        self,
        queue: Queue,
        group: Group,
        receipts: list[str],
        delay_s: float | None,
        *,
        reason: str | None = None,
        reject: bool = False,
    ) -> PullSettled:
        """Return them; they come again after `delay_s` or the backoff, or (`reject`) not at all.
        Durable when this returns."""
        return await self._settling.settle(
            queue, group, receipts, "nack", delay_s, reason=reason, reject=reject
        )

    async def extend(
        self, queue: Queue, group: Group, receipts: list[str], lease_s: float | None
    ) -> PullSettled:
        """Prolong leases to `lease_s` seconds from now, or the group's lease."""
        return await self._settling.settle(queue, group, receipts, "extend", lease_s)

    def release(self, queue: Queue, group: Group, messages: Sequence[PulledMessage]) -> None:
        """These were given and could not be handed over: they return at once."""
        consumer = self._consumers.get(group.group_id)
        if consumer is not None:
            consumer.give_back(messages)

    def hand_over(
        self,
        queue: Queue,
        group: Group,
        messages: Sequence[PulledMessage],
        size: int,
        taken_bytes: Callable[[], int | None],
    ) -> None:
        """As Pulling.hand_over."""
        consumer = self._consumers.get(group.group_id)
        if consumer is not None:
            consumer.hand_over(messages, size, taken_bytes)

    def drain(self) -> None:
        """Answer every waiting pull with what there is: nothing."""
        self._draining = True
        for consumer in self._consumers.values():
            consumer.answer_all()

    def close(self) -> None:
        """No sweeping any more."""
        if self._sweeper is not None:
            self._sweeper.cancel()
