"""The command as people and cron start it: from any folder, in any environment, as any user.

A file of its own because nothing here uses the Spark of the fixtures: each test starts a process,
which starts its Java.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.synthetic import Plan, Synthetic
from tests.layout.tree import ROOT
from tests.spark.environments import PACKAGES, SCRIPTS, with_wheels

soak = pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="each is seconds of a JVM: make soak has all of them"
)
RUN_S_MAX = 900.0
STEPS = [
    ("start", "ingest", *meanwhile, "report")
    for meanwhile in (
        ("rollup", "usage", "order-audit"),
        ("rollup", "order-audit", "usage"),
        ("order-audit", "rollup", "usage"),
    )
]
"""The audit goes on at the same time as the roll-up, and either may be first."""
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Java says on its stderr that it has picked this up."""
TREE = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
"""Empty, except where a copy of the code is tested, with a planted bug."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a broker, which any user may read, with a blank and an umlaut."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "Daten für heute"
    Synthetic(Plan(messages=300)).write(folder)
    return folder


def command(data: Path, *more: str, tocsin: Path = SCRIPTS / "tocsin") -> list[str]:
    page = data / "die Seite.html"
    return [str(tocsin), "report", "--data-dir", str(data), "--out", str(page), *more]


def other_python(folder: Path) -> str:
    """A PATH on which the first `python3` is one that no worker may be run with."""
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).write_text("#!/bin/sh\nexit 9\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def steps(stderr: str) -> tuple[str, ...]:
    """The steps that have ended; anything else on stderr fails."""
    ended = []
    for line in stderr.splitlines():
        match = re.fullmatch(r"(\S+) .* [\d.]+ s( …)?", line)
        assert match is not None, stderr
        if match[2] is None:
            ended.append(match[1])
    return tuple(ended)


def test_a_report_needs_no_folder_no_environment_and_no_python_on_the_path(
    data: Path, tmp_path: Path
) -> None:
    before = sorted(os.listdir("/"))
    done = subprocess.run(
        command(data, "--json"), cwd="/",
        env={"PATH": other_python(tmp_path / "bin")} | QUICK | TREE,
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert steps(done.stderr) in STEPS
    answer = json.loads(done.stdout)
    assert answer["ingest"]["messages"]["certified"] == 300
    assert (data / "die Seite.html").stat().st_size > 1000
    assert sorted(os.listdir("/")) == before
    assert not (data / "delivery-lake/scratch").exists()
    (log,) = (data / "delivery-lake/logs").iterdir()
    assert "Picked up JAVA_TOOL_OPTIONS" in log.read_text()


def test_a_failure_of_spark_is_one_sentence_that_names_the_log(data: Path) -> None:
    done = subprocess.run(
        command(data, "--memory", "64m"), cwd="/", env=QUICK | TREE, capture_output=True, text=True,
        check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == ""
    (sentence,) = [line for line in done.stderr.splitlines() if not line.endswith(" …")]
    match = re.fullmatch(
        r"Error: start failed: .* out of memory; .*; the log of it is (.+)", sentence
    )
    assert match is not None, sentence
    text = Path(match[1]).read_text()
    assert Path(match[1]).parent == data / "delivery-lake/logs"
    assert "Traceback (most recent call last)" in text
    assert "INVALID_DRIVER_MEMORY" in text


class Started:
    """A report that is under way, in a group of processes as a terminal has it."""

    def __init__(self, arguments: list[str], stderr: Path) -> None:
        self._stderr = stderr
        with stderr.open("w") as file:
            self.process = subprocess.Popen(
                arguments, cwd="/", env={}, stdout=file, stderr=file, start_new_session=True
            )

    def java(self) -> int | None:
        """The process of Spark's Java, once there is one."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                words = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if int(parent) == self.process.pid and b"SparkSubmit" in words:
                return int(path.name)
        return None

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for it."""
        deadline = time.monotonic() + RUN_S_MAX
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def said(self) -> str:
        return self._stderr.read_text()

    def end(self) -> tuple[int, list[str]]:
        """The exit code, and what is on stderr beside the steps."""
        code = self.process.wait(60)
        lines = self.said().splitlines()
        return code, [line for line in lines if re.search(r" s( …)?$", line) is None]


@soak
@pytest.mark.parametrize("moment", ["java", "session", "ingest"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_one_line_at_any_moment(
    data: Path, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    run = Started(command(data), tmp_path / "stderr")
    moments: dict[str, Callable[[], object]] = {
        "java": run.java,
        "session": lambda: "start  " in run.said() and "Spark" in run.said(),
        "ingest": lambda: list((data / "delivery-lake").glob("batches/*")),
    }
    run.until(moments[moment])
    java = run.java()
    os.killpg(run.process.pid, number)
    code, said = run.end()
    assert code == 128 + number
    assert len(said) == 1, said
    assert "what it has done stays" in said[0]
    assert java is not None
    assert not Path(f"/proc/{java}").exists()
    assert not (data / "delivery-lake/scratch").exists()
    again = subprocess.run(
        command(data), cwd="/", env={}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr


@soak
def test_a_java_that_is_killed_is_one_sentence(data: Path, tmp_path: Path) -> None:
    run = Started(command(data), tmp_path / "stderr")
    run.until(lambda: list((data / "delivery-lake").glob("batches/*")))
    java = run.java()
    assert java is not None
    os.kill(java, signal.SIGKILL)
    code, said = run.end()
    assert code == 3
    assert len(said) == 1, said
    assert "signal 9 ended Java" in said[0]


@soak
def test_workers_with_another_python_are_one_sentence(data: Path) -> None:
    done = subprocess.run(
        command(data), cwd="/", env={"PYSPARK_PYTHON": "/nonexistent/python3"},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if re.search(r" s( …)?$", line) is None]
    if done.returncode == 0:  # no job has a worker in Python any more
        assert said == []
    else:
        assert done.returncode == 3
        assert len(said) == 1, said
        assert "PYSPARK_PYTHON names" in said[0]


@soak
def test_a_job_alone_ends_as_the_whole_does(data: Path) -> None:
    """`python -m spark`, which knows neither the broker nor its client."""
    start = [sys.executable, "-m", "spark"]
    lake = ["--lake", str(data / "lake")]
    done = subprocess.run(
        [*start, "ingest", *lake, "--logs", str(data / "delivery"), "--memory", "64m"], cwd=ROOT,
        env={}, capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 3
    (said,) = [line for line in done.stderr.splitlines() if not line.endswith(" …")]
    assert "out of memory" in said
    done = subprocess.run(
        [*start, "ingest", *lake, "--logs", str(data / "delivery")], cwd=ROOT,
        env={}, capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert steps(done.stderr) == ("start", "ingest")
    assert json.loads(done.stdout)["messages"]["certified"] == 300


@soak
@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root's rights")
def test_another_user_makes_it_from_a_wheel_over_two_dated_folders(tmp_path: Path) -> None:
    """The user has no home and may write into the lake's folder alone; names of files are not in
    the encoding that the environment names; the environment's own path has a blank in it."""
    tmp_path.chmod(0o755)
    user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    if subprocess.run(["test", "-r", str(PACKAGES / "pyspark")], check=False, **user).returncode:
        pytest.skip(f"nobody may not read {PACKAGES}")
    home = with_wheels(tmp_path / "eine Umgebung", tmp_path / "build")
    theirs = tmp_path / "See von nobody"
    theirs.mkdir()
    shutil.chown(theirs, "nobody", "nogroup")
    days = tmp_path / "Tage"
    Synthetic(Plan(messages=600, lines_max=10)).write(tmp_path)
    files = sorted((tmp_path / "delivery").iterdir())
    for number, file in enumerate(files):
        day = days / ("2026-02-01" if number < len(files) // 2 else "2026-02-02")
        day.mkdir(parents=True, exist_ok=True)
        shutil.move(file, day)
    answers = []
    for folder in sorted(days.iterdir()):
        done = subprocess.run(
            [str(home / "bin/tocsin"), "report", "--logs", str(folder), "--lake",
             str(theirs / "lake"), "--out", str(theirs / "Seite.html"), "--json"],
            cwd="/", env={"LC_ALL": "C"}, capture_output=True, text=True, check=False,
            timeout=RUN_S_MAX, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert steps(done.stderr) in STEPS
        answers.append(json.loads(done.stdout))
    assert sum(answer["ingest"]["messages"]["certified"] for answer in answers) == 600
    assert answers[1]["usage"]["messages_in"] == 600
    assert (theirs / "Seite.html").stat().st_uid != 0
