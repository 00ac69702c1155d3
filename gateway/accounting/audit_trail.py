"""The audit trail on disk: numbered lines, each with the SHA-256 of the line before it.

A line that was changed or taken out breaks the chain at the line behind it, and `verify` finds it.
Two things a chain cannot show by itself: lines that are missing at the end, and a trail that was
written anew as a whole. `verify` says the last line's number and hash: who keeps these elsewhere
can tell. The beginning goes when the trail has reached its bound; the numbers then begin higher.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.accounting.journal import Journal, files_of, lines_of

FOLDER: Final = "audit"
NAME: Final = "audit"
SCHEMA: Final = 1
BEGINNING: Final = "0" * 64
"""What the first line of all has in place of a hash."""


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was done, by whom, and what came of it. What is not known is left out."""

    unix_ms: int
    action: str
    """What was done, as `queue.delete`."""
    outcome: str
    """`ok`, the code of the refusal, or `begun`: its end comes in a later line."""
    tenant: str | None = None
    principal: str | None = None
    credential: str | None = None
    """What admitted it: its name, never a secret."""
    address: str | None = None
    queue: str | None = None
    group: str | None = None
    subject: str | None = None
    """What it was done to, where that is neither: the id of a token, the path of a backup."""
    count: int | None = None
    """How often it was, in the minute before `unix_ms`; left out: once."""
    details: dict[str, Any] | None = None


class Trail:
    """The trail that a broker writes on. To be used by one thread."""

    def __init__(self, journal: Journal) -> None:
        """Raises OSError: what there is cannot be read."""
        self._journal = journal
        last = next(journal.backwards(), None)
        self.hash = BEGINNING if last is None else _hash(last)
        """Of the last line, also of one that is torn: the chain goes through it."""
        whole = filter(None, map(_decode, journal.backwards()))
        self.number: int = next((fields["number"] for fields in whole), 0)

    @classmethod
    def open(cls, data_dir: Path, bytes_max: int) -> "Trail":
        """That of a data folder."""
        return cls(Journal(data_dir / FOLDER, NAME, bytes_max=bytes_max))

    def append(self, entries: Sequence[Entry], *, wall: float) -> None:
        """Write them, whole or not at all. Raises OSError: nothing was written."""
        lines, number, before = [], self.number, self.hash
        for entry in entries:
            number += 1
            line = _encode(entry, number, before)
            before = _hash(line)
            lines.append(line + b"\n")
        self._journal.append(b"".join(lines), wall=wall)
        self.number, self.hash = number, before

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        self._journal.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()


class Verified(msgspec.Struct):
    """What `verify` found."""

    lines: int
    first: int | None
    """The number of the first line that is there."""
    last: int | None
    hash: str
    """Of the last line: what the next one will name."""
    torn: int
    """Lines that a crash cut off."""
    findings: list[str]
    """A sentence for each place where the chain is broken; none: it is whole."""


def verify(data_dir: Path) -> Verified:
    """Follow the chain through the trail of a data folder. Raises OSError: it cannot be read."""
    found = Verified(0, None, None, BEGINNING, 0, [])
    for path in files_of(data_dir / FOLDER, NAME):
        for place, line in enumerate(lines_of(path), 1):
            _follow(found, line, f"{path.name}, line {place}")
    return found


def _follow(found: Verified, line: bytes, where: str) -> None:
    fields = _decode(line)
    if fields is None:
        found.torn += 1
    else:
        number, before = fields["number"], fields["previous"]
        is_first = found.lines == 0
        if is_first and (number == 1) != (before == BEGINNING):
            found.findings.append(f"{where}: the trail does not begin with this line")
        elif not is_first and before != found.hash:
            found.findings.append(
                f"{where}: the line before it is not the one that was there: changed, or taken out"
            )
        elif found.last is not None and number != found.last + 1:
            found.findings.append(f"{where}: number {number} comes behind {found.last}")
        found.first = number if found.first is None else found.first
        found.last = number
    found.lines += 1
    found.hash = _hash(line)


def read(data_dir: Path, since_unix_ms: int = 0) -> list[dict[str, Any]]:
    """The whole lines from a time on, in order. Raises OSError: they cannot be read."""
    found = []
    for path in files_of(data_dir / FOLDER, NAME):
        for line in lines_of(path):
            fields = _decode(line)
            if fields is not None and fields["unix_ms"] >= since_unix_ms:
                found.append(fields)
    return found


def _encode(entry: Entry, number: int, before: str) -> bytes:
    head = {"schema": SCHEMA, "number": number}
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return msgspec.json.encode({**head, **fields, "previous": before})


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wanted = {"number": int, "unix_ms": int, "previous": str}
    if not isinstance(fields, dict):
        return None
    if any(not isinstance(fields.get(name), kind) for name, kind in wanted.items()):
        return None
    return fields


def _hash(line: bytes) -> str:
    return sha256(line).hexdigest()
