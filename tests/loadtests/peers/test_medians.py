"""Who comes when, and what the middle of the rounds is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.medians import (
    Known,
    Middle,
    Results,
    Run,
    failures,
    middle,
    middles,
    read,
    turns,
    written,
)

NAMES = ["a", "b", "c"]


def test_each_round_begins_with_another_one_and_has_all() -> None:
    assert turns(NAMES, 1) == ["a", "b", "c"]
    assert turns(NAMES, 2) == ["b", "c", "a"]
    assert turns(NAMES, 3) == ["c", "a", "b"]
    assert turns(NAMES, 4) == ["a", "b", "c"]
    assert turns([], 1) == []
    with pytest.raises(ValueError, match="counted from 1"):
        turns(NAMES, 0)


def test_over_as_many_rounds_as_there_are_entrants_each_has_every_place() -> None:
    for place in range(3):
        assert {turns(NAMES, number)[place] for number in range(1, 4)} == set(NAMES)


def test_the_middle_of_an_odd_number_is_one_of_them_and_of_an_even_one_between_two() -> None:
    assert middle([3.0, 1.0, 20.0]) == Middle(3.0, 1.0, 20.0, 3)
    assert middle([4.0, 1.0, 2.0, 30.0]) == Middle(3.0, 1.0, 30.0, 4)
    assert middle([7.0]) == Middle(7.0, 7.0, 7.0, 1)
    assert middle([]) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9))
def test_half_of_the_rounds_lie_on_either_side(values: list[float]) -> None:
    found = middle(values)
    assert found is not None
    assert found.low <= found.value <= found.high
    assert 2 * sum(value <= found.value for value in values) >= len(values)
    assert 2 * sum(value >= found.value for value in values) >= len(values)


def run(number: int, failure: str = "", **figures: float) -> Run:
    return Run(number, "a", "single", figures, failure)


def test_a_round_that_failed_or_lacks_a_figure_does_not_count_for_it() -> None:
    runs = [run(1, x=1.0, y=5.0), run(2, x=3.0), run(3, "it ended")]
    assert middles(runs) == {
        ("a", "single"): {"x": Middle(2.0, 1.0, 3.0, 2), "y": Middle(5, 5, 5, 1)}
    }
    assert failures(runs) == {("a", "single"): ["it ended"]}


def results(schema: int = 1) -> Results:
    known = Known("A", "A 1.0", "TCP", "fsync", "by key", "frames", "a reader")
    return Results(
        schema, "make peers", "2026-11-23T00:00:00+00:00", "2026-11-23T00:10:00+00:00", 5,
        {"cores": 2, "cpu": "x", "sync_ms": 0.5}, {"a": known}, {"b": "it is not here"},
        [run(1, x=1.5), run(2, "it ended")], "interrupted",
    )  # fmt: skip


def test_results_are_read_as_they_were_written() -> None:
    assert read(written(results())) == results()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"schema":1}'])
def test_what_are_no_results_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no results"):
        read(data)


def test_results_of_another_schema_are_refused() -> None:
    with pytest.raises(ValueError, match="of schema 2"):
        read(written(results(schema=2)))
