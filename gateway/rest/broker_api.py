"""What the outside of the gateway (REST, server, admin) asks of its inside, the broker.

The composition in `gateway.broker` fits these protocols by its shape; nothing inherits from them.
Every call raises `push.errors.TocsinError` for what it refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gateway.accounting.audit import Audit
from gateway.accounting.usage import UsageCounter
from gateway.counters import HitRateSource
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.spans import PublishOrigin
from gateway.limits.limiter import Limiter
from gateway.models import (
    BackupProgress,
    ClusterList,
    Decided,
    Explained,
    HeldKeys,
    HeldPlace,
    LeaseList,
    ParkedKeys,
    Place,
    PulledMessage,
    PullSettled,
    SeekTo,
    Upkeeping,
    WhichKey,
)
from gateway.operator.removal import Begin, Removed
from gateway.operator.settings_change import ChangingSettings
from gateway.session import transport as link
from metadata.catalog import Group, GroupSettings, GroupStart, Principal, Queue, QueueSettings
from metadata.port import Metadata
from metadata.rights import ALL_KEYS, KeyScope
from push.errors import TocsinError
from push.message import Message
from push.places import Verb
from runtime.metrics.exposition import Samples


class Parks(Protocol):
    """What operators ask about parked keys."""

    async def parked(self, queue: Queue, group: Group, keys_max: int) -> ParkedKeys:
        """Up to `keys_max` of them."""

    async def decide(self, queue: Queue, group: Group, verb: Verb, which: WhichKey) -> Decided:
        """Retry, skip or release; durable when this returns. Raises Refused(not_parked)."""


class Explains(Protocol):
    """What operators ask about a key."""

    async def explain(
        self, principal: Principal, queue: Queue, key: str, group: str | None, after: str
    ) -> Explained:
        """What it waits for in this group, or (None) in those whose names come behind `after`."""


class Holds(Protocol):
    """What operators ask about the keys of a group."""

    async def held(
        self, queue: Queue, group: Group, limit: int, after: HeldPlace | None
    ) -> HeldKeys:
        """Up to `limit` keys that wait, behind `after`."""

    async def leases(
        self, queue: Queue, group: Group, limit: int, after: Place | None
    ) -> LeaseList:
        """Up to `limit` deliveries in flight, from `after` on."""


class Answered(Protocol):
    """The fate of one publish, in message order."""

    @property
    def outcomes(self) -> Sequence[tuple[int, int] | tuple[int, int, bool] | TocsinError]:
        """Per message (partition, offset), with True behind where it had been stored before, or why
        it was not stored."""

    @property
    def id_prefix(self) -> str:
        """What comes before partition, "-" and offset in the id of a message without its own."""

    @property
    def durability(self) -> Mapping[str, object]:
        """`{"level": …, "copies": n}`: what the receipts mean."""

    def counted_in(self, counter: UsageCounter) -> None:
        """Add what was stored, and what was refused, to a counter."""

    def ids(self, index: int) -> str:
        """The id of message `index`: the client's, or the one made of its place."""


class Publishing(Protocol):
    """The publisher."""

    @property
    def has_company(self) -> bool:
        """See link.Publisher."""

    @property
    def is_crowded(self) -> bool:
        """See link.Publisher."""

    @property
    def is_storing(self) -> bool:
        """See link.Publisher."""

    @property
    def has_enough(self) -> bool:
        """See link.Publisher."""

    def hurry(self) -> None:
        """See link.Publisher."""

    def submit(
        self,
        queue: Queue,
        messages: Sequence[Message],
        answer: Callable[[Answered], None],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
        resolved: int = 0,
        keys: KeyScope = ALL_KEYS,
        origin: PublishOrigin | None = None,
    ) -> None:
        """`answer` is called exactly once, on the loop, perhaps before this returns. `keys`: those
        that the right is on; any other message is answered `forbidden`. `origin`: what the delivery
        log is told of it."""


class Pulling(Protocol):
    """The virtual consumer of HTTP pulls (R24)."""

    async def pull(
        self, queue: Queue, group: Group, messages_max: int, wait_s: float, *, who: Principal
    ) -> list[PulledMessage]:
        """Up to `messages_max` messages for `who`; waits up to `wait_s` seconds for the first one.
        Nothing came, or the gateway drains: an empty list. Cancelled: nothing was given. Raises
        Refused(too_many): too many of his, or of everybody's, wait already."""

    def release(self, queue: Queue, group: Group, messages: Sequence[PulledMessage]) -> None:
        """These were given, but their client went away before the answer: they return to the
        group at once and without an attempt."""

    def hand_over(
        self,
        queue: Queue,
        group: Group,
        messages: Sequence[PulledMessage],
        size: int,
        taken_bytes: Callable[[], int | None],
    ) -> None:
        """These go out in an answer of `size` bytes, which is large: on a slow line their leases
        count from when it has been taken. `taken_bytes`: as runtime.addresses.taken_bytes."""

    async def ack(self, queue: Queue, group: Group, receipts: list[str]) -> PullSettled:
        """Settle; durable when this returns."""

    async def nack(
        self, queue: Queue, group: Group, receipts: list[str], delay_s: float | None, *,
        reason: str | None = None, reject: bool = False,
    ) -> PullSettled:  # fmt: skip
        """Return them; they come again after `delay_s` seconds, or the group's backoff, or
        (`reject`) not at all. Durable when this returns, with the reason."""

    async def extend(
        self, queue: Queue, group: Group, receipts: list[str], lease_s: float | None
    ) -> PullSettled:
        """Prolong their leases to `lease_s` seconds from now, or the group's lease."""


class Metrics(Protocol):
    """What a Prometheus is told."""

    async def everything(self) -> Samples:
        """Of this gateway and all queues, for operators. Never raises: what does not answer in time
        is left out."""

    async def of_queue(self, queue: Queue, *, sees_dead_letters: bool) -> Samples:
        """Of one queue and its groups. Raises TocsinError: the storage does not answer."""


class ProcessMetrics(Metrics, Protocol):
    """As the process sees it."""

    def add_part(self, part: Callable[[Samples], None]) -> None:
        """Add the figures of something that the broker does not know."""

    def start(self) -> None:
        """Look at the event loop from now on."""


class Keys(Protocol):
    """What an operator asks of the keys that messages are sealed under."""

    async def rotate(self, new: bytes | None) -> object:
        """Wrap the data keys under another master key; what was done."""

    def describe(self) -> dict[str, object]:
        """Which keys there are, without a key."""


class BrokerPort(Protocol):
    """The broker as REST, the server and the admin socket see it."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def delivery_log(self) -> DeliveryLog: ...

    @property
    def publisher(self) -> Publishing: ...

    @property
    def pulls(self) -> Pulling: ...

    @property
    def parking(self) -> Parks: ...

    @property
    def upkeep(self) -> Upkeeping: ...

    @property
    def explaining(self) -> Explains: ...

    @property
    def holding(self) -> Holds: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def keyring(self) -> Keys | None:
        """None: nothing here is sealed."""

    @property
    def draining(self) -> bool:
        """True from `leave` or the beginning of `drain` on."""

    def leave(self) -> None:
        """From now on `draining`, and so not ready; everything else goes on."""

    async def drain(self) -> None:
        """From now on `draining`, and no pull waits any longer. The sessions are sent away by who
        has them, at the same time."""

    async def stop(self) -> None:
        """Answer what is left, write it, close."""

    @property
    def settings(self) -> ChangingSettings: ...

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create it (True), or find it as it is (False). `named`: see Metadata.put_queue."""

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Delete it with its messages and groups."""

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None,
        *,
        named: frozenset[str] = frozenset(),
        deletes_max: int | None = None,
    ) -> tuple[Group, bool]:
        """Create it (True), or find it as it is (False). `start` None: the settings'. Raises
        Refused(would_delete): more than `deletes_max` messages would leave the queue, because they
        were kept for the first group; None: nobody asks how many."""

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str,
        *, deletes_max: int | None = None, begin: Begin | None = None,
    ) -> Removed:  # fmt: skip
        """Delete it with its cursors; returns what goes with it. `deletes_max` None: nobody asks
        how much that is. `begin` is awaited before. Raises Refused(would_delete): more messages."""

    async def seek_group(
        self, principal: Principal, queue: Queue, name: str, to: SeekTo,
        *, deletes_max: int | None = None, begin: Begin | None = None,
    ) -> Removed:  # fmt: skip
        """Set its cursors anew; deliveries of before no longer count. The others as with
        `delete_group`: for messages that nobody needs then."""

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Raises Refused(queue_not_found)."""

    async def queue_for_publish(
        self, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        """As find_queue, or creates it where the broker may and one of the messages can be stored;
        where none can, a queue that is nowhere: published to it, each gets its error (P12)."""

    async def describe_queue(self, principal: Principal, name: str) -> dict[str, object]:
        """Settings, holder, created, partitions, depth, each group's lag."""

    async def describe_group(
        self, principal: Principal, queue: Queue, name: str
    ) -> dict[str, object]:
        """Settings, lag, owners."""

    async def backup(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        """A backup of everything in this folder, complete and durable when this returns, while
        work goes on; its manifest. Cancelled: nothing is left of it."""

    async def clusters(self, who: Principal | None) -> ClusterList:
        """The storage clusters; none where messages are in files of this machine. `who`: of whose
        tenant queues are counted; None: all."""

    async def describe(self) -> dict[str, object]:
        """The whole broker, for `tocsin admin status`."""

    @property
    def gateway(self) -> str:
        """The name of this gateway; "": there are never others."""

    @property
    def gateways(self) -> tuple[str, ...]:
        """The names of all that are there, with this one; none: there are never others."""

    async def ready(self) -> list[str]:
        """What is not ready, one sentence each; empty: ready."""


class WholeBroker(BrokerPort, link.Broker, Protocol):
    hit_rates: dict[str, HitRateSource]
    """Of its caches, and of those that are put beside it."""
    audit: Audit
    """Where it notes what is done without an operator."""

    """The broker as the process sees it, which serves REST and sessions from it."""

    @property
    def metrics(self) -> ProcessMetrics: ...

    @property
    def limiter(self) -> Limiter: ...
