"""How full a storage cluster is: asked of its primaries, past what gateways hold open."""

import asyncio
from typing import NamedTuple

from push.errors import TocsinError
from storage.redis.redis_answers import unavailable
from storage.redis.redis_copies import fields
from storage.redis.redis_link import packed
from storage.redis.redis_memory import Memory, memory_of
from storage.redis.redis_shard import Settings
from storage.redis.redis_target import Target

ASKED_S = 3.0
"""For a whole cluster: who asks has others to ask."""


class Use(NamedTuple):
    """Of the fullest primary. `why`: it cannot be told; "": it was."""

    memory: Memory
    why: str = ""


async def use_of(target: Target, incarnation: str | None = None) -> Use:
    """Never raises what a server may say. `incarnation`: the store that it is to be; None: any."""
    try:
        async with asyncio.timeout(ASKED_S):
            parts = await target.parts()
            found = await asyncio.gather(*(_memory(part.settings, incarnation) for part in parts))
    except TocsinError as error:
        return Use(Memory(0, 0), error.detail)
    except TimeoutError:
        return Use(Memory(0, 0), f"no answer within {ASKED_S:g} s")
    return Use(min(found, key=lambda memory: memory.free_share))


async def _memory(settings: Settings, incarnation: str | None) -> Memory:
    """Raises Refused."""
    link = await settings.open()
    try:
        told = await settings.ask(link, packed("INFO", "memory"))
        there = await settings.ask(link, packed("HGET", settings.key, "incarnation"))
    finally:
        await link.close()
    if not isinstance(told, bytes):
        raise unavailable(f"{link.address}: {told}")
    if incarnation is not None and there != incarnation.encode():
        raise unavailable(f"{link.address} is not the store that it was: nothing is kept there")
    return memory_of(fields(told))
