"""One connection to a server of Redis or Valkey: bytes out, replies in, never two askers mixed up.

redis-py opens it (names, TLS, AUTH) and parses; nothing else of redis-py is used. Its clients take
any pooled connection for a WAIT and send a command again by themselves, and its connections come
back silently when they are broken: each of these makes a receipt out of nothing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hiredis import pack_command
from redis import asyncio as aioredis
from redis.exceptions import AuthenticationError, BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as Broken

from storage.redis.redis_ports import Arg

BACKOFF_BASE_S: Final = 0.05
"""Pause before a connection that failed is made anew; it doubles with each failure."""
BACKOFF_MAX_S: Final = 2.0


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """How servers are reached. `ca_file`: the certificates that vouch for them, as PEM; with it,
    TLS is spoken and names are checked. `connect_s`: seconds for a connection to stand."""

    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    connect_s: float = 2.0

    async def link(self, address: Address) -> "Link":
        """A connection of its own. Raises RedisError, OSError or TimeoutError: there is none."""
        host, port = address
        connection: aioredis.Connection
        if self.ca_file is None:
            connection = aioredis.Connection(
                host=host,
                port=port,
                username=self.username,
                password=self.password,
                socket_keepalive=True,
            )
        else:
            connection = aioredis.SSLConnection(
                host=host,
                port=port,
                username=self.username,
                password=self.password,
                socket_keepalive=True,
                ssl_ca_certs=self.ca_file,
                ssl_certfile=self.cert_file,
                ssl_keyfile=self.key_file,
            )
        try:
            async with asyncio.timeout(self.connect_s):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return Link(connection, address)


def packed(*words: Arg) -> bytes:
    """A command as it is sent."""
    done: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub names one word only
    return done


class Link:
    """A connection that stands. Once anything about it has failed it is closed and stays so: a late
    reply must never be taken for another's (CVE-2023-28858)."""

    def __init__(self, connection: aioredis.Connection, address: Address) -> None:
        self._connection = connection
        self.address = address
        self.replicas = 0
        """How many replicas could be elected, as the shard said when the link was made."""
        self.out: frozenset[str] = frozenset()
        """Which are not counted among them, as the shard said then."""
        self.unready = 0
        """How many of them confirm what they do not have on their disks yet."""
        self.syncs = ""
        """The primary's count of whole syncs when the replicas were asked for that."""
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it still stands, as far as this side can know. One whose server has ended it
        meanwhile does not, and nothing of what would be sent over it could have happened."""
        if self._is_closed:
            return False
        reader = self._connection._reader  # of redis-py, which asks it nothing between replies
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def ask(self, commands: Sequence[bytes], timeout_s: float) -> list[Any]:
        """Send them in one go; their replies in order, errors of Redis as values among them.

        Raises RedisError, OSError or TimeoutError: the connection is closed, and nobody knows what
        has happened. One caller at a time.
        """
        if not self.is_open:
            raise Broken("the connection is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.send_packed_command(commands, check_health=False)
                return [await self.hear() for _ in commands]
        except BaseException:
            await self.close()
            raise

    async def send(self, command: bytes) -> None:
        """For a connection that listens. Raises as `ask` does."""
        if not self.is_open:
            raise Broken("the connection is closed")
        await self._connection.send_packed_command([command], check_health=False)

    async def hear(self) -> Any:
        """The next reply, whenever it comes. An error of Redis is a value, that of a connection is
        raised."""
        try:
            return await self._connection.read_response(
                disable_decoding=True, disconnect_on_error=False
            )
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            return error.with_traceback(None)

    async def close(self) -> None:
        """Let go of the socket at once, without a word."""
        self._is_closed = True
        await self._connection.disconnect(nowait=True)
