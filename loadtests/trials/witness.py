"""A well-behaved client: it publishes at a steady rate, takes and acks everything, and checks it.

It runs beside clients that misbehave. None of its messages may be lost, doubled or out of order,
and the time that they take shows what the others cost.
"""

import asyncio
import json
import secrets
import time
from typing import Any, Final

from loadtests.clients.load import ANSWER_TIMEOUT_S, Client, LoadFailed
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram

KEYS: Final = 8
PARTITIONS: Final = 4
CREDIT: Final = 1000
_TURN_S: Final = 0.01
_DRAIN_S: Final = 30.0


class _Publisher(Client):
    """A publisher that numbers its messages over all keys, and counts its receipts."""

    stored = 0

    def _answered(self, ref: int, reply: Any, data: bytes) -> None:
        if b'"code":' in data:
            self._fail(f"a publish of the witness was refused: {data[:300]!r}")
        self.stored += 1

    def publish(self, queue: str, number: int) -> None:
        """Publish one message with this number, which is counted over all keys."""
        message = {"key": f"k{number % KEYS}", "body": [number, time.monotonic_ns()]}
        frame = {
            "type": "publish", "ref": self._next_ref(), "queue": queue, "sequence": number,
            "resolved": self.stored, "messages": [message],
        }  # fmt: skip
        self.wire.send(json.dumps(frame).encode())


class _Taker(Client):
    """A consumer that expects each key's numbers one after another."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.taken = 0
        self.latency = Histogram()
        self._next = {f"k{key}": key for key in range(KEYS)}
        self._granted = CREDIT

    def _push(self, data: bytes) -> None:
        push = json.loads(data)
        now = time.monotonic_ns()
        for message in push["messages"]:
            number, sent = message["body"]
            expected = self._next[message["key"]]
            if number != expected:
                self._fail(f"the witness awaited {expected} of {message['key']}, not {number}")
                return
            self._next[message["key"]] += KEYS
            self.latency.record(now - sent)
        count = len(push["messages"])
        self.taken += count
        self._granted += count
        last = push["offset"] + count + len(push.get("skips", ())) - 1
        deliveries = [[push["partition"], push["epoch"], push["push"], push["offset"], last]]
        ack = {"type": "ack", "subscription": 1, "deliveries": deliveries}
        credit = {"type": "credit", "subscription": 1, "granted": self._granted}
        self.wire.send(json.dumps([ack, credit]).encode())


class Witness:
    """A producer and a consumer of a queue of their own."""

    def __init__(self, url: str, rate: float, *, queue: str = "witness") -> None:
        """`rate`: messages a second."""
        self._url = url
        self._rate = rate
        self._queue = queue
        self._publisher = _Publisher("witness-producer")
        self._taker = _Taker("witness-consumer")
        self._task: asyncio.Task[None] | None = None
        self.published = 0

    async def open(self) -> None:
        """Create the queue, connect a producer and a consumer of the group `g`, and begin to
        publish."""
        rest = Rest(self._url)
        try:
            await rest.call("PUT", f"/v1/queues/{self._queue}", {"partitions": PARTITIONS})
        finally:
            rest.close()
        await self._publisher.open(self._url, None, f"witness-{secrets.token_hex(4)}")
        await self._taker.open(self._url, None)
        await self._taker.ask(
            type="subscribe", subscription=1, queue=self._queue, group="g", credit=CREDIT
        )
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * self._rate)
            while self.published < due:
                self._publisher.publish(self._queue, self.published)
                self.published += 1
            await asyncio.sleep(_TURN_S)

    def check(self) -> None:
        """Raise the LoadFailed of the producer or the consumer, if one has failed."""
        for client in (self._publisher, self._taker):
            if client.failure is not None:
                raise client.failure

    def measured(self) -> Histogram:
        """Return the latencies since the last call, in nanoseconds, from the publish to the
        consumer."""
        latency, self._taker.latency = self._taker.latency, Histogram()
        return latency

    async def finish(self) -> int:
        """Stop publishing, and wait until every message is received and every publish answered;
        return the number of messages. Raises LoadFailed if a message is missing or a client failed,
        TimeoutError if a publish is not answered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        deadline = time.monotonic() + _DRAIN_S
        while self._taker.taken < self.published:
            self.check()
            if time.monotonic() > deadline:
                raise LoadFailed(f"the witness was given {self._taker.taken} of {self.published}")
            await asyncio.sleep(_TURN_S)
        self.check()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while self._publisher.stored < self.published:
                self.check()
                await asyncio.sleep(_TURN_S)
        return self.published

    def close(self) -> None:
        """Stop publishing, and disconnect both clients."""
        if self._task is not None:
            self._task.cancel()
        for client in (self._publisher, self._taker):
            if hasattr(client, "wire"):
                client.close()
