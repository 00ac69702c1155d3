"""`house` is the whole broker, over each storage in turn; `durable_house` over the one on disk."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.histories.house import House
from tests.memory import in_memory, tmp_path

__all__ = ["tmp_path"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the stores. These histories end processes, not machines."""
    with in_memory() as made:
        yield made


async def _opened(folder: Path, kind: str) -> AsyncIterator[House]:
    unexpected: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unexpected.append(context))
    house = House(folder, kind)
    await house.open()
    yield house
    await house.stop()
    assert not unexpected, unexpected


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[House]:
    """A broker; nothing unexpected may happen on its loop."""
    async for house in _opened(folder, request.param):
        yield house


@pytest.fixture
async def durable_house(folder: Path) -> AsyncIterator[House]:
    """A broker that can be restarted."""
    async for house in _opened(folder, "sqlite"):
        yield house
