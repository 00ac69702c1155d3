"""Values of the catalog: queues, groups, their settings, deleted queues, names. Pure.

Checks of settings are here too, and which of them may change. Durations are seconds.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from push import limits
from push.errors import Refused
from push.places import Durability, check_name

Seconds = Annotated[float, msgspec.Meta(ge=0, le=limits.TTL_S_MAX)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=limits.TTL_S_MAX)]
PerSecond = Annotated[float, msgspec.Meta(ge=0.001, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]


class QueueAlert(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A threshold whose breach is sent as a message to a queue of the tenant, to a webhook that the
    broker's settings name, or to both."""

    name: str
    when: Literal["lag", "oldest_age_s", "depth", "dead_letters", "parked_keys"]
    above: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    lasts_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60
    """Seconds for which the value must stay above the threshold `above` before the alert is
    sent."""
    group: str | None = None
    """Name of the group whose value counts; None: the highest value among the queue's groups.
    Without effect on `depth` and `dead_letters`, which are values of a queue."""
    queue: str | None = None
    webhook: str | None = None


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a queue; `partitions` is fixed at creation."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=limits.PARTITIONS_MAX)] = 16
    message_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=limits.MESSAGE_BYTES_MAX_MAX)] = (
        limits.MESSAGE_BYTES_MAX_DEFAULT
    )
    messages_max: Count = 0
    """Bound of the whole queue, all partitions together; 0 for no bound. With `reject` it counts
    retained messages, with `dead_letter` the messages that each group has not settled."""
    bytes_max: Count = 0
    due_messages_max: Count = 0
    """Bound of what is scheduled in the whole queue, beside `messages_max`; 0 for no bound of its
    own. Beyond it a message that is due later is `schedule_full`, whatever `overflow` says."""
    due_bytes_max: Count = 0
    overflow: Literal["reject", "dead_letter"] = "reject"
    retention_s: Seconds = 0
    message_ttl_s: PositiveSeconds | None = None
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=43_200)] = 30
    lease_total_s: Annotated[float, msgspec.Meta(ge=1, le=7 * 86_400)] = 3600
    attempts_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 5
    """Number of attempts after which a message is exhausted; 0 for no bound."""
    backoff_s: Annotated[float, msgspec.Meta(ge=0, le=limits.BACKOFF_S_MAX)] = 1.0
    """Delay before the second attempt; doubles from attempt to attempt, with jitter."""
    backoff_max_s: Annotated[float, msgspec.Meta(ge=0, le=limits.BACKOFF_S_MAX)] = 60.0
    on_exhausted: Literal["dead_letter", "park"] = "dead_letter"
    dead_letter_queue: str | None = None
    """A queue's name; None for `dead_letter_name`. Created when the first message goes there."""
    dedup_window_s: Seconds = 300
    durability: Durability = "all"
    publish_messages_per_s: PerSecond | None = None
    """Messages per second of all publishers together, averaged over any time, apart from the
    allowed burst; None for no limit."""
    publish_bytes_per_s: PerSecond | None = None
    alerts: Annotated[tuple[QueueAlert, ...], msgspec.Meta(max_length=limits.ALERTS_MAX)] = ()

    @property
    def due_bounds(self) -> tuple[int, int]:
        """(messages, bytes) that may be scheduled in the whole queue; 0 for no bound. If the queue
        overflows into the dead letters, its other bounds hold here by themselves, because nothing
        that is scheduled goes there."""
        own = (self.due_messages_max, self.due_bytes_max)
        if self.overflow == "reject":
            return own
        messages, size = (
            min(filter(None, bounds), default=0)
            for bounds in zip(own, (self.messages_max, self.bytes_max), strict=True)
        )
        return messages, size


FIXED: Final = frozenset({"partitions"})
DEAD_LETTERS: Final = ".dead-letters"


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a group. None stands for the queue's value, except in `expires_s`."""

    start: Literal["earliest", "latest"] = "earliest"
    semantics: Literal["at_least_once", "at_most_once"] = "at_least_once"
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=43_200)] | None = None
    lease_total_s: Annotated[float, msgspec.Meta(ge=1, le=7 * 86_400)] | None = None
    attempts_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    backoff_s: Annotated[float, msgspec.Meta(ge=0, le=limits.BACKOFF_S_MAX)] | None = None
    backoff_max_s: Annotated[float, msgspec.Meta(ge=0, le=limits.BACKOFF_S_MAX)] | None = None
    on_exhausted: Literal["dead_letter", "park"] | None = None
    expires_s: PositiveSeconds | None = None
    """Seconds without a consumer after which the group is deleted; None for never (R11)."""


class Principal(msgspec.Struct, frozen=True):
    """The caller of a method. Rights are checked elsewhere, where they are enforced."""

    name: str
    tenant: str = "default"


ANYBODY: Final = Principal("anybody")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's row in the catalog. `queue_id` is never reused (R1)."""

    queue_id: str
    name: str
    tenant: str
    holder: str
    """Name of the principal that created the queue."""
    created_unix_ms: int
    settings: QueueSettings
    ring_epoch: int
    members: tuple[int, ...]
    """The partitions on the ring, sorted; more than 0..n-1 only after a repartition (R27)."""
    hash_key: bytes
    """16 random bytes that key the hash by which messages are routed and gated."""
    lineage: tuple[tuple[int, int], ...] = ()
    """(sealed partition, successor) pairs; empty until the first repartition (R27)."""
    clusters: tuple[str, ...] = ()
    """Names of the storage clusters of the partitions. Partition n is at the n-th of them, modulo
    their number. They are fixed when the queue is created. Empty if all partitions are at the first
    configured cluster."""
    paused: bool = False
    """Whether an operator has stopped deliveries to groups. It is no setting, so changes of
    settings leave it."""


GroupStart = Literal["earliest", "latest"] | int
"""The place where a new group starts. A number is a time in unix milliseconds."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group's row in the catalog."""

    group_id: str
    name: str
    queue_id: str
    created_unix_ms: int
    settings: GroupSettings
    start: GroupStart | None = None
    """The start that was requested when the group was created, if it is another one than
    `settings.start`; else None. Cursors are created there (R11)."""

    @property
    def begins(self) -> GroupStart:
        """The start at which the group's cursors are created."""
        return self.settings.start if self.start is None else self.start


class Drain(msgspec.Struct, frozen=True, array_like=True):
    """The consumer, and its gateway, that still has a partition which is to move to a consumer of
    another gateway."""

    gateway: str
    member: str


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The one row of a group that is changed by compare-and-set (R14)."""

    group_id: str
    generation: int
    """Number that grows with every change, over restarts too. Even a row that nobody has changed
    yet has a generation above all earlier ones."""
    members: tuple[str, ...]
    """Consumers, sorted."""
    assignment: dict[int, str]
    """Partition number → consumer."""
    lingers: dict[str, float] = {}
    """Consumer → seconds for which its place waits for it after its gateway has died: from the
    start of the next one, if one gateway works on a catalog. Other consumers are not waited for.
    With one gateway, only rows with an entry here outlive it."""
    gateways: dict[str, tuple[str, ...]] = {}
    """Gateway → those of the members that are connected to it, sorted. Empty where one gateway
    works on a catalog, because it has all of them."""
    staying: tuple[str, ...] = ()
    """Members that have still to say which partitions they hold (R22), sorted. Empty where one
    gateway works on a catalog."""
    unresponsive: tuple[str, ...] = ()
    """Members whose handlers give no sign, sorted. Other members have their partitions, unless all
    members are unresponsive."""
    draining: dict[int, Drain] = {}
    """Partition → the consumer that must let go of it before the consumer of the assignment begins
    (R20)."""
    begun_anew: int = 0
    """Number of times that the group's cursors were set anew, for example by a seek. Deliveries
    from before the last time are stale."""


def dead_letter_name(queue: Queue) -> str:
    """The name of the queue that takes this one's dead letters."""
    if queue.settings.dead_letter_queue is not None:
        return queue.settings.dead_letter_queue
    name = queue.name + DEAD_LETTERS
    return name if len(name) <= limits.NAME_CHARS_MAX else queue.queue_id + DEAD_LETTERS


def other_dead_letter_queue(name: str, named: str | None) -> str | None:
    """Return `named`, the dead-letter queue in the settings of the queue `name`; None if they name
    none, or the one that `name` has by default. Rights on `name` say nothing about another
    queue."""
    return None if named in (None, name + DEAD_LETTERS) else named


class DeadLetterCircle(Refused):
    """Error: dead letters of a queue would come back to it. `way` names the queues that they go
    through; the last is the first again. The text names only the first queue and those that `sees`
    allows."""

    def __init__(self, way: Sequence[str], sees: Callable[[str], bool]) -> None:
        self.way = way
        shown = [name if name == way[0] or sees(name) else "another queue" for name in way]
        circle = " → ".join(shown)
        super().__init__(
            "invalid_request", f"dead_letter_queue: dead letters would go in a circle: {circle}"
        )


def check_circle(queue: Queue, find: Callable[[str], Queue | None]) -> None:
    """Refuse a queue whose dead letters would come back to it, after any number of queues.

    `find`: the queue of a name. A dead-letter queue that does not exist yet ends the search,
    because it will have none of its own.

    Raises:
        DeadLetterCircle: invalid_request; the text names no queue but this one and the one that
            its dead letters go to.
    """
    way, at = [queue.name], dead_letter_name(queue)
    while at not in way:
        way.append(at)
        found = find(at)
        if found is None:
            return
        at = dead_letter_name(found)
    if at == queue.name:
        raise DeadLetterCircle([*way, at], lambda name: name == way[1])


def check_settings(name: str, settings: QueueSettings) -> None:
    """Check the settings of the queue `name` beyond what the types of the fields say.

    Raises:
        Refused: invalid_name for a wrong name of the dead-letter queue, or of an alert, its group
            or its queue; invalid_request for other faults, such as a lease that is longer than
            `lease_total_s`, or two alerts of one name.
    """
    _check_leases(settings.lease_s, settings.lease_total_s)
    if settings.dead_letter_queue is not None:
        check_name(settings.dead_letter_queue, "dead_letter_queue")
        if settings.dead_letter_queue == name:
            raise Refused("invalid_request", "dead_letter_queue is the queue itself")
    _check_alerts(name, settings.alerts)


def _check_alerts(name: str, alerts: tuple[QueueAlert, ...]) -> None:
    if len(alerts) > limits.ALERTS_MAX:
        raise Refused("invalid_request", f"a queue has at most {limits.ALERTS_MAX} alerts")
    if len({alert.name for alert in alerts}) < len(alerts):
        raise Refused("invalid_request", "two alerts have one name")
    for alert in alerts:
        check_name(alert.name, "the alert's name")
        if alert.group is not None:
            check_name(alert.group, "the alert's group")
        if alert.queue is None and alert.webhook is None:
            raise Refused(
                "invalid_request", f"the alert {alert.name!r} names neither queue nor webhook"
            )
        if alert.queue is not None:
            check_name(alert.queue, "the alert's queue")
        if alert.queue == name:
            detail = f"the alert {alert.name!r} goes to the queue that it is about: name another"
            raise Refused("invalid_request", detail)


def check_group_settings(settings: GroupSettings) -> None:
    """Raise Refused(invalid_request) if a group's own `lease_total_s` is below its own
    `lease_s`."""
    if settings.lease_s is not None and settings.lease_total_s is not None:
        _check_leases(settings.lease_s, settings.lease_total_s)


def _check_leases(lease_s: float, lease_total_s: float) -> None:
    if lease_total_s < lease_s:
        raise Refused(
            "invalid_request",
            f"lease_total_s ({lease_total_s:g}) is below lease_s ({lease_s:g})",
        )


def check_change(old: QueueSettings, new: QueueSettings) -> None:
    """Raise Refused(setting_fixed) when the setting of a queue that is in FIXED would change."""
    for name in sorted(FIXED):
        if getattr(old, name) != getattr(new, name):
            raise Refused(
                "setting_fixed",
                f"{name} is {getattr(old, name)} and cannot become {getattr(new, name)}",
            )


# --- Deleted queues ---------------------------------------------------------------------------

DELETED_QUEUES_MARK: Final = "deleted queues"
"""Name of the mark that lists the queues that were deleted lately."""
DELETED_QUEUE_KEPT_S: Final = 86_400.0
DELETED_QUEUES_MAX: Final = 200
"""Largest number of queues in that mark, which keeps the newest ones. Every gateway reads the whole
mark when it changes."""


class DeletedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that was deleted lately. Messages that are still published to it go to its dead
    letters, and their producers are not refused with `queue_not_found`."""

    queue_id: str
    name: str
    tenant: str
    holder: str
    dead_letters: str
    """The name of the queue that takes its dead letters."""
    deleted_unix_ms: int


def read_deleted_queues(text: str | None) -> list[DeletedQueue]:
    """Decode the text of DELETED_QUEUES_MARK; None or an unreadable text gives []."""
    try:
        return msgspec.json.decode(text, type=list[DeletedQueue]) if text else []
    except msgspec.MsgspecError:
        return []


def add_deleted_queue(text: str | None, queue: Queue, unix_ms: int) -> str:
    """Return the text of DELETED_QUEUES_MARK with a queue that is about to be deleted, and without
    entries older than DELETED_QUEUE_KEPT_S. A queue of dead letters gets no entry, because its
    messages are kept for people, and it is created again when it is needed."""
    kept = [
        one
        for one in read_deleted_queues(text)
        if unix_ms - one.deleted_unix_ms < DELETED_QUEUE_KEPT_S * 1000
        and (one.tenant, one.name) != (queue.tenant, queue.name)
    ]
    if not queue.name.endswith(DEAD_LETTERS):
        deleted = DeletedQueue(
            queue_id=queue.queue_id,
            name=queue.name,
            tenant=queue.tenant,
            holder=queue.holder,
            dead_letters=dead_letter_name(queue),
            deleted_unix_ms=unix_ms,
        )
        kept.append(deleted)
    return msgspec.json.encode(kept[-DELETED_QUEUES_MAX:]).decode()


def find_deleted_queue(
    text: str | None, tenant: str, name: str, unix_ms: int
) -> DeletedQueue | None:
    """Return the queue of this name in the mark `text`, if it was deleted within
    DELETED_QUEUE_KEPT_S; else None."""
    for deleted in read_deleted_queues(text):
        is_it = (deleted.tenant, deleted.name) == (tenant, name)
        if is_it and unix_ms - deleted.deleted_unix_ms < DELETED_QUEUE_KEPT_S * 1000:
            return deleted
    return None
