"""The storage on real Redis or Valkey processes, which end with the tests."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from push.storage_port import PLAIN, Sealer
from storage.redis.connection import pack
from storage.redis.port import Arg
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.stores import Clock
from tests.memory import memory
from tests.servers.binaries import binaries
from tests.storage.standing import Standing, reach_of, standing

INCARNATION = "incarnation-1"


@asynccontextmanager
async def redis_process() -> AsyncIterator[Settings]:
    """Yield the settings of a provisioned server of its own, without replicas."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-redis-", dir=memory()))
    try:
        with standing(binaries()[0], "single", folder) as servers:
            await servers.empty(INCARNATION)
            (settings,) = await servers.settings()
            yield settings
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def redis_store_of(
    settings: Settings, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[RedisStorage]:
    """Yield a gateway's storage on this primary."""
    shard = await RedisShard.open(settings, Marks(INCARNATION))
    store = RedisStorage(shard, INCARNATION, wall=clock, sealer=sealer)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def redis_store(
    servers: Standing, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[RedisStorage]:
    """Yield an empty storage on these servers."""
    await servers.empty(INCARNATION)
    shard = await servers.open(INCARNATION)
    store = RedisStorage(shard, INCARNATION, wall=clock, sealer=sealer)
    try:
        yield store
    finally:
        await store.close()


async def ask(server: Settings, *command: Arg) -> Any:
    """Send one command as the operator, past all guards."""
    link = await replace(server, reach=reach_of("operator")).open()
    try:
        (answer,) = await link.ask([pack(*command)], 5)
        return answer
    finally:
        await link.close()
