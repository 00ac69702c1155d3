"""Work in turns of the loop: arrivals, and large reads."""

import asyncio
from collections.abc import Callable

from gateway.intake import TURNS_AT_ONCE, Intake
from gateway.turns import Turns
from tests.conformance.virtual import run


def noting(into: list[int], number: int) -> Callable[[], None]:
    return lambda: into.append(number)


async def test_a_turn_has_its_share_and_the_rest_comes_in_order() -> None:
    """P9. On both sides of the share; what comes late does not overtake what waits."""
    turns, done = Turns(2), list[int]()
    assert [turns.take(noting(done, number)) for number in range(5)] == [True, True] + [False] * 3
    assert done == [0, 1]
    await asyncio.sleep(0)
    assert done == [0, 1, 2, 3]
    assert not turns.take(noting(done, 5))
    await asyncio.sleep(0)
    assert done == [0, 1, 2, 3, 4, 5]


async def test_the_next_turn_has_a_share_of_its_own() -> None:
    turns, done = Turns(1), list[int]()
    for number in range(3):
        assert turns.take(noting(done, number))
        await asyncio.sleep(0)
    assert done == [0, 1, 2]


def test_large_reads_take_turns_a_few_in_each_millisecond() -> None:
    """P9."""

    async def main() -> None:
        loop, intake, done = asyncio.get_running_loop(), Intake(), list[tuple[int, int]]()
        began = loop.time()
        over = asyncio.Event()

        def read(number: int) -> None:
            done.append((number, round((loop.time() - began) * 1000)))
            if number == 2 * TURNS_AT_ONCE:
                over.set()

        for number in range(2 * TURNS_AT_ONCE + 1):
            intake.rest(lambda number=number: read(number))  # type: ignore[misc]
        assert not done
        await over.wait()
        assert done == [(number, 1 + number // TURNS_AT_ONCE) for number in range(len(done))]
        over.clear()
        intake.rest(lambda: read(2 * TURNS_AT_ONCE))
        await over.wait()

    run(main())
