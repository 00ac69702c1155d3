"""Histories of a session that is asked to come back, over a broker with leases (P14)."""

import pytest

from gateway.wire import frames
from tests.histories.house import Frame, House, Socket, numbered


async def drained(house: House, lease_s: float) -> tuple[Socket, Frame]:
    """Return a draining session, and the push of two messages that it holds."""
    queue = await house.queue()
    await house.group(queue, lease_s=lease_s)
    socket = Socket(house)
    socket.say(type="hello")
    socket.say(
        type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=9
    )  # fmt: skip
    await house.publish(queue, numbered(2))
    push = await socket.until("push")
    assert len(push["messages"]) == 2
    socket.session.drain(1)
    assert socket.close_code is None
    return socket, push


@pytest.mark.parametrize("acked", [0, 1])
async def test_a_drain_ends_with_the_last_lease_though_nobody_acks(
    house: House, acked: int
) -> None:
    """P14: Unsettled deliveries return by time. The client is told so, and then sent away."""
    socket, push = await drained(house, 0.1)
    if acked:
        place = [push["partition"], push["epoch"], push["push"], 0, 0]
        socket.say(type="ack", subscription=1, deliveries=[place])
        assert socket.close_code is None  # one is left
    await socket.until("close")
    assert socket.close_code == frames.DRAINING
    assert [frame["type"] for frame in socket.frames[-2:]] == ["drain", "revoked"]
    other, _ = await house.subscribe(house.find(), await house.group(house.find()))
    assert await other.get(2 - acked) == [0, 1][acked:]


@pytest.mark.parametrize("last", ["ack", "nack"])
async def test_a_drain_answers_the_frame_that_settles_the_last_before_it_closes(
    house: House, last: str
) -> None:
    """P14: A confirmed ack is answered when it is durable."""
    socket, push = await drained(house, 60)
    place = [push["partition"], push["epoch"], push["push"], 0, 1]
    socket.say(type=last, ref=7, subscription=1, deliveries=[place])
    await socket.until("close")
    assert socket.close_code == frames.DRAINING
    answer = socket.frames[-1]
    assert (answer["type"], answer["ref"]) == ("ok", 7)
