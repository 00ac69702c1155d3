"""Types that rooms of the gateway share: admissions, operators' requests, descriptions of queues,
groups, keys and sessions, and messages as a pull over HTTP returns them.

All times are unix milliseconds. All counters grow from `since_unix_ms` on, so a rate is the
difference of two readings.
"""

from collections.abc import Callable
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.limits.spec import NONE, Limits
from metadata.catalog import Principal
from metadata.rights import ALL_RIGHTS, Rights
from push import limits
from push.delivery import State
from push.errors import Refused
from push.message import headers_without_groups
from push.places import Verb

Transport = Literal["websocket", "long-poll", "pull"]
"""Way by which a consumer or session is reached. `pull` is for requests over HTTP, of no client in
particular."""

PartitionWaits = Literal[
    "",
    "paused",
    "draining",
    "no_consumer",
    "absent",
    "moving",
    "elsewhere",
    "credit",
    "socket",
    "full",
    "backoff",
    "parked",
    "gate",
    "commit",
    "read",
]
"""Reason why a partition of a group waits: see docs/http.md."""


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of what publishers sent to a queue through this gateway."""

    since_unix_ms: int
    published: int
    """Messages that were stored, including dead letters and redriven ones."""
    published_bytes: int
    duplicates: int
    refused: int
    unknown: int
    """Messages that may be stored or not; their publisher was informed of that."""


class GroupCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of what this gateway's consumers of a group were given and did."""

    since_unix_ms: int
    given: int
    redelivered: int
    """Lower bound of the given messages that had been given before."""
    settled: int
    nacked: int
    rejected: int
    """Messages nacked for good, because their consumers said that no further attempt can help."""
    expired: int
    """Leases that ended by time."""
    dead_lettered: int
    parked: int
    """Number of times that a key was parked."""


class OwnerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer that is given a partition's messages."""

    consumer: str
    """Name in `members`; `pulls` for all clients that pull."""
    session: str | None = None
    subscription: int | None = None
    client: str | None = None
    """Name that its `hello` gave."""
    transport: Transport | None = None
    """null if it has none, while its session lingers."""
    unresponsive: bool = False
    """Whether its leases end without a sign of its handlers; others get its partitions, if any
    work."""


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as it is for a group."""

    partition: int
    owner: OwnerDescription | msgspec.UnsetType | None = msgspec.UNSET
    member: str | msgspec.UnsetType | None = msgspec.UNSET
    """The consumer that has it, or is to have it, at any gateway; null if there is none."""
    epoch: int
    next_offset: int
    """The next offset to give out. Every message below it is settled, in flight or dying, or waits
    in memory or aside."""
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
    """Publish time of the oldest message that it has not settled; null if it has settled all."""
    counters: GroupCounters


class DeadLetterQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue's dead letters go."""

    queue: str
    messages: int | None
    """Number of messages retained there. null if the queue does not exist, as before the first dead
    letter, if a storage cluster that has some of it does not answer, or if the client has no right
    that shows it."""


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
    """The storage cluster that has it; left out if the broker has one storage."""


class ScheduledFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a queue that wait until they are due. They are in no log yet, and in none of
    the other figures of the queue."""

    messages: int
    bytes: int
    """Their size as JSON."""
    next_unix_ms: int | None
    """Time at which the first of them is due; null if there is none."""


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A storage cluster."""

    name: str
    zone: str
    """Zone of the cluster; "" if none was configured."""
    state: Literal["well", "hot", "away"]
    """A manager's finding: `well` takes new partitions, `hot` has too little room, `away` does not
    answer. `well` if no manager has looked yet."""
    since_unix_ms: int | None
    """Time since which it is in this state; null if no manager has looked yet."""
    why: str
    """Why it is away; "" if it is not."""
    used_bytes: int | None
    """Memory used in its fullest primary; null if no manager has looked yet."""
    bound_bytes: int | None
    """Bound of that memory; 0 if it has none, null if no manager has looked yet."""
    answers: bool
    """Whether it answered this gateway within the last seconds."""
    has_catalog: bool
    queues: int
    """Number of queues that have partitions there."""
    partitions: int


class ClusterList(msgspec.Struct, frozen=True, kw_only=True):
    """The storage clusters that the settings of a broker name, and those that have partitions
    though the settings do not name them. The list is empty if the broker keeps its messages in
    files of its own."""

    clusters: list[ClusterDescription]


# --- Sessions -----------------------------------------------------------------------------------


class CreditDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Credit in messages, counted since the subscription began. `open` is how many may be given
    now."""

    granted: int
    used: int
    open: int


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription of a session. A consumer has `group`, `in_flight` and `partitions`, a reader
    `keys` and `behind`."""

    subscription: int
    queue: str
    group: str | None
    credit: CreditDescription
    in_flight: int | None = None
    partitions: list[int] | None = None
    """Partitions that it owns."""
    unresponsive: bool | None = None
    """Whether its leases end without a sign of its handlers, so that others get its partitions."""
    keys: int | None = None
    """Number of keys that it requested; left out if it reads every one."""
    behind: list[int] | None = None
    """Partitions where it is not at the tail."""


class SessionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A session of this gateway."""

    session: str
    client: str | None
    """Name that its `hello` gave."""
    principal: str
    transport: Transport | None
    """null if it has none; it ends at `linger_until_unix_ms` if its client does not come back."""
    linger_s: float
    linger_until_unix_ms: int | None
    draining: bool
    opened_unix_ms: int
    heard_unix_ms: int
    """Time of the last receipt of anything from the client."""
    unsent_bytes: int
    """Bytes of frames that wait for its transport to take them, or by long poll for the next
    poll."""
    subscriptions: list[SubscriptionDescription]


class SessionList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sessions of one gateway, by id."""

    sessions: list[SessionDescription]
    gateway: str = ""
    """The gateway that answers; left out if there are never others."""
    gateways: tuple[str, ...] = ()
    """All living gateways, with this one; the others have sessions of their own."""
    next: str | None = None
    """Value for `?after=<this>` to get more; left out if there are no more."""


# --- Keys ---------------------------------------------------------------------------------------

KeyWaits = Literal[
    "in_flight",
    "parked",
    "dead_letter",
    "backoff",
    "commit",
    "behind",
    "gate",
    "draining",
    "paused",
    "no_consumer",
    "absent",
    "moving",
    "elsewhere",
    "socket",
    "full",
    "credit",
    "backlog",
    "unknown",
    "nothing",
]
"""Reason why a key waits: see docs/http.md."""


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
    """null, like the times, if the message is no longer retained, or was not read because the
    answer had read enough."""
    published_unix_ms: int | None
    expires_unix_ms: int | None
    """Expiry time of the message; 0 if it never expires, null like `published_unix_ms`."""
    attempts: int
    """Number of failed attempts that are counted."""
    nack: str | None
    """The reason of its last nack; null if there was none, or if no attempt is counted."""
    in_flight: LeaseDescription | None


class KeyMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Number of messages of a key that a group has not settled."""

    in_flight: int
    waiting: int
    dying: int = 0
    """Number of messages on their way to the dead letters."""


class KeyInGroup(msgspec.Struct, frozen=True, kw_only=True):
    """State of a key for a group."""

    group: str
    owner: OwnerDescription | None
    """The consumer that is given the messages of its partition; null if there is none here."""
    epoch: int | None
    """Epoch of that owner; null if the partition has no owner here."""
    waits_for: KeyWaits
    also: list[KeyWaits]
    """Further reasons that would hold it up."""
    text: str
    """The reasons in words, for people."""
    since_unix_ms: int | None
    """Time at which it was given, or parked; null if unknown. The head's `published_unix_ms` is a
    bound."""
    until_unix_ms: int | None
    """Earliest end of its lease or its backoff."""
    head: HeadDescription | None
    """null if there is none, or (`is_exact` false) none was found."""
    before: int | None
    """Upper bound of the messages of the partition that are given before it; null if none is."""
    messages: KeyMessages
    is_exact: bool
    """false if a part of the log was not read. The facts about `head` are true all the same;
    without a head nothing is known, and `messages` counts what was found."""


class ScheduledOfKey(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a key that wait until they are due."""

    messages: int
    next_unix_ms: int
    """Time at which the first of them is due."""
    is_exact: bool
    """False if there may be more: at least this many messages wait."""
    text: str
    """The same in words, for people."""


class Explained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The partition of a key, and for each group what the key waits for."""

    queue: str
    key: str
    key_hash: str
    partition: int
    ring_epoch: int
    paused: bool
    now_unix_ms: int
    groups: list[KeyInGroup]
    scheduled: ScheduledOfKey | None = None
    """Messages of the key that are not due yet, and that no group knows; left out if there are
    none."""
    next: str | None = None
    """Value for `?after=<this>` to get more groups; left out if there are no more."""


class HeldKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key with messages that were tried and wait."""

    partition: int
    key_hash: str
    """16 hexadecimal digits."""
    reason: Literal["parked", "dead_letter", "backoff", "commit", "behind", "ready"]
    """Reason why it waits; `ready` if nothing of its own holds it up."""
    messages: int
    """Number of messages that wait and are not in flight."""
    attempts: int
    """Failed attempts of the first message that waits."""
    in_flight: int
    nack: str | None = None
    """The reason of its last nack; left out if there was none."""
    key: str | None = None
    """The key's text; left out if it has none, or it is unknown."""
    offset: int | None = None
    """Offset of the first message that waits; left out if unknown."""
    until_unix_ms: int | None = None
    """End of its backoff, or of the lease of the message before it."""
    since_unix_ms: int | None = None
    """Time at which it was parked."""
    behind_offset: int | None = None
    is_exact: bool = True
    """False if a part of the log was not read: at least this many messages wait."""


class HeldKeys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keys that wait, by partition and hash."""

    keys: list[HeldKey]
    left_out: int = 0
    """Number of messages that were tried and whose key is unknown without reading more. They are in
    partitions without an owner at this gateway."""
    next: str | None = None
    """Value for `?after=<this>` to get more keys; left out if there are no more."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery in flight."""

    partition: int
    offset: int
    epoch: int
    push: int
    consumer: str
    attempt: int
    given_unix_ms: int
    lease_until_unix_ms: int
    key: str | None = None
    """The key's text; left out if it has none, or is no longer retained."""


class LeaseList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Deliveries in flight, by partition and offset."""

    leases: list[Lease]
    next: str | None = None
    """Value for `?after=<this>` to get more leases; left out if there are no more."""


DETAIL: Final = (
    "no valid credentials: send a token of this broker, in the header Authorization: Bearer "
    "<token> or in the hello of a WebSocket; for a browser, run `tocsin ticket`"
)
"""The only explanation that a client without valid credentials gets."""


class Admission(NamedTuple):
    """The access that a presented credential gives, at that moment."""

    principal: Principal
    lasts_s: float = inf
    """Seconds of access; infinity if it lasts until its credential is revoked."""
    rights: Rights = ALL_RIGHTS
    credential: str = "operator"
    """Name of the credential, without any secret: its end ends all that it has admitted."""
    is_cookie: bool = False
    """Whether the credential came as a cookie. It is given neither tickets nor a new cookie,
    because it could otherwise extend its own access for ever."""
    limits: Limits = NONE
    """Limits of this credential, in addition to those of its principal and address."""


class NotLetIn(Refused):
    """Refusal of credentials. `why` is a word for the audit trail and the log. The client gets
    DETAIL, whatever is wrong."""

    def __init__(self, why: str, credential: str | None = None) -> None:
        """`credential`: name of the presented credential, if that is certain."""
        self.why = why
        self.credential = credential
        super().__init__("unauthorized", DETAIL)


class PulledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as a pull returns it. `body` holds the bytes that were published (P2)."""

    receipt: str
    id: str
    partition: int
    offset: int
    attempt: int
    """Number of the attempt; 1 for the first delivery."""
    published_unix_ms: int
    lease_until_unix_ms: int
    """End of the lease by the gateway's clock; until then an ack, nack or extend of this receipt
    counts."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    sent_unix_ms: int | None = None
    deliver_at_unix_ms: int | None = None
    """When the message was due, if it was scheduled."""


class PullSettled(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an ack, nack or extend by receipts."""

    settled: int
    stale: list[str]
    """Receipts of deliveries that have ended: settled by another client, expired, given anew."""
    invalid: list[str]
    """Receipts that this broker did not give for this group."""


_DIGITS_MAX: Final = 18
"""Bound for int(), which is slow with a long text, and refuses 4,300 digits with a ValueError."""


def whole_number(text: str) -> int | None:
    """Return the number of these ASCII digits, below 10^18; None if the text is no such number."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    return None


SeekTo = Literal["earliest", "latest"] | tuple[Literal["unix_ms", "offset"], int]

BackupProgress = Callable[[str, int, int], None]
"""Callback with (present task, amount that is done, whole amount). It is called from any thread."""


class Place(NamedTuple):
    """The place where a look goes on. The text `4-130` is partition 4, offset 130."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Parse a text like `4-130`. Raises Refused(invalid_request)."""
        first, _, second = text.partition("-")
        partition, offset = whole_number(first), whole_number(second)
        if partition is None or offset is None:
            detail = "after: not a place like 4-130; send what `next` names"
            raise Refused("invalid_request", detail)
        return cls(partition, min(offset, limits.OFFSET_MAX))


_HASH_DIGITS: Final = 16


class HeldPlace(NamedTuple):
    """The place where a list of keys goes on, after a key of a partition. The text
    `4-00c0ffee00c0ffee` is partition 4 and the hash of the key."""

    partition: int
    key: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.key:0{_HASH_DIGITS}x}"

    @classmethod
    def parse(cls, text: str) -> "HeldPlace":
        """Parse a text like `4-00c0ffee00c0ffee`. Raises Refused(invalid_request)."""
        partition, _, digits = text.partition("-")
        try:
            if len(digits) != _HASH_DIGITS or digits.strip("0123456789abcdef"):
                raise Refused("invalid_request")
            return cls(Place.parse(f"{partition}-0").partition, int(digits, 16))
        except Refused:
            detail = "after: not a place like 4-00c0ffee00c0ffee; send what `next` names"
            raise Refused("invalid_request", detail) from None


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it is stored in its queue. `body` holds the bytes that were published (P2)."""

    id: str
    partition: int
    offset: int
    published_unix_ms: int
    expires_unix_ms: int = 0
    """Expiry time; 0 if it never expires."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    sent_unix_ms: int | None = None
    deliver_at_unix_ms: int | None = None
    """When the message was due, if it was scheduled."""


class PeekedMessage(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """A message in the answer of a peek. `state` and `attempts` are those of the group that the
    request names."""

    state: State | None = None
    attempts: int = 0


class Peeked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of a peek, by partition and offset."""

    messages: list[PeekedMessage]
    next: str | None = None
    """Value for `after` to look at more messages; left out if there are no more."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a dead letter was a message."""

    queue: str
    group: str | msgspec.UnsetType = msgspec.UNSET
    """The group; left out if the client's rights show no groups."""
    partition: int
    offset: int


class FoundDeadLetter(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter. `partition` and `offset` are its place in the queue of dead letters, and
    `published_unix_ms` is the time at which it came there. `id` and `headers` are those that it
    had as a message."""

    origin: Origin
    reason: str
    attempts: int
    nack: str | None = None
    """The reason of its last nack."""
    earlier: list[Origin] = []
    """Places where it had been a dead letter before, oldest first."""


class FoundDeadLetters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Dead letters of one queue."""

    queue: str
    """Name of their queue, whether or not it exists yet."""
    messages: list[FoundDeadLetter]
    next: str | None = None
    """Value for `after` to look at more letters; left out if there are no more."""


def without_groups(found: FoundDeadLetters) -> FoundDeadLetters:
    """Return the letters without the groups in which each has died, now and before, and without
    their nack reasons."""
    letters = [
        msgspec.structs.replace(
            letter,
            origin=msgspec.structs.replace(letter.origin, group=msgspec.UNSET),
            nack=None,
            earlier=[msgspec.structs.replace(one, group=msgspec.UNSET) for one in letter.earlier],
            headers=headers_without_groups(letter.headers),
        )
        for letter in found.messages
    ]
    return msgspec.structs.replace(found, messages=letters)


class Redriven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of dead letters that went back, durably."""

    messages: int
    next: str | None = None
    """Value for `after` to go on; left out if there are no more."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """Number of messages that an operator dropped."""

    messages: int


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of messages to look at."""

    limit: int
    partition: int | None = None
    offset: int = 0
    """First offset in `partition`, or in the partition of `key`."""
    key: str | None = None
    reason: str | None = None
    """Reason of the dead letters to show."""
    after: Place | None = None


class ParkedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that waits for an operator, because its head exhausted its attempts or was rejected
    (R18)."""

    partition: int
    key_hash: str
    """16 hexadecimal digits; names the key if it has no text."""
    reason: str
    """`exhausted` or `rejected`."""
    since_unix_ms: int
    messages: int
    """Number of messages that wait: the head and all after it."""
    attempts: int
    """Attempts of the head."""
    nack: str | None = None
    """The reason of the head's last nack; left out if there was none."""
    offset: int | None = None
    """Offset of the head; left out if no message waits there."""
    key: str | None = None
    """The key's text; left out if the head has no key, or is no longer retained."""
    expires_unix_ms: int | None = None
    """End of the head's time to live; left out if it has none, or it is unknown."""
    is_exact: bool = True
    """False if a part of the log was not read: at least this many messages wait."""


class ParkedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Parked keys of a group, by partition."""

    keys: list[ParkedKey]
    keys_parked: int
    """Number of all parked keys of the group."""


class WhichKey(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of parked keys: one by its text, one by its hash, or every one."""

    key: str | None = None
    key_hash: int | None = None
    every: bool = False

    def __str__(self) -> str:
        """Name the key in a sentence."""
        return f"the key {self.key!r}" if self.key is not None else f"the key {self.key_hash:016x}"


class RefusedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Parked keys of a partition that were left as they are, with the reason."""

    partition: int
    keys: int
    """Number of keys that were left for this reason."""
    code: str
    detail: str


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision that is durable."""

    decision: Verb
    keys: list[ParkedKey]
    """The keys that were decided, as they were before."""
    keys_parked: int
    """Number of keys that are still parked, because this call did not reach them, or because it was
    refused for them. Another call decides about them."""
    refused: list[RefusedKeys] = []
    """Keys that this call tried to decide and could not, by partition, with the reason; left out if
    there are none."""
