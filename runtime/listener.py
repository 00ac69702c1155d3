"""Listener: uvicorn as a part of our process instead of its master.

uvicorn's Server expects to own the signals and the process. Here it is one of two (the gateway's
port and the admin socket), which start, close and finish when we say so.

Connections are accepted a few at a time, in turns with all others that begin something. The event
loop's own server accepts all waiting connections whenever it looks. After an interruption of the
network that is a whole fleet, and no other client is served meanwhile. Here they wait in the kernel
(P9).
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from push import limits
from runtime.addresses import NO_PROXIES
from runtime.http1 import http_class
from runtime.loop.fairness import ArrivalGate

AT_ONCE: Final = 4
"""Most connections accepted in one turn; together they are about as much work as a handshake."""
PAUSE_S: Final = 1.0
"""Seconds for which no connection is accepted after no file descriptor, or no memory, was left for
one."""
_SHORT: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_LOG: Final = logging.getLogger("gateway.accepting")


class Accepting:
    """Acceptor of connections on one socket, a few at a time, in place of asyncio's Server, whose
    `close` and `wait_closed` it has."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        arrivals: ArrivalGate,
        tls: dict[str, Any],
    ) -> None:
        """Prepare to accept connections on `bound`, which the caller closes. `tls`: arguments of
        `connect_accepted_socket`, {} without TLS."""
        self._bound = bound
        self._protocol = protocol
        self._arrivals = arrivals
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._is_open = False

    def start(self, backlog: int) -> None:
        """Accept from now on; up to `backlog` connections wait in the kernel. Raises OSError."""
        self._bound.setblocking(False)
        self._bound.listen(backlog)
        self._is_open = True
        self._loop.add_reader(self._bound, self._somebody_waits)

    def close(self) -> None:
        """Accept no more connections, and cut off those that are being opened (a TLS handshake, for
        example). Open ones stay. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._bound)
            for opening in self._opening:
                opening.cancel()

    async def wait_closed(self) -> None:
        """Wait until no accepted connection is being opened any more, because each is open, has
        failed, or was cut off by `close`."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _somebody_waits(self) -> None:
        self._loop.remove_reader(self._bound)
        self._arrivals.begin(self._accept)

    def _accept(self) -> None:
        if not self._is_open:
            return
        for _ in range(AT_ONCE):
            try:
                accepted, _address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                _LOG.error("no connections are accepted for %g s: %s", PAUSE_S, error.strerror)
                self._loop.call_later(PAUSE_S, self._look)
                return
            opening = self._loop.create_task(self._open(accepted))
            self._opening.add(opening)
            opening.add_done_callback(partial(self._ended, accepted))
        self._look()

    def _look(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._bound, self._somebody_waits)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._tls)
        except OSError as error:  # ssl.SSLError among them: it left, or does not speak TLS
            _LOG.debug("a connection could not be opened: %s", error)
            accepted.close()

    def _ended(self, accepted: socket.socket, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        if opening.cancelled():  # before it had begun, perhaps: then nothing of it ran
            accepted.close()


BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75
"""Longer than proxies keep their idle connections (nginx: 60 s). The side that sends requests must
close first, or a request meets a closing socket."""


class StartError(Exception):
    """Error: the start cannot go on. The text is a sentence for people."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. Blocks to resolve a name.

    Raises:
        StartError: the port is taken, forbidden, or the host is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise StartError(
            f"TOCSIN_HOST is {host!r}, which is no address ({error}). Set it to a host name or "
            "address of this machine."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT after a restart
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise StartError(_refusal(host, port, error)) from None
    return listener


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is used by another process. Stop that process, or choose "
            "another port with TOCSIN_PORT or --port (0 for any free one)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this process has. Choose one above 1023."
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"TOCSIN_HOST is {host!r}, which is no address of this machine. Set it to one that is, "
            "or to 0.0.0.0 for all."
        )
    return f"Listening on {host} port {port} failed: {error.strerror or error}."


class Listener(uvicorn.Server):
    """A uvicorn server on a socket that is bound already. With `tls` it speaks TLS only."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        *,
        http: type[asyncio.Protocol] | None = None,
        ws: type[asyncio.Protocol] | None = None,
        tls: ssl.SSLContext | None = None,
        arrivals: ArrivalGate | None = None,
    ) -> None:
        """`http`: another protocol class than that of `runtime.http1`, which all servers of Tocsin
        speak. `arrivals`: the gate that connections share with other arrivals."""
        super().__init__(
            uvicorn.Config(
                app,
                http=http or http_class(NO_PROXIES),
                ws=ws or "none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # runtime.addresses decides which proxies are trusted
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._bound = bound
        self._tls = tls
        self._arrivals = arrivals or ArrivalGate()
        self._accepting: Accepting | None = None
        self._is_accepting = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's hook, because signals are ours."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Replace uvicorn's hook, which would accept a thousand connections at once, and give a TLS
        handshake a minute."""
        await self.lifespan.startup()
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {
                "ssl": self._tls,
                "ssl_handshake_timeout": limits.TLS_HANDSHAKE_TIMEOUT_S,
                "ssl_shutdown_timeout": limits.CLOSE_TIMEOUT_S,
            }
        self.servers = []
        self._accepting = Accepting(self._bound, self._protocol, self._arrivals, tls)
        self._accepting.start(BACKLOG)
        self.started = True
        self._is_accepting.set()

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )  # type: ignore[call-arg]
        return protocol

    async def start(self) -> None:
        """Accept connections. Raises what uvicorn raises when it cannot."""
        self._serving = asyncio.create_task(self.serve(sockets=[self._bound]))
        accepting = asyncio.create_task(self._is_accepting.wait())
        try:
            await asyncio.wait((self._serving, accepting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            accepting.cancel()
        if self._serving.done():
            await self._serving
            raise StartError("The server ended before it began.")

    def close(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._accepting is not None:
            self._accepting.close()
        self._bound.close()

    async def finish(self, timeout_s: float) -> None:
        """Close, let the requests under way be answered for up to about `timeout_s` seconds (whole
        ones, at least 1), then cut off the others. Without `start` before, it only closes."""
        self.close()
        if self._serving is None:
            return
        self.config.timeout_graceful_shutdown = max(1, int(timeout_s))
        self.should_exit = True
        await asyncio.wait((self._serving,))
        if self._accepting is not None:
            await self._accepting.wait_closed()
        if not self._serving.cancelled() and (error := self._serving.exception()) is not None:
            raise error
