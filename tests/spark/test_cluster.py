"""A standalone cluster, word for word as spark/README.md says: a master and two workers, each a
process of its own, in an environment that has PySpark and nothing else."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.synthetic import Plan, Synthetic
from tests.layout.tree import ROOT
from tests.spark.environments import only_pyspark

START_S_MAX = 300.0
JOB_S_MAX = 1200.0
INSTALL, MASTER, WORKER, SUBMIT = range(4)


def page_blocks() -> list[str]:
    """Return what the page says to type."""
    section = (
        (ROOT / "spark/README.md").read_text().split("### On a cluster\n")[1].split("\n## ")[0]
    )
    return re.findall(r"```sh\n(.*?)```", section, re.S)


def test_the_page_installs_what_the_package_wants() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["spark"]
    assert f"pip install '{wanted}'" in page_blocks()[INSTALL]
    assert len(page_blocks()) == 4


class Cluster:
    """A master and two workers on this machine."""

    def __init__(self, folder: Path, places: dict[str, str]) -> None:
        self.folder = folder
        self._places = places
        self._processes: list[subprocess.Popen[bytes]] = []

    def typed(self, block: int) -> str:
        """Return what the page says, about places of the test."""
        text = page_blocks()[block]
        for theirs, ours in self._places.items():
            assert any(theirs in block for block in page_blocks()), theirs
            text = text.replace(theirs, ours)
        return text

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in a shell with no more than a bare environment."""
        return subprocess.run(
            ["sh", "-c", command], env=self._environment(), cwd=self.folder / "copy",
            capture_output=True, text=True, check=False, timeout=JOB_S_MAX,
        )  # fmt: skip

    def start(self) -> None:
        """Start all three; they are there when the workers are registered."""
        self._start("master", self.typed(MASTER))
        self._wait("master", r"I have been elected leader|New state: ALIVE")
        for name in ("one", "two"):
            self._start(name, self.typed(WORKER))
        for name in ("one", "two"):
            self._wait(name, r"Successfully registered with master")

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin"}

    def _start(self, name: str, command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    ["sh", "-c", command],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, pattern: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        log = self.folder / f"{name}.log"
        while re.search(pattern, log.read_text(errors="replace")) is None:
            said = log.read_text(errors="replace")[-3000:]
            assert all(process.poll() is None for process in self._processes), said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def stop(self) -> None:
        """End all of them."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One that stands, with logs of a broker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {
        "/var/tmp/spark": str(tmp_path / "work"), "/srv/spark": str(tmp_path / "env"),
        "/logs": str(tmp_path / "logs"), "/lake": str(tmp_path / "lake"),
        "HOST": "127.0.0.1", "7077": port,
    }  # fmt: skip
    only_pyspark(tmp_path / "env")
    (tmp_path / "copy").mkdir()
    shutil.copytree(ROOT / "spark", tmp_path / "copy/spark")
    made = Cluster(tmp_path, places)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="seven JVMs, a minute: make soak has it"
)
def test_a_cluster_makes_the_report_that_this_machine_makes(
    cluster: Cluster, tmp_path: Path
) -> None:
    answers = Synthetic(Plan(messages=4_000, lines_max=40)).write(tmp_path / "logs/one")
    home = cluster.typed(SUBMIT).split("/bin/activate")[0].removeprefix(". ")
    found = cluster.run(f"'{home}/bin/python' -c 'import tocsin'")
    assert "No module named 'tocsin'" in found.stderr
    done = cluster.run(cluster.typed(SUBMIT))
    of_cluster = answer(done)
    assert of_cluster["ingest"]["messages"] == dict(answers.messages)
    assert of_cluster["ingest"]["quarantined"] == {}
    assert (tmp_path / "lake/report.html").stat().st_size > 1000
    assert " INFO " not in done.stderr
    executors = list((tmp_path / "work").glob("app-*/*/stderr"))
    assert len(executors) >= 2, "a worker did nothing"
    here = cluster.run(
        f". '{home}/bin/activate'; python -m spark all --logs '{tmp_path}/logs/*/delivery' "
        f"--usage '{tmp_path}/logs/one/usage' --lake '{tmp_path}/here' --out '{tmp_path}/here.html'"
    )
    assert answer(here) == of_cluster
