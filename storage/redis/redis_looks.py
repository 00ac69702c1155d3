"""Looks at a shard on pooled connections, and the one that hears what is published there."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import random
from typing import Any, Final

from redis.exceptions import RedisError

from push.backoff import backoff_s
from push.errors import Refused, TocsinError
from storage.redis.redis_answers import refusal, unavailable
from storage.redis.redis_link import BACKOFF_BASE_S, BACKOFF_MAX_S, Link, packed
from storage.redis.redis_ports import Heard

LINKS: Final = 8
"""Connections for looks; who finds all of them taken waits."""
QUIET_S: Final = 10.0
"""After so long without a message the subscriber asks whether its connection still stands."""
Connect = Callable[[], Awaitable[Link]]


class Looks:
    """A pool. `connect` makes a checked link or raises Refused."""

    def __init__(self, connect: Connect, silence_s: float) -> None:
        self._connect = connect
        self._silence_s = silence_s
        self._places = asyncio.Semaphore(LINKS)
        self._idle: list[Link] = []
        self._moves = 0
        """How often the primary has been found elsewhere."""
        self._closed = False

    async def look(self, command: bytes) -> Any:
        """See `Shard.look`. An idle connection that turns out to be broken is replaced once: a
        look changes nothing, so it may be asked twice."""
        async with self._places:
            while True:
                if self._closed:
                    raise unavailable("the storage is closed")
                was_idle, moves = bool(self._idle), self._moves
                link = self._idle.pop() if self._idle else await self._connect()
                if not link.is_open:  # its server has ended it: that is no attempt
                    await link.close()
                    continue
                try:
                    (reply,) = await link.ask([command], self._silence_s)
                except (RedisError, OSError) as error:
                    if was_idle:
                        continue
                    raise unavailable(
                        f"{link.address}: {str(error) or 'no reply in time'}"
                    ) from None
                break
            if isinstance(reply, RedisError):
                await link.close()
                raise _refused(reply)
            if self._closed or moves != self._moves:
                await link.close()
            else:
                self._idle.append(link)
            return reply

    async def renew(self) -> None:
        """The primary is elsewhere: let go of what is idle, and of the rest when it is done."""
        self._moves += 1
        while self._idle:
            await self._idle.pop().close()

    async def close(self) -> None:
        """Let go of all of them, too."""
        self._closed = True
        await self.renew()


def _refused(reply: RedisError) -> TocsinError:
    """What a look's error is: never Unknown, a look changes nothing."""
    return refusal(reply) or unavailable(str(reply))


class Subscriber:
    """Hears messages of the channels with one prefix, connecting again for as long as it lives."""

    def __init__(self, connect: Connect, prefix: str, heard: Heard) -> None:
        self._connect = connect
        self._pattern = pattern_of(prefix)
        self._heard = heard
        self.is_heard = asyncio.Event()
        """Set while the subscription stands: what is published now is heard."""
        self._link: Link | None = None
        self._task = asyncio.create_task(self._run(), name="shard messages")

    async def renew(self) -> None:
        """The primary is elsewhere: hear what is published there."""
        if self._link is not None:
            await self._link.close()

    async def close(self) -> None:
        """Hear no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                self._link = link = await self._connect()
                failures = 0
                try:
                    await self._listen(link)
                finally:
                    self.is_heard.clear()
                    self._link = None
                    await link.close()
            except (Refused, RedisError, OSError):
                failures += 1
                await asyncio.sleep(
                    backoff_s(failures, base_s=BACKOFF_BASE_S, max_s=BACKOFF_MAX_S, draw=random())
                )

    async def _listen(self, link: Link) -> None:
        await link.send(packed("PSUBSCRIBE", self._pattern))
        asked = False
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    message = await link.hear()
            except TimeoutError:
                if asked:
                    raise
                asked = True
                await link.send(packed("PING"))
                continue
            asked = False
            if isinstance(message, RedisError):
                raise message
            if message[0] == b"psubscribe":
                self.is_heard.set()
            elif message[0] == b"pmessage":
                self._heard(message[2], message[3])


def pattern_of(prefix: str) -> str:
    """The glob that matches what begins with `prefix`, whatever stands in it."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in prefix) + "*"
