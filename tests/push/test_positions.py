"""Positions: resumed, gap or unknown, one of them and true (R26, P10)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from push.places import Partition
from push.positions import (
    Gap,
    PartitionPosition,
    ReadPosition,
    Resumed,
    UnknownPosition,
    Verdict,
    overtaken,
    verdict,
    verdicts,
)
from push.storage_port import PartitionState

QUEUE = "aaaaaaaaaa"


LOOSE = 5
"""Offsets that are there and not certified."""


def state(start: int, certified: int, generation: int = 1, number: int = 0) -> PartitionState:
    return PartitionState(
        partition=Partition(QUEUE, number), start=start, end=certified + LOOSE, certified=certified,
        generation=generation, messages=0, bytes=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("place", "start", "certified", "expected"),
    [
        (PartitionPosition(1, 0), 0, 0, Resumed(0)),
        (PartitionPosition(1, 7), 5, 9, Resumed(7)),
        (PartitionPosition(1, 5), 5, 9, Resumed(5)),
        (PartitionPosition(1, 9), 5, 9, Resumed(9)),
        (
            PartitionPosition(1, 14),
            5,
            9,
            Resumed(14),
        ),  # certified before a failover, and soon again (R10)
        (PartitionPosition(1, 4), 5, 9, Gap(4, 4)),
        (PartitionPosition(1, 0), 5, 9, Gap(0, 4)),
        (PartitionPosition(1, 3), 9, 9, Gap(3, 8)),  # everything truncated (R2)
    ],
)
def test_a_place_of_this_history_is_resumed_or_gets_its_gap(
    place: PartitionPosition, start: int, certified: int, expected: Verdict
) -> None:
    assert verdict(place, state(start, certified)) == expected


@pytest.mark.parametrize(
    "place",
    [
        PartitionPosition(1, 15),
        PartitionPosition(0, 7),
        PartitionPosition(2, 7),
        PartitionPosition(2, 0),
    ],
)
def test_a_place_of_another_history_is_unknown(place: PartitionPosition) -> None:
    """Above the end of the log, or of another generation (R2): after a rollback, offset 7 may be
    another message."""
    assert isinstance(verdict(place, state(5, 9)), UnknownPosition)


def test_a_position_of_a_deleted_queue_is_unknown_everywhere() -> None:
    """R1: the queue was deleted and made again under its name."""
    old = ReadPosition("bbbbbbbbbb", 1, {0: PartitionPosition(1, 7), 1: PartitionPosition(1, 7)})
    answer = verdicts(old, 1, [state(0, 9), state(0, 9, number=1)])
    assert set(answer) == {0, 1}
    assert all(isinstance(one, UnknownPosition) for one in answer.values())


def test_each_partition_gets_its_own_verdict() -> None:
    position = ReadPosition(
        QUEUE,
        1,
        {
            0: PartitionPosition(1, 7),
            1: PartitionPosition(1, 2),
            2: PartitionPosition(3, 7),
            99: PartitionPosition(1, 1),
        },
    )
    states = [state(5, 9), state(5, 9, number=1), state(5, 9, number=2), state(0, 9, number=3)]
    answer = verdicts(position, 1, states)
    assert answer[0] == Resumed(7)
    assert answer[1] == Gap(2, 4)
    assert isinstance(answer[2], UnknownPosition)
    assert isinstance(answer[3], UnknownPosition)  # not in the position
    assert 99 not in answer


def test_a_position_of_a_later_ring_is_unknown_and_one_of_an_earlier_ring_holds() -> None:
    """R27: partitions may have joined since; those that the position names are what they were."""
    places = {0: PartitionPosition(1, 7)}
    assert isinstance(
        verdicts(ReadPosition(QUEUE, 3, places), 2, [state(5, 9)])[0], UnknownPosition
    )
    assert verdicts(ReadPosition(QUEUE, 1, places), 2, [state(5, 9)])[0] == Resumed(7)


@settings(max_examples=1000)
@given(
    st.lists(st.integers(1, 5), max_size=8),
    st.integers(0, 8),
    st.integers(0, 45),
    st.booleans(),
)
def test_no_verdict_hides_a_missing_message(
    sizes: list[int], trimmed: int, next_offset: int, rolled_back: bool
) -> None:
    """Against the log itself: what the reader skips on a verdict is what is gone, no more and no
    less, and a resumed reader finds its very next message."""
    certified = sum(sizes)
    start = sum(sizes[:trimmed])
    log = set(range(start, certified))
    answer = verdict(
        PartitionPosition(1, next_offset), state(start, certified, 2 if rolled_back else 1)
    )
    wanted = set(range(next_offset, certified))
    if rolled_back or next_offset > certified + LOOSE:
        assert isinstance(answer, UnknownPosition)
    elif wanted <= log:
        assert answer == Resumed(next_offset)
    else:
        assert isinstance(answer, Gap)
        assert set(range(answer.first, answer.last + 1)) == set(range(next_offset, start))
        assert answer.next_offset == start


def test_retention_that_overtakes_a_stream_is_a_gap() -> None:
    assert overtaken(10, 10) is None
    assert overtaken(10, 7) is None  # the record that holds it begins before it
    assert overtaken(10, 25) == Gap(10, 24)


@settings(max_examples=1000)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=10),
    st.integers(0, 20),
)
def test_a_stream_over_a_log_with_holes_accounts_for_every_offset(
    records: list[tuple[int, bool]], begin: int
) -> None:
    """Records go one by one (R12): given out and told as gaps are together every offset, once."""
    first, kept = 0, []
    for size, stays in records:
        if stays:
            kept.append((first, first + size - 1))
        first += size
    next_offset = begin
    seen: list[int] = []
    told: list[int] = []
    for head, last in kept:
        if last < next_offset:
            continue
        if gap := overtaken(next_offset, head):
            told += range(gap.first, gap.last + 1)
            next_offset = gap.next_offset
        seen += range(next_offset, last + 1)
        next_offset = last + 1
    assert sorted(seen + told) == list(range(begin, next_offset))
    assert set(seen) == {o for a, b in kept for o in range(max(a, begin), b + 1)}
