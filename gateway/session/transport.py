"""What the two sides of a session see of each other, as types.

Outlet         the transport (a WebSocket) as the session sees it
Broker …       the inside as the session sees it; `gateway.broker` fits by its shape

The session as the inside (groups, readers) sees it is SessionPort of gateway.delivery.ports.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.delivery.ports import DeliveryList, SessionPort, StartFrom
from gateway.deliverylog.log import DeliveryLog
from gateway.models import SubscriptionDescription, Transport
from gateway.publish.batch import PendingPublish
from gateway.wire.frames import Close, Position
from metadata.catalog import Group, GroupSettings, Principal, Queue
from metadata.port import Metadata
from push.errors import Refused
from push.message import Message
from runtime.addresses import ClientAddress
from runtime.loop.end_of_turn import EndOfTurn


class Outlet(Protocol):
    """A transport, as the session sees it."""

    @property
    def address(self) -> ClientAddress:
        """Where the client is that it was opened by; UNKNOWN: it only stands in for one."""

    @property
    def transport(self) -> Transport | None:
        """Which kind it is; None: it only stands in for one."""

    @property
    def unsent_bytes(self) -> int:
        """What it has for the client and has not handed to the network, or not seen arrive."""

    def send(self, frame: bytes) -> None:
        """As SessionPort.send."""

    def writable(self) -> bool:
        """As SessionPort.writable; `Session.resume` says when it has become True again."""

    def ping(self) -> None:
        """Ask for a sign of life."""

    def taken_bytes(self) -> int | None:
        """How much the client's side has taken so far, while something is on its way to it; None:
        nothing is, or nobody can know."""

    def arrived(self, given_at: float) -> float | None:
        """As SessionPort.arrived."""

    @property
    def is_in_transit(self) -> bool:
        """As SessionPort.is_in_transit."""

    def named(self, given_at: float) -> None:
        """As SessionPort.named."""

    def pause_reading(self) -> None:
        """Deliver nothing more that the client sends, until resume_reading."""

    def resume_reading(self) -> None:
        """Go on."""

    def close(self, close: Close) -> None:
        """Send what is queued, then close. `Session.closed` is called before it returns."""

    def adopt(self, session: Any) -> None:
        """From now on this is the transport of another session, whose client came back."""

    def let_go(self, close: Close) -> None:
        """Close; the session lives on over another transport and is told nothing more."""


class Settled(Protocol):
    """What an ack, nack or extend did."""

    @property
    def settled(self) -> int: ...

    @property
    def stale(self) -> DeliveryList: ...

    @property
    def not_delivered(self) -> DeliveryList: ...

    @property
    def durable(self) -> bool:
        """False: whether what settled is durable will never be known here."""


class Consumer(Protocol):
    """A session's place in a group."""

    @property
    def given_total(self) -> int:
        """Messages that were pushed to it so far."""

    async def join(self) -> None:
        """Take its place. Raises TocsinError: it has none, perhaps as it has left meanwhile."""

    def grant(self, granted_total: int) -> None: ...

    def ack(
        self,
        deliveries: DeliveryList,
        started: DeliveryList,
        confirmed: Callable[[Settled], None] | None,
    ) -> Settled:
        """`confirmed` is called once what settled is durable, perhaps before this returns."""

    def nack(
        self,
        deliveries: DeliveryList,
        delay_s: float | None,
        reason: str | None,
        *,
        reject: bool = False,
        confirmed: Callable[[Settled], None] | None = None,
    ) -> Settled:
        """`confirmed` as in `ack`: count, delay and reason are durable then."""

    def extend(
        self, deliveries: DeliveryList, started: DeliveryList, lease_s: float | None
    ) -> Settled: ...

    def pump(self) -> None: ...

    def suspend(self) -> None:
        """The session's transport is gone: give nothing until `hold`."""

    def await_held(self) -> None:
        """The client is there again, and has a while from now to say what it holds."""

    def hold(
        self, received: int, deliveries: DeliveryList
    ) -> DeliveryList | Awaitable[DeliveryList]:
        """The client came back with these, of `received` messages in all, and goes on. Returns
        which of them are not its own any more: at once, or where some are of an epoch before,
        when it is known."""

    def unsettled(self) -> int:
        """Deliveries that were given and have neither been settled nor returned."""

    def subscription_facts(self) -> SubscriptionDescription:
        """For looking at."""

    def end(self, why: Refused) -> None:
        """It is nobody's any more: its client hears why, what is unsettled returns."""

    def leave(self, *, moves: bool = False, done: Callable[[], None] | None = None) -> None:
        """`moves`: this gateway goes down, and its client goes on at the next one. `done` is called
        once, when all that was settled or returned of its deliveries is durable, or is known to be
        somebody else's by then."""


class Reader(Protocol):
    """A subscription without a group."""

    @property
    def verdicts(self) -> Sequence[Mapping[str, object]]: ...

    @property
    def given_total(self) -> int:
        """As Consumer.given_total."""

    def grant(self, granted_total: int) -> None: ...

    def pump(self) -> None: ...

    def subscription_facts(self) -> SubscriptionDescription:
        """For looking at."""

    def end(self, why: Refused) -> None:
        """It reads no more, and its client hears why."""

    def close(self) -> None: ...


class Publisher(Protocol):
    """Takes messages."""

    @property
    def is_shared(self) -> bool:
        """Whether several queues publish, as far as the last second tells."""

    @property
    def is_skewed(self) -> bool:
        """Whether heavy queues have light ones beside them, as far as the last second tells."""

    @property
    def has_enough(self) -> bool:
        """Whether heavy queues have light ones beside them, and nothing more of heavy ones is
        needed yet."""

    def commit_early(self) -> bool:
        """Commit what was read now, if heavy queues have light ones beside them. Returns whether a
        commit is under way."""

    def submit(self, publish: PendingPublish) -> None:
        """Publish; it is answered exactly once, on the loop, perhaps before this returns."""


class Groups(Protocol):
    """The groups' consumers."""

    def consumer(
        self,
        link: SessionPort,
        subscription: int,
        queue: Queue,
        group: Group,
        credit: int,
        *,
        held: bool = False,
    ) -> Consumer:
        """One that is to join. `held`: it is given nothing before `hold`. Raises Refused."""


class Readers(Protocol):
    """The readers."""

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
    ) -> Reader: ...


class Broker(Protocol):
    """The inside. What it refuses it raises as push.errors.TocsinError."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def delivery_log(self) -> DeliveryLog: ...

    @property
    def end_of_turn(self) -> EndOfTurn: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def readers(self) -> Readers: ...

    async def queue_for_publish(
        self, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        """Finds it, or creates it where the broker may and one of the messages can be stored; where
        none can, a queue that is nowhere: published to it, each gets its error (P12). Else
        Refused(queue_not_found)."""

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
        """Create it (True), or find it as it is (False). Raises Refused(would_delete): see
        gateway.broker.Broker."""
