"""What happens to many sockets at once happens to a few in each turn of the loop."""

import asyncio
from functools import partial

from runtime.loop.fairness import PerTurnQueue

PER_TURN = 4


async def turn() -> None:
    """One turn of the loop."""
    await asyncio.sleep(0)


async def test_many_are_done_a_few_in_each_turn_and_in_order() -> None:
    """P9: on both sides of the bound."""
    few, done = PerTurnQueue(PER_TURN), list[int]()
    for number in range(2 * PER_TURN + 1):
        few.add(partial(done.append, number))
    counts = [len(done)]
    for _ in range(4):
        await turn()
        counts.append(len(done))
    assert counts == [PER_TURN, 2 * PER_TURN, 2 * PER_TURN + 1, 2 * PER_TURN + 1, 2 * PER_TURN + 1]
    assert done == sorted(done)
    assert len(few) == 0
    for number in range(PER_TURN):
        few.add(partial(done.append, 100 + number))
    assert len(done) == 3 * PER_TURN + 1
    await turn()


async def test_who_comes_while_others_wait_waits_behind_them() -> None:
    few, done = PerTurnQueue(1), list[str]()
    few.add(lambda: done.append("a"))
    few.add(lambda: done.append("b"))
    await turn()
    few.add(lambda: done.append("c"))
    assert done == ["a", "b"]
    await turn()
    assert done == ["a", "b", "c"]
    await turn()


async def test_one_that_fails_holds_up_only_its_own_turn() -> None:
    """P8: those behind it are not forgotten."""
    told = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))

    def fail() -> None:
        raise ValueError("no")

    few, done = PerTurnQueue(1), list[str]()
    few.add(lambda: done.append("a"))
    few.add(fail)
    few.add(lambda: done.append("b"))
    for _ in range(4):
        await turn()
    assert (done, told, len(few)) == (["a", "b"], ["no"], 0)
