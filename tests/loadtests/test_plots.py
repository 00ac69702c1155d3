"""Plots draw what they were given, to scale and inside the picture, wherever it lies."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadtests.plots import HEIGHT, WIDTH, Panel, Row, bars, lines, ranges

SVG = "{http://www.w3.org/2000/svg}"
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


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lengths(svg: str) -> list[float]:
    """Of the bars, the ground aside."""
    nodes = list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))[1:]
    return [float(node.attrib["width"]) for node in nodes]


def panel(*values: float) -> Panel:
    rows = [Row(f"n{v}", "synced", "#1d4ed8", (v, v / 2, v), f"{v}") for v in values]
    return Panel("title", "note", rows)


def test_bars_are_as_long_as_their_values_say() -> None:
    long, short = lengths(bars(panel(200.0, 50.0)))
    assert long == pytest.approx(4 * short, rel=0.01)


def test_no_bar_and_no_text_leaves_the_picture() -> None:
    svg = bars(panel(1e9, 1.0), panel(0.0))
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for node in root.iter():
        x, y = float(node.attrib.get("x", 0)), float(node.attrib.get("y", 0))
        assert 0 <= x <= width
        assert 0 <= y <= height
        assert x + float(node.attrib.get("width", 0)) <= width


def test_what_was_not_measured_is_said_instead_of_drawn() -> None:
    failed = Row("B", "synced", "#1d4ed8", (), "failed")
    svg = bars(Panel("t", "n", [Row("A", "synced", "#1d4ed8", (1,), "1"), failed]))
    assert "failed" in texts(svg)
    assert len(lengths(svg)) == 1
    assert bars(Panel("t", "n", [failed])) == ""
    assert ranges(Panel("t", "n", [failed])) == ""
