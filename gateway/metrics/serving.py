"""/metrics beside a gateway's API: of a node of the metadata service with what it serves anyway, of
a manager, and of a gateway for who operates it, on a port for metrics alone."""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.listening import Listener, bind
from gateway.metrics.process import LoopLag, of_process
from gateway.metrics.samples import Samples
from gateway.operation import reply
from gateway.problems import Problems
from gateway.rest_metrics import answer
from gateway.rest_status import Health
from push.errors import Refused

if TYPE_CHECKING:
    from gateway.cluster_keeper import ClusterTold
    from metadata.node import Node

Collect = Callable[[], Awaitable[Samples]]
PATH = "/metrics"


def shows(headers: list[tuple[bytes, bytes]], token: str) -> bool:
    """Whether a request shows this token; in constant time."""
    said = dict(headers).get(b"authorization", b"")
    return hmac.compare_digest(said, b"Bearer " + token.encode())


def scrape(collect: Collect) -> Route:
    """The route of /metrics; who may ask is judged before."""

    async def metrics(request: Request) -> Response:
        return await answer(request, await collect())

    return Route(PATH, metrics, methods=["GET"])


class NodeMetrics:
    """Of a node of the metadata service. `lag`: to be started by who has the loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._answered: Counter[str] = Counter()
        self.lag = LoopLag()

    def counting(self, app: ASGIApp) -> ASGIApp:
        """The application, whose answers are counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._answered[f"{message['status'] // 100}xx"] += 1
                await send(message)

            await app(scope, receive, sending)

        return counted

    async def collect(self) -> Samples:
        """What there is now."""
        began, samples, node = time.perf_counter(), Samples(), self._node
        of_process(samples, "metadata", "", self.lag)
        samples.put("tocsin_ready", not node.not_ready())
        for status in ("2xx", "4xx", "5xx"):
            samples.put("tocsin_node_requests_total", self._answered[status], status)
        samples.put("tocsin_node_read_age_seconds", node.age_s)
        samples.put("tocsin_node_peers", len(node.nodes))
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples


class ManagerMetrics:
    """Of a manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: Counter[tuple[str, str]] = Counter()
        self.lag = LoopLag()

    def stepped(self, duty: str, *, is_done: bool) -> None:
        """A step of a duty has ended."""
        self._steps[duty, "done" if is_done else "failed"] += 1

    def collect(
        self, *, leads: bool, term: int, told: Mapping[str, "ClusterTold | None"]
    ) -> Samples:
        """What there is now. `told`: of each cluster what this manager said last; None: nothing."""
        began, samples = time.perf_counter(), Samples()
        of_process(samples, "manager", self._name, self.lag)
        samples.put("tocsin_manager_leads", leads)
        samples.put("tocsin_manager_term", term)
        for (duty, outcome), count in sorted(self._steps.items()):
            samples.put("tocsin_manager_steps_total", count, duty, outcome)
        for cluster, one in told.items():
            if one is None or not leads:  # who leads no more knows how it was
                continue
            for server in one.servers:
                samples.put("tocsin_manager_servers", 1, cluster, server.state)
            behind = max((server.behind_bytes for server in one.servers), default=0)
            samples.put("tocsin_manager_behind_bytes", behind, cluster)
            age_s = max(0.0, time.time() - one.seen_unix_s)
            samples.put("tocsin_manager_seen_age_seconds", age_s, cluster)
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples


def application(collect: Collect, token: str | None) -> ASGIApp:
    """An application with /metrics and /healthz alone; `token` None: everybody may scrape."""

    async def healthz(request: Request) -> Response:
        return reply(Health("alive"))

    router = Router(
        [scrape(collect), Route("/healthz", healthz, methods=["GET"])], redirect_slashes=False
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = guarded  # the router then raises 404 and 405
        if token is not None and scope["path"] == PATH and not shows(scope["headers"], token):
            raise Refused("unauthorized", "show the token of TOCSIN_METRICS_TOKEN")
        await router(scope, receive, send)

    return Problems(guarded)


class MetricsServer:
    """A port for metrics alone. Without a token only this machine may be let in: who starts it
    checks that."""

    def __init__(self, host: str, port: int, collect: Collect, token: str | None) -> None:
        """Binds. Raises StartError."""
        self._bound = bind(host, port)
        self.port: int = self._bound.getsockname()[1]
        self._listener = Listener(application(collect, token), self._bound)

    async def start(self) -> None:
        """Accept."""
        await self._listener.start()

    async def stop(self) -> None:
        """Close."""
        async with asyncio.timeout(5):
            await self._listener.finish(1)
