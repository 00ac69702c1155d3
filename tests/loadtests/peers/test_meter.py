"""What servers take of the machine is counted for all of their processes, and for no others."""

import os
from pathlib import Path

import pytest

from loadtests.peers.meter import Meter
from loadtests.server import ServerFailed

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def process(proc: Path, pid: int, session: int, *, own: int, children: int, pages: int) -> None:
    """As the kernel writes it, with a name that has a space and a parenthesis."""
    fields = ["S", "1", "1", str(session), *["0"] * 7, str(own), "1", str(children), "2"]
    fields += [*["0"] * 6, str(pages), "0"]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")


def test_all_of_the_sessions_count_with_children_that_have_ended(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, own=100, children=10, pages=5)
    process(tmp_path, 11, 10, own=1000, children=0, pages=7)
    process(tmp_path, 20, 20, own=10_000, children=0, pages=11)
    process(tmp_path, 30, 30, own=100_000, children=0, pages=13)
    (tmp_path / "self").mkdir()
    meter = Meter([10, 20], tmp_path)
    assert meter.pid == 10
    assert meter.cpu_s() == (113 + 1003 + 10_003) / TICKS
    assert meter.rss_bytes() == 23 * PAGE


def test_a_server_that_has_ended_is_reported(tmp_path: Path) -> None:
    process(tmp_path, 11, 10, own=1, children=0, pages=1)  # of its session, but not it
    with pytest.raises(ServerFailed, match="10"):
        Meter([10], tmp_path).cpu_s()


def test_what_is_between_the_last_two_looks_counts(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, own=100, children=0, pages=1)
    meter = Meter([10], tmp_path)
    assert meter.measured() is None
    meter.cpu_s()
    assert meter.measured() is None
    meter.cpu_s()
    (tmp_path / "10" / "stat").unlink()
    (tmp_path / "10").rmdir()
    process(tmp_path, 10, 10, own=100 + 3 * TICKS, children=0, pages=1)
    meter.cpu_s()
    found = meter.measured()
    assert found is not None
    assert found.server_s == pytest.approx(3)
    assert found.at_s >= 0
    assert found.generator_s >= 0


def test_this_process_is_counted_by_its_own_session() -> None:
    session = os.getsid(0)
    try:
        meter = Meter([session])
        assert meter.rss_bytes() > PAGE
    except ServerFailed:
        pytest.skip("whoever began this session has ended")
