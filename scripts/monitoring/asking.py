"""What a Prometheus answers."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.monitoring.dashboards import ANY, PROCESSES, Dashboard

TIMEOUT_S = 30


class Unanswered(RuntimeError):
    """It refuses, or does not know everything; the text says why."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer: (unix seconds, value), without those that are no number."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """The one at this address. What it cannot be asked at all is an OSError."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **words: str | Sequence[str]) -> Any:
        """What its API answers. Raises Unanswered."""
        query = urllib.parse.urlencode(words, doseq=True)
        address = f"{self.url}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise Unanswered(f"{words}: {error.read().decode(errors='replace')}") from error
        if found.get("warnings"):
            raise Unanswered(f"{words}: {found['warnings']}")
        return found["data"]

    def holds(self, expr: str) -> bool:
        """Whether it finds something for this expression now."""
        return bool(self.ask("query", query=expr)["result"])

    def values(self, query: str, chosen: Mapping[str, str]) -> list[str]:
        """What a variable's query, `label_values(SELECTOR, LABEL)`, finds."""
        match = re.fullmatch(r"label_values\((.*), ([a-z]+)\)", query)
        if match is None:
            raise Unanswered(f"{query} is no label_values(SELECTOR, LABEL)")
        found = self.ask(f"label/{match[2]}/values", **{"match[]": whole(match[1], 0, chosen)})
        return [str(value) for value in found]

    def series(self, expr: str, began: float, ended: float, step_s: float) -> list[Series]:
        """What it finds for this expression between these unix seconds."""
        found = self.ask(
            "query_range", query=expr, start=f"{began:.3f}", end=f"{ended:.3f}", step=f"{step_s:g}"
        )
        return [
            Series(
                one["metric"],
                [(at, float(text)) for at, text in one["values"] if math.isfinite(float(text))],
            )
            for one in found["result"]
        ]


def whole(expr: str, rate_interval_s: float, chosen: Mapping[str, str]) -> str:
    """A dashboard's expression as Grafana asks for it where this is `chosen`, variable by
    variable."""
    expr = expr.replace("$__rate_interval", f"{rate_interval_s:.0f}s")
    return re.sub(r"\$([a-z]+)\b", lambda found: chosen[found[1]], expr)


def all_chosen(dashboard: Dashboard, prometheus: Prometheus) -> dict[str, str]:
    """What stands for each variable of a dashboard where all of its values are chosen. Raises
    Unanswered, OSError."""
    chosen: dict[str, str] = {}
    for name, query in dashboard.variables.items():
        values = prometheus.values(query, chosen)
        chosen[name] = "|".join(map(_escaped, values)) if name in PROCESSES else ANY
    return chosen


def _escaped(value: str) -> str:
    """In a regular expression that stands between quotes."""
    return re.escape(value).replace("\\", "\\\\")
