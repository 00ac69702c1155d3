"""Each entrant that is here does the work on real servers, for a second; who is not is told why.

The figures themselves are the machine's; only `make peers` looks at them.
"""

import json
import tempfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests.bench import load_run, scenarios
from loadtests.bench.load_run import Figures
from loadtests.peers import contest as contests
from loadtests.peers import entrants as known
from loadtests.peers.__main__ import peers
from loadtests.peers.contest import Plan, contest, figures_of, measure
from loadtests.peers.entrants import ENTRANTS, Entrant, Running
from loadtests.peers.medians import Run, read
from loadtests.peers.meter import Mark, Meter
from loadtests.peers.programs import Missing
from tests.loadtests.longer import longer

ALONE = Plan(rounds=1, readers=20, connections=40)


@pytest.fixture(autouse=True)
def warms_up_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (load_run, scenarios):
        monkeypatch.setattr(module, "WARM_UP_S", 0.2)
    monkeypatch.setattr(scenarios, "IDLE_WARM_UP", 20)


def here(entrant: Entrant) -> None:
    """Skip where it is not."""
    try:
        entrant.version()
    except Missing as error:
        pytest.skip(str(error))


def alone(entrant: Entrant, scenario: str) -> Run:
    return longer(
        lambda seconds: measure(entrant, scenario, replace(ALONE, seconds=seconds), 1),
        lambda found: found.figures.get("messages_per_s"),
    )


@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.name)
def test_who_is_here_does_the_work_and_cleans_up(
    entrant: Entrant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(entrant)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for scenario in ("single", "batch", "open1k", "fanout", "idle"):
        if scenario not in entrant.scenarios:
            continue
        found = alone(entrant, scenario)
        assert not found.failure, f"{scenario}: {found.failure}"
        assert found.figures["started_mib"] > 1
        if scenario == "idle":
            assert "kib_per_connection" in found.figures
        else:
            assert found.figures["messages_per_s"] > 0
            assert found.figures["server_cores"] >= 0
            assert found.figures["generator_cpu_us"] > 0
            assert 0 < found.figures["p50_ms"] <= found.figures["p999_ms"]
        assert found.figures.get("redelivered", 0) == 0
        assert list(tmp_path.iterdir()) == []


def fake(name: str, why: str = "") -> Entrant:
    """An entrant that is not here, or whose server does not start."""

    def version() -> str:
        if why:
            raise Missing(why)
        return "1.0"

    def opened(folder: Path) -> AbstractContextManager[Running]:
        raise OSError("it does not start")

    return Entrant(
        name, name, "TCP", "none", "none", "none", "none", ("single", "batch"), version, opened
    )


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    entrants = (fake("nats"), fake("rabbitmq"), fake("redis-streams", "it was forgotten"))
    for module in (contests, known):
        monkeypatch.setattr(module, "ENTRANTS", entrants)


PLAN = Plan(rounds=2, scenarios=("single", "batch", "idle"))


@pytest.mark.usefixtures("three")
def test_rounds_go_in_turn_and_every_failure_is_reported() -> None:
    kept: list[int] = []
    told: list[str] = []
    results = contest(PLAN, told.append, lambda found: kept.append(len(found.runs)))
    assert [(run.round, run.scenario, run.entrant) for run in results.runs] == [
        (1, "single", "nats"), (1, "single", "rabbitmq"),
        (1, "batch", "nats"), (1, "batch", "rabbitmq"),
        (2, "single", "rabbitmq"), (2, "single", "nats"),
        (2, "batch", "rabbitmq"), (2, "batch", "nats"),
    ]  # fmt: skip
    assert kept == list(range(1, 9))
    assert results.skipped == {"redis-streams": "it was forgotten"}
    assert results.entrants.keys() == {"nats", "rabbitmq"}
    assert {run.failure for run in results.runs} == {"it does not start"}
    assert "not measured: redis-streams, because it was forgotten" in told
    assert results.cut == ""


@pytest.mark.usefixtures("three")
def test_no_measurement_begins_when_the_time_is_over() -> None:
    late = Plan(rounds=2, entrants=("nats",), scenarios=("single",), minutes_max=-1.0)
    results = contest(late, lambda _: None, lambda _: None)
    assert results.runs == []
    assert "were over in round 1" in results.cut


def test_what_does_not_apply_is_no_figure() -> None:
    meter = Meter([1])
    assert figures_of(Figures(), meter) == {}
    meter.marks = [Mark(0.0, 0.0, 0.0), Mark(2.0, 1.0, 0.5)]
    assert figures_of(Figures(1000.0, None, 500.0), meter) == {
        "messages_per_s": 1000.0, "server_cpu_us": 500.0, "server_cores": 0.5,
        "generator_cores": 0.25, "generator_cpu_us": 250.0,
    }  # fmt: skip


@pytest.mark.usefixtures("three")
def test_the_command_writes_what_it_found_and_ends_red_when_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", "--rounds", "1", "--out", str(tmp_path), "--scenario", "single"]
    monkeypatch.setattr("sys.argv", ["peers", *arguments])
    ran = CliRunner().invoke(peers, arguments, catch_exceptions=False)
    assert ran.exit_code == 1, ran.output
    results = read((tmp_path / "results.json").read_bytes())
    assert results.command == f'make peers ARGS="--rounds 1 --out {tmp_path} --scenario single"'
    assert len(results.runs) == 2
    assert "it does not start" in (tmp_path / "table.md").read_text()
    assert not list(tmp_path.glob("*.part"))


def test_a_file_of_something_else_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"schema": 99}))
    ran = CliRunner().invoke(peers, ["report", str(file), "--out", str(tmp_path)])
    assert ran.exit_code == 1
    assert "no results of a contest" in ran.output
    assert "Traceback" not in ran.output
