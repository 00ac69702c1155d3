"""The catalog of one gateway: a file of tables, as `metadata.sqlite.held_file` says."""

import secrets
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeGuard, TypeVar

import msgspec

from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey, mend_rows, put_rows, read_rows
from metadata.rows import columns_of, random_id
from metadata.sqlite.held_file import HeldFile, unusable
from metadata.sqlite.token_rows import drop_token, put_token, sound_tokens
from metadata.stores import Contents
from metadata.tokens import TokenRecord

FILE: Final = "catalog.sqlite"
"""Its name in the data folder."""
APPLICATION_ID: Final = 0x54435331
MIGRATIONS: Final = ("catalog.sql", "memberships.sql", "data_keys.sql", "tokens.sql")
_MARK: Final = "mark:"
_ENCODE: Final = msgspec.json.Encoder().encode
RowT = TypeVar("RowT", Queue, Group)


class CatalogStore(HeldFile):
    """`boot` is higher at each opening; `root_secret` (32 bytes) was made with the file."""

    application_id = APPLICATION_ID
    scripts = MIGRATIONS
    whose = "Tocsin"

    def __init__(self, path: Path, *, draw_id: Callable[[], str] = random_id) -> None:
        """As HeldFile. `draw_id`: makes ids of queues and groups, which may be taken."""
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
        """Everything, each row checked (R30).

        Raises:
            Refused: storage_unavailable: a row is damaged. A queue that were left out would be made
                anew under its name, and its messages orphaned.
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
            # A damaged one is left out: nobody is waited for, and nothing is lost.
            [row for row in map(read_membership, rows) if row is not None],
            self._load_data_keys(),
            sound_tokens(self.path, tokens),
        )

    def _load_data_keys(self) -> list[DataKey]:
        """All of them, whole: of a damaged one the other copy is taken."""
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
        with suppress(sqlite3.OperationalError):  # it is durable; the WAL goes another time
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

    def fresh_id(self) -> str:
        """An id that no queue or group has or ever had (R1)."""
        with self._transaction() as run:
            while True:
                drawn = self._draw_id()
                if run("SELECT 1 FROM ids WHERE id = ?", (drawn,)).fetchone() is None:
                    return drawn

    def create(self, rows: Sequence[Queue | Group]) -> None:
        """Add queues and groups with fresh ids, all or none; a group behind its queue."""
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
        """Replace the value of a queue or group that is there."""
        value = _ENCODE(row)
        table, column = ("queues", "queue_id") if isinstance(row, Queue) else ("groups", "group_id")
        with self._transaction() as run:
            run(
                f"UPDATE {table} SET value = ?, checksum = ? WHERE {column} = ?",
                (value, zlib.crc32(value), columns_of(row)[0]),
            )

    def drop_queue(self, queue_id: str) -> None:
        """Take a queue and its groups out; the queue's id is to be forgotten later, the groups'
        with it."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 2 WHERE queue_id = ?", (queue_id,))
            run("UPDATE ids SET state = 1 WHERE id = ?", (queue_id,))
            run("DELETE FROM groups WHERE queue_id = ?", (queue_id,))
            run("DELETE FROM queues WHERE queue_id = ?", (queue_id,))

    def drop_group(self, group_id: str) -> None:
        """Take a group out; its id is to be forgotten later."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 1 WHERE id = ?", (group_id,))
            run("DELETE FROM groups WHERE group_id = ?", (group_id,))

    def forget(self, any_id: str) -> None:
        """A dropped queue or group is gone everywhere. Its id stays taken (R1)."""
        with self._transaction() as run:
            run("UPDATE ids SET state = 2 WHERE id = ? AND state = 1", (any_id,))

    def put_memberships(self, rows: Sequence[Membership]) -> None:
        """Keep the row of each group of which somebody lingers, in place of its last one; of one
        of which nobody does, keep none. A group that is gone: nothing happens."""
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
        """Nobody is waited for."""
        with self._transaction() as run:
            run("DELETE FROM memberships")

    def put_token(self, record: TokenRecord) -> None:
        """Keep it, in place of the one of its id."""
        with self._transaction() as run:
            put_token(run, record)

    def drop_token(self, token_id: str) -> None:
        """Take it out."""
        with self._transaction() as run:
            drop_token(run, token_id)

    def set_mark(self, name: str, value: str) -> None:
        """Remember a mark, in place of the last one of this name."""
        with self._transaction():
            self._set_fact(_MARK + name, value.encode())

    def drop_again(self, ids: Sequence[str]) -> None:
        """Of these queues and groups, those that were forgotten are to be forgotten once more:
        the storage has them."""
        with self._transaction() as run:
            for any_id in ids:
                run("UPDATE ids SET state = 1 WHERE id = ? AND state = 2", (any_id,))

    def _fact(self, name: str) -> bytes | None:
        row = self._connection.execute(
            "SELECT value, checksum FROM facts WHERE name = ?", (name,)
        ).fetchone()
        if row is not None and not is_intact(row[0], row[1]):
            raise unusable(self.path, f"its row of the fact {name!r} is damaged, restore a copy")
        return None if row is None else bytes(row[0])

    def _set_fact(self, name: str, value: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, value, zlib.crc32(value))
        )


def read_membership(columns: tuple[object, object, object]) -> Membership | None:
    """The row of (group_id, value, checksum); None: it is damaged."""
    group_id, value, checksum = columns
    if not is_intact(value, checksum):
        return None
    try:
        row = msgspec.json.decode(value, type=Membership)
    except msgspec.DecodeError:
        return None
    return row if row.group_id == group_id else None


def is_intact(value: object, checksum: object) -> TypeGuard[bytes]:
    """SQLite's columns hold any type, and so may damaged ones."""
    return isinstance(value, bytes) and zlib.crc32(value) == checksum
