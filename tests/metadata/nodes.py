"""A metadata service in this process: nodes over one database, asked without sockets, and what can
happen to a network between them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from metadata.backend import NodeDatabase
from metadata.catalog_service import CatalogService
from metadata.row_store import RowStore
from metadata.service.client import NodeChoice, NodeClient, RemoteDatabase
from metadata.service.node import Node, Shards
from metadata.service.protocol import BODY_BYTES_MAX, Layout, NoAnswer, NodeResponse, NotSent
from metadata.sqlite.database import FILE, SqliteDatabase
from services.metadata_node.routes import application

BALANCER = "http://balancer"


class Network:
    """Carries requests to applications by their URL."""

    def __init__(self) -> None:
        self.applications: dict[str, ASGIApp] = {}
        self.nodes: dict[str, Node] = {}
        self._turn = 0
        self.cut: set[str] = set()
        """Nodes that nothing reaches and nothing comes back from, silently."""
        self.lost: set[str] = set()
        """Targets of which the next answer does not come back."""
        self.asked: list[tuple[str, str, str]] = []
        """Url, method and target of every request."""

    async def ask(
        self, url: str, method: str, target: str, body: bytes | None, *, timeout_s: float
    ) -> NodeResponse:
        """Implement NodeTransport.ask."""
        self.asked.append((url, method, target))
        if url == BALANCER:
            url = next(self._turns(), url)
        app = self.applications.get(url)
        if app is None:
            raise NotSent(f"{url}: refused")
        if url in self.cut:
            await asyncio.sleep(timeout_s)
            raise NoAnswer(f"{url} did not answer within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                answer = await _call(app, method, target, body)
        except TimeoutError:
            raise NoAnswer(f"{url} did not answer within {timeout_s:g} s") from None
        if target in self.lost:
            self.lost.discard(target)
            raise NoAnswer(f"{url}: the connection was lost")
        if url in self.cut or url not in self.applications:
            raise NoAnswer(f"{url}: the connection was lost")
        return answer

    def _turns(self) -> Iterator[str]:
        """A balancer: those that say that they are ready, in turn."""
        self._turn += 1
        ready = [url for url in self.applications if not self.nodes[url].is_leaving]
        for number in range(len(ready)):
            yield ready[(self._turn + number) % len(ready)]

    async def close(self) -> None:
        """Implement NodeTransport.close."""


async def _call(app: ASGIApp, method: str, target: str, body: bytes | None) -> NodeResponse:
    parts = urlsplit(target)
    answer = NodeResponse()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
        else:
            answer.body += message.get("body", b"")

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": parts.path,
        "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "headers": [],
        "root_path": "", "scheme": "http", "server": ("node", 80), "client": ("test", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    assert len(answer.body) <= BODY_BYTES_MAX
    return answer


class Service:
    """Nodes over one database."""

    def __init__(self, database: NodeDatabase, layout: Layout = "whole") -> None:
        self.database = database
        self.layout: Layout = layout
        self.network = Network()
        self.nodes = self.network.nodes
        self.fatal: list[str] = []
        self._remotes: list[CatalogService] = []
        self._choices: list[NodeChoice] = []

    async def start(self, name: str, database: NodeDatabase | None = None) -> Node:
        """One more node, at http://<name>."""
        url = f"http://{name}"
        node = await Node.open(
            database or self.database, url, self.layout, on_fatal=self.fatal.append
        )
        peers = NodeClient(self.network, NodeChoice([url], Random(1).random))
        self.nodes[url] = node
        self.network.applications[url] = application(node, Shards(node, peers), None)
        return node

    def kill(self, name: str) -> Node:
        """It is gone without a word; its connections are refused. Who calls ends its tasks."""
        url = f"http://{name}"
        del self.network.applications[url]
        node = self.nodes.pop(url)
        for task in node._tasks:
            task.cancel()
        return node

    async def stop(self, name: str) -> None:
        """It leaves in an orderly way."""
        node = self.nodes.pop(f"http://{name}")
        await node.close()
        del self.network.applications[f"http://{name}"]

    async def remote(self, *names: str, seed: int = 1) -> RemoteDatabase:
        """The service as a gateway sees it that was told of these nodes; of none: all there are, or
        the balancer before nodes that have everything."""
        everybody = [BALANCER] if self.layout == "whole" else [*self.nodes]
        urls: Sequence[str] = [f"http://{name}" for name in names] or everybody
        self._choices.append(NodeChoice(urls, Random(seed).random))
        return RemoteDatabase(NodeClient(self.network, self._choices[-1]))

    def not_reached(self, name: str) -> None:
        """Every gateway has just asked this one for nothing, and asks another one first."""
        for choice in self._choices:
            choice.on_failure(f"http://{name}", now=asyncio.get_running_loop().time())

    def is_known(self, name: str) -> bool:
        """Whether every node and every gateway has heard of this one."""
        seen = [*(node.nodes for node in self.nodes.values()), *(c.nodes for c in self._choices)]
        return all(any(one.url == f"http://{name}" for one in nodes) for nodes in seen)

    async def gateway(
        self, *names: str, seed: int = 1, on_fatal: Callable[[str], None] | None = None
    ) -> CatalogService:
        """A gateway's metadata over it."""
        remote = await self.remote(*names, seed=seed)
        try:
            opened = await RowStore.open(remote, on_fatal=on_fatal)
        except BaseException:
            await remote.close()
            raise
        metadata = CatalogService(*opened)
        self._remotes.append(metadata)
        return metadata

    async def close(self) -> None:
        """Everything, in the right order."""
        for metadata in self._remotes:
            await metadata.close()
        for node in list(self.nodes.values()):
            await node.close()


@asynccontextmanager
async def service(folder: Path, layout: Layout, names: Sequence[str]) -> AsyncIterator[Service]:
    """Nodes over one file."""
    database = await SqliteDatabase.open(folder / FILE)
    made = Service(database, layout)
    try:
        for name in names:
            await made.start(name)
        yield made
    finally:
        await made.close()
        await database.close()
