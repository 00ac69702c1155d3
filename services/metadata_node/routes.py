"""The metadata service over HTTP: the routes of a node, and its metrics.

Answers are JSON, errors problem documents. Every client except supervisors presents the service's
token, which allows everything with the catalog that a gateway may do.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metadata.service.node import Node, Shards
from metadata.service.protocol import (
    WAIT_S_MAX,
    BeatRequest,
    Changed,
    ChangeRequest,
    MembershipRequest,
    ReadRequest,
    Taken,
)
from metadata.service.shards import SHARDS
from push.errors import Fenced, Refused
from runtime.metrics.exposition import PATH as METRICS
from runtime.metrics.exposition import Samples, scrape, shows
from runtime.metrics.process import LoopLag, of_process
from runtime.operation import Health, Readiness, decode, read_body, reply
from runtime.problems import Problems


class NodeMetrics:
    """Metrics of a node of the metadata service. The owner of the loop starts `lag`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answered: Counter[str] = Counter()
        self.lag = LoopLag()

    def counting(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application so that its answers are counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._answered[f"{message['status'] // 100}xx"] += 1
                await send(message)

            await app(scope, receive, sending)

        return counted

    async def collect(self) -> Samples:
        """Return the present samples."""
        began, samples, node = time.perf_counter(), Samples(), self._node
        of_process(samples, "metadata", "", self.lag)
        samples.put("tocsin_ready", not node.not_ready())
        for status in ("2xx", "4xx", "5xx"):
            samples.put("tocsin_node_requests_total", self._answered[status], status)
        samples.put("tocsin_node_read_age_seconds", node.age_s)
        samples.put("tocsin_node_peers", len(node.nodes))
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples


PUBLIC: Final = frozenset({"/healthz", "/readyz"})
CHANGE_BYTES_MAX: Final = 16 * 1_048_576
"""Largest body of a change in bytes; ten thousand newly wrapped data keys are written at once."""
_READ: Final = msgspec.json.Decoder(ReadRequest)
_CHANGE: Final = msgspec.json.Decoder(ChangeRequest)
_MEMBERSHIP: Final = msgspec.json.Decoder(MembershipRequest)
_BEAT: Final = msgspec.json.Decoder(BeatRequest)
Handler = Callable[[Request], Awaitable[Response]]
NumberT = TypeVar("NumberT", int, float)


def application(
    node: Node,
    shards: Shards,
    token: str | None,
    metrics: NodeMetrics | None = None,
    metrics_token: str | None = None,
) -> ASGIApp:
    """Make the ASGI application of a node. `token`: the one that clients present; None if every
    client may use the node. `metrics_token`: one that allows scraping its metrics, and nothing
    else."""
    metrics = metrics or NodeMetrics(node)
    routes = [*_status_routes(node), scrape(metrics.collect), *_routes(node, shards)]
    router = Router(routes, redirect_slashes=False)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = guarded  # the router then raises 404 and 405
        if token is not None and scope["path"] not in PUBLIC:
            wanted = [token, metrics_token] if scope["path"] == METRICS else [token]
            if not any(one is not None and shows(scope["headers"], one) for one in wanted):
                raise Refused(
                    "unauthorized",
                    "present the token of TOCSIN_METADATA_TOKEN: Authorization: Bearer <token>",
                )
        await router(scope, receive, send)

    return metrics.counting(Problems(guarded))


def _status_routes(node: Node) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return reply(Health("alive"))

    async def readyz(request: Request) -> Response:
        reasons = node.not_ready()
        return reply(Readiness(not reasons, reasons), 503 if reasons else 200)

    async def nodes(request: Request) -> Response:
        return reply(node.nodes)

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/v1/nodes", nodes, methods=["GET"]),
    ]


def _routes(node: Node, shards: Shards) -> list[Route]:
    async def watch(request: Request) -> Response:
        version = _number(request, "version", int, 1 << 53)
        wait_s = _number(request, "wait_s", float, WAIT_S_MAX)
        return reply(await node.watch(version, request.query_params.get("cursor", ""), wait_s))

    async def read(request: Request) -> Response:
        return reply(await node.read(decode(await read_body(request), _READ).seen))

    async def shard(request: Request) -> Response:
        number = request.path_params["number"]
        if not 0 <= number < SHARDS:
            raise Refused("invalid_request", f"the shard must be a number from 0 to {SHARDS - 1}")
        return reply(await shards.shard(number, request.query_params.get("how", "")))

    async def change(request: Request) -> Response:
        wanted = decode(await read_body(request, CHANGE_BYTES_MAX), _CHANGE)
        try:
            return reply(Changed(await node.change(wanted)))
        except Fenced:
            return reply(Changed(changed=False, fenced=True))

    async def taken(request: Request) -> Response:
        return reply(Taken(await node.database.is_taken(request.path_params["id"])))

    async def membership(request: Request) -> Response:
        return reply(await node.database.memberships().get(request.path_params["group_id"]))

    async def glance(request: Request) -> Response:
        return reply(await node.database.memberships().glance(request.path_params["group_id"]))

    async def change_membership(request: Request) -> Response:
        wanted = decode(await read_body(request), _MEMBERSHIP)
        changed = await node.database.memberships().change(
            wanted.new, expected_generation=wanted.expected_generation
        )
        return reply(Changed(changed))

    async def beat(request: Request) -> Response:
        heard = decode(await read_body(request), _BEAT)
        rows = node.database.memberships()
        return reply(await rows.beat(heard.gateway, heard.number, heard.forget, heard.says))

    async def said(request: Request) -> Response:
        return reply(await node.database.memberships().said())

    return [
        Route("/v1/watch", watch, methods=["GET"]),
        Route("/v1/read", read, methods=["POST"]),
        Route("/v1/shards/{number:int}", shard, methods=["GET"]),
        Route("/v1/change", change, methods=["POST"]),
        Route("/v1/ids/{id}", taken, methods=["GET"]),
        Route("/v1/memberships/{group_id}", membership, methods=["GET"]),
        Route("/v1/memberships/{group_id}/glance", glance, methods=["GET"]),
        Route("/v1/memberships", change_membership, methods=["POST"]),
        Route("/v1/beats", beat, methods=["POST"]),
        Route("/v1/beats", said, methods=["GET"]),
    ]


def _number(request: Request, name: str, kind: Callable[[str], NumberT], most: NumberT) -> NumberT:
    try:
        value = kind(request.query_params.get(name, "0"))
    except ValueError:
        raise Refused("invalid_request", f"{name} must be a number") from None
    if not 0 <= value <= most:
        raise Refused("invalid_request", f"{name} must be from 0 to {most}")
    return value
