"""The catalog of several gateways as rows, as one of them reads, changes and follows it.

`RowStore` works over any database that compares and sets (`metadata.backend`). Rows have kinds,
ids, and values with a checksum. A value is a CRC-32 of its place and content as 8 hexadecimal
digits, then the content (R30), so a row in another row's place counts as damaged, too. The gateway
that makes the row writes the checksum and the one that reads it checks it, so no bit changes
unnoticed on the way.
"""

import asyncio
import logging
import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from metadata.backend import (
    NO_CONDITION,
    NOWHERE,
    CatalogPlace,
    CatalogRows,
    Contents,
    Database,
    Lost,
    MembershipRows,
    News,
    Raw,
    RowCondition,
    RunChange,
    Stale,
    Write,
)
from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey
from metadata.rights import RightsError
from metadata.tokens import TokenRecord, rights_of
from push.errors import Refused, TocsinError
from push.limits import METADATA_STALE_S

FOLLOWED: Final = ("queues", "groups", "tokens", "data_keys", "marks", "dropped")
"""Kinds of rows that every gateway has in memory."""
KINDS: Final = (*FOLLOWED, "ids", "memberships")
ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
ID_LETTERS: Final = 10
_CRC_BYTES: Final = 8
_ENCODE: Final = msgspec.json.Encoder().encode
StructT = TypeVar("StructT", Queue, Group, TokenRecord, DataKey, Membership)


class Damaged(Exception):
    """Error: a row is not what was written; says which."""


def random_id() -> str:
    """Draw 50 random bits as ten letters and digits: short in a log, unlike any name."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LETTERS))


def columns_of(row: Queue | Group) -> tuple[str, str, str]:
    """Return (id, scope in which the name is unique, name)."""
    if isinstance(row, Queue):
        return row.queue_id, row.tenant, row.name
    return row.group_id, row.queue_id, row.name


def pack(kind: str, row_id: str, content: bytes) -> bytes:
    """Return the stored value of a row: a checksum of its place and content, then the content."""
    return b"%08x" % zlib.crc32(f"{kind}:{row_id}:".encode() + content) + content


def unpack(kind: str, row_id: str, value: bytes) -> bytes:
    """Return the content of a row. Raises Damaged."""
    content = value[_CRC_BYTES:]
    if pack(kind, row_id, content) != value:
        raise Damaged(f"the row {row_id!r} of {kind} is damaged")
    return content


def pack_struct(kind: str, row_id: str, row: msgspec.Struct) -> bytes:
    """Return the stored value of a row that is a struct."""
    return pack(kind, row_id, _ENCODE(row))


def read_struct(kind: str, row_id: str, value: bytes, form: type[StructT]) -> StructT:
    """Return the struct of a row. Raises Damaged."""
    try:
        return msgspec.json.decode(unpack(kind, row_id, value), type=form)
    except msgspec.DecodeError as error:
        raise Damaged(f"the row {row_id!r} of {kind} cannot be read: {error}") from None


def read_token(row_id: str, value: bytes) -> TokenRecord | None:
    """Read a token; None when it is damaged, and then it admits nobody."""
    try:
        record = read_struct("tokens", row_id, value, TokenRecord)
        rights_of(record.rights)
    except (Damaged, RightsError):
        return None
    return record


def read_rows(raw: Raw) -> Contents:
    """Decode rows of the kinds in FOLLOWED, without damaged tokens; `memberships` is empty.

    Raises:
        Damaged: any other row is damaged. If a damaged queue were left out, it would be created
            anew under its name, and its messages orphaned.
    """
    there = {
        kind: [(row_id, value) for row_id, value in raw.get(kind, {}).items() if value is not None]
        for kind in FOLLOWED
    }
    dropped = [(row_id, unpack("dropped", row_id, value)) for row_id, value in there["dropped"]]
    return Contents(
        queues=[read_struct("queues", *row, Queue) for row in there["queues"]],
        groups=[read_struct("groups", *row, Group) for row in there["groups"]],
        dropped=[
            (queue_id.decode(), None if queue_id.decode() == row_id else row_id)
            for row_id, queue_id in dropped
        ],
        marks={name: unpack("marks", name, value).decode() for name, value in there["marks"]},
        memberships=[],
        data_keys=[read_struct("data_keys", *row, DataKey) for row in there["data_keys"]],
        tokens=[one for one in (read_token(*row) for row in there["tokens"]) if one is not None],
    )


_LOG: Final = logging.getLogger(__name__)


class RowStore:
    """`metadata.backend.Store` over a database; `open` makes one."""

    is_shared = True

    def __init__(
        self,
        database: Database,
        on_fatal: Callable[[str], None] | None,
        draw_id: Callable[[], str],
    ) -> None:
        self.root_secret = b""
        self.broken: str | None = None
        self._database = database
        self._on_fatal = on_fatal
        self._draw_id = draw_id
        self._seen = NOWHERE
        self._read_at = float("-inf")
        """Time of the loop's clock at which the newest read that succeeded began."""
        self._queues: set[str] = set()
        self._groups: dict[str, str] = {}
        """Group id → queue id. `_dropped`: id of a dropped queue or group → queue id."""
        self._dropped: dict[str, str] = {}
        self._tokens: set[str] = set()
        self._rang = asyncio.Event()
        self._follow_task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        database: Database,
        *,
        on_fatal: Callable[[str], None] | None = None,
        draw_id: Callable[[], str] = random_id,
    ) -> "tuple[RowStore, Contents]":
        """Read the existing catalog.

        `on_fatal` is called on the event loop, once, with a sentence, when the catalog is no longer
        the one that was read, or an older copy of it, or damaged (R30). This gateway's memory is
        then about queues that may not exist, and the process must end.

        Raises:
            Refused: storage_unavailable when there is no catalog, it is damaged, or nobody answers.
            Unknown: too few copies answer in time.
        """
        store = cls(database, on_fatal, draw_id)
        database.on_changed(store._on_notice)  # first: what changes from now on is not missed
        store._read_at = asyncio.get_running_loop().time()
        try:
            reading = await database.read(NOWHERE)
            assert reading is not None  # a catalog has a first version: that is news
            contents = read_rows(reading.raw)
            store.root_secret = unpack("catalog", "secret", reading.secret)
        except (Lost, Damaged) as error:
            raise Refused("storage_unavailable", f"the catalog cannot be used: {error}") from None
        store._learn(reading, contents)
        return store, contents

    # --- Following what others change ------------------------------------------------------------

    def _on_notice(self, version: int) -> None:
        if not version or version > self._seen.version:
            self._rang.set()

    @property
    def place(self) -> CatalogPlace:
        """The moment of the catalog up to which this store has read or made changes."""
        return self._seen

    @property
    def age_s(self) -> float:
        known_at = max(self._read_at, self._database.known_at)
        return max(0.0, asyncio.get_running_loop().time() - known_at)

    def follow(self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]) -> None:
        """Call `read` when the database gives notice of a change, and after `poll_s` without a
        notice. `cut_off` is called once each time that `age_s` reaches METADATA_STALE_S."""
        self._follow_task = asyncio.get_running_loop().create_task(self._follow(read, cut_off))

    async def _follow(
        self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]
    ) -> None:
        is_well, is_stale = True, False
        while self.broken is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._database.poll_s):
                    await self._rang.wait()
            self._rang.clear()
            try:
                await read()
                is_well = True
            except TocsinError as error:
                if is_well:
                    _LOG.warning("what others change in the catalog is not known here: %s", error)
                is_well = False
            was_stale, is_stale = is_stale, self.age_s >= METADATA_STALE_S
            if is_stale and not was_stale:
                cut_off()

    async def news(self) -> News | None:
        self._check_well()
        began = asyncio.get_running_loop().time()
        try:
            reading = await self._database.read(self._seen)
            self._read_at = began
            if reading is None:
                return None
            contents = read_rows(reading.raw)
        except (Lost, Damaged) as error:
            raise self._stop(str(error)) from None
        return self._learn(reading, contents)

    def _learn(self, reading: CatalogRows, contents: Contents) -> News:
        def gone(kind: str, known: Iterable[str], there: Iterable[str]) -> list[str]:
            rows = reading.raw.get(kind, {})
            told = set(known) if reading.is_all else set(rows)
            return sorted(told - set(there))

        there = {one.token_id for one in contents.tokens}
        rows = reading.raw.get("tokens", {})
        damaged = [one for one, value in rows.items() if value is not None and one not in there]
        if damaged:
            _LOG.error("damaged tokens, which admit nobody: %s", damaged)
        dropped = {group_id or queue_id: queue_id for queue_id, group_id in contents.dropped}
        news = News(
            contents,
            queues_gone=gone("queues", self._queues, [one.queue_id for one in contents.queues]),
            groups_gone=gone("groups", self._groups, [one.group_id for one in contents.groups]),
            tokens_gone=gone("tokens", self._tokens, there),
            forgotten=gone("dropped", {*self._dropped, *self._queues, *self._groups}, dropped),
        )
        self._queues = (self._queues - set(news.queues_gone)) | {
            one.queue_id for one in contents.queues
        }
        self._tokens = (self._tokens - set(news.tokens_gone)) | there
        self._groups |= {one.group_id: one.queue_id for one in contents.groups}
        self._dropped |= dropped
        for group_id in news.groups_gone:
            self._groups.pop(group_id, None)
        for any_id in news.forgotten:
            self._dropped.pop(any_id, None)
        self._seen = reading.place
        return news

    def _stop(self, why: str) -> Refused:
        self.broken = f"the catalog must not be followed any more: {why}"
        _LOG.critical("%s", self.broken)
        if self._on_fatal is not None:
            self._on_fatal(self.broken)
        return Refused("storage_unavailable", self.broken)

    def _check_well(self) -> None:
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)

    # --- Changing --------------------------------------------------------------------------------

    async def _change(self, writes: Sequence[Write], row: RowCondition = NO_CONDITION) -> None:
        """Make all of these writes or none, if nobody has changed the catalog since its news were
        read. `row`: a group whose row must have this generation. Raises Stale; Fenced when it has
        another."""
        self._check_well()
        seen, stamp = self._seen, secrets.token_hex(8)
        if not await self._database.change(seen, stamp, writes, row):
            raise Stale
        self._seen = CatalogPlace(seen.incarnation, seen.version + 1, stamp)

    def memberships(self, run_change: RunChange) -> MembershipRows:
        return self._database.memberships()

    async def fresh_id(self) -> str:
        while True:
            drawn = self._draw_id()
            if not await self._database.is_taken(drawn):
                return drawn

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        writes: list[Write] = []
        for row in rows:
            kind, row_id = _place_of(row)
            writes.append(("ids", row_id, row.queue_id.encode()))
            writes.append((kind, row_id, pack_struct(kind, row_id, row)))
        await self._change(writes)
        self._queues |= {row.queue_id for row in rows if isinstance(row, Queue)}
        self._groups |= {row.group_id: row.queue_id for row in rows if isinstance(row, Group)}

    async def change(self, row: Queue | Group) -> None:
        kind, row_id = _place_of(row)
        await self._change([(kind, row_id, pack_struct(kind, row_id, row))])

    async def drop_queue(self, queue_id: str) -> None:
        groups = [one for one, owner in self._groups.items() if owner == queue_id]
        before = [one for one, owner in self._dropped.items() if owner == queue_id]
        await self._change(
            [
                ("queues", queue_id, b""),
                *(("groups", group_id, b"") for group_id in groups),
                *(("memberships", group_id, b"") for group_id in groups),
                *(("dropped", group_id, b"") for group_id in before),
                _dropped(queue_id, queue_id),
            ]
        )
        self._queues.discard(queue_id)
        for group_id in groups:
            del self._groups[group_id]
        for group_id in before:
            del self._dropped[group_id]
        self._dropped[queue_id] = queue_id

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        queue_id = self._groups[group_id]
        await self._change(
            [
                ("groups", group_id, b""),
                ("memberships", group_id, b""),
                _dropped(group_id, queue_id),
            ],
            NO_CONDITION if generation is None else RowCondition(group_id, generation),
        )
        del self._groups[group_id]
        self._dropped[group_id] = queue_id

    async def forget(self, any_id: str) -> None:
        await self._change([("dropped", any_id, b"")])
        self._dropped.pop(any_id, None)

    async def put_token(self, record: TokenRecord) -> None:
        row_id = record.token_id
        await self._change([("tokens", row_id, pack_struct("tokens", row_id, record))])
        self._tokens.add(row_id)

    async def drop_token(self, token_id: str) -> None:
        await self._change([("tokens", token_id, b"")])
        self._tokens.discard(token_id)

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        named = [(row.key_id.hex(), row) for row in rows]
        await self._change(
            [("data_keys", row_id, pack_struct("data_keys", row_id, row)) for row_id, row in named]
        )

    async def set_mark(self, name: str, value: str) -> None:
        await self._change([("marks", name, pack("marks", name, value.encode()))])

    async def copy_to(self, path: Path) -> None:
        await self._database.copy_to(path)

    async def close(self) -> None:
        if self._follow_task is not None:
            self._follow_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._follow_task
        await self._database.close()


def _place_of(row: Queue | Group) -> tuple[str, str]:
    return "queues" if isinstance(row, Queue) else "groups", columns_of(row)[0]


def _dropped(any_id: str, queue_id: str) -> Write:
    return "dropped", any_id, pack("dropped", any_id, queue_id.encode())
