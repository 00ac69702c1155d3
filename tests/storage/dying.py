"""A gateway that dies when the copies of what it has appended were counted, and before it is
certified.

Usage: dying.py HOST PORT INCARNATION PARTITION
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from push.places import Durability, Partition
from push.storage_port import Lane
from storage.redis.connection import Address
from storage.redis.discovery import fixed
from storage.redis.port import Arg
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.stores import append


class Dying(RedisShard):
    """Kills its process before it certifies."""

    def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> asyncio.Future[Any]:
        if function == "certify":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(function, keys, args, level=level, lane=lane)


async def main(host: str, port: str, incarnation: str, number: str) -> None:
    """One record of two messages."""
    shard = await Dying.open(Settings(fixed(Address(host, int(port)))), Marks(incarnation))
    store = RedisStorage(shard, incarnation)
    await store.append([append(Partition("q-1", int(number)), messages=2)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
