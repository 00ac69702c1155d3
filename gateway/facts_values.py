"""What operators are shown of queues, groups, keys and sessions: the facts behind a console.

All times are unix milliseconds, all counters grow from `since_unix_ms` on: a rate is the difference
of two looks.
"""

from typing import Literal

import msgspec

Transport = Literal["websocket", "long-poll", "pull"]
"""How an owner is reached; pulls are requests over HTTP, of nobody in particular."""

PartitionWaits = Literal[
    "", "paused", "draining", "no_consumer", "absent", "moving", "credit", "socket", "full",
    "backoff", "parked", "gate", "commit", "read",
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


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as it is for a group."""

    partition: int
    owner: OwnerDescription | None
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


class QueuePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: `start` <= offsets < `end` may be retained."""

    partition: int
    start: int
    end: int
    certified: int
    generation: int
    messages: int
    bytes: int


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
    """Sessions, by id."""

    sessions: list[SessionDescription]
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""
