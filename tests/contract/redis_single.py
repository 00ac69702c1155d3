"""The storage on one real Redis or Valkey process without replicas, which ends with the test."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from push.errors import Refused
from push.sealing import PLAIN, Sealer
from storage.redis_link import Address
from storage.redis_primary import fixed
from storage.redis_provision import provision
from storage.redis_shard import Marks, RedisShard, Settings
from storage.redis_store import RedisStorage
from tests.contract.stores import Clock

BINARY = os.environ.get("TOCSIN_TEST_REDIS") or shutil.which("redis-server")
INCARNATION = "incarnation-1"


@asynccontextmanager
async def redis_process() -> AsyncIterator[Settings]:
    """A server of its own, provisioned without replicas."""
    assert BINARY is not None, "no redis-server in PATH, and no TOCSIN_TEST_REDIS"
    folder = tempfile.mkdtemp(prefix="tocsin-redis-")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        BINARY, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    settings = Settings(fixed(Address("127.0.0.1", port)))
    try:
        while True:
            try:
                await provision(settings, INCARNATION, 0)
                break
            except Refused as refused:  # it has not begun to listen
                if process.returncode is not None:
                    raise RuntimeError(f"{BINARY} has ended") from refused
                await asyncio.sleep(0.005)
        yield settings
    finally:
        process.kill()
        await process.wait()
        shutil.rmtree(folder)


@asynccontextmanager
async def redis_store_of(
    settings: Settings, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[RedisStorage]:
    """A gateway's storage on this server."""
    shard = await RedisShard.open(settings, Marks(INCARNATION))
    store = RedisStorage(shard, INCARNATION, wall=clock, sealer=sealer)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def redis_store(
    _folder: Path, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[RedisStorage]:
    """An empty storage in a process of its own."""
    async with redis_process() as settings, redis_store_of(settings, clock, sealer=sealer) as store:
        yield store
