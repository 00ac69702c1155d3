"""All processes of a swarm, as one object."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from loadtests.histogram import Histogram
from loadtests.swarm import coordination
from loadtests.swarm.coordination import News, Order, Post, addresses, shares

LINE_BYTES_MAX: Final = 1 << 20
_MARGIN_S: Final = 60.0
"""Seconds beyond an order's `timeout_s` after which a process without an answer counts as stuck."""
_END_S: Final = 10.0
_ROOT: Final = Path(__file__).parent.parent.parent


class SwarmBroke(RuntimeError):
    """A process of the swarm has ended, or does not answer."""


class All:
    """The combined answer of all processes to one order."""

    def __init__(self, parts: Sequence[News]) -> None:
        self.standing = sum(news.standing for news in parts)
        self.took_s = max(news.took_s for news in parts)
        """The time of the slowest process, in seconds."""
        self.missing = sum(news.missing for news in parts)
        self.repeated = sum(news.repeated for news in parts)
        self.lost = sum(news.lost for news in parts)
        self.tries = sum(news.tries for news in parts)
        self.error = next((news.error for news in parts if news.error), "")
        self.took = Histogram()
        """The time that each socket took to open, in nanoseconds."""
        for news in parts:
            self.took.add(Histogram.of(news.buckets, news.total_ns, news.maximum_ns))


class Fleet:
    """Processes of `loadtests.swarm.part`. Leaving its context ends them all."""

    def __init__(
        self, sockets: int, processes: int, urls: Sequence[str], *, token: str | None,
        queue: str, body_bytes: int,
    ) -> None:  # fmt: skip
        """`sockets`: the most that there will be. Raises ValueError if they are too many for the
        addresses."""
        self._shares = shares(sockets, processes)
        self._posts = [
            Post(number, list(urls), token, queue, addresses(number, many), body_bytes)
            for number, many in enumerate(self._shares)
        ]
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        """Start the processes."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        }
        try:
            for post in self._posts:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "loadtests.swarm.part",
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    env=environment, cwd=_ROOT, limit=LINE_BYTES_MAX, start_new_session=True,
                )  # fmt: skip
                self._processes.append(process)
                assert process.stdin is not None
                process.stdin.write(coordination.encode(post) + b"\n")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def all(self, order: Order) -> All:
        """Give an order to all processes at once, with its sockets split among them. Raises
        SwarmBroke."""
        dealt = shares(order.sockets, len(self._processes))
        answers = (
            self._one(process, msgspec.structs.replace(order, sockets=many))
            for process, many in zip(self._processes, dealt, strict=True)
        )
        return All(await asyncio.gather(*answers))

    async def _one(self, process: asyncio.subprocess.Process, order: Order) -> News:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(order.timeout_s + _MARGIN_S):
                process.stdin.write(coordination.encode(order) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except (OSError, TimeoutError) as error:
            raise SwarmBroke(f"{order.do} was not answered: {error!r}") from None
        if not line:
            raise SwarmBroke(f"a process ended over {order.do}")
        return coordination.decode_news(line)

    async def __aexit__(self, *_: object) -> None:
        """Close the stdin of the processes, which ends them; kill any that has not ended within
        _END_S."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
