"""Lines: the order of what waits, who may give, and what is remembered of it (R17, R18, P8, P9)."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from push import limits
from push.delivery.key_lines import Line, Lines, loose


def line_of(lines: Lines, key: int, *offsets: int, due: float = 0.0) -> Line:
    line = lines.line(key)
    for offset in offsets:
        line.waiting.append(offset)
        if due:
            line.dues[offset] = due
    lines.settle_down(line, now=0.0)
    return line


def test_what_comes_back_stands_in_order() -> None:
    """P3."""
    line = Line(7, exclusive=False)
    for offset in (5, 9, 3, 7, 4):
        line.put_back(offset)
    assert list(line.waiting) == [3, 4, 5, 7, 9]


def test_what_is_called_back_stands_in_order() -> None:
    """R17."""
    line = Line(7, exclusive=False)
    line.leaving.update({2: True, 4: True, 6: False})
    line.put_back(8)
    assert line.call_back(3) == [4, 6]
    assert (list(line.leaving), list(line.waiting)) == ([2], [4, 6, 8])
    assert line.earliest == 2


def test_a_line_gives_one_then_two_then_four() -> None:
    """R18: a key that recovers does so carefully."""
    line = Line(7, exclusive=False)
    rooms = []
    for _ in range(20):
        rooms.append(line.room())
        line.widen()
    assert rooms == [min(1 << n, limits.LINE_WINDOW_MAX) for n in range(20)]


def test_what_is_under_way_takes_room() -> None:
    line = Line(7, exclusive=False)
    line.window = 4
    line.in_flight.add(1)
    line.leaving[2] = False
    assert line.room() == 2


def test_a_line_that_may_not_give_has_no_room() -> None:
    """R17, R24: parked, inherited, on the way to the dead letters, closed to other pulls."""
    for change in (
        lambda line: setattr(line, "parked", True),
        lambda line: setattr(line, "inherited", True),
        lambda line: setattr(line, "opens_after", 1),
        lambda line: line.dying.add(1),
        lambda line: line.in_flight.add(1),
    ):
        line = Line(7, exclusive=True)
        assert line.room() > 0
        change(line)
        assert line.room() == 0


def test_what_joins_a_line_that_has_a_side_line_goes_there() -> None:
    """R18."""
    line = Line(7, exclusive=False)
    assert not line.overflowed
    line.aside_unwritten = 1
    assert line.overflowed
    line.aside, line.aside_unwritten = 1, 0
    assert line.overflowed


def test_a_line_goes_when_nothing_waits() -> None:
    lines = Lines(exclusive=False)
    line = line_of(lines, 7, 1)
    line.in_flight.add(line.waiting.popleft())
    lines.settle_down(line, now=0.0)
    assert 7 in lines.by_key
    line.in_flight.clear()
    lines.settle_down(line, now=0.0)
    assert lines.by_key == {}


def test_a_line_is_ready_when_its_head_is_due() -> None:
    """P8."""
    lines = Lines(exclusive=False)
    late, soon = line_of(lines, 1, 1, due=9.0), line_of(lines, 2, 2, due=5.0)
    now = line_of(lines, 3, 3)
    assert lines.next_due() == 5.0
    assert lines.ready(9) == [now]
    lines.ripen(5.0)
    assert lines.ready(9) == [now, soon]
    assert lines.next_due() == 9.0
    lines.ripen(20.0)
    assert lines.ready(9) == [now, soon, late]
    assert lines.ready(1) == [now]
    assert lines.next_due() is None


def test_a_head_that_is_due_earlier_is_looked_at_earlier() -> None:
    """P8: 5 waits a minute; 4 comes back and may go in a second."""
    lines = Lines(exclusive=False)
    line = line_of(lines, 1, 5, due=60.0)
    line.put_back(4)
    line.dues[4] = 1.0
    lines.settle_down(line, now=0.0)
    assert lines.next_due() == 1.0
    lines.ripen(1.0)
    assert lines.ready(1) == [line]


def test_joining_a_line_in_backoff_costs_no_memory() -> None:
    """P9: ten million messages behind a key in backoff."""
    lines = Lines(exclusive=False)
    line = line_of(lines, 1, 1, due=60.0)
    for _ in range(1000):
        lines.settle_down(line, now=0.0)
    assert len(lines._due) == 1


def test_backoffs_of_lines_that_are_gone_are_forgotten() -> None:
    """P9: delays of a day, all settled by late acks."""
    lines = Lines(exclusive=False)
    for key in range(1000):
        line = line_of(lines, key, key, due=86_400.0)
        line.waiting.clear()
        line.dues.clear()
        lines.settle_down(line, now=0.0)
    assert len(lines._due) <= 65


def test_a_side_line_is_wanted_once_and_only_when_nothing_else_waits() -> None:
    """R18."""
    lines = Lines(exclusive=False)
    line = line_of(lines, 1, 1)
    line.aside = 3
    lines.settle_down(line, now=0.0)
    assert lines.hungry() == []
    line.waiting.clear()
    lines.settle_down(line, now=0.0)
    assert lines.hungry() == [line]
    line.loading = 3
    lines.settle_down(line, now=0.0)
    assert lines.hungry() == []


def test_messages_without_a_key_have_lines_of_their_own() -> None:
    """And of the form of a hash: they can be parked and set aside."""
    assert len({loose(offset) for offset in range(1000)}) == 1000
    assert all(0 < loose(offset) < 1 << 64 for offset in (0, limits.OFFSET_MAX))


def test_lines_are_counted() -> None:
    lines = Lines(exclusive=False)
    line_of(lines, 1, 1).aside = 5
    line_of(lines, 2, 2).parked = True
    assert lines.counts() == (2, 1, 5)


keys = st.one_of(st.integers(1, 5), st.integers(1, (1 << 64) - 1), st.sampled_from([257, 513]))


@given(
    st.lists(keys, max_size=20),
    st.lists(keys, max_size=20),
    st.lists(st.one_of(keys, st.just(0)), max_size=60),
    st.sampled_from([0, 150]),
)
def test_gated_is_what_has_a_line(
    made: list[int], dropped: list[int], hashes: list[int], more: int
) -> None:
    """R17: neither many lines nor many that were dropped let one through, or hold another up."""
    lines = Lines(exclusive=False)
    for key in [*made, *dropped, *range(1000, 1000 + more)]:
        line_of(lines, key, 1)
    for key in {*dropped, *range(1000, 1000 + more // 5)}:
        line = lines.line(key)
        line.waiting.clear()
        lines.settle_down(line, now=0.0)
    found = lines.gated(array("Q", hashes), 70)
    assert found == [70 + i for i, key in enumerate(hashes) if key in lines.by_key]


def test_marks_of_dropped_lines_are_forgotten() -> None:
    """P8: keys that return and go again do not make every message a suspect for ever."""
    lines = Lines(exclusive=False)
    for key in range(1, 300):
        line = line_of(lines, key, 1)
        line.waiting.clear()
        lines.settle_down(line, now=0.0)
    line_of(lines, 7, 1)
    assert lines.gated(array("Q", [263, 7, 8]), 0) == [1]
    assert sum(lines._marks) == 1


def test_lines_stir_when_one_may_give() -> None:
    lines = Lines(exclusive=False)
    assert not lines.stirs(0.0)
    line = line_of(lines, 7, 1, due=5.0)
    assert not lines.stirs(4.9)
    assert lines.stirs(5.0)
    lines.ripen(5.0)
    assert lines.stirs(5.0)
    line.waiting.clear()
    line.aside = 1
    lines.settle_down(line, now=5.0)
    assert lines.stirs(5.0)
    assert lines.hungry() == [line]
    assert not lines.stirs(5.0)
