"""What gateways and nodes of the metadata service say to each other, as JSON. Bytes are base64; the
values of rows are those of `metadata.row_store`, which no node looks into."""

from typing import Final, Literal

import msgspec

from metadata.backend import NO_ROW, Place, Raw, RowHeld, Write
from metadata.catalog import Membership
from metadata.service.replica import Rows

Layout = Literal["whole", "ring", "forward"]
LAYOUTS: Final[tuple[Layout, ...]] = ("whole", "ring", "forward")
"""whole    every node keeps all of the catalog: any of them, behind a balancer
ring     a node keeps its shards, and who wants one finds its holders by the ring
forward  a node keeps its shards, and has others' from them when it is asked"""
WAIT_S_MAX: Final = 10.0
BODY_BYTES_MAX: Final = 64 * 1_048_576
"""Of an answer: a shard of the largest catalog has a few MiB."""


class NodeInfo(msgspec.Struct, frozen=True):
    """A node that is there."""

    url: str
    layout: Layout


class ReadRequest(msgspec.Struct, frozen=True):
    """What has changed since this place?"""

    seen: Place


class ReadAnswer(msgspec.Struct, frozen=True):
    """`same`: nothing. `rows`: these, as they are at `place`. `all`: too much, or nothing was seen
    yet: read every shard, then this again from the lowest of their places."""

    kind: Literal["same", "rows", "all"]
    place: Place
    rows: Raw
    secret: bytes


class ShardAnswer(msgspec.Struct, frozen=True):
    """A shard's rows, as they are at `place`."""

    place: Place
    rows: Rows
    secret: bytes


class ChangeRequest(msgspec.Struct, frozen=True):
    """As Database.change."""

    seen: Place
    stamp: str
    writes: tuple[Write, ...]
    row: RowHeld = NO_ROW


class Changed(msgspec.Struct, frozen=True):
    """Whether it is: False, somebody was faster; `fenced`: nobody was, but the row that it was held
    to is of another generation."""

    changed: bool
    fenced: bool = False


class Taken(msgspec.Struct, frozen=True):
    """As Database.is_taken."""

    taken: bool


class MembershipRequest(msgspec.Struct, frozen=True):
    """As MembershipRows.change."""

    new: Membership
    expected_generation: int


class BeatRequest(msgspec.Struct, frozen=True):
    """As MembershipRows.beat."""

    gateway: str
    number: int
    forget: dict[str, int]
    says: str = ""


class WatchAnswer(msgspec.Struct, frozen=True):
    """What a node knows by now. `members`: (group id, generation) of rows that were changed since
    `cursor` was answered before; a node that has just started knows of none."""

    version: int
    cursor: str
    members: tuple[tuple[str, int], ...]
    nodes: tuple[NodeInfo, ...]
