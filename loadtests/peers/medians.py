"""Results: the figures of runs, the order of turns, and medians over rounds. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec

SCHEMA: Final = 1
OFFERED: Final = {"open1k": 1_000, "open5k": 5_000, "open10k": 10_000}
"""Scenarios of a fixed rate, in messages a second."""
SPREAD: Final = {"open10k-1": 1, "open10k-64": 64}
"""Scenarios of SPREAD_PER_S messages a second over another number of partitions."""
SPREAD_PER_S: Final = 10_000
RATES: Final = OFFERED | dict.fromkeys(SPREAD, SPREAD_PER_S)
"""Every scenario of a fixed rate, in messages a second."""
KEPT_UP: Final = 0.95
"""The share of an offered rate that an entrant must reach; otherwise its latencies are not
shown."""


class Run(msgspec.Struct, frozen=True):
    """An entrant in one scenario of one round."""

    round: int
    """Number of the round, from 1."""
    entrant: str
    scenario: str
    figures: dict[str, float] = {}
    """Figures by name; those that do not apply are left out."""
    failure: str = ""
    """The reason why there are no figures; empty if there are."""


class Known(msgspec.Struct, frozen=True):
    """The description of an entrant that took part, with its version."""

    title: str
    version: str
    transport: str
    durability: str
    ordering: str
    batch: str
    reader: str


class Results(msgspec.Struct):
    """All results of a contest, and their conditions."""

    schema: int
    command: str
    began: str
    ended: str
    rounds: int
    """Number of rounds that were planned."""
    conditions: dict[str, str | int | float]
    entrants: dict[str, Known]
    skipped: dict[str, str]
    """Name → why it did not take part."""
    runs: list[Run]
    cut: str = ""
    """The reason why the contest ended before all planned measurements; empty if it did not."""


class Middle(NamedTuple):
    """The median of some rounds, with the lowest and the highest value."""

    value: float
    low: float
    high: float
    rounds: int


Middles = Mapping[tuple[str, str], Mapping[str, Middle]]
"""(entrant, scenario) → figure → its median."""


def turns(names: Sequence[str], number: int) -> list[str]:
    """Return the order of a round, from 1. Each round begins with another name, so that none always
    comes first. Raises ValueError for a number below 1."""
    if number < 1:
        raise ValueError(f"rounds are counted from 1, not {number}")
    if not names:
        return []
    first = (number - 1) % len(names)
    return [*names[first:], *names[:first]]


def middle(values: Iterable[float]) -> Middle | None:
    """Return the median; for an even number, the mean of the two in the middle. None without
    values."""
    found = sorted(values)
    return Middle(median(found), found[0], found[-1], len(found)) if found else None


def middles(runs: Iterable[Run]) -> dict[tuple[str, str], dict[str, Middle]]:
    """(entrant, scenario) → figure → its median over the rounds that have it."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        figures = values.setdefault((run.entrant, run.scenario), {})
        for name, value in run.figures.items():
            figures.setdefault(name, []).append(value)
    return {
        place: {name: found for name, each in figures.items() if (found := middle(each))}
        for place, figures in values.items()
    }


def kept_up(found: Middles, entrant: str, scenario: str) -> bool:
    """Whether an entrant reached the share KEPT_UP of the rate offered to it."""
    rate = found.get((entrant, scenario), {}).get("messages_per_s")
    return rate is not None and rate.value >= KEPT_UP * RATES[scenario]


def failures(runs: Iterable[Run]) -> dict[tuple[str, str], list[str]]:
    """(entrant, scenario) → why rounds of it have no figures."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.failure:
            found.setdefault((run.entrant, run.scenario), []).append(run.failure)
    return found


def read(data: bytes) -> Results:
    """Read results from their JSON.

    Raises:
        ValueError: it is no results, or of another schema.
    """
    try:
        results = msgspec.json.decode(data, type=Results)
    except msgspec.DecodeError as error:
        raise ValueError(f"no results of a contest: {error}") from None
    if results.schema != SCHEMA:
        raise ValueError(f"results of schema {results.schema}, and this reads {SCHEMA}")
    return results


def written(results: Results) -> bytes:
    """Return the JSON of results, indented for people."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"
