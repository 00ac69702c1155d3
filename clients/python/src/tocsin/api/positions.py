"""Stores that keep the position of a reader, so that it continues after a restart.

A position (`tocsin.Position`) is the reader's token. With `to_json` and `from_json` it can be kept
anywhere that keeps text. A store does this for a reader that has to continue after a restart:

    store = tocsin.FilePositions("positions")
    async with client.read("orders", start="earliest", position_store=store) as messages: ...
"""

import asyncio
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from tocsin.errors import PositionDamaged, PositionInUse
from tocsin.proto.wire import Position

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_VERSION: Final = 1
T = TypeVar("T")


class PositionStore(Protocol):
    """A store of readers' positions.

    Both calls may be plain or `async`. A plain call runs in the event loop, so keep it quick. A
    reader makes one call after another, never two at once.
    """

    def load(self, name: str, /) -> Position | Awaitable[Position | None] | None:
        """Return the position that was saved last under this name; None if none was saved."""

    def save(self, name: str, position: Position, /) -> Awaitable[None] | None:
        """Save a position. When this returns, the next `load` finds it."""


@runtime_checkable
class LockingPositionStore(Protocol):
    """A store whose `load` locks the name against other readers until this reader releases it."""

    def release(self, name: str, /) -> None:
        """Unlock the name for other readers."""


def default_name(queue: str, keys: Sequence[str] | None) -> str:
    """Return the name of a reader without a given name: its queue's name.

    If it reads only some keys, a digest of these follows, because a position says nothing about
    keys that the reader does not read.
    """
    if keys is None:
        return queue
    digest = hashlib.sha256(msgspec.json.encode(sorted(set(keys)))).hexdigest()
    return f"{queue}-{digest[:16]}"


class MemoryPositions:
    """Positions that live as long as this object, for a reader that is closed and opened again."""

    def __init__(self) -> None:
        self._positions: dict[str, Position] = {}

    def load(self, name: str) -> Position | None:
        """Return the position that was saved last under this name; None if none was saved."""
        return self._positions.get(name)

    def save(self, name: str, position: Position) -> None:
        """Keep a position under this name, in memory only."""
        self._positions[name] = position


class _PositionFile(msgspec.Struct):
    """The content of a file. `crc32` is the checksum of `position`, as it is written."""

    version: int
    name: str
    crc32: int
    position: msgspec.Raw


class FilePositions:
    """Positions in a folder, one file for each name.

    A file is written under another name, synced and renamed. After a crash it holds the old
    position or the new one. Loading locks the name until `release`, which the reader calls when it
    is closed, or until the process ends. Two readers that shared a position would skip each other's
    messages.

    Raises:
        ValueError: a name has other characters than A-Z a-z 0-9 . _ - or more than 200.
        PositionInUse: another reader, in this or another process, uses the name.
        PositionDamaged: the file holds no position of that name.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._locks: dict[str, int] = {}

    async def load(self, name: str) -> Position | None:
        """Lock the name, and return its position; None if the file does not exist."""
        return await _run_to_completion(lambda: self._load(name), undo=lambda: self.release(name))

    async def save(self, name: str, position: Position) -> None:
        """Write a position; durable when this returns. Locks the name first, if it is not locked. A
        cancelled call still ends only when the file is written; the next save writes the same
        file."""
        await _run_to_completion(lambda: self._save(name, position))

    def release(self, name: str) -> None:
        """Unlock the name for other readers. Releasing a name that is not locked does nothing."""
        lock = self._locks.pop(name, None)
        if lock is not None:
            os.close(lock)

    def _path(self, name: str, suffix: str = ".json") -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be a reader's name; use up to 200 of A-Z a-z 0-9 . _ -"
            )
        return self.folder / (name + suffix)

    def _load(self, name: str) -> Position | None:
        path = self._path(name)
        self._lock(name)
        try:
            return _parse(path, name)
        except BaseException:
            self.release(name)
            raise

    def _lock(self, name: str) -> None:
        path = self._path(name, ".lock")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            if sys.platform == "win32":
                msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise PositionInUse(name, str(path)) from None
        self._locks[name] = lock

    def _save(self, name: str, position: Position) -> None:
        path = self._path(name)
        if name not in self._locks:
            self._lock(name)
        text = position.to_json()
        kept = _PositionFile(_VERSION, name, zlib.crc32(text), msgspec.Raw(text))
        beside = self._path(name, ".new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        if sys.platform != "win32":  # where a folder cannot be opened
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


async def _run_to_completion(work: Callable[[], T], *, undo: Callable[[], None] | None = None) -> T:
    """Run `work` in a thread, which nothing can stop.

    If the caller is cancelled, waits for the end of the work, calls `undo` if the work succeeded,
    and then raises the cancellation.
    """
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait((doing,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return doing.result()
    if doing.exception() is None and undo is not None:
        undo()
    raise cancelled


def _parse(path: Path, name: str) -> Position | None:
    text = None
    with suppress(FileNotFoundError):
        text = path.read_bytes()
    if text is None:
        return None
    try:
        kept = msgspec.json.decode(text, type=_PositionFile)
        position = Position.from_json(bytes(kept.position))
    except ValueError as error:
        raise PositionDamaged(str(path), str(error)) from None
    if kept.version != _VERSION:
        raise PositionDamaged(str(path), f"it has version {kept.version}, not {_VERSION}")
    if kept.name != name:
        raise PositionDamaged(str(path), f"it is the position of {kept.name!r}")
    if kept.crc32 != zlib.crc32(kept.position):
        raise PositionDamaged(str(path), "its checksum does not match")
    return position
