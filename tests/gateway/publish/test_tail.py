"""The tail: what is known of a log without asking the storage."""

import asyncio

import pytest

from gateway.deliverylog.log import CommitTimes
from gateway.publish.tail import Tail
from push.places import Partition
from push.record import Record, RecordBuilder
from storage.memory import MemoryStorage
from tests.contract.stores import append

P = Partition("q-1", 0)
STAGES = CommitTimes(0, 0)


def record(first: int, size: int) -> Record:
    """Return one message of this many bytes."""
    builder = RecordBuilder()
    builder.clear_producer()
    builder.add(b"x" * size, 1)
    _, payload, header = builder.close(
        record_id=b"r" * 16, published_unix_ms=1, ring_epoch=1, tenant=0
    )
    return Record(first, header, payload)


def test_the_cache_has_a_bound_and_the_oldest_go_first() -> None:
    """P9: over all partitions together, in bytes of memory: small messages are mostly columns."""
    tail = Tail(MemoryStorage(), bytes_max=5 * record(0, 60).memory_bytes - 1)
    other = Partition("q-1", 1)
    tail.follow(P, lambda _: None)
    tail.follow(other, lambda _: None)
    for offset in range(3):
        tail.on_append(P, record(offset, 60), STAGES, offset + 1)
        tail.on_append(other, record(offset, 60), STAGES, offset + 1)
    kept = [(p, o) for p in (P, other) for o in range(3) if tail.get(p, o) is not None]
    assert kept == [(P, 1), (P, 2), (other, 1), (other, 2)]


def test_nothing_is_kept_that_nobody_follows() -> None:
    """P9: but its end is known, for who begins to follow."""
    tail = Tail(MemoryStorage())
    tail.on_append(P, record(0, 10), STAGES, 1)
    assert tail.get(P, 0) is None
    assert tail.ends[P] == 1


@pytest.mark.parametrize("end", [0, 3])
def test_followers_always_find_the_end_that_woke_them(end: int) -> None:
    """R10: also when an append stored nothing, in a partition that never had anything."""
    tail = Tail(MemoryStorage())
    told: list[int] = []
    tail.follow(P, lambda partition: told.append(tail.ends[partition]))
    tail.on_certified(P, end)
    tail.on_certified(P, 1)
    assert told == [end, max(end, 1)]


async def test_a_follower_with_a_bug_keeps_nothing_from_the_others() -> None:
    """P1: they would wait for a message that has come."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.append(repr(context["exception"]))
    )
    tail, heard = Tail(MemoryStorage()), list[Partition]()
    for listen in (tail.watch, lambda follower: tail.follow(P, follower)):
        listen(fail)
        listen(heard.append)
    tail.on_certified(P, 1)
    assert heard == [P, P]
    assert len(told) == 2


def fail(_partition: Partition) -> None:
    raise ZeroDivisionError


async def test_equal_reads_that_overlap_are_made_once() -> None:
    """And who gives up does not take the read from the others."""
    storage = MemoryStorage()
    await storage.create_queue("q-1", 1)
    await storage.append([append(P, messages=3)])
    tail = Tail(storage)
    reads = [asyncio.ensure_future(tail.read(P, 0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(tail._reads) == 1
    reads[0].cancel()
    answers = await asyncio.gather(*reads[1:])
    assert answers[0] is answers[1]
    assert not tail._reads
