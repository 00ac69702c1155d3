"""What a process left that did not stop: its file is cut to whole lines and finished, and what it
had counted and not written is told in it.

Blocks; for the moment before a log begins, in a folder that nobody else writes to.
"""

import logging
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gateway.deliverylog.chunks import CERTIFIED, DISPATCHED, KINDS, SETTLED, SPANS
from gateway.deliverylog.counts import Left, forget, left_in
from gateway.deliverylog.files import (
    PART,
    SUFFIX,
    end_line,
    finished_name,
    name_of,
    place_of,
)
from gateway.deliverylog.lines import SCHEMA, Pushes, Unlogged, encode, messages_of, runs_of

logger = logging.getLogger("tocsin.deliverylog")


class _Seen(msgspec.Struct):
    """What of a line counts."""

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
class Found:
    """The whole lines of a file."""

    counts: list[int] = field(default_factory=lambda: [0] * KINDS)
    lines: int = 0
    size_bytes: int = 0
    crc32: int = 0
    has_end: bool = False

    def add(self, line: bytes) -> bool:
        """One more. False: it is torn, or no line; nothing behind it counts."""
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


def look_into(path: Path) -> Found:
    """The whole lines of a file, up to its end or to what is torn."""
    found = Found()
    with path.open("rb") as file:
        for line in file:
            if not found.add(line) or found.has_end:
                break
    return found


def recover(folder: Path, tmpfs: Path | None = None) -> None:
    """Finish what is left here. Nothing is: nothing happens. `tmpfs`: where counts were kept.

    Raises:
        OSError: it could not be finished; trying again is safe.
    """
    left = left_in(folder, tmpfs)
    for part in sorted(folder.glob(f"*{PART}")):
        place = place_of(part)
        if place is not None and (left is None or place[0] != left.gateway):
            _finish(part, place[0], look_into(part), b"")
    if left is not None:
        _recover_last(folder, left)
        forget(folder, left, tmpfs)


def _recover_last(folder: Path, left: Left) -> None:
    """The files of the process that counted here: those before `left.number` are accounted for."""
    part: Path | None = None
    counts, found = list(left.accounted), Found()
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
        "the process before this one", *missing,
    )  # fmt: skip
    if part is None or found.has_end:  # there is no file any more that could tell
        if part is not None:
            _finish(part, left.gateway, found, b"")
        began_unix_ms = began_unix_ms or left.began_unix_us // 1000
        part, found = folder / name_of(left.gateway, began_unix_ms, last + 1), Found()
        part.touch(mode=0o600)
    at_us = part.stat().st_mtime_ns // 1000
    line = Unlogged(
        schema=SCHEMA, gateway=left.gateway, since_unix_us=at_us, until_unix_us=at_us,
        spans=missing[SPANS], certified=missing[CERTIFIED], dispatched=missing[DISPATCHED],
        settled=missing[SETTLED], reason="killed",
    )  # fmt: skip
    _finish(part, left.gateway, found, encode(line) + b"\n")


def _finish(part: Path, gateway: str, found: Found, more: bytes) -> None:
    """Cut it to its whole lines, add `more`, end it."""
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
