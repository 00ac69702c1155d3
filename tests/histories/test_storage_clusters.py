"""Histories of gateways over two real storage clusters, as `TOCSIN_STORAGE` names them. One of them
is away, comes back, is another one, or is not known here."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.stores import clusters as storage_clusters
from gateway.stores.marks import read_store_mark
from metadata import placement as clusters
from metadata.catalog import ANYBODY, Queue, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.placement import ClusterFacts
from push.errors import Refused, TocsinError
from push.storage_port import Storage
from storage.redis.keys import queue_key
from storage.redis.ops.provision import provision
from storage.redis.target import parse
from tests.histories.house import House, message
from tests.histories.redis_gateways import Gateway, a_server, emptied
from tests.servers.node import Node
from tests.waiting import becomes


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two servers, each a storage cluster."""
    with ExitStack() as stack:
        yield [stack.enter_context(a_server()) for _ in "ab"]


class World:
    """Two clusters, a and b, and gateways over both."""

    def __init__(self, folder: Path, nodes: list[Node], urls: list[str]) -> None:
        self.folder = folder
        self.a, self.b = nodes
        self.urls = [
            f"{url}?cluster={name}&zone={zone}"
            for url, name, zone in zip(urls, "ab", ("north", "south"), strict=True)
        ]
        self.gateways: list[Gateway] = []

    async def gateway(self, name: str = "one", *urls: str) -> Gateway:
        """Open one more gateway, with a folder of its own, over these clusters or over both."""
        opened = Gateway(self.folder / name, " ".join(urls or self.urls))
        await opened.open()
        self.gateways.append(opened)
        return opened

    async def stop(self, *gateways: Gateway) -> None:
        """Stop these gateways, or all."""
        for one in gateways or list(self.gateways):
            self.gateways.remove(one)
            await one.stop()


@pytest.fixture
async def world(nodes: list[Node], tmp_path: Path) -> AsyncIterator[World]:
    """World of two clusters that are empty and running."""
    for node in nodes:
        if not node.is_running:
            node.start()
    made = World(tmp_path, nodes, [await emptied(node) for node in nodes])
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unexpected.append(told))
    yield made
    await made.stop()
    assert not unexpected, unexpected


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a starting gateway wait only briefly for clusters that it may not use."""
    monkeypatch.setattr(storage_clusters, "OPENED_WITHIN_S", 0.5)


def key_at(house: House, queue: Queue, number: int) -> str:
    """Return a key whose messages go to this partition."""
    route = house.broker.publisher._route(queue)
    return next(key for key in map(str, range(10_000)) if route.place(key)[0] == number)


def lane_of(queue: Queue, cluster: str) -> int:
    """Return a partition that is at this cluster."""
    return queue.clusters.index(cluster)


async def placed(house: House, name: str = "orders", **settings: Any) -> Queue:
    """Make a queue of two partitions, one at each cluster."""
    queue = await house.queue(name, partitions=2, **settings)
    assert sorted(queue.clusters) == ["a", "b"]
    return queue


async def is_avoided(house: House) -> bool:
    """Return whether a new queue has nothing at the cluster b. One that is tried before may be
    there."""
    count = len(house.broker.metadata.list_all_queues())
    try:
        queue = await house.queue(f"later{count}", partitions=2)
    except TocsinError:
        return False
    return queue.clusters == ("a",)


async def test_a_queue_is_spread_over_both_and_consumed_through_another_gateway(
    world: World,
) -> None:
    """P3: Each cluster holds its part of the log, and nothing of the other's."""
    one, two = await world.gateway("one"), await world.gateway("two")
    queue = await placed(one)
    group = await one.group(queue)
    there, _ = await two.learn()
    session, consumer = await two.subscribe(there, group)
    for number in range(20):
        await one.publish(queue, [message(number, str(number))])
    given = await session.take(20)
    assert sorted(body for _, body, _ in given) == list(range(20))
    places = [place for place, _, _ in given]
    assert (await two.confirm(consumer, [[*place, place[3]] for place in places]))[0] == 20
    assert await one.lag(queue, group) == 0
    for node, name in ((world.a, "a"), (world.b, "b")):
        key = queue_key(queue.queue_id).removesuffix("queue")
        for number, cluster in enumerate(queue.clusters):
            assert bool(node.ask("EXISTS", f"{key}log:{number}")) == (cluster == name)


@pytest.mark.usefixtures("soon")
async def test_while_one_is_away_the_other_goes_on(world: World) -> None:
    """Publishing, pushing and the start of a gateway go on. Nothing of the absent cluster is
    lost."""
    one = await world.gateway("one")
    queue = await placed(one)
    group = await one.group(queue)
    here, away = lane_of(queue, "a"), lane_of(queue, "b")
    session, consumer = await one.subscribe(queue, group)
    for number in (here, away):
        await one.publish(queue, [message(number, key_at(one, queue, number))])
    await session.take(2)
    world.b.kill()
    for _ in range(20):
        (stored,) = await one.publish(queue, [message("on", key_at(one, queue, here))])
        assert not isinstance(stored, str)
    (refused,) = await one.publish(queue, [message("off", key_at(one, queue, away))])
    assert refused in ("storage_unavailable", "unknown")
    await session.take(22)
    assert await one.broker.ready() == []
    two = await world.gateway("two")
    known, _ = await two.learn()
    (stored,) = await two.publish(known, [message("two", key_at(two, known, here))])
    assert not isinstance(stored, str)
    await session.take(23)
    world.b.start()

    async def is_back() -> bool:
        answers = [
            await house.publish(known, [message("back", key_at(house, known, away))])
            for house in (one, two)
        ]
        return not any(isinstance(answer, str) for (answer,) in answers)

    await becomes(is_back)
    places = [place for place, _, _ in session.given]
    for place in places[:2]:
        assert (await one.confirm(consumer, [[*place, place[3]]]))[0] == 1


async def test_without_the_first_one_known_queues_are_published_to(world: World) -> None:
    """The catalog is there. Requests that need it wait, and the rest is at another cluster."""
    one = await world.gateway("one")
    queue = await placed(one)
    number = lane_of(queue, "b")
    key = key_at(one, queue, number)
    world.a.kill()
    for _ in range(10):
        (stored,) = await one.publish(one.find(), [message("on", key)])
        assert not isinstance(stored, str)
        await asyncio.sleep(0.1)
    world.a.start()

    async def is_back() -> bool:
        away = key_at(one, queue, lane_of(queue, "a"))
        (answer,) = await one.publish(one.find(), [message("back", away)])
        return not isinstance(answer, str)

    await becomes(is_back)


async def test_a_console_shows_what_answers(world: World) -> None:
    """The console names the queues of which a cluster does not answer. If all clusters answer, none
    is named."""
    one = await world.gateway("one")
    await placed(one)
    async with one.http() as http:
        assert "unavailable" not in (await http.get("/v1/queues")).json()
        world.b.kill()
        await becomes(lambda: is_avoided(one))
        listed = (await http.get("/v1/queues")).json()
        names = {queue["name"] for queue in listed["queues"]}
        away = set(listed["unavailable"])
        assert away
        assert names
        assert not names & away
        assert (await http.get(f"/v1/queues/{min(away)}")).status_code == 503
        world.b.start()

        async def is_whole() -> bool:
            return "unavailable" not in (await http.get("/v1/queues")).json()

        await becomes(is_whole)


async def test_what_could_not_be_made_is_made_when_it_is_back(world: World) -> None:
    """A new queue goes to the clusters that answer. One that was being made when its cluster went
    away is whole a moment after the cluster is back."""
    one = await world.gateway()
    world.b.kill()
    with pytest.raises(TocsinError):
        await one.queue("early", partitions=2)

    await becomes(lambda: is_avoided(one))
    world.b.start()
    early = one.find("early")
    await becomes(lambda: not one.broker.reconciler.pending)
    number = lane_of(early, "b")
    answers: list[Any] = []

    async def is_published() -> bool:
        answers.extend(await one.publish(early, [message(1, key_at(one, early, number))]))
        return not isinstance(answers[-1], str)

    await becomes(is_published)
    assert answers[-1] == (number, 0, False)
    assert "queue_not_found" not in answers


@pytest.mark.usefixtures("soon")
async def test_a_cluster_that_is_another_one_is_not_used(world: World) -> None:
    """R30: The cluster of this name in the catalog was emptied, or its URL leads to another one.
    Queues at the others go on, and no gateway adopts it."""
    one = await world.gateway("one")
    queue = await placed(one)
    await world.stop(one)
    mark = read_store_mark(world.folder / "one")
    assert mark is not None
    assert set(mark.others) == {"b"}
    world.b.ask("FLUSHALL")
    (part,) = await parse(world.urls[1]).parts()
    await provision(part.settings, "incarnation-2", 0)  # an operator takes it for a new one
    for name in ("one", "new"):
        again = await world.gateway(name)
        for cluster in "ab":
            number = lane_of(queue, cluster)
            known = again.find()
            (answer,) = await again.publish(known, [message(1, key_at(again, known, number))])
            assert isinstance(answer, str) == (cluster == "b"), answer
        state = await again.broker.storage.state()
        assert any("cluster b" in why and "incarnation" in why for why in state.reasons)


async def test_a_second_cluster_that_is_emptied_ends_nobody(world: World) -> None:
    """R30: A gateway's knowledge of this cluster is then about another store. Its knowledge of the
    others is not."""
    one = await world.gateway("one")
    queue = await placed(one)
    world.b.ask("FLUSHALL")
    shard = one.broker.storage
    await becomes(lambda: is_avoided(one))
    await becomes(partial(_says, shard, "cluster b"))
    for cluster in "ab":
        (answer,) = await one.publish(
            queue, [message(1, key_at(one, queue, lane_of(queue, cluster)))]
        )
        assert isinstance(answer, str) == (cluster == "b"), answer


async def _says(storage: Storage, what: str) -> bool:
    return any(what in why for why in (await storage.state()).reasons)


async def test_a_queue_at_a_cluster_that_is_not_named_here(world: World) -> None:
    """Messages for it are refused there. The queue is not looked for at another cluster, where it
    would be empty."""
    one = await world.gateway("one")
    queue = await placed(one)
    two = await world.gateway("two", world.urls[0])
    await two.broker.metadata.set_mark("looked", "yes")
    known = two.find()
    for cluster in "ab":
        number = lane_of(queue, cluster)
        (answer,) = await two.publish(known, [message(1, key_at(two, known, number))])
        assert isinstance(answer, str) == (cluster == "b"), answer


async def test_no_new_partition_goes_to_a_hot_cluster(world: World) -> None:
    """The facts in the catalog, which a manager keeps there, say which are hot. If all are, it goes
    to the hot ones, because dead letters need their queue."""
    one = await world.gateway()
    inner = one.broker.metadata.inner
    assert isinstance(inner, CatalogService)

    async def say(name: str, state: str) -> None:
        facts = ClusterFacts(name=name, state=state)  # type: ignore[arg-type]
        await inner.set_mark(clusters.CLUSTER_MARK + name, clusters.encode_facts(facts))

    await say("b", "hot")
    assert (await one.queue("q1", partitions=16)).clusters == ("a",)
    await say("a", "hot")
    assert sorted((await one.queue("q2", partitions=16)).clusters) == ["a", "b"]
    await say("b", "well")
    assert (await one.queue("q3", partitions=16)).clusters == ("b",)
    bounded = await one.broker.create_queue(
        ANYBODY, "q4", QueueSettings(partitions=16, messages_max=100)
    )
    assert len(bounded[0].clusters) == 1


async def test_operators_see_where_partitions_are(world: World) -> None:
    """Operators see those of all clusters, and of one that is not named to this gateway."""
    one = await world.gateway("one")
    queue = await placed(one)
    inner = one.broker.metadata.inner
    assert isinstance(inner, CatalogService)
    facts = ClusterFacts(name="b", state="hot", used_bytes=90, bound_bytes=100, since_unix_ms=7)
    await inner.set_mark(clusters.CLUSTER_MARK + "b", clusters.encode_facts(facts))
    a, b = (await one.broker.clusters(ANYBODY)).clusters
    assert (a.name, a.zone, a.state, a.since_unix_ms, a.answers) == (
        "a",
        "north",
        "well",
        None,
        True,
    )
    assert (b.name, b.zone, b.state, b.since_unix_ms, b.used_bytes) == ("b", "south", "hot", 7, 90)
    assert [(each.queues, each.partitions, each.has_catalog) for each in (a, b)] == [
        (1, 1, True), (1, 1, False),
    ]  # fmt: skip
    described: Any = await one.broker.describe_queue(ANYBODY, "orders")
    assert tuple(each["cluster"] for each in described["partitions"]) == queue.clusters
    two = await world.gateway("two", world.urls[0])
    unknown = (await two.broker.clusters(None)).clusters[1]
    assert (unknown.name, unknown.answers, unknown.partitions) == ("b", False, 1)


@pytest.mark.usefixtures("soon")
async def test_clusters_that_were_not_provisioned_are_not_adopted(world: World) -> None:
    world.b.ask("FLUSHALL")
    one = await world.gateway()
    assert (await one.queue(partitions=2)).clusters == ("a",)
    world.a.ask("FLUSHALL")
    with pytest.raises(Refused, match="emptied or never provisioned"):
        await world.gateway("two")
