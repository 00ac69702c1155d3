"""/metrics beside a gateway's API: of a node of the metadata service with what it serves anyway, of
a manager, and of a gateway for who operates it, on a port for metrics alone."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from push.errors import Refused
from runtime.listener import Listener, bind
from runtime.metrics.exposition import OPEN, TEXT, Samples, exposed, is_open
from runtime.operation import Health, reply
from runtime.problems import Problems

Collect = Callable[[], Awaitable[Samples]]
PATH = "/metrics"


def shows(headers: list[tuple[bytes, bytes]], token: str) -> bool:
    """Whether a request shows this token; in constant time."""
    said = dict(headers).get(b"authorization", b"")
    return hmac.compare_digest(said, b"Bearer " + token.encode())


async def answer(request: Request, samples: Samples) -> Response:
    """As text, in the format that was asked for."""
    as_open = is_open(request.headers.getlist("accept"))
    text = await exposed(samples, as_open=as_open)
    return Response(text, headers={"Content-Type": OPEN if as_open else TEXT, "Vary": "Accept"})


def scrape(collect: Collect) -> Route:
    """The route of /metrics; who may ask is judged before."""

    async def metrics(request: Request) -> Response:
        return await answer(request, await collect())

    return Route(PATH, metrics, methods=["GET"])


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
