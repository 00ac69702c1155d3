"""Histories of sessions that outlive their gateway (R22). The gateway goes down or dies, and
another one begins over the same stores."""

import asyncio
from typing import Any

import pytest

from gateway.auth.auth import Authenticator
from gateway.delivery.group import GroupRuntime
from gateway.models import Admission
from gateway.session.directory import SessionServices, is_session_id, new_session_id
from gateway.wire import frames
from metadata.catalog import Group, Principal, Queue
from push import limits
from tests.histories.house import House, Session, delivery, eventually, message, numbered
from tests.histories.test_resuming import Client

Frame = dict[str, Any]
Place = tuple[int, int, int, int]
NAME = "a-session-of-22-signs_"


class Mover(Client):
    """A client that keeps its session over gateways."""

    def __init__(
        self, house: House, around: SessionServices | None = None, name: str = NAME
    ) -> None:
        super().__init__(house, around or SessionServices(house.broker, Authenticator(None)), name)

    def moved(self) -> "Mover":
        """Return the same client at the present gateway. It has not said hello yet."""
        return Mover(self.house, name=new_session_id())

    async def rejoin(self, *, session: str = NAME, linger_s: float = 30, **fields: Any) -> Frame:
        """Say hello under the old name, and subscribe as a client that holds deliveries."""
        self.say(type="hello", session=session, linger_s=linger_s)
        welcome = await self.until("welcome")
        assert (welcome["session"], welcome["resumed"]) == (session, None)
        self.say(
            **{"type": "subscribe", "ref": 1, "subscription": 1, "queue": "orders",
               "group": "billing", "credit": 1000, "held": True, **fields}
        )  # fmt: skip
        return await self.until_ref(1)

    async def held(self, *deliveries: list[int]) -> list[list[int]]:
        """Send `held` with these deliveries. Return those that the client no longer owns."""
        self.say(type="held", ref=9, subscription=1, received=0, deliveries=[*deliveries])
        revoked: list[list[int]] = (await self.until_ref(9))["revoked"]
        return revoked

    async def acked(self, *deliveries: list[int]) -> tuple[int, list[list[int]]]:
        """Return (settled, stale) of a confirmed ack."""
        self.say(type="ack", ref=5, subscription=1, deliveries=[*deliveries])
        answer = await self.until_ref(5)
        return answer["settled"], answer["stale"]


def whole(places: list[Place]) -> list[list[int]]:
    """Return the delivery list of these places."""
    return [one for place in places for one in delivery(place)]


async def holding(house: House, count: int = 1, *, keys: int = 1, **hello: Any) -> Mover:
    """Make a client that was given `count` messages of `keys` keys, and holds them."""
    queue = await house.queue()
    await house.group(queue)
    client = Mover(house)
    await client.join(**hello)
    await house.publish(queue, [message(n, f"k{n % keys}") for n in range(count)])
    await client.given(count)
    return client


def places(client: Mover) -> list[Place]:
    return [place for place, _, _ in client.pushed]


async def other(house: House) -> Session:
    """Subscribe another consumer of the group."""
    session, _ = await house.subscribe(house.find(), billing(house))
    return session


def billing(house: House) -> Group:
    return house.broker.metadata.find_group(Session.principal, house.find(), "billing")


def runtime_of(house: House) -> GroupRuntime:
    return house.broker.groups.runtimes[billing(house).group_id]


async def settled(house: House) -> int:
    """Return how many messages the group has not settled, once everything is written."""
    await house.broker.cursor_writer.drain()
    return await house.lag(house.find(), billing(house))


# --- The history of R22 -------------------------------------------------------------------------


async def test_a_deploy_moves_a_session_and_its_handled_message_comes_to_nobody_again(
    durable_house: House,
) -> None:
    """R22, P5: Nor does it come to the consumer that was there first."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    rival = await other(house)
    back = client.moved()
    assert (await back.rejoin())["type"] == "ok"
    assert await back.held(*delivery(place)) == []
    assert await back.acked(*delivery(place)) == (1, [])
    await house.publish(house.find(), numbered(1, "k0", first=1))
    assert [body for _, body, _ in await back.given(1)] == [1]
    assert rival.bodies == []
    assert back.pushed[0][0][1] == place[1] + 1, "under the next epoch"
    assert await back.acked(*delivery(back.pushed[0][0]))  # the same ref: the first answer
    assert await settled(house) == 0


async def test_what_is_said_right_behind_held_comes_to_what_is_adopted(
    durable_house: House,
) -> None:
    """R21: The client need not wait for the answer, and is answered in order."""
    client = await holding(durable_house, 3, keys=3)
    first, second, third = places(client)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    back.session.receive(
        frames._ENCODE(
            [
                {"type": "held", "ref": 9, "subscription": 1, "received": 0,
                 "deliveries": whole([first, second, third])},
                {"type": "ack", "ref": 5, "subscription": 1, "deliveries": delivery(first)},
                {"type": "ping", "ref": 7},
                {"type": "extend", "ref": 6, "subscription": 1, "deliveries": delivery(second)},
            ]
        ),
        now=asyncio.get_running_loop().time(),
    )  # fmt: skip
    back.say(type="nack", ref=8, subscription=1, deliveries=delivery(third))
    answers = [await back.until_ref(ref) for ref in (9, 5, 6, 8)]
    assert [answer.get("settled") for answer in answers] == [None, 1, 1, 1]
    order = [frame["ref"] for frame in back.frames if "ref" in frame]
    said = "a confirmed ack or nack when it is durable, and all else in order"
    assert order == [1, 7, 9, 6, 5, 8], said
    assert [body for _, body, _ in await back.given(1)] == [2]


async def test_what_the_client_does_not_hold_comes_again_and_in_order(
    durable_house: House,
) -> None:
    """P3, R17: 0 was pushed and never arrived. Later messages of its key that the client holds are
    revoked."""
    client = await holding(durable_house, 4, keys=2)
    zero, one, two, three = places(client)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*whole([one, two, three])) == delivery(two)
    again = await back.given(2)
    assert [(body, attempt) for _, body, attempt in again] == [(0, 1), (2, 1)]
    assert await back.acked(*whole([one, three, zero])) == (2, delivery(zero))


async def test_what_was_durably_settled_is_settled_again(durable_house: House) -> None:
    """R21: The answer was lost with the gateway. The client names the delivery and acks it
    again."""
    client = await holding(durable_house, 2)
    zero, one = places(client)
    client.say(type="ack", ref=4, subscription=1, deliveries=delivery(zero))
    await client.until_ref(4)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*whole([zero, one])) == []
    assert await back.acked(*whole([zero, one])) == (2, [])
    assert await settled(durable_house) == 0


async def test_a_nack_revokes_what_was_adopted_behind_it(durable_house: House) -> None:
    """R17: It does so under the old name."""
    client = await holding(durable_house, 2)
    zero, one = places(client)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*whole([zero, one])) == []
    back.say(type="nack", ref=6, subscription=1, deliveries=delivery(zero), delay_s=0)
    assert (await back.until("revoked"))["deliveries"] == delivery(one)
    assert [(body, attempt) for _, body, attempt in await back.given(1)] == [(0, 2)]


async def test_an_adopted_delivery_ends_with_its_lease(durable_house: House) -> None:
    """P6."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    await house.group(house.find(), lease_s=0.2)  # a lease this short cannot be read at a start
    back = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(place)) == []
    assert (await back.until("revoked"))["deliveries"] == delivery(place)
    assert [body for _, body, _ in await back.given(1)] == [0]
    await house.group(house.find())


async def test_a_transport_that_is_lost_again_changes_nothing(durable_house: House) -> None:
    """R22: Adopted deliveries are held like any others. Those that were on their way come again."""
    house = durable_house
    client = await holding(house, 2, keys=2)
    zero, one = places(client)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*whole([zero, one])) == []
    back.session.on_transport_lost()
    third = Mover(house, back.around, new_session_id())
    assert third.resume(NAME)["resumed"] == [1]
    assert third.hold(0, delivery(one))["revoked"] == []
    assert [body for _, body, _ in await third.given(1)] == [0]
    assert await third.acked(*whole([one, zero])) == (1, delivery(zero))


async def test_a_transport_that_is_lost_while_it_is_found_out(durable_house: House) -> None:
    """R22: The client sends its frames again. No message is given before that."""
    house = durable_house
    client = await holding(house, 2, keys=2)
    zero, one = places(client)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    back.say(type="held", ref=9, subscription=1, received=0, deliveries=delivery(zero))
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(zero))
    back.session.on_transport_lost()
    third = Mover(house, back.around, new_session_id())
    assert third.resume(NAME)["resumed"] == [1]
    await eventually(lambda: not back.session._tasks)
    assert third.pushed == []
    assert await third.held(*whole([zero, one])) == []
    assert await third.acked(*whole([zero, one])) == (2, [])
    assert [frame for frame in back.frames if frame.get("ref") in (5, 9)] == []


async def test_what_was_refused_is_refused_again_where_the_answer_was_lost(
    durable_house: House,
) -> None:
    """R17: Otherwise the client runs 2 from its buffer, and is given 0 after it."""
    house = durable_house
    client = await holding(house, 4, keys=2)
    _, one, two, three = places(client)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*whole([one, two, three])) == delivery(two)
    back.session.on_transport_lost()  # before the client has read the answer
    third = Mover(house, back.around, new_session_id())
    assert third.resume(NAME)["resumed"] == [1]
    assert await third.held(*whole([one, two, three])) == delivery(two)
    assert [body for _, body, _ in await third.given(2)] == [0, 2]
    assert await third.acked(*whole([one, two, three])) == (2, delivery(two))


@pytest.mark.parametrize("opens_anew", [False, True])
async def test_who_unsubscribes_while_it_is_found_out_has_left(
    durable_house: House, opens_anew: bool
) -> None:
    """P6, R22: This holds too when the transport is lost before its turn comes. Otherwise its place
    stays kept for no client, and its number stays taken."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    back.say(type="held", ref=9, subscription=1, received=0, deliveries=delivery(place))
    back.say(type="unsubscribe", ref=5, subscription=1)
    subscribe = {"type": "subscribe", "subscription": 1, "queue": "orders", "group": "billing"}
    if opens_anew:
        back.say(ref=6, credit=9, **subscribe)
    back.session.on_transport_lost()
    rival = await other(house)
    assert [body for _, body, _ in await rival.take(1)] == [0]
    third = Mover(house, back.around, new_session_id())
    assert third.resume(NAME)["resumed"] == []
    third.say(ref=7, credit=9, **subscribe)
    assert (await third.until_ref(7))["type"] == "ok"


@pytest.mark.parametrize("there", ["nobody", "another one", "itself"])
async def test_overflow_leaves_to_a_client_what_it_holds(durable_house: House, there: str) -> None:
    """R12: This holds too before the client has come back and named what it holds. Messages that it
    was not given move afterwards."""
    house = durable_house
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    await house.group(queue)
    client = Mover(house)
    await client.join()
    await house.publish(queue, numbered(2))
    held = [place for place, _, _ in await client.given(2)]
    await house.restart()
    back = client.moved()
    if there == "another one":
        await other(house)
    elif there == "itself":
        await back.rejoin(credit=0)
        await eventually(lambda: runtime_of(house).owned_partitions)
    await house.publish(house.find(), numbered(6, first=2))
    for _ in range(3):
        await house.broker.janitor.look()
        await house.broker.cursor_writer.drain()
    assert await settled(house) == 8
    if there != "itself":
        await back.rejoin(credit=0)
    assert await back.held(*whole(held)) == []
    await house.broker.janitor.look()
    await eventually(lambda: not runtime_of(house).owned_partitions[0].delivery.waiting.dead_count)
    assert await settled(house) == 3
    assert await back.acked(*whole(held)) == (2, [])


async def test_only_the_last_epoch_is_adopted(durable_house: House) -> None:
    """R22: The gateway went away twice before the client came back and named what it holds."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    await eventually(lambda: house.broker.groups.runtimes[billing(house).group_id].owned_partitions)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(place)) == delivery(place)
    assert [body for _, body, _ in await back.given(1)] == [0]


async def test_a_seek_ends_what_was_held(durable_house: House) -> None:
    """R22: An operator's decision counts."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    await house.restart()
    await house.broker.seek_group(Session.principal, house.find(), "billing", "earliest")
    back = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(place)) == delivery(place)
    assert [body for _, body, _ in await back.given(1)] == [0]


# --- Waiting for a client -----------------------------------------------------------------------


async def test_who_does_not_come_in_time_is_not_waited_for(durable_house: House) -> None:
    """P6: Its linger counts from the start of the gateway. Then its deliveries go to others."""
    house = durable_house
    client = await holding(house, linger_s=0.05)
    (place,) = places(client)
    await house.restart()
    rival = await other(house)
    assert [body for _, body, _ in await rival.take(1)] == [0]
    back = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(place)) == delivery(place)
    assert await back.acked(*delivery(place)) == (0, delivery(place))
    assert rival.of_type("revoked") == []


async def test_who_is_waited_for_holds_up_its_own_partitions_only(durable_house: House) -> None:
    """P8."""
    house = durable_house
    queue = await house.queue(partitions=2)
    await house.group(queue)
    client = Mover(house)
    await client.join()
    first = await other(house)
    runtime = house.broker.groups.runtimes[billing(house).group_id]
    await eventually(lambda: len({owned.owner for owned in runtime.owned_partitions.values()}) == 2)
    (its_own,) = [n for n, name in runtime.assignment.items() if name == f"{NAME}.1"]
    await house.restart()
    rival = await other(house)
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    await rival.until(lambda: rival.given)
    await settled(house)
    assert {place[0] for place, _, _ in rival.given} == {1 - its_own}
    back = client.moved()
    await back.rejoin()
    assert await back.held() == []
    await back.given(20 - len(rival.given))
    assert {place[0] for place in places(back)} == {its_own}
    assert first.bodies == []


async def test_who_is_waited_for_and_had_nothing_is_given_nothing(durable_house: House) -> None:
    """P8: The owner of before does not linger. Idle consumers that do linger hold up no other."""
    house = durable_house
    queue = await house.queue()
    await house.group(queue)
    await other(house)
    names = [f"{n:022}" for n in range(20)]
    for name in names:
        await Mover(house, name=name).join()
    await eventually(lambda: len(runtime_of(house).row.lingers) == len(names))
    await house.restart()
    rival = await other(house)
    runtime = house.broker.groups.runtimes[billing(house).group_id]
    assert sorted(runtime.absent) == [f"{name}.1" for name in names]
    await house.publish(queue, numbered(1))
    assert [body for _, body, _ in await rival.take(1)] == [0]


async def test_what_was_acked_and_has_moved_to_somebody_who_is_awaited_is_stale(
    durable_house: House,
) -> None:
    """R21: No consumer has owned the partition since the gateway began. The client that repeats its
    ack was given the message all the same."""
    house = durable_house
    await house.group(await house.queue(partitions=2))
    client, awaited = Mover(house), Mover(house, name="another-one-of-22-signs")
    await client.join()
    await house.publish(house.find(), [message(n, f"k{n}") for n in range(20)])
    given = [place for place, _, _ in await client.given(20)]
    assert await client.acked(*whole(given)) == (20, [])
    await awaited.join()
    runtime = runtime_of(house)
    await eventually(
        lambda: sum(bool(one.owned_partitions) for one in runtime.members.values()) == 2
    )
    ((moved, _),) = [one for one in runtime.assignment.items() if one[1].startswith("another")]
    await house.restart()
    back = client.moved()
    await back.rejoin()
    assert await back.held() == []
    again = whole([place for place in given if place[0] == moved])
    assert await back.acked(*again) == (0, again)


async def test_what_is_held_moves_to_nobody_before_it_was_said_what_it_is(
    durable_house: House,
) -> None:
    """R22: A consumer that joined first has a share of the partitions when `held` arrives. Adopted
    deliveries in these are settled before they move (R20)."""
    house = durable_house
    queue = await house.queue(partitions=4)
    await house.group(queue)
    client = Mover(house)
    await client.join()
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    held = [place for place, _, _ in await client.given(40)]
    assert len({place[0] for place in held}) == 4
    await house.restart()
    rival = await other(house)
    runtime = house.broker.groups.runtimes[billing(house).group_id]
    assert set(runtime.assignment.values()) == {f"{NAME}.1"}
    assert sorted(runtime.absent) == [f"{NAME}.1"]
    back = client.moved()
    await back.rejoin()
    assert set(runtime.assignment.values()) == {f"{NAME}.1"}
    assert await back.held(*whole(held)) == []
    await eventually(lambda: len(set(runtime.assignment.values())) == 2)
    assert await back.acked(*whole(held)) == (40, [])
    await house.publish(queue, [message(n, f"k{n}") for n in range(40, 80)])
    await rival.until(lambda: len(rival.given) + len(back.pushed) == 40)
    assert {*rival.bodies, *(body for _, body, _ in back.pushed)} == {*range(40, 80)}
    assert rival.bodies


async def test_who_did_not_ask_to_linger_is_not_waited_for(durable_house: House) -> None:
    """P6."""
    await holding(durable_house, linger_s=0.0)
    await durable_house.restart()
    rival = await other(durable_house)
    assert [body for _, body, _ in await rival.take(1)] == [0]


@pytest.mark.parametrize("how", ["unsubscribe", "end"])
async def test_who_left_for_good_is_not_waited_for(durable_house: House, how: str) -> None:
    """P6."""
    client = await holding(durable_house)
    if how == "unsubscribe":
        client.say(type="unsubscribe", ref=4, subscription=1)
    else:
        client.session.end()
    group_id = billing(durable_house).group_id
    metadata = durable_house.broker.metadata
    lingers = (await metadata.membership(group_id)).lingers
    while lingers:
        await asyncio.sleep(0)
        lingers = (await metadata.membership(group_id)).lingers
    await durable_house.restart()
    rival = await other(durable_house)
    assert [body for _, body, _ in await rival.take(1)] == [0]


@pytest.mark.parametrize("how", ["drained", "lost before", "lost meanwhile"])
async def test_a_gateway_that_goes_down_leaves_a_place_to_who_comes_back(
    durable_house: House, how: str
) -> None:
    """P14, R19: Its handler goes on, and has not failed. Its deliveries go to no other consumer
    meanwhile, at neither gateway."""
    house = durable_house
    client = await holding(house)
    (place,) = places(client)
    client.say(type="extend", subscription=1, started=delivery(place))
    if how == "lost before":
        client.session.on_transport_lost()
    rival = await other(house)
    client.around.sessions.end_lingering()
    if how != "lost before":
        client.session.drain(1.0)
        assert client.close_code is None
    if how == "drained":
        client.close(frames.DRAINING)
    elif how == "lost meanwhile":
        client.session.on_transport_lost()
    await settled(house)
    await house.restart()
    assert rival.bodies == []
    rival = await other(house)
    back = client.moved()
    await back.rejoin()
    assert await back.held(*delivery(place)) == []
    back.say(type="nack", ref=6, subscription=1, deliveries=delivery(place), delay_s=0)
    assert [attempt for _, _, attempt in await back.given(1)] == [2]
    assert rival.bodies == []


# --- Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["s-7", "", NAME + "x", NAME[:-1] + "+", "ä" * 22])
async def test_a_name_that_no_gateway_gives_is_not_kept(house: House, session: str) -> None:
    """P12."""
    fresh = new_session_id()
    assert is_session_id(fresh)
    assert not is_session_id(session)
    client = Mover(house, name=fresh)
    client.say(type="hello", session=session, linger_s=30)
    welcome = await client.until("welcome")
    assert (welcome["session"], welcome["resumed"]) == (fresh, None)


async def test_who_does_not_linger_has_a_fresh_name(house: House) -> None:
    """P6: It wants nothing kept for it, here or at the next gateway."""
    client = Mover(house, name=new_session_id())
    client.say(type="hello", session=NAME)
    assert (await client.until("welcome"))["session"] != NAME


async def test_a_name_that_somebody_else_has_here_is_not_given(house: House) -> None:
    """P11."""
    client = Mover(house)
    client.session._credential.admission = Admission(Principal("mallory", "default"))
    client.say(type="hello", linger_s=30)
    back = Mover(house, client.around, new_session_id())
    back.say(type="hello", session=NAME, linger_s=30)
    welcome = await back.until("welcome")
    assert welcome["session"] == back.session.session_id != NAME


async def test_somebody_else_who_knows_the_name_adopts_nothing(durable_house: House) -> None:
    """P11: If the gateway does not know the owner of the name, the storage does."""
    house = durable_house
    client = await holding(house, linger_s=0.0)
    (place,) = places(client)
    await house.restart()
    thief = client.moved()
    thief.session._credential.admission = Admission(Principal("mallory", Session.principal.tenant))
    await thief.rejoin()
    assert await thief.held(*delivery(place)) == delivery(place)


@pytest.mark.parametrize(
    ("session", "fields"),
    [(None, {"group": "billing"}), (NAME, {}), (NAME, {"group": "billing", "held": "yes"})],
)
async def test_held_is_for_consumers_of_a_named_session(
    house: House, session: str | None, fields: Frame
) -> None:
    """P12."""
    queue = await house.queue()
    await house.group(queue)
    client = Mover(house)
    client.say(type="hello", linger_s=30, **({"session": session} if session else {}))
    frame = {"subscription": 1, "queue": "orders", "credit": 9, "held": True, **fields}
    client.say(type="subscribe", ref=1, **frame)
    assert (await client.until_ref(1))["code"] == "invalid_request"
    assert house.broker.groups.runtimes == {}


async def test_nothing_is_given_before_held(durable_house: House) -> None:
    """R22: With an empty list the client holds nothing."""
    client = await holding(durable_house)
    await durable_house.restart()
    back = client.moved()
    await back.rejoin()
    await eventually(
        lambda: next(iter(durable_house.broker.groups.runtimes.values())).owned_partitions
    )
    await settled(durable_house)
    assert back.pushed == []
    assert await back.held() == []
    assert [body for _, body, _ in await back.given(1)] == [0]


async def test_more_than_a_subscription_ever_has_is_not_held(
    durable_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: The largest allowed number is looked at. One more is refused and changes nothing."""
    client = await holding(durable_house, 3)
    zero = places(client)[0]
    await durable_house.restart()
    monkeypatch.setattr(limits, "NAMED_AS_HELD_MAX", 3)
    back = client.moved()
    await back.rejoin()
    back.say(type="held", ref=3, subscription=1, received=0, deliveries=delivery(zero, zero[3] + 3))
    assert (await back.until_ref(3))["code"] == "invalid_request"
    back.say(type="held", ref=4, subscription=1, received=1, deliveries=[])
    assert (await back.until_ref(4))["code"] == "invalid_request", "received counts from here on"
    assert await back.held(*delivery(zero, zero[3] + 2)) == []
    assert await back.acked(*delivery(zero, zero[3] + 2)) == (3, [])


async def test_no_more_is_adopted_than_a_subscription_may_hold(
    durable_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: The bound is on the sum over its partitions, even if a client claims deliveries that it
    was never given."""
    house = durable_house
    queue = await house.queue(partitions=2)
    await house.group(queue)
    client = Mover(house)
    await client.join()
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    held = [place for place, _, _ in await client.given(20)]
    assert len({place[0] for place in held}) == 2
    await house.restart()
    monkeypatch.setattr(limits, "IN_FLIGHT_PER_SUBSCRIPTION_MAX", 19)
    back = client.moved()
    await back.rejoin()
    (lost,) = await back.held(*whole(held))
    assert lost[3] == lost[4]
    assert await back.acked(*whole(held)) == (19, [lost])
    assert len(await back.given(1)) == 1


async def test_keys_are_read_from_a_log_with_holes(durable_house: House) -> None:
    """R17: The log has many records, some settled between them, and some after the claimed ones."""
    house = durable_house
    queue: Queue = await house.queue()
    await house.group(queue)
    client = Mover(house)
    await client.join()
    for n in range(12):
        await house.publish(queue, [message(n, f"k{n % 3}")])
    given = [place for place, _, _ in await client.given(12)]
    ack = whole([given[n] for n in (0, 1, 2, 4, 5)])
    client.say(type="ack", ref=4, subscription=1, deliveries=ack)
    await client.until_ref(4)
    await house.restart()
    back = client.moved()
    await back.rejoin()
    claims = whole([given[n] for n in (6, 7, 8, 10, 11)])
    assert await back.held(*claims) == delivery(given[6]), "3 of its key comes first"
    assert [body for _, body, _ in await back.given(3)] == [3, 6, 9]
    assert await back.acked(*whole([given[n] for n in (7, 8, 10, 11)])) == (4, [])
