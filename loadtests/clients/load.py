"""Producers, consumers and readers that only load the broker, on top of a Wire.

Every message of a run has the same size in bytes. At a fixed place of its body it carries the
monotonic time in nanoseconds at which it was due. So a push of a hundred messages is measured by
slicing.
"""

import asyncio
import secrets
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

import msgspec

from loadtests.clients import wire
from loadtests.histogram import Histogram

STAMP_BYTES: Final = 18
KEYS: Final = 1000
BODY_BYTES: Final = 256
CREDIT: Final = 8000
WAVES: Final = 4
"""The most acks for the messages of one push. Each message falls into one of them at random, so
they complete in random order."""
_WAVE_DELAY_S: Final = 0.002
_SPLITS: Final = 64
_PUSH_MESSAGES_MAX: Final = 1024
_ENCODE: Final = msgspec.json.Encoder().encode
ANSWER_TIMEOUT_S: Final = 30.0


class LoadFailed(RuntimeError):
    """The broker refused something, closed a socket or lost a message, so there is no figure to
    report."""


class Reply(msgspec.Struct, gc=False):
    """Any frame but a push, as far as a load client needs its fields."""

    type: str
    ref: int | None = None
    code: str | None = None
    detail: str | None = None
    settled: int | None = None
    stale: list[list[int]] = []
    not_delivered: list[list[int]] = []


_REPLY: Final = msgspec.json.Decoder(Reply)


class Shape:
    """The form of a run's messages: `{"key":"k0007","body":"<stamp><padding>"}`."""

    def __init__(self, body_bytes: int = BODY_BYTES, keys: int = KEYS) -> None:
        assert body_bytes >= STAMP_BYTES + 2
        self.body_bytes = body_bytes
        self.keys = keys
        self._padding = b"x" * (body_bytes - STAMP_BYTES - 2)
        self._key_digits = len(str(keys - 1))
        opening = self._opening(0)
        self.stamp_at = len(opening)
        self.message_bytes = len(opening) + STAMP_BYTES + len(self._padding) + 2

    def _opening(self, key: int) -> bytes:
        return b'{"key":"k%0*d","body":"' % (self._key_digits, key)

    def block(self, messages: int, random: Random) -> list[bytes]:
        """Return messages of random keys, cut where the stamp belongs: `stamp.join(block)` fills it
        in."""
        closing = self._padding + b'"}'
        openings = [self._opening(random.randrange(self.keys)) for _ in range(messages)]
        return [openings[0], *(closing + b"," + opening for opening in openings[1:]), closing]

    def stamps(self, data: bytes, start: int, end: int) -> "list[bytes]":
        """Return the stamps of the messages in data[start:end]."""
        stride = self.message_bytes + 1
        if (end - start + 1) % stride:
            raise LoadFailed(f"a push whose messages were not sent by us: {data[:400]!r}")
        return [
            data[place : place + STAMP_BYTES] for place in range(start + self.stamp_at, end, stride)
        ]


def stamp(at_ns: int) -> bytes:
    """Return a monotonic time in nanoseconds as a stamp, which is STAMP_BYTES digits."""
    return b"%0*d" % (STAMP_BYTES, at_ns)


def _random_split(random: Random) -> list[list[int]]:
    waves: list[list[int]] = [[] for _ in range(WAVES)]
    for index in range(_PUSH_MESSAGES_MAX):
        ranges = waves[random.randrange(WAVES)]
        if ranges and ranges[-1] == index - 1:
            ranges[-1] = index
        else:
            ranges += [index, index]
    return waves


class Client:
    """A session: a Wire that said hello and can wait for the answer to a ref."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ref = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._welcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.failure: LoadFailed | None = None
        self.wire: wire.Wire
        self._leaving = False

    async def open(
        self, url: str, token: str | None, producer: str | None = None, *, local: str | None = None
    ) -> None:
        """Connect, say hello, wait for the welcome. `local`: the address of this machine to connect
        from."""
        self.wire = await wire.connect(
            url, self._message, self._turn, self._closed, token=token, local=local
        )
        hello = {"type": "hello", "client": self.name}
        self.wire.send(_ENCODE(hello | ({"producer": producer} if producer else {})))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._welcome

    async def ask(self, **fields: object) -> bytes:
        """Send a frame with a new ref, and return the broker's ok to it. Raises LoadFailed if the
        broker refuses or closes the socket, TimeoutError after ANSWER_TIMEOUT_S."""
        ref = self._next_ref()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[ref] = future
        self.wire.send(_ENCODE({**fields, "ref": ref}))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await future

    def close(self) -> None:
        """Disconnect."""
        self._leaving = True
        self.wire.close()

    def _next_ref(self) -> int:
        self._ref += 1
        return self._ref

    def _message(self, message: bytes) -> None:
        for data in wire.split(message):
            if wire.is_push(data):
                self._push(data)
            else:
                self._reply(data)

    def _push(self, data: bytes) -> None:
        self._fail(f"{self.name} was given a push: {data[:200]!r}")

    def _reply(self, data: bytes) -> None:
        reply = _REPLY.decode(data)
        if reply.type == "welcome":
            if not self._welcome.done():
                self._welcome.set_result(data)
        elif reply.type == "error":
            self._fail(f"{self.name} was refused: {reply.code}: {reply.detail}")
        elif reply.type == "ok" and reply.ref is not None:
            future = self._waiting.pop(reply.ref, None)
            if future is None:
                self._answered(reply.ref, reply, data)
            elif not future.done():
                future.set_result(data)

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        self._fail(f"{self.name} was answered what it did not ask: {data[:200]!r}")

    def _turn(self) -> None:
        pass

    def _closed(self) -> None:
        if not self._leaving:
            code, reason = self.wire.close_code, self.wire.close_reason
            self._fail(f"the broker closed the socket of {self.name}: {code} {reason}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or LoadFailed(why)
        for future in (self._welcome, *self._waiting.values()):
            if not future.done():
                future.set_exception(self.failure)


class Producer(Client):
    """A producer of numbered frames with a fixed number of messages, many unanswered at a time."""

    def __init__(
        self,
        name: str,
        queue: str | Sequence[str],
        shape: Shape,
        messages_per_frame: int,
        random: Random,
        *,
        blocks: int = 0,
    ) -> None:
        """`queue`: with several, each frame goes to the next one. `blocks`: number of ready-made
        frames that it sends repeatedly; 0 for a default number."""
        super().__init__(f"{name}-{secrets.token_hex(4)}")  # a broker knows earlier ones
        self.messages_per_frame = messages_per_frame
        self.unanswered = 0
        """Number of messages published and not answered yet, those that wait for `flush`
        included."""
        self.answered = 0
        self.on_answers: Callable[[], None] | None = None
        self.durability: object = None
        """The durability that the broker's first receipts state; None before."""
        blocks = blocks or max(16, 2048 // messages_per_frame)
        self._blocks = [shape.block(messages_per_frame, random) for _ in range(blocks)]
        self._sequence = 0
        self._sequences: dict[int, int] = {}
        self._queues = [one.encode() for one in ([queue] if isinstance(queue, str) else queue)]
        self._out: list[bytes] = []

    def publish(self, due: bytes) -> None:
        """Queue one frame of messages with this stamp; `flush` sends it."""
        ref, sequence = self._next_ref(), self._sequence
        self._sequences[ref] = sequence
        oldest = next(iter(self._sequences.values()))  # in sending order
        self._sequence += self.messages_per_frame
        self.unanswered += self.messages_per_frame
        messages = due.join(self._blocks[ref % len(self._blocks)])
        self._out.append(
            b'{"type":"publish","ref":%d,"queue":"%b","sequence":%d,"resolved":%d,"messages":[%b]}'
            % (ref, self._queues[ref % len(self._queues)], sequence, oldest, messages)
        )

    def flush(self) -> None:
        """Send the queued frames in one write."""
        if self._out:
            out, self._out = self._out, []
            self.wire.send_all(out)

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        if ref not in self._sequences:
            super()._answered(ref, reply, data)
            return
        if b'"code":' in data:  # an error among the receipts
            self._fail(f"a publish of {self.name} was refused: {data[:400]!r}")
        if self.durability is None:
            self.durability = msgspec.json.decode(data).get("durability")
        del self._sequences[ref]
        self.unanswered -= self.messages_per_frame
        self.answered += self.messages_per_frame

    def _turn(self) -> None:
        if self.on_answers is not None:
            self.on_answers()


class _Part:
    """The part of an ack for one subscription: a delivery list, and its number of messages."""

    __slots__ = ("count", "deliveries")

    def __init__(self) -> None:
        self.deliveries: list[list[int]] = []
        self.count = 0


class Consumer(Client):
    """A member of one or more groups that acks every message in random order, and waits for
    confirmation."""

    def __init__(self, name: str, shape: Shape, histogram: Histogram, random: Random) -> None:
        super().__init__(name)
        self.delivered = 0
        self.settled = 0
        """Number of messages whose ack the broker has confirmed as durable."""
        self.redelivered = 0
        self.on_settled: Callable[[], None] | None = None
        self._shape = shape
        self._histogram = histogram
        self._random = random
        self._granted: list[int] = []
        """Granted credit by subscription, in messages; the list's first place is subscription 1."""
        self._acked_since_grant: list[int] = []
        self._waves: deque[dict[int, _Part]] = deque({} for _ in range(WAVES))
        """The waves of acks that are still to be sent; each maps a subscription to its part."""
        self._splits = [_random_split(random) for _ in range(_SPLITS)]
        self._acking: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def subscribe(self, queue: str, group: str) -> None:
        """Join the group."""
        self._granted.append(CREDIT)
        self._acked_since_grant.append(0)
        await self.ask(
            type="subscribe", subscription=len(self._granted), queue=queue, group=group,
            credit=CREDIT,
        )  # fmt: skip

    def _push(self, data: bytes) -> None:
        now = time.monotonic_ns()
        head, start, end = wire.open_push(data)
        stamps = self._shape.stamps(data, start, end)
        count = len(stamps)
        self.delivered += count
        if head.attempt > 1:
            self.redelivered += count
        for due, times in Counter(stamps).items() if count > 1 else ((stamps[0], 1),):
            self._histogram.record(now - int(due), times)
        place, places = [head.partition, head.epoch, head.push], head.places(count)
        for wave, relative in zip(self._waves, self._split(count), strict=True):
            if relative:
                part = wave.get(head.subscription)
                if part is None:
                    part = wave[head.subscription] = _Part()
                part.count += sum(relative[1::2]) - sum(relative[::2]) + len(relative) // 2
                # A range may span offsets that the push skips; only its ends matter.
                part.deliveries.append(place + [places[x] for x in relative])

    def _split(self, count: int) -> list[list[int]]:
        """Return a random split of `count` messages into waves, each as ranges first, last, first,
        …. It is one of the ready-made splits, cut off at `count`."""
        return [
            ranges[:cut] if not (cut := bisect_left(ranges, count)) & 1
            else [*ranges[:cut], count - 1]
            for ranges in self._splits[self._random.randrange(len(self._splits))]
        ]  # fmt: skip

    def _turn(self) -> None:
        due = self._waves.popleft()
        self._waves.append({})
        if due:
            self.wire.send_all([frame for one in due.items() for frame in self._ack(*one)])
        if self._timer is None and any(self._waves):
            self._timer = asyncio.get_running_loop().call_later(_WAVE_DELAY_S, self._later)
        if self.on_settled is not None:
            self.on_settled()

    def _later(self) -> None:
        self._timer = None
        if not self.wire.closed:
            self._turn()

    def _ack(self, subscription: int, part: _Part) -> Iterator[bytes]:
        ref, place = self._next_ref(), subscription - 1
        self._acking[ref] = part.count
        yield _ENCODE(
            {
                "type": "ack", "subscription": subscription, "deliveries": part.deliveries,
                "ref": ref,
            }
        )  # fmt: skip
        self._acked_since_grant[place] += part.count
        if self._acked_since_grant[place] >= CREDIT // 8:
            self._granted[place] += self._acked_since_grant[place]
            self._acked_since_grant[place] = 0
            granted = (subscription, self._granted[place])
            yield b'{"type":"credit","subscription":%d,"granted":%d}' % granted

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        count = self._acking.pop(ref, None)
        if count is None:
            super()._answered(ref, reply, data)
        elif reply.stale or reply.not_delivered or reply.settled not in (None, count):
            self._fail(f"an ack of {count} by {self.name} was answered {data[:400]!r}")
        else:
            self.settled += count


class Reader(Client):
    """A reader of a queue without a group. It calls `on_given(1, latency_ns)` for each of its
    messages."""

    def __init__(self, name: str, shape: Shape, on_given: Callable[[int, int], None]) -> None:
        super().__init__(name)
        self._shape = shape
        self._on_given = on_given
        self._granted = CREDIT
        self._since_grant = 0

    async def subscribe(self, queue: str) -> None:
        """Subscribe to the messages that the queue receives from now on."""
        await self.ask(
            type="subscribe", subscription=1, queue=queue, credit=self._granted, start="latest"
        )

    def _push(self, data: bytes) -> None:
        now = time.monotonic_ns()
        _, start, end = wire.open_push(data)
        stamps = self._shape.stamps(data, start, end)
        for due in stamps:
            self._on_given(1, now - int(due))
        self._since_grant += len(stamps)
        if self._since_grant >= CREDIT // 2:
            self._granted += self._since_grant
            self._since_grant = 0
            self.wire.send(b'{"type":"credit","subscription":1,"granted":%d}' % self._granted)
