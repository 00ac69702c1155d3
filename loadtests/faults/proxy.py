"""A TCP proxy on loopback that disturbs connections on command, one connection or all of them. It
delays, trickles, holds, swallows, cuts, half-opens and refuses. It can block WebSockets while
ordinary HTTP passes.

`Requests` finds where the requests of one connection begin and end, and which of them ask for a
WebSocket.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

HEAD_BYTES_MAX: Final = 64 * 1024
_END: Final = b"\r\n\r\n"
_CONNECTION: Final = frozenset({b"upgrade", b"connection"})


class Requests:
    """A splitter of a client's bytes. It returns the same bytes, cut so that the head of a request
    for an upgrade is a piece of its own. Bytes after such a request, and bytes that are no HTTP,
    pass unchanged."""

    def __init__(self) -> None:
        self._head = b""
        self._body_left = 0
        self._is_raw = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield (bytes, whether they are the whole head of a request for an upgrade); nothing while
        a head is incomplete."""
        while data:
            if self._is_raw:
                yield data, False
                return
            if self._body_left:
                piece, data = data[: self._body_left], data[self._body_left :]
                self._body_left -= len(piece)
                yield piece, False
                continue
            data, self._head = self._head + data, b""
            head, end, rest = data.partition(_END)
            if not end:
                if len(data) <= HEAD_BYTES_MAX:
                    self._head = data
                    return
                self._is_raw = True
                continue
            data = rest
            wants_upgrade = self._begin(head)
            yield head + end, wants_upgrade

    def _begin(self, head: bytes) -> bool:
        """Begin a request, whose head this is. Return whether it asks for a WebSocket."""
        fields = {
            name.strip().lower(): text.strip().lower()
            for name, _, text in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        length = fields.get(b"content-length", b"0")
        self._is_raw = b"upgrade" in fields or b"transfer-encoding" in fields
        self._is_raw = self._is_raw or not length.isdigit()
        self._body_left = 0 if self._is_raw else int(length)
        return fields.get(b"upgrade") == b"websocket"


def without_upgrade(head: bytes) -> bytes:
    """Return a head without its request for an upgrade, as a proxy that knows no WebSocket passes
    it on."""
    lines = head.removesuffix(_END).split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _CONNECTION]
    return b"\r\n".join(kept) + _END


def refusal(status: int) -> bytes:
    """Return the answer of a proxy that refuses a WebSocket."""
    text = {400: "Bad Request", 403: "Forbidden"}.get(status, "Refused")
    return f"HTTP/1.1 {status} {text}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


CHUNK_BYTES: Final = 64 * 1024
LINKS_MAX: Final = 2_000
LINK_S_MAX: Final = 3_600.0
CLOSE_TIMEOUT_S: Final = 5.0
_RESET: Final = struct.pack("ii", 1, 0)

Way = Literal["up", "down"]
"""`up` from the client to the broker, `down` back."""
How = Literal["reset", "fin"]
Flow = Literal["pass", "held", "swallowed"]
Upgrades = Literal["pass", "refuse", "strip", "swallow"]
"""The treatment of requests for a WebSocket: `refuse` with `refusal_status`, `strip` the request
for an upgrade and pass the rest on, or `swallow` without an answer."""


@dataclass(frozen=True)
class Treatment:
    """The treatment of the bytes of one way; by default they pass at once."""

    flow: Flow = "pass"
    """`held`: nothing moves and nothing is lost; the bytes pass when the flow is `pass` again.
    `swallowed`: bytes are read and dropped, so that the sender believes that they arrived. Such a
    connection has a hole, and is reset when the flow of that way changes."""
    delay_s: tuple[float, float] = (0.0, 0.0)
    """Bounds of the delay of each read; the order of reads stays."""
    trickle_bytes: int = 0
    """Number of bytes sent at a time, with `trickle_s` between; 0 for all at once."""
    trickle_s: float = 0.0
    gather_bytes: int = 0
    """A buffering proxy: bytes are kept until this many have come, or `gather_s` have passed; 0 for
    no buffer."""
    gather_s: float = 0.0


PASS: Final = Treatment()
HELD: Final = Treatment(flow="held")
SWALLOWED: Final = Treatment(flow="swallowed")


_NEVER: Final[tuple[int, How]] = (0, "reset")


class Link:
    """A client's connection, and the proxy's connection to the broker for it. Made by the proxy."""

    def __init__(
        self,
        proxy: "Proxy",
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._readers: dict[Way, asyncio.StreamReader] = {"up": client[0], "down": broker[0]}
        self._writers: dict[Way, asyncio.StreamWriter] = {"up": broker[1], "down": client[1]}
        self._treatments = dict(proxy.treatments)
        self._changed = asyncio.Event()
        self._has_hole = False
        self._cut_at: dict[Way, tuple[int, How]] = {}
        self._gone: set[Way] = set()
        """Ways whose bytes are dropped, because the receiver's side has ended, or must not receive
        any more."""
        self._tasks: list[asyncio.Task[None]] = []
        self.is_websocket = False
        """Whether the client asked for a WebSocket and the proxy passed the request."""

    # --- disturbances

    def treat(self, *, up: Treatment = PASS, down: Treatment = PASS) -> None:
        """Change the treatment of both ways from now on; a way that is not given passes. A
        connection with swallowed bytes is reset when the way that was swallowed is treated
        otherwise."""
        flows: dict[Way, Treatment] = {"up": up, "down": down}
        if self._has_hole and any(
            self._treatments[way].flow == "swallowed" != flows[way].flow for way in flows
        ):
            self.cut("reset")
            return
        self._treatments.update(flows)
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self, how: How = "reset") -> None:
        """Cut both sides at once: by an RST, or by a FIN after the bytes that have arrived."""
        for writer in self._writers.values():
            _close(writer, how)
        for task in self._tasks:
            task.cancel()

    def cut_after(self, count: int, *, way: Way = "down", how: How = "reset") -> None:
        """Cut the connection after `count` more bytes of that way, even within a frame."""
        self._cut_at[way] = (count, how)

    def half_open(self, told: Literal["client", "broker"], how: How = "fin") -> None:
        """End the connection of `told` only. The other side's bytes are swallowed and it receives
        nothing more, until it closes or the proxy does."""
        ended: Way = "down" if told == "client" else "up"
        self._gone |= {"up", "down"}
        _close(self._writers[ended], how)

    # --- transfer

    async def run(self) -> None:
        """Carry bytes until the connection ends, for at most LINK_S_MAX."""
        ways: tuple[Way, Way] = ("up", "down")
        self._tasks = [asyncio.create_task(self._carry(way)) for way in ways]
        try:
            await asyncio.wait(self._tasks, timeout=LINK_S_MAX)
        finally:
            self.cut("fin")
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, way: Way) -> None:
        reader, requests = self._readers[way], Requests()
        try:
            while data := await reader.read(CHUNK_BYTES):
                if way == "down" or not self._proxy.is_http:
                    await self._move(way, data)
                    continue
                for piece, wants_upgrade in requests.feed(data):
                    if not wants_upgrade or (allowed := await self._upgrade(piece)) is None:
                        await self._move(way, piece)
                    elif allowed:
                        await self._move(way, allowed)
        except OSError:
            await self._ended(way, "reset")
        else:
            await self._ended(way, "fin")

    async def _ended(self, way: Way, how: How) -> None:
        """Handle the end of a sender's bytes. The receiver learns of it when the way is free."""
        if way in self._gone:
            itself = self._writers["up" if way == "down" else "down"]
            if not itself.is_closing():  # it has closed the side that was left open
                self.cut("fin")
            return
        while self._treatments[way].flow != "pass":
            await self._changed.wait()
        if how == "reset":
            self.cut("reset")
        else:
            with contextlib.suppress(OSError, RuntimeError):  # it has ended already
                self._writers[way].write_eof()

    async def _upgrade(self, head: bytes) -> bytes | None:
        """Return the bytes to pass on in place of this head. None: the head itself; empty: none."""
        proxy = self._proxy
        if proxy.upgrades == "pass":
            self.is_websocket = True
            return None
        proxy.counts[f"upgrade: {proxy.upgrades}"] += 1
        if proxy.upgrades == "strip":
            return without_upgrade(head)
        if proxy.upgrades == "refuse":
            self._writers["down"].write(refusal(proxy.refusal_status))
            self.cut("fin")
        else:
            self._gone |= {"up", "down"}
        return b""

    async def _move(self, way: Way, data: bytes) -> None:
        treatment = self._treatments[way]
        if treatment.gather_bytes:
            data = await self._gather(way, data, treatment)
        longest = treatment.delay_s[1]
        if longest:
            await asyncio.sleep(self._proxy.random.uniform(treatment.delay_s[0], longest))
        while self._treatments[way].flow == "held":
            await self._changed.wait()
        if way in self._gone or self._treatments[way].flow == "swallowed":
            self._has_hole = True
            return
        size = treatment.trickle_bytes or len(data)
        for start in range(0, len(data), size):
            await self._write(way, data[start : start + size])
            if treatment.trickle_s and start + size < len(data):
                await asyncio.sleep(treatment.trickle_s)

    async def _gather(self, way: Way, data: bytes, treatment: Treatment) -> bytes:
        held = bytearray(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(treatment.gather_s):
                while len(held) < treatment.gather_bytes:
                    more = await self._readers[way].read(CHUNK_BYTES)
                    if not more:
                        break
                    held += more
        return bytes(held)

    async def _write(self, way: Way, data: bytes) -> None:
        writer = self._writers[way]
        left, how = self._cut_at.get(way, _NEVER)
        is_last = way in self._cut_at and left <= len(data)
        data = data[:left] if is_last else data
        writer.write(data)
        self._proxy.byte_counts[way] += len(data)
        if way in self._cut_at:
            self._cut_at[way] = (left - len(data), how)
        try:
            await writer.drain()
        except OSError:
            if way not in self._gone:
                raise
        if is_last:
            self.cut(how)


class Proxy:
    """A proxy on a free port of loopback, for the broker on `port`; `async with` opens and closes
    it. With `is_http` False it does not parse what passes."""

    def __init__(
        self, port: int, *, random: Random | None = None, is_http: bool = True,
        links_max: int = LINKS_MAX,
    ) -> None:  # fmt: skip
        self.random = random or Random(0)
        self.is_http = is_http
        self.is_refusing = False
        """Whether the proxy resets new connections at once."""
        self.upgrades: Upgrades = "pass"
        self.refusal_status = 403
        self.treatments: dict[Way, Treatment] = {"up": PASS, "down": PASS}
        """The treatment of new connections."""
        self.counts: Counter[str] = Counter()
        """Numbers, by name, of accepted connections, of refused ones, and of requests for a
        WebSocket that were not passed."""
        self.byte_counts: Counter[Way] = Counter()
        self.on_link: Callable[[Link], None] | None = None
        """Called with each new connection before any bytes pass."""
        self._target = port
        self._links_max = links_max
        self._links: dict[Link, None] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and end all connections. Calling it again does nothing."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self.cut_all("reset")
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSE_TIMEOUT_S)
        await server.wait_closed()

    @property
    def url(self) -> str:
        """The address for clients, while the proxy is open."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def links(self) -> list[Link]:
        """The open connections, oldest first."""
        return list(self._links)

    def treat_all(self, *, up: Treatment = PASS, down: Treatment = PASS) -> None:
        """Treat all open connections, and all new ones."""
        self.treatments = {"up": up, "down": down}
        for link in self.links:
            link.treat(up=up, down=down)

    def cut_all(self, how: How = "reset") -> None:
        """Cut all open connections."""
        for link in self.links:
            link.cut(how)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self.counts["connections"] += 1
        try:
            if self.is_refusing or len(self._links) >= self._links_max or self._server is None:
                self.counts["connections refused"] += 1
                _close(writer, "reset")
                return
            try:
                broker = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                _close(writer, "reset")
                return
            link = Link(self, (reader, writer), broker)
            self._links[link] = None
            try:
                if self.on_link is not None:
                    self.on_link(link)
                await link.run()
            finally:
                del self._links[link]
        except asyncio.CancelledError:
            pass  # the proxy closes: a task that ends cancelled would be reported as a failure
        finally:
            writer.transport.abort()
            self._running.discard(task)


def _close(writer: asyncio.StreamWriter, how: How) -> None:
    """Close one side of a link: by a FIN after its buffered bytes, or by an RST at once."""
    if how == "fin":
        writer.close()
        return
    found = writer.get_extra_info("socket")
    if found is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
