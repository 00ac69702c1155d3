"""Clients that only load RabbitMQ, over Web-STOMP.

A queue is a consistent-hash exchange in front of quorum queues, one for each partition, with one
subscriber each, so a key stays in order. The broker confirms a message by a RECEIPT when the quorum
queue has it. Acknowledgements are sent one per message. The last of each wave asks for a receipt,
which by STOMP's rule covers all frames before it on that connection.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from loadtests.clients.load import ANSWER_TIMEOUT_S, CREDIT, LoadFailed
from loadtests.clients.wire import Speech, Wire, connect
from loadtests.histogram import Histogram
from loadtests.peers.clients import Bodies, Sending, Settling
from loadtests.peers.stomp_wire import Broken, Frame, frame, frames

SPEECH: Final = Speech("/ws", "v12.stomp")
PARTITIONS: Final = 16
EXCHANGE: Final = "bench"
"""The consistent-hash exchange; its queues are `bench.0` and so on."""
FEED: Final = "bench-feed"
"""The fanout exchange; each reader has a queue of its own bound to it."""
FEEDS: Final = ("fanout5k", "idle")
"""The queues of the scenarios with readers; all others are shared."""
PUBLISHED: Final = b"p"
"""The receipt id of every message; receipts are only counted."""


class Client:
    """A connection that the broker has accepted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: LoadFailed | None = None
        self.wire: Wire
        self._asked = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving = False

    async def open(self, url: str, user: str, password: str) -> None:
        """Connect, and wait for CONNECTED."""
        self.wire = await connect(url, self._message, self._turn, self._closed, speech=SPEECH)
        headers = {
            b"accept-version": b"1.2", b"host": b"/", b"heart-beat": b"0,0",
            b"login": user.encode(), b"passcode": password.encode(),
        }  # fmt: skip
        self.wire.send(frame(b"CONNECT", headers))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._ready

    async def ask(self, command: bytes, headers: dict[bytes, bytes]) -> None:
        """Send a frame, and wait for its receipt."""
        word = b"ask%d" % next(self._asked)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[word] = future
        self.wire.send(frame(command, headers | {b"receipt": word}))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await future

    def close(self) -> None:
        """Disconnect."""
        self._leaving = True
        self.wire.close()

    def _message(self, data: bytes) -> None:
        try:
            for one in frames(data):
                if one.command == b"MESSAGE":
                    self._given(one)
                elif one.command == b"RECEIPT":
                    self._receipt(one.header(b"receipt-id"))
                elif one.command == b"CONNECTED":
                    if not self._ready.done():
                        self._ready.set_result(None)
                else:
                    said = one.header(b"message") + b" " + one.body
                    self._fail(f"{self.name} was refused: {said.decode(errors='replace')[:400]}")
        except (Broken, LoadFailed) as error:
            self._fail(f"{self.name}: {error}")

    def _receipt(self, word: bytes) -> None:
        future = self._waiting.pop(word, None)
        if future is None:
            self._answered(word)
        elif not future.done():
            future.set_result(None)

    def _answered(self, word: bytes) -> None:
        self._fail(f"{self.name} was given a receipt that it did not ask for: {word!r}")

    def _given(self, message: Frame) -> None:
        self._fail(f"{self.name} was given {message!r:.200}")

    def _turn(self) -> None:
        pass

    def _closed(self) -> None:
        if not self._leaving:
            self._fail(f"the broker closed the socket of {self.name}: {self.wire.close_reason}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or LoadFailed(why)
        for future in (self._ready, *self._waiting.values()):
            if not future.done():
                future.set_exception(self.failure)


class Producer(Sending, Client):
    """A producer of persistent messages that keeps many of them unconfirmed at a time."""

    def __init__(
        self, name: str, exchange: str, bodies: Bodies, messages: int, random: Random
    ) -> None:
        """`messages`: number of STOMP frames in one message of the WebSocket."""
        Client.__init__(self, name)

        def around(key: bytes) -> tuple[bytes, bytes]:
            headers = {
                b"destination": b"/exchange/%b/%b" % (exchange.encode(), key),
                b"persistent": b"true",
                b"receipt": PUBLISHED,
            }
            mark = b"\1" * bodies.body_bytes
            before, _, behind = frame(b"SEND", headers, mark).partition(mark)
            return before, behind

        Sending.__init__(self, bodies, messages, random, around)

    def _send(self, blocks: list[bytes]) -> None:
        self.wire.send_all(blocks)

    def _answered(self, word: bytes) -> None:
        if word != PUBLISHED:
            super()._answered(word)
        self._confirmed()


class Consumer(Settling[bytes], Client):
    """The only subscriber of some partitions; it acknowledges every message."""

    def __init__(self, name: str, bodies: Bodies, histogram: Histogram, random: Random) -> None:
        Client.__init__(self, name)
        Settling.__init__(self, bodies, histogram, random)
        self._given_now: list[bytes] = []
        self._acking: dict[bytes, int] = {}

    async def subscribe(self, partitions: Sequence[int]) -> None:
        """Have the messages of these partitions pushed here."""
        for partition in partitions:
            headers = {
                b"id": b"%d" % partition,
                b"destination": b"/amq/queue/%b.%d" % (EXCHANGE.encode(), partition),
                b"ack": b"client-individual",
                b"prefetch-count": b"%d" % (CREDIT // len(partitions)),
            }
            await self.ask(b"SUBSCRIBE", headers)

    def close(self) -> None:
        """Disconnect, and acknowledge nothing more."""
        self._acks.stop()
        super().close()

    def _given(self, message: Frame) -> None:
        self._given_now.append(message.body)
        if message.header(b"redelivered") == b"true":
            self.redelivered += 1
        self._acks.add([message.header(b"ack")])

    def _acknowledge(self, due: list[bytes]) -> None:
        word = b"a%d" % next(self._asked)
        self._acking[word] = len(due)
        # An id is returned as it came, with its escapes.
        out = [b"ACK\nid:%b\n\n\0" % one for one in due[:-1]]
        out.append(b"ACK\nid:%b\nreceipt:%b\n\n\0" % (due[-1], word))
        self.wire.send(b"".join(out))

    def _answered(self, word: bytes) -> None:
        count = self._acking.pop(word, 0)
        if not count:
            super()._answered(word)
        self.settled += count

    def _turn(self) -> None:
        if self._given_now:
            given, self._given_now = self._given_now, []
            self.delivered += len(given)
            try:
                self._bodies.record(given, self._histogram)
            except LoadFailed as error:
                self._fail(f"{self.name}: {error}")
        self._acks.turn()
        self._told()


class Reader(Client):
    """A reader of the feed's new messages, through a queue of its own in memory."""

    def __init__(self, name: str, bodies: Bodies, on_given: Callable[[int, int], None]) -> None:
        super().__init__(name)
        self._bodies = bodies
        self._on_given = on_given

    async def subscribe(self) -> None:
        """Subscribe to the feed."""
        destination = b"/exchange/" + FEED.encode()
        await self.ask(b"SUBSCRIBE", {b"id": b"1", b"destination": destination, b"ack": b"auto"})

    def _given(self, message: Frame) -> None:
        self._on_given(1, self._bodies.latency_ns(message.body))


class Stomp:
    """The adapter of a RabbitMQ that has the exchanges and queues of `servers.definitions`."""

    def __init__(self, url: str, user: str, password: str, bodies: Bodies, random: Random) -> None:
        self._url = url
        self._who = user, password
        self._bodies = bodies
        self._random = random

    async def shared(self, queue: str, partitions: int) -> None:
        """Do nothing, because the exchange exists since the broker's start. Raises LoadFailed for
        another number of partitions than PARTITIONS, or if the queue is one of FEEDS."""
        if partitions != PARTITIONS or queue in FEEDS:
            raise LoadFailed(f"this broker has {PARTITIONS} queues behind its exchange")

    async def feed(self, queue: str) -> None:
        """Do nothing, because the exchange exists since the broker's start. Raises LoadFailed if
        the queue is none of FEEDS."""
        if queue not in FEEDS:
            raise LoadFailed(f"{queue} is no queue for readers")

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producer:
        exchange = FEED if queue in FEEDS else EXCHANGE
        producer = Producer(name, exchange, self._bodies, messages_per_frame, self._random)
        await producer.open(self._url, *self._who)
        return producer

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consumer:
        consumer = Consumer(name, self._bodies, histogram, self._random)
        await consumer.open(self._url, *self._who)
        await consumer.subscribe(range(place, PARTITIONS, of))
        return consumer

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Reader:
        reader = Reader(name, self._bodies, on_given)
        await reader.open(self._url, *self._who)
        await reader.subscribe()
        return reader
