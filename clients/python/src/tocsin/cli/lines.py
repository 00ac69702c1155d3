"""Lines of a stream, read with bounded memory, and the messages made of them."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from tocsin.cli.streams import InputFailed
from tocsin.proto.new_message import NewMessage

READ_BYTES: Final = 256 * 1024
LINE_BYTES_MAX: Final = 1_048_576
"""The largest number of bytes of a line, which is the largest body that a queue may be set to
accept (its message_bytes_max; 256 KiB by default). A longer line cannot be a message. It is skipped
without being held."""
BOM: Final = b"\xef\xbb\xbf"
"""The mark that some editors write at the beginning of a UTF-8 file. Not a part of its text."""


class BadLine(ValueError):
    """A line that makes no message; the text says why."""


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the bytes that can be read, without ever blocking the event loop for long.

    A file is read at once, a pipe or a terminal when it has bytes.

    Raises:
        InputFailed: the input cannot be read, for example because it is closed, or a folder.
    """
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if not is_file:
            is_file = not await _readable(descriptor)
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            continue
        except OSError as error:
            raise InputFailed(error) from None
        if not data:
            return
        yield data
        await asyncio.sleep(0)


async def _readable(descriptor: int) -> bool:
    """Wait until the descriptor can be read; False if it cannot be waited for."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _set, ready)
    except (PermissionError, RuntimeError):
        return False  # /dev/null; Windows
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    return True


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class LineSplitter:
    """Lines made of chunks. A line that is too long becomes None, and is not held."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_overlong = False
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that are complete, without their ends."""
        *complete, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for line in complete:
            lines.append(self._end(line))
            self._rest, self._is_overlong = b"", False
        self._rest += rest
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest, self._is_overlong = b"", True
        return lines

    def finish(self) -> list[bytes | None]:
        """Return the last line, if it had no end."""
        lines = [self._end(b"")] if self._rest or self._is_overlong else []
        self._rest, self._is_overlong = b"", False
        return lines

    def _end(self, line: bytes) -> bytes | None:
        line = self._rest + line
        if self._is_overlong or len(line) > LINE_BYTES_MAX:
            self._is_first = False
            return None
        if self._is_first:
            line = line.removeprefix(BOM)
            self._is_first = False
        return line.removesuffix(b"\r")


class Maker:
    """A maker of messages from lines."""

    def __init__(
        self,
        *,
        as_json: bool,
        key: str | None,
        key_field: str | None,
        id_field: str | None,
        headers: dict[str, str] | None,
        ttl_s: float | None,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
    ) -> None:
        self._as_json = as_json
        self._key = key
        self._key_field = key_field
        self._id_field = id_field
        self._headers = headers
        self._ttl_s = ttl_s
        self._deliver_at = deliver_at
        self._delay_s = delay_s

    def make(self, line: bytes | None) -> NewMessage | None:
        """Return a message; None for an empty line in JSON lines.

        Raises:
            BadLine: the line makes no message, and why.
        """
        if line is None:
            raise BadLine(f"longer than 1 MiB ({LINE_BYTES_MAX:,} bytes), which no queue takes")
        if not self._as_json:
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise BadLine(f"not UTF-8 ({error.reason} at byte {error.start})") from None
            return self._message(text, self._key, None)
        if not line.strip():
            return None
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(f"not JSON ({error})") from None
        key, name = self._key, None
        if self._key_field is not None:
            key = _field(value, self._key_field, "key")
        if self._id_field is not None:
            name = _field(value, self._id_field, "id")
        return self._message(msgspec.Raw(line.strip()), key, name)

    def _message(self, body: Any, key: str | None, name: str | None) -> NewMessage:
        return NewMessage(
            body,
            key,
            name,
            self._headers,
            self._ttl_s,
            deliver_at=self._deliver_at,
            delay_s=self._delay_s,
        )


def _field(value: Any, name: str, what: str) -> str:
    if not isinstance(value, dict):
        raise BadLine(f"not an object, so it has no field {name!r} for the {what}")
    found = value.get(name)
    if isinstance(found, str) and found:
        return found
    if isinstance(found, int | float):  # numbers and booleans as JSON writes them
        return msgspec.json.encode(found).decode()
    raise BadLine(f"its field {name!r} holds no {what}: {msgspec.json.encode(found).decode()[:60]}")
