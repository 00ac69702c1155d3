"""Histories of the frames that answer a client about its deliveries (R17, R21)."""

from typing import Any

import pytest

from tests.histories.house import Frame, House, Place, Socket, delivery, message


async def consuming(house: House, *keys: str, **settings: Any) -> tuple[Socket, list[Place]]:
    """Make a client that holds a message of each of these keys. Return it and their places."""
    queue = await house.queue(attempts_max=0)
    await house.group(queue, **settings)
    socket = Socket(house)
    socket.say(type="hello")
    socket.say(type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=99)
    await house.publish(queue, [message(n, key) for n, key in enumerate(keys)])
    push = await socket.until("push")
    assert len(push["messages"]) == len(keys)
    place = (push["partition"], push["epoch"], push["push"])
    return socket, [(*place, offset) for offset in range(len(keys))]


def since(socket: Socket, kind: str) -> list[Frame]:
    """Return the frames after the first frame of this type."""
    kinds = [frame["type"] for frame in socket.frames]
    return socket.frames[kinds.index(kind) + 1 :]


@pytest.mark.parametrize("ref", [None, 7])
async def test_what_a_nack_takes_with_it_is_revoked_before_the_nack_is_answered(
    house: House, ref: int | None
) -> None:
    """R17: A client that keeps the key closed until then runs nothing out of order. The nacked
    message itself is not named. Without a `ref` the `revoked` comes all the same."""
    socket, places = await consuming(house, "a", "b", "a", "a")
    more = {} if ref is None else {"ref": ref}
    socket.say(type="nack", subscription=1, deliveries=delivery(places[0]), delay_s=60, **more)
    if ref is not None:
        await socket.until_ref(ref)  # when it is durable
    revoked, *answers = since(socket, "push")
    assert revoked["type"] == "revoked"
    assert revoked["deliveries"] == [[*places[0][:3], 2, 2, 3, 3]]
    ok: Frame = {"type": "ok", "ref": ref, "settled": 1, "stale": []}
    assert answers == ([] if ref is None else [ok])


async def test_a_nack_with_nothing_behind_it_revokes_nothing(house: House) -> None:
    """R17: Its answer alone says that the key may be opened."""
    socket, places = await consuming(house, "a", "b")
    socket.say(type="nack", ref=7, subscription=1, deliveries=delivery(places[0]), delay_s=60)
    await socket.until_ref(7)
    assert [frame["type"] for frame in since(socket, "push")] == ["ok"]


async def test_what_time_takes_is_named_whole(house: House) -> None:
    """R17, P6: A client that gave a message up by its own clock waits until it is named. Later ones
    of its key are named with it."""
    socket, places = await consuming(house, "a", "b", "a", lease_s=0.1)
    socket.say(type="extend", subscription=1, deliveries=delivery(places[1], 2), lease_s=60)
    revoked = await socket.until("revoked")
    assert revoked["deliveries"] == [[*places[0][:3], 0, 0, 2, 2]]


@pytest.mark.parametrize("ref", [None, 7])
async def test_an_ack_of_what_was_never_given_settles_the_rest(
    house: House, ref: int | None
) -> None:
    """R21, P12: The answer is an error, which says what took effect nevertheless."""
    socket, (first, *_, third) = await consuming(house, "a", "b", "c")
    partition, epoch, push, _ = first
    old, invented = [partition, epoch - 1, push, 0, 0], [partition, epoch, push + 99, 5, 5]
    acked = [*delivery(first, third[3]), old, invented]
    more = {} if ref is None else {"ref": ref}
    socket.say(type="ack", subscription=1, deliveries=acked, **more)
    error = await socket.until("error")
    assert (error["code"], error.get("ref")) == ("not_delivered", ref)
    assert error["deliveries"] == [invented]
    assert (error["settled"], error["stale"]) == (3, [old])
