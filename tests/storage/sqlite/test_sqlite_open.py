"""Opening the embedded storage: what it insists on, and what its sentences say."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from push.errors import Refused
from push.storage_port import Retry
from storage.sqlite import codec
from storage.sqlite.open import STEPS, check_pragmas
from storage.sqlite.verify import verify_store
from tests.contract.stores import G0, P0, TOKEN, append, change, one, sequences, with_group
from tests.storage.conftest import Embedded


async def test_what_durability_stands_on_is_read_back(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.close()
    connection = sqlite3.connect(embedded.path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    check_pragmas(connection, "FULL")
    connection.close()
    assert (await embedded.open(synchronous="EXTRA")) is not None


@pytest.mark.parametrize("pragma", ["synchronous = NORMAL", "journal_mode = DELETE"])
async def test_a_weaker_setting_than_asked_for_stops_the_start(
    embedded: Embedded, pragma: str
) -> None:
    """Negative control: were the answer not read, the store would open and lose messages."""
    await (await embedded.open()).close()
    connection = sqlite3.connect(embedded.path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA {pragma}")
    with pytest.raises(Refused, match=r"synchronous = 1|journal mode delete"):
        check_pragmas(connection, "FULL")
    connection.close()


async def test_an_unknown_level_is_refused(embedded: Embedded) -> None:
    with pytest.raises(Refused, match="synchronous is one of NORMAL, FULL, EXTRA, not 'OFF'"):
        await embedded.open(synchronous="OFF")


async def test_two_cannot_open_the_same_store(embedded: Embedded) -> None:
    await embedded.open()
    with pytest.raises(Refused, match=f"in use by another process .id {os.getpid()}.*data folder"):
        await Embedded(embedded.path.parent.parent / "data").open()


async def test_another_process_cannot_open_it_either(embedded: Embedded) -> None:
    await embedded.open()
    script = (
        "import asyncio, sys\n"
        "from push.errors import Refused\n"
        "from storage.sqlite.store import SqliteStorage\n"
        "try: asyncio.run(SqliteStorage.open(sys.argv[1]))\n"
        "except Refused as error: print(error.detail)\n"
    )
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", script, str(embedded.path)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert "is in use by another process" in done.stdout


async def test_a_file_that_is_no_store_is_not_touched(embedded: Embedded) -> None:
    embedded.path.parent.mkdir()
    connection = sqlite3.connect(embedded.path)
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.commit()
    connection.close()
    before = embedded.path.read_bytes()
    with pytest.raises(Refused, match="not a store of this broker"):
        await embedded.open()
    assert embedded.path.read_bytes() == before


async def test_a_file_that_is_no_database_is_not_touched(embedded: Embedded) -> None:
    embedded.path.parent.mkdir()
    embedded.path.write_bytes(b"cats, mostly\n" * 1000)
    with pytest.raises(Refused, match=r"is damaged.*recover"):
        await embedded.open()
    assert embedded.path.read_bytes() == b"cats, mostly\n" * 1000


def _break_structure(path: Path) -> None:
    """Overwrite the inside of an interior or leaf page of the record table."""
    data = bytearray(path.read_bytes())
    for page in range(len(data) // 4096 - 1, 2, -1):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))


async def _open_and_read(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.read(P0, 0, 10**6)


@pytest.mark.parametrize("clean", [True, False])
async def test_broken_structure_is_found_after_an_unclean_stop(
    embedded: Embedded, clean: bool
) -> None:
    """P13, R30: structure is checked when the last stop was not clean, else found when used."""
    store = await embedded.open()
    await with_group(store, messages=200)
    await embedded.close()
    if not clean:
        embedded.sql("UPDATE meta SET value = '0' WHERE name = 'clean'")
    _break_structure(embedded.path)
    with pytest.raises(Refused, match=r"damaged|cannot be read"):
        await _open_and_read(embedded)


async def test_a_clean_stop_is_remembered(embedded: Embedded) -> None:
    await embedded.open()
    assert embedded.sql("SELECT value FROM meta WHERE name = 'clean'") == [("0",)]
    await embedded.close()
    assert embedded.sql("SELECT value FROM meta WHERE name = 'clean'") == [("1",)]
    assert not list(embedded.path.parent.glob("*-wal"))


async def test_the_incarnation_stays_with_the_file(embedded: Embedded) -> None:
    """R30."""
    first = await (await embedded.open()).incarnation()
    assert await (await embedded.open()).incarnation() == first
    other = Embedded(embedded.path.parent / "other")
    assert await (await other.open()).incarnation() != first
    await other.close()


# --- Schema versions (R4) -----------------------------------------------------------------------

VERSION = "SELECT value FROM meta WHERE name = 'schema_version'"
NEXT = "ALTER TABLE parked ADD COLUMN operator TEXT NOT NULL DEFAULT '';"


async def test_an_older_store_is_migrated_with_what_it_holds(embedded: Embedded) -> None:
    """R4: by a program that knows one version more."""
    store = await embedded.open()
    await with_group(store)
    assert await sequences(store, [1, 2, 3]) == [0, 1, 2]
    await store.close()
    assert embedded.sql(VERSION) == [(str(len(STEPS)),)]
    migrated = await embedded.open(steps=(*STEPS, NEXT))
    assert await sequences(migrated, [2, 4]) == [-2, 3]
    await embedded.close()
    assert embedded.sql(VERSION) == [(str(len(STEPS) + 1),)]
    assert embedded.sql("SELECT operator FROM parked") == []


async def test_a_store_of_version_1_is_sound_and_goes_on(embedded: Embedded) -> None:
    """R4, R30: what it holds of tries has no reasons, and its checksums are of before."""
    embedded.make_old(1)
    columns = "cursor, place, attempts, due_unix_ms, checksum"
    (cursor,) = embedded.sql("SELECT id FROM cursor")[0]
    row = (cursor, 0, 2, 50)
    embedded.sql(f"INSERT INTO retry ({columns}) VALUES {(*row, codec.row_checksum(*row))}")
    report = verify_store(embedded.path, lambda _seen, _of: None)
    assert (report.schema_version, report.findings, report.rows["retry"]) == (1, [], 1)
    store = await embedded.open()
    found = await store.cursor(G0)
    assert found is not None
    assert found.retries == (Retry(0, 2, 50),)
    assert (await store.own(G0, token=TOKEN, assignment=1)).cursor == found
    await store.write_cursors([change(settled=[(1, 1)], ended=[(1, 1)])])
    await store.write_cursors([change(retries=[Retry(0, 3, 60, b"why")])])
    await embedded.close()
    report = verify_store(embedded.path, lambda _seen, _of: None)
    assert (report.findings, report.rows["retry"], report.rows["ended"]) == ([], 1, 1)


async def test_a_newer_store_is_refused_with_a_sentence(embedded: Embedded) -> None:
    """R4: by the program of before; nothing is changed."""
    await embedded.open(steps=(*STEPS, NEXT))
    await embedded.close()
    newer = len(STEPS) + 1
    known = f"has schema version {newer} and this program knows up to {newer - 1}"
    with pytest.raises(Refused, match=known):
        await embedded.open()
    store = await embedded.open(steps=(*STEPS, NEXT))
    await store.create_queue("q-1", 1)


async def test_a_migration_that_fails_changes_nothing(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await embedded.close()
    with pytest.raises(Refused, match="cannot be opened: no such table"):
        await embedded.open(steps=(*STEPS, NEXT + "UPDATE cats SET name = 'x';"))
    assert embedded.sql(VERSION) == [(str(len(STEPS)),)]
    store = await embedded.open()
    assert await one(store, append(messages=1)) == [0]


async def test_what_a_start_finds_in_the_wal_is_durable_before_it_answers(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, R31. [Killed between a commit's write and its fsync: what was sent again is answered of a
    row that is in memory alone, nobody writes it again, and the power goes.]"""
    await (await embedded.open()).close()
    killed = sqlite3.connect(embedded.path, isolation_level=None)
    killed.execute("PRAGMA synchronous = NORMAL")
    killed.execute("UPDATE meta SET value = '0' WHERE name = 'clean'")
    wal = embedded.path.with_name("store.sqlite-wal").stat()
    assert wal.st_size
    synced: list[int] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    await embedded.open()
    assert wal.st_ino in synced
    killed.close()


async def test_a_log_that_cannot_be_synced_stops_the_start_with_a_sentence(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    await (await embedded.open()).close()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(Refused, match=r"store.sqlite cannot be opened: .*Input/output error"):
            await embedded.open()
    assert await embedded.open() is not None, "nothing is held any more"
