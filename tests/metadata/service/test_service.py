"""The metadata service, in all of its layouts, as gateways see it: nodes that come, go, freeze,
lose their database or have a wrong one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.catalog import GroupSettings, Membership, Principal, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.service.protocol import LAYOUTS, Layout
from metadata.service.shards import REPLICAS, held, shard_of
from push.errors import Fenced, Refused
from tests.metadata.nodes import Service, service
from tests.waiting import becomes

ALICE = Principal("alice", tenant="a")
SETTINGS = QueueSettings(partitions=4)
NAMES = ("n1", "n2", "n3", "n4")


@pytest.fixture(params=LAYOUTS)
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """Four nodes over one file, in each layout."""
    layout: Layout = request.param
    async with service(tmp_path, layout, NAMES) as made:
        yield made


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes hear of each other sooner, and let go of shards sooner."""
    monkeypatch.setattr("metadata.service.node.BEAT_S", 0.1)
    monkeypatch.setattr("metadata.service.node.KEPT_S", 0.3)


def names(metadata: CatalogService) -> list[str]:
    return [queue.name for queue in metadata.list_queues(ALICE)]


async def test_a_gateway_finds_everything_and_others_learn_what_it_changes(nodes: Service) -> None:
    here = await nodes.gateway(seed=1)
    for number in range(30):
        queue, _ = await here.put_queue(ALICE, f"q{number}", SETTINGS)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings())
    there = await nodes.gateway(seed=5)
    assert names(there) == names(here)
    assert there.secret("receipts") == here.secret("receipts")
    assert there.list_groups(ALICE, queue) == [group]
    await there.delete_queue(ALICE, "q0")
    assert await becomes(lambda: names(here) == names(there)) < 1
    assert here.dropped() == there.dropped() != []


async def test_a_killed_node_fails_nobody(nodes: Service) -> None:
    """While queues are made through it, one after another: none fails, all are known to the other
    gateway within a second."""
    here, there = await nodes.gateway(seed=1), await nodes.gateway(seed=5)
    for number, name in enumerate(("n1", "n2", "n3")):
        for more in range(5):
            await here.put_queue(ALICE, f"before-{number}-{more}", SETTINGS)
        nodes.kill(name)
        for more in range(5):
            await here.put_queue(ALICE, f"after-{number}-{more}", SETTINGS)
            assert await becomes(lambda: names(here) == names(there)) < 1
    late = await nodes.gateway("n4", "n1")
    assert names(late) == names(here)


@pytest.mark.usefixtures("fast")
async def test_nodes_that_join_and_leave_are_seen_by_nobody(nodes: Service) -> None:
    here = await nodes.gateway(seed=1)
    for number in range(20):
        await here.put_queue(ALICE, f"q{number}", SETTINGS)
    for number, (gone, new) in enumerate(zip(NAMES, ("m1", "m2", "m3", "m4"), strict=True)):
        await nodes.start(new)
        await becomes(lambda new=new: nodes.is_known(new))  # type: ignore[misc]
        await here.put_queue(ALICE, f"joined-{number}", SETTINGS)
        await nodes.stop(gone)
        await here.put_queue(ALICE, f"left-{number}", SETTINGS)
        there = await nodes.gateway(seed=number)
        assert names(there) == names(here)


@pytest.mark.parametrize("nodes", ["ring", "forward"], indirect=True)
@pytest.mark.usefixtures("fast")
async def test_each_node_keeps_its_shards_and_any_shard_is_found(nodes: Service) -> None:
    """As the ring of all says, a while after it has changed; one that has them no more says so, or
    has them from who keeps them, or from the database."""
    here = await nodes.gateway(seed=1)
    queues = [(await here.put_queue(ALICE, f"q{n}", SETTINGS))[0] for n in range(40)]
    await nodes.start("n5")
    urls = [*nodes.nodes]
    wanted = {url: held(url, urls) for url in urls}
    copies = {url: node._copy for url, node in nodes.nodes.items()}
    await becomes(lambda: {url: copy.shards for url, copy in copies.items()} == wanted)
    for queue in queues:
        number = shard_of("queues", queue.queue_id)
        assert sum(number in copy.shards for copy in copies.values()) == REPLICAS
        for url in urls:
            for how in ("", "here", "through"):
                target = f"/v1/shards/{number}?how={how}"
                answer = await nodes.network.ask(url, "GET", target, None, timeout_s=5)
                is_found = number in wanted[url] or how == "through"
                is_found = is_found or (nodes.layout == "forward" and how == "")
                assert answer.status == (200 if is_found else 404)
                assert (queue.queue_id.encode() in answer.body) == is_found


async def test_a_change_whose_answer_was_lost_is_not_made_twice_nor_taken_for_anothers(
    nodes: Service,
) -> None:
    """The node has made it, and its answer did not come: the next one says that somebody was
    faster, and that was this very change."""
    here = await nodes.gateway(seed=1)
    nodes.network.lost.add("/v1/change")
    queue, created = await here.put_queue(ALICE, "orders", SETTINGS)
    assert created
    assert not nodes.network.lost
    there = await nodes.gateway(seed=2)
    assert there.list_queues(ALICE) == [queue]
    assert await here.put_queue(ALICE, "orders", SETTINGS) == (queue, False)


async def test_a_membership_whose_answer_was_lost_was_changed(nodes: Service) -> None:
    here = await nodes.gateway(seed=1)
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings())
    seen = await here.membership(group.group_id)
    nodes.network.lost.add("/v1/memberships")
    new = Membership(
        group_id=group.group_id, generation=seen.generation + 1, members=("a",), assignment={0: "a"}
    )
    assert await here.change_membership(new, expected_generation=seen.generation)
    assert not await here.change_membership(new, expected_generation=seen.generation)
    assert await here.membership(group.group_id) == new


async def test_a_group_whose_deletion_was_lost_is_deleted_only_while_its_row_is_the_same(
    nodes: Service,
) -> None:
    """R11: a node has not deleted it, or has, and its answer did not come."""
    here = await nodes.gateway(seed=1)
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings())
    seen = await here.membership(group.group_id)
    new = Membership(
        group_id=group.group_id, generation=seen.generation + 1, members=("a",), assignment={0: "a"}
    )
    assert await here.change_membership(new, expected_generation=seen.generation)
    assert await here.glance(group.group_id) == new
    nodes.network.lost.add("/v1/change")
    with pytest.raises(Fenced):
        await here.delete_group(ALICE, queue, "g", row=seen)
    assert here.find_group(ALICE, queue, "g") == group
    nodes.network.lost.add("/v1/change")
    assert await here.delete_group(ALICE, queue, "g", row=new) == group
    assert not nodes.network.lost
    assert here.list_groups(ALICE, queue) == []


async def test_all_hear_of_changed_memberships(nodes: Service) -> None:
    here, there = await nodes.gateway(seed=1), await nodes.gateway(seed=5)
    told: list[tuple[str, int]] = []
    there.on_membership_changed(lambda group_id, generation: told.append((group_id, generation)))
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings())
    await becomes(lambda: names(there) == ["orders"])
    for generation in (1, 2):
        new = Membership(group_id=group.group_id, generation=generation, members=(), assignment={})
        assert await here.change_membership(new, expected_generation=generation - 1)
    await becomes(lambda: len(told) >= 2)
    assert told == [(group.group_id, 1), (group.group_id, 2)]


async def test_who_is_sent_from_node_to_node_hears_of_what_was_changed_between(
    nodes: Service,
) -> None:
    """Balancers do that; and is not made to ask all the time for it."""
    here = await nodes.gateway(seed=1)
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings())
    new = Membership(group_id=group.group_id, generation=1, members=(), assignment={})
    assert await here.change_membership(new, expected_generation=0)
    node = nodes.nodes["http://n3"]
    version = (await node.fresh()).version
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await node.watch(version, "another.7", 0.3)
    assert answer.members == ((group.group_id, 1),)
    assert loop.time() - began >= 0.3
    assert (await node.watch(version, answer.cursor, 0)).members == ()


async def test_a_gateway_that_nobody_answers_goes_on_and_learns_what_it_missed(
    nodes: Service,
) -> None:
    here, there = await nodes.gateway(*NAMES[:2], seed=1), await nodes.gateway(*NAMES[2:], seed=5)
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    await becomes(lambda: names(there) == ["orders"])
    with pytest.MonkeyPatch.context() as short:
        short.setattr("metadata.service.client.LOOK_TRY_S", 0.05)
        applications = dict(nodes.network.applications)
        nodes.network.applications.clear()
        assert there.find_queue(ALICE, "orders") == queue
        with pytest.raises(Refused, match="metadata_unavailable"):
            await there.put_queue(ALICE, "more", SETTINGS)
        nodes.network.applications.update(applications)
    await here.put_queue(ALICE, "missed", SETTINGS)
    await becomes(lambda: names(there) == ["missed", "orders"])
