"""Pulls: the consumers of HTTP (R24).

On this gateway the pulls of a group form one virtual consumer. It takes part in the assignment from
the first pull on, and serves waiting pulls in their order. It leaves in an orderly way when no pull
has come for a while, unless it holds messages that no other consumer of the group could be given.

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
from gateway.delivery.remote_owner import OwnerClient, durable, has_ended, judge, owned_of
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
"""Receipts, each with its index in the request: [(index, receipt), …]."""


@dataclass(slots=True)
class _Asked:
    """Progress of one request that settles, returns or extends deliveries by receipts."""

    counted: dict[int, bool] = field(default_factory=dict)
    """Index in the request → whether the delivery counted; False: it has ended."""
    touched: dict[int, OwnedPartition] = field(default_factory=dict)
    elsewhere: dict[tuple[int, int], Named] = field(default_factory=dict)
    """Receipts for owners at other gateways, by partition and epoch."""


class PullSettling:
    """Judgement of receipts, and answers to them. `owner_client` None: there is no other
    gateway."""

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
        """Settle, return or extend the deliveries that receipts name, each judged by the owned
        partition that gave it. `seconds`: a nack's delay or an extend's lease; None: the group's.
        Returns when the effect is durable.

        Raises:
            Unknown: the outcome of some of them is not known; sending all of them again is safe.
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
            owned = owned_of(runtime, *place)
            if owned is not None:
                delivery = (receipt.push, receipt.offset)
                asked.counted[index] = judge(
                    owned, verb, delivery, seconds, now, reason=reason, reject=reject
                )
                asked.touched[receipt.partition] = owned
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
        assert self._owner_client is not None  # else all are here
        verdicts = await self._owner_client.ask(place, letter)
        for (index, _), verdict in zip(named, verdicts, strict=True):
            counted[index] = verdict == SETTLED


async def _all_of(
    mine: Coroutine[Any, Any, bool],
    theirs: Sequence[Coroutine[Any, Any, None]],
    *,
    is_partly_done: bool,
) -> None:
    """Wait for the acts here and for the owners elsewhere, all at once. The whole request has one
    answer. It succeeds only if all of it did, and is refused only if nothing at all happened."""
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
"""Seconds from its request on in which a pull without messages is not answered while the storage
may soon bring some, even if it does not wait for messages."""
_MESSAGE = msgspec.json.Decoder(Message)


@dataclass(slots=True, eq=False)
class _Pull:
    """A waiting pull."""

    room: int
    answered: "asyncio.Future[list[PulledMessage]]"
    asked_at: float
    """The time of the request, by the loop's clock."""
    messages: list[PulledMessage] = field(default_factory=list)
    size: int = 0
    """Bytes of the parts of records that hold its messages."""
    reserved: int = 0
    """Number of messages that are being settled before they are handed over (R23)."""


@dataclass(slots=True, eq=False)
class _Answer:
    """A large answer to a pull, and how far it is known to have come on its way to the client."""

    transit: Transit
    mark: int
    taken_bytes: Callable[[], int | None]

    def look(self, now: float) -> None:
        """Look how far the answer has come. The bytes that TCP's other end has taken are all that
        can be seen of that."""
        taken_bytes = self.taken_bytes()
        if taken_bytes is None:
            self.transit.answered(self.mark, now=now)
        else:
            self.transit.look(taken_bytes, now=now)


class PullConsumer:
    """The virtual consumer of one group's pulls at this gateway."""

    pulls = True

    def __init__(self, runtime: GroupRuntime, receipts: Receipts, gateway: str) -> None:
        """`gateway`: the gateway's name; "": there is only one."""
        self.runtime = runtime
        self.name = f"pulls-{gateway}" if gateway else "pulls"
        self.linger_s = 0.0
        self.left = self.stays = self.is_unresponsive = False
        self.owner = os.urandom(OWNER_BYTES)
        self.log_place = LoggedPlace(runtime.log, runtime.queue, runtime.group.name)
        self.owned_partitions: dict[int, OwnedPartition] = {}
        self.last_pull = 0.0
        self._receipts = receipts
        self._waiting: deque[_Pull] = deque()
        self._serving: _Pull | None = None
        self._scheduled = False
        self._turn = 0
        self._in_flight = 0
        self._answers: dict[tuple[int, int, int], _Answer] = {}
        """(partition, epoch, push) → the large answer in which messages of the push went out."""

    def described(self) -> OwnerDescription:
        return OwnerDescription(consumer=self.name, transport="pull")

    @property
    def busy(self) -> bool:
        """Whether pulls wait."""
        return bool(self._waiting)

    # enforces: R24
    def is_idle(self, now: float) -> bool:
        """Whether it should leave, because no pull has waited for PULL_IDLE_S and no large answer
        moves. If there is no other consumer, messages in flight keep it, because leaving would cut
        off their leases and help nobody."""
        if self.busy or now - self.last_pull <= limits.PULL_IDLE_S:
            return False
        if any(answer.transit.moves(now=now) for answer in self._answers.values()):
            return False
        others = len(self.runtime.members) > 1 or self.runtime.part.others()
        return not self._in_flight or bool(others)

    def available(self) -> int:
        """Return how many messages the pull that is being served still takes, within the most that
        all pulls may hold."""
        if self._serving is None or self.runtime.queue.paused:
            return 0
        if self._serving.size >= limits.PULL_BYTES_MAX:
            return 0
        return min(self._serving.room, max(0, limits.IN_FLIGHT_PULLED_MAX - self._in_flight))

    def share(self, available: int) -> Share:
        """Return the share that one key may have of what is available: all of it, while less than
        half of IN_FLIGHT_PULLED_MAX is in flight."""
        room = limits.IN_FLIGHT_PULLED_MAX - self._in_flight
        return share(room, room - kept(limits.IN_FLIGHT_PULLED_MAX), self._in_flight)

    @property
    def blocked_by(self) -> str:
        """The reason why `available` is 0. credit: no pull waits. in_flight: pulled messages are
        unsettled, and a pull waits until some are settled. paused: the queue is."""
        if self.runtime.queue.paused:
            return "paused"
        return "in_flight" if self._in_flight >= limits.IN_FLIGHT_PULLED_MAX else "credit"

    def pump(self) -> None:
        """Serve waiting pulls in the next turn of the loop."""
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
        for owned in list(self.owned_partitions.values()) if not self._waiting else ():
            owned.pump(0)  # lines and deadlines go on without a pull

    def _serve(self, pull: _Pull) -> None:
        self._serving = pull
        owned_partitions = list(self.owned_partitions.values())
        if owned_partitions:
            self._turn = (self._turn + 1) % len(owned_partitions)
        for owned in owned_partitions[self._turn :] + owned_partitions[: self._turn]:
            owned.delivery.begin_pull()
            owned.pump(limits.PULL_MESSAGES_MAX)
        self._serving = None

    def reserve(self, count: int) -> object:
        """Reserve room in the pull that is being served, for messages that are being settled before
        they are handed over (R23). Returns that pull."""
        pull = self._serving
        assert pull is not None  # else nothing is available
        pull.reserved += count
        pull.room -= count
        return pull

    def release(self, count: int, reserved: object) -> None:
        """Free a reservation, because its messages were not settled. The pull goes on without
        them."""
        assert isinstance(reserved, _Pull)
        reserved.reserved -= count
        reserved.room += count
        self.pump()

    def deliver(
        self, owned: OwnedPartition, record: Record, push: Push, reserved: object = None
    ) -> bool:
        """Put the messages of a push into the pull that is being served, or that they were reserved
        for."""
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
        until = int((time.time() + owned.delivery.lease_s) * 1000)
        for offset in push.offsets():
            pull.messages.append(self._message(owned, record, offset, push, until))
        return True

    def _message(
        self, owned: OwnedPartition, record: Record, offset: int, push: Push, until: int
    ) -> PulledMessage:
        message = _MESSAGE.decode(record.slice(offset, offset))
        receipt = Receipt(
            owned.delivery.generation,
            owned.partition.number,
            owned.delivery.epoch,
            push.number,
            offset,
        )
        return PulledMessage(
            receipt=self._receipts.encode(owned.queue.queue_id, owned.group.group_id, receipt),
            id=message.id if message.id is not None else f"{owned.id_prefix}{offset}",
            partition=owned.partition.number,
            offset=offset,
            attempt=push.attempt,
            published_unix_ms=record.header.published_unix_ms,
            lease_until_unix_ms=until,
            key=message.key,
            body=message.body if message.body_base64 is None else None,
            body_base64=message.body_base64,
            content_type=message.content_type,
            headers=message.headers,
            sent_unix_ms=message.sent_unix_ms,
            deliver_at_unix_ms=message.deliver_at_unix_ms,
        )

    def holds(self, more: int) -> None:
        """Count this many more pulled messages as unsettled. Below 0: fewer, because they were
        settled, returned, or cut off."""
        was_full = self._in_flight >= limits.IN_FLIGHT_PULLED_MAX
        self._in_flight += more
        if was_full:
            self.pump()

    # --- Large answers --------------------------------------------------------------------------

    def hand_over(
        self, messages: Sequence[PulledMessage], size: int, taken_bytes: Callable[[], int | None]
    ) -> None:
        now = asyncio.get_running_loop().time()
        transit = Transit(opened_at=-inf)
        answer = _Answer(transit, transit.mark(size, now=now), taken_bytes)
        for owned, receipt in self._given(messages):
            self._answers[owned.partition.number, receipt.epoch, receipt.push] = answer

    def look(self) -> None:
        """Check how far large answers have come. Called once a second."""
        now = asyncio.get_running_loop().time()
        for answer in {id(one): one for one in self._answers.values()}.values():
            if answer.transit.is_awaited:
                answer.look(now)
                if not answer.transit.is_awaited:
                    self.last_pull = now  # its client may go on from here
        self._answers = {
            place: answer
            for place, answer in self._answers.items()
            if (owned := self.owned_partitions.get(place[0])) is not None
            and owned.delivery.epoch == place[1]
            and owned.delivery.push(place[2]) is not None
            and (answer.transit.is_awaited or answer.transit.is_slow)
        }

    def arrived(self, owned: OwnedPartition, push: Push) -> float | None:
        place = (owned.partition.number, owned.delivery.epoch, push.number)
        answer = self._answers.get(place)
        if answer is None:
            return push.given_at
        return answer.transit.arrived(push.given_at, now=asyncio.get_running_loop().time())

    def lapsed(self, given_at: float) -> None:
        """Do nothing. Pulls leave by another rule: when none has come for a while (R24)."""

    def revoked(self, owned: OwnedPartition, taken: list[Taken], reason: str) -> None:
        """Do nothing. The receipts are stale from now on, and no client is connected."""

    def deleted(self, why: Refused) -> None:
        """Answer all waiting pulls, because the group was deleted."""
        self.answer_all()

    def moved_away(self) -> None:
        """Do nothing. Never called, because its name belongs to this gateway."""

    def answer_all(self) -> None:
        """Answer all waiting pulls with the messages that they have."""
        for pull in self._waiting:
            if not pull.answered.done():
                pull.answered.set_result(pull.messages)

    def give_back(self, messages: Sequence[PulledMessage]) -> None:
        """Return messages that were given and could not be handed over, at once and uncounted."""
        now = asyncio.get_running_loop().time()
        for owned, receipt in self._given(messages):
            push, offset = receipt.push, receipt.offset
            taken = owned.delivery.give_back(push, offset, now=now)
            owned.returned([(push, offset), *taken], now)

    def _given(self, messages: Iterable[PulledMessage]) -> Iterator[tuple[OwnedPartition, Receipt]]:
        """Yield the owned partition and receipt of each of these messages that was given under its
        owned partition's epoch here."""
        place = (self.runtime.queue.queue_id, self.runtime.group.group_id)
        for message in messages:
            receipt = self._receipts.decode(*place, message.receipt)
            owned = self.owned_partitions.get(message.partition)
            if receipt is not None and owned is not None and owned.delivery.epoch == receipt.epoch:
                yield owned, receipt

    def _awaits_storage(self, pull: _Pull) -> bool:
        """Whether to wait on for a pull, because messages are being settled for it, or the storage
        may soon answer with some (until STORAGE_S). An empty answer before that would claim that
        there are none."""
        if pull.reserved:
            return True
        if pull.answered.done() or asyncio.get_running_loop().time() >= pull.asked_at + STORAGE_S:
            return False
        runtime = self.runtime
        is_coming = any(runtime.is_being_owned(number, self) for number in runtime.assignment)
        is_read = any(owned.fetch.reads for owned in self.owned_partitions.values())
        return is_coming or is_read or self._scheduled  # a partition, or a record, has just come

    async def pull(self, messages_max: int, wait_s: float) -> list[PulledMessage]:
        """Return up to `messages_max` messages, as soon as there are some. After `wait_s` seconds
        return none, unless the storage may soon bring some (STORAGE_S)."""
        loop = asyncio.get_running_loop()
        pull = _Pull(messages_max, loop.create_future(), asked_at=loop.time())
        self._waiting.append(pull)
        self.last_pull = loop.time()
        self.pump()
        try:
            await asyncio.wait((pull.answered,), timeout=max(wait_s, 0.05))
            while self._awaits_storage(pull):
                if pull.answered.done():  # while its messages are being settled
                    await asyncio.sleep(0.05)
                else:
                    await asyncio.wait((pull.answered,), timeout=0.05)
            self.runtime.log.on_take(pull)
            return pull.messages
        except asyncio.CancelledError:
            # Its client has disconnected. Messages that it was given in this very turn return.
            self.runtime.log.on_leave(pull)
            self.give_back(pull.messages)
            raise
        finally:
            self.last_pull = loop.time()
            if pull in self._waiting:
                self._waiting.remove(pull)


class Pulls:
    """Pulls of all groups on this gateway, and acts on pulled messages."""

    def __init__(
        self, groups: Groups, receipts: Receipts, owner_client: OwnerClient | None = None
    ) -> None:
        """`owner_client`: access to owners at other gateways; None: there are none."""
        self._groups = groups
        self._receipts = receipts
        self._settling = PullSettling(groups, receipts, owner_client)
        self._consumers: dict[str, PullConsumer] = {}
        self._joining = WeakValueDictionary[str, asyncio.Lock]()
        """Group id → lock under which its virtual consumer is found or made; dropped when no pull
        waits for it."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[Principal] = Counter()
        """Principal → number of its pulls that are under way."""
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
        """Return up to `messages_max` messages; wait up to `wait_s` seconds for the first one.
        `who`: the principal that pulls. Raises Refused(too_many) if too many pulls wait, of this
        principal or of all."""
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
        """Number of pulls of this gateway that are under way."""
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
        """Look at large answers, and let virtual consumers leave that get no pulls. Their
        partitions drain to others."""
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
        """Settle the deliveries that these receipts name. The effect is durable when this
        returns."""
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
        """Return the deliveries that these receipts name. They come again after `delay_s` or the
        backoff, or (`reject`) not at all. The effect is durable when this returns."""
        return await self._settling.settle(
            queue, group, receipts, "nack", delay_s, reason=reason, reject=reject
        )

    async def extend(
        self, queue: Queue, group: Group, receipts: list[str], lease_s: float | None
    ) -> PullSettled:
        """Prolong the leases of the deliveries that these receipts name to `lease_s` seconds from
        now, or the group's lease."""
        return await self._settling.settle(queue, group, receipts, "extend", lease_s)

    def release(self, queue: Queue, group: Group, messages: Sequence[PulledMessage]) -> None:
        """Give messages of a pull, which could not be handed over to its client, back to the group,
        at once and uncounted."""
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
        consumer = self._consumers.get(group.group_id)
        if consumer is not None:
            consumer.hand_over(messages, size, taken_bytes)

    def drain(self) -> None:
        """Answer every waiting pull with the messages that it has, and let no pull wait any
        more."""
        self._draining = True
        for consumer in self._consumers.values():
            consumer.answer_all()

    def close(self) -> None:
        """Stop looking for virtual consumers that get no pulls."""
        if self._sweeper is not None:
            self._sweeper.cancel()
