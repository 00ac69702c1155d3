"""The process of `tocsin serve`: how it starts, what it listens to, and how it ends.

start    bind, open the broker, answer the admin socket, accept, freeze the heap
stop     on the first SIGTERM or SIGINT: close the port, send sessions elsewhere, let what is
         under way be settled, write what is left, exit 0, all within `drain_s` (P14)
at once  on the second signal; and with exit code 70 when the storage says that it does not
         know what its file holds (R31): starting anew from the file is the only safe way on
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import uvloop
from starlette.routing import BaseRoute

from gateway.admin import AdminSocket
from gateway.auth import Auth
from gateway.config import Config, describe
from gateway.conversation import Surroundings
from gateway.http11 import Http11Protocol
from gateway.listening import Listener, StartError, bind
from gateway.ports import WholeBroker
from gateway.registry import Registry, drain_sessions
from gateway.rest import Application
from gateway.session import Timing
from gateway.websocket import websocket_class
from push import limits
from push.errors import TocsinError

logger = logging.getLogger("tocsin.server")

EXIT_FATAL: Final = 70
"""EX_SOFTWARE: a supervisor shall start the process anew."""
SWITCH_INTERVAL_S: Final = 0.0005
"""The storage's writer gives the GIL up for each call into SQLite and asks for it back after it;
a busy event loop hands it over only when this interval has passed. With Python's default of 5 ms
a commit of ten statements would wait 50 ms for nothing."""
FILES_KEPT: Final = 256
"""Open files that are not sessions: the store, its WAL, the admin socket, requests, logs."""
FINISH_S: Final = 2.0
"""Of `drain_s`, kept for writing and closing after the sessions have gone."""

OnFatal = Callable[[str], None]
Build = Callable[[Config, OnFatal], WholeBroker]
"""Makes the broker, inside the running loop. What it calls on_fatal with ends the process."""


@dataclass(frozen=True, slots=True)
class Started:
    """What the start line says."""

    url: str
    config: Config


class Server:
    """A broker with its port and its admin socket. For use inside a running event loop."""

    def __init__(
        self,
        config: Config,
        broker: WholeBroker,
        *,
        routes: Sequence[BaseRoute] = (),
        public: Sequence[str] = (),
    ) -> None:
        """`routes` and `public`: further pages, as in gateway.rest.Application."""
        self.config = config
        self.broker = broker
        auth = Auth(config.token, config.origins)
        around = Surroundings(broker, auth, timing=Timing(heartbeat_s=config.heartbeat_s))
        self.registry = Registry(around, sessions_max=_sessions_max())
        self._application = Application(
            broker, auth, origins=config.origins, routes=routes, public=public
        )
        self._listener: Listener | None = None
        self._admin = AdminSocket(config.data_dir, broker)
        self._port = config.port

    @property
    def url(self) -> str:
        """Where it listens; with port 0, once it has started."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Everything open and accepting when this returns. After an error, call `stop`.

        Raises:
            StartError: with a sentence.
            TocsinError: the broker cannot start, and why.
        """
        bound = bind(self.config.host, self.config.port)
        self._port = bound.getsockname()[1]
        self._listener = Listener(
            self._application, bound, http=Http11Protocol, ws=websocket_class(self.registry)
        )
        await self.broker.start()
        # Only now: the broker holds the data folder, so a socket that is there is a dead one's.
        await self._admin.start()
        try:
            await self._listener.start()
        except OSError as error:
            raise StartError(f"Listening on {self.url} failed: {error.strerror}.") from None

    async def drain(self) -> None:
        """Take no more connections, send sessions elsewhere, answer waiting pulls (P14). Returns
        when no session is left, or a little before `drain_s` have passed."""
        if self._listener is not None:
            self._listener.close()
        deadline_s = self.config.drain_s - min(FINISH_S, self.config.drain_s / 2)
        leaving = drain_sessions(self.registry, deadline_s=deadline_s, random=Random())
        try:
            async with asyncio.timeout(deadline_s + 0.5):
                await asyncio.gather(self.broker.drain(), leaving)
        except TimeoutError:
            logger.warning("the drain was not complete within %g s", deadline_s)

    async def stop(self) -> None:
        """Answer what is under way, then write and close everything. Nothing is lost without
        `drain` before it, but clients are only cut off."""
        finishing = [self._admin.stop()]
        if self._listener is not None:
            finishing.append(self._listener.finish(FINISH_S / 2))
        ends = await asyncio.gather(*finishing, return_exceptions=True)
        self.registry.deadlines.close()
        await self.broker.stop()
        for end in ends:
            if isinstance(end, BaseException):
                raise end


def run(
    config: Config,
    build: Build,
    *,
    announce: Callable[[Started], None],
    routes: Sequence[BaseRoute] = (),
    public: Sequence[str] = (),
) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        StartError: with a sentence that says what to do.
    """
    raise_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    def make(on_fatal: OnFatal) -> Server:
        return Server(config, build(config, on_fatal), routes=routes, public=public)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(make, announce))


async def serve(make: Callable[[OnFatal], Server], announce: Callable[[Started], None]) -> int:
    """The life of the process between its first and its last line. See `run`."""
    stopping = asyncio.Event()
    _listen_to_signals(stopping)
    server = make(end_at_once)
    try:
        if await _until(stopping, server.start()):
            return 0
        _settle_heap()
        logger.info("limits in effect: %s", describe(server.config))
        announce(Started(server.url, server.config))
        await stopping.wait()
        logger.info("going down")
        await server.drain()
    except TocsinError as error:
        raise StartError(f"The broker cannot start: {error.detail}.") from error
    finally:
        await server.stop()
    logger.info("everything is written; good-bye")
    return 0


async def _until(stopping: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Run the start to its end, or break it off when a signal comes first (True): a store may
    take minutes to recover, and nobody waits for that to end it."""
    work = asyncio.create_task(starting)
    signal_came = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((work, signal_came), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return False
        work.cancel()
        await asyncio.wait((work,))
        return True
    finally:
        signal_came.cancel()


def _listen_to_signals(stopping: asyncio.Event) -> None:
    def caught(number: int) -> None:
        if stopping.is_set():
            logger.warning("a second signal: ending at once")
            _exit(128 + number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


def end_at_once(reason: str) -> None:
    """R31: end without another write. From any thread."""
    logger.critical("the storage cannot go on: %s; exit %d, start anew", reason, EXIT_FATAL)
    _exit(EXIT_FATAL)


def _exit(code: int) -> None:
    # Not sys.exit: that would run the orderly end, which writes.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one: every session is one. Returns what holds
    then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a container may forbid even that
            return soft
    return hard


def _sessions_max() -> int:
    """A session that the process has no file for would not be refused but left waiting."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.SESSIONS_MAX
    return max(1, min(limits.SESSIONS_MAX, files - FILES_KEPT))


def _settle_heap() -> None:
    """What is loaded by now stays: code, the catalog, the ring. Frozen, the collector's oldest
    generation no longer walks it, which takes it from tens of milliseconds to few."""
    gc.collect()
    gc.freeze()
