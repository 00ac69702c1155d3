"""What the tests of shards share: a library with acts of their own, settings, and a shard."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

import pytest

from push.errors import Unknown
from push.places import Durability
from storage.redis.connection import Address, Reach
from storage.redis.discovery import Find, by_sentinels, fixed
from storage.redis.library import Library, joined
from storage.redis.ops.provision import provision
from storage.redis.port import OnMessage, ShardHealth
from storage.redis.shard import Marks, RedisShard, Settings
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
    folder = files("storage.redis").joinpath("lua")
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
    """One that is provisioned with this many replicas."""
    await provision(replace(given, wait_s=10.0), MARKS.incarnation, replicas)
    opened = await RedisShard.open(given, marks)
    try:
        yield opened
    finally:
        await opened.close()


@contextmanager
def answers_are_lost(function: str) -> Iterator[None]:
    """Inside, every act of this function happens, through whichever shard, and nobody is told."""
    act = RedisShard.act

    async def lost(self: RedisShard, name: str, *args: Any, **named: Any) -> Any:
        answer = await act(self, name, *args, **named)
        if name == function:
            raise Unknown("the connection was lost")
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RedisShard, "act", lost)
        yield


class QuietShard:
    """What every shard has that a test makes up, and that is not what it is about."""

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        """Nobody ever tells anything."""

    def has_room(self, key: str | None = None) -> bool:
        """Always."""
        return True

    def copies(self, level: Durability) -> int:
        """One."""
        return 1

    def standing(self) -> ShardHealth:
        """All is well."""
        return ShardHealth((), {})

    async def close(self) -> None:
        """There is nothing to close."""
