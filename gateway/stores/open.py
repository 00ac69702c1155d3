"""Storage and catalog of a broker, opened as the settings say.

sqlite:     both in files of the data folder, for this gateway alone
redis…://   both in one store, which any number of gateways share. The data folder has the files of
            this gateway: its mark of the store, its audit trail, its usage files. The rows of the
            catalog are in the storage itself, or behind the nodes of the metadata service

Reads of the storage get a deadline (`with_read_deadline`). They are answered within
READ_DEADLINE_S, or refused. So a stalled read does not hold up an owner's lines or an operator's
request for ever; its caller reads again.

Writes pass through. Publishing has its own deadline (gateway.publish.commits). A cursor write has
none, and must not have one, because its outcome would be unknown. Then it would be unknown too
whether messages that are given at most once may be pushed (R23), and a confirmed ack would get no
answer (R29). The write is kept until it is answered; meanwhile deliveries go on under the current
epoch. The tail's reads of the log have a deadline of their own, and keep their place.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from gateway.config import Config
from gateway.encryption.keyring import Keyring
from gateway.models import ClusterDescription
from gateway.settings import SQLITE
from gateway.stores.backup import MANIFEST_FILE, Backups
from gateway.stores.clusters import (
    ClusterDescriber,
    OnFatal,
    OtherClusters,
    check_shards,
    examine_all,
    explain_doubts,
    knows_all_clusters,
    open_shard,
    place_queues_on,
    places_of,
    touches_of,
)
from gateway.stores.marks import (
    STORE_MARK_FILE,
    ClusterMark,
    MarkKeeper,
    catalog_keeper,
    check_catalog_mark,
    read_store_mark,
)
from metadata.catalog import Principal
from metadata.catalog_service import CatalogService
from metadata.data_keys import DataKeys
from metadata.redis.database import CatalogShard, RedisDatabase
from metadata.row_store import RowStore
from metadata.service.client import NodeChoice, NodeClient, RemoteDatabase
from metadata.service.protocol import BODY_BYTES_MAX, HttpNodeTransport
from metadata.sqlite.catalog import FILE as CATALOG_FILE
from metadata.sqlite.catalog import SqliteCatalog
from push import limits
from push.errors import Refused
from push.rates.shared import RatePool
from push.storage_port import PLAIN, DueStore, Storage, StorageInspection
from storage.redis import target as redis_target
from storage.redis.store import RedisPool
from storage.redis.target import Target
from storage.sharded import ShardedStorage
from storage.sqlite.open import FILE as STORE_FILE
from storage.sqlite.open import OlderCopy, Touches, lock_store
from storage.sqlite.store import SqliteStorage

_RANDOM: Final = Random()
LOCK: Final = "gateway"
"""Name of the lock file of a data folder, which belongs to one gateway."""


@dataclass(slots=True)
class Stores:
    """Stores that are open. `keyring` None: nothing is sealed. `backups` None: the data is not in
    files of this machine."""

    metadata: CatalogService
    storage: Storage
    keyring: Keyring | None
    backups: Backups | None
    rest: AsyncExitStack
    """Other resources, which are closed after the storage and the catalog."""
    pool: RatePool | None = None
    """Pool by which rates are shared with other gateways. None: there are no others."""
    may_be_away: bool = False
    """Whether a part of the storage may be away without delaying a start."""
    clusters: Callable[[Principal | None], Awaitable[list[ClusterDescription]]] | None = None
    """Function that describes the storage clusters. None: there are none."""


async def open_stores(config: Config, *, on_fatal: OnFatal) -> Stores:
    """Open the storage and the catalog that the settings name.

    Raises:
        TocsinError: one of them cannot be opened; the text says what to do.
        OSError: the data folder cannot be made or used.
    """
    await asyncio.to_thread(config.data_dir.mkdir, 0o700, parents=True, exist_ok=True)
    if config.storage == SQLITE:
        return await _open_embedded(config, on_fatal)
    return await _open_shared(config, redis_target.parse_all(config.storage), on_fatal)


async def open_keyring(config: Config, data_keys: DataKeys) -> Keyring | None:
    """Open the keys that the settings name. Returns None, and raises, like Keyring.open."""
    return await Keyring.open(config.master_key_settings, data_keys, seals=config.encryption)


# --- In files --------------------------------------------------------------------------------


async def _open_embedded(config: Config, on_fatal: OnFatal) -> Stores:
    data_dir = config.data_dir
    store = data_dir / STORE_FILE
    _check_folder(data_dir, store)
    metadata = CatalogService(*await SqliteCatalog.open(data_dir / CATALOG_FILE, on_fatal=on_fatal))
    keyring = None
    try:
        mark = await asyncio.to_thread(read_store_mark, data_dir)
        keyring = await open_keyring(config, metadata.data_keys)
        storage = await SqliteStorage.open(
            store,
            free_bytes_reserve=config.free_bytes_reserve,
            on_fatal=on_fatal,
            sealer=keyring.sealer if keyring is not None else PLAIN,
            before=Touches(mark.incarnation, mark.touches.get(STORE_FILE, 0)) if mark else None,
        )
    except BaseException as error:
        if keyring is not None:
            await keyring.close()
        await metadata.close()
        if isinstance(error, OlderCopy):
            raise Refused(
                "storage_unavailable",
                f"{error.detail}. Put that one back. If it is lost, `tocsin admin restore` makes a "
                "data folder of a backup that clients recognize as an older history. To go on with "
                f"this copy, remove {data_dir / STORE_MARK_FILE}: offsets will be given out twice",
            ) from None
        raise
    incarnation = await storage.incarnation()
    keeper = MarkKeeper(data_dir, incarnation, lambda: {STORE_FILE: storage.touches})
    await keeper.start(is_needed=False)  # a broker starts on a full disk
    rest = AsyncExitStack()
    rest.push_async_callback(keeper.close)
    return Stores(metadata, storage, keyring, Backups(metadata, storage), rest)


def _check_folder(data_dir: Path, store: Path) -> None:
    if (data_dir / MANIFEST_FILE).exists():  # R30: a backup is not marked as an older history
        raise Refused(
            "storage_unavailable",
            f"{data_dir} is a backup. To make a data folder of it, run `tocsin admin restore "
            f"{data_dir} --data-dir …`",
        )
    if store.exists() and not (data_dir / CATALOG_FILE).exists():
        raise Refused(
            "storage_unavailable",
            f"{data_dir} has a {STORE_FILE}, but no {CATALOG_FILE}. Put that back, or move the "
            "store away to begin anew",
        )


# --- On Redis or Valkey ----------------------------------------------------------------------


async def _open_shared(config: Config, targets: Sequence[Target], on_fatal: OnFatal) -> Stores:
    data_dir, home = config.data_dir, targets[0]
    if (data_dir / STORE_FILE).exists():
        raise Refused(
            "storage_unavailable",
            f"{data_dir} has a {STORE_FILE}, but messages are to be kept in {home.shown}. They are "
            "not moved there automatically. Name another data folder with TOCSIN_DATA_DIR",
        )
    async with AsyncExitStack() as stack:
        lock = await asyncio.to_thread(lock_store, data_dir / LOCK)
        stack.callback(os.close, lock)
        found = await examine_all(home)
        check_shards(found, home)
        mark = await asyncio.to_thread(read_store_mark, data_dir)
        known = mark or ClusterMark(incarnation=found[0].incarnation or "")
        with explain_doubts([doubt for one in found for doubt in one.doubts]):
            shard = await open_shard(home, known, on_fatal)
            stack.push_async_callback(shard.close)
            keeper = MarkKeeper(data_dir, known.incarnation, lambda: touches_of(shard))
            metadata = await open_metadata(config, shard, stack, on_fatal)
            others = OtherClusters(targets[1:], mark, metadata, keeper)
            for other in others.shards.values():
                stack.push_async_callback(other.close)
            await keeper.start()
            stack.push_async_callback(keeper.close)
            keyring = await open_keyring(config, metadata.data_keys)
            if keyring is not None:
                stack.push_async_callback(keyring.close)
            sealer = keyring.sealer if keyring is not None else PLAIN
            places = places_of((home.cluster, shard), others, metadata, known.incarnation, sealer)
            storage = ShardedStorage(places)
            await others.wait()
            may_be_away = not knows_all_clusters(metadata, places.names) or len(targets) > 1
            shards = {home.cluster: shard, **others.shards}
            place_queues_on(targets, metadata, shards)
            for one in shards.values():
                await one.wait_subscribed()
            return Stores(
                metadata,
                storage,
                keyring,
                None,
                stack.pop_all(),
                RedisPool(shard),
                may_be_away,
                ClusterDescriber(targets, metadata, shards, has_catalog=not config.metadata_urls),
            )


# --- The catalog beside it -----------------------------------------------------------------------


async def open_metadata(
    config: Config, shard: CatalogShard, stack: AsyncExitStack, on_fatal: OnFatal
) -> CatalogService:
    """Open the catalog over the storage's `shard`, or over the metadata service. `stack` closes it.
    Beats go to the storage in any case, because the storage fences owners, and a metadata service
    that is away must not make gateways look gone.

    Raises:
        Refused: the catalog does not answer, or is not the one that was here before, or a file of
            the settings cannot be read.
        Unknown: too few copies answer in time.
        OSError: the data folder cannot be used.
    """
    database = RedisDatabase(shard)
    if not config.metadata_urls:
        metadata = CatalogService(*await RowStore.open(database, on_fatal=on_fatal))
        stack.push_async_callback(metadata.close)
        return metadata
    remote = RemoteDatabase(node_client(config, config.metadata_urls), beats=database.memberships())
    try:
        store, contents = await RowStore.open(remote, on_fatal=on_fatal)
        await asyncio.to_thread(check_catalog_mark, config.data_dir, store.place)
    except BaseException:
        await remote.close()
        raise
    metadata = CatalogService(store, contents)
    stack.push_async_callback(metadata.close)
    keeper = catalog_keeper(config.data_dir, lambda: store.place)
    await keeper.start()
    stack.push_async_callback(keeper.close)
    return metadata


def node_client(config: Config, urls: tuple[str, ...]) -> NodeClient:
    """Return a client of the metadata service's nodes at these addresses. Raises Refused."""
    context = None
    if config.metadata_ca_file is not None:
        try:
            context = ssl.create_default_context(cafile=config.metadata_ca_file)
        except OSError as error:
            raise Refused(
                "storage_unavailable",
                f"the file in TOCSIN_METADATA_CA_FILE, {config.metadata_ca_file}, cannot be used: "
                f"{error}",
            ) from None
    asker = HttpNodeTransport(config.metadata_token, context, body_bytes_max=BODY_BYTES_MAX)
    return NodeClient(asker, NodeChoice(urls, _RANDOM.random))


# --- Deadlines of reads --------------------------------------------------------------------------

READS: Final = frozenset(
    {"read", "read_each", "read_side", "offset_at"}
    | {name for name in vars(StorageInspection) if not name.startswith("_")}
)
"""Names of a storage's calls that only read, for which `with_read_deadline` sets a deadline."""
DUE_READS: Final = frozenset({"first", "find", "look", "fate", "known", "states"})
"""The same of its due stores' calls."""


def with_read_deadline(storage: Storage) -> Storage:
    """Return the same storage, whose reads have a deadline."""
    return cast(Storage, _BoundedReads(storage))


class _BoundedReads:
    """A storage whose READS have a deadline. Its other calls are passed through."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.due: DueStore = cast(DueStore, _BoundedDueReads(storage.due))

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._storage, name)
        return partial(_answer_in_time, call) if name in READS else call


class _BoundedDueReads:
    """The due stores of a storage, whose DUE_READS have a deadline."""

    def __init__(self, due: DueStore) -> None:
        self._due = due

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._due, name)
        return partial(_answer_in_time, call) if name in DUE_READS else call


async def _answer_in_time(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await a call. Raises Refused(storage_unavailable) if it is not answered in time; the call is
    cancelled."""
    try:
        async with asyncio.timeout(limits.READ_DEADLINE_S):
            return await call(*args, **kwargs)
    except TimeoutError:
        raise Refused(
            "storage_unavailable", "the storage does not answer a read: try again", 1.0
        ) from None
