"""The sending order of a producer (R7)."""

from hypothesis import given
from hypothesis import strategies as st

from push.sending import REFUSED_MAX, SendingOrder


def test_nothing_is_held_up_at_first() -> None:
    order = SendingOrder()
    assert order.admits(5, 0)
    assert order.admits(3, 0)
    assert not order


def test_what_is_behind_a_refused_message_waits_for_it() -> None:
    """R7."""
    order = SendingOrder()
    order.refuse(5)
    assert not order.admits(6, 5)
    assert order.admits(4, 5)
    assert order.admits(5, 5)
    assert not order.admits(6, 5)  # it was tried, and not accepted
    order.accept(5)
    assert order.admits(6, 5)


def test_what_was_out_of_sequence_is_waited_for_too() -> None:
    order = SendingOrder()
    order.refuse(5)
    assert not order.admits(6, 5)
    order.accept(5)
    assert not order.admits(7, 5)
    order.accept(6)
    assert not order.admits(8, 5)
    order.accept(7)
    order.accept(8)
    assert not order


def test_what_the_producer_has_given_up_holds_up_nobody() -> None:
    order = SendingOrder()
    order.refuse(5)
    order.refuse(8)
    assert not order.admits(9, 6)
    assert order.admits(10, 10)
    assert not order


def test_memory_is_bounded_and_the_lowest_stay() -> None:
    """P9."""
    order = SendingOrder()
    for sequence in range(3 * REFUSED_MAX, 0, -1):
        order.refuse(sequence)
    assert not order.admits(2, 0)
    assert len(order._refused) == REFUSED_MAX
    assert order._refused[0] == 1


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40),
)
def test_a_message_is_stored_only_behind_all_refused_ones(steps: list[tuple[int, bool]]) -> None:
    """R7, against a set."""
    order, waiting = SendingOrder(), set[int]()
    for sequence, fits in steps:
        admitted = order.admits(sequence, 0)
        assert admitted == all(sequence <= refused for refused in waiting)
        if admitted and fits:
            order.accept(sequence)
            waiting.discard(sequence)
        else:
            if admitted:
                order.refuse(sequence)
            waiting.add(sequence)
        assert bool(order) == bool(waiting)
