"""What is in transit to a client: leases that do not run (P6, R20), and a window. In literal time,
and as a line that carries this many bytes a second and answers each mark that has passed it."""

from dataclasses import dataclass
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from push import limits
from push.transit import Transit

MB: Final = 1_000_000
KIB: Final = 1024


def transit() -> Transit:
    return Transit(opened_at=0)


# --- Leases -------------------------------------------------------------------------------------


def test_the_lease_of_what_is_in_transit_does_not_run() -> None:
    """R20: a message of 1 MB at 20 kB/s, 50 s on its way, with a lease of 30."""
    line = transit()
    mark = line.mark(MB, now=100, taken_bytes=0)
    for moment, taken in [(130, 600_000), (135, 700_000), (140, 800_000), (145, 900_000)]:
        line.look(taken, now=moment)
        assert line.arrived(100, now=moment) is None
    assert line.answered(mark, now=150)
    assert line.arrived(100, now=150) == 150
    assert line.arrived(100, now=1000) == 150, "and not from when it is looked at"


def test_what_arrives_soon_counts_from_when_it_was_given() -> None:
    line = transit()
    assert line.answered(line.mark(MB, now=100, taken_bytes=0), now=100.9)
    assert line.arrived(100, now=130) == 100


def test_what_stands_still_counts_from_when_it_was_given() -> None:
    """P6."""
    line = transit()
    line.mark(MB, now=100, taken_bytes=0)
    line.look(400_000, now=110)
    line.look(400_000, now=129)
    assert line.arrived(100, now=129) is None
    line.look(400_000, now=130)
    assert line.arrived(100, now=130) == 100
    line.look(400_001, now=131)
    assert line.arrived(100, now=131) is None, "it moves again"


def test_behind_a_proxy_that_took_all_it_moves_as_the_slowest_line_would() -> None:
    line = transit()
    line.mark(800 * KIB, now=100, taken_bytes=0)  # 100 s
    line.look(None, now=101)
    assert line.arrived(100, now=219.9) is None
    assert line.arrived(100, now=220) == 100


def test_one_that_is_behind_another_waits_for_it() -> None:
    """Both were handed over at once; the line carries one after the other."""
    line = transit()
    first = line.mark(MB, now=100, taken_bytes=0)
    second = line.mark(MB, now=101, taken_bytes=0)
    assert line.answered(first, now=150)
    line.look(MB + 10, now=151)
    assert line.arrived(100, now=151) == 150
    assert line.arrived(101, now=151) is None
    assert line.answered(second, now=200)
    assert line.arrived(101, now=200) == 200


def test_at_the_instant_of_a_mark_nothing_more_is_given() -> None:
    """A loop's clock may stand still for a millisecond: what is given at that time would seem to
    stand in front of the mark."""
    line = transit()
    mark = line.mark(70 * KIB, now=100)
    assert not line.has_room(0, now=100)
    assert not line.has_room(0, now=100.001)
    assert line.has_room(0, now=100.002)
    assert line.answered(mark, now=100.001)
    line.mark(70 * KIB, now=100.002)
    assert line.has_room(0, now=100.002), "a fast line does not pause"


def test_what_was_given_long_before_without_a_mark_has_arrived() -> None:
    """A handler hangs with a small message, and a large one comes behind it."""
    line = transit()
    line.mark(MB, now=120, taken_bytes=0)
    assert line.arrived(100, now=130) == 100
    assert line.arrived(113, now=130) is None


def test_what_does_not_stand_in_front_of_a_mark_is_still_to_come() -> None:
    """Long poll: a batch holds as much as fits."""
    line = transit()
    line.look(None, now=100)
    batch = line.mark(MB, now=100, covers=False)
    assert line.answered(batch, now=150)
    rest = line.mark(10, now=150)  # in the answer to the poll that says so
    assert line.arrived(100, now=151) is None
    assert line.answered(rest, now=152)
    assert line.arrived(100, now=152) == 152


def test_a_client_that_names_something_has_it() -> None:
    line = transit()
    line.mark(MB, now=100, taken_bytes=0)
    line.mark(MB, now=130, taken_bytes=0)
    line.named(100, now=150)
    assert line.arrived(100, now=150) == 150
    assert line.arrived(130, now=150) is None


def test_a_client_that_names_what_was_given_before_has_not_what_came_later() -> None:
    """A small message is acked while a large one, given seconds later, is on its way."""
    line = transit()
    mark = line.mark(MB, now=103, taken_bytes=0)
    line.named(100, now=104)
    assert line.arrived(103, now=110) is None
    assert line.answered(mark, now=150)
    assert line.arrived(103, now=150) == 150


def test_a_client_that_names_something_has_what_was_in_front_of_it() -> None:
    line = transit()
    line.mark(MB, now=100, taken_bytes=0)
    line.mark(MB, now=130, taken_bytes=0)
    line.named(120, now=150)
    assert line.arrived(100, now=150) == 150
    assert line.arrived(130, now=150) is None
    assert line.arrived(120, now=150) is None, "no more is known"


def test_a_mark_that_was_never_set_is_not_answered() -> None:
    line = transit()
    assert not line.answered(1, now=100)
    mark = line.mark(MB, now=100)
    assert not line.answered(mark + 1, now=101)
    assert not line.answered(0, now=101)
    assert line.answered(mark, now=101)
    assert not line.answered(mark, now=101), "once"


def test_the_newest_answer_counts_for_all_before() -> None:
    """RFC 6455, 5.5.3: a client may answer the latest ping only."""
    line = transit()
    line.mark(MB, now=100)
    assert line.answered(line.mark(MB, now=110), now=150)
    assert not line.is_awaited
    assert line.arrived(100, now=150) == 150


# --- The window ---------------------------------------------------------------------------------


def test_a_slow_line_gets_one_large_message_after_the_other() -> None:
    line = transit()
    assert line.has_room(0, now=100)
    mark = line.mark(MB, now=100)
    assert not line.has_room(0, now=100)
    assert not line.has_room(0, now=149)
    assert line.answered(mark, now=150)
    assert line.has_room(0, now=150)


def test_on_a_fast_line_more_and_more_is_on_its_way() -> None:
    line = transit()
    rooms = []
    for second in range(8):
        mark = line.mark(300 * KIB, now=second)
        rooms.append(line.has_room(0, now=second + 0.005))
        assert line.answered(mark, now=second + 0.01)
    assert rooms == [False, False, *[True] * 6]
    line.mark(4 * KIB * KIB, now=10)
    assert line.has_room(0, now=10.1)
    assert not line.has_room(1, now=10.1)
    assert not line.has_room(0, now=11), "until it is slow"


def test_a_little_that_arrives_soon_does_not_make_a_line_fast() -> None:
    line = transit()
    for second in range(9):
        assert line.answered(line.mark(50, now=second), now=second + 0.01)
    line.mark(limits.TRANSIT_BYTES_MIN + 1, now=10)
    assert not line.has_room(0, now=10.1)


def test_marks_are_rare_where_a_line_carries_much() -> None:
    line = transit()
    assert not line.wants_mark(limits.MARK_BYTES - 1)
    assert line.wants_mark(limits.MARK_BYTES)
    for second in range(1, 5):
        assert line.answered(line.mark(limits.MARK_BYTES, now=second), now=second + 0.01)
    assert not line.wants_mark(limits.MARK_BYTES_MAX - 1)
    assert line.wants_mark(limits.MARK_BYTES_MAX)
    for second in range(10, 20):
        assert line.answered(line.mark(limits.MARK_BYTES, now=second), now=second + 1)
    assert line.wants_mark(limits.MARK_BYTES)


def test_a_client_that_answers_no_mark_is_not_waited_for_again() -> None:
    line = transit()
    line.mark(80 * KIB, now=100)
    line.look(None, now=101)
    assert not line.give_up(now=129.9)
    assert line.give_up(now=130)
    assert line.has_room(0, now=130)
    assert not line.wants_mark(MB)


def test_a_client_that_answered_before_is_asked_again() -> None:
    line = transit()
    assert line.answered(line.mark(80 * KIB, now=90), now=91)
    line.mark(80 * KIB, now=100)
    line.look(None, now=101)
    assert line.give_up(now=130)
    assert line.wants_mark(MB)


def test_what_tcp_has_not_taken_is_not_given_up() -> None:
    line = transit()
    line.mark(MB, now=100, taken_bytes=0)
    line.look(10, now=101)
    assert not line.give_up(now=1000)
    assert not line.has_room(0, now=1000), "nothing more is sent into a line that stands still"


# --- A model ------------------------------------------------------------------------------------


@dataclass
class Given:
    """Bytes that were handed over at a moment; `end` is where they end in all that ever was."""

    at: float
    end: int
    size: int
    arrived_at: float | None = None


class Line(RuleBasedStateMachine):
    """A line of changing speed, in front of it a sender that goes by `Transit`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.transit = Transit(opened_at=100)
        self.given: list[Given] = []
        self.marks: list[tuple[int, int]] = []
        """Number and place of those that have not come out."""
        self.sent = self.carried = self.unmarked = 0
        self.stood_s = 0.0
        """For how long nothing has moved."""

    def _mark(self, *, rest: bool = False) -> None:
        if self.transit.wants_mark(self.unmarked) or (rest and self.unmarked):
            number = self.transit.mark(self.unmarked, now=self.now, taken_bytes=self.carried)
            self.unmarked = 0
            self.marks.append((number, self.sent))

    @rule(size=st.sampled_from([1, 10_000, 70_000, 300_000, 1_000_000]))
    def hand_over(self, size: int) -> None:
        if self.transit.is_fast:
            self.now += 0.001  # no pause, and no two at one instant
        if self.transit.has_room(self.unmarked, now=self.now):
            if self.sent == self.carried:
                self.stood_s = 0
            self.sent += size
            self.unmarked += size
            self.given.append(Given(self.now, self.sent, size))
            self._mark()

    @rule(rate=st.sampled_from([8_192, 20_000, 40_000, 1_000_000, 10**9]), steps=st.integers(1, 20))
    def carry(self, rate: int, steps: int) -> None:
        for _ in range(steps):
            self.now += 0.5
            self._move(rate // 2)

    @rule(pause_s=st.sampled_from([0, 0, 0.5, 5, 30]))
    def stand_still(self, pause_s: float) -> None:
        self.now += pause_s
        self.stood_s += pause_s

    def _move(self, count: int) -> None:
        if self.carried < self.sent:
            self.stood_s = 0
        self.carried = min(self.sent, self.carried + count)
        for one in self.given:
            if one.arrived_at is None and one.end <= self.carried:
                one.arrived_at = self.now
        while self.marks and self.marks[0][1] <= self.carried:
            self.transit.answered(self.marks.pop(0)[0], now=self.now)
            if self.transit.is_slow:
                self._mark(rest=True)

    @precondition(lambda self: self.given)
    @rule()
    def leases_count_from_arrivals(self) -> None:
        """What is large, and has arrived late, does not count from before; what moves does not
        run; and nothing is waited for that stands still, or has arrived long ago."""
        on_its_way = self.carried < self.sent
        self.transit.look(self.carried if on_its_way else None, now=self.now)
        for one in self.given[-8:]:
            counts_from = self.transit.arrived(one.at, now=self.now)
            if one.arrived_at is None:
                is_marked = one.size >= limits.MARK_BYTES_MAX
                if is_marked and self.stood_s < 20:
                    assert counts_from is None, "it is in transit and moves"
            elif counts_from is not None:
                assert counts_from >= one.at
                if one.size >= limits.MARK_BYTES_MAX and one.arrived_at - one.at >= 1:
                    assert counts_from >= one.arrived_at, "a lease counts from the arrival"
        if not on_its_way:
            assert not self.transit.is_awaited
            assert all(self.transit.arrived(one.at, now=self.now) for one in self.given[-8:])

    @invariant()
    def a_line_that_is_empty_is_given_more(self) -> None:
        self.transit.check()
        if self.carried == self.sent:
            assert self.transit.has_room(self.unmarked, now=self.now + 0.002)

    @invariant()
    def what_is_in_transit_is_bounded(self) -> None:
        """P9: one push of whatever size beyond the window."""
        bound = limits.TRANSIT_BYTES_MAX + limits.MARK_BYTES_MAX + 1_000_000
        assert self.sent - self.carried <= bound


Line.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestLine = Line.TestCase
