"""Histories of sessions that lose their transport and come back (R22, R25)."""

from typing import Any

import pytest

from gateway.session.directory import SessionServices
from push import limits
from tests.histories.house import (
    House,
    Session,
    Socket,
    delivery,
    eventually,
    message,
    numbered,
    offsets_of,
)

Frame = dict[str, Any]


class Client(Socket):
    """Client in a group that keeps its deliveries over all its transports."""

    def __init__(
        self, house: House, around: SessionServices | None = None, name: str = "s-1"
    ) -> None:
        super().__init__(house, around, name)
        self.house = house

    async def join(self, credit: int = 1000, **hello: Any) -> Frame:
        self.say(type="hello", **{"linger_s": 30, **hello})
        self.say(
            type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=credit
        )
        await self.until("ok")
        return await self.until("welcome")

    def again(self, name: str = "s-2") -> "Client":
        """Return the same client over another transport, which has not said hello yet."""
        return Client(self.house, self.around, name)

    def resume(self, session: str = "s-1", **fields: Any) -> Frame:
        self.say(type="hello", session=session, linger_s=30, **fields)
        return next(frame for frame in self.frames if frame["type"] == "welcome")

    def hold(self, received: int, deliveries: list[list[int]], **fields: Any) -> Frame:
        self.say(
            type="held", ref=9, subscription=1, received=received, deliveries=deliveries, **fields
        )
        return next(frame for frame in reversed(self.frames) if frame.get("ref") == 9)

    @property
    def pushed(self) -> list[tuple[tuple[int, int, int, int], object, int]]:
        return [
            (
                (frame["partition"], frame["epoch"], frame["push"], offset),
                one["body"],
                frame.get("attempt", 1),
            )
            for frame in self.frames
            if frame["type"] == "push"
            for offset, one in zip(offsets_of(frame), frame["messages"], strict=True)
        ]

    async def given(self, count: int) -> list[tuple[tuple[int, int, int, int], object, int]]:
        await self.until_true(lambda: len(self.pushed) >= count)
        return self.pushed


@pytest.fixture
async def client(house: House) -> Client:
    """Client that holds message 0 and 1 of key k, and has seen nothing else."""
    queue = await house.queue()
    await house.group(queue)
    client = Client(house)
    await client.join()
    await house.publish(queue, numbered(2))
    await client.given(2)
    return client


async def test_what_a_client_holds_stays_its_own_over_a_lost_transport(
    client: Client, house: House
) -> None:
    """R22: No message is given twice, and its ack counts."""
    places = [place for place, _, _ in client.pushed]
    client.session.on_transport_lost()
    back = client.again()
    assert back.resume()["resumed"] == [1]
    assert back.hold(2, [*delivery(places[0]), *delivery(places[1])])["revoked"] == []
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(places[0], 1))
    assert (await back.until_ref(5))["settled"] == 2
    await house.publish(house.find(), numbered(1, first=2))
    assert [body for _, body, _ in await back.given(1)] == [2]


async def test_a_client_whose_silence_closed_its_transport_is_read_again(
    client: Client, house: House
) -> None:
    """R22: 4001 says to come back. Its later frames count, and it is given more."""
    places = [place for place, _, _ in client.pushed]
    for _ in range(2):  # a ping, and no answer
        due = client.session.next_deadline()
        assert due is not None
        client.session.expire(now=due)
    assert client.close_code is not None
    assert client.close_code.code == 4001
    back = client.again()
    assert back.resume()["resumed"] == [1]
    back.hold(2, [*delivery(places[0]), *delivery(places[1])])
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(places[0], 1))
    assert (await back.until_ref(5))["settled"] == 2
    assert back.session.next_deadline() is not None
    await house.publish(house.find(), numbered(1, first=2))
    assert [body for _, body, _ in await back.given(1)] == [2]


async def test_what_a_client_never_saw_comes_again_uncounted_and_in_order(
    client: Client, house: House
) -> None:
    """P3, R19: The push was sent, and the socket was lost. The key waits for it."""
    first = client.pushed[0][0]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    await house.publish(house.find(), numbered(1, first=2))
    assert back.pushed == []
    back.hold(1, delivery(first))
    place, body, attempt = (await back.given(1))[0]
    assert (body, attempt) == (1, 1)
    assert back.pushed[1:] == []
    back.say(type="ack", subscription=1, deliveries=delivery(place))
    assert (await back.given(2))[1][1:] == (2, 1)


async def test_while_nobody_is_there_nothing_is_given_and_nobody_takes_over(
    client: Client, house: House
) -> None:
    """P3: The partition stays, as long as the session lingers."""
    client.session.on_transport_lost()
    seen = len(client.frames)
    other, _ = await house.subscribe(
        house.find(), house.broker.metadata.find_group(Session.principal, house.find(), "billing")
    )
    await house.publish(house.find(), numbered(1, first=2))
    assert len(client.frames) == seen
    assert other.bodies == []
    back = client.again()
    back.resume()
    places = [place for place, _, _ in client.pushed]
    back.hold(2, [*delivery(places[0]), *delivery(places[1])])


async def test_who_does_not_come_back_in_time_returns_what_it_held(house: House) -> None:
    """P6: Its linger counts, and not its lease."""
    queue = await house.queue()
    group = await house.group(queue)
    client = Client(house)
    assert (await client.join(linger_s=0.05))["linger_s"] == 0.05
    await house.publish(queue, numbered(1))
    await client.given(1)
    client.session.on_transport_lost()
    other, _ = await house.subscribe(queue, group)
    assert [body for _, body, _ in await other.take(1)] == [0]
    back = client.again()
    assert back.resume()["resumed"] is None
    assert len(client.around.sessions) == 0


async def test_who_does_not_ask_to_linger_does_not(house: House) -> None:
    """P6: A client that knows nothing of coming back holds up no other."""
    queue = await house.queue()
    group = await house.group(queue)
    client = Client(house)
    await client.join(linger_s=0.0)
    await house.publish(queue, numbered(1))
    await client.given(1)
    client.session.on_transport_lost()
    other, _ = await house.subscribe(queue, group)
    assert [body for _, body, _ in await other.take(1)] == [0]


async def test_a_session_moves_while_its_old_transport_is_open(
    client: Client, house: House
) -> None:
    """The socket died in silence. The session has the new transport, and the old one is told."""
    places = [place for place, _, _ in client.pushed]
    back = client.again()
    assert back.resume()["resumed"] == [1]
    assert client.close_code is not None
    assert client.close_code.code == 4503
    back.hold(2, [*delivery(places[0]), *delivery(places[1])])
    seen = len(client.frames)
    await house.publish(house.find(), numbered(1, first=2))
    assert [body for _, body, _ in await back.given(1)] == [2]
    assert len(client.frames) == seen


async def test_credit_counts_what_arrived(house: House) -> None:
    """R25: Two are granted and sent, and one arrived. Exactly one more may come. The broker chooses
    which one, because these are four keys."""
    queue = await house.queue()
    await house.group(queue)
    client = Client(house)
    await client.join(credit=2)
    await house.publish(queue, [message(n, f"k{n}") for n in range(4)])
    first = (await client.given(2))[0][0]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    back.hold(1, delivery(first))
    await back.given(1)
    await house.broker.cursor_writer.drain()
    assert len(back.pushed) == 1
    back.say(type="credit", subscription=1, granted=4)
    assert {body for _, body, _ in await back.given(3)} == {1, 2, 3}


async def test_what_returned_meanwhile_is_revoked(house: House) -> None:
    """R17: Its lease ended while its transport was lost. Only the ack of a held delivery counts."""
    queue = await house.queue(lease_s=0.05)
    await house.group(queue, lease_s=0.05)
    client = Client(house)
    await client.join()
    await house.publish(queue, numbered(1))
    place = (await client.given(1))[0][0]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    owned = next(iter(house.broker.groups.runtimes.values())).owned_partitions[0]
    await eventually(lambda: not owned.delivery.leases.open_count)
    assert back.hold(1, delivery(place))["revoked"] == delivery(place)
    assert [body for _, body, _ in await back.given(1)] == [0]


async def test_an_ack_that_was_answered_into_the_void_is_answered_again(
    client: Client, house: House
) -> None:
    """R21, P5: It is settled, and nothing is revoked for it."""
    places = [place for place, _, _ in client.pushed]
    client.say(type="ack", ref=4, subscription=1, deliveries=delivery(places[0]))
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    assert back.hold(2, [*delivery(places[0]), *delivery(places[1])])["revoked"] == []
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(places[0]))
    answer = await back.until_ref(5)
    assert (answer["settled"], answer["stale"]) == (1, [])


async def test_a_list_may_come_in_parts(client: Client) -> None:
    places = [place for place, _, _ in client.pushed]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    assert "revoked" not in back.hold(2, delivery(places[0]), more=True)
    assert back.hold(2, delivery(places[1]))["revoked"] == []
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(places[0], 1))
    assert (await back.until_ref(5))["settled"] == 2


async def test_lists_that_do_not_end_are_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: The bound is on all subscriptions. Deliveries listed before still count."""
    monkeypatch.setattr(limits, "NAMED_AS_HELD_MAX", 3)
    places = [place for place, _, _ in client.pushed]
    subscribe = {"type": "subscribe", "subscription": 2, "queue": "orders", "group": "audit"}
    client.say(ref=7, credit=9, **subscribe)
    await client.until_ref(7)
    client.session.on_transport_lost()
    back = client.again()
    assert back.resume()["resumed"] == [1, 2]
    second = {"type": "held", "ref": 8, "subscription": 2, "received": 0, "more": True}
    back.say(**second, deliveries=2 * delivery(places[0]))
    assert "code" not in await back.until_ref(8)
    assert back.hold(2, 2 * delivery(places[0]), more=True)["code"] == "invalid_request"
    assert "code" not in back.hold(2, delivery(places[0]), more=True)
    assert back.hold(2, delivery(places[1]))["code"] == "invalid_request"
    back.say(type="unsubscribe", ref=10, subscription=2)
    assert back.hold(2, delivery(places[1]))["revoked"] == []
    back.say(type="ack", ref=5, subscription=1, deliveries=delivery(places[0], 1))
    assert (await back.until_ref(5))["settled"] == 2


async def test_what_was_listed_for_a_subscription_ends_with_it(client: Client) -> None:
    """R22: The next one of its number begins with nothing."""
    places = [place for place, _, _ in client.pushed]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    back.hold(2, delivery((7, *places[0][1:])), more=True)
    back.say(type="unsubscribe", ref=10, subscription=1)
    back.say(
        type="subscribe", ref=11, subscription=1, queue="orders", group="billing", credit=9,
        held=True,
    )  # fmt: skip
    await back.until_ref(11)
    assert back.hold(0, [])["revoked"] == []


async def test_more_received_than_was_sent_is_refused(client: Client) -> None:
    """P12: It changes nothing, and the right list still counts."""
    places = [place for place, _, _ in client.pushed]
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    assert back.hold(3, [])["code"] == "invalid_request"
    assert back.hold(2, [*delivery(places[0]), *delivery(places[1])])["revoked"] == []


async def test_who_was_not_away_cannot_say_what_it_holds(client: Client, house: House) -> None:
    """P12: Deliveries on their way to it would be taken back, and its handlers would run twice."""
    assert client.hold(0, [])["code"] == "invalid_request"
    place = client.pushed[0][0]
    client.say(type="ack", ref=5, subscription=1, deliveries=delivery(place, 1))
    assert (await client.until_ref(5))["settled"] == 2
    client.session.on_transport_lost()
    back = client.again()
    back.resume()
    assert back.hold(2, [])["revoked"] == []
    assert back.hold(2, [])["code"] == "invalid_request"


async def test_somebody_else_s_session_is_nobody_s(client: Client) -> None:
    """P11: A session that does not exist, and one of another principal, look the same."""
    back = client.again()
    assert back.resume(session="s-7")["resumed"] is None
    assert client.close_code is None


async def test_a_hello_with_a_session_is_alone_in_its_message(client: Client) -> None:
    """P12: Later frames would go to the wrong session."""
    client.session.on_transport_lost()
    back = client.again()
    back.session.receive(b'[{"type":"hello","session":"s-1"},{"type":"ping"}]', now=0.0)
    assert back.close_code is not None
    assert back.close_code.code == 4500


async def test_a_gateway_that_goes_down_waits_for_nobody(client: Client, house: House) -> None:
    """P14: A lingering session cannot be told, and its deliveries return."""
    client.session.on_transport_lost()
    assert len(client.around.sessions) == 1
    client.around.sessions.end_lingering()
    assert len(client.around.sessions) == 0
    assert not next(iter(house.broker.groups.runtimes.values())).members
