"""A storage cluster that is opened later: what was decided before is not done then, nobody waits
for it, and what was subscribed to is heard."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from push import limits
from push.errors import Refused
from push.places import Durability
from push.storage_port import Lane
from storage.redis import lazy as redis_later
from storage.redis.answers import FunctionRefusal, unavailable
from storage.redis.lazy import LazyShard, ReadyShard
from storage.redis.pipeline import BEHIND
from storage.redis.port import Arg, OnMessage, ShardHealth
from tests.waiting import becomes

KEY = "{q}:log:0"


class Kept:
    """A shard in memory, which has one list."""

    def __init__(self) -> None:
        self.answers = True
        self.doubts = 0
        self.notes: list[Arg] = []
        self.looks = 0
        self.why: Refused | None = None
        self.heard_of: list[str] = []

    def copies(self, level: Durability) -> int:
        return 3

    def lane(self, key: str, level: Durability) -> Lane:
        return Lane(2, self.doubts)

    async def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> int:
        if lane not in (None, self.lane(keys[0], level)):
            raise unavailable(BEHIND)
        self.notes.extend(args)
        return len(self.notes)

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        self.looks += 1
        if self.why is not None:
            raise self.why
        return self.notes

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        self.heard_of.append(channel_prefix)

    def has_room(self, key: str | None = None) -> bool:
        return False

    def health(self) -> ShardHealth:
        return ShardHealth((), {"here": "well"})

    async def wait_subscribed(self) -> None:
        pass

    async def close(self) -> None:
        pass


@asynccontextmanager
async def later(
    begin: Callable[[], Awaitable[ReadyShard]] | None, why: str = ""
) -> AsyncIterator[LazyShard]:
    shard = LazyShard("south", begin, why)
    try:
        yield shard
    finally:
        await shard.close()


async def test_what_was_decided_before_it_was_opened_does_not_happen_then() -> None:
    """R7: what it was to come behind was refused. And what has failed since counts as there."""
    kept, may = Kept(), asyncio.Event()

    async def begin() -> Kept:
        await may.wait()
        return kept

    async with later(begin) as shard:
        before = shard.lane(KEY, "all")
        with pytest.raises(Refused, match="south: it was not reached yet"):
            await shard.act("note", [KEY], ["first"], level="all", lane=before)
        may.set()
        await shard.is_open.wait()
        with pytest.raises(Refused, match=BEHIND):
            await shard.act("note", [KEY], ["second"], level="all", lane=before)
        now = shard.lane(KEY, "all")
        assert await shard.act("note", [KEY], ["first"], level="all", lane=now) == 1
        kept.doubts += 1
        with pytest.raises(Refused, match=BEHIND):
            await shard.act("note", [KEY], ["third"], level="all", lane=now)
        assert kept.notes == ["first"]


async def test_it_is_tried_again_and_what_was_subscribed_to_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_later, "AGAIN_BASE_S", 0.001)
    kept, may, tries = Kept(), asyncio.Event(), 0

    async def begin() -> Kept:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Refused("storage_unavailable", "no primary is known")
        if tries == 2:
            raise ValueError("whatever a server may say")
        await may.wait()
        return kept

    async with later(begin) as shard:
        shard.on_message("tocsin:wake", lambda _channel, _said: None)
        assert (shard.answers, shard.has_room(), shard.copies("all")) == (False, True, 1)
        await becomes(lambda: tries == 3)
        assert "whatever a server may say" in shard.health().waits_for[0]
        may.set()
        await shard.is_open.wait()
        assert kept.heard_of == ["tocsin:wake"]
        assert (shard.answers, shard.has_room(), shard.copies("all")) == (True, False, 3)
        assert shard.health().facts == {"here": "well"}
        kept.answers = False
        assert not shard.answers


async def test_looks_at_one_that_does_not_answer_wait_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P8: who has work elsewhere would wait for each; what a function refuses is an answer."""
    monkeypatch.setattr(limits, "BREAKER_OPEN_S", 0.05)
    kept = Kept()

    async def begin() -> Kept:
        return kept

    async with later(begin) as shard:
        await shard.is_open.wait()
        kept.why = FunctionRefusal("queue_not_found")
        for _ in range(2 * limits.BREAKER_FAILURES):
            with pytest.raises(Refused, match="queue_not_found"):
                await shard.look("read", [KEY], [])
        kept.why = unavailable("no reply in time")
        for _ in range(2 * limits.BREAKER_FAILURES):
            with pytest.raises(Refused, match="storage_unavailable"):
                await shard.look("read", [KEY], [])
        assert kept.looks == 3 * limits.BREAKER_FAILURES
        kept.why = None

        async def is_seen() -> bool:
            try:
                await shard.look("read", [KEY], [])
            except Refused:
                return False
            return True

        await becomes(is_seen)


async def test_one_that_this_gateway_is_not_told_of_says_so() -> None:
    async with later(None, "this gateway's TOCSIN_STORAGE does not name it") as shard:
        with pytest.raises(Refused, match="does not name it"):
            await shard.act("note", [KEY], ["x"], level="local")
        with pytest.raises(Refused, match="does not name it"):
            await shard.look("read", [KEY], [])
        assert not shard.answers
