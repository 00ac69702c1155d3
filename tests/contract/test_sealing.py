"""The contract of `push.storage_port.Storage` with a sealer: stored payloads are sealed, and one
that does not open is damage and costs its record (R30, P13). Over every storage."""

from collections.abc import AsyncIterator

import pytest

from push.errors import Refused
from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import Storage
from tests.contract.conftest import Opening
from tests.contract.stores import (
    G0,
    P0,
    P1,
    Clock,
    append,
    body,
    change,
    one,
    sequences,
    with_group,
)


class Keeping:
    """A sealer that records its calls, and can be made to fail."""

    def __init__(self) -> None:
        self.sealed: list[tuple[Partition, bytes, int]] = []
        self.opened: list[Partition] = []
        self.failure: Exception | None = None
        self.broken: set[bytes] = set()

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        self.sealed.append((partition, header, count))
        return b"sealed" + payload[::-1]

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        if sealed in self.broken:
            raise RecordDamaged("it does not open")
        self.opened.append(partition)
        return sealed.removeprefix(b"sealed")[::-1]

    def lose(self, number: int) -> None:
        """Make the record with this first message impossible to open."""
        self.broken.add(b"sealed" + body(number)[::-1])


@pytest.fixture
def keeping() -> Keeping:
    """The sealer of `sealed`."""
    return Keeping()


@pytest.fixture
async def sealed(opening: Opening, clock: Clock, keeping: Keeping) -> AsyncIterator[Storage]:
    """A storage over `keeping`, with a queue of two partitions and a group."""
    async with opening(clock, sealer=keeping) as store:
        await with_group(store)
        yield store


async def test_each_record_is_sealed_for_its_place(sealed: Storage, keeping: Keeping) -> None:
    records = [append(messages=2), append(P1, messages=3)]
    await sealed.append(records)
    assert keeping.sealed == [(P0, records[0].header, 2), (P1, records[1].header, 3)]
    assert (await sealed.read(P1, 0, 10**6)).records[0].payload == records[1].payload
    assert keeping.opened == [P1]


async def test_a_record_with_duplicates_opens_as_what_is_new(sealed: Storage) -> None:
    """R9: the blob is whole, the skips are stored beside it."""
    await sequences(sealed, [1])
    assert await sequences(sealed, [1, 2]) == [-1, 1]
    (record, other) = (await sealed.read(P0, 0, 10**6)).records
    assert (record.payload, other.payload) == (body(1), body(2))


async def test_what_does_not_open_costs_its_record_and_is_told_to_each(
    sealed: Storage, keeping: Keeping
) -> None:
    """R30, P13: the record is quarantined, with its reason; later ones flow."""
    for number in range(3):
        await sequences(sealed, [number])
    keeping.lose(1)
    for _ in range(2):
        read = await sealed.read(P0, 0, 10**6)
        assert [record.first for record in read.records] == [0, 2]
        (damage,) = read.damage
        assert (damage.first, damage.count, damage.reason) == (1, 1, "it does not open")
    assert (await sealed.read(P0, 2, 10**6)).damage == ()
    assert (await sealed.read(P0, 0, 10**6, until=0)).damage == ()
    assert (await sealed.partitions("q-1"))[0].messages == 2
    await sealed.write_cursors([change(place=G0, settled=[(0, 2)])])
    assert await sealed.trim(P0, retention_s=0, keep_all=True) > 0


async def test_when_nothing_can_be_sealed_nothing_is_stored(
    sealed: Storage, keeping: Keeping
) -> None:
    """P2: all records of the call, even those that could have been sealed."""
    keeping.failure = Refused("storage_unavailable", "no key")
    with pytest.raises(Refused, match="no key"):
        await one(sealed, append(messages=1))
    keeping.failure = None
    assert await one(sealed, append(messages=1)) == [0]


async def test_a_key_that_cannot_be_had_at_the_moment_damages_nothing(
    sealed: Storage, keeping: Keeping
) -> None:
    """P13: when a key service is down, the store does not move into the quarantine."""
    await sequences(sealed, [0])
    keeping.failure = Refused("storage_unavailable", "the key service does not answer")
    with pytest.raises(Refused, match="does not answer"):
        await sealed.read(P0, 0, 10**6)
    keeping.failure = None
    read = await sealed.read(P0, 0, 10**6)
    assert (len(read.records), read.damage) == (1, ())
