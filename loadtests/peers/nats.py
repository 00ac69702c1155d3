"""Clients that only load NATS JetStream, over WebSocket.

A queue is a stream whose subjects are `<queue>.<partition>.<key>`. The server itself maps messages
published to `to.<queue>.<key>` to these, by its own hash of the key. Each partition has a durable
push consumer with explicit acknowledgements and one subscriber, so a key stays in order. A message
is confirmed by JetStream's PubAck. Acknowledgements are sent one per message. The last one of a
consumer in each wave asks for a confirmation, because those of a consumer are handled in order.
"""

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from loadtests.clients.load import ANSWER_TIMEOUT_S, CREDIT, LoadFailed
from loadtests.clients.wire import BINARY, Speech, Wire, connect
from loadtests.histogram import Histogram
from loadtests.peers.clients import Bodies, Sending, Settling
from loadtests.peers.nats_wire import Broken, Message, Parser, attempts, published

SPEECH: Final = Speech("/", None, BINARY)
PARTITIONS: Final = 16
_CONNECT: Final = (
    b'CONNECT {"verbose":false,"pedantic":false,"tls_required":false,"lang":"tocsin-bench",'
    b'"version":"1","protocol":1,"headers":false}\r\nPING\r\n'
)
_INBOX: Final = b"1"
"""The subscription of every client to its inbox, where answers arrive."""
_ACK_WAIT_NS: Final = 30_000_000_000


def mapping(queue: str, partitions: int) -> str:
    """Return the configuration line that spreads a queue's keys over its partitions."""
    return f'"to.{queue}.*": "{queue}.{{{{partition({partitions},1)}}}}.{{{{wildcard(1)}}}}"'


class Client:
    """A connection that has sent CONNECT, and an inbox."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: LoadFailed | None = None
        self.wire: Wire
        self._parser = Parser()
        self._inbox = b"_INBOX." + secrets.token_hex(8).encode()
        self._asked = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving = False

    async def open(self, url: str) -> None:
        """Connect, and wait for the server's PONG."""
        self.wire = await connect(url, self._data, self._turn, self._closed, speech=SPEECH)
        self.wire.send(_CONNECT)
        self.wire.send(b"SUB %b.* %b\r\n" % (self._inbox, _INBOX))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._ready

    async def ask(self, subject: str, **fields: object) -> dict[str, Any]:
        """Make a request of JetStream's API and return the answer. Raises LoadFailed if it is an
        error."""
        word = b"ask%d" % next(self._asked)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[word] = future
        payload = json.dumps(fields).encode()
        reply = self._inbox + b"." + word
        self.wire.send(published(subject.encode(), reply, len(payload)) + payload + b"\r\n")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer: dict[str, Any] = json.loads(await future)
        if "error" in answer:
            raise LoadFailed(f"{subject} was answered {answer['error']}")
        return answer

    def close(self) -> None:
        """Disconnect."""
        self._leaving = True
        self.wire.close()

    def _data(self, data: bytes) -> None:
        try:
            messages = self._parser.feed(data)
            if self._parser.lines:
                self._said()
            if messages:
                self._come(messages)
        except (Broken, LoadFailed) as error:
            self._fail(f"{self.name}: {error}")

    def _said(self) -> None:
        lines, self._parser.lines = self._parser.lines, []
        for line in lines:
            if line == b"PING":
                self.wire.send(b"PONG\r\n")
            elif line == b"PONG":
                if not self._ready.done():
                    self._ready.set_result(None)
            elif line.startswith(b"-ERR"):
                self._fail(f"{self.name} was refused: {line.decode(errors='replace')}")

    def _come(self, messages: Sequence[Message]) -> None:
        given: list[Message] = []
        for message in messages:
            if message.sid != _INBOX:
                given.append(message)
                continue
            word = message.subject.rpartition(b".")[2]
            future = self._waiting.pop(word, None)
            if future is None:
                self._answered(word, message.payload)
            elif not future.done():
                future.set_result(message.payload)
        if given:
            self._given(given)

    def _answered(self, word: bytes, payload: bytes) -> None:
        self._fail(f"{self.name} was answered what it did not ask: {payload[:200]!r}")

    def _given(self, messages: Sequence[Message]) -> None:
        self._fail(f"{self.name} was given {messages[0]!r:.200}")

    def _turn(self) -> None:
        pass

    def _closed(self) -> None:
        if not self._leaving:
            self._fail(f"the server closed the socket of {self.name}: {self.wire.close_reason}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or LoadFailed(why)
        if not self._ready.done():
            self._ready.set_exception(self.failure)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.failure)


class Producer(Sending, Client):
    """A producer that keeps many messages unconfirmed at a time."""

    def __init__(
        self, name: str, subject: bytes, bodies: Bodies, messages: int, random: Random
    ) -> None:
        """`subject`: the part before a key; without a dot at its end, the whole subject.
        `messages`: number of messages in one message of the WebSocket."""
        Client.__init__(self, name)
        reply = self._inbox + b".p"

        def around(key: bytes) -> tuple[bytes, bytes]:
            whole = subject + key if subject.endswith(b".") else subject
            return published(whole, reply, bodies.body_bytes), b"\r\n"

        Sending.__init__(self, bodies, messages, random, around)

    def _send(self, blocks: list[bytes]) -> None:
        self.wire.send_all(blocks)

    def _answered(self, word: bytes, payload: bytes) -> None:
        if b'"seq":' not in payload or b'"error"' in payload:
            self._fail(f"a message of {self.name} was refused: {payload[:400]!r}")
            return
        self._confirmed()


class Consumer(Settling[tuple[bytes, bytes]], Client):
    """The only subscriber of some partitions; it acknowledges every message."""

    def __init__(self, name: str, bodies: Bodies, histogram: Histogram, random: Random) -> None:
        Client.__init__(self, name)
        Settling.__init__(self, bodies, histogram, random)
        self._acking: dict[bytes, int] = {}

    async def subscribe(self, queue: str, partitions: Sequence[int]) -> None:
        """Have the messages of these partitions pushed here."""
        for partition in partitions:
            into = f"_DELIVER.{queue}.{partition}"
            self.wire.send(b"SUB %b %d\r\n" % (into.encode(), 10 + partition))
            name = f"p{partition}"
            config = {
                "durable_name": name,
                "deliver_subject": into,
                "deliver_policy": "all",
                "replay_policy": "instant",
                "ack_policy": "explicit",
                "ack_wait": _ACK_WAIT_NS,
                "max_ack_pending": CREDIT,
                "filter_subject": f"{queue}.{partition}.*",
            }
            await self.ask(
                f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{name}", stream_name=queue, config=config
            )

    def close(self) -> None:
        """Disconnect, and acknowledge nothing more."""
        self._acks.stop()
        super().close()

    def _given(self, messages: Sequence[Message]) -> None:
        self._bodies.record([message.payload for message in messages], self._histogram)
        self.delivered += len(messages)
        for message in messages:
            if attempts(message.reply) > 1:
                self.redelivered += 1
        self._acks.add([(message.sid, message.reply) for message in messages])

    def _acknowledge(self, due: list[tuple[bytes, bytes]]) -> None:
        """Acknowledge deliveries, and ask for a confirmation of each consumer's last one."""
        last: dict[bytes, tuple[bytes, int]] = {}
        out = []
        for sid, subject in due:
            before, count = last.get(sid, (b"", 0))
            if count:
                out.append(published(before, b"", 4) + b"+ACK\r\n")
            last[sid] = (subject, count + 1)
        for subject, count in last.values():
            word = b"a%d" % next(self._asked)
            self._acking[word] = count
            out.append(published(subject, self._inbox + b"." + word, 4) + b"+ACK\r\n")
        self.wire.send(b"".join(out))

    def _answered(self, word: bytes, payload: bytes) -> None:
        count = self._acking.pop(word, 0)
        if not count or payload:
            self._fail(f"an acknowledgement of {self.name} was answered {payload[:200]!r}")
        self.settled += count

    def _turn(self) -> None:
        self._acks.turn()
        self._told()


class Reader(Client):
    """A reader of a stream's new messages, without acknowledgements."""

    def __init__(self, name: str, bodies: Bodies, on_given: Callable[[int, int], None]) -> None:
        super().__init__(name)
        self._bodies = bodies
        self._on_given = on_given

    async def subscribe(self, queue: str, *, stored: bool) -> None:
        """Subscribe through a consumer of the reader's own, which receives stored messages. If not
        `stored`, subscribe to the subject itself, where a message passes before it is stored."""
        into = f"_DELIVER.{queue}.{secrets.token_hex(8)}"
        self.wire.send(b"SUB %b 10\r\n" % (into if stored else f"to.{queue}").encode())
        if stored:
            config = {
                "deliver_subject": into, "deliver_policy": "new", "replay_policy": "instant",
                "ack_policy": "none", "mem_storage": True, "num_replicas": 1,
            }  # fmt: skip
            await self.ask(f"$JS.API.CONSUMER.CREATE.{queue}", stream_name=queue, config=config)
        else:
            self._ready = asyncio.get_running_loop().create_future()
            self.wire.send(b"PING\r\n")
            await self._ready

    def _given(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._on_given(1, self._bodies.latency_ns(message.payload))


class Nats:
    """The adapter of a NATS server whose configuration has `mapping` for the queues in use."""

    def __init__(self, url: str, bodies: Bodies, random: Random, *, stored: bool = True) -> None:
        """`stored`: readers receive stored messages, each through a consumer of its own."""
        self._url = url
        self._bodies = bodies
        self._random = random
        self._stored = stored

    async def shared(self, queue: str, partitions: int) -> None:
        """Create the stream of a queue. Acknowledged messages leave it."""
        if partitions != PARTITIONS:
            raise LoadFailed(f"this server maps keys to {PARTITIONS} partitions")
        await self._stream(queue, f"{queue}.*.*", "workqueue")

    async def feed(self, queue: str) -> None:
        await self._stream(queue, f"to.{queue}", "limits", max_age=60_000_000_000)

    async def _stream(self, queue: str, subject: str, retention: str, **more: object) -> None:
        client = Client("bench-admin")
        try:
            await client.open(self._url)
            await client.ask(
                f"$JS.API.STREAM.CREATE.{queue}", name=queue, subjects=[subject], storage="file",
                retention=retention, num_replicas=1, max_consumers=-1, max_msgs=-1, max_bytes=-1,
                discard="old", **more,
            )  # fmt: skip
        finally:
            if hasattr(client, "wire"):
                client.close()

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producer:
        """Connect a producer. The scenarios with readers publish without a key."""
        subject = f"to.{queue}" if queue in FEEDS else f"to.{queue}."
        producer = Producer(name, subject.encode(), self._bodies, messages_per_frame, self._random)
        await producer.open(self._url)
        return producer

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consumer:
        consumer = Consumer(name, self._bodies, histogram, self._random)
        await consumer.open(self._url)
        await consumer.subscribe(queue, range(place, PARTITIONS, of))
        return consumer

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Reader:
        reader = Reader(name, self._bodies, on_given)
        await reader.open(self._url)
        await reader.subscribe(queue, stored=self._stored)
        return reader


SHARED: Final = ("batch100", "single", "open")
FEEDS: Final = ("fanout5k", "idle")
"""The queues of the scenarios: for groups, and for readers."""
