"""Assignment: balanced to within one, and a join or leave moves only what it must."""

from collections import Counter
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from push.assignment import assign, assign_around

NAMES = [f"consumer-{number}" for number in range(9)]
some_members = st.lists(st.sampled_from(NAMES), max_size=9, unique=True)
some_partitions = st.integers(0, 24).map(range)


def fewest_moves(partitions: range, members: list[str], previous: dict[int, str]) -> int:
    """The oracle, by exhaustion: over every way to say who gets one partition more, the partitions
    that cannot stay where they are."""
    held = Counter(previous[p] for p in partitions if previous.get(p) in members)
    low, extra = divmod(len(partitions), len(members))
    stays = max(
        sum(min(held[name], low + (name in favoured)) for name in members)
        for favoured in combinations(members, extra)
    )
    return len(partitions) - stays


def check_balance(owners: dict[int, str], partitions: range, members: list[str]) -> None:
    assert list(owners) == list(partitions)
    counts = Counter(owners.values())
    assert set(counts) <= set(members)
    shares = [counts[name] for name in members]
    assert max(shares) - min(shares) <= 1


@settings(max_examples=1000)
@given(
    some_partitions,
    some_members.filter(bool),
    st.dictionaries(st.integers(0, 30), st.sampled_from([*NAMES, "gone"])),
)
def test_any_history_is_balanced_with_the_fewest_moves(
    partitions: range, members: list[str], previous: dict[int, str]
) -> None:
    owners = assign(partitions, members, previous)
    check_balance(owners, partitions, members)
    moves = sum(previous.get(p) != owner for p, owner in owners.items())
    assert moves == fewest_moves(partitions, members, previous)


@settings(max_examples=300)
@given(some_partitions, st.lists(some_members, max_size=8))
def test_joins_and_leaves_in_a_row_move_only_what_they_must(
    partitions: range, history: list[list[str]]
) -> None:
    owners: dict[int, str] = {}
    for members in history:
        before, owners = owners, assign(partitions, members, owners)
        if not members:
            assert owners == {}
            continue
        check_balance(owners, partitions, members)
        moves = sum(before.get(p) != owner for p, owner in owners.items())
        assert moves == fewest_moves(partitions, members, before)


@settings(max_examples=200)
@given(some_partitions, some_members, st.randoms(use_true_random=False))
def test_every_gateway_computes_the_same(
    partitions: range, members: list[str], random: Random
) -> None:
    """R14: the order in which members or partitions are listed says nothing."""
    previous = assign(partitions, NAMES[:4], {})
    shuffled, mixed = list(members), list(partitions)
    random.shuffle(shuffled)
    random.shuffle(mixed)
    assert assign(mixed, shuffled, previous) == assign(partitions, members, previous)


def test_nothing_moves_when_nothing_changes() -> None:
    first = assign(range(16), NAMES[:3], {})
    assert assign(range(16), NAMES[:3], first) == first


def test_the_hash_chooses_and_not_the_order_of_names() -> None:
    """Golden values: gateways of two releases in one cluster agree."""
    first = assign(range(8), ["a", "b", "c"], {})
    assert "".join(first.values()) == "cbcbcaaa"
    assert "".join(assign(range(8), ["a", "b", "c", "d"], first).values()) == "dbcbcada"


def test_no_members_own_nothing() -> None:
    assert assign(range(4), [], {0: "a"}) == {}


def test_more_members_than_partitions_leaves_some_idle() -> None:
    owners = assign(range(3), NAMES, {})
    assert sorted(Counter(owners.values()).values()) == [1, 1, 1]


def test_members_and_partitions_of_before_that_are_gone_are_ignored() -> None:
    assert assign(range(2), ["a"], {0: "dead", 1: "a", 7: "a"}) == {0: "a", 1: "a"}


def test_a_thousand_members_share_a_thousand_partitions() -> None:
    members = [f"m{number}" for number in range(1024)]
    owners = assign(range(1024), members, {})
    assert set(owners.values()) == set(members)


@settings(max_examples=500)
@given(
    some_partitions,
    some_members.filter(bool),
    st.dictionaries(st.integers(0, 30), st.sampled_from([*NAMES, "gone"])),
    st.data(),
)
def test_who_stays_keeps_all_and_the_others_share_the_rest(
    partitions: range, members: list[str], previous: dict[int, str], data: st.DataObject
) -> None:
    """R22: nothing moves away before its owner has said what it holds; nothing is nobody's."""
    staying = data.draw(st.sets(st.sampled_from(members)))
    owners = assign_around(partitions, members, previous, staying)
    assert list(owners) == list(partitions)
    kept = {p: name for p, name in previous.items() if name in staying and p in partitions}
    assert kept.items() <= owners.items()
    others = [name for name in members if name not in kept.values()]
    rest = range(len(partitions) - len(kept))
    check_balance(
        dict(zip(rest, [owner for p, owner in owners.items() if p not in kept], strict=True)),
        rest,
        others or members,
    )


def test_who_is_not_here_keeps_what_it_has_and_is_given_nothing() -> None:
    """R22, P8: what nobody has waits for nobody."""
    assert assign_around(range(3), ["a"], {0: "away", 1: "dead"}, {"away", "idle"}) == {
        0: "away", 1: "a", 2: "a",
    }  # fmt: skip
    assert assign_around(range(2), [], {0: "away"}, {"away"}) == {0: "away"}


def test_without_anybody_who_stays_it_is_the_plain_assignment() -> None:
    previous = {0: "a", 1: "a", 2: "b", 3: "gone"}
    assert assign_around(range(4), ["a", "b"], previous, ()) == assign(
        range(4), ["a", "b"], previous
    )
