"""Histories of publishing: one answer a message, sequences, sending order, ids (R5-R9, R31)."""

import asyncio

import pytest

from gateway.publish.batch import Route
from metadata.catalog import ANYBODY
from push import limits
from push.errors import Refused, Unknown
from push.message import encode_message
from tests.histories.house import WAIT_S, House, codes, message, numbered

ANN = b"producer-ann...."
BEN = b"producer-ben...."


async def test_a_batch_answers_each_message_in_order(house: House) -> None:
    """R5: Refused messages cost no other its receipt. A duplicate names the original."""
    queue = await house.queue(message_bytes_max=10)
    batch = [
        message(1, id="a"),
        message("far too long a body"),
        message(2),
        message(3, key=""),
        message(1, id="a"),
    ]
    assert await house.publish(queue, batch) == [
        (0, 0, False),
        "message_too_large",
        (0, 1, False),
        "invalid_message",
        (0, 0, True),
    ]


async def test_duplicates_in_flight_share_the_outcome(house: House) -> None:
    """R5: Messages sent again before the first answer, by sequence and by id, have the same
    answer."""
    queue = await house.queue()
    first = house.submit(queue, [message(1, id="a")], producer=ANN, sequence=0)
    again = house.submit(queue, [message(1, id="a")], producer=ANN, sequence=0)
    other = house.submit(queue, [message(1, id="a")], producer=BEN, sequence=7)
    answers = [codes(await one) for one in (first, again, other)]
    assert answers == [[(0, 0, False)], [(0, 0, True)], [(0, 0, True)]]
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    assert await house.publish(queue, [message(2)]) == [(0, 1, False)]
    assert await session.get(2) == [1, 2]


async def test_a_duplicate_of_a_refused_original_is_refused_with_it(house: House) -> None:
    """R5: A message that was not stored has no duplicate."""
    queue = await house.queue(messages_max=1)
    assert await house.publish(queue, [message(0)]) == [(0, 0, False)]
    first = house.submit(queue, [message(1, id="a")], producer=ANN, sequence=0)
    again = house.submit(queue, [message(1, id="a")], producer=ANN, sequence=0)
    assert [codes(await one) for one in (first, again)] == [["queue_full"], ["queue_full"]]


async def test_an_append_that_stores_nothing_disturbs_nobody(house: House) -> None:
    """R5: The first append of a followed partition is refused whole. It is answered, and followers
    of the partition go on."""
    queue = await house.queue(bytes_max=4)
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    reading, _ = await house.read(queue, start="earliest")
    assert await house.publish(queue, [message("too much for the queue")]) == ["message_too_large"]
    roomy = await house.queue(bytes_max=40)
    assert await house.publish(roomy, [message(1)]) == [(0, 0, False)]
    assert await session.get(1) == await reading.get(1) == [1]


async def test_a_message_larger_than_its_queue_may_ever_be_is_refused_for_good(
    house: House,
) -> None:
    """R5: One of exactly `bytes_max` fits. One that is a byte larger is answered that waiting does
    not help, in an empty queue as in a full one. The other messages of a batch get their own
    answers."""
    most = message("x" * 80)
    bound = len(encode_message(most))
    queue = await house.queue(bytes_max=bound)
    large = message("x" * 81)
    (refused,) = (await house.submit(queue, [large])).outcomes
    assert isinstance(refused, Refused)
    assert (refused.code.name, refused.code.retry) == ("message_too_large", False)
    assert f"bytes_max={bound}" in refused.detail
    async with house.http() as http:
        said = await http.post(
            "/v1/queues/orders/messages", json={"messages": [{"key": "k", "body": "x" * 81}]}
        )
    (result,) = said.json()["results"]
    assert (result["error"]["code"], result["error"]["retry"]) == ("message_too_large", False)
    assert await house.publish(queue, [large, most, large, message(1)]) == [
        "message_too_large", (0, 0, False), "message_too_large", "queue_full",
    ]  # fmt: skip


async def test_what_is_behind_a_message_that_never_fits_comes_when_that_is_given_up(
    house: House,
) -> None:
    """R7: The same holds after any refused message."""
    queue = await house.queue(bytes_max=100)
    batch = [message(0), message("x" * 100), message(2)]
    assert await house.publish(queue, batch, producer=ANN, sequence=0) == [
        (0, 0, False), "message_too_large", "out_of_sequence",
    ]  # fmt: skip
    again = await house.publish(queue, batch[2:], producer=ANN, sequence=2, resolved=2)
    assert again == [(0, 1, False)]


async def test_sequences_fill_the_hole_that_was_refused(house: House) -> None:
    """R6: 5 is refused, and 6 is stored. 5 sent again is stored, not called a duplicate."""
    queue = await house.queue(partitions=8, message_bytes_max=20)
    # Their keys differ, hence their lines: 6 does not wait for 5.
    keys = _keys_apart(house)
    refused = message("x" * 30, key=keys[0])
    assert await house.publish(queue, [refused], producer=ANN, sequence=5) == ["message_too_large"]
    (stored,) = await house.publish(queue, [message(6, keys[1])], producer=ANN, sequence=6)
    assert stored[2] is False
    (again,) = await house.publish(queue, [message(5, keys[0])], producer=ANN, sequence=5)
    assert again[2] is False
    (twice,) = await house.publish(queue, [message(5, keys[0])], producer=ANN, sequence=5)
    assert twice == (*again[:2], True)


def _keys_apart(house: House) -> list[str]:
    """Return two keys of different partitions."""
    route = Route(house.find())
    first = route.place("k0")[0]
    other = next(k for k in (f"k{n}" for n in range(1, 99)) if route.place(k)[0] != first)
    return ["k0", other]


async def test_what_was_resolved_is_too_old_and_not_a_duplicate(house: House) -> None:
    """R6: Below `resolved` nothing is known any more, and nothing is appended."""
    queue = await house.queue()
    await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    await house.publish(queue, [message(3)], producer=ANN, sequence=3, resolved=3)
    assert await house.publish(queue, [message(1)], producer=ANN, sequence=1) == [
        "sequence_too_old"
    ]
    contradicts = await house.publish(queue, [message(9)], producer=ANN, sequence=4, resolved=5)
    assert contradicts == ["sequence_too_old"]


async def test_messages_behind_a_refused_one_wait_for_it(house: House) -> None:
    """R7: 0 is refused. 1 and 2, in flight after it, are out of sequence, and stored in order when
    they are sent again after it."""
    queue = await house.queue(message_bytes_max=20)
    answers = [
        house.submit(queue, [one], producer=ANN, sequence=number)
        for number, one in enumerate([message("x" * 30), message(1), message(2)])
    ]
    assert [codes(await one)[0] for one in answers] == [
        "message_too_large",
        "out_of_sequence",
        "out_of_sequence",
    ]
    assert await house.publish(queue, numbered(3), producer=ANN, sequence=0) == [
        (0, 0, False),
        (0, 1, False),
        (0, 2, False),
    ]


async def test_messages_behind_an_overload_wait_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: A refusal by the gateway itself, because too much waits, holds up later messages."""
    queue = await house.queue()
    with monkeypatch.context() as patched:
        patched.setattr(limits, "PENDING_MESSAGES_MAX", 0)
        refused = await house.publish(queue, numbered(2), producer=ANN, sequence=0)
        assert refused == ["overloaded", "overloaded"]
    assert await house.publish(queue, [message(2)], producer=ANN, sequence=2) == ["out_of_sequence"]
    assert await house.publish(queue, [message(2)], producer=BEN, sequence=2) == [(0, 0, False)]
    assert await house.publish(queue, numbered(3), producer=ANN, sequence=0) == [
        (0, 1, False),
        (0, 2, False),
        (0, 3, False),
    ]


async def test_messages_behind_too_many_in_flight_wait_for_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: The same holds for the bound of one producer."""
    queue = await house.queue()
    monkeypatch.setattr(limits, "IN_FLIGHT_PER_PRODUCER_MAX", 4)
    await house.publish(queue, numbered(4), producer=ANN, sequence=0)
    refused = await house.publish(queue, [message(4)], producer=ANN, sequence=4)
    assert refused == ["too_many_in_flight"]
    behind = await house.publish(queue, [message(5)], producer=ANN, sequence=5, resolved=4)
    assert behind == ["out_of_sequence"]
    both = await house.publish(queue, numbered(2, first=4), producer=ANN, sequence=4, resolved=4)
    assert both == [(0, 4, False), (0, 5, False)]


async def test_messages_behind_an_unknown_one_wait_for_it(house: House) -> None:
    """R7: The outcome of 0 is unknown. 1 is not stored before 0 has been sent again."""
    queue = await house.queue()
    if house.kind == "sqlite":
        pytest.skip("an unknown commit ends the process there (R31)")
    house.memory.lose_next_answer(applied=False)
    assert await house.publish(queue, [message(0)], producer=ANN, sequence=0) == ["unknown"]
    assert await house.publish(queue, [message(1)], producer=ANN, sequence=1) == ["out_of_sequence"]
    assert await house.publish(queue, numbered(2), producer=ANN, sequence=0) == [
        (0, 0, False),
        (0, 1, False),
    ]


async def test_an_unknown_publish_sent_again_is_stored_once(house: House) -> None:
    """R5, P4: It had been stored, and only its answer was lost."""
    if house.kind == "sqlite":
        pytest.skip("an unknown commit ends the process there (R31)")
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    house.memory.lose_next_answer(applied=True)
    answer = await house.submit(queue, [message(0)], producer=ANN, sequence=0)
    assert isinstance(answer.outcomes[0], Unknown)
    again = await house.publish(queue, [message(0)], producer=ANN, sequence=0)
    assert again == [(0, 0, True)]
    await house.publish(queue, [message(1)], producer=ANN, sequence=1)
    assert await session.get(2) == [0, 1]


@pytest.mark.parametrize("by", ["sequence", "id"])
async def test_a_message_without_a_key_is_stored_once(house: House, by: str) -> None:
    """P4: Sent again, it goes to the partition that knows it, whatever was sent in between."""
    queue = await house.queue(partitions=4)
    for number in range(20):
        one = [message(number, key=None, id=f"id-{number}" if by == "id" else None)]
        options = {"producer": ANN, "sequence": number} if by == "sequence" else {}
        (first,) = await house.publish(queue, one, **options)
        (again,) = await house.publish(queue, one, **options)
        assert again == (*first[:2], True)


async def test_messages_without_a_key_are_spread(house: House) -> None:
    """Many messages without key, id or sequence, and with each of these, do not end in one
    partition."""
    queue = await house.queue(partitions=4)
    plain = [await house.publish(queue, [message(n, None)]) for n in range(40)]
    with_id = [await house.publish(queue, [message(n, None, id=str(n))]) for n in range(40)]
    assert {one[0] for (one,) in plain} == {one[0] for (one,) in with_id} == {0, 1, 2, 3}
    numbered_ones: list[object] = []
    for first in range(0, 8000, 500):
        numbered_ones += await house.publish(
            queue, numbered(500, None, first), producer=ANN, sequence=first, resolved=first
        )
    assert len({one[0] for one in numbered_ones}) == 4  # type: ignore[index]


async def test_ids_are_remembered_for_the_window_and_per_key(house: House) -> None:
    """R8: The same id of another key is another message. Without a window nothing is remembered."""
    queue = await house.queue(partitions=4)
    (first,) = await house.publish(queue, [message(1, "k1", id="a")])
    assert await house.publish(queue, [message(1, "k1", id="a")]) == [(*first[:2], True)]
    assert (await house.publish(queue, [message(1, "k2", id="a")]))[0][2] is False
    forgetful = await house.queue("forgetful", dedup_window_s=0)
    assert await house.publish(forgetful, [message(1, id="a")]) == [(0, 0, False)]
    assert await house.publish(forgetful, [message(1, id="a")]) == [(0, 1, False)]


async def test_one_resender_in_a_shared_record_costs_nobody(house: House) -> None:
    """R9: Ten producers share a record, and one of them resends. The other nine are stored once and
    delivered with their own bytes."""
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message("p0")], producer=b"0" * 16, sequence=0)
    async with asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(
            *(
                house.submit(
                    queue, [message(f"p{n}", f"k{n}")], producer=b"%d" % n * 16, sequence=0
                )
                for n in range(10)
            )
        )
    assert house.broker.publisher.commits.total == 2
    assert [codes(one)[0] for one in answers] == [
        (0, 0, True),
        *((0, n, False) for n in range(1, 10)),
    ]
    assert await session.get(10) == [f"p{n}" for n in range(10)]


async def test_a_record_of_duplicates_alone_still_is_an_act(house: House) -> None:
    """R9: All messages are duplicates. Nothing is delivered twice, and the next message follows at
    once."""
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    again = await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    assert again == [(0, n, True) for n in range(3)]
    await house.publish(queue, [message(3)], producer=ANN, sequence=3)
    assert await session.get(4) == [0, 1, 2, 3]


async def test_deduplication_survives_a_restart(durable_house: House) -> None:
    """R6, R8, P4: Sequences and ids are remembered on disk."""
    house = durable_house
    queue = await house.queue()
    await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    await house.publish(queue, [message(3, id="a")])
    await house.restart()
    queue = house.find()
    assert await house.publish(queue, numbered(4), producer=ANN, sequence=0) == [
        *((0, n, True) for n in range(3)),
        (0, 4, False),
    ]
    assert await house.publish(queue, [message(3, id="a")]) == [(0, 3, True)]


async def test_publishing_stops_at_the_reserve_while_acks_go_on(house: House) -> None:
    """R29, R31: Below the free-space reserve publishes are refused. Acks and reads are not."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3), producer=ANN, sequence=0)
    taken = await session.take(3)
    if house.kind == "memory":
        house.memory.publishable = False
    else:
        house.broker.storage._space._reserve_bytes = 1 << 62  # type: ignore[attr-defined]
    assert await house.publish(queue, [message(3)], producer=ANN, sequence=3) == ["storage_full"]
    assert await house.publish(queue, [message(1)], producer=ANN, sequence=1) == [(0, 1, True)]
    assert await house.confirm(consumer, [[*taken[0][0], 2]]) == (3, 0)
    assert await house.lag(queue, group) == 0
    assert await house.broker.ready() == [], "behind a balancer nobody could make room any more"
    assert (await house.broker.describe())["storage_waits_for"]
    assert house.broker.find_queue(ANYBODY, "orders") == queue


async def test_a_queue_deleted_under_a_publish_refuses_it(house: House) -> None:
    """R1: A publish that is on its way when its queue is deleted is stored or refused, never left
    unanswered."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.subscribe(queue, group)
    await house.read(queue)
    answers = [house.submit(queue, [message(0)])]
    deleting = asyncio.ensure_future(house.broker.delete_queue(ANYBODY, "orders"))
    while not deleting.done():
        answers.append(house.submit(queue, [message(1)]))
        await asyncio.sleep(0)
    await deleting
    answers.append(house.submit(queue, [message(2)]))
    async with asyncio.timeout(WAIT_S):
        outcomes = [codes(await one)[0] for one in answers]
    assert outcomes[0] == (0, 0, False)
    assert outcomes[-1] == "queue_not_found"
