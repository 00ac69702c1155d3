"""STOMP 1.2 frames without a socket: https://stomp.github.io/stomp-specification-1.2.html

Over WebSocket, RabbitMQ sends each frame as a message of its own, followed by a line end.
"""

from typing import Final, NamedTuple

HEAD_BYTES_MAX: Final = 16 << 10
"""The largest size of a frame's command and headers."""
BODY_BYTES_MAX: Final = 1 << 20
_LENGTH: Final = b"content-length"


class Broken(ValueError):
    """Bytes that are no STOMP, or an incomplete frame."""


class Frame(NamedTuple):
    """A frame of a server."""

    command: bytes
    head: bytes
    """The lines of the headers, each with a line end before it, escaped as they came."""
    body: bytes

    def header(self, name: bytes) -> bytes:
        """Return the first header of this name, escaped as it came; empty if there is none."""
        return _header(self.head, name)


def _header(head: bytes, name: bytes) -> bytes:
    place = head.find(b"\n" + name + b":")
    if place < 0:
        return b""
    place += len(name) + 2
    end = head.find(b"\n", place)
    return head[place:] if end < 0 else head[place:end]


def frames(data: bytes) -> list[Frame]:
    """Return the frames in a message, which must end with a frame. Line ends between frames are
    heartbeats.

    Raises:
        Broken: a frame is not complete, or larger than the bounds.
    """
    found: list[Frame] = []
    place, size = 0, len(data)
    while True:
        while place < size and data[place] in b"\r\n":
            place += 1
        if place == size:
            return found
        gap = data.find(b"\n\n", place)
        if (size if gap < 0 else gap) - place > HEAD_BYTES_MAX:
            raise Broken(f"more than {HEAD_BYTES_MAX} bytes before the body of a frame")
        if gap < 0:
            raise Broken(f"a frame that is cut off: {data[place:][:200]!r}")
        line = data.find(b"\n", place)
        head = data[line:gap]
        length, begin = _header(head, _LENGTH), gap + 2
        if length:
            if not length.isdigit() or int(length) > BODY_BYTES_MAX:
                raise Broken(f"a body of {length[:20]!r} bytes")
            end = begin + int(length)
        else:
            end = data.find(b"\0", begin)
        if not begin <= end < size or data[end] != 0:
            raise Broken(f"a body that does not end: {data[begin:][:200]!r}")
        found.append(Frame(data[place:line], head, data[begin:end]))
        place = end + 1


def frame(command: bytes, headers: dict[bytes, bytes], body: bytes = b"") -> bytes:
    """Return a frame; a body gets its length. Headers that need escapes are refused.

    Raises ValueError: a header has a line end, a colon or a backslash.
    """
    for name, value in headers.items():
        if any(mark in text for text in (name, value) for mark in (b"\n", b"\r", b":", b"\\")):
            raise ValueError(f"a header to be escaped: {name!r} {value!r}")
    lines = [command, *(b"%b:%b" % header for header in headers.items())]
    if body:
        lines.append(b"%b:%d" % (_LENGTH, len(body)))
    return b"\n".join([*lines, b"", body]) + b"\0"
