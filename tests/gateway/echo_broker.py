"""The inside of a gateway in a page: `gateway.session.transport.Broker` in memory, one partition a
queue.

It publishes, gives out in order and settles for real, without leases, attempts or storage, so that
sessions and sockets are tested alone.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.delivery.ports import DeliveryList, SessionPort, StartFrom
from gateway.deliverylog.log import DeliveryLog
from gateway.models import CreditDescription, SubscriptionDescription
from gateway.publish.batch import Outcome, PendingPublish
from gateway.session.transport import Settled
from gateway.wire import frames
from gateway.wire.frames import Position
from metadata.catalog import Group, GroupSettings, Principal, Queue, QueueSettings
from metadata.port import Metadata
from push.errors import Refused, Unknown
from push.message import Message, check_message, encode_message
from runtime.loop.end_of_turn import EndOfTurn
from tests.gateway.plain_metadata import NOW_UNIX_MS, PlainMetadata

EPOCH = 1


@dataclass
class EchoSettled:
    """gateway.session.transport.Settled."""

    settled: int = 0
    stale: DeliveryList = field(default_factory=list)
    not_delivered: DeliveryList = field(default_factory=list)
    durable: bool = True


@dataclass
class Submitted:
    """What a publish came in as."""

    queue: Queue
    messages: Sequence[Message]
    producer: bytes | None
    sequence: int | None
    resolved: int


class EchoPlace:
    """gateway.session.transport.Consumer and gateway.session.transport.Reader in one: push number =
    offset + 1."""

    def __init__(self, log: list[bytes], link: SessionPort, subscription: int, start: int) -> None:
        self.log = log
        self.link = link
        self.subscription = subscription
        self.next = start
        self.credit = 0
        self.sent = 0
        self.open: set[int] = set()
        self.given: set[int] = set()
        self.is_durable = True
        self.is_gone = asyncio.Event()
        self.is_stalled = asyncio.Event()
        self.pumps = 0
        self.waiting: list[tuple[Callable[[Settled], None], EchoSettled]] | None = None
        """A list: confirmations wait in it until the test calls them."""
        self.verdicts: list[dict[str, object]] = [{"partition": 0, "verdict": "resumed"}]

        self.gate: asyncio.Event | None = None
        """Joining waits for it."""

    given_total = 0
    """Messages: none are ever told of."""

    async def join(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

    def grant(self, granted_total: int) -> None:
        self.credit = granted_total
        self.pump()

    def subscription_facts(self) -> SubscriptionDescription:
        return SubscriptionDescription(
            subscription=self.subscription,
            queue="echo",
            group=None,
            credit=CreditDescription(
                granted=self.credit, used=self.sent, open=self.credit - self.sent
            ),
        )

    def end(self, why: Refused) -> None:
        self.link.send(frames.error(why, subscription=self.subscription))

    def suspend(self) -> None:
        """It goes on pushing into whatever the session has."""

    def await_held(self) -> None:
        """It never is late."""

    def hold(self, received: int, deliveries: DeliveryList) -> DeliveryList:
        return []

    def pump(self) -> None:
        self.pumps += 1
        while self.next < len(self.log) and self.sent < self.credit:
            if not self.link.writable():
                self.is_stalled.set()
                return
            self.link.send(self.push(self.next))
            self.open.add(self.next)
            self.given.add(self.next)
            self.next += 1
            self.sent += 1

    def push(self, offset: int) -> bytes:
        head = frames.push_head(
            subscription=self.subscription,
            partition=0,
            epoch=EPOCH,
            push=offset + 1,
            offset=offset,
            attempt=1,
            id_prefix="q-1-0-",
            published_unix_ms=NOW_UNIX_MS,
        )
        return frames.push_frame(head, self.log[offset])

    def settle(self, deliveries: DeliveryList) -> EchoSettled:
        answer = EchoSettled(durable=self.is_durable)
        for delivery in deliveries:
            _, epoch, push, *_ = delivery
            if epoch < EPOCH:
                answer.stale.append(delivery)
            elif push - 1 not in self.given:
                answer.not_delivered.append(delivery)
            else:
                self.open.discard(push - 1)
                answer.settled += 1
        return answer

    def ack(
        self,
        deliveries: DeliveryList,
        started: DeliveryList,
        confirmed: Callable[[Settled], None] | None,
    ) -> Settled:
        answer = self.settle(deliveries)
        if confirmed is not None and self.waiting is not None:
            self.waiting.append((confirmed, answer))
        elif confirmed is not None:
            confirmed(answer)
        return answer

    def nack(
        self, deliveries: DeliveryList, delay_s: float | None, reason: str | None, *,
        reject: bool = False, confirmed: Callable[[Settled], None] | None = None,
    ) -> Settled:  # fmt: skip
        answer = self.settle(deliveries)
        if confirmed is not None and self.waiting is not None:
            self.waiting.append((confirmed, answer))
        elif confirmed is not None:
            confirmed(answer)
        return answer

    def extend(
        self, deliveries: DeliveryList, started: DeliveryList, lease_s: float | None
    ) -> Settled:
        answer = self.settle(deliveries)
        self.open.update(delivery[2] - 1 for delivery in deliveries)
        return answer

    def expire(self) -> None:
        """The leases end of all that it holds."""
        self.open.clear()
        self.link.emptied()

    def unsettled(self) -> int:
        return len(self.open)

    def leave(self, *, moves: bool = False, done: Callable[[], None] | None = None) -> None:
        if done is not None:
            done()
        assert not self.is_gone.is_set(), "left twice"
        self.is_gone.set()

    close = leave


class EchoBroker:
    """gateway.session.transport.Broker, Publisher, Groups and Readers in one."""

    def __init__(self, *, auto_create: bool = False) -> None:
        self.metadata: Metadata = PlainMetadata()
        self.delivery_log = DeliveryLog()
        self.end_of_turn = EndOfTurn()
        self.logs: dict[str, list[bytes]] = {}
        self.places: list[EchoPlace] = []
        self.submitted: list[Submitted] = []
        self.unanswered: list[Callable[[], None]] | None = None
        """A list: answers wait in it until the test calls them."""
        self.auto_create = auto_create
        self.gate = asyncio.Event()
        """Opening anything, and making a queue on first use, waits for it."""
        self.gate.set()
        self.bug: Exception | None = None
        """Raised by whatever is called next."""
        self.numbers = itertools.count()
        self.is_shared = self.is_skewed = self.has_enough = self.is_storing = False

    def commit_early(self) -> bool:
        """What is published is stored at once."""
        return self.is_storing

    @property
    def publisher(self) -> "EchoBroker":
        return self

    @property
    def groups(self) -> "EchoBroker":
        return self

    @property
    def readers(self) -> "EchoBroker":
        return self

    async def add_queue(self, name: str, settings: QueueSettings | None = None) -> Queue:
        anybody = Principal("anybody")
        queue, _ = await self.metadata.put_queue(anybody, name, settings or QueueSettings())
        return queue

    async def queue_for_publish(
        self, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        await self.gate.wait()
        self.raise_bug()
        if self.auto_create:
            return await self.add_queue(name)
        return self.metadata.find_queue(principal, name)

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: StartFrom | None,
        *,
        deletes_max: int | None = None,
    ) -> tuple[Group, bool]:
        return await self.metadata.put_group(principal, queue, name, settings)

    def raise_bug(self) -> None:
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug

    def log(self, queue: Queue) -> list[bytes]:
        return self.logs.setdefault(queue.queue_id, [])

    def submit(self, publish: PendingPublish) -> None:
        queue, messages = publish.queue, publish.messages
        self.raise_bug()
        self.submitted.append(
            Submitted(queue, messages, publish.producer, publish.sequence, publish.resolved)
        )
        log, outcomes = self.log(queue), list[Outcome]()
        for message in messages:
            try:
                check_message(message, queue.settings.message_bytes_max)
            except Refused as error:
                outcomes.append(error)
                continue
            if message.id == "unknown":
                outcomes.append(Unknown())
                continue
            again = (True,) if message.id == "again" else ()
            outcomes.append((0, len(log), *again))
            log.append(encode_message(message))
        publish.outcomes, publish.generation = outcomes, 1
        publish.durability = {"level": "all", "copies": 1}
        if self.unanswered is None:
            publish.settle(len(messages))
        else:
            self.unanswered.append(lambda: publish.settle(len(messages)))
        for place in self.places:
            if not place.is_gone.is_set():
                place.pump()

    def consumer(
        self,
        link: SessionPort,
        subscription: int,
        queue: Queue,
        group: Group,
        credit: int,
        *,
        held: bool = False,
    ) -> EchoPlace:
        self.raise_bug()
        place = self.place(link, subscription, queue, 0)
        place.gate = self.gate
        return place

    async def open(
        self,
        link: SessionPort,
        subscription: int,
        queue: Queue,
        *,
        keys: list[str] | None,
        start: StartFrom | None,
        position: Position | None,
        credit: int,
    ) -> EchoPlace:
        await self.gate.wait()
        return self.place(
            link, subscription, queue, len(self.log(queue)) if start == "latest" else 0
        )

    def place(self, link: SessionPort, subscription: int, queue: Queue, start: int) -> EchoPlace:
        place = EchoPlace(self.log(queue), link, subscription, start)
        self.places.append(place)
        return place
