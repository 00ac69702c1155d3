"""What a broker keeps its messages and its catalog in, opened as the settings say.

sqlite:     both in files of the data folder, for this gateway alone
redis…://   both in one store, which any number of gateways share; the data folder has what is
            this gateway's own: its mark of the store, its audit trail, its usage files
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.backup import Backups
from gateway.backup_folder import MANIFEST_FILE
from gateway.config import Config
from gateway.keyring import Keyring
from gateway.setting_values import SQLITE
from gateway.store_marks import MarkKeeper, read_mark
from metadata.inprocess import FILE as CATALOG_FILE
from metadata.inprocess import InProcessMetadata
from metadata.redis_store import RedisStore
from push.errors import Refused, TocsinError
from push.pooling import Pool
from push.ports import Storage
from push.sealing import PLAIN
from storage import redis_target
from storage.redis_cluster import ClusterShard
from storage.redis_examining import Examined, examined
from storage.redis_guard import NotOurs
from storage.redis_limits import RedisPool
from storage.redis_shard import Marks, RedisShard
from storage.redis_store import RedisStorage
from storage.redis_target import Target
from storage.sqlite import SqliteStorage
from storage.sqlite_open import FILE as STORE_FILE
from storage.sqlite_open import lock_store

OnFatal = Callable[[str], None]
LOCK: Final = "gateway"
"""A data folder is one gateway's: `gateway.lock` in it says whose."""
_LOG: Final = logging.getLogger("tocsin.storage")


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


async def open_stores(config: Config, *, on_fatal: OnFatal) -> Stores:
    """Both, for `config.storage`.

    Raises:
        TocsinError: one of them cannot be opened; the text says what to do.
        OSError: the data folder fails.
    """
    await asyncio.to_thread(config.data_dir.mkdir, 0o700, parents=True, exist_ok=True)
    if config.storage == SQLITE:
        return await _open_embedded(config, on_fatal)
    return await _open_shared(config, redis_target.parse(config.storage), on_fatal)


# --- In files --------------------------------------------------------------------------------


async def _open_embedded(config: Config, on_fatal: OnFatal) -> Stores:
    data_dir = config.data_dir
    store = data_dir / STORE_FILE
    _check_folder(data_dir, store)
    metadata = await InProcessMetadata.open(data_dir, on_fatal=on_fatal)
    keyring = None
    try:
        keyring = await Keyring.open(config, metadata.data_keys)
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


async def _open_shared(config: Config, target: Target, on_fatal: OnFatal) -> Stores:
    data_dir = config.data_dir
    if (data_dir / STORE_FILE).exists():
        raise Refused(
            "storage_unavailable",
            f"{data_dir} has a {STORE_FILE}, and messages are to be kept in {target.shown}: they "
            "are not moved there by themselves; name another data folder (TOCSIN_DATA_DIR)",
        )
    async with AsyncExitStack() as opened:
        lock = await asyncio.to_thread(lock_store, data_dir / LOCK)
        opened.callback(os.close, lock)
        found = await examine_all(target)
        check(found, target)
        mark = await asyncio.to_thread(read_mark, data_dir)
        incarnation = mark.incarnation if mark is not None else found[0].incarnation or ""
        touches = mark.touches if mark is not None else {}
        with _explained([doubt for one in found for doubt in one.doubts]):
            shard = await _open_shard(target, incarnation, touches, on_fatal)
            opened.push_async_callback(shard.close)
            keeper = MarkKeeper(data_dir, incarnation, lambda: _touches(shard))
            await keeper.start()
            opened.push_async_callback(keeper.close)
            metadata = InProcessMetadata(*await RedisStore.open(shard, on_fatal=on_fatal))
            opened.push_async_callback(metadata.close)
            keyring = await Keyring.open(config, metadata.data_keys)
            if keyring is not None:
                opened.push_async_callback(keyring.close)
            sealer = keyring.sealer if keyring is not None else PLAIN
            storage = RedisStorage(shard, incarnation, sealer=sealer)
            await shard.heard()
            return Stores(metadata, storage, keyring, None, opened.pop_all(), RedisPool(shard))


@contextmanager
def _explained(doubts: list[str]) -> Iterator[None]:
    """What fails within, while these speak against the level all, fails because of them: what is to
    be done is said, too."""
    try:
        yield
    except TocsinError as error:
        is_short = error.code.name in ("unknown", "storage_unavailable")
        if not doubts or not is_short or isinstance(error, NotOurs):
            raise
        raise Refused(
            "storage_unavailable",
            f"{error.detail}. A gateway starts when every copy has what it begins with, and now: "
            f"{'; '.join(doubts)}. Bring back what is missing; where it cannot be elected any "
            "more, say so with `tocsin admin set-replicas`",
        ) from error


async def _open_shard(
    target: Target, incarnation: str, touches: dict[str, int], on_fatal: OnFatal
) -> RedisShard | ClusterShard:
    parts = await target.parts()
    if target.kind == "cluster":
        return await ClusterShard.open(parts, incarnation, touches, on_fatal=on_fatal)
    one = parts[0].settings
    marks = Marks(incarnation, touches.get(one.key, 0))
    return await RedisShard.open(one, marks, on_fatal=on_fatal)


def _touches(shard: RedisShard | ClusterShard) -> dict[str, int]:
    return shard.touches if isinstance(shard, ClusterShard) else {shard.key: shard.touches}


async def examine_all(target: Target) -> list[Examined]:
    """Every primary with its replicas. Raises Refused(storage_unavailable): one has no primary that
    answers."""
    return list(await asyncio.gather(*(examined(part.settings) for part in await target.parts())))


def check(found: list[Examined], target: Target) -> None:
    """That the promises can be kept there. What stands in the way of the level `all` at the moment
    is only logged: it may be there in a minute.

    Raises:
        Refused: storage_unavailable: a setting breaks a promise; nobody has provisioned it.
    """
    problems = [problem for one in found for problem in one.problems]
    if problems:
        raise Refused(
            "storage_unavailable",
            f"{target.shown} cannot keep what is promised:\n  " + "\n  ".join(problems) + "\n"
            "`tocsin admin doctor` looks again; deploy/redis has files that are right",
        )
    if any(one.incarnation is None for one in found):
        raise Refused(
            "storage_unavailable",
            f"{target.shown} has no incarnation: it was emptied, or never provisioned. When it is "
            "new: `tocsin admin provision --replicas N`, where N replicas could be elected",
        )
    for one in found:
        for server in one.servers:
            if server.unasked:
                _LOG.warning("%s could not be examined: %s", server.place, server.unasked)
        for doubt in one.doubts:
            _LOG.warning("%s", doubt)
