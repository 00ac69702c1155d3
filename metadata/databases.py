"""What the catalog of several gateways asks of whatever keeps its rows: a database that compares
and sets.

Rows are kinds of ids with values, which only `metadata.rows` understands. Each change is one
compare-and-set on the version of the whole catalog; a version bears a stamp that whoever made the
change has drawn, so that two histories with one number are told apart (R30), and who was not
answered can find out whether the change is his.

`metadata.redis.redis_database` is Redis and Valkey, `metadata.sqlite.sqlite_database` a file of one
process, and `metadata.service.remote_database` the metadata service, which stands in front of one
of the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from metadata.stores import MembershipRows

CHANGES_KEPT: Final = 1000
"""Who has missed more changes reads everything again."""
Write = tuple[str, str, bytes]
"""Kind, id, value; b"": no longer there."""
RowHeld = tuple[str, int]
"""A group's id, and the generation that its row must have; 0: there is no row yet."""
NO_ROW: Final[RowHeld] = ("", 0)
"""No row is held to anything."""
Raw = dict[str, dict[str, bytes | None]]
"""Kind → id → value; None: it is no longer there."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A moment of a catalog: after the change of this version, which bears this stamp. 0: before
    the first one."""

    incarnation: str
    version: int
    stamp: str


NOWHERE: Final = Place("", 0, "")


class Lost(Exception):
    """The catalog is not the one that was followed, or an older copy of it; says why (R30)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows as they are at `place`: those that changed, or with `is_all` all there are."""

    place: Place
    raw: Raw
    is_all: bool
    secret: bytes
    """The row of 32 bytes that were made with the catalog."""


class Database(Protocol):
    """See the module. What is read or was changed is on all copies that could be elected."""

    poll_s: float
    """How often to read whether or not something was heard."""

    known_at: float
    """By the loop's clock: what was changed before was told to whom `on_changed` has registered,
    even where nothing was read since. -inf: nobody says so."""

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """Have `heard` called on the event loop with the version after each change, of whomever;
        0: it is not known which. Some may be lost. For one listener."""

    async def read(self, seen: Place) -> Reading | None:
        """What has changed since. None: nothing has.

        Raises:
            Lost: what was seen is no longer part of the catalog, or there is none.
            Refused: storage_unavailable: nobody answers, or too few copies have it; ask again.
        """

    async def change(
        self, seen: Place, stamp: str, writes: Sequence[Write], row: RowHeld = NO_ROW
    ) -> bool:
        """All of these or none, if nobody has changed the catalog since; its version is one more
        then and bears this stamp. False: somebody has. Raises Refused; Unknown: it may have
        happened; Fenced: nobody has, but this row is of another generation, and nothing happened
        (R14)."""

    async def is_taken(self, any_id: str) -> bool:
        """Whether a queue or group has this id or ever had. Raises Refused."""

    def memberships(self) -> MembershipRows:
        """The groups' rows."""

    async def copy_to(self, path: Path) -> None:
        """A copy in a new file, fsynced. Raises Refused: that is done in another way, or failed."""

    async def close(self) -> None:
        """Let go of it."""


class NodeDatabase(Database, Protocol):
    """What the nodes of a metadata service stand in front of."""

    async def beat_node(self, name: str, number: int, forget: Mapping[str, int]) -> dict[str, int]:
        """As Metadata.beat, of these nodes. Raises Refused or Unknown."""
