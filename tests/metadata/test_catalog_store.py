"""The catalog's file: what it holds after every kind of end, and whom it refuses."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from metadata.catalog import Group, GroupSettings, Membership, Queue, QueueSettings
from metadata.data_keys import DataKey
from metadata.row_store import random_id
from metadata.sqlite.catalog import APPLICATION_ID, CatalogFile
from metadata.sqlite.database import RowFile
from metadata.sqlite.verify import verify_catalog
from push.errors import Refused, Unknown

ROOT = Path(__file__).parents[2]


def queue(queue_id: str, name: str) -> Queue:
    return Queue(
        queue_id=queue_id, name=name, tenant="default", holder="me", created_unix_ms=1,
        settings=QueueSettings(partitions=2), ring_epoch=1, members=(0, 1), hash_key=b"k" * 16,
    )  # fmt: skip


def group(group_id: str, queue_id: str, name: str) -> Group:
    return Group(
        group_id=group_id, name=name, queue_id=queue_id, created_unix_ms=1, settings=GroupSettings()
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as somebody else opens it, after the store has let go."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def test_what_was_written_is_there_when_opened_again(path: Path) -> None:
    one, its_group = queue("aaaaaaaaaa", "one"), group("bbbbbbbbbb", "aaaaaaaaaa", "g")
    with closing(CatalogFile(path)) as store:
        store.create([one, its_group])
        store.set_mark("storage", "x")
        secret = store.root_secret
    with closing(CatalogFile(path)) as store:
        contents = store.load()
        assert (contents.queues, contents.groups, contents.dropped) == ([one], [its_group], [])
        assert contents.marks == {"storage": "x"}
        assert store.root_secret == secret
        assert len(secret) == 32


def test_each_opening_raises_the_boot_number(path: Path) -> None:
    """R14: generations made of it grow over restarts."""
    boots = []
    for _ in range(3):
        with closing(CatalogFile(path)) as store:
            boots.append(store.boot)
    assert boots == [1, 2, 3]


@pytest.mark.parametrize("kind", [CatalogFile, RowFile])
def test_a_commit_is_synced_and_leaves_nothing_behind(
    path: Path, kind: type[CatalogFile] | type[RowFile]
) -> None:
    """synchronous=NORMAL loses acknowledged commits in a power cut; FULL is 2. Rows of data keys
    that an old master key opens are overwritten; also in the file of a metadata service."""
    with closing(kind(path)) as store:
        run = store._connection.execute
        assert run("PRAGMA synchronous").fetchone() == (2,)
        assert run("PRAGMA journal_mode").fetchone() == ("wal",)
        assert run("PRAGMA secure_delete").fetchone() == (1,)


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    """It holds the secret that authenticates receipts."""
    path = tmp_path / "new" / "folder" / "catalog.sqlite"
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one")])
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_id_is_never_given_twice(path: Path) -> None:
    """R1: not to a second queue, not after a deletion, not after a restart."""
    drawn = iter(["aaaaaaaaaa", "aaaaaaaaaa", "bbbbbbbbbb", "aaaaaaaaaa", "cccccccccc"])
    with closing(CatalogFile(path, draw_id=lambda: next(drawn))) as store:
        store.create([queue(store.fresh_id(), "one")])
        store.create([group(store.fresh_id(), "aaaaaaaaaa", "g")])
        store.drop_queue("aaaaaaaaaa")
        store.forget("aaaaaaaaaa")
        assert store.fresh_id() == "cccccccccc"
        with pytest.raises(sqlite3.IntegrityError):
            store.create([queue("aaaaaaaaaa", "one")])
    drawn = iter(["bbbbbbbbbb", "aaaaaaaaaa", "dddddddddd"])
    with closing(CatalogFile(path, draw_id=lambda: next(drawn))) as store:
        assert store.fresh_id() == "dddddddddd"
        assert store.load().queues == []


def test_ids_are_short_and_fit_into_names() -> None:
    ids = {random_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 10 and one.isascii() and one.isalnum() for one in ids)


def test_a_change_that_fails_in_the_middle_leaves_nothing(path: Path) -> None:
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one")])
        with pytest.raises(sqlite3.IntegrityError):
            store.create([queue("bbbbbbbbbb", "two"), queue("cccccccccc", "one")])
        assert [one.name for one in store.load().queues] == ["one"]
        store.create([queue("bbbbbbbbbb", "two")])  # its id was not taken either


def test_another_process_is_refused_while_it_is_open(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from metadata.sqlite.catalog import CatalogFile\n"
        + ("CatalogFile(Path(sys.argv[1]))")
    )
    with closing(CatalogFile(path)) as store:
        ran = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 1
        assert "another process is using it" in ran.stderr
        with pytest.raises(Refused, match="another process is using it"):
            CatalogFile(path)
        store.create([queue("aaaaaaaaaa", "one")])
    CatalogFile(path).close()


def test_a_newer_schema_is_refused_with_a_sentence_and_left_alone(path: Path) -> None:
    """R4."""
    with closing(CatalogFile(path)) as store:
        boot = store.boot
    with raw(path) as connection:
        connection.execute("PRAGMA user_version=5")
    with pytest.raises(
        Refused, match=r"its schema is version 5, of a newer Tocsin; this one knows 4"
    ):
        CatalogFile(path)
    with raw(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
        connection.execute("PRAGMA user_version=4")
    with closing(CatalogFile(path)) as store:
        assert store.boot == boot + 1


def test_a_catalog_of_the_first_schema_is_migrated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: with all that is in it."""
    its_group = group("bbbbbbbbbb", "aaaaaaaaaa", "g")
    with monkeypatch.context() as before:
        before.setattr("metadata.sqlite.catalog.MIGRATIONS", ("catalog.sql",))
        with closing(CatalogFile(path)) as store:
            store.create([queue("aaaaaaaaaa", "one"), its_group])
    assert verify_catalog(path).findings == []
    with closing(CatalogFile(path)) as store:
        contents = store.load()
        assert ([one.name for one in contents.queues], contents.groups) == (["one"], [its_group])
        assert contents.memberships == []
        store.put_memberships([membership("bbbbbbbbbb", {"s.1": 30.0})])
    report = verify_catalog(path)
    assert (report.findings, report.rows["memberships"]) == ([], 1)


# --- Data keys -----------------------------------------------------------------------------------


def data_key(number: int, master: str = "m") -> DataKey:
    key_id = bytes([number]) * 8
    return DataKey(key_id=key_id, master_key_id=master, created_unix_ms=number, wrapped=b"w" * 60)


def test_data_keys_are_kept_and_wrapped_anew_all_at_once(path: Path) -> None:
    keys = [data_key(number) for number in (1, 2, 3)]
    with closing(CatalogFile(path)) as store:
        store.put_data_keys(keys[:1])
        store.put_data_keys(keys[1:])
        assert store.load().data_keys == keys
        store.put_data_keys([data_key(number, "n") for number in (1, 2, 3)])
        assert b'"m"' not in path.with_name(path.name + "-wal").read_bytes()
    with closing(CatalogFile(path)) as store:
        assert {key.master_key_id for key in store.load().data_keys} == {"n"}
    assert b'"m"' not in path.read_bytes()  # what an old master key opens is not left behind


@pytest.mark.parametrize("column", ["value", "checksum", "key_id"])
@pytest.mark.parametrize("copy", [0, 1])
def test_one_flipped_bit_of_a_data_key_costs_nothing(path: Path, column: str, copy: int) -> None:
    """P13: else it would cost all that was sealed under the key. It is counted, and mended."""
    keys = [data_key(number) for number in (1, 2)]
    with closing(CatalogFile(path)) as store:
        store.put_data_keys(keys)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (value,) = connection.execute(
            f"SELECT {column} FROM data_keys WHERE copy = ? ORDER BY key_id LIMIT 1", (copy,)
        ).fetchone()
        flipped = value ^ 4 if isinstance(value, int) else bytes([value[0] ^ 4]) + value[1:]
        connection.execute(
            f"UPDATE data_keys SET {column} = ? WHERE copy = ? AND {column} = ?",
            (flipped, copy, value),
        )
    assert verify_catalog(path).damaged == {"data_keys": 1}
    with closing(CatalogFile(path)) as store:
        assert sorted(store.load().data_keys, key=lambda key: key.created_unix_ms) == keys
    report = verify_catalog(path)
    assert (report.findings, report.rows["data_keys"], len(report.data_keys)) == ([], 4, 2)


def test_a_data_key_that_is_damaged_twice_stops_the_start(path: Path) -> None:
    """A catalog without it would take all that was sealed under it for damaged."""
    with closing(CatalogFile(path)) as store:
        store.put_data_keys([data_key(1), data_key(2)])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE data_keys SET checksum = 1 WHERE key_id = ?", (b"\1" * 8,))
    with (
        closing(CatalogFile(path)) as store,
        pytest.raises(Refused, match="1 data keys are damaged, restore a copy"),
    ):
        store.load()


# --- Who is waited for ---------------------------------------------------------------------------


def membership(group_id: str, lingers: dict[str, float]) -> Membership:
    return Membership(
        group_id=group_id, generation=7, members=("s.1",), assignment={0: "s.1"}, lingers=lingers
    )


@pytest.fixture
def grouped(path: Path) -> Path:
    """A catalog with one group, of which somebody lingers."""
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one"), group("bbbbbbbbbb", "aaaaaaaaaa", "g")])
        store.put_memberships([membership("bbbbbbbbbb", {"s.1": 30.0})])
    return path


def test_who_lingers_is_there_when_opened_again(grouped: Path) -> None:
    """R22: as long as somebody does."""
    with closing(CatalogFile(grouped)) as store:
        assert store.load().memberships == [membership("bbbbbbbbbb", {"s.1": 30.0})]
        store.put_memberships([membership("bbbbbbbbbb", {"s.2": 9.0})])
        assert store.load().memberships == [membership("bbbbbbbbbb", {"s.2": 9.0})]
        store.put_memberships([membership("bbbbbbbbbb", {})])
        assert store.load().memberships == []


@pytest.mark.parametrize("what", ["group", "queue", "all"])
def test_of_what_is_gone_nobody_is_waited_for(grouped: Path, what: str) -> None:
    with closing(CatalogFile(grouped)) as store:
        if what == "group":
            store.drop_group("bbbbbbbbbb")
            store.put_memberships([membership("bbbbbbbbbb", {"s.1": 30.0})])
        elif what == "queue":
            store.drop_queue("aaaaaaaaaa")
        else:
            store.forget_memberships()
        assert store.load().memberships == []


@pytest.mark.parametrize(
    "damage",
    ["value = x'00'", "checksum = 1", "value = CAST('{}' AS BLOB), checksum = 2745614147"],
)
def test_a_damaged_membership_is_reported_and_left_out(grouped: Path, damage: str) -> None:
    """P13: nobody is waited for, and everything else is there."""
    with raw(grouped) as connection:
        connection.execute(f"UPDATE memberships SET {damage}")
    assert verify_catalog(grouped).damaged == {"memberships": 1}
    with closing(CatalogFile(grouped)) as store:
        contents = store.load()
        assert (len(contents.groups), contents.memberships) == (1, [])


def test_a_file_of_somebody_else_is_refused_and_left_alone(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(Refused, match="not a catalog of Tocsin"):
        CatalogFile(path)
    with raw(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    path.unlink()
    path.write_bytes(b"not a database, but long enough to have a header" * 100)
    with pytest.raises(Refused, match="cannot be used"):
        CatalogFile(path)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"):
        CatalogFile(tmp_path / "file" / "catalog.sqlite")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE queues SET value = replace(value, '\"one\"', '\"two\"')",
        "UPDATE queues SET checksum = checksum + 1",
        "UPDATE queues SET name = 'two'",
        "UPDATE queues SET tenant = 'other'",
        "UPDATE groups SET value = x'00'",
        "UPDATE facts SET value = '0' WHERE name = 'boot'",
        "UPDATE facts SET value = zeroblob(32) WHERE name = 'root_secret'",
        "UPDATE facts SET value = 'y' WHERE name = 'mark:storage'",
    ],
)
def test_a_damaged_row_stops_the_start_and_is_named(path: Path, damage: str) -> None:
    """R30: a queue left out would be made anew under its name, and its messages orphaned."""
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one"), group("bbbbbbbbbb", "aaaaaaaaaa", "g")])
        store.set_mark("storage", "x")
    with raw(path) as connection:
        connection.execute(damage)
    sentence = r"its row of the (queue|group|fact) .* is damaged"
    with pytest.raises(Refused, match=sentence), closing(CatalogFile(path)) as store:
        store.load()


def test_an_interrupted_creation_is_finished(path: Path) -> None:
    """Killed between making the file and its schema: nothing was ever answered from it."""
    path.write_bytes(b"")
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one")])
    with raw(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_failed_commit_is_unknown_and_nothing_is_accepted_after_it(path: Path) -> None:
    """R31. A real failure: the file may not grow."""
    with closing(CatalogFile(path)) as store:
        store.create([queue("aaaaaaaaaa", "one")])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = Path(f"{path}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(Unknown, match="restart"):
                store.create([queue("bbbbbbbbbb", "two")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with pytest.raises(Refused, match=r"storage_unavailable.*restart"):
            store.create([queue("cccccccccc", "three")])
        assert store.broken
    with closing(CatalogFile(path)) as store:
        assert "one" in {one.name for one in store.load().queues}


CREATE_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from metadata.catalog import ANYBODY, GroupSettings, QueueSettings
from tests.catalogs import open_catalog

async def main():
    metadata = await open_catalog(Path(sys.argv[1]))
    for number in range(100_000):
        name = f"{sys.argv[2]}-{number}"
        queue, _ = await metadata.put_queue(ANYBODY, name, QueueSettings())
        await metadata.put_group(ANYBODY, queue, "g", GroupSettings())
        print("put", name, flush=True)
        if number % 3 == 0:
            await metadata.delete_queue(ANYBODY, name)
            print("deleted", name, flush=True)

asyncio.run(main())
"""


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """P1 for the catalog: durable before the answer."""
    there: set[str] = set()
    ever_in_doubt: set[str] = set()
    for cycle in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", CREATE_FOR_EVER, str(tmp_path), str(cycle)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(5 + 9 * cycle)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        asked_last = ""
        for line in filter(lambda line: line.endswith("\n"), lines):
            verb, name = line.split()
            (there.add if verb == "put" else there.discard)(name)
            asked_last = name
        with closing(CatalogFile(tmp_path / "catalog.sqlite")) as store:
            contents = store.load()
        found = {one.name for one in contents.queues}
        number = int(asked_last.split("-")[1])
        in_doubt = {asked_last, f"{cycle}-{number + 1}"}  # under way when it was killed
        assert found - in_doubt == there - in_doubt
        there = found
        ever_in_doubt |= in_doubt  # what lost its group in this kill stands without it in the next
        with_group = {one.queue_id for one in contents.groups}
        assert {q.name for q in contents.queues if q.queue_id not in with_group} <= ever_in_doubt
