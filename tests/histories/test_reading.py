"""Histories of readers: the truth about a position, filters, times, gaps (R26, P10)."""

import asyncio
import time
from typing import Any

import pytest

from gateway.wire.frames import Position
from metadata.catalog import ANYBODY, Queue
from push.errors import Refused
from tests.histories.house import (
    Frame,
    House,
    Session,
    delivery,
    eventually,
    message,
    numbered,
    offsets_of,
)


class Diary(dict[int, int]):
    """Reader's position as a client keeps it: partition → next offset."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        for frame in session.of_type("push"):
            if "positions" in frame:
                self |= {int(n): at for n, (_, at) in frame["positions"].items()}
            else:
                self[frame["partition"]] = frame["next"]

    def position(self, queue: Queue, generation: int = 1) -> Position:
        """Return the token that the client would come back with."""
        places = {str(number): [generation, at] for number, at in self.items()}
        return Position(queue_id=queue.queue_id, partitions=places)


def messages(session: Session) -> list[Frame]:
    """Return every message that was pushed."""
    return [one for frame in session.of_type("push") for one in frame["messages"]]


async def test_a_reader_goes_on_where_it_was(house: House) -> None:
    """R26, P10: After a resume no message comes twice, and none is missed, in each partition by
    itself."""
    queue = await house.queue(partitions=4, retention_s=3600)
    session, reader = await house.read(queue, start="earliest")
    await house.publish(queue, [message(n, f"k{n}") for n in range(40)])
    await session.get(40)
    diary = Diary(session)
    reader.close()
    await house.publish(queue, [message(n, f"k{n}") for n in range(40, 80)])
    again, reader = await house.read(queue, position=diary.position(queue))
    assert {line["verdict"] for line in reader.verdicts} == {"resumed"}
    await again.get(40)
    await house.publish(queue, [message(80, "k80")])
    await again.get(41)
    assert sorted(again.bodies) == list(range(40, 81))


async def test_a_reader_learns_of_a_gap(house: House) -> None:
    """P10: Its next messages were deleted. The frame names the first and last of them, and it goes
    on after them."""
    queue = await house.queue()
    group = await house.group(queue)
    consumer_session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    await house.publish(queue, numbered(3, first=3))
    given = await consumer_session.take(6)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    await house.broker.janitor.look()
    await house.publish(queue, [message(6)])
    position = Position(queue_id=queue.queue_id, partitions={"0": [1, 1]})
    session, reader = await house.read(queue, position=position)
    assert reader.verdicts == [
        {"partition": 0, "generation": 1, "verdict": "gap", "from": 1, "to": 5}
    ]
    assert await session.get(1) == [6]


async def test_retention_overtakes_a_reader_in_the_middle_of_its_stream(house: House) -> None:
    """R26, P10: It has no credit for a while. It is told at that place which messages it will not
    get."""
    queue = await house.queue()
    group = await house.group(queue)
    other, consumer = await house.subscribe(queue, group)
    session, reader = await house.read(queue, credit=2, start="earliest")
    for number in range(6):
        await house.publish(queue, [message(number)])
    await session.get(2)
    given = await other.take(6)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given[:4]])
    await house.broker.janitor.look()
    reader.grant(10)
    assert await session.get(4) == [0, 1, 4, 5]
    (gap,) = [frame for frame in session.of_type("push") if "gap" in frame]
    assert (gap["gap"], gap["next"], gap["messages"]) == ([2, 3], 4, [])
    nexts = [frame["next"] for frame in session.of_type("push")]
    assert nexts == sorted(nexts)


@pytest.mark.parametrize(
    ("place", "reason"),
    [([2, 0], "generation"), ([1, 99], "ends at"), (None, "lacks")],
    ids=["another generation", "beyond the end", "not named"],
)
async def test_a_position_of_another_history_is_unknown(
    house: House, place: list[int] | None, reason: str
) -> None:
    """R2, P10: The frame says so, and reading begins at the earliest message."""
    queue = await house.queue(retention_s=3600)
    await house.publish(queue, numbered(3))
    places = {} if place is None else {"0": place}
    session, reader = await house.read(
        queue, position=Position(queue_id=queue.queue_id, partitions=places)
    )
    (line,) = reader.verdicts
    assert (line["verdict"], line["from"]) == ("unknown", 0)
    assert reason in str(line["reason"])
    assert await session.get(3) == [0, 1, 2]


@pytest.mark.parametrize("name", ["x", "-1", "1.0", "٣", "9" * 5000, "", "00", "01"])
async def test_a_position_that_names_no_partition_is_refused(house: House, name: str) -> None:
    """P12: The refusal is a sentence, whatever the name is."""
    queue = await house.queue()
    position = Position(queue_id=queue.queue_id, partitions={name: [1, 1]})
    with pytest.raises(Refused, match="invalid_request"):
        await house.read(queue, position=position)
    assert not house.broker.readers._queues


async def test_a_filtered_reader_gets_its_keys_and_moves_on_over_the_rest(house: House) -> None:
    """R26: They come in order, and the position is after the messages that the filter skipped."""
    queue = await house.queue(partitions=2, retention_s=3600)
    await house.publish(queue, [message(n, f"k{n % 5}") for n in range(50)])
    session, reader = await house.read(queue, keys=["k1", "k3"], start="earliest")
    await house.publish(queue, [message(n, f"k{n % 5}") for n in range(50, 100)])
    await session.get(40)
    assert {one["key"] for one in messages(session)} == {"k1", "k3"}
    for key in ("k1", "k3"):
        mine = [one["body"] for one in messages(session) if one["key"] == key]
        assert mine == list(range(int(key[1]), 100, 5))
    await eventually(lambda: not reader.behind)
    reader._owner._sweep()  # reports the position to a filtered reader, now and then
    ends = {
        s.partition.number: s.end for s in await house.broker.storage.partitions(queue.queue_id)
    }
    assert Diary(session) == ends


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_filtered_reader_that_is_cut_off_by_credit_misses_nothing(
    house: House, start: str
) -> None:
    """R26, P10: The reader's position brings the rest, however much credit it had when it left."""
    queue = await house.queue(retention_s=3600)
    wanted = list(range(0, 40, 2))
    for credit in (1, 3, 7, 20):
        batch = [message(n, "mine" if n % 2 == 0 else "other") for n in range(40)]
        session, reader = await house.read(queue, credit=credit, keys=["mine"], start=start)
        if start == "earliest":
            queue = await house.queue(f"orders-{credit}", retention_s=3600)
            await house.publish(queue, batch)
            session, reader = await house.read(queue, credit=credit, keys=["mine"], start=start)
        else:
            await house.publish(queue, batch)
        await session.get(credit)
        diary = Diary(session)
        reader.close()
        again, reader = await house.read(queue, keys=["mine"], position=diary.position(queue))
        if credit < len(wanted):
            await again.get(len(wanted) - credit)
        assert session.bodies + again.bodies == wanted
        reader.close()


async def test_a_filtered_push_has_a_bound(house: House) -> None:
    """P9: The wanted messages of one record are larger than a push. They come in several pushes,
    live and when catching up."""
    queue = await house.queue(retention_s=3600)
    live, _ = await house.read(queue, keys=["k"])
    await house.publish(queue, [message("x" * 30_000) for _ in range(10)])
    await live.get(10)
    late, _ = await house.read(queue, keys=["k"], start="earliest")
    await late.get(10)
    for session in (live, late):
        sizes = [sum(len(one["body"]) for one in f["messages"]) for f in session.of_type("push")]
        assert max(sizes) <= 64 * 1024
        assert [o for f in session.of_type("push") for o in f["offsets"]] == list(range(10))


async def test_a_reader_starts_at_a_time(house: House) -> None:
    """R26: It starts with the first message published at or after it."""
    queue = await house.queue(partitions=2, retention_s=3600)
    await house.publish(queue, [message(n, f"k{n}") for n in range(10)])
    then_unix_ms = int(time.time() * 1000) + 2
    await eventually(lambda: time.time() * 1000 > then_unix_ms + 1)
    await house.publish(queue, [message(n, f"k{n}") for n in range(10, 20)])
    session, _ = await house.read(queue, start=then_unix_ms)
    await session.get(10)
    assert sorted(session.bodies) == list(range(10, 20))
    everything, _ = await house.read(queue, start=0)
    await everything.get(20)
    nothing, _ = await house.read(queue, start=then_unix_ms + 10**9)
    await house.publish(queue, [message("now")])
    assert await nothing.get(1) == ["now"]


async def test_readers_at_the_tail_get_every_message_once(house: House) -> None:
    """R26: They join at any moment of a stream that goes on, plain and filtered, with much and
    little credit. Each offset comes once, in order, with none left out."""
    queue = await house.queue(retention_s=3600)
    readers: list[tuple[Session, Any, dict[str, Any]]] = []
    for turn in range(30):
        if turn % 3 == 0:
            options = {"keys": ["a"]} if turn % 2 else {}
            session, reader = await house.read(
                queue, credit=2 if turn % 6 else 500, start="earliest", **options
            )
            readers.append((session, reader, options))
        publishing = [house.submit(queue, [message(turn, "a"), message(turn, "b")])]
        await asyncio.sleep(0)
        publishing.append(house.submit(queue, [message(turn, "a"), message(turn, "b")]))
        await asyncio.gather(*publishing)
    for session, reader, options in readers:
        total = 60 if options else 120
        for granted in range(2, total + 2, 2):
            reader.grant(granted)
            await session.get(min(granted, total))
        offsets = [offset for frame in session.of_type("push") for offset in offsets_of(frame)]
        assert offsets == list(range(0, 120, 2 if options else 1))


async def test_a_reader_takes_nothing_from_a_group(house: House) -> None:
    """R12: A reader pins nothing and settles nothing."""
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.read(queue, start="earliest")
    await house.publish(queue, numbered(3))
    await session.get(3)
    other, consumer = await house.subscribe(queue, group)
    given = await other.take(3)
    await house.confirm(consumer, delivery(given[0][0]))
    assert await house.lag(queue, group) == 2


async def test_readers_of_a_deleted_queue_hear_of_it(house: House) -> None:
    """R1: An error names the subscription, also of a reader that is catching up."""
    queue = await house.queue(retention_s=3600)
    await house.publish(queue, numbered(50))
    tail, at_tail = await house.read(queue)
    behind, is_behind = await house.read(queue, credit=1, start="earliest")
    await behind.get(1)
    await house.broker.delete_queue(ANYBODY, "orders")
    for session, reader in ((tail, at_tail), (behind, is_behind)):
        assert session.frames[-1]["code"] == "queue_not_found"
        assert session.frames[-1]["subscription"] == reader.subscription
    assert not house.broker.readers._queues


async def test_a_reader_sees_what_lies_above_the_retention_line(house: House) -> None:
    """R12: A record settled by every group and out of retention is deleted. One that is pinned by a
    stuck message stays, alone."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    for number in range(10):
        await house.publish(queue, [message(number, f"k{number}")])
    given = await session.take(10)
    consumer.nack(delivery(given[4][0]), None, None)
    rest = [one for one in given if one[1] != 4]
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in rest])
    await house.broker.janitor.look()
    states = await house.broker.storage.partitions(queue.queue_id)
    assert [state.messages for state in states] == [1]
    reading, _ = await house.read(queue, start="earliest")
    assert await reading.get(1) == [4]
