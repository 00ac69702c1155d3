"""Names of queues and groups, places of messages and of cursors, and keys that are parked there."""

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from push import limits
from push.errors import Refused

NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.NAME_CHARS_MAX - 1}}}")
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


def check_name(name: str, what: str) -> None:
    """Raise Refused(invalid_name) unless the name is 1 to 128 of [A-Za-z0-9._-], the first one a
    letter or digit."""
    if not NAME.fullmatch(name):
        raise Refused(
            "invalid_name",
            f"{what}: 1 to {limits.NAME_CHARS_MAX} of A-Z a-z 0-9 . _ - and a letter or digit "
            "first",
        )
