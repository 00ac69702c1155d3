"""Bodies come back as they were sent, and what waits to be acknowledged is, once each."""

import asyncio
import time
from random import Random

import pytest

from loadtests.clients.load import STAMP_BYTES, WAVES, LoadFailed, stamp
from loadtests.histogram import Histogram
from loadtests.peers.clients import Acks, Bodies


def test_a_block_is_whole_messages_of_one_size_with_the_stamp_in_each() -> None:
    bodies = Bodies(body_bytes=40, keys=10)
    block = bodies.block(3, Random(1), lambda key: (b"<" + key + b">", b";"))
    sent = stamp(123).join(block)
    messages = sent.split(b";")
    assert messages.pop() == b""
    assert len(messages) == 3
    for message in messages:
        key, _, body = message.partition(b">")
        assert key[:2] == b"<k"
        assert len(body) == 40
        assert body.startswith(stamp(123))


def test_keys_have_names_of_one_length() -> None:
    bodies = Bodies(keys=1000)
    assert (bodies.key(0), bodies.key(999)) == (b"k000", b"k999")


def test_a_body_has_room_for_its_stamp() -> None:
    assert Bodies(body_bytes=STAMP_BYTES).body_bytes == STAMP_BYTES
    with pytest.raises(ValueError, match="at least"):
        Bodies(body_bytes=STAMP_BYTES - 1)


def test_how_late_each_came_is_counted() -> None:
    bodies, histogram = Bodies(body_bytes=STAMP_BYTES + 2), Histogram()
    long_ago = stamp(time.monotonic_ns() - 5_000_000_000) + b"xx"
    just_now = stamp(time.monotonic_ns()) + b"xx"
    bodies.record([long_ago, just_now, long_ago], histogram)
    assert histogram.count == 3
    assert histogram.percentile(10) < 5_000_000_000 <= histogram.percentile(50)
    assert bodies.latency_ns(long_ago) >= 5_000_000_000


@pytest.mark.parametrize(
    "body", [b"", b"x" * 20, stamp(1)[:-1] + b"xx", stamp(1) + b"x", stamp(1) + b"xxx"]
)
def test_a_body_that_nobody_sent_is_found(body: bytes) -> None:
    bodies = Bodies(body_bytes=STAMP_BYTES + 2)
    with pytest.raises(LoadFailed):
        bodies.record([stamp(1) + b"xx", body], Histogram())
    with pytest.raises(LoadFailed):
        bodies.latency_ns(body)


@pytest.mark.looptime
async def test_all_is_acknowledged_once_and_in_another_order() -> None:
    sent: list[int] = []
    acks: Acks[int] = Acks(Random(1), sent.extend)
    for first in range(0, 400, 100):
        acks.add(range(first, first + 100))
        acks.turn()
    assert 0 < len(sent) < 400
    await asyncio.sleep(1)  # nothing comes any more: the rest goes by itself
    assert sorted(sent) == list(range(400))
    assert sent != sorted(sent)


@pytest.mark.looptime
async def test_nothing_waiting_sends_nothing() -> None:
    sent: list[list[int]] = []
    acks: Acks[int] = Acks(Random(1), sent.append)
    for _ in range(2 * WAVES):
        acks.turn()
    await asyncio.sleep(1)
    assert sent == []


@pytest.mark.looptime
async def test_who_has_stopped_sends_nothing_later() -> None:
    sent: list[int] = []
    acks: Acks[int] = Acks(Random(1), sent.extend)
    acks.add(range(100))
    acks.turn()
    before = len(sent)
    acks.stop()
    await asyncio.sleep(1)
    assert len(sent) == before < 100
