"""The broker that trials and tests start: what is left when it is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.deliverylog.counts import left_in, memory, page_of
from loadtests.server import Process, Server, ServerFailed
from tests.waiting import becomes


async def test_a_killed_broker_leaves_nothing_outside_its_folder(tmp_path: Path) -> None:
    """Its counts outlive it, for who starts on its folder again; not when nobody will."""
    folder = tmp_path / "data" / "delivery"
    with Server(tmp_path / "data", level="warning") as server:
        await becomes(lambda: left_in(folder) is not None)
        server.kill()
        left, place = left_in(folder), memory()
        assert left is not None
        page = (place or tmp_path) / page_of(left.gateway)
        assert page.exists() == (place is not None)
    assert not page.exists()


def test_who_measures_a_process_that_has_ended_is_told_so() -> None:
    """[It was a FileNotFoundError, which callers took for one of their own files.] A process that
    has ended and was not waited for has no memory any more."""
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    process = Process(ended.pid)
    while True:
        try:
            assert process.rss_bytes() > 0
        except ServerFailed:
            break
    ended.wait()
    for measure in (process.rss_bytes, process.cpu_s):
        with pytest.raises(ServerFailed, match="has ended"):
            measure()
