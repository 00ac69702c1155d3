"""Places of messages and of cursors, and keys that are parked there.

Values that the storage port and letters both name.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Durability = Literal["local", "quorum", "all"]


class Partition(NamedTuple):
    """Name of an ordered log, a queue's partition. `queue_id` is never reused (R1)."""

    queue_id: str
    number: int


class CursorPlace(NamedTuple):
    """Place of a cursor: a group and a partition. `group_id` is never reused either."""

    group_id: str
    partition: Partition


Verb = Literal["retry", "skip", "release"]
"""An operator's decision about a parked key. retry: the head is tried once more, and the key is
parked again if that fails. skip: the head goes to the dead letters. release: the attempts of all
that was parked are forgotten."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A key that waits for an operator, because its head exhausted its attempts or was rejected."""

    key_hash: int
    reason: str
    since_unix_ms: int


@dataclass(frozen=True, slots=True)
class ParkedLine:
    """A parked key with the content of its side line, for inspection."""

    key_hash: int
    reason: str
    since_unix_ms: int
    messages: int
    head: int | None
    """The first offset of the side line; None: it is empty."""
    attempts: int
    """Number of counted attempts of the head."""
    nack: bytes | None = None
    """The sealed reason of the head's last nack that gave one."""
