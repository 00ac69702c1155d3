"""Where the primary of a shard is: at one address for good, or where its Sentinels say."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from storage.redis.redis_answers import unavailable
from storage.redis.redis_link import Address, Reach, packed

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


async def replicas_known(
    sentinels: Sequence[Address], name: str, reach: Reach
) -> dict[Address, int | str]:
    """How many replicas of `name` each Sentinel knows, those included that it has not seen for
    long: it may have any of them elected. Or a sentence why it does not say.

    Source: https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
    """
    answers = await asyncio.gather(*(_counted(place, name, reach) for place in sentinels))
    return dict(zip(sentinels, answers, strict=True))


async def _counted(place: Address, name: str, reach: Reach) -> int | str:
    try:
        (master,) = await _told(place, [packed("SENTINEL", "MASTER", name)], reach)
        return int(_facts(master)[b"num-slaves"])
    except (RedisError, OSError, ValueError) as error:
        return f"{place}: {str(error) or 'no reply in time'}"


async def _told(place: Address, commands: Sequence[bytes], reach: Reach) -> list[Any]:
    async with asyncio.timeout(SENTINEL_S):
        link = await reach.link(place)
        try:
            return await link.ask(commands, SENTINEL_S)
        finally:
            await link.close()


async def _asked(place: Address, name: str, reach: Reach) -> tuple[int, Address] | str:
    """(configuration epoch, the primary's address), or a sentence why there is none."""
    try:
        commands = [packed("SENTINEL", word, name) for word in WORDS]
        return _named(*await _told(place, commands, reach))
    except (RedisError, OSError, ValueError) as error:
        return f"{place}: {str(error) or 'no reply in time'}"


def _named(master: Any, named: Any) -> tuple[int, Address]:
    """Of the replies to WORDS. Raises what an error is, and ValueError for another form."""
    if isinstance(named, RedisError):
        raise named
    facts = _facts(master)
    try:
        host, port = named
        return int(facts[b"config-epoch"]), Address(host.decode(), int(port))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not understood: {error}") from None


def _facts(master: Any) -> dict[bytes, bytes]:
    """A reply to SENTINEL MASTER as a mapping. Raises as `_named`."""
    if isinstance(master, RedisError):
        raise master
    try:
        return dict(zip(master[::2], master[1::2], strict=True))
    except TypeError as error:
        raise ValueError(f"not understood: {error}") from None
