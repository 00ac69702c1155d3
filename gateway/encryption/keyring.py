"""The keys of this broker: the master key, the data keys that it wraps, and the one that seals.

Order is everything here. A data key is durable in the catalog, wrapped, before the first payload
is sealed under it: a crash never leaves a payload whose key nobody has. A new master key is durable
in its file, in front of the old one, before the catalog is wrapped under it: whenever the process
dies, the file holds the key that opens the catalog, and the next start finishes what was begun.

How data keys are wrapped under a master key, and opened again. What is wrapped is bound to its
id and to its master key's: none passes for another.
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
    tell,
)
from gateway.encryption.rotation import (
    GIVE_NEW,
    GIVE_ONE,
    check_all_have,
    covers,
    in_use,
    report_of,
    using,
    with_found,
)
from gateway.encryption.sealer import AHEAD, DATA_KEY_BYTES, KEY_ID_BYTES, RecordSealer
from metadata.data_keys import DataKey, DataKeys, Outdated
from push import limits
from push.errors import Refused, TocsinError
from push.record import RecordDamaged


def _bound(key_id: bytes, master_key_id: str) -> bytes:
    return b"tocsin data key\0" + key_id + master_key_id.encode()


def wrap(master: MasterKey, key_id: bytes, key: bytes, created_unix_ms: int) -> DataKey:
    """A row of the catalog. Raises whatever a key management service raises."""
    wrapped = master.wrap(key, _bound(key_id, master.key_id))
    return DataKey(
        key_id=key_id,
        master_key_id=master.key_id,
        created_unix_ms=created_unix_ms,
        wrapped=wrapped,
    )


def unwrap(row: DataKey, master: MasterKey) -> bytes:
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


def rewrapped(rows: Sequence[DataKey], source: Source, key: MasterKey) -> list[DataKey]:
    """The rows, wrapped under `key`. Raises Refused(storage_unavailable): one cannot be."""
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
                f"the data key {row.key_id.hex()} cannot be wrapped anew: nothing was changed",
            )
        fresh.append(new)
    return fresh


def open_key(row: DataKey | None, key_id: bytes, source: Source) -> bytes:
    """The data key of this id, of which the catalog has this row. Raises as
    `push.storage_port.Sealer.unseal` does."""
    if row is None:
        raise RecordDamaged(f"its data key {key_id.hex()} is not known")
    master = source.find(row.master_key_id)
    try:
        key = unwrap(row, master) if master is not None else b""
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
        if master is not None and len(unwrap(newest, master)) == DATA_KEY_BYTES:
            return
    except ValueError:
        pass
    raise Refused(
        "storage_unavailable",
        f"the data is sealed under the master key {newest.master_key_id}, and {source} is another "
        "one: give the right one with TOCSIN_MASTER_KEY_FILE or TOCSIN_MASTER_KEY; nothing was "
        "changed",
    )


def opener(wanted: MasterKeySettings) -> Callable[[Sequence[DataKey]], RecordSealer | None]:
    """For files at rest: what opens payloads under the data keys of a catalog. None: no master key
    was named, and the one where it is looked for unless told otherwise is not there or another.

    It raises Refused(storage_unavailable): the master key that was named is not the right one.
    """
    default = default_master_key_file(os.environ)

    def opened(rows: Sequence[DataKey]) -> RecordSealer | None:
        kept = {row.key_id: row for row in rows}
        try:
            source = find_source(wanted, default, may_generate=False)
            check_master_key(rows, source)
        except Refused:
            if wanted.is_named:
                raise
            return None
        return RecordSealer(lambda key_id: open_key(kept.get(key_id), key_id, source))

    return opened


logger = logging.getLogger("tocsin.encryption")

SHOWN_MAX: Final = 100
RETRY_S: Final = (1.0, 60.0)
"""Between two tries to make a data key durable, at first and at most."""
LOOK_S: Final = 5.0
"""How often a gateway of several looks which master keys its file has."""
OUTDATED_MAX: Final = 100
"""So often is wrapped anew what another gateway's data keys or rotation came before."""


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
        self._rotating: set[asyncio.Task[Rotated]] = set()
        self._making: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun: tuple[bytes, bytes, int] | None = None
        """(id, key, when) of a data key that the catalog was given, and has not said to have."""
        self._closed = False
        self._is_shared = data_keys.refresh is not None
        self._words = report_of(source)
        self._looking: asyncio.Task[None] | None = None
        self._others: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        data_keys.on_learned(self._learned)
        self.sealer = RecordSealer(
            self._open_key, running_low=self._running_low, succeeded=self._succeeded
        )

    @classmethod
    async def open(
        cls, master_key: MasterKeySettings, data_keys: DataKeys, *, seals: bool
    ) -> "Keyring | None":
        """The keys of a catalog, with a fresh data key where it `seals`; None: it does not, and
        nothing was ever sealed here.

        Raises:
            Refused: storage_unavailable: the master key cannot be had, or is not the one that the
                catalog's keys are wrapped under; a sentence that says what to do.
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
        tell(source)
        ring = cls(data_keys, source, partial(found, may_generate=False))
        if rows:
            await asyncio.to_thread(check_master_key, rows, source)
            if is_shared:
                ring._source = using(source, in_use(rows, source))
            elif any(row.master_key_id != source.current.key_id for row in rows):
                await ring._rewrap(source.current)
        if seals:
            ring.sealer.begin(*await ring._add_key())
            ring._arm()
        return ring

    def guard(self, data_keys: DataKeys) -> None:
        """From now on the catalog is reached by these: the same ones, behind deadlines. A catalog
        that stalls then holds up neither the next data key for ever nor who rotates."""
        self._data_keys = data_keys
        data_keys.on_learned(self._learned)

    def meet(self, others: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """There are other gateways: `others` answers what each of them says by now. From now on
        `says` is what this one's file has."""
        self._others = others
        if self._source.path is not None:
            self._looking = asyncio.create_task(self._look())

    def says(self) -> str:
        """For the other gateways: which master keys a start of this one would find."""
        return self._words

    async def _look(self) -> None:
        while True:
            try:
                found = await asyncio.to_thread(self._find_source)
            except Refused as error:
                if self._words != report_of(None):
                    logger.warning("the next start of this gateway would fail: %s", error)
                self._words = report_of(None)
            else:
                self._source, self._words = with_found(self._source, found), report_of(found)
            await asyncio.sleep(LOOK_S)

    def _learned(self, rows: Sequence[DataKey]) -> None:
        """Another gateway has made a data key, or has put all under another master key."""
        try:
            self._source = using(self._source, in_use(self._data_keys.all(), self._source))
        except Refused as error:
            logger.error("%s", error.detail)

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
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    # --- Data keys -------------------------------------------------------------------------------

    def _open_key(self, key_id: bytes) -> bytes:
        """A data key, for the sealer. In any thread."""
        row = self._data_keys.find(key_id)
        if self._data_keys.refresh is not None:
            row = self._shared(key_id, row)
        return open_key(row, key_id, self._source)

    def _shared(self, key_id: bytes, row: DataKey | None) -> DataKey | None:
        """The row as the gateways that share the catalog have it by now. One of them has made it
        since, or has put it under another master key: that damages nothing.

        Raises Refused(storage_unavailable): nobody can say."""
        if row is None:
            row = self._asked(key_id)
        if row is not None and self._source.find(row.master_key_id) is None:
            fresh = self._find_source()
            if fresh.find(row.master_key_id) is None:
                raise Refused(
                    "storage_unavailable",
                    f"another gateway has wrapped the data keys under {row.master_key_id}, and "
                    f"{fresh} does not have that master key: give it to this gateway, too",
                )
            self._source = with_found(self._source, fresh)
        return row

    def _asked(self, key_id: bytes) -> DataKey | None:
        refresh = self._data_keys.refresh
        if refresh is None or threading.get_ident() == self._thread:
            return None  # the loop cannot wait for itself: whoever asks again is told
        asked = asyncio.run_coroutine_threadsafe(refresh(), self._loop)
        try:
            asked.result(limits.METADATA_DEADLINE_S)
        except (TocsinError, TimeoutError, CancelledError) as error:
            raise Refused(
                "storage_unavailable", f"the catalog's data keys cannot be read: {error}"
            ) from None
        return self._data_keys.find(key_id)

    async def _add_key(self) -> tuple[bytes, bytes]:
        """Make a data key, durable when this returns: (id, key)."""
        async with self._one_at_a_time:
            # What may have been written is tried again: a rotation leaves out what it knows not.
            begun = self._begun = self._begun or (
                secrets.token_bytes(KEY_ID_BYTES),
                secrets.token_bytes(DATA_KEY_BYTES),
                time.time_ns() // 1_000_000,
            )
            for _ in range(OUTDATED_MAX):
                source, master = self._source, self._source.current
                if self._is_shared:
                    master = in_use(self._data_keys.all(), source)
                row = await asyncio.to_thread(wrap, master, *begun)
                with suppress(Outdated):
                    await self._data_keys.put([row], partial(self._is_under, master, source))
                    self._begun = None
                    return begun[0], begun[1]
            raise Refused("storage_unavailable", "others rotate the master key all the time")

    def _is_under(self, master: MasterKey, source: Source, known: list[DataKey]) -> bool:
        """Whether this is the master key to wrap under. Another gateway's rotation would else leave
        out what is wrapped under the one before. Raises Refused: the catalog's is not here."""
        return not self._is_shared or in_use(known, source).key_id == master.key_id

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
            await self._check_others(key)
            return await self._change_to(key)
        if self._is_shared and new is None:
            raise Refused("invalid_request", GIVE_NEW)
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
        if self._is_shared and source.path is None:
            check_all_have({"this gateway": self._words}, local, "")
        await self._check_others(local)
        if source.path is not None:
            await asyncio.to_thread(put_first, source.path, raw, source.current.key_id)
        return await self._change_to(local)

    async def _check_others(self, key: MasterKey) -> None:
        """Raises Refused: invalid_request: a gateway that is there lacks it; metadata_unavailable:
        nobody can say."""
        if self._others is not None:
            check_all_have(await self._others(), key, self._source.provider)
        elif self._is_shared:
            raise Refused("metadata_unavailable", "the other gateways have not been heard of yet")

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
            for _ in range(OUTDATED_MAX):
                source, known = self._source, self._data_keys.all()
                if self._begun is not None:
                    known.append(await asyncio.to_thread(wrap, source.current, *self._begun))
                rows = await asyncio.to_thread(rewrapped, known, source, key)
                # Other threads open data keys meanwhile: none may find a row before its master
                # key, or a sound record is taken for a damaged one (P13). It stays known also where
                # nobody can say whether they were written.
                self._source = replace(source, former=[key, *source.former])
                with suppress(Outdated):  # another gateway made one: it would be left out
                    await self._data_keys.put(rows, partial(covers, rows))
                    self._source = using(self._source, key)
                    return len(rows)
            raise Refused("storage_unavailable", "others change the data keys all the time")

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
