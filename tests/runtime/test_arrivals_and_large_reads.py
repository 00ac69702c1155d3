"""Work in turns of the loop: arrivals, and large reads."""

import asyncio
from collections.abc import Callable

import pytest

from runtime.loop.fairness import (
    ARRIVAL_PAUSE_S,
    ARRIVALS_AT_FULL_PAUSE,
    FREE_TURN_S,
    LARGE_READS_PER_PAUSE,
    ArrivalGate,
    LargeReadGate,
)
from tests.conformance.virtual import run


def noting(into: list[int], number: int) -> Callable[[], None]:
    return lambda: into.append(number)


class Clock:
    """Moves when it is told to, and a little with each look at it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now


async def turns_of(count: int, clock: Clock, took_s: float) -> None:
    """This many turns of the loop, each with so much in it."""
    for _ in range(count):
        clock.now += took_s
        await asyncio.sleep(0)


async def test_an_arrival_begins_at_once_in_a_loop_that_is_free() -> None:
    clock = Clock()
    gate, done = ArrivalGate(clock), list[int]()
    for number in range(3):
        assert gate.begin(noting(done, number))
        assert done[-1] == number
        await turns_of(1, clock, 0.0)


async def test_arrivals_wait_in_order_for_a_turn_with_nothing_else_in_it() -> None:
    """P9. On both sides of what a free turn takes."""
    clock = Clock()
    gate, done = ArrivalGate(clock), list[int]()
    assert [gate.begin(noting(done, number)) for number in range(3)] == [True, False, False]
    await turns_of(5, clock, FREE_TURN_S * 1.1)
    assert done == [0]
    assert not gate.begin(noting(done, 3))
    for number in range(1, 4):
        await turns_of(1, clock, FREE_TURN_S * 0.9)
        assert done == list(range(number + 1))
    await turns_of(1, clock, 0.0)
    assert gate.begin(noting(done, 4))


async def test_where_the_loop_is_never_free_one_arrival_begins_in_each_pause() -> None:
    """Nobody waits for ever (P9)."""
    clock = Clock()
    gate, begun_at, began = ArrivalGate(clock), list[float](), clock.now
    for _ in range(5):
        gate.begin(lambda: begun_at.append(clock.now - began))
    await turns_of(30, clock, ARRIVAL_PAUSE_S / 4)
    assert [round(at / ARRIVAL_PAUSE_S, 1) for at in begun_at] == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_an_arrival_that_fails_takes_nobody_elses_turn() -> None:
    clock = Clock()
    gate, done = ArrivalGate(clock), list[int]()

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        gate.begin(fail)
    assert not gate.begin(noting(done, 1))
    await turns_of(1, clock, 0.0)
    assert done == [1]


async def test_who_waits_for_a_turn_and_is_cancelled_holds_nobody_up() -> None:
    clock = Clock()
    gate, done = ArrivalGate(clock), list[int]()
    await gate.wait()
    waiting = asyncio.create_task(gate.wait())
    await turns_of(1, clock, FREE_TURN_S * 2)
    waiting.cancel()
    assert not gate.begin(noting(done, 1))
    await turns_of(3, clock, 0.0)
    assert done == [1]


def test_large_reads_take_turns_a_few_in_each_millisecond() -> None:
    """P9."""

    async def main() -> None:
        loop, gate, done = asyncio.get_running_loop(), LargeReadGate(), list[tuple[int, int]]()
        began = loop.time()
        over = asyncio.Event()

        def read(number: int) -> None:
            done.append((number, round((loop.time() - began) * 1000)))
            if number == 2 * LARGE_READS_PER_PAUSE:
                over.set()

        for number in range(2 * LARGE_READS_PER_PAUSE + 1):
            gate.wait(lambda number=number: read(number))  # type: ignore[misc]
        assert not done
        await over.wait()
        assert done == [
            (number, 1 + number // LARGE_READS_PER_PAUSE) for number in range(len(done))
        ]
        over.clear()
        gate.wait(lambda: read(2 * LARGE_READS_PER_PAUSE))
        await over.wait()

    run(main())


def fail() -> None:
    raise ZeroDivisionError


def test_a_socket_with_a_bug_keeps_no_other_from_being_read_again() -> None:
    """P12: its own connection ends with the error, and those behind it have their turns."""

    async def main() -> None:
        loop, gate, over, told = asyncio.get_running_loop(), LargeReadGate(), asyncio.Event(), []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        gate.wait(fail)
        await asyncio.sleep(0.01)
        gate.wait(over.set)
        await asyncio.wait_for(over.wait(), 1)
        assert [type(error) for error in told] == [ZeroDivisionError]

    run(main())


def test_behind_a_read_the_storages_thread_has_its_turn_while_something_is_stored() -> None:
    """And what was read goes to it first."""
    storing, done = [False], list[str]()

    def commit_early() -> bool:
        done.append("commit")
        return storing[0]

    gate = LargeReadGate(commit_early, lambda: done.append("give way"))
    gate.after_read()
    assert done == ["commit"], "beside a flood that rests nothing is stored, and others wait for it"
    storing[0] = True
    gate.after_read()
    gate.after_read()
    assert done == ["commit", *["commit", "give way"] * 2]


@pytest.mark.parametrize(
    ("waiting", "pauses"), [(ARRIVALS_AT_FULL_PAUSE, 1.0), (2 * ARRIVALS_AT_FULL_PAUSE, 0.5)]
)
async def test_of_a_crowd_each_begins_sooner_after_the_one_before(
    waiting: int, pauses: float
) -> None:
    """A fleet that comes back gives up after 10 s. On both sides of what a crowd is."""
    clock = Clock()
    gate, begun_at = ArrivalGate(clock), list[float]()
    for _ in range(1 + waiting):
        gate.begin(lambda: begun_at.append(clock.now))
    await turns_of(40, clock, ARRIVAL_PAUSE_S / 10)
    assert round((begun_at[1] - begun_at[0]) / ARRIVAL_PAUSE_S, 1) == pauses
