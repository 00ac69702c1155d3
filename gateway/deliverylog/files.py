"""The files of the delivery log: one is being written, those before it are finished.

    <gateway>-<began_unix_ms>-<number>.jsonl.part   is being written
    <gateway>-<began_unix_ms>-<number>.jsonl        has its last line, `end`, with count and CRC-32

A file is finished when it is full or old, by its last line and a rename: who sees it sees it whole.
Nothing is fsynced: a power cut may leave a finished file torn, which its checksum tells. The oldest
finished files go, by age and so that all of them keep to `bytes_max`.

Everything here blocks: it is for the writer's thread.
"""

import contextlib
import errno
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.deliverylog.lines import SCHEMA, End, encode

SUFFIX: Final = ".jsonl"
PART: Final = ".jsonl.part"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much there may be."""

    bytes_max: int
    """Of all files together."""
    age_s: float
    file_bytes: int
    """A file that has so many is finished,"""
    file_s: float
    """or one that is so old."""
    free_bytes_min: int = 0
    """So much of the disk is left to others."""


class LogFile:
    """A file that is being written. Raises OSError: what failed is as it was before."""

    def __init__(self, path: Path, *, now: float) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self.path = path
        self.began = now
        self.bytes = 0
        self.lines = 0
        self._crc = 0

    def append(self, data: bytes, lines: int) -> None:
        """Whole lines, with their ends: all of them, or none."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
        except OSError:
            os.ftruncate(self._file, self.bytes)
            raise
        self.bytes += len(data)
        self.lines += lines
        self._crc = zlib.crc32(data, self._crc)

    def finish(self, gateway: str, *, is_last: bool = False) -> Path:
        """Its last line, and its name. Returns what it is called now."""
        end = end_line(self.path, gateway, self.lines, self._crc, is_last=is_last)
        written = os.write(self._file, end)
        if written < len(end):
            os.ftruncate(self._file, self.bytes)
            raise OSError(errno.ENOSPC, "no room for the last line", str(self.path))
        return self._close()

    def _close(self) -> Path:
        finished = finished_name(self.path)
        self.path.rename(finished)
        os.close(self._file)
        return finished

    def drop(self) -> None:
        """It has nothing, and goes."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def end_line(
    part: Path, gateway: str, lines: int, crc32: int, *,
    recovered: bool = False, is_last: bool = False,
) -> bytes:  # fmt: skip
    """The last line of a file, which says also what its name says, since copies are renamed."""
    _, began_unix_ms, number = place_of(part) or (None, None, None)
    end = End(
        schema=SCHEMA, gateway=gateway, lines=lines, crc32=crc32, began_unix_ms=began_unix_ms,
        number=number, recovered=recovered, is_last=is_last,
    )  # fmt: skip
    return encode(end) + b"\n"


def finished_name(part: Path) -> Path:
    """What a file is called when it is finished."""
    return part.with_name(part.name.removesuffix(PART) + SUFFIX)


def name_of(gateway: str, began_unix_ms: int, number: int) -> str:
    """What a file is called while it is written."""
    return f"{gateway}-{began_unix_ms}-{number:06}{PART}"


def place_of(path: Path) -> tuple[str, int, int] | None:
    """(gateway, when it began, number) by a file's name. None: it is none of ours."""
    name = path.name.removesuffix(".part")
    if not name.endswith(SUFFIX):
        return None
    gateway, _, rest = name.removesuffix(SUFFIX).partition("-")
    began, _, number = rest.partition("-")
    if not (gateway and began.isdigit() and number.isdigit()):
        return None
    return gateway, int(began), int(number)


class Files:
    """One folder's files, written by one process. Raises OSError: nothing was written."""

    def __init__(self, folder: Path, gateway: str, began_unix_ms: int, bounds: Bounds) -> None:
        self._folder = folder
        self._gateway = gateway
        self._began_unix_ms = began_unix_ms
        self._bounds = bounds
        self._current: LogFile | None = None
        self.number = 1
        """Of the file that is being written, or of the next one."""

    def append(self, data: bytes, lines: int, *, now: float) -> None:
        """Write whole lines, all of them or none."""
        self._check_room(len(data))
        if self._current is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = name_of(self._gateway, self._began_unix_ms, self.number)
            self._current = LogFile(self._folder / name, now=now)
        try:
            self._current.append(data, lines)
        except OSError:
            if not self._current.lines:
                self._current.drop()
                self._current = None
            raise

    def _check_room(self, size: int) -> None:
        """The log ends before the disk does: publishing needs the rest."""
        folder = self._folder if self._folder.exists() else self._folder.parent
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < self._bounds.free_bytes_min + size:
            raise OSError(errno.ENOSPC, "the disk is almost full", str(folder))

    def due_s(self, *, now: float) -> float | None:
        """In how many seconds the file that is being written is to be finished; None: there is
        none."""
        if self._current is None:
            return None
        if self._current.bytes >= self._bounds.file_bytes:
            return 0.0
        return max(0.0, self._current.began + self._bounds.file_s - now)

    def finish(self, *, wall: float, is_last: bool = False) -> None:
        """Finish the file that is being written, and remove the oldest ones. Where there is none,
        nothing happens; but a log that ends says so in its last file (`is_last`), in an empty one
        if need be."""
        if self._current is None and is_last and self.number > 1:
            name = name_of(self._gateway, self._began_unix_ms, self.number)
            self._current = LogFile(self._folder / name, now=0.0)
        if self._current is not None:
            self._current.finish(self._gateway, is_last=is_last)
            self._current = None
            self.number += 1
            drop_oldest(self._folder, self._bounds, wall=wall)

    @property
    def waiting_bytes(self) -> int:
        """Of the file that is being written."""
        return self._current.bytes if self._current is not None else 0


def finished_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Those of all gateways that wrote here, by age."""
    found: list[tuple[Path, os.stat_result]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.endswith(SUFFIX) and place_of(path) is not None:
                with contextlib.suppress(OSError):
                    found.append((path, path.stat()))
    return sorted(found, key=lambda one: (one[1].st_mtime_ns, one[0].name))


def drop_oldest(folder: Path, bounds: Bounds, *, wall: float) -> None:
    """What is too old, and so many that there is room for one more."""
    files = finished_files(folder)
    whole = sum(stat.st_size for _, stat in files) + bounds.file_bytes
    for path, stat in files:
        if whole <= bounds.bytes_max and wall - stat.st_mtime < bounds.age_s:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            whole -= stat.st_size
