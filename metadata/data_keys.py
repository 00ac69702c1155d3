"""Data keys: the keys that payloads are sealed under, wrapped by the master key. They are only kept
here; nothing in the metadata can unwrap one."""

import logging
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeGuard

import msgspec

COPIES: Final = (0, 1)
_LOG: Final = logging.getLogger(__name__)
_ENCODE: Final = msgspec.json.Encoder().encode


class DataKey(msgspec.Struct, frozen=True, kw_only=True):
    """A data key in its stored form."""

    key_id: bytes
    """8 random bytes, in front of everything that was sealed under the key."""
    master_key_id: str
    """Id of the master key that wraps it."""
    created_unix_ms: int
    wrapped: bytes


Still = Callable[[list[DataKey]], bool]
"""Function that says whether new rows may be written, given all keys that the catalog has at that
moment. Called just before they are written, when nobody else can change the keys."""


class Outdated(Exception):
    """Error: nothing was written, because the catalog has other keys by now, which are `known`."""

    def __init__(self, known: list[DataKey]) -> None:
        super().__init__("the data keys are others by now")
        self.known = known


class DataKeys:
    """The data keys of a catalog, in memory. A new key is durable before it is in memory."""

    def __init__(
        self,
        rows: Sequence[DataKey],
        write: Callable[[list[DataKey], Still], Awaitable[None]],
        refresh: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._rows = {row.key_id: row for row in rows}
        self._write = write
        self.refresh = refresh
        """Learns the keys that other gateways have put by now; None where one gateway works on the
        catalog. Raises TocsinError when nobody answers."""
        self._listeners: list[Callable[[Sequence[DataKey]], None]] = []

    def all(self) -> list[DataKey]:
        """Return all keys, the oldest first."""
        return sorted(self._rows.values(), key=lambda row: (row.created_unix_ms, row.key_id))

    def find(self, key_id: bytes) -> DataKey | None:
        """Return the key of this id; None if the catalog does not have it. Works in any thread."""
        return self._rows.get(key_id)

    async def put(self, rows: Sequence[DataKey], still: Still = lambda known: True) -> None:
        """Add keys, each in place of the one of its id: all of them or none, durable when this
        returns. `still` is called when nobody can change the keys any more before these are
        written.

        Raises:
            Outdated: `still` said no. The present keys are known here.
            Refused: storage_unavailable; nothing was changed.
            Unknown: the commit's outcome is not known.
        """
        try:
            await self._write(list(rows), still)
        except Outdated as outdated:
            self.learn(outdated.known)
            raise
        self._rows |= {row.key_id: row for row in rows}

    def learn(self, rows: Sequence[DataKey]) -> None:
        """Take over keys that another gateway has put. Nothing happens if there are none."""
        self._rows |= {row.key_id: row for row in rows}
        if rows:
            for listener in self._listeners:
                listener(rows)

    def on_learned(self, listener: Callable[[Sequence[DataKey]], None]) -> None:
        """Register for keys that other gateways put, each in place of the one of its id; called on
        the event loop."""
        self._listeners.append(listener)


class _Run(Protocol):
    """The method `execute` of an SQLite connection."""

    def __call__(self, statement: str, values: Sequence[object] = (), /) -> Any: ...


def put_rows(run: _Run, rows: Sequence[DataKey]) -> None:
    """Write both copies of each row."""
    for row in rows:
        value = _ENCODE(row)
        for copy in COPIES:
            run(
                "INSERT OR REPLACE INTO data_keys VALUES (?, ?, ?, ?)",
                (copy, row.key_id, value, zlib.crc32(value)),
            )


def mend_rows(run: _Run, rows: Sequence[DataKey]) -> None:
    """Write all keys anew, in place of all stored copies."""
    run("DELETE FROM data_keys")
    put_rows(run, rows)
    _LOG.warning(
        "the catalog had damaged copies of data keys; from the others they are whole again"
    )


def read_rows(run: _Run) -> tuple[list[DataKey], int, int]:
    """Return (all readable keys, number of damaged or missing copies, number of keys without a
    readable copy)."""
    found: dict[bytes, list[DataKey]] = {}
    seen: set[bytes] = set()
    damaged = 0
    for any_id, value, checksum in run("SELECT key_id, value, checksum FROM data_keys").fetchall():
        row = _read(value, checksum)
        if row is None or row.key_id != any_id:
            damaged += 1
        if row is not None:
            found.setdefault(row.key_id, []).append(row)
        elif isinstance(any_id, bytes):
            seen.add(any_id)
    missing = sum(max(0, len(COPIES) - len(copies)) for copies in found.values())
    rows = [copies[0] for copies in found.values()]
    return rows, max(damaged, missing), len(seen - found.keys())


def _read(value: object, checksum: object) -> DataKey | None:
    if not _is_intact(value, checksum):
        return None
    try:
        return msgspec.json.decode(value, type=DataKey)
    except msgspec.DecodeError:
        return None


def _is_intact(value: object, checksum: object) -> TypeGuard[bytes]:
    return isinstance(value, bytes) and zlib.crc32(value) == checksum
