"""The catalog of several gateways in one SQLite file, held by the one node of a metadata service.

Each act runs in one thread as one transaction, fsynced when it returns, like a function of Redis.
Heartbeats are not kept, so after a restart every gateway has GONE_S again before it counts as gone.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from metadata.backend import (
    CHANGES_KEPT,
    NO_CONDITION,
    NOWHERE,
    CatalogPlace,
    CatalogRows,
    Lost,
    MembershipRows,
    Raw,
    RowCondition,
    Write,
    other_generation,
)
from metadata.catalog import Membership
from metadata.heartbeats import LocalHeartbeats
from metadata.row_store import FOLLOWED, Damaged, pack, pack_struct, read_struct, unpack
from metadata.sqlite.file import LockedFile, unusable
from push.errors import Refused, Unknown

FILE: Final = "metadata.sqlite"
APPLICATION_ID: Final = 0x5443534D
_MEMBERS: Final = "memberships"
_LOG: Final = logging.getLogger("metadata.sqlite_database")
ResultT = TypeVar("ResultT")


class _State(msgspec.Struct, frozen=True):
    """The row that a catalog has once: its place (version and stamp), and its secret."""

    place: CatalogPlace
    secret: bytes
    """The packed row of the secret."""


class RowFile(LockedFile):
    """A `Database` in a file, synchronous. A transaction raises Refused(storage_unavailable) if
    nothing was written, and Unknown if its commit failed; then no further one is accepted."""

    application_id = APPLICATION_ID
    scripts = ("metadata.sql",)
    whose = "Tocsin's metadata service"

    def _made(self) -> None:
        secret = pack("catalog", "secret", secrets.token_bytes(32))
        place = CatalogPlace(secrets.token_hex(8), 1, secrets.token_hex(8))
        self._put_state(_State(place, secret), [])

    def _state(self) -> _State:
        row = self._row("state", "state")
        if row is None:
            raise Lost("there is no catalog in the file")
        return msgspec.json.decode(unpack("state", "state", row), type=_State)

    def _put_state(self, state: _State, rows: Sequence[tuple[str, str]]) -> None:
        run = self._connection.execute
        value = pack("state", "state", msgspec.json.encode(state))
        run("INSERT OR REPLACE INTO rows VALUES ('state', 'state', ?)", (value,))
        place = state.place
        run(
            "INSERT INTO changes VALUES (?, ?, ?)",
            (place.version, place.stamp, msgspec.json.encode(rows)),
        )
        run("DELETE FROM changes WHERE version <= ?", (place.version - CHANGES_KEPT,))

    def _row(self, kind: str, row_id: str) -> bytes | None:
        found = self._connection.execute(
            "SELECT value FROM rows WHERE kind = ? AND id = ?", (kind, row_id)
        ).fetchone()
        return None if found is None else bytes(found[0])

    # --- The acts --------------------------------------------------------------------------------

    def read(self, seen: CatalogPlace) -> CatalogRows | None:
        with self._transaction() as run:
            state = self._state()
            now = state.place
            if seen == now:
                return None
            if seen != NOWHERE and (
                seen.incarnation != now.incarnation or seen.version >= now.version
            ):
                raise self._lost_error(seen)
            changes = run(
                "SELECT version, stamp, rows FROM changes WHERE version >= ? ORDER BY version",
                (seen.version,),
            ).fetchall()
            if len(changes) != now.version - seen.version + 1:
                return CatalogRows(now, self._all_rows(), True, state.secret)
            (_, stamp, _), *later = changes
            if stamp != seen.stamp:
                raise self._lost_error(seen)
            raw: Raw = {}
            for _, _, rows in later:
                for kind, row_id in msgspec.json.decode(rows, type=list[tuple[str, str]]):
                    raw.setdefault(kind, {})[row_id] = self._row(kind, row_id)
            return CatalogRows(now, raw, False, state.secret)

    def _lost_error(self, seen: CatalogPlace) -> Lost:
        return Lost(
            f"{self.path} is not the catalog that was followed, or an older copy of it: version "
            f"{seen.version} of the incarnation {seen.incarnation} is not part of it (any more)"
        )

    def _all_rows(self) -> Raw:
        raw: Raw = {kind: {} for kind in FOLLOWED}
        for kind in FOLLOWED:
            for row_id, value in self._connection.execute(
                "SELECT id, value FROM rows WHERE kind = ?", (kind,)
            ):
                raw[kind][row_id] = bytes(value)
        return raw

    def change(
        self, seen: CatalogPlace, stamp: str, writes: Sequence[Write], row: RowCondition
    ) -> int | None:
        """Change rows; return the new version, or None if another change came first. Raises Fenced
        if `row` has another generation."""
        group_id, generation = row
        with self._transaction():
            state = self._state()
            if state.place != seen:
                return None
            if group_id and self.membership(group_id).generation != generation:
                raise other_generation(group_id)
            for kind, row_id, value in writes:
                self._write(kind, row_id, value)
            place = CatalogPlace(seen.incarnation, seen.version + 1, stamp)
            rows = [(kind, row_id) for kind, row_id, _ in writes if kind in FOLLOWED]
            self._put_state(_State(place, state.secret), rows)
            return place.version

    def _write(self, kind: str, row_id: str, value: bytes) -> None:
        run = self._connection.execute
        if value:
            run("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (kind, row_id, value))
        else:
            run("DELETE FROM rows WHERE kind = ? AND id = ?", (kind, row_id))

    def is_taken(self, any_id: str) -> bool:
        return self._row("ids", any_id) is not None

    def membership(self, group_id: str) -> Membership:
        value = self._row(_MEMBERS, group_id)
        if value is None:
            return Membership(group_id=group_id, generation=0, members=(), assignment={})
        try:
            return read_struct(_MEMBERS, group_id, value, Membership)
        except Damaged as error:
            raise unusable(self.path, f"the members of {group_id}: {error}") from None

    def change_membership(self, new: Membership, expected_generation: int) -> bool:
        with self._transaction():
            if self._row("groups", new.group_id) is None:
                raise Refused("group_not_found", f"no group of the id {new.group_id!r}")
            if self.membership(new.group_id).generation != expected_generation:
                return False
            self._write(_MEMBERS, new.group_id, pack_struct(_MEMBERS, new.group_id, new))
            return True


class SqliteDatabase:
    """`metadata.backend.Database` over one file, for one process; made by `open`."""

    poll_s = 3600.0
    """Seconds between two reads; long, because nobody else changes the file."""
    known_at = float("inf")
    """Any time, because no notice is lost: every change is known at once."""

    def __init__(
        self, file: RowFile, thread: ThreadPoolExecutor, on_fatal: Callable[[str], None] | None
    ) -> None:
        self._file = file
        self._thread = thread
        self._on_fatal = on_fatal
        self._listeners: list[Callable[[int], None]] = []
        self._members = _Memberships(self)
        self._nodes = LocalHeartbeats()
        self._closed = False

    @classmethod
    async def open(
        cls, path: Path, *, on_fatal: Callable[[str], None] | None = None
    ) -> "SqliteDatabase":
        """Open the file, or create it with an empty catalog. `on_fatal` is called once, with a
        sentence, when the outcome of a commit is unknown and the process must end (R31). Raises
        Refused(storage_unavailable)."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        try:
            file = await asyncio.get_running_loop().run_in_executor(thread, RowFile, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(file, thread, on_fatal)

    async def run(self, act: Callable[..., ResultT], *args: object) -> ResultT:
        """Run one act of the file in its thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act, *args)
        except Unknown as error:
            _LOG.critical("%s", error.detail)
            if self._on_fatal is not None:
                self._on_fatal(error.detail)
            raise
        except Damaged as error:
            raise unusable(self._file.path, str(error)) from None

    @property
    def file(self) -> RowFile:
        """The file that the thread works on."""
        return self._file

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """Register a listener; no notice is lost."""
        self._listeners.append(heard)

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        return await self.run(self._file.read, seen)

    async def change(
        self,
        seen: CatalogPlace,
        stamp: str,
        writes: Sequence[Write],
        row: RowCondition = NO_CONDITION,
    ) -> bool:
        version = await self.run(self._file.change, seen, stamp, list(writes), row)
        for listener in self._listeners if version is not None else ():
            listener(version or 0)
        return version is not None

    async def is_taken(self, any_id: str) -> bool:
        return await self.run(self._file.is_taken, any_id)

    def memberships(self) -> MembershipRows:
        return self._members

    async def beat_node(self, name: str, number: int, forget: Mapping[str, int]) -> dict[str, int]:
        """Note the beat in memory only, because this process is the only node."""
        return self._nodes.beat(name, number, forget)

    async def copy_to(self, path: Path) -> None:
        await self.run(self._file.copy_to, path)

    async def close(self) -> None:
        """Close the file. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await self.run(self._file.close)
            self._thread.shutdown()


class _Memberships:
    """`metadata.backend.MembershipRows` of a file: every row is durable."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._beats = LocalHeartbeats()
        self._listeners: list[Callable[[str, int], None]] = []

    async def get(self, group_id: str) -> Membership:
        return await self._database.run(self._database.file.membership, group_id)

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        file = self._database.file
        is_changed = await self._database.run(file.change_membership, new, expected_generation)
        for listener in self._listeners if is_changed else ():
            listener(new.group_id, new.generation)
        return is_changed

    async def glance(self, group_id: str) -> Membership:
        """Return the row like `get`, because there is only one copy."""
        return await self.get(group_id)

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        return self._beats.beat(gateway, number, forget, says)

    async def said(self) -> dict[str, str]:
        return self._beats.said()

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        self._listeners.append(listener)

    def dropped(self, group_id: str) -> None:
        """Do nothing, because the row was deleted with the group."""
