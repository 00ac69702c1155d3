"""Keys where several gateways share a catalog: what another one has sealed is opened, and never
taken for damaged because its key has not been heard of yet."""

import asyncio
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.key_file import replace_keys
from gateway.keyring import Keyring
from metadata.data_keys import DataKey, DataKeys
from push.errors import Refused
from push.ports import Partition
from push.record import RecordDamaged

P0 = Partition("q", 0)
HEADER, PAYLOAD = b"header", b'{"a":1}'
OLD, NEW = bytes([1]) * 32, bytes([2]) * 32


class SharedCatalog:
    """Rows that several have views of, each as old as its last look."""

    def __init__(self) -> None:
        self.rows: dict[bytes, DataKey] = {}
        self.is_answering = True

    def view(self) -> DataKeys:
        """Another gateway's."""

        async def write(rows: list[DataKey]) -> None:
            self.rows |= {row.key_id: row for row in rows}

        async def refresh() -> None:
            if not self.is_answering:
                raise Refused("storage_unavailable", "nobody answers")
            view.learn(list(self.rows.values()))

        view = DataKeys(list(self.rows.values()), write, refresh)
        return view


def config(folder: Path, *keys: bytes) -> Config:
    """A gateway whose master key is in a file with these."""
    replace_keys(folder / "master.key", list(keys))
    return Config(data_dir=folder, master_key_file=folder / "master.key")


async def opened(catalog: SharedCatalog, settings: Config) -> Keyring:
    """A gateway's."""
    ring = await Keyring.open(settings, catalog.view())
    assert ring is not None
    return ring


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
    config(tmp_path, NEW, OLD)
    other = await opened(catalog, settings)
    sealed = other.sealer.seal(P0, HEADER, PAYLOAD, 1)
    config(tmp_path, OLD)  # this machine's file does not have it yet
    with pytest.raises(Refused, match="give it to this gateway, too"):
        await unsealed(one, sealed)
    config(tmp_path, NEW, OLD)
    assert await unsealed(one, sealed) == PAYLOAD
    for ring in (one, other):
        await ring.close()
