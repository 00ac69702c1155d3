"""Receipts: only what this broker gave, for this queue and group, is one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from push.receipts import CHARS, Receipt, Receipts

KEY = bytes(range(32))
RECEIPTS = Receipts(KEY)
receipts = st.builds(
    Receipt,
    generation=st.integers(0, 2**32 - 1),
    partition=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**64 - 1),
    push=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
)
ONE = Receipt(generation=1, partition=7, epoch=3, push=40, offset=123_456)


@given(receipts, st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=300)
def test_a_receipt_names_its_delivery(receipt: Receipt, queue_id: str, group_id: str) -> None:
    text = RECEIPTS.encode(queue_id, group_id, receipt)
    assert RECEIPTS.decode(queue_id, group_id, text) == receipt
    assert len(text) == CHARS
    assert text.isascii()


@given(receipts, st.integers(0, CHARS - 1), st.characters(max_codepoint=0x2FF))
@settings(max_examples=1000)
def test_every_change_of_one_character_is_refused(
    receipt: Receipt, place: int, character: str
) -> None:
    text = RECEIPTS.encode("q", "g", receipt)
    changed = text[:place] + character + text[place + 1 :]
    assert RECEIPTS.decode("q", "g", changed) == (receipt if changed == text else None)


def test_every_single_byte_change_is_refused() -> None:
    """Exhaustive for one receipt: each place, each character of the alphabet and around it."""
    text = RECEIPTS.encode("q", "g", ONE)
    for place in range(len(text)):
        for code in range(128):
            changed = text[:place] + chr(code) + text[place + 1 :]
            assert (RECEIPTS.decode("q", "g", changed) is None) == (changed != text)


@pytest.mark.parametrize(
    ("queue_id", "group_id"),
    [("r", "g"), ("q", "h"), ("q2", "g"), ("q", "g2"), ("g", "q"), ("qg", ""), ("", "qg")],
)
def test_a_receipt_of_another_queue_or_group_is_refused(queue_id: str, group_id: str) -> None:
    """R1: a queue made anew under its name has another id."""
    assert RECEIPTS.decode(queue_id, group_id, RECEIPTS.encode("q", "g", ONE)) is None


def test_a_receipt_of_another_broker_is_refused() -> None:
    assert Receipts(bytes(32)).decode("q", "g", RECEIPTS.encode("q", "g", ONE)) is None


def test_cut_off_and_lengthened_receipts_are_refused() -> None:
    text = RECEIPTS.encode("q", "g", ONE)
    for length in range(len(text)):
        assert RECEIPTS.decode("q", "g", text[:length]) is None
    for more in ("=", "==", "A", " ", "\n", "é"):
        assert RECEIPTS.decode("q", "g", text + more) is None


def test_a_key_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Receipts(b"short")
