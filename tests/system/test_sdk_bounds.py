"""Bounds that waiting does not change are errors of the SDK, which nobody waits for in silence."""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import tocsin
import tocsin.blocking
from tocsin.choosing import Transport

from push import limits
from tests.system.talk import running

WAIT_S = 60.0
COUNT = limits.SUBSCRIPTIONS_PER_SESSION_MAX


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_subscription_beyond_the_bound_of_a_session_is_refused(
    tmp_path: Path, transport: Transport
) -> None:
    with running(tmp_path) as server:
        async with (
            asyncio.timeout(WAIT_S),
            tocsin.connect(server.url, transport=transport) as client,
            AsyncExitStack() as stack,
        ):
            await client.create_queue("q", partitions=1)
            last = client.read("q")
            async with last:
                for _ in range(COUNT - 1):
                    await stack.enter_async_context(client.read("q"))
                for beyond in (client.read("q"), client.subscribe("q", "g")):
                    with pytest.raises(tocsin.Conflict, match=f"{COUNT} subscriptions") as refused:
                        await stack.enter_async_context(beyond)
                    assert refused.value.code == "limit_reached"
                    assert not refused.value.retry
            # What waiting does not change, closing one does.
            await stack.enter_async_context(client.subscribe("q", "g"))


def test_the_blocking_client_is_refused_it_too(tmp_path: Path) -> None:
    with (
        running(tmp_path) as server,
        tocsin.blocking.connect(server.url) as client,
        ExitStack() as stack,
    ):
        client.create_queue("q", partitions=1)
        for _ in range(COUNT):
            stack.enter_context(client.read("q"))
        with pytest.raises(tocsin.Conflict, match="limit_reached"):
            stack.enter_context(client.subscribe("q", "g"))
