"""The keys of a broker: durable before they are used, wrapped anew as a whole, never guessed."""

import asyncio
import base64
import logging
import os
import stat
import sys
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.broker import Broker
from gateway.config import Config
from gateway.encryption import keyring as keyrings
from gateway.encryption.keyring import Keyring
from gateway.encryption.master_key import (
    LocalMasterKey,
    generate,
    parse_new_key,
    read_keys,
    replace_keys,
)
from gateway.stores.open import open_keyring
from metadata.catalog import ANYBODY, QueueSettings
from metadata.data_keys import DataKey, DataKeys, Still
from metadata.sqlite.catalog import SqliteCatalog
from push import limits
from push.errors import Refused, Unknown
from push.places import Partition
from push.record import RecordDamaged
from tests.catalogs import open_catalog
from tests.contract.stores import P0, append
from tests.gateway.conftest import never

OLD, NEW = b"o" * 32, b"n" * 32
HEADER, PAYLOAD = append(messages=1).header, b'{"body":1}'


def master_id(key: bytes) -> str:
    """The name of a master key."""
    return LocalMasterKey(key).key_id


class Catalog:
    """Data keys in memory, as the catalog keeps them; `before` is called before each writing."""

    def __init__(self) -> None:
        self.rows: dict[bytes, DataKey] = {}
        self.writes = 0
        self.before: Callable[[], Awaitable[None]] | None = None

    def open(self) -> DataKeys:
        """As a start reads them."""
        return DataKeys(list(self.rows.values()), self._write)

    async def _write(self, rows: list[DataKey], still: Still) -> None:
        if self.before is not None:
            await self.before()
        self.writes += 1
        self.rows |= {row.key_id: row for row in rows}

    @property
    def masters(self) -> set[str]:
        """Which master keys wrap them."""
        return {row.master_key_id for row in self.rows.values()}


@pytest.fixture
def catalog() -> Catalog:
    """Without keys."""
    return Catalog()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key file with OLD in it."""
    path = tmp_path / "master.key"
    replace_keys(path, [OLD])
    return path


async def opened(catalog: Catalog, **settings: Any) -> Keyring:
    """The keys of this catalog."""
    ring = await open_keyring(Config(data_dir=Path(), **settings), catalog.open())
    assert ring is not None
    return ring


# --- The key file --------------------------------------------------------------------------------


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "tocsin" / "master.key"
    assert generate(path)
    (key,) = read_keys(path)
    assert len(key) == 32
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
    assert not generate(path)
    assert read_keys(path) == [key]
    assert [one.name for one in path.parent.iterdir()] == ["master.key"]


def test_who_is_faster_makes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers start at once: neither takes the other's key away."""
    path = tmp_path / "master.key"
    link = os.link

    def slow(source: Any, target: Any) -> None:
        replace_keys(path, [OLD])
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    assert not generate(path)
    assert read_keys(path) == [OLD]


def test_keys_are_read_as_hex_or_base64_with_remarks(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text(f"# ours\n\n{NEW.hex()}\n {base64.b64encode(OLD).decode()} \n")
    assert read_keys(path) == [NEW, OLD]
    path.write_text(f"\ufeff{NEW.hex()}\n")  # as some editors begin a file
    assert read_keys(path) == [NEW]
    assert parse_new_key(NEW.hex().upper() + "\n") == NEW
    assert parse_new_key(base64.urlsafe_b64encode(b"\xff" * 32).decode()) == b"\xff" * 32


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        (b"", "has no key in it"),
        (b"s3cret", "is damaged: each line"),
        (b"\xff" * 70_000, "too large"),
    ],
)
def test_a_key_file_that_is_none_says_so_without_its_content(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "k"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=sentence) as told:
        read_keys(path)
    assert "s3cret" not in str(told.value)
    with pytest.raises(Refused) as told:
        parse_new_key("s3cret")
    assert "s3cret" not in str(told.value)


# --- A start -------------------------------------------------------------------------------------


async def test_each_start_seals_under_a_key_of_its_own_and_reads_all_of_them(
    catalog: Catalog, file: Path
) -> None:
    sealed = []
    for _ in range(3):
        ring = await opened(catalog, master_key_file=file)
        sealed.append(ring.sealer.seal(P0, HEADER, PAYLOAD, 1))
        assert [ring.sealer.unseal(P0, HEADER, one) for one in sealed] == [PAYLOAD] * len(sealed)
        await ring.close()
    assert len({one[1:9] for one in sealed}) == len(catalog.rows) == 3


async def test_a_data_key_is_durable_before_it_seals(catalog: Catalog, file: Path) -> None:
    """A crash leaves no payload whose key nobody has: at a start and at a successor's."""
    ring: Keyring | None = None
    seen: list[object] = []

    async def before() -> None:
        sealer = ring.sealer if ring is not None else None
        seen.append(sealer.successor if sealer is not None else None)

    catalog.before = before
    ring = await opened(catalog, master_key_file=file)
    sealer = ring.sealer
    assert sealer.current is not None
    assert sealer.current.key_id in catalog.rows
    sealer.current.messages = limits.DATA_KEY_MESSAGES_MAX - 1
    sealer.seal(P0, HEADER, PAYLOAD, 1)
    while sealer.successor is None:  # noqa: ASYNC110 - a thread makes it
        await asyncio.sleep(0)
    assert sealer.successor.key_id in catalog.rows
    assert seen == [None, None]
    assert sealer.seal(P0, HEADER, PAYLOAD, 1)[1:9] in catalog.rows
    await ring.close()


async def test_a_catalog_that_does_not_answer_holds_nothing_up_and_is_asked_again(
    catalog: Catalog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last eighth of a key is hours of work: meanwhile it seals on."""
    monkeypatch.setattr(keyrings, "RETRY_S", (0.0, 0.0))
    ring = await opened(catalog, master_key_file=file)
    failures = iter([Refused("storage_unavailable", "busy"), OSError("down")])

    async def before() -> None:
        for failure in failures:
            raise failure

    catalog.before = before
    current = ring.sealer.current
    assert current is not None
    current.messages = limits.DATA_KEY_MESSAGES_MAX - 100
    ring.sealer.seal(P0, HEADER, PAYLOAD, 1)
    while ring.sealer.successor is None:
        assert ring.sealer.seal(P0, HEADER, PAYLOAD, 0)[1:9] == current.key_id
        await asyncio.sleep(0)
    assert len(catalog.rows) == 2
    await ring.close()


@pytest.mark.looptime
async def test_the_successor_of_a_day_is_made_before_the_day_is_over(
    catalog: Catalog, file: Path
) -> None:
    """Also where nothing was published all day."""
    ring = await opened(catalog, master_key_file=file)
    await asyncio.sleep(limits.DATA_KEY_S_MAX * 7 / 8 - 1)
    assert len(catalog.rows) == 1
    await asyncio.sleep(3600)
    assert len(catalog.rows) == 2
    assert ring.sealer.successor is not None
    await ring.close()


async def test_nothing_is_made_where_encryption_is_off(catalog: Catalog, tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path, encryption=False, master_key_file=tmp_path / "none")
    assert await open_keyring(config, catalog.open()) is None


async def test_what_was_sealed_is_read_when_encryption_is_off_and_needs_its_key(
    catalog: Catalog, file: Path
) -> None:
    sealed = (await opened(catalog, master_key_file=file)).sealer.seal(P0, HEADER, PAYLOAD, 1)
    ring = await opened(catalog, master_key_file=file, encryption=False)
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    assert ring.sealer.seal(P0, HEADER, PAYLOAD, 1) == PAYLOAD
    assert len(catalog.rows) == 1
    os.unlink(file)
    with pytest.raises(Refused, match="does not exist"):
        await opened(catalog, master_key_file=file, encryption=False)


async def test_a_wrong_master_key_is_refused_and_changes_nothing(
    catalog: Catalog, file: Path
) -> None:
    """P13: not a store of which every record is taken for damaged."""
    await (await opened(catalog, master_key_file=file)).close()
    rows = dict(catalog.rows)
    with pytest.raises(Refused, match=f"{master_id(OLD)}, but TOCSIN_MASTER_KEY .*another one"):
        await opened(catalog, master_key=(NEW,))
    forged = {
        key_id: DataKey(
            key_id=key_id, master_key_id=master_id(NEW), created_unix_ms=1, wrapped=row.wrapped
        )
        for key_id, row in rows.items()
    }
    catalog.rows = forged  # it says NEW, and is not
    with pytest.raises(Refused, match="another one"):
        await opened(catalog, master_key=(NEW,))
    assert catalog.rows == forged


async def test_a_master_key_is_never_made_where_one_was(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The generated key was lost: the start says so, and leaves the place empty for it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "tocsin" / "master.key"
    with caplog.at_level(logging.WARNING):
        await (await opened(catalog)).close()
    assert f"A master key was made in {path}. Without this file" in caplog.text
    assert read_keys(path)[0].hex() not in caplog.text
    caplog.clear()
    await (await opened(catalog)).close()
    assert f"The master key is in {path}" in caplog.text
    path.unlink()
    with pytest.raises(Refused, match=r"does not exist\. Put the file back"):
        await opened(catalog)
    assert not path.exists()


async def test_a_master_key_that_others_may_read_is_reported(
    catalog: Catalog, file: Path, caplog: Any
) -> None:
    os.chmod(file, 0o640)
    await (await opened(catalog, master_key_file=file)).close()
    assert "other users can read the master key" in caplog.text


# --- Rotation ------------------------------------------------------------------------------------


async def test_a_rotation_wraps_all_keys_at_once_and_everything_opens(
    catalog: Catalog, file: Path
) -> None:
    for _ in range(3):
        ring = await opened(catalog, master_key_file=file)
    sealed = ring.sealer.seal(P0, HEADER, PAYLOAD, 1)
    writes, wrapped = catalog.writes, {row.wrapped for row in catalog.rows.values()}
    rotated = await ring.rotate(None)
    new, old = read_keys(file)
    assert (old, rotated.file, rotated.data_keys) == (OLD, str(file), 3)
    assert (rotated.master_key_id, rotated.master_key_id_before) == (master_id(new), master_id(OLD))
    assert catalog.writes == writes + 1
    assert catalog.masters == {master_id(new)}
    assert not wrapped & {row.wrapped for row in catalog.rows.values()}
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    replace_keys(file, [new])
    ring = await opened(catalog, master_key_file=file)
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    with pytest.raises(Refused):
        await opened(catalog, master_key=(OLD,))


class Died(BaseException):
    """The process, at this moment."""


@pytest.mark.parametrize("moment", ["before the file", "before the catalog", "after the catalog"])
async def test_whenever_the_process_dies_a_rotation_leaves_a_store_that_starts(
    catalog: Catalog, file: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: and the start finishes what was begun."""
    ring = await opened(catalog, master_key_file=file)
    sealed = ring.sealer.seal(P0, HEADER, PAYLOAD, 1)

    def dies(*_: object) -> None:
        raise Died

    async def dies_soon() -> None:
        raise Died

    if moment == "before the file":
        monkeypatch.setattr(Path, "replace", dies)
    elif moment == "before the catalog":
        catalog.before = dies_soon
    else:
        write = DataKeys.put

        async def put(self: DataKeys, rows: Any, *still: Any) -> None:
            await write(self, rows, *still)
            raise Died

        monkeypatch.setattr(DataKeys, "put", put)
    with pytest.raises(Died):
        await ring._rotate(NEW)
    monkeypatch.undo()
    catalog.before = None
    expected = OLD if moment == "before the file" else NEW
    assert catalog.masters == {master_id(NEW if moment == "after the catalog" else OLD)}
    ring = await opened(catalog, master_key_file=file)
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    assert catalog.masters == {master_id(expected)}
    await ring.rotate(None)
    assert OLD in read_keys(file)


async def test_a_rotation_that_the_catalog_refuses_leaves_the_old_key_in_use(
    catalog: Catalog, file: Path
) -> None:
    ring = await opened(catalog, master_key_file=file)
    sealed = ring.sealer.seal(P0, HEADER, PAYLOAD, 1)

    async def before() -> None:
        raise Refused("storage_unavailable", "the disk is full")

    catalog.before = before
    with pytest.raises(Refused, match="disk is full"):
        await ring.rotate(NEW)
    assert catalog.masters == {master_id(OLD)}
    assert ring.describe()["master_key_id"] == master_id(OLD)
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    catalog.before = None
    assert (await ring.rotate(NEW)).master_key_id == master_id(NEW)
    assert read_keys(file) == [NEW, OLD]


async def test_rotations_go_one_after_another_and_to_their_end(
    catalog: Catalog, file: Path
) -> None:
    """Two at once, one of which nobody waits for any more: the file has every key there was."""
    ring = await opened(catalog, master_key_file=file)
    first = asyncio.create_task(ring.rotate(None))
    second = asyncio.create_task(ring.rotate(NEW))
    await asyncio.sleep(0)
    first.cancel()
    await second
    keys = read_keys(file)
    assert (len(keys), keys[0], keys[2]) == (3, NEW, OLD)
    assert catalog.masters == {master_id(NEW)}
    await ring.close()


async def test_a_key_from_the_environment_is_rotated_by_giving_the_new_one(
    catalog: Catalog,
) -> None:
    ring = await opened(catalog, master_key=(OLD,))
    sealed = ring.sealer.seal(P0, HEADER, PAYLOAD, 1)
    with pytest.raises(Refused, match="Name a file with the new key"):
        await ring.rotate(None)
    with pytest.raises(Refused, match="is already in use"):
        await ring.rotate(OLD)
    assert (await ring.rotate(NEW)).file is None
    with pytest.raises(Refused, match="another one"):
        await opened(catalog, master_key=(OLD,))
    ring = await opened(catalog, master_key=(NEW,))
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD


async def test_a_start_with_a_new_key_before_the_old_one_rotates(catalog: Catalog) -> None:
    """Also how an older backup is opened: its key stands behind the one in use."""
    sealed = (await opened(catalog, master_key=(OLD,))).sealer.seal(P0, HEADER, PAYLOAD, 1)
    ring = await opened(catalog, master_key=(NEW, OLD))
    assert catalog.masters == {master_id(NEW)}
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD


async def test_a_key_file_that_was_exchanged_is_not_written_over(
    catalog: Catalog, file: Path
) -> None:
    ring = await opened(catalog, master_key_file=file)
    replace_keys(file, [NEW])
    with pytest.raises(Refused, match="put it back first"):
        await ring.rotate(None)
    assert (read_keys(file), catalog.masters) == ([NEW], {master_id(OLD)})


async def test_a_key_file_that_cannot_be_written_is_reported(
    catalog: Catalog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = await opened(catalog, master_key_file=file)

    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(
        Refused, match=r"cannot be written \(Permission denied\), so the master key was not"
    ):
        await ring.rotate(None)
    assert (read_keys(file), catalog.masters) == ([OLD], {master_id(OLD)})
    assert [one.name for one in file.parent.iterdir()] == [file.name]


async def test_what_is_shown_of_the_keys_has_no_key(catalog: Catalog, file: Path) -> None:
    ring = await opened(catalog, master_key_file=file)
    ring.sealer.seal(P0, HEADER, PAYLOAD, 7)
    await ring.rotate(NEW)
    shown = ring.describe()
    assert (shown["master_key_id"], shown["former_master_key_ids"]) == (
        master_id(NEW), [master_id(OLD)],
    )  # fmt: skip
    assert (shown["sealed_messages"], shown["sealed_bytes"]) == (7, len(PAYLOAD))
    assert (shown["data_keys"], shown["encryption"], shown["from"]) == (1, True, "file")
    assert NEW.hex() not in str(shown)


# --- A key management service --------------------------------------------------------------------


class Service:
    """A key management service with versions of a key."""

    def __init__(self) -> None:
        self.versions = [b"v" * 32]
        self.is_down = False
        self.is_strict = False
        """An object knows no version that is newer than itself."""

    def key(self) -> "ServiceKey":
        """The factory."""
        return ServiceKey(self, len(self.versions))


class ServiceKey:
    """Its newest version, which opens what earlier ones wrapped."""

    def __init__(self, service: Service, version: int) -> None:
        self._service = service
        self._version = version
        self.key_id = f"kms/ours/{version}"

    def wrap(self, plain: bytes, aad: bytes) -> bytes:
        """Implement MasterKey.wrap."""
        return LocalMasterKey(self._service.versions[-1]).wrap(plain, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Implement MasterKey.unwrap."""
        if self._service.is_down:
            raise ConnectionError("no route to the service")
        known = self._version if self._service.is_strict else None
        for version in self._service.versions[:known]:
            try:
                return LocalMasterKey(version).unwrap(wrapped, aad)
            except ValueError:
                continue
        raise ValueError("not ours")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """Importable as `our_kms`."""
    made = Service()
    module = types.ModuleType("our_kms")
    module.key, module.broken = made.key, lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "our_kms", module)
    return made


async def test_a_service_wraps_the_data_keys_and_rotates(
    catalog: Catalog, service: Service
) -> None:
    ring = await opened(catalog, master_key_provider="our_kms:key")
    sealed = ring.sealer.seal(P0, HEADER, PAYLOAD, 1)
    assert catalog.masters == {"kms/ours/1"}
    service.versions.append(b"w" * 32)
    assert (await ring.rotate(None)).master_key_id == "kms/ours/2"
    assert catalog.masters == {"kms/ours/2"}
    with pytest.raises(Refused, match="comes from TOCSIN_MASTER_KEY_PROVIDER"):
        await ring.rotate(NEW)
    service.versions.append(b"x" * 32)
    ring = await opened(catalog, master_key_provider="our_kms:key")
    assert catalog.masters == {"kms/ours/3"}
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD


async def test_a_service_that_is_down_damages_nothing(catalog: Catalog, service: Service) -> None:
    """P13: what cannot be opened at the moment is refused, and not put aside."""
    first = await opened(catalog, master_key_provider="our_kms:key")
    sealed = first.sealer.seal(P0, HEADER, PAYLOAD, 1)
    ring = await opened(catalog, master_key_provider="our_kms:key")
    service.is_down = True
    with pytest.raises(Refused, match=r"its provider failed \(ConnectionError"):
        ring.sealer.unseal(P0, HEADER, sealed)
    with pytest.raises(Refused, match="no route to the service"):
        await opened(catalog, master_key_provider="our_kms:key")
    service.is_down = False
    assert ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    with pytest.raises(RecordDamaged, match="not known"):
        ring.sealer.unseal(P0, HEADER, b"\x01" + b"?" * 8 + sealed[9:])


@pytest.mark.parametrize("kind", ["file", "provider"])
async def test_what_another_thread_opens_in_the_middle_of_a_rotation_is_not_damaged(
    catalog: Catalog, file: Path, service: Service, kind: str
) -> None:
    """P13: the rows are the new master key's already, and the rotation has not gone on yet."""
    by_file, by_service = {"master_key_file": file}, {"master_key_provider": "our_kms:key"}
    settings: dict[str, Any] = dict(by_file) if kind == "file" else dict(by_service)
    before = await opened(catalog, **settings)
    sealed = before.sealer.seal(P0, HEADER, PAYLOAD, 1)
    ring = await opened(catalog, **settings)  # which has not opened the key of before
    put = ring._data_keys.put
    read: list[bytes] = []

    async def put_and_look(rows: list[DataKey], *still: Still) -> None:
        await put(rows, *still)
        service.is_strict = True
        read.append(await asyncio.to_thread(ring.sealer.unseal, P0, HEADER, sealed))

    ring._data_keys.put = put_and_look  # type: ignore[assignment, method-assign]
    service.versions.append(b"w" * 32)
    await ring.rotate(None)
    assert read == [PAYLOAD]


@pytest.mark.parametrize("name", ["no_such_kms:key", "our_kms:nothing", "our_kms:broken"])
async def test_a_provider_that_is_none_stops_the_start_with_a_sentence(
    catalog: Catalog, service: Service, name: str
) -> None:
    with pytest.raises(Refused, match=f"cannot be had from TOCSIN_MASTER_KEY_PROVIDER={name}"):
        await opened(catalog, master_key_provider=name)


# --- The catalog ---------------------------------------------------------------------------------


async def test_data_keys_outlive_a_restart_of_the_catalog(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path / "data", master_key=(OLD,))
    broker = await Broker.open(config, on_fatal=never)
    queue, _ = await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    place = Partition(queue.queue_id, 0)
    await broker.storage.append([append(place, messages=1)])
    assert broker.keyring is not None
    await broker.keyring.rotate(NEW)
    await broker.storage.append([append(place, messages=1)])
    await broker.stop()
    with pytest.raises(Refused, match="is another one"):
        await Broker.open(config, on_fatal=never)
    broker = await Broker.open(
        Config(data_dir=tmp_path / "data", master_key=(NEW,)), on_fatal=never
    )
    read = await broker.storage.read(place, 0, 10**6)
    assert (len(read.records), read.damage) == (2, ())
    await broker.stop()


async def test_a_data_key_whose_commit_is_unknown_is_not_used(tmp_path: Path) -> None:
    """R31: the process ends; nothing was sealed under it."""
    fatal: list[str] = []
    metadata = await open_catalog(tmp_path, on_fatal=fatal.append)

    def fails(_rows: object) -> None:
        raise Unknown("the commit's outcome is not known")

    assert isinstance(metadata._store, SqliteCatalog)
    metadata._store.file.put_data_keys = fails  # type: ignore[method-assign,assignment]
    with pytest.raises(Unknown):
        await open_keyring(Config(data_dir=tmp_path, master_key=(OLD,)), metadata.data_keys)
    assert fatal
    await metadata.close()
