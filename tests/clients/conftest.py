"""A fake broker, and a client that is connected to it."""

from collections.abc import AsyncIterator

import pytest
import tocsin

from tests.clients.fake_broker import FakeBroker
from tests.memory import tmp_path

__all__ = ["tmp_path"]


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """A fake broker with a queue `orders`."""
    async with FakeBroker() as broker:
        broker.queue("orders")
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[tocsin.Client]:
    """A client of the fake broker."""
    async with tocsin.connect(broker.url) as client:
        yield client
