"""Shares of a commit, and of the room for what waits: against a naive model."""

from collections.abc import Sequence

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from push import limits
from push.commit_sharing import AHEAD_BYTES_MAX, FairQueue, FairShare, has_room

Waiting = Sequence[tuple[str, int]]
WAITING = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), max_size=40)


def naive(waiting: Waiting, room: int, passed: list[str]) -> list[int]:
    """The same, said slowly; `passed` is what is kept from turn to turn."""
    owners = list(dict.fromkeys(owner for owner, _ in waiting))
    wanted = {o: sum(size for owner, size in waiting if owner == o) for o in owners}
    if sum(wanted.values()) <= room:
        passed.clear()
        return list(range(len(waiting)))
    passed[:] = [owner for owner in passed if owner in owners]
    given_to = dict.fromkeys(owners, 0)

    def rank(owner: str) -> tuple[int, int]:
        if owner in first:
            return first.index(owner), 0
        return len(first), wanted[owner]

    first = list(passed)
    taken: list[int] = []
    while room > 0 and len(taken) < len(waiting):
        left: dict[str, int] = {}
        for place, (owner, _) in enumerate(waiting):
            if place not in taken:
                left.setdefault(owner, place)
        lowest = min(given_to[owner] for owner in left)
        owner = min((one for one in left if given_to[one] == lowest), key=rank)
        taken.append(left[owner])
        room -= waiting[left[owner]][1]
        given_to[owner] += waiting[left[owner]][1]
    nothing = [owner for owner in owners if not given_to[owner]]
    passed[:] = sorted(nothing, key=rank)
    return sorted(taken)


def take(waiting: Waiting, room: int) -> list[int]:
    """By somebody who remembers nothing."""
    return FairQueue[str]().take(waiting, room)


@given(st.lists(st.tuples(WAITING, st.integers(1, 300)), max_size=5))
def test_it_is_as_the_model_says(commits: list[tuple[Waiting, int]]) -> None:
    """Turn after turn. Who wants as much as another one may change places with him."""
    turns, passed = FairQueue[str](), list[str]()
    for waiting, room in commits:
        wanted = [sum(size for owner, size in waiting if owner == one) for one in "abcde"]
        hypothesis.assume(len(set(filter(None, wanted))) == len(list(filter(None, wanted))))
        assert turns.take(waiting, room) == naive(waiting, room, passed)


@given(WAITING, st.integers(1, 300))
def test_who_wants_less_than_an_equal_share_goes_whole(waiting: Waiting, room: int) -> None:
    """Whatever the others want."""
    taken = set(take(waiting, room))
    owners = {owner for owner, _ in waiting}
    for owner in owners:
        mine = [place for place, (whose, _) in enumerate(waiting) if whose == owner]
        wants = sum(waiting[place][1] for place in mine)
        largest = max(size for _, size in waiting)
        if wants + largest <= room // len(owners):
            assert taken.issuperset(mine)


@given(WAITING, st.integers(1, 300))
def test_nobody_s_things_change_places(waiting: Waiting, room: int) -> None:
    """R7: what goes of an owner are the first that he has."""
    taken = take(waiting, room)
    for owner in {owner for owner, _ in waiting}:
        mine = [place for place, (whose, _) in enumerate(waiting) if whose == owner]
        gone = [place for place in taken if waiting[place][0] == owner]
        assert gone == mine[: len(gone)]


@given(WAITING, st.integers(1, 300))
def test_the_room_is_used_and_exceeded_by_one_at_most(waiting: Waiting, room: int) -> None:
    sizes = [waiting[place][1] for place in take(waiting, room)]
    total = sum(size for _, size in waiting)
    assert sum(sizes) >= min(room, total)
    assert sum(sizes) - max(sizes, default=0) < room


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_everybody_comes_to_his_turn(sizes: list[int], room: int) -> None:
    """What did not go waits in front of what comes later, and so goes in the end, although others
    bring more each time, little things among them."""
    first = [(f"q{number}", size) for number, size in enumerate(sizes)]
    waiting, marked = list(first), set(range(len(first)))
    turns = FairQueue[str]()
    for turn in range(sum(sizes) + len(sizes) + 1):
        gone = set(turns.take(waiting, room))
        marked = {
            place - sum(1 for one in gone if one < place) for place in marked if place not in gone
        }
        waiting = [one for place, one in enumerate(waiting) if place not in gone]
        waiting += [(f"n{turn}", 1), (f"m{turn}", 50), ("q0", 1)]
        if not marked:
            return
    raise AssertionError(f"{len(marked)} still wait")


def test_alone_one_may_hold_four_fifths() -> None:
    assert has_room(0, 40_000, 0, 50_000)
    assert has_room(39_000, 1_000, 39_000, 50_000)
    assert not has_room(39_000, 1_001, 39_000, 50_000)


@given(st.integers(1, 20), st.integers(1_000, 100_000))
def test_heavy_owners_leave_room(heavy: int, bound: int) -> None:
    """P9: together they stay below the bound, and somebody who holds nothing finds room."""
    held = [0] * heavy
    moved = True
    while moved:
        moved = False
        for place in range(heavy):
            step = max(1, bound // 100)
            if has_room(held[place], step, sum(held), bound):
                held[place] += step
                moved = True
    assert sum(held) < bound
    assert has_room(0, max(1, bound // 200), sum(held), bound)


def test_the_largest_publish_fits_where_nothing_waits() -> None:
    """`overloaded` passes: what is said again alone is never refused for its own size."""
    assert has_room(0, limits.MESSAGES_PER_PUBLISH_MAX, 0, limits.PENDING_MESSAGES_MAX)
    assert has_room(limits.FRAME_BYTES_MAX, 0, limits.FRAME_BYTES_MAX, limits.PENDING_BYTES_MAX)
    assert min(AHEAD_BYTES_MAX, limits.INCOMPLETE_BYTES_MAX) > limits.FRAME_BYTES_MAX
    share = FairShare[str]()
    for _ in range(3):
        share.choose([("heavy", AHEAD_BYTES_MAX), ("other", 1)], now=0.0)
    assert share.has_too_much("heavy", AHEAD_BYTES_MAX, now=0.0)
    assert not share.has_too_much("heavy", 0, now=0.0)
