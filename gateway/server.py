"""The process of `tocsin serve`: its start, its listeners, and its end.

start    bind, open the broker, answer the admin socket, accept, freeze the heap
stop     on the first SIGTERM or SIGINT: be not ready for `drain_notice_s`, so that balancers
         notice; then close the port, send sessions elsewhere, let work under way be settled, write
         the rest, exit 0, all within `drain_s` (P14)
at once  on the second signal; and with exit code 70 when the storage or the catalog says that it
         can no longer be trusted (R31), because only a new start is safe then
"""

import asyncio
import logging
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from socket import socket
from typing import TYPE_CHECKING, Final, NamedTuple

import uvloop

from gateway.accounting.audit import BROKER
from gateway.accounting.writer import AccountingWriter
from gateway.admin.server import AdminSocket, token_routes
from gateway.auth.auth import Authenticator
from gateway.auth.jwt import JwksSource, JwtKeys, JwtTerms, JwtVerifier, KeysError
from gateway.broker import Broker
from gateway.config import Config, describe
from gateway.counters import FunctionHitRate, HitRateSource
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.net.websocket import websocket_class
from gateway.rest.app import Application
from gateway.rest.pages import NO_PAGES, Pages
from gateway.session.directory import SessionServices
from gateway.wire.protocol import Timing
from metadata.port import Metadata
from metadata.tokens import TokenRecord, rights_of
from push import limits
from push.errors import TocsinError
from runtime import process as supervisor
from runtime.addresses import Addresses, parse_networks
from runtime.http1 import http_class
from runtime.listener import Listener, StartError, bind
from runtime.metrics.exposition import MetricsServer, Samples
from runtime.process import (
    Collector,
    end_at_once,
    listen_to_signals,
    opened_unless,
    raise_files_limit,
)
from runtime.tls import Tls

if TYPE_CHECKING:
    from runtime.trace_context import OtelTracer

logger = logging.getLogger("tocsin.server")

SWITCH_INTERVAL_S: Final = 0.0005
"""Seconds after which Python takes the GIL from a busy thread that another one waits for. The
storage's writer releases the GIL for each call into SQLite and needs it back after the call. With
Python's default of 5 ms, a commit of ten statements would wait 50 ms for a busy event loop."""
FILES_KEPT: Final = 256
"""Number of open files that are kept free of sessions, for the store, its WAL, the admin socket,
requests, logs."""
FINISH_S: Final = 2.0
"""Seconds of `drain_s`, at most half of it, that are kept for writing and closing after the
sessions have gone."""

OnFatal = Callable[[str], None]
Build = Callable[[Config, OnFatal], Awaitable[Broker]]
"""Callback that opens the broker. A call of the OnFatal that it is given ends the process."""


class Server:
    """A broker with its port and its admin socket, inside a running event loop; `open` makes it."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        bound: socket,
        pages: Pages,
        *,
        accounting: AccountingWriter,
        tls: Tls | None = None,
        tracer: "OtelTracer | None" = None,
    ) -> None:
        self._tracer = tracer
        self.config = config
        self.accounting = accounting
        self.tls = tls
        self._watching: asyncio.Task[None] | None = None
        self.broker = broker
        self.credentials = credentials_of(config, broker.metadata)
        auth = self.credentials.auth
        # As in docs/protocol.md: a ping after `heartbeat_s`, and the end after as long again.
        timing = Timing(heartbeat_s=config.heartbeat_s, heartbeat_timeout_s=config.heartbeat_s)
        services = SessionServices(
            broker, auth, timing=timing, accounting=accounting, limiter=broker.limiter
        )
        addresses = Addresses(
            parse_networks(",".join(config.trusted_proxies)) if config.trusted_proxies else (),
            certificate_header=config.client_certificate_header,
            is_plain_allowed=config.plain or config.is_loopback,
        )
        self.connections = Connections(services, sessions_max=_sessions_max(), addresses=addresses)
        broker.hit_rates["framed_messages"] = self.connections.frame_hits
        broker.hit_rates |= self.credentials.hit_rates
        broker.audit = accounting.audit
        application = Application(
            broker,
            auth,
            LongPolls(self.connections),
            origins=config.origins,
            routes=pages.routes,
            public=pages.public,
            incoming=self.connections.incoming,
            accounting=accounting,
            limiter=broker.limiter,
            tracer=tracer,
        )
        broker.metrics.add_part(self._measure)
        self._port: int = bound.getsockname()[1]
        routes = token_routes(broker.metadata.tokens, auth, time.time, accounting.audit)
        self._scraped: MetricsServer | None = None
        self._admin = AdminSocket(config.data_dir, broker, routes, accounting, url=self.url)
        self._listener = Listener(
            application,
            bound,
            http=http_class(addresses, self.connections.large_reads, services.arrivals),
            ws=websocket_class(self.connections),
            tls=tls.context if tls is not None else None,
            arrivals=services.arrivals,
        )

    @classmethod
    async def open(
        cls,
        config: Config,
        build: Build,
        *,
        on_fatal: OnFatal,
        pages: Pages = NO_PAGES,
    ) -> "Server":
        """Open everything; it accepts when this returns, and nothing is open when this raises.

        Raises:
            StartError: a sentence that says what to do.
        """
        # First, so that errors of files and ports are known at once.
        tls = Tls.of(config.tls_cert, config.tls_key, config.tls_client_ca)
        tracer = _tracer_of(config)
        bound = bind(config.host, config.port)
        try:
            broker = await build(config, on_fatal)
        except TocsinError as error:
            bound.close()
            raise StartError(f"The broker cannot start: {error.detail.rstrip('.')}.") from error
        except OSError as error:
            bound.close()
            raise StartError(f"The data folder {config.data_dir} fails: {error}.") from error
        except BaseException:
            bound.close()
            raise
        try:
            # The broker holds the data folder, so open lines there are of a dead process.
            accounting = await asyncio.to_thread(_open_accounting, config)
        except OSError as error:
            bound.close()
            await broker.stop()
            raise StartError(f"The audit trail in {config.data_dir} fails: {error}.") from error
        server = cls(config, broker, bound, pages, accounting=accounting, tls=tls, tracer=tracer)
        try:
            server._scraped = _scraped_of(config, broker)
            await server._admin.start()
            await server.credentials.start()
            await server._listener.start()
            if server._scraped is not None:
                await server._scraped.start()
            if tls is not None:
                server._watching = asyncio.create_task(tls.watch())
            accounting.start()
            broker.metrics.start()
            accounting.audit.note("broker.start", BROKER, details=describe(config))
        except BaseException as error:
            await server.stop()
            if isinstance(error, KeysError):
                raise StartError(f"The keys for JWTs cannot be used: {error}.") from error
            if isinstance(error, OSError):
                raise StartError(f"The server cannot start: {error}.") from error
            raise
        return server

    def _measure(self, samples: Samples) -> None:
        samples.put("tocsin_sessions", len(self.connections), "connected")
        samples.put("tocsin_sessions", len(self.connections.services.sessions), "lingering")
        samples.put("tocsin_sessions_max", _sessions_max())
        for code, count in sorted(self.accounting.usage.refusals().items()):
            samples.put("tocsin_refusals_total", count, code)

    @property
    def url(self) -> str:
        """URL at which the server listens, with the real port if the setting is 0."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{host}:{self._port}"

    # enforces: P14
    async def drain(self) -> None:
        """Be not ready for `drain_notice_s`; then accept no more connections, send sessions
        elsewhere, answer waiting pulls (P14). Returns when no session is left, or a little before
        another `drain_s` have passed."""
        self.broker.leave()
        # A connection that the kernel has accepted and we have not would be reset with the port, so
        # balancers must have stopped sending clients before.
        await asyncio.sleep(self.config.drain_notice_s)
        self._listener.close()
        deadline_s = self.config.drain_s - min(FINISH_S, self.config.drain_s / 2)
        leaving = self.connections.drain(deadline_s=deadline_s, random=Random())
        try:
            async with asyncio.timeout(deadline_s + 0.5):
                await asyncio.gather(self.broker.drain(), leaving)
        except TimeoutError:
            logger.warning("the drain was not complete within %g s", deadline_s)

    async def stop(self) -> None:
        """Answer requests under way, then write and close everything. Without a `drain` before,
        nothing is lost either, but clients are cut off."""
        if self._watching is not None:
            self._watching.cancel()
        await self.credentials.stop()
        if self._scraped is not None:
            await self._scraped.stop()
        ends = await asyncio.gather(
            self._admin.stop(), self._listener.finish(FINISH_S / 2), return_exceptions=True
        )
        self.connections.deadlines.close()
        await self.broker.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        self.accounting.audit.note("broker.stop", BROKER)
        await self.accounting.stop()
        for end in ends:
            if isinstance(end, BaseException):
                raise end


def _tracer_of(config: Config) -> "OtelTracer | None":
    """Make the tracer; None if the settings want none, and OpenTelemetry is not even imported.
    Raises StartError."""
    if not config.otel:
        return None
    from runtime.trace_context import OtelMissing, OtelTracer

    try:
        return OtelTracer()
    except OtelMissing as error:
        raise StartError(str(error)) from None


def _scraped_of(config: Config, broker: Broker) -> MetricsServer | None:
    """Open the port for metrics alone; None if the settings want none. Raises StartError."""
    if config.metrics_port is None:
        return None
    return MetricsServer(
        config.metrics_host, config.metrics_port, broker.metrics.collect, config.metrics_token
    )


class JwtIssuer(NamedTuple):
    """An issuer whose JWTs are good here, and the claims that they must have."""

    keys: str
    """Place at which the issuer's keys are read: a path or an https address."""
    algorithms: tuple[str, ...]
    refresh_s: float
    """Seconds after which the keys at an https address are read again."""
    terms: JwtTerms


class Credentials:
    """The authentication of a gateway. It is made inside the event loop before the port is opened.
    Call `start` before a client is let in."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        token: str | None,
        origins: Sequence[str],
        is_required: bool,
        issuer: JwtIssuer | None,
    ) -> None:
        """Make the `Authenticator` from `token`, `origins` and `is_required`. Without an `issuer`
        no JWT is good."""
        self.jwts: JwtVerifier | None = None
        self._source: JwksSource | None = None
        if issuer is not None:
            self._source = JwksSource(
                issuer.keys, issuer.algorithms, self._put_keys, refresh_s=issuer.refresh_s
            )
            self.jwts = JwtVerifier(issuer.terms, self._source.want)
        self.auth = Authenticator(
            token,
            origins,
            is_required=is_required,
            tokens=metadata.tokens,
            jwts=self.jwts,
            secret=metadata.secret("access"),
        )
        metadata.tokens.on_revoked(self._on_token_revoked)

    def _on_token_revoked(self, record: TokenRecord) -> None:
        self.auth.on_token_revoked(record)
        self.auth.on_credential_ended(record.credential)

    @property
    def hit_rates(self) -> dict[str, HitRateSource]:
        """Hit rates of JWTs and rights that are remembered, by name."""
        of_jwts = self.jwts.hit_rates if self.jwts is not None else {}
        return {"rights_of_tokens": FunctionHitRate(rights_of), **of_jwts}

    def _put_keys(self, keys: JwtKeys) -> None:
        if self.jwts is not None:
            for credential in self.jwts.put_keys(keys):
                self.auth.on_credential_ended(credential)

    async def start(self) -> None:
        """Read the issuer's keys, and keep them fresh. Without an issuer nothing happens.

        Raises:
            KeysError: the file has no key that counts, or cannot be read.
        """
        if self._source is not None:
            await self._source.start()

    async def stop(self) -> None:
        """Stop reading the keys."""
        if self._source is not None:
            await self._source.stop()


def credentials_of(config: Config, metadata: Metadata) -> Credentials:
    """Make the credentials that the settings and the catalog admit."""
    issuer = None
    if config.jwt_keys is not None and config.jwt_audience is not None:
        terms = JwtTerms(
            config.jwt_audience,
            config.jwt_issuer,
            config.jwt_rights,
            config.jwt_rights_claim,
            config.jwt_tenant_claim,
        )
        issuer = JwtIssuer(config.jwt_keys, config.jwt_algorithms, config.jwt_refresh_s, terms)
    return Credentials(
        metadata,
        token=config.token,
        origins=config.origins,
        is_required=config.needs_credentials,
        issuer=issuer,
    )


def _open_accounting(config: Config) -> AccountingWriter:
    return AccountingWriter.open(
        config.data_dir,
        is_usage_on=config.usage,
        usage_bytes_max=config.usage_bytes_max,
        audit_bytes_max=config.audit_bytes_max,
    )


def run(
    config: Config,
    build: Build,
    *,
    announce: Callable[[Server], None],
    pages: Pages = NO_PAGES,
) -> int:
    """Run the whole life of the process until a signal; return the exit code. `announce` is called
    when the server accepts.

    Raises:
        StartError: a sentence that says what to do.
    """
    raise_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, build, announce, pages))
    return 0


async def _serve(
    config: Config, build: Build, announce: Callable[[Server], None], pages: Pages
) -> None:
    stopping = asyncio.Event()
    listen_to_signals(stopping)
    opening = Server.open(config, build, on_fatal=end_at_once, pages=pages)
    server, collector = await opened_unless(stopping, opening), Collector()
    if server is None:
        return
    try:
        if server.tls is not None:
            _reload_on_hangup(server.tls)
        collector.start()
        effective = describe(config).items()
        logger.info("in effect: %s", ", ".join(f"{name}={value}" for name, value in effective))
        announce(server)
        supervisor.tell("READY=1")
        await stopping.wait()
        logger.info("going down")
        supervisor.tell("STOPPING=1")
        await server.drain()
    finally:
        await server.stop()
        collector.stop()
    logger.info("everything is written; good-bye")


def _reload_on_hangup(tls: Tls) -> None:
    """Use the certificate's files anew on SIGHUP. Without TLS that signal ends the process, as is
    usual."""
    loading: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly

    def caught() -> None:
        task = asyncio.create_task(tls.reload())
        loading.add(task)
        task.add_done_callback(loading.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, caught)


def _sessions_max() -> int:
    """Return the largest number of sessions: SESSIONS_MAX, or fewer if fewer files may be open. A
    session without a free file would not be refused but left waiting."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.SESSIONS_MAX
    return max(1, min(limits.SESSIONS_MAX, files - FILES_KEPT))
