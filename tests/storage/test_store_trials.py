"""Trials of other stores: what they answer, what a commit of theirs is, and a short run."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts import store_trials
from scripts.store_trials import STORES, WRITES, TrialStorage, table, write_file
from tests.contract.stores import P0, append
from tests.waiting import becomes


async def test_what_comes_during_a_commit_is_the_next_one_and_answered_behind_it() -> None:
    gate, taken = threading.Event(), []

    def write(parts: Sequence[bytes]) -> None:
        taken.append(len(parts))
        assert gate.wait(20)

    store = TrialStorage(write)
    await store.create_queue("q-1", 1)
    first = [asyncio.ensure_future(store.append([append(messages=1)])) for _ in range(2)]
    await becomes(lambda: taken)
    later = [asyncio.ensure_future(store.append([append(messages=1)])) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in [*first, *later])
    gate.set()
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*first, *later)
    assert [one.first for (one,) in answers] == [0, 1, 2, 3, 4]
    assert taken == [4, 6]


async def test_without_a_thread_it_answers_at_once() -> None:
    store = TrialStorage(None)
    await store.create_queue("q-1", 1)
    (answer,) = await store.append([append(P0, messages=2)])
    assert (answer.first, answer.count) == (0, 2)


def test_the_file_begins_anew_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_trials, "FILE_BYTES", 3 * 4096)
    write = write_file(tmp_path)
    for number in range(1, 5):
        write([bytes([number]) * 10])
    found = (tmp_path / "trial").read_bytes()
    assert len(found) == 3 * 4096
    assert [found[at] for at in range(0, len(found), 4096)] == [4, 2, 3]


def test_every_store_of_the_help_can_be_made(tmp_path: Path) -> None:
    assert set(WRITES) | {"today"} == set(STORES)
    begins: list[Callable[[Path], store_trials.Write]] = [one for one in WRITES.values() if one]
    for number, begin in enumerate(begins):
        folder = tmp_path / str(number)
        folder.mkdir()
        begin(folder)([b"a", b"b"])


def test_the_table_has_medians() -> None:
    rounds = [(100.0, 1.0, 3.0), (300.0, 3.0, 9.0), (200.0, 2.0, 6.0)]
    text = table({("file", 1_000): rounds, ("file", 10_000): rounds[:1]}, ["file"])
    assert text.splitlines()[-1] == "| file | 200 | 2.00 | 6.00 | 100 | 1.00 | 3.00 |"


def test_a_short_run() -> None:
    args = ["--store", "blob", "--rounds", "1", "--seconds", "1"]
    done = CliRunner().invoke(store_trials.main, args)
    assert done.exit_code == 0, done.output
    assert "| blob | " in done.output
