"""The process of `tocsin metadata serve`: one node of the metadata service.

start    bind, open the database, read the catalog, accept, then announce the node
stop     on SIGTERM or SIGINT: announce the end, go on answering for LEAVE_S, then close, exit 0
at once  on the second signal; and with exit code 70 when the catalog is no longer the one that
         was read, or the outcome of a commit is unknown: starting anew is the only safe way on
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname, socket
from typing import Final

import uvloop

from gateway.config import Config
from gateway.settings import SQLITE
from gateway.stores.clusters import (
    check_shards,
    examine_all,
    explain_doubts,
    open_shard,
    touches_of,
)
from gateway.stores.marks import ClusterMark, MarkKeeper, read_store_mark
from gateway.stores.open import node_client
from metadata.backend import NodeDatabase
from metadata.redis.database import RedisDatabase
from metadata.service.node import Node, Shards
from metadata.service.protocol import Layout
from metadata.sqlite.database import FILE, SqliteDatabase
from push.errors import TocsinError
from runtime import process as supervisor
from runtime.listener import Listener, StartError, bind
from runtime.process import end_at_once, listen_to_signals, opened_unless, raise_files_limit
from runtime.tls import Tls
from services.metadata_node.routes import NodeMetrics, application
from storage.redis import target as redis_target
from storage.sqlite.open import lock_store

LOCK: Final = "metadata"
"""Name of the lock of a data folder, which belongs to one node; `metadata.lock` in it names the
process."""
LEAVE_S: Final = 1.5
"""Seconds for which a node still answers after the signal to end; balancers and gateways look this
often for other nodes."""
FINISH_S: Final = 1.0
logger = logging.getLogger("tocsin.metadata")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one node. `config` has those that a gateway has, too: the data folder, the
    storage that is its database, TLS, the service's token."""

    config: Config
    host: str
    port: int
    layout: Layout
    advertise: str | None = None
    """URL at which gateways and other nodes reach it; None: made of `host` and the port, with the
    machine's name if `host` means all addresses."""
    metrics_token: str | None = None
    """Token that allows scraping its metrics, and nothing else."""


class NodeServer:
    """A node with its port, inside a running event loop; `open` makes it."""

    def __init__(
        self, node: Node, listener: Listener, rest: AsyncExitStack, tls: Tls | None
    ) -> None:
        self.node = node
        self._listener = listener
        self._rest = rest
        self._watch_task = asyncio.create_task(tls.watch()) if tls is not None else None

    @classmethod
    async def open(cls, settings: NodeSettings, *, on_fatal: Callable[[str], None]) -> "NodeServer":
        """Open a node, which accepts requests when this returns. Raises StartError with a sentence
        that says what to do."""
        config = settings.config
        tls = Tls.of(config.tls_cert, config.tls_key, config.tls_client_ca)
        bound = bind(settings.host, settings.port)
        async with AsyncExitStack() as opened:
            opened.callback(bound.close)
            url = settings.advertise or _url(settings, bound, is_tls=tls is not None)
            try:
                database = await open_database(settings.config, opened, on_fatal)
                node = await Node.open(database, url, settings.layout, on_fatal=on_fatal)
                opened.push_async_callback(node.close)
                peers = node_client(settings.config, (url,))
                opened.push_async_callback(peers.close)
            except TocsinError as error:
                why = error.detail.rstrip(".")
                raise StartError(f"The metadata service cannot start: {why}.") from error
            except OSError as error:
                folder = settings.config.data_dir
                raise StartError(f"The data folder {folder} cannot be used: {error}.") from error
            metrics = NodeMetrics(node)
            metrics.lag.start()
            opened.callback(metrics.lag.stop)
            listener = Listener(
                application(
                    node,
                    Shards(node, peers),
                    settings.config.metadata_token,
                    metrics,
                    settings.metrics_token,
                ),
                bound,
                tls=tls.context if tls is not None else None,
            )
            await listener.start()
            return cls(node, listener, opened.pop_all(), tls)

    async def stop(self) -> None:
        """Refuse watch requests for LEAVE_S, so that clients go to other nodes, then close."""
        self.node.is_leaving = True
        await asyncio.sleep(LEAVE_S)
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self._listener.finish(FINISH_S)
        await self._rest.aclose()


def _url(settings: NodeSettings, bound: socket, *, is_tls: bool) -> str:
    host = settings.host
    if host in ("0.0.0.0", "::"):
        host = gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{bound.getsockname()[1]}"


async def open_database(
    config: Config, opened: AsyncExitStack, on_fatal: Callable[[str], None]
) -> NodeDatabase:
    """Open the database that the settings name; `opened` closes it. Raises TocsinError, OSError."""
    data_dir = config.data_dir
    await asyncio.to_thread(data_dir.mkdir, 0o700, parents=True, exist_ok=True)
    if config.storage == SQLITE:
        file = await SqliteDatabase.open(data_dir / FILE, on_fatal=on_fatal)
        opened.push_async_callback(file.close)
        return file
    target = redis_target.parse_all(config.storage)[0]  # the catalog is with the first one
    lock = await asyncio.to_thread(lock_store, data_dir / LOCK)
    opened.callback(os.close, lock)
    found = await examine_all(target)
    check_shards(found, target)
    mark = await asyncio.to_thread(read_store_mark, data_dir)
    known = mark or ClusterMark(incarnation=found[0].incarnation or "")
    with explain_doubts([doubt for one in found for doubt in one.doubts]):
        shard = await open_shard(target, known, on_fatal)
    opened.push_async_callback(shard.close)
    keeper = MarkKeeper(data_dir, known.incarnation, lambda: touches_of(shard))
    await keeper.start()
    opened.push_async_callback(keeper.close)
    return RedisDatabase(shard)


def run(settings: NodeSettings, *, announce: Callable[[NodeServer], None]) -> int:
    """Run the whole life of the process until a signal; return the exit code. `announce` is called
    when the node accepts. Raises StartError with a sentence that says what to do."""
    raise_files_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, announce))
    return 0


async def _serve(settings: NodeSettings, announce: Callable[[NodeServer], None]) -> None:
    stopping = asyncio.Event()
    listen_to_signals(stopping)
    opening = NodeServer.open(settings, on_fatal=end_at_once)
    server = await opened_unless(stopping, opening)
    if server is None:
        return
    try:
        announce(server)
        supervisor.tell("READY=1")
        await stopping.wait()
        logger.info("going down")
        supervisor.tell("STOPPING=1")
    finally:
        await server.stop()
    logger.info("good-bye")


def data_dir_of_node(data_dir: Path) -> Path:
    """Return the folder of a node's files, inside the data folder of its machine's gateway."""
    return data_dir / LOCK
