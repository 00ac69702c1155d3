"""`tocsin admin partitions`: over the socket, for people and for machines."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.admin.server import AdminSocket
from gateway.broker import Broker
from gateway.cli.serve import admin as admin_command
from gateway.models import ClusterDescription
from metadata.catalog import Principal
from tests.histories.clusters_house import ClustersHouse

FOUND = [
    ClusterDescription(
        name="a", zone="north", state="hot", since_unix_ms=1, why="", used_bytes=85,
        bound_bytes=100, answers=True, has_catalog=True, queues=1, partitions=2,
    ),
    ClusterDescription(
        name="b", zone="", state="well", since_unix_ms=None, why="", used_bytes=None,
        bound_bytes=None, answers=False, has_catalog=False, queues=1, partitions=2,
    ),
]  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """With a queue at two clusters, and its admin socket."""
    house = ClustersHouse(tmp_path)
    await house.open()
    await house.queue(partitions=4)
    socket = AdminSocket(tmp_path, house.broker)
    await socket.start()
    yield house.broker
    await socket.stop()
    await house.stop()


async def run(broker: Broker, *arguments: str) -> Result:
    """The command, in a thread: the socket is answered by this loop."""
    invoke: Callable[..., Result] = CliRunner().invoke
    words = ["partitions", *arguments, "--data-dir", str(broker.config.data_dir)]
    return await asyncio.to_thread(invoke, admin_command, words)


async def test_where_a_queues_partitions_are(broker: Broker) -> None:
    done = await run(broker, "orders")
    assert done.exit_code == 0, done.output
    assert [line.split("  ")[:2] for line in done.stdout.splitlines()] == [
        ["0", "at a"], ["1", "at b"], ["2", "at a"], ["3", "at b"],
    ]  # fmt: skip
    shown: dict[str, Any] = json.loads((await run(broker, "orders", "--json")).stdout)
    assert [one["cluster"] for one in shown["partitions"]] == ["a", "b", "a", "b"]
    assert "queue_not_found" in (await run(broker, "other")).output


async def test_what_each_cluster_has(broker: Broker) -> None:
    async def clusters(_: Principal | None) -> list[ClusterDescription]:
        return FOUND

    assert "in its data folder" in (await run(broker)).output
    broker._clusters = clusters
    done = await run(broker)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "a in north  hot, 85 % of 100 bytes taken; 2 partitions of 1 queue, and the catalog",
        "b  no manager has looked yet, its memory is not known; 2 partitions of 1 queue",
        "  now  it does not answer this broker",
    ]
    shown = json.loads((await run(broker, "--json")).stdout)
    assert shown == {"clusters": msgspec.to_builtins(FOUND)}
