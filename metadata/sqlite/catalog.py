"""The catalog of one gateway in a file of tables, which nobody else changes.

`CatalogFile` is the file (see `metadata.sqlite.file`), `SqliteCatalog` a store over it that runs
each act in the file's one thread. The groups' rows are in memory, and on the disk while a member
lingers (R22). After a restart a row has none of its members, and a higher generation (R14).
"""

import asyncio
import logging
import secrets
import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeGuard, TypeVar

import msgspec

from metadata.backend import Contents, MembershipRows, News, RunChange, other_generation
from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey, mend_rows, put_rows, read_rows
from metadata.heartbeats import LocalHeartbeats
from metadata.rights import RightsError
from metadata.row_store import columns_of, random_id
from metadata.sqlite.file import LockedFile, unusable
from metadata.tokens import TokenRecord, rights_of
from push.errors import Refused, Unknown

_LOG: Final = logging.getLogger("metadata.inprocess")


Run = Callable[..., sqlite3.Cursor]
Columns = tuple[object, object, object]
"""token_id, value, checksum."""
_TOKENS_LOG: Final = logging.getLogger("metadata.token_rows")


def put_token(run: Run, record: TokenRecord) -> None:
    """Write a token, in place of the one of its id."""
    value = msgspec.json.encode(record)
    row = (record.token_id, value, zlib.crc32(value))
    run("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", row)


def drop_token(run: Run, token_id: str) -> None:
    """Remove a token."""
    run("DELETE FROM tokens WHERE token_id = ?", (token_id,))


def read_token(columns: Columns) -> TokenRecord | None:
    """Return the record of a row; None if it is damaged."""
    token_id, value, checksum = columns
    if not isinstance(value, bytes) or zlib.crc32(value) != checksum:
        return None
    try:
        record = msgspec.json.decode(value, type=TokenRecord)
        rights_of(record.rights)
    except (msgspec.DecodeError, RightsError):
        return None
    return record if record.token_id == token_id else None


def sound_tokens(path: Path, rows: Iterable[Columns]) -> list[TokenRecord]:
    """Return all but the damaged tokens, which admit nobody and are logged."""
    found = [(row, read_token(row)) for row in rows]
    damaged = [row[0] for row, record in found if record is None]
    if damaged:
        _TOKENS_LOG.error("%s: damaged tokens, which admit nobody: %s", path, damaged)
    return [record for _, record in found if record is not None]


FILE: Final = "catalog.sqlite"
"""File name in the data folder."""
APPLICATION_ID: Final = 0x54435331
MIGRATIONS: Final = ("catalog.sql", "memberships.sql", "data_keys.sql", "tokens.sql")
_MARK: Final = "mark:"
_ENCODE: Final = msgspec.json.Encoder().encode
RowT = TypeVar("RowT", Queue, Group)


class CatalogFile(LockedFile):
    """The catalog's tables. `boot` grows with each opening; `root_secret` (32 bytes) was made with
    the file."""

    application_id = APPLICATION_ID
    scripts = MIGRATIONS
    whose = "Tocsin"

    def __init__(self, path: Path, *, draw_id: Callable[[], str] = random_id) -> None:
        """Open the file like LockedFile. `draw_id` draws ids of queues and groups, which may be
        taken."""
        self._draw_id = draw_id
        super().__init__(path)

    def _opened(self) -> None:
        self.boot, self.root_secret = self._start()

    def _start(self) -> tuple[int, bytes]:
        with self._transaction():
            boot = int(self._fact("boot") or b"0") + 1
            root_secret = self._fact("root_secret") or secrets.token_bytes(32)
            self._set_fact("boot", str(boot).encode())
            self._set_fact("root_secret", root_secret)
        return boot, root_secret

    def load(self) -> Contents:
        """Read everything, each row checked (R30). Damaged tokens and memberships are left out.

        Raises:
            Refused: storage_unavailable when another row is damaged. If a damaged queue were left
                out, it would be created anew under its name, and its messages orphaned.
        """
        run = self._connection.execute
        try:
            queues = run("SELECT queue_id, tenant, name, value, checksum FROM queues").fetchall()
            groups = run("SELECT group_id, queue_id, name, value, checksum FROM groups").fetchall()
            dropped = run("SELECT queue_id, id FROM ids WHERE state = 1 ORDER BY id").fetchall()
            marks = run("SELECT name FROM facts WHERE name GLOB 'mark:*'").fetchall()
            values = {name: self._fact(name) or b"" for (name,) in marks}
            rows = run("SELECT group_id, value, checksum FROM memberships").fetchall()
            tokens = run("SELECT token_id, value, checksum FROM tokens").fetchall()
        except sqlite3.Error as error:
            raise unusable(self.path, str(error)) from None
        return Contents(
            [self._checked(Queue, row) for row in queues],
            [self._checked(Group, row) for row in groups],
            [(queue_id, None if queue_id == any_id else any_id) for queue_id, any_id in dropped],
            {name.removeprefix(_MARK): value.decode() for name, value in values.items()},
            # A damaged row is left out: its consumers are not waited for, and nothing is lost.
            [row for row in map(read_membership, rows) if row is not None],
            self._load_data_keys(),
            sound_tokens(self.path, tokens),
        )

    def _load_data_keys(self) -> list[DataKey]:
        """Return all data keys; of a damaged row the other copy is used, and both are written anew.
        Raises Refused if both copies of a key are damaged."""
        try:
            rows, damaged, lost = read_rows(self._connection.execute)
        except sqlite3.Error as error:
            raise unusable(self.path, str(error)) from None
        if lost:
            raise unusable(self.path, f"its rows of {lost} data keys are damaged, restore a copy")
        if damaged:
            with self._transaction() as run:
                mend_rows(run, rows)
        return rows

    def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        """Add these data keys, each in place of the one of its id; all or none."""
        with self._transaction() as run:
            put_rows(run, rows)
        with suppress(sqlite3.OperationalError):  # it is durable; the WAL can go another time
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _checked(self, kind: type[RowT], columns: tuple[str, str, str, object, object]) -> RowT:
        any_id, scope, name, value, checksum = columns
        what = f"its row of the {kind.__name__.lower()} {name!r} ({any_id})"
        if not is_intact(value, checksum):
            raise unusable(self.path, f"{what} is damaged, restore a copy")
        try:
            row = msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            raise unusable(self.path, f"{what} cannot be read: {error}") from None
        if columns_of(row) != (any_id, scope, name):
            raise unusable(self.path, f"{what} is damaged, restore a copy")
        return row

    # enforces: R1
    def fresh_id(self) -> str:
        """Return an id that no queue or group has or ever had (R1)."""
        with self._transaction() as run:
            while True:
                drawn = self._draw_id()
                if run("SELECT 1 FROM ids WHERE id = ?", (drawn,)).fetchone() is None:
                    return drawn

    def create(self, rows: Sequence[Queue | Group]) -> None:
        """Add queues and groups with fresh ids, all or none. The caller puts a queue before its
        groups."""
        with self._transaction() as run:
            for row in rows:
                any_id, scope, name = columns_of(row)
                value = _ENCODE(row)
                run("INSERT INTO ids (id, queue_id) VALUES (?, ?)", (any_id, row.queue_id))
                table = "queues" if isinstance(row, Queue) else "groups"
                run(
                    f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)",
                    (any_id, scope, name, value, zlib.crc32(value)),
                )

    def change(self, row: Queue | Group) -> None:
        """Replace the value of an existing queue or group."""
        value = _ENCODE(row)
        table, column = ("queues", "queue_id") if isinstance(row, Queue) else ("groups", "group_id")
        with self._transaction() as run:
            run(
                f"UPDATE {table} SET value = ?, checksum = ? WHERE {column} = ?",
                (value, zlib.crc32(value), columns_of(row)[0]),
            )

    def drop_queue(self, queue_id: str) -> None:
        """Remove a queue and its groups. The queue's id is to be forgotten later (`forget`), on
        behalf of its groups too."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 2 WHERE queue_id = ?", (queue_id,))
            run("UPDATE ids SET state = 1 WHERE id = ?", (queue_id,))
            run("DELETE FROM groups WHERE queue_id = ?", (queue_id,))
            run("DELETE FROM queues WHERE queue_id = ?", (queue_id,))

    def drop_group(self, group_id: str) -> None:
        """Remove a group; its id is to be forgotten later (`forget`)."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 1 WHERE id = ?", (group_id,))
            run("DELETE FROM groups WHERE group_id = ?", (group_id,))

    def forget(self, any_id: str) -> None:
        """Note that a dropped queue or group no longer exists anywhere. Its id stays taken (R1)."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 2 WHERE id = ? AND state = 1", (any_id,))

    def put_memberships(self, rows: Sequence[Membership]) -> None:
        """Store those of these rows that have a lingering consumer, each in place of the last one
        of its group, and delete the stored rows of the others' groups. Rows of groups that no
        longer exist are not stored."""
        with self._transaction() as run:
            for row in rows:
                run("DELETE FROM memberships WHERE group_id = ?", (row.group_id,))
                value = _ENCODE(row)
                if row.lingers:
                    run(
                        "INSERT INTO memberships SELECT group_id, ?, ? FROM groups "
                        "WHERE group_id = ?",
                        (value, zlib.crc32(value), row.group_id),
                    )

    def forget_memberships(self) -> None:
        """Delete all rows of members, so that nobody is waited for."""
        with self._transaction() as run:
            run("DELETE FROM memberships")

    def put_token(self, record: TokenRecord) -> None:
        """Store a token, in place of the one of its id."""
        with self._transaction() as run:
            put_token(run, record)

    def drop_token(self, token_id: str) -> None:
        """Remove a token."""
        with self._transaction() as run:
            drop_token(run, token_id)

    def set_mark(self, name: str, value: str) -> None:
        """Store a mark, in place of the last one of this name."""
        with self._transaction():
            self._set_fact(_MARK + name, value.encode())

    def drop_again(self, ids: Sequence[str]) -> None:
        """Mark those of these queues and groups that were forgotten as to be forgotten once more,
        because the storage has them."""
        with self._transaction() as run:
            for any_id in ids:
                run("UPDATE ids SET state = 1 WHERE id = ? AND state = 2", (any_id,))

    def _fact(self, name: str) -> bytes | None:
        row = self._connection.execute(
            "SELECT value, checksum FROM facts WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        value, checksum = row
        if not is_intact(value, checksum):
            raise unusable(self.path, f"its row of the fact {name!r} is damaged, restore a copy")
        return bytes(value)

    def _set_fact(self, name: str, value: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, value, zlib.crc32(value))
        )


def read_membership(columns: tuple[object, object, object]) -> Membership | None:
    """Decode a row of (group_id, value, checksum); None if it is damaged."""
    group_id, value, checksum = columns
    if not is_intact(value, checksum):
        return None
    try:
        row = msgspec.json.decode(value, type=Membership)
    except msgspec.DecodeError:
        return None
    return row if row.group_id == group_id else None


def is_intact(value: object, checksum: object) -> TypeGuard[bytes]:
    """Whether a value is whole. SQLite's columns hold any type, and so may damaged ones."""
    return isinstance(value, bytes) and zlib.crc32(value) == checksum


ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")


class LocalMemberships:
    """`metadata.backend.MembershipRows` in memory. `boot` grows with each start; `before`: the rows
    that the previous process left; `put` makes rows durable, all or none."""

    def __init__(
        self,
        boot: int,
        before: Iterable[Membership],
        put: Callable[[list[Membership]], Awaitable[None]],
        run_change: RunChange,
    ) -> None:
        self._boot = boot
        self._rows: dict[str, Membership] = {}
        self._before = {row.group_id: row for row in before}
        """Rows that the previous process left, and rows that are kept for the next one."""
        self._unwritten: dict[str, Membership] = {}
        self._beats = LocalHeartbeats()
        self._ending: dict[str, asyncio.Future[bool]] = {}
        """Group → whether it was dropped, as soon as that is decided."""
        self._put = put
        self._run_change = run_change

    async def get(self, group_id: str) -> Membership:
        return self._get(group_id)

    async def glance(self, group_id: str) -> Membership:
        return self._get(group_id)

    def _get(self, group_id: str) -> Membership:
        row = self._rows.get(group_id)
        if row is None:
            before = self._before.get(group_id)
            row = Membership(
                group_id=group_id,
                generation=self._boot << 32,
                members=(),
                assignment=before.assignment if before is not None else {},
                lingers=before.lingers if before is not None else {},
            )
        return row

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """Compare and set a row. If writing it is refused, it is in effect nevertheless."""
        ending = self._ending.get(new.group_id)
        if ending is not None and await asyncio.shield(ending):
            raise Refused("group_not_found", f"no group of the id {new.group_id!r}")
        if self._get(new.group_id).generation != expected_generation:
            return False
        self._rows[new.group_id] = new
        if new.lingers or new.group_id in self._before:
            self._before[new.group_id] = self._unwritten[new.group_id] = new
            try:
                await self._run_change(self._keep)
            except Refused as error:  # it holds here; after a restart nobody would be waited for
                _LOG.warning("the members of group %s are not kept: %s", new.group_id, error)
            if not new.lingers and self._before.get(new.group_id) is new:
                del self._before[new.group_id]
        return True

    # enforces: R11
    async def end(
        self, group_id: str, generation: int, drop: Callable[[], Awaitable[None]]
    ) -> None:
        """Drop a group whose row has this generation. Until that is done no change of the row is
        decided. Raises Fenced when it has another generation, and nothing happened."""
        if self._get(group_id).generation != generation:
            raise other_generation(group_id)
        ending = self._ending[group_id] = asyncio.get_running_loop().create_future()
        try:
            await drop()
            ending.set_result(True)
        finally:
            del self._ending[group_id]
            if not ending.done():
                ending.set_result(False)

    async def _keep(self) -> None:
        """Write all waiting rows in one commit: after a restart everybody joins at once."""
        rows, self._unwritten = list(self._unwritten.values()), {}
        if rows:
            await self._put(rows)

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        return self._beats.beat(gateway, number, forget, says)

    async def said(self) -> dict[str, str]:
        return self._beats.said()

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """Do nothing, because nobody else changes a row."""

    def dropped(self, group_id: str) -> None:
        self._rows.pop(group_id, None)
        self._before.pop(group_id, None)


class SqliteCatalog:
    """`metadata.backend.Store` over one SQLite file, which nobody else changes; `open` makes it."""

    is_shared = False

    def __init__(
        self,
        file: CatalogFile,
        contents: Contents,
        thread: ThreadPoolExecutor,
        on_fatal: Callable[[str], None] | None,
    ) -> None:
        self.file = file
        """The file that the thread works on."""
        self._before: list[Membership] = contents.memberships
        self._rows: LocalMemberships | None = None
        self._thread = thread
        self._on_fatal = on_fatal

    @classmethod
    async def open(
        cls, path: Path, *, on_fatal: Callable[[str], None] | None = None
    ) -> "tuple[SqliteCatalog, Contents]":
        """Open or create the file, and hold it alone until `close`; return it and its contents.

        `on_fatal` is called on the event loop, once, with a sentence, when the outcome of a commit
        is unknown. The process must then end and start again from the file (R31). Until it does,
        every change is refused and look-ups return what was known to be durable.

        Raises:
            Refused: storage_unavailable, with a sentence for the operator, when the file is in use
                by another process, of a newer version, damaged, not readable or writable.
        """

        def start() -> tuple[CatalogFile, Contents]:
            file = CatalogFile(path)
            try:
                return file, file.load()
            except BaseException:
                file.close()
                raise

        thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        try:
            file, contents = await asyncio.get_running_loop().run_in_executor(thread, start)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(file, contents, thread, on_fatal), contents

    @property
    def root_secret(self) -> bytes:
        return self.file.root_secret

    @property
    def broken(self) -> str | None:
        return self.file.broken

    @property
    def age_s(self) -> float:
        return 0.0

    def follow(self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]) -> None:
        """Do nothing, because nobody else changes it."""

    async def news(self) -> News | None:
        """Return None always, because nobody else changes it."""
        return None

    def memberships(self, run_change: RunChange) -> MembershipRows:
        self._rows = LocalMemberships(
            self.file.boot, self._before, self._put_memberships, run_change
        )
        return self._rows

    async def _put_memberships(self, rows: list[Membership]) -> None:
        await self._run(self.file.put_memberships, rows)

    async def fresh_id(self) -> str:
        return await self._run(self.file.fresh_id)

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        await self._run(self.file.create, rows)

    async def change(self, row: Queue | Group) -> None:
        await self._run(self.file.change, row)

    async def drop_queue(self, queue_id: str) -> None:
        await self._run(self.file.drop_queue, queue_id)

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        if generation is None or self._rows is None:
            await self._run(self.file.drop_group, group_id)
        else:
            drop = partial(self._run, self.file.drop_group, group_id)
            await self._rows.end(group_id, generation, drop)

    async def forget(self, any_id: str) -> None:
        await self._run(self.file.forget, any_id)

    async def put_token(self, record: TokenRecord) -> None:
        await self._run(self.file.put_token, record)

    async def drop_token(self, token_id: str) -> None:
        await self._run(self.file.drop_token, token_id)

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        await self._run(self.file.put_data_keys, rows)

    async def set_mark(self, name: str, value: str) -> None:
        await self._run(self.file.set_mark, name, value)

    async def copy_to(self, path: Path) -> None:
        await self._run(self.file.copy_to, path)

    async def close(self) -> None:
        await self._run(self.file.close)
        self._thread.shutdown()

    async def _run(
        self, act: Callable[ParamsT, ResultT], *args: ParamsT.args, **kwargs: ParamsT.kwargs
    ) -> ResultT:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: act(*args, **kwargs))
        except Unknown as error:
            _LOG.critical("%s", error.detail)
            if self._on_fatal is not None:
                self._on_fatal(error.detail)
            raise
