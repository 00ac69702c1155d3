"""The jobs on a standalone cluster: a master and two workers, each a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark.synthetic import Plan, Synthetic
from tests.layout.tree import ROOT

HOME = Path(pyspark.__file__).parent
pytestmark = pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="seven JVMs, a minute: make soak has it"
)
START_S_MAX = 120.0
JOB_S_MAX = 300.0


class Cluster:
    """A master and two workers of one core each on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = os.environ | {
            "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m",
            "PYTHONPATH": "",
        }  # fmt: skip

    def start(self) -> None:
        """Start all three; they are there when the workers are registered."""
        self._run("master", "master.Master", "--host", "127.0.0.1", "--port", "0",
                  "--webui-port", "0")  # fmt: skip
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            self._run(name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                      "--cores", "1", "--memory", "1g", "--work-dir", str(self.work(name)),
                      self.url)  # fmt: skip
        for name in ("one", "two"):
            self._said(name, r"(Successfully registered with master)")

    def work(self, name: str) -> Path:
        """Where a worker keeps what it runs."""
        return self.folder / f"work-{name}"

    def _run(self, name: str, what: str, *arguments: str) -> None:
        command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + START_S_MAX
        log = self.folder / f"{name}.log"
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)
        return found[1]

    def submit(self, *arguments: str) -> dict[str, object]:
        """Run a job and return what it printed."""
        archive = shutil.make_archive(str(self.folder / "spark"), "zip", ROOT, "spark")
        done = subprocess.run(
            [str(HOME / "bin/spark-submit"), "--master", self.url, "--py-files", archive,
             "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m",
             "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.executor.cores=1",
             str(ROOT / "spark/submit.py"), *arguments],
            env=self._environment, cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=JOB_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(answer, dict)
        return answer

    def stop(self) -> None:
        """End all of them."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One that stands."""
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_jobs_run_on_two_workers_with_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    answers = Synthetic(Plan(messages=4_000, lines_max=40)).write(tmp_path / "log")
    lake = ("--lake", str(tmp_path / "lake"))
    came = cluster.submit("ingest", *lake, "--logs", str(tmp_path / "log/delivery"))
    assert came["messages"] == dict(answers.messages)
    assert came["quarantined"] == {}
    cluster.submit("rollup", *lake)
    done = cluster.submit("order-audit", *lake)
    assert set(json.loads(json.dumps(done["faults"])).values()) == {0}
    for name in ("one", "two"):
        assert list(cluster.work(name).glob("app-*/*/stderr")), f"worker {name} did nothing"
