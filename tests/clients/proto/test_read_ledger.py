"""A reader's buffer, its position and its credit (R25, R26, P10)."""

from tocsin.errors import Gap
from tocsin.proto import wire
from tocsin.proto.message import ReadMessage
from tocsin.proto.read_ledger import ReadLedger


def push(
    first: int,
    count: int,
    *,
    partition: int = 4,
    following: int | None = None,
    gap: tuple[int, int] | None = None,
    offsets: list[int] | None = None,
) -> wire.Push:
    return wire.Push(
        subscription=1,
        partition=partition,
        offset=None if offsets else first,
        offsets=offsets,
        next=first + count if following is None else following,
        gap=gap,
        messages=[wire.PushedMessage(key="k")] * count,
    )


def opened(credit: int = 8, *verdicts: wire.Verdict) -> ReadLedger:
    """A reader that has been opened at offset 100 of partition 4, or with these verdicts."""
    ledger = ReadLedger(credit=credit)
    assert ledger.reopen() == (credit, None)
    start = [wire.Verdict(4, "resumed", generation=7, next=100)]
    ledger.on_open(1, wire.Ok(ref=1, queue_id="q", positions=list(verdicts) or start))
    return ledger


def position(**partitions: tuple[int, int]) -> wire.Position:
    return wire.Position(
        queue_id="q", partitions={name[1:]: place for name, place in partitions.items()}
    )


def take(ledger: ReadLedger) -> int:
    """Hand one message out; its offset."""
    item = ledger.next()
    ledger.check()
    assert isinstance(item, ReadMessage)
    return item.offset


def test_the_position_is_behind_what_was_handed_out_not_behind_what_came() -> None:
    ledger = opened()
    assert ledger.position() == position(p4=(7, 100))
    ledger.receive(push(100, 3))
    assert take(ledger) == 100
    assert ledger.position() == position(p4=(7, 101))


def test_the_position_moves_on_over_what_the_filter_skips() -> None:
    ledger = opened()
    ledger.receive(push(100, 2, offsets=[101, 110], following=140))
    assert take(ledger) == 101
    assert ledger.position() == position(p4=(7, 102))
    assert take(ledger) == 110
    assert ledger.position() == position(p4=(7, 140))


def test_a_push_without_messages_moves_the_position_alone() -> None:
    ledger = opened()
    ledger.receive(wire.Push(subscription=1, positions={"4": (7, 500)}))
    assert ledger.next() is None
    assert ledger.position() == position(p4=(7, 500))


def test_a_gap_comes_before_what_follows_it() -> None:
    ledger = opened()
    ledger.receive(push(100, 1))
    ledger.receive(push(120, 1, gap=(101, 119)))
    assert take(ledger) == 100
    gap = ledger.next()
    assert isinstance(gap, Gap)
    assert (gap.partition, gap.first, gap.last) == (4, 101, 119)
    assert take(ledger) == 120


def test_a_gap_at_the_start_is_reported_first() -> None:
    verdict = wire.Verdict(4, "gap", first=10, last=99, generation=7)
    ledger = opened(8, verdict)
    ledger.receive(push(100, 1))
    assert isinstance(ledger.next(), Gap)
    assert ledger.position() == position(p4=(7, 100))
    assert take(ledger) == 100


def test_a_new_connection_goes_on_behind_what_was_received() -> None:
    ledger = opened(credit=8)
    ledger.receive(push(100, 5))
    assert take(ledger) == 100
    granted, wanted = ledger.reopen()
    assert wanted == position(p4=(7, 105))
    assert granted == 4  # four are still in the buffer
    assert take(ledger) == 101
    assert ledger.take() == []  # nothing is granted before the ok
    ledger.on_open(1, wire.Ok(ref=2, queue_id="q", positions=[]))
    assert take(ledger) == 102
    assert ledger.take() == [wire.Credit(subscription=1, granted=6)]


def test_credit_is_granted_by_quarters_of_the_window() -> None:
    ledger = opened(credit=8)
    ledger.receive(push(100, 8))
    take(ledger)
    assert ledger.take() == []
    take(ledger)
    assert ledger.take() == [wire.Credit(subscription=1, granted=10)]


def test_what_is_handled_is_behind_what_is_handed_out_until_the_next_is_asked_for() -> None:
    ledger = opened()
    ledger.receive(push(100, 2, following=140))
    for at in (100, 101):
        take(ledger)
        assert ledger.handled_position() == position(p4=(7, at))
    assert ledger.position() == position(p4=(7, 140)), "and looking at it changes nothing"
    assert ledger.handled_position() == position(p4=(7, 101))
    assert ledger.next() is None
    assert ledger.handled_position() == position(p4=(7, 140))


def test_a_gap_is_handled_when_what_follows_it_is_asked_for() -> None:
    ledger = opened(8, wire.Verdict(4, "gap", first=10, last=99, generation=7))
    assert ledger.handled_position() == ledger.position() == position(p4=(7, 10))
    assert isinstance(ledger.next(), Gap)
    assert ledger.handled_position() == position(p4=(7, 10))
    assert ledger.next() is None
    assert ledger.handled_position() == position(p4=(7, 100))


def test_another_history_begins_behind_what_came_of_the_old_one() -> None:
    """R26: lower offsets, another generation: the position is the old one's, then the new one's."""
    ledger = opened()
    ledger.receive(push(100, 1))
    ledger.reopen()
    verdicts = [wire.Verdict(4, "unknown", first=3, generation=9)]
    ledger.on_open(1, wire.Ok(ref=2, queue_id="q", positions=verdicts), unknown={4})
    ledger.receive(push(3, 1))
    assert ledger.reopen()[1] == position(p4=(9, 4))
    assert take(ledger) == 100
    assert ledger.position() == position(p4=(7, 101))
    assert take(ledger) == 3
    assert ledger.position() == position(p4=(9, 4))
    assert ledger.handled_position() == position(p4=(9, 3))


def test_another_queue_of_the_name_takes_nothing_over() -> None:
    ledger = opened()
    ledger.reopen()
    verdicts = [wire.Verdict(0, "resumed", first=5, generation=1)]
    ledger.on_open(1, wire.Ok(ref=2, queue_id="other", positions=verdicts), unknown={0})
    assert ledger.next() is None
    expected = wire.Position(queue_id="other", partitions={"0": (1, 5)})
    assert ledger.position() == ledger.handled_position() == ledger.reopen()[1] == expected


def test_a_position_survives_a_file() -> None:
    kept = position(p4=(7, 100), p11=(1, 5))
    assert wire.Position.from_json(kept.to_json()) == kept
