"""What operators are shown of queues, groups, keys and sessions: the facts behind a console.

All times are unix milliseconds, all counters grow from `since_unix_ms` on: a rate is the difference
of two looks.
"""

from typing import Literal

import msgspec

Transport = Literal["websocket", "long-poll", "pull"]
"""How an owner is reached; pulls are requests over HTTP, of nobody in particular."""

PartitionWaits = Literal[
    "", "paused", "draining", "no_consumer", "absent", "moving", "elsewhere", "credit", "socket",
    "full", "backoff", "parked", "gate", "commit", "read",
]  # fmt: skip
"""What a partition of a group waits for: see PROTOCOL.md."""


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What publishers sent to a queue through this gateway."""

    since_unix_ms: int
    published: int
    """Messages that were stored, dead letters and redriven ones among them."""
    published_bytes: int
    duplicates: int
    refused: int
    unknown: int
    """Messages of which nobody knows whether they are stored; their publisher was told so."""


class GroupCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What this gateway's consumers of a group were given and did."""

    since_unix_ms: int
    given: int
    redelivered: int
    """Of these, at least so many had been given before."""
    settled: int
    nacked: int
    rejected: int
    """Of these, for good: their consumers said that no further attempt can help."""
    expired: int
    """Leases that ended by time."""
    dead_lettered: int
    parked: int
    """Keys, each time one was parked."""


class OwnerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer that is given a partition's messages."""

    consumer: str
    """As `members` names it; `pulls`: whoever pulls."""
    session: str | None = None
    subscription: int | None = None
    client: str | None = None
    """What its `hello` called it."""
    transport: Transport | None = None
    """null: it has none, and its session lingers."""
    unresponsive: bool = False
    """Its leases end without a sign of its handlers: others get its partitions, if any work."""


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as it is for a group."""

    partition: int
    owner: OwnerDescription | msgspec.UnsetType | None = msgspec.UNSET
    member: str | msgspec.UnsetType | None = msgspec.UNSET
    """Whose it is, or is to be, at whichever gateway; null: nobody's."""
    epoch: int
    next_offset: int
    """Everything below is settled, in flight or waits in memory or aside."""
    certified: int
    lag: int
    in_flight: int
    keys_waiting: int
    keys_parked: int
    held: int
    """Messages that wait in the memory of its owner."""
    aside: int
    """Messages that wait in the storage, in side lines of their keys."""
    waits_for: PartitionWaits
    draining: bool


class QueueGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group, as its queue's description shows it."""

    name: str
    lag: int
    consumers: int
    in_flight: int
    aside: int
    keys_parked: int
    oldest_unix_ms: int | None
    """When the oldest message was published that it has not settled; null: it has settled all."""
    counters: GroupCounters


class DeadLetterQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue's dead letters go."""

    queue: str
    messages: int | None
    """That are retained there; null: it is made for the first dead letter, or a storage cluster
    that has some of it does not answer."""


class QueuePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: `start` <= offsets < `end` may be retained."""

    partition: int
    start: int
    end: int
    certified: int
    generation: int
    messages: int
    bytes: int
    cluster: str | msgspec.UnsetType = msgspec.UNSET
    """The storage cluster that has it; left out: the broker has one storage."""


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A storage cluster."""

    name: str
    zone: str
    """Where it stands; "": nobody said."""
    state: Literal["well", "hot", "away"]
    """What a manager has found: new partitions go to it, have too little room there, or it does not
    answer. Where none has looked yet, as if it was well."""
    since_unix_ms: int | None
    """Since when it is so; null: no manager has looked yet."""
    why: str
    """Why it is away; "": it is not."""
    used_bytes: int | None
    """Of memory, in its fullest primary; null: no manager has looked yet."""
    bound_bytes: int | None
    """0: it has none."""
    answers: bool
    """To this gateway, within the last seconds."""
    has_catalog: bool
    queues: int
    """That have partitions there."""
    partitions: int


class ClusterList(msgspec.Struct, frozen=True, kw_only=True):
    """The storage clusters of a broker, as its settings name them, and a cluster of partitions that
    they do not name; none: it keeps its messages in files of its own."""

    clusters: list[ClusterDescription]


# --- Sessions -----------------------------------------------------------------------------------


class CreditDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Messages, counted since the subscription began; `open` may be given now."""

    granted: int
    used: int
    open: int


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One subscription of a session. A consumer has `group`, `in_flight` and `partitions`, a
    reader `keys` and `behind`."""

    subscription: int
    queue: str
    group: str | None
    credit: CreditDescription
    in_flight: int | None = None
    partitions: list[int] | None = None
    """Which it owns."""
    unresponsive: bool | None = None
    """true: its leases end without a sign of its handlers, and others get its partitions."""
    keys: int | None = None
    """How many it asked for; left out: it reads every one."""
    behind: list[int] | None = None
    """The partitions where it is not at the tail."""


class SessionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A session of this gateway."""

    session: str
    client: str | None
    """What its `hello` called it."""
    principal: str
    transport: Transport | None
    """null: it has none, and ends at `linger_until_unix_ms` if its client does not come back."""
    linger_s: float
    linger_until_unix_ms: int | None
    draining: bool
    opened_unix_ms: int
    heard_unix_ms: int
    """When the client was heard of last."""
    unsent_bytes: int
    """Frames that wait for its transport to take them, or by long poll for the next poll."""
    subscriptions: list[SubscriptionDescription]


class SessionList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sessions of one gateway, by id."""

    sessions: list[SessionDescription]
    gateway: str = ""
    """The gateway that answers; left out: there are never others."""
    gateways: tuple[str, ...] = ()
    """All that are there, with this one: the others have sessions of their own."""
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""


# --- Keys ---------------------------------------------------------------------------------------

KeyWaits = Literal[
    "in_flight", "parked", "dead_letter", "backoff", "commit", "behind", "gate", "draining",
    "paused", "no_consumer", "absent", "moving", "elsewhere", "socket", "full", "credit", "backlog",
    "unknown", "nothing",
]  # fmt: skip
"""What a key waits for: see PROTOCOL.md."""


class LeaseDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery in flight, of a key's first message."""

    attempt: int
    push: int
    given_unix_ms: int
    lease_until_unix_ms: int


class HeadDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a key that a group has not settled."""

    offset: int
    id: str | None
    """null, as the times: it is no longer retained."""
    published_unix_ms: int | None
    expires_unix_ms: int | None
    """0: never."""
    attempts: int
    """Those that failed and are counted."""
    nack: str | None
    """The reason that its last nack gave; null: none did."""
    in_flight: LeaseDescription | None


class KeyMessages(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of a key a group has not settled."""

    in_flight: int
    waiting: int
    dying: int = 0
    """On their way to the dead letters."""


class KeyInGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Where a key stands for a group."""

    group: str
    owner: OwnerDescription | None
    """Who is given the messages of its partition; null: nobody here."""
    epoch: int | None
    """Under which number; null: nobody owns it here."""
    waits_for: KeyWaits
    also: list[KeyWaits]
    """What would hold it up besides."""
    text: str
    """The same for people."""
    since_unix_ms: int | None
    """When it was given, or parked; null: not known. The head's `published_unix_ms` is a bound."""
    until_unix_ms: int | None
    """When its lease or its backoff ends, at the earliest."""
    head: HeadDescription | None
    """null: there is none, or (`is_exact` false) none was found."""
    before: int | None
    """At most so many messages of the partition are given before it; null: none is."""
    messages: KeyMessages
    is_exact: bool
    """false: not all of the log was looked at. What is said of `head` is true all the same;
    without one nothing is known, and `messages` counts what was found."""


class Explained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a key goes, and for each group what it waits for."""

    queue: str
    key: str
    key_hash: str
    partition: int
    ring_epoch: int
    paused: bool
    now_unix_ms: int
    groups: list[KeyInGroup]
    next: str | None = None
    """There are more groups: ask again with `?after=<this>`."""


class HeldKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of which messages wait that were come across."""

    partition: int
    key_hash: str
    """16 hexadecimal digits."""
    reason: Literal["parked", "dead_letter", "backoff", "commit", "behind", "ready"]
    """`ready`: nothing of its own holds it up."""
    messages: int
    """How many wait: not in flight."""
    attempts: int
    """Failed attempts of the first one that waits."""
    in_flight: int
    nack: str | None = None
    """The reason that its last nack gave; left out: none did."""
    key: str | None = None
    """Its text; left out: there is none, or it is not known."""
    offset: int | None = None
    """The first one that waits; left out: not known."""
    until_unix_ms: int | None = None
    """When its backoff ends, or the lease of what it waits behind."""
    since_unix_ms: int | None = None
    """When it was parked."""
    behind_offset: int | None = None
    is_exact: bool = True
    """False: not all of the log was looked at, at least so many wait."""


class HeldKeys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keys that wait, by partition and hash."""

    keys: list[HeldKey]
    left_out: int = 0
    """Messages that were tried and of which nobody here knows the key without reading more: the
    group has no consumer."""
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery in flight."""

    partition: int
    offset: int
    epoch: int
    push: int
    consumer: str
    attempt: int
    given_unix_ms: int
    lease_until_unix_ms: int
    key: str | None = None
    """Its text; left out: it has none, or is no longer retained."""


class LeaseList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in flight, by partition and offset."""

    leases: list[Lease]
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""
