"""Counts that outlive a kill -9: of events that happened, and of those that are in files.

The loop counts events when they happen, and the writer counts those that it has written. At the
next start, the difference that is in no file was lost with the process.

    in memory   one mapped page of a tmpfs. Counting is a store to memory, which waits for no disk.
                The counts survive a kill of the process, while its machine or container runs. The
                page holds magic, gateway, counts of events that have happened (4)
    on disk     the file `counts` in the folder, which the writer writes after each chunk. It holds
                magic, gateway, number of the file that is being written, beginning of the counting
                (unix us), counts of events that had happened (4), counts of events in the files
                before that one (4)

All numbers are u64, little-endian. If there is no tmpfs, or it was lost, the file alone counts.
Events after its last writing are then in no count.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

SPANS: Final = 0
CERTIFIED: Final = 1
DISPATCHED: Final = 2
SETTLED: Final = 3
KINDS: Final = 4
"""Length of a list of counts: SPANS counts lines, the other places the messages of one kind."""

Counts = list[int] | memoryview
"""KINDS numbers, in a list or in memory that is shared with the next start."""

NAME: Final = "counts"
MEMORY: Final = Path("/dev/shm")
"""Path where Linux has a tmpfs, a file system in memory."""
_MOUNTS: Final = Path("/proc/self/mounts")
MAGIC: Final = int.from_bytes(b"tocsinL2", "little")
_FORM: Final = struct.Struct(f"<{4 + 2 * KINDS}Q")
_HEAD: Final = 2
_PAGE_FORM: Final = struct.Struct(f"<{_HEAD + KINDS}Q")


class LeftCounts(NamedTuple):
    """Counts that a process has left behind."""

    gateway: str
    number: int
    began_unix_us: int
    happened: tuple[int, ...]
    accounted: tuple[int, ...]
    """Counts of events in the files before `number`."""


def memory() -> Path | None:
    """Return a folder in which a page outlives its process and never waits for a disk. None: this
    machine has none."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            _, place, kind, *_ = line.split()
            if place == str(MEMORY) and kind == "tmpfs":
                return MEMORY
    return None


def page_of(gateway: str) -> str:
    """Return the name of the file in the tmpfs that is a gateway's page of counts."""
    return f"tocsin-counts-{gateway}"


class SharedCounts:
    """Counts of a gateway, in memory and on disk. Raises OSError if the file cannot be made."""

    def __init__(
        self, folder: Path, gateway: str, began_unix_us: int, tmpfs: Path | None = None
    ) -> None:
        """Make the file, and the page if there is a `tmpfs`."""
        self._path = folder / NAME
        self._gateway = gateway
        self._began_unix_us = began_unix_us
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self.happened: Counts = [0] * KINDS
        """Counts of events that have happened. Only the loop changes them."""
        self._page: Path | None = None
        if tmpfs is not None:
            with contextlib.suppress(OSError):
                self._map(tmpfs / page_of(gateway))
        self.save(1, [0] * KINDS)

    def _map(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            # Written, not extended, because a page without space would cause a SIGBUS later.
            head = _PAGE_FORM.pack(MAGIC, int(self._gateway, 16), *[0] * KINDS)
            os.write(file, head.ljust(mmap.PAGESIZE, b"\0"))
            words = memoryview(mmap.mmap(file, mmap.PAGESIZE)).cast("Q")
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(file)
        self.happened = words[_HEAD : _HEAD + KINDS]
        self._page = path

    def save(self, number: int, accounted: Sequence[int]) -> None:
        """Save that file `number` is being written, and that the files before it have `accounted`
        in all. Only the writer calls it. Raises OSError if the file is unchanged."""
        happened = [self.happened[kind] for kind in range(KINDS)]
        head = (MAGIC, int(self._gateway, 16), number, self._began_unix_us)
        os.pwrite(self._file, _FORM.pack(*head, *happened, *accounted), 0)

    def remove(self) -> None:
        """Remove file and page, because everything is accounted for. Only the writer calls it."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)
        if self._page is not None:
            self._page.unlink(missing_ok=True)


def left_in(folder: Path, tmpfs: Path | None = None) -> LeftCounts | None:
    """Return the counts that the previous process in this folder has left. None: there are none, or
    they cannot be read."""
    try:
        words = _FORM.unpack_from((folder / NAME).read_bytes())
    except (OSError, struct.error):
        return None
    if words[0] != MAGIC:
        return None
    _, name, number, began_unix_us, *counts = words
    gateway = f"{name:016x}"
    happened, accounted = counts[:KINDS], counts[KINDS:]
    if tmpfs is not None:
        with contextlib.suppress(OSError, struct.error):
            page = _PAGE_FORM.unpack_from(_own(tmpfs / page_of(gateway)))
            if page[:_HEAD] == (MAGIC, name):
                happened = list(map(max, happened, page[_HEAD:]))
    return LeftCounts(gateway, number, began_unix_us, tuple(happened), tuple(accounted))


def _own(path: Path) -> bytes:
    """Read a page that our own user wrote, because any user can create files there. Raises OSError
    if there is none."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return os.read(file, mmap.PAGESIZE)
    finally:
        os.close(file)


def forget(folder: Path, left: LeftCounts, tmpfs: Path | None = None) -> None:
    """Remove the counts that a process left, after they were reported."""
    (folder / NAME).unlink(missing_ok=True)
    if tmpfs is not None:
        with contextlib.suppress(OSError):
            (tmpfs / page_of(left.gateway)).unlink(missing_ok=True)
