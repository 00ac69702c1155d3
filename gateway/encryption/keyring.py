"""The keys of this broker: the master key, the data keys that it wraps, and the one that seals.

The order of steps matters. A data key is durable in the catalog, wrapped, before the first payload
is sealed under it. So a crash never leaves a payload whose key is lost. A new master key is durable
in its file, in front of the old one, before the data keys of the catalog are wrapped under it. So
whenever the process dies, the file holds the key that opens the catalog, and the next start
finishes the rotation.

The id of a data key and that of its master key are bound to the wrapped key, so that none can be
taken for another.
"""

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from gateway.encryption.master_key import (
    MASTER_KEY_BYTES,
    LocalMasterKey,
    MasterKey,
    MasterKeySettings,
    Source,
    default_master_key_file,
    find_source,
    load_provider,
    put_first,
    warn,
)
from gateway.encryption.rotation import (
    GIVE_NEW,
    GIVE_ONE,
    check_known_to_all,
    covers,
    in_use,
    report_of,
    with_current,
    with_found,
)
from gateway.encryption.sealer import AHEAD, DATA_KEY_BYTES, KEY_ID_BYTES, RecordSealer
from metadata.data_keys import DataKey, DataKeys, Outdated
from push import limits
from push.errors import Refused, TocsinError
from push.record import RecordDamaged

logger = logging.getLogger("tocsin.encryption")

SHOWN_MAX: Final = 100
RETRY_S: Final = (1.0, 60.0)
"""Pauses in seconds between two tries to make a data key durable: the first, and the longest."""
LOOK_S: Final = 5.0
"""Interval in seconds at which one of several gateways reads which master keys its file has."""
OUTDATED_MAX: Final = 100
"""Largest number of tries to wrap data keys. A try fails if another gateway has changed the
catalog's data keys meanwhile."""


# --- Wrapped data keys ----------------------------------------------------------------------------


def _bound(key_id: bytes, master_key_id: str) -> bytes:
    return b"tocsin data key\0" + key_id + master_key_id.encode()


def wrap(master: MasterKey, key_id: bytes, key: bytes, created_unix_ms: int) -> DataKey:
    """Wrap a data key, and return its row for the catalog. Raises any error of a key management
    service."""
    wrapped = master.wrap(key, _bound(key_id, master.key_id))
    return DataKey(
        key_id=key_id,
        master_key_id=master.key_id,
        created_unix_ms=created_unix_ms,
        wrapped=wrapped,
    )


def unwrap(row: DataKey, master: MasterKey) -> bytes:
    """Return the data key of a row. Raises ValueError if it is not wrapped under this master key,
    and Refused if a key management service does not answer."""
    try:
        return master.unwrap(row.wrapped, _bound(row.key_id, row.master_key_id))
    except ValueError:
        raise
    except Exception as error:  # a key management service that does not answer
        raise Refused(
            "storage_unavailable",
            f"the master key {row.master_key_id} cannot be used, because its provider failed "
            f"({type(error).__name__}: {error})",
        ) from error


def rewrap(rows: Sequence[DataKey], source: Source, key: MasterKey) -> list[DataKey]:
    """Return the rows, wrapped under `key`. Raises Refused(storage_unavailable) if one cannot be
    wrapped, and any error of a key management service."""
    fresh = []
    for row in rows:
        old = source.find(row.master_key_id)
        try:
            plain = unwrap(row, old) if old is not None else b""
            new = wrap(key, row.key_id, plain, row.created_unix_ms)
            is_right = len(plain) == DATA_KEY_BYTES and unwrap(new, key) == plain
        except ValueError:
            is_right = False
        if not is_right:
            raise Refused(
                "storage_unavailable",
                f"the data key {row.key_id.hex()} cannot be wrapped anew, so nothing was changed",
            )
        fresh.append(new)
    return fresh


def open_key(row: DataKey | None, key_id: bytes, source: Source) -> bytes:
    """Return the data key of this id, from its row in the catalog. Raises like
    `push.storage_port.Sealer.unseal`."""
    if row is None:
        raise RecordDamaged(f"its data key {key_id.hex()} is not known")
    master = source.find(row.master_key_id)
    try:
        key = unwrap(row, master) if master is not None else b""
    except ValueError:
        key = b""
    if len(key) != DATA_KEY_BYTES:
        raise RecordDamaged(f"its data key {key_id.hex()} cannot be unwrapped")
    return key


def check_master_key(rows: Sequence[DataKey], source: Source) -> None:
    """Check that a master key of the source opens the newest of these data keys. With a wrong one,
    every record would be taken for damaged.

    Raises:
        Refused: storage_unavailable, if it is another one, or its provider does not answer.
    """
    newest = max(rows, key=lambda row: row.created_unix_ms)
    master = source.find(newest.master_key_id)
    try:
        if master is not None and len(unwrap(newest, master)) == DATA_KEY_BYTES:
            return
    except ValueError:
        pass
    raise Refused(
        "storage_unavailable",
        f"the data is encrypted under the master key {newest.master_key_id}, but {source} is "
        "another one. Give the right one with TOCSIN_MASTER_KEY_FILE or TOCSIN_MASTER_KEY. Nothing "
        "was changed",
    )


def opener(wanted: MasterKeySettings) -> Callable[[Sequence[DataKey]], RecordSealer | None]:
    """Return a function that makes a sealer, which opens payloads of files at rest under the data
    keys of a catalog. The function returns None if no master key was named, and the default file is
    missing or has another one.

    It raises Refused(storage_unavailable) if the master key that was named is not the right one.
    """
    default = default_master_key_file(os.environ)

    def open_sealer(rows: Sequence[DataKey]) -> RecordSealer | None:
        kept = {row.key_id: row for row in rows}
        try:
            source = find_source(wanted, default, may_generate=False)
            check_master_key(rows, source)
        except Refused:
            if wanted.is_named:
                raise
            return None
        return RecordSealer(lambda key_id: open_key(kept.get(key_id), key_id, source))

    return open_sealer


# --- The keyring ---------------------------------------------------------------------------------


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rotation."""

    master_key_id: str
    master_key_id_before: str
    data_keys: int
    """Number of data keys that are wrapped under the new master key."""
    file: str | None
    """File that has the new key. None: the key comes from a provider, or from the environment,
    where the operator must put the new key before the next start."""


class Keyring:
    """Keys of a broker. `open` makes it."""

    def __init__(
        self, data_keys: DataKeys, source: Source, find_again: Callable[[], Source]
    ) -> None:
        self._data_keys = data_keys
        self._source = source
        self._find_source = find_again
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._one_at_a_time = asyncio.Lock()
        self._rotations = asyncio.Lock()
        self._under_way: set[asyncio.Task[Rotated]] = set()
        self._maker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pending_key: tuple[bytes, bytes, int] | None = None
        """(id, key, unix milliseconds) of a new data key that the catalog has not confirmed."""
        self._closed = False
        self._is_shared = data_keys.refresh is not None
        self._report = report_of(source)
        self._watcher: asyncio.Task[None] | None = None
        self._others: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        data_keys.on_learned(self._on_learned)
        self.sealer = RecordSealer(
            self._open_key, on_running_low=self._on_running_low, on_succession=self._on_succession
        )

    @classmethod
    async def open(
        cls, master_key: MasterKeySettings, data_keys: DataKeys, *, seals: bool
    ) -> "Keyring | None":
        """Open the keys of a catalog, and make a fresh data key if the broker `seals`. None: it
        does not seal, and never has.

        Raises:
            Refused: storage_unavailable, with what to do, if the master key cannot be had, or is
                not the one under which the catalog's keys are wrapped.
        """
        rows = data_keys.all()
        if not seals and not rows:
            return None
        default = default_master_key_file(os.environ)
        is_shared = data_keys.refresh is not None
        if is_shared and not master_key.is_named and not default.exists():
            raise Refused("storage_unavailable", GIVE_ONE)
        may_generate = not rows and not is_shared
        found = partial(find_source, master_key, default)
        source = await asyncio.to_thread(found, may_generate=may_generate)
        warn(source)
        ring = cls(data_keys, source, partial(found, may_generate=False))
        if rows:
            await asyncio.to_thread(check_master_key, rows, source)
            if is_shared:
                ring._source = with_current(source, in_use(rows, source))
            elif any(row.master_key_id != source.current.key_id for row in rows):
                await ring._rewrap(source.current)
        if seals:
            ring.sealer.begin(*await ring._add_key())
            ring._arm()
        return ring

    def guard(self, data_keys: DataKeys) -> None:
        """Use these data keys from now on, which are the same ones behind deadlines. So a catalog
        that stalls does not block the next data key, or a rotation, for ever."""
        self._data_keys = data_keys
        data_keys.on_learned(self._on_learned)

    def set_others(self, others: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """Check rotations with other gateways from now on. `others` returns the reports of the
        other gateways by name. If the master keys are in a file, `report` follows the file from now
        on."""
        self._others = others
        if self._source.path is not None:
            self._watcher = asyncio.create_task(self._watch())

    def report(self) -> str:
        """Return the `MasterKeyReport`, as JSON, of the master keys that a start of this gateway
        would find."""
        return self._report

    async def _watch(self) -> None:
        while True:
            try:
                found = await asyncio.to_thread(self._find_source)
            except Refused as error:
                if self._report != report_of(None):
                    logger.warning("the next start of this gateway would fail: %s", error)
                self._report = report_of(None)
            else:
                self._source, self._report = with_found(self._source, found), report_of(found)
            await asyncio.sleep(LOOK_S)

    def _on_learned(self, rows: Sequence[DataKey]) -> None:
        """Take the master key in use from the catalog, because another gateway has made a data key,
        or has wrapped all data keys under another master key."""
        try:
            self._source = with_current(self._source, in_use(self._data_keys.all(), self._source))
        except Refused as error:
            logger.error("%s", error.detail)

    async def close(self) -> None:
        """Stop making data keys. A rotation under way is finished first."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        if self._timer is not None:
            self._timer.cancel()
        if self._maker is not None:
            self._maker.cancel()
            await asyncio.wait((self._maker,))
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait((self._watcher,))

    # --- Data keys -------------------------------------------------------------------------------

    def _open_key(self, key_id: bytes) -> bytes:
        """Return a data key, for the sealer. It may be called in any thread."""
        row = self._data_keys.find(key_id)
        if self._data_keys.refresh is not None:
            row = self._shared_row(key_id, row)
        return open_key(row, key_id, self._source)

    def _shared_row(self, key_id: bytes, row: DataKey | None) -> DataKey | None:
        """Return the row of a data key. The catalog is read anew if the row is not known here, and
        so are the master keys if the one that wraps it is not. Another gateway may have made the
        data key, or wrapped it under another master key; then the record is not damaged.

        Raises:
            Refused: storage_unavailable, if the catalog cannot be read, or the data key's master
                key is not here.
        """
        if row is None:
            row = self._read_row(key_id)
        if row is not None and self._source.find(row.master_key_id) is None:
            fresh = self._find_source()
            if fresh.find(row.master_key_id) is None:
                raise Refused(
                    "storage_unavailable",
                    "another gateway has wrapped the data keys under the master key "
                    f"{row.master_key_id}, which {fresh} does not have. Give it to this gateway "
                    "too",
                )
            self._source = with_found(self._source, fresh)
        return row

    def _read_row(self, key_id: bytes) -> DataKey | None:
        refresh = self._data_keys.refresh
        if refresh is None or threading.get_ident() == self._thread:
            return None  # the loop cannot wait for itself; a caller in another thread can
        reading = asyncio.run_coroutine_threadsafe(refresh(), self._loop)
        try:
            reading.result(limits.METADATA_DEADLINE_S)
        except (TocsinError, TimeoutError, CancelledError) as error:
            raise Refused(
                "storage_unavailable", f"the catalog's data keys cannot be read: {error}"
            ) from None
        return self._data_keys.find(key_id)

    async def _add_key(self) -> tuple[bytes, bytes]:
        """Make a data key, which is durable when this returns. Returns (id, key)."""
        async with self._one_at_a_time:
            # A key that may have been written is tried again. A rotation does not know it, and
            # would leave it out.
            pending = self._pending_key = self._pending_key or (
                secrets.token_bytes(KEY_ID_BYTES),
                secrets.token_bytes(DATA_KEY_BYTES),
                time.time_ns() // 1_000_000,
            )
            for _ in range(OUTDATED_MAX):
                source, master = self._source, self._source.current
                if self._is_shared:
                    master = in_use(self._data_keys.all(), source)
                row = await asyncio.to_thread(wrap, master, *pending)
                with suppress(Outdated):
                    await self._data_keys.put([row], partial(self._is_under, master, source))
                    self._pending_key = None
                    return pending[0], pending[1]
            raise Refused(
                "storage_unavailable",
                "other gateways keep rotating the master key, so no data key could be made: try "
                "again",
            )

    def _is_under(self, master: MasterKey, source: Source, known: list[DataKey]) -> bool:
        """Whether this is still the master key to wrap under. Otherwise a rotation by another
        gateway would leave out a key that is wrapped under the former one. Raises Refused if the
        catalog's master key is not here."""
        return not self._is_shared or in_use(known, source).key_id == master.key_id

    def _on_running_low(self) -> None:
        self._call(self._want_successor)

    def _on_succession(self) -> None:
        self._call(self._arm)

    def _call(self, what: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return  # the loop is closed, so nothing more is sealed

    def _arm(self) -> None:
        """Have a successor made before the time of the data key that has begun to seal is over."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            due_s = AHEAD * limits.DATA_KEY_S_MAX
            self._timer = self._loop.call_later(due_s, self._want_successor)

    def _want_successor(self) -> None:
        if not self._closed and self._maker is None and self.sealer.successor is None:
            self._maker = asyncio.create_task(self._make_successor())
            self._maker.add_done_callback(self._on_made)

    def _on_made(self, task: "asyncio.Task[None]") -> None:
        self._maker = None

    async def _make_successor(self) -> None:
        pause_s, pause_s_max = RETRY_S
        while True:
            try:
                self.sealer.put_successor(*await self._add_key())
            except Exception as error:  # also what a key management service raises
                logger.warning("a new data key could not be made, trying again: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_s_max)
            else:
                return

    # --- The master key --------------------------------------------------------------------------

    async def rotate(self, new: bytes | None) -> Rotated:
        """Rotate the master key (`_rotate`). Rotations run one after another, and each to its end,
        even if its caller is cancelled."""

        async def in_turn() -> Rotated:
            async with self._rotations:
                return await self._rotate(new)

        task = asyncio.create_task(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _rotate(self, new: bytes | None) -> Rotated:
        """Wrap all data keys under another master key, in one transaction. The key is `new`. If
        that is None, it is a random one if keys come from a file of a single gateway, or the
        current one of the provider. Publishing and delivering do not wait for it.

        Raises:
            Refused: invalid_request, with what to do, if it cannot be done so; storage_unavailable,
                if the catalog did not take it, and the data keys stay as they were;
                metadata_unavailable, if the other gateways' reports are not known, and nothing was
                changed, or if the catalog has not answered, so that either master key may be
                needed.
        """
        source = self._source
        if source.kind == "provider":
            if new is not None:
                raise Refused(
                    "invalid_request",
                    "the master key comes from TOCSIN_MASTER_KEY_PROVIDER: rotate it there, then "
                    "run this without a key",
                )
            key = await asyncio.to_thread(load_provider, source.provider)
            await self._check_others(key)
            return await self._change_to(key)
        if self._is_shared and new is None:
            raise Refused("invalid_request", GIVE_NEW)
        if source.path is None and new is None:
            raise Refused(
                "invalid_request",
                "this broker has its master key from TOCSIN_MASTER_KEY. Name a file with the new "
                "key, and put it into TOCSIN_MASTER_KEY, before the old one, for the next start",
            )
        raw = new if new is not None else secrets.token_bytes(MASTER_KEY_BYTES)
        local = LocalMasterKey(raw)
        if local.key_id == source.current.key_id:
            raise Refused("invalid_request", "this master key is already in use: give another one")
        if self._is_shared and source.path is None:
            check_known_to_all({"this gateway": self._report}, local, "")
        await self._check_others(local)
        if source.path is not None:
            await asyncio.to_thread(put_first, source.path, raw, source.current.key_id)
        return await self._change_to(local)

    async def _check_others(self, key: MasterKey) -> None:
        """Check that the other gateways have a master key. Raises Refused: invalid_request if a
        running one lacks it, metadata_unavailable if their reports are not known."""
        if self._others is not None:
            check_known_to_all(await self._others(), key, self._source.provider)
        elif self._is_shared:
            raise Refused(
                "metadata_unavailable",
                "the other gateways have not reported their master keys yet: try again",
            )

    async def _change_to(self, key: MasterKey) -> Rotated:
        before = self._source.current.key_id
        count = await self._rewrap(key)
        logger.info("%d data keys are now wrapped under the master key %s", count, key.key_id)
        path = self._source.path
        return Rotated(
            master_key_id=key.key_id,
            master_key_id_before=before,
            data_keys=count,
            file=str(path) if path is not None else None,
        )

    async def _rewrap(self, key: MasterKey) -> int:
        """Wrap every data key under `key`, which is the master key in use when this returns.
        Returns the number of data keys."""
        async with self._one_at_a_time:
            for _ in range(OUTDATED_MAX):
                source, known = self._source, self._data_keys.all()
                if self._pending_key is not None:
                    known.append(await asyncio.to_thread(wrap, source.current, *self._pending_key))
                rows = await asyncio.to_thread(rewrap, known, source, key)
                # Other threads open data keys meanwhile. None may find a row before its master key
                # is known, or it takes a sound record for a damaged one (P13). The key stays known
                # even if the outcome of the write is unknown.
                self._source = replace(source, former=[key, *source.former])
                with suppress(Outdated):  # another gateway made a key, which would be left out
                    await self._data_keys.put(rows, partial(covers, rows))
                    self._source = with_current(self._source, key)
                    return len(rows)
            raise Refused(
                "storage_unavailable",
                "other gateways keep changing the data keys, so nothing was changed: try again",
            )

    def describe(self) -> dict[str, object]:
        """Describe the keys for `tocsin admin master-key show`, without any secret."""
        rows, source = self._data_keys.all(), self._source
        current = self.sealer.current
        shown = [
            {
                "key_id": row.key_id.hex(),
                "created_unix_ms": row.created_unix_ms,
                "seals": current is not None and row.key_id == current.key_id,
            }
            for row in rows[-SHOWN_MAX:]
        ]
        return {
            "encryption": current is not None,
            "master_key_id": source.current.key_id,
            "from": source.kind,
            "file": str(source.path) if source.path is not None else None,
            "former_master_key_ids": [key.key_id for key in source.former],
            "data_keys": len(rows),
            "data_keys_newest": shown,
            "sealed_messages": current.messages if current is not None else 0,
            "sealed_bytes": current.bytes if current is not None else 0,
        }
