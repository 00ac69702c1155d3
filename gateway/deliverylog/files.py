"""The files of the delivery log, of which one is being written, and the earlier ones are finished.

    <gateway>-<began_unix_ms>-<number>.jsonl.part   is being written
    <gateway>-<began_unix_ms>-<number>.jsonl        has its last line, `end`, with count and CRC-32

A file is finished when it is full or old, by its last line and a rename, so that a reader sees it
whole. Nothing is fsynced. A power cut may leave a finished file torn, which its checksum shows. The
oldest finished files are removed, by age and so that all of them stay within `bytes_max`.

A process that did not stop in order leaves an unfinished file. `recover` cuts it to whole lines and
finishes it before the next log begins in this folder. A last line reports what was counted and is
missing.

Everything here blocks. It is for the writer's thread, and for the time before the writer begins.
"""

import contextlib
import errno
import logging
import os
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gateway.deliverylog.counts import (
    CERTIFIED,
    DISPATCHED,
    KINDS,
    SETTLED,
    SPANS,
    LeftCounts,
    forget,
    left_in,
)
from gateway.deliverylog.lines import (
    SCHEMA,
    EndLine,
    Pushes,
    UnloggedLine,
    encode,
    messages_of,
    runs_of,
)

SUFFIX: Final = ".jsonl"
PART: Final = ".jsonl.part"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of all files of the log."""

    bytes_max: int
    """Size of all files together."""
    age_s: float
    file_bytes: int
    """Size at which a file is finished."""
    file_s: float
    """Age at which a file is finished."""
    free_bytes_min: int = 0
    """Space on the disk that is left free."""


class LogFile:
    """A file that is being written. A method that raises OSError leaves its contents as they
    were."""

    def __init__(self, path: Path, *, now: float) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self.path = path
        self.began = now
        self.bytes = 0
        self.lines = 0
        self._crc = 0

    def append(self, data: bytes, lines: int) -> None:
        """Write whole lines, with their ends, all of them or none."""
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
        """Write the last line, and rename the file. Returns its new path."""
        end = end_line(self.path, gateway, self.lines, self._crc, is_last=is_last)
        written = os.write(self._file, end)
        if written < len(end):
            os.ftruncate(self._file, self.bytes)
            raise OSError(errno.ENOSPC, "no room for the last line", str(self.path))
        finished = finished_name(self.path)
        try:
            self.path.rename(finished)
        except OSError:
            os.ftruncate(self._file, self.bytes)  # lines may follow, and the last one comes again
            raise
        os.close(self._file)
        return finished

    def drop(self) -> None:
        """Remove the file, which has nothing in it."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def end_line(
    part: Path,
    gateway: str,
    lines: int,
    crc32: int,
    *,
    recovered: bool = False,
    is_last: bool = False,
) -> bytes:
    """Return the last line of a file. It also has the parts of the file's name, because copies may
    be renamed."""
    _, began_unix_ms, number = place_of(part) or (None, None, None)
    end = EndLine(
        schema=SCHEMA,
        gateway=gateway,
        lines=lines,
        crc32=crc32,
        began_unix_ms=began_unix_ms,
        number=number,
        recovered=recovered,
        is_last=is_last,
    )
    return encode(end) + b"\n"


def finished_name(part: Path) -> Path:
    """Return the path of a file after it is finished."""
    return part.with_name(part.name.removesuffix(PART) + SUFFIX)


def name_of(gateway: str, began_unix_ms: int, number: int) -> str:
    """Return the name of a file while it is written."""
    return f"{gateway}-{began_unix_ms}-{number:06}{PART}"


def place_of(path: Path) -> tuple[str, int, int] | None:
    """Return (gateway, unix milliseconds of its beginning, number) from a file's name. None: it is
    no file of the log."""
    name = path.name.removesuffix(".part")
    if not name.endswith(SUFFIX):
        return None
    gateway, _, rest = name.removesuffix(SUFFIX).partition("-")
    began, _, number = rest.partition("-")
    if not (gateway and began.isdigit() and number.isdigit()):
        return None
    return gateway, int(began), int(number)


class LogFolder:
    """Files of one folder, written by one process. Methods that raise OSError have written
    nothing."""

    def __init__(self, folder: Path, gateway: str, began_unix_ms: int, bounds: Bounds) -> None:
        self._folder = folder
        self._gateway = gateway
        self._began_unix_ms = began_unix_ms
        self._bounds = bounds
        self._current: LogFile | None = None
        self.number = 1
        """Number of the file that is being written, or of the next one."""

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
        """Check that there is room for `size` bytes. The log stops before the disk is full, because
        publishing needs the rest. Raises OSError if there is no room."""
        folder = self._folder if self._folder.exists() else self._folder.parent
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < self._bounds.free_bytes_min + size:
            raise OSError(errno.ENOSPC, "the disk is almost full", str(folder))

    def due_s(self, *, now: float) -> float | None:
        """Return the seconds until the file that is being written is to be finished, by size or
        age; None: there is no such file."""
        if self._current is None:
            return None
        if self._current.bytes >= self._bounds.file_bytes:
            return 0.0
        return max(0.0, self._current.began + self._bounds.file_s - now)

    def finish(self, *, wall: float, is_last: bool = False) -> None:
        """Finish the file that is being written, and remove the oldest ones. If there is no such
        file, nothing happens. But a log that ends says so in its last file (`is_last`), which is a
        new, empty one if earlier ones are finished already."""
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
        """Size in bytes of the file that is being written; 0: there is none."""
        return self._current.bytes if self._current is not None else 0


def finished_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the finished files of all gateways that have written here, the oldest first."""
    found: list[tuple[Path, os.stat_result]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.endswith(SUFFIX) and place_of(path) is not None:
                with contextlib.suppress(OSError):
                    found.append((path, path.stat()))
    return sorted(found, key=lambda one: (one[1].st_mtime_ns, one[0].name))


def drop_oldest(folder: Path, bounds: Bounds, *, wall: float) -> None:
    """Remove files that are too old, and the oldest ones until there is room for one more."""
    files = finished_files(folder)
    whole = sum(stat.st_size for _, stat in files) + bounds.file_bytes
    for path, stat in files:
        if whole <= bounds.bytes_max and wall - stat.st_mtime < bounds.age_s:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            whole -= stat.st_size


logger = logging.getLogger("tocsin.deliverylog")


class _Seen(msgspec.Struct):
    """The fields of a line that are needed for counts."""

    kind: str
    runs: list[tuple[int, int, int]] = []
    pushes: Pushes = []
    recipients: int = 1
    spans: int = 0
    certified: int = 0
    dispatched: int = 0
    settled: int = 0


_DECODE: Final = msgspec.json.Decoder(_Seen).decode


@dataclass(slots=True)
class WholeLines:
    """Counts, size and checksum of the whole lines of a file."""

    counts: list[int] = field(default_factory=lambda: [0] * KINDS)
    lines: int = 0
    size_bytes: int = 0
    crc32: int = 0
    has_end: bool = False

    def add(self, line: bytes) -> bool:
        """Add a line. False: it is torn, or no line, so that the rest of the file does not
        count."""
        if not line.endswith(b"\n"):
            return False
        try:
            seen = _DECODE(line)
            messages = messages_of(seen.runs or runs_of(seen.pushes))
        except (ValueError, TypeError, IndexError):  # no JSON, no line, or no push
            return False
        if seen.kind == "end":
            self.has_end = True
            return True
        self.lines += 1
        self.size_bytes += len(line)
        self.crc32 = zlib.crc32(line, self.crc32)
        match seen.kind:
            case "unlogged":
                said = (seen.spans, seen.certified, seen.dispatched, seen.settled)
                self.counts = [a + b for a, b in zip(self.counts, said, strict=True)]
                return True
            case "certified":
                self.counts[CERTIFIED] += messages
            case "dispatched":
                self.counts[DISPATCHED] += messages * seen.recipients
            case "settled":
                self.counts[SETTLED] += messages
        self.counts[SPANS] += 1
        return True


def look_into(path: Path) -> WholeLines:
    """Read the whole lines of a file, up to its `end` or to a torn line."""
    found = WholeLines()
    with path.open("rb") as file:
        for line in file:
            if not found.add(line) or found.has_end:
                break
    return found


def recover(folder: Path, tmpfs: Path | None = None) -> None:
    """Finish the files that an earlier process has left here, if any. `tmpfs`: the folder in which
    counts were kept.

    Raises:
        OSError: a file could not be finished; it is safe to try again.
    """
    left = left_in(folder, tmpfs)
    for part in sorted(folder.glob(f"*{PART}")):
        place = place_of(part)
        if place is not None and (left is None or place[0] != left.gateway):
            _finish(part, place[0], look_into(part), b"")
    if left is not None:
        _recover_last(folder, left)
        forget(folder, left, tmpfs)


def _recover_last(folder: Path, left: LeftCounts) -> None:
    """Finish the files of the process that counted here, and report missing lines. Files before
    `left.number` are accounted for."""
    part: Path | None = None
    counts, found = list(left.accounted), WholeLines()
    began_unix_ms, last = 0, left.number - 1
    for path in sorted(folder.glob(f"{left.gateway}-*")):
        place = place_of(path)
        if place is None or not path.name.endswith((PART, SUFFIX)):
            continue
        began_unix_ms, last = place[1], max(last, place[2])
        if place[2] < left.number:
            continue
        looked = look_into(path)
        counts = [a + b for a, b in zip(counts, looked.counts, strict=True)]
        if path.name.endswith(PART):
            part, found = path, looked
    missing = [max(0, a - b) for a, b in zip(left.happened, counts, strict=True)]
    if not any(missing):
        if part is not None:
            _finish(part, left.gateway, found, b"")
        return
    logger.warning(
        "the delivery log lost %d spans (%d messages certified, %d dispatched, %d settled) with "
        "the process before this one",
        *missing,
    )
    if part is None or found.has_end:  # no unfinished file is left that could report it
        if part is not None:
            _finish(part, left.gateway, found, b"")
        began_unix_ms = began_unix_ms or left.began_unix_us // 1000
        part, found = folder / name_of(left.gateway, began_unix_ms, last + 1), WholeLines()
        part.touch(mode=0o600)
        at_us = time.time_ns() // 1000
    else:
        at_us = part.stat().st_mtime_ns // 1000
    line = UnloggedLine(
        schema=SCHEMA,
        gateway=left.gateway,
        since_unix_us=at_us,
        until_unix_us=at_us,
        spans=missing[SPANS],
        certified=missing[CERTIFIED],
        dispatched=missing[DISPATCHED],
        settled=missing[SETTLED],
        reason="killed",
    )
    _finish(part, left.gateway, found, encode(line) + b"\n")


def _finish(part: Path, gateway: str, found: WholeLines, more: bytes) -> None:
    """Cut a file to its whole lines, add `more`, and finish it. Without any line it is removed."""
    if not (found.lines or more):
        part.unlink()
        return
    with part.open("r+b") as file:
        if not found.has_end:
            file.truncate(found.size_bytes)
            file.seek(found.size_bytes)
            lines = found.lines + bool(more)
            crc32 = zlib.crc32(more, found.crc32)
            file.write(more + end_line(part, gateway, lines, crc32, recovered=True))
            file.flush()
    os.rename(part, finished_name(part))
