"""Connections to many servers, of which any may be away: kept while they answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from redis.exceptions import RedisError

from storage.redis.redis_link import Address, Link, Reach

REPLY_S: Final = 1.0
"""How long a server may take to be reached, in seconds, and as long again to answer."""


def address_of(place: str) -> Address:
    """Of `host:port`."""
    host, _, port = place.rpartition(":")
    return Address(host, int(port))


class Many:
    """A connection to each server, made when it is needed. One caller for each at a time."""

    def __init__(self, reach: Reach, *, reply_s: float = REPLY_S) -> None:
        self._reach = replace(reach, connect_s=reply_s)
        self._reply_s = reply_s
        self._links: dict[str, Link] = {}

    async def ask(self, place: str, commands: Sequence[bytes]) -> list[Any]:
        """The replies, errors of Redis among them.

        Raises RedisError, OSError: nobody knows what has happened.
        """
        link = self._links.get(place)
        if link is not None and not link.is_open:
            await link.close()
        if link is None or not link.is_open:
            link = self._links[place] = await self._reach.link(address_of(place))
        return await link.ask(commands, self._reply_s)

    async def told(self, place: str, commands: Sequence[bytes]) -> list[Any] | str:
        """The replies, none of which is an error; or a sentence why there are none."""
        try:
            replies = await self.ask(place, commands)
        except (RedisError, OSError) as error:
            return str(error) or "no reply in time"
        for reply in replies:
            if isinstance(reply, RedisError):
                return str(reply)
        return replies

    async def close(self) -> None:
        """Let go of all."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
