"""Each entrant that is here does the work on real servers, for a second; who is not is told why.

The figures themselves are the machine's; only `make peers` looks at them.
"""

import asyncio
import json
import re
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from loadtests.bench import load_run, scenarios
from loadtests.bench.adapter import Producing
from loadtests.bench.load_run import Bench, Figures
from loadtests.clients.load import BODY_BYTES, stamp
from loadtests.peers import contest as contests
from loadtests.peers import entrants as known
from loadtests.peers import nats, stomp, streams
from loadtests.peers.__main__ import peers
from loadtests.peers.contest import SCENARIOS, Plan, contest, figures_of, measure
from loadtests.peers.entrants import ENTRANTS, READING, SHARING, Entrant, Running
from loadtests.peers.medians import Run, read
from loadtests.peers.meter import Mark, Meter
from loadtests.peers.programs import Missing
from loadtests.peers.report import BEGIN, END
from tests.loadtests.longer import longer
from tests.waiting import becomes

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
    for scenario in ("single", "batch", "open1k", "open10k-64", "fanout", "idle"):
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
        if scenario == "fanout":
            assert "written_per_byte" not in found.figures
        elif scenario != "idle":
            assert found.figures["written_per_byte"] >= 0
        assert found.figures.get("redelivered", 0) == 0
        assert list(tmp_path.iterdir()) == []


async def test_every_server_knows_the_queues_of_the_scenarios() -> None:
    """Servers are configured before the scenarios run, and each scenario names its queue."""
    shared: set[str] = set()
    feeds: set[str] = set()

    class Asked(Exception):
        pass

    class Names:
        async def shared(self, queue: str, partitions: int) -> None:
            shared.add(queue)
            raise Asked

        async def feed(self, queue: str) -> None:
            feeds.add(queue)
            raise Asked

    bench = Bench("", None, Meter([1]), 1.0, 0, 1, lambda _: None, speaks=cast(Any, Names()))
    for scenario in (*SHARING, *READING):
        with pytest.raises(Asked):
            await SCENARIOS[scenario](bench)
    assert shared == set(nats.SHARED)
    assert feeds == set(nats.FEEDS) == set(stomp.FEEDS) == set(streams.FEEDS)


async def test_a_broker_that_is_too_slow_is_sent_no_more_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scenarios, "OVERTIME_S", 0.5)
    published = 0

    class Slow:
        """One client in all roles: it takes a hundred messages and answers when all are there."""

        messages_per_frame = 1
        on_answers = on_settled = failure = durability = None
        answered = delivered = redelivered = 0

        def __init__(self) -> None:
            self.unanswered = self.settled = 0

        def publish(self, due: bytes) -> None:
            nonlocal published
            published += 1
            self.unanswered += 1

        def flush(self) -> None:
            pass

        def close(self) -> None:
            pass

    class Alone:
        async def shared(self, queue: str, partitions: int) -> None:
            pass

        async def producer(self, *_: object) -> Slow:
            return Slow()

        async def consumer(self, *_: object) -> Slow:
            consumer = Slow()
            consumer.settled = 1 << 30
            return consumer

    bench = Bench(
        "", None, None, 0.5, 0, 1, lambda _: None, speaks=cast(Any, Alone()), in_flight_max=400
    )
    async with asyncio.timeout(30):
        await scenarios.open_loop(bench, 10_000)
    assert published == 400


async def answered(producer: Producing, count: int) -> None:
    await becomes(lambda: producer.answered >= count)


@pytest.mark.parametrize("name", ["nats", "nats-sync"])
async def test_nats_syncs_before_each_confirmation_only_if_it_says_so(
    name: str, tmp_path: Path
) -> None:
    (entrant,) = (entrant for entrant in ENTRANTS if entrant.name == name)
    here(entrant)
    strace, trace, count = shutil.which("strace"), tmp_path / "trace", 20
    if strace is None:
        pytest.skip("strace is not installed")
    with entrant.open(tmp_path) as running:
        await running.adapter.shared("single", 16)
        producer = await running.adapter.producer("bench-0", "single", 1)
        watching = await asyncio.create_subprocess_exec(
            strace, "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace),
            "-p", str(running.pids[0]), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert watching.stderr is not None
            said = await watching.stderr.readline()
            if b"attached" not in said:
                pytest.skip(f"strace may not look here: {said!r}")
            for number in range(1, count + 1):
                producer.publish(stamp(time.monotonic_ns()))
                producer.flush()
                await answered(producer, number)
        finally:
            watching.terminate()
            await watching.wait()
            producer.close()
    syncs = len(re.findall(r"\b(?:fsync|fdatasync)\(", trace.read_text()))
    assert syncs >= count if name == "nats-sync" else syncs < count


def fake(name: str, why: str = "", error: Exception | None = None) -> Entrant:
    """An entrant that is not here, or whose server does not start."""

    def version() -> str:
        if why:
            raise Missing(why)
        return "1.0"

    def opened(folder: Path) -> AbstractContextManager[Running]:
        raise error or OSError("it does not start")

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
    assert told[1].startswith("1 of 8, round 1 of 2, nats, single: FAILED: it does not start")
    assert results.cut == ""


def test_an_entrant_that_breaks_in_an_unforeseen_way_costs_nobody_else_a_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> str:
        raise KeyError("version")

    entrants = (
        replace(fake("rabbitmq"), version=broken),
        fake("nats", error=AssertionError()),
        fake("redis-streams"),
    )
    monkeypatch.setattr(contests, "ENTRANTS", entrants)
    results = contest(
        replace(PLAN, rounds=1, scenarios=("single",)), lambda _: None, lambda _: None
    )
    assert results.skipped == {"rabbitmq": "KeyError 'version'"}
    assert [(run.entrant, run.failure) for run in results.runs] == [
        ("nats", "AssertionError"), ("redis-streams", "it does not start"),
    ]  # fmt: skip


@pytest.mark.usefixtures("three")
def test_no_measurement_begins_when_the_time_is_over() -> None:
    late = Plan(rounds=2, entrants=("nats",), scenarios=("single",), minutes_max=-1.0)
    results = contest(late, lambda _: None, lambda _: None)
    assert results.runs == []
    assert "were over in round 1" in results.cut


def test_what_does_not_apply_is_no_figure() -> None:
    meter = Meter([1])
    assert figures_of(Figures(), meter) == {}
    meter.marks = [Mark(0.0, 0.0, 0.0, 0), Mark(2.0, 1.0, 0.5, 2000 * BODY_BYTES * 3)]
    assert figures_of(Figures(1000.0, None, 500.0), meter) == {
        "messages_per_s": 1000.0, "server_cpu_us": 500.0, "server_cores": 0.5,
        "generator_cores": 0.25, "generator_cpu_us": 250.0, "written_per_byte": 3.0,
    }  # fmt: skip
    to_readers = figures_of(Figures(1000.0, None, 500.0, {"per": "recipient"}), meter)
    assert "written_per_byte" not in to_readers


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


@pytest.mark.usefixtures("three")
def test_the_command_also_fills_in_a_page_but_refuses_a_wrong_one_at_once(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out"
    arguments = ["run", "--rounds", "1", "--out", str(out), "--scenario", "single"]
    arguments += ["--page", str(page)]
    page.write_text("nothing")
    ran = CliRunner().invoke(peers, arguments)
    assert ran.exit_code == 1
    assert "has not one" in ran.output
    assert not out.exists()
    page.write_text(f"before\n{BEGIN}\n{END}\n")
    ran = CliRunner().invoke(peers, arguments, catch_exceptions=False)
    assert ran.exit_code == 1, ran.output  # nobody's server starts
    assert "it does not start" in page.read_text()
    assert read((tmp_path / "peers/results.json").read_bytes()).runs


@pytest.mark.usefixtures("three")
def test_a_run_that_was_cut_short_does_not_replace_a_published_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(entrant: Entrant, scenario: str, plan: Plan, number: int) -> Run:
        if entrant.name != "nats":
            raise KeyboardInterrupt
        return measure(entrant, scenario, plan, number)

    page = tmp_path / "page.md"
    page.write_text(before := f"before\n{BEGIN}\nearlier\n{END}\n")
    monkeypatch.setattr(contests, "measure", interrupted)
    arguments = ["run", "--out", str(tmp_path / "out"), "--page", str(page)]
    ran = CliRunner().invoke(peers, arguments, catch_exceptions=False)
    assert "is unchanged, because the run was cut short (interrupted)" in ran.output
    assert page.read_text() == before
    assert len(read((tmp_path / "out/results.json").read_bytes()).runs) == 1


def test_a_file_of_something_else_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"schema": 99}))
    ran = CliRunner().invoke(peers, ["report", str(file), "--out", str(tmp_path)])
    assert ran.exit_code == 1
    assert "no results of a contest" in ran.output
    assert "Traceback" not in ran.output
