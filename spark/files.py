"""One finished file of the delivery log: its name, and whether it is as it was written."""

import json
import re
import zlib
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlparse

PATTERN: Final = "*.jsonl"
_NAME: Final = re.compile(r"([0-9a-zA-Z_-]+?)-(\d+)-(\d+)\.jsonl")
_CHUNK: Final = 1 << 20
_TAIL: Final = 64 * 1024


class Name(NamedTuple):
    """What a file's name says: `number` counts the files of a gateway's process, from 1."""

    gateway: str
    began_unix_ms: int
    number: int


class Checked(NamedTuple):
    """What was found: `lines` without the last, -1 when there is no good last line. `fault` is
    empty for a file that is as it was written, `gone` for one that is not there any more."""

    path: str
    lines: int
    fault: str
    recovered: bool


def parse_name(name: str) -> Name | None:
    """What the name says; None, where no gateway gives such names."""
    match = _NAME.fullmatch(name)
    return None if match is None else Name(match[1], int(match[2]), int(match[3]))


def check(uri: str) -> Checked:
    """Read it once and compare it with what its last line says of it."""
    place = Path(unquote(urlparse(uri).path))
    try:
        with place.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
            last = tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
            end = _end(last)
            if end is None:
                return Checked(uri, -1, "no good last line", False)
            file.seek(0)
            crc, lines, rest = 0, 0, size - len(last)
            while rest and (chunk := file.read(min(_CHUNK, rest))):
                crc, rest = zlib.crc32(chunk, crc), rest - len(chunk)
                lines += chunk.count(b"\n")
    except FileNotFoundError:
        return Checked(uri, -1, "gone", False)
    good = crc == end.get("crc32") and lines == end.get("lines")
    return Checked(uri, lines, "" if good else "checksum", bool(end.get("recovered")))


def _end(line: bytes) -> dict[str, object] | None:
    """A last line; None, when it is something else or was torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        end = json.loads(line)
    except ValueError:
        return None
    return end if isinstance(end, dict) and end.get("kind") == "end" else None


def missing(names: list[str]) -> dict[str, list[int]]:
    """gateway → numbers of files that must have been there: below the highest, and not among these
    names. What a retention removed before it was ingested is among them."""
    seen: dict[str, set[int]] = {}
    for name in map(parse_name, names):
        if name is not None:
            seen.setdefault(name.gateway, set()).add(name.number)
    holes = {
        gateway: sorted(set(range(1, max(numbers))) - numbers) for gateway, numbers in seen.items()
    }
    return {gateway: numbers for gateway, numbers in holes.items() if numbers}
