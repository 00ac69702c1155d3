"""Commands of Redis are what its own library would send, and answers are what was asked for."""

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.streams_wire import Broken, Entry, entries, packed, partition_of

ONE = [b"q:0", [[b"1-1", [b"k", b"k0007", b"b", b"hello"]]]]


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(), st.text(max_size=9)), min_size=1))
def test_a_command_is_what_the_library_packs(words: list[bytes | str | int]) -> None:
    library: Any = hiredis  # its types want one word
    assert packed(*words) == library.pack_command(tuple(words))


def test_what_a_read_brought_is_found_in_order() -> None:
    many = [ONE, [b"q:1", [[b"2-1", [b"k", b"", b"b", b""]], [b"2-2", [b"k", b"", b"b", b"x"]]]]]
    assert entries(many) == [
        Entry(b"q:0", b"1-1", b"hello"),
        Entry(b"q:1", b"2-1", b""),
        Entry(b"q:1", b"2-2", b"x"),
    ]


def test_a_read_in_vain_brought_nothing() -> None:
    assert entries(None) == []
    assert entries([]) == []


@pytest.mark.parametrize(
    "answer",
    [
        hiredis.ReplyError("NOGROUP"),
        b"OK",
        [b"q:0"],
        [[b"q:0"]],
        [[b"q:0", [], b"more"]],
        [[1, []]],
        [[b"q:0", None]],
        [[b"q:0", [[b"1-1"]]]],
        [[b"q:0", [[1, [b"k", b"", b"b", b""]]]]],
        [[b"q:0", [[b"1-1", None]]]],
        [[b"q:0", [[b"1-1", [b"k", b"", b"b"]]]]],
        [[b"q:0", [[b"1-1", [b"k", b"", b"b", b"", b"c"]]]]],
        [[b"q:0", [[b"1-1", [b"b", b"", b"k", b""]]]]],
        [[b"q:0", [[b"1-1", [b"k", b"", b"b", 1]]]]],
    ],
)
def test_another_answer_is_refused(answer: object) -> None:
    with pytest.raises(Broken):
        entries(answer)


def test_keys_go_to_all_partitions_and_each_always_to_the_same() -> None:
    places = [partition_of(b"k%04d" % number, 16) for number in range(1000)]
    assert set(places) == set(range(16))
    assert places == [partition_of(b"k%04d" % number, 16) for number in range(1000)]
    assert partition_of(b"k", 1) == 0
