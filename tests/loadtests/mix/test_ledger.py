"""The ledger finds what was planted: a loss, a repetition, an inversion, and nothing in peace."""

from pathlib import Path

import pytest

from loadtests.mix import coordination
from loadtests.mix.gates import figures
from loadtests.mix.judge import Outcome, judge
from loadtests.mix.ledger import (
    SLOT_S,
    Ledger,
    NotOurs,
    Series,
    Stamp,
    Stream,
    read_stamp,
    stamp_body,
)

QUEUE, LINE, KEY = "q", "1.0/k0001", "k0001"
MS = 1_000_000
NS = 1_000_000_000


def stamp(number: int, line: str = LINE) -> Stamp:
    return Stamp(line, number, number * MS)


def publisher(*numbers: int, refused: tuple[int, ...] = ()) -> Ledger:
    """A process that has sent these and has the receipts of all but the refused ones."""
    ledger = Ledger(0)
    ledger.since_ns = 0
    for number in numbers:
        ledger.offers(QUEUE, stamp(number))
        if number in refused:
            ledger.refused(QUEUE, stamp(number))
        else:
            at_ns = number * MS + 2 * MS
            ledger.certified(QUEUE, stamp(number), now_ns=at_ns, way="websocket")
    return ledger


def session(ledger: Ledger, *, settles: bool = True, name: str = "q/g") -> Stream:
    """One more session of a group, or of a reader of all keys."""
    ledger.since_ns = 0
    ledger.subscriber(name, QUEUE)
    return Stream(ledger, name, "worker", settles=settles)


def give(stream: Stream, *numbers: int, settle: bool = True) -> None:
    for number in numbers:
        stream.given(stamp(number), key=KEY, now_ns=number * MS + 5 * MS)
        if settle:
            stream.settled(stamp(number))


def outcome(*ledgers: Ledger, drained: bool = True) -> Outcome:
    return judge(ledgers, drained=drained)


def test_a_run_in_peace_has_no_violation() -> None:
    ledger = publisher(1, 2, 3)
    give(session(ledger), 1, 2, 3)
    found = outcome(ledger)
    assert found.ok
    assert (found.counts["certified"], found.counts["given"], found.unknown) == (3, 3, 0)
    assert found.latencies["delivery worker"].maximum == 5 * MS
    assert found.latencies["receipt websocket"].maximum == 2 * MS


def test_a_certified_message_that_a_group_was_never_given_is_lost() -> None:
    ledger = publisher(1, 2, 3)
    give(session(ledger), 1, 3)
    found = outcome(ledger)
    assert dict(found.violations) == {"lost": 1}
    assert found.examples["lost"] == [f"q/g: {LINE} 2"]


def test_a_group_that_was_given_nothing_at_all_has_lost_everything() -> None:
    ledger = publisher(1, 2)
    session(ledger)
    assert outcome(ledger).violations == {"lost": 2}


def test_what_is_missing_before_all_was_drained_is_not_called_lost_and_the_run_is_not_ok() -> None:
    ledger = publisher(1, 2)
    give(session(ledger), 1)
    found = outcome(ledger, drained=False)
    assert not found.violations
    assert not found.ok


def test_a_message_without_an_answer_may_be_missing_and_is_unknown() -> None:
    ledger = publisher(1)
    ledger.offers(QUEUE, stamp(2))
    give(session(ledger), 1)
    found = outcome(ledger)
    assert not found.violations
    assert found.unknown == 1


def test_a_first_delivery_behind_a_later_one_of_its_line_is_out_of_order() -> None:
    ledger = publisher(1, 2, 3)
    give(session(ledger), 1, 3, 2)
    assert outcome(ledger).violations == {"order": 1}


def test_lines_have_an_order_each() -> None:
    ledger, stream = publisher(1, 2), None
    ledger.offers(QUEUE, stamp(1, "1.0/k0002"))
    ledger.certified(QUEUE, stamp(1, "1.0/k0002"), now_ns=0, way="rest")
    stream = session(ledger)
    give(stream, 1, 2)
    stream.given(stamp(1, "1.0/k0002"), key="k0002", now_ns=9 * MS)
    assert outcome(ledger).ok


def test_what_returned_may_come_again_to_the_same_session_or_another_one() -> None:
    ledger = publisher(1, 2, 3)
    stream = session(ledger)
    give(stream, 1, 2, settle=False)
    stream.ended(stamp(1))
    stream.ended(stamp(2))
    give(stream, 1, 2, settle=False)
    stream.left()
    give(session(ledger), 1, 2, 3)
    found = outcome(ledger)
    assert found.ok
    assert found.counts["given again"] == 4


@pytest.mark.parametrize("settle", [True, False])
def test_what_is_held_or_settled_may_not_come_again(settle: bool) -> None:
    ledger = publisher(1)
    stream = session(ledger)
    give(stream, 1, settle=settle)
    give(stream, 1, settle=False)
    assert outcome(ledger).violations == {"repeated": 1}


def test_what_is_settled_may_not_come_again_to_another_session_of_the_process() -> None:
    ledger = publisher(1)
    give(session(ledger), 1)
    give(session(ledger), 1, settle=False)
    assert outcome(ledger).violations == {"repeated": 1}


def test_what_two_processes_have_settled_was_given_again_after_its_ack() -> None:
    here, there = publisher(1, 2), Ledger(0)
    give(session(here), 1)
    give(session(there), 1, 2)
    assert outcome(here, there).violations == {"settled_twice": 1}


def test_what_one_process_returned_another_one_may_settle() -> None:
    here, there = publisher(1, 2), Ledger(0)
    first = session(here)
    give(first, 1, 2, settle=False)
    first.left()
    give(session(there), 1, 2)
    assert outcome(here, there).ok


def test_nothing_comes_to_a_reader_twice() -> None:
    ledger = publisher(1, 2)
    give(session(ledger, settles=False, name="q//r"), 1, 2, 2, settle=False)
    assert outcome(ledger).violations == {"repeated": 1}


def test_a_reader_of_keys_is_to_have_theirs_and_one_that_came_late_what_it_has() -> None:
    ledger = publisher(1, 2)
    ledger.offers(QUEUE, stamp(1, "1.0/k0002"))
    ledger.certified(QUEUE, stamp(1, "1.0/k0002"), now_ns=0, way="rest")
    ledger.subscriber("q//of-one", QUEUE, ["k0002"])
    ledger.subscriber("q//late", QUEUE, ["k0001"], is_whole=False)
    found = outcome(ledger)
    assert found.examples == {"lost": ["q//of-one: 1.0/k0002 1"]}


def test_what_nobody_sent_is_invented() -> None:
    ledger = publisher(1)
    give(session(ledger), 1, 2)
    assert outcome(ledger).violations == {"invented": 1}


def test_what_was_refused_and_given_all_the_same_is_told() -> None:
    ledger = publisher(1, 2, refused=(2,))
    give(session(ledger), 1, 2)
    assert outcome(ledger).violations == {"refused_given": 1}


def test_a_message_under_another_key_is_altered() -> None:
    ledger = publisher(1)
    session(ledger).given(stamp(1), key="k0002", now_ns=0)
    assert outcome(ledger).violations == {"altered": 1, "lost": 1}


def test_what_was_due_in_the_ramp_is_not_measured() -> None:
    ledger = publisher()
    ledger.since_ns = 2 * MS
    ledger.offers(QUEUE, stamp(1))
    ledger.certified(QUEUE, stamp(1), now_ns=2 * MS, way="rest")
    ledger.subscriber("q/g", QUEUE)
    stream = Stream(ledger, "q/g", "worker", settles=True)
    give(stream, 1)
    assert not ledger.latencies
    ledger.offers(QUEUE, stamp(2))
    ledger.certified(QUEUE, stamp(2), now_ns=3 * MS, way="rest")
    stream.given(stamp(2), key=KEY, now_ns=9 * MS, since_ns=3 * MS)
    assert set(ledger.latencies) == {"receipt rest"}


def test_a_ledger_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    ledger = publisher(1, 2, 3, 5, refused=(2,))
    give(session(ledger), 1, 3, 2)
    ledger.subscriber("q//r", QUEUE, ["k0002"], is_whole=False)
    coordination.write_ledger(ledger, tmp_path / "ledger")
    again = coordination.read_ledger(tmp_path / "ledger")
    mine, theirs = outcome(ledger), outcome(again)
    assert mine.violations == theirs.violations == {"order": 1, "refused_given": 1, "lost": 1}
    assert mine.examples == theirs.examples
    assert figures(mine, seconds=2) == figures(theirs, seconds=2)
    assert again.subscribers == ledger.subscribers
    assert again.sent == ledger.sent
    assert [p.name for p in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("text", [b"", b"{", b'{"schema":2}', b"[]"])
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "ledger").write_bytes(text)
    with pytest.raises(ValueError, match="no ledger"):
        coordination.read_ledger(tmp_path / "ledger")


@pytest.mark.parametrize("number", [1, 10**9])
def test_a_body_says_what_it_is_and_has_the_size_that_was_asked_for(number: int) -> None:
    one = Stamp("ffff.99999/k0999", number, 10**18 + number)
    text = stamp_body(one, 256)
    assert len(text) == 256
    assert read_stamp(text, 256) == one
    assert one.key == "k0999"


@pytest.mark.parametrize("place", [12, 40, 60, 200, 255])
def test_a_body_that_was_changed_anywhere_is_not_ours(place: int) -> None:
    text = bytearray(stamp_body(stamp(7), 256))
    text[place] ^= 1
    with pytest.raises(NotOurs):
        read_stamp(bytes(text), 256)


def test_a_body_that_was_cut_or_padded_is_not_ours() -> None:
    with pytest.raises(NotOurs):
        read_stamp(stamp_body(stamp(7), 255), 256)


def test_a_series_has_a_point_for_each_slot_and_a_rate_for_each_that_is_over() -> None:
    series = Series()
    for at_s in (0.0, 1.0, SLOT_S * 2 + 0.5, SLOT_S * 3):
        series.record(int(at_s * NS), 2_000_000)
    middles = [(slot + 0.5) * SLOT_S for slot in range(4)]
    assert [x for x, _ in series.points(50)] == [middles[0], middles[2], middles[3]]
    assert series.rates() == list(zip(middles[:3], (2 / SLOT_S, 0.0, 1 / SLOT_S), strict=True))
    other = Series()
    other.record(-5, 2_000_000)
    series.add(other)
    assert series.rates()[0] == (middles[0], 3 / SLOT_S)
    assert Series().rates() == []
