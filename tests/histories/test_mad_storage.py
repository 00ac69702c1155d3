"""Histories of a storage that stalls, fails and comes late, and of a queue that floods. The others
go on, and every answer is true."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from gateway.delivery.consumer import Consumer
from gateway.models import WhichKey
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.publish.commits import LIGHT_COMMITS_MAX
from gateway.stores.open import READS
from metadata.catalog import Group, Queue
from push import limits
from push.commit_sharing import AHEAD_BYTES_MAX, HOLD_S, LIGHT_S, REST_S, WINDOW_S
from push.errors import Refused, TocsinError, Unknown
from push.message import Message
from push.places import Partition
from tests.histories.house import codes, delivery, eventually, message, numbered
from tests.histories.mad_house import MadHouse, mad

ANN = b"producer-ann...."


def refusals(answer: PendingPublish) -> set[str]:
    """Return the codes of a publish of which no message was stored."""
    assert all(isinstance(outcome, TocsinError) for outcome in answer.outcomes)
    return {str(code) for code in codes(answer)}


# --- Slow -----------------------------------------------------------------------------------------


@mad
async def test_a_slow_storage_refuses_early_and_what_is_certified_goes_on(house: MadHouse) -> None:
    """P9, P12: This is tested on both sides of the bound. A refusal comes at once, and says when to
    come again. Pushed messages are acked all the same."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    await session.take(2)
    house.storage.stall("append")
    first = house.submit(queue, numbered(1))
    await asyncio.sleep(limits.COMMIT_SLOW_S - 0.5)
    behind = house.submit(queue, numbered(1))
    assert not behind.done()
    await asyncio.sleep(1.0)
    refused = house.submit(queue, numbered(3))
    assert refused.done()
    assert refusals(refused.result()) == {"overloaded"}
    assert cast(TocsinError, refused.result().outcomes[0]).retry_after_s
    await house.settled(session, consumer, 2)
    house.storage.well()
    assert codes(await first) == [(0, 2, False)]
    assert codes(await behind) == [(0, 3, False)]
    assert codes(await house.submit(queue, numbered(1))) == [(0, 4, False)]
    await session.take(5)


@mad
async def test_what_takes_too_long_is_unknown_once_and_pushed_all_the_same(
    house: MadHouse,
) -> None:
    """P1, P2, P4: It may be stored, so it is never refused. Once it is stored, it is pushed, and
    sent again it is a duplicate."""
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    house.storage.stall("append")
    answers: list[PendingPublish] = []
    house.broker.publisher.submit(
        PendingPublish(queue, numbered(3), answers.append, producer=ANN, sequence=0)
    )
    await asyncio.sleep(limits.COMMIT_DEADLINE_S - 0.5)
    assert answers == []
    await asyncio.sleep(1.0)
    assert len(answers) == 1
    assert all(isinstance(outcome, Unknown) for outcome in answers[0].outcomes)
    assert house.broker.publisher.pending_messages == 3
    house.storage.well()
    assert await session.get(3) == [0, 1, 2]
    assert len(answers) == 1
    assert all(isinstance(outcome, Unknown) for outcome in answers[0].outcomes)
    assert house.broker.publisher.pending_messages == 0
    again = await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    assert again == [(0, n, True) for n in range(3)]
    counted = house.broker.counting.of_queue(queue.queue_id)
    assert (counted["unknown"], counted["refused"]) == (3, 0)


@mad
async def test_behind_what_is_unknown_a_producer_s_messages_wait(house: MadHouse) -> None:
    """R7: 0 is unknown and not stored. 1 must not be stored before 0 is sent again."""
    queue = await house.queue()
    house.storage.stall("append")
    first = house.submit(queue, [message(0)], producer=ANN, sequence=0)
    await asyncio.sleep(limits.COMMIT_DEADLINE_S + 1)
    assert refusals(await first) == {"unknown"}
    house.storage.fail = lambda name: Refused("storage_unavailable") if name == "append" else None
    house.storage._goes.set()
    await asyncio.sleep(0.1)
    house.storage.well()
    second = house.submit(queue, [message(1)], producer=ANN, sequence=1)
    assert refusals(await second) == {"out_of_sequence"}
    again = await house.publish(queue, numbered(2), producer=ANN, sequence=0)
    assert again == [(0, 0, False), (0, 1, False)]


@mad
async def test_a_storage_that_fails_again_and_again_is_left_alone_for_a_while(
    house: MadHouse,
) -> None:
    """The breaker: After a number of failures publishes are refused without asking. Then one of
    them tries."""
    queue = await house.queue()
    house.storage.fail = lambda name: Unknown() if name == "append" else None
    for _ in range(limits.BREAKER_FAILURES):
        assert refusals(await house.submit(queue, numbered(1))) == {"unknown"}
    asked = house.storage.calls["append"]
    refused = house.submit(queue, numbered(1))
    assert refused.done()
    assert refusals(refused.result()) == {"storage_unavailable"}
    await asyncio.sleep(limits.BREAKER_OPEN_S)
    assert refusals(await house.submit(queue, numbered(1))) == {"unknown"}
    assert house.storage.calls["append"] == asked + 1
    house.storage.well()
    await asyncio.sleep(limits.BREAKER_OPEN_S)
    assert codes(await house.submit(queue, numbered(1))) == [(0, 0, False)]
    assert codes(await house.submit(queue, numbered(1))) == [(0, 1, False)]


# --- Reads ----------------------------------------------------------------------------------------


def test_reads_that_stall_hold_up_nobody_who_is_not_far_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: More consumers are far behind than may read at once. Other consumers read and are
    pushed."""
    monkeypatch.setattr(limits, "BEHIND_MESSAGES", 4)

    @mad
    async def stalls(house: MadHouse) -> None:
        many = limits.READS_BEHIND_MAX + 3
        far = await house.queue("far", partitions=many, retention_s=86_400)
        near = await house.queue("near", retention_s=86_400)
        for number in range(200):
            await house.publish(far, [message(number, f"k{number}")])
        await house.publish(near, numbered(3))
        house.storage.stuck = {Partition(far.queue_id, number) for number in far.members}
        follower, _ = await house.read(far, keys=None, start="latest")
        behind, _ = await house.subscribe(far, await house.group(far))
        await eventually(lambda: house.storage.calls["stuck"] == limits.READS_BEHIND_MAX)
        await house.publish(far, [message(n, f"k{n}") for n in range(200, 220)])
        other, _ = await house.read(near, start="earliest")
        assert await other.get(3) == [0, 1, 2]
        assert sorted(await follower.get(20)) == list(range(200, 220))
        await asyncio.sleep(3 * limits.READ_DEADLINE_S)  # reads are given up, and repeated
        # One more read, at the end, tells the storage that a reader follows there.
        assert house.storage.calls["stuck"] == limits.READS_BEHIND_MAX + 1
        house.storage.stuck = set()
        house.storage.unstuck.set()
        assert sorted(await behind.get(220)) == list(range(220))

    stalls(folder)


async def stuck(house: MadHouse) -> tuple[Queue, Group, Consumer]:
    """Make a queue with a parked key of three messages. Return the consumer that they were given to
    as well."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(number, "stuck") for number in range(3)])
    consumer.nack(delivery((await session.take(3))[0][0]), None, None)
    await house.broker.cursor_writer.drain()
    return queue, group, consumer


@mad
async def test_a_line_whose_reads_stall_is_read_again(house: MadHouse) -> None:
    """P1, P6: A released key is in its side line, and its messages in the log. No read of either
    holds it up for ever. Reads that were given up are not kept."""
    queue, group, consumer = await stuck(house)
    consumer.leave()
    await house.broker.cursor_writer.drain()
    await house.broker.parking.decide(queue, group, "release", WhichKey(key="stuck"))
    house.storage.stall("read_side")
    session, consumer = await house.subscribe(queue, group)
    for stalled in ("read_side", "read_each"):
        await asyncio.sleep(3 * (limits.READ_DEADLINE_S + 1))
        assert house.storage.calls[stalled] >= 3
        assert house.storage.under_way[stalled] == 1
        assert session.given == []
        house.storage.well()
        if stalled == "read_side":
            house.storage.stall("read_each")
    for count in (1, 2, 3):
        consumer.ack(delivery((await session.take(count))[-1][0]), [], None)
    assert session.bodies == [0, 1, 2]


@mad
async def test_who_looks_is_told_in_time_that_the_storage_does_not_answer(house: MadHouse) -> None:
    """P12: This holds for each view, and for each of its reads that stalls."""
    queue, group, _ = await stuck(house)
    path = "/v1/queues/orders"
    of_group = f"{path}/groups/{group.name}"
    looks = (
        path, f"{path}/messages?group={group.name}", f"{path}/explain?key=stuck",
        f"{of_group}/parked", f"{of_group}/held", f"{path}/dead-letters",
    )  # fmt: skip
    async with house.http() as http:
        for look in looks:
            house.broker.queue_stats.on_change(queue.queue_id)
            assert (await http.get(look)).status_code == 200, look
        for stalled in sorted(READS):
            house.storage.stall(stalled)
            for look in looks:
                house.broker.queue_stats.on_change(queue.queue_id)
                before = house.storage.calls[stalled]
                async with asyncio.timeout(limits.READ_DEADLINE_S + 0.01):
                    answer = await http.get(look)
                if house.storage.calls[stalled] > before:
                    assert answer.status_code == 503, (look, stalled)
                    assert answer.json()["code"] == "storage_unavailable"
            house.storage.well()
    unread = {"offset_at", "trimmable"}
    assert {name for name in READS if house.storage.calls[name]} >= READS - unread


@mad
async def test_who_changes_what_is_kept_is_told_in_time_that_nobody_can_count(
    house: MadHouse,
) -> None:
    """P12: The storage is asked how many messages a change deletes. Nothing changes until it has
    answered."""
    path = "/v1/queues/orders"
    await house.queue("orders", retention_s=3600)
    async with house.http() as http:
        house.storage.stall("trimmable")
        async with asyncio.timeout(limits.READ_DEADLINE_S + 0.01):
            answer = await http.patch(path, json={"retention_s": 60})
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        house.storage.well()
        assert (await http.get(path)).json()["settings"]["retention_s"] == 3600
        assert (await http.patch(path, json={"retention_s": 60})).status_code == 200
        assert (await http.get(path)).json()["settings"]["retention_s"] == 60


# --- A queue that floods --------------------------------------------------------------------------


def large(count: int, key: str = "k") -> list[Message]:
    """Return messages of a kilobyte each."""
    return [message("x" * 1000, f"{key}{number}") for number in range(count)]


async def flooded(house: MadHouse) -> tuple[Queue, list["asyncio.Future[PendingPublish]"]]:
    """Make a queue that has published until it was refused, while the storage stalls."""
    flood = await house.queue("flood", partitions=16)
    house.storage.stall("append")
    answers = [house.submit(flood, large(1))]
    await asyncio.sleep(0.001)
    while not answers[-1].done():
        answers.append(house.submit(flood, large(500)))
    return flood, answers


@mad
async def test_a_queue_that_floods_leaves_room_for_every_other_one(house: MadHouse) -> None:
    """P9, P12: It is refused so that it can try again. A queue that holds nothing is not."""
    steady = await house.queue("steady")
    flood, answers = await flooded(house)
    assert refusals(answers[-1].result()) == {"overloaded"}
    assert cast(TocsinError, answers[-1].result().outcomes[0]).retry_after_s
    ours = [house.submit(steady, numbered(10)) for _ in range(100)]
    assert not any(answer.done() for answer in ours)
    house.storage.well()
    for answer in (*answers[:-1], *ours):
        assert not any(isinstance(one, str) for one in codes(await answer))
    publisher = house.broker.publisher
    assert (publisher.pending_messages, publisher.pending_bytes) == (0, 0)
    await house.publish(flood, large(100))


@mad
async def test_the_publisher_says_for_how_long_a_commit_is_under_way(house: MadHouse) -> None:
    """P9: For that time the loop gives way to the storage's thread."""
    queue, publisher = await house.queue(), house.broker.publisher
    assert not publisher.commit_early()
    house.storage.stall("append")
    answer = house.submit(queue, numbered(1))
    await asyncio.sleep(0.001)
    assert publisher.commit_early()
    house.storage.well()
    assert codes(await answer) == [(0, 0, False)]
    await asyncio.sleep(0)
    assert not publisher.commit_early()


@mad
async def test_the_next_commit_takes_what_others_have_beside_a_flood(house: MadHouse) -> None:
    """A queue has megabytes waiting. Messages of another one are durable with the next commit. The
    first one keeps its order (R7)."""
    steady = await house.queue("steady")
    assert await house.publish(steady, numbered(1)) == [(0, 0, False)]
    flood, answers = await flooded(house)
    ours = house.submit(steady, numbered(5))
    before = len(house.storage.appends)
    house.storage.well()
    await ours
    commits = house.storage.appends[before:]
    assert len(commits) <= 2
    assert Partition(steady.queue_id, 0) in commits[0]
    assert any(not answer.done() for answer in answers)
    for answer in answers[:-1]:
        await answer
    places: dict[int, list[int]] = {}
    for answer in answers[:-1]:
        for outcome in answer.result().outcomes:
            assert isinstance(outcome, tuple)
            places.setdefault(outcome[0], []).append(outcome[1])
    for offsets in places.values():
        assert offsets == sorted(offsets)
    assert sum(map(len, places.values())) == sum(len(a.result().messages) for a in answers[:-1])
    assert flood.queue_id != steady.queue_id


@mad
async def test_beside_a_flood_others_wait_for_none_of_its_commits(house: MadHouse) -> None:
    """P8: Their messages go to the storage while a commit of the flood is under way, in their order
    (R7), up to a bound. No message of the flood goes with them."""
    steady = await house.queue("steady")
    _, answers = await flooded(house)
    ours = [house.submit(steady, numbered(1))]
    house.storage.well()
    house.storage.stall("append")  # the next one
    await asyncio.sleep(0.001)
    before = len(house.storage.appends)
    for _ in range(LIGHT_COMMITS_MAX + 3):
        ours.append(house.submit(steady, numbered(2)))
        await asyncio.sleep(0.001)
    beside = house.storage.appends[before:]
    assert beside == [[Partition(steady.queue_id, 0)]] * (LIGHT_COMMITS_MAX - 1)
    house.storage.well()
    places = [place for answer in ours for place in codes(await answer)]
    assert places == [(0, offset, False) for offset in range(len(places))]
    for answer in answers[:-1]:
        assert not any(isinstance(one, str) for one in codes(await answer))


@mad
async def test_beside_a_flood_nothing_of_it_begins_while_others_have_something_under_way(
    house: MadHouse,
) -> None:
    """P8: It would delay their answer. Yet part of it begins once in a fixed time."""
    steady = await house.queue("steady")
    flood, answers = await flooded(house)
    ours = [house.submit(steady, numbered(1))]

    def the_next_ones_stall() -> int:
        house.storage.well()
        house.storage.stall("append")
        return len(house.storage.appends)

    before = the_next_ones_stall()
    await asyncio.sleep(0.001)
    assert flood.queue_id in {place.queue_id for place in house.storage.appends[before]}
    before = the_next_ones_stall()
    ours.append(house.submit(steady, numbered(1)))
    await asyncio.sleep(0.001)
    assert house.storage.appends[before:] == [[Partition(steady.queue_id, 0)]]
    assert house.broker.publisher.has_enough, "nor is more of the flood heard"
    await asyncio.sleep(HOLD_S)
    ours.append(house.submit(steady, numbered(1)))
    await asyncio.sleep(0.001)
    assert flood.queue_id in {place.queue_id for place in house.storage.appends[-1]}
    house.storage.well()
    for answer in (*ours, *answers[:-1]):
        assert not any(isinstance(one, str) for one in codes(await answer))


@mad
async def test_beside_a_flood_it_rests_and_goes_on_by_itself(house: MadHouse) -> None:
    """P8: Commits under way when others come are in front of them. The flood goes on without
    another publish. Beside others it goes at once. When they stay away it rests no longer."""
    steady = await house.queue("steady")
    _, answers = await flooded(house)
    loop = asyncio.get_running_loop()
    ours = [house.submit(steady, numbered(1))]
    house.storage.well()
    times, until = list[float](), loop.time() + 60
    while loop.time() < until and not all(answer.done() for answer in answers[:-1]):
        before = len(house.storage.appends)
        await asyncio.sleep(REST_S / 8)
        times += [loop.time()] * (len(house.storage.appends) - before)
    pauses = [later - sooner for sooner, later in pairwise(times)]
    rested = [pause for pause in pauses if pause >= REST_S * 0.9]
    assert len(rested) == pytest.approx(LIGHT_S / REST_S, rel=0.3)
    assert all(pause < REST_S * 2 for pause in pauses)
    assert min(pauses[-3:]) < REST_S / 2, "nobody has come for so long"
    for answer in (*ours, *answers[:-1]):
        assert not any(isinstance(one, str) for one in codes(await answer))


@mad
async def test_who_goes_down_stores_what_rests(house: MadHouse) -> None:
    """P1."""
    steady = await house.queue("steady")
    _, answers = await flooded(house)
    ours = house.submit(steady, numbered(1))
    house.storage.well()
    await ours
    await house.broker.publisher.drain()
    assert all(answer.done() for answer in answers)
    for answer in answers[:-1]:
        assert not any(isinstance(one, str) for one in codes(await answer))


@mad
async def test_beside_a_flood_what_was_read_goes_before_the_storages_thread_has_its_turn(
    house: MadHouse,
) -> None:
    """P8: If no queue floods, everything read in a turn of the loop goes together."""
    steady = await house.queue("steady")
    publisher = house.broker.publisher
    ours = [house.submit(steady, numbered(1))]
    publisher.commit_early()
    assert house.storage.appends == []
    await ours[0]
    _, answers = await flooded(house)
    ours.append(house.submit(steady, numbered(1)))
    house.storage.well()
    house.storage.stall("append")
    await asyncio.sleep(0.001)
    assert publisher.is_skewed
    before = publisher.commits.total + len(publisher.commits)
    ours.append(house.submit(steady, numbered(1)))
    assert publisher.commits.total + len(publisher.commits) == before
    publisher.commit_early()
    assert publisher.commits.total + len(publisher.commits) == before + 1
    house.storage.well()
    for answer in (*ours, *answers[:-1]):
        assert not any(isinstance(one, str) for one in codes(await answer))


@mad
async def test_who_floods_beside_others_is_refused_early(house: MadHouse) -> None:
    """P9, P12: This is tested on both sides of the bound, and only while there are others. Those
    are not refused."""
    steady = await house.queue("steady")
    flood = await house.queue("flood", partitions=16)
    most = AHEAD_BYTES_MAX
    for count, is_refused in ((most // 1050, False), (most // 1000, True)):
        house.storage.stall("append")
        answers = [house.submit(flood, large(1))]
        await asyncio.sleep(0.001)
        answers += [house.submit(flood, large(count)), house.submit(steady, numbered(1))]
        house.storage.well()
        house.storage.stall("append")  # the next one
        await asyncio.sleep(0.001)
        more = house.submit(flood, large(1))
        assert more.done() is is_refused
        if is_refused:
            assert refusals(more.result()) == {"overloaded"}
            assert cast(TocsinError, more.result().outcomes[0]).retry_after_s
        answers += [house.submit(steady, numbered(1))]
        house.storage.well()
        for answer in answers:
            assert not any(isinstance(one, str) for one in codes(await answer))
        await asyncio.sleep(WINDOW_S)
        await house.publish(flood, large(1))


@mad
async def test_beside_others_records_are_no_larger_than_goes_with_a_commit(house: MadHouse) -> None:
    """P8: Otherwise one record of a flood would be a commit that others wait for."""
    steady = await house.queue("steady")
    flood = await house.queue("flood")
    house.storage.stall("append")
    answers = [house.submit(flood, large(1))]
    await asyncio.sleep(0.001)
    each = limits.RECORD_BYTES_SHARED // 1000 // 3
    answers += [house.submit(flood, large(each)) for _ in range(12)]
    answers += [house.submit(steady, numbered(1))]
    before = len(house.storage.appends)
    house.storage.well()
    for answer in answers:
        assert not any(isinstance(one, str) for one in codes(await answer))
    commits = [one for one in house.storage.appends[before:] if Partition(flood.queue_id, 0) in one]
    assert [len(one) for one in commits] == [2, 1, 1, 1]


@mad
async def test_a_queue_that_is_alone_has_commits_as_large_as_its_load(house: MadHouse) -> None:
    """A queue that is alone pays nothing for sharing."""
    _, answers = await flooded(house)
    await asyncio.sleep(1.0)  # the last publish was to another queue: none in a second
    before = len(house.storage.appends)
    house.storage.well()
    for answer in answers[:-1]:
        await answer
    assert len(house.storage.appends) - before <= 2


@mad
async def test_a_full_record_is_not_left_behind_when_the_one_after_it_is_withdrawn(
    house: MadHouse,
) -> None:
    """R5, R7: Ann's second message fails with her first one. A record that Bob filled before that
    goes on, without another publish."""
    queue = await house.queue()
    house.storage.stall("append")
    first = house.submit(queue, [message(0, "k")], producer=ANN, sequence=0)
    await eventually(lambda: house.storage.under_way["append"])
    house.submit(queue, [message(n, "b") for n in range(limits.RECORD_MESSAGES_MAX - 1)])
    filled = house.submit(queue, [message(0, "b")])
    behind = house.submit(queue, [message(1, "k")], producer=ANN, sequence=1)
    await asyncio.sleep(0.01)
    house.storage.well()
    house.storage.fail = lambda name: Unknown("lost") if name == "append" else None
    assert codes(await first) == ["unknown"]
    assert codes(await behind) == ["storage_unavailable"]
    house.storage.well()
    async with asyncio.timeout(60):
        (answer,) = codes(await filled)
    assert isinstance(answer, tuple)


@mad
async def test_a_commit_that_fails_in_a_way_nobody_thought_of_holds_nobody_up(
    house: MadHouse,
) -> None:
    """R5, P13."""
    queue = await house.queue()
    house.storage.fail = lambda name: ZeroDivisionError() if name == "append" else None
    assert codes(await house.submit(queue, [message(0)])) == ["unknown"]
    house.storage.well()
    assert codes(await house.submit(queue, [message(1)])) == [(0, 0, False)]
