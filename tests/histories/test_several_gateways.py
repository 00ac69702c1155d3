"""Histories of groups that several gateways serve together (R14, R15, R20, R22, P6, P7)."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from gateway.auth.auth import Authenticator
from gateway.models import WhichKey
from gateway.operator.stats import BELIEVED_S
from gateway.session.directory import SessionServices, new_session_id
from gateway.wire import frames
from metadata.catalog import ANYBODY, Group, GroupSettings, Principal
from metadata.heartbeats import GONE_S
from push import limits
from push.errors import Refused, Unknown
from tests.histories.gateways import Gateway, Town, town
from tests.histories.house import Session, delivery, message
from tests.histories.test_adopting import Mover, whole
from tests.waiting import becomes

SESSION = "a-session-of-22-signs_"


async def publish(gateway: Gateway, count: int, first: int = 0) -> None:
    """Publish `count` messages, each of its own key."""
    queue = gateway.find()
    await gateway.publish(queue, [message(n, f"k{n}") for n in range(first, first + count)])


def only(gateway: Gateway, group: Group) -> Any:
    """Return the one consumer at this gateway."""
    (consumer,) = gateway.runtime(group).members.values()
    return consumer


def times_given(*sessions: Session) -> Counter[Any]:
    """Return how often each body was pushed."""
    return Counter(body for session in sessions for body in session.bodies)


async def ack_all(gateway: Gateway, session: Session, consumer: Any) -> tuple[int, int]:
    """Ack durably all that the session was given. Return (settled, stale)."""
    fresh = session.given
    return await gateway.confirm(consumer, [one for place, *_ in fresh for one in delivery(place)])


@town()
async def test_a_join_elsewhere_moves_half_and_nothing_comes_twice(town: Town) -> None:
    """R20: A partition that moves is drained first. One that stays never pauses."""
    one, two = town.gateways
    group = await town.group(partitions=8)
    first, consumer = await one.consumer(group)
    await publish(one, 40)
    await first.take(40)
    second, other = await two.consumer(group)
    await becomes(lambda: len(one.owns(group)) == 4)
    await publish(two, 40, first=40)
    assert not two.owns(group), "what is in flight at the other gateway is not owned here"
    count = len(first.given)
    assert await ack_all(one, first, consumer) == (count, 0)
    await town.shared(group)
    await becomes(lambda: len(times_given(first, second)) == 80)
    await ack_all(one, first, consumer)
    await ack_all(two, second, other)
    assert set(times_given(first, second).values()) == {1}
    assert second.bodies
    assert await two.lag(two.find(), group) == 0
    assert len(town.owned) == 12, "each partition once, and what has moved once more"


@town()
async def test_consumers_that_join_together_are_one_write(town: Town) -> None:
    """R14: Three hundred come back to a gateway at once, and half of them leave before they have
    joined. The one row is read and written once or twice."""
    one, two = town.gateways
    group = await town.group(partitions=8)
    _, owner = await two.consumer(group)
    await one.consumer(group)
    await town.shared(group)
    reads, writes = one.metadata.calls["membership"], one.metadata.calls["change_membership"]
    sessions = [Session(f"back-{number}") for number in range(300)]
    back = [
        one.broker.groups.consumer(session, 1, one.find(), group, 10, held=True)
        for session in sessions
    ]
    joining = [asyncio.create_task(consumer.join()) for consumer in back]
    await asyncio.sleep(0)
    for consumer in back[::2]:
        consumer.leave()
    joined = await asyncio.gather(*joining, return_exceptions=True)
    assert [isinstance(outcome, Refused) for outcome in joined] == [True, False] * 150
    assert one.metadata.calls["membership"] - reads < 10
    assert one.metadata.calls["change_membership"] - writes < 10
    await becomes(lambda: len(two.runtime(group).row.members) == 152)
    for consumer in back[1::2]:
        consumer.leave()
    await becomes(
        lambda: len(two.runtime(group).row.members) == 2 and len(owner.owned_partitions) == 4
    )


@town()
async def test_a_partition_that_ends_while_the_row_is_written_is_not_waited_for(town: Town) -> None:
    """R20: The row that is being written says that this gateway drains it. The last consumer
    leaves, so that nothing here looks at the row again by itself."""
    one, two = town.gateways
    group = await town.group(partitions=4)
    first, leaving = await one.consumer(group)
    await two.consumer(group)
    await town.shared(group)
    await publish(one, 40)
    await becomes(lambda: len(leaving.owned_partitions) == 2 and first.bodies)
    one.metadata.stall("change_membership")
    retiring = asyncio.create_task(one.runtime(group).retire(leaving))
    await becomes(lambda: one.metadata.under_way["change_membership"])
    settled, stale = await ack_all(one, first, leaving)
    assert settled == len(first.bodies)
    assert not stale
    assert not one.runtime(group).owned_partitions, "they have ended"
    one.metadata.well()
    await retiring
    assert await becomes(lambda: len(two.owns(group)) == 4) < 1


@town()
async def test_a_drain_that_does_not_end_is_cut_off(town: Town) -> None:
    """R20: A consumer that hangs holds a partition up for DRAIN_S."""
    one, two = town.gateways
    group = await town.group(partitions=2, lease_s=600)
    first, _ = await one.consumer(group)
    await publish(one, 20)
    await first.take(20)
    second, _ = await two.consumer(group)
    took_s = await becomes(lambda: two.owns(group))
    assert limits.DRAIN_S - 1 < took_s < limits.DRAIN_S + 1
    await becomes(lambda: len(times_given(first, second)) == 20 and second.bodies)


@town()
async def test_who_waited_for_a_drain_and_was_cut_off_waits_for_it_anew(town: Town) -> None:
    """R20: The time that ran out meanwhile was another drain's. The present drain has its own, and
    deliveries in flight under it are not given again."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, consumer = await one.consumer(group)
    await publish(one, 20)
    await first.take(20)
    second, other = await two.consumer(group)
    await becomes(lambda: len({*one.runtime(group).assignment.values()}) == 2)
    two.cut_off()
    await becomes(lambda: len({*one.runtime(group).assignment.values()}) == 1)
    await asyncio.sleep(2 * limits.DRAIN_S)  # drained partitions have come back
    two.come_back()
    await becomes(lambda: len({*one.runtime(group).assignment.values()}) == 2)
    await asyncio.sleep(limits.DRAIN_S / 2)
    assert not two.owns(group)
    await ack_all(one, first, consumer)
    await town.shared(group)
    await publish(two, 20, first=20)
    await becomes(lambda: len(times_given(first, second)) == 40)
    assert {times_given(second)[body] for body in second.bodies} == {1}
    assert min(second.bodies) >= 20, "none that the first one had in flight"
    await ack_all(two, second, other)


@town()
async def test_a_gateway_that_dies_is_taken_over_from(town: Town) -> None:
    """P6, P7: This happens within GONE_S + 2 s, under higher epochs."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, _ = await one.consumer(group)
    second, other = await two.consumer(group)
    await town.shared(group)
    await publish(two, 20)
    await becomes(lambda: len(times_given(first, second)) == 20)
    epochs = {place[0]: place[1] for place, *_ in first.given}
    one.cut_off()
    took_s = await becomes(lambda: two.owns(group) == {0, 1, 2, 3})
    assert GONE_S - 1 <= took_s <= GONE_S + 2
    await becomes(lambda: set(times_given(second)) == set(range(20)))
    for place, *_ in second.given:
        assert place[1] > epochs.get(place[0], 0)
    await ack_all(two, second, other)
    assert await two.lag(two.find(), group) == 0


@town()
async def test_who_was_cut_off_gives_nothing_settles_nothing_and_joins_again(town: Town) -> None:
    """P7: Its partitions are others' by then. Its client is told that its deliveries are none."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, consumer = await one.consumer(group)
    second, other = await two.consumer(group)
    await town.shared(group)
    await publish(two, 20)
    await becomes(lambda: len(times_given(first, second)) == 20)
    held = [place for place, *_ in first.given]
    one.cut_off()
    await becomes(lambda: two.owns(group) == {0, 1, 2, 3})
    confirmed: list[Any] = []
    consumer.ack([one for place in held[::2] for one in delivery(place)], [], confirmed.append)
    before = len(first.given)
    one.come_back()
    await becomes(lambda: confirmed)
    assert not confirmed[0].durable
    assert (await one.broker.describe())["fenced_writes"] > 0  # type: ignore[operator]
    assert await two.lag(two.find(), group) == 20, "nothing was settled"
    assert first.of_type("revoked")
    await becomes(lambda: set(times_given(second)) == set(range(20)))
    await ack_all(two, second, other)
    await town.shared(group)
    await publish(one, 20, first=20)
    await becomes(lambda: len(times_given(first, second)) == 40)
    assert all(body >= 20 for _, body, _ in first.given[before:])


@town()
async def test_who_is_cut_off_stops_giving_before_others_begin(town: Town) -> None:
    """The gateway knows this by its own clock. Its log goes on growing."""
    one, two = town.gateways
    group = await town.group(partitions=1)
    first, _ = await one.consumer(group, credit=10)
    await publish(one, 20)
    await first.take(10)
    one.cut_off()
    await asyncio.sleep(GONE_S + 0.01)
    consumer = only(one, group)
    consumer.grant(20)
    await asyncio.sleep(1)
    assert len(first.given) == 10
    assert (await two.broker.describe())["is_alone"] is False
    one.come_back()
    await first.take(20)  # no other has taken over, and it goes on as it was
    assert {place[1] for place, *_ in first.given} == {1}


@town()
async def test_a_pause_of_the_store_revokes_nothing(town: Town) -> None:
    """All are alone for a while, and no other has taken over. All go on under their epochs."""
    group = await town.group(partitions=4, lease_s=600)
    pairs = [await gateway.consumer(group) for gateway in town.gateways]
    await town.shared(group)
    await publish(town.gateways[0], 20)
    sessions = [session for session, _ in pairs]
    await becomes(lambda: len(times_given(*sessions)) == 20)
    owned = len(town.owned)
    for gateway in town.gateways:
        gateway.cut_off()
    await asyncio.sleep(3 * GONE_S)
    for gateway in town.gateways:
        gateway.come_back()
    for gateway, (session, consumer) in zip(town.gateways, pairs, strict=True):
        assert await ack_all(gateway, session, consumer) == (len(session.given), 0)
    await asyncio.sleep(3 * GONE_S)
    assert len(town.owned) == owned
    assert not any(session.of_type("revoked") for session in sessions)


@town(3)
async def test_gateways_that_come_at_once_agree(town: Town) -> None:
    """R14: No gateway overtakes another. A partition is owned no more often than there are
    gateways."""
    group = await town.group(partitions=16)
    await asyncio.gather(*(gateway.consumer(group) for gateway in town.gateways))
    await town.shared(group)
    assert sorted(len(gateway.owns(group)) for gateway in town.gateways) == [5, 5, 6]
    rows = {gateway.runtime(group).row.generation for gateway in town.gateways}
    before = len(town.owned)
    await asyncio.sleep(60)
    assert len(town.owned) == before <= 16 * 3
    assert {gateway.runtime(group).row.generation for gateway in town.gateways} == rows
    assert len(rows) == 1


@town()
async def test_lost_notices_are_made_good_by_looking(town: Town) -> None:
    """R14: These are notices of joins. The storage reports what was published (R10)."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, _ = await one.consumer(group)
    await town.shared(group, one)
    one.metadata.is_deaf = True
    await two.consumer(group, credit=0)
    assert await becomes(lambda: two.owns(group)) < 16
    await publish(two, 20)
    assert await becomes(lambda: first.bodies) < 3


@town()
async def test_a_gateway_that_goes_down_is_not_waited_for(town: Town) -> None:
    """P14: The others have its partitions at once. No settled message comes again."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    first, consumer = await one.consumer(group)
    second, _ = await two.consumer(group)
    await town.shared(group)
    await publish(two, 20)
    await becomes(lambda: len(times_given(first, second)) == 20)
    mine = len(first.given)
    consumer.ack([one for place, *_ in first.given for one in delivery(place)], [], None)
    await one.stop()
    assert await becomes(lambda: two.owns(group) == {0, 1, 2, 3}) < 0.5
    await asyncio.sleep(30)
    assert len(second.given) == 20 - mine
    assert one.broker.groups.presence.gateway not in await town.catalog.beat("", 0, {})
    town.gateways.remove(one)


# --- Sessions that move (R22) -------------------------------------------------------------------


async def moving(town: Town, count: int = 6) -> tuple[Group, Session, list[Any]]:
    """Let a session at the first gateway hold `count` messages."""
    group = await town.group(partitions=4, lease_s=600)
    session, _ = await town.gateways[0].consumer(group, SESSION, linger_s=30)
    await town.shared(group, town.gateways[0])
    await publish(town.gateways[0], count)
    return group, session, [place for place, *_ in await session.take(count)]


async def comes_to(gateway: Gateway, group: Group, held: list[Any]) -> tuple[Session, Any]:
    """Join the same session at another gateway, where it names the deliveries that it holds."""
    session, consumer = await gateway.consumer(group, SESSION, linger_s=30, held=True)
    revoked = consumer.hold(0, [one for place in held for one in delivery(place)])
    assert (revoked if isinstance(revoked, list) else await revoked) == []
    return session, consumer


@town()
async def test_a_session_that_moves_takes_what_it_holds_with_it(town: Town) -> None:
    """R22: Nothing comes again, and its acks count. The session is at no other gateway any more."""
    one, two = town.gateways
    group, old, held = await moving(town)
    session, consumer = await comes_to(two, group, held)
    assert old.has_moved
    assert not one.runtime(group).members
    assert await two.confirm(consumer, [x for place in held for x in delivery(place)]) == (6, 0)
    await publish(one, 4, first=6)
    await session.take(4)
    assert sorted(session.bodies) == [6, 7, 8, 9]
    assert old.bodies == [*old.bodies[:6]]
    await asyncio.sleep(30)
    assert len(session.given) == 4


@town()
async def test_a_session_that_moves_keeps_what_it_holds_when_owning_is_asked_twice(
    town: Town,
) -> None:
    """R22: Its gateway dies, and the answer of each start is lost, because a copy of the store is
    missing for a moment. A repeated request is the same start."""
    one, two = town.gateways
    group, _, held = await moving(town)
    one.cut_off()
    lost = set[Any]()

    def the_first(name: str, args: Any, _: Any) -> Exception | None:
        if name != "own" or args[0] in lost:
            return None
        lost.add(args[0])
        return Unknown("1 of 2 replicas have confirmed it")

    two.storage.lose = the_first
    session, consumer = await comes_to(two, group, held)  # asserts that nothing is revoked
    assert await two.confirm(consumer, [x for place in held for x in delivery(place)]) == (6, 0)
    assert len(lost) == 4
    assert session.bodies == []


@town()
async def test_who_follows_somebody_whose_start_was_not_answered_adopts_nothing(
    town: Town,
) -> None:
    """R22: A start that is not answered counts only for the consumer that asked. Each start that
    took effect has an epoch of its own."""
    one, _ = town.gateways
    group = await town.group(partitions=2)
    await one.consumer(group, "first")
    await town.shared(group, one)
    is_lost, tokens = True, list[bytes]()

    def starts(name: str, _: Any, options: Any) -> Exception | None:
        if name == "own":
            tokens.append(options["token"])
        return Unknown("1 of 2 replicas have confirmed it") if name == "own" and is_lost else None

    one.storage.lose = starts
    (first,) = one.runtime(group).members.values()
    one.runtime(group).leave(first)
    await one.consumer(group, "second")
    await becomes(lambda: len(tokens) >= 6)
    assert len({*tokens}) == 2, "asked again with the token of before"
    (second,) = one.runtime(group).members.values()
    one.runtime(group).leave(second)
    await one.consumer(group, "third")
    is_lost = False
    await town.shared(group, one)
    assert len({*tokens}) == 4
    assert [
        owned.delivery.before.epoch for owned in one.runtime(group).owned_partitions.values()
    ] == [None] * 2
    one.runtime(group).fence()
    await town.shared(group, one)
    assert len({*tokens}) == 6


@town()
async def test_what_it_has_settled_just_before_is_written_first(town: Town) -> None:
    """The earlier gateway lives, and its last writes are waited for."""
    one, two = town.gateways
    group, old, held = await moving(town)
    consumer = only(one, group)
    consumer.ack([one for place in held for one in delivery(place)], [], None)
    session, _ = await comes_to(two, group, [])
    await town.shared(group, two)
    await asyncio.sleep(5)
    assert session.bodies == []
    assert await two.lag(two.find(), group) == 0
    assert len(old.bodies) == 6


@town()
async def test_a_session_whose_gateway_has_died_need_not_wait(town: Town) -> None:
    """The session itself says where it is. Its gateway need not be taken for dead first."""
    one, two = town.gateways
    group, _, held = await moving(town)
    one.cut_off()
    loop = asyncio.get_running_loop()
    began = loop.time()
    session, consumer = await comes_to(two, group, held)
    assert loop.time() - began < GONE_S / 2
    assert await two.confirm(consumer, [x for place in held for x in delivery(place)]) == (6, 0)
    assert session.bodies == []
    one.come_back()
    await becomes(lambda: not one.runtime(group).members)


@town(3)
async def test_others_leave_what_a_session_holds_to_it(town: Town) -> None:
    """R22: It has not named its deliveries yet, and a third gateway shares the group meanwhile. Its
    gateway is dead. Its place is kept for as long as it asked."""
    one, two, three = town.gateways
    group, _, held = await moving(town)
    one.cut_off()
    other, _ = await three.consumer(group)
    await asyncio.sleep(2 * GONE_S)
    assert not three.owns(group)
    session, consumer = await two.consumer(group, SESSION, linger_s=30, held=True)
    await three.consumer(group)
    await asyncio.sleep(2 * GONE_S)
    assert not three.owns(group)
    assert await consumer.hold(0, [one for place in held for one in delivery(place)]) == []
    assert await two.confirm(consumer, [x for place in held for x in delivery(place)]) == (6, 0)
    await town.shared(group, two, three)
    assert session.bodies == other.bodies == []


@town()
async def test_who_does_not_come_is_not_waited_for_any_longer(town: Town) -> None:
    """The gateway of the session went down, and the session asked for a linger of 30 s."""
    one, two = town.gateways
    group, old, _ = await moving(town)
    other, _ = await two.consumer(group)
    await asyncio.sleep(1)
    consumer = only(one, group)
    consumer.leave(moves=True)
    assert 29 < await becomes(lambda: len(two.owns(group)) == 4) < 32
    await becomes(lambda: sorted(other.bodies) == sorted(old.bodies))


@town()
async def test_who_comes_back_while_its_gateway_has_not_heard_stays(town: Town) -> None:
    """The session went to another gateway and came back before a notice did. It is here, as it
    says."""
    one, two = town.gateways
    group, old, held = await moving(town)
    one.metadata.is_deaf = True
    await comes_to(two, group, held)
    consumer = only(one, group)
    consumer.suspend()
    consumer.hold(6, [one for place in held for one in delivery(place)])
    await becomes(lambda: not two.runtime(group).members)
    await town.shared(group, one)
    await asyncio.sleep(10)
    assert not old.has_moved
    assert one.runtime(group).members


@town()
async def test_who_comes_back_while_the_catalog_refuses_to_be_told_stays(town: Town) -> None:
    """R22: The row is of before. A refusal does not mean that it has left again."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    await one.consumer(group, SESSION, linger_s=30)
    await town.shared(group, one)
    old, _ = await two.consumer(group, SESSION, linger_s=30)
    await town.shared(group, two)
    refusal = Refused("storage_unavailable")
    one.metadata.fail = lambda name: refusal if name == "change_membership" else None
    with pytest.raises(Refused):
        await one.consumer(group, SESSION, linger_s=30)
    one.metadata.well()
    back, _ = await one.consumer(group, SESSION, linger_s=30)
    await becomes(lambda: old.has_moved)
    await town.shared(group, one)
    await asyncio.sleep(10)
    assert not back.has_moved
    assert one.owns(group) == {0, 1, 2, 3}


def around(gateway: Gateway) -> SessionServices:
    """Return the services that all clients of a gateway share."""
    return SessionServices(gateway.broker, Authenticator(None))


async def connected(town: Town, count: int = 6) -> tuple[Group, Mover, list[Any]]:
    """Connect a client at the first gateway, and let it hold `count` messages."""
    group = await town.group(partitions=4, lease_s=600)
    client = Mover(town.gateways[0], around(town.gateways[0]), SESSION)
    await client.join()
    await town.shared(group, town.gateways[0])
    await publish(town.gateways[0], count)
    return group, client, [place for place, *_ in await client.given(count)]


@town()
async def test_a_client_that_lost_its_socket_is_only_where_it_came_back(town: Town) -> None:
    """R22: Its session lingers at the one gateway and goes on at the other one."""
    one, two = town.gateways
    _, client, held = await connected(town)
    sessions = client.around.sessions
    client.session.on_transport_lost()
    assert len(sessions) == 1
    back = Mover(two, around(two), new_session_id())
    assert (await back.rejoin(session=SESSION))["type"] == "ok"
    assert await back.held(*whole(held)) == []
    assert await back.acked(*whole(held)) == (6, [])
    assert len(sessions) == 0
    assert sessions.is_free(SESSION, Session.principal)
    await publish(one, 2, first=6)
    assert sorted(body for _, body, _ in await back.given(2)) == [6, 7]  # type: ignore[type-var]
    assert len(client.pushed) == 6


@town()
async def test_a_client_is_notified_over_its_old_socket_while_that_is_open(town: Town) -> None:
    """The earlier gateway did not notice. The client of that socket is told not to come back."""
    one, two = town.gateways
    _, client, held = await connected(town)
    back = Mover(two, around(two), new_session_id())
    await back.rejoin(session=SESSION)
    assert await back.held(*whole(held)) == []
    assert client.close_code == frames.REPLACED
    assert await back.acked(*whole(held)) == (6, [])
    assert not one.broker.groups.runtimes[next(iter(one.broker.groups.runtimes))].members


@town()
async def test_nobody_takes_anothers_place_by_the_name_of_his_session(town: Town) -> None:
    """P11: A principal that may look at the group knows the name."""
    one, two = town.gateways
    group, old, held = await moving(town)
    thief = Session(SESSION, linger_s=30)
    thief.principal = Principal("somebody-else")
    await two.broker.groups.consumer(thief, 1, two.find(), group, 1000, held=True).join()
    await asyncio.sleep(2 * GONE_S)
    assert one.runtime(group).members
    assert not old.has_moved
    consumer = only(one, group)
    acked = [one for place in held for one in delivery(place)]
    assert await one.confirm(consumer, acked) == (6, 0)
    assert thief.bodies == []


# --- Pulls, seeks and operators -------------------------------------------------------------------


@town()
async def test_pulls_through_two_gateways_are_two_consumers(town: Town) -> None:
    """R24: Each has its share, and no message comes twice."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    queue = one.find()

    async def pull(gateway: Gateway, wait_s: float) -> list[Any]:
        return [m.key for m in await gateway.broker.pulls.pull(queue, group, 100, wait_s)]

    await asyncio.gather(pull(one, 1), pull(two, 1))
    await town.shared(group)
    await publish(one, 20)
    got = [*await pull(one, 1), *await pull(two, 1)]
    assert sorted(got) == sorted(f"k{n}" for n in range(20))
    described = await one.broker.describe_group(ANYBODY, queue, "billing")
    assert described["members"] == sorted(
        f"pulls-{gateway.broker.groups.presence.gateway}" for gateway in town.gateways
    )


@town()
async def test_pulls_that_leave_while_the_catalog_fails_are_gone_when_it_answers(
    town: Town,
) -> None:
    """R24: No client asks for this again. Their partitions are given to others."""
    one, two = town.gateways
    group = await town.group(partitions=4)
    await two.consumer(group)
    await one.broker.pulls.pull(one.find(), group, 1, 0)
    await town.shared(group)
    failed: list[str] = []

    def fails_once(name: str) -> Exception | None:
        if name != "membership" or one.runtime(group).members or failed:
            return None
        failed.append(name)
        return Refused("metadata_unavailable")

    one.metadata.fail = fails_once
    await becomes(lambda: failed)
    assert await becomes(lambda: len(two.owns(group)) == 4) < 0.1


@town()
async def test_a_seek_through_another_gateway_begins_anew_here(town: Town) -> None:
    """Earlier deliveries no longer count, though no gateway writes a cursor."""
    one, two = town.gateways
    group = await town.group(partitions=4, lease_s=600)
    session, consumer = await one.consumer(group)
    await publish(one, 8)
    await session.take(8)
    await ack_all(one, session, consumer)
    await two.broker.seek_group(ANYBODY, two.find(), "billing", "earliest")
    await session.take(16)
    assert sorted(session.bodies) == sorted([*range(8)] * 2)


@town()
async def test_a_group_with_consumers_elsewhere_is_not_abandoned(town: Town) -> None:
    """R11: It ends when it is abandoned, once. Of eight, each gateway looks after some."""
    one, two = town.gateways
    await town.group(expires_s=100)
    queue = one.find()
    for number in range(7):
        settings = GroupSettings(expires_s=100)
        await one.broker.put_group(ANYBODY, queue, f"more-{number}", settings, None)

    def groups() -> list[Group]:
        return one.broker.metadata.list_groups(ANYBODY, one.find())

    assert len(groups()) == 8
    consumers = [(await two.consumer(group))[1] for group in groups()]
    visitors = [(await one.consumer(group))[1] for group in groups()]
    for visitor in visitors:
        visitor.leave()
    await asyncio.sleep(500)
    assert len(groups()) == 8
    for consumer in consumers:
        consumer.leave()
    await asyncio.sleep(90)
    assert len(groups()) == 8
    await becomes(lambda: not groups(), 300)


@town()
async def test_parked_keys_are_decided_through_any_gateway(town: Town) -> None:
    """R18, R24: The owner at another gateway decides. Without consumers the asked gateway does."""
    one, two = town.gateways
    group = await town.group(partitions=1, attempts_max=1, on_exhausted="park")
    session, consumer = await one.consumer(group)
    await publish(one, 1)
    ((place, *_),) = await session.take(1)
    consumer.nack(delivery(place), 0.0, None)
    every = WhichKey(every=True)

    async def parked(gateway: Gateway) -> int:
        return (await gateway.broker.parking.list_keys(gateway.find(), group, 10)).keys_parked

    async def becomes_parked(gateway: Gateway) -> None:
        for _ in range(100):
            if await parked(gateway):
                return
            await asyncio.sleep(0.1)

    await becomes_parked(two)
    decided = await two.broker.parking.decide(two.find(), group, "retry", every)
    assert [(key.key, key.attempts) for key in decided.keys] == [("k0", 1)]
    await session.take(2)
    consumer.nack(delivery(session.given[1][0]), 0.0, None)
    await becomes_parked(two)
    described = await two.broker.describe_group(ANYBODY, two.find(), "billing")
    (partition,) = cast(list[dict[str, object]], described["partitions"])
    assert (partition["owner"], partition["waits_for"]) == (None, "elsewhere")
    assert described["members"] == [partition["member"]] == [consumer.name]
    explained = await two.broker.explainer.explain(ANYBODY, two.find(), "k0", "billing", "")
    assert explained.groups[0].also == ["elsewhere"]
    consumer.leave()
    await becomes(lambda: not one.runtime(group).owned_partitions)
    await asyncio.sleep(1)
    decided = await two.broker.parking.decide(two.find(), group, "skip", every)
    assert len(decided.keys) == 1
    assert await two.lag(two.find(), group) == 0


@town()
async def test_what_overflows_moves_once_whoever_sees_it(town: Town) -> None:
    """Each gateway moves its part. Without consumers one of them moves all."""
    one, _ = town.gateways
    queue = await one.queue(partitions=4, messages_max=8, overflow="dead_letter")
    for name in ("served", "idle"):
        await one.group(queue, name)
    served = one.broker.metadata.find_group(ANYBODY, queue, "served")
    for gateway in town.gateways:
        await gateway.consumer(served, credit=0)
    await town.shared(served)
    await publish(one, 40)

    async def lags() -> list[int]:
        return [
            int(str((await one.broker.describe_group(ANYBODY, queue, name))["lag"]))
            for name in ("served", "idle")
        ]

    await asyncio.sleep(60)
    assert await lags() == [8, 8]
    described = await one.broker.describe_group(ANYBODY, queue, "served")
    partitions = cast(list[dict[str, int]], described["partitions"])
    assert max(one["lag"] for one in partitions) <= 3, "from where most waits, wherever that is"


@town()
async def test_what_another_gateway_settled_is_seen_here_within_seconds(town: Town) -> None:
    """An operator at one gateway is not shown for ever the state of his first look."""
    one, two = town.gateways
    group = await town.group(partitions=1)
    await publish(one, 5)
    queue = one.find()

    async def lag() -> Any:
        described = await one.broker.describe_group(ANYBODY, queue, group.name)
        return described["lag"]

    assert await lag() == 5
    session, consumer = await two.consumer(group)
    await session.take(5)
    await ack_all(two, session, consumer)
    await asyncio.sleep(BELIEVED_S + 0.1)
    assert await lag() == 0
