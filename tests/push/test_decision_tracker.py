"""Pursuing a decision about parked keys: what is known of it, whatever becomes of the owners."""

import pytest

from push.letters import PERHAPS, SETTLED, STALE, DecisionTracker
from push.places import ParkedLine

A, B, C = 1, 2, 3


def parked(key: int, since: int = 100, head: int = 5) -> ParkedLine:
    """A key, and since when."""
    return ParkedLine(key, "exhausted", since, 3, head, 1)


def tracker(*keys: int) -> DecisionTracker:
    """Of these."""
    return DecisionTracker([parked(key) for key in keys])


def known(one: DecisionTracker) -> tuple[set[int], set[int], set[int]]:
    """(decided, unknown, left)."""
    return set(one.decided), one.unknown, set(one.pending)


def test_what_an_owner_answers_counts_as_it_says() -> None:
    one = tracker(A, B, C)
    one.on_answer([A, B, C], SETTLED + STALE + PERHAPS)
    assert known(one) == ({A}, set(), {B, C})
    one.compare([], epoch=1)
    assert known(one) == ({A}, {C}, set()), "C was taken up, and nobody said that it is durable"
    assert one.others == 1, "B was somebody else's"


def test_what_was_taken_up_and_is_parked_as_it_was_did_not_happen() -> None:
    """Its owner ended before it was durable. Somebody else's decision is not this one's."""
    one = tracker(A)
    one.on_taken_up(A)
    one.compare([parked(A)], epoch=1)
    assert known(one) == (set(), set(), {A})
    one.compare([], epoch=1)
    assert known(one) == (set(), set(), set())


def test_what_was_parked_anew_is_not_what_is_meant() -> None:
    """R17: the head may be another one; nothing is asked about it."""
    one = tracker(A, B, C)
    one.on_taken_up(A)
    one.on_asked([B], epoch=1)
    one.compare([parked(key, since=101) for key in (A, B, C)], epoch=1)
    assert known(one) == (set(), {A, B}, set())


def test_what_was_taken_up_may_have_been_decided_by_somebody_else() -> None:
    """P5, R5: its owner ended before it was durable, and the next one did what another operator
    wanted. [A skip is answered as done, and the key was retried.]"""
    one = tracker(A)
    one.on_taken_up(A)
    one.compare([], epoch=2)
    assert known(one) == (set(), {A}, set())


def test_what_was_asked_and_never_answered_is_unknown_when_it_is_not_parked_any_more() -> None:
    """R5."""
    one = tracker(A, B)
    one.on_asked([A, B], epoch=1)
    one.compare([parked(B)], epoch=1)
    assert known(one) == (set(), {A}, {B})


@pytest.mark.parametrize(("epoch", "unknown"), [(1, {A}), (2, set())])
def test_an_epoch_that_has_ended_decides_nothing_any_more(epoch: int, unknown: set[int]) -> None:
    """R15: still parked under a newer epoch, so the owner of before has not done it and cannot. Of
    the one that may still do it nothing is known."""
    one = tracker(A)
    one.on_asked([A], epoch=1)
    one.compare([parked(A)], epoch=epoch)
    one.compare([], epoch=epoch)
    assert known(one) == (set(), unknown, set())


def test_a_later_answer_makes_good_that_there_was_none() -> None:
    one = tracker(A, B, C)
    one.on_asked([A, B, C], epoch=1)
    one.on_answer([A, B], SETTLED + STALE)
    one.on_durable(C)
    one.compare([], epoch=1)
    assert known(one) == ({A, C}, set(), set())


def test_who_gives_up_does_not_know_of_what_may_have_been_taken_up() -> None:
    """The others are left: nothing happened to them."""
    one = tracker(A, B, C)
    one.on_taken_up(A)
    one.on_asked([B], epoch=1)
    one.give_up()
    assert known(one) == (set(), {A, B}, {C})


def test_the_head_is_the_one_that_was_seen_last() -> None:
    one = tracker(A)
    one.compare([parked(A, head=7)], epoch=1)
    assert one.pending[A].head == 7
