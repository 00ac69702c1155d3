"""What is to be made durable: whole, absolute, and once at a time (R16, R29)."""

import random
from collections.abc import Collection

import pytest

from push import limits
from push.delivery.cursor_write import SETTLED_LOOSE_MAX, PendingWrite
from push.places import CursorPlace, Parked, Partition
from push.storage_port import Retry, Side

PLACE = CursorPlace("g", Partition("q", 0))


def pending(starving: Collection[int] = ()) -> PendingWrite:
    return PendingWrite(PLACE, 3, b"token", starving=starving)


def test_nothing_to_write_is_no_write() -> None:
    changes = pending()
    assert not changes.dirty
    assert changes.take(0) is None


def test_one_write_is_under_way_at_a_time() -> None:
    changes = pending()
    changes.settle(1, 2)
    assert changes.take(0) is not None
    changes.settle(3, 4)
    assert changes.under_way
    assert changes.take(0) is None
    changes.confirm()
    write = changes.take(0)
    assert write is not None
    assert write.settled == ((3, 4),)


def test_a_write_holds_everything_so_far() -> None:
    changes = pending()
    changes.settle(5, 6)
    changes.settle(3, 4)
    changes.note(Retry(9, 1, 50))
    changes.record(Retry(8, 2, 60), key=7)
    changes.set_aside(7, 12)
    changes.set_aside(7, 11)
    changes.park(4, "exhausted")
    write = changes.take(1234)
    assert write is not None
    assert (write.place, write.epoch, write.token) == (PLACE, 3, b"token")
    assert write.settled == ((3, 6),)
    assert write.retries == (Retry(9, 1, 50), Retry(8, 2, 60))
    assert write.aside == (Side(7, (11, 12)),)
    assert write.parked == (Parked(4, "exhausted", 1234),)


def test_what_has_ended_is_settled_and_goes_until_it_is_durable() -> None:
    """R21, R29."""
    changes = pending()
    changes.settle(0, 1)
    changes.end(3)
    changes.end(2)
    write = changes.take(0)
    assert write is not None
    assert (write.settled, write.ended) == (((0, 3),), ((2, 3),))
    changes.end(7)
    changes.restore()
    write = changes.take(0)
    assert write is not None
    assert (write.settled, write.ended) == (((0, 3), (7, 7)), ((2, 3), (7, 7)))
    changes.confirm()
    assert changes.take(0) is None


def test_what_waits_for_its_record_goes_with_the_confirmation_of_its_own_write() -> None:
    """R16."""
    changes = pending()
    changes.record(Retry(1, 1), key=7)
    changes.take(0)
    changes.record(Retry(2, 1), key=7)
    assert changes.recording_count == 2
    assert changes.confirm()[1:] == ({1: 7}, {})
    assert changes.recording_count == 1
    changes.take(0)
    assert changes.confirm()[1:] == ({2: 7}, {})


def test_what_is_cancelled_does_not_go() -> None:
    """R17: it was called back, while its record is on its way or before."""
    changes = pending()
    changes.record(Retry(1, 1), key=7)
    changes.take(0)
    changes.record(Retry(2, 1), key=7)
    changes.cancel(1)
    changes.cancel(2)
    changes.record(Retry(1, 2), key=7)
    assert changes.confirm()[1:] == ({}, {})
    write = changes.take(0)
    assert write is not None
    assert set(write.retries) == {Retry(1, 2), Retry(2, 1)}
    assert changes.confirm()[1:] == ({1: 7}, {})


def test_what_is_not_known_to_be_durable_goes_again_whole() -> None:
    """R29: absolute ranges, kept until confirmed; newer facts win."""
    changes = pending()
    changes.settle(1, 2)
    changes.note(Retry(5, 1, 10))
    changes.record(Retry(6, 1), key=7)
    changes.set_aside(7, 11)
    changes.park(4, "exhausted")
    changes.take(0)
    changes.settle(3, 3)
    changes.note(Retry(5, 2, 20))
    changes.set_aside(7, 12)
    changes.restore()
    write = changes.take(99)
    assert write is not None
    assert write.settled == ((1, 3),)
    assert set(write.retries) == {Retry(5, 2, 20), Retry(6, 1)}
    assert write.aside == (Side(7, (11, 12)),)
    assert write.parked == (Parked(4, "exhausted", 99),)
    assert changes.aside_count == 2
    assert changes.confirm()[1:] == ({6: 7}, {7: 2})
    assert changes.aside_count == 0


def test_restoring_without_a_write_changes_nothing() -> None:
    changes = pending()
    changes.restore()
    assert not changes.dirty


def test_settlements_that_touch_are_joined() -> None:
    """P9: acks in random order, while the storage does not answer."""
    changes = pending()
    offsets = list(range(50_000))
    random.Random(1).shuffle(offsets)
    for offset in offsets:
        changes.settle(offset, offset)
        assert len(changes._settled) <= 2 * 25_000
    write = changes.take(0)
    assert write is not None
    assert write.settled == ((0, 49_999),)


def test_settlements_that_do_not_touch_are_not_joined_over_and_over() -> None:
    changes = pending()
    for offset in range(0, 8 * SETTLED_LOOSE_MAX, 2):
        changes.settle(offset, offset)
    assert changes._coalesce_at >= 4 * SETTLED_LOOSE_MAX


def test_what_is_set_aside_waits_until_many_go_together() -> None:
    """P8: each stands on another page of the storage; half of what may be held goes at once."""
    many = limits.ASIDE_UNWRITTEN_MAX // 2
    changes = pending()
    for offset in range(many - 1):
        changes.set_aside(offset % 7, offset)
    assert not changes.dirty
    changes.settle(1000, 1001)
    write = changes.take(0)
    assert write is not None
    assert write.aside == ()
    assert changes.confirm()[1:] == ({}, {})
    assert changes.aside_count == many - 1
    changes.set_aside(0, many)
    assert changes.dirty
    write = changes.take(0)
    assert write is not None
    assert sum(len(side.offsets) for side in write.aside) == many
    changes.restore()
    again = changes.take(0)
    assert again is not None
    assert again.aside == write.aside


@pytest.mark.parametrize("why", ["starving", "ending", "parked"])
def test_what_is_set_aside_is_written_when_somebody_needs_it(why: str) -> None:
    """A line that has nothing else left, the next owner, or who looks at what is parked."""
    changes = pending({7} if why == "starving" else ())
    changes.set_aside(7, 1)
    if why == "ending":
        changes.ending = True
    elif why == "parked":
        changes.park(7, "exhausted")
    assert changes.dirty
    write = changes.take(0)
    assert write is not None
    assert write.aside == (Side(7, (1,)),)
