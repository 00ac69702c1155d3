"""The interface between the scenarios and a broker, and its implementation for Tocsin.

`loadtests.peers` implements it for other brokers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from loadtests.clients.load import Consumer, LoadFailed, Producer, Reader, Shape
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram

GROUP = "workers"


class Party(Protocol):
    """A connected client."""

    failure: LoadFailed | None
    """The error that ended this client; None while it works."""

    def close(self) -> None:
        """Disconnect."""


class Producing(Party, Protocol):
    """A client that publishes batches and keeps many messages unanswered at a time."""

    messages_per_frame: int
    unanswered: int
    """Number of messages published and not answered yet."""
    answered: int
    """Number of messages that the broker has confirmed, at its durability."""
    on_answers: Callable[[], None] | None
    durability: object
    """The durability that the broker itself reports; None when it reports none."""

    def publish(self, due: bytes) -> None:
        """Queue `messages_per_frame` messages with this stamp for sending."""

    def flush(self) -> None:
        """Send the queued messages in one write."""


class Consuming(Party, Protocol):
    """A consumer that shares a queue with others and acknowledges each message, in random order."""

    delivered: int
    settled: int
    """Number of messages whose acknowledgement the broker has confirmed."""
    redelivered: int
    on_settled: Callable[[], None] | None


class Adapter(Protocol):
    """The way to talk to one broker. Each client that it returns is connected and ready.

    Raises (every method):
        OSError, TimeoutError or LoadFailed: the broker does not run, or refuses.
    """

    async def shared(self, queue: str, partitions: int) -> None:
        """Create a queue that gives each message to one consumer, and messages of a key in
        order."""

    async def feed(self, queue: str) -> None:
        """Create a queue that gives its messages to every reader."""

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producing:
        """Connect a producer."""

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consuming:
        """Connect consumer number `place` of `of`. The histogram records each message's latency in
        nanoseconds."""

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Party:
        """Connect a reader of all messages from now on. `on_given(messages, latency_ns)` is called
        for them."""


@dataclass
class Tocsin:
    """The adapter of Tocsin: frames of `tocsin.v1` over WebSocket."""

    url: str
    token: str | None
    shape: Shape = field(default_factory=Shape)
    random: Random = field(default_factory=lambda: Random(1))

    async def shared(self, queue: str, partitions: int) -> None:
        rest = Rest(self.url, self.token)
        try:
            await rest.call("PUT", f"/v1/queues/{queue}", {"partitions": partitions})
            await rest.call("PUT", f"/v1/queues/{queue}/groups/{GROUP}", {})
        finally:
            rest.close()

    async def feed(self, queue: str) -> None:
        rest = Rest(self.url, self.token)
        try:
            await rest.call("PUT", f"/v1/queues/{queue}", {"partitions": 1, "retention_s": 60})
        finally:
            rest.close()

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producer:
        producer = Producer(name, queue, self.shape, messages_per_frame, self.random)
        await producer.open(self.url, self.token, producer.name)
        return producer

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consumer:
        """Connect a consumer. The broker itself assigns the partitions, so `place` and `of` are
        unused."""
        consumer = Consumer(name, self.shape, histogram, self.random)
        await consumer.open(self.url, self.token)
        await consumer.subscribe(queue, GROUP)
        return consumer

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Reader:
        reader = Reader(name, self.shape, on_given)
        await reader.open(self.url, self.token)
        await reader.subscribe(queue)
        return reader
