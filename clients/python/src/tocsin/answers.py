"""The broker's answers that describe queues, groups, keys, sessions and positions.

Dictionaries with typed fields: an answer of a newer broker may have more fields than are named
here, and a program that prints it shows them all. PROTOCOL.md says what each field means.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from tocsin.settings import Alert, EverySettings, GroupSettings


class AllQueueSettings(EverySettings):
    """All settings of a queue, as it has them."""

    partitions: int
    alerts: list[Alert]


class AllGroupSettings(GroupSettings):
    """All settings of a group, as it has them. None: the queue's."""

    start: Literal["earliest", "latest"]


class QueueCounters(TypedDict):
    """Counters of a queue since `since_unix_ms`, when the gateway began."""

    since_unix_ms: int
    published: int
    published_bytes: int
    duplicates: int
    refused: int
    unknown: int


class GroupCounters(TypedDict):
    """Counters of a group since `since_unix_ms`, when the gateway began."""

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
    """A partition of a queue. `cluster`: the storage cluster that has it, where there are some."""

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
    """The queue that takes a queue's dead letters. `messages` None: it is not there yet, or is for
    others to see."""

    queue: str
    messages: int | None


class _Queue(TypedDict):
    name: str
    queue_id: str


class QueueDescription(_Queue, total=False):
    """A queue as the broker describes it. What one's rights do not show is left out: with a right
    on some keys only all but `name` and `queue_id`."""

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
    """The consumer that is given a partition's messages."""

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
    """The progress of a group in a partition. `waits_for`: what it waits for, "": for nothing.
    Whose it is (`owner`, `member`) is left out where one's rights do not show it."""

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
    """A group as the broker describes it. The consumers (`members`, `absent`) are left out where
    one's rights do not show them."""

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
    """A setting that was named, of what is there already with another value. `fixed`: nothing
    changes it any more. `inherited`: the current value is the queue's, because the group has none
    of its own."""

    fixed: bool
    inherited: bool


class SettingChange(TypedDict):
    """A setting that a call has changed."""

    name: str
    before: Any
    after: Any


class _Changed(TypedDict):
    changes: list[SettingChange]
    """The settings that have another value now."""
    deleted: int
    """How many messages the change deletes."""
    dead_lettered: int
    """How many messages it moves to the dead letters."""


class CreatedQueue(QueueDescription):
    """A queue that was asked for. `created` False: it was there, and nothing of it was changed."""

    created: bool


class CreatedGroup(GroupDescription):
    """A group that was asked for. `created` False: it was there, and nothing of it was changed."""

    created: bool


class ChangedQueue(QueueDescription, _Changed):
    """A queue, and what was changed of it."""


class ChangedGroup(GroupDescription, _Changed):
    """A group, and what was changed of it."""


class SoughtGroup(GroupDescription):
    """A group that goes on somewhere else, and how many messages nobody needs since."""

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
    """How many messages of a key a group has not settled."""

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
    """Where a key goes, and for each group what it waits for."""

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
    """A key of which messages wait, as far as the broker has found some."""

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
    """A key of which the head exhausted its attempts or was rejected, and which waits for an
    operator."""

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
    """Parked keys of a partition to which nothing happened."""

    partition: int
    keys: int
    code: str
    detail: str


class _Decided(TypedDict):
    decision: str
    keys: list[ParkedKey]
    keys_parked: int


class Decided(_Decided, total=False):
    """A decision that is durable."""

    refused: list[RefusedKeys]


class Credit(TypedDict):
    """Messages that may be given to a subscription, in total, those that were, and the rest."""

    granted: int
    used: int
    open: int


class _SubscriptionDescription(TypedDict):
    subscription: int
    queue: str
    group: str | None
    credit: Credit


class SubscriptionDescription(_SubscriptionDescription, total=False):
    """A subscription of a session. A consumer has `group`, `in_flight` and `partitions`, a
    reader `keys` and `behind`."""

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
    """The truth about a reader's position in one partition.

    "resumed": nothing was missed. "gap": the offsets `gap`, first and last, are no longer retained.
    "unknown": the position is of another history, for `reason`; what was missed cannot be said.
    """

    partition: int
    kind: Literal["resumed", "gap", "unknown"]
    next_offset: int
    """Where reading goes on."""
    gap: tuple[int, int] | None = None
    reason: str = ""
