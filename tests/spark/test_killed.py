"""Ingest that is killed at any moment loses nothing and repeats nothing: real processes, 20 kills
in `make soak`."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.synthetic import Plan, Synthetic
from tests.layout.tree import ROOT

pytestmark = pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="minutes of JVMs that begin: make soak has it"
)
KILLS = 20
START_S_MAX = 180.0
"""A JVM, a session and a batch, on a machine that is busy."""


def start(job: str, lake: Path, *arguments: str, said: Path) -> "subprocess.Popen[bytes]":
    """A job of its own, Java and all in one group of processes."""
    command = [sys.executable, "-m", "spark", job, "--lake", str(lake), *arguments]
    scratch = lake.parent / "scratch"  # what a JVM that is killed leaves behind
    scratch.mkdir(exist_ok=True)
    environment = os.environ | {
        "SPARK_LOCAL_DIRS": str(scratch), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch}",
    }  # fmt: skip
    with said.open("wb") as file:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment,
        )  # fmt: skip


def moments(lake: Path) -> dict[str, Callable[[], object]]:
    """Return what can be seen of a batch that is under way, from its beginning to its end."""
    spans = lake / "spans"
    return {
        "begun": lambda: sorted((lake / "staging").glob("*")),
        "written": lambda: sorted((lake / "staging/_temporary").glob("*/*/*/*")),
        "staged": lambda: sorted((lake / "staging").glob("kind=*/date=*/hour=*")),
        "a kind": lambda: sorted(spans.glob("certified/date=*/hour=*/batch=*")),
        "all kinds": lambda: sorted(spans.glob("settled/date=*/hour=*/batch=*")),
        "manifest": lambda: sorted((lake / "batches").glob("[0-9]*")),
    }


def kill_when(changed: Callable[[], object], process: "subprocess.Popen[bytes]") -> bool:
    """Kill it in the moment that something new is to be seen; False: it ended before."""
    before = changed()
    deadline = time.monotonic() + START_S_MAX
    while process.poll() is None:
        if changed() != before:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.0005)
    return False


def brought(lake: Path) -> tuple[Counter[str], list[str]]:
    """(messages of each kind, names of files) by the manifests."""
    sums: Counter[str] = Counter()
    names: list[str] = []
    for path in sorted((lake / "batches").glob("[0-9]*.json")):
        manifest: dict[str, Any] = json.loads(path.read_text())
        sums.update(manifest["messages"])
        names += [file["name"] for file in manifest["files"]]
    return sums, names


def test_killed_again_and_again_ingest_brings_everything_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("TOCSIN_SEED", random.SystemRandom().randrange(10**6)))
    rng = random.Random(seed)
    answers = Synthetic(Plan(messages=100 * (8 * KILLS + 16), lines_max=20)).write(tmp_path)
    logs, lake, said = tmp_path / "delivery", tmp_path / "lake", tmp_path / "said"
    arguments = ("--logs", str(logs), "--batch-bytes", "1")
    seen = Counter[str]()
    for _ in range(KILLS):
        name, changed = rng.choice(list(moments(lake).items()))
        process = start("ingest", lake, *arguments, said=said)
        try:
            assert kill_when(changed, process), f"seed {seed}: {said.read_text()[-2000:]}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seen[name] += 1
    process = start("ingest", lake, *arguments, said=said)
    assert process.wait(600) == 0, said.read_text()[-2000:]
    sums, names = brought(lake)
    assert sums == answers.messages, f"seed {seed}, {seen}"
    assert sorted(names) == sorted(path.name for path in logs.glob("*.jsonl"))
    # What is in the tables, and not only what the manifests say of them.
    process = start("rollup", lake, said=said)
    assert process.wait(600) == 0, said.read_text()[-2000:]
    process = start("order-audit", lake, said=said)
    assert process.wait(600) == 0, f"seed {seed}, {seen}: {said.read_text()[-2000:]}"
    audit = json.loads((lake / "audit.json").read_text())
    assert audit["holes"] == 0, f"seed {seed}, {seen}"
    assert set(audit["faults"].values()) == {0}, f"seed {seed}, {seen}"
