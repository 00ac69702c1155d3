"""REST: what a gateway says of itself: alive, ready, its description, its storage clusters, and
metrics for a Prometheus, of the gateway to operators, and of one queue.
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
    """200 as long as the event loop turns; says nothing about the storage, because restarting
    the process would not help there."""
    return reply(Health("alive"))


async def readyz(broker: Broker, request: Request) -> Response:
    """503 while something is not ready, with the list."""
    not_ready = await broker.ready()
    if broker.draining and not not_ready:
        not_ready = ["this gateway is going down"]
    return reply(Readiness(not not_ready, not_ready), 503 if not_ready else 200)


async def openapi(broker: Broker, request: Request) -> Response:
    """This description. Encoded when the application is made, see gateway.rest.app."""
    return Response(request.app.openapi, media_type=JSON)


async def websocket(broker: Broker, request: Request) -> Response:
    """What a plain request gets where a WebSocket is opened; a real handshake never comes here."""
    raise Refused("invalid_request", "open a WebSocket here, with the subprotocol tocsin.v1")


async def list_clusters(broker: Broker, request: Request) -> Response:
    """Where partitions are placed: the storage clusters, how full they are, what they hold."""
    return reply(await broker.clusters(principal(request)))


async def metrics(broker: Broker, request: Request) -> Response:
    """What this gateway counts, and of queues those of one's own tenant. The holder of
    `TOCSIN_TOKEN` is told of all of them, and who asks at the port for metrics."""
    found, who = await broker.metrics.collect(), admission(request)
    if (who.principal, who.credential) != (OPERATORS.principal, OPERATORS.credential):
        found = found.of_tenant(who.principal.tenant)
    return await answer(request, found)


async def queue_metrics(broker: Broker, request: Request) -> Response:
    """The same of one queue and its groups, as far as this gateway knows: counters are of what went
    through it, depth and lag are of all of it."""
    queue = find_queue(broker, request)
    is_other = other_dead_letter_queue(queue.name, queue.settings.dead_letter_queue) is not None
    sees = not is_other or shows_depth(rights(request), dead_letter_name(queue))
    return await answer(request, await broker.metrics.collect_queue(queue, sees_dead_letters=sees))


_WORDS: Final = "Prometheus' text format, or OpenMetrics where `Accept` names it."

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
    Operation(
        "GET",
        "/metrics",
        "Metrics of this gateway.",
        metrics,
        {200: Answer(_WORDS, str, "text/plain")},
        needs="observe every",
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/metrics",
        "Metrics of a queue.",
        queue_metrics,
        {200: Answer(_WORDS, str, "text/plain")},
        needs="consume or manage or observe",
        errors=("invalid_name", "queue_not_found"),
    ),
)
