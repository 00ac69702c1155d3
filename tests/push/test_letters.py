"""Letters: their form, and what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push import limits
from push.letters import Letter, Unpark, Verb, letter_of, runs_of
from push.places import Verb as Decision

deliveries = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=30)


@given(deliveries)
def test_runs_name_what_they_were_made_of_in_its_order(named: list[tuple[int, int]]) -> None:
    """The verdict about one delivery may depend on those before it; some may be named twice."""
    runs = runs_of(named)
    assert Letter(verb="ack", epoch=1, runs=runs).deliveries() == named
    for (push, _, last), (other, first, _) in pairwise(runs):
        assert (other, first) != (push, last + 1)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
@pytest.mark.parametrize("seconds", [None, 0.0, 2.5])
def test_a_letter_is_read_as_it_was_written(verb: Verb, seconds: float | None) -> None:
    letter = Letter(verb=verb, epoch=7, runs=[(3, 5, 9), (4, 0, 0)], seconds=seconds)
    assert letter_of(letter.encode()) == letter


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
def test_a_decision_is_read_as_it_was_written(verb: Decision) -> None:
    letter = Unpark(
        verb=verb, epoch=7, keys=[("00c0ffee00c0ffee", 1763690400123, 4), ("f" * 16, 0, None)]
    )
    assert letter_of(letter.encode()) == letter


def test_a_decision_names_as_many_keys_as_a_call_may_and_fits_into_an_inbox() -> None:
    """P9, on both sides of the bound."""
    most = limits.PARKED_PER_CALL_MAX
    keys: list[tuple[str, int, int | None]] = [
        (f"{(1 << 64) - 1 - number:016x}", 1763690400123, 1 << 40) for number in range(most + 1)
    ]
    assert letter_of(Unpark(verb="skip", epoch=1, keys=keys).encode()) is None
    text = Unpark(verb="skip", epoch=1, keys=keys[:most]).encode()
    assert letter_of(text) is not None
    assert len(text) < limits.INBOX_BYTES_MAX / 4


def test_a_letter_names_as_many_deliveries_as_a_request_may() -> None:
    """P9, on both sides of the bound: a run is short, what it names is not."""
    most = limits.PULL_MESSAGES_MAX
    assert letter_of(Letter(verb="ack", epoch=1, runs=[(1, 0, most - 1)]).encode()) is not None
    assert letter_of(Letter(verb="ack", epoch=1, runs=[(1, 0, most)]).encode()) is None
    assert (
        letter_of(Letter(verb="ack", epoch=1, runs=[(1, 0, most - 1), (2, 0, 0)]).encode()) is None
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"verb":"drop","epoch":1,"runs":[],"version":1}',
        b'{"verb":"ack","epoch":-1,"runs":[]}',
        b'{"verb":"ack","epoch":1,"runs":[[1,2]]}',
        b'{"verb":"ack","epoch":1,"runs":[[1,2,1]]}',
        b'{"verb":"ack","epoch":1,"runs":[[1,0,99999999999]]}',
        b'{"verb":"ack","epoch":1,"runs":[],"version":2}',
        b'{"verb":"ack","epoch":1,"runs":[],"seconds":"5"}',
        b'{"verb":"retry","epoch":1,"runs":[]}',
        b'{"verb":"retry","epoch":1,"keys":[["00c0ffee00c0ffee"]]}',
        b'{"verb":"retry","epoch":1,"keys":[["C0FFEE",5]]}',
        b'{"verb":"retry","epoch":1,"keys":[["00c0ffee00c0ffee",-5]]}',
        b'{"verb":"retry","epoch":1,"keys":[],"version":2}',
        b'{"verb":"ack","epoch":1,"keys":[]}',
    ],
)
def test_what_nobody_here_has_written_is_no_letter(text: bytes) -> None:
    """R4, P12."""
    assert letter_of(text) is None
