"""Opening of the embedded store: one process, the right pragmas, the right schema, no damage.

Anything else stops the start with a sentence that says what to do about it.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

from push.errors import Refused
from storage.sqlite import codec

FILE: Final = "store.sqlite"
"""Name of the store's file in a data folder."""
APPLICATION_ID: Final = 0x544F4353  # "TOCS"
SQLITE_MIN: Final = (3, 37, 0)
"""Oldest version with STRICT tables; UPDATE FROM is older."""
STEPS: Final[tuple[str, ...]] = tuple(
    resources.files("storage.sqlite").joinpath(name).read_text(encoding="utf-8")
    for name in ("sqlite.sql", "sqlite_2.sql", "sqlite_3.sql")
)
"""SQL that makes schema version 1 from nothing, 2 from 1, and so on. A step is never changed once
it has been released; the next version is one more step."""
QUICK_CHECK_BYTES_MAX: Final = 256 * 1_048_576
"""Size in bytes of the largest file whose structure is checked after an unclean stop, before it is
used, which takes seconds. The check of a larger one would keep the broker away for minutes after
every kill; its damage is found by the checksum of each row when the row is used."""
FINDINGS_MAX: Final = 100
"""Number of findings after which the check of the structure ends."""
_OF_A_VALUE: Final = re.compile(r"(NULL|non-[A-Z]+) value in ")
"""A finding that a value is of another type than its column."""
WAL_BYTES_MAX: Final = 64 * 1_048_576
"""Size in bytes above which the writer copies the WAL into the file and empties it, and to which
SQLite cuts a longer one when it starts anew."""
_SYNCHRONOUS: Final = {"NORMAL": 1, "FULL": 2, "EXTRA": 3}


class Touches(NamedTuple):
    """How many times a store was opened, or cleanly closed. A copy of it that is put back has fewer
    than it once had (R30)."""

    incarnation: str
    touches: int


class OlderCopy(Refused):
    """The refusal of a store that is an older copy of the one that was here."""

    def __init__(self, detail: str) -> None:
        super().__init__("storage_unavailable", detail)


@dataclass(slots=True)
class StoreConnections:
    """The connections to the store's file, which this process alone holds."""

    path: Path
    writer: sqlite3.Connection
    """The one connection that writes; checkpoints run in its thread. [Two that write and checkpoint
    at once corrupted files before SQLite 3.51.3.]"""
    reader: sqlite3.Connection
    mark: sqlite3.Connection
    """Marks a point in the WAL (`storage.sqlite.checkpoint`)."""
    slicer: sqlite3.Connection
    """Copies from the WAL into the file (`storage.sqlite.checkpoint`), in the writer's thread."""
    file: int
    """Another descriptor of the file, by which it is fsynced while the writer's connection
    works."""
    incarnation: str
    touches: int
    """The number in its `Touches`."""
    lock: int
    synchronous: str
    was_clean: bool

    def mark_clean(self) -> None:
        """Write the mark of a clean stop, as the last write. The next start need not check the
        structure."""
        self.touches = _touch(self.writer)
        self.writer.execute("UPDATE meta SET value = '1' WHERE name = 'clean'")

    def close(self, *, is_broken: bool = False) -> None:
        """Close the connections, then the file and the lock. `is_broken`: nothing may be copied out
        of the WAL any more. SQLite copies when the last connection is closed, so one stays open,
        and no other process may have the file until this one has ended. A process that opened it
        before would see in the shared index of the WAL which pages had been copied, and not copy
        them again."""
        self.slicer.close()
        if is_broken:
            # The interpreter does not close it either when it ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.mark))
            self.writer.close()
            self.reader.close()
            return
        self.reader.close()
        self.mark.close()
        self.writer.close()  # the last one: it checkpoints
        os.close(self.file)  # after them: SQLite's locks go with any descriptor that is closed
        os.close(self.lock)


# enforces: R30
def open_store(
    path: Path,
    *,
    synchronous: str = "FULL",
    steps: Sequence[str] = STEPS,
    before: Touches | None = None,
) -> StoreConnections:
    """Open the store in this file, or make it if it does not exist. Blocks. `before`: the store
    that is known to have been here.

    Raises:
        Refused: storage_unavailable: in use, damaged, of a newer version, not a store, an older
            copy of itself, on a file system that cannot do what durability needs, or SQLite is too
            old. Stored messages were not changed.
    """
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        raise _unavailable(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
    _make_folder(path.parent)
    lock = lock_store(path)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        try:
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            writer = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=1024
            )
            undo.callback(writer.close)
            writer.text_factory = codec.text_of
            _check_kind(writer, path, len(steps))
            _configure_writer(writer, synchronous)
            was_clean = _check_structure(writer, path)
            if before is not None:
                _check_touches(writer, path, before)
            _migrate(writer, steps)
            writer.execute("UPDATE meta SET value = '0' WHERE name = 'clean'")
            touches = _touch(writer)
            (incarnation,) = writer.execute(
                "SELECT value FROM meta WHERE name = 'incarnation'"
            ).fetchone()
            _sync_wal(path)
            sync_folder(path.parent)
            reader = _connect_reader(path)
            undo.callback(reader.close)
            mark = _connect_reader(path)
            undo.callback(mark.close)
            slicer = _connect_reader(path)
            undo.callback(slicer.close)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except sqlite3.DatabaseError as error:
            raise _unavailable(_sentence(path, error)) from error
        except OSError as error:
            raise _unavailable(f"{path} cannot be opened: {error}") from error
        undo.pop_all()
    return StoreConnections(
        path, writer, reader, mark, slicer, file, incarnation, touches, lock, synchronous, was_clean
    )


def _touch(writer: sqlite3.Connection) -> int:
    """Count one more touch, in a transaction of its own. Returns how many there are now. A store of
    a version that did not count them begins with 0."""
    ((touches,),) = writer.execute(
        "INSERT INTO meta VALUES ('touches', '1') "
        "ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value"
    ).fetchall()
    return int(touches)


def _unavailable(sentence: str) -> Refused:
    return Refused("storage_unavailable", sentence)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        sync_folder(folder.parent)  # SQLite syncs only the folder of its own files


# enforces: R31
def _sync_wal(path: Path) -> None:
    """Fsync the WAL, which a start may find in memory alone, because the process that wrote it was
    killed before the fsync (R31). [A publish that is sent again is answered of that row, without a
    write; then the power goes.] Nothing in it is written again, so no COMMIT may come that would
    sync it."""
    with contextlib.suppress(FileNotFoundError):
        wal = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(wal)
        finally:
            os.close(wal)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of new files in it are durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_store(path: Path) -> int:
    """Lock the store in this file for this process, until the returned descriptor is closed.
    SQLite's own locks keep transactions apart, not processes, and caches need the file alone.

    Raises:
        Refused: storage_unavailable: another process holds it.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise _unavailable(
            f"{path} is in use by another process (id {owner}): stop it, or give this one a "
            "data folder of its own (TOCSIN_DATA_DIR)"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _check_kind(writer: sqlite3.Connection, path: Path, version: int) -> None:
    """Check, before anything is written, that this is a store of a version that this program
    knows."""
    (application_id,) = writer.execute("PRAGMA application_id").fetchone()
    (tables,) = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id != APPLICATION_ID and tables:
        raise _unavailable(f"{path} is an SQLite file, but not a store of this broker")
    stored = _version(writer) if tables else 0
    if stored > version:
        raise _unavailable(
            f"{path} has schema version {stored} and this program knows up to {version}: start "
            "the newer program, or give this one another data folder"
        )


def _version(writer: sqlite3.Connection) -> int:
    row = writer.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    return int(row[0]) if row else 0


def _configure_writer(writer: sqlite3.Connection, synchronous: str) -> None:
    if synchronous not in _SYNCHRONOUS:
        raise _unavailable(f"synchronous is one of {', '.join(_SYNCHRONOUS)}, not {synchronous!r}")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"PRAGMA synchronous = {synchronous}")
    for pragma in (
        "busy_timeout = 5000",
        "mmap_size = 0",  # a read error is an error then, not a signal
        "wal_autocheckpoint = 0",  # a COMMIT tells nobody when its own checkpoint fails
        f"journal_size_limit = {WAL_BYTES_MAX}",
        "cache_size = -16384",  # KiB, whatever the backlog
        "temp_store = MEMORY",
        "secure_delete = OFF",
        "trusted_schema = OFF",
        "cell_size_check = ON",
    ):
        writer.execute(f"PRAGMA {pragma}")
    check_pragmas(writer, synchronous)


def check_pragmas(writer: sqlite3.Connection, synchronous: str) -> None:
    """Read back the settings on which durability depends, because builds and file systems differ.

    Raises:
        Refused: SQLite has other settings than it was given.
    """
    (mode,) = writer.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        raise _unavailable(f"SQLite keeps journal mode {mode}: this file system cannot do WAL")
    (level,) = writer.execute("PRAGMA synchronous").fetchone()
    if level != _SYNCHRONOUS[synchronous]:
        raise _unavailable(
            f"SQLite answers synchronous = {level} where {_SYNCHRONOUS[synchronous]} "
            f"({synchronous}) was asked for: receipts would not be durable"
        )


# enforces: P13
def _check_structure(writer: sqlite3.Connection, path: Path) -> bool:
    """Whether the last stop was clean, or the store is new. After an unclean stop the structure is
    checked, if the file has at most QUICK_CHECK_BYTES_MAX. A value of another type than its column
    is no matter of the structure: it costs its row (R30), when that is read."""
    if not writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return True
    row = writer.execute("SELECT value FROM meta WHERE name = 'clean'").fetchone()
    if row == ("1",):
        return True
    if path.stat().st_size <= QUICK_CHECK_BYTES_MAX:
        for (finding,) in writer.execute(f"PRAGMA quick_check({FINDINGS_MAX})").fetchall():
            if finding != "ok" and not _OF_A_VALUE.match(finding):
                raise sqlite3.DatabaseError(finding)
    return False


def _check_touches(writer: sqlite3.Connection, path: Path, before: Touches) -> None:
    """Refuse a store with fewer touches than it once had, because it is an older copy (R30). A
    store that is new, or another one, is not refused here."""
    if not writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return
    rows = dict(writer.execute("SELECT name, value FROM meta").fetchall())
    touches = int(rows.get("touches", 0))
    if rows["incarnation"] == before.incarnation and touches < before.touches:
        raise OlderCopy(
            f"{path} is an older copy of the store: it was opened and closed {touches} times, and "
            f"the one that was here before {before.touches} times"
        )


# enforces: R4
def _migrate(writer: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Bring the schema up to the last step, each step in one transaction."""
    (tables,) = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
    version = _version(writer) if tables else 0
    for number, step in enumerate(steps[version:], version + 1):
        first = (
            f"PRAGMA application_id = {APPLICATION_ID};"
            "INSERT INTO meta VALUES ('schema_version', '0'), ('clean', '1'), "
            f"('incarnation', '{uuid.uuid4().hex}');"
        )
        try:
            writer.executescript(
                f"BEGIN IMMEDIATE;\n{step}\n{first if number == 1 else ''}"
                f"UPDATE meta SET value = '{number}' WHERE name = 'schema_version'; COMMIT;"
            )
        except sqlite3.Error:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise


def _connect_reader(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.text_factory = codec.text_of
    for pragma in (
        "query_only = ON",
        "wal_autocheckpoint = 0",
        "mmap_size = 0",
        "busy_timeout = 5000",
        "cache_size = -8192",
        "trusted_schema = OFF",
        "cell_size_check = ON",
    ):
        reader.execute(f"PRAGMA {pragma}")
    return reader


def _sentence(path: Path, error: sqlite3.DatabaseError) -> str:
    if isinstance(error, sqlite3.OperationalError):
        return f"{path} cannot be opened: {error}"
    return (
        f"{path} is damaged ({error}). Nothing was changed. Move it aside together with its -wal "
        f"file, and put a backup in its place, or what `sqlite3 {path.name} .recover` salvages"
    )
