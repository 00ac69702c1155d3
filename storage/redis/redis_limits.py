"""The shared rates' side of the store, on Redis or Valkey (`push.rates.pooling.Pool`).

Everything is in one slot, so that one act is for all buckets that a gateway has to speak of. Acts
are of the level `local`: what a failover takes back is debt of the last moments, and what gateways
hold they say again with the next act. No key has a TTL: a bucket is removed by the acts, when it is
empty and nobody holds anything of it, so that no clock of a server forgives what it must not.
"""

from collections.abc import Sequence
from typing import Any, Final

from push.rates.bucket import Rate
from push.rates.pooling import Ask, Grant, Reply
from storage.redis.redis_ports import Arg, Shard

GATEWAYS: Final = "{tocsin:limits}:gateways"
"""The key that the functions are given: the names of the others are made there, of its tag."""


class RedisPool:
    """See the module."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def join(self, gateway: str) -> tuple[bool, Sequence[str]]:
        """See Pool."""
        is_seated = await self._act("limits_join", [gateway]) == 1
        names: set[str] = set()
        cursor = b"0"
        while True:
            cursor, found = await self._act("limits_names", [cursor])
            names.update(name.decode() for name in found)
            if cursor == b"0":
                return is_seated, sorted(names)

    async def ask(self, gateway: str, call: int, asks: Sequence[Ask]) -> Reply | None:
        """See Pool."""
        args: list[Arg] = [gateway, call]
        for ask in asks:
            args += [ask.name, ask.rate.units, ask.rate.per_s, ask.rate.burst, *ask[2:-1]]
            args.append(int(ask.leaving))
        answer = await self._act("limits_ask", args)
        if answer[0] == 0:
            return None
        _, recalled, grants = answer
        return Reply(
            [_recalled(one.decode()) for one in recalled],
            [Grant(*numbers) for numbers in grants],
        )

    async def leave(self, gateway: str) -> None:
        """See Pool."""
        await self._act("limits_leave", [gateway])

    async def _act(self, function: str, args: Sequence[Arg]) -> Any:
        return await self._shard.act(function, [GATEWAYS], args, level="local")


def _recalled(text: str) -> tuple[str, Rate]:
    name, units, per_s, burst = text.rsplit(" ", 3)
    return name, Rate(int(units), int(per_s), int(burst))
