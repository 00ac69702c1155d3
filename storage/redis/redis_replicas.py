"""Whether the replicas of a shard would have on their disks what they confirm (R28).

A replica that was synced anew confirms what it receives, while its append-only file is still being
written for the first time: after a power loss it has nothing of it. Its primary does not know; so
each replica is asked itself whenever the primary's count of whole syncs has grown.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from redis.exceptions import RedisError

from storage.redis.redis_copies import STATE, fields
from storage.redis.redis_link import Address, Reach, packed


@dataclass(frozen=True, slots=True)
class Readiness:
    """What replicas say of themselves."""

    unready: tuple[str, ...]
    """A sentence for each that is known not to have everything on its disk."""
    unasked: tuple[str, ...]
    """A sentence for each that could not be asked."""


def addresses_of(replication: Mapping[str, str]) -> list[Address]:
    """Where the replicas that INFO replication lists say that they listen."""
    found = []
    for name, text in replication.items():
        if name.startswith("slave") and STATE in text:
            facts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            found.append(Address(facts["ip"], int(facts["port"])))
    return found


def unready(told: Mapping[str, str]) -> str:
    """Why a replica is not to be counted, by its INFO persistence; "": it is.

    Source: https://redis.io/docs/latest/commands/info/
    """
    if told.get("loading") != "0":
        return "it is loading its data"
    if told.get("aof_enabled") != "1":
        return "it has no append-only file"
    if told.get("aof_rewrite_in_progress") != "0" or told.get("aof_rewrite_scheduled") != "0":
        return "its append-only file is being rewritten"
    if told.get("aof_last_bgrewrite_status") != "ok":
        return "its append-only file could not be rewritten"
    return ""


async def readiness(replication: Mapping[str, str], reach: Reach, timeout_s: float) -> Readiness:
    """Ask all that INFO replication lists, at once, each for at most `timeout_s` seconds."""
    places = addresses_of(replication)
    told = await asyncio.gather(*(_asked(place, reach, timeout_s) for place in places))
    pairs = list(zip(places, told, strict=True))
    return Readiness(
        tuple(f"{place}: {why}" for place, (asked, why) in pairs if asked and why),
        tuple(f"{place}: {why}" for place, (asked, why) in pairs if not asked),
    )


async def _asked(place: Address, reach: Reach, timeout_s: float) -> tuple[bool, str]:
    """(whether it could be asked, why it is not ready or could not be asked)."""
    try:
        async with asyncio.timeout(timeout_s):
            link = await reach.link(place)
            try:
                (info,) = await link.ask([packed("INFO", "persistence")], timeout_s)
            finally:
                await link.close()
    except (RedisError, OSError) as error:
        return False, str(error) or "no reply in time"
    return (True, unready(fields(info))) if isinstance(info, bytes) else (False, str(info))
