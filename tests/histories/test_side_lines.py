"""Histories of side lines: a key that waits has thousands of messages behind it (R18)."""

import asyncio
import json

from gateway.consumer import Consumer
from push import limits
from tests.histories.house import House, Session, numbered

COUNT = 3 * limits.HELD_PER_PARTITION_MAX


class Prompt(Session):
    """Nacks the first delivery of the first message, and acks everything else as it comes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.consumer: Consumer | None = None
        self.has_nacked = False

    def send(self, frame: bytes) -> None:
        super().send(frame)
        push = json.loads(frame)
        if push["type"] == "push":
            asyncio.get_running_loop().call_soon(self._answer, push)

    def _answer(self, push: dict[str, int]) -> None:
        assert self.consumer is not None
        place = [push["partition"], push["epoch"], push["push"]]
        first, count = push["offset"], len(push["messages"])  # type: ignore[arg-type]
        if first == 0 and not self.has_nacked:
            self.has_nacked = True
            self.consumer.nack([[*place, 0, 0]], 0.2, None)
        else:
            self.consumer.ack([[*place, first, first + count - 1]], [], None)


async def test_a_long_side_line_is_given_to_its_end_in_order(house: House) -> None:
    """R18, P3: what a backoff holds up goes aside; afterwards all of it comes, each once, in
    order, however the reads of the side line and the acks fall together."""
    queue = await house.queue()
    group = await house.group(queue)
    session = Prompt("prompt")
    await house.publish(queue, numbered(1))
    _, session.consumer = await house.subscribe(queue, group, credit=10_000, session=session)
    await session.until(lambda: session.has_nacked)
    for first in range(1, COUNT, 64):
        await house.publish(queue, numbered(min(64, COUNT - first), first=first))
    await session.until(lambda: len(session.bodies) >= COUNT + 1)
    assert session.bodies == [0, *range(COUNT)]
