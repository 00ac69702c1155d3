"""A catalog's SQLite file, held by one process. Synchronous: all of it runs in one thread, on one
connection.

What a transaction wrote is fsynced when it ends. It raises `Refused` (storage_unavailable, with a
sentence) when nothing was written, and `Unknown` when its commit failed: then nothing more is
accepted, because only the file, opened anew, can say what it holds (R31).
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from push.errors import Refused, Unknown

BUSY_S: Final = 1.0
"""Seconds that a start waits for the previous process to let go of the file."""
_BUGS: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError)


class LockedFile:
    """A file, held exclusively while it is open. `broken` says why nothing is accepted any more;
    None while it works."""

    application_id: ClassVar[int]
    scripts: ClassVar[tuple[str, ...]]
    """Names of SQL files; file i takes the schema from version i to i + 1. A released file is never
    changed."""
    whose: ClassVar[str]
    """The owner of such a catalog, for people."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, its folder too, and bring its schema up to date.

        Raises:
            Refused: storage_unavailable when it is in use by another process, of a newer version,
                not such a catalog, damaged, or not to be read or written. A file of another program
                or a newer version is left as it is.
        """
        self.path = path
        self.broken: str | None = None
        try:
            create_file(path)
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise unusable(path, str(error)) from None
        try:
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # held from the first access
            version = self._schema_version()
            self._configure()
            self._migrate(version)
            self._opened()
        except sqlite3.Error as error:
            self._connection.close()
            locked = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
            why = "another process is using it" if locked else str(error)
            raise unusable(path, why) from None
        except BaseException:
            self._connection.close()
            raise

    def _schema_version(self) -> int:
        """Return the schema's version, 0 for an empty file. Checked before anything is written,
        because the file may be somebody else's."""
        run = self._connection.execute
        version = int(run("PRAGMA user_version").fetchone()[0])
        owner = run("PRAGMA application_id").fetchone()[0]
        empty = not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if owner != self.application_id and not (empty and owner == version == 0):
            raise unusable(self.path, f"it is not a catalog of {self.whose}")
        if version > len(self.scripts):
            raise unusable(
                self.path,
                f"its schema is version {version}, of a newer Tocsin; this one knows "
                f"{len(self.scripts)}",
            )
        return version

    def _configure(self) -> None:
        run = self._connection.execute
        run("PRAGMA foreign_keys=ON")
        run("PRAGMA trusted_schema=OFF")
        run("PRAGMA synchronous=FULL")
        run("PRAGMA secure_delete=ON")  # what an old master key opens must not remain
        wanted = {"journal_mode=WAL": "wal", "synchronous": 2, "foreign_keys": 1}
        for pragma, value in wanted.items():
            got = run(f"PRAGMA {pragma}").fetchone()[0]
            if got != value:
                raise unusable(self.path, f"SQLite answers {got} to PRAGMA {pragma}")
        faults = [row[0] for row in run("PRAGMA quick_check(3)")]
        if faults != ["ok"]:
            raise unusable(self.path, f"it is damaged, restore a copy: {'; '.join(faults)}")

    # enforces: R4
    def _migrate(self, version: int) -> None:
        run = self._connection.execute
        for number in range(version, len(self.scripts)):
            script = Path(__file__).with_name(self.scripts[number]).read_text(encoding="utf-8")
            with self._transaction():
                for statement in script.split(";\n"):
                    run(statement)
                if not number:
                    self._made()
                run(f"PRAGMA application_id={self.application_id}")
                run(f"PRAGMA user_version={number + 1}")

    def _made(self) -> None:
        """Fill a new file, in the transaction that creates it."""

    def _opened(self) -> None:
        """Prepare the file at each opening, before it is used."""

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Run one atomic, durable change. A failure before the commit rolls it back."""
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
                raise unusable(self.path, str(error)) from error
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.broken = f"a commit to {self.path} failed ({error}): restart to see what it holds"
            raise Unknown(self.broken) from error

    def copy_to(self, path: Path) -> None:
        """Write a copy of the catalog, with its secrets, to a new file that only its owner can
        read. The file is fsynced, and its folder is not.

        Raises:
            Refused: storage_unavailable when the copy failed, and is incomplete or absent.
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
        """Close the file, so that another process may open it."""
        self._connection.close()


def unusable(path: Path, why: str) -> Refused:
    """Return the refusal of a catalog whose file cannot be used, for this reason."""
    return Refused("storage_unavailable", f"the catalog {path} cannot be used: {why}")


def create_file(path: Path) -> None:
    """Create the file, readable by its owner alone (it holds secrets), and fsync the folders on the
    way that are new. An existing file is not touched, because closing a second descriptor would
    drop SQLite's locks on the first."""
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
