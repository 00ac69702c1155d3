"""How full a storage cluster is: asked of its primaries, past what gateways hold open."""

import asyncio
from typing import NamedTuple

from push.errors import TocsinError
from storage.redis_answers import unavailable
from storage.redis_copies import fields
from storage.redis_link import packed
from storage.redis_memory import Memory, memory_of
from storage.redis_shard import Settings
from storage.redis_target import Target

ASKED_S = 3.0
"""For a whole cluster: who asks has others to ask."""


class Use(NamedTuple):
    """Of the fullest primary. `why`: it cannot be told; "": it was."""

    memory: Memory
    why: str = ""


async def use_of(target: Target) -> Use:
    """Never raises what a server may say."""
    try:
        async with asyncio.timeout(ASKED_S):
            parts = await target.parts()
            found = await asyncio.gather(*(_memory(part.settings) for part in parts))
    except TocsinError as error:
        return Use(Memory(0, 0), error.detail)
    except TimeoutError:
        return Use(Memory(0, 0), f"no answer within {ASKED_S:g} s")
    return Use(min(found, key=lambda memory: memory.free_share))


async def _memory(settings: Settings) -> Memory:
    """Raises Refused."""
    link = await settings.open()
    try:
        told = await settings.ask(link, packed("INFO", "memory"))
    finally:
        await link.close()
    if not isinstance(told, bytes):
        raise unavailable(f"{link.address}: {told}")
    return memory_of(fields(told))
