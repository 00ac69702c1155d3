"""The catalog's SQLite file. Synchronous: all of it runs in one thread, on one connection.

What a method wrote is fsynced when it returns. It raises `Refused` (storage_unavailable, with a
sentence) when nothing was written, and `Unknown` when a commit failed: then nothing more is
accepted, because only the file, opened anew, can say what it holds (R31).
"""

import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeGuard, TypeVar

import msgspec

from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey, mend_rows, put_rows, read_rows
from metadata.stores import Contents
from metadata.token_rows import drop_token, put_token, sound_tokens
from metadata.tokens import TokenRecord
from push.errors import Refused, Unknown

APPLICATION_ID: Final = 0x54435331
MIGRATIONS: Final = ("catalog.sql", "memberships.sql", "data_keys.sql", "tokens.sql")
"""File i takes the schema from version i to i + 1; never changed once released."""
ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
ID_LETTERS: Final = 10
BUSY_S: Final = 1.0
"""How long a start waits for the process before it to let go of the file."""
_MARK: Final = "mark:"
_BUGS: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
_ENCODE: Final = msgspec.json.Encoder().encode
RowT = TypeVar("RowT", Queue, Group)


def random_id() -> str:
    """50 random bits as ten letters and digits: short in a log, unlike any name."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LETTERS))


class CatalogStore:
    """One catalog file, held exclusively by this process while it is open.

    `boot` is higher at each opening; `root_secret` (32 bytes) was made with the file. `broken`
    says why nothing is accepted any more; None: all is well.
    """

    def __init__(self, path: Path, *, draw_id: Callable[[], str] = random_id) -> None:
        """Open or create the file, its folder too, and bring its schema up to date.

        Raises:
            Refused: storage_unavailable: in use by another process, of a newer version, not a
                catalog, damaged, or not to be read or written. Nothing was changed.
        """
        self.path = path
        self.broken: str | None = None
        self._draw_id = draw_id
        try:
            _create_file(path)
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, str(error)) from None
        try:
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # held from the first access
            version = self._schema_version()
            self._configure()
            self._migrate(version)
            self.boot, self.root_secret = self._start()
        except sqlite3.Error as error:
            self._connection.close()
            locked = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
            why = "another process is using it" if locked else str(error)
            raise _unusable(path, why) from None
        except BaseException:
            self._connection.close()
            raise

    def _schema_version(self) -> int:
        """0: an empty file. Looked at before anything is written into a file of somebody else."""
        run = self._connection.execute
        version = int(run("PRAGMA user_version").fetchone()[0])
        owner = run("PRAGMA application_id").fetchone()[0]
        empty = not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if owner != APPLICATION_ID and not (empty and owner == version == 0):
            raise _unusable(self.path, "it is not a catalog of Tocsin")
        if version > len(MIGRATIONS):
            raise _unusable(
                self.path,
                f"its schema is version {version}, of a newer Tocsin; this one knows "
                f"{len(MIGRATIONS)}",
            )
        return version

    def _configure(self) -> None:
        run = self._connection.execute
        run("PRAGMA foreign_keys=ON")
        run("PRAGMA trusted_schema=OFF")
        run("PRAGMA synchronous=FULL")
        run("PRAGMA secure_delete=ON")  # what an old master key opens does not stay behind
        wanted = {"journal_mode=WAL": "wal", "synchronous": 2, "foreign_keys": 1}
        for pragma, value in wanted.items():
            got = run(f"PRAGMA {pragma}").fetchone()[0]
            if got != value:
                raise _unusable(self.path, f"SQLite answers {got} to PRAGMA {pragma}")
        faults = [row[0] for row in run("PRAGMA quick_check(3)")]
        if faults != ["ok"]:
            raise _unusable(self.path, f"it is damaged, restore a copy: {'; '.join(faults)}")

    def _migrate(self, version: int) -> None:
        run = self._connection.execute
        for number in range(version, len(MIGRATIONS)):
            script = Path(__file__).with_name(MIGRATIONS[number]).read_text(encoding="utf-8")
            with self._transaction():
                for statement in script.split(";\n"):
                    run(statement)
                run(f"PRAGMA application_id={APPLICATION_ID}")
                run(f"PRAGMA user_version={number + 1}")

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
            raise _unusable(self.path, str(error)) from None
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
            raise _unusable(self.path, str(error)) from None
        if lost:
            raise _unusable(self.path, f"its rows of {lost} data keys are damaged, restore a copy")
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
            raise _unusable(self.path, f"{what} is damaged, restore a copy")
        try:
            row = msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            raise _unusable(self.path, f"{what} cannot be read: {error}") from None
        if columns_of(row) != (any_id, scope, name):
            raise _unusable(self.path, f"{what} is damaged, restore a copy")
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

    def copy_to(self, path: Path) -> None:
        """A copy of the catalog in a new file, fsynced; the folder is not. It holds secrets.

        Raises:
            Refused: storage_unavailable: the copy failed, and is incomplete or not there.
        """
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with closing(sqlite3.connect(path, isolation_level=None)) as copy:
                    self._connection.backup(copy)
                os.fsync(handle)
            finally:
                os.close(handle)
        except (OSError, sqlite3.Error) as error:
            raise Refused("storage_unavailable", f"the catalog's copy failed: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _fact(self, name: str) -> bytes | None:
        row = self._connection.execute(
            "SELECT value, checksum FROM facts WHERE name = ?", (name,)
        ).fetchone()
        if row is not None and not is_intact(row[0], row[1]):
            raise _unusable(self.path, f"its row of the fact {name!r} is damaged, restore a copy")
        return None if row is None else bytes(row[0])

    def _set_fact(self, name: str, value: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, value, zlib.crc32(value))
        )

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """One atomic, durable change. What fails before the commit is rolled back."""
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection.execute
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error) and not isinstance(error, _BUGS):
                raise _unusable(self.path, str(error)) from error
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.broken = f"a commit to {self.path} failed ({error}): restart to see what it holds"
            raise Unknown(self.broken) from error


def columns_of(row: Queue | Group) -> tuple[str, str, str]:
    """(id, what the name is unique in, name)."""
    if isinstance(row, Queue):
        return row.queue_id, row.tenant, row.name
    return row.group_id, row.queue_id, row.name


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


def _unusable(path: Path, why: str) -> Refused:
    return Refused("storage_unavailable", f"the catalog {path} cannot be used: {why}")


def _create_file(path: Path) -> None:
    """Make the file, readable by its owner alone (it holds secrets), and fsync the folders on the
    way that are new. Where it is there already, it is not touched: closing a second descriptor
    would drop SQLite's locks on the first."""
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        return
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    for folder in {path.parent, *(folder.parent for folder in missing)}:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
