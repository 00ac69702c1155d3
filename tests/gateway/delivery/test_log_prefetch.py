"""The owned partitions read ahead, all together (P9)."""

import asyncio
from pathlib import Path

from gateway.delivery.log_reader import KEPT_BYTES_MAX, KEPT_MAX, LogPrefetch
from gateway.publish.tail import Tail
from push import limits
from push.places import Partition
from tests.histories.house import House, message

SLOTS = 100


async def test_many_slots_that_take_nothing_hold_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    """P9: a thousand consumers with a backlog stall. Each gets on, none holds a whole read."""
    house = House(tmp_path, "memory")
    await house.open()
    queue = await house.queue()
    for _ in range(30):
        await house.publish(queue, [message("x" * 60_000)])
    tail, partition = Tail(house.broker.storage), Partition(queue.queue_id, 0)
    woken = asyncio.Event()
    fetches = [LogPrefetch(house.broker.storage, tail, partition, woken.set) for _ in range(SLOTS)]
    for fetch in fetches:
        assert fetch.log(0) is None
    while any(fetch.reading for fetch in fetches):
        await woken.wait()
        woken.clear()
    assert tail.ahead_bytes > limits.AHEAD_BYTES_MAX / 2
    assert tail.ahead_bytes <= limits.AHEAD_BYTES_MAX + SLOTS * limits.PUSH_BYTES_MAX
    for fetch in fetches:
        found = fetch.log(0)
        assert found is not None
        assert found[0].first == 0
        fetch.cancel()
    assert tail.ahead_bytes == 0
    await house.stop()


async def test_what_a_line_tries_again_is_read_once(tmp_path: Path) -> None:
    """P8, P9: the head of a stuck key is at hand at its next try; a large one is read anew, and
    so is who was tried longest ago of too many."""
    house = House(tmp_path, "memory")
    await house.open()
    queue = await house.queue()
    bodies = ["x" * (KEPT_BYTES_MAX - 100), "x" * KEPT_BYTES_MAX, *("x" * KEPT_MAX)]
    await house.publish(queue, [message(body) for body in bodies])
    tail, partition = Tail(house.broker.storage), Partition(queue.queue_id, 0)
    woken = asyncio.Event()
    fetch = LogPrefetch(house.broker.storage, tail, partition, woken.set)

    async def read(offset: int) -> bytes:
        fetch.read_lines([offset])
        await woken.wait()
        woken.clear()
        return at_hand(offset)

    def at_hand(offset: int) -> bytes:
        found = fetch.line(offset)
        assert found is not None
        assert found[0] is not None
        return found[0].slice(offset, offset)

    assert fetch.line(0) is None
    assert await read(0) == at_hand(0)
    await read(1)
    assert fetch.line(1) is None
    for offset in range(2, KEPT_MAX + 1):
        await read(offset)
    assert at_hand(0)
    await read(KEPT_MAX + 1)
    assert at_hand(0)
    assert fetch.line(2) is None
    fetch.cancel()
    await house.stop()
