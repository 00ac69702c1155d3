"""How clients talk to a broker: what the scenarios ask of it, whoever the broker is, and Tocsin's
own answer. `loadtests.peers` has those of other brokers.
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
    """What went wrong with it, once something has."""

    def close(self) -> None:
        """Leave."""


class Producing(Party, Protocol):
    """Publishes so many messages at once, many unanswered at a time."""

    messages_per_frame: int
    unanswered: int
    """In messages."""
    answered: int
    """Messages that the broker has confirmed, at its durability."""
    on_answers: Callable[[], None] | None
    durability: object
    """What the broker itself says of it; None: nothing."""

    def publish(self, due: bytes) -> None:
        """Put `messages_per_frame` messages with this stamp on the way."""

    def flush(self) -> None:
        """Send what `publish` has put on the way, in one write."""


class Consuming(Party, Protocol):
    """One of those who share a queue; acknowledges each message, in random order."""

    delivered: int
    settled: int
    """Messages whose acknowledgement the broker has confirmed."""
    redelivered: int
    on_settled: Callable[[], None] | None


class Adapter(Protocol):
    """The way of talking to one broker. Whatever it gives back is connected, and ready.

    Raises (all of it):
        OSError, TimeoutError or LoadFailed: the broker is not there, or refuses.
    """

    async def shared(self, queue: str, partitions: int) -> None:
        """Make a queue whose messages go to one consumer each, of a key in order."""

    async def feed(self, queue: str) -> None:
        """Make a queue whose messages go to every reader."""

    async def producer(self, name: str, queue: str, messages_per_frame: int) -> Producing:
        """One who publishes."""

    async def consumer(
        self, name: str, queue: str, histogram: Histogram, place: int, of: int
    ) -> Consuming:
        """The consumer number `place` of `of`. The histogram gets how late each message came, in
        nanoseconds."""

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Party:
        """One who is given all that comes from now on: `on_given(messages, latency_ns)`."""


@dataclass
class Tocsin:
    """Frames of `tocsin.v1` over WebSocket."""

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
        """The broker shares the partitions out itself."""
        consumer = Consumer(name, self.shape, histogram, self.random)
        await consumer.open(self.url, self.token)
        await consumer.subscribe(queue, GROUP)
        return consumer

    async def reader(self, name: str, queue: str, on_given: Callable[[int, int], None]) -> Reader:
        reader = Reader(name, self.shape, on_given)
        await reader.open(self.url, self.token)
        await reader.subscribe(queue)
        return reader
