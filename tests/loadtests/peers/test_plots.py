"""The plots show what was measured, to scale, and are SVG whatever the names are."""

import re
from xml.etree import ElementTree

import pytest

from loadtests.peers.medians import Middle, Run
from loadtests.peers.plots import Bar, Panel, bars, pictures
from tests.loadtests.peers.found import contest, runs

SVG = "{http://www.w3.org/2000/svg}"
LATENCY = {"p50_ms": 2.0, "p99_ms": 9.0, "p999_ms": 20.0}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lengths(svg: str) -> list[float]:
    """Of the bars, the ground aside."""
    nodes = list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))[1:]
    return [float(node.attrib["width"]) for node in nodes]


def panel(*values: float) -> Panel:
    rows = [Bar("nats", f"n{v}", "synced", Middle(v, v / 2, v, 3)) for v in values]
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
    failed = Bar("b", "B", "synced", None, "failed")
    svg = bars(Panel("t", "n", [Bar("a", "A", "synced", Middle(1, 1, 1, 1)), failed]))
    assert "failed" in texts(svg)
    assert len(lengths(svg)) == 1
    assert bars(Panel("t", "n", [failed])) == ""


def test_names_are_written_as_they_are() -> None:
    (svg,) = pictures(contest(*runs("nats", "batch", messages_per_s=5.0))).values()
    assert {"NATS <&>", "not synced"} <= set(texts(svg))


def test_each_picture_is_there_when_something_of_it_was_measured() -> None:
    assert pictures(contest()) == {}
    assert pictures(contest(Run(1, "nats", "single", failure="no"))) == {}
    found = contest(
        *runs("tocsin", "single", messages_per_s=5.0, server_cpu_us=2.0),
        *runs("tocsin", "open1k", messages_per_s=1000.0, **LATENCY),
    )
    assert pictures(found).keys() == {"throughput", "cost", "latency"}


def test_latencies_go_from_left_to_right_and_who_does_not_keep_up_has_none() -> None:
    found = contest(
        *runs("tocsin", "open1k", messages_per_s=1000.0, **LATENCY),
        *runs("nats", "open1k", messages_per_s=10.0, **LATENCY),
    )
    svg = pictures(found)["latency"]
    circles = [
        float(node.attrib["cx"]) for node in ElementTree.fromstring(svg).iter(f"{SVG}circle")
    ]
    assert len(circles) == 2
    assert circles[0] < circles[1]
    assert "not kept up" in texts(svg)
    assert "2 / 9 / 20" in texts(svg)
    assert {"fsync before each", "not synced"} <= set(texts(svg))
    assert not re.search("nan|inf", svg)
