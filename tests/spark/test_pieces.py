"""What needs no Spark: files and their names, the command, what it says when Spark is not
there, and the synthetic log itself."""

import datetime
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tocsin.cli.main import cli

from gateway.deliverylog.lines import SCHEMA, runs_of
from spark import files, losses, synthetic
from spark.failures import SENTENCE_MAX, explain
from spark.ingest import batches
from spark.job import LOGS_MAX, _is_little, exit_code, open_log
from spark.progress import Progress
from spark.report import Wanted
from spark.rollup import Targets
from spark.schema import SCHEMAS
from spark.session import (
    LITTLE_BYTES_MAX,
    NotInstalled,
    Unreachable,
    check_installed,
    check_master,
    prepare_environment,
)
from spark.submit import main as submit
from spark.submit import parser, seconds_of, wanted_of
from spark.synthetic import Plan, Synthetic, without
from spark.usage import Clues, find_reasons
from tests.layout.tree import ROOT
from tests.spark.judged import BEGAN_MS, GATEWAY, certified, percentile_us, write_log

# --- Files --------------------------------------------------------------------------------------


def as_read(path: Path) -> files.Raw:
    data = path.read_bytes()
    last = b"\n".join(data.split(b"\n")[-2:])
    listed = files.Listed(f"file:{path}", len(data), int(path.stat().st_mtime * 1000))
    return files.Raw(listed, last, zlib.crc32(data[: len(data) - len(last)]))


def test_a_file_is_what_its_last_line_says(tmp_path: Path) -> None:
    path = write_log(tmp_path, 4, [certified([[0, n, 1]]) for n in range(3)], name="any.jsonl")
    assert files.identify(as_read(path)).recovered
    path = write_log(tmp_path, 4, [certified([[0, n, 1]]) for n in range(3)], name="any.jsonl",
                     recovered=None)  # fmt: skip
    file = files.identify(as_read(path))
    assert (file.name, file.gateway, file.number, file.lines) == ("any.jsonl", GATEWAY, 4, 3)
    assert (file.began_unix_ms, file.fault, file.recovered) == (BEGAN_MS, "", False)


def test_the_number_of_an_older_gateways_file_is_that_of_its_name(tmp_path: Path) -> None:
    old: dict[str, Any] = {"began_unix_ms": None, "number": None}
    file = files.identify(as_read(write_log(tmp_path, 4, [], **old)))
    assert (file.gateway, file.began_unix_ms, file.number) == (GATEWAY, BEGAN_MS, 4)
    renamed = files.identify(as_read(write_log(tmp_path, 4, [], name="x.jsonl", **old)))
    assert (renamed.gateway, renamed.number, renamed.fault) == (GATEWAY, None, "")
    other = write_log(tmp_path, 4, [], name=f"other-{BEGAN_MS}-000004.jsonl", **old)
    assert files.identify(as_read(other)).number is None


@pytest.mark.parametrize("change", ["flip", "drop a line", "add a line", "cut", "empty", "end"])
def test_a_changed_file_is_noticed(tmp_path: Path, change: str) -> None:
    path = write_log(tmp_path, 1, [certified([[0, n, 1]]) for n in range(3)])
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    changed = {
        "flip": bytes([data[0] ^ 1]) + data[1:],
        "drop a line": b"".join(lines[1:]),
        "add a line": lines[0] + data,
        "cut": data[:-1],
        "empty": b"",
        "end": data.replace(b'"number": 1', b'"number": "1"'),
    }
    path.write_bytes(changed[change])
    file = files.identify(as_read(path))
    assert file.fault in (files.WRONG_SUM, files.NO_END)
    assert file.crc32 == zlib.crc32(changed[change])
    assert (file.gateway, file.number) == (GATEWAY, 1)


def entry(number: int | None, lines: int = 1, fault: str = "", crc32: int = 7) -> files.File:
    return files.File(
        name="x", path=f"file:/{number}/{lines}/{crc32}", bytes=100 * lines, modified_unix_ms=1,
        gateway=GATEWAY, began_unix_ms=BEGAN_MS, number=number, lines=lines, crc32=crc32,
        fault=fault, recovered=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (entry(1, 5), None),
        (entry(1, 4, crc32=8), None),
        (entry(1, 5, crc32=8), files.CONTRADICTS),
        (entry(1, 6, crc32=8), files.CONTRADICTS),
        (entry(2, 5, crc32=8), ""),
        (entry(None, 6, crc32=8), ""),
        (entry(1, 5, files.WRONG_SUM, crc32=8), files.WRONG_SUM),
    ],
)
def test_a_second_file_repeats_the_first_or_contradicts_it_or_is_new(
    second: files.File, expected: str | None
) -> None:
    known = files.Known([{"files": [entry(1, 5).entry()], "repeated_files": []}])
    fresh, repeated = known.sort([replace(second, path="file:/elsewhere")])
    assert [file.fault for file in fresh] == ([] if expected is None else [expected])
    assert len(repeated) == (expected is None)
    assert known.sort([replace(second, path="file:/third", fault=second.fault)])[0] == []


def test_batches_have_bytes_enough_and_no_name_twice() -> None:
    def listed(path: str, size: int, at: int) -> files.Listed:
        return files.Listed(f"file:/{path}", size, at)

    new = [listed("a/3", 60, 3), listed("a/1", 60, 1), listed("b/1", 60, 2), listed("a/2", 40, 1),
           listed("a/4", 500, 4)]  # fmt: skip
    found = [[one.path[6:] for one in batch] for batch in batches(new, 100)]
    assert found == [["a/1", "a/2"], ["b/1"], ["a/3"], ["a/4"]]


# --- What is not there --------------------------------------------------------------------------


def manifest_file(number: int, **more: object) -> dict[str, object]:
    """A whole file, of the ten microseconds from ten times its number on."""
    return {
        "name": f"{GATEWAY}-17-{number:06}.jsonl", "fault": "", "recovered": False,
        "since_unix_us": 10 * number, "until_unix_us": 10 * number + 9, **more,
    }  # fmt: skip


def told(*entries: dict[str, object]) -> list[tuple[str, int | None, int | None, int | None]]:
    """(reason, number, since, until) of each loss; None: nothing bounds it."""
    found = losses.losses([{"files": entries}], [])
    shown = [loss.shown() for loss in found]
    return [(o["reason"], o["number"], o["since_unix_us"], o["until_unix_us"]) for o in shown]


def test_a_missing_file_is_a_loss_between_its_neighbours() -> None:
    over = manifest_file(5, recovered=True)
    assert told(manifest_file(2), over) == [
        ("missing_file", 1, None, 20), ("missing_file", 3, 29, 50), ("missing_file", 4, 29, 50),
    ]  # fmt: skip


def test_a_damaged_file_is_a_loss_until_a_whole_one_comes() -> None:
    damaged = manifest_file(2, fault="checksum", since_unix_us=None, until_unix_us=None)
    over = manifest_file(3, recovered=True)
    assert told(manifest_file(1), damaged, over) == [("damaged_file", 2, 19, 30)]
    assert told(manifest_file(1), damaged, over, manifest_file(2)) == []
    other = manifest_file(2, fault=files.CONTRADICTS, since_unix_us=None, until_unix_us=None)
    whole = (manifest_file(1), manifest_file(2), over)
    assert told(*whole, other) == [("damaged_file", 2, 19, 30)]


@pytest.mark.parametrize("over", ["recovered", "is_last"])
def test_behind_the_last_file_of_a_process_that_has_ended_nothing_comes(over: str) -> None:
    assert told(manifest_file(1)) == [("not_yet", None, 20, None)]
    assert told(manifest_file(1, **{over: True})) == []


def test_a_file_has_the_number_of_its_last_line_and_not_of_its_name() -> None:
    names = [entry(number, 1, crc32=7).entry() for number in (1, 3)]
    renamed = [one | {"name": f"{GATEWAY}-17-000009.jsonl"} for one in names]
    assert losses.missing(losses.losses([{"files": renamed}], [])) == {GATEWAY: [2]}


def test_what_a_killed_gateway_lost_is_the_end_of_its_log() -> None:
    """Whatever the time of the file that says so."""
    row = {"gateway": GATEWAY, "reason": "killed", "since_unix_us": 900, "until_unix_us": 900,
           "certified": 0, "dispatched": 1, "settled": 2}  # fmt: skip
    files = [manifest_file(1), manifest_file(2, recovered=True)]
    (loss,) = losses.losses([{"files": files}], [row])
    assert (loss.since_unix_us, loss.until_unix_us) == (29, losses.EVER)
    assert (loss.certified, loss.dispatched, loss.settled) == (0, 1, 2)


def test_the_end_of_a_log_that_goes_on_is_not_there_yet() -> None:
    assert told(manifest_file(1)) == [("not_yet", None, 20, None)]
    assert told(manifest_file(1, recovered=True)) == []


# --- The synthetic log --------------------------------------------------------------------------


def test_the_same_plan_makes_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan(messages=2_000, faults=("inversion", "gap"), redeliveries=2)
    for name in ("a", "b"):
        Synthetic(plan).write(tmp_path / name)
    made = [
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).rglob("*.jsonl"))}
        for name in ("a", "b")
    ]
    assert made[0] == made[1]
    Synthetic(Plan(messages=2_000, seed=2)).write(tmp_path / "c")
    assert not {path.name for path in (tmp_path / "c/delivery").iterdir()} & set(made[0])


def test_the_jobs_read_what_the_gateway_writes_and_the_synthetic_log_is_like_it() -> None:
    assert SCHEMA in SCHEMAS
    assert synthetic.SCHEMA == SCHEMA


def test_its_answers_are_those_of_its_lines(tmp_path: Path) -> None:
    answers = Synthetic(Plan(messages=3_000, faults=("gap", "hole"))).write(tmp_path)
    found: dict[str, int] = {}
    for path in (tmp_path / "delivery").iterdir():
        assert files.identify(as_read(path)).fault == ""
        for text in path.read_text().splitlines():
            line = json.loads(text)
            runs = line.get("runs") or runs_of(line.get("pushes", []))
            count = sum(run[2] for run in runs) + line.get("certified", 0)
            found[line["kind"]] = found.get(line["kind"], 0) + count
    assert {kind: n for kind, n in found.items() if n} == dict(answers.messages)
    assert {what for what, *_ in answers.planted} == {"gap", "hole"}


def test_runs_without_a_message() -> None:
    assert without([[0, 5, 3], [1, 9, 1]], [0, 7, 1]) == [[0, 5, 2], [1, 9, 1]]
    assert without([[0, 5, 3], [1, 9, 1]], [1, 9, 1]) == [[0, 5, 3]]


def test_the_oracle_of_ranks_judges_right() -> None:
    durations = [(1, 50), (2, 40), (3, 10)]
    assert percentile_us(durations, 0.5) == 1
    assert percentile_us(durations, 0.51) == 2
    assert percentile_us(durations, 0.9) == 2
    assert percentile_us(durations, 0.99) == 3
    assert percentile_us(durations, 1.0) == 3


# --- What a person sees -------------------------------------------------------------------------


def test_steps_are_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "said"
    with path.open("w") as stream:
        progress = Progress(stream)
        with progress.step("ingest") as step:
            step.say("3 files")
    assert path.read_text().split() == ["ingest", "3", "files", "0.0", "s"]


def test_a_long_step_says_what_it_is_at_where_there_is_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "said"
    with path.open("w") as stream:
        progress = Progress(stream, line_every_s=0.001)
        with progress.step("ingest") as step:
            step.say("3 files")
            deadline = time.monotonic() + 10
            while not re.search(r"^ingest +3 files .*…$", path.read_text(), re.M):
                assert time.monotonic() < deadline
    *meanwhile, last = path.read_text().splitlines()
    assert all(line.endswith(" …") for line in meanwhile)
    assert not last.endswith("…")


def test_a_step_that_fails_has_no_line_and_its_name_is_known(tmp_path: Path) -> None:
    path = tmp_path / "said"
    with path.open("w") as stream:
        progress = Progress(stream)
        with pytest.raises(ValueError), progress.step("ingest"):
            raise ValueError
    assert path.read_text() == ""
    assert progress.failed == "ingest"


def test_several_clock_steps_at_once_are_each_logged() -> None:
    said = io.StringIO()
    progress = Progress(said, line_every_s=0.001)
    with progress.step("rollup") as rollup, progress.step("order-audit") as audit:
        rollup.say("3 hours")
        audit.say("suspects")
        deadline = time.monotonic() + 10
        while not all(re.search(rf"^{one} .*…$", said.getvalue(), re.M)
                      for one in ("rollup +3 hours", "order-audit +suspects")):  # fmt: skip
            assert time.monotonic() < deadline
    ends = [line.split()[0] for line in said.getvalue().splitlines() if not line.endswith("…")]
    assert ends == ["order-audit", "rollup"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_steps_at_once_in_one_line_that_is_no_wider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = _Terminal()
    progress = Progress(said)
    with progress.step("rollup") as rollup, progress.step("order-audit") as audit:
        rollup.say("2026-01-31 to 2026-02-01")
        audit.say("looking at back, repetition")
        deadline = time.monotonic() + 10
        while "rollup 2026-01-31" not in said.getvalue():
            assert time.monotonic() < deadline
    lines = re.split(r"[\r\n]", said.getvalue())
    assert any("2026-01-31" in line and "order-audit looking" in line for line in lines)
    assert all(len(line) < 60 for line in lines if "order-audit" in line and "rollup" in line)


def test_a_terminal_that_becomes_narrow_has_no_line_that_is_wider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = _Terminal()
    progress = Progress(said)
    with progress.step("ingest") as step:
        step.say("x" * 60)
        deadline = time.monotonic() + 10
        while "x" * 60 not in said.getvalue():
            assert time.monotonic() < deadline
        monkeypatch.setenv("COLUMNS", "30")
        begin = len(said.getvalue())
        while len(said.getvalue()) < begin + 60:
            assert time.monotonic() < deadline
    live = said.getvalue()[begin:].rpartition("\r")[0]
    assert all(len(line) < 30 for line in live.split("\r")[2:])


_IN_A_WORKER = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 failed 1 times
 [PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):
  File "worker.py", line 75, in read_command
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'spark'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(a.scala:1)
"""
_IN_JAVA = """\
An error occurred while calling o123.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(b.scala:1)
Caused by: {cause}
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (_IN_A_WORKER, "a worker failed in Python: ModuleNotFoundError: No module named 'spark'"),
        (_IN_JAVA.format(cause="java.io.IOException: No space left on device"), "the disk is full"),
        (_IN_JAVA.format(cause="java.lang.OutOfMemoryError: Java heap space"), "out of memory"),
        (_IN_JAVA.format(cause="java.io.IOException: cold"), "IOException: cold"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a b/c. SQLSTATE: 42K03\n\nplan",
            "there is no file:/a b/c",
        ),
        ("one\ntwo", "RuntimeError: one"),
        ("", "RuntimeError"),
        ("x" * 10_000, "…"),
    ],
)
def test_a_failure_of_spark_is_one_short_sentence(text: str, sentence: str) -> None:
    told = explain(RuntimeError(text))
    assert sentence in told
    assert "\n" not in told
    assert len(told) <= SENTENCE_MAX


def test_what_java_wrote_decides_only_when_java_has_ended() -> None:
    lost = ConnectionResetError("reset by peer")
    log = "ERROR Executor: java.lang.OutOfMemoryError: Java heap space"
    assert "out of memory" in explain(lost, log=log, java_ended=52)
    assert "signal 9" in explain(lost, java_ended=-9)
    assert explain(ValueError("x"), log=log) == "ValueError: x"


# --- The command --------------------------------------------------------------------------------


def test_without_java_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="Java 17"):
        check_installed()


def test_workers_run_this_python_unless_the_user_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "SPARK_HOME", "LC_ALL"):
        monkeypatch.setenv(name, "")  # is set back in the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_PYTHON", "/theirs/python3")
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    prepare_environment(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == "/theirs/python3"
    assert (Path(os.environ["SPARK_HOME"]) / "jars").is_dir()
    monkeypatch.delenv("PYSPARK_PYTHON")
    prepare_environment(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_command_is_there_and_is_loaded_without_pyspark() -> None:
    """Every verb is imported for `tocsin --help`."""
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import spark.command, spark.submit, spark.synthetic, spark.page\n"
        "assert 'py4j' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={"PYTHONPATH": _path()})


def test_without_pyspark_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
        "from spark.command import report\n"
        "report(['--data-dir', sys.argv[1]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False, text=True,
        capture_output=True, env={"PYTHONPATH": _path()},
    )  # fmt: skip
    assert done.returncode == 3
    assert "pip install 'pyspark>=4.1.2,<4.4'" in done.stderr


def _path() -> str:
    return f"{ROOT}:{ROOT / 'clients/python/src'}"


def refused(*arguments: str, **environment: str) -> str:
    """What the command says, in this environment alone, when it fails before Spark begins."""
    done = CliRunner(
        env=dict.fromkeys(("HOME", "TOCSIN_DATA_DIR", "XDG_DATA_HOME")) | environment
    ).invoke(cli, ["report", *arguments])
    assert done.exit_code == 3, done.output
    assert done.output.startswith("Error: ")
    assert done.output.count("\n") == 1, done.output
    return done.output


def test_a_folder_without_a_log_is_a_sentence(tmp_path: Path) -> None:
    assert "there is no delivery log in" in refused("--data-dir", str(tmp_path))
    assert f"no delivery log in {tmp_path}/tocsin" in refused(XDG_DATA_HOME=str(tmp_path))
    assert f"no delivery log in {tmp_path}/a b" in refused(TOCSIN_DATA_DIR=f"{tmp_path}/a b")
    home = str(tmp_path)
    assert f"no delivery log in {tmp_path}/.local/share/tocsin" in refused(HOME=home)


def test_a_user_without_a_home_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    assert "--data-dir or TOCSIN_DATA_DIR" in refused()


def test_a_page_that_cannot_be_written_is_a_sentence_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "delivery").mkdir()
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "page.html"
    said = refused("--data-dir", str(tmp_path), "--out", str(out))
    assert f"the page {out} cannot be written" in said
    assert not (tmp_path / "delivery-lake").exists()


def test_logs_need_a_lake_of_their_own_and_usage_needs_logs(tmp_path: Path) -> None:
    """Else two logs would be in one lake, or a usage log beside deliveries of another broker."""
    logs = ["--logs", str(tmp_path)]
    for arguments, said in (
        (logs, "--logs needs --lake"),
        (["--usage", str(tmp_path)], "--usage needs --logs"),
    ):
        done = CliRunner(env={"HOME": str(tmp_path)}).invoke(cli, ["report", *arguments])
        assert done.exit_code == 2
        assert said in done.output


def test_missing_logs_are_reported_before_spark_begins(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for place, said in ((tmp_path / "none", "no folder"), (tmp_path / "no*", "nothing matches")):
        told = refused("--logs", str(place), "--lake", str(lake))
        assert re.search(f"{said} {re.escape(str(place))}; name one", told), told
        assert not lake.exists()


@pytest.mark.parametrize("job", ["rollup", "usage", "order-audit", "report", "close"])
def test_a_job_on_a_lake_that_is_not_there_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    lake = tmp_path / "lake"
    more = {"report": ["--out", str(tmp_path / "page.html")], "close": ["--before", "2026-01-01"]}
    with pytest.raises(SystemExit) as ended:
        submit([job, "--lake", str(lake), *more.get(job, [])])
    assert ended.value.code == 3
    assert f"there is no lake in {lake}" in capsys.readouterr().err
    assert not lake.exists()


def test_a_target_is_a_time_with_a_unit_or_seconds() -> None:
    seconds = [seconds_of(text) for text in ("50ms", "0.05", "2m", "10us", "1.5s")]
    assert seconds == pytest.approx([0.05, 0.05, 120, 1e-5, 1.5])
    for text in ("", "ms", "5 ms", "5d", "x", "1ms1"):
        with pytest.raises(ValueError, match=r".*"):
            seconds_of(text)


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for lake in (tmp_path / "file", tmp_path / "file" / "below"):
        told = refused("--logs", str(tmp_path), "--lake", str(lake))
        assert f"{lake} is no folder" in told


@pytest.mark.parametrize(
    ("audit", "code", "strict"),
    [
        ({"faults": {"gap": 0}}, 0, 0),
        ({"faults": {"gap": 1}, "holes": 1}, 1, 1),
        ({"faults": {"gap": 0}, "holes": 1}, 0, 4),
        ({"faults": {}, "unjudged": [{"messages": 1}]}, 0, 4),
        ({"faults": {}, "losses": [{"reason": "killed"}]}, 0, 4),
        ({"faults": {}, "quarantined": {"not_json": 1}}, 0, 4),
        ({"faults": {}, "waiting": {"messages": 7}}, 0, 0),
    ],
)
def test_what_could_not_be_judged_is_an_exit_code_where_that_is_wanted(
    audit: dict[str, Any], code: int, strict: int
) -> None:
    """Of all jobs, and of the audit alone; what waits is no reason."""
    for done in ({"order_audit": audit}, audit):
        assert exit_code(done, is_strict=False) == code
        assert exit_code(done, is_strict=True) == strict


def test_an_until_before_the_since_is_not_understood(tmp_path: Path) -> None:
    days = ["--since", "2026-03-02", "--until", "2026-03-01"]
    done = CliRunner().invoke(cli, ["report", *days])
    assert done.exit_code == 2
    assert "--until 2026-03-01 is before --since 2026-03-02" in done.output
    with pytest.raises(SystemExit) as ended:
        submit(["report", "--lake", str(tmp_path), "--out", str(tmp_path / "page.html"), *days])
    assert ended.value.code == 2
    one_day = ["--since", "2026-03-01", "--until", "2026-03-01"]
    refused("--data-dir", str(tmp_path), *one_day)


def test_a_cluster_that_does_not_answer_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "delivery").mkdir()
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"no master .*{place}"):
            check_master(f"spark://{place}")
        with socket.socket() as master:
            master.bind(("127.0.0.1", 0))
            master.listen()
            check_master(f"spark://{place},127.0.0.1:{master.getsockname()[1]}")


def test_old_logs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(LOGS_MAX + 5):
        old = folder / f"order-audit-20260101T0000{number:02}Z-{number}.log"
        old.touch()
        os.utime(old, (number, number))
    (folder / "mine.log").touch()
    with open_log("ingest", folder) as log:
        left = {path.name for path in folder.iterdir()}
    assert {Path(log.name).name, "mine.log"} < left
    assert len(left) == LOGS_MAX + 1
    assert "order-audit-20260101T000014Z-14.log" in left
    with open_log("ingest", Path("/proc/none")) as log:
        Path(log.name).unlink()
    assert Path(log.name).parent == Path(tempfile.gettempdir())


def test_every_job_can_be_submitted() -> None:
    for job in ("rollup", "usage", "order-audit"):
        assert parser().parse_args([job, "--lake", "x"]).job == job
    assert parser().parse_args(["ingest", "--lake", "x", "--logs", "y"]).batch_bytes is None
    given = parser().parse_args(
        ["all", "--lake", "x", "--logs", "y", "--out", "z", "--target", "a=0.5", "--usage", "u"]
    )
    assert wanted_of(given) == Wanted(
        logs=["y"], lake=Path("x"), out=Path("z"), usage=Path("u"),
        targets=Targets(None, {"a": 500_000}),
    )  # fmt: skip


# --- Usage --------------------------------------------------------------------------------------


def differences(clues: Clues, *days: tuple[int, int]) -> list[tuple[int, int, str]]:
    """(explained, left, why) of days on which so many came in by the delivery log and by the usage
    log."""
    rows: list[dict[str, Any]] = [
        {"date": datetime.date(2026, 2, 1 + number), "tenant": "default", "messages_in": ours,
         "used_messages_in": used, "messages_out": 0, "used_messages_out": None}
        for number, (ours, used) in enumerate(days)
    ]  # fmt: skip
    find_reasons(rows, clues)
    return [(row["explained_in"], row["left_in"], row["why"]) for row in rows]


FIRST = (datetime.date(2026, 2, 1), "default")
SECOND = (datetime.date(2026, 2, 2), "default")


def test_a_difference_without_a_clue_is_left() -> None:
    assert differences(Clues(), (10, 9), (9, 10)) == [(0, 1, ""), (0, -1, "")]


def test_what_goes_over_midnight_is_explained_as_far_as_there_was_as_much() -> None:
    near = Clues(midnight={FIRST: (3, 0), SECOND: (2, 0)})
    assert differences(near, (10, 6), (6, 10)) == [(4, 0, "midnight"), (-4, 0, "midnight")]
    assert differences(near, (20, 10), (10, 20)) == [(5, 5, "midnight"), (-5, -5, "midnight")]


def test_a_clue_explains_its_day_and_its_direction_alone() -> None:
    killed = Clues(killed={FIRST: (5, 0)}, before={SECOND: (-5, 0)})
    assert differences(killed, (10, 13), (13, 10)) == [(0, -3, ""), (0, 3, "")]
    assert differences(killed, (13, 10), (10, 13)) == [(3, 0, "killed"), (-3, 0, "before")]


def test_little_is_what_logs_and_lake_have_together(tmp_path: Path) -> None:
    """On both sides of the bound; what is on another machine is not little."""
    half = LITTLE_BYTES_MAX // 2
    for name, size in (("a/one.jsonl", half), ("b/deep/two.jsonl", half)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(size)
    places = [str(tmp_path / "*")]
    assert _is_little(places)
    with (tmp_path / "b/deep/two.jsonl").open("r+b") as file:
        file.truncate(half + 1)
    assert not _is_little(places)
    assert not _is_little(["s3a://bucket/logs"])
