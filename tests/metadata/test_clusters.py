"""What is known of storage clusters: hot, away, and well again, each told once; and what a scale
hook is to hear of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.placement import (
    AWAY_S,
    CLUSTER_MARK,
    HOLD_S,
    TOLD_EVERY_S,
    ClusterFacts,
    ClusterProbe,
    Clusters,
    Scaling,
    State,
    Wish,
    candidate,
    encode_facts,
    encode_wish,
    read_facts,
    read_wish,
    wish_for,
)

WALL = 1_700_000_000_000


def look(used: int, name: str = "a", why: str = "") -> ClusterProbe:
    """At one with a hundred bytes."""
    return ClusterProbe(name, "north", used, 100, why)


def facts(used: int, name: str = "a", state: State = "well") -> ClusterFacts:
    """Of one with a hundred bytes."""
    return ClusterFacts(name=name, used_bytes=used, bound_bytes=100, state=state)


def states(clusters: Clusters, *looks: ClusterProbe, now: float = 0.0) -> list[str]:
    """After these looks, one after another."""
    found: list[str] = []
    for one in looks:
        clusters.looked([one], now=now, wall_unix_ms=WALL)
        clusters.check()
        found.append(clusters.facts[0].state)
    return found


def test_a_cluster_is_hot_from_80_per_cent_and_well_again_below_70() -> None:
    used = [79, 80, 75, 70, 69, 79, 85]
    found = states(Clusters(), *map(look, used))
    assert found == ["well", "hot", "hot", "hot", "well", "well", "hot"]


def test_where_it_is_hot_can_be_said() -> None:
    assert states(Clusters(hot_share=0.5), look(49), look(50), look(41), look(39)) == [
        "well", "hot", "hot", "well",
    ]  # fmt: skip


def test_a_cluster_without_a_bound_is_never_hot() -> None:
    assert states(Clusters(), ClusterProbe("a", "", 10**12, 0)) == ["well"]


def test_who_does_not_answer_is_away_after_a_while() -> None:
    """And hot or well as before until then, and again when it answers; what it had is known."""
    clusters = Clusters()
    silent = look(0, why="no reply in time")
    assert states(clusters, look(85), now=0.0) == ["hot"]
    assert states(clusters, silent, now=AWAY_S - 0.1) == ["hot"]
    assert states(clusters, silent, now=AWAY_S) == ["away"]
    assert (clusters.facts[0].used_bytes, clusters.facts[0].why) == (85, "no reply in time")
    assert states(clusters, look(75), now=60.0) == ["well"]
    assert clusters.facts[0].why == ""


def test_of_who_never_answered_nothing_is_known_at_first() -> None:
    clusters = Clusters()
    assert clusters.looked([look(0, why="?")], now=5.0, wall_unix_ms=WALL) == []
    assert clusters.facts == []
    assert [one.state for one in clusters.looked([look(0, why="?")], now=5.0 + AWAY_S,
                                                 wall_unix_ms=WALL)] == ["away"]  # fmt: skip


def test_facts_are_sent_when_they_change_and_not_each_time() -> None:
    clusters = Clusters()
    told = []
    for at, used in enumerate((10, 10, 11, 13, 14, 79, 81, 80, 79, 60)):
        for one in clusters.looked([look(used)], now=at * TOLD_EVERY_S, wall_unix_ms=WALL):
            clusters.told(one, now=at * TOLD_EVERY_S)
            told.append((one.used_bytes, one.state))
    assert told == [(10, "well"), (13, "well"), (79, "well"), (81, "hot"), (79, "hot"),
                    (60, "well")]  # fmt: skip


def test_how_full_one_is_is_told_now_and_then_and_what_it_is_at_once() -> None:
    """Each is a change of the catalog, which all gateways read."""
    clusters, told = Clusters(), []
    for at in range(40):
        used = 10 + at if at < 30 else 85
        for one in clusters.looked([look(used)], now=float(at), wall_unix_ms=WALL):
            clusters.told(one, now=float(at))
            told.append(at)
    assert told == [0, 10, 20, 30]


def test_what_could_not_be_told_is_told_the_next_time() -> None:
    clusters = Clusters()
    for _ in range(2):
        assert len(clusters.looked([look(10)], now=0.0, wall_unix_ms=WALL)) == 1


def test_a_manager_that_takes_over_goes_on_from_what_is_known() -> None:
    """A cluster between the lines stays hot, and nobody is told again."""
    known = facts(78, state="hot")
    clusters = Clusters([known])
    same = ClusterProbe("a", "", 78, 100)
    assert clusters.looked([same], now=0.0, wall_unix_ms=WALL) == []
    assert clusters.facts[0].state == "hot"
    assert clusters.facts[0].since_unix_ms == known.since_unix_ms


def test_one_that_is_no_longer_told_of_is_forgotten() -> None:
    clusters = Clusters([facts(1, "gone")])
    clusters.looked([look(1)], now=0.0, wall_unix_ms=WALL)
    assert [one.name for one in clusters.facts] == ["a"]


@given(st.lists(st.tuples(st.integers(0, 120), st.booleans(), st.floats(0, 8)), max_size=60))
def test_any_history_of_looks_keeps_the_rules(steps: list[tuple[int, bool, float]]) -> None:
    """Not away while it answers or for AWAY_S after; hot only by what was seen at that line."""
    clusters, now, answered, hot = Clusters(), 0.0, 0.0, False
    for number, (used, answers, passed) in enumerate(steps):
        now += passed
        if number == 0:
            answered = now
        clusters.looked([look(used, why="" if answers else "?")], now=now, wall_unix_ms=WALL)
        clusters.check()
        if answers:
            answered, hot = now, used >= (70 if hot else 80)
        found = {one.state for one in clusters.facts}
        if now - answered >= AWAY_S:
            assert found == {"away"}
            hot = False
        else:
            assert found <= {"hot" if hot else "well"} | ({"away"} if not answers else set())


def test_facts_are_read_as_they_are_written() -> None:
    one = facts(85, state="hot")
    assert read_facts(encode_facts(one)) == one
    assert read_facts(None) is None
    assert read_facts("{") is None
    assert CLUSTER_MARK.endswith(" ")


def test_who_places_knows_itself_who_answers() -> None:
    """A manager may be gone, and its facts with it."""
    assert candidate("a", "", facts(10), answers=False).state == "away"
    assert candidate("a", "", None, answers=True).used_share is None
    hot = candidate("a", "south", facts(85, state="hot"), answers=True)
    assert (hot.state, hot.zone, hot.used_share) == ("hot", "south", 0.85)


@pytest.mark.parametrize(("percent", "state"), [(79, "well"), (80, "hot")])
def test_one_that_a_manager_does_not_reach_and_who_places_does_is_as_full_as_it_was(
    percent: int, state: str
) -> None:
    assert candidate("a", "", facts(percent, state="away"), answers=True).state == state


# --- Scaling --------------------------------------------------------------------------------------


def test_the_line_that_a_manager_was_told_counts_also_when_it_says_away() -> None:
    seen = Clusters(hot_share=0.6)
    seen.looked([ClusterProbe("a", "", 70, 100)], now=0, wall_unix_ms=1)
    for at in (1, 20):
        seen.looked([ClusterProbe("a", "", 0, 0, "no answer")], now=at, wall_unix_ms=1)
    (facts,) = seen.facts
    assert facts.state == "away"
    assert candidate("a", "", facts, answers=True).state == "hot"


def test_what_is_wished_for() -> None:
    hot = [facts(85, "a", "hot"), facts(90, "b", "hot")]
    idle = [facts(5, "a"), facts(5, "b")]
    assert wish_for(hot, {"a", "b"}) == ("add", ())
    assert wish_for([*hot, facts(50, "c")], {"a"}) == ("enough", ())
    assert wish_for([*hot, facts(0, "c", "away")], {"a"}) == ("add", ())
    assert wish_for(idle, {"a"}) == ("remove", ("b",))
    assert wish_for(idle, {"a", "b"}) == ("enough", ())
    assert wish_for(idle[:1], set()) == ("enough", ())
    assert wish_for([*idle, facts(5, "c", "away")], {"a"}) == ("enough", ())
    assert wish_for([], set()) == ("enough", ())


def test_a_wish_is_reported_once_and_after_its_time() -> None:
    scaling, told = Scaling(), []
    hot, well = [facts(85, state="hot")], [facts(50)]
    history = [(0, hot), (30, hot), (40, well), (50, hot), (50 + HOLD_S - 1, hot),
               (50 + HOLD_S, hot), (200, hot), (300, well), (300 + HOLD_S, well),
               (500, well)]  # fmt: skip
    for at, found in history:
        wish = scaling.looked(found, {"a"}, now=at, wall_unix_ms=WALL)
        if wish is not None:
            scaling.kept(wish)
            told.append((at, wish.number, wish.kind))
    assert told == [(50 + HOLD_S, 1, "add"), (300 + HOLD_S, 2, "enough")]


def test_who_takes_over_does_not_say_again_what_was_said() -> None:
    hot = [facts(85, state="hot")]
    known = Wish(number=4, kind="add", is_told=True)
    scaling = Scaling(read_wish(encode_wish(known)))
    for at in (0.0, 100.0, 1000.0):
        assert scaling.looked(hot, {"a"}, now=at, wall_unix_ms=WALL) is None
    assert scaling.wish == known


def test_a_wish_that_nobody_can_read_is_none() -> None:
    assert read_wish("nonsense") is None
    assert read_wish(None) is None
    assert Scaling().next_deadline() == float("inf")
