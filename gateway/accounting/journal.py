"""Files of JSON lines that rotate: a folder with `<name>-<hour>-<number>.jsonl`, oldest first.

A new file begins with each hour (UTC), and when the current one has `file_bytes_max`. The oldest
files are removed first, so that all of them together stay within `bytes_max`. Lines that are
written together are in the file whole, or not at all, because a write that fails on a full disk is
taken back. Only a crash can leave a torn line. Readers skip it, and the next writer ends it.

Everything here blocks, so it belongs in a thread of its own.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from push import limits

SUFFIX: Final = ".jsonl"


def files_of(folder: Path, name: str) -> list[Path]:
    """Return the files of a journal, oldest first; none if there is no folder."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}T\d\d-\d{{6,}}{re.escape(SUFFIX)}")
    with contextlib.suppress(OSError):
        found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
        return sorted(found, key=_order)
    return []


def _order(path: Path) -> tuple[str, int]:
    _, hour, number = path.name.removesuffix(SUFFIX).rsplit("-", 2)
    return hour, int(number)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, without their line ends. A torn line is yielded as far as it
    goes."""
    with path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n")


class Journal:
    """Files of one folder, written by one thread of one process. Methods that raise OSError have
    written nothing."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        bytes_max: int,
        file_bytes_max: int = limits.JOURNAL_FILE_BYTES_MAX,
    ) -> None:
        self._folder = folder
        self._name = name
        self._bytes_max = bytes_max
        self._file_bytes_max = min(file_bytes_max, bytes_max // 4)
        self._file = -1
        self._path: Path | None = None
        self._size = 0

    def backwards(self) -> Iterator[bytes]:
        """Yield the lines of all files, the last one first, torn lines too."""
        for path in reversed(files_of(self._folder, self._name)):
            yield from reversed(list(lines_of(path)))

    def append(self, lines: bytes, *, wall: float) -> None:
        """Write these lines, each of which has its line end: all of them or none."""
        hour = datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H")
        if self._file < 0:
            self._go_on(hour)
        elif self._must_rotate(hour):
            self._begin(hour)
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._file, memoryview(lines)[written:])
        except OSError:
            self._take_back()
            raise
        self._size += written

    def _must_rotate(self, hour: str) -> bool:
        assert self._path is not None
        return self._size >= self._file_bytes_max or _order(self._path)[0] < hour

    def _go_on(self, hour: str) -> None:
        """Open the last file, and end its torn line, if any; begin a new one if it is of an earlier
        hour, or full."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = files_of(self._folder, self._name)
        if not files:
            self._begin(hour)
            return
        self._open(files[-1])
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._size += os.write(self._file, b"\n")
        if self._must_rotate(hour):
            self._begin(hour)

    def _begin(self, hour: str) -> None:
        files = files_of(self._folder, self._name)
        number = 1
        if files:
            # Even if the clock was set back, the new file sorts after the existing ones.
            last, count = _order(files[-1])
            hour, number = (hour, 1) if hour > last else (last, count + 1)
        self._drop_oldest(files)
        self._open(self._folder / f"{self._name}-{hour}-{number:06}{SUFFIX}")

    def _open(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        self.close()
        self._file, self._path, self._size = file, path, os.fstat(file).st_size

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self.close()  # the next append ends the torn line, and goes on

    def _drop_oldest(self, files: list[Path]) -> None:
        """Remove the oldest files, so that one more full file stays within `bytes_max`."""
        sizes = [path.stat().st_size for path in files]
        whole = sum(sizes)
        for path, size in zip(files, sizes, strict=True):
            if whole + self._file_bytes_max <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            whole -= size

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self._file >= 0:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
