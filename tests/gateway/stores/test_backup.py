"""Backups: whole or refused, restored as a history of their own (R30)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.admin import client as admin
from gateway.admin.client import AdminError
from gateway.admin.server import AdminSocket
from gateway.broker import Broker
from gateway.cli.serve import admin as admin_command
from gateway.config import Config
from gateway.stores import restore as restoring
from gateway.stores.backup import (
    FILES,
    FORMAT,
    MANIFEST_FILE,
    BackupError,
    Manifest,
    file_entries,
    read_manifest,
    write_manifest,
)
from metadata.catalog import ANYBODY, GroupSettings, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.tokens import TokenRecord
from push.errors import Refused
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import append
from tests.gateway.conftest import never


def nothing(_what: str, _done: int, _total: int) -> None:
    """Nobody looks at how far it has come."""


async def opened(data_dir: Path, **settings: Any) -> Broker:
    """The whole broker on this data folder."""
    return await Broker.open(Config(data_dir=data_dir, **settings), on_fatal=never)


@contextlib.asynccontextmanager
async def serving(data_dir: Path, **settings: Any) -> AsyncIterator[Broker]:
    """A broker with its admin socket."""
    broker = await opened(data_dir, **settings)
    socket = AdminSocket(data_dir, broker)
    await socket.start()
    try:
        yield broker
    finally:
        await socket.stop()
        await broker.stop()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker on `data`, with the queue `orders` and its group `billing`."""
    async with serving(tmp_path / "data") as broker:
        queue, _ = await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=2))
        await broker.put_group(ANYBODY, queue, "billing", GroupSettings(), None)
        yield broker


async def run(*arguments: object) -> Result:
    """A command, in a thread: the socket is answered by this loop."""
    invoke: Callable[..., Result] = CliRunner().invoke
    return await asyncio.to_thread(invoke, admin_command, [str(one) for one in arguments])


@pytest.fixture
async def backup(broker: Broker, tmp_path: Path) -> Path:
    """A finished backup of it."""
    folder = tmp_path / "backup"
    result = await run("backup", folder, "--data-dir", tmp_path / "data")
    assert result.exit_code == 0, result.output
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}


# --- Making --------------------------------------------------------------------------------------


async def test_a_backup_is_sound_and_for_its_owner_alone(backup: Path, broker: Broker) -> None:
    """P11: it holds the broker's secrets."""
    assert names(backup) == {MANIFEST_FILE, *FILES}
    assert modes(backup) == {0o700, 0o600}
    manifest = read_manifest(backup)
    assert manifest.incarnation == await broker.storage.incarnation()
    assert manifest.began_unix_ms <= manifest.ended_unix_ms
    result = await run("verify", backup, "--json")
    verified = json.loads(result.stdout)
    assert (result.exit_code, verified["ok"], verified["findings"]) == (0, True, [])
    assert verified["rows"]["queues"] == 1


async def test_a_backup_says_what_it_has_made_to_people_and_to_machines(
    broker: Broker, tmp_path: Path
) -> None:
    told = await run("backup", tmp_path / "one", "--data-dir", tmp_path / "data")
    assert told.stdout.startswith("Backed up ")
    told = await run("backup", tmp_path / "two", "--data-dir", tmp_path / "data", "--json")
    assert set(json.loads(told.stdout)["files"]) == set(FILES)


async def test_a_backup_goes_into_an_empty_folder_only(backup: Path, tmp_path: Path) -> None:
    before = contents(backup)
    result = await run("backup", backup, "--data-dir", tmp_path / "data")
    assert (result.exit_code, "not an empty folder" in result.output) == (1, True)
    assert contents(backup) == before
    (tmp_path / "file").write_text("mine")
    assert (await run("backup", tmp_path / "file", "--data-dir", tmp_path / "data")).exit_code == 1
    nowhere = tmp_path / "no" / "where"
    result = await run("backup", nowhere, "--data-dir", tmp_path / "data")
    assert (result.exit_code, f"{nowhere.parent} does not exist" in result.output) == (1, True)
    (tmp_path / "empty").mkdir()
    assert (await run("backup", tmp_path / "empty", "--data-dir", tmp_path / "data")).exit_code == 0


async def test_a_relative_path_is_refused_by_the_broker(broker: Broker, tmp_path: Path) -> None:
    """Relative to what? The command's folder is not the broker's."""
    with pytest.raises(AdminError, match="must be absolute"):
        await asyncio.to_thread(
            admin._ask, tmp_path / "data", "POST", "/backup", {"folder": "backup"}
        )


async def test_without_a_broker_there_is_no_backup(tmp_path: Path) -> None:
    result = await run("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
    assert (result.exit_code, "No broker runs" in result.output) == (1, True)
    assert not (tmp_path / "backup").exists()


async def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", free_bytes_reserve=1 << 60):
        result = await run("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
        assert (result.exit_code, "storage_full" in result.output) == (1, True)
        assert not (tmp_path / "backup").exists()


async def large(broker: Broker, store_bytes: int = 40_000_000) -> None:
    """Give it so much to copy that there is something to break off."""
    queue = broker.find_queue(ANYBODY, "orders")
    partition = (await broker.storage.partitions(queue.queue_id))[0].partition
    for _ in range(0, store_bytes, 1_000_000):
        await broker.storage.append([append(partition, messages=1, size=1_000_000)])


async def test_one_backup_at_a_time_and_a_cancelled_one_leaves_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    await large(broker)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(_what: str, _done: int, _total: int) -> None:
        loop.call_soon_threadsafe(begun.set)

    first = asyncio.ensure_future(broker.backup(tmp_path / "backup", note))
    await begun.wait()
    second = await run("backup", tmp_path / "second", "--data-dir", tmp_path / "data")
    assert "another backup is under way" in second.output
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "second").exists()
    assert (await run("backup", tmp_path / "third", "--data-dir", tmp_path / "data")).exit_code == 0


async def test_a_broker_that_stops_breaks_a_backup_off(tmp_path: Path) -> None:
    """P14: it does not wait for it."""
    broker = await opened(tmp_path / "data")
    await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=2))
    await large(broker)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(_what: str, _done: int, _total: int) -> None:
        loop.call_soon_threadsafe(begun.set)

    backup = asyncio.ensure_future(broker.backup(tmp_path / "backup", note))
    await begun.wait()
    await broker.stop()
    with pytest.raises(asyncio.CancelledError):
        await backup
    assert not (tmp_path / "backup").exists()


# --- Damage --------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(bytes(data))


def is_refused(backup: Path, target: Path) -> str:
    """Why a restore is refused; it leaves nothing."""
    with pytest.raises(BackupError) as caught:
        restoring.restore(backup, target, nothing)
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", [MANIFEST_FILE, *FILES])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 0.999])
async def test_a_flipped_bit_is_found_and_not_restored(
    backup: Path, tmp_path: Path, name: str, place: float
) -> None:
    """P13."""
    path = backup / name
    flip(path, int(path.stat().st_size * place))
    result = await run("verify", backup)
    assert (result.exit_code, "Damaged: " in result.output) == (1, True), result.output
    assert not (await run("verify", backup, "--json")).output.startswith('{"ok":true')
    assert "damaged" in is_refused(backup, tmp_path / "restored")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut off", "longer", "gone"])
async def test_a_file_that_is_not_as_long_as_it_was_is_found(
    backup: Path, tmp_path: Path, name: str, change: str
) -> None:
    path = backup / name
    data = path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if change == "cut off" else data + b"\0")
    verified = await run("verify", backup)
    assert (verified.exit_code, name in verified.stdout) == (1, True)
    assert name in is_refused(backup, tmp_path / "restored")


async def test_a_backup_without_a_manifest_was_not_finished(backup: Path, tmp_path: Path) -> None:
    """As after a kill in its middle: the manifest is what is written last."""
    (backup / MANIFEST_FILE).unlink()
    assert "not finished" in is_refused(backup, tmp_path / "restored")
    result = await run("verify", backup)
    assert (result.exit_code, "not finished" in result.output) == (1, True)


async def test_no_broker_starts_on_a_backup_itself(backup: Path) -> None:
    """R30: under the generations of the history that went on, receipts, positions and effects of
    that one would mean other messages here."""
    before = contents(backup)
    with pytest.raises(Refused, match=f"tocsin admin restore {backup}"):
        await opened(backup)
    assert contents(backup) == before


async def test_what_is_no_backup_is_told(tmp_path: Path) -> None:
    assert "is not a backup" in is_refused(tmp_path, tmp_path / "restored")
    result = await run("verify", tmp_path)
    assert (result.exit_code, "neither a backup nor a data folder" in result.output) == (1, True)


async def test_a_backup_of_a_newer_program_is_refused(backup: Path, tmp_path: Path) -> None:
    """R4."""
    manifest = read_manifest(backup)
    (backup / MANIFEST_FILE).unlink()
    write_manifest(backup, msgspec.structs.replace(manifest, format=FORMAT + 1))
    assert "a newer version of Tocsin" in is_refused(backup, tmp_path / "restored")


async def test_damage_that_was_backed_up_is_found_in_the_rows(
    broker: Broker, tmp_path: Path
) -> None:
    """The manifest's checksums fit: it is the store that was damaged before."""
    queue = broker.find_queue(ANYBODY, "orders")
    partition = (await broker.storage.partitions(queue.queue_id))[0].partition
    await broker.storage.append([append(partition, messages=1)])
    assert isinstance(broker.storage, SqliteStorage)
    opened = broker.storage._connections
    await broker.storage._writer.submit(
        lambda: opened.writer.execute("UPDATE record SET payload = x'00'") and None
    )
    await run("backup", tmp_path / "backup", "--data-dir", tmp_path / "data")
    result = await run("verify", tmp_path / "backup", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["damaged"] == {"record": 1}


# --- Restoring -----------------------------------------------------------------------------------


async def test_a_restore_needs_a_folder_of_its_own(backup: Path, tmp_path: Path) -> None:
    """P12: what is there stays as it was, and nothing is added."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    with pytest.raises(BackupError, match=r"is not empty \(mine\)"):
        restoring.restore(backup, target, nothing)
    assert names(target) == {"mine"}
    (target / "mine").unlink()
    restoring.restore(backup, target, nothing)
    with pytest.raises(BackupError, match="is not empty"):
        restoring.restore(backup, target, nothing)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(BackupError, match="cannot be used"):
        restoring.restore(backup, file, nothing)
    assert file.read_text() == "mine"


async def test_a_running_brokers_folder_is_neither_restored_into_nor_verified(
    backup: Path, broker: Broker, tmp_path: Path
) -> None:
    before = names(tmp_path / "data")
    for arguments in (("restore", backup, "--data-dir"), ("verify",)):
        result = await run(*arguments, tmp_path / "data")
        assert (result.exit_code, "in use by another process" in result.output) == (1, True)
    assert names(tmp_path / "data") == before
    assert (await broker.storage.state()).writable


async def test_a_restored_folder_opens_with_what_was_there(backup: Path, tmp_path: Path) -> None:
    result = await run("restore", backup, "--data-dir", tmp_path / "restored", "--json")
    restored = json.loads(result.stdout)
    assert (result.exit_code, restored["queues"], restored["damaged"]) == (0, 1, 0)
    assert restored["incarnation"] != restored["incarnation_before"]
    assert (await run("verify", tmp_path / "restored")).exit_code == 0
    broker = await opened(tmp_path / "restored")
    described = await broker.describe_queue(ANYBODY, "orders")
    assert "'name': 'billing'" in str(described["groups"])
    assert await broker.storage.incarnation() == restored["incarnation"]
    await broker.stop()
    assert (await run("verify", tmp_path / "restored")).exit_code == 0


async def test_whom_a_restored_folder_lets_in_again_is_said(broker: Broker, tmp_path: Path) -> None:
    """A token that was revoked since the backup is good again: nobody may find that out later."""
    made = {"token_id": "abcdefgh", "kind": "token", "name": "billing", "tenant": "default"}
    record = msgspec.convert(
        {**made, "rights": ["read:x"], "created_unix_ms": 1, "digest": b"x" * 32}, TokenRecord
    )
    await broker.metadata.tokens.create(record)
    backup = tmp_path / "backup"
    assert (await run("backup", backup, "--data-dir", tmp_path / "data")).exit_code == 0
    await broker.metadata.tokens.revoke("abcdefgh")
    result = await run("restore", backup, "--data-dir", tmp_path / "restored")
    assert result.exit_code == 0
    assert "Restored 1 queue to" in result.output
    assert "has the 1 token of the backup. Revoke anew those" in result.output
    again = await opened(tmp_path / "restored")
    assert again.metadata.tokens.find("abcdefgh") is not None
    await again.stop()


async def test_restored_twice_it_is_two_histories(backup: Path, tmp_path: Path) -> None:
    """R2, R30: neither takes the other's receipts and positions for its own."""
    incarnations, generations = set(), set()
    for name in ("one", "two"):
        incarnations.add(restoring.restore(backup, tmp_path / name, nothing).incarnation)
        broker = await opened(tmp_path / name)
        queue = broker.find_queue(ANYBODY, "orders")
        states = await broker.storage.partitions(queue.queue_id)
        generations |= {state.generation for state in states}
        await broker.stop()
    assert len(incarnations) == 2
    assert len(generations) == 2
    assert min(generations) > 1


async def test_half_a_restore_is_refused_by_the_broker(backup: Path, tmp_path: Path) -> None:
    """As after a kill in its middle: the catalog gets its name last."""
    restoring.restore(backup, tmp_path / "restored", nothing)
    catalog = tmp_path / "restored" / "catalog.sqlite"
    catalog.rename(catalog.with_name("catalog.sqlite.restoring"))
    with pytest.raises(Exception, match="but no catalog"):
        await opened(tmp_path / "restored")


async def test_what_came_and_went_between_the_two_copies_is_settled_after_the_catalog(
    broker: Broker, tmp_path: Path
) -> None:
    """R1, R12: the catalog is copied later. A queue that it has is there, one that it has no more
    is not, and neither keeps anything for ever."""
    folder = tmp_path / "backup"
    folder.mkdir()
    assert isinstance(broker.storage, SqliteStorage)
    assert isinstance(broker.metadata.inner, CatalogService)
    orders = broker.find_queue(ANYBODY, "orders")
    old, _ = await broker.create_queue(ANYBODY, "old", QueueSettings(partitions=1))
    await broker.put_group(ANYBODY, orders, "old", GroupSettings(), None)
    await broker.storage.copy_to(folder / "store.sqlite", lambda _done, _total: None)
    await broker.delete_queue(ANYBODY, "old")
    await broker.delete_group(ANYBODY, orders, "old")
    new, _ = await broker.create_queue(ANYBODY, "new", QueueSettings(partitions=3))
    await broker.put_group(ANYBODY, orders, "new", GroupSettings(), None)
    await broker.metadata.inner.copy_to(folder / "catalog.sqlite")
    files = file_entries(folder, nothing, "")
    incarnation = await broker.storage.incarnation()
    manifest = Manifest(
        format=FORMAT, incarnation=incarnation, began_unix_ms=1, ended_unix_ms=2, sqlite="3",
        files=files,
    )  # fmt: skip
    write_manifest(folder, manifest)
    assert restoring.verify(folder, nothing).findings == []
    restoring.restore(folder, tmp_path / "restored", nothing)
    restored = await opened(tmp_path / "restored")
    assert [queue.name for queue in restored.metadata.list_queues(ANYBODY)] == ["new", "orders"]
    states = await restored.storage.partitions(new.queue_id)
    assert [state.generation > 1 for state in states] == [True] * 3
    assert await restored.storage.partitions(old.queue_id) == []
    groups = restored.metadata.list_groups(ANYBODY, orders)
    assert [group.name for group in groups] == ["billing", "new"]
    assert restored.metadata.dropped() == []
    await restored.stop()
    verified = restoring.verify(tmp_path / "restored", nothing)
    assert verified.findings == []
    assert verified.rows["cursor"] == 2 * 2, "those of the group that was deleted are gone"


async def test_two_files_that_do_not_belong_together_are_found(
    backup: Path, tmp_path: Path
) -> None:
    """P13: each of them is sound."""
    async with serving(tmp_path / "other") as other:
        await other.create_queue(ANYBODY, "cats", QueueSettings(partitions=1))
        result = await run("backup", tmp_path / "second", "--data-dir", tmp_path / "other")
        assert result.exit_code == 0, result.output
    (backup / "store.sqlite").write_bytes((tmp_path / "second" / "store.sqlite").read_bytes())
    manifest = read_manifest(backup)
    (backup / MANIFEST_FILE).unlink()
    files = file_entries(backup, nothing, "")
    write_manifest(backup, msgspec.structs.replace(manifest, files=files))
    findings = restoring.verify(backup, nothing).findings
    assert len(findings) == 3, findings
    assert "never knew" in is_refused(backup, tmp_path / "restored")
