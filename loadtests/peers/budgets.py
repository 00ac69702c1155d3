"""Budgets: bounds for Tocsin's figures in the contest, and whether a run has kept them. Pure.

A budget has a limit, which a figure must not pass, and an aim, which is better than the limit.
Some bound a figure itself, others its ratio to a figure of the same run: another broker's, or
Tocsin's own in another scenario.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from loadtests.peers.medians import RATES, Middles, kept_up

OURS: Final = "tocsin"


@dataclass(frozen=True)
class Budget:
    """A bound for one figure of Tocsin."""

    label: str
    scenario: str
    figure: str
    limit: float
    aim: float
    at_least: bool = False
    """Whether more is better, so that the limit is the least and not the most."""
    against: tuple[str, str] | None = None
    """The entrant and scenario whose same figure Tocsin's is divided by; None: no ratio."""


_REDIS: Final = ("redis-streams", "open10k")
BUDGETS: Final = (
    Budget("server CPU a message at 1,000/s, µs", "open1k", "server_cpu_us", 400, 200),
    Budget("server CPU a message at 5,000/s, µs", "open5k", "server_cpu_us", 110, 70),
    Budget("server CPU a message at 10,000/s, µs", "open10k", "server_cpu_us", 55, 40),
    Budget("p50 at 10,000/s against Redis Streams", "open10k", "p50_ms", 2.5, 1.2, against=_REDIS),
    Budget("p99 at 10,000/s against Redis Streams", "open10k", "p99_ms", 2, 1.2, against=_REDIS),
    Budget(
        "p50 at 1,000/s against NATS JetStream, which does not sync",
        "open1k", "p50_ms", 1.3, 1, against=("nats", "open1k"),
    ),
    Budget(
        "p50 at 10,000/s over 64 partitions against 1",
        "open10k-64", "p50_ms", 1.5, 1.1, against=(OURS, "open10k-1"),
    ),
    Budget(
        "single messages a second", "single", "messages_per_s", 95_000, 145_000, at_least=True
    ),
    Budget(
        "messages a second, by the hundred", "batch", "messages_per_s", 190_000, 250_000,
        at_least=True,
    ),
    Budget("server CPU a message, by the hundred, µs", "batch", "server_cpu_us", 5.5, 3.5),
    Budget("bytes written for a byte published at 1,000/s", "open1k", "written_per_byte", 20, 10),
    Budget("bytes written for a byte published at 10,000/s", "open10k", "written_per_byte", 3, 2),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The result of comparing a budget with a run."""

    budget: Budget
    result: str
    """`missed`, `kept`, `aim reached`, or why it cannot be said."""
    figure: float | None = None
    """Tocsin's figure; None if there is none."""
    other: float | None = None
    """The figure that it is divided by; None without one."""
    measured: float | None = None
    """The value that is compared with the limit: the figure, or the ratio."""


def judged(budget: Budget, found: Middles) -> Verdict:
    """Compare a budget with the medians of a run."""
    if _is_late(found, OURS, budget.scenario):
        return Verdict(budget, "missed: it does not keep up")
    figure = _value(found, OURS, budget.scenario, budget.figure)
    if figure is None:
        return Verdict(budget, "not measured")
    if budget.against is None:
        return Verdict(budget, _result(budget, figure), figure, None, figure)
    if _is_late(found, *budget.against):
        return Verdict(budget, "not measured: the other does not keep up", figure)
    other = _value(found, *budget.against, budget.figure)
    if not other:
        return Verdict(budget, "not measured: the other has no figure", figure)
    return Verdict(budget, _result(budget, figure / other), figure, other, figure / other)


def ratios(verdict: Verdict, found: Middles, entrants: Iterable[str]) -> dict[str, float | None]:
    """Return Tocsin's figure divided by each entrant's in the same scenario. None where an entrant
    has no such figure, or does not keep up."""
    scenario, ours = verdict.budget.scenario, verdict.figure
    divided: dict[str, float | None] = {}
    for name in entrants:
        theirs = _value(found, name, scenario, verdict.budget.figure)
        is_late = _is_late(found, name, scenario)
        divided[name] = None if ours is None or not theirs or is_late else ours / theirs
    return divided


def _value(found: Middles, entrant: str, scenario: str, figure: str) -> float | None:
    middle = found.get((entrant, scenario), {}).get(figure)
    return None if middle is None else middle.value


def _is_late(found: Middles, entrant: str, scenario: str) -> bool:
    """Whether an entrant did less than was offered, so that its figures say nothing."""
    has_run = _value(found, entrant, scenario, "messages_per_s") is not None
    return scenario in RATES and has_run and not kept_up(found, entrant, scenario)


def _result(budget: Budget, measured: float) -> str:
    sign = -1 if budget.at_least else 1
    if measured * sign > budget.limit * sign:
        return "missed"
    return "aim reached" if measured * sign <= budget.aim * sign else "kept"
