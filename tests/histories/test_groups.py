"""Histories of groups and queues: beginnings, seeks, ends, owners (R1, R2, R11, R14, R20)."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gateway.auth.auth import Authenticator
from gateway.delivery.group import GroupRuntime
from gateway.delivery.pull import PullConsumer
from gateway.models import SeekTo
from gateway.session.directory import SessionServices
from gateway.wire.frames import Position
from metadata.catalog import ANYBODY, Group, GroupSettings, Queue
from push.errors import Refused
from tests.histories.house import (
    WAIT_S,
    House,
    Session,
    Socket,
    delivery,
    eventually,
    message,
    numbered,
    offsets_of,
)
from tests.histories.mad_house import MadHouse, mad


async def test_a_queue_made_anew_under_its_name_knows_nothing_of_the_old_one(house: House) -> None:
    """R1: Old acks, receipts, positions and ids mean nothing in it, and its groups are new."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message(0, id="a"), message(1), message(2)])
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(3)
    await house.confirm(consumer, [[*given[0][0], 1]])
    consumer.leave()
    (pulled,) = await house.broker.pulls.pull(queue, group, 1, 2)
    reading, _ = await house.read(queue, start="earliest")
    await reading.get(3)

    await house.broker.delete_queue(ANYBODY, "orders")
    assert reading.frames[-1]["code"] == "queue_not_found"
    anew = await house.queue()
    assert anew.queue_id != queue.queue_id
    with pytest.raises(Refused, match="group_not_found"):
        house.broker.metadata.find_group(ANYBODY, anew, "billing")
    assert await house.publish(anew, [message("new", id="a")]) == [(0, 0, False)]
    group = await house.group(anew)
    session, consumer = await house.subscribe(anew, group)
    ((place, body, _),) = await session.take(1)
    assert body == "new"
    settled = await house.broker.pulls.ack(anew, group, [pulled.receipt])
    assert (settled.settled, settled.invalid) == (0, [pulled.receipt])
    settled_by_place = consumer.ack([[*given[2][0], 2]], [], None)
    assert settled_by_place.settled == 0
    position = Position(queue_id=queue.queue_id, partitions={"0": [1, 1]})
    with pytest.raises(Refused, match="position_unknown"):
        await house.read(anew, position=position)
    assert await house.confirm(consumer, delivery(place)) == (1, 0)


async def test_a_deleted_queue_stays_deleted_over_a_restart(durable_house: House) -> None:
    """R1: A queue made later under its name keeps its own id, groups and messages."""
    house = durable_house
    queue = await house.queue()
    await house.group(queue)
    await house.publish(queue, numbered(5))
    await house.broker.delete_queue(ANYBODY, "orders")
    anew = await house.queue()
    await house.publish(anew, numbered(1, first=100))
    await house.restart()
    assert house.find().queue_id == anew.queue_id
    group = await house.group(house.find())
    session, _ = await house.subscribe(house.find(), group)
    assert await session.get(1) == [100]
    assert await house.broker.storage.partitions(queue.queue_id) == []


async def test_offsets_go_on_after_everything_is_trimmed_and_restarted(
    durable_house: House,
) -> None:
    """R2: Everything is settled and deleted, and the process starts again. The next offset is not
    0, and not below any cursor."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(5))
    given = await session.take(5)
    await house.confirm(consumer, [[*given[0][0], 4]])
    await house.broker.janitor.look()
    (state,) = await house.broker.storage.partitions(queue.queue_id)
    assert state.messages == 0
    await house.restart()
    queue = house.find()
    assert await house.publish(queue, [message(5)]) == [(0, 5, False)]
    session, _ = await house.subscribe(queue, group)
    assert await session.get(1) == [5]


async def test_the_first_subscribe_makes_a_group_at_the_earliest_message(house: House) -> None:
    """R11: Messages that were published before the first subscribe are its own."""
    queue = await house.queue(partitions=3)
    await house.publish(queue, [message(n, f"k{n}") for n in range(30)])
    await house.broker.janitor.look()  # nobody subscribes yet, so nothing goes
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    assert sorted(await session.get(30)) == list(range(30))


async def test_a_group_starts_at_latest_or_at_a_time(house: House) -> None:
    """R11: Messages published before are not its own."""
    queue = await house.queue()
    await house.publish(queue, numbered(2))
    between_unix_ms = int(time.time() * 1000) + 2
    await eventually(lambda: time.time() * 1000 > between_unix_ms + 1)
    await house.publish(queue, numbered(2, first=2))
    latest = await house.group(queue, "latest", start="latest")
    timed = await house.group(queue, "timed", start=between_unix_ms)
    future = await house.group(queue, "future", start=between_unix_ms + 10**9)
    sessions = [(await house.subscribe(queue, group))[0] for group in (latest, timed, future)]
    await house.publish(queue, [message(4)])
    assert await sessions[0].get(1) == [4]
    assert await sessions[1].get(3) == [2, 3, 4]
    assert await sessions[2].get(1) == [4]


async def test_a_group_is_durable_before_its_subscribe_is_answered(durable_house: House) -> None:
    """R11, P1: A message accepted after the group was made waits for it over a restart. The start
    of the group stays the same."""
    house = durable_house
    queue = await house.queue()
    await house.publish(queue, [message("before")])
    await house.group(queue, start="latest")
    await house.publish(queue, [message("after")])
    await house.restart()
    queue = house.find()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    assert await session.get(1) == ["after"]


async def test_consumers_that_make_a_group_together_share_it(house: House) -> None:
    """R11: Three first subscribes come at once. They make one group, and each message comes
    once."""
    queue = await house.queue(partitions=6)
    await house.publish(queue, [message(n, f"k{n}") for n in range(60)])

    async def first() -> Session:
        return (await house.subscribe(queue, await house.group(queue)))[0]

    async with asyncio.timeout(WAIT_S):
        sessions = await asyncio.gather(*(first() for _ in range(3)))
    await eventually(lambda: sum(len(session.bodies) for session in sessions) == 60)
    runtime = house.broker.groups.runtimes[(await house.group(queue)).group_id]
    await eventually(lambda: len(set(runtime.assignment.values())) == 3)


async def test_a_subscribe_that_overtakes_the_making_of_the_group_is_served(house: House) -> None:
    """R11: The catalog has the group, and the storage does not yet. A subscribe waits for it."""
    queue = await house.queue()
    await house.publish(queue, numbered(2))
    group, _ = await house.broker.metadata.put_group(ANYBODY, queue, "billing", GroupSettings())
    session, _ = await house.subscribe(queue, group)
    assert await session.get(2) == [0, 1]


async def test_acks_from_before_a_seek_do_not_count(house: House) -> None:
    """A seek fences. Deliveries in flight are revoked, and their acks are stale. The group starts
    where it was sent, with attempts forgotten."""
    queue = await house.queue(retention_s=3600)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(4))
    given = await session.take(4)
    assert await house.confirm(consumer, [[*given[0][0], 1]]) == (2, 0)
    await house.broker.seek_group(ANYBODY, queue, "billing", "earliest")
    (revoked,) = session.of_type("revoked")
    assert revoked["deliveries"] == [[*given[0][0][:3], 2, 2, 3, 3]]
    assert await house.confirm(consumer, [[*given[2][0], 3]]) == (0, 1)
    again = await session.take(8)
    assert [body for _, body, _ in again[4:]] == [0, 1, 2, 3]
    assert {attempt for _, _, attempt in again} == {1}
    assert await house.lag(queue, group) == 4
    assert await house.confirm(consumer, [[*again[4][0], 3]]) == (4, 0)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("latest", [99]),
        (("offset", 2), [2, 3, 99]),
        (("offset", 1000), [99]),
        (("unix_ms", 0), [0, 1, 2, 3, 99]),
    ],
)
async def test_a_group_is_sent_anywhere(house: House, to: SeekTo, expected: list[int]) -> None:
    """R11: It goes to the end, an offset or a time, without a consumer and over all partitions."""
    queue = await house.queue(retention_s=3600)
    group = await house.group(queue)
    await house.publish(queue, numbered(4))
    await house.broker.seek_group(ANYBODY, queue, "billing", to)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message(99)])
    assert await session.get(len(expected)) == expected


async def test_members_of_a_deleted_group_hear_of_it(house: House) -> None:
    """R11: Their deliveries are revoked, an error names the subscription, and nothing comes any
    more. A later group of that name is another one, and the other group goes on."""
    queue = await house.queue(retention_s=3600)
    group, other = await house.group(queue), await house.group(queue, "other")
    session, consumer = await house.subscribe(queue, group)
    unmoved, _ = await house.subscribe(queue, other)
    await house.publish(queue, numbered(2))
    ((place, _, _), _) = await session.take(2)
    waiting = asyncio.ensure_future(house.broker.pulls.pull(queue, group, 1, 20))
    members = house.broker.groups.runtimes[group.group_id].members
    await eventually(
        lambda: isinstance(puller := members.get("pulls"), PullConsumer) and puller.busy
    )
    await house.broker.delete_group(ANYBODY, queue, "billing")
    assert [frame["type"] for frame in session.frames[-2:]] == ["revoked", "error"]
    assert session.frames[-1]["code"] == "group_not_found"
    assert session.frames[-1]["subscription"] == consumer.subscription
    async with asyncio.timeout(1):
        assert await waiting == []
    count = len(session.frames)
    await house.publish(queue, [message(2)])
    assert await unmoved.get(3) == [0, 1, 2]
    assert len(session.frames) == count
    assert consumer.ack(delivery(place), [], None).settled == 0
    consumer.grant(5000)
    consumer.leave()
    anew = await house.group(queue)
    assert anew.group_id != group.group_id
    session, _ = await house.subscribe(queue, anew)
    assert await session.get(3) == [0, 1, 2]


async def test_a_subscribe_to_a_group_that_is_being_deleted_gets_an_error(
    house: House,
) -> None:
    """R11: It never becomes a consumer that silently gets nothing."""
    queue = await house.queue()
    for _ in range(20):
        group = await house.group(queue)
        deleting = asyncio.ensure_future(house.broker.delete_group(ANYBODY, queue, "billing"))
        while not deleting.done():
            session = Session("hopeful")
            with suppress(Refused):
                await house.subscribe(queue, group, session=session)
                await asyncio.shield(deleting)
                assert session.frames[-1]["code"] == "group_not_found"
            await asyncio.sleep(0)
        await deleting


@pytest.mark.parametrize("goes", ["the queue", "the group"])
async def test_who_comes_as_its_group_is_deleted_leaves_nothing_running(
    house: House, goes: str
) -> None:
    """R11: A subscribe or a pull comes at any moment of the deletion. Nothing else would end what
    it began."""
    groups, pulls = house.broker.groups, house.broker.pulls

    async def come(queue: Queue, group: Group, after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        with suppress(Refused):
            if after % 2:
                await pulls.pull(queue, group, 1, 0)
            else:
                await house.subscribe(queue, group)

    for ahead in (0, 3, 8, 20):
        queue = await house.queue()
        group = await house.group(queue)
        coming = [asyncio.create_task(come(queue, group, after)) for after in range(60)]
        for _ in range(ahead):
            await asyncio.sleep(0)
        if goes == "the queue":
            await house.broker.delete_queue(ANYBODY, queue.name)
        else:
            await house.broker.delete_group(ANYBODY, queue, group.name)
        await asyncio.gather(*coming)
        for late in (house.subscribe(queue, group), pulls.pull(queue, group, 1, 0)):
            with pytest.raises(Refused, match="_not_found"):
                await late
        assert groups.facts()["groups_running"] == 0
        if goes == "the group":
            await house.broker.delete_queue(ANYBODY, queue.name)


async def test_a_crowd_that_joins_and_leaves_is_a_few_writes_of_the_row(house: House) -> None:
    """R14: A thousand sessions come back at once, as after a restart, and leave. One that left
    before it had joined never joins. That costs some rows, not one for each."""
    queue = await house.queue(partitions=8)
    group = await house.group(queue)
    steady, owner = await house.subscribe(queue, group)
    runtime = house.broker.groups.runtimes[group.group_id]
    began = runtime.row.generation
    crowd = [
        house.broker.groups.consumer(Session(f"c{n}"), 1, queue, group, 10, held=True)
        for n in range(1000)
    ]
    joining = [asyncio.create_task(one.join()) for one in crowd]
    await asyncio.sleep(0)
    for one in crowd[:500]:
        one.leave()
    joined = await asyncio.gather(*joining, return_exceptions=True)
    assert all(isinstance(one, Refused) for one in joined[:500])
    assert joined[500:] == [None] * 500
    assert len(runtime.row.members) == len(runtime.members) == 501
    for one in crowd[500:]:
        one.leave()
    await eventually(lambda: set(owner.owned_partitions) == set(range(8)))
    assert runtime.row.generation - began < 20
    assert runtime.row.members == (owner.name,)
    await house.publish(queue, numbered(8))
    assert sorted(await steady.get(8)) == list(range(8))


async def test_whoever_is_gone_at_once_is_given_no_partition(house: House) -> None:
    """R14, R20: Consumers that join and leave one after the other move nothing. One that stays is
    given its share, at once if no other consumer is left."""
    queue = await house.queue(partitions=8)
    group = await house.group(queue)
    _, owner = await house.subscribe(queue, group)
    await eventually(lambda: len(owner.owned_partitions) == 8)
    epochs = {number: owned.delivery.epoch for number, owned in owner.owned_partitions.items()}
    for _ in range(30):
        _, visitor = await house.subscribe(queue, group)
        visitor.leave()
    assert {
        number: owned.delivery.epoch for number, owned in owner.owned_partitions.items()
    } == epochs
    runtime = house.broker.groups.runtimes[group.group_id]
    assert runtime.row.members == (owner.name,)
    _, guest = await house.subscribe(queue, group)
    await eventually(lambda: len(guest.owned_partitions) == len(owner.owned_partitions) == 4)
    _, last = await house.subscribe(queue, group)
    owner.leave()
    guest.leave()
    await eventually(lambda: len(last.owned_partitions) == 8)


async def test_a_session_that_has_ended_never_joins(house: House) -> None:
    """R14: A session that sent `subscribe` and ended before its turn takes no place in the group. A
    reader leaves nothing."""
    queue = await house.queue(partitions=8)
    group = await house.group(queue)
    steady, owner = await house.subscribe(queue, group)
    runtime = house.broker.groups.runtimes[group.group_id]
    began, around = runtime.row.generation, SessionServices(house.broker, Authenticator(None))
    for place in range(300):
        socket = Socket(house, around, f"s-{place}")
        socket.say(type="hello", linger_s=60 if place % 3 else 0)
        group_name = group.name if place % 4 else None
        subscribe = {"subscription": 1, "queue": queue.name, "group": group_name, "credit": 9}
        socket.say(type="subscribe", ref=1, **subscribe)
        if place % 2:
            socket.session.end()
        else:
            socket.session.on_transport_lost()
        if place % 10 == 0:
            await asyncio.sleep(0)
    while any("Subscribing.open" in str(task.get_coro()) for task in asyncio.all_tasks()):
        assert runtime.row.members == (owner.name,)
        await asyncio.sleep(0)
    assert not sum(house.broker.readers.counts().values())
    assert runtime.row.generation == began
    assert list(runtime.members) == [owner.name]
    await house.publish(queue, numbered(8))
    assert sorted(await steady.get(8)) == list(range(8))


async def test_partitions_that_do_not_move_never_pause(house: House) -> None:
    """R14, R20: Consumers join and leave all the time while messages flow. Order per key is kept,
    and nothing is lost. A partition that stays with its owner keeps its epoch."""
    queue = await house.queue(partitions=8)
    group = await house.group(queue, lease_s=30)
    steady, owner = await house.subscribe(queue, group, credit=10_000)
    sessions, acked = [(steady, owner)], 0
    order: dict[str, list[int]] = {}
    seen: dict[Session, int] = {}
    total = 0

    def work() -> int:
        """Let every consumer ack its deliveries. Return how many came for the first time."""
        nonlocal acked
        for session, consumer in sessions:
            fresh = session.frames[seen.get(session, 0) :]
            seen[session] = len(session.frames)
            for frame in fresh:
                if frame["type"] != "push":
                    continue
                place = [frame["partition"], frame["epoch"], frame["push"]]
                last = offsets_of(frame)[-1]
                settled = consumer.ack([[*place, frame["offset"], last]], [], None)
                assert (settled.stale, settled.not_delivered) == ([], [])
                for one in frame["messages"]:
                    if frame.get("attempt", 1) == 1:
                        order.setdefault(one["key"], []).append(one["body"])
                acked += len(frame["messages"])
        return sum(map(len, order.values()))

    epochs_kept = 0
    for turn in range(30):
        if turn % 3 == 0:
            sessions.append(await house.subscribe(queue, group, credit=10_000))
        elif turn % 3 == 2 and len(sessions) > 2:
            _, leaving = sessions[1]
            work()
            leaving.leave()
            del sessions[1]
        before = {
            number: owned.delivery.epoch
            for number, owned in owner.owned_partitions.items()
            if not owned.delivery.draining
        }
        batch = [message(total // 20 * 20 + n, f"k{n % 20}") for n in range(20)]
        total += len(batch)
        await house.publish(queue, batch)
        for _ in range(10):
            work()
            await asyncio.sleep(0)
        for number, owned in owner.owned_partitions.items():
            if number in before:
                assert owned.delivery.epoch == before[number]
                epochs_kept += 1
    await eventually(lambda: work() == total)
    assert epochs_kept > 0
    for numbers in order.values():
        assert numbers == sorted(set(numbers))
    assert acked == total


async def test_a_group_whose_members_all_left_waits_for_the_next(house: House) -> None:
    """P1: Nothing is lost, and nothing is done, in between."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue)
    for turn in range(5):
        session, consumer = await house.subscribe(queue, group)
        await house.publish(queue, [message(turn, f"k{turn}")])
        await session.until(lambda: turn in session.bodies)  # noqa: B023
        ((place, _, _),) = [one for one in session.given if one[1] == turn]
        assert await house.confirm(consumer, delivery(place)) == (1, 0)
        consumer.leave()
    assert await house.lag(queue, group) == 0
    runtime = house.broker.groups.runtimes[group.group_id]
    await eventually(lambda: not runtime.owned_partitions and not runtime._owning)
    assert not runtime.members


def has_slots(runtime: GroupRuntime, count: int) -> bool:
    """Return whether `count` partitions are served here."""
    return len(runtime.owned_partitions) == count


def is_alone(runtime: GroupRuntime, name: str) -> bool:
    """Return whether every partition is this consumer's."""
    return {*runtime.row.assignment.values()} == {name}


@mad
async def test_who_leaves_as_the_row_was_written_is_taken_out_of_it(house: MadHouse) -> None:
    """P6: A crowd leaves. One of them does so some turns of the loop after a write of the row."""
    for turns in range(8):
        queue = await house.queue(f"orders-{turns}", partitions=4)
        group = await house.group(queue)
        gone, also, stays = [(await house.subscribe(queue, group))[1] for _ in range(3)]
        runtime = house.broker.groups.runtimes[group.group_id]
        await eventually(partial(has_slots, runtime, 4))
        written = asyncio.Event()

        def wrote(name: str, args: Any, options: Any, written: asyncio.Event = written) -> None:
            if name == "change_membership":
                written.set()

        house.metadata.lose = wrote
        gone.leave()
        await written.wait()
        house.metadata.well()
        for _ in range(turns):
            await asyncio.sleep(0)
        also.leave()
        await eventually(partial(is_alone, runtime, stays.name))
