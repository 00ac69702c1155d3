"""What a slot is set into: its owner, and what all slots of a gateway share."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from gateway.counting import Counting
from gateway.delivery.flusher import Flusher
from gateway.deliverylog.lines import Cause
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.spans import Stages
from gateway.encryption.nack_reasons import NackReasons
from gateway.publish.tail import Tail
from push.delivery.giving import GiveOut, Taken
from push.delivery.leases import Push
from push.delivery.shares import Share
from push.ports import Storage
from push.record import Record
from runtime.loop.deadlines import Deadlines

if TYPE_CHECKING:
    from gateway.delivery.slot import Slot


class Owner(Protocol):
    """A consumer, as a slot sees it."""

    def available(self) -> int:
        """How many messages it may be given now."""

    def share(self) -> Share:
        """What a key may have of these; see `push.delivery.shares`."""

    @property
    def blocked_by(self) -> str:
        """Why `available` is 0: credit, socket, paused (the queue is), or in_flight: it holds as
        much as it may (P9)."""

    def deliver(self, slot: "Slot", record: Record, out: GiveOut, reserved: object = None) -> None:
        """Give it these; counts against `available`, or is what was `reserved`."""

    def reserve(self, count: int) -> object:
        """So many will be delivered as soon as they are settled (R23), and count against
        `available` from now on. Returns what `deliver` or `release` is handed then."""

    def release(self, count: int, reserved: object) -> None:
        """What was reserved will not be delivered."""

    def revoked(self, slot: "Slot", taken: list[Taken], reason: str) -> None:
        """These are no longer its own (R17)."""

    def arrived(self, slot: "Slot", push: Push) -> float | None:
        """From when the lease of this push counts; None: it is in transit (push.transit)."""

    def lapsed(self, given_at: float) -> None:
        """The lease of something that was given then, by the loop's clock, has ended by time."""

    def holds(self, more: int) -> None:
        """So many more of its deliveries are in flight; below 0: so many fewer, because they were
        settled, returned, or cut off."""

    def pump(self) -> None:
        """Something of its slots may have become possible."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A push that goes out when it is settled (R23)."""

    record: Record
    out: GiveOut
    stages: Stages | None
    cause: Cause
    reserved: object

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.out.count


@dataclass(slots=True)
class Context:
    """What all slots of a gateway share."""

    storage: Storage
    tail: Tail
    flusher: Flusher
    log: DeliveryLog
    deadlines: Deadlines
    move: "Callable[[Slot], Coroutine[Any, Any, None]]"
    """Move what is dead in the slot's partition to the dead-letter queue, durably, once."""
    counting: Counting
    reasons: NackReasons = field(default_factory=NackReasons)
    random: Random = field(default_factory=Random)
    gives_until: float = float("inf")
    """The moment of the loop's clock from which on others must take this gateway for gone, and it
    gives out nothing; see gateway.delivery.presence."""
    orphans: set[str] = field(default_factory=set)
    """Queues, by id, of which slots have ended while dead letters were not moved."""
    stale_settlements: int = 0
    """Acks, nacks and extends of epochs that are over, delivery by delivery as they were named."""
