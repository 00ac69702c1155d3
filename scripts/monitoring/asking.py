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


def whole(expr: str, rate_interval_s: float) -> str:
    """A dashboard's expression as Grafana asks for it where everything is chosen."""
    expr = expr.replace("$__rate_interval", f"{rate_interval_s:.0f}s")
    return re.sub(r"\$[a-z]+\b", ".*", expr)
