"""Finished files of the delivery log, each identified by its content. Pure.

A gateway's name stands for one start of a process, which numbers its files from 1. The last line of
a file has this number, and the count and the CRC-32 of its lines. So a file is the same under any
name and in any folder. Older gateways leave the number to the file's name.
"""

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

NO_END: Final = "no good last line"
WRONG_SUM: Final = "checksum"
WRONG_COUNT: Final = "line count"
FOREIGN: Final = "no delivery log"
"""The fault of a file that something else wrote, such as the usage log, which is beside this
one."""
CONTRADICTS: Final = "contradicts another file of its number"
_OTHERS: Final = re.compile(r"(usage|audit)-[^/]*\.jsonl")
"""Names of files of the usage log and the audit trail, whose folders are next to this log's."""
_NAME: Final = re.compile(r"([0-9a-zA-Z_-]+?)-(\d+)-(\d+)\.jsonl")


class Name(NamedTuple):
    """The parts of a file's name; `number` counts the files of a gateway's process, from 1."""

    gateway: str
    began_unix_ms: int
    number: int


class Listed(NamedTuple):
    """A file in a folder. `path` is as Hadoop writes it, with a scheme and nothing escaped."""

    path: str
    bytes: int
    modified_unix_ms: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Raw(NamedTuple):
    """A file that was read. `crc32` is the checksum of all bytes before `last`, its last line."""

    listed: Listed
    last: bytes
    crc32: int


@dataclass(kw_only=True)
class File:
    """The entry of a file in a manifest."""

    name: str
    path: str
    bytes: int
    modified_unix_ms: int
    gateway: str | None
    began_unix_ms: int | None
    number: int | None
    lines: int
    """The number of lines, without the last one if the file is whole."""
    crc32: int
    """The checksum of the bytes before the last line if the file is whole, otherwise of all
    bytes."""
    fault: str
    """The reason why its lines are not believed; empty for a file that is as it was written."""
    recovered: bool
    since_unix_us: int | None = None
    """The lowest time of its lines, also of a file with a fault, as far as they can be read; None
    if it has none. `until_unix_us` is the highest."""
    until_unix_us: int | None = None
    is_last: bool = False
    """Whether its process ended its log in order, and states that no file follows this one."""

    def entry(self) -> dict[str, Any]:
        """Return the JSON object that the manifest has for this file."""
        return asdict(self)


def parse_name(name: str) -> Name | None:
    """Return the parts of a name; None for a name that no gateway gives."""
    match = _NAME.fullmatch(name)
    return None if match is None else Name(match[1], int(match[2]), int(match[3]))


def identify(raw: Raw) -> File:
    """Return the entry of a file. Its fault is found by comparing the file with its last line,
    except the number of lines, which is not compared here."""
    listed, last = raw.listed, raw.last
    end = _end(last)
    named = parse_name(listed.name)
    is_other = _OTHERS.fullmatch(listed.name) is not None or _is_foreign(last)
    no_end = FOREIGN if named is None and is_other else NO_END
    is_whole = end is not None and end.get("crc32") == raw.crc32
    claimed = end or {}
    gateway = claimed.get("gateway")
    number, began = claimed.get("number"), claimed.get("began_unix_ms")
    if named is not None and gateway in (None, named.gateway):
        gateway = named.gateway
        number = named.number if number is None else number
        began = named.began_unix_ms if began is None else began
    return File(
        name=listed.name, path=listed.path, bytes=listed.bytes,
        modified_unix_ms=listed.modified_unix_ms, gateway=gateway, began_unix_ms=began,
        number=number, lines=int(claimed.get("lines", 0)) if is_whole else 0,
        crc32=raw.crc32 if is_whole else zlib.crc32(last, raw.crc32),
        fault="" if is_whole else no_end if end is None else WRONG_SUM,
        recovered=bool(claimed.get("recovered")),
        is_last=bool(claimed.get("is_last")),
    )  # fmt: skip


def _end(line: bytes) -> dict[str, Any] | None:
    """Return a last line as an object; None if it is something else, was torn, or has values that
    are no numbers."""
    if not line.endswith(b"\n"):
        return None
    try:
        end = json.loads(line)
    except ValueError:
        return None
    if not isinstance(end, dict) or end.get("kind") != "end":
        return None
    numbers = [end.get(name, 0) for name in ("lines", "crc32", "number", "began_unix_ms")]
    are_good = all(type(number) is int and number >= 0 for number in numbers)
    return end if are_good and isinstance(end.get("gateway"), str) else None


def _is_foreign(line: bytes) -> bool:
    """Whether this is a JSON object of another log. Lines of a delivery log have a `kind`."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "kind" not in found


# --- Known files --------------------------------------------------------------------------------


class Known:
    """The files in the manifests of a lake. Those of earlier versions have names only."""

    def __init__(self, manifests: Iterable[dict[str, Any]]) -> None:
        self._places: set[Listed] = set()
        self._contents: set[tuple[Any, ...]] = set()
        self._lines: dict[tuple[str, int], int] = {}
        """(gateway, number) → lines of the file that was brought; -1 if unknown."""
        self._names: dict[str, bool] = {}
        """Names without a content → whether the file was whole."""
        for manifest in manifests:
            for entry in manifest["files"]:
                self._add(entry)
            for entry in manifest["repeated_files"]:
                if isinstance(entry, dict):
                    self._places.add(_place(entry))
            for entry in manifest.get("foreign_files", ()):
                self._places.add(_place(entry))

    def _add(self, entry: dict[str, Any]) -> None:
        is_whole = not entry["fault"]
        number = number_of(entry)
        if "crc32" not in entry:
            self._names[entry["name"]] = is_whole
            if is_whole and number is not None:
                self._lines[number] = -1
            return
        self._places.add(_place(entry))
        self._contents.add(_content(entry))
        if is_whole and number is not None:
            self._lines[number] = max(entry["lines"], self._lines.get(number, 0))

    def has(self, listed: Listed) -> bool:
        """Whether a file need not be read, because it was seen in this place, unchanged since, or
        because an earlier version brought a whole file of its name."""
        return listed in self._places or self._names.get(listed.name, False)

    def sort(self, found: Iterable[File]) -> tuple[list[File], list[File]]:
        """Return (new files, files that repeat known ones or each other). The new ones are known
        from now on.

        A different file with a known number may be shorter. Then a copy of the folder was made and
        recovered while the file was still written, and it repeats the beginning. If it is not
        shorter, it has a fault, and its lines are left out, because some of them are known.
        """
        fresh: list[File] = []
        repeated: list[File] = []
        for file in sorted(found, key=lambda file: (-file.lines, file.path)):
            entry = file.entry()
            number = number_of(entry)
            lines = None if file.fault or number is None else self._lines.get(number)
            if _content(entry) in self._contents or file.name in self._names:
                is_new = not file.fault and self._names.get(file.name) is False
            elif lines is None:
                is_new = True
            else:
                is_new = 0 <= lines <= file.lines
                if is_new:
                    file.fault = CONTRADICTS
            self._add(file.entry())
            (fresh if is_new else repeated).append(file)
        return fresh, repeated

    def doubt(self, file: File) -> None:
        """Forget that a whole file of this one's number is known, because another copy may be
        whole."""
        number = number_of(file.entry())
        if number is not None:
            self._lines.pop(number, None)


def place_of(file: File) -> dict[str, Any]:
    """Return the short entry of a file that brings no lines. By its path, size and time,
    `Known.has` recognizes the file."""
    return {"name": file.name, **_place(asdict(file))._asdict()}


def _place(entry: dict[str, Any]) -> Listed:
    return Listed(entry["path"], entry["bytes"], entry["modified_unix_ms"])


def _content(entry: dict[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a file, which differs for whole and damaged ones."""
    if entry["fault"] in ("", CONTRADICTS, WRONG_COUNT):
        return entry["gateway"], entry["lines"], entry["crc32"], entry["bytes"]
    return entry["crc32"], entry["bytes"]


def number_of(entry: dict[str, Any]) -> tuple[str, int] | None:
    """Return (gateway, number) of a file in a manifest; None if nothing states it."""
    if entry.get("gateway") is not None and entry.get("number") is not None:
        return entry["gateway"], entry["number"]
    name = parse_name(entry["name"]) if "crc32" not in entry else None
    return None if name is None else (name.gateway, name.number)
