"""Which manager leads: never two by the clocks alone, and always one when the last is gone."""

from hypothesis import given
from hypothesis import strategies as st

from services.manager.rules.leader import (
    BEAT_S,
    LEASE_S,
    MARGIN_S,
    NOBODY,
    PATIENCE_S,
    LeaderRow,
    Leading,
    Patience,
)


class Row:
    """The row in its database, which may lose its last writes."""

    def __init__(self) -> None:
        self.now = NOBODY
        self.before: list[LeaderRow] = []

    def ask(self, change: tuple[LeaderRow, LeaderRow] | None) -> LeaderRow:
        """As `services.manager.leader.RedisLeaderRow.ask`."""
        if change is not None and change[0] == self.now:
            self.before.append(self.now)
            self.now = change[1]
        return self.now

    def fail_over(self, lost: int) -> None:
        """This many last writes were nowhere else."""
        for _ in range(min(lost, len(self.before))):
            self.now = self.before.pop()


def turn(row: Row, one: Leading, *, now: float, late_s: float = 0.0, heard: bool = True) -> None:
    """One beat of a manager, whose answer takes a while or is lost."""
    change = one.proposal(now=now)
    answer = row.ask(change)
    if heard:
        one.saw(answer, now=now + late_s, asked_at=now, wrote=change[1] if change else None)


def test_the_first_one_leads_and_the_next_one_when_it_is_gone() -> None:
    row, first, second = Row(), Leading("a"), Leading("b")
    turn(row, first, now=0.0)
    assert not first.leads(now=0.0)
    turn(row, first, now=0.1)
    turn(row, second, now=0.2)
    assert first.leads(now=0.2)
    assert (first.term, second.holder) == (1, "a")
    for beat in range(1, 20):
        turn(row, first, now=beat * BEAT_S)
        turn(row, second, now=beat * BEAT_S + 0.5)
        assert first.leads(now=beat * BEAT_S + 0.5)
        assert not second.leads(now=beat * BEAT_S + 0.5)
    gone = 19 * BEAT_S
    assert not first.leads(now=gone + LEASE_S - MARGIN_S)
    turn(row, second, now=gone + LEASE_S + 0.4)
    assert not second.leads(now=gone + LEASE_S + 0.4)
    turn(row, second, now=gone + LEASE_S + 0.6)
    assert second.leads(now=gone + LEASE_S + 0.6)
    assert second.term == 2
    turn(row, first, now=gone + LEASE_S + 0.7)
    assert not first.leads(now=gone + LEASE_S + 0.7)


def test_who_takes_over_knows_for_how_long_nobody_led() -> None:
    """What the one before had seen is as much older: a replica that went just before it is not
    waited for twice."""
    row, first, second = Row(), Leading("a"), Leading("b")
    turn(row, first, now=0.0)
    turn(row, first, now=1.0)
    turn(row, second, now=1.5)
    turn(row, second, now=4.0)
    assert second.stood_still_s == 0.0
    turn(row, second, now=1.5 + LEASE_S, late_s=0.25)
    assert second.leads(now=7.0)
    assert second.stood_still_s == LEASE_S + 0.25
    turn(row, second, now=8.0)
    assert second.stood_still_s == LEASE_S + 0.25


def test_who_gives_way_is_followed_at_once_and_comes_back_only_when_nobody_is_there() -> None:
    row, first, second = Row(), Leading("a"), Leading("b")
    for beat in range(3):
        turn(row, first, now=beat * BEAT_S)
        turn(row, second, now=beat * BEAT_S + 0.1)
    first.give_way(now=2.5)
    assert not first.leads(now=2.5)
    turn(row, first, now=3.0)
    turn(row, second, now=3.1)
    turn(row, second, now=3.2)
    assert second.leads(now=3.2)
    turn(row, first, now=3.3)
    assert not first.leads(now=3.3)


def test_who_gives_way_and_is_alone_leads_again_after_two_leases() -> None:
    row, alone = Row(), Leading("a")
    turn(row, alone, now=0.0)
    turn(row, alone, now=1.0)
    change = alone.proposal(now=2.0)
    answer = row.ask(change)
    alone.give_way(now=2.1)
    alone.saw(answer, now=2.2, asked_at=2.0, wrote=change[1] if change else None)
    assert not alone.leads(now=2.2)  # nor by a beat that was under way
    for beat in range(3, 13):
        turn(row, alone, now=float(beat) - 0.9)
        assert not alone.leads(now=float(beat) - 0.9)
    turn(row, alone, now=2.1 + 2 * LEASE_S)
    assert alone.leads(now=2.1 + 2 * LEASE_S)


def test_who_is_held_up_gives_way_later_each_time() -> None:
    patience, now, waited = Patience(), 0.0, []
    for _ in range(8):
        began = now
        while not patience.is_over(is_held_up=True, now=now):
            now += 1.0
        waited.append(now - began)
    first, most = PATIENCE_S
    assert waited == [first * 2**number for number in range(5)] + [most] * 3
    assert not patience.is_over(is_held_up=False, now=now)
    assert not patience.is_over(is_held_up=True, now=now)
    assert not patience.is_over(is_held_up=True, now=now + first - 0.1)
    patience.begin()
    assert not patience.is_over(is_held_up=True, now=now + first)


def test_who_leaves_is_followed_at_once() -> None:
    row, first, second = Row(), Leading("a"), Leading("b")
    turn(row, first, now=0.0)
    turn(row, first, now=0.1)
    row.ask(first.release())
    assert not first.leads(now=0.1)
    turn(row, second, now=0.2)
    turn(row, second, now=0.3)
    assert second.leads(now=0.3)


def test_a_beat_whose_answer_was_lost_prolongs_nothing_until_the_next_one() -> None:
    row, one = Row(), Leading("a")
    turn(row, one, now=0.0)
    turn(row, one, now=0.1)
    turn(row, one, now=1.0, heard=False)
    turn(row, one, now=2.0)  # the row is not as it was: read, not written
    assert not one.leads(now=0.1 + LEASE_S - MARGIN_S)
    assert one.leads(now=3.0)
    turn(row, one, now=3.0)
    assert one.leads(now=3.0 + LEASE_S - MARGIN_S - 0.1)


def test_who_leads_counts_from_when_it_asked() -> None:
    """Its answer comes late, and others may have heard of the write before."""
    row, first, second = Row(), Leading("a"), Leading("b")
    turn(row, first, now=0.0)
    turn(row, first, now=0.1, late_s=3.0)
    turn(row, second, now=0.2)
    for when in (0.3 + LEASE_S, 0.4 + LEASE_S):
        turn(row, second, now=when)
    assert second.leads(now=0.5 + LEASE_S)
    assert not first.leads(now=0.5 + LEASE_S)


def test_a_term_that_somebody_else_was_seen_with_is_outdone() -> None:
    row, one = Row(), Leading("a")
    turn(row, one, now=0.0)
    turn(row, one, now=0.1)
    one.on_superseded(7)
    assert not one.leads(now=0.2)
    turn(row, one, now=1.0)
    assert one.leads(now=1.0)
    assert one.term == 8


def test_after_a_failover_that_took_the_row_back_the_next_term_is_a_higher_one() -> None:
    row, first, second = Row(), Leading("a"), Leading("b")
    for when in (0.0, 0.1):
        turn(row, first, now=when)
    row.fail_over(1)
    turn(row, first, now=1.0)  # nobody's: not as it was written
    assert not first.leads(now=1.0)
    turn(row, first, now=1.1)
    assert (first.leads(now=1.1), first.term) == (True, 2)
    turn(row, second, now=1.2)
    assert not second.leads(now=1.2)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.floats(0.0, 2.0),
            st.floats(0.0, 1.0),
            st.booleans(),
            st.booleans(),
        ),
        max_size=120,
    )
)
def test_never_two_lead(turns: list[tuple[int, float, float, bool, bool]]) -> None:
    """However late or lost the answers are. (A failover that takes the row back may make two, for
    a moment: that is what terms are for.)"""
    row, managers = Row(), [Leading(name) for name in "abc"]
    now = 0.0
    for who, pause, late, heard, gives_way in turns:
        now += pause
        if gives_way:
            managers[who].give_way(now=now)
        turn(row, managers[who], now=now, late_s=late, heard=heard)
        now += late
        leaders = [one for one in managers if one.leads(now=now)]
        assert len(leaders) <= 1
        assert all(one.term == max(each.term for each in managers) for one in leaders)
