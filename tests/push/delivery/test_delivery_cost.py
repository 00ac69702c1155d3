"""What delivery costs: nothing per message in the ordinary case, and never the square of what is
in flight (P8, P9)."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from push.delivery.delivery import Delivery
from push.delivery.values import DeliverySettings
from push.places import CursorPlace, Partition
from push.record import Record
from tests.push.delivery_model import Store, make_record, wall_unix_ms

PLACE = CursorPlace("g", Partition("q", 0))
SETTINGS = DeliverySettings(lease_s=10)


def owner(end: int) -> Delivery:
    return Delivery(PLACE, Store().own(end), b"token", SETTINGS, now=0.0)


def record_of(keys: list[int]) -> Record:
    """As it comes from storage: nothing of it is computed yet."""
    return make_record(0, keys)


def work(act: Callable[[], object]) -> tuple[int, int]:
    """(calls, lines of Python executed) of an act."""
    calls = lines = 0

    def count_call(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def count_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count_line

    sys.setprofile(count_call)
    sys.settrace(count_line)
    try:
        act()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return calls, lines


def ordinary(count: int) -> tuple[int, int]:
    """Give a record of this many messages in one push, ack it in one range, take the write."""
    record, delivery = record_of([1 + i % 50 for i in range(count)]), owner(count)

    def act() -> None:
        (out,) = delivery.give(record, count, now=0.0, wall_unix_ms=wall_unix_ms(0.0))
        delivery.ack(out.number, 0, count - 1, now=1.0)
        delivery.take_write(wall_unix_ms=0)

    return work(act)


def test_a_thousand_messages_cost_what_ten_cost() -> None:
    """The ordinary path works on ranges: no Python runs per message."""
    few, many = ordinary(10), ordinary(1000)
    assert many == few
    assert few[0] < 120


def test_other_keys_pay_nothing_for_each_key_that_waits() -> None:
    """P8: a message of another key costs a look into a dictionary, however many keys wait."""

    def gated(waiting: int) -> int:
        delivery = owner(waiting + 1000)
        head = record_of(list(range(1, waiting + 1)))
        delivery.give(head, waiting, now=0.0, wall_unix_ms=wall_unix_ms(0.0))
        for offset in range(waiting):
            delivery.nack(
                1, offset, offset,
                delay_s=100.0, draw=lambda: 0.0, now=0.0, wall_unix_ms=wall_unix_ms(0.0),
            )  # fmt: skip
        keys = [1 if i % 100 == 0 else 1_000_000 + i for i in range(1000)]
        record = make_record(waiting, keys)
        calls, lines = work(
            lambda: delivery.give(record, 1000, now=0.0, wall_unix_ms=wall_unix_ms(0.0))
        )
        assert delivery.leases.open_count == 990
        return calls + lines

    assert gated(1000) < 1.02 * gated(10)


def test_a_consumer_that_hangs_with_thousands_costs_each_of_them_once() -> None:
    """P8: all leases of 4,000 single pushes end in the same moment."""

    def expire(count: int) -> int:
        delivery = owner(count)
        record = record_of(list(range(1, count + 1)))
        for _ in range(count):
            delivery.give(record, 1, now=0.0, wall_unix_ms=wall_unix_ms(0.0))
        calls, lines = work(lambda: delivery.expire(now=11.0, wall_unix_ms=wall_unix_ms(11.0)))
        assert delivery.leases.open_count == 0
        return calls + lines

    assert expire(1000) < 1.5 * 4 * expire(250)


def test_a_consumer_that_refuses_everything_costs_each_message_once() -> None:
    """P8: thousands of nacks, each looks for later messages of its key."""

    def refuse(count: int) -> int:
        delivery = owner(count)
        record = record_of(list(range(1, count + 1)))
        for _ in range(count):
            delivery.give(record, 1, now=0.0, wall_unix_ms=wall_unix_ms(0.0))

        def act() -> None:
            for offset in range(count):
                delivery.nack(
                    offset + 1, offset, offset,
                    delay_s=9.0, draw=lambda: 0.0, now=0.0, wall_unix_ms=wall_unix_ms(0.0),
                )  # fmt: skip

        return sum(work(act))

    assert refuse(1000) < 1.5 * 4 * refuse(250)
