"""The publisher: what becomes one record, one commit, one answer."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from gateway.publish.batch import (
    SPREAD_RUN,
    PendingPublish,
)
from metadata.catalog import ANYBODY
from push import limits
from push.errors import Refused, Unknown
from push.places import Durability, Partition
from push.storage_port import Append, Appended, Lane
from tests.histories.house import House, codes, eventually, message, numbered

ANN = b"producer-ann...."


async def records(house: House, partition: int = 0) -> list[int]:
    """How many messages each stored record of a partition has."""
    place = Partition(house.find().queue_id, partition)
    read = await house.broker.storage.read(place, 0, 1 << 40)
    return [record.last - record.first + 1 for record in read.records]


async def test_what_waits_in_one_turn_becomes_one_record(house: House) -> None:
    """Group commit: of all producers, and without a timer."""
    queue = await house.queue()
    answers = [house.submit(queue, [message(n, f"k{n}")]) for n in range(50)]
    assert [codes(await one) for one in answers] == [[(0, n, False)] for n in range(50)]
    assert await records(house) == [50]
    assert house.broker.publisher.commits.total == 1


async def test_records_close_at_their_bounds(house: House) -> None:
    """P9: by messages and by bytes; a larger single message is a record of its own."""
    queue = await house.queue(message_bytes_max=limits.MESSAGE_BYTES_MAX_MAX)
    small = numbered(limits.RECORD_MESSAGES_MAX - 10)
    halves = [message("x" * (limits.RECORD_BYTES_MAX // 2)) for _ in range(3)]
    whole = [message("x" * (limits.MESSAGE_BYTES_MAX_MAX - 2))]
    answers = [house.submit(queue, batch) for batch in (small, small, halves, whole, small)]
    total = 0
    for answer in answers:
        got = codes(await answer)
        assert got == [(0, total + n, False) for n in range(len(got))]
        total += len(got)
    sizes = await records(house)
    assert sum(sizes) == total
    assert max(sizes) <= limits.RECORD_MESSAGES_MAX
    place = Partition(queue.queue_id, 0)
    for record in (await house.broker.storage.read(place, 0, 1 << 40)).records:
        assert len(record.payload) <= limits.RECORD_BYTES_MAX or record.first == record.last


async def test_nothing_is_pending_when_everything_is_answered(house: House) -> None:
    """P9: the bound of what waits counts down as it counted up, refused ones included."""
    queue = await house.queue(partitions=4, message_bytes_max=100, messages_max=40)
    publisher = house.broker.publisher
    batches = [
        [message("x" * (n * 7 % 150), f"k{n}", id=str(n)) for n in range(first, first + 20)]
        for first in range(0, 100, 20)
    ]
    answers = [house.submit(queue, batch) for batch in batches]
    assert publisher.pending_messages > 0
    for answer in answers:
        assert len((await answer).outcomes) == 20
    assert (publisher.pending_messages, publisher.pending_bytes) == (0, 0)


async def test_too_much_that_waits_is_refused_and_later_taken(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9, P12: `overloaded` says when to try again; nothing of the refused publish is stored."""
    queue = await house.queue()
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 10)
    fits, too_many = house.submit(queue, numbered(8)), house.submit(queue, numbered(3))
    refused = await too_many
    assert codes(refused) == ["overloaded"] * 3
    assert refused.outcomes[0].retry_after_s  # type: ignore[union-attr]
    assert len(codes(await fits)) == 8
    assert codes(await house.submit(queue, numbered(3))) == [(0, n, False) for n in (8, 9, 10)]


async def test_an_empty_publish_is_answered(house: House) -> None:
    """Once, like any other."""
    queue = await house.queue()
    assert await house.publish(queue, []) == []


async def test_one_producer_s_trouble_costs_the_others_nothing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """P1: its answer cannot be given; those in the same commit get theirs."""
    queue = await house.queue()

    def broken(answer: PendingPublish) -> None:
        raise RuntimeError("gone")

    house.broker.publisher.submit(PendingPublish(queue, [message(0)], broken))
    with caplog.at_level(logging.CRITICAL):
        assert await house.publish(queue, [message(1)]) == [(0, 1, False)]
    assert house.broker.publisher.pending_messages == 0


async def test_a_drain_answers_everything(house: House) -> None:
    """P14: also what is submitted while it drains."""
    queue = await house.queue()
    answers = [house.submit(queue, numbered(5))]
    draining = asyncio.ensure_future(house.broker.publisher.drain())
    await asyncio.sleep(0)
    answers.append(house.submit(queue, numbered(5)))
    await draining
    assert all(answer.done() for answer in answers)


async def test_the_cache_of_routes_holds_no_key_that_cannot_be(house: House) -> None:
    """P9: a key of a megabyte is refused, not remembered."""
    queue = await house.queue()
    assert await house.publish(queue, [message(0, "k" * 1_000_000)]) == ["invalid_message"]
    route = house.broker.publisher._routes[queue.queue_id]
    assert all(len(key) <= limits.KEY_BYTES_MAX for key in route.keys)


async def test_a_refused_key_that_cannot_be_holds_nothing_up(house: House) -> None:
    """R7: nothing can be behind it."""
    queue = await house.queue()
    bad = message(0, "k" * 5000)
    assert await house.publish(queue, [bad], producer=ANN, sequence=0) == ["invalid_message"]
    assert await house.publish(queue, [message(1)], producer=ANN, sequence=1) == [(0, 0, False)]


async def test_a_resend_may_be_cut_into_other_batches(house: House) -> None:
    """P4: with and without keys, in one frame or many: each message is stored once."""
    queue = await house.queue(partitions=5)
    count = SPREAD_RUN + 50
    messages = [message(n, None if n % 3 else f"k{n}") for n in range(count)]
    first = await house.publish(queue, messages, producer=ANN, sequence=0)
    again: list[object] = []
    for start in range(0, count, 17):
        again += await house.publish(
            queue, messages[start : start + 17], producer=ANN, sequence=start
        )
    assert again == [(*place[:2], True) for place in first]


async def test_what_waits_behind_a_commit_that_failed_does_not_overtake_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: nobody knows what became of 0 and 1 while 2 and 3 wait for the next commit."""
    queue = await house.queue()
    storage = house.broker.storage
    append, begun, lost = storage.append, asyncio.Event(), asyncio.Event()

    async def losing(_: Sequence[Append], *, lane: Lane | None = None) -> list[Appended]:
        monkeypatch.setattr(storage, "append", append)
        begun.set()
        await lost.wait()
        raise Unknown("the connection was lost")

    monkeypatch.setattr(storage, "append", losing)
    first = house.submit(queue, numbered(2), producer=ANN, sequence=0)
    await begun.wait()
    behind = house.submit(queue, numbered(2), producer=ANN, sequence=2)
    another = house.submit(queue, numbered(2), producer=b"producer-bob....", sequence=0)
    lost.set()
    assert codes(await first) == ["unknown"] * 2
    assert codes(await behind) == ["storage_unavailable"] * 2
    await another
    assert codes(await house.submit(queue, numbered(1), producer=ANN, sequence=4)) == [
        "out_of_sequence"
    ]
    publisher = house.broker.publisher
    assert (publisher.pending_messages, publisher.pending_bytes) == (0, 0)
    # Operators are told of those that nobody knows about, and of no others.
    assert sum(lane.unknown_total for lane in publisher.commits.lanes().values()) == 2
    again = codes(await house.submit(queue, numbered(5), producer=ANN, sequence=0))
    assert again == sorted(again, key=str)
    assert "out_of_sequence" not in again


class Doubtful:
    """Appends that wait for a word, in a store whose doubts grow before anybody hears of them."""

    def __init__(self, storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Lane | None, asyncio.Future[None]]] = []
        self.doubts = 0
        self._closed = False
        self._real = storage.append
        monkeypatch.setattr(storage, "append", self.append)
        monkeypatch.setattr(storage, "lane", self.lane)

    def lane(self, _partition: Partition, level: Durability) -> Lane:
        """One for each level. The doubts are those of `all`."""
        return Lane(1, self.doubts) if level == "all" else Lane(0, 0)

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        """The real one's, as soon as it may."""
        may: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls.append((lane, may))
        if self._closed:
            may.set_result(None)
        await may
        stored: list[Appended] = await self._real(appends)
        return stored

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed = True
        for _, may in self.calls:
            if not may.done():
                may.set_result(None)


async def test_nothing_begins_between_a_failure_and_the_word_of_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: the store has failed, and whoever published hears of it some turns of the loop later: in
    between what waits behind must not go to the next primary."""
    queue = await house.queue()
    storage = house.broker.storage
    assert codes(await house.submit(queue, numbered(1), producer=ANN, sequence=0)) == [
        (0, 0, False)
    ]
    # Where others publish, too, nothing is begun ahead.
    await eventually(lambda: not house.broker.publisher.is_shared)
    with closing(Doubtful(storage, monkeypatch)) as doubtful:
        first = house.submit(queue, numbered(500), producer=ANN, sequence=1)
        await eventually(lambda: len(doubtful.calls) == 1)
        doubtful.doubts = 1
        behind = house.submit(queue, numbered(500), producer=ANN, sequence=501)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [lane for lane, _ in doubtful.calls] == [Lane(1, 0)]
        doubtful.calls[0][1].set_exception(Unknown("the connection was lost"))
        assert set(codes(await first)) == {"unknown"}
        assert set(codes(await behind)) == {"storage_unavailable"}
        again = house.submit(queue, numbered(1), producer=ANN, sequence=1)
        await eventually(lambda: len(doubtful.calls) == 2)
        assert doubtful.calls[1][0] == Lane(1, 1)
        doubtful.calls[1][1].set_result(None)
        assert codes(await again) == [(0, 1, False)]


async def test_a_lane_that_nobody_uses_any_more_is_calm_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster was away at the start, and its commits have failed; since it was opened it has
    other lanes. Whether publishes are to be refused for it is not asked for ever."""
    monkeypatch.setattr(limits, "BREAKER_OPEN_S", 0.05)
    queue = await house.queue()
    storage, commits = house.broker.storage, house.broker.publisher.commits
    real, number = storage.append, 6

    async def append(appends: Sequence[Append], *, lane: Lane | None = None) -> list[Appended]:
        if number:
            raise Refused("storage_unavailable", "it was not reached yet")
        return await real(appends)

    monkeypatch.setattr(storage, "append", append)
    monkeypatch.setattr(storage, "lane", lambda _partition, _level: Lane(number, 0))
    for _ in range(limits.BREAKER_FAILURES):
        assert await house.publish(queue, [message(0)]) == ["storage_unavailable"]
    assert not commits.is_calm
    number = 0
    assert await house.publish(queue, [message(0)]) == [(0, 0, False)]
    at = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() > at + 0.05)
    assert await house.publish(queue, [message(1)]) == [(0, 1, False)]
    assert commits.is_calm


async def test_what_is_resolved_frees_what_was_held_up(house: House) -> None:
    """R7: a refused message that its producer gives up holds up nobody."""
    queue = await house.queue(message_bytes_max=10)
    large = message("far too long")
    assert await house.publish(queue, [large], producer=ANN, sequence=0) == ["message_too_large"]
    held = await house.publish(queue, [message(1)], producer=ANN, sequence=1)
    assert held == ["out_of_sequence"]
    freed = await house.publish(queue, [message(1)], producer=ANN, sequence=1, resolved=1)
    assert freed == [(0, 0, False)]
    assert not house.broker.publisher._orders.held


async def test_the_routes_of_a_deleted_queue_are_forgotten(house: House) -> None:
    """P9."""
    queue = await house.queue()
    await house.publish(queue, numbered(3))
    await house.broker.delete_queue(ANYBODY, "orders")
    assert not house.broker.publisher._routes
    await eventually(lambda: not house.broker.tail.ends)


async def test_what_waited_for_a_commit_is_not_committed_right_behind_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it needs no further publish to be committed in the end."""
    pace_s = 0.05
    monkeypatch.setattr("push.commit_sharing.PACE_S", pace_s)
    queue = await house.queue()
    gate, began, loop = asyncio.Event(), list[float](), asyncio.get_running_loop()
    append = house.memory.append

    async def appending(appends: Sequence[Append], *, lane: Lane | None = None) -> list[Appended]:
        began.append(loop.time())
        await gate.wait()
        return await append(appends, lane=lane)

    monkeypatch.setattr(house.memory, "append", appending)
    published = [house.submit(queue, numbered(1))]
    await eventually(lambda: began)
    published.append(house.submit(queue, numbered(1, first=1)))
    gate.set()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*published)
    assert [codes(answer) for answer in answers] == [[(0, 0, False)], [(0, 1, False)]]
    first, second = began
    assert second - first >= pace_s * 0.9
