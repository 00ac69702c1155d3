"""A manager among the others, where a beat is under way when it goes down."""

import asyncio
from collections.abc import Mapping

from services.manager.leader import Leader
from services.manager.rules.leader import NOBODY, LeaderRow


class HeldRow:
    """The row; the answer to the write after `hold` was set never comes, though it was done."""

    def __init__(self) -> None:
        self.row = NOBODY
        self.hold = False
        self.held = asyncio.Event()

    async def ask(self, change: tuple[LeaderRow, LeaderRow] | None) -> LeaderRow:
        """As RedisLeaderRow.ask."""
        await asyncio.sleep(0)
        if change is not None and self.row == change[0]:
            self.row = change[1]
            if self.hold:
                self.hold = False
                self.held.set()
                await asyncio.Event().wait()
        return self.row

    async def say(self, lead: LeaderRow, said: Mapping[str, bytes]) -> bool:
        """Nothing is said here."""
        raise AssertionError((lead, said))

    async def told(self) -> dict[str, bytes]:
        """Nothing."""
        return {}


async def test_who_goes_down_in_the_middle_of_a_beat_leaves_the_row_to_the_next_at_once() -> None:
    row = HeldRow()
    leader = Leader(row)
    leader.start()
    await leader.began.wait()
    row.hold = True
    await row.held.wait()
    beat = row.row.beat
    await leader.stop()
    assert row.row.holder == ""
    assert row.row.beat > beat


async def test_who_goes_down_while_it_takes_the_row_leaves_it_to_the_next_at_once() -> None:
    row = HeldRow()
    row.hold = True
    leader = Leader(row)
    leader.start()
    await row.held.wait()
    assert row.row.holder == leader.name
    await leader.stop()
    assert row.row.holder == ""


async def test_who_does_not_lead_takes_nothing_from_who_does() -> None:
    row = HeldRow()
    row.row = LeaderRow("another", 3, 7)
    leader = Leader(row)
    leader.start()
    await asyncio.sleep(0)
    await leader.stop()
    assert row.row == LeaderRow("another", 3, 7)
