"""Where a request's body ends: by its Content-Length, or by its chunks. Pure.

The parser of `runtime.http11` does this for ordinary requests. Behind the header of a request that
offers another protocol (`Upgrade`) it stops, because what follows may be that protocol. When the
offer is ignored, the body is cut out of the connection here, to the byte (RFC 9110, section 7.8).
The reading is strict: lines end in CRLF, and whatever a proxy might read in another way is refused.
"""

import re
from collections.abc import Iterable
from typing import Final

from push.errors import Refused

CHUNK_LINE_BYTES_MAX: Final = 1024
"""A chunk's size and its extensions, which nobody reads here."""
TRAILER_BYTES_MAX: Final = 8192
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00\r\n]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00\r\n]*")

Headers = Iterable[tuple[bytes, bytes]]
"""Lower-case names and values."""


def check_coding(headers: Headers, http_version: str) -> None:
    """Refuse a transfer coding other than `chunked`. Content in `gzip, chunked` would otherwise be
    taken for what it is only the compressed form of.

    Raises:
        Refused: unsupported_encoding; invalid_request for HTTP/1.0, where the end of such a body
            is not certain (RFC 9112, section 6.1).
    """
    values = [value for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return
    if http_version != "1.1":
        raise Refused("invalid_request", f"HTTP/{http_version} has no Transfer-Encoding")
    codings = b",".join(values).lower()
    if codings.strip(b" \t") != b"chunked":
        shown = codings.decode("ascii", "replace")[:100]
        raise Refused(
            "unsupported_encoding",
            f"Transfer-Encoding: {shown} is not read here; send Content-Length, or chunked alone",
        )


class BodyFraming:
    """The body of one request, whose header is whole and has been checked."""

    def __init__(self, headers: Headers) -> None:
        fields = dict(headers)
        self._is_chunked = b"transfer-encoding" in fields
        self._left = 0 if self._is_chunked else int(fields.get(b"content-length") or 0)
        """Bytes of the body, or of the chunk that is being read, that have not come yet."""
        self._line = b""
        """The beginning of a line whose end has not come yet."""
        self._trailer_bytes = 0
        self._expects = self._chunk_line if self._is_chunked else None
        """Reads the next line; None: no line follows."""

    @property
    def is_complete(self) -> bool:
        """The body has ended; what follows is another request."""
        return not self._left and self._expects is None

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Split what has come into a part of the body and what stands behind the body.

        Raises:
            Refused: invalid_request: these are no chunks. Nothing that follows can be told apart.
        """
        if not self._is_chunked:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
            return part, rest
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                self._left -= len(part)
                at += len(part)
            else:
                at = self._take_line(data, at)
        return b"".join(parts), data[at:]

    def _take_line(self, data: bytes, at: int) -> int:
        """Read a line, or the part of it that is there; return where the next one begins."""
        end = data.find(b"\n", at)
        piece = data[at:] if end < 0 else data[at : end + 1]
        self._line += piece
        if len(self._line) > CHUNK_LINE_BYTES_MAX:
            raise _no_chunks("a line of it is too long")
        if end >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise _no_chunks("a line of it does not end in CRLF")
            assert self._expects is not None
            self._expects(line[:-2])
        return at + len(piece)

    def _chunk_line(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise _no_chunks("a chunk's size is no number")
        self._left = int(match[1], 16)
        self._expects = self._chunk_end if self._left else self._trailer

    def _chunk_end(self, line: bytes) -> None:
        if line:
            raise _no_chunks("a chunk is longer than it says")
        self._expects = self._chunk_line

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self._expects = None
        elif self._trailer_bytes > TRAILER_BYTES_MAX or _TRAILER_LINE.fullmatch(line) is None:
            raise _no_chunks("what stands behind it are no trailers")


def _no_chunks(why: str) -> Refused:
    return Refused("invalid_request", f"the chunked body cannot be read: {why}")
