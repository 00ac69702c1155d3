"""`make cluster`: one command starts everything, and leaves nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scripts.cluster.__main__ import LOCK, InUse, a_folder
from tests.layout.tree import ROOT
from tests.servers.node import until

WAIT_S = 90.0
SMALL = ("--no-demo", "--gateways=1", "--clusters=1", "--metadata=1", "--managers=0")


class Run:
    """A running cluster, and its output line by line."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "scripts.cluster", "--json", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--folder", str(folder), *more], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, self.process.communicate()[1]
        found: dict[str, Any] = json.loads(said)
        return found

    def started(self) -> dict[str, Any]:
        while (said := self.line())["event"] != "started":
            pass
        return said

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode


@contextmanager
def running(folder: Path, *more: str) -> Iterator[Run]:
    run = Run(folder, *more)
    try:
        yield run
    finally:
        run.process.kill()  # its parts end with it
        run.process.communicate()


def pids(shown: dict[str, Any]) -> dict[str, int]:
    return {part["name"]: part["pid"] for part in shown["parts"]}


def lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def clusters(settings: str) -> list[dict[str, Any]]:
    """Return the clusters, by the command of the start page: in another shell, with the file of
    settings."""
    said = subprocess.run(
        ["sh", "-c", f". '{settings}'; tocsin admin clusters --json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = json.loads(said.stdout)["clusters"]
    return found


def gone(some: dict[str, int]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while any(map(lives, some.values())):
        if time.monotonic() > deadline:
            return False
    return True


def assert_a_killed_primary_is_replaced(run: Any, pid: int, settings: str) -> None:
    """Kill a primary, and check that another one takes over. It stays down for longer than the
    failover takes; otherwise it would be primary again."""
    os.kill(pid, signal.SIGKILL)
    said = run.line()["text"]
    assert said == "store-one-1 was ended by signal 9, and is started again in 15 s"

    def has_another() -> bool:
        try:
            (one,) = [cluster for cluster in clusters(settings) if cluster["name"] == "one"]
        except AssertionError:  # no process serves it before
            return False
        return {"away", "primary"} <= {server["state"] for server in one["servers"]}

    until(has_another, "a replica is primary")
    assert run.line()["text"].startswith("store-one-1 is ready again, process ")


def test_a_cluster_starts_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    """A killed part is started again, and reported; an operator's commands work."""
    with running(tmp_path / "cluster") as run:
        shown = run.started()
        found = pids(shown)
        assert {
            "gateway-3", "metadata-3", "manager-2", "balancer", "demo", "store-two-3",
            "sentinel-two-3",
        } <= set(found)  # fmt: skip
        with httpx2.Client(base_url=shown["url"], timeout=30) as http:
            assert http.get("/console").status_code == 200
            until(lambda: http.get("/v1/queues/machine").json()["depth"] > 0, "the demo publishes")
            assert http.put("/v1/queues/q", json={"partitions": 1}).is_success
        settings = shown["settings"]
        until(lambda: [len(one["servers"]) for one in clusters(settings)] == [3, 3], "managers say")
        os.kill(found["gateway-1"], signal.SIGKILL)
        said = run.line()["text"]
        assert said == "gateway-1 was ended by signal 9, and is started again"
        back = re.fullmatch(
            r"gateway-1 is ready again, process (\d+): [\d.]+ s", run.line()["text"]
        )
        assert back is not None
        assert int(back[1]) != found["gateway-1"]
        assert "serve" in Path(f"/proc/{back[1]}/cmdline").read_text()
        for number in range(6):  # the balancer may not know yet, and another gateway gets it
            messages = [{"body": number}]
            answer = httpx2.post(
                f"{shown['url']}/v1/queues/q/messages", json={"messages": messages}, timeout=30
            )
            assert "offset" in answer.json()["results"][0]
        assert_a_killed_primary_is_replaced(run, found["store-one-1"], settings)
        assert run.end() == 0
        assert gone(found)
        assert not run.folder.exists()


def test_a_cluster_that_is_killed_takes_its_parts_along(tmp_path: Path) -> None:
    """A second cluster in its folder, or on its port, is refused while it runs. One that is started
    there afterwards finds nothing of it."""
    folder = tmp_path / "cluster"
    with running(folder, *SMALL) as run:
        run.line()
        second = Run(folder)
        assert second.process.wait(WAIT_S) == 1
        assert "already" in second.process.communicate()[1]
        shown = run.started()
        found = pids(shown)
        port = shown["url"].rpartition(":")[2]
        third = Run(tmp_path / "other", "--port", port)
        assert third.process.wait(WAIT_S) == 1
        assert "choose another one by --port" in third.process.communicate()[1]
        run.process.kill()
        assert gone(found)
    assert (folder / "logs").exists()
    with running(folder, *SMALL, "--seconds", "0.1") as run:
        assert run.started()["parts"]
        assert run.process.wait(WAIT_S) == 0
    assert not folder.exists()


def test_it_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", "--no-demo") as run:
        assert "storage" in run.line()["text"]
        assert run.end(signal.SIGTERM) == 0
        assert not run.folder.exists()


@pytest.mark.parametrize("wrong", ["--gateways=x", "--clusters=9"])
def test_what_it_does_not_know_is_told(tmp_path: Path, wrong: str) -> None:
    run = Run(tmp_path, wrong)
    _, said = run.process.communicate(timeout=WAIT_S)
    assert run.process.returncode == 2
    assert wrong.partition("=")[0] in said


def test_what_is_not_its_own_stays(tmp_path: Path) -> None:
    """A cluster removes its whole folder. So it accepts no folder with content, and removes none
    that was replaced."""
    mine = tmp_path / "home"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    (tmp_path / "link").symlink_to(mine)
    for folder in (mine, tmp_path / "link", mine / "letter"):
        with pytest.raises(InUse, match="--folder"), a_folder(folder):
            pass
    assert (mine / "letter").read_text() == "dear"
    for _ in range(2):
        with a_folder(tmp_path / "new") as folder:
            (folder / "left").mkdir()
    with (
        a_folder(tmp_path / "new") as folder,
        pytest.raises(InUse, match="already"),
        a_folder(folder),
    ):
        pass
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / LOCK).touch()  # left by a killed one
    (tmp_path / "new" / "left").touch()
    with a_folder(tmp_path / "new") as folder:
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert not (tmp_path / "new").exists()
