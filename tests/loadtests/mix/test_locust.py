"""Locust started as those who know it do: each mode works, and its numbers are the broker's.

Locust makes every socket of a process that imports it one of gevent's, so it has its own.
"""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.server import Server, free_port
from tests.layout.tree import ROOT

LOCUSTFILE = ROOT / "loadtests" / "mix" / "locustfile.py"
TOKEN = "token-of-the-operator-of-this-broker"
IN_TIME_S = 120.0
Numbers = Counter[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker that lets nobody in without its token."""
    settings = {"TOCSIN_TOKEN": TOKEN}
    with Server(tmp_path / "data", level="warning", settings=settings) as made:
        yield made


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Locust:
    """A process of Locust with the locustfile of the mix, and what it has said."""

    def __init__(
        self, *arguments: str, cwd: Path, file: str = str(LOCUSTFILE), **more: str
    ) -> None:
        known = {
            name: text for name, text in os.environ.items()
            if not name.startswith(("LOCUST_", "TOCSIN_"))
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "locust", "-f", file, *arguments],
            env=known | more, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.append(line)

    @property
    def said(self) -> str:
        return "".join(self._said)

    def says(self, words: str) -> None:
        until(lambda: words in self.said or self.process.poll() is not None)
        assert words in self.said

    def end(self) -> int:
        code = self.process.wait(IN_TIME_S)
        self._reader.join()
        return code


@contextlib.contextmanager
def locust(*arguments: str, cwd: Path, **more: str) -> Iterator[Locust]:
    running = Locust(*arguments, cwd=cwd, **more)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.end()


def of_the_broker(url: str) -> Numbers:
    """Return what the broker has counted, of all queues together."""
    request = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    found = Numbers()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name == "tocsin_queue_messages_total":
                found[labels["outcome"]] += int(value)
            elif name == "tocsin_group_messages_total":
                found[labels["event"]] += int(value)
            elif name == "tocsin_group_in_flight_messages":
                found["held"] += int(value)
            elif name == "tocsin_queue_read_messages_total":
                found["read"] += int(value)
            elif name in {"tocsin_queue_certify_seconds_sum", "tocsin_queue_certify_seconds_count"}:
                found[name] += value  # type: ignore[assignment]  # seconds
    return found


def of_locust(rows: list[dict[str, str]]) -> Numbers:
    """Return what Locust's table says: the successes of each kind, and all failures."""
    found = Numbers()
    for row in rows:
        if row["Name"] != "Aggregated":
            failed = int(row["Failure Count"])
            kind = "read" if (row["Type"], row["Name"]) == ("delivery", "reader") else row["Type"]
            found[kind] += int(row["Request Count"]) - failed
            found["failures"] += failed
    return found


def agree(shown: Numbers, counted: Numbers) -> None:
    """Each message that was stored, given, settled and returned is in both, once."""
    assert shown["publish"] == counted["stored"] > 0
    assert shown["delivery"] == counted["given"] >= shown["publish"]
    assert shown["settle"] == counted["settled"] > 0
    assert shown["nack"] == counted["nacked"]
    # A reader reads one key of many, and may be gone before what was on its way to it.
    assert shown["read"] <= counted["read"]
    assert shown["failures"] == counted["refused"] == counted["unknown"] == 0


def table(prefix: Path) -> list[dict[str, str]]:
    with Path(f"{prefix}_stats.csv").open() as lines:
        return list(csv.DictReader(lines))


HEADLESS = ("--headless", "-u", "16", "-r", "16", "-t", "6", "--publisher-rate", "6")


def test_its_table_and_its_page_agree_with_the_broker_from_any_folder(
    server: Server, tmp_path: Path
) -> None:
    here = tmp_path / "somewhere else"
    (here / "loadtests").mkdir(parents=True)
    (here / "loadtests" / "__init__.py").write_text("raise RuntimeError('of somebody else')\n")
    files = ("--csv", str(here / "run"), "--html", str(here / "run.html"), "--only-summary")
    with locust(*HEADLESS, *files, cwd=here, LOCUST_HOST=server.url, TOCSIN_TOKEN=TOKEN) as running:
        assert running.end() == 0, running.said
    rows = table(here / "run")
    counted = of_the_broker(server.url)
    agree(of_locust(rows), counted)
    assert {row["Name"] for row in rows if row["Type"] == "publish"} == {"websocket", "rest"}
    roles = {"worker", "poller", "slow", "storm"}
    assert roles <= {row["Name"] for row in rows if row["Type"] == "delivery"}
    # Nobody has a receipt before the broker has the message on disk.
    publishes = [row for row in rows if row["Type"] == "publish"]
    took_ms = sum(
        float(row["Average Response Time"]) * int(row["Request Count"]) for row in publishes
    )
    assert took_ms >= counted["tocsin_queue_certify_seconds_sum"] * 1e3
    assert "delivery" in (here / "run.html").read_text()


def test_a_master_and_workers_agree_with_the_broker_together(
    server: Server, tmp_path: Path
) -> None:
    port = str(free_port())
    with locust(
        *HEADLESS, "--processes", "2", "--master-bind-host", "127.0.0.1", "--master-port", port,
        "--master-bind-port", port, "--host", server.url, "--only-summary",
        "--json-file", str(tmp_path / "run"), cwd=tmp_path, TOCSIN_TOKEN=TOKEN,
    ) as running:  # fmt: skip
        assert running.end() == 0, running.said
    stats = json.loads((tmp_path / "run.json").read_text())
    agree(of_locust([as_csv(one) for one in stats]), of_the_broker(server.url))


def as_csv(stats: dict[str, object]) -> dict[str, str]:
    """A row of Locust's JSON as one of its CSV."""
    names = {"method": "Type", "name": "Name", "num_requests": "Request Count",
             "num_failures": "Failure Count"}  # fmt: skip
    return {name: str(stats[key]) for key, name in names.items()}


class Page:
    """Locust's web interface."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str = "/") -> str:
        with urlopen(self._url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **form: str) -> str:
        with urlopen(self._url + path, urlencode(form).encode(), timeout=60) as answer:
            return str(answer.read().decode())

    def is_there(self) -> bool:
        with contextlib.suppress(URLError, OSError):
            return bool(self.get())
        return False

    def stats(self) -> dict[str, list[dict[str, object]]]:
        found: dict[str, list[dict[str, object]]] = json.loads(self.get("/stats/requests"))
        return found

    def state(self) -> str:
        return str(self.stats()["state"])

    def settled(self) -> int:
        return sum(int(str(one["num_requests"])) for one in self.stats()["stats"]
                   if one["method"] == "settle")  # fmt: skip


def test_its_web_page_starts_and_stops_it_over_workers_and_keeps_the_token_to_itself(
    server: Server, tmp_path: Path
) -> None:
    """The master alone knows the token; a worker has the locustfile from it."""
    port, web = str(free_port()), free_port()
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            locust("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port,
                   "--web-host", "127.0.0.1", "--web-port", str(web), "--host", server.url,
                   "--token", TOKEN, cwd=tmp_path)
        )  # fmt: skip
        page = Page(web)
        until(page.is_there)
        worker = ("--worker", "--master-port", port)
        stack.enter_context(locust(*worker, cwd=tmp_path))
        stack.enter_context(locust(*worker, cwd=ROOT, file="-"))
        until(lambda: json.loads(page.get("/worker-count"))["worker_count"] == 2)
        assert TOKEN not in page.get()
        before = Numbers()
        for _ in range(2):  # a second test begins anew
            page.post("/swarm", user_count="16", spawn_rate="16", publisher_rate="6", token="")
            until(lambda: page.state() == "running")
            until(lambda: page.settled() > 50)
            page.post("/stop")
            until(lambda: page.state() == "stopped")
            counted = of_the_broker(server.url)
            agree(of_locust([as_csv(one) for one in page.stats()["stats"]]), counted - before)
            before = counted
        assert TOKEN not in page.get()
        assert TOKEN not in page.get("/stats/report")
        master.process.send_signal(signal.SIGINT)
        assert master.end() == 0, master.said
    assert TOKEN not in master.said


def test_a_token_that_is_typed_into_the_page_is_used(server: Server, tmp_path: Path) -> None:
    web = free_port()
    with locust("--web-host", "127.0.0.1", "--web-port", str(web), "--host", server.url,
                cwd=tmp_path) as running:  # fmt: skip
        page = Page(web)
        until(page.is_there)
        page.post("/swarm", user_count="4", spawn_rate="4", publisher_rate="20", token=TOKEN)
        until(lambda: page.settled() > 0)
        assert TOKEN not in page.get()
        page.post("/stop")
        assert not page.stats()["errors"]
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0, running.said


def test_only_the_users_that_are_named_come_and_ctrl_c_lets_them_finish(
    server: Server, tmp_path: Path
) -> None:
    with locust("--headless", "-u", "2", "-r", "2", "--publisher-rate", "4", "--host", server.url,
                "SlowConsumer", "RestPublisher", cwd=tmp_path,
                TOCSIN_TOKEN=TOKEN) as running:  # fmt: skip
        until(lambda: of_the_broker(server.url)["held"] >= 3)
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0, running.said
    assert "Traceback" not in running.said
    assert '{"RestPublisher": 1, "SlowConsumer": 1} (2 total users)' in running.said
    counted = of_the_broker(server.url)
    assert counted["settled"] == counted["stored"]


def test_readers_are_counted_as_the_broker_counts_them(server: Server, tmp_path: Path) -> None:
    """Nobody consumes: there is one queue, for readers alone, with few keys."""
    with locust("--headless", "-u", "6", "-r", "6", "--publisher-rate", "20", "--host", server.url,
                "--csv", str(tmp_path / "run"), "--only-summary", "-t", "4", "KeyReader",
                "RestPublisher", cwd=tmp_path, TOCSIN_TOKEN=TOKEN) as running:  # fmt: skip
        assert running.end() == 0, running.said
    shown, counted = of_locust(table(tmp_path / "run")), of_the_broker(server.url)
    assert shown["publish"] == counted["stored"] > 0
    assert 0 < shown["read"] <= counted["read"]


def test_a_broker_that_is_killed_is_said_in_the_log_and_shown_as_failures(
    server: Server, tmp_path: Path
) -> None:
    with locust("--headless", "-u", "8", "-r", "8", "--publisher-rate", "20", "--host", server.url,
                cwd=tmp_path, TOCSIN_TOKEN=TOKEN) as running:  # fmt: skip
        until(lambda: of_the_broker(server.url)["settled"] > 20)
        server.kill()
        running.says(f"{server.url} cannot be reached")
        running.says("Connection refused")
        server.start()
        running.says(f"{server.url} is back, after")
        until(lambda: of_the_broker(server.url)["settled"] > 20)
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 1, running.said
    assert f"Not reached: {server.url} from " in running.said
    assert "violation" not in running.said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--host", "ftp://somewhere"), "'ftp://somewhere' is no broker's address"),
        (("--publisher-rate", "0"), "must be above 0"),
        (("--body-bytes", "1"), "--body-bytes must be 160 to 65536"),
    ],
)
def test_an_option_that_is_wrong_is_a_sentence_and_ends_with_2(
    words: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    with locust("--headless", "-u", "2", "-t", "1", *words, cwd=tmp_path) as running:
        assert running.end() == 2
    assert why in running.said
    assert "Traceback" not in running.said


def test_it_goes_to_the_usual_address_unless_told_otherwise(tmp_path: Path) -> None:
    with locust("--headless", "-u", "1", "-t", "1", cwd=tmp_path) as running:
        running.says("at http://127.0.0.1:8080")
    elsewhere = f"http://127.0.0.1:{free_port()}"
    with locust("--headless", "-u", "1", "-t", "1", cwd=tmp_path, TOCSIN_URL=elsewhere) as running:
        running.says(f"at {elsewhere}")
