"""The delivery log's files: when one is finished, what all take, what a full disk, a full queue, a
kill and a torn line leave."""

import errno
import json
import os
import resource
import secrets
import select
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.deliverylog.counts import (
    CERTIFIED,
    DISPATCHED,
    KINDS,
    NAME,
    SETTLED,
    SPANS,
    SharedCounts,
    forget,
    left_in,
    memory,
    page_of,
)
from gateway.deliverylog.files import Bounds, LogFolder, finished_files, place_of, recover
from gateway.deliverylog.lines import SCHEMA, SettledLine, encode
from gateway.deliverylog.writer import FOLDER, Chunk, LogWriter, Missing
from loadtests.faults.power_loss import mounted, new_image, why_not
from tests.layout.tree import ROOT

GATEWAY = "00112233445566ff"
BEGAN_MS = 1_763_726_400_000
BOUNDS = Bounds(bytes_max=1 << 30, age_s=3600, file_bytes=1 << 20, file_s=60)


def settled(*offsets: int) -> bytes:
    """A line of messages that were acked."""
    return encode(
        SettledLine(
            schema=SCHEMA, gateway=GATEWAY, tenant="t", queue="q", queue_id="i", group="g",
            pushes=[[0, None, offset, offset] for offset in offsets], outcome="acked",
            settled_unix_us=1,
        )
    )  # fmt: skip


def files(folder: Path, bounds: Bounds = BOUNDS) -> LogFolder:
    return LogFolder(folder, GATEWAY, BEGAN_MS, bounds)


def finished(folder: Path) -> list[Path]:
    return sorted(path for path, _ in finished_files(folder))


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.part"))


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of a finished file, and its end, which is true."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    end = json.loads(lines[-1])
    assert end["kind"] == "end"
    assert end["lines"] == len(lines) - 1
    assert end["crc32"] == zlib.crc32(b"".join(lines[:-1]))
    return [json.loads(line) for line in lines[:-1]], end


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full: a real failure of the kernel's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- Files ---------------------------------------------------------------------------------------


def test_a_file_is_finished_by_its_last_line_and_its_name(tmp_path: Path) -> None:
    log = files(tmp_path)
    log.append(settled(1) + b"\n", 1, now=0)
    assert parts(tmp_path) == [f"{GATEWAY}-{BEGAN_MS}-000001.jsonl.part"]
    assert finished(tmp_path) == []
    log.finish(wall=0)
    (path,) = finished(tmp_path)
    assert path.name == f"{GATEWAY}-{BEGAN_MS}-000001.jsonl"
    lines, end = read(path)
    assert (len(lines), end["gateway"], "recovered" in end) == (1, GATEWAY, False)
    assert (end["began_unix_ms"], end["number"]) == (BEGAN_MS, 1)
    assert (parts(tmp_path), log.number) == ([], 2)


def test_a_file_that_cannot_be_renamed_goes_on_without_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has no room for a name, and then has. What follows stands before the last
    line."""
    log = files(tmp_path)
    log.append(settled(1) + b"\n", 1, now=0)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="no room"):
            log.finish(wall=0)
    log.append(settled(2) + b"\n", 1, now=0)
    log.finish(wall=0)
    (path,) = finished(tmp_path)
    lines, end = read(path)
    assert (len(lines), end["lines"]) == (2, 2)


def refuse(*_: object) -> Path:
    raise OSError(errno.ENOSPC, "no room")


@pytest.mark.parametrize("is_open", [True, False], ids=["in the middle of a file", "behind one"])
def test_a_log_that_ends_says_so_in_its_last_file(tmp_path: Path, is_open: bool) -> None:
    """Whoever reads it need not wait for what comes behind it."""
    log = files(tmp_path)
    log.append(settled(1) + b"\n", 1, now=0)
    if not is_open:
        log.finish(wall=0)
    log.finish(wall=0, is_last=True)
    ends = [read(path)[1].get("is_last") for path in finished(tmp_path)]
    assert ends == ([True] if is_open else [None, True])


def test_a_writer_that_stops_says_that_its_log_has_ended(tmp_path: Path) -> None:
    writer = LogWriter(files(tmp_path), GATEWAY, None)
    writer.start()
    writer.put(Chunk(lines=[settled(1)], bytes=len(settled(1)) + 1))
    writer.stop(60)
    assert [read(path)[1].get("is_last") for path in finished(tmp_path)] == [True]


def test_a_log_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    files(tmp_path).finish(wall=0, is_last=True)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("size", "now", "due_s"), [(99, 0, 60), (100, 0, 0), (1, 59, 1), (1, 60, 0)]
)
def test_a_file_is_due_when_it_is_full_or_old(
    tmp_path: Path, size: int, now: float, due_s: float
) -> None:
    log = files(tmp_path, Bounds(bytes_max=1 << 30, age_s=3600, file_bytes=100, file_s=60))
    assert log.due_s(now=0) is None
    log.append(b"x" * (size - 1) + b"\n", 1, now=0)
    assert log.due_s(now=now) == due_s


@pytest.mark.parametrize(("bytes_max", "kept"), [(1000, 4), (800, 3)])
def test_the_oldest_files_go_so_that_there_is_room_for_one_more(
    tmp_path: Path, bytes_max: int, kept: int
) -> None:
    end = b'{"kind":"end","schema":1,"gateway":"%b","lines":1,"crc32":,' % GATEWAY.encode()
    end += b'"began_unix_ms":%d,"number":1}\n' % BEGAN_MS
    line = b"x" * (200 - len(end) - 11) + b"\n"
    log = files(tmp_path, Bounds(bytes_max=bytes_max, age_s=3600, file_bytes=200, file_s=60))
    for _ in range(6):
        log.append(line, 1, now=0)
        log.finish(wall=0)
        assert sum(path.stat().st_size for path in finished(tmp_path)) <= bytes_max - 200
    numbers = [place[2] for path in finished(tmp_path) if (place := place_of(path))]
    assert numbers == list(range(7 - kept, 7))


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    log = files(tmp_path, Bounds(bytes_max=1 << 30, age_s=100, file_bytes=1 << 20, file_s=60))
    for _ in range(2):
        log.append(b"{}\n", 1, now=0)
        log.finish(wall=0)
    old, young = finished(tmp_path)
    written = young.stat().st_mtime
    log.append(b"{}\n", 1, now=0)
    log.finish(wall=written + 99)
    assert old in finished(tmp_path)
    log.append(b"{}\n", 1, now=0)
    log.finish(wall=written + 101)
    assert finished(tmp_path) == []


def test_the_log_ends_before_the_disk_does(tmp_path: Path) -> None:
    """Publishing needs what is left."""
    log = files(
        tmp_path,
        Bounds(bytes_max=1 << 30, age_s=60, file_bytes=1 << 20, file_s=60, free_bytes_min=1 << 60),
    )
    with pytest.raises(OSError, match="almost full"):
        log.append(b"{}\n", 1, now=0)
    assert parts(tmp_path) == []


def test_what_does_not_fit_is_taken_back_whole(tmp_path: Path) -> None:
    log = files(tmp_path)
    first = settled(1) + b"\n"
    log.append(first, 1, now=0)
    with files_of_at_most(len(first) + 5), pytest.raises(OSError, match="too large"):
        log.append(settled(2) + b"\n", 1, now=0)
    log.append(settled(3) + b"\n", 1, now=0)
    log.finish(wall=0)
    lines, _ = read(finished(tmp_path)[0])
    assert [line["pushes"] for line in lines] == [[[0, None, 1, 1]], [[0, None, 3, 3]]]


# --- The writer ----------------------------------------------------------------------------------


def chunk(*offsets: int, lost: Missing | None = None) -> Chunk:
    """Return one line for each of these."""
    lines = [settled(offset) for offset in offsets]
    counts = [0] * KINDS
    counts[SPANS] = counts[SETTLED] = len(lines)
    size = sum(len(line) + 1 for line in lines)
    return Chunk(lines, size, counts, since_unix_us=10, until_unix_us=20, lost=lost)


def written(folder: Path) -> list[dict[str, Any]]:
    """Every line of every finished file, in order, without the ends."""
    return [line for path in finished(folder / FOLDER) for line in read(path)[0]]


def test_a_stop_writes_everything_and_leaves_nothing_to_recover(tmp_path: Path) -> None:
    """P14."""
    writer = LogWriter.open(tmp_path, GATEWAY, BOUNDS)
    for kind, count in ((SPANS, 3), (SETTLED, 3)):
        writer.counts[kind] += count
    writer.put(chunk(1, 2))
    writer.put(chunk(3))
    writer.stop(5)
    assert [line["pushes"][0][2] for line in written(tmp_path)] == [1, 2, 3]
    assert parts(tmp_path / FOLDER) == []
    assert not (tmp_path / FOLDER / NAME).exists()
    assert writer.waiting_bytes == 0


def test_a_full_disk_is_reported_when_there_is_room_again(tmp_path: Path) -> None:
    """Exactly what is missing, in the next line that can be written; and until then by status."""
    writer = LogWriter(files(tmp_path / FOLDER), GATEWAY, None)
    writer._take(chunk(1))
    with files_of_at_most(len(settled(1)) + 1):
        writer._take(chunk(2, 3))
        writer._take(chunk(4))
        assert writer.is_failing
        assert writer.status()["unlogged"] == {
            "spans": 3, "certified": 0, "dispatched": 0, "settled": 3,
        }  # fmt: skip
    writer._take(chunk(5))
    assert not writer.is_failing
    writer.start()
    writer.stop(5)
    first, told, last = written(tmp_path)
    assert (first["pushes"][0][2], last["pushes"][0][2]) == (1, 5)
    assert (told["kind"], told["reason"], told["spans"], told["settled"]) == (
        "unlogged", "failed", 3, 3,
    )  # fmt: skip
    assert (told["since_unix_us"], told["until_unix_us"]) == (10, 20)


def test_what_had_no_room_in_memory_is_told_before_what_comes_then(tmp_path: Path) -> None:
    writer = LogWriter(files(tmp_path / FOLDER), GATEWAY, None)
    writer.start()
    writer.put(chunk(1, lost=Missing("full", 5, 6, [7, 1, 2, 3])))
    writer.stop(5)
    told, line = written(tmp_path)
    assert told["reason"] == "full"
    assert [told[name] for name in ("spans", "certified", "dispatched", "settled")] == [7, 1, 2, 3]
    assert line["kind"] == "settled"


def test_a_writer_that_cannot_begin_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("not a folder")
    writer = LogWriter.open(tmp_path, GATEWAY, BOUNDS)
    writer.put(chunk(1))
    writer.stop(5)
    assert writer.status()["is_failing"] is True
    assert writer.status()["unlogged"] == {
        "spans": 1, "certified": 0, "dispatched": 0, "settled": 1,
    }  # fmt: skip


# --- What a kill leaves --------------------------------------------------------------------------


def killed(
    tmp_path: Path, happened: Callable[[LogWriter, LogFolder, SharedCounts], None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A process that wrote, and was gone; then the next start. Returns its lines and its ends."""
    folder, tmpfs = tmp_path / FOLDER, tmp_path / "memory"
    folder.mkdir()
    tmpfs.mkdir()
    log, shared = files(folder), SharedCounts(folder, GATEWAY, 1, tmpfs)
    happened(LogWriter(log, GATEWAY, shared), log, shared)
    recover(folder, tmpfs)
    assert (parts(folder), (folder / NAME).exists(), [*tmpfs.iterdir()]) == ([], False, [])
    found = [read(path) for path in finished(folder)]
    return [line for lines, _ in found for line in lines], [end for _, end in found]


def test_what_a_kill_left_is_cut_to_whole_lines_and_finished(tmp_path: Path) -> None:
    def happened(writer: LogWriter, log: LogFolder, shared: SharedCounts) -> None:
        shared.happened[SPANS] = shared.happened[SETTLED] = 2
        writer._take(chunk(1, 2))
        assert log._current is not None
        with log._current.path.open("ab") as file:
            file.write(settled(3)[:50])

    lines, (end,) = killed(tmp_path, happened)
    assert [line["pushes"][0][2] for line in lines] == [1, 2]
    assert (end["recovered"], end["began_unix_ms"], end["number"] > 0) == (True, BEGAN_MS, True)


def test_what_was_counted_and_not_written_is_told_after_a_kill(tmp_path: Path) -> None:
    """Over several files, with something that was missing already; exactly the difference."""

    def happened(writer: LogWriter, log: LogFolder, shared: SharedCounts) -> None:
        counts = [9, 4, 0, 11]
        for kind in range(KINDS):
            shared.happened[kind] = counts[kind]
        writer._take(chunk(1, 2))
        writer._finish_file()
        writer._take(chunk(3, lost=Missing("full", 5, 6, [1, 4, 0, 1])))

    lines, ends = killed(tmp_path, happened)
    told = [line for line in lines if line["kind"] == "unlogged"]
    names = ("reason", "spans", "certified", "settled")
    assert [tuple(line[name] for name in names) for line in told] == [
        ("full", 1, 4, 1),
        ("killed", 5, 0, 7),
    ]
    assert ["recovered" in end for end in ends] == [False, True]


@pytest.mark.parametrize("is_accounted", [True, False])
def test_a_kill_between_two_files_is_counted_once(tmp_path: Path, is_accounted: bool) -> None:
    """The file was renamed, and the counts say so or do not yet."""

    def happened(writer: LogWriter, log: LogFolder, shared: SharedCounts) -> None:
        shared.happened[SPANS] = shared.happened[SETTLED] = 3
        writer._take(chunk(1, 2))
        if is_accounted:
            writer._finish_file()
        else:
            log.finish(wall=0)

    lines, ends = killed(tmp_path, happened)
    assert [line["kind"] for line in lines] == ["settled", "settled", "unlogged"]
    assert (lines[2]["spans"], lines[2]["settled"], len(ends)) == (1, 1, 2)


@pytest.mark.parametrize("how", ["none", "lost", "another's"])
def test_without_its_memory_a_kill_is_told_as_the_writer_knew_it(tmp_path: Path, how: str) -> None:
    """A container that was made anew, a system without tmpfs: what was counted behind the writer's
    last chunk is in no count. And nobody else can tell us what we counted."""
    folder, tmpfs = tmp_path / FOLDER, tmp_path / "memory"
    folder.mkdir()
    tmpfs.mkdir()
    shared = SharedCounts(folder, GATEWAY, 1, tmpfs if how != "none" else None)
    shared.happened[SPANS] = shared.happened[SETTLED] = 5
    writer = LogWriter(files(folder), GATEWAY, shared)
    writer._take(chunk(1, 2))
    writer._save_counts()
    shared.happened[SPANS] = shared.happened[SETTLED] = 9
    page = tmpfs / page_of(GATEWAY)
    if how == "lost":
        page.unlink()
    if how == "another's":
        told = page.read_bytes()
        page.write_bytes(told[:8] + b"\1" + told[9:])
    recover(folder, tmpfs)
    *_, told_line = [line for path in finished(folder) for line in read(path)[0]]
    assert (told_line["kind"], told_line["settled"]) == ("unlogged", 3)


def test_what_is_counted_is_known_through_a_kill_without_the_writer(tmp_path: Path) -> None:
    """Where there is a tmpfs: its disk may be so slow that the writer stands still."""
    folder, tmpfs = tmp_path / FOLDER, memory()
    assert tmpfs is not None
    folder.mkdir()
    gateway = secrets.token_hex(8)
    shared = SharedCounts(folder, gateway, 1, tmpfs)
    shared.happened[CERTIFIED] = 7
    left = left_in(folder, memory())
    assert left is not None
    assert (left.gateway, left.happened) == (gateway, (0, 7, 0, 0))
    forget(folder, left, tmpfs)
    assert left_in(folder, tmpfs) is None
    assert not (tmpfs / page_of(gateway)).exists()


def test_what_is_counted_lies_in_memory(tmp_path: Path) -> None:
    """Of a writer as it is opened; and not behind its end."""
    gateway = secrets.token_hex(8)
    writer = LogWriter.open(tmp_path, gateway, BOUNDS)
    tmpfs = memory()
    assert tmpfs is not None
    assert (tmpfs / page_of(gateway)).exists()
    writer.stop(5)
    assert not (tmpfs / page_of(gateway)).exists()


COUNTS = """
import sys
from pathlib import Path
from gateway.deliverylog.counts import SETTLED, SPANS
from gateway.deliverylog.writer import LogWriter
from tests.gateway.deliverylog.test_delivery_log_files import BOUNDS, chunk
writer = LogWriter.open(Path(sys.argv[1]), sys.argv[2], BOUNDS)
print("open", flush=True)
sys.stdin.readline()
for kind in (SPANS, SETTLED):
    writer.counts[kind] += 3
writer.put(chunk(1, 2, 3))
print("counted", flush=True)
sys.stdin.readline()
writer.stop(10)
"""


@pytest.mark.skipif(why_not() is not None, reason="needs loop mounts: see scripts/needs")
def test_nobody_waits_for_a_disk_that_stands_still(tmp_path: Path) -> None:
    """Counting is a store into memory, whatever the folder's disk does. It is frozen, really; the
    writer stands still, and what it did not write is written when the disk goes on. (In a process
    of its own: one that waits for the disk could not thaw it.)"""
    if shutil.which("fsfreeze") is None:
        pytest.skip("needs fsfreeze (Debian: util-linux)")
    with mounted(new_image(tmp_path / "disk.img", 16 << 20), tmp_path / "disk") as disk:
        command = [sys.executable, "-c", COUNTS, str(disk), secrets.token_hex(8)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            os.sync()  # a clean page: the next store into one of the disk's would be a fault
            subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
            try:
                process.stdin.write(b"\n")
                process.stdin.flush()
                is_there, _, _ = select.select([process.stdout], [], [], 10)
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)
            process.communicate(b"\n", timeout=20)
        assert is_there
        assert [line["pushes"][0][2] for line in written(disk)] == [1, 2, 3]


def test_nothing_is_reported_if_nothing_is_missing(tmp_path: Path) -> None:
    def happened(writer: LogWriter, log: LogFolder, shared: SharedCounts) -> None:
        shared.happened[SPANS] = shared.happened[SETTLED] = 1
        writer._take(chunk(1))

    lines, _ = killed(tmp_path, happened)
    assert [line["kind"] for line in lines] == ["settled"]


def test_a_file_that_had_its_end_gets_its_name(tmp_path: Path) -> None:
    """Killed between the last line and the rename."""
    log = files(tmp_path)
    log.append(settled(1) + b"\n", 1, now=0)
    log.finish(wall=0)
    (path,) = finished(tmp_path)
    path.rename(path.with_name(path.name + ".part"))
    recover(tmp_path)
    lines, end = read(finished(tmp_path)[0])
    assert (len(lines), "recovered" in end) == (1, False)


@pytest.mark.parametrize(
    "push",
    [
        "1", "[]", "[0,1]", "[0,1,2]", '[0,1,2,"0x"]', '[0,1,2,"0x1g"]', '[0,1,"0x1",3]',
        "[0,1,null,3]", '[0,1,null,"0x1"]', '[0,1,2,3,"0x1",4]', "[0,1,2,3,4]", "[0,1,2,[3]]",
    ],
)  # fmt: skip
def test_a_push_that_a_disk_has_damaged_stops_no_start(tmp_path: Path, push: str) -> None:
    """What stands before it is kept."""
    damaged = b'{"kind":"settled","pushes":[%b]}\n' % push.encode()
    files(tmp_path).append(settled(1) + b"\n" + damaged + settled(2) + b"\n", 3, now=0)
    recover(tmp_path)
    lines, end = read(finished(tmp_path)[0])
    assert [line["pushes"][0][2] for line in lines] == [1]
    assert (end["recovered"], end["began_unix_ms"], end["number"] > 0) == (True, BEGAN_MS, True)


def test_counts_of_every_kind_are_those_of_the_lines(tmp_path: Path) -> None:
    """What is not known is no message that was certified; a fan-out reached all its recipients."""
    lines = [
        {"kind": "certified", "runs": [[0, 0, 3]]},
        {"kind": "certified", "outcome": "unknown", "messages": 5},
        {"kind": "dispatched", "runs": [[0, 0, 2]], "recipients": 4},
        {"kind": "settled", "pushes": [[0, None, 0, 0], [1, 7, 5, 5], [1, 7, 6, "0x1d"]]},
    ]
    folder, tmpfs = tmp_path / FOLDER, tmp_path / "memory"
    folder.mkdir()
    tmpfs.mkdir()
    shared = SharedCounts(folder, GATEWAY, 1, tmpfs)
    for kind, count in ((SPANS, 5), (CERTIFIED, 10), (DISPATCHED, 10), (SETTLED, 10)):
        shared.happened[kind] = count
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    files(folder).append(data, len(lines), now=0)
    left = left_in(folder, tmpfs)
    assert left is not None
    assert (left.gateway, left.number, left.happened) == (GATEWAY, 1, (5, 10, 10, 10))
    recover(folder, tmpfs)
    told = read(finished(folder)[0])[0][-1]
    assert [told[name] for name in ("spans", "certified", "dispatched", "settled")] == [1, 7, 2, 4]
