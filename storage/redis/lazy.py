"""A shard that is opened once it answers, for a gateway that starts while others run.

Until then it refuses everything at once. Later, too, looks at a shard that does not answer are
refused at once for a moment, so that callers with work elsewhere do not wait for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import random
from typing import Any, Final, Protocol

from push import limits
from push.errors import Fenced, Refused, TocsinError
from push.places import Durability
from push.retry import Breaker, backoff_s
from push.storage_port import Lane
from storage.redis.answers import FunctionRefusal, refused, unavailable
from storage.redis.port import Arg, OnMessage, Shard, ShardHealth

AGAIN_BASE_S: Final = 0.5
AGAIN_MAX_S: Final = 5.0
NOT_OPEN: Final = -2
"""Lane number of a LazyShard that was not opened yet. No open shard has such a lane."""
TRIAL_S: Final = 10.0
"""Seconds after which the breaker's trial, a look without an end, counts as failed: the longest
time in which a look finds the primary, connects and gets a reply."""
_LOG: Final = logging.getLogger("storage.redis_later")


class ReadyShard(Shard, Protocol):
    """A shard that was opened, as a LazyShard needs it."""

    @property
    def answers(self) -> bool:
        """Whether the shard's servers answered, within the last seconds."""

    async def wait_subscribed(self) -> None:
        """Wait until the subscriptions made with `on_message` are active."""


class LazyShard:
    """`storage.redis.port.Shard` that is opened later. `name`: the storage cluster's, for people.
    `begin` opens it, and raises TocsinError if it cannot be opened now. None: it never can, and
    `why` is the reason given to callers."""

    def __init__(
        self, name: str, begin: Callable[[], Awaitable[ReadyShard]] | None, why: str = ""
    ) -> None:
        self._name = name
        self._begin = begin
        self._why = why or "it was not reached yet"
        self._shard: ReadyShard | None = None
        self._heard: list[tuple[str, OnMessage]] = []
        self.is_open = asyncio.Event()
        """Event that is set, for good, once the shard was opened."""
        self._breaker = Breaker(
            failures_max=limits.BREAKER_FAILURES, open_s=limits.BREAKER_OPEN_S, trial_s=TRIAL_S
        )
        self._task: asyncio.Task[None] | None = None
        if begin is not None:
            self._task = asyncio.create_task(self._run(begin), name=f"storage cluster {name}")

    async def _run(self, begin: Callable[[], Awaitable[ReadyShard]]) -> None:
        failures = 0
        while True:
            try:
                shard = await begin()
            except TocsinError as error:
                if error.detail != self._why:
                    _LOG.error(
                        "the storage cluster %s is not used yet: %s", self._name, error.detail
                    )
                self._why = error.detail
            except Exception as error:  # whatever a server may say, it is tried again
                _LOG.exception("the storage cluster %s could not be opened", self._name)
                self._why = f"internal: {error!r}"
            else:
                break
            failures += 1
            await asyncio.sleep(
                backoff_s(failures, base_s=AGAIN_BASE_S, max_s=AGAIN_MAX_S, draw=random())
            )
        for prefix, heard in self._heard:
            shard.on_message(prefix, heard)
        self._shard = shard
        self.is_open.set()
        if failures:
            _LOG.warning("the storage cluster %s is there, and is used now", self._name)

    @property
    def answers(self) -> bool:
        """Whether the shard was opened, and its servers answered within the last seconds. No
        server is queried."""
        return self._shard is not None and self._shard.answers

    def _open(self) -> ReadyShard:
        if self._shard is None:
            raise unavailable(f"the storage cluster {self._name}: {self._why}")
        return self._shard

    def copies(self, level: Durability) -> int:
        return self._shard.copies(level) if self._shard is not None else 1

    def lane(self, key: str, level: Durability) -> Lane:
        """Return the lane of acts of this level on this key. Until the shard is opened its number
        is NOT_OPEN, so that acts decided before the opening are refused afterwards."""
        if self._shard is None:
            return Lane(NOT_OPEN, 0)
        return self._shard.lane(key, level)

    def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> Awaitable[Any]:
        try:
            shard = self._open()
        except Refused as error:
            return refused(error)
        return shard.act(function, keys, args, level=level, lane=lane)

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        shard, clock = self._open(), asyncio.get_running_loop().time
        ticket = self._breaker.admit(now=clock())
        if ticket is None:
            raise unavailable(f"the storage cluster {self._name} does not answer")
        try:
            found = await shard.look(function, keys, args)
        except (FunctionRefusal, Fenced):
            self._breaker.succeeded(ticket)
            raise
        except Refused:
            self._breaker.failed(ticket, now=clock())
            raise
        self._breaker.succeeded(ticket)
        return found

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        self._heard.append((channel_prefix, heard))
        if self._shard is not None:
            self._shard.on_message(channel_prefix, heard)

    async def wait_subscribed(self) -> None:
        """Wait until the subscriptions made with `on_message` are active. Returns at once while the
        shard is not open."""
        if self._shard is not None:
            await self._shard.wait_subscribed()

    def has_room(self, key: str | None = None) -> bool:
        return self._shard is None or self._shard.has_room(key)

    def health(self) -> ShardHealth:
        if self._shard is None:
            return ShardHealth((self._why,), {})
        return self._shard.health()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._shard is not None:
            await self._shard.close()
