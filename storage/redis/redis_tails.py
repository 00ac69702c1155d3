"""Looks at the ends of partitions slowly, besides what is heard of them (R10).

Two things get lost: a wake-up, when a connection breaks; and the second act of an append, when its
gateway dies between the WAIT that counted the copies and the act that certifies them. Whoever looks
tells the one and does the other, but only behind a WAIT of its own, at the level of what is there.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from push.errors import TocsinError
from push.places import Durability, Partition
from storage.redis.redis_keys import queue_key
from storage.redis.redis_ports import Shard

PERIOD_S: Final = 1.0
LOOKS: Final = 50
"""Queues that one period looks at, in turns: a look at an idle store must cost nothing to speak of.
So with 500 queues each is looked at every 10 s."""
_LOG: Final = logging.getLogger("storage.redis_tails")


class Tails:
    """`tell` is given (partition, certified end), again and again the same."""

    def __init__(
        self, shard: Shard, tell: Callable[[Partition, int], None], *, period_s: float = PERIOD_S
    ) -> None:
        self._shard = shard
        self._tell = tell
        self._period_s = period_s
        self._watched: OrderedDict[str, set[int]] = OrderedDict()
        """Queue → partitions; the one that was looked at longest ago comes first."""
        self._loose: dict[Partition, int] = {}
        """Ends that were not certified when they were first seen: perhaps on their way."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        """Of queues that are being looked at: one whose primary is down holds up no other."""
        self._task = asyncio.create_task(self._run(), name="tails")

    def watch(self, partition: Partition) -> None:
        """Somebody here is interested in it."""
        numbers = self._watched.get(partition.queue_id)
        if numbers is None:
            numbers = self._watched[partition.queue_id] = set()
        numbers.add(partition.number)

    def forget(self, queue_id: str) -> None:
        """The queue is gone."""
        self._watched.pop(queue_id, None)
        for partition in [one for one in self._loose if one.queue_id == queue_id]:
            del self._loose[partition]

    async def close(self) -> None:
        """Look no more."""
        tasks = [self._task, *self._looks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            due = {partition.queue_id for partition in self._loose}
            for queue_id in list(self._watched)[:LOOKS]:
                due.add(queue_id)
                self._watched.move_to_end(queue_id)
            for queue_id in due - self._looks.keys():
                self._looks[queue_id] = asyncio.create_task(self._look_at(queue_id), name="tails")

    async def _look_at(self, queue_id: str) -> None:
        try:
            await self._look(queue_id)
        except TocsinError:  # the store is not there, or too few copies: next time
            pass
        except Exception:  # whatever a server may say, who looks goes on
            _LOG.exception("the ends of queue %s could not be looked at", queue_id)
        finally:
            del self._looks[queue_id]

    async def _look(self, queue_id: str) -> None:
        numbers = sorted(self._watched.get(queue_id, ()))
        if not numbers:
            return
        flat = await self._shard.look("tails", [queue_key(queue_id)], numbers)
        if not flat:
            self.forget(queue_id)
            return
        for number, told, end, level in zip(
            numbers, flat[::3], flat[1::3], flat[2::3], strict=True
        ):
            partition = Partition(queue_id, number)
            certified, seen = told, self._loose.get(partition)
            if seen is not None and certified < seen:
                certified = await self._certified(partition, seen, level.decode())
            if end > certified:
                self._loose[partition] = end
            else:
                self._loose.pop(partition, None)
            if certified:
                self._tell(partition, certified)

    async def _certified(self, partition: Partition, end: int, level: Durability) -> int:
        """The certified end, once the copies of everything below `end` were counted. Raises
        TocsinError."""
        key, number = queue_key(partition.queue_id), partition.number
        _, counted = await self._shard.act("certify", [key], [number, 0], level=level)
        # What was seen at a primary of before may be more than this one had then.
        known = min(end, counted)
        certified: int
        certified, _ = await self._shard.act("certify", [key], [number, known], level="local")
        return certified
