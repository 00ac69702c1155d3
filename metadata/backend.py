"""The two ports below the catalog: the store of its rules, and the database of its rows.

`Store` is what `metadata.catalog_service` requires. One SQLite file implements it for one gateway
(`metadata.sqlite.catalog`), and `metadata.row_store` for several gateways that share a database.
With the second one others change rows too: a write that was decided upon older rows is `Stale`; the
rules read the news and decide again, so that no change is lost.

`Database` is what `metadata.row_store` requires: it compares and sets. Rows are kinds of ids with
values, which only `metadata.row_store` understands. Each change is one compare-and-set on the
version of the whole catalog. A version bears a random stamp of the change, so that two histories
with one number are told apart (R30), and a gateway without an answer can find out whether its
change was made. `metadata.redis.database` is Redis and Valkey, `metadata.sqlite.database` a file of
one process, and `metadata.service.client` the metadata service, which stands in front of one of the
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
    """Nothing was written: others have changed the catalog since its news were read."""


def other_generation(group_id: str) -> Fenced:
    """A change that was decided by an older row of this group did not happen (R14)."""
    return Fenced(f"the row of the group {group_id} is of another generation by now")


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows of the catalog: all of them, or those that changed."""

    queues: list[Queue]
    groups: list[Group]
    dropped: list[tuple[str, str | None]]
    """(queue_id, group_id or None), see `Metadata`."""
    marks: dict[str, str]
    memberships: list[Membership]
    """Rows of groups with lingering members, from the end of the process before this one."""
    data_keys: list[DataKey]
    tokens: list[TokenRecord]


@dataclass(frozen=True, slots=True)
class News:
    """What others have changed, as it is now; the ids of what is no longer there."""

    contents: Contents
    queues_gone: list[str] = field(default_factory=list)
    groups_gone: list[str] = field(default_factory=list)
    tokens_gone: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """Were in `dropped`."""


class MembershipRows(Protocol):
    """The one row of each group (R14), of groups that the catalog has."""

    async def get(self, group_id: str) -> Membership:
        """See Metadata.membership."""

    async def glance(self, group_id: str) -> Membership:
        """See Metadata.glance."""

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """See Metadata.change_membership; that the generation grows was looked at."""

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """See Metadata.beat."""

    async def said(self) -> dict[str, str]:
        """See Metadata.said."""

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """See Metadata.on_membership_changed."""

    def dropped(self, group_id: str) -> None:
        """The group is gone."""


class Store(Protocol):
    """The rows of a catalog. What a method wrote is durable when it returns.

    Every method that writes raises `Refused` (storage_unavailable, with a sentence): nothing was
    written; `Unknown`: it may have been; `Stale`: see there. They are called one after another.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other gateways change it, too."""

    @property
    def root_secret(self) -> bytes:
        """32 bytes that were made with the catalog."""

    @property
    def broken(self) -> str | None:
        """Why nothing is accepted any more. None: all is well."""

    @property
    def age_s(self) -> float:
        """What others changed before so many seconds is known here, or was read. 0: nobody else
        changes it."""

    def follow(self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]) -> None:
        """Have `read` called soon after others have changed something, and now and then; and
        `cut_off` once when `age_s` comes to METADATA_STALE_S, each time that it does. A store that
        nobody else changes never does."""

    async def news(self) -> News | None:
        """What others have changed since the last time; written by this one is no news. None:
        nothing. Raises Refused: nobody answers, or this catalog must not be followed any more."""

    def memberships(self, run_change: RunChange) -> MembershipRows:
        """The rows of groups, of which there is one keeper. `run_change` runs a change behind the
        others."""

    async def fresh_id(self) -> str:
        """An id that no queue or group has or ever had (R1)."""

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        """Add queues and groups with fresh ids, all or none; a group behind its queue."""

    async def change(self, row: Queue | Group) -> None:
        """Replace the value of a queue or group that is there."""

    async def drop_queue(self, queue_id: str) -> None:
        """Take a queue and its groups out; the queue's id is to be forgotten later, the groups'
        with it."""

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        """Take a group out; its id is to be forgotten later. With a generation: if its row is still
        of it, in one act; else Fenced, and nothing was written."""

    async def forget(self, any_id: str) -> None:
        """A dropped queue or group is gone everywhere. Its id stays taken (R1)."""

    async def put_token(self, record: TokenRecord) -> None:
        """Keep it, in place of the one of its id."""

    async def drop_token(self, token_id: str) -> None:
        """Take it out."""

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        """Add these data keys, each in place of the one of its id; all or none."""

    async def set_mark(self, name: str, value: str) -> None:
        """Remember a mark, in place of the last one of this name."""

    async def copy_to(self, path: Path) -> None:
        """A copy of the catalog in a new file, fsynced; the folder is not. It holds secrets."""

    async def close(self) -> None:
        """Let go of it."""


CHANGES_KEPT: Final = 1000
"""Who has missed more changes reads everything again."""
Write = tuple[str, str, bytes]
"""Kind, id, value; b"": no longer there."""


class RowCondition(NamedTuple):
    """The generation that a group's row must have; 0: there is no row yet."""

    group_id: str
    generation: int


NO_CONDITION: Final = RowCondition("", 0)
"""No row is held to anything."""
Raw = dict[str, dict[str, bytes | None]]
"""Kind → id → value; None: it is no longer there."""


class CatalogPlace(msgspec.Struct, frozen=True, array_like=True):
    """A moment of a catalog: after the change of this version, which bears this stamp. 0: before
    the first one."""

    incarnation: str
    version: int
    stamp: str


NOWHERE: Final = CatalogPlace("", 0, "")


class Lost(Exception):
    """The catalog is not the one that was followed, or an older copy of it; says why (R30)."""


@dataclass(frozen=True, slots=True)
class CatalogRows:
    """Rows as they are at `place`: those that changed, or with `is_all` all there are."""

    place: CatalogPlace
    raw: Raw
    is_all: bool
    secret: bytes
    """The row of 32 bytes that were made with the catalog."""


class Database(Protocol):
    """Rows that are compared and set. Reads and changes are on all copies that could be elected."""

    poll_s: float
    """How often to read whether or not something was heard."""

    known_at: float
    """By the loop's clock: what was changed before was told to whom `on_changed` has registered,
    even where nothing was read since. -inf: nobody says so."""

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """Have `heard` called on the event loop with the version after each change, of whomever;
        0: it is not known which. Some may be lost. For one listener."""

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        """What has changed since. None: nothing has.

        Raises:
            Lost: what was seen is no longer part of the catalog, or there is none.
            Refused: storage_unavailable: nobody answers, or too few copies have it; ask again.
        """

    async def change(
        self,
        seen: CatalogPlace,
        stamp: str,
        writes: Sequence[Write],
        row: RowCondition = NO_CONDITION,
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
        """Raise the number of a node, as gateways do. Raises Refused or Unknown."""
