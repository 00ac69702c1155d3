"""Requests of operators and the answers: pause, purge, peek, dead letters, parked keys, seeks,
backups."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from gateway.whole_numbers import whole_number
from metadata.catalog import Principal, Queue
from push import limits
from push.dead_letter_headers import headers_without_groups
from push.delivery.standing import State
from push.errors import Refused
from push.places import Verb

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


class Upkeeping(Protocol):
    """What operators ask about queues. Every call raises TocsinError for what it refuses."""

    async def pause(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """Give nothing out to groups, or go on; as it is then, durably."""

    async def purge(self, principal: Principal, queue: Queue, group: str | None) -> Purged:
        """Drop what stands there, for a group, or (None) for everybody; durably."""

    async def peek(
        self, principal: Principal, queue: Queue, look: Look, group: str | None
    ) -> Peeked:
        """Show messages without taking them; with a group those that it has not settled."""

    async def dead_letters(
        self, principal: Principal, queue: Queue, look: Look
    ) -> FoundDeadLetters:
        """The dead letters of a queue that have not gone back."""

    async def redrive(self, principal: Principal, queue: Queue, look: Look) -> Redriven:
        """Send dead letters back into the queue that they come from; durably."""
