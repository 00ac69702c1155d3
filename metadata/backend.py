"""The two ports below the catalog: the store of its rules, and the database of its rows.

`Store` is what `metadata.catalog_service` requires. One SQLite file implements it for one gateway
(`metadata.sqlite.catalog`), and `metadata.row_store` for several gateways that share a database.
With the second one others change rows too. A write that was decided upon older rows is then
`Stale`. The rules read the news and decide again, so that no change is lost.

`Database` is what `metadata.row_store` requires. It compares and sets. Rows are kinds of ids with
values, which only `metadata.row_store` understands. Each change is one compare-and-set on the
version of the whole catalog. A version bears a random stamp of the change. The stamp distinguishes
two histories with one number (R30), and a gateway without an answer learns from it whether its
change was made. `metadata.redis.database` is Redis and Valkey, `metadata.sqlite.database` a file of
one process, and `metadata.service.client` the metadata service, which works in front of one of the
two.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey
from metadata.tokens import TokenRecord
from push.errors import Fenced

RunChange = Callable[..., Awaitable[Any]]
"""Runs a change (a coroutine function and its arguments) after the others, to its end."""


class Stale(Exception):
    """Error: nothing was written, because others have changed the catalog since its news were
    read."""


def other_generation(group_id: str) -> Fenced:
    """Return the error of a change that did not happen because it was decided by an older row of
    this group (R14)."""
    return Fenced(f"the row of the group {group_id} is of another generation by now")


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows of the catalog: all of them, or those that changed."""

    queues: list[Queue]
    groups: list[Group]
    dropped: list[tuple[str, str | None]]
    """(queue_id, group_id) of dropped groups; None: the whole queue was dropped."""
    marks: dict[str, str]
    memberships: list[Membership]
    """Rows of groups with lingering members, from the end of the process before this one."""
    data_keys: list[DataKey]
    tokens: list[TokenRecord]


@dataclass(frozen=True, slots=True)
class News:
    """Rows that others have changed, with their present values; ids of rows that no longer
    exist."""

    contents: Contents
    queues_gone: list[str] = field(default_factory=list)
    groups_gone: list[str] = field(default_factory=list)
    tokens_gone: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """Ids of queues and groups that are no longer in `dropped`, because the storage has dropped
    them too."""


class MembershipRows(Protocol):
    """The one row of each group (R14), of groups that the catalog has."""

    async def get(self, group_id: str) -> Membership:
        """Return the group's row; a row that nobody has changed yet has no members."""

    async def glance(self, group_id: str) -> Membership:
        """Return the group's row from one copy, without waiting for others (`Metadata.glance`)."""

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """Replace a group's row, and return True; False, and nothing changed, if its generation is
        not `expected_generation`. The caller has checked that the generation grows."""

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Raise this gateway's number and return all gateways' numbers (`Metadata.beat`)."""

    async def said(self) -> dict[str, str]:
        """Return gateway → the text that it sent with its last beat (`Metadata.said`)."""

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """Have `listener` called with (group id, generation) of changed rows; some calls may be
        lost."""

    def dropped(self, group_id: str) -> None:
        """Forget the row of a deleted group."""


class Store(Protocol):
    """The rows of a catalog. A write is durable when its method returns.

    Every method that writes raises `Refused` (storage_unavailable, with a sentence) when nothing
    was written, `Unknown` when it may have been, and `Stale`. They are called one after another.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other gateways change it too."""

    @property
    def root_secret(self) -> bytes:
        """32 secret bytes that were made with the catalog."""

    @property
    def broken(self) -> str | None:
        """Why nothing is accepted any more; None while it works."""

    @property
    def age_s(self) -> float:
        """Age of this view of the catalog in seconds: all changes that others made longer ago have
        been read. 0 when nobody else changes the catalog."""

    def follow(self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]) -> None:
        """Have `read` called soon after others have changed something, and now and then. `cut_off`
        is called each time that `age_s` reaches METADATA_STALE_S, once. A store that nobody else
        changes calls neither."""

    async def news(self) -> News | None:
        """Return what others have changed since the last call, without the writes through this
        store; None if nothing. Raises Refused when the database does not answer, or when this
        catalog must not be followed any more."""

    def memberships(self, run_change: RunChange) -> MembershipRows:
        """Return the keeper of the rows of groups; a store has one. `run_change` runs a change
        after the others."""

    async def fresh_id(self) -> str:
        """Return an id that no queue or group has or ever had (R1)."""

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        """Add queues and groups with fresh ids, all or none. In `rows` a queue is before its
        groups."""

    async def change(self, row: Queue | Group) -> None:
        """Replace the value of an existing queue or group."""

    async def drop_queue(self, queue_id: str) -> None:
        """Remove a queue and its groups. The queue's id is in `Contents.dropped` until `forget`, on
        behalf of its groups too."""

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        """Remove a group; its id is in `Contents.dropped` until `forget`. With a generation the
        group is removed only if its row still has that generation, in one act; if not, raises
        Fenced, and nothing was written."""

    async def forget(self, any_id: str) -> None:
        """Note that a dropped queue or group no longer exists anywhere. Its id stays taken (R1)."""

    async def put_token(self, record: TokenRecord) -> None:
        """Store a token in place of the one of its id."""

    async def drop_token(self, token_id: str) -> None:
        """Remove a token."""

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        """Add these data keys, each in place of the one of its id; all or none."""

    async def set_mark(self, name: str, value: str) -> None:
        """Store a text under this name, in place of the last one."""

    async def copy_to(self, path: Path) -> None:
        """Write a copy of the catalog, with its secrets, to a new file. The file is fsynced, and
        its folder is not. Raises Refused(storage_unavailable), always if the catalog is not a file
        of this process."""

    async def close(self) -> None:
        """Close the store."""


CHANGES_KEPT: Final = 1000
"""Number of changes that a database keeps. A gateway that has missed more reads everything
again."""
Write = tuple[str, str, bytes]
"""Kind, id and new value of a row; the value b"" removes the row."""


class RowCondition(NamedTuple):
    """The generation that a group's row must have for a change; 0: the group must have no row
    yet."""

    group_id: str
    generation: int


NO_CONDITION: Final = RowCondition("", 0)
"""No condition: no row is compared."""
Raw = dict[str, dict[str, bytes | None]]
"""Kind → id → value; None when the row no longer exists."""


class CatalogPlace(msgspec.Struct, frozen=True, array_like=True):
    """A moment of a catalog: after the change of this version, which bears this stamp. Version 0 is
    before the first change."""

    incarnation: str
    version: int
    stamp: str


NOWHERE: Final = CatalogPlace("", 0, "")


class Lost(Exception):
    """Error: the catalog is another one than the one that was followed, or is an older copy of it
    (R30). The text says why."""


@dataclass(frozen=True, slots=True)
class CatalogRows:
    """Rows as they are at `place`: those that changed, or all if `is_all` is set."""

    place: CatalogPlace
    raw: Raw
    is_all: bool
    secret: bytes
    """Stored row, with its checksum, of the 32 secret bytes that were made with the catalog."""


class Database(Protocol):
    """Rows that are compared and set. Whatever `read` returns or `change` confirms is on all copies
    that could be elected."""

    poll_s: float
    """Seconds between reads that no notice has caused."""

    known_at: float
    """Time of the loop's clock; the listener of `on_changed` has received every change before it,
    even where nothing was read since. -inf when the database cannot vouch for that."""

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """Have `heard` called on the event loop with the version after each change, by any gateway.
        0 means that the version is not known. Some calls may be lost. There is one listener."""

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        """Return what has changed since `seen`, or None if nothing has.

        Raises:
            Lost: what was seen is no longer part of the catalog, or there is none.
            Refused: storage_unavailable when nobody answers, or too few copies have it; ask again.
        """

    async def change(
        self,
        seen: CatalogPlace,
        stamp: str,
        writes: Sequence[Write],
        row: RowCondition = NO_CONDITION,
    ) -> bool:
        """Make all of these writes or none, if nobody has changed the catalog since `seen`. Its
        version then grows by one and bears this stamp. False when somebody has changed it. Raises
        Refused; Unknown when it may have happened; Fenced when nobody has, but `row` is of another
        generation and nothing happened (R14)."""

    async def is_taken(self, any_id: str) -> bool:
        """Whether a queue or group has this id or ever had. Raises Refused."""

    def memberships(self) -> MembershipRows:
        """Return the keeper of the groups' rows."""

    async def copy_to(self, path: Path) -> None:
        """Write a copy to a new file, fsynced. Raises Refused if that failed, or if such a database
        is to be copied in another way."""

    async def close(self) -> None:
        """Close the database."""


class NodeDatabase(Database, Protocol):
    """The database behind the nodes of a metadata service."""

    async def beat_node(self, name: str, number: int, forget: Mapping[str, int]) -> dict[str, int]:
        """Raise the number of the node `name`, and return all nodes' numbers (`Metadata.beat`).
        Raises Refused or Unknown."""
