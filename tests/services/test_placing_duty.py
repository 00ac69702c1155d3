"""A manager and two real storage clusters: what it finds is where gateways place new queues by it,
and what deleted queues held is freed when no gateway does it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import random
from typing import Any

import pytest

from metadata import placement as clusters
from metadata import placement as scaling
from metadata.catalog import ANYBODY, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.placement import ClusterFacts
from metadata.port import STORAGE_INCARNATION
from metadata.service.client import NodeChoice, NodeClient
from push.errors import Refused
from runtime.webhook import ScaleHook
from services.manager import placement as out_cluster
from services.manager import placement as placing_duty
from services.manager.leader import RedisLeaderRow
from services.manager.manager import ClusterSearch, Manager
from services.manager.placement import Placing, PlacingDuty
from storage.redis.target import parse, parse_all
from tests.histories.house import never
from tests.histories.redis_gateways import Gateway, a_server, emptied
from tests.metadata.nodes import service
from tests.servers.node import Node
from tests.waiting import becomes

STEP_S = 0.3


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two servers, each a storage cluster."""
    with ExitStack() as stack:
        yield [stack.enter_context(a_server()) for _ in "ab"]


@pytest.fixture
async def urls(nodes: list[Node]) -> str:
    """Both as the settings name them, empty."""
    found = []
    for name, node in zip("ab", nodes, strict=True):
        if not node.is_running:
            node.start()
        node.ask("CONFIG", "SET", "maxmemory", "1gb")
        found.append(f"{await emptied(node)}?cluster={name}&zone=z{name}")
    return " ".join(found)


@pytest.fixture
async def gateway(urls: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Yield one over both."""
    opened = Gateway(tmp_path / "gateway", urls)
    await opened.open()
    yield opened
    await opened.stop()


async def begun(
    urls: str, hook: ScaleHook | None = None, nodes: Callable[[], NodeClient] | None = None
) -> Manager:
    """A manager of both, which takes part."""
    targets = parse_all(urls)
    named = [(target.cluster, target) for target in targets]
    manager = await Manager.open(named, placing=Placing(targets, hook, nodes=nodes))
    manager.start()
    return manager


@pytest.fixture
async def manager(urls: str) -> AsyncIterator[Manager]:
    """See `begun`."""
    opened = await begun(urls)
    yield opened
    await opened.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Managers look often, and who does not answer is away soon."""
    monkeypatch.setattr(placing_duty, "STEP_S", STEP_S)
    monkeypatch.setattr(clusters, "AWAY_S", 1.0)


def fill(node: Node, share: float) -> None:
    """So much of its memory is taken now."""
    used = int(node.info("memory")["used_memory"])
    node.ask("CONFIG", "SET", "maxmemory", str(int(used / share)))


def facts(gateway: Gateway, name: str) -> ClusterFacts | None:
    """As the gateway knows them."""
    return clusters.read_facts(gateway.broker.metadata.mark(clusters.CLUSTER_MARK + name))


def is_in(gateway: Gateway, name: str, state: str) -> Any:
    """Whether the gateway knows it to be in this state."""

    def looked() -> bool:
        found = facts(gateway, name)
        return found is not None and found.state == state

    return looked


async def test_the_catalog_is_where_gateways_have_it(urls: str, tmp_path: Path) -> None:
    """Behind a metadata service over a file; the first cluster has another one, which is empty."""
    async with service(tmp_path, "whole", ["n1"]) as made:
        catalog = await made.gateway()
        network = made.network
        opened = await begun(
            urls, nodes=lambda: NodeClient(network, NodeChoice(["http://n1"], random))
        )
        await becomes(
            lambda: clusters.read_facts(catalog.mark(clusters.CLUSTER_MARK + "b")) is not None
        )
        await opened.stop()


async def test_of_another_store_than_the_catalog_s_nothing_is_freed(
    urls: str, tmp_path: Path
) -> None:
    """R30: what was dropped would be forgotten, and stay where it is."""
    async with service(tmp_path, "whole", ["n1"]) as made:
        catalog = await made.gateway()
        await catalog.set_mark(STORAGE_INCARNATION, "another")
        network = made.network
        nodes = NodeClient(network, NodeChoice(["http://n1"], random))
        opened = await begun(urls)
        duty = PlacingDuty(Placing(parse_all(urls), nodes=lambda: nodes), never)
        with pytest.raises(Refused, match="exchanged"):
            await duty.step(opened.leader)
        await duty.close()
        await opened.stop()


async def test_a_cluster_that_nobody_can_see_keeps_managers_from_no_other(
    urls: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which shards a Redis Cluster has only its nodes can tell, and none answers at the start."""
    (home, _) = parse_all(urls)
    away = parse("redis+cluster://127.0.0.1:1")
    opened = await Manager.open([("a", home), ("c", away)])
    opened.start()
    row = RedisLeaderRow(opened._shard)

    async def tells() -> bool:
        return "a" in await row.reports() and "no node of the cluster answers" in caplog.text

    await becomes(tells)
    await becomes(lambda: opened._metrics._steps["c", "failed"] > 2)
    assert caplog.text.count("no node of the cluster answers") == 1  # counted each time, said once
    (search,) = [duty for duty in opened.duties if isinstance(duty, ClusterSearch)]
    search._target = parse_all(urls)[1]  # it is there now, whatever it is
    await becomes(lambda: not opened._unseen)

    async def is_told() -> bool:
        return set(await row.reports()) == {"", "a", "c"}

    await becomes(is_told)
    await opened.stop()


async def test_nothing_is_told_of_a_cluster_that_is_called_otherwise_now(urls: str) -> None:
    """Else it would be shown as it was seen last, for ever."""

    async def tells(row: RedisLeaderRow, names: set[str]) -> bool:
        return set(await row.reports()) == names

    for names in (("old", "b"), ("a", "b")):
        opened = await Manager.open(list(zip(names, parse_all(urls), strict=True)))
        opened.start()
        await becomes(partial(tells, RedisLeaderRow(opened._shard), {"", *names}))
        await opened.stop()


@pytest.mark.usefixtures("manager")
async def test_an_overheated_cluster_gets_no_new_partition(
    gateway: Gateway, nodes: list[Node]
) -> None:
    """And gets some again when it has cooled down; one that is away is known, too."""
    fill(nodes[1], 0.85)
    await becomes(is_in(gateway, "b", "hot"))
    assert (await gateway.queue("q1", partitions=16)).clusters == ("a",)
    fill(nodes[1], 0.75)
    await asyncio.sleep(4 * STEP_S)
    assert is_in(gateway, "b", "hot")()
    fill(nodes[1], 0.5)
    await becomes(is_in(gateway, "b", "well"))
    assert "b" in (await gateway.queue("q2", partitions=16)).clusters
    nodes[1].kill()
    await becomes(is_in(gateway, "b", "away"))
    found = facts(gateway, "b")
    assert found is not None
    assert found.why


async def test_what_nobody_freed_is_freed(
    urls: str, gateway: Gateway, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: deleted through a gateway that ended before it could drop anything."""
    monkeypatch.setattr(out_cluster, "LEFT_S", 0.5)
    queue = await gateway.queue(partitions=16)
    assert set(queue.clusters) == {"a", "b"}
    inner = gateway.broker.metadata.inner
    assert isinstance(inner, CatalogService)
    await inner.delete_queue(ANYBODY, "orders")
    manager = await begun(urls)
    try:
        await becomes(lambda: not inner.dropped())
    finally:
        await manager.stop()
    touch, gone = (f"{{{queue.queue_id}}}:{what}" for what in ("touch", "gone"))
    for node in nodes:
        left = set(node.ask("KEYS", f"*{queue.queue_id}*"))
        assert left - {touch} == {gone}  # a touch expires; that it has gone is known for ever (R1)
        assert node.ask("GET", gone) == "0"


async def test_the_scale_hook_is_called_once_by_two_managers(
    urls: str, nodes: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which the one that leads ends, and the other takes over."""
    monkeypatch.setattr(scaling, "HOLD_S", 1.0)
    monkeypatch.setattr(out_cluster, "HOOK_S", 1.0)
    heard = tmp_path / "heard"
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\ncat >> "{heard}"\necho >> "{heard}"\n')
    hook.chmod(0o700)
    for node in nodes:
        fill(node, 0.9)
    both = [await begun(urls, ScaleHook(str(hook))) for _ in range(2)]
    try:
        await becomes(heard.exists)
        leading = next(one for one in both if one.leader.leads)
        both.remove(leading)
        await asyncio.sleep(1)
        await leading.stop()
        await becomes(lambda: both[0].leader.leads)
        await asyncio.sleep(3)  # a second wish would have held for long enough, and been told
    finally:
        for one in both:
            await one.stop()
    (told,) = [json.loads(line) for line in heard.read_text().splitlines() if line]
    assert (told["wish"], [one["name"] for one in told["clusters"]]) == ("add", ["a", "b"])


@pytest.mark.usefixtures("manager")
async def test_a_cluster_that_was_emptied_is_as_good_as_away(
    gateway: Gateway, nodes: list[Node]
) -> None:
    """It answers, and has all its memory free; nothing can be kept there (R30)."""
    await becomes(is_in(gateway, "b", "well"))
    nodes[1].ask("FLUSHALL")
    await becomes(is_in(gateway, "b", "away"))
    found = facts(gateway, "b")
    assert found is not None
    assert "not the store that it was" in found.why
    assert is_in(gateway, "a", "well")()


async def test_a_manager_without_the_second_cluster_does_its_duty(
    urls: str, nodes: list[Node], gateway: Gateway
) -> None:
    """What is away is what it is there to tell of."""
    nodes[1].kill()
    manager = await begun(urls)
    try:
        await becomes(is_in(gateway, "a", "well"))
        await becomes(is_in(gateway, "b", "away"))
    finally:
        await manager.stop()
    settings = QueueSettings(partitions=4)
    assert (await gateway.broker.create_queue(ANYBODY, "q", settings))[0].clusters == ("a",)
