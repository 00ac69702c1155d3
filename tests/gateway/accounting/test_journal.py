"""Files of lines: when the next one begins, what all take, what a crash or a full disk leaves."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.accounting.journal import Journal, files_of, lines_of

NOON = 1_763_726_400.0
LINE = b'{"n":1234567}\n'


def journal(folder: Path, bytes_max: int = 1 << 20, file_bytes_max: int = 1 << 18) -> Journal:
    return Journal(folder / "lines", "usage", bytes_max=bytes_max, file_bytes_max=file_bytes_max)


def names(folder: Path) -> list[str]:
    return [path.name for path in files_of(folder / "lines", "usage")]


def texts(folder: Path) -> list[bytes]:
    return [line for path in files_of(folder / "lines", "usage") for line in lines_of(path)]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full: a real failure of the kernel's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_hour_has_a_file(tmp_path: Path) -> None:
    lines = journal(tmp_path)
    for wall in (NOON, NOON + 3599, NOON + 3600, NOON + 10):  # the clock goes back: no new file
        lines.append(LINE, wall=wall)
    assert names(tmp_path) == ["usage-20251121T12-000001.jsonl", "usage-20251121T13-000001.jsonl"]
    assert len(texts(tmp_path)) == 4


@pytest.mark.parametrize(("file_bytes_max", "files"), [(len(LINE) * 3, 1), (len(LINE) * 2, 2)])
def test_a_full_file_is_followed_by_the_next(
    tmp_path: Path, file_bytes_max: int, files: int
) -> None:
    lines = journal(tmp_path, file_bytes_max=file_bytes_max)
    for _ in range(3):
        lines.append(LINE, wall=NOON)
    assert len(names(tmp_path)) == files


@pytest.mark.parametrize(("room", "kept"), [(8, 8), (7, 7)])
def test_the_oldest_go_before_all_take_too_much(tmp_path: Path, room: int, kept: int) -> None:
    """One line a file, on both sides of the bound."""
    lines = journal(tmp_path, bytes_max=room * len(LINE), file_bytes_max=len(LINE))
    for _ in range(9):
        lines.append(LINE, wall=NOON)
        taken = sum(path.stat().st_size for path in files_of(tmp_path / "lines", "usage"))
        assert taken <= room * len(LINE)
    assert names(tmp_path)[-1] == "usage-20251121T12-000009.jsonl"
    assert len(names(tmp_path)) == kept


def test_files_come_in_the_order_they_were_written(tmp_path: Path) -> None:
    lines = journal(tmp_path, bytes_max=1 << 30, file_bytes_max=1)
    for n in range(12):
        lines.append(b"%d\n" % n, wall=NOON)
    assert texts(tmp_path) == [b"%d" % n for n in range(12)]


def test_a_restart_goes_on_with_the_file(tmp_path: Path) -> None:
    journal(tmp_path).append(LINE, wall=NOON)
    journal(tmp_path).append(LINE, wall=NOON + 1)
    assert (len(names(tmp_path)), len(texts(tmp_path))) == (1, 2)


def test_a_line_that_a_crash_tore_spoils_no_other(tmp_path: Path) -> None:
    journal(tmp_path).append(LINE + LINE, wall=NOON)
    (path,) = files_of(tmp_path / "lines", "usage")
    path.write_bytes(path.read_bytes()[:-5])
    again = journal(tmp_path)
    assert next(again.backwards()) == LINE[:-5]
    again.append(LINE, wall=NOON)
    assert texts(tmp_path) == [LINE[:-1], LINE[:-5], LINE[:-1]]


def test_a_full_disk_takes_a_write_whole_or_not_at_all(tmp_path: Path) -> None:
    lines = journal(tmp_path)
    lines.append(LINE, wall=NOON)
    with files_of_at_most(len(LINE) * 2 + 5):
        with pytest.raises(OSError, match="too large"):
            lines.append(LINE * 3, wall=NOON)
        assert texts(tmp_path) == [LINE[:-1]]
        lines.append(LINE, wall=NOON)
    lines.append(LINE, wall=NOON)
    assert [json.loads(line) for line in texts(tmp_path)] == [{"n": 1234567}] * 3


def test_nothing_there_is_nothing_read(tmp_path: Path) -> None:
    assert names(tmp_path) == []
    assert next(journal(tmp_path).backwards(), None) is None
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "notes.txt").write_text("somebody's own")
    (tmp_path / "lines" / "usage-20251121T12-000001.jsonl.gz").write_text("somebody's, too")
    assert names(tmp_path) == []
