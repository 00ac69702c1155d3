"""Counts that outlive a kill -9: what has happened, and what of it is accounted for in files.

The loop counts what happens, the writer what it has written; at the next start what lies between
the two, and in no file, was lost with the process.

    in memory   one page of a tmpfs, mapped: counting is a store and waits for no disk, and what was
                counted stays when the process is killed, as long as its machine, or its container,
                is not: magic, gateway, what has happened (4)
    on disk     the folder's file `counts`, written by the writer behind each chunk: magic, gateway,
                number of the file that is being written, when the counting began (unix us), what
                had happened (4), what stands in the files before that one (4)

Both in u64, little-endian. Where there is no tmpfs, or it was lost, what the file says is the
truth: what happened behind its last writing is in no count.
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
"""Places in counts: lines, and messages of each kind."""

Counts = list[int] | memoryview
"""KINDS numbers: a list, or what is shared with the next start."""

NAME: Final = "counts"
MEMORY: Final = Path("/dev/shm")
"""Where Linux has one."""
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
    """In the files before `number`."""


def memory() -> Path | None:
    """Where a page outlives its process and never waits for a disk. None: nowhere here."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            _, place, kind, *_ = line.split()
            if place == str(MEMORY) and kind == "tmpfs":
                return MEMORY
    return None


def page_of(gateway: str) -> str:
    """Return the name of a gateway's page in the tmpfs."""
    return f"tocsin-counts-{gateway}"


class SharedCounts:
    """Counts of a gateway, in memory and on disk. Raises OSError: the file cannot be made."""

    def __init__(
        self, folder: Path, gateway: str, began_unix_us: int, tmpfs: Path | None = None
    ) -> None:
        """`tmpfs` None: there is none."""
        self._path = folder / NAME
        self._gateway = gateway
        self._began_unix_us = began_unix_us
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self.happened: Counts = [0] * KINDS
        """The loop's."""
        self._page: Path | None = None
        if tmpfs is not None:
            with contextlib.suppress(OSError):
                self._map(tmpfs / page_of(gateway))
        self.save(1, [0] * KINDS)

    def _map(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            # Written, not extended: a page without its place would be a SIGBUS later.
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
        """File `number` is written now; those before it have `accounted` in all. The writer's.
        Raises OSError: the file says what it said before."""
        happened = [self.happened[kind] for kind in range(KINDS)]
        head = (MAGIC, int(self._gateway, 16), number, self._began_unix_us)
        os.pwrite(self._file, _FORM.pack(*head, *happened, *accounted), 0)

    def remove(self) -> None:
        """Everything is accounted for. The writer's."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)
        if self._page is not None:
            self._page.unlink(missing_ok=True)


def left_in(folder: Path, tmpfs: Path | None = None) -> LeftCounts | None:
    """Return what the process that counted here before has left. None: nothing, or it cannot be
    read."""
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
    """A page that we wrote: anybody may put something there. Raises OSError: there is none."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError(f"{path} is somebody else's")
        return os.read(file, mmap.PAGESIZE)
    finally:
        os.close(file)


def forget(folder: Path, left: LeftCounts, tmpfs: Path | None = None) -> None:
    """Remove what a process left: it was reported."""
    (folder / NAME).unlink(missing_ok=True)
    if tmpfs is not None:
        with contextlib.suppress(OSError):
            (tmpfs / page_of(left.gateway)).unlink(missing_ok=True)
