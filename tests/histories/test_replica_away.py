"""Histories of gateways whose store has lost a copy for longer than any client waits. Acts that
wait for every copy fail (the groups' rows, read and changed, and the catalog). Everything else
works.

README: Running gateways go on, at the levels that the table says.
"""

import asyncio
from typing import Any

import pytest

from metadata.catalog import ANYBODY, Group, GroupSettings, Membership
from metadata.heartbeats import GONE_S
from push.errors import Unknown
from tests.histories.gateways import Town, town
from tests.histories.house import Session, numbered
from tests.histories.test_several_gateways import ack_all, publish, times_given
from tests.waiting import becomes

FEW = Unknown("1 of 2 replicas have confirmed it")
NEEDS_ALL = {"membership", "change_membership", "put_queue", "put_group"}


def replica_away(town: Town) -> None:
    """Take a replica away from now on."""
    for gateway in town.gateways:
        gateway.metadata.fail = lambda name: FEW if name in NEEDS_ALL else None


async def failed_over(town: Town) -> None:
    """Leave the store without a primary for longer than beats may stand still. Then there is one,
    and the earlier primary is the replica that is away."""
    for gateway in town.gateways:
        gateway.metadata.fail = lambda name: FEW
    await asyncio.sleep(GONE_S + 2)
    assert all(gateway.broker.groups.presence.is_alone for gateway in town.gateways)
    replica_away(town)


async def taken_over(town: Town, *stalled: str) -> tuple[Group, Session, Session]:
    """Make two gateways with a consumer each. The first is cut off until the row gives everything
    to the second. `stalled` names calls that do not happen at the second one's storage."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, _ = await one.consumer(group)
    second, _ = await two.consumer(group)
    await town.shared(group)
    if stalled:
        two.storage.stall(*stalled)
    one.cut_off()
    await becomes(lambda: two.runtime(group).part.others() == set())
    return group, first, second


@town(2)
async def test_gateways_that_run_are_there_while_a_replica_is_away(town: Town) -> None:
    """R14, R29: However many groups they look at in vain, beats are answered."""
    group = await town.group(partitions=2)
    first = town.gateways[0]
    groups = [group]
    for number in range(12):
        more, _ = await first.broker.put_group(
            ANYBODY, first.find(), f"g{number}", GroupSettings(), None
        )
        groups.append(more)
    for one in groups:
        for gateway in town.gateways:
            await gateway.consumer(one)
    await town.shared(group)
    replica_away(town)
    alone_s = 0.0
    for _ in range(120):
        await asyncio.sleep(1)
        alone_s += first.broker.groups.presence.is_alone
    assert not alone_s, f"{alone_s:.0f} of 120 s the gateway gave nothing out to anybody"
    assert first.metadata.calls["membership"] > 100


async def goes_on(town: Town) -> None:
    """Check that consumers are given new messages after a failover that leaves a replica away."""
    group = await town.group(partitions=4, lease_s=600)
    consumers = [await gateway.consumer(group) for gateway in town.gateways]
    await town.shared(group)
    await failed_over(town)
    await becomes(lambda: not any(g.broker.groups.presence.is_alone for g in town.gateways), 5)
    await publish(town.gateways[0], 40)
    sessions = [session for session, _ in consumers]
    await becomes(lambda: len(times_given(*sessions)) == 40, 5)
    for gateway, (session, consumer) in zip(town.gateways, consumers, strict=True):
        assert await ack_all(gateway, session, consumer) == (len(session.given), 0)
    assert {*times_given(*sessions).values()} == {1}
    assert len(town.owned) == 4 + 2 * (len(town.gateways) - 1), "nobody has taken anything over"


@town(1)
async def test_one_gateway_goes_on_behind_a_failover_that_leaves_a_replica_away(
    town: Town,
) -> None:
    """The rows of its groups can never be read on every copy. In the rows that it reads, no other
    gateway has taken anything."""
    await goes_on(town)


@town(2)
async def test_several_gateways_go_on_behind_a_failover_that_leaves_a_replica_away(
    town: Town,
) -> None:
    """All of them go on, each with its own partitions."""
    await goes_on(town)


@town(2)
async def test_who_comes_back_gives_nothing_that_others_have_taken(town: Town) -> None:
    """P5: The replica goes away when another gateway has taken over. Every readable copy of the row
    says so. A group whose row cannot be read on every copy cannot be joined either."""
    one, two = town.gateways
    group, first, second = await taken_over(town)
    await becomes(lambda: len(two.owns(group)) == 4)
    await publish(two, 40)
    await becomes(lambda: len(second.bodies) == 40)
    (consumer,) = two.runtime(group).members.values()
    assert await ack_all(two, second, consumer) == (40, 0)
    one.come_back()
    replica_away(town)
    await becomes(lambda: not one.broker.groups.presence.is_alone)
    await publish(one, 40, first=40)
    await becomes(lambda: len(second.bodies) == 80)
    assert first.bodies == []
    assert not one.owns(group)
    one.metadata.well()
    two.metadata.well()
    await town.shared(group)


@town(2)
async def test_who_was_taken_out_gives_nothing_before_it_is_in_the_row_again(town: Town) -> None:
    """P5, R22: Its place is still kept, and no consumer has it. Yet another one may get it as soon
    as the copies are back, before this gateway can read that."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, _ = await one.consumer(group, "first", linger_s=600)
    await town.shared(group, one)
    second, _ = await two.consumer(group, "second")
    await town.shared(group)
    one.cut_off()
    await becomes(lambda: two.runtime(group).part.others() == set())
    assert two.runtime(group).absent
    one.come_back()
    replica_away(town)
    await becomes(lambda: not one.broker.groups.presence.is_alone)
    await publish(two, 40)
    await asyncio.sleep(5)
    assert first.bodies == []
    for gateway in town.gateways:
        gateway.metadata.well()
    await becomes(lambda: len(times_given(first, second)) == 40)
    assert {*times_given(first, second).values()} == {1}
    assert first.bodies


@town(1)
async def test_whose_change_was_not_answered_goes_on_with_what_it_has(town: Town) -> None:
    """R14: The row differs from the one that it knows, and no other gateway wrote it."""
    group = await town.group(partitions=4, lease_s=600)
    (one,) = town.gateways
    first, consumer = await one.consumer(group, "first")
    await town.shared(group)
    real = one.metadata.real.change_membership

    async def lost(*args: Any, **options: Any) -> Any:
        await real(*args, **options)
        raise FEW

    one.metadata.real.change_membership = lost
    with pytest.raises(Unknown):
        await one.consumer(group, "second", held=True)
    one.metadata.real.change_membership = real
    owned = [*town.owned]
    await failed_over(town)
    await becomes(lambda: not one.broker.groups.presence.is_alone)
    await publish(one, 40)
    await asyncio.sleep(1)
    assert set(times_given(first).values()) == {1}
    assert first.bodies
    assert await ack_all(one, first, consumer) == (len(first.bodies), 0)
    assert town.owned == owned, "under the epochs that it had"
    one.metadata.well()
    await becomes(lambda: len(times_given(first)) == 40)
    assert {*times_given(first).values()} == {1}


@town(2)
async def test_what_was_taken_is_not_owned_again_by_an_older_row(town: Town) -> None:
    """R14: The row gives it to the other gateway, which has not begun yet."""
    one, two = town.gateways
    group, _, _ = await taken_over(town, "own")
    owned = [*town.owned]
    one.come_back()
    replica_away(town)
    await becomes(lambda: not one.broker.groups.presence.is_alone)
    await asyncio.sleep(5)
    assert town.owned == owned
    assert not one.owns(group)
    two.storage.well()


@town(1)
async def test_who_comes_back_gives_nothing_of_a_group_that_is_gone(town: Town) -> None:
    """The group was deleted elsewhere, and the notice has not arrived here. There is no row."""
    group = await town.group(partitions=2)
    (gateway,) = town.gateways
    session, _ = await gateway.consumer(group)
    await town.shared(group)

    async def glance(group_id: str) -> Membership:
        return Membership(group_id=group_id, generation=0, members=(), assignment={})

    metadata: Any = gateway.metadata
    metadata.glance = glance
    await failed_over(town)
    await becomes(lambda: not gateway.broker.groups.presence.is_alone)
    await gateway.publish(gateway.find(), numbered(10))
    await asyncio.sleep(5)
    assert session.bodies == []
