"""What the tests of shards share: a library with acts of their own, settings, and a shard."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Final

from storage.redis_library import Library, joined
from storage.redis_link import Address, Reach
from storage.redis_primary import Find, by_sentinels, fixed
from storage.redis_provision import provision
from storage.redis_shard import Marks, RedisShard, Settings
from tests.servers.node import Node
from tests.servers.shipped import MASTER

MARKS: Final = Marks("history-1")
LIST: Final = "{q}:list"
ACTS: Final = """
act('note', function(keys, args) return redis.call('RPUSH', keys[1], args[1]) end)
act('find', function(keys, args) return redis.call('LRANGE', keys[1], 0, -1) end, {'no-writes'})
act('length', function(keys, args) return redis.call('LLEN', keys[1]) end)
act('say', function(keys, args) return redis.call('PUBLISH', args[1], args[2]) end)
act('fill', function(keys, args)
  for number = 1, args[1] do redis.call('SET', keys[1] .. ':' .. number, 'x') end
end)
act('refuse', function(keys, args) return refused(args[1], args[2]) end, {'allow-oom'})
act('break', function(keys, args) redis.call('RPUSH', keys[1], 'x') error('broken') end)
"""
"""`length` is as an append that finds a duplicate, and worse: it writes nothing at all."""


def library_of_tests() -> Library:
    """The shard's own functions, and ACTS."""
    folder = files("storage").joinpath("redis")
    begin, shard = (folder.joinpath(name).read_text() for name in ("begin.lua", "shard.lua"))
    return joined(begin, shard, ACTS)


def address(node: Node) -> Address:
    """Where it listens."""
    return Address(node.address, node.port)


def settings(find: Find | Node, *, wait_s: float = 1.0, silence_s: float = 2.0) -> Settings:
    """A shard's, with the library of the tests; a node is its primary for good."""
    place = fixed(address(find)) if isinstance(find, Node) else find
    return Settings(
        place, Reach(connect_s=1.0), wait_s=wait_s, silence_s=silence_s, library=library_of_tests()
    )


def sentinels(nodes: Sequence[Node]) -> Find:
    """The primary that these Sentinels name."""
    return by_sentinels([address(node) for node in nodes], MASTER, Reach(connect_s=1.0))


@asynccontextmanager
async def shard(
    given: Settings, *, replicas: int, marks: Marks = MARKS
) -> AsyncIterator[RedisShard]:
    """One that is provisioned with so many replicas."""
    await provision(replace(given, wait_s=10.0), MARKS.incarnation, replicas)
    opened = await RedisShard.open(given, marks)
    try:
        yield opened
    finally:
        await opened.close()


async def becomes(is_so: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until it is so; what it answers may have to be awaited. Raises AssertionError."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        answer = is_so()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert loop.time() - began < within_s, "it does not become so"
        await asyncio.sleep(0.005)
