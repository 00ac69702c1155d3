"""Gates that a run must keep, such as `p99_ms<=50` or `lost=0`. The exit code is the verdict. Pure.

A gate names a figure, a comparison and a bound. A figure that the run does not have fails its gate,
so that a mistyped name does not pass.

`figures` makes the figures of a run, under the names that gates and reports use.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from loadtests.histogram import Histogram
from loadtests.mix.judge import Outcome
from loadtests.mix.ledger import KINDS

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_WRITTEN: Final = re.compile(
    r"\s*(?P<figure>[a-z0-9_.]+)\s*(?P<how><=|>=|<|>|=)\s*(?P<bound>-?\d+(?:\.\d+)?)\s*"
)

ALWAYS: Final = ("lost=0", "invented=0", "altered=0", "refused_given=0", "order=0", "repeated=0",
                 "settled_twice=0", "unknown=0", "user_errors=0", "drained=1")  # fmt: skip
"""Gates of every run: no option makes a loss acceptable."""
USUAL: Final = ("delivery_p99_ms<=250", "receipt_p99_ms<=250", "outages=0")
"""Gates when no others are given. They suit one machine that also runs the load; with more
machines, stricter ones are possible."""


class NoGate(ValueError):
    """A text that is no gate; the error shows an example."""


@dataclass(frozen=True)
class Gate:
    """A bound on one figure."""

    figure: str
    how: str
    bound: float

    def __str__(self) -> str:
        return f"{self.figure}{self.how}{self.bound:g}"


@dataclass(frozen=True)
class Judged:
    """A gate and the run's figure; None if the run has no such figure."""

    gate: Gate
    found: float | None

    @property
    def ok(self) -> bool:
        """Whether the gate is kept."""
        return self.found is not None and _COMPARE[self.gate.how](self.found, self.gate.bound)

    def __str__(self) -> str:
        found = "there is no such figure" if self.found is None else f"{self.found:,.6g}"
        return f"{'kept  ' if self.ok else 'BROKEN'} {self.gate}: {found}"


def gate(text: str) -> Gate:
    """Parse a gate. Raises NoGate."""
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise NoGate(f"{text!r} is no gate. Write one like delivery_p99_ms<=50 or lost=0.")
    return Gate(match["figure"], match["how"], float(match["bound"]))


def gates(texts: Iterable[str]) -> list[Gate]:
    """Return the gates of ALWAYS, then those in `texts`, or those of USUAL if there are no texts. A
    gate in `texts` on a figure of ALWAYS is judged in addition, so it cannot loosen them."""
    asked = [gate(text) for text in texts] or [gate(text) for text in USUAL]
    return [*(gate(text) for text in ALWAYS), *asked]


def held(wanted: Iterable[Gate], figures: Mapping[str, float]) -> list[Judged]:
    """Judge each gate, which is a bound on a figure. A gate whose figure is missing is broken."""
    return [Judged(one, figures.get(one.figure)) for one in wanted]


PERCENTS: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
_NS_PER_MS: Final = 1e6
_COUNTS: Final = (
    "offered", "certified", "refused", "given", "given again", "settled", "nacked", "sessions",
    "sockets lost", "sockets cut", "tries again", "user errors",
)  # fmt: skip


def percentiles(histogram: Histogram) -> dict[str, float]:
    """Return percentiles and the maximum in milliseconds, by name; empty when nothing was
    measured."""
    if not histogram.count:
        return {}
    found = {
        f"{name}_ms": histogram.percentile(percent) / _NS_PER_MS
        for name, percent in PERCENTS.items()
    }
    return found | {"max_ms": histogram.maximum / _NS_PER_MS}


def figures(outcome: Outcome, *, seconds: float) -> dict[str, float]:
    """Return all figures: `lost`, `certified_per_s`, `delivery_p99_ms`, `delivery_worker_p99_ms`, …

    `seconds` is the measured duration. Rates count messages that were due in that time. The
    latencies under `receipt` and `delivery` combine all roles, except that `delivery` leaves out
    those of `is_slow`.
    """
    found: dict[str, float] = {kind: outcome.violations[kind] for kind in KINDS}
    found["drained"] = int(outcome.is_drained)
    found["unknown"] = outcome.unknown
    for name in _COUNTS:
        found[name.replace(" ", "_")] = outcome.counts[name]
    found["certified_per_s"] = outcome.latency("receipt ").count / seconds
    found["given_per_s"] = outcome.latency("delivery ").count / seconds
    prompt = Histogram()
    for what, histogram in outcome.latencies.items():
        name = what.replace(" ", "_").replace("-", "_")
        found |= {f"{name}_{key}": value for key, value in percentiles(histogram).items()}
        if what.startswith("delivery ") and not is_slow(what):
            prompt.add(histogram)
    for name, together in (("receipt", outcome.latency("receipt ")), ("delivery", prompt)):
        found |= {f"{name}_{key}": value for key, value in percentiles(together).items()}
    return found


def is_slow(what: str) -> bool:
    """Whether a latency belongs to users that keep their messages waiting: slow ones, and those
    that are away for a while. Their messages wait in the log, as they should."""
    return what.removeprefix("delivery ") in {"slow", "storm", "day"}
