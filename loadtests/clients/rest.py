"""A small keep-alive HTTP/1.1 client, for load and for logs; it returns the raw bytes."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

REQUEST_TIMEOUT_S = 60.0


class Rest:
    """A connection to the broker's HTTP interface, opened on first use and reopened on the next use
    after it broke. It carries one request at a time."""

    def __init__(
        self, url: str, token: str | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        place = urlsplit(url)
        self._host, self._port, self._netloc = place.hostname or "", place.port or 80, place.netloc
        self.token = token
        """The token sent with each request; None for no token."""
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request and return (status, body).

        Raises:
            OSError, EOFError or TimeoutError: no answer came; the request may have been done.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(self._host, self._port)
                return await self._exchange(*self._streams, method, path, body)
        except BaseException:
            self.close()
            raise

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes | None,
    ) -> tuple[int, bytes]:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._netloc}"]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {
            name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head)
        }
        if fields.get("transfer-encoding", "").lower() == "chunked":
            answer = await _chunks(reader)
        else:
            answer = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return int(head[0].split(" ")[1]), answer

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request with JSON on both sides. Raises RuntimeError with the broker's own words
        for a status of 400 or above, and the errors of `request`."""
        data = None if body is None else json.dumps(body).encode()
        status, answer = await self.request(method, path, data)
        if status >= 400:
            text = answer.decode(errors="replace")
            raise RuntimeError(f"{method} {path} was answered {status}: {text}")
        return json.loads(answer) if answer else None

    def close(self) -> None:
        """Close; the next request opens a new connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
