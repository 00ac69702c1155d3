"""Dashboards, rules and their runbook: all names in them exist, and they equal the tables of the
code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime.metrics.registry import METRICS, series
from scripts.monitoring.__main__ import files
from scripts.monitoring.alerts import ALERTS, SECTIONS
from scripts.monitoring.dashboards import DASHBOARDS, Dashboard, document
from scripts.monitoring.rules import RECORDED
from tests.layout.tree import text

NAMES = re.compile(r"\b(?:tocsin|process)_[a-z_]+\b")
MADE = re.compile(r"\btocsin:[a-z0-9_:]+")
LABELS = re.compile(r"\b(?:by|on) \(([a-z, ]+)\)")
SELECTED = re.compile(r"\b((?:tocsin|process)_[a-z_]+)\{([^}]*)\}")
OF_PROMETHEUS = {"job", "instance", "le"}


def check_expression(expr: str) -> None:
    """Check that every series and every label in an expression exists."""
    known = series()
    named = NAMES.findall(expr)
    assert set(named) <= set(known), expr
    assert set(MADE.findall(expr)) <= set(RECORDED), expr
    for name, selectors in SELECTED.findall(expr):
        labels = set(re.findall(r"([a-z_]+)(?:=~|!=|=)", selectors))
        assert labels <= {*known[name].labels, *OF_PROMETHEUS}, expr
    if named:
        of = {label for name in named for label in known[name].labels} | OF_PROMETHEUS
        for group in LABELS.findall(expr):
            assert {one.strip() for one in group.split(",")} <= of, expr


@pytest.mark.parametrize("path", files())
def test_what_is_shipped_is_what_the_tables_say(path: str) -> None:
    assert text(Path(path)) == files()[path], "run `python -m scripts.monitoring`"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_rule_names_what_is_there(name: str) -> None:
    check_expression(RECORDED[name])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda one: one.name)
def test_an_alert_names_what_is_there_and_is_tested_both_ways(alert: Any) -> None:
    check_expression(alert.expr)
    assert alert.bad != alert.well
    for one in (*alert.bad, *alert.well):
        name, _, labels = one.partition("{")
        assert name == "up" or name in series(), one
        if name in series():
            given = set(re.findall(r"([a-z_]+)=", labels))
            assert given <= {*series()[name].labels, *OF_PROMETHEUS}, one
    assert alert.severity in ("warning", "critical")
    for words in (alert.summary, alert.means, alert.does):
        assert words.endswith((".", ":", "?", ")")), words


def test_alerts_have_names_of_their_own_and_a_section_each() -> None:
    page = text(Path("deploy/prometheus/README.md"))
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert page.count(f"### {alert.name}\n") == 1
    assert all(f"## {section}\n" in page for section in SECTIONS)


def expressions(dashboard: Dashboard) -> list[str]:
    """Return every expression of a dashboard."""
    asked = [expr for row in dashboard.rows.values() for panel in row for expr, _ in panel.lines]
    return [*asked, *dashboard.variables.values()]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_a_dashboard_names_what_is_there(dashboard: Dashboard) -> None:
    for expr in expressions(dashboard):
        check_expression(expr)
    panels = document(dashboard)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert len(panel.get("targets", [])) <= 26
    json.dumps(panels)


def test_the_holders_dashboard_needs_only_what_a_holder_may_scrape() -> None:
    (dashboard,) = [one for one in DASHBOARDS if one.uid == "tocsin-queue"]
    for expr in expressions(dashboard):
        assert all(series()[name].is_for_holders for name in NAMES.findall(expr)), expr


def test_every_metric_is_in_a_dashboard() -> None:
    shown = " ".join(expr for one in DASHBOARDS for expr in expressions(one))
    missing = [name for name in METRICS if name not in shown]
    assert missing == []


def test_every_metric_of_the_example_is_scraped_where_it_is() -> None:
    example = text(Path("deploy/prometheus/prometheus.yml"))
    for job in ("tocsin", "tocsin-metadata", "tocsin-manager"):
        assert f"job_name: {job}\n" in example
    assert "/v1/queues/orders/metrics" in example
