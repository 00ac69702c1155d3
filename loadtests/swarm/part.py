"""A process of a swarm: thousands of waiting readers that follow orders from stdin."""

import asyncio
import gc
import itertools
import sys
import time
from random import Random
from typing import Final

import uvloop

from loadtests.clients.load import LoadFailed, Reader, Shape
from loadtests.histogram import Histogram
from loadtests.swarm import coordination
from loadtests.swarm.coordination import News, Order, Post

_AGAIN_S: Final = (0.1, 1.0)
"""Bounds of the pause before a connection is tried again."""
_LOOK_S: Final = 0.05


class Waiting(Reader):
    """A reader that counts its messages, and can break its socket."""

    def __init__(self, name: str, shape: Shape) -> None:
        super().__init__(name, shape, self._noted)
        self.given = 0

    def _noted(self, messages: int, latency_ns: int) -> None:
        self.given += messages

    def cut(self) -> None:
        """Break the socket without a word."""
        self._leaving = True
        self.wire.abort()


class Part:
    """The readers of one process."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._shape = Shape(post.body_bytes)
        self._random = Random(post.number)
        self._urls = itertools.cycle(post.urls[post.number % len(post.urls) :] + post.urls)
        self._addresses = itertools.cycle(post.addresses)
        self._names = itertools.count()
        self.readers: list[Waiting] = []
        """The open readers."""
        self._took = Histogram()
        self._tries = 0
        self._lost = 0
        self._error = ""

    async def do(self, order: Order) -> News:
        """Carry out an order. If it is not done within its time, the figures show that."""
        began = time.monotonic()
        self._took.clear()
        missing = repeated = 0
        match order.do:
            case "open":
                await self._open(order.sockets, order.at_once, order.timeout_s)
            case "cut":
                for reader in self.readers[: order.sockets]:
                    reader.cut()
                del self.readers[: order.sockets]
                await self._open(order.sockets, order.at_once, order.timeout_s)
            case "expect":
                missing, repeated = await self._expect(order.given, order.timeout_s)
            case "close":
                for reader in self.readers:
                    reader.close()
                self.readers = []
            case _:
                raise ValueError(f"no order {order.do}")
        self._bury()
        return News(
            len(self.readers), time.monotonic() - began, self._took.buckets(), self._took.total,
            self._took.maximum, missing, repeated, self._lost, self._tries, self._error,
        )  # fmt: skip

    async def _open(self, many: int, at_once: int, timeout_s: float) -> None:
        """Open `many` more readers. The time of each counts from now on, including the wait for its
        turn."""
        began_ns = time.monotonic_ns()
        turns = asyncio.Semaphore(at_once)
        deadline = time.monotonic() + timeout_s

        async def one() -> None:
            while time.monotonic() < deadline:
                async with turns:
                    reader = await self._try()
                if reader is not None:
                    self._took.record(time.monotonic_ns() - began_ns)
                    self.readers.append(reader)
                    return
                await asyncio.sleep(self._random.uniform(*_AGAIN_S))

        await asyncio.gather(*(one() for _ in range(many)))

    async def _try(self) -> Waiting | None:
        post = self._post
        reader = Waiting(f"swarm-{post.number}.{next(self._names)}", self._shape)
        try:
            await reader.open(next(self._urls), post.token, local=next(self._addresses))
            await reader.subscribe(post.queue)
        except (OSError, LoadFailed, TimeoutError) as error:
            self._tries += 1
            self._error = f"{type(error).__name__}: {error}"
            if hasattr(reader, "wire"):
                reader.cut()
            return None
        return reader

    async def _expect(self, given: int, timeout_s: float) -> tuple[int, int]:
        """Wait until each reader has received `given` messages since the previous call, or for
        `timeout_s`. Return (number of readers with fewer messages, number of messages beyond
        `given` a reader). The counts begin anew."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if all(reader.given >= given for reader in self.readers):
                break
            await asyncio.sleep(_LOOK_S)
        missing = sum(reader.given < given for reader in self.readers)
        repeated = sum(max(0, reader.given - given) for reader in self.readers)
        for reader in self.readers:
            reader.given = 0
        return missing, repeated

    def _bury(self) -> None:
        """Count and drop the readers that have failed."""
        failed = [reader for reader in self.readers if reader.failure is not None]
        if failed:
            self._lost += len(failed)
            self._error = str(failed[-1].failure)
            self.readers = [reader for reader in self.readers if reader.failure is None]


async def _serve() -> None:
    """Carry out orders until stdin ends."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    part = Part(coordination.decode_post(await stdin.readline()))
    while line := await stdin.readline():
        news = await part.do(coordination.decode_order(line))
        sys.stdout.buffer.write(coordination.encode(news) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
