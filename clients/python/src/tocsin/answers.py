"""Descriptions of queues, groups, keys, sessions and positions, as the broker answers with them.

All but `Verdict` are dictionaries with typed fields. An answer of a newer broker may have more
fields than are named here, and a program that prints an answer shows them all. docs/http.md says
what each field means.
"""

from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from tocsin.settings import Alert, EverySettings, GroupSettings


class AllQueueSettings(EverySettings):
    """All settings of a queue, each with its present value."""

    partitions: int
    alerts: list[Alert]


class AllGroupSettings(GroupSettings):
    """All settings of a group, each with its present value. None means that the queue's value
    holds."""

    start: Literal["earliest", "latest"]


class QueueCounters(TypedDict):
    """Counters of what publishers sent to a queue through the gateway that answers, since
    `since_unix_ms`, the time at which that gateway began."""

    since_unix_ms: int
    published: int
    """Messages that were stored, including dead letters and those sent back."""
    published_bytes: int
    duplicates: int
    """Messages that had been stored before."""
    refused: int
    """Messages that were answered with an error."""
    unknown: int
    """Messages of which nobody knows whether they are stored."""


class GroupCounters(TypedDict):
    """Counters of a group's consumers at the gateway that answers, since `since_unix_ms`, the time
    at which that gateway began."""

    since_unix_ms: int
    given: int
    """Deliveries of messages."""
    redelivered: int
    """Deliveries of messages that the partition's owner knew to have been delivered before."""
    settled: int
    """Acks that took effect."""
    nacked: int
    rejected: int
    expired: int
    """Leases that ended by time."""
    dead_lettered: int
    """Messages that arrived at the dead letters, for any reason."""
    parked: int
    """The number of times that a key was parked."""


class _QueuePartition(TypedDict):
    partition: int
    start: int
    """The lowest offset whose message may still be retained."""
    end: int
    """The offset after the last message of the log."""
    certified: int
    """The offset after the last message that is stored as safely as the queue's durability
    demands."""
    generation: int
    """The number of the log's history, raised when the log may have been rolled back."""
    messages: int
    bytes: int


class QueuePartition(_QueuePartition, total=False):
    """A partition of a queue. `cluster`, the storage cluster that stores it, is present only at a
    broker with several clusters."""

    cluster: str


class GroupFigures(TypedDict):
    """The figures of a group: its lag, its consumers, and the events that were counted."""

    name: str
    lag: int
    """The number of messages that the group has not settled: in flight, waiting, or not delivered
    yet."""
    consumers: int
    in_flight: int
    """The number of messages that consumers at the gateway that answers hold."""
    aside: int
    """The number of messages that wait in the storage, in side lines of their keys."""
    keys_parked: int
    """The number of keys that wait for an operator."""
    oldest_unix_ms: int | None
    """The time at which the oldest message that the group has not settled was published; None if
    there is none."""
    counters: GroupCounters


class DeadLetterQueue(TypedDict):
    """The queue that takes a queue's dead letters. `messages` is the number of messages in it; None
    if that queue does not exist yet, if a storage cluster that has a part of it does not answer, or
    if the caller may not see it."""

    queue: str
    messages: int | None


class _Queue(TypedDict):
    name: str
    queue_id: str


class ScheduledFigures(TypedDict):
    """The messages of a queue that wait until they are due. No other figure has them."""

    messages: int
    bytes: int
    next_unix_ms: int | None
    """The time at which the first of them is due; None if there is none."""


class QueueDescription(_Queue, total=False):
    """A queue as the broker describes it. Fields that the caller's rights do not show are left out.
    With a right on some keys only, `name` and `queue_id` are the only fields."""

    holder: str
    """The principal that may manage the queue."""
    created_unix_ms: int
    paused: bool
    settings: AllQueueSettings
    partitions: list[QueuePartition]
    depth: int
    """The number of retained messages."""
    bytes: int
    """The number of retained bytes."""
    oldest_unix_ms: int | None
    """The time at which the oldest retained message was published; None if there is none."""
    scheduled: ScheduledFigures
    counters: QueueCounters
    dead_letters: DeadLetterQueue
    groups: list[GroupFigures]


class Owner(TypedDict):
    """The consumer that receives a partition's messages, at the gateway that answers."""

    consumer: str
    session: str | None
    """The session of the consumer; None if pulls own the partition."""
    subscription: int | None
    client: str | None
    """The name that the client gave itself."""
    transport: str | None
    """The transport: "websocket", "long-poll" or "pull"; None while its session has none."""
    unresponsive: bool


class _GroupPartition(TypedDict, total=False):
    owner: Owner | None
    """The consumer that receives the messages, at the gateway that answers; None if no consumer
    there does."""
    member: str | None
    """The member that owns the partition at any gateway, or will when it has moved; None if nobody
    does."""


class GroupPartition(_GroupPartition):
    """The progress of a group in a partition. `waits_for` is a code for the reason why nothing of
    it is delivered, or "" if all that is not settled is in flight or is delivered now. The fields
    that name the owner (`owner`, `member`) are left out if the caller's rights do not show them."""

    partition: int
    epoch: int
    """The epoch of the partition's last owner in this group. The storage refuses writes under a
    lower one."""
    next_offset: int
    """The offset below which everything is settled, in flight, or waiting in memory or aside."""
    certified: int
    lag: int
    in_flight: int
    keys_waiting: int
    """The number of keys with waiting messages, as the owner at the gateway that answers knows."""
    keys_parked: int
    held: int
    """The number of messages that wait in the memory of the owner at the gateway that answers."""
    aside: int
    waits_for: str
    draining: bool
    """Whether the owner hands the partition over and settles what it holds."""


class _GroupMembers(TypedDict, total=False):
    members: list[str]
    absent: list[str]


class GroupDescription(GroupFigures, _GroupMembers):
    """A group as the broker describes it. The consumers (`members`, `absent`) are left out if the
    caller's rights do not show them."""

    group_id: str
    queue: str
    created_unix_ms: int
    settings: AllGroupSettings
    partitions: list[GroupPartition]


class _Difference(TypedDict):
    name: str
    current: Any
    """The present value of the setting."""
    requested: Any
    """The value that the call requested."""


class Difference(_Difference, total=False):
    """A setting of a call that differs from the setting of an existing queue or group. `fixed`
    means that the setting can never change. `inherited` means that the current value is the
    queue's, because the group has none of its own."""

    fixed: bool
    inherited: bool


class SettingChange(TypedDict):
    """A setting that a call has changed."""

    name: str
    before: Any
    after: Any


class _Changed(TypedDict):
    changes: list[SettingChange]
    """The settings whose values the call has changed."""
    deleted: int
    """The number of messages that the change deletes."""
    dead_lettered: int
    """The number of messages that the change moves to the dead letters."""


class CreatedQueue(QueueDescription):
    """The queue that `create_queue` named. `created` is False if it existed before; then nothing of
    it was changed."""

    created: bool


class CreatedGroup(GroupDescription):
    """The group that `create_group` named. `created` is False if it existed before; then nothing of
    it was changed."""

    created: bool


class ChangedQueue(QueueDescription, _Changed):
    """A queue after `update_queue`, with the changes that were made."""


class ChangedGroup(GroupDescription, _Changed):
    """A group after `update_group`, with the changes that were made."""


class SoughtGroup(GroupDescription):
    """A group after `seek_group`. `deleted` is the number of skipped messages that nobody needs any
    more, and that are deleted."""

    deleted: int


class Delivery(TypedDict):
    """A delivery in flight, of a key's first message."""

    attempt: int
    """The number of this attempt at the message: 1, and 1 more for each earlier attempt of the
    group that counts."""
    push: int
    given_unix_ms: int
    lease_until_unix_ms: int


class KeyHead(TypedDict):
    """The first message of a key that a group has not settled."""

    offset: int
    id: str | None
    published_unix_ms: int | None
    expires_unix_ms: int | None
    """The time at which the message expires; 0 if it never does, None if the message is no longer
    retained."""
    attempts: int
    """The number of failed attempts at the message that count."""
    nack: str | None
    """The reason that the message's last nack gave; None if there was none."""
    in_flight: Delivery | None
    """The delivery in flight; None if there is none."""


class KeyMessages(TypedDict):
    """The number of messages of a key that a group has not settled."""

    in_flight: int
    waiting: int


class KeyInGroup(TypedDict):
    """The state of a key in a group: its owner, its messages, and the reason why the key waits."""

    group: str
    owner: Owner | None
    epoch: int | None
    waits_for: str
    """A stable code for the reason of the wait; "nothing" if nothing holds the key up."""
    also: list[str]
    """The codes of further reasons that would hold the key up."""
    text: str
    """The reason as a sentence for people, which may change."""
    since_unix_ms: int | None
    """The time at which the key's first message was given to a consumer, or the key was parked;
    None if unknown."""
    until_unix_ms: int | None
    """The earliest end of the lease or backoff for which the key waits; None if it waits for no
    time."""
    head: KeyHead | None
    """The first message of the key that the group has not settled; None if none was found."""
    before: int | None
    """The largest number of other messages of the partition that may be delivered before the key's
    first one; None unless the key waits only for its turn."""
    messages: KeyMessages
    is_exact: bool
    """Whether the whole log was read. If not, `messages` counts only what was found."""


class ScheduledOfKey(TypedDict):
    """The messages of a key that wait until they are due."""

    messages: int
    next_unix_ms: int
    """The time at which the first of them is due."""
    is_exact: bool
    """False if there may be more."""
    text: str
    """The same in words."""


class Explanation(TypedDict):
    """The partition of a key, and for each group the reason why the key waits."""

    queue: str
    key: str
    key_hash: str
    partition: int
    ring_epoch: int
    paused: bool
    now_unix_ms: int
    groups: list[KeyInGroup]
    scheduled: NotRequired[ScheduledOfKey]
    """Messages of the key that are not due yet; left out if there are none."""


class _HeldKey(TypedDict):
    partition: int
    key_hash: str
    reason: str
    """A code: "parked", "backoff", "dead_letter", "commit", "behind", or "ready"."""
    messages: int
    """The number of waiting messages."""
    attempts: int
    """The number of failed attempts of the first waiting message that count."""
    in_flight: int


class HeldKey(_HeldKey, total=False):
    """A key with waiting messages, as far as the broker has found them."""

    key: str
    """The text of the key; absent if the message has no key, or is no longer retained."""
    offset: int
    until_unix_ms: int
    since_unix_ms: int
    behind_offset: int
    """The offset of the message that the key waits for."""
    nack: str
    is_exact: bool
    """False if more than `messages` messages may wait, because not all of the log was examined;
    absent otherwise."""


class _Lease(TypedDict):
    partition: int
    offset: int
    epoch: int
    push: int
    consumer: str
    attempt: int
    given_unix_ms: int
    lease_until_unix_ms: int


class Lease(_Lease, total=False):
    """A delivery in flight at the gateway that answers. `key` is absent if the message has no key,
    or is no longer retained."""

    key: str


class _ParkedKey(TypedDict):
    partition: int
    key_hash: str
    reason: str
    """The code: "exhausted" or "rejected"."""
    since_unix_ms: int
    messages: int
    """The number of waiting messages."""
    attempts: int


class ParkedKey(_ParkedKey, total=False):
    """A key that waits for an operator, because its first message was rejected or exhausted its
    attempts."""

    offset: int
    nack: str
    key: str
    """The text of the key; absent if the message has no key, or is no longer retained."""
    expires_unix_ms: int
    """The time at which the first message expires; absent if it never does, or if that is
    unknown."""
    is_exact: bool


class ParkedKeys(TypedDict):
    """Parked keys of a group, by partition."""

    keys: list[ParkedKey]
    keys_parked: int
    """The number of all parked keys of the group."""


class RefusedKeys(TypedDict):
    """Parked keys of a partition that a decision left unchanged: their number, and the error that
    is the reason."""

    partition: int
    keys: int
    code: str
    detail: str


class _Decided(TypedDict):
    decision: str
    keys: list[ParkedKey]
    """The keys that were decided on, as they were before."""
    keys_parked: int
    """The number of keys that the call was to decide on and did not, because they were too many or
    were refused."""


class Decided(_Decided, total=False):
    """A durable decision about parked keys."""

    refused: list[RefusedKeys]
    """Counts of keys that the decision left unchanged, by partition and reason. The dictionary has
    no such item if there are none."""


class Credit(TypedDict):
    """The credit of a subscription, in messages: granted in total, used, and the rest."""

    granted: int
    """The number of messages granted in total."""
    used: int
    """The number of messages that were delivered."""
    open: int
    """The number of messages that may be delivered now."""


class _SubscriptionDescription(TypedDict):
    subscription: int
    queue: str
    group: str | None
    credit: Credit


class SubscriptionDescription(_SubscriptionDescription, total=False):
    """A subscription of a session. A consumer has `group`, `in_flight` and `partitions`, a reader
    `keys` and `behind`."""

    in_flight: int
    partitions: list[int]
    unresponsive: bool
    keys: int
    """The number of keys that a reader asked for; absent if it reads all."""
    behind: list[int]
    """The partitions in which a reader has not reached the end of the log."""


class SessionDescription(TypedDict):
    """A session at the gateway that answers."""

    session: str
    client: str | None
    """The name that the client gave itself."""
    principal: str
    transport: str | None
    """The transport: "websocket" or "long-poll"; None while the session has none."""
    linger_s: float
    linger_until_unix_ms: int | None
    """The time at which a session without a transport ends; None while it has one."""
    draining: bool
    opened_unix_ms: int
    heard_unix_ms: int
    """The time at which the client's last bytes were received."""
    unsent_bytes: int
    """The number of bytes that wait for the transport, or by long poll for the next poll."""
    subscriptions: list[SubscriptionDescription]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The broker's verdict on a reader's position in one partition.

    `kind` says what was missed:

      "resumed": nothing.
      "gap": the offsets `gap`, first and last, which are no longer retained.
      "unknown": nobody can say, because the position belongs to another history, for `reason`.
    """

    partition: int
    kind: Literal["resumed", "gap", "unknown"]
    next_offset: int
    """The offset at which reading continues."""
    gap: tuple[int, int] | None = None
    reason: str = ""
