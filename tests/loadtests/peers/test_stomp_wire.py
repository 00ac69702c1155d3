"""STOMP frames are found in what a server says, and what is none is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.stomp_wire import BODY_BYTES_MAX, HEAD_BYTES_MAX, Broken, Frame, frame, frames


def test_a_message_with_a_nul_and_line_ends_in_its_body_is_one_frame() -> None:
    (found,) = frames(b"MESSAGE\nack:1\ncontent-length:7\n\na\0b\n\ncc\0\n")
    assert (found.command, found.body) == (b"MESSAGE", b"a\0b\n\ncc")


def test_headers_are_found_by_their_whole_name_and_the_first_counts() -> None:
    (found,) = frames(b"MESSAGE\nback:no\nack:a\\cb\nack:second\nlast:z\n\n\0")
    assert found.header(b"ack") == b"a\\cb"
    assert found.header(b"last") == b"z"
    assert found.header(b"absent") == b""
    assert found.header(b"acks") == b""


def test_a_frame_without_headers_has_none() -> None:
    assert frames(b"CONNECTED\n\n\0") == [Frame(b"CONNECTED", b"", b"")]


def test_heartbeats_are_nothing_and_several_frames_are_several() -> None:
    assert frames(b"") == []
    assert frames(b"\n") == []
    assert frames(b"\r\n\n") == []
    found = frames(b"\nRECEIPT\nreceipt-id:1\n\n\0\nRECEIPT\nreceipt-id:2\n\n\0\n")
    assert [one.header(b"receipt-id") for one in found] == [b"1", b"2"]


@given(
    st.dictionaries(
        st.from_regex(rb"[a-z-]{1,9}", fullmatch=True).filter(
            lambda name: name != b"content-length"
        ),
        st.from_regex(rb"[a-zA-Z0-9/. ]{0,20}", fullmatch=True),
        max_size=5,
    ),
    st.binary(max_size=50),
)
def test_what_is_framed_is_found_again(headers: dict[bytes, bytes], body: bytes) -> None:
    data = frame(b"SEND", headers, body)
    (found,) = frames(data + b"\n")
    assert found.body == body
    assert {name: found.header(name) for name in headers} == headers
    (again,) = frames(data)
    assert again == found


@pytest.mark.parametrize(
    "header", [{b"a": b"b:c"}, {b"a": b"b\nc"}, {b"a:": b"b"}, {b"a": b"\\"}, {b"a": b"\r"}]
)
def test_a_header_that_would_have_to_be_escaped_is_refused(header: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="to be escaped"):
        frame(b"SEND", header)


def test_a_head_of_the_bound_is_taken_and_a_longer_one_refused() -> None:
    rest = HEAD_BYTES_MAX - len(b"MESSAGE\na:")
    (found,) = frames(b"MESSAGE\na:%b\n\n\0" % (b"x" * rest))
    assert len(found.header(b"a")) == rest
    with pytest.raises(Broken, match="before the body"):
        frames(b"MESSAGE\na:%b\n\n\0" % (b"x" * (rest + 1)))
    with pytest.raises(Broken, match="before the body"):
        frames(b"MESSAGE\na:%b" % (b"x" * (rest + 1)))


def test_a_body_of_the_bound_is_taken_and_a_larger_one_refused() -> None:
    size = BODY_BYTES_MAX
    (found,) = frames(b"MESSAGE\ncontent-length:%d\n\n%b\0" % (size, b"x" * size))
    assert len(found.body) == size
    with pytest.raises(Broken, match="a body of"):
        frames(b"MESSAGE\ncontent-length:%d\n\n%b\0" % (size + 1, b"x" * (size + 1)))


@pytest.mark.parametrize(
    "said",
    [
        b"MESSAGE",
        b"MESSAGE\na:b\n",
        b"MESSAGE\na:b\n\nbody without an end",
        b"MESSAGE\ncontent-length:5\n\nabcd\0",
        b"MESSAGE\ncontent-length:3\n\nabcd\0",
        b"MESSAGE\ncontent-length:4\n\nabcd",
        b"MESSAGE\ncontent-length:-1\n\n\0",
        b"MESSAGE\ncontent-length:four\n\nabcd\0",
    ],
)
def test_a_frame_that_is_cut_off_or_of_another_length_is_refused(said: bytes) -> None:
    with pytest.raises(Broken):
        frames(said)
