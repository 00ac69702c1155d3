"""Descriptions of queues, groups, keys, sessions and positions, as the broker answers with them.

All but `Verdict` are dictionaries with typed fields. An answer of a newer broker may have more
fields than are named here, and a program that prints an answer shows them all. PROTOCOL.md says
what each field means.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

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
    """Counters of a queue since `since_unix_ms`, the time at which the gateway began."""

    since_unix_ms: int
    published: int
    published_bytes: int
    duplicates: int
    refused: int
    unknown: int


class GroupCounters(TypedDict):
    """Counters of a group since `since_unix_ms`, the time at which the gateway began."""

    since_unix_ms: int
    given: int
    redelivered: int
    settled: int
    nacked: int
    rejected: int
    expired: int
    dead_lettered: int
    parked: int


class _QueuePartition(TypedDict):
    partition: int
    start: int
    end: int
    certified: int
    generation: int
    messages: int
    bytes: int


class QueuePartition(_QueuePartition, total=False):
    """A partition of a queue. `cluster`, the storage cluster that stores it, is present only at a
    broker with several clusters."""

    cluster: str


class GroupFigures(TypedDict):
    """The progress of a group of a queue."""

    name: str
    lag: int
    consumers: int
    in_flight: int
    aside: int
    keys_parked: int
    oldest_unix_ms: int | None
    counters: GroupCounters


class DeadLetterQueue(TypedDict):
    """The queue that takes a queue's dead letters. `messages` is None if that queue does not exist
    yet, or if the caller may not see it."""

    queue: str
    messages: int | None


class _Queue(TypedDict):
    name: str
    queue_id: str


class QueueDescription(_Queue, total=False):
    """A queue as the broker describes it. Fields that the caller's rights do not show are left out.
    With a right on some keys only, `name` and `queue_id` are the only fields."""

    holder: str
    created_unix_ms: int
    paused: bool
    settings: AllQueueSettings
    partitions: list[QueuePartition]
    depth: int
    bytes: int
    oldest_unix_ms: int | None
    counters: QueueCounters
    dead_letters: DeadLetterQueue
    groups: list[GroupFigures]


class Owner(TypedDict):
    """The consumer that receives a partition's messages."""

    consumer: str
    session: str | None
    subscription: int | None
    client: str | None
    transport: str | None
    unresponsive: bool


class _GroupPartition(TypedDict, total=False):
    owner: Owner | None
    member: str | None


class GroupPartition(_GroupPartition):
    """The progress of a group in a partition. `waits_for` is a code, or "" if the group waits for
    nothing. The fields that name the owner (`owner`, `member`) are left out if the caller's rights
    do not show them."""

    partition: int
    epoch: int
    next_offset: int
    certified: int
    lag: int
    in_flight: int
    keys_waiting: int
    keys_parked: int
    held: int
    aside: int
    waits_for: str
    draining: bool


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
    requested: Any


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
    """A group after `seek_group`. `deleted` is the number of messages that no group needs any
    more."""

    deleted: int


class Delivery(TypedDict):
    """A delivery in flight, of a key's first message."""

    attempt: int
    push: int
    given_unix_ms: int
    lease_until_unix_ms: int


class KeyHead(TypedDict):
    """The first message of a key that a group has not settled."""

    offset: int
    id: str | None
    published_unix_ms: int | None
    expires_unix_ms: int | None
    attempts: int
    nack: str | None
    in_flight: Delivery | None


class KeyMessages(TypedDict):
    """The number of messages of a key that a group has not settled."""

    in_flight: int
    waiting: int


class KeyInGroup(TypedDict):
    """The state of a key for a group."""

    group: str
    owner: Owner | None
    epoch: int | None
    waits_for: str
    also: list[str]
    text: str
    since_unix_ms: int | None
    until_unix_ms: int | None
    head: KeyHead | None
    before: int | None
    messages: KeyMessages
    is_exact: bool


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


class _HeldKey(TypedDict):
    partition: int
    key_hash: str
    reason: str
    messages: int
    attempts: int
    in_flight: int


class HeldKey(_HeldKey, total=False):
    """A key with waiting messages, as far as the broker has found them."""

    key: str
    offset: int
    until_unix_ms: int
    since_unix_ms: int
    behind_offset: int
    nack: str
    is_exact: bool


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
    """A delivery in flight."""

    key: str


class _ParkedKey(TypedDict):
    partition: int
    key_hash: str
    reason: str
    since_unix_ms: int
    messages: int
    attempts: int


class ParkedKey(_ParkedKey, total=False):
    """A key that waits for an operator, because its first message was rejected or exhausted its
    attempts."""

    offset: int
    nack: str
    key: str
    expires_unix_ms: int
    is_exact: bool


class ParkedKeys(TypedDict):
    """Parked keys of a group, by partition."""

    keys: list[ParkedKey]
    keys_parked: int


class RefusedKeys(TypedDict):
    """Parked keys of a partition that a decision left unchanged."""

    partition: int
    keys: int
    code: str
    detail: str


class _Decided(TypedDict):
    decision: str
    keys: list[ParkedKey]
    keys_parked: int


class Decided(_Decided, total=False):
    """A durable decision about parked keys."""

    refused: list[RefusedKeys]


class Credit(TypedDict):
    """The credit of a subscription, in messages: granted in total, used, and the rest."""

    granted: int
    used: int
    open: int


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
    behind: list[int]


class SessionDescription(TypedDict):
    """A session of this gateway."""

    session: str
    client: str | None
    principal: str
    transport: str | None
    linger_s: float
    linger_until_unix_ms: int | None
    draining: bool
    opened_unix_ms: int
    heard_unix_ms: int
    unsent_bytes: int
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
