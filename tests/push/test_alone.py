"""What a group alone still keeps, against a model that looks at each offset."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.operator.removal import kept_alone, settled_of
from push.ranges import Dead, RangeSet
from push.storage_port import Cursor

END = 12
offsets = st.sets(st.integers(0, END - 1))


def ranges(members: set[int]) -> RangeSet:
    return RangeSet((one, one) for one in sorted(members))


@given(offsets, st.lists(offsets, max_size=3), st.integers(0, END), st.integers(0, END))
def test_only_what_every_other_group_has_settled_counts(
    own: set[int], others: list[set[int]], first: int, end: int
) -> None:
    alone = {one for one in range(first, end) if one not in own and all(one in o for o in others)}
    assert kept_alone(ranges(own), [ranges(one) for one in others], first, end) == len(alone)


@given(st.integers(0, END), offsets, offsets, offsets)
def test_what_stands_aside_or_dies_is_not_settled(
    floor: int, passed: set[int], aside: set[int], dead: set[int]
) -> None:
    cursor = Cursor(
        floor, tuple(ranges(passed)), dead=tuple(Dead(one, one, "exhausted") for one in dead)
    )
    expected = (set(range(floor)) | passed) - aside - dead
    assert settled_of(cursor, aside) == ranges(expected)
