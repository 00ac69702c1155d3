"""The SDK where WebSockets are blocked: it finds another way, and returns."""

from pathlib import Path

import pytest
import tocsin

from loadtests.faults.proxy import Proxy, Upgrades
from tests.system.talk import running


@pytest.mark.parametrize(
    ("upgrades", "status"), [("refuse", 403), ("refuse", 400), ("strip", 0), ("swallow", 0)]
)
async def test_long_poll_it_is_where_a_proxy_keeps_websockets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrades: Upgrades, status: int
) -> None:
    """From the first connect on, after a cut, and back as soon as they are passed."""
    monkeypatch.setattr("tocsin.proto.connect_policy.RETURN_S", 0.2)
    with running(tmp_path) as server:
        async with Proxy(server.port) as proxy:
            proxy.upgrades, proxy.refusal_status = upgrades, status
            async with tocsin.connect(proxy.url, connect_timeout_s=2.0) as client:
                assert client.transport == "long-poll"
                await client.create_queue("orders")
                async with client.subscribe("orders", group="billing") as messages:
                    session = client.session_id
                    await client.publish("orders", 1)
                    message = await anext(messages)
                    proxy.cut_all()
                    proxy.upgrades = "pass"
                    await client.publish("orders", 2)
                    await message.ack(confirm=True)
                    assert (await anext(messages)).body == 2
                    assert client.session_id == session


async def test_only_a_websocket_is_what_somebody_may_want(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with Proxy(server.port) as proxy:
            proxy.upgrades = "strip"
            with pytest.raises(tocsin.CannotConnect, match="no WebSocket gets through"):
                async with tocsin.connect(proxy.url, transport="websocket"):
                    pass
