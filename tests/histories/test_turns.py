"""Histories of the number of event loop turns that a message takes. Beside a crowd each turn is
milliseconds."""

import asyncio

from gateway.auth.auth import Authenticator
from gateway.net.connections import Connections
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.session.directory import SessionServices
from push.places import Partition
from tests.gateway.raw_sockets import serve, session
from tests.histories.house import House, message


async def test_a_push_is_written_in_the_turn_in_which_its_commit_is_answered(house: House) -> None:
    """R10: It is not written before that."""
    queue, written = await house.queue(partitions=1), list[tuple[int, int]]()
    async with serve(Connections(SessionServices(house.broker, Authenticator(None)))) as gateway:
        framed = gateway.connections.frame_hits

        def certified(_: Partition) -> None:
            # This is called before the group, and is the first to have the next turn.
            before = framed.hits + framed.misses
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: written.append((before, framed.hits + framed.misses)))

        house.broker.tail.follow(Partition(queue.queue_id, 0), certified)
        wire = await session(gateway)
        subscribe = {"type": "subscribe", "ref": 1, "subscription": 1, "queue": queue.name}
        await wire.send({**subscribe, "group": "g", "credit": 9})
        assert (await wire.receive())["ref"] == 1
        for number in range(2):
            written.clear()
            publish = PendingPublish(queue, [message(number)], lambda answer: None)
            house.broker.publisher.submit(publish)
            assert (await wire.receive())["type"] == "push"
            assert written
            assert all(after == before + 1 for before, after in written)
        await wire.close()
