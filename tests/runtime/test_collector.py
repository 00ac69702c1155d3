"""When the garbage collector looks, and for how long."""

import asyncio
import gc
import weakref
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.process import (
    ALL,
    ALL_EVERY_S,
    ALL_EVERY_S_MAX,
    ALL_SHARE,
    FOUND_MIN,
    NEW_MIN,
    YOUNG,
    YOUNG_EVERY_S,
    YOUNG_EVERY_S_MAX,
    YOUNG_SHARE,
    Collector,
    Rounds,
)


def test_what_is_new_is_looked_at_twenty_times_a_second_where_it_is_much() -> None:
    """On both sides; who asked late has the next one as long after that."""
    rounds = Rounds(now=0.0)
    assert rounds.due(NEW_MIN, now=YOUNG_EVERY_S - 0.001) is None
    assert rounds.due(NEW_MIN, now=YOUNG_EVERY_S) == YOUNG
    rounds.took(YOUNG, 0.001, 0, now=1.0)
    assert rounds.due(NEW_MIN, now=1.0 + YOUNG_EVERY_S - 0.001) is None
    assert rounds.next_at() == 1.0 + YOUNG_EVERY_S
    assert rounds.due(NEW_MIN, now=1.0 + YOUNG_EVERY_S) == YOUNG


def test_what_is_new_and_little_waits_four_times_as_long() -> None:
    """Who asks is told when to ask again, also what becomes much meanwhile is looked at."""
    rounds, asked = Rounds(now=0.0), []
    while rounds.due(NEW_MIN - 1, now=rounds.next_at()) is None:
        asked.append(rounds.next_at())
    assert rounds.next_at() == YOUNG_EVERY_S_MAX
    assert asked == pytest.approx([0.1, 0.15, 0.2, 0.25])
    rounds.took(YOUNG, 0.001, 0, now=1.0)
    assert rounds.due(0, now=1.0 + YOUNG_EVERY_S) is None
    assert rounds.due(NEW_MIN, now=1.0 + 2 * YOUNG_EVERY_S - 0.001) is None
    assert rounds.due(NEW_MIN, now=1.0 + 2 * YOUNG_EVERY_S) == YOUNG


def test_a_long_look_is_followed_by_a_longer_pause() -> None:
    rounds = Rounds(now=0.0)
    rounds.took(YOUNG, 0.05, 0, now=1.0)
    assert rounds.next_at() == 1.0 + 0.05 / YOUNG_SHARE
    rounds.took(ALL, 0.2, FOUND_MIN, now=20.0)
    assert rounds.due(0, now=20.0 + 0.2 / ALL_SHARE - 0.001) == YOUNG
    assert rounds.due(0, now=20.0 + 0.2 / ALL_SHARE) == ALL


def test_everything_is_looked_at_more_rarely_as_long_as_nothing_is_found() -> None:
    """A minute, two, … up to ten; a thousand objects found, and it is a minute again."""
    rounds, now, pauses = Rounds(now=0.0), 0.0, []
    for found in (0, FOUND_MIN - 1, 0, 0, 0, FOUND_MIN, 0):
        while rounds.due(NEW_MIN, now=now) is not ALL:
            now += 1.0
        pauses.append(now)
        rounds.took(ALL, 0.001, found, now=now)
    steps = [after - before for before, after in pairwise(pauses)]
    assert pauses[0] == ALL_EVERY_S
    assert steps == [120, 240, 480, 600, 600, 60]
    assert max(steps) == ALL_EVERY_S_MAX


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 10_000), st.floats(0, 2), st.integers(0, 2 * NEW_MIN)
        ),
        max_size=100,
    )
)  # fmt: skip
def test_looking_takes_no_more_than_its_share_of_the_time(
    looks: list[tuple[float, int, float, int]],
) -> None:
    """Whatever each look takes and finds, and however late it is: of any stretch that begins when
    one has ended and ends when the next one of its kind begins."""
    rounds, now = Rounds(now=0.0), 0.0
    ended: dict[int, tuple[float, float]] = {}
    for seconds, found, late_s, new in looks:
        now = max(now, rounds.next_at()) + late_s
        generation = rounds.due(new, now=now)
        if generation is None:
            assert now < rounds.next_at() <= now + YOUNG_EVERY_S
            assert new < NEW_MIN
            continue
        if generation in ended:
            at, took = ended[generation]
            share = YOUNG_SHARE if generation == YOUNG else ALL_SHARE
            assert took <= share * (now - at) + 1e-6
        now += seconds
        rounds.took(generation, seconds, found, now=now)
        ended[generation] = (now, seconds)


class _Circle:
    def __init__(self) -> None:
        self.itself = self


async def test_what_refers_to_itself_goes_without_pythons_own_looks() -> None:
    """And at the end Python looks again by itself."""
    looked = asyncio.Event()

    def collect(generation: int) -> int:
        found = gc.collect(generation)
        looked.set()
        return found

    collector = Collector(collect)
    collector.start()
    try:
        assert not gc.isenabled()
        lost = weakref.ref(_Circle())
        assert lost() is not None
        async with asyncio.timeout(10):
            await looked.wait()
        assert lost() is None
    finally:
        collector.stop()
    assert gc.isenabled()
    looked.clear()
    collector.stop()
    await asyncio.sleep(0)
    assert not looked.is_set()


@pytest.mark.parametrize("times", [1, 2])
def test_stopping_what_never_started_is_nothing(times: int) -> None:
    collector = Collector()
    for _ in range(times):
        collector.stop()
    assert gc.isenabled()
