"""What the embedded storage knows after a restart: everything that was answered (P1, P4, P5)."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from push import limits
from push.places import Parked, ParkedLine
from push.storage_port import Retry, Side
from storage.sqlite import cursors as sqlite_cursors
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import (
    ANN,
    G0,
    P0,
    P1,
    append,
    change,
    one,
    sequences,
    with_group,
)
from tests.storage.conftest import Embedded


async def test_offsets_go_on_after_a_restart_without_records(embedded: Embedded) -> None:
    """R2. [Everything truncated, restart: offset 0 again, below every cursor.]"""
    store = await embedded.open()
    await with_group(store, messages=3)
    await store.write_cursors([change(settled=[(0, 2)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    store = await embedded.open()
    assert embedded.sql("SELECT count(*) FROM record") == [(0,)]
    assert await one(store, append(messages=1)) == [3]


async def test_producers_and_ids_are_known_after_a_restart(embedded: Embedded) -> None:
    """P4, R6, R8."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    assert await sequences(store, [1, 5, 3]) == [0, 1, 2]
    assert await one(store, append(ids=["a"])) == [3]
    store = await embedded.open()
    assert await sequences(store, [3, 5, 1, 4]) == [-3, -2, -1, 4]
    assert await one(store, append(ids=["b", "a"])) == [5, -4]
    assert await sequences(store, [6], resolved=6) == [6]
    store = await embedded.open()
    assert await sequences(store, [5]) == ["sequence_too_old"]


async def test_a_producer_that_goes_on_for_hours_is_known_after_a_restart(
    embedded: Embedded,
) -> None:
    """P4: also when it was last seen in another bucket of time than at first."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    for sequence in range(4):
        assert await sequences(store, [sequence]) == [sequence]
        embedded.clock.unix_s += limits.PRODUCER_IDLE_S / 2
    store = await embedded.open()
    assert await sequences(store, [0, 1, 2, 3]) == [-1, -2, -3, -4]
    assert (await store.state()).detail["damage_reports"] == "0"


async def test_duplicates_of_one_commit_share_the_outcome(embedded: Embedded) -> None:
    """R5: appends that wait for the same commit."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    record = append(runs=[(ANN, 0, [1]), (None, 0, [0])], ids=[None, "a"])
    answers = await asyncio.gather(*(one(store, record) for _ in range(20)))
    assert answers == [[0, 1]] + [[-1, -2]] * 19


async def test_a_cursor_is_whole_after_a_restart(embedded: Embedded) -> None:
    """P5, R16, R18."""
    store = await embedded.open()
    await with_group(store, messages=20)
    write = change(
        settled=[(0, 3), (6, 7)],
        retries=[Retry(4, 2, 77)],
        aside=[Side(9, (5, 10)), Side(1 << 63, (12,))],
    )
    await store.write_cursors([write])
    before = await store.own(G0, token=b"the same session", assignment=3)
    store = await embedded.open()
    after = await store.own(G0, token=b"the same session, again", assignment=3)
    assert after.cursor == before.cursor
    assert (before.epoch, after.epoch, after.previous) == (2, 3, 2), "R22"
    assert await store.read_side(G0, 9, -1, 10) == (5, 10)


async def test_a_cursor_with_thousands_of_holes_is_not_rewritten_each_time(
    embedded: Embedded,
) -> None:
    """Bytes written follow what was settled; and the cursor is whole after a restart."""
    store = await embedded.open()
    await with_group(store)
    for _ in range(8):
        await store.append([append(messages=1000)])
    await store.write_cursors([change(settled=[(n, n) for n in range(1, 8000, 2)])])
    (whole,) = embedded.sql("SELECT length(passed) FROM cursor WHERE partition = 1")[0]
    assert whole > sqlite_cursors.WRITTEN_WHOLE_BYTES_MAX
    for first in range(0, 1000, 20):
        await store.write_cursors([change(settled=[(first, first)])])
    assert embedded.sql("SELECT count(*), sum(length(passed)) FROM cursor_log") == [(50, 800)]
    looked = (await store.cursors("q-1", "g-1"))[0]
    before = await store.own(G0, token=b"b", assignment=1)
    assert embedded.sql("SELECT count(*) FROM cursor_log") == [(0,)]
    for first in range(2, 1000, 20):
        await store.write_cursors([change(epoch=2, token=b"b", settled=[(first, first)])])
    again = await store.own(G0, token=b"c", assignment=1)
    store = await embedded.open()
    after = await store.own(G0, token=b"d", assignment=1)
    assert after.cursor == again.cursor != before.cursor
    assert looked.floor == before.cursor.floor == 2
    settled = sum(last - first + 1 for first, last in after.cursor.passed)
    assert after.cursor.floor + settled == 4000 + 100


async def test_cursor_logs_survive_a_restart(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store)
    await store.append([append(messages=1000)])
    await store.write_cursors([change(settled=[(n, n) for n in range(1, 1000, 2)])])
    await asyncio.gather(  # in one commit, as a rule
        store.write_cursors([change(settled=[(0, 0)])]),
        store.write_cursors([change(settled=[(500, 500)])]),
    )
    await store.write_cursors([change(settled=[(502, 502)])])
    store = await embedded.open()
    assert 2 <= embedded.sql("SELECT count(*) FROM cursor_log")[0][0] <= 3
    state = (await store.cursors("q-1", "g-1"))[0]
    assert (state.floor, state.settled_above) == (2, 501)
    await store.write_cursors([change(settled=[(504, 504)])])  # behind the rows of before
    store = await embedded.open()
    cursor = (await store.own(G0, token=b"b", assignment=1)).cursor
    assert cursor.floor == 2
    assert (499, 505) in cursor.passed


async def test_parked_keys_and_seals_survive(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store, messages=4)
    key = Parked(1 << 63, "no", 5)
    write = change(aside=[Side(1 << 63, (0,))])
    await store.write_cursors([replace(write, parked=(key,))])
    await store.seal(P0, [P0._replace(number=1)])
    store = await embedded.open()
    assert await store.parked(G0) == [ParkedLine(1 << 63, "no", 5, 1, 0, 0)]
    assert (await store.partitions("q-1"))[0].sealed_at == 4
    assert await one(store, append(messages=1)) == ["storage_unavailable"]


async def _swept(embedded: Embedded, store: SqliteStorage, left: str) -> None:
    """Wait until this statement finds 0; slices are swept around other acts."""
    for _ in range(1000):
        if embedded.sql(left) == [(0,)]:
            return
        await store.create_queue("q-2", 1)
    raise AssertionError(f"{left}: {embedded.sql(left)}")


async def test_a_dropped_queues_rows_leave_in_the_end(embedded: Embedded) -> None:
    """R31: in slices, also after a restart; and its row numbers are not given again before."""
    store = await embedded.open()
    await with_group(store, messages=500)
    await sequences(store, [1, 2])
    await one(store, append(ids=["a"]))
    await store.write_cursors([change(aside=[Side(9, tuple(range(10)))], retries=[Retry(1, 1)])])
    await store.drop_queue("q-1")
    await store.create_queue("q-2", 1)
    assert embedded.sql("SELECT id FROM partition") == [(3,)]
    store = await embedded.open()
    await _swept(embedded, store, "SELECT count(*) FROM garbage")
    tables = ("record", "producer", "client_id", "cursor", "side", "side_line", "retry")
    assert [embedded.sql(f"SELECT count(*) FROM {table}") for table in tables] == [[(0,)]] * 7


async def test_idle_producers_leave_their_rows(embedded: Embedded) -> None:
    """R6: the set first, the watermark later."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await sequences(store, [1, 2, 3])
    embedded.clock.unix_s += 2 * limits.PRODUCER_IDLE_S
    await _swept(embedded, store, "SELECT sum(length(sequences)) FROM producer")
    store = await embedded.open()
    assert await sequences(store, [3]) == ["sequence_too_old"]
    embedded.clock.unix_s += 12 * limits.PRODUCER_IDLE_S
    await _swept(embedded, store, "SELECT count(*) FROM producer")


async def test_passed_ids_leave_their_rows(embedded: Embedded) -> None:
    """R8: by bucket, when the partition is trimmed."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    for _ in range(3):
        await one(store, append(ids=[f"{embedded.clock.unix_s}-{n}" for n in range(900)]))
        embedded.clock.unix_s += 75
    embedded.clock.unix_s += 200
    while await store.trim(P0, retention_s=0, keep_all=True):
        pass
    assert 900 <= embedded.sql("SELECT count(*) FROM client_id")[0][0] < 2700


# --- kill -9 ------------------------------------------------------------------------------------

WRITER = Path(__file__).parents[1] / "writer.py"


async def _acknowledged(path: Path, kill_after: int) -> list[list[int]]:
    """Let a writer append until it has acknowledged this many records, then kill it."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(WRITER), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    lines: list[str] = []
    with process.stdout as output:
        while len(lines) < kill_after:
            lines.append(output.readline())
        process.send_signal(signal.SIGKILL)
        lines += output.readlines()
    assert process.wait(timeout=30) == -signal.SIGKILL
    return [[int(word) for word in line.split()] for line in lines if line.endswith("\n")]


async def test_what_was_acknowledged_survives_kill_9(embedded: Embedded) -> None:
    """P1, P2, P4: ten times in a row, with commits under way."""
    known: dict[int, int] = {}
    for cycle in range(10):
        for sequence, offset in await _acknowledged(embedded.path, 20 + 13 * cycle):
            assert known.setdefault(sequence, offset) == offset
        store = await embedded.open()
        stored = await _stored(store)
        assert {sequence: stored.get(sequence) for sequence in known} == known
        assert sorted(stored.values()) == list(range(len(stored)))
        await embedded.close()
    assert len(known) > 500


async def _stored(store: SqliteStorage) -> dict[int, int]:
    stored: dict[int, int] = {}
    offset = 0
    while records := (await store.read(P0, offset, 10**6)).records:
        for record in records:
            offsets = range(record.first, record.last + 1)
            stored.update(zip(record.header.sequences, offsets, strict=True))
        offset = records[-1].last + 1
    return stored


@pytest.mark.parametrize("limit_kib", [100, 180, 300, 500])
async def test_a_disk_that_refuses_to_grow_ends_the_writer_with_unknown(
    embedded: Embedded, limit_kib: int
) -> None:
    """R31: after a failed commit nothing is accepted, the process ends, and what was acknowledged
    is there. The failure is the kernel's: RLIMIT_FSIZE."""
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, str(WRITER), str(embedded.path), str(limit_kib * 1024)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    for sentence in ("unknown", "refused storage_unavailable", "fatal a commit failed", "dead"):
        assert sentence in done.stderr
    pairs = [line.split() for line in done.stdout.splitlines()]
    acknowledged = {int(sequence): int(offset) for sequence, offset in pairs}
    stored = await _stored(await embedded.open())
    assert {sequence: stored.get(sequence) for sequence in acknowledged} == acknowledged


async def test_a_queue_is_as_full_after_a_restart_as_before(embedded: Embedded) -> None:
    """By what all of its partitions hold; whichever is touched first."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await store.append([append(P1, messages=4)])
    await store.write_cursors([change(settled=[(0, 2)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    for partition, messages_max in ((P0, 5), (P1, 6), (P0, 7)):
        store = await embedded.open()
        answers = await one(store, append(partition, messages=2, messages_max=messages_max))
        assert answers[1] == "queue_full"
        assert answers[0] != "queue_full"
    states = await store.partitions("q-1")
    assert [state.messages for state in states] == [2, 5]
