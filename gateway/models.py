"""What rooms of the gateway share: who is let in, what operators ask for and are shown of queues,
groups, keys and sessions, and messages as a pull over HTTP returns them.

All times are unix milliseconds. All counters grow from `since_unix_ms` on: a rate is the difference
of two looks.
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
"""How an owner is reached; pulls are requests over HTTP, of nobody in particular."""

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
"""What a partition of a group waits for: see docs/http.md."""


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
"""What a key waits for: see docs/http.md."""


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


DETAIL: Final = (
    "no valid credentials: this broker wants a token that it knows, in the header "
    "Authorization: Bearer <token> or in a WebSocket's hello; `tocsin ticket` lets a browser in"
)
"""All that anybody learns who has none or wrong ones."""


class Admission(NamedTuple):
    """What a credential that was presented amounts to, at that moment."""

    principal: Principal
    lasts_s: float = inf
    """So many seconds more; infinity: until its credential is revoked."""
    rights: Rights = ALL_RIGHTS
    credential: str = "operator"
    """What admits it, without any secret: whatever ends this ends all that it has admitted."""
    is_cookie: bool = False
    """By way of a cookie, which makes neither tickets nor cookies: access would never end."""
    limits: Limits = NONE
    """What this credential may at most, beside what its principal and address may."""


class NotLetIn(Refused):
    """A credential that is not good. `why` is a word for the audit trail and the log; whoever
    presents it is told DETAIL, whatever is wrong."""

    def __init__(self, why: str, credential: str | None = None) -> None:
        """`credential`: the name of the one that was presented, where that is certain."""
        self.why = why
        self.credential = credential
        super().__init__("unauthorized", DETAIL)


class PulledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message as a pull returns it. `body` holds the bytes that were published (P2)."""

    receipt: str
    id: str
    partition: int
    offset: int
    attempt: int
    """1 for the first delivery."""
    published_unix_ms: int
    lease_until_unix_ms: int
    """By the gateway's clock: until then an ack, nack or extend of this receipt counts."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None


class PullSettled(msgspec.Struct, frozen=True, kw_only=True):
    """What an ack, nack or extend by receipts did."""

    settled: int
    stale: list[str]
    """Receipts of deliveries that have ended: settled by somebody else, expired, given anew."""
    invalid: list[str]
    """Receipts that this broker did not give, for this group."""


_DIGITS_MAX: Final = 18
"""int() of a long text is slow, and refuses 4,300 digits with a ValueError."""


def whole_number(text: str) -> int | None:
    """The number that these ASCII digits are, below 10^18; None: they are none."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    return None


SeekTo = Literal["earliest", "latest"] | tuple[Literal["unix_ms", "offset"], int]

BackupProgress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is); from any thread."""


class Place(NamedTuple):
    """Where a look goes on. As text `4-130`: partition 4, offset 130."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        """The place of such a text. Raises Refused(invalid_request)."""
        first, _, second = text.partition("-")
        partition, offset = whole_number(first), whole_number(second)
        if partition is None or offset is None:
            raise Refused("invalid_request", "after: a place as `next` names it, like 4-130")
        return cls(partition, min(offset, limits.OFFSET_MAX))


_HASH_DIGITS: Final = 16


class HeldPlace(NamedTuple):
    """Where a list of keys goes on: behind a key of a partition, by its hash. As text
    `4-00c0ffee00c0ffee`."""

    partition: int
    key: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.key:0{_HASH_DIGITS}x}"

    @classmethod
    def parse(cls, text: str) -> "HeldPlace":
        """The place of such a text. Raises Refused(invalid_request)."""
        partition, _, digits = text.partition("-")
        try:
            if len(digits) != _HASH_DIGITS or digits.strip("0123456789abcdef"):
                raise Refused("invalid_request")
            return cls(Place.parse(f"{partition}-0").partition, int(digits, 16))
        except Refused:
            detail = "after: a place as `next` names it, like 4-00c0ffee00c0ffee"
            raise Refused("invalid_request", detail) from None


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it stands in its queue. `body` holds the bytes that were published (P2)."""

    id: str
    partition: int
    offset: int
    published_unix_ms: int
    expires_unix_ms: int = 0
    """0: never."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    sent_unix_ms: int | None = None


class PeekedMessage(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """What a peek shows of a message. `state` and `attempts` are those of the group that was asked
    for."""

    state: State | None = None
    attempts: int = 0


class Peeked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages by partition and offset."""

    messages: list[PeekedMessage]
    next: str | None = None
    """There may be more: look again `after` this place. Left out: that was all."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter was a message."""

    queue: str
    group: str | msgspec.UnsetType = msgspec.UNSET
    """Left out: the rights of whoever asks show no groups."""
    partition: int
    offset: int


class FoundDeadLetter(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """A message among the dead letters; `partition` and `offset` are those in their queue,
    `published_unix_ms` is when it came there, and `id` and `headers` are those that it had."""

    origin: Origin
    reason: str
    attempts: int
    nack: str | None = None
    """What its last nack gave as the reason."""
    earlier: list[Origin] = []
    """Where it was a message before, if it was a dead letter there already: the first one first."""


class FoundDeadLetters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Dead letters of one queue."""

    queue: str
    """The queue that they stand in, whether or not it is there yet."""
    messages: list[FoundDeadLetter]
    next: str | None = None
    """There may be more: look again `after` this place. Left out: that was all."""


def without_groups(found: FoundDeadLetters) -> FoundDeadLetters:
    """The same letters without the groups in which each has died, now and before, and without the
    words of these."""
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
    """Dead letters that went back, durably."""

    messages: int
    next: str | None = None
    """There may be more: go on `after` this place. Left out: that was all."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that an operator dropped."""

    messages: int


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are meant."""

    limit: int
    partition: int | None = None
    offset: int = 0
    """In `partition`, or in that of `key`."""
    key: str | None = None
    reason: str | None = None
    """Of dead letters."""
    after: Place | None = None


class ParkedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of which the head exhausted its attempts or was rejected, and which waits for an
    operator (R18)."""

    partition: int
    key_hash: str
    """16 hexadecimal digits: names it where it has no text."""
    reason: str
    """`exhausted` or `rejected`."""
    since_unix_ms: int
    messages: int
    """How many wait: the head and all behind it."""
    attempts: int
    """Those of the head."""
    nack: str | None = None
    """The reason that the last nack of the head gave; left out: none did."""
    offset: int | None = None
    """Of the head; left out: nothing waits there."""
    key: str | None = None
    """Its text; left out: the head has no key, or is no longer retained."""
    expires_unix_ms: int | None = None
    """When the time to live of the head is over; left out: it has none, or is not known."""
    is_exact: bool = True
    """False: not all of the log was looked at, at least so many wait."""


class ParkedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Parked keys of a group, by partition."""

    keys: list[ParkedKey]
    keys_parked: int
    """How many there are in all."""


class WhichKey(msgspec.Struct, frozen=True, kw_only=True):
    """The parked key that is meant: by its text, by its hash, or every one."""

    key: str | None = None
    key_hash: int | None = None
    every: bool = False

    def __str__(self) -> str:
        """For a sentence."""
        return f"the key {self.key!r}" if self.key is not None else f"the key {self.key_hash:016x}"


class RefusedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Parked keys of a partition to which nothing happened."""

    partition: int
    keys: int
    """How many."""
    code: str
    detail: str


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision that is durable."""

    decision: Verb
    keys: list[ParkedKey]
    """What it was about, as that was before."""
    keys_parked: int
    """How many more there were that this call did not reach, or was refused: call again."""
    refused: list[RefusedKeys] = []
    """Of these, those that were refused; left out: none was."""
