"""A real Prometheus over real processes. Its configuration and rules are the shipped ones, with
other addresses, and seconds in place of minutes."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.monitoring.dashboards import ANY, PROCESSES, Dashboard
from tests.layout.tree import ROOT
from tests.servers.ports import ClaimedPort
from tests.servers.programs import Program, needed

SHIPPED: Final = ROOT / "deploy/prometheus"
EVERY_S: Final = 1


TIMEOUT_S = 30


class Unanswered(RuntimeError):
    """A Prometheus refuses, or does not know everything; the text says why."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of an answer: (unix seconds, value), without values that are no number."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """The Prometheus at an address. Without a connection, calls raise OSError."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **words: str | Sequence[str]) -> Any:
        """Return the answer of its API. Raises Unanswered."""
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
        """Whether an expression has a result now."""
        return bool(self.ask("query", query=expr)["result"])

    def values(self, query: str, chosen: Mapping[str, str]) -> list[str]:
        """Return the results of a variable's query, `label_values(SELECTOR, LABEL)`."""
        match = re.fullmatch(r"label_values\((.*), ([a-z]+)\)", query)
        if match is None:
            raise Unanswered(f"{query} is no label_values(SELECTOR, LABEL)")
        found = self.ask(f"label/{match[2]}/values", **{"match[]": whole(match[1], 0, chosen)})
        return [str(value) for value in found]

    def series(self, expr: str, began: float, ended: float, step_s: float) -> list[Series]:
        """Return the series of an expression between these unix seconds."""
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
    """Return a dashboard's expression as Grafana sends it, with the `chosen` value of each
    variable."""
    expr = expr.replace("$__rate_interval", f"{rate_interval_s:.0f}s")
    return re.sub(r"\$([a-z]+)\b", lambda found: chosen[found[1]], expr)


def all_chosen(dashboard: Dashboard, prometheus: Prometheus) -> dict[str, str]:
    """Return the value of each variable of a dashboard when all of its values are chosen. Raises
    Unanswered, OSError."""
    chosen: dict[str, str] = {}
    for name, query in dashboard.variables.items():
        values = prometheus.values(query, chosen)
        chosen[name] = "|".join(map(_escaped, values)) if name in PROCESSES else ANY
    return chosen


def _escaped(value: str) -> str:
    """Escape a value for a regular expression inside quotes."""
    return re.escape(value).replace("\\", "\\\\")


class Running(Prometheus):
    """A Prometheus of our own, made by `scraping`."""

    def __init__(self, program: Program, folder: Path, url: str) -> None:
        """`folder` has its files."""
        super().__init__(url)
        self._program = program
        self.folder = folder

    def is_up(self, jobs: Sequence[str]) -> bool:
        """Whether the targets of these jobs, and no others, answered the last time. Raises
        AssertionError if the process has ended."""
        assert self._program.is_running, self._program.log_end()
        try:
            targets = self.ask("targets", state="active")["activeTargets"]
        except OSError:  # it has only begun
            return False
        found = sorted((one["labels"]["job"], one["health"]) for one in targets)
        return found == [(job, "up") for job in sorted(jobs)]


def configuration(targets: Mapping[str, Sequence[str]]) -> str:
    """Return the shipped configuration for these targets by job. A job that it does not have gets
    the form of the gateways' job."""
    text = (SHIPPED / "prometheus.yml").read_text().replace("scheme: https", "scheme: http")
    text = text.replace("_interval: 15s", f"_interval: {EVERY_S}s")
    head, *jobs = text.split("  - job_name: ")
    by_name = {job.split()[0]: job for job in jobs}
    made = [head]
    for name, addresses in targets.items():
        job = by_name.get(name) or by_name["tocsin"].replace("tocsin", name, 1)
        named, found = re.subn("targets: .*", f"targets: {json.dumps(addresses)}", job)
        assert found == 1, job
        made.append(named)
    assert by_name.keys() <= targets.keys()
    return "  - job_name: ".join(made)


@contextmanager
def scraping(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Callable[[str], str]
) -> Iterator[Running]:
    """Run a Prometheus that scrapes these targets (host:port, by job of the shipped configuration).
    Neither the targets nor the token files in its folder need to exist yet. It takes seconds until
    it begins. `rules` changes the text of each file with rules."""
    folder.mkdir()
    for name in ("recording.yml", "alerts.yml"):
        (folder / name).write_text(rules((SHIPPED / name).read_text()))
    (folder / "prometheus.yml").write_text(configuration(targets))
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(ClaimedPort()).number}"
        program = Program(
            [
                needed("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            folder / "log",
        )  # fmt: skip
        stack.callback(program.kill)
        program.spawn()
        yield Running(program, folder, f"http://{address}")
