"""The cost of a message by hop: samples, the model, and a short run over a real broker."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests.bench import hops, scenarios
from loadtests.bench.hops import LOOP, OTHERS, WRITER, Place, fitted, hop_of, shares_of, tables
from loadtests.bench.load_run import Commits

ROOT = "/srv/tocsin"


def frame(file: str, name: str) -> str:
    return f"{name} ({ROOT}/{file}:12)"


READS = frame("gateway/net/websocket.py", "WebSocketConnection.data_received")
COMMITS = frame("gateway/publish/commits.py", "GroupCommit._commit")
CHOOSES = frame("push/commit_sharing.py", "FairShare.choose")


def test_a_sample_belongs_to_the_innermost_function_that_begins_a_hop() -> None:
    assert hop_of([READS], LOOP) == hops.READ
    assert hop_of([READS, COMMITS, CHOOSES], LOOP) == hops.BEGIN
    assert hop_of([CHOOSES], LOOP) == hops.REST
    assert hop_of([frame("storage/sqlite/state.py", "WriteState.flush")], WRITER) == hops.ROWS


def test_a_file_whose_functions_all_begin_a_hop() -> None:
    log = frame("gateway/deliverylog/log.py", "DeliveryLog.put")
    assert hop_of([READS, log], LOOP) == hops.LOG


def test_every_function_that_begins_a_hop_is_in_the_server() -> None:
    tree = Path(__file__).parents[3]
    missing = [
        (file, name)
        for file, name in hops.HOPS
        if not (tree / file).exists()
        or (name != "*" and f"def {name}(" not in (tree / file).read_text())
    ]
    assert missing == []


def test_shares_are_counted_for_each_thread() -> None:
    samples = [
        f"thread (7): MainThread;{READS} 30",
        f"thread (7): MainThread;{READS};{COMMITS};{CHOOSES} 10",
        "thread (8): tocsin-store-writer;nothing (of it) 5",
        "thread (9): delivery log;nothing (of it) 2",
    ]
    found = shares_of(samples)
    assert found[LOOP] == {hops.READ: 0.75, hops.BEGIN: 0.25}
    assert found[WRITER] == {hops.REST: 1.0}
    assert found[OTHERS] == {hops.REST: 1.0}


def place(rate: int, messages: float, partitions: float, cpu_us: float) -> Place:
    made = Place(rate, 16, p50_ms=1.0, p99_ms=2.0)
    made.cpu_us = {LOOP: cpu_us, WRITER: 0.0, OTHERS: 0.0}
    made.more = {
        "commits_per_s": rate / messages,
        "messages_per_commit": messages,
        "partitions_per_commit": partitions,
        "syncs_per_message": 1.0,
    }
    made.shares = {LOOP: {hops.READ: 1.0}}
    return made


def test_the_model_finds_the_numbers_that_made_the_costs() -> None:
    shapes = [(100, 1.0, 1.0), (1_000, 2.0, 1.9), (10_000, 64.0, 15.5), (10_000, 30.0, 1.0)]
    places = [
        place(rate, messages, partitions, (650 + 200 * partitions) / messages + 18)
        for rate, messages, partitions in shapes
    ]
    assert fitted(places) == pytest.approx((650, 200, 18))
    assert "a commit costs 650 µs, each partition in it 200 µs, and each message 18.0 µs" in tables(
        places
    )


def test_no_number_of_the_model_is_negative() -> None:
    places = [place(1_000, 1.0, 1.0, 50.0), place(1_000, 10.0, 9.0, 60.0)]
    assert min(fitted(places)) >= 0


def test_what_was_committed_between_two_moments() -> None:
    before, after = Commits(10, 100, 30, 20), Commits(30, 300, 130, 70)
    assert after.since(before, 4.0) == {
        "commits_per_s": 5.0,
        "messages_per_commit": 10.0,
        "partitions_per_commit": 5.0,
        "syncs_per_message": 0.25,
    }
    assert before.since(before, 4.0) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="py-spy needs root to look at another process")
def test_a_short_run_measures_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scenarios, hops):
        monkeypatch.setattr(module, "WARM_UP_S", 0.2)
    arguments = ["--rate", "200", "--partitions", "1", "--seconds", "4"]
    result = CliRunner().invoke(hops.main, arguments)
    assert result.exit_code == 0, result.output
    rows = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in result.stdout.splitlines()
        if line.startswith("| ") and line.count("|") == 3
    }
    assert float(rows["calls per message"].replace(",", "")) > 10
    for name in ("loop, µs", "writer, µs", f"{LOOP}: {hops.READ}", f"{WRITER}: {hops.COMMIT}"):
        assert float(rows[name].replace(",", "")) > 0, name
    assert "The model: a commit costs" in result.stdout
