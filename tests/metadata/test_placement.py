"""Where the partitions of a new queue are: spread, where there is room, the same each time."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.placement import CYCLE_MAX, Candidate, place
from push.errors import Refused

WELL = [Candidate("a", "north", 0.3), Candidate("b", "south", 0.3), Candidate("c", "south", 0.3)]
candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdefgh"),
        st.sampled_from(["", "north", "south", "east"]),
        st.none() | st.floats(0, 1.2),
        st.sampled_from(["well", "hot", "away"]),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.name,
)
partitions = st.integers(1, 200)


def placed(queue_id: str, count: int, them: list[Candidate]) -> Counter[str]:
    """How many of the partitions each has."""
    cycle = place(queue_id, count, them, is_bounded=False)
    return Counter(cycle[number % len(cycle)] for number in range(count))


@given(candidates, partitions, st.text("abc", min_size=1, max_size=4))
def test_a_queue_is_only_where_something_may_be_placed(
    them: list[Candidate], count: int, queue_id: str
) -> None:
    """None on an overheated cluster or one that is away, unless all are hot; and if all that
    answer are, then there all the same. Whoever computes it comes to the same."""
    answering = [one for one in them if one.state != "away"]
    if not answering:
        with pytest.raises(Refused) as refused:
            place(queue_id, count, them, is_bounded=False)
        assert refused.value.code.name == "storage_unavailable"
        return
    well = {one.name for one in answering if one.state == "well"}
    counts = placed(queue_id, count, them)
    assert set(counts) <= (well or {one.name for one in answering})
    assert counts == placed(queue_id, count, them[::-1])


@given(candidates, st.integers(1, 10), st.text("abc", min_size=1, max_size=4))
def test_a_queue_is_spread_over_clusters_and_zones(
    them: list[Candidate], count: int, queue_id: str
) -> None:
    """Over as many clusters as there are partitions, and with as few partitions over as many zones
    as possible: what is lost with one is part of each queue."""
    usable = [replace(one, state="well") for one in them]
    counts = placed(queue_id, count, usable)
    assert len(counts) == min(count, len(usable))
    zones = {one.name: one.zone or one.name for one in usable}
    assert len({zones[name] for name in counts}) == min(count, len(set(zones.values())))


def test_two_partitions_are_in_two_zones() -> None:
    them = [Candidate(name, zone) for name, zone in zip("abcd", ("n", "n", "n", "s"), strict=True)]
    for number in range(50):
        assert "d" in place(f"q{number}", 2, them, is_bounded=False)


@given(st.lists(st.floats(0, 0.95), min_size=2, max_size=6), st.integers(1, 4))
def test_who_has_more_room_takes_more(used: list[float], rounds: int) -> None:
    """Beyond one for each, by their free memory."""
    them = [Candidate(f"c{at}", "", share) for at, share in enumerate(used)]
    counts = placed("q", min(CYCLE_MAX, len(them) * rounds), them)
    for one in them:
        for other in them:
            if one.free_share > other.free_share:
                assert counts[one.name] >= counts[other.name] - 1


def test_queues_of_one_partition_are_spread_by_room() -> None:
    """Most go where most is free, and not all of them, until a manager has looked again."""
    them = [Candidate("full", used_share=0.75), Candidate("free", used_share=0.25)]
    names = [place(f"q{at}", 1, them, is_bounded=False)[0] for at in range(2000)]
    assert 0.70 < names.count("free") / len(names) < 0.80


def test_the_zones_of_small_queues_are_chosen_by_room_too() -> None:
    """A zone of one cluster does not take half of all queues."""
    names = [place(f"q{at}", 1, WELL, is_bounded=False)[0] for at in range(2000)]
    assert 0.28 < names.count("a") / len(names) < 0.39


def test_a_bounded_queue_is_at_one_cluster() -> None:
    """Which alone can count exactly what it retains."""
    assert len(place("q", 64, WELL, is_bounded=True)) == 1


def test_a_row_is_as_short_as_says_it_all() -> None:
    even = [Candidate("a"), Candidate("b")]
    assert sorted(place("q", 16, even, is_bounded=False)) == ["a", "b"]
    assert place("q", 1024, [Candidate("a")], is_bounded=False) == ("a",)
    uneven = [Candidate("a", used_share=0.1), Candidate("b", used_share=0.6)]
    assert len(place("q", 1024, uneven, is_bounded=False)) <= CYCLE_MAX


def test_what_nobody_has_looked_at_takes_partitions() -> None:
    """Creating a queue never waits for a manager."""
    assert len(place("q", 2, [Candidate("a"), Candidate("b")], is_bounded=False)) == 2
