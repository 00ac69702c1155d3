"""Many small frames in one message, none lost, none out of order."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.frames import ALONE_BYTES, JOINED_BYTES_MAX, join


def frame(number: int, size: int = 0) -> bytes:
    return msgspec.json.encode({"n": number, "x": "x" * size})


def test_nothing_is_no_message() -> None:
    assert join([]) == []
    assert join([b"{}"]) == [b"{}"]


def test_a_single_frame_stays_the_same_object_for_the_fan_out() -> None:
    push = frame(1, 100)
    assert join([push])[0] is push


def test_small_frames_become_one_array() -> None:
    assert join([b'{"n":%d}' % number for number in range(3)]) == [b'[{"n":0},{"n":1},{"n":2}]']


def test_a_large_frame_travels_alone_and_uncopied_between_its_neighbours() -> None:
    large = frame(1, ALONE_BYTES)
    messages = join([b"{}", b"[]", large, b"{}", large])
    assert messages == [b"[{},[]]", large, b"{}", large]
    assert messages[1] is large


@given(st.lists(st.integers(0, ALONE_BYTES + 5), max_size=60))
def test_every_frame_arrives_once_and_in_order_within_the_bound(sizes: list[int]) -> None:
    frames = [frame(number, size) for number, size in enumerate(sizes)]
    arrived = []
    for message in join(frames):
        value = msgspec.json.decode(message)
        if isinstance(value, list):
            assert len(message) <= JOINED_BYTES_MAX
            assert len(value) > 1
        arrived += value if isinstance(value, list) else [value]
    assert [value["n"] for value in arrived] == list(range(len(sizes)))
