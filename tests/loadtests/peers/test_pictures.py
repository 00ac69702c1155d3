"""The pictures show what was measured, and are SVG whatever the names are."""

import re
from xml.etree import ElementTree

from loadtests.peers.medians import Run
from loadtests.peers.pictures import pictures
from tests.loadtests.peers.found import contest, runs

SVG = "{http://www.w3.org/2000/svg}"
LATENCY = {"p50_ms": 2.0, "p99_ms": 9.0, "p999_ms": 20.0}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


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
