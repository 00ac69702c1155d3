"""The figures of a run by the names that gates and reports know them by. Pure."""

from typing import Final

from loadtests.histogram import Histogram
from loadtests.mix.judge import Outcome
from loadtests.mix.ledger import KINDS

PERCENTS: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
_NS_PER_MS: Final = 1e6
_COUNTS: Final = (
    "offered", "certified", "refused", "given", "given again", "settled", "nacked", "sessions",
    "sockets lost", "sockets cut", "tries again", "user errors",
)  # fmt: skip


def percentiles(histogram: Histogram) -> dict[str, float]:
    """Milliseconds by name, and the greatest; nothing where nothing was measured."""
    if not histogram.count:
        return {}
    found = {
        f"{name}_ms": histogram.percentile(percent) / _NS_PER_MS
        for name, percent in PERCENTS.items()
    }
    return found | {"max_ms": histogram.maximum / _NS_PER_MS}


def figures(outcome: Outcome, *, seconds: float) -> dict[str, float]:
    """All of them: `lost`, `certified_per_s`, `delivery_p99_ms`, `delivery_worker_p99_ms`, …

    `seconds`: how long was measured. Rates are of what was due then. The latencies under `receipt`
    and `delivery` are those of all ways together, except that who is slow on purpose does not count
    into `delivery`.
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
    """Whether a latency is that of users who keep their messages waiting: slow ones, and those that
    are away for a while. Their messages wait in the log, as they should."""
    return what.removeprefix("delivery ") in {"slow", "storm", "day"}
