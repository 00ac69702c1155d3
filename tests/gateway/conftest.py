"""Fixtures of the gateway's tests.

`broker` is what the outside is tested over. To run the same tests over the whole composition,
make it there: everything else only uses `gateway.ports`.
"""

from collections.abc import AsyncIterator

import httpx2
import pytest

from gateway.auth import Auth
from gateway.ports import BrokerPort
from gateway.rest import Application
from tests.gateway.plain_broker import PlainBroker

BASE_URL = "http://127.0.0.1:8080"


@pytest.fixture
async def broker() -> AsyncIterator[BrokerPort]:
    """A started broker without queues."""
    made = PlainBroker()
    yield made
    await made.stop()


@pytest.fixture
async def application(broker: BrokerPort) -> Application:
    """The HTTP application without a token: anybody on this machine."""
    return Application(broker, Auth(None))


@pytest.fixture
async def http(application: Application) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that speaks to the application without a socket."""
    transport = httpx2.ASGITransport(app=application)
    async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL) as client:
        yield client
