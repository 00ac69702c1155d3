"""What servers take of the machine is counted for all of their processes, and for no others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.peers.meter import Meter
from loadtests.server import ServerFailed

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def process(
    proc: Path, pid: int, session: int, *, own: int, children: int, pages: int, written: int = 0
) -> None:
    """As the kernel writes it, with a name that has a space and a parenthesis."""
    fields = ["S", "1", "1", str(session), *["0"] * 7, str(own), "1", str(children), "2"]
    fields += [*["0"] * 6, str(pages), "0"]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    writes(proc, pid, written)


def writes(proc: Path, pid: int, written: int) -> None:
    (proc / str(pid) / "io").write_text(
        f"rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: {written}\ncancelled_write_bytes: 4\n"
    )


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
    shutil.rmtree(tmp_path / "10")
    process(tmp_path, 10, 10, own=100 + 3 * TICKS, children=0, pages=1)
    meter.cpu_s()
    found = meter.measured()
    assert found is not None
    assert found.server_s == pytest.approx(3)
    assert found.at_s >= 0
    assert found.generator_s >= 0


def test_bytes_that_all_of_the_sessions_write_count_and_no_others(tmp_path: Path) -> None:
    for pid, session, written in ((10, 10, 4096), (11, 10, 8192), (20, 20, 100), (30, 30, 7)):
        process(tmp_path, pid, session, own=1, children=0, pages=1, written=written)
    meter = Meter([10, 20], tmp_path)
    meter.cpu_s()
    assert meter.marks[-1].written_bytes == 4096 + 8192 + 100
    writes(tmp_path, 11, 9192)
    writes(tmp_path, 30, 10**9)
    meter.cpu_s()
    found = meter.measured()
    assert found is not None
    assert found.written_bytes == 1000


def test_writes_that_the_kernel_does_not_show_are_unknown_and_not_zero(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, own=1, children=0, pages=1, written=4096)
    (tmp_path / "10" / "io").unlink()
    (tmp_path / "10" / "io").mkdir()  # cannot be read, whoever reads
    meter = Meter([10], tmp_path)
    meter.cpu_s()
    meter.cpu_s()
    found = meter.measured()
    assert found is not None
    assert found.written_bytes is None
    assert found.disk_bytes is None


def test_the_disk_below_the_folder_is_read_in_sectors(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, own=1, children=0, pages=1)
    device = tmp_path.stat().st_dev
    disk = tmp_path / "block" / f"{os.major(device)}:{os.minor(device)}"
    disk.mkdir(parents=True)
    meter = Meter([10], tmp_path, folder=tmp_path, devices=tmp_path / "block")
    for sectors in (100, 108):
        (disk / "stat").write_text(f"  1 2 3 4 5 6 {sectors} 8 9 10 11\n")
        meter.cpu_s()
    found = meter.measured()
    assert found is not None
    assert found.disk_bytes == 8 * 512


def test_a_folder_without_a_disk_has_no_count(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, own=1, children=0, pages=1)
    meter = Meter([10], tmp_path, folder=tmp_path, devices=tmp_path / "nothing")
    meter.cpu_s()
    assert meter.marks[-1].disk_bytes is None


def test_a_process_that_syncs_what_it_writes_has_written_a_page_each_time(tmp_path: Path) -> None:
    """The kernel counts as this benchmark says: once for a page that is rewritten before a sync."""
    code = (
        "import os, sys\n"
        "file = os.open('written', os.O_RDWR | os.O_CREAT)\n"
        "for turn in sys.stdin:\n"
        "    for _ in range(50):\n"
        "        os.pwrite(file, b'x' * 100, 0)\n"
        "        if turn == 'synced\\n': os.fdatasync(file)\n"
        "    print(flush=True)\n"
    )
    counts = {}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        meter = Meter([child.pid])
        for turn in ("synced", "unsynced"):
            meter.cpu_s()
            child.stdin.write(f"{turn}\n")
            child.stdin.flush()
            child.stdout.readline()
            meter.cpu_s()
            found = meter.measured()
            assert found is not None
            counts[turn] = found.written_bytes
    if counts["synced"] in (0, None):
        pytest.skip("this kernel or file system counts no writes")
    # The kernel may write back in between by itself, on a busy machine.
    assert counts["synced"] >= 50 * PAGE
    assert counts["unsynced"] is not None
    assert counts["unsynced"] < 25 * PAGE


def test_this_process_is_counted_by_its_own_session() -> None:
    session = os.getsid(0)
    try:
        meter = Meter([session])
        assert meter.rss_bytes() > PAGE
    except ServerFailed:
        pytest.skip("whoever began this session has ended")
