"""REST: is the process alive, is it ready, what can it do."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.facts_values import ClusterList
from gateway.rest.operation import Answer, Operation, principal
from gateway.rest.ports import BrokerPort
from push.errors import Refused
from runtime.http_forms import JSON, Health, Readiness, reply


async def healthz(broker: BrokerPort, request: Request) -> Response:
    """200 as long as the event loop turns; says nothing about the storage, because restarting
    the process would not help there."""
    return reply(Health("alive"))


async def readyz(broker: BrokerPort, request: Request) -> Response:
    """503 while something is not ready, with the list."""
    not_ready = await broker.ready()
    if broker.draining and not not_ready:
        not_ready = ["this gateway is going down"]
    return reply(Readiness(not not_ready, not_ready), 503 if not_ready else 200)


async def openapi(broker: BrokerPort, request: Request) -> Response:
    """This description. Encoded when the application is made, see gateway.rest.rest."""
    return Response(request.app.openapi, media_type=JSON)


async def websocket(broker: BrokerPort, request: Request) -> Response:
    """What a plain request gets where a WebSocket is opened; a real handshake never comes here."""
    raise Refused("invalid_request", "open a WebSocket here, with the subprotocol tocsin.v1")


async def list_clusters(broker: BrokerPort, request: Request) -> Response:
    """Where partitions are placed: the storage clusters, how full they are, what they hold."""
    return reply(await broker.clusters(principal(request)))


OPERATIONS: Final = (
    Operation(
        "GET",
        "/healthz",
        "Is the process alive?",
        healthz,
        {200: Answer("It is.", Health)},
        public=True,
    ),
    Operation(
        "GET",
        "/readyz",
        "Is it ready for traffic?",
        readyz,
        {
            200: Answer("It is.", Readiness),
            503: Answer("It is not; the list says what is not ready.", Readiness),
        },
        public=True,
    ),
    Operation(
        "GET",
        "/v1/clusters",
        "Describe the storage clusters.",
        list_clusters,
        {200: Answer("All of them.", ClusterList)},
        needs="manage every",
    ),
    Operation(
        "GET",
        "/openapi.json",
        "This description.",
        openapi,
        {200: Answer("OpenAPI 3.1.", dict[str, Any])},
        needs="nothing",
    ),
    Operation(
        "GET",
        "/v1/ws",
        "Open a session over WebSocket (subprotocol tocsin.v1).",
        websocket,
        {101: Answer("The handshake of RFC 6455; frames follow.")},
        needs="nothing",
        errors=("invalid_request",),
    ),
)
