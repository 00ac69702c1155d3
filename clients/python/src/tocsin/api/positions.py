"""Stores that keep the position of a reader, so that it goes on after a restart.

A position (`tocsin.Position`) is the reader's token: with `to_json` and `from_json` it goes through
whatever keeps text. A store does that for a reader that is to go on after a restart:

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

    Both calls may be plain or `async`; a plain one runs in the event loop, so let it be quick. A
    reader calls them one after another, never two at once.
    """

    def load(self, name: str, /) -> Position | Awaitable[Position | None] | None:
        """Return the position that was saved last under this name; None: there is none."""

    def save(self, name: str, position: Position, /) -> Awaitable[None] | None:
        """Save a position; when this returns, the next `load` finds it."""


@runtime_checkable
class LockingPositionStore(Protocol):
    """A store whose `load` keeps other readers from the name until this one releases it."""

    def release(self, name: str, /) -> None:
        """Let another reader have the name."""


def default_name(queue: str, keys: Sequence[str] | None) -> str:
    """Return the name of a reader that was given none: its queue's.

    If it reads only some keys, a digest of these follows, because a position says nothing about
    keys that the reader has not asked for.
    """
    if keys is None:
        return queue
    digest = hashlib.sha256(msgspec.json.encode(sorted(set(keys)))).hexdigest()
    return f"{queue}-{digest[:16]}"


class MemoryPositions:
    """Positions that live as long as this object: a reader that is closed and opened again."""

    def __init__(self) -> None:
        self._positions: dict[str, Position] = {}

    def load(self, name: str) -> Position | None:
        """The position; None: there is none."""
        return self._positions.get(name)

    def save(self, name: str, position: Position) -> None:
        """Keep it."""
        self._positions[name] = position


class _PositionFile(msgspec.Struct):
    """The content of a file. `crc32` is that of `position`, as it is written."""

    version: int
    name: str
    crc32: int
    position: msgspec.Raw


class FilePositions:
    """Positions in a folder, one file a name: written beside, synced and renamed, so that after a
    crash the file holds the old position or the new one.

    Loading locks the name until `release`, which the reader does when it is closed, or the end of
    the process: two readers that share a position would skip each other's messages.

    Raises:
        ValueError: a name has other characters than A-Z a-z 0-9 . _ - or more than 200.
        PositionInUse: another reader, here or in another process, has the name.
        PositionDamaged: the file holds no position of that name.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._locks: dict[str, int] = {}

    async def load(self, name: str) -> Position | None:
        """The position; None: there is no file. Locks the name."""
        return await _run_to_completion(lambda: self._load(name), undo=lambda: self.release(name))

    async def save(self, name: str, position: Position) -> None:
        """Write it; durable when this returns. Locks the name, if that has not been done. Where it
        is cancelled it ends when the file is written: the next save writes the same one."""
        await _run_to_completion(lambda: self._save(name, position))

    def release(self, name: str) -> None:
        """Let another reader have the name. One that is not locked: nothing happens."""
        lock = self._locks.pop(name, None)
        if lock is not None:
            os.close(lock)

    def _path(self, name: str, suffix: str = ".json") -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a reader's name: A-Z a-z 0-9 . _ - and up to 200")
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

    A caller that is cancelled meanwhile waits for the end of it, and undoes it.
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
        raise PositionDamaged(str(path), "its checksum is another one")
    return position
