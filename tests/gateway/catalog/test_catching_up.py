"""Who asks for what he has just made elsewhere is told what is there now."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from gateway.catalog.lookups import CATCH_UP_EVERY_S, CatchUp
from push.errors import Refused
from tests.conformance.virtual import run


class Catalog:
    """What others change (`now`), and what is known of it here. A reading takes READ_S, and brings
    what was there when it began."""

    READ_S = 0.3

    def __init__(self) -> None:
        self.now = self.known = 0
        self.reads: list[float] = []
        self.error: Exception | None = None

    async def read(self) -> None:
        """Note the time of the reading; raise `error` if there is one."""
        self.reads.append(asyncio.get_running_loop().time())
        found = self.now
        await asyncio.sleep(self.READ_S)
        if self.error is not None:
            raise self.error
        self.known = found


def in_virtual_time(history: Callable[[Catalog, CatchUp], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        catalog = Catalog()
        await history(catalog, CatchUp(catalog.read))

    run(whole())


def test_what_was_changed_before_is_known_whatever_is_being_read() -> None:
    """[A reading that had begun before the change is taken for an answer: what its client has made
    a moment ago is not there]"""

    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        first = asyncio.create_task(catch_up())
        await asyncio.sleep(catalog.READ_S / 2)
        catalog.now = 1
        await catch_up()
        assert catalog.known == 1
        assert first.done()

    in_virtual_time(history)


def test_all_who_come_meanwhile_share_the_next_reading() -> None:
    """P9: a thousand names that nobody has are two readings, one after the other."""

    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        one = asyncio.create_task(catch_up())
        await asyncio.sleep(catalog.READ_S / 2)
        await asyncio.gather(one, *(catch_up() for _ in range(1000)))
        assert len(catalog.reads) == 2
        assert catalog.reads[1] - catalog.reads[0] == pytest.approx(catalog.READ_S)

    in_virtual_time(history)


def test_readings_that_take_no_time_are_kept_apart() -> None:
    """However often somebody asks."""

    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        catalog.READ_S = 0.0
        for _ in range(5):
            await catch_up()
        gaps = [after - before for before, after in pairwise(catalog.reads)]
        assert min(gaps) >= CATCH_UP_EVERY_S - 1e-9

    in_virtual_time(history)


def test_who_shares_a_reading_that_fails_is_told_and_the_next_one_is_another() -> None:
    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        catalog.error = Refused("metadata_unavailable", "nobody answers", 1.0)
        both = await asyncio.gather(catch_up(), catch_up(), return_exceptions=True)
        assert [*both] == [catalog.error, catalog.error]
        catalog.error, catalog.now = None, 7
        await catch_up()
        assert catalog.known == 7

    in_virtual_time(history)


@pytest.mark.parametrize(
    "error", [Refused("metadata_unavailable", "nobody answers", 1.0), RuntimeError("a bug")]
)
def test_who_waits_for_one_that_fails_is_told_of_his_own(error: Exception) -> None:
    """Whatever it fails of. [A bug in one reading is told everybody who asks from then on]"""

    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        catalog.error = error
        first = asyncio.create_task(catch_up())
        await asyncio.sleep(catalog.READ_S / 2)
        second = asyncio.create_task(catch_up())
        with pytest.raises(type(error)):
            await first
        catalog.error, catalog.now = None, 3
        await second
        assert catalog.known == 3

    in_virtual_time(history)


def test_who_goes_away_takes_the_reading_from_nobody() -> None:
    async def history(catalog: Catalog, catch_up: CatchUp) -> None:
        catalog.now = 1
        first, second = asyncio.create_task(catch_up()), asyncio.create_task(catch_up())
        await asyncio.sleep(catalog.READ_S / 2)
        first.cancel()
        await second
        assert catalog.known == 1

    in_virtual_time(history)
