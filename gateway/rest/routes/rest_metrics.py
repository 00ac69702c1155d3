"""REST: metrics, for a Prometheus: of this gateway to operators, and of a queue."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.auth import OPERATORS
from gateway.rest.operation import Answer, Operation, admission, find_queue, rights
from gateway.rest.ports import BrokerPort
from gateway.rest.views import shows_depth
from metadata.catalog import dead_letter_name, other_dead_letter_queue
from runtime.metrics.serving import answer


async def metrics(broker: BrokerPort, request: Request) -> Response:
    """What this gateway counts, and of queues those of one's own tenant. The holder of
    `TOCSIN_TOKEN` is told of all of them, and who asks at the port for metrics."""
    found, who = await broker.metrics.everything(), admission(request)
    if (who.principal, who.credential) != (OPERATORS.principal, OPERATORS.credential):
        found = found.of_tenant(who.principal.tenant)
    return await answer(request, found)


async def queue_metrics(broker: BrokerPort, request: Request) -> Response:
    """The same of one queue and its groups, as far as this gateway knows: counters are of what went
    through it, depth and lag are of all of it."""
    queue = find_queue(broker, request)
    is_other = other_dead_letter_queue(queue.name, queue.settings.dead_letter_queue) is not None
    sees = not is_other or shows_depth(rights(request), dead_letter_name(queue))
    return await answer(request, await broker.metrics.of_queue(queue, sees_dead_letters=sees))


_WORDS: Final = "Prometheus' text format, or OpenMetrics where `Accept` names it."

OPERATIONS: Final = (
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
