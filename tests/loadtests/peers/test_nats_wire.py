"""What a NATS server says is understood however it is cut, and what is none is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.nats_wire import (
    LINE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    Broken,
    Message,
    Parser,
    attempts,
    published,
)

SAID = (
    b'INFO {"server_name":"bench","version":"2.9.10"}\r\n'
    b"PING\r\n"
    b"MSG q.3.k0007 13 $JS.ACK.q.p3.1.5.4.1700.0 5\r\nhello\r\n"
    b"MSG _INBOX.a.p 1 0\r\n\r\n"
    b"+OK\r\n"
    b"HMSG q.3.k 13 12 17\r\nNATS/1.0\r\n\r\nhello\r\n"
    b"HMSG q.3.k 13 back 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    b"MSG q 13 4\r\na\r\nb\r\n"
    b"-ERR 'Unknown Protocol Operation'\r\n"
)
MESSAGES = [
    Message(b"13", b"q.3.k0007", b"$JS.ACK.q.p3.1.5.4.1700.0", b"hello"),
    Message(b"1", b"_INBOX.a.p", b"", b""),
    Message(b"13", b"q.3.k", b"", b"hello"),
    Message(b"13", b"q.3.k", b"back", b""),
    Message(b"13", b"q", b"", b"a\r\nb"),
]
LINES = [
    b'INFO {"server_name":"bench","version":"2.9.10"}',
    b"PING",
    b"+OK",
    b"-ERR 'Unknown Protocol Operation'",
]


@given(st.lists(st.integers(0, len(SAID)), max_size=20))
def test_wherever_the_stream_is_cut_the_same_is_understood(cuts: list[int]) -> None:
    parser, found = Parser(), []
    edges = [0, *sorted(cuts), len(SAID)]
    for begin, end in itertools.pairwise(edges):
        found += parser.feed(SAID[begin:end])
    assert found == MESSAGES
    assert parser.lines == LINES


def test_a_line_of_the_bound_is_taken_and_a_longer_one_refused() -> None:
    parser = Parser()
    parser.feed(b"x" * LINE_BYTES_MAX)
    parser.feed(b"\r\n")
    assert [len(line) for line in parser.lines] == [LINE_BYTES_MAX]
    with pytest.raises(Broken, match="a line of more than"):
        Parser().feed(b"x" * (LINE_BYTES_MAX + 1) + b"\r\n")
    with pytest.raises(Broken, match="a line of more than"):
        Parser().feed(b"x" * (LINE_BYTES_MAX + 1))  # it does not even end


def test_a_payload_of_the_bound_is_taken_and_a_larger_one_refused_before_it_comes() -> None:
    size = PAYLOAD_BYTES_MAX
    (message,) = Parser().feed(b"MSG q 1 %d\r\n%b\r\n" % (size, bytes(size)))
    assert len(message.payload) == size
    with pytest.raises(Broken, match="a payload of"):
        Parser().feed(b"MSG q 1 %d\r\n" % (size + 1))


@pytest.mark.parametrize(
    "said",
    [
        b"MSG q 1\r\n",
        b"MSG q 1 back more 1\r\na\r\n",
        b"MSG q 1 one\r\na\r\n",
        b"MSG q 1 -1\r\n\r\n",
        b"HMSG q 1 1\r\na\r\n",
        b"HMSG q 1 x 1\r\na\r\n",
        b"HMSG q 1 back more 1 1\r\na\r\n",
    ],
)
def test_a_message_of_no_known_form_is_refused(said: bytes) -> None:
    with pytest.raises(Broken, match="a message that begins with"):
        Parser().feed(said)


def test_headers_may_be_all_of_a_payload_and_not_more() -> None:
    (message,) = Parser().feed(b"HMSG q 1 3 3\r\nabc\r\n")
    assert message.payload == b""
    with pytest.raises(Broken, match="4 of them headers"):
        Parser().feed(b"HMSG q 1 4 3\r\nabc\r\n")


def test_a_payload_of_another_length_than_was_said_is_refused() -> None:
    with pytest.raises(Broken, match="do not end"):
        Parser().feed(b"MSG q 1 3\r\nabcd\r\n")


@pytest.mark.parametrize(
    ("reply", "times"),
    [
        (b"$JS.ACK.q.p3.1.5.4.1700.0", 1),
        (b"$JS.ACK.q.p3.12.5.4.1700.0", 12),
        (b"$JS.ACK._.hash.q.p3.2.5.4.1700.0", 2),
        (b"$JS.ACK._.hash.q.p3.3.5.4.1700.0.token", 3),
    ],
)
def test_a_place_for_acknowledgements_says_how_often(reply: bytes, times: int) -> None:
    assert attempts(reply) == times


@pytest.mark.parametrize(
    "reply", [b"", b"_INBOX.a.b", b"$JS.ACK.q.p3.1.5.4.1700", b"$JS.ACK.q.p3.one.5.4.1700.0"]
)
def test_another_place_is_refused(reply: bytes) -> None:
    with pytest.raises(Broken):
        attempts(reply)


def test_what_is_published_is_understood_as_a_server_would() -> None:
    assert published(b"to.q.k", b"back", 3) == b"PUB to.q.k back 3\r\n"
    assert published(b"to.q", b"", 0) == b"PUB to.q 0\r\n"
