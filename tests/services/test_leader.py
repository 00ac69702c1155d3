"""A manager among the others, where a beat is under way when it goes down."""

import asyncio
from collections.abc import Sequence
from typing import cast

from metadata.redis.database import Arg, CatalogShard
from services.manager.leader import Leader, RedisLeaderRow
from services.manager.rules.leader import NOBODY, LeaderRow


class HeldShard:
    """A shard with the managers' row; the answer to the write after `hold` was set never comes,
    though it was done."""

    def __init__(self) -> None:
        self.row = NOBODY
        self.hold = False
        self.held = asyncio.Event()

    async def act(
        self, function: str, _: Sequence[str], args: Sequence[Arg], *, level: str
    ) -> tuple[object, ...]:
        """As the function `lead` does it."""
        assert (function, level) == ("lead", "local")
        await asyncio.sleep(0)
        if args and self.row == LeaderRow(*args[:3]):  # type: ignore[arg-type]
            self.row = LeaderRow(*args[3:])  # type: ignore[arg-type]
            if self.hold:
                self.hold = False
                self.held.set()
                await asyncio.Event().wait()
        return (self.row.holder.encode(), self.row.term, self.row.beat)

    async def look(
        self, function: str, _: Sequence[str], args: Sequence[Arg]
    ) -> tuple[object, ...]:
        """As the function `lead_told` does it: nothing was said."""
        assert (function, args) == ("lead_told", [])
        return (b"", [])

    def leader(self) -> Leader:
        """A manager that takes part here."""
        return Leader(RedisLeaderRow(cast(CatalogShard, self)))


async def test_who_goes_down_in_the_middle_of_a_beat_leaves_the_row_to_the_next_at_once() -> None:
    shard = HeldShard()
    leader = shard.leader()
    leader.start()
    await leader.began.wait()
    shard.hold = True
    await shard.held.wait()
    beat = shard.row.beat
    await leader.stop()
    assert shard.row.holder == ""
    assert shard.row.beat > beat


async def test_who_goes_down_while_it_takes_the_row_leaves_it_to_the_next_at_once() -> None:
    shard = HeldShard()
    shard.hold = True
    leader = shard.leader()
    leader.start()
    await shard.held.wait()
    assert shard.row.holder == leader.name
    await leader.stop()
    assert shard.row.holder == ""


async def test_who_does_not_lead_takes_nothing_from_who_does() -> None:
    shard = HeldShard()
    shard.row = LeaderRow("another", 3, 7)
    leader = shard.leader()
    leader.start()
    await asyncio.sleep(0)
    await leader.stop()
    assert shard.row == LeaderRow("another", 3, 7)
