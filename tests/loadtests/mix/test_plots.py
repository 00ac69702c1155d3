"""Plots and series draw what they were given, wherever it lies."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from loadtests.mix.ledger import SLOT_S, Series
from loadtests.mix.plots import HEIGHT, WIDTH, lines

NS = 1_000_000_000
POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9)), min_size=1, max_size=20)


@example({"a": [(0.0, 5e-324)]}, False)  # a fifth of it is none
@given(st.dictionaries(st.sampled_from("abc"), POINTS, min_size=1), st.booleans())
def test_every_point_lies_in_the_picture(series: dict[str, list[tuple[float, float]]],
                                         log: bool) -> None:  # fmt: skip
    drawn = lines("t", series, across="s", up="ms", log=log)
    paths = re.findall(r'<polyline points="([^"]*)"', drawn)
    assert len(paths) == len(series)
    for path, points in zip(paths, series.values(), strict=True):
        places = [tuple(map(float, place.split(","))) for place in path.split(" ")]
        assert len(places) == len(points)
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_larger_is_higher_and_later_is_further_right() -> None:
    for log in (False, True):
        drawn = lines("t", {"a": [(0, 1), (5, 10), (10, 1000)]}, across="s", up="ms", log=log)
        (path,) = re.findall(r'<polyline points="([^"]*)"', drawn)
        places = [tuple(map(float, place.split(","))) for place in path.split(" ")]
        assert places == sorted(places)
        assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_a_band_is_as_wide_as_its_time_and_stays_in_the_picture() -> None:
    series = {"a": [(0.0, 1.0), (100.0, 2.0)]}
    drawn = lines("t", series, across="s", up="ms", bands=[(20.0, 40.0), (90.0, 130.0)])
    found = [
        (float(x), float(width))
        for x, width in re.findall(
            r'<rect class="band" x="([^"]*)" y="[^"]*" width="([^"]*)"', drawn
        )
    ]
    (x, width), (last, rest) = found
    assert 0 < x < last
    assert 1.9 < width / rest < 2.1
    assert last + rest <= WIDTH


def test_no_two_of_a_dozen_lines_look_alike() -> None:
    drawn = lines("t", {f"line {n}": [(0, n), (1, n)] for n in range(12)}, across="s", up="ms")
    found = re.findall(r'<polyline [^>]*(stroke="[^>]*)/>', drawn)
    assert len(set(found)) == len(found) == 12


def test_nothing_to_draw_is_said() -> None:
    assert "nothing was measured" in lines("p99 <over> time", {"a": []}, across="s", up="ms")
    assert "<over>" not in lines("p99 <over> time", {}, across="s", up="ms")


def test_a_series_has_a_point_for_each_slot_and_a_rate_for_each_that_is_over() -> None:
    series = Series()
    for at_s in (0.0, 1.0, SLOT_S * 2 + 0.5, SLOT_S * 3):
        series.record(int(at_s * NS), 2_000_000)
    middles = [(slot + 0.5) * SLOT_S for slot in range(4)]
    assert [x for x, _ in series.points(50)] == [middles[0], middles[2], middles[3]]
    assert series.rates() == list(zip(middles[:3], (2 / SLOT_S, 0.0, 1 / SLOT_S), strict=True))
    other = Series()
    other.record(-5, 2_000_000)
    series.add(other)
    assert series.rates()[0] == (middles[0], 3 / SLOT_S)
    assert Series().rates() == []
