"""A budget is kept or missed by what was measured, and what was not measured is neither."""

import pytest

from loadtests.peers.budgets import BUDGETS, OURS, Budget, judged, ratios
from loadtests.peers.contest import SCENARIOS
from loadtests.peers.entrants import ENTRANTS
from loadtests.peers.medians import Run, middles

CPU = Budget("CPU", "open1k", "server_cpu_us", 400, 200)
RATE = Budget("rate", "single", "messages_per_s", 95_000, 145_000, at_least=True)
RATIO = Budget("p50", "open1k", "p50_ms", 1.5, 1.1, against=("nats", "open1k"))


def result(budget: Budget, *runs: Run) -> str:
    return judged(budget, middles(runs)).result


def open1k(entrant: str = OURS, rate: float = 1000.0, **figures: float) -> Run:
    return Run(1, entrant, "open1k", {"messages_per_s": rate, **figures})


@pytest.mark.parametrize(
    ("cpu_us", "said"),
    [(400.1, "missed"), (400.0, "kept"), (200.1, "kept"), (200.0, "aim reached")],
)
def test_a_figure_is_compared_with_limit_and_aim(cpu_us: float, said: str) -> None:
    assert result(CPU, open1k(server_cpu_us=cpu_us)) == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(94_999, "missed"), (95_000, "kept"), (144_999, "kept"), (145_000, "aim reached")],
)
def test_of_messages_a_second_the_limit_is_the_least(rate: float, said: str) -> None:
    assert result(RATE, Run(1, OURS, "single", {"messages_per_s": rate})) == said


@pytest.mark.parametrize(
    ("theirs", "said"), [(1.9, "missed"), (2.0, "kept"), (2.7, "kept"), (2.8, "aim reached")]
)
def test_a_ratio_is_ours_divided_by_theirs(theirs: float, said: str) -> None:
    found = middles([open1k(p50_ms=3.0), open1k("nats", p50_ms=theirs)])
    verdict = judged(RATIO, found)
    assert verdict.result == said
    assert verdict.measured == pytest.approx(3.0 / theirs)


def test_what_was_not_measured_is_neither_kept_nor_missed() -> None:
    assert result(CPU) == "not measured"
    assert result(CPU, Run(1, OURS, "open1k", failure="it ended")) == "not measured"
    assert result(RATIO, open1k(p50_ms=3.0)) == "not measured: the other has no figure"


def test_who_does_not_keep_up_misses_and_is_no_measure_for_others() -> None:
    late, ours = open1k(rate=900.0, server_cpu_us=1.0), open1k(p50_ms=3.0)
    assert result(CPU, late) == "missed: it does not keep up"
    slow = open1k("nats", rate=900.0, p50_ms=3.0)
    assert result(RATIO, ours, slow) == "not measured: the other does not keep up"
    found = middles([ours, slow, open1k("rabbitmq", p50_ms=6.0)])
    divided = ratios(judged(RATIO, found), found, ("nats", "rabbitmq", "redis-streams"))
    assert divided == {"nats": None, "rabbitmq": 0.5, "redis-streams": None}


def test_every_budget_names_what_is_measured_and_has_an_aim_beyond_its_limit() -> None:
    takes_part = {entrant.name: entrant.scenarios for entrant in ENTRANTS}
    for budget in BUDGETS:
        assert budget.scenario in SCENARIOS
        assert budget.scenario in takes_part[OURS]
        if budget.against:
            name, scenario = budget.against
            assert scenario in takes_part[name]
        assert (budget.aim > budget.limit) is budget.at_least
