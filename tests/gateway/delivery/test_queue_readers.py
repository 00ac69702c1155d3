"""Readers where the tail, the storage and their credit do not agree: nothing is left out in silence
(P10), and who has stalled costs the others nothing (P9)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.delivery import readers as queue_readers
from gateway.delivery.readers import (
    FAN_OUTS_MAX,
    SLICE,
    SLICE_BYTES,
    QueueReaders,
    Reader,
    slice_of,
)
from gateway.deliverylog.log import CommitTimes
from gateway.publish.tail import Tail
from metadata.catalog import Queue
from push import limits
from push.places import Partition
from push.record import Record
from tests.histories.house import House, Session, eventually, numbered

STAGES = CommitTimes(0, 0)


@dataclass
class Second:
    """A second gateway over the same storage, which knows of a record what a test tells it."""

    house: House
    queue: Queue
    tail: Tail
    readers: QueueReaders

    async def publish(self, count: int, first: int = 0) -> tuple[Partition, Record]:
        """Through the first gateway: in the storage, certified, unknown to our tail."""
        await self.house.publish(self.queue, numbered(count, first=first))
        partition = Partition(self.queue.queue_id, 0)
        read = await self.house.broker.storage.read(partition, first, 1)
        return partition, read.records[0]

    def read(self, credit: int, hashes: frozenset[int] | None = None) -> tuple[Session, Reader]:
        """A reader from the start."""
        session = Session("reader")
        reader = Reader(self.readers, session, 1, hashes)
        reader.credit.grant(credit)
        reader.behind = {0: 0}
        self.readers.add(reader)
        reader.pump()
        return session, reader

    def appended(self, partition: Partition, record: Record) -> None:
        """The news of it comes."""
        self.tail.on_append(partition, record, STAGES, record.last + 1)


@pytest.fixture
async def second(tmp_path: Path) -> AsyncIterator[Second]:
    house = House(tmp_path, "memory")
    await house.open()
    queue = await house.queue(retention_s=3600)
    tail = Tail(house.broker.storage)
    states = await house.broker.storage.partitions(queue.queue_id)
    readers = QueueReaders(tail, queue, states, lambda: None)
    yield Second(house, queue, tail, readers)
    readers.close()
    await house.stop()


@pytest.mark.parametrize("is_filtered", [False, True], ids=["all keys", "some keys"])
async def test_credit_that_ends_within_a_record_ahead_of_the_news_skips_nothing(
    second: Second, is_filtered: bool
) -> None:
    """The reader has a part of a record before the gateway hears that it is certified."""
    second.appended(*await second.publish(1))
    partition, record = await second.publish(4, first=1)
    hashes = frozenset(record.header.key_hashes) if is_filtered else None
    session, reader = second.read(3, hashes)
    assert await session.get(3) == [0, 1, 2]
    await eventually(lambda: not reader.behind)
    second.appended(partition, record)
    reader.grant(10)
    assert await session.get(5) == [0, 1, 2, 3, 4]


async def test_a_certified_end_without_its_record_skips_nothing_on_its_way(second: Second) -> None:
    """The news of the second record comes without it, while the first waits to go out."""
    session, reader = second.read(10)
    await eventually(lambda: not reader.behind)
    partition, one = await second.publish(2)
    await second.publish(2, first=2)
    second.appended(partition, one)
    second.tail.on_certified(partition, 4)
    assert await session.get(4) == [0, 1, 2, 3]


async def test_a_stalled_reader_is_asked_again_by_its_credit_alone(second: Second) -> None:
    """P9: a record is not even shown to who is behind everywhere; P10: it misses nothing."""
    session, reader = second.read(1)
    await eventually(lambda: not reader.behind)
    for first in range(4):
        second.appended(*await second.publish(1, first=first))
        await asyncio.sleep(0)
    assert await session.get(1) == [0]
    assert not second.readers._plain
    reader.grant(10)
    assert await session.get(4) == [0, 1, 2, 3]
    await eventually(lambda: not reader.behind)
    second.appended(*await second.publish(1, first=4))
    assert await session.get(5) == [0, 1, 2, 3, 4]
    reader.close()


async def test_records_that_come_faster_than_they_go_out_are_read_from_the_log(
    second: Second,
) -> None:
    """P9: what waits for the fan-out is bounded; P10: nobody misses anything of it."""
    session, reader = second.read(10 * FAN_OUTS_MAX)
    await eventually(lambda: not reader.behind)
    published = [await second.publish(1, first=first) for first in range(FAN_OUTS_MAX + 3)]
    for partition, record in published[:FAN_OUTS_MAX]:
        second.appended(partition, record)
    assert not reader.behind
    for partition, record in published[FAN_OUTS_MAX:]:
        second.appended(partition, record)
    assert len(second.readers._fan_outs) == FAN_OUTS_MAX
    assert reader.behind
    assert await session.get(FAN_OUTS_MAX + 3) == [*range(FAN_OUTS_MAX + 3)]
    await eventually(lambda: not reader.behind)


def test_a_turn_has_a_bound_of_readers_and_of_bytes() -> None:
    """P9. On both sides of where bytes begin to count, and of where a reader takes no more."""
    assert slice_of(0) == slice_of(SLICE_BYTES // SLICE) == SLICE
    assert slice_of(SLICE_BYTES // SLICE + 1) == SLICE - 1
    most = SLICE_BYTES // (2 * limits.PUSH_BYTES_MAX)
    assert slice_of(2 * limits.PUSH_BYTES_MAX) == slice_of(limits.RECORD_BYTES_MAX) == most
    assert slice_of(limits.PUSH_BYTES_MAX) == 2 * most


async def test_a_fan_out_goes_on_in_the_next_turns(
    second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    monkeypatch.setattr(queue_readers, "SLICE_BYTES", 1)
    partition, record = await second.publish(1)
    sessions = []
    for _ in range(3):
        session = Session("reader")
        reader = Reader(second.readers, session, 1, None)
        reader.credit.grant(10)
        second.readers.add(reader)
        sessions.append(session)
    second.appended(partition, record)
    for turn in range(4):
        assert [bool(session.frames) for session in sessions] == [n < turn for n in range(3)]
        await asyncio.sleep(0)
