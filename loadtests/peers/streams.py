"""Clients that only load Redis Streams, in Redis or Valkey, over TCP, because they have no
WebSocket.

A queue is a stream for each partition; clients choose the stream by their own hash of the key. A
group has one consumer for each stream, so a key stays in order. A message is confirmed by XADD's
answer, and is removed when it is acknowledged (XACK, XDEL). A consumer reads by a blocking
XREADGROUP, and therefore acknowledges over another connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, cast

import hiredis

from loadtests.bench.adapter import GROUP
from loadtests.clients.load import ANSWER_TIMEOUT_S, LoadFailed
from loadtests.histogram import Histogram
from loadtests.peers.clients import Bodies, Sending, Settling
from loadtests.peers.streams_wire import BODY, KEY, Broken, entries, packed, partition_of

FEEDS: Final = ("fanout5k", "idle")
"""The queues of the scenarios with readers: one stream each."""
COUNT: Final = 500
"""The most messages of each stream that one read returns."""
WAIT_MS: Final = 5000
FEED_LENGTH: Final = 1000
"""Approximate number of messages of a feed that are kept."""


class Link(asyncio.Protocol):
    """A connection. `on_answer` receives every answer, in the order of the commands. `on_turn`
    follows once after all answers of one read."""

    def __init__(
        self,
        on_answer: Callable[[object], object],
        on_turn: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._on_answer = on_answer
        self._on_turn = on_turn
        self._on_closed = on_closed
        self._reader = hiredis.Reader(notEnoughData=self)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls,
        port: int,
        on_answer: Callable[[object], object],
        on_turn: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> "Link":
        """Connect to this machine. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            _, link = await loop.create_connection(
                lambda: cls(on_answer, on_turn, on_closed), "127.0.0.1", port
            )
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not self:
            self._on_answer(answer)
        self._on_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()

    def send(self, data: bytes) -> None:
        """Send commands. On a closed connection nothing happens."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close after the buffered bytes are sent."""
        if self._transport is not None:
            self._transport.close()


def _nothing() -> None:
    pass


class Client:
    """The connections of a client, and their first failure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: LoadFailed | None = None
        self._links: list[Link] = []
        self._asked: deque[asyncio.Future[object]] = deque()
        self._leaving = False

    async def link(
        self,
        port: int,
        on_answer: Callable[[object], object],
        on_turn: Callable[[], None] = _nothing,
    ) -> Link:
        """Open another connection."""

        def guarded(answer: object) -> None:
            try:
                on_answer(answer)
            except (Broken, LoadFailed) as error:
                self.fail(f"{self.name}: {error}")

        link = await Link.open(port, guarded, on_turn, self._closed)
        self._links.append(link)
        return link

    async def ask(self, link: Link, *words: bytes | str | int) -> object:
        """Send one command and return its answer. The link's `on_answer` must call `was_asked_for`.
        Raises LoadFailed if the answer is an error."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        link.send(packed(*words))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await future
        if isinstance(answer, Exception):
            raise LoadFailed(f"{words[:2]} was answered {answer}")
        return answer

    def was_asked_for(self, answer: object) -> bool:
        """Whether this was the answer to an `ask`; if so, hand it over."""
        if not self._asked:
            return False
        future = self._asked.popleft()
        if not future.done():
            future.set_result(answer)
        return True

    def close(self) -> None:
        """Disconnect."""
        self._leaving = True
        for link in self._links:
            link.close()

    def fail(self, why: str) -> None:
        """Keep this failure if it is the first, and end all waiting calls of `ask` with the first
        one."""
        self.failure = self.failure or LoadFailed(why)
        for future in self._asked:
            if not future.done():
                future.set_exception(self.failure)

    def _closed(self) -> None:
        if not self._leaving:
            self.fail(f"the server closed a connection of {self.name}")


class Producer(Sending, Client):
    """A producer that keeps many messages unconfirmed at a time."""

    def __init__(
        self,
        name: str,
        stream_of: Callable[[bytes], str],
        bodies: Bodies,
        messages: int,
        random: Random,
        *,
        kept: int = 0,
    ) -> None:
        """`stream_of(key)`: the stream of a key. `messages`: number of XADD that are sent together.
        `kept`: approximate number of messages that the stream keeps; 0 for all."""
        Client.__init__(self, name)

        def around(key: bytes) -> tuple[bytes, bytes]:
            mark = b"\1" * bodies.body_bytes
            bound: tuple[str | int, ...] = ("MAXLEN", "~", kept) if kept else ()
            command = packed("XADD", stream_of(key), *bound, "*", KEY, key, BODY, mark)
            before, _, behind = command.partition(mark)
            return before, behind

        Sending.__init__(self, bodies, messages, random, around)
        self._link: Link

    def _send(self, blocks: list[bytes]) -> None:
        self._link.send(b"".join(blocks))

    async def open(self, port: int) -> None:
        """Connect."""
        self._link = await self.link(port, self._added, self._turn)

    def _added(self, answer: object) -> None:
        if not isinstance(answer, bytes):
            raise LoadFailed(f"a message was refused: {answer!r:.200}")
        self._confirmed()


class Consumer(Settling[tuple[bytes, bytes]], Client):
    """A consumer of the group, the only one for its streams. It acknowledges every message. A read
    of new messages brings no message twice."""

    def __init__(self, name: str, bodies: Bodies, histogram: Histogram, random: Random) -> None:
        Client.__init__(self, name)
        Settling.__init__(self, bodies, histogram, random)
        self._acking: deque[tuple[int, bool]] = deque()
        self._read = b""
        self._reading: Link
        self._writing: Link

    async def open(self, port: int, streams: Sequence[str]) -> None:
        """Connect, and begin to read."""
        self._writing = await self.link(port, self._confirmed, self._told)
        self._reading = await self.link(port, self._given, self._acks.turn)
        self._read = packed(
            "XREADGROUP", "GROUP", GROUP, self.name, "COUNT", COUNT, "BLOCK", WAIT_MS,
            "STREAMS", *streams, *[">"] * len(streams),
        )  # fmt: skip
        self._reading.send(self._read)

    def close(self) -> None:
        """Disconnect, and acknowledge nothing more."""
        self._acks.stop()
        super().close()

    def _given(self, answer: object) -> None:
        self._reading.send(self._read)
        given = entries(answer)
        self._bodies.record([entry.body for entry in given], self._histogram)
        self.delivered += len(given)
        self._acks.add([(entry.stream, entry.identity) for entry in given])

    def _acknowledge(self, due: list[tuple[bytes, bytes]]) -> None:
        streams: dict[bytes, list[bytes]] = {}
        for stream, identity in due:
            streams.setdefault(stream, []).append(identity)
        out = []
        for stream, identities in streams.items():
            out += [packed("XACK", stream, GROUP, *identities), packed("XDEL", stream, *identities)]
            self._acking += [(len(identities), False), (len(identities), True)]
        self._writing.send(b"".join(out))

    def _confirmed(self, answer: object) -> None:
        """Handle an answer to XACK or XDEL. XDEL's comes second and is the one that counts."""
        count, is_last = self._acking.popleft() if self._acking else (-1, False)
        if answer != count:
            raise LoadFailed(f"an acknowledgement of {count} was answered {answer!r:.200}")
        if is_last:
            self.settled += count


class Reader(Client):
    """A reader of a stream's new messages."""

    def __init__(self, name: str, bodies: Bodies, on_given: Callable[[int, int], None]) -> None:
        super().__init__(name)
        self._bodies = bodies
        self._on_given = on_given
        self._stream = ""
        self._link: Link

    async def open(self, port: int, stream: str) -> None:
        """Connect, find the end of the stream, and read on from there."""
        self._stream = stream
        self._link = await self.link(port, self._given)
        last = await self.ask(self._link, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        self._go_on(last[0][0] if isinstance(last, list) and last else b"0-0")

    def _go_on(self, place: bytes) -> None:
        read = ("XREAD", "COUNT", COUNT, "BLOCK", 0, "STREAMS", self._stream, place)
        self._link.send(packed(*read))

    def _given(self, answer: object) -> None:
        if self.was_asked_for(answer):
            return
        given = entries(answer)
        if not given:
            raise Broken(f"an endless read was answered {answer!r:.200}")
        self._go_on(given[-1].identity)
        for entry in given:
            self._on_given(1, self._bodies.latency_ns(entry.body))


class Streams:
    """The adapter of a Redis or Valkey server on this machine."""

    def __init__(self, port: int, bodies: Bodies, random: Random) -> None:
        self._port = port
        self._bodies = bodies
        self._random = random
        self._partitions = 0

    async def shared(self, queue: str, partitions: int) -> None:
        self._partitions = partitions
        client = Client("bench-admin")
        try:
            link = await client.link(self._port, client.was_asked_for)
            for stream in self._streams(queue):
                await client.ask(link, "XGROUP", "CREATE", stream, GROUP, "$", "MKSTREAM")
        finally:
            client.close()

    async def feed(self, queue: str) -> None:
        """Do nothing, because the first message makes the stream. Raises LoadFailed if the queue is
        none of FEEDS."""
        if queue not in FEEDS:
            raise LoadFailed(f"{queue} is no queue for readers")

    def _streams(self, queue: str) -> list[str]:
        return [f"{queue}:{partition}" for partition in range(self._partitions)]

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producer:
        is_feed = queue in FEEDS

        def stream_of(key: bytes) -> str:
            return queue if is_feed else f"{queue}:{partition_of(key, self._partitions)}"

        producer = Producer(
            name, stream_of, self._bodies, messages_per_frame, self._random,
            kept=FEED_LENGTH if is_feed else 0,
        )  # fmt: skip
        await producer.open(self._port)
        return producer

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consumer:
        consumer = Consumer(name, self._bodies, histogram, self._random)
        await consumer.open(self._port, self._streams(queue)[place::of])
        return consumer

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Reader:
        reader = Reader(name, self._bodies, on_given)
        await reader.open(self._port, queue)
        return reader
