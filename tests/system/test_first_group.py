"""The first group of a queue that keeps everything for it, through the commands and the SDKs."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import tocsin
from tocsin import blocking

from loadtests.server import Server
from tests.system.test_commands import run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("first") / "data") as started:
        yield started


async def filled(client: tocsin.Client, name: str) -> None:
    """Create a queue with three messages and no group."""
    await client.create_queue(name, partitions=1)
    await client.publish_many(name, [{"body": number} for number in range(3)])


@pytest.mark.parametrize("settings", [{}, {"lease_s": 9}], ids=["plain", "with-settings"])
async def test_subscribing_first_at_the_end_agrees_to_what_goes(
    server: Server, settings: dict[str, Any]
) -> None:
    """Both if the frame creates the group, and if a call before it does."""
    name = "plain" if not settings else "settings"
    async with tocsin.connect(server.url) as client:
        await filled(client, name)
        with pytest.raises(tocsin.WouldDelete, match="earliest gets them") as would:
            async with client.subscribe(name, "g", start="latest", **settings):
                pass
        assert would.value.messages == 3
        assert (await client.queue(name))["groups"] == []
        async with client.subscribe(name, "g", start="latest", deletes_max=3, **settings):
            assert (await client.group(name, "g"))["lag"] == 0


async def test_a_thread_subscribes_as_well(server: Server) -> None:
    """With the blocking client."""
    async with tocsin.connect(server.url) as client:
        await filled(client, "threads")

    def work() -> None:
        with blocking.connect(server.url) as client:
            with (
                pytest.raises(tocsin.WouldDelete),
                client.subscribe("threads", "g", start="latest"),
            ):
                pass
            with client.subscribe("threads", "g", start="latest", deletes_max=None):
                assert client.group("threads", "g")["lag"] == 0
            client.publish("threads", 1)
            with pytest.raises(tocsin.WouldDelete) as would:
                client.seek_group("threads", "g", "latest")
            assert would.value.deleted == 1
            client.create_group("threads", "other", start="latest")
            with pytest.raises(tocsin.WouldDelete):
                client.delete_group("threads", "g")
            assert client.delete_group("threads", "g", deletes_max=1) == 1

    await asyncio.to_thread(work)


async def test_the_command_says_what_to_do(server: Server) -> None:
    """`tocsin consume` creates no group that would delete messages."""
    async with tocsin.connect(server.url) as client:
        await filled(client, "shell")
    late = ("--start", "latest")
    told = run(server, "consume", "shell", "--group", "g", *late, "--until-empty")
    assert told.returncode == 1
    assert (
        "because that would delete 3 messages before its start. Use --start earliest" in told.stderr
    )
    assert "`tocsin group create shell g --start latest` to delete them" in told.stderr
    assert run(server, "group", "create", "shell", "g", *late).returncode == 1
    assert run(server, "group", "create", "shell", "g", *late, "--yes").returncode == 0
    assert run(server, "consume", "shell", "--group", "g", *late, "--until-empty").returncode == 0
