"""Catalog and storage agree, whenever a caller gives up."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metadata.catalog import ANYBODY, GroupSettings, QueueSettings
from push.errors import Refused
from tests.histories.house import House, numbered


@pytest.fixture
async def durable(tmp_path: Path) -> AsyncIterator[House]:
    """Over SQLite, where each step takes a while."""
    house = House(tmp_path, "sqlite")
    await house.open()
    yield house
    await house.stop()


async def cut_off(change: Callable[[], Coroutine[Any, Any, object]], turns: int) -> None:
    """Begin, and give up after this many turns of the loop."""
    task = asyncio.ensure_future(change())
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_queue_whose_maker_gave_up_is_there_or_not(durable: House) -> None:
    """R1, P1: never in the catalog alone, where every publish would be refused until a restart."""
    for turns in range(12):
        name = f"q{turns}"
        await cut_off(
            partial(durable.broker.create_queue, ANYBODY, name, QueueSettings(partitions=1)),
            turns,
        )
        await durable.broker.changes.finish()
        with suppress(Refused):
            queue = durable.find(name)
            assert await durable.publish(queue, numbered(1)) == [(0, 0, False)]


async def test_a_group_whose_maker_gave_up_is_there_or_not(durable: House) -> None:
    """R11: never without its cursors."""
    queue = await durable.queue()
    await durable.publish(queue, numbered(1))
    for turns in range(12):
        name = f"g{turns}"
        await cut_off(
            partial(durable.broker.put_group, ANYBODY, queue, name, GroupSettings(), None),
            turns,
        )
        await durable.broker.changes.finish()
        with suppress(Refused):
            group = durable.broker.metadata.find_group(ANYBODY, queue, name)
            states = await durable.broker.storage.cursors(queue.queue_id, group.group_id)
            assert len(states) == 1


async def test_a_queue_whose_deleter_gave_up_is_gone_or_not(durable: House) -> None:
    """R1: what is out of the catalog leaves the storage too."""
    for turns in range(8):
        queue = await durable.queue(f"q{turns}")
        name = queue.name
        await cut_off(lambda: durable.broker.delete_queue(ANYBODY, name), turns)  # noqa: B023
        await durable.broker.changes.finish()
        states = await durable.broker.storage.partitions(queue.queue_id)
        assert bool(states) == (durable.broker.metadata.queue_by_id(queue.queue_id) is not None)
        assert durable.broker.metadata.dropped() == []


async def test_a_dead_letter_queue_is_whole_though_its_maker_ended(durable: House) -> None:
    """P1: the owned partition that needed it first ends in the middle; the next one finds it
    usable."""
    for turns in range(12):
        queue = await durable.queue(f"q{turns}")
        await cut_off(lambda: durable.broker._dead_letter_queue(queue), turns)  # noqa: B023
        await durable.broker.changes.finish()
        dead = await durable.broker._dead_letter_queue(queue)
        assert await durable.publish(dead, numbered(1)) == [(0, 0, False)]
