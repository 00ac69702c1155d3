"""Fixtures of the gateway's tests.

`broker` is what the outside is tested over: the whole composition over its stores.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.config import Config
from gateway.rest.app import Application
from tests.gateway.asgi import client_of
from tests.histories.house import House
from tests.memory import tmp_path

__all__ = ["tmp_path"]


def never(reason: str) -> None:
    """The storage's last word, in tests."""
    raise AssertionError(f"the storage gave up: {reason}")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A started broker without queues."""
    made = await Broker.open(Config(data_dir=tmp_path / "data"), on_fatal=never)
    yield made
    await made.stop()


@pytest.fixture
async def application(broker: Broker) -> Application:
    """The HTTP application without a token: anybody on this machine."""
    return Application(broker, Authenticator(None))


@pytest.fixture
async def http(application: Application) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that speaks to the application without a socket."""
    async with client_of(application) as client:
        yield client


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """The whole inside over the storage in memory, without sockets."""
    house = House(tmp_path, "memory")
    await house.open()
    yield house
    await house.stop()
