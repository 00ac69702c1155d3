"""Scheduled messages in the embedded storage: restarts, damage, older stores, slices."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from push.due import DueMessage, DuePlace
from push.errors import Refused
from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import NotStored, Scheduled, Sealer, Storage, Stored
from storage.memory import MemoryStorage
from storage.rules.append import open_header
from storage.rules.due import due_messages
from storage.sqlite import codec, due_rows
from storage.sqlite import trim as sqlite_trim
from storage.sqlite.backup import renew_store
from storage.sqlite.store import SqliteStorage
from storage.sqlite.verify import StoreReport, verify_store
from tests.contract.stores import ANN, P0, P1, append, body, digest, due_unix_ms, one, sealing
from tests.contract.test_due import FOR_EVER, log, move, schedule, waiting
from tests.storage.conftest import Embedded, commits

MANY = 10_000


def verified(embedded: Embedded, sealer: Sealer | None = None) -> StoreReport:
    """Check the closed file."""
    return verify_store(embedded.path, lambda _seen, _of: None, sealer)


async def filled(embedded: Embedded, *, sealer: Sealer | None = None) -> SqliteStorage:
    """A queue of two partitions, of which the first has three messages that wait."""
    store = await embedded.open(**({} if sealer is None else {"sealer": sealer}))
    await store.create_queue("q-1", 2)
    record = append(due=[1, 2, 3], ids=["a", "b", "c"], id_hashes=[4, 5, 6])
    assert await one(store, record) == ["due 0", "due 1", "due 2"]
    return store


# --- Restarts -----------------------------------------------------------------------------------


async def test_what_waits_moves_and_is_cancelled_survives_a_restart(embedded: Embedded) -> None:
    """P1, P4."""
    store = await filled(embedded)
    before = await waiting(store)
    store = await embedded.open()
    assert await waiting(store) == before
    assert await store.due.change(replace(before[2], due_unix_ms=due_unix_ms(9)))
    await move(store, before[:1])
    assert await store.due.cancel(P0, 1, remember_s=300)
    store = await embedded.open()
    (left,) = await waiting(store)
    assert left == replace(before[2], version=1, due_unix_ms=due_unix_ms(9))
    assert [await store.due.fate(P0, n) for n in range(3)] == [
        Stored(0), NotStored("cancelled"), None,
    ]  # fmt: skip
    assert await schedule(store, 7, 7, 7, 7, ids=["a", "b", "c", "d"]) == [
        "due 0 again", "cancelled", "due 2 again", "due 3",
    ]  # fmt: skip
    assert await store.due.known(P0, digest("d")) == Scheduled(3, duplicate=True)
    await embedded.close()
    assert verified(embedded).findings == []


async def test_a_queue_is_as_full_after_a_restart_by_what_waits(embedded: Embedded) -> None:
    """P10: by what all of its partitions hold; whichever is touched first."""
    store = await filled(embedded)
    await one(store, append(P1, messages=1))
    for partition, messages_max in ((P0, 5), (P1, 6)):
        store = await embedded.open()
        answers = await one(store, append(partition, messages=2, messages_max=messages_max))
        assert answers[1] == "queue_full"
        assert answers[0] != "queue_full"
    store = await embedded.open()
    record = append(P1, messages=2, due=[1, 1], due_messages_max=4, due_bytes_max=80)
    assert await one(store, record) == ["due 0", "schedule_full"]


SCHEDULER = Path(__file__).parents[1] / "scheduler.py"


async def _acknowledged(path: Path, kill_after: int) -> list[list[str]]:
    """Let a scheduler work until it has acknowledged this many acts, then kill it."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(SCHEDULER), str(path)],
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
    return [line.split() for line in lines if line.endswith("\n")]


async def test_what_was_acknowledged_of_scheduled_messages_survives_kill_9(
    embedded: Embedded,
) -> None:
    """P1: each is in one place, and in the one that was answered."""
    known: dict[int, list[str]] = {}
    for cycle in range(3):
        for word, ticket, *place in await _acknowledged(embedded.path, 20 + 13 * cycle):
            known[int(ticket)] = [word, *place]
        store = await embedded.open()
        waits = {message.number for message in await waiting(store)}
        for number, (state, *offset) in known.items():
            fate = await store.due.fate(P0, number)
            assert (number in waits) == (fate is None)
            if state == "moved":
                assert fate == Stored(int(offset[0]))
            if state == "cancelled":
                assert fate == NotStored("cancelled")
        await embedded.close()
        assert verified(embedded).findings == []
    assert len(known) > 30


# --- One commit ---------------------------------------------------------------------------------


async def _together(store: SqliteStorage, *acts: Awaitable[object]) -> list[object]:
    """Do these acts in one commit."""
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(10)

    held = store._writer.submit(hold)
    await asyncio.to_thread(begun.wait, 10)
    tasks = [asyncio.ensure_future(act) for act in acts]
    await asyncio.sleep(0)
    gate.set()
    await held
    return [await task for task in tasks]


def _as_scheduled(*after_s: float, ids: Sequence[str | None] = ()) -> list[DueMessage]:
    """What `schedule` makes of these in an empty partition."""
    record = append(messages=len(after_s), due=[int(s) for s in after_s], ids=ids)
    return due_messages(record, open_header(record), [(n, n) for n in range(len(after_s))])


async def test_acts_on_what_was_scheduled_in_the_same_commit(embedded: Embedded) -> None:
    """P1, P4: whether a message is in the file or not yet makes no difference."""
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    first, _, third, fourth = _as_scheduled(1, 2, 3, 4, ids=["a", "b", "c", None])
    before = await commits(store)
    answers = await _together(
        store,
        schedule(store, 1, 2, 3, 4, ids=["a", "b", "c", None]),
        schedule(store, 1, ids=["b"]),
        move(store, [first]),
        store.due.cancel(P0, 1, remember_s=300),
        store.due.change(replace(third, due_unix_ms=due_unix_ms(9), payload=body(9, 30))),
        store.due.change(third),
        move(store, [first, fourth]),
        schedule(store, 5, 6, 7, ids=["a", "b", "c"]),
    )
    assert await commits(store) == before + 1
    assert answers[:2] == [["due 0", "due 1", "due 2", "due 3"], ["due 1 again"]]
    assert answers[3:] == [True, True, False, None, ["due 0 again", "cancelled", "due 2 again"]]
    assert [message.number for message in await waiting(store)] == [3, 2]
    assert await log(store) == [body(0)]
    (state, _) = await store.due.states("q-1")
    assert (state.messages, state.bytes, state.next_number) == (2, 50, 4)
    await embedded.close()
    assert verified(embedded).findings == []


async def test_a_purge_and_a_drop_in_the_commit_that_schedules(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    await _together(
        store,
        schedule(store, 1, ids=["a"]),
        store.purge("q-1", None),
        schedule(store, 2, ids=["a"]),
    )
    assert [message.number for message in await waiting(store)] == [1]
    await _together(store, schedule(store, 3), store.drop_queue("q-1"), schedule(store, 4))
    assert await store.due.states("q-1") == []


# --- Like the fake ------------------------------------------------------------------------------


async def _act(store: Storage, seed: int) -> object:
    """Do the act that this seed stands for. Two storages that are the same do the same."""
    dice = random.Random(seed)
    found = await waiting(store)
    some = dice.sample(found, min(len(found), dice.randint(1, 3)))
    times = [dice.randint(1, 9) for _ in range(dice.randint(1, 4))]
    ids = [dice.choice([None, "a", "b", "c", "d"]) for _ in times]
    first = dice.randint(0, 8)
    sequences = range(first, first + len(times))
    match dice.randint(0, 7):
        case 0 | 1:
            runs = [(ANN, dice.randint(0, 4), sequences)]
            return await one(store, append(runs=runs, ids=ids, due=times, due_messages_max=9))
        case 2:
            return await schedule(store, *times, ids=ids)
        case 3:
            return await one(store, append(runs=[(ANN, 0, sequences)], ids=ids, messages_max=30))
        case 4 if some:
            return await move(store, some)
        case 5:
            return await store.due.cancel(P0, dice.randint(0, 30), remember_s=60)
        case 6 if some:
            size = dice.choice([20, 50])
            changed = replace(some[0], due_unix_ms=due_unix_ms(dice.randint(1, 9)))
            return await store.due.change(replace(changed, payload=body(seed, size)))
        case 7 if seed % 5 == 0:
            return await store.purge("q-1", None)
        case _:
            return None


async def _seen(store: Storage) -> list[object]:
    """What can be seen of partition 0."""
    return [
        await waiting(store),
        await store.due.first(P0, due_unix_ms(5), count_max=2, bytes_max=30),
        await store.due.look(P0, key_hash=7, after=DuePlace(due_unix_ms(3), 4), count_max=2),
        await store.due.states("q-1"),
        [await store.due.fate(P0, number) for number in range(30)],
        [await store.due.known(P0, digest(name)) for name in "abcd"],
        await log(store),
        [(state.end, state.messages, state.bytes) for state in await store.partitions("q-1")],
    ]


@pytest.mark.parametrize("history", range(5))
async def test_a_history_of_acts_goes_as_in_memory(embedded: Embedded, history: int) -> None:
    """P1, P2, P4, P10: also with restarts between them."""
    fake = MemoryStorage(wall=embedded.clock)
    store = await embedded.open()
    for each in (fake, store):
        await each.create_queue("q-1", 2)
    for seed in range(history * 1000, history * 1000 + 60):
        answers = [await _act(each, seed) for each in (fake, store)]
        assert answers[0] == answers[1], f"act {seed}"
        if seed % 20 == 7:
            embedded.clock.unix_s += 250
        if seed % 20 == 13:
            store = await embedded.open()
        assert await _seen(fake) == await _seen(store), f"after act {seed}"
    await embedded.close()
    assert verified(embedded).findings == []


# --- Damage -------------------------------------------------------------------------------------


def _flip(embedded: Embedded, column: str) -> None:
    """Change one bit of a column in the row of the second message."""
    second = codec.due_row_id(1, 1)
    ((value,),) = embedded.sql(f"SELECT {column} FROM due WHERE id = ?", second)
    value = value[:-1] + bytes([value[-1] ^ 4]) if isinstance(value, bytes) else value ^ 4
    embedded.sql(f"UPDATE due SET {column} = ? WHERE id = ?", value, second)


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("column", due_rows.DUE_COLUMNS.split(", "))
async def test_a_flipped_bit_costs_its_message_and_is_reported(
    embedded: Embedded, column: str, is_sealed: bool
) -> None:
    """P13, R30."""
    sealer = sealing() if is_sealed else None
    await filled(embedded, sealer=sealer)
    await embedded.close()
    _flip(embedded, column)
    assert verified(embedded, sealer).damaged == {"due": 1}
    store = await embedded.open(**({} if sealer is None else {"sealer": sealer}))
    read = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**6)
    assert [message.number for message in read.messages] == [0, 2]
    assert read.damaged == {"id": (5,), "store": ()}.get(column, (1,))
    found = await store.due.find(P0, [0, 1, 2])
    assert [message.number for message in found] == [0, 2]
    assert (await store.due.states("q-1"))[0].messages == 2
    assert [message.number for message in await waiting(store)] == [0, 2], "and only once"
    state = await store.state()
    assert (state.writable, state.detail["damage_reports"]) == (True, "1")
    assert "damaged: the scheduled message of number" in state.detail["damage_latest"]
    assert embedded.sql("SELECT reason FROM due_quarantine") == [("the checksum does not match",)]
    assert await schedule(store, 4, 5, ids=["b", "c"]) == ["due 3", "due 2 again"]
    await move(store, await waiting(store))
    await embedded.close()
    report = verified(embedded, sealer)
    assert (report.findings, report.quarantined) == ([], 1)


@pytest.mark.parametrize("act", ["cancel", "change"])
async def test_what_is_damaged_can_neither_be_cancelled_nor_changed(
    embedded: Embedded, act: str
) -> None:
    _, second, _ = await waiting(await filled(embedded))
    await embedded.close()
    _flip(embedded, "bytes")
    store = await embedded.open()
    if act == "cancel":
        assert not await store.due.cancel(P0, 1, remember_s=300)
    else:
        assert not await store.due.change(second)
    assert (await store.due.states("q-1"))[0].messages == 2
    assert embedded.sql("SELECT count(*) FROM due_quarantine") == [(1,)]
    assert await store.due.fate(P0, 1) is None


async def test_a_damaged_message_that_is_published_again_is_new(embedded: Embedded) -> None:
    """P1 before P4: the first one is lost."""
    await filled(embedded)
    await embedded.close()
    _flip(embedded, "payload")
    store = await embedded.open()
    assert await store.due.known(P0, digest("b")) is None
    assert await schedule(store, 5, ids=["b"]) == ["due 3"]


class Locked:
    """A sealer whose keys cannot be had, or whose payloads do not open."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        if self.error is not None:
            raise self.error
        return b"\x01" + payload

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return sealed[1:]


async def test_a_key_that_cannot_be_had_damages_and_changes_nothing(embedded: Embedded) -> None:
    """P13."""
    sealer = Locked()
    store = await filled(embedded, sealer=sealer)
    found = await waiting(store)
    sealer.error = Refused("storage_unavailable", "the key service does not answer")
    for act in (
        waiting(store),
        schedule(store, 5),
        move(store, found[:1]),
        store.due.change(replace(found[1], payload=body(9))),
    ):
        with pytest.raises(Refused, match="does not answer"):
            await act
    assert await store.due.cancel(P0, 2, remember_s=300), "it needs no key"
    sealer.error = None
    assert await waiting(store) == found[:2]
    assert await log(store) == []
    assert await schedule(store, 5) == ["due 3"]


async def test_what_does_not_open_is_put_aside_with_its_reason(embedded: Embedded) -> None:
    sealer = Locked()
    store = await filled(embedded, sealer=sealer)
    sealer.error = RecordDamaged("it does not open")
    read = await store.due.first(P0, FOR_EVER, count_max=2, bytes_max=10**6)
    assert (read.messages, read.damaged, read.next_unix_ms) == ((), (0, 1), due_unix_ms(3))
    reasons = embedded.sql("SELECT reason FROM due_quarantine")
    assert reasons == [("it does not open",), ("it does not open",)]


async def test_no_scheduled_payload_is_plain_in_any_file(embedded: Embedded) -> None:
    """Not in the write-ahead log, and not after a change."""

    def on_disk() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(embedded.path.parent.iterdir()))

    sealer = sealing()
    store = await filled(embedded, sealer=sealer)
    first, *_ = await waiting(store)
    assert await store.due.change(replace(first, payload=body(77)))
    for number in (0, 1, 2, 77):
        assert body(number) not in on_disk()
    await embedded.close()
    report = verified(embedded, sealer)
    assert (report.sealed, report.unopened, report.rows["due"]) == (3, {}, 3)
    row = f"SELECT {due_rows.DUE_COLUMNS} FROM due WHERE id = ?"
    ((*_, second),) = embedded.sql(row, codec.due_row_id(1, 1))
    ((row_id, *fields, _, header, _),) = embedded.sql(row, codec.due_row_id(1, 2))
    checksum = codec.record_checksum(row_id, tuple(fields), header, second)
    embedded.sql("UPDATE due SET payload = ?, checksum = ? WHERE id = ?", second, checksum, row_id)
    assert verified(embedded, sealer).findings == ["table due: 1 payloads do not open"]
    store = await embedded.open(sealer=sealer)
    read = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**6)
    assert read.damaged == (2,), "what belongs to another message does not open"


@pytest.mark.parametrize("column", ["due_next", "due_start", "due_messages", "due_bytes"])
async def test_a_damaged_count_of_a_partition_is_found(embedded: Embedded, column: str) -> None:
    await filled(embedded)
    await embedded.close()
    embedded.sql(f"UPDATE partition SET {column} = {column} + 1 WHERE number = 0")
    assert verified(embedded).damaged == {"partition": 1}
    store = await embedded.open()
    with pytest.raises(Refused, match="row of partition 0 of q-1 is damaged"):
        await schedule(store, 1)
    with pytest.raises(Refused, match="row of partition 0 of q-1 is damaged"):
        await waiting(store)
    assert await schedule(store, 1, partition=P1) == ["due 0"]


async def test_verify_finds_a_wrong_count(embedded: Embedded) -> None:
    await filled(embedded)
    await embedded.close()
    assert verified(embedded).findings == []
    embedded.sql("DELETE FROM due WHERE id = ?", codec.due_row_id(1, 1))
    assert verified(embedded).findings == [
        "partition 0 of q-1: 3 scheduled messages of 60 bytes are counted, and 2 of 40 bytes "
        "are there"
    ]


# --- Older stores -------------------------------------------------------------------------------


async def test_a_store_of_version_3_is_sound_and_goes_on(embedded: Embedded) -> None:
    """R4, R30: the rows of its partitions have checksums of before."""
    embedded.make_old(3)
    report = verified(embedded)
    assert (report.schema_version, report.findings, report.rows["partition"]) == (3, [], 2)
    store = await embedded.open()
    assert await one(store, append(runs=[(ANN, 0, [2, 4])])) == [-2, 5]
    assert await schedule(store, 1, 2, ids=["x", "z"]) == [-4, "due 0"]
    assert await schedule(store, 1, partition=P1) == ["storage_unavailable"], "it is sealed"
    (state, _) = await store.partitions("q-1")
    assert (state.end, state.messages) == (6, 6)
    await embedded.close()
    report = verified(embedded)
    assert (report.findings, report.rows["due"]) == ([], 1)


async def test_what_waits_is_in_a_store_that_was_renewed(embedded: Embedded) -> None:
    """R30: a restored backup has it, and it can be moved there."""
    await filled(embedded)
    await embedded.close()
    assert renew_store(embedded.path, raised_by=1, partitions={"q-1": 3}).damaged == 0
    assert verified(embedded).findings == []
    store = await embedded.open()
    moved = await move(store, await waiting(store))
    assert moved is not None
    assert (moved.first, moved.count, moved.generation) == (0, 3, 2)


# --- Many ---------------------------------------------------------------------------------------


async def _with_many(embedded: Embedded) -> SqliteStorage:
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    record = append(messages=1000, due=range(1000))
    await store.append([record] * (MANY // 1000))
    return store


async def _swept(embedded: Embedded, store: SqliteStorage, left: str) -> None:
    """Wait until this statement finds 0; slices are swept around other acts."""
    for _ in range(1000):
        if embedded.sql(left) == [(0,)]:
            return
        await store.create_queue("q-2", 1)
    raise AssertionError(f"{left}: {embedded.sql(left)}")


async def test_a_purge_of_many_leaves_them_to_be_deleted_in_slices(embedded: Embedded) -> None:
    """R12, R31: one short commit, after which none of them is there for anybody."""
    store = await _with_many(embedded)
    assert await schedule(store, 1, ids=["a"]) == [f"due {MANY}"]
    before = await commits(store)
    assert await store.purge("q-1", None) == MANY + 1
    assert not await waiting(store)
    assert await store.due.find(P0, [0, MANY]) == []
    assert not await store.due.cancel(P0, 0, remember_s=300)
    assert await schedule(store, 1, ids=["a"]) == [f"due {MANY + 1}"]
    assert [message.number for message in await waiting(store)] == [MANY + 1]
    await _swept(embedded, store, "SELECT count(*) FROM garbage")
    assert await commits(store) > before + MANY // sqlite_trim._DUE_ROWS
    assert embedded.sql("SELECT count(*) FROM due") == [(1,)]
    assert [message.number for message in await waiting(store)] == [MANY + 1]
    await embedded.close()
    assert verified(embedded).findings == []


async def test_what_a_purge_left_is_deleted_after_a_restart(embedded: Embedded) -> None:
    store = await filled(embedded)
    await embedded.close()
    row = codec.due_row_id(1, 0)
    embedded.sql("INSERT INTO garbage VALUES ('due', ?)", row + 2)
    store = await embedded.open()
    await _swept(embedded, store, "SELECT count(*) FROM garbage")
    assert embedded.sql("SELECT id FROM due") == [(row + 2,)]


async def test_a_purge_and_then_a_drop_leave_no_garbage(embedded: Embedded) -> None:
    store = await filled(embedded)
    await _together(store, store.purge("q-1", None), schedule(store, 1), store.drop_queue("q-1"))
    await _swept(embedded, store, "SELECT count(*) FROM garbage")
    assert embedded.sql("SELECT count(*) FROM due") == [(0,)]


async def test_many_of_a_dropped_queue_leave_in_slices(embedded: Embedded) -> None:
    """R31."""
    store = await _with_many(embedded)
    before = await commits(store)
    await store.drop_queue("q-1")
    await _swept(embedded, store, "SELECT count(*) FROM due")
    assert await commits(store) > before + MANY // sqlite_trim._DUE_ROWS


async def test_those_that_are_due_at_one_time_are_listed_in_parts(embedded: Embedded) -> None:
    """P9: each part costs what it has, wherever it begins."""
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    await store.append([append(messages=300, due=[5] * 300), append(messages=1, due=[6])])
    numbers: list[int] = []
    after = DuePlace(-5, -5)
    while (read := await store.due.look(P0, key_hash=7, after=after, count_max=70)).messages:
        numbers += [message.number for message in read.messages]
        after = DuePlace(read.messages[-1].due_unix_ms, read.messages[-1].number)
    assert numbers == list(range(301))


async def test_places_and_numbers_that_nobody_was_given_are_nowhere(embedded: Embedded) -> None:
    """They come from clients."""
    store = await filled(embedded)
    await schedule(store, 1, partition=P1)
    for number in (-1, 3, 1 << 40, 1 << 70):
        assert await store.due.find(P0, [number]) == []
        assert not await store.due.cancel(P0, number, remember_s=300)
        assert await store.due.fate(P0, number) is None
    assert not (await store.due.look(P0, after=DuePlace(1 << 70, 1 << 70))).messages
    assert len((await store.due.look(P0, after=DuePlace(-(1 << 70), 0))).messages) == 3
    assert len((await store.due.look(P0, id_hash=4)).messages) == 1
    assert (await store.due.look(P0, id_hash=0)).messages == ()
    assert await store.due.known(P0, bytes(32)) is None


async def test_a_closed_store_refuses(embedded: Embedded) -> None:
    store = await filled(embedded)
    (first, *_) = await waiting(store)
    await store.close()
    for act in (
        waiting(store),
        store.due.states("q-1"),
        store.due.change(first),
        store.due.cancel(P0, 0, remember_s=1),
        move(store, [first]),
    ):
        with pytest.raises(Refused, match="the storage is closed"):
            await act
