"""The report's page: its time axis, its plots, what it says, and what it does with hostile names.

Needs no Spark: figures are given as the jobs would collect them.
"""

import datetime
import itertools
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.axis import HOUR, MINUTE, Axis, step_for, stretches
from spark.drawing import Line, axis_of, bars, duration, heat_map, named, over_time, visible
from spark.page import Figures, Top, Usage, page, spread
from tests.spark.judged import GATEWAY

# --- The time axis ------------------------------------------------------------------------------

NOW = datetime.datetime(2026, 11, 28, 1, 30, tzinfo=datetime.UTC)
T = int(NOW.timestamp()) - 6 * HOUR - 30 * MINUTE
"""2026-11-27 19:00 UTC."""
YEARS = 10 * 365 * 24 * HOUR
DAY = 24 * HOUR


def label_px(text: str) -> float:
    """The width of a label of 11 px in a wide font."""
    return len(text) * 6.4


def test_time_is_drawn_to_scale_and_a_gap_stays_one() -> None:
    axis = Axis([T, T + 60, T + 240], 60, 0, 500)
    assert axis.columns == [(0, 100), (100, 200), (400, 500)]
    assert [(gap.left, gap.right, gap.first - T, gap.end - T) for gap in axis.gaps()] == [
        (200, 400, 120, 240)
    ]
    assert axis.breaks() == []
    assert [axis.is_joined(index) for index in range(3)] == [False, True, False]


def test_ten_years_of_nothing_are_cut_out_and_both_sides_say_their_year() -> None:
    axis = Axis([*range(T, T + 20 * 60, 60), T + YEARS], 60, 64, 948)
    assert len(axis.stretches) == 2
    (cut,) = axis.breaks()
    assert axis.columns[19][1] == pytest.approx(cut.left)
    assert list(axis.columns[20]) == pytest.approx([cut.right, 948])
    assert cut.end - cut.first > YEARS - HOUR
    years = [tick.date[-4:] for tick in axis.ticks() if tick.date]
    assert years == ["2026", "2036"]


def test_nights_between_daily_runs_are_gaps_and_no_cuts() -> None:
    daily = [T + day * DAY for day in range(31)]
    assert len(stretches(daily, HOUR)) == 1
    assert len(stretches([*daily, T + YEARS], HOUR)) == 2


@given(
    st.lists(st.integers(0, 10**10), min_size=1, max_size=40, unique=True),
    st.integers(0, 3 * DAY),
    st.integers(0, 400),
)
def test_no_axis_has_too_many_columns(far: list[int], near: int, count: int) -> None:
    starts = {at // 60 * 60 for at in far} | {T + near + n * 60 for n in range(count)}
    starts = {at // 60 * 60 for at in starts}
    step = step_for(list(starts), MINUTE, 120)
    columns = sorted({at // step * step for at in starts})
    if step < 364 * DAY:
        # A stretch may begin and end within a column.
        assert len(columns) <= 120 + len(stretches(columns, step))
    axis = Axis(columns, step, 64, 948)
    assert axis.columns[0][0] == 64
    assert axis.columns[-1][1] == pytest.approx(948)
    for (_, left), (right, _) in itertools.pairwise(axis.columns):
        assert right >= left - 1e-6


@given(
    st.lists(st.integers(0, 4 * 10**9), min_size=1, max_size=6, unique=True),
    st.integers(1, 120),
    st.sampled_from([60, 600, HOUR, 8 * HOUR, DAY]),
)
def test_ticks_are_round_times_whose_labels_neither_meet_nor_leave_the_page(
    places: list[int], count: int, step: int
) -> None:
    starts = sorted({at // step * step + n * step for at in places for n in range(count)})
    drawn = svg(over_time("t", axis_of(starts, step), [Line("p50", [100.0] * len(starts))]))
    rows: dict[str, list[tuple[float, float]]] = {}
    for text in drawn.iter("text"):
        if text.attrib["text-anchor"] == "middle":
            x, half = float(text.attrib["x"]), label_px(text.text or "") / 2
            assert x - half >= 0
            assert x + half <= 960
            rows.setdefault(text.attrib["y"], []).append((x - half, x + half))
    assert rows
    for row in rows.values():
        for (_, left), (right, _) in itertools.pairwise(sorted(row)):
            assert right >= left


# --- Plots --------------------------------------------------------------------------------------


def svg(text: str) -> ElementTree.Element:
    end = "</svg>"
    return ElementTree.fromstring(text[text.index("<svg") : text.index(end) + len(end)])


def minutes(count: int) -> Axis:
    return axis_of([T + 60 * n for n in range(count)], 60)


def test_a_line_has_a_gap_where_there_is_no_value() -> None:
    drawn = svg(over_time("t", minutes(4), [Line("p50", [100.0, 200.0, None, 300.0])]))
    assert [len(line.attrib["points"].split()) for line in drawn.iter("polyline")] == [2]
    assert len(list(drawn.iter("circle"))) == 1
    later = axis_of([T, T + 60, T + 180], 60)
    drawn = svg(over_time("t", later, [Line("p50", [100.0, 200.0, 300.0])]))
    assert [len(line.attrib["points"].split()) for line in drawn.iter("polyline")] == [2]
    assert [rect.attrib["class"] for rect in drawn.iter("rect")] == ["gap"]


def test_longer_is_higher_and_more_is_darker() -> None:
    drawn = svg(over_time("t", minutes(2), [Line("p50", [100.0, 90_000.0])]))
    (line,) = drawn.iter("polyline")
    low, high = (float(point.split(",")[1]) for point in line.attrib["points"].split())
    assert high < low
    drawn = svg(heat_map("t", minutes(1), [100, 1_000, 10_000], [[5.0, 500.0]]))
    few, many = (float(cell.attrib["opacity"]) for cell in drawn.iter("rect"))
    assert few < many == 1.0


def test_a_bar_is_as_long_as_its_parts_and_names_are_escaped() -> None:
    drawn = bars("t", [("<b>", [100.0, 300.0]), ("x", [200.0, 0.0])], ["one", "two"])
    parts = ElementTree.fromstring(f"<div>{drawn}</div>").iter("i")
    styles = [part.attrib["style"] for part in parts if "style" in part.attrib]
    assert styles == ["width:25.00%", "width:75.00%", "width:50.00%"]
    assert "<b>" not in drawn


def test_without_values_there_is_a_sentence() -> None:
    assert over_time("t", axis_of([], 60), []).startswith("<p>")
    assert heat_map("t", minutes(1), [1, 2], [[0.0]]).startswith("<p>")
    assert bars("t", [], []).startswith("<p>")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders", "orders"),
        ("a\nb\u202ec\ud800", r"a\nb\u202ec\ud800"),
        ("طلبات 📦", "طلبات 📦"),
        ("👩\u200d👧", "👩\u200d👧"),
    ],
)
def test_what_cannot_be_seen_in_a_name_is_written_out(name: str, text: str) -> None:
    assert visible(name) == text


def test_a_long_name_keeps_both_ends_and_the_whole_as_its_title() -> None:
    whole = "first-" + "x" * 116 + "-<last"
    html = ElementTree.fromstring(named(whole))
    assert html.attrib["title"] == whole
    assert html.text is not None
    assert html.text.startswith("first-x")
    assert html.text.endswith("x-<last")
    assert len(html.text) == 64


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (850, "850 µs"), (999.7, "1 ms"), (3_210, "3.21 ms"), (999_700, "1 s"), (1.5e6, "1.5 s"),
        (59.96e6, "0.999 min"), (7.2e9, "2 h"), (8.64e11, "10 d"), (1e17, "1,157,407 d"),
    ],
)  # fmt: skip
def test_durations_are_written_for_people(us: float, text: str) -> None:
    assert duration(us) == text


# --- The page -----------------------------------------------------------------------------------

AUDIT: dict[str, Any] = {
    "faults": {"gap": 0, "inversion": 0}, "uncertain": {}, "unjudged": [],
    "waiting": {"messages": 0, "oldest_unix_us": None, "groups": []}, "holes": 0, "unlogged": {},
    "missing_files": {}, "losses": [], "lossy_gateways": [], "examples": [],
}  # fmt: skip
LOSS: dict[str, Any] = {
    "gateway": GATEWAY, "reason": "killed", "since_unix_us": T * 10**6,
    "until_unix_us": (T + 61) * 10**6, "certified": None, "dispatched": None, "settled": None,
    "file": None,
}  # fmt: skip
UNJUDGED = {"what": "gap", "reason": "lost_lines", "gateway": GATEWAY, "messages": 5_676}


def example(what: str, place: int, *, certain: bool) -> dict[str, Any]:
    return {
        "what": what, "queue_id": "q1", "group": "billing", "partition": 0, "first": place,
        "count": 2, "key": "00ff", "at_unix_us": T * 10**6, "certain": certain,
    }  # fmt: skip


def written_page(**figures: Any) -> str:
    return page(Figures(**{"judged": 100, "files": 1, **figures}), title="T", made=NOW)


def verdict(text: str) -> tuple[str, str]:
    """The class of the box, and its words."""
    found = re.search(r'<div class="box ?(\w*)" role="note">(.*?)</div>', text)
    assert found is not None
    return found[1], re.sub("<[^>]*>", " ", found[2]).strip()


def test_green_says_that_all_was_judged_and_nothing_found() -> None:
    kind, said = verdict(written_page(audit=AUDIT))
    assert kind == "good"
    assert "Every promise was kept" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"uncertain": {"gap": 5_676}, "unjudged": [UNJUDGED]}, "5,676 messages could not"),
        ({"uncertain": {"gap": 5_676}}, "5,676 messages could not"),
        ({"holes": 1}, "1 message could not be judged"),
        ({"losses": [LOSS]}, "1 loss of unknown size"),
        ({"losses": [LOSS | {"certified": 3, "dispatched": 0, "settled": 0}]}, "3 certified"),
    ],
)
def test_what_could_not_be_judged_is_amber_with_its_number_and_reason(
    change: dict[str, Any], expected: str
) -> None:
    kind, said = verdict(written_page(audit=AUDIT | change))
    assert kind == "doubt"
    assert expected in said
    assert "every promise" not in said.lower()


def test_unjudged_messages_have_their_gateway_their_reason_and_the_time_of_the_loss() -> None:
    change = {"uncertain": {"gap": 5_676}, "unjudged": [UNJUDGED], "losses": [LOSS]}
    text = written_page(audit=AUDIT | change)
    assert "5,676 messages of gateway" in verdict(text)[1]
    assert "27 Nov 2026 19:00:00 to 19:01:01" in text
    assert "the gateway was killed" in text
    assert "lines of this gateway&#x27;s log are lost" in text


def test_faults_are_red_whatever_else_there_is() -> None:
    change = {"faults": {"gap": 2, "inversion": 1}, "uncertain": {"gap": 7}, "losses": [LOSS]}
    kind, said = verdict(written_page(audit=AUDIT | change))
    assert kind == "bad"
    assert "3 messages at fault" in said
    assert "gap: 2, inversion: 1" in said
    assert "7 messages could not be judged" in said


def test_where_nothing_was_judged_no_colour_says_that_it_was_good() -> None:
    assert verdict(written_page(audit=AUDIT, judged=0, files=0)) == (
        "", "There is nothing to judge yet."
    )  # fmt: skip
    assert verdict(written_page())[0] == ""
    text = written_page(audit=AUDIT, judged=0, files=0)
    assert text.count("Nothing was delivered.") == 3
    assert verdict(written_page(audit=AUDIT, quarantined={"json": 1}))[0] == "doubt"


def test_what_waits_is_named_and_is_no_fault() -> None:
    waiting = {
        "messages": 138, "oldest_unix_us": T * 10**6,
        "groups": [{"queue": "orders", "group": "billing", "messages": 100,
                    "oldest_unix_us": T * 10**6}],
    }  # fmt: skip
    text = written_page(audit=AUDIT | {"waiting": waiting})
    kind, said = verdict(text)
    assert kind == "good"
    assert "138 messages wait for their groups, which is no fault" in said
    assert "27 Nov 2026 19:00" in said
    assert "And 38 messages of other groups." in text


def test_an_audit_of_an_older_version_is_shown_too() -> None:
    old = {
        "faults": {"gap": 0}, "uncertain": {"gap": 2}, "holes": 0,
        "unlogged": {"spans": 1, "certified": 100, "dispatched": 0, "settled": 7},
        "missing_files": {GATEWAY: [3, 4]}, "lossy_gateways": [GATEWAY],
        "examples": [example("gap", 5, certain=False)],
    }  # fmt: skip
    text = written_page(audit=old)
    kind, said = verdict(text)
    assert kind == "doubt"
    assert "100 certified, 0 given and 7 settled" in said
    assert "number 4" in text
    assert "5 to 6" in text


def test_examples_are_of_every_kind_and_certain_ones_come_first() -> None:
    many = [example("repetition", place, certain=True) for place in range(90)]
    few = [example("gap", 1, certain=True), example("inversion", 2, certain=False)]
    shown = [(row["what"], row["certain"]) for row in spread([*many, *few], 20)]
    assert shown[0] == ("gap", True)
    assert shown[1:19] == [("repetition", True)] * 18
    assert shown[19] == ("inversion", False)


def moments(starts: list[int]) -> list[dict[str, Any]]:
    percentiles = dict.fromkeys(("p50_us", "p90_us", "p99_us", "p999_us"), 1_000)
    return [{"start": at, "messages": 9, "cells": [1.0] * 25, **percentiles} for at in starts]


def stretch(first: int, end: int, messages: int, gateway: str = GATEWAY) -> dict[str, Any]:
    counts = dict.fromkeys(("certified", "dispatched", "settled"), messages)
    one = {"gateway": gateway, "first": first, "end": end, **counts}
    return {"first": first, "end": end, **counts, "gateways": [one]}


def test_a_clock_that_was_ahead_is_named_with_its_gateway_and_its_messages() -> None:
    text = written_page(
        stretches=[stretch(T, T + 1200, 10_000), stretch(T + YEARS, T + YEARS + 60, 37, "beef")],
        over_time=moments([T, T + 60, T + YEARS]), bounds_us=range(100, 126),
    )  # fmt: skip
    assert "27 Nov 2026 19:00 to 19:20, and 1 other time" in text
    said = re.sub("<[^>]*>", "", text)
    assert "37 certified, 37 given and 37 settled messages are dated 24 Nov 2036" in said
    assert "by gateway beef: after this page was made: that clock was ahead." in said
    early = written_page(stretches=[stretch(T, T + 1200, 10), stretch(T - DAY, T - DAY + 60, 1)])
    assert "far from the rest" in early
    assert "Some messages have another date" not in written_page(stretches=[stretch(T, T + 60, 1)])


QUEUES = [f"orders-of-the-european-warehouse.shard-{number:03}" for number in range(200)]


def latency_row(queue: str, group: str) -> dict[str, Any]:
    names = ("messages", "total_us", "max_us", "missed", "p50_us", "p90_us", "p99_us", "p999_us")
    return {"tenant": "t", "queue": queue, "group": group, "cause": "none", "target_us": None,
            **dict.fromkeys(names, 123_456)}  # fmt: skip


def test_a_page_of_200_queues_and_31_days_is_small_and_says_what_it_leaves_out() -> None:
    starts = [T + n * 6 * HOUR for n in range(124)]
    rows = [latency_row(queue, "billing") for queue in QUEUES[:15]]
    days = [
        {"date": datetime.date(2026, 10, 28) + datetime.timedelta(n), "messages_in": 5, "why": ""}
        for n in range(31)
    ]
    used = {"messages_in": 5, "messages_out": 5, "used_messages_in": 5, "used_messages_out": 5,
            "left_in": 0, "left_out": 0, "why": ""}  # fmt: skip
    text = written_page(
        step=6 * HOUR, over_time=moments(starts), bounds_us=range(100, 126),
        stretches=[stretch(T, T + 31 * DAY, 9)], queues=Top(rows, 600), stages=Top(rows, 200),
        usage=Usage(total=used, pairs=Top([used | days[0]] * 40, 6_200), days=Top(days, 31),
                    tenants=Top([used | {"tenant": "t"}] * 40, 200)),
        audit=AUDIT,
    )  # fmt: skip
    assert len(text.encode()) < 1_000_000
    assert "And 585 more groups of queues." in text
    assert "And 160 more tenants." in text


class Tags(HTMLParser):
    """The tags of a page, and whether each one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.names |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' style='position:fixed",
        "&lt;b&gt;", "</title>", "\u202egnp.exe", "a\n\x00", "W" * 128, " ",
        "📦👩\u200d👧" * 30, "\ud800",
    ],
)  # fmt: skip
def test_a_hostile_name_is_only_a_name_everywhere(name: str) -> None:
    few = [latency_row(name, name), latency_row("x", name) | {"tenant": name}]
    rows = Top(few, 2)
    loss = LOSS | {"gateway": name, "file": name, "reason": name}
    waiting = {"queue": name, "group": name, "messages": 1, "oldest_unix_us": None}
    text = page(
        Figures(
            judged=9, files=1, over_time=moments([T]), bounds_us=range(100, 126),
            stretches=[stretch(T + YEARS, T + YEARS + 60, 1, name)], queues=rows,
            stages=Top([row | {"waiting": 3.0} for row in few], 2), causes=rows,
            keys=Top([row | {"key": name, "waited_us": 1} for row in few], 2),
            usage=Usage(total={"messages_in": 1, "messages_out": 1, "why": name},
                        pairs=Top([{"date": NOW.date(), "tenant": name, "why": name}], 1)),
            audit=AUDIT | {
                "faults": {name: 1}, "uncertain": {name: 1}, "losses": [loss],
                "unjudged": [{"what": name, "reason": name, "gateway": name, "messages": 1}],
                "examples": [example(name, 1, certain=True) | {"queue": name, "gateway": name}],
                "waiting": {"messages": 1, "oldest_unix_us": None, "groups": [waiting]},
            },
            quarantined={name: 1},
        ),
        title=name, made=NOW,
    )  # fmt: skip
    text.encode()
    tags = Tags(text)
    assert tags.open == []
    assert not tags.found & {"script", "img", "link", "b><"}
    assert not {attribute for attribute in tags.names if attribute.startswith("on")}
    assert "\u202e" not in text


USED: dict[str, Any] = {
    "date": NOW.date(), "tenant": "default", "messages_in": 100, "bytes_in": 1_000,
    "messages_out": 2_000, "used_messages_in": 100, "used_bytes_in": 1_000,
    "used_messages_out": 796, "refusals": 0, "explained_in": 0, "explained_out": 1_204,
    "left_in": 0, "left_out": 0, "why": "killed",
}  # fmt: skip


def test_usage_that_differs_because_a_process_died_is_explained() -> None:
    text = written_page(usage=Usage(total=USED, pairs=Top([USED], 1)))
    assert "The usage log has 1,204 messages out less." in text
    assert "a gateway was killed: the usage log is written by the minute" in text
    assert "differ, and it is known why" in text
    assert "unexplained" not in text


def test_usage_that_nobody_explains_is_red_and_an_equal_one_is_not() -> None:
    wrong = USED | {"left_out": 4, "why": "killed,unlogged"}
    text = written_page(usage=Usage(total=wrong, pairs=Top([wrong], 1)))
    assert '<div class="box bad"><b>The two logs do not agree.' in text
    assert "4 messages unexplained" in text
    same = USED | {"used_messages_out": 2_000, "explained_out": 0, "why": ""}
    text = written_page(usage=Usage(total=same, pairs=Top([same], 1)))
    assert '<div class="box good"><b>The two logs agree.' in text
    none = USED | dict.fromkeys(("used_messages_in", "used_messages_out", "left_in", "left_out"))
    text = written_page(usage=Usage(total=none, pairs=Top([none], 1)))
    assert "There is no usage log to compare with." in text
