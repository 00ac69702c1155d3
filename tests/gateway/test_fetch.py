"""What slots read ahead, all together (P9)."""

import asyncio
from pathlib import Path

from gateway.fetch import Fetch
from gateway.tail import Tail
from push import limits
from push.ports import Partition
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
    fetches = [Fetch(house.broker.storage, tail, partition, woken.set) for _ in range(SLOTS)]
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
