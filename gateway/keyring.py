"""The keys of this broker: the master key, the data keys that it wraps, and the one that seals.

Order is everything here. A data key is durable in the catalog, wrapped, before the first payload
is sealed under it: a crash never leaves a payload whose key nobody has. A new master key is durable
in its file, in front of the old one, before the catalog is wrapped under it: whenever the process
dies, the file holds the key that opens the catalog, and the next start finishes what was begun.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from gateway.config import Config, default_master_key_file
from gateway.encryption import AHEAD, DATA_KEY_BYTES, KEY_ID_BYTES, RecordSealer
from gateway.key_file import is_open_to_others, read_keys, replace_keys
from gateway.master_key import LocalMasterKey, MasterKey, Source, Wanted, find_source, load_provider
from gateway.setting_values import MASTER_KEY_BYTES
from metadata.data_keys import DataKey, DataKeys
from push import limits
from push.errors import Refused
from push.record import RecordDamaged

logger = logging.getLogger("tocsin.encryption")

SHOWN_MAX: Final = 100
RETRY_S: Final = (1.0, 60.0)
"""Between two tries to make a data key durable, at first and at most."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation did."""

    master_key_id: str
    master_key_id_before: str
    data_keys: int
    """How many are wrapped under the new one."""
    file: str | None
    """That has it; None: it has to be put where the next start finds it."""


class Keyring:
    """See the module. Made by `open`."""

    def __init__(self, data_keys: DataKeys, source: Source) -> None:
        self._data_keys = data_keys
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._rotations = asyncio.Lock()
        self._rotating: set[asyncio.Task[Rotated]] = set()
        self._making: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun: tuple[bytes, bytes, int] | None = None
        """(id, key, when) of a data key that the catalog was given, and has not said to have."""
        self._closed = False
        self.sealer = RecordSealer(
            self._open_key, running_low=self._running_low, succeeded=self._succeeded
        )

    @classmethod
    async def open(cls, config: Config, data_keys: DataKeys) -> "Keyring | None":
        """The keys of a catalog, with a fresh data key that seals; None: encryption is off, and
        nothing was ever sealed here.

        Raises:
            Refused: storage_unavailable: the master key cannot be had, or is not the one that the
                catalog's keys are wrapped under; a sentence that says what to do.
        """
        rows = data_keys.all()
        if not config.encryption and not rows:
            return None
        default = default_master_key_file(os.environ)
        source = await asyncio.to_thread(find_source, config, default, may_generate=not rows)
        _tell(source)
        ring = cls(data_keys, source)
        if rows:
            await asyncio.to_thread(check_master_key, rows, source)
            if any(row.master_key_id != source.current.key_id for row in rows):
                await ring._rewrap(source.current)
        if config.encryption:
            ring.sealer.begin(*await ring._add_key())
            ring._arm()
        return ring

    def guard(self, data_keys: DataKeys) -> None:
        """From now on the catalog is reached by these: the same ones, behind deadlines. A catalog
        that stalls then holds up neither the next data key for ever nor who rotates."""
        self._data_keys = data_keys

    async def close(self) -> None:
        """No more keys are made; a rotation is finished first."""
        self._closed = True
        if self._rotating:
            await asyncio.wait(self._rotating)
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait((self._making,))

    # --- Data keys -------------------------------------------------------------------------------

    def _open_key(self, key_id: bytes) -> bytes:
        """A data key, for the sealer. In any thread."""
        return open_key(self._data_keys.find(key_id), key_id, self._source)

    async def _add_key(self) -> tuple[bytes, bytes]:
        """Make a data key, durable when this returns: (id, key)."""
        async with self._one_at_a_time:
            # What may have been written is tried again: a rotation leaves out what it knows not.
            self._begun = self._begun or (
                secrets.token_bytes(KEY_ID_BYTES),
                secrets.token_bytes(DATA_KEY_BYTES),
                time.time_ns() // 1_000_000,
            )
            key_id, key, _ = self._begun
            row = await asyncio.to_thread(_wrap, self._source.current, *self._begun)
            await self._data_keys.put([row])
            self._begun = None
            return key_id, key

    def _running_low(self) -> None:
        self._call(self._want_successor)

    def _succeeded(self) -> None:
        self._call(self._arm)

    def _call(self, what: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return  # the loop is closed: nothing more is sealed

    def _arm(self) -> None:
        """A data key has begun to seal: its successor is made before its time is over."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            due_s = AHEAD * limits.DATA_KEY_S_MAX
            self._timer = self._loop.call_later(due_s, self._want_successor)

    def _want_successor(self) -> None:
        if not self._closed and self._making is None and self.sealer.successor is None:
            self._making = asyncio.create_task(self._make_successor())
            self._making.add_done_callback(self._made)

    def _made(self, task: "asyncio.Task[None]") -> None:
        self._making = None

    async def _make_successor(self) -> None:
        pause_s, pause_s_max = RETRY_S
        while True:
            try:
                self.sealer.put_successor(*await self._add_key())
            except Exception as error:  # also what a key management service raises
                logger.warning("a new data key could not be made, trying on: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_s_max)
            else:
                return

    # --- The master key --------------------------------------------------------------------------

    async def rotate(self, new: bytes | None) -> Rotated:
        """See `_rotate`. One after another, and each to its end, whoever waits for it."""

        async def in_turn() -> Rotated:
            async with self._rotations:
                return await self._rotate(new)

        task = asyncio.create_task(in_turn())
        self._rotating.add(task)
        task.add_done_callback(self._rotating.discard)
        return await asyncio.shield(task)

    async def _rotate(self, new: bytes | None) -> Rotated:
        """Wrap all data keys under another master key, in one transaction: `new`, else a random one
        for a file, or what the provider answers now. Nothing that is under way waits for it.

        Raises:
            Refused: invalid_request: it cannot be done so, with what to do; storage_unavailable:
                the catalog did not take it, and what was wrapped stays as it was;
                metadata_unavailable: it has not answered: either key may be needed.
        """
        source = self._source
        if source.kind == "provider":
            if new is not None:
                raise Refused("invalid_request", "the master key is the provider's: give none")
            key = await asyncio.to_thread(load_provider, source.provider)
            return await self._change_to(key)
        if source.path is None and new is None:
            raise Refused(
                "invalid_request",
                "this broker has its master key from TOCSIN_MASTER_KEY: name a file with the new "
                "one, and put it into TOCSIN_MASTER_KEY, before the old one, for the next start",
            )
        raw = new if new is not None else secrets.token_bytes(MASTER_KEY_BYTES)
        local = LocalMasterKey(raw)
        if local.key_id == source.current.key_id:
            raise Refused("invalid_request", "this is the master key that is in use")
        if source.path is not None:
            await asyncio.to_thread(_put_first, source.path, raw, source.current.key_id)
        return await self._change_to(local)

    async def _change_to(self, key: MasterKey) -> Rotated:
        before = self._source.current.key_id
        count = await self._rewrap(key)
        logger.info("%d data keys are wrapped under the master key %s now", count, key.key_id)
        path = self._source.path
        return Rotated(
            master_key_id=key.key_id,
            master_key_id_before=before,
            data_keys=count,
            file=str(path) if path is not None else None,
        )

    async def _rewrap(self, key: MasterKey) -> int:
        """Wrap every data key under `key`, which is the master key when this returns."""
        async with self._one_at_a_time:
            source, known = self._source, self._data_keys.all()
            if self._begun is not None:
                known.append(await asyncio.to_thread(_wrap, source.current, *self._begun))
            rows = await asyncio.to_thread(_rewrapped, known, source, key)
            # Other threads open data keys meanwhile: none may find a row before its master key, or
            # a sound record is taken for a damaged one (P13). It stays known also where nobody can
            # say whether they were written.
            self._source = replace(source, former=[key, *source.former])
            await self._data_keys.put(rows)
            former = [old for old in (source.current, *source.former) if old is not key]
            self._source = replace(source, current=key, former=former)
            return len(rows)

    def describe(self) -> dict[str, object]:
        """For `tocsin admin master-key show`: no key is in it."""
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


# --- Wrapping ------------------------------------------------------------------------------------


def _bound(key_id: bytes, master_key_id: str) -> bytes:
    return b"tocsin data key\0" + key_id + master_key_id.encode()


def _wrap(master: MasterKey, key_id: bytes, key: bytes, created_unix_ms: int) -> DataKey:
    wrapped = master.wrap(key, _bound(key_id, master.key_id))
    return DataKey(
        key_id=key_id,
        master_key_id=master.key_id,
        created_unix_ms=created_unix_ms,
        wrapped=wrapped,
    )


def _unwrap(row: DataKey, master: MasterKey) -> bytes:
    """Raises ValueError: it is not wrapped under this one; Refused: nobody can say."""
    try:
        return master.unwrap(row.wrapped, _bound(row.key_id, row.master_key_id))
    except ValueError:
        raise
    except Exception as error:  # a key management service that does not answer
        raise Refused(
            "storage_unavailable",
            f"the master key {row.master_key_id} cannot be asked ({type(error).__name__}: {error})",
        ) from error


def _rewrapped(rows: Sequence[DataKey], source: Source, key: MasterKey) -> list[DataKey]:
    """The rows, wrapped under `key`. Nothing is changed when it raises."""
    fresh = []
    for row in rows:
        old = source.find(row.master_key_id)
        try:
            plain = _unwrap(row, old) if old is not None else b""
            new = _wrap(key, row.key_id, plain, row.created_unix_ms)
            is_right = len(plain) == DATA_KEY_BYTES and _unwrap(new, key) == plain
        except ValueError:
            is_right = False
        if not is_right:
            raise Refused(
                "storage_unavailable",
                f"the data key {row.key_id.hex()} cannot be wrapped anew: nothing was changed",
            )
        fresh.append(new)
    return fresh


def open_key(row: DataKey | None, key_id: bytes, source: Source) -> bytes:
    """The data key of this id, of which the catalog has this row. Raises as
    `push.sealing.Sealer.unseal` does."""
    if row is None:
        raise RecordDamaged(f"its data key {key_id.hex()} is not known")
    master = source.find(row.master_key_id)
    try:
        key = _unwrap(row, master) if master is not None else b""
    except ValueError:
        key = b""
    if len(key) != DATA_KEY_BYTES:
        raise RecordDamaged(f"its data key {key_id.hex()} does not unwrap")
    return key


def check_master_key(rows: Sequence[DataKey], source: Source) -> None:
    """That this master key opens the catalog's data keys: with a wrong one, every record would be
    taken for damaged.

    Raises:
        Refused: storage_unavailable: it is another one, or cannot be asked.
    """
    newest = max(rows, key=lambda row: row.created_unix_ms)
    master = source.find(newest.master_key_id)
    try:
        if master is not None and len(_unwrap(newest, master)) == DATA_KEY_BYTES:
            return
    except ValueError:
        pass
    raise Refused(
        "storage_unavailable",
        f"the data is sealed under the master key {newest.master_key_id}, and {source} is another "
        "one: give the right one with TOCSIN_MASTER_KEY_FILE or TOCSIN_MASTER_KEY; nothing was "
        "changed",
    )


def opener(wanted: Wanted) -> Callable[[Sequence[DataKey]], RecordSealer | None]:
    """For files at rest: what opens payloads under the data keys of a catalog. None: no master key
    was named, and the one where it is looked for unless told otherwise is not there or another.

    It raises Refused(storage_unavailable): the master key that was named is not the right one.
    """
    default = default_master_key_file(os.environ)
    is_named = wanted.master_key or wanted.master_key_file or wanted.master_key_provider

    def opened(rows: Sequence[DataKey]) -> RecordSealer | None:
        kept = {row.key_id: row for row in rows}
        try:
            source = find_source(wanted, default, may_generate=False)
            check_master_key(rows, source)
        except Refused:
            if is_named:
                raise
            return None
        return RecordSealer(lambda key_id: open_key(kept.get(key_id), key_id, source))

    return opened


def _put_first(path: Path, raw: bytes, current_id: str) -> None:
    """The new key before those of the file, the one in use among them."""
    keys = read_keys(path)
    if current_id not in [LocalMasterKey(key).key_id for key in keys]:
        raise Refused(
            "invalid_request",
            f"{path} does not have the master key that is in use ({current_id}): put it back first",
        )
    replace_keys(path, [raw, *(key for key in keys if key != raw)])


def _tell(source: Source) -> None:
    """What an operator has to know about the key."""
    if source.kind == "generated":
        made = "A master key was made in" if source.is_new else "The master key is in"
        logger.warning(
            "%s %s: without this file the data cannot be read. Keep a copy of it, not with the "
            "data; named by TOCSIN_MASTER_KEY_FILE, it is not mentioned any more",
            made, source.path,
        )  # fmt: skip
    if source.path is not None and is_open_to_others(source.path):
        logger.warning("others may read the master key %s: chmod 600 it", source.path)
