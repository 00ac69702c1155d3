"""The sending order of a producer (R7)."""

from hypothesis import given
from hypothesis import strategies as st

from push.producer_order import REFUSED_MAX, SendingOrder, StreamOrder


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


def test_behind_a_refused_publish_nothing_is_tried_before_it_comes_again() -> None:
    """R7."""
    stream = StreamOrder()
    assert stream.admits(0, 10, 0)
    assert not stream
    stream.refuse(0, 10)
    assert not stream.admits(10, 5, 0)
    assert not stream.admits(15, 1, 0)
    assert stream.admits(0, 4, 0)  # in smaller pieces, too
    stream.accept(0, 4)
    assert not stream.admits(10, 5, 0)
    assert stream.admits(4, 6, 0)
    stream.accept(4, 6)
    assert stream  # 10 to 15 were sent behind it
    assert stream.admits(10, 6, 0)
    stream.accept(10, 6)
    assert not stream


def test_a_publish_that_its_producer_has_given_up_holds_up_nobody() -> None:
    stream = StreamOrder()
    stream.refuse(5, 3)
    assert not stream.admits(8, 1, 5)
    assert stream.admits(8, 1, 8)
    stream.accept(8, 1)
    assert not stream


def test_a_resend_from_before_does_not_open_the_way() -> None:
    stream = StreamOrder()
    stream.refuse(5, 3)
    assert stream.admits(0, 2, 0)
    stream.accept(0, 2)
    assert not stream.admits(8, 1, 0)
    stream.refuse(3, 1)
    assert not stream.admits(5, 3, 0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.booleans()), max_size=60))
def test_what_is_handed_on_is_in_order(publishes: list[tuple[int, int, bool]]) -> None:
    """R7: of what was refused nothing is passed by anything behind it."""
    stream = StreamOrder()
    refused: set[int] = set()
    for sequence, count, is_over in publishes:
        those = range(sequence, sequence + count)
        if not stream.admits(sequence, count, 0):
            refused.update(those)
        elif is_over:
            stream.refuse(sequence, count)
            refused.update(those)
        else:
            assert not any(one < sequence for one in refused)
            stream.accept(sequence, count)
            refused.difference_update(those)
