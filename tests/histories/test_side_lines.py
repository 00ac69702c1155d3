"""Histories of side lines, of a key that waits with thousands of later messages (R18)."""

import asyncio
import json
from pathlib import Path

from gateway.delivery.consumer import Consumer
from push import limits
from push.places import CursorPlace
from storage.memory import MemoryStorage
from tests.histories.house import House, Session, numbered, offsets_of

COUNT = 3 * limits.HELD_PER_PARTITION_MAX


class Prompt(Session):
    """Consumer that nacks the first delivery of the first message, and acks everything else as it
    comes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.consumer: Consumer | None = None
        self.nacked = asyncio.Event()

    def send(self, frame: bytes) -> None:
        super().send(frame)
        push = json.loads(frame)
        if push["type"] == "push":
            asyncio.get_running_loop().call_soon(self._answer, push)

    def _answer(self, push: dict[str, int]) -> None:
        assert self.consumer is not None
        place = [push["partition"], push["epoch"], push["push"]]
        first, last = push["offset"], offsets_of(push)[-1]
        if first == 0 and not self.nacked.is_set():
            self.nacked.set()
            self.consumer.nack([[*place, 0, 0]], 0.2, None)
        else:
            self.consumer.ack([[*place, first, last]], [], None)


async def test_a_long_side_line_is_given_to_its_end_in_order(house: House) -> None:
    """R18, P3: Messages that a backoff holds up go aside. Afterwards all of them come, each once,
    in order, whatever the order of the side line's reads and the acks."""
    await _held_up_and_given(house, Prompt("prompt"))


async def _held_up_and_given(house: House, session: Prompt) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1))
    _, session.consumer = await house.subscribe(queue, group, credit=10_000, session=session)
    await session.nacked.wait()
    for first in range(1, COUNT, 64):
        await house.publish(queue, numbered(min(64, COUNT - first), first=first))
    await session.until(lambda: len(session.bodies) >= COUNT + 1)
    assert session.bodies == [0, *range(COUNT)]


class Eager(MemoryStorage):
    """Storage that lets the consumer be pumped between the end of a side line's read and its
    notice."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Prompt | None = None

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        offsets = await super().read_side(place, key_hash, after, count_max)
        if self.session is not None and self.session.consumer is not None:
            self.session.consumer.pump()
        return offsets


async def test_the_next_part_is_read_though_the_last_read_has_only_just_ended(
    tmp_path: Path,
) -> None:
    """R18: A pump that comes between a read and its end asks for the next part, and that is
    read."""
    house = House(tmp_path, "memory")
    storage = house.memory = Eager()
    await house.open()
    storage.session = Prompt("prompt")
    await _held_up_and_given(house, storage.session)
    await house.stop()
