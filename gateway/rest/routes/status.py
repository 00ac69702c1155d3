"""REST: health and readiness of a gateway, the OpenAPI document, the storage clusters, and metrics
for Prometheus, of the gateway and of one queue.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.auth import OPERATORS
from gateway.broker import Broker
from gateway.models import ClusterList
from gateway.rest.operation import Answer, Operation, admission, find_queue, principal, rights
from gateway.rest.views import shows_depth
from metadata.catalog import dead_letter_name, other_dead_letter_queue
from push.errors import Refused
from runtime.metrics.exposition import answer
from runtime.operation import JSON, Health, Readiness, reply


async def healthz(broker: Broker, request: Request) -> Response:
    """Answer 200 as long as the event loop runs. The storage does not matter here, because
    restarting the process would not help it."""
    return reply(Health("alive"))


async def readyz(broker: Broker, request: Request) -> Response:
    """Answer 200 if this gateway is ready for traffic. Otherwise answer 503, with a list of what is
    not ready. If scheduled messages rest because the clock has jumped, `notes` says so."""
    not_ready = await broker.ready()
    if broker.draining and not not_ready:
        not_ready = ["this gateway is going down"]
    answer = Readiness(not not_ready, not_ready, broker.notes())
    return reply(answer, 503 if not_ready else 200)


async def openapi(broker: Broker, request: Request) -> Response:
    """Return this document: OpenAPI 3.1, with all operations, types and error codes."""
    return Response(request.app.openapi, media_type=JSON)


async def websocket(broker: Broker, request: Request) -> Response:
    """Open a session over WebSocket, with the subprotocol tocsin.v1. A request without a WebSocket
    handshake is refused."""
    # A real handshake never comes here: gateway.net.websocket answers it.
    raise Refused("invalid_request", "open a WebSocket here, with the subprotocol tocsin.v1")


async def list_clusters(broker: Broker, request: Request) -> Response:
    """Describe the storage clusters: their state, how full they are, and what they hold."""
    return reply(await broker.clusters(principal(request)))


async def metrics(broker: Broker, request: Request) -> Response:
    """Return the metrics of this gateway, with those of the queues of the client's tenant. With
    `TOCSIN_TOKEN`, and at the port for metrics, the answer has the queues of all tenants."""
    found, who = await broker.metrics.collect(), admission(request)
    if (who.principal, who.credential) != (OPERATORS.principal, OPERATORS.credential):
        found = found.of_tenant(who.principal.tenant)
    return await answer(request, found)


async def queue_metrics(broker: Broker, request: Request) -> Response:
    """Return the metrics of one queue and its groups. Counters are those of this gateway. Depth and
    lag are those of the whole queue."""
    queue = find_queue(broker, request)
    is_other = other_dead_letter_queue(queue.name, queue.settings.dead_letter_queue) is not None
    sees = not is_other or shows_depth(rights(request), dead_letter_name(queue))
    return await answer(request, await broker.metrics.collect_queue(queue, sees_dead_letters=sees))


_WORDS: Final = "The text format of Prometheus, or OpenMetrics if `Accept` names it."

OPERATIONS: Final = (
    Operation(
        "GET",
        "/healthz",
        "Is the process alive?",
        healthz,
        {200: Answer("The process is alive.", Health)},
        public=True,
    ),
    Operation(
        "GET",
        "/readyz",
        "Is it ready for traffic?",
        readyz,
        {
            200: Answer("The gateway is ready.", Readiness),
            503: Answer("The gateway is not ready; the list says why.", Readiness),
        },
        public=True,
    ),
    Operation(
        "GET",
        "/v1/clusters",
        "Describe the storage clusters.",
        list_clusters,
        {200: Answer("All storage clusters.", ClusterList)},
        needs="manage every",
    ),
    Operation(
        "GET",
        "/openapi.json",
        "Return this document.",
        openapi,
        {200: Answer("The document, in OpenAPI 3.1.", dict[str, Any])},
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
    Operation(
        "GET",
        "/metrics",
        "Return the metrics of this gateway.",
        metrics,
        {200: Answer(_WORDS, str, "text/plain")},
        needs="observe every",
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/metrics",
        "Return the metrics of a queue.",
        queue_metrics,
        {200: Answer(_WORDS, str, "text/plain")},
        needs="consume or manage or observe",
        errors=("invalid_name", "queue_not_found"),
    ),
)
