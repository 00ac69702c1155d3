"""The catalog stalls or answers late: nothing waits for a data key, no key is lost (P1, P13)."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.broker import Broker
from gateway.catalog.guarded import GuardedMetadata
from gateway.config import Config
from gateway.encryption import keyring as keyrings
from gateway.encryption.keyring import Keyring
from gateway.stores.open import open_keyring
from metadata.catalog import ANYBODY, QueueSettings
from metadata.data_keys import DataKey, Outdated
from metadata.port import Metadata
from push import limits
from push.errors import Refused, TocsinError
from push.places import Partition
from tests.catalogs import open_catalog
from tests.conformance.virtual import run
from tests.contract.stores import P0, append
from tests.gateway.conftest import never
from tests.gateway.encryption.test_keyring import HEADER, NEW, OLD, PAYLOAD, master_id
from tests.mad import MadMetadata
from tests.waiting import becomes


class Keys:
    """A keyring behind the guard of a catalog that may stall."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> None:
        self.catalog = await open_catalog(self.folder)
        self.mad = MadMetadata(self.catalog)
        self.guard = GuardedMetadata(cast(Metadata, self.mad))
        self.ring = await self.opened(OLD)

    async def opened(self, *masters: bytes) -> Keyring:
        config = Config(data_dir=self.folder, master_key=masters)
        ring = await open_keyring(config, self.guard.data_keys)
        assert ring is not None
        return ring

    @property
    def masters(self) -> list[str]:
        """Which master keys wrap the catalog's data keys."""
        return [row.master_key_id for row in self.catalog.data_keys.all()]

    def seal(self) -> bytes:
        return self.ring.sealer.seal(P0, HEADER, PAYLOAD, 1)

    def run_low(self) -> bytes:
        """The next data key is wanted, now; something that was sealed under this one."""
        current = self.ring.sealer.current
        assert current is not None
        current.messages = limits.DATA_KEY_MESSAGES_MAX - 100
        return self.seal()


def stalled(test: Callable[[Keys], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test in virtual time, with the deadlines that ship."""

    def in_virtual_time(tmp_path: Path) -> None:
        async def main() -> None:
            keys = Keys(tmp_path)
            await keys.open()
            await test(keys)
            keys.mad.well()
            await keys.ring.close()
            await keys.guard.close()

        run(main())

    in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
    return in_virtual_time


@stalled
async def test_a_stalled_catalog_is_asked_again_for_one_and_the_same_key(keys: Keys) -> None:
    """Meanwhile the one there is seals on, and afterwards nothing is left that nobody uses."""
    before, ring = keys.run_low()[1:9], keys.ring
    keys.mad.stall()
    await asyncio.sleep(300)
    assert keys.guard.facts()["timeouts"] >= 2  # type: ignore[operator]
    assert keys.seal()[1:9] == before
    keys.mad.well()
    await asyncio.sleep(2 * 60 + limits.METADATA_DEADLINE_S)
    assert ring.sealer.successor is not None
    rows = [row.key_id for row in keys.catalog.data_keys.all()]
    assert sorted(rows) == sorted([before, ring.sealer.successor.key_id])


@stalled
async def test_who_rotates_is_answered_in_time_and_all_opens_whatever_came_of_it(
    keys: Keys,
) -> None:
    loop, sealed = asyncio.get_running_loop(), keys.seal()
    for stall in (keys.mad.stall, keys.mad.late):
        stall()
        began = loop.time()
        with pytest.raises(TocsinError, match="may still be made") as told:
            await keys.ring.rotate(NEW)
        assert told.value.code.name == "metadata_unavailable"
        assert loop.time() - began == pytest.approx(limits.METADATA_DEADLINE_S)
        assert keys.ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
        keys.mad.well()
        await asyncio.sleep(60)
    assert set(keys.masters) == {master_id(NEW)}  # it has come about
    keys.ring.sealer._ciphers.clear()  # as if nothing had been opened yet
    assert keys.ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD
    assert (await keys.ring.rotate(NEW)).master_key_id == master_id(NEW)
    await keys.ring.close()
    keys.ring = await keys.opened(NEW)
    assert keys.ring.sealer.unseal(P0, HEADER, sealed) == PAYLOAD


@stalled
async def test_a_rotation_wraps_a_key_anew_whose_answer_did_not_come(keys: Keys) -> None:
    """Else it is left under the old master key: a start without that would be refused."""
    keys.mad.late()
    keys.run_low()
    await asyncio.sleep(limits.METADATA_DEADLINE_S + 0.5)
    assert keys.masters == 2 * [master_id(OLD)]
    keys.mad.well()
    await keys.ring.rotate(NEW)
    assert keys.masters == 2 * [master_id(NEW)]
    await keys.ring.close()
    keys.ring = await keys.opened(NEW)


@stalled
async def test_a_rotation_wraps_a_key_anew_that_is_written_meanwhile(keys: Keys) -> None:
    """The catalog did not have it when the rotation began, and the call that was to write it
    fails."""
    keys.mad.stall()
    keys.run_low()
    await asyncio.sleep(limits.METADATA_DEADLINE_S + 0.5)
    assert keys.masters == [master_id(OLD)]
    failed: list[str] = []

    def fails_once(name: str) -> Exception | None:
        if name != "put_data_keys" or failed:
            return None
        failed.append(name)
        return Refused("metadata_unavailable")

    keys.mad.well()
    keys.mad.fail = fails_once
    await keys.ring.rotate(NEW)
    assert failed
    assert keys.masters == 2 * [master_id(NEW)]
    await keys.ring.close()
    keys.ring = await keys.opened(NEW)


async def test_a_broker_publishes_on_while_its_catalog_takes_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole one, as it is opened."""
    monkeypatch.setattr(keyrings, "RETRY_S", (0.0, 0.0))
    monkeypatch.setattr(limits, "METADATA_DEADLINE_S", 0.02)
    monkeypatch.setattr(limits, "BREAKER_OPEN_S", 0.02)
    config = Config(data_dir=tmp_path / "data", master_key=(OLD,))
    broker = await Broker.open(config, on_fatal=never)
    queue, _ = await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    place, ring, inner = Partition(queue.queue_id, 0), broker.keyring, broker.metadata.inner
    assert ring is not None
    assert ring.sealer.current is not None
    goes, put = asyncio.Event(), inner.data_keys.put

    async def stalls(*args: Any) -> None:
        await goes.wait()
        await put(*args)

    monkeypatch.setattr(inner.data_keys, "put", stalls)
    ring.sealer.current.messages = limits.DATA_KEY_MESSAGES_MAX - 100
    async with asyncio.timeout(15):
        await broker.storage.append([append(place, messages=1)])  # it asks for the next key
        await becomes(lambda: broker.metadata.facts()["timeouts"])
        assert ring.sealer.successor is None
        await broker.storage.append([append(place, messages=1)])
        goes.set()
        await becomes(lambda: ring.sealer.successor is not None)  # the breaker lets it be asked
    await broker.stop()


def test_who_comes_behind_another_gateways_data_key_is_told_so(tmp_path: Path) -> None:
    """An answer like another one, and no failure of the metadata: it is wrapped again."""

    async def main() -> None:
        guarded = GuardedMetadata(await open_catalog(tmp_path))
        row = DataKey(key_id=b"12345678", master_key_id="m", created_unix_ms=1, wrapped=b"w")
        with pytest.raises(Outdated):
            await guarded.data_keys.put([row], lambda known: False)
        assert guarded.facts()["failures"] == 0
        await guarded.close()

    run(main())
