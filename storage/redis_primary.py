"""Where the primary of a shard is: at one address for good, or where its Sentinels say."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from storage.redis_answers import unavailable
from storage.redis_link import Address, Reach, packed

Find = Callable[[], Awaitable[Address]]
"""Looks up the primary, anew at each call. Raises Refused(storage_unavailable)."""
WORDS: Final = ("MASTER", "GET-MASTER-ADDR-BY-NAME")
"""What a Sentinel is asked: the epoch and the address. MASTER still tells the address of before
when the next primary has been promoted, and its epoch has been raised."""
SENTINEL_S: Final = 1.0
"""How long one Sentinel may take, in seconds; all are asked at once."""


def fixed(address: Address) -> Find:
    """The primary is here and nowhere else: nothing takes its place when it dies."""

    async def find() -> Address:
        return address

    return find


def by_sentinels(sentinels: Sequence[Address], name: str, reach: Reach) -> Find:
    """The primary as the Sentinels know it under `name`; `reach`: how they are reached.

    All are asked. Of those that answer, the one with the highest configuration epoch is believed: a
    Sentinel that was cut off still names the primary of before, and lower epochs.
    Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/
    """

    async def find() -> Address:
        answers = await asyncio.gather(*(_asked(place, name, reach) for place in sentinels))
        known = [answer for answer in answers if not isinstance(answer, str)]
        if not known:
            why = "; ".join(answer for answer in answers if isinstance(answer, str))
            raise unavailable(f"no Sentinel names the primary {name}: {why}")
        return max(known)[1]

    return find


async def _asked(place: Address, name: str, reach: Reach) -> tuple[int, Address] | str:
    """(configuration epoch, the primary's address), or a sentence why there is none."""
    try:
        async with asyncio.timeout(SENTINEL_S):
            link = await reach.link(place)
            try:
                commands = [packed("SENTINEL", word, name) for word in WORDS]
                master, named = await link.ask(commands, SENTINEL_S)
            finally:
                await link.close()
        return _named(master, named)
    except (RedisError, OSError, ValueError) as error:
        return f"{place}: {error or 'no reply in time'}"


def _named(master: Any, named: Any) -> tuple[int, Address]:
    """Of the replies to WORDS. Raises what an error is, and ValueError for another form."""
    for reply in (master, named):
        if isinstance(reply, RedisError):
            raise reply
    try:
        facts = dict(zip(master[::2], master[1::2], strict=True))
        host, port = named
        return int(facts[b"config-epoch"]), Address(host.decode(), int(port))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not understood: {error}") from None
