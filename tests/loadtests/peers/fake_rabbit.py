"""So much of RabbitMQ's Web-STOMP as the benchmark's clients speak to: what they say must be right,
and what goes wrong is kept in `wrong`."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from zlib import crc32

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from loadtests.peers.stomp import EXCHANGE, FEED, PARTITIONS
from loadtests.peers.stomp_wire import Frame, frames


class FakeRabbit:
    """A broker, of any number of connections."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.published = 0
        self.acknowledged: set[bytes] = set()
        self.refusing = False
        """Whether a message is answered by an ERROR."""
        self.url = ""
        self._sequence = itertools.count(1)
        self._queues: dict[bytes, tuple[ServerConnection, bytes]] = {}
        self._readers: list[ServerConnection] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeRabbit"]:
        """Listen on a free port of loopback."""
        protocols = [Subprotocol("v12.stomp")]
        async with serve(
            self._talk, "127.0.0.1", 0, max_size=None, subprotocols=protocols
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _talk(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        if socket.request.path != "/ws":
            self.wrong.append(socket.request.path)
        async for message in socket:
            assert isinstance(message, str)
            for one in frames(message.encode()):
                await self._hear(socket, one)

    async def _hear(self, socket: ServerConnection, one: Frame) -> None:
        if one.command == b"CONNECT":
            if (one.header(b"login"), one.header(b"passcode")) != (b"bench", b"secret"):
                await socket.send("ERROR\nmessage:Bad CONNECT\n\nAccess refused\0\n")
                return
            await socket.send("CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0\n")
        elif one.command == b"SUBSCRIBE":
            self._subscribe(socket, one)
        elif one.command == b"SEND":
            await self._store(one)
        elif one.command == b"ACK":
            if one.header(b"id") in self.acknowledged:
                self.wrong.append(f"acknowledged twice: {one}")
            self.acknowledged.add(one.header(b"id"))
        else:
            self.wrong.append(str(one))
        if self.refusing and one.command == b"SEND":
            await socket.send("ERROR\nmessage:not_found\n\nno exchange\0\n")
        elif receipt := one.header(b"receipt"):
            await socket.send(f"RECEIPT\nreceipt-id:{receipt.decode()}\n\n\0\n")

    def _subscribe(self, socket: ServerConnection, one: Frame) -> None:
        destination = one.header(b"destination")
        if destination == f"/exchange/{FEED}".encode():
            self._readers.append(socket)
        elif one.header(b"ack") == b"client-individual" and one.header(b"prefetch-count"):
            self._queues[destination] = socket, one.header(b"id")
        else:
            self.wrong.append(str(one))

    async def _store(self, one: Frame) -> None:
        self.published += 1
        _, _, exchange, key = one.header(b"destination").split(b"/")
        if one.header(b"persistent") != b"true" or self.refusing:
            return
        if exchange == FEED.encode():
            for reader in self._readers:
                await _deliver(reader, b"1", b"", one.body)
            return
        queue = b"/amq/queue/%b.%d" % (EXCHANGE.encode(), crc32(key) % PARTITIONS)
        socket, subscription = self._queues[queue]
        # An id with a colon in it, escaped as RabbitMQ does.
        await _deliver(socket, subscription, b"T_1@@session\\c%d" % next(self._sequence), one.body)


async def _deliver(socket: ServerConnection, subscription: bytes, ack: bytes, body: bytes) -> None:
    said = b"MESSAGE\nsubscription:%b\n" % subscription
    if ack:
        said += b"ack:%b\n" % ack
    said += b"redelivered:false\npersistent:1\ncontent-length:%d\n\n%b\0\n" % (len(body), body)
    await socket.send(said.decode())
