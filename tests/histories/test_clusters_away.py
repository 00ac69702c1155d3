"""Messages at several storage clusters. If one is slow or away, only its own messages suffer."""

import asyncio

import pytest

from gateway.catalog.reconcile import DUE_S
from metadata.catalog import ANYBODY, Group, Queue
from push import limits
from push.errors import Unknown
from push.message import Message
from tests.histories.clusters_house import ClustersHouse, at_clusters, away
from tests.histories.house import codes, message, numbered

ANN = b"producer-ann...."


def key_at(house: ClustersHouse, queue: Queue, number: int) -> str:
    """Return a key whose messages go to this partition."""
    route = house.broker.publisher._route(queue)
    return next(key for key in map(str, range(10_000)) if route.place(key)[0] == number)


async def two(house: ClustersHouse) -> tuple[Queue, Group, list[Message], list[Message]]:
    """Make a queue of two partitions, a group, and a message for each cluster."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue)
    here, there = key_at(house, queue, 0), key_at(house, queue, 1)
    return queue, group, [message(1, here)], [message(2, there)]


@at_clusters
async def test_a_queue_is_at_both_and_read_from_both(house: ClustersHouse) -> None:
    queue, group, here, there = await two(house)
    assert queue.clusters == ("a", "b")
    session, consumer = await house.subscribe(queue, group)
    assert await house.publish(queue, here) == [(0, 0, False)]
    assert await house.publish(queue, there) == [(1, 0, False)]
    assert await house.publish(queue, [*there, *here]) == [(1, 1, False), (0, 1, False)]
    places = [place for place, _, _ in await session.take(4)]
    assert (await house.confirm(consumer, [[*place, place[3]] for place in places]))[0] == 4
    assert await house.lag(queue, group) == 0


@at_clusters
async def test_a_cluster_that_hangs_holds_up_nothing_at_the_other(house: ClustersHouse) -> None:
    """Commits, refusals because one cluster is slow, and cursor writes all go on. A publish that
    goes to both is answered message by message (R5)."""
    queue, group, here, there = await two(house)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [*here, *there])
    places = [place for place, _, _ in await session.take(2)]
    house.b.stall()
    stuck = house.submit(queue, there)
    assert await house.publish(queue, here) == [(0, 1, False)]
    written = asyncio.ensure_future(
        house.confirm(consumer, [[*place, place[3]] for place in places if place[0] == 1])
    )
    (mine,) = [place for place in places if place[0] == 0]
    assert (await house.confirm(consumer, [[*mine, mine[3]]]))[0] == 1
    await asyncio.sleep(limits.COMMIT_SLOW_S + 1)
    assert not stuck.done()
    for _ in range(20):
        assert await house.publish(queue, here) != ["overloaded"]
    assert await house.publish(queue, [*there, *here]) == ["overloaded", (0, 22, False)]
    await session.take(23)
    house.b.well()
    assert codes(await stuck) == [(1, 1, False)]
    assert (await written)[0] == 1
    assert await house.publish(queue, there) == [(1, 2, False)]


@at_clusters
async def test_a_cluster_that_is_away_refuses_what_is_its_own(house: ClustersHouse) -> None:
    """P2, R7: Messages after a refused one of its producer are not stored. Those that its producer
    sends to the other cluster are."""
    queue, _, here, there = await two(house)
    away(house.b)
    refused = await house.submit(queue, [*there, *here], producer=ANN, sequence=0)
    assert codes(refused) == ["storage_unavailable", (0, 0, False)]
    house.b.well()
    behind = await house.submit(queue, [*there, *here], producer=ANN, sequence=2)
    assert codes(behind) == ["out_of_sequence", (0, 1, False)]
    again = await house.submit(queue, there, producer=ANN, sequence=0)
    assert codes(again) == [(1, 0, False)]


@at_clusters
async def test_what_waits_for_one_cluster_leaves_room_for_the_other(house: ClustersHouse) -> None:
    """P9: A flood at a cluster that hangs is refused before messages for the other one are."""
    house.cycle = ("b",)
    floods = [await house.queue(f"flood{number}") for number in range(8)]
    house.cycle = ("a",)
    calm = await house.queue("calm")
    house.b.stall("append")
    answers = [house.submit(flood, numbered(100)) for _ in range(70) for flood in floods]
    outcomes = [codes(answer.result())[0] for answer in answers if answer.done()]
    assert "overloaded" in outcomes
    assert await house.publish(calm, numbered(2000)) == [(0, n, False) for n in range(2000)]
    house.b.well()
    await asyncio.gather(*answers)
    publisher = house.broker.publisher
    assert (publisher.pending_messages, publisher.pending_bytes) == (0, 0)
    lanes = publisher.commits._lanes.values()
    assert {(lane.backlog.messages, lane.backlog.bytes) for lane in lanes} == {(0, 0)}


@at_clusters
async def test_what_waits_for_one_cluster_of_a_queue_leaves_room_for_the_other(
    house: ClustersHouse,
) -> None:
    """P9: The same holds for queues that are at both."""
    queues = [await house.queue(f"q{number}", partitions=2) for number in range(8)]
    keys = [(key_at(house, queue, 0), key_at(house, queue, 1)) for queue in queues]
    house.b.stall("append")
    answers = [
        house.submit(queue, [message(number, there) for number in range(100)])
        for _ in range(70)
        for queue, (_, there) in zip(queues, keys, strict=True)
    ]
    outcomes = [codes(answer.result())[0] for answer in answers if answer.done()]
    assert "overloaded" in outcomes
    calm = [message(number, keys[0][0]) for number in range(2000)]
    assert await house.publish(queues[0], calm) == [(0, n, False) for n in range(2000)]
    house.b.well()
    await asyncio.gather(*answers)
    publisher = house.broker.publisher
    assert (publisher.pending_messages, publisher.pending_bytes) == (0, 0)


@at_clusters
async def test_a_queue_that_one_cluster_could_not_make_is_made_later(house: ClustersHouse) -> None:
    """No second request is needed. Keys there would otherwise be refused until the next start."""
    away(house.b)
    with pytest.raises(Unknown):
        await house.queue(partitions=2)
    queue = house.find()
    assert house.broker.reconciler.pending
    house.b.well()
    await asyncio.sleep(3 * DUE_S)
    assert not house.broker.reconciler.pending
    assert await house.publish(queue, [message(1, key_at(house, queue, 1))]) == [(1, 0, False)]


@at_clusters
async def test_a_gateway_starts_without_a_cluster_and_catches_up(house: ClustersHouse) -> None:
    """The gateway gives out messages of the others meanwhile."""
    queue, group, here, there = await two(house)
    dropped = await house.queue("dropped", partitions=2)
    await house.publish(queue, here)
    away(house.b)
    with pytest.raises(Unknown):
        await house.broker.delete_queue(ANYBODY, "dropped")
    house.outlive()
    await house.stop()
    await house.open()
    session, _ = await house.subscribe(house.find(), group)
    await session.take(1)
    assert house.broker.reconciler.pending
    house.b.well()
    await asyncio.sleep(3 * DUE_S)
    assert not house.broker.reconciler.pending
    assert await house.b.real.partitions(dropped.queue_id) == []
    assert await house.publish(queue, there) == [(1, 0, False)]
    await session.take(2)


@at_clusters
async def test_reads_that_hang_at_one_cluster_leave_turns_for_the_other(
    house: ClustersHouse,
) -> None:
    """P8: The largest allowed number of reads waits for the one cluster, and the other is read all
    the same."""
    house.cycle = ("b",)
    stuck = await house.queue("stuck", partitions=limits.READS_LIVE_MAX + 8)
    house.cycle = ("a",)
    calm = await house.queue("calm")
    for queue in (stuck, calm):
        await house.publish(queue, [message(n, str(n)) for n in range(1000)])
    house.b.stall("read")
    await house.subscribe(stuck, await house.group(stuck))
    await asyncio.sleep(1)
    session, _ = await house.subscribe(calm, await house.group(calm))
    await session.take(1000)


@at_clusters
async def test_what_waits_when_its_queue_is_deleted_leaves_nothing_behind(
    house: ClustersHouse,
) -> None:
    """P9: The row that names its destination was deleted before the messages went there."""
    house.cycle = ("b",)
    queue = await house.queue()
    house.b.stall("append")
    answers = [house.submit(queue, numbered(10)) for _ in range(3)]
    await asyncio.sleep(0.1)
    answers.append(house.submit(queue, numbered(10)))
    await house.broker.delete_queue(ANYBODY, "orders")
    house.b.well()
    assert {codes(await answer)[0] for answer in answers} == {"queue_not_found"}
    lanes = house.broker.publisher.commits._lanes.values()
    assert {(lane.backlog.messages, lane.backlog.bytes) for lane in lanes} == {(0, 0)}


@at_clusters
async def test_a_list_has_what_answers_though_dead_letters_are_elsewhere(
    house: ClustersHouse,
) -> None:
    """A broker had one cluster, and its queues' rows name none. Then a second one came, and the
    first dead letter."""
    house.cycle = ()
    queue = await house.queue()
    await house.publish(queue, [message(1, "k")])
    house.cycle = ("b",)
    dead = await house.broker._dead_letter_queue(queue)
    away(house.b)
    async with house.http() as http:
        listed = (await http.get("/v1/queues")).json()
        (shown,) = listed["queues"]
        assert (shown["name"], shown["depth"], shown["dead_letters"]["messages"]) == (
            "orders", 1, None,
        )  # fmt: skip
        assert listed["unavailable"] == [dead.name]
        await house.publish(queue, [message(2, "k")])  # what is known of it is old
        away(house.a)
        listed = (await http.get("/v1/queues")).json()
        assert (listed["queues"], listed["unavailable"]) == ([], ["orders", dead.name])
