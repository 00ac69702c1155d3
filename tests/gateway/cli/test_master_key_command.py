"""`tocsin admin master-key`, and what `verify` and `restore` say of sealed stores."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.broker import Broker
from gateway.config import Config
from gateway.encryption.master_key import LocalMasterKey, read_keys, replace_keys
from metadata.catalog import ANYBODY, QueueSettings
from push.places import Partition
from tests.contract.stores import append
from tests.gateway.conftest import never
from tests.gateway.stores.test_backup import run, serving

OLD, NEW = b"o" * 32, b"n" * 32
OLD_ID, NEW_ID = LocalMasterKey(OLD).key_id, LocalMasterKey(NEW).key_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The broker's key file."""
    replace_keys(tmp_path / "master.key", [OLD])
    return tmp_path / "master.key"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The broker's data folder."""
    return tmp_path / "data"


@pytest.fixture
async def broker(data_dir: Path, file: Path) -> AsyncIterator[Broker]:
    """A broker with two records in the queue `orders`."""
    async with serving(data_dir, master_key_file=file) as broker:
        queue, _ = await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
        for _ in range(2):
            await broker.storage.append([append(Partition(queue.queue_id, 0), messages=3)])
        yield broker


async def test_show_names_keys_and_shows_none(broker: Broker, data_dir: Path, file: Path) -> None:
    result = await run("master-key", "show", "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    first, count, line = result.stdout.splitlines()
    assert first == f"Master key {OLD_ID}, from {file}."
    assert count == "Data keys: 1."
    assert line.endswith("in use: 6 messages, 124 bytes")
    shown = json.loads((await run("master-key", "show", "--data-dir", data_dir, "--json")).stdout)
    assert (shown["from"], shown["data_keys"]) == ("file", 1)
    assert OLD.hex() not in result.output + str(shown)


async def test_rotate_makes_a_key_in_front_of_the_old_one(
    broker: Broker, data_dir: Path, file: Path
) -> None:
    result = await run("master-key", "rotate", "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    new, old = read_keys(file)
    assert old == OLD
    assert (
        f"The master key {LocalMasterKey(new).key_id} now encrypts 1 data key, instead of {OLD_ID}."
        in (result.output)
    )
    assert f"{file} has both" in result.output
    assert new.hex() not in result.output
    shown = (await run("master-key", "show", "--data-dir", data_dir)).output
    assert f"Former ones: {OLD_ID}." in shown


async def test_rotate_takes_a_key_from_a_file_or_the_environment(
    broker: Broker, data_dir: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate = ("master-key", "rotate", "--data-dir", data_dir)
    (tmp_path / "new").write_text(NEW.hex())
    result = await run(*rotate, "--new-key-file", tmp_path / "new", "--json")
    assert json.loads(result.stdout)["master_key_id"] == NEW_ID
    result = await run(*rotate, "--new-key-file", tmp_path / "none")
    assert (result.exit_code, "does not exist" in result.output) == (1, True)
    monkeypatch.setenv("TOCSIN_NEW_MASTER_KEY", OLD.hex())
    assert (await run(*rotate)).exit_code == 0
    assert read_keys(file) == [OLD, NEW]
    monkeypatch.setenv("TOCSIN_NEW_MASTER_KEY", "s3cret")
    result = await run(*rotate)
    assert (result.exit_code, "must be one key of 32 bytes" in result.output) == (1, True)
    assert "s3cret" not in result.output


async def test_a_key_from_the_environment_is_the_operators_to_put_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "env", master_key=(OLD,)):
        rotate = ("master-key", "rotate", "--data-dir", tmp_path / "env")
        result = await run(*rotate)
        assert "put it into TOCSIN_MASTER_KEY, before the old one" in result.output
        replace_keys(tmp_path / "new", [NEW])
        result = await run(*rotate, "--new-key-file", tmp_path / "new")
        assert "Before the next start, put the new key first" in result.output


async def test_without_encryption_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    async with serving(tmp_path / "plain", encryption=False):
        result = await run("master-key", "rotate", "--data-dir", tmp_path / "plain")
        assert (result.exit_code, "TOCSIN_ENCRYPTION is off" in result.output) == (1, True)


# --- Files at rest -------------------------------------------------------------------------------


async def test_verify_opens_what_is_sealed_where_it_has_the_key(
    broker: Broker, data_dir: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOCSIN_MASTER_KEY_FILE", raising=False)
    backup = tmp_path / "backup"
    assert (await run("backup", backup, "--data-dir", data_dir)).exit_code == 0
    result = await run("verify", backup)
    assert result.exit_code == 0
    assert f"2 records sealed, not opened, for lack of the master key {OLD_ID}" in result.output
    result = await run("verify", backup, "--master-key-file", file)
    assert (result.exit_code, "2 records sealed, opened" in result.output) == (0, True)
    replace_keys(tmp_path / "other", [NEW])
    result = await run("verify", backup, "--master-key-file", tmp_path / "other")
    assert (result.exit_code, "is another one" in result.output) == (1, True)
    monkeypatch.setenv("TOCSIN_MASTER_KEY", OLD.hex())
    verified = json.loads((await run("verify", backup, "--json")).stdout)
    assert (verified["opened"], verified["sealed"], verified["ok"]) == (True, 2, True)


async def test_verify_finds_what_only_the_key_can_tell(
    data_dir: Path, file: Path, broker: Broker, tmp_path: Path
) -> None:
    """Checksums fit, payloads do not: somebody exchanged them."""
    assert broker.keyring is not None
    sealer = broker.keyring.sealer
    place = Partition(broker.find_queue(ANYBODY, "orders").queue_id, 0)
    unbound = append(place, messages=1)

    def elsewhere(partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        return type(sealer).seal(sealer, partition._replace(number=9), header, payload, count)

    sealer.seal = elsewhere  # type: ignore[method-assign]
    await broker.storage.append([unbound])
    backup = tmp_path / "backup"
    assert (await run("backup", backup, "--data-dir", data_dir)).exit_code == 0
    assert (await run("verify", backup)).exit_code == 0
    result = await run("verify", backup, "--master-key-file", file)
    assert (result.exit_code, "1 payloads do not open" in result.output) == (1, True)


async def test_a_backup_of_before_a_rotation_is_restored_with_the_old_key(
    broker: Broker, data_dir: Path, file: Path, tmp_path: Path
) -> None:
    """P1: the file keeps it, and the start wraps the restored keys anew."""
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    assert (await run("backup", backup, "--data-dir", data_dir)).exit_code == 0
    assert (await run("master-key", "rotate", "--data-dir", data_dir)).exit_code == 0
    result = await run("restore", backup, "--data-dir", restored)
    assert f"Its messages need the master key {OLD_ID}." in result.output
    again = await Broker.open(Config(data_dir=restored, master_key_file=file), on_fatal=never)
    place = Partition(again.find_queue(ANYBODY, "orders").queue_id, 0)
    read = await again.storage.read(place, 0, 10**6)
    assert ([record.first for record in read.records], read.damage) == ([0, 3], ())
    assert again.keyring is not None
    assert again.keyring.describe()["master_key_id"] == LocalMasterKey(read_keys(file)[0]).key_id
    await again.stop()
