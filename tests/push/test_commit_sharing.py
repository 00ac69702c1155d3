"""Shares of commits while the load is of one owner, shared or skewed; both sides of each bound."""

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from push import limits
from push.commit_sharing import (
    AHEAD_BYTES,
    AHEAD_BYTES_MAX,
    HEAVY_BYTES_MIN,
    HEAVY_FACTOR,
    HOLD_S,
    LIGHT_GAP_S,
    LIGHT_S,
    REST_S,
    WINDOW_S,
    FairShare,
)

SMALL_S = 0.002
HEAVY = [("heavy", 10_000)] * 40
LIGHT = [("light", 300)]


def shared(small_s: float = SMALL_S) -> FairShare[str]:
    """One that knows what a small commit takes."""
    made: FairShare[str] = FairShare()
    for _ in range(2000):
        made.measure(small_s, 300, now=0.0)
    return made


def skewed(now: float = 0.0) -> FairShare[str]:
    """Return a sharing with a skewed load."""
    made = shared()
    made.choose([*HEAVY, *LIGHT], now=now)
    assert made.is_skewed(now=now)
    return made


def taken(made: FairShare[str], waiting: list[tuple[str, int]], now: float) -> int:
    return sum(waiting[place][1] for place in made.choose(waiting, now=now))


def test_alone_a_commit_is_as_large_as_the_load() -> None:
    """Before others come, and when they have been gone for a second."""
    made = shared()
    made.choose([("heavy", 1)], now=0.0)
    assert len(made.choose(HEAVY * 100, now=WINDOW_S)) == 4000
    made.choose(LIGHT, now=2.0)
    assert made.is_shared(now=2.0 + WINDOW_S - 0.001)
    assert len(made.choose(HEAVY * 100, now=2.5)) < 4000
    assert len(made.choose(HEAVY * 100, now=2.5 + WINDOW_S)) == 4000
    assert not made.is_skewed(now=2.5)


def test_a_shared_commit_takes_what_costs_as_much_as_any() -> None:
    made = shared()
    both = [("a", 10_000), ("b", 10_000)] * 100
    assert made.room(now=0.0) == pytest.approx(
        limits.COMMIT_BYTES_SHARED * SMALL_S * 1000, rel=0.01
    )
    assert made.room(now=0.0) <= taken(made, both, 0.0) < made.room(now=0.0) + 10_000
    assert not made.is_skewed(now=0.0)
    assert made.choose_beside(both, now=0.0) == []
    assert not made.has_enough(1 << 40, now=0.0)


def test_a_heavy_owner_has_much_and_all_others_little() -> None:
    """On both sides: how much it is, and what the others have."""
    least = HEAVY_BYTES_MIN
    for flood, little, is_skewed in (
        (least, least // HEAVY_FACTOR, True),
        (least - 1, 1, False),
        (least, least // HEAVY_FACTOR + 1, False),
        (least, 0, False),
    ):
        made = shared()
        made.choose([("heavy", flood), ("light", little)], now=0.0)
        assert made.is_skewed(now=0.0) is is_skewed
    made = shared()
    made.choose([("a", least), ("b", least), ("light", 1)], now=0.0)
    assert made.is_skewed(now=0.0)


def test_an_owner_that_has_little_waiting_and_brought_as_much_makes_no_other_one_heavy() -> None:
    """Four queues that bring the same: one of them happens to have nothing much at one moment. On
    both sides of what it must have brought lately; what is a second old does not count."""
    bulk = [("a", HEAVY_BYTES_MIN), ("b", HEAVY_BYTES_MIN), ("c", 300)]
    for brought, after_s, is_skewed in (
        (2 * HEAVY_BYTES_MIN // HEAVY_FACTOR - 300, 0.1, True),
        (2 * HEAVY_BYTES_MIN // HEAVY_FACTOR - 299, 0.1, False),
        (2 * HEAVY_BYTES_MIN // HEAVY_FACTOR - 299, WINDOW_S / 2 - 0.01, False),
        (100 * HEAVY_BYTES_MIN, WINDOW_S, True),
    ):
        made = shared()
        made.choose([("c", brought)], now=0.0)
        made.choose(bulk, now=after_s)
        assert made.is_skewed(now=after_s) is is_skewed


def test_a_skewed_load_ends_at_once_when_the_others_bring_as_much() -> None:
    """Whoever came a moment after a queue that was alone till then; and who brings an eighth of
    what another one does is not counted among the heavy ones with it."""
    made = skewed()
    made.choose([*HEAVY, ("light", 60_000)], now=0.1)
    assert not made.is_skewed(now=0.1)
    made = skewed()
    room = made.room(now=0.0)
    made.choose([*HEAVY, ("light", room)], now=0.1)
    assert made.is_skewed(now=0.1)
    assert not made.has_too_much("light", 1 << 40, now=0.1)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=30),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 40_000),
)
def test_equal_queues_never_make_a_skewed_load(
    turns: list[list[tuple[str, int]]], unit: int
) -> None:
    """Each brings in every half second at least a fourth of what any other one brings: no order in
    which it arrives, and goes, makes one of them heavy."""
    made, waiting = shared(), list[tuple[str, int]]()
    for number, arrive in enumerate(turns):
        now = number * 0.01
        if number % 25 == 0:
            # The round that makes them equal, whatever else chance brings.
            waiting += [(one, unit * 1000) for one in "abcd"]
        waiting += [(one, size * unit) for one, size in arrive]
        goes = set(made.choose(waiting, now=now))
        assert not made.is_skewed(now=now)
        waiting = [one for place, one in enumerate(waiting) if place not in goes]


def test_of_a_skewed_load_a_commit_takes_little_more_than_a_small_one() -> None:
    made = skewed()
    room = made.room(now=0.5)
    assert room == pytest.approx(limits.COMMIT_BYTES_SKEWED * SMALL_S * 1000, rel=0.01)
    assert room <= taken(made, HEAVY, 0.5) < room + 10_000
    assert made.room(now=0.5 + WINDOW_S) > 2 * room


def test_a_skewed_load_lasts_while_more_waits_than_goes_and_a_second_beyond() -> None:
    """An owner that is held back has less waiting than made it heavy: it is heavy all the same."""
    made = skewed()
    room = made.room(now=0.0)
    assert room < HEAVY_BYTES_MIN
    made.choose([("heavy", room), *LIGHT], now=0.9)
    assert made.is_skewed(now=0.9 + WINDOW_S - 0.001)
    made.choose([("heavy", room - 1), *LIGHT], now=1.8)
    assert not made.is_skewed(now=0.9 + WINDOW_S)


def test_what_light_owners_bring_goes_beside_a_shared_commit() -> None:
    """All that they have and nothing of heavy owners, if it is little; never if none is heavy."""
    made = skewed()
    waiting = [("heavy", 10_000), ("b", 300), ("heavy", 10_000), ("a", 300), ("b", 200)]
    assert made.choose_beside(waiting, now=0.1) == [1, 3, 4]
    room = made.room(now=0.1)
    assert made.choose_beside([("b", room), *HEAVY], now=0.1) == [0]
    assert made.choose_beside([("b", room - 1), ("c", 2), *HEAVY], now=0.1) == []
    assert made.choose_beside([("heavy", 1), ("b", 1)], now=0.2 + WINDOW_S) == []


def test_heavy_commits_do_not_make_their_room_grow() -> None:
    """Each would take longer for it, and the next one be larger. Quicker ones make it smaller, and
    it does not hang on a single one."""
    made = skewed()
    room = made.room(now=0.0)
    for _ in range(1000):
        made.measure(0.1, room, now=0.5)
        made.measure(0.1, 300, now=0.5)
    assert made.room(now=0.5) == room
    made.measure(SMALL_S / 2, room, now=0.5)
    assert made.room(now=0.5) > 0.9 * room
    for _ in range(100):
        made.measure(SMALL_S / 2, room, now=0.5)
    assert made.room(now=0.5) == pytest.approx(room / 2, rel=0.01)


def test_the_room_follows_what_small_commits_take_within_bounds() -> None:
    """A slow disk: more of it goes with each, up to a bound; a quick one: it is never nothing."""
    for small_s, size in (
        (0.0001, limits.COMMIT_BYTES_SKEWED),
        (0.01, limits.COMMIT_BYTES_SKEWED * 10),
        (10.0, limits.COMMIT_BYTES_SHARED_MAX),
    ):
        made = skewed()
        for _ in range(2000):
            made.measure(small_s, 300, now=5.0)
            made.measure(small_s + 1, 10_000, now=5.0)
        made.choose([*HEAVY, *LIGHT], now=5.0)
        assert made.room(now=5.0) == pytest.approx(size, rel=0.01)


def test_enough_waits_when_the_records_of_a_heavy_owner_have_grown() -> None:
    """On both sides; two heavy owners have twice as much ahead; no heavy owner: never."""
    made = skewed()
    assert made.has_enough(AHEAD_BYTES, now=0.0)
    assert not made.has_enough(AHEAD_BYTES - 1, now=0.0)
    made = shared()
    made.choose([("a", HEAVY_BYTES_MIN), ("b", HEAVY_BYTES_MIN), *LIGHT], now=0.1)
    assert made.has_enough(2 * AHEAD_BYTES, now=0.1)
    assert not made.has_enough(2 * AHEAD_BYTES - 1, now=0.1)
    assert not made.has_enough(1 << 40, now=0.1 + WINDOW_S)


def test_a_heavy_owner_has_a_bounded_amount_waiting() -> None:
    """P9: on both sides; light owners are not asked, nor any owner if none is heavy."""
    made = skewed()
    assert made.has_too_much("heavy", AHEAD_BYTES_MAX, now=0.0)
    assert not made.has_too_much("heavy", AHEAD_BYTES_MAX - 1, now=0.0)
    assert not made.has_too_much("light", 1 << 40, now=0.0)
    assert not made.has_too_much("heavy", 1 << 40, now=WINDOW_S)


def test_heavy_owners_get_nothing_while_light_ones_have_something_under_way() -> None:
    """P8: but something in so long at the latest, on both sides; each lane for itself; and where
    no owner is heavy, none is held up."""
    made = skewed()
    assert made.has_light(["heavy", "light"])
    assert not made.has_light(["heavy"])
    assert made.holds(has_light=True, now=HOLD_S * 0.99)
    assert not made.holds(has_light=False, now=HOLD_S * 0.99)
    assert not made.holds(has_light=True, now=HOLD_S * 0.99, lane=1)
    assert not made.holds(has_light=True, now=HOLD_S)
    made.choose_beside(LIGHT, now=HOLD_S)
    assert not made.holds(has_light=True, now=HOLD_S)
    made.choose([*HEAVY, *LIGHT], now=HOLD_S, lane=1)
    assert made.holds(has_light=True, now=HOLD_S, lane=1)
    made = shared()
    made.choose([("a", 10_000), ("b", 10_000)], now=0.0)
    assert not made.holds(has_light=True, now=0.0)


def often(now: float = 0.0) -> FairShare[str]:
    """Return a sharing with a skewed load, whose light owners came twice in a short while."""
    made = skewed(now - LIGHT_GAP_S)
    made.choose([*HEAVY, *LIGHT], now=now)
    return made


def test_heavy_owners_rest_behind_whatever_began_while_light_ones_come_often() -> None:
    """P8: on both sides of each bound; each lane for itself; with others they go at once."""
    made = often()
    assert made.rest_s(["heavy"], now=0.001) == pytest.approx(REST_S - 0.001)
    assert made.rest_s(["heavy"], now=REST_S) == 0.0
    assert made.rest_s(["heavy", "light"], now=0.001) == 0.0
    assert made.rest_s(["heavy"], now=0.001, lane=1) == 0.0
    made.choose_beside(LIGHT, now=REST_S)
    assert made.rest_s(["heavy"], now=REST_S) == pytest.approx(
        REST_S
    )  # behind those of others, too
    others_at, now = REST_S, 2 * REST_S
    made.choose(HEAVY, now=now)
    assert made.rest_s(["heavy"], now=now) == pytest.approx(REST_S)
    made.choose(HEAVY, now=(ends_at := others_at + LIGHT_S) - 0.001)
    assert made.rest_s(["heavy"], now=ends_at - 0.000_1) > 0.0
    assert made.rest_s(["heavy"], now=ends_at) == 0.0
    made.choose(HEAVY, now=ends_at, lane=1)
    made.choose_beside(LIGHT, now=ends_at, lane=2)
    assert made.rest_s(["heavy"], now=ends_at, lane=1) == 0.0, "others come elsewhere"
    made = shared()
    made.choose([("a", 10_000), ("b", 10_000)], now=0.0)
    assert made.rest_s(["a"], now=0.0) == 0.0


def test_heavy_owners_do_not_rest_for_light_ones_that_come_rarely() -> None:
    """P8: on both sides of how often they come."""
    made = often()
    made.choose_beside(LIGHT, now=LIGHT_GAP_S)
    assert made.rest_s(["heavy"], now=LIGHT_GAP_S + 0.001) > 0.0
    made.choose_beside(LIGHT, now=2 * LIGHT_GAP_S + 0.001)
    assert made.rest_s(["heavy"], now=2 * LIGHT_GAP_S + 0.002) == 0.0
    assert skewed().rest_s(["heavy"], now=0.001) == 0.0


def test_a_rest_is_over_when_the_clock_of_milliseconds_says_so() -> None:
    """As uvloop's does: sums of such times are not exact, and a timer of nothing fires at once, and
    again in every turn."""
    made = often()
    for began in range(10, 5_000):
        made.choose([*HEAVY, *LIGHT], now=began / 1000)
        ends = began + round(REST_S * 1000)
        assert made.rest_s(["heavy"], now=ends / 1000) == 0.0
        assert made.rest_s(["heavy"], now=(ends - 1) / 1000) == pytest.approx(0.001)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 90_000)), max_size=20),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_nobody_s_things_change_places_and_somebody_s_go(
    turns: list[tuple[bool, list[tuple[str, int]]]],
) -> None:
    """R7, over any history: what goes of an owner are the first that he has, and a commit that is
    shared takes something."""
    made, waiting, now = shared(), list[tuple[str, int]](), 0.0
    for is_beside, more in turns:
        now += 0.1
        waiting += more
        hypothesis.assume(waiting)
        choose = made.choose_beside if is_beside else made.choose
        goes = choose(waiting, now=now)
        assert goes == sorted(set(goes))
        assert goes or is_beside
        for one in "abcd":
            mine = [place for place, (owner, _) in enumerate(waiting) if owner == one]
            assert [place for place in goes if place in set(mine)] == mine[
                : sum(1 for place in goes if waiting[place][0] == one)
            ]
        waiting = [one for place, one in enumerate(waiting) if place not in set(goes)]


def test_turns_are_kept_lane_by_lane() -> None:
    """P8: who got nothing comes first the next time, whoever publishes elsewhere in between."""
    made: FairShare[str] = FairShare()
    room = made.room(now=0.0)
    waiting = [("a", room), ("b", room + 1)]
    assert made.choose(waiting, now=0.0, lane=0) == [0]
    assert made.choose([("c", 1)], now=0.0, lane=1) == [0]
    assert made.choose(waiting, now=0.0, lane=0) == [1]
