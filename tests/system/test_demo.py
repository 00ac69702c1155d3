"""`tocsin demo` for a user: it flows, it ends cleanly, it reports what prevents it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.server import Server, free_port, tocsin

DEMO = (sys.executable, "-c", "from gateway.demo.demo import demo; demo(prog_name='tocsin demo')")
ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """A running demo, without a terminal."""

    def __init__(self, folder: Path, *flags: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        environ = {name: text for name, text in os.environ.items() if "TOCSIN_" not in name}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "clients/python/src")])
        self.process = subprocess.Popen(
            [*DEMO, "--port", str(port), "--data-dir", str(folder / "data"), *flags],
            cwd=ROOT,
            env=environ | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self) -> str:
        """Return the next line; empty at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; return (exit code, further output)."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, rest

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.url.rpartition(":")[2]))) == 0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path, port=free_port())
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_flows_and_a_signal_ends_it_and_its_broker(demo: Demo, number: int) -> None:
    assert demo.url in demo.line()
    line = demo.line()
    assert "published" in line
    assert "end to end p50" in line
    with urllib.request.urlopen(f"{demo.url}/v1/queues/machine", timeout=10) as answer:
        queue = json.load(answer)
    assert queue["settings"]["messages_max"] > 0
    assert queue["settings"]["message_ttl_s"] == 600
    assert [group["name"] for group in queue["groups"]] == ["terminal"]
    code, rest = demo.end(number)
    assert code == 0
    assert "Traceback" not in rest
    assert not demo.listens()


def test_demo_that_is_killed_leaves_no_broker_behind(demo: Demo) -> None:
    demo.line()
    demo.process.kill()
    demo.process.wait()
    deadline = time.monotonic() + 30
    while demo.listens():
        assert time.monotonic() < deadline, "the broker outlived its demo"


def test_demo_shows_itself_on_a_broker_that_runs_already(server: Server) -> None:
    said = subprocess.run(
        tocsin("demo", "--url", f"{server.url}/", "--seconds", "5"),
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert server.url in said
    assert "end to end p50" in said
    assert server.running()


def test_taken_port_is_explained(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        demo = Demo(tmp_path, port=port)
        text, _ = demo.process.communicate(timeout=30)
    assert demo.process.returncode == 1
    assert f"Port {port}" in text
    assert "tocsin demo --port 0" in text


def test_demo_stops_by_itself(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--seconds", "1", port=free_port())
    text, _ = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 0
    assert "delivered" in text
