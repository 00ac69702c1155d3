"""The sockets of the trial `stalled`: readers that check for silent gaps (P10), and clients that
stop reading."""

import asyncio
import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from loadtests.clients import wire
from loadtests.clients.load import ANSWER_TIMEOUT_S, Client, Shape

CREDIT: Final = 10_000
PACKET_BYTES: Final = 1_448
BUFFER_BYTES: Final = 8 * 1024
_ENCODE: Final = msgspec.json.Encoder().encode


class _Head(msgspec.Struct, gc=False):
    """A push to a reader, without its messages."""

    partition: int = -1
    offset: int = -1
    next: int = -1
    gap: list[int] | None = None


_HEAD: Final = msgspec.json.Decoder(_Head)


class Follower(Client):
    """A reader that checks that nothing is left out silently (P10)."""

    def __init__(self, name: str, queue: str) -> None:
        super().__init__(name)
        self._queue = queue
        self._stride = Shape().message_bytes + 1
        self._granted = CREDIT
        self._taken = 0
        self.given = 0
        self.gaps = 0
        self.places: dict[int, int] = {}
        """Partition → the next offset that the reader expects."""

    async def subscribe(self) -> None:
        """Subscribe to the messages that the queue receives from now on."""
        answer = await self.ask(
            type="subscribe", subscription=1, queue=self._queue, credit=CREDIT, start="latest"
        )
        for verdict in msgspec.json.decode(answer)["positions"]:
            self.places[verdict["partition"]] = verdict["from"]

    def _push(self, data: bytes) -> None:
        _, start, end = wire.open_push(data)
        head = _HEAD.decode(data[: start - 1] + b"0}")
        count = (end - start + 1) // self._stride if end > start else 0
        place = self.places.get(head.partition)
        first = head.offset
        if head.gap is not None:
            self.gaps += 1
            first = head.gap[0]
            if head.next != head.gap[1] + 1:
                self._fail(f"a gap that does not end where it goes on: {data[:200]!r}")
        elif head.next - head.offset != count:
            self._fail(f"{count} messages from {head.offset} to {head.next}: {data[:200]!r}")
        if place != first:
            self._fail(f"{self.name} was at {place} of {head.partition}: {data[:200]!r}")
        self.places[head.partition] = head.next
        self.given += count
        self._taken += count

    def _turn(self) -> None:
        if self._taken >= CREDIT // 4:
            self._granted += self._taken
            self._taken = 0
            self.wire.send(b'{"type":"credit","subscription":1,"granted":%d}' % self._granted)


class Narrow(Follower):
    """A reader on a socket with small buffers, which can stop reading."""

    async def open(
        self, url: str, token: str | None, producer: str | None = None, *, local: str | None = None
    ) -> None:
        """Connect with small packets and buffers, as over a network, and say hello. `local`: the
        address of this machine to connect from."""
        place = urlsplit(url)
        pipe = socket.socket()
        pipe.setblocking(False)
        if local is not None:
            pipe.bind((local, 0))
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        pipe.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, PACKET_BYTES)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await loop.sock_connect(pipe, (place.hostname, place.port))
            _, self.wire = await loop.create_connection(
                lambda: wire.Wire(self._message, self._turn, self._closed), sock=pipe
            )
            await self.wire.handshake(place.netloc, "/v1/ws", {})
            self.wire.send(_ENCODE({"type": "hello", "client": self.name}))
            await self._welcome

    def grant(self) -> None:
        """Do nothing, because a reader grants its credit when it subscribes."""

    def stall(self) -> None:
        """Stop reading."""
        assert self.wire.transport is not None
        self.wire.transport.pause_reading()

    def alive(self) -> None:
        """Send an unsolicited pong: a sign of life that needs no answer."""
        assert self.wire.transport is not None
        if not self.wire.closed:
            self.wire.transport.write(wire.frame(b"", wire.PONG))

    def drop(self) -> None:
        """Close the socket at once; buffered bytes are lost."""
        self._leaving = True
        if hasattr(self, "wire"):
            self.wire.abort()

    def awake(self) -> None:
        """Go on reading after `stall`."""
        assert self.wire.transport is not None
        self.wire.transport.resume_reading()


class StalledConsumer(Narrow):
    """A member of a group that never settles its messages."""

    async def subscribe(self) -> None:
        await self.ask(type="subscribe", subscription=1, queue=self._queue, group="g", credit=0)

    def grant(self) -> None:
        """Let the broker give messages, by granting credit."""
        self.wire.send(b'{"type":"credit","subscription":1,"granted":%d}' % CREDIT)
