"""Histories of two brokers over one real Redis or Valkey, in real time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gateway.catalog import reconcile as agreement
from metadata.catalog import ANYBODY, Group, GroupSettings, QueueSettings
from metadata.heartbeats import GONE_S
from metadata.port import Metadata
from metadata.tokens import TokenRecord
from push.errors import Refused, Unknown
from tests.histories import redis_gateways
from tests.histories.house import Session, delivery, message
from tests.histories.redis_gateways import emptied
from tests.mad import MadMetadata
from tests.memory import in_memory
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node
from tests.storage.shards import answers_are_lost
from tests.waiting import becomes

SESSION = "a-session-of-22-signs_"
TOKEN = TokenRecord(
    token_id="abcdefgh", kind="token", name="billing", tenant="a", rights=("publish:*",),
    created_unix_ms=1, digest=b"d" * 32,
)  # fmt: skip


class Gateway(redis_gateways.Gateway):
    """Gateway of a pair, with consumers."""

    async def consumer(self, group: Group, name: str, **options: Any) -> tuple[Session, Any]:
        """Join a consumer of the group."""
        session = Session(name, options.pop("linger_s", 0.0))
        subscribed = self.broker.groups.consumer(session, 1, self.find(), group, 1000, **options)
        await subscribed.join()
        return session, subscribed

    def owns(self, group: Group) -> set[int]:
        """Return the partitions that are served here."""
        runtime = self.broker.groups.runtimes.get(group.group_id)
        owned_partitions = runtime.owned_partitions if runtime is not None else {}
        return {number for number, owned in owned_partitions.items() if not owned.delivery.draining}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Server of its own."""
    with in_memory() as folder, single(binaries()[0], folder) as started:
        yield started


@pytest.fixture
async def gateways(node: Node, tmp_path: Path) -> AsyncIterator[list[Gateway]]:
    """Two gateways over an empty server."""
    url = await emptied(node)
    async with AsyncExitStack() as stack:
        opened = []
        for name in "ab":
            (tmp_path / name).mkdir(mode=0o700)
            gateway = Gateway(tmp_path / name, url)
            await gateway.open()
            stack.push_async_callback(gateway.stop)
            opened.append(gateway)
        yield opened


async def group_of(gateways: list[Gateway], **settings: Any) -> Group:
    """Make a queue with a group, and wait until both gateways know it."""
    one, two = gateways
    queue = await one.queue(partitions=4)
    group, _ = await one.broker.put_group(
        ANYBODY, queue, "billing", GroupSettings(**settings), None
    )
    await becomes(lambda: two.broker.metadata.inner.queue_by_id(queue.queue_id))
    await becomes(lambda: two.broker.metadata.inner.list_groups(ANYBODY, queue))
    return group


async def publish(gateway: Gateway, count: int, first: int = 0) -> None:
    """Publish `count` messages, each of its own key."""
    answers = await gateway.publish(
        gateway.find(), [message(n, f"k{n}") for n in range(first, first + count)]
    )
    assert not any(isinstance(answer, str) for answer in answers), answers


async def test_two_gateways_serve_a_group_and_a_reader(gateways: list[Gateway]) -> None:
    """R10, R20: Both push what one publishes, each message once. A join moves half."""
    one, two = gateways
    group = await group_of(gateways)
    first, consumer = await one.consumer(group, "s1")
    reading, _ = await two.read(two.find(), start="earliest")
    await publish(two, 40)
    await first.take(40)
    assert sorted(await reading.get(40)) == list(range(40))
    second, other = await two.consumer(group, "s2")
    await becomes(lambda: len(one.owns(group)) == 2)
    assert not two.owns(group)
    acked = [one for place, *_ in first.given for one in delivery(place)]
    assert await one.confirm(consumer, acked) == (40, 0)
    assert await becomes(lambda: len(two.owns(group)) == 2) < 2
    await publish(one, 40, first=40)
    await becomes(lambda: len(first.bodies) + len(second.bodies) == 80)
    assert sorted(first.bodies + second.bodies) == list(range(80))
    assert second.bodies
    mine = [one for place, *_ in second.given for one in delivery(place)]
    assert await two.confirm(other, mine) == (len(second.bodies), 0)


async def test_a_session_moves_and_its_gateway_goes_down(gateways: list[Gateway]) -> None:
    """R22, P14."""
    one, two = gateways
    group = await group_of(gateways)
    old, _ = await one.consumer(group, SESSION, linger_s=30)
    await becomes(lambda: len(one.owns(group)) == 4)
    await publish(one, 8)
    held = [one for place, *_ in await old.take(8) for one in delivery(place)]
    session, consumer = await two.consumer(group, SESSION, linger_s=30, held=True)
    assert await consumer.hold(0, held) == []
    assert await two.confirm(consumer, held) == (8, 0)
    assert old.has_moved
    third, _ = await one.consumer(group, "s3")
    await becomes(lambda: len(one.owns(group)) == len(two.owns(group)) == 2)
    await one.broker.groups.close()
    assert await becomes(lambda: len(two.owns(group)) == 4) < 1
    await publish(two, 8, first=8)
    await session.take(8)
    assert third.bodies == []
    assert sorted(session.bodies) == list(range(8, 16))


async def test_a_server_that_was_killed_and_is_back_is_found_at_once(
    node: Node, gateways: list[Gateway]
) -> None:
    """Connections from before do not count. The first change of each kind goes through, at every
    gateway, and no queue or group is missing for a moment."""
    one, two = gateways
    group = await group_of(gateways)
    _, member = await one.consumer(group, "s1")
    await publish(one, 4)
    node.kill()
    await asyncio.sleep(0.1)  # the sockets' ends arrive
    node.start()
    assert not any(isinstance(said, str) for said in await one.publish(one.find(), [message(4)]))
    for gateway, name in ((one, "first"), (two, "second")):
        metadata = gateway.broker.metadata
        queue, is_new = await gateway.broker.create_queue(
            ANYBODY, name, QueueSettings(partitions=1)
        )
        assert is_new
        await gateway.broker.put_group(ANYBODY, queue, "billing", GroupSettings(), None)
        await metadata.tokens.create(msgspec.structs.replace(TOKEN, token_id=(name * 4)[:16]))
        assert not any(isinstance(said, str) for said in await gateway.publish(queue, [message(0)]))
    for gateway in gateways:
        for name in ("orders", "first", "second"):
            await gateway.broker.queue_for_publish(ANYBODY, name, [message(0)])
    await two.consumer(group, "s2")
    member.leave()


async def test_an_answer_says_which_gateway_it_is_of_and_which_others_there_are(
    gateways: list[Gateway],
) -> None:
    """Sessions and counters are those of one gateway. A sum over gateways shows which ones are
    missing."""
    names = [gateway.broker.groups.presence.gateway for gateway in gateways]
    await becomes(lambda: all(len(gateway.broker.gateways) == 2 for gateway in gateways))
    await group_of(gateways)
    for gateway, name in zip(gateways, names, strict=True):
        async with gateway.http() as http:
            queues = await http.get("/v1/queues")
            assert queues.json()["gateway"] == name
            assert queues.json()["gateways"] == sorted(names)
            one = await http.get("/v1/queues/orders")
            assert one.headers["tocsin-gateway"] == name
            assert one.headers["tocsin-gateways"] == ", ".join(sorted(names))
            assert "tocsin-gateway" not in (await http.get("/healthz")).headers
    await gateways[1].stop()
    await becomes(lambda: gateways[0].broker.gateways == (names[0],))
    await gateways[1].open()


async def test_a_gateway_that_beats_no_longer_is_taken_over_from(gateways: list[Gateway]) -> None:
    """P6, P7: The metadata does not answer it. The storage does, and refuses its settlements."""
    one, two = gateways
    group = await group_of(gateways)
    first, consumer = await one.consumer(group, "s1")
    second, other = await two.consumer(group, "s2")
    await becomes(lambda: len(one.owns(group)) == len(two.owns(group)) == 2)
    await publish(two, 20)
    await becomes(lambda: len(first.bodies) + len(second.bodies) == 20)
    mad = MadMetadata(one.broker.metadata.inner)
    mad.stall()
    guarded = one.broker.metadata
    guarded.inner = guarded._memberships._inner = cast(Metadata, mad)
    assert await becomes(lambda: len(two.owns(group)) == 4) < GONE_S + 2
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    consumer.ack([x for place, *_ in first.given for x in delivery(place)], [], done.set_result)
    assert not (await done).durable
    await becomes(lambda: sorted(second.bodies) == list(range(20)))
    await two.confirm(other, [x for place, *_ in second.given for x in delivery(place)])
    mad.well()
    await becomes(lambda: len(one.owns(group)) == 2)


async def test_what_lost_answers_leave_half_done_is_finished(
    gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, R12: The catalog's half has happened. The client knows nothing, and does not ask
    again."""
    monkeypatch.setattr(agreement, "DUE_S", 0.2)
    one, two = gateways
    queue = await one.queue(partitions=2)
    group = await one.group(queue, "passing")
    with answers_are_lost("catalog_change"):
        with pytest.raises(Unknown):
            await one.queue("half")
        with pytest.raises(Unknown):
            await one.broker.delete_group(ANYBODY, queue, "passing")
    await becomes(lambda: two.broker.metadata.inner.list_queues(ANYBODY)[1:])
    await becomes(two.broker.metadata.inner.dropped)
    await becomes(lambda: not two.broker.metadata.inner.dropped())
    for gateway in gateways:
        assert await gateway.broker.storage.cursors(queue.queue_id, group.group_id) == []
        with pytest.raises(Refused, match="group_not_found"):
            await gateway.broker.storage.create_group(
                group.group_id, queue.queue_id, ["earliest", "earliest"]
            )
    half = two.find("half")
    await becomes(lambda: two.broker.storage.partitions(half.queue_id), 10)
    assert await two.publish(half, [message("here")]) == [(0, 0, False)]
