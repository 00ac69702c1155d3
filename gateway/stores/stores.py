"""What a broker keeps its messages and its catalog in, opened as the settings say.

sqlite:     both in files of the data folder, for this gateway alone
redis…://   both in one store, which any number of gateways share; the data folder has what is
            this gateway's own: its mark of the store, its audit trail, its usage files
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config import Config
from gateway.encryption.keyring import Keyring
from gateway.facts_values import ClusterDescription
from gateway.setting_values import SQLITE
from gateway.stores.backup import Backups
from gateway.stores.backup_folder import MANIFEST_FILE
from gateway.stores.metadata_opening import open_metadata
from gateway.stores.storage_clusters import (
    Described,
    Others,
    check,
    examine_all,
    explained,
    is_told,
    open_shard,
    place_on,
    places_of,
    touches_of,
)
from gateway.stores.store_marks import ClusterMark, MarkKeeper, read_mark
from metadata.catalog import Principal
from metadata.data_keys import DataKeys
from metadata.inprocess import InProcessMetadata
from metadata.sqlite.store import FILE as CATALOG_FILE
from metadata.sqlite.threaded_store import ThreadedStore
from push.errors import Refused
from push.ports import Storage
from push.rates.pooling import Pool
from push.sealing import PLAIN
from storage.placed import PlacedStorage
from storage.redis import redis_target
from storage.redis.redis_limits import RedisPool
from storage.redis.redis_target import Target
from storage.sqlite.sqlite import SqliteStorage
from storage.sqlite.sqlite_open import FILE as STORE_FILE
from storage.sqlite.sqlite_open import lock_store

OnFatal = Callable[[str], None]
LOCK: Final = "gateway"
"""A data folder is one gateway's: `gateway.lock` in it says whose."""


@dataclass(slots=True)
class Stores:
    """What was opened. `keyring` None: nothing is sealed; `backups` None: what is kept is not in
    files of this machine."""

    metadata: InProcessMetadata
    storage: Storage
    keyring: Keyring | None
    backups: Backups | None
    rest: AsyncExitStack
    """What is closed after both."""
    pool: Pool | None = None
    """Where rates are shared with other gateways. None: there are none."""
    may_be_away: bool = False
    """Part of the storage: nobody's start waits for it."""
    clusters: Callable[[Principal | None], Awaitable[list[ClusterDescription]]] | None = None
    """Describes the storage clusters. None: there are none."""


async def open_stores(config: Config, *, on_fatal: OnFatal) -> Stores:
    """Both, for `config.storage`.

    Raises:
        TocsinError: one of them cannot be opened; the text says what to do.
        OSError: the data folder fails.
    """
    await asyncio.to_thread(config.data_dir.mkdir, 0o700, parents=True, exist_ok=True)
    if config.storage == SQLITE:
        return await _open_embedded(config, on_fatal)
    return await _open_shared(config, redis_target.parse_all(config.storage), on_fatal)


async def open_keyring(config: Config, data_keys: DataKeys) -> Keyring | None:
    """The keys that the settings name. None, raises: as Keyring.open."""
    return await Keyring.open(config.master_key_settings, data_keys, seals=config.encryption)


# --- In files --------------------------------------------------------------------------------


async def _open_embedded(config: Config, on_fatal: OnFatal) -> Stores:
    data_dir = config.data_dir
    store = data_dir / STORE_FILE
    _check_folder(data_dir, store)
    metadata = InProcessMetadata(
        *await ThreadedStore.open(data_dir / CATALOG_FILE, on_fatal=on_fatal)
    )
    keyring = None
    try:
        keyring = await open_keyring(config, metadata.data_keys)
        storage = await SqliteStorage.open(
            store,
            free_bytes_reserve=config.free_bytes_reserve,
            on_fatal=on_fatal,
            sealer=keyring.sealer if keyring is not None else PLAIN,
        )
    except BaseException:
        if keyring is not None:
            await keyring.close()
        await metadata.close()
        raise
    return Stores(metadata, storage, keyring, Backups(metadata, storage), AsyncExitStack())


def _check_folder(data_dir: Path, store: Path) -> None:
    if (data_dir / MANIFEST_FILE).exists():  # R30: of what follows it knows nothing
        raise Refused(
            "storage_unavailable",
            f"{data_dir} is a backup: `tocsin admin restore {data_dir} --data-dir …` makes a "
            "data folder of it",
        )
    if store.exists() and not (data_dir / CATALOG_FILE).exists():
        raise Refused(
            "storage_unavailable",
            f"{data_dir} has a {STORE_FILE} without its {CATALOG_FILE}: put that back, or move "
            "the store away to begin anew",
        )


# --- On Redis or Valkey ----------------------------------------------------------------------


async def _open_shared(config: Config, targets: Sequence[Target], on_fatal: OnFatal) -> Stores:
    data_dir, home = config.data_dir, targets[0]
    if (data_dir / STORE_FILE).exists():
        raise Refused(
            "storage_unavailable",
            f"{data_dir} has a {STORE_FILE}, and messages are to be kept in {home.shown}: they "
            "are not moved there by themselves; name another data folder (TOCSIN_DATA_DIR)",
        )
    async with AsyncExitStack() as opened:
        lock = await asyncio.to_thread(lock_store, data_dir / LOCK)
        opened.callback(os.close, lock)
        found = await examine_all(home)
        check(found, home)
        mark = await asyncio.to_thread(read_mark, data_dir)
        known = mark or ClusterMark(incarnation=found[0].incarnation or "")
        with explained([doubt for one in found for doubt in one.doubts]):
            shard = await open_shard(home, known, on_fatal)
            opened.push_async_callback(shard.close)
            keeper = MarkKeeper(data_dir, known.incarnation, lambda: touches_of(shard))
            metadata = await open_metadata(config, shard, opened, on_fatal)
            others = Others(targets[1:], mark, metadata, keeper)
            for other in others.shards.values():
                opened.push_async_callback(other.close)
            await keeper.start()
            opened.push_async_callback(keeper.close)
            keyring = await open_keyring(config, metadata.data_keys)
            if keyring is not None:
                opened.push_async_callback(keyring.close)
            sealer = keyring.sealer if keyring is not None else PLAIN
            places = places_of((home.cluster, shard), others, metadata, known.incarnation, sealer)
            storage = PlacedStorage(places)
            await others.wait()
            may_be_away = not is_told(metadata, places.names) or len(targets) > 1
            shards = {home.cluster: shard, **others.shards}
            place_on(targets, metadata, shards)
            for one in shards.values():
                await one.heard()
            return Stores(
                metadata, storage, keyring, None, opened.pop_all(), RedisPool(shard),
                may_be_away,
                Described(targets, metadata, shards, has_catalog=not config.metadata_urls),
            )  # fmt: skip
