"""The files of Prometheus, as text. Strings are written as JSON, which is YAML, too."""

import json
import textwrap
from collections.abc import Iterable
from typing import Final

from scripts.monitoring.alerts import ALERTS, SECTIONS
from scripts.monitoring.rules import RECORDED, Alert

HEAD: Final = "# Written by `python -m scripts.monitoring` from its tables: change those.\n"
PAGE: Final = "deploy/prometheus/README.md"
COLUMNS: Final = 100
BEGIN: Final = "<!-- What follows is written by `python -m scripts.monitoring`. -->\n"


def recording() -> str:
    """Return the content of recording.yml."""
    lines = [HEAD + "groups:", "  - name: tocsin-recorded", "    rules:"]
    for name, expr in RECORDED.items():
        lines += [f"      - record: {name}", f"        expr: {json.dumps(expr)}"]
    return "\n".join(lines) + "\n"


def alerting() -> str:
    """Return the content of alerts.yml."""
    lines = [HEAD + "groups:"]
    for section, alerts in SECTIONS.items():
        lines += [f"  - name: tocsin-{section.lower().replace(' ', '-')}", "    rules:"]
        for alert in alerts:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(alert.expr)}",
                f"        for: {alert.lasts}",
                "        labels:",
                f"          severity: {alert.severity}",
                "        annotations:",
                *_annotations(alert, "          "),
            ]
    return "\n".join(lines) + "\n"


def _annotations(alert: Alert, indent: str) -> Iterable[str]:
    yield f"{indent}summary: {json.dumps(alert.summary)}"
    yield f"{indent}runbook: {json.dumps(f'{PAGE}#{alert.name.lower()}')}"


def tests() -> str:
    """Return the content of tests.yml, for `promtool test rules`. Each alert fires with its bad
    values, and only with these."""
    lines = [
        HEAD + "rule_files:", "  - recording.yml", "  - alerts.yml", "evaluation_interval: 1m",
        "tests:",
    ]  # fmt: skip
    for alert in ALERTS:
        for series, fires in ((alert.bad, True), (alert.well, False)):
            lines += [f"  - name: {alert.name} {'fires' if fires else 'does not fire'}"]
            lines += ["    interval: 1m", "    input_series:"]
            for name, values in series.items():
                lines += [f"      - series: {json.dumps(of_job(name))}"]
                lines += [f"        values: {json.dumps(values)}"]
            lines += ["    alert_rule_test:", "      - eval_time: 20m"]
            lines += [f"        alertname: {alert.name}"]
            lines += _expected(alert) if fires else ["        exp_alerts: []"]
    return "\n".join(lines) + "\n"


def _expected(alert: Alert) -> Iterable[str]:
    yield "        exp_alerts:"
    yield "          - exp_labels:"
    for name, value in {"job": "tocsin", "severity": alert.severity, **alert.labels}.items():
        yield f"              {name}: {json.dumps(value)}"
    yield "            exp_annotations:"
    yield from _annotations(alert, "              ")


def of_job(series: str) -> str:
    """Return the series with the label of the job."""
    name, _, labels = series.partition("{")
    return f'{name}{{job="tocsin",{labels}' if labels else f'{name}{{job="tocsin"}}'


def runbook() -> str:
    """Return the runbook, with a section for each alert."""
    lines = [BEGIN]
    for section, alerts in SECTIONS.items():
        lines += [f"## {section}", ""]
        for alert in alerts:
            held = "at once" if alert.lasts == "0m" else f"after {alert.lasts}"
            lines += [
                f"### {alert.name}", "", f"**{alert.summary}** ({alert.severity}, {held})", "",
                "```promql", _wrapped(alert.expr), "```", "", _wrapped(alert.means), "",
                _wrapped(f"*What to do:* {alert.does}"), "",
            ]  # fmt: skip
    return "\n".join(lines).rstrip("\n") + "\n"


def _wrapped(text: str) -> str:
    """Return the text in lines of the page's width; blanks mean the same everywhere in PromQL."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
