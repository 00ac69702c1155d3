"""Bounds that waiting does not change are errors of the SDK, so that no program waits in
silence."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Literal

import pytest
import tocsin
import tocsin.blocking
from tocsin.proto.connect_policy import Transport

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
            # Closing a subscription makes room; waiting does not.
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


def _sized(size: int) -> dict[str, object]:
    """Return a message of this many bytes as JSON, which `bytes_max` counts."""
    return {"key": "k", "body": "x" * (size - len('{"key":"k","body":""}'))}


def _check_batch(outcomes: Sequence[object]) -> None:
    """Check a batch of five messages, of which the second and the fourth never fit."""
    kinds = [type(outcome) for outcome in outcomes]
    good, bad = tocsin.Receipt, tocsin.TooLarge
    assert kinds == [good, bad, good, bad, good]
    refused = outcomes[1]
    assert isinstance(refused, tocsin.TooLarge)
    assert (refused.code, refused.retry) == ("message_too_large", False)
    assert "bytes_max=500" in refused.detail


BATCH = [_sized(size) for size in (50, 501, 50, 2000, 50)]


@pytest.mark.parametrize("overflow", ["reject", "dead_letter"])
@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_message_larger_than_its_queue_may_be_is_refused_at_once_and_alone(
    tmp_path: Path, transport: Transport, overflow: Literal["reject", "dead_letter"]
) -> None:
    """The SDK does not repeat it until the timeout. A message of exactly the bound is stored, and
    so are messages published after a refused one, in their order."""
    with running(tmp_path) as server:
        async with (
            asyncio.timeout(WAIT_S),
            tocsin.connect(server.url, transport=transport) as client,
        ):
            await client.create_queue("q", partitions=1, bytes_max=500, overflow=overflow)
            with pytest.raises(tocsin.PublishManyFailed) as failed:
                await client.publish_many("q", BATCH, timeout_s=WAIT_S)
            _check_batch(failed.value.outcomes)
            with pytest.raises(tocsin.TooLarge, match="bytes_max=500"):
                await client.publish("q", _sized(501)["body"], key="k", timeout_s=WAIT_S)
            await client.create_queue("empty", partitions=1, bytes_max=500, overflow=overflow)
            await client.publish_many("empty", [_sized(500)], timeout_s=WAIT_S)


def test_the_blocking_client_raises_it_too(tmp_path: Path) -> None:
    with running(tmp_path) as server, tocsin.blocking.connect(server.url) as client:
        client.create_queue("q", partitions=1, bytes_max=500)
        with pytest.raises(tocsin.PublishManyFailed) as failed:
            client.publish_many("q", BATCH, timeout_s=WAIT_S)
        _check_batch(failed.value.outcomes)
