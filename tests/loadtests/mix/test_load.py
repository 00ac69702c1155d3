"""`make load`: the exit code says what was found, and the report shows it.

The whole runs start Locust's processes: Locust makes gevent's every socket of the process that
imports it, so this one does not.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadtests.mix import coordination, outages, plan
from loadtests.mix.__main__ import NOT_RUN, load
from loadtests.mix.coordination import Phase
from loadtests.mix.gates import gates
from loadtests.mix.ledger import Ledger, Stamp, Stream
from loadtests.mix.outages import Outage
from loadtests.server import Server
from tests.layout.tree import ROOT

MS = 1_000_000


def kept(folder: Path, *given: int, drained: bool = True) -> None:
    """What a run of one process has left: three messages sent, these given to the group."""
    queue = "load.r.worker-0"
    plan.write(
        plan.Plan("r", ["http://b"], {"websocket": 1, "worker": 1}, 1, 1.0, 5.0, 0.0, 256, 1, 0),
        folder / coordination.PLAN,
    )
    ledger = Ledger(0)
    ledger.since_ns = 0
    ledger.subscriber(f"{queue}/worker", queue)
    stream = Stream(ledger, f"{queue}/worker", "worker", settles=True)
    for number in (1, 2, 3):
        stamp = Stamp("websocket-0.0/k0001", number, number * MS)
        ledger.offers(queue, stamp)
        ledger.certified(queue, stamp, now_ns=number * MS + MS // 4, way="websocket")
    for number in given:
        stamp = Stamp("websocket-0.0/k0001", number, number * MS)
        stream.given(stamp, key="k0001", now_ns=number * MS + MS // 3)
        stream.settled(stamp)
    coordination.write_ledger(ledger, folder / coordination.LEDGER.format(0))
    coordination.tell(folder, Phase("over", 0, drained))


def judged(folder: Path, *arguments: str) -> Result:
    report = str(folder.with_name("report.html"))
    words = ["--judge", str(folder), "--report", report, *arguments]
    return CliRunner().invoke(load, words, catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def test_a_run_in_peace_ends_with_0_and_tells_less_than_a_millisecond(folder: Path) -> None:
    kept(folder, 1, 2, 3)
    found = judged(folder, "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["ok"]
    assert 0.25 <= told["figures"]["receipt_p99_ms"] <= 0.26
    assert 0.33 <= told["figures"]["delivery_worker_p50_ms"] <= 0.34


@pytest.mark.parametrize(
    ("given", "kind"), [((1, 3), "lost"), ((1, 3, 2), "order"), ((1, 2, 3, 2), "repeated"),
                        ((1, 2, 3, 4), "invented")]
)  # fmt: skip
def test_what_was_planted_ends_with_1_and_is_named(
    folder: Path, given: tuple[int, ...], kind: str
) -> None:
    kept(folder, *given)
    found = judged(folder)
    assert found.exit_code == 1
    assert f"BROKEN {kind}=0: 1" in found.output
    assert "GATES ARE BROKEN" in found.output


def test_a_run_that_was_not_drained_ends_with_1(folder: Path) -> None:
    kept(folder, 1, 2, 3, drained=False)
    found = judged(folder)
    assert found.exit_code == 1
    assert "BROKEN drained=1: 0" in found.output


@pytest.mark.parametrize(
    ("gate", "code"),
    [("delivery_p99_ms<=1", 0), ("delivery_p99_ms<=0.1", 1), ("delivry_p99_ms<=1", 1)],
)
def test_a_gate_decides_the_exit_code(folder: Path, gate: str, code: int) -> None:
    kept(folder, 1, 2, 3)
    assert judged(folder, "--gate", gate).exit_code == code


@pytest.mark.parametrize(
    "words",
    [("--gate", "fast"), ("--share", "worker"), ("--share", "ghost=1"), ("--users", "3"),
     ("--share", "none", "--share", "worker=1")],
)  # fmt: skip
def test_a_command_that_is_wrong_ends_with_2(folder: Path, words: tuple[str, ...]) -> None:
    found = judged(folder, *words)
    assert found.exit_code == 2
    assert "Error:" in found.output


def test_ledgers_that_are_missing_or_damaged_are_no_run(folder: Path) -> None:
    kept(folder, 1, 2, 3)
    (folder / coordination.LEDGER.format(0)).write_bytes(b"{")
    assert judged(folder).exit_code == NOT_RUN
    (folder / coordination.LEDGER.format(0)).unlink()
    assert judged(folder).exit_code == NOT_RUN


def test_nobody_at_the_url_is_no_run(tmp_path: Path) -> None:
    found = CliRunner().invoke(load, ["--url", "http://127.0.0.1:9", "--seconds", "1"])
    assert found.exit_code == NOT_RUN
    assert "Traceback" not in found.output


class _Seen(HTMLParser):
    """The page's tags, in balance, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [text or "" for name, text in attrs if name in {"src", "href"}]
        if tag not in {"meta", "line", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"line", "polyline"}:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_shows_what_was_found_and_needs_nothing_beside_itself(folder: Path) -> None:
    kept(folder, 1, 3)
    assert judged(folder).exit_code == 1
    seen = _Seen()
    seen.feed((folder.with_name("report.html")).read_text())
    assert seen.open == []
    assert seen.sources == []
    many = f"1 of {len(gates([]))} gates are broken"
    for words in (many, "1 lost", "websocket-0.0/k0001 2", "p99 over time"):
        assert words in seen.text, words


def test_an_outage_is_named_in_text_in_json_and_in_the_report_and_breaks_the_usual_gate(
    folder: Path,
) -> None:
    kept(folder, 1, 2, 3)
    outage = Outage("http://b", "Connection <refused>", 1_800_000_000.0, 12.0, 20.5, True)
    outages.write([outage], folder / outages.FILE)
    found = judged(folder)
    assert found.exit_code == 1
    assert "BROKEN outages=0: 1" in found.output
    assert "http://b from 08:00:00 to 08:00:20 (UTC), 20.5 s: Connection <refused>" in found.output
    told = json.loads(judged(folder, "--gate", "outage_s<=21", "--json").stdout)
    assert told["ok"]
    assert told["outages"] == [
        {"url": "http://b", "why": "Connection <refused>", "began_unix_s": 1_800_000_000.0,
         "began_s": 12.0, "lasted_s": 20.5, "is_over": True}
    ]  # fmt: skip
    page = (folder.with_name("report.html")).read_text()
    assert "2027-01-15 08:00:00" in page
    assert "Connection &lt;refused&gt;" in page


def test_a_run_without_an_outage_says_so_in_its_report(folder: Path) -> None:
    kept(folder, 1, 2, 3)
    judged(folder)
    assert "all of them answered throughout" in (folder.with_name("report.html")).read_text()


def test_what_users_wrote_is_text_in_the_report(folder: Path) -> None:
    kept(folder, 1, 2, 3)
    place = folder / coordination.LEDGER.format(0)
    ledger = coordination.read_ledger(place)
    ledger.flag("invented", "<script>alert(1)</script>")
    coordination.write_ledger(ledger, place)
    judged(folder)
    page = (folder.with_name("report.html")).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A whole run of its own processes."""
    return subprocess.run(
        [
            sys.executable, "-m", "loadtests.mix", "--json", "--ramp", "1", "--seed", "7",
            "--report", str(folder / "report.html"), "--keep", str(folder / "run"), *arguments,
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def test_users_of_every_kind_in_two_processes_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "data", level="warning") as server:
        done = run(
            "--url", server.url, "--users", "40", "--seconds", "8", "--rate", "100",
            "--processes", "2", "--storm-every", "3", "--gate", "delivery_p99_ms<=60000",
            folder=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert figures["certified"] > 300
    assert figures["given"] >= figures["settled"] > 0
    assert figures["sockets_cut"] > 0
    for name in (
        "receipt_websocket", "receipt_rest", "delivery_worker", "delivery_reader",
        "delivery_poller", "delivery_slow", "delivery_storm", "comeback_storm",
    ):  # fmt: skip
        assert figures[f"{name}_p99_ms"] > 0, name


def test_a_gate_that_nobody_can_keep_fails_a_whole_run(tmp_path: Path) -> None:
    done = run(
        "--users", "4", "--seconds", "2", "--rate", "20", "--processes", "1",
        "--share", "none", "--share", "websocket=1", "--share", "worker=1",
        "--gate", "delivery_p99_ms<=0.001", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [one["gate"] for one in json.loads(done.stdout)["gates"] if not one["ok"]]
    assert broken == ["delivery_p99_ms<=0.001"]


class Live:
    """A whole run whose terminal is read as it goes."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable, "-u", "-m", "loadtests.mix", "--users", "12", "--rate", "40",
                "--ramp", "1", "--processes", "1", "--report", str(folder / "report.html"),
                "--gate", "delivery_p99_ms<=600000", *arguments,
            ],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.said: list[str] = []

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def until(self, words: str, within_s: float) -> None:
        """Read on until a line has these words. Fails when there is none in time."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {words!r} within {within_s} s: {self.said}") from None
            self.said.append(line)
            if words in line:
                return

    def end(self) -> int:
        """The exit code; everything is in `said` then."""
        code = self.process.wait(240)
        self._reader.join()
        while not self._lines.empty():
            self.said.append(self._lines.get())
        return code


@contextlib.contextmanager
def live(*arguments: str, folder: Path) -> Iterator[Live]:
    running = Live(*arguments, folder=folder)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)
        running.end()


def test_a_broker_killed_in_a_run_is_named_at_once_and_keeps_what_it_promised(
    tmp_path: Path,
) -> None:
    with (
        Server(tmp_path / "data", level="warning") as server,
        live("--url", server.url, "--seconds", "20", folder=tmp_path) as running,
    ):
        running.until("measure", 60)
        server.kill()
        running.until(f"{server.url} cannot be reached", 5)
        running.until("NOT REACHED for", 10)
        server.start()
        running.until(f"{server.url} is back, after", 60)
        assert running.end() == 0, "".join(running.said)
    text = "".join(running.said)
    assert "kept   lost=0: 0" in text
    assert "kept   repeated=0: 0" in text
    assert f"not reached: {server.url} from " in text
    assert server.url in (tmp_path / "report.html").read_text()


def test_a_broker_of_its_own_that_dies_is_started_again_on_its_data_and_named(
    tmp_path: Path,
) -> None:
    with live("--seconds", "12", folder=tmp_path) as running:
        running.until("measure", 60)
        os.kill(broker_of(running.process.pid), signal.SIGKILL)
        running.until("its process ended with -9, and is started again on its data", 5)
        running.until("is back, after", 60)
        assert running.end() == 0, "".join(running.said)
    text = "".join(running.said)
    assert "kept   lost=0: 0" in text
    assert "not reached: " in text


def broker_of(pid: int) -> int:
    """The broker that a process has started."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            is_child = f"\nPPid:\t{pid}\n" in status.read_text()
            if is_child and b"gateway.cli.serve" in status.with_name("cmdline").read_bytes():
                return int(status.parent.name)
    raise AssertionError(f"{pid} has no broker")
