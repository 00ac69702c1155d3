"""The protocol of a NATS server, without a socket:
https://docs.nats.io/reference/reference-protocols

The protocol is a stream of lines and payloads, the same over TCP and over WebSocket. A WebSocket
message may end anywhere in it.
"""

from typing import Final, NamedTuple

LINE_BYTES_MAX: Final = 64 << 10
"""The longest line without its end; INFO is the longest in practice."""
PAYLOAD_BYTES_MAX: Final = 1 << 20
"""A server's default `max_payload`."""
_END: Final = b"\r\n"


class Broken(ValueError):
    """Bytes that no NATS server sends, or that cannot be parsed."""


class Message(NamedTuple):
    """A MSG or HMSG."""

    sid: bytes
    """The client's number of the subscription."""
    subject: bytes
    reply: bytes
    """The subject for an answer; empty if none is wanted."""
    payload: bytes
    """The payload without headers."""


class Parser:
    """A parser that takes bytes as they arrive and returns messages. It keeps other lines in
    `lines`."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """INFO, PING, PONG, +OK and -ERR, as they came; the reader of this list clears it."""
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that these bytes complete, in order. Raises Broken."""
        if self._rest:
            data = self._rest + data
        place, size = 0, len(data)
        found: list[Message] = []
        while place < size:
            end = data.find(_END, place)
            if (size if end < 0 else end) - place > LINE_BYTES_MAX:
                raise Broken(f"a line of more than {LINE_BYTES_MAX} bytes")
            if end < 0:
                break
            if data.startswith((b"MSG ", b"HMSG "), place):
                words = data[place:end].split()
                reply, headers, total = _opened(words)
                begin = end + 2
                if size < begin + total + 2:
                    break
                place = begin + total + 2
                if data[place - 2 : place] != _END:
                    raise Broken(f"{total} bytes of payload do not end with their line")
                payload = data[begin + headers : begin + total]
                found.append(Message(words[2], words[1], reply, payload))
            else:
                self.lines.append(data[place:end])
                place = end + 2
        self._rest = data[place:]
        return found


def _opened(words: list[bytes]) -> tuple[bytes, int, int]:
    """Return (reply, bytes of headers, bytes of all) of `MSG subject sid [reply] all` and `HMSG
    subject sid [reply] headers all`."""
    numbers = words[-2:] if words[0] == b"HMSG" else words[-1:]
    named = len(words) - len(numbers)
    if named not in (3, 4) or not all(map(bytes.isdigit, numbers)):
        raise Broken(f"a message that begins with {b' '.join(words)[:200]!r}")
    total = int(numbers[-1])
    headers = int(numbers[0]) if len(numbers) == 2 else 0
    if total > PAYLOAD_BYTES_MAX or headers > total:
        raise Broken(f"a payload of {total} bytes, {headers} of them headers")
    return words[3] if named == 4 else b"", headers, total


def published(subject: bytes, reply: bytes, size: int) -> bytes:
    """Return the PUB line before a payload of `size` bytes; CRLF follows the payload."""
    if reply:
        return b"PUB %b %b %d\r\n" % (subject, reply, size)
    return b"PUB %b %d\r\n" % (subject, size)


def attempts(reply: bytes) -> int:
    """Return how often JetStream has delivered the message with this acknowledgement subject, this
    time included. Its form is `$JS.ACK.stream.consumer.deliveries.…`; newer servers have a domain
    and an account before the stream. Raises Broken if it is no such subject."""
    words = reply.split(b".")
    if words[:2] != [b"$JS", b"ACK"] or len(words) < 9:
        raise Broken(f"{reply[:200]!r} is no subject for acknowledgements")
    deliveries = words[4 if len(words) == 9 else 6]
    if not deliveries.isdigit():
        raise Broken(f"{reply[:200]!r} does not say how often")
    return int(deliveries)
