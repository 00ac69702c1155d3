"""Keys where several gateways share a catalog: what another one has sealed is opened, and never
taken for damaged because its key has not been heard of yet."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.encryption import keyring
from gateway.encryption.keyring import Keyring
from gateway.encryption.master_key import (
    LocalMasterKey,
    Source,
    default_master_key_file,
    read_keys,
    replace_keys,
)
from gateway.encryption.rotation import gateways_without, report_of
from gateway.stores.open import open_keyring
from metadata.data_keys import DataKey, DataKeys, Outdated, Still
from push.errors import Refused
from push.places import Partition
from push.record import RecordDamaged
from tests.waiting import becomes

P0 = Partition("q", 0)
HEADER, PAYLOAD = b"header", b'{"a":1}'
OLD, NEW = bytes([1]) * 32, bytes([2]) * 32


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked into all the time."""
    monkeypatch.setattr(keyring, "LOOK_S", 0.01)


class SharedCatalog:
    """Rows that several have views of, each as old as its last look."""

    def __init__(self) -> None:
        self.rows: dict[bytes, DataKey] = {}
        self.is_answering = True

    @property
    def masters(self) -> set[str]:
        """Which master keys wrap them."""
        return {row.master_key_id for row in self.rows.values()}

    def view(self) -> DataKeys:
        """Another gateway's."""

        async def write(rows: list[DataKey], still: Still) -> None:
            view.learn(list(self.rows.values()))  # as the catalog does: news first
            if not still(known := view.all()):
                raise Outdated(known)
            self.rows |= {row.key_id: row for row in rows}

        async def refresh() -> None:
            if not self.is_answering:
                raise Refused("storage_unavailable", "nobody answers")
            view.learn(list(self.rows.values()))

        view = DataKeys(list(self.rows.values()), write, refresh)
        return view


def config(folder: Path, *keys: bytes) -> Config:
    """A gateway whose master key is in a file with these."""
    folder.mkdir(exist_ok=True)
    replace_keys(folder / "master.key", list(keys))
    return Config(data_dir=folder, master_key_file=folder / "master.key")


async def opened(catalog: SharedCatalog, settings: Config) -> Keyring:
    """A gateway's."""
    ring = await open_keyring(settings, catalog.view())
    assert ring is not None
    return ring


def met(ring: Keyring, *others: Keyring) -> None:
    """It hears these."""

    async def said() -> dict[str, str]:
        return {f"gateway {n}": other.report() for n, other in enumerate(others)}

    ring.set_others(said)


async def of_whom_one_has_the_new_key(folder: Path) -> tuple[SharedCatalog, Keyring, Keyring]:
    """A catalog, a gateway that has the old one alone and hears the other, and that one."""
    catalog = SharedCatalog()
    one = await opened(catalog, config(folder / "a", OLD))
    other = await opened(catalog, config(folder / "b", OLD, NEW))
    met(one, other)
    met(other)
    return catalog, one, other


def master_id(key: bytes) -> str:
    """The name of a master key."""
    return LocalMasterKey(key).key_id


async def unsealed(ring: Keyring, sealed: bytes) -> bytes:
    """As storages do it, in a thread."""
    return await asyncio.to_thread(ring.sealer.unseal, P0, HEADER, sealed)


async def test_a_key_that_another_gateway_has_just_made_is_asked_for(tmp_path: Path) -> None:
    catalog, settings = SharedCatalog(), config(tmp_path, OLD)
    one = await opened(catalog, settings)
    other = await opened(catalog, settings)
    sealed = other.sealer.seal(P0, HEADER, PAYLOAD, 1)
    assert await unsealed(one, sealed) == PAYLOAD
    with pytest.raises(RecordDamaged):  # one that nobody has made
        await unsealed(one, sealed[:1] + bytes(8) + sealed[9:])
    for ring in (one, other):
        await ring.close()


async def test_a_catalog_that_does_not_answer_damages_nothing(tmp_path: Path) -> None:
    catalog, settings = SharedCatalog(), config(tmp_path, OLD)
    one = await opened(catalog, settings)
    other = await opened(catalog, settings)
    sealed = other.sealer.seal(P0, HEADER, PAYLOAD, 1)
    catalog.is_answering = False
    with pytest.raises(Refused, match="nobody answers"):
        await unsealed(one, sealed)
    catalog.is_answering = True
    assert await unsealed(one, sealed) == PAYLOAD
    for ring in (one, other):
        await ring.close()


async def test_another_gateways_master_key_is_found_in_the_file_or_asked_for(
    tmp_path: Path,
) -> None:
    """A rotation there wraps all data keys under a master key that was not here at the start."""
    catalog, settings = SharedCatalog(), config(tmp_path, OLD)
    one = await opened(catalog, settings)
    other = await opened(catalog, config(tmp_path / "other", OLD))
    met(other)
    await other.rotate(NEW)
    sealed = other.sealer.seal(P0, HEADER, PAYLOAD, 1)
    with pytest.raises(Refused, match="Give it to this gateway too"):
        await unsealed(one, sealed)
    config(tmp_path, OLD, NEW)
    assert await unsealed(one, sealed) == PAYLOAD
    for ring in (one, other):
        await ring.close()


# --- Starting ------------------------------------------------------------------------------------


async def test_no_master_key_is_made_where_others_would_make_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways that start over an empty catalog would each have one of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match="Give all of them the same one, in TOCSIN_MASTER_KEY"):
        await open_keyring(Config(data_dir=tmp_path), SharedCatalog().view())
    assert not default_master_key_file(os.environ).exists()


async def test_of_two_first_starts_with_different_master_keys_one_is_refused(
    tmp_path: Path,
) -> None:
    """Both found no data key. Nothing is left of what came second, and the other goes on."""
    catalog = SharedCatalog()
    views = [catalog.view(), catalog.view()]
    one = await open_keyring(config(tmp_path / "a", OLD), views[0])
    with pytest.raises(Refused, match=r"does not have\. Give it"):
        await open_keyring(config(tmp_path / "b", NEW), views[1])
    assert catalog.masters == {master_id(OLD)}
    again = await opened(catalog, config(tmp_path / "a", OLD))
    assert one is not None
    for ring in (one, again):
        await ring.close()


async def test_a_start_wraps_nothing_anew_whatever_comes_first_in_its_file(
    tmp_path: Path,
) -> None:
    """Else gateways would wrap to and fro, and the one without the other key could read nothing."""
    catalog = SharedCatalog()
    one = await opened(catalog, config(tmp_path / "a", OLD))
    other = await opened(catalog, config(tmp_path / "b", NEW, OLD))
    assert catalog.masters == {master_id(OLD)}
    assert other.describe()["master_key_id"] == master_id(OLD)
    assert await unsealed(one, other.sealer.seal(P0, HEADER, PAYLOAD, 1)) == PAYLOAD
    for ring in (one, other):
        await ring.close()


# --- Rotating ------------------------------------------------------------------------------------


async def test_a_rotation_waits_until_every_gateway_has_the_new_key(tmp_path: Path) -> None:
    """Then no machine is the only one that can read, also when all of them start anew."""
    catalog = SharedCatalog()
    one = await opened(catalog, config(tmp_path / "a", OLD))
    other = await opened(catalog, config(tmp_path / "b", OLD))
    met(one, other)
    met(other, one)
    with pytest.raises(Refused, match="behind the one in use into the file of each gateway"):
        await one.rotate(None)
    with pytest.raises(
        Refused, match=f"do not have the master key .*: gateway 0 .*{tmp_path}/b/master.key"
    ):
        await one.rotate(NEW)
    assert catalog.masters == {master_id(OLD)}
    assert read_keys(tmp_path / "a" / "master.key") == [OLD]
    config(tmp_path / "b", OLD, NEW)
    await becomes(lambda: master_id(NEW) in other.report())
    await one.rotate(NEW)
    assert catalog.masters == {master_id(NEW)}
    for folder in ("a", "b"):
        ring = await opened(catalog, config(tmp_path / folder, NEW))
        await ring.close()
    for ring in (one, other):
        await ring.close()


async def test_a_gateway_whose_file_is_gone_has_no_key_to_come_back_with(tmp_path: Path) -> None:
    _, one, other = await of_whom_one_has_the_new_key(tmp_path)
    (tmp_path / "b" / "master.key").unlink()
    await becomes(lambda: master_id(NEW) not in other.report())
    with pytest.raises(Refused, match="do not have the master key"):
        await one.rotate(NEW)
    for ring in (one, other):
        await ring.close()


async def test_who_says_nothing_of_its_keys_is_waited_for(tmp_path: Path) -> None:
    """A gateway of an earlier version, or one that seals nothing."""
    catalog = SharedCatalog()
    one = await opened(catalog, config(tmp_path, OLD, NEW))

    async def others() -> dict[str, str]:
        return {"an old one": ""}

    one.set_others(others)
    with pytest.raises(Refused, match=r"do not have the master key .*: an old one"):
        await one.rotate(NEW)
    await one.close()


async def test_a_key_of_the_environment_must_be_there_at_the_next_start(tmp_path: Path) -> None:
    catalog = SharedCatalog()
    one = await opened(catalog, Config(data_dir=tmp_path, master_key=(OLD,)))
    met(one)
    with pytest.raises(Refused, match=r"do not have the master key .*: this gateway"):
        await one.rotate(NEW)
    other = await opened(catalog, Config(data_dir=tmp_path, master_key=(OLD, NEW)))
    met(other)
    await other.rotate(NEW)
    assert catalog.masters == {master_id(NEW)}
    for ring in (one, other):
        await ring.close()


async def test_a_data_key_that_is_made_beside_a_rotation_is_under_the_new_master_key(
    tmp_path: Path,
) -> None:
    """Its gateway has not heard of the rotation. What it seals would be lost when the old master
    key is taken out of the files."""
    catalog = SharedCatalog()
    one = await opened(catalog, config(tmp_path / "a", OLD))
    late = catalog.view()
    met(one)
    await one.rotate(NEW)
    other = await open_keyring(config(tmp_path / "b", OLD, NEW), late)
    assert catalog.masters == {master_id(NEW)}
    assert other is not None
    assert await unsealed(one, other.sealer.seal(P0, HEADER, PAYLOAD, 1)) == PAYLOAD
    for ring in (one, other):
        await ring.close()


async def test_a_rotation_leaves_out_no_data_key_that_was_just_made(tmp_path: Path) -> None:
    """By a gateway of which the one that rotates has not heard yet."""
    catalog, one, other = await of_whom_one_has_the_new_key(tmp_path)
    await one.rotate(NEW)
    assert catalog.masters == {master_id(NEW)}
    assert len(catalog.rows) == 2
    for ring in (one, other):
        await ring.close()


async def test_of_two_services_one_rotates_nothing() -> None:
    """What a service wraps only that service opens, whatever its keys are called."""
    key = LocalMasterKey(NEW)
    service = Source("provider", key, provider="one:key")
    said = {"a": report_of(service), "b": report_of(Source("file", key))}
    assert gateways_without(said, key, "one:key") == [f"b ({socket.gethostname()}: file)"]
    assert gateways_without(said, key, "") == []
