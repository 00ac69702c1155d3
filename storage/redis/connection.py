"""Connections to servers of Redis or Valkey: bytes out, replies in, never two callers mixed up.

redis-py opens a connection (names, TLS, AUTH) and parses; nothing else of redis-py is used. Its
clients take any pooled connection for a WAIT and send a command again by themselves. Its
connections come back silently when they are broken. Each of these makes a receipt out of nothing.

    Connection       one connection, closed for good once anything about it has failed
    ReadPool         the connections for looks at a shard, which change nothing
    Subscriber       the connection that receives what is published on channels of one prefix
    ConnectionCache  a connection to each of many servers, of which any may be away
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import random
from typing import Any, Final, NamedTuple

from hiredis import pack_command
from redis import asyncio as aioredis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Broken

from push.errors import Refused, TocsinError
from push.retry import backoff_s
from storage.redis.answers import refusal, unavailable
from storage.redis.port import Arg, OnMessage

BACKOFF_BASE_S: Final = 0.05
"""Longest pause, in seconds, before the first new try after a connection failed. The bound doubles
with each further failure, up to BACKOFF_MAX_S; the pause is drawn at random below it."""
BACKOFF_MAX_S: Final = 2.0


class Address(NamedTuple):
    """The place where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """Parameters by which servers are reached. `ca_file`: the certificates that vouch for them, as
    PEM; with it, TLS is spoken and names are checked. `connect_s`: seconds in which a connection
    has to be made."""

    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    connect_s: float = 2.0

    async def link(self, address: Address) -> "Connection":
        """Make a connection. Raises RedisError, OSError or TimeoutError if none could be made."""
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
        return Connection(connection, address)


def pack(*words: Arg) -> bytes:
    """Return a command in the form that is sent."""
    done: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub names one word only
    return done


class Connection:
    """An established connection. Once anything about it has failed it is closed and stays so,
    because a late reply must never be taken for another's (CVE-2023-28858)."""

    def __init__(self, connection: aioredis.Connection, address: Address) -> None:
        self._connection = connection
        self.address = address
        self.replicas = 0
        """Number of replicas that could be elected, as the shard said last over this link, when it
        was checked, or at the end of a group of acts."""
        self.out: frozenset[str] = frozenset()
        """Places of replicas that are not counted, as the shard said when the link was last
        checked."""
        self.unready = 0
        """Number of replicas that, when the link was made, did not have on their disks what they
        confirm. Their confirmations are not counted."""
        self.syncs = ""
        """The primary's count of whole syncs (`sync_full`) when the link was made and the replicas
        were queried."""
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether the connection is still open, as far as this side can know. If not, nothing that
        would be sent now could happen."""
        if self._is_closed:
            return False
        reader = self._connection._reader  # of redis-py, which does not check it between replies
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def ask(self, commands: Sequence[bytes], timeout_s: float) -> list[Any]:
        """Send commands in one go, and return their replies in order, errors of Redis as values
        among them.

        Raises RedisError, OSError or TimeoutError. The connection is closed then, and the outcome
        is unknown, unless it was closed before and nothing was sent. One caller at a time.
        """
        if not self.is_open:
            raise Broken("the connection is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.send_packed_command(commands, check_health=False)
                return [await self.receive() for _ in commands]
        except BaseException:
            await self.close()
            raise

    async def send(self, command: bytes) -> None:
        """Send a command without waiting for a reply; `receive` returns that. Raises RedisError or
        OSError."""
        if not self.is_open:
            raise Broken("the connection is closed")
        await self._connection.send_packed_command([command], check_health=False)

    async def receive(self) -> Any:
        """Return the next reply, whenever it comes. An error of Redis is a value, that of a
        connection is raised."""
        try:
            return await self._connection.read_response(
                disable_decoding=True, disconnect_on_error=False
            )
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            return error.with_traceback(None)

    async def close(self) -> None:
        """Close the socket at once, without a word."""
        self._is_closed = True
        await self._connection.disconnect(nowait=True)


LINKS: Final = 8
"""Number of connections for looks. Callers that find all of them taken wait."""
QUIET_S: Final = 10.0
"""Seconds without a message after which a subscriber sends PING, and after as many more without a
reply connects anew."""
Connect = Callable[[], Awaitable[Connection]]


class ReadPool:
    """Pool of connections for looks, acts that change nothing. `connect` makes a checked link or
    raises Refused."""

    def __init__(self, connect: Connect, silence_s: float) -> None:
        self._connect = connect
        self._silence_s = silence_s
        self._slots = asyncio.Semaphore(LINKS)
        self._idle: list[Connection] = []
        self._moves = 0
        """Number of times that the primary has been found elsewhere."""
        self._closed = False

    async def look(self, command: bytes) -> Any:
        """Send a command on a connection that no other look uses, and return the reply. If an idle
        connection turns out to be broken, the command is sent again on another one, at last on a
        new one, because a look changes nothing. Raises the error of the reply, and Refused."""
        async with self._slots:
            while True:
                if self._closed:
                    raise unavailable("the storage is closed")
                was_idle, moves = bool(self._idle), self._moves
                link = self._idle.pop() if self._idle else await self._connect()
                if not link.is_open:  # its server has closed it, so that was no attempt
                    await link.close()
                    continue
                try:
                    (reply,) = await link.ask([command], self._silence_s)
                except (RedisError, OSError) as error:
                    if was_idle:
                        continue
                    raise unavailable(
                        f"{link.address}: {str(error) or 'no reply in time'}"
                    ) from None
                break
            if isinstance(reply, RedisError):
                await link.close()
                raise _look_error(reply)
            if self._closed or moves != self._moves:
                await link.close()
            else:
                self._idle.append(link)
            return reply

    async def renew(self) -> None:
        """Close idle connections, and the others when they are done, because the primary is
        elsewhere."""
        self._moves += 1
        while self._idle:
            await self._idle.pop().close()

    async def close(self) -> None:
        """Refuse further looks, and close the connections: idle ones now, the others when their
        looks have ended."""
        self._closed = True
        await self.renew()


def _look_error(reply: RedisError) -> TocsinError:
    """Return the error of a look. It is never Unknown, because a look changes nothing."""
    return refusal(reply) or unavailable(str(reply))


class Subscriber:
    """Receiver of messages on the channels with one prefix, which connects again after each failure
    until it is closed."""

    def __init__(self, connect: Connect, prefix: str, heard: OnMessage) -> None:
        self._connect = connect
        self._pattern = pattern_of(prefix)
        self._on_message = heard
        self.is_subscribed = asyncio.Event()
        """Set while the subscription is active. Messages published now are received."""
        self._link: Connection | None = None
        self._task = asyncio.create_task(self._run(), name="shard messages")

    async def renew(self) -> None:
        """Subscribe anew, because the primary is elsewhere."""
        if self._link is not None:
            await self._link.close()

    async def close(self) -> None:
        """Receive no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                self._link = link = await self._connect()
                failures = 0
                try:
                    await self._listen(link)
                finally:
                    self.is_subscribed.clear()
                    self._link = None
                    await link.close()
            except (Refused, RedisError, OSError):
                failures += 1
                await asyncio.sleep(
                    backoff_s(failures, base_s=BACKOFF_BASE_S, max_s=BACKOFF_MAX_S, draw=random())
                )

    async def _listen(self, link: Connection) -> None:
        await link.send(pack("PSUBSCRIBE", self._pattern))
        asked = False
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    message = await link.receive()
            except TimeoutError:
                if asked:
                    raise
                asked = True
                await link.send(pack("PING"))
                continue
            asked = False
            if isinstance(message, RedisError):
                raise message
            match message:
                case [b"psubscribe", *_]:
                    self.is_subscribed.set()
                case [b"pmessage", _, channel, content]:
                    self._on_message(channel, content)


def pattern_of(prefix: str) -> str:
    """Return the glob that matches names that begin with `prefix`, whatever characters it has."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in prefix) + "*"


REPLY_S: Final = 1.0
"""Longest time for connecting to a server, in seconds, and again the longest for its answer."""


def address_of(place: str) -> Address:
    """Decode `host:port`."""
    host, _, port = place.rpartition(":")
    return Address(host, int(port))


class ConnectionCache:
    """A connection to each server, made when it is needed. One caller at a time for each."""

    def __init__(self, reach: Reach, *, reply_s: float = REPLY_S) -> None:
        self._reach = replace(reach, connect_s=reply_s)
        self._reply_s = reply_s
        self._links: dict[str, Connection] = {}

    async def ask(self, place: str, commands: Sequence[bytes]) -> list[Any]:
        """Return the replies, errors of Redis among them.

        Raises RedisError or OSError if no connection could be made, or the replies did not come;
        then the outcome is unknown.
        """
        link = self._links.get(place)
        if link is not None and not link.is_open:
            await link.close()
        if link is None or not link.is_open:
            link = self._links[place] = await self._reach.link(address_of(place))
        return await link.ask(commands, self._reply_s)

    async def try_ask(self, place: str, commands: Sequence[bytes]) -> list[Any] | str:
        """Return the replies, none of which is an error, or a sentence why there are none."""
        try:
            replies = await self.ask(place, commands)
        except (RedisError, OSError) as error:
            return str(error) or "no reply in time"
        for reply in replies:
            if isinstance(reply, RedisError):
                return str(reply)
        return replies

    async def close(self) -> None:
        """Close all connections."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
