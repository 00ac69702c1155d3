"""The writer is on the loop's core while commits are small, and is kept nowhere for long."""

import threading
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import cast

import pytest

from storage.sqlite.writer import PINNED_S, SMALL_BYTES, UNPINNED_S, Cores, SharedCore, cores
from tests.storage.conftest import Embedded

WRITER = 4242
ALL = {0, 1, 2, 3}
ASKED = 100_000
"""Who gives the lock up has lost it to somebody by then."""


class Machine:
    """Four cores, a loop that runs on one of them, and a clock."""

    def __init__(self, allowed: set[int] | None = None) -> None:
        self.writer_may = set(allowed or ALL)
        self.loop_is_on = 2
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.refuses = False
        self.core = SharedCore(cast(AbstractEventLoop, self), WRITER, cast(Cores, self))

    def current(self) -> int:
        return self.loop_is_on

    def allowed(self, thread: int) -> set[int]:
        assert thread == WRITER
        return set(self.writer_may)

    def pin(self, thread: int, cores: set[int]) -> None:
        assert thread == WRITER
        if self.refuses:
            raise PermissionError
        self.writer_may = set(cores)

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, work: Callable[[], None]) -> TimerHandle:
        self.timers.append((self.now + delay_s, work))
        return cast(TimerHandle, self)

    def cancel(self) -> None:
        self.timers.clear()

    def passes(self, seconds: float) -> None:
        """So much time."""
        self.now += seconds
        for at, work in list(self.timers):
            if at <= self.now:
                work()


def test_small_commits_put_the_writer_on_the_loop_s_core_wherever_that_is() -> None:
    machine = Machine()
    machine.core.on_task(SMALL_BYTES)
    assert machine.writer_may == {2}
    machine.loop_is_on = 3
    machine.core.on_task(0)
    assert machine.writer_may == {3}


def test_where_the_writer_may_not_run_it_is_not_put() -> None:
    machine = Machine({1, 2})
    machine.core.on_task(0)
    machine.loop_is_on = 3
    machine.core.on_task(0)
    assert machine.writer_may == {2}


def test_a_large_one_lets_it_go_for_a_while() -> None:
    machine = Machine()
    machine.core.on_task(0)
    machine.core.on_task(SMALL_BYTES + 1)
    assert machine.writer_may == ALL
    assert not machine.timers
    machine.passes(UNPINNED_S - 0.01)
    machine.core.on_task(0)
    assert machine.writer_may == ALL
    machine.passes(0.02)
    machine.core.on_task(0)
    assert machine.writer_may == {2}


def test_it_is_kept_there_for_no_longer_than_a_moment() -> None:
    machine = Machine()
    machine.core.on_task(0)
    machine.passes(PINNED_S - 0.01)
    assert machine.writer_may == {2}
    machine.passes(0.02)
    assert machine.writer_may == ALL


def test_if_somebody_else_has_put_it_somewhere_it_stays_there() -> None:
    machine = Machine()
    machine.core.on_task(0)
    machine.writer_may = {0, 1}  # taskset
    machine.core.release()
    assert machine.writer_may == {0, 1}


@pytest.mark.parametrize("allowed", [{1}, {0, 1}])
def test_where_there_is_one_core_or_not_the_loop_s_it_is_left_alone(allowed: set[int]) -> None:
    machine = Machine(allowed)
    machine.core.on_task(0)
    assert machine.writer_may == allowed


def test_where_it_is_not_allowed_it_is_not_tried_again() -> None:
    machine = Machine()
    machine.refuses = True
    machine.core.on_task(0)
    machine.refuses = False
    machine.passes(UNPINNED_S)
    machine.core.on_task(0)
    assert machine.writer_may == ALL


async def test_a_store_s_writer_is_where_the_loop_is_and_the_loop_where_it_likes(
    embedded: Embedded,
) -> None:
    """On a real machine, with its real threads."""
    found = cores()
    if found is None or len(found.allowed(0)) < 2:
        pytest.skip("this machine has nothing to choose between")
    before = found.allowed(0)
    store = await embedded.open()
    writer = store._writer._thread.native_id
    assert writer is not None
    await store.create_queue("q", 1)
    assert len(found.allowed(writer)) == 1
    assert found.allowed(0) == before
    store._writer.refuse("it is closed soon")
    assert found.allowed(writer) == before


def test_this_machine_is_asked_as_it_should_be() -> None:
    if cores() is None:
        pytest.skip("not Linux")
    asked = Cores()
    assert asked.current() in asked.allowed(0)


@pytest.mark.usefixtures("unasked")
def test_who_asks_does_not_let_the_writer_in() -> None:
    """It would begin without what is handed over behind what it was woken up for."""
    if cores() is None:
        pytest.skip("not Linux")
    asked = Cores()
    it_may, ready, came = threading.Lock(), threading.Event(), threading.Event()

    def writer() -> None:
        ready.set()
        with it_may:
            came.set()

    thread = threading.Thread(target=writer)
    with it_may:
        thread.start()
        ready.wait()
    for _ in range(ASKED):
        asked.pin(0, asked.allowed(0))
        asked.current()
    assert not came.is_set()
    thread.join()
