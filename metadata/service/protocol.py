"""The protocol between gateways and nodes of the metadata service: JSON over HTTP, and its client.

Bytes are base64; the values of rows are those of `metadata.row_store`, which no node decodes. The
client keeps connections and has a deadline for each request; its caller interprets the answers.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final, Literal, Protocol
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from metadata.backend import NO_CONDITION, CatalogPlace, Raw, RowCondition, Write
from metadata.catalog import Membership
from metadata.service.shards import Rows

Layout = Literal["whole", "ring", "forward"]
LAYOUTS: Final[tuple[Layout, ...]] = ("whole", "ring", "forward")
"""whole    every node keeps all of the catalog: a gateway may use any of them, behind a balancer
ring     a node keeps its shards, and a gateway finds a shard's holders by the ring
forward  a node keeps its shards, and gets others from their holders when it is asked"""
WAIT_S_MAX: Final = 10.0
BODY_BYTES_MAX: Final = 64 * 1_048_576
"""Bound of a node's answer in bytes; a shard of the largest catalog has a few MiB."""


class NodeInfo(msgspec.Struct, frozen=True):
    """A living node."""

    url: str
    layout: Layout


class ReadRequest(msgspec.Struct, frozen=True):
    """The request for what has changed since this place."""

    seen: CatalogPlace


class ReadAnswer(msgspec.Struct, frozen=True):
    """The answer to a read. `same`: nothing has changed. `rows`: changed rows, as they are at
    `place`. `all`: too much has changed, or nothing was seen yet; the gateway reads every shard,
    and then sends the request again with the lowest of the shards' places."""

    kind: Literal["same", "rows", "all"]
    place: CatalogPlace
    rows: Raw
    secret: bytes


class ShardAnswer(msgspec.Struct, frozen=True):
    """A shard's rows, as they are at `place`."""

    place: CatalogPlace
    rows: Rows
    secret: bytes


class ChangeRequest(msgspec.Struct, frozen=True):
    """The request for `metadata.backend.Database.change`, with its arguments."""

    seen: CatalogPlace
    stamp: str
    writes: tuple[Write, ...]
    row: RowCondition = NO_CONDITION


class Changed(msgspec.Struct, frozen=True):
    """The answer to a change. `changed` is False if another change came first; `fenced`: none did,
    but the row that it depends on is of another generation."""

    changed: bool
    fenced: bool = False


class Taken(msgspec.Struct, frozen=True):
    """The answer of `metadata.backend.Database.is_taken`."""

    taken: bool


class MembershipRequest(msgspec.Struct, frozen=True):
    """The request for `metadata.backend.MembershipRows.change`, with its arguments."""

    new: Membership
    expected_generation: int


class BeatRequest(msgspec.Struct, frozen=True):
    """The request for `metadata.backend.MembershipRows.beat`, with its arguments."""

    gateway: str
    number: int
    forget: dict[str, int]
    says: str = ""


class WatchAnswer(msgspec.Struct, frozen=True):
    """A node's answer to a watch request. `version`: that of the catalog, as the node knows it.
    `members`: (group id, generation) of rows of groups that were changed since the answer whose
    cursor the request has named, or else in the last seconds. `cursor`: what the next request
    names. `nodes`: the living nodes."""

    version: int
    cursor: str
    members: tuple[tuple[str, int], ...]
    nodes: tuple[NodeInfo, ...]


IDLE_S: Final = 30.0
"""Seconds; a connection that was idle for longer is not used again: nodes close theirs after 75
s."""
IDLE_MAX: Final = 8
"""Largest number of idle connections that are kept to one node."""
READ_BYTES: Final = 262_144


class NotSent(Exception):
    """Error: the request did not reach the node; says why."""


class NoAnswer(Exception):
    """Error: the request may have reached the node, and no whole answer came; says why."""


@dataclass(slots=True)
class NodeResponse:
    """A node's answer."""

    status: int = 0
    body: bytes = b""


class NodeTransport(Protocol):
    """Asks nodes. A connection carries one request at a time, and may be kept for later ones."""

    async def ask(
        self, url: str, method: str, target: str, body: bytes | None, *, timeout_s: float
    ) -> NodeResponse:
        """Send one request to the node at `url` (a scheme and an authority), and return its answer.
        Raises NotSent, NoAnswer."""

    async def close(self) -> None:
        """Close idle connections. A connection with a request under way is closed when that
        ends."""


class _ResponseReader:
    """Collects a response from httptools."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0
        self.is_complete = False
        self.is_kept = False
        """Whether the connection may be used again; known at the end of the response only."""
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes."""
        if self._parser is not None:
            self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body. Called by the parser."""
        self.size += len(part)
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Note that the response is complete. Called by the parser."""
        self.is_complete = True
        self.is_kept = self._parser is not None and self._parser.should_keep_alive()

    def finish(self) -> NodeResponse:
        """Return what has been read: the whole response once `is_complete`. Ends the parser."""
        status = self._parser.get_status_code() if self._parser is not None else 0
        self._parser = None  # reader and parser would keep each other alive
        return NodeResponse(status, b"".join(self._parts))


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    def abort(self) -> None:
        """Close it at once."""
        self.writer.transport.abort()


def without_offer(head: bytes) -> bytes:
    """Remove the `Upgrade` lines from an answer's header. A proxy in front of a node may offer
    another protocol in each answer, and the parser would then skip the answer's body."""
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"upgrade:"))


class HttpNodeTransport:
    """`NodeTransport` over TCP and TLS. `token`: the nodes' token, if they need one; `context` for
    TLS."""

    def __init__(
        self, token: str | None, context: ssl.SSLContext | None, *, body_bytes_max: int
    ) -> None:
        self._token = token
        self._context = context
        self._body_bytes_max = body_bytes_max
        self._idle: dict[str, list[_Connection]] = {}
        self._closed = False

    async def ask(
        self, url: str, method: str, target: str, body: bytes | None, *, timeout_s: float
    ) -> NodeResponse:
        parts = urlsplit(url)
        is_sent = False
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._kept(url) or await self._open(parts)
                is_sent = True
                connection.writer.write(self._head(parts, method, target, body) + (body or b""))
                answer, is_kept = await self._answer(connection)
        except TimeoutError:
            self._drop(connection)
            why = f"{url} did not answer within {timeout_s:g} s"
            raise (NoAnswer if is_sent else NotSent)(why) from None
        except (OSError, EOFError, httptools.HttpParserError, ValueError) as error:
            self._drop(connection)
            why = f"{url}: {getattr(error, 'strerror', None) or error or 'the connection was lost'}"
            raise (NoAnswer if is_sent else NotSent)(why) from None
        except BaseException:
            self._drop(connection)
            raise
        self._keep(url, connection, is_kept)
        return answer

    async def _open(self, parts: SplitResult) -> _Connection:
        is_tls = parts.scheme == "https"
        context = (self._context or ssl.create_default_context()) if is_tls else None
        port = parts.port or (443 if is_tls else 80)
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, ssl=context, limit=READ_BYTES
        )
        return _Connection(reader, writer)

    def _head(self, parts: SplitResult, method: str, target: str, body: bytes | None) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode()

    async def _answer(self, connection: _Connection) -> tuple[NodeResponse, bool]:
        """Read the answer; return it, and whether the connection may be used again."""
        response = _ResponseReader()
        try:
            head = await connection.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise ValueError("the answer's header is too large") from None
        response.feed(without_offer(head))
        while not response.is_complete:
            data = await connection.reader.read(READ_BYTES)
            if not data:
                raise EOFError("the connection was closed")
            response.feed(data)
            if response.size > self._body_bytes_max:
                raise ValueError("the answer is too large")
        return response.finish(), response.is_kept

    def _kept(self, url: str) -> _Connection | None:
        idle = self._idle.get(url, [])
        now = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            reader = connection.reader
            has_ended = reader.at_eof() or reader.exception() is not None
            if now - connection.idle_since < IDLE_S and not has_ended:
                return connection
            self._drop(connection)
        return None

    def _keep(self, url: str, connection: _Connection, is_kept: bool) -> None:
        idle = self._idle.setdefault(url, [])
        if not is_kept or self._closed or len(idle) >= IDLE_MAX:
            self._drop(connection)
            return
        connection.idle_since = asyncio.get_running_loop().time()
        idle.append(connection)

    @staticmethod
    def _drop(connection: _Connection | None) -> None:
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            for connection in idle:
                self._drop(connection)
        self._idle.clear()
