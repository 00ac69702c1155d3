"""The outbox: many small frames in one message, none lost, none out of order."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.outbox import ALONE_BYTES, JOINED_BYTES_MAX, Outbox


def frame(number: int, size: int = 0) -> bytes:
    return msgspec.json.encode({"n": number, "x": "x" * size})


def test_nothing_waits_at_first_and_after_taking() -> None:
    outbox = Outbox()
    assert outbox.take() == []
    outbox.add(b"{}")
    assert outbox.byte_count == 2
    assert outbox.take() == [b"{}"]
    assert (outbox.take(), outbox.byte_count) == ([], 0)


def test_a_single_frame_stays_the_same_object_for_the_fan_out() -> None:
    outbox, push = Outbox(), frame(1, 100)
    outbox.add(push)
    assert outbox.take()[0] is push


def test_small_frames_become_one_array() -> None:
    outbox = Outbox()
    for number in range(3):
        outbox.add(b'{"n":%d}' % number)
    assert outbox.take() == [b'[{"n":0},{"n":1},{"n":2}]']


def test_a_large_frame_travels_alone_and_uncopied_between_its_neighbours() -> None:
    outbox, large = Outbox(), frame(1, ALONE_BYTES)
    for one in (b"{}", b"[]", large, b"{}", large):
        outbox.add(one)
    messages = outbox.take()
    assert messages == [b"[{},[]]", large, b"{}", large]
    assert messages[1] is large


@given(st.lists(st.integers(0, ALONE_BYTES + 5), max_size=60))
def test_every_frame_arrives_once_and_in_order_within_the_bound(sizes: list[int]) -> None:
    outbox = Outbox()
    frames = [frame(number, size) for number, size in enumerate(sizes)]
    for one in frames:
        outbox.add(one)
    assert outbox.byte_count == sum(map(len, frames))
    arrived = []
    for message in outbox.take():
        value = msgspec.json.decode(message)
        if isinstance(value, list):
            assert len(message) <= JOINED_BYTES_MAX
            assert len(value) > 1
        arrived += value if isinstance(value, list) else [value]
    assert [value["n"] for value in arrived] == list(range(len(sizes)))
