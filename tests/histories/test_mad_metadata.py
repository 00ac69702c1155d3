"""Histories of a metadata store that stalls, fails, lies, and comes late. Known queues and groups
go on, and other requests are answered so."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from gateway.config import Config
from metadata.catalog import ANYBODY, Membership, QueueSettings
from push import limits
from push.errors import Refused, TocsinError
from push.places import Partition
from tests.histories.house import Socket, eventually, message, numbered
from tests.histories.mad_house import MadHouse, mad
from tests.mad import code_of, renamed


@mad
async def test_known_queues_and_groups_go_on_while_it_stalls(house: MadHouse) -> None:
    """P1, P3: Publishing, pushing and acking go on. Consumers leave, and others join."""
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    house.metadata.stall()
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    taken = await session.take(20)
    places = [[*place, place[3]] for place, _, _ in taken[:10]]
    assert await house.confirm(consumer, places) == (10, 0)
    second, other = await house.subscribe(queue, group)
    consumer.leave()
    await second.take(10)
    await house.publish(house.find(), [message(n, f"k{n}") for n in range(20, 40)])
    await second.take(30)
    places = [[*place, place[3]] for place, _, _ in second.given]
    assert await house.confirm(other, places) == (30, 0)
    assert await house.lag(queue, group) == 0
    assert house.guard["timeouts"] >= 1
    assert house.guard["memberships_ahead"] == 1
    house.metadata.well()
    await eventually(lambda: not house.guard["memberships_ahead"])
    kept = await house.metadata.membership(group.group_id)
    assert kept == await house.broker.metadata.membership(group.group_id)
    assert kept.members == (other.name,)


@mad
async def test_a_minute_without_it_costs_who_publishes_and_consumes_no_error(
    house: MadHouse,
) -> None:
    """A message comes each second. Every five seconds a consumer leaves and another one joins. A
    join waits for the metadata once, for a second."""
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    loop = asyncio.get_running_loop()
    joins, longest_s = 0, 0.0
    house.metadata.stall()
    for number in range(60):
        await house.publish(house.find(), [message(number, f"k{number}")])
        await session.get(number % 5 + 1)
        assert session.bodies[-1] == number
        place = session.given[-1][0]
        assert await house.confirm(consumer, [[*place, place[3]]]) == (1, 0)
        await asyncio.sleep(1.0)
        if number % 5 == 4:
            consumer.leave()
            asked = loop.time()
            session, consumer = await house.subscribe(queue, group)
            joins, longest_s = joins + 1, max(longest_s, loop.time() - asked)
    assert joins == 12
    assert longest_s <= 2 * limits.MEMBERSHIP_DEADLINE_S
    assert house.guard["memberships_ahead"] == 1
    house.metadata.well()
    await asyncio.sleep(10.0)
    assert house.guard["memberships_ahead"] == 0
    assert await house.lag(queue, group) == 0


@mad
async def test_a_client_that_comes_back_goes_on_while_it_stalls(house: MadHouse) -> None:
    """R22: A session has a place that waits for it. Its leaving and coming back write its row."""
    queue = await house.queue()
    await house.group(queue)
    client = Socket(house)
    client.say(type="hello", client="c", linger_s=30)
    await client.until("welcome")
    client.say(type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=9)
    await client.until_ref(1)
    house.metadata.stall()
    client.say(type="unsubscribe", ref=2, subscription=1)
    client.say(type="subscribe", ref=3, subscription=2, queue="orders", group="billing", credit=9)
    assert (await client.until_ref(3))["type"] == "ok"
    client.say(type="publish", ref=4, queue="orders", messages=[{"key": "k", "body": 1}])
    assert (await client.until_ref(4))["type"] == "ok"
    assert (await client.until("push"))["subscription"] == 2


@mad
async def test_a_pull_that_could_not_join_leaves_the_next_one_free(house: MadHouse) -> None:
    """R24: No consumer has been in the group yet, so no gateway knows its row."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(1))
    house.metadata.stall()
    pull = house.broker.pulls.pull(queue, group, 1, 1.0)
    assert await code_of(pull) == "metadata_unavailable"
    house.metadata.well()
    assert [one.body for one in await house.broker.pulls.pull(queue, group, 1, 1.0)] != []


@mad
async def test_what_needs_it_is_refused_in_time_and_then_at_once(house: MadHouse) -> None:
    """P12: `metadata_unavailable` says when to come again. Once the metadata is known to be away,
    no request waits for it. When it answers, the next request is served."""
    house.metadata.stall()
    loop = asyncio.get_running_loop()
    for number in range(limits.BREAKER_FAILURES):
        began = loop.time()
        made = house.broker.create_queue(ANYBODY, f"new{number}", QueueSettings())
        assert await code_of(made) == "metadata_unavailable"
        assert loop.time() - began <= limits.METADATA_DEADLINE_S + 0.001
    calls = house.metadata.calls["put_queue"]
    with pytest.raises(Refused, match="does not answer") as refused:
        await house.broker.create_queue(ANYBODY, "one more", QueueSettings())
    assert 0 < (refused.value.retry_after_s or 0) <= limits.BREAKER_OPEN_S
    assert refused.value.code.retry
    assert house.metadata.calls["put_queue"] == calls
    house.metadata.well()
    await asyncio.sleep(limits.BREAKER_OPEN_S)
    await house.broker.create_queue(ANYBODY, "another", QueueSettings())
    assert house.guard["breaker"] == "closed"


@mad
async def test_a_change_that_has_begun_is_finished_in_both(house: MadHouse) -> None:
    """R11: Its caller was told that it may still take effect. It does, in catalog and storage, and
    a second request finds it. This holds whether the change is late or only its answer."""
    await finished(house, house.metadata.stall)
    await finished(house, house.metadata.late)


async def finished(house: MadHouse, goes_mad: Callable[..., None]) -> None:
    """Make and delete everything that can be made and deleted."""
    late = house.guard["late"]
    goes_mad()
    assert await code_of(house.queue("new", partitions=2)) == "metadata_unavailable"
    storage = house.broker.storage
    house.metadata.well()
    await eventually(lambda: house.guard["late"] == late + 1)
    await house.broker.changes.finish()
    queue = house.find("new")
    assert len(await storage.partitions(queue.queue_id)) == 2
    _, created = await house.broker.create_queue(ANYBODY, "new", queue.settings)
    assert not created
    goes_mad("put_group")
    assert await code_of(house.group(queue, "late")) == "metadata_unavailable"
    house.metadata.well()
    await house.broker.changes.finish()
    group = house.broker.metadata.find_group(ANYBODY, queue, "late")
    assert len(await storage.cursors(queue.queue_id, group.group_id)) == 2
    goes_mad("delete_queue")
    gone = house.broker.delete_queue(ANYBODY, "new")
    assert await code_of(gone) == "metadata_unavailable"
    house.metadata.well()
    await house.broker.changes.finish()
    assert await storage.partitions(queue.queue_id) == []
    assert house.metadata.dropped() == []


@mad
async def test_a_queue_that_might_be_made_is_refused_to_who_publishes(house: MadHouse) -> None:
    """P12: This is with auto_create. The session goes on with the known queues."""
    house.broker.config = Config(data_dir=house.folder, auto_create=True)
    await house.queue("known")
    client = Socket(house)
    client.say(type="hello")
    await client.until("welcome")
    house.metadata.stall()
    for ref, name in ((1, "known"), (2, "unknown"), (3, "known")):
        client.say(type="publish", ref=ref, queue=name, messages=[{"key": "k", "body": ref}])
    assert (await client.until_ref(1))["type"] == "ok"
    assert (await client.until_ref(3))["type"] == "ok"
    await asyncio.sleep(limits.METADATA_DEADLINE_S)
    assert (await client.until_ref(2))["code"] == "metadata_unavailable"


@mad
async def test_equal_questions_are_asked_once(house: MadHouse) -> None:
    """Single flight: A hundred publishers want the same queue and make it once. One of them is
    answered so."""
    house.metadata.stall()
    asked = [
        asyncio.ensure_future(house.broker.create_queue(ANYBODY, "q", QueueSettings()))
        for _ in range(100)
    ]
    await eventually(lambda: house.guard["shared"] == 99)
    house.metadata.well()
    made = [created for _, created in await asyncio.gather(*asked)]
    assert made.count(True) == 1
    assert house.metadata.calls["put_queue"] == 1


@mad
async def test_no_more_than_so_many_wait_for_it(house: MadHouse) -> None:
    """P9: This is the bulkhead, on both sides of its bound."""
    house.metadata.stall()
    many = limits.METADATA_CALLS_MAX
    asked = [
        asyncio.ensure_future(house.broker.create_queue(ANYBODY, f"q{n}", QueueSettings()))
        for n in range(many)
    ]
    await eventually(lambda: house.guard["under_way"] == many)
    one_more = house.broker.create_queue(ANYBODY, "q", QueueSettings())
    assert await code_of(one_more) == "metadata_unavailable"
    assert house.guard["refused_full"] == 1
    house.metadata.well()
    assert len(await asyncio.gather(*asked)) == many
    await house.broker.create_queue(ANYBODY, "q", QueueSettings())


# --- Looking up --------------------------------------------------------------------------------


def asked(house: MadHouse) -> int:
    """Return how often the metadata has been asked for a queue's name."""
    return house.metadata.calls["find_queue"]


@mad
async def test_what_is_looked_up_again_and_again_is_asked_for_once(house: MadHouse) -> None:
    """The rate of hits is counted, for known names and for unknown ones."""
    await house.queue()
    before, guard = asked(house), house.guard["queues"]["hits"]
    for _ in range(1000):
        house.find()
        with pytest.raises(Refused, match="queue_not_found"):
            house.find("unknown")
    assert asked(house) - before <= 4
    counted = house.guard["queues"]
    assert counted["hits"] - guard >= 1996
    assert counted["unknown_hits"] >= 998
    assert counted["rate"] > 0.99


@mad
async def test_an_unknown_name_is_known_as_soon_as_it_is_made(house: MadHouse) -> None:
    """The name is known elsewhere within a second of its creation, here at once, and from then on.
    The same holds for one that is deleted."""
    await house.queue("early")
    await asyncio.sleep(0.8 * limits.METADATA_FRESH_S)
    with pytest.raises(Refused):
        house.find("new")
    queue = await house.queue("new")
    for _ in range(4):
        assert house.find("new").queue_id == queue.queue_id
        await asyncio.sleep(0.1 * limits.METADATA_FRESH_S)
    with pytest.raises(Refused):
        house.broker.metadata.find_group(ANYBODY, queue, "billing")
    group = await house.group(queue)
    assert house.broker.metadata.find_group(ANYBODY, queue, "billing") == group
    await house.broker.delete_group(ANYBODY, queue, "billing")
    with pytest.raises(Refused, match="group_not_found"):
        house.broker.metadata.find_group(ANYBODY, queue, "billing")
    await house.broker.delete_queue(ANYBODY, "new")
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("new")


@mad
async def test_what_was_made_elsewhere_is_known_within_a_second(house: MadHouse) -> None:
    """No notice reports it. It is looked up again when the known state is no longer fresh."""
    assert limits.METADATA_FRESH_S <= 1.0
    queue = await house.queue("other")
    with pytest.raises(Refused):
        house.find("elsewhere")
    house.metadata.elsewhere = {"elsewhere": renamed(queue, "elsewhere")}
    await asyncio.sleep(limits.METADATA_FRESH_S)
    assert house.find("elsewhere").queue_id == queue.queue_id


@mad
async def test_unknown_names_are_remembered_up_to_a_bound(house: MadHouse) -> None:
    """P9: Invented names fill no memory, and displace no known one."""
    await house.queue()
    house.find()
    for number in range(limits.NAMES_UNKNOWN_MAX + 10):
        with pytest.raises(Refused):
            house.find(f"invented{number}")
    before = asked(house)
    house.find()
    assert len(house.broker.metadata._queues._missing) == limits.NAMES_UNKNOWN_MAX
    assert asked(house) == before


@mad
async def test_what_is_known_counts_while_nobody_can_be_asked_but_not_for_ever(
    house: MadHouse,
) -> None:
    """This is the stated staleness, on both sides. A name that was never known is
    `metadata_unavailable`."""
    queue = await house.queue()
    house.find()
    house.metadata.fail = lambda name: Refused("metadata_unavailable") if "find" in name else None
    await asyncio.sleep(limits.METADATA_STALE_S - 1)
    assert house.find() == queue
    assert house.guard["queues"]["stale"] == 1
    with pytest.raises(TocsinError, match="metadata_unavailable"):
        house.find("never known")
    await asyncio.sleep(1.0)
    with pytest.raises(TocsinError, match="metadata_unavailable"):
        house.find()
    house.metadata.well()
    await asyncio.sleep(limits.METADATA_FRESH_S)
    assert house.find() == queue


@mad
async def test_an_answer_for_another_name_is_not_believed(house: MadHouse) -> None:
    """P2: A message goes to the queue that it names, or nowhere."""
    right = await house.queue("right")
    wrong = await house.queue("wrong")
    house.metadata.swapped = {"right": "wrong", "new": "wrong"}
    await asyncio.sleep(limits.METADATA_FRESH_S)
    assert house.find("right") == right
    with pytest.raises(TocsinError, match="metadata_unavailable"):
        house.find("new")
    assert house.guard["queues"]["lies"] == 2
    await house.publish(house.find("right"), numbered(3))
    states = await house.broker.storage.partitions(wrong.queue_id)
    assert [state.end for state in states] == [0]
    assert Partition(right.queue_id, 0) != states[0].partition


# --- Membership --------------------------------------------------------------------------------


@mad
async def test_a_row_of_another_group_is_not_believed(house: MadHouse) -> None:
    """R14."""
    queue = await house.queue()
    group, other = await house.group(queue), await house.group(queue, "other")

    async def lie(group_id: str) -> Membership:
        row: Membership = await house.metadata.real.membership(other.group_id)
        return row

    vars(house.metadata)["membership"] = lie
    asked_for = house.broker.metadata.membership(group.group_id)
    assert await code_of(asked_for) == "metadata_unavailable"


@mad
async def test_who_writes_a_row_with_an_old_generation_is_told_no(house: MadHouse) -> None:
    """R14: This is compare and set, also while the metadata stalls."""
    queue = await house.queue()
    group = await house.group(queue)
    metadata = house.broker.metadata
    row = await metadata.membership(group.group_id)

    def after(old: Membership, *members: str) -> Membership:
        generation = old.generation + 1
        return msgspec.structs.replace(old, generation=generation, members=members)

    assert await metadata.change_membership(after(row, "a"), expected_generation=row.generation)
    house.metadata.stall()
    second = after(after(row, "a"), "b")
    changes = [
        metadata.change_membership(second, expected_generation=row.generation + 1),
        metadata.change_membership(after(row, "c"), expected_generation=row.generation),
    ]
    assert await asyncio.gather(*changes) == [True, False]
    assert await metadata.membership(group.group_id) == second
    house.metadata.well()
    await eventually(lambda: not house.guard["memberships_ahead"])
    assert await house.metadata.real.membership(group.group_id) == second


@mad
async def test_a_deleted_group_has_no_row(house: MadHouse) -> None:
    """This holds whether it is known or not, and whether the metadata stalls or not."""
    queue = await house.queue()
    group = await house.group(queue, "billing")
    await house.broker.metadata.membership(group.group_id)
    await house.broker.delete_group(ANYBODY, queue, "billing")
    assert await code_of(house.broker.metadata.membership(group.group_id)) == "group_not_found"


@mad
async def test_readiness_is_not_lost_with_the_metadata(house: MadHouse) -> None:
    """A load balancer that takes every gateway out would stop what goes on without the metadata.
    The status shows its failure."""
    house.metadata.stall()
    assert await house.broker.ready() == []
    described = await house.broker.describe()
    assert described["metadata"]["timeouts"] >= 1  # type: ignore[index]


@mad
async def test_a_stop_does_not_wait_for_ever(house: MadHouse) -> None:
    """P14."""
    house.metadata.stall()
    assert await code_of(house.queue("new")) == "metadata_unavailable"
    began = asyncio.get_running_loop().time()
    await house.stop()
    assert asyncio.get_running_loop().time() - began <= 5 * limits.METADATA_DEADLINE_S
