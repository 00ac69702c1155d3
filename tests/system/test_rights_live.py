"""The SDK's message to a user whose token lacks the right that is needed, over both transports."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import tocsin
from click.testing import CliRunner, Result
from tocsin.cli.main import cli

from gateway.admin import client as admin
from loadtests.server import Server
from tests.waiting import becomes

OPERATOR = "the-token-of-these-tests"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Server]:
    """A broker that requires credentials."""
    settings = {"TOCSIN_TOKEN": OPERATOR}
    with Server(tmp_path / "data", level="warning", settings=settings) as server:
        yield server


async def token(server: Server, *rights: str) -> str:
    """Create an API token with these rights."""
    wanted: dict[str, object] = {"name": "ann", "rights": list(rights)}
    return str((await asyncio.to_thread(admin.create_token, server.data_dir, wanted))["token"])


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_what_is_forbidden_is_an_exception_that_names_the_right(
    locked: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    async with tocsin.connect(locked.url, token=OPERATOR) as operator:
        for name in ("orders", "feed"):
            await operator.create_queue(name, partitions=1)
            await operator.publish(name, {"n": 1}, key="mine")
    mine = await token(locked, "publish,read:feed:mine")
    async with tocsin.connect(locked.url, token=mine, transport=transport) as client:
        with pytest.raises(tocsin.Unauthorized, match="right to publish, on the queue 'orders'"):
            await client.publish("orders", 1)
        with pytest.raises(tocsin.Unauthorized, match="not the key 'yours'"):
            await client.publish("feed", 1, key="yours")
        assert (await client.publish("feed", {"n": 2}, key="mine")).offset == 1
        for name in ("orders", "ghost"):
            with pytest.raises(
                tocsin.Unauthorized, match=f"right to manage, on the queue '{name}'"
            ):
                await client.create_queue(name)
            with pytest.raises(
                tocsin.Unauthorized, match=f"right to consume, on the queue '{name}'"
            ):
                async with client.subscribe(name, group="g") as messages:
                    await anext(messages)
        with pytest.raises(tocsin.Unauthorized, match="some keys only"):
            async with client.read("feed") as messages:
                await anext(messages)
        async with client.read("feed", keys=["mine"], start="earliest") as messages:
            assert [(await anext(messages)).body for _ in range(2)] == [{"n": 1}, {"n": 2}]


async def letters(of: tocsin.Client | tocsin.Http) -> list[tocsin.DeadLetter]:
    """List the dead letters of the queue `orders`."""
    return [letter async for letter in of.dead_letters("orders")]


async def test_the_right_to_read_alone_shows_letters_without_their_groups(
    locked: Server,
) -> None:
    """[The SDK took the answer for that of another server, as a letter's group is left out.]"""
    async with tocsin.connect(locked.url, token=OPERATOR) as operator:
        await operator.create_queue("orders", partitions=1)
        async with operator.subscribe("orders", group="billing") as messages:
            await operator.publish("orders", {"n": 1}, key="mine")
            await (await anext(messages)).reject("declined")
            await becomes(partial(letters, operator))
        (letter,) = await letters(operator)
        assert (letter.origin.group, letter.nack) == ("billing", "declined")
    mine = await token(locked, "read:orders")
    async with tocsin.Http(locked.url, token=mine) as http:
        (letter,) = await letters(http)
        assert (letter.origin.queue, letter.origin.group, letter.nack) == ("orders", None, None)
    listing: Callable[..., Result] = CliRunner().invoke
    for arguments, is_shown in (([], "rejected"), (["--json"], '"group":null')):
        command = ["--url", locked.url, "dead-letters", "list", "orders", *arguments]
        done = await asyncio.to_thread(listing, cli, command, env={"TOCSIN_TOKEN": mine})
        assert (done.exit_code, is_shown in done.output) == (0, True), done.output
