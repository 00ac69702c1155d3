"""Histories of pulls: the virtual consumer, its keys, its receipts (R24, R19, P6)."""

import asyncio
from collections.abc import Sequence
from itertools import count
from math import nextafter
from typing import Any

import msgspec
import pytest

from gateway.delivery import pull as pulls
from gateway.delivery.pull import PullConsumer
from gateway.models import PulledMessage
from metadata.catalog import ANYBODY, Group, Principal, Queue
from push import limits
from push.errors import Refused
from tests.histories.gateways import Town, town
from tests.histories.house import House, eventually, message, numbered
from tests.histories.mad_house import MadHouse, mad


def bodies(pulled: Sequence[PulledMessage]) -> list[Any]:
    """Return the bodies that were published."""
    return [msgspec.json.decode(one.body or b"null") for one in pulled]


async def pull(
    house: House, queue: Queue, group: Group, count: int = 10, wait_s: float = 2
) -> list[PulledMessage]:
    """Pull once."""
    return await house.broker.pulls.pull(queue, group, count, wait_s)


async def test_nobody_takes_all_the_places_to_wait(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: A principal alone takes four fifths of them, and one place is left for another. This is
    tested on both sides. A place is free again when its pull is over."""
    monkeypatch.setattr(limits, "PULLS_WAITING_MAX", 10)
    queue = await house.queue()
    group = await house.group(queue)
    pulls = house.broker.pulls
    greedy, other = Principal("greedy", "t"), Principal("other", "t")
    waiting = [asyncio.ensure_future(pulls.pull(queue, group, 1, 20, who=greedy)) for _ in range(8)]
    await eventually(lambda: pulls.waiting == 8)
    with pytest.raises(Refused, match="too many pulls"):
        await pulls.pull(queue, group, 1, 0, who=greedy)
    assert await pulls.pull(queue, group, 1, 0, who=other) == []
    await house.publish(queue, [message("x", "k")])
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert await pulls.pull(queue, group, 1, 0, who=greedy) == []
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    await eventually(lambda: pulls.waiting == 0)


async def test_a_key_in_flight_is_closed_to_the_next_pull(house: House) -> None:
    """R24: One pull carries several of a key, in order. The next pull carries none of it before
    they are settled, and other keys meanwhile."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [*numbered(4, "a"), message("b", "b")])
    first = await pull(house, queue, group, 2)
    assert bodies(first) == [0, 1]
    assert bodies(await pull(house, queue, group)) == ["b"]
    assert await pull(house, queue, group, wait_s=0) == []
    acked = await house.broker.pulls.ack(queue, group, [first[0].receipt])
    assert (acked.settled, acked.stale, acked.invalid) == (1, [], [])
    assert await pull(house, queue, group, wait_s=0) == []
    await house.broker.pulls.ack(queue, group, [first[1].receipt])
    assert bodies(await pull(house, queue, group)) == [2, 3]


@pytest.mark.parametrize("call", ["own", "read"])
async def test_a_pull_that_does_not_wait_is_given_what_a_slow_storage_holds(
    house: House, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the first pull of a group, so a partition is first owned and its log read. The answer
    waits up to a second for a slow storage, and no longer."""
    slow_s = 0.3

    async def slowly(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(slow_s)
        return await asked(*arguments, **named)

    async def first_pull(name: str) -> Sequence[PulledMessage]:
        return await pull(house, queue, await house.group(queue, name=name), wait_s=0)

    queue = await house.queue()
    await house.publish(queue, numbered(2))
    if house.kind == "sqlite":
        await house.restart()  # otherwise the messages just published would not be read
    elif call == "read":
        pytest.skip("what it holds is at hand, in the broker's memory as well")
    asked = getattr(house.broker.storage, call)
    monkeypatch.setattr(house.broker.storage, call, slowly)
    assert bodies(await first_pull("a")) == [0, 1]
    slow_s = 3.0
    assert await first_pull("b") == []


async def test_a_pull_that_does_not_wait_is_given_what_returned_from_a_slow_storage(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of lines are read one by one. Those of the log are not."""
    queue = await house.queue(backoff_s=0, backoff_max_s=0)
    group = await house.group(queue)
    for body in range(3):
        await house.publish(queue, [message(body, f"k{body}")])
    pulled: list[PulledMessage] = []
    while len(pulled) < 3:
        pulled += await pull(house, queue, group)
    read_each = house.broker.storage.read_each

    async def slowly(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.3)
        return await read_each(*arguments, **named)

    monkeypatch.setattr(house.broker.storage, "read_each", slowly)
    await house.broker.pulls.nack(queue, group, [pulled[0].receipt], 0)
    assert bodies(await pull(house, queue, group, wait_s=0)) == [0]


async def test_a_pull_that_does_not_wait_waits_for_no_storage_that_refuses(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "STORAGE_S", 3600.0)

    async def refuses(*_: Any, **__: Any) -> Any:
        raise Refused("storage_unavailable", "it is away")

    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1))
    monkeypatch.setattr(house.broker.storage, "own", refuses)
    async with asyncio.timeout(30):
        assert await pull(house, queue, group, wait_s=0) == []


@town()
async def test_a_pull_that_does_not_wait_waits_for_no_other_gateway(town: Town) -> None:
    """The other gateway's consumer may hold the partitions for as long as it drains."""
    group = await town.group(partitions=4)
    one, two = town.gateways[:2]
    await one.publish(one.find(), [message(n, f"k{n}") for n in range(40)])
    session, _ = await one.consumer(group)
    await session.take(40)
    loop = asyncio.get_running_loop()
    for _ in range(20):
        asked_at = loop.time()
        assert await two.broker.pulls.pull(two.find(), group, 10, 0) == []
        assert loop.time() < asked_at + 0.2  # of virtual time


async def test_a_waiting_pull_is_answered_by_the_next_message(house: House) -> None:
    """R24: Waiting pulls are served in their order, each at once."""
    queue = await house.queue()
    group = await house.group(queue)
    waits = []
    for number in range(3):
        waits.append(asyncio.ensure_future(pull(house, queue, group, 1, 5)))
        consumers = house.broker.pulls._consumers
        await eventually(
            lambda: any(len(one._waiting) == number + 1 for one in consumers.values())  # noqa: B023
        )
    await house.publish(queue, [message(n, f"k{n}") for n in range(3)])
    assert [bodies(await one) for one in waits] == [[0], [1], [2]]


async def test_a_pull_counts_as_an_attempt_at_once(house: House) -> None:
    """R19: No client says `started` over HTTP. A killer message is dead-lettered all the same."""
    queue = await house.queue(attempts_max=2)
    group = await house.group(queue, lease_s=0.05)
    await house.publish(queue, [message("killer", "a"), message("next", "a")])
    for attempt in (1, 2):
        (one,) = await pull(house, queue, group, 1)
        assert (bodies([one]), one.attempt) == (["killer"], attempt)
    (one,) = await pull(house, queue, group, 1)
    assert (bodies([one]), one.attempt) == (["next"], 1)


async def test_an_expired_receipt_settles_nothing_of_the_next_delivery(house: House) -> None:
    """R21: The lease ended and the message was pulled again. The old receipt is stale."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.05)
    await house.publish(queue, numbered(1))
    (old,) = await pull(house, queue, group)
    (new,) = await pull(house, queue, group)
    assert new.attempt == 2
    done = await house.broker.pulls.ack(queue, group, [old.receipt])
    assert (done.settled, done.stale) == (0, [old.receipt])
    done = await house.broker.pulls.nack(queue, group, [old.receipt], None)
    assert (done.settled, done.stale) == (0, [old.receipt])
    done = await house.broker.pulls.extend(queue, group, [old.receipt], 5)
    assert (done.settled, done.stale) == (0, [old.receipt])
    assert (await house.broker.pulls.ack(queue, group, [new.receipt])).settled == 1
    assert await house.lag(queue, group) == 0


async def test_receipts_are_of_one_group_of_one_queue(house: House) -> None:
    """R1, R24: A receipt that is forged, cut off, or of another group or queue is invalid, and
    nothing happens."""
    queue, elsewhere = await house.queue(), await house.queue("elsewhere")
    group, other = await house.group(queue), await house.group(queue, "other")
    theirs = await house.group(elsewhere)
    await house.publish(queue, numbered(1))
    await house.publish(elsewhere, numbered(1))
    (mine,) = await pull(house, queue, group)
    (of_other,) = await pull(house, queue, other)
    (of_elsewhere,) = await pull(house, elsewhere, theirs)
    last = "A" if mine.receipt[0] != "A" else "B"
    bad = [
        of_other.receipt,
        of_elsewhere.receipt,
        last + mine.receipt[1:],
        mine.receipt[:-1],
        mine.receipt + "A",
        "",
        "\udcff",
    ]
    done = await house.broker.pulls.ack(queue, group, bad)
    assert (done.settled, done.stale, done.invalid) == (0, [], bad)
    assert await house.lag(queue, group) == 1
    assert (await house.broker.pulls.ack(queue, group, [mine.receipt])).settled == 1


async def test_receipts_of_before_a_restart_are_stale(durable_house: House) -> None:
    """R15, R24: The new process is a new owner, and the message comes again."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1))
    (old,) = await pull(house, queue, group)
    await house.restart()
    queue = house.find()
    done = await house.broker.pulls.ack(queue, group, [old.receipt])
    assert (done.settled, done.stale) == (0, [old.receipt])
    (new,) = await pull(house, queue, group)
    assert (bodies([new]), new.attempt) == ([0], 2)
    assert (await house.broker.pulls.ack(queue, group, [new.receipt])).settled == 1


async def test_receipts_of_before_a_seek_are_stale(house: House) -> None:
    """R11: The same holds for the acks of sessions."""
    queue = await house.queue(retention_s=3600)
    group = await house.group(queue)
    await house.publish(queue, numbered(2))
    (old, _) = await pull(house, queue, group)
    await house.broker.seek_group(ANYBODY, queue, "billing", "earliest")
    done = await house.broker.pulls.ack(queue, group, [old.receipt])
    assert (done.settled, done.stale) == (0, [old.receipt])
    assert bodies(await pull(house, queue, group)) == [0, 1]


async def test_pulls_share_a_group_with_sessions_and_leave_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24: The pulls are one consumer beside a session's. When no pull has come for a while they
    leave. Their unsettled deliveries drain first, and then the session gets everything."""
    monkeypatch.setattr("push.limits.PULL_IDLE_S", 0.2)
    monkeypatch.setattr("push.limits.DRAIN_S", 0.5)
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await pull(house, queue, group, wait_s=0)
    runtime = house.broker.groups.runtimes[group.group_id]
    await eventually(
        lambda: len(runtime.owned_partitions) == 4 and len(consumer.owned_partitions) == 2
    )
    owned = [number for number, name in runtime.assignment.items() if name == "pulls"]
    assert len(owned) == 2

    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    pulled: list[PulledMessage] = []
    while True:
        more = await pull(house, queue, group, 50, wait_s=0)
        if not more:
            break
        pulled += more
    await session.until(lambda: len(session.bodies) + len(pulled) == 40)
    assert {one.partition for one in pulled} <= set(owned)
    *settled, held = pulled
    await house.broker.pulls.ack(queue, group, [one.receipt for one in settled])
    await eventually(lambda: "pulls" not in runtime.members)
    epochs = {number: owned.delivery.epoch for number, owned in consumer.owned_partitions.items()}
    (still,) = [
        n
        for n, s in runtime.owned_partitions.items()
        if s.delivery.leases.open_count and n in owned
    ]
    assert still == held.partition  # it drains
    assert (await house.broker.pulls.ack(queue, group, [held.receipt])).settled == 1
    await eventually(lambda: len(consumer.owned_partitions) == 4)
    assert all(
        consumer.owned_partitions[number].delivery.epoch == epochs[number] for number in epochs
    )
    await house.publish(queue, [message(n, f"k{n}") for n in range(40, 80)])
    await session.until(lambda: len(session.bodies) == 80 - len(pulled))
    assert sorted([*session.bodies, *bodies(pulled)]) == list(range(80))


async def test_a_pull_comes_back_while_the_pulls_are_leaving(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24, R20: Draining deliveries are finished first. Then the pulls own the partition again."""
    monkeypatch.setattr("push.limits.PULL_IDLE_S", 0.1)
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(2))
    (held,) = await pull(house, queue, group, 1)
    runtime = house.broker.groups.runtimes[group.group_id]
    _, other = await house.subscribe(queue, group)
    await eventually(lambda: "pulls" not in runtime.members)
    other.leave()
    await eventually(lambda: not runtime.members)
    waiting = asyncio.ensure_future(pull(house, queue, group))
    await eventually(lambda: runtime.members)
    assert (await house.broker.pulls.ack(queue, group, [held.receipt])).settled == 1
    (one,) = await waiting
    assert bodies([one]) == [1]


async def test_who_pulled_and_works_for_long_keeps_its_lease_where_nobody_else_is(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24: The pulls leave when their deliveries are settled, not before."""
    monkeypatch.setattr("push.limits.PULL_IDLE_S", 0.1)
    monkeypatch.setattr("push.limits.DRAIN_S", 0.1)
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1))
    (held,) = await pull(house, queue, group, 1)
    runtime = house.broker.groups.runtimes[group.group_id]
    virtual = runtime.members["pulls"]
    assert isinstance(virtual, PullConsumer)
    now = asyncio.get_running_loop().time()
    assert not virtual.is_idle(now + 3600)
    assert (await house.broker.pulls.ack(queue, group, [held.receipt])).settled == 1
    assert virtual.is_idle(now + 3600)
    await eventually(lambda: not runtime.members)


async def test_a_nacked_pull_comes_again_after_its_delay(house: House) -> None:
    """Later messages of its key in the same pull return with it."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(3))
    first, second, third = await pull(house, queue, group)
    done = await house.broker.pulls.nack(queue, group, [second.receipt], 0.1)
    assert done.settled == 1
    done = await house.broker.pulls.ack(queue, group, [first.receipt, third.receipt])
    assert (done.settled, done.stale) == (1, [third.receipt])
    assert await pull(house, queue, group, wait_s=0) == []
    again = await pull(house, queue, group)
    assert bodies(again)[0] == 1
    assert again[0].attempt == 2


async def test_what_a_vanished_client_pulled_returns_at_once(house: House) -> None:
    """P6, R24: They return without waiting for the lease and without an attempt, in order."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(3))
    pulled = await pull(house, queue, group)
    house.broker.pulls.release(queue, group, pulled)
    again: list[PulledMessage] = []
    while len(again) < 3:
        more = await pull(house, queue, group)
        again += more
        await house.broker.pulls.ack(queue, group, [one.receipt for one in more])
    assert [(body, one.attempt) for body, one in zip(bodies(again), again, strict=True)] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


async def test_a_pull_that_is_cancelled_was_given_nothing(house: House) -> None:
    """The pull is cancelled at each possible moment. The next pull gets the message, at its first
    attempt."""
    queue = await house.queue()
    group = await house.group(queue)
    await pull(house, queue, group, wait_s=0)
    for number in range(12):
        going = asyncio.ensure_future(pull(house, queue, group, 1, 5))
        publishing = asyncio.ensure_future(house.publish(queue, [message(number)]))
        for _ in range(number):
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.wait((going,))
        await publishing
        if going.cancelled():
            (one,) = await pull(house, queue, group, 1)
        else:
            (one,) = going.result()
        assert (bodies([one]), one.attempt) == ([number], 1)
        await house.broker.pulls.ack(queue, group, [one.receipt])


async def test_an_extended_pull_keeps_its_message(house: House) -> None:
    """R20: It keeps it past its first lease, up to the new one."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.2)
    await house.publish(queue, numbered(1))
    (one,) = await pull(house, queue, group)
    assert (await house.broker.pulls.extend(queue, group, [one.receipt], 10)).settled == 1
    assert await pull(house, queue, group, wait_s=0.4) == []
    assert (await house.broker.pulls.ack(queue, group, [one.receipt])).settled == 1


async def test_a_drain_answers_pulls_at_once(house: House) -> None:
    """P14: This holds for pulls that wait, and for those that come."""
    queue = await house.queue()
    group = await house.group(queue)
    waiting = asyncio.ensure_future(pull(house, queue, group, 1, 20))
    await eventually(lambda: house.broker.pulls._consumers)
    async with asyncio.timeout(1):
        await house.broker.drain()
        assert await waiting == []
        assert await pull(house, queue, group, 1, 20) == []


async def test_a_refused_publish_reaches_no_pull(house: House) -> None:
    """P2: A refused message is never delivered."""
    queue = await house.queue(message_bytes_max=5)
    group = await house.group(queue)
    answers = await house.publish(queue, [message("too long"), message(1)])
    assert answers == ["message_too_large", (0, 0, False)]
    assert bodies(await pull(house, queue, group)) == [1]
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("nowhere")


@mad
async def test_who_pulls_as_the_pulls_of_before_leave_is_given_what_is_there(
    house: MadHouse,
) -> None:
    """P6: No client has pulled for long. The next pull comes in the very turn of the loop in which
    the earlier consumer is taken out. Both have one name."""
    queue = await house.queue()
    group = await house.group(queue)
    assert await pull(house, queue, group, wait_s=0.05) == []
    await asyncio.sleep(limits.PULL_IDLE_S)
    sweeper = house.broker.pulls._sweeper
    assert sweeper is not None
    coming: list[asyncio.Future[list[PulledMessage]]] = []
    asyncio.get_running_loop().call_at(
        nextafter(sweeper.when(), 0.0),
        lambda: coming.append(asyncio.ensure_future(pull(house, queue, group, wait_s=20))),
    )
    await asyncio.sleep(5)
    await house.publish(queue, [message(0)])
    assert bodies(await coming[0]) == [0]


# --- Large answers --------------------------------------------------------------------------------


async def test_the_lease_of_what_is_pulled_does_not_run_while_its_answer_moves(
    house: House,
) -> None:
    """R20, P6: A slow line takes longer than the lease."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.2)
    await house.publish(queue, [message("large", "k")])
    pulled = await pull(house, queue, group)
    progress = count(1)
    has_arrived = False

    def taken_bytes() -> int | None:
        return None if has_arrived else next(progress)

    pulls = house.broker.pulls
    pulls.hand_over(queue, group, pulled, 1_000_000, taken_bytes)
    assert await pull(house, queue, group, wait_s=1.5) == []
    has_arrived = True
    settled = await pulls.ack(queue, group, [one.receipt for one in pulled])
    assert (settled.settled, settled.stale) == (1, [])


async def test_an_answer_that_has_arrived_late_is_the_puller_s_for_a_whole_lease(
    house: House,
) -> None:
    """R20: It is no longer than that."""
    queue = await house.queue()
    group = await house.group(queue, lease_s=1.5)
    await house.publish(queue, [message("large", "k")])
    loop = asyncio.get_running_loop()
    pulled = await pull(house, queue, group)
    arrives_at = loop.time() + 1.2
    house.broker.pulls.hand_over(
        queue, group, pulled, 1_000_000, lambda: None if loop.time() > arrives_at else 0
    )
    again = await pull(house, queue, group, wait_s=20)
    assert [one.attempt for one in again] == [2]
    assert loop.time() >= arrives_at + 1.5


async def test_what_is_pulled_over_a_line_that_stands_still_returns(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6."""
    monkeypatch.setattr(limits, "TRANSIT_STILL_S", 0.5)
    queue = await house.queue()
    group = await house.group(queue, lease_s=0.2)
    await house.publish(queue, [message("large", "k")])
    pulled = await pull(house, queue, group)
    house.broker.pulls.hand_over(queue, group, pulled, 1_000_000, lambda: 7)
    assert [one.attempt for one in await pull(house, queue, group, wait_s=20)] == [2]


async def test_a_pull_has_a_bound_in_bytes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: The next pull goes on after it."""
    monkeypatch.setattr(limits, "PULL_BYTES_MAX", 300_000)
    queue = await house.queue()
    group = await house.group(queue)
    body = "x" * 200_000
    for n in range(20):
        await house.publish(queue, [message(f"{n} {body}", f"k{n}")])
    counts, places = list[int](), list[int]()
    while pulled := await pull(house, queue, group, count=100, wait_s=0):
        counts.append(len(pulled))
        places += [one.offset for one in pulled]
    assert max(counts) == 2
    assert places == list(range(20))
