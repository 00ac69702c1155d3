"""Reading and writing WebSocket frames, held against websockets' own protocol object."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, SERVER, Protocol

from gateway.wire.frames import CLOSES, TOO_LARGE
from gateway.wire.rfc6455 import (
    CLOSE,
    CONTINUATION,
    PIECE_BYTES,
    PING,
    PONG,
    PORTION_BYTES_MAX,
    TEXT,
    Event,
    MessageReader,
    Portion,
    close_frame,
    control_frame,
    encode_frame,
)
from loadtests.clients.wire import frame as wire_frame

BYTES_MAX = 300


def masked(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A frame of a client, valid or not."""
    size = len(payload)
    head = bytes((fin << 7 | opcode, 0x80 | min(size, 126)))
    mask = b"mask"
    body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + (size.to_bytes(2) if size >= 126 else b"") + mask + body


def events_of(reader: MessageReader, data: bytes) -> list[Event]:
    """What a reader makes of these bytes, whatever comes together."""
    return [(opcode, one) for opcode, messages in reader.receive(data) for one in messages]


def read(*pieces: bytes) -> tuple[list[Event], int | None]:
    """Return what a reader makes of these pieces: events, and the code it breaks with."""
    reader = MessageReader(BYTES_MAX)
    events: list[Event] = []
    for piece in pieces:
        if reader.violation is None and not (events and events[-1][0] == CLOSE):
            events += [event for event in events_of(reader, piece) if event[0] != CONTINUATION]
    return events, reader.violation.code if reader.violation else None


def read_by_the_book(data: bytes, bytes_max: int = BYTES_MAX) -> tuple[list[Event], int | None]:
    """Return what websockets makes of it."""
    protocol = Protocol(SERVER, state=OPEN, max_size=bytes_max)
    protocol.receive_data(data)
    events: list[Event] = []
    opcode, parts = 0, b""
    for frame in protocol.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            opcode = opcode if frame.opcode is Opcode.CONT else frame.opcode
            parts = parts + bytes(frame.data) if frame.opcode is Opcode.CONT else bytes(frame.data)
            if frame.fin:
                events.append((opcode, parts))
        else:
            events.append((frame.opcode, bytes(frame.data)))
    if isinstance(protocol.parser_exc, PayloadTooBig):
        return events, TOO_LARGE.code
    if protocol.parser_exc is not None:
        assert protocol.close_sent is not None
        return events, protocol.close_sent.code
    return events, None


def frames_of_a_client() -> st.SearchStrategy[bytes]:
    """Mostly right, now and then wrong in every byte of the head."""
    right = st.builds(
        masked,
        st.sampled_from([0, 0, 1, 1, 2, 9, 10]),
        st.binary(max_size=125) | st.sampled_from([b"x" * 126, b"y" * 200]),
        st.booleans(),
    )
    closing = st.builds(
        lambda code, reason: masked(8, code.to_bytes(2) + reason),
        st.integers(0, 5100),
        st.sampled_from([b"", b"bye", b"\xff", "ü".encode()]),
    )
    odd = st.builds(
        lambda first, second, rest: bytes((first, second)) + rest,
        st.integers(0, 255),
        st.integers(0, 255),
        st.binary(min_size=12, max_size=400),
    )
    return st.one_of(right, right, right, closing, odd)


@settings(max_examples=1500)
@given(st.lists(frames_of_a_client(), max_size=6), st.lists(st.integers(0, 2000), max_size=6))
def test_reading_agrees_with_websockets_however_it_is_cut(
    sent: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(sent)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(places)]
    events, code = read(*pieces)
    expected, expected_code = read_by_the_book(data)
    if expected_code == 1002 and code is None and events and events[-1][0] == CLOSE:
        # A close in the middle of a fragmented message: websockets refuses it (Autobahn 7.1.5),
        # RFC 6455 does not.
        assert events[:-1] == expected
        return
    assert all(len(payload) <= BYTES_MAX for kind, payload in events if kind != CLOSE)
    if expected_code == TOO_LARGE.code and code is None:
        # websockets counts a control frame's length as part of the message that it interrupts.
        expected, expected_code = read_by_the_book(data, BYTES_MAX + 125)
    if code is not None and expected_code is None:
        # Ours judges a frame by its head, websockets when all of it is there.
        _, expected_code = read_by_the_book(data + bytes(BYTES_MAX + 14))
    if {code, expected_code} == {1002, TOO_LARGE.code}:
        expected_code = code  # wrong in both ways: either may be said first
    assert (events, code) == (expected, expected_code)


@given(st.lists(st.binary(max_size=BYTES_MAX), max_size=5))
def test_messages_survive_byte_by_byte_and_leave_nothing_behind(messages: list[bytes]) -> None:
    reader = MessageReader(BYTES_MAX)
    data = b"".join(masked(TEXT, message) for message in messages)
    events = [event for byte in data for event in events_of(reader, bytes((byte,)))]
    assert events == [(TEXT, message) for message in messages]
    assert reader.is_empty


def test_a_frame_too_large_is_refused_by_its_head() -> None:
    """P9: nothing of it is kept."""
    reader = MessageReader(BYTES_MAX)
    assert list(reader.receive(masked(TEXT, b"x" * (BYTES_MAX + 1))[:4])) == []
    assert reader.violation == TOO_LARGE
    assert reader.is_empty


def test_the_limit_may_change_between_two_messages() -> None:
    reader = MessageReader(10)
    data = masked(TEXT, b"x" * 10) + masked(TEXT, b"y" * 300)
    found = []
    for _, messages in reader.receive(data):
        found += messages
        reader.bytes_max = BYTES_MAX
    assert [len(payload) for payload in found] == [10, 300]


def test_fragments_of_nothing_cost_nothing() -> None:
    """P9."""
    reader = MessageReader(BYTES_MAX)
    list(reader.receive(masked(TEXT, b"{", fin=False)))
    list(reader.receive(masked(0, b"", fin=False) * 10_000))
    assert reader._fragments == bytearray(b"{")


@pytest.mark.parametrize("cut", [PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES, 1000])
def test_a_large_message_survives_its_cuts_in_few_pieces(cut: int) -> None:
    """P9: what is held is as much as came, and no list of small things."""
    reader = MessageReader(2**21)
    payload = bytes(range(256)) * 4000
    data = wire_frame(payload)
    events, came = [], 0
    for place in range(0, len(data), cut):
        events += events_of(reader, data[place : place + cut])
        came += len(data[place : place + cut])
        assert reader.buffered_bytes == (came if came < len(data) else 0)
        assert len(reader._pieces or ()) <= came // PIECE_BYTES
        assert len(reader._buffer or b"") < PIECE_BYTES
    assert events == [(TEXT, payload)]
    assert reader.is_empty


def test_a_fragment_of_which_nothing_is_complete_can_be_counted() -> None:
    reader = MessageReader(BYTES_MAX)
    data = masked(TEXT, b"{", fin=False) + masked(0, b"", fin=False) + masked(0, b"}")
    nothing = (CONTINUATION, b"")
    assert events_of(reader, data) == [nothing, nothing, (TEXT, b"{}")]
    assert events_of(reader, masked(TEXT, b"x")) == [(TEXT, b"x")]


def test_what_is_behind_an_event_is_unread_until_it_is_asked_for() -> None:
    reader = MessageReader(BYTES_MAX)
    one = masked(TEXT, b"x")
    events = reader.receive(one * 3 + one[:4])
    unread = []
    for _ in events:
        unread.append(reader.unread_bytes)
    assert unread == [2 * len(one) + 4, len(one) + 4, 4]
    assert (reader.unread_bytes, reader.buffered_bytes) == (0, 4)


def test_nothing_is_read_behind_a_close() -> None:
    events, code = read(masked(CLOSE, b"\x03\xe8") + masked(TEXT, b"{}"))
    assert (events, code) == ([(CLOSE, b"\x03\xe8")], None)


# --- Portions -----------------------------------------------------------------------------------

PUBLISH = b'{"type":"publish","ref":1}'


def portions(events: list[Event]) -> list[Portion]:
    """What a reader makes of a read that brings these."""
    data = b"".join(masked(opcode, payload) for opcode, payload in events)
    return list(MessageReader(PORTION_BYTES_MAX).receive(data))


def test_publishes_are_read_together_and_everything_else_alone() -> None:
    events = [(TEXT, b"1"), (TEXT, PUBLISH), (TEXT, PUBLISH), (PING, b""), (TEXT, PUBLISH)]
    assert portions(events) == [
        (TEXT, [b"1"]), (TEXT, [PUBLISH, PUBLISH]), (PING, [b""]), (TEXT, [PUBLISH]),
    ]  # fmt: skip


def test_a_publish_in_fragments_is_read_together_with_others() -> None:
    reader = MessageReader(BYTES_MAX)
    half = len(PUBLISH) // 2
    cut = masked(TEXT, PUBLISH[:half], fin=False) + masked(0, PUBLISH[half:])
    whole = masked(TEXT, PUBLISH)
    assert list(reader.receive(cut + whole)) == [
        (CONTINUATION, [b""]), (TEXT, [PUBLISH, PUBLISH]),
    ]  # fmt: skip


def test_what_is_heard_together_is_bounded() -> None:
    """P9: a part of a turn is no longer because of it."""
    half = PUBLISH + b" " * (PORTION_BYTES_MAX // 2 - len(PUBLISH))
    assert portions([(TEXT, half)] * 3) == [(TEXT, [half, half]), (TEXT, [half])]
    less = half[:-1]
    assert portions([(TEXT, less)] * 3) == [(TEXT, [less, less, less])]


def test_what_was_taken_ahead_is_counted_as_long_as_it_waits() -> None:
    """P9: whoever may not go on yet holds it."""
    ahead = masked(TEXT, b"x" * 200)
    reader = MessageReader(BYTES_MAX)
    heard = reader.receive(masked(TEXT, PUBLISH) + ahead)
    assert reader.unread_bytes == 0
    next(heard)
    assert reader.unread_bytes == len(ahead)
    next(heard)
    assert reader.unread_bytes == 0


@pytest.mark.parametrize("end", [[], [(CLOSE, b"")]])
@given(events=st.lists(st.sampled_from([(TEXT, PUBLISH), (TEXT, b"{}"), (PING, b"p")])))
def test_everything_is_read_in_order(events: list[Event], end: list[Event]) -> None:
    """P1, R7."""
    events = events + end
    read = portions(events)
    assert [(opcode, message) for opcode, messages in read for message in messages] == events


def test_what_comes_before_a_broken_rule_is_read() -> None:
    reader = MessageReader(BYTES_MAX)
    data = masked(TEXT, PUBLISH) + b"\x83\x80"
    assert list(reader.receive(data)) == [(TEXT, [PUBLISH])]
    assert reader.violation is not None


# --- Writing ------------------------------------------------------------------------------------


def client_reads(data: bytes) -> list[tuple[int, Any]]:
    client = Protocol(CLIENT, state=OPEN)
    client.receive_data(data)
    assert client.parser_exc is None
    found = client.events_received()
    assert all(isinstance(frame, Frame) and frame.fin for frame in found)
    return [(frame.opcode, bytes(frame.data)) for frame in found if isinstance(frame, Frame)]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_what_is_written_a_client_reads(size: int) -> None:
    assert client_reads(encode_frame(b"x" * size)) == [(TEXT, b"x" * size)]


@pytest.mark.parametrize("opcode", [PING, PONG])
def test_control_frames_are_read(opcode: int) -> None:
    assert client_reads(control_frame(opcode)) == [(opcode, b"")]
    assert client_reads(control_frame(opcode, b"x" * 125)) == [(opcode, b"x" * 125)]


@pytest.mark.parametrize("close", CLOSES, ids=lambda close: str(close.code))
def test_close_frames_say_code_and_reason(close: Any) -> None:
    client = Protocol(CLIENT, state=OPEN)
    client.receive_data(close_frame(close))
    assert client.close_rcvd is not None
    assert (client.close_rcvd.code, client.close_rcvd.reason) == (close.code, close.reason)
